"""pg-boss (Node.js): 4 workers, 100 jobs per fetch, no pause while batches are full, woken by NOTIFY.

Its documentation recommends batches, `localConcurrency`, `burstWhenBatchFull` and `useListenNotify` for
throughput and latency. Only its own client can send jobs; it runs in a process beside this one. 12.38.0 is
newer, but one of its dependencies cannot be installed.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from bench import measure
from bench.peers import node

NAME = "pg-boss"
STORE = "postgresql"
SCALE = 0.5
PER_PROCESS = 100

fill = measure.statement(
    """INSERT INTO pgboss.job (name, data) SELECT 'job', '{"sent": 0}' FROM generate_series(1, %(n)s)"""
)
keep = measure.statement(
    """
    INSERT INTO pgboss.job (name, data, state, started_on, completed_on)
    SELECT 'job', '{"sent": 0}', 'completed', now(), now() FROM generate_series(1, %(n)s)
    """
)


def version() -> str:
    return node.version("pg-boss")


def command() -> list[str]:
    return node.command("pgboss.mjs")


def prepare(dsn: str) -> None:
    subprocess.run([*command(), "migrate"], env=os.environ | {"BENCH_DSN": dsn}, check=True, timeout=60)


@contextmanager
def client(dsn: str) -> Iterator[measure.Client]:
    left = "SELECT count(*) FROM pgboss.job WHERE name = 'job' AND state < 'completed'"
    process = subprocess.Popen(
        [*command(), "client"],
        env=os.environ | {"BENCH_DSN": dsn},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        bufsize=1,
    )
    assert process.stdin and process.stdout
    requests, answers = process.stdin, process.stdout

    def expect(answer: str) -> None:
        if answers.readline().strip() != answer:
            raise RuntimeError("the client of pg-boss has ended")

    def ask(n: int, sent: int) -> None:
        requests.write(f"{n} {sent}\n")
        expect("sent")

    try:
        expect("ready")
        with measure.counting(dsn, left) as count:
            yield measure.Client(lambda sent: ask(1, sent), ask, count)
    finally:
        requests.close()
        process.wait(timeout=10)
