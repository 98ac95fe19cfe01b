"""Fetch: claim tasks while the buffer has free slots."""

from __future__ import annotations

import asyncio
import random
import time
from typing import TYPE_CHECKING

import structlog

from penstock import tracing
from penstock.contract import tasks
from penstock.postgres import db

if TYPE_CHECKING:
    from penstock.upkeep import Upkeep
    from penstock.worker.finish import Finish
    from penstock.worker.task_buffer import TaskBuffer
    from penstock.worker.wake import Wake

log = structlog.get_logger("penstock.worker")
MAX_CLAIM = 1000
# The pause after a claim that got fewer tasks than it asked for. Tasks that it passed over, such as those of
# a lane that opens again, wait this much longer at most.
SHORT_CLAIM_SECONDS = 0.05


class Fetch:
    """Fills the task buffer until it closes; when draining, until no task is leased or can be claimed."""

    def __init__(
        self,
        buffer: TaskBuffer,
        claims: db.Pool,
        wake: Wake,
        finish: Finish,
        upkeep: Upkeep,
        *,
        stop_when_idle: bool = False,
    ) -> None:
        self._claims = claims
        self._buffer, self._wake, self._finish, self._upkeep = buffer, wake, finish, upkeep
        self._stop_when_idle = stop_when_idle
        self._is_response_lost = False

    async def run(self) -> None:
        buffer = self._buffer
        quiet_rounds = 0
        while not buffer.is_closing:
            self._finish.hand_back(buffer.pop_unstarted(only_stale=True))
            free = min(buffer.free_slots(), MAX_CLAIM)
            if free <= 0:
                await buffer.wait_for_change(1.0)
                continue
            upkept, is_idle = self._upkeep.count, not buffer.leased
            asked_at = time.monotonic()
            try:
                claims = await self._claim(free)
                if self._stop_when_idle:
                    is_quiet = is_idle and not claims and await self._finds_upkeep_nothing(upkept)
                    quiet_rounds = quiet_rounds + 1 if is_quiet else 0
                    # An empty claim may do overdue upkeep: only the next one finds tasks that this requeued.
                    if quiet_rounds == 2:
                        return
            except Exception as error:
                self._is_response_lost = True
                log.warning("worker.fetch_failed", error=str(error))
                await asyncio.sleep(random.uniform(0.2, 1))
                continue
            if claims:
                buffer.add(claims, asked_at)
                self._wake.found_work()
                # Lets the handlers start before the next claim.
                await asyncio.sleep(0)
                if len(claims) < free and self._wake.is_listening and not self._stop_when_idle:
                    # It probably got all there was, and more tasks come with a notification.
                    await self._wake.wait_for_notification(SHORT_CLAIM_SECONDS)
            elif self._stop_when_idle:
                await buffer.wait_for_change(0.05 if buffer.leased else 0)
            else:
                self._wake.found_nothing()
                await self._wake.wait_for_work(1.0 if buffer.unstarted else await self._next_opening())

    async def _claim(self, free: int) -> list[tasks.Claim]:
        if self._is_response_lost:
            await self._return_unknown()
        # An answer that is later than the lease would be worth nothing.
        async with db.answering(self._claims, self._buffer.lease_seconds) as conn:
            return await tasks.claim(
                conn,
                self._buffer.worker_id,
                limit=free,
                kinds=self._buffer.kinds,
                lease_seconds=self._buffer.lease_seconds,
                is_traced=tracing.tracer() is not None,
            )

    async def _finds_upkeep_nothing(self, upkept: int) -> bool:
        """Whether upkeep finds nothing either: a task that ended during the claim may have added others."""
        await self._upkeep.once()
        return self._upkeep.count == upkept

    async def _return_unknown(self) -> None:
        """Requeue the tasks of a claim whose response was lost: they are leased, but no worker runs them."""
        known = [leased.claim.lease for leased in self._buffer.leased.values()]
        returned = await tasks.return_unknown(self._claims, self._buffer.worker_id, known)
        self._is_response_lost = False
        if returned:
            log.info("worker.claim_returned", tasks=returned)

    async def _next_opening(self) -> float | None:
        """Seconds until the next claim is due without a notification: when a lane may admit tasks again."""
        try:
            opening = await tasks.next_opening(self._claims, self._buffer.kinds)
        except Exception as error:
            log.warning("worker.fetch_failed", error=str(error))
            return None
        # The jitter keeps workers from claiming at the same moment.
        return None if opening is None else max(0.0, opening) + random.uniform(0, 0.05)

    async def stop(self, running: asyncio.Task[None], seconds: float = 5) -> None:
        """Stop after the current claim has returned, so that its tasks can be handed back."""
        self._buffer.is_closing = True
        self._buffer.notify()
        self._wake.work.set()
        await asyncio.wait([running], timeout=seconds)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
