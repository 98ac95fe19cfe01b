"""The same systems under pressure. See `bench.measure` for ideal conditions.

All are driven through `measure.System`, so that each measure is one function for all of them:

- half load: latency while jobs arrive at half the rate at which the system drains, in bunches at fixed times,
  regardless of the system's progress.
- kept: drain with many ended jobs in the store, for systems that keep them.
- deep: drain with many more jobs waiting than will be run.
- neighbour: how long a single job waits behind another caller's large backlog. Systems that do not
  distinguish callers have one queue for both, as by default. If the job does not start soon, its wait is
  computed as the remaining backlog divided by the rate.
- held: drain after a snapshot was open under half load, as by a long report or a forgotten session.
- idle: the load of 200 idle workers on the database.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from statistics import median

import psycopg

from bench.measure import (
    FLUSH_SECONDS,
    POLL_SECONDS,
    RUN_SECONDS,
    Client,
    Figure,
    System,
    Workers,
    analyze,
    drain,
    label,
    microseconds,
    none_left,
    percentile,
    spent,
)

Store = Callable[[], AbstractContextManager[str]]
BUNCH_SECONDS = 0.020
SETTLE_SECONDS = 1.0
SMALL_JOBS = 20
# Idle workers are spread over at most this many processes.
IDLE_PROCESSES = 20


@dataclass(frozen=True)
class Sizes:
    jobs: int
    """The number of jobs for a drain of a system with SCALE 1."""
    load_seconds: float
    held_seconds: float
    kept: int
    backlog: int
    deep: int
    """For a system with SCALE 1; a slower one gets its share, but at least the backlog."""
    look_seconds: float
    """How long to measure overloaded workers."""
    patience: float
    """Seconds after which the wait of the neighbour's job is computed instead of measured."""
    workers: int
    idle_seconds: float


FULL = Sizes(20_000, 6, 12, 1_000_000, 1_000_000, 5_000_000, 3, 10, 200, 10)
QUICK = Sizes(2_000, 1.5, 1.5, 20_000, 60_000, 120_000, 0.5, 0.5, 20, 1.5)

COLUMNS = {
    "half_p50": "p50 ms at half load",
    "half_p99": "p99 ms at half load",
    "kept_drain": "drain/s, ended jobs kept",
    "deep_drain": "drain/s at depth",
    "neighbour_wait": "wait beside a backlog, s",
    "held_drain": "drain/s after a held snapshot",
    "idle_transactions": "idle workers: transactions/s",
    "idle_cpu": "idle workers: CPU %",
}


def pressure(system: System, store: Store, sizes: Sizes) -> list[Figure]:
    name, n = label(system), max(1, round(sizes.jobs * system.SCALE))
    with store() as dsn:
        system.prepare(dsn)
        with system.client(dsn) as client:
            rate = full_rate(system, dsn, client, n)
            latencies = load(system, dsn, client, rate / 2, sizes.load_seconds)
    figures = [
        Figure("shallow_drain", name, rate, "jobs/s"),
        Figure("half_p50", name, percentile(latencies, 0.50), "ms"),
        Figure("half_p99", name, percentile(latencies, 0.99), "ms"),
    ]
    if system.STORE != "postgresql":
        return figures
    for measured in (kept, backlog, held, idle):
        with store() as dsn:
            system.prepare(dsn)
            figures += measured(system, dsn, sizes, n, rate)
    return figures


def full_rate(system: System, dsn: str, client: Client, n: int) -> float:
    client.send_many(n, 0)
    if system.STORE == "postgresql":
        analyze(dsn)
    return n / drain(system, dsn, client, n)


def load(system: System, dsn: str, client: Client, rate: float, seconds: float) -> list[float]:
    """Milliseconds from when each job was due to be sent to its start."""
    bunch = max(1, round(rate * BUNCH_SECONDS))
    bunches = max(1, round(rate * seconds / bunch))
    with Workers(system.command(), dsn, 1, samples=1 + bunch * bunches) as workers:
        workers.start()
        client.send(microseconds())
        workers.wait_for(1)
        begun = time.monotonic()
        for number in range(bunches):
            due = begun + number * bunch / rate
            time.sleep(max(0.0, due - time.monotonic()))
            client.send_many(bunch, int(due * 1e6))
        workers.wait_for(1 + bunch * bunches)
        none_left(client)
        return workers.latencies()[1:]


def kept(system: System, dsn: str, sizes: Sizes, n: int, rate: float) -> list[Figure]:
    if system.keep is None:
        return []
    system.keep(dsn, sizes.kept)
    with system.client(dsn) as client:
        return [Figure("kept_drain", label(system), full_rate(system, dsn, client, n), "jobs/s")]


def backlog(system: System, dsn: str, sizes: Sizes, n: int, rate: float) -> list[Figure]:
    """Measure the neighbour first, then a deeper backlog."""
    if system.fill is None:
        return []
    system.fill(dsn, sizes.backlog)
    analyze(dsn)
    with (
        system.client(dsn) as client,
        Workers(system.command(), dsn, 1, samples=SMALL_JOBS) as workers,
    ):
        running_rate(workers, sizes.look_seconds / 2)
        for _ in range(SMALL_JOBS):
            client.send(microseconds())
            time.sleep(0.02)
        deadline = time.monotonic() + sizes.patience
        while workers.sampled() < SMALL_JOBS and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)
        if workers.sampled() == SMALL_JOBS:
            wait = median(workers.latencies()) / 1000
        else:
            wait = (sizes.backlog - workers.count()) / running_rate(workers, sizes.look_seconds)
        done = workers.count()
    system.fill(dsn, max(sizes.backlog, round(sizes.deep * system.SCALE)) - sizes.backlog + done)
    analyze(dsn)
    with Workers(system.command(), dsn, 1) as workers:
        deep = running_rate(workers, sizes.look_seconds)
    return [
        Figure("neighbour_wait", label(system), wait, "s"),
        Figure("deep_drain", label(system), deep, "jobs/s"),
    ]


def running_rate(workers: Workers, seconds: float) -> float:
    """Jobs per second of overloaded workers, once they are running."""
    workers.start()
    workers.wait_for(1)
    time.sleep(SETTLE_SECONDS / 2)
    begun, before = time.monotonic(), workers.count()
    while workers.count() == before or time.monotonic() - begun < seconds:
        if time.monotonic() - begun > RUN_SECONDS:
            raise TimeoutError("the workers have stopped")
        time.sleep(POLL_SECONDS)
    return (workers.count() - before) / (time.monotonic() - begun)


def held(system: System, dsn: str, sizes: Sizes, n: int, rate: float) -> list[Figure]:
    with psycopg.connect(dsn) as holder, system.client(dsn) as client:
        holder.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        holder.execute("SELECT count(*) FROM pg_class")
        load(system, dsn, client, rate / 2, sizes.held_seconds)
        after = full_rate(system, dsn, client, n)
        holder.rollback()
    return [Figure("held_drain", label(system), after, "jobs/s")]


def idle(system: System, dsn: str, sizes: Sizes, n: int, rate: float) -> list[Figure]:
    each = min(system.PER_PROCESS, sizes.workers)
    processes = min(IDLE_PROCESSES, sizes.workers // each)
    # With one worker per process this would need hundreds: fewer are measured, and the result is scaled.
    times = sizes.workers / (each * processes)
    with Workers(system.command(), dsn, processes, each=each) as workers:
        workers.start()
        settle(dsn)
        time.sleep(sizes.idle_seconds)
        before, begun = spent(dsn), time.monotonic()
        time.sleep(sizes.idle_seconds)
        used, seconds = spent(dsn) - before, time.monotonic() - begun
    time.sleep(FLUSH_SECONDS)
    return [
        Figure("idle_transactions", label(system), times * used.transactions / seconds, "transactions/s"),
        Figure("idle_cpu", label(system), 100 * times * used.cpu / seconds, "% of a core"),
    ]


def settle(dsn: str) -> None:
    """Wait until no new connections appear: the workers have started."""
    deadline = time.monotonic() + 60
    with psycopg.connect(dsn, autocommit=True) as connection:
        connections, since = -1, time.monotonic()
        while time.monotonic() - since < SETTLE_SECONDS and time.monotonic() < deadline:
            row = connection.execute("SELECT count(*) FROM pg_stat_activity").fetchone()
            assert row
            if row[0] > connections:
                connections, since = row[0], time.monotonic()
            time.sleep(0.1)
