-- phase: expand
-- The HTTP API: keys instead of logins, and answers that were given before.

create table penstock.api_keys (
  id uuid primary key default gen_random_uuid(),
  tenant_id uuid references penstock.tenants (id) on delete cascade,
  name text not null check (length(name) between 1 and 200),
  prefix text not null,
  digest bytea not null unique check (length(digest) = 32),
  role text check (role in ('worker', 'service')),
  created_by text not null,
  created_at timestamptz not null,
  expires_at timestamptz,
  last_used_at timestamptz,
  revoked_at timestamptz,
  check ((tenant_id is null) = (role is not null))
);
create index api_keys_tenant on penstock.api_keys (tenant_id, id);
comment on table penstock.api_keys is 'Keys for programs. A tenant''s key is a member of the tenant, with the key''s id as user id; a key without a tenant is the service''s.';
comment on column penstock.api_keys.digest is 'SHA-256 of the key, which is random and kept nowhere.';
comment on column penstock.api_keys.role is 'Of a key without a tenant; a tenant''s key has the role of its member.';

create table penstock.requests (
  actor text not null,
  key text not null check (length(key) between 1 and 255),
  digest bytea not null,
  status integer,
  answer jsonb,
  created_at timestamptz not null,
  primary key (actor, key)
);
create index requests_created on penstock.requests (created_at);
comment on table penstock.requests is 'What was answered to requests with an idempotency key, for a day.';

alter table penstock.api_keys enable row level security;
alter table penstock.requests enable row level security;
