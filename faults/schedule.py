"""Which faults happen when. The same seed gives the same schedule."""

from __future__ import annotations

import random
from dataclasses import dataclass

# Each fault: its relative frequency, and its name in the report.
FAULTS = {
    "worker.killed": (24, "kill -9 of a worker"),
    "worker.paused": (7, "SIGSTOP for longer than the lease, then SIGCONT"),
    "worker.stalled": (7, "SIGSTOP for just less than the lease, then SIGCONT"),
    "worker.drained": (6, "SIGTERM"),
    "worker.clock": (4, "a worker's wall clock jumps by up to a day"),
    "producer.killed": (5, "kill -9 of a producer"),
    "api.killed": (3, "kill -9 of the API"),
    "rpc.killed": (5, "kill -9 of a worker that only uses the HTTP API"),
    "link.cut": (7, "some connections are cut"),
    "link.half": (5, "some connections pass nothing any more in one direction, then break"),
    "link.slow": (4, "everything between clients and PostgreSQL takes longer"),
    "link.lost": (14, "an answer is lost after the server has done it"),
    "backend.ended": (6, "pg_terminate_backend of some sessions"),
    "backend.canceled": (4, "pg_cancel_backend of some statements"),
    "backend.killed": (1, "kill -9 of one process of PostgreSQL"),
    "postgres.killed": (2, "kill -9 of PostgreSQL and all its processes, then start"),
    "postgres.stopped": (1, "immediate stop, then start"),
    "disk.full": (0.7, "PostgreSQL's disk is full for some seconds"),
}
LOST = (b"complete_tasks", b"start_job", b"claim_tasks", b"COMMIT", b"fail_tasks", b"reschedule_tasks",
        b"heartbeat_tasks", b"record_usage", b"add_tasks")  # fmt: skip


@dataclass(frozen=True)
class Fault:
    """A fault and its time. `roll` and `size` (0 to 1) choose the victim and the extent."""

    at: float
    name: str
    roll: float
    size: float


def schedule(seed: int, seconds: float, every: float, left_out: set[str]) -> list[Fault]:
    """Each fault once, in random order, then at random by frequency; one per `every` seconds on average."""
    dice = random.Random(seed)
    weights = {name: weight for name, (weight, _) in FAULTS.items() if name not in left_out}
    first = sorted(weights)
    dice.shuffle(first)
    made: list[Fault] = []
    at = every
    while at < seconds:
        name = first.pop() if first else dice.choices(list(weights), list(weights.values()))[0]
        made.append(Fault(at, name, dice.random(), dice.random()))
        at += dice.expovariate(1 / every)
    return made
