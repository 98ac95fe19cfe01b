-- Accounts: what is used and held of each meter, by tenant and by job with a budget. Accounts come last in
-- the lock order (see claim.sql): a transaction that has locked one waits for no other lock.

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
