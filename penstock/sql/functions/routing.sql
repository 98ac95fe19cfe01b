-- Routing: which provider does a task that asks for features, or for one of several providers, instead of
-- naming one. A new task waits in the lane of the provider that its route prefers. A claim that finds no
-- more tasks there moves waiting tasks whose provider is full, closed or failing to the next provider that
-- has room: as many as it can claim, so the others still go to the preferred one when that has room again.

create or replace function penstock._has_features(p_features text[], p_route jsonb, p_units jsonb)
returns boolean language sql immutable set search_path = penstock, pg_temp as $$
  select p_features @> array(select jsonb_array_elements_text(coalesce(p_route -> 'features', '[]')))
    and not exists (
      -- A feature such as seconds<=10 bounds what a task needs, or else its units.
      select from unnest(p_features) as f
      cross join lateral regexp_match(f, '^([a-z][a-z0-9_]*)([<>])=([0-9]+(?:\.[0-9]+)?)$') as m
      cross join lateral (
        select coalesce(p_route -> 'needs' ->> m[1], p_units ->> m[1])::numeric as amount) as need
      where case m[2] when '<' then need.amount > m[3]::numeric else need.amount < m[3]::numeric end)
$$;
comment on function penstock._has_features(text[], jsonb, jsonb) is
  'Whether an endpoint with these features can do a task with this route and these units.';

create or replace function penstock._is_failing(p_endpoint_id integer, p_tenant_id uuid, p_now timestamptz)
returns boolean language sql stable set search_path = penstock, pg_temp as $$
  select exists (
    select from route_failures f where f.tenant_id = p_tenant_id and f.endpoint_id = p_endpoint_id
      and f.failures >= 5 and f.failed_at > p_now - interval '1 minute')
$$;
comment on function penstock._is_failing(integer, uuid, timestamptz) is
  'Whether the last five attempts of a tenant''s routed tasks at an endpoint failed, the last one within a '
  'minute. After that the endpoint is tried again.';

create or replace function penstock._extra_units(p_units jsonb, p_route jsonb, p_provider text)
returns jsonb language sql immutable set search_path = penstock, pg_temp as $$
  -- Units that name all tokens contain those of the answer.
  select case when p_units ? 'tokens' then _whole_units(x.extra, false) else x.extra end
  from (select coalesce(p_route -> 'extra_units' -> p_provider,
    p_route -> 'extra_units' -> (split_part(p_provider, '/', 1) || '/*'), '{}') as extra) as x
$$;
comment on function penstock._extra_units(jsonb, jsonb, text) is
  'What a task with these units may use beyond them at a provider: extra_units of its route, by the name of '
  'the provider or else by the part before the slash.';

create or replace function penstock._units_at(p_units jsonb, p_route jsonb, p_provider text)
returns jsonb language sql immutable set search_path = penstock, pg_temp as $$
  select case when p_route ? 'extra_units' then p_units || (
    select coalesce(jsonb_object_agg(m.meter, (p_units ->> m.meter)::numeric
      + coalesce((x.added ->> m.meter)::numeric, 0) - coalesce((x.dropped ->> m.meter)::numeric, 0)), '{}')
    from (select _extra_units(p_units, p_route, p_provider) as added,
      _extra_units(p_units, p_route, p_route #>> '{chosen,provider}') as dropped) as x
    cross join lateral jsonb_object_keys(x.added || x.dropped) as m(meter)) else p_units end
$$;
comment on function penstock._units_at(jsonb, jsonb, text) is
  'The units of a task at another provider: without the extra units of the chosen one, with its own.';

create or replace function penstock._route_options(
  p_route jsonb, p_tenant_id uuid, p_units jsonb, p_endpoint_ids integer[])
returns table (endpoint_id integer, provider text, is_open boolean, is_failing boolean, cost numeric,
  seconds double precision, place integer)
language sql stable set search_path = penstock, pg_temp as $$
  select x.id, x.name, x.is_up and not x.is_failing, x.is_failing, x.cost,
    case when p_route ->> 'prefer' = 'fastest' then (
      select avg(extract(epoch from r.finished_at - r.started_at)) from (
        select u.job_id, u.task_id from usage_events u where u.provider = x.name
        order by u.id desc limit 50) as u
      join results r on r.job_id = u.job_id and r.task_id = u.task_id) end,
    (select o.n
     from jsonb_array_elements_text(coalesce(p_route -> 'providers', '[]')) with ordinality as o(name, n)
     where o.name = x.name limit 1)::integer
  from (
    select e.id, e.name,
      -- An endpoint that opens within 30 seconds counts as open: moving its tasks would gain little.
      e.status = 'active' and s.closed_until <= _now() + interval '30 seconds' as is_up,
      coalesce((p_route -> 'failed' ->> e.name)::integer >= 2, false)
        or _is_failing(e.id, p_tenant_id, _now()) as is_failing,
      _estimated_cost(e.name, p_tenant_id, u.units) as cost
    from endpoints e join endpoint_states s on s.endpoint_id = e.id
    cross join lateral (select _units_at(p_units, p_route, e.name) as units) as u
    where (e.tenant_id = p_tenant_id or e.tenant_id is null and not exists (
        select from endpoints o where o.name = e.name and o.tenant_id = p_tenant_id))
      and (p_endpoint_ids is null or e.id = any (p_endpoint_ids))
      and _has_features(e.features, p_route, u.units)
      and (not p_route ? 'providers' or p_route -> 'providers' ? e.name)
      and e.status <> 'disabled') as x
  where not p_route ? 'max_cost' or x.cost <= (p_route ->> 'max_cost')::numeric
$$;
comment on function penstock._route_options(jsonb, uuid, jsonb, integer[]) is
  'The endpoints that can do a task with this route, with what decides between them. p_endpoint_ids: only '
  'these (null: all).';

create or replace function penstock._ranked_providers(
  p_route jsonb, p_tenant_id uuid, p_units jsonb, p_endpoint_ids integer[])
returns table (endpoint_id integer, choice penstock.provider_choice, cost numeric, rank bigint)
language sql stable set search_path = penstock, pg_temp as $$
  select o.endpoint_id, row(o.provider, case coalesce(p_route ->> 'prefer', 'cheapest')
      when 'cheapest' then
        coalesce(format('cheapest: %s', trim_scale(o.cost)), 'the only one, without a price')
      when 'fastest' then
        coalesce(format('fastest: %s s on average', round(o.seconds::numeric, 2)), 'fastest: not used before')
      else format('number %s of the list', o.place) end
    || case when o.is_open then '' when o.is_failing then ', although it is failing now'
      else ', although it is closed now' end
    || case when o.is_open and bool_or(not o.is_open) over () then '; others are closed or failing'
      else '' end,
    o.is_open)::provider_choice, o.cost,
    row_number() over (order by o.is_open desc,
      case when coalesce(p_route ->> 'prefer', 'cheapest') = 'cheapest' then o.cost end nulls last,
      case when p_route ->> 'prefer' = 'fastest' then o.seconds end nulls last,
      o.place nulls last, o.provider)
  from _route_options(p_route, p_tenant_id, p_units, p_endpoint_ids) as o
$$;
comment on function penstock._ranked_providers(jsonb, uuid, jsonb, integer[]) is
  'The endpoints that can do a task, in the order that its route prefers: open ones first, then the '
  'cheapest, the fastest or the first of the list.';

create or replace function penstock._check_routes(p_specs penstock.task_spec[])
returns void language plpgsql stable set search_path = penstock, pg_temp as $$
declare
  v_index integer;
  v_provider text;
  v_meter text;
begin
  select s.n - 1 into v_index from (select u.route, row_number() over () as n from unnest(p_specs) as u) as s
  where s.route is not null and s.route <> 'null' and not _is_route(s.route) limit 1;
  if found then
    perform _refuse(422, 'invalid_route',
      format('the route of task %s must be {"features": […], "providers": […], "prefer": "cheapest", '
        '"fastest" or "listed", "needs": {…}, "max_cost", "wait_seconds", "extra_units": {…}}, with '
        'features or providers', v_index),
      jsonb_build_object('field', format('tasks[%s].route', v_index)));
  end if;
  select s.n - 1, e.provider, m.meter into v_index, v_provider, v_meter
  from (select u.route, u.units, row_number() over () as n from unnest(p_specs) as u) as s
  cross join lateral jsonb_each(s.route -> 'extra_units') as e(provider, units)
  cross join lateral jsonb_object_keys(e.units) as m(meter)
  where s.route is not null and not coalesce(s.units ? m.meter, false) limit 1;
  if found then
    perform _refuse(422, 'invalid_route',
      format('the extra_units of %L name %L, which is not among the units of task %s',
        left(v_provider, 100), left(v_meter, 100), v_index),
      jsonb_build_object('field', format('tasks[%s].route.extra_units', v_index)));
  end if;
end
$$;
comment on function penstock._check_routes(penstock.task_spec[]) is 'Rejects a malformed route of a task.';

create or replace function penstock._choose_providers(p_job penstock.jobs, p_specs penstock.task_spec[])
returns penstock.task_spec[] language plpgsql stable set search_path = penstock, pg_temp as $$
declare
  v_index integer;
  v_group record;
  v_option record;
  v_rooms jsonb := '{}';
  v_taken integer;
  v_next integer;
  v_place bigint;
  v_choices provider_choice[] := array_fill(null::provider_choice, array[cardinality(p_specs)]);
begin
  perform _check_routes(p_specs);
  -- Same routes and units are decided together. What the queue of a provider cannot take goes to the next.
  for v_group in
    select s.route, s.units, array_agg(s.n order by s.n) as places
    from (select u.route, u.units, row_number() over () as n from unnest(p_specs) as u) as s
    where s.route is not null and s.route <> 'null' group by s.route, s.units order by min(s.n)
  loop
    v_next := 1;
    for v_option in
      select * from _ranked_providers(v_group.route, p_job.tenant_id, v_group.units, null) as r
      order by r.rank
    loop
      if not v_rooms ? (v_option.choice).provider then
        v_rooms := v_rooms || jsonb_build_object((v_option.choice).provider, _queue_room(
          _endpoint((v_option.choice).provider, p_job.tenant_id), p_job.tenant_id));
      end if;
      v_taken := least(cardinality(v_group.places) - v_next + 1,
        greatest(0, coalesce((v_rooms ->> (v_option.choice).provider)::bigint, 1000000000)));
      foreach v_place in array v_group.places[v_next : v_next + v_taken - 1] loop
        v_choices[v_place] := v_option.choice;
      end loop;
      v_rooms := v_rooms || jsonb_build_object((v_option.choice).provider,
        (v_rooms ->> (v_option.choice).provider)::bigint - v_taken);
      v_next := v_next + v_taken;
      exit when v_next > cardinality(v_group.places);
    end loop;
    -- Every queue is full: _check_demands refuses the tasks of the preferred provider.
    select r.choice into v_option from _ranked_providers(
      v_group.route, p_job.tenant_id, v_group.units, null) as r
    where v_next <= cardinality(v_group.places) order by r.rank limit 1;
    if found then
      foreach v_place in array v_group.places[v_next :] loop
        v_choices[v_place] := v_option.choice;
      end loop;
    end if;
  end loop;
  p_specs := _with_choices(p_specs, v_choices);
  select s.n - 1 into v_index
  from (select u.route, u.provider, row_number() over () as n from unnest(p_specs) as u) as s
  where s.route is not null and s.route <> 'null' and s.provider is null limit 1;
  if found then
    perform _refuse(422, 'no_provider', format('no provider has what the route of task %s asks for', v_index),
      jsonb_build_object('field', format('tasks[%s].route', v_index)));
  end if;
  return p_specs;
end
$$;
comment on function penstock._choose_providers(penstock.jobs, penstock.task_spec[]) is
  'Sets the provider of each task that has a route: the preferred one whose queue has room.';

create or replace function penstock._with_choices(
  p_specs penstock.task_spec[], p_choices penstock.provider_choice[])
returns penstock.task_spec[] language sql immutable set search_path = penstock, pg_temp as $$
  select array(
    select case when (s.choice).provider is null then s.spec else
      jsonb_populate_record(s.spec, jsonb_build_object('provider', (s.choice).provider,
        'units', _units_at((s.spec).units, (s.spec).route, (s.choice).provider),
        'route', (s.spec).route || jsonb_build_object('chosen', _choice_document(s.choice)))) end
    from (
      select unnest(p_specs) as spec, unnest(p_choices) as choice, generate_subscripts(p_specs, 1) as n) as s
    order by s.n)
$$;
comment on function penstock._with_choices(penstock.task_spec[], penstock.provider_choice[]) is
  'Sets the provider of each task that has a choice at its place of the list, and its units there.';

create or replace function penstock._is_route(p_route jsonb)
returns boolean language sql immutable set search_path = penstock, pg_temp as $$
  select case jsonb_typeof(p_route) when 'object' then
    p_route - array['features', 'providers', 'prefer', 'needs', 'max_cost', 'wait_seconds', 'extra_units']
      = '{}'
    and coalesce(p_route ->> 'prefer', 'cheapest') in ('cheapest', 'fastest', 'listed')
    and jsonb_typeof(coalesce(p_route -> 'features', '[]')) = 'array'
    and jsonb_typeof(coalesce(p_route -> 'providers', '[]')) = 'array'
    and p_route ?| array['features', 'providers']
    and not (coalesce(p_route ->> 'prefer', '') = 'listed' and not p_route ? 'providers')
    and jsonb_typeof(coalesce(p_route -> 'needs', '{}')) = 'object'
    and not p_route @? '$.needs.* ? (@.type() != "number")'
    and case jsonb_typeof(coalesce(p_route -> 'max_cost', '0')) when 'number'
      then coalesce((p_route ->> 'max_cost')::numeric, 0) between 0 and 1e12 else false end
    and case jsonb_typeof(coalesce(p_route -> 'wait_seconds', '0')) when 'number'
      then coalesce((p_route ->> 'wait_seconds')::numeric, 0) between 0 and 86400 else false end
    and jsonb_typeof(coalesce(p_route -> 'extra_units', '{}')) = 'object'
    and not coalesce(p_route -> 'extra_units', '{}') @? 'strict $.* ? (@.type() != "object")'
    and not coalesce(p_route -> 'extra_units', '{}')
      @? 'strict $.*.* ? (@.type() != "number" || @ < 0 || @ > 1000000000000)'
  else false end
$$;
comment on function penstock._is_route(jsonb) is 'Whether a document is a valid route.';

create or replace function penstock._choice_document(p_choice penstock.provider_choice)
returns jsonb language sql immutable set search_path = penstock, pg_temp as $$
  select jsonb_build_object('provider', p_choice.provider, 'reason', p_choice.reason)
$$;
comment on function penstock._choice_document(penstock.provider_choice) is
  'The choice as it is kept in the task''s route.';

create or replace function penstock._add_route_lanes(p_job penstock.jobs, p_specs penstock.task_spec[])
returns void language plpgsql set search_path = penstock, pg_temp as $$
declare
  v_wanted record;
  v_lane_id integer;
begin
  -- The claim moves tasks between lanes that exist: it must not wait for another transaction that creates
  -- one. The lanes of the tasks themselves are among them, sorted as in _insert_tasks, so that two calls that
  -- create the same lanes cannot deadlock.
  for v_wanted in
    select d.kind, e.name as provider, true as is_gated, true as is_routed from (
      select distinct s.kind, s.route - 'chosen' as route from unnest(p_specs) as s
      where s.route is not null and s.route <> 'null') as d
    join endpoints e on (e.tenant_id is null or e.tenant_id = p_job.tenant_id)
      and e.features @> array(select jsonb_array_elements_text(coalesce(d.route -> 'features', '[]')))
      and (not d.route ? 'providers' or d.route -> 'providers' ? e.name)
    union
    select s.kind, s.provider, s.provider is not null or s.units is not null, false from unnest(p_specs) as s
    order by 1, 2, 3
  loop
    v_lane_id := _lane(v_wanted.kind, v_wanted.provider, p_job.tenant_id, v_wanted.is_gated);
    if v_wanted.is_routed and not exists (select from routed_lanes q where q.lane_id = v_lane_id) then
      insert into routed_lanes (lane_id) values (v_lane_id) on conflict do nothing;
    end if;
  end loop;
end
$$;
comment on function penstock._add_route_lanes(penstock.jobs, penstock.task_spec[]) is
  'Creates the lanes of these tasks, and those to which tasks with these routes can move.';

create or replace function penstock._add_provider_lanes(p_endpoint penstock.endpoints)
returns void language plpgsql set search_path = penstock, pg_temp as $$
begin
  -- Only for kinds whose tasks may ask for its features: others would add lanes that stay empty.
  perform _lane(k.kind, p_endpoint.name, p_endpoint.tenant_id, true) from (
    select distinct l.kind from routed_lanes q join lanes l on l.id = q.lane_id
    join endpoints e on e.id = l.endpoint_id where e.features && p_endpoint.features order by 1) as k;
end
$$;
comment on function penstock._add_provider_lanes(penstock.endpoints) is
  'Creates the lanes of a new provider for kinds with routes, so that waiting tasks can move there.';
