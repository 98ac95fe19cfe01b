"""Upkeep: what any worker does now and then for all of them."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING

import structlog

from penstock import db, schedules
from penstock.errors import PenstockError

if TYPE_CHECKING:
    from penstock.worker.desk import Desk
    from penstock.worker.wake import Wake

log = structlog.get_logger("penstock.worker")


class Upkeep:
    """Takes back what others lost, queues what is due, fires schedules. Sleeps until the database knows of more."""

    def __init__(self, desk: Desk, wake: Wake) -> None:
        self._desk, self._wake = desk, wake

    async def run(self) -> None:
        while True:
            pause = 5.0
            try:
                row = (await db.call(self._desk.pool, "upkeep"))[0]
                if row["next_seconds"] is not None:
                    pause = row["next_seconds"]
                if row["reclaimed"] or row["promoted"]:
                    log.info("worker.upkeep", reclaimed=row["reclaimed"], promoted=row["promoted"])
                await schedules.fire_due(self._desk.pool, self._desk.app.draw)
            except PenstockError as error:
                log.warning("worker.upkeep_failed", error=str(error))
            await self._sleep(pause)

    async def _sleep(self, pause: float) -> None:
        # Not all workers at the same moment, and not later than a few seconds: a task may be parked meanwhile.
        limit = 5.0 if self._wake.is_listening or self._desk.held else 15.0
        try:
            await asyncio.wait_for(self._wake.chores.wait(), min(max(pause, 0.02), limit) * random.uniform(1, 1.2))
        except TimeoutError:
            return
        finally:
            self._wake.chores.clear()
