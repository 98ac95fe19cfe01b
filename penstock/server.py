"""`penstock serve` and `dev`: the API and the dashboard on a socket, with a login for users' requests."""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import signal
import socket
import sys
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from typing import Any

import psycopg
import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.responses import RedirectResponse
from psycopg.conninfo import make_conninfo

from penstock import api, dashboard, db
from penstock.api.development import Development
from penstock.app import App
from penstock.errors import Conflict, Invalid, PenstockError
from penstock.settings import Settings, is_loopback

LOGIN = "penstock_api"

# Several servers may start at once: whoever comes second finds it made, with its memberships.
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
    """The address at which the login for users' requests reaches the same database; made where it is missing.

    For servers that trust whoever reaches their socket, as the embedded one does: it gets no password.
    """
    with db.connect(dsn, name="penstock serve") as connection:
        connection.execute(_MAKE_LOGIN)
    return make_conninfo(dsn, user=LOGIN, password=None)


HOW: dict[str, Any] = {
    # The API logs requests itself, without what may be secret in them.
    "access_log": False,
    "log_config": None,
    "server_header": False,
    "timeout_keep_alive": 30,
    "h11_max_incomplete_event_size": 32 << 10,
}


def run(settings: Settings, *, host: str, port: int, app: App | None = None, root_path: str = "") -> None:
    """Serve until SIGTERM or Ctrl-C; what is being answered then is answered first."""
    check_address(settings, host)
    made = application(settings, app)
    # What is loaded now stays, and a request leaves few circles behind: looking for garbage as often, and as
    # far, as Python does by itself would be a tenth of each request's time.
    gc.collect()
    gc.freeze()
    gc.set_threshold(5000, 20, 50)
    uvicorn.run(made, host=host, port=port, root_path=root_path, timeout_graceful_shutdown=20, **HOW)


def application(
    settings: Settings, app: App | None = None, *, developer: Development | None = None
) -> FastAPI:
    """The API with the dashboard in it, to which its root leads."""
    made = api.create(settings, app, developer=developer)
    dashboard.mount(made)

    @made.get("/", include_in_schema=False)
    async def root(request: Request) -> Response:  # pyright: ignore[reportUnusedFunction]
        return RedirectResponse(f"{request.scope.get('root_path', '')}/dashboard/", 307)

    return made


def check_address(settings: Settings, host: str) -> None:
    """Refuse an address that others can reach while no token could be checked."""
    if settings.jwt_secret or settings.jwks_url or is_loopback(host):
        return
    raise Invalid(
        f"{host} can be reached by others, and nothing says whose tokens are good",
        code="unsafe_address",
        hint="Set PENSTOCK_JWT_SECRET or PENSTOCK_JWKS_URL, or serve on 127.0.0.1.",
    )


def with_logins(settings: Settings, *, is_embedded: bool) -> Settings:
    """The settings with the login for users: the one given, or on the embedded server one that is made."""
    if is_embedded and settings.database_url:
        return replace(settings, api_url=ensure_login(settings.database_url))
    if not settings.api_url:
        raise _no_login()
    return settings


def _no_login() -> Invalid:
    return Invalid(
        "PENSTOCK_API_URL is missing: the login that serves users' requests",
        code="no_api_login",
        hint="create role penstock_api login noinherit password '…' in role anon, authenticated;",
    )


# For development


def bind(host: str, port: int) -> socket.socket:
    """A socket on an address that only this machine reaches; any other is refused."""
    refusal = Invalid(
        f"{host} can be reached by others, and `penstock dev` lets whoever started it in without a password",
        code="unsafe_address",
        hint="Leave --host out. `penstock serve` is for others.",
    )
    if not is_loopback(host):
        raise refusal
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listening = socket.create_server((host, port), family=family)
    except OSError as error:
        raise Conflict(
            f"{host}:{port} cannot be used: {error.strerror}",
            code="address_in_use",
            hint="Something else may listen there: choose another --port, or 0 for any.",
        ) from error
    # What localhost is called elsewhere is the resolver's word.
    if not is_loopback(listening.getsockname()[0]):
        listening.close()
        raise refusal
    return listening


def with_development_login(settings: Settings) -> Settings:
    """The settings with a login for users: the one given, or one that is made, where that can log in."""
    if settings.api_url or not settings.database_url:
        return settings
    try:
        made = ensure_login(settings.database_url)
        db.connect(made, name="penstock dev", wait_seconds=0).close()
    except (PenstockError, psycopg.Error) as error:
        # It has no password: where one is asked for, or roles cannot be made, somebody has to do it.
        raise _no_login() from error
    return replace(settings, api_url=made)


def run_beside(
    settings: Settings, listening: socket.socket, *, developer: Development, app: App | None = None
) -> None:
    """Serve for development in a process of its own, until its parent ends it or itself."""
    made = application(settings, app, developer=developer)
    # No proxy's word is taken for where a request comes from: there is none.
    how = uvicorn.Config(made, timeout_graceful_shutdown=1, proxy_headers=False, **HOW)
    _Beside(how).run([listening])


@asynccontextmanager
async def serving(
    settings: Settings, listening: socket.socket, *, developer: Development, app: App | None = None
) -> AsyncGenerator[None]:
    """Serve for development in this event loop, for as long as the block lasts."""
    made = application(settings, app, developer=developer)
    how = uvicorn.Config(made, timeout_graceful_shutdown=1, proxy_headers=False, **HOW)
    server = uvicorn.Server(how)
    # Not server.serve(): that takes over the process's signals.
    how.load()
    server.lifespan = how.lifespan_class(how)
    await server.startup(sockets=[listening])
    if server.should_exit:
        raise PenstockError("The API did not start.", code="no_api", hint="What it logged says why.")
    try:
        yield
    finally:
        await server.shutdown(sockets=[listening])


class _Beside(uvicorn.Server):
    """A server whose parent hears of Ctrl-C, and passes it on in its own time."""

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self._end)
        parent = multiprocessing.parent_process()
        if parent is not None:
            loop.add_reader(parent.sentinel, self._end_alone, parent.sentinel)
        yield

    def _end(self) -> None:
        self.should_exit = True

    def _end_alone(self, sentinel: int) -> None:
        asyncio.get_running_loop().remove_reader(sentinel)
        print("penstock dev has died: the API ends, too.", file=sys.stderr, flush=True)
        self._end()
