"""Server time of each dashboard page with much data, and whether it uses indexes."""

from __future__ import annotations

import logging
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import structlog
from fastapi.testclient import TestClient
from psycopg.conninfo import make_conninfo

from bench.measure import Figure
from penstock import server
from penstock.postgres import db, migrate
from penstock.settings import Settings

ROUNDS = 20
PER_JOB = 10
CHUNK = 20_000
_ID = re.compile(r"(?<=/jobs/)[0-9a-f-]{36}|(?<=/tasks/)\d+")
# Large tables, which no page may scan sequentially.
LARGE = (
    "jobs",
    "phases",
    "tasks",
    "results",
    "ready",
    "parked",
    "dead_letters",
    "attempts",
    "audit_log",
    "accounts",
    "cost_entries",
    "cost_sums",
    "task_sums",
    "tenants",
)
_TENANTS = """
insert into penstock.tenants (id, name, plan)
select md5(n::text)::uuid, 'tenant ' || n, 'basic' from generate_series(1, %(n)s::integer) as n"""
# Every tenth job belongs to the first tenant, the others are spread over all tenants.
_JOBS = """
insert into penstock.jobs (tenant_id, type, status, created_by, created_at, started_at, finished_at, budget, status_reason)
select md5((case when n %% 10 = 0 then 1 else 1 + n %% %(tenants)s end)::text)::uuid, 'type ' || n %% 20,
  s.status, 'bench', now() - (%(jobs)s - n) * interval '1 second', now() - (%(jobs)s - n) * interval '1 second',
  case when s.status in ('completed', 'failed', 'canceled') then now() - (%(jobs)s - n - 1) * interval '1 second' end, 5, null
from generate_series(%(first)s::integer, %(last)s::integer) as n
cross join lateral (select case when n > %(jobs)s * 0.98 then case n %% 4 when 0 then 'queued' else 'running' end
  when n %% 100 < 6 then 'failed' when n %% 100 < 8 then 'canceled' when n %% 1000 = 9 then 'paused' else 'completed' end) as s(status)
returning id, tenant_id, status"""
_REST = (
    """
insert into penstock.phases (job_id, position, tenant_id, name, total, succeeded, failed)
select id, 1, tenant_id, 'work', 10, case status when 'completed' then 10 when 'failed' then 9 else 0 end,
  case status when 'failed' then 1 else 0 end from made""",
    """
insert into penstock.tasks (job_id, id, tenant_id, created_at, lane_id, phase, priority, kind, key, input)
select m.id, nextval('penstock.task_ids'), m.tenant_id, now(), 1 + k %% (select count(*)::integer from penstock.lanes), 1, 5, 'work', 'task ' || k,
  '{"note": "something"}' from made m cross join generate_series(1, 10) as k""",
    """
insert into penstock.results (job_id, task_id, lease, tenant_id, started_at, finished_at, attempt, phase, outcome, worker_id, error_code, output)
select t.job_id, t.id, 1, t.tenant_id, now() - interval '2 seconds', now(), 1, 1,
  case when m.status = 'failed' and t.key = 'task 3' then 'failed' else 'succeeded' end, 'w1',
  case when m.status = 'failed' and t.key = 'task 3' then 'timeout' end, '{"pages": 3}'
from made m join penstock.tasks t on t.job_id = m.id where m.status in ('completed', 'failed')""",
    """
insert into penstock.ready (task_id, vtime, job_id, tenant_id, lane_id, priority, phase)
select t.id, t.id, t.job_id, t.tenant_id, t.lane_id, 5, 1 from made m join penstock.tasks t on t.job_id = m.id
where m.status in ('queued', 'running')""",
    """
insert into penstock.parked (task_id, job_id, tenant_id, lane_id, priority, phase, until, reason)
select t.id, t.job_id, t.tenant_id, t.lane_id, 5, 1, 'infinity', 'paused' from made m join penstock.tasks t on t.job_id = m.id
where m.status = 'paused'""",
    """
insert into penstock.dead_letters (tenant_id, job_id, task_id, kind, reason, error_code, error_message, attempts, died_at)
select t.tenant_id, t.job_id, t.id, 'work', 'attempts', 'code_' || t.id %% 7, 'it did not answer', 3, now()
from made m join penstock.tasks t on t.job_id = m.id where m.status = 'failed' and t.key = 'task 3'""",
    """
insert into penstock.audit_log (at, tenant_id, actor, action, job_id, subject)
select now(), m.tenant_id, 'service:bench', 'job.' || s, m.id, 'job:' || m.id from made m cross join unnest(array['queued', m.status]) as s""",
    """
insert into penstock.accounts (tenant_id, job_id, meter, period, used) select tenant_id, id, 'cost', '-infinity', 0.25 from made""",
)
_MORE = (
    """
insert into penstock.cost_sums (tenant_id, day, provider, cost_type, amount, unit_count, lines, is_fresh)
select t.id, current_date - d, 'p/' || p, 'inference', 1, 10, 10, false
from (select id from penstock.tenants union all select null) as t cross join generate_series(0, 29) as d cross join generate_series(1, 2) as p""",
    """
insert into penstock.task_sums (tenant_id, minute, succeeded, failed, waits, runs)
select t.id, date_trunc('minute', now() - interval '10 seconds') - n * interval '1 minute', 50, 1, '{"12": 40, "20": 11}', '{"15": 50}'
from (select id from (select id from penstock.tenants order by id limit 1000) as x union all select null union all select md5('1')::uuid) as t
cross join generate_series(1, 60) as n on conflict do nothing""",
    """
insert into penstock.workers (id, host, pid, kinds, concurrency, version, started_at, beat_at)
select 'worker ' || n, 'host', n, array['work'], 20, '0.1.0', now(), now() from generate_series(1, 50) as n""",
    """
insert into penstock.leases (task_id, lease, job_id, tenant_id, lane_id, priority, phase, failures, deaths, has_parents, has_children, worker_id, started_at, expires_at)
select r.task_id, r.task_id, r.job_id, r.tenant_id, r.lane_id, 5, 1, 0, 0, false, false, 'worker 1', now(), now() + interval '1 hour'
from penstock.ready r order by r.task_id limit 1000""",
)


def pages(dsn: str, jobs: int, tenants: int) -> list[Figure]:
    """The p95 of each page's server time, for an operator and for members."""
    migrate.migrate(dsn)
    with db.connect(dsn) as connection:
        began = time.perf_counter()
        _fill(connection, jobs, tenants)
        print(f"  filled in {time.perf_counter() - began:.0f} s", flush=True)
        connection.execute(
            "create role penstock_api login noinherit password 'bench' in role anon, authenticated"
        )
        keys = {
            "operator": _key(connection, "service", None),
            "large tenant": _key(connection, "owner", 1),
            "small tenant": _key(connection, "owner", 2),
        }
        big = _one(
            connection,
            "select id::text from penstock.jobs where status = 'failed' and tenant_id = md5('1')::uuid order by id desc limit 1",
        )
        task = _one(
            connection, f"select id::text from penstock.tasks where job_id = '{big}' and key = 'task 3'"
        )
    settings = Settings(
        database_url=dsn,
        api_url=make_conninfo(dsn, user="penstock_api", password="bench"),
        home=Path(tempfile.mkdtemp()),
    )
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    figures: list[Figure] = []
    with TestClient(server.application(settings)) as client, db.connect(dsn) as connection:
        for who, key in keys.items():
            for path in _paths(who, big, task):
                figures += _time(client, connection, who, key, path, jobs)
    return figures


def _paths(who: str, job: str, task: str) -> list[str]:
    common = [
        "/",
        "/jobs",
        "/jobs?filter=status:failed",
        "/jobs?filter=type:%22type+7%22+age:%3C1h",
        "/dead-letters",
        "/dead-letters?filter=code:code_3",
        "/lanes",
        "/usage",
        "/tenants",
        "/schedules",
        "/audit",
        "/settings",
    ]
    if who == "operator":
        common += [
            "/workers",
            "/jobs?filter=type:none",
            "/jobs?filter=tenant:%22tenant+77%22",
            "/confirm?noun=jobs&verb=retry&every=1&filter=status:failed",
        ]
    if who != "small tenant":
        common += [f"/jobs/{job}", f"/jobs/{job}?view=timeline", f"/jobs/{job}/tasks/{task}"]
    return common


def _time(client: TestClient, connection: Any, who: str, key: str, path: str, jobs: int) -> list[Figure]:
    headers = {"Authorization": f"Bearer {key}"}
    times: list[float] = []
    # The first request of a page compiles its template.
    client.get(f"/dashboard{path}", headers=headers)
    with _scans(connection, f"{path} as {who}"):
        for _ in range(ROUNDS):
            began = time.perf_counter()
            answer = client.get(f"/dashboard{path}", headers=headers)
            times.append((time.perf_counter() - began) * 1000)
            assert answer.status_code == 200, (path, answer.status_code)
    p95 = statistics.quantiles(times, n=20)[-1]
    return [
        Figure(
            "page_p95",
            f"{who}: {_ID.sub('…', path)} ({jobs:,} jobs)",
            p95,
            "ms (< 300)",
        )
    ]


@contextmanager
def _scans(connection: Any, what: str) -> Iterator[None]:
    """Print the large tables that were scanned sequentially."""
    query = "select relname as name, seq_scan as n from pg_stat_user_tables where schemaname = 'penstock' and relname = any (%s)"

    def now() -> dict[str, int]:
        connection.execute("select pg_stat_force_next_flush()")
        time.sleep(1.1)
        return {row["name"]: row["n"] for row in connection.execute(query, [list(LARGE)]).fetchall()}

    before = now()
    yield
    after = now()
    for name, count in after.items():
        if count > before[name]:
            print(
                f"  {what}: {name} was read from its start {(count - before[name]) / ROUNDS:g} times",
                file=sys.stderr,
            )


def _fill(connection: Any, jobs: int, tenants: int) -> None:
    connection.execute("set session_replication_role = replica")
    connection.execute("select penstock.define_kind('work')")
    connection.execute(
        "insert into penstock.lanes (kind, provider) select 'work', nullif('p/' || n, 'p/1') from generate_series(1, 10) as n on conflict do nothing"
    )
    connection.execute(_TENANTS, {"n": tenants})
    for first in range(1, jobs + 1, CHUNK):
        values = {"tenants": tenants, "jobs": jobs, "first": first, "last": min(first + CHUNK - 1, jobs)}
        with connection.transaction():
            connection.execute(
                "create temporary table made (id uuid, tenant_id uuid, status text) on commit drop"
            )
            connection.execute(f"with j as ({_JOBS}) insert into made select * from j".encode(), values)
            for statement in _REST:
                connection.execute(statement.replace("%%", "%").encode())
    for statement in _MORE:
        connection.execute(statement.replace("%%", "%").encode())
    connection.execute("set session_replication_role = origin")
    connection.execute("vacuum analyze")


def _key(connection: Any, role: str, tenant: int | None) -> str:
    owner = f"md5('{tenant}')::uuid" if tenant else "null"
    return _one(connection, f"select secret from penstock.create_key('bench', '{role}', {owner})")


def _one(connection: Any, query: str) -> str:
    return next(iter(connection.execute(query.encode()).fetchone().values()))
