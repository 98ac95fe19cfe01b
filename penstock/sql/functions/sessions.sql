-- Sessions of the dashboard. The browser holds a random token in a cookie; its SHA-256 is stored here. A
-- session acts as the user or API key that signed in, and ends with it.

create or replace function penstock._session_is_live(p_session penstock.sessions)
returns boolean language sql stable set search_path = penstock, pg_temp as $$
  select p_session.expires_at > _now()
    and p_session.last_seen_at > _now() - make_interval(mins => (_setting('session_idle_minutes'))::integer)
    and (p_session.key_id is null
      or exists (select from api_keys k where k.id = p_session.key_id and _key_role(k) is not null))
$$;
comment on function penstock._session_is_live(penstock.sessions) is
  'Whether a session has neither expired nor been idle for too long, and its API key is still valid.';

create or replace function penstock.open_session(p_role text, p_subject uuid, p_options jsonb default '{}')
returns table (id uuid, secret text, expires_at timestamptz)
language plpgsql security definer set search_path = penstock, pg_temp as $$
#variable_conflict use_column
declare
  c_max_sessions constant integer := 50;
  v_secret text := 'pss_' || replace(gen_random_uuid()::text || gen_random_uuid()::text, '-', '');
  v_session sessions;
begin
  perform _check_fields(p_options, array['user_agent', 'expires_at'], 'session');
  v_session.id := gen_random_uuid();
  v_session.expires_at := least((p_options ->> 'expires_at')::timestamptz,
    _now() + make_interval(hours => (_setting('session_hours'))::integer));
  -- Each call deletes more sessions than it adds, so that the table stays small.
  delete from sessions where ctid = any (array(
    select ctid from sessions where expires_at < _now() order by expires_at limit 10 for update skip locked));
  delete from sessions where ctid = any (array(
    select ctid from sessions where subject = p_subject order by created_at desc offset c_max_sessions - 1
    for update skip locked));
  insert into sessions (id, digest, role, subject, key_id, user_agent, created_at, last_seen_at, expires_at)
  values (v_session.id, sha256(convert_to(v_secret, 'utf8')), p_role, p_subject,
    (select k.id from api_keys k where k.id = p_subject), left(p_options ->> 'user_agent', 200), _now(),
    _now(), v_session.expires_at);
  perform _audit(null, 'session.opened', null, 'session:' || v_session.id,
    jsonb_build_object('subject', p_subject, 'role', p_role));
  return query select v_session.id, v_secret, v_session.expires_at;
end
$$;
comment on function penstock.open_session(text, uuid, jsonb) is
  'Opens a dashboard session for a user, an API key or (null) the holder of a service token. The secret is '
  'returned once and is not stored. Options: user_agent, expires_at (no later than this).';

create or replace function penstock.use_session(p_digest bytea, p_is_active boolean default true)
returns table (id uuid, role text, subject uuid, is_key boolean, scopes text[])
language plpgsql security definer set search_path = penstock, pg_temp as $$
#variable_conflict use_column
declare
  v_session sessions;
begin
  select * into v_session from sessions s where s.digest = p_digest;
  if not found or not _session_is_live(v_session) then
    return;
  end if;
  -- Written at most once per minute, and never waits for a concurrent request.
  if p_is_active and v_session.last_seen_at < _now() - interval '1 minute' then
    update sessions set last_seen_at = _now() where ctid = (
      select s.ctid from sessions s where s.id = v_session.id for no key update skip locked);
  end if;
  return query select v_session.id, v_session.role, v_session.subject, v_session.key_id is not null,
    (select k.scopes from api_keys k where k.id = v_session.key_id);
end
$$;
comment on function penstock.use_session(bytea, boolean) is
  'Finds the session with this SHA-256 digest; no row if it has ended. An active request restarts its idle '
  'time.';

create or replace function penstock.check_session()
returns void language plpgsql stable security definer set search_path = penstock, pg_temp as $$
begin
  if not exists (
    select from sessions s where s.id = (auth.jwt() ->> 'penstock_session')::uuid
      and s.subject is not distinct from auth.uid() and _session_is_live(s)) then
    perform _refuse(401, 'unauthenticated', 'the session has ended', '{}', 'Sign in again.');
  end if;
end
$$;
comment on function penstock.check_session() is
  'Raises an error unless the caller''s session is live. The API calls it at the start of each transaction.';

create or replace function penstock.list_sessions(p_subject uuid default null)
returns table (id uuid, subject uuid, role text, user_agent text, created_at timestamptz,
  last_seen_at timestamptz, expires_at timestamptz, is_current boolean)
language sql stable security definer set search_path = penstock, pg_temp as $$
  select s.id, s.subject, s.role, s.user_agent, s.created_at, s.last_seen_at, s.expires_at,
    s.id is not distinct from (auth.jwt() ->> 'penstock_session')::uuid
  from sessions s
  where case when _is_service() then p_subject is null or s.subject = p_subject
      else s.subject = auth.uid() end
    and _session_is_live(s)
  order by s.last_seen_at desc, s.id limit 1000
$$;
comment on function penstock.list_sessions(uuid) is
  'Lists the caller''s live sessions; for the service those of a subject, or all.';

create or replace function penstock.end_session(p_session_id uuid)
returns void language plpgsql security definer set search_path = penstock, pg_temp as $$
begin
  delete from sessions where id = p_session_id and (_is_service() or subject = auth.uid());
  if not found then
    perform _refuse(404, 'unknown_session', 'there is no such session');
  end if;
  perform _audit(null, 'session.ended', null, 'session:' || p_session_id);
end
$$;
comment on function penstock.end_session(uuid) is 'Ends one of the caller''s sessions; for the service, any.';

create or replace function penstock.end_other_sessions()
returns integer language plpgsql security definer set search_path = penstock, pg_temp as $$
declare
  v_count integer;
begin
  delete from sessions where subject = auth.uid()
    and id is distinct from (auth.jwt() ->> 'penstock_session')::uuid;
  get diagnostics v_count = row_count;
  if v_count > 0 then
    perform _audit(null, 'session.ended', null, 'user:' || auth.uid(), jsonb_build_object('count', v_count));
  end if;
  return v_count;
end
$$;
comment on function penstock.end_other_sessions() is
  'Ends all sessions of the caller except the current one; returns their number.';

create or replace function penstock.close_session(p_digest bytea)
returns void language sql security definer set search_path = penstock, pg_temp as $$
  delete from sessions where digest = p_digest
$$;
comment on function penstock.close_session(bytea) is
  'Ends the session with this SHA-256 digest, to sign out.';

create or replace function penstock.list_ended_sessions(p_session_ids uuid[])
returns setof uuid language sql stable security definer set search_path = penstock, pg_temp as $$
  select g.id from unnest(p_session_ids) as g(id)
  where not exists (select from sessions s where s.id = g.id and _session_is_live(s))
$$;
comment on function penstock.list_ended_sessions(uuid[]) is 'Those of the sessions that have ended.';

create or replace trigger sessions_access after delete on penstock.sessions
  for each statement execute function penstock._on_access_change();
