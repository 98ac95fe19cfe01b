-- Schedules: recurring jobs. Python computes the next run time, because it has the time
-- zones and cron rules; these functions guarantee that each run time starts at most one job.

create or replace function penstock._check_schedule(
  p_name text, p_cron text, p_job_type text, p_next_run_at timestamptz, p_options jsonb)
returns void language plpgsql stable set search_path = penstock, pg_temp as $$
declare
  v_unknown text;
  v_limit integer := (_setting('max_input_bytes'))::integer;
begin
  select k into v_unknown from jsonb_object_keys(p_options) as k
  where k not in ('tenant_id', 'timezone', 'params', 'tasks', 'options', 'missed', 'is_enabled');
  if found then
    perform _refuse(422, 'unknown_field', format('unknown schedule option %L', left(v_unknown, 100)),
      jsonb_build_object('field', v_unknown));
  end if;
  perform _check_name(p_name, 'name', 'invalid_schedule');
  perform _check_name(p_job_type, 'job_type', 'invalid_schedule');
  -- Python parses the expression; this rejects texts that cannot be one.
  if p_cron !~ '^[0-9A-Za-z*/,#?-]+( +[0-9A-Za-z*/,#?-]+){4,5}$' then
    perform _refuse(422, 'invalid_cron',
      format('%s is not a cron expression', left(to_json(p_cron)::text, 100)), '{"field": "cron"}',
      'Write minute, hour, day, month and weekday, such as 0 9 * * 1-5.');
  end if;
  -- The view reads a file for each time zone, so the default skips it.
  if p_options ->> 'timezone' <> 'UTC'
     and not exists (select from pg_timezone_names where name = p_options ->> 'timezone') then
    perform _refuse(422, 'invalid_timezone',
      format('unknown time zone %L', left(p_options ->> 'timezone', 100)),
      '{"field": "timezone"}', 'Use an IANA name such as Europe/Berlin.');
  end if;
  perform _check_time(p_next_run_at, 'next_run_at');
  -- Workers and operators read the schedules of all tenants, so one tenant must not break them.
  if jsonb_typeof(p_options -> 'params') <> 'object' or jsonb_typeof(p_options -> 'options') <> 'object' then
    perform _refuse(422, 'invalid_schedule', 'params and options must be JSON objects');
  end if;
  perform _check_document(p_options -> 'params', 'params', v_limit);
  perform _check_document(p_options -> 'tasks', 'tasks', v_limit);
  perform _check_document(p_options -> 'options', 'options', 10000);
end
$$;
comment on function penstock._check_schedule(text, text, text, timestamptz, jsonb) is
  'Rejects a schedule with an invalid name, cron expression, time zone or document.';

create or replace function penstock._check_schedule_tasks(
  p_tenant_id uuid, p_job_type text, p_options jsonb, p_old_tasks jsonb)
returns void language plpgsql stable set search_path = penstock, pg_temp as $$
declare
  v_specs task_spec[];
begin
  if p_options -> 'tasks' is not null and jsonb_typeof(p_options -> 'tasks') <> 'null' then
    v_specs := _parse_tasks(p_options -> 'tasks');
    perform _check_tasks(v_specs);
    -- Tasks that are stored already were checked: a user may turn the schedule of an app off and on.
    if not _is_service() and p_old_tasks is distinct from p_options -> 'tasks' then
      perform _apply_policy(null, v_specs, _starters(p_tenant_id, auth.uid()), true);
    end if;
  elsif coalesce((p_options ->> 'is_enabled')::boolean, true) then
    perform _check_schedulable(p_job_type), _check_params(p_job_type, p_options -> 'params');
  end if;
end
$$;
comment on function penstock._check_schedule_tasks(uuid, text, jsonb, jsonb) is
  'Rejects a schedule whose tasks the caller may not start, or whose job type has none.';

create or replace function penstock._check_schedule_count(p_tenant_id uuid)
returns void language plpgsql set search_path = penstock, pg_temp as $$
declare
  c_max_schedules constant integer := 1000;
begin
  -- The lock makes concurrent calls count one after the other.
  perform from tenants where id = p_tenant_id for no key update;
  perform _require_role(p_tenant_id, array['owner', 'admin', 'member']);
  if (select count(*) from schedules where tenant_id = p_tenant_id) >= c_max_schedules then
    perform _refuse(409, 'too_many_schedules',
      format('the tenant already has %s schedules, which is the limit', c_max_schedules),
      jsonb_build_object('limit', c_max_schedules), 'Remove schedules that are no longer needed.');
  end if;
end
$$;
comment on function penstock._check_schedule_count(uuid) is
  'Rejects a schedule above the maximum number of a tenant.';

create or replace function penstock.set_schedule(
  p_name text, p_cron text, p_job_type text, p_next_run_at timestamptz, p_options jsonb default '{}')
returns uuid language plpgsql security definer set search_path = penstock, pg_temp as $$
-- Lock order: see claim.sql.
declare
  v_tenant_id uuid;
  v_id uuid;
  v_old schedules;
begin
  v_tenant_id := _caller_tenant((p_options ->> 'tenant_id')::uuid);
  perform _check_schedule(p_name, p_cron, p_job_type, p_next_run_at, p_options);
  select * into v_old from schedules where tenant_id = v_tenant_id and name = p_name;
  perform _check_schedule_tasks(v_tenant_id, p_job_type, p_options, v_old.tasks);
  if not _is_service() and v_old.id is null then
    perform _check_schedule_count(v_tenant_id);
  end if;
  insert into schedules as s (tenant_id, name, cron, timezone, job_type, params, tasks, options, missed,
    is_enabled, next_run_at, created_at, starters)
  values (v_tenant_id, p_name, p_cron, coalesce(p_options ->> 'timezone', 'UTC'), p_job_type,
    coalesce(p_options -> 'params', '{}'),
    nullif(p_options -> 'tasks', 'null'), coalesce(p_options -> 'options', '{}'),
      coalesce(p_options ->> 'missed', 'once'),
    coalesce((p_options ->> 'is_enabled')::boolean, true), p_next_run_at, _now(),
    case when not _is_service() then _starters(v_tenant_id, auth.uid()) end)
  on conflict (tenant_id, name) do update set
    cron = excluded.cron, timezone = excluded.timezone, job_type = excluded.job_type,
      params = excluded.params,
    tasks = excluded.tasks, options = excluded.options, missed = excluded.missed,
      is_enabled = excluded.is_enabled,
    starters = case when (s.job_type, s.params, s.tasks, s.options)
      is not distinct from (excluded.job_type, excluded.params, excluded.tasks, excluded.options)
      then s.starters else excluded.starters end,
    -- An unchanged cron keeps its next run, so that declaring a schedule again
    -- never skips one. A schedule that was disabled starts from the new time.
    next_run_at = case when s.is_enabled and (s.cron, s.timezone) = (excluded.cron, excluded.timezone)
      then s.next_run_at else excluded.next_run_at end,
    failures = 0, last_error = null, retry_at = null
  returning id into v_id;
  perform _audit(v_tenant_id, 'schedule.set', null, 'schedule:' || v_id,
    jsonb_build_object('name', p_name, 'cron', p_cron));
  return v_id;
exception when check_violation or not_null_violation or data_exception then
  perform _refuse(422, 'invalid_schedule', 'invalid schedule: ' || sqlerrm);
end
$$;
comment on function penstock.set_schedule(text, text, text, timestamptz, jsonb) is
  'Creates or changes a schedule. Options: tenant_id, timezone, params, tasks (null: the tasks of the job '
  'type), options, missed (skip, once, all), is_enabled.';

create or replace function penstock._check_schedulable(p_job_type text)
returns void language plpgsql stable set search_path = penstock, pg_temp as $$
begin
  if exists (select from job_types where name = p_job_type and bulk is not null) then
    perform _refuse(422, 'invalid_schedule',
      format('%L is a bulk type: a schedule has no rows for it', left(p_job_type, 200)),
      '{"field": "job_type"}');
  elsif not exists (select from job_types where name = p_job_type)
    and not exists (select from kinds where name = p_job_type) then
    perform _refuse(422, 'unknown_job_type', format('unknown job type %L', left(p_job_type, 200)),
      '{"field": "job_type"}', 'Check its spelling, start a worker of the app that has it, or give the '
      'schedule its tasks.');
  end if;
end
$$;
comment on function penstock._check_schedulable(text) is
  'Raises an error unless an app has declared this job type or kind, so that a worker can draw its tasks.';

create or replace function penstock._check_params(p_job_type text, p_params jsonb)
returns void language plpgsql stable set search_path = penstock, pg_temp as $$
declare
  v_declared job_params;
  v_params jsonb := coalesce(nullif(p_params, 'null'), '{}');
  v_name text;
begin
  select * into v_declared from job_params where name = p_job_type;
  if not found then
    return;
  end if;
  select r into v_name from unnest(v_declared.required) as r where not v_params ? r limit 1;
  if v_name is not null then
    perform _refuse(422, 'bad_input', format('the param %L of %L is missing', v_name, p_job_type),
      jsonb_build_object('field', v_name));
  end if;
  select k into v_name from jsonb_object_keys(v_params) as k where not k = any (v_declared.allowed) limit 1;
  if v_name is not null then
    perform _refuse(422, 'bad_input', format('%L has no param %L', p_job_type, left(v_name, 100)),
      jsonb_build_object('field', left(v_name, 100)),
      format('Params: %s.', array_to_string(v_declared.allowed, ', ')));
  end if;
  select e.key into v_name from jsonb_each(v_params) as e
  where v_declared.refused -> e.key ? jsonb_typeof(e.value) limit 1;
  if v_name is not null then
    perform _refuse(422, 'bad_input', format('the param %L of %L must not be of the type %s', v_name,
      p_job_type, jsonb_typeof(v_params -> v_name)), jsonb_build_object('field', v_name));
  end if;
end
$$;
comment on function penstock._check_params(text, jsonb) is
  'Raises an error unless these params fit the job type, as far as the app has declared its params.';

create or replace function penstock.fail_schedule(
  p_schedule_id uuid, p_due_at timestamptz, p_error text, p_is_temporary boolean default false)
returns boolean language plpgsql security definer set search_path = penstock, pg_temp as $$
declare
  -- After 1, 2, 4, ... 32 and 60 minutes: about two hours.
  c_most constant integer := 8;
  v_now timestamptz := _now();
  v_schedule schedules;
begin
  -- Of several workers that fail at the same time, one counts.
  update schedules s set
    failures = case when p_is_temporary then least(s.failures + 1, c_most - 1) else s.failures + 1 end,
    last_error = _error_text(coalesce(p_error, 'unknown error'), 1000),
    retry_at = v_now + make_interval(secs => least(3600, 60 * power(2, least(s.failures, 10)))),
    is_enabled = p_is_temporary or s.failures + 1 < c_most
  where s.id = p_schedule_id and s.next_run_at = p_due_at and s.is_enabled
    and (s.retry_at is null or s.retry_at <= v_now)
  returning * into v_schedule;
  if not found or v_schedule.is_enabled then
    return false;
  end if;
  perform _audit(v_schedule.tenant_id, 'schedule.disabled', null, 'schedule:' || p_schedule_id,
    jsonb_build_object('name', v_schedule.name, 'failures', v_schedule.failures,
      'error', v_schedule.last_error));
  return true;
end
$$;
comment on function penstock.fail_schedule(uuid, timestamptz, text, boolean) is
  'Reports that a due schedule could not start its job. It is tried again after 1, 2, 4, … minutes, and '
  'turned off after 8 failures in a row: then this returns true. A temporary failure, such as a used-up '
  'quota, never turns it off. set_schedule starts over.';

create or replace function penstock.remove_schedule(p_schedule_id uuid)
returns boolean language plpgsql security definer set search_path = penstock, pg_temp as $$
declare
  v_tenant_id uuid;
begin
  -- Locked first: the caller's role may change while the call waits.
  select tenant_id into v_tenant_id from schedules
    where id = p_schedule_id and _is_member(tenant_id) for update;
  if not found then
    perform _refuse(404, 'unknown_schedule', 'there is no such schedule');
  end if;
  perform _require_role(v_tenant_id, array['owner', 'admin', 'member']);
  delete from schedules where id = p_schedule_id;
  perform _audit(v_tenant_id, 'schedule.removed', null, 'schedule:' || p_schedule_id);
  return true;
end
$$;
comment on function penstock.remove_schedule(uuid) is 'Removes a schedule.';

create or replace function penstock.due_schedules()
returns table (id uuid, tenant_id uuid, name text, cron text, timezone text, job_type text, params jsonb,
  has_tasks boolean,
  missed text, due_at timestamptz, now_at timestamptz)
language sql security definer set search_path = penstock, pg_temp set enable_seqscan = off
  set jit = off as $$
  -- Tenants take turns, so a tenant whose many schedules
  -- fail to start does not block the schedules of others.
  select s.id, s.tenant_id, s.name, s.cron, s.timezone, s.job_type, s.params, s.tasks is not null, s.missed,
    s.next_run_at, _now()
  from (
    select d.*, row_number() over (partition by d.tenant_id order by d.next_run_at) as turn
    from schedules d where d.is_enabled and d.next_run_at <= (select _now())
      and d.tenant_id <> all (_suspended_tenants())
      and (d.retry_at is null or d.retry_at <= (select _now()))
  ) as s order by s.turn, s.next_run_at limit 100
$$;
comment on function penstock.due_schedules() is
  'Up to 100 schedules that are due, with the database''s time.';

create or replace function penstock.fire_schedule(
  p_schedule_id uuid, p_due_at timestamptz, p_next_run_at timestamptz, p_starts timestamptz[],
    p_tasks jsonb default null)
returns uuid[] language plpgsql security definer set search_path = penstock, pg_temp as $$
declare
  v_schedule schedules;
  v_start timestamptz;
  v_jobs uuid[] := '{}';
begin
  select * into v_schedule from schedules where id = p_schedule_id and is_enabled and next_run_at = p_due_at
    for update skip locked;
  if not found then
    return v_jobs;
  end if;
  perform _check_time(p_next_run_at, 'next_run_at');
  if p_next_run_at <= p_due_at then
    perform _refuse(422, 'invalid_schedule',
      format('p_next_run_at must be later than %s (got %s)', p_due_at, p_next_run_at));
  end if;
  foreach v_start in array coalesce(p_starts, '{}') loop
    v_jobs := v_jobs
      || _start_job(v_schedule.job_type, v_schedule.params || jsonb_build_object('scheduled_for', v_start),
      coalesce(v_schedule.tasks, p_tasks), v_schedule.options
        || jsonb_build_object('tenant_id', v_schedule.tenant_id,
        'idempotency_key', format('schedule:%s:%s', p_schedule_id, extract(epoch from v_start))),
      v_schedule.starters, false);
  end loop;
  update schedules set next_run_at = p_next_run_at, last_run_at = _now(), failures = 0, last_error = null,
    retry_at = null,
    last_job_id = coalesce(v_jobs[cardinality(v_jobs)], last_job_id)
  where id = p_schedule_id;
  return v_jobs;
end
$$;
comment on function penstock.fire_schedule(uuid, timestamptz, timestamptz, timestamptz[], jsonb) is
  'Starts the jobs of a due schedule and moves it to its next run. A second call for the same run starts '
  'nothing.';
