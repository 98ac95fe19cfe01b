-- The views. Each runs with the rights of the reader, so row-level policies decide which rows it shows.

create or replace view penstock.job_list with (security_invoker = true) as
select
  j.id, j.tenant_id, j.type, j.status, j.status_reason, j.priority, j.created_by,
  j.created_at, j.started_at, j.finished_at, j.run_at,
  coalesce(p.total, 0)::integer as total,
  coalesce(p.succeeded, 0)::integer as succeeded,
  coalesce(p.failed, 0)::integer as failed,
  (case when j.status = 'canceled' then coalesce(p.total, 0) - coalesce(p.succeeded, 0)
    - coalesce(p.failed, 0)
    else coalesce(p.canceled, 0) end)::integer as canceled,
  case
    when j.status in ('completed', 'failed') then 100
    -- As numeric, because 29 of 100 as double precision would be 28.999… percent.
    else least(99, floor((100 * coalesce(p.fraction, 0))::numeric))::integer
  end as percent,
  case
    when j.status in ('completed', 'failed', 'canceled') then 'complete'
    when j.started_at is null then 'queued'
    else coalesce(p.phase, 'finalizing')
  end as phase,
  j.params,
  coalesce(p.docs_complete, 0)::integer as docs_complete,
  coalesce(p.docs_total, 0)::integer as docs_total,
  j.title, j.tags
from penstock.jobs j
left join lateral (
  select
    -- A job produces as many documents (or rows) as its largest phase has tasks.
    -- A document is complete once it has passed every phase of that size.
    max(x.total) as docs_total,
    min(x.succeeded + x.failed + x.canceled) filter (where x.total = x.largest) as docs_complete,
    sum(x.total) as total, sum(x.succeeded) as succeeded, sum(x.failed) as failed,
    sum(x.canceled) as canceled,
    sum(coalesce(x.weight, x.total) * (x.succeeded + x.failed + x.canceled) / x.total)
      / nullif(sum(coalesce(x.weight, x.total)), 0) as fraction,
    (array_agg(x.name order by x.position)
      filter (where x.succeeded + x.failed + x.canceled < x.total))[1] as phase
  from (select y.*, max(y.total) over () as largest from penstock.phases y where y.job_id = j.id
    and y.total > 0) as x
) p on true;
comment on view penstock.job_list is 'Jobs with their numbers of tasks and documents, percent and phase.';

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
  (select count(*) from penstock.attempts a where a.job_id = t.job_id
    and a.task_id = t.id)::integer as retry_count,
  (select max(a.ended_at) from penstock.attempts a where a.job_id = t.job_id
    and a.task_id = t.id) as last_retry_at,
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

create or replace view penstock.wait_list with (security_invoker = true) as
select w.id, w.tenant_id, w.job_id, w.task_id, t.kind as task_kind, t.key as task_key, w.name, w.message,
  w.options, w.fields, w.roles, w.default_option, w.asked_at, w.until,
  case
    when w.outcome is not null then w.outcome
    when j.status in ('completed', 'failed', 'canceled') then 'canceled'
    when w.until <= penstock._now() then 'timeout'
    else 'open'
  end as status,
  w.option, w.payload, w.ended_at, w.ended_by
from penstock.waits w join penstock.jobs j on j.id = w.job_id
join penstock.tasks t on t.job_id = w.job_id and t.id = w.task_id
where w.kind = 'answer';
comment on view penstock.wait_list is
  'What tasks ask people and other systems, with the answers. Status: open, answered, timeout or canceled.';

create or replace view penstock.dead_letter_list with (security_invoker = true) as
select id, tenant_id, job_id, task_id, kind, reason, error_code, error_message, attempts, died_at
from penstock.dead_letters;
comment on view penstock.dead_letter_list is 'Tasks that failed permanently.';

create or replace view penstock.worker_list with (security_invoker = true) as
select w.id, w.host, w.pid, w.kinds, w.concurrency, w.version,
  -- The tasks of a worker that is gone have been requeued.
  case when w.state = 'stopped' or s.silent > interval '60 seconds' then 0 else w.running end as running,
  w.started_at, w.beat_at,
  case
    when w.state = 'stopped' then 'stopped'
    when s.silent > interval '60 seconds' then 'gone'
    when s.silent > interval '30 seconds' then 'late'
    else w.state
  end as state
from penstock.workers w
-- A worker with a long lease reports less often: it is alive while one of its leases is valid.
cross join lateral (
  select case
    when penstock._now() - w.beat_at <= interval '30 seconds' then interval '0'
    when exists (
      select from penstock.leases l where l.worker_id = w.id and l.expires_at > penstock._now())
    then interval '0'
    else penstock._now() - w.beat_at end as silent) as s
where w.state = 'stopped' or s.silent <= interval '10 minutes';
comment on view penstock.worker_list is
  'Workers, with their state: running, draining, late (no heartbeat for 30 seconds), gone (for 60 seconds; '
  'listed for 10 minutes) or stopped.';

create or replace view penstock.provider_list with (security_invoker = true) as
select
  e.id, e.name, e.tenant_id,
  case when e.status <> 'active' then e.status when s.closed_until > penstock._now()
      and s.is_exhausted then 'exhausted'
    when s.closed_until > penstock._now() then 'closed' when s.open_at > penstock._now() then 'full'
      else 'active' end as state,
  case when s.closed_until > penstock._now() then s.closed_reason when s.open_at > penstock._now()
    then s.open_for end as reason,
  nullif(greatest(s.open_at, s.closed_until), 'infinity') as opens_at,
  e.requests_per_minute, w.requests_minute, e.tokens_per_minute, w.tokens_minute,
  e.requests_per_hour, w.requests_hour, e.tokens_per_hour, w.tokens_hour,
  e.concurrency,
  (select count(*) from penstock.lanes l join penstock.leases x on x.lane_id = l.id and x.is_gated
   where l.endpoint_id = e.id)::integer
    + (select count(*) from penstock.calls c where c.endpoint_id = e.id
      and c.expires_at > penstock._now())::integer
    + (select count(*) from penstock.operations o where o.endpoint_id = e.id and o.has_place
      and o.status in ('pending', 'processing'))::integer as running,
  (select count(*) from penstock.lanes l join penstock.ready r on r.lane_id = l.id
   where l.endpoint_id = e.id) as waiting,
  round(penstock._current_pace(s.pace, s.paced_at, penstock._now())::numeric, 2) as pace,
  s.refusals, s.refused_at, e.default_tokens, e.backpressure_threshold, e.backpressure_delay_seconds,
    e.depth_limit, e.features, e.changed_at,
  (select count(*) from penstock.operations o where o.endpoint_id = e.id and o.has_place
   and o.status in ('pending', 'processing'))::integer as in_flight
from penstock.endpoints e
join penstock.endpoint_states s on s.endpoint_id = e.id
cross join lateral (
  select coalesce(sum(x.requests) filter (where x.width = 1), 0)::bigint as requests_minute,
    coalesce(sum(x.tokens) filter (where x.width = 1), 0)::bigint as tokens_minute,
    coalesce(sum(x.requests) filter (where x.width = 60), 0)::bigint as requests_hour,
    coalesce(sum(x.tokens) filter (where x.width = 60), 0)::bigint as tokens_hour
  from penstock.spent x where x.endpoint_id = e.id
    and penstock._slot_ends(x.width, x.slot) > extract(epoch from penstock._now())) as w;
comment on view penstock.provider_list is
  'Provider endpoints: limits, usage in the current windows, and whether they accept work.';

create or replace view penstock.usage_days with (security_invoker = true) as
select tenant_id, day, action, meter, sum(amount) as amount from penstock.usage_sums
  group by tenant_id, day, action, meter;
comment on view penstock.usage_days is 'Usage per tenant, UTC day, action and meter.';

create or replace view penstock.cost_days with (security_invoker = true) as
select tenant_id, day, provider, cost_type, sum(amount) as amount, sum(unit_count) as unit_count,
  sum(lines)::bigint as lines
from penstock.cost_sums where tenant_id is not null group by tenant_id, day, provider, cost_type;
comment on view penstock.cost_days is 'Costs in the base currency per tenant, UTC day, provider and type.';

create or replace view penstock.cost_totals with (security_invoker = true) as
select day, provider, cost_type, sum(amount) as amount, sum(unit_count) as unit_count,
  sum(lines)::bigint as lines
from penstock.cost_sums where tenant_id is null group by day, provider, cost_type;
comment on view penstock.cost_totals is
  'Costs of all tenants in the base currency per UTC day, provider and type.';

create or replace view penstock.job_costs with (security_invoker = true) as
select a.tenant_id, a.job_id, j.type, j.status, a.used as cost, a.held, j.budget
from penstock.accounts a join penstock.jobs j on j.id = a.job_id where a.meter = 'cost';
comment on view penstock.job_costs is
  'The cost of each job, the amount reserved for its running tasks, and its budget.';

create or replace view penstock.price_list with (security_invoker = true) as
select p.id, p.provider, p.tenant_id, p.meter, p.variant, p.cost_type, p.amount, p.currency, p.valid_from,
  lead(p.valid_from) over same_price as valid_until,
  p.valid_from <= penstock._now() and coalesce(lead(p.valid_from) over same_price > penstock._now(), true)
    as is_current
from penstock.prices p
window same_price as (partition by p.provider, p.tenant_id, p.meter, p.variant order by p.valid_from);
comment on view penstock.price_list is 'Prices with the time for which they are valid.';

create or replace view penstock.rate_comparison with (security_invoker = true) as
select p.meter, p.variant, p.provider, p.tenant_id, p.amount, p.currency,
  p.amount * penstock._base_rate(p.currency, penstock._now()) as base_amount,
  rank() over (partition by p.meter, p.variant, p.tenant_id
    order by p.amount * penstock._base_rate(p.currency, penstock._now())) as place
from penstock.price_list p where p.is_current and p.amount is not null;
comment on view penstock.rate_comparison is
  'The current price of a unit at each provider, with its rank from the cheapest.';

create or replace view penstock.provider_outcomes with (security_invoker = true) as
select d.tenant_id, p.provider, d.outcome, count(*) filter (where p.provider = d.provider) as tasks,
  avg(extract(epoch from d.duration)) filter (where p.provider = d.provider) as seconds, sum(p.cost) as cost
from (
  select t.tenant_id, t.job_id, t.id, l.provider, r.outcome, r.finished_at - r.started_at as duration
  from penstock.results r join penstock.tasks t on t.job_id = r.job_id and t.id = r.task_id
    join penstock.lanes l on l.id = t.lane_id) as d
-- Earlier attempts may have cost something at other providers.
cross join lateral (
  select x.provider, sum(x.cost) as cost from (
    select d.provider, 0::numeric as cost
    union all
    select c.provider, c.base_amount from penstock.cost_entries c
    where c.job_id = d.job_id and c.task_id = d.id) as x
  where x.provider is not null group by x.provider) as p
group by d.tenant_id, p.provider, d.outcome;
comment on view penstock.provider_outcomes is
  'Outcomes and mean duration of tasks that ended at each provider, and what these and tasks that moved on '
  'cost there, in the base currency.';

create or replace view penstock.bulk_list with (security_invoker = true) as
select j.id, j.tenant_id, j.type, j.status, j.status_reason, j.created_by, j.created_at, j.started_at,
  j.finished_at, b.source, b.source_id, b.total, b.loaded, b.refused, b.skipped, b.preview, l.percent
from penstock.bulks b join penstock.jobs j on j.id = b.job_id join penstock.job_list l on l.id = b.job_id;
comment on view penstock.bulk_list is 'Bulk jobs with their source and numbers of rows.';

create or replace view penstock.bulk_row_list with (security_invoker = true) as
select b.job_id, b.tenant_id, b.number, coalesce(b.key, b.number::text) as key, s.state, b.data, s.output,
  s.error_code, s.error_message, b.problem,
  (select count(*) from penstock.attempts a where a.job_id = b.job_id
    and a.task_id between b.first_id and b.last_id)::integer as retries,
  penstock._row_cost(b) as cost, s.started_at, s.finished_at, b.first_id, b.result_id, b.last_id, b.written,
  (select count(*) from penstock.bulk_changes c where c.job_id = b.job_id
    and c.row_number = b.number)::integer as changes,
  (select count(c.undone_at) from penstock.bulk_changes c where c.job_id = b.job_id
    and c.row_number = b.number)::integer as undone, b.id
from penstock.bulk_rows b cross join lateral penstock._bulk_row_state(b) as s;
comment on view penstock.bulk_row_list is
  'The rows of bulk jobs, each with its state, result, error, retries and cost.';
