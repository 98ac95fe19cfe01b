"""Fetch: claim tasks when there is room for them."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING

import structlog

from penstock import tasks
from penstock.errors import PenstockError

if TYPE_CHECKING:
    from penstock.worker.desk import Desk
    from penstock.worker.wake import Wake

log = structlog.get_logger("penstock.worker")


class Fetch:
    """Keeps the desk supplied. Ends by itself only when told to stop at the first empty claim with nothing held."""

    def __init__(self, desk: Desk, wake: Wake, *, stop_when_idle: bool = False) -> None:
        self._desk, self._wake, self._stop_when_idle = desk, wake, stop_when_idle

    async def run(self) -> None:
        while True:
            room = self._desk.room()
            if room <= 0:
                await self._desk.changed(1.0)
                continue
            try:
                claims = await tasks.claim(
                    self._desk.pool,
                    self._desk.worker_id,
                    limit=min(room, 1000),
                    kinds=self._desk.kinds,
                    lease_seconds=self._desk.lease_seconds,
                )
            except PenstockError as error:
                # What was claimed in a lost answer comes back with its lease.
                log.warning("worker.fetch_failed", error=str(error))
                await asyncio.sleep(random.uniform(0.5, 2))
                continue
            if claims:
                self._desk.arrive(claims)
                self._wake.found_work()
                # Let the handlers begin before we ask for more.
                await asyncio.sleep(0)
            elif self._stop_when_idle and not self._desk.held:
                return
            elif self._stop_when_idle:
                await self._desk.changed(0.05)
            else:
                await self._wake.for_work()
