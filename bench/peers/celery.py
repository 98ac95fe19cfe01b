# type: ignore -- where the library is not installed, its name would mean this file to a type checker
"""Celery on Redis: solo pool (no-op jobs gain nothing from forking), prefetch 1,000, acknowledged early."""

from __future__ import annotations

import os
import sys
from importlib import metadata

import redis
from celery import Celery, signals

from bench import measure, server

NAME = "celery"
STORE = "redis"
SCALE = 0.2
PREFETCH = 1000
COMMAND = [sys.executable, "-m", __spec__.name]


def version() -> str:
    return f"{metadata.version('celery')} + redis {server.redis_version()}"


def prepare(dsn: str) -> None:
    with redis.Redis.from_url(dsn) as store:
        store.ping()


def enqueue(dsn: str, n: int) -> float:
    app = _app(dsn)
    # One producer for all: Celery has no bulk call, and this spares taking it from the pool each time.
    with app.producer_or_acquire() as producer:
        producer.connection.ensure_connection()
        with measure.timer() as seconds:
            for _ in range(n):
                app.send_task("job", (0,), producer=producer)
    return seconds()


def drain(dsn: str, n: int, processes: int) -> float:
    with redis.Redis.from_url(dsn) as store:
        return measure.drain(COMMAND, dsn, n, processes, lambda: store.llen("celery") + store.hlen("unacked"))


def latency(dsn: str, samples: int) -> list[float]:
    app = _app(dsn)
    with app.producer_or_acquire() as producer:
        return measure.latency(
            COMMAND, dsn, samples, lambda sent: app.send_task("job", (sent,), producer=producer)
        )


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
