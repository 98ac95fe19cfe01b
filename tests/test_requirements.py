"""docs/requirements.toml lists the clauses of every requirement, and only a test that names a clause proves it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from scripts import docs

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "docs/requirements.toml").read_text()
# How many numbers each group has.
GROUPS = {"R0": 12, "R1": 11, "R2": 15, "R3": 11, "R4": 9}
NUMBERS = [f"{group}.{n}" for group, count in GROUPS.items() for n in range(1, count + 1)]
NUMBERS += [f"B{n}" for n in range(1, 12)]


def test_every_number_has_clauses() -> None:
    requirements = docs.read_requirements(TEXT)
    assert [requirement.number for requirement in requirements] == NUMBERS
    for requirement in requirements:
        assert requirement.title and requirement.clauses, requirement.number
        for clause, sentence in requirement.clauses.items():
            assert re.fullmatch(r"(R\d\.\d+|B\d+)/[a-z][a-z0-9-]*", clause), clause
            assert re.fullmatch(r"\S[^\n]*\.", sentence), f"{clause} is one sentence with a full stop"


def test_a_bare_number_proves_nothing() -> None:
    requirements = docs.read_requirements('["R9.1"]\ntitle = "T"\na = "A is true."\nb = "B is true."\n')
    find = docs.CLAUSE.findall
    named = {clause: ["tests/test_x.py::test_y"] for clause in find("R9.1, R9.1/a and B1: true")}
    page = docs.requirements_page(requirements, named)
    assert "| R9.1/a | A is true. | `tests/test_x.py::test_y` |" in page
    assert "| R9.1/b | B is true. | **open** |" in page
    assert "1 of 2 clauses" in page


@pytest.mark.slow
def test_an_unknown_clause_fails_the_check(monkeypatch: pytest.MonkeyPatch) -> None:
    assert docs.unknown_clauses(docs.read_requirements(TEXT), docs.proofs(docs.CLAUSE.findall)) == []
    monkeypatch.setattr(docs, "docstrings", lambda: [("tests/test_x.py::test_y", "R0.1/nonsense: no")])
    with pytest.raises(SystemExit, match=r"tests/test_x\.py::test_y: unknown clause R0\.1/nonsense"):
        docs.pages()
