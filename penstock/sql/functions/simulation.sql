-- Simulation of a job's remaining work: when it will end, and what limits it.

create or replace function penstock._pace_of(p_kind text, p_provider text, out seconds double precision,
  out spread double precision, out samples integer)
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
comment on function penstock._pace_of(text, text) is
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
  v_room record;
begin
  names := '{}';
  requests := '{}';
  tokens := '{}';
  places := '{}';
  opens_in := '{}';
  foreach v_provider in array p_providers loop
    v_endpoint := _endpoint(v_provider, p_tenant_id);
    select * into v_state from endpoint_states where endpoint_id = v_endpoint.id;
    v_room := _free_capacity(v_endpoint, v_state, v_now);
    names := names || v_endpoint.name;
    requests := requests || coalesce(v_room.requests, c_unlimited)::double precision;
    tokens := tokens || coalesce(v_room.tokens, c_unlimited)::double precision;
    places := places || coalesce(v_room.places, c_unlimited)::double precision;
    opens_in := opens_in || case when v_endpoint.status = 'active' and isfinite(v_state.closed_until)
      then greatest(0, extract(epoch from v_state.closed_until - v_now))
        else c_unlimited end::double precision;
  end loop;
end
$$;
comment on function penstock._endpoint_capacities(uuid, text[]) is
  'The free requests, tokens and concurrency of endpoints, and the seconds until each opens; 1e18: '
  'unlimited, or never.';

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

-- Simulates the job in steps of v_step seconds. In each step tasks end and capacity
-- returns; then each group starts as many tasks as its parents, the workers and its
-- endpoint allow. Future events are kept in rings: element [step * groups + group]
-- or [step * endpoints + endpoint] of an array that covers the next v_ring steps.
create or replace function penstock._simulate_finish(
  p_tenant_id uuid, p_groups jsonb, out seconds double precision, out bottleneck text,
  out workers double precision)
language plpgsql stable set search_path = penstock, pg_temp as $$
declare
  c_steps constant integer := 30000;
  v_now timestamptz := _now();
  v_groups integer := jsonb_array_length(p_groups);
  v_kinds text[] := array(select g ->> 'kind' from jsonb_array_elements(p_groups) as g);
  -- by group; tokens are the estimate of a task, actuals what it really uses
  v_counts double precision[] := '{}';
  v_seconds double precision[] := '{}';
  v_spreads double precision[] := '{}';
  v_requests double precision[] := '{}';
  v_tokens double precision[] := '{}';
  v_actuals double precision[] := '{}';
  v_endpoints integer[] := '{}';
  v_started double precision[] := '{}';
  v_done double precision[];
  -- by endpoint
  v_names text[];
  v_request_room double precision[];
  v_token_room double precision[];
  v_places double precision[];
  v_opens_in double precision[];
  v_endpoint_count integer;
  v_endpoint endpoints;
  -- rings
  v_step double precision;
  v_ring integer;
  v_ends double precision[];
  v_request_back double precision[];
  v_token_back double precision[];
  v_place_back double precision[];
  v_offset integer;
  v_slot integer;
  -- in a step
  v_busy double precision := 0;
  v_start double precision;
  v_amount double precision;
  v_amount_tokens double precision;
  v_mean double precision;
  v_limit text;
  v_limits text[] := '{}';
  v_is_finished boolean;
  -- the endpoint of a group; 0: none
  e integer;
begin
  workers := greatest(1, (
    select sum(w.concurrency) from workers w
    where w.state = 'running' and w.beat_at > v_now - interval '60 seconds' and w.kinds && v_kinds));
  if v_groups = 0 then
    seconds := 0;
    return;
  end if;

  -- Read the groups and the capacity of their endpoints.
  select c.names, c.requests, c.tokens, c.places, c.opens_in
  into v_names, v_request_room, v_token_room, v_places, v_opens_in
  from _endpoint_capacities(p_tenant_id, array(
    select g.value ->> 'provider' from jsonb_array_elements(p_groups) with ordinality as g(value, n)
    where g.value ->> 'provider' is not null group by 1 order by min(g.n))) as c;
  select array_agg(g.count order by g.n), array_agg(g.running order by g.n),
    array_agg(g.seconds order by g.n), array_agg(least(g.spread, 0.8 * g.seconds) order by g.n),
    array_agg(coalesce(g.requests / greatest(1, g.count), 1) order by g.n),
    array_agg(coalesce(g.tokens / greatest(1, g.count), 0) order by g.n),
    array_agg(coalesce(g.tokens / greatest(1, g.count), 0) * g.cost_ratio order by g.n),
    array_agg(case when g.provider is null then 0 else array_position(v_names, g.provider) end order by g.n)
  into v_counts, v_started, v_seconds, v_spreads, v_requests, v_tokens, v_actuals, v_endpoints
  from (
    select x.n, x.g ->> 'provider' as provider, (x.g ->> 'count')::double precision as count,
      coalesce((x.g ->> 'running')::double precision, 0) as running,
      (x.g ->> 'seconds')::double precision as seconds, (x.g ->> 'spread')::double precision as spread,
      (x.g #>> '{units,requests}')::double precision as requests,
      (x.g #>> '{units,tokens}')::double precision as tokens,
        (x.g ->> 'cost_ratio')::double precision as cost_ratio
    from jsonb_array_elements(p_groups) with ordinality as x(g, n)) as g;

  -- Steps are short enough for the fastest tasks and long enough for the whole job to fit into c_steps.
  v_endpoint_count := greatest(1, cardinality(v_names));
  v_step := greatest(0.2, (select max(s) from unnest(v_seconds) as s) / 1000,
    (select sum(c * s) from unnest(v_counts, v_seconds) as x(c, s)) / workers / 3000);
  v_ring := ceil(greatest(62, 3 * (select max(s) from unnest(v_seconds) as s)) / v_step)::integer + 2;
  v_ends := array_fill(0::double precision, array[v_ring * v_groups]);
  v_request_back := array_fill(0::double precision, array[v_ring * v_endpoint_count]);
  v_token_back := array_fill(0::double precision, array[v_ring * v_endpoint_count]);
  v_place_back := array_fill(0::double precision, array[v_ring * v_endpoint_count]);
  v_done := array_fill(0::double precision, array[v_groups]);

  -- Running tasks end evenly distributed over the duration of a task.
  for i in 1 .. v_groups loop
    v_busy := v_busy + v_started[i];
    for k in 1 .. 4 loop
      v_slot := (greatest(1, round(v_seconds[i] * k / 4.5 / v_step)))::integer * v_groups + i;
      v_ends[v_slot] := v_ends[v_slot] + v_started[i] / 4;
    end loop;
  end loop;
  for i in 1 .. cardinality(v_names) loop
    -- The concurrency that other jobs use returns in the same way.
    v_endpoint := _endpoint(v_names[i], p_tenant_id);
    if v_endpoint.concurrency is not null then
      select v_endpoint.concurrency - v_places[i] - coalesce(sum(v_started[g]), 0),
        coalesce(avg(v_seconds[g]), 1)
      into v_amount, v_mean from generate_series(1, v_groups) as g where v_endpoints[g] = i;
      for k in 1 .. 4 loop
        v_slot := (greatest(1, round(v_mean * k / 4.5 / v_step)))::integer * v_endpoint_count + i;
        v_place_back[v_slot] := v_place_back[v_slot] + greatest(0, v_amount) / 4;
      end loop;
    end if;
    -- Requests and tokens return when they leave the window of the last minute.
    for v_offset, v_amount, v_amount_tokens in
      select least(v_ring - 1, greatest(1,
          ceil((_slot_ends(s.width, s.slot) - extract(epoch from v_now)) / v_step)))::integer,
        sum(s.requests)::double precision, sum(s.tokens)::double precision
      from spent s
      where s.endpoint_id = v_endpoint.id and s.width = 1
        and _slot_ends(s.width, s.slot) > extract(epoch from v_now)
      group by 1
    loop
      v_slot := v_offset * v_endpoint_count + i;
      v_request_back[v_slot] := v_request_back[v_slot] + v_amount;
      v_token_back[v_slot] := v_token_back[v_slot] + v_amount_tokens;
    end loop;
  end loop;

  for v_tick in 0 .. c_steps loop
    -- Capacity returns and tasks end.
    v_offset := v_tick % v_ring;
    v_is_finished := true;
    for i in 1 .. cardinality(v_names) loop
      v_slot := v_offset * v_endpoint_count + i;
      v_request_room[i] := v_request_room[i] + v_request_back[v_slot];
      v_token_room[i] := v_token_room[i] + v_token_back[v_slot];
      v_places[i] := v_places[i] + v_place_back[v_slot];
      v_request_back[v_slot] := 0;
      v_token_back[v_slot] := 0;
      v_place_back[v_slot] := 0;
    end loop;
    for i in 1 .. v_groups loop
      v_slot := v_offset * v_groups + i;
      v_amount := v_ends[v_slot];
      if v_amount > 0 then
        v_ends[v_slot] := 0;
        v_done[i] := v_done[i] + v_amount;
        v_busy := v_busy - v_amount;
        e := v_endpoints[i];
        if e > 0 then
          v_places[e] := v_places[e] + v_amount;
          -- Once a call has ended, only the tokens that it really used count.
          v_token_room[e] := v_token_room[e] + v_amount * (v_tokens[i] - v_actuals[i]);
        end if;
      end if;
      v_is_finished := v_is_finished and v_done[i] > v_counts[i] - 0.01;
    end loop;
    if v_is_finished then
      seconds := v_tick * v_step;
      exit;
    end if;

    -- Start as many tasks of each group as its parents, the workers and its endpoint allow.
    for i in 1 .. v_groups loop
      v_start := v_counts[i] - v_started[i];
      continue when v_start < 1;
      v_start := least(v_start, floor(0.001 + v_counts[i] * coalesce((
        select min(v_done[a::integer] / greatest(1, v_counts[a::integer]))
        from jsonb_array_elements_text(p_groups #> array[(i - 1)::text, 'after']) as a), 1) - v_started[i]));
      continue when v_start < 1;
      v_limit := null;
      if v_start > workers - v_busy then
        v_start := workers - v_busy;
        v_limit := 'workers';
      end if;
      e := v_endpoints[i];
      if e > 0 then
        if v_opens_in[e] > v_tick * v_step then
          v_start := 0;
          v_limit := v_names[e] || ' is closed';
        end if;
        if v_start > v_places[e] then
          v_start := v_places[e];
          v_limit := v_names[e] || ' concurrency';
        end if;
        if v_start * v_requests[i] > v_request_room[e] then
          v_start := v_request_room[e] / v_requests[i];
          v_limit := v_names[e] || ' requests per minute';
        end if;
        if v_start * v_tokens[i] > v_token_room[e] then
          v_start := v_token_room[e] / v_tokens[i];
          v_limit := v_names[e] || ' tokens per minute';
        end if;
      end if;
      if v_limit is not null then
        v_limits := v_limits || v_limit;
      end if;
      v_start := floor(v_start + 0.001);
      continue when v_start < 1;
      v_started[i] := v_started[i] + v_start;
      v_busy := v_busy + v_start;
      -- A third ends at the mean duration, a third 1.22 standard deviations earlier and
      -- a third later, which gives the three values the measured standard deviation.
      for k in -1 .. 1 loop
        v_slot := ((v_tick + greatest(1, round((v_seconds[i] + k * 1.22 * v_spreads[i]) / v_step))::integer)
          % v_ring) * v_groups + i;
        v_ends[v_slot] := v_ends[v_slot] + v_start / 3;
      end loop;
      if e > 0 then
        v_request_room[e] := v_request_room[e] - v_start * v_requests[i];
        v_token_room[e] := v_token_room[e] - v_start * v_tokens[i];
        v_places[e] := v_places[e] - v_start;
        v_slot := ((v_tick + ceil(60.75 / v_step)::integer) % v_ring) * v_endpoint_count + e;
        v_request_back[v_slot] := v_request_back[v_slot] + v_start * v_requests[i];
        v_token_back[v_slot] := v_token_back[v_slot] + v_start * v_actuals[i];
      end if;
    end loop;
  end loop;

  -- Beyond the simulated time, extrapolate the speed so far.
  if seconds is null and (select sum(d) from unnest(v_done) as d) > 0 then
    seconds := c_steps * v_step * (select sum(c) / sum(d) from unnest(v_counts, v_done) as x(c, d));
  end if;
  for i in 1 .. cardinality(v_names) loop
    select _finish_behind_others(p_tenant_id, v_names[i], seconds, sum(v_counts[g] * v_requests[g]),
      sum(v_counts[g] * v_actuals[g])) into seconds
    from generate_series(1, v_groups) as g where v_endpoints[g] = i;
  end loop;
  bottleneck := (select l from unnest(v_limits) as l group by l order by count(*) desc limit 1);
end
$$;
comment on function penstock._simulate_finish(uuid, jsonb) is
  'Simulates when groups of tasks will have ended, with the current workers, rate limits and concurrency. '
  'Null: never under the current limits. The bottleneck is the limit that held tasks back most often.';
