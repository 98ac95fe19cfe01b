-- The devices of a library. A sync begins with one request, which also records when the device synced.

create or replace function notes.start_sync(p_device_id uuid)
returns jsonb language plpgsql security definer set search_path = notes, pg_temp as $$
declare
  v_user_id uuid := notes._require_owner();
  v_now bigint := notes._ms();
begin
  -- Once a minute at most: an idle device that polls writes nothing in between. A device whose key is gone or
  -- inactive still syncs; its token decides about that.
  update wrapped_key_blobs b set synced_at = v_now
    where b.user_id = v_user_id and b.id = p_device_id
      and (b.synced_at is null or b.synced_at <= v_now - 60000);
  return penstock.sync_state('notes');
end
$$;
comment on function notes.start_sync(uuid) is
  'Like penstock.sync_state for the library of the caller, and records that this device syncs. p_device_id '
  'is the id of its row in wrapped_key_blobs.';
