"""When to look for work: NOTIFY where it works, polling with backoff and jitter everywhere."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import TYPE_CHECKING
from uuid import uuid4

import structlog

from penstock import db
from penstock.settings import Listen

if TYPE_CHECKING:
    from penstock.worker.desk import Desk

log = structlog.get_logger("penstock.worker")


class Wake:
    """Tells fetch that work may be there, upkeep that it is needed, beat that a job was canceled."""

    POLL_SECONDS = (5.0, 30.0)
    """With LISTEN, polling is only the net."""
    POLL_SECONDS_ALONE = (0.05, 30.0)
    """Without it, polling starts quick after work and backs off."""
    PROBE_SECONDS = 5.0
    CALM_SECONDS = 0.25
    """A word about work reaches every worker. Whoever came in vain lets others go first, at most so long;
    whoever found work comes at once the next time."""

    def __init__(self, dsn: str, desk: Desk, upkeep_due: asyncio.Event, mode: Listen) -> None:
        self.work = asyncio.Event()
        self._upkeep_due = upkeep_due
        self.on_cancel: Callable[[], None] = lambda: None
        self.is_listening = False
        self._dsn, self._desk, self._mode = dsn, desk, mode
        self._pause = 0.0
        self._calm = 0.0
        self._is_called = False
        self._calling: asyncio.TimerHandle | None = None
        self._token = f"probe:{uuid4()}"

    async def for_work(self, limit: float | None = None) -> None:
        """Wait for a hint, or for the time to look anyway, at most so long."""
        low, high = self.POLL_SECONDS if self.is_listening else self.POLL_SECONDS_ALONE
        self._pause = min(high, max(low, self._pause * 2))
        try:
            pause = self._pause * random.uniform(0.5, 1)
            await asyncio.wait_for(self.work.wait(), pause if limit is None else min(pause, limit))
        except TimeoutError:
            return
        finally:
            self.work.clear()

    def found_work(self) -> None:
        """There was work: look again soon."""
        self._pause = 0.0
        if self._is_called:
            self._is_called, self._calm = False, 0.0

    def found_nothing(self) -> None:
        """Somebody else was quicker, if there was a word."""
        if self._is_called:
            self._is_called, self._calm = False, min(self.CALM_SECONDS, max(0.01, 2 * self._calm))

    async def run(self) -> None:
        """Listen, and again after each broken connection."""
        while self._mode != "off":
            probe: asyncio.Task[None] | None = None
            try:
                async with aclosing(self._payloads()) as payloads:
                    async for payload in payloads:
                        if payload == "":
                            probe = asyncio.create_task(self._probe())
                            # Work may have come between the last look and now.
                            self._wake_all()
                        else:
                            self._hear(payload)
            except db.Pooled:
                log.info(
                    "worker.polling", reason="a pooler stands between: it may take LISTEN and not deliver"
                )
                break
            except Exception as error:
                log.warning("worker.listen_failed", error=str(error))
            finally:
                self.is_listening = False
                if probe is not None:
                    probe.cancel()
            self._wake_all()
            await asyncio.sleep(random.uniform(0.5, 2))
        await asyncio.Event().wait()

    def _payloads(self) -> AsyncGenerator[str]:
        name = f"penstock listen {self._desk.worker_id}"
        return db.listen(self._dsn, "penstock", name=name, is_pooled_refused=self._mode == "auto")

    async def _probe(self) -> None:
        """Send ourselves a word: only what comes back shows that notifications are delivered."""
        try:
            await db.rows(self._desk.pool, "select pg_notify('penstock', %s)", (self._token,))
        except Exception as error:
            log.warning("worker.listen_failed", error=str(error))
            return
        await asyncio.sleep(self.PROBE_SECONDS)
        if not self.is_listening:
            log.warning("worker.polling", reason="notifications do not arrive")

    def _hear(self, payload: str) -> None:
        self.is_listening = True
        word, _, what = payload.partition(":")
        if word == "ready" and what in self._desk.kinds:
            # Words that come meanwhile are the same word.
            if self._calling is None:
                delay = random.uniform(0, self._calm)
                self._calling = asyncio.get_running_loop().call_later(delay, self._call)
        elif word == "chores":
            self._upkeep_due.set()
        elif word == "cancel":
            self.on_cancel()

    def _call(self) -> None:
        self._calling, self._is_called = None, True
        self.work.set()

    def _wake_all(self) -> None:
        self.work.set()
        self._upkeep_due.set()
        self.on_cancel()
