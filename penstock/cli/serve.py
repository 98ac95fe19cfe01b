"""`penstock serve`: the HTTP API and the dashboard."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Annotated

import typer

from penstock import embedded, migrate
from penstock.cli import output
from penstock.cli.options import chosen, command
from penstock.cli.run import log_to_stderr
from penstock.settings import settings


def add_to(app: typer.Typer) -> None:
    """Add this command to the program."""
    command(app, "serve", rich_help_panel="Run")(serve)


def serve(
    path: Annotated[
        str | None,
        typer.Argument(
            metavar="MODULE:APP", show_default=False, help="Lets clients start its jobs by type and params."
        ),
    ] = None,
    host: Annotated[str, typer.Option(help="An address of this machine.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 is any that is free.")] = 8080,
    root_path: Annotated[
        str, typer.Option(metavar="PATH", help="Below which a proxy serves this, such as /penstock.")
    ] = "",
    read_only: Annotated[
        bool, typer.Option("--read-only", help="The dashboard only shows. The API is not concerned.")
    ] = False,
) -> int:
    """Serve the HTTP API and the dashboard until stopped.

    Users' requests run on the login of PENSTOCK_API_URL, which can become nothing but a user. On the embedded
    database it is made, and the schema brought up to date.
    """
    # Not at the top: no other command needs a web server.
    from penstock import server
    from penstock.app import load

    found = replace(settings(), database_url=chosen().database or settings().database_url)
    server.check_address(found, host)
    is_embedded = found.database_url is None
    if is_embedded:
        address = embedded.dsn(found.home)
        migrate.migrate(address)
        found = replace(found, database_url=address)
    log_to_stderr(logging.INFO)
    ready = server.with_logins(found, is_embedded=is_embedded)
    output.note(f"The dashboard is at http://{host}:{port}{root_path}/dashboard/")
    output.note(f"The API answers at http://{host}:{port}; its description is at /api/openapi.json")
    if read_only:
        ready = replace(ready, read_only=True)
    server.run(ready, host=host, port=port, app=load(path) if path else None, root_path=root_path)
    return 0
