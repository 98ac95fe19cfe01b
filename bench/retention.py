"""`python -m bench.retention [TASKS]`: what removing ended tasks costs, by deleting and by dropping.

Prints the WAL, the CPU and the time of `prune` with its vacuum, for one large job and for many small ones,
beside dropping partitions with the same rows; and the CPU of a start, and of a claim with its completion,
on tables with and without partitions, in turns. `tasks` and `results` are partitioned by job id.
"""

from __future__ import annotations

import re
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from uuid import UUID

import psycopg
from psycopg.types.json import Jsonb

from bench import engine, ours, server
from bench.measure import Figure
from penstock.postgres import migrate

PARTITIONS = 6
DAYS = 15
"""Of each partition: six of them hold the 90 days of the default retention."""
TABLES = ("tasks", "results")
SMALL_JOBS = """
with job as (
  insert into penstock.jobs (tenant_id, type, status, created_by, created_at, started_at, finished_at)
  select %(tenant)s, 'small', 'completed', 'bench', now(), now(), now()
  from generate_series(1, %(n)s) returning id
), phase as (
  insert into penstock.phases (job_id, position, tenant_id, name, total, succeeded)
  select id, 1, %(tenant)s, 'noop', 1, 1 from job
), task as (
  insert into penstock.tasks (job_id, id, tenant_id, created_at, lane_id, phase, priority, kind, input)
  select job.id, nextval('penstock.task_ids'), %(tenant)s, now(), lane.id, 1, 5, 'noop', '{"sent": 0}'
  from job, penstock.lanes lane where lane.kind = 'noop' returning *
)
insert into penstock.results (job_id, task_id, lease, tenant_id, started_at, finished_at, attempt, phase,
  outcome, worker_id)
select job_id, id, 1, tenant_id, created_at, created_at, 1, 1, 'succeeded', 'bench' from task
"""


@dataclass(frozen=True)
class Cost:
    """What statements cost: seconds, CPU seconds of their session, bytes of WAL."""

    seconds: float
    cpu: float
    wal: float


@contextmanager
def partitioned() -> Iterator[Path]:
    """A copy of penstock/sql whose history is partitioned from the first migration on."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(shutil.copytree(migrate.SQL, Path(folder) / "sql"))
        path = copy / "migrations/0003_create_jobs.sql"
        text = path.read_text()
        for table in TABLES:
            text, count = re.subn(
                rf"(?s)(create table penstock\.{table} \(.*?\n\));",
                r"\1 partition by range (job_id);",
                text,
                count=1,
            )
            if count != 1:
                raise ValueError(f"{path.name} creates no table {table}")
            text += "".join(_partitions(table))
        path.write_text(text)
        yield copy


def _partitions(table: str) -> Iterator[str]:
    """The newest but one takes the rows of today; the last one is made ahead."""
    first = time.time() - (PARTITIONS - 1.5) * DAYS * 86_400
    bounds = [UUID(int=int((first + n * DAYS * 86_400) * 1000) << 80) for n in range(PARTITIONS + 1)]
    names = [f"penstock.{table}_{n}" for n in range(PARTITIONS)]
    for name, low, high in zip(names, bounds, bounds[1:], strict=False):
        yield f"\ncreate table {name} partition of penstock.{table} for values from ('{low}') to ('{high}');"
    yield f"\ncreate table penstock.{table}_rest partition of penstock.{table} default;"
    for name in [*names, f"penstock.{table}_rest"]:
        yield f"\nalter table {name} enable row level security;"


class Store:
    """A database with history, a backlog, and one session."""

    def __init__(self, dsn: str, folder: Path, tasks: int) -> None:
        migrate.migrate(dsn, folder=folder)
        self.connection = psycopg.connect(dsn, autocommit=True, prepare_threshold=None)
        self.execute = self.connection.execute
        self.execute("select penstock.set_setting('tenant_plan', '\"unlimited\"')")
        self.execute("select penstock.define_kind('noop', '{\"raw_tasks\": true}')")
        self.tenant = ours.tenant(self.connection, "bench")
        ours.ended_tasks(self.connection, self.tenant, tasks)
        ours.waiting_tasks(self.connection, self.tenant, max(20_000, tasks // 4))
        self.execute("vacuum analyze")
        self._pid = self.value("select pg_backend_pid()")

    def value(self, query: str) -> float:
        row = self.execute(query.encode()).fetchone()
        assert row
        return float(row[0])

    def cpu(self) -> float:
        """CPU seconds of this session's server process."""
        return int(Path(f"/proc/{self._pid:.0f}/schedstat").read_text().split()[0]) / 1e9

    def cost(self, act: Callable[[], object]) -> Cost:
        lsn = "select pg_current_wal_insert_lsn() - '0/0'::pg_lsn"
        self.execute("checkpoint")
        wal, cpu, begun = self.value(lsn), self.cpu(), time.perf_counter()
        act()
        return Cost(time.perf_counter() - begun, self.cpu() - cpu, self.value(lsn) - wal)

    def prune_all(self) -> None:
        while self.value("select penstock.prune(10000)"):
            pass

    def turns(self, batch: int, count: int) -> float:
        """CPU milliseconds of a claim and its completion."""
        before = self.cpu()
        for _ in range(count):
            engine.turn(self.connection, batch)
        return 1000 * (self.cpu() - before) / count

    def starts(self, count: int) -> float:
        before = self.cpu()
        for _ in range(count):
            self.execute(
                "select penstock.start_job('s', '{}', %s, %s)",
                (Jsonb([{"kind": "noop", "input": {}}] * 3), Jsonb({"tenant_id": self.tenant})),
            )
        return 1000 * (self.cpu() - before) / count


def hot_path(stores: dict[str, Store], rounds: int) -> Iterator[Figure]:
    """The plain and the partitioned tables in turns; the median counts."""
    acts: dict[str, Callable[[Store], float]] = {
        "claim and complete 1": lambda store: store.turns(1, 100),
        "claim and complete 50": lambda store: store.turns(50, 20),
        "claim and complete 500": lambda store: store.turns(500, 4),
        "start of 3 tasks": lambda store: store.starts(50),
    }
    for name, act in acts.items():
        taken: dict[str, list[float]] = {system: [] for system in stores}
        for number in range(rounds + 1):
            for system, store in stores.items():
                spent = act(store)
                if number:
                    taken[system].append(spent)
        middle = {system: median(values) for system, values in taken.items()}
        for system, value in middle.items():
            yield Figure(name, system, value, "ms of CPU")
        ratios = [with_it / without for without, with_it in zip(*taken.values(), strict=True)]
        yield Figure(name, "partitioned : plain", median(ratios), "×")


def removal(plain: Store, other: Store, tasks: int) -> Iterator[Figure]:
    def expire(kind: str) -> None:
        plain.execute(
            "update penstock.jobs set finished_at = now() - interval '200 days' where type = %s", (kind,)
        )

    def vacuum() -> None:
        for table in ("tasks", "results", "jobs", "phases"):
            plain.execute(f"vacuum penstock.{table}".encode())

    def drop() -> None:
        for table in TABLES:
            for number in range(PARTITIONS):
                name = f"penstock.{table}_{number}"
                other.execute(f"alter table penstock.{table} detach partition {name}".encode())
                other.execute(f"drop table {name}".encode())

    expire("history")
    yield from figures("prune, one large job", plain.cost(plain.prune_all), tasks)
    yield from figures("vacuum after it", plain.cost(vacuum), tasks)
    small = tasks // 10
    plain.execute(SMALL_JOBS, {"tenant": plain.tenant, "n": small})
    plain.execute("vacuum analyze")
    expire("small")
    yield from figures("prune, jobs of one task", plain.cost(plain.prune_all), small)
    yield from figures("vacuum after them", plain.cost(vacuum), small)
    yield from figures("drop partitions", other.cost(drop), tasks)


def figures(name: str, cost: Cost, tasks: int) -> Iterator[Figure]:
    yield Figure(name, f"{tasks:,} tasks", cost.seconds / tasks * 1e6, "µs per task")
    yield Figure(name, f"{tasks:,} tasks", cost.cpu / tasks * 1e6, "µs of CPU per task")
    yield Figure(name, f"{tasks:,} tasks", cost.wal / tasks, "bytes of WAL per task")


def main(tasks: int, rounds: int = 12) -> None:
    with server.postgres() as postgres, partitioned() as folder, ExitStack() as stack:
        folders = {"plain": migrate.SQL, "partitioned": folder}
        stores = {name: Store(postgres.create_database(name), sql, tasks) for name, sql in folders.items()}
        for store in stores.values():
            stack.enter_context(store.connection)
        for figure in [*hot_path(stores, rounds), *removal(stores["plain"], stores["partitioned"], tasks)]:
            print(f"  {figure.name:<24} {figure.system:<22} {figure.value:>10,.2f} {figure.unit}", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000)
