"""The rules of CONTRIBUTING.md that a test can check, on the files of the tree."""

from __future__ import annotations

import ast
import inspect
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import penstock

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
# The package that connects to PostgreSQL. Other modules may catch psycopg's errors and build a DSN, nothing else.
EDGE = "penstock/postgres/"
MOST_LINES_OF_FILE, MOST_LINES_OF_FUNCTION = 500, 60
# The functions that list the columns of a task which travel between ready, parked and leases: see queue.sql.
MOVE_TASKS = {
    "_parked_to_ready", "_lease_to_ready", "_ready_to_parked", "_parked_to_lease", "_lease_to_waiting", "_queue",
    "_lease_tasks",
}  # fmt: skip


def modules(*folders: str) -> Iterator[tuple[str, str]]:
    for path in sorted(path for folder in folders or ("penstock",) for path in (ROOT / folder).rglob("*.py")):
        yield str(path.relative_to(ROOT)), path.read_text()


def make_targets() -> set[str]:
    return set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def used_of_psycopg(text: str) -> set[str]:
    names = {
        node.attr
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "psycopg"
    }
    return names | set(re.findall(r"^from (psycopg\w*\.\w+|psycopg\w*) import", text, re.MULTILINE))


@pytest.mark.slow
def test_only_the_edges_connect_to_postgres() -> None:
    allowed = {"Error", "ProgrammingError", "OperationalError", "psycopg.conninfo"}
    for path, text in modules():
        if not path.startswith(EDGE):
            assert used_of_psycopg(text) <= allowed, path
    assert used_of_psycopg("import psycopg\npsycopg.connect()") == {"connect"}


def test_files_are_short() -> None:
    counts = {path: text.count("\n") for path, text in modules("penstock", "faults", "scripts")}
    assert {path: count for path, count in counts.items() if count > MOST_LINES_OF_FILE} == {}


def test_functions_are_short() -> None:
    counts: dict[str, int] = {}
    for path, text in modules("penstock", "faults", "scripts"):
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                name, lines = f"{path}::{node.name}", (node.end_lineno or 0) - node.lineno + 1
                counts[name] = max(counts.get(name, 0), lines)
    assert {name: lines for name, lines in counts.items() if lines > MOST_LINES_OF_FUNCTION} == {}


def sql_functions(text: str) -> Iterator[tuple[str, int]]:
    """Each function of a file, and its lines without comment and grants."""
    for name, body in sql_bodies(text):
        yield name, body.count("\n")


def sql_bodies(text: str) -> Iterator[tuple[str, str]]:
    for found in re.finditer(
        r"^create or replace (?:function|procedure) (?:\w+\.)?(\w+)\(.*?\$\$;\n", text, re.S | re.M
    ):
        yield found[1], found[0]


def sql_files() -> Iterator[tuple[str, str]]:
    """The functions of the contract; then those of the apps, under APP/FILE."""
    for path in sorted((ROOT / "penstock/sql/functions").glob("*.sql")):
        yield path.stem, path.read_text()
    for path in sorted((ROOT / "penstock/apps").glob("*/sql/functions/*.sql")):
        yield f"{path.parts[-4]}/{path.stem}", path.read_text()


def test_sql_files_are_short() -> None:
    assert {
        name: count for name, text in sql_files() if (count := text.count("\n")) > MOST_LINES_OF_FILE
    } == {}


def test_sql_functions_are_short() -> None:
    counts = {f"{file}: {name}": lines for file, text in sql_files() for name, lines in sql_functions(text)}
    # Also a function in another form, such as with another quote, has to be counted.
    created = re.compile(r"^\s*create (?:or replace )?(?:function|procedure) ", re.M | re.I)
    assert len(counts) == sum(len(created.findall(text)) for _, text in sql_files())
    assert {name: count for name, count in counts.items() if count > MOST_LINES_OF_FUNCTION} == {}


def test_the_columns_of_a_moving_task_are_listed_once() -> None:
    """A task keeps every column on its way between ready, parked and leases."""
    listed = re.compile(r"\bdeaths\b[^;()]*?,\s*(?:\w+\.)?has_parents\b")
    found = {name for _, text in sql_files() for name, body in sql_bodies(text) if listed.search(body)}
    assert found == MOVE_TASKS


def test_sql_does_not_decide_by_texts_for_people() -> None:
    """Reasons and messages are for people: what a function decides by has a column or a code of its own."""
    prose = re.compile(
        r"\w*(?:reason|message|sqlerrm)\w*\s+(?:not\s+)?(?:like|ilike|~)|reason = '[^']* [^']*'"
        r"|\bp_reason\s*(?:=[^>]|<>|in\b|is (?:not )?distinct)"
    )
    assert prose.search("if p_reason = _not_begun() then") and not prose.search("f(p_reason => p_reason)")
    assert [
        f"{name}: {found[0]}"
        for _, text in sql_files()
        for name, body in sql_bodies(text)
        if (found := prose.search(body))
    ] == []


def test_public_names_have_docstrings() -> None:
    for name in penstock.__all__:
        if not isinstance(getattr(penstock, name), str):
            assert inspect.getdoc(getattr(penstock, name)), name


@pytest.mark.parametrize("folder", ["penstock/sql", *ROOT.glob("penstock/apps/*/sql")], ids=str)
def test_migrations_are_named_and_say_their_phase(folder: str | Path) -> None:
    files = sorted((ROOT / folder / "migrations").glob("*.sql"))
    ups = [path for path in files if not path.name.endswith(".down.sql")]
    assert ups and {path.stem + ".down.sql" for path in ups} == {path.name for path in files} - {
        path.name for path in ups
    }
    for number, path in enumerate(ups, start=1):
        assert re.fullmatch(rf"{number:04}_[a-z]+(_[a-z]+)+\.sql", path.name), path.name
        assert re.match(r"-- phase: (expand|contract)\n", path.read_text()), path.name


def test_every_dependency_is_explained() -> None:
    """By a sentence in docs/decisions.md; plugins of pytest come with pytest."""
    page = (ROOT / "docs/decisions.md").read_text().lower()
    every = [PROJECT["dependencies"], *PROJECT["optional-dependencies"].values()]
    names = {Requirement(text).name for texts in every for text in texts} - {"penstock"}
    assert [name for name in sorted(names) if re.sub("^pytest-.*", "pytest", name) not in page] == []


def test_no_test_sleeps_to_let_time_pass() -> None:
    """A pause of a second shows that nothing happens; for more time, tests advance the clock."""
    pause = re.compile(r"\b(?:time|asyncio)\.sleep\((\d+(?:\.\d+)?)\)")
    assert pause.findall("time.sleep(2)\nawait asyncio.sleep(0.5)") == ["2", "0.5"]
    for path in sorted((ROOT / "tests").rglob("*.py")):
        if path != Path(__file__):
            assert [found for found in pause.findall(path.read_text()) if float(found) > 1] == [], path


def test_a_warning_fails_its_test_and_a_hanging_test_ends() -> None:
    options = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]
    assert options["filterwarnings"] == ["error"] and options["xfail_strict"] is True
    assert 0 < options["timeout"] <= 180


def test_the_version_is_the_same_everywhere() -> None:
    assert penstock.__version__ == PROJECT["version"]
    headings = re.findall(r"^## (.*)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert headings[0] == "Unreleased"
    assert all(re.fullmatch(r"\d+\.\d+\.\d+ \(\d{4}-\d\d-\d\d\)", heading) for heading in headings[1:])
    assert headings[1].split()[0] == PROJECT["version"]


@pytest.mark.parametrize(
    "name",
    ["README.md", "CONTRIBUTING.md", "SECURITY.md", ".ci/run", ".pre-commit-config.yaml"]
    + [
        f".github/{file}"
        for file in ("pull_request_template.md", "workflows/ci.yml", "workflows/nightly.yml")
    ],
)
def test_make_targets_that_files_name_exist(name: str) -> None:
    text = (ROOT / name).read_text()
    named = set(re.findall(r"(?:`|run: |entry: |^)make ([a-z-]+)", text, re.MULTILINE))
    assert named <= make_targets()
    assert named or name == "README.md"


def test_published_fault_runs_hold_every_promise() -> None:
    assert "**wrong**" not in (ROOT / "docs/reliability.md").read_text()
