# type: ignore -- where the library is not installed, its name would mean this file to a type checker
"""procrastinate: 20 concurrent jobs, woken by NOTIFY; finished jobs stay in its table (the default)."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata

from procrastinate import App, PsycopgConnector, SyncPsycopgConnector

from bench import measure

NAME = "procrastinate"
STORE = "postgresql"
SCALE = 0.2
PER_PROCESS = 50
CONCURRENCY = 20

# Without its triggers, which would write an event and notify for each row.
_INSERT = """
    ALTER TABLE procrastinate_jobs DISABLE TRIGGER USER;
    INSERT INTO procrastinate_jobs (queue_name, task_name, args, status)
    SELECT 'default', 'job', '{{"sent": 0}}', '{}' FROM generate_series(1, %(n)s);
    ALTER TABLE procrastinate_jobs ENABLE TRIGGER USER
"""
fill = measure.statement(_INSERT.format("todo"))
keep = measure.statement(_INSERT.format("succeeded"))


def version() -> str:
    return metadata.version("procrastinate")


def command() -> list[str]:
    return [sys.executable, "-m", __spec__.name]


def prepare(dsn: str) -> None:
    with App(connector=SyncPsycopgConnector(conninfo=dsn)).open() as app:
        app.schema_manager.apply_schema()


@contextmanager
def client(dsn: str) -> Iterator[measure.Client]:
    left = "SELECT count(*) FROM procrastinate_jobs WHERE status IN ('todo', 'doing')"
    connector = SyncPsycopgConnector(conninfo=dsn)
    with App(connector=connector).open() as app, measure.counting(dsn, left) as count:
        task = app.configure_task("job")
        yield measure.Client(
            lambda sent: task.defer(sent=sent),
            lambda n, sent: task.batch_defer(*({"sent": sent} for _ in range(n))),
            count,
        )


async def work(dsn: str, progress: measure.Progress) -> None:
    async def worker() -> None:
        # The default pool's size: larger ones, and other numbers of concurrent jobs, made no difference.
        app = App(connector=PsycopgConnector(conninfo=dsn, min_size=1))

        @app.task(name="job")
        async def job(sent: int) -> None:
            progress.job(sent)

        async with app.open_async():
            await app.run_worker_async(concurrency=CONCURRENCY, install_signal_handlers=False)

    progress.wait_for_start()
    await asyncio.gather(*(worker() for _ in measure.workers_here()))


if __name__ == "__main__":
    asyncio.run(work(os.environ["BENCH_DSN"], measure.Progress.of_this_worker()))
