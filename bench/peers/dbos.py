# type: ignore -- where the library is not installed, its name would mean this file to a type checker
"""DBOS: a queue polled every 10 ms, asynchronous workflows, 1,000 enqueues per transaction.

Its documentation recommends the polling interval for low latency; a workflow is one durable step here. A
worker has a limit, because beside a large backlog it would claim everything at once.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata

import sqlalchemy
from dbos import DBOS, DBOSClient

from bench import measure

NAME = "dbos"
STORE = "postgresql"
SCALE = 0.1
PER_PROCESS = 1
POLL_SECONDS = 0.010
AT_ONCE = 1000

_INSERT = """
    WITH one AS (
      SELECT s.*, i.inputs AS arguments FROM dbos.workflow_status AS s JOIN dbos.workflow_input AS i
        USING (workflow_uuid) LIMIT 1
    ), made AS (
      INSERT INTO dbos.workflow_status (workflow_uuid, status, name, queue_name, serialization,
        application_name, priority, created_at, updated_at)
      SELECT gen_random_uuid(), '{}', name, queue_name, serialization, application_name, priority, created_at,
        updated_at
      FROM one, generate_series(1, %(n)s) RETURNING workflow_uuid
    )
    INSERT INTO dbos.workflow_input (workflow_uuid, inputs)
    SELECT made.workflow_uuid, arguments FROM made, one
"""


def fill(dsn: str, n: int) -> None:
    _copies(dsn, n, "ENQUEUED")


def keep(dsn: str, n: int) -> None:
    _copies(dsn, n, "SUCCESS")
    measure.statement("UPDATE dbos.workflow_status SET status = 'SUCCESS' WHERE status = 'ENQUEUED'")(dsn, 1)


def _copies(dsn: str, n: int, status: str) -> None:
    """Of one workflow that its client has sent, so that the arguments are written as it does."""
    with client(dsn) as one:
        one.send(0)
    measure.statement(_INSERT.format(status))(dsn, n - 1)


def version() -> str:
    return metadata.version("dbos")


def command() -> list[str]:
    return [sys.executable, "-m", __spec__.name]


def prepare(dsn: str) -> None:
    DBOS.migrate(dsn)
    store = DBOSClient(system_database_url=dsn, application_name="bench")
    store.register_queue("job", polling_interval_sec=POLL_SECONDS, worker_concurrency=AT_ONCE)
    store.destroy()


@contextmanager
def client(dsn: str) -> Iterator[measure.Client]:
    left = "SELECT count(*) FROM dbos.workflow_status WHERE status IN ('ENQUEUED', 'PENDING')"
    store = DBOSClient(system_database_url=dsn, application_name="bench")
    engine = sqlalchemy.create_engine(dsn.replace("postgresql:", "postgresql+psycopg:", 1))
    options = {"workflow_name": "job", "queue_name": "job"}

    def send_many(n: int, sent: int) -> None:
        for done in range(0, n, 1000):
            with engine.begin() as connection:
                for _ in range(min(1000, n - done)):
                    store.enqueue_in_transaction(connection, options, sent)

    try:
        with measure.counting(dsn, left) as count:
            yield measure.Client(lambda sent: store.enqueue(options, sent), send_many, count)
    finally:
        engine.dispose()
        store.destroy()


def work(dsn: str, progress: measure.Progress) -> None:
    DBOS(
        config={
            "name": "bench",
            "system_database_url": dsn,
            "application_version": "1",
            "executor_id": str(os.getpid()),
            "log_level": "ERROR",
        }
    )

    @DBOS.workflow(name="job")
    async def job(sent: int) -> None:
        progress.job(sent)

    progress.wait_for_start()
    DBOS.launch()
    threading.Event().wait()


if __name__ == "__main__":
    work(os.environ["BENCH_DSN"], measure.Progress.of_this_worker())
