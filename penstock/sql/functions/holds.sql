-- Holds: amounts reserved for attempts and for callers, and the accounts they are taken from.
-- Lock order: see claim.sql. Accounts come last: a transaction that has locked one waits for no other lock.

create or replace function penstock._book(p_bookings penstock.booking[])
returns void language plpgsql set search_path = penstock, pg_temp as $$
-- Lock order: see claim.sql.
declare
  v_sum record;
begin
  -- One by one, in the lock order.
  for v_sum in
    select b.tenant_id, b.job_id, b.meter, b.period, sum(b.used) as used, sum(b.held) as held
    from unnest(p_bookings) as b
    group by b.tenant_id, b.job_id, b.meter, b.period having sum(b.used) <> 0 or sum(b.held) <> 0
    order by b.tenant_id, b.job_id, b.meter, b.period
  loop
    update accounts a set used = a.used + v_sum.used, held = a.held + v_sum.held
    where a.tenant_id = v_sum.tenant_id and a.meter = v_sum.meter and a.period = v_sum.period
      and a.job_id is not distinct from v_sum.job_id;
    if not found then
      insert into accounts as a (tenant_id, job_id, meter, period, used, held)
      values (v_sum.tenant_id, v_sum.job_id, v_sum.meter, v_sum.period, v_sum.used, v_sum.held)
      on conflict (tenant_id, meter, period, job_id) do update
      set used = a.used + excluded.used, held = a.held + excluded.held;
    end if;
  end loop;
end
$$;
comment on function penstock._book(penstock.booking[]) is 'Adds to accounts, in the lock order.';

create or replace function penstock._lock_account(
  p_tenant_id uuid, p_job_id uuid, p_meter text, p_period date, p_may_wait boolean)
returns penstock.accounts language plpgsql set search_path = penstock, pg_temp as $$
declare
  v_account accounts;
begin
  if not p_may_wait then
    -- Inserting a missing account could wait as well.
    select * into v_account from accounts
    where tenant_id = p_tenant_id and meter = p_meter and period = p_period
      and job_id is not distinct from p_job_id for no key update skip locked;
    return v_account;
  end if;
  loop
    select * into v_account from accounts
    where tenant_id = p_tenant_id and meter = p_meter and period = p_period
      and job_id is not distinct from p_job_id for no key update;
    if found then
      return v_account;
    end if;
    insert into accounts (tenant_id, job_id, meter, period) values (p_tenant_id, p_job_id, p_meter, p_period)
    on conflict (tenant_id, meter, period, job_id) do nothing;
  end loop;
end
$$;
comment on function penstock._lock_account(uuid, uuid, text, date, boolean) is
  'Locks an account and returns it, and creates a missing one. Null when that needs waiting and p_may_wait '
  'is false.';

create or replace function penstock.reserve_quota(
  p_tenant_id uuid, p_amounts jsonb, p_action text default 'reserve', p_key text default null,
  p_ttl_seconds double precision default 300)
returns uuid language plpgsql security definer set search_path = penstock, pg_temp as $$
-- Lock order: see claim.sql.
declare
  v_now timestamptz := _now();
  v_units jsonb;
  v_hold holds;
  v_limit record;
  v_account accounts;
  v_need numeric;
begin
  perform _check_units(p_amounts, 'p_amounts');
  if coalesce(length(p_action), 0) not between 1 and 200 then
    perform _refuse(422, 'invalid_action', 'p_action must have 1 to 200 characters', '{"field": "p_action"}');
  end if;
  if length(p_key) not between 1 and 255 then
    perform _refuse(422, 'invalid_key', format('p_key must have 1 to 255 characters (got %s)', length(p_key)),
      '{"field": "p_key"}');
  end if;
  if p_ttl_seconds is null or not p_ttl_seconds between 1 and 86400 then
    perform _refuse(422, 'invalid_ttl',
      format('p_ttl_seconds must be between 1 and 86400 (got %s)', coalesce(p_ttl_seconds::text, 'null')),
      '{"field": "p_ttl_seconds"}');
  end if;
  v_units := _whole_units(p_amounts, false);
  insert into holds (tenant_id, key, action, amounts, at, expires_at)
  values (p_tenant_id, p_key, p_action, v_units, v_now, v_now + make_interval(secs => p_ttl_seconds))
  on conflict (tenant_id, key) where key is not null do nothing returning * into v_hold;
  if v_hold.id is null then
    select * into v_hold from holds where tenant_id = p_tenant_id and key = p_key;
    if v_hold.amounts <> v_units then
      perform _refuse(409, 'idempotency_key_reused', 'this key was used with other amounts',
        jsonb_build_object('hold_id', v_hold.id));
    end if;
    return v_hold.id;
  end if;
  if not exists (select from tenants where id = p_tenant_id) then
    perform _refuse(404, 'unknown_tenant', 'there is no such tenant');
  end if;
  -- Also meters without a limit, so that all accounts are locked in order.
  for v_limit in
    select k as meter, l.amount, l.mode, (_period(k, v_now)).starts as period, l.resets_at
    from jsonb_object_keys(v_units) as k left join _limits(p_tenant_id, v_now) as l on l.meter = k order by k
  loop
    v_account := _lock_account(p_tenant_id, null, v_limit.meter, v_limit.period, true);
    v_need := (v_units ->> v_limit.meter)::numeric;
    if v_account.used + v_account.held + v_need > v_limit.amount and v_need > 0 then
      if v_limit.mode = 'enforce' then
        perform _refuse(429, 'quota_exceeded',
          format('%s of %s %s are used or reserved: %s more exceed the quota',
            v_account.used + v_account.held, v_limit.amount, v_limit.meter, v_need),
          jsonb_build_object('meter', v_limit.meter, 'used', v_account.used, 'held', v_account.held,
            'limit', v_limit.amount,
            'resets_at', case when isfinite(v_limit.resets_at) then v_limit.resets_at end,
            'retry_after_seconds', case when isfinite(v_limit.resets_at)
              then ceil(extract(epoch from v_limit.resets_at - v_now)) end));
      end if;
      insert into usage_events (at, tenant_id, action, hold_id, units, details)
      values (v_now, p_tenant_id, p_action, v_hold.id, '{}',
        jsonb_build_object('would_have_blocked', v_limit.meter));
    end if;
  end loop;
  perform _book(array(
    select row(p_tenant_id, null, u.key, (_period(u.key, v_now)).starts, 0, u.value::numeric)::booking
    from jsonb_each_text(v_units) as u));
  return v_hold.id;
end
$$;
comment on function penstock.reserve_quota(uuid, jsonb, text, text, double precision) is
  'Reserves amounts of meters, all or none, and returns the id of the hold; fails with 429 quota_exceeded. '
  'A hold that is neither committed nor released expires. The same p_key returns the same hold.';

create or replace function penstock._count_start(
  p_job_id uuid, p_jobs integer, p_rows jsonb, p_params jsonb)
returns void language plpgsql set search_path = penstock, pg_temp as $$
-- Lock order: see claim.sql. Called last, and once: two starts that each counted twice would deadlock.
declare
  v_job jobs;
  v_limit record;
  v_account accounts;
  v_units jsonb;
  v_counted jsonb := '{}';
  v_more numeric;
begin
  select * into v_job from jobs where id = p_job_id;
  -- Only where something is limited: without a limit, starting a job locks no account.
  if not exists (select from tenants t where t.id = v_job.tenant_id
      and (t.plan is not null or exists (select from tenant_limits x where x.tenant_id = t.id))) then
    return;
  end if;
  -- All limited ones, also those that do not change now: a transaction that calls this twice locks no account
  -- the second time, so the order holds.
  for v_limit in
    select l.* from _limits(v_job.tenant_id, _now()) as l
    where l.meter in ('input_bytes', 'jobs', 'rows') order by l.meter
  loop
    v_units := coalesce(v_units, jsonb_build_object('jobs', p_jobs, 'rows', jsonb_array_length(p_rows),
      'input_bytes', octet_length(p_rows::text) + coalesce(octet_length(p_params::text), 0)));
    v_more := (v_units ->> v_limit.meter)::numeric;
    v_account := _lock_account(v_job.tenant_id, null, v_limit.meter, v_limit.period, true);
    continue when v_more = 0;
    if v_account.used + v_account.held + v_more > v_limit.amount and v_limit.mode = 'enforce' then
      perform _refuse(429, 'quota_exceeded', format('%s of %s %s are used: %s more exceed the quota',
          v_account.used + v_account.held, v_limit.amount, v_limit.meter, v_more),
        jsonb_build_object('meter', v_limit.meter, 'used', v_account.used, 'held', v_account.held,
          'limit', v_limit.amount,
          'resets_at', case when isfinite(v_limit.resets_at) then v_limit.resets_at end));
    end if;
    v_counted := v_counted || jsonb_build_object(v_limit.meter, v_more);
  end loop;
  if v_counted <> '{}' then
    perform _book(_note_usage(v_job.tenant_id, v_job.type, v_counted, null, null,
      jsonb_build_object('job_id', v_job.id)));
  end if;
end
$$;
comment on function penstock._count_start(uuid, integer, jsonb, jsonb) is
  'Counts new jobs, their rows (tasks, or rows of a bulk job) and the bytes of their input where these are '
  'limited, and rejects them over the limit.';

create or replace function penstock._locked_hold(p_hold_id uuid, p_tenant_id uuid)
returns penstock.holds language plpgsql set search_path = penstock, pg_temp as $$
declare
  v_hold holds;
begin
  select * into v_hold from holds
  where id = p_hold_id and tenant_id = coalesce(p_tenant_id, tenant_id) for update;
  if not found then
    perform _refuse(404, 'unknown_hold', 'there is no such hold');
  end if;
  if v_hold.lease is not null then
    perform _refuse(409, 'hold_of_lease', 'this hold belongs to a lease and ends with it',
      jsonb_build_object('task_id', v_hold.task_id));
  end if;
  return v_hold;
end
$$;
comment on function penstock._locked_hold(uuid, uuid) is
  'Locks a hold that a caller reserved, and returns it.';

create or replace function penstock._release_bookings(p_hold penstock.holds)
returns penstock.booking[] language sql stable set search_path = penstock, pg_temp as $$
  select array_agg(row(p_hold.tenant_id, s.job_id, u.key,
    case when s.job_id is null then (_period(u.key, p_hold.at)).starts else 'epoch' end,
    0, -greatest(0, u.value::numeric - coalesce((p_hold.spent ->> u.key)::numeric, 0)))::booking)
  from jsonb_each_text(p_hold.amounts) as u
  cross join lateral (
    select null::uuid as job_id
    union all select p_hold.job_id where p_hold.has_budget and u.key = 'cost') as s
$$;
comment on function penstock._release_bookings(penstock.holds) is
  'What to book when a hold ends: the part that was not spent is free again.';

create or replace function penstock.commit_hold(
  p_hold_id uuid, p_actual jsonb default null, p_tenant_id uuid default null)
returns void language plpgsql security definer set search_path = penstock, pg_temp as $$
-- Lock order: see claim.sql.
declare
  v_hold holds := _locked_hold(p_hold_id, p_tenant_id);
  v_units jsonb;
begin
  if p_actual is not null then
    perform _check_units(p_actual, 'p_actual');
  end if;
  v_units := _whole_units(coalesce(p_actual, v_hold.amounts), false);
  if v_hold.status = 'committed' and v_hold.spent = v_units then
    return;
  elsif v_hold.status in ('committed', 'released') then
    perform _refuse(409, 'hold_settled', format('the hold was %s before', v_hold.status),
      jsonb_build_object('status', v_hold.status));
  end if;
  -- Also after it expired: usage is always billed.
  update holds set status = 'committed', spent = v_units, settled_at = _now() where id = v_hold.id;
  perform _book(_note_usage(v_hold.tenant_id, v_hold.action, v_units, v_hold.id, null, null)
    || case when v_hold.status = 'held' then _release_bookings(v_hold) else '{}' end);
  perform _wake_waiting(array[v_hold.tenant_id]);
end
$$;
comment on function penstock.commit_hold(uuid, jsonb, uuid) is
  'Books the actual amounts (default: those reserved) and ends the hold. Repeating it changes nothing; an '
  'expired hold can still be committed.';

create or replace function penstock.release_hold(p_hold_id uuid, p_tenant_id uuid default null)
returns boolean language plpgsql security definer set search_path = penstock, pg_temp as $$
-- Lock order: see claim.sql.
declare
  v_hold holds := _locked_hold(p_hold_id, p_tenant_id);
begin
  if v_hold.status = 'committed' then
    perform _refuse(409, 'hold_settled', 'the hold was committed before',
      jsonb_build_object('status', v_hold.status));
  elsif v_hold.status <> 'held' then
    return false;
  end if;
  update holds set status = 'released', settled_at = _now() where id = v_hold.id;
  perform _book(_release_bookings(v_hold));
  perform _wake_waiting(array[v_hold.tenant_id]);
  return true;
end
$$;
comment on function penstock.release_hold(uuid, uuid) is
  'Frees what a hold reserved. A second release changes nothing and returns false.';

create or replace function penstock._expire_holds()
returns integer language plpgsql set search_path = penstock, pg_temp as $$
-- Lock order: see claim.sql.
declare
  v_holds holds[];
begin
  with due as (
    select id from holds where status = 'held' and expires_at < _now() order by expires_at
    limit 1000 for update skip locked
  ), gone as (
    update holds h set status = 'expired', settled_at = _now() from due where h.id = due.id
    returning h as hold
  )
  select array_agg(g.hold) into v_holds from gone g;
  if v_holds is null then
    return 0;
  end if;
  perform _book(array(
    select b from unnest(v_holds) as h cross join lateral unnest(_release_bookings(h)) as b));
  perform _wake_waiting(array(select distinct h.tenant_id from unnest(v_holds) as h));
  return cardinality(v_holds);
end
$$;
comment on function penstock._expire_holds() is
  'Frees what callers reserved and never committed or released.';

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

create or replace function penstock.check_accounts()
returns table (
  tenant_id uuid, job_id uuid, meter text, period date, what text, kept numeric, true_amount numeric)
language sql stable security definer set search_path = penstock, pg_temp as $$
  with held as (
    select h.tenant_id, s.job_id, u.key as meter,
      case when s.job_id is null then (_period(u.key, h.at)).starts else 'epoch' end as period,
      sum(greatest(0, u.value::numeric - coalesce((h.spent ->> u.key)::numeric, 0))) as amount
    from holds h cross join lateral jsonb_each_text(h.amounts) as u
    cross join lateral (
      select null::uuid as job_id union all select h.job_id where h.has_budget and u.key = 'cost') as s
    where h.status = 'held' group by 1, 2, 3, 4
  ), lines as (
    select s.tenant_id, null::uuid as job_id, s.meter,
      (_period(s.meter, s.day::timestamp at time zone 'utc')).starts as period, sum(s.amount) as amount
    from usage_sums s group by 1, 2, 3, 4
    union all
    select c.tenant_id, null::uuid, 'cost', (_period('cost', c.day::timestamp at time zone 'utc')).starts,
      sum(c.amount)
    from cost_sums c where c.tenant_id is not null group by 1, 2, 3, 4
    union all
    -- The ledger keeps costs of jobs that were deleted.
    select c.tenant_id, c.job_id, 'cost', date 'epoch', sum(c.base_amount) from cost_entries c
    where c.job_id in (select j.id from jobs j) group by 1, 2, 3, 4
  ), used as (
    -- Costs are in cost_sums, and a reset of them is in usage_sums.
    select l.tenant_id, l.job_id, l.meter, l.period, sum(l.amount) as amount from lines l group by 1, 2, 3, 4
  )
  select coalesce(a.tenant_id, t.tenant_id), coalesce(a.job_id, t.job_id), coalesce(a.meter, t.meter),
    coalesce(a.period, t.period), t.what,
    coalesce(case t.what when 'held' then a.held else a.used end, 0), t.amount
  from (select 'held' as what, * from held union all select 'used', * from used) as t
  left join accounts a on a.tenant_id = t.tenant_id and a.job_id is not distinct from t.job_id
    and a.meter = t.meter and a.period = t.period
  where coalesce(case t.what when 'held' then a.held else a.used end, 0) <> t.amount
  union all
  select a.tenant_id, a.job_id, a.meter, a.period, 'held', a.held, 0 from accounts a
  where a.held <> 0 and not exists (
    select from held h where h.tenant_id = a.tenant_id and h.job_id is not distinct from a.job_id
      and h.meter = a.meter and h.period = a.period)
  union all
  select a.tenant_id, a.job_id, a.meter, a.period, 'used', a.used, 0 from accounts a
  where a.used <> 0 and not exists (
    select from used u where u.tenant_id = a.tenant_id and u.job_id is not distinct from a.job_id
      and u.meter = a.meter and u.period = a.period)
$$;
comment on function penstock.check_accounts() is
  'Every account that is not the sum of its usage, costs and holds. No row: all are right.';
