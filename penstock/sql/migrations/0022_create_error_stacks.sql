-- phase: expand
-- Stack traces move out of attempts, which every member reads: operators and the tenant's admins read them here.
create table penstock.error_stacks (
  job_id uuid not null,
  task_id bigint not null,
  lease bigint not null,
  tenant_id uuid not null,
  stack text not null,
  primary key (job_id, task_id, lease),
  foreign key (job_id, task_id, lease) references penstock.attempts on delete cascade
);
comment on table penstock.error_stacks is
  'The stack traces of failed attempts, redacted. Only the service and the tenant''s owners and admins read them.';
alter table penstock.error_stacks enable row level security;

insert into penstock.error_stacks (job_id, task_id, lease, tenant_id, stack)
select job_id, task_id, lease, tenant_id, error_details ->> 'stack' from penstock.attempts
where jsonb_typeof(error_details -> 'stack') = 'string';
update penstock.attempts set error_details = error_details - 'stack'
where jsonb_typeof(error_details -> 'stack') = 'string';
