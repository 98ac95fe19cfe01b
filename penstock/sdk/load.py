"""Finds an app by the name that the command line is given: MODULE:APP."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from pathlib import Path

from penstock.errors import Invalid, PenstockError
from penstock.extras import EXTRAS
from penstock.sdk.app import App

_PACKAGE = Path(__file__).parents[1]
_PYTHON = Path(os.__file__).parent


def load(path: str) -> App:
    """The app that `module:attribute` names."""
    module_name, _, attribute = path.partition(":")
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name and f"{module_name}.".startswith(f"{error.name}."):
            raise Invalid(
                f"there is no module {error.name!r} in {Path.cwd()} or among the installed packages",
                code="cannot_load",
                hint="Name the app as module:attribute, such as mysite.jobs:app.",
            ) from error
        if str(error.name).partition(".")[0] in EXTRAS:
            raise  # the command says which extra to install
        raise _failure(path, error) from error
    except Exception as error:
        raise _failure(path, error) from error
    found = getattr(module, attribute or "app", None)
    if isinstance(found, App):
        found.path = path
        return found
    apps = sorted(name for name, value in vars(module).items() if isinstance(value, App))
    problem = "does not exist" if found is None else f"is of type {type(found).__name__}, not an App"
    raise Invalid(
        f"{module_name}:{attribute or 'app'} {problem}",
        code="cannot_load",
        hint=f"The module has {', '.join(f'{module_name}:{name}' for name in apps)}."
        if apps
        else "Make one: app = App().",
    )


def _failure(path: str, error: Exception) -> Invalid:
    """The error in the words of the user's own file and line."""
    kind = "" if isinstance(error, PenstockError) else f"{type(error).__name__}: "
    message = error.message if isinstance(error, PenstockError) else _first_line(error)
    file, line, text = _place(error)
    return Invalid(
        f"{path} cannot be loaded: {kind}{message} ({file}, line {line})",
        code="cannot_load",
        hint=f"    {text}" if text else None,
        details={"file": file, "line": line},
    )


def _first_line(error: Exception) -> str:
    if isinstance(error, SyntaxError):
        return error.msg
    return str(error).strip().partition("\n")[0]


def _place(error: Exception) -> tuple[str, int, str]:
    """The last line of the user's own code that led to the error: file, line number and text."""
    if isinstance(error, SyntaxError) and error.filename:
        return _relative(error.filename), error.lineno or 0, (error.text or "").strip()
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not _is_foreign(frame.filename)]
    last = (own or frames)[-1]
    return _relative(last.filename), last.lineno or 0, last.line or ""


def _is_foreign(name: str) -> bool:
    file = Path(name)
    is_ours = file.is_relative_to(_PACKAGE) and not file.is_relative_to(_PACKAGE / "apps")
    return name.startswith("<") or is_ours or "site-packages" in file.parts or file.is_relative_to(_PYTHON)


def _relative(name: str) -> str:
    file = Path(name)
    return str(file.relative_to(Path.cwd())) if file.is_relative_to(Path.cwd()) else name
