"""What waiting tasks cost a claim: with none and with many of them. `python -m bench.waits`

Two databases hold the same work and are measured in turns, so that other load falls on both alike.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

import psycopg
from psycopg.rows import dict_row

from bench import server
from penstock.postgres import migrate

_KIND = "select penstock.define_kind('work', '{}')"
_START = """select penstock.start_job('fill', '{}', (
  select jsonb_agg('{"kind": "work"}'::jsonb) from generate_series(1, %s)),
  jsonb_build_object('tenant_id', %s::text))"""
# As park_task leaves them, without a call for each.
_WAIT = """
with taken as (
  delete from penstock.ready where job_id = %s returning *
), asked as (
  insert into penstock.waits (tenant_id, job_id, task_id, name, kind, asked_at, until)
  select tenant_id, job_id, task_id, 'approval', 'answer', now(), now() + interval '3 days'
  from taken returning *
)
insert into penstock.parked (task_id, job_id, tenant_id, lane_id, priority, phase, until, reason, wait_id)
select t.task_id, t.job_id, t.tenant_id, t.lane_id, t.priority, t.phase, a.until, 'answer: approval', a.id
from taken t join asked a on a.task_id = t.task_id"""


def prepare(dsn: str, waiting: int) -> psycopg.Connection[dict[str, Any]]:
    """A database with 2,000 tasks to claim and this many that wait."""
    migrate.migrate(dsn)
    connection = psycopg.Connection[dict[str, Any]].connect(dsn, autocommit=True, row_factory=dict_row)
    connection.execute(_KIND)
    tenant = connection.execute("select penstock.ensure_tenant('bench') as id").fetchone()
    assert tenant
    for start in range(0, waiting, 20_000):
        job = connection.execute(_START, [min(20_000, waiting - start), tenant["id"]]).fetchone()
        assert job
        connection.execute(_WAIT, [job["start_job"]])
    connection.execute(_START, [2000, tenant["id"]])
    connection.execute("analyze")
    return connection


def seconds(connection: psycopg.Connection[dict[str, Any]]) -> float:
    """Of one claim of one task, and its completion."""
    begin = time.perf_counter()
    task = connection.execute("select id, lease from penstock.claim_tasks('w', 1)").fetchone()
    took = time.perf_counter() - begin
    assert task
    connection.execute("select penstock.complete_task(%s, 'w', null, %s)", [task["id"], task["lease"]])
    return took


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--waiting", type=int, default=100_000)
    parser.add_argument("--claims", type=int, default=1000)
    arguments = parser.parse_args()
    with server.postgres() as running:
        none = prepare(running.create_database("none"), 0)
        many = prepare(running.create_database("many"), arguments.waiting)
        times: dict[str, list[float]] = {"none": [], "many": []}
        for n in range(arguments.claims + 50):
            pair = (seconds(none), seconds(many)) if n % 2 else (seconds(many), seconds(none))[::-1]
            if n >= 50:
                times["none"].append(pair[0])
                times["many"].append(pair[1])
    found = {name: statistics.median(some) * 1000 for name, some in times.items()}
    print(f"claim with 0 waiting: {found['none']:.3f} ms (median of {arguments.claims})")
    print(f"claim with {arguments.waiting:,} waiting: {found['many']:.3f} ms")
    print(f"ratio: {found['many'] / found['none']:.3f}")


if __name__ == "__main__":
    main()
