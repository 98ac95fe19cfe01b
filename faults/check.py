"""The checker: what must hold over a whole history, as queries that return the violations.

The history is the database itself (jobs, tasks, results, attempts, ledgers), a log of moves that triggers write there,
and the files that the processes wrote while they ran.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from faults import app as work
from faults import outside
from faults.invariants import INVARIANTS
from penstock.postgres import db

# Moves are numbered when they are made. A transaction that moves a task holds the lock of its lease's row, so the
# numbers of one task are in commit order.
TABLES = (
    """
create schema faults;
create table faults.effects (task_id bigint, lease bigint, n bigint);
create table faults.moves (
  seq bigint generated always as identity, at timestamptz not null default clock_timestamp(), xid bigint not null default pg_current_xact_id()::text::bigint,
  what text, task_id bigint, lease bigint, worker_id text, lane_id integer, is_gated boolean, granted_at timestamptz, due_at timestamptz);
create table faults.job_moves (seq bigint generated always as identity, job_id uuid, was text, became text);
create table faults.over (at timestamptz default clock_timestamp(), tenant_id uuid, job_id uuid, meter text, used numeric, held numeric, most numeric);
create table faults.attempted (key text, at double precision, flavour text, seed bigint, size integer);
create table faults.acknowledged (key text, job_id uuid);
create table faults.unknown (key text, error text);
create table faults.refusals (key text, error text);
create table faults.began (task_id bigint, lease bigint, pid integer, at double precision);
create table faults.used (task_id bigint, lease bigint);
create table faults.refused (verb text, task_id bigint, lease bigint, code text, pid integer);
create table faults.killed (pid integer, at double precision, by text);
create table faults.drained (pid integer, began_at double precision, at double precision);
create table faults.strikes (at double precision, name text);
create table faults.outages (down_at double precision, up_at double precision, why text);
create table faults.stops (pid integer, at double precision, seconds double precision, is_short boolean);
create table faults.migrations (at double precision, seconds double precision, error text);

create function faults.note_lease() returns trigger language plpgsql as $$
begin
  if tg_op = 'INSERT' then
    insert into faults.moves (what, task_id, lease, worker_id, lane_id, is_gated, granted_at)
    select 'granted', task_id, lease, worker_id, lane_id, is_gated, started_at from changed;
  else
    insert into faults.moves (what, task_id, lease, worker_id, lane_id, is_gated, due_at)
    select 'released', task_id, lease, worker_id, lane_id, is_gated, expires_at from changed;
  end if;
  return null;
end $$;
create trigger faults_granted after insert on penstock.leases referencing new table as changed for each statement execute function faults.note_lease();
create trigger faults_released after delete on penstock.leases referencing old table as changed for each statement execute function faults.note_lease();

create function faults.note_parked() returns trigger language plpgsql as $$
begin
  insert into faults.moves (what, task_id, due_at) select 'unparked', task_id, until from changed where until < 'infinity';
  return null;
end $$;
create trigger faults_unparked after delete on penstock.parked referencing old table as changed for each statement execute function faults.note_parked();

create function faults.note_result() returns trigger language plpgsql as $$
begin
  insert into faults.moves (what, task_id, lease, worker_id) select case tg_op when 'INSERT' then 'ended' else 'reopened' end, task_id, lease, worker_id from changed;
  return null;
end $$;
create trigger faults_ended after insert on penstock.results referencing new table as changed for each statement execute function faults.note_result();
create trigger faults_reopened after delete on penstock.results referencing old table as changed for each statement execute function faults.note_result();

create function faults.note_job() returns trigger language plpgsql as $$
begin
  insert into faults.job_moves (job_id, was, became) values (new.id, case tg_op when 'UPDATE' then old.status end, new.status);
  return null;
end $$;
create trigger faults_job_made after insert on penstock.jobs for each row execute function faults.note_job();
create trigger faults_job_moved after update on penstock.jobs for each row when (old.status is distinct from new.status) execute function faults.note_job();

create function faults.watch() returns trigger language plpgsql as $$
begin
  insert into faults.over (tenant_id, job_id, meter, used, held, most)
  select new.tenant_id, new.job_id, new.meter, new.used, new.held, m.most from (
    select l.amount as most from penstock.tenant_limits l where new.job_id is null and l.tenant_id = new.tenant_id and l.meter = new.meter
    union all
    select j.budget from penstock.jobs j where j.id = new.job_id and new.meter = 'cost') as m
  where new.used + new.held > m.most;
  return null;
end $$;
create trigger faults_watch after insert or update on penstock.accounts for each row execute function faults.watch();
"""
    + outside.TABLES
)

_PID = "reverse(split_part(reverse(a.worker_id), '-', 2))::integer"
_N = "(t.input ->> 'n')::bigint"
_LOST_TO_DEATHS = "exists (select from penstock.dead_letters d where d.job_id = r.job_id and d.task_id = r.task_id and d.reason = 'worker_deaths')"

# An attempt that failed because a connection to the database broke, or could not be made. A statement that
# pg_cancel_backend stopped and a full disk are counted on their own.
CANCELED = "coalesce(a.error_message, '') ~ 'canceling statement due to user request'"
DISK_FULL = "(a.error_details ->> 'type' is not distinct from 'DiskFull' or coalesce(a.error_message, '') ~ 'No space left on device')"
TROUBLE = f"""(a.outcome = 'failed' and not {CANCELED} and not {DISK_FULL} and (
  a.error_code in ('unavailable', '57P01', '57P02', '57P03')
  or a.error_details ->> 'type' in ('Unavailable', 'AdminShutdown', 'CrashShutdown', 'CannotConnectNow', 'PoolTimeout', 'ConnectionTimeout')
  or a.error_message ~ 'server closed the connection|consuming input failed|sending query failed|the connection is (closed|lost)|connection (failed|refused|timeout)|terminating connection|SSL connection has been closed|the database system is'))"""
WARM = "(" + ", ".join(f"'{kind}'" for kind in work.WARM) + ")"
# Seconds by which upkeep may be late because of what happened in between: outages, broken sessions, API restarts.
_EXCUSED = """(select coalesce(sum(d.seconds), 0) from (
  select down_at as at, up_at - down_at + 3 as seconds from faults.outages
  union all select at, 2 from faults.strikes where name in ('backend.ended', 'backend.canceled')
  union all select at, 6 from faults.killed where by = 'api') as d where d.at between {start} - 30 and {end} and d.at + d.seconds > {start})"""
LATE_SECONDS = 5

# Each query returns violations. The group is a line of the summary.
CHECKS: dict[str, dict[str, str]] = {
    "lost": {
        "an acknowledged job is not there": """
            select a.key, a.job_id from faults.acknowledged a left join penstock.jobs j on j.id = a.job_id and j.idempotency_key = a.key where j.id is null""",
        "a job has not all its tasks": """
            select j.id, a.size, count(t.id) from penstock.jobs j join faults.attempted a on a.key = j.idempotency_key
            left join penstock.tasks t on t.job_id = j.id
            -- A task that was given up adds none.
            where not exists (select from penstock.dead_letters d where d.job_id = j.id and d.kind = 'grow' and d.reason = 'worker_deaths')
            group by j.id, a.size having count(t.id) < a.size""",
        "a task has not ended": """
            select t.job_id, t.id, t.kind from penstock.tasks t left join penstock.results r on r.job_id = t.job_id and r.task_id = t.id where r.task_id is null""",
        "a job has not ended": "select id, status, status_reason from penstock.jobs where finished_at is null",
        "a task did not end as it should": f"""
            select t.id, t.kind, r.outcome, r.error_code, r.error_message from penstock.tasks t join penstock.results r on r.job_id = t.job_id and r.task_id = t.id
            where case
              when t.kind = 'doomed' then r.outcome <> 'failed'
              when t.kind = 'poison' then r.outcome <> 'failed' or not {_LOST_TO_DEATHS}
              when r.outcome = 'succeeded' then false
              when r.outcome = 'canceled' then r.error_code is distinct from 'parent_failed'
              else not {_LOST_TO_DEATHS} end""",
        "a task was given up although its worker did not die three times": """
            select d.task_id from penstock.dead_letters d where d.reason = 'worker_deaths'
            and (select count(*) from penstock.attempts a where a.job_id = d.job_id and a.task_id = d.task_id and a.outcome = 'lost') <> 3""",
        "an output is not the one of its input": f"""
            select t.id, t.kind, r.output from penstock.tasks t join penstock.results r on r.job_id = t.job_id and r.task_id = t.id
            where r.outcome = 'succeeded' and r.output is distinct from to_jsonb(case t.kind when 'join' then ({_N} + (
              select sum((p.output #>> '{{}}')::bigint) from penstock.edges e join penstock.results p on p.job_id = e.job_id and p.task_id = e.parent_id
              where e.job_id = t.job_id and e.child_id = t.id)) % 1000003 else {_N} end)""",
    },
    "unexpected": {
        "a job nobody asked for": """
            select j.id, j.idempotency_key from penstock.jobs j left join faults.attempted a on a.key = j.idempotency_key where a.key is null""",
        "a job that was refused": "select r.key, r.error from faults.refusals r join penstock.jobs j on j.idempotency_key = r.key",
        "a producer was refused": "select key, error from faults.refusals",
        "a task nobody asked for": """
            select j.id, a.size, count(*) from penstock.jobs j join faults.attempted a on a.key = j.idempotency_key
            join penstock.tasks t on t.job_id = j.id group by j.id, a.size having count(*) > a.size""",
        "work is left": """
            select 'ready', task_id from penstock.ready union all select 'parked', task_id from penstock.parked union all select 'leases', task_id from penstock.leases""",
    },
    "duplicated": {
        "one key, two jobs": "select idempotency_key, count(*) from penstock.jobs group by 1 having count(*) > 1",
        "one key, two answers": "select key, count(distinct job_id) from faults.acknowledged group by key having count(distinct job_id) > 1",
        "a lease was run twice": "select task_id, lease, count(*) from faults.began group by 1, 2 having count(*) > 1",
    },
    "effects": {
        "an effect is there twice": "select task_id, count(*) from faults.effects group by 1 having count(*) > 1",
        "an effect is missing": """
            select t.id from penstock.tasks t join penstock.results r on r.job_id = t.job_id and r.task_id = t.id
            left join faults.effects e on e.task_id = t.id and e.lease = r.lease
            where t.kind in ('post', 'post_in_thread', 'warm_post', 'warm_post_in_thread') and r.outcome = 'succeeded' and e.task_id is null""",
        "an effect without a task that succeeded": """
            select e.* from faults.effects e where not exists (
              select from penstock.tasks t join penstock.results r on r.job_id = t.job_id and r.task_id = t.id
              where t.id = e.task_id and r.lease = e.lease and r.outcome = 'succeeded')""",
        "tasks were added by a task that did not succeed": """
            select t.job_id, count(*) from penstock.tasks t join penstock.tasks g on g.job_id = t.job_id and g.kind = 'grow'
            join penstock.results r on r.job_id = g.job_id and r.task_id = g.id where t.key like 'more-%' and r.outcome <> 'succeeded' group by 1""",
    },
    "leases": {
        "two leases of one task at once, or a number that does not grow": """
            select * from (
              select seq, task_id, what, lease, lag(what) over w as before, lag(lease) over w as lease_before
              from faults.moves where what in ('granted', 'released') window w as (partition by task_id order by seq)) as m
            where m.what = 'granted' and (m.before = 'granted' or m.lease <= m.lease_before)
               or m.what = 'released' and (m.before is distinct from 'granted' or m.lease <> m.lease_before)""",
    },
    "stale": {
        "a task was ended by a lease that was over": """
            select e.* from faults.moves e where e.what = 'ended' and e.lease is not null and not exists (
              select from faults.moves r where r.what = 'released' and r.task_id = e.task_id and r.lease = e.lease and r.xid = e.xid)
            and exists (select from penstock.results x where x.task_id = e.task_id and x.outcome = 'succeeded')""",
        "what was refused counts": """
            select f.* from faults.refused f join penstock.results r on r.task_id = f.task_id and r.lease = f.lease
            -- A failure is rightly refused when its transaction was committed after all.
            where f.verb in ('complete', 'usage') and f.code in ('lease_lost', 'canceled') and r.outcome = 'succeeded'""",
        "a result of a lease that was given up": """
            select r.task_id, r.lease, a.lease from penstock.results r join penstock.attempts a on a.job_id = r.job_id and a.task_id = r.task_id
            where r.outcome = 'succeeded' and a.lease >= r.lease""",
        "usage of a lease that was over": """
            select u.task_id, u.lease from penstock.usage_events u
            join faults.moves m on m.what = 'released' and m.task_id = u.task_id and m.lease = u.lease
            where u.at > m.at and not u.is_estimate""",
        "an effect of another lease than the one that counts": """
            select e.* from faults.effects e join penstock.tasks t on t.id = e.task_id join penstock.results r on r.job_id = t.job_id and r.task_id = t.id
            where e.lease is distinct from r.lease""",
    },
    "transitions": {
        "an illegal move of a job": f"""
            select * from faults.job_moves where not (was = 'failed' and became = 'running' and job_id in (select job_id from {outside.REPLAYED})) and (was, became) not in (
              ('queued', 'running'), ('queued', 'paused'), ('running', 'paused'), ('paused', 'running'), ('paused', 'queued'), ('queued', 'completed'),
              ('running', 'completed'), ('running', 'failed'), ('queued', 'failed'), ('paused', 'failed'), ('paused', 'completed')) and was is not null""",
        "a job that begins in the middle": "select * from faults.job_moves where was is null and became <> 'queued'",
        "a task moved after its end": f"""
            select m.* from (select task_id, min(seq) as seq from faults.moves where what = 'ended' group by 1) as e
            join faults.moves m on m.task_id = e.task_id and m.seq > e.seq and m.what in ('granted', 'ended', 'reopened')
            where m.task_id not in (select task_id from {outside.REPLAYED})""",
    },
    "counters": {
        **INVARIANTS,
        "a sum of usage is not the sum of its lines": """
            select * from (
              select tenant_id, action, meter, sum(amount) as amount from penstock.usage_sums group by 1, 2, 3) as s
            full join (
              select u.tenant_id, u.action, k.key as meter, sum(k.value::numeric) as amount from penstock.usage_events u cross join lateral jsonb_each_text(u.units) as k group by 1, 2, 3) as l
            using (tenant_id, action, meter) where s.amount is distinct from l.amount""",
        "a sum of costs is not the sum of its lines": """
            select * from (
              select tenant_id, coalesce(provider, '') as provider, cost_type, sum(amount) as amount, sum(lines) as n from penstock.cost_sums where tenant_id is not null group by 1, 2, 3) as s
            full join (select tenant_id, coalesce(provider, '') as provider, cost_type, sum(base_amount) as amount, count(*) as n from penstock.cost_entries group by 1, 2, 3) as l
            using (tenant_id, provider, cost_type) where s.amount is distinct from l.amount or s.n is distinct from l.n""",
    },
    "ledger": {
        "an account is not the sum of its lines": "select * from penstock.check_accounts()",
        "something is still set aside": "select id::text, status from penstock.holds where status = 'held' union all select tenant_id::text, held::text from penstock.accounts where held <> 0",
        "usage that is not what was used": f"""
            select u.id, u.task_id, u.units from penstock.usage_events u join penstock.tasks t on t.job_id = u.job_id and t.id = u.task_id
            where case when t.kind in ('call', 'warm_call') then u.is_estimate or (u.units ->> 'input_tokens')::bigint <> 10 + {_N} % 90 or (u.units ->> 'output_tokens')::bigint <> {_N} % 50
              -- An operation also counts as a request.
              when t.kind = 'convert' then u.units - 'requests' <> t.units
              else u.units <> t.units end""",
        "a lease's usage is there twice": "select task_id, lease, count(*) from penstock.usage_events group by 1, 2 having count(*) > 1",
        "usage that was acknowledged is not there": """
            select u.* from faults.used u left join penstock.usage_events e on e.task_id = u.task_id and e.lease = u.lease where e.id is null""",
        "a call or a page that succeeded was not counted": """
            select t.id from penstock.tasks t join penstock.results r on r.job_id = t.job_id and r.task_id = t.id and r.outcome = 'succeeded'
            left join penstock.usage_events e on e.task_id = t.id and e.lease = r.lease where t.kind in ('call', 'warm_call', 'page') and e.id is null""",
        "an attempt's cost is there twice": f"select task_id, lease, count(*) from penstock.cost_entries where cost_type = '{work.COST}' group by 1, 2 having count(*) > 1",
        "a cost that was acknowledged is not there": f"""
            select t.id from penstock.tasks t join penstock.results r on r.job_id = t.job_id and r.task_id = t.id and r.outcome = 'succeeded'
            left join penstock.cost_entries c on c.task_id = t.id and c.lease = r.lease and c.cost_type = '{work.COST}' where t.kind = 'warm_cost' and c.id is null""",
        "a cost that is not units times price": """
            select c.id from penstock.cost_entries c join penstock.usage_events u on u.task_id = c.task_id and u.lease = c.lease
            where c.base_amount <> (u.units ->> c.meter)::numeric * case c.meter when 'input_tokens' then 0.00000015 when 'output_tokens' then 0.0000006 end""",
        "usage without its cost": """
            select u.id, count(c.id) from penstock.usage_events u left join penstock.cost_entries c on c.task_id = u.task_id and c.lease = u.lease
            where u.provider is not null group by u.id having count(c.id) <> (select count(*) from jsonb_each_text(u.units) as k where k.key in ('input_tokens', 'output_tokens') and k.value::numeric > 0)""",
    },
    "limits": {
        "a quota or a budget was passed": "select * from faults.over",
        "too many at once": f"""
            select * from (
              select m.seq, sum(case m.what when 'granted' then 1 else -1 end) over (order by m.seq) as running
              from faults.moves m join penstock.lanes l on l.id = m.lane_id where l.provider = '{work.LIMITED}' and m.what in ('granted', 'released')) as s
            where s.running > {work.PLACES}""",
        "too many in some minute": f"""
            select * from (
              select g.granted_at, count(*) over w as calls, sum(coalesce((u.units ->> 'tokens')::numeric, 0)) over w as tokens
              from faults.moves g join penstock.lanes l on l.id = g.lane_id
              join faults.began b on b.task_id = g.task_id and b.lease = g.lease
              left join penstock.usage_events u on u.task_id = g.task_id and u.lease = g.lease
              where l.provider = '{work.LIMITED}' and g.what = 'granted'
              window w as (order by g.granted_at range between interval '59.999 seconds' preceding and current row)) as s
            where s.calls > {work.REQUESTS_PER_MINUTE} or s.tokens > {work.TOKENS_PER_MINUTE}""",
    },
    **outside.CHECKS,
    "drains": {
        # Of those near PostgreSQL, when nothing else happened there.
        "a drained worker left a task behind": f"""
            select a.task_id, a.worker_id from penstock.attempts a join faults.drained d on {_PID} = d.pid
            where a.outcome = 'lost' and extract(epoch from a.ended_at) > d.began_at and not exists (
              select from faults.strikes s where s.at between d.began_at - 20 and d.at)""",
    },
    "trouble": {
        "an attempt was charged to database trouble": f"""
            select a.task_id, a.lease, a.error_code, left(a.error_message, 200) as error_message from penstock.attempts a where {TROUBLE}""",
    },
    "warm": {
        "a task of the idle worker was charged an attempt for database trouble": f"""
            select t.id, t.kind, a.error_code, left(a.error_message, 200) as error_message from penstock.attempts a
            join penstock.tasks t on t.job_id = a.job_id and t.id = a.task_id where t.kind in {WARM} and {TROUBLE}""",
        # This worker is never killed nor stopped. It may lose a claim whose answer PostgreSQL could not send.
        "a task of the idle worker was lost": f"""
            select t.id, t.kind, a.worker_id from penstock.attempts a join penstock.tasks t on t.job_id = a.job_id and t.id = a.task_id
            where t.kind in {WARM} and a.outcome = 'lost' and not exists (select from faults.strikes s
              where s.at between extract(epoch from a.started_at) - 2 and extract(epoch from a.ended_at))
            and not exists (select from faults.outages o
              where o.down_at < extract(epoch from a.ended_at) and o.up_at > extract(epoch from a.started_at) - 2)""",
        "a task of the idle worker was dead-lettered": f"""
            select d.task_id, d.kind, d.reason, left(d.error_message, 200) as error_message from penstock.dead_letters d where d.kind in {WARM}""",
    },
    "migrates": {
        "a job start met a deadlock or a lock timeout": """
            select key, error from (select key, error from faults.unknown union all select key, error from faults.refusals) as x
            where error ~* 'deadlock detected|lock timeout'""",
        "a migrate failed while PostgreSQL was up": """
            select m.* from faults.migrations m where m.error is not null and not exists (
              select from faults.strikes s where s.at between m.at - m.seconds - 3 and m.at)
            and not exists (select from faults.outages o where o.down_at < m.at and o.up_at > m.at - m.seconds - 3)""",
    },
}
# Of the database whose workers only use the HTTP API, beside all of the above.
RPC_CHECKS: dict[str, dict[str, str]] = {
    "upkeep": {
        "an expired lease was not taken back in time": f"""
            select * from (
              select m.task_id, extract(epoch from m.due_at) as due, extract(epoch from m.at) as done from faults.moves m
              join penstock.attempts a on a.task_id = m.task_id and a.lease = m.lease and a.outcome = 'lost' where m.what = 'released'
              union all
              select task_id, extract(epoch from expires_at), extract(epoch from clock_timestamp()) from penstock.leases) as x
            where x.done - x.due > {LATE_SECONDS} + {_EXCUSED.format(start="x.due", end="x.done")}""",
        "a retry was not queued in time": f"""
            select * from (
              select task_id, extract(epoch from due_at) as due, extract(epoch from at) as done from faults.moves where what = 'unparked'
              union all
              select task_id, extract(epoch from until), extract(epoch from clock_timestamp()) from penstock.parked where until < 'infinity') as x
            where x.done - x.due > {LATE_SECONDS} + {_EXCUSED.format(start="x.due", end="x.done")}""",
    },
}
# A task's next handler after its worker was killed or stopped. A second mishap on the way is counted from there.
# A stopped worker that continues runs its task under the same lease, or has lost it: a handler that it begins after
# the task was leased to another worker is stale and not counted, nor is the retry of an attempt that survived the stop.
_AGAIN = f"""
create table faults.again as with killed as (
  select k.pid, k.at, a.task_id, a.lease from faults.killed k
  join penstock.attempts a on {_PID} = k.pid and a.outcome = 'lost' and extract(epoch from a.started_at) <= k.at and extract(epoch from a.ended_at) > k.at
), stopped as (
  select s.pid, s.at, a.task_id, a.lease from faults.stops s
  join faults.moves a on a.what = 'granted' and a.worker_id is not null and {_PID} = s.pid and extract(epoch from a.at) <= s.at
    and not exists (select from faults.moves r where r.what = 'released' and r.task_id = a.task_id and r.lease = a.lease and extract(epoch from r.at) <= s.at)
), paired as (
  select 'killed' as what, k.pid, k.at, k.task_id, n.lease, n.is_gated, n.next_pid, n.granted_at from killed k cross join lateral (
    select m.lease, m.is_gated, {_PID.replace("a.", "m.")} as next_pid, extract(epoch from m.at) as granted_at from faults.moves m where m.what = 'granted' and m.task_id = k.task_id and m.lease > k.lease order by m.lease limit 1) as n
  union all
  select 'stopped', s.pid, s.at, s.task_id, n.lease, n.is_gated, n.next_pid, n.granted_at from stopped s cross join lateral (
    select m.lease, m.is_gated, {_PID.replace("a.", "m.")} as next_pid, extract(epoch from m.at) as granted_at from faults.moves m where m.what = 'granted' and m.task_id = s.task_id
      and (m.lease > s.lease and not exists (select from penstock.attempts a where a.task_id = s.task_id and a.lease = s.lease and a.outcome <> 'lost')
        or m.lease = s.lease and exists (select from faults.began b where b.task_id = s.task_id and b.lease = s.lease and b.at > s.at
        and not exists (select from faults.moves h where h.what = 'granted' and h.task_id = s.task_id and h.lease > s.lease and extract(epoch from h.at) < b.at)))
      order by m.lease limit 1) as n
)
  select p.what, p.at, b.at - p.at as seconds,
    (select coalesce(sum(least(o.up_at, b.at) - greatest(o.down_at, p.at)), 0) from faults.outages o where o.up_at > p.at and o.down_at < b.at) as away,
    exists (select from faults.outages o where o.up_at > p.at and o.down_at < b.at) as is_outage
  from paired p join faults.began b on b.task_id = p.task_id and b.lease = p.lease
  where not p.is_gated
    and not exists (select from faults.killed k where k.pid = p.pid and k.at > p.at and k.at < b.at)
    and not exists (select from faults.stops k where k.pid = p.pid and k.at > p.at and k.at < b.at)
    and not exists (select from faults.stops k where k.pid = p.next_pid and k.at > p.at and k.at < b.at and k.at + k.seconds > p.granted_at)
"""


@dataclass
class Found:
    """The checker's findings."""

    wrong: dict[str, dict[str, list[db.Row]]] = field(default_factory=dict[str, dict[str, list[db.Row]]])
    """Violations by group and sentence."""
    figures: dict[str, Any] = field(default_factory=dict[str, Any])

    def count(self, group: str) -> int:
        return sum(len(rows) for rows in self.wrong.get(group, {}).values())


# event → table and the fields of its line
_LINES = {
    **outside.LINES,
    "attempted": ("attempted", ("key", "at", "flavour", "seed", "size")),
    "acknowledged": ("acknowledged", ("key", "job")),
    "unknown": ("unknown", ("key", "error")),
    "refusal": ("refusals", ("key", "error")),
    "began": ("began", ("task", "lease", "pid", "at")),
    "used": ("used", ("task", "lease")),
    "refused": ("refused", ("verb", "task", "lease", "code", "pid")),
    "killed": ("killed", ("victim", "at", "by")),
    "drained": ("drained", ("victim", "began_at", "at")),
    "strike": ("strikes", ("at", "name")),
    "outage": ("outages", ("down_at", "up_at", "why")),
    "stopped": ("stops", ("victim", "at", "seconds", "is_short")),
    "migrated": ("migrations", ("at", "seconds", "error")),
}


def load(connection: db.SyncConnection, lines: Iterable[dict[str, Any]]) -> None:
    """Load the processes' histories into the database."""
    by_table: dict[str, list[tuple[Any, ...]]] = {table: [] for table, _ in _LINES.values()}
    for line in lines:
        if found := _LINES.get(line["event"]):
            table, fields = found
            # A process that killed itself names no victim.
            line.setdefault("victim", line["pid"])
            by_table[table].append(tuple(line.get(name) for name in fields))
    with connection.cursor() as cursor:
        for table, rows in by_table.items():
            with cursor.copy(f"copy faults.{table} from stdin".encode()) as copy:
                for row in rows:
                    copy.write_row(row)
    for table in (
        "began (task_id, lease)",
        "moves (task_id, lease)",
        "effects (task_id)",
        "used (task_id)",
        "attempted (key)",
        "acknowledged (key)",
    ):
        connection.execute(f"create index on faults.{table}".encode())
    # Only these checks look tasks up without their job.
    connection.execute("create index on penstock.results (task_id)")
    connection.execute("create index on penstock.tasks (id)")
    connection.execute("create index on penstock.usage_events (task_id, lease)")
    connection.execute("create index on penstock.cost_entries (task_id, lease)")
    connection.execute("analyze")
    connection.execute(_AGAIN.encode())


def check(
    connection: db.SyncConnection,
    groups: Iterable[str] | None = None,
    checks: dict[str, dict[str, str]] = CHECKS,
) -> Found:
    """Run all checks, or those of some groups."""
    found = Found()
    for group in checks if groups is None else groups:
        found.wrong[group] = {}
        for sentence, query in checks[group].items():
            rows = connection.execute(query.encode()).fetchall()
            if rows:
                found.wrong[group][sentence] = rows
    return found


def show(rows: list[db.Row]) -> str:
    return json.dumps(rows[:3], default=str)
