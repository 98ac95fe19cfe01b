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
from penstock import extras
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
    sessions,
    simulate,
    start,
    usage,
    waits,
    webhooks,
)
from penstock.cli.options import (
    DatabaseOption,
    NoColorOption,
    OutputOption,
    YesOption,
    discard_output,
    set_options,
    using_options,
)
from penstock.cli.output import print_error
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
start.add_to(jobs.group)
app.add_typer(jobs.group, name="jobs", rich_help_panel="Operate")
app.add_typer(bulk.group, name="bulk", rich_help_panel="Operate")
app.add_typer(waits.group, name="waits", rich_help_panel="Operate")
app.add_typer(webhooks.group, name="webhooks", rich_help_panel="Operate")
app.add_typer(dead_letters.group, name="dead-letters", rich_help_panel="Operate")
app.add_typer(schedules.group, name="schedules", rich_help_panel="Operate")
app.add_typer(artifacts.group, name="artifacts", rich_help_panel="Operate")
operate.add_to(app, "Operate")
app.add_typer(keys.group, name="keys", rich_help_panel="Operate")
app.add_typer(sessions.group, name="sessions", rich_help_panel="Operate")
app.add_typer(limits.group, name="limits", rich_help_panel="Providers, usage and costs")
app.add_typer(usage.group, name="usage", rich_help_panel="Providers, usage and costs")
app.add_typer(usage.plans_group, name="plans", rich_help_panel="Providers, usage and costs")
app.add_typer(costs.group, name="costs", rich_help_panel="Providers, usage and costs")
app.add_typer(costs.prices_group, name="prices", rich_help_panel="Providers, usage and costs")


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
    except PenstockError as error:
        print_error(error, is_json=is_json)
        return error.exit_code
    except psycopg.Error as error:
        meaning = from_database(error) or PenstockError(f"PostgreSQL error: {error}")
        print_error(meaning, is_json=is_json)
        return meaning.exit_code
    except Exception as error:
        if not hasattr(error, "format_message"):
            raise
        return _refuse_usage(error, is_json)


def _refuse_usage(error: Any, is_json: bool) -> int:
    if is_json:
        print_error(Invalid(error.format_message(), code="usage"), is_json=True)
    else:
        error.show()
    return int(error.exit_code)


def _asks_for_json(arguments: Sequence[str]) -> bool:
    """Whether errors are printed as JSON. Works on arguments that do not parse."""
    joined = "\0".join(arguments)
    return any(
        f"{option}{value}" in joined
        for option in ("-o\0", "-o", "--output\0", "--output=")
        for value in ("json", "jsonl")
    )
