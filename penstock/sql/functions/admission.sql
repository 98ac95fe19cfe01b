-- Admission: which work may run now. Lanes whose tasks name a provider or units are gated. Before the claim
-- takes a task from one, the windows and the concurrency of its endpoint must have room for it, and then its
-- tenant's quotas and its job's budget (reservations.sql). A task that does not fit into a window keeps its
-- slot. A task without quota or budget is parked, so that it blocks no other.

create or replace function penstock._check_demands(p_job penstock.jobs, p_specs penstock.task_spec[])
returns jsonb language plpgsql stable set search_path = penstock, pg_temp as $$
declare
  v_now timestamptz := _now();
  v_index integer;
  v_group record;
  v_endpoint endpoints;
  v_delays jsonb := '{}';
begin
  select x.n - 1 into v_index from (
    select s.n, u.key, u.value from unnest(p_specs) with ordinality as s(
      kind, key, input, after, after_failure, phase, provider, units, priority, run_at, max_attempts,
      timeout_seconds, idempotency_key, route, confirm, n)
    cross join lateral jsonb_each(
      case jsonb_typeof(s.units) when 'object' then s.units else '{}' end) as u) as x
  where x.key = 'cost' or not exists (select from meters m where m.name = x.key)
    or case jsonb_typeof(x.value) when 'number' then x.value::numeric not between 0 and 1000000000000
      else true end
  limit 1;
  if found then
    perform _check_units((p_specs[v_index + 1]).units, format('tasks[%s].units', v_index));
  end if;
  for v_group in
    select s.provider, count(*) as n, min(s.n) - 1 as first,
      max(z.requests) as requests, max(z.tokens) as tokens
    from unnest(p_specs) with ordinality as s(
      kind, key, input, after, after_failure, phase, provider, units, priority, run_at, max_attempts,
      timeout_seconds, idempotency_key, route, confirm, n)
    cross join lateral _call_size(s.units, 0) as z
    where s.provider is not null group by s.provider
  loop
    v_endpoint := _endpoint(v_group.provider, p_job.tenant_id);
    if v_endpoint.id is null then
      perform _refuse(422, 'unknown_provider',
        format('task %s names an unknown provider %L', v_group.first, left(v_group.provider, 200)),
        jsonb_build_object('field', format('tasks[%s].provider', v_group.first)),
        'Declare it with penstock.set_provider.');
    end if;
    if v_group.requests > least(v_endpoint.requests_per_minute, v_endpoint.requests_per_hour)
       or v_group.tokens > least(v_endpoint.tokens_per_minute, v_endpoint.tokens_per_hour) then
      perform _refuse(422, 'over_limit',
        format('a task needs %s requests and %s tokens, more than %s allows in any window',
          v_group.requests, v_group.tokens, v_group.provider),
        jsonb_build_object('field', 'tasks.units', 'provider', v_group.provider));
    end if;
    if p_job.budget is not null and not _has_price(v_group.provider, p_job.tenant_id, v_now) then
      perform _refuse(422, 'no_price',
        format('%s has no price: a job with a budget cannot use it', v_group.provider),
        jsonb_build_object(
          'field', format('tasks[%s].provider', v_group.first), 'provider', v_group.provider),
        'Add one with penstock.set_price.');
    end if;
    perform _check_queue_depth(v_endpoint, p_job.tenant_id, v_group.n);
    if _is_under_pressure(v_endpoint, v_now) then
      v_delays := v_delays || jsonb_build_object(v_group.provider, v_endpoint.backpressure_delay_seconds);
    end if;
  end loop;
  return v_delays;
end
$$;
comment on function penstock._check_demands(penstock.jobs, penstock.task_spec[]) is
  'Rejects tasks with an invalid provider or units, or whose queue is full. Returns the delay in seconds '
  'for the tasks of each provider under pressure.';

create or replace function penstock._queue_room(p_endpoint penstock.endpoints, p_tenant_id uuid)
returns bigint language plpgsql stable set search_path = penstock, pg_temp as $$
declare
  v_own bigint;
  v_tenants bigint;
begin
  if p_endpoint.depth_limit is null then
    return null;
  end if;
  -- The shares of all tenants together are a few times the limit at most, so more rows tell nothing.
  select count(*) filter (where x.tenant_id = p_tenant_id), count(distinct x.tenant_id)
    + (count(*) filter (where x.tenant_id = p_tenant_id) = 0)::integer into v_own, v_tenants
  from (
    select r.tenant_id from lanes l join ready r on r.lane_id = l.id
    where l.provider = p_endpoint.name and l.tenant_id is not distinct from p_endpoint.tenant_id
    limit 10 * p_endpoint.depth_limit::bigint) as x;
  -- A tenant that is alone may fill the queue; it leaves a share to each that comes.
  return greatest(least(p_endpoint.depth_limit, 1), p_endpoint.depth_limit / v_tenants) - v_own;
end
$$;
comment on function penstock._queue_room(penstock.endpoints, uuid) is
  'How many more tasks of a tenant may wait for an endpoint (null: any number): its share of depth_limit, '
  'which is divided by the number of tenants that wait, at least 1, minus its waiting tasks.';

create or replace function penstock._check_queue_depth(
  p_endpoint penstock.endpoints, p_tenant_id uuid, p_more bigint)
returns void language plpgsql stable set search_path = penstock, pg_temp as $$
declare
  v_waiting bigint;
begin
  if p_more > _queue_room(p_endpoint, p_tenant_id) then
    select count(*) into v_waiting from (
      select from lanes l join ready r on r.lane_id = l.id and r.tenant_id = p_tenant_id
      where l.provider = p_endpoint.name and l.tenant_id is not distinct from p_endpoint.tenant_id
      limit 10 * p_endpoint.depth_limit::bigint) as x;
    perform _refuse(429, 'queue_full',
      format('%s tasks of this tenant wait for %s: %s more would exceed its share of the queue',
        v_waiting, p_endpoint.name, p_more),
      jsonb_build_object('provider', p_endpoint.name, 'waiting', v_waiting));
  end if;
end
$$;
comment on function penstock._check_queue_depth(penstock.endpoints, uuid, bigint) is
  'Rejects tasks that would exceed the tenant''s share of an endpoint''s queue: depth_limit divided by the '
  'number of tenants that wait, at least 1. Tells nothing of other tenants.';

create or replace function penstock._is_under_pressure(p_endpoint penstock.endpoints, p_now timestamptz)
returns boolean language plpgsql stable set search_path = penstock, pg_temp as $$
declare
  v_free_share double precision := 1 - p_endpoint.backpressure_threshold;
  v_state endpoint_states;
  v_capacity capacity;
begin
  if p_endpoint.backpressure_threshold is null or p_endpoint.backpressure_delay_seconds is null
     or p_endpoint.backpressure_delay_seconds <= 0 then
    return false;
  end if;
  select * into v_state from endpoint_states where endpoint_id = p_endpoint.id;
  v_capacity := _free_capacity(p_endpoint, v_state, p_now);
  return coalesce(v_capacity.requests < v_free_share * p_endpoint.requests_per_minute, false)
    or coalesce(v_capacity.tokens < v_free_share * p_endpoint.tokens_per_minute, false)
    or coalesce(v_capacity.places < v_free_share * p_endpoint.concurrency, false);
end
$$;
comment on function penstock._is_under_pressure(penstock.endpoints, timestamptz) is
  'Whether more of an endpoint''s capacity is used than its backpressure_threshold, so that new tasks are '
  'delayed.';

create or replace function penstock._pick_gated(
  p_lanes integer[], p_max integer, p_stopped uuid[], p_now timestamptz,
  p_is_first_round boolean, p_holds_nothing boolean, p_may_wait boolean)
returns penstock.claim_pick language plpgsql set search_path = penstock, pg_temp as $$
-- Lock order: see claim.sql. Its statements are planned with the settings of claim_tasks, its only caller.
declare
  v_pick claim_pick := row('{}', '{}', '{}', false, false);
  v_lane record;
  v_gate record;
  v_capacity capacity;
  v_tids tid[];
  v_fit window_fit;
  v_admitted integer[] := '{}';
  v_busy integer;
  v_has_locked boolean := false;
  v_closed integer[] := array(
    select s.endpoint_id from endpoint_states s where s.open_at > p_now or s.closed_until > p_now);
begin
  for v_lane in
    -- In random order, one by one until there are enough tasks.
    select l.* from (
      select x.id, x.endpoint_id,
        case when x.swept_at < p_now - interval '1 second' then 0 else x.read_from end as read_from
      from lanes x
      where x.id = any (p_lanes) and x.is_gated
        and (x.endpoint_id is null or x.endpoint_id <> all (v_closed))
      order by random() offset 0) as l
    where exists (select from ready r where r.lane_id = l.id and r.vtime >= l.read_from)
  loop
    exit when cardinality(v_pick.tids) >= p_max;
    v_gate := _enter_endpoint(v_lane.endpoint_id, v_admitted, p_now, p_may_wait);
    v_has_locked := v_has_locked or v_gate.is_locked;
    v_busy := case when v_gate.verdict = 'busy' then v_lane.endpoint_id else v_busy end;
    v_pick.is_more := v_pick.is_more or v_gate.verdict = 'later';
    continue when v_gate.verdict <> 'open';
    v_capacity := v_gate.capacity;
    -- One more than there is room for: its size tells when the window opens for it.
    v_tids := _pick_from_lane(v_lane.id, v_lane.read_from, p_stopped,
      least(p_max - cardinality(v_pick.tids), v_capacity.places, v_capacity.requests + 1));
    continue when v_tids = '{}';
    if v_lane.endpoint_id is not null then
      v_fit := _fit_into_windows(v_tids, v_gate.endpoint, v_capacity);
      perform _admit(v_gate.endpoint, v_capacity, v_fit, p_now);
      v_pick.is_more := v_pick.is_more or v_fit.oversized is not null;
      v_tids := coalesce(v_fit.tids, '{}');
      v_admitted := v_admitted || array_fill(v_lane.endpoint_id, array[cardinality(v_tids)]);
    end if;
    v_pick.tids := v_pick.tids || v_tids;
    v_pick.gated_lane_ids := v_pick.gated_lane_ids || v_lane.id;
  end loop;
  if v_pick.tids = '{}' and v_busy is not null and p_holds_nothing then
    -- Every endpoint that has room is locked by another claim: wait for one, then let the caller try again.
    if p_is_first_round and not v_has_locked then
      perform 1 from endpoint_states where endpoint_id = v_busy for no key update;
    end if;
    v_pick.is_more := true;
  end if;
  return _reserve_pick(v_pick, p_now, p_may_wait);
end
$$;
comment on function penstock._pick_gated(
  integer[], integer, uuid[], timestamptz, boolean, boolean, boolean) is
  'Locks the next rows of ready in gated lanes, in order and within the windows and the concurrency of their '
  'endpoints, within quotas and budgets, and counts them there.';

create or replace function penstock._pick_from_lane(
  p_lane_id integer, p_read_from bigint, p_stopped uuid[], p_max bigint)
returns tid[] language plpgsql set search_path = penstock, pg_temp as $$
declare
  v_tids tid[];
begin
  v_tids := array(
    select r.ctid from ready r
    where r.lane_id = p_lane_id and r.vtime >= p_read_from and r.job_id <> all (p_stopped)
    order by r.vtime limit p_max for update skip locked);
  if v_tids <> '{}' and exists (select from mixed m where m.lane_id = p_lane_id) then
    v_tids := _swap_in_best_priority(v_tids);
  end if;
  if v_tids <> '{}' and exists (select from gates g where g.mode = 'enforce' and g.kinds <> '{}') then
    v_tids := _park_gated(v_tids, _now());
  end if;
  return v_tids;
end
$$;
comment on function penstock._pick_from_lane(integer, bigint, uuid[], bigint) is
  'Locks the next rows of ready in one lane and returns them.';

create or replace function penstock._enter_endpoint(
  p_endpoint_id integer, p_admitted integer[], p_now timestamptz, p_may_wait boolean,
  out verdict text, out is_locked boolean, out endpoint penstock.endpoints, out capacity penstock.capacity)
language plpgsql set search_path = penstock, pg_temp as $$
declare
  v_state endpoint_states;
begin
  is_locked := false;
  verdict := 'open';
  if p_endpoint_id is null then
    return;
  end if;
  -- First without a lock: most endpoints that tasks wait for have no free place.
  select * into endpoint from endpoints where id = p_endpoint_id;
  if endpoint.status <> 'active' or _free_concurrency(endpoint, p_now) < 1 then
    verdict := case when endpoint.status = 'active' then 'full' else 'closed' end;
    return;
  end if;
  select * into v_state from endpoint_states where endpoint_id = p_endpoint_id for no key update skip locked;
  is_locked := found;
  if not found then
    verdict := 'busy';
    return;
  end if;
  select * into endpoint from endpoints where id = p_endpoint_id;
  if v_state.open_at > p_now or v_state.closed_until > p_now or endpoint.status <> 'active' then
    verdict := 'closed';
  elsif not p_may_wait and not _can_count_calls(p_endpoint_id, p_now) then
    verdict := 'later';
  else
    capacity := _free_capacity(endpoint, v_state, p_now);
    -- Tasks admitted from another lane of this endpoint have no lease yet.
    capacity.places := capacity.places - cardinality(array_positions(p_admitted, p_endpoint_id));
    verdict := case when capacity.places < 1 then 'full' else 'open' end;
  end if;
end
$$;
comment on function penstock._enter_endpoint(integer, integer[], timestamptz, boolean) is
  'Locks an endpoint''s state so that one claim at a time counts in its windows, and returns what it has '
  'free. The verdict is open, full, closed, busy (locked by another claim) or later (counting would have to '
  'wait).';

create or replace function penstock._fit_into_windows(
  p_tids tid[], p_endpoint penstock.endpoints, p_capacity penstock.capacity)
returns penstock.window_fit language plpgsql set search_path = penstock, pg_temp as $$
declare
  v_fit window_fit;
begin
  -- Most often all of them fit, and many have the same size.
  select p_tids, coalesce(sum(u.n * s.requests), 0)::bigint, coalesce(sum(u.n * s.tokens), 0)::bigint,
    null::bigint, null::bigint, null::tid[]
  into v_fit from (
    select t.units, count(*) as n from ready r join tasks t on t.job_id = r.job_id and t.id = r.task_id
    where r.ctid = any (p_tids) group by t.units) as u
  cross join lateral _call_size(u.units, p_endpoint.default_tokens) as s;
  if v_fit.requests > p_capacity.requests or v_fit.tokens > p_capacity.tokens then
    with sized as (
      select r.ctid as tid, r.vtime, r.task_id, s.requests, s.tokens,
        coalesce(s.requests > p_capacity.max_requests, false)
          or coalesce(s.tokens > p_capacity.max_tokens, false) as is_oversized
      from ready r
      cross join lateral (
        select x.units from tasks x where x.job_id = r.job_id and x.id = r.task_id offset 0) as t
      cross join lateral _call_size(t.units, p_endpoint.default_tokens) as s
      where r.ctid = any (p_tids)
    ), summed as (
      select z.*, sum(z.requests) over w as all_requests, sum(z.tokens) over w as all_tokens
      from sized z where not z.is_oversized
      window w as (order by z.vtime, z.task_id rows unbounded preceding)
    ), judged as (
      select s.*, coalesce(s.all_requests > p_capacity.requests, false)
        or coalesce(s.all_tokens > p_capacity.tokens, false) as is_over from summed s
    )
    select array_agg(j.tid order by j.vtime, j.task_id) filter (where not j.is_over),
      coalesce(sum(j.requests) filter (where not j.is_over), 0)::bigint,
      coalesce(sum(j.tokens) filter (where not j.is_over), 0)::bigint,
      (array_agg(j.requests order by j.vtime, j.task_id) filter (where j.is_over))[1],
      (array_agg(j.tokens order by j.vtime, j.task_id) filter (where j.is_over))[1],
      (select array_agg(z.tid) from sized z where z.is_oversized)
    into v_fit from judged j;
  end if;
  return v_fit;
end
$$;
comment on function penstock._fit_into_windows(tid[], penstock.endpoints, penstock.capacity) is
  'Which of these tasks fit into what is left of an endpoint''s windows: the first ones, in order, until '
  'one does not fit.';

create or replace function penstock._admit(
  p_endpoint penstock.endpoints, p_capacity penstock.capacity, p_fit penstock.window_fit, p_now timestamptz)
returns void language plpgsql set search_path = penstock, pg_temp as $$
begin
  if p_fit.oversized is not null then
    perform _park(p_fit.oversized, format('limit: needs more than %s allows in any window', p_endpoint.name),
      'limit', 'infinity');
  end if;
  if p_fit.tids is not null then
    perform _count_calls(p_endpoint, p_now, p_fit.requests, p_fit.tokens);
  end if;
  if p_fit.next_requests is not null then
    -- No claim has to look at this endpoint before the next task fits.
    update endpoint_states set
      open_at = _opens_at(p_endpoint, p_fit.next_requests, p_fit.next_tokens, p_now),
      open_for = case when p_capacity.requests - p_fit.requests < p_fit.next_requests
        then 'requests' else 'tokens' end
    where endpoint_id = p_endpoint.id;
  end if;
end
$$;
comment on function penstock._admit(
  penstock.endpoints, penstock.capacity, penstock.window_fit, timestamptz) is
  'Counts the tasks that fit in the windows of their endpoint, parks those that never fit, and closes the '
  'endpoint until the next one fits.';

create or replace function penstock._park(p_tids tid[], p_reason text, p_waits_for text, p_until timestamptz)
returns void language sql set search_path = penstock, pg_temp as $$
  with gone as (
    delete from ready r where r.ctid = any (p_tids)
    returning _ready_to_parked(r, p_until, p_reason, p_waits_for) as task
  )
  insert into parked select (g.task).* from gone g
$$;
comment on function penstock._park(tid[], text, text, timestamptz) is
  'Moves tasks from ready to parked until there is room for them.';

create or replace function penstock._retry_parked(p_waits_for text, p_lane_ids integer[], p_at timestamptz)
returns void language sql set search_path = penstock, pg_temp as $$
  -- Without waiting: the next upkeep finds the rows that are locked now.
  update parked set until = least(until, p_at) where ctid = any (array(
    select ctid from parked where waits_for = p_waits_for and lane_id = any (p_lane_ids)
    for no key update skip locked))
$$;
comment on function penstock._retry_parked(text, integer[], timestamptz) is
  'Makes the tasks of these lanes that wait for a limit or a price due at a given time.';

create or replace function penstock._next_provider_opening(p_task_types text[], p_now timestamptz)
returns timestamptz language plpgsql stable set search_path = penstock, pg_temp as $$
begin
  return (
    select min(greatest(s.open_at, s.closed_until))
    from lanes l join endpoints e on e.name = l.provider and e.tenant_id is not distinct from l.tenant_id
    join endpoint_states s on s.endpoint_id = e.id
    where l.is_gated and (p_task_types is null or l.kind = any (p_task_types)) and e.status = 'active'
      and greatest(s.open_at, s.closed_until) > p_now and isfinite(greatest(s.open_at, s.closed_until))
      and (exists (select from ready r where r.lane_id = l.id)
        -- Tasks in other lanes may have a route to this one.
        or exists (select from routed_lanes q join lanes o on o.id = q.lane_id
          where o.kind = l.kind and exists (select from ready r where r.lane_id = o.id))));
end
$$;
comment on function penstock._next_provider_opening(text[], timestamptz) is
  'When the next endpoint opens that ready tasks of these kinds wait for, or null.';

create or replace function penstock.next_opening(p_task_types text[] default null)
returns double precision language plpgsql stable security definer set search_path = penstock, pg_temp
  -- In plpgsql, because each call of a function in SQL plans it again, which took most of its time.
  set enable_seqscan = off set plan_cache_mode = force_generic_plan set jit = off as $$
declare
  v_now timestamptz := _now();
  v_lanes integer[] := _lanes_to_claim(p_task_types);
  v_at timestamptz;
begin
  -- A task queued behind a lane's clock is found by the next claim that reads the whole lane. With no other
  -- work there would be no such claim for a long time.
  select max(l.swept_at) + interval '1 second' into v_at from lanes l
  where l.id = any (v_lanes) and l.swept_at >= v_now - interval '1 second'
    and not exists (
      select from endpoint_states s
      where s.endpoint_id = l.endpoint_id and greatest(s.open_at, s.closed_until) > v_now);
  if exists (select from lanes l where l.id = any (v_lanes) and l.is_gated) then
    v_at := least(v_at, _next_provider_opening(p_task_types, v_now));
  end if;
  return extract(epoch from v_at - v_now)::double precision;
end
$$;
comment on function penstock.next_opening(text[]) is
  'In how many seconds a claim that found nothing may find something without being notified: an endpoint '
  'opens, or a lane is read whole. Null: unknown.';
