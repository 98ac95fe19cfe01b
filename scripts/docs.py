"""Write the generated parts of the documentation; `--check` fails when they are stale.

docs/sql.md           the functions, from their comments in penstock/sql/functions
docs/requirements.md  which tests prove which clause of docs/requirements.toml, from their docstrings
clients/typescript    the types of the TypeScript client
docs/security.md      which tests try which attack, in the last column of its table, from their docstrings
docs/reference/       HTTP routes, Python names and settings, from the code (scripts/reference.py)
docs/images/          the pictures of the concepts (scripts/pictures.py)

A test that names an unknown clause is an error.
"""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from scripts import pictures, reference, typescript

ROOT = Path(__file__).parent.parent
# A long comment is several literals, one per line, which PostgreSQL joins.
_COMMENT = re.compile(r"comment on function penstock\.(\w+)\((.*?)\) is\s+'((?:[^']|''|'\n\s+')*)';", re.S)
_NEXT_LITERAL = re.compile(r"'\n\s+'")
_HEADER = re.compile(r"create or replace function penstock\.(\w+)\s*\((.*?)\)\s*(?:returns|language)\b", re.S)
CLAUSE = re.compile(r"\b(?:R[0-9]\.[0-9]+|B[0-9]+)/[a-z0-9-]+")
_ATTACK_NUMBER = re.compile(r"\bS[1-9]\d?\b")
_ATTACK_RANGE = re.compile(r"\bS(\d+) to S(\d+)\b")
_ATTACK = re.compile(r"^\| (S\d+) \|([^|]*\|[^|]*)\|[^|]*\|$", re.M)


def functions() -> str:
    """One section per file, one line per function that callers may use."""
    lines: list[str] = []
    for path in sorted((ROOT / "penstock/sql/functions").glob("*.sql")):
        text = path.read_text()
        comments = {
            name: _NEXT_LITERAL.sub("", comment).replace("''", "'")
            for name, _, comment in _COMMENT.findall(text)
        }
        public = [
            (name, arguments)
            for name, arguments in _HEADER.findall(text)
            if not name.startswith(("_", "on_"))
        ]
        if public:
            lines += [f"### {path.stem.replace('_', ' ')}", ""]
            for name, arguments in public:
                lines += [f"- `{name}({' '.join(arguments.split())})`  ", f"  {comments[name]}"]
            lines.append("")
    return "\n".join(lines)


def docstrings() -> Iterator[tuple[str, str]]:
    """The pytest id and the docstring of every test, test class and test module, in order of the files."""
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        tree = ast.parse(path.read_text())
        yield from _docstrings(str(path.relative_to(ROOT)), tree)


def _docstrings(name: str, node: ast.Module | ast.ClassDef) -> Iterator[tuple[str, str]]:
    yield name, ast.get_docstring(node) or ""
    for child in node.body:
        if isinstance(child, ast.ClassDef) and child.name.startswith("Test"):
            yield from _docstrings(f"{name}::{child.name}", child)
        elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef) and child.name.startswith("test"):
            yield f"{name}::{child.name}", ast.get_docstring(child) or ""


def proofs(find: Callable[[str], Iterable[str]]) -> dict[str, list[str]]:
    """The tests by each name that `find` returns for their docstrings."""
    found: dict[str, list[str]] = {}
    for test, text in docstrings():
        for name in find(text):
            tests = found.setdefault(name, [])
            if test not in tests:
                tests.append(test)
    return found


def attack_numbers(text: str) -> list[str]:
    ranges = _ATTACK_RANGE.findall(text)
    return [
        *_ATTACK_NUMBER.findall(text),
        *(f"S{n}" for first, last in ranges for n in range(int(first), int(last) + 1)),
    ]


def _list(tests: list[str]) -> str:
    return "<br>".join(f"`{test}`" for test in tests)


def _first_tests(tests: list[str]) -> str:
    more = f"<br>and {len(tests) - 6} more" if len(tests) > 6 else ""
    return _list(tests[:6]) + more or "–"


def attacks(text: str) -> str:
    """The table with the tests of each attack in its last column."""
    tests = proofs(attack_numbers)
    return _ATTACK.sub(lambda row: f"| {row[1]} |{row[2]}| {_first_tests(tests.get(row[1], []))} |", text)


@dataclass(frozen=True)
class Requirement:
    number: str
    title: str
    clauses: dict[str, str]  # by their whole name, `R0.1/sheet`


def read_requirements(text: str) -> list[Requirement]:
    found: list[Requirement] = []
    for number, entry in tomllib.loads(text).items():
        clauses = {f"{number}/{name}": sentence for name, sentence in entry.items() if name != "title"}
        found.append(Requirement(number, entry["title"], clauses))
    return found


def unknown_clauses(requirements: list[Requirement], tests: dict[str, list[str]]) -> list[str]:
    """A line for each test that names a clause that no requirement has."""
    known = {clause for requirement in requirements for clause in requirement.clauses}
    return [
        f"{test}: unknown clause {clause}"
        for clause, named in tests.items()
        if clause not in known
        for test in named
    ]


def requirements_page(requirements: list[Requirement], tests: dict[str, list[str]]) -> str:
    every = [clause for requirement in requirements for clause in requirement.clauses]
    proven = sum(clause in tests for clause in every)
    lines = [
        "# Requirements and the tests that prove them",
        "",
        "Generated by `make docs` from [requirements.toml](requirements.toml) and the tests' docstrings,",
        "where a test names the clauses that it proves. A clause that no test names is **open**.",
        "",
        f"{proven} of {len(every)} clauses have a test.",
        "",
    ]
    for requirement in requirements:
        done = sum(clause in tests for clause in requirement.clauses)
        lines += [
            f"## {requirement.number} {requirement.title}",
            "",
            f"{done} of {len(requirement.clauses)} clauses have a test.",
            "",
            "| clause | says | tests |",
            "|---|---|---|",
        ]
        for clause, sentence in requirement.clauses.items():
            said = sentence.replace("|", "\\|")
            lines.append(f"| {clause} | {said} | {_list(tests.get(clause, [])) or '**open**'} |")
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def pages() -> dict[Path, str]:
    sql, security = ROOT / "docs/sql.md", ROOT / "docs/security.md"
    requirements = read_requirements((ROOT / "docs/requirements.toml").read_text())
    tests = proofs(CLAUSE.findall)
    if unknown := unknown_clauses(requirements, tests):
        sys.exit("\n".join(unknown))
    head, _, rest = sql.read_text().partition("<!-- functions: generated by scripts/docs.py -->\n")
    tail = rest.partition("<!-- end -->")[2]
    return {
        sql: f"{head}<!-- functions: generated by scripts/docs.py -->\n{functions()}\n<!-- end -->{tail}",
        ROOT / "docs/requirements.md": requirements_page(requirements, tests),
        security: attacks(security.read_text()),
        **reference.pages(),
        **typescript.files(),
        **{ROOT / "docs/images" / name: text for name, text in pictures.files().items()},
    }


def main() -> int:
    stale = [path for path, text in pages().items() if not path.exists() or path.read_text() != text]
    if "--check" in sys.argv:
        for path in stale:
            print(f"{path.relative_to(ROOT)} is stale: run `make docs`", file=sys.stderr)
        return 1 if stale else 0
    for path in stale:
        path.write_text(pages()[path])
        print(f"wrote {path.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
