"""Penstock itself, measured in the same way as its peers. See `bench.measure.System`."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from typing import Any

import psycopg

import penstock
from bench import measure
from bench.measure import Progress
from penstock.contract import jobs
from penstock.postgres import db, migrate
from penstock.sdk.app import App
from penstock.worker import Worker

NAME = "penstock"
STORE = "postgresql"
SCALE = 1.0
PER_PROCESS = 50
CONCURRENCY = 100
CALL_AT_MOST = 1000
"""More tasks than this go in by COPY."""
LEFT = "select count(*) from penstock.jobs where status not in ('completed', 'failed', 'canceled')"

Connection = psycopg.Connection[Any]
_JOB = """
with job as (
  insert into penstock.jobs (tenant_id, type, status, created_by, created_at, started_at)
  values (%(tenant)s, 'fill', 'running', 'bench', clock_timestamp(), clock_timestamp()) returning id
), phase as (
  insert into penstock.phases (job_id, position, tenant_id, name, total)
  select id, 1, %(tenant)s, 'noop', %(n)s from job
)
select id from job
"""
_FILL = """
with lane as (
  select id, clock from penstock.lanes where kind = 'noop'
), task as (
  insert into penstock.tasks (job_id, id, tenant_id, created_at, lane_id, phase, priority, kind, input)
  select %(job)s, nextval('penstock.task_ids'), %(tenant)s, clock_timestamp(), lane.id, 1, 5, 'noop',
    '{"sent": 0}'
  from lane, generate_series(1, %(n)s) returning *
), share as (
  insert into penstock.shares (lane_id, tenant_id, tail, priority)
  select lane.id, %(tenant)s, lane.clock + 1000000 * %(n)s::bigint, 5 from lane
  on conflict (lane_id, tenant_id) do update set tail = penstock.shares.tail + 1000000 * %(n)s::bigint
)
insert into penstock.ready (task_id, vtime, job_id, tenant_id, lane_id, priority, phase)
select task.id, coalesce((select s.tail from penstock.shares s where s.tenant_id = %(tenant)s), lane.clock)
  + 1000000 * row_number() over (), job_id, tenant_id, lane_id, 5, 1
from task, lane
"""
_HISTORY = """
with job as (
  insert into penstock.jobs (tenant_id, type, status, created_by, created_at, started_at, finished_at)
  select %(tenant)s, 'history', 'completed', 'bench', t, t, t from clock_timestamp() as t returning id
), task as (
  insert into penstock.tasks (job_id, id, tenant_id, created_at, lane_id, phase, priority, kind, input)
  select job.id, nextval('penstock.task_ids'), %(tenant)s, clock_timestamp(), lane.id, 1, 5, 'noop',
    '{"sent": 0}'
  from job, penstock.lanes lane, generate_series(1, %(n)s) where lane.kind = 'noop' returning *
)
insert into penstock.results (job_id, task_id, lease, tenant_id, started_at, finished_at, attempt, phase,
  outcome, worker_id)
select job_id, id, 1, tenant_id, created_at, created_at, 1, 1, 'succeeded', 'bench' from task
"""

app = App()


def version() -> str:
    return penstock.__version__


def prepare(dsn: str) -> None:
    migrate.migrate(dsn)
    with psycopg.connect(dsn, autocommit=True) as connection:
        # Limits of a plan are not what is measured.
        connection.execute("select penstock.set_setting('tenant_plan', '\"unlimited\"')")
        connection.execute("select penstock.define_kind('noop', '{\"raw_tasks\": true}')")


def tenant(connection: Connection, name: str) -> str:
    row = connection.execute("select penstock.create_tenant(%s)", (name,)).fetchone()
    assert row
    return str(row[0])


def waiting_tasks(connection: Connection, tenant_id: str, n: int) -> str:
    """Insert a job with n ready tasks as start_many would, but faster. Returns its id."""
    row = connection.execute(_JOB, {"tenant": tenant_id, "n": n}).fetchone()
    assert row
    for part in range(0, n, 250_000):
        count = min(250_000, n - part)
        connection.execute(_FILL, {"tenant": tenant_id, "job": row[0], "n": count})
    return str(row[0])


def ended_tasks(connection: Connection, tenant_id: str, n: int) -> None:
    connection.execute(_HISTORY, {"tenant": tenant_id, "n": n})


def fill(dsn: str, n: int) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        waiting_tasks(connection, tenant(connection, "large"), n)


def keep(dsn: str, n: int) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        ended_tasks(connection, tenant(connection, "large"), n)


def command() -> list[str]:
    return [sys.executable, "-m", "bench.ours"]


@contextmanager
def client(dsn: str) -> Iterator[measure.Client]:
    with (
        asyncio.Runner() as runner,
        psycopg.connect(dsn, autocommit=True) as connection,
        measure.counting(dsn, LEFT) as left,
    ):
        tenant_id = tenant(connection, "small")
        opened = AsyncExitStack()
        pool = runner.run(opened.enter_async_context(db.pool(dsn)))

        def send(sent: int, n: int = 1) -> None:
            tasks = json.dumps([{"kind": "noop", "input": {"sent": sent}}] * n)
            connection.execute(
                "select penstock.start_job('bench', '{}', %s::jsonb, %s::jsonb)",
                (tasks, json.dumps({"tenant_id": tenant_id})),
            )

        def send_many(n: int, sent: int) -> None:
            if n <= CALL_AT_MOST:
                return send(sent, n)
            specs = ({"kind": "noop", "input": {"sent": sent}} for _ in range(n))
            runner.run(jobs.start_many(pool, type="bench", params={}, tasks=specs, tenant_id=tenant_id))

        try:
            yield measure.Client(send, send_many, left)
        finally:
            runner.run(opened.aclose())


async def work() -> None:
    progress = Progress.of_this_worker()

    @app.task
    async def noop(sent: int) -> None:
        progress.job(sent)

    progress.wait_for_start()
    dsn = os.environ["BENCH_DSN"]
    workers = [Worker(app, dsn=dsn, concurrency=CONCURRENCY) for _ in measure.workers_here()]
    await asyncio.gather(*(worker.run() for worker in workers))


if __name__ == "__main__":
    asyncio.run(work())
