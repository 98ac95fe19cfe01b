"""Command-line options for the options of jobs, from the table in `penstock.types.options`."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from datetime import datetime
from typing import Annotated, Any

import typer

from penstock.cli.parsing import amount_of, moment_of, names_of
from penstock.types import Amount
from penstock.types.options import BulkOptions, table_of

# What Typer parses; all other types are read from text.
_TYPES = {name: kind for name, (kind, _) in table_of(BulkOptions).items()}
_PARSED: dict[Any, Any] = {bool | None: bool, float | None: float | None, _TYPES["priority"]: int | None}
_READ: dict[Any, Callable[[str], Any]] = {
    Amount | None: amount_of,
    datetime | None: lambda text: moment_of(text, "TIME"),
    _TYPES["key"]: names_of,
}


def parameters_of(options: type) -> list[inspect.Parameter]:
    """The parameters of a command that takes the options of a table."""
    return [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            annotation=Annotated[
                _PARSED.get(kind, str | None),
                typer.Option(f"--{name.replace('_', '-')}", metavar=option.metavar, help=option.help),
            ],
            default=False if _PARSED.get(kind) is bool else None,
        )
        for name, (kind, option) in table_of(options).items()
        if option.cli
    ]


def read_options(options: type, values: dict[str, Any]) -> dict[str, Any]:
    """The values of `parameters_of` as a noun's function takes them, without flags that are not set."""
    table = table_of(options)
    given = {name: value for name, value in values.items() if value is not None and value is not False}
    return {name: _READ.get(table[name][0], lambda value: value)(value) for name, value in given.items()}
