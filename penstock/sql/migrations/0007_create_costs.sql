-- phase: expand
-- Money: prices and exchange rates with dates, and a ledger that is only added to.

create table penstock.exchange_rates (
  currency text not null check (currency ~ '^[A-Z]{3}$'),
  valid_from timestamptz not null,
  rate numeric not null check (rate > 0),
  primary key (currency, valid_from)
);
comment on table penstock.exchange_rates is 'What one unit of a currency is worth in the base currency, from a date on.';

create table penstock.prices (
  id bigint generated always as identity primary key,
  provider text not null check (length(provider) between 1 and 200),
  tenant_id uuid references penstock.tenants (id) on delete cascade,
  meter text not null references penstock.meters (name),
  variant text not null default 'standard' check (variant ~ '^[a-z][a-z0-9_]{0,62}$'),
  cost_type text not null default 'inference' check (cost_type ~ '^[a-z][a-z0-9_]{0,62}$'),
  amount numeric check (amount >= 0),
  currency text not null check (currency ~ '^[A-Z]{3}$'),
  valid_from timestamptz not null,
  created_at timestamptz not null
);
create unique index prices_key on penstock.prices (tenant_id, provider, meter, variant, valid_from) nulls not distinct;
create index prices_provider on penstock.prices (provider, meter);
comment on table penstock.prices is 'What one unit costs from a date on, until the next price of the same thing; amount null: no price from then on.';

create table penstock.cost_entries (
  id bigint generated always as identity primary key,
  at timestamptz not null,
  tenant_id uuid not null,
  job_id uuid,
  task_id bigint,
  lease bigint,
  provider text,
  cost_type text not null,
  meter text,
  variant text,
  unit_count numeric,
  amount numeric not null,
  currency text not null,
  base_amount numeric not null,
  price_id bigint,
  corrects bigint references penstock.cost_entries (id),
  started_at timestamptz,
  ended_at timestamptz,
  key text check (length(key) between 1 and 255),
  reason text check (length(reason) <= 1000)
);
create index cost_entries_job on penstock.cost_entries (job_id, id) where job_id is not null;
create index cost_entries_tenant on penstock.cost_entries (tenant_id, id);
create index cost_entries_at on penstock.cost_entries using brin (at);
create index cost_entries_corrects on penstock.cost_entries (corrects) where corrects is not null;
create unique index cost_entries_key on penstock.cost_entries (tenant_id, key) where key is not null;
comment on table penstock.cost_entries is 'The ledger of money: one line for each cost. Append-only; a correction is a line of its own.';
comment on column penstock.cost_entries.base_amount is 'The amount in the base currency, at the rate of its day.';

create table penstock.cost_sums (
  tenant_id uuid,
  day date not null,
  provider text,
  cost_type text not null,
  amount numeric not null,
  unit_count numeric not null,
  lines bigint not null,
  is_fresh boolean not null default true
) with (fillfactor = 80);
create unique index cost_sums_key on penstock.cost_sums (tenant_id, day, provider, cost_type) nulls not distinct where not is_fresh;
create index cost_sums_fresh on penstock.cost_sums (day) where is_fresh;
create index cost_sums_day on penstock.cost_sums (tenant_id, day);
comment on table penstock.cost_sums is 'Costs per day, provider and type in the base currency, of each tenant and (tenant null) of all. Fresh rows are added up by upkeep.';

alter table penstock.exchange_rates enable row level security;
alter table penstock.prices enable row level security;
alter table penstock.cost_entries enable row level security;
alter table penstock.cost_sums enable row level security;
