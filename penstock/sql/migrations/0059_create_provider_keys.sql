-- phase: expand
-- Keys of providers, encrypted by the client: the database never has the key that opens them.
create table penstock.provider_keys (
  tenant_id uuid references penstock.tenants (id) on delete cascade,
  provider text not null check (provider ~ '^[a-z0-9][a-z0-9_.-]{0,99}$'),
  host text not null check (length(host) between 1 and 253 and host = lower(host)),
  sealed bytea not null check (octet_length(sealed) between 29 and 10000),
  wrapped_key bytea not null check (octet_length(wrapped_key) between 29 and 200),
  master_id text not null check (master_id ~ '^[0-9a-f]{16}$'),
  created_by text not null,
  created_at timestamptz not null,
  unique nulls not distinct (tenant_id, provider)
);
comment on table penstock.provider_keys is 'Keys of providers, for all tenants or for one. Only functions read them.';
comment on column penstock.provider_keys.tenant_id is 'Whose key it is; null: for all tenants without an own one.';
comment on column penstock.provider_keys.host is 'The only host that gets the key.';
comment on column penstock.provider_keys.sealed is 'The key, encrypted with a key of its own (AES-256-GCM); provider, host and tenant are authenticated with it.';
comment on column penstock.provider_keys.wrapped_key is 'The key of sealed, encrypted with the master key.';
comment on column penstock.provider_keys.master_id is 'Which master key: the beginning of its SHA-256.';
alter table penstock.provider_keys enable row level security;
