"""Beat: extend the leases from a thread with its own connection, so that no handler can block it."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import structlog

from penstock.contract import tasks, workers
from penstock.postgres import db

if TYPE_CHECKING:
    from penstock.worker.task_buffer import TaskBuffer

log = structlog.get_logger("penstock.worker")
# A worker leads upkeep for five seconds (lead_upkeep): one whose heartbeats are further apart cannot lead.
MAX_LEAD_PAUSE = 4.0
MAX_IDLE_PAUSE = 5.0


class Beat:
    """Sends one heartbeat for all of a worker's leases, and stops the tasks whose lease is lost."""

    def __init__(self, dsn: str, buffer: TaskBuffer, description: dict[str, Any]) -> None:
        self._dsn, self._buffer, self._description = dsn, buffer, description
        self._loop = asyncio.get_running_loop()
        self._ended = threading.Event()
        self._now = threading.Event()
        self._thread = threading.Thread(target=self._run, name="penstock beat", daemon=True)
        self._connection: db.SyncConnection | None = None
        self._extended_at = time.monotonic()
        self._waiting_since: float | None = None
        self.answered_at = 0.0
        """When the database last answered (monotonic seconds); 0 before the first answer."""
        self.on_drain: Callable[[], None] = lambda: None
        """Called when an operator has asked the worker to stop."""
        self._may_lead = buffer.lease_seconds / 3 <= MAX_LEAD_PAUSE
        self.is_leader = not self._may_lead
        """Whether this worker does the periodic upkeep for all, or for itself because it cannot lead."""
        self.on_leader: Callable[[], None] = lambda: None
        """Called when this worker has become the leader."""

    def start(self) -> None:
        self._thread.start()

    async def run(self) -> None:
        """Break a connection that does not answer, so that the thread sends its heartbeat on another."""
        limit = self._buffer.lease_seconds / 3
        while True:
            await asyncio.sleep(limit / 4)
            since, conn = self._waiting_since, self._connection
            if conn is not None and since is not None and time.monotonic() - since > limit:
                log.warning("worker.beat_unanswered", seconds=round(time.monotonic() - since, 1))
                db.abort(conn)

    def describe(self, **changes: Any) -> None:
        """Change the description of the worker that its heartbeats store."""
        self._description = {**self._description, **changes}
        self.beat_now()

    def beat_now(self) -> None:
        """Send a heartbeat at once: a task may be canceled or a lease lost."""
        self._now.set()

    def stop(self) -> None:
        self._description = {**self._description, "state": "stopped"}
        self._ended.set()
        self._now.set()
        self._thread.join(timeout=5)

    def _run(self) -> None:
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
            self._waiting_since = None
            if not is_last:
                self._now.wait(self._pause())
        self._disconnect()

    def _pause(self) -> float:
        is_late = time.monotonic() - self._extended_at > self._buffer.lease_seconds / 2
        if is_late:
            return min(1.0, self._buffer.lease_seconds / 6)
        lease_seconds = self._buffer.lease_seconds
        # A worker with nothing to extend reports less often, unless others rely on it.
        is_idle = not self._buffer.leased and not self.is_leader
        return max(lease_seconds / 3, min(lease_seconds / 2, MAX_IDLE_PAUSE) if is_idle else 0.0)

    def _beat(self) -> None:
        if self._connection is None:
            name = f"penstock beat {self._buffer.worker_id}"
            self._connection = db.connect(self._dsn, name=name, wait_seconds=1)
        # A task that is handed back keeps its lease until the database knows.
        leases = [
            (leased.claim.id, leased.claim.lease)
            for leased in list(self._buffer.leased.values())
            if leased.stop_reason in (None, "handed back")
        ]
        sent_at = self._waiting_since = time.monotonic()
        lost: list[tuple[int, int, str]] = []
        if leases:
            lost = tasks.heartbeat_sync(
                self._connection, self._buffer.worker_id, leases, self._buffer.lease_seconds
            )
        self._extended_at = sent_at
        self._loop.call_soon_threadsafe(self._apply, {lease for _, lease in leases}, lost, sent_at)

    def _apply(self, leases: set[int], lost: list[tuple[int, int, str]], sent_at: float) -> None:
        # Only the response decides which leases are lost. Without one the handlers continue: while the
        # database is down, no other worker can claim their tasks.
        for task_id, lease, code in lost:
            self._buffer.stop(task_id, lease, code)
        self._buffer.leases_extended(leases, sent_at)

    def _report(self) -> None:
        assert self._connection is not None
        info = {**self._description, "running": self._buffer.running}
        is_drain_asked, is_leader = workers.report_sync(
            self._connection, worker_id=self._buffer.worker_id, info=info, can_lead=self._can_lead()
        )
        if is_drain_asked:
            self._loop.call_soon_threadsafe(self.on_drain)
        if is_leader and not self.is_leader:
            self._loop.call_soon_threadsafe(self.on_leader)
        self.is_leader = is_leader or not self._may_lead
        self.answered_at = time.monotonic()

    def _can_lead(self) -> bool:
        """Whether upkeep can rely on this worker: it goes on, and its event loop runs."""
        is_alive = time.monotonic() - self._buffer.extended_at < 2 * MAX_LEAD_PAUSE
        return self._may_lead and is_alive and not self._ended.is_set()

    def _disconnect(self) -> None:
        self.is_leader = not self._may_lead
        if self._connection is not None:
            self._connection.close()
            self._connection = None
