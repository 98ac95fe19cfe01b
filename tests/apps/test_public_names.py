"""Apps are built from public names only: what they use, anybody else's app can use."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
APPS = sorted(path.parent for path in (ROOT / "penstock/apps").glob("*/__init__.py"))
_PAGE = (ROOT / "docs/extend.md").read_text()
PUBLIC = set(
    re.findall(r"`(penstock[a-z_.]*)`", _PAGE.partition("## Public modules\n")[2].partition("\n## ")[0])
)
# A demo runs the whole installation in one process.
FOR_DEMOS = {"penstock.server", "penstock.simulator", "penstock.worker", "penstock.api.development"}
_INTERNAL = re.compile(r"\bpenstock\s*\.\s*(_\w+)")


def imported(file: Path) -> set[str]:
    """The modules of Penstock that a file imports, outside of the apps themselves."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, f"{file}: relative import"
            # `from penstock import server` imports a module, `from penstock import App` a name of the package.
            found |= {_module(node.module, alias.name) for alias in node.names}
    return {
        name for name in found if f"{name}.".startswith("penstock.") and not name.startswith("penstock.apps")
    }


def _module(package: str, name: str) -> str:
    folder = ROOT / package.replace(".", "/")
    is_module = (folder / f"{name}.py").exists() or (folder / name / "__init__.py").exists()
    return f"{package}.{name}" if is_module else package


def is_public(module: str, allowed: set[str]) -> bool:
    """A listed package includes its modules; `penstock` itself means its names only."""
    return module in allowed or any(
        module.startswith(f"{package}.") for package in allowed if package != "penstock"
    )


@pytest.mark.parametrize("app", APPS, ids=lambda app: app.name)
def test_app_imports_public_modules_only(app: Path) -> None:
    """B8/public-only: with the test below, which reads the SQL."""
    assert PUBLIC, "docs/extend.md lists the public modules"
    wrong: list[str] = []
    for file in sorted(app.rglob("*.py")):
        allowed = PUBLIC | FOR_DEMOS if file.stem in ("demo", "__main__") else PUBLIC
        wrong += [
            f"{file.relative_to(ROOT)}: {name}" for name in imported(file) if not is_public(name, allowed)
        ]
    assert not wrong, "not among the public modules of docs/extend.md"


@pytest.mark.parametrize("app", APPS, ids=lambda app: app.name)
def test_app_uses_no_internal_function_of_the_database(app: Path) -> None:
    for file in sorted([*app.rglob("*.sql"), *app.rglob("*.py")]):
        assert _INTERNAL.findall(file.read_text()) == [], file


def test_internal_names_are_noticed(tmp_path: Path) -> None:
    file = tmp_path / "app.py"
    file.write_text(
        "import penstock.worker.execute\nfrom penstock import App, dashboard\nfrom penstock.apps.x import y\n"
        "from penstock.contract import jobs\n"
    )
    found = imported(file)
    assert found == {"penstock", "penstock.worker.execute", "penstock.dashboard", "penstock.contract.jobs"}
    assert {name for name in found if not is_public(name, PUBLIC)} == {
        "penstock.worker.execute",
        "penstock.dashboard",
    }
    assert _INTERNAL.findall("select penstock._audit(x), penstock.clock()") == ["_audit"]
