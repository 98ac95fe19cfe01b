-- Flow: which work may run now. Lanes whose tasks name a provider or units are gated: before the claim takes a task,
-- its provider's windows must have room for it, then its tenant's quotas and its job's budget. What does not fit into
-- a window waits in its place. What does not fit into a quota or a budget is set aside, so that it stands in nobody's way.

create or replace function penstock._check_demands(p_job penstock.jobs, p_specs penstock.task_spec[])
returns jsonb language plpgsql stable set search_path = penstock, pg_temp as $$
declare
  v_now timestamptz := _now();
  v_index integer;
  v_name text;
  v_group record;
  v_endpoint endpoints;
  v_state endpoint_states;
  v_room record;
  v_depth bigint;
  v_pressed jsonb := '{}';
begin
  select x.n - 1, x.key into v_index, v_name from (
    select s.n, u.key, u.value from unnest(p_specs) with ordinality as s(kind, key, input, after, after_failure, phase, provider, units,
      priority, run_at, max_attempts, timeout_seconds, idempotency_key, route, confirm, n)
    cross join lateral jsonb_each(case jsonb_typeof(s.units) when 'object' then s.units else '{}' end) as u) as x
  where x.key = 'cost' or not exists (select from meters m where m.name = x.key)
    or case jsonb_typeof(x.value) when 'number' then x.value::numeric not between 0 and 1000000000000 else true end limit 1;
  if found then
    perform _check_units((p_specs[v_index + 1]).units, format('tasks[%s].units', v_index));
  end if;
  for v_group in
    select s.provider, count(*) as n, min(s.n) - 1 as first, max(z.requests) as requests, max(z.tokens) as tokens
    from unnest(p_specs) with ordinality as s(kind, key, input, after, after_failure, phase, provider, units,
      priority, run_at, max_attempts, timeout_seconds, idempotency_key, route, confirm, n)
    cross join lateral _size(s.units, 0) as z
    where s.provider is not null group by s.provider
  loop
    v_endpoint := _endpoint(v_group.provider, p_job.tenant_id);
    if v_endpoint.id is null then
      perform _refuse(422, 'unknown_provider', format('task %s names an unknown provider %L', v_group.first, left(v_group.provider, 200)),
        jsonb_build_object('field', format('tasks[%s].provider', v_group.first)), 'Declare it with penstock.set_provider.');
    end if;
    if v_group.requests > least(v_endpoint.requests_per_minute, v_endpoint.requests_per_hour)
       or v_group.tokens > least(v_endpoint.tokens_per_minute, v_endpoint.tokens_per_hour) then
      perform _refuse(422, 'over_limit', format('a task needs more at once than %s ever has: %s requests, %s tokens', v_group.provider, v_group.requests, v_group.tokens),
        jsonb_build_object('field', 'tasks.units', 'provider', v_group.provider));
    end if;
    if p_job.budget is not null and not _has_price(v_group.provider, p_job.tenant_id, v_now) then
      perform _refuse(422, 'no_price', format('%s has no price: its cost cannot be kept within a budget', v_group.provider),
        jsonb_build_object('field', format('tasks[%s].provider', v_group.first), 'provider', v_group.provider), 'Add one with penstock.set_price.');
    end if;
    if v_endpoint.depth_limit is not null then
      select count(*) into v_depth from (
        select from lanes l join ready r on r.lane_id = l.id
        where l.provider = v_endpoint.name and l.tenant_id is not distinct from v_endpoint.tenant_id limit v_endpoint.depth_limit) as x;
      if v_depth + v_group.n > v_endpoint.depth_limit then
        perform _refuse(429, 'queue_full', format('%s tasks wait for %s; with %s more it would be over %s', v_depth, v_group.provider, v_group.n, v_endpoint.depth_limit),
          jsonb_build_object('provider', v_group.provider, 'depth_limit', v_endpoint.depth_limit));
      end if;
    end if;
    if v_endpoint.backpressure_threshold is not null and v_endpoint.backpressure_delay_seconds > 0 then
      select * into v_state from endpoint_states where endpoint_id = v_endpoint.id;
      v_room := _room(v_endpoint, v_state, v_now);
      if v_room.requests < (1 - v_endpoint.backpressure_threshold) * v_endpoint.requests_per_minute
         or v_room.tokens < (1 - v_endpoint.backpressure_threshold) * v_endpoint.tokens_per_minute
         or v_room.places < (1 - v_endpoint.backpressure_threshold) * v_endpoint.concurrency then
        v_pressed := v_pressed || jsonb_build_object(v_group.provider, v_endpoint.backpressure_delay_seconds);
      end if;
    end if;
  end loop;
  return v_pressed;
end
$$;
comment on function penstock._check_demands(penstock.jobs, penstock.task_spec[]) is
  'Refuses tasks whose provider or units are not right or whose queue is full. Returns by how many seconds to delay those of which provider.';

create or replace function penstock._candidates(p_route jsonb, p_tenant_id uuid, p_units jsonb)
returns table (name text, is_open boolean, cost numeric, seconds double precision, place integer)
language sql stable set search_path = penstock, pg_temp as $$
  select e.name, e.status = 'active' and s.closed_until <= _now() + interval '30 seconds',
    _estimated_cost(e.name, p_tenant_id, p_units),
    (select avg(extract(epoch from r.finished_at - r.started_at)) from (
       select u.job_id, u.task_id from usage_events u where u.provider = e.name order by u.id desc limit 50) as u
     join results r on r.job_id = u.job_id and r.task_id = u.task_id),
    (select o.n from jsonb_array_elements_text(coalesce(p_route -> 'providers', '[]')) with ordinality as o(name, n) where o.name = e.name limit 1)::integer
  from endpoints e join endpoint_states s on s.endpoint_id = e.id
  where (e.tenant_id = p_tenant_id or e.tenant_id is null and not exists (
      select from endpoints o where o.name = e.name and o.tenant_id = p_tenant_id))
    and e.features @> array(select jsonb_array_elements_text(coalesce(p_route -> 'features', '[]')))
    and (not p_route ? 'providers' or p_route -> 'providers' ? e.name)
    and e.status <> 'disabled'
$$;
comment on function penstock._candidates(jsonb, uuid, jsonb) is 'The endpoints that can do what a route asks for, with what decides among them.';

create or replace function penstock._chosen(p_route jsonb, p_tenant_id uuid, p_units jsonb)
returns jsonb language sql stable set search_path = penstock, pg_temp as $$
  select jsonb_build_object('provider', c.name, 'reason', case coalesce(p_route ->> 'prefer', 'cheapest')
      when 'cheapest' then coalesce(format('cheapest: %s', trim_scale(c.cost)), 'the only one, without a price')
      when 'fastest' then coalesce(format('fastest: %s s on average', round(c.seconds::numeric, 2)), 'fastest: not used before')
      else format('number %s of the list', c.place) end
    || case when c.is_open then '' else ', although it is closed now' end
    || case when exists (select from _candidates(p_route, p_tenant_id, p_units) as o where not o.is_open) and c.is_open then '; others are closed' else '' end)
  from _candidates(p_route, p_tenant_id, p_units) as c
  order by c.is_open desc,
    case when coalesce(p_route ->> 'prefer', 'cheapest') = 'cheapest' then c.cost end nulls last,
    case when p_route ->> 'prefer' = 'fastest' then c.seconds end nulls last,
    c.place nulls last, c.name
  limit 1
$$;
comment on function penstock._chosen(jsonb, uuid, jsonb) is 'The endpoint for a route, and why this one.';

create or replace function penstock._choose_providers(p_job penstock.jobs, p_specs penstock.task_spec[])
returns penstock.task_spec[] language plpgsql stable set search_path = penstock, pg_temp as $$
declare
  v_index integer;
  v_route jsonb;
begin
  select s.n - 1, s.route into v_index, v_route from unnest(p_specs) with ordinality as s(kind, key, input, after, after_failure, phase, provider, units,
      priority, run_at, max_attempts, timeout_seconds, idempotency_key, route, confirm, n)
  where s.route is not null and s.route <> 'null' and case jsonb_typeof(s.route) when 'object' then
      s.route - array['features', 'providers', 'prefer'] <> '{}' or coalesce(s.route ->> 'prefer', 'cheapest') not in ('cheapest', 'fastest', 'listed')
      or jsonb_typeof(coalesce(s.route -> 'features', '[]')) <> 'array' or jsonb_typeof(coalesce(s.route -> 'providers', '[]')) <> 'array'
      or not s.route ?| array['features', 'providers']
      or s.route ->> 'prefer' = 'listed' and not s.route ? 'providers'
    else true end limit 1;
  if found then
    perform _refuse(422, 'invalid_route', format('task %s has a route that is not {"features": […], "providers": […], "prefer": cheapest, fastest or listed}', v_index),
      jsonb_build_object('field', format('tasks[%s].route', v_index)));
  end if;
  -- Once for each different question.
  p_specs := array(
    select case when c.chosen is null then s.spec else
      jsonb_populate_record(s.spec, jsonb_build_object('provider', c.chosen ->> 'provider', 'route', (s.spec).route || jsonb_build_object('chosen', c.chosen))) end
    from (select u as spec, row_number() over () as n from unnest(p_specs) as u) as s
    left join (
      select d.route, d.units, _chosen(d.route, p_job.tenant_id, d.units) as chosen
      from (select distinct x.route, x.units from unnest(p_specs) as x where x.route is not null and x.route <> 'null') as d
    ) as c on c.route = (s.spec).route and c.units is not distinct from (s.spec).units
    order by s.n);
  select s.n - 1 into v_index from unnest(p_specs) with ordinality as s(kind, key, input, after, after_failure, phase, provider, units,
      priority, run_at, max_attempts, timeout_seconds, idempotency_key, route, confirm, n)
  where s.route is not null and s.route <> 'null' and s.provider is null limit 1;
  if found then
    perform _refuse(422, 'no_provider', format('no provider can do what task %s asks for', v_index), jsonb_build_object('field', format('tasks[%s].route', v_index)));
  end if;
  return p_specs;
end
$$;
comment on function penstock._choose_providers(penstock.jobs, penstock.task_spec[]) is 'Gives tasks that ask for features the provider they are to use.';

create or replace function penstock._reroute()
returns integer language plpgsql set search_path = penstock, pg_temp as $$
declare
  v_task record;
  v_chosen jsonb;
  v_lane_id integer;
  v_rows ready[];
  v_row ready;
begin
  for v_task in
    -- Closed lanes first, whatever the plan: what is locked in others would be missed by a claim.
    with closed as materialized (
      select l.id, l.kind, l.provider from lanes l join endpoints e on e.id = l.endpoint_id join endpoint_states s on s.endpoint_id = e.id
      where l.is_gated and (e.status <> 'active' or s.closed_until > _now() + interval '30 seconds')
    )
    select r.ctid, r.task_id, r.job_id, r.tenant_id, t.route, t.units, l.kind, l.provider from closed l
    cross join lateral (select x.ctid, x.task_id, x.job_id, x.tenant_id from ready x where x.lane_id = l.id order by x.vtime limit 500 for update skip locked) as r
    join tasks t on t.job_id = r.job_id and t.id = r.task_id
    where t.route is not null
  loop
    v_chosen := _chosen(v_task.route - 'chosen', v_task.tenant_id, v_task.units);
    continue when v_chosen ->> 'provider' = v_task.provider or v_chosen ->> 'reason' like '%although it is closed now';
    v_lane_id := _lane(v_task.kind, v_chosen ->> 'provider', v_task.tenant_id, true);
    delete from ready where ctid = v_task.ctid returning * into v_row;
    v_row.lane_id := v_lane_id;
    v_rows := v_rows || v_row;
    update tasks set lane_id = v_lane_id, route = route || jsonb_build_object('chosen', v_chosen || jsonb_build_object('instead_of', v_task.provider))
    where job_id = v_task.job_id and id = v_task.task_id;
  end loop;
  perform _queue(v_rows, true);
  return coalesce(cardinality(v_rows), 0);
end
$$;
comment on function penstock._reroute() is 'Sends tasks that asked for features elsewhere when their lane has closed.';

create or replace function penstock._set_aside(p_tids tid[], p_reason text, p_waits_for text, p_until timestamptz)
returns void language sql set search_path = penstock, pg_temp as $$
  with gone as (
    delete from ready where ctid = any (p_tids) returning *
  )
  insert into parked (task_id, job_id, tenant_id, lane_id, priority, phase, failures, deaths, has_parents, has_children, until, reason, waits_for)
  select task_id, job_id, tenant_id, lane_id, priority, phase, failures, deaths, has_parents, has_children, p_until, p_reason, p_waits_for from gone
$$;
comment on function penstock._set_aside(tid[], text, text, timestamptz) is 'Takes tasks out of the line until there is room for them.';

create or replace function penstock._retry_parked(p_waits_for text, p_lane_ids integer[], p_at timestamptz)
returns void language sql set search_path = penstock, pg_temp as $$
  -- Without waiting: what somebody has in hand is found by the next upkeep.
  update parked set until = least(until, p_at) where ctid = any (array(
    select ctid from parked where waits_for = p_waits_for and lane_id = any (p_lane_ids) for no key update skip locked))
$$;
comment on function penstock._retry_parked(text, integer[], timestamptz) is 'What waits for a limit or a price in these lanes is tried again at a moment.';

create or replace function penstock._reserve_tasks(p_tids tid[], p_now timestamptz, p_is_patient boolean,
  out tids tid[], out held bigint[], out amounts jsonb[], out is_refused boolean, out unused_jobs uuid[], out unused_tasks bigint[])
language plpgsql set search_path = penstock, pg_temp set enable_seqscan = off set jit = off as $$
declare
  v_task record;
  v_limit record;
  v_account accounts;
  v_left jsonb := '{}';
  v_limits jsonb := '{}';
  v_budgets jsonb := '{}';
  v_busy uuid[] := '{}';
  v_bookings booking[] := '{}';
  v_units jsonb;
  v_amounts jsonb;
  v_cost numeric;
  v_key text;
  v_meter text;
  v_short text;
  v_is_taken boolean;
begin
  tids := '{}';
  held := '{}';
  amounts := '{}';
  is_refused := false;
  unused_jobs := '{}';
  unused_tasks := '{}';
  -- What each tenant and each job has left, all that is booked below and little else, locked in one order: by tenant, its
  -- jobs' before its own, by meter.
  for v_limit in
    with line as materialized (
      select r.tenant_id, r.job_id, t.units from ready r
      cross join lateral (select x.units from tasks x where x.job_id = r.job_id and x.id = r.task_id offset 0) as t
      where r.ctid = any (p_tids)
    ), need as materialized (
      select d.tenant_id, k as meter from (select distinct x.tenant_id, x.units from line x) as d cross join lateral jsonb_object_keys(d.units) as k
      -- And what follows from the others.
      union select d.tenant_id, k from line d cross join unnest(array['requests', 'tokens', 'cost']) as k
    ), budgeted as materialized (
      select j.id, j.tenant_id, j.budget from (select distinct d.job_id from line d) as d
      cross join lateral (select x.id, x.tenant_id, x.budget from jobs x where x.id = d.job_id offset 0) as j where j.budget is not null
    )
    select distinct on (x.tenant_id, x.job_id, x.meter) x.* from (
      select g.tenant_id, null::uuid as job_id, l.meter, l.amount, l.mode, l.period, l.resets_at
      from (select n.tenant_id, array_agg(n.meter) as meters from need n group by n.tenant_id) as g
      cross join lateral _limits(g.tenant_id, p_now) as l where l.meter = any (g.meters)
      union all
      select b.tenant_id, b.id, 'cost', b.budget, 'enforce', 'epoch', 'infinity' from budgeted b
      union all
      -- What is set aside for a job is set aside for its tenant, also where that has no limit.
      select b.tenant_id, null, 'cost', null, null, (_period('cost', p_now)).starts, null from budgeted b) as x
    order by x.tenant_id, x.job_id, x.meter, x.amount nulls last
  loop
    v_account := _locked_account(v_limit.tenant_id, v_limit.job_id, v_limit.meter, v_limit.period, p_is_patient);
    if v_account.tenant_id is null then
      v_busy := v_busy || v_limit.tenant_id;
    end if;
    continue when v_limit.amount is null or v_account.tenant_id is null;
    v_key := coalesce(v_limit.job_id, v_limit.tenant_id) || ':' || v_limit.meter;
    v_left := v_left || jsonb_build_object(v_key, v_limit.amount - v_account.used - v_account.held);
    if v_limit.job_id is null then
      v_limits := v_limits || jsonb_build_object(v_limit.tenant_id::text, coalesce(v_limits -> v_limit.tenant_id::text, '{}')
        || jsonb_build_object(v_limit.meter, jsonb_build_object('mode', v_limit.mode, 'resets_at', v_limit.resets_at, 'limit', v_limit.amount)));
    else
      v_budgets := v_budgets || jsonb_build_object(v_limit.job_id::text, v_limit.amount);
    end if;
  end loop;

  for v_task in
    select r.ctid as tid, r.task_id, r.job_id, r.tenant_id, t.units, l.provider, j.on_limit, j.status
    from ready r join lanes l on l.id = r.lane_id
    cross join lateral (select x.units from tasks x where x.job_id = r.job_id and x.id = r.task_id offset 0) as t
    cross join lateral (select x.on_limit, x.status from jobs x where x.id = r.job_id offset 0) as j
    where r.ctid = any (p_tids) order by r.vtime, r.task_id
  loop
    v_is_taken := false;
    if v_task.status not in ('queued', 'running') then
      -- Its job is stopped: the claim puts it where it belongs. Under this lock the job does not go on before that.
      perform 1 from jobs where id = v_task.job_id and status = v_task.status for share skip locked;
      if found then
        tids := tids || v_task.tid;
      end if;
    elsif v_task.tenant_id = any (v_busy) then
      -- Later: we have accounts in hand, and somebody else has this one.
      null;
    elsif not v_limits ? v_task.tenant_id::text and not v_budgets ? v_task.job_id::text then
      tids := tids || v_task.tid;
      v_is_taken := true;
    else
      v_units := _whole_units(v_task.units, v_task.provider is not null);
      v_amounts := '{}';
      v_short := null;
      if v_budgets ? v_task.job_id::text or v_limits -> v_task.tenant_id::text ? 'cost' then
        v_cost := _estimated_cost(v_task.provider, v_task.tenant_id, v_task.units);
        if v_cost is null then
          v_short := 'price';
        else
          v_units := v_units || jsonb_build_object('cost', v_cost);
          if v_budgets ? v_task.job_id::text then
            v_amounts := jsonb_build_object('cost', v_cost);
            if v_cost > (v_left ->> (v_task.job_id || ':cost'))::numeric then
              v_short := 'budget';
            end if;
          end if;
        end if;
      end if;
      for v_meter in select k from jsonb_object_keys(v_units) as k where v_limits -> v_task.tenant_id::text ? k loop
        exit when v_short is not null;
        v_amounts := v_amounts || jsonb_build_object(v_meter, v_units -> v_meter);
        if (v_units ->> v_meter)::numeric > 0 and (v_units ->> v_meter)::numeric > (v_left ->> (v_task.tenant_id || ':' || v_meter))::numeric then
          if v_limits #>> array[v_task.tenant_id::text, v_meter, 'mode'] = 'enforce' then
            v_short := v_meter;
          else
            insert into usage_events (at, tenant_id, action, job_id, task_id, units, details)
            values (p_now, v_task.tenant_id, 'gate', v_task.job_id, v_task.task_id, '{}', jsonb_build_object('would_have_blocked', v_meter));
          end if;
        end if;
      end loop;
      if v_short = 'price' then
        perform _set_aside(array[v_task.tid], format('price: %s has none', v_task.provider), 'price',
          coalesce((select min(p.valid_from) from prices p where p.provider = v_task.provider and p.valid_from > p_now), 'infinity'));
      elsif v_short = 'budget' then
        perform _set_aside(array[v_task.tid], format('budget: %s left of %s, needs up to %s', trim_scale((v_left ->> (v_task.job_id || ':cost'))::numeric),
          trim_scale((v_budgets ->> v_task.job_id::text)::numeric), trim_scale(v_cost)), 'budget', 'infinity');
      elsif v_short is not null and v_task.on_limit = 'refuse' then
        perform _set_aside(array[v_task.tid], 'quota: ' || v_short, 'refused', 'infinity');
        is_refused := true;
      elsif v_short is not null then
        -- Whether it waits, or the whole job pauses, is seen to by upkeep.
        is_refused := is_refused or v_task.on_limit = 'pause';
        perform _set_aside(array[v_task.tid], format('quota: %s, %s left of %s', v_short, greatest(0, trim_scale((v_left ->> (v_task.tenant_id || ':' || v_short))::numeric)),
          v_limits #>> array[v_task.tenant_id::text, v_short, 'limit']), v_short, (v_limits #>> array[v_task.tenant_id::text, v_short, 'resets_at'])::timestamptz);
      else
        for v_meter in select k from jsonb_object_keys(v_amounts) as k loop
          if v_limits -> v_task.tenant_id::text ? v_meter then
            v_key := v_task.tenant_id || ':' || v_meter;
            v_left := v_left || jsonb_build_object(v_key, (v_left ->> v_key)::numeric - (v_amounts ->> v_meter)::numeric);
          end if;
        end loop;
        if v_budgets ? v_task.job_id::text then
          v_key := v_task.job_id || ':cost';
          v_left := v_left || jsonb_build_object(v_key, (v_left ->> v_key)::numeric - v_cost);
        end if;
        tids := tids || v_task.tid;
        v_is_taken := true;
        held := held || v_task.task_id;
        amounts := amounts || jsonb_build_object('tenant_id', v_task.tenant_id, 'job_id', v_task.job_id, 'amounts', v_amounts, 'has_budget', v_budgets ? v_task.job_id::text);
        v_bookings := v_bookings || array(
          select row(v_task.tenant_id, null, u.key, (_period(u.key, p_now)).starts, 0, u.value::numeric)::booking from jsonb_each_text(v_amounts) as u);
        if v_budgets ? v_task.job_id::text then
          v_bookings := v_bookings || row(v_task.tenant_id, v_task.job_id, 'cost', date 'epoch', 0, v_cost)::booking;
        end if;
      end if;
    end if;
    if not v_is_taken then
      unused_jobs := unused_jobs || v_task.job_id;
      unused_tasks := unused_tasks || v_task.task_id;
    end if;
  end loop;
  perform _book(v_bookings);
end
$$;
comment on function penstock._reserve_tasks(tid[], timestamptz, boolean) is
  'Of tasks that are about to be claimed: sets aside what their tenants'' quotas and their jobs'' budgets have room for, and takes the others out of the line. Names those that were counted in a window for nothing.';

create or replace function penstock._free_unclaimed(p_held bigint[], p_amounts jsonb[], p_now timestamptz)
returns void language sql set search_path = penstock, pg_temp as $$
  select _book(array(
    select b from unnest(p_held, p_amounts) as h(task_id, amounts)
    cross join lateral unnest(_freed(row(null, (h.amounts ->> 'tenant_id')::uuid, (h.amounts ->> 'job_id')::uuid, h.task_id, null, null, 'claim',
      h.amounts -> 'amounts', '{}', (h.amounts ->> 'has_budget')::boolean, 'held', p_now, null, null)::holds)) as b
    where not exists (select from leases l where l.task_id = h.task_id)))
$$;
comment on function penstock._free_unclaimed(bigint[], jsonb[], timestamptz) is
  'Gives back what was set aside for tasks whose job was stopped before they had a lease.';

create or replace function penstock._admit(p_kinds text[], p_max integer, p_stopped uuid[], p_now timestamptz,
  p_is_first boolean, p_is_empty boolean, p_is_patient boolean,
  out tids tid[], out lanes integer[], out held bigint[], out amounts jsonb[], out is_more boolean, out has_booked boolean)
language plpgsql set search_path = penstock, pg_temp as $$
-- How its statements are planned is set by claim_tasks, which is the only one to call it.
declare
  v_lane record;
  v_endpoint endpoints;
  v_state endpoint_states;
  v_room record;
  v_line tid[];
  v_fit record;
  v_busy integer;
  v_has_state boolean := false;
  v_chosen integer[] := '{}';
  v_closed integer[];
  v_reserved record;
  v_is_limited boolean;
  v_unused record;
begin
  tids := '{}';
  lanes := '{}';
  held := '{}';
  amounts := '{}';
  is_more := false;
  has_booked := false;
  v_closed := array(select s.endpoint_id from endpoint_states s where s.open_at > p_now or s.closed_until > p_now);
  for v_lane in
    -- In any order, and looked at one by one until there is enough.
    select l.* from (
      select x.id, x.provider, x.endpoint_id, case when x.swept_at < p_now - interval '1 second' then 0 else x.read_from end as read_from
      from penstock.lanes x
      where x.is_gated and (p_kinds is null or x.kind = any (p_kinds)) and (x.endpoint_id is null or x.endpoint_id <> all (v_closed))
      order by random() offset 0) as l
    where exists (select from ready r where r.lane_id = l.id and r.vtime >= l.read_from)
  loop
    exit when cardinality(tids) >= p_max;
    v_room := null;
    if v_lane.endpoint_id is not null then
      -- First without a lock: most lanes that wait have no place free, and who can take nothing should hold nothing.
      select * into v_endpoint from endpoints where id = v_lane.endpoint_id;
      continue when v_endpoint.status <> 'active' or _places(v_endpoint, p_now) < 1;
      select * into v_state from endpoint_states where endpoint_id = v_lane.endpoint_id for no key update skip locked;
      if not found then
        -- Somebody else is just taking from it.
        v_busy := v_lane.endpoint_id;
        continue;
      end if;
      v_has_state := true;
      select * into v_endpoint from endpoints where id = v_lane.endpoint_id;
      continue when v_state.open_at > p_now or v_state.closed_until > p_now or v_endpoint.status <> 'active';
      if not p_is_patient and not _can_spend(v_endpoint.id, p_now) then
        is_more := true;
        continue;
      end if;
      v_room := _room(v_endpoint, v_state, p_now);
      -- What we chose for it from another lane has no lease yet.
      v_room.places := v_room.places - cardinality(array_positions(v_chosen, v_endpoint.id));
      if v_room.places < 1 then
        continue;
      end if;
    else
      v_endpoint := null;
      select null::bigint as requests, null::bigint as tokens, null::bigint as places, null::bigint as most_requests, null::bigint as most_tokens into v_room;
    end if;
    v_line := array(
      select r.ctid from ready r where r.lane_id = v_lane.id and r.vtime >= v_lane.read_from and r.job_id <> all (p_stopped)
      -- One more than there is room for, to know when that one will fit.
      order by r.vtime limit least(p_max - cardinality(tids), v_room.places, v_room.requests + 1)
      for update skip locked);
    continue when v_line = '{}';
    if exists (select from mixed m where m.lane_id = v_lane.id) then
      v_line := _prefer(v_line);
    end if;
    if v_endpoint.id is null then
      tids := tids || v_line;
      lanes := lanes || v_lane.id;
      continue;
    end if;
    -- Most often there is room for all of them.
    select v_line as tids, coalesce(sum(u.n * s.requests), 0)::bigint as requests, coalesce(sum(u.n * s.tokens), 0)::bigint as tokens,
      null::bigint as next_requests, null::bigint as next_tokens, null::tid[] as huge
    into v_fit from (
      -- Many are alike.
      select t.units, count(*) as n from ready r join tasks t on t.job_id = r.job_id and t.id = r.task_id
      where r.ctid = any (v_line) group by t.units) as u
    cross join lateral _size(u.units, v_endpoint.default_tokens) as s;
    if v_fit.requests > v_room.requests or v_fit.tokens > v_room.tokens then
      -- In their order, as far as they fit. What is too large for any window is set aside.
      with sized as (
        select r.ctid as tid, r.vtime, r.task_id, s.requests, s.tokens,
          coalesce(s.requests > v_room.most_requests, false) or coalesce(s.tokens > v_room.most_tokens, false) as is_huge
        from ready r
        cross join lateral (select x.units from tasks x where x.job_id = r.job_id and x.id = r.task_id offset 0) as t
        cross join lateral _size(t.units, v_endpoint.default_tokens) as s
        where r.ctid = any (v_line)
      ), lined as (
        select z.*, sum(z.requests) over w as all_requests, sum(z.tokens) over w as all_tokens from sized z where not z.is_huge
        window w as (order by z.vtime, z.task_id rows unbounded preceding)
      ), judged as (
        select d.*, coalesce(d.all_requests > v_room.requests, false) or coalesce(d.all_tokens > v_room.tokens, false) as is_over from lined d
      )
      select array_agg(j.tid order by j.vtime, j.task_id) filter (where not j.is_over) as tids,
        coalesce(sum(j.requests) filter (where not j.is_over), 0)::bigint as requests, coalesce(sum(j.tokens) filter (where not j.is_over), 0)::bigint as tokens,
        (array_agg(j.requests order by j.vtime, j.task_id) filter (where j.is_over))[1] as next_requests,
        (array_agg(j.tokens order by j.vtime, j.task_id) filter (where j.is_over))[1] as next_tokens,
        (select array_agg(z.tid) from sized z where z.is_huge) as huge
      into v_fit from judged j;
    end if;
    if v_fit.huge is not null then
      perform _set_aside(v_fit.huge, format('limit: more at once than %s ever has', v_endpoint.name), 'limit', 'infinity');
      is_more := true;
    end if;
    if v_fit.tids is not null then
      perform _spend(v_endpoint, p_now, v_fit.requests, v_fit.tokens);
      tids := tids || v_fit.tids;
      lanes := lanes || v_lane.id;
      v_chosen := v_chosen || array_fill(v_endpoint.id, array[cardinality(v_fit.tids)]);
    end if;
    if v_fit.next_requests is not null then
      -- Nobody needs to look before the next one fits.
      update endpoint_states set open_at = _opens_at(v_endpoint, v_fit.next_requests, v_fit.next_tokens, p_now),
        open_for = case when v_room.requests - v_fit.requests < v_fit.next_requests then 'requests' else 'tokens' end
      where endpoint_id = v_endpoint.id;
    end if;
  end loop;

  if tids = '{}' and v_busy is not null and p_is_empty then
    -- With nothing in hand, no other endpoint's state either, there is nothing to lose by waiting for a turn.
    if p_is_first and not v_has_state then
      perform 1 from endpoint_states where endpoint_id = v_busy for no key update;
    end if;
    -- The caller tries again.
    is_more := true;
  end if;
  if tids <> '{}' then
    select exists (
      select from (select distinct r.tenant_id, r.job_id from ready r where r.ctid = any (tids)) as d
      cross join lateral (select t.plan from tenants t where t.id = d.tenant_id offset 0) as t
      cross join lateral (select j.budget from jobs j where j.id = d.job_id offset 0) as j
      where t.plan is not null or j.budget is not null or exists (select from tenant_limits x where x.tenant_id = d.tenant_id)) into v_is_limited;
    if v_is_limited then
      v_line := tids;
      has_booked := true;
      select * into v_reserved from _reserve_tasks(tids, p_now, p_is_patient);
      tids := v_reserved.tids;
      held := v_reserved.held;
      amounts := v_reserved.amounts;
      if v_reserved.is_refused then
        perform pg_notify('penstock', 'chores');
      end if;
      if cardinality(tids) < cardinality(v_line) then
        is_more := true;
      end if;
      -- What is not claimed after all leaves its room in the windows to others. Their state and slots are in our hand.
      for v_unused in
        select e as endpoint, sum(s.requests)::bigint as requests, sum(s.tokens)::bigint as tokens
        from unnest(v_reserved.unused_jobs, v_reserved.unused_tasks) as u(job_id, task_id)
        join tasks t on t.job_id = u.job_id and t.id = u.task_id
        join penstock.lanes n on n.id = t.lane_id join endpoints e on e.id = n.endpoint_id
        cross join lateral _size(t.units, e.default_tokens) as s group by e.id, e order by e.id
      loop
        perform _spend(v_unused.endpoint, p_now, -v_unused.requests, -v_unused.tokens);
        update endpoint_states set open_at = 'epoch' where endpoint_id = (v_unused.endpoint).id and open_at > p_now;
      end loop;
    end if;
  end if;
end
$$;
comment on function penstock._admit(text[], integer, uuid[], timestamptz, boolean, boolean, boolean) is
  'Chooses what may be claimed from gated lanes: in order, within each provider''s windows and concurrency, within quotas and budgets. Counts what it chose.';

create or replace function penstock.next_opening(p_task_types text[] default null)
returns double precision language sql stable security definer set search_path = penstock, pg_temp as $$
  select extract(epoch from min(x.at) - _now())::double precision from (
    select greatest(s.open_at, s.closed_until) as at
    from lanes l join endpoints e on e.name = l.provider and e.tenant_id is not distinct from l.tenant_id
    join endpoint_states s on s.endpoint_id = e.id
    where l.is_gated and (p_task_types is null or l.kind = any (p_task_types)) and e.status = 'active'
      and greatest(s.open_at, s.closed_until) > _now() and isfinite(greatest(s.open_at, s.closed_until))
      and exists (select from ready r where r.lane_id = l.id)
    union all
    -- What was put in line behind a lane's clock is met by the next claim that looks at the whole lane; with no other
    -- work there would be none for a long time.
    select max(l.swept_at) + interval '1 second' from lanes l
    where (p_task_types is null or l.kind = any (p_task_types)) and l.swept_at >= _now() - interval '1 second' and not exists (
      select from endpoint_states s where s.endpoint_id = l.endpoint_id and greatest(s.open_at, s.closed_until) > _now())
  ) as x
$$;
comment on function penstock.next_opening(text[]) is
  'In how many seconds a claim that found nothing may find something without a word: a lane that is full or closed opens, or one is looked at whole. null: unknown.';

create or replace function penstock._refuse_waiting()
returns integer language plpgsql set search_path = penstock, pg_temp as $$
declare
  v_gone leases[];
  v_reasons text[];
begin
  with due as (
    select p.ctid from parked p where p.waits_for = 'refused' order by p.job_id, p.task_id limit 1000 for update skip locked
  ), gone as (
    delete from parked p where p.ctid = any (array(select ctid from due)) returning *
  )
  select array_agg(row(g.task_id, 0, g.job_id, g.tenant_id, g.lane_id, g.priority, g.phase, g.failures, g.deaths, g.has_parents, g.has_children,
      false, 'quota', _now(), _now(), null, null, false, null)::leases order by g.task_id),
    array_agg(g.reason || ' has no room' order by g.task_id)
  into v_gone, v_reasons from gone g;
  if v_gone is null then
    return 0;
  end if;
  perform _bury(v_gone, array_fill('permanent'::text, array[cardinality(v_gone)]), array_fill('quota_exceeded'::text, array[cardinality(v_gone)]), v_reasons);
  return cardinality(v_gone);
end
$$;
comment on function penstock._refuse_waiting() is 'Ends tasks for which a quota had no room, in jobs that say so.';
