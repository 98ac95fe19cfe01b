-- Images: bytes are counted in the transaction that stores the file, and given back with it.

create or replace function notes.require_note(p_note_id text)
returns void language plpgsql stable security definer set search_path = notes, pg_temp as $$
begin
  if not exists (select from notes
      where user_id = notes._require_owner() and id = p_note_id and not deleted) then
    perform penstock.refuse(404, 'unknown_note', 'you have no such note', '{"field": "note_id"}');
  end if;
end
$$;
comment on function notes.require_note(text) is 'Raises an error unless the caller has this note.';

create or replace function notes.add_image(p_user_id uuid, p_note_id text, p_artifact_id uuid)
returns text language plpgsql security definer set search_path = notes, pg_temp as $$
declare
  v_file penstock.artifacts;
begin
  perform penstock.lock_owner(p_user_id);
  select * into v_file from penstock.artifacts where id = p_artifact_id;
  if v_file.id is null or v_file.tenant_id <> notes._tenant_of(p_user_id) or v_file.content_type
     not in ('image/jpeg', 'image/png', 'image/webp') then
    perform penstock.refuse(422, 'invalid_image', 'the file must be a JPEG, PNG or WebP image of yours');
  end if;
  insert into images (user_id, note_id, artifact_id, path, bytes)
    values (p_user_id, p_note_id, p_artifact_id, v_file.path, v_file.bytes) on conflict do nothing;
  if not found then
    return v_file.path;
  end if;
  perform notes._count_owned(p_user_id, 'image_storage_bytes', 'image_bytes', v_file.bytes::integer);
  perform penstock.keep_artifact(p_artifact_id, 'notes.note:' || p_note_id);
  update notes set image_path = v_file.path, updated_at = greatest(notes._ms(), updated_at)
    where user_id = p_user_id and id = p_note_id and not deleted;
  if not found then
    perform penstock.refuse(404, 'unknown_note', 'you have no such note', '{"field": "note_id"}');
  end if;
  return v_file.path;
end
$$;
comment on function notes.add_image(uuid, text, uuid) is
  'Gives a note its image in the transaction that stores the file: counts the bytes and keeps the file.';

create or replace function notes.find_image(p_note_id text)
returns table (artifact_id uuid, path text) language sql stable security definer
set search_path = notes, pg_temp as $$
  select i.artifact_id, i.path from notes.notes n
  join notes.images i on i.user_id = n.user_id and i.path = n.image_path
  where n.user_id = auth.uid() and n.id = p_note_id and not n.deleted
$$;
comment on function notes.find_image(text) is 'The image of one of the caller''s notes.';

create or replace function notes.delete_old_images(p_limit integer default 1000)
returns integer language plpgsql security definer set search_path = notes, pg_temp as $$
declare
  v_image record;
  v_count integer := 0;
  v_before bigint := notes._ms()
    - 86400000::bigint * (penstock.get_setting('notes.image_days') #>> '{}')::bigint;
begin
  for v_image in
    select i.* from images i left join notes n on n.user_id = i.user_id and n.id = i.note_id
    where n.id is null or (n.deleted and n.updated_at < v_before)
      -- An image that another one has replaced.
      or (not n.deleted and n.image_path is distinct from i.path and n.updated_at < v_before)
    order by i.user_id, i.artifact_id limit p_limit for update of i skip locked
  loop
    perform penstock.unkeep_artifact(v_image.artifact_id);
    perform penstock.delete_artifact(v_image.artifact_id);
    perform notes.adjust_image_storage_bytes(v_image.user_id, -v_image.bytes);
    delete from images where user_id = v_image.user_id and artifact_id = v_image.artifact_id;
    v_count := v_count + 1;
  end loop;
  return v_count;
end
$$;
comment on function notes.delete_old_images(integer) is
  'Deletes images of notes that were deleted notes.image_days ago, and of notes that are gone, and gives '
  'their bytes back. Returns their number.';
