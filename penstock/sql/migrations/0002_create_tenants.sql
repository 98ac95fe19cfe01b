-- phase: expand
-- Who: tenants, their members, a profile per user; what the installation is set to; who did what.

create table penstock.tenants (
  id uuid primary key default penstock._uuid7(),
  name text not null check (length(name) between 1 and 200),
  weight real not null default 1 check (weight > 0 and weight <= 1000),
  is_personal boolean not null default false,
  created_at timestamptz not null default clock_timestamp()
);
comment on table penstock.tenants is 'The unit of isolation, plan and bill. A lone user is a personal tenant.';
comment on column penstock.tenants.weight is 'Share of a lane, relative to other tenants'' weights.';

create table penstock.profiles (
  user_id uuid primary key,
  tenant_id uuid not null references penstock.tenants (id) on delete cascade,
  email text,
  display_name text check (length(display_name) <= 200),
  created_at timestamptz not null default clock_timestamp()
);
comment on table penstock.profiles is 'One row per user, made by a trigger together with the personal tenant.';

create table penstock.members (
  tenant_id uuid not null references penstock.tenants (id) on delete cascade,
  user_id uuid not null,
  role text not null default 'member' check (role in ('owner', 'admin', 'member', 'viewer')),
  created_at timestamptz not null default clock_timestamp(),
  primary key (tenant_id, user_id)
);
create index members_user on penstock.members (user_id);
comment on table penstock.members is 'A user''s role in a tenant.';

create table penstock.settings (
  name text primary key,
  value jsonb not null,
  comment text not null
);
comment on table penstock.settings is 'Configuration that all workers share; changed with set_setting().';

create table penstock.audit_log (
  id bigint generated always as identity primary key,
  at timestamptz not null,
  tenant_id uuid,
  actor text not null,
  action text not null,
  job_id uuid,
  subject text,
  details jsonb not null default '{}'
);
create index audit_log_tenant on penstock.audit_log (tenant_id, id);
create index audit_log_job on penstock.audit_log (job_id, id) where job_id is not null;
comment on table penstock.audit_log is 'Who did what, in the transaction that did it. Append-only: nobody is granted update or delete.';
comment on column penstock.audit_log.subject is 'The thing acted on, as noun:id.';

alter table penstock.tenants enable row level security;
alter table penstock.profiles enable row level security;
alter table penstock.members enable row level security;
alter table penstock.settings enable row level security;
alter table penstock.audit_log enable row level security;
