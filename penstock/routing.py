"""Sends each request to the cell of its tenant: for an installation with several databases.

The application of the directory's cell answers on the socket; this middleware passes requests of other cells
to their applications, in the same process. The directory's rows are cached: while it is away, the last known
ones hold, and no tenant moves.
"""

from __future__ import annotations

import asyncio
import re
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from datetime import datetime
from hashlib import sha256
from typing import Any, LiteralString, NamedTuple
from urllib.parse import parse_qs
from uuid import UUID

import psycopg
import structlog
from fastapi import FastAPI
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from penstock.api import problems
from penstock.api.limits import Rate
from penstock.api.tokens import Tokens
from penstock.cells import Cell
from penstock.errors import Invalid, NotFound, PenstockError, Unavailable
from penstock.postgres import db
from penstock.settings import Settings

logger = structlog.get_logger(__name__)

REFRESH_SECONDS = 1.0
"""How often a process asks the directory for tenants that have moved. Old rows stay for a minute."""
RESTART_SECONDS = 5.0
"""How long a process waits before it tries again to serve a cell that failed to start."""
_LOOKUP_SECONDS = 2.0
_MOST_KNOWN = 10_000
_COOKIE = "penstock_cell"
_KEY = re.compile(r"psk_[0-9a-f]{64}")
_ID = r"([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})(?:[/.]|$)"

_OF_KEY: LiteralString = "select tenant_id from penstock.api_keys where digest = %s"
_OF_JOB: LiteralString = "select tenant_id from penstock.jobs where id = %s"
_OF_FILE: LiteralString = "select tenant_id from penstock.artifacts where id = %s"
_OF_INVITATION: LiteralString = "select tenant_id from penstock.invitations where digest = %s"
_OF_WAIT: LiteralString = """\
select w.tenant_id from penstock.wait_links l join penstock.waits w on w.id = l.wait_id where l.token = %s"""
_OF_TENANT: LiteralString = "select id from penstock.tenants where id = %s"
_OF_USER: LiteralString = """\
select m.tenant_id from penstock.members m
left join penstock.profiles p on p.user_id = m.user_id and p.tenant_id = m.tenant_id
where m.user_id = %s order by p.user_id is null, m.tenant_id limit 200"""
_MOVED: LiteralString = """\
select tenant_id, cell, switched_at from penstock.tenant_cells
where switched_at > coalesce(%s::timestamptz - interval '1 minute', '-infinity')"""


def _digest(secret: str) -> bytes:
    return sha256(secret.encode()).digest()


# Paths of files begin with the tenant. A signature protects them.
_STORED = re.compile(rf"/storage/{_ID}")
# Also what people open without an account: the address of a job or file, or a secret, names the tenant.
_PATHS: tuple[tuple[str, re.Pattern[str], LiteralString, Callable[[str], object]], ...] = (
    ("job", re.compile(rf"/(?:api|dashboard)/(?:jobs|bulks?)/{_ID}"), _OF_JOB, UUID),
    ("file", re.compile(rf"(?:/api/artifacts|/dashboard/artifacts|/links)/{_ID}"), _OF_FILE, UUID),
    ("wait", re.compile(r"/answers/([0-9a-f]{64})$"), _OF_WAIT, str),
    ("invitation", re.compile(r"/dashboard/invitations/([^/]{1,100})(?:/|$)"), _OF_INVITATION, _digest),
)


class Found(NamedTuple):
    """A tenant, and a cell that has a row of it."""

    tenant: UUID
    cell: int


class Router:
    """Middleware of the directory's application. `add_to` installs it."""

    def __init__(self, app: ASGIApp, cells: Cells) -> None:
        self._app = app
        self._cells = cells

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or _path(scope) in ("/healthz", "/readyz"):
            await self._app(scope, receive, send)
            return
        try:
            number = await self._cells.of(scope)
            app = self._cells.application(number) or self._app
        except PenstockError as error:
            await problems.answer(error)(scope, receive, send)
            return
        await app(scope, receive, _remembering(scope, number, send))


class Cells:
    """The applications of the other cells, and the cell of each tenant."""

    def __init__(
        self, cells: Mapping[int, Cell], apps: Mapping[int, FastAPI], settings: Settings, rate: Rate
    ) -> None:
        self.cells = dict(cells)
        self._rate = rate
        self.home = next(iter(cells))
        self._apps = dict(apps)
        self._tokens = Tokens(settings)
        self._ready: set[int] = set()
        self._pools: dict[int, db.Pool] = {}
        self._places: dict[UUID, int] = {}
        self._seen: datetime | None = None
        self._tenants: OrderedDict[tuple[str, object], Found] = OrderedDict()
        # Python 3.11 can drop a cancellation (see upkeep.end): loops also read this.
        self._is_ending = asyncio.Event()  # That of `running`: it belongs to one event loop.

    # The cell of a request

    async def of(self, scope: Scope) -> int:
        """The cell that answers this request.

        An API key belongs to one tenant. Other callers name a tenant in `Penstock-Tenant` or a cell in
        `?cell=`, ask for a job or a file, or get the cell of their own tenant.
        """
        headers = Headers(scope=scope)
        credential = _credential(headers)
        if credential and _KEY.fullmatch(credential):
            known = await self._guess(scope, "key", _OF_KEY, _digest(credential))
            if known is not None:
                return self.place(known)
        chosen = _chosen(scope, headers)
        if isinstance(chosen, UUID):
            return await self._place_of(scope, chosen)
        if chosen is not None:
            if chosen not in self.cells:
                raise NotFound(f"there is no cell {chosen}", code="unknown_cell")
            return chosen
        if found := _STORED.match(_path(scope)):
            return await self._place_of(scope, UUID(found[1]))
        for what, pattern, statement, value_of in _PATHS:
            if found := pattern.match(_path(scope)):
                known = await self._guess(scope, what, statement, value_of(found[1]))
                if known is not None:
                    return self.place(known)
        kept = _kept(scope, headers)
        if kept in self.cells:
            return kept
        user = await self._user(credential)
        known = await self._find("user", _OF_USER, user) if user else None
        return self.home if known is None else self.place(known)

    def place(self, found: Found) -> int:
        """The cell of a tenant: as the directory says; of one that never moved, the cell that made it."""
        return self._places.get(found.tenant, found.cell)

    async def _place_of(self, scope: Scope, tenant: UUID) -> int:
        """The cell of a tenant that a request names."""
        if tenant in self._places:
            return self._places[tenant]
        found = await self._guess(scope, "tenant", _OF_TENANT, tenant)
        return self.home if found is None else self.place(found)

    def application(self, number: int) -> FastAPI | None:
        """The application of a cell; None for the directory's own. Raises Unavailable while it is away."""
        if number == self.home:
            return None
        if number not in self._ready:
            raise _away(number)
        return self._apps[number]

    async def _user(self, credential: str | None) -> UUID | None:
        """The user of a valid token. The application checks the credential again and rejects a bad one."""
        if not credential or credential.startswith("psk_"):
            return None
        with suppress(PenstockError, ValueError):
            return UUID(str((await self._tokens.verify(credential)).get("sub")))
        return None

    async def _guess(self, scope: Scope, what: str, statement: LiteralString, value: object) -> Found | None:
        """The tenant of a key or an address. Raises Limited for a client that guesses too many.

        Nobody has checked this request yet, and each unknown value costs a query in every cell.
        """
        if known := self._tenants.get((what, value)):
            self._tenants.move_to_end((what, value))
            return known
        client = f"nobody:{(scope.get('client') or ('',))[0]}"
        self._rate.take(client)
        known = await self._find(what, statement, value)
        if known is not None:
            self._rate.give(client)
        return known

    async def _find(self, what: str, statement: LiteralString, value: object) -> Found | None:
        """The tenant of a key, an address or a user: asks the cells in turn, and remembers what they say.

        Only users change their tenant. Raises Unavailable if a cell that may know it is away.
        """
        away: int | None = None
        for number in self.cells:
            pool = self._pools.get(number)
            try:
                if pool is None:
                    raise _away(number)
                async with asyncio.timeout(_LOOKUP_SECONDS):
                    rows = await db.rows(pool, statement, (value,))
            except (PenstockError, psycopg.Error, TimeoutError):
                away = number
                continue
            # A row that a tenant has left behind names the tenant, too: its place is in the directory.
            if rows and rows[0][0] is not None:
                found = Found(rows[0][0], number)
                if what != "user":
                    self._remember((what, value), found)
                return found
        if away is not None and what != "user":
            raise _away(away)
        return None

    def _remember(self, key: tuple[str, object], found: Found) -> None:
        self._tenants[key] = found
        while len(self._tenants) > _MOST_KNOWN:
            self._tenants.popitem(last=False)

    # Connections

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """Run the other applications and keep the directory's rows, until the context ends."""
        async with AsyncExitStack() as stack:
            for number, cell in self.cells.items():
                self._pools[number] = await stack.enter_async_context(
                    db.pool(cell.database_url, name="penstock cells", min_size=0, max_size=2, wait_seconds=2)
                )
            await db.retry_until_available(self._refresh)
            self._is_ending = asyncio.Event()
            tasks = [asyncio.create_task(self._keep_refreshed())]
            tasks += [asyncio.create_task(self._run(number, app)) for number, app in self._apps.items()]
            try:
                yield
            finally:
                self._is_ending.set()
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self, number: int, app: FastAPI) -> None:
        """Run the application of one cell. It starts when its database can be reached."""
        while not self._is_ending.is_set():
            try:
                async with app.router.lifespan_context(app):
                    self._ready.add(number)
                    try:
                        await self._is_ending.wait()
                    finally:
                        self._ready.discard(number)
            except Exception as error:
                # Such as a login with too many rights. The other cells are served meanwhile.
                logger.error("the cell cannot be served", cell=number, error=str(error))
                with suppress(TimeoutError):
                    async with asyncio.timeout(RESTART_SECONDS):
                        await self._is_ending.wait()

    async def _keep_refreshed(self) -> None:
        while not self._is_ending.is_set():
            await asyncio.sleep(REFRESH_SECONDS)
            try:
                await self._refresh()
            except (PenstockError, psycopg.Error) as error:
                # The last known places hold. The old cell of a tenant that has moved rejects its writes.
                logger.warning("the directory of cells is away", error=str(error))

    async def _refresh(self) -> None:
        for tenant, cell, at in await db.rows(self._pools[self.home], _MOVED, (self._seen,)):
            self._places[tenant] = cell
            self._seen = at if self._seen is None else max(self._seen, at)


def add_to(made: FastAPI, cells: Mapping[int, Cell], apps: Mapping[int, FastAPI], settings: Settings) -> None:
    """Make the application of the directory's cell pass requests of other cells to theirs."""
    routed = Cells(cells, apps, settings, made.state.rate)
    own = made.router.lifespan_context

    @asynccontextmanager
    async def lifespan(app: Any) -> AsyncGenerator[Any]:
        async with own(app) as state, routed.running():
            yield state

    made.router.lifespan_context = lifespan
    made.add_middleware(Router, cells=routed)


def _away(number: int) -> Unavailable:
    return Unavailable(
        f"cell {number} cannot be reached", code="cell_unavailable", details={"retry_after_seconds": 5}
    )


def _path(scope: Scope) -> str:
    """The path below the prefix that the server is mounted at."""
    return scope["path"].removeprefix(scope.get("root_path", "").rstrip("/"))


def _credential(headers: Headers) -> str | None:
    scheme, _, token = headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else headers.get("apikey")


def _chosen(scope: Scope, headers: Headers) -> UUID | int | None:
    """The tenant or the cell that a request names."""
    if (tenant := headers.get("penstock-tenant")) is not None:
        try:
            return UUID(tenant)
        except ValueError:
            raise Invalid("Penstock-Tenant must be the id of a tenant", code="invalid_tenant") from None
    # Other values are filters of `/rest/v1` on a column of this name.
    return _number(_query_cell(scope))


def _kept(scope: Scope, headers: Headers) -> int | None:
    """The cell that the dashboard was last opened with."""
    if not _path(scope).startswith("/dashboard"):
        return None
    cookies = re.findall(rf"(?:^|;\s*){_COOKIE}=([^;]*)", headers.get("cookie", ""))
    return _number(cookies[0]) if cookies else None


def _number(text: str | None) -> int | None:
    return int(text) if text and re.fullmatch(r"[0-9]{1,4}", text) else None


def _query_cell(scope: Scope) -> str | None:
    values = parse_qs(scope.get("query_string", b"").decode("latin-1")).get("cell")
    return values[0] if values else None


def _remembering(scope: Scope, number: int, send: Send) -> Send:
    """Let the browser keep the cell that a page of the dashboard was opened with."""
    if not _path(scope).startswith("/dashboard") or _query_cell(scope) is None:
        return send

    root = scope.get("root_path", "").rstrip("/")

    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            MutableHeaders(scope=message).append(
                "set-cookie", f"{_COOKIE}={number}; Path={root}/dashboard; HttpOnly; SameSite=Lax"
            )
        await send(message)

    return sending
