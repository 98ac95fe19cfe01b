"""`penstock dev`: run a database, the API with a development login, and a worker, until Ctrl-C."""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import os
import signal
import socket
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from multiprocessing.process import BaseProcess
from typing import TYPE_CHECKING, Annotated

import typer

import penstock
from penstock.cli import output
from penstock.cli.options import Options, command, current_options, dsn, using_options
from penstock.cli.run import ConcurrencyOption, log_to_stderr
from penstock.contract import keys, tenants
from penstock.errors import PenstockError
from penstock.postgres import db, embedded, migrate
from penstock.settings import Settings, settings
from penstock.types import NewKey

if TYPE_CHECKING:
    from penstock.api.development import Development
    from penstock.sdk.app import App
    from penstock.worker import Worker

KEY = "penstock dev"
"""The name of the developer's API keys."""
KEY_LIFE = timedelta(days=1)


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
) -> int:
    """Run a database, the API with a development login, and a worker for your app.

    Listens on this machine only. Without an app, runs no worker. Press Ctrl-C to stop.
    """
    # Imported here because no other command needs both a web server and a worker.
    from penstock import server
    from penstock.sdk.load import load

    app = load(path) if path else None
    with server.bind(host, port) as listening:
        given = current_options().database or settings().database_url
        if given and (place := db.remote_host(given)):
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
        return asyncio.run(_develop(found, listening, path, app, concurrency))


async def _develop(
    found: Settings, listening: socket.socket, path: str | None, app: App | None, concurrency: int
) -> int:
    from penstock.api.development import Development
    from penstock.worker import Worker

    address = found.database_url or ""
    host, port = listening.getsockname()[:2]
    url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    async with (
        db.pool(address, name="penstock dev", max_size=1, wait_seconds=5) as pool,
        _temporary_key(pool, app) as key,
    ):
        developer = Development(key.id, f"penstock_dev_{port}", str(app.tenant) if app else "default")
        api = _start(_serve, current_options(), found, listening, path, developer)
        listening.close()
        login = f"{url}/dev/login?token={developer.token}"
        output.document(
            {"url": url, "login": login, "key": key.secret},
            lambda: _print_addresses(url, login, key.secret or ""),
        )
        sys.stdout.flush()
        worker = Worker(app, dsn=address, concurrency=concurrency) if app else None
        code = await _until_one_ends(api, worker, path)
        if app:
            await app.aclose()
    if worker and not worker.is_clean:
        # A handler's thread still runs, and a normal exit would wait for it forever.
        logging.shutdown()
        os._exit(code)
    return code


def _print_addresses(url: str, login: str, secret: str) -> None:
    output.note(f"  API       {url}")
    output.note(f"  Dashboard {login}")
    output.note(f"  Shell     export PENSTOCK_URL={url} PENSTOCK_KEY={secret}")
    output.note('            curl "$PENSTOCK_URL/api/me" -H "Authorization: Bearer $PENSTOCK_KEY"')


@asynccontextmanager
async def _temporary_key(pool: db.Pool, app: App | None) -> AsyncGenerator[NewKey]:
    """An owner's key for the app's tenant. Revoked on exit, and expires after a day in any case."""
    tenant = app.tenant if app else "default"
    tenant_id = await tenants.ensure(pool, name=tenant) if isinstance(tenant, str) else tenant
    now = datetime.now(UTC)
    for old in await keys.list(pool, tenant_id=tenant_id):
        if old.name == KEY and not old.revoked_at and old.expires_at and old.expires_at < now:
            await keys.revoke(pool, key_id=old.id)
    key = await keys.create(pool, name=KEY, role="owner", tenant_id=tenant_id, expires_at=now + KEY_LIFE)
    try:
        yield key
    finally:
        with suppress(PenstockError):
            await keys.revoke(pool, key_id=key.id)


# Two processes that start and stop together: the API, and this one with the worker


def _start(target: Callable[..., None], *arguments: object) -> BaseProcess:
    process = multiprocessing.get_context("spawn").Process(
        target=target, args=arguments, name="penstock api", daemon=True
    )
    # A terminal sends Ctrl-C to both processes. The API ignores it, because this process stops it.
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        process.start()
    finally:
        signal.signal(signal.SIGINT, before)
    return process


def _serve(
    options: Options, found: Settings, listening: socket.socket, path: str | None, developer: Development
) -> None:
    from penstock import server
    from penstock.sdk.load import load

    with using_options(output=options.output, no_color=options.no_color):
        log_to_stderr(logging.INFO)
        server.run_beside(found, listening, developer=developer, app=load(path) if path else None)


async def _until_one_ends(api: BaseProcess, worker: Worker | None, path: str | None) -> int:
    """Work and serve until Ctrl-C, or until the worker or the API fails, which stops the other."""
    loop = asyncio.get_running_loop()
    stopping, api_ended = asyncio.Event(), asyncio.Event()

    def stop() -> None:
        if not stopping.is_set():
            output.note("Stopping after the running tasks. Press Ctrl-C again to stop now.")
        stopping.set()
        if worker:
            worker.stop()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    # Printed last: from here on a signal stops everything cleanly.
    output.note(f"  Worker    {path or 'none. To run one, name your app: penstock dev mysite.jobs:app'}")
    loop.add_reader(api.sentinel, lambda: loop.remove_reader(api.sentinel) and api_ended.set())
    working = asyncio.create_task(worker.run() if worker else stopping.wait())
    serving = asyncio.create_task(api_ended.wait())
    await asyncio.wait((working, serving), return_when=asyncio.FIRST_COMPLETED)
    is_asked = stopping.is_set()
    if not is_asked:
        what = f"The API stopped unexpectedly ({_exit_cause(api)})" if serving.done() else "The worker failed"
        output.note(f"{what}. Stopping.", "bold red")
        stop()
    await asyncio.wait((working,))
    api.terminate()
    await asyncio.wait((serving,), timeout=10)
    api.kill()
    await serving
    # Raises the worker's error, which is then printed like any command's error.
    working.result()
    output.note("Stopped the API and the worker." if worker else "Stopped the API.")
    return 0 if is_asked else 1


def _exit_cause(process: BaseProcess) -> str:
    process.join()
    code = process.exitcode or 0
    return f"by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
