-- phase: expand
-- What handlers stream, in chunks. Partitions of weeks as for task_logs: the oldest is emptied as a whole.

create table penstock.task_chunks (
  slot smallint not null check (slot between 0 and 2),
  tenant_id uuid not null,
  job_id uuid not null,
  task_id bigint not null,
  lease bigint not null,
  number integer not null check (number between 1 and 10000),
  attempt integer not null,
  at timestamptz not null,
  parts jsonb not null check (jsonb_typeof(parts) = 'array'),
  unique (job_id, task_id, lease, number, slot)
) partition by list (slot);
create table penstock.task_chunks_0 partition of penstock.task_chunks for values in (0);
create table penstock.task_chunks_1 partition of penstock.task_chunks for values in (1);
create table penstock.task_chunks_2 partition of penstock.task_chunks for values in (2);
comment on table penstock.task_chunks is
  'What handlers stream while they run, best effort: at most 256 KB per attempt, kept for one to two weeks.';
comment on column penstock.task_chunks.slot is 'The number of the week modulo 3: its partition.';
comment on column penstock.task_chunks.lease is 'The lease of the attempt: a stream of its own.';
comment on column penstock.task_chunks.parts is 'Texts and objects, in the order of streaming.';
alter table penstock.task_chunks enable row level security;
alter table penstock.task_chunks_0 enable row level security;
alter table penstock.task_chunks_1 enable row level security;
alter table penstock.task_chunks_2 enable row level security;
