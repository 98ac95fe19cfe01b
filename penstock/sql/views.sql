-- What people and programs read. Each view runs with the reader's own rights, so policies decide what is in it.

create or replace view penstock.job_list with (security_invoker = true) as
select
  j.id, j.tenant_id, j.type, j.status, j.status_reason, j.priority, j.created_by,
  j.created_at, j.started_at, j.finished_at, j.run_at,
  coalesce(p.total, 0)::integer as total,
  coalesce(p.succeeded, 0)::integer as succeeded,
  coalesce(p.failed, 0)::integer as failed,
  (case when j.status = 'canceled' then coalesce(p.total, 0) - coalesce(p.succeeded, 0) - coalesce(p.failed, 0)
    else coalesce(p.canceled, 0) end)::integer as canceled,
  case
    when j.status in ('completed', 'failed') then 100
    -- As a decimal: 29 of 100 are 29 percent, not the 28.999… of binary fractions.
    else least(99, floor((100 * coalesce(p.fraction, 0))::numeric))::integer
  end as percent,
  case
    when j.status in ('completed', 'failed', 'canceled') then 'complete'
    when j.started_at is null then 'queued'
    else coalesce(p.phase, 'finalizing')
  end as phase,
  j.params
from penstock.jobs j
left join lateral (
  select
    sum(x.total) as total, sum(x.succeeded) as succeeded, sum(x.failed) as failed, sum(x.canceled) as canceled,
    sum(coalesce(x.weight, x.total) * (x.succeeded + x.failed + x.canceled) / x.total)
      / nullif(sum(coalesce(x.weight, x.total)), 0) as fraction,
    (array_agg(x.name order by x.position) filter (where x.succeeded + x.failed + x.canceled < x.total))[1] as phase
  from penstock.phases x where x.job_id = j.id and x.total > 0
) p on true;
comment on view penstock.job_list is 'Jobs with their counts, percent and phase.';

create or replace view penstock.task_list with (security_invoker = true) as
select
  t.id, t.job_id, t.tenant_id, t.kind, t.key, p.name as phase, t.priority, t.created_at,
  case
    when r.outcome is not null then r.outcome
    when j.status = 'canceled' then 'canceled'
    when s.state is not null then s.state
    else 'queued'
  end as status,
  s.reason as waiting_for,
  s.until as waiting_until,
  coalesce(r.attempt, s.attempt, 0)::integer as attempt,
  (select count(*) from penstock.attempts a where a.job_id = t.job_id and a.task_id = t.id)::integer as retry_count,
  (select max(a.ended_at) from penstock.attempts a where a.job_id = t.job_id and a.task_id = t.id) as last_retry_at,
  coalesce(r.started_at, s.started_at) as started_at,
  r.finished_at, coalesce(r.worker_id, s.worker_id) as worker_id,
  s.fraction, s.message,
  r.error_code, r.error_message, t.input, r.output
from penstock.tasks t
join penstock.jobs j on j.id = t.job_id
join penstock.phases p on p.job_id = t.job_id and p.position = t.phase
left join penstock.results r on r.job_id = t.job_id and r.task_id = t.id
left join lateral penstock._task_state(t.job_id, t.id) as s on r.task_id is null;
comment on view penstock.task_list is 'Tasks with their state, attempts, times, errors, inputs and outputs.';

create or replace view penstock.dead_letter_list with (security_invoker = true) as
select id, tenant_id, job_id, task_id, kind, reason, error_code, error_message, attempts, died_at
from penstock.dead_letters;
comment on view penstock.dead_letter_list is 'Tasks that failed for good.';

create or replace view penstock.worker_list with (security_invoker = true) as
select id, host, pid, kinds, concurrency, version, running, started_at, beat_at,
  case
    when state = 'stopped' then 'stopped'
    when beat_at < penstock._now() - interval '60 seconds' then 'gone'
    when beat_at < penstock._now() - interval '30 seconds' then 'late'
    else state
  end as state
from penstock.workers;
comment on view penstock.worker_list is 'Workers and whether they are alive, late or gone.';
