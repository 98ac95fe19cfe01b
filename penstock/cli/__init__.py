"""The command line: `penstock --help`."""

from __future__ import annotations

import io
import logging
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import psycopg
import typer
import typer.main

import penstock
from penstock.cli import (
    artifacts,
    bulk,
    costs,
    dead_letters,
    dev,
    init,
    jobs,
    keys,
    limits,
    operate,
    run,
    schedules,
    serve,
    simulate,
    usage,
)
from penstock.cli.options import (
    DatabaseOption,
    NoColorOption,
    OutputOption,
    YesOption,
    choose,
    choosing,
    forget_reader,
)
from penstock.cli.output import complain
from penstock.errors import EXIT_INTERRUPTED, EXIT_OK, Invalid, PenstockError, from_database

app = typer.Typer(
    name="penstock",
    help="A multi-tenant job platform on plain PostgreSQL.",
    no_args_is_help=True,
    add_completion=True,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
run.add_to(app)
dev.add_to(app)
init.add_to(app)
serve.add_to(app)
simulate.add_to(app)
app.add_typer(jobs.group, name="jobs", rich_help_panel="Look and act")
app.add_typer(bulk.group, name="bulk", rich_help_panel="Look and act")
app.add_typer(dead_letters.group, name="dead-letters", rich_help_panel="Look and act")
app.add_typer(schedules.group, name="schedules", rich_help_panel="Look and act")
app.add_typer(artifacts.group, name="artifacts", rich_help_panel="Look and act")
operate.add_to(app, "Look and act")
app.add_typer(keys.group, name="keys", rich_help_panel="Look and act")
app.add_typer(limits.group, name="limits", rich_help_panel="Limits and money")
app.add_typer(usage.group, name="usage", rich_help_panel="Limits and money")
app.add_typer(usage.plans_group, name="plans", rich_help_panel="Limits and money")
app.add_typer(costs.group, name="costs", rich_help_panel="Limits and money")
app.add_typer(costs.prices_group, name="prices", rich_help_panel="Limits and money")


def _version(wanted: bool) -> None:
    if wanted:
        print(f"penstock {penstock.__version__}")
        raise typer.Exit


@app.callback()
def everywhere(
    database: DatabaseOption = None,
    output: OutputOption = None,
    no_color: NoColorOption = False,
    yes: YesOption = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """A multi-tenant job platform on plain PostgreSQL."""
    choose(database, output, no_color, yes)


def main() -> None:
    """The program `penstock`."""
    code = answer(sys.argv[1:])
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        forget_reader()
    sys.exit(code)


def answer(arguments: Sequence[str]) -> int:
    """Do what the arguments say; returns the exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A terminal that cannot show a character gets a question mark, and never a traceback.
            stream.reconfigure(errors="replace")
    # The pool says on its own what we say better.
    logging.getLogger("psycopg.pool").setLevel(logging.CRITICAL)
    is_json = _asks_for_json(arguments)
    try:
        with choosing():
            result: Any = typer.main.get_command(app).main(
                args=list(arguments), prog_name="penstock", standalone_mode=False
            )
        return result if isinstance(result, int) else EXIT_OK
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except typer.Abort as error:
        return EXIT_INTERRUPTED if isinstance(error.__cause__, KeyboardInterrupt) else 1
    except PenstockError as error:
        complain(error, is_json=is_json)
        return error.exit_code
    except psycopg.Error as error:
        meaning = from_database(error) or PenstockError(f"PostgreSQL says: {error}")
        complain(meaning, is_json=is_json)
        return meaning.exit_code
    except Exception as error:
        if not hasattr(error, "format_message"):
            raise
        return _refuse_usage(error, is_json)


def _refuse_usage(error: Any, is_json: bool) -> int:
    if is_json:
        complain(Invalid(error.format_message(), code="usage"), is_json=True)
    else:
        error.show()
    return int(error.exit_code)


def _asks_for_json(arguments: Sequence[str]) -> bool:
    """Whether errors go to a program, also when the arguments cannot be understood."""
    joined = "\0".join(arguments)
    return any(
        f"{option}{value}" in joined
        for option in ("-o\0", "-o", "--output\0", "--output=")
        for value in ("json", "jsonl")
    )
