-- Metrics: figures of the whole installation for Prometheus. Labels are plans and states: few, and none that
-- a user chooses.

create or replace function penstock._plan_figures(p_since timestamptz)
returns table (name text, label text, value double precision)
language sql stable set search_path = penstock, pg_temp as $$
  with sums as materialized (
    select _plan(t, _now()) as plan, s.succeeded, s.failed, s.waits
    from task_sums s join tenants t on t.id = s.tenant_id where s.minute >= p_since
  ), waits as (
    select x.plan, jsonb_object_agg(x.bucket, x.tasks) as buckets from (
      select s.plan, b.key as bucket, sum(b.value::numeric) as tasks
      from sums s cross join lateral jsonb_each(s.waits) as b group by s.plan, b.key) as x
    group by x.plan
  )
  select 'tasks_succeeded', s.plan, sum(s.succeeded)::double precision from sums s group by s.plan
  union all select 'tasks_failed', s.plan, sum(s.failed) from sums s group by s.plan
  union all select 'wait_p95', w.plan, _percentile(w.buckets, 0.95) from waits w
$$;
comment on function penstock._plan_figures(timestamptz) is
  'Tasks that ended and the p95 of their waiting time in seconds since a minute, by plan of their tenant.';

create or replace function penstock.metric_figures()
returns table (name text, label text, value double precision)
language sql stable security definer set search_path = penstock, pg_temp set jit = off as $$
  select f.name, f.label, f.value from _plan_figures(_now() - interval '6 minutes') as f
  union all select 'workers', w.state, count(*) from worker_list w group by w.state
  union all select 'slots', '', coalesce(sum(w.concurrency), 0) from worker_list w where w.state = 'running'
  union all
  -- Tasks of dead workers: upkeep requeues them within seconds.
  select x.name, '', x.value from (
    select count(*) as n, coalesce(extract(epoch from _now() - min(l.expires_at)), 0) as overdue
    from leases l where l.expires_at < _now()) as l
  cross join lateral (values ('leases_expired', l.n::double precision), ('leases_overdue', l.overdue))
    as x(name, value)
  union all
  select 'cost_today', '', coalesce(sum(c.amount), 0) from cost_sums c
  where c.tenant_id is null and c.day = (_now() at time zone 'utc')::date
  union all
  select 'jobs_near_budget', '', count(*) from jobs j
  join accounts a on a.job_id = j.id and a.tenant_id = j.tenant_id and a.meter = 'cost'
  where j.budget > 0 and j.finished_at is null and a.used + a.held >= 0.9 * j.budget
$$;
comment on function penstock.metric_figures() is
  'Figures for Prometheus, (name, label, value): tasks that ended in the last five minutes and their p95 '
  'wait by plan, workers by state, slots of running workers, expired leases and how long the oldest is '
  'overdue, the costs of today, and unfinished jobs that have used 90 % of their budget.';
