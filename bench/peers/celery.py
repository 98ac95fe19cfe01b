# type: ignore -- where the library is not installed, its name would mean this file to a type checker
"""Celery on Redis: solo pool (no-op jobs gain nothing from forking), prefetch 1,000, acknowledged early."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata

import redis
from celery import Celery, signals

from bench import measure, server

NAME = "celery"
STORE = "redis"
SCALE = 0.2
PER_PROCESS = 1
PREFETCH = 1000
fill = keep = None  # No quick way in, and results are not asked for.


def version() -> str:
    return f"{metadata.version('celery')} + redis {server.redis_version()}"


def command() -> list[str]:
    return [sys.executable, "-m", __spec__.name]


def prepare(dsn: str) -> None:
    with redis.Redis.from_url(dsn) as store:
        store.ping()


@contextmanager
def client(dsn: str) -> Iterator[measure.Client]:
    app = _app(dsn)
    # One producer for all: Celery has no bulk call, and this spares taking it from the pool each time.
    with app.producer_or_acquire() as producer, redis.Redis.from_url(dsn) as store:
        producer.connection.ensure_connection()

        def send(sent: int) -> None:
            app.send_task("job", (sent,), producer=producer)

        def send_many(n: int, sent: int) -> None:
            for _ in range(n):
                send(sent)

        yield measure.Client(send, send_many, lambda: store.llen("celery") + store.hlen("unacked"))


def _app(dsn: str) -> Celery:
    app = Celery("bench", broker=dsn)
    app.conf.update(
        task_ignore_result=True,
        worker_prefetch_multiplier=PREFETCH,
        broker_connection_retry_on_startup=True,
        worker_enable_remote_control=False,
    )
    return app


def work(dsn: str, progress: measure.Progress) -> None:
    app = _app(dsn)
    app.task(progress.job, name="job")
    signals.worker_ready.connect(lambda **_: progress.wait_for_start(), weak=False)
    # What workers tell each other is of no use here, and mingling would delay the start by a second.
    quiet = ["--loglevel=WARNING", "--without-gossip", "--without-mingle", "--without-heartbeat"]
    app.worker_main(["worker", "--pool=solo", "--concurrency=1", f"--hostname={os.getpid()}@%h", *quiet])


if __name__ == "__main__":
    work(os.environ["BENCH_DSN"], measure.Progress.of_this_worker())
