-- Spend: fixed costs, snapshots of what providers cost, revenue of subscriptions, and the margin.

create or replace function penstock.set_fixed_cost(p_name text, p_values jsonb)
returns bigint language plpgsql security definer set search_path = penstock, pg_temp as $$
declare
  v_old fixed_costs;
  v_new fixed_costs;
begin
  perform _check_name(p_name, 'p_name', 'invalid_fixed_cost');
  perform _check_fields(p_values, array['amount', 'currency', 'period', 'from_day', 'until_day', 'comment'],
    'fixed cost');
  perform pg_advisory_xact_lock(hashtextextended('penstock.fixed_cost:' || p_name, 0));
  select * into v_old from fixed_costs where name = p_name and until_day is null;
  v_new := jsonb_populate_record(v_old, p_values);
  v_new.from_day := coalesce((p_values ->> 'from_day')::date, (_now() at time zone 'utc')::date);
  if v_new.from_day < v_old.from_day then
    perform _refuse(409, 'fixed_cost_later', format('%s starts on %s: a change cannot start before that',
      p_name, v_old.from_day), '{"field": "from_day"}');
  elsif v_new.currency is not null and _base_rate(v_new.currency, _now()) is null then
    perform _refuse(422, 'unknown_currency', format('no exchange rate is known for %L',
      left(v_new.currency, 10)), '{"field": "currency"}', 'Set one: penstock prices rate.');
  end if;
  update fixed_costs set until_day = v_new.from_day - 1 where id = v_old.id;
  insert into fixed_costs (name, amount, currency, period, from_day, until_day, comment, created_by,
    created_at)
  values (p_name, v_new.amount, coalesce(v_new.currency, _setting('base_currency') #>> '{}'),
    coalesce(v_new.period, 'month'), v_new.from_day, v_new.until_day, coalesce(v_new.comment, ''),
    _actor(), _now())
  returning id into v_new.id;
  perform _audit(null, 'fixed_cost.changed', null, 'fixed_cost:' || p_name, p_values);
  return v_new.id;
exception when integrity_constraint_violation or data_exception then
  perform _refuse(422, 'invalid_fixed_cost',
    'a fixed cost needs an amount from 0 to 10^12; its period is month, year or once: '
    || left(sqlerrm, 200));
end
$$;
comment on function penstock.set_fixed_cost(text, jsonb) is
  'Adds or changes a fixed cost from a day on: amount, currency, period (month, year, once), from_day '
  '(today), until_day, comment. A change ends the old line the day before and keeps it.';

create or replace function penstock.end_fixed_cost(p_name text, p_day date default null)
returns void language plpgsql security definer set search_path = penstock, pg_temp as $$
begin
  update fixed_costs
  set until_day = greatest(from_day - 1, coalesce(p_day, (_now() at time zone 'utc')::date))
  where name = p_name and until_day is null;
  if not found then
    perform _refuse(404, 'unknown_fixed_cost', format('no fixed cost %L is open', left(p_name, 100)));
  end if;
  perform _audit(null, 'fixed_cost.ended', null, 'fixed_cost:' || p_name,
    jsonb_build_object('until_day', p_day));
end
$$;
comment on function penstock.end_fixed_cost(text, date) is
  'Ends a fixed cost with this day (default: today).';

create or replace function penstock._month_share(p_cost penstock.fixed_costs, p_month date)
returns numeric language sql immutable set search_path = penstock, pg_temp as $$
  select case p_cost.period
    when 'once' then case when p_cost.from_day >= p_month and p_cost.from_day < m.next
      and (p_cost.until_day is null or p_cost.until_day >= p_cost.from_day) then p_cost.amount else 0 end
    else p_cost.amount / case p_cost.period when 'year' then 12 else 1 end
      * greatest(0, least(coalesce(p_cost.until_day, m.next - 1), m.next - 1)
        - greatest(p_cost.from_day, p_month) + 1) / (m.next - p_month) end
  from (select (p_month + interval '1 month')::date as next) as m
$$;
comment on function penstock._month_share(penstock.fixed_costs, date) is
  'How much of a fixed cost falls into a month: by days, in its own currency.';

create or replace function penstock.take_cost_snapshot(p_month date default null)
returns bigint language plpgsql security definer set search_path = penstock, pg_temp as $$
declare
  v_month date := date_trunc('month', coalesce(p_month, (_now() at time zone 'utc')::date))::date;
  v_id bigint;
begin
  insert into cost_snapshots (taken_at, month, total, by_provider, by_type)
  select _now(), v_month, coalesce(sum(s.amount), 0),
    (select coalesce(jsonb_object_agg(x.provider, x.amount), '{}') from (
      select coalesce(c.provider, '') as provider, sum(c.amount) as amount from cost_totals c
      where c.day >= v_month and c.day < v_month + interval '1 month' group by 1) as x),
    (select coalesce(jsonb_object_agg(x.cost_type, x.amount), '{}') from (
      select c.cost_type, sum(c.amount) as amount from cost_totals c
      where c.day >= v_month and c.day < v_month + interval '1 month' group by 1) as x)
  from cost_totals s where s.day >= v_month and s.day < v_month + interval '1 month'
  returning id into v_id;
  return v_id;
end
$$;
comment on function penstock.take_cost_snapshot(date) is
  'Stores what all tenants have cost in a month so far (default: the current one), and returns its id.';

create or replace function penstock.take_due_snapshot()
returns boolean language plpgsql security definer set search_path = penstock, pg_temp as $$
declare
  v_month date := date_trunc('month', _now() at time zone 'utc')::date;
begin
  -- Several workers call this: one takes the snapshot.
  if not pg_try_advisory_xact_lock(hashtextextended('penstock.cost_snapshot', 0)) or exists (
    select from cost_snapshots where month = v_month and taken_at > _now() - interval '1 hour') then
    return false;
  end if;
  -- The last month once more after its end, so that its last hour is in it.
  perform take_cost_snapshot((v_month - interval '1 month')::date) where not exists (
    select from cost_snapshots where month = (v_month - interval '1 month')::date and taken_at >= v_month);
  perform take_cost_snapshot(v_month);
  return true;
end
$$;
comment on function penstock.take_due_snapshot() is
  'Takes the snapshot of the current month if the newest one is older than an hour. Workers and servers call '
  'it every minute.';

create or replace function penstock._revenue(p_month date)
returns table (tenant_id uuid, plan text, amount numeric)
language sql stable set search_path = penstock, pg_temp as $$
  -- One price per tenant and plan, however often the tenant subscribed to it in the month.
  select distinct on (s.tenant_id, p.name) s.tenant_id, p.name,
    p.price * _base_rate(p.currency, least(_now(), p_month + interval '1 month'))
  from subscriptions s join plans p on p.name = s.plan
  where s.created_at < (p_month + interval '1 month') at time zone 'utc'
    and case when s.status in ('active', 'past_due') then true
      when s.status = 'canceled' then coalesce(s.ended_at, s.as_of) >= p_month::timestamp at time zone 'utc'
      else false end
  order by s.tenant_id, p.name
$$;
comment on function penstock._revenue(date) is
  'What subscriptions of tenants bring in a month, in the base currency: the price of their plan. Trials and '
  'subscriptions that were never paid bring nothing; packs are not counted.';

create or replace function penstock.spend(p_month date default null)
returns jsonb language plpgsql stable security definer set search_path = penstock, pg_temp as $$
declare
  v_month date := date_trunc('month', coalesce(p_month, (_now() at time zone 'utc')::date))::date;
  v_snapshot cost_snapshots;
  v_fixed jsonb;
  v_fixed_total numeric;
  v_plans jsonb;
  v_revenue numeric;
begin
  select * into v_snapshot from cost_snapshots where month = v_month order by id desc limit 1;
  select coalesce(jsonb_agg(jsonb_build_object('name', x.name, 'amount', x.amount, 'currency', x.currency,
      'period', x.period, 'share', round(x.share, 2)) order by x.share desc, x.name), '[]'),
    coalesce(sum(x.share), 0) into v_fixed, v_fixed_total
  from (
    select f.name, f.amount, f.currency, f.period,
      _month_share(f, v_month) * _base_rate(f.currency, _now()) as share
    from fixed_costs f where f.from_day < v_month + interval '1 month'
      and (f.until_day is null or f.until_day >= v_month)) as x where x.share > 0;
  select coalesce(jsonb_object_agg(x.plan,
      jsonb_build_object('tenants', x.tenants, 'revenue', x.amount)), '{}'),
    coalesce(sum(x.amount), 0) into v_plans, v_revenue
  from (select r.plan, count(*) as tenants, sum(r.amount) as amount from _revenue(v_month) as r
    group by 1) as x;
  return jsonb_build_object('month', v_month, 'currency', _setting('base_currency'), 'fixed', v_fixed,
    'fixed_total', round(v_fixed_total, 2), 'variable_total', coalesce(v_snapshot.total, 0),
    'by_provider', coalesce(v_snapshot.by_provider, '{}'), 'by_type', coalesce(v_snapshot.by_type, '{}'),
    'taken_at', v_snapshot.taken_at, 'by_plan', v_plans, 'revenue', v_revenue,
    'margin', round(v_revenue - v_fixed_total - coalesce(v_snapshot.total, 0), 6));
end
$$;
comment on function penstock.spend(date) is
  'Costs and revenue of a month in the base currency: {month, currency, fixed, fixed_total, variable_total, '
  'by_provider, by_type, taken_at, by_plan, revenue, margin}. Variable costs are those of the newest '
  'snapshot.';

create or replace function penstock.tenant_margins(p_month date default null, p_limit integer default 100)
returns table (tenant_id uuid, name text, plan text, revenue numeric, cost numeric, margin numeric)
language plpgsql stable security definer set search_path = penstock, pg_temp as $$
declare
  v_month date := date_trunc('month', coalesce(p_month, (_now() at time zone 'utc')::date))::date;
begin
  perform _require_admin();
  return query
  select t.id, t.name, x.plans, x.revenue, x.cost, x.revenue - x.cost from (
    select coalesce(r.tenant_id, c.tenant_id) as id, r.plans, coalesce(r.amount, 0) as revenue,
      coalesce(c.amount, 0) as cost
    from (select v.tenant_id, string_agg(v.plan, ', ' order by v.plan) as plans, sum(v.amount) as amount
      from _revenue(v_month) as v group by 1) as r
    full join (select s.tenant_id, sum(s.amount) as amount from cost_sums s where s.tenant_id is not null
      and s.day >= v_month and s.day < v_month + interval '1 month' group by 1) as c using (tenant_id)) as x
  join tenants t on t.id = x.id order by x.revenue - x.cost, t.id limit least(greatest(p_limit, 1), 1000);
end
$$;
comment on function penstock.tenant_margins(date, integer) is
  'Revenue, cost and margin of tenants in a month, in the base currency, the lowest margin first; for '
  'admins.';
