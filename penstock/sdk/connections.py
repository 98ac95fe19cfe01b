"""An app's connections: one pool per event loop, opened when first needed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack

from penstock.postgres import db


class LoopConnections:
    """An app's connections in one event loop."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._stack = AsyncExitStack()
        self._pool: db.Pool | None = None

    async def get(self, dsn: Callable[[], str]) -> db.Pool:
        if self._pool is None:
            async with self._lock:
                if self._pool is None:
                    opening = db.pool(await asyncio.to_thread(dsn), name="penstock app", max_size=4)
                    self._pool = await self._stack.enter_async_context(opening)
        return self._pool

    async def close(self) -> None:
        await self._stack.aclose()
