-- phase: expand
-- The engine's tables. Cold: jobs, tasks, edges, results, attempts: written when a thing is made and when it
-- ends. Hot: ready, parked, leases: small, and a task is in at most one of them. A task is always in exactly
-- one of ready, parked, leases, results, unless its job was canceled, which ends what is left without a row each.

create table penstock.kinds (
  name text primary key check (name ~ '^[A-Za-z][A-Za-z0-9_.:-]{0,99}$'),
  category text not null default 'general',
  max_attempts smallint not null default 3 check (max_attempts between 1 and 100),
  backoff_seconds real not null default 2 check (backoff_seconds >= 0),
  backoff_cap_seconds real not null default 300 check (backoff_cap_seconds >= 0),
  retry_seconds real check (retry_seconds > 0),
  timeout_seconds real check (timeout_seconds > 0)
);
comment on table penstock.kinds is 'The kinds of task there are, with the defaults of each. A task of an unknown kind is refused.';
comment on column penstock.kinds.retry_seconds is 'No retry later than this after the first attempt began; null: no such cap.';

create table penstock.job_types (
  name text primary key check (name ~ '^[A-Za-z][A-Za-z0-9_.:-]{0,99}$'),
  phases jsonb not null default '[]',
  on_failure text not null default 'continue' check (on_failure in ('continue', 'stop'))
);
comment on table penstock.job_types is 'Declared job types: phases with weights, in order, and what a failed task does to the rest.';

create table penstock.lanes (
  id integer generated always as identity primary key,
  kind text not null references penstock.kinds (name),
  provider text check (length(provider) between 1 and 200),
  clock bigint not null default 0,
  read_from bigint not null default 0,
  moved_at timestamptz not null default '-infinity',
  swept_at timestamptz not null default '-infinity',
  unique nulls not distinct (kind, provider)
) with (fillfactor = 50);
comment on table penstock.lanes is 'One queue for one kind and one provider endpoint.';
comment on column penstock.lanes.clock is 'Virtual time: the slot last dealt. New work starts here.';
comment on column penstock.lanes.read_from is 'Where a claim starts reading: the clock a moment ago, so that what commits a little late is still met.';

create table penstock.shares (
  lane_id integer not null,
  tenant_id uuid not null,
  tail bigint not null,
  priority smallint not null,
  primary key (lane_id, tenant_id)
) with (fillfactor = 50);
comment on table penstock.shares is 'A tenant''s place in a lane: its next task goes behind the last slot it holds.';
comment on column penstock.shares.priority is 'Of the first task of its backlog: another one makes the queue mixed.';

-- Without a key on purpose: whoever marks never waits for whoever else does.
create table penstock.mixed (
  lane_id integer not null,
  tenant_id uuid not null
);
create index mixed_share on penstock.mixed (lane_id, tenant_id);
comment on table penstock.mixed is 'Tenants whose queue in a lane holds several priorities: their slots go to their best task first.';

create table penstock.jobs (
  id uuid primary key default penstock._uuid7(),
  tenant_id uuid not null references penstock.tenants (id),
  type text not null check (length(type) between 1 and 200),
  status text not null default 'queued'
    check (status in ('queued', 'running', 'paused', 'completed', 'failed', 'canceled')),
  priority smallint not null default 5 check (priority between 0 and 10),
  on_failure text not null default 'continue' check (on_failure in ('continue', 'stop')),
  params jsonb not null default '{}',
  status_reason text,
  idempotency_key text check (length(idempotency_key) between 1 and 255),
  request_digest bytea,
  created_by text not null,
  created_at timestamptz not null,
  run_at timestamptz,
  started_at timestamptz,
  finished_at timestamptz,
  check ((finished_at is not null) = (status in ('completed', 'failed', 'canceled')))
);
create unique index jobs_idempotency on penstock.jobs (tenant_id, idempotency_key)
  where idempotency_key is not null;
create index jobs_tenant on penstock.jobs (tenant_id, id);
create index jobs_tenant_status on penstock.jobs (tenant_id, status, id);
create index jobs_status on penstock.jobs (status, id);
comment on table penstock.jobs is 'What a client starts and watches. Legal transitions are in a trigger.';

create table penstock.phases (
  job_id uuid not null,
  position smallint not null,
  tenant_id uuid not null,
  name text not null,
  weight real check (weight >= 0),
  total integer not null default 0,
  succeeded integer not null default 0,
  failed integer not null default 0,
  canceled integer not null default 0,
  primary key (job_id, position),
  unique (job_id, name),
  check (succeeded >= 0 and failed >= 0 and canceled >= 0 and succeeded + failed + canceled <= total)
) with (fillfactor = 50);
comment on column penstock.phases.weight is 'Its part of the whole; null: as much as it has tasks.';
comment on table penstock.phases is 'A job''s progress: counts per phase, moved once per batch of ended tasks, never once per task.';

create type penstock.task_spec as (
  kind text,
  key text,
  input jsonb,
  after text[],
  after_failure text,
  phase text,
  provider text,
  units jsonb,
  priority smallint,
  run_at timestamptz,
  max_attempts smallint,
  timeout_seconds real,
  idempotency_key text
);
comment on type penstock.task_spec is 'One element of p_tasks: what a caller says of a task.';

create type penstock.phase_delta as (
  job_id uuid,
  "position" smallint,
  succeeded integer,
  failed integer,
  canceled integer
);
comment on type penstock.phase_delta is 'By how much the counts of a phase move.';

create sequence penstock.task_ids;
create sequence penstock.lease_numbers increment by 10000;

create table penstock.tasks (
  job_id uuid not null,
  id bigint not null,
  tenant_id uuid not null,
  created_at timestamptz not null,
  lane_id integer not null,
  phase smallint not null,
  priority smallint not null,
  max_attempts smallint check (max_attempts between 1 and 100),
  run_after_failure boolean not null default false,
  timeout_seconds real check (timeout_seconds > 0),
  kind text not null,
  key text,
  idempotency_key text,
  input jsonb not null,
  units jsonb,
  primary key (job_id, id)
);
create unique index tasks_key on penstock.tasks (job_id, key) where key is not null;
create unique index tasks_idempotency on penstock.tasks (job_id, idempotency_key) where idempotency_key is not null;
-- For the rare look-up by id alone: ids grow with the table, so this index is a few pages.
create index tasks_id on penstock.tasks using brin (id) with (pages_per_range = 32, autosummarize = on);
comment on table penstock.tasks is 'What a task is: written once. Where it stands is told by ready, parked, leases and results.';

create table penstock.edges (
  job_id uuid not null,
  parent_id bigint not null,
  child_id bigint not null,
  primary key (job_id, parent_id, child_id)
);
create index edges_child on penstock.edges (job_id, child_id);
comment on table penstock.edges is 'The job''s graph: the child starts when all its parents have succeeded.';

create table penstock.ready (
  task_id bigint not null,
  vtime bigint not null,
  job_id uuid not null,
  tenant_id uuid not null,
  lane_id integer not null,
  priority smallint not null,
  phase smallint not null,
  failures smallint not null default 0,
  deaths smallint not null default 0,
  has_parents boolean not null default false,
  has_children boolean not null default false
) with (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0);
create index ready_claim on penstock.ready (lane_id, vtime);
create unique index ready_tenant on penstock.ready (tenant_id, lane_id, priority, job_id, task_id);
comment on table penstock.ready is 'What may be claimed now, in slots of virtual time. Rows are only inserted and deleted.';

create table penstock.parked (
  task_id bigint not null,
  job_id uuid not null,
  tenant_id uuid not null,
  lane_id integer not null,
  priority smallint not null,
  phase smallint not null,
  failures smallint not null default 0,
  deaths smallint not null default 0,
  has_parents boolean not null default false,
  has_children boolean not null default false,
  pending integer not null default 0 check (pending >= 0),
  until timestamptz not null,
  reason text not null,
  primary key (job_id, task_id)
) with (fillfactor = 80);
create index parked_due on penstock.parked (until) where pending = 0 and until < 'infinity';
comment on table penstock.parked is 'What may not be claimed yet: it waits for parents (pending), for a time (until) or for its job to resume (until infinity).';

create table penstock.leases (
  task_id bigint primary key,
  lease bigint not null,
  job_id uuid not null,
  tenant_id uuid not null,
  lane_id integer not null,
  priority smallint not null,
  phase smallint not null,
  failures smallint not null,
  deaths smallint not null,
  has_parents boolean not null,
  has_children boolean not null,
  is_canceled boolean not null default false,
  worker_id text not null,
  started_at timestamptz not null,
  expires_at timestamptz not null,
  fraction real check (fraction between 0 and 1),
  message text
) with (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0);
comment on table penstock.leases is 'One worker''s time-limited right to one attempt of one task. The number only grows: it fences late workers.';

create table penstock.results (
  job_id uuid not null,
  task_id bigint not null,
  lease bigint,
  tenant_id uuid not null,
  started_at timestamptz,
  finished_at timestamptz not null,
  attempt smallint not null,
  phase smallint not null,
  outcome text not null check (outcome in ('succeeded', 'failed', 'canceled')),
  worker_id text,
  error_code text,
  error_message text,
  output jsonb,
  primary key (job_id, task_id)
);
comment on table penstock.results is 'How a task ended: one row, inserted once. A retry removes a failed or canceled one, never a succeeded one.';

create table penstock.attempts (
  job_id uuid not null,
  task_id bigint not null,
  lease bigint not null,
  tenant_id uuid not null,
  attempt smallint not null,
  worker_id text not null,
  started_at timestamptz not null,
  ended_at timestamptz not null,
  outcome text not null check (outcome in ('failed', 'lost')),
  error_code text not null,
  error_message text,
  error_details jsonb,
  retry_in_seconds real,
  primary key (job_id, task_id, lease)
);
comment on table penstock.attempts is 'Attempts that did not succeed, with their errors. Append-only.';

create table penstock.dead_letters (
  id bigint generated always as identity primary key,
  tenant_id uuid not null,
  job_id uuid not null,
  task_id bigint not null,
  kind text not null,
  reason text not null check (reason in ('attempts', 'time', 'permanent', 'worker_deaths')),
  error_code text not null,
  error_message text,
  attempts smallint not null,
  died_at timestamptz not null,
  unique (tenant_id, job_id, task_id)
);
create index dead_letters_cause on penstock.dead_letters (tenant_id, kind, error_code, id);
create index dead_letters_job on penstock.dead_letters (job_id, task_id);
comment on table penstock.dead_letters is 'Tasks that failed for good. Replaying one removes it and queues the task again.';

create table penstock.chores (
  job_id uuid primary key,
  tenant_id uuid not null,
  verb text not null check (verb in ('park', 'unpark', 'drop')),
  created_at timestamptz not null
);
comment on table penstock.chores is 'What pause, resume and cancel of a large job leave to upkeep, done in small bites.';

alter table penstock.kinds enable row level security;
alter table penstock.job_types enable row level security;
alter table penstock.lanes enable row level security;
alter table penstock.shares enable row level security;
alter table penstock.mixed enable row level security;
alter table penstock.jobs enable row level security;
alter table penstock.phases enable row level security;
alter table penstock.tasks enable row level security;
alter table penstock.edges enable row level security;
alter table penstock.ready enable row level security;
alter table penstock.parked enable row level security;
alter table penstock.leases enable row level security;
alter table penstock.results enable row level security;
alter table penstock.attempts enable row level security;
alter table penstock.dead_letters enable row level security;
alter table penstock.chores enable row level security;
