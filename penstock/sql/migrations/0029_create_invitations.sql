-- phase: expand
-- Invitations to tenants, and tenants that a user does not want to be invited to.

create table penstock.invitations (
  id uuid primary key,
  tenant_id uuid not null references penstock.tenants (id) on delete cascade,
  role text not null check (role in ('owner', 'admin', 'member', 'viewer')),
  email text check (length(email) <= 320),
  digest bytea not null unique check (length(digest) = 32),
  created_by text not null,
  inviter_id uuid,
  created_at timestamptz not null,
  expires_at timestamptz not null,
  status text not null default 'pending' check (status in ('pending', 'accepted', 'declined', 'revoked')),
  answered_by uuid,
  answered_at timestamptz
);
create index invitations_tenant on penstock.invitations (tenant_id, id);
create index invitations_inviter on penstock.invitations (inviter_id);
create index invitations_answered on penstock.invitations (answered_by);
comment on table penstock.invitations is 'Invitations by link. A user becomes a member by accepting one.';
comment on column penstock.invitations.digest is 'SHA-256 of the token in the link, which is random.';
comment on column penstock.invitations.email is 'If set, only a user with this verified e-mail address may accept.';
comment on column penstock.invitations.inviter_id is
  'The user or key that created it; must still have the role to do so when it is accepted. Null: the service.';

create table penstock.tenant_blocks (
  user_id uuid not null,
  tenant_id uuid not null references penstock.tenants (id) on delete cascade,
  created_at timestamptz not null,
  primary key (user_id, tenant_id)
);
create index tenant_blocks_tenant on penstock.tenant_blocks (tenant_id);
comment on table penstock.tenant_blocks is 'Tenants that a user blocked: they cannot make the user a member.';

alter table penstock.invitations enable row level security;
alter table penstock.tenant_blocks enable row level security;
