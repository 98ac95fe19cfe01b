"""What waiting tasks cost a claim: with none and with many of them. `python -m bench --only waiting`

Two databases hold the same work and are measured in turns, so that other load falls on both alike.
"""

from __future__ import annotations

import statistics
import time
from typing import Any

import psycopg
from psycopg.rows import dict_row

from bench.measure import Figure
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
_BATCH = 20_000


def measure(none_dsn: str, many_dsn: str, waiting: int, claims: int) -> list[Figure]:
    """The duration of a claim without and with waiting tasks, and their ratio."""
    none, many = _prepare(none_dsn, 0, claims), _prepare(many_dsn, waiting, claims)
    times: dict[str, list[float]] = {"none": [], "many": []}
    for n in range(claims + 50):
        pair = (_seconds(none), _seconds(many)) if n % 2 else (_seconds(many), _seconds(none))[::-1]
        if n >= 50:
            times["none"].append(pair[0])
            times["many"].append(pair[1])
    found = {name: statistics.median(some) * 1000 for name, some in times.items()}
    none.close()
    many.close()
    return [
        Figure("waiting_claim", "0 waiting", found["none"], "ms"),
        Figure("waiting_claim", f"{waiting:,} waiting", found["many"], "ms"),
        Figure("waiting_ratio", "penstock", found["many"] / found["none"], "× (≤ 1.1)"),
    ]


def _prepare(dsn: str, waiting: int, claims: int) -> psycopg.Connection[dict[str, Any]]:
    """A database with enough tasks to claim, and this many that wait."""
    migrate.migrate(dsn)
    connection = psycopg.Connection[dict[str, Any]].connect(dsn, autocommit=True, row_factory=dict_row)
    connection.execute(_KIND)
    tenant = connection.execute(
        "insert into penstock.tenants (name, plan) values ('bench', 'unlimited') returning id"
    ).fetchone()
    assert tenant
    for start in range(0, waiting, _BATCH):
        job = connection.execute(_START, [min(_BATCH, waiting - start), tenant["id"]]).fetchone()
        assert job
        connection.execute(_WAIT, [job["start_job"]])
    connection.execute(_START, [claims + 100, tenant["id"]])
    connection.execute("vacuum analyze")
    return connection


def _seconds(connection: psycopg.Connection[dict[str, Any]]) -> float:
    """Of one claim of one task; its completion is not measured."""
    begin = time.perf_counter()
    task = connection.execute("select id, lease from penstock.claim_tasks('w', 1)").fetchone()
    took = time.perf_counter() - begin
    assert task
    connection.execute("select penstock.complete_task(%s, 'w', null, %s)", [task["id"], task["lease"]])
    return took
