-- Slides and their thumbnails. An upload locks its event for share and the toggle updates it, so one of the
-- two waits for the other: a slide that is uploaded while its event is switched on is found by the upload or
-- by the retroactive job, never by both and never by none. Lock order: event, slide, then Penstock's rows.

create or replace function slides._copy_event()
returns trigger language plpgsql security definer set search_path = slides, pg_temp as $$
begin
  select s.event_id into new.event_id from slides.speeches p
  join slides.sessions s on s.tenant_id = p.tenant_id and s.id = p.session_id
  where p.tenant_id = new.tenant_id and p.id = new.speech_id;
  return new;
end
$$;
comment on function slides._copy_event() is 'Copies the event of the speech to a new slide.';

create or replace trigger slides_event before insert or update of speech_id, event_id on slides.slides
  for each row execute function slides._copy_event();

create or replace function slides._guard_status()
returns trigger language plpgsql security definer set search_path = slides, pg_temp as $$
begin
  if (old.thumbnail_status, new.thumbnail_status) not in (('none', 'pending'), ('pending', 'processing'),
      ('pending', 'failed'), ('pending', 'none'), ('processing', 'completed'), ('processing', 'failed'),
      ('processing', 'none'), ('failed', 'pending'))
     and not (old.thumbnail_status = 'completed' and new.thumbnail_status = 'none'
       and new.r2_key <> old.r2_key) then
    perform penstock.refuse(409, 'illegal_transition', format('a thumbnail cannot change from %s to %s',
      old.thumbnail_status, new.thumbnail_status),
      jsonb_build_object('from', old.thumbnail_status, 'to', new.thumbnail_status));
  end if;
  return new;
end
$$;
comment on function slides._guard_status() is 'Rejects a change that the states of a thumbnail do not allow.';

create or replace trigger slides_status before update of thumbnail_status on slides.slides
  for each row when (old.thumbnail_status <> new.thumbnail_status) execute function slides._guard_status();

create or replace function slides._tasks(p_slide_ids uuid[])
returns jsonb language sql stable security definer set search_path = slides, pg_temp as $$
  select coalesce(jsonb_agg(t.task order by s.n, t.n), '[]')
  from unnest(p_slide_ids) with ordinality as s(id, n)
  cross join lateral (values
    (1, jsonb_build_object('kind', 'thumbnail', 'key', 'convert/' || s.id,
      'input', jsonb_build_object('slide_id', s.id),
      'provider', penstock.get_setting('slides.provider') #>> '{}',
      'units', '{"thumbnails": 1, "requests": 1}'::jsonb)),
    -- Runs also if the conversion never started, such as without quota.
    (2, jsonb_build_object('kind', 'thumbnail_settle', 'key', 'settle/' || s.id,
      'input', jsonb_build_object('slide_id', s.id),
      'after', jsonb_build_array('convert/' || s.id), 'after_failure', 'run'))) as t(n, task)
$$;
comment on function slides._tasks(uuid[]) is 'The tasks that make the thumbnails of slides.';

create or replace function slides._start(
  p_type text, p_params jsonb, p_tasks jsonb, p_tenant_id uuid, p_key text)
returns uuid language plpgsql security definer set search_path = slides, pg_temp as $$
begin
  return penstock.start_drawn_job(p_type, p_params, p_tasks,
    jsonb_strip_nulls(jsonb_build_object(
      'tenant_id', p_tenant_id, 'on_limit', 'refuse', 'idempotency_key', p_key)),
    case when not penstock.is_service() then auth.uid() end);
end
$$;
comment on function slides._start(text, jsonb, jsonb, uuid, text) is
  'Starts a job of the app. A conversion without quota fails at once and does not wait.';

create or replace function slides._queue(p_tenant_id uuid, p_slide_id uuid)
returns uuid language plpgsql security definer set search_path = slides, pg_temp as $$
declare
  v_job_id uuid := slides._start('thumbnail', jsonb_build_object('slide_id', p_slide_id),
    slides._tasks(array[p_slide_id]), p_tenant_id, null);
begin
  update slides.slides set thumbnail_status = 'pending', thumbnail_error = null, job_id = v_job_id,
    updated_at = penstock.clock()
  where tenant_id = p_tenant_id and id = p_slide_id;
  return v_job_id;
end
$$;
comment on function slides._queue(uuid, uuid) is
  'Starts the job of one slide, whose row the caller has locked.';

create or replace function slides.require_speech(p_speech_id uuid)
returns uuid language plpgsql stable security definer set search_path = slides, pg_temp as $$
declare
  v_tenant_id uuid;
begin
  select p.tenant_id into v_tenant_id from slides.speeches p
  where p.id = p_speech_id and penstock.is_member(p.tenant_id);
  if not found then
    perform penstock.refuse(404, 'unknown_speech', 'there is no such speech', '{"field": "speech_id"}');
  end if;
  perform penstock.require_member(v_tenant_id);
  return v_tenant_id;
end
$$;
comment on function slides.require_speech(uuid) is
  'The tenant of a speech to which the caller may add slides, or an error.';

create or replace function slides.add_slide(p_speech_id uuid, p_artifact_id uuid, p_name text default null)
returns uuid language plpgsql security definer set search_path = slides, pg_temp as $$
declare
  c_types constant text[] := array[
    'application/pdf', 'image/jpeg', 'image/png', 'application/vnd.ms-powerpoint',
    'application/vnd.openxmlformats-officedocument.presentationml.presentation'];
  v_tenant_id uuid := slides.require_speech(p_speech_id);
  v_file penstock.artifacts;
  v_is_enabled boolean;
  v_slide slides.slides;
begin
  select a.* into v_file from penstock.artifacts a
  where a.id = p_artifact_id and a.tenant_id = v_tenant_id and a.status = 'stored';
  if not found then
    perform penstock.refuse(404, 'unknown_artifact', 'the tenant of this speech has no such stored file',
      '{"field": "artifact_id"}');
  elsif v_file.content_type <> all (c_types) then
    perform penstock.refuse(422, 'invalid_format',
      format('a slide must be a PPT, PPTX, PDF, JPEG or PNG file (got %s)', v_file.content_type),
      '{"field": "artifact_id"}');
  end if;
  select e.thumbnail_generation_enabled into v_is_enabled from slides.speeches p
  join slides.sessions s on s.tenant_id = p.tenant_id and s.id = p.session_id
  join slides.events e on e.tenant_id = s.tenant_id and e.id = s.event_id
  where p.tenant_id = v_tenant_id and p.id = p_speech_id for share of e;
  insert into slides.slides (tenant_id, speech_id, name, r2_key, mime_type, artifact_id)
  values (v_tenant_id, p_speech_id, left(coalesce(p_name, v_file.name), 200), v_file.path,
    v_file.content_type, p_artifact_id)
  on conflict (tenant_id, artifact_id) where artifact_id is not null do nothing returning * into v_slide;
  if v_slide.id is null then
    return (select s.id from slides.slides s
      where s.tenant_id = v_tenant_id and s.artifact_id = p_artifact_id);
  end if;
  perform penstock.keep_artifact(p_artifact_id, 'slides.slide:' || v_slide.id);
  if v_is_enabled then
    perform slides._queue(v_tenant_id, v_slide.id);
  end if;
  return v_slide.id;
end
$$;
comment on function slides.add_slide(uuid, uuid, text) is
  'Adds a stored file to a speech and keeps it. If the event generates thumbnails, its conversion is '
  'queued in the same transaction. The same file again returns the same slide.';

create or replace function slides._locked_slide(p_slide_id uuid)
returns slides.slides language plpgsql security definer set search_path = slides, pg_temp as $$
declare
  v_slide slides.slides;
begin
  select s.* into v_slide from slides.slides s where s.id = p_slide_id and penstock.is_member(s.tenant_id);
  if not found then
    perform penstock.refuse(404, 'unknown_slide', 'there is no such slide', '{"field": "slide_id"}');
  end if;
  perform penstock.require_member(v_slide.tenant_id);
  -- The event first: an upload and the toggle lock it before slides.
  perform from slides.events e where e.tenant_id = v_slide.tenant_id and e.id = v_slide.event_id for share;
  select s.* into v_slide from slides.slides s
  where s.tenant_id = v_slide.tenant_id and s.id = p_slide_id for update;
  return v_slide;
end
$$;
comment on function slides._locked_slide(uuid) is
  'Locks a slide that the caller may change, after its event.';

create or replace function slides.retry_thumbnail(p_slide_id uuid)
returns uuid language plpgsql security definer set search_path = slides, pg_temp as $$
declare
  v_slide slides.slides := slides._locked_slide(p_slide_id);
begin
  if v_slide.thumbnail_status not in ('none', 'failed') then
    perform penstock.refuse(409, 'illegal_transition', format(
      'a thumbnail is made only from none or failed (this one is %s)', v_slide.thumbnail_status),
      jsonb_build_object('status', v_slide.thumbnail_status));
  elsif not (select e.thumbnail_generation_enabled from slides.events e
      where e.tenant_id = v_slide.tenant_id and e.id = v_slide.event_id) then
    perform penstock.refuse(409, 'generation_disabled',
      'the event of this slide does not generate thumbnails',
      jsonb_build_object('event_id', v_slide.event_id), 'Enable it first.');
  end if;
  return slides._queue(v_slide.tenant_id, p_slide_id);
end
$$;
comment on function slides.retry_thumbnail(uuid) is
  'Queues the conversion of a slide whose thumbnail failed or was never made, and returns the job.';

create or replace function slides.delete_slide(p_slide_id uuid)
returns void language plpgsql security definer set search_path = slides, pg_temp as $$
declare
  v_slide slides.slides := slides._locked_slide(p_slide_id);
begin
  -- A running conversion completes and its cost is counted.
  delete from slides.slides where tenant_id = v_slide.tenant_id and id = p_slide_id;
end
$$;
comment on function slides.delete_slide(uuid) is 'Deletes a slide. Its files are no longer kept.';

create or replace function slides._forget_files()
returns trigger language plpgsql security definer set search_path = slides, pg_temp as $$
begin
  -- The files of a tenant that moves to another database stay.
  if current_setting('penstock.moving', true) is distinct from 'on' then
    perform penstock.unkeep_artifact(a) from unnest(array[old.artifact_id, old.thumbnail_artifact_id]) as a
      where a is not null;
    perform penstock.record_audit('slides.deleted', 'slide:' || old.id, '{}', old.tenant_id);
  end if;
  return null;
end
$$;
comment on function slides._forget_files() is
  'Ends the keeping of a deleted slide''s files, also of one that goes with its speech or session. They are '
  'removed after retention_days.';
create or replace trigger slides_deleted after delete on slides.slides
  for each row execute function slides._forget_files();
