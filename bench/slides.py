"""The app slides at 1,000 times the volume of its reference: `python -m bench --only slides`.

pgbench runs each call of R4.7 beside a bare statement that reads or writes the same rows without any rule:
reserve a thumbnail, the status of a slide, a recorded failure with its detection of streaks, and the
retroactive selection of 500 slides. One client, with and without statistics of the tables; eight clients;
and eight clients on the quota of one tenant. Medians and p99 of the transactions that pgbench logs.
"""

from __future__ import annotations

import statistics
import subprocess
import tempfile
from pathlib import Path

import psycopg

from bench.engine import pgbench
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
# What a transaction of each script does; {events}, {slides} and {big} are numbers of rows.
_EVENT = "\\set n random(1, {events})\n"
_OF_EVENT = "from slides.events where id = md5('event ' || :n)::uuid;\n"
_BIG = (
    "\\set n random(1, {big})\n"
    "select tenant_id, id as event_id from slides.events "
    "where id = md5('event ' || :n)::uuid \\gset\nbegin;\n"
)
_SLIDE = "\\set n random(1, {slides})\n"
SCRIPTS = {
    "reserve": _EVENT + "select slides.check_and_increment_thumbnail_quota(tenant_id) " + _OF_EVENT,
    "reserve_bare": _EVENT + "update bare_quota set used = used + 1 where used < total and tenant_id = "
    "(select tenant_id from slides.events where id = md5('event ' || :n)::uuid) returning used;\n",
    "status": _SLIDE + "select slides.thumbnail_status(md5('slide ' || :n)::uuid);\n",
    "status_bare": _SLIDE + "select * from slides.slides where id = md5('slide ' || :n)::uuid;\n",
    "failures": _EVENT + "select penstock.record_outcome(tenant_id, 'event:' || id, false, 'slide', "
    "'network_error', 'no route') " + _OF_EVENT,
    "failures_bare": _EVENT + "with added as (insert into bare_failures (scope, message) "
    "select 'event:' || md5('event ' || :n)::uuid, 'no route' returning scope) select count(*) from "
    "(select from bare_failures f join added a on a.scope = f.scope limit 3) as x;\n",
    "retroactive": _BIG
    + "select slides.select_slides(:tenant_id, :event_id, gen_random_uuid(), 500);\nrollback;\n",
    "retroactive_bare": _BIG + "update slides.slides set thumbnail_status = 'pending' where tenant_id = "
    ":tenant_id and id = any (array(select id from slides.slides where tenant_id = :tenant_id and "
    "event_id = :event_id and thumbnail_status = 'none' order by id limit 500 for update));\nrollback;\n",
    "reserve_hot": "\\set n 1\nselect slides.check_and_increment_thumbnail_quota(tenant_id) " + _OF_EVENT,
}


def measure(dsn: str, slides: int, calls: int) -> list[Figure]:
    """All figures of the part `slides`."""
    app.migrate(dsn)
    sizes = {"slides": slides, "tenants": max(10, slides // 100), "events": max(50, slides // 20),
             "big": min(slides // 2, _BIG_EVENTS * 1000)}  # fmt: skip
    numbers = {**sizes, "big": max(1, sizes["big"] // 1000)}
    figures: list[Figure] = []
    with psycopg.connect(dsn, autocommit=True) as conn:
        # Without triggers and foreign keys; the rows are consistent.
        conn.execute("set session_replication_role = replica")
        for statement in _FILL.split(";\n"):
            if statement.strip():
                conn.execute((statement % sizes).encode())
        for name in GOALS:
            times = _times(dsn, SCRIPTS[name].format(**numbers), 1, _calls(name, calls))
            figures += _figures(f"slides_{name}_unanalyzed", "penstock, pgbench, no statistics", times)
        conn.execute("vacuum analyze")
    for name in GOALS:
        for clients in (1, 8):
            suffix = "" if clients == 1 else f"_{clients}_clients"
            for script, system in ((name, "penstock, pgbench"), (f"{name}_bare", "bare statement, pgbench")):
                text = SCRIPTS[script].format(**numbers)
                times = _times(dsn, text, clients, _calls(name, calls))
                figures += _figures(f"slides_{script}{suffix}", system, times)
    hot = _times(dsn, SCRIPTS["reserve_hot"], 8, calls)
    return figures + _figures("slides_reserve_hot", "penstock, pgbench, 8 clients on one quota", hot)


def _calls(name: str, calls: int) -> int:
    return calls if name != "retroactive" else max(10, calls // 10)


def _times(dsn: str, script: str, clients: int, calls: int) -> list[float]:
    """Milliseconds of each transaction after the first ten of a client."""
    each = max(10, calls // clients)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "script.sql"
        path.write_text(script)
        command = [pgbench(), "-n", "-c", str(clients), "-j", "1", "-M", "prepared", "-t", str(each + 10),
                   "-f", str(path), "-l", "--log-prefix", str(Path(folder) / "log"), dsn]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode or "number of failed transactions: 0" not in done.stdout:
            raise RuntimeError(f"pgbench failed: {done.stderr[-2000:]}")
        # Client, number of the transaction, microseconds, …
        lines = [line.split() for log in Path(folder).glob("log.*") for line in log.read_text().splitlines()]
    return [int(line[2]) / 1000 for line in lines if int(line[1]) > 10]


def _figures(name: str, system: str, times: list[float]) -> list[Figure]:
    return [
        Figure(name, system, statistics.median(times), "ms"),
        Figure(f"{name}_p99", system, percentile(times, 0.99), "ms"),
    ]
