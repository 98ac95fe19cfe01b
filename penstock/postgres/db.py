"""Access to PostgreSQL: connections, calls of Penstock's SQL functions, notifications.

Nothing here keeps session state: no prepared statements, no session locks, no settings that outlive a
transaction. So it works through a transaction pooler. The one exception is `listen`.

A call is one statement and, on a connection from the pool, one transaction. To put several calls, or a call
and your own writes, into one transaction, pass the connection that `transaction` yields.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
import math
import os
import random
import re
import socket
import time
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Generator,
    Iterator,
    Sequence,
)
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager, suppress
from decimal import Decimal
from functools import lru_cache
from typing import Any, LiteralString, TypeAlias, cast

import psycopg
import pydantic_core
import structlog
from psycopg import sql
from psycopg.rows import AsyncRowFactory, dict_row, tuple_row
from psycopg.types.json import Jsonb, set_json_loads
from psycopg_pool import AsyncConnectionPool

from penstock.errors import Invalid, PenstockError, Unavailable, from_database
from penstock.postgres.pool import Pool, PoolWithSetup, Row, T

log = structlog.get_logger("penstock.postgres.db")

Connection: TypeAlias = psycopg.AsyncConnection[Any]
SyncConnection: TypeAlias = psycopg.Connection[Any]
ExecuteLast: TypeAlias = Callable[[LiteralString, Sequence[Any]], Awaitable[None]]
ExecuteLastSync: TypeAlias = Callable[[LiteralString, Sequence[Any]], None]
Json = Jsonb
"""Marks an argument as a JSON document. A dict needs no mark; a list without it is an SQL array."""

# The server is stopping, crashed, is starting, is a standby, ended an idle session, or is out of connections.
_LOST_STATES = {"57P01", "57P02", "57P03", "25006", "57P05", "53300"}
_NAME = re.compile(r"[a-z_][a-z0-9_]*")
_CONNECTION: dict[str, Any] = {
    "autocommit": True,
    "prepare_threshold": None,
    "row_factory": dict_row,
    "connect_timeout": 10,
    # Detects within a minute that the server's machine is gone while the connection is idle.
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    # The same while sent data is not acknowledged.
    "tcp_user_timeout": 30_000,
}


class Pooled(Exception):
    """The connection goes through a pooler, but this needs a session of its own."""


class ConnectionLost(Unavailable):
    """The connection to the database broke, or none could be opened."""


Database: TypeAlias = Pool | PoolWithSetup | Connection
"""What the functions below and those of the nouns run on: a pool, or a connection of the caller."""


@asynccontextmanager
async def pool(
    dsn: str, *, name: str = "penstock", min_size: int = 1, max_size: int = 10, wait_seconds: float = 30
) -> AsyncGenerator[Pool]:
    """Open a connection pool. Raises Unavailable if the database does not answer within `wait_seconds`."""
    connections = Pool(
        dsn,
        kwargs={**_CONNECTION, "application_name": name},
        min_size=min_size,
        max_size=max_size,
        timeout=wait_seconds,
        name=name,
        configure=_use_fast_json_parser,
        # After an outage, reconnect every second instead of backing off.
        reconnect_timeout=1,
        reconnect_failed=_reconnect,
        open=False,
    )
    try:
        with _translated():
            await connections.open(wait=True, timeout=wait_seconds)
        yield connections
    finally:
        await connections.close()


async def retry_until_available(
    action: Callable[[], Awaitable[None]],
    *,
    wait_seconds: float = 30,
    is_stopped: Callable[[], bool] = lambda: False,
) -> None:
    """Run an action, again while it raises Unavailable; after `wait_seconds`, or once stopped, raise that."""
    deadline = time.monotonic() + wait_seconds
    while True:
        try:
            return await action()
        except Unavailable as error:
            if time.monotonic() > deadline or is_stopped():
                raise
            log.warning("database.away", error=str(error))
        await asyncio.sleep(random.uniform(0.2, 1))


async def _reconnect(connections: AsyncConnectionPool[Any]) -> None:
    if not connections.closed:
        await connections.check()


async def _use_fast_json_parser(connection: psycopg.AsyncConnection[Row]) -> None:
    # A claim returns hundreds of inputs; this parser takes a quarter of the standard one's time.
    set_json_loads(pydantic_core.from_json, connection)


@asynccontextmanager
async def answering(database: Database, seconds: float) -> AsyncGenerator[Connection]:
    """A connection that is broken off, with ConnectionLost, unless the block ends in time.

    For what has to go on when a connection is dead without this machine knowing.
    """
    with _translated():
        async with connection(database) as conn:
            timer = asyncio.get_running_loop().call_later(seconds, abort, conn)
            try:
                yield conn
            finally:
                timer.cancel()


def abort(conn: SyncConnection | Connection) -> None:
    """Break a connection while another thread or task waits for an answer on it."""
    with suppress(OSError, psycopg.Error), socket.socket(fileno=os.dup(conn.fileno())) as copy:
        copy.shutdown(socket.SHUT_RDWR)


def connect(dsn: str, *, name: str = "penstock", wait_seconds: float = 30) -> SyncConnection:
    """A connection for code outside the event loop, such as the heartbeat thread."""
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


def remote_host(dsn: str) -> str | None:
    """The host of the database; None if that is this machine."""
    with connect(dsn, wait_seconds=0) as conn:
        address, host = conn.info.hostaddr, conn.info.host
    # A connection through a Unix socket has no address.
    return None if not address or ipaddress.ip_address(address).is_loopback else host or address


@asynccontextmanager
async def transaction(database: Database) -> AsyncGenerator[Connection]:
    """A transaction on a connection from the pool; on a given connection, a savepoint in its transaction."""
    with _translated():
        async with connection(database) as conn, conn.transaction():
            yield conn


@asynccontextmanager
async def pipelined_commit(pool: Pool) -> AsyncGenerator[tuple[Connection, ExecuteLast]]:
    """A transaction on a connection from the pool, and a function that executes its last statement.

    That statement is sent together with the COMMIT. So a process that dies in between leaves no open
    transaction whose locks block others. The statement's rows cannot be read; its errors are raised when the
    context ends.
    """
    with _translated():
        async with pool.connection() as conn, AsyncExitStack() as pipeline, conn.transaction():

            async def execute_last(statement: LiteralString, arguments: Sequence[Any]) -> None:
                await pipeline.enter_async_context(conn.pipeline())
                await conn.execute(statement, arguments)

            yield conn, execute_last


@contextmanager
def pipelined_commit_sync(conn: SyncConnection) -> Generator[ExecuteLastSync]:
    """`pipelined_commit` on a connection from `connect`."""
    with _translated(), ExitStack() as pipeline, conn.transaction():

        def execute_last(statement: LiteralString, arguments: Sequence[Any]) -> None:
            pipeline.enter_context(conn.pipeline())
            conn.execute(statement, arguments)

        yield execute_last


@asynccontextmanager
async def transaction_with_setup(
    pool: Pool, statements: LiteralString, values: Sequence[Any], *, read_only: bool = False
) -> AsyncGenerator[Connection]:
    """A transaction on a connection from the pool that begins with these statements.

    They are sent together with the BEGIN, in one message. Such a message has no parameters, so the driver
    quotes the values. (A pipeline would do the same, but costs more than the round trip that it saves.)
    """
    begin: LiteralString = "begin read only; " if read_only else "begin; "
    with _translated():
        # The pool's context manager commits or rolls back.
        async with AsyncExitStack() as stack:
            conn = await stack.enter_async_context(pool.connection())
            try:
                await psycopg.AsyncClientCursor(conn).execute(begin + statements, values)
            except psycopg.OperationalError as error:
                if not _is_connection_lost(error):
                    raise
                # Nothing was committed, so it is safe to begin again on another connection.
                await stack.aclose()
                conn = await stack.enter_async_context(pool.connection())
                await psycopg.AsyncClientCursor(conn).execute(begin + statements, values)
            yield conn


@asynccontextmanager
async def connection(database: Database) -> AsyncGenerator[Connection]:
    """A connection from the pool, or the given connection itself."""
    match database:
        case AsyncConnectionPool():
            async with database.connection() as conn:
                yield conn
        case PoolWithSetup(pool, setup, values, read_only):
            async with transaction_with_setup(pool, setup, values, read_only=read_only) as conn:
                yield conn
        case _:
            yield database


async def call(database: Database, function: str, **arguments: Any) -> list[Row]:
    """Call `penstock.<function>` with named arguments; returns its rows."""
    statement = _statement(function, tuple(arguments))
    with _translated(arguments):
        return await _fetch(database, statement, _adapted(arguments), dict_row)


async def rows(
    database: Database, statement: LiteralString, arguments: Sequence[Any], *, binary: bool = False
) -> list[tuple[Any, ...]]:
    """Run a fixed statement; returns its rows as tuples. For the hot path and for reading views."""
    with _translated({f"argument {n}": value for n, value in enumerate(arguments)}):
        return await _fetch(database, statement, arguments, tuple_row, binary=binary)


async def value(database: Database, function: str, **arguments: Any) -> Any:
    """Call a function that returns a single value."""
    rows = await call(database, function, **arguments)
    return next(iter(rows[0].values())) if rows else None


async def document(database: Database, function: str, **arguments: Any) -> Any:
    """Call a function that returns a JSON document with amounts of money: fractions become Decimals."""
    text = sql.SQL("select ({})::text").format(_call(function, tuple(arguments))).as_bytes()
    with _translated(arguments):
        [(found,)] = await _fetch(database, text, _adapted(arguments), tuple_row)
    return json.loads(found, parse_float=Decimal)


async def _fetch(
    database: Database,
    statement: LiteralString | bytes,
    arguments: Row | Sequence[Any],
    row_factory: AsyncRowFactory[T],
    *,
    binary: bool = False,
) -> list[T]:
    if isinstance(database, PoolWithSetup):
        return await database.fetch(statement, arguments, row_factory)
    async with connection(database) as conn, conn.cursor(row_factory=row_factory, binary=binary) as cursor:
        await cursor.execute(statement, arguments)
        return await cursor.fetchall()


def exact_json(document: Any) -> Json:
    """A JSON document that keeps every digit of its Decimals, as JSON numbers."""
    return Json(document, dumps=_dump)


def _dump(value: Any) -> str:
    match value:
        case Decimal():
            return format(value, "f")
        case dict():
            items = cast("dict[str, Any]", value).items()
            return "{" + ", ".join(f"{json.dumps(name)}: {_dump(item)}" for name, item in items) + "}"
        case list():
            return "[" + ", ".join(_dump(item) for item in cast("list[Any]", value)) + "]"
        case _:
            return json.dumps(value)


def call_sync(conn: SyncConnection, function: str, **arguments: Any) -> list[Row]:
    """`call` on a connection from `connect`."""
    with _translated(arguments), conn.cursor(row_factory=dict_row) as cursor:
        return cursor.execute(_statement(function, tuple(arguments)), _adapted(arguments)).fetchall()


def rows_sync(
    conn: SyncConnection, statement: LiteralString, arguments: Sequence[Any]
) -> list[tuple[Any, ...]]:
    """`rows` on a connection from `connect`."""
    named = {f"argument {n}": value for n, value in enumerate(arguments)}
    with _translated(named), conn.cursor(row_factory=tuple_row) as cursor:
        return cursor.execute(statement, arguments).fetchall()


async def listen(
    dsn: str, channel: str, *, name: str = "penstock listen", is_pooled_refused: bool = False
) -> AsyncGenerator[str]:
    """Yields the payloads notified on a channel, through its own connection; first "" once it listens.

    This needs a session. A transaction pooler accepts LISTEN on one of its own connections and delivers
    nothing; with `is_pooled_refused`, any pooler raises Pooled before that. Raises Unavailable when the
    connection breaks: the caller then calls this again and checks what it missed.
    """
    with _translated():
        async with await psycopg.AsyncConnection.connect(dsn, **_CONNECTION, application_name=name) as conn:
            if is_pooled_refused and await _is_pooled(conn):
                raise Pooled
            await conn.execute(sql.SQL("listen {}").format(sql.Identifier(channel)))
            yield ""
            async for notification in conn.notifies():
                yield notification.payload


async def _is_pooled(conn: Connection) -> bool:
    """Whether the server process that runs our statements is another one than we connected to."""
    cursor = await conn.execute("select pg_backend_pid() as pid")
    row = await cursor.fetchone()
    return row is None or row["pid"] != conn.info.backend_pid


@lru_cache(1000)
def _statement(function: str, names: tuple[str, ...]) -> bytes:
    """The call as text. It is cached because composing it takes as long as a round trip."""
    return sql.SQL("select * from {}").format(_call(function, names)).as_bytes()


def _call(function: str, names: tuple[str, ...]) -> sql.Composed:
    for name in (function, *names):
        if not _NAME.fullmatch(name):
            raise ValueError(f"{name!r} is not a valid name of an SQL function or argument")
    return sql.SQL("{}({})").format(
        sql.Identifier("penstock", function),
        sql.SQL(", ").join(sql.SQL("{} => {}").format(sql.Identifier(n), sql.Placeholder(n)) for n in names),
    )


def _adapted(arguments: Row) -> Row:
    return {name: Jsonb(v) if isinstance(v, dict) else v for name, v in arguments.items()}


@contextmanager
def _translated(arguments: Row | None = None) -> Generator[None]:
    """Raise the driver's errors as the errors of Penstock that they stand for."""
    try:
        yield
    except psycopg.Error as error:
        translated = _translate(error, arguments or {})
        if translated is None:
            raise
        raise translated from error
    except UnicodeEncodeError as error:
        raise _unstorable_argument(arguments or {}) or Invalid(str(error)) from error


def _is_connection_lost(error: psycopg.Error) -> bool:
    state = error.sqlstate
    if state is None:
        return isinstance(error, psycopg.OperationalError)
    return state.startswith("08") or state in _LOST_STATES


def _translate(error: psycopg.Error, arguments: Row) -> PenstockError | None:
    if _is_connection_lost(error):
        return ConnectionLost(str(error))
    if isinstance(error, psycopg.DataError) and (invalid := _unstorable_argument(arguments)):
        return invalid
    return from_database(error)


def _unstorable_argument(arguments: Row) -> Invalid | None:
    """An error that names the first argument PostgreSQL cannot store. Called only after a rejection."""
    for name, value in arguments.items():
        for path, found in _unstorable_values(
            value.obj if isinstance(value, Jsonb) else value, name.removeprefix("p_")
        ):
            return Invalid(f"{path} contains {found}", code="unstorable_text", details={"field": path})
    return None


def _unstorable_values(value: object, path: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, str):
        if "\0" in value:
            yield path, "a NUL character"
        elif any("\ud800" <= character <= "\udfff" for character in value):
            yield path, "an unpaired surrogate"
    elif isinstance(value, float) and not math.isfinite(value):
        yield path, "a number that is not finite (NaN or infinity)"
    elif isinstance(value, dict):
        for key, item in cast("dict[object, object]", value).items():
            yield from _unstorable_values(str(key), f"a key of {path}")
            yield from _unstorable_values(item, f"{path}.{key}")
    elif isinstance(value, list | tuple):
        for index, item in enumerate(cast("list[object]", value)):
            yield from _unstorable_values(item, f"{path}[{index}]")
