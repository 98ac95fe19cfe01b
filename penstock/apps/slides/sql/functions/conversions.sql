-- Calls of the handlers. Each is bound to the slide's job: reports of an older job change nothing.

create or replace function slides.begin_thumbnail(p_tenant_id uuid, p_slide_id uuid, p_job_id uuid)
returns jsonb language plpgsql security definer set search_path = slides, pg_temp as $$
declare
  v_slide slides.slides;
  v_is_enabled boolean;
begin
  select e.thumbnail_generation_enabled into v_is_enabled from slides.slides s
  join slides.events e on e.tenant_id = s.tenant_id and e.id = s.event_id
  where s.tenant_id = p_tenant_id and s.id = p_slide_id for share of e;
  select s.* into v_slide from slides.slides s
  where s.tenant_id = p_tenant_id and s.id = p_slide_id and s.job_id = p_job_id for update;
  if not found then
    -- The provider is converting it and will charge for it.
    return jsonb_build_object('skipped', 'the slide was deleted, or has another job',
      'is_converting', exists (
      select from penstock.operations o where o.tenant_id = p_tenant_id and o.object = 'slide:' || p_slide_id
        and o.job_id = p_job_id and o.status = 'processing'));
  elsif v_slide.thumbnail_status = 'completed' then
    return jsonb_build_object('artifact_id', v_slide.thumbnail_artifact_id);
  elsif v_slide.thumbnail_status = 'none' then
    return '{"skipped": "the thumbnail is none"}';
  elsif v_slide.thumbnail_status = 'pending' and not v_is_enabled then
    update slides.slides set thumbnail_status = 'none', updated_at = penstock.clock()
    where tenant_id = p_tenant_id and id = p_slide_id;
    return '{"skipped": "the event does not generate thumbnails any more"}';
  end if;
  if v_slide.thumbnail_status = 'failed' then
    -- The failed task was retried, or its provider succeeded after the timeout.
    update slides.slides set thumbnail_status = 'pending', thumbnail_error = null
    where tenant_id = p_tenant_id and id = p_slide_id;
  end if;
  update slides.slides set thumbnail_status = 'processing', updated_at = penstock.clock()
  where tenant_id = p_tenant_id and id = p_slide_id and thumbnail_status = 'pending';
  return jsonb_build_object('path', v_slide.r2_key, 'mime_type', v_slide.mime_type, 'name', v_slide.name);
end
$$;
comment on function slides.begin_thumbnail(uuid, uuid, uuid) is
  'Marks a slide as processing and returns its file, or the thumbnail that an earlier run made '
  '(artifact_id), or why there is nothing to convert (skipped), and whether its conversion has begun '
  '(is_converting).';

create or replace function slides.finish_thumbnail(
  p_tenant_id uuid, p_slide_id uuid, p_job_id uuid, p_artifact_id uuid)
returns boolean language plpgsql security definer set search_path = slides, pg_temp as $$
declare
  v_slide slides.slides;
begin
  select s.* into v_slide from slides.slides s
  where s.tenant_id = p_tenant_id and s.id = p_slide_id and s.job_id = p_job_id for update;
  if v_slide.thumbnail_status is distinct from 'processing' then
    return false;
  end if;
  update slides.slides set thumbnail_status = 'completed', thumbnail_artifact_id = p_artifact_id,
    thumbnail_r2_key = (select a.path from penstock.artifacts a where a.id = p_artifact_id
      and a.tenant_id = p_tenant_id and a.status = 'stored'),
    thumbnail_generated_at = penstock.clock(), thumbnail_error = null, updated_at = penstock.clock()
  where tenant_id = p_tenant_id and id = p_slide_id;
  perform penstock.keep_artifact(p_artifact_id, 'slides.slide:' || p_slide_id);
  perform penstock.record_outcome(p_tenant_id, 'event:' || v_slide.event_id, true);
  return true;
end
$$;
comment on function slides.finish_thumbnail(uuid, uuid, uuid, uuid) is
  'Stores the thumbnail of a slide and keeps its file. Repeating it changes nothing. Returns false if '
  'the slide was deleted or has another job.';

create or replace function slides._error_type(p_code text)
returns text language sql immutable set search_path = slides, pg_temp as $$
  select case when p_code in ('quota_exceeded', 'invalid_format', 'network_error') then p_code
    when p_code in ('operation_timeout', 'timeout', 'webhook_timeout') then 'webhook_timeout'
    when p_code in ('wrong_type', 'unsafe_file') then 'invalid_format'
    when p_code ~ '(Connect|Read|Write|Network|Pool|Protocol|Transport)' then 'network_error'
    else 'cloudconvert_api_error' end
$$;
comment on function slides._error_type(text) is 'One of the five error types, from the error code of a task.';

create or replace function slides._fail(p_slide slides.slides, p_code text, p_message text, p_job_id uuid)
returns void language plpgsql security definer set search_path = slides, pg_temp as $$
declare
  v_message text := coalesce(nullif(p_message, ''), 'no message');
begin
  update slides.slides set thumbnail_status = 'failed', thumbnail_error = left(v_message, 2000),
    updated_at = penstock.clock()
  where tenant_id = p_slide.tenant_id and id = p_slide.id;
  perform penstock.record_outcome(p_slide.tenant_id, 'event:' || p_slide.event_id, false,
    'slide:' || p_slide.id, slides._error_type(p_code), v_message,
    jsonb_build_object('job_id', p_job_id, 'details', jsonb_build_object('slide_id', p_slide.id)));
end
$$;
comment on function slides._fail(slides.slides, text, text, uuid) is
  'Marks a slide as failed and records the failure for its event, which may alert.';

create or replace function slides.settle_thumbnail(p_tenant_id uuid, p_slide_id uuid, p_job_id uuid)
returns text language plpgsql security definer set search_path = slides, pg_temp as $$
declare
  v_slide slides.slides;
  v_result record;
begin
  select s.* into v_slide from slides.slides s
  where s.tenant_id = p_tenant_id and s.id = p_slide_id and s.job_id = p_job_id for update;
  if not found or v_slide.thumbnail_status not in ('pending', 'processing') then
    return coalesce(v_slide.thumbnail_status, 'gone');
  end if;
  select r.outcome, r.error_code, r.error_message into v_result from penstock.tasks t
  join penstock.results r on r.job_id = t.job_id and r.task_id = t.id
  where t.job_id = p_job_id and t.key = 'convert/' || p_slide_id;
  if v_result.outcome = 'canceled' then
    update slides.slides set thumbnail_status = 'none', updated_at = penstock.clock()
    where tenant_id = p_tenant_id and id = p_slide_id;
    return 'none';
  end if;
  perform slides._fail(v_slide, v_result.error_code, v_result.error_message, p_job_id);
  return 'failed';
end
$$;
comment on function slides.settle_thumbnail(uuid, uuid, uuid) is
  'Settles a slide after its conversion ended: also one that failed without running, such as without quota.';

create or replace function slides.sweep_thumbnails(p_limit integer default 500)
returns integer language plpgsql security definer set search_path = slides, pg_temp as $$
declare
  v_slide slides.slides;
  v_status text;
  v_count integer := 0;
begin
  for v_slide in
    select s.* from slides.slides s
    where s.thumbnail_status in ('pending', 'processing')
      and s.updated_at < penstock.clock() - interval '1 minute'
      and not exists (select from penstock.jobs j where j.id = s.job_id
        and j.status not in ('completed', 'failed', 'canceled'))
    order by s.tenant_id, s.id limit p_limit for update skip locked
  loop
    v_status := (select j.status from penstock.jobs j where j.id = v_slide.job_id);
    if v_status = 'failed' then
      perform slides._fail(v_slide, 'cloudconvert_api_error', 'the job ended without a result',
        v_slide.job_id);
    else
      update slides.slides set thumbnail_status = 'none', updated_at = penstock.clock()
      where tenant_id = v_slide.tenant_id and id = v_slide.id;
    end if;
    v_count := v_count + 1;
  end loop;
  return v_count;
end
$$;
comment on function slides.sweep_thumbnails(integer) is
  'Settles slides whose job ended without settling them, such as a canceled one, and returns their number.';

create or replace function slides.thumbnail_status(p_slide_id uuid)
returns jsonb language plpgsql stable security definer set search_path = slides, pg_temp as $$
declare
  v_status jsonb;
begin
  select jsonb_build_object('slide_id', s.id, 'thumbnail_status', s.thumbnail_status,
    'thumbnail_r2_key', s.thumbnail_r2_key, 'thumbnail_generated_at', s.thumbnail_generated_at,
    'error', s.thumbnail_error, 'job_id', s.job_id, 'conversion', (
      select jsonb_build_object('id', o.id, 'status', o.status, 'cloudconvert_job_id', o.external_id,
        'started_at', o.started_at, 'webhook_received_at', o.webhook_received_at)
      from penstock.operations o where o.tenant_id = s.tenant_id and o.object = 'slide:' || s.id
      order by o.id desc limit 1))
  into v_status from slides.slides s where s.id = p_slide_id and penstock.is_member(s.tenant_id);
  if not found then
    perform penstock.refuse(404, 'unknown_slide', 'there is no such slide', '{"field": "p_slide_id"}');
  end if;
  return v_status;
end
$$;
comment on function slides.thumbnail_status(uuid) is
  'The state of a slide''s thumbnail, and of its newest conversion.';

create or replace function slides._log_failure()
returns trigger language plpgsql security definer set search_path = slides, pg_temp as $$
begin
  if new.error_type is null or new.error_type not in (
      'cloudconvert_api_error', 'webhook_timeout', 'quota_exceeded', 'invalid_format', 'network_error') then
    perform penstock.refuse(422, 'invalid_error_type', format('error_type must be cloudconvert_api_error, '
      'webhook_timeout, quota_exceeded, invalid_format or network_error (got %L)', left(new.error_type, 100)),
      '{"field": "error_type"}');
  elsif not exists (select from slides.slides s where s.tenant_id = new.tenant_id and s.id = new.slide_id
      and s.event_id = new.event_id) then
    perform penstock.refuse(404, 'unknown_slide', 'the tenant''s event has no such slide',
      '{"field": "slide_id"}');
  end if;
  perform penstock.record_outcome(new.tenant_id, 'event:' || new.event_id, false, 'slide:' || new.slide_id,
    new.error_type, new.error_message,
    jsonb_build_object('details', jsonb_build_object('slide_id', new.slide_id)));
  return new;
end
$$;
comment on function slides._log_failure() is
  'Records an inserted line of the failure log as an outcome of its event.';
