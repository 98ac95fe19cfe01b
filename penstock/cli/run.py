"""`penstock demo`, `worker`, `migrate` and `doctor`."""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from penstock.cli import output
from penstock.cli.options import Output, command, current_options, dsn
from penstock.cli.output import Column
from penstock.errors import Invalid, NotMigrated
from penstock.postgres import db, embedded, migrate
from penstock.redaction import RedactingFormatter
from penstock.settings import settings

if TYPE_CHECKING:
    from penstock.doctor import Check
    from penstock.sdk.app import App

AppArgument = Annotated[
    str,
    typer.Argument(metavar="MODULE:APP", show_default=False, help="App to run, for example mysite.jobs:app."),
]
ConcurrencyOption = Annotated[
    int,
    typer.Option(min=1, envvar="PENSTOCK_WORKER_CONCURRENCY", help="Tasks to run at once in each process."),
]


def add_to(app: typer.Typer) -> None:
    """Add these commands to the program."""
    for name, function in (
        ("demo", demo),
        ("worker", worker),
        ("migrate", migrate_command),
        ("doctor", doctor),
    ):
        command(app, name, rich_help_panel="Run")(function)


def demo() -> int:
    """Run a sample app on an embedded database: it makes a small book as text, PDF and MP3.

    Ignores DATABASE_URL, so that it cannot write to a real database. Use --database to choose one.
    """
    began = time.monotonic()
    try:
        from penstock import demo
    except ImportError as error:
        raise Invalid(f"the demo needs a package that is not installed: {error}") from error

    address = current_options().database or embedded.dsn(settings().home)
    migrate.migrate(address)
    log_to_stderr(logging.WARNING)
    found = replace(settings(), database_url=address)
    return demo.run(found, is_terminal=output.is_terminal(), began=began)


def worker(
    path: AppArgument,
    processes: Annotated[int, typer.Option(min=1, help="Number of processes.")] = 1,
    concurrency: ConcurrencyOption = 10,
    kinds: Annotated[
        str | None, typer.Option(metavar="A,B", help="Task kinds to run (default: all of the app's).")
    ] = None,
    lease: Annotated[
        int,
        typer.Option(
            min=1, help="Lease in seconds: how soon another worker takes over the tasks of a dead one."
        ),
    ] = 10,
    grace: Annotated[
        float, typer.Option(min=0, help="Seconds that running tasks get to finish when the worker stops.")
    ] = 25,
    drain: Annotated[bool, typer.Option("--drain", help="Exit when no tasks are left.")] = False,
    health: Annotated[
        str | None,
        typer.Option(
            metavar="PORT|FILE",
            help="Answer /healthz and /readyz on this port (or host:port), or write a file (a path with /).",
        ),
    ] = None,
) -> int:
    """Run the tasks of an app until stopped.

    SIGTERM and Ctrl-C wait for running tasks.
    """
    return _work(
        path,
        dsn(),
        processes=processes,
        concurrency=concurrency,
        kinds=[kind.strip() for kind in kinds.split(",") if kind.strip()] if kinds else None,
        lease_seconds=lease,
        grace_seconds=grace,
        drain=drain,
        health=health,
    )


def _work(path: str, address: str, **how: Any) -> int:
    # Imported here so that migrate and doctor work without the app's own packages.
    from penstock.sdk.load import load
    from penstock.worker import run

    log_to_stderr(logging.INFO)
    return run(load(path), address, **how)


def log_to_stderr(level: int) -> None:
    """Log to stderr: as text, with colors on a terminal, or as JSON lines with `-o json` or `-o jsonl`."""
    import structlog

    # Through logging, whose handlers survive a closed stream: a worker must keep running.
    others, handler = logging.StreamHandler(sys.stderr), logging.StreamHandler(sys.stderr)
    others.setFormatter(RedactingFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    handler.setFormatter(RedactingFormatter())
    logging.basicConfig(level=logging.WARNING, handlers=[others])
    ours = logging.getLogger("penstock")
    ours.handlers = [handler]
    ours.setLevel(level)
    ours.propagate = False
    is_colored = sys.stderr.isatty() and not current_options().no_color
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.dev.ConsoleRenderer(colors=is_colored)
            if current_options().output is Output.text
            else structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.stdlib.LoggerFactory(),
    )


def migrate_command(
    path: Annotated[
        str | None,
        typer.Argument(metavar="MODULE:APP", show_default=False, help="Also run the migrations of this app."),
    ] = None,
    sql: Annotated[bool, typer.Option("--sql", help="Print the SQL for psql instead of running it.")] = False,
    plain: Annotated[
        bool,
        typer.Option(
            "--plain", help="Like --sql, without commands of psql: for SQL editors and other tools."
        ),
    ] = False,
    check: Annotated[
        bool,
        typer.Option(
            "--check", help="List differences from the expected schema. Exits with 1 if there are any."
        ),
    ] = False,
    contract: Annotated[
        bool,
        typer.Option(
            "--contract", help="Also run contract migrations. Requires that no older version is running."
        ),
    ] = False,
    rollback_to: Annotated[
        int | None,
        typer.Option(
            min=0,
            metavar="N",
            help="Undo migrations after number N, or those of the app; 0 undoes all. Asks for confirmation.",
        ),
    ] = None,
) -> int:
    """Migrate the database to this version's schema.

    Safe to repeat and to run from several machines at once.
    """
    app = _loaded(path)
    own = app.own if app else None
    if sql or plain:
        return _print_script(contract, plain, own)
    if check:
        return _check(dsn(), own)
    if rollback_to is not None:
        which = f"all migrations of schema {own.schema}" if own else "all migrations"
        output.confirm(f"Undo {which} after number {rollback_to} and delete their data?")
        done = (
            migrate.rollback(dsn(), rollback_to, folder=own.folder, schema=own.schema)
            if own
            else migrate.rollback(dsn(), rollback_to)
        )
    else:
        done = _migrate(dsn(make=True), contract, app)
    output.rows(
        done,
        [Column("MIGRATION", str)],
        empty="The schema is up to date.",
    )
    return 0


def _print_script(contract: bool, plain: bool, own: migrate.Own | None) -> int:
    print(migrate.script(contract, is_plain=plain), end="")
    if own:
        print(migrate.script(contract, folder=own.folder, schema=own.schema, is_plain=plain), end="")
    return 0


def _loaded(path: str | None) -> App | None:
    # Imported here so that migrate works without the app's own packages.
    from penstock.sdk.load import load

    return load(path) if path else None


def _migrate(address: str, contract: bool, app: App | None) -> list[str]:
    try:
        return app.migrate(address, contract) if app else migrate.migrate(address, contract)
    except NotMigrated as error:
        error.hint = error.hint or "The failed migration was rolled back. Run it again as the schema's owner."
        raise


def _check(address: str, own: migrate.Own | None) -> int:
    with db.connect(address, name="penstock migrate", wait_seconds=0) as connection:
        found = migrate.check(connection)
        if own:
            found += migrate.check(connection, folder=own.folder, schema=own.schema)
    output.rows(found, [Column("DIFFERENCE", str)], empty="The schema matches this version.")
    return 1 if found else 0


def doctor(
    providers: Annotated[
        bool, typer.Option("--providers", help="Also try the key of each provider, with a free call.")
    ] = False,
) -> int:
    """Check the database, its settings, the schema, workers and backlog.

    Exits with 1 if a check fails.
    """
    from penstock import doctor

    checks = asyncio.run(doctor.examine(dsn()))
    if providers:
        checks += asyncio.run(doctor.examine_providers(dsn()))
    states = [check.state for check in checks]
    if current_options().output is Output.text:
        for check in checks:
            _print_check(check)
        output.note(
            f"{states.count('fail')} failed, {output.counted(states.count('warn'), 'warning')}, "
            f"{output.counted(states.count('ok'), 'check')} passed."
        )
    else:
        output.rows(checks, [], empty="")
    return 1 if "fail" in states else 0


def _print_check(check: Check) -> None:
    state = Text(f"{check.state:<4}")
    if output.is_terminal():
        state = output.status_text(check.state)
        state.pad_right(6 - len(state))
    line = Text.assemble(state, "  ", (f"{check.name:<14}", "bold"), output.clean(check.finding))
    if check.action:
        line.append(f"\n{'':<{len(state) + 16}}{check.action}", style="dim")
    output.console().print(line, soft_wrap=True)
