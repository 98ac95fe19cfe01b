"""Tidying: what any worker removes now and then, a bite at a time, while upkeep goes on."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING

import structlog

from penstock import artifacts, db

if TYPE_CHECKING:
    from penstock.worker.desk import Desk

SECONDS = 60.0
MORE_SECONDS = 1.0
"""While there is more to remove."""
BITE = 2000
log = structlog.get_logger("penstock.worker")


class Tidy:
    """Removes jobs that ended long ago, and files that are deleted or given up."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    async def run(self) -> None:
        pause = SECONDS
        while True:
            # Not all workers at the same moment.
            await asyncio.sleep(pause * random.uniform(0.8, 1.2))
            pause = MORE_SECONDS if await self.once() else SECONDS

    async def once(self) -> bool:
        """Take a bite of each. Returns whether there may be more."""
        is_more = False
        for remove in (self._prune, self._sweep):
            try:
                is_more |= await remove()
            except Exception as error:
                log.warning("worker.tidy_failed", error=str(error))
        return is_more

    async def _prune(self) -> bool:
        count = await db.value(self._desk.pool, "prune", p_limit=BITE)
        if count:
            log.info("worker.pruned", rows=count)
        return count >= BITE

    async def _sweep(self) -> bool:
        app, pool = self._desk.app, self._desk.pool
        if app.artifacts is not None or not await artifacts.is_any_due(pool):
            return False
        count = await artifacts.sweep_batch(pool, app.storage)
        if count:
            log.info("worker.swept", records=count)
        return count >= artifacts.BATCH
