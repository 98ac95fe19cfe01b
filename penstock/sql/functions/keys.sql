-- API keys, and requests that are sent twice.
-- A tenant's key is a member of that tenant: policies and role checks need no second rule for it.

create or replace function penstock.create_key(
  p_name text, p_role text, p_tenant_id uuid default null, p_expires_at timestamptz default null)
returns table (id uuid, tenant_id uuid, prefix text, secret text)
language plpgsql security definer set search_path = penstock, pg_temp as $$
#variable_conflict use_column
declare
  c_most constant integer := 100;
  v_id uuid := gen_random_uuid();
  -- 244 random bits from the server's strong source.
  v_secret text := 'psk_' || replace(gen_random_uuid()::text || gen_random_uuid()::text, '-', '');
  v_tenant_id uuid;
begin
  if coalesce(length(p_name), 0) not between 1 and 200 then
    perform _refuse(422, 'invalid_name', 'a key''s name has 1 to 200 characters', '{"field": "name"}');
  end if;
  if p_role is null or p_role not in ('owner', 'admin', 'member', 'viewer', 'worker', 'service') then
    perform _refuse(422, 'invalid_role', 'a key is for an owner, admin, member or viewer, a worker or a service', '{"field": "role"}');
  end if;
  perform _check_time(p_expires_at, 'expires_at');
  if p_expires_at <= _now() then
    perform _refuse(422, 'invalid_expiry', 'a key expires in the future', '{"field": "expires_at"}');
  end if;
  if p_role in ('worker', 'service') then
    if not _is_service() then
      perform _refuse(403, 'forbidden', 'only the service makes keys for workers and services');
    elsif p_tenant_id is not null then
      perform _refuse(422, 'invalid_role', 'keys of workers and services belong to no tenant', '{"field": "tenant_id"}');
    end if;
  else
    v_tenant_id := _caller_tenant(p_tenant_id);
    perform _require_role(v_tenant_id, case when p_role = 'owner' then array['owner'] else array['owner', 'admin'] end);
    if not _is_service() then
      -- Two that come at once are counted one after the other.
      perform from tenants t where t.id = v_tenant_id for no key update;
      if (select count(*) from api_keys k where k.tenant_id = v_tenant_id and k.revoked_at is null and (k.expires_at is null or k.expires_at > _now())) >= c_most then
        perform _refuse(409, 'too_many_keys', format('a tenant has at most %s keys', c_most), jsonb_build_object('limit', c_most),
          'Revoke those that are not needed.');
      end if;
    end if;
  end if;
  insert into api_keys (id, tenant_id, name, prefix, digest, role, created_by, created_at, expires_at)
  values (v_id, v_tenant_id, p_name, left(v_secret, 12), sha256(convert_to(v_secret, 'utf8')),
    case when v_tenant_id is null then p_role end, _actor(), _now(), p_expires_at);
  if v_tenant_id is not null then
    insert into members (tenant_id, user_id, role, created_at) values (v_tenant_id, v_id, p_role, _now());
    -- The profile says where the key works, also when another tenant makes it a member.
    insert into profiles (user_id, tenant_id, display_name, created_at) values (v_id, v_tenant_id, p_name, _now());
  end if;
  perform _audit(v_tenant_id, 'key.created', null, 'key:' || v_id, jsonb_build_object('name', p_name, 'role', p_role));
  return query select v_id, v_tenant_id, left(v_secret, 12), v_secret;
end
$$;
comment on function penstock.create_key(text, text, uuid, timestamptz) is
  'Makes an API key. The secret is in this answer and nowhere else.';

create or replace function penstock.list_keys(p_tenant_id uuid default null)
returns table (id uuid, tenant_id uuid, name text, prefix text, role text, created_by text, created_at timestamptz,
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
comment on function penstock.list_keys(uuid) is 'The API keys of a tenant; for the service without a tenant those of workers and services.';

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
    when exists (select from members where tenant_id = v_key.tenant_id and user_id = v_key.id and role = 'owner')
    then array['owner'] else array['owner', 'admin'] end);
  if v_key.revoked_at is not null then
    return;
  end if;
  update api_keys set revoked_at = _now() where id = p_key_id;
  -- Also if it was the last owner: a key that leaked must go, whatever follows.
  delete from members where user_id = p_key_id;
  delete from profiles where user_id = p_key_id;
  perform _audit(v_key.tenant_id, 'key.revoked', null, 'key:' || p_key_id);
end
$$;
comment on function penstock.revoke_key(uuid) is 'Ends an API key at once. Ending it again changes nothing.';

create or replace function penstock._key_role(p_key penstock.api_keys)
returns text language sql stable set search_path = penstock, pg_temp as $$
  select coalesce(p_key.role, (select m.role from members m where m.tenant_id = p_key.tenant_id and m.user_id = p_key.id))
  where p_key.revoked_at is null and (p_key.expires_at is null or p_key.expires_at > _now())
$$;
comment on function penstock._key_role(penstock.api_keys) is 'What a key is good for; null for one that is expired, revoked, or no member any more.';

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
  -- To the minute: not a write for each request, and nobody waits for another's.
  if v_key.last_used_at is null or v_key.last_used_at < v_now - interval '1 minute' then
    update api_keys set last_used_at = v_now where ctid = (
      select k.ctid from api_keys k where k.id = v_key.id for no key update skip locked);
  end if;
  return query select v_key.id, v_key.tenant_id, v_role;
end
$$;
comment on function penstock.use_key(bytea) is 'Whose key has this SHA-256, with its role; no row for one that is unknown, expired or revoked.';

create or replace function penstock.check_key()
returns void language plpgsql stable security definer set search_path = penstock, pg_temp as $$
begin
  if auth.uid() is not null and not exists (select from api_keys k where k.id = auth.uid() and _key_role(k) is not null) then
    perform _refuse(401, 'unauthenticated', 'the API key is not valid');
  end if;
end
$$;
comment on function penstock.check_key() is 'Refuses a caller whose id is no key''s, or of one that has ended. For those who came with a key, at the beginning of their transaction.';

create or replace function penstock.list_strangers(p_user_ids uuid[], p_tenant_ids uuid[])
returns table (place integer) language sql stable security definer set search_path = penstock, pg_temp as $$
  select c.n::integer from unnest(p_user_ids, p_tenant_ids) with ordinality as c(user_id, tenant_id, n)
  where exists (select from api_keys k where k.id = c.user_id and _key_role(k) is null)
    or c.tenant_id is not null and not exists (
      select from members m where m.tenant_id = c.tenant_id and m.user_id = c.user_id)
$$;
comment on function penstock.list_strangers(uuid[], uuid[]) is
  'The places of those users and keys that are not, or not any more, in the tenant beside them; with null beside them, of keys that have ended.';

create or replace function penstock.begin_request(p_key text, p_digest bytea)
returns jsonb language plpgsql security definer set search_path = penstock, pg_temp as $$
declare
  v_actor text := _actor();
  v_before requests;
begin
  if v_actor = 'anonymous' then
    perform _refuse(401, 'unauthenticated', 'nobody is logged in');
  elsif coalesce(length(p_key), 0) not between 1 and 255 or p_digest is null then
    perform _refuse(422, 'invalid_key', 'an idempotency key has 1 to 255 characters', '{"field": "Idempotency-Key"}');
  end if;
  -- Each brings a little more to an end than it adds.
  delete from requests where ctid = any (array(
    select ctid from requests where created_at < _now() - interval '1 day' order by created_at limit 5 for update skip locked));
  -- Waits for the same request, if that is just being answered.
  insert into requests (actor, key, digest, created_at) values (v_actor, p_key, p_digest, _now())
  on conflict (actor, key) do nothing;
  if found then
    return null;
  end if;
  select * into v_before from requests where actor = v_actor and key = p_key;
  if v_before.digest is distinct from p_digest then
    perform _refuse(409, 'idempotency_key_reused', 'this idempotency key was used for another request', '{}',
      'A new request needs a new key.');
  end if;
  return jsonb_build_object('status', v_before.status, 'answer', v_before.answer);
end
$$;
comment on function penstock.begin_request(text, bytea) is
  'Notes that the caller sends this request; null if it is the first time, else the answer that was given. Answers are kept for a day.';

create or replace function penstock.end_request(p_key text, p_status integer, p_answer jsonb)
returns void language plpgsql security definer set search_path = penstock, pg_temp as $$
begin
  -- Users can call this too: it keeps answers, not files. The longest has the ids of a hundred thousand tasks.
  if p_status is null or p_status not between 200 and 599 then
    perform _refuse(422, 'invalid_status', 'a status is 200 to 599', '{"field": "p_status"}');
  end if;
  perform _check_document(p_answer, 'p_answer', 2000000);
  update requests set status = p_status, answer = p_answer
  where actor = _actor() and key = p_key and status is null;
end
$$;
comment on function penstock.end_request(text, integer, jsonb) is 'Keeps the answer to a request, in the transaction that began it.';
