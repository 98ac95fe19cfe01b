-- Forecasts: why something waits, and what a job will cost and when it will end.

create or replace function penstock._ordinal(p_number bigint)
returns text language sql immutable set search_path = penstock, pg_temp as $$
  select p_number || case when p_number % 100 between 11 and 13 then 'th' else
    case p_number % 10 when 1 then 'st' when 2 then 'nd' when 3 then 'rd' else 'th' end end
$$;
comment on function penstock._ordinal(bigint) is '1st, 2nd, 3rd, 12th.';

create or replace function penstock._about(p_seconds double precision)
returns text language sql immutable set search_path = penstock, pg_temp as $$
  select case when p_seconds is null then null when p_seconds < 1 then 'less than 1 s' when p_seconds < 100 then format('about %s s', round(p_seconds))
    when p_seconds < 5400 then format('about %s min', round(p_seconds / 60)) when p_seconds < 172800 then format('about %s h', round(p_seconds / 3600))
    else format('about %s days', round(p_seconds / 86400)) end
$$;
comment on function penstock._about(double precision) is 'A duration for people.';

create or replace function penstock.explain_task(p_job_id uuid, p_task_id bigint)
returns jsonb language plpgsql stable security definer set search_path = penstock, pg_temp as $$
declare
  v_job jobs := _visible_job(p_job_id, array['owner', 'admin', 'member', 'viewer']);
  v_now timestamptz := _now();
  v_task tasks;
  v_status text;
  v_parked parked;
  v_ready ready;
  v_endpoint endpoints;
  v_state endpoint_states;
  v_room record;
  v_ahead record;
  v_place bigint;
  v_reason text;
  v_waits_for text;
  v_seconds double precision;
begin
  select * into v_task from tasks where job_id = p_job_id and id = p_task_id;
  if not found then
    perform _refuse(404, 'unknown_task', 'there is no such task');
  end if;
  select outcome into v_status from results where job_id = p_job_id and task_id = p_task_id;
  if found then
    return jsonb_build_object('status', v_status, 'text', v_status);
  end if;
  if v_job.status = 'canceled' then
    return jsonb_build_object('status', 'canceled', 'text', 'canceled: ' || coalesce(v_job.status_reason, 'with its job'));
  end if;
  if exists (select from leases where task_id = p_task_id) then
    return (select jsonb_build_object('status', 'running', 'worker_id', l.worker_id,
      'text', format('running on %s, %s so far', l.worker_id, replace(_about(extract(epoch from v_now - l.started_at)), 'about ', '')))
      from leases l where l.task_id = p_task_id);
  end if;
  select * into v_parked from parked where job_id = p_job_id and task_id = p_task_id;
  select * into v_ready from ready where tenant_id = v_task.tenant_id and lane_id = v_task.lane_id and priority = v_task.priority
    and job_id = p_job_id and task_id = p_task_id;
  v_status := 'queued';
  if v_parked.pending > 0 then
    v_status := 'blocked';
    v_waits_for := 'tasks';
    v_reason := format('%s task%s before it', v_parked.pending, case when v_parked.pending = 1 then '' else 's' end);
  elsif v_job.status = 'paused' then
    v_waits_for := 'job';
    v_reason := 'the job is paused' || coalesce(': ' || v_job.status_reason, '');
  elsif v_parked.waits_for = 'confirm' then
    v_waits_for := 'confirm';
    v_reason := format('confirmation: `penstock bulk confirm %s`', p_job_id);
  elsif v_parked.waits_for is not null then
    v_waits_for := v_parked.waits_for;
    v_reason := v_parked.reason;
    select count(*) + 1 into v_place from (
      select from parked p where p.tenant_id = v_task.tenant_id and p.waits_for = v_parked.waits_for and (p.job_id, p.task_id) < (p_job_id, p_task_id)
        and (p.waits_for <> 'budget' or p.job_id = p_job_id) limit 10000) as x;
    v_seconds := case when isfinite(v_parked.until) then greatest(0, extract(epoch from v_parked.until - v_now)) end;
  elsif v_parked.task_id is not null then
    v_waits_for := case when v_parked.reason = 'paused' then 'job' else 'time' end;
    v_reason := case v_parked.reason when 'retry' then 'the next attempt' when 'time' then 'its time' when 'paused' then 'its job to go on' else v_parked.reason end;
    v_seconds := case when isfinite(v_parked.until) then greatest(0, extract(epoch from v_parked.until - v_now)) end;
  else
    select count(*) + 1 into v_place from (
      select from ready r where r.lane_id = v_task.lane_id and r.vtime < v_ready.vtime limit 10000) as x;
    select e.* into v_endpoint from lanes l join endpoints e on e.name = l.provider and e.tenant_id is not distinct from l.tenant_id where l.id = v_task.lane_id;
    if (_setting('maintenance'))::boolean then
      v_waits_for := 'maintenance';
      v_reason := 'maintenance: nothing is claimed';
    elsif v_endpoint.status <> 'active' then
      v_waits_for := 'provider';
      v_reason := format('%s is %s', v_endpoint.name, case v_endpoint.status when 'maintenance' then 'under maintenance' else v_endpoint.status end);
    else
      select * into v_state from endpoint_states where endpoint_id = v_endpoint.id;
      select null::bigint as places, null::bigint as requests, null::bigint as tokens into v_room;
      -- Of the types that it has below: a session plans for those that it saw first.
      select 1::bigint as requests, 0::bigint as tokens into v_ahead;
      if v_endpoint.id is not null then
        v_room := _free_capacity(v_endpoint, v_state, v_now);
        select s.requests, s.tokens into v_ahead from _call_size(v_task.units, v_endpoint.default_tokens) as s;
        -- So many are ahead, each about as large as this one.
        v_seconds := greatest(case when isfinite(v_state.closed_until) then extract(epoch from greatest(v_state.closed_until, v_state.open_at) - v_now) end,
          60.0 * (v_place * v_ahead.requests - v_room.requests) / nullif(v_endpoint.requests_per_minute, 0),
          60.0 * (v_place * v_ahead.tokens - v_room.tokens) / nullif(v_endpoint.tokens_per_minute, 0),
          3600.0 * (v_place * v_ahead.requests - v_room.requests) / nullif(v_endpoint.requests_per_hour, 0),
          3600.0 * (v_place * v_ahead.tokens - v_room.tokens) / nullif(v_endpoint.tokens_per_hour, 0), 0);
      end if;
      if v_state.closed_until > v_now then
        v_waits_for := 'provider';
        v_reason := format('%s: %s', v_endpoint.name, v_state.closed_reason);
        if not isfinite(v_state.closed_until) then
          v_seconds := null;
        end if;
      elsif v_room.places < 1 then
        v_waits_for := 'concurrency';
        v_reason := format('%s concurrency, %s running', v_endpoint.name, v_endpoint.concurrency);
        v_seconds := nullif(v_seconds, 0);
      elsif v_place * v_ahead.requests > v_room.requests or v_place * v_ahead.tokens > v_room.tokens then
        v_waits_for := case when v_place * v_ahead.tokens > v_room.tokens then 'tokens' else 'requests' end;
        v_reason := format('%s %s', v_endpoint.name, v_waits_for);
      elsif not exists (select from workers w where w.state = 'running' and w.beat_at > v_now - interval '60 seconds' and v_task.kind = any (w.kinds)) then
        v_waits_for := 'worker';
        v_reason := format('no worker is there for %s', v_task.kind);
        v_seconds := null;
      else
        v_waits_for := 'worker';
        v_reason := 'a free worker';
        v_seconds := null;
      end if;
    end if;
  end if;
  return jsonb_build_object('status', v_status, 'waits_for', v_waits_for, 'reason', v_reason, 'seconds', round(v_seconds::numeric, 1), 'place', v_place,
    'text', 'waiting: ' || v_reason || coalesce(', ' || _about(v_seconds), '') || coalesce(', ' || _ordinal(v_place) || ' in line', ''));
end
$$;
comment on function penstock.explain_task(uuid, bigint) is
  'Why a task is not running: what it waits for, about how long, and its place in line; as fields and as one line of text.';

create or replace function penstock._waiting_task(p_job penstock.jobs)
returns bigint language plpgsql stable set search_path = penstock, pg_temp set enable_seqscan = off set jit = off as $$
declare
  v_task_id bigint := _ready_task(p_job);
begin
  if v_task_id is not null then
    return v_task_id;
  end if;
  -- Those that wait for their parents are explained by those.
  select task_id into v_task_id from (
    select task_id, pending from parked where job_id = p_job.id order by task_id limit 1000) as p
  order by pending > 0, task_id limit 1;
  return v_task_id;
end
$$;
comment on function penstock._waiting_task(penstock.jobs) is 'A task of the job that waits, the one that is nearest to its turn.';

create or replace function penstock.explain_job(p_job_id uuid)
returns jsonb language plpgsql stable security definer set search_path = penstock, pg_temp as $$
declare
  v_job jobs := _visible_job(p_job_id, array['owner', 'admin', 'member', 'viewer']);
  v_now timestamptz := _now();
  v_counts record;
  v_running bigint;
  v_task_id bigint;
  v_waits jsonb;
  v_text text;
  v_next text;
begin
  select coalesce(sum(total), 0) as total, coalesce(sum(succeeded), 0) as succeeded, coalesce(sum(failed), 0) as failed,
    coalesce(sum(succeeded + failed + canceled), 0) as done into v_counts from phases where job_id = p_job_id;
  if v_job.status = 'completed' then
    v_text := case when v_counts.succeeded = v_counts.total then format('All %s tasks succeeded.', v_counts.total)
      else format('%s of %s tasks succeeded, the others were left out.', v_counts.succeeded, v_counts.total) end;
  elsif v_job.status = 'failed' then
    v_text := format('%s of %s tasks failed%s.', v_counts.failed, v_counts.total, coalesce(': ' || (
      select string_agg(format('%s × %s', c.n, c.error_code), ', ' order by c.n desc, c.error_code) from (
        select d.error_code, count(*) as n from dead_letters d where d.job_id = p_job_id group by d.error_code order by 2 desc limit 3) as c), ''));
    v_next := 'Nothing more happens by itself. Retry runs the failed tasks again, and what was left out because of them.';
  elsif v_job.status = 'canceled' then
    v_text := format('Canceled with %s of %s tasks done%s.', v_counts.done, v_counts.total, coalesce(': ' || v_job.status_reason, ''));
  else
    select count(*) into v_running from leases where job_id = p_job_id and not is_canceled;
    v_task_id := _waiting_task(v_job);
    if v_task_id is not null then
      v_waits := explain_task(p_job_id, v_task_id);
    end if;
    if v_job.status = 'paused' then
      v_text := 'Paused' || coalesce(': ' || v_job.status_reason, '') || '.' || case when v_running > 0 then format(' %s running tasks end normally.', v_running) else '' end;
      v_next := 'Nothing new starts until it is resumed.';
    elsif v_job.run_at > v_now then
      v_text := format('Starts in %s.', replace(_about(extract(epoch from v_job.run_at - v_now)), 'about ', ''));
    elsif v_running > 0 then
      v_text := format('%s of %s tasks done, %s running.', v_counts.done, v_counts.total, v_running);
    else
      v_text := format('%s of %s tasks done, none running.', v_counts.done, v_counts.total);
    end if;
    if v_job.status <> 'paused' and v_waits is not null then
      v_next := 'The next task is ' || (v_waits ->> 'text') || '.';
    end if;
  end if;
  return jsonb_build_object('status', v_job.status, 'text', v_text, 'next', v_next, 'task_id', v_task_id, 'running', coalesce(v_running, 0));
end
$$;
comment on function penstock.explain_job(uuid) is 'How a job stands and what happens next, in words, with the task that is nearest to its turn.';

create or replace function penstock._pace_of(p_kind text, p_provider text, out seconds double precision, out spread double precision, out samples integer)
language sql stable set search_path = penstock, pg_temp as $$
  -- The last ones that succeeded. Where a provider is used its log leads to them, elsewhere the latest jobs do.
  select avg(x.s), coalesce(stddev_samp(x.s), 0), count(*)::integer from (
    select extract(epoch from r.finished_at - r.started_at) as s from (
      select u.job_id, u.task_id from usage_events u where u.provider = p_provider and u.action = p_kind order by u.id desc limit 200) as u
    join results r on r.job_id = u.job_id and r.task_id = u.task_id and r.outcome = 'succeeded'
    union all
    select extract(epoch from r.finished_at - r.started_at) from (
      select j.id from jobs j where p_provider is null order by j.id desc limit 20) as j
    cross join lateral (select t.id from tasks t where t.job_id = j.id and t.kind = p_kind limit 50) as t
    join results r on r.job_id = j.id and r.task_id = t.id and r.outcome = 'succeeded') as x
$$;
comment on function penstock._pace_of(text, text) is 'How long tasks of a kind took of late.';

create or replace function penstock._thrift_of(p_kind text, p_provider text, out mean numeric, out spread numeric, out samples integer)
language sql stable set search_path = penstock, pg_temp as $$
  -- Actual by estimated cost of the latest calls that reported what they used.
  select avg(x.ratio), coalesce(stddev_samp(x.ratio), 0), count(*)::integer from (
    select c.cost / nullif(_estimated_cost(p_provider, u.tenant_id, t.units), 0) as ratio
    from (select * from usage_events u where u.provider = p_provider and u.action = p_kind and not u.is_estimate and u.task_id is not null
      order by u.id desc limit 100) as u
    join tasks t on t.job_id = u.job_id and t.id = u.task_id
    cross join lateral (
      select sum(e.base_amount) as cost from cost_entries e where e.job_id = u.job_id and e.task_id = u.task_id and e.lease = u.lease) as c) as x
  where x.ratio is not null
$$;
comment on function penstock._thrift_of(text, text) is 'What calls cost in truth, as a part of their estimates.';

create or replace function penstock._finish_of(p_tenant_id uuid, p_groups jsonb, out seconds double precision, out bottleneck text, out workers double precision)
language plpgsql stable set search_path = penstock, pg_temp as $$
declare
  v_now timestamptz := _now();
  v_n integer := jsonb_array_length(p_groups);
  v_group jsonb;
  -- by group
  v_counts double precision[] := '{}';
  v_seconds double precision[] := '{}';
  v_spreads double precision[] := '{}';
  v_requests double precision[] := '{}';
  v_tokens double precision[] := '{}';
  v_actuals double precision[] := '{}';
  v_lanes integer[] := '{}';
  v_begun double precision[] := '{}';
  v_done double precision[];
  -- by endpoint
  v_names text[] := '{}';
  v_request_room double precision[] := '{}';
  v_token_room double precision[] := '{}';
  v_places double precision[] := '{}';
  v_opens double precision[] := '{}';
  v_m integer;
  v_endpoint endpoints;
  v_state endpoint_states;
  v_room record;
  -- what comes back, in rings of steps
  v_step double precision;
  v_ring integer;
  v_ends double precision[];
  v_request_back double precision[];
  v_token_back double precision[];
  v_place_back double precision[];
  v_kinds text[] := array(select g ->> 'kind' from jsonb_array_elements(p_groups) as g);
  v_at integer;
  v_place integer;
  v_free double precision;
  v_start double precision;
  v_busy double precision := 0;
  v_some double precision;
  v_limit text;
  v_limits text[] := '{}';
  v_is_through boolean;
begin
  workers := greatest(1, (select sum(w.concurrency) from workers w where w.state = 'running' and w.beat_at > v_now - interval '60 seconds' and w.kinds && v_kinds));
  for v_group in select * from jsonb_array_elements(p_groups) loop
    v_some := (v_group ->> 'count')::double precision;
    v_counts := v_counts || v_some;
    v_begun := v_begun || coalesce((v_group ->> 'running')::double precision, 0);
    v_seconds := v_seconds || (v_group ->> 'seconds')::double precision;
    v_spreads := v_spreads || least((v_group ->> 'spread')::double precision, 0.8 * (v_group ->> 'seconds')::double precision);
    v_requests := v_requests || coalesce((v_group #>> '{units,requests}')::double precision / greatest(1, v_some), 1);
    v_tokens := v_tokens || coalesce((v_group #>> '{units,tokens}')::double precision / greatest(1, v_some), 0);
    -- Once a call has ended, only what it really used counts.
    v_actuals := v_actuals || v_tokens[cardinality(v_tokens)] * (v_group ->> 'thrift')::double precision;
    if v_group ->> 'provider' is null then
      v_lanes := v_lanes || 0;
    else
      if array_position(v_names, v_group ->> 'provider') is null then
        v_endpoint := _endpoint(v_group ->> 'provider', p_tenant_id);
        select * into v_state from endpoint_states where endpoint_id = v_endpoint.id;
        v_room := _free_capacity(v_endpoint, v_state, v_now);
        v_names := v_names || v_endpoint.name;
        v_request_room := v_request_room || coalesce(v_room.requests, 1e18)::double precision;
        v_token_room := v_token_room || coalesce(v_room.tokens, 1e18)::double precision;
        v_places := v_places || coalesce(v_room.places, 1e18)::double precision;
        v_opens := v_opens || case when v_endpoint.status = 'active' and isfinite(v_state.closed_until) then greatest(0, extract(epoch from v_state.closed_until - v_now)) else 1e18 end::double precision;
      end if;
      v_lanes := v_lanes || array_position(v_names, v_group ->> 'provider');
    end if;
  end loop;
  if v_n = 0 then
    seconds := 0;
    return;
  end if;
  v_m := greatest(1, cardinality(v_names));
  -- Fine enough for the quickest, coarse enough for the longest.
  v_step := greatest(0.2, (select max(s) from unnest(v_seconds) as s) / 1000, (select sum(c * s) from unnest(v_counts, v_seconds) as x(c, s)) / workers / 3000);
  v_ring := ceil(greatest(62, 3 * (select max(s) from unnest(v_seconds) as s)) / v_step)::integer + 2;
  v_ends := array_fill(0::double precision, array[v_ring * v_n]);
  v_request_back := array_fill(0::double precision, array[v_ring * v_m]);
  v_token_back := array_fill(0::double precision, array[v_ring * v_m]);
  v_place_back := array_fill(0::double precision, array[v_ring * v_m]);
  v_done := array_fill(0::double precision, array[v_n]);
  for i in 1 .. v_n loop
    -- What runs already is anywhere on its way.
    v_busy := v_busy + v_begun[i];
    for k in 1 .. 4 loop
      v_place := (greatest(1, round(v_seconds[i] * k / 4.5 / v_step)))::integer * v_n + i;
      v_ends[v_place] := v_ends[v_place] + v_begun[i] / 4;
    end loop;
  end loop;
  for i in 1 .. cardinality(v_names) loop
    -- The places that others' calls have come back as those end, about when ours would.
    v_endpoint := _endpoint(v_names[i], p_tenant_id);
    if v_endpoint.concurrency is not null then
      select v_endpoint.concurrency - v_places[i] - coalesce(sum(v_begun[g]), 0), coalesce(avg(v_seconds[g]), 1) into v_free, v_some
      from generate_series(1, v_n) as g where v_lanes[g] = i;
      for k in 1 .. 4 loop
        v_place := (greatest(1, round(v_some * k / 4.5 / v_step)))::integer * v_m + i;
        v_place_back[v_place] := v_place_back[v_place] + greatest(0, v_free) / 4;
      end loop;
    end if;
    for v_at, v_free, v_some in
      select least(v_ring - 1, greatest(1, ceil((_slot_ends(s.width, s.slot) - extract(epoch from v_now)) / v_step)))::integer, sum(s.requests)::double precision, sum(s.tokens)::double precision
      from spent s where s.endpoint_id = (_endpoint(v_names[i], p_tenant_id)).id and s.width = 1 and _slot_ends(s.width, s.slot) > extract(epoch from v_now) group by 1
    loop
      v_place := v_at * v_m + i;
      v_request_back[v_place] := v_request_back[v_place] + v_free;
      v_token_back[v_place] := v_token_back[v_place] + v_some;
    end loop;
  end loop;

  for v_tick in 0 .. 30000 loop
    v_at := v_tick % v_ring;
    v_is_through := true;
    for e in 1 .. cardinality(v_names) loop
      v_place := v_at * v_m + e;
      v_request_room[e] := v_request_room[e] + v_request_back[v_place];
      v_token_room[e] := v_token_room[e] + v_token_back[v_place];
      v_places[e] := v_places[e] + v_place_back[v_place];
      v_request_back[v_place] := 0;
      v_token_back[v_place] := 0;
      v_place_back[v_place] := 0;
    end loop;
    for i in 1 .. v_n loop
      v_place := v_at * v_n + i;
      v_some := v_ends[v_place];
      if v_some > 0 then
        v_ends[v_place] := 0;
        v_done[i] := v_done[i] + v_some;
        v_busy := v_busy - v_some;
        if v_lanes[i] > 0 then
          v_places[v_lanes[i]] := v_places[v_lanes[i]] + v_some;
          v_token_room[v_lanes[i]] := v_token_room[v_lanes[i]] + v_some * (v_tokens[i] - v_actuals[i]);
        end if;
      end if;
      v_is_through := v_is_through and v_done[i] > v_counts[i] - 0.01;
    end loop;
    if v_is_through then
      seconds := v_tick * v_step;
      exit;
    end if;
    for i in 1 .. v_n loop
      v_start := v_counts[i] - v_begun[i];
      continue when v_start < 1;
      -- As far as all it comes after has ended.
      v_start := least(v_start, floor(0.001 + v_counts[i] * coalesce((
        select min(v_done[a::integer] / greatest(1, v_counts[a::integer])) from jsonb_array_elements_text(p_groups #> array[(i - 1)::text, 'after']) as a), 1) - v_begun[i]));
      continue when v_start < 1;
      v_limit := null;
      if v_start > workers - v_busy then
        v_start := workers - v_busy;
        v_limit := 'workers';
      end if;
      if v_lanes[i] > 0 then
        if v_opens[v_lanes[i]] > v_tick * v_step then
          v_start := 0;
          v_limit := v_names[v_lanes[i]] || ' is closed';
        end if;
        if v_start > v_places[v_lanes[i]] then
          v_start := v_places[v_lanes[i]];
          v_limit := v_names[v_lanes[i]] || ' concurrency';
        end if;
        if v_start * v_requests[i] > v_request_room[v_lanes[i]] then
          v_start := v_request_room[v_lanes[i]] / v_requests[i];
          v_limit := v_names[v_lanes[i]] || ' requests per minute';
        end if;
        if v_start * v_tokens[i] > v_token_room[v_lanes[i]] then
          v_start := v_token_room[v_lanes[i]] / v_tokens[i];
          v_limit := v_names[v_lanes[i]] || ' tokens per minute';
        end if;
      end if;
      if v_limit is not null then
        v_limits := v_limits || v_limit;
      end if;
      v_start := floor(v_start + 0.001);
      continue when v_start < 1;
      v_begun[i] := v_begun[i] + v_start;
      v_busy := v_busy + v_start;
      -- A third of them a little sooner, a third a little later than on average.
      for k in -1 .. 1 loop
        v_place := ((v_tick + greatest(1, round((v_seconds[i] + k * 1.22 * v_spreads[i]) / v_step))::integer) % v_ring) * v_n + i;
        v_ends[v_place] := v_ends[v_place] + v_start / 3;
      end loop;
      if v_lanes[i] > 0 then
        v_request_room[v_lanes[i]] := v_request_room[v_lanes[i]] - v_start * v_requests[i];
        v_token_room[v_lanes[i]] := v_token_room[v_lanes[i]] - v_start * v_tokens[i];
        v_places[v_lanes[i]] := v_places[v_lanes[i]] - v_start;
        v_place := ((v_tick + ceil(60.75 / v_step)::integer) % v_ring) * v_m + v_lanes[i];
        v_request_back[v_place] := v_request_back[v_place] + v_start * v_requests[i];
        v_token_back[v_place] := v_token_back[v_place] + v_start * v_actuals[i];
      end if;
    end loop;
  end loop;
  -- Past the horizon, at the pace so far.
  if seconds is null and (select sum(d) from unnest(v_done) as d) > 0 then
    seconds := 30000 * v_step * (select sum(c) / sum(d) from unnest(v_counts, v_done) as x(c, d));
  end if;
  for e in 1 .. cardinality(v_names) loop
    v_endpoint := _endpoint(v_names[e], p_tenant_id);
    select sum(v_counts[i] * v_requests[i]), sum(v_counts[i] * v_actuals[i]) into v_free, v_some from generate_series(1, v_n) as i where v_lanes[i] = e;
    seconds := greatest(seconds, 3600 * (v_free / nullif(v_endpoint.requests_per_hour, 0) - 1), 3600 * (v_some / nullif(v_endpoint.tokens_per_hour, 0) - 1),
      -- Others wait too, and have their turns: at most as many of theirs as of ours go first.
      seconds + 60 * least(v_free, (select count(*) from (select from lanes l join ready r on r.lane_id = l.id
        where l.endpoint_id = v_endpoint.id and r.tenant_id <> p_tenant_id limit 100000) as x)) / nullif(v_endpoint.requests_per_minute, 0));
  end loop;
  bottleneck := (select l from unnest(v_limits) as l group by l order by count(*) desc limit 1);
end
$$;
comment on function penstock._finish_of(uuid, jsonb) is
  'When groups of tasks will have ended: step by step, what the workers, the windows and the places let through. Null: never, as things are.';

create or replace function penstock._forecast(p_tenant_id uuid, p_groups jsonb)
returns jsonb language plpgsql stable set search_path = penstock, pg_temp as $$
declare
  v_now timestamptz := _now();
  v_groups jsonb := '[]';
  v_group jsonb;
  v_pace record;
  v_thrift record;
  v_finish record;
  v_total jsonb := '{}';
  v_cost numeric := 0;
  v_least numeric := 0;
  v_most numeric := 0;
  v_variance numeric := 0;
  v_doubt numeric := 0;
  v_low numeric;
  v_high numeric;
  v_cv double precision := 0;
  v_unpriced text[] := '{}';
  v_is_known boolean := true;
begin
  for v_group in select * from jsonb_array_elements(p_groups) loop
    v_total := _sum_units(v_total, coalesce(v_group -> 'units', '{}'));
    v_pace := _pace_of(v_group ->> 'kind', v_group ->> 'provider');
    v_thrift := _thrift_of(v_group ->> 'kind', v_group ->> 'provider');
    v_is_known := v_is_known and v_pace.samples > 0;
    v_cv := greatest(v_cv, v_pace.spread / nullif(v_pace.seconds, 0) / sqrt(greatest(1, (v_group ->> 'count')::double precision)));
    v_groups := v_groups || (v_group || jsonb_build_object('seconds', coalesce(v_pace.seconds, 1), 'spread', coalesce(v_pace.spread, 0),
      'thrift', case when v_thrift.samples >= 3 then least(1, v_thrift.mean) else 1 end));
    if v_group ->> 'cost' is not null then
      v_most := v_most + (v_group ->> 'cost')::numeric;
      v_doubt := v_doubt + power(coalesce((v_group ->> 'doubt')::numeric, 0), 2);
      if v_thrift.samples >= 3 then
        v_cost := v_cost + (v_group ->> 'cost')::numeric * v_thrift.mean;
        -- What is not known well: each task's own scatter, and the mean's.
        v_variance := v_variance + power((v_group ->> 'cost')::numeric * v_thrift.spread, 2) * (1 / greatest(1, (v_group ->> 'count')::numeric) + 1.0 / v_thrift.samples);
      else
        v_cost := v_cost + (v_group ->> 'cost')::numeric;
        v_least := v_least - (v_group ->> 'cost')::numeric * 0.9;
      end if;
    elsif v_group ->> 'provider' is not null then
      v_unpriced := v_unpriced || (v_group ->> 'provider');
    end if;
  end loop;
  v_low := greatest(0, v_cost + v_least - 2.2 * sqrt(v_variance + v_doubt) - 0.02 * v_cost);
  -- A task may cost less than its estimate, not more.
  v_high := greatest(v_cost, least(v_most + 2.2 * sqrt(v_doubt), v_cost + 2.2 * sqrt(v_variance + v_doubt) + 0.02 * v_cost));
  v_finish := _finish_of(p_tenant_id, v_groups);
  v_is_known := v_is_known and v_finish.seconds is not null;
  return jsonb_build_object(
    'tasks', (select coalesce(sum((g ->> 'count')::integer), 0) from jsonb_array_elements(p_groups) as g),
    'units', v_total,
    'cost', jsonb_build_object('low', round(v_low, 6), 'expected', round(v_cost, 6), 'high', round(v_high, 6),
      'currency', (_setting('base_currency')) #>> '{}', 'unpriced', to_jsonb(v_unpriced)),
    'quota', (select coalesce(jsonb_agg(jsonb_build_object('meter', l.meter, 'needs', x.needs, 'left', x.room, 'limit', l.amount, 'fits', x.needs <= x.room) order by l.meter), '[]')
      from _limits(p_tenant_id, v_now) as l
      left join accounts a on a.tenant_id = p_tenant_id and a.job_id is null and a.meter = l.meter and a.period = l.period
      cross join lateral (select case when l.meter = 'cost' then v_high else (v_total ->> l.meter)::numeric end as needs, l.amount - coalesce(a.used + a.held, 0) as room) as x
      where x.needs > 0),
    'finish', jsonb_build_object('seconds', case when v_is_known then round(v_finish.seconds::numeric, 1) end,
      'low', case when v_is_known then round((v_finish.seconds * greatest(0.5, 0.9 - coalesce(v_cv, 0)))::numeric, 1) end,
      'high', case when v_is_known then round((v_finish.seconds * (1.15 + coalesce(v_cv, 0)))::numeric, 1) end,
      'at', case when v_is_known then v_now + make_interval(secs => v_finish.seconds) end, 'workers', v_finish.workers, 'bottleneck', v_finish.bottleneck,
      'reason', case when v_is_known then null when v_finish.seconds is null then 'as things are it does not end: ' || coalesce(v_finish.bottleneck, 'nothing moves')
        else 'no task of this kind has ended yet' end));
end
$$;
comment on function penstock._forecast(uuid, jsonb) is 'Cost and finish of groups of tasks [{"kind", "provider", "count", "running", "units", "cost", "after": [group numbers]}].';

create or replace function penstock.forecast_job(p_type text, p_tasks jsonb, p_options jsonb default '{}')
returns jsonb language plpgsql security definer set search_path = penstock, pg_temp as $$
declare
  v_tenant_id uuid;
  v_budget numeric;
  v_times numeric;
  v_job jobs;
  v_specs task_spec[] := _parse_tasks(p_tasks);
  v_groups jsonb;
  v_forecast jsonb;
begin
  perform _check_tasks(v_specs);
  begin
    v_tenant_id := nullif(p_options ->> 'tenant_id', '')::uuid;
    v_budget := (p_options ->> 'budget')::numeric;
    if v_budget = 'NaN' or v_budget < 0 then
      raise invalid_parameter_value using message = 'a budget is 0 or more';
    end if;
    v_times := coalesce((p_options ->> 'times')::numeric, 1);
    if v_times = 'NaN' or v_times not between 1 and 1000000000 then
      raise invalid_parameter_value using message = 'times is 1 or more';
    end if;
  exception when data_exception then
    perform _refuse(422, 'invalid_options', 'tenant_id, budget or times is not right: ' || left(sqlerrm, 200), '{"field": "options"}');
  end;
  v_tenant_id := _caller_tenant(v_tenant_id);
  v_job.tenant_id := v_tenant_id;
  if exists (select from unnest(v_specs) as s where s.route is not null and s.route <> 'null') then
    v_specs := _choose_providers(v_job, v_specs);
  end if;
  perform _check_demands(v_job, v_specs);
  with spec as materialized (
    select s.*, dense_rank() over (order by s.kind, s.provider) as g
    from unnest(v_specs) as s
  ), grouped as (
    select s.g, s.kind, s.provider, count(*) as n, sum(s.cost) as cost, stddev_samp(s.cost) as spread
    from (select t.*, _estimated_cost(t.provider, v_tenant_id, t.units) as cost from spec t) as s group by s.g, s.kind, s.provider
  )
  select jsonb_agg(jsonb_build_object('kind', x.kind, 'provider', x.provider, 'count', round(x.n * v_times), 'cost', x.cost * v_times,
      -- Of a sample the sum is not certain.
      'doubt', case when v_times > 1 then coalesce(x.spread, 0) / sqrt(x.n) * x.n * v_times else 0 end,
      'units', (select coalesce(jsonb_object_agg(u.key, u.amount), '{}') from (
        select u.key, sum(u.value::numeric) * v_times as amount from spec s cross join lateral jsonb_each_text(
          _whole_units(s.units, s.provider is not null) || case when s.provider is not null then jsonb_build_object('tokens', (select z.tokens from _call_size(s.units, (_endpoint(s.provider, v_tenant_id)).default_tokens) as z)) else '{}' end) as u
        where s.g = x.g group by u.key) as u),
      'after', (select coalesce(jsonb_agg(distinct p.g), '[]') from spec c cross join lateral unnest(c.after) as a(key) join spec p on p.key = a.key where c.g = x.g and p.g <> x.g)) order by x.g)
  into v_groups from grouped x;
  v_forecast := _forecast(v_tenant_id, v_groups);
  if v_budget is not null then
    v_forecast := v_forecast || jsonb_build_object('budget', jsonb_build_object('amount', v_budget,
      'fits', (v_forecast #>> '{cost,high}')::numeric <= v_budget));
  end if;
  return v_forecast;
end
$$;
comment on function penstock.forecast_job(text, jsonb, jsonb) is
  'What start_job with the same arguments would cost (low, expected, high), use of the quotas, and take until its end under the present limits, backlog and history. With the option times the tasks are a sample, and there are so many times as many. Changes nothing.';

create or replace function penstock.forecast(p_job_id uuid)
returns jsonb language plpgsql stable security definer set search_path = penstock, pg_temp as $$
declare
  v_job jobs := _visible_job(p_job_id, array['owner', 'admin', 'member', 'viewer']);
  v_groups jsonb;
begin
  if v_job.finished_at is not null then
    perform _refuse(409, 'job_ended', format('the job is %s', v_job.status), jsonb_build_object('status', v_job.status));
  end if;
  with open as materialized (
    select t.id, t.key, t.kind, l.provider, t.units, x.task_id is not null as is_running, dense_rank() over (order by t.kind, l.provider) as g
    from tasks t join lanes l on l.id = t.lane_id left join leases x on x.task_id = t.id
    where t.job_id = p_job_id and not exists (select from results r where r.job_id = p_job_id and r.task_id = t.id)
  )
  select jsonb_agg(jsonb_build_object('kind', x.kind, 'provider', x.provider, 'count', x.n, 'running', x.running, 'cost', x.cost,
      'units', (select coalesce(jsonb_object_agg(u.key, u.amount), '{}') from (
        select u.key, sum(u.value::numeric) as amount from open s cross join lateral jsonb_each_text(
          _whole_units(s.units, s.provider is not null) || case when s.provider is not null then jsonb_build_object('tokens', (select z.tokens from _call_size(s.units, (_endpoint(s.provider, v_job.tenant_id)).default_tokens) as z)) else '{}' end) as u
        where s.g = x.g group by u.key) as u),
      'after', (select coalesce(jsonb_agg(distinct p.g), '[]') from open c join edges e on e.job_id = p_job_id and e.child_id = c.id
        join open p on p.id = e.parent_id where c.g = x.g and p.g <> x.g)) order by x.g)
  into v_groups from (
    select o.g, o.kind, o.provider, count(*) as n, count(*) filter (where o.is_running) as running,
      sum(_estimated_cost(o.provider, v_job.tenant_id, o.units)) as cost from open o group by 1, 2, 3) as x;
  return _forecast(v_job.tenant_id, coalesce(v_groups, '[]'));
end
$$;
comment on function penstock.forecast(uuid) is 'What is left of a job will cost so much and end then.';
