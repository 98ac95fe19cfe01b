"""The command line: `penstock --help`."""

from __future__ import annotations

import io
import logging
import sys
from collections.abc import Sequence
from typing import Annotated, Any, cast

import typer
import typer.main

import penstock
from penstock import extras
from penstock.cli.commands import COMMANDS, Commands, load
from penstock.cli.options import (
    DatabaseOption,
    NoColorOption,
    OutputOption,
    YesOption,
    discard_output,
    set_options,
    using_options,
)
from penstock.errors import EXIT_INTERRUPTED, EXIT_OK, Invalid, PenstockError, from_database

app = typer.Typer(
    name="penstock",
    cls=Commands,
    help="A multi-tenant job platform on plain PostgreSQL.",
    no_args_is_help=True,
    add_completion=True,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"penstock {penstock.__version__}")
        raise typer.Exit


@app.callback()
def global_options(
    database: DatabaseOption = None,
    output: OutputOption = None,
    no_color: NoColorOption = False,
    yes: YesOption = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """A multi-tenant job platform on plain PostgreSQL."""
    set_options(database, output, no_color, yes)


def program() -> Any:
    """The whole program with every command imported, for tests and documentation."""
    group: Any = typer.main.get_command(app)
    group.commands = {name: load(name) for name in COMMANDS}
    return group


def main() -> None:
    """Entry point of the `penstock` program."""
    code = execute(sys.argv[1:])
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        discard_output()
    sys.exit(code)


def execute(arguments: Sequence[str]) -> int:
    """Run a command line and return its exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # Print a question mark for characters that the terminal cannot encode, instead of failing.
            stream.reconfigure(errors="replace")
    # The command reports connection errors itself; the pool's log lines would repeat them.
    logging.getLogger("psycopg.pool").setLevel(logging.CRITICAL)
    is_json = _asks_for_json(arguments)
    try:
        with using_options(), extras.required():
            result: Any = typer.main.get_command(app).main(
                args=list(arguments), prog_name="penstock", standalone_mode=False
            )
        return result if isinstance(result, int) else EXIT_OK
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except typer.Abort as error:
        return EXIT_INTERRUPTED if isinstance(error.__cause__, KeyboardInterrupt) else 1
    except Exception as error:
        if hasattr(error, "format_message"):
            return _refuse_usage(error, is_json)
        meaning = _meaning(error)
        if meaning is None:
            raise
        _print_error(meaning, is_json)
        return meaning.exit_code


def _meaning(error: Exception) -> PenstockError | None:
    if isinstance(error, PenstockError):
        return error
    # Not imported here: a command that needs no database does not load its driver.
    psycopg: Any = sys.modules.get("psycopg")
    if psycopg is not None and isinstance(error, psycopg.Error):
        return from_database(cast("Any", error)) or PenstockError(f"PostgreSQL error: {error}")
    return None


def _print_error(error: PenstockError, is_json: bool) -> None:
    from penstock.cli.output import print_error

    print_error(error, is_json=is_json)


def _refuse_usage(error: Any, is_json: bool) -> int:
    # pydantic's words, as a person would say them.
    error.message = error.message.replace("Value error, ", "").replace("Input should be", "must be")
    if is_json:
        _print_error(Invalid(error.format_message(), code="usage"), is_json=True)
    else:
        error.show()
        commands: Any = getattr(getattr(error, "ctx", None), "command", None)
        if error.message.startswith("No such command") and not getattr(error, "possibilities", None):
            _print_names(getattr(commands, "commands", {}))
    return int(error.exit_code)


def _print_names(commands: dict[str, Any]) -> None:
    print(f"Commands: {', '.join(commands)}.", file=sys.stderr)


def _asks_for_json(arguments: Sequence[str]) -> bool:
    """Whether errors are printed as JSON. Works on arguments that do not parse."""
    joined = "\0".join(arguments)
    return any(
        f"{option}{value}" in joined
        for option in ("-o\0", "-o", "--output\0", "--output=")
        for value in ("json", "jsonl")
    )
