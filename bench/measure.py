"""How every system here is measured, so that the figures can stand side by side.

A worker process and the benchmark share one small file (`Progress`): the worker says when it is loaded,
waits for the start, and notes the time of its first and last job. A handler therefore costs two clock reads
in every system, and the start-up of a language or framework costs nothing.

- enqueue: seconds for one client to have n jobs committed, connection open beforehand.
- drain: seconds from the start of the first job until the last of n has run and the store says that none is
  left. The store is asked only once all handlers have run, so that asking does not slow them down.
- latency: milliseconds from before one job is sent in this process to the start of its handler in another,
  idle one. CLOCK_MONOTONIC is the same clock for all processes on Linux, and for Node.js too.
"""

from __future__ import annotations

import mmap
import os
import random
import signal
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Protocol

import psycopg

REPOSITORY = Path(__file__).parent.parent
START_UP_SECONDS = 60.0
RUN_SECONDS = 300.0
STOP_SECONDS = 15.0
POLL_SECONDS = 0.002
# The first jobs pay for plans, caches and lazy imports; they are sent like the others and left out.
WARM_UP_JOBS = 20

# Words of the shared file, 64 bit each. Times are microseconds, which fit in a JavaScript number.
STATE, FIRST_START, LAST_END, COUNT, HEADER = 0, 1, 2, 3, 4
LOADED, STARTED = 1, 2


class System(Protocol):
    """What a module must offer to be measured."""

    NAME: str
    STORE: str
    """`postgresql` or `redis`: what its dsn leads to."""
    SCALE: float
    """Its share of the jobs: a slow system shows its rate with fewer of them."""

    def version(self) -> str: ...
    def prepare(self, dsn: str) -> None: ...
    def enqueue(self, dsn: str, n: int) -> float: ...
    def drain(self, dsn: str, n: int, processes: int) -> float: ...
    def latency(self, dsn: str, samples: int) -> list[float]: ...


@dataclass(frozen=True)
class Figure:
    name: str
    system: str
    value: float
    unit: str
    part: str = ""

    def as_dict(self) -> dict[str, str | float]:
        return asdict(self)


def microseconds() -> int:
    return time.monotonic_ns() // 1000


class Progress:
    """The shared file, as one process sees it."""

    def __init__(self, path: str | Path) -> None:
        with open(path, "r+b") as file:
            self.words = memoryview(mmap.mmap(file.fileno(), 0)).cast("q")

    @classmethod
    def of_this_worker(cls) -> Progress:
        return cls(os.environ["BENCH_PROGRESS"])

    def wait_for_start(self) -> None:
        """Called by a worker that has loaded everything and connected."""
        self.words[STATE] = LOADED
        while self.words[STATE] != STARTED:
            time.sleep(0.001)

    def job(self, sent: int = 0) -> None:
        """The handler. `sent` is when the job was sent, or 0 where its latency is not asked for."""
        words, now = self.words, microseconds()
        if not words[FIRST_START]:
            words[FIRST_START] = now
        if sent:
            words[HEADER + words[COUNT]] = now - sent
        words[LAST_END] = microseconds()
        words[COUNT] += 1


class Workers:
    """A number of worker processes of one system: loaded on entering, ended on leaving.

    `command` is run in the repository's root, with BENCH_DSN and BENCH_PROGRESS in its environment.
    """

    def __init__(self, command: Sequence[str], dsn: str, processes: int, samples: int = 0) -> None:
        self.command, self.dsn, self.samples = command, dsn, samples
        self.folder = tempfile.TemporaryDirectory(prefix="bench-workers-")
        self.progress: list[Progress] = []
        self.processes: list[subprocess.Popen[bytes]] = []
        self.number = processes

    def __enter__(self) -> Workers:
        try:
            for index in range(self.number):
                self._spawn(Path(self.folder.name), index)
            deadline = time.monotonic() + START_UP_SECONDS
            while any(progress.words[STATE] != LOADED for progress in self.progress):
                self._check(deadline)
                time.sleep(POLL_SECONDS)
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    def start(self) -> None:
        for progress in self.progress:
            progress.words[STATE] = STARTED

    def count(self) -> int:
        return sum(progress.words[COUNT] for progress in self.progress)

    def wait_for(self, jobs: int) -> None:
        deadline = time.monotonic() + RUN_SECONDS
        while self.count() < jobs:
            self._check(deadline)
            time.sleep(POLL_SECONDS)

    def first_start(self) -> int:
        return min(word for progress in self.progress if (word := progress.words[FIRST_START]))

    def last_end(self) -> int:
        return max(progress.words[LAST_END] for progress in self.progress)

    def latencies(self) -> list[float]:
        return [
            word / 1000
            for progress in self.progress
            for word in progress.words[HEADER : HEADER + progress.words[COUNT]]
        ]

    def _spawn(self, folder: Path, index: int) -> None:
        path = folder / f"progress-{index}"
        path.write_bytes(bytes(8 * (HEADER + self.samples)))
        self.progress.append(Progress(path))
        environment = os.environ | {"BENCH_DSN": self.dsn, "BENCH_PROGRESS": str(path)}
        with (folder / f"log-{index}").open("wb") as log:
            self.processes.append(
                subprocess.Popen(
                    self.command,
                    cwd=REPOSITORY,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,  # A group of its own, so that its children end with it.
                )
            )

    def _check(self, deadline: float) -> None:
        for index, process in enumerate(self.processes):
            if process.poll() is not None:
                raise RuntimeError(f"worker ended with {process.returncode}:\n{self._log(index)}")
        if time.monotonic() > deadline:
            raise TimeoutError(f"{self.count()} jobs done, then no more:\n{self._log(0)}")

    def _log(self, index: int) -> str:
        return (Path(self.folder.name) / f"log-{index}").read_text(errors="replace")[-3000:]

    def _stop(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGTERM)
        deadline = time.monotonic() + STOP_SECONDS
        for process in self.processes:
            try:
                process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        self.folder.cleanup()


def drain(command: Sequence[str], dsn: str, n: int, processes: int, left: Callable[[], int]) -> float:
    """Seconds that the workers take for the n jobs that wait. `left` asks the store how many remain."""
    with Workers(command, dsn, processes) as workers:
        workers.start()
        workers.wait_for(n)
        deadline = time.monotonic() + RUN_SECONDS
        while left():
            if time.monotonic() > deadline:
                raise TimeoutError(f"{left()} jobs have run but are not recorded as finished")
            time.sleep(POLL_SECONDS)
        seconds = (microseconds() - workers.first_start()) / 1e6
        if workers.count() != n:
            raise RuntimeError(f"{n} jobs were queued, {workers.count()} were run")
    return seconds


def drain_postgres(command: Sequence[str], dsn: str, n: int, processes: int, left: str) -> float:
    """`drain`, where the query `left` counts what the store still holds to do."""
    with psycopg.connect(dsn, autocommit=True) as connection:

        def count() -> int:
            row = connection.execute(left.encode()).fetchone()
            assert row
            return int(row[0])

        return drain(command, dsn, n, processes, count)


def latency(command: Sequence[str], dsn: str, samples: int, send: Callable[[int], object]) -> list[float]:
    """`send(sent)` enqueues one job that carries `sent`, from this process, over an open connection."""
    total = WARM_UP_JOBS + samples
    # Uneven gaps, the same in each run: an even beat could fall into step with somebody's polling.
    gaps = random.Random(1)
    with Workers(command, dsn, processes=1, samples=total) as workers:
        workers.start()
        for number in range(total):
            send(microseconds())
            if number == 0:
                workers.wait_for(1)  # By then the worker surely listens.
            time.sleep(gaps.uniform(0.020, 0.050))
        workers.wait_for(total)
        return workers.latencies()[WARM_UP_JOBS:]


@contextmanager
def timer() -> Iterator[Callable[[], float]]:
    """`with timer() as seconds: ...` then `seconds()`, which stands still after the block."""
    start = time.perf_counter()
    end: list[float] = []
    yield lambda: end[0] - start
    end.append(time.perf_counter())


def wal_position(dsn: str) -> int:
    with psycopg.connect(dsn, autocommit=True) as connection:
        row = connection.execute("SELECT pg_current_wal_insert_lsn() - '0/0'").fetchone()
    assert row
    return int(row[0])


def analyze(dsn: str) -> None:
    """What autovacuum would do within a minute: without it, plans for a table just filled are luck."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("ANALYZE")


def percentile(values: Iterable[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def measure(system: System, new_store: Callable[[], str], jobs: int, samples: int) -> list[Figure]:
    """One round for one system, each measurement on a store of its own: `new_store` returns its dsn."""
    label, n = f"{system.NAME} {system.version()}", max(1, round(jobs * system.SCALE))
    figures: list[Figure] = []
    for processes in (1, 2):
        dsn = new_store()
        system.prepare(dsn)
        in_postgres = system.STORE == "postgresql"
        wal = -wal_position(dsn) if in_postgres else 0
        enqueue_seconds = system.enqueue(dsn, n)
        if in_postgres:
            wal += wal_position(dsn)
            analyze(dsn)
            wal -= wal_position(dsn)
        drain_seconds = system.drain(dsn, n, processes)
        if processes == 1:
            figures.append(Figure("enqueue", label, n / enqueue_seconds, "jobs/s"))
            if in_postgres:
                figures.append(Figure("wal", label, (wal + wal_position(dsn)) / n, "bytes/job"))
        figures.append(Figure(f"drain_{processes}", label, n / drain_seconds, "jobs/s"))
    dsn = new_store()
    system.prepare(dsn)
    latencies = system.latency(dsn, samples)
    figures.append(Figure("latency_p50", label, percentile(latencies, 0.50), "ms"))
    figures.append(Figure("latency_p99", label, percentile(latencies, 0.99), "ms"))
    return figures


def medians(figures: Iterable[Figure]) -> list[Figure]:
    """One figure for each name and system, in the order in which they first came."""
    grouped: dict[tuple[str, str, str], list[float]] = {}
    for figure in figures:
        grouped.setdefault((figure.name, figure.system, figure.unit), []).append(figure.value)
    return [
        Figure(name, system, statistics.median(values), unit)
        for (name, system, unit), values in grouped.items()
    ]


COLUMNS = {
    "enqueue": "enqueue/s",
    "drain_1": "drain/s, 1 process",
    "drain_2": "drain/s, 2 processes",
    "latency_p50": "latency p50 ms",
    "latency_p99": "latency p99 ms",
    "wal": "WAL bytes/job",
}


def table(figures: Sequence[Figure]) -> str:
    """A Markdown table, one row for each system."""
    values = {(figure.system, figure.name): figure.value for figure in figures}
    rows = [["system", *COLUMNS.values()]]
    for system in dict.fromkeys(figure.system for figure in figures):
        cells = [values.get((system, name)) for name in COLUMNS]
        rows.append([system, *("-" if cell is None else _number(cell) for cell in cells)])
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    rows.insert(1, ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])])
    return "\n".join(
        "| " + " | ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) + " |"
        for row in rows
    )


def _number(value: float) -> str:
    return f"{value:.1f}" if value < 100 else f"{value:,.0f}"
