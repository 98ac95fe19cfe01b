-- Start: how a job begins, with its tasks (start_job, start_drawn_job) or without (open_job). The same
-- idempotency key returns the same job. Lock order: see claim.sql.

create or replace function penstock._check_job_arguments(p_type text, p_params jsonb, p_options jsonb)
returns void language plpgsql stable set search_path = penstock, pg_temp as $$
declare
  c_options constant text[] := array['tenant_id', 'idempotency_key', 'priority', 'run_at', 'delay_seconds',
    'on_failure', 'paused', 'digest', 'budget', 'on_limit', 'stop_after', 'result', 'tags', 'traceparent'];
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
  if p_options ? 'result' then
    -- A template may name every task of a large job.
    perform _check_document(p_options -> 'result', 'options.result', 4 * 1024 * 1024);
  end if;
  if p_options - c_options <> '{}' then
    select k into v_unknown from jsonb_object_keys(p_options - c_options) as k limit 1;
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
    if v_job.run_at is not null then
      perform _check_time(v_job.run_at, 'options.run_at');
    end if;
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
  v_job.status := case when v_is_paused then 'paused' else 'queued' end;
  v_job.idempotency_key := p_options ->> 'idempotency_key';
  v_job.on_failure := p_options ->> 'on_failure';
  v_job.on_limit := coalesce(p_options ->> 'on_limit', 'hold');
  v_job.stop_after := p_options ->> 'stop_after';
  v_job.result := nullif(p_options -> 'result', 'null');
  v_job.traceparent := p_options ->> 'traceparent';
  v_job.tags := _check_tags(p_options -> 'tags');
  perform _check_job_options(v_job);
  v_job.tenant_id := _caller_tenant(v_job.tenant_id);
  return v_job;
end
$$;
comment on function penstock._job_from_options(jsonb) is
  'Reads and checks the options of open_job, and resolves the tenant. on_failure stays null if it is not '
  'given.';

create or replace function penstock._check_job_options(p_job penstock.jobs)
returns void language plpgsql stable set search_path = penstock, pg_temp as $$
begin
  if length(p_job.idempotency_key) not between 1 and 255 or not _is_clean(p_job.idempotency_key) then
    perform _refuse(422, 'invalid_key',
      format('idempotency_key must have 1 to 255 characters (got %s), none of them a control character',
        length(p_job.idempotency_key)),
      '{"field": "options.idempotency_key"}');
  end if;
  if p_job.on_failure not in ('continue', 'stop') then
    perform _refuse(422, 'invalid_options',
      format('on_failure must be continue or stop (got %L)', left(p_job.on_failure, 100)),
      '{"field": "options.on_failure"}');
  end if;
  if p_job.on_limit not in ('hold', 'refuse', 'pause') then
    perform _refuse(422, 'invalid_options',
      format('on_limit must be hold, refuse or pause (got %L)', left(p_job.on_limit, 100)),
      '{"field": "options.on_limit"}');
  end if;
  if p_job.stop_after !~ '^([1-9][0-9]{0,8}|(100|[1-9]?[0-9](\.[0-9]{1,3})?)%)$' then
    perform _refuse(422, 'invalid_options',
      format('stop_after must be a number of failures such as 20, or a percentage such as 5%% (got %L)',
        left(p_job.stop_after, 100)), '{"field": "options.stop_after"}');
  end if;
  if p_job.traceparent !~ '^[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}$' then
    perform _refuse(422, 'invalid_options',
      format('traceparent must be a W3C trace context (got %L)', left(p_job.traceparent, 100)),
      '{"field": "options.traceparent"}');
  end if;
end
$$;
comment on function penstock._check_job_options(penstock.jobs) is
  'Rejects options of open_job that are well formed but not allowed.';

create or replace function penstock._create_job(
  p_type text, p_params jsonb, p_options jsonb, out job penstock.jobs, out is_new boolean)
language plpgsql set search_path = penstock, pg_temp as $$
declare
  v_params jsonb := coalesce(p_params, '{}');
  v_options jsonb := coalesce(p_options, '{}');
  v_actor text := _actor();
  v_digest bytea;
  v_job jobs;
  v_type job_types;
begin
  perform _check_job_arguments(p_type, v_params, v_options);
  v_job := _job_from_options(v_options);
  select * into v_type from job_types where name = p_type;
  -- The digest covers everything but the key itself; the caller's own digest option stands for the tasks.
  -- It leaves out the result, which older clients do not send, and the trace, which is new in each retry.
  v_digest := sha256(convert_to(
    p_type || E'\n' || v_params::text || E'\n'
      || (v_options - array['idempotency_key', 'result', 'traceparent'])::text, 'utf8'));

  insert into jobs (tenant_id, type, params, status, priority, on_failure, idempotency_key, request_digest,
                    created_by, user_id, created_at, run_at, budget, on_limit, stop_after, result,
                    traceparent, tags, title)
  values (v_job.tenant_id, p_type, v_params, v_job.status, v_job.priority,
          coalesce(v_job.on_failure, v_type.on_failure, 'continue'), v_job.idempotency_key, v_digest,
          v_actor, _user_of(v_actor), _now(), v_job.run_at, v_job.budget, v_job.on_limit, v_job.stop_after,
          v_job.result, v_job.traceparent, v_job.tags,
          (select _job_title(p.title, v_params) from job_params p where p.name = p_type))
  on conflict (tenant_id, idempotency_key) where idempotency_key is not null do nothing
  returning * into job;
  is_new := found;
  if not is_new then
    select * into job from jobs
    where tenant_id = v_job.tenant_id and idempotency_key = v_job.idempotency_key;
    if job.request_digest is distinct from v_digest then
      perform _refuse(409, 'idempotency_key_reused',
        'this idempotency key was used with different parameters',
        jsonb_build_object('job_id', job.id), 'Use a new key for a new job.');
    end if;
    return;
  end if;

  if v_params <> '{}' or job.tags <> '{}' or job.title is not null then
    perform _index_job(job);
  end if;
  if v_type.phases <> '[]' then
    insert into phases (job_id, position, tenant_id, name, weight)
    select job.id, e.n, job.tenant_id, e.phase ->> 'name', (e.phase ->> 'weight')::real
    from jsonb_array_elements(v_type.phases) with ordinality as e(phase, n);
  end if;
  insert into audit_log (at, tenant_id, actor, action, job_id, subject, details)
  values (job.created_at, job.tenant_id, v_actor, 'job.' || job.status, job.id, 'job:' || job.id,
    jsonb_build_object('type', p_type));
end
$$;
comment on function penstock._create_job(text, jsonb, jsonb) is
  'Creates a job without tasks, or finds the job with the same idempotency key. The caller counts a new job '
  'with _count_start when it has done everything else.';

create or replace function penstock.open_job(p_type text, p_params jsonb default '{}',
  p_options jsonb default '{}')
returns table (job_id uuid, is_new boolean)
language plpgsql security definer set search_path = penstock, pg_temp
  set enable_seqscan = off set jit = off as $$
declare
  v_opened record := _create_job(p_type, p_params, p_options);
begin
  if v_opened.is_new then
    perform _count_start(v_opened.job, 1, '[]', p_params);
  end if;
  job_id := (v_opened.job).id;
  is_new := v_opened.is_new;
  return next;
end
$$;
comment on function penstock.open_job(text, jsonb, jsonb) is
  'Creates a job without tasks, or finds the job with the same idempotency key; add_tasks adds its tasks. '
  'Options: tenant_id, idempotency_key, priority (0 to 10, lower first), run_at or delay_seconds, '
  'on_failure (continue, stop), paused, digest, budget (in the base currency), on_limit (hold, refuse, '
  'pause), stop_after (a number of failures, or a percentage such as 5%), result (JSON in which {"$from": '
  'key} stands for the output of a task; default: the output of the last task), tags (words to find the job '
  'by), traceparent (the W3C trace context of the caller).';

create or replace function penstock._start_job(
  p_type text, p_params jsonb, p_tasks jsonb, p_options jsonb, p_starters text[], p_is_raw boolean)
returns uuid language plpgsql set search_path = penstock, pg_temp as $$
declare
  v_options jsonb := coalesce(p_options, '{}');
  v_opened record;
begin
  if jsonb_typeof(p_tasks) is distinct from 'array' or jsonb_array_length(p_tasks) = 0 then
    perform _refuse(422, 'no_tasks', 'tasks must be an array with at least one task', '{"field": "tasks"}');
  end if;
  if v_options ? 'idempotency_key' and jsonb_typeof(v_options) = 'object' then
    v_options := v_options || jsonb_build_object('digest',
      encode(sha256(convert_to(p_tasks::text, 'utf8')), 'hex') || coalesce(v_options ->> 'digest', ''));
  end if;
  v_opened := _create_job(p_type, p_params, v_options);
  if v_opened.is_new then
    perform _add_tasks(v_opened.job, p_tasks, p_starters, p_is_raw);
    perform _count_start(v_opened.job, 1, p_tasks, p_params);
  end if;
  return (v_opened.job).id;
end
$$;
comment on function penstock._start_job(text, jsonb, jsonb, jsonb, text[], boolean) is
  'Creates a job with its tasks. p_starters and p_is_raw: see _apply_policy.';

create or replace function penstock.start_job(
  p_type text, p_params jsonb default '{}', p_tasks jsonb default '[]', p_options jsonb default '{}')
returns uuid language plpgsql security definer set search_path = penstock, pg_temp
  -- The stages inherit these settings: a plan made when there were few jobs still serves many.
  set enable_seqscan = off set plan_cache_mode = force_generic_plan set jit = off as $$
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
  set enable_seqscan = off set plan_cache_mode = force_generic_plan set jit = off as $$
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
