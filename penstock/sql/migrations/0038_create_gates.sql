-- phase: expand
-- Entitlements: gates name what a plan must allow. A plan may end at a time that is compared when it is read.

create table penstock.gates (
  name text primary key check (name ~ '^[a-z][a-z0-9_]{0,62}$'),
  feature text check (feature ~ '^[a-z][a-z0-9_.-]{0,62}$'),
  meter text references penstock.meters (name),
  mode text not null default 'observe' check (mode in ('observe', 'enforce')),
  kinds text[] not null default '{}',
  comment text not null default '',
  check ((feature is null) <> (meter is null)),
  check (meter is null or kinds = '{}')
);
create index gates_enforced on penstock.gates (name) where mode = 'enforce' and kinds <> '{}';
create index gates_kinds on penstock.gates (name) where kinds <> '{}';
create index gates_meter on penstock.gates (meter);
comment on table penstock.gates is 'What a tenant needs a feature of its plan, or room in a meter, for.';
comment on column penstock.gates.mode is 'What happens without it: only recorded (observe), or rejected (enforce).';
comment on column penstock.gates.kinds is
  'Kinds of tasks that need the feature; a job type or bulk type stands for its kinds. Checked when a job starts and at the claim.';

alter table penstock.gates enable row level security;

alter table penstock.tenants
  add column plan_since timestamptz,
  add column plan_until timestamptz,
  add column plan_after text references penstock.plans (name),
  add constraint tenants_plan_after check (plan_until is null or plan_after is not null);
create index tenants_plan_after on penstock.tenants (plan_after);
comment on column penstock.tenants.plan_until is 'From this time on the plan is plan_after. Null: it does not end.';
