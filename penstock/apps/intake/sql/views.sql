-- Views by the names that older clients know. Each view runs with the reader's rights: members see their
-- tenants, the service sees all.

create or replace view intake.subscription_plans with (security_invoker = true) as
select p.name as plan_type, p.title as display_name, p.comment as description,
  (p.limits ->> 'files')::bigint as shell_files_limit, (p.limits ->> 'pages')::bigint as pages_limit,
  (p.limits ->> 'tokens')::bigint as ai_tokens_limit,
  round((p.limits ->> 'bytes')::numeric / 1048576, 2) as storage_limit_mb,
  round(p.price * 100)::integer as monthly_price_cents, to_jsonb(p.features) as features, p.is_active,
  p.position as sort_order, md5('intake.plan:' || p.name)::uuid as id
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
    as warnings_sent,
  intake.ai_jobs(t.id, m.starts) as ai_processing_jobs,
  intake.shows_upgrades() and (coalesce(u.files >= l.files, false) or coalesce(u.pages >= l.pages, false)
    or coalesce(u.tokens >= l.tokens, false) or coalesce(s.used >= l.bytes, false)) as upgrade_required,
  m.starts::timestamp at time zone 'utc' as created_at, u.updated_at
from penstock.tenants t
join lateral (select distinct a.period as starts from penstock.accounts a
  where a.tenant_id = t.id and a.job_id is null and a.meter in ('files', 'pages', 'tokens', 'minutes')) as m
  on true
cross join lateral (
  select max(a.used) filter (where a.meter = 'files') as files,
    max(a.used) filter (where a.meter = 'pages') as pages,
    max(a.used) filter (where a.meter = 'tokens') as tokens,
    max(a.used) filter (where a.meter = 'minutes') as minutes,
    (select max(e.at) from penstock.usage_events e where e.tenant_id = t.id
      and e.at >= m.starts::timestamp at time zone 'utc'
      and e.at < (m.starts + interval '1 month') at time zone 'utc') as updated_at
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
  'The usage of each tenant and UTC month, with the current limits. Read-only.';

create or replace view intake.usage_events with (security_invoker = true) as
select 'usage:' || e.id as id, e.tenant_id as profile_id,
  case when e.details ? 'would_have_blocked' then 'limit_hit' when e.action = 'artifact' then 'storage_used'
    when e.action like 'ai\_queue\_pass%' then 'ai_processing_completed' else e.action end as event_type,
  e.units as metrics, coalesce(x.details ->> 'shell_file_id', f.id::text, g.id::text)::uuid as shell_file_id,
  coalesce(e.job_id, (x.details ->> 'job_id')::uuid) as job_id,
  h.user_agent, h.ip_address, e.at as created_at
from penstock.usage_events e
-- What workers report with their tasks may have any details.
cross join lateral (select case when e.task_id is null then e.details end as details) as x
left join intake.shell_files f on f.files_hold_id = e.hold_id
left join intake.shell_files g on g.pages_hold_id = e.hold_id
left join intake.upload_addresses h on e.action = 'shell_file_uploaded' and h.tenant_id = f.tenant_id
  and h.shell_file_id = f.id
where e.action in ('shell_file_uploaded', 'shell_file_processed', 'ai_processing_started',
    'ai_processing_completed', 'page_extracted', 'limit_hit', 'artifact')
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
  10 - t.priority as priority, case when isfinite(p.until) then p.until else t.created_at end as scheduled_at,
  case when r.outcome = 'succeeded' then 'completed' when r.outcome = 'failed' then 'failed'
    when r.outcome = 'canceled' or j.status = 'canceled' then 'cancelled'
    when e.task_id is not null or p.wait_id is not null then 'processing'
    when p.task_id is null or p.pending > 0 then 'pending'
    when p.reason = 'retry' then 'retrying' else 'deferred' end as status,
  coalesce(r.worker_id, e.worker_id) as worker_id, coalesce(r.started_at, e.started_at) as started_at,
  r.finished_at as completed_at, e.expires_at as heartbeat_at, d.died_at as dead_letter_at,
  (select count(*) from penstock.attempts a where a.job_id = t.job_id and a.task_id = t.id)::integer
    as retry_count,
  case when r.outcome is distinct from 'succeeded' then coalesce((
      select coalesce(a.error_details, '{}')
        || jsonb_build_object('code', a.error_code, 'message', a.error_message)
      from penstock.attempts a where a.job_id = t.job_id and a.task_id = t.id order by a.lease desc limit 1),
    case when r.error_code is not null
      then jsonb_build_object('code', r.error_code, 'message', r.error_message) end) end as error_details,
  r.output as job_result, t.created_at,
  coalesce(r.finished_at, e.started_at, t.created_at) as updated_at,
  coalesce(t.max_attempts, k.max_attempts, 3) - 1 as max_retries
-- PostgreSQL chooses the order of these seven tables: a query about leases or dead letters reads these first.
from penstock.tasks t
join penstock.jobs j on j.id = t.job_id
left join penstock.kinds k on k.name = t.kind
left join penstock.results r on r.job_id = t.job_id and r.task_id = t.id
left join penstock.parked p on p.job_id = t.job_id and p.task_id = t.id
left join penstock.leases e on e.task_id = t.id and e.job_id = t.job_id
left join penstock.dead_letters d on d.tenant_id = t.tenant_id and d.job_id = t.job_id and d.task_id = t.id
where t.kind = any (intake._job_types());
comment on view intake.job_queue is
  'Tasks of the twelve types as the seed''s queue: its ids, statuses and priorities. heartbeat_at is when '
  'the worker''s right ends without another heartbeat.';

create or replace view intake.system_configuration with (security_invoker = true) as
select coalesce(c.config_key, s.name) as config_key,
  case when x.is_sensitive then null else s.value #>> '{}' end as config_value,
  coalesce(c.config_type, case jsonb_typeof(s.value) when 'boolean' then 'boolean' else 'system' end)
    as config_type,
  s.comment as description, x.is_sensitive, s.changed_at as updated_at
from penstock.settings s
left join intake._configuration() as c on c.setting = s.name
cross join lateral (select s.name ~ '(secret|password|token|credential|api_key)' as is_sensitive) as x
where c.config_key is not null or s.name like 'intake.%';
comment on view intake.system_configuration is
  'Settings by their old keys. The service changes config_value. Values of secrets are not shown.';
create or replace trigger set_configuration instead of update on intake.system_configuration
  for each row execute function intake._set_configuration();

create or replace view intake.api_rate_limits with (security_invoker = true) as
select md5('intake.endpoint:' || e.id)::uuid as id, e.provider as provider_name, e.endpoint as api_endpoint,
  e.requests_per_minute, e.requests_per_hour, e.tokens_per_minute, e.tokens_per_hour,
  e.concurrency as concurrent_requests, coalesce(m.requests, 0)::bigint as current_requests_minute,
  coalesce(h.requests, m.requests, 0)::bigint as current_requests_hour,
  coalesce(m.tokens, 0)::bigint as current_tokens_minute,
  coalesce(h.tokens, m.tokens, 0)::bigint as current_tokens_hour,
  (select count(*) from penstock.lanes l join penstock.leases y on y.lane_id = l.id and y.is_gated
    where l.provider = e.name and l.tenant_id is null)
    + (select count(*) from penstock.calls c where c.endpoint_id = e.id and c.expires_at > penstock.clock())
    + (select count(*) from penstock.operations o where o.endpoint_id = e.id and o.has_place
      and o.status in ('pending', 'processing')) as active_requests,
  to_timestamp(m.oldest * 0.25 + 60.75) as minute_reset_at,
  to_timestamp(h.oldest * 60 + 3661) as hour_reset_at,
  e.backpressure_threshold, e.backpressure_delay_seconds, e.depth_limit as queue_depth_limit, e.status,
  s.refused_at as last_rate_limit_hit, s.refusals as rate_limit_violations, e.changed_at as created_at,
  e.changed_at as updated_at
from penstock.endpoints e join penstock.endpoint_states s on s.endpoint_id = e.id
cross join lateral (select extract(epoch from penstock.clock()) as epoch) as n
-- The windows slide: a slot of 250 ms counts for a minute after it ends, a slot of a minute for an hour.
cross join lateral (select sum(p.requests) as requests, sum(p.tokens) as tokens, min(p.slot) as oldest
  from penstock.spent p where p.endpoint_id = e.id and p.width = 1
    and p.slot > floor(4 * (n.epoch - 60.75))::bigint) as m
cross join lateral (select sum(p.requests) as requests, sum(p.tokens) as tokens, min(p.slot) as oldest
  from penstock.spent p where p.endpoint_id = e.id and p.width = 60 and p.slot * 60 + 3661 > n.epoch) as h
where e.tenant_id is null;
comment on view intake.api_rate_limits is
  'Limits of the providers for all tenants, and how much of each is used now. The service changes limits '
  'and status.';
create or replace trigger set_rate_limit instead of update on intake.api_rate_limits
  for each row execute function intake._set_rate_limit();

-- For the pages of the dashboard

create or replace view intake.usage_overview with (security_invoker = true) as
select u.id, t.name as tenant, u.profile_id, u.plan_type, u.billing_cycle_start,
  (select count(*) from intake.usage_events e where e.profile_id = u.profile_id
    and e.created_at >= u.billing_cycle_start and e.created_at < u.billing_cycle_end) as events,
  round(100.0 * u.shell_files_uploaded / nullif(u.shell_files_limit, 0), 1) as files_percent,
  round(100.0 * u.total_pages_processed / nullif(u.pages_limit, 0), 1) as pages_percent,
  round(100.0 * u.ai_tokens_used / nullif(u.ai_tokens_limit, 0), 1) as tokens_percent,
  round(100.0 * u.storage_used_mb / nullif(u.storage_limit_mb, 0), 1) as storage_percent,
  u.is_over_limit, u.warnings_sent
from intake.user_usage_tracking u join penstock.tenants t on t.id = u.profile_id;
comment on view intake.usage_overview is 'The usage of each tenant and month as percentages, for operators.';

create or replace view intake.file_list with (security_invoker = true) as
select f.tenant_id, f.id, f.name, f.status, f.pages, f.patient_id, f.job_id,
  -- A browser opens a file only after the scan has admitted it.
  case when f.pages is not null or f.status = 'completed' then f.artifact_id end as artifact_id, f.created_at,
  case when f.processing_error is not null
      then concat_ws(': ', f.processing_error ->> 'code', coalesce(f.processing_error ->> 'message',
        f.processing_error ->> 'legacy_error'))
    when f.status = 'uploading' then 'the content has not been uploaded'
    when f.status in ('uploaded', 'processing') then (
      select case when j.status = 'running' then concat_ws('; ', format('%s, %s %%', j.phase, j.percent), (
          select case t.waiting_for when 'retry' then 'waits for the next attempt'
            else 'waits for: ' || t.waiting_for end
          from penstock.task_list t
          where t.job_id = j.id and t.status = 'queued' and t.waiting_for is not null
          order by t.id limit 1))
        else concat_ws(': ', 'job ' || j.status, j.status_reason) end
      from penstock.job_list j where j.id = f.job_id)
  end as reason,
  (select (r.summary #>> '{pictures,1}')::uuid from intake.shell_file_results r
    where r.tenant_id = f.tenant_id and r.shell_file_id = f.id and r.pass = 'pass2') as picture,
  coalesce(p.name, 'own record') as patient
from intake.shell_files f join intake.patients p on p.tenant_id = f.tenant_id and p.id = f.patient_id;
comment on view intake.file_list is 'Files with their state, and why they wait or ended so.';

create or replace view intake.fact_list with (security_invoker = true) as
select r.tenant_id, r.shell_file_id || ':' || x.number as id, s.name as file, r.patient_id,
  x.fact ->> 'kind' as kind, x.fact ->> 'name' as name,
  concat_ws(' ', x.fact ->> 'value', x.fact ->> 'unit') as value, x.fact -> 'is_verified' as is_verified,
  (x.fact #>> '{places,0,page}')::integer as page, x.fact #> '{places,0,box}' as box,
  (r.summary -> 'pictures' ->> (x.fact #>> '{places,0,page}'))::uuid as picture, r.created_at,
  coalesce(p.name, 'own record') as patient
from intake.shell_file_results r
join intake.shell_files s on s.tenant_id = r.tenant_id and s.id = r.shell_file_id
join intake.patients p on p.tenant_id = r.tenant_id and p.id = r.patient_id
cross join lateral jsonb_array_elements(r.summary -> 'facts') with ordinality as x(fact, number)
where r.pass = 'pass2';
comment on view intake.fact_list is
  'Facts with the place that they come from, and the image of the page with its boxes.';

create or replace view intake.patient_list with (security_invoker = true) as
select p.tenant_id, p.id, p.name, p.is_self, p.consented_at, p.created_at,
  (select count(*) from intake.shell_files f
    where f.tenant_id = p.tenant_id and f.patient_id = p.id) as files,
  coalesce(p.name, 'own record') as patient
from intake.patients p;
comment on view intake.patient_list is 'Patients with the number of their files.';

create or replace view intake.patient_trail with (security_invoker = true) as
select a.id, a.at, a.tenant_id, substr(a.subject, 9) as patient_id, a.action,
  a.details ->> 'table' as record_of, a.details ->> 'record' as record, a.actor, a.job_id,
  (select coalesce(p.name, 'own record') from intake.patients p
    where p.tenant_id = a.tenant_id and p.id = case when substr(a.subject, 9) ~ '^[0-9a-f-]{36}$'
      then substr(a.subject, 9)::uuid end) as patient,
  (select f.name from intake.shell_files f
    where f.tenant_id = a.tenant_id and f.id = case when a.details ->> 'record' ~ '^[0-9a-f-]{36}$'
      then (a.details ->> 'record')::uuid end) as file
from penstock.audit_log a where a.subject like 'patient:%' and a.action like 'intake.%';
comment on view intake.patient_trail is 'Who wrote what about which patient, from the audit log.';
