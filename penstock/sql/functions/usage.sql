-- Usage: records what attempts and other actions used,
-- prices it, and deducts it from the reservations (holds).

create or replace function penstock._check_units(p_units jsonb, p_field text)
returns void language plpgsql stable set search_path = penstock, pg_temp as $$
declare
  v_name text;
  v_value jsonb;
begin
  if jsonb_typeof(p_units) is distinct from 'object' then
    perform _refuse(422, 'invalid_units',
      format('%s must be a JSON object of meters and amounts (got %s)', p_field,
      coalesce(jsonb_typeof(p_units), 'null')), jsonb_build_object('field', p_field));
  end if;
  for v_name, v_value in select key, value from jsonb_each(p_units) loop
    if not exists (select from meters where name = v_name) or v_name = 'cost' then
      perform _refuse(422, 'unknown_meter', format('%s: unknown meter %L', p_field, left(v_name, 100)),
        jsonb_build_object('field', p_field || '.' || left(v_name, 100)),
          'Declare it with penstock.set_meter.');
    end if;
    if jsonb_typeof(v_value) <> 'number' or v_value::numeric not between 0 and 1000000000000 then
      perform _refuse(422, 'invalid_units',
        format('%s.%s must be a number between 0 and 10^12 (got %s)', p_field, v_name,
        left(v_value::text, 100)), jsonb_build_object('field', p_field || '.' || v_name));
    end if;
  end loop;
end
$$;
comment on function penstock._check_units(jsonb, text) is
  'Raises an error unless the value is an object of known meters and valid amounts.';

create or replace function penstock._whole_units(p_units jsonb, p_is_call boolean)
returns jsonb language sql immutable set search_path = penstock, pg_temp as $$
  -- A provider call counts as one request; input and output tokens count as tokens.
  select case when p_is_call then '{"requests": 1}'::jsonb else '{}' end
    || case when not p_units ? 'tokens' and (p_units ? 'input_tokens' or p_units ? 'output_tokens')
      then jsonb_build_object('tokens', coalesce((p_units ->> 'input_tokens')::numeric, 0)
        + coalesce((p_units ->> 'output_tokens')::numeric, 0))
      else '{}' end
    || coalesce(p_units, '{}')
$$;
comment on function penstock._whole_units(jsonb, boolean) is
  'Adds the implied requests and tokens to units.';

create or replace function penstock._sum_units(p_one jsonb, p_other jsonb)
returns jsonb language sql immutable set search_path = penstock, pg_temp as $$
  select coalesce(jsonb_object_agg(k,
    coalesce((p_one ->> k)::numeric, 0) + coalesce((p_other ->> k)::numeric, 0)), '{}')
  from (select jsonb_object_keys(p_one) union select jsonb_object_keys(p_other)) as x(k)
$$;
comment on function penstock._sum_units(jsonb, jsonb) is 'The sum of two sets of units, meter by meter.';

create or replace function penstock._note_usage(
  p_tenant_id uuid, p_action text, p_units jsonb, p_hold_id uuid, p_provider text, p_details jsonb)
returns penstock.booking[] language plpgsql set search_path = penstock, pg_temp as $$
declare
  v_now timestamptz := _now();
begin
  insert into usage_events (at, tenant_id, action, hold_id, provider, units, details)
  values (v_now, p_tenant_id, p_action, p_hold_id, p_provider, p_units, coalesce(p_details, '{}'));
  if p_details ? 'prompt_name' then
    perform _note_prompt(p_tenant_id, p_action, p_details);
  end if;
  insert into usage_sums (tenant_id, action, day, meter, amount)
  select p_tenant_id, p_action, (v_now at time zone 'utc')::date, u.key, u.value::numeric
    from jsonb_each_text(p_units) as u;
  return array(
    select row(p_tenant_id, null, u.key, (_period(u.key, v_now)).starts, u.value::numeric, 0)::booking
    from jsonb_each_text(p_units) as u);
end
$$;
comment on function penstock._note_usage(uuid, text, jsonb, uuid, text, jsonb) is
  'Records usage outside a task and returns the bookings for the tenant''s accounts.';

create or replace function penstock._charge_attempts(
  p_leases penstock.leases[], p_units jsonb[], p_is_estimate boolean, p_variant text, p_details jsonb)
returns penstock.booking[] language plpgsql set search_path = penstock, pg_temp
  -- The stages inherit these settings.
  set enable_seqscan = off set jit = off as $$
-- Lock order: see claim.sql.
declare
  v_now timestamptz := _now();
  v_units jsonb[] := array(
    select _whole_units(x.units, l.provider is not null and (x.held).usage is null)
    from (
      select unnest(p_leases) as held, unnest(p_units) as units, generate_subscripts(p_leases, 1) as n) as x
    join lanes l on l.id = (x.held).lane_id order by x.n);
begin
  return _note_attempts(p_leases, v_units, p_is_estimate, p_details, v_now)
    || _charge_costs(p_leases, v_units, p_variant, p_is_estimate, null, v_now);
end
$$;
comment on function penstock._charge_attempts(penstock.leases[], jsonb[], boolean, text, jsonb) is
  'Records the usage and costs of attempts, deducts them from their holds, and returns the bookings.';

create or replace function penstock._note_attempts(
  p_leases penstock.leases[], p_units jsonb[], p_is_estimate boolean, p_details jsonb, p_now timestamptz)
returns penstock.booking[] language plpgsql set search_path = penstock, pg_temp as $$
declare
  v_bookings booking[];
begin
  with given as materialized (
    select x.held, x.units, l.provider, l.kind
    from (select unnest(p_leases) as held, unnest(p_units) as units) as x
    join lanes l on l.id = (x.held).lane_id
  ), noted as (
    insert into usage_events (at, tenant_id, action, job_id, task_id, lease, provider, units, is_estimate,
      details)
    select p_now, (g.held).tenant_id, g.kind, (g.held).job_id, (g.held).task_id, (g.held).lease, g.provider,
      g.units, p_is_estimate, coalesce(p_details, case when p_is_estimate then (
        select _prompt_details(u) from prompt_uses u where u.job_id = (g.held).job_id
          and u.task_id = (g.held).task_id and u.lease = (g.held).lease order by u.id desc limit 1) end, '{}')
    from given g where g.units <> '{}'
  ), summed as materialized (
    select (g.held).tenant_id, g.kind, u.key as meter, sum(u.value::numeric) as amount
    from given g cross join lateral jsonb_each_text(g.units) as u group by 1, 2, 3
  ), added as (
    insert into usage_sums (tenant_id, action, day, meter, amount)
    select s.tenant_id, s.kind, (p_now at time zone 'utc')::date, s.meter, s.amount from summed s
  )
  select array_agg(row(s.tenant_id, null, s.meter, (_period(s.meter, p_now)).starts, s.amount, 0)::booking)
  into v_bookings from summed s;
  return v_bookings;
end
$$;
comment on function penstock._note_attempts(penstock.leases[], jsonb[], boolean, jsonb, timestamptz) is
  'Records the usage of attempts and returns the bookings for their tenants'' accounts.';

create or replace function penstock._charge_costs(
  p_leases penstock.leases[], p_units jsonb[], p_variant text, p_is_estimate boolean, p_reason text,
  p_now timestamptz)
returns penstock.booking[] language plpgsql set search_path = penstock, pg_temp as $$
-- Lock order: see claim.sql.
declare
  v_bookings booking[];
begin
  with given as materialized (
    select x.held, x.units, l.provider from (select unnest(p_leases) as held, unnest(p_units) as units) as x
    join lanes l on l.id = (x.held).lane_id
  ), alike as materialized (
    -- Most attempts of a batch use the same units, so each price is looked up once.
    select d.provider, d.tenant_id, d.units, p.* from (
      select distinct g.provider, (g.held).tenant_id, g.units from given g where g.provider is not null) as d
    cross join lateral _price_units(d.provider, d.tenant_id, d.units, p_variant, p_now) as p
  ), priced as materialized (
    select g.held, a.* from given g join alike a on a.provider = g.provider
      and a.tenant_id = (g.held).tenant_id and a.units = g.units
  ), charged as (
    insert into cost_entries (at, tenant_id, job_id, task_id, lease, provider, cost_type, meter, variant,
      unit_count, amount, currency, base_amount, price_id, started_at, ended_at, is_estimate, reason, user_id)
    select p_now, (p.held).tenant_id, (p.held).job_id, (p.held).task_id, (p.held).lease, p.provider,
      p.cost_type, p.meter, p_variant, p.unit_count,
      p.amount, p.currency, p.base_amount, p.price_id, (p.held).started_at, p_now, p_is_estimate, p_reason,
      (select j.user_id from jobs j where j.id = (p.held).job_id)
    from priced p
  ), met as materialized (
    select h.hold, g.units || case when c.cost is null then '{}'
      else jsonb_build_object('cost', c.cost) end as units
    from given g
    left join (select (p.held).task_id, sum(p.base_amount) as cost from priced p
      group by 1) as c on c.task_id = (g.held).task_id
    cross join lateral (select x as hold from holds x where x.task_id = (g.held).task_id
      and x.lease = (g.held).lease and x.status = 'held' for update) as h
  ), taken as (
    update holds h set spent = _sum_units(h.spent, m.units) from met m where h.id = (m.hold).id
  ), cost as (
    select (p.held).tenant_id, s.job_id, sum(p.base_amount) as amount from priced p
    cross join lateral (select null::uuid as job_id union all select (p.held).job_id) as s group by 1, 2
  )
  select array(
      select row(c.tenant_id, c.job_id, 'cost', case when c.job_id is null
        then (_period('cost', p_now)).starts else 'epoch' end, c.amount, 0)::booking from cost c)
    || array(select b from met m cross join lateral unnest(_shrink_bookings(m.hold, m.units)) as b)
  into v_bookings;
  return v_bookings;
end
$$;
comment on function penstock._charge_costs(
  penstock.leases[], jsonb[], text, boolean, text, timestamptz) is
  'Records the costs of attempts, deducts usage and costs from their holds, and returns the bookings.';

create or replace function penstock._charge_unreported(p_leases penstock.leases[])
returns penstock.booking[] language plpgsql set search_path = penstock, pg_temp as $$
-- Lock order: see claim.sql.
declare
  v_leases leases[];
  v_units jsonb[];
begin
  -- A lost attempt, a timeout and a lost answer end before the report. The provider may bill all three.
  select array_agg(l order by l.lease), array_agg(_priced_units(n.provider, l.tenant_id, t.units)
    order by l.lease)
  into v_leases, v_units
  from unnest(p_leases) as l join lanes n on n.id = l.lane_id
  -- A failed task may have another provider by now: the attempt is charged by the one that it used.
  cross join lateral (
    select _units_at(x.units, x.route, n.provider) as units from tasks x
    where x.job_id = l.job_id and x.id = l.task_id offset 0) as t
  -- What an operation costs is charged when it ends. One whose first answer was lost is submitted again, and
  -- the provider may bill both.
  where n.provider is not null and not exists (
    select from operations o where o.job_id = l.job_id and o.task_id = l.task_id
      and o.status in ('pending', 'processing', 'completed', 'timeout')
      and not (o.status = 'pending' and exists (
        select from attempts a where a.job_id = l.job_id and a.task_id = l.task_id and a.lease = l.lease
          and a.error_code = 'answer_lost')))
  and (l.is_canceled or exists (
    select from attempts a where a.job_id = l.job_id and a.task_id = l.task_id and a.lease = l.lease
      and (a.outcome = 'lost' or a.error_code in ('timeout', 'answer_lost'))));
  if v_leases is null then
    return '{}';
  end if;
  return _charge_costs(v_leases, v_units, 'standard', true,
    'estimate: the attempt ended without a report', _now());
end
$$;
comment on function penstock._charge_unreported(penstock.leases[]) is
  'Records the estimated costs of attempts that were lost, timed out or got no answer, which counts '
  'against budgets, and returns the bookings. Usage is not recorded: quotas are not charged for attempts '
  'that brought no result.';

create or replace function penstock._shrink_bookings(p_hold penstock.holds, p_units jsonb)
returns penstock.booking[] language sql stable set search_path = penstock, pg_temp as $$
  select coalesce(array_agg(row(p_hold.tenant_id, s.job_id, u.key,
    case when s.job_id is null then (_period(u.key, p_hold.at)).starts else 'epoch' end, 0,
    greatest(0, r.open - coalesce((p_units ->> u.key)::numeric, 0)) - greatest(0, r.open))::booking), '{}')
  from jsonb_each_text(p_hold.amounts) as u
  cross join lateral (
    select u.value::numeric - coalesce((p_hold.spent ->> u.key)::numeric, 0) as open) as r
  cross join lateral (
    select null::uuid as job_id union all
    select p_hold.job_id where p_hold.has_budget and u.key = 'cost') as s
$$;
comment on function penstock._shrink_bookings(penstock.holds, jsonb) is
  'What to book when units are used from a hold: the reservation shrinks by them, down to 0.';

create or replace function penstock._is_new_report(p_tenant_id uuid, p_key text)
returns boolean language plpgsql set search_path = penstock, pg_temp as $$
begin
  if p_key is null then
    return true;
  end if;
  if length(p_key) not between 1 and 255 then
    perform _refuse(422, 'invalid_key', format('key must have 1 to 255 characters (got %s)', length(p_key)),
      '{"field": "p_options.key"}');
  end if;
  -- Waits for the same report in another session, and sees whether that one was committed.
  insert into usage_keys (tenant_id, key, at) values (p_tenant_id, p_key, _now()) on conflict do nothing;
  return found;
end
$$;
comment on function penstock._is_new_report(uuid, text) is
  'Whether no usage report with this key was recorded; notes the key.';

create or replace function penstock._count_actual_tokens(p_lease penstock.leases, p_units jsonb)
returns void language plpgsql set search_path = penstock, pg_temp as $$
-- Lock order: see claim.sql.
declare
  v_endpoint endpoints;
  v_estimate bigint;
  v_actual bigint;
  v_more bigint;
begin
  -- The endpoint that admitted the task, even if the tenant has its own endpoint by now.
  select e.* into v_endpoint from lanes l join endpoints e on e.id = l.endpoint_id
  where l.id = p_lease.lane_id;
  if coalesce(v_endpoint.tokens_per_minute, v_endpoint.tokens_per_hour) is null then
    return;
  end if;
  -- The first report replaces the estimate; later reports add to it.
  select s.tokens into v_estimate from tasks t
    cross join lateral _call_size(t.units, v_endpoint.default_tokens) as s
  where t.job_id = p_lease.job_id and t.id = p_lease.task_id;
  select s.tokens into v_actual from _call_size(p_units, 0) as s;
  v_more := v_actual - case when p_lease.usage is null then v_estimate else 0 end;
  if v_more < 0 then
    -- Tasks that wait for tokens may fit now. A transaction that has locked the state checks it anyway.
    update endpoint_states set open_at = 'epoch' where ctid = any (array(
      select ctid from endpoint_states where endpoint_id = v_endpoint.id and open_at > _now()
        and open_for = 'tokens' for no key update skip locked));
    if found then
      perform pg_notify('penstock', 'ready:' || l.kind) from lanes l where l.endpoint_id = v_endpoint.id;
    end if;
  end if;
  perform _count_calls(v_endpoint, p_lease.started_at, 0, v_more);
end
$$;
comment on function penstock._count_actual_tokens(penstock.leases, jsonb) is
  'Corrects the tokens that an attempt counts in the windows of its endpoint. The lease is as it was before '
  'the report.';

create or replace function penstock.record_usage(
  p_units jsonb, p_task_id bigint default null, p_worker_id text default null, p_lease bigint default null,
  p_tenant_id uuid default null, p_action text default null, p_options jsonb default '{}')
returns void language plpgsql security definer set search_path = penstock, pg_temp as $$
-- Lock order: see claim.sql.
declare
  v_lease leases;
begin
  perform _check_clean(p_action, 'p_action', 'invalid_action');
  perform _check_clean(p_options ->> 'key', 'key', 'invalid_key');
  perform _check_units(p_units, 'p_units');
  if p_task_id is null then
    perform _require_tenant(p_tenant_id);
    if coalesce(length(p_action), 0) not between 1 and 200 then
      perform _refuse(422, 'invalid_action',
        format('p_action must have 1 to 200 characters (got %s)', coalesce(length(p_action), 0)),
        '{"field": "p_action"}');
    end if;
    if not _is_new_report(p_tenant_id, p_options ->> 'key') then
      return;
    end if;
    perform _book(_note_usage(p_tenant_id, p_action, _whole_units(p_units, false), null,
      p_options ->> 'provider', p_options -> 'details'));
    return;
  end if;
  perform _require_lease(p_task_id, p_worker_id, p_lease);
  select * into v_lease from leases where task_id = p_task_id;
  if not _is_new_report(v_lease.tenant_id, p_options ->> 'key') then
    return;
  end if;
  update leases set usage = _sum_units(coalesce(usage, '{}'), _whole_units(p_units, false))
    where task_id = p_task_id;
  if v_lease.is_gated then
    perform _count_actual_tokens(v_lease, p_units);
  end if;
  perform _book(_charge_attempts(array[v_lease], array[p_units], false,
    coalesce(p_options ->> 'variant', 'standard'), p_options -> 'details'));
  perform _wake_waiting(array[v_lease.tenant_id]);
end
$$;
comment on function penstock.record_usage(jsonb, bigint, text, bigint, uuid, text, jsonb) is
  'Records the usage of an attempt (p_task_id, p_worker_id, p_lease) or of a tenant''s action (p_tenant_id, '
  'p_action), as {"requests", "input_tokens", …}, and its cost if the provider has prices. Options: '
  'variant, provider, details, key (a report sent again with the same key counts once).';

create or replace function penstock.refund_usage(
  p_tenant_id uuid, p_units jsonb, p_action text default 'refund')
returns jsonb language plpgsql security definer set search_path = penstock, pg_temp as $$
-- Lock order: see claim.sql.
declare
  v_unit record;
  v_back numeric;
  v_refunded jsonb := '{}';
begin
  perform _check_units(p_units, 'p_units');
  if coalesce(length(p_action), 0) not between 1 and 200 then
    perform _refuse(422, 'invalid_action', 'p_action must have 1 to 200 characters', '{"field": "p_action"}');
  end if;
  perform _require_tenant(p_tenant_id);
  for v_unit in
    select u.key as meter, u.value::numeric as amount from jsonb_each(p_units) as u order by u.key
  loop
    v_back := least(v_unit.amount,
      (_lock_account(p_tenant_id, null, v_unit.meter, (_period(v_unit.meter, _now())).starts, true)).used);
    if v_back > 0 then
      v_refunded := v_refunded || jsonb_build_object(v_unit.meter, v_back);
    end if;
  end loop;
  if v_refunded <> '{}' then
    perform _book(_note_usage(p_tenant_id, p_action, (
      select jsonb_object_agg(u.key, -u.value::numeric) from jsonb_each(v_refunded) as u), null, null, null));
    perform _wake_waiting(array[p_tenant_id]);
  end if;
  return v_refunded;
end
$$;
comment on function penstock.refund_usage(uuid, jsonb, text) is
  'Gives usage of the current period back to a tenant, at most what is used, and returns what was given '
  'back. The earlier usage events stay on record.';

create or replace function penstock._settle(p_leases penstock.leases[], p_is_success boolean,
  p_stopped penstock.leases[])
returns void language plpgsql set search_path = penstock, pg_temp set enable_seqscan = off
  set jit = off as $$
declare
  v_leases leases[] := array(select l from unnest(p_leases || p_stopped) as l where l.is_gated);
  v_silent leases[];
  v_holds holds[];
  v_bookings booking[] := '{}';
begin
  if cardinality(v_leases) = 0 then
    return;
  end if;
  -- An attempt that reported nothing is charged its estimate.
  -- One that reported its usage before it waited is not charged again.
  v_silent := array(
    select l from unnest(p_leases) as l where l.is_gated and l.usage is null and not exists (
      select from waits w where w.job_id = l.job_id and w.task_id = l.task_id and w.has_usage));
  if cardinality(v_silent) > 0 and p_is_success then
    v_bookings := _charge_attempts(v_silent, array(
      select coalesce(t.units, '{}') from unnest(v_silent) with ordinality as l
      cross join lateral (select x.units from tasks x where x.job_id = l.job_id
        and x.id = l.task_id offset 0) as t order by l.ordinality), true, 'standard', null);
  elsif cardinality(v_silent) > 0 then
    v_bookings := _charge_unreported(v_silent);
  end if;
  if p_is_success and exists (select from route_failures) then
    perform _forget_failures(p_leases);
  end if;
  with gone as (
    update holds h set settled_at = _now(), status = case when h.spent = '{}' then 'released'
      else 'committed' end
    from unnest(v_leases) as l where h.task_id = l.task_id and h.lease = l.lease and h.status = 'held'
      returning h as hold
  )
  select array_agg(g.hold) into v_holds from gone g;
  v_bookings := v_bookings
    || array(select b from unnest(v_holds) as h cross join lateral unnest(_release_bookings(h)) as b);
  perform _book(v_bookings);
  if v_holds is not null then
    perform _wake_waiting(array(select distinct h.tenant_id from unnest(v_holds) as h));
  end if;
  -- Wake the workers of tasks that wait for the freed concurrency.
  perform pg_notify('penstock', 'ready:' || x.kind) from (
    select distinct m.kind from (select distinct l.lane_id from unnest(v_leases) as l) as l
      join lanes n on n.id = l.lane_id
    join endpoints e on e.id = n.endpoint_id join lanes m on m.endpoint_id = e.id
    where e.concurrency is not null and (exists (select from ready r where r.lane_id = m.id)
      -- Or of tasks in other lanes that have a route to this endpoint.
      or exists (select from routed_lanes q join lanes o on o.id = q.lane_id
        where o.kind = m.kind and exists (select from ready r where r.lane_id = o.id)))) as x;
end
$$;
comment on function penstock._settle(penstock.leases[], boolean, penstock.leases[]) is
  'Settles the holds of attempts that have ended: a success is charged the reported usage or else its '
  'estimate, a lost or timed-out attempt the reported usage or else its estimated costs, other attempts (and '
  'stopped ones) only the reported usage. The rest of each hold is released. '
  'Called once per transaction, so that accounts are locked in their order.';

create or replace function penstock.get_usage_status(p_tenant_id uuid default null)
returns jsonb language plpgsql stable security definer set search_path = penstock, pg_temp as $$
declare
  v_tenant_id uuid := coalesce(p_tenant_id, _own_tenant());
  v_now timestamptz := _now();
  v_plan plans;
  v_usage jsonb;
begin
  if not (_is_service() or v_tenant_id in (select my_tenants()))
    or not exists (select from tenants where id = v_tenant_id) then
    perform _refuse(403, 'forbidden', 'you do not have permission to do this in this tenant');
  end if;
  select p.* into v_plan from tenants t join plans p on p.name = _plan(t, v_now) where t.id = v_tenant_id;
  select jsonb_object_agg(m.name,
    jsonb_build_object('used', coalesce(a.used, 0), 'held', coalesce(a.held, 0), 'limit', l.amount,
      'left', case when l.amount is not null then greatest(0, l.amount - coalesce(a.used + a.held, 0)) end,
      'percent', round(100 * coalesce(a.used, 0) / nullif(l.amount, 0), 1), 'mode', l.mode,
        'period', m.period,
      'resets_at', case when isfinite(p.resets_at) then p.resets_at end) order by m.name)
  into v_usage
  from meters m cross join lateral _period(m.name, v_now) as p
  left join _limits(v_tenant_id, v_now) as l on l.meter = m.name
  left join accounts a on a.tenant_id = v_tenant_id and a.job_id is null and a.meter = m.name
    and a.period = p.starts
  where l.meter is not null or a.meter is not null;
  return jsonb_build_object('tenant_id', v_tenant_id, 'plan', v_plan.name,
    'features', coalesce(to_jsonb(v_plan.features), '[]'),
    'current_period', jsonb_build_object('start', date_trunc('month', v_now at time zone 'utc')::date,
      'end', (date_trunc('month', v_now at time zone 'utc') + interval '1 month')::date),
    'usage', coalesce(v_usage, '{}'),
    'over_limit',
      exists (select from jsonb_each(v_usage) as u
      where (u.value ->> 'used')::numeric >= (u.value ->> 'limit')::numeric));
end
$$;
comment on function penstock.get_usage_status(uuid) is
  'A tenant''s plan and, for each meter, what is used, reserved and left in the current period. Users see '
  'their own tenants, the service sees all.';

create or replace function penstock._compact()
returns void language sql set search_path = penstock, pg_temp as $$
  with gone as (
    delete from usage_sums
      where ctid = any (array(select ctid from usage_sums where is_fresh limit 10000 for update skip locked))
      returning *
  )
  insert into usage_sums as s (tenant_id, action, day, meter, amount, is_fresh)
  select tenant_id, action, day, meter, sum(amount), false from gone group by 1, 2, 3, 4 order by 1, 3, 2, 4
  on conflict (tenant_id, day, action, meter) where not is_fresh do update
    set amount = s.amount + excluded.amount;
  with gone as (
    delete from cost_sums
      where ctid = any (array(select ctid from cost_sums where is_fresh limit 10000 for update skip locked))
      returning *
  )
  insert into cost_sums as s (tenant_id, day, provider, cost_type, amount, unit_count, lines, is_fresh)
  select tenant_id, day, provider, cost_type, sum(amount), sum(unit_count), sum(lines), false from gone
    group by 1, 2, 3, 4 order by 1, 2, 3, 4
  on conflict (tenant_id, day, provider, cost_type) where not is_fresh
  do update set amount = s.amount + excluded.amount, unit_count = s.unit_count + excluded.unit_count,
    lines = s.lines + excluded.lines
$$;
comment on function penstock._compact() is
  'Merges the usage and cost rows since the last call into daily sums.';
