"""The figures of a fault run, as queries over its history."""

from __future__ import annotations

from typing import Any

from faults import app as work
from faults import outside
from faults.check import CANCELED, DISK_FULL, TROUBLE, WARM
from penstock.postgres import db


def _times(what: str) -> dict[str, str]:
    """How long until a task began again after its worker was killed or stopped."""
    of = f"from faults.again where what = '{what}' and"
    p50, p99 = (f"percentile_cont({part}) within group (order by " for part in (0.5, 0.99))
    name, away = f"{what} → begun again", "with PostgreSQL restarted in between"
    return {
        f"{name}, tasks": f"select count(*) {of} not is_outage",
        f"{name}, p50 (s)": f"select {p50} seconds) {of} not is_outage",
        f"{name}, p99 (s)": f"select {p99} seconds) {of} not is_outage",
        f"{name}, most (s)": f"select max(seconds) {of} not is_outage",
        f"{name} {away}, tasks": f"select count(*) {of} is_outage",
        f"{name} {away}, p50 (s)": f"select {p50} seconds) {of} is_outage",
        f"{name} {away}, p99 (s)": f"select {p99} seconds) {of} is_outage",
        f"{name} {away}, most (s)": f"select max(seconds) {of} is_outage",
        f"{name} {away}, p99 less the outage (s)": f"select {p99} seconds - away) {of} is_outage",
    }


# Where it did not go away again at once.
_BACK = """
with back as (
  select (select min(extract(epoch from m.at)) from faults.moves m where m.what = 'ended' and extract(epoch from m.at) > o.up_at) - o.up_at as seconds
  from faults.outages o where not exists (select from faults.outages n where n.down_at between o.up_at and o.up_at + 5)
)
"""
FIGURES = {
    "jobs attempted": "select count(*) from faults.attempted",
    "jobs acknowledged": "select count(distinct key) from faults.acknowledged",
    "jobs whose answer was lost on the way": "select count(distinct key) from faults.unknown",
    "attempted": "select sum(size) from faults.attempted",
    "acknowledged": "select coalesce(sum(a.size), 0) from faults.attempted a where exists (select from faults.acknowledged k where k.key = a.key)",
    "recovered": """
        select coalesce(sum(a.size), 0) from faults.attempted a join penstock.jobs j on j.idempotency_key = a.key
        where not exists (select from faults.acknowledged k where k.key = a.key)""",
    "never begun": "select coalesce(sum(a.size), 0) from faults.attempted a where not exists (select from penstock.jobs j where j.idempotency_key = a.key)",
    "ended": "select count(*) from penstock.results",
    "succeeded": "select count(*) from penstock.results where outcome = 'succeeded'",
    "failed": "select count(*) from penstock.results where outcome = 'failed'",
    "attempts lost": "select count(*) from penstock.attempts where outcome = 'lost'",
    "attempts failed": "select count(*) from penstock.attempts where outcome = 'failed'",
    "leases granted": "select count(*) from faults.moves where what = 'granted'",
    "handlers begun": "select count(*) from faults.began",
    "tasks begun more than once": "select count(*) from (select from faults.began group by task_id having count(*) > 1) as x",
    "given up after three deaths: poison": "select count(*) from penstock.dead_letters where reason = 'worker_deaths' and kind = 'poison'",
    "given up after three deaths: others": "select count(*) from penstock.dead_letters where reason = 'worker_deaths' and kind <> 'poison'",
    "stale writes rejected": "select count(*) from faults.refused f where f.verb <> 'beat' and f.code = 'lease_lost' and not exists (select from penstock.results r where r.task_id = f.task_id and r.lease = f.lease)",
    "stale heartbeats rejected": "select count(*) from faults.refused f where f.verb = 'beat' and f.code = 'lease_lost' and not exists (select from penstock.results r where r.task_id = f.task_id and r.lease = f.lease)",
    "effects in the database": "select count(*) from faults.effects",
    "calls of the limited provider": f"select count(*) from faults.moves m join penstock.lanes l on l.id = m.lane_id where m.what = 'granted' and l.provider = '{work.LIMITED}'",
    "most calls at once (of " + str(work.PLACES) + ")": f"""
        select coalesce(max(s.running), 0) from (select sum(case m.what when 'granted' then 1 else -1 end) over (order by m.seq) as running
          from faults.moves m join penstock.lanes l on l.id = m.lane_id where l.provider = '{work.LIMITED}' and m.what in ('granted', 'released')) as s""",
    f"most calls in any minute (of {work.REQUESTS_PER_MINUTE})": f"""
        select coalesce(max(n), 0) from (select count(*) over (order by g.granted_at range between interval '59.999 seconds' preceding and current row) as n
          from faults.moves g join penstock.lanes l on l.id = g.lane_id join faults.began b on b.task_id = g.task_id and b.lease = g.lease
          where l.provider = '{work.LIMITED}' and g.what = 'granted') as s""",
    "ledger lines": "select count(*) from penstock.cost_entries",
    **outside.FIGURES,
    "holds settled": "select count(*) from penstock.holds where status <> 'held'",
    **_times("killed"),
    **_times("stopped"),
    "outages of PostgreSQL": "select count(*) from faults.outages",
    "PostgreSQL back → first completion, p50 (s)": _BACK
    + "select percentile_cont(0.5) within group (order by seconds) from back",
    "PostgreSQL back → first completion, most (s)": _BACK + "select max(seconds) from back",
    "attempts charged to database trouble": f"select count(*) from penstock.attempts a where {TROUBLE}",
    "attempts failed because a statement was canceled or the disk was full": f"""
        select count(*) from penstock.attempts a where a.outcome = 'failed' and ({CANCELED} or {DISK_FULL})""",
    "tasks of the idle worker": f"select count(*) from penstock.tasks where kind in {WARM}",
    "tasks of the idle worker, attempts charged": f"""
        select count(*) from penstock.attempts a join penstock.tasks t on t.job_id = a.job_id and t.id = a.task_id where t.kind in {WARM}""",
    "job start → end of the idle worker's tasks after a restart, most (s)": """
        select max(extract(epoch from j.finished_at - j.created_at)) from penstock.jobs j join faults.attempted a on a.key = j.idempotency_key where a.flavour = 'warm'""",
    "migrates with nothing to do": "select count(*) from faults.migrations",
    "migrates, failed": "select count(*) from faults.migrations where error is not null",
    "migrates, p50 (s)": "select percentile_cont(0.5) within group (order by seconds) from faults.migrations where error is null",
    "migrates, most (s)": "select max(seconds) from faults.migrations where error is null",
}
# Of the database whose workers only use the HTTP API.
RPC_FIGURES = {
    "HTTP-only workers: tasks": "select count(*) from penstock.tasks",
    "HTTP-only workers: tasks ended": "select count(*) from penstock.results",
    "HTTP-only workers: attempts failed": "select count(*) from penstock.attempts where outcome = 'failed'",
    "HTTP-only workers: attempts lost": "select count(*) from penstock.attempts where outcome = 'lost'",
    "HTTP-only workers: expired lease → taken back, most (s)": """
        select greatest((select max(extract(epoch from m.at - m.due_at)) from faults.moves m
            join penstock.attempts a on a.task_id = m.task_id and a.lease = m.lease and a.outcome = 'lost' where m.what = 'released'),
          (select max(extract(epoch from clock_timestamp() - expires_at)) from penstock.leases))""",
    "HTTP-only workers: retry due → queued, most (s)": """
        select greatest((select max(extract(epoch from at - due_at)) from faults.moves where what = 'unparked'),
          (select max(extract(epoch from clock_timestamp() - until)) from penstock.parked where until < 'infinity'))""",
    **{
        f"HTTP-only workers: {name}": query
        for name, query in _times("killed").items()
        if "restarted" not in name and not name.endswith("tasks")
    },
}


def figures_of(connection: db.SyncConnection, queries: dict[str, str] = FIGURES) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for name, query in queries.items():
        [row] = connection.execute(query.encode()).fetchall()
        [value] = row.values()
        made[name] = None if value is None else round(float(value), 2) if float(value) % 1 else int(value)
    return made
