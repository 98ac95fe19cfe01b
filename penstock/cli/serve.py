"""`penstock serve`: the HTTP API and the dashboard."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Annotated

import typer

from penstock.cli import output
from penstock.cli.options import command, current_options
from penstock.cli.run import log_to_stderr
from penstock.errors import Unavailable
from penstock.postgres import db, embedded, migrate
from penstock.settings import settings

_WAIT_SECONDS = 30.0  # for a database that starts together with the server


def add_to(app: typer.Typer) -> None:
    """Add this command to the program."""
    command(app, "serve", rich_help_panel="Run")(serve)


def serve(
    path: Annotated[
        str | None,
        typer.Argument(
            metavar="MODULE:APP", show_default=False, help="App whose job types clients may start."
        ),
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port to listen on; 0 picks a free port.")
    ] = 8080,
    root_path: Annotated[
        str,
        typer.Option(metavar="PATH", help="Path prefix that a proxy serves this under, such as /penstock."),
    ] = "",
    drain: Annotated[
        float,
        typer.Option(
            min=0,
            max=600,
            metavar="SECONDS",
            help="After SIGTERM, answer 503 at /readyz for this long and still accept requests.",
        ),
    ] = 0,
    read_only: Annotated[
        bool, typer.Option("--read-only", help="Disable changes in the dashboard. Does not affect the API.")
    ] = False,
) -> int:
    """Serve the HTTP API and the dashboard until stopped.

    Users' requests connect as the restricted login of PENSTOCK_API_URL. With the embedded database, creates
    that login and migrates the schema.
    """
    # Imported here because few commands need a web server.
    from penstock import server
    from penstock.sdk.load import load

    found = replace(settings(), database_url=current_options().database or settings().database_url)
    server.check_address(found, host)
    app = load(path) if path else None
    with server.listen(host, port) as listening:
        is_embedded = found.database_url is None
        if is_embedded:
            address = embedded.dsn(found.home)
            migrate.migrate(address)
            found = replace(found, database_url=address)
        log_to_stderr(logging.INFO)
        ready = replace(
            server.with_logins(found, is_embedded=is_embedded), read_only=read_only or found.read_only
        )
        for name, address in (("DATABASE_URL", ready.database_url), ("PENSTOCK_API_URL", ready.api_url)):
            _reach(name, address or "")
        server.check_user_login(ready)
        url = f"http://{host}:{listening.getsockname()[1]}{root_path}"
        output.note(f"Dashboard  {url}/dashboard/")
        output.note(f"API        {url}/api (OpenAPI: /api/openapi.json)")
        server.run(ready, listening, app=app, root_path=root_path, drain_seconds=drain)
    return 0


def _reach(name: str, address: str) -> None:
    """Wait until the database of this setting responds, or say why it does not."""
    try:
        db.connect(address, name="penstock serve", wait_seconds=0).close()
        return
    except Unavailable as error:
        output.note(f"{name}: {error.message} Trying again for {_WAIT_SECONDS:.0f} s.", "dim")
    try:
        db.connect(address, name="penstock serve", wait_seconds=_WAIT_SECONDS).close()
    except Unavailable as error:
        raise Unavailable(
            f"{name}: {error.message}", hint="Check the address and the password, and that PostgreSQL runs."
        ) from error
