# type: ignore -- where the library is not installed, its name would mean this file to a type checker
"""procrastinate: 20 concurrent jobs, woken by NOTIFY; finished jobs stay in its table, as by default."""

from __future__ import annotations

import asyncio
import os
import sys
from importlib import metadata

from procrastinate import App, PsycopgConnector, SyncPsycopgConnector
from procrastinate.jobs import JobDeferrer
from procrastinate.types import JSONDict

from bench import measure

NAME = "procrastinate"
STORE = "postgresql"
SCALE = 0.2
CONCURRENCY = 20
COMMAND = [sys.executable, "-m", __spec__.name]


def version() -> str:
    return metadata.version("procrastinate")


def prepare(dsn: str) -> None:
    with _client(dsn) as app:
        app.schema_manager.apply_schema()


def enqueue(dsn: str, n: int) -> float:
    with _client(dsn) as app:
        task = _task(app)
        with measure.timer() as seconds:
            jobs: list[JSONDict] = [{"sent": 0} for _ in range(n)]
            task.batch_defer(*jobs)
    return seconds()


def drain(dsn: str, n: int, processes: int) -> float:
    left = "SELECT count(*) FROM procrastinate_jobs WHERE status IN ('todo', 'doing')"
    return measure.drain_postgres(COMMAND, dsn, n, processes, left)


def latency(dsn: str, samples: int) -> list[float]:
    with _client(dsn) as app:
        task = _task(app)
        return measure.latency(COMMAND, dsn, samples, lambda sent: task.defer(sent=sent))


def _client(dsn: str) -> App:
    return App(connector=SyncPsycopgConnector(conninfo=dsn)).open()


def _task(app: App) -> JobDeferrer:
    return app.configure_task("job")


async def work(dsn: str, progress: measure.Progress) -> None:
    # The default pool of 4: larger ones, and other numbers of concurrent jobs, made no difference.
    app = App(connector=PsycopgConnector(conninfo=dsn))

    @app.task(name="job")
    async def job(sent: int) -> None:
        progress.job(sent)

    async with app.open_async():
        progress.wait_for_start()
        await app.run_worker_async(concurrency=CONCURRENCY)


if __name__ == "__main__":
    asyncio.run(work(os.environ["BENCH_DSN"], measure.Progress.of_this_worker()))
