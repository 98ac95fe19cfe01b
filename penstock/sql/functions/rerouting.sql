-- Rerouting: moves tasks that have a route from a provider that cannot take them now to the next one that
-- can. routing.sql has the order of providers. Lock order: see claim.sql; nothing here waits for a lock.

create or replace function penstock._blocked_lanes(p_task_types text[], p_now timestamptz)
returns table (lane_id integer, kind text, provider text, state text, tenant_ids uuid[])
language sql stable set search_path = penstock, pg_temp as $$
  select l.id, l.kind, l.provider, x.state, case when x.state = 'failing' then f.tenant_ids end
  from routed_lanes q join lanes l on l.id = q.lane_id
  join endpoints e on e.id = l.endpoint_id join endpoint_states s on s.endpoint_id = e.id
  cross join lateral (
    select array_agg(y.tenant_id) as tenant_ids from route_failures y
    where y.endpoint_id = e.id and y.failures >= 5 and y.failed_at > p_now - interval '1 minute') as f
  cross join lateral (
    select case when e.status <> 'active' then e.status when s.closed_until > p_now then 'closed'
      when s.open_at > p_now or _free_concurrency(e, p_now) < 1 then 'full'
      when f.tenant_ids is not null then 'failing' end as state) as x
  where (p_task_types is null or l.kind = any (p_task_types)) and x.state is not null
    and exists (select from ready r where r.lane_id = l.id)
$$;
comment on function penstock._blocked_lanes(text[], timestamptz) is
  'Lanes with waiting tasks that may have routes, whose endpoint cannot take them now, and why. tenant_ids: '
  'only for these tenants it is failing (null: all).';

create or replace function penstock._open_endpoints(p_task_types text[], p_now timestamptz)
returns table (endpoint_id integer, room bigint)
language sql stable set search_path = penstock, pg_temp as $$
  select x.id, x.room from (
    select e.id, least((c.c).places, (c.c).requests, 1000) as room
    from endpoints e join endpoint_states s on s.endpoint_id = e.id
    cross join lateral (select _free_capacity(e, s, p_now) as c offset 0) as c
    where e.status = 'active' and s.closed_until <= p_now and s.open_at <= p_now and exists (
      select from lanes l where l.endpoint_id = e.id and l.is_gated
        and (p_task_types is null or l.kind = any (p_task_types)))) as x
  where x.room > 0
$$;
comment on function penstock._open_endpoints(text[], timestamptz) is
  'Endpoints of lanes of these kinds that can take tasks now, and how many.';

create or replace function penstock._reroute(
  p_task_types text[], p_max integer, p_stopped uuid[], p_now timestamptz)
returns integer language plpgsql set search_path = penstock, pg_temp as $$
-- Lock order: see claim.sql.
declare
  v_rooms jsonb;
  v_budgets jsonb := '{}';
  v_task record;
  v_next record;
  v_row ready;
  v_rows ready[] := '{}';
begin
  if not exists (select from routed_lanes)
     or not exists (select from _blocked_lanes(p_task_types, p_now)) then
    return 0;
  end if;
  select jsonb_object_agg(o.endpoint_id, o.room) into v_rooms from _open_endpoints(p_task_types, p_now) as o;
  if v_rooms is null then
    return 0;
  end if;
  for v_task in
    select r.tid, r.task_id, r.job_id, r.tenant_id, t.route, t.units, l.kind, l.provider, l.state
    from (select b.* from _blocked_lanes(p_task_types, p_now) as b order by random() limit 16) as l
    cross join lateral (
      select x.ctid as tid, x.task_id, x.job_id, x.tenant_id, x.vtime from ready x
      where x.lane_id = l.lane_id and x.job_id <> all (p_stopped)
        and (l.tenant_ids is null or x.tenant_id = any (l.tenant_ids))
      order by x.vtime limit 100 for update skip locked) as r
    cross join lateral (
      select x.route, x.units, x.created_at from tasks x
      where x.job_id = r.job_id and x.id = r.task_id offset 0) as t
    cross join lateral _next_provider(t.route, r.tenant_id, t.units, l.kind, l.provider, v_rooms, null) as n
    where t.route is not null
      and t.created_at <= p_now - make_interval(secs => coalesce((t.route ->> 'wait_seconds')::numeric, 0)
        ::double precision)
    -- The tasks whose cost grows least move first: others may still get their cheaper provider.
    order by n.cost / nullif(_estimated_cost(l.provider, r.tenant_id, t.units), 0) nulls last, r.vtime
  loop
    exit when cardinality(v_rows) >= p_max;
    v_budgets := v_budgets || _free_budget(v_budgets, v_task.tenant_id, v_task.job_id);
    select * into v_next from _next_provider(v_task.route, v_task.tenant_id, v_task.units, v_task.kind,
      v_task.provider, v_rooms, (v_budgets ->> v_task.job_id::text)::numeric);
    continue when not found;
    delete from ready where ctid = v_task.tid returning * into v_row;
    v_row.lane_id := v_next.lane_id;
    v_rows := v_rows || v_row;
    perform _note_move(v_task.job_id, v_task.task_id, v_next.lane_id, v_next.choice, v_task.provider,
      v_task.state);
    v_rooms := v_rooms || jsonb_build_object(v_next.endpoint_id,
      (v_rooms ->> v_next.endpoint_id::text)::bigint - 1);
    if v_budgets ->> v_task.job_id::text is not null then
      v_budgets := v_budgets || jsonb_build_object(v_task.job_id,
        (v_budgets ->> v_task.job_id::text)::numeric - v_next.cost);
    end if;
  end loop;
  perform _queue(v_rows, true);
  return cardinality(v_rows);
end
$$;
comment on function penstock._reroute(text[], integer, uuid[], timestamptz) is
  'Moves up to p_max waiting tasks of these kinds from endpoints that are full, closed or failing to others '
  'that have room, within the budgets of their jobs. Returns how many.';

create or replace function penstock._free_budget(p_known jsonb, p_tenant_id uuid, p_job_id uuid)
returns jsonb language sql stable set search_path = penstock, pg_temp as $$
  select case when p_known ? p_job_id::text then '{}' else (
    select jsonb_build_object(p_job_id, j.budget - coalesce((
      select a.used + a.held from accounts a
      where a.tenant_id = p_tenant_id and a.job_id = p_job_id and a.meter = 'cost'), 0))
    from jobs j where j.id = p_job_id) end
$$;
comment on function penstock._free_budget(jsonb, uuid, uuid) is
  'What is left of a job''s budget, by the id of the job (null: no budget); nothing if it is known already.';

create or replace function penstock._next_provider(
  p_route jsonb, p_tenant_id uuid, p_units jsonb, p_kind text, p_provider text, p_rooms jsonb,
  p_budget numeric)
returns table (lane_id integer, endpoint_id integer, choice penstock.provider_choice, cost numeric)
language sql stable set search_path = penstock, pg_temp as $$
  select l.id, r.endpoint_id, r.choice, r.cost
  from _ranked_providers(p_route, p_tenant_id, p_units,
    case when p_rooms is not null then array(
      select u.key::integer from jsonb_each_text(p_rooms) as u where u.value::bigint > 0) end) as r
  join lanes l on l.kind = p_kind and l.endpoint_id = r.endpoint_id and l.is_gated
  where (r.choice).is_open and (r.choice).provider <> p_provider
    and (p_budget is null or r.cost <= p_budget)
  order by r.rank limit 1
$$;
comment on function penstock._next_provider(jsonb, uuid, jsonb, text, text, jsonb, numeric) is
  'The provider other than p_provider that a route prefers now, with its lane. p_rooms: only endpoints with '
  'room (null: all); p_budget: at most this cost.';

create or replace function penstock._note_move(
  p_job_id uuid, p_task_id bigint, p_lane_id integer, p_choice penstock.provider_choice, p_provider text,
  p_state text)
returns void language sql set search_path = penstock, pg_temp as $$
  update tasks set lane_id = p_lane_id, units = _units_at(units, route, p_choice.provider),
    route = route || jsonb_build_object('chosen', _choice_document(p_choice)
      || jsonb_build_object('instead_of', p_provider, 'because', p_state))
  where job_id = p_job_id and id = p_task_id
$$;
comment on function penstock._note_move(uuid, bigint, integer, penstock.provider_choice, text, text) is
  'Notes the new lane of a task, its provider, its units there and why it left the earlier one.';

create or replace function penstock._reroute_failed(p_failed penstock.leases[], p_errors jsonb[])
returns penstock.leases[] language plpgsql set search_path = penstock, pg_temp
  set enable_seqscan = off set jit = off as $$
declare
  v_leases leases[] := p_failed;
  v_lease leases;
  v_task record;
  v_next record;
begin
  for v_task in
    select f.n, f.held, t.route, t.units, l.kind, l.provider, l.endpoint_id,
      (f.held).failures + 1 < coalesce(t.max_attempts, k.max_attempts) as is_retried
    from (
      select unnest(p_failed) as held, unnest(p_errors) as error,
        generate_subscripts(p_failed, 1) as n) as f
    cross join lateral (
      select x.route, x.units, x.max_attempts from tasks x
      where x.job_id = (f.held).job_id and x.id = (f.held).task_id offset 0) as t
    join lanes l on l.id = (f.held).lane_id join kinds k on k.name = l.kind
    where (f.held).is_gated and t.route is not null and l.endpoint_id is not null
      -- An error that no retry can solve tells nothing about the provider.
      and f.error -> 'permanent' is distinct from 'true'
  loop
    perform _note_failure((v_task.held).tenant_id, v_task.endpoint_id);
    v_task.route := v_task.route || jsonb_build_object('failed', coalesce(v_task.route -> 'failed', '{}')
      || jsonb_build_object(v_task.provider,
        coalesce((v_task.route -> 'failed' ->> v_task.provider)::integer, 0) + 1));
    update tasks set route = v_task.route where job_id = (v_task.held).job_id and id = (v_task.held).task_id;
    continue when not v_task.is_retried or (v_task.route -> 'failed' ->> v_task.provider)::integer < 2
      and not _is_failing(v_task.endpoint_id, (v_task.held).tenant_id, _now());
    select * into v_next from _next_provider(v_task.route, (v_task.held).tenant_id, v_task.units, v_task.kind,
      v_task.provider, null, (_free_budget('{}', (v_task.held).tenant_id, (v_task.held).job_id)
        ->> (v_task.held).job_id::text)::numeric);
    continue when not found;
    v_lease := v_task.held;
    v_lease.lane_id := v_next.lane_id;
    v_leases[v_task.n] := v_lease;
    perform _note_move(v_lease.job_id, v_lease.task_id, v_next.lane_id, v_next.choice, v_task.provider,
      'failing');
  end loop;
  return v_leases;
end
$$;
comment on function penstock._reroute_failed(penstock.leases[], jsonb[]) is
  'Counts failures of attempts whose tasks have a route. Returns the leases, with the lane of another '
  'provider for tasks that failed twice at theirs, or whose provider fails for the tenant.';

create or replace function penstock._is_any_failing()
returns boolean language sql stable set search_path = penstock, pg_temp as $$
  select exists (
    select from route_failures f where f.failures >= 5 and f.failed_at > _now() - interval '1 minute')
$$;
comment on function penstock._is_any_failing() is 'Whether a provider fails for a tenant now.';

create or replace function penstock._note_failure(p_tenant_id uuid, p_endpoint_id integer)
returns void language plpgsql set search_path = penstock, pg_temp as $$
begin
  -- A row that another transaction has locked is not counted: five of many are enough.
  update route_failures f set failed_at = _now(),
    failures = case when f.failed_at > _now() - interval '1 minute' then least(f.failures, 1000) + 1
      else greatest(1, least(f.failures, 5)) end
  where f.ctid = any (array(
    select x.ctid from route_failures x where x.tenant_id = p_tenant_id and x.endpoint_id = p_endpoint_id
    for no key update skip locked));
  -- Only tried: an insert would wait for another transaction's insert of the same row, in any order.
  if not found and pg_try_advisory_xact_lock(
      hashtext('penstock.route_failures'), p_endpoint_id # hashtext(p_tenant_id::text)) and not exists (
      select from route_failures x where x.tenant_id = p_tenant_id and x.endpoint_id = p_endpoint_id) then
    insert into route_failures (tenant_id, endpoint_id, failures, failed_at)
    values (p_tenant_id, p_endpoint_id, 1, _now()) on conflict do nothing;
  end if;
end
$$;
comment on function penstock._note_failure(uuid, integer) is
  'Counts a failed attempt of a tenant''s routed task at an endpoint, in a row since the last success. When '
  'an endpoint that failed five times fails again after a minute, it is failing at once.';

create or replace function penstock._forget_failures(p_leases penstock.leases[])
returns void language sql set search_path = penstock, pg_temp as $$
  delete from route_failures f where f.ctid = any (array(
    select x.ctid from route_failures x
    where (x.tenant_id, x.endpoint_id) in (
      select l.tenant_id, n.endpoint_id from unnest(p_leases) as l join lanes n on n.id = l.lane_id)
    for update skip locked))
$$;
comment on function penstock._forget_failures(penstock.leases[]) is
  'Ends the counts of failures at endpoints where these attempts succeeded.';

create or replace function penstock._explain_route(p_task penstock.tasks)
returns text language sql stable set search_path = penstock, pg_temp as $$
  select 'other providers: ' || coalesce(nullif(string_agg(format('%s %s', o.provider, case
      when o.is_failing then 'is failing'
      when not o.is_open or s.closed_until > _now() then 'is closed'
      when s.open_at > _now() or _free_concurrency(e, _now()) < 1 then 'is full'
      when o.cost > b.amount then format('costs %s, more than the budget has left', trim_scale(o.cost))
      when p_task.created_at > _now() - make_interval(secs =>
        coalesce((p_task.route ->> 'wait_seconds')::double precision, 0))
        then 'is open: its route still waits'
      else 'is open' end), ', ' order by o.provider), ''), 'none')
  from _route_options(p_task.route, p_task.tenant_id, p_task.units, null) as o
  join endpoints e on e.id = o.endpoint_id join endpoint_states s on s.endpoint_id = e.id
  cross join (
    select (_free_budget('{}', p_task.tenant_id, p_task.job_id) ->> p_task.job_id::text)::numeric
  ) as b(amount)
  where o.provider <> p_task.route #>> '{chosen,provider}'
$$;
comment on function penstock._explain_route(penstock.tasks) is
  'Why no other provider takes a waiting task that has a route.';
