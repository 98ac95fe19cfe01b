"""Beat: extend the leases from a thread with a connection of its own, so that no handler can hold it up."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import structlog

from penstock import db, tasks, workers

if TYPE_CHECKING:
    from penstock.worker.desk import Desk

log = structlog.get_logger("penstock.worker")


class Beat:
    """One statement per beat for all of a worker's leases. What comes back as lost is stopped in the loop."""

    def __init__(self, dsn: str, desk: Desk, description: dict[str, Any]) -> None:
        self._dsn, self._desk, self._description = dsn, desk, description
        self._loop = asyncio.get_running_loop()
        self._ended = threading.Event()
        self._now = threading.Event()
        self._thread = threading.Thread(target=self._beats, name="penstock beat", daemon=True)
        self._connection: db.SyncConnection | None = None
        self._beaten_at = time.monotonic()
        self.on_drain: Callable[[], None] = lambda: None
        """What to do when somebody asks the worker to stop."""

    def start(self) -> None:
        self._thread.start()

    def describe(self, **changes: Any) -> None:
        """Change what the worker says of itself."""
        self._description = {**self._description, **changes}
        self.beat_now()

    def beat_now(self) -> None:
        """Beat at once: something was canceled."""
        self._now.set()

    def stop(self) -> None:
        self._description = {**self._description, "state": "stopped"}
        self._ended.set()
        self._now.set()
        self._thread.join(timeout=5)

    def _beats(self) -> None:
        is_last = False
        while not is_last:
            is_last = self._ended.is_set()
            self._now.clear()
            try:
                self._beat()
                self._report()
            except Exception as error:
                self._disconnect()
                if not is_last:
                    log.warning("worker.beat_failed", error=str(error))
            if not is_last:
                self._now.wait(self._pause())
        self._disconnect()

    def _pause(self) -> float:
        is_late = time.monotonic() - self._beaten_at > self._desk.lease_seconds / 2
        return min(1.0, self._desk.lease_seconds / 6) if is_late else self._desk.lease_seconds / 3

    def _beat(self) -> None:
        if self._connection is None:
            name = f"penstock beat {self._desk.worker_id}"
            self._connection = db.connect(self._dsn, name=name, wait_seconds=1)
        # What is handed back is still ours until that is said.
        leases = [
            (held.claim.id, held.claim.lease)
            for held in list(self._desk.held.values())
            if held.lost in (None, "handed back")
        ]
        sent_at = time.monotonic()
        lost: list[tuple[int, int, str]] = []
        if leases:
            lost = tasks.heartbeat_sync(
                self._connection, self._desk.worker_id, leases, self._desk.lease_seconds
            )
        self._beaten_at = sent_at
        self._loop.call_soon_threadsafe(self._answered, {lease for _, lease in leases}, lost, sent_at)

    def _answered(self, leases: set[int], lost: list[tuple[int, int, str]], sent_at: float) -> None:
        # The answer alone decides what is lost. While there is none, handlers go on: a database that is away
        # gives their tasks to nobody else.
        for task_id, lease, code in lost:
            self._desk.lose(task_id, lease, code)
        self._desk.beaten(leases, sent_at)

    def _report(self) -> None:
        assert self._connection is not None
        info = {**self._description, "running": self._desk.running}
        if workers.report_sync(self._connection, worker_id=self._desk.worker_id, info=info):
            self._loop.call_soon_threadsafe(self.on_drain)

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
