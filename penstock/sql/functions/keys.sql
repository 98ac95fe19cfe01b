-- API keys, and idempotency keys of HTTP requests. A tenant's API key is a
-- member of the tenant, so policies and role checks treat it like a user.

create or replace function penstock._has_scope(p_user_id uuid, p_scope text)
returns boolean language sql stable set search_path = penstock, pg_temp as $$
  select not exists (select from api_keys k where k.id = p_user_id and not p_scope = any (k.scopes))
$$;
comment on function penstock._has_scope(uuid, text) is
  'Whether an API key has this scope. A user who is not a key has all of them.';

create or replace function penstock._role_scopes(p_role text)
returns text[] language sql immutable set search_path = penstock, pg_temp as $$
  select case p_role
    when 'viewer' then array['read']
    when 'member' then array['read', 'start']
    when 'admin' then array['read', 'start', 'admin']
    when 'owner' then array['read', 'start', 'admin']
    when 'worker' then array['work']
    when 'service' then array['read', 'start', 'work', 'admin'] end
$$;
comment on function penstock._role_scopes(text) is 'The scopes that a key with this role can have.';

create or replace function penstock._new_key_scopes(p_role text, p_scopes jsonb, p_parent penstock.api_keys)
returns text[] language plpgsql stable set search_path = penstock, pg_temp as $$
declare
  -- The role limits what a key may do. A tenant's key without explicit scopes gets those of all roles, so
  -- that it can do more when its role is raised.
  v_default text[] := case when p_role in ('worker', 'service') then _role_scopes(p_role)
    else _role_scopes('owner') end;
  v_scopes text[];
begin
  if coalesce(jsonb_typeof(p_scopes), 'null') = 'null' then
    v_scopes := array(
      select s from unnest(v_default) as s where p_parent.id is null or s = any (p_parent.scopes));
    if v_scopes = '{}' then
      perform _refuse(403, 'missing_scope', 'a key cannot create a key with scopes that it does not have',
        jsonb_build_object('scopes', p_parent.scopes));
    end if;
    return v_scopes;
  end if;
  if jsonb_typeof(p_scopes) = 'array' then
    v_scopes := array(select distinct s from jsonb_array_elements_text(p_scopes) as s order by s);
  end if;
  if v_scopes is null or cardinality(v_scopes) = 0 or not v_scopes <@ _role_scopes(p_role) then
    perform _refuse(422, 'invalid_scopes',
      format('scopes of a key with role %s must be a list of: %s (got %s)', p_role,
        array_to_string(_role_scopes(p_role), ', '), coalesce(left(p_scopes::text, 100), 'none')),
      '{"field": "scopes"}');
  end if;
  if p_parent.id is not null and not v_scopes <@ p_parent.scopes then
    perform _refuse(403, 'missing_scope', 'a key cannot create a key with scopes that it does not have',
      jsonb_build_object('scopes', p_parent.scopes));
  end if;
  return v_scopes;
end
$$;
comment on function penstock._new_key_scopes(text, jsonb, penstock.api_keys) is
  'The scopes of a new key. Raises an error for scopes that its role or its parent key does not have.';

create or replace function penstock._new_key_expiry(p_expires_at timestamptz, p_parent penstock.api_keys)
returns timestamptz language plpgsql stable set search_path = penstock, pg_temp as $$
declare
  v_now timestamptz := _now();
  v_days integer := (_setting('max_key_days'))::integer;
  v_latest timestamptz := least(p_parent.expires_at,
    case when v_days > 0 then v_now + make_interval(days => v_days) end);
begin
  perform _check_time(p_expires_at, 'expires_at');
  if p_expires_at <= v_now then
    perform _refuse(422, 'invalid_expiry', format('expires_at must be in the future (got %s)', p_expires_at),
      '{"field": "expires_at"}');
  end if;
  if p_expires_at > v_latest then
    perform _refuse(422, 'invalid_expiry',
      format('expires_at must not be later than %s (got %s)', v_latest, p_expires_at),
      jsonb_build_object('field', 'expires_at', 'latest', v_latest),
      'A key expires no later than the key that creates it, and within the setting max_key_days.');
  end if;
  return coalesce(p_expires_at, v_latest);
end
$$;
comment on function penstock._new_key_expiry(timestamptz, penstock.api_keys) is
  'When a new key expires; null: never. Raises an error if its parent or the setting does not allow that.';

create or replace function penstock._lock_key_tenant(p_tenant_id uuid, p_role text)
returns void language plpgsql set search_path = penstock, pg_temp as $$
declare
  c_max_keys constant integer := 100;
  v_roles text[] := case when p_role = 'owner' then array['owner'] else array['owner', 'admin'] end;
begin
  perform _require_role(p_tenant_id, v_roles);
  if _is_service() then
    perform from tenants t where t.id = p_tenant_id for key share;
    if not found then
      perform _refuse(404, 'unknown_tenant', 'there is no such tenant');
    end if;
    return;
  end if;
  -- The lock makes concurrent calls count one after the other, and removing a member waits for this call or
  -- this call for the removal. So the role is checked again.
  perform from tenants t where t.id = p_tenant_id for no key update;
  perform _require_role(p_tenant_id, v_roles);
  if (select count(*) from api_keys k where k.tenant_id = p_tenant_id and k.revoked_at is null
      and (k.expires_at is null or k.expires_at > _now())) >= c_max_keys then
    perform _refuse(409, 'too_many_keys',
      format('the tenant already has %s keys, which is the limit', c_max_keys),
      jsonb_build_object('limit', c_max_keys), 'Revoke keys that are no longer needed.');
  end if;
end
$$;
comment on function penstock._lock_key_tenant(uuid, text) is
  'Locks the tenant of a new key. Raises an error unless the caller may create it and there is room for it.';

create or replace function penstock._parent_key()
returns penstock.api_keys language plpgsql set search_path = penstock, pg_temp as $$
declare
  v_parent api_keys;
begin
  -- Revoking the parent waits for this call and then finds the new key, or this call finds it revoked.
  select * into v_parent from api_keys where id = auth.uid() for share;
  if v_parent.id is not null and _key_role(v_parent) is null then
    perform _refuse(401, 'unauthenticated', 'the API key is expired or revoked');
  elsif v_parent.id is not null and not 'admin' = any (v_parent.scopes) then
    perform _refuse(403, 'missing_scope', 'the API key does not have the scope admin', '{"scope": "admin"}');
  end if;
  return v_parent;
end
$$;
comment on function penstock._parent_key() is 'Locks the API key that makes this call; null for a user.';

create or replace function penstock.create_api_key(p_name text, p_role text, p_options jsonb default '{}')
returns table (id uuid, tenant_id uuid, prefix text, secret text, scopes text[], expires_at timestamptz)
language plpgsql security definer set search_path = penstock, pg_temp as $$
#variable_conflict use_column
declare
  -- 244 bits from PostgreSQL's cryptographically strong random source.
  v_secret text := 'psk_' || replace(gen_random_uuid()::text || gen_random_uuid()::text, '-', '');
  v_key api_keys;
  v_parent api_keys;
begin
  perform _check_fields(p_options, array['tenant_id', 'expires_at', 'scopes'], 'key');
  perform _check_name(p_name, 'name');
  if p_role is null or _role_scopes(p_role) is null then
    perform _refuse(422, 'invalid_role',
      format('role must be owner, admin, member, viewer, worker or service (got %L)', left(p_role, 100)),
      '{"field": "role"}');
  end if;
  v_key := jsonb_populate_record(null::api_keys, p_options - 'scopes');
  if p_role in ('worker', 'service') then
    if not _is_service() then
      perform _refuse(403, 'forbidden', 'only the service may create worker and service keys');
    elsif v_key.tenant_id is not null then
      perform _refuse(422, 'invalid_role', 'worker and service keys must not name a tenant',
        '{"field": "tenant_id"}');
    end if;
  else
    v_key.tenant_id := coalesce(v_key.tenant_id, _own_tenant());
    perform _lock_key_tenant(v_key.tenant_id, p_role);
  end if;
  v_parent := _parent_key();
  v_key.id := gen_random_uuid();
  v_key.scopes := _new_key_scopes(p_role, p_options -> 'scopes', v_parent);
  v_key.expires_at := _new_key_expiry(v_key.expires_at, v_parent);
  insert into api_keys (id, tenant_id, name, prefix, digest, role, created_by, created_at, expires_at,
    parent_id, owner_id, scopes)
  values (v_key.id, v_key.tenant_id, p_name, left(v_secret, 12), sha256(convert_to(v_secret, 'utf8')),
    case when v_key.tenant_id is null then p_role end, _actor(), _now(), v_key.expires_at,
    v_parent.id, case when v_parent.id is null then auth.uid() else v_parent.owner_id end, v_key.scopes);
  perform _add_key_member(v_key.id, v_key.tenant_id, p_role, p_name);
  perform _audit(v_key.tenant_id, 'key.created', null, 'key:' || v_key.id,
    jsonb_build_object('name', p_name, 'role', p_role, 'scopes', v_key.scopes));
  -- A tenant's keys are one alert a day, however many it creates.
  perform _alert('key_created', coalesce('tenant:' || v_key.tenant_id, 'key:' || v_key.id), v_key.tenant_id,
    jsonb_build_object('name', p_name, 'role', p_role, 'by', _actor()));
  return query select v_key.id, v_key.tenant_id, left(v_secret, 12), v_secret, v_key.scopes, v_key.expires_at;
exception when data_exception then
  perform _refuse(422, 'invalid_options', 'tenant_id must be a UUID and expires_at a time', '{}');
end
$$;
comment on function penstock.create_api_key(text, text, jsonb) is
  'Creates an API key. The secret is returned once and is not stored. Options: tenant_id, expires_at, scopes '
  '(of read, start, work, admin; default: all that the role allows).';

create or replace function penstock._add_key_member(p_key_id uuid, p_tenant_id uuid, p_role text, p_name text)
returns void language sql set search_path = penstock, pg_temp as $$
  insert into members (tenant_id, user_id, role, created_at)
    select p_tenant_id, p_key_id, p_role, _now() where p_tenant_id is not null;
  -- The profile keeps the key in its tenant, even if another tenant adds it as a member.
  insert into profiles (user_id, tenant_id, display_name, created_at)
    select p_key_id, p_tenant_id, p_name, _now() where p_tenant_id is not null;
$$;
comment on function penstock._add_key_member(uuid, uuid, text, text) is
  'Makes a tenant''s key a member of the tenant.';

create or replace function penstock.create_key(
  p_name text, p_role text, p_tenant_id uuid default null, p_expires_at timestamptz default null)
returns table (id uuid, tenant_id uuid, prefix text, secret text)
language sql security definer set search_path = penstock, pg_temp as $$
  select k.id, k.tenant_id, k.prefix, k.secret from create_api_key(p_name, p_role,
    jsonb_strip_nulls(jsonb_build_object('tenant_id', p_tenant_id, 'expires_at', p_expires_at))) as k
$$;
comment on function penstock.create_key(text, text, uuid, timestamptz) is
  'Creates an API key with all scopes of its role. The secret is returned once and is not stored.';

create or replace function penstock.list_api_keys(p_tenant_id uuid default null)
returns table (id uuid, tenant_id uuid, name text, prefix text, role text, created_by text,
  created_at timestamptz, expires_at timestamptz, last_used_at timestamptz, revoked_at timestamptz,
  scopes text[], parent_id uuid, owner_id uuid)
language plpgsql stable security definer set search_path = penstock, pg_temp as $$
#variable_conflict use_column
begin
  if p_tenant_id is null and not _is_service() then
    p_tenant_id := _own_tenant();
  end if;
  if p_tenant_id is not null then
    perform _require_role(p_tenant_id, array['owner', 'admin']);
  end if;
  return query
    select k.id, k.tenant_id, k.name, k.prefix, coalesce(k.role, m.role), k.created_by, k.created_at,
      k.expires_at, k.last_used_at, k.revoked_at,
      array(select s from unnest(k.scopes) as s where s = any (_role_scopes(coalesce(k.role, m.role)))
        order by s),
      k.parent_id, k.owner_id
    from api_keys k left join members m on m.tenant_id = k.tenant_id and m.user_id = k.id
    where k.tenant_id is not distinct from p_tenant_id order by k.created_at, k.id;
end
$$;
comment on function penstock.list_api_keys(uuid) is
  'Lists the API keys of a tenant with their scopes; for the service without p_tenant_id, worker and service '
  'keys.';

create or replace function penstock.list_keys(p_tenant_id uuid default null)
returns table (id uuid, tenant_id uuid, name text, prefix text, role text, created_by text,
  created_at timestamptz,
  expires_at timestamptz, last_used_at timestamptz, revoked_at timestamptz)
language sql stable security definer set search_path = penstock, pg_temp as $$
  select k.id, k.tenant_id, k.name, k.prefix, k.role, k.created_by, k.created_at, k.expires_at,
    k.last_used_at, k.revoked_at
  from list_api_keys(p_tenant_id) as k
$$;
comment on function penstock.list_keys(uuid) is
  'Lists the API keys of a tenant; for the service without p_tenant_id, worker and service keys.';

create or replace function penstock.revoke_key(p_key_id uuid)
returns void language plpgsql security definer set search_path = penstock, pg_temp as $$
declare
  v_key api_keys;
begin
  select * into v_key from api_keys where id = p_key_id and (_is_service() or exists (
    select from members m where m.tenant_id = api_keys.tenant_id and m.user_id = auth.uid()));
  if v_key.id is null then
    perform _refuse(404, 'unknown_key', 'there is no such key');
  end if;
  -- The tenant first, as everything that changes members does. Roles are read after the lock. _end_keys locks
  -- the keys in their order: locking this one here would be a deadlock with the removal of its creator.
  perform from tenants where id = v_key.tenant_id for no key update;
  perform _require_role(v_key.tenant_id, case
    when exists (select from members where tenant_id = v_key.tenant_id and user_id = v_key.id
      and role = 'owner')
    then array['owner'] else array['owner', 'admin'] end);
  perform _end_keys(array[p_key_id]);
end
$$;
comment on function penstock.revoke_key(uuid) is
  'Revokes an API key and all keys that it created, at once. Revoking it again changes nothing.';

create or replace function penstock._end_keys(p_key_ids uuid[])
returns integer language plpgsql set search_path = penstock, pg_temp as $$
declare
  v_keys api_keys[];
  v_count integer := 0;
begin
  -- A key that is being created holds a lock on its parent: it is found once the parent is locked.
  loop
    v_keys := array(
      with recursive heirs as (
        select k.id from api_keys k where k.id = any (p_key_ids)
        union
        select c.id from heirs h join api_keys c on c.parent_id = h.id)
      select k from api_keys k where k.id in (select h.id from heirs h) and k.revoked_at is null
      order by k.id for update);
    exit when cardinality(v_keys) = 0;
    update api_keys k set revoked_at = _now() from unnest(v_keys) as x where k.id = x.id;
    -- A trigger of the operator's may keep a key.
    exit when not found;
    -- Even if it was the last owner: a leaked key must be revocable.
    delete from members m using unnest(v_keys) as x where m.user_id = x.id;
    delete from profiles p using unnest(v_keys) as x where p.user_id = x.id;
    perform _audit(x.tenant_id, 'key.revoked', null, 'key:' || x.id) from unnest(v_keys) as x;
    v_count := v_count + cardinality(v_keys);
  end loop;
  return v_count;
end
$$;
comment on function penstock._end_keys(uuid[]) is
  'Revokes these keys and their descendants; returns their number.';

create or replace function penstock._end_member_keys(p_tenant_id uuid, p_user_id uuid, p_role text)
returns void language plpgsql set search_path = penstock, pg_temp as $$
begin
  perform _end_keys(array(
    select k.id from api_keys k left join members m on m.tenant_id = k.tenant_id and m.user_id = k.id
    where k.tenant_id = p_tenant_id and k.revoked_at is null
      and (k.id = p_user_id and p_role is null or k.owner_id = p_user_id
        and (p_role is null or not _role_scopes(m.role) <@ _role_scopes(p_role)
          or m.role = 'owner' and p_role <> 'owner'))));
end
$$;
comment on function penstock._end_member_keys(uuid, uuid, text) is
  'Revokes the keys that a member created and that may do more than the new role (null: all).';

create or replace function penstock._key_role(p_key penstock.api_keys)
returns text language sql stable set search_path = penstock, pg_temp as $$
  select coalesce(p_key.role,
    (select m.role from members m where m.tenant_id = p_key.tenant_id and m.user_id = p_key.id))
  where p_key.revoked_at is null and (p_key.expires_at is null or p_key.expires_at > _now())
$$;
comment on function penstock._key_role(penstock.api_keys) is
  'The role of an API key; null if the key is expired, revoked, or no longer a member of its tenant.';

create or replace function penstock.use_api_key(p_digest bytea)
returns table (id uuid, tenant_id uuid, role text, scopes text[])
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
  return query select v_key.id, v_key.tenant_id, v_role, v_key.scopes;
end
$$;
comment on function penstock.use_api_key(bytea) is
  'Finds the API key with this SHA-256 digest; no row if it is unknown, expired or revoked.';

create or replace function penstock.use_key(p_digest bytea)
returns table (id uuid, tenant_id uuid, role text)
language sql security definer set search_path = penstock, pg_temp as $$
  select k.id, k.tenant_id, k.role from use_api_key(p_digest) as k
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

-- Processes with open event streams look for new rows every second, and then check who may still watch.
create or replace function penstock._on_access_change()
returns trigger language plpgsql security definer set search_path = penstock, pg_temp as $$
begin
  delete from access_changes where ctid = any (array(
    select ctid from access_changes where at < _now() - interval '1 hour' limit 100 for update skip locked));
  insert into access_changes (at) values (_now());
  return null;
end
$$;
comment on function penstock._on_access_change() is
  'Records that a caller may have lost access, for processes that serve open streams.';

create or replace trigger members_access after update or delete on penstock.members
  for each statement execute function penstock._on_access_change();
create or replace trigger api_keys_access after update of revoked_at on penstock.api_keys
  for each statement execute function penstock._on_access_change();

create or replace function penstock.recent_access_changes()
returns setof bigint language sql stable security definer set search_path = penstock, pg_temp as $$
  -- A transaction that took longer is found by the check that streams make once a minute anyway.
  select id from access_changes where at > _now() - interval '2 minutes'
$$;
comment on function penstock.recent_access_changes() is
  'Ids of recent changes of memberships and keys. A new id means: check who may still watch a stream.';

create or replace function penstock.begin_request(p_key text, p_digest bytea)
returns jsonb language plpgsql security definer set search_path = penstock, pg_temp as $$
declare
  v_actor text := _actor();
  v_earlier requests;
begin
  perform _check_clean(p_key, 'Idempotency-Key', 'invalid_key');
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
