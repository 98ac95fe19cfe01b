-- Task kinds, job types, and lanes: the queues of tasks, one for each kind and provider.

create or replace function penstock.define_kinds(p_kinds jsonb)
returns void language plpgsql security definer set search_path = penstock, pg_temp as $$
declare
  c_fields constant text[] := array['name', 'category', 'max_attempts', 'backoff_seconds',
    'backoff_cap_seconds', 'retry_seconds', 'timeout_seconds', 'providers', 'units', 'units_per_kb',
    'max_timeout_seconds', 'attempts_limit', 'min_priority', 'starters', 'raw_tasks'];
  v_unknown text;
begin
  if jsonb_typeof(p_kinds) is distinct from 'array' then
    perform _refuse(422, 'invalid_kinds', 'p_kinds must be an array of objects with a name');
  end if;
  select k into v_unknown from jsonb_array_elements(p_kinds) as e
  cross join jsonb_object_keys(case jsonb_typeof(e) when 'object' then e else '{}' end) as k
  where k <> all (c_fields) limit 1;
  if found then
    perform _refuse(422, 'invalid_kind', format('unknown kind field %L', left(v_unknown, 100)),
      jsonb_build_object('field', left(v_unknown, 100)));
  end if;
  insert into kinds as k (name, category, max_attempts, backoff_seconds, backoff_cap_seconds, retry_seconds,
    timeout_seconds)
  select x.name, coalesce(x.category, 'general'), coalesce(x.max_attempts, 3),
    coalesce(x.backoff_seconds, 2), coalesce(x.backoff_cap_seconds, 300), x.retry_seconds, x.timeout_seconds
  from jsonb_to_recordset(p_kinds) as x(name text, category text, max_attempts smallint,
    backoff_seconds real, backoff_cap_seconds real, retry_seconds real, timeout_seconds real)
  order by x.name
  on conflict (name) do update set category = excluded.category, max_attempts = excluded.max_attempts,
    backoff_seconds = excluded.backoff_seconds, backoff_cap_seconds = excluded.backoff_cap_seconds,
    retry_seconds = excluded.retry_seconds, timeout_seconds = excluded.timeout_seconds
  -- Every worker calls this at startup, so unchanged kinds are not written again.
  where (k.category, k.max_attempts, k.backoff_seconds, k.backoff_cap_seconds, k.retry_seconds,
      k.timeout_seconds)
    is distinct from (excluded.category, excluded.max_attempts, excluded.backoff_seconds,
      excluded.backoff_cap_seconds, excluded.retry_seconds, excluded.timeout_seconds);
  perform _define_policies(p_kinds);
  insert into lanes (kind)
  select name from kinds where name in (select e ->> 'name' from jsonb_array_elements(p_kinds) as e)
    and not exists (select from lanes where lanes.kind = kinds.name and lanes.provider is null
      and not lanes.is_gated)
  order by name
  on conflict (tenant_id, kind, provider, is_gated) do nothing;
exception when data_exception or integrity_constraint_violation or cardinality_violation then
  perform _refuse(422, 'invalid_kind', 'invalid kind: ' || sqlerrm);
end
$$;
comment on function penstock.define_kinds(jsonb) is
  'Creates or changes kinds: [{"name", "category", "max_attempts", "backoff_seconds", '
  '"backoff_cap_seconds", "retry_seconds", "timeout_seconds"}], and their policy: "providers", "units", '
  '"units_per_kb", "max_timeout_seconds", "attempts_limit", "min_priority", "starters", "raw_tasks". A '
  'field of the policy that is missing stays as it is; null removes it.';

create or replace function penstock._define_policies(p_kinds jsonb)
returns void language plpgsql set search_path = penstock, pg_temp as $$
declare
  v_kind jsonb;
  v_name text;
  v_new kinds;
begin
  for v_kind in
    select e from jsonb_array_elements(p_kinds) as e
    -- A worker of an earlier version sends no policy, and must not remove it.
    where e ?| array['providers', 'units', 'units_per_kb', 'max_timeout_seconds', 'attempts_limit',
      'min_priority', 'starters', 'raw_tasks'] order by e ->> 'name'
  loop
    select p into v_name
    from jsonb_array_elements_text(coalesce(nullif(v_kind -> 'providers', 'null'), '[]')) as p
    where p !~ '^[a-z0-9][a-z0-9_.-]{0,99}/[A-Za-z0-9][A-Za-z0-9_.:/-]{0,98}$' limit 1;
    if found then
      raise invalid_parameter_value using
        message = format('a provider''s name must be like openai/gpt-4o (got %L)', left(v_name, 200));
    end if;
    perform _check_units(coalesce(nullif(v_kind -> 'units', 'null'), '{}'), 'units');
    perform _check_units(coalesce(nullif(v_kind -> 'units_per_kb', 'null'), '{}'), 'units_per_kb');
    select * into v_new from kinds where name = v_kind ->> 'name';
    v_new := jsonb_populate_record(v_new, v_kind);
    update kinds as k set providers = v_new.providers, units = nullif(v_new.units, 'null'),
      units_per_kb = nullif(v_new.units_per_kb, 'null'), max_timeout_seconds = v_new.max_timeout_seconds,
      attempts_limit = v_new.attempts_limit, min_priority = v_new.min_priority, starters = v_new.starters,
      raw_tasks = v_new.raw_tasks
    where k.name = v_new.name
      and (k.providers, k.units, k.units_per_kb, k.max_timeout_seconds, k.attempts_limit, k.min_priority,
        k.starters, k.raw_tasks)
      is distinct from (v_new.providers, nullif(v_new.units, 'null'), nullif(v_new.units_per_kb, 'null'),
        v_new.max_timeout_seconds, v_new.attempts_limit, v_new.min_priority, v_new.starters,
        v_new.raw_tasks);
  end loop;
end
$$;
comment on function penstock._define_policies(jsonb) is
  'Stores the policies of kinds: what their tasks may use and ask for, and who may start them.';

create or replace function penstock._starters(p_tenant_id uuid, p_user_id uuid)
returns text[] language sql stable set search_path = penstock, pg_temp as $$
  select array(
    select m.role from members m where m.tenant_id = p_tenant_id and m.user_id = p_user_id
    union all select 'key' from api_keys k where k.id = p_user_id)
$$;
comment on function penstock._starters(uuid, uuid) is
  'What a user counts as for kinds.starters: the role in the tenant, and key for an API key.';

create or replace function penstock._least_units(p_kind penstock.kinds, p_units jsonb, p_input jsonb)
returns jsonb language sql immutable set search_path = penstock, pg_temp as $$
  with least as (
    select m as meter, coalesce((p_kind.units ->> m)::numeric, 0)
      + ceil(coalesce((p_kind.units_per_kb ->> m)::numeric, 0)
        * coalesce(octet_length(p_input::text), 0) / 1000) as amount
    from jsonb_object_keys(coalesce(p_kind.units, '{}') || coalesce(p_kind.units_per_kb, '{}')) as m
    union all
    -- A call to a provider is at least one request, whatever the task says.
    select 'requests', 1 where cardinality(p_kind.providers) > 0
      and not coalesce(p_kind.units || p_kind.units_per_kb, p_kind.units, p_kind.units_per_kb, '{}')
        ? 'requests'
  ), raised as (
    select coalesce(p_units, '{}') || coalesce(jsonb_object_agg(l.meter,
      greatest(l.amount, coalesce((p_units ->> l.meter)::numeric, 0))), '{}') as units from least l
  )
  -- The tokens of a call count first, so they must not be less than their parts.
  select case when r.units ? 'tokens' then r.units || jsonb_build_object('tokens',
      greatest((r.units ->> 'tokens')::numeric, coalesce((r.units ->> 'input_tokens')::numeric, 0)
        + coalesce((r.units ->> 'output_tokens')::numeric, 0))) else r.units end
  from raised r
$$;
comment on function penstock._least_units(penstock.kinds, jsonb, jsonb) is
  'The units of a task, raised to the least that its kind counts.';

create or replace function penstock._apply_policy(
  p_job penstock.jobs, p_specs penstock.task_spec[], p_starters text[], p_is_raw boolean)
returns penstock.task_spec[] language plpgsql stable set search_path = penstock, pg_temp set jit = off as $$
begin
  if not p_is_raw and not exists (select from kinds where has_policy) then
    return p_specs;
  end if;
  perform _check_policy(p_job, p_specs, p_starters, p_is_raw);
  if not exists (select from unnest(p_specs) as s join kinds k on k.name = s.kind
      where num_nonnulls(k.providers, k.units, k.units_per_kb) > 0) then
    return p_specs;
  end if;
  return array(
    select case when num_nonnulls(k.providers, k.units, k.units_per_kb) = 0 then s.spec
      else jsonb_populate_record(s.spec, jsonb_build_object('units', c.units)
        || case when cardinality(k.providers) > 0 and (s.spec).provider is null then
          case when coalesce((s.spec).route, 'null') <> 'null' then
              jsonb_build_object('route', (s.spec).route || case when (s.spec).route ? 'providers' then '{}'
                else jsonb_build_object('providers', to_jsonb(k.providers)) end)
            when cardinality(k.providers) = 1 then jsonb_build_object('provider', k.providers[1])
            else jsonb_build_object('route',
              jsonb_build_object('providers', to_jsonb(k.providers), 'prefer', 'listed')) end
          else '{}' end) end
    from (select u as spec, row_number() over () as n from unnest(p_specs) as u) as s
    join kinds k on k.name = (s.spec).kind
    cross join lateral (select _least_units(k, case jsonb_typeof((s.spec).units) when 'object'
      then (s.spec).units end, (s.spec).input) as units) as c
    order by s.n);
exception when data_exception then
  -- An amount that is no number: the check of units names the task.
  return p_specs;
end
$$;
comment on function penstock._apply_policy(penstock.jobs, penstock.task_spec[], text[], boolean) is
  'Checks new tasks against the policies of their kinds, and gives them the provider and the least units '
  'that their kind declares. p_starters: what the user who starts them counts as (null: the service). '
  'p_is_raw: the user wrote the tasks; an app or a handler did not.';

create or replace function penstock._check_policy(
  p_job penstock.jobs, p_specs penstock.task_spec[], p_starters text[], p_is_raw boolean)
returns void language plpgsql stable set search_path = penstock, pg_temp as $$
declare
  v_is_raw_allowed boolean := coalesce((_setting('raw_tasks'))::boolean, false);
  v_found record;
begin
  -- {field, code, message} of the first task that its kind does not allow
  select x.n - 1 as index, x.name, x.providers, x.error into v_found from (
    select t.n, k.name, k.providers, case
      when p_is_raw and not coalesce(k.raw_tasks, v_is_raw_allowed) then
        array['kind', 'raw_tasks', format('users cannot write tasks of kind %L themselves', k.name)]
      when p_starters is not null and not k.starters && p_starters then
        array['kind', 'not_a_starter', format('only %s may start tasks of kind %L',
          coalesce(nullif(array_to_string(array_remove(k.starters, 'service'), ', '), ''), 'the service'),
          k.name)]
      when t.provider <> all (k.providers)
          or t.route <> 'null' and k.providers = '{}'
          or not coalesce(t.route -> 'providers', '[]') <@ to_jsonb(k.providers) then
        array['provider', 'provider_not_allowed', format('tasks of kind %L cannot use %s', k.name,
          coalesce(quote_literal(left(t.provider, 200)), 'the providers of this route'))]
      when t.timeout_seconds > b.seconds then
        array['timeout_seconds', 'invalid_timeout',
          format('timeout_seconds must be at most %s for tasks of kind %L (got %s)', b.seconds, k.name,
            t.timeout_seconds)]
      when t.max_attempts > b.attempts then
        array['max_attempts', 'invalid_attempts',
          format('max_attempts must be at most %s for tasks of kind %L (got %s)', b.attempts, k.name,
            t.max_attempts)]
      when coalesce(t.priority, p_job.priority) < k.min_priority then
        array['priority', 'invalid_priority',
          format('priority must be between %s and 10 for tasks of kind %L (got %s)', k.min_priority, k.name,
            coalesce(t.priority, p_job.priority))]
      end as error
    from unnest(p_specs) with ordinality as t(kind, key, input, after, after_failure, phase, provider,
      units, priority, run_at, max_attempts, timeout_seconds, idempotency_key, route, confirm, n)
    join kinds k on k.name = t.kind
    cross join lateral (select coalesce(k.max_timeout_seconds, case when p_is_raw then k.timeout_seconds end)
      as seconds, coalesce(k.attempts_limit, case when p_is_raw then k.max_attempts end) as attempts) as b
  ) as x where x.error is not null limit 1;
  if found then
    perform _refuse(
      case when v_found.error[2] in ('raw_tasks', 'not_a_starter') then 403 else 422 end, v_found.error[2],
      format('task %s: %s', v_found.index, v_found.error[3]),
      jsonb_build_object('field', format('tasks[%s].%s', v_found.index, v_found.error[1]),
        'kind', v_found.name),
      case v_found.error[2] when 'raw_tasks' then 'Start a job type of the app without tasks, or ask the '
          'operator: define_kind(…, {"raw_tasks": true}) or the setting raw_tasks.'
        when 'provider_not_allowed' then coalesce(
          'Its providers: ' || nullif(array_to_string(v_found.providers, ', '), '') || '.',
          'It uses no provider.') end);
  end if;
end
$$;
comment on function penstock._check_policy(penstock.jobs, penstock.task_spec[], text[], boolean) is
  'Raises an error for the first task that its kind does not allow, with its index and field.';

create or replace function penstock.define_kind(p_name text, p_options jsonb default '{}')
returns void language sql security definer set search_path = penstock, pg_temp as $$
  select define_kinds(jsonb_build_array(p_options || jsonb_build_object('name', p_name)))
$$;
comment on function penstock.define_kind(text, jsonb) is 'Creates or changes one kind.';

create or replace function penstock.define_job_type(
  p_name text, p_phases jsonb default '[]', p_on_failure text default 'continue')
returns void language plpgsql security definer set search_path = penstock, pg_temp as $$
begin
  if jsonb_typeof(p_phases) is distinct from 'array' or exists (
    select from jsonb_array_elements(p_phases) as e
    where jsonb_typeof(e) <> 'object' or coalesce(e ->> 'name', '') = ''
      or jsonb_typeof(e -> 'weight') is distinct from 'number'
        or (e ->> 'weight')::numeric not between 0 and 1000000
  ) then
    perform _refuse(422, 'invalid_phases',
      'phases must be an array of {"name", "weight"} with weights of 0 to 1000000');
  end if;
  if (select count(distinct e ->> 'name') <> count(*) from jsonb_array_elements(p_phases) as e) then
    perform _refuse(422, 'invalid_phases', 'phase names must be unique');
  end if;
  insert into job_types as t (name, phases, on_failure) values (p_name, p_phases, p_on_failure)
  on conflict (name) do update set phases = excluded.phases, on_failure = excluded.on_failure
  where (t.phases, t.on_failure) is distinct from (excluded.phases, excluded.on_failure);
exception when integrity_constraint_violation then
  perform _refuse(422, 'invalid_job_type', 'invalid job type: ' || sqlerrm);
end
$$;
comment on function penstock.define_job_type(text, jsonb, text) is
  'Creates or changes a job type: its phases [{"name", "weight"}] in order, and whether its jobs continue '
  'or stop when a task fails (p_on_failure: continue, stop).';

create or replace function penstock.define_params(p_params jsonb)
returns void language plpgsql security definer set search_path = penstock, pg_temp as $$
begin
  insert into job_params as j (name, required, allowed, refused, title)
  select e.key, array(select jsonb_array_elements_text(coalesce(e.value -> 'required', '[]'))),
    case when jsonb_typeof(e.value -> 'allowed') = 'array'
      then array(select jsonb_array_elements_text(e.value -> 'allowed')) end,
    coalesce(e.value -> 'refused', '{}'), e.value ->> 'title'
  from jsonb_each(p_params) as e order by e.key
  on conflict (name) do update set required = excluded.required, allowed = excluded.allowed,
    refused = excluded.refused, title = excluded.title
  where (j.required, j.allowed, j.refused, j.title)
    is distinct from (excluded.required, excluded.allowed, excluded.refused, excluded.title);
exception when integrity_constraint_violation or data_exception then
  perform _refuse(422, 'invalid_params', 'invalid declaration of params: ' || left(sqlerrm, 200));
end
$$;
comment on function penstock.define_params(jsonb) is
  'Declares the params of job types and kinds, by name: {"report": {"required": [], "allowed": [] or null, '
  '"refused": {param: [JSON types]}, "title": "{param}"}}: the template of the title. '
  'Schedules are checked against them when they are set.';

create or replace function penstock._lane(p_kind text, p_provider text, p_tenant_id uuid, p_is_gated boolean)
returns integer language plpgsql set search_path = penstock, pg_temp as $$
declare
  v_id integer;
  -- The lane belongs to the tenant only if the tenant has its own limits for the provider.
  v_endpoint endpoints := case when p_provider is not null then _endpoint(p_provider, p_tenant_id) end;
  v_tenant_id uuid := v_endpoint.tenant_id;
begin
  loop
    select id into v_id from lanes where kind = p_kind and provider is not distinct from p_provider
      and tenant_id is not distinct from v_tenant_id and is_gated = p_is_gated;
    if v_id is not null then
      return v_id;
    end if;
    insert into lanes (kind, provider, tenant_id, endpoint_id, is_gated)
      values (p_kind, p_provider, v_tenant_id, v_endpoint.id, p_is_gated)
    on conflict (tenant_id, kind, provider, is_gated) do nothing;
  end loop;
end
$$;
comment on function penstock._lane(text, text, uuid, boolean) is
  'The id of the lane of a kind and a provider endpoint; creates the lane if it is missing.';
