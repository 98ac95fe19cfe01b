-- phase: expand
-- Who does the work, and what starts by the clock.

create table penstock.workers (
  id text primary key check (length(id) between 1 and 200),
  host text not null,
  pid integer not null,
  kinds text[] not null,
  concurrency integer not null,
  version text not null,
  state text not null default 'running' check (state in ('running', 'draining', 'stopped')),
  running integer not null default 0,
  started_at timestamptz not null,
  beat_at timestamptz not null
) with (fillfactor = 50);
comment on table penstock.workers is 'One row per worker process, refreshed with its heartbeat.';

create table penstock.schedules (
  id uuid primary key default penstock._uuid7(),
  tenant_id uuid not null references penstock.tenants (id) on delete cascade,
  name text not null check (length(name) between 1 and 200),
  cron text not null check (length(cron) between 1 and 200),
  timezone text not null default 'UTC',
  job_type text not null,
  params jsonb not null default '{}',
  tasks jsonb,
  options jsonb not null default '{}',
  missed text not null default 'once' check (missed in ('skip', 'once', 'all')),
  is_enabled boolean not null default true,
  next_run_at timestamptz not null,
  last_run_at timestamptz,
  last_job_id uuid,
  created_at timestamptz not null,
  unique (tenant_id, name)
);
create index schedules_due on penstock.schedules (next_run_at) where is_enabled;
comment on table penstock.schedules is 'Jobs that start by the clock. One run per tick, whoever fires it.';
comment on column penstock.schedules.missed is 'After an outage: skip the missed ticks, run once for all of them, or run each.';

alter table penstock.workers enable row level security;
alter table penstock.schedules enable row level security;
