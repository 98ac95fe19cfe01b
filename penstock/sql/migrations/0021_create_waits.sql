-- phase: expand
-- Waiting: a task that waits for a person, an event or a time is parked without a lease, a slot or a connection.
-- Finished steps of a handler are remembered, because a handler that waits runs again from its start.

create table penstock.waits (
  id uuid primary key default penstock._uuid7(),
  tenant_id uuid not null,
  job_id uuid not null,
  task_id bigint not null,
  name text not null check (length(name) between 1 and 200),
  kind text not null check (kind in ('answer', 'sleep')),
  message text check (length(message) <= 2000),
  options jsonb not null default '[]' check (jsonb_typeof(options) = 'array'),
  fields jsonb not null default '{}' check (jsonb_typeof(fields) = 'object'),
  roles text[] not null default '{owner,admin,member}',
  default_option text,
  generation integer not null default 0,
  has_usage boolean not null default false,
  asked_at timestamptz not null,
  until timestamptz not null,
  outcome text check (outcome in ('answered', 'timeout', 'over')),
  option text,
  payload jsonb,
  ended_at timestamptz,
  ended_by text,
  unique (job_id, task_id, name),
  check ((outcome is not null) = (ended_at is not null))
);
create index waits_open on penstock.waits (tenant_id, id) where outcome is null and kind = 'answer';
comment on table penstock.waits is 'What tasks wait for, or waited for: a person''s answer or a time. One row per name and task.';
comment on column penstock.waits.options is 'The allowed answers, as texts; empty: the answer has no option.';
comment on column penstock.waits.fields is 'The fields of the payload with their types: text, number, boolean or any; a ? makes a field optional.';
comment on column penstock.waits.roles is 'The roles in the tenant that may answer.';
comment on column penstock.waits.generation is 'How many attempts the task had before its last replay: a replay asks again what timed out.';
comment on column penstock.waits.has_usage is 'Whether the attempt had reported usage before it waited: its estimate is not charged again.';

create table penstock.wait_links (
  token text primary key,
  wait_id uuid not null unique,
  job_id uuid not null
);
create index wait_links_job on penstock.wait_links (job_id);
comment on table penstock.wait_links is 'Tokens of links with which a person without an account answers.';

create table penstock.steps (
  job_id uuid not null,
  task_id bigint not null,
  name text not null check (length(name) between 1 and 200),
  tenant_id uuid not null,
  lease bigint not null,
  at timestamptz not null,
  output jsonb not null,
  primary key (job_id, task_id, name)
);
comment on table penstock.steps is 'Results of finished steps of a handler: a retry or a wake-up uses them instead of repeating the step.';

alter table penstock.parked add column wait_id uuid;
create index parked_waiting on penstock.parked (job_id) where wait_id is not null;
comment on column penstock.parked.wait_id is 'What a waiting task waits for; null for tasks that are queued or blocked.';

alter table penstock.waits enable row level security;
alter table penstock.wait_links enable row level security;
alter table penstock.steps enable row level security;
