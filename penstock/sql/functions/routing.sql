-- Routing: which provider does a task that asks for features, or for one of several providers, instead of
-- naming one. The choice is made when the task is added, and again when the chosen endpoint closes.

create or replace function penstock._route_candidates(p_route jsonb, p_tenant_id uuid, p_units jsonb)
returns table (name text, is_open boolean, cost numeric, seconds double precision, place integer)
language sql stable set search_path = penstock, pg_temp as $$
  -- An endpoint that opens within 30 seconds counts as open: moving its tasks would gain little.
  select e.name, e.status = 'active' and s.closed_until <= _now() + interval '30 seconds',
    _estimated_cost(e.name, p_tenant_id, p_units),
    (select avg(extract(epoch from r.finished_at - r.started_at)) from (
       select u.job_id, u.task_id from usage_events u where u.provider = e.name
       order by u.id desc limit 50) as u
     join results r on r.job_id = u.job_id and r.task_id = u.task_id),
    (select o.n
     from jsonb_array_elements_text(coalesce(p_route -> 'providers', '[]')) with ordinality as o(name, n)
     where o.name = e.name limit 1)::integer
  from endpoints e join endpoint_states s on s.endpoint_id = e.id
  where (e.tenant_id = p_tenant_id or e.tenant_id is null and not exists (
      select from endpoints o where o.name = e.name and o.tenant_id = p_tenant_id))
    and e.features @> array(select jsonb_array_elements_text(coalesce(p_route -> 'features', '[]')))
    and (not p_route ? 'providers' or p_route -> 'providers' ? e.name)
    and e.status <> 'disabled'
$$;
comment on function penstock._route_candidates(jsonb, uuid, jsonb) is
  'The endpoints that have the features of a route, with what decides between them.';

create or replace function penstock._best_provider(p_route jsonb, p_tenant_id uuid, p_units jsonb)
returns penstock.provider_choice language sql stable set search_path = penstock, pg_temp as $$
  select row(c.name, case coalesce(p_route ->> 'prefer', 'cheapest')
      when 'cheapest' then
        coalesce(format('cheapest: %s', trim_scale(c.cost)), 'the only one, without a price')
      when 'fastest' then
        coalesce(format('fastest: %s s on average', round(c.seconds::numeric, 2)), 'fastest: not used before')
      else format('number %s of the list', c.place) end
    || case when c.is_open then '' else ', although it is closed now' end
    || case when c.is_open and exists (
         select from _route_candidates(p_route, p_tenant_id, p_units) as o where not o.is_open)
       then '; others are closed' else '' end,
    c.is_open)::provider_choice
  from _route_candidates(p_route, p_tenant_id, p_units) as c
  order by c.is_open desc,
    case when coalesce(p_route ->> 'prefer', 'cheapest') = 'cheapest' then c.cost end nulls last,
    case when p_route ->> 'prefer' = 'fastest' then c.seconds end nulls last,
    c.place nulls last, c.name
  limit 1
$$;
comment on function penstock._best_provider(jsonb, uuid, jsonb) is
  'The provider that a route prefers: open ones first, then the cheapest, the fastest or the first of the '
  'list.';

create or replace function penstock._choose_providers(p_job penstock.jobs, p_specs penstock.task_spec[])
returns penstock.task_spec[] language plpgsql stable set search_path = penstock, pg_temp as $$
declare
  v_index integer;
begin
  select s.n - 1 into v_index from (select u.route, row_number() over () as n from unnest(p_specs) as u) as s
  where s.route is not null and s.route <> 'null' and not _is_route(s.route) limit 1;
  if found then
    perform _refuse(422, 'invalid_route',
      format('the route of task %s must be {"features": […], "providers": […], "prefer": "cheapest", '
        '"fastest" or "listed"}, with features or providers', v_index),
      jsonb_build_object('field', format('tasks[%s].route', v_index)));
  end if;
  -- Each distinct route with the same units is decided once.
  p_specs := array(
    select case when (c.choice).provider is null then s.spec else
      jsonb_populate_record(s.spec, jsonb_build_object('provider', (c.choice).provider,
        'route', (s.spec).route || jsonb_build_object('chosen', _choice_document(c.choice)))) end
    from (select u as spec, row_number() over () as n from unnest(p_specs) as u) as s
    left join (
      select d.route, d.units, _best_provider(d.route, p_job.tenant_id, d.units) as choice
      from (select distinct x.route, x.units from unnest(p_specs) as x
            where x.route is not null and x.route <> 'null') as d
    ) as c on c.route = (s.spec).route and c.units is not distinct from (s.spec).units
    order by s.n);
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
  'Sets the provider of each task that has a route.';

create or replace function penstock._is_route(p_route jsonb)
returns boolean language sql immutable set search_path = penstock, pg_temp as $$
  select case jsonb_typeof(p_route) when 'object' then
    p_route - array['features', 'providers', 'prefer'] = '{}'
    and coalesce(p_route ->> 'prefer', 'cheapest') in ('cheapest', 'fastest', 'listed')
    and jsonb_typeof(coalesce(p_route -> 'features', '[]')) = 'array'
    and jsonb_typeof(coalesce(p_route -> 'providers', '[]')) = 'array'
    and p_route ?| array['features', 'providers']
    and not (coalesce(p_route ->> 'prefer', '') = 'listed' and not p_route ? 'providers')
  else false end
$$;
comment on function penstock._is_route(jsonb) is 'Whether a document is a valid route.';

create or replace function penstock._choice_document(p_choice penstock.provider_choice)
returns jsonb language sql immutable set search_path = penstock, pg_temp as $$
  select jsonb_build_object('provider', p_choice.provider, 'reason', p_choice.reason)
$$;
comment on function penstock._choice_document(penstock.provider_choice) is
  'The choice as it is kept in the task''s route.';

create or replace function penstock._reroute()
returns integer language plpgsql set search_path = penstock, pg_temp as $$
-- Lock order: see claim.sql.
declare
  v_task record;
  v_choice provider_choice;
  v_lane_id integer;
  v_rows ready[];
  v_row ready;
begin
  for v_task in
    -- Closed lanes first, whatever the plan: a claim would skip rows that this locks in open lanes.
    with closed as materialized (
      select l.id, l.kind, l.provider
      from lanes l join endpoints e on e.id = l.endpoint_id join endpoint_states s on s.endpoint_id = e.id
      where l.is_gated and (e.status <> 'active' or s.closed_until > _now() + interval '30 seconds')
    )
    select r.ctid, r.task_id, r.job_id, r.tenant_id, t.route, t.units, l.kind, l.provider from closed l
    cross join lateral (
      select x.ctid, x.task_id, x.job_id, x.tenant_id from ready x where x.lane_id = l.id
      order by x.vtime limit 500 for update skip locked) as r
    join tasks t on t.job_id = r.job_id and t.id = r.task_id
    where t.route is not null
  loop
    v_choice := _best_provider(v_task.route - 'chosen', v_task.tenant_id, v_task.units);
    -- Without an open provider the task waits where it is.
    continue when v_choice.provider is null or v_choice.provider = v_task.provider or not v_choice.is_open;
    v_lane_id := _lane(v_task.kind, v_choice.provider, v_task.tenant_id, true);
    delete from ready where ctid = v_task.ctid returning * into v_row;
    v_row.lane_id := v_lane_id;
    v_rows := v_rows || v_row;
    update tasks set lane_id = v_lane_id, route = route || jsonb_build_object('chosen',
      _choice_document(v_choice) || jsonb_build_object('instead_of', v_task.provider))
    where job_id = v_task.job_id and id = v_task.task_id;
  end loop;
  perform _queue(v_rows, true);
  return coalesce(cardinality(v_rows), 0);
end
$$;
comment on function penstock._reroute() is
  'Moves ready tasks that have a route from closed endpoints to open ones.';
