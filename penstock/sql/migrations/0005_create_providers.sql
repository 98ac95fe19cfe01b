-- phase: expand
-- Providers: what may be called, how often and for how much, and what they answered.

create table penstock.endpoints (
  id integer generated always as identity primary key,
  provider text not null check (provider ~ '^[a-z0-9][a-z0-9_.-]{0,99}$'),
  endpoint text not null check (endpoint ~ '^[A-Za-z0-9][A-Za-z0-9_.:/-]{0,98}$'),
  name text not null generated always as (provider || '/' || endpoint) stored,
  tenant_id uuid references penstock.tenants (id) on delete cascade,
  status text not null default 'active' check (status in ('active', 'disabled', 'maintenance')),
  requests_per_minute bigint check (requests_per_minute between 0 and 1000000000),
  requests_per_hour bigint check (requests_per_hour between 0 and 1000000000),
  tokens_per_minute bigint check (tokens_per_minute between 0 and 1000000000000),
  tokens_per_hour bigint check (tokens_per_hour between 0 and 1000000000000),
  concurrency integer check (concurrency between 0 and 1000000),
  default_tokens bigint not null default 1000 check (default_tokens between 0 and 1000000000),
  backpressure_threshold real check (backpressure_threshold between 0 and 1),
  backpressure_delay_seconds real check (backpressure_delay_seconds between 0 and 86400),
  depth_limit integer check (depth_limit between 0 and 100000000),
  features text[] not null default '{}',
  changed_at timestamptz not null,
  unique nulls not distinct (tenant_id, provider, endpoint)
);
create index endpoints_name on penstock.endpoints (name);
create index endpoints_tenant on penstock.endpoints (tenant_id) where tenant_id is not null;
comment on table penstock.endpoints is 'Provider endpoints with their limits (null: none). A tenant''s own row wins over the one for all.';
comment on column penstock.endpoints.default_tokens is 'The estimate for a task that does not say how many tokens it needs.';
comment on column penstock.endpoints.depth_limit is 'With so many tasks waiting, more are refused; null: never.';

create table penstock.endpoint_states (
  endpoint_id integer primary key references penstock.endpoints (id) on delete cascade,
  open_at timestamptz not null default 'epoch',
  open_for text,
  closed_until timestamptz not null default 'epoch',
  closed_reason text,
  pace real not null default 1 check (pace > 0 and pace <= 1),
  paced_at timestamptz not null default 'epoch',
  requests_limit bigint,
  tokens_limit bigint,
  told_at timestamptz not null default 'epoch',
  refusals integer not null default 0,
  refused_at timestamptz
) with (fillfactor = 50);
comment on table penstock.endpoint_states is 'What is known of an endpoint at the moment. Who admits work locks this row.';
comment on column penstock.endpoint_states.open_at is 'Its windows are full until then.';
comment on column penstock.endpoint_states.closed_until is 'The provider asked to wait until then; infinity: it must be opened by hand.';
comment on column penstock.endpoint_states.pace is 'Which part of its limits is used since the last refusal; grows back by itself.';
comment on column penstock.endpoint_states.requests_limit is 'What the provider itself says its limit is, where that is less than ours.';
comment on column penstock.endpoint_states.told_at is 'When it last said so. An hour later it counts no more.';

create table penstock.spent (
  endpoint_id integer not null references penstock.endpoints (id) on delete cascade,
  width smallint not null check (width in (1, 60)),
  slot bigint not null,
  requests bigint not null,
  tokens bigint not null,
  primary key (endpoint_id, width, slot)
) with (fillfactor = 50);
comment on table penstock.spent is 'What was admitted: slots of a quarter of a second for the minute''s window (width 1), and of a minute for the hour''s (60).';

create table penstock.calls (
  id uuid primary key default penstock._uuid7(),
  endpoint_id integer not null references penstock.endpoints (id) on delete cascade,
  key text,
  tokens bigint not null,
  granted_at timestamptz not null,
  expires_at timestamptz not null
);
create unique index calls_key on penstock.calls (endpoint_id, key) where key is not null;
create index calls_endpoint on penstock.calls (endpoint_id, granted_at);
comment on table penstock.calls is 'Capacity taken outside a claim with acquire_api_capacity; a call that is never released expires.';

create table penstock.provider_events (
  id bigint generated always as identity primary key,
  at timestamptz not null,
  endpoint_id integer not null,
  tenant_id uuid,
  event text not null check (event in ('refused', 'exhausted', 'opened', 'changed')),
  details jsonb not null default '{}'
);
create index provider_events_endpoint on penstock.provider_events (endpoint_id, id);
comment on table penstock.provider_events is 'What providers refused, and who changed their limits. Append-only.';

-- A lane of its own for a tenant with limits of its own, and for work that must be admitted first.
alter table penstock.lanes add column tenant_id uuid, add column endpoint_id integer, add column is_gated boolean not null default false;
alter table penstock.lanes drop constraint lanes_kind_provider_key;
alter table penstock.lanes add constraint lanes_key unique nulls not distinct (tenant_id, kind, provider, is_gated);
create index lanes_provider on penstock.lanes (provider);
create index lanes_endpoint on penstock.lanes (endpoint_id);
comment on column penstock.lanes.tenant_id is 'The tenant whose own endpoint this is; null: for all.';
comment on column penstock.lanes.is_gated is 'Its tasks name a provider or units: limits, quotas and budgets decide at the claim.';

alter table penstock.leases add column is_gated boolean not null default false, add column usage jsonb;
create index leases_gated on penstock.leases (lane_id) where is_gated;
comment on column penstock.leases.usage is 'What the attempt has reported so far.';

alter table penstock.parked add column waits_for text;
create index parked_waits on penstock.parked (tenant_id, waits_for, job_id, task_id) where waits_for is not null;
comment on column penstock.parked.waits_for is 'The meter whose quota has no room for it; budget, limit or price.';

alter table penstock.tasks add column route jsonb;
comment on column penstock.tasks.route is 'What it asked of a provider instead of naming one, and what was chosen for which reason.';
alter type penstock.task_spec add attribute route jsonb;

alter table penstock.endpoints enable row level security;
alter table penstock.endpoint_states enable row level security;
alter table penstock.spent enable row level security;
alter table penstock.calls enable row level security;
alter table penstock.provider_events enable row level security;

drop function if exists penstock.claim_tasks(text, integer, text[], integer);
drop function if exists penstock._lane(text, text);
