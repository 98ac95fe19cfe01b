-- Costs: what things cost, what was spent, and what a job may spend.
-- A price is for one unit and holds from its date until the next one of the same thing, so there are no overlaps; a
-- null amount ends it. Amounts are exact decimals: units times price, never rounded.

create or replace function penstock._base_rate(p_currency text, p_at timestamptz)
returns numeric language sql stable security definer set search_path = penstock, pg_temp as $$
  select case when p_currency = (_setting('base_currency')) #>> '{}' then 1 else (
    select rate from exchange_rates where currency = p_currency and valid_from <= p_at order by valid_from desc limit 1) end
$$;
comment on function penstock._base_rate(text, timestamptz) is 'What one unit of a currency was worth in the base currency; null: not known.';

create or replace function penstock.set_exchange_rate(p_currency text, p_rate numeric, p_valid_from timestamptz default null)
returns void language plpgsql security definer set search_path = penstock, pg_temp as $$
begin
  if p_currency is null or p_currency !~ '^[A-Z]{3}$' or p_currency = (_setting('base_currency')) #>> '{}' then
    perform _refuse(422, 'unknown_currency', 'a currency is three capital letters, and not the base currency', '{"field": "p_currency"}');
  end if;
  if p_rate is null or p_rate = 'NaN' or not (p_rate > 0 and p_rate < 1e12) then
    perform _refuse(422, 'invalid_rate', 'a rate is more than 0, from a date on', '{"field": "p_rate"}');
  end if;
  perform _check_time(p_valid_from, 'p_valid_from');
  insert into exchange_rates (currency, valid_from, rate) values (p_currency, coalesce(p_valid_from, _now()), p_rate)
  on conflict (currency, valid_from) do update set rate = excluded.rate;
  perform _audit(null, 'exchange_rate.set', null, 'currency:' || p_currency, jsonb_build_object('rate', p_rate, 'valid_from', p_valid_from));
end
$$;
comment on function penstock.set_exchange_rate(text, numeric, timestamptz) is 'What one unit of a currency is worth in the base currency, from a date on.';

create or replace function penstock.set_price(p_provider text, p_meter text, p_amount numeric, p_options jsonb default '{}')
returns bigint language plpgsql security definer set search_path = penstock, pg_temp as $$
declare
  v_id bigint;
  v_from timestamptz;
  v_currency text := coalesce(p_options ->> 'currency', (_setting('base_currency')) #>> '{}');
  v_tenant_id uuid;
  v_per numeric;
begin
  perform _check_fields(p_options, array['variant', 'cost_type', 'currency', 'valid_from', 'tenant_id', 'per'], 'price');
  begin
    v_from := coalesce((p_options ->> 'valid_from')::timestamptz, _now());
    v_tenant_id := (p_options ->> 'tenant_id')::uuid;
    v_per := coalesce((p_options ->> 'per')::numeric, 1);
  exception when data_exception then
    perform _refuse(422, 'invalid_price', 'valid_from, tenant_id or per is not right: ' || left(sqlerrm, 200));
  end;
  perform _required_endpoint(p_provider, v_tenant_id);
  if not exists (select from meters where name = p_meter) or p_meter = 'cost' then
    perform _refuse(422, 'unknown_meter', format('there is no meter %L', left(p_meter, 100)), '{"field": "p_meter"}');
  end if;
  if p_amount = 'NaN' or p_amount < 0 or p_amount > 1e12 or v_per not in (1, 10, 100, 1000, 10000, 100000, 1000000, 1000000000) then
    perform _refuse(422, 'invalid_price', 'a price is 0 or more for 1, 1000 or 1000000 units, or null to end it, from a date on');
  end if;
  perform _check_time(v_from, 'valid_from');
  if _base_rate(v_currency, v_from) is null then
    perform _refuse(422, 'unknown_currency', format('there is no exchange rate for %L on that date', left(v_currency, 10)), '{"field": "currency"}',
      'Add it with penstock.set_exchange_rate.');
  end if;
  -- Divided by a power of ten: exact.
  insert into prices (provider, tenant_id, meter, variant, cost_type, amount, currency, valid_from, created_at)
  values (p_provider, v_tenant_id, p_meter, coalesce(p_options ->> 'variant', 'standard'), coalesce(p_options ->> 'cost_type', 'inference'),
    trim_scale(p_amount * (1 / v_per)::numeric(30, 9)), v_currency, v_from, _now())
  on conflict (tenant_id, provider, meter, variant, valid_from) do nothing returning id into v_id;
  if v_id is null then
    perform _refuse(409, 'price_exists', 'there is a price of this from that very moment', '{"field": "valid_from"}', 'Prices are not changed but followed by others.');
  end if;
  perform _audit(v_tenant_id, 'price.set', null, 'provider:' || p_provider, jsonb_build_object('meter', p_meter, 'amount', p_amount) || p_options);
  perform _retry_parked('price', array(select id from lanes where provider = p_provider), greatest(_now(), v_from));
  perform pg_notify('penstock', 'chores');
  return v_id;
exception when check_violation then
  perform _refuse(422, 'invalid_price', 'variant and cost_type are words in lower case');
end
$$;
comment on function penstock.set_price(text, text, numeric, jsonb) is
  'What a unit of a meter costs at a provider from a date on (null: no price any more). Options: per (1, 1000, 1000000), currency, variant, cost_type, valid_from, tenant_id. Earlier work keeps its price.';

create or replace function penstock._price(p_provider text, p_tenant_id uuid, p_meter text, p_variant text, p_at timestamptz)
returns penstock.prices language sql stable set search_path = penstock, pg_temp as $$
  -- The tenant's own before the one for all, the variant's before the standard one.
  select p from prices p
  where p.provider = p_provider and p.meter = p_meter and p.variant in (p_variant, 'standard')
    and (p.tenant_id = p_tenant_id or p.tenant_id is null) and p.valid_from <= p_at
  order by p.tenant_id nulls last, p.variant = p_variant desc, p.valid_from desc limit 1
$$;
comment on function penstock._price(text, uuid, text, text, timestamptz) is 'The price that holds at a moment.';

create or replace function penstock._priced(p_provider text, p_tenant_id uuid, p_units jsonb, p_variant text, p_at timestamptz)
returns table (meter text, unit_count numeric, cost_type text, amount numeric, currency text, base_amount numeric, price_id bigint)
language sql stable set search_path = penstock, pg_temp as $$
  select u.key, u.value::numeric, (x.p).cost_type, u.value::numeric * (x.p).amount, (x.p).currency,
    u.value::numeric * (x.p).amount * _base_rate((x.p).currency, p_at), (x.p).id
  from jsonb_each_text(p_units) as u
  cross join lateral (
    select coalesce(
      _price(p_provider, p_tenant_id, u.key, p_variant, p_at),
      -- Tokens of which it is not said whether they come or go cost the dearer of the two.
      (select m from (values ('input_tokens'), ('output_tokens')) as d(name)
       cross join lateral _price(p_provider, p_tenant_id, d.name, p_variant, p_at) as m
       where u.key = 'tokens' and not p_units ? 'input_tokens' and not p_units ? 'output_tokens' and m.amount is not null
       order by m.amount * _base_rate(m.currency, p_at) desc limit 1)) as p) as x
  where (x.p).amount is not null and u.value::numeric > 0
$$;
comment on function penstock._priced(text, uuid, jsonb, text, timestamptz) is 'What units cost at a provider, line by line.';

create or replace function penstock._has_price(p_provider text, p_tenant_id uuid, p_at timestamptz)
returns boolean language sql stable set search_path = penstock, pg_temp as $$
  select exists (
    select from (select distinct meter, variant from prices where provider = p_provider) as d
    where (_price(p_provider, p_tenant_id, d.meter, d.variant, p_at)).amount is not null)
$$;
comment on function penstock._has_price(text, uuid, timestamptz) is 'Whether a provider has any price now.';

create or replace function penstock._estimated_cost(p_provider text, p_tenant_id uuid, p_units jsonb)
returns numeric language sql stable set search_path = penstock, pg_temp as $$
  select case when p_provider is null then 0 when not _has_price(p_provider, p_tenant_id, _now()) then null else (
    select coalesce(sum(p.base_amount), 0)
    from _priced(p_provider, p_tenant_id, _whole_units(
      case when p_units ?| array['tokens', 'input_tokens', 'output_tokens'] then p_units
        -- No word about tokens where tokens cost: the endpoint's estimate.
        when exists (select from prices x where x.provider = p_provider and x.meter in ('tokens', 'input_tokens', 'output_tokens'))
        then coalesce(p_units, '{}') || jsonb_build_object('tokens', (_endpoint(p_provider, p_tenant_id)).default_tokens)
        else coalesce(p_units, '{}') end, true), 'standard', _now()) as p) end
$$;
comment on function penstock._estimated_cost(text, uuid, jsonb) is 'What a task will cost at most, by its units; null: its provider has no price.';

create or replace function penstock._add_up_costs()
returns trigger language plpgsql security definer set search_path = penstock, pg_temp as $$
begin
  insert into cost_sums (tenant_id, day, provider, cost_type, amount, unit_count, lines)
  select s.tenant_id, (n.at at time zone 'utc')::date, n.provider, n.cost_type, sum(n.base_amount), sum(coalesce(n.unit_count, 0)), count(*)
  from added n cross join lateral (select n.tenant_id union all select null) as s
  group by 1, 2, 3, 4;
  return null;
end
$$;
comment on function penstock._add_up_costs() is 'Every line of the ledger is in the sums, in the same transaction.';

create or replace trigger cost_entries_sums after insert on penstock.cost_entries
  referencing new table as added for each statement execute function penstock._add_up_costs();

create or replace function penstock._keep_ledger()
returns trigger language plpgsql set search_path = penstock, pg_temp as $$
begin
  perform _refuse(409, 'append_only', 'the ledger is only added to', '{}', 'Record a correction.');
end
$$;
comment on function penstock._keep_ledger() is 'Nobody changes what is in the ledger.';

create or replace trigger cost_entries_kept before update or delete on penstock.cost_entries
  for each statement execute function penstock._keep_ledger();

create or replace function penstock.record_cost(
  p_cost_type text, p_amount numeric, p_currency text default null, p_task_id bigint default null, p_worker_id text default null,
  p_lease bigint default null, p_tenant_id uuid default null, p_options jsonb default '{}')
returns bigint language plpgsql security definer set search_path = penstock, pg_temp as $$
declare
  v_now timestamptz := _now();
  v_currency text := coalesce(p_currency, (select c.currency from cost_entries c where c.id::text = p_options ->> 'corrects'), (_setting('base_currency')) #>> '{}');
  v_rate numeric;
  v_lease leases;
  v_entry cost_entries;
  v_line cost_entries;
  v_hold holds;
  v_bookings booking[];
begin
  perform _check_fields(p_options, array['provider', 'job_id', 'meter', 'variant', 'unit_count', 'started_at', 'ended_at', 'key', 'corrects', 'reason'], 'cost');
  if p_cost_type is null or p_cost_type !~ '^[a-z][a-z0-9_]{0,62}$' then
    perform _refuse(422, 'invalid_cost', 'a cost type is a word in lower case: inference, render, storage, …', '{"field": "p_cost_type"}');
  end if;
  begin
    v_entry := jsonb_populate_record(v_entry, p_options);
  exception when data_exception then
    perform _refuse(422, 'invalid_cost', 'an option is not right: ' || left(sqlerrm, 200));
  end;
  perform _check_time(v_entry.started_at, 'started_at');
  perform _check_time(v_entry.ended_at, 'ended_at');
  if p_amount is null or p_amount = 'NaN' or abs(p_amount) > 1e12 or p_amount < 0 and v_entry.corrects is null
     or v_entry.unit_count = 'NaN' or v_entry.unit_count < 0 and v_entry.corrects is null then
    perform _refuse(422, 'invalid_cost', 'an amount is 0 or more; only a correction may take back', '{"field": "p_amount"}');
  end if;
  v_rate := _base_rate(v_currency, v_now);
  if v_rate is null then
    perform _refuse(422, 'unknown_currency', format('there is no exchange rate for %L', left(v_currency, 10)), '{"field": "p_currency"}',
      'Add it with penstock.set_exchange_rate.');
  end if;
  if p_task_id is not null and v_entry.corrects is not null then
    perform _refuse(422, 'invalid_cost', 'a correction is of a line, not of an attempt', '{"field": "corrects"}');
  end if;
  if p_task_id is not null then
    perform _require_lease(p_task_id, p_worker_id, p_lease);
    select * into v_lease from leases where task_id = p_task_id;
    v_entry.tenant_id := v_lease.tenant_id;
    v_entry.job_id := v_lease.job_id;
    v_entry.provider := coalesce(v_entry.provider, (select provider from lanes where id = v_lease.lane_id));
  elsif v_entry.corrects is not null then
    -- Two corrections of one line come one after the other.
    select * into v_line from cost_entries where id = v_entry.corrects for key share;
    if not found or v_line.tenant_id <> coalesce(p_tenant_id, v_line.tenant_id) then
      perform _refuse(404, 'unknown_cost', 'there is no such line to correct');
    end if;
    perform pg_advisory_xact_lock(hashtextextended('penstock.cost:' || v_line.id, 0));
    if v_currency <> v_line.currency then
      perform _refuse(422, 'invalid_cost', format('the line is in %s', v_line.currency), '{"field": "p_currency"}');
    end if;
    -- One that was recorded before, with the same key, is not taken back a second time: see below.
    if v_line.amount + p_amount + coalesce((select sum(c.amount) from cost_entries c where c.corrects = v_line.id), 0) < 0
       and not exists (select from cost_entries c where c.tenant_id = v_line.tenant_id and c.key = v_entry.key) then
      perform _refuse(422, 'invalid_cost', 'a correction takes back at most what the line has', '{"field": "p_amount"}');
    end if;
    -- At the rate of its day: taken back in full, nothing is left.
    v_rate := case when v_line.amount = 0 then v_rate else v_line.base_amount / v_line.amount end;
    v_entry.tenant_id := v_line.tenant_id;
    v_entry.job_id := v_line.job_id;
    v_entry.provider := coalesce(v_entry.provider, v_line.provider);
    v_lease.task_id := v_line.task_id;
  else
    v_entry.tenant_id := p_tenant_id;
    if not exists (select from tenants where id = p_tenant_id) then
      perform _refuse(404, 'unknown_tenant', 'there is no such tenant');
    end if;
    if v_entry.job_id is not null and not exists (select from jobs where id = v_entry.job_id and tenant_id = p_tenant_id) then
      perform _refuse(404, 'unknown_job', 'there is no such job');
    end if;
  end if;
  insert into cost_entries (at, tenant_id, job_id, task_id, lease, provider, cost_type, meter, variant, unit_count, amount, currency,
    base_amount, corrects, started_at, ended_at, key, reason)
  values (v_now, v_entry.tenant_id, v_entry.job_id, v_lease.task_id, v_lease.lease, v_entry.provider, p_cost_type, v_entry.meter, v_entry.variant,
    v_entry.unit_count, p_amount, v_currency, p_amount * v_rate, v_entry.corrects, v_entry.started_at, v_entry.ended_at, v_entry.key, left(v_entry.reason, 1000))
  on conflict (tenant_id, key) where key is not null do nothing returning id into v_entry.id;
  if v_entry.id is null then
    select id into v_entry.id from cost_entries where tenant_id = v_entry.tenant_id and key = v_entry.key and amount = p_amount and currency = v_currency;
    if not found then
      perform _refuse(409, 'idempotency_key_reused', 'this key was used for another cost');
    end if;
    return v_entry.id;
  end if;
  v_bookings := array[row(v_entry.tenant_id, null, 'cost', (_period('cost', v_now)).starts, p_amount * v_rate, 0)::booking];
  -- The ledger outlives the jobs.
  if exists (select from jobs where id = v_entry.job_id) then
    v_bookings := v_bookings || row(v_entry.tenant_id, v_entry.job_id, 'cost', date 'epoch', p_amount * v_rate, 0)::booking;
  end if;
  if v_lease.lease is not null then
    select * into v_hold from holds where task_id = v_lease.task_id and lease = v_lease.lease and status = 'held' for update;
    if v_hold.amounts ? 'cost' then
      update holds set spent = _sum_units(spent, jsonb_build_object('cost', p_amount * v_rate)) where id = v_hold.id;
      v_bookings := v_bookings || array(
        select row(v_hold.tenant_id, s.job_id, 'cost', case when s.job_id is null then (_period('cost', v_hold.at)).starts else 'epoch' end, 0,
          greatest(0, (v_hold.amounts ->> 'cost')::numeric - coalesce((v_hold.spent ->> 'cost')::numeric, 0) - p_amount * v_rate)
          - greatest(0, (v_hold.amounts ->> 'cost')::numeric - coalesce((v_hold.spent ->> 'cost')::numeric, 0)))::booking
        from (select null::uuid as job_id union all select v_hold.job_id where v_hold.has_budget) as s);
    end if;
  end if;
  perform _book(v_bookings);
  if p_amount < 0 then
    perform _wake_waiting(array[v_entry.tenant_id]);
  end if;
  return v_entry.id;
end
$$;
comment on function penstock.record_cost(text, numeric, text, bigint, text, bigint, uuid, jsonb) is
  'Adds a line to the ledger, of an attempt (p_task_id, p_worker_id, p_lease) or of a tenant. Options: provider, job_id, meter, variant, unit_count, started_at, ended_at, key (counts once), corrects (the line it corrects; may be negative), reason.';

create or replace function penstock.set_budget(p_job_id uuid, p_amount numeric)
returns void language plpgsql security definer set search_path = penstock, pg_temp as $$
declare
  v_job jobs := _locked_job(p_job_id);
begin
  if p_amount = 'NaN' or p_amount < 0 or p_amount > 1e12 then
    perform _refuse(422, 'invalid_budget', 'a budget is 0 or more, or null for none', '{"field": "p_amount"}');
  end if;
  if v_job.status in ('completed', 'failed', 'canceled') then
    perform _refuse(409, 'job_ended', format('the job is %s', v_job.status), jsonb_build_object('status', v_job.status));
  end if;
  update jobs set budget = p_amount where id = p_job_id;
  perform _audit(v_job.tenant_id, 'job.budget_set', p_job_id, 'job:' || p_job_id, jsonb_build_object('from', v_job.budget, 'to', p_amount));
  if v_job.status = 'paused' and v_job.status_reason like 'budget:%' then
    perform resume_job(p_job_id);
  end if;
  -- The first of what waits for it; the rest, and what somebody else has in hand, is woken by upkeep.
  perform _wake_waiting(array[v_job.tenant_id]);
  perform pg_notify('penstock', 'chores');
end
$$;
comment on function penstock.set_budget(uuid, numeric) is 'Changes what a job may cost, in the base currency (null: anything). A job that paused for want of budget goes on.';

create or replace function penstock._pause_spent_jobs()
returns void language plpgsql set search_path = penstock, pg_temp as $$
declare
  v_job jobs;
  v_used numeric;
  v_limited record;
begin
  for v_job in
    select j.* from jobs j
    join accounts a on a.tenant_id = j.tenant_id and a.job_id = j.id and a.meter = 'cost'
    where j.budget is not null and j.finished_at is null and j.status in ('queued', 'running') and a.held = 0
      and exists (select from parked p where p.tenant_id = j.tenant_id and p.waits_for = 'budget' and p.job_id = j.id)
  loop
    -- What stands in line has nothing set aside before its claim, which will find room for it or not.
    continue when _ready_task(v_job) is not null or exists (select from leases l where l.job_id = v_job.id);
    -- Nothing of it runs any more that could give something back: it waits for a decision.
    -- An account that is locked is just being moved, and so is a job.
    select a.used into v_used from jobs j
    join accounts a on a.tenant_id = j.tenant_id and a.job_id = j.id and a.meter = 'cost'
    where j.id = v_job.id and j.budget = v_job.budget and j.status in ('queued', 'running') and a.held = 0
    for no key update of j, a skip locked;
    continue when not found;
    -- There may be room that nobody has told it of: see _wake_missed.
    perform _wake_fitting(array[v_job.tenant_id], 100);
    continue when _ready_task(v_job) is not null;
    perform pause_job(v_job.id, format('budget: %s of %s %s spent, and the next task does not fit', trim_scale(v_used), trim_scale(v_job.budget),
      (_setting('base_currency')) #>> '{}'));
  end loop;
  for v_limited in
    select j.id, x.reason from jobs j cross join lateral (
      select p.reason from meters m cross join lateral (
        select y.reason from parked y where y.tenant_id = j.tenant_id and y.waits_for = m.name and y.job_id = j.id limit 1) as p limit 1) as x
    where j.on_limit = 'pause' and j.finished_at is null and j.status in ('queued', 'running')
    for no key update of j skip locked
  loop
    perform pause_job(v_limited.id, v_limited.reason);
  end loop;
end
$$;
comment on function penstock._pause_spent_jobs() is 'Pauses jobs whose budget has no room for any of their tasks, and those that pause for want of quota.';
