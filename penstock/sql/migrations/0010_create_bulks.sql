-- phase: expand
-- Bulk jobs: the rows of a source, what became of each, and what was applied. And what any job can be told for them:
-- to wait for a confirmation, to pause after so many failures or for want of quota.

alter type penstock.task_spec add attribute confirm boolean;
alter table penstock.tasks add column confirm boolean not null default false;
comment on column penstock.tasks.confirm is 'It does not run before its job was confirmed.';
comment on column penstock.parked.waits_for is 'The meter whose quota has no room for it; budget, limit or price; confirm.';

alter table penstock.jobs
  add column confirmed_at timestamptz,
  add column stop_after text check (stop_after ~ '^([1-9][0-9]{0,8}|(100|[1-9]?[0-9](\.[0-9]{1,3})?)%)$'),
  add column forgiven integer not null default 0 check (forgiven >= 0),
  drop constraint jobs_on_limit_check,
  add constraint jobs_on_limit_check check (on_limit in ('hold', 'refuse', 'pause'));
create index jobs_pausing on penstock.jobs (tenant_id, id) where on_limit = 'pause' and finished_at is null;
comment on column penstock.jobs.confirmed_at is 'Tasks made until then need no further confirmation.';
comment on column penstock.jobs.stop_after is 'It pauses after so many failed tasks, or after so many percent of its largest phase.';
comment on column penstock.jobs.forgiven is 'Failures that a resume took note of: stop_after counts from there.';
comment on column penstock.jobs.on_limit is 'What becomes of a task for which the tenant''s quota has no room: it is held back, or fails, or the job pauses.';

alter table penstock.job_types add column bulk jsonb check (jsonb_typeof(bulk) = 'object');
comment on column penstock.job_types.bulk is 'How its rows are taken: key, group_by, batch, is_exclusive. Null: its jobs have no rows.';

create table penstock.bulks (
  job_id uuid primary key,
  tenant_id uuid not null,
  type text not null,
  source jsonb not null default '{}' check (jsonb_typeof(source) = 'object'),
  source_id text,
  key text[],
  group_by text,
  batch integer check (batch between 1 and 10000),
  is_exclusive boolean not null default false,
  preview boolean not null default false,
  skip_done boolean not null default false,
  loader bigint,
  total integer not null default 0,
  loaded integer not null default 0,
  refused integer not null default 0,
  skipped integer not null default 0,
  check (loaded + refused + skipped <= total)
) with (fillfactor = 50);
create index bulks_source on penstock.bulks (tenant_id, type, source_id);
comment on table penstock.bulks is 'Jobs whose tasks are made from rows. The counts move once per part.';
comment on column penstock.bulks.loader is 'The last task that was made to load its rows.';
comment on column penstock.bulks.source_id is 'What stays the same when the source is read again.';

create table penstock.bulk_rows (
  job_id uuid not null,
  number bigint not null check (number >= 0),
  tenant_id uuid not null,
  key text,
  group_key text,
  data jsonb not null,
  problem jsonb,
  first_id bigint,
  result_id bigint,
  last_id bigint,
  batch_size integer,
  written text,
  primary key (job_id, number),
  check ((first_id is null) = (last_id is null) and (first_id is null) = (result_id is null)),
  check (problem is null or first_id is null)
);
create unique index bulk_rows_key on penstock.bulk_rows (job_id, key) where key is not null;
create index bulk_rows_waiting on penstock.bulk_rows (job_id, group_key, number) where first_id is null and problem is null;
create index bulk_rows_problem on penstock.bulk_rows (job_id, number) where problem is not null;
comment on table penstock.bulk_rows is 'A row as it was read. Its state is that of the tasks it made: see bulk_row_list.';
comment on column penstock.bulk_rows.number is 'As a person sees it in the source.';
comment on column penstock.bulk_rows.key is 'The chosen columns; null: its number is its key.';
comment on column penstock.bulk_rows.problem is 'Why it makes no task: {"code", "message", "column"}; done_before: an earlier job did it.';
comment on column penstock.bulk_rows.first_id is 'The first of its tasks; all up to last_id are its own, or its batch''s.';
comment on column penstock.bulk_rows.result_id is 'The task whose output is its result.';
comment on column penstock.bulk_rows.written is 'The state that was last written back to the source.';

create table penstock.bulk_changes (
  id bigint generated always as identity primary key,
  tenant_id uuid not null,
  job_id uuid not null,
  row_number bigint not null,
  name text not null check (length(name) between 1 and 200),
  before jsonb,
  after jsonb,
  applied_at timestamptz not null,
  undone_at timestamptz
);
create index bulk_changes_row on penstock.bulk_changes (job_id, row_number, id);
comment on table penstock.bulk_changes is 'What was applied for a row, value by value, and whether it was undone.';

-- What a row has cost is asked by task.
create index cost_entries_task on penstock.cost_entries (job_id, task_id) where task_id is not null;

alter table penstock.bulks enable row level security;
alter table penstock.bulk_rows enable row level security;
alter table penstock.bulk_changes enable row level security;
