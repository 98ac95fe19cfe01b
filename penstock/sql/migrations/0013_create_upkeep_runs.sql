-- phase: expand
-- Upkeep: when it last ran, and the keys of usage reports that may be sent twice.

create table penstock.upkeep_runs (
  id boolean primary key default true check (id),
  ran_at timestamptz not null,
  away_from timestamptz not null default '-infinity',
  away_until timestamptz not null default '-infinity'
);
comment on table penstock.upkeep_runs is 'One row: when leases were last checked for expiry, and the last time in which nothing could check them.';
comment on column penstock.upkeep_runs.away_until is 'Workers get a moment after this to extend leases that expired while the database was away.';

create table penstock.usage_keys (
  tenant_id uuid not null,
  key text not null check (length(key) between 1 and 255),
  at timestamptz not null,
  primary key (tenant_id, key)
);
create index usage_keys_at on penstock.usage_keys (at);
comment on table penstock.usage_keys is 'Idempotency keys of usage reports: a report that is sent again counts once. Kept for a day.';

alter table penstock.upkeep_runs enable row level security;
alter table penstock.usage_keys enable row level security;
