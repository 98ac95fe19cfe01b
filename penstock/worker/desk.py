"""What lies on a worker's desk: tasks it holds, and room for more. The loops share this and nothing else."""

from __future__ import annotations

import asyncio
import time
from collections import deque

from penstock import db
from penstock.app import App, Context
from penstock.tasks import Claim


class Held:
    """A task this worker has the lease of."""

    __slots__ = ("claim", "context", "lost", "runner")

    def __init__(self, claim: Claim) -> None:
        self.claim = claim
        self.context: Context | None = None
        self.runner: asyncio.Task[None] | None = None
        self.lost: str | None = None
        """Why the lease is gone: `lease_lost`, `canceled`, or `handed_back` when we are closing."""


class Desk:
    """The tasks a worker holds: waiting in the buffer, running, or being reported."""

    # What a quarter of a second of work is worth is taken in advance: nothing when tasks are slow, so that
    # another worker can have them, hundreds when they are quick.
    AHEAD_SECONDS = 0.25

    def __init__(
        self, worker_id: str, app: App, pool: db.Pool, concurrency: int, buffer: int, lease_seconds: int, kinds: list[str]
    ) -> None:
        self.worker_id, self.app, self.pool = worker_id, app, pool
        self.concurrency, self.lease_seconds, self.kinds = concurrency, lease_seconds, kinds
        self.held: dict[int, Held] = {}
        self.waiting: deque[Held] = deque()
        self.running = 0
        self.ended = 0
        self.is_closing = False
        self.beaten_at = time.monotonic()
        self._max_ahead = buffer
        self._idle: deque[asyncio.Future[None]] = deque()
        self._change = asyncio.Event()
        self._rate = 0.0
        self._rated_at = time.monotonic()
        self._rated_ended = 0

    def room(self) -> int:
        """How many more tasks to claim now."""
        now = time.monotonic()
        if now - self._rated_at > 0.05:
            fresh = (self.ended - self._rated_ended) / (now - self._rated_at)
            self._rate = fresh if self._rate == 0 else 0.5 * self._rate + 0.5 * fresh
            self._rated_at, self._rated_ended = now, self.ended
        ahead = min(self._max_ahead, int(self._rate * self.AHEAD_SECONDS))
        room = self.concurrency + ahead - len(self.waiting) - self.running
        # A handful of free places beside hundreds taken is not worth a round trip.
        return room if room >= (self.concurrency + ahead) // 2 or not self.waiting else 0

    def arrive(self, claims: list[Claim]) -> None:
        """Put claimed tasks into the buffer."""
        for claim in claims:
            held = Held(claim)
            self.held[claim.id] = held
            self.waiting.append(held)
        for _ in range(min(len(claims), len(self._idle))):
            self._wake_one()

    async def take(self) -> Held:
        """The next task to run."""
        while not self.waiting:
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

    def _wake_one(self) -> None:
        while self._idle:
            turn = self._idle.popleft()
            if not turn.done():
                turn.set_result(None)
                return

    def take_buffered(self) -> list[Held]:
        """Everything that has not begun."""
        taken = list(self.waiting)
        self.waiting.clear()
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

    def lose(self, task_id: int, lease: int, why: str) -> None:
        """The lease is gone: stop the handler, drop what it reports."""
        held = self.held.get(task_id)
        if held is None or held.claim.lease != lease or held.lost:
            return
        held.lost = why
        if held.context is not None:
            held.context.stop()
        if held.runner is not None:
            held.runner.cancel()
        if held in self.waiting:
            self.waiting.remove(held)
            self.forget(task_id, lease)

    def lose_all(self, why: str) -> None:
        """No heartbeat got through for a whole lease: others may have our tasks by now."""
        for held in list(self.held.values()):
            self.lose(held.claim.id, held.claim.lease, why)

    async def changed(self, timeout: float) -> None:  # noqa: ASYNC109 (at most so long, not at least)
        """Wait until a handler ends, or so long."""
        self._change.clear()
        try:
            await asyncio.wait_for(self._change.wait(), max(0.0, timeout))
        except TimeoutError:
            return
