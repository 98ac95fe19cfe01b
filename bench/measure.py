"""Measures every system in the same way, so that the figures can be compared.

A worker process and the benchmark share one small file (`Progress`): the worker records when it is loaded,
waits for the start, and records the time of its first and last job. A handler therefore costs two clock reads
in every system, and the start-up of a language or framework costs nothing.

- enqueue: seconds for one client to have n jobs committed, connection open beforehand.
- drain: seconds from the start of the first job until the last of n has run and the store says that none is
  left. The store is asked only once all handlers have run, so that asking does not slow them down.
- latency: milliseconds from before one job is sent in this process to the start of its handler in another,
  idle one. CLOCK_MONOTONIC is the same clock for all processes on Linux, and for Node.js too.
- WAL, dead row versions and CPU: what the whole server spent from the first enqueue to the end of the drain,
  per job. A row version is dead once its row was updated or deleted; vacuum has to remove it.

`bench/pressure.py` puts the same systems under pressure.
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
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Protocol

import psycopg

REPOSITORY = Path(__file__).parent.parent
START_UP_SECONDS = 60.0
RUN_SECONDS = 300.0
STOP_SECONDS = 3.0
FINISH_SECONDS = 30.0
# A backend flushes its statistics when it ends, soon after its client.
FLUSH_SECONDS = 0.5
POLL_SECONDS = 0.002
# The first jobs include plans, caches and lazy imports, so they are not counted.
WARM_UP_JOBS = 20

# The 64-bit fields of the shared file. Times are in microseconds, which fit in a JavaScript number.
STATE, FIRST_START, LAST_END, COUNT, SAMPLES, HEADER = 0, 1, 2, 3, 4, 5
LOADED, STARTED = 1, 2


@dataclass(frozen=True)
class Client:
    """One producer with its connection open."""

    send: Callable[[int], object]
    """Send one job with this number: the time when it is sent."""
    send_many: Callable[[int, int], object]
    """Send this many jobs in the fastest way, each with this number, or 0 if it is not needed."""
    left: Callable[[], int]
    """The number of unfinished jobs in the store."""


class System(Protocol):
    """The interface of a measured system."""

    NAME: str
    STORE: str
    """The server of its dsn: `postgresql` or `redis`."""
    SCALE: float
    """Its share of the jobs: a slow system shows its rate with fewer of them."""
    PER_PROCESS: int
    """How many workers can live in one process: all that BENCH_WORKERS asks for, or 1."""
    fill: Callable[[str, int], object] | None
    """Insert waiting jobs as `send_many` would, of another caller than `send`'s if the system distinguishes
    callers. None if there is no fast way."""
    keep: Callable[[str, int], object] | None
    """Insert ended jobs as the system keeps them. None if it deletes them."""

    def version(self) -> str: ...
    def prepare(self, dsn: str) -> None: ...
    def command(self) -> Sequence[str]: ...
    def client(self, dsn: str) -> AbstractContextManager[Client]: ...


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
        """Called by a worker once it is loaded and connected."""
        self.words[STATE] = LOADED
        while self.words[STATE] != STARTED:
            time.sleep(0.001)

    def job(self, sent: int = 0) -> None:
        """The handler. `sent` is when the job was sent, or 0 if its latency is not measured."""
        words, now = self.words, microseconds()
        if not words[FIRST_START]:
            words[FIRST_START] = now
        if sent:
            words[HEADER + words[SAMPLES]] = now - sent
            words[SAMPLES] += 1
        words[LAST_END] = microseconds()
        words[COUNT] += 1


class Workers:
    """A number of worker processes of one system: loaded on entering, ended on leaving.

    `command` is run in the repository's root, with BENCH_DSN and BENCH_PROGRESS in its environment, and
    BENCH_WORKERS, the number of workers in each process.
    """

    def __init__(
        self, command: Sequence[str], dsn: str, processes: int, samples: int = 0, each: int = 1
    ) -> None:
        self.command, self.dsn, self.samples, self.each = command, dsn, samples, each
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

    def sampled(self) -> int:
        return sum(progress.words[SAMPLES] for progress in self.progress)

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
            for word in progress.words[HEADER : HEADER + progress.words[SAMPLES]]
        ]

    def _spawn(self, folder: Path, index: int) -> None:
        path = folder / f"progress-{index}"
        path.write_bytes(bytes(8 * (HEADER + self.samples)))
        self.progress.append(Progress(path))
        environment = os.environ | {
            "BENCH_DSN": self.dsn,
            "BENCH_PROGRESS": str(path),
            "BENCH_WORKERS": str(self.each),
        }
        with (folder / f"log-{index}").open("wb") as log:
            self.processes.append(
                subprocess.Popen(
                    self.command,
                    cwd=REPOSITORY,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,  # Its own process group, so that its children end with it.
                )
            )

    def _check(self, deadline: float) -> None:
        for index, process in enumerate(self.processes):
            if process.poll() is not None:
                raise RuntimeError(f"worker ended with {process.returncode}:\n{self._log(index)}")
        if time.monotonic() > deadline:
            raise TimeoutError(f"{self.count()} jobs done, then no progress:\n{self._log(0)}")

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


def workers_here() -> range:
    """For a worker process: one for each worker that is to live in it."""
    return range(int(os.environ.get("BENCH_WORKERS", "1")))


def none_left(client: Client) -> int:
    """The time of the query that found no job left; the query's own duration does not count."""
    deadline = time.monotonic() + FINISH_SECONDS
    asked = microseconds()
    while left := client.left():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{left} jobs have run but are not recorded as finished")
        time.sleep(POLL_SECONDS)
        asked = microseconds()
    return asked


def drain(system: System, dsn: str, client: Client, n: int, processes: int = 1) -> float:
    """Seconds that the workers take for n waiting jobs."""
    with Workers(system.command(), dsn, processes) as workers:
        workers.start()
        workers.wait_for(n)
        seconds = (none_left(client) - workers.first_start()) / 1e6
        if workers.count() != n:
            raise RuntimeError(f"{n} jobs were queued, {workers.count()} were run")
    return seconds


def latency(system: System, dsn: str, client: Client, samples: int) -> list[float]:
    total = WARM_UP_JOBS + samples
    # Uneven gaps, the same in each run, because even ones could coincide with a system's polling.
    gaps = random.Random(1)
    with Workers(system.command(), dsn, processes=1, samples=total) as workers:
        workers.start()
        for number in range(total):
            client.send(microseconds())
            if number == 0:
                workers.wait_for(1)  # By then the worker is listening.
            time.sleep(gaps.uniform(0.020, 0.050))
        workers.wait_for(total)
        return workers.latencies()[WARM_UP_JOBS:]


@contextmanager
def counting(dsn: str, query: str) -> Iterator[Callable[[], int]]:
    """`Client.left` by a query."""
    with psycopg.connect(dsn, autocommit=True) as connection:

        def count() -> int:
            row = connection.execute(query.encode()).fetchone()
            assert row
            return int(row[0])

        yield count


def statement(query: str) -> Callable[[str, int], object]:
    """`System.fill` or `keep` by a statement with %(n)s, in batches."""

    def run(dsn: str, n: int) -> None:
        # A client-side cursor, which can send several statements at once.
        with psycopg.connect(dsn, autocommit=True, cursor_factory=psycopg.ClientCursor) as connection:
            for done in range(0, n, 500_000):
                connection.execute(query.encode(), {"n": min(500_000, n - done)})

    return run


@contextmanager
def timer() -> Iterator[Callable[[], float]]:
    """`with timer() as seconds: ...` then `seconds()`, which stands still after the block."""
    start = time.perf_counter()
    end: list[float] = []
    yield lambda: end[0] - start
    end.append(time.perf_counter())


@dataclass(frozen=True)
class Spent:
    """The resources used so far by a server and one of its databases."""

    cpu: float
    wal: float
    dead: float
    transactions: float

    def __sub__(self, before: Spent) -> Spent:
        return Spent(*(getattr(self, name) - getattr(before, name) for name in asdict(self)))

    def __add__(self, more: Spent) -> Spent:
        return Spent(*(getattr(self, name) + getattr(more, name) for name in asdict(self)))


_SPENT = """
SELECT split_part(pg_read_file('postmaster.pid'), E'\\n', 1), pg_current_wal_insert_lsn() - '0/0',
  (SELECT coalesce(sum(n_tup_upd + n_tup_del), 0) FROM pg_stat_user_tables),
  (SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = current_database())
"""


def spent(dsn: str) -> Spent:
    with psycopg.connect(dsn, autocommit=True) as connection:
        row = connection.execute(_SPENT).fetchone()
    assert row
    return Spent(_cpu_seconds(int(row[0])), *map(float, row[1:]))


def _cpu_seconds(postmaster: int) -> float:
    """CPU time of the server's processes: of running ones, and of ended ones from their parent."""
    ticks = 0
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(path.parent.name) == postmaster:
            ticks += sum(map(int, fields[11:15]))
        elif int(fields[1]) == postmaster:
            ticks += sum(map(int, fields[11:13]))
    return ticks / os.sysconf("SC_CLK_TCK")


def analyze(dsn: str) -> None:
    """Vacuum and analyze as autovacuum would within a minute; without it, plans are arbitrary."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("ANALYZE")


def percentile(values: Iterable[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def label(system: System) -> str:
    return f"{system.NAME} {system.version()}"


def measure(
    system: System, store: Callable[[], AbstractContextManager[str]], jobs: int, samples: int
) -> list[Figure]:
    """One round for one system, each measurement in its own store."""
    name, n = label(system), max(1, round(jobs * system.SCALE))
    in_postgres = system.STORE == "postgresql"
    figures: list[Figure] = []
    for processes in (1, 2):
        with store() as dsn:
            system.prepare(dsn)
            with system.client(dsn) as client:
                before = spent(dsn) if in_postgres else None
                with timer() as seconds:
                    client.send_many(n, 0)
                figures += [Figure("enqueue", name, n / seconds(), "jobs/s")] if processes == 1 else []
                sent = spent(dsn) if in_postgres else None
                if in_postgres:
                    analyze(dsn)
                analyzed = spent(dsn) if in_postgres else None
                rate = n / drain(system, dsn, client, n, processes)
            figures.append(Figure(f"drain_{processes}", name, rate, "jobs/s"))
            if processes == 1 and before and sent and analyzed:
                time.sleep(FLUSH_SECONDS)
                used = sent - before + (spent(dsn) - analyzed)
                figures += [
                    Figure("wal", name, used.wal / n, "bytes/job"),
                    Figure("dead", name, used.dead / n, "row versions/job"),
                    Figure("cpu", name, 1e6 * used.cpu / n, "µs/job"),
                ]
    with store() as dsn:
        system.prepare(dsn)
        with system.client(dsn) as client:
            latencies = latency(system, dsn, client, samples)
    figures.append(Figure("latency_p50", name, percentile(latencies, 0.50), "ms"))
    figures.append(Figure("latency_p99", name, percentile(latencies, 0.99), "ms"))
    return figures


def medians(figures: Iterable[Figure]) -> list[Figure]:
    """One figure per name and system, in order of first appearance."""
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
    "dead": "dead rows/job",
    "cpu": "database CPU µs/job",
}


def table(figures: Sequence[Figure], columns: dict[str, str] = COLUMNS) -> str:
    """A Markdown table, one row for each system that has a figure in it."""
    values = {(figure.system, figure.name): figure.value for figure in figures if figure.name in columns}
    rows = [["system", *columns.values()]]
    for system in dict.fromkeys(system for system, _ in values):
        cells = [values.get((system, name)) for name in columns]
        rows.append([system, *("-" if cell is None else _number(cell) for cell in cells)])
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    rows.insert(1, ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])])
    return "\n".join(
        "| " + " | ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) + " |"
        for row in rows
    )


def _number(value: float) -> str:
    return f"{value:,.{0 if value >= 100 else 1 if value >= 1 else 2}f}"
