"""A day of an autoscaled pool with an outage of its provider: scaling on the backlog beside `wanted_slots`.

`python -m bench.autoscale` prints the table of docs/deploy/autoscaling.md. Steps of one second, no database:
tasks of two kinds arrive by a daily curve, one kind calls a provider with a window per minute, and the
provider is closed for two hours. The scaler polls every 30 seconds as KEDA does; a machine takes a minute to
start and leaves after five minutes in which it was not wanted. `wanted` follows `_endpoint_room` in
penstock/sql/functions/wanted.sql; tests/sql/test_wanted.py compares both.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field

HOUR = 3600
DAY = 24 * HOUR
WINDOW = 60


@dataclass(frozen=True)
class Kind:
    """A kind of task: mean arrivals per second over the day, its duration, and its provider's window."""

    name: str
    per_second: float
    seconds: int
    per_minute: int | None = None
    """Calls that its provider admits in a minute."""


@dataclass(frozen=True)
class Day:
    kinds: tuple[Kind, ...] = (
        Kind("write", 5.0, 20, per_minute=500),
        Kind("typeset", 10.0, 2),
    )
    outage: tuple[int, int] = (12 * HOUR, 14 * HOUR)
    slots: int = 20
    max_machines: int = 60
    poll: int = 30
    boot: int = 60
    cooldown: int = 300
    seconds: int = DAY


@dataclass
class Queue:
    kind: Kind
    line: deque[list[int]] = field(default_factory=deque[list[int]])
    """Arrival second and number."""
    waiting: int = 0
    running: int = 0
    fraction: float = 0.0
    ends: dict[int, int] = field(default_factory=dict[int, int])
    admitted: deque[tuple[int, int]] = field(default_factory=deque[tuple[int, int]])
    in_window: int = 0
    waits: dict[int, int] = field(default_factory=dict[int, int])

    def arrive(self, now: int) -> None:
        # Twice the mean at noon, nothing at midnight.
        self.fraction += self.kind.per_second * (1 - math.cos(2 * math.pi * now / DAY))
        count, self.fraction = int(self.fraction), self.fraction % 1
        if count:
            self.line.append([now, count])
            self.waiting += count

    def free_now(self, now: int) -> int | None:
        if self.kind.per_minute is None:
            return None
        while self.admitted and self.admitted[0][0] <= now - WINDOW:
            self.in_window -= self.admitted.popleft()[1]
        return self.kind.per_minute - self.in_window

    def start(self, now: int, most: int) -> int:
        """Start up to this many tasks."""
        free = self.free_now(now)
        count = min(self.waiting, most) if free is None else min(self.waiting, most, free)
        left = count
        while left:
            arrived, number = self.line[0]
            taken = min(left, number)
            self.waits[now - arrived] = self.waits.get(now - arrived, 0) + taken
            left -= taken
            if taken == number:
                self.line.popleft()
            else:
                self.line[0][1] -= taken
        if count:
            self.waiting -= count
            self.running += count
            self.ends[now + self.kind.seconds] = self.ends.get(now + self.kind.seconds, 0) + count
            if free is not None:
                self.admitted.append((now, count))
                self.in_window += count
        return count

    def end(self, now: int) -> None:
        self.running -= self.ends.pop(now, 0)

    def quantile(self, share: float) -> int:
        left = share * sum(self.waits.values())
        for seconds in sorted(self.waits):
            left -= self.waits[seconds]
            if left <= 0:
                return seconds
        return 0


def runnable(queue: Queue, now: int, is_closed: bool) -> int:
    """How many waiting tasks could run now, as `_endpoint_room` says it."""
    free = queue.free_now(now)
    if is_closed and free is not None:
        return 0
    if free is None or free >= queue.waiting:
        return queue.waiting
    assert queue.kind.per_minute is not None
    busy = math.ceil(queue.kind.per_minute / 60 * queue.kind.seconds)
    return min(queue.waiting, max(0, busy - queue.running))


@dataclass
class Result:
    machine_hours: float
    outage_machine_hours: float
    most_machines: int
    starts: int
    p95_wait: dict[str, int]
    waiting_at_end: int


def simulate(day: Day, metric: str) -> Result:
    """Run a day. `metric` is `backlog` (waiting and running) or `wanted`."""
    queues = [Queue(kind) for kind in day.kinds]
    machines, booting = 0, deque[int]()
    wanted_since: deque[tuple[int, int]] = deque()
    spent = outage = starts = most = 0
    for now in range(day.seconds):
        is_closed = day.outage[0] <= now < day.outage[1]
        for queue in queues:
            queue.end(now)
            queue.arrive(now)
        while booting and booting[0] <= now:
            booting.popleft()
            machines += 1
        if now % day.poll == 0:
            slots = sum(
                queue.running + (queue.waiting if metric == "backlog" else runnable(queue, now, is_closed))
                for queue in queues
            )
            desired = min(day.max_machines, math.ceil(slots / day.slots))
            wanted_since.append((now, desired))
            while wanted_since[0][0] < now - day.cooldown:
                wanted_since.popleft()
            more = desired - machines - len(booting)
            starts += max(0, more)
            booting.extend(now + day.boot for _ in range(more))
            # Never below what runs: a machine that drains is not counted as gone.
            floor = math.ceil(sum(queue.running for queue in queues) / day.slots)
            machines = max(floor, min(machines, max(each for _, each in wanted_since)))
        free = machines * day.slots - sum(queue.running for queue in queues)
        # Kinds take turns, as lanes do in a claim.
        for queue in queues if now % 2 else reversed(queues):
            if not (is_closed and queue.kind.per_minute is not None):
                free -= queue.start(now, max(0, free))
        paid = machines + len(booting)
        spent += paid
        outage += paid if is_closed else 0
        most = max(most, paid)
    return Result(
        spent / HOUR, outage / HOUR, most, starts,
        {queue.kind.name: queue.quantile(0.95) for queue in queues},
        sum(queue.waiting for queue in queues),
    )  # fmt: skip


def table(day: Day) -> list[str]:
    """The comparison as a Markdown table."""
    found = {metric: simulate(day, metric) for metric in ("backlog", "wanted")}
    rows = [
        ("machine hours of the day", [f"{each.machine_hours:,.0f}" for each in found.values()]),
        (
            "machine hours in the outage (2 h)",
            [f"{each.outage_machine_hours:,.0f}" for each in found.values()],
        ),
        ("most machines", [str(each.most_machines) for each in found.values()]),
        *(
            (f"p95 wait of `{kind.name}`", [f"{each.p95_wait[kind.name]:,} s" for each in found.values()])
            for kind in day.kinds
        ),
        ("tasks still waiting at midnight", [f"{each.waiting_at_end:,}" for each in found.values()]),
    ]
    head = ["| | waiting + running | `wanted_slots` |", "|---|---|---|"]
    return head + [f"| {name} | {' | '.join(values)} |" for name, values in rows]


if __name__ == "__main__":
    print("\n".join(table(Day())))
