"""Penstock itself, measured as its peers are. See `bench.measure.System`."""

from __future__ import annotations

import asyncio
import json
import os
import sys

import psycopg

import penstock
from bench import measure
from bench.measure import Progress
from penstock import db, jobs, migrate, tenants
from penstock.app import App
from penstock.worker import Worker

NAME = "penstock"
STORE = "postgresql"
SCALE = 1.0
CONCURRENCY = 100
LEFT = "select count(*) from penstock.jobs where status not in ('completed', 'failed', 'canceled')"

app = App()


def version() -> str:
    return penstock.__version__


def prepare(dsn: str) -> None:
    migrate.migrate(dsn)
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("select penstock.define_kind('noop')")
        connection.execute("select penstock.ensure_tenant('bench')")


def enqueue(dsn: str, n: int) -> float:
    async def run() -> float:
        async with db.pool(dsn) as pool:
            tenant_id = await tenants.ensure(pool, name="bench")
            specs = ({"kind": "noop", "input": {"sent": 0}} for _ in range(n))
            with measure.timer() as seconds:
                await jobs.start_many(pool, type="bench", params={}, tasks=specs, tenant_id=tenant_id)
            return seconds()

    return asyncio.run(run())


def drain(dsn: str, n: int, processes: int) -> float:
    return measure.drain_postgres([sys.executable, "-m", "bench.ours"], dsn, n, processes, LEFT)


def latency(dsn: str, samples: int) -> list[float]:
    with psycopg.connect(dsn, autocommit=True) as connection:
        row = connection.execute("select penstock.ensure_tenant('bench')").fetchone()
        assert row
        options = json.dumps({"tenant_id": str(row[0])})

        def send(sent: int) -> None:
            task = json.dumps([{"kind": "noop", "input": {"sent": sent}}])
            connection.execute(
                "select penstock.start_job('bench', '{}', %s::jsonb, %s::jsonb)", (task, options)
            )

        return measure.latency([sys.executable, "-m", "bench.ours"], dsn, samples, send)


def work() -> None:
    progress = Progress.of_this_worker()

    @app.task
    async def noop(sent: int) -> None:
        progress.job(sent)

    progress.wait_for_start()
    asyncio.run(Worker(app, dsn=os.environ["BENCH_DSN"], concurrency=CONCURRENCY).run())


if __name__ == "__main__":
    work()
