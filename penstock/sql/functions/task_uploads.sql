-- What a task says about its files, and uploads of workers that have no credentials of the storage: they get
-- a signed URL from the API. They upload beside the final path, and the API checks the file and copies it. So
-- a worker that has lost its lease cannot change a stored file. Lock order: lease, artifact.

create or replace function penstock._artifact_type(p_content_type text)
returns text language sql immutable set search_path = pg_catalog, pg_temp as $$
  select case p_content_type
    when 'audio/mpeg' then 'audio_mp3' when 'audio/mp4' then 'audio_m4a' when 'application/pdf' then 'pdf'
    when 'application/json' then 'json' when 'text/plain' then 'text'
    else left(trim('_' from regexp_replace(
      case when p_content_type like 'application/%' then split_part(p_content_type, '/', 2)
        else p_content_type end, '[^a-z0-9]+', '_', 'g')), 63) end
$$;
comment on function penstock._artifact_type(text) is
  'The type of a file if its task names none: audio_mp3, pdf, video_mp4.';

create or replace function penstock.describe_artifact(
  p_artifact_id uuid, p_worker_id text, p_lease bigint, p_type text default null,
  p_metadata jsonb default '{}')
returns void language plpgsql security definer set search_path = penstock, pg_temp as $$
declare
  v_metadata jsonb := coalesce(p_metadata, '{}');
  v_artifact artifacts := _lock_leased_artifact(p_artifact_id, p_worker_id, p_lease);
begin
  if p_type !~ '^[a-z0-9][a-z0-9_]{0,62}$' then
    perform _refuse(422, 'invalid_type',
      format('type must have 1 to 63 lower-case letters, digits and underscores (got %L)', left(p_type, 100)),
      '{"field": "type"}', 'Such as audio_mp3.');
  end if;
  if jsonb_typeof(v_metadata) <> 'object' then
    perform _refuse(422, 'invalid_metadata', 'metadata must be a JSON object', '{"field": "metadata"}');
  end if;
  perform _check_document(v_metadata, 'metadata', 8192);
  if not (case when v_metadata ? 'pages' then jsonb_typeof(v_metadata -> 'pages') = 'number'
      and (v_metadata ->> 'pages')::numeric between 0 and 1e9 and (v_metadata ->> 'pages')::numeric % 1 = 0
      else true end)
     or not (case when v_metadata ? 'duration' then jsonb_typeof(v_metadata -> 'duration') = 'number'
      and (v_metadata ->> 'duration')::numeric between 0 and 1e9 else true end) then
    perform _refuse(422, 'invalid_metadata',
      'pages must be an integer, and duration a number of seconds, both from 0 to 1,000,000,000',
      '{"field": "metadata"}');
  end if;
  update artifacts set type = p_type, metadata = v_metadata where id = v_artifact.id;
end
$$;
comment on function penstock.describe_artifact(uuid, text, bigint, text, jsonb) is
  'Says what a file of a running task is: its type, such as audio_mp3 (null: from the content type), and '
  'metadata, such as {"pages": 3, "duration": 180.5}, duration in seconds. Call it before finish_artifact.';

create or replace function penstock.begin_task_upload(
  p_task_id bigint, p_worker_id text, p_lease bigint, p_name text, p_content_type text, p_bytes bigint)
returns table (id uuid, tenant_id uuid, incoming text)
language plpgsql security definer set search_path = penstock, pg_temp as $$
#variable_conflict use_column
declare
  v_id uuid;
begin
  if p_bytes is null then
    perform _refuse(422, 'invalid', 'p_bytes is required', '{"field": "p_bytes"}');
  end if;
  select b.id into v_id from begin_artifact(p_task_id, p_worker_id, p_lease, p_name, p_content_type,
    p_bytes) as b;
  return query
  update artifacts a set incoming = a.tenant_id || '/incoming/' || a.lease || '/' || a.id where a.id = v_id
  returning a.id, a.tenant_id, a.incoming;
end
$$;
comment on function penstock.begin_task_upload(bigint, text, bigint, text, text, bigint) is
  'Creates the record of a file of a running task, as begin_artifact does, and returns the path to upload '
  'to, for which the API signs a URL. The size must be known.';

create or replace function penstock.take_task_upload(
  p_task_id bigint, p_artifact_id uuid, p_worker_id text, p_lease bigint)
returns table (tenant_id uuid, name text, incoming text, path text, content_type text, bytes bigint,
  lease bigint, is_stored boolean)
language plpgsql security definer set search_path = penstock, pg_temp as $$
#variable_conflict use_column
declare
  v_artifact artifacts := _lock_leased_artifact(p_artifact_id, p_worker_id, p_lease);
begin
  if v_artifact.task_id is distinct from p_task_id or v_artifact.incoming is null then
    perform _refuse(404, 'unknown_artifact', 'this task has no such upload');
  end if;
  return query select v_artifact.tenant_id, v_artifact.name, v_artifact.incoming, v_artifact.path,
    v_artifact.content_type, v_artifact.bytes, v_artifact.lease, v_artifact.status = 'stored';
end
$$;
comment on function penstock.take_task_upload(bigint, uuid, text, bigint) is
  'The upload of a running task: where the file is, and where its checked copy goes. Requires the lease.';
