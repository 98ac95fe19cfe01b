-- Simulation of a job's remaining work: when it will end, and what limits it.
--
-- The state of a simulation is one array of figures: the ended tasks of each group, the free workers, then
-- the free requests, the free tokens and the free concurrency of each endpoint. A task that starts takes from
-- the figures at once, and leaves events that give back later: it ends, and its call leaves the window of the
-- last minute. The events of the next steps are kept in a ring of such arrays; each step adds the array that
-- is due to the state, then starts as many tasks as the state allows.

create or replace function penstock._recent_durations(
  p_kind text, p_provider text, out seconds double precision, out spread double precision,
  out samples integer)
language sql stable set search_path = penstock, pg_temp as $$
  -- The latest tasks that succeeded, found through the
  -- usage of the provider, or else through the latest jobs.
  select avg(x.s), coalesce(stddev_samp(x.s), 0), count(*)::integer from (
    select extract(epoch from r.finished_at - r.started_at) as s from (
      select u.job_id, u.task_id from usage_events u where u.provider = p_provider and u.action = p_kind
        order by u.id desc limit 200) as u
    join results r on r.job_id = u.job_id and r.task_id = u.task_id and r.outcome = 'succeeded'
    union all
    select extract(epoch from r.finished_at - r.started_at) from (
      select j.id from jobs j where p_provider is null order by j.id desc limit 20) as j
    cross join lateral (select t.id from tasks t where t.job_id = j.id and t.kind = p_kind limit 50) as t
    join results r on r.job_id = j.id and r.task_id = t.id and r.outcome = 'succeeded') as x
$$;
comment on function penstock._recent_durations(text, text) is
  'The mean duration of recent tasks of a kind, its standard deviation, and the number of samples.';

create or replace function penstock._endpoint_capacities(
  p_tenant_id uuid, p_providers text[], out names text[], out requests double precision[],
  out tokens double precision[], out places double precision[], out opens_in double precision[])
language plpgsql stable set search_path = penstock, pg_temp as $$
declare
  c_unlimited constant double precision := 1e18;
  v_now timestamptz := _now();
  v_provider text;
  v_endpoint endpoints;
  v_state endpoint_states;
  v_free capacity;
begin
  names := '{}';
  requests := '{}';
  tokens := '{}';
  places := '{}';
  opens_in := '{}';
  foreach v_provider in array p_providers loop
    v_endpoint := _endpoint(v_provider, p_tenant_id);
    select * into v_state from endpoint_states where endpoint_id = v_endpoint.id;
    v_free := _free_capacity(v_endpoint, v_state, v_now);
    names := names || v_provider;
    requests := requests || coalesce(v_free.requests, c_unlimited)::double precision;
    tokens := tokens || coalesce(v_free.tokens, c_unlimited)::double precision;
    places := places || coalesce(v_free.places, c_unlimited)::double precision;
    opens_in := opens_in || case when v_endpoint.status = 'active' and isfinite(v_state.closed_until)
      then greatest(0, extract(epoch from v_state.closed_until - v_now))
        else c_unlimited end::double precision;
  end loop;
end
$$;
comment on function penstock._endpoint_capacities(uuid, text[]) is
  'The free requests, tokens and concurrency of endpoints, and the seconds until each opens; 1e18: '
  'unlimited, or never.';

create or replace function penstock._simulated_groups(
  p_groups penstock.forecast_group[], p_endpoints text[], p_opens_in double precision[])
returns penstock.simulated_group[] language sql stable set search_path = penstock, pg_temp as $$
  select array_agg(row(g.count, coalesce(g.running, 0), coalesce(g.seconds, 1),
      least(coalesce(g.spread, 0), 0.8 * coalesce(g.seconds, 1)),
      coalesce((g.units ->> 'requests')::double precision / x.count, 1), x.tokens,
      -- An estimate is an upper bound; only a few samples say nothing about what is really used.
      x.tokens * case when g.cost_samples >= 3 then least(1, g.cost_ratio) else 1 end,
      g.parents, g.provider, p_opens_in[e.n], g.n, x.groups + 1, x.groups + 1 + e.n,
      x.groups + 1 + x.endpoints + e.n, x.groups + 1 + 2 * x.endpoints + e.n)::simulated_group order by g.n)
  from unnest(p_groups) with ordinality as g(kind, provider, count, running, cost, deviation, units, parents,
    seconds, spread, samples, cost_ratio, cost_spread, cost_samples, n)
  cross join lateral (
    select greatest(1, g.count) as count, cardinality(p_groups) as groups,
      cardinality(p_endpoints) as endpoints,
      coalesce((g.units ->> 'tokens')::double precision / greatest(1, g.count), 0) as tokens) as x
  cross join lateral (select array_position(p_endpoints, g.provider) as n) as e
$$;
comment on function penstock._simulated_groups(
  penstock.forecast_group[], text[], double precision[]) is
  'The groups of a forecast with what one of their tasks needs, and the places of their figures.';

create or replace function penstock._end_events(
  p_group penstock.simulated_group, p_tasks double precision, p_delay double precision)
returns penstock.simulated_event[] language plpgsql immutable set search_path = penstock, pg_temp as $$
begin
  if p_group.request_slot is null then
    return array[row(p_delay, p_group.task_slot, p_tasks), row(p_delay, p_group.worker_slot, p_tasks)
      ]::simulated_event[];
  end if;
  return array[row(p_delay, p_group.task_slot, p_tasks), row(p_delay, p_group.worker_slot, p_tasks),
    row(p_delay, p_group.place_slot, p_tasks),
    -- Once a call has ended, only the tokens that it really used count.
    row(p_delay, p_group.token_slot, p_tasks * (p_group.tokens - p_group.used_tokens))]::simulated_event[];
end
$$;
comment on function penstock._end_events(penstock.simulated_group, double precision, double precision) is
  'What the end of tasks gives back: their workers and concurrency, and the tokens they did not use.';

create or replace function penstock._start_events(
  p_group penstock.simulated_group, p_tasks double precision)
returns penstock.simulated_event[] language plpgsql immutable set search_path = penstock, pg_temp as $$
declare
  -- A third of the tasks ends at the mean duration, a third this many standard deviations earlier and a third
  -- later, which gives the three values the measured standard deviation: the square root of 3/2.
  c_deviations constant double precision := 1.22;
  -- Calls count in the window of a minute for this long: see capacity.sql.
  c_window constant double precision := 60.75;
  v_events simulated_event[] := '{}';
begin
  for v_third in -1 .. 1 loop
    v_events := v_events || _end_events(p_group, p_tasks / 3,
      p_group.seconds + v_third * c_deviations * p_group.spread);
  end loop;
  if p_group.request_slot is not null then
    v_events := v_events || array[
      row(c_window, p_group.request_slot, p_tasks * p_group.requests),
      row(c_window, p_group.token_slot, p_tasks * p_group.used_tokens)]::simulated_event[];
  end if;
  return v_events;
end
$$;
comment on function penstock._start_events(penstock.simulated_group, double precision) is
  'What tasks that start now give back later.';

create or replace function penstock._first_events(
  p_tenant_id uuid, p_groups penstock.simulated_group[], p_state double precision[])
returns penstock.simulated_event[] language plpgsql stable set search_path = penstock, pg_temp as $$
declare
  v_now double precision := extract(epoch from _now());
  v_events simulated_event[] := '{}';
  v_group simulated_group;
  v_used record;
begin
  -- Running tasks end evenly distributed over the duration of a task: four quarters, the last a little before
  -- the duration is over.
  foreach v_group in array p_groups loop
    for v_quarter in 1 .. 4 loop
      v_events := v_events || _end_events(v_group, v_group.running / 4, v_group.seconds * v_quarter / 4.5);
    end loop;
  end loop;
  for v_used in
    select u.*, e.id, greatest(0, e.concurrency - p_state[u.place_slot] - u.running) as places
    from (
      select g.provider, g.request_slot, g.token_slot, g.place_slot, avg(g.seconds) as seconds,
        sum(g.running) as running
      from unnest(p_groups) as g where g.provider is not null group by 1, 2, 3, 4) as u
    cross join lateral _endpoint(u.provider, p_tenant_id) as e
  loop
    -- The concurrency that other jobs use returns in the same way.
    for v_quarter in 1 .. 4 loop
      v_events := v_events || row(v_used.seconds * v_quarter / 4.5, v_used.place_slot,
        v_used.places / 4)::simulated_event;
    end loop;
    -- Requests and tokens return when they leave the window of the last minute.
    v_events := v_events || array(
      select row(_slot_ends(s.width, s.slot) - v_now, u.slot, u.amount)::simulated_event
      from spent s cross join lateral (
        values (v_used.request_slot, s.requests), (v_used.token_slot, s.tokens)) as u(slot, amount)
      where s.endpoint_id = v_used.id and s.width = 1 and _slot_ends(s.width, s.slot) > v_now);
  end loop;
  return v_events;
end
$$;
comment on function penstock._first_events(uuid, penstock.simulated_group[], double precision[]) is
  'What tasks and calls that run now, of this job and of others, give back later.';

create or replace function penstock._startable(
  p_groups penstock.simulated_group[], p_group penstock.simulated_group, p_started double precision,
  p_state double precision[], p_time double precision, out tasks double precision, out limited_by text)
language plpgsql immutable set search_path = penstock, pg_temp as $$
declare
  -- Sums of thirds and quarters of tasks are not exact.
  c_rounding constant double precision := 0.001;
begin
  -- The same share of the group may start as has ended of its parents.
  tasks := least(p_group.count - p_started, floor(c_rounding + p_group.count * coalesce((
    select min(p_state[a] / greatest(1, p_groups[a].count)) from unnest(p_group.parents) as a), 1)
    - p_started));
  if tasks < 1 then
    return;
  end if;
  if tasks > p_state[p_group.worker_slot] then
    tasks := p_state[p_group.worker_slot];
    limited_by := 'workers';
  end if;
  if p_group.request_slot is not null then
    if p_group.opens_in > p_time then
      tasks := 0;
      limited_by := p_group.provider || ' is closed';
    end if;
    if tasks > p_state[p_group.place_slot] then
      tasks := p_state[p_group.place_slot];
      limited_by := p_group.provider || ' concurrency';
    end if;
    if tasks * p_group.requests > p_state[p_group.request_slot] then
      tasks := p_state[p_group.request_slot] / p_group.requests;
      limited_by := p_group.provider || ' requests per minute';
    end if;
    if tasks * p_group.tokens > p_state[p_group.token_slot] then
      tasks := p_state[p_group.token_slot] / p_group.tokens;
      limited_by := p_group.provider || ' tokens per minute';
    end if;
  end if;
  tasks := floor(tasks + c_rounding);
end
$$;
comment on function penstock._startable(
  penstock.simulated_group[], penstock.simulated_group, double precision, double precision[],
  double precision) is
  'How many tasks of a group can start now, and what keeps the others back.';

create or replace function penstock._finish_behind_others(
  p_tenant_id uuid, p_provider text, p_seconds double precision, p_requests double precision,
  p_tokens double precision)
returns double precision language sql stable set search_path = penstock, pg_temp as $$
  select greatest(p_seconds, 3600 * (p_requests / nullif(e.requests_per_hour, 0) - 1),
    3600 * (p_tokens / nullif(e.tokens_per_hour, 0) - 1),
    -- Tenants take turns, so at most as many tasks of others go first as this tenant has.
    p_seconds + 60 * least(p_requests, (select count(*) from (
      select from lanes l join ready r on r.lane_id = l.id
      where l.endpoint_id = e.id and r.tenant_id <> p_tenant_id limit 100000) as x))
      / nullif(e.requests_per_minute, 0))
  from _endpoint(p_provider, p_tenant_id) as e
$$;
comment on function penstock._finish_behind_others(
  uuid, text, double precision, double precision, double precision) is
  'Extends a simulated finish by the hourly limits of an endpoint and the waiting tasks of other tenants.';

create or replace function penstock._run_simulation(
  p_groups penstock.simulated_group[], p_state double precision[], p_events penstock.simulated_event[],
  p_workers double precision, out seconds double precision, out limits text[])
language plpgsql immutable set search_path = penstock, pg_temp as $$
declare
  c_steps constant integer := 30000;
  v_longest double precision := (select max(g.seconds) from unnest(p_groups) as g);
  -- Short enough for the fastest tasks, and long enough for the whole job to fit into c_steps.
  v_step double precision := greatest(0.2, v_longest / 1000,
    (select sum(g.count * g.seconds) from unnest(p_groups) as g) / p_workers / 3000);
  v_state double precision[] := p_state;
  v_width constant integer := cardinality(p_state);
  -- Every event is due before the ring is round: calls after a minute, tasks within twice their duration.
  v_size integer := ceil(greatest(62, 3 * v_longest) / v_step)::integer + 2;
  v_ring double precision[] := array_fill(0::double precision, array[v_size * v_width]);
  v_started double precision[] := array(select g.running from unnest(p_groups) as g);
  v_events simulated_event[] := p_events;
  v_event simulated_event;
  v_group simulated_group;
  v_start record;
  v_slot integer;
begin
  limits := '{}';
  for v_tick in 0 .. c_steps loop
    v_slot := v_tick % v_size * v_width;
    for i in 1 .. v_width loop
      v_state[i] := v_state[i] + v_ring[v_slot + i];
      v_ring[v_slot + i] := 0;
    end loop;
    seconds := v_tick * v_step;
    exit when not exists (select from unnest(p_groups) as g where v_state[g.task_slot] < g.count - 0.01);
    foreach v_group in array p_groups loop
      continue when v_group.count - v_started[v_group.task_slot] < 1;
      v_start := _startable(p_groups, v_group, v_started[v_group.task_slot], v_state, seconds);
      limits := limits || v_start.limited_by;
      continue when v_start.tasks < 1;
      v_started[v_group.task_slot] := v_started[v_group.task_slot] + v_start.tasks;
      v_state[v_group.worker_slot] := v_state[v_group.worker_slot] - v_start.tasks;
      if v_group.request_slot is not null then
        v_state[v_group.place_slot] := v_state[v_group.place_slot] - v_start.tasks;
        v_state[v_group.request_slot] := v_state[v_group.request_slot] - v_start.tasks * v_group.requests;
        v_state[v_group.token_slot] := v_state[v_group.token_slot] - v_start.tasks * v_group.tokens;
      end if;
      v_events := v_events || _start_events(v_group, v_start.tasks);
    end loop;
    foreach v_event in array v_events loop
      v_slot := (v_tick + least(v_size - 1, greatest(1, round(v_event.delay / v_step)))::integer) % v_size
        * v_width + v_event.slot;
      v_ring[v_slot] := v_ring[v_slot] + v_event.amount;
    end loop;
    v_events := '{}';
  end loop;
  if seconds = c_steps * v_step then
    -- Beyond the simulated time, extrapolate the speed so far. Null: no task has ended.
    seconds := seconds * (
      select sum(g.count) / nullif(sum(v_state[g.task_slot]), 0) from unnest(p_groups) as g);
  end if;
end
$$;
comment on function penstock._run_simulation(
  penstock.simulated_group[], double precision[], penstock.simulated_event[], double precision) is
  'Runs the steps of a simulation: the seconds until all tasks have ended, and what held tasks back in each '
  'step.';

create or replace function penstock._simulated_finish(
  p_tenant_id uuid, p_groups penstock.forecast_group[], out seconds double precision, out bottleneck text,
  out workers double precision)
language plpgsql stable set search_path = penstock, pg_temp as $$
declare
  v_capacity record;
  v_groups simulated_group[];
  v_state double precision[];
  v_run record;
  v_total record;
begin
  workers := greatest(1, (
    select sum(w.concurrency) from workers w
    where w.state = 'running' and w.beat_at > _now() - interval '60 seconds'
      and w.kinds && array(select g.kind from unnest(p_groups) as g)));
  if cardinality(p_groups) = 0 then
    seconds := 0;
    return;
  end if;
  v_capacity := _endpoint_capacities(p_tenant_id, array(
    select distinct g.provider from unnest(p_groups) as g where g.provider is not null order by 1));
  v_groups := _simulated_groups(p_groups, v_capacity.names, v_capacity.opens_in);
  v_state := array_fill(0::double precision, array[cardinality(v_groups)])
    || (workers - (select sum(g.running) from unnest(v_groups) as g))
    || v_capacity.requests || v_capacity.tokens || v_capacity.places;
  v_run := _run_simulation(v_groups, v_state, _first_events(p_tenant_id, v_groups, v_state), workers);
  seconds := v_run.seconds;
  for v_total in
    select g.provider, sum(g.count * g.requests) as requests, sum(g.count * g.used_tokens) as tokens
    from unnest(v_groups) as g where g.provider is not null group by g.provider
  loop
    seconds := _finish_behind_others(p_tenant_id, v_total.provider, seconds, v_total.requests,
      v_total.tokens);
  end loop;
  bottleneck := (
    select l from unnest(v_run.limits::text[]) as l where l is not null
    group by l order by count(*) desc limit 1);
end
$$;
comment on function penstock._simulated_finish(uuid, penstock.forecast_group[]) is
  'Simulates when groups of tasks will have ended, with the current workers, rate limits and concurrency. '
  'Null: never under the current limits. The bottleneck is the limit that held tasks back most often.';
