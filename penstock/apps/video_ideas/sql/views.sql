-- Rows, jobs, costs, providers and people as five tables with their own states, and their sums. Each view
-- runs with the reader's rights: members see the rows of their tenants, the service sees all. Columns after
-- the blank line in a list are Penstock's additions.

-- A canceled job counts as failed, because this table has five states. A union instead of a case expression
-- lets a condition on the status use the index. A subquery reads the percent only of the jobs that are found.
create or replace view video_ideas.bulk_jobs with (security_invoker = true) as
select j.id, coalesce(b.source_id, b.source ->> 'type', '') as sheet_id, j.state as status,
  (select l.percent from penstock.job_list l where l.id = j.id) as progress, j.created_at,
  j.finished_at as completed_at, j.user_id,
  case when j.state in ('paused', 'failed') then j.status_reason end as error_message,
  j.priority::integer as priority, j.idempotency_key,

  j.tenant_id, b.total as rows, b.loaded, b.refused
from (
  select a.id, a.status as state, a.status_reason, a.created_at, a.finished_at, a.user_id, a.priority,
    a.idempotency_key, a.tenant_id, a.type
  from penstock.jobs a where a.status <> 'canceled'
  union all
  select c.id, 'failed', coalesce(c.status_reason, 'canceled'), c.created_at, c.finished_at, c.user_id,
    c.priority, c.idempotency_key, c.tenant_id, c.type
  from penstock.jobs c where c.status = 'canceled') as j
join penstock.bulks b on b.job_id = j.id
where j.type = 'video_ideas';
comment on view video_ideas.bulk_jobs is
  'Bulk jobs: queued, running, paused, completed or failed, with progress 0 to 100.';

create or replace view video_ideas.video_jobs with (security_invoker = true) as
select r.id, r.job_id as bulk_job_id, r.data as idea_data,
  case r.state
    when 'waiting' then 'queued' when 'refused' then 'failed' when 'skipped' then 'canceled' else r.state
  end as status,
  t.route #>> '{chosen,provider}' as ai_provider, r.cost,
  '/api/artifacts/' || (r.output ->> 'artifact_id') as output_url,
  coalesce(t.created_at, j.created_at) as created_at,
  coalesce(r.finished_at, r.started_at, t.created_at, j.created_at) as updated_at,
  j.user_id, coalesce(r.retries, 0) as retry_count,
  (select max(a.ended_at) from penstock.attempts a
    where a.job_id = r.job_id and a.task_id between r.first_id and r.last_id) as last_retry_at,
  r.key as idempotency_key,

  r.tenant_id, r.number as row_number, r.error_code, r.error_message
from penstock.bulk_row_list r
join penstock.jobs j on j.id = r.job_id and j.type = 'video_ideas'
left join penstock.tasks t on t.job_id = r.job_id and t.id = r.result_id;
comment on view video_ideas.video_jobs is
  'The rows of bulk jobs: queued, running, succeeded, failed or canceled. The cost is in the base currency, '
  'exact; output_url leads to a signed address.';

-- A row's tasks have consecutive ids, and keys that begin with its number: the ids lead from a row to its
-- tasks, the keys from a task to its row, each by an index.
create or replace view video_ideas.job_costs with (security_invoker = true) as
select video_ideas._uuid('cost/' || c.id) as id, b.id as video_job_id,
  c.cost_type, c.amount, c.currency, c.unit_count, c.started_at, c.ended_at, c.user_id, c.at as created_at,

  c.tenant_id, c.job_id as bulk_job_id, c.provider as ai_provider, c.meter, c.base_amount
from penstock.cost_entries c
join penstock.jobs j on j.id = c.job_id and j.type = 'video_ideas'
left join penstock.tasks t on t.job_id = c.job_id and t.id = c.task_id
left join penstock.bulk_rows b on b.job_id = c.job_id and c.task_id between b.first_id and b.last_id
  and b.number = case when t.key ~ '^[0-9]{1,18}/' then split_part(t.key, '/', 1)::bigint end
union all
-- Lines of pruned jobs stay in the ledger. The audit log still has the type of these jobs.
select video_ideas._uuid('cost/' || c.id), null::uuid, c.cost_type, c.amount, c.currency, c.unit_count,
  c.started_at, c.ended_at, c.user_id, c.at, c.tenant_id, c.job_id, c.provider, c.meter, c.base_amount
from penstock.cost_entries c
where not exists (select from penstock.jobs j where j.id = c.job_id)
  and exists (select from penstock.audit_log l
    where l.job_id = c.job_id and l.details ->> 'type' = 'video_ideas');
comment on view video_ideas.job_costs is
  'The lines of the ledger for inference, render and storage, including those of pruned jobs. Lines never '
  'change: a correction is another line.';

create or replace view video_ideas.provider_config with (security_invoker = true) as
select video_ideas._uuid('provider/' || e.id || '/' || coalesce(p.id, 0)) as id, e.name as ai_provider,
  'per ' || replace(rtrim(p.meter, 's'), '_', ' ')
    || case when p.variant <> 'standard' then ', ' || p.variant else '' end as rate_model,
  p.meter as rate_unit, p.amount as rate_amount,
  nullif(concat_ws(', ', e.requests_per_minute || ' requests/min', e.requests_per_hour || ' requests/h',
    e.tokens_per_minute || ' tokens/min', e.tokens_per_hour || ' tokens/h', e.concurrency || ' at once'),
    '') as quota_hint,
  to_jsonb(e.features) as features, null::uuid as user_id, coalesce(p.valid_from, e.changed_at) as created_at,
  e.changed_at as updated_at,

  coalesce(e.tenant_id, p.tenant_id) as tenant_id, e.status, p.currency, p.cost_type
from penstock.endpoints e
left join penstock.price_list p on p.provider = e.name and p.is_current and p.amount is not null
  and (p.tenant_id is null or e.tenant_id is null or p.tenant_id = e.tenant_id);
comment on view video_ideas.provider_config is
  'Providers with their current prices, one row per priced unit. A row with a tenant_id belongs to that '
  'tenant and replaces the general one.';

create or replace view video_ideas.profiles with (security_invoker = true) as
select user_id as id, email, display_name, created_at, created_at as updated_at from penstock.profiles;
comment on view video_ideas.profiles is 
  'Users with their names. A user sees only their own row and may change its display_name.';

-- Sums.

create or replace view video_ideas.provider_costs with (security_invoker = true) as
select tenant_id, day, provider as ai_provider, cost_type, amount, unit_count, lines from penstock.cost_days;
comment on view video_ideas.provider_costs is
  'The cost of each provider per day and type, in the base currency, for all work of a tenant.';

create or replace view video_ideas.bulk_job_costs with (security_invoker = true) as
select c.tenant_id, c.bulk_job_id, c.cost_type, sum(c.base_amount) as amount, sum(c.unit_count) as unit_count,
  count(*) as lines
from video_ideas.job_costs c group by c.tenant_id, c.bulk_job_id, c.cost_type;
comment on view video_ideas.bulk_job_costs is 'What each bulk job cost, by type, in the base currency.';

create or replace view video_ideas.provider_outcomes with (security_invoker = true) as
-- One provider may write the script and another render the video: each has the costs that it caused.
select p.tenant_id, p.bulk_job_id, p.ai_provider, p.status, sum(p.videos)::bigint as videos,
  sum(p.cost) as cost
from (
  select v.tenant_id, v.bulk_job_id, v.ai_provider, v.status, 1 as videos, 0::numeric as cost
  from video_ideas.video_jobs v
  union all
  select v.tenant_id, v.bulk_job_id, c.ai_provider, v.status, 0, c.base_amount from video_ideas.video_jobs v
  join video_ideas.job_costs c on c.bulk_job_id = v.bulk_job_id and c.video_job_id = v.id) as p
group by p.tenant_id, p.bulk_job_id, p.ai_provider, p.status;
comment on view video_ideas.provider_outcomes is
  'The rows of each bulk job by provider and status: the number of videos that the provider rendered, and '
  'the cost of all its work for these rows.';
