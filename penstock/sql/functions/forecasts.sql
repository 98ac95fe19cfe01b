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
      select 1 as requests, 0 as tokens into v_ahead;
      if v_endpoint.id is not null then
        v_room := _room(v_endpoint, v_state, v_now);
        select s.requests, s.tokens into v_ahead from _size(v_task.units, v_endpoint.default_tokens) as s;
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

create or replace function penstock._forecast(p_tenant_id uuid, p_groups jsonb)
returns jsonb language plpgsql stable set search_path = penstock, pg_temp as $$
declare
  v_now timestamptz := _now();
  v_n integer := jsonb_array_length(p_groups);
  v_kinds text[] := '{}';
  v_providers text[] := '{}';
  v_counts double precision[] := '{}';
  v_afters jsonb[] := '{}';
  v_done double precision[];
  v_begun double precision[];
  v_running double precision[] := '{}';
  v_seconds double precision[] := '{}';
  v_spreads double precision[] := '{}';
  v_known boolean := true;
  v_group jsonb;
  v_pace record;
  v_thrift record;
  v_endpoint endpoints;
  v_state endpoint_states;
  v_room record;
  v_ends double precision[];
  v_requests double precision[];
  v_tokens double precision[];
  v_places double precision[];
  v_per_requests double precision[] := '{}';
  v_per_tokens double precision[] := '{}';
  v_ahead double precision[] := '{}';
  v_limits jsonb := '{}';
  v_name text;
  v_slots double precision;
  v_busy double precision;
  v_free double precision;
  v_start double precision;
  v_left double precision;
  v_time double precision := 0;
  v_step double precision := 1;
  v_cost numeric := 0;
  v_low numeric := 0;
  v_high numeric := 0;
  v_variance numeric := 0;
  v_unpriced text[] := '{}';
  v_total jsonb := '{}';
  v_line jsonb := '[]';
  v_spent jsonb := '{}';
  v_slowest double precision := 0;
  v_cv double precision;
  v_finish double precision;
  v_bottleneck text;
  v_waits jsonb := '{}';
begin
  -- Cost: the estimates, and what earlier calls made of theirs.
  for v_group in select * from jsonb_array_elements(p_groups) loop
    v_kinds := v_kinds || (v_group ->> 'kind');
    v_providers := v_providers || (v_group ->> 'provider');
    v_counts := v_counts || (v_group ->> 'count')::double precision;
    v_afters := v_afters || coalesce(v_group -> 'after', '[]');
    v_running := v_running || coalesce((v_group ->> 'running')::double precision, 0);
    v_total := _sum_units(v_total, coalesce(v_group -> 'units', '{}'));
    v_pace := _pace_of(v_group ->> 'kind', v_group ->> 'provider');
    v_known := v_known and v_pace.samples > 0;
    v_seconds := v_seconds || coalesce(v_pace.seconds, 1);
    v_spreads := v_spreads || v_pace.spread;
    v_per_requests := v_per_requests || case when (v_group ->> 'count')::numeric > 0 then (coalesce(v_group #>> '{units,requests}', '1')::numeric / (v_group ->> 'count')::numeric)::double precision else 1 end;
    v_per_tokens := v_per_tokens || case when (v_group ->> 'count')::numeric > 0 then (coalesce(v_group #>> '{units,tokens}', '0')::numeric / (v_group ->> 'count')::numeric)::double precision else 0 end;
    if v_group ->> 'cost' is not null then
      v_thrift := _thrift_of(v_group ->> 'kind', v_group ->> 'provider');
      if v_thrift.samples >= 3 then
        v_cost := v_cost + (v_group ->> 'cost')::numeric * v_thrift.mean;
        -- What is not known well: each task's own scatter, and the mean's.
        v_variance := v_variance + power((v_group ->> 'cost')::numeric * v_thrift.spread, 2)
          * (1 / greatest(1, (v_group ->> 'count')::numeric) + 1.0 / v_thrift.samples);
      else
        v_cost := v_cost + (v_group ->> 'cost')::numeric;
        v_low := v_low - (v_group ->> 'cost')::numeric * 0.9;
      end if;
      v_high := v_high + (v_group ->> 'cost')::numeric;
    elsif v_group ->> 'provider' is not null then
      v_unpriced := v_unpriced || (v_group ->> 'provider');
    end if;
  end loop;
  v_low := greatest(0, v_cost + v_low - 2.2 * sqrt(v_variance) - 0.02 * v_cost);
  -- A task may cost less than its estimate, not more.
  v_high := least(v_high, v_cost + 2.2 * sqrt(v_variance) + 0.02 * v_cost);
  v_high := greatest(v_high, v_cost);

  -- Time: second by second, what the windows, the places and the workers let through.
  v_done := array_fill(0::double precision, array[v_n]);
  v_begun := v_running;
  v_slots := greatest(1, (select sum(w.concurrency) from workers w where w.state = 'running' and w.beat_at > v_now - interval '60 seconds'
    and w.kinds && v_kinds));
  for i in 1 .. v_n loop
    v_ahead := v_ahead || 0::double precision;
    if v_providers[i] is not null and not v_limits ? v_providers[i] then
      v_endpoint := _endpoint(v_providers[i], p_tenant_id);
      select * into v_state from endpoint_states where endpoint_id = v_endpoint.id;
      v_room := _room(v_endpoint, v_state, v_now);
      v_limits := v_limits || jsonb_build_object(v_providers[i], jsonb_build_object(
        'requests', least(v_endpoint.requests_per_minute, v_state.requests_limit), 'tokens', least(v_endpoint.tokens_per_minute, v_state.tokens_limit),
        'hour_requests', v_endpoint.requests_per_hour, 'hour_tokens', v_endpoint.tokens_per_hour, 'concurrency', v_endpoint.concurrency,
        'room_requests', v_room.requests, 'room_tokens', v_room.tokens,
        'opens', case when isfinite(v_state.closed_until) then greatest(0, extract(epoch from v_state.closed_until - v_now)) end,
        -- Others wait too, and share: at most as many of theirs as of ours go first.
        'ahead', (select count(*) from (select from lanes l join ready r on r.lane_id = l.id
          where l.provider = v_endpoint.name and l.tenant_id is not distinct from v_endpoint.tenant_id and r.tenant_id <> p_tenant_id limit 100000) as x)));
    end if;
  end loop;
  if exists (select from jsonb_each(v_limits) as l where l.value ->> 'opens' is null) then
    v_known := false;
  end if;
  for v_name in select jsonb_object_keys(v_limits) loop
    -- The windows' present fill, by the second in which it passes.
    v_spent := v_spent || jsonb_build_object(v_name, (
      select coalesce(jsonb_object_agg(x.at, jsonb_build_array(x.requests, x.tokens)), '{}') from (
        select greatest(1, ceil(s.slot + 62 - extract(epoch from v_now)))::integer as at, sum(s.requests) as requests, sum(s.tokens) as tokens
        from spent s where s.endpoint_id = (_endpoint(v_name, p_tenant_id)).id and s.width = 1 and s.slot + 62 > extract(epoch from v_now) group by 1) as x));
  end loop;

  loop
    exit when (select bool_and(v_done[i] >= v_counts[i] - 0.5) from generate_series(1, v_n) as i) or v_time >= 20000;
    v_busy := (select sum(v_begun[i] - v_done[i]) from generate_series(1, v_n) as i);
    for i in 1 .. v_n loop
      -- What runs ends at the pace of its kind.
      v_left := v_begun[i] - v_done[i];
      if v_left > 0 then
        v_done[i] := least(v_counts[i], v_done[i] + least(v_left, greatest(v_left * v_step / greatest(v_seconds[i], v_step), case when v_left < 1 then v_left else 0 end)));
      end if;
    end loop;
    v_busy := (select sum(v_begun[i] - v_done[i]) from generate_series(1, v_n) as i);
    for v_name in select jsonb_object_keys(v_limits) loop
      if v_spent -> v_name ? v_time::text then
        v_limits := jsonb_set(jsonb_set(v_limits, array[v_name, 'room_requests'], coalesce(to_jsonb((v_limits #>> array[v_name, 'room_requests'])::double precision + (v_spent #>> array[v_name, v_time::text, '0'])::double precision), 'null')),
          array[v_name, 'room_tokens'], coalesce(to_jsonb((v_limits #>> array[v_name, 'room_tokens'])::double precision + (v_spent #>> array[v_name, v_time::text, '1'])::double precision), 'null'));
      end if;
    end loop;
    for i in 1 .. v_n loop
      v_left := v_counts[i] - v_begun[i];
      continue when v_left <= 0;
      -- A step can begin as far as all it comes after has ended.
      v_start := least(v_left, coalesce((select min(v_done[(a #>> '{}')::integer] / greatest(1, v_counts[(a #>> '{}')::integer])) from jsonb_array_elements(v_afters[i]) as a), 1) * v_counts[i] - v_begun[i]);
      v_free := greatest(0, v_slots - v_busy);
      if v_start > v_free then
        v_start := v_free;
        v_waits := v_waits || jsonb_build_object('workers', coalesce((v_waits ->> 'workers')::numeric, 0) + 1);
      end if;
      if v_providers[i] is not null then
        v_name := v_providers[i];
        if v_time < coalesce((v_limits #>> array[v_name, 'opens'])::double precision, 1e9) then
          v_start := 0;
        end if;
        v_free := (v_limits #>> array[v_name, 'concurrency'])::double precision
          - (select coalesce(sum(v_begun[k] - v_done[k]), 0) from generate_series(1, v_n) as k where v_providers[k] = v_name);
        if v_start > v_free then
          v_start := greatest(0, v_free);
          v_waits := v_waits || jsonb_build_object(v_name || ' concurrency', coalesce((v_waits ->> (v_name || ' concurrency'))::numeric, 0) + 1);
        end if;
        v_free := floor((v_limits #>> array[v_name, 'room_requests'])::double precision / nullif(v_per_requests[i], 0));
        if v_start > v_free then
          v_start := greatest(0, v_free);
          v_waits := v_waits || jsonb_build_object(v_name || ' requests per minute', coalesce((v_waits ->> (v_name || ' requests per minute'))::numeric, 0) + 1);
        end if;
        v_free := floor((v_limits #>> array[v_name, 'room_tokens'])::double precision / nullif(v_per_tokens[i], 0));
        if v_start > v_free then
          v_start := greatest(0, v_free);
          v_waits := v_waits || jsonb_build_object(v_name || ' tokens per minute', coalesce((v_waits ->> (v_name || ' tokens per minute'))::numeric, 0) + 1);
        end if;
      end if;
      continue when v_start <= 0;
      if v_start < v_left then
        v_start := case when v_start >= 1 then floor(v_start) else v_start end;
      end if;
      v_begun[i] := v_begun[i] + v_start;
      v_busy := v_busy + v_start;
      if v_providers[i] is not null then
        v_limits := jsonb_set(jsonb_set(v_limits, array[v_name, 'room_requests'], coalesce(to_jsonb((v_limits #>> array[v_name, 'room_requests'])::double precision - v_start * v_per_requests[i]), 'null')),
          array[v_name, 'room_tokens'], coalesce(to_jsonb((v_limits #>> array[v_name, 'room_tokens'])::double precision - v_start * v_per_tokens[i]), 'null'));
        v_spent := jsonb_set(v_spent, array[v_name, (v_time + 62)::text], jsonb_build_array(
          coalesce((v_spent #>> array[v_name, (v_time + 62)::text, '0'])::double precision, 0) + v_start * v_per_requests[i],
          coalesce((v_spent #>> array[v_name, (v_time + 62)::text, '1'])::double precision, 0) + v_start * v_per_tokens[i]));
        -- An hour's limit spreads over it.
      end if;
    end loop;
    v_time := v_time + v_step;
  end loop;
  -- Past the horizon at the pace of the end.
  if v_time >= 20000 then
    v_time := v_time * (select sum(v_counts[i]) / greatest(1, sum(v_done[i])) from generate_series(1, v_n) as i);
  end if;
  for v_name in select jsonb_object_keys(v_limits) loop
    v_left := (select sum(v_counts[i] * v_per_requests[i]) from generate_series(1, v_n) as i where v_providers[i] = v_name);
    v_free := (select sum(v_counts[i] * v_per_tokens[i]) from generate_series(1, v_n) as i where v_providers[i] = v_name);
    v_slowest := greatest(v_slowest,
      3600 * (v_left / nullif((v_limits #>> array[v_name, 'hour_requests'])::double precision, 0) - 1),
      3600 * (v_free / nullif((v_limits #>> array[v_name, 'hour_tokens'])::double precision, 0) - 1));
    -- What others have in line takes its share of the windows.
    v_slowest := greatest(v_slowest, v_time + 60 * least(v_left, (v_limits #>> array[v_name, 'ahead'])::double precision)
      / nullif((v_limits #>> array[v_name, 'requests'])::double precision, 0));
  end loop;
  v_finish := greatest(v_time, v_slowest);
  v_cv := (select coalesce(max(v_spreads[i] / nullif(v_seconds[i], 0) / sqrt(greatest(1, v_counts[i]))), 0) from generate_series(1, v_n) as i);
  v_bottleneck := (select w.key from jsonb_each_text(v_waits) as w order by w.value::numeric desc limit 1);
  return jsonb_build_object(
    'tasks', (select sum((g ->> 'count')::integer) from jsonb_array_elements(p_groups) as g),
    'units', v_total,
    'cost', jsonb_build_object('low', round(v_low, 6), 'expected', round(v_cost, 6), 'high', round(v_high, 6), 'currency', (_setting('base_currency')) #>> '{}', 'unpriced', to_jsonb(v_unpriced)),
    'quota', (select coalesce(jsonb_agg(jsonb_build_object('meter', l.meter, 'needs', x.needs, 'left', x.room, 'limit', l.amount, 'fits', x.needs <= x.room) order by l.meter), '[]')
      from _limits(p_tenant_id, v_now) as l
      left join accounts a on a.tenant_id = p_tenant_id and a.job_id is null and a.meter = l.meter and a.period = l.period
      cross join lateral (select case when l.meter = 'cost' then v_high else (v_total ->> l.meter)::numeric end as needs, l.amount - coalesce(a.used + a.held, 0) as room) as x
      where x.needs > 0),
    'finish', jsonb_build_object('seconds', case when v_known then round(v_finish::numeric, 1) end,
      'low', case when v_known then round((v_finish * greatest(0.5, 0.9 - v_cv))::numeric, 1) end, 'high', case when v_known then round((v_finish * (1.15 + v_cv))::numeric, 1) end,
      'at', case when v_known then v_now + make_interval(secs => v_finish) end, 'workers', v_slots, 'bottleneck', v_bottleneck,
      'reason', case when not v_known then case when exists (select from jsonb_each(v_limits) as l where l.value ->> 'opens' is null)
        then 'a provider is closed' else 'no task of this kind has ended yet' end end));
end
$$;
comment on function penstock._forecast(uuid, jsonb) is 'Cost and finish of groups of tasks [{"kind", "provider", "count", "running", "units", "cost", "after": [group numbers]}].';

create or replace function penstock.forecast_job(p_type text, p_tasks jsonb, p_options jsonb default '{}')
returns jsonb language plpgsql security definer set search_path = penstock, pg_temp as $$
declare
  v_tenant_id uuid := _caller_tenant(nullif(p_options ->> 'tenant_id', '')::uuid);
  v_job jobs;
  v_specs task_spec[] := _parse_tasks(p_tasks);
  v_groups jsonb;
  v_forecast jsonb;
begin
  perform _check_tasks(v_specs);
  v_job.tenant_id := v_tenant_id;
  if exists (select from unnest(v_specs) as s where s.route is not null and s.route <> 'null') then
    v_specs := _choose_providers(v_job, v_specs);
  end if;
  perform _check_demands(v_job, v_specs);
  with spec as materialized (
    select s.*, dense_rank() over (order by s.kind, s.provider) as g
    from unnest(v_specs) as s
  ), grouped as (
    select s.g, s.kind, s.provider, count(*) as n, sum(_estimated_cost(s.provider, v_tenant_id, s.units)) as cost
    from spec s group by s.g, s.kind, s.provider
  )
  select jsonb_agg(jsonb_build_object('kind', x.kind, 'provider', x.provider, 'count', x.n, 'cost', x.cost,
      'units', (select coalesce(jsonb_object_agg(u.key, u.amount), '{}') from (
        select u.key, sum(u.value::numeric) as amount from spec s cross join lateral jsonb_each_text(
          _whole_units(s.units, s.provider is not null) || case when s.provider is not null then jsonb_build_object('tokens', (select z.tokens from _size(s.units, (_endpoint(s.provider, v_tenant_id)).default_tokens) as z)) else '{}' end) as u
        where s.g = x.g group by u.key) as u),
      'after', (select coalesce(jsonb_agg(distinct p.g), '[]') from spec c cross join lateral unnest(c.after) as a(key) join spec p on p.key = a.key where c.g = x.g and p.g <> x.g)) order by x.g)
  into v_groups from grouped x;
  v_forecast := _forecast(v_tenant_id, v_groups);
  if p_options ->> 'budget' is not null then
    v_forecast := v_forecast || jsonb_build_object('budget', jsonb_build_object('amount', (p_options ->> 'budget')::numeric,
      'fits', (v_forecast #>> '{cost,high}')::numeric <= (p_options ->> 'budget')::numeric));
  end if;
  return v_forecast;
exception when invalid_text_representation then
  perform _refuse(422, 'invalid_options', 'tenant_id or budget is not right', '{"field": "options"}');
end
$$;
comment on function penstock.forecast_job(text, jsonb, jsonb) is
  'What start_job with the same arguments would cost (low, expected, high), use of the quotas, and take until its end under the present limits, backlog and history. Changes nothing.';

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
          _whole_units(s.units, s.provider is not null) || case when s.provider is not null then jsonb_build_object('tokens', (select z.tokens from _size(s.units, (_endpoint(s.provider, v_job.tenant_id)).default_tokens) as z)) else '{}' end) as u
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
