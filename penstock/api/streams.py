"""Event streams: limits on open streams, and one loop that queries the database for all of them."""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import suppress
from typing import Any, ClassVar, Generic, Protocol, TypeVar
from uuid import UUID
from weakref import WeakSet

import structlog
from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from penstock.api.callers import Caller, Callers
from penstock.api.limits import Limits
from penstock.errors import Limited, Unavailable
from penstock.postgres import db

log = structlog.get_logger("penstock.api")

RETRY_SECONDS = 2
KEEP_ALIVE_SECONDS = 15.0
FIRST_LINE = f"retry: {RETRY_SECONDS * 1000}\n\n"
STILL_HERE = ": still here\n\n"
CHECK_SECONDS = 60.0
"""How often permissions of open streams are checked although no membership or key has changed."""


class Watching(Protocol):
    """A caller with an open stream."""

    caller: Caller

    @property
    def tenant_id(self) -> UUID | None:
        """The tenant whose jobs are watched; None for all tenants."""

    def refuse(self) -> None:
        """End the stream: its caller has lost the permission."""


W = TypeVar("W", bound=Watching)
_OF_PROCESS: WeakSet[Streams[Any]] = WeakSet()


class Streams(ABC, Generic[W]):
    """The open streams of one kind in this process. One loop queries for all of them while there are any."""

    TICK_SECONDS: ClassVar[float]

    def __init__(self, callers: Callers, limits: Limits) -> None:
        self._callers = callers
        self._limits = limits
        self._watchers: set[W] = set()
        self._counts: Counter[str | UUID | None] = Counter()
        self._running: asyncio.Task[None] | None = None
        self._checked_at = 0.0
        self._changes: set[int] = set()
        _OF_PROCESS.add(self)

    def add(self, watcher: W) -> None:
        """Add a watcher. Raises Limited or Unavailable if there are too many."""
        wait = {"retry_after_seconds": RETRY_SECONDS}
        if len(self._watchers) >= self._limits.streams:
            raise Unavailable("too many event streams are open on this server", details=wait)
        if self._counts[watcher.caller.name] >= self._limits.streams_per_caller:
            raise Limited(
                f"at most {self._limits.streams_per_caller} event streams per caller",
                hint="Use one stream per tenant (/api/events): it reports all jobs of the tenant.",
                details=wait,
            )
        if watcher.tenant_id and self._counts[watcher.tenant_id] >= self._limits.streams_per_tenant:
            raise Limited("too many event streams are open for this tenant", details=wait)
        self._watchers.add(watcher)
        self._counts.update((watcher.caller.name, watcher.tenant_id))
        if self._running is None or self._running.done():
            # The watcher was just checked.
            self._checked_at = time.monotonic()
            self._running = asyncio.create_task(self._run(), name="streams")

    def remove(self, watcher: W) -> None:
        self._watchers.remove(watcher)
        for counted in (watcher.caller.name, watcher.tenant_id):
            self._counts[counted] -= 1
            if not self._counts[counted]:
                del self._counts[counted]

    def end_all(self) -> None:
        """End all streams without an event: clients connect again."""
        for watcher in self._watchers:
            watcher.refuse()

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
                # The database may be back soon; the streams stay open until then.
                log.warning("streams.look_failed", error=str(error))
            await asyncio.sleep(self.TICK_SECONDS)

    async def check_access(self, conn: db.Connection) -> None:
        """End streams whose callers lost their permission, as soon as a membership or key has changed."""
        rows = await db.rows(conn, "select penstock.recent_access_changes()", ())
        changes = {row[0] for row in rows}
        is_new = not changes <= self._changes
        self._changes = changes
        if not is_new and time.monotonic() - self._checked_at <= CHECK_SECONDS:
            return
        known = [watcher for watcher in self._watchers if "sub" in watcher.caller.claims]
        gone = await db.call(
            conn,
            "list_strangers",
            p_user_ids=[UUID(watcher.caller.claims["sub"]) for watcher in known],
            # A service credential sees every tenant while its key is valid.
            p_tenant_ids=[
                None if watcher.caller.role == "service_role" else watcher.tenant_id for watcher in known
            ],
        )
        for row in gone:
            known[int(row["place"]) - 1].refuse()
        in_session = [watcher for watcher in self._watchers if watcher.caller.session]
        if in_session:
            ids = [watcher.caller.session for watcher in in_session]
            rows = await db.rows(conn, "select penstock.list_ended_sessions(%s)", (ids,))
            ended = {row[0] for row in rows}
            for watcher in in_session:
                if watcher.caller.session in ended:
                    watcher.refuse()
        self._checked_at = time.monotonic()

    @abstractmethod
    async def _look(self) -> None:
        """Query the database and notify the watchers."""


def end_all() -> None:
    """End all streams of this process. A server that stops would otherwise wait for them until a timeout."""
    for streams in [*_OF_PROCESS]:
        streams.end_all()


async def is_news(event: asyncio.Event) -> bool:
    """Wait for the event, but no longer than the keep-alive interval. Returns whether it was set."""
    try:
        async with asyncio.timeout(KEEP_ALIVE_SECONDS):
            return await event.wait()
    except TimeoutError:
        return False


class EventStream(StreamingResponse):
    """Server-sent events."""

    media_type = "text/event-stream"


class Watched(EventStream, Generic[W]):
    """An event stream that is registered while it is open."""

    def __init__(self, streams: Streams[W], watcher: W, lines: AsyncGenerator[str]) -> None:
        super().__init__(lines, headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        self._streams, self._watcher = streams, watcher
        streams.add(watcher)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            # Also if the stream ended before the first line.
            self._streams.remove(self._watcher)
