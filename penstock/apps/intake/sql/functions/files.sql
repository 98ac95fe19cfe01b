-- Files: an upload, its job and its end. Once finish_shell_file has committed, the file is stored, kept
-- beyond retention, on record, counted and has a job. Lock order: shell file, artifact, hold, account, job.

create or replace function intake._guard_status()
returns trigger language plpgsql set search_path = intake, pg_temp as $$
begin
  perform penstock.refuse(409, 'illegal_transition',
    format('a file cannot change from %s to %s', old.status, new.status),
    jsonb_build_object('from', old.status, 'to', new.status));
  return null;
end
$$;
comment on function intake._guard_status() is
  'Rejects a status change that the states of a file do not allow.';

create or replace trigger guard_status before update of status on intake.shell_files
  for each row when (old.status is distinct from new.status and (old.status, new.status) not in (
    ('uploading', 'uploaded'), ('uploading', 'rejected'), ('uploaded', 'processing'), ('uploaded', 'failed'),
    ('uploaded', 'rejected'), ('uploaded', 'completed'), ('processing', 'completed'),
    ('processing', 'failed'), ('processing', 'rejected'), ('failed', 'processing'), ('failed', 'completed')))
  execute function intake._guard_status();

create or replace function intake.has_profile_access(p_profile_id uuid)
returns boolean language sql stable security definer set search_path = intake, pg_temp as $$
  select exists (select from intake.patients where id = p_profile_id and penstock.is_member(tenant_id))
$$;
comment on function intake.has_profile_access(uuid) is
  'Whether the caller may see a patient: the service, or a member of the patient''s tenant.';

create or replace function intake._patient_of(p_patient_id uuid, p_tenant_id uuid)
returns intake.patients language plpgsql security definer set search_path = intake, pg_temp as $$
declare
  v_patient intake.patients;
begin
  if p_patient_id is not null and p_patient_id is distinct from auth.uid() then
    select * into v_patient from intake.patients
      where id = p_patient_id and (p_tenant_id is null or tenant_id = p_tenant_id)
        and penstock.is_member(tenant_id)
      order by tenant_id limit 1;
    if not found then
      perform penstock.refuse(404, 'unknown_patient', 'there is no such patient', '{"field": "patient_id"}');
    end if;
    return v_patient;
  end if;
  if auth.uid() is null then
    perform penstock.refuse(422, 'invalid', 'patient_id is required', '{"field": "patient_id"}');
  end if;
  insert into intake.patients (tenant_id, id, is_self)
  values (penstock.require_tenant(p_tenant_id), auth.uid(), true) on conflict do nothing;
  select * into v_patient from intake.patients
    where id = auth.uid() and tenant_id = penstock.require_tenant(p_tenant_id);
  return v_patient;
end
$$;
comment on function intake._patient_of(uuid, uuid) is
  'A patient that the caller may see. Null: the caller''s own, created when first needed.';

create or replace function intake.add_patient(p_name text, p_tenant_id uuid default null)
returns uuid language plpgsql security definer set search_path = intake, pg_temp as $$
declare
  v_tenant_id uuid := penstock.require_tenant(p_tenant_id);
  v_id uuid;
begin
  perform penstock.require_member(v_tenant_id);
  if coalesce(length(p_name), 0) not between 1 and 200 then
    perform penstock.refuse(422, 'invalid_name',
      format('name must have 1 to 200 characters (got %s)', coalesce(length(p_name), 0)),
      '{"field": "p_name"}');
  end if;
  insert into intake.patients (tenant_id, name) values (v_tenant_id, p_name) returning id into v_id;
  return v_id;
end
$$;
comment on function intake.add_patient(text, uuid) is 'Adds a patient to a tenant and returns the id.';

create or replace function intake._check_upload(p_mime_type text, p_estimated_pages integer)
returns void language plpgsql stable security definer set search_path = intake, pg_temp as $$
declare
  c_types constant text[] :=
    array['application/pdf', 'image/jpeg', 'image/png', 'image/tiff', 'image/webp'];
begin
  if penstock.get_setting('intake.refuse_uploads') = 'true' then
    perform penstock.refuse(503, 'uploads_refused', 'uploads are refused during maintenance',
      '{"retry_after_seconds": 60}', 'Try again later.');
  end if;
  if p_mime_type is null or p_mime_type <> all (c_types) then
    perform penstock.refuse(422, 'content_type_not_allowed', format('content_type must be one of %s (got %L)',
      array_to_string(c_types, ', '), left(p_mime_type, 100)), '{"field": "content_type"}');
  end if;
  if p_estimated_pages is null or p_estimated_pages not between 1 and 500 then
    perform penstock.refuse(422, 'invalid', format('estimated_pages must be between 1 and 500 (got %s)',
      coalesce(p_estimated_pages::text, 'null')), '{"field": "estimated_pages"}');
  end if;
end
$$;
comment on function intake._check_upload(text, integer) is
  'Raises an error for an upload that is not allowed.';

create or replace function intake.begin_shell_file(
  p_name text, p_mime_type text, p_bytes bigint, p_patient_id uuid default null,
  p_idempotency_key text default null, p_estimated_pages integer default 1, p_tenant_id uuid default null)
returns intake.shell_files language plpgsql security definer set search_path = intake, pg_temp as $$
declare
  v_patient intake.patients := intake._patient_of(p_patient_id, p_tenant_id);
  v_file intake.shell_files;
  v_id uuid := gen_random_uuid();
begin
  perform penstock.require_member(v_patient.tenant_id);
  if length(p_idempotency_key) not between 1 and 200 then
    perform penstock.refuse(422, 'invalid_key', format(
      'idempotency_key must have 1 to 200 characters (got %s)', length(p_idempotency_key)),
      '{"field": "idempotency_key"}');
  end if;
  if p_idempotency_key is not null then
    -- The second of two calls with one key waits here, and then sees the row of the first.
    perform pg_advisory_xact_lock(hashtextextended(
      'intake.key:' || v_patient.tenant_id || ':' || p_idempotency_key, 0));
    select * into v_file from intake.shell_files
      where tenant_id = v_patient.tenant_id and idempotency_key = p_idempotency_key;
    if found then
      return intake._same_file(v_file, p_name, p_mime_type, p_bytes, v_patient.id);
    end if;
  end if;
  perform intake._check_upload(p_mime_type, p_estimated_pages);
  if p_bytes = 0 then
    perform penstock.refuse(422, 'empty_file', 'the file is empty', '{"field": "bytes"}');
  end if;
  -- Accounts are locked in the order bytes, files, pages.
  select u.id into v_file.artifact_id from penstock.begin_upload(p_name, p_mime_type, p_bytes,
    jsonb_build_object('tenant_id', v_patient.tenant_id, 'idempotency_key', 'intake:' || v_id)) as u;
  if penstock.get_setting('intake.usage_tracking_enabled') = 'true' then
    -- Two holds: the file counts when it is uploaded, its pages when the scan has counted them.
    v_file.files_hold_id := penstock.reserve_quota(v_patient.tenant_id, '{"files": 1}',
      'shell_file_uploaded', 'intake.file:' || v_id, 86400);
    v_file.pages_hold_id := penstock.reserve_quota(v_patient.tenant_id,
      jsonb_build_object('pages', p_estimated_pages), 'page_extracted', 'intake.pages:' || v_id, 86400);
  end if;
  insert into intake.shell_files (tenant_id, id, patient_id, artifact_id, idempotency_key, name, mime_type,
    file_size_bytes, estimated_pages, files_hold_id, pages_hold_id, uploaded_by)
  values (v_patient.tenant_id, v_id, v_patient.id, v_file.artifact_id, p_idempotency_key, p_name, p_mime_type,
    p_bytes, p_estimated_pages, v_file.files_hold_id, v_file.pages_hold_id, auth.uid())
  returning * into v_file;
  return v_file;
end
$$;
comment on function intake.begin_shell_file(text, text, bigint, uuid, text, integer, uuid) is
  'Records a file that a client will upload, and reserves its bytes, one file and its estimated pages of the '
  'quota. The same key returns the same file.';

create or replace function intake._same_file(
  p_file intake.shell_files, p_name text, p_mime_type text, p_bytes bigint, p_patient_id uuid)
returns intake.shell_files language plpgsql stable security definer set search_path = intake, pg_temp as $$
begin
  if (p_file.name, p_file.mime_type, p_file.file_size_bytes, p_file.patient_id)
    is distinct from (p_name, p_mime_type, p_bytes, p_patient_id) then
    perform penstock.refuse(409, 'idempotency_key_reused',
      'this idempotency key was used for a different file',
      jsonb_build_object('shell_file_id', p_file.id), 'Use a new key for a new file.');
  end if;
  return p_file;
end
$$;
comment on function intake._same_file(intake.shell_files, text, text, bigint, uuid) is
  'The file of an idempotency key, or an error if the key was used for another file.';

create or replace function intake.finish_shell_file(p_artifact_id uuid, p_tasks jsonb, p_options jsonb)
returns intake.shell_files language plpgsql security definer set search_path = intake, pg_temp as $$
declare
  v_file intake.shell_files;
begin
  select * into v_file from intake.shell_files where artifact_id = p_artifact_id for update;
  if not found then
    perform penstock.refuse(404, 'unknown_file', 'there is no such file');
  end if;
  if v_file.status <> 'uploading' then
    return v_file;
  end if;
  perform penstock.keep_artifact(p_artifact_id, 'intake.shell_file:' || v_file.id);
  if v_file.files_hold_id is not null then
    perform penstock.commit_hold(v_file.files_hold_id);
  end if;
  update intake.shell_files set status = 'uploaded', uploaded_at = penstock.clock(),
    file_size_bytes = (select a.bytes from penstock.artifacts a where a.id = p_artifact_id)
  where tenant_id = v_file.tenant_id and id = v_file.id returning * into v_file;
  v_file := intake._start_file(v_file, p_tasks, p_options);
  perform intake._warn_limits(v_file.tenant_id);
  return v_file;
end
$$;
comment on function intake.finish_shell_file(uuid, jsonb, jsonb) is
  'Keeps an uploaded file, counts it and starts its job, in the transaction that marks it as stored. Calling '
  'it again changes nothing.';

create or replace function intake._start_file(p_file intake.shell_files, p_tasks jsonb, p_options jsonb)
returns intake.shell_files language plpgsql security definer set search_path = intake, pg_temp as $$
declare
  v_file intake.shell_files;
  v_job_id uuid;
  v_error jsonb;
begin
  begin
    v_job_id := penstock.start_job('intake', jsonb_build_object('shell_file_id', p_file.id), p_tasks,
      p_options || jsonb_build_object('tenant_id', p_file.tenant_id,
        'idempotency_key', 'shell_file:' || p_file.id));
  exception when sqlstate 'PT429' then
    -- The file is stored and stays so. start_waiting_files tries again, for example in the next month.
    v_error := jsonb_build_object('code', 'waits_for_quota', 'message', sqlerrm, 'is_final', false);
  end;
  update intake.shell_files set job_id = v_job_id, processing_error = v_error
  where tenant_id = p_file.tenant_id and id = p_file.id returning * into v_file;
  return v_file;
end
$$;
comment on function intake._start_file(intake.shell_files, jsonb, jsonb) is
  'Starts the job of a stored file. If the quota does not allow it now, the file waits.';

create or replace function intake.keeps_addresses()
returns boolean language sql stable security definer set search_path = intake, pg_temp as $$
  select penstock.get_setting('intake.keep_addresses') = 'true'
$$;
comment on function intake.keeps_addresses() is 'Whether it is stored where uploads come from.';

create or replace function intake.note_address(
  p_tenant_id uuid, p_id uuid, p_user_agent text, p_address text)
returns boolean language plpgsql security definer set search_path = intake, pg_temp as $$
begin
  if not intake.keeps_addresses() then
    return false;
  end if;
  insert into intake.upload_addresses (tenant_id, shell_file_id, user_agent, ip_address)
  select f.tenant_id, f.id, left(p_user_agent, 500),
    case when p_address ~ '^([0-9]{1,3}(\.[0-9]{1,3}){3}|[0-9a-f:]*:[0-9a-f:.]*)$' then p_address::inet end
  from intake.shell_files f
  where f.tenant_id = p_tenant_id and f.id = p_id and f.status = 'uploading' on conflict do nothing;
  return found;
exception when invalid_text_representation then
  return false;
end
$$;
comment on function intake.note_address(uuid, uuid, text, text) is
  'Stores where an upload came from, if the setting intake.keep_addresses asks for it. For the server, which '
  'sees the address: users could name another one.';

create or replace function intake.waiting_files(p_limit integer default 100)
returns table (tenant_id uuid, id uuid) language sql stable security definer
set search_path = intake, pg_temp as $$
  -- The oldest of each tenant first, tenants in random order: files that have to wait for the quota of one
  -- tenant, or of many, must not hold up the others.
  select w.tenant_id, w.id from (
    select f.tenant_id, f.id,
      row_number() over (partition by f.tenant_id order by f.created_at, f.id) as place
    from intake.shell_files f where f.status = 'uploaded' and f.job_id is null) as w
  order by w.place, random() limit p_limit
$$;
comment on function intake.waiting_files(integer) is
  'Stored files without a job: the oldest of each tenant first.';

create or replace function intake.start_waiting_file(
  p_tenant_id uuid, p_id uuid, p_tasks jsonb, p_options jsonb)
returns boolean language plpgsql security definer set search_path = intake, pg_temp as $$
declare
  v_file intake.shell_files;
begin
  select * into v_file from intake.shell_files
    where tenant_id = p_tenant_id and id = p_id and status = 'uploaded' and job_id is null
    for update skip locked;
  if not found then
    return false;
  end if;
  return (intake._start_file(v_file, p_tasks, p_options)).job_id is not null;
end
$$;
comment on function intake.start_waiting_file(uuid, uuid, jsonb, jsonb) is
  'Starts the job of a stored file that has none. Returns whether it has one now.';

create or replace function intake.get_file(p_tenant_id uuid, p_id uuid)
returns setof intake.shell_files language sql stable security definer set search_path = intake, pg_temp as $$
  select * from intake.shell_files where tenant_id = p_tenant_id and id = p_id
$$;
comment on function intake.get_file(uuid, uuid) is 'A file by its tenant and id, for the service.';
