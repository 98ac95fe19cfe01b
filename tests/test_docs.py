"""The documentation is complete: every error code is explained, links resolve, and what needs no database runs."""

from __future__ import annotations

import re
from pathlib import Path

from penstock.errors import TABLE

ROOT = Path(__file__).parents[1]
# Raised by the demo's and the tests' own handlers.
_NOT_OURS = {"provider_busy"}


def documented() -> set[str]:
    return set(re.findall(r"`([a-z][a-z_]+)`", (ROOT / "docs/errors.md").read_text()))


def in_sql() -> set[str]:
    text = "\n".join(path.read_text() for path in (ROOT / "penstock/sql").rglob("*.sql"))
    return {
        *re.findall(r"_refuse\(\s*[^,]+,\s*'([a-z_]+)'", text),
        *re.findall(r"then array\['[a-z_]+', '([a-z_]+)'", text),
        *re.findall(r"'code', '([a-z_]+)'", text),
        *re.findall(r"'(worker_lost|parent_failed|handler_error|lease_lost|canceled)'", text),
    }


def in_python() -> set[str]:
    text = "\n".join(path.read_text() for path in (ROOT / "penstock").rglob("*.py"))
    found = re.findall(r"""\bcode(?:: str)? ?= ?"([a-z_]+)"|["']code["']: "([a-z_]+)\"""", text)
    return {code for codes in found for code in codes if code} - _NOT_OURS


def test_every_error_code_is_documented() -> None:
    """R0.2/taxonomy"""
    used = in_sql() | in_python() | {row.code for row in TABLE}
    assert len(in_sql()) > 40
    assert {"bad_output", "timeout", "invalid_cron"} <= in_python()
    assert sorted(used - documented()) == []


def test_the_table_of_errors_is_the_codes_own() -> None:
    lines = (ROOT / "docs/errors.md").read_text().splitlines()
    for row in TABLE:
        sqlstate = next((f"`{state}`" for state in row.sqlstates if state.startswith("PT")), "")
        start = f"| {sqlstate} | `{row.error.__name__}` | {row.status} | {row.exit_code} |".replace(
            "|  |", "| |"
        )
        assert any(line.startswith(start) for line in lines), start


def test_the_guide_to_sources_runs() -> None:
    """R0.1/files: what it says is read and written is."""
    text = (ROOT / "docs/sources.md").read_text()
    parts = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert len(parts) == 4
    exec(compile("\n".join(parts), "sources.md", "exec"), {})  # noqa: S102 our own page


def test_every_problem_of_a_row_is_documented() -> None:
    texts = [path.read_text() for path in (ROOT / "penstock/sources").glob("*.py")]
    used = {
        code
        for text in texts
        for code in re.findall(r'(?:Problem\([^"]*|_bad\([^"]*|_Bad\()"([a-z_]+)"', text)
    }
    page = (ROOT / "docs/sources.md").read_text()
    assert len(used) >= 10
    assert [code for code in used if f"`{code}`" not in page or code not in documented()] == []


def _anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as Git forges make them."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_link_between_pages_resolves() -> None:
    broken: list[str] = []
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
            if target.startswith(("http:", "https:", "mailto:")):
                continue
            path, _, anchor = target.partition("#")
            file = (page.parent / path) if path else page
            if not file.exists() or (anchor and anchor not in _anchors(file)):
                broken.append(f"{page.relative_to(ROOT)}: {target}")
    assert broken == []


def test_the_glossary_is_linked_from_the_main_pages() -> None:
    pages = (
        "concepts sdk worker operate money bulk artifacts dashboard api cli errors access sql architecture"
    )
    missing = [page for page in pages.split() if "(glossary.md" not in (ROOT / f"docs/{page}.md").read_text()]
    assert missing == []
    assert "(docs/glossary.md)" in (ROOT / "README.md").read_text()


def test_the_walks_of_the_architecture_name_files_and_functions_that_exist() -> None:
    text = (ROOT / "docs/architecture.md").read_text()
    walks = text[text.index("## Walk 1") : text.index("## Where to change")]
    files = set(re.findall(r"[\w/]+\.(?:py|sql)\b", walks))
    assert len(files) > 20
    folders = ("penstock", "penstock/sql", "penstock/sql/functions")
    assert [file for file in files if not any((ROOT / folder / file).exists() for folder in folders)] == []
    named = re.findall(r"(\w+\.sql) +(_?[A-Z][A-Z_]+)\b", walks)
    named += [(file, name) for name, file in re.findall(r"(_?[A-Z][A-Z_]+)`? \((\w+\.sql)\)", walks)]
    assert len(named) > 15
    for file, name in named:
        body = (ROOT / "penstock/sql/functions" / file).read_text()
        assert f"create or replace function penstock.{name.lower()}(" in body, (file, name)
