-- Bills: what providers billed, from their usage exports. Comparing it with the ledger shows what the
-- estimates of lost attempts were worth, and corrects them. Lock order: see claim.sql.

create or replace function penstock.import_bill(p_provider text, p_lines jsonb)
returns integer language plpgsql security definer set search_path = penstock, pg_temp as $$
declare
  v_line record;
  v_count integer;
begin
  if p_provider is null or p_provider !~ '^[a-z0-9][a-z0-9_.-]{0,99}$' then
    perform _refuse(422, 'invalid_provider',
      format('p_provider must be the part of a provider''s name before the slash, like openai (got %L)',
        left(p_provider, 200)), '{"field": "p_provider"}');
  end if;
  if jsonb_typeof(p_lines) is distinct from 'array'
     or jsonb_array_length(p_lines) not between 1 and 100000 then
    perform _refuse(422, 'invalid_bill', 'p_lines must be an array of 1 to 100000 objects with day, item, '
      'amount and currency', '{"field": "p_lines"}');
  end if;
  begin
    select b.n - 1 as n, b.currency, b.day into v_line from (
      select x.*, row_number() over () as n
      from jsonb_to_recordset(p_lines) as x(day date, item text, amount numeric, currency text)) as b
    where b.day is null or b.amount is null or b.amount = 'NaN' or abs(b.amount) >= 1e12
      or not _is_storable_time(b.day) or length(b.item) > 200 or not _is_clean(b.item)
      or _base_rate(b.currency, b.day + 1) is null
    limit 1;
    if found then
      perform _refuse(422, 'invalid_bill',
        format('line %s needs a day, an amount, a clean item of at most 200 characters and a currency that '
          'has an exchange rate on that day', v_line.n), jsonb_build_object('line', v_line.n));
    end if;
  exception when data_exception then
    perform _refuse(422, 'invalid_bill', 'invalid line: ' || left(sqlerrm, 200));
  end;
  -- One import of a provider at a time: each replaces the days that it has lines for.
  perform pg_advisory_xact_lock(hashtextextended('penstock.bill:' || p_provider, 0));
  delete from bill_lines where provider = p_provider and day in (
    select x.day from jsonb_to_recordset(p_lines) as x(day date));
  insert into bill_lines (provider, day, item, amount, currency, base_amount, imported_at)
  select p_provider, x.day, coalesce(x.item, ''), sum(x.amount), x.currency,
    sum(x.amount) * _base_rate(x.currency, x.day + 1), _now()
  from jsonb_to_recordset(p_lines) as x(day date, item text, amount numeric, currency text)
  group by x.day, coalesce(x.item, ''), x.currency;
  get diagnostics v_count = row_count;
  perform _audit(null, 'bill.imported', null, 'provider:' || p_provider,
    jsonb_build_object('lines', v_count));
  return v_count;
end
$$;
comment on function penstock.import_bill(text, jsonb) is
  'Stores lines of a provider''s usage export: [{"day", "item", "amount", "currency"}]. Lines with the same '
  'day, item and currency are added up. An import replaces earlier ones for the days that it has lines for. '
  'Returns the number of lines stored.';

create or replace function penstock.cost_differences(p_month date)
returns table (provider text, booked numeric, estimated numeric, billed numeric, difference numeric)
language sql stable security definer set search_path = penstock, pg_temp as $$
  with month as (
    select date_trunc('month', p_month::timestamp)::date as starts,
      (date_trunc('month', p_month::timestamp) + interval '1 month')::date as ends
  ), entry as (
    -- A correction belongs to the month of the entry that it corrects.
    select split_part(e.provider, '/', 1) as provider, e.is_estimate, e.base_amount + coalesce(
      (select sum(c.base_amount) from cost_entries c where c.corrects = e.id), 0) as amount
    from cost_entries e cross join month m
    where e.at >= m.starts::timestamp at time zone 'utc' and e.at < m.ends::timestamp at time zone 'utc'
      and e.corrects is null and e.provider is not null
  ), booked as (
    select e.provider, sum(e.amount) as amount, sum(e.amount) filter (where e.is_estimate) as estimated
    from entry e group by 1
  ), billed as (
    select b.provider, sum(b.base_amount) as amount from bill_lines b cross join month m
    where b.day >= m.starts and b.day < m.ends group by 1
  )
  select provider, coalesce(k.amount, 0), coalesce(k.estimated, 0), b.amount, coalesce(k.amount, 0) - b.amount
  from booked k full join billed b using (provider) order by 1
$$;
comment on function penstock.cost_differences(date) is
  'For each provider, in the base currency, what the ledger has for a month (UTC), how much of that is '
  'estimated, what the provider billed, and the ledger minus the bill (null: no bill was imported).';

create or replace function penstock.reconcile_costs(p_provider text, p_month date)
returns jsonb language plpgsql security definer set search_path = penstock, pg_temp as $$
-- Lock order: see claim.sql.
declare
  v_starts timestamptz := date_trunc('month', p_month::timestamp) at time zone 'utc';
  v_ends timestamptz := (date_trunc('month', p_month::timestamp) + interval '1 month') at time zone 'utc';
  v_report record;
  v_share numeric;
  v_corrected cost_entries[];
begin
  -- Serializes reconciliations of a provider, and waits for an import.
  perform pg_advisory_xact_lock(hashtextextended('penstock.bill:' || p_provider, 0));
  select * into v_report from cost_differences(p_month) as d where d.provider = p_provider;
  if v_report.billed is null then
    perform _refuse(409, 'no_bill', format('no bill of %L was imported for %s', left(p_provider, 200),
      to_char(v_starts at time zone 'utc', 'YYYY-MM')), '{}', 'Import one with penstock.import_bill.');
  end if;
  -- The share of the estimates that the bill has room for beside the reported costs.
  v_share := case when v_report.estimated > 0 then greatest(0, least(1,
    (v_report.billed - v_report.booked + v_report.estimated) / v_report.estimated)) else 1 end;
  if v_share < 1 then
    v_corrected := _correct_estimates(p_provider, v_starts, v_ends, v_share);
    perform _book(array(
      select row(e.tenant_id, a.job_id, 'cost',
        case when a.job_id is null then (_period('cost', e.at)).starts else 'epoch' end, e.base_amount,
        0)::booking
      from unnest(v_corrected) as e cross join lateral (
        select null::uuid as job_id
        union all select j.id from jobs j where j.id = e.job_id) as a));
    perform _wake_waiting(array(select distinct e.tenant_id from unnest(v_corrected) as e));
    perform _audit(null, 'costs.reconciled', null, 'provider:' || p_provider,
      jsonb_build_object('month', to_char(v_starts at time zone 'utc', 'YYYY-MM'),
        'corrections', coalesce(cardinality(v_corrected), 0)));
    select * into v_report from cost_differences(p_month) as d where d.provider = p_provider;
  end if;
  return to_jsonb(v_report) || jsonb_build_object('corrections', coalesce(cardinality(v_corrected), 0));
end
$$;
comment on function penstock.reconcile_costs(text, date) is
  'Corrects the estimates of a provider in a month (UTC) by the bill that was imported: all by the same '
  'share, down to what the bill leaves beside the reported costs, never below 0 and never up. Returns the '
  'line of cost_differences after that, with the number of corrections. Repeating it changes nothing.';

create or replace function penstock._correct_estimates(
  p_provider text, p_starts timestamptz, p_ends timestamptz, p_share numeric)
returns penstock.cost_entries[] language plpgsql set search_path = penstock, pg_temp as $$
declare
  v_corrections cost_entries[];
begin
  -- All locks of _corrected_entry, in order: there may be more estimates than PostgreSQL can hold locks.
  perform pg_advisory_xact_lock(hashtextextended('penstock.cost:' || b.n, 0))
  from (select n from generate_series(0, 255) as n order by n) as b;
  with estimate as (
    select e.*, e.amount + c.amount as open, e.base_amount + c.base_amount as base_open from cost_entries e
    cross join lateral (
      select coalesce(sum(x.amount), 0) as amount, coalesce(sum(x.base_amount), 0) as base_amount
      from cost_entries x where x.corrects = e.id) as c
    where e.is_estimate and e.at >= p_starts and e.at < p_ends
      and split_part(e.provider, '/', 1) = p_provider
  ), corrected as (
    insert into cost_entries (at, tenant_id, job_id, task_id, provider, cost_type, meter, variant, amount,
      currency, base_amount, corrects, reason, user_id)
    select _now(), e.tenant_id, e.job_id, e.task_id, e.provider, e.cost_type, e.meter, e.variant,
      -e.open * (1 - p_share), e.currency, -e.base_open * (1 - p_share), e.id,
      'reconciled with the provider''s bill', e.user_id
    from estimate e where e.open > 0 returning *
  )
  select array_agg(c::cost_entries) into v_corrections from corrected c;
  return v_corrections;
end
$$;
comment on function penstock._correct_estimates(text, timestamptz, timestamptz, numeric) is
  'Adds a correction to each estimate of a provider in this time that leaves the given share of it, and '
  'returns the corrections.';

create or replace function penstock.set_own_price(
  p_provider text, p_meter text, p_amount numeric, p_options jsonb default '{}',
  p_tenant_id uuid default null)
returns bigint language plpgsql security definer set search_path = penstock, pg_temp as $$
declare
  v_tenant_id uuid := coalesce(p_tenant_id, _own_tenant());
begin
  perform _require_role(v_tenant_id, array['owner']);
  -- The operator sets the price of calls with the operator's key. A tenant's own limits are not enough: the
  -- tenant must pay with its own key.
  if not exists (
    select from endpoints e join provider_keys k on k.tenant_id = e.tenant_id
      and k.provider = split_part(e.name, '/', 1)
    where e.name = p_provider and e.tenant_id = v_tenant_id) then
    perform _refuse(422, 'unknown_provider',
      format('this tenant has no provider %L with a key of its own', left(p_provider, 200)),
      jsonb_build_object('provider', left(p_provider, 200)),
      'The operator sets the prices of shared providers.');
  end if;
  return set_price(p_provider, p_meter, p_amount,
    case jsonb_typeof(p_options) when 'object' then p_options || jsonb_build_object('tenant_id', v_tenant_id)
      else p_options end);
end
$$;
comment on function penstock.set_own_price(text, text, numeric, jsonb, uuid) is
  'Adds a price at a provider that the tenant pays with its own key, as an owner of the tenant. Options: see '
  'set_price.';
