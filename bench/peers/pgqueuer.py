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
BATCH = 1000
COMMAND = [sys.executable, "-m", __spec__.name]


def version() -> str:
    return metadata.version("pgqueuer")


def prepare(dsn: str) -> None:
    with _client(dsn) as (run, queries):
        run(queries.install())


def enqueue(dsn: str, n: int) -> float:
    with _client(dsn) as (run, queries), measure.timer() as seconds:
        run(queries.enqueue(["job"] * n, [b"0"] * n, [0] * n))
    return seconds()


def drain(dsn: str, n: int, processes: int) -> float:
    # A finished job moves from this table to the log.
    return measure.drain_postgres(COMMAND, dsn, n, processes, "SELECT count(*) FROM pgqueuer")


def latency(dsn: str, samples: int) -> list[float]:
    with _client(dsn) as (run, queries):
        return measure.latency(COMMAND, dsn, samples, lambda sent: run(queries.enqueue("job", b"%d" % sent)))


@contextmanager
def _client(dsn: str) -> Iterator[tuple[Callable[[Coroutine[Any, Any, object]], object], Queries]]:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        connection = runner.run(asyncpg.connect(dsn))
        try:
            yield runner.run, Queries(AsyncpgDriver(connection))
        finally:
            runner.run(connection.close())


async def work(dsn: str, progress: measure.Progress) -> None:
    async with asyncpg.create_pool(dsn) as pool:
        queue = PgQueuer.from_asyncpg_pool(pool)

        @queue.entrypoint("job")
        async def job(job: Job) -> None:
            progress.job(int(job.payload or b"0"))

        progress.wait_for_start()
        await queue.run(batch_size=BATCH)


if __name__ == "__main__":
    uvloop.run(work(os.environ["BENCH_DSN"], measure.Progress.of_this_worker()))
