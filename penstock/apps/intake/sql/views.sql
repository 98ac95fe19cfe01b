-- The seed's tables over the platform's own. Each view runs with the reader's rights: members see their
-- tenants, the service sees all.

create or replace view intake.subscription_plans with (security_invoker = true) as
select p.name as plan_type, p.title as display_name, p.comment as description,
  (p.limits ->> 'files')::bigint as shell_files_limit, (p.limits ->> 'pages')::bigint as pages_limit,
  (p.limits ->> 'tokens')::bigint as ai_tokens_limit,
  round((p.limits ->> 'bytes')::numeric / 1048576, 2) as storage_limit_mb,
  round(p.price * 100)::integer as monthly_price_cents, to_jsonb(p.features) as features, p.is_active,
  p.position as sort_order
from penstock.plans p;
comment on view intake.subscription_plans is 'Plans with their monthly limits. A null limit is no limit.';

create or replace view intake.user_usage_tracking with (security_invoker = true) as
select md5('intake.usage:' || t.id || m.starts)::uuid as id, t.id as profile_id,
  m.starts::timestamp at time zone 'utc' as billing_cycle_start,
  (m.starts + interval '1 month') at time zone 'utc' as billing_cycle_end,
  coalesce(u.files, 0)::bigint as shell_files_uploaded, coalesce(u.pages, 0)::bigint as total_pages_processed,
  (select coalesce(round(sum(f.file_size_bytes) / 1048576.0, 2), 0) from intake.shell_files f
    where f.tenant_id = t.id and f.uploaded_at >= m.starts::timestamp at time zone 'utc'
      and f.uploaded_at < (m.starts + interval '1 month') at time zone 'utc') as total_file_size_mb,
  coalesce(u.tokens, 0)::bigint as ai_tokens_used, coalesce(u.minutes, 0) as ai_processing_minutes,
  coalesce(round(s.used / 1048576, 2), 0) as storage_used_mb, t.plan as plan_type,
  l.files::bigint as shell_files_limit, l.pages::bigint as pages_limit, l.tokens::bigint as ai_tokens_limit,
  round(l.bytes / 1048576, 2) as storage_limit_mb,
  coalesce(u.files >= l.files, false) or coalesce(u.pages >= l.pages, false)
    or coalesce(u.tokens >= l.tokens, false) or coalesce(s.used >= l.bytes, false) as is_over_limit,
  (select count(*) from intake.usage_warnings w where w.tenant_id = t.id and w.period = m.starts)::integer
    as warnings_sent
from penstock.tenants t
join lateral (select distinct a.period as starts from penstock.accounts a
  where a.tenant_id = t.id and a.job_id is null and a.meter in ('files', 'pages', 'tokens', 'minutes')) as m
  on true
cross join lateral (
  select max(a.used) filter (where a.meter = 'files') as files,
    max(a.used) filter (where a.meter = 'pages') as pages,
    max(a.used) filter (where a.meter = 'tokens') as tokens,
    max(a.used) filter (where a.meter = 'minutes') as minutes
  from penstock.accounts a where a.tenant_id = t.id and a.job_id is null and a.period = m.starts
    and a.meter in ('files', 'pages', 'tokens', 'minutes')) as u
left join penstock.accounts s on s.tenant_id = t.id and s.job_id is null and s.meter = 'bytes'
cross join lateral (
  select max(r.amount) filter (where r.meter = 'files') as files,
    max(r.amount) filter (where r.meter = 'pages') as pages,
    max(r.amount) filter (where r.meter = 'tokens') as tokens,
    max(r.amount) filter (where r.meter = 'bytes') as bytes
  from penstock.resolve_limits(t.id) as r) as l;
comment on view intake.user_usage_tracking is
  'The usage of each tenant and UTC month, with the limits in force now. Nobody writes it.';

create or replace view intake.usage_events with (security_invoker = true) as
select 'usage:' || e.id as id, e.tenant_id as profile_id,
  case when e.details ? 'would_have_blocked' then 'limit_hit' when e.action = 'artifact' then 'storage_used'
    when e.action like 'ai\_queue\_pass%' then 'ai_processing_completed' else e.action end as event_type,
  e.units as metrics, coalesce((e.details ->> 'shell_file_id')::uuid, f.id, g.id) as shell_file_id, e.job_id,
  null::text as user_agent, null::inet as ip_address, e.at as created_at
from penstock.usage_events e
left join intake.shell_files f on f.files_hold_id = e.hold_id
left join intake.shell_files g on g.pages_hold_id = e.hold_id
where e.action in ('shell_file_uploaded', 'shell_file_processed', 'ai_processing_started',
    'ai_processing_completed', 'page_extracted', 'artifact')
  or e.action like 'ai\_queue\_pass%'
union all
select 'plan:' || p.id, p.tenant_id,
  case when n.position >= coalesce(o.position, 0) then 'plan_upgraded' else 'plan_downgraded' end,
  jsonb_build_object('from', p.was, 'to', p.plan), null, null, null, null, p.at
from (
  select a.id, a.tenant_id, a.at, a.details ->> 'plan' as plan,
    lag(a.details ->> 'plan') over (partition by a.tenant_id order by a.id) as was
  from penstock.audit_log a where a.action = 'tenant.plan_set') as p
left join penstock.plans n on n.name = p.plan
left join penstock.plans o on o.name = p.was;
comment on view intake.usage_events is
  'Events of nine types: uploads, pages, passes, storage, plan changes and limits that were hit.';

create or replace view intake.job_queue with (security_invoker = true) as
select intake._job_id(t.id) as id, t.kind as job_type, coalesce(j.params ->> 'job_name', j.type) as job_name,
  t.input as job_payload, coalesce(j.params ->> 'job_category', 'standard') as job_category,
  10 - t.priority as priority, coalesce(l.waiting_until, t.created_at) as scheduled_at,
  case when l.status = 'succeeded' then 'completed' when l.status = 'canceled' then 'cancelled'
    when l.status in ('running', 'waiting') then 'processing' when l.status = 'failed' then 'failed'
    when l.waiting_for = 'retry' then 'retrying'
    when l.waiting_for is not null and l.waiting_for <> 'after' then 'deferred'
    else 'pending' end as status,
  l.worker_id, l.started_at, l.finished_at as completed_at, e.expires_at as heartbeat_at,
  d.died_at as dead_letter_at, l.retry_count,
  case when l.error_code is not null
    then jsonb_build_object('code', l.error_code, 'message', l.error_message) end as error_details,
  l.output as job_result, t.created_at, coalesce(l.finished_at, l.started_at, t.created_at) as updated_at
from penstock.tasks t
join penstock.jobs j on j.id = t.job_id
join penstock.task_list l on l.job_id = t.job_id and l.id = t.id
left join penstock.leases e on e.task_id = t.id
left join penstock.dead_letters d on d.tenant_id = t.tenant_id and d.job_id = t.job_id and d.task_id = t.id
where t.kind = any (intake._job_types());
comment on view intake.job_queue is
  'Tasks of the twelve types as the seed''s queue: its ids, statuses and priorities. heartbeat_at is when '
  'the worker''s right ends without another heartbeat.';

-- For the pages of the dashboard

create or replace view intake.file_list with (security_invoker = true) as
select f.tenant_id, f.id, f.name, f.status, f.pages, f.patient_id, f.job_id, f.artifact_id, f.created_at,
  case when f.processing_error is not null
      then concat_ws(': ', f.processing_error ->> 'code', coalesce(f.processing_error ->> 'message',
        f.processing_error ->> 'legacy_error'))
    when f.status = 'uploading' then 'the content has not been uploaded'
    when f.status in ('uploaded', 'processing') then (
      select concat_ws(': ', 'job ' || j.status, j.status_reason) from penstock.jobs j where j.id = f.job_id)
  end as reason
from intake.shell_files f;
comment on view intake.file_list is 'Files with their state, and why they wait or ended so.';

create or replace view intake.fact_list with (security_invoker = true) as
select r.tenant_id, r.shell_file_id || ':' || x.number as id, s.name as file, r.patient_id,
  x.fact ->> 'kind' as kind, x.fact ->> 'name' as name,
  concat_ws(' ', x.fact ->> 'value', x.fact ->> 'unit') as value, x.fact -> 'is_verified' as is_verified,
  (x.fact #>> '{places,0,page}')::integer as page, x.fact #> '{places,0,box}' as box,
  (r.summary -> 'pictures' ->> (x.fact #>> '{places,0,page}'))::uuid as picture, r.created_at
from intake.shell_file_results r
join intake.shell_files s on s.tenant_id = r.tenant_id and s.id = r.shell_file_id
cross join lateral jsonb_array_elements(r.summary -> 'facts') with ordinality as x(fact, number)
where r.pass = 'pass2';
comment on view intake.fact_list is
  'Facts with the place that they come from, and the image of the page with its boxes.';

create or replace view intake.patient_list with (security_invoker = true) as
select p.tenant_id, p.id, p.name, p.is_self, p.consented_at, p.created_at,
  (select count(*) from intake.shell_files f where f.tenant_id = p.tenant_id and f.patient_id = p.id) as files
from intake.patients p;
comment on view intake.patient_list is 'Patients with the number of their files.';

create or replace view intake.patient_trail with (security_invoker = true) as
select a.id, a.at, a.tenant_id, substr(a.subject, 9) as patient_id, a.action,
  a.details ->> 'table' as record_of, a.details ->> 'record' as record, a.actor, a.job_id
from penstock.audit_log a where a.subject like 'patient:%' and a.action like 'intake.%';
comment on view intake.patient_trail is 'Who wrote what about which patient, from the audit log.';
