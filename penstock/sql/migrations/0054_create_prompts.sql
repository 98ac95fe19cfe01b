-- phase: expand
-- Prompts: versions of a text for a model, one active per name, and which version each call used.

create table penstock.prompts (
  name text not null check (name ~ '^[a-z][a-z0-9_.-]{0,99}$'),
  version integer not null check (version >= 0),
  body text not null check (length(body) between 1 and 100000),
  variables text[] not null default '{}',
  model text check (length(model) between 1 and 200),
  max_tokens integer check (max_tokens between 1 and 1000000),
  is_active boolean not null default false,
  comment text not null default '' check (length(comment) <= 1000),
  created_by text not null,
  created_at timestamptz not null,
  activated_at timestamptz,
  primary key (name, version)
);
create unique index prompts_active on penstock.prompts (name) where is_active;
comment on table penstock.prompts is 'Versions of prompts. A version never changes; at most one per name is active.';
comment on column penstock.prompts.version is 'Version 0 is the constant in the code of the app, as the app last declared it.';
comment on column penstock.prompts.variables is 'The names between double braces in the body.';
comment on column penstock.prompts.activated_at is 'When the version was last made the active one.';

create table penstock.prompt_pins (
  job_id uuid not null,
  name text not null,
  version integer not null,
  tenant_id uuid not null,
  primary key (job_id, name),
  foreign key (name, version) references penstock.prompts (name, version)
);
create index prompt_pins_version on penstock.prompt_pins (name, version);
comment on table penstock.prompt_pins is
  'The version of each prompt that all tasks of a job use: a bulk job keeps those that were active when it was loaded.';

create table penstock.prompt_uses (
  id bigint generated always as identity primary key,
  at timestamptz not null,
  tenant_id uuid not null,
  name text not null,
  version integer not null,
  is_fallback boolean not null default false,
  action text not null,
  job_id uuid,
  task_id bigint,
  lease bigint,
  is_failed boolean not null default false,
  seconds double precision check (seconds >= 0)
);
create unique index prompt_uses_attempt on penstock.prompt_uses (job_id, task_id, lease, name, version);
create index prompt_uses_name on penstock.prompt_uses (name, version, at);
create index prompt_uses_fallback on penstock.prompt_uses (at) where is_fallback;
create index prompt_uses_at on penstock.prompt_uses using brin (at);
comment on table penstock.prompt_uses is 'Calls that used a prompt: which version, whether the attempt failed, and how long it took.';
comment on column penstock.prompt_uses.is_fallback is 'The constant in the code was used, because the database could not answer or has no active version.';

alter table penstock.prompts enable row level security;
alter table penstock.prompt_pins enable row level security;
alter table penstock.prompt_uses enable row level security;
