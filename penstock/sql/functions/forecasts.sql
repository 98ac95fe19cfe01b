-- Forecasts: why a task waits, what a job will cost, and when it will end.

create or replace function penstock._ordinal(p_number bigint)
returns text language sql immutable set search_path = penstock, pg_temp as $$
  select p_number || case when p_number % 100 between 11 and 13 then 'th' else
    case p_number % 10 when 1 then 'st' when 2 then 'nd' when 3 then 'rd' else 'th' end end
$$;
comment on function penstock._ordinal(bigint) is 'A number as an English ordinal: 1st, 2nd, 3rd, 12th.';

create or replace function penstock._duration_text(p_seconds double precision)
returns text language sql immutable set search_path = penstock, pg_temp as $$
  select case
    when p_seconds is null then null
    when p_seconds < 1 then 'less than 1 s'
    when p_seconds < 100 then format('about %s s', round(p_seconds))
    when p_seconds < 5400 then format('about %s min', round(p_seconds / 60))
    when p_seconds < 172800 then format('about %s h', round(p_seconds / 3600))
    else format('about %s days', round(p_seconds / 86400)) end
$$;
comment on function penstock._duration_text(double precision) is
  'A duration as text, such as "about 5 min".';

create or replace function penstock._explain_parked(
  p_job penstock.jobs, p_parked penstock.parked, out waits_for text, out reason text,
  out seconds double precision, out place bigint)
language plpgsql stable set search_path = penstock, pg_temp as $$
declare
  v_seconds_left double precision := case when isfinite(p_parked.until)
    then greatest(0, extract(epoch from p_parked.until - _now())) end;
begin
  if p_parked.pending > 0 then
    waits_for := 'tasks';
    reason := format('%s parent task%s', p_parked.pending, case when p_parked.pending = 1 then ''
      else 's' end);
  elsif p_job.status = 'paused' then
    waits_for := 'job';
    reason := 'the job is paused' || coalesce(': ' || p_job.status_reason, '');
  elsif p_parked.waits_for = 'confirm' then
    waits_for := 'confirm';
    reason := format('confirmation: `penstock bulk confirm %s`', p_job.id);
  elsif p_parked.waits_for is not null then
    waits_for := p_parked.waits_for;
    reason := p_parked.reason;
    seconds := v_seconds_left;
    select count(*) + 1 into place from (
      select from parked p
      where p.tenant_id = p_parked.tenant_id and p.waits_for = p_parked.waits_for
        and (p.job_id, p.task_id) < (p_parked.job_id, p_parked.task_id)
        and (p.waits_for <> 'budget' or p.job_id = p_parked.job_id) limit 10000) as x;
  else
    waits_for := case when p_parked.reason = 'paused' then 'job' else 'time' end;
    reason := case p_parked.reason when 'retry' then 'the next attempt' when 'time' then 'its start time'
      when 'paused' then 'its job to resume' else p_parked.reason end;
    seconds := v_seconds_left;
  end if;
end
$$;
comment on function penstock._explain_parked(penstock.jobs, penstock.parked) is
  'What a parked task waits for, about how long, and its place among the tasks that wait for the same.';

create or replace function penstock._explain_endpoint(
  p_task penstock.tasks, p_endpoint penstock.endpoints, p_place bigint, out waits_for text, out reason text,
  out seconds double precision)
language plpgsql stable set search_path = penstock, pg_temp as $$
declare
  v_now timestamptz := _now();
  v_state endpoint_states;
  v_room record;
  v_size record;
begin
  select * into v_state from endpoint_states where endpoint_id = p_endpoint.id;
  v_room := _free_capacity(p_endpoint, v_state, v_now);
  select s.requests, s.tokens into v_size from _call_size(p_task.units, p_endpoint.default_tokens) as s;
  -- The tasks ahead are assumed to be as large as this one.
  seconds := greatest(
    case when isfinite(v_state.closed_until)
      then extract(epoch from greatest(v_state.closed_until, v_state.open_at) - v_now) end,
    60.0 * (p_place * v_size.requests - v_room.requests) / nullif(p_endpoint.requests_per_minute, 0),
    60.0 * (p_place * v_size.tokens - v_room.tokens) / nullif(p_endpoint.tokens_per_minute, 0),
    3600.0 * (p_place * v_size.requests - v_room.requests) / nullif(p_endpoint.requests_per_hour, 0),
    3600.0 * (p_place * v_size.tokens - v_room.tokens) / nullif(p_endpoint.tokens_per_hour, 0), 0);
  if v_state.closed_until > v_now then
    waits_for := 'provider';
    reason := format('%s: %s', p_endpoint.name, v_state.closed_reason);
    if not isfinite(v_state.closed_until) then
      seconds := null;
    end if;
  elsif v_room.places < 1 then
    waits_for := 'concurrency';
    reason := format('%s concurrency, %s running', p_endpoint.name, p_endpoint.concurrency);
    seconds := nullif(seconds, 0);
  elsif p_place * v_size.requests > v_room.requests or p_place * v_size.tokens > v_room.tokens then
    waits_for := case when p_place * v_size.tokens > v_room.tokens then 'tokens' else 'requests' end;
    reason := format('%s %s', p_endpoint.name, waits_for);
  end if;
end
$$;
comment on function penstock._explain_endpoint(penstock.tasks, penstock.endpoints, bigint) is
  'Which limit of its provider a ready task waits for, and about how long; waits_for is null if no limit '
  'does.';

create or replace function penstock._explain_ready(
  p_task penstock.tasks, out waits_for text, out reason text, out seconds double precision, out place bigint)
language plpgsql stable set search_path = penstock, pg_temp as $$
declare
  v_ready ready;
  v_endpoint endpoints;
begin
  select * into v_ready from ready
  where tenant_id = p_task.tenant_id and lane_id = p_task.lane_id and priority = p_task.priority
    and job_id = p_task.job_id and task_id = p_task.id;
  select count(*) + 1 into place from (
    select from ready r where r.lane_id = p_task.lane_id and r.vtime < v_ready.vtime limit 10000) as x;
  select e.* into v_endpoint from lanes l
  join endpoints e on e.name = l.provider and e.tenant_id is not distinct from l.tenant_id
  where l.id = p_task.lane_id;
  if (_setting('maintenance'))::boolean then
    waits_for := 'maintenance';
    reason := 'maintenance mode: no tasks are claimed';
    return;
  end if;
  if v_endpoint.status <> 'active' then
    waits_for := 'provider';
    reason := format('%s is %s', v_endpoint.name,
      case v_endpoint.status when 'maintenance' then 'under maintenance' else v_endpoint.status end);
    return;
  end if;
  if v_endpoint.id is not null then
    select e.waits_for, e.reason, e.seconds into waits_for, reason, seconds
    from _explain_endpoint(p_task, v_endpoint, place) as e;
  end if;
  if waits_for is null then
    waits_for := 'worker';
    reason := case when exists (
        select from workers w where w.state = 'running' and w.beat_at > _now() - interval '60 seconds'
          and p_task.kind = any (w.kinds)) then 'a free worker'
      else format('no worker handles %s', p_task.kind) end;
    seconds := null;
  end if;
end
$$;
comment on function penstock._explain_ready(penstock.tasks) is
  'What a ready task waits for, about how long, and its place in its lane.';

create or replace function penstock.explain_task(p_job_id uuid, p_task_id bigint)
returns jsonb language plpgsql stable security definer set search_path = penstock, pg_temp as $$
declare
  v_job jobs := _visible_job(p_job_id, array['owner', 'admin', 'member', 'viewer']);
  v_task tasks;
  v_outcome text;
  v_lease leases;
  v_parked parked;
  v_wait record;
begin
  select * into v_task from tasks where job_id = p_job_id and id = p_task_id;
  if not found then
    perform _refuse(404, 'unknown_task', 'there is no such task');
  end if;
  select outcome into v_outcome from results where job_id = p_job_id and task_id = p_task_id;
  if found then
    return jsonb_build_object('status', v_outcome, 'text', v_outcome);
  end if;
  if v_job.status = 'canceled' then
    return jsonb_build_object('status', 'canceled',
      'text', 'canceled: ' || coalesce(v_job.status_reason, 'with its job'));
  end if;
  select * into v_lease from leases where task_id = p_task_id;
  if found then
    return jsonb_build_object('status', 'running', 'worker_id', v_lease.worker_id,
      'text', format('running on %s, %s so far', v_lease.worker_id,
        replace(_duration_text(extract(epoch from _now() - v_lease.started_at)), 'about ', '')));
  end if;
  select * into v_parked from parked where job_id = p_job_id and task_id = p_task_id;
  if found then
    v_wait := _explain_parked(v_job, v_parked);
  elsif v_job.status = 'paused' then
    select 'job' as waits_for, 'the job is paused' || coalesce(': ' || v_job.status_reason, '') as reason,
      null::double precision as seconds, null::bigint as place into v_wait;
  else
    v_wait := _explain_ready(v_task);
  end if;
  return jsonb_build_object('status', case when v_parked.pending > 0 then 'blocked' else 'queued' end,
    'waits_for', v_wait.waits_for, 'reason', v_wait.reason, 'seconds', round(v_wait.seconds::numeric, 1),
    'place', v_wait.place,
    'text', 'waiting: ' || v_wait.reason || coalesce(', ' || _duration_text(v_wait.seconds), '')
      || coalesce(', ' || _ordinal(v_wait.place) || ' in line', ''));
end
$$;
comment on function penstock.explain_task(uuid, bigint) is
  'Why a task is not running: what it waits for, about how long, and its place in line; as fields and as '
  'one line of text.';

create or replace function penstock._waiting_task(p_job penstock.jobs)
returns bigint language plpgsql stable set search_path = penstock, pg_temp set enable_seqscan = off
  set jit = off as $$
declare
  v_task_id bigint := _ready_task(p_job);
begin
  if v_task_id is not null then
    return v_task_id;
  end if;
  -- Prefer a task without open parents: it explains why its children wait.
  select task_id into v_task_id from (
    select task_id, pending from parked where job_id = p_job.id order by task_id limit 1000) as p
  order by pending > 0, task_id limit 1;
  return v_task_id;
end
$$;
comment on function penstock._waiting_task(penstock.jobs) is
  'The id of the waiting task of the job that will run next.';

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
  select coalesce(sum(total), 0) as total, coalesce(sum(succeeded), 0) as succeeded,
    coalesce(sum(failed), 0) as failed, coalesce(sum(succeeded + failed + canceled), 0) as done into v_counts
      from phases where job_id = p_job_id;
  if v_job.status = 'completed' then
    v_text := case when v_counts.succeeded = v_counts.total
      then format('All %s tasks succeeded.', v_counts.total)
      else format('%s of %s tasks succeeded; the others were canceled.', v_counts.succeeded,
        v_counts.total) end;
  elsif v_job.status = 'failed' then
    v_text := format('%s of %s tasks failed%s.', v_counts.failed, v_counts.total, coalesce(': ' || (
      select string_agg(format('%s × %s', c.n, c.error_code), ', ' order by c.n desc, c.error_code) from (
        select d.error_code, count(*) as n from dead_letters d where d.job_id = p_job_id
          group by d.error_code order by 2 desc limit 3) as c), ''));
    v_next := 'No further automatic retries. Retry runs the failed tasks again, and the tasks that were '
      'canceled because of them.';
  elsif v_job.status = 'canceled' then
    v_text := format('Canceled with %s of %s tasks done%s.', v_counts.done, v_counts.total,
      coalesce(': ' || v_job.status_reason, ''));
  else
    select count(*) into v_running from leases where job_id = p_job_id and not is_canceled;
    v_task_id := _waiting_task(v_job);
    if v_task_id is not null then
      v_waits := explain_task(p_job_id, v_task_id);
    end if;
    if v_job.status = 'paused' then
      v_text := 'Paused' || coalesce(': ' || v_job.status_reason, '') || '.' || case when v_running > 0
          then format(' %s running task%s normally.', v_running, case when v_running = 1 then ' ends'
            else 's end' end)
        else '' end;
      v_next := 'No new tasks start until it is resumed.';
    elsif v_job.run_at > v_now then
      v_text := format('Starts in %s.',
        replace(_duration_text(extract(epoch from v_job.run_at - v_now)), 'about ', ''));
    elsif v_running > 0 then
      v_text := format('%s of %s tasks done, %s running.', v_counts.done, v_counts.total, v_running);
    else
      v_text := format('%s of %s tasks done, none running.', v_counts.done, v_counts.total);
    end if;
    if v_job.status <> 'paused' and v_waits is not null then
      v_next := 'The next task is ' || (v_waits ->> 'text') || '.';
    end if;
  end if;
  return jsonb_build_object('status', v_job.status, 'text', v_text, 'next', v_next, 'task_id', v_task_id,
    'running', coalesce(v_running, 0));
end
$$;
comment on function penstock.explain_job(uuid) is
  'The state of a job and what happens next, as text, with the id of the task that will run next.';

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

create or replace function penstock._cost_ratio(
  p_kind text, p_provider text, out mean numeric, out spread numeric, out samples integer)
language sql stable set search_path = penstock, pg_temp as $$
  -- Of the latest calls that reported their usage.
  select avg(x.ratio), coalesce(stddev_samp(x.ratio), 0), count(*)::integer from (
    select c.cost / nullif(_estimated_cost(p_provider, u.tenant_id, t.units), 0) as ratio
    from (select * from usage_events u where u.provider = p_provider and u.action = p_kind
      and not u.is_estimate and u.task_id is not null
      order by u.id desc limit 100) as u
    join tasks t on t.job_id = u.job_id and t.id = u.task_id
    cross join lateral (
      select sum(e.base_amount) as cost from cost_entries e where e.job_id = u.job_id
        and e.task_id = u.task_id and e.lease = u.lease) as c) as x
  where x.ratio is not null
$$;
comment on function penstock._cost_ratio(text, text) is
  'Actual cost divided by estimated cost of recent calls: mean, standard deviation, and the number of '
  'samples.';

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

create or replace function penstock._forecast_quota(
  p_tenant_id uuid, p_units jsonb, p_cost numeric, p_now timestamptz)
returns jsonb language sql stable set search_path = penstock, pg_temp as $$
  select coalesce(jsonb_agg(jsonb_build_object('meter', l.meter, 'needs', x.needs, 'left', x.left,
    'limit', l.amount,
    'fits', x.needs <= x.left) order by l.meter), '[]')
  from _limits(p_tenant_id, p_now) as l
  left join accounts a on a.tenant_id = p_tenant_id and a.job_id is null and a.meter = l.meter
    and a.period = l.period
  cross join lateral (
    select case when l.meter = 'cost' then p_cost else (p_units ->> l.meter)::numeric end as needs,
      l.amount - coalesce(a.used + a.held, 0) as left) as x
  where x.needs > 0
$$;
comment on function penstock._forecast_quota(uuid, jsonb, numeric, timestamptz) is
  'For each limited meter, what these units need and what is left, [{"meter", "needs", "left", "limit", '
  '"fits"}].';

create or replace function penstock._forecast(p_tenant_id uuid, p_groups jsonb)
returns jsonb language plpgsql stable set search_path = penstock, pg_temp as $$
declare
  v_now timestamptz := _now();
  v_groups jsonb := '[]';
  v_group jsonb;
  v_group_cost numeric;
  v_group_count double precision;
  v_pace record;
  v_ratio record;
  v_finish record;
  v_units jsonb := '{}';
  v_cost numeric := 0;
  -- by how much unmeasured kinds may cost less than estimated; the sum of all estimates
  v_discount numeric := 0;
  v_estimate numeric := 0;
  -- variance of the cost ratios, and of a sample that stands for all tasks
  v_variance numeric := 0;
  v_sample_variance numeric := 0;
  v_low numeric;
  v_high numeric;
  -- coefficient of variation of the durations
  v_cv double precision := 0;
  v_unpriced text[] := '{}';
  v_is_known boolean := true;
begin
  for v_group in select * from jsonb_array_elements(p_groups) loop
    v_group_cost := (v_group ->> 'cost')::numeric;
    v_group_count := greatest(1, (v_group ->> 'count')::double precision);
    v_units := _sum_units(v_units, coalesce(v_group -> 'units', '{}'));
    v_pace := _pace_of(v_group ->> 'kind', v_group ->> 'provider');
    v_ratio := _cost_ratio(v_group ->> 'kind', v_group ->> 'provider');
    v_is_known := v_is_known and v_pace.samples > 0;
    v_cv := greatest(v_cv, v_pace.spread / nullif(v_pace.seconds, 0) / sqrt(v_group_count));
    v_groups := v_groups || (v_group || jsonb_build_object(
      'seconds', coalesce(v_pace.seconds, 1), 'spread', coalesce(v_pace.spread, 0),
      'cost_ratio', case when v_ratio.samples >= 3 then least(1, v_ratio.mean) else 1 end));
    if v_group_cost is not null then
      v_estimate := v_estimate + v_group_cost;
      v_sample_variance := v_sample_variance + power(coalesce((v_group ->> 'deviation')::numeric, 0), 2);
      if v_ratio.samples >= 3 then
        v_cost := v_cost + v_group_cost * v_ratio.mean;
        -- The variance of each task, and that of the measured mean.
        v_variance := v_variance
          + power(v_group_cost * v_ratio.spread, 2) * (1 / v_group_count::numeric + 1.0 / v_ratio.samples);
      else
        v_cost := v_cost + v_group_cost;
        v_discount := v_discount + v_group_cost * 0.9;
      end if;
    elsif v_group ->> 'provider' is not null then
      v_unpriced := v_unpriced || (v_group ->> 'provider');
    end if;
  end loop;
  -- 2.2 standard deviations, and 2 % for what the samples do not show.
  v_low := greatest(0, v_cost - v_discount - 2.2 * sqrt(v_variance + v_sample_variance) - 0.02 * v_cost);
  -- A task may cost less than its estimate, not more.
  v_high := greatest(v_cost, least(v_estimate + 2.2 * sqrt(v_sample_variance),
    v_cost + 2.2 * sqrt(v_variance + v_sample_variance) + 0.02 * v_cost));
  v_finish := _simulate_finish(p_tenant_id, v_groups);
  v_is_known := v_is_known and v_finish.seconds is not null;
  return jsonb_build_object(
    'tasks', (select coalesce(sum((g ->> 'count')::integer), 0) from jsonb_array_elements(p_groups) as g),
    'units', v_units,
    'cost', jsonb_build_object(
      'low', round(v_low, 6), 'expected', round(v_cost, 6), 'high', round(v_high, 6),
      'currency', (_setting('base_currency')) #>> '{}', 'unpriced', to_jsonb(v_unpriced)),
    'quota', _forecast_quota(p_tenant_id, v_units, v_high, v_now),
    'finish', jsonb_build_object(
      'seconds', case when v_is_known then round(v_finish.seconds::numeric, 1) end,
      'low', case when v_is_known then
        round((v_finish.seconds * greatest(0.5, 0.9 - coalesce(v_cv, 0)))::numeric, 1) end,
      'high', case when v_is_known
        then round((v_finish.seconds * (1.15 + coalesce(v_cv, 0)))::numeric, 1) end,
      'at', case when v_is_known then v_now + make_interval(secs => v_finish.seconds) end,
      'workers', v_finish.workers, 'bottleneck', v_finish.bottleneck,
      'reason', case when v_is_known then null
        when v_finish.seconds is null then 'it never ends under the current limits: '
          || coalesce(v_finish.bottleneck, 'no task can start')
        else 'no task of this kind has ended yet' end));
end
$$;
comment on function penstock._forecast(uuid, jsonb) is
  'Forecasts cost and finish of groups of tasks [{"kind", "provider", "count", "running", "units", "cost", '
  '"deviation", "after": [group numbers]}].';

create or replace function penstock._estimated_units(p_provider text, p_tenant_id uuid, p_units jsonb)
returns jsonb language sql stable set search_path = penstock, pg_temp as $$
  select _whole_units(p_units, p_provider is not null) || case when p_provider is not null
    then jsonb_build_object(
    'tokens', (select z.tokens
      from _call_size(p_units, (_endpoint(p_provider, p_tenant_id)).default_tokens) as z))
    else '{}' end
$$;
comment on function penstock._estimated_units(text, uuid, jsonb) is
  'The units of a task, with the default tokens of its endpoint if it names none.';

create or replace function penstock.forecast_job(p_type text, p_tasks jsonb, p_options jsonb default '{}')
returns jsonb language plpgsql security definer set search_path = penstock, pg_temp as $$
declare
  v_tenant_id uuid;
  v_budget numeric;
  v_scale numeric;
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
      raise invalid_parameter_value using message = format('budget must be 0 or more (got %s)', v_budget);
    end if;
    v_scale := coalesce((p_options ->> 'times')::numeric, 1);
    if v_scale = 'NaN' or v_scale not between 1 and 1000000000 then
      raise invalid_parameter_value using message = format('times must be between 1 and 10^9 (got %s)',
        v_scale);
    end if;
  exception when data_exception then
    perform _refuse(422, 'invalid_options', 'invalid options: ' || left(sqlerrm, 200),
      '{"field": "options"}');
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
    from (select t.*, _estimated_cost(t.provider, v_tenant_id, t.units) as cost from spec t) as s
      group by s.g, s.kind, s.provider
  )
  select jsonb_agg(jsonb_build_object('kind', x.kind, 'provider', x.provider, 'count', round(x.n * v_scale),
      'cost', x.cost * v_scale,
      -- The standard deviation of a total that is extrapolated from a sample.
      'deviation', case when v_scale > 1 then coalesce(x.spread, 0) / sqrt(x.n) * x.n * v_scale else 0 end,
      'units', (select coalesce(jsonb_object_agg(u.key, u.amount), '{}') from (
        select u.key, sum(u.value::numeric) * v_scale as amount
        from spec s cross join lateral jsonb_each_text(_estimated_units(s.provider, v_tenant_id,
          s.units)) as u
        where s.g = x.g group by u.key) as u),
      'after', (
        select coalesce(jsonb_agg(distinct p.g), '[]')
        from spec c cross join lateral unnest(c.after) as a(key) join spec p on p.key = a.key
        where c.g = x.g and p.g <> x.g)) order by x.g)
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
  'Forecasts what start_job with the same arguments would cost (low, expected, high), which quotas it '
  'needs, and when it would end, from the current limits, backlog and history. The option times scales the '
  'estimate: the tasks are then a sample of a job with that many times as many tasks. Changes nothing.';

create or replace function penstock.forecast(p_job_id uuid)
returns jsonb language plpgsql stable security definer set search_path = penstock, pg_temp as $$
declare
  v_job jobs := _visible_job(p_job_id, array['owner', 'admin', 'member', 'viewer']);
  v_groups jsonb;
begin
  if v_job.finished_at is not null then
    perform _refuse(409, 'job_ended', format('the job has already ended (%s)', v_job.status),
      jsonb_build_object('status', v_job.status));
  end if;
  with open as materialized (
    select t.id, t.key, t.kind, l.provider, t.units, x.task_id is not null as is_running,
      dense_rank() over (order by t.kind, l.provider) as g
    from tasks t join lanes l on l.id = t.lane_id left join leases x on x.task_id = t.id
    where t.job_id = p_job_id
      and not exists (select from results r where r.job_id = p_job_id and r.task_id = t.id)
  )
  select jsonb_agg(jsonb_build_object('kind', x.kind, 'provider', x.provider, 'count', x.n,
      'running', x.running, 'cost', x.cost,
      'units', (select coalesce(jsonb_object_agg(u.key, u.amount), '{}') from (
        select u.key, sum(u.value::numeric) as amount from open s
        cross join lateral jsonb_each_text(_estimated_units(s.provider, v_job.tenant_id, s.units)) as u
        where s.g = x.g group by u.key) as u),
      'after', (select coalesce(jsonb_agg(distinct p.g), '[]') from open c
        join edges e on e.job_id = p_job_id and e.child_id = c.id
        join open p on p.id = e.parent_id where c.g = x.g and p.g <> x.g)) order by x.g)
  into v_groups from (
    select o.g, o.kind, o.provider, count(*) as n, count(*) filter (where o.is_running) as running,
      sum(_estimated_cost(o.provider, v_job.tenant_id, o.units)) as cost from open o group by 1, 2, 3) as x;
  return _forecast(v_job.tenant_id, coalesce(v_groups, '[]'));
end
$$;
comment on function penstock.forecast(uuid) is
  'Forecasts the cost and the finish of the remaining tasks of a job.';
