-- Views by the names that older clients know, and the lists of the dashboard. Each view runs with the
-- reader's rights.

create or replace view slides.tenants with (security_invoker = true) as
select t.id, t.name, q.total::integer as thumbnail_quota_total, q.used::integer as thumbnail_quota_used,
  t.created_at,

  q.held::integer as thumbnail_quota_held,
  case when q.total is not null then greatest(0, q.total - q.used - q.held)::integer end
    as thumbnail_quota_remaining
from penstock.tenants t cross join lateral slides._quota(t.id) as q;
comment on view slides.tenants is
  'Tenants with their quota of thumbnails: in all, used, and reserved by conversions.';

create or replace view slides.admins with (security_invoker = true) as
select m.user_id as id, m.tenant_id from penstock.members m where m.role in ('owner', 'admin');
comment on view slides.admins is 'Users who administer a tenant.';

-- Through the slides, so that a slide's conversions are found by index.
create or replace view slides.cloudconvert_jobs with (security_invoker = true) as
select o.id, s.tenant_id, s.id as slide_id, o.external_id as cloudconvert_job_id,
  case o.status when 'canceled' then 'failed' else o.status end as status, o.error_message,
  o.id::text as idempotency_key, o.started_at, o.completed_at, o.webhook_received_at,

  s.event_id, o.is_late, o.checked_at, o.job_id, s.name as slide
from slides.slides s
join penstock.operations o on o.tenant_id = s.tenant_id and o.object = 'slide:' || s.id
where o.provider = 'cloudconvert/jobs';
comment on view slides.cloudconvert_jobs is
  'Conversions: one live per slide, many over time. The row exists before CloudConvert is called.';

create or replace view slides.thumbnail_failure_log with (security_invoker = true) as
select encode(substr(sha256(convert_to('slides.failure:' || f.id, 'UTF8')), 1, 16), 'hex')::uuid as id,
  e.tenant_id, e.id as event_id, (f.details ->> 'slide_id')::uuid as slide_id,
  f.code as error_type, f.message as error_message, f.at as occurred_at,

  f.job_id, e.name as event, (select s.name from slides.slides s
    where s.tenant_id = e.tenant_id and s.id = (f.details ->> 'slide_id')::uuid) as slide
from slides.events e
join penstock.failures f on f.tenant_id = e.tenant_id and f.scope = 'event:' || e.id;
comment on view slides.thumbnail_failure_log is
  'Failures of an event''s conversions, append-only. Three in a row within 24 hours alert.';

create or replace trigger failure_log_insert instead of insert on slides.thumbnail_failure_log
  for each row execute function slides._log_failure();

-- Lists of the dashboard.

create or replace view slides.event_list with (security_invoker = true) as
select e.tenant_id, e.id, e.name, e.starts_on, e.thumbnail_generation_enabled, n.none as slides_to_queue,
  n.none * c.price as cost_to_queue,
  n.pending, n.processing, n.completed, n.failed, e.created_at
from slides.events e
cross join (select slides.current_price() as price) as c
cross join lateral (
  select count(*) filter (where s.thumbnail_status = 'none') as none,
    count(*) filter (where s.thumbnail_status = 'pending') as pending,
    count(*) filter (where s.thumbnail_status = 'processing') as processing,
    count(*) filter (where s.thumbnail_status = 'completed') as completed,
    count(*) filter (where s.thumbnail_status = 'failed') as failed
  from slides.slides s where s.tenant_id = e.tenant_id and s.event_id = e.id) as n;
comment on view slides.event_list is
  'Events with the states of their slides, and what switching on would queue and cost.';

create or replace view slides.slide_list with (security_invoker = true) as
select s.tenant_id, s.id, s.event_id, s.speech_id, s.name, s.mime_type, s.thumbnail_status, s.thumbnail_error,
  s.artifact_id, s.thumbnail_artifact_id, s.thumbnail_generated_at, s.job_id, s.created_at, e.name as event,
  case s.mime_type when 'application/pdf' then 'PDF' when 'image/jpeg' then 'JPEG' when 'image/png' then 'PNG'
    when 'application/vnd.ms-powerpoint' then 'PPT' else 'PPTX' end as type
from slides.slides s join slides.events e on e.tenant_id = s.tenant_id and e.id = s.event_id;
comment on view slides.slide_list is 'Slides, with the state of their thumbnails.';
