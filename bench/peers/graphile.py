"""graphile-worker (Node.js): 100 concurrent jobs, local queue of 1,000, completions batched without delay.

These are the settings of its own performance page, with the local queue sized for one process.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg

from bench import measure
from bench.peers import node

NAME = "graphile-worker"
STORE = "postgresql"
SCALE = 1.0
PER_PROCESS = 100

fill = measure.statement(
    """
    WITH task AS (
      INSERT INTO graphile_worker._private_tasks (identifier) VALUES ('job')
      ON CONFLICT (identifier) DO UPDATE SET identifier = excluded.identifier RETURNING id
    )
    INSERT INTO graphile_worker._private_jobs (task_id, payload)
    SELECT task.id, '{"sent": 0}' FROM task, generate_series(1, %(n)s)
    """
)
keep = None  # A finished job is deleted.


def version() -> str:
    return node.version("graphile-worker")


def command() -> list[str]:
    return node.command("graphile.mjs")


def prepare(dsn: str) -> None:
    subprocess.run([*command(), "migrate"], env=os.environ | {"BENCH_DSN": dsn}, check=True, timeout=60)


@contextmanager
def client(dsn: str) -> Iterator[measure.Client]:
    left = "SELECT count(*) FROM graphile_worker._private_jobs"
    with psycopg.connect(dsn, autocommit=True) as connection, measure.counting(dsn, left) as count:
        yield measure.Client(
            lambda sent: connection.execute(
                "SELECT graphile_worker.add_job('job', json_build_object('sent', %s::bigint))", [sent]
            ),
            lambda n, sent: connection.execute(
                """
                SELECT count(*) FROM graphile_worker.add_jobs(ARRAY(
                    SELECT json_populate_record(NULL::graphile_worker.job_spec, spec)
                    FROM json_array_elements(%s::json) AS spec
                ))
                """,
                [json.dumps([{"identifier": "job", "payload": {"sent": sent}}] * n)],
            ),
            count,
        )
