"""Upkeep: what any worker does now and then for all of them."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING

import structlog

from penstock import db, schedules

if TYPE_CHECKING:
    from penstock.worker.desk import Desk
    from penstock.worker.wake import Wake

LEAST_SECONDS = 0.02
log = structlog.get_logger("penstock.worker")


class Upkeep:
    """Takes back what others lost, queues what is due, fires schedules. Sleeps until there is more to do."""

    def __init__(self, desk: Desk, wake: Wake) -> None:
        self._desk, self._wake = desk, wake
        self._lock = asyncio.Lock()
        self._pause = 5.0
        self.count = 0
        """How often there was something to do."""

    async def run(self) -> None:
        while True:
            try:
                await self.once()
            except Exception as error:
                log.warning("worker.upkeep_failed", error=str(error))
                self._pause = 1.0
            await self._sleep(self._pause)

    async def once(self) -> None:
        """Do what is to be done now."""
        async with self._lock:
            row = (await db.call(self._desk.pool, "upkeep"))[0]
            acted = await db.value(self._desk.pool, "do_actions")
            fired = await schedules.fire_due(self._desk.pool, self._desk.app.draw)
            self._pause = 0.0 if acted else 5.0 if row["next_seconds"] is None else row["next_seconds"]
            if row["reclaimed"] or row["promoted"] or row["chores"] or acted or fired:
                self.count += 1
                self._wake.work.set()
                log.info(
                    "worker.upkeep", reclaimed=row["reclaimed"], promoted=row["promoted"], fired=len(fired)
                )

    async def _sleep(self, pause: float) -> None:
        # Not all workers at the same moment, and not later than a few seconds: more may be parked meanwhile.
        limit = 5.0 if self._wake.is_listening or self._desk.held else 15.0
        wait = min(pause, limit) * random.uniform(1, 1.2)
        # However often we are told, there is a moment between.
        await asyncio.sleep(LEAST_SECONDS)
        try:
            await asyncio.wait_for(self._wake.chores.wait(), wait)
        except TimeoutError:
            return
        finally:
            self._wake.chores.clear()
