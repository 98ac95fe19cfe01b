"""`penstock serve` and `dev`: the API and the dashboard on a socket, with a login for users' requests."""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import os
import resource
import signal
import socket
import sys
import threading
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import replace
from types import FrameType
from typing import Any

import psycopg
import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.responses import RedirectResponse
from psycopg.conninfo import make_conninfo

from penstock import api, cells, dashboard, routing
from penstock.api import streams
from penstock.api.callers import LOGIN_HINT, check_login
from penstock.api.development import Development
from penstock.errors import Conflict, Invalid, PenstockError, Unavailable
from penstock.postgres import db
from penstock.sdk.app import App
from penstock.settings import Settings, is_loopback

LOGIN = "penstock_api"

# If several servers start at once, the second one finds the role complete, with its memberships.
_MAKE_LOGIN = """
do $$
begin
  if not exists (select from pg_roles where rolname = 'penstock_api') then
    create role penstock_api login noinherit in role anon, authenticated;
  end if;
exception when duplicate_object or unique_violation then
  null;
end
$$"""


def ensure_login(dsn: str) -> str:
    """The address of the same database with the login for users' requests; creates the login if missing.

    The login gets no password: this is for servers that trust every client of their socket, as the embedded
    one.
    """
    with db.connect(dsn, name="penstock serve") as connection:
        connection.execute(_MAKE_LOGIN)
    return make_conninfo(dsn, user=LOGIN, password=None)


UVICORN_OPTIONS: dict[str, Any] = {
    # The API logs requests itself, without secrets.
    "access_log": False,
    "log_config": None,
    "server_header": False,
    "timeout_keep_alive": 30,
    # Not httptools, even if it is installed: uvicorn limits the size of headers with h11 only.
    "http": "h11",
    "h11_max_incomplete_event_size": 32 << 10,
}


def run(
    settings: Settings,
    listening: socket.socket,
    *,
    app: App | None = None,
    root_path: str = "",
    drain_seconds: float = 0,
) -> None:
    """Serve until SIGTERM or Ctrl-C; requests that are being processed are completed.

    For `drain_seconds` after SIGTERM, `/readyz` answers 503 and requests are still accepted: a load balancer
    needs a moment to send them elsewhere. A second signal ends that.
    """
    # Each client's connection is an open file, and the usual soft limit is 1024.
    _, most_files = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most_files, most_files))
    made = application(settings, app)
    # Loaded modules stay for ever, and requests leave few reference cycles. With Python's defaults, garbage
    # collection would take a tenth of each request's time.
    gc.collect()
    gc.freeze()
    gc.set_threshold(5000, 20, 50)
    # A thread that formats an export would otherwise stop the event loop for 5 ms at each of its turns.
    sys.setswitchinterval(0.0005)
    config = uvicorn.Config(made, root_path=root_path, timeout_graceful_shutdown=20, **UVICORN_OPTIONS)
    server = _DrainingServer(config, made, drain_seconds)
    server.run([listening])
    if not server.started:
        raise PenstockError("The API did not start.", code="no_api", hint="Its log above says why.")


def listen(host: str, port: int) -> socket.socket:
    """A socket on this address, before anything else is opened."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listening = socket.create_server((host, port), family=family, backlog=2048)
        # asyncio does not recognize a socket without a protocol number as TCP. Without this option, which
        # accepted connections inherit, Nagle's algorithm delays responses on kept-alive connections by 40 ms.
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return listening
    except OSError as error:
        raise Conflict(
            f"cannot listen on {host}:{port}: {os.strerror(error.errno) if error.errno else error}",
            code="address_in_use",
            hint="Another program may use this port: choose another --port, or 0 for any free one.",
        ) from error


def check_user_login(settings: Settings) -> None:
    """Reject a login for users' requests that has more rights than a user."""

    async def check() -> None:
        # While the database is away, the server waits for it and checks then.
        with suppress(Unavailable):
            async with db.pool(
                settings.api_url or "", name="penstock serve", max_size=1, wait_seconds=5
            ) as pool:
                await check_login(pool)

    asyncio.run(check())


def application(
    settings: Settings, app: App | None = None, *, developer: Development | None = None
) -> FastAPI:
    """The API with the dashboard; `/` redirects to the dashboard."""
    made = _cell_application(settings, app, developer=developer)
    if settings.cells_file is not None and settings.database_url:
        _add_cells(made, settings, app)
    return made


def _add_cells(made: FastAPI, settings: Settings, app: App | None) -> None:
    """Let the application also answer for the other databases in `PENSTOCK_CELLS`."""
    dsn = settings.database_url or ""
    with db.connect(dsn, name="penstock serve") as connection:
        row = connection.execute("select value from penstock.settings where name = 'cell'").fetchone()
    known = cells.read(settings, dsn, int(row["value"]) if row else 0)
    others: dict[int, FastAPI] = {}
    for number, cell in list(known.items())[1:]:
        if cell.api_url is None:
            raise Invalid(f"cell {number} in PENSTOCK_CELLS has no api_url", code="invalid_cell")
        theirs = replace(settings, database_url=cell.database_url, api_url=cell.api_url, cells_file=None)
        others[number] = _cell_application(theirs, app)
    routing.add_to(made, known, others, settings)


def _cell_application(
    settings: Settings, app: App | None, *, developer: Development | None = None
) -> FastAPI:
    made = api.create(settings, app, developer=developer)
    dashboard.mount(made)

    @made.get("/", include_in_schema=False)
    async def root(request: Request) -> Response:  # pyright: ignore[reportUnusedFunction]
        return RedirectResponse(f"{request.scope.get('root_path', '')}/dashboard/", 307)

    return made


def check_address(settings: Settings, host: str) -> None:
    """Reject an address that other machines can reach if no token issuer is configured."""
    if settings.jwt_secret or settings.jwks_url or settings.oidc_issuer or is_loopback(host):
        return
    raise Invalid(
        f"other machines can reach {host}, but no token issuer is configured",
        code="unsafe_address",
        hint="Set PENSTOCK_JWT_SECRET or PENSTOCK_JWKS_URL, or serve on 127.0.0.1.",
    )


def with_logins(settings: Settings, *, is_embedded: bool) -> Settings:
    """The settings with a login for users' requests; on the embedded server it is created."""
    if is_embedded and settings.database_url:
        return replace(settings, api_url=ensure_login(settings.database_url))
    if not settings.api_url:
        raise _no_login()
    return settings


def _no_login() -> Invalid:
    return Invalid(
        "PENSTOCK_API_URL is not set: the API needs a second login for users' requests",
        code="no_api_login",
        hint=LOGIN_HINT,
    )


# For development


def bind(host: str, port: int) -> socket.socket:
    """A socket on an address that only this machine can reach; other addresses are rejected."""
    refusal = Invalid(
        f"other machines can reach {host}, but `penstock dev` needs no password",
        code="unsafe_address",
        hint="Omit --host. To serve other machines, use `penstock serve`.",
    )
    if not is_loopback(host):
        raise refusal
    listening = listen(host, port)
    # A resolver may map a name such as localhost to an address that is not loopback.
    if not is_loopback(listening.getsockname()[0]):
        listening.close()
        raise refusal
    return listening


def with_development_login(settings: Settings) -> Settings:
    """The settings with a login for users' requests: the given one, or a new one if it can log in."""
    if settings.api_url or not settings.database_url:
        return settings
    try:
        made = ensure_login(settings.database_url)
        db.connect(made, name="penstock dev", wait_seconds=0).close()
    except (PenstockError, psycopg.Error) as error:
        # The server wants a password, or forbids creating roles: the user has to create the login.
        raise _no_login() from error
    return replace(settings, api_url=made)


def run_beside(
    settings: Settings, listening: socket.socket, *, developer: Development, app: App | None = None
) -> None:
    """Serve for development in a process of its own, until the parent stops it or ends."""
    made = application(settings, app, developer=developer)
    # No proxy is in front, so headers of proxies are not trusted.
    config = uvicorn.Config(made, timeout_graceful_shutdown=1, proxy_headers=False, **UVICORN_OPTIONS)
    _ChildServer(config).run([listening])


@asynccontextmanager
async def serving(
    settings: Settings, listening: socket.socket, *, developer: Development, app: App | None = None
) -> AsyncGenerator[None]:
    """Serve for development in this event loop, inside the context."""
    made = application(settings, app, developer=developer)
    config = uvicorn.Config(made, timeout_graceful_shutdown=1, proxy_headers=False, **UVICORN_OPTIONS)
    server = _Server(config)
    # server.serve() would replace the process's signal handlers.
    config.load()
    server.lifespan = config.lifespan_class(config)
    await server.startup(sockets=[listening])
    if server.should_exit:
        raise PenstockError("The API did not start.", code="no_api", hint="Its log above says why.")
    try:
        yield
    finally:
        await server.shutdown(sockets=[listening])


class _Server(uvicorn.Server):
    """A server that ends its event streams when it stops, and then waits for the other requests."""

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        streams.end_all()
        await super().shutdown(sockets)


class _DrainingServer(_Server):
    """A server that is not ready for a while before it stops accepting connections."""

    def __init__(self, config: uvicorn.Config, app: FastAPI, drain_seconds: float) -> None:
        super().__init__(config)
        self._app, self._drain_seconds = app, drain_seconds

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if sig != signal.SIGTERM or self._drain_seconds == 0 or self._app.state.is_draining:
            super().handle_exit(sig, frame)
            return
        self._app.state.is_draining = True
        threading.Timer(self._drain_seconds, super().handle_exit, (sig, None)).start()


class _ChildServer(_Server):
    """A server that ignores Ctrl-C: its parent handles it and then stops this process."""

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self._end)
        parent = multiprocessing.parent_process()
        if parent is not None:
            loop.add_reader(parent.sentinel, self._parent_died, parent.sentinel)
        yield

    def _end(self) -> None:
        self.should_exit = True

    def _parent_died(self, sentinel: int) -> None:
        asyncio.get_running_loop().remove_reader(sentinel)
        print("`penstock dev` died: the API stops too.", file=sys.stderr, flush=True)
        self._end()
