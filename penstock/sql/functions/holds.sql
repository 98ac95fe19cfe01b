-- Holds: what is set aside for work under way, and the accounts it is taken from.
-- Accounts come last in the order of locks, by tenant, job and meter; whoever has one waits for nothing else.

create or replace function penstock._book(p_bookings penstock.booking[])
returns void language plpgsql set search_path = penstock, pg_temp as $$
declare
  v_line record;
begin
  -- One by one, in one order for everybody.
  for v_line in
    select b.tenant_id, b.job_id, b.meter, b.period, sum(b.used) as used, sum(b.held) as held from unnest(p_bookings) as b
    group by b.tenant_id, b.job_id, b.meter, b.period having sum(b.used) <> 0 or sum(b.held) <> 0
    order by b.tenant_id, b.job_id, b.meter, b.period
  loop
    update accounts a set used = a.used + v_line.used, held = a.held + v_line.held
    where a.tenant_id = v_line.tenant_id and a.meter = v_line.meter and a.period = v_line.period and a.job_id is not distinct from v_line.job_id;
    if not found then
      insert into accounts as a (tenant_id, job_id, meter, period, used, held)
      values (v_line.tenant_id, v_line.job_id, v_line.meter, v_line.period, v_line.used, v_line.held)
      on conflict (tenant_id, meter, period, job_id) do update set used = a.used + excluded.used, held = a.held + excluded.held;
    end if;
  end loop;
end
$$;
comment on function penstock._book(penstock.booking[]) is 'Moves accounts, in one lock order.';

create or replace function penstock._locked_account(p_tenant_id uuid, p_job_id uuid, p_meter text, p_period date, p_is_patient boolean)
returns penstock.accounts language plpgsql set search_path = penstock, pg_temp as $$
declare
  v_account accounts;
begin
  if not p_is_patient then
    -- One that is to be made might be waited for as well.
    select * into v_account from accounts where tenant_id = p_tenant_id and meter = p_meter and period = p_period
      and job_id is not distinct from p_job_id for no key update skip locked;
    return v_account;
  end if;
  loop
    select * into v_account from accounts where tenant_id = p_tenant_id and meter = p_meter and period = p_period
      and job_id is not distinct from p_job_id for no key update;
    if found then
      return v_account;
    end if;
    insert into accounts (tenant_id, job_id, meter, period) values (p_tenant_id, p_job_id, p_meter, p_period)
    on conflict (tenant_id, meter, period, job_id) do nothing;
  end loop;
end
$$;
comment on function penstock._locked_account(uuid, uuid, text, date, boolean) is 'An account, locked, made when it is missing; null when that would mean to wait and we may not.';

create or replace function penstock.reserve_quota(
  p_tenant_id uuid, p_amounts jsonb, p_action text default 'reserve', p_key text default null, p_ttl_seconds double precision default 300)
returns uuid language plpgsql security definer set search_path = penstock, pg_temp as $$
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
    perform _refuse(422, 'invalid_action', 'an action has 1 to 200 characters', '{"field": "p_action"}');
  end if;
  if length(p_key) not between 1 and 255 then
    perform _refuse(422, 'invalid_key', 'p_key has 1 to 255 characters', '{"field": "p_key"}');
  end if;
  if p_ttl_seconds is null or not p_ttl_seconds between 1 and 86400 then
    perform _refuse(422, 'invalid_ttl', 'p_ttl_seconds is 1 to 86400', '{"field": "p_ttl_seconds"}');
  end if;
  v_units := _whole_units(p_amounts, false);
  insert into holds (tenant_id, key, action, amounts, at, expires_at)
  values (p_tenant_id, p_key, p_action, v_units, v_now, v_now + make_interval(secs => p_ttl_seconds))
  on conflict (tenant_id, key) where key is not null do nothing returning * into v_hold;
  if v_hold.id is null then
    select * into v_hold from holds where tenant_id = p_tenant_id and key = p_key;
    if v_hold.amounts <> v_units then
      perform _refuse(409, 'idempotency_key_reused', 'this key was used for other amounts', jsonb_build_object('hold_id', v_hold.id));
    end if;
    return v_hold.id;
  end if;
  if not exists (select from tenants where id = p_tenant_id) then
    perform _refuse(404, 'unknown_tenant', 'there is no such tenant');
  end if;
  -- Also those without a limit, so that all are locked in their order.
  for v_limit in
    select k as meter, l.amount, l.mode, (_period(k, v_now)).starts as period, l.resets_at
    from jsonb_object_keys(v_units) as k left join _limits(p_tenant_id, v_now) as l on l.meter = k order by k
  loop
    v_account := _locked_account(p_tenant_id, null, v_limit.meter, v_limit.period, true);
    v_need := (v_units ->> v_limit.meter)::numeric;
    if v_account.used + v_account.held + v_need > v_limit.amount and v_need > 0 then
      if v_limit.mode = 'enforce' then
        perform _refuse(429, 'quota_exceeded', format('%s of %s %s are used or set aside; %s more do not fit',
            v_account.used + v_account.held, v_limit.amount, v_limit.meter, v_need),
          jsonb_build_object('meter', v_limit.meter, 'used', v_account.used, 'held', v_account.held, 'limit', v_limit.amount,
            'resets_at', case when isfinite(v_limit.resets_at) then v_limit.resets_at end,
            'retry_after_seconds', case when isfinite(v_limit.resets_at) then ceil(extract(epoch from v_limit.resets_at - v_now)) end));
      end if;
      insert into usage_events (at, tenant_id, action, hold_id, units, details)
      values (v_now, p_tenant_id, p_action, v_hold.id, '{}', jsonb_build_object('would_have_blocked', v_limit.meter));
    end if;
  end loop;
  perform _book(array(select row(p_tenant_id, null, u.key, (_period(u.key, v_now)).starts, 0, u.value::numeric)::booking
    from jsonb_each_text(v_units) as u));
  return v_hold.id;
end
$$;
comment on function penstock.reserve_quota(uuid, jsonb, text, text, double precision) is
  'Sets amounts of meters aside, all or none, and returns the hold''s id; refuses with 429 quota_exceeded. A hold that is neither committed nor released expires. The same p_key gives the same hold.';

create or replace function penstock._count_job(p_job penstock.jobs)
returns void language plpgsql set search_path = penstock, pg_temp as $$
declare
  v_limit record;
  v_account accounts;
begin
  -- Only where it is limited: otherwise the jobs themselves are the count, and starting them waits for nobody.
  select l.* into v_limit from _limits(p_job.tenant_id, p_job.created_at) as l
  where l.meter = 'jobs' and exists (select from tenants t where t.id = p_job.tenant_id
    and (t.plan is not null or exists (select from tenant_limits x where x.tenant_id = t.id)));
  if not found then
    return;
  end if;
  v_account := _locked_account(p_job.tenant_id, null, 'jobs', v_limit.period, true);
  if v_account.used + v_account.held + 1 > v_limit.amount and v_limit.mode = 'enforce' then
    perform _refuse(429, 'quota_exceeded', format('%s of %s jobs are used', v_account.used + v_account.held, v_limit.amount),
      jsonb_build_object('meter', 'jobs', 'used', v_account.used, 'held', v_account.held, 'limit', v_limit.amount, 'resets_at', v_limit.resets_at));
  end if;
  perform _book(_note_usage(p_job.tenant_id, p_job.type, '{"jobs": 1}', null, null, jsonb_build_object('job_id', p_job.id)));
end
$$;
comment on function penstock._count_job(penstock.jobs) is 'Counts a new job where jobs are limited, and refuses one too many.';

create or replace function penstock._locked_hold(p_hold_id uuid, p_tenant_id uuid)
returns penstock.holds language plpgsql set search_path = penstock, pg_temp as $$
declare
  v_hold holds;
begin
  select * into v_hold from holds where id = p_hold_id and tenant_id = coalesce(p_tenant_id, tenant_id) for update;
  if not found then
    perform _refuse(404, 'unknown_hold', 'there is no such hold');
  end if;
  if v_hold.lease is not null then
    perform _refuse(409, 'hold_of_lease', 'this hold belongs to a lease and ends with it', jsonb_build_object('task_id', v_hold.task_id));
  end if;
  return v_hold;
end
$$;
comment on function penstock._locked_hold(uuid, uuid) is 'A caller''s hold, locked.';

create or replace function penstock._release_bookings(p_hold penstock.holds)
returns penstock.booking[] language sql stable set search_path = penstock, pg_temp as $$
  select array_agg(row(p_hold.tenant_id, s.job_id, u.key, case when s.job_id is null then (_period(u.key, p_hold.at)).starts else 'epoch' end,
    0, -greatest(0, u.value::numeric - coalesce((p_hold.spent ->> u.key)::numeric, 0)))::booking)
  from jsonb_each_text(p_hold.amounts) as u
  cross join lateral (select null::uuid as job_id union all select p_hold.job_id where p_hold.has_budget and u.key = 'cost') as s
$$;
comment on function penstock._release_bookings(penstock.holds) is 'What is booked back when a hold ends: what of it was not spent.';

create or replace function penstock.commit_hold(p_hold_id uuid, p_actual jsonb default null, p_tenant_id uuid default null)
returns void language plpgsql security definer set search_path = penstock, pg_temp as $$
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
    perform _refuse(409, 'hold_settled', format('the hold was %s before', v_hold.status), jsonb_build_object('status', v_hold.status));
  end if;
  -- Also after it expired: what was used is owed.
  update holds set status = 'committed', spent = v_units, settled_at = _now() where id = v_hold.id;
  perform _book(_note_usage(v_hold.tenant_id, v_hold.action, v_units, v_hold.id, null, null)
    || case when v_hold.status = 'held' then _release_bookings(v_hold) else '{}' end);
  perform _wake_waiting(array[v_hold.tenant_id]);
end
$$;
comment on function penstock.commit_hold(uuid, jsonb, uuid) is
  'Books the actual amounts (default: those set aside) and ends the hold. A repeated commit changes nothing; one after the expiry still books.';

create or replace function penstock.release_hold(p_hold_id uuid, p_tenant_id uuid default null)
returns boolean language plpgsql security definer set search_path = penstock, pg_temp as $$
declare
  v_hold holds := _locked_hold(p_hold_id, p_tenant_id);
begin
  if v_hold.status = 'committed' then
    perform _refuse(409, 'hold_settled', 'the hold was committed before', jsonb_build_object('status', v_hold.status));
  elsif v_hold.status <> 'held' then
    return false;
  end if;
  update holds set status = 'released', settled_at = _now() where id = v_hold.id;
  perform _book(_release_bookings(v_hold));
  perform _wake_waiting(array[v_hold.tenant_id]);
  return true;
end
$$;
comment on function penstock.release_hold(uuid, uuid) is 'Gives back what a hold has set aside; a second release changes nothing and returns false.';

create or replace function penstock._expire_holds()
returns integer language plpgsql set search_path = penstock, pg_temp as $$
declare
  v_holds holds[];
begin
  with due as (
    select id from holds where status = 'held' and expires_at < _now() order by expires_at limit 1000 for update skip locked
  ), gone as (
    update holds h set status = 'expired', settled_at = _now() from due where h.id = due.id returning h as hold
  )
  select array_agg(g.hold) into v_holds from gone g;
  if v_holds is null then
    return 0;
  end if;
  perform _book(array(select b from unnest(v_holds) as h cross join lateral unnest(_release_bookings(h)) as b));
  perform _wake_waiting(array(select distinct h.tenant_id from unnest(v_holds) as h));
  return cardinality(v_holds);
end
$$;
comment on function penstock._expire_holds() is 'Gives back what callers set aside and forgot.';

create or replace function penstock._wake_waiting(p_tenant_ids uuid[])
returns void language sql set search_path = penstock, pg_temp as $$
  select _wake_fitting(p_tenant_ids, 10)
$$;
comment on function penstock._wake_waiting(uuid[]) is 'Something was given back, or there is more to use: queues what waited for it, as far as it fits.';

create or replace function penstock._wake_fitting(p_tenant_ids uuid[], p_depth integer)
returns integer language plpgsql set search_path = penstock, pg_temp as $$
declare
  v_line record;
  v_left numeric;
  v_need numeric;
  v_units jsonb;
  v_provider text;
  v_task record;
  v_misfits integer;
  v_wake tid[];
  v_rows ready[];
  v_count integer := 0;
begin
  for v_line in
    select g.id as tenant_id, w.waits_for, w.job_id from unnest(p_tenant_ids) as g(id)
    cross join lateral (
      select m.name as waits_for, null::uuid as job_id from meters m
      where exists (select from parked p where p.tenant_id = g.id and p.waits_for = m.name)
      union all
      -- From job to job, past all that waits in each.
      select 'budget', d.job_id from (
        with recursive next as (
          (select p.job_id from parked p where p.tenant_id = g.id and p.waits_for = 'budget' order by p.job_id limit 1)
          union all
          select (select p.job_id from parked p where p.tenant_id = g.id and p.waits_for = 'budget' and p.job_id > n.job_id order by p.job_id limit 1)
          from next n where n.job_id is not null
        ) select n.job_id from next n where n.job_id is not null) as d
      -- One that is paused waits for a decision, and is woken by it: there may be many.
      join jobs j on j.id = d.job_id and j.status in ('queued', 'running')) as w
  loop
    if v_line.waits_for = 'budget' then
      select j.budget - coalesce(a.used + a.held, 0) into v_left from jobs j
      left join accounts a on a.tenant_id = j.tenant_id and a.job_id = j.id and a.meter = 'cost' where j.id = v_line.job_id;
    else
      v_left := null;
      select l.amount - coalesce(a.used + a.held, 0) into v_left from _limits(v_line.tenant_id, _now()) as l
      left join accounts a on a.tenant_id = v_line.tenant_id and a.job_id is null and a.meter = l.meter and a.period = l.period
      where l.meter = v_line.waits_for and l.mode = 'enforce';
    end if;
    v_wake := '{}';
    v_misfits := 0;
    v_need := null;
    -- The first ones, as far as there is room for them; a few that are too large are passed by, as they are by new work.
    -- The claim decides.
    for v_task in
      select p.ctid as tid, t.units, l.provider from parked p
      join tasks t on t.job_id = p.job_id and t.id = p.task_id join lanes l on l.id = p.lane_id
      where p.tenant_id = v_line.tenant_id and p.waits_for = v_line.waits_for and p.job_id = coalesce(v_line.job_id, p.job_id)
      order by p.job_id, p.task_id limit 500
    loop
      -- Most are alike, and accounts may be in our hand: what is known is not worked out again.
      if v_need is null or v_task.units is distinct from v_units or v_task.provider is distinct from v_provider then
        v_need := case when v_line.waits_for in ('budget', 'cost') then coalesce(_estimated_cost(v_task.provider, v_line.tenant_id, v_task.units), 0)
          else coalesce((_whole_units(v_task.units, v_task.provider is not null) ->> v_line.waits_for)::numeric, 0) end;
        v_units := v_task.units;
        v_provider := v_task.provider;
      end if;
      if v_left < v_need then
        v_misfits := v_misfits + 1;
        exit when v_misfits >= p_depth or v_left <= 0;
        continue;
      end if;
      v_left := v_left - v_need;
      v_wake := v_wake || v_task.tid;
    end loop;
    continue when v_wake = '{}';
    with due as (
      select ctid from parked where ctid = any (v_wake) and tenant_id = v_line.tenant_id and waits_for = v_line.waits_for for update skip locked
    ), gone as (
      delete from parked where ctid = any (array(select ctid from due)) returning *
    )
    select array_agg(row(task_id, 0, job_id, tenant_id, lane_id, priority, phase, failures, deaths, has_parents, has_children)::ready order by task_id)
    into v_rows from gone;
    perform _queue(v_rows, true);
    v_count := v_count + coalesce(cardinality(v_rows), 0);
  end loop;
  return v_count;
end
$$;
comment on function penstock._wake_fitting(uuid[], integer) is
  'Queues what waits for quotas and budgets of these tenants that have room now, passing by at most so many that do not fit. Returns how many it queued.';

create or replace function penstock._wake_missed()
returns integer language plpgsql set search_path = penstock, pg_temp set enable_seqscan = off set jit = off as $$
declare
  v_start uuid;
  v_tenants uuid[];
begin
  if not exists (select from parked p where p.waits_for is not null) then
    return 0;
  end if;
  -- What was set aside while a limit was being raised, or was in somebody's hand when it should have been woken, was
  -- missed by whoever made room. A few tenants each time: the first ones, and some from anywhere on.
  select p.tenant_id into v_start
  from parked p tablesample system (least(100, 300.0 * 8192 / greatest(1, pg_relation_size('penstock.parked')))) where p.waits_for is not null
  order by random() limit 1;
  with recursive found as (
    (select p.tenant_id from parked p where p.waits_for is not null and p.tenant_id >= coalesce(v_start, '00000000-0000-0000-0000-000000000000') order by p.tenant_id limit 1)
    union all
    select (select p.tenant_id from parked p where p.waits_for is not null and p.tenant_id > f.tenant_id order by p.tenant_id limit 1)
    from found f where f.tenant_id is not null
  ), again as (
    (select p.tenant_id from parked p where p.waits_for is not null order by p.tenant_id limit 1)
    union all
    select (select p.tenant_id from parked p where p.waits_for is not null and p.tenant_id > f.tenant_id order by p.tenant_id limit 1)
    from again f where f.tenant_id is not null
  )
  select array(select distinct x.tenant_id from (
    (select tenant_id from found limit 8) union all (select tenant_id from again limit 2)) as x where x.tenant_id is not null) into v_tenants;
  -- A price or a limit may have come as well, or a price may not be needed any more.
  update parked set until = _now() where ctid = any (array(
    select p.ctid from parked p join lanes l on l.id = p.lane_id
    join endpoints e on e.id = l.endpoint_id join endpoint_states s on s.endpoint_id = e.id
    join tasks t on t.job_id = p.job_id and t.id = p.task_id
    cross join lateral _call_size(t.units, e.default_tokens) as z
    where p.tenant_id = any (v_tenants) and p.waits_for in ('price', 'limit') and p.until = 'infinity' and (
      p.waits_for = 'price' and (_has_price(l.provider, p.tenant_id, _now())
        or not exists (select from jobs j where j.id = p.job_id and j.budget is not null)
          and not exists (select from _limits(p.tenant_id, _now()) as c where c.meter = 'cost'))
      or p.waits_for = 'limit' and z.requests <= coalesce(least(e.requests_per_minute, e.requests_per_hour, s.requests_limit), z.requests)
        and z.tokens <= coalesce(least(e.tokens_per_minute, e.tokens_per_hour, s.tokens_limit), z.tokens))
    limit 500 for no key update of p skip locked));
  return _wake_fitting(v_tenants, 100);
end
$$;
comment on function penstock._wake_missed() is 'Looks for tasks that were set aside although there is room for them by now, and queues them.';

create or replace function penstock.check_accounts()
returns table (tenant_id uuid, job_id uuid, meter text, period date, what text, kept numeric, true_amount numeric)
language sql stable security definer set search_path = penstock, pg_temp as $$
  with held as (
    select h.tenant_id, s.job_id, u.key as meter, case when s.job_id is null then (_period(u.key, h.at)).starts else 'epoch' end as period,
      sum(greatest(0, u.value::numeric - coalesce((h.spent ->> u.key)::numeric, 0))) as amount
    from holds h cross join lateral jsonb_each_text(h.amounts) as u
    cross join lateral (select null::uuid as job_id union all select h.job_id where h.has_budget and u.key = 'cost') as s
    where h.status = 'held' group by 1, 2, 3, 4
  ), lines as (
    select s.tenant_id, null::uuid as job_id, s.meter, (_period(s.meter, s.day::timestamp at time zone 'utc')).starts as period, sum(s.amount) as amount
    from usage_sums s group by 1, 2, 3, 4
    union all
    select c.tenant_id, null::uuid, 'cost', (_period('cost', c.day::timestamp at time zone 'utc')).starts, sum(c.amount) from cost_sums c
    where c.tenant_id is not null group by 1, 2, 3, 4
    union all
    -- The ledger outlives the jobs.
    select c.tenant_id, c.job_id, 'cost', date 'epoch', sum(c.base_amount) from cost_entries c
    where c.job_id in (select j.id from jobs j) group by 1, 2, 3, 4
  ), used as (
    -- Costs are in the one ledger, and a reset of them in the other.
    select l.tenant_id, l.job_id, l.meter, l.period, sum(l.amount) as amount from lines l group by 1, 2, 3, 4
  )
  select coalesce(a.tenant_id, t.tenant_id), coalesce(a.job_id, t.job_id), coalesce(a.meter, t.meter), coalesce(a.period, t.period),
    t.what, coalesce(case t.what when 'held' then a.held else a.used end, 0), t.amount
  from (select 'held' as what, * from held union all select 'used', * from used) as t
  left join accounts a on a.tenant_id = t.tenant_id and a.job_id is not distinct from t.job_id and a.meter = t.meter and a.period = t.period
  where coalesce(case t.what when 'held' then a.held else a.used end, 0) <> t.amount
  union all
  select a.tenant_id, a.job_id, a.meter, a.period, 'held', a.held, 0 from accounts a
  where a.held <> 0 and not exists (select from held h where h.tenant_id = a.tenant_id and h.job_id is not distinct from a.job_id and h.meter = a.meter and h.period = a.period)
  union all
  select a.tenant_id, a.job_id, a.meter, a.period, 'used', a.used, 0 from accounts a
  where a.used <> 0 and not exists (select from used u where u.tenant_id = a.tenant_id and u.job_id is not distinct from a.job_id and u.meter = a.meter and u.period = a.period)
$$;
comment on function penstock.check_accounts() is 'Every account that is not the sum of its usage, costs and holds. No row: all is well.';
