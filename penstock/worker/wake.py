"""When to look for work: NOTIFY where it works, polling with backoff and jitter everywhere."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import TYPE_CHECKING
from uuid import uuid4

import structlog

from penstock import db
from penstock.errors import PenstockError
from penstock.settings import Listen

if TYPE_CHECKING:
    from penstock.worker.desk import Desk

log = structlog.get_logger("penstock.worker")


class Wake:
    """Tells fetch that work may be there, upkeep that it has something to do, beat that something was canceled."""

    POLL_SECONDS = (5.0, 30.0)
    """With LISTEN, polling is only the net."""
    POLL_SECONDS_ALONE = (0.05, 30.0)
    """Without it, polling starts quick after work and backs off."""
    PROBE_SECONDS = 2.0

    def __init__(self, dsn: str, desk: Desk, mode: Listen) -> None:
        self.work = asyncio.Event()
        self.chores = asyncio.Event()
        self.on_cancel: Callable[[], None] = lambda: None
        self.is_listening = False
        self._dsn, self._desk, self._mode = dsn, desk, mode
        self._pause = self.POLL_SECONDS_ALONE[0]
        self._token = f"probe:{uuid4()}"
        self._heard = asyncio.Event()

    async def for_work(self) -> None:
        """Wait for a hint, or for the time to look anyway."""
        low, high = self.POLL_SECONDS if self.is_listening else self.POLL_SECONDS_ALONE
        self._pause = min(high, max(low, self._pause * 2))
        try:
            await asyncio.wait_for(self.work.wait(), self._pause * random.uniform(0.5, 1))
        except TimeoutError:
            return
        finally:
            self.work.clear()

    def found_work(self) -> None:
        """There was work: look again soon."""
        self._pause = 0.0

    async def run(self) -> None:
        """Listen, and again after each broken connection."""
        if self._mode == "off":
            return
        while True:
            try:
                async for payload in db.listen(self._dsn, "penstock", name=f"penstock listen {self._desk.worker_id}"):
                    if payload == "":
                        probe = asyncio.create_task(self._probe())
                        # Work may have come between the last look and now.
                        self.work.set()
                    elif payload == self._token:
                        self._heard.set()
                    else:
                        self._hear(payload)
            except PenstockError as error:
                self.is_listening = False
                log.warning("worker.listen_failed", error=str(error))
            else:
                del probe
            await asyncio.sleep(random.uniform(0.5, 2))

    async def _probe(self) -> None:
        """A transaction pooler takes LISTEN and never delivers: send ourselves a word and see."""
        self._heard.clear()
        try:
            await db.rows(self._desk.pool, "select pg_notify('penstock', %s)", (self._token,))
            await asyncio.wait_for(self._heard.wait(), self.PROBE_SECONDS)
            self.is_listening = True
        except TimeoutError:
            log.warning("worker.polling", reason="notifications do not arrive, as behind a transaction pooler")
        except PenstockError as error:
            log.warning("worker.listen_failed", error=str(error))

    def _hear(self, payload: str) -> None:
        word, _, what = payload.partition(":")
        if word == "ready" and what in self._desk.kinds:
            self.work.set()
        elif word == "chores":
            self.chores.set()
        elif word == "cancel":
            self.on_cancel()
