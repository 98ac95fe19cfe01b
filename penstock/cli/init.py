"""`penstock init`: a new project, or a copy of an example app, as a starting point."""

from __future__ import annotations

import ast
import keyword
import pkgutil
import shutil
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

import penstock
from penstock import apps
from penstock.cli import output
from penstock.cli.options import command
from penstock.errors import Conflict, Invalid

_TEXTS = {".py", ".md", ".sql", ".typ", ".toml", ".html", ".txt"}
# Its files end in .in, and "dot." stands for a leading dot: tools of this repository should not read them.
_PROJECT = Path(__file__).parent / "project"


def add_to(app: typer.Typer) -> None:
    """Add this command to the program."""
    command(app, "init", rich_help_panel="Run")(init)


def init(
    folder: Annotated[
        Path | None,
        typer.Argument(show_default=False, help="New folder; its name becomes the package name."),
    ] = None,
    app: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            show_default=False,
            help="Copy this example app, such as reading, instead of making a project.",
        ),
    ] = None,
) -> int:
    """Make a project with an app, tests, a Dockerfile and CI, or copy an example app."""
    if app is None:
        if folder is None:
            raise Invalid("FOLDER is required", code="usage", hint="For example: penstock init mysite")
        _check(folder)
        _make_project(folder)
    else:
        known = sorted(found.name for found in pkgutil.iter_modules(apps.__path__) if found.ispkg)
        if app not in known:
            hint = f"Available apps: {', '.join(known)}."
            raise Invalid(f"unknown app {app!r}", code="unknown_app", hint=hint)
        folder = folder or Path(app)
        _check(folder)
        _copy_app(app, folder)
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
    if (spec := find_spec(name)) is not None:
        place = spec.origin or ", ".join(spec.submodule_search_locations or ())
        raise Conflict(
            f"an installed module is named {name!r} ({place}) and would shadow yours",
            code="exists",
            hint="Choose another folder name.",
        )


def _make_project(target: Path) -> None:
    name = target.name
    with _appearing(target) as made:
        for source in sorted(_PROJECT.rglob("*.in")):
            path = str(source.relative_to(_PROJECT)).removesuffix(".in")
            path = path.replace("dot.", ".").replace("project_name", name)
            text = source.read_text(encoding="utf-8").replace("project_name", name)
            (made / path).parent.mkdir(parents=True, exist_ok=True)
            (made / path).write_text(text.replace("PENSTOCK_VERSION", penstock.__version__), encoding="utf-8")
    output.note(f"Created the project {target}. Next:")
    output.note(f"  cd {target}")
    output.note("  pip install --editable '.[dev]'")
    output.note("  pytest")
    output.note(f"  penstock dev {name}.jobs:app    starts a database, the dashboard and a worker")


def _copy_app(app: str, target: Path) -> None:
    package = f"{apps.__name__}.{app}"
    with _appearing(target) as made:
        shutil.copytree(
            Path(apps.__path__[0]) / app,
            made,
            ignore=shutil.ignore_patterns("__pycache__", "*.pyc"),
            dirs_exist_ok=True,
        )
        for path in made.rglob("*"):
            if path.suffix in _TEXTS:
                text = path.read_text(encoding="utf-8").replace(package, target.name)
                path.write_text(text, encoding="utf-8")
    files = sum(path.is_file() for path in target.rglob("*"))
    output.note(f"Copied {app} to {target} ({output.counted(files, 'file')}).")
    output.note(f"Run it from {target.absolute().parent}:")
    module = f"{target.name}.app" if (target / "app.py").exists() else target.name
    output.note(f"  penstock dev {module}:app    starts a database, the API and a worker")
    if (main := target / "__main__.py").exists():
        output.note("")
        output.note(ast.get_docstring(ast.parse(main.read_text())) or "")


@contextmanager
def _appearing(target: Path) -> Generator[Path]:
    """A folder to fill. The target appears complete or not at all."""
    with tempfile.TemporaryDirectory(dir=target.absolute().parent, prefix=".penstock-init-") as beside:
        made = Path(beside) / target.name
        made.mkdir()
        yield made
        made.rename(target)
