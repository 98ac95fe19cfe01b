-- phase: expand
-- Operations: work handed to an outside system that answers later. The row is written before the call.

create table penstock.operations (
  id uuid primary key default penstock._uuid7(),
  tenant_id uuid not null,
  job_id uuid not null,
  task_id bigint not null,
  number smallint not null,
  provider text not null,
  endpoint_id integer,
  object text not null check (length(object) between 1 and 255),
  external_id text check (length(external_id) between 1 and 255),
  status text not null default 'pending'
    check (status in ('pending', 'processing', 'completed', 'failed', 'timeout', 'canceled')),
  result jsonb,
  error_code text,
  error_message text,
  hold_id uuid,
  has_place boolean not null default false,
  gated_lane_id integer not null,
  attempts integer not null,
  is_late boolean not null default false,
  is_told boolean not null default false,
  started_at timestamptz not null,
  submitted_at timestamptz,
  deadline_at timestamptz not null,
  checked_at timestamptz,
  webhook_received_at timestamptz,
  completed_at timestamptz,
  unique (job_id, task_id, number),
  check ((completed_at is not null) = (status in ('completed', 'failed', 'timeout', 'canceled')))
);
create unique index operations_live on penstock.operations (tenant_id, object)
  where status in ('pending', 'processing');
create unique index operations_external on penstock.operations (tenant_id, provider, external_id)
  where external_id is not null;
create index operations_told on penstock.operations (provider, external_id) where external_id is not null;
create index operations_object on penstock.operations (tenant_id, object, id);
create index operations_deadline on penstock.operations (deadline_at) where status in ('pending', 'processing');
create index operations_places on penstock.operations (endpoint_id)
  where has_place and status in ('pending', 'processing');
create index operations_timeouts on penstock.operations (completed_at) where status = 'timeout';
comment on table penstock.operations is 'Work at an outside system: one live operation per object, many over time.';
comment on column penstock.operations.id is 'Also the tag that the provider gets and gives back.';
comment on column penstock.operations.attempts is 'Failed attempts of the task when it began: the next operation needs one more.';
comment on column penstock.operations.has_place is 'Whether it, and not a lease, counts against the concurrency of its endpoint.';
comment on column penstock.operations.is_told is 'Whether a webhook has come since the provider was last asked.';
comment on column penstock.operations.hold_id is 'The reservation, which moved from the lease to the operation.';

alter table penstock.operations enable row level security;
