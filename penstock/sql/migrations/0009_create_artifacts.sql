-- phase: expand
-- Files in object storage, each with its record.

create table penstock.artifacts (
  id uuid primary key default penstock._uuid7(),
  tenant_id uuid not null references penstock.tenants (id),
  job_id uuid,
  task_id bigint,
  lease bigint,
  name text not null default '' check (length(name) <= 200),
  path text not null check (length(path) <= 900),
  incoming text check (length(incoming) <= 900),
  content_type text not null check (length(content_type) <= 200),
  bytes bigint check (bytes >= 0),
  sha256 text check (sha256 ~ '^[0-9a-f]{64}$'),
  status text not null default 'pending' check (status in ('pending', 'stored', 'deleted')),
  hold_id uuid,
  idempotency_key text check (length(idempotency_key) between 1 and 255),
  created_by text not null,
  created_at timestamptz not null,
  begun_at timestamptz not null,
  stored_at timestamptz,
  unique (tenant_id, path),
  check ((job_id is null) = (task_id is null)),
  check (status <> 'stored' or (bytes is not null and sha256 is not null and stored_at is not null))
);
create unique index artifacts_idempotency on penstock.artifacts (tenant_id, idempotency_key) where idempotency_key is not null;
create index artifacts_job on penstock.artifacts (job_id, id) where job_id is not null;
create index artifacts_due on penstock.artifacts (begun_at) where status <> 'stored';
create index artifacts_pending on penstock.artifacts (tenant_id) where status <> 'stored';
create index artifacts_uploads on penstock.artifacts (stored_at) where job_id is null and status = 'stored';
comment on table penstock.artifacts is 'The files that tasks made and clients uploaded. The record comes before its file, and goes after it.';
comment on column penstock.artifacts.incoming is 'Where a client uploads to. What is there is not believed before it was checked and copied to path.';
comment on column penstock.artifacts.bytes is 'What it takes in storage; while it is pending, what was announced.';
comment on column penstock.artifacts.status is 'Pending: being written. Stored: whole, and counted. Deleted: its file is to be removed, then this row.';

alter table penstock.artifacts enable row level security;
