-- Keys of providers. Clients encrypt them with a master key that the database does not have, and bind them to
-- provider, host and tenant: a row that is copied to another one cannot be opened there.

create or replace function penstock.set_provider_key(p_provider text, p_host text, p_sealed bytea,
  p_wrapped_key bytea, p_master_id text, p_tenant_id uuid default null)
returns void language plpgsql security definer set search_path = penstock, pg_temp as $$
begin
  if p_tenant_id is not null then
    perform _require_tenant(p_tenant_id);
  end if;
  insert into provider_keys as k
    (tenant_id, provider, host, sealed, wrapped_key, master_id, created_by, created_at)
  values (p_tenant_id, p_provider, p_host, p_sealed, p_wrapped_key, p_master_id, _actor(), _now())
  on conflict (tenant_id, provider) do update set host = excluded.host, sealed = excluded.sealed,
    wrapped_key = excluded.wrapped_key, master_id = excluded.master_id, created_by = excluded.created_by,
    created_at = excluded.created_at;
  perform _audit(p_tenant_id, 'provider_key.set', null, 'provider:' || p_provider,
    jsonb_build_object('host', p_host));
exception when integrity_constraint_violation then
  perform _refuse(422, 'invalid_provider_key',
    'invalid provider, host or encrypted key: ' || left(sqlerrm, 200), '{"field": "p_provider"}',
    'Provider names are like openai, hosts like api.openai.com.');
end
$$;
comment on function penstock.set_provider_key(text, text, bytea, bytea, text, uuid) is
  'Stores the encrypted key of a provider, for all tenants or for one, and replaces the one before.';

create or replace function penstock.get_provider_key(p_provider text, p_tenant_id uuid default null)
returns table (provider text, tenant_id uuid, host text, sealed bytea, wrapped_key bytea, master_id text)
language sql stable security definer set search_path = penstock, pg_temp as $$
  select k.provider, k.tenant_id, k.host, k.sealed, k.wrapped_key, k.master_id from provider_keys k
  where k.provider = p_provider and (k.tenant_id = p_tenant_id or k.tenant_id is null)
  order by k.tenant_id nulls last limit 1
$$;
comment on function penstock.get_provider_key(text, uuid) is
  'The encrypted key of a provider: the tenant''s own, or the one for all tenants. For workers.';

create or replace function penstock.list_provider_keys()
returns table (provider text, tenant_id uuid, host text, master_id text, created_by text,
  created_at timestamptz)
language sql stable security definer set search_path = penstock, pg_temp as $$
  select k.provider, k.tenant_id, k.host, k.master_id, k.created_by, k.created_at from provider_keys k
  order by k.provider, k.tenant_id nulls first
$$;
comment on function penstock.list_provider_keys() is 'The keys of providers, without the keys.';

create or replace function penstock.remove_provider_key(p_provider text, p_tenant_id uuid default null)
returns void language plpgsql security definer set search_path = penstock, pg_temp as $$
begin
  perform _require_active(p_tenant_id);
  delete from provider_keys k
  where k.provider = p_provider and k.tenant_id is not distinct from p_tenant_id;
  if not found then
    perform _refuse(404, 'unknown_provider_key',
      format('there is no key of provider %L', left(p_provider, 100)));
  end if;
  perform _audit(p_tenant_id, 'provider_key.removed', null, 'provider:' || p_provider, '{}');
end
$$;
comment on function penstock.remove_provider_key(text, uuid) is
  'Removes the key of a provider, for all tenants or that of one.';
