"""`make attack` (S63): a check that could not run is a failure, and the output says what nobody looked at."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from scripts import attack, docs

REPORT = """<testsuites><testsuite>
<testcase classname="tests.sql.test_x.TestRows" name="test_a[pg18-1]"/>
<testcase classname="tests.sql.test_x.TestRows" name="test_a[pg18-2]"><failure/></testcase>
<testcase classname="tests.sql.test_x" name="test_skipped"><skipped/></testcase>
<testcase classname="tests.test_y" name="test_b"/>
</testsuite></testsuites>"""


@pytest.fixture
def cases(tmp_path: Path) -> attack.Cases:
    path = tmp_path / "report.xml"
    path.write_text(REPORT)
    return attack.read_report(path)


def test_report_lists_cases_by_file_class_and_function(cases: attack.Cases) -> None:
    assert cases == {
        "tests/sql/test_x.py": [True, False],
        "tests/sql/test_x.py::TestRows": [True, False],
        "tests/sql/test_x.py::TestRows::test_a": [True, False],
        "tests/test_y.py": [True],
        "tests/test_y.py::test_b": [True],
    }


@pytest.mark.parametrize(
    ("number", "tests", "is_good", "said"),
    [
        ("S1", ["tests/test_y.py::test_b"], True, "1 tries, 0 got through"),
        ("S1", ["tests/sql/test_x.py::TestRows"], False, "2 tries, 1 got through"),
        # A skipped test did not try the attack, whatever the others did.
        ("S1", ["tests/test_y.py::test_b", "tests/sql/test_x.py::test_skipped"], False, "DID NOT RUN"),
        ("S1", ["tests/test_gone.py"], False, "DID NOT RUN"),
        ("S1", [], False, "NO TEST"),
        ("S8", [], True, "not tried: "),
    ],
)
def test_attack_whose_tests_did_not_run_is_a_failure(
    cases: attack.Cases, number: str, tests: list[str], is_good: bool, said: str
) -> None:
    """S63"""
    verdict = attack.judge(number, "what", tests, cases)
    assert (verdict.is_good, said in verdict.text) == (is_good, True), verdict


@pytest.mark.slow
def test_pytest_that_breaks_is_a_failure() -> None:
    """S63"""
    found, verdict = attack.run_tests(["tests/no_such_file.py"])
    assert (found, verdict.is_good) == ({}, False)


def _audited(*packages: dict[str, object], is_strict: bool = False) -> attack.Verdict:
    return attack.read_audit(json.dumps({"dependencies": packages}), "", is_strict)


def test_audit_tells_holes_missing_advisories_and_failures_apart() -> None:
    """S63: an index without advisories is named, but fails only a release."""
    good: dict[str, object] = {"name": "a", "version": "1", "vulns": []}
    bad: dict[str, object] = {"name": "b", "version": "2", "vulns": [{"id": "PYSEC-1"}]}
    unknown: dict[str, object] = {"name": "c", "skip_reason": "not on the index"}
    assert _audited(good) == attack.Verdict("pip-audit: 1 of 1 packages looked at, 0 known holes", True)
    assert not _audited(good, bad).is_good and "b 2: PYSEC-1" in _audited(good, bad).text
    said = _audited(good, unknown)
    assert said.is_good and "1 of 2 packages" in said.text and "NOT LOOKED AT" in said.text
    assert not _audited(good, unknown, is_strict=True).is_good
    for broken in (attack.read_audit("", "no network", False), _audited()):
        assert not broken.is_good and "COULD NOT RUN" in broken.text


def test_every_attack_of_the_table_has_a_test_or_a_reason() -> None:
    """S63"""
    tests = docs.proofs(docs.attack_numbers)
    numbers = [number for number, _ in attack.attacks()]
    assert len(set(numbers)) == len(numbers) > 40
    assert [number for number in numbers if not tests.get(number)] == list(attack.UNTESTED)
