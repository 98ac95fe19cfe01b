-- Parked tasks that wait for a quota, a budget, a price or a limit: how they are queued once there is room.
-- Lock order: see claim.sql.

create or replace function penstock._wake_waiting(p_tenant_ids uuid[])
returns void language sql set search_path = penstock, pg_temp as $$
  select _wake_fitting(p_tenant_ids, 10)
$$;
comment on function penstock._wake_waiting(uuid[]) is
  'Queues parked tasks of tenants that have more quota or budget now, as far as they fit.';

create or replace function penstock._wake_fitting(p_tenant_ids uuid[], p_max_misfits integer)
returns integer language plpgsql set search_path = penstock, pg_temp as $$
-- Lock order: see claim.sql.
declare
  v_limit record;
  v_tids tid[];
  v_rows ready[];
  v_count integer := 0;
begin
  for v_limit in select l.* from _limits_waited_for(p_tenant_ids) as l loop
    v_tids := _parked_that_fit(v_limit.tenant_id, v_limit.waits_for, v_limit.job_id, p_max_misfits);
    continue when v_tids = '{}';
    with due as (
      select ctid from parked
      where ctid = any (v_tids) and tenant_id = v_limit.tenant_id and waits_for = v_limit.waits_for
      for update skip locked
    ), gone as (
      delete from parked p where p.ctid = any (array(select ctid from due))
      returning _parked_to_ready(p) as task
    )
    select array_agg(g.task order by (g.task).task_id) into v_rows from gone g;
    perform _queue(v_rows, true);
    v_count := v_count + coalesce(cardinality(v_rows), 0);
  end loop;
  return v_count;
end
$$;
comment on function penstock._wake_fitting(uuid[], integer) is
  'Queues parked tasks of these tenants that fit into their quotas and budgets now, and returns how many. '
  'For each limit it stops after p_max_misfits tasks that do not fit.';

create or replace function penstock._limits_waited_for(p_tenant_ids uuid[])
returns table (tenant_id uuid, waits_for text, job_id uuid)
language plpgsql set search_path = penstock, pg_temp as $$
begin
  return query
  select g.id, w.waits_for, w.job_id from unnest(p_tenant_ids) as g(id)
  cross join lateral (
    select m.name as waits_for, null::uuid as job_id from meters m
    where exists (select from parked p where p.tenant_id = g.id and p.waits_for = m.name)
    union all
    -- Jumps from job to job in the index, however many tasks of each wait.
    select 'budget', d.job_id from (
      with recursive next as (
        (select p.job_id from parked p where p.tenant_id = g.id and p.waits_for = 'budget'
         order by p.job_id limit 1)
        union all
        select (
          select p.job_id from parked p
          where p.tenant_id = g.id and p.waits_for = 'budget' and p.job_id > n.job_id
          order by p.job_id limit 1)
        from next n where n.job_id is not null
      ) select n.job_id from next n where n.job_id is not null) as d
    -- A paused job is woken by its resume; there may be many.
    join jobs j on j.id = d.job_id and j.status in ('queued', 'running')) as w;
end
$$;
comment on function penstock._limits_waited_for(uuid[]) is
  'The quotas (a meter) and budgets (with the job) for which parked tasks of these tenants wait.';

create or replace function penstock._parked_that_fit(
  p_tenant_id uuid, p_waits_for text, p_job_id uuid, p_max_misfits integer)
returns tid[] language plpgsql set search_path = penstock, pg_temp as $$
declare
  v_left numeric;
  v_need numeric;
  v_units jsonb;
  v_provider text;
  v_task record;
  v_misfits integer := 0;
  v_tids tid[] := '{}';
begin
  if p_waits_for = 'budget' then
    select j.budget - coalesce(a.used + a.held, 0) into v_left from jobs j
    left join accounts a on a.tenant_id = j.tenant_id and a.job_id = j.id and a.meter = 'cost'
    where j.id = p_job_id;
  else
    select l.amount - coalesce(a.used + a.held, 0) into v_left from _limits(p_tenant_id, _now()) as l
    left join accounts a on a.tenant_id = p_tenant_id and a.job_id is null and a.meter = l.meter
      and a.period = l.period
    where l.meter = p_waits_for and l.mode = 'enforce';
  end if;
  -- The oldest first, and past a few that are too large, as new tasks go past them. The claim decides.
  for v_task in
    select p.ctid as tid, t.units, l.provider from parked p
    join tasks t on t.job_id = p.job_id and t.id = p.task_id join lanes l on l.id = p.lane_id
    where p.tenant_id = p_tenant_id and p.waits_for = p_waits_for and p.job_id = coalesce(p_job_id, p.job_id)
    order by p.job_id, p.task_id limit 500
  loop
    -- Accounts may be locked now, and most tasks need the same: work it out once.
    if v_need is null or v_task.units is distinct from v_units
       or v_task.provider is distinct from v_provider then
      v_need := case when p_waits_for in ('budget', 'cost')
        then coalesce(_estimated_cost(v_task.provider, p_tenant_id, v_task.units), 0)
        else coalesce(
          (_whole_units(v_task.units, v_task.provider is not null) ->> p_waits_for)::numeric, 0) end;
      v_units := v_task.units;
      v_provider := v_task.provider;
    end if;
    if v_left < v_need then
      v_misfits := v_misfits + 1;
      exit when v_misfits >= p_max_misfits or v_left <= 0;
      continue;
    end if;
    v_left := v_left - v_need;
    v_tids := v_tids || v_task.tid;
  end loop;
  return v_tids;
end
$$;
comment on function penstock._parked_that_fit(uuid, text, uuid, integer) is
  'The first 500 tasks parked for a quota or budget, those for which enough is left now.';

create or replace function penstock._wake_missed()
returns integer language plpgsql set search_path = penstock, pg_temp
  set enable_seqscan = off set jit = off as $$
declare
  v_tenants uuid[];
begin
  if not exists (select from parked p where p.waits_for is not null) then
    return 0;
  end if;
  -- A task that was parked while its limit was raised, or was locked when it should have been woken, was
  -- missed.
  v_tenants := _some_waiting_tenants();
  -- Its price or limit may have come as well, or it may need no price any more.
  update parked set until = _now() where ctid = any (array(
    select p.ctid from parked p join lanes l on l.id = p.lane_id
    join endpoints e on e.id = l.endpoint_id join endpoint_states s on s.endpoint_id = e.id
    join tasks t on t.job_id = p.job_id and t.id = p.task_id
    cross join lateral _call_size(t.units, e.default_tokens) as z
    where p.tenant_id = any (v_tenants) and p.waits_for in ('price', 'limit') and p.until = 'infinity' and (
      p.waits_for = 'price' and (_has_price(l.provider, p.tenant_id, _now())
        or not exists (select from jobs j where j.id = p.job_id and j.budget is not null)
          and not exists (select from _limits(p.tenant_id, _now()) as c where c.meter = 'cost'))
      or p.waits_for = 'limit'
        and z.requests
          <= coalesce(least(e.requests_per_minute, e.requests_per_hour, s.requests_limit), z.requests)
        and z.tokens <= coalesce(least(e.tokens_per_minute, e.tokens_per_hour, s.tokens_limit), z.tokens))
    limit 500 for no key update of p skip locked));
  return _wake_fitting(v_tenants, 100);
end
$$;
comment on function penstock._wake_missed() is
  'Finds parked tasks for which there is room by now, of a few tenants at a time, and queues them.';

create or replace function penstock._some_waiting_tenants()
returns uuid[] language plpgsql set search_path = penstock, pg_temp as $$
declare
  v_start uuid;
begin
  select p.tenant_id into v_start
  from parked p tablesample system (
    least(100, 300.0 * 8192 / greatest(1, pg_relation_size('penstock.parked'))))
  where p.waits_for is not null order by random() limit 1;
  return array(
    with recursive following as (
      (select p.tenant_id from parked p
       where p.waits_for is not null
         and p.tenant_id >= coalesce(v_start, '00000000-0000-0000-0000-000000000000')
       order by p.tenant_id limit 1)
      union all
      select (
        select p.tenant_id from parked p where p.waits_for is not null and p.tenant_id > f.tenant_id
        order by p.tenant_id limit 1)
      from following f where f.tenant_id is not null
    ), first as (
      (select p.tenant_id from parked p where p.waits_for is not null order by p.tenant_id limit 1)
      union all
      select (
        select p.tenant_id from parked p where p.waits_for is not null and p.tenant_id > f.tenant_id
        order by p.tenant_id limit 1)
      from first f where f.tenant_id is not null
    )
    select distinct x.tenant_id from (
      (select tenant_id from following limit 8) union all (select tenant_id from first limit 2)) as x
    where x.tenant_id is not null);
end
$$;
comment on function penstock._some_waiting_tenants() is
  'Ten tenants with tasks parked for a limit: the first two, and eight from a random one on.';
