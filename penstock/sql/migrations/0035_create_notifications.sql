-- phase: expand
-- Failures and streaks of failures; who is notified of what; the messages and their delivery.

create table penstock.failures (
  id bigint generated always as identity primary key,
  at timestamptz not null,
  tenant_id uuid not null references penstock.tenants (id) on delete cascade,
  scope text not null check (length(scope) between 1 and 200),
  subject text check (length(subject) <= 200),
  code text not null check (length(code) between 1 and 100),
  message text not null check (length(message) between 1 and 2000),
  job_id uuid,
  task_id bigint,
  details jsonb not null default '{}'
);
create index failures_scope on penstock.failures (tenant_id, scope, id desc);
comment on table penstock.failures is 'Failures that record_outcome was told of. Append-only.';
comment on column penstock.failures.scope is 'What the outcomes belong to, such as event:42. Failures in a row are counted per scope.';

create table penstock.streaks (
  tenant_id uuid not null references penstock.tenants (id) on delete cascade,
  scope text not null,
  failures integer not null,
  began_at timestamptz not null,
  last_at timestamptz not null,
  alerted_at timestamptz,
  primary key (tenant_id, scope)
) with (fillfactor = 70);
comment on table penstock.streaks is 'Failures in a row, per scope; a success deletes the row.';

create table penstock.notification_targets (
  id uuid primary key default penstock._uuid7(),
  tenant_id uuid not null references penstock.tenants (id) on delete cascade,
  channel text not null check (channel in ('email', 'webhook')),
  address text not null check (length(address) between 3 and 2000),
  events text[] not null check (cardinality(events) between 1 and 20),
  is_enabled boolean not null default true,
  disabled_reason text,
  created_by text not null,
  created_at timestamptz not null,
  unique (tenant_id, channel, address)
);
comment on table penstock.notification_targets is 'Addresses that a tenant''s notifications go to, with the events each wants.';

create table penstock.notification_secrets (
  target_id uuid primary key references penstock.notification_targets (id) on delete cascade,
  tenant_id uuid not null references penstock.tenants (id) on delete cascade,
  secret text not null,
  previous text,
  previous_until timestamptz
);
create index notification_secrets_tenant on penstock.notification_secrets (tenant_id);
comment on table penstock.notification_secrets is 'Secrets that sign webhooks. Only the service reads them. After a rotation both secrets sign for a day.';

create table penstock.notifications (
  id uuid primary key default penstock._uuid7(),
  tenant_id uuid not null references penstock.tenants (id) on delete cascade,
  target_id uuid references penstock.notification_targets (id) on delete set null,
  channel text not null,
  address text not null,
  event text not null,
  key text,
  subject text not null check (length(subject) <= 500),
  body text not null check (length(body) <= 10000),
  details jsonb not null default '{}',
  status text not null default 'queued' check (status in ('queued', 'sending', 'sent', 'failed')),
  attempts smallint not null default 0,
  next_try_at timestamptz not null,
  last_error text,
  created_at timestamptz not null,
  sent_at timestamptz
);
create unique index notifications_key on penstock.notifications (tenant_id, channel, address, key)
  where key is not null;
create index notifications_due on penstock.notifications (tenant_id, next_try_at)
  where status in ('queued', 'sending');
create index notifications_target on penstock.notifications (target_id) where target_id is not null;
create index notifications_list on penstock.notifications (tenant_id, id);
create index notifications_created on penstock.notifications (created_at);
comment on table penstock.notifications is 'Messages to targets: queued in the transaction that causes them, delivered at least once.';
comment on column penstock.notifications.next_try_at is 'When a sender may take it; while it is being sent, when the sender counts as dead.';

alter table penstock.failures enable row level security;
alter table penstock.streaks enable row level security;
alter table penstock.notification_targets enable row level security;
alter table penstock.notification_secrets enable row level security;
alter table penstock.notifications enable row level security;
