-- phase: expand
-- Plans, meters, quotas, holds, usage.

create table penstock.meters (
  name text primary key check (name ~ '^[a-z][a-z0-9_]{0,62}$'),
  period text not null default 'month' check (period in ('day', 'month', 'total')),
  mode text not null default 'enforce' check (mode in ('observe', 'enforce')),
  comment text not null default ''
);
comment on table penstock.meters is 'The things that are counted.';
comment on column penstock.meters.mode is 'What happens over a limit: it is only recorded (observe), or work is held back (enforce).';

create table penstock.plans (
  name text primary key check (name ~ '^[a-z][a-z0-9_-]{0,62}$'),
  title text not null check (length(title) between 1 and 200),
  comment text not null default '',
  limits jsonb not null default '{}' check (jsonb_typeof(limits) = 'object'),
  features text[] not null default '{}',
  price numeric not null default 0 check (price >= 0),
  currency text not null default 'USD' check (currency ~ '^[A-Z]{3}$'),
  weight real not null default 1 check (weight > 0 and weight <= 1000),
  is_active boolean not null default true,
  position integer not null default 0
);
comment on table penstock.plans is 'What a tenant may pay for. Limits per meter; a meter that is null or missing is not limited.';

alter table penstock.tenants add column plan text references penstock.plans (name);
comment on column penstock.tenants.plan is 'Null: no limits.';

create table penstock.tenant_limits (
  tenant_id uuid not null references penstock.tenants (id) on delete cascade,
  meter text not null references penstock.meters (name),
  amount numeric check (amount >= 0),
  primary key (tenant_id, meter)
);
comment on table penstock.tenant_limits is 'A tenant''s own limit, in place of its plan''s; null: none.';

create table penstock.allowances (
  id uuid primary key default penstock._uuid7(),
  tenant_id uuid not null references penstock.tenants (id) on delete cascade,
  meter text not null references penstock.meters (name),
  amount numeric not null check (amount > 0),
  expires_on date,
  source text not null check (source in ('override', 'purchase')),
  reason text check (length(reason) <= 1000),
  key text check (length(key) between 1 and 255),
  created_at timestamptz not null,
  check (source <> 'override' or expires_on is not null)
);
create index allowances_tenant on penstock.allowances (tenant_id, meter);
create unique index allowances_key on penstock.allowances (tenant_id, key) where key is not null;
comment on table penstock.allowances is 'What a tenant may use beyond its limit: an override until its expiry day (included), or a purchase.';

create table penstock.accounts (
  tenant_id uuid not null,
  job_id uuid,
  meter text not null,
  period date not null,
  used numeric not null default 0,
  held numeric not null default 0 check (held >= 0),
  unique nulls not distinct (tenant_id, meter, period, job_id)
) with (fillfactor = 50);
create index accounts_job on penstock.accounts (job_id) where job_id is not null;
comment on table penstock.accounts is 'What a tenant, or one job, has used and set aside in a period. The sum of usage and holds, kept; check_accounts compares.';

create table penstock.holds (
  id uuid primary key default penstock._uuid7(),
  tenant_id uuid not null,
  job_id uuid,
  task_id bigint,
  lease bigint,
  key text check (length(key) between 1 and 255),
  action text not null,
  amounts jsonb not null,
  spent jsonb not null default '{}',
  has_budget boolean not null default false,
  status text not null default 'held' check (status in ('held', 'committed', 'released', 'expired')),
  at timestamptz not null,
  expires_at timestamptz,
  settled_at timestamptz,
  check ((lease is null) = (expires_at is not null))
);
create unique index holds_lease on penstock.holds (task_id, lease) where lease is not null;
create unique index holds_key on penstock.holds (tenant_id, key) where key is not null;
create index holds_live on penstock.holds (tenant_id) where status = 'held';
create index holds_due on penstock.holds (expires_at) where status = 'held' and expires_at is not null;
create index holds_settled on penstock.holds (settled_at) where settled_at is not null;
comment on table penstock.holds is 'Amounts set aside for an attempt, or for a caller, until they are committed or released.';

create table penstock.usage_events (
  id bigint generated always as identity primary key,
  at timestamptz not null,
  tenant_id uuid not null,
  action text not null,
  job_id uuid,
  task_id bigint,
  lease bigint,
  hold_id uuid,
  provider text,
  units jsonb not null,
  is_estimate boolean not null default false,
  details jsonb not null default '{}'
);
create index usage_events_tenant on penstock.usage_events (tenant_id, id);
create index usage_events_at on penstock.usage_events using brin (at);
create index usage_events_provider on penstock.usage_events (provider, id) where provider is not null;
create index usage_events_hold on penstock.usage_events (hold_id) where hold_id is not null;
comment on table penstock.usage_events is 'Every use of anything metered, one line per call. Append-only.';
comment on column penstock.usage_events.is_estimate is 'The attempt reported nothing: its estimate stands.';

create table penstock.usage_sums (
  tenant_id uuid not null,
  action text not null,
  day date not null,
  meter text not null,
  amount numeric not null,
  is_fresh boolean not null default true
) with (fillfactor = 80);
create unique index usage_sums_key on penstock.usage_sums (tenant_id, day, action, meter) where not is_fresh;
create index usage_sums_fresh on penstock.usage_sums (day) where is_fresh;
create index usage_sums_day on penstock.usage_sums (tenant_id, day);
comment on table penstock.usage_sums is 'Usage per tenant, action and UTC day. Who records adds a fresh row, so that nobody waits; upkeep adds these up.';

alter table penstock.jobs add column budget numeric check (budget >= 0),
  add column on_limit text not null default 'hold' check (on_limit in ('hold', 'refuse'));
create index jobs_budget on penstock.jobs (tenant_id, id) where budget is not null and finished_at is null;
comment on column penstock.jobs.budget is 'What it may cost, in the base currency. It pauses before it costs more.';
comment on column penstock.jobs.on_limit is 'What becomes of a task for which the tenant''s quota has no room: it is held back, or fails.';

create type penstock.booking as (tenant_id uuid, job_id uuid, meter text, period date, used numeric, held numeric);
comment on type penstock.booking is 'By how much an account moves.';

alter table penstock.meters enable row level security;
alter table penstock.plans enable row level security;
alter table penstock.tenant_limits enable row level security;
alter table penstock.allowances enable row level security;
alter table penstock.accounts enable row level security;
alter table penstock.holds enable row level security;
alter table penstock.usage_events enable row level security;
alter table penstock.usage_sums enable row level security;
