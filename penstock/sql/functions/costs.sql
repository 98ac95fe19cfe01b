-- Costs: prices, the ledger of costs, and job budgets. A price is for one unit and is valid
-- until the next price of the same provider, meter, variant and tenant, so prices never overlap;
-- a null amount ends a price. Amounts are exact decimals: units times price, never rounded.

create or replace function penstock._base_rate(p_currency text, p_at timestamptz)
returns numeric language sql stable security definer set search_path = penstock, pg_temp as $$
  select case when p_currency = (_setting('base_currency')) #>> '{}' then 1 else (
    select rate from exchange_rates where currency = p_currency and valid_from <= p_at
      order by valid_from desc limit 1) end
$$;
comment on function penstock._base_rate(text, timestamptz) is
  'The value of one unit of a currency in the base currency at this time; null if unknown.';

create or replace function penstock.set_exchange_rate(p_currency text, p_rate numeric,
  p_valid_from timestamptz default null)
returns void language plpgsql security definer set search_path = penstock, pg_temp as $$
begin
  if p_currency is null or p_currency !~ '^[A-Z]{3}$'
    or p_currency = (_setting('base_currency')) #>> '{}' then
    perform _refuse(422, 'unknown_currency',
      format('p_currency must be three capital letters and not the base currency (got %L)',
        left(p_currency, 10)),
      '{"field": "p_currency"}');
  end if;
  if p_rate is null or p_rate = 'NaN' or not (p_rate > 0 and p_rate < 1e12) then
    perform _refuse(422, 'invalid_rate', format('p_rate must be greater than 0 and less than 10^12 (got %s)',
      coalesce(p_rate::text, 'null')), '{"field": "p_rate"}');
  end if;
  perform _check_time(p_valid_from, 'p_valid_from');
  insert into exchange_rates (currency, valid_from, rate)
    values (p_currency, coalesce(p_valid_from, _now()), p_rate)
  on conflict (currency, valid_from) do update set rate = excluded.rate;
  perform _audit(null, 'exchange_rate.set', null, 'currency:' || p_currency,
    jsonb_build_object('rate', p_rate, 'valid_from', p_valid_from));
end
$$;
comment on function penstock.set_exchange_rate(text, numeric, timestamptz) is
  'Sets the value of one unit of a currency in the base currency, valid from p_valid_from (default: now).';

create or replace function penstock._check_price(
  p_amount numeric, p_per numeric, p_currency text, p_from timestamptz)
returns void language plpgsql stable set search_path = penstock, pg_temp as $$
begin
  if p_amount = 'NaN' or p_amount < 0 or p_amount > 1e12
    or p_per not in (1, 10, 100, 1000, 10000, 100000, 1000000, 1000000000) then
    perform _refuse(422, 'invalid_price',
      format('p_amount must be between 0 and 10^12, or null to end the price '
      '(got %s), and per must be 1, 10, 100, 1000, 10000, 100000, 1000000 or 1000000000 (got %s)',
      coalesce(p_amount::text, 'null'), p_per));
  end if;
  perform _check_time(p_from, 'valid_from');
  if _base_rate(p_currency, p_from) is null then
    perform _refuse(422, 'unknown_currency',
      format('there is no exchange rate for %L on %s', left(p_currency, 10),
        (p_from at time zone 'utc')::date),
      '{"field": "currency"}', 'Add it with penstock.set_exchange_rate.');
  end if;
end
$$;
comment on function penstock._check_price(numeric, numeric, text, timestamptz) is
  'Rejects a price with an invalid amount, unit or time, or in a currency without an exchange rate.';

create or replace function penstock.set_price(p_provider text, p_meter text, p_amount numeric,
  p_options jsonb default '{}')
returns bigint language plpgsql security definer set search_path = penstock, pg_temp as $$
declare
  v_id bigint;
  v_from timestamptz;
  v_currency text := coalesce(p_options ->> 'currency', (_setting('base_currency')) #>> '{}');
  v_tenant_id uuid;
  v_per numeric;
begin
  perform _check_clean(p_provider, 'p_provider', 'invalid_price');
  perform _check_fields(p_options,
    array['variant', 'cost_type', 'currency', 'valid_from', 'tenant_id', 'per'], 'price');
  begin
    v_from := coalesce((p_options ->> 'valid_from')::timestamptz, _now());
    v_tenant_id := (p_options ->> 'tenant_id')::uuid;
    v_per := coalesce((p_options ->> 'per')::numeric, 1);
  exception when data_exception then
    perform _refuse(422, 'invalid_price', 'invalid valid_from, tenant_id or per: ' || left(sqlerrm, 200));
  end;
  perform _required_endpoint(p_provider, v_tenant_id);
  if not exists (select from meters where name = p_meter) or p_meter = 'cost' then
    perform _refuse(422, 'unknown_meter', format('unknown meter %L', left(p_meter, 100)),
      '{"field": "p_meter"}');
  end if;
  perform _check_price(p_amount, v_per, v_currency, v_from);
  -- A division by a power of ten is exact.
  insert into prices (provider, tenant_id, meter, variant, cost_type, amount, currency, valid_from,
    created_at)
  values (p_provider, v_tenant_id, p_meter, coalesce(p_options ->> 'variant', 'standard'),
    coalesce(p_options ->> 'cost_type', 'inference'),
    trim_scale(p_amount * (1 / v_per)::numeric(30, 9)), v_currency, v_from, _now())
  on conflict (tenant_id, provider, meter, variant, valid_from) do nothing returning id into v_id;
  if v_id is null then
    perform _refuse(409, 'price_exists', 'a price with this valid_from already exists',
      '{"field": "valid_from"}',
      'A price cannot be changed: add one with a later valid_from.');
  end if;
  perform _audit(v_tenant_id, 'price.set', null, 'provider:' || p_provider,
    jsonb_build_object('meter', p_meter, 'amount', p_amount) || p_options);
  perform _retry_parked('price', array(select id from lanes where provider = p_provider),
    greatest(_now(), v_from));
  perform pg_notify('penstock', 'chores');
  return v_id;
exception when check_violation then
  perform _refuse(422, 'invalid_price',
    'variant and cost_type must be lower-case words: ' || left(sqlerrm, 200));
end
$$;
comment on function penstock.set_price(text, text, numeric, jsonb) is
  'Adds the price of a unit of a meter at a provider (null: no price from then on). Options: per (1, 1000, '
  '1000000), currency, variant, cost_type, valid_from, tenant_id. Earlier usage keeps its price.';

create or replace function penstock._price(p_provider text, p_tenant_id uuid, p_meter text, p_variant text,
  p_at timestamptz)
returns penstock.prices language sql stable set search_path = penstock, pg_temp as $$
  -- A tenant's own price wins over the general one, and the price of the variant over the standard one.
  select p from prices p
  where p.provider = p_provider and p.meter = p_meter and p.variant in (p_variant, 'standard')
    and (p.tenant_id = p_tenant_id or p.tenant_id is null) and p.valid_from <= p_at
  order by p.tenant_id nulls last, p.variant = p_variant desc, p.valid_from desc limit 1
$$;
comment on function penstock._price(text, uuid, text, text, timestamptz) is
  'The price that is valid at this time.';

create or replace function penstock._price_units(p_provider text, p_tenant_id uuid, p_units jsonb,
  p_variant text, p_at timestamptz)
returns table (meter text, unit_count numeric, cost_type text, amount numeric, currency text,
  base_amount numeric, price_id bigint)
language sql stable set search_path = penstock, pg_temp as $$
  select u.key, u.value::numeric, (x.p).cost_type, u.value::numeric * (x.p).amount, (x.p).currency,
    u.value::numeric * (x.p).amount * _base_rate((x.p).currency, p_at), (x.p).id
  from jsonb_each_text(p_units) as u
  cross join lateral (
    select coalesce(
      _price(p_provider, p_tenant_id, u.key, p_variant, p_at),
      -- Tokens without a split into input and output cost the higher of the two prices.
      (select m from (values ('input_tokens'), ('output_tokens')) as d(name)
       cross join lateral _price(p_provider, p_tenant_id, d.name, p_variant, p_at) as m
       where u.key = 'tokens' and not p_units ? 'input_tokens' and not p_units ? 'output_tokens'
         and m.amount is not null
       order by m.amount * _base_rate(m.currency, p_at) desc limit 1)) as p) as x
  where (x.p).amount is not null and u.value::numeric > 0
$$;
comment on function penstock._price_units(text, uuid, jsonb, text, timestamptz) is
  'The cost of units at a provider, one row for each meter.';

create or replace function penstock._has_price(p_provider text, p_tenant_id uuid, p_at timestamptz)
returns boolean language sql stable set search_path = penstock, pg_temp as $$
  select exists (
    select from (select distinct meter, variant from prices where provider = p_provider) as d
    where (_price(p_provider, p_tenant_id, d.meter, d.variant, p_at)).amount is not null)
$$;
comment on function penstock._has_price(text, uuid, timestamptz) is
  'Whether a provider has any price at this time.';

create or replace function penstock._add_up_costs()
returns trigger language plpgsql security definer set search_path = penstock, pg_temp as $$
begin
  insert into cost_sums (tenant_id, day, provider, cost_type, amount, unit_count, lines)
  select s.tenant_id, (n.at at time zone 'utc')::date, n.provider, n.cost_type, sum(n.base_amount),
    sum(coalesce(n.unit_count, 0)), count(*)
  from added n cross join lateral (select n.tenant_id union all select null) as s
  group by 1, 2, 3, 4;
  return null;
end
$$;
comment on function penstock._add_up_costs() is
  'Adds new ledger entries to the daily sums, in the same transaction.';

create or replace trigger cost_entries_sums after insert on penstock.cost_entries
  referencing new table as added for each statement execute function penstock._add_up_costs();

create or replace function penstock._keep_ledger()
returns trigger language plpgsql set search_path = penstock, pg_temp as $$
begin
  -- _erase_tenant clears the texts of entries, and _delete_tenant_rows deletes those that another database
  -- has now. Nobody else has the right to update or delete them.
  if tg_op = 'UPDATE' and current_setting('penstock.erasing', true) = 'on'
    or tg_op = 'DELETE' and current_setting('penstock.moving', true) = 'on' then
    return null;
  end if;
  perform _refuse(409, 'append_only', 'ledger entries cannot be changed or deleted', '{}',
    'Record a correction.');
end
$$;
comment on function penstock._keep_ledger() is 'Rejects updates and deletes of ledger entries.';

create or replace trigger cost_entries_kept before update or delete on penstock.cost_entries
  for each statement execute function penstock._keep_ledger();

create or replace function penstock._parse_cost(p_cost_type text, p_amount numeric, p_options jsonb)
returns penstock.cost_entries language plpgsql stable set search_path = penstock, pg_temp as $$
declare
  v_entry cost_entries;
begin
  perform _check_fields(p_options,
    array['provider', 'job_id', 'meter', 'variant', 'unit_count', 'started_at',
    'ended_at', 'key', 'corrects', 'reason'], 'cost');
  if p_cost_type is null or p_cost_type !~ '^[a-z][a-z0-9_]{0,62}$' then
    perform _refuse(422, 'invalid_cost',
      format('p_cost_type must be a lower-case word such as inference, render or storage (got %L)',
        left(p_cost_type, 100)), '{"field": "p_cost_type"}');
  end if;
  begin
    v_entry := jsonb_populate_record(v_entry, p_options);
  exception when data_exception then
    perform _refuse(422, 'invalid_cost', 'invalid option: ' || left(sqlerrm, 200));
  end;
  perform _check_time(v_entry.started_at, 'started_at');
  perform _check_time(v_entry.ended_at, 'ended_at');
  if p_amount is null or p_amount = 'NaN' or abs(p_amount) > 1e12 or p_amount < 0
    and v_entry.corrects is null
     or v_entry.unit_count = 'NaN' or v_entry.unit_count < 0 and v_entry.corrects is null then
    perform _refuse(422, 'invalid_cost',
      format('p_amount (got %s) and unit_count must be 0 or more; only a correction '
      'may be negative', coalesce(p_amount::text, 'null')), '{"field": "p_amount"}');
  end if;
  return v_entry;
end
$$;
comment on function penstock._parse_cost(text, numeric, jsonb) is
  'Checks the arguments of record_cost and reads its options.';

create or replace function penstock._corrected_entry(
  p_correction penstock.cost_entries, p_amount numeric, p_currency text, p_tenant_id uuid)
returns penstock.cost_entries language plpgsql set search_path = penstock, pg_temp as $$
declare
  v_line cost_entries;
begin
  select * into v_line from cost_entries where id = p_correction.corrects for key share;
  if not found or v_line.tenant_id <> coalesce(p_tenant_id, v_line.tenant_id) then
    perform _refuse(404, 'unknown_cost', format('there is no ledger entry %s', p_correction.corrects));
  end if;
  perform _require_active(v_line.tenant_id);
  -- Serializes the corrections of one entry. Of 256 locks, which _correct_estimates takes all.
  perform pg_advisory_xact_lock(hashtextextended('penstock.cost:' || v_line.id % 256, 0));
  if p_currency <> v_line.currency then
    perform _refuse(422, 'invalid_cost',
      format('p_currency must be that of the entry, %s (got %L)', v_line.currency, left(p_currency, 10)),
      '{"field": "p_currency"}');
  end if;
  -- A repeated correction (same key) changes nothing, so it must not be rejected here.
  if v_line.amount + p_amount + coalesce(
    (select sum(c.amount) from cost_entries c where c.corrects = v_line.id), 0) < 0
     and not exists (
       select from cost_entries c where c.tenant_id = v_line.tenant_id and c.key = p_correction.key) then
    perform _refuse(422, 'invalid_cost',
      format('a correction cannot exceed what is left of the entry (got %s)', p_amount),
      '{"field": "p_amount"}');
  end if;
  return v_line;
end
$$;
comment on function penstock._corrected_entry(penstock.cost_entries, numeric, text, uuid) is
  'The ledger entry that a correction is for; raises an error if the correction is not valid.';

create or replace function penstock._book_cost(p_entry penstock.cost_entries)
returns void language plpgsql set search_path = penstock, pg_temp as $$
declare
  v_hold holds;
  v_bookings booking[];
begin
  v_bookings := array[
    row(p_entry.tenant_id, null, 'cost', (_period('cost', p_entry.at)).starts, p_entry.base_amount,
      0)::booking];
  -- Ledger entries outlive their jobs.
  if exists (select from jobs where id = p_entry.job_id) then
    v_bookings := v_bookings
      || row(p_entry.tenant_id, p_entry.job_id, 'cost', date 'epoch', p_entry.base_amount, 0)::booking;
  end if;
  if p_entry.lease is not null then
    select * into v_hold from holds
    where task_id = p_entry.task_id and lease = p_entry.lease and status = 'held' for update;
    if v_hold.amounts ? 'cost' then
      update holds set spent = _sum_units(spent, jsonb_build_object('cost', p_entry.base_amount))
      where id = v_hold.id;
      -- The reservation shrinks by the cost, down to 0.
      v_bookings := v_bookings || array(
        select row(v_hold.tenant_id, s.job_id, 'cost',
          case when s.job_id is null then (_period('cost', v_hold.at)).starts else 'epoch' end, 0,
          greatest(0, h.held - p_entry.base_amount) - greatest(0, h.held))::booking
        from (select null::uuid as job_id union all select v_hold.job_id where v_hold.has_budget) as s
        cross join (
          select (v_hold.amounts ->> 'cost')::numeric
            - coalesce((v_hold.spent ->> 'cost')::numeric, 0) as held)
          as h);
    end if;
  end if;
  perform _book(v_bookings);
end
$$;
comment on function penstock._book_cost(penstock.cost_entries) is
  'Books a cost on the accounts of its tenant and job, and deducts it from the hold of its attempt.';

create or replace function penstock._cost_of_attempt(
  p_entry penstock.cost_entries, p_task_id bigint, p_worker_id text, p_lease bigint)
returns penstock.cost_entries language plpgsql set search_path = penstock, pg_temp as $$
-- Lock order: see claim.sql.
declare
  v_entry cost_entries := p_entry;
  v_lease leases;
begin
  if p_entry.corrects is not null then
    perform _refuse(422, 'invalid_cost', 'a correction cannot name a task', '{"field": "corrects"}');
  end if;
  perform _require_lease(p_task_id, p_worker_id, p_lease);
  select * into v_lease from leases where task_id = p_task_id;
  v_entry.tenant_id := v_lease.tenant_id;
  v_entry.job_id := v_lease.job_id;
  v_entry.task_id := v_lease.task_id;
  v_entry.lease := v_lease.lease;
  v_entry.provider := coalesce(v_entry.provider, (select provider from lanes where id = v_lease.lane_id));
  return v_entry;
end
$$;
comment on function penstock._cost_of_attempt(penstock.cost_entries, bigint, text, bigint) is
  'A cost entry with the task and the provider of an attempt, whose lease is locked.';

create or replace function penstock._cost_of_tenant(p_entry penstock.cost_entries, p_tenant_id uuid)
returns penstock.cost_entries language plpgsql stable set search_path = penstock, pg_temp as $$
declare
  v_entry cost_entries := p_entry;
begin
  perform _require_tenant(p_tenant_id);
  if v_entry.job_id is not null
     and not exists (select from jobs where id = v_entry.job_id and tenant_id = p_tenant_id) then
    perform _refuse(404, 'unknown_job', 'there is no such job');
  end if;
  v_entry.tenant_id := p_tenant_id;
  return v_entry;
end
$$;
comment on function penstock._cost_of_tenant(penstock.cost_entries, uuid) is
  'A cost entry of a tenant outside an attempt; rejects a job of another tenant.';

create or replace function penstock.record_cost(
  p_cost_type text, p_amount numeric, p_currency text default null, p_task_id bigint default null,
  p_worker_id text default null, p_lease bigint default null, p_tenant_id uuid default null,
  p_options jsonb default '{}')
returns bigint language plpgsql security definer set search_path = penstock, pg_temp as $$
declare
  v_now timestamptz := _now();
  v_entry cost_entries := _parse_cost(p_cost_type, p_amount, p_options);
  v_currency text := coalesce(p_currency,
    (select c.currency from cost_entries c where c.id = v_entry.corrects),
    (_setting('base_currency')) #>> '{}');
  v_rate numeric := _base_rate(v_currency, v_now);
  v_line cost_entries;
  v_id bigint;
begin
  if v_rate is null then
    perform _refuse(422, 'unknown_currency',
      format('there is no exchange rate for %L', left(v_currency, 10)),
      '{"field": "p_currency"}', 'Add it with penstock.set_exchange_rate.');
  end if;
  if p_task_id is not null then
    v_entry := _cost_of_attempt(v_entry, p_task_id, p_worker_id, p_lease);
  elsif v_entry.corrects is not null then
    v_line := _corrected_entry(v_entry, p_amount, v_currency, p_tenant_id);
    -- At the rate of the entry's day, so that a full correction leaves 0.
    v_rate := case when v_line.amount = 0 then v_rate else v_line.base_amount / v_line.amount end;
    v_entry.tenant_id := v_line.tenant_id;
    v_entry.job_id := v_line.job_id;
    v_entry.task_id := v_line.task_id;
    v_entry.provider := coalesce(v_entry.provider, v_line.provider);
  else
    v_entry := _cost_of_tenant(v_entry, p_tenant_id);
  end if;
  v_entry.at := v_now;
  v_entry.base_amount := p_amount * v_rate;
  insert into cost_entries (at, tenant_id, job_id, task_id, lease, provider, cost_type, meter, variant,
    unit_count, amount, currency, base_amount, corrects, started_at, ended_at, key, reason, user_id)
  values (v_now, v_entry.tenant_id, v_entry.job_id, v_entry.task_id, v_entry.lease, v_entry.provider,
    p_cost_type, v_entry.meter, v_entry.variant, v_entry.unit_count, p_amount, v_currency,
    v_entry.base_amount, v_entry.corrects, v_entry.started_at, v_entry.ended_at, v_entry.key,
      left(v_entry.reason, 1000),
      coalesce(v_line.user_id, (select j.user_id from jobs j where j.id = v_entry.job_id)))
  on conflict (tenant_id, key) where key is not null do nothing returning id into v_id;
  if v_id is null then
    select id into v_id from cost_entries
    where tenant_id = v_entry.tenant_id and key = v_entry.key and amount = p_amount
      and currency = v_currency;
    if not found then
      perform _refuse(409, 'idempotency_key_reused', 'this key was used for a different cost');
    end if;
    return v_id;
  end if;
  perform _book_cost(v_entry);
  if p_amount < 0 then
    perform _wake_waiting(array[v_entry.tenant_id]);
  end if;
  return v_id;
end
$$;
comment on function penstock.record_cost(text, numeric, text, bigint, text, bigint, uuid, jsonb) is
  'Adds an entry to the cost ledger, for an attempt (p_task_id, p_worker_id, p_lease) or a tenant, and '
  'returns its id. Options: provider, job_id, meter, variant, unit_count, started_at, ended_at, key (the '
  'same key counts once), corrects (the id of the entry that it corrects; the amount may be negative), '
  'reason.';

create or replace function penstock.set_budget(p_job_id uuid, p_amount numeric)
returns void language plpgsql security definer set search_path = penstock, pg_temp as $$
declare
  v_job jobs := _locked_job(p_job_id);
begin
  if p_amount = 'NaN' or p_amount < 0 or p_amount > 1e12 then
    perform _refuse(422, 'invalid_budget',
      format('p_amount must be between 0 and 10^12, or null for no budget (got %s)', p_amount),
        '{"field": "p_amount"}');
  end if;
  if v_job.status in ('completed', 'failed', 'canceled') then
    perform _refuse(409, 'job_ended', format('the job has already ended (%s)', v_job.status),
      jsonb_build_object('status', v_job.status));
  end if;
  update jobs set budget = p_amount where id = p_job_id;
  perform _audit(v_job.tenant_id, 'job.budget_set', p_job_id, 'job:' || p_job_id,
    jsonb_build_object('from', v_job.budget, 'to', p_amount));
  if v_job.status = 'paused' and v_job.paused_for = 'budget' then
    perform resume_job(p_job_id);
  end if;
  -- Queues the first tasks that wait for budget; upkeep queues the others and those that are locked now.
  perform _wake_waiting(array[v_job.tenant_id]);
  perform pg_notify('penstock', 'chores');
end
$$;
comment on function penstock.set_budget(uuid, numeric) is
  'Sets the budget of a job, in the base currency (null: unlimited). A job that was paused by its budget '
  'resumes.';

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
      and exists (select from parked p where p.tenant_id = j.tenant_id and p.waits_for = 'budget'
        and p.job_id = j.id)
  loop
    -- A ready task reserves its cost when it is claimed, so
    -- it may still fit. A running task may release some.
    continue when _ready_task(v_job) is not null or exists (select from leases l where l.job_id = v_job.id);
    -- No task runs that could release budget, so only a user can decide.
    -- Locked accounts and jobs are changing right now and are skipped.
    select a.used into v_used from jobs j
    join accounts a on a.tenant_id = j.tenant_id and a.job_id = j.id and a.meter = 'cost'
    where j.id = v_job.id and j.budget = v_job.budget and j.status in ('queued', 'running') and a.held = 0
    for no key update of j, a skip locked;
    continue when not found;
    -- There may be free budget that no event announced.
    perform _wake_fitting(array[v_job.tenant_id], 100);
    continue when _ready_task(v_job) is not null;
    perform _pause_job(v_job.id,
      format('budget: %s of %s %s spent, and the next task does not fit', trim_scale(v_used),
      trim_scale(v_job.budget), (_setting('base_currency')) #>> '{}'), 'budget');
  end loop;
  for v_limited in
    select j.id, x.reason from jobs j cross join lateral (
      select p.reason from meters m cross join lateral (
        select y.reason from parked y where y.tenant_id = j.tenant_id and y.waits_for = m.name
          and y.job_id = j.id limit 1) as p limit 1) as x
    where j.on_limit = 'pause' and j.finished_at is null and j.status in ('queued', 'running')
    for no key update of j skip locked
  loop
    perform _pause_job(v_limited.id, v_limited.reason, 'quota');
  end loop;
end
$$;
comment on function penstock._pause_spent_jobs() is
  'Pauses jobs whose remaining tasks exceed their budget, and jobs with on_limit = pause whose tenant''s '
  'quota is exhausted.';
