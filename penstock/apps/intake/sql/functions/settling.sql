-- The end of a file. The job's last task calls settle_file; sweep_files does it for jobs that ended without
-- that task, such as canceled ones.

create or replace function intake.admit_file(p_tenant_id uuid, p_id uuid, p_pages integer, p_warnings jsonb)
returns intake.shell_files language plpgsql security definer set search_path = intake, pg_temp as $$
declare
  v_file intake.shell_files;
begin
  select * into v_file from intake.shell_files where tenant_id = p_tenant_id and id = p_id for update;
  if not found then
    perform penstock.refuse(404, 'unknown_file', 'there is no such file');
  end if;
  if v_file.pages_hold_id is not null and v_file.pages is null then
    perform penstock.commit_hold(v_file.pages_hold_id, jsonb_build_object('pages', p_pages));
  end if;
  update intake.shell_files set status = 'processing', pages = p_pages, warnings = coalesce(p_warnings, '[]'),
    processing_error = null
  where tenant_id = p_tenant_id and id = p_id returning * into v_file;
  perform intake._warn_limits(p_tenant_id);
  return v_file;
end
$$;
comment on function intake.admit_file(uuid, uuid, integer, jsonb) is
  'Takes a file whose scan succeeded into processing, and counts its pages instead of the estimate.';

create or replace function intake.note_ai_start(p_tenant_id uuid, p_id uuid, p_job_id uuid)
returns void language sql security definer set search_path = intake, pg_temp as $$
  select penstock.record_usage('{}', p_tenant_id => p_tenant_id, p_action => 'ai_processing_started',
    p_options => jsonb_build_object('key', 'intake.ai_started:' || p_job_id,
      'details', jsonb_build_object('shell_file_id', p_id, 'job_id', p_job_id)))
$$;
comment on function intake.note_ai_start(uuid, uuid, uuid) is
  'Notes that the AI passes of a file begin, once.';

create or replace function intake._failure_of(p_job_id uuid)
returns jsonb language sql stable security definer set search_path = intake, pg_temp as $$
  select jsonb_build_object('code', t.error_code, 'message', t.error_message, 'step', t.kind,
    'job_id', t.job_id, 'attempts', t.attempt, 'is_final', true)
  from penstock.task_list t where t.job_id = p_job_id and t.status = 'failed'
  order by t.finished_at, t.id limit 1
$$;
comment on function intake._failure_of(uuid) is
  'The first failed task of a job: code, message, step and attempts.';

create or replace function intake.settle_file(p_tenant_id uuid, p_id uuid)
returns text language plpgsql security definer set search_path = intake, pg_temp as $$
declare
  v_file intake.shell_files;
  v_error jsonb;
  v_status text;
begin
  select * into v_file from intake.shell_files where tenant_id = p_tenant_id and id = p_id for update;
  if not found or v_file.status in ('uploading', 'completed', 'rejected') then
    return v_file.status;
  end if;
  v_error := intake._failure_of(v_file.job_id);
  if v_error is null and (select j.status from penstock.jobs j where j.id = v_file.job_id) = 'canceled' then
    v_error := jsonb_build_object('code', 'canceled', 'message', 'the job was canceled', 'step', null,
      'job_id', v_file.job_id, 'attempts', 0, 'is_final', true);
  end if;
  v_status := case when v_error is null then 'completed'
    when v_error ->> 'step' = 'fast_queue_security' and v_error ->> 'code' = any (intake._reject_codes())
      then 'rejected' else 'failed' end;
  if v_status = v_file.status then
    return v_status;
  end if;
  if v_file.pages is null and v_file.pages_hold_id is not null and v_status <> 'completed' then
    perform penstock.release_hold(v_file.pages_hold_id);
  end if;
  update intake.shell_files set status = v_status, processing_error = v_error, completed_at = penstock.clock()
  where tenant_id = p_tenant_id and id = p_id;
  perform intake._count_minutes(v_file, v_status);
  perform penstock.record_outcome(p_tenant_id, 'intake', v_status <> 'failed', 'shell_file:' || p_id,
    v_error ->> 'code', left(v_error ->> 'message', 500));
  -- The tokens of the passes have been counted meanwhile.
  perform intake._warn_limits(p_tenant_id);
  return v_status;
end
$$;
comment on function intake.settle_file(uuid, uuid) is
  'Sets the final status of a file from the tasks of its job: completed, rejected by the scan, or failed.';

create or replace function intake._reject_codes()
returns text[] language sql immutable set search_path = pg_catalog, pg_temp as $$
  select array['broken_image', 'broken_pdf', 'content_type_mismatch', 'decompression_bomb',
    'document_too_large', 'empty_file', 'encrypted_pdf', 'page_too_large', 'too_many_pages',
    'too_many_pixels', 'unknown_content', 'virus_found']
$$;
comment on function intake._reject_codes() is 'The codes with which the scan rejects a file.';

create or replace function intake._count_minutes(p_file intake.shell_files, p_status text)
returns void language plpgsql security definer set search_path = intake, pg_temp as $$
declare
  v_seconds numeric;
begin
  if p_file.files_hold_id is null then
    return;
  end if;
  select coalesce(sum(extract(epoch from r.finished_at - r.started_at)), 0) into v_seconds
    from penstock.results r join penstock.tasks t on t.job_id = r.job_id and t.id = r.task_id
    where r.job_id = p_file.job_id and t.kind like 'ai\_queue\_%'
      and r.finished_at > coalesce(p_file.completed_at, '-infinity');
  perform penstock.record_usage(jsonb_build_object('minutes', round(v_seconds / 60, 6)),
    p_tenant_id => p_file.tenant_id, p_action => 'shell_file_processed',
    p_options => jsonb_build_object('key', concat_ws(':', 'intake.processed', p_file.id,
        extract(epoch from p_file.completed_at)),
      'details', jsonb_build_object('shell_file_id', p_file.id, 'status', p_status)));
end
$$;
comment on function intake._count_minutes(intake.shell_files, text) is
  'Counts the time of the AI passes of a file, once, in exact minutes. For a file that failed and was '
  'retried, counts what its passes took since then.';

create or replace function intake.reject_upload(
  p_tenant_id uuid, p_id uuid, p_code text, p_message text)
returns boolean language plpgsql security definer set search_path = intake, pg_temp as $$
declare
  v_file intake.shell_files;
begin
  select * into v_file from intake.shell_files where tenant_id = p_tenant_id and id = p_id for update;
  if v_file.status is distinct from 'uploading' or exists (
    select from penstock.artifacts a where a.id = v_file.artifact_id and a.status <> 'deleted') then
    return false;
  end if;
  update intake.shell_files set status = 'rejected', completed_at = penstock.clock(), artifact_id = null,
    processing_error = jsonb_build_object('code', p_code, 'message', left(p_message, 1000), 'step', 'upload',
      'is_final', true)
  where tenant_id = p_tenant_id and id = p_id;
  if v_file.files_hold_id is not null then
    perform penstock.release_hold(v_file.files_hold_id);
    perform penstock.release_hold(v_file.pages_hold_id);
  end if;
  return true;
end
$$;
comment on function intake.reject_upload(uuid, uuid, text, text) is
  'Rejects a file whose upload was dropped, and returns its quota. Returns false if the upload still exists.';

create or replace function intake.sweep_files(p_limit integer default 500)
returns integer language plpgsql security definer set search_path = intake, pg_temp as $$
declare
  v_file record;
  v_count integer := 0;
begin
  delete from intake.upload_addresses where created_at < penstock.clock() - interval '30 days';
  perform intake._erase_patient_data();
  -- Each row is checked again under its lock.
  for v_file in
    select f.tenant_id, f.id, f.status from intake.shell_files f
    left join penstock.jobs j on j.id = f.job_id
    left join penstock.artifacts a on a.id = f.artifact_id
    where f.status in ('uploaded', 'processing') and j.status in ('completed', 'failed', 'canceled')
      or f.status = 'failed' and j.status = 'completed'
      or f.status = 'uploading' and (a.id is null or a.status = 'deleted')
    order by f.tenant_id, f.id limit p_limit
  loop
    if v_file.status = 'uploading' then
      v_count := v_count + intake.reject_upload(v_file.tenant_id, v_file.id, 'upload_expired',
        'the content did not arrive, or was not what the upload announced')::integer;
    else
      perform intake.settle_file(v_file.tenant_id, v_file.id);
      v_count := v_count + 1;
    end if;
  end loop;
  return v_count;
end
$$;
comment on function intake.sweep_files(integer) is
  'Ends files whose job ended without its last task, and uploads whose content never came, and deletes '
  'addresses after 30 days and the patient data of erased users. Called every minute.';

create or replace function intake._erase_patient_data(p_limit integer default 100)
returns integer language plpgsql security definer set search_path = intake, pg_temp as $$
declare
  v_tenants uuid[];
begin
  -- erase_user leaves a personal tenant without a name, members and a profile.
  v_tenants := array(
    select t.id from penstock.tenants t
    where t.is_personal and t.name = 'erased'
      and not exists (select from penstock.members m where m.tenant_id = t.id)
      and not exists (select from penstock.profiles p where p.tenant_id = t.id)
      and exists (select from intake.patients p where p.tenant_id = t.id)
    order by t.id limit p_limit);
  delete from intake.upload_addresses where tenant_id = any (v_tenants);
  delete from intake.usage_warnings where tenant_id = any (v_tenants);
  delete from intake.shell_file_results where tenant_id = any (v_tenants);
  delete from intake.shell_files where tenant_id = any (v_tenants);
  delete from intake.patients where tenant_id = any (v_tenants);
  return cardinality(v_tenants);
end
$$;
comment on function intake._erase_patient_data(integer) is
  'Deletes patients, files and results of users whom erase_user has erased. Returns the number of tenants.';

create or replace function intake.store_result(
  p_tenant_id uuid, p_id uuid, p_pass text, p_job_id uuid, p_summary jsonb, p_artifact_id uuid default null,
  p_model text default null, p_prompt_name text default null, p_prompt_version integer default null)
returns void language plpgsql security definer set search_path = intake, pg_temp as $$
declare
  v_patient_id uuid;
begin
  select patient_id into v_patient_id from intake.shell_files where tenant_id = p_tenant_id and id = p_id;
  if not found then
    perform penstock.refuse(404, 'unknown_file', 'there is no such file');
  end if;
  if p_artifact_id is not null then
    perform penstock.keep_artifact(p_artifact_id, 'intake.shell_file:' || p_id);
  end if;
  insert into intake.shell_file_results as r (tenant_id, shell_file_id, pass, patient_id, artifact_id,
    summary, model, prompt_name, prompt_version, job_id)
  values (p_tenant_id, p_id, p_pass, v_patient_id, p_artifact_id, p_summary, p_model, p_prompt_name,
    p_prompt_version, p_job_id)
  on conflict (tenant_id, shell_file_id, pass) do update set artifact_id = excluded.artifact_id,
    summary = excluded.summary, model = excluded.model, prompt_name = excluded.prompt_name,
    prompt_version = excluded.prompt_version, job_id = excluded.job_id, created_at = excluded.created_at;
end
$$;
comment on function intake.store_result(uuid, uuid, text, uuid, jsonb, uuid, text, text, integer) is
  'Stores the result of a step of a file, and keeps its document.';
