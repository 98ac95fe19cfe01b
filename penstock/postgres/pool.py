"""The pool of connections, which survives a restart of the server."""

from __future__ import annotations

import select
from typing import Any, TypeAlias

import psycopg
from psycopg_pool import AsyncConnectionPool

Row: TypeAlias = dict[str, Any]


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
