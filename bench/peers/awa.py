# type: ignore -- where the library is not installed, its name would mean this file to a type checker
"""awa (Rust, handlers in Python): COPY into its queue storage, 1,024 concurrent jobs, claims of 512.

Its documentation recommends `enqueue_many_copy` and `claim_batch_size` for hot queues. With more `claimers`
or fewer concurrent jobs it was slower here. By default finished jobs are not kept.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata

import awa

from bench import measure

NAME = "awa"
STORE = "postgresql"
SCALE = 0.5
PER_PROCESS = 50
CONCURRENCY = 1024
CONNECTIONS = 20


@dataclass
class Job:
    sent: int


keep = None


def fill(dsn: str, n: int) -> None:
    with client(dsn) as one:
        for done in range(0, n, 50_000):
            one.send_many(min(50_000, n - done), 0)


def version() -> str:
    return metadata.version("awa-pg")


def command() -> list[str]:
    return [sys.executable, "-m", __spec__.name]


def prepare(dsn: str) -> None:
    with awa.Client(_url(dsn)) as store:
        store.migrate()
        store.install_queue_storage(schema="awa")


def _url(dsn: str) -> str:
    """Its parser wants a host before the one that counts."""
    return dsn.replace("@/", "@localhost/")


@contextmanager
def client(dsn: str) -> Iterator[measure.Client]:
    with awa.Client(_url(dsn)) as store:

        def left() -> int:
            stats = [stat for stat in store.queue_stats() if stat.queue == "job"]
            return sum(stat.total_queued + stat.running for stat in stats)

        yield measure.Client(
            lambda sent: store.insert(Job(sent), queue="job"),
            lambda n, sent: store.enqueue_many_copy([Job(sent)] * n, queue="job"),
            left,
        )


async def work(dsn: str, progress: measure.Progress) -> None:
    async def worker() -> None:
        store = awa.AsyncClient(_url(dsn), max_connections=CONNECTIONS)

        @store.task(Job, queue="job")
        async def job(job: awa.Job[Job]) -> None:
            progress.job(job.args.sent)

        await store.start([{"name": "job", "max_workers": CONCURRENCY, "claim_batch_size": 512}])
        await asyncio.Event().wait()

    progress.wait_for_start()
    await asyncio.gather(*(worker() for _ in measure.workers_here()))


if __name__ == "__main__":
    asyncio.run(work(os.environ["BENCH_DSN"], measure.Progress.of_this_worker()))
