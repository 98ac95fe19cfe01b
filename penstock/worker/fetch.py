"""Fetch: claim tasks when there is room for them."""

from __future__ import annotations

import asyncio
import random
import time
from typing import TYPE_CHECKING

import structlog

from penstock import tasks

if TYPE_CHECKING:
    from penstock.upkeep import Upkeep
    from penstock.worker.desk import Desk
    from penstock.worker.finish import Finish
    from penstock.worker.wake import Wake

log = structlog.get_logger("penstock.worker")


class Fetch:
    """Keeps the desk supplied until it closes; when draining, until nothing is held and nothing is left."""

    def __init__(
        self, desk: Desk, wake: Wake, finish: Finish, upkeep: Upkeep, *, stop_when_idle: bool = False
    ) -> None:
        self._desk, self._wake, self._finish, self._upkeep = desk, wake, finish, upkeep
        self._stop_when_idle = stop_when_idle
        self._is_answer_lost = False

    async def run(self) -> None:
        desk = self._desk
        while not desk.is_closing:
            self._finish.hand_back(desk.take_buffered(only_stale=True))
            room = desk.room()
            if room <= 0:
                await desk.changed(1.0)
                continue
            upkept, is_idle = self._upkeep.count, not desk.held
            asked_at = time.monotonic()
            try:
                if self._is_answer_lost:
                    await self._return_unknown()
                claims = await tasks.claim(
                    desk.pool,
                    desk.worker_id,
                    limit=min(room, 1000),
                    kinds=desk.kinds,
                    lease_seconds=desk.lease_seconds,
                )
                # What ended while we asked may have added more than the answer knows of.
                if self._stop_when_idle and is_idle and not claims:
                    await self._upkeep.once()
                    if self._upkeep.count == upkept:
                        return
            except Exception as error:
                self._is_answer_lost = True
                log.warning("worker.fetch_failed", error=str(error))
                await asyncio.sleep(random.uniform(0.2, 1))
                continue
            if claims:
                desk.arrive(claims, asked_at)
                self._wake.found_work()
                # Let the handlers begin before we ask for more.
                await asyncio.sleep(0)
            elif self._stop_when_idle:
                await desk.changed(0.05 if desk.held else 0)
            else:
                self._wake.found_nothing()
                await self._wake.for_work(1.0 if desk.waiting else await self._opening())

    async def _return_unknown(self) -> None:
        """Requeue what a claim leased to us whose answer was lost; nobody would run it before it expires."""
        known = [held.claim.lease for held in self._desk.held.values()]
        returned = await tasks.return_unknown(self._desk.pool, self._desk.worker_id, known)
        self._is_answer_lost = False
        if returned:
            log.info("worker.claim_returned", tasks=returned)

    async def _opening(self) -> float | None:
        """When to look again without a word: a lane opens, or one was not looked at whole."""
        try:
            opening = await tasks.next_opening(self._desk.pool, self._desk.kinds)
        except Exception as error:
            log.warning("worker.fetch_failed", error=str(error))
            return None
        # Not all workers in the same moment.
        return None if opening is None else max(0.0, opening) + random.uniform(0, 0.05)

    async def stop(self, running: asyncio.Task[None], seconds: float = 5) -> None:
        """End after a claim that is under way: its tasks must not be left in a lost answer."""
        self._desk.is_closing = True
        self._desk.touch()
        self._wake.work.set()
        await asyncio.wait([running], timeout=seconds)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
