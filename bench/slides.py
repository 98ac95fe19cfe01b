"""The app slides at 1,000 times the volume of its reference: `python -m bench --only slides`.

Medians and p99 of one client, each beside a bare statement that reads or writes the same rows without any
rule: reserve a thumbnail, the status of a slide, a recorded failure with its detection of streaks, and the
retroactive selection of 500 slides. Also reservations of one tenant by eight clients.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg

from bench.measure import Figure, percentile
from penstock.apps.slides.app import app

GOALS = {"reserve": 10.0, "status": 5.0, "failures": 20.0, "retroactive": 50.0}
"""Milliseconds, medians (R4.7)."""
_BIG_EVENTS = 20

# As the app's functions leave the rows, without a call for each.
_FILL = """
insert into penstock.tenants (name, plan)
select 'tenant ' || n, 'unlimited' from generate_series(1, %(tenants)s) as n;
insert into penstock.tenant_limits (tenant_id, meter, amount)
select id, 'thumbnails', 1000000 from penstock.tenants;
create temporary table t as select id, (row_number() over (order by id))::integer as n from penstock.tenants;
create index on t (n);
insert into slides.events (tenant_id, id, name, thumbnail_generation_enabled)
select t.id, md5('event ' || e)::uuid, 'event ' || e, true
from generate_series(1, %(events)s) as e join t on t.n = e %% %(tenants)s + 1;
insert into slides.sessions (tenant_id, id, event_id, title)
select tenant_id, id, id, 'session' from slides.events;
insert into slides.speeches (tenant_id, id, session_id, title)
select tenant_id, id, id, 'speech' from slides.events;
insert into slides.slides (tenant_id, id, speech_id, event_id, r2_key, mime_type, thumbnail_status,
  thumbnail_r2_key, thumbnail_generated_at)
select t.id, md5('slide ' || s)::uuid, e.id, e.id, 'files/' || s, 'image/png',
  case when s %% 2 = 0 then 'completed' else 'none' end, case when s %% 2 = 0 then 'thumbs/' || s end,
  case when s %% 2 = 0 then now() end
from generate_series(1, %(slides)s) as s cross join lateral (select case when s <= %(big)s
  then (s - 1) / 1000 + 1 else s %% %(events)s + 1 end as event) as x
join t on t.n = x.event %% %(tenants)s + 1
cross join lateral (select md5('event ' || x.event)::uuid as id) as e;
insert into penstock.operations (tenant_id, job_id, task_id, number, provider, object, external_id, status,
  gated_lane_id, attempts, started_at, submitted_at, deadline_at, completed_at)
select s.tenant_id, s.id, 1, 1, 'cloudconvert/jobs', 'slide:' || s.id, s.id::text, 'completed', 1, 0,
  now(), now(), now(), now()
from slides.slides s where s.thumbnail_status = 'completed';
insert into penstock.failures (at, tenant_id, scope, subject, code, message)
select now(), e.tenant_id, 'event:' || e.id, 'slide', 'network_error', 'no route'
from slides.events e where substr(e.id::text, 1, 1) in ('0', '1', '2', '3', '4', '5', '6', '7');
create table bare_quota as select id as tenant_id, 1000000 as total, 0 as used from penstock.tenants;
alter table bare_quota add primary key (tenant_id);
create table bare_failures (id bigint generated always as identity primary key,
  at timestamptz default now(), scope text, message text);
create index on bare_failures (scope, id desc);
insert into bare_failures (scope, message) select scope, message from penstock.failures;
"""
_BARE_FAILURE = """
with added as (insert into bare_failures (scope, message) values ('event:' || %s, 'no route') returning scope)
select count(*) from (select 1 from bare_failures f join added a on a.scope = f.scope limit 3) as x"""
_BARE_SELECTION = """
update slides.slides set thumbnail_status = 'pending' where tenant_id = %s and id = any (array(
  select id from slides.slides where tenant_id = %s and event_id = %s and thumbnail_status = 'none'
  order by id limit 500 for update))"""


def measure(dsn: str, slides: int, calls: int) -> list[Figure]:
    """All figures of the part `slides`."""
    app.migrate(dsn)
    sizes = {"slides": slides, "tenants": max(10, slides // 100), "events": max(50, slides // 20),
             "big": min(slides // 2, _BIG_EVENTS * 1000)}  # fmt: skip
    with psycopg.connect(dsn, autocommit=True) as conn:
        # Without triggers and foreign keys; the rows are consistent.
        conn.execute("set session_replication_role = replica")
        for statement in _FILL.split(";\n"):
            if statement.strip():
                conn.execute((statement % sizes).encode())
        conn.execute("set session_replication_role = origin")
        conn.execute("vacuum analyze")
        names = [("reserve", _reserve, _bare_reserve), ("status", _status, _bare_status),
                 ("failures", _fail, _bare_fail), ("retroactive", _select, _bare_select)]  # fmt: skip
        figures: list[Figure] = []
        for name, ours, bare in names:
            count = calls if name != "retroactive" else max(10, calls // 10)
            figures += _figures(f"slides_{name}", "penstock", _times(conn, ours, sizes, count))
            figures += _figures(f"slides_{name}_bare", "bare statement", _times(conn, bare, sizes, count))
    figures += _figures("slides_reserve_hot", "penstock", _hot(dsn, calls))
    return figures


def _figures(name: str, system: str, times: Sequence[float]) -> list[Figure]:
    return [
        Figure(name, system, statistics.median(times) * 1000, "ms"),
        Figure(f"{name}_p99", system, percentile(times, 0.99) * 1000, "ms"),
    ]


Call = Callable[[psycopg.Connection[Any], random.Random, dict[str, int]], float]


def _times(conn: psycopg.Connection[Any], call: Call, sizes: dict[str, int], count: int) -> list[float]:
    chance = random.Random(4)
    return [call(conn, chance, sizes) for _ in range(count + 10)][10:]


def _timed(conn: psycopg.Connection[Any], query: str, *values: Any) -> float:
    begin = time.perf_counter()
    conn.execute(query.encode(), values).fetchall()
    return time.perf_counter() - begin


def _tenant(conn: psycopg.Connection[Any], chance: random.Random, sizes: dict[str, int]) -> Any:
    return _event(conn, chance.randint(1, sizes["events"]))[0]


def _event(conn: psycopg.Connection[Any], number: int) -> Any:
    found = conn.execute(
        "select tenant_id, id from slides.events where id = md5('event ' || %s::int)::uuid", [number]
    ).fetchone()
    assert found
    return found


def _reserve(conn: psycopg.Connection[Any], chance: random.Random, sizes: dict[str, int]) -> float:
    tenant = _tenant(conn, chance, sizes)
    return _timed(conn, "select * from slides.check_and_increment_thumbnail_quota(%s)", tenant)


def _bare_reserve(conn: psycopg.Connection[Any], chance: random.Random, sizes: dict[str, int]) -> float:
    query = "update bare_quota set used = used + 1 where tenant_id = %s and used < total returning used"
    return _timed(conn, query, _tenant(conn, chance, sizes))


def _slide(chance: random.Random, sizes: dict[str, int]) -> str:
    return f"slide {chance.randint(1, sizes['slides'])}"


def _status(conn: psycopg.Connection[Any], chance: random.Random, sizes: dict[str, int]) -> float:
    return _timed(conn, "select slides.thumbnail_status(md5(%s)::uuid)", _slide(chance, sizes))


def _bare_status(conn: psycopg.Connection[Any], chance: random.Random, sizes: dict[str, int]) -> float:
    return _timed(conn, "select * from slides.slides where id = md5(%s)::uuid", _slide(chance, sizes))


def _fail(conn: psycopg.Connection[Any], chance: random.Random, sizes: dict[str, int]) -> float:
    tenant, event = _event(conn, chance.randint(1, sizes["events"]))
    query = "select penstock.record_outcome(%s, 'event:' || %s, false, 'slide', 'network_error', 'no route')"
    return _timed(conn, query, tenant, str(event))


def _bare_fail(conn: psycopg.Connection[Any], chance: random.Random, sizes: dict[str, int]) -> float:
    return _timed(conn, _BARE_FAILURE, str(_event(conn, chance.randint(1, sizes["events"]))[1]))


def _in_rollback(conn: psycopg.Connection[Any], query: str, *values: Any) -> float:
    with conn.transaction(force_rollback=True):
        begin = time.perf_counter()
        conn.execute(query.encode(), values)
        return time.perf_counter() - begin


def _select(conn: psycopg.Connection[Any], chance: random.Random, sizes: dict[str, int]) -> float:
    tenant, event = _event(conn, chance.randint(1, max(1, sizes["big"] // 1000)))
    query = "select slides.select_slides(%s, %s, gen_random_uuid(), 500)"
    return _in_rollback(conn, query, tenant, event)


def _bare_select(conn: psycopg.Connection[Any], chance: random.Random, sizes: dict[str, int]) -> float:
    tenant, event = _event(conn, chance.randint(1, max(1, sizes["big"] // 1000)))
    return _in_rollback(conn, _BARE_SELECTION, tenant, tenant, event)


def _hot(dsn: str, calls: int) -> list[float]:
    """Eight clients on the quota of one tenant."""

    def client(_: int) -> list[float]:
        with psycopg.connect(dsn, autocommit=True) as conn:
            tenant = _event(conn, 1)[0]
            query = "select * from slides.check_and_increment_thumbnail_quota(%s)"
            return [_timed(conn, query, tenant) for _ in range(max(10, calls // 8))]

    with ThreadPoolExecutor(8) as pool:
        return [each for times in pool.map(client, range(8)) for each in times]
