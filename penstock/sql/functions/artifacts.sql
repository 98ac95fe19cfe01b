-- Artifacts: files in object storage. begin_artifact creates a pending record, the caller writes
-- the file, and finish_artifact marks the record as stored. After a crash in between, due_artifacts
-- finds the pending record, so that the file is removed with it. A stored file counts as quota
-- usage; a pending one only reserves quota. Lock order: lease, artifact, hold, account.

insert into penstock.settings (name, value, comment) values
  ('max_artifact_bytes', '1073741824', 'Maximum size of a file that a task saves.'),
  ('max_upload_bytes', '104857600', 'Maximum size of a file that a client uploads.')
on conflict (name) do nothing;

create or replace function penstock._artifact_path(p_folder text, p_stem text, p_name text,
  p_content_type text)
returns text language plpgsql immutable set search_path = penstock, pg_temp as $$
declare
  v_extension text := substring(p_name from '\.([A-Za-z0-9]{1,10})$');
  v_stem text := case when v_extension is null then p_name else left(p_name, -length(v_extension) - 1) end;
  v_slug text := left(trim('-' from regexp_replace(lower(v_stem), '[^a-z0-9_]+', '-', 'g')), 60);
  v_suffix text := coalesce(lower(v_extension), case p_content_type
    when 'application/pdf' then 'pdf' when 'image/png' then 'png' when 'image/jpeg' then 'jpg'
      when 'image/gif' then 'gif'
    when 'image/webp' then 'webp' when 'audio/mpeg' then 'mp3' when 'audio/wav' then 'wav' when 'audio/mp4'
      then 'm4a'
    when 'video/mp4' then 'mp4' when 'application/zip' then 'zip' when 'application/json' then 'json'
    when 'text/plain' then 'txt' when 'text/csv' then 'csv' when 'text/markdown' then 'md' else 'bin' end);
begin
  -- A digest keeps the paths of different names different, also on case-insensitive file systems.
  if p_name <> '' and (v_slug = '' or v_slug || '.' || v_suffix <> p_name) then
    v_slug := trim('-' from v_slug || '-' || left(encode(sha256(convert_to(p_name, 'utf8')), 'hex'), 12));
  end if;
  return p_folder || '/' || p_stem || case when v_slug = '' then ''
    else '-' || v_slug end || '.' || v_suffix;
end
$$;
comment on function penstock._artifact_path(text, text, text, text) is
  'The path of a file in storage: plain ASCII characters, and always the same for the same name.';

create or replace function penstock._check_artifact(p_name text, p_content_type text, p_bytes bigint,
  p_limit bigint)
returns void language plpgsql stable set search_path = penstock, pg_temp as $$
begin
  if p_name is null or length(p_name) > 200 or p_name ~ '[/\\]' or not _is_clean(p_name) then
    perform _refuse(422, 'invalid_name',
      format('a file name must have at most 200 characters and no slashes or control characters (got %L)',
        left(p_name, 100)), '{"field": "p_name"}');
  end if;
  if coalesce(p_content_type, '') !~ '^[a-z0-9][a-z0-9!#$&^_.+-]{0,63}/[a-z0-9][a-z0-9!#$&^_.+-]{0,99}$' then
    perform _refuse(422, 'invalid_content_type',
      format('content_type must be a lower-case media type such as image/png (got %L)',
        left(p_content_type, 100)),
      '{"field": "p_content_type"}');
  end if;
  if p_bytes < 0 then
    perform _refuse(422, 'invalid', format('p_bytes must be 0 or more (got %s)', p_bytes),
      '{"field": "p_bytes"}');
  end if;
  if p_bytes > p_limit then
    perform _refuse(413, 'too_large', format('the file is %s bytes; the limit is %s', p_bytes, p_limit),
      jsonb_build_object('field', 'p_bytes', 'bytes', p_bytes, 'limit', p_limit));
  end if;
end
$$;
comment on function penstock._check_artifact(text, text, bigint, bigint) is
  'Raises an error for an invalid name, content type or size of a file.';

create or replace function penstock._release_artifact_quota(p_artifacts penstock.artifacts[])
returns void language plpgsql set search_path = penstock, pg_temp as $$
declare
  v_bookings booking[];
  v_holds holds[];
begin
  -- All bookings in one call, so that accounts are locked in their order.
  v_bookings := array(
    select b from unnest(p_artifacts) as a
    cross join lateral unnest(_note_usage(a.tenant_id, 'artifact', jsonb_build_object('bytes', -a.bytes),
      null, null, jsonb_build_object('artifact_id', a.id))) as b
    where a.status = 'stored' and a.bytes > 0);
  with due as (
    -- A locked hold has just expired: the transaction that locked it releases it.
    select h.id from holds h
      where h.id = any (array(select a.hold_id from unnest(p_artifacts) as a where a.status = 'pending'))
      and h.status = 'held' for update skip locked
  ), gone as (
    update holds h set status = 'released', settled_at = _now() from due where h.id = due.id
      returning h as hold
  )
  select array_agg(g.hold) into v_holds from gone g;
  v_bookings := v_bookings
    || array(select b from unnest(v_holds) as h cross join lateral unnest(_release_bookings(h)) as b);
  if cardinality(v_bookings) > 0 then
    perform _book(v_bookings);
    perform _wake_waiting(array(select distinct a.tenant_id from unnest(p_artifacts) as a));
  end if;
end
$$;
comment on function penstock._release_artifact_quota(penstock.artifacts[]) is
  'Returns the quota that files use or have reserved. The caller has locked the rows and calls this once '
  'per transaction.';

create or replace function penstock._reserve_bytes(p_tenant_id uuid, p_bytes bigint)
returns uuid language sql set search_path = penstock, pg_temp as $$
  select reserve_quota(p_tenant_id, jsonb_build_object('bytes', p_bytes), 'artifact', null, 86400)
    where p_bytes > 0
$$;
comment on function penstock._reserve_bytes(uuid, bigint) is 'Reserves quota for a file.';

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
  select _artifact_path(concat_ws('/', t.tenant_id, t.job_id, t.kind), t.id::text, p_name, p_content_type)
    into v_path
  from tasks t where t.job_id = v_lease.job_id and t.id = p_task_id;
  -- Serializes with orphaned_artifacts, which lets a caller remove a file without a record at this path.
  perform pg_advisory_xact_lock(hashtextextended('penstock.artifact:' || v_path, 0));
  select a.* into v_old from artifacts a where a.tenant_id = v_lease.tenant_id and a.path = v_path
    for update;
  if v_old.id is not null then
    perform _release_artifact_quota(array[v_old]);
    update artifacts a set lease = v_lease.lease, name = p_name, content_type = p_content_type,
      bytes = p_bytes, sha256 = null, status = 'pending', begun_at = v_now, stored_at = null, type = null,
      metadata = '{}', incoming = null, hold_id = _reserve_bytes(v_lease.tenant_id, p_bytes)
    where a.id = v_old.id;
    v_id := v_old.id;
  else
    insert into artifacts as a (tenant_id, job_id, task_id, lease, name, path, content_type, bytes, hold_id,
      created_by, created_at, begun_at)
    values (v_lease.tenant_id, v_lease.job_id, p_task_id, v_lease.lease, p_name, v_path, p_content_type,
      p_bytes, _reserve_bytes(v_lease.tenant_id, p_bytes), _actor(), v_now, v_now)
    returning a.id into v_id;
  end if;
  return query select v_id, v_path, coalesce(p_bytes, v_limit);
end
$$;
comment on function penstock.begin_artifact(bigint, text, bigint, text, text, bigint) is
  'Creates the record of a file that a running task will write, reserves p_bytes of the quota, and returns '
  'the path. The same name again, also in a retry, overwrites the same file.';

create or replace function penstock.begin_upload(p_name text, p_content_type text, p_bytes bigint,
  p_options jsonb default '{}')
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
    perform _refuse(422, 'invalid_options',
      format('tenant_id must be a UUID (got %L)', left(p_options ->> 'tenant_id', 100)),
        '{"field": "tenant_id"}');
  end;
  v_tenant_id := _caller_tenant(v_tenant_id);
  if p_bytes is null then
    perform _refuse(422, 'invalid', 'p_bytes is required', '{"field": "p_bytes"}');
  end if;
  if length(v_key) not between 1 and 255 then
    perform _refuse(422, 'invalid_key',
      format('idempotency_key must have 1 to 255 characters (got %s)', length(v_key)),
        '{"field": "idempotency_key"}');
  end if;
  perform _check_artifact(p_name, p_content_type, p_bytes, (_setting('max_upload_bytes'))::bigint);
  if (select count(*)
    from (select from artifacts a where a.tenant_id = v_tenant_id and a.status <> 'stored'
    limit 1000) as x) = 1000 then
    perform _refuse(429, 'limited',
      'the tenant has 1000 uploads that are pending or were abandoned in the last hour',
      '{"retry_after_seconds": 60}', 'Finish or delete pending uploads.');
  end if;
  insert into artifacts as a (id, tenant_id, name, path, incoming, content_type, bytes, idempotency_key,
    created_by, created_at, begun_at)
  values (v_id, v_tenant_id, p_name,
    _artifact_path(v_tenant_id || '/uploads', v_id::text, '', p_content_type),
    v_tenant_id || '/incoming/' || v_id, p_content_type, p_bytes, v_key, _actor(), v_now, v_now)
  on conflict (tenant_id, idempotency_key) where idempotency_key is not null do nothing returning a.*
    into v_artifact;
  if v_artifact.id is null then
    select a.* into v_artifact from artifacts a where a.tenant_id = v_tenant_id
      and a.idempotency_key = v_key;
    if (v_artifact.name, v_artifact.content_type) is distinct from (p_name, p_content_type)
       or v_artifact.status = 'pending' and v_artifact.bytes <> p_bytes then
      perform _refuse(409, 'idempotency_key_reused', 'this idempotency key was used for a different file',
        jsonb_build_object('artifact_id', v_artifact.id), 'Use a new key for a new file.');
    end if;
  else
    update artifacts a set hold_id = _reserve_bytes(v_tenant_id, p_bytes) where a.id = v_id;
  end if;
  return query select v_artifact.id, v_artifact.tenant_id, v_artifact.incoming;
end
$$;
comment on function penstock.begin_upload(text, text, bigint, jsonb) is
  'Creates the record of a file that a client will upload, reserves quota for it, and returns the path to '
  'upload to. Options: tenant_id, idempotency_key. Call take_upload and finish_artifact next.';

create or replace function penstock.take_upload(p_artifact_id uuid)
returns table (tenant_id uuid, name text, incoming text, path text, content_type text, bytes bigint,
  lease bigint)
language plpgsql security definer set search_path = penstock, pg_temp as $$
declare
  v_artifact artifacts := _lock_visible_artifact(p_artifact_id, array['owner', 'admin', 'member']);
  v_lease bigint := nextval('lease_numbers');
begin
  if v_artifact.incoming is null or v_artifact.status <> 'pending' or v_artifact.task_id is not null then
    perform _refuse(409, 'not_pending', format('the upload is not pending (%s)', v_artifact.status),
      jsonb_build_object('status', v_artifact.status));
  end if;
  -- Every call gets its own path, so that concurrent
  -- calls cannot overwrite a file that another has checked.
  return query update artifacts a set lease = v_lease, begun_at = _now(),
    path = _artifact_path(a.tenant_id || '/uploads', a.id || '-' || v_lease, '', a.content_type)
  where a.id = p_artifact_id returning a.tenant_id, a.name, a.incoming, a.path, a.content_type, a.bytes,
    a.lease;
end
$$;
comment on function penstock.take_upload(uuid) is
  'Returns the path of an upload and the path for its checked copy. finish_artifact with this lease '
  'completes it.';

create or replace function penstock._lock_visible_artifact(p_artifact_id uuid, p_roles text[])
returns penstock.artifacts language plpgsql set search_path = penstock, pg_temp as $$
declare
  v_artifact artifacts;
begin
  select * into v_artifact from artifacts where id = p_artifact_id
    and _is_member(tenant_id) for update;
  if not found then
    perform _refuse(404, 'unknown_artifact', 'there is no such artifact');
  end if;
  perform _require_role(v_artifact.tenant_id, p_roles);
  return v_artifact;
end
$$;
comment on function penstock._lock_visible_artifact(uuid, text[]) is
  'Locks an artifact and returns it, if the caller has one of these roles.';

create or replace function penstock._lock_leased_artifact(p_artifact_id uuid, p_worker_id text,
  p_lease bigint)
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
  perform _require_active(v_artifact.tenant_id);
  -- Only the service itself finishes an upload, never a worker.
  if v_artifact.lease is distinct from v_lease or v_artifact.status = 'deleted'
     or v_artifact.task_id is null and p_worker_id is not null then
    perform _refuse(410, 'lease_lost', 'the file was deleted or is being written under another lease',
      jsonb_build_object('artifact_id', p_artifact_id));
  end if;
  return v_artifact;
end
$$;
comment on function penstock._lock_leased_artifact(uuid, text, bigint) is
  'Locks an artifact and returns it, if this lease still owns it.';

create or replace function penstock.finish_artifact(
  p_artifact_id uuid, p_worker_id text, p_lease bigint, p_bytes bigint, p_sha256 text)
returns void language plpgsql security definer set search_path = penstock, pg_temp as $$
declare
  v_artifact artifacts := _lock_leased_artifact(p_artifact_id, p_worker_id, p_lease);
begin
  if p_bytes is null or p_bytes < 0 or coalesce(p_sha256, '') !~ '^[0-9a-f]{64}$' then
    perform _refuse(422, 'invalid',
      'p_bytes must be 0 or more, and p_sha256 must be 64 lower-case hexadecimal digits');
  end if;
  if v_artifact.status = 'stored' then
    if (v_artifact.bytes, v_artifact.sha256) is distinct from (p_bytes, p_sha256) then
      perform _refuse(409, 'conflict', 'the file is already stored with different content');
    end if;
    return;
  end if;
  -- A file without an announced size reserves quota now.
  v_artifact.hold_id := coalesce(v_artifact.hold_id, _reserve_bytes(v_artifact.tenant_id, p_bytes));
  if v_artifact.hold_id is not null then
    perform commit_hold(v_artifact.hold_id, jsonb_build_object('bytes', p_bytes));
  end if;
  update artifacts set status = 'stored', bytes = p_bytes, sha256 = p_sha256, stored_at = _now(),
    hold_id = null where id = v_artifact.id;
  perform _audit(v_artifact.tenant_id, 'artifact.stored', v_artifact.job_id, 'artifact:' || v_artifact.id,
    jsonb_build_object('path', v_artifact.path, 'bytes', p_bytes, 'sha256', p_sha256));
end
$$;
comment on function penstock.finish_artifact(uuid, text, bigint, bigint, text) is
  'Marks a file as stored, with its size, which counts as usage from now on, and its SHA-256 digest. Fails '
  'with 410 if the lease is lost, and with 429 if the quota is exceeded.';

create or replace function penstock.drop_artifact(p_artifact_id uuid, p_worker_id text, p_lease bigint)
returns void language plpgsql security definer set search_path = penstock, pg_temp as $$
begin
  perform _delete_artifacts(array[_lock_leased_artifact(p_artifact_id, p_worker_id, p_lease)]);
end
$$;
comment on function penstock.drop_artifact(uuid, text, bigint) is
  'Deletes a file whose writing failed; a worker removes it from storage later.';

create or replace function penstock._delete_artifacts(p_artifacts penstock.artifacts[])
returns void language plpgsql set search_path = penstock, pg_temp as $$
begin
  update artifacts set status = 'deleted', hold_id = null
    where id = any (array(select a.id from unnest(p_artifacts) as a));
  perform _audit(a.tenant_id, 'artifact.deleted', a.job_id, 'artifact:' || a.id,
    jsonb_build_object('path', a.path))
  from unnest(p_artifacts) as a where a.status = 'stored';
  perform _release_artifact_quota(p_artifacts);
end
$$;
comment on function penstock._delete_artifacts(penstock.artifacts[]) is
  'Marks files as deleted and returns their quota. The caller has locked the rows and calls this once per '
  'transaction.';

create or replace function penstock.delete_artifact(p_artifact_id uuid)
returns boolean language plpgsql security definer set search_path = penstock, pg_temp as $$
declare
  v_artifact artifacts := _lock_visible_artifact(p_artifact_id, array['owner', 'admin', 'member']);
begin
  if v_artifact.status = 'deleted' then
    return false;
  end if;
  perform _delete_artifacts(array[v_artifact]);
  return true;
end
$$;
comment on function penstock.delete_artifact(uuid) is
  'Deletes a file: at once for readers and the quota, later in storage. Returns false if it was already '
  'deleted.';

create or replace function penstock.keep_artifact(
  p_artifact_id uuid, p_subject text, p_until timestamptz default 'infinity')
returns void language plpgsql security definer set search_path = penstock, pg_temp as $$
declare
  v_artifact artifacts;
  v_until timestamptz := nullif(p_until, 'infinity');
begin
  perform _check_clean(p_subject, 'p_subject', 'invalid_subject');
  if coalesce(p_subject, '') !~ '^[a-z][a-z0-9_.]{0,62}:.+$' or length(p_subject) > 400 then
    perform _refuse(422, 'invalid_subject',
      format('subject must be of the form noun:id, at most 400 characters (got %L)', left(p_subject, 100)),
      '{"field": "p_subject"}');
  end if;
  perform _check_time(v_until, 'p_until');
  select * into v_artifact from artifacts where id = p_artifact_id and status <> 'deleted' for update;
  if not found then
    perform _refuse(404, 'unknown_artifact', 'there is no such artifact');
  end if;
  perform _require_active(v_artifact.tenant_id);
  if v_artifact.status <> 'stored' then
    perform _refuse(409, 'not_stored', 'only a stored file can be kept: this one is still being written',
      jsonb_build_object('artifact_id', p_artifact_id));
  end if;
  if (v_artifact.subject, v_artifact.kept_until) is not distinct from (p_subject, v_until) then
    return;
  end if;
  update artifacts set subject = p_subject, kept_until = v_until where id = p_artifact_id;
  perform _audit(v_artifact.tenant_id, 'artifact.kept', v_artifact.job_id, 'artifact:' || p_artifact_id,
    jsonb_build_object('for', p_subject, 'until', v_until));
end
$$;
comment on function penstock.keep_artifact(uuid, text, timestamptz) is
  'Keeps a file beyond retention_days and beyond its job, for a subject of an app such as slides.slide:42: '
  'until a time, or without end. Call unkeep_artifact when the subject is deleted.';

create or replace function penstock.unkeep_artifact(p_artifact_id uuid)
returns boolean language plpgsql security definer set search_path = penstock, pg_temp as $$
declare
  v_artifact artifacts;
begin
  select * into v_artifact from artifacts where id = p_artifact_id for update;
  if v_artifact.subject is null then
    return false;
  end if;
  perform _require_active(v_artifact.tenant_id);
  update artifacts set subject = null, kept_until = null where id = p_artifact_id;
  perform _audit(v_artifact.tenant_id, 'artifact.unkept', v_artifact.job_id, 'artifact:' || p_artifact_id,
    jsonb_build_object('for', v_artifact.subject));
  return true;
end
$$;
comment on function penstock.unkeep_artifact(uuid) is
  'Ends the keeping of a file: it goes with its job, or retention_days after it was stored. Returns false if '
  'no app keeps it.';

create or replace function penstock.due_artifacts(p_limit integer default 100)
returns table (id uuid, paths text[])
language plpgsql security definer set search_path = penstock, pg_temp as $$
declare
  v_now timestamptz := _now();
  v_cutoff timestamptz := v_now - make_interval(days => (_setting('retention_days'))::integer);
  -- The other cell decides about their files: all cells share one storage.
  v_moved uuid[] := _suspended_tenants();
begin
  -- The rows stay locked until the caller has removed the files and called forget_artifacts.
  return query select a.id, array_remove(array[a.path, a.incoming], null) from artifacts a
    where a.id = any (array(
    -- The record of an upload stays until its URL has expired, so that a late upload is removed too.
    (select x.id from artifacts x where x.status <> 'stored' and x.tenant_id <> all (v_moved)
      and (x.status = 'deleted' and x.incoming is null or x.begun_at < v_now - interval '1 hour')
      and (x.status = 'deleted' or x.task_id is null or not exists (
        select from leases l where l.task_id = x.task_id and l.lease = x.lease and l.expires_at > v_now))
      order by x.begun_at limit p_limit)
    union all
    (select x.id from artifacts x where x.job_id is null and x.status = 'stored' and x.subject is null
      and x.stored_at < v_cutoff and x.tenant_id <> all (v_moved) order by x.stored_at limit p_limit)
    union all
    (select x.id from artifacts x where x.subject is not null and x.kept_until < v_now
      and x.job_id is null and x.status = 'stored' and x.stored_at < v_cutoff and x.tenant_id <> all (v_moved)
      order by x.kept_until limit p_limit)))
    -- Checked again under the lock, because a file may have been started again.
    and (a.status = 'deleted' and a.incoming is null or a.status <> 'stored'
      and a.begun_at < v_now - interval '1 hour'
      or a.status = 'stored' and a.job_id is null and a.stored_at < v_cutoff
      and (a.subject is null or a.kept_until < v_now))
  order by a.begun_at limit p_limit for update skip locked;
end
$$;
comment on function penstock.due_artifacts(integer) is
  'Files to remove from storage: deleted files, files abandoned for an hour, and uploads older than '
  'retention_days that no app keeps. Locks the rows: remove the files and call forget_artifacts in the '
  'same transaction.';

create or replace function penstock.forget_artifacts(p_ids uuid[])
returns integer language plpgsql security definer set search_path = penstock, pg_temp as $$
declare
  v_artifacts artifacts[] := array(select a from artifacts a where a.id = any (p_ids) order by a.id
    for update);
begin
  perform _release_artifact_quota(v_artifacts);
  delete from artifacts where id = any (p_ids);
  return cardinality(v_artifacts);
end
$$;
comment on function penstock.forget_artifacts(uuid[]) is
  'Deletes the records of files that were removed from storage.';

create or replace function penstock.orphaned_artifacts(p_paths text[])
returns setof text language plpgsql security definer set search_path = penstock, pg_temp as $$
declare
  v_path text;
begin
  for v_path in
    select p from unnest(p_paths) as p where _is_orphaned(p) order by p limit 500
  loop
    -- Checked again under the lock, because a record may have been created meanwhile.
    perform pg_advisory_xact_lock(hashtextextended('penstock.artifact:' || v_path, 0));
    if _is_orphaned(v_path) then
      return next v_path;
    end if;
  end loop;
end
$$;
comment on function penstock.orphaned_artifacts(text[]) is
  'Up to 500 of these paths that belong to a known tenant and have no record. Locks them: remove the files '
  'in the same transaction.';

create or replace function penstock._is_orphaned(p_path text)
returns boolean language sql volatile set search_path = penstock, pg_temp as $$
  -- Paths of another form, or of an unknown tenant, may belong to other software. All cells share one
  -- storage, so the files of a tenant that has moved have their records in the other cell.
  select case when p_path ~ ('^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}/'
      || '([0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|uploads|incoming)/') then
    exists (
      select from tenants where id = split_part(p_path, '/', 1)::uuid and suspended is distinct from 'frozen')
    and not exists (
      select from artifacts where tenant_id = split_part(p_path, '/', 1)::uuid and path = p_path)
    and not exists (
      select from artifacts
      where tenant_id = split_part(p_path, '/', 1)::uuid and incoming = p_path and status = 'pending')
    else false end
$$;
comment on function penstock._is_orphaned(text) is
  'Whether a path belongs to a tenant of this cell and has no record.';
