-- phase: expand
-- Log lines of tasks. Three partitions, one per week in turn: the oldest is emptied as a whole, which costs no vacuum.

create sequence penstock.task_log_ids;
create table penstock.task_logs (
  id bigint not null default nextval('penstock.task_log_ids'),
  slot smallint not null check (slot between 0 and 2),
  tenant_id uuid not null,
  job_id uuid not null,
  task_id bigint not null,
  attempt integer not null,
  at timestamptz not null,
  level text not null check (level in ('debug', 'info', 'warning', 'error', 'critical')),
  message text not null check (length(message) <= 2000),
  fields jsonb
) partition by list (slot);
create table penstock.task_logs_0 partition of penstock.task_logs for values in (0);
create table penstock.task_logs_1 partition of penstock.task_logs for values in (1);
create table penstock.task_logs_2 partition of penstock.task_logs for values in (2);
create index task_logs_job on penstock.task_logs (job_id, id);
comment on table penstock.task_logs is
  'Log lines of tasks, best effort: at most 1,000 per attempt, kept for one to two weeks.';
comment on column penstock.task_logs.slot is 'The number of the week modulo 3: its partition.';
alter table penstock.task_logs enable row level security;
alter table penstock.task_logs_0 enable row level security;
alter table penstock.task_logs_1 enable row level security;
alter table penstock.task_logs_2 enable row level security;
