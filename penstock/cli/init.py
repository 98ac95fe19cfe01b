"""`penstock init`: copy an example app as a starting point."""

from __future__ import annotations

import ast
import keyword
import pkgutil
import shutil
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from penstock import apps
from penstock.cli import output
from penstock.cli.options import command
from penstock.errors import Conflict, Invalid

_TEXTS = {".py", ".md", ".sql", ".typ", ".toml", ".html", ".txt"}


def add_to(app: typer.Typer) -> None:
    """Add this command to the program."""
    command(app, "init", rich_help_panel="Run")(init)


def init(
    app: Annotated[
        str, typer.Option(metavar="NAME", show_default=False, help="Example app to copy, such as reading.")
    ],
    folder: Annotated[
        Path | None,
        typer.Argument(
            show_default=False, help="New folder; its name becomes the package name (default: NAME)."
        ),
    ] = None,
) -> int:
    """Copy an example app into a new folder, as a starting point."""
    known = sorted(found.name for found in pkgutil.iter_modules(apps.__path__) if found.ispkg)
    if app not in known:
        raise Invalid(f"unknown app {app!r}", code="unknown_app", hint=f"Available apps: {', '.join(known)}.")
    target = folder or Path(app)
    _check(target)
    _copy(Path(apps.__path__[0]) / app, target, f"{apps.__name__}.{app}")
    files = sum(path.is_file() for path in target.rglob("*"))
    output.note(f"Copied {app} to {target} ({output.counted(files, 'file')}).")
    output.note(f"Run it from {target.absolute().parent}:")
    module = f"{target.name}.app" if (target / "app.py").exists() else target.name
    output.note(f"  penstock dev {module}:app    starts a database, the API and a worker")
    if (main := target / "__main__.py").exists():
        output.note("")
        output.note(ast.get_docstring(ast.parse(main.read_text())) or "")
    return 0


def _check(target: Path) -> None:
    name = target.name
    if not name.isidentifier() or keyword.iskeyword(name):
        raise Invalid(
            f"invalid package name {name!r}", code="usage", hint="Use letters, digits and underscores."
        )
    if not target.absolute().parent.is_dir():
        raise Invalid(f"folder {target.absolute().parent} does not exist", code="usage")
    if target.exists() or target.is_symlink():
        raise Conflict(f"{target} already exists", code="exists", hint="Choose another folder.")
    if find_spec(name) is not None:
        raise Conflict(
            f"an installed module is named {name!r} and would shadow yours",
            code="exists",
            hint="Choose another folder name.",
        )


def _copy(source: Path, target: Path, package: str) -> None:
    """Copy a package under a new name. The target appears complete or not at all."""
    with tempfile.TemporaryDirectory(dir=target.absolute().parent, prefix=".penstock-init-") as beside:
        made = Path(beside) / target.name
        shutil.copytree(source, made, ignore=shutil.ignore_patterns("__pycache__", "*.pyc"))
        for path in made.rglob("*"):
            if path.suffix in _TEXTS:
                path.write_text(
                    path.read_text(encoding="utf-8").replace(package, target.name), encoding="utf-8"
                )
        made.rename(target)
