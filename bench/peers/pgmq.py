# type: ignore -- where the library is not installed, its name would mean this file to a type checker
"""pgmq: 500 messages per read, archived by array, a pause of 10 ms after an empty read; asyncpg, uvloop.

pgmq is an extension in pure SQL, and the wheel of its client contains that SQL, so nothing is compiled. It
is a message queue, not a framework: this loop would have to add retries, timeouts and concurrency. Both
calls are pgmq's own, with batches as its documentation recommends for throughput.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import asyncpg
import orjson
import psycopg
import uvloop
from pgmq.install import get_embedded_install_sql, get_embedded_sql_version

from bench import measure

NAME = "pgmq"
STORE = "postgresql"
SCALE = 1.0
PER_PROCESS = 50
BATCH = 500
VISIBLE_AGAIN_SECONDS = 300
PAUSE_SECONDS = 0.010

fill = measure.statement(
    """SELECT count(*) FROM pgmq.send_batch('job', array_fill('{"sent": 0}'::jsonb, ARRAY[%(n)s]))"""
)
keep = measure.statement(
    """
    INSERT INTO pgmq.a_job (msg_id, vt, message)
    SELECT -n - (SELECT count(*) FROM pgmq.a_job), now(), '{"sent": 0}' FROM generate_series(1, %(n)s) AS n
    """
)


def version() -> str:
    return get_embedded_sql_version()


def command() -> list[str]:
    return [sys.executable, "-m", __spec__.name]


def prepare(dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(get_embedded_install_sql())
        connection.execute("SELECT pgmq.create('job')")


@contextmanager
def client(dsn: str) -> Iterator[measure.Client]:
    with (
        psycopg.connect(dsn, autocommit=True) as connection,
        measure.counting(dsn, "SELECT count(*) FROM pgmq.q_job") as count,
    ):
        yield measure.Client(
            lambda sent: connection.execute(
                "SELECT pgmq.send('job', jsonb_build_object('sent', %s::bigint))", [sent]
            ),
            lambda n, sent: connection.execute(
                "SELECT count(*) FROM pgmq.send_batch('job', %s::jsonb[])", [[f'{{"sent": {sent}}}'] * n]
            ),
            count,
        )


async def work(dsn: str, progress: measure.Progress) -> None:
    async def worker() -> None:
        connection = await asyncpg.connect(dsn)
        read = f"SELECT msg_id, message FROM pgmq.read('job', {VISIBLE_AGAIN_SECONDS}, {BATCH})"
        while True:
            messages = await connection.fetch(read)
            if not messages:
                await asyncio.sleep(PAUSE_SECONDS)
                continue
            for message in messages:
                progress.job(orjson.loads(message["message"])["sent"])
            done = [message["msg_id"] for message in messages]
            await connection.fetch("SELECT pgmq.archive('job', $1::bigint[])", done)

    progress.wait_for_start()
    await asyncio.gather(*(worker() for _ in measure.workers_here()))


if __name__ == "__main__":
    uvloop.run(work(os.environ["BENCH_DSN"], measure.Progress.of_this_worker()))
