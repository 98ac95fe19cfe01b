"""`penstock mcp`: tools for language models."""

from __future__ import annotations

import asyncio
import logging
from typing import Annotated

import typer

from penstock.cli import output
from penstock.cli.options import command
from penstock.cli.parsing import names_of
from penstock.cli.run import log_to_stderr
from penstock.settings import settings


def add_to(app: typer.Typer) -> None:
    """Add this command to the program."""
    command(app, "mcp", rich_help_panel="Run")(mcp)


def mcp(
    http: Annotated[
        bool,
        typer.Option(
            "--http",
            help="Serve over HTTP at /mcp; each request brings its key. Default: stdio.",
        ),
    ] = False,
    host: Annotated[str, typer.Option(help="Address to listen on, with --http.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port to listen on, with --http; 0 picks a free port.")
    ] = 8081,
    allow: Annotated[
        str,
        typer.Option(
            metavar="A,B", show_default=False, help="start, retry, pause, resume, cancel. Default: none."
        ),
    ] = "",
) -> int:
    """Serve tools for language models (MCP), on the API at PENSTOCK_URL.

    The tools have the rights of the caller's key, and only read unless actions are allowed.
    """
    # Imported here because it needs the extra `mcp`.
    from penstock import mcp as mcp_server

    verbs = mcp_server.allowed(names_of(allow) if allow else ())
    log_to_stderr(logging.INFO)
    found = settings()
    if not http:
        asyncio.run(mcp_server.run_stdio(found.url, found.key, verbs))
        return 0
    from penstock import server

    with server.listen(host, port) as listening:
        output.note(f"MCP        http://{host}:{listening.getsockname()[1]}/mcp")
        mcp_server.run_http(found.url, verbs, listening)
    return 0
