-- Quotas: what a tenant may use in a period, what it has used, and what is set aside for work under way.
-- Accounts come last in the order of locks, by tenant, job and meter; whoever has one waits for nothing else.

insert into penstock.meters (name, period, comment) values
  ('requests', 'month', 'calls of providers'),
  ('tokens', 'month', 'input and output tokens'),
  ('input_tokens', 'month', 'tokens sent'),
  ('output_tokens', 'month', 'tokens received'),
  ('cached_tokens', 'month', 'of the tokens sent, those read from a provider''s cache'),
  ('files', 'month', 'files taken in'),
  ('pages', 'month', 'pages processed'),
  ('bytes', 'total', 'bytes stored'),
  ('minutes', 'month', 'minutes of processing'),
  ('seconds', 'month', 'seconds of media'),
  ('characters', 'month', 'characters of text'),
  ('images', 'month', 'images made'),
  ('thumbnails', 'total', 'thumbnails made'),
  ('jobs', 'month', 'jobs started'),
  ('cost', 'month', 'money, in the base currency')
on conflict (name) do nothing;

insert into penstock.plans (name, title, comment, limits, price, weight, position)
select * from (values
  ('free', 'Free', 'To get started', '{"files": 10, "pages": 100, "tokens": 50000, "bytes": 104857600}'::jsonb, 0, 1, 1),
  ('basic', 'Basic', 'For regular use', '{"files": 100, "pages": 1000, "tokens": 500000, "bytes": 1048576000}', 9.99, 2, 2),
  ('premium', 'Premium', 'For heavy use', '{"files": 500, "pages": 5000, "tokens": 2500000, "bytes": 5242880000}', 29.99, 4, 3),
  ('enterprise', 'Enterprise', 'Unlimited', '{}', 99.99, 8, 4)) as seed
where not exists (select from penstock.plans);

create or replace function penstock._period(p_meter text, p_at timestamptz, out starts date, out resets_at timestamptz)
language sql stable set search_path = penstock, pg_temp as $$
  select case m.period when 'day' then (p_at at time zone 'utc')::date
      when 'month' then date_trunc('month', p_at at time zone 'utc')::date else date 'epoch' end,
    case m.period when 'day' then ((p_at at time zone 'utc')::date + 1)::timestamp at time zone 'utc'
      when 'month' then (date_trunc('month', p_at at time zone 'utc') + interval '1 month') at time zone 'utc'
      else 'infinity' end
  from meters m where m.name = p_meter
$$;
comment on function penstock._period(text, timestamptz) is 'The period of a meter that a moment falls into, in UTC.';

create or replace function penstock._limits(p_tenant_id uuid, p_at timestamptz)
returns table (meter text, amount numeric, mode text, period date, resets_at timestamptz)
language sql stable set search_path = penstock, pg_temp as $$
  select m.name, x.base + coalesce((
      select sum(a.amount) from allowances a where a.tenant_id = t.id and a.meter = m.name
        and (a.expires_on is null or a.expires_on >= (p_at at time zone 'utc')::date)), 0),
    m.mode, p.starts, p.resets_at
  from tenants t cross join meters m
  left join plans l on l.name = t.plan
  left join tenant_limits o on o.tenant_id = t.id and o.meter = m.name
  cross join lateral (select case when o.meter is not null then o.amount else (l.limits ->> m.name)::numeric end as base) as x
  cross join lateral _period(m.name, p_at) as p
  where t.id = p_tenant_id and x.base is not null
$$;
comment on function penstock._limits(uuid, timestamptz) is
  'The limits that hold for a tenant: its own or its plan''s, and what overrides and purchases add. The only place that decides this. A meter without a row is not limited.';

create or replace function penstock.resolve_limits(p_tenant_id uuid, p_at timestamptz default null)
returns table (meter text, amount numeric, mode text, period date, resets_at timestamptz)
language plpgsql stable security definer set search_path = penstock, pg_temp as $$
begin
  if not (_is_service() or p_tenant_id in (select my_tenants())) then
    perform _refuse(403, 'forbidden', 'you may not do this in this tenant');
  end if;
  if not exists (select from tenants where id = p_tenant_id) then
    -- Never open to whom we do not know.
    perform _refuse(404, 'unknown_tenant', 'there is no such tenant');
  end if;
  return query select l.meter, l.amount, l.mode, l.period, nullif(l.resets_at, 'infinity') from _limits(p_tenant_id, coalesce(p_at, _now())) as l;
end
$$;
comment on function penstock.resolve_limits(uuid, timestamptz) is 'A tenant''s limits now, or at a moment. A meter without a row is not limited.';

create or replace function penstock._check_units(p_units jsonb, p_field text)
returns void language plpgsql stable set search_path = penstock, pg_temp as $$
declare
  v_name text;
  v_value jsonb;
begin
  if jsonb_typeof(p_units) is distinct from 'object' then
    perform _refuse(422, 'invalid_units', format('%s is an object of meters and amounts', p_field), jsonb_build_object('field', p_field));
  end if;
  for v_name, v_value in select key, value from jsonb_each(p_units) loop
    if not exists (select from meters where name = v_name) or v_name = 'cost' then
      perform _refuse(422, 'unknown_meter', format('%s names an unknown meter %L', p_field, left(v_name, 100)),
        jsonb_build_object('field', p_field || '.' || left(v_name, 100)), 'Declare it with penstock.set_meter.');
    end if;
    if jsonb_typeof(v_value) <> 'number' or v_value::numeric not between 0 and 1000000000000 then
      perform _refuse(422, 'invalid_units', format('%s.%s is a number from 0 to 10^12', p_field, v_name),
        jsonb_build_object('field', p_field || '.' || v_name));
    end if;
  end loop;
end
$$;
comment on function penstock._check_units(jsonb, text) is 'Refuses units that are not amounts of known meters.';

create or replace function penstock._whole_units(p_units jsonb, p_is_call boolean)
returns jsonb language sql immutable set search_path = penstock, pg_temp as $$
  -- A call is a request, and input and output are tokens, whether or not that is said.
  select case when p_is_call then '{"requests": 1}'::jsonb else '{}' end
    || case when not p_units ? 'tokens' and (p_units ? 'input_tokens' or p_units ? 'output_tokens')
      then jsonb_build_object('tokens', coalesce((p_units ->> 'input_tokens')::numeric, 0) + coalesce((p_units ->> 'output_tokens')::numeric, 0))
      else '{}' end
    || coalesce(p_units, '{}')
$$;
comment on function penstock._whole_units(jsonb, boolean) is 'Units with what follows from them.';

create or replace function penstock._sum_units(p_one jsonb, p_other jsonb)
returns jsonb language sql immutable set search_path = penstock, pg_temp as $$
  select coalesce(jsonb_object_agg(k, coalesce((p_one ->> k)::numeric, 0) + coalesce((p_other ->> k)::numeric, 0)), '{}')
  from (select jsonb_object_keys(p_one) union select jsonb_object_keys(p_other)) as x(k)
$$;
comment on function penstock._sum_units(jsonb, jsonb) is 'Amounts added, meter by meter.';


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

create or replace function penstock._note_usage(
  p_tenant_id uuid, p_action text, p_units jsonb, p_hold_id uuid, p_provider text, p_details jsonb)
returns penstock.booking[] language plpgsql set search_path = penstock, pg_temp as $$
declare
  v_now timestamptz := _now();
begin
  insert into usage_events (at, tenant_id, action, hold_id, provider, units, details)
  values (v_now, p_tenant_id, p_action, p_hold_id, p_provider, p_units, coalesce(p_details, '{}'));
  insert into usage_sums (tenant_id, action, day, meter, amount)
  select p_tenant_id, p_action, (v_now at time zone 'utc')::date, u.key, u.value::numeric from jsonb_each_text(p_units) as u;
  return array(select row(p_tenant_id, null, u.key, (_period(u.key, v_now)).starts, u.value::numeric, 0)::booking
    from jsonb_each_text(p_units) as u);
end
$$;
comment on function penstock._note_usage(uuid, text, jsonb, uuid, text, jsonb) is 'Writes down a use outside a task, and says what to book.';

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

create or replace function penstock._freed(p_hold penstock.holds)
returns penstock.booking[] language sql stable set search_path = penstock, pg_temp as $$
  select array_agg(row(p_hold.tenant_id, s.job_id, u.key, case when s.job_id is null then (_period(u.key, p_hold.at)).starts else 'epoch' end,
    0, -greatest(0, u.value::numeric - coalesce((p_hold.spent ->> u.key)::numeric, 0)))::booking)
  from jsonb_each_text(p_hold.amounts) as u
  cross join lateral (select null::uuid as job_id union all select p_hold.job_id where p_hold.has_budget and u.key = 'cost') as s
$$;
comment on function penstock._freed(penstock.holds) is 'What is booked back when a hold ends: what of it was not spent.';

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
    || case when v_hold.status = 'held' then _freed(v_hold) else '{}' end);
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
  perform _book(_freed(v_hold));
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
  perform _book(array(select b from unnest(v_holds) as h cross join lateral unnest(_freed(h)) as b));
  perform _wake_waiting(array(select distinct h.tenant_id from unnest(v_holds) as h));
  return cardinality(v_holds);
end
$$;
comment on function penstock._expire_holds() is 'Gives back what callers set aside and forgot.';

create or replace function penstock._record(p_leases penstock.leases[], p_units jsonb[], p_is_estimate boolean, p_variant text, p_details jsonb)
returns penstock.booking[] language plpgsql set search_path = penstock, pg_temp set enable_seqscan = off set jit = off as $$
declare
  v_now timestamptz := _now();
  v_day date := (v_now at time zone 'utc')::date;
  v_bookings booking[];
begin
  with given as materialized (
    select x.held, _whole_units(x.units, l.provider is not null and (x.held).usage is null) as units, l.provider, l.kind
    from (select unnest(p_leases) as held, unnest(p_units) as units) as x join lanes l on l.id = (x.held).lane_id
  ), noted as (
    insert into usage_events (at, tenant_id, action, job_id, task_id, lease, provider, units, is_estimate, details)
    select v_now, (g.held).tenant_id, g.kind, (g.held).job_id, (g.held).task_id, (g.held).lease, g.provider, g.units, p_is_estimate, coalesce(p_details, '{}')
    from given g where g.units <> '{}'
  ), summed as materialized (
    select (g.held).tenant_id, g.kind, u.key as meter, sum(u.value::numeric) as amount
    from given g cross join lateral jsonb_each_text(g.units) as u group by 1, 2, 3
  ), added as (
    insert into usage_sums (tenant_id, action, day, meter, amount) select s.tenant_id, s.kind, v_day, s.meter, s.amount from summed s
  ), alike as materialized (
    -- Most of a batch are: each price is looked up once.
    select d.provider, d.tenant_id, d.units, p.* from (
      select distinct g.provider, (g.held).tenant_id, g.units from given g where g.provider is not null) as d
    cross join lateral _priced(d.provider, d.tenant_id, d.units, p_variant, v_now) as p
  ), priced as materialized (
    select g.held, a.* from given g join alike a on a.provider = g.provider and a.tenant_id = (g.held).tenant_id and a.units = g.units
  ), charged as (
    insert into cost_entries (at, tenant_id, job_id, task_id, lease, provider, cost_type, meter, variant, unit_count, amount, currency, base_amount, price_id, started_at, ended_at)
    select v_now, (p.held).tenant_id, (p.held).job_id, (p.held).task_id, (p.held).lease, p.provider, p.cost_type, p.meter, p_variant, p.unit_count,
      p.amount, p.currency, p.base_amount, p.price_id, (p.held).started_at, v_now
    from priced p
  ), met as materialized (
    select h.*, given_units || case when c.cost is null then '{}' else jsonb_build_object('cost', c.cost) end as given_units
    from (select (g.held).task_id, (g.held).lease, g.units as given_units from given g) as g
    left join (select (p.held).task_id, sum(p.base_amount) as cost from priced p group by 1) as c on c.task_id = g.task_id
    cross join lateral (select x as hold from holds x where x.task_id = g.task_id and x.lease = g.lease and x.status = 'held' for update) as h
  ), taken as (
    update holds h set spent = _sum_units(h.spent, m.given_units) from met m where h.id = (m.hold).id
  )
  select coalesce((select array_agg(row(s.tenant_id, null, s.meter, (_period(s.meter, v_now)).starts, s.amount, 0)::booking) from summed s), '{}')
    || coalesce((select array_agg(row(x.tenant_id, x.job_id, 'cost', x.period, x.cost, 0)::booking) from (
        select (p.held).tenant_id, s.job_id, case when s.job_id is null then (_period('cost', v_now)).starts else 'epoch' end as period, sum(p.base_amount) as cost
        from priced p cross join lateral (select null::uuid as job_id union all select (p.held).job_id) as s group by 1, 2, 3) as x), '{}')
    || coalesce((select array_agg(row((m.hold).tenant_id, s.job_id, u.key, case when s.job_id is null then (_period(u.key, (m.hold).at)).starts else 'epoch' end, 0,
        greatest(0, u.value::numeric - coalesce(((m.hold).spent ->> u.key)::numeric, 0) - coalesce((m.given_units ->> u.key)::numeric, 0))
        - greatest(0, u.value::numeric - coalesce(((m.hold).spent ->> u.key)::numeric, 0)))::booking)
      from met m cross join lateral jsonb_each_text((m.hold).amounts) as u
      cross join lateral (select null::uuid as job_id union all select (m.hold).job_id where (m.hold).has_budget and u.key = 'cost') as s), '{}')
  into v_bookings;
  return v_bookings;
end
$$;
comment on function penstock._record(penstock.leases[], jsonb[], boolean, text, jsonb) is
  'Writes down what attempts used and what it costs, takes it from their holds, and says what to book.';

create or replace function penstock.record_usage(
  p_units jsonb, p_task_id bigint default null, p_worker_id text default null, p_lease bigint default null,
  p_tenant_id uuid default null, p_action text default null, p_options jsonb default '{}')
returns void language plpgsql security definer set search_path = penstock, pg_temp as $$
declare
  v_lease leases;
  v_endpoint endpoints;
  v_estimate bigint;
  v_actual bigint;
  v_more bigint;
begin
  perform _check_units(p_units, 'p_units');
  if p_task_id is null then
    if not exists (select from tenants where id = p_tenant_id) then
      perform _refuse(404, 'unknown_tenant', 'there is no such tenant');
    end if;
    if coalesce(length(p_action), 0) not between 1 and 200 then
      perform _refuse(422, 'invalid_action', 'an action has 1 to 200 characters', '{"field": "p_action"}');
    end if;
    perform _book(_note_usage(p_tenant_id, p_action, _whole_units(p_units, false), null, p_options ->> 'provider', p_options -> 'details'));
    return;
  end if;
  perform _require_lease(p_task_id, p_worker_id, p_lease);
  select * into v_lease from leases where task_id = p_task_id;
  update leases set usage = _sum_units(coalesce(usage, '{}'), _whole_units(p_units, false)) where task_id = p_task_id;
  if v_lease.is_gated then
    -- The endpoint it was admitted by, also when the tenant has one of its own by now.
    select e.* into v_endpoint from lanes l join endpoints e on e.id = l.endpoint_id where l.id = v_lease.lane_id;
    if coalesce(v_endpoint.tokens_per_minute, v_endpoint.tokens_per_hour) is not null then
      -- The first report takes the estimate's place, the others come on top.
      select s.tokens into v_estimate from tasks t cross join lateral _size(t.units, v_endpoint.default_tokens) as s
      where t.job_id = v_lease.job_id and t.id = p_task_id;
      select s.tokens into v_actual from _size(p_units, 0) as s;
      v_more := v_actual - case when v_lease.usage is null then v_estimate else 0 end;
      if v_more < 0 then
        -- What waits for tokens may fit now. Who has the state in hand is just looking.
        update endpoint_states set open_at = 'epoch' where ctid = any (array(
          select ctid from endpoint_states where endpoint_id = v_endpoint.id and open_at > _now() and open_for = 'tokens' for no key update skip locked));
        if found then
          perform pg_notify('penstock', 'ready:' || l.kind) from lanes l where l.endpoint_id = v_endpoint.id;
        end if;
      end if;
      perform _spend(v_endpoint, v_lease.started_at, 0, v_more);
    end if;
  end if;
  perform _book(_record(array[v_lease], array[p_units], false, coalesce(p_options ->> 'variant', 'standard'), p_options -> 'details'));
  perform _wake_waiting(array[v_lease.tenant_id]);
end
$$;
comment on function penstock.record_usage(jsonb, bigint, text, bigint, uuid, text, jsonb) is
  'What an attempt (p_task_id, p_worker_id, p_lease) or a tenant''s action used, as {"requests", "input_tokens", …}; priced at once where its provider has prices. Options: variant, provider, details.';

create or replace function penstock._settle(p_leases penstock.leases[], p_is_success boolean, p_stopped penstock.leases[])
returns void language plpgsql set search_path = penstock, pg_temp set enable_seqscan = off set jit = off as $$
declare
  v_leases leases[] := array(select l from unnest(p_leases || p_stopped) as l where l.is_gated);
  v_silent leases[];
  v_holds holds[];
  v_bookings booking[] := '{}';
begin
  if cardinality(v_leases) = 0 then
    return;
  end if;
  if p_is_success then
    -- Whoever reported nothing used what was estimated.
    v_silent := array(select l from unnest(p_leases) as l where l.is_gated and l.usage is null);
    if cardinality(v_silent) > 0 then
      v_bookings := _record(v_silent, array(
        select coalesce(t.units, '{}') from unnest(v_silent) with ordinality as l
        cross join lateral (select x.units from tasks x where x.job_id = l.job_id and x.id = l.task_id offset 0) as t order by l.ordinality), true, 'standard', null);
    end if;
  end if;
  with gone as (
    update holds h set settled_at = _now(), status = case when h.spent = '{}' then 'released' else 'committed' end
    from unnest(v_leases) as l where h.task_id = l.task_id and h.lease = l.lease and h.status = 'held' returning h as hold
  )
  select array_agg(g.hold) into v_holds from gone g;
  v_bookings := v_bookings || array(select b from unnest(v_holds) as h cross join lateral unnest(_freed(h)) as b);
  perform _book(v_bookings);
  if v_holds is not null then
    perform _wake_waiting(array(select distinct h.tenant_id from unnest(v_holds) as h));
  end if;
  -- A place is free again for whoever waits for one.
  perform pg_notify('penstock', 'ready:' || x.kind) from (
    select distinct m.kind from (select distinct l.lane_id from unnest(v_leases) as l) as l join lanes n on n.id = l.lane_id
    join endpoints e on e.id = n.endpoint_id join lanes m on m.endpoint_id = e.id
    where e.concurrency is not null and exists (select from ready r where r.lane_id = m.id)) as x;
end
$$;
comment on function penstock._settle(penstock.leases[], boolean, penstock.leases[]) is
  'Attempts have ended: a success commits what was reported, or else its estimate; everything else (and what was stopped meanwhile) commits only what was reported. The rest is given back. Once per transaction, so that accounts are locked in their order.';

create or replace function penstock._wake_waiting(p_tenant_ids uuid[])
returns void language sql set search_path = penstock, pg_temp as $$
  select _wake(p_tenant_ids, 10)
$$;
comment on function penstock._wake_waiting(uuid[]) is 'Something was given back, or there is more to use: queues what waited for it, as far as it fits.';

create or replace function penstock._wake(p_tenant_ids uuid[], p_depth integer)
returns integer language plpgsql set search_path = penstock, pg_temp as $$
declare
  v_line record;
  v_left numeric;
  v_need numeric;
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
      join jobs j on j.id = d.job_id and j.finished_at is null) as w
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
    -- The first ones, as far as there is room for them; a few that are too large are passed by, as they are by new work.
    -- The claim decides.
    for v_task in
      select p.ctid as tid, t.units, l.provider from parked p
      join tasks t on t.job_id = p.job_id and t.id = p.task_id join lanes l on l.id = p.lane_id
      where p.tenant_id = v_line.tenant_id and p.waits_for = v_line.waits_for and p.job_id = coalesce(v_line.job_id, p.job_id)
      order by p.job_id, p.task_id limit 500
    loop
      v_need := case when v_line.waits_for in ('budget', 'cost') then coalesce(_estimated_cost(v_task.provider, v_line.tenant_id, v_task.units), 0)
        else coalesce((_whole_units(v_task.units, v_task.provider is not null) ->> v_line.waits_for)::numeric, 0) end;
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
comment on function penstock._wake(uuid[], integer) is
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
    cross join lateral _size(t.units, e.default_tokens) as z
    where p.tenant_id = any (v_tenants) and p.waits_for in ('price', 'limit') and p.until = 'infinity' and (
      p.waits_for = 'price' and (_has_price(l.provider, p.tenant_id, _now())
        or not exists (select from jobs j where j.id = p.job_id and j.budget is not null)
          and not exists (select from _limits(p.tenant_id, _now()) as c where c.meter = 'cost'))
      or p.waits_for = 'limit' and z.requests <= coalesce(least(e.requests_per_minute, e.requests_per_hour, s.requests_limit), z.requests)
        and z.tokens <= coalesce(least(e.tokens_per_minute, e.tokens_per_hour, s.tokens_limit), z.tokens))
    limit 500 for no key update of p skip locked));
  return _wake(v_tenants, 100);
end
$$;
comment on function penstock._wake_missed() is 'Looks for tasks that were set aside although there is room for them by now, and queues them.';

create or replace function penstock.set_meter(p_name text, p_values jsonb default '{}')
returns void language plpgsql security definer set search_path = penstock, pg_temp as $$
begin
  perform _check_fields(p_values, array['period', 'mode', 'comment'], 'meter');
  if exists (select from meters where name = p_name and period <> p_values ->> 'period' and p_values ->> 'period' in ('day', 'month', 'total')) and exists (select from accounts where meter = p_name) then
    -- What is set aside ends in the period it began in, and usage is added up by it.
    perform _refuse(409, 'meter_in_use', format('%s have been counted: their period stays as it is', p_name), '{"field": "period"}', 'Make another meter.');
  end if;
  insert into meters as m (name, period, mode, comment)
  values (p_name, coalesce(p_values ->> 'period', 'month'), coalesce(p_values ->> 'mode', 'enforce'), coalesce(p_values ->> 'comment', ''))
  on conflict (name) do update set period = coalesce(p_values ->> 'period', m.period), mode = coalesce(p_values ->> 'mode', m.mode),
    comment = coalesce(p_values ->> 'comment', m.comment);
  perform _audit(null, 'meter.changed', null, 'meter:' || p_name, p_values);
  perform _wake_waiting(array(select id from tenants t where exists (select from parked p where p.tenant_id = t.id and p.waits_for = p_name)));
exception when integrity_constraint_violation then
  perform _refuse(422, 'invalid_meter', 'a meter is not well formed: ' || left(sqlerrm, 200));
end
$$;
comment on function penstock.set_meter(text, jsonb) is 'Makes or changes a meter: period (day, month, total), mode (observe, enforce), comment.';

create or replace function penstock.set_plan(p_name text, p_values jsonb default '{}')
returns void language plpgsql security definer set search_path = penstock, pg_temp as $$
begin
  perform _check_fields(p_values, array['title', 'comment', 'limits', 'features', 'price', 'currency', 'weight', 'is_active', 'position'], 'plan');
  if jsonb_typeof(coalesce(p_values -> 'limits', '{}')) <> 'object' then
    perform _refuse(422, 'invalid_plan', 'limits is an object of meters and amounts', '{"field": "limits"}');
  end if;
  perform _check_units(jsonb_strip_nulls(coalesce(p_values -> 'limits', '{}')) - 'cost', 'limits');
  if jsonb_typeof(p_values #> '{limits,cost}') not in ('number', 'null') or (p_values #> '{limits,cost}')::numeric < 0
     or p_values ->> 'price' in ('NaN', 'Infinity') then
    perform _refuse(422, 'invalid_plan', 'a price and a limit of costs are amounts of money', '{"field": "limits.cost"}');
  end if;
  insert into plans (name, title) values (p_name, coalesce(p_values ->> 'title', p_name)) on conflict (name) do nothing;
  update plans set title = coalesce(p_values ->> 'title', title), comment = coalesce(p_values ->> 'comment', comment),
    limits = coalesce(p_values -> 'limits', limits), price = coalesce((p_values ->> 'price')::numeric, price),
    currency = coalesce(p_values ->> 'currency', currency), weight = coalesce((p_values ->> 'weight')::real, weight),
    features = case when p_values ? 'features' then array(select jsonb_array_elements_text(p_values -> 'features')) else features end,
    is_active = coalesce((p_values ->> 'is_active')::boolean, is_active), position = coalesce((p_values ->> 'position')::integer, position)
  where name = p_name;
  perform _audit(null, 'plan.changed', null, 'plan:' || p_name, p_values);
  perform _wake_waiting(array(select id from tenants where plan = p_name));
exception when integrity_constraint_violation or data_exception then
  perform _refuse(422, 'invalid_plan', 'a plan is not well formed: ' || left(sqlerrm, 200));
end
$$;
comment on function penstock.set_plan(text, jsonb) is
  'Makes or changes a plan: title, comment, limits {meter: amount or null}, features, price, currency, weight, is_active, position. Its tenants have the new limits at once.';

create or replace function penstock.set_tenant_plan(p_tenant_id uuid, p_plan text)
returns void language plpgsql security definer set search_path = penstock, pg_temp as $$
begin
  if p_plan is not null and not exists (select from plans where name = p_plan and is_active) then
    perform _refuse(404, 'unknown_plan', format('there is no plan %L', left(p_plan, 100)));
  end if;
  update tenants set plan = p_plan, weight = coalesce((select weight from plans where name = p_plan), weight) where id = p_tenant_id;
  if not found then
    perform _refuse(404, 'unknown_tenant', 'there is no such tenant');
  end if;
  perform _audit(p_tenant_id, 'tenant.plan_set', null, 'tenant:' || p_tenant_id, jsonb_build_object('plan', p_plan));
  perform _wake_waiting(array[p_tenant_id]);
end
$$;
comment on function penstock.set_tenant_plan(uuid, text) is 'Puts a tenant on a plan (null: none, no limits), with the plan''s share of every lane. What was used in the period stays used.';

create or replace function penstock.set_limit(p_tenant_id uuid, p_meter text, p_amount numeric, p_is_own boolean default true)
returns void language plpgsql security definer set search_path = penstock, pg_temp as $$
begin
  if not exists (select from tenants where id = p_tenant_id) then
    perform _refuse(404, 'unknown_tenant', 'there is no such tenant');
  end if;
  if not exists (select from meters where name = p_meter) then
    perform _refuse(422, 'unknown_meter', format('there is no meter %L', left(p_meter, 100)), '{"field": "p_meter"}');
  end if;
  if p_amount < 0 or p_amount = 'NaN' or p_amount > 1e15 then
    perform _refuse(422, 'invalid_limit', 'a limit is 0 to 10^15, or null for none', '{"field": "p_amount"}');
  end if;
  if p_is_own then
    insert into tenant_limits (tenant_id, meter, amount) values (p_tenant_id, p_meter, p_amount)
    on conflict (tenant_id, meter) do update set amount = excluded.amount;
  else
    delete from tenant_limits where tenant_id = p_tenant_id and meter = p_meter;
  end if;
  perform _audit(p_tenant_id, 'limit.set', null, 'meter:' || p_meter, jsonb_build_object('amount', p_amount, 'is_own', p_is_own));
  perform _wake_waiting(array[p_tenant_id]);
end
$$;
comment on function penstock.set_limit(uuid, text, numeric, boolean) is
  'A tenant''s own limit of a meter in place of its plan''s (null: none); with p_is_own false the plan''s holds again. A limit below what is used is legal and stops new work.';

create or replace function penstock.add_allowance(
  p_tenant_id uuid, p_meter text, p_amount numeric, p_source text default 'override', p_expires_on date default null,
  p_reason text default null, p_key text default null)
returns uuid language plpgsql security definer set search_path = penstock, pg_temp as $$
declare
  v_id uuid;
begin
  if not exists (select from tenants where id = p_tenant_id) then
    perform _refuse(404, 'unknown_tenant', 'there is no such tenant');
  end if;
  if not exists (select from meters where name = p_meter) then
    perform _refuse(422, 'unknown_meter', format('there is no meter %L', left(p_meter, 100)), '{"field": "p_meter"}');
  end if;
  if p_amount is null or p_amount = 'NaN' or not (p_amount > 0 and p_amount <= 1e15) then
    perform _refuse(422, 'invalid_limit', 'an allowance is more than 0 and at most 10^15', '{"field": "p_amount"}');
  end if;
  insert into allowances (tenant_id, meter, amount, expires_on, source, reason, key, created_at)
  values (p_tenant_id, p_meter, p_amount, p_expires_on, p_source, left(p_reason, 1000), p_key, _now())
  on conflict (tenant_id, key) where key is not null do nothing returning id into v_id;
  if v_id is null then
    select id into v_id from allowances where tenant_id = p_tenant_id and key = p_key and meter = p_meter and amount = p_amount;
    if v_id is null then
      perform _refuse(409, 'idempotency_key_reused', 'this key was used for another allowance');
    end if;
    return v_id;
  end if;
  perform _audit(p_tenant_id, 'allowance.added', null, 'meter:' || p_meter,
    jsonb_build_object('amount', p_amount, 'source', p_source, 'expires_on', p_expires_on, 'reason', p_reason));
  perform _wake_waiting(array[p_tenant_id]);
  return v_id;
exception when check_violation then
  perform _refuse(422, 'invalid_allowance', 'source is override, with an expiry date, or purchase');
end
$$;
comment on function penstock.add_allowance(uuid, text, numeric, text, date, text, text) is
  'Lets a tenant use more of a meter: an override until p_expires_on (that day included), or a purchase. The same p_key counts once.';

create or replace function penstock.reset_quota(p_tenant_id uuid, p_meter text, p_reason text default null)
returns numeric language plpgsql security definer set search_path = penstock, pg_temp as $$
declare
  v_period date := (_period(p_meter, _now())).starts;
  v_account accounts;
begin
  if v_period is null then
    perform _refuse(422, 'unknown_meter', format('there is no meter %L', left(p_meter, 100)), '{"field": "p_meter"}');
  end if;
  if not exists (select from tenants where id = p_tenant_id) then
    perform _refuse(404, 'unknown_tenant', 'there is no such tenant');
  end if;
  v_account := _locked_account(p_tenant_id, null, p_meter, v_period, true);
  if v_account.used <> 0 then
    -- As a line of its own: what was used before stays on record.
    perform _book(_note_usage(p_tenant_id, 'reset', jsonb_build_object(p_meter, -v_account.used), null, null, jsonb_build_object('reason', left(p_reason, 1000))));
  end if;
  perform _audit(p_tenant_id, 'quota.reset', null, 'meter:' || p_meter, jsonb_build_object('used', v_account.used, 'reason', p_reason));
  perform _wake_waiting(array[p_tenant_id]);
  return v_account.used;
end
$$;
comment on function penstock.reset_quota(uuid, text, text) is 'Starts a tenant''s count of a meter again at nothing; returns what had been used. What is set aside stays.';

create or replace function penstock.get_usage_status(p_tenant_id uuid default null)
returns jsonb language plpgsql stable security definer set search_path = penstock, pg_temp as $$
declare
  v_tenant_id uuid := case when p_tenant_id is null then _caller_tenant(null) else p_tenant_id end;
  v_now timestamptz := _now();
  v_plan plans;
  v_usage jsonb;
begin
  if not (_is_service() or v_tenant_id in (select my_tenants())) or not exists (select from tenants where id = v_tenant_id) then
    perform _refuse(403, 'forbidden', 'you may not do this in this tenant');
  end if;
  select p.* into v_plan from tenants t join plans p on p.name = t.plan where t.id = v_tenant_id;
  select jsonb_object_agg(m.name, jsonb_build_object('used', coalesce(a.used, 0), 'held', coalesce(a.held, 0), 'limit', l.amount,
      'left', case when l.amount is not null then greatest(0, l.amount - coalesce(a.used + a.held, 0)) end,
      'percent', round(100 * coalesce(a.used, 0) / nullif(l.amount, 0), 1), 'mode', l.mode, 'period', m.period,
      'resets_at', case when isfinite(p.resets_at) then p.resets_at end) order by m.name)
  into v_usage
  from meters m cross join lateral _period(m.name, v_now) as p
  left join _limits(v_tenant_id, v_now) as l on l.meter = m.name
  left join accounts a on a.tenant_id = v_tenant_id and a.job_id is null and a.meter = m.name and a.period = p.starts
  where l.meter is not null or a.meter is not null;
  return jsonb_build_object('tenant_id', v_tenant_id, 'plan', v_plan.name, 'features', coalesce(to_jsonb(v_plan.features), '[]'),
    'current_period', jsonb_build_object('start', date_trunc('month', v_now at time zone 'utc')::date,
      'end', (date_trunc('month', v_now at time zone 'utc') + interval '1 month')::date),
    'usage', coalesce(v_usage, '{}'),
    'over_limit', exists (select from jsonb_each(v_usage) as u where (u.value ->> 'used')::numeric >= (u.value ->> 'limit')::numeric));
end
$$;
comment on function penstock.get_usage_status(uuid) is
  'A tenant''s plan, and what of each meter it has used, holds and has left in the present period. One''s own tenant, or any for the service.';

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

create or replace function penstock._compact()
returns void language sql set search_path = penstock, pg_temp as $$
  with gone as (
    delete from usage_sums where ctid = any (array(select ctid from usage_sums where is_fresh limit 10000 for update skip locked)) returning *
  )
  insert into usage_sums as s (tenant_id, action, day, meter, amount, is_fresh)
  select tenant_id, action, day, meter, sum(amount), false from gone group by 1, 2, 3, 4 order by 1, 3, 2, 4
  on conflict (tenant_id, day, action, meter) where not is_fresh do update set amount = s.amount + excluded.amount;
  with gone as (
    delete from cost_sums where ctid = any (array(select ctid from cost_sums where is_fresh limit 10000 for update skip locked)) returning *
  )
  insert into cost_sums as s (tenant_id, day, provider, cost_type, amount, unit_count, lines, is_fresh)
  select tenant_id, day, provider, cost_type, sum(amount), sum(unit_count), sum(lines), false from gone group by 1, 2, 3, 4 order by 1, 2, 3, 4
  on conflict (tenant_id, day, provider, cost_type) where not is_fresh
  do update set amount = s.amount + excluded.amount, unit_count = s.unit_count + excluded.unit_count, lines = s.lines + excluded.lines
$$;
comment on function penstock._compact() is 'Adds up what was recorded since the last time.';
