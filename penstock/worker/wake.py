"""Wake: when to claim tasks. On notifications where LISTEN works, and by polling with backoff and jitter."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import TYPE_CHECKING
from uuid import uuid4

import structlog

from penstock.postgres import db
from penstock.settings import Listen

if TYPE_CHECKING:
    from penstock.worker.task_buffer import TaskBuffer

log = structlog.get_logger("penstock.worker")


class Wake:
    """Tells fetch that tasks may be ready, upkeep that it is due, beat that a job was canceled."""

    POLL_SECONDS = (5.0, 30.0)
    """With LISTEN, polling only finds what a lost notification missed."""
    POLL_SECONDS_ALONE = (0.05, 30.0)
    """Without LISTEN, polling is fast after work and backs off."""
    PROBE_SECONDS = 5.0
    MAX_BACKOFF_SECONDS = 0.25
    """A notification reaches every worker. After an empty claim a worker delays the next one, at most
    this long; after a claim that returned tasks it claims at once."""

    def __init__(self, dsn: str, buffer: TaskBuffer, upkeep_due: asyncio.Event, mode: Listen) -> None:
        self.work = asyncio.Event()
        self._upkeep_due = upkeep_due
        self.on_cancel: Callable[[], None] = lambda: None
        self.on_notification: Callable[[], None] = lambda: None
        """Called when there may be notifications to deliver."""
        self.is_listening = False
        self._dsn, self._buffer, self._mode = dsn, buffer, mode
        self._pause = 0.0
        self._backoff = 0.0
        self._is_notified = False
        self._pending: asyncio.TimerHandle | None = None
        self._token = f"probe:{uuid4()}"

    async def wait_for_work(self, limit: float | None = None) -> None:
        """Wait for a notification or until polling is due, at most `limit` seconds."""
        low, high = self.POLL_SECONDS if self.is_listening else self.POLL_SECONDS_ALONE
        self._pause = min(high, max(low, self._pause * 2))
        pause = self._pause * random.uniform(0.5, 1)
        await self.wait_for_notification(pause if limit is None else min(pause, limit))

    async def wait_for_notification(self, limit: float) -> None:
        """Wait until `work` is set, at most `limit` seconds."""
        try:
            async with asyncio.timeout(limit):
                await self.work.wait()
        except TimeoutError:
            return
        finally:
            self.work.clear()

    def found_work(self) -> None:
        """Reset the pauses: a claim returned tasks."""
        self._pause = 0.0
        if self._is_notified:
            self._is_notified, self._backoff = False, 0.0

    def found_nothing(self) -> None:
        """Back off if a notification led to an empty claim: another worker was faster."""
        if self._is_notified:
            self._is_notified = False
            self._backoff = min(self.MAX_BACKOFF_SECONDS, max(0.01, 2 * self._backoff))

    async def run(self) -> None:
        """Listen for notifications, and connect again after each broken connection."""
        while self._mode != "off":
            probe: asyncio.Task[None] | None = None
            try:
                async with aclosing(self._payloads()) as payloads:
                    async for payload in payloads:
                        if payload == "":
                            probe = asyncio.create_task(self._probe())
                            # Notifications sent before LISTEN are missed, so look once for everything.
                            self._wake_all()
                        else:
                            self._handle(payload)
            except db.Pooled:
                log.info(
                    "worker.polling",
                    reason="the connection goes through a pooler, which may not deliver notifications",
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
        name = f"penstock listen {self._buffer.worker_id}"
        return db.listen(self._dsn, "penstock", name=name, is_pooled_refused=self._mode == "auto")

    async def _probe(self) -> None:
        """Send a notification to this worker: receiving it proves that notifications are delivered."""
        try:
            await db.rows(self._buffer.pool, "select pg_notify('penstock', %s)", (self._token,))
        except Exception as error:
            log.warning("worker.listen_failed", error=str(error))
            return
        await asyncio.sleep(self.PROBE_SECONDS)
        if not self.is_listening:
            log.warning("worker.polling", reason="notifications do not arrive")

    def _handle(self, payload: str) -> None:
        self.is_listening = True
        event, _, kind = payload.partition(":")
        if event == "ready" and kind in self._buffer.kinds:
            # Notifications that arrive during the delay need no claim of their own.
            if self._pending is None:
                delay = random.uniform(0, self._backoff)
                self._pending = asyncio.get_running_loop().call_later(delay, self._wake_fetch)
        elif event in ("chores", "schedules"):
            self._upkeep_due.set()
        elif event == "cancel":
            self.on_cancel()
        elif event == "notifications":
            self.on_notification()

    def _wake_fetch(self) -> None:
        self._pending, self._is_notified = None, True
        self.work.set()

    def _wake_all(self) -> None:
        self.work.set()
        self._upkeep_due.set()
        self.on_cancel()
