"""`penstock demo`, `worker`, `migrate` and `doctor`: what sets it up and keeps it going."""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from penstock import db, embedded, migrate
from penstock.cli import output
from penstock.cli.options import Output, chosen, command, dsn
from penstock.cli.output import Column
from penstock.errors import Invalid, NotMigrated
from penstock.settings import settings

if TYPE_CHECKING:
    from penstock.app import App
    from penstock.doctor import Check

AppArgument = Annotated[
    str, typer.Argument(metavar="MODULE:APP", show_default=False, help="Such as mysite.jobs:app.")
]
ConcurrencyOption = Annotated[
    int, typer.Option(min=1, help="How many handlers run at once, in each process.")
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
    """Make a small book on an embedded database and watch it grow: texts, PDFs, MP3s. Needs nothing else.

    DATABASE_URL is not used, so that a real database stays clean; --database is.
    """
    began = time.monotonic()
    try:
        from penstock import demo
    except ImportError as error:
        raise Invalid(f"The demo needs more than Penstock alone: {error}") from error

    address = chosen().database or embedded.dsn(settings().home)
    migrate.migrate(address)
    log_to_stderr(logging.WARNING)
    found = replace(settings(), database_url=address)
    return demo.run(found, is_terminal=output.is_terminal(), began=began)


def worker(
    path: AppArgument,
    processes: Annotated[int, typer.Option(min=1, help="How many processes to run.")] = 1,
    concurrency: ConcurrencyOption = 10,
    kinds: Annotated[
        str | None, typer.Option(metavar="A,B", help="Only these kinds of task. Default: all the app has.")
    ] = None,
    lease: Annotated[
        int, typer.Option(min=1, help="Seconds until the tasks of a dead worker run elsewhere.")
    ] = 10,
    grace: Annotated[
        float, typer.Option(min=0, help="Seconds that running tasks have to end when the worker is stopped.")
    ] = 25,
    drain: Annotated[bool, typer.Option("--drain", help="End when nothing is left to do.")] = False,
) -> int:
    """Run the tasks of an app until stopped. SIGTERM and Ctrl-C let what runs end first."""
    return _work(
        path,
        dsn(),
        processes=processes,
        concurrency=concurrency,
        kinds=[kind.strip() for kind in kinds.split(",") if kind.strip()] if kinds else None,
        lease_seconds=lease,
        grace_seconds=grace,
        drain=drain,
    )


def _work(path: str, address: str, **how: Any) -> int:
    # Not at the top: migrate and doctor must work where the app's own packages are missing.
    from penstock.app import load
    from penstock.worker import run

    log_to_stderr(logging.INFO)
    return run(load(path), address, **how)


def log_to_stderr(level: int) -> None:
    """Log for people, with colours on a terminal; as JSON lines with `-o json` or `-o jsonl`."""
    import structlog

    # Through logging: its handlers survive a stream that was closed, and a worker must.
    logging.basicConfig(
        level=logging.WARNING, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    ours = logging.getLogger("penstock")
    ours.handlers = [logging.StreamHandler(sys.stderr)]
    ours.setLevel(level)
    ours.propagate = False
    is_colored = sys.stderr.isatty() and not chosen().no_color
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.dev.ConsoleRenderer(colors=is_colored)
            if chosen().output is Output.text
            else structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.stdlib.LoggerFactory(),
    )


def migrate_command(
    path: Annotated[
        str | None,
        typer.Argument(
            metavar="MODULE:APP", show_default=False, help="Also the SQL that this app brings, if it does."
        ),
    ] = None,
    sql: Annotated[bool, typer.Option("--sql", help="Print the SQL for psql instead of running it.")] = False,
    check: Annotated[
        bool,
        typer.Option(
            "--check", help="Name every difference to the declared schema; exit code 1 if there is one."
        ),
    ] = False,
    contract: Annotated[
        bool, typer.Option("--contract", help="Also run what only fits once no older version runs any more.")
    ] = False,
    rollback_to: Annotated[
        int | None,
        typer.Option(
            min=0,
            metavar="N",
            help="Undo the migrations after number N; 0 removes all. With an app, its own. Asks first.",
        ),
    ] = None,
) -> int:
    """Bring the database to this version's schema. Safe to repeat, and from several machines at once."""
    app = _loaded(path)
    own = app.own if app else None
    if sql:
        print(migrate.script(contract), end="")
        if own:
            print(migrate.script(contract, folder=own.folder, schema=own.schema), end="")
        return 0
    if check:
        return _check(dsn(), own)
    if rollback_to is not None:
        whose = f"every migration of schema {own.schema}" if own else "every migration"
        output.confirm(f"This is to undo {whose} after number {rollback_to}, with the data in it. Continue?")
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
        empty="No migration to run; functions, views and grants are this version's.",
    )
    return 0


def _loaded(path: str | None) -> App | None:
    # Not at the top: migrate must work where the app's own packages are missing.
    from penstock.app import load

    return load(path) if path else None


def _migrate(address: str, contract: bool, app: App | None) -> list[str]:
    try:
        return app.migrate(address, contract) if app else migrate.migrate(address, contract)
    except NotMigrated as error:
        error.hint = error.hint or "What failed was undone. The schema's owner may run it again."
        raise


def _check(address: str, own: migrate.Own | None) -> int:
    with db.connect(address, name="penstock migrate", wait_seconds=0) as connection:
        found = migrate.check(connection)
        if own:
            found += migrate.check(connection, folder=own.folder, schema=own.schema)
    output.rows(found, [Column("DIFFERENCE", str)], empty="The schema is as declared.")
    return 1 if found else 0


def doctor() -> int:
    """Check the database, its settings, the schema, workers and backlog. Exit code 1 if a check fails."""
    from penstock import doctor

    checks = asyncio.run(doctor.examine(dsn()))
    states = [check.state for check in checks]
    if chosen().output is Output.text:
        for check in checks:
            _print_check(check)
        output.note(
            f"{states.count('fail')} failed, {states.count('warn')} to look at, {states.count('ok')} well."
        )
    else:
        output.rows(checks, [], empty="")
    return 1 if "fail" in states else 0


def _print_check(check: Check) -> None:
    state = Text(f"{check.state:<4}")
    if output.is_terminal():
        state = output.look(check.state)
        state.pad_right(6 - len(state))
    line = Text.assemble(state, "  ", (f"{check.name:<14}", "bold"), output.clean(check.finding))
    if check.action:
        line.append(f"\n{'':<{len(state) + 16}}{check.action}", style="dim")
    output.console().print(line, soft_wrap=True)
