"""Streams of events: how many may be open at once, and one loop that asks the database for all of them."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import suppress
from typing import ClassVar, Generic, Protocol, TypeVar
from uuid import UUID

import structlog
from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from penstock.api.callers import Caller, Callers
from penstock.api.limits import Limits
from penstock.errors import Limited, Unavailable

log = structlog.get_logger("penstock.api")

RETRY_SECONDS = 2
KEEP_ALIVE_SECONDS = 15.0
FIRST_LINE = f"retry: {RETRY_SECONDS * 1000}\n\n"
STILL_HERE = ": still here\n\n"
# Who lost the right to look is noticed within so long.
CHECK_SECONDS = 60.0


class Watching(Protocol):
    """Somebody with an open stream."""

    caller: Caller

    @property
    def tenant_id(self) -> UUID | None:
        """Whose jobs it is about; None: everybody's."""


W = TypeVar("W", bound=Watching)


class Streams(ABC, Generic[W]):
    """The open streams of one kind in this process. While there are any, they are asked for together."""

    TICK_SECONDS: ClassVar[float]

    def __init__(self, callers: Callers, limits: Limits) -> None:
        self._callers = callers
        self._limits = limits
        self._watchers: set[W] = set()
        self._counts: Counter[str | UUID | None] = Counter()
        self._running: asyncio.Task[None] | None = None

    def add(self, watcher: W) -> None:
        """Tell it from now on, unless there are too many of them."""
        wait = {"retry_after_seconds": RETRY_SECONDS}
        if len(self._watchers) >= self._limits.streams:
            raise Unavailable("too many streams of events are open here", details=wait)
        if self._counts[watcher.caller.name] >= self._limits.streams_per_caller:
            raise Limited(
                f"you have {self._limits.streams_per_caller} streams of events open",
                hint="One stream of a tenant tells of all its jobs.",
                details=wait,
            )
        if watcher.tenant_id and self._counts[watcher.tenant_id] >= self._limits.streams_per_tenant:
            raise Limited("too many streams of events of this tenant are open", details=wait)
        self._watchers.add(watcher)
        self._counts.update((watcher.caller.name, watcher.tenant_id))
        if self._running is None or self._running.done():
            self._begin()
            self._running = asyncio.create_task(self._run(), name="streams")

    def remove(self, watcher: W) -> None:
        self._watchers.remove(watcher)
        for counted in (watcher.caller.name, watcher.tenant_id):
            self._counts[counted] -= 1
            if not self._counts[counted]:
                del self._counts[counted]

    async def close(self) -> None:
        if self._running is not None:
            self._running.cancel()
            with suppress(asyncio.CancelledError):
                await self._running

    async def _run(self) -> None:
        while self._watchers:
            try:
                await self._look()
            except Exception as error:
                # The database may be back in a moment; the streams stay open until then.
                log.warning("streams.look_failed", error=str(error))
            await asyncio.sleep(self.TICK_SECONDS)

    def _begin(self) -> None:
        """The first of them is there after none was."""

    @abstractmethod
    async def _look(self) -> None:
        """Ask, and tell those who watch."""


async def is_news(event: asyncio.Event) -> bool:
    """Wait for something to tell, but not for longer than a connection stays open without a word."""
    try:
        return await asyncio.wait_for(event.wait(), KEEP_ALIVE_SECONDS)
    except TimeoutError:
        return False


class EventStream(StreamingResponse):
    """Events as a browser's EventSource reads them."""

    media_type = "text/event-stream"


class Watched(EventStream, Generic[W]):
    """A stream that is told what changes, until it ends."""

    def __init__(self, streams: Streams[W], watcher: W, lines: AsyncGenerator[str]) -> None:
        super().__init__(lines, headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        self._streams, self._watcher = streams, watcher
        streams.add(watcher)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            # Also when it never came to the first line.
            self._streams.remove(self._watcher)
