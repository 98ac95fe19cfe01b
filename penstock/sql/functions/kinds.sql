-- Task kinds, job types, and lanes: the queues of tasks, one for each kind and provider.

create or replace function penstock.define_kinds(p_kinds jsonb)
returns void language plpgsql security definer set search_path = penstock, pg_temp as $$
declare
  v_unknown text;
begin
  if jsonb_typeof(p_kinds) is distinct from 'array' then
    perform _refuse(422, 'invalid_kinds', 'p_kinds must be an array of objects with a name');
  end if;
  select k into v_unknown from jsonb_array_elements(p_kinds) as e
  cross join jsonb_object_keys(case jsonb_typeof(e) when 'object' then e else '{}' end) as k
  -- Workers before 0.2 send a category, which nothing reads.
  where k not in ('name', 'category', 'max_attempts', 'backoff_seconds', 'backoff_cap_seconds',
    'retry_seconds', 'timeout_seconds') limit 1;
  if found then
    perform _refuse(422, 'invalid_kind', format('unknown kind field %L', left(v_unknown, 100)),
      jsonb_build_object('field', left(v_unknown, 100)));
  end if;
  insert into kinds as k (name, max_attempts, backoff_seconds, backoff_cap_seconds, retry_seconds,
    timeout_seconds)
  select x.name, coalesce(x.max_attempts, 3), coalesce(x.backoff_seconds, 2),
    coalesce(x.backoff_cap_seconds, 300), x.retry_seconds, x.timeout_seconds
  from jsonb_to_recordset(p_kinds) as x(name text, max_attempts smallint, backoff_seconds real,
    backoff_cap_seconds real, retry_seconds real, timeout_seconds real)
  order by x.name
  on conflict (name) do update set max_attempts = excluded.max_attempts,
    backoff_seconds = excluded.backoff_seconds, backoff_cap_seconds = excluded.backoff_cap_seconds,
    retry_seconds = excluded.retry_seconds, timeout_seconds = excluded.timeout_seconds
  -- Every worker calls this at startup, so unchanged kinds are not written again.
  where (k.max_attempts, k.backoff_seconds, k.backoff_cap_seconds, k.retry_seconds, k.timeout_seconds)
    is distinct from (excluded.max_attempts, excluded.backoff_seconds, excluded.backoff_cap_seconds,
      excluded.retry_seconds, excluded.timeout_seconds);
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
  'Creates or changes kinds: [{"name", "max_attempts", "backoff_seconds", '
  '"backoff_cap_seconds", "retry_seconds", "timeout_seconds"}].';

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
