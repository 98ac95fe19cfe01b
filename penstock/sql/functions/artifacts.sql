-- Artifacts: files in object storage. begin_artifact makes the record, the caller writes the file, finish_artifact says
-- that it is whole. Whatever dies in between leaves a pending record, and its file goes with it: see due_artifacts.
-- Only what is stored counts as used; what is pending is set aside. Lock order: lease, artifact, hold, account.

insert into penstock.settings (name, value, comment) values
  ('max_artifact_bytes', '1073741824', 'Largest file that a task may save.'),
  ('max_upload_bytes', '104857600', 'Largest file that a client may upload.')
on conflict (name) do nothing;

create or replace function penstock._artifact_path(p_folder text, p_stem text, p_name text, p_content_type text)
returns text language plpgsql immutable set search_path = penstock, pg_temp as $$
declare
  v_given text := substring(p_name from '\.([A-Za-z0-9]{1,10})$');
  v_stem text := case when v_given is null then p_name else left(p_name, -length(v_given) - 1) end;
  v_plain text := left(trim('-' from regexp_replace(lower(v_stem), '[^a-z0-9_]+', '-', 'g')), 60);
  v_end text := coalesce(lower(v_given), case p_content_type
    when 'application/pdf' then 'pdf' when 'image/png' then 'png' when 'image/jpeg' then 'jpg' when 'image/gif' then 'gif'
    when 'image/webp' then 'webp' when 'audio/mpeg' then 'mp3' when 'audio/wav' then 'wav' when 'audio/mp4' then 'm4a'
    when 'video/mp4' then 'mp4' when 'application/zip' then 'zip' when 'application/json' then 'json'
    when 'text/plain' then 'txt' when 'text/csv' then 'csv' when 'text/markdown' then 'md' else 'bin' end);
begin
  -- Names that differ have paths that differ, also where a file system does not tell a from A.
  if p_name <> '' and (v_plain = '' or v_plain || '.' || v_end <> p_name) then
    v_plain := trim('-' from v_plain || '-' || left(encode(sha256(convert_to(p_name, 'utf8')), 'hex'), 12));
  end if;
  return p_folder || '/' || p_stem || case when v_plain = '' then '' else '-' || v_plain end || '.' || v_end;
end
$$;
comment on function penstock._artifact_path(text, text, text, text) is 'Where a file goes: plain characters only, the same for the same name.';

create or replace function penstock._check_artifact(p_name text, p_content_type text, p_bytes bigint, p_limit bigint)
returns void language plpgsql stable set search_path = penstock, pg_temp as $$
begin
  if p_name is null or length(p_name) > 200 or p_name ~ '[[:cntrl:]/\\]' then
    perform _refuse(422, 'invalid_name', 'the name of a file has at most 200 characters, and no slash or control character', '{"field": "p_name"}');
  end if;
  if coalesce(p_content_type, '') !~ '^[a-z0-9][a-z0-9!#$&^_.+-]{0,63}/[a-z0-9][a-z0-9!#$&^_.+-]{0,99}$' then
    perform _refuse(422, 'invalid_content_type', 'a content type is such as image/png', '{"field": "p_content_type"}');
  end if;
  if p_bytes < 0 then
    perform _refuse(422, 'invalid', 'p_bytes is 0 or more', '{"field": "p_bytes"}');
  end if;
  if p_bytes > p_limit then
    perform _refuse(413, 'too_large', format('the file is %s bytes; the limit is %s', p_bytes, p_limit),
      jsonb_build_object('field', 'p_bytes', 'bytes', p_bytes, 'limit', p_limit));
  end if;
end
$$;
comment on function penstock._check_artifact(text, text, bigint, bigint) is 'Refuses what cannot be the name, type or size of a file.';

create or replace function penstock._uncount_artifacts(p_artifacts penstock.artifacts[])
returns void language plpgsql set search_path = penstock, pg_temp as $$
declare
  v_bookings booking[];
  v_holds holds[];
begin
  -- All together, so that accounts are locked in their order, whatever the order of the files.
  v_bookings := array(
    select b from unnest(p_artifacts) as a
    cross join lateral unnest(_note_usage(a.tenant_id, 'artifact', jsonb_build_object('bytes', -a.bytes), null, null,
      jsonb_build_object('artifact_id', a.id))) as b
    where a.status = 'stored' and a.bytes > 0);
  with due as (
    -- One that somebody has in hand has just run out: it is given back by whoever has it.
    select h.id from holds h where h.id = any (array(select a.hold_id from unnest(p_artifacts) as a where a.status = 'pending'))
      and h.status = 'held' for update skip locked
  ), gone as (
    update holds h set status = 'released', settled_at = _now() from due where h.id = due.id returning h as hold
  )
  select array_agg(g.hold) into v_holds from gone g;
  v_bookings := v_bookings || array(select b from unnest(v_holds) as h cross join lateral unnest(_release_bookings(h)) as b);
  if cardinality(v_bookings) > 0 then
    perform _book(v_bookings);
    perform _wake_waiting(array(select distinct a.tenant_id from unnest(p_artifacts) as a));
  end if;
end
$$;
comment on function penstock._uncount_artifacts(penstock.artifacts[]) is
  'Gives back what files take of the quotas, or had set aside. Their rows are locked by the caller. Once per transaction.';

create or replace function penstock._hold_bytes(p_tenant_id uuid, p_bytes bigint)
returns uuid language sql set search_path = penstock, pg_temp as $$
  select reserve_quota(p_tenant_id, jsonb_build_object('bytes', p_bytes), 'artifact', null, 86400) where p_bytes > 0
$$;
comment on function penstock._hold_bytes(uuid, bigint) is 'Sets room for a file aside.';

create or replace function penstock.begin_artifact(
  p_task_id bigint, p_worker_id text, p_lease bigint default null, p_name text default '',
  p_content_type text default 'application/octet-stream', p_bytes bigint default null)
returns table (id uuid, path text, max_bytes bigint)
language plpgsql security definer set search_path = penstock, pg_temp as $$
declare
  v_lease leases := _keep_lease(p_task_id, p_worker_id, p_lease);
  v_limit bigint := (_setting('max_artifact_bytes'))::bigint;
  v_now timestamptz := _now();
  v_path text;
  v_old artifacts;
  v_id uuid;
begin
  perform _check_artifact(p_name, p_content_type, p_bytes, v_limit);
  select _artifact_path(concat_ws('/', t.tenant_id, t.job_id, t.kind), t.id::text, p_name, p_content_type) into v_path
  from tasks t where t.job_id = v_lease.job_id and t.id = p_task_id;
  -- Whoever removes a file without a record at this path goes first or last: see orphaned_artifacts.
  perform pg_advisory_xact_lock(hashtextextended('penstock.artifact:' || v_path, 0));
  select a.* into v_old from artifacts a where a.tenant_id = v_lease.tenant_id and a.path = v_path for update;
  if v_old.id is not null then
    perform _uncount_artifacts(array[v_old]);
    update artifacts a set lease = v_lease.lease, name = p_name, content_type = p_content_type, bytes = p_bytes, sha256 = null,
      status = 'pending', begun_at = v_now, stored_at = null, hold_id = _hold_bytes(v_lease.tenant_id, p_bytes)
    where a.id = v_old.id;
    v_id := v_old.id;
  else
    insert into artifacts as a (tenant_id, job_id, task_id, lease, name, path, content_type, bytes, hold_id, created_by, created_at, begun_at)
    values (v_lease.tenant_id, v_lease.job_id, p_task_id, v_lease.lease, p_name, v_path, p_content_type, p_bytes,
      _hold_bytes(v_lease.tenant_id, p_bytes), _actor(), v_now, v_now)
    returning a.id into v_id;
  end if;
  return query select v_id, v_path, coalesce(p_bytes, v_limit);
end
$$;
comment on function penstock.begin_artifact(bigint, text, bigint, text, text, bigint) is
  'Makes the record of a file that a running task is about to write, sets p_bytes of the quota aside, and says where it goes. The same name again, by a retry too, is the same file.';

create or replace function penstock.begin_upload(p_name text, p_content_type text, p_bytes bigint, p_options jsonb default '{}')
returns table (id uuid, tenant_id uuid, incoming text)
language plpgsql security definer set search_path = penstock, pg_temp as $$
#variable_conflict use_column
declare
  v_tenant_id uuid;
  v_key text := p_options ->> 'idempotency_key';
  v_now timestamptz := _now();
  v_id uuid := _uuid7();
  v_artifact artifacts;
begin
  perform _check_fields(coalesce(p_options, '{}'), array['tenant_id', 'idempotency_key'], 'upload');
  begin
    v_tenant_id := nullif(p_options ->> 'tenant_id', '')::uuid;
  exception when data_exception then
    perform _refuse(422, 'invalid_options', 'tenant_id is not an id', '{"field": "tenant_id"}');
  end;
  v_tenant_id := _caller_tenant(v_tenant_id);
  if p_bytes is null then
    perform _refuse(422, 'invalid', 'p_bytes is missing', '{"field": "p_bytes"}');
  end if;
  if length(v_key) not between 1 and 255 then
    perform _refuse(422, 'invalid_key', 'idempotency_key has 1 to 255 characters', '{"field": "idempotency_key"}');
  end if;
  perform _check_artifact(p_name, p_content_type, p_bytes, (_setting('max_upload_bytes'))::bigint);
  if (select count(*) from (select from artifacts a where a.tenant_id = v_tenant_id and a.status <> 'stored' limit 1000) as x) = 1000 then
    perform _refuse(429, 'limited', 'a thousand uploads are under way, or were given up in the last hour', '{"retry_after_seconds": 60}');
  end if;
  insert into artifacts as a (id, tenant_id, name, path, incoming, content_type, bytes, idempotency_key, created_by, created_at, begun_at)
  values (v_id, v_tenant_id, p_name, _artifact_path(v_tenant_id || '/uploads', v_id::text, '', p_content_type),
    v_tenant_id || '/incoming/' || v_id, p_content_type, p_bytes, v_key, _actor(), v_now, v_now)
  on conflict (tenant_id, idempotency_key) where idempotency_key is not null do nothing returning a.* into v_artifact;
  if v_artifact.id is null then
    select a.* into v_artifact from artifacts a where a.tenant_id = v_tenant_id and a.idempotency_key = v_key;
    if (v_artifact.name, v_artifact.content_type) is distinct from (p_name, p_content_type)
       or v_artifact.status = 'pending' and v_artifact.bytes <> p_bytes then
      perform _refuse(409, 'idempotency_key_reused', 'this idempotency key was used for another file', jsonb_build_object('artifact_id', v_artifact.id));
    end if;
  else
    update artifacts a set hold_id = _hold_bytes(v_tenant_id, p_bytes) where a.id = v_id;
  end if;
  return query select v_artifact.id, v_artifact.tenant_id, v_artifact.incoming;
end
$$;
comment on function penstock.begin_upload(text, text, bigint, jsonb) is
  'Makes the record of a file that a client is about to upload, sets its size aside, and says where it goes at first. Options: tenant_id, idempotency_key. take_upload and finish_artifact follow.';

create or replace function penstock.take_upload(p_artifact_id uuid)
returns table (tenant_id uuid, name text, incoming text, path text, content_type text, bytes bigint, lease bigint)
language plpgsql security definer set search_path = penstock, pg_temp as $$
declare
  v_artifact artifacts := _visible_artifact(p_artifact_id, array['owner', 'admin', 'member']);
  v_lease bigint := nextval('lease_numbers');
begin
  if v_artifact.incoming is null or v_artifact.status <> 'pending' then
    perform _refuse(409, 'not_pending', format('the upload is %s', v_artifact.status), jsonb_build_object('status', v_artifact.status));
  end if;
  -- A place of its own for whoever takes it: of two at once neither writes into what the other has checked.
  return query update artifacts a set lease = v_lease, begun_at = _now(),
    path = _artifact_path(a.tenant_id || '/uploads', a.id || '-' || v_lease, '', a.content_type)
  where a.id = p_artifact_id returning a.tenant_id, a.name, a.incoming, a.path, a.content_type, a.bytes, a.lease;
end
$$;
comment on function penstock.take_upload(uuid) is 'Says where an upload is, and where its checked copy goes. finish_artifact with this lease ends it.';

create or replace function penstock._visible_artifact(p_artifact_id uuid, p_roles text[])
returns penstock.artifacts language plpgsql set search_path = penstock, pg_temp as $$
declare
  v_artifact artifacts;
begin
  select * into v_artifact from artifacts where id = p_artifact_id
    and (_is_service() or tenant_id in (select my_tenants())) for update;
  if not found then
    perform _refuse(404, 'unknown_artifact', 'there is no such artifact');
  end if;
  perform _require_role(v_artifact.tenant_id, p_roles);
  return v_artifact;
end
$$;
comment on function penstock._visible_artifact(uuid, text[]) is 'An artifact the caller may see and act on, locked.';

create or replace function penstock._fenced_artifact(p_artifact_id uuid, p_worker_id text, p_lease bigint)
returns penstock.artifacts language plpgsql set search_path = penstock, pg_temp as $$
declare
  v_artifact artifacts;
  v_lease bigint := p_lease;
begin
  select * into v_artifact from artifacts where id = p_artifact_id;
  if v_artifact.task_id is not null then
    v_lease := (_keep_lease(v_artifact.task_id, p_worker_id, p_lease)).lease;
  end if;
  select * into v_artifact from artifacts where id = p_artifact_id for update;
  if not found then
    perform _refuse(404, 'unknown_artifact', 'there is no such artifact');
  end if;
  -- An upload is finished by the service itself, never in the name of a worker.
  if v_artifact.lease is distinct from v_lease or v_artifact.status = 'deleted'
     or v_artifact.task_id is null and p_worker_id is not null then
    perform _refuse(410, 'lease_lost', 'this file is being written by another, or was removed', jsonb_build_object('artifact_id', p_artifact_id));
  end if;
  return v_artifact;
end
$$;
comment on function penstock._fenced_artifact(uuid, text, bigint) is 'An artifact, locked, if it is still this lease''s.';

create or replace function penstock.finish_artifact(
  p_artifact_id uuid, p_worker_id text, p_lease bigint, p_bytes bigint, p_sha256 text)
returns void language plpgsql security definer set search_path = penstock, pg_temp as $$
declare
  v_artifact artifacts := _fenced_artifact(p_artifact_id, p_worker_id, p_lease);
begin
  if p_bytes is null or p_bytes < 0 or coalesce(p_sha256, '') !~ '^[0-9a-f]{64}$' then
    perform _refuse(422, 'invalid', 'p_bytes is the size of the file, p_sha256 its digest in 64 hexadecimal digits');
  end if;
  if v_artifact.status = 'stored' then
    if (v_artifact.bytes, v_artifact.sha256) is distinct from (p_bytes, p_sha256) then
      perform _refuse(409, 'conflict', 'the file was finished before with another content');
    end if;
    return;
  end if;
  -- What was not announced is set aside now, if there is room.
  v_artifact.hold_id := coalesce(v_artifact.hold_id, _hold_bytes(v_artifact.tenant_id, p_bytes));
  if v_artifact.hold_id is not null then
    perform commit_hold(v_artifact.hold_id, jsonb_build_object('bytes', p_bytes));
  end if;
  update artifacts set status = 'stored', bytes = p_bytes, sha256 = p_sha256, stored_at = _now(), hold_id = null where id = v_artifact.id;
  perform _audit(v_artifact.tenant_id, 'artifact.stored', v_artifact.job_id, 'artifact:' || v_artifact.id,
    jsonb_build_object('path', v_artifact.path, 'bytes', p_bytes, 'sha256', p_sha256));
end
$$;
comment on function penstock.finish_artifact(uuid, text, bigint, bigint, text) is
  'Says that a file is written: its size, which is counted from now on, and its SHA-256. Refuses with 410 when the lease is gone, with 429 when the quota has no room.';

create or replace function penstock.drop_artifact(p_artifact_id uuid, p_worker_id text, p_lease bigint)
returns void language plpgsql security definer set search_path = penstock, pg_temp as $$
begin
  perform _delete_artifacts(array[_fenced_artifact(p_artifact_id, p_worker_id, p_lease)]);
end
$$;
comment on function penstock.drop_artifact(uuid, text, bigint) is 'Gives a file up that could not be written; what there is of it is removed soon.';

create or replace function penstock._delete_artifacts(p_artifacts penstock.artifacts[])
returns void language plpgsql set search_path = penstock, pg_temp as $$
begin
  update artifacts set status = 'deleted', hold_id = null where id = any (array(select a.id from unnest(p_artifacts) as a));
  perform _audit(a.tenant_id, 'artifact.deleted', a.job_id, 'artifact:' || a.id, jsonb_build_object('path', a.path))
  from unnest(p_artifacts) as a where a.status = 'stored';
  perform _uncount_artifacts(p_artifacts);
end
$$;
comment on function penstock._delete_artifacts(penstock.artifacts[]) is
  'Marks files as to be removed. They count no longer. Their rows are locked by the caller. Once per transaction.';

create or replace function penstock.delete_artifact(p_artifact_id uuid)
returns boolean language plpgsql security definer set search_path = penstock, pg_temp as $$
declare
  v_artifact artifacts := _visible_artifact(p_artifact_id, array['owner', 'admin', 'member']);
begin
  if v_artifact.status = 'deleted' then
    return false;
  end if;
  perform _delete_artifacts(array[v_artifact]);
  return true;
end
$$;
comment on function penstock.delete_artifact(uuid) is 'Deletes a file: it is gone for readers and for the quota at once, from storage soon. False if it was deleted before.';

create or replace function penstock.due_artifacts(p_limit integer default 100)
returns table (id uuid, paths text[])
language plpgsql security definer set search_path = penstock, pg_temp as $$
declare
  v_now timestamptz := _now();
  v_cutoff timestamptz := v_now - make_interval(days => (_setting('retention_days'))::integer);
begin
  -- Locked until the caller's transaction ends: it removes the files, then calls forget_artifacts.
  return query select a.id, array_remove(array[a.path, a.incoming], null) from artifacts a where a.id = any (array(
    -- An upload stays on record for as long as its URL is good: what still arrives there goes with it.
    (select x.id from artifacts x where x.status <> 'stored'
      and (x.status = 'deleted' and x.incoming is null or x.begun_at < v_now - interval '1 hour')
      and (x.status = 'deleted' or x.task_id is null or not exists (
        select from leases l where l.task_id = x.task_id and l.lease = x.lease and l.expires_at > v_now))
      order by x.begun_at limit p_limit)
    union all
    (select x.id from artifacts x where x.job_id is null and x.status = 'stored' and x.stored_at < v_cutoff order by x.stored_at limit p_limit)))
    -- Once more, for what was begun again before we had the lock.
    and (a.status = 'deleted' and a.incoming is null or a.status <> 'stored' and a.begun_at < v_now - interval '1 hour'
      or a.status = 'stored' and a.job_id is null and a.stored_at < v_cutoff)
  order by a.begun_at limit p_limit for update skip locked;
end
$$;
comment on function penstock.due_artifacts(integer) is
  'Files to remove: deleted ones, those whose writing was given up an hour ago, uploads beyond retention_days. Locked: in the same transaction remove them, then call forget_artifacts.';

create or replace function penstock.forget_artifacts(p_ids uuid[])
returns integer language plpgsql security definer set search_path = penstock, pg_temp as $$
declare
  v_artifacts artifacts[] := array(select a from artifacts a where a.id = any (p_ids) order by a.id for update);
begin
  perform _uncount_artifacts(v_artifacts);
  delete from artifacts where id = any (p_ids);
  return cardinality(v_artifacts);
end
$$;
comment on function penstock.forget_artifacts(uuid[]) is 'Removes the records of files that were removed.';

create or replace function penstock.orphaned_artifacts(p_paths text[])
returns setof text language plpgsql security definer set search_path = penstock, pg_temp as $$
declare
  v_path text;
begin
  for v_path in
    select p from unnest(p_paths) as p where _is_orphaned(p) order by p limit 500
  loop
    -- Locked, then looked at again: a record may just have been made for it.
    perform pg_advisory_xact_lock(hashtextextended('penstock.artifact:' || v_path, 0));
    if _is_orphaned(v_path) then
      return next v_path;
    end if;
  end loop;
end
$$;
comment on function penstock.orphaned_artifacts(text[]) is
  'Of these paths, at most 500 that have no record, though they are of a tenant of ours. Locked: remove the files in the same transaction.';

create or replace function penstock._is_orphaned(p_path text)
returns boolean language sql volatile set search_path = penstock, pg_temp as $$
  -- What has another form, or is of a tenant we do not know, is not ours to remove.
  select case when p_path ~ '^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}/([0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|uploads|incoming)/' then
    exists (select from tenants where id = split_part(p_path, '/', 1)::uuid)
    and not exists (select from artifacts where tenant_id = split_part(p_path, '/', 1)::uuid and path = p_path)
    and not exists (select from artifacts where tenant_id = split_part(p_path, '/', 1)::uuid and incoming = p_path and status = 'pending')
    else false end
$$;
comment on function penstock._is_orphaned(text) is 'Whether a file has no record.';

create or replace function penstock._has_blob(p_document jsonb)
returns boolean language sql immutable set search_path = penstock, pg_temp as $$
  -- Thousands of letters of both cases and digits without a break are no text, no hexadecimal number and no sequence of bases.
  select exists (
    select from jsonb_path_query(p_document, '$.** ? (@.type() == "string")') as s(value)
    cross join lateral (select s.value #>> '{}' as text) as x
    where length(x.text) > 8192 and x.text ~ '^(data:[A-Za-z0-9/+.;=-]{0,100},)?[A-Za-z0-9+/_-]+={0,2}$'
      and x.text ~ '[A-Z]' and x.text ~ '[a-z]' and x.text ~ '[0-9]')
$$;
comment on function penstock._has_blob(jsonb) is 'Whether a document holds a file of more than a few kilobytes, as base64.';
