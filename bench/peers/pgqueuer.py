# type: ignore -- where the library is not installed, its name would mean this file to a type checker
"""pgqueuer: batches of 1,000 over an asyncpg pool, its tables logged ("durable", the default), uvloop."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from importlib import metadata
from typing import Any

import asyncpg
import uvloop
from pgqueuer import AsyncpgDriver, Job, PgQueuer, Queries

from bench import measure

NAME = "pgqueuer"
STORE = "postgresql"
SCALE = 1.0
PER_PROCESS = 50
BATCH = 1000

fill = measure.statement(
    """
    INSERT INTO pgqueuer (priority, entrypoint, payload, status)
    SELECT 0, 'job', '0', 'queued' FROM generate_series(1, %(n)s)
    """
)
keep = measure.statement(
    """
    INSERT INTO pgqueuer_log (job_id, status, priority, entrypoint)
    SELECT n, 'successful', 0, 'job' FROM generate_series(1, %(n)s) AS n
    """
)


def version() -> str:
    return metadata.version("pgqueuer")


def command() -> list[str]:
    return [sys.executable, "-m", __spec__.name]


def prepare(dsn: str) -> None:
    with _queries(dsn) as (run, queries):
        run(queries.install())


@contextmanager
def client(dsn: str) -> Iterator[measure.Client]:
    # A finished job moves from this table to the log.
    with _queries(dsn) as (run, queries), measure.counting(dsn, "SELECT count(*) FROM pgqueuer") as count:
        yield measure.Client(
            lambda sent: run(queries.enqueue("job", b"%d" % sent)),
            lambda n, sent: run(queries.enqueue(["job"] * n, [b"%d" % sent] * n, [0] * n)),
            count,
        )


@contextmanager
def _queries(dsn: str) -> Iterator[tuple[Callable[[Coroutine[Any, Any, object]], object], Queries]]:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        connection = runner.run(asyncpg.connect(dsn))
        try:
            yield runner.run, Queries(AsyncpgDriver(connection))
        finally:
            runner.run(connection.close())


async def work(dsn: str, progress: measure.Progress) -> None:
    async def worker() -> None:
        async with asyncpg.create_pool(dsn, min_size=1) as pool:
            queue = PgQueuer.from_asyncpg_pool(pool)

            @queue.entrypoint("job")
            async def job(job: Job) -> None:
                progress.job(int(job.payload or b"0"))

            await queue.run(batch_size=BATCH)

    progress.wait_for_start()
    await asyncio.gather(*(worker() for _ in measure.workers_here()))


if __name__ == "__main__":
    uvloop.run(work(os.environ["BENCH_DSN"], measure.Progress.of_this_worker()))
