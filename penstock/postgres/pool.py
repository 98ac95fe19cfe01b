"""The pool of connections, which survives a restart of the server, and transactions of one statement."""

from __future__ import annotations

import select
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, LiteralString, TypeAlias, TypeVar

import psycopg
from psycopg.rows import AsyncRowFactory
from psycopg_pool import AsyncConnectionPool

Row: TypeAlias = dict[str, Any]
T = TypeVar("T")


class Pool(AsyncConnectionPool[psycopg.AsyncConnection[Row]]):
    """A pool that never hands out a connection that the server has closed.

    The base class's `check` costs a round trip per checkout and pauses after each dead connection. Here a
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
    """Whether this idle connection is still open, as far as this machine knows."""
    if conn.closed:
        return False
    incoming = select.poll()
    incoming.register(conn.fileno(), select.POLLIN)
    if not incoming.poll(0):
        return True
    # Between two statements the server sends only notices, or closes the connection.
    try:
        await conn.execute("")
    except psycopg.Error:
        return False
    return True


@dataclass(frozen=True, slots=True)
class PoolWithSetup:
    """A pool on which each statement is a transaction of its own that begins with setup statements.

    The setup and the statement are one message, which PostgreSQL runs as one transaction: one round trip
    instead of three. Such a message has no parameters, so the driver quotes the values.
    """

    pool: Pool
    setup: LiteralString
    values: Sequence[Any]
    read_only: bool = False

    async def fetch(
        self,
        statement: LiteralString | bytes,
        arguments: Mapping[str, Any] | Sequence[Any],
        row_factory: AsyncRowFactory[T],
    ) -> list[T]:
        """The rows of the statement; those of the setup are not read."""
        # Not `pool.connection()`, whose COMMIT would end no transaction: the message is one of its own.
        conn = await self.pool.getconn()
        try:
            cursor = psycopg.AsyncClientCursor(conn, row_factory=row_factory)
            parts = (cursor.mogrify(self.setup, self.values), cursor.mogrify(statement, arguments))
            begin = "set transaction read only; " if self.read_only else ""
            await cursor.execute((begin + "; ".join(parts)).encode(conn.info.encoding))
            await cursor.set_result(-1)
            return await cursor.fetchall()
        finally:
            await self.pool.putconn(conn)
