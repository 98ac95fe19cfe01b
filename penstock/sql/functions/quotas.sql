-- Quotas: how much a tenant may use in a period. Limits come
-- from its plan, its own limits and its allowances.

insert into penstock.meters (name, period, comment) values
  ('requests', 'month', 'provider calls'),
  ('tokens', 'month', 'input and output tokens'),
  ('input_tokens', 'month', 'tokens sent'),
  ('output_tokens', 'month', 'tokens received'),
  ('cached_tokens', 'month', 'sent tokens that the provider read from its cache'),
  ('files', 'month', 'files received'),
  ('pages', 'month', 'pages processed'),
  ('bytes', 'total', 'bytes stored'),
  ('minutes', 'month', 'minutes of processing'),
  ('seconds', 'month', 'seconds of media'),
  ('characters', 'month', 'characters of text'),
  ('images', 'month', 'images created'),
  ('thumbnails', 'total', 'thumbnails created'),
  ('jobs', 'month', 'jobs started'),
  ('rows', 'month', 'tasks and bulk rows added'),
  ('input_bytes', 'month', 'bytes of params, inputs and rows stored'),
  ('cost', 'month', 'money, in the base currency')
on conflict (name) do nothing;

insert into penstock.plans (name, title, comment, limits, price, weight, position)
select * from (values
  ('free', 'Free', 'To get started',
    '{"files": 10, "pages": 100, "tokens": 50000, "bytes": 104857600, "jobs": 10000, "rows": 100000,
      "input_bytes": 104857600}'::jsonb, 0, 1, 1),
  ('basic', 'Basic', 'For regular use',
    '{"files": 100, "pages": 1000, "tokens": 500000, "bytes": 1048576000}', 9.99, 2, 2),
  ('premium', 'Premium', 'For heavy use',
    '{"files": 500, "pages": 5000, "tokens": 2500000, "bytes": 5242880000}', 29.99, 4, 3),
  ('enterprise', 'Enterprise', 'Unlimited', '{}', 99.99, 8, 4)) as seed
where not exists (select from penstock.plans where name <> 'unlimited');

create or replace function penstock._period(p_meter text, p_at timestamptz, out starts date,
  out resets_at timestamptz)
language sql stable set search_path = penstock, pg_temp as $$
  select case m.period when 'day' then (p_at at time zone 'utc')::date
      when 'month' then date_trunc('month', p_at at time zone 'utc')::date else date 'epoch' end,
    case m.period when 'day' then ((p_at at time zone 'utc')::date + 1)::timestamp at time zone 'utc'
      when 'month'
        then (date_trunc('month', p_at at time zone 'utc') + interval '1 month') at time zone 'utc'
      else 'infinity' end
  from meters m where m.name = p_meter
$$;
comment on function penstock._period(text, timestamptz) is
  'The period of a meter that contains this time, in UTC.';

create or replace function penstock._packs_left(
  p_tenant_id uuid, p_meter text, p_limit numeric, p_period date, p_at timestamptz)
returns numeric language sql stable set search_path = penstock, pg_temp as $$
  with packs as (
    -- A pack that is used up is settled no more, so its date says nothing about the others.
    select sum(a.amount - a.used) as amount,
      min(a.settled_until) filter (where a.used < a.amount) as since from allowances a
    where a.tenant_id = p_tenant_id and a.meter = p_meter and a.source = 'purchase'
      and (a.expires_on is null or a.expires_on >= (p_at at time zone 'utc')::date)
  )
  -- Ended periods that _settle_packs has not booked yet count here.
  select greatest(0, coalesce(p.amount, 0) - coalesce((
    select sum(greatest(0, c.used - p_limit)) from accounts c
    where c.tenant_id = p_tenant_id and c.job_id is null and c.meter = p_meter
      and c.period >= p.since and c.period < p_period), 0))
  from packs p
$$;
comment on function penstock._packs_left(uuid, text, numeric, date, timestamptz) is
  'What is left of the packs that a tenant bought, at the beginning of a period. A pack is used up once: '
  'what a period used beyond its limit is gone.';

create or replace function penstock._settle_packs(p_now timestamptz)
returns void language plpgsql set search_path = penstock, pg_temp as $$
declare
  v_group record;
  v_pack record;
  v_over numeric;
  v_next date;
begin
  -- The oldest period first: _limits counts those that are not settled yet with the limits of today.
  for v_group in
    select a.tenant_id, a.meter, min(a.settled_until) as period
    from allowances a cross join lateral _period(a.meter, p_now) as p
    where a.source = 'purchase' and a.used < a.amount and a.settled_until < p.starts
    group by a.tenant_id, a.meter limit 100
  loop
    v_next := ((_period(v_group.meter, v_group.period::timestamp at time zone 'utc')).resets_at
      at time zone 'utc')::date;
    -- A second transaction waits for these rows, and then finds none of this period.
    perform 1 from allowances a where a.tenant_id = v_group.tenant_id and a.meter = v_group.meter
      and a.source = 'purchase' and a.settled_until = v_group.period order by a.id for no key update;
    continue when not found;
    v_over := _over_limit(v_group.tenant_id, v_group.meter, v_group.period, v_next);
    for v_pack in
      select a.id, a.amount - a.used as amount from allowances a
      where a.tenant_id = v_group.tenant_id and a.meter = v_group.meter and a.source = 'purchase'
        and a.settled_until = v_group.period order by a.created_at, a.id
    loop
      update allowances set used = used + least(v_over, v_pack.amount), settled_until = v_next
      where id = v_pack.id;
      v_over := v_over - least(v_over, v_pack.amount);
    end loop;
  end loop;
end
$$;
comment on function penstock._settle_packs(timestamptz) is
  'Takes what an ended period used beyond its limit from the packs that the tenant bought, the oldest first.';

create or replace function penstock._over_limit(
  p_tenant_id uuid, p_meter text, p_period date, p_next date)
returns numeric language sql stable set search_path = penstock, pg_temp as $$
  with ended as (select (p_next::timestamp at time zone 'utc') - interval '1 second' as at)
  select coalesce(greatest(0, c.used - (l.amount
    - _packs_left(p_tenant_id, p_meter, l.amount, p_period, e.at))), 0)
  from ended e
  left join accounts c on c.tenant_id = p_tenant_id and c.job_id is null and c.meter = p_meter
    and c.period = p_period
  left join lateral _limits(p_tenant_id, e.at) as l on l.meter = p_meter
$$;
comment on function penstock._over_limit(uuid, text, date, date) is
  'What the oldest period that is not settled used beyond the limit without packs. 0 without a limit.';

create or replace function penstock._limits(p_tenant_id uuid, p_at timestamptz)
returns table (meter text, amount numeric, mode text, period date, resets_at timestamptz)
language sql stable set search_path = penstock, pg_temp as $$
  select m.name, x.base + g.granted + case when g.has_packs
      then _packs_left(t.id, m.name, x.base + g.granted, p.starts, p_at) else 0 end,
    m.mode, p.starts, p.resets_at
  from tenants t cross join meters m
  left join plans l on l.name = _plan(t, p_at)
  left join tenant_limits o on o.tenant_id = t.id and o.meter = m.name
  cross join lateral (select case when o.meter is not null then o.amount
    else (l.limits ->> m.name)::numeric end as base) as x
  cross join lateral _period(m.name, p_at) as p
  cross join lateral (
    select coalesce(sum(a.amount) filter (where a.source = 'override'), 0) as granted,
      coalesce(bool_or(a.source = 'purchase'), false) as has_packs
    from allowances a where a.tenant_id = t.id and a.meter = m.name
      and (a.expires_on is null or a.expires_on >= (p_at at time zone 'utc')::date)) as g
  where t.id = p_tenant_id and x.base is not null
$$;
comment on function penstock._limits(uuid, timestamptz) is
  'The effective limits of a tenant: its own limit or that of its plan, plus its allowances. Every check '
  'uses this function. A meter without a row is not limited.';

create or replace function penstock.resolve_limits(p_tenant_id uuid, p_at timestamptz default null)
returns table (meter text, amount numeric, mode text, period date, resets_at timestamptz)
language plpgsql stable security definer set search_path = penstock, pg_temp as $$
begin
  if not (_is_service() or p_tenant_id in (select my_tenants())) then
    perform _refuse(403, 'forbidden', 'you do not have permission to do this in this tenant');
  end if;
  if not exists (select from tenants where id = p_tenant_id) then
    -- An unknown tenant must not look like one without limits.
    perform _refuse(404, 'unknown_tenant', 'there is no such tenant');
  end if;
  perform _check_time(p_at, 'p_at');
  return query select l.meter, l.amount, l.mode, l.period, nullif(l.resets_at, 'infinity')
    from _limits(p_tenant_id, coalesce(p_at, _now())) as l;
end
$$;
comment on function penstock.resolve_limits(uuid, timestamptz) is
  'The limits of a tenant now, or at p_at. A meter without a row is not limited.';

create or replace function penstock.set_meter(p_name text, p_values jsonb default '{}')
returns void language plpgsql security definer set search_path = penstock, pg_temp as $$
begin
  perform _check_fields(p_values, array['period', 'mode', 'comment'], 'meter');
  if exists (select from meters where name = p_name and period <> p_values ->> 'period'
    and p_values ->> 'period' in ('day', 'month', 'total'))
    and exists (select from accounts where meter = p_name) then
    -- Holds and usage are booked by period, so it cannot change once there are bookings.
    perform _refuse(409, 'meter_in_use',
      format('the period of meter %L cannot change after it was used', p_name),
      '{"field": "period"}', 'Create another meter.');
  end if;
  insert into meters as m (name, period, mode, comment)
  values (p_name, coalesce(p_values ->> 'period', 'month'), coalesce(p_values ->> 'mode', 'enforce'),
    coalesce(p_values ->> 'comment', ''))
  on conflict (name) do update set period = coalesce(p_values ->> 'period', m.period),
    mode = coalesce(p_values ->> 'mode', m.mode),
    comment = coalesce(p_values ->> 'comment', m.comment);
  perform _audit(null, 'meter.changed', null, 'meter:' || p_name, p_values);
  perform _wake_waiting(
    array(select id from tenants t
    where exists (select from parked p where p.tenant_id = t.id and p.waits_for = p_name)));
exception when integrity_constraint_violation then
  perform _refuse(422, 'invalid_meter', 'invalid meter: ' || left(sqlerrm, 200));
end
$$;
comment on function penstock.set_meter(text, jsonb) is
  'Creates or changes a meter: period (day, month, total), mode (observe, enforce), comment.';

create or replace function penstock.set_plan(p_name text, p_values jsonb default '{}')
returns void language plpgsql security definer set search_path = penstock, pg_temp as $$
begin
  perform _check_fields(p_values,
    array['title', 'comment', 'limits', 'features', 'price', 'currency', 'weight', 'is_active', 'position'],
    'plan');
  if p_name = 'unlimited' then
    perform _refuse(422, 'invalid_plan', 'the plan unlimited cannot be changed', '{"field": "name"}',
      'Give a plan with limits another name.');
  end if;
  if jsonb_typeof(coalesce(p_values -> 'limits', '{}')) <> 'object' then
    perform _refuse(422, 'invalid_plan', 'limits must be a JSON object of meters and amounts',
      '{"field": "limits"}');
  end if;
  perform _check_units(jsonb_strip_nulls(coalesce(p_values -> 'limits', '{}')) - 'cost', 'limits');
  if jsonb_typeof(p_values #> '{limits,cost}') not in ('number', 'null')
    or (p_values #> '{limits,cost}')::numeric < 0
     or p_values ->> 'price' in ('NaN', 'Infinity') then
    perform _refuse(422, 'invalid_plan', 'price and limits.cost must be amounts of 0 or more',
      '{"field": "limits.cost"}');
  end if;
  insert into plans (name, title) values (p_name, coalesce(p_values ->> 'title', p_name)) on conflict (name)
    do nothing;
  update plans set title = coalesce(p_values ->> 'title', title),
    comment = coalesce(p_values ->> 'comment', comment),
    limits = coalesce(p_values -> 'limits', limits),
      price = coalesce((p_values ->> 'price')::numeric, price),
    currency = coalesce(p_values ->> 'currency', currency),
      weight = coalesce((p_values ->> 'weight')::real, weight),
    features = case when p_values ? 'features'
      then array(select jsonb_array_elements_text(p_values -> 'features')) else features end,
    is_active = coalesce((p_values ->> 'is_active')::boolean, is_active),
      position = coalesce((p_values ->> 'position')::integer, position)
  where name = p_name;
  perform _audit(null, 'plan.changed', null, 'plan:' || p_name, p_values);
  perform _wake_waiting(array(select id from tenants where p_name in (plan, plan_after)));
  if p_values ? 'features' then
    perform _retry_gated(null);
  end if;
exception when integrity_constraint_violation or data_exception then
  perform _refuse(422, 'invalid_plan', 'invalid plan: ' || left(sqlerrm, 200));
end
$$;
comment on function penstock.set_plan(text, jsonb) is
  'Creates or changes a plan: title, comment, limits {meter: amount or null}, features, price, currency, '
  'weight, is_active, position. New limits apply to its tenants at once.';

create or replace function penstock.set_tenant_plan(p_tenant_id uuid, p_plan text)
returns void language plpgsql security definer set search_path = penstock, pg_temp as $$
begin
  if p_plan is distinct from 'unlimited'
     and not exists (select from plans where name = p_plan and is_active) then
    perform _refuse(404, 'unknown_plan', format('there is no active plan %L', left(p_plan, 100)), '{}',
      'The plan unlimited has no limits.');
  end if;
  perform _require_tenant(p_tenant_id);
  update tenants set plan = p_plan, weight = case when p_plan = 'unlimited' then weight
      else (select weight from plans where name = p_plan) end,
    plan_since = _now(), plan_until = null, plan_after = null
  where id = p_tenant_id;
  perform _audit(p_tenant_id, 'tenant.plan_set', null, 'tenant:' || p_tenant_id,
    jsonb_build_object('plan', p_plan));
  perform _wake_waiting(array[p_tenant_id]);
  perform _retry_gated(p_tenant_id);
end
$$;
comment on function penstock.set_tenant_plan(uuid, text) is
  'Puts a tenant on a plan and gives it the plan''s weight. The plan unlimited has no limits and keeps the '
  'weight. Usage of the period stays.';

create or replace function penstock.set_limit(p_tenant_id uuid, p_meter text, p_amount numeric,
  p_is_own boolean default true)
returns void language plpgsql security definer set search_path = penstock, pg_temp as $$
begin
  perform _require_tenant(p_tenant_id);
  if not exists (select from meters where name = p_meter) then
    perform _refuse(422, 'unknown_meter', format('unknown meter %L', left(p_meter, 100)),
      '{"field": "p_meter"}');
  end if;
  if p_amount < 0 or p_amount = 'NaN' or p_amount > 1e15 then
    perform _refuse(422, 'invalid_limit',
      format('p_amount must be between 0 and 10^15, or null for no limit (got %s)', p_amount),
        '{"field": "p_amount"}');
  end if;
  if p_is_own then
    insert into tenant_limits (tenant_id, meter, amount) values (p_tenant_id, p_meter, p_amount)
    on conflict (tenant_id, meter) do update set amount = excluded.amount;
  else
    delete from tenant_limits where tenant_id = p_tenant_id and meter = p_meter;
  end if;
  perform _audit(p_tenant_id, 'limit.set', null, 'meter:' || p_meter,
    jsonb_build_object('amount', p_amount, 'is_own', p_is_own));
  perform _wake_waiting(array[p_tenant_id]);
end
$$;
comment on function penstock.set_limit(uuid, text, numeric, boolean) is
  'Sets a tenant''s own limit of a meter, in place of the plan''s (null: unlimited); p_is_own = false '
  'removes it. A limit below the current usage stops new work.';

create or replace function penstock.add_allowance(
  p_tenant_id uuid, p_meter text, p_amount numeric, p_source text default 'override',
  p_expires_on date default null, p_reason text default null, p_key text default null)
returns uuid language plpgsql security definer set search_path = penstock, pg_temp as $$
declare
  v_id uuid;
begin
  perform _check_clean(p_key, 'p_key', 'invalid_allowance');
  perform _require_tenant(p_tenant_id);
  if not exists (select from meters where name = p_meter) then
    perform _refuse(422, 'unknown_meter', format('unknown meter %L', left(p_meter, 100)),
      '{"field": "p_meter"}');
  end if;
  if p_amount is null or p_amount = 'NaN' or not (p_amount > 0 and p_amount <= 1e15) then
    perform _refuse(422, 'invalid_limit',
      format('p_amount must be greater than 0 and at most 10^15 (got %s)',
      coalesce(p_amount::text, 'null')), '{"field": "p_amount"}');
  end if;
  perform _check_time(p_expires_on::timestamp at time zone 'utc', 'p_expires_on');
  insert into allowances (tenant_id, meter, amount, expires_on, source, reason, key, created_at,
    settled_until)
  values (p_tenant_id, p_meter, p_amount, p_expires_on, p_source, left(p_reason, 1000), p_key, _now(),
    (_period(p_meter, _now())).starts)
  on conflict (tenant_id, key) where key is not null do nothing returning id into v_id;
  if v_id is null then
    select id into v_id from allowances where tenant_id = p_tenant_id and key = p_key and meter = p_meter
      and amount = p_amount;
    if v_id is null then
      perform _refuse(409, 'idempotency_key_reused', 'this key was used for a different allowance');
    end if;
    return v_id;
  end if;
  perform _audit(p_tenant_id, 'allowance.added', null, 'meter:' || p_meter,
    jsonb_build_object('amount', p_amount, 'source', p_source, 'expires_on', p_expires_on,
      'reason', p_reason));
  perform _wake_waiting(array[p_tenant_id]);
  return v_id;
exception when check_violation then
  perform _refuse(422, 'invalid_allowance',
    format('p_source must be purchase, or override with p_expires_on (got %L), '
    'and p_key must have 1 to 255 characters', left(p_source, 100)));
end
$$;
comment on function penstock.add_allowance(uuid, text, numeric, text, date, text, text) is
  'Raises a tenant''s limit of a meter: an override until p_expires_on (inclusive), or a purchase. The same '
  'p_key counts once.';

create or replace function penstock.reset_quota(p_tenant_id uuid, p_meter text, p_reason text default null)
returns numeric language plpgsql security definer set search_path = penstock, pg_temp as $$
declare
  v_period date := (_period(p_meter, _now())).starts;
  v_account accounts;
begin
  if v_period is null then
    perform _refuse(422, 'unknown_meter', format('unknown meter %L', left(p_meter, 100)),
      '{"field": "p_meter"}');
  end if;
  perform _require_tenant(p_tenant_id);
  v_account := _lock_account(p_tenant_id, null, p_meter, v_period, true);
  if v_account.used <> 0 then
    -- A negative usage event, so that the earlier events stay on record.
    perform _book(_note_usage(p_tenant_id, 'reset', jsonb_build_object(p_meter, -v_account.used), null, null,
      jsonb_build_object('reason', left(p_reason, 1000))));
  end if;
  perform _audit(p_tenant_id, 'quota.reset', null, 'meter:' || p_meter,
    jsonb_build_object('used', v_account.used, 'reason', p_reason));
  perform _wake_waiting(array[p_tenant_id]);
  return v_account.used;
end
$$;
comment on function penstock.reset_quota(uuid, text, text) is
  'Resets a tenant''s usage of a meter to 0 and returns the usage so far. Reservations stay.';
