-- Billing: what Stripe says about customers, subscriptions and purchases. Stripe's events arrive more than
-- once, late and in any order, so every state carries the second it belongs to (as_of), and an older state
-- changes nothing. When a plan ends, tenants.plan_until says so: see _plan (entitlements.sql).

create or replace function penstock.set_plan_price(p_price_id text, p_values jsonb)
returns void language plpgsql security definer set search_path = penstock, pg_temp as $$
declare
  v_new plan_prices;
begin
  if p_values is null then
    delete from plan_prices where price_id = p_price_id;
  else
    perform _check_fields(p_values, array['plan', 'meter', 'amount'], 'price');
    v_new := jsonb_populate_record(null::plan_prices, p_values);
    if not exists (select from plans where name = v_new.plan) and v_new.plan is not null then
      perform _refuse(404, 'unknown_plan', format('there is no plan %L', left(v_new.plan, 100)), '{}',
        'See `penstock plans ls`.');
    end if;
    insert into plan_prices (price_id, plan, meter, amount)
    values (p_price_id, v_new.plan, v_new.meter, v_new.amount)
    on conflict (price_id) do update set plan = excluded.plan, meter = excluded.meter,
      amount = excluded.amount;
  end if;
  perform _audit(null, 'price.mapped', null, left('price:' || p_price_id, 300), coalesce(p_values, '{}'));
exception when integrity_constraint_violation or data_exception then
  perform _refuse(422, 'invalid_price',
    'a price stands for a plan, or for a positive amount of a meter that exists');
end
$$;
comment on function penstock.set_plan_price(text, jsonb) is
  'Says what a price of Stripe stands for: {"plan"}, or {"meter", "amount"} for a pack bought once; null '
  'removes it.';

create or replace function penstock.bind_customer(p_tenant_id uuid, p_customer_id text)
returns text language plpgsql security definer set search_path = penstock, pg_temp as $$
declare
  v_bound text;
begin
  perform _require_tenant(p_tenant_id);
  insert into billing_accounts (tenant_id, created_at) values (p_tenant_id, _now())
  on conflict (tenant_id) do nothing;
  select customer_id into v_bound from billing_accounts where tenant_id = p_tenant_id for update;
  if v_bound is null and p_customer_id is not null then
    update billing_accounts set customer_id = p_customer_id where tenant_id = p_tenant_id;
    v_bound := p_customer_id;
    perform _audit(p_tenant_id, 'billing.customer_bound', null, left('customer:' || p_customer_id, 300));
  end if;
  return v_bound;
exception when unique_violation then
  perform _refuse(409, 'foreign_customer', 'this customer belongs to another tenant',
    jsonb_build_object('customer_id', p_customer_id));
end
$$;
comment on function penstock.bind_customer(uuid, text) is
  'Binds a customer of Stripe to a tenant and returns the bound one: the first that is bound stays. With '
  'null it only returns it.';

create or replace function penstock._billing_tenant(p_customer_id text, p_tenant_id uuid)
returns uuid language plpgsql set search_path = penstock, pg_temp as $$
declare
  v_bound uuid;
begin
  select tenant_id into v_bound from billing_accounts where customer_id = p_customer_id;
  -- A tenant that has moved left its row behind: its customer is that of the other cell now.
  if v_bound is null and exists (
    select from tenants where id = p_tenant_id and suspended is distinct from 'frozen') then
    if bind_customer(p_tenant_id, p_customer_id) = p_customer_id then
      return p_tenant_id;
    end if;
    v_bound := '00000000-0000-0000-0000-000000000000';
  end if;
  if v_bound <> p_tenant_id then
    perform _refuse(409, 'foreign_customer',
      format('customer %s and tenant %s do not belong together', left(p_customer_id, 100), p_tenant_id),
      jsonb_build_object('customer_id', p_customer_id));
  end if;
  perform _require_active(v_bound);
  return v_bound;
end
$$;
comment on function penstock._billing_tenant(text, uuid) is
  'The tenant of a customer, and null for customers of other products. The tenant that the object itself '
  'names is bound if neither has another; a contradiction is an error.';

create or replace function penstock._subscribed_plan(p_price_ids text[])
returns text language plpgsql stable set search_path = penstock, pg_temp as $$
declare
  v_unknown text;
begin
  select x into v_unknown from unnest(p_price_ids) as x
  where not exists (select from plan_prices where price_id = x and plan is not null) limit 1;
  if found or cardinality(p_price_ids) = 0 then
    -- Fails instead of guessing: an unmapped price must not grant a paid plan.
    perform _refuse(422, 'unknown_price',
      format('price %s stands for no plan', coalesce(left(v_unknown, 100), 'null')),
      jsonb_build_object('price_id', v_unknown), 'Map it: penstock billing price.');
  end if;
  return (select p.name from plan_prices x join plans p on p.name = x.plan
    where x.price_id = any (p_price_ids) order by p.position desc, p.name limit 1);
end
$$;
comment on function penstock._subscribed_plan(text[]) is
  'The plan of a subscription with these prices: the highest, if there are several.';

create or replace function penstock.record_subscription(
  p_values jsonb, p_as_of timestamptz, p_event_id text default null, p_is_fetched boolean default false)
returns jsonb language plpgsql security definer set search_path = penstock, pg_temp as $$
-- Lock order: see claim.sql.
declare
  c_terminal constant text[] := array['canceled', 'incomplete_expired'];
  v_new subscriptions := jsonb_populate_record(null::subscriptions, p_values);
  v_old subscriptions;
  v_is_tie boolean;
begin
  if v_new.status is null or v_new.status <> all (array['incomplete', 'incomplete_expired', 'trialing',
      'active', 'past_due', 'canceled', 'unpaid', 'paused']) then
    perform _refuse(422, 'unknown_status', format('unknown subscription status %L', left(v_new.status, 100)),
      jsonb_build_object('subscription_id', v_new.id));
  end if;
  v_new.tenant_id := _billing_tenant(v_new.customer_id, v_new.tenant_id);
  if v_new.tenant_id is null then
    return '{"outcome": "ignored"}';
  end if;
  -- One change of a tenant's plan at a time, also for a subscription that has no row yet.
  perform from tenants where id = v_new.tenant_id for no key update;
  select * into v_old from subscriptions where id = v_new.id for update;
  -- Every subscription begins as incomplete, and none becomes it again: that order is known.
  v_is_tie := v_old.as_of = p_as_of and v_old.status <> 'incomplete';
  if v_old.as_of > p_as_of or v_is_tie and (v_old.status = any (c_terminal) or v_new.status = 'incomplete'
      or v_old.event_id = p_event_id and not p_is_fetched) then
    return jsonb_build_object('outcome', 'stale', 'tenant_id', v_new.tenant_id);
  end if;
  -- The end of a subscription counts whatever its price: a price without a plan must not keep it alive.
  v_new.plan := case when v_new.status = any (c_terminal) and v_old.plan is not null then v_old.plan
    when v_new.status <> all (c_terminal) or v_new.price_ids <@ array(
      select x.price_id from plan_prices x where x.plan is not null)
    then _subscribed_plan(v_new.price_ids) end;
  insert into subscriptions as s (id, tenant_id, customer_id, price_ids, plan, status, period_end,
    cancel_at_period_end, created_at, ended_at, as_of, event_id, is_suspect)
  values (v_new.id, v_new.tenant_id, v_new.customer_id, v_new.price_ids, v_new.plan, v_new.status,
    v_new.period_end, coalesce(v_new.cancel_at_period_end, false), v_new.created_at, v_new.ended_at, p_as_of,
    p_event_id, coalesce(v_is_tie and v_new.status <> all (c_terminal), false))
  on conflict (id) do update set price_ids = excluded.price_ids, plan = excluded.plan,
    status = excluded.status, period_end = excluded.period_end, ended_at = excluded.ended_at,
    cancel_at_period_end = excluded.cancel_at_period_end, as_of = excluded.as_of,
    event_id = excluded.event_id, is_suspect = excluded.is_suspect;
  perform _settle_plan(v_new.tenant_id);
  return jsonb_build_object('outcome', 'applied', 'tenant_id', v_new.tenant_id, 'is_changed',
    (v_old.status, v_old.price_ids, v_old.period_end, v_old.cancel_at_period_end) is distinct from
    (v_new.status, v_new.price_ids, v_new.period_end, coalesce(v_new.cancel_at_period_end, false)));
end
$$;
comment on function penstock.record_subscription(jsonb, timestamptz, text, boolean) is
  'Stores the state of a subscription at a second of Stripe''s clock: {id, customer_id, tenant_id (from its '
  'metadata), status, price_ids, period_end, cancel_at_period_end, created_at, ended_at}, and sets the plan. '
  'Returns {outcome, tenant_id, is_changed}: applied, stale (older than the stored one) or ignored (not '
  'ours). Of two states in one second the end wins; else the subscription is marked to be fetched.';

create or replace function penstock._settle_plan(p_tenant_id uuid)
returns void language plpgsql set search_path = penstock, pg_temp as $$
declare
  c_grace constant interval := '30 days';
  v_tenant tenants;
  v_sub subscriptions;
  v_until timestamptz;
begin
  select * into v_tenant from tenants where id = p_tenant_id;
  -- A first payment that never succeeded decides nothing.
  select * into v_sub from subscriptions where tenant_id = p_tenant_id and plan is not null
    and status not in ('incomplete', 'incomplete_expired')
  order by status in ('active', 'trialing', 'past_due') desc, created_at desc, id desc limit 1;
  if not found then
    return;
  end if;
  v_until := case when v_sub.status in ('active', 'trialing') then null
    -- Stripe tells no end if the subscription never had a period: nothing was paid for.
    when v_sub.status in ('past_due', 'canceled') and v_sub.period_end is not null
      then v_sub.period_end + c_grace
    else least(v_sub.as_of, _now()) end;
  if (v_tenant.plan, v_tenant.plan_until) is not distinct from (v_sub.plan, v_until) then
    return;
  end if;
  update tenants set plan_until = v_until, plan = v_sub.plan,
    plan_since = case when plan is distinct from v_sub.plan or plan_until <= _now() then _now()
      else coalesce(plan_since, _now()) end,
    plan_after = case when v_until is not null then coalesce(
      (select name from plans where name = _setting('default_plan') #>> '{}'), plan_after,
      (select name from plans order by position, name limit 1)) end,
    weight = coalesce((select weight from plans where name = v_sub.plan
      and (v_tenant.plan is distinct from v_sub.plan or v_tenant.plan_until <= _now())), weight)
  where id = p_tenant_id;
  perform _audit(p_tenant_id, 'tenant.plan_set', null, 'tenant:' || p_tenant_id, jsonb_build_object(
    'plan', v_sub.plan, 'until', v_until, 'subscription', v_sub.id, 'status', v_sub.status));
  perform _wake_waiting(array[p_tenant_id]);
  perform _retry_gated(p_tenant_id);
end
$$;
comment on function penstock._settle_plan(uuid) is
  'Sets plan and plan_until of a tenant from its subscriptions: the newest live one, else the newest. Past '
  'due and canceled ones last 30 days beyond their period.';

create or replace function penstock._lapse_weights()
returns void language sql set search_path = penstock, pg_temp as $$
  update tenants t set weight = a.weight from plans p, plans a
  where p.name = t.plan and a.name = t.plan_after and t.ctid = any (array(
    select x.ctid from tenants x join plans y on y.name = x.plan join plans z on z.name = x.plan_after
    where x.plan_until <= _now() and x.weight = y.weight and y.weight <> z.weight
    limit 1000 for no key update of x skip locked))
$$;
comment on function penstock._lapse_weights() is
  'Gives tenants whose plan has ended the weight of the plan after it, unless an operator set another one.';

create or replace function penstock.record_purchase(p_values jsonb)
returns jsonb language plpgsql security definer set search_path = penstock, pg_temp as $$
declare
  v_tenant_id uuid := _billing_tenant(p_values ->> 'customer_id', (p_values ->> 'tenant_id')::uuid);
  v_price plan_prices;
begin
  if v_tenant_id is null then
    return '{"outcome": "ignored"}';
  end if;
  select * into v_price from plan_prices where price_id = p_values ->> 'price_id' and meter is not null;
  if not found then
    perform _refuse(422, 'unknown_price',
      format('price %s stands for no pack', coalesce(left(p_values ->> 'price_id', 100), 'null')),
      jsonb_build_object('price_id', p_values ->> 'price_id'), 'Map it: penstock billing price.');
  end if;
  perform add_allowance(v_tenant_id, v_price.meter, v_price.amount, 'purchase', null,
    'bought: ' || v_price.price_id, p_values ->> 'id');
  return jsonb_build_object('outcome', 'applied', 'tenant_id', v_tenant_id);
end
$$;
comment on function penstock.record_purchase(jsonb) is
  'Adds the allowance of a pack that was paid for: {id (of the checkout session), customer_id, tenant_id, '
  'price_id}. The same session counts once. Returns {outcome, tenant_id}.';

create or replace function penstock.billing_status(p_tenant_id uuid default null)
returns jsonb language plpgsql stable security definer set search_path = penstock, pg_temp as $$
declare
  v_tenant tenants := _entitled_tenant(p_tenant_id);
  v_now timestamptz := _now();
  v_account billing_accounts;
  v_sub subscriptions;
begin
  select * into v_account from billing_accounts where tenant_id = v_tenant.id;
  select * into v_sub from subscriptions where tenant_id = v_tenant.id
  order by status in ('active', 'trialing', 'past_due') desc,
    status not in ('incomplete', 'incomplete_expired') desc, created_at desc, id desc limit 1;
  return jsonb_build_object('tenant_id', v_tenant.id, 'tier', _plan(v_tenant, v_now), 'plan', v_tenant.plan,
    'since', v_tenant.plan_since, 'until', v_tenant.plan_until,
    'is_in_grace', coalesce(v_sub.status in ('past_due', 'canceled') and v_now < v_tenant.plan_until
      and v_now >= v_sub.period_end, false),
    'has_customer', v_account.customer_id is not null, 'status', v_sub.status,
    'period_end', v_sub.period_end, 'cancel_at_period_end', coalesce(v_sub.cancel_at_period_end, false));
end
$$;
comment on function penstock.billing_status(uuid) is
  'The plan and the subscription of a tenant: {tenant_id, tier, plan, since, until, is_in_grace, '
  'has_customer, status, period_end, cancel_at_period_end}. Users see their own tenants, the service sees '
  'all.';

create or replace function penstock.begin_checkout(p_tenant_id uuid, p_price text)
returns jsonb language plpgsql security definer set search_path = penstock, pg_temp as $$
declare
  v_prices plan_prices[];
  v_account billing_accounts;
begin
  perform _require_role(p_tenant_id, array['owner', 'admin']);
  v_prices := array(select x from plan_prices x where x.price_id = p_price
    union all select x from plan_prices x where x.plan = p_price);
  if cardinality(v_prices) <> 1 then
    perform _refuse(422, 'unknown_price', format(
      'price must be a mapped price, or a plan with one price (got %L)', left(p_price, 100)),
      '{"field": "price"}');
  end if;
  if v_prices[1].plan is not null and exists (select from subscriptions where tenant_id = p_tenant_id
      and status in ('active', 'trialing', 'past_due', 'unpaid', 'paused')) then
    perform _refuse(409, 'already_subscribed', 'the tenant has a subscription', '{}',
      'Change or cancel it in the billing portal.');
  end if;
  select * into v_account from billing_accounts where tenant_id = p_tenant_id;
  return jsonb_build_object('price_id', v_prices[1].price_id, 'is_pack', v_prices[1].meter is not null,
    'customer_id', v_account.customer_id, 'is_known', v_account.tenant_id is not null,
    'checkout_id', case when v_account.checkout_expires_at > _now() then v_account.checkout_id end);
end
$$;
comment on function penstock.begin_checkout(uuid, text) is
  'What a checkout needs: {price_id, is_pack, customer_id, checkout_id (an older one that is still open)}. '
  'For owners and admins; rejects a second subscription.';

create or replace function penstock.begin_portal(p_tenant_id uuid)
returns text language plpgsql security definer set search_path = penstock, pg_temp as $$
declare
  v_customer_id text;
begin
  perform _require_role(p_tenant_id, array['owner', 'admin']);
  select customer_id into v_customer_id from billing_accounts where tenant_id = p_tenant_id;
  if v_customer_id is null then
    perform _refuse(409, 'no_customer', 'the tenant has bought nothing yet', '{}', 'Start a checkout.');
  end if;
  return v_customer_id;
end
$$;
comment on function penstock.begin_portal(uuid) is
  'The customer of a tenant, for a session of the billing portal. For owners and admins.';

create or replace function penstock.note_checkout(
  p_tenant_id uuid, p_checkout_id text, p_expires_at timestamptz)
returns void language sql security definer set search_path = penstock, pg_temp as $$
  update billing_accounts set checkout_id = p_checkout_id, checkout_expires_at = p_expires_at
  where tenant_id = p_tenant_id
$$;
comment on function penstock.note_checkout(uuid, text, timestamptz) is
  'Notes the open checkout session of a tenant, so that the next one can expire it.';

create or replace function penstock.forget_customer(p_customer_id text)
returns uuid language plpgsql security definer set search_path = penstock, pg_temp as $$
declare
  v_tenant_id uuid;
begin
  update billing_accounts set customer_id = null, checkout_id = null, created_at = _now()
  where customer_id = p_customer_id returning tenant_id into v_tenant_id;
  if found then
    perform _require_active(v_tenant_id);
    perform _audit(v_tenant_id, 'billing.customer_deleted', null, left('customer:' || p_customer_id, 300));
  end if;
  return v_tenant_id;
end
$$;
comment on function penstock.forget_customer(text) is
  'Unbinds a customer that was deleted at Stripe, so that the next checkout makes a new one. Its '
  'subscriptions end by their own events.';

create or replace function penstock.note_failed_payment(p_customer_id text, p_invoice_id text)
returns uuid language plpgsql security definer set search_path = penstock, pg_temp as $$
declare
  v_tenant_id uuid := (select tenant_id from billing_accounts where customer_id = p_customer_id);
begin
  if v_tenant_id is not null then
    -- Stripe tells of every attempt; one message per invoice is enough.
    perform _notify(v_tenant_id, 'alert', 'A payment failed',
      'The payment for the subscription failed. Check the card in the billing portal: the plan ends 30 days '
      'after the paid period.', jsonb_build_object('invoice', left(p_invoice_id, 255)),
      left('invoice:' || p_invoice_id, 255));
  end if;
  return v_tenant_id;
end
$$;
comment on function penstock.note_failed_payment(text, text) is
  'Alerts the tenant of a customer at Stripe that the payment of an invoice failed, once per invoice. '
  'Returns the tenant, or null if the customer is not known.';

create or replace function penstock.take_suspects(p_limit integer default 20)
returns setof text language sql security definer set search_path = penstock, pg_temp as $$
  update subscriptions s set checked_at = _now() where s.id = any (array(
    select x.id from subscriptions x where x.is_suspect
      and (x.checked_at is null or x.checked_at < _now() - interval '2 seconds')
    order by x.id limit p_limit for update skip locked))
  returning s.id
$$;
comment on function penstock.take_suspects(integer) is
  'Subscriptions of which two states came with the same second. The caller fetches them from Stripe.';

create or replace function penstock.take_reconciliation()
returns boolean language plpgsql security definer set search_path = penstock, pg_temp as $$
begin
  insert into billing_syncs as s (reconciled_at) values (_now())
  on conflict (id) do update set reconciled_at = excluded.reconciled_at
  where s.reconciled_at <= _now() - interval '1 day';
  return found;
end
$$;
comment on function penstock.take_reconciliation() is
  'Whether the caller is to compare the subscriptions with Stripe now: once a day, for one server of many.';
