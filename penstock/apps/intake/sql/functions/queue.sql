-- The queue by the names that older clients know, over the platform's tasks. Their job is a task here. Its id
-- is a uuid that holds the number of the task, so that no table has to translate it.

create or replace function intake._job_types()
returns text[] language sql immutable set search_path = pg_catalog, pg_temp as $$
  select array['fast_queue_security', 'fast_queue_ocr', 'fast_queue_spatial', 'ai_queue_pass1',
    'ai_queue_pass2', 'ai_queue_pass3', 'audit_cleanup', 'notification_delivery', 'report_generation',
    'backup_operation', 'system_maintenance', 'consent_verification']
$$;
comment on function intake._job_types() is 'The twelve job types.';

create or replace function intake._job_id(p_task_id bigint)
returns uuid language sql immutable parallel safe set search_path = pg_catalog, pg_temp as $$
  select ('00000000-0000-8000-8000-' || lpad(to_hex(p_task_id), 12, '0'))::uuid
$$;
comment on function intake._job_id(bigint) is 'The uuid of a task.';

create or replace function intake._task_id(p_job_id uuid)
returns bigint language sql immutable parallel safe set search_path = pg_catalog, pg_temp as $$
  select case when p_job_id::text like '00000000-0000-8000-8000-%'
    then ('x' || lpad(right(p_job_id::text, 12), 16, '0'))::bit(64)::bigint end
$$;
comment on function intake._task_id(uuid) is 'The task of a uuid; null if the uuid is of no task.';

create or replace function intake._tenant_of_payload(p_payload jsonb)
returns uuid language plpgsql stable security definer set search_path = intake, pg_temp as $$
declare
  v_tenant_id uuid;
begin
  select coalesce((p_payload ->> 'tenant_id')::uuid,
    (select tenant_id from intake.shell_files where id = (p_payload ->> 'shell_file_id')::uuid),
    (select min(tenant_id::text)::uuid from intake.patients where id = (p_payload ->> 'patient_id')::uuid
      having count(*) = 1)) into v_tenant_id;
  if v_tenant_id is null then
    perform penstock.refuse(422, 'invalid_payload',
      'job_payload must name a tenant_id, a shell_file_id or a patient_id', '{"field": "job_payload"}');
  end if;
  return v_tenant_id;
exception when invalid_text_representation then
  perform penstock.refuse(422, 'invalid_payload',
    'tenant_id, shell_file_id and patient_id in job_payload must be UUIDs', '{"field": "job_payload"}');
end
$$;
comment on function intake._tenant_of_payload(jsonb) is
  'The tenant that a payload names, directly or by its file.';

create or replace function intake.enqueue_job_v3(
  job_type text, job_name text, job_payload jsonb, job_category text default 'standard',
  priority integer default 5, scheduled_at timestamptz default null)
returns uuid language plpgsql security definer set search_path = intake, pg_temp as $$
#variable_conflict use_variable
declare
  v_job_id uuid;
  v_task_id bigint;
  v_tokens text := coalesce(job_payload ->> 'estimated_tokens', '1000');
  v_tenant_id uuid;
  v_delay double precision := 0;
begin
  if job_type is null or job_type <> all (intake._job_types()) then
    perform penstock.refuse(422, 'invalid_job_type', format('job_type must be one of %s (got %L)',
      array_to_string(intake._job_types(), ', '), left(job_type, 100)), '{"field": "job_type"}');
  end if;
  if jsonb_typeof(job_payload) is distinct from 'object' or job_payload = '{}' then
    perform penstock.refuse(422, 'invalid_payload', 'job_payload must be an object that is not empty',
      '{"field": "job_payload"}');
  end if;
  if priority is null or priority not between 0 and 10 or v_tokens !~ '^[0-9]{1,9}$' then
    perform penstock.refuse(422, 'invalid', format(
      'priority must be between 0 and 10 and estimated_tokens a whole number (got %s and %L)',
      coalesce(priority::text, 'null'), left(v_tokens, 50)));
  end if;
  v_tenant_id := intake._tenant_of_payload(job_payload);
  if job_type like 'ai\_queue\_%' then
    v_delay := penstock.backpressure_delay(
      penstock.get_setting('intake.queue_provider') #>> '{}', v_tenant_id,
      (penstock.get_setting('intake.backpressure_delay_seconds'))::double precision);
    -- With jitter, so that delayed jobs do not start at one moment.
    v_delay := v_delay + random() * least(v_delay * 0.5, 30);
  end if;
  v_job_id := penstock.start_job(job_type,
    jsonb_build_object('job_name', job_name, 'job_category', job_category),
    jsonb_build_array(jsonb_build_object('kind', job_type, 'key', 'job',
      'input', job_payload || jsonb_build_object('estimated_tokens', v_tokens::bigint))),
    -- Older clients expect the highest priority first; Penstock runs the lowest first.
    jsonb_strip_nulls(jsonb_build_object('tenant_id', v_tenant_id, 'priority', 10 - priority,
      'run_at', case when v_delay > 0
        then coalesce(scheduled_at, penstock.clock()) + make_interval(secs => v_delay)
        else scheduled_at end)));
  select t.id into v_task_id from penstock.tasks t where t.job_id = v_job_id;
  return intake._job_id(v_task_id);
end
$$;
comment on function intake.enqueue_job_v3(text, text, jsonb, text, integer, timestamptz) is
  'Adds a job to the queue and returns its id. The highest priority runs first, as the seed has it.';

create or replace function intake.claim_next_job_v3(worker_id text, job_types text[] default null)
returns table (job_id uuid, job_type text, job_payload jsonb, retry_count integer)
language sql security definer set search_path = intake, pg_temp as $$
  select intake._job_id(c.id), c.kind, c.input - 'after', c.attempt - 1
  from penstock.claim_tasks(worker_id, 1, coalesce(job_types, intake._job_types()),
    (penstock.get_setting('intake.timeout_seconds'))::integer) as c
$$;
comment on function intake.claim_next_job_v3(text, text[]) is
  'Claims the next job for a worker; without job_types one of the twelve types. No row: nothing to do.';

create or replace function intake.update_job_heartbeat(p_job_id uuid, p_worker_id text)
returns boolean language plpgsql security definer set search_path = intake, pg_temp as $$
begin
  -- The whole timeout counts from each heartbeat.
  return intake._task_id(p_job_id) is not null and p_worker_id is not null and not exists (
    select from penstock.heartbeat_tasks(p_worker_id,
      jsonb_build_array(jsonb_build_object('id', intake._task_id(p_job_id))),
      (penstock.get_setting('intake.timeout_seconds'))::integer));
end
$$;
comment on function intake.update_job_heartbeat(uuid, text) is
  'Extends the worker''s right to a job. False if the worker has lost it.';

create or replace function intake.reschedule_job(
  p_job_id uuid, p_delay_seconds integer, p_reason text, p_add_jitter boolean default true,
  p_worker_id text default null)
returns boolean language plpgsql security definer set search_path = intake, pg_temp as $$
declare
  v_lease record;
begin
  if p_delay_seconds is null or p_delay_seconds not between 0 and 31536000 then
    perform penstock.refuse(422, 'invalid', format(
      'p_delay_seconds must be between 0 and 31536000 (got %s)', coalesce(p_delay_seconds::text, 'null')),
      '{"field": "p_delay_seconds"}');
  end if;
  -- Without a worker, the present holder is meant. A late worker should pass its own id.
  select l.lease, l.worker_id into v_lease from penstock.leases l
    where l.task_id = intake._task_id(p_job_id) and l.worker_id = coalesce(p_worker_id, l.worker_id);
  if not found then
    return false;
  end if;
  return penstock.reschedule_task(intake._task_id(p_job_id),
    p_delay_seconds + case when p_add_jitter then random() * least(p_delay_seconds * 0.5, 30) else 0 end,
    coalesce(nullif(p_reason, ''), 'rescheduled'), v_lease.lease, v_lease.worker_id);
exception when sqlstate 'PT410' then
  return false;
end
$$;
comment on function intake.reschedule_job(uuid, integer, text, boolean, text) is
  'Puts a running job back for some seconds, with jitter of half of them or 30 seconds at most. False if it '
  'does not run.';

create or replace function intake.complete_job(
  p_job_id uuid, p_worker_id text, p_job_result jsonb default null)
returns boolean language plpgsql security definer set search_path = intake, pg_temp as $$
begin
  return coalesce(penstock.complete_task(intake._task_id(p_job_id), p_worker_id, p_job_result), false);
exception when sqlstate 'PT410' or sqlstate 'PT404' or sqlstate 'PT422' then
  return false;
end
$$;
comment on function intake.complete_job(uuid, text, jsonb) is
  'Ends a job with its result. False, and nothing changes, if the worker has lost it.';

create or replace function intake.fail_job(
  p_job_id uuid, p_worker_id text, p_error jsonb default null, p_permanent boolean default false)
returns boolean language plpgsql security definer set search_path = intake, pg_temp as $$
begin
  return coalesce(penstock.fail_task(intake._task_id(p_job_id), p_worker_id,
    left(coalesce(p_error ->> 'message', p_error #>> '{}', 'failed'), 1000), p_permanent => p_permanent,
    p_error_code => coalesce(nullif(left(p_error ->> 'code', 100), ''), 'handler_error'),
    p_error_details => case when jsonb_typeof(p_error) = 'object' then p_error end), false);
exception when sqlstate 'PT410' or sqlstate 'PT404' then
  return false;
end
$$;
comment on function intake.fail_job(uuid, text, jsonb, boolean) is
  'Fails this attempt of a job, which is retried unless p_permanent. False if the worker has lost it.';
