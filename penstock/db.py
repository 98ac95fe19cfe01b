"""The way to PostgreSQL: connections, calls of our SQL functions, notifications.

Nothing here holds session state: no prepared statements, no session locks, no settings that outlive a
transaction. So a transaction pooler may stand between. `listen` is the exception and says so.

A call is one statement and, on a connection from the pool, one transaction. To put several calls, or a call
and one's own writes, into one transaction, pass the connection that `transaction` yields.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
import math
import random
import re
import select
import time
from collections import deque
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Coroutine,
    Generator,
    Iterable,
    Iterator,
    Sequence,
)
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from decimal import Decimal
from functools import lru_cache
from itertools import islice
from typing import Any, LiteralString, TypeAlias, cast

import psycopg
import pydantic_core
import structlog
from psycopg import sql
from psycopg.rows import dict_row, tuple_row
from psycopg.types.json import Jsonb, set_json_loads
from psycopg_pool import AsyncConnectionPool

from penstock.errors import Invalid, PenstockError, Unavailable, from_database

log = structlog.get_logger("penstock.db")

Row: TypeAlias = dict[str, Any]
Connection: TypeAlias = psycopg.AsyncConnection[Any]
SyncConnection: TypeAlias = psycopg.Connection[Any]
Say: TypeAlias = Callable[[LiteralString, Sequence[Any]], Awaitable[None]]
SaySync: TypeAlias = Callable[[LiteralString, Sequence[Any]], None]
Json = Jsonb
"""Marks an argument as a JSON document. A dict is one anyway; a list is an SQL array unless marked."""

# The server stops, crashed, starts, is a standby, ended an idle session, or has no connection to spare.
_LOST_STATES = {"57P01", "57P02", "57P03", "25006", "57P05", "53300"}
_PART_BYTES = 8_000_000
_NAME = re.compile(r"[a-z_][a-z0-9_]*")
_CONNECTION: dict[str, Any] = {
    "autocommit": True,
    "prepare_threshold": None,
    "row_factory": dict_row,
    "connect_timeout": 10,
    # A peer that vanished without a word is noticed in about a minute.
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    # The same for one that vanished with our words on the way.
    "tcp_user_timeout": 30_000,
}


class Pooled(Exception):
    """There is a pooler between, and this needs a session of its own."""


class ConnectionLost(Unavailable):
    """The connection to the database is gone, or none can be had."""


class Pool(AsyncConnectionPool[psycopg.AsyncConnection[Row]]):
    """A pool that never hands out a connection which the server has closed.

    The pool's own `check` costs a round trip per checkout and pauses after each dead connection. Here a
    checkout costs one poll of the socket, and a restart of the server costs one new connection.
    """

    async def getconn(self, timeout: float | None = None) -> psycopg.AsyncConnection[Row]:  # noqa: ASYNC109 (the base class's)
        while True:
            conn = await super().getconn(timeout)
            if await _is_alive(conn):
                return conn
            await conn.close()
            # The pool replaces a closed connection in the background.
            await self.putconn(conn)


async def _is_alive(conn: psycopg.AsyncConnection[Any]) -> bool:
    """Whether the server still serves this idle connection, as far as this machine knows."""
    if conn.closed:
        return False
    incoming = select.poll()
    incoming.register(conn.fileno(), select.POLLIN)
    if not incoming.poll(0):
        return True
    # Between two statements there is nothing to receive but a notice, or the end of the connection.
    try:
        await conn.execute("")
    except psycopg.Error:
        return False
    return True


@asynccontextmanager
async def pool(
    dsn: str, *, name: str = "penstock", min_size: int = 1, max_size: int = 10, wait_seconds: float = 30
) -> AsyncGenerator[Pool]:
    """An open pool of connections. Waits for the database at most so long, then raises Unavailable."""
    connections = Pool(
        dsn,
        kwargs={**_CONNECTION, "application_name": name},
        min_size=min_size,
        max_size=max_size,
        timeout=wait_seconds,
        name=name,
        configure=_read_json_quickly,
        # After an outage: try every second, not less and less often.
        reconnect_timeout=1,
        reconnect_failed=_try_again,
        open=False,
    )
    try:
        with _translated():
            await connections.open(wait=True, timeout=wait_seconds)
        yield connections
    finally:
        await connections.close()


async def once_it_answers(
    begin: Callable[[], Awaitable[None]],
    *,
    wait_seconds: float = 30,
    is_stopped: Callable[[], bool] = lambda: False,
) -> None:
    """Do it, and again when the database went away meanwhile; at most so long, then raises Unavailable."""
    deadline = time.monotonic() + wait_seconds
    while True:
        try:
            return await begin()
        except Unavailable as error:
            if time.monotonic() > deadline or is_stopped():
                raise
            log.warning("database.away", error=str(error))
        await asyncio.sleep(random.uniform(0.2, 1))


async def _try_again(connections: AsyncConnectionPool[Any]) -> None:
    if not connections.closed:
        await connections.check()


async def _read_json_quickly(connection: psycopg.AsyncConnection[Row]) -> None:
    # A claim brings hundreds of inputs: this reader takes a quarter of the standard one's time.
    set_json_loads(pydantic_core.from_json, connection)


def connect(dsn: str, *, name: str = "penstock", wait_seconds: float = 30) -> SyncConnection:
    """A connection for code outside the event loop, such as the heartbeat's thread."""
    deadline = time.monotonic() + wait_seconds
    pause = 0.1
    while True:
        try:
            return psycopg.connect(dsn, **_CONNECTION, application_name=name)
        except psycopg.OperationalError as error:
            if time.monotonic() + pause > deadline:
                raise ConnectionLost(f"The database cannot be reached: {error}") from error
        time.sleep(pause * random.uniform(0.5, 1))
        pause = min(pause * 2, 5)


def place(dsn: str) -> str | None:
    """The machine that the database is on, if that is another one than this."""
    with connect(dsn, wait_seconds=0) as held:
        address, host = held.info.hostaddr, held.info.host
    # Without an address it is a socket in the file system.
    return None if not address or ipaddress.ip_address(address).is_loopback else host or address


@asynccontextmanager
async def transaction(where: Pool | Connection) -> AsyncGenerator[Connection]:
    """One transaction: of its own on a connection from the pool, a savepoint inside the caller's."""
    with _translated():
        async with connection(where) as held, held.transaction():
            yield held


@asynccontextmanager
async def ending(pool: Pool) -> AsyncGenerator[tuple[Connection, Say]]:
    """One transaction, on a connection from the pool, and how to say its last statement.

    That goes to the database together with the commit, so that whoever vanishes meanwhile keeps nobody
    waiting for what it locks. What it returns is not to be had; what it raises, the transaction does.
    """
    with _translated():
        async with pool.connection() as held, AsyncExitStack() as last, held.transaction():

            async def say(statement: LiteralString, arguments: Sequence[Any]) -> None:
                await last.enter_async_context(held.pipeline())
                await held.execute(statement, arguments)

            yield held, say


@contextmanager
def ending_sync(held: SyncConnection) -> Generator[SaySync]:
    """`ending` on a connection from `connect`."""
    with _translated(), ExitStack() as last, held.transaction():

        def say(statement: LiteralString, arguments: Sequence[Any]) -> None:
            last.enter_context(held.pipeline())
            held.execute(statement, arguments)

        yield say


@asynccontextmanager
async def beginning(
    pool: Pool, statements: LiteralString, values: Sequence[Any], *, read_only: bool = False
) -> AsyncGenerator[Connection]:
    """One transaction, on a connection from the pool, that begins with these statements.

    They are sent together with the BEGIN, in one message. That has no parameters, so the driver quotes the
    values itself. (Its pipelines would do the same, and cost more than the round trip that they save.)
    """
    begin: LiteralString = "begin read only; " if read_only else "begin; "
    with _translated():
        # The pool's context commits, or rolls back.
        async with AsyncExitStack() as stack:
            conn = await stack.enter_async_context(pool.connection())
            try:
                await psycopg.AsyncClientCursor(conn).execute(begin + statements, values)
            except psycopg.OperationalError as error:
                if not _is_connection_lost(error):
                    raise
                # Nothing that lasts was sent: the same again on another connection.
                await stack.aclose()
                conn = await stack.enter_async_context(pool.connection())
                await psycopg.AsyncClientCursor(conn).execute(begin + statements, values)
            yield conn


@asynccontextmanager
async def connection(where: Pool | Connection) -> AsyncGenerator[Connection]:
    """A connection from the pool, or the one given."""
    if isinstance(where, AsyncConnectionPool):
        async with where.connection() as held:
            yield held
    else:
        yield where


async def call(where: Pool | Connection, function: str, **arguments: Any) -> list[Row]:
    """Call `penstock.<function>` with named arguments; returns its rows."""
    statement = _statement(function, tuple(arguments))
    with _translated(arguments):
        async with connection(where) as held, held.cursor(row_factory=dict_row) as cursor:
            await cursor.execute(statement, _adapted(arguments))
            return await cursor.fetchall()


async def rows(
    where: Pool | Connection, statement: LiteralString, arguments: Sequence[Any], *, binary: bool = False
) -> list[tuple[Any, ...]]:
    """Run a fixed statement; its rows as plain tuples. For the hot path, and for reading views."""
    with _translated({f"argument {n}": value for n, value in enumerate(arguments)}):
        async with connection(where) as held, held.cursor(row_factory=tuple_row, binary=binary) as cursor:
            await cursor.execute(statement, arguments)
            return await cursor.fetchall()


async def value(where: Pool | Connection, function: str, **arguments: Any) -> Any:
    """Call a function that returns a single value."""
    rows = await call(where, function, **arguments)
    return next(iter(rows[0].values())) if rows else None


async def document(where: Pool | Connection, function: str, **arguments: Any) -> Any:
    """Call a function that returns a document in which there are amounts: its fractions become Decimals."""
    text = sql.SQL("select ({})::text").format(_call(function, tuple(arguments)))
    with _translated(arguments):
        async with connection(where) as held, held.cursor(row_factory=tuple_row) as cursor:
            await cursor.execute(text, _adapted(arguments))
            [(found,)] = await cursor.fetchall()
    return json.loads(found, parse_float=Decimal)


async def send_in_parts(
    items: Iterable[Any],
    send: Callable[[Json], Coroutine[Any, Any, Any]],
    *,
    most: int,
    dumps: Callable[[Any], str] = json.dumps,
    in_thread: bool = False,
) -> int:
    """Send items as JSON arrays of at most so many, or of a few megabytes; returns how many parts it were.

    While the database takes one part, the next is read: in a thread, if reading it may take long.
    """
    sending: asyncio.Task[Any] | None = None
    count = 0
    try:
        async for part in _parts(items, most, dumps, in_thread):
            if sending is not None:
                await sending
            sending = asyncio.create_task(send(part))
            count += 1
        if sending is not None:
            await sending
    finally:
        # Whatever went wrong, nothing is under way when the transaction ends.
        if sending is not None and not sending.done():
            await asyncio.wait([sending])
    return count


async def _parts(
    items: Iterable[Any], most: int, dumps: Callable[[Any], str], in_thread: bool
) -> AsyncGenerator[Json]:
    stream = iter(items)
    while True:
        part: list[Any] = []
        texts: list[str] = []
        filling = _filling(part, texts, stream, most, dumps)
        if in_thread:
            await asyncio.to_thread(deque, filling, 0)
        else:
            for _ in filling:
                # So that what is being sent meanwhile goes on.
                await asyncio.sleep(0)
        if not part:
            return
        yield _joined(part, texts)


def _filling(
    part: list[Any], texts: list[str], stream: Iterator[Any], most: int, dumps: Callable[[Any], str]
) -> Iterator[None]:
    """Read a part, step by step. Each item is serialised once."""
    size, step = 0, 1
    while size < _PART_BYTES and (some := list(islice(stream, min(step, most - len(part))))):
        part += some
        texts.append(dumps(some)[1:-1])
        size += len(texts[-1])
        # Large items are read one by one, so that a part is never much larger than it should be.
        step = min(100, 2 * step) if len(texts[-1]) < _PART_BYTES // 100 else max(1, step // 2)
        yield


def _joined(part: list[Any], texts: list[str]) -> Json:
    # The items themselves go along so that a refusal can name the field.
    return Json(part, dumps=lambda _: f"[{','.join(texts)}]")


def exact(document: Any) -> Json:
    """A JSON document in which Decimals are numbers, with every digit they have."""
    return Json(document, dumps=_dump)


def _dump(value: Any) -> str:
    match value:
        case Decimal():
            return format(value, "f")
        case dict():
            items = cast("dict[str, Any]", value).items()
            return "{" + ", ".join(f"{json.dumps(name)}: {_dump(item)}" for name, item in items) + "}"
        case _:
            return json.dumps(value)


def call_sync(held: SyncConnection, function: str, **arguments: Any) -> list[Row]:
    """`call` on a connection from `connect`."""
    with _translated(arguments), held.cursor(row_factory=dict_row) as cursor:
        return cursor.execute(_statement(function, tuple(arguments)), _adapted(arguments)).fetchall()


def rows_sync(
    held: SyncConnection, statement: LiteralString, arguments: Sequence[Any]
) -> list[tuple[Any, ...]]:
    """`rows` on a connection from `connect`."""
    named = {f"argument {n}": value for n, value in enumerate(arguments)}
    with _translated(named), held.cursor(row_factory=tuple_row) as cursor:
        return cursor.execute(statement, arguments).fetchall()


async def listen(
    dsn: str, channel: str, *, name: str = "penstock listen", is_pooled_refused: bool = False
) -> AsyncGenerator[str]:
    """Payloads notified on a channel, from a connection of its own; first an empty one once it listens.

    Needs a session. A transaction pooler takes the LISTEN, leaves it behind on some connection of its own,
    and delivers nothing: `is_pooled_refused` raises Pooled before that, behind any pooler. Ends with
    Unavailable when the connection does: whoever listens connects again, and looks for what was missed.
    """
    with _translated():
        async with await psycopg.AsyncConnection.connect(dsn, **_CONNECTION, application_name=name) as held:
            if is_pooled_refused and await _is_pooled(held):
                raise Pooled
            await held.execute(sql.SQL("listen {}").format(sql.Identifier(channel)))
            yield ""
            async for notification in held.notifies():
                yield notification.payload


async def _is_pooled(held: Connection) -> bool:
    """Whether it is another process that runs our statements than the one that let us in."""
    cursor = await held.execute("select pg_backend_pid() as pid")
    row = await cursor.fetchone()
    return row is None or row["pid"] != held.info.backend_pid


@lru_cache(1000)
def _statement(function: str, names: tuple[str, ...]) -> bytes:
    """The call as text. Putting it together takes as long as a round trip, so it is kept."""
    return sql.SQL("select * from {}").format(_call(function, names)).as_bytes()


def _call(function: str, names: tuple[str, ...]) -> sql.Composed:
    for name in (function, *names):
        if not _NAME.fullmatch(name):
            raise ValueError(f"{name!r} is not the name of an SQL function or argument")
    return sql.SQL("{}({})").format(
        sql.Identifier("penstock", function),
        sql.SQL(", ").join(sql.SQL("{} => {}").format(sql.Identifier(n), sql.Placeholder(n)) for n in names),
    )


def _adapted(arguments: Row) -> Row:
    return {name: Jsonb(v) if isinstance(v, dict) else v for name, v in arguments.items()}


@contextmanager
def _translated(arguments: Row | None = None) -> Generator[None]:
    try:
        yield
    except psycopg.Error as error:
        meaning = _meaning(error, arguments or {})
        if meaning is None:
            raise
        raise meaning from error
    except UnicodeEncodeError as error:
        raise _unstorable(arguments or {}) or Invalid(str(error)) from error


def _is_connection_lost(error: psycopg.Error) -> bool:
    state = error.sqlstate
    if state is None:
        return isinstance(error, psycopg.OperationalError)
    return state.startswith("08") or state in _LOST_STATES


def _meaning(error: psycopg.Error, arguments: Row) -> PenstockError | None:
    if _is_connection_lost(error):
        return ConnectionLost(str(error))
    if isinstance(error, psycopg.DataError) and (unstorable := _unstorable(arguments)):
        return unstorable
    return from_database(error)


def _unstorable(arguments: Row) -> Invalid | None:
    """Which argument holds what PostgreSQL cannot store; looked for only after it was refused."""
    for name, value in arguments.items():
        for path, problem in _problems(
            value.obj if isinstance(value, Jsonb) else value, name.removeprefix("p_")
        ):
            return Invalid(f"{path} holds {problem}", code="unstorable_text", details={"field": path})
    return None


def _problems(value: object, path: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, str):
        if "\0" in value:
            yield path, "a NUL character"
        elif any("\ud800" <= character <= "\udfff" for character in value):
            yield path, "half of a surrogate pair"
    elif isinstance(value, float) and not math.isfinite(value):
        yield path, "a number that is not finite"
    elif isinstance(value, dict):
        for key, item in cast("dict[object, object]", value).items():
            yield from _problems(str(key), f"a key of {path}")
            yield from _problems(item, f"{path}.{key}")
    elif isinstance(value, list | tuple):
        for index, item in enumerate(cast("list[object]", value)):
            yield from _problems(item, f"{path}[{index}]")
