"""`penstock dev`: run a database, the API with a development login, and a worker that reloads on change."""

from __future__ import annotations

import asyncio
import logging
import socket
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

import penstock
from penstock.cli import output
from penstock.cli.dev.credentials import credentials
from penstock.cli.dev.supervisor import Supervisor
from penstock.cli.options import command, current_options, dsn
from penstock.cli.run import ConcurrencyOption, log_to_stderr
from penstock.postgres import db, embedded, migrate
from penstock.settings import Settings, settings

if TYPE_CHECKING:
    from penstock.sdk.app import App


def add_to(app: typer.Typer) -> None:
    """Add this command to the program."""
    command(app, "dev", rich_help_panel="Run")(dev)


def dev(
    path: Annotated[
        str | None, typer.Argument(metavar="MODULE:APP", help="App to run, for example mysite.jobs:app.")
    ] = None,
    host: Annotated[str, typer.Option(help="Loopback address to listen on.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port to listen on; 0 picks a free port.")
    ] = 8080,
    concurrency: ConcurrencyOption = 10,
    reload: Annotated[
        bool, typer.Option("--reload/--no-reload", help="Restart the worker and the API when a file changes.")
    ] = True,
) -> int:
    """Run a database, the API with a development login, and a worker for your app.

    Listens on this machine only. Without an app, runs no worker. Prints a line for each task. On a terminal,
    press o to open the dashboard, r to run the last job again, and q to quit.
    """
    # Imported here because no other command needs both a web server and a worker.
    from penstock import server
    from penstock.sdk.load import load

    app = load(path) if path else None
    with server.bind(host, port) as listening:
        given = current_options().database or settings().database_url
        place = db.remote_host(given) if given else None
        if place:
            output.confirm(
                f"The database is on {place}. Migrate it, and give every user of this machine access to its "
                "data?"
            )
        address = dsn(make=True)
        applied = app.migrate(address) if app else migrate.migrate(address)
        ours = replace(settings(), database_url=address, environment="development")
        found = server.with_development_login(ours)
        output.note(f"penstock {penstock.__version__}, development", "bold")
        database = "from --database or DATABASE_URL" if given else f"embedded PostgreSQL in {settings().home}"
        output.note(f"  Database  {database}")
        if not given:
            output.note(f"            psql {embedded.of(settings().home).dsn(embedded.DATABASE)!r}", "dim")
        schema = f"{output.counted(len(applied), 'migration')} applied" if applied else "up to date"
        output.note(f"  Schema    {schema}")
        log_to_stderr(logging.INFO)
        return asyncio.run(
            _develop(found, listening, path, app, concurrency, is_remote=bool(place), is_reloading=reload)
        )


async def _develop(
    found: Settings,
    listening: socket.socket,
    path: str | None,
    app: App | None,
    concurrency: int,
    *,
    is_remote: bool,
    is_reloading: bool,
) -> int:
    from penstock.api.development import Development

    host, port = listening.getsockname()[:2]
    url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    tenant = app.tenant if app else "default"
    async with (
        db.pool(found.database_url or "", name="penstock dev", max_size=1, wait_seconds=5) as pool,
        # Credentials for a database on another machine end with this process.
        credentials(pool, tenant, None if is_remote else found.home) as own,
    ):
        developer = Development(own.key_id, f"penstock_dev_{port}", own.tenant, own.token, own.session_secret)
        login = f"{url}/dev/login?token={own.token}"
        output.document(
            {"url": url, "login": login, "key": own.key}, lambda: _print_addresses(url, login, own.key)
        )
        sys.stdout.flush()
        supervisor = Supervisor(
            found, listening, path, developer, concurrency, url, is_reloading=is_reloading
        )
        code = await supervisor.run()
        if app:
            await app.aclose()
    return code


def _print_addresses(url: str, login: str, secret: str) -> None:
    output.note(f"  API       {url}")
    output.note(f"  Dashboard {login}")
    output.note(f"  Shell     export PENSTOCK_URL={url} PENSTOCK_KEY={secret}")
    output.note('            curl "$PENSTOCK_URL/api/me" -H "Authorization: Bearer $PENSTOCK_KEY"')
