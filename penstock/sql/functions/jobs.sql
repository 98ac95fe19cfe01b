-- Jobs. Status: queued -> running <-> paused -> completed | failed | canceled. A retry: failed -> running.
--
-- Lock order of all functions: leases, ready rows, parked rows by task id, phases by job and position, jobs
-- by id, shares. The transaction that ends the last task of a phase locks the job and reads all its phases:
-- of several such transactions, the last one to get the lock sees the others' changes and ends the job.

create or replace function penstock._guard_job()
returns trigger language plpgsql set search_path = penstock, pg_temp as $$
begin
  raise exception using errcode = 'PT409',
    message = format('a job cannot change from %s to %s', old.status, new.status),
    detail = jsonb_build_object('code', 'illegal_transition', 'from', old.status, 'to', new.status);
end
$$;
comment on function penstock._guard_job() is
  'Rejects a status change that the job state machine does not allow.';

create or replace trigger jobs_transitions before update of status on penstock.jobs
  for each row when (old.status is distinct from new.status and (old.status, new.status) not in (
    ('queued', 'running'), ('queued', 'paused'), ('queued', 'canceled'), ('queued', 'completed'),
      ('queued', 'failed'),
    ('running', 'paused'), ('running', 'completed'), ('running', 'failed'), ('running', 'canceled'),
    ('paused', 'running'), ('paused', 'queued'), ('paused', 'canceled'), ('paused', 'completed'),
      ('paused', 'failed'),
    ('failed', 'running')))
  execute function penstock._guard_job();

create or replace function penstock._audit_job()
returns trigger language plpgsql security definer set search_path = penstock, pg_temp as $$
begin
  perform _audit(new.tenant_id, 'job.' || new.status, new.id, 'job:' || new.id,
    jsonb_strip_nulls(jsonb_build_object('from', old.status, 'reason', new.status_reason)));
  if new.status in ('completed', 'failed')
    and exists (select from notification_targets t where t.tenant_id = new.tenant_id) then
    perform _notify_job(new);
  end if;
  return null;
end
$$;
comment on function penstock._audit_job() is
  'Writes an audit line for every status change of a job, and notifies subscribers of its end.';

create or replace trigger jobs_audit after update of status on penstock.jobs
  for each row when (old.status is distinct from new.status) execute function penstock._audit_job();

create or replace function penstock._check_job_arguments(p_type text, p_params jsonb, p_options jsonb)
returns void language plpgsql stable set search_path = penstock, pg_temp as $$
declare
  c_options constant text[] := array['tenant_id', 'idempotency_key', 'priority', 'run_at', 'delay_seconds',
    'on_failure', 'paused', 'digest', 'budget', 'on_limit', 'stop_after', 'result'];
  v_unknown text;
begin
  perform _check_name(p_type, 'type', 'invalid_type');
  if jsonb_typeof(p_params) <> 'object' then
    perform _refuse(422, 'invalid_params',
      format('params must be a JSON object (got %s)', jsonb_typeof(p_params)),
      '{"field": "params"}');
  end if;
  if jsonb_typeof(p_options) <> 'object' then
    perform _refuse(422, 'invalid_options',
      format('options must be a JSON object (got %s)', jsonb_typeof(p_options)),
      '{"field": "options"}');
  end if;
  perform _check_document(p_params, 'params', (_setting('max_input_bytes'))::integer);
  -- A template may name every task of a large job.
  perform _check_document(p_options -> 'result', 'options.result', 4 * 1024 * 1024);
  select k into v_unknown from jsonb_object_keys(p_options) as k where k <> all (c_options);
  if found then
    perform _refuse(422, 'unknown_field', format('unknown option %L', left(v_unknown, 100)),
      jsonb_build_object('field', 'options.' || left(v_unknown, 100)),
      'Known options: ' || array_to_string(c_options, ', ') || '.');
  end if;
end
$$;
comment on function penstock._check_job_arguments(text, jsonb, jsonb) is
  'Raises an error for a malformed type, params or options object of open_job.';

create or replace function penstock._job_from_options(p_options jsonb)
returns penstock.jobs language plpgsql stable set search_path = penstock, pg_temp as $$
declare
  v_job jobs;
  v_priority integer;
  v_is_paused boolean;
  v_delay double precision;
  v_field text;
begin
  begin
    v_field := 'tenant_id';
    v_job.tenant_id := nullif(p_options ->> v_field, '')::uuid;
    v_field := 'priority';
    v_priority := coalesce((p_options ->> v_field)::integer, 5);
    v_field := 'paused';
    v_is_paused := coalesce((p_options ->> v_field)::boolean, false);
    v_field := 'delay_seconds';
    v_delay := (p_options ->> v_field)::double precision;
    if v_delay not between 0 and 86400 * 3660::double precision then
      raise invalid_parameter_value using message = format('it must be between 0 and %s (ten years)',
        86400 * 3660);
    end if;
    v_field := 'budget';
    v_job.budget := (p_options ->> v_field)::numeric;
    if v_job.budget = 'NaN' or v_job.budget not between 0 and 1e12 then
      raise invalid_parameter_value using message = 'it must be between 0 and 10^12, in the base currency';
    end if;
    v_field := 'run_at';
    v_job.run_at := coalesce((p_options ->> v_field)::timestamptz, _now() + make_interval(secs => v_delay));
    perform _check_time(v_job.run_at, 'options.run_at');
  exception when data_exception then
    perform _refuse(422, 'invalid_options',
      format('invalid %s %L: %s', v_field, left(p_options ->> v_field, 100), left(sqlerrm, 200)),
      jsonb_build_object('field', 'options.' || v_field));
  end;
  if v_priority not between 0 and 10 then
    perform _refuse(422, 'invalid_priority',
      format('priority must be between 0 and 10 (got %s)', v_priority),
      '{"field": "options.priority"}', 'Lower runs first.');
  end if;
  v_job.priority := v_priority;
  v_job.idempotency_key := p_options ->> 'idempotency_key';
  if length(v_job.idempotency_key) not between 1 and 255 or not _is_clean(v_job.idempotency_key) then
    perform _refuse(422, 'invalid_key',
      format('idempotency_key must have 1 to 255 characters (got %s), none of them a control character',
        length(v_job.idempotency_key)),
      '{"field": "options.idempotency_key"}');
  end if;
  v_job.status := case when v_is_paused then 'paused' else 'queued' end;
  v_job.tenant_id := _caller_tenant(v_job.tenant_id);
  v_job.on_failure := p_options ->> 'on_failure';
  if v_job.on_failure not in ('continue', 'stop') then
    perform _refuse(422, 'invalid_options',
      format('on_failure must be continue or stop (got %L)', left(v_job.on_failure, 100)),
      '{"field": "options.on_failure"}');
  end if;
  v_job.on_limit := coalesce(p_options ->> 'on_limit', 'hold');
  if v_job.on_limit not in ('hold', 'refuse', 'pause') then
    perform _refuse(422, 'invalid_options',
      format('on_limit must be hold, refuse or pause (got %L)', left(v_job.on_limit, 100)),
      '{"field": "options.on_limit"}');
  end if;
  v_job.stop_after := p_options ->> 'stop_after';
  if v_job.stop_after !~ '^([1-9][0-9]{0,8}|(100|[1-9]?[0-9](\.[0-9]{1,3})?)%)$' then
    perform _refuse(422, 'invalid_options',
      format('stop_after must be a number of failures such as 20, or a percentage such as 5%% (got %L)',
        left(v_job.stop_after, 100)), '{"field": "options.stop_after"}');
  end if;
  v_job.result := nullif(p_options -> 'result', 'null');
  return v_job;
end
$$;
comment on function penstock._job_from_options(jsonb) is
  'Reads and checks the options of open_job, and resolves the tenant. on_failure stays null if it is not '
  'given.';

create or replace function penstock._open_job(p_type text, p_params jsonb, p_options jsonb)
returns table (job_id uuid, is_new boolean) language plpgsql set search_path = penstock, pg_temp as $$
declare
  v_params jsonb := coalesce(p_params, '{}');
  v_options jsonb := coalesce(p_options, '{}');
  v_digest bytea;
  v_job jobs;
  v_existing jobs;
  v_type job_types;
begin
  perform _check_job_arguments(p_type, v_params, v_options);
  v_job := _job_from_options(v_options);
  select * into v_type from job_types where name = p_type;
  -- The digest covers everything but the key itself; the caller's own digest option stands for the tasks.
  -- It leaves out the result, which older clients do not send.
  v_digest := sha256(convert_to(
    p_type || E'\n' || v_params::text || E'\n' || (v_options - array['idempotency_key', 'result'])::text,
    'utf8'));

  insert into jobs (tenant_id, type, params, status, priority, on_failure, idempotency_key, request_digest,
                    created_by, created_at, run_at, budget, on_limit, stop_after, result)
  values (v_job.tenant_id, p_type, v_params, v_job.status, v_job.priority,
          coalesce(v_job.on_failure, v_type.on_failure, 'continue'), v_job.idempotency_key, v_digest,
          _actor(), _now(), v_job.run_at, v_job.budget, v_job.on_limit, v_job.stop_after, v_job.result)
  on conflict (tenant_id, idempotency_key) where idempotency_key is not null do nothing
  returning * into v_existing;

  if v_existing.id is null then
    select * into v_existing from jobs
    where tenant_id = v_job.tenant_id and idempotency_key = v_job.idempotency_key;
    if v_existing.request_digest is distinct from v_digest then
      perform _refuse(409, 'idempotency_key_reused',
        'this idempotency key was used with different parameters',
        jsonb_build_object('job_id', v_existing.id), 'Use a new key for a new job.');
    end if;
    return query select v_existing.id, false;
    return;
  end if;

  v_job := v_existing;
  insert into phases (job_id, position, tenant_id, name, weight)
  select v_job.id, e.n, v_job.tenant_id, e.phase ->> 'name', (e.phase ->> 'weight')::real
  from jsonb_array_elements(v_type.phases) with ordinality as e(phase, n);
  insert into audit_log (at, tenant_id, actor, action, job_id, subject, details)
  values (v_job.created_at, v_job.tenant_id, v_job.created_by, 'job.' || v_job.status, v_job.id, 'job:'
    || v_job.id,
          jsonb_build_object('type', p_type));
  return query select v_job.id, true;
end
$$;
comment on function penstock._open_job(text, jsonb, jsonb) is
  'Creates a job without tasks, or finds the job with the same idempotency key. The caller counts a new job '
  'with _count_start when it has done everything else.';

create or replace function penstock.open_job(p_type text, p_params jsonb default '{}',
  p_options jsonb default '{}')
returns table (job_id uuid, is_new boolean)
language plpgsql security definer set search_path = penstock, pg_temp as $$
declare
  v_opened record;
begin
  select o.job_id, o.is_new into v_opened from _open_job(p_type, p_params, p_options) as o;
  if v_opened.is_new then
    perform _count_start(v_opened.job_id, 1, '[]', p_params);
  end if;
  return query select v_opened.job_id, v_opened.is_new;
end
$$;
comment on function penstock.open_job(text, jsonb, jsonb) is
  'Creates a job without tasks, or finds the job with the same idempotency key; add_tasks adds its tasks. '
  'Options: tenant_id, idempotency_key, priority (0 to 10, lower first), run_at or delay_seconds, '
  'on_failure (continue, stop), paused, digest, budget (in the base currency), on_limit (hold, refuse, '
  'pause), stop_after (a number of failures, or a percentage such as 5%), result (JSON in which {"$from": '
  'key} stands for the output of a task; default: the output of the last task).';

create or replace function penstock._start_job(
  p_type text, p_params jsonb, p_tasks jsonb, p_options jsonb, p_starters text[], p_is_raw boolean)
returns uuid language plpgsql set search_path = penstock, pg_temp as $$
declare
  v_options jsonb := coalesce(p_options, '{}');
  v_job_id uuid;
  v_is_new boolean;
begin
  if jsonb_typeof(p_tasks) is distinct from 'array' or jsonb_array_length(p_tasks) = 0 then
    perform _refuse(422, 'no_tasks', 'tasks must be an array with at least one task', '{"field": "tasks"}');
  end if;
  if v_options ? 'idempotency_key' and jsonb_typeof(v_options) = 'object' then
    v_options := v_options || jsonb_build_object('digest',
      encode(sha256(convert_to(p_tasks::text, 'utf8')), 'hex') || coalesce(v_options ->> 'digest', ''));
  end if;
  select o.job_id, o.is_new into v_job_id, v_is_new from _open_job(p_type, p_params, v_options) as o;
  if v_is_new then
    perform _add_tasks_of(v_job_id, p_tasks, p_starters, p_is_raw);
    perform _count_start(v_job_id, 1, p_tasks, p_params);
  end if;
  return v_job_id;
end
$$;
comment on function penstock._start_job(text, jsonb, jsonb, jsonb, text[], boolean) is
  'Creates a job with its tasks. p_starters and p_is_raw: see _apply_policy.';

create or replace function penstock.start_job(
  p_type text, p_params jsonb default '{}', p_tasks jsonb default '[]', p_options jsonb default '{}')
returns uuid language plpgsql security definer set search_path = penstock, pg_temp
  set plan_cache_mode = force_generic_plan set jit = off as $$
begin
  return _start_job(p_type, p_params, p_tasks, p_options, null, not _is_service());
end
$$;
comment on function penstock.start_job(text, jsonb, jsonb, jsonb) is
  'Creates a job with its tasks and their dependencies in one transaction and returns its id. The same '
  'idempotency key returns the same job. Users may only write tasks of kinds that allow it (raw_tasks).';

create or replace function penstock.start_drawn_job(
  p_type text, p_params jsonb, p_tasks jsonb, p_options jsonb default '{}', p_user_id uuid default null)
returns uuid language plpgsql security definer set search_path = penstock, pg_temp
  set plan_cache_mode = force_generic_plan set jit = off as $$
declare
  c_roles constant text[] := array['owner', 'admin', 'member'];
  v_tenant_id uuid := _tenant_option(p_options);
  v_user_id uuid := coalesce(p_user_id, case when not _is_service() then auth.uid() end);
  v_starters text[];
begin
  if v_user_id is null then
    return _start_job(p_type, p_params, p_tasks, p_options, null, false);
  end if;
  if p_user_id is not null and p_user_id is distinct from auth.uid() then
    perform _refuse(403, 'forbidden', 'p_user_id must be the user of the request');
  end if;
  v_tenant_id := _caller_tenant(v_tenant_id);
  v_starters := _starters(v_tenant_id, v_user_id);
  if not v_starters && c_roles then
    perform _refuse(403, 'forbidden', 'you do not have permission to do this in this tenant');
  elsif not _has_scope(v_user_id, _scope_for(c_roles)) then
    perform _refuse(403, 'missing_scope',
      format('the API key does not have the scope %s', _scope_for(c_roles)),
      jsonb_build_object('scope', _scope_for(c_roles)), 'Create a key with this scope.');
  end if;
  perform set_config('penstock.actor', 'user:' || v_user_id, true);
  return _start_job(p_type, p_params, p_tasks, p_options || jsonb_build_object('tenant_id', v_tenant_id),
    v_starters, false);
end
$$;
comment on function penstock.start_drawn_job(text, jsonb, jsonb, jsonb, uuid) is
  'Starts a job whose tasks trusted code drew from a job type, for the user p_user_id (null: for the '
  'service). Not granted to users: the server calls it, and so may a security definer function of an app. '
  'The role of the user in the tenant is checked, and the user is recorded as the creator.';

create or replace function penstock._tenant_option(p_options jsonb)
returns uuid language plpgsql stable set search_path = penstock, pg_temp as $$
begin
  return case jsonb_typeof(p_options) when 'object' then nullif(p_options ->> 'tenant_id', '')::uuid end;
exception when data_exception then
  perform _refuse(422, 'invalid_options',
    format('invalid tenant_id %L: it must be a UUID', left(p_options ->> 'tenant_id', 100)),
    '{"field": "options.tenant_id"}');
end
$$;
comment on function penstock._tenant_option(jsonb) is 'The tenant that options name, or null.';

create or replace function penstock.add_tasks(
  p_job_id uuid, p_tasks jsonb, p_task_id bigint default null, p_worker_id text default null,
    p_lease bigint default null)
returns bigint[] language plpgsql security definer set search_path = penstock, pg_temp
  set plan_cache_mode = force_generic_plan set jit = off as $$
declare
  v_ids bigint[];
begin
  v_ids := _append_tasks(p_job_id, p_tasks, p_task_id, p_worker_id, p_lease, null, not _is_service());
  if p_task_id is null then
    -- Not for a handler, whose transaction goes on: accounts are locked last.
    perform _count_start(p_job_id, 0, p_tasks, '{}');
  end if;
  return v_ids;
end
$$;
comment on function penstock.add_tasks(uuid, jsonb, bigint, text, bigint) is
  'Adds tasks to a job that has not ended and returns the ids of the new tasks, in order. Tasks whose '
  'idempotency key the job already has are skipped. A running task that adds tasks to its own job passes '
  'its id, worker and lease.';

create or replace function penstock._append_tasks(
  p_job_id uuid, p_tasks jsonb, p_task_id bigint, p_worker_id text, p_lease bigint, p_starters text[],
  p_is_raw boolean)
returns bigint[] language plpgsql set search_path = penstock, pg_temp as $$
declare
  v_job jobs := _visible_job(p_job_id, array['owner', 'admin', 'member']);
  v_parents bigint[];
begin
  if p_task_id is not null then
    if not exists (select from tasks where job_id = p_job_id and id = p_task_id) then
      perform _refuse(410, 'lease_lost', format('task %s does not belong to this job', p_task_id),
        jsonb_build_object('task_id', p_task_id));
    end if;
    perform _keep_lease(p_task_id, p_worker_id, p_lease);
  end if;
  -- The locks on all phases keep the job from ending before the insert. The locks on
  -- the parents of the new tasks keep a parent from ending without its new children.
  for v_try in 1 .. 50 loop
    begin
      v_parents := case when v_job.finished_at is null then _parents_of_new_tasks(p_job_id, p_tasks)
        else '{}' end;
      perform _lock_jobs_and_tasks(array[p_job_id], array_fill(p_job_id, array[cardinality(v_parents)]),
        v_parents);
      v_job := _visible_job(p_job_id, array['owner', 'admin', 'member']);
      exit when v_job.finished_at is not null or v_parents = _parents_of_new_tasks(p_job_id, p_tasks);
      raise exception using errcode = 'PS001', message = '0';
    exception when sqlstate 'PS001' then
      perform _wait_for_lease(sqlerrm::bigint);
      v_job := _visible_job(p_job_id, array['owner', 'admin', 'member']);
      v_parents := null;
    end;
  end loop;
  if v_parents is null then
    raise exception using errcode = 'serialization_failure',
      message = 'could not lock the parent tasks: try again';
  end if;
  if v_job.status in ('completed', 'failed', 'canceled') then
    perform _refuse(409, 'job_ended', format('the job has already ended (%s)', v_job.status),
      jsonb_build_object('status', v_job.status));
  end if;
  return _add_tasks_of(p_job_id, p_tasks, p_starters, p_is_raw);
end
$$;
comment on function penstock._append_tasks(uuid, jsonb, bigint, text, bigint, text[], boolean) is
  'Adds tasks to a job that has not ended: see add_tasks. p_starters and p_is_raw: see _apply_policy.';

create or replace function penstock._parents_of_new_tasks(p_job_id uuid, p_tasks jsonb)
returns bigint[] language plpgsql stable set search_path = penstock, pg_temp as $$
begin
  if not exists (select from tasks where job_id = p_job_id and key is not null) then
    return '{}';
  end if;
  -- The lateral subquery forces one index probe per key; a join might read all tasks of the job.
  return array(
    select t.id from (select distinct a #>> '{}' as key
      from jsonb_path_query(p_tasks, '$[*].after[*]') as a) as w
    cross join lateral (select x.id from tasks x where x.job_id = p_job_id and x.key = w.key offset 0) as t
    order by t.id);
end
$$;
comment on function penstock._parents_of_new_tasks(uuid, jsonb) is
  'The ids of existing tasks of a job that new tasks depend on.';

create or replace function penstock._finish_jobs(p_job_ids uuid[])
returns void language plpgsql set search_path = penstock, pg_temp as $$
declare
  v_job_id uuid;
  v_total bigint;
  v_ended bigint;
  v_failed bigint;
  v_any_ended boolean := false;
begin
  perform 1 from jobs where id = any (p_job_ids) order by id for no key update;
  -- One by one: PostgreSQL plans a join of a batch of small jobs as a nested loop over all their phases.
  for v_job_id in select distinct j from unnest(p_job_ids) as j order by j loop
    select sum(total), sum(succeeded + failed + canceled), sum(failed) into v_total, v_ended, v_failed
    from phases where job_id = v_job_id;
    continue when v_ended < v_total;
    update jobs set
      status = case when v_failed > 0 then 'failed' else 'completed' end,
      status_reason = case when v_failed > 0 then format('%s of %s tasks failed', v_failed, v_total) end,
      finished_at = _now()
    where id = v_job_id and status || '' in ('queued', 'running', 'paused');
    v_any_ended := v_any_ended or found;
  end loop;
  if v_any_ended then
    perform pg_notify('penstock', 'jobs');
  end if;
end
$$;
comment on function penstock._finish_jobs(uuid[]) is 'Ends those of these jobs whose tasks have all ended.';

create or replace function penstock._visible_job(p_job_id uuid, p_roles text[])
returns penstock.jobs language plpgsql stable set search_path = penstock, pg_temp as $$
declare
  v_job jobs;
begin
  select * into v_job from jobs where id = p_job_id;
  if not found or not (_is_service() or exists (
      select from members where tenant_id = v_job.tenant_id and user_id = auth.uid())) then
    perform _refuse(404, 'unknown_job', 'there is no such job');
  end if;
  perform _require_role(v_job.tenant_id, p_roles);
  return v_job;
end
$$;
comment on function penstock._visible_job(uuid, text[]) is
  'The job, if the caller has one of these roles; for another tenant''s job the error is the same as for a '
  'missing one.';

create or replace function penstock._locked_job(p_job_id uuid)
returns penstock.jobs language plpgsql set search_path = penstock, pg_temp as $$
declare
  v_job jobs := _visible_job(p_job_id, array['owner', 'admin', 'member']);
begin
  select * into v_job from jobs where id = p_job_id for no key update;
  if not found then  -- deleted while this call waited for the lock
    perform _refuse(404, 'unknown_job', 'there is no such job');
  end if;
  -- The caller may have lost the role while this call waited.
  perform _require_role(v_job.tenant_id, array['owner', 'admin', 'member']);
  return v_job;
end
$$;
comment on function penstock._locked_job(uuid) is
  'Locks the job and returns it, if the caller may change it.';

create or replace function penstock.pause_job(p_job_id uuid, p_reason text default null)
returns text language plpgsql security definer set search_path = penstock, pg_temp as $$
declare
  v_job jobs := _locked_job(p_job_id);
begin
  if v_job.status = 'paused' then
    return 'paused';
  end if;
  if v_job.status not in ('queued', 'running') then
    perform _refuse(409, 'job_ended', format('the job has already ended (%s)', v_job.status),
      jsonb_build_object('status', v_job.status));
  end if;
  update jobs set status = 'paused', status_reason = left(p_reason, 1000) where id = p_job_id;
  -- From now on a claim parks the tasks of this job that it meets; upkeep parks the others.
  insert into chores (job_id, tenant_id, verb, created_at) values (p_job_id, v_job.tenant_id, 'park', _now())
  on conflict (job_id) do update set verb = excluded.verb, created_at = excluded.created_at;
  perform pg_notify('penstock', 'chores');
  return 'paused';
end
$$;
comment on function penstock.pause_job(uuid, text) is
  'Pauses a job: no more of its tasks are claimed, and running tasks end normally. Takes effect at once, '
  'also for large jobs.';

create or replace function penstock.resume_job(p_job_id uuid)
returns text language plpgsql security definer set search_path = penstock, pg_temp as $$
declare
  v_job jobs := _locked_job(p_job_id);
  v_status text;
begin
  if v_job.status in ('queued', 'running') then
    return v_job.status;
  end if;
  if v_job.status <> 'paused' then
    perform _refuse(409, 'job_ended', format('the job has already ended (%s)', v_job.status),
      jsonb_build_object('status', v_job.status));
  end if;
  v_status := case when v_job.started_at is null then 'queued' else 'running' end;
  update jobs set status = v_status, status_reason = null,
    -- Resuming after failures accepts them: stop_after counts from here.
    forgiven = case when stop_after is null then 0
      else (select coalesce(sum(p.failed), 0) from phases p where p.job_id = p_job_id) end
  where id = p_job_id;
  if v_job.on_limit = 'pause' then
    -- A resume retries the tasks that the quota had no room for.
    update parked set reason = 'paused', waits_for = null, until = 'infinity' where ctid = any (array(
      select p.ctid from parked p join meters m on m.name = p.waits_for
      where p.tenant_id = v_job.tenant_id and p.job_id = p_job_id for update of p skip locked));
  end if;
  insert into chores (job_id, tenant_id, verb, created_at)
    values (p_job_id, v_job.tenant_id, 'unpark', _now())
  on conflict (job_id) do update set verb = excluded.verb, created_at = excluded.created_at;
  perform _do_chore(p_job_id, 1000);
  perform pg_notify('penstock', 'chores');
  return v_status;
end
$$;
comment on function penstock.resume_job(uuid) is
  'Resumes a paused job. The first 1,000 tasks are queued at once, the others by upkeep.';

create or replace function penstock.confirm_job(p_job_id uuid)
returns integer language plpgsql security definer set search_path = penstock, pg_temp as $$
declare
  v_job jobs := _visible_job(p_job_id, array['owner', 'admin', 'member']);
  v_tasks bigint[];
  v_rows ready[];
begin
  -- Lock order: parked tasks, then the job. Tasks parked in between
  -- show up once the job is locked, and the loop starts again.
  for v_try in 1 .. 50 loop
    begin
      v_tasks := array(
        select p.task_id from parked p where p.tenant_id = v_job.tenant_id and p.waits_for = 'confirm'
          and p.job_id = p_job_id
        order by p.task_id for update);
      v_job := _locked_job(p_job_id);
      exit when not exists (
        select from parked p where p.tenant_id = v_job.tenant_id and p.waits_for = 'confirm'
          and p.job_id = p_job_id and p.task_id <> all (v_tasks));
      raise exception using errcode = 'PS001';
    exception when sqlstate 'PS001' then
      v_tasks := null;
    end;
  end loop;
  if v_tasks is null then
    raise exception using errcode = 'serialization_failure',
      message = 'could not lock the tasks of the job: try again';
  end if;
  if v_job.finished_at is not null then
    perform _refuse(409, 'job_ended', format('the job has already ended (%s)', v_job.status),
      jsonb_build_object('status', v_job.status));
  end if;
  if v_tasks = '{}' then
    if v_job.confirmed_at is null then
      perform _refuse(409, 'nothing_to_confirm', 'no task of the job waits for confirmation', '{}',
        'A preview may still be running: try again when it has ended.');
    end if;
    return 0;
  end if;
  update jobs set confirmed_at = _now() where id = p_job_id;
  update parked set waits_for = null, reason = case when pending > 0 then 'after' else 'time' end,
    until = coalesce(v_job.run_at, '-infinity')
  where job_id = p_job_id and task_id = any (v_tasks);
  -- Tasks of a paused job are queued too: the claim parks them again.
  with gone as (
    delete from parked where job_id = p_job_id and task_id = any (v_tasks) and pending = 0
      and until <= _now() returning *
  )
  select array_agg(row(task_id, 0, job_id, tenant_id, lane_id, priority, phase, failures, deaths,
    has_parents, has_children)::ready order by task_id) into v_rows from gone;
  perform _audit(v_job.tenant_id, 'job.confirmed', p_job_id, 'job:' || p_job_id,
    jsonb_build_object('tasks', cardinality(v_tasks)));
  perform _queue(v_rows, false);
  return cardinality(v_tasks);
end
$$;
comment on function penstock.confirm_job(uuid) is
  'Releases the tasks that wait for confirmation and returns their number. A second call changes nothing.';

create or replace function penstock.cancel_job(p_job_id uuid, p_reason text default null)
returns text language plpgsql security definer set search_path = penstock, pg_temp as $$
declare
  v_job jobs := _locked_job(p_job_id);
begin
  if v_job.status = 'canceled' then
    return 'canceled';
  end if;
  if v_job.status in ('completed', 'failed') then
    perform _refuse(409, 'job_ended', format('the job has already ended (%s)', v_job.status),
      jsonb_build_object('status', v_job.status));
  end if;
  perform _stop_job(p_job_id, v_job.tenant_id, 'canceled',
    coalesce(left(p_reason, 1000), 'canceled by ' || _actor()));
  return 'canceled';
end
$$;
comment on function penstock.cancel_job(uuid, text) is
  'Cancels a job now: no more of its tasks are claimed, running handlers are told to stop, and their '
  'reports are rejected.';

create or replace function penstock._stop_job(p_job_id uuid, p_tenant_id uuid, p_status text, p_reason text)
returns void language plpgsql set search_path = penstock, pg_temp as $$
begin
  update jobs set status = p_status, status_reason = p_reason, finished_at = _now() where id = p_job_id;
  -- A locked lease is being completed or extended right now:
  -- its report is accepted, or its next heartbeat is told.
  update leases set is_canceled = true
  where ctid = any (array(select ctid from leases where job_id = p_job_id for update skip locked));
  -- A failed job can be retried, so its remaining tasks are parked. Those of a canceled job are deleted.
  insert into chores (job_id, tenant_id, verb, created_at)
  values (p_job_id, p_tenant_id, case p_status when 'failed' then 'park' else 'drop' end, _now())
  on conflict (job_id) do update set verb = excluded.verb, created_at = excluded.created_at;
  perform pg_notify('penstock', 'cancel');
  perform pg_notify('penstock', 'jobs');
end
$$;
comment on function penstock._stop_job(uuid, uuid, text, text) is
  'Ends a job as failed or canceled although some of its tasks have not ended.';

create or replace function penstock._unpark_tasks(p_job_id uuid, p_limit integer)
returns integer language plpgsql set search_path = penstock, pg_temp as $$
declare
  v_rows ready[];
begin
  with due as (
    select task_id from parked
    where job_id = p_job_id and pending = 0 and reason = 'paused' and until = 'infinity'
    limit p_limit for update skip locked
  ), gone as (
    delete from parked p using due where p.job_id = p_job_id and p.task_id = due.task_id returning p.*
  )
  select array_agg(row(task_id, 0, job_id, tenant_id, lane_id, priority, phase, failures, deaths,
    has_parents, has_children)::ready order by task_id) into v_rows from gone;
  perform _queue(v_rows, false);
  return coalesce(cardinality(v_rows), 0);
end
$$;
comment on function penstock._unpark_tasks(uuid, integer) is
  'Queues up to p_limit tasks that were parked when their job was paused, and returns their number.';

create or replace function penstock._remove_ready_tasks(p_chore penstock.chores, p_limit integer)
returns integer language plpgsql set search_path = penstock, pg_temp as $$
declare
  v_line record;
  v_left integer := p_limit;
  v_count integer;
begin
  for v_line in select * from _lanes_of_tenant(p_chore.tenant_id) loop
    exit when v_left <= 0;
    with due as (
      select ctid from ready
      where tenant_id = p_chore.tenant_id and lane_id = v_line.lane_id and priority = v_line.priority
        and job_id = p_chore.job_id
      order by task_id limit v_left for update skip locked
    ), gone as (
      delete from ready where ctid = any (array(select ctid from due)) returning *
    ), kept as (
      insert into parked (task_id, job_id, tenant_id, lane_id, priority, phase, failures, deaths,
        has_parents, has_children, until, reason)
      select task_id, job_id, tenant_id, lane_id, priority, phase, failures, deaths,
        has_parents, has_children, 'infinity', 'paused'
      from gone where p_chore.verb = 'park'
    )
    select count(*) into v_count from gone;
    v_left := v_left - v_count;
  end loop;
  return p_limit - v_left;
end
$$;
comment on function penstock._remove_ready_tasks(penstock.chores, integer) is
  'Takes up to p_limit tasks of a job out of the ready set, parks them (verb park) or drops them, and '
  'returns their number.';

create or replace function penstock._do_chore(p_job_id uuid, p_bite integer)
returns integer language plpgsql set search_path = penstock, pg_temp as $$
declare
  v_chore chores;
  v_left integer := p_bite;
  v_count integer;
begin
  select * into v_chore from chores where job_id = p_job_id for update skip locked;
  if not found then
    return 0;
  end if;
  if v_chore.verb = 'unpark' then
    v_left := v_left - _unpark_tasks(p_job_id, v_left);
  else
    if v_chore.verb = 'drop' then
      with due as (
        select task_id from parked where job_id = p_job_id limit v_left for update skip locked
      )
      delete from parked p using due where p.job_id = p_job_id and p.task_id = due.task_id;
      get diagnostics v_count = row_count;
      v_left := v_left - v_count;
    end if;
    v_left := v_left - _remove_ready_tasks(v_chore, v_left);
  end if;
  -- Parked rows that were locked are left to the next batch;
  -- ready rows that were locked are left to their claim.
  if v_left > 0 and not (v_chore.verb = 'unpark' and exists (
      select from parked where job_id = p_job_id and pending = 0 and reason = 'paused'
        and until = 'infinity')) then
    delete from chores where job_id = p_job_id;
  end if;
  return p_bite - v_left;
end
$$;
comment on function penstock._do_chore(uuid, integer) is
  'Moves the next batch of tasks after a pause, resume or cancel of their job, and returns their number.';

create or replace function penstock.retry_job(p_job_id uuid)
returns integer language plpgsql security definer set search_path = penstock, pg_temp as $$
declare
  v_job jobs := _visible_job(p_job_id, array['owner', 'admin', 'member']);
  v_count integer;
begin
  if v_job.status not in ('failed', 'running', 'paused') then
    perform _refuse(409, 'not_failed', format('a %s job has no failed tasks to retry', v_job.status),
      jsonb_build_object('status', v_job.status));
  end if;
  v_count := _replay(array(select id from dead_letters where job_id = p_job_id order by id));
  -- The caller may have lost the role while the call waited for locks.
  perform _require_role(v_job.tenant_id, array['owner', 'admin', 'member']);
  return v_count;
end
$$;
comment on function penstock.retry_job(uuid) is
  'Queues the failed tasks of a job again, and the tasks that were canceled because of them. Returns the '
  'number of failed tasks.';

create or replace function penstock._waiting_count(p_job_id uuid)
returns bigint language sql stable set search_path = penstock, pg_temp as $$
  select count(*) from (
    select from parked where job_id = p_job_id and wait_id is not null limit 100000) as x
$$;
comment on function penstock._waiting_count(uuid) is
  'How many tasks of a job wait for an answer, an event or a time, up to 100,000.';

create or replace function penstock.get_job(p_job_id uuid)
returns jsonb language plpgsql stable security definer set search_path = penstock, pg_temp as $$
declare
  v_job jobs := _visible_job(p_job_id, array['owner', 'admin', 'member', 'viewer']);
  v_now timestamptz := _now();
  v_list record;
  v_running record;
  v_fraction double precision;
  v_cost numeric;
begin
  select * into v_list from job_list where id = p_job_id;
  select count(*) as n,
    (array_agg(l.message order by l.expires_at desc) filter (where l.message is not null))[1] as message,
    coalesce(sum(coalesce(p.weight, p.total) / p.total * coalesce(l.fraction, 0)), 0) as part
  into v_running
  from leases l join phases p on p.job_id = l.job_id and p.position = l.phase
  where l.job_id = p_job_id and not l.is_canceled;
  -- The fraction counts running tasks by the progress that they report.
  select (sum(coalesce(p.weight,
    p.total) * (p.succeeded + p.failed + p.canceled) / p.total) + v_running.part)
    / nullif(sum(coalesce(p.weight, p.total)), 0)
  into v_fraction from phases p where p.job_id = p_job_id and p.total > 0;
  select a.used into v_cost from accounts a
  where a.tenant_id = v_job.tenant_id and a.job_id = v_job.id and a.meter = 'cost';
  return jsonb_build_object(
    'id', v_job.id, 'tenant_id', v_job.tenant_id, 'type', v_job.type,
    'status', v_job.status, 'status_reason', v_job.status_reason,
    'params', v_job.params, 'priority', v_job.priority,
    'created_at', v_job.created_at, 'created_by', v_job.created_by,
    'run_at', v_job.run_at, 'budget', v_job.budget, 'cost', coalesce(v_cost, 0),
    'started_at', v_job.started_at, 'finished_at', v_job.finished_at,
    'progress', jsonb_build_object(
      'percent', case when v_list.percent = 100 then 100
        else least(99,
          greatest(v_list.percent, floor((100 * coalesce(v_fraction, 0))::numeric)::integer)) end,
      'phase', v_list.phase,
      'done', v_list.succeeded + v_list.failed + v_list.canceled, 'total', v_list.total,
      'succeeded', v_list.succeeded, 'failed', v_list.failed, 'canceled', v_list.canceled,
      'running', v_running.n, 'waiting', _waiting_count(p_job_id),
      'docs_complete', v_list.docs_complete, 'docs_total', v_list.docs_total,
      'message', coalesce(v_running.message, v_job.status_reason),
      -- Extrapolates the speed so far; null until 1 % is done.
      'eta_seconds', case when v_job.status = 'running' and v_fraction between 0.01 and 0.999999 then
        round((extract(epoch from v_now - v_job.started_at) * (1 - v_fraction) / v_fraction)::numeric,
          1) end,
      'phases', (
        select jsonb_agg(jsonb_build_object('name', p.name, 'weight', p.weight, 'total', p.total,
          'succeeded', p.succeeded, 'failed', p.failed, 'canceled', p.canceled) order by p.position)
        from phases p where p.job_id = p_job_id)));
end
$$;
comment on function penstock.get_job(uuid) is
  'A job with its progress (percent, phase, done, total, message, eta_seconds, phases).';

create or replace function penstock._prune_history(p_cutoff timestamptz, p_limit integer)
returns void language plpgsql set search_path = penstock, pg_temp as $$
begin
  perform _prune_providers(p_limit);
  perform _empty_webhooks(p_limit);
  perform _prune_notifications(p_cutoff, p_limit);
  delete from holds where ctid = any (array(
    select ctid from holds where settled_at < p_cutoff order by settled_at limit p_limit
      for update skip locked));
  -- Ids grow with time, so only the lowest ids need to be examined.
  delete from provider_events where id = any (array(
    select e.id from (select id, at from provider_events order by id limit p_limit) as e
      where e.at < p_cutoff));
  delete from actions where id = any (array(
    select a.id from (select id, finished_at from actions order by id limit p_limit) as a
    where a.finished_at < p_cutoff));
  delete from usage_keys where ctid = any (array(
    select ctid from usage_keys where at < _now() - interval '1 day' order by at limit p_limit
      for update skip locked));
end
$$;
comment on function penstock._prune_history(timestamptz, integer) is
  'Deletes old holds, provider events, actions, notifications and keys of usage reports.';

create or replace function penstock._lock_for_pruning(
  p_job penstock.jobs, out has_ready_tasks boolean, out is_in_use boolean)
language plpgsql set search_path = penstock, pg_temp as $$
declare
  v_job_id uuid := p_job.id;
begin
  -- Other functions lock the job last. prune has locked it first, so it must
  -- not wait for any further lock: a job that another transaction uses, or
  -- that an unfinished pause or cancel still changes, is left to a later call.
  select _ready_task(p_job) is not null, exists (select from chores where job_id = v_job_id)
    or exists (select from leases where job_id = v_job_id)
    or (select count(*) from (select from phases where job_id = v_job_id for update skip locked) as p)
      < (select count(*) from phases where job_id = v_job_id)
    or (select count(*) from (select from bulks where job_id = v_job_id for update skip locked) as b)
      < (select count(*) from bulks where job_id = v_job_id)
  into has_ready_tasks, is_in_use;
  if has_ready_tasks and not is_in_use then
    -- A task was queued again after its job had ended, or is being claimed.
    insert into chores (job_id, tenant_id, verb, created_at)
    values (v_job_id, p_job.tenant_id, case p_job.status when 'failed' then 'park' else 'drop' end, _now());
  end if;
end
$$;
comment on function penstock._lock_for_pruning(penstock.jobs) is
  'Locks the phases and the bulk of an ended job without waiting, and says whether the job is still in use. '
  'Ready tasks of an ended job are left to upkeep.';

create or replace function penstock._delete_job_rows(p_job_id uuid, p_limit integer)
returns integer language plpgsql set search_path = penstock, pg_temp as $$
declare
  v_left integer := p_limit;
  v_count integer;
begin
  delete from results
    where ctid = any (array(select ctid from results where job_id = p_job_id limit v_left));
  get diagnostics v_count = row_count;
  v_left := v_left - v_count;
  delete from tasks where ctid = any (array(select ctid from tasks where job_id = p_job_id limit v_left));
  get diagnostics v_count = row_count;
  v_left := v_left - v_count;
  delete from bulk_changes
  where ctid = any (array(select ctid from bulk_changes where job_id = p_job_id limit v_left));
  get diagnostics v_count = row_count;
  v_left := v_left - v_count;
  delete from bulk_rows
    where ctid = any (array(select ctid from bulk_rows where job_id = p_job_id limit v_left));
  get diagnostics v_count = row_count;
  v_left := v_left - v_count;
  delete from edges where ctid = any (array(select ctid from edges where job_id = p_job_id limit v_left));
  get diagnostics v_count = row_count;
  v_left := v_left - v_count;
  delete from attempts
    where ctid = any (array(select ctid from attempts where job_id = p_job_id limit v_left));
  get diagnostics v_count = row_count;
  v_left := v_left - v_count;
  v_left := v_left - _delete_waits(p_job_id, v_left);
  if v_left > 0 then
    delete from phases where job_id = p_job_id;
    delete from accounts where job_id = p_job_id;
    delete from bulks where job_id = p_job_id;
    delete from jobs where id = p_job_id;
    v_left := v_left - 1;
  end if;
  return p_limit - v_left;
end
$$;
comment on function penstock._delete_job_rows(uuid, integer) is
  'Deletes up to p_limit rows of a job, the job itself last, and returns their number.';

create or replace function penstock._detach_kept_artifacts(p_job_id uuid, p_limit integer)
returns integer language plpgsql set search_path = penstock, pg_temp as $$
declare
  v_count integer;
begin
  update artifacts set job_id = null, task_id = null where id = any (array(
    select id from artifacts where job_id = p_job_id and status = 'stored'
      and subject is not null and (kept_until is null or kept_until >= _now())
    order by id limit p_limit for update skip locked));
  get diagnostics v_count = row_count;
  return v_count;
end
$$;
comment on function penstock._detach_kept_artifacts(uuid, integer) is
  'Separates the files that an app keeps from a job that is about to be deleted. Returns their number.';

create or replace function penstock.prune(p_limit integer default 10000)
returns integer language plpgsql security definer set search_path = penstock, pg_temp as $$
declare
  v_cutoff timestamptz := _now() - make_interval(days => (_setting('retention_days'))::integer);
  v_left integer := p_limit;
  v_job jobs;
  v_use record;
  v_count integer;
  v_files uuid[] := '{}';
  v_job_files uuid[];
begin
  -- Every worker calls prune about once a minute; one call at a time is enough.
  if not pg_try_advisory_xact_lock(hashtextextended('penstock.prune', 0)) then
    return 0;
  end if;
  perform _prune_history(v_cutoff, p_limit);
  for v_job in
    -- Only ended jobs have finished_at.
    select * from jobs where finished_at < v_cutoff order by finished_at limit p_limit for update skip locked
  loop
    v_use := _lock_for_pruning(v_job);
    continue when v_use.has_ready_tasks or v_use.is_in_use;
    -- Dead letters first: a half-deleted job must not be retried.
    delete from dead_letters where job_id = v_job.id;
    v_left := v_left - _detach_kept_artifacts(v_job.id, v_left);
    v_job_files := array(
      select id from artifacts where job_id = v_job.id and status <> 'deleted'
      and (subject is null or kept_until < _now())
      order by id limit v_left for update skip locked);
    v_files := v_files || v_job_files;
    v_left := v_left - cardinality(v_job_files);
    delete from parked where ctid = any (array(
      select ctid from parked where job_id = v_job.id limit v_left for update skip locked));
    get diagnostics v_count = row_count;
    v_left := v_left - v_count;
    exit when v_left <= 0;
    -- A transaction that moves a task leaves its old row visible until it
    -- commits. If this one statement sees no row of the job in any of these
    -- tables, no task of it is being moved and none will be queued again.
    continue when exists (select from parked where job_id = v_job.id)
      or exists (select from leases where job_id = v_job.id)
      or _ready_task(v_job) is not null
      or (select count(*) from artifacts where job_id = v_job.id and status <> 'deleted')
        > cardinality(v_job_files);
    v_left := v_left - _delete_job_rows(v_job.id, v_left);
    exit when v_left <= 0;
  end loop;
  -- Artifacts of all jobs in one call and last, because their accounts must be locked in one order.
  if cardinality(v_files) > 0 then
    perform _delete_artifacts(array(select a from artifacts a where a.id = any (v_files)));
  end if;
  return p_limit - v_left;
end
$$;
comment on function penstock.prune(integer) is
  'Deletes jobs that ended more than retention_days ago, at most p_limit rows, and returns the number of '
  'rows. The audit log stays. Workers call it about once a minute; a call does nothing while another one '
  'runs.';
