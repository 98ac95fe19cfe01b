"""The connections of an app: a pool per event loop, opened when first needed, and the loop of sync code."""

from __future__ import annotations

import asyncio
import atexit
import threading
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack, suppress
from typing import Any, TypeVar

from penstock.postgres import db

R = TypeVar("R")
_EXIT_SECONDS = 5


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


class LoopThread:
    """A thread whose event loop runs coroutines for synchronous code; `close_in_loop` is its last."""

    def __init__(self, close_in_loop: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._close_in_loop = close_in_loop
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def block(self, work: Coroutine[Any, Any, R]) -> R:
        """Run a coroutine and wait for its result."""
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(
                    target=self._loop.run_forever, name="penstock app", daemon=True
                )
                self._thread.start()
                atexit.register(self._close_at_exit)
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def close(self) -> None:
        """End the loop and its thread. A later `block` starts new ones."""
        loop, thread = self._loop, self._thread
        if loop is not None and thread is not None:
            atexit.unregister(self._close_at_exit)
            self.block(self._close_in_loop())
            self._loop = self._thread = None
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.close()

    def _close_at_exit(self) -> None:
        """Close what a program left open, which would otherwise print warnings when Python ends."""
        loop, thread = self._loop, self._thread
        # A forked process has the loop but not its thread.
        if loop is None or thread is None or not thread.is_alive():
            return
        closing = asyncio.run_coroutine_threadsafe(self._close_in_loop(), loop)
        with suppress(Exception):  # the program has ended; an unreachable database must not hold it up
            closing.result(_EXIT_SECONDS)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(_EXIT_SECONDS)
        if not thread.is_alive():
            loop.close()
