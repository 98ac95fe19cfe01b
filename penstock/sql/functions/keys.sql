-- API keys, and idempotency keys of HTTP requests. A tenant's API key is a
-- member of the tenant, so policies and role checks treat it like a user.

create or replace function penstock.create_key(
  p_name text, p_role text, p_tenant_id uuid default null, p_expires_at timestamptz default null)
returns table (id uuid, tenant_id uuid, prefix text, secret text)
language plpgsql security definer set search_path = penstock, pg_temp as $$
#variable_conflict use_column
declare
  c_max_keys constant integer := 100;
  v_id uuid := gen_random_uuid();
  -- 244 bits from PostgreSQL's cryptographically strong random source.
  v_secret text := 'psk_' || replace(gen_random_uuid()::text || gen_random_uuid()::text, '-', '');
  v_tenant_id uuid;
begin
  if coalesce(length(p_name), 0) not between 1 and 200 then
    perform _refuse(422, 'invalid_name',
      format('name must have 1 to 200 characters (got %s)', coalesce(length(p_name), 0)),
        '{"field": "name"}');
  end if;
  if p_role is null or p_role not in ('owner', 'admin', 'member', 'viewer', 'worker', 'service') then
    perform _refuse(422, 'invalid_role',
      format('role must be owner, admin, member, viewer, worker or service (got %L)', left(p_role, 100)),
      '{"field": "role"}');
  end if;
  perform _check_time(p_expires_at, 'expires_at');
  if p_expires_at <= _now() then
    perform _refuse(422, 'invalid_expiry', format('expires_at must be in the future (got %s)', p_expires_at),
      '{"field": "expires_at"}');
  end if;
  if p_role in ('worker', 'service') then
    if not _is_service() then
      perform _refuse(403, 'forbidden', 'only the service may create worker and service keys');
    elsif p_tenant_id is not null then
      perform _refuse(422, 'invalid_role', 'worker and service keys must not name a tenant',
        '{"field": "tenant_id"}');
    end if;
  else
    v_tenant_id := _caller_tenant(p_tenant_id);
    perform _require_role(v_tenant_id, case when p_role = 'owner' then array['owner']
      else array['owner', 'admin'] end);
    if not _is_service() then
      -- The lock makes concurrent calls count one after the other.
      perform from tenants t where t.id = v_tenant_id for no key update;
      if (select count(*) from api_keys k where k.tenant_id = v_tenant_id and k.revoked_at is null
          and (k.expires_at is null or k.expires_at > _now())) >= c_max_keys then
        perform _refuse(409, 'too_many_keys',
          format('the tenant already has %s keys, which is the limit', c_max_keys),
          jsonb_build_object('limit', c_max_keys), 'Revoke keys that are no longer needed.');
      end if;
    end if;
  end if;
  insert into api_keys (id, tenant_id, name, prefix, digest, role, created_by, created_at, expires_at)
  values (v_id, v_tenant_id, p_name, left(v_secret, 12), sha256(convert_to(v_secret, 'utf8')),
    case when v_tenant_id is null then p_role end, _actor(), _now(), p_expires_at);
  if v_tenant_id is not null then
    insert into members (tenant_id, user_id, role, created_at) values (v_tenant_id, v_id, p_role, _now());
    -- The profile keeps the key in its tenant, even if another tenant adds it as a member.
    insert into profiles (user_id, tenant_id, display_name, created_at)
      values (v_id, v_tenant_id, p_name, _now());
  end if;
  perform _audit(v_tenant_id, 'key.created', null, 'key:' || v_id,
    jsonb_build_object('name', p_name, 'role', p_role));
  return query select v_id, v_tenant_id, left(v_secret, 12), v_secret;
end
$$;
comment on function penstock.create_key(text, text, uuid, timestamptz) is
  'Creates an API key. The secret is returned once and is not stored.';

create or replace function penstock.list_keys(p_tenant_id uuid default null)
returns table (id uuid, tenant_id uuid, name text, prefix text, role text, created_by text,
  created_at timestamptz,
  expires_at timestamptz, last_used_at timestamptz, revoked_at timestamptz)
language plpgsql stable security definer set search_path = penstock, pg_temp as $$
#variable_conflict use_column
begin
  if p_tenant_id is null and not _is_service() then
    p_tenant_id := _caller_tenant(null);
  end if;
  if p_tenant_id is not null then
    perform _require_role(p_tenant_id, array['owner', 'admin']);
  end if;
  return query
    select k.id, k.tenant_id, k.name, k.prefix, coalesce(k.role, m.role), k.created_by, k.created_at,
      k.expires_at, k.last_used_at, k.revoked_at
    from api_keys k left join members m on m.tenant_id = k.tenant_id and m.user_id = k.id
    where k.tenant_id is not distinct from p_tenant_id order by k.created_at, k.id;
end
$$;
comment on function penstock.list_keys(uuid) is
  'Lists the API keys of a tenant; for the service without p_tenant_id, worker and service keys.';

create or replace function penstock.revoke_key(p_key_id uuid)
returns void language plpgsql security definer set search_path = penstock, pg_temp as $$
declare
  v_key api_keys;
begin
  select * into v_key from api_keys where id = p_key_id and (_is_service() or exists (
    select from members m where m.tenant_id = api_keys.tenant_id and m.user_id = auth.uid())) for update;
  if v_key.id is null then
    perform _refuse(404, 'unknown_key', 'there is no such key');
  end if;
  perform _require_role(v_key.tenant_id, case
    when exists (select from members where tenant_id = v_key.tenant_id and user_id = v_key.id
      and role = 'owner')
    then array['owner'] else array['owner', 'admin'] end);
  if v_key.revoked_at is not null then
    return;
  end if;
  update api_keys set revoked_at = _now() where id = p_key_id;
  -- Even if it was the last owner: a leaked key must be revocable.
  delete from members where user_id = p_key_id;
  delete from profiles where user_id = p_key_id;
  perform _audit(v_key.tenant_id, 'key.revoked', null, 'key:' || p_key_id);
end
$$;
comment on function penstock.revoke_key(uuid) is
  'Revokes an API key at once. Revoking it again changes nothing.';

create or replace function penstock._key_role(p_key penstock.api_keys)
returns text language sql stable set search_path = penstock, pg_temp as $$
  select coalesce(p_key.role,
    (select m.role from members m where m.tenant_id = p_key.tenant_id and m.user_id = p_key.id))
  where p_key.revoked_at is null and (p_key.expires_at is null or p_key.expires_at > _now())
$$;
comment on function penstock._key_role(penstock.api_keys) is
  'The role of an API key; null if the key is expired, revoked, or no longer a member of its tenant.';

create or replace function penstock.use_key(p_digest bytea)
returns table (id uuid, tenant_id uuid, role text)
language plpgsql security definer set search_path = penstock, pg_temp as $$
#variable_conflict use_column
declare
  v_now timestamptz := _now();
  v_key api_keys;
  v_role text;
begin
  select * into v_key from api_keys k where k.digest = p_digest;
  v_role := _key_role(v_key);
  if v_role is null then
    return;
  end if;
  -- Written at most once per minute, and never waits for a concurrent request.
  if v_key.last_used_at is null or v_key.last_used_at < v_now - interval '1 minute' then
    update api_keys set last_used_at = v_now where ctid = (
      select k.ctid from api_keys k where k.id = v_key.id for no key update skip locked);
  end if;
  return query select v_key.id, v_key.tenant_id, v_role;
end
$$;
comment on function penstock.use_key(bytea) is
  'Finds the API key with this SHA-256 digest and its role; no row if it is unknown, expired or revoked.';

create or replace function penstock.check_key()
returns void language plpgsql stable security definer set search_path = penstock, pg_temp as $$
begin
  if auth.uid() is not null
    and not exists (select from api_keys k where k.id = auth.uid() and _key_role(k) is not null) then
    perform _refuse(401, 'unauthenticated', 'the API key is expired or revoked');
  end if;
end
$$;
comment on function penstock.check_key() is
  'Raises an error unless the caller''s id is that of a valid API key. The API calls it at the start of '
  'each transaction of a request that authenticated with a key.';

create or replace function penstock.list_strangers(p_user_ids uuid[], p_tenant_ids uuid[])
returns table (place integer) language sql stable security definer set search_path = penstock, pg_temp as $$
  select c.n::integer from unnest(p_user_ids, p_tenant_ids) with ordinality as c(user_id, tenant_id, n)
  where exists (select from api_keys k where k.id = c.user_id and _key_role(k) is null)
    or c.tenant_id is not null and not exists (
      select from members m where m.tenant_id = c.tenant_id and m.user_id = c.user_id)
$$;
comment on function penstock.list_strangers(uuid[], uuid[]) is
  'The positions (from 1) of users and keys that are not members of the tenant at the same position; where '
  'the tenant is null, of keys that are expired or revoked.';

create or replace function penstock.begin_request(p_key text, p_digest bytea)
returns jsonb language plpgsql security definer set search_path = penstock, pg_temp as $$
declare
  v_actor text := _actor();
  v_earlier requests;
begin
  if v_actor = 'anonymous' then
    perform _refuse(401, 'unauthenticated', 'authentication is required');
  elsif coalesce(length(p_key), 0) not between 1 and 255 or p_digest is null then
    perform _refuse(422, 'invalid_key',
      format('the idempotency key must have 1 to 255 characters (got %s)', coalesce(length(p_key), 0)),
      '{"field": "Idempotency-Key"}');
  end if;
  -- Each call deletes more expired requests than it adds, so the table stays small.
  delete from requests where ctid = any (array(
    select ctid from requests where created_at < _now() - interval '1 day' order by created_at limit 5
      for update skip locked));
  -- Waits for a concurrent request with the same key.
  insert into requests (actor, key, digest, created_at) values (v_actor, p_key, p_digest, _now())
  on conflict (actor, key) do nothing;
  if found then
    return null;
  end if;
  select * into v_earlier from requests where actor = v_actor and key = p_key;
  if v_earlier.digest is distinct from p_digest then
    perform _refuse(409, 'idempotency_key_reused', 'this idempotency key was used for a different request',
      '{}',
      'Use a new key for a new request.');
  end if;
  return jsonb_build_object('status', v_earlier.status, 'answer', v_earlier.answer);
end
$$;
comment on function penstock.begin_request(text, bytea) is
  'Registers a request under its idempotency key; returns null the first time, else the recorded response. '
  'Responses are kept for a day.';

create or replace function penstock.end_request(p_key text, p_status integer, p_answer jsonb)
returns void language plpgsql security definer set search_path = penstock, pg_temp as $$
begin
  -- Users can call this function too, so the size is limited.
  -- The longest response has the ids of 100,000 tasks.
  if p_status is null or p_status not between 200 and 599 then
    perform _refuse(422, 'invalid_status',
      format('p_status must be between 200 and 599 (got %s)', coalesce(p_status::text, 'null')),
        '{"field": "p_status"}');
  end if;
  perform _check_document(p_answer, 'p_answer', 2000000);
  update requests set status = p_status, answer = p_answer
  where actor = _actor() and key = p_key and status is null;
end
$$;
comment on function penstock.end_request(text, integer, jsonb) is
  'Records the response to a request, in the transaction that called begin_request.';
