"""The tasks that a worker has leased, and how many more it claims. The worker's loops share only this."""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from penstock.contract.tasks import Claim
from penstock.postgres import db
from penstock.sdk.app import App
from penstock.sdk.context import Context


class LeasedTask:
    """A task that is leased to this worker."""

    __slots__ = ("claim", "context", "leased_until", "received_at", "runner", "stop_reason", "thread")

    def __init__(self, claim: Claim, received_at: float, leased_until: float) -> None:
        self.claim, self.received_at = claim, received_at
        self.leased_until = leased_until
        """A lower bound: counted from when the claim or the last heartbeat was sent."""
        self.context: Context | None = None
        self.runner: asyncio.Task[None] | None = None
        self.thread: asyncio.Future[Any] | None = None
        """A thread that still runs although the attempt is over: a thread cannot be stopped."""
        self.stop_reason: str | None = None
        """Why the attempt is over before its handler ends: `lease_lost`, `canceled`, or `handed back`."""


class TaskBuffer:
    """The tasks leased to a worker: not started yet, running, or being reported."""

    # The worker claims a quarter of a second of work ahead. That is no task when tasks are slow, so that
    # another worker can run them, and hundreds when tasks are fast. Tasks that waited much longer go back to
    # the queue.
    AHEAD_SECONDS = 0.25
    STALE_SECONDS = 2.0
    RATE_SECONDS = 0.5

    def __init__(
        self, worker_id: str, app: App, pool: db.Pool, *, concurrency: int, max_ahead: int,
        lease_seconds: int, kinds: list[str],
    ) -> None:  # fmt: skip
        self.worker_id, self.app, self.pool = worker_id, app, pool
        self.concurrency, self.lease_seconds, self.kinds = concurrency, lease_seconds, kinds
        self.leased: dict[int, LeasedTask] = {}
        """All of them, by task id."""
        self.unstarted: deque[LeasedTask] = deque()
        self.running = 0
        self.abandoned = 0
        """How many of the running handlers are threads whose attempt is over."""
        self.ended = 0
        self.is_closing = False
        self.extended_at = time.monotonic()
        self.on_unstarted_stopped: Callable[[LeasedTask], None] = lambda leased: None
        self.on_provider_slot_freed: Callable[[], None] = lambda: None
        """Called when a task that calls a provider has ended: another one may start."""
        self.on_lease_uncertain: Callable[[], None] = lambda: None
        """Called when a lease may have expired before its task started: only a heartbeat can tell."""
        self._max_ahead = max_ahead
        self._idle_slots: deque[asyncio.Future[None]] = deque()
        self._change = asyncio.Event()
        self._rate = 0.0
        self._busy_since = self._rated_at = time.monotonic()
        self._rated_ended = 0

    def free_slots(self) -> int:
        """How many more tasks to claim now."""
        now = time.monotonic()
        if now - self.extended_at > self.lease_seconds:
            # Without heartbeats the worker could not keep the leases of new tasks.
            return 0
        self._update_rate(now)
        ahead = min(self._max_ahead, int(self._rate * self.AHEAD_SECONDS))
        free = self.concurrency + ahead - len(self.unstarted) - self.running
        # While tasks are waiting to start, a few free slots are not worth a round trip.
        return free if free >= (self.concurrency + ahead) // 2 or not self.unstarted else 0

    def _update_rate(self, now: float) -> None:
        """Tasks per second, over about RATE_SECONDS; in a shorter time since it was idle, over that time."""
        passed = now - self._rated_at
        if passed > self.RATE_SECONDS / 25:
            latest = (self.ended - self._rated_ended) / passed
            weight = passed / min(self.RATE_SECONDS, now - self._busy_since)
            self._rate += (latest - self._rate) * min(1.0, weight)
            self._rated_at, self._rated_ended = now, self.ended

    def add(self, claims: list[Claim], asked_at: float) -> None:
        """Add tasks that were claimed by a statement sent at `asked_at`."""
        now = time.monotonic()
        if not self.leased:
            self._busy_since = self._rated_at = now
            self._rated_ended = self.ended
        for claim in claims:
            if (old := self.leased.get(claim.id)) is not None:
                # The lease expired and the same task was claimed again: stop its first handler.
                self.stop(claim.id, old.claim.lease, "lease_lost")
            leased = LeasedTask(claim, now, asked_at + self.lease_seconds)
            self.leased[claim.id] = leased
            self.unstarted.append(leased)
        # A worker that is closing hands new tasks back instead of starting them.
        for _ in range(0 if self.is_closing else min(len(claims), len(self._idle_slots))):
            self._wake_slot()

    def take_next(self) -> LeasedTask | None:
        """The next task to run, if there is one."""
        if not self._may_start_next():
            return None
        self.running += 1
        return self.unstarted.popleft()

    async def next_task(self) -> LeasedTask:
        """Wait for the next task to run."""
        while (leased := self.take_next()) is None:
            turn = asyncio.get_running_loop().create_future()
            self._idle_slots.append(turn)
            try:
                await turn
            except asyncio.CancelledError:
                # A slot that is canceled after it was woken wakes another one in its place.
                if turn.done() and not turn.cancelled() and self.unstarted:
                    self._wake_slot()
                raise
        return leased

    def _may_start_next(self) -> bool:
        if not self.unstarted:
            return False
        if time.monotonic() < self.unstarted[0].leased_until:
            return True
        # The process was suspended, or the claim's response was late: check the lease before running the
        # task.
        self.on_lease_uncertain()
        return False

    def leases_extended(self, leases: set[int], sent_at: float) -> None:
        """Note that a heartbeat sent at `sent_at` extended these leases, except those already stopped."""
        self.extended_at = sent_at
        for leased in self.leased.values():
            if leased.claim.lease in leases:
                leased.leased_until = sent_at + self.lease_seconds
        for _ in range(min(len(self.unstarted), len(self._idle_slots))):
            self._wake_slot()
        self.notify()

    def _wake_slot(self) -> None:
        while self._idle_slots:
            turn = self._idle_slots.popleft()
            if not turn.done():
                turn.set_result(None)
                return

    def pop_unstarted(self, *, only_stale: bool = False) -> list[LeasedTask]:
        """Take out the tasks that have not started: all, or those that waited longer than STALE_SECONDS."""
        limit = time.monotonic() - self.STALE_SECONDS if only_stale else math.inf
        popped: list[LeasedTask] = []
        while self.unstarted and self.unstarted[0].received_at < limit:
            popped.append(self.unstarted.popleft())
        if popped:
            # The measured rate was too high for them, so measure it again.
            self._rate, self._rated_at, self._rated_ended = 0.0, time.monotonic(), self.ended
        return popped

    def pop_unstarted_for(self, provider: str) -> list[LeasedTask]:
        """Take out the tasks that have not started and that this provider would reject too."""
        popped = [leased for leased in self.unstarted if leased.claim.provider == provider]
        for leased in popped:
            self.unstarted.remove(leased)
        return popped

    def handler_ended(self) -> None:
        """Free the slot of a handler. The lease stays until the report is accepted."""
        self.running -= 1
        self.ended += 1
        self._change.set()

    def remove(self, task_id: int, lease: int) -> None:
        """Remove a task whose lease is over: reported or lost."""
        leased = self.leased.get(task_id)
        if leased is not None and leased.claim.lease == lease:
            del self.leased[task_id]
            if leased.claim.provider is not None:
                self.on_provider_slot_freed()

    def stop(self, task_id: int, lease: int, reason: str) -> None:
        """End the attempt: stop its handler and drop what it reports."""
        leased = self.leased.get(task_id)
        if leased is None or leased.claim.lease != lease or leased.stop_reason:
            return
        leased.stop_reason = reason
        if leased.context is not None:
            leased.context.stop()
        if leased.runner is not None:
            leased.runner.cancel()
        elif leased in self.unstarted:
            self.unstarted.remove(leased)
            self.on_unstarted_stopped(leased)

    def notify(self) -> None:
        """Wake the loop that waits for a change."""
        self._change.set()

    async def wait_for_change(self, timeout: float) -> None:  # noqa: ASYNC109 (an upper bound, not an error)
        """Wait until a handler ends or `notify` is called, at most `timeout` seconds."""
        self._change.clear()
        try:
            async with asyncio.timeout(max(0.0, timeout)):
                await self._change.wait()
        except TimeoutError:
            return
