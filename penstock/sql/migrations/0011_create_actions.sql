-- phase: expand
-- For the dashboard: actions on many things at once, what ended in each minute, and indexes for lists of all tenants.

create table penstock.actions (
  id uuid primary key default penstock._uuid7(),
  actor text not null,
  user_id uuid,
  verb text not null check (verb in ('pause', 'resume', 'cancel', 'retry', 'replay', 'discard')),
  reason text check (length(reason) <= 1000),
  total integer not null,
  done integer not null default 0,
  refused integer not null default 0,
  refusal text,
  created_at timestamptz not null,
  finished_at timestamptz
);
create index actions_open on penstock.actions (created_at) where finished_at is null;
create index actions_user on penstock.actions (user_id, id);
comment on table penstock.actions is 'What somebody does to many jobs or dead letters at once: the first at once, the rest in bites by the workers.';
comment on column penstock.actions.user_id is 'Whose roles decide about each of them; null: the service.';
comment on column penstock.actions.refusal is 'Why the last one that was refused was.';

create table penstock.action_items (
  action_id uuid not null references penstock.actions (id) on delete cascade,
  subject text not null,
  primary key (action_id, subject)
);
comment on table penstock.action_items is 'What of an action is left to do: ids of jobs (pause, resume, cancel, retry) or of dead letters (replay, discard).';
alter table penstock.actions enable row level security;
alter table penstock.action_items enable row level security;

create table penstock.task_sums (
  tenant_id uuid,
  minute timestamptz not null,
  succeeded integer not null,
  failed integer not null,
  waits jsonb not null,
  runs jsonb not null,
  unique nulls not distinct (tenant_id, minute)
);
create index task_sums_minute on penstock.task_sums (minute);
comment on table penstock.task_sums is 'Tasks that ended in a minute, of each tenant and (tenant null) of all. Upkeep adds a minute when it is over.';
comment on column penstock.task_sums.waits is 'How many waited how long: {"bucket": tasks}; a bucket begins at 2^(n/2) milliseconds.';
comment on column penstock.task_sums.runs is 'How many ran how long, in the same buckets.';
alter table penstock.task_sums enable row level security;

alter table penstock.workers add column drain_asked_at timestamptz;
comment on column penstock.workers.drain_asked_at is 'When somebody asked it to take nothing new and end; it sees that at its next beat.';

-- Ended in about this order, so this is a few pages.
create index results_finished on penstock.results using brin (finished_at) with (pages_per_range = 32, autosummarize = on);
-- Without the id: a lookup by id must not find this one instead of the key.
create index jobs_type on penstock.jobs (type, created_at);
create index dead_letters_tenant on penstock.dead_letters (tenant_id, id);
create index dead_letters_code on penstock.dead_letters (error_code, id);
create index tenants_name on penstock.tenants (name);
-- Who spent most of late, of all tenants.
create index cost_sums_of_day on penstock.cost_sums (day) where tenant_id is not null;
-- What is due for removal.
create index jobs_finished on penstock.jobs (finished_at) where finished_at is not null;
alter table penstock.schedules add constraint schedules_job_type_check check (length(job_type) between 1 and 200);
