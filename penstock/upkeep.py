"""Periodic work for the whole system. One worker does it for all; servers do it when no worker runs.

Upkeep  requeues tasks whose lease expired or that are due, continues large actions, fires schedules
Tidy    removes old jobs, and files that are deleted or abandoned; stores uploads of clients that died
Sender  (penstock.delivery) delivers notifications
"""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import AsyncGenerator, Callable, Collection, Mapping
from contextlib import asynccontextmanager

import structlog

from penstock.contract import alerts, artifacts, audit, schedules, spend
from penstock.delivery import Sender
from penstock.postgres import db
from penstock.settings import Settings
from penstock.storage.objects import Storage

log = structlog.get_logger("penstock.upkeep")
MAX_CANCELLATIONS = 3

Draw = schedules.BuildTasks


@asynccontextmanager
async def standby(
    pool: db.Pool,
    settings: Settings,
    draw: Draw,
    storage: Callable[[], Storage | None],
    uploads: Mapping[str, artifacts.Finish],
) -> AsyncGenerator[None]:
    """Do what is due while no worker does; of many servers, one does it."""
    upkeep, tidy = Upkeep(pool, draw, function="upkeep_if_idle"), Tidy(pool, storage, uploads)
    sender = Sender(pool, settings)
    loops = [
        asyncio.create_task(upkeep.run(first_pause=upkeep.MAX_PAUSE)),
        asyncio.create_task(_listen(settings, {"chores": upkeep.due, "notifications": sender.due})),
        asyncio.create_task(tidy.run()),
        asyncio.create_task(sender.run()),
    ]
    try:
        yield
    finally:
        await end(loops)


async def end(loops: Collection[asyncio.Task[None]]) -> None:
    """Cancel endless loops, again if need be.

    In Python 3.11 `asyncio.wait_for`, which the connection pool uses, drops a cancellation that comes with
    the event it waits for.
    """
    left = set(loops)
    for _ in range(MAX_CANCELLATIONS):
        for loop in left:
            loop.cancel()
        if left:
            _, left = await asyncio.wait(left, timeout=1)


async def _listen(settings: Settings, events: dict[str, asyncio.Event]) -> None:
    """Set the event that a notification names. Behind a pooler this ends, and polling is enough."""
    while settings.listen != "off" and settings.database_url:
        is_refused = settings.listen == "auto"
        try:
            async for payload in db.listen(settings.database_url, "penstock", is_pooled_refused=is_refused):
                # At first, and after a broken connection, notifications may have been missed.
                for event in events.values() if payload == "" else filter(None, [events.get(payload)]):
                    event.set()
        except db.Pooled:
            return
        except Exception as error:
            log.warning("upkeep.listen_failed", error=str(error))
        await asyncio.sleep(random.uniform(0.5, 2))


class Upkeep:
    """Calls `penstock.upkeep` when the database says that something is due, and when `due` is set."""

    MIN_PAUSE = 0.02
    MAX_PAUSE = 4.0
    SOON = 3.5
    ANSWER_SECONDS = 2.0
    MAX_SECONDS = 60.0

    def __init__(self, pool: db.Pool, draw: Draw, *, function: str = "upkeep") -> None:
        self._pool, self._draw, self._function = pool, draw, function
        self._lock = asyncio.Lock()
        self._pause = self.MAX_PAUSE
        self._told_at = -math.inf
        self.due = asyncio.Event()
        self.max_pause: Callable[[], float] = lambda: self.MAX_PAUSE
        self.is_leader: Callable[[], bool] = lambda: True
        """Whether this process does the periodic upkeep for all. Others do it only when `due` is set, or when
        more was due soon: they have the reason at hand, and the leader may not know of it."""
        self.on_work: Callable[[], None] = lambda: None
        """Called when something was due: there may be tasks to claim."""
        self.count = 0
        """How often something was due."""

    async def run(self, *, first_pause: float = 0.0) -> None:
        self._pause = first_pause
        while True:
            is_due = await self._sleep() or self._pause < self.SOON
            if not is_due and not self.is_leader():
                continue
            try:
                await self.once()
            except Exception as error:
                log.warning("upkeep.failed", error=str(error))
                self._pause = 1.0

    async def once(self) -> None:
        """Do all that is due now."""
        async with self._lock:
            async with db.connection(self._pool) as conn:
                # A probe first: upkeep itself may take long, a dead connection takes for ever.
                async with db.answering(conn, self.ANSWER_SECONDS):
                    await db.rows(conn, "select 1", ())
                async with db.answering(conn, self.MAX_SECONDS):
                    row = (await db.call(conn, self._function))[0]
            acted = await db.value(self._pool, "do_actions")
            unknown: list[bool] = []
            fired = await schedules.fire_due(self._pool, self._draw, on_unknown=lambda: unknown.append(True))
            if unknown:
                await self._tell_others()
            next_seconds: float | None = row["next_seconds"]
            self._pause = 0.0 if acted else self.MAX_PAUSE if next_seconds is None else next_seconds
            if row["reclaimed"] or row["promoted"] or row["chores"] or acted or fired:
                self.count += 1
                self.on_work()
                counts = {"reclaimed": row["reclaimed"], "promoted": row["promoted"], "fired": len(fired)}
                log.info("upkeep.done", **counts)

    async def _tell_others(self) -> None:
        """Wake the workers of other apps: a schedule is due whose job type this process does not know."""
        now = time.monotonic()
        if self.is_leader() and now - self._told_at > self.SOON:
            self._told_at = now
            await db.rows(self._pool, "select pg_notify('penstock', 'schedules')", ())

    async def _sleep(self) -> bool:
        """Wait until upkeep is due; returns whether a caller said so."""
        # The jitter keeps processes apart. The maximum is needed because more may become due during the
        # pause.
        pause = min(self._pause, self.max_pause()) + random.uniform(0, 0.3)
        await asyncio.sleep(self.MIN_PAUSE)
        try:
            async with asyncio.timeout(pause):
                await self.due.wait()
            return True
        except TimeoutError:
            return False
        finally:
            self.due.clear()


class Tidy:
    """Removes old jobs and files, adopts uploads whose client died, seals the audit log, sums up costs."""

    PAUSE = 60.0
    PAUSE_IF_MORE = 1.0
    BATCH = 2000

    ADOPT_SECONDS = 60.0
    """The age at which an upload without its client is adopted."""

    def __init__(
        self,
        pool: db.Pool,
        storage: Callable[[], Storage | None],
        uploads: Mapping[str, artifacts.Finish] | None = None,
    ) -> None:
        self._pool, self._storage, self._uploads = pool, storage, uploads or {}
        self.is_leader: Callable[[], bool] = lambda: True
        """Whether this process tidies for all. Others only adopt the uploads of their own app."""

    async def run(self) -> None:
        pause = self.PAUSE
        while True:
            # The jitter keeps processes apart.
            await asyncio.sleep(pause * random.uniform(0.8, 1.2))
            pause = self.PAUSE_IF_MORE if await self.once() else self.PAUSE

    async def once(self) -> bool:
        """Do a batch of each. Returns whether there may be more."""
        is_more = False
        acts = (self._prune, self._adopt, self._sweep, self._seal, self._tell, self._snapshot)
        for act in acts if self.is_leader() else (self._adopt,):
            try:
                is_more |= await act()
            except Exception as error:
                log.warning("tidy.failed", error=str(error))
        return is_more

    async def _prune(self) -> bool:
        count = await db.value(self._pool, "prune", p_limit=self.BATCH)
        if count:
            log.info("tidy.pruned", rows=count)
        return count >= self.BATCH

    async def _seal(self) -> bool:
        if (sealed := await audit.seal(self._pool)) is None:
            return False
        # The log is kept elsewhere: who rewrites the chain in the database cannot rewrite this line.
        log.info("audit.sealed", lines=sealed.lines, head=sealed.head)
        return True

    async def _tell(self) -> bool:
        for alert in await alerts.take(self._pool):
            log.warning("alert", **alert)
        return False

    async def _snapshot(self) -> bool:
        if await spend.take_due_snapshot(self._pool):
            log.info("tidy.cost_snapshot")
        return False

    async def _adopt(self) -> bool:
        storage = self._storage() if self._uploads else None
        if storage is None:
            return False
        for prefix, finish in self._uploads.items():
            count = await artifacts.adopt_uploads(
                self._pool, storage, finish, key_prefix=prefix, older_than=self.ADOPT_SECONDS
            )
            if count:
                log.info("tidy.adopted", uploads=count, prefix=prefix)
        return False

    async def _sweep(self) -> bool:
        if not await artifacts.is_any_due(self._pool):
            return False
        storage = self._storage()
        if storage is None:
            return False
        count = await artifacts.sweep_batch(self._pool, storage)
        if count:
            log.info("tidy.swept", records=count)
        return count >= artifacts.BATCH
