-- Reservations: quota and budget for tasks that are being claimed. The claim locks the accounts of their
-- tenants and jobs, reserves what each task needs in the order of their slots, and parks tasks for which
-- nothing is left.

create or replace function penstock._has_quota_or_budget(p_tids tid[])
returns boolean language plpgsql set search_path = penstock, pg_temp as $$
begin
  return exists (
    select from (select distinct r.tenant_id, r.job_id from ready r where r.ctid = any (p_tids)) as d
    cross join lateral (select t.plan, t.plan_until from tenants t where t.id = d.tenant_id offset 0) as t
    cross join lateral (select j.budget from jobs j where j.id = d.job_id offset 0) as j
    where t.plan <> 'unlimited' or t.plan_until is not null or j.budget is not null
      or exists (select from tenant_limits x where x.tenant_id = d.tenant_id));
end
$$;
comment on function penstock._has_quota_or_budget(tid[]) is
  'Whether any of these tasks belongs to a tenant with limits or to a job with a budget. Most do not, and '
  'skip the accounts.';

create or replace function penstock._reserve_pick(
  p_pick penstock.claim_pick, p_now timestamptz, p_may_wait boolean)
returns penstock.claim_pick language plpgsql set search_path = penstock, pg_temp as $$
-- Lock order: see claim.sql.
declare
  v_pick claim_pick := p_pick;
  v_reserved record;
  v_unused record;
begin
  if p_pick.tids = '{}' or not _has_quota_or_budget(p_pick.tids) then
    return p_pick;
  end if;
  v_reserved := _reserve_amounts(p_pick.tids, p_now, p_may_wait);
  v_pick.tids := v_reserved.tids;
  v_pick.reservations := v_reserved.reservations;
  v_pick.has_reserved := true;
  v_pick.is_more := p_pick.is_more or cardinality(v_pick.tids) < cardinality(p_pick.tids);
  if v_reserved.is_refused then
    perform pg_notify('penstock', 'chores');
  end if;
  -- Tasks that are not claimed after all leave their room in the windows to others. This transaction has
  -- locked the states of their endpoints already.
  for v_unused in
    select e as endpoint, sum(s.requests)::bigint as requests, sum(s.tokens)::bigint as tokens
    from unnest(v_reserved.unused::claim_candidate[]) as u
    join tasks t on t.job_id = u.job_id and t.id = u.task_id
    join lanes n on n.id = t.lane_id join endpoints e on e.id = n.endpoint_id
    cross join lateral _call_size(t.units, e.default_tokens) as s group by e.id, e order by e.id
  loop
    perform _count_calls(v_unused.endpoint, p_now, -v_unused.requests, -v_unused.tokens);
    update endpoint_states set open_at = 'epoch'
    where endpoint_id = (v_unused.endpoint).id and open_at > p_now;
  end loop;
  return v_pick;
end
$$;
comment on function penstock._reserve_pick(penstock.claim_pick, timestamptz, boolean) is
  'Reserves quota and budget for picked tasks and drops those that get none from the pick and from the '
  'windows.';

create or replace function penstock._reserve_amounts(
  p_tids tid[], p_now timestamptz, p_may_wait boolean,
  out tids tid[], out reservations penstock.reservation[], out is_refused boolean,
  out unused penstock.claim_candidate[])
language plpgsql set search_path = penstock, pg_temp set enable_seqscan = off set jit = off as $$
-- Lock order: see claim.sql. Accounts are the last locks that a claim waits for.
declare
  v_locked record := _lock_limits(p_tids, p_now, p_may_wait);
  v_limits claim_limit[] := v_locked.limits;
  v_task claim_candidate;
  v_need claim_need;
begin
  tids := '{}';
  reservations := '{}';
  is_refused := false;
  unused := '{}';
  for v_task in
    select r.ctid, r.task_id, r.job_id, r.tenant_id, t.units, l.provider, j.on_limit, j.status
    from ready r join lanes l on l.id = r.lane_id
    cross join lateral (
      select x.units from tasks x where x.job_id = r.job_id and x.id = r.task_id offset 0) as t
    cross join lateral (select x.on_limit, x.status from jobs x where x.id = r.job_id offset 0) as j
    where r.ctid = any (p_tids) order by r.vtime, r.task_id
  loop
    if v_task.job_status not in ('queued', 'running') then
      -- _park_stopped takes it out of ready. With this lock the job cannot resume before that.
      perform 1 from jobs where id = v_task.job_id and status = v_task.job_status for share skip locked;
      tids := case when found then tids || v_task.tid else tids end;
      unused := unused || v_task;
      continue;
    elsif v_task.tenant_id = any (v_locked.busy_tenants) then
      -- A later round takes it: another transaction has this tenant's account, and this one holds accounts.
      unused := unused || v_task;
      continue;
    end if;
    v_need := _measure_need(v_task, v_limits, p_now);
    if v_need.shortage is not null then
      perform _park_short(v_task, v_need, v_limits, p_now);
      -- Upkeep ends the task (refuse) or pauses its job (pause).
      is_refused := is_refused
        or v_need.shortage not in ('price', 'budget') and v_task.on_limit in ('refuse', 'pause');
      unused := unused || v_task;
      continue;
    end if;
    tids := tids || v_task.tid;
    if v_need.amounts is not null then
      reservations := reservations || row(v_task.task_id, v_task.tenant_id, v_task.job_id, v_need.amounts,
        v_need.has_budget)::reservation;
      v_limits := _take_from_limits(v_limits, v_task, v_need.amounts);
    end if;
  end loop;
  perform _book(_reservation_bookings(reservations, p_now, 1));
end
$$;
comment on function penstock._reserve_amounts(tid[], timestamptz, boolean) is
  'Reserves what picked tasks need of their tenants'' quotas and their jobs'' budgets, and parks those for '
  'which nothing is left. unused: tasks that were counted in a window and are not claimed.';

create or replace function penstock._lock_limits(
  p_tids tid[], p_now timestamptz, p_may_wait boolean,
  out limits penstock.claim_limit[], out busy_tenants uuid[])
language plpgsql set search_path = penstock, pg_temp as $$
-- Lock order: see claim.sql.
declare
  v_limit record;
  v_account accounts;
begin
  limits := '{}';
  busy_tenants := '{}';
  -- All accounts that may be booked, and few others, in the lock order: by tenant, its jobs' before its own,
  -- by meter.
  for v_limit in
    with task as materialized (
      select r.tenant_id, r.job_id, t.units from ready r
      cross join lateral (
        select x.units from tasks x where x.job_id = r.job_id and x.id = r.task_id offset 0) as t
      where r.ctid = any (p_tids)
    ), need as materialized (
      select d.tenant_id, k as meter from (select distinct x.tenant_id, x.units from task x) as d
      cross join lateral jsonb_object_keys(d.units) as k
      -- Meters that follow from others.
      union select d.tenant_id, k from task d cross join unnest(array['requests', 'tokens', 'cost']) as k
    ), budgeted as materialized (
      select j.id, j.tenant_id, j.budget from (select distinct d.job_id from task d) as d
      cross join lateral (select x.id, x.tenant_id, x.budget from jobs x where x.id = d.job_id offset 0) as j
      where j.budget is not null
    )
    select distinct on (x.tenant_id, x.job_id, x.meter) x.* from (
      select g.tenant_id, null::uuid as job_id, l.meter, l.amount, l.mode, l.period, l.resets_at
      from (select n.tenant_id, array_agg(n.meter) as meters from need n group by n.tenant_id) as g
      cross join lateral _limits(g.tenant_id, p_now) as l where l.meter = any (g.meters)
      union all
      select b.tenant_id, b.id, 'cost', b.budget, 'enforce', 'epoch', 'infinity' from budgeted b
      union all
      -- A job's reservation is also its tenant's, with or without a limit there.
      select b.tenant_id, null, 'cost', null, null, (_period('cost', p_now)).starts, null
      from budgeted b) as x
    order by x.tenant_id, x.job_id, x.meter, x.amount nulls last
  loop
    v_account := _lock_account(
      v_limit.tenant_id, v_limit.job_id, v_limit.meter, v_limit.period, p_may_wait);
    if v_account.tenant_id is null then
      busy_tenants := busy_tenants || v_limit.tenant_id;
    elsif v_limit.amount is not null then
      limits := limits || row(v_limit.tenant_id, v_limit.job_id, v_limit.meter, v_limit.amount, v_limit.mode,
        v_limit.resets_at, v_limit.amount - v_account.used - v_account.held)::claim_limit;
    end if;
  end loop;
end
$$;
comment on function penstock._lock_limits(tid[], timestamptz, boolean) is
  'Locks the accounts of the quotas and budgets that these tasks may use and returns what remains of each. '
  'busy_tenants: those with an account that another transaction has locked, when this one may not wait.';

create or replace function penstock._measure_need(
  p_task penstock.claim_candidate, p_limits penstock.claim_limit[], p_now timestamptz)
returns penstock.claim_need language plpgsql set search_path = penstock, pg_temp as $$
declare
  v_need claim_need;
  v_units jsonb;
  v_applying record;
  v_limit record;
begin
  select count(*) > 0 as is_any, bool_or(l.meter = 'cost') as has_cost,
    bool_or(l.job_id is not null) as has_budget,
    min(l.remaining) filter (where l.job_id is not null) as budget_left
  into v_applying from unnest(p_limits) as l
  where l.tenant_id = p_task.tenant_id and (l.job_id is null or l.job_id = p_task.job_id);
  if not v_applying.is_any then
    return v_need;
  end if;
  v_units := _whole_units(p_task.units, p_task.provider is not null);
  v_need.amounts := '{}';
  v_need.has_budget := v_applying.has_budget;
  if v_applying.has_cost then
    v_need.cost := _estimated_cost(p_task.provider, p_task.tenant_id, p_task.units);
    v_need.shortage := case when v_need.cost is null then 'price'
      when v_need.cost > v_applying.budget_left then 'budget' end;
    if v_need.shortage is not null then
      return v_need;
    end if;
    v_units := v_units || jsonb_build_object('cost', v_need.cost);
    if v_need.has_budget then
      v_need.amounts := jsonb_build_object('cost', v_need.cost);
    end if;
  end if;
  for v_limit in
    select l.meter, l.mode, l.remaining, u.value, u.value::numeric as amount
    from jsonb_each(v_units) with ordinality as u(meter, value, n)
    join unnest(p_limits) as l on l.meter = u.meter
    where l.tenant_id = p_task.tenant_id and l.job_id is null order by u.n
  loop
    v_need.amounts := v_need.amounts || jsonb_build_object(v_limit.meter, v_limit.value);
    continue when v_limit.amount <= 0 or v_limit.amount <= v_limit.remaining;
    if v_limit.mode = 'enforce' then
      v_need.shortage := v_limit.meter;
      exit;
    end if;
    insert into usage_events (at, tenant_id, action, job_id, task_id, units, details)
    values (p_now, p_task.tenant_id, 'gate', p_task.job_id, p_task.task_id, '{}',
      jsonb_build_object('would_have_blocked', v_limit.meter));
  end loop;
  return v_need;
end
$$;
comment on function penstock._measure_need(penstock.claim_candidate, penstock.claim_limit[], timestamptz) is
  'What a task needs of the limits that apply to it, and what it is short of. A limit that is only observed '
  'leaves a usage event instead.';

create or replace function penstock._take_from_limits(
  p_limits penstock.claim_limit[], p_task penstock.claim_candidate, p_amounts jsonb)
returns penstock.claim_limit[] language plpgsql set search_path = penstock, pg_temp as $$
begin
  return array(
    select case when p_amounts ? l.meter and l.tenant_id = p_task.tenant_id
        and (l.job_id is null or l.job_id = p_task.job_id)
      then row(l.tenant_id, l.job_id, l.meter, l.amount, l.mode, l.resets_at,
        l.remaining - (p_amounts ->> l.meter)::numeric)::claim_limit
      else l end
    from unnest(p_limits) as l);
end
$$;
comment on function penstock._take_from_limits(
  penstock.claim_limit[], penstock.claim_candidate, jsonb) is
  'The limits after a task''s reservation, for the next task of the batch.';

create or replace function penstock._park_short(
  p_task penstock.claim_candidate, p_need penstock.claim_need, p_limits penstock.claim_limit[],
  p_now timestamptz)
returns void language plpgsql set search_path = penstock, pg_temp as $$
declare
  v_limit claim_limit;
begin
  if p_need.shortage = 'price' then
    perform _park(array[p_task.tid], format('price: %s has none', p_task.provider), 'price',
      coalesce((select min(p.valid_from) from prices p
        where p.provider = p_task.provider and p.valid_from > p_now), 'infinity'));
  elsif p_need.shortage = 'budget' then
    select l.* into v_limit from unnest(p_limits) as l where l.job_id = p_task.job_id;
    perform _park(array[p_task.tid], format('budget: %s left of %s, needs up to %s',
      trim_scale(v_limit.remaining), trim_scale(v_limit.amount), trim_scale(p_need.cost)),
      'budget', 'infinity');
  elsif p_task.on_limit = 'refuse' then
    perform _park(array[p_task.tid], 'quota: ' || p_need.shortage, 'refused', 'infinity');
  else
    select l.* into v_limit from unnest(p_limits) as l
    where l.tenant_id = p_task.tenant_id and l.job_id is null and l.meter = p_need.shortage;
    perform _park(array[p_task.tid], format('quota: %s, %s left of %s', p_need.shortage,
      greatest(0, trim_scale(v_limit.remaining)), v_limit.amount), p_need.shortage, v_limit.resets_at);
  end if;
end
$$;
comment on function penstock._park_short(
  penstock.claim_candidate, penstock.claim_need, penstock.claim_limit[], timestamptz) is
  'Parks a task that has no price, budget or quota, until when that may change.';

create or replace function penstock._reservation_bookings(
  p_reservations penstock.reservation[], p_at timestamptz, p_sign integer)
returns penstock.booking[] language plpgsql stable set search_path = penstock, pg_temp as $$
begin
  return array(
    select row(r.tenant_id, a.job_id, u.key,
      case when a.job_id is null then (_period(u.key, p_at)).starts else 'epoch' end,
      0, p_sign * u.value::numeric)::booking
    from unnest(p_reservations) as r cross join lateral jsonb_each_text(r.amounts) as u
    cross join lateral (
      select null::uuid as job_id union all select r.job_id where r.has_budget and u.key = 'cost') as a);
end
$$;
comment on function penstock._reservation_bookings(penstock.reservation[], timestamptz, integer) is
  'How reservations move accounts: the tenant''s, and for costs the budget of the job. Sign -1 takes them '
  'back.';

create or replace function penstock._record_holds(p_reservations penstock.reservation[], p_now timestamptz)
returns void language plpgsql set search_path = penstock, pg_temp as $$
-- Lock order: see claim.sql.
declare
  v_count integer;
begin
  insert into holds (tenant_id, job_id, task_id, lease, action, amounts, has_budget, at)
  select l.tenant_id, l.job_id, l.task_id, l.lease, 'claim', r.amounts, r.has_budget, p_now
  from unnest(p_reservations) as r
  cross join lateral (select x.* from leases x where x.task_id = r.task_id offset 0) as l;
  get diagnostics v_count = row_count;
  if v_count < cardinality(p_reservations) then
    -- A job was stopped between the reservation and the lease.
    perform _book(_reservation_bookings(array(
      select r from unnest(p_reservations) as r
      where not exists (select from leases l where l.task_id = r.task_id)), p_now, -1));
  end if;
end
$$;
comment on function penstock._record_holds(penstock.reservation[], timestamptz) is
  'Writes a hold for each reservation whose task got a lease, and takes the other reservations back.';

create or replace function penstock._refuse_waiting()
returns integer language plpgsql set search_path = penstock, pg_temp as $$
-- Lock order: see claim.sql.
declare
  v_gone leases[];
  v_reasons text[];
begin
  with due as (
    select p.ctid from parked p where p.waits_for = 'refused' and p.tenant_id <> all (_suspended_tenants())
    order by p.job_id, p.task_id
    limit 1000 for update skip locked
  ), gone as (
    delete from parked p where p.ctid = any (array(select ctid from due))
    returning _parked_to_lease(p) as task, p.reason
  )
  select array_agg(g.task order by (g.task).task_id),
    array_agg(g.reason || ' has no room' order by (g.task).task_id)
  into v_gone, v_reasons from gone g;
  if v_gone is null then
    return 0;
  end if;
  perform _move_to_dead_letters(v_gone, array_fill('permanent'::text, array[cardinality(v_gone)]),
    array_fill('quota_exceeded'::text, array[cardinality(v_gone)]), v_reasons);
  return cardinality(v_gone);
end
$$;
comment on function penstock._refuse_waiting() is
  'Ends parked tasks that had no quota, in jobs whose on_limit is refuse.';
