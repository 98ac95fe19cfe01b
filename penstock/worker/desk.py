"""What lies on a worker's desk: tasks it holds, and room for more. The loops share this and nothing else."""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from penstock import db
from penstock.app import App
from penstock.context import Context
from penstock.tasks import Claim


class Held:
    """A task this worker has the lease of."""

    __slots__ = ("arrived_at", "claim", "context", "leased_until", "lost", "runner", "thread")

    def __init__(self, claim: Claim, arrived_at: float, leased_until: float) -> None:
        self.claim, self.arrived_at = claim, arrived_at
        self.leased_until = leased_until
        """A lower bound: counted from when the claim or the last heartbeat was sent."""
        self.context: Context | None = None
        self.runner: asyncio.Task[None] | None = None
        self.thread: asyncio.Future[Any] | None = None
        """A thread that still runs although the attempt is over: it cannot be stopped."""
        self.lost: str | None = None
        """Why the attempt is over before its handler: `lease_lost`, `canceled`, or `handed back`."""


class Desk:
    """The tasks a worker holds: waiting in the buffer, running, or being reported."""

    # What a quarter of a second of work is worth is taken in advance: nothing when tasks are slow, so that
    # another worker can have them, hundreds when they are quick. What has waited much longer goes back.
    AHEAD_SECONDS = 0.25
    STALE_SECONDS = 2.0
    RATE_SECONDS = 0.5

    def __init__(
        self, worker_id: str, app: App, pool: db.Pool, *, concurrency: int, buffer: int, lease_seconds: int,
        kinds: list[str],
    ) -> None:  # fmt: skip
        self.worker_id, self.app, self.pool = worker_id, app, pool
        self.concurrency, self.lease_seconds, self.kinds = concurrency, lease_seconds, kinds
        self.held: dict[int, Held] = {}
        self.waiting: deque[Held] = deque()
        self.running = 0
        self.abandoned = 0
        """Of those running: threads whose attempt is over."""
        self.ended = 0
        self.is_closing = False
        self.beaten_at = time.monotonic()
        self.on_drop: Callable[[Held], None] = lambda held: None
        self.on_room: Callable[[], None] = lambda: None
        """Called when a call of a provider has ended: another may have its place."""
        self.on_doubt: Callable[[], None] = lambda: None
        """Called when a lease may have expired before its task began: only a heartbeat can tell."""
        self._max_ahead = buffer
        self._idle: deque[asyncio.Future[None]] = deque()
        self._change = asyncio.Event()
        self._rate = 0.0
        self._rated_at = time.monotonic()
        self._rated_ended = 0

    def room(self) -> int:
        """How many more tasks to claim now."""
        now = time.monotonic()
        if now - self.beaten_at > self.lease_seconds:
            # What we took now we could not keep.
            return 0
        if (passed := now - self._rated_at) > self.RATE_SECONDS / 10:
            # A moving average over the last moments.
            fresh = (self.ended - self._rated_ended) / passed
            self._rate = fresh + (self._rate - fresh) * math.exp(-passed / self.RATE_SECONDS)
            self._rated_at, self._rated_ended = now, self.ended
        ahead = min(self._max_ahead, int(self._rate * self.AHEAD_SECONDS))
        room = self.concurrency + ahead - len(self.waiting) - self.running
        # A handful of free places beside hundreds taken is not worth a round trip.
        return room if room >= (self.concurrency + ahead) // 2 or not self.waiting else 0

    def arrive(self, claims: list[Claim], asked_at: float) -> None:
        """Put tasks into the buffer that were claimed by a statement sent at `asked_at`."""
        now = time.monotonic()
        for claim in claims:
            if (old := self.held.get(claim.id)) is not None:
                # It was taken from us, and is ours again: its first handler must not go on.
                self.lose(claim.id, old.claim.lease, "lease_lost")
            held = Held(claim, now, asked_at + self.lease_seconds)
            self.held[claim.id] = held
            self.waiting.append(held)
        # What comes after we were told to stop is only to be handed back.
        for _ in range(0 if self.is_closing else min(len(claims), len(self._idle))):
            self._wake_one()

    async def take(self) -> Held:
        """The next task to run."""
        while not self._may_begin():
            turn = asyncio.get_running_loop().create_future()
            self._idle.append(turn)
            try:
                await turn
            except asyncio.CancelledError:
                # Whoever was woken and then stopped passes the turn on.
                if turn.done() and not turn.cancelled() and self.waiting:
                    self._wake_one()
                raise
        self.running += 1
        return self.waiting.popleft()

    def _may_begin(self) -> bool:
        if not self.waiting:
            return False
        if time.monotonic() < self.waiting[0].leased_until:
            return True
        # This process was stopped, or the claim's answer was late: ask before running the task.
        self.on_doubt()
        return False

    def beaten(self, leases: set[int], sent_at: float) -> None:
        """A heartbeat sent at `sent_at` extended these leases, except those that `lose` is told of."""
        self.beaten_at = sent_at
        for held in self.held.values():
            if held.claim.lease in leases:
                held.leased_until = sent_at + self.lease_seconds
        for _ in range(min(len(self.waiting), len(self._idle))):
            self._wake_one()
        self.touch()

    def _wake_one(self) -> None:
        while self._idle:
            turn = self._idle.popleft()
            if not turn.done():
                turn.set_result(None)
                return

    def take_buffered(self, *, only_stale: bool = False) -> list[Held]:
        """Everything that has not begun, or what has waited so long that others had better have it."""
        limit = time.monotonic() - self.STALE_SECONDS if only_stale else math.inf
        taken: list[Held] = []
        while self.waiting and self.waiting[0].arrived_at < limit:
            taken.append(self.waiting.popleft())
        if taken:
            # They were taken for a pace that is over: what ended before now says nothing about the next.
            self._rate, self._rated_at, self._rated_ended = 0.0, time.monotonic(), self.ended
        return taken

    def take_waiting_for(self, provider: str) -> list[Held]:
        """What has not begun and would only be refused by the same provider."""
        taken = [held for held in self.waiting if held.claim.provider == provider]
        for held in taken:
            self.waiting.remove(held)
        return taken

    def leave(self) -> None:
        """A handler has ended: its place is free. The lease is kept until the report is accepted."""
        self.running -= 1
        self.ended += 1
        self._change.set()

    def forget(self, task_id: int, lease: int) -> None:
        """The lease is over: reported or lost."""
        held = self.held.get(task_id)
        if held is not None and held.claim.lease == lease:
            del self.held[task_id]
            if held.claim.provider is not None:
                self.on_room()

    def lose(self, task_id: int, lease: int, why: str) -> None:
        """The attempt is over: stop the handler, drop what it reports."""
        held = self.held.get(task_id)
        if held is None or held.claim.lease != lease or held.lost:
            return
        held.lost = why
        if held.context is not None:
            held.context.stop()
        if held.runner is not None:
            held.runner.cancel()
        elif held in self.waiting:
            self.waiting.remove(held)
            self.on_drop(held)

    def touch(self) -> None:
        """Something changed: whoever waits looks again."""
        self._change.set()

    async def changed(self, timeout: float) -> None:  # noqa: ASYNC109 (at most so long, not at least)
        """Wait until a handler ends, or so long."""
        self._change.clear()
        try:
            await asyncio.wait_for(self._change.wait(), max(0.0, timeout))
        except TimeoutError:
            return
