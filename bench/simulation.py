"""Workers, lanes and tenants in virtual time, by the rules of penstock/sql/functions/queue.sql and flow.sql.

Modelled: slots of virtual time per lane and tenant, sliding windows and concurrency of limited lanes, workers
that claim when they have free slots and are notified of new tasks (and back off after an empty claim),
reports in batches, and a database whose cores serve one call after another at measured costs. Not modelled:
failures, heartbeats, disks, and the prefetching of tasks that take milliseconds. `bench.scale` checks it
against real runs.
"""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import count

from penstock.worker.wake import Wake

STEP = 1_000_000
WINDOW_SECONDS = 60.0


@dataclass(frozen=True)
class Costs:
    """Seconds of one database core: per call, and per task in it."""

    claim: float
    claim_each: float
    complete: float
    complete_each: float
    start: float
    start_each: float
    round_trip: float = 0.0005
    """Seconds that a call takes besides the database's work."""


@dataclass(frozen=True)
class Limits:
    """The limits of a lane."""

    requests_per_minute: int | None = None
    concurrency: int | None = None
    closed: tuple[float, float] | None = None
    """From when to when the provider is away."""

    def is_closed(self, now: float) -> bool:
        return self.closed is not None and self.closed[0] <= now < self.closed[1]


Steps = tuple[tuple[str, float], ...]
"""The steps of a task chain: lanes and seconds."""


@dataclass(frozen=True)
class Arrival:
    """A number of task chains that are queued at once; each step is queued when the one before has ended."""

    at: float
    tenant: int
    count: int
    steps: Steps


@dataclass
class Task:
    vtime: int
    order: int
    tenant: int
    steps: Steps
    queued_at: float

    @property
    def lane(self) -> str:
        return self.steps[0][0]

    @property
    def seconds(self) -> float:
        return self.steps[0][1]

    def __lt__(self, other: Task) -> bool:
        return (self.vtime, self.order) < (other.vtime, other.order)


@dataclass
class Lane:
    limits: Limits
    line: list[Task] = field(default_factory=list[Task])
    clock: int = 0
    tails: dict[int, int] = field(default_factory=dict[int, int])
    admitted: deque[float] = field(default_factory=deque[float])
    running: int = 0

    def put(self, tasks: Iterable[Task], weights: dict[int, float]) -> None:
        for task in tasks:
            start = max(self.clock, self.tails.get(task.tenant, 0))
            task.vtime = start + round(STEP / weights.get(task.tenant, 1.0))
            self.tails[task.tenant] = task.vtime
            heapq.heappush(self.line, task)

    def take(self, most: int, now: float) -> list[Task]:
        """The tasks with the lowest slots, as far as the limits allow."""
        room = 0 if self.limits.is_closed(now) else most
        if self.limits.concurrency is not None:
            room = min(room, self.limits.concurrency - self.running)
        if self.limits.requests_per_minute is not None:
            while self.admitted and self.admitted[0] <= now - WINDOW_SECONDS:
                self.admitted.popleft()
            room = min(room, self.limits.requests_per_minute - len(self.admitted))
        taken = [heapq.heappop(self.line) for _ in range(min(room, len(self.line)))]
        if taken:
            self.clock = max(self.clock, taken[-1].vtime)
            self.running += len(taken)
            if self.limits.requests_per_minute is not None:
                self.admitted.extend(now for _ in taken)
        return taken

    def opens_at(self, now: float) -> float | None:
        """When its window admits the waiting tasks again."""
        if self.line and self.limits.closed is not None and self.limits.is_closed(now):
            return self.limits.closed[1]
        if not self.line or self.limits.requests_per_minute is None:
            return None
        return max(now, self.admitted[0] + WINDOW_SECONDS) if self.admitted else now


@dataclass
class Worker:
    free: int
    is_asking: bool = False
    was_called: bool = False
    is_first: bool = False
    """Whether its claim is the first after a notification."""
    calm: float = 0.0
    """How long it backs off at most after a notification."""
    is_due: bool = False
    pause: float = 0.0
    looks: int = 0
    ended: list[Task] = field(default_factory=list[Task])
    is_reporting: bool = False


@dataclass
class Outcome:
    """Results by tenant: waits (from queued to claimed) and ends; and the load."""

    waits: dict[int, list[float]] = field(default_factory=dict[int, list[float]])
    ends: dict[int, list[float]] = field(default_factory=dict[int, list[float]])
    seconds: float = 0.0
    claims: int = 0
    empty_claims: int = 0
    database_busy: float = 0.0
    slots_busy: float = 0.0


class Simulation:
    """One run. All randomness comes from the seed."""

    def __init__(
        self,
        costs: Costs,
        *,
        cores: int,
        workers: int,
        slots: int,
        lanes: dict[str, Limits],
        weights: dict[int, float] | None = None,
        seed: int = 1,
    ) -> None:
        self._costs = costs
        self._cores = [0.0] * cores
        self._workers = [Worker(slots) for _ in range(workers)]
        self._lanes = {name: Lane(limits) for name, limits in lanes.items()}
        self._weights = weights or {}
        self._dice = random.Random(seed)
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()
        self._now = 0.0
        self._left = 0
        self.outcome = Outcome()
        for worker in self._workers:
            self._at(self._dice.uniform(0, 0.01), lambda worker=worker: self._look(worker))

    def add(self, arrivals: Iterable[Arrival]) -> None:
        for arrival in arrivals:
            self._left += arrival.count * len(arrival.steps)
            self._at(arrival.at, lambda arrival=arrival: self._start(arrival))

    def run(self, until: float = float("inf")) -> Outcome:
        """Continue until this time, or until all tasks have ended."""
        while self._left and self._events[0][0] <= until:
            self._now, _, act = heapq.heappop(self._events)
            act()
        return self.outcome

    def _at(self, when: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._events, (when, next(self._numbers), act))

    def _ask(self, cost: float, then: Callable[[], None]) -> None:
        """A call waits for a core, then uses it for its cost."""
        begun = max(self._now, heapq.heappop(self._cores))
        heapq.heappush(self._cores, begun + cost)
        self.outcome.database_busy += cost
        self._at(begun + cost + self._costs.round_trip, then)

    def _start(self, arrival: Arrival) -> None:
        tasks = [
            Task(0, next(self._numbers), arrival.tenant, arrival.steps, self._now)
            for _ in range(arrival.count)
        ]
        cost = self._costs.start + arrival.count * len(arrival.steps) * self._costs.start_each
        self._ask(cost, lambda: self._queue(tasks))

    def _queue(self, tasks: list[Task]) -> None:
        for task in tasks:
            task.queued_at = self._now
        for name in dict.fromkeys(task.lane for task in tasks):
            self._lanes[name].put((task for task in tasks if task.lane == name), self._weights)
        self._call_all()

    def _call_all(self) -> None:
        for worker in self._workers:
            if worker.is_asking:
                worker.was_called = True
            elif worker.free and not worker.is_due:
                self._called(worker)

    def _called(self, worker: Worker) -> None:
        worker.is_due = True
        self._at(self._now + self._dice.uniform(0, worker.calm), lambda: self._go(worker))

    def _go(self, worker: Worker) -> None:
        worker.is_due = False
        if not worker.is_asking:
            worker.is_first = True
            self._look(worker)

    def _look(self, worker: Worker) -> None:
        if worker.is_asking or not worker.free:
            return
        worker.is_asking, worker.was_called = True, False
        worker.looks += 1
        names = list(self._lanes)
        self._dice.shuffle(names)
        taken: list[Task] = []
        # The claimed tasks are chosen when the call is served, because its cost depends on them.
        for name in names:
            taken += self._lanes[name].take(worker.free - len(taken), self._now)
        self.outcome.claims += 1
        self.outcome.empty_claims += not taken
        worker.free -= len(taken)
        cost = self._costs.claim + len(taken) * self._costs.claim_each
        self._ask(cost, lambda: self._claimed(worker, taken))

    def _claimed(self, worker: Worker, taken: list[Task]) -> None:
        worker.is_asking = False
        for task in taken:
            self.outcome.waits.setdefault(task.tenant, []).append(self._now - task.queued_at)
            self._at(self._now + task.seconds, lambda task=task: self._ended(worker, task))
        if worker.is_first:
            worker.calm = 0.0 if taken else min(Wake.MAX_BACKOFF_SECONDS, max(0.01, 2 * worker.calm))
        worker.is_first = False
        if taken:
            worker.pause = 0.0
            self._look(worker)
            return
        if worker.was_called and not worker.is_due:
            self._called(worker)
        first, last = Wake.POLL_SECONDS
        worker.pause = min(last, max(first, worker.pause * 2))
        again = self._now + worker.pause * self._dice.uniform(0.5, 1)
        openings = [lane.opens_at(self._now) for lane in self._lanes.values()]
        opening = min((opening for opening in openings if opening is not None), default=None)
        if opening is not None:
            again = min(again, opening + self._dice.uniform(0, 0.05))
        looks = worker.looks
        self._at(again, lambda: self._look(worker) if worker.looks == looks else None)

    def _ended(self, worker: Worker, task: Task) -> None:
        worker.free += 1
        worker.ended.append(task)
        self.outcome.slots_busy += task.seconds
        if not worker.is_reporting:
            self._report(worker)
        self._look(worker)

    def _report(self, worker: Worker) -> None:
        ended, worker.ended = worker.ended, []
        worker.is_reporting = True
        cost = self._costs.complete + len(ended) * self._costs.complete_each
        self._ask(cost, lambda: self._reported(worker, ended))

    def _reported(self, worker: Worker, ended: list[Task]) -> None:
        worker.is_reporting = False
        freed: list[Task] = []
        is_room = False
        self._left -= len(ended)
        for task in ended:
            self._lanes[task.lane].running -= 1
            is_room = is_room or self._lanes[task.lane].limits.concurrency is not None
            self.outcome.ends.setdefault(task.tenant, []).append(self._now)
            if task.steps[1:]:
                freed.append(Task(0, next(self._numbers), task.tenant, task.steps[1:], self._now))
        self.outcome.seconds = self._now
        if freed:
            self._queue(freed)
        if is_room:
            # A slot of the provider is free: the worker that reported claims again, as the task buffer does.
            self._look(worker)
        if worker.ended:
            self._report(worker)
