-- Wanted slots: how many tasks could run at once now. Autoscalers read this instead of the backlog: tasks
-- behind a closed provider, a full window, a used-up quota or budget, or of a paused job need no machine.
-- Reads without locks, so it is an estimate, and looks at the first 10,000 waiting tasks of each lane.

create or replace function penstock._waiting_groups()
returns table (lane_id integer, tenant_id uuid, job_id uuid, waiting bigint)
language sql stable set search_path = penstock, pg_temp as $$
  select g.lane_id, g.tenant_id, g.job_id, g.waiting from (
    select l.id as lane_id, l.kind, r.tenant_id, r.job_id, count(*) as waiting
    from lanes l
    cross join lateral (
      select x.tenant_id, x.job_id from ready x where x.lane_id = l.id order by x.vtime limit 10000) as r
    group by l.id, l.kind, r.tenant_id, r.job_id) as g
  cross join lateral (
    select j.status from jobs j where j.id = g.job_id and j.tenant_id = g.tenant_id offset 0) as j
  where not (_setting('maintenance'))::boolean and j.status in ('queued', 'running')
    and not exists (
      select from gates n join tenants t on t.id = g.tenant_id
      where n.mode = 'enforce' and n.kinds <> '{}' and _needs_gate(n, g.kind)
        and not _has_feature(_plan(t, _now()), n.feature))
$$;
comment on function penstock._waiting_groups() is
  'Waiting tasks that the claim would not skip, by lane, tenant and job, of the first 10,000 of each lane: '
  'none in maintenance, none of stopped jobs or behind a gate.';

create or replace function penstock._short_tasks(p_lane_ids integer[], p_job_ids uuid[], p_now timestamptz)
returns table (lane_id integer, waiting bigint) language sql stable set search_path = penstock, pg_temp as $$
  with task as materialized (
    select r.task_id, r.lane_id, r.tenant_id, r.job_id, r.vtime, coalesce(l.provider, '') as provider,
      coalesce(t.units, '{}') as units
    from lanes l
    cross join lateral (select x.* from ready x where x.lane_id = l.id order by x.vtime limit 10000) as r
    join unnest(p_job_ids) as j(id) on j.id = r.job_id
    join tasks t on t.job_id = r.job_id and t.id = r.task_id
    where l.id = any (p_lane_ids)
  ), need as materialized (
    select d.*, _whole_units(d.units, d.provider <> '')
      || jsonb_build_object('cost', _estimated_cost(nullif(d.provider, ''), d.tenant_id, d.units)) as amounts
    from (select distinct t.provider, t.tenant_id, t.units from task t) as d
  ), room as materialized (
    select t.tenant_id, null::uuid as job_id, l.meter, l.amount - coalesce(a.used + a.held, 0) as remaining
    from (select distinct x.tenant_id from task x) as t cross join lateral _limits(t.tenant_id, p_now) as l
    left join accounts a on a.tenant_id = t.tenant_id and a.job_id is null and a.meter = l.meter
      and a.period = l.period
    where l.mode = 'enforce'
    union all
    select j.tenant_id, j.id, 'cost', j.budget - coalesce(a.used + a.held, 0)
    from jobs j left join accounts a on a.tenant_id = j.tenant_id and a.job_id = j.id and a.meter = 'cost'
    where j.id = any (p_job_ids) and j.budget is not null
  ), judged as materialized (
    -- A cost without a price is unknown: the claim parks such a task.
    select t.*, o.job_id as budget_of, o.meter, o.remaining, (n.amounts ->> o.meter)::numeric as amount,
      bool_or(n.amounts ->> o.meter is null or (n.amounts ->> o.meter)::numeric > greatest(o.remaining, 0))
        over (partition by t.task_id) as is_short_alone
    from task t join need n on n.provider = t.provider and n.tenant_id = t.tenant_id and n.units = t.units
    join room o on o.tenant_id = t.tenant_id and (o.job_id is null or o.job_id = t.job_id)
    where n.amounts ? o.meter
  ), summed as (
    -- The first task that fits alone is never short, so that a worker starts and parks the others.
    select j.*, sum(j.amount) filter (where not j.is_short_alone) over (
      partition by j.tenant_id, j.budget_of, j.meter order by j.vtime, j.task_id) as total
    from judged j
  )
  select s.lane_id, count(distinct s.task_id) from summed s
  where s.is_short_alone or s.amount > 0 and s.total > s.remaining group by s.lane_id
$$;
comment on function penstock._short_tasks(integer[], uuid[], timestamptz) is
  'How many waiting tasks of these lanes and jobs have no quota, budget or price left, taken in order.';

create or replace function penstock._endpoint_room(p_endpoint_id integer, p_waiting bigint, p_now timestamptz)
returns bigint language plpgsql stable set search_path = penstock, pg_temp as $$
declare
  v_endpoint endpoints;
  v_state endpoint_states;
  v_free capacity;
  v_size record;
  v_fit bigint;
  v_rate double precision;
  v_mean record;
begin
  select * into v_endpoint from endpoints where id = p_endpoint_id;
  select * into v_state from endpoint_states where endpoint_id = p_endpoint_id;
  if v_endpoint.status <> 'active' or v_state.closed_until > p_now then
    return 0;
  end if;
  v_free := _free_capacity(v_endpoint, v_state, p_now);
  -- The mean size of the next calls; the claim parks those that never fit.
  select avg(s.requests) as requests, nullif(avg(s.tokens), 0) as tokens into v_size
  from lanes l
  cross join lateral (
    select x.job_id, x.task_id from ready x where x.lane_id = l.id order by x.vtime limit 100) as r
  join tasks t on t.job_id = r.job_id and t.id = r.task_id
  cross join lateral _call_size(t.units, v_endpoint.default_tokens) as s
  where l.endpoint_id = p_endpoint_id and s.requests <= coalesce(v_free.max_requests, s.requests)
    and s.tokens <= coalesce(v_free.max_tokens, s.tokens);
  v_fit := floor(least(v_free.requests / v_size.requests, v_free.tokens / v_size.tokens));
  if v_fit is null or v_fit >= p_waiting then
    return v_free.places;
  end if;
  if v_fit < 1 and _opens_at(v_endpoint, ceil(v_size.requests)::bigint,
      coalesce(ceil(v_size.tokens), 0)::bigint, p_now) > p_now + interval '61 seconds' then
    return 0;
  end if;
  -- The windows are the bottleneck: as many slots as their rate keeps busy.
  v_rate := _current_pace(v_state.pace, v_state.paced_at, p_now) / 60 * least(
    least(v_endpoint.requests_per_minute, v_state.requests_limit) / v_size.requests,
    least(v_endpoint.tokens_per_minute, v_state.tokens_limit) / v_size.tokens);
  select sum(x.n) as running, avg(d.seconds) as seconds into v_mean
  from lanes l cross join lateral (select count(*) as n from leases y where y.lane_id = l.id) as x
  cross join lateral _recent_durations(l.kind, l.provider) as d where l.endpoint_id = p_endpoint_id;
  return greatest(0, least(v_free.places, case when v_rate * v_mean.seconds is null then v_fit
    else greatest(1, ceil(v_rate * v_mean.seconds)) - v_mean.running end));
end
$$;
comment on function penstock._endpoint_room(integer, bigint, timestamptz) is
  'How many more tasks an endpoint lets run now (null: no limit). If its windows admit all that waits, its '
  'concurrency decides. Otherwise as many as its rate per minute keeps busy at their mean duration.';

create or replace function penstock.wanted_slots()
returns table (kind text, provider text, waiting bigint, running bigint, runnable bigint, wanted bigint)
language sql stable security definer set search_path = penstock, pg_temp set jit = off as $$
  with waiting as materialized (
    select w.*, l.is_gated and (t.plan <> 'unlimited' or t.plan_until is not null
      or exists (select from tenant_limits x where x.tenant_id = w.tenant_id)
      or exists (select from jobs j where j.id = w.job_id and j.budget is not null)) as is_limited
    from _waiting_groups() as w join lanes l on l.id = w.lane_id join tenants t on t.id = w.tenant_id
  ), short as materialized (
    select s.* from (
      select array_agg(distinct w.lane_id) as lane_ids, array_agg(distinct w.job_id) as job_ids
      from waiting w where w.is_limited) as x
    cross join lateral _short_tasks(x.lane_ids, x.job_ids, _now()) as s where x.lane_ids is not null
  ), lane as materialized (
    select l.id, l.kind, l.provider, l.endpoint_id,
      (select count(*) from leases x where x.lane_id = l.id) as running,
      (select coalesce(sum(w.waiting), 0)::bigint from waiting w where w.lane_id = l.id)
        - coalesce((select s.waiting from short s where s.lane_id = l.id), 0) as waiting
    from lanes l
  ), endpoint as materialized (
    select x.endpoint_id, x.waiting, _endpoint_room(x.endpoint_id, x.waiting, _now()) as room
    from (
      select l.endpoint_id, sum(l.waiting)::bigint as waiting from lane l
      where l.endpoint_id is not null and l.waiting > 0 group by l.endpoint_id) as x
  )
  -- Lanes of one endpoint share its room by their waiting tasks, at least one each.
  select l.kind, l.provider, sum(l.waiting)::bigint, sum(l.running)::bigint, sum(x.runnable)::bigint,
    sum(l.running + x.runnable)::bigint
  from lane l left join endpoint e on e.endpoint_id = l.endpoint_id
  cross join lateral (
    select least(l.waiting, ceil(e.room::numeric * l.waiting / nullif(e.waiting, 0))::bigint) as runnable
  ) as x
  group by l.kind, l.provider
$$;
comment on function penstock.wanted_slots() is
  'Per kind and provider: how many tasks could run at once now. wanted is runnable (waiting tasks that '
  'limits, quotas and budgets let run now) plus running. Scale workers on it. Counts at most 10,000 waiting '
  'tasks of each lane; waiting leaves out tasks of stopped jobs and without quota or budget.';
