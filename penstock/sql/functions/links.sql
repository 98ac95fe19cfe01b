-- Links: addresses of files that are written into sheets and open in a browser. A link is public,
-- signed (for link_days) or for members who sign in; its job chooses. It lives as long as the file.

insert into penstock.settings (name, value, comment) values
  ('link_days', '30', 'How many days after a file was stored its signed link opens.')
on conflict (name) do nothing;

create or replace function penstock._link_token(p_artifact_id uuid)
returns text language sql stable set search_path = penstock, pg_temp as $$
  -- Hashed twice with the secret, as an HMAC does. A repeated write of a sheet gives the same link.
  select encode(sha256(s.secret || sha256(s.secret || uuid_send(p_artifact_id))), 'hex') from link_secrets s
$$;
comment on function penstock._link_token(uuid) is 'The token in the link of a file.';

create or replace function penstock._link_path(p_artifact_id uuid, p_link text)
returns text language sql stable set search_path = penstock, pg_temp as $$
  select '/links/' || p_artifact_id || case p_link when 'login' then ''
    else '/' || _link_token(p_artifact_id) end
$$;
comment on function penstock._link_path(uuid, text) is 'The path of a link, after the address of the server.';

create or replace function penstock._check_link(p_link text)
returns void language plpgsql immutable set search_path = penstock, pg_temp as $$
begin
  if p_link not in ('public', 'signed', 'login') then
    perform _refuse(422, 'invalid_link',
      format('link must be public, signed or login (got %L)', left(p_link, 100)), '{"field": "source.link"}');
  end if;
end
$$;
comment on function penstock._check_link(text) is 'Raises an error for an unknown kind of link.';

create or replace function penstock.link_artifacts(p_job_id uuid, p_artifact_ids uuid[])
returns table (id uuid, path text)
language plpgsql security definer set search_path = penstock, pg_temp as $$
#variable_conflict use_column
declare
  v_kind text;
  v_days integer := (_setting('link_days'))::integer;
begin
  select coalesce(b.source ->> 'link', 'login') into v_kind from bulks b where b.job_id = p_job_id;
  if not found then
    perform _refuse(404, 'unknown_bulk', 'the job is not a bulk job');
  end if;
  -- A row's output may name any file: only files of this job get its kind of link.
  update artifacts a set link = v_kind,
    link_until = case v_kind when 'signed' then a.stored_at + make_interval(days => v_days) end
  where a.id = any (array(
      select x.id from artifacts x
      where x.id = any (p_artifact_ids) and x.job_id = p_job_id and x.status = 'stored'
      order by x.id for no key update))
    and a.link is null;
  return query select a.id, _link_path(a.id, a.link) from artifacts a
  where a.id = any (p_artifact_ids) and a.job_id = p_job_id and a.status = 'stored';
end
$$;
comment on function penstock.link_artifacts(uuid, uuid[]) is
  'Gives files of a bulk job the kind of link that the job chose (source.link: public, signed or login), and '
  'returns the paths of their links.';

create or replace function penstock.open_link(p_artifact_id uuid, p_token text)
returns table (tenant_id uuid, path text, name text, content_type text)
language plpgsql stable security definer set search_path = penstock, pg_temp as $$
#variable_conflict use_column
declare
  v_artifact artifacts;
begin
  -- Compares hashes, so that the time of the comparison says nothing about the token.
  if sha256(convert_to(coalesce(p_token, ''), 'utf8'))
     is distinct from sha256(convert_to(_link_token(p_artifact_id), 'utf8')) then
    perform _refuse(404, 'unknown_link', 'this link is not valid', '{}', 'Copy the whole link.');
  end if;
  select * into v_artifact from artifacts where id = p_artifact_id and status = 'stored';
  if not found then
    perform _refuse(410, 'file_gone', 'the file was deleted, or its record is no longer kept');
  end if;
  if v_artifact.link = 'signed' and v_artifact.link_until <= _now() then
    perform _refuse(410, 'link_expired', format('this link ended on %s (UTC)',
      to_char(v_artifact.link_until at time zone 'utc', 'YYYY-MM-DD HH24:MI')), '{}',
      'Sign in to the dashboard, or ask the sender for a new link.');
  end if;
  if coalesce(v_artifact.link, 'login') = 'login' then
    perform _refuse(401, 'login_required', 'sign in to open this file');
  end if;
  return query select v_artifact.tenant_id, v_artifact.path, v_artifact.name, v_artifact.content_type;
end
$$;
comment on function penstock.open_link(uuid, text) is
  'The file of a link with its token. Refuses with 404 (wrong token), 410 (the file or the link is gone) or '
  '401 (members only).';

create or replace function penstock.set_artifact_link(p_artifact_id uuid, p_link text)
returns text language plpgsql security definer set search_path = penstock, pg_temp as $$
declare
  v_artifact artifacts := _lock_visible_artifact(p_artifact_id, array['owner', 'admin', 'member']);
begin
  perform _check_link(coalesce(p_link, ''));
  if v_artifact.status <> 'stored' then
    perform _refuse(409, 'not_stored', format('only a stored file can have a link (%s)', v_artifact.status));
  end if;
  if v_artifact.link is distinct from p_link or p_link = 'signed' then
    update artifacts set link = p_link, link_until = case p_link when 'signed'
      then _now() + make_interval(days => (_setting('link_days'))::integer) end
    where id = p_artifact_id;
    perform _audit(v_artifact.tenant_id, 'artifact.linked', v_artifact.job_id, 'artifact:' || p_artifact_id,
      jsonb_build_object('from', v_artifact.link, 'to', p_link));
  end if;
  return _link_path(p_artifact_id, p_link);
end
$$;
comment on function penstock.set_artifact_link(uuid, text) is
  'Changes who may open the link of a file (public, signed for link_days from now, or login) and returns the '
  'path of the link. With login, links that were given out before ask for a sign-in.';
