-- The library: counted ideas, renamed tags, and lenses and collections, which are resolved when they are
-- read and never stored as edges.

create or replace function notes._ms()
returns bigint language sql volatile security definer set search_path = notes, pg_temp as $$
  select floor(extract(epoch from penstock.clock()) * 1000)::bigint
$$;
comment on function notes._ms() is 'The current time as devices write it: Unix milliseconds.';

create or replace function notes._require_owner()
returns uuid language plpgsql stable set search_path = notes, pg_temp as $$
begin
  if auth.uid() is null then
    perform penstock.refuse(403, 'forbidden', 'only a signed-in user has a library');
  end if;
  return auth.uid();
end
$$;
comment on function notes._require_owner() is 'The calling user. Raises an error for any other caller.';

create or replace function notes._tenant_of(p_user_id uuid)
returns uuid language plpgsql stable security definer set search_path = notes, pg_temp as $$
declare
  v_tenant_id uuid;
begin
  select p.tenant_id into v_tenant_id from penstock.profiles p where p.user_id = p_user_id;
  if v_tenant_id is null then
    -- Every user has a profile. Without one the row could not be counted, or would count for another user.
    perform penstock.refuse(404, 'profile_missing', 'the user has no profile');
  end if;
  return v_tenant_id;
end
$$;
comment on function notes._tenant_of(uuid) is 'The tenant whose quota a user''s calls count against.';

create or replace function notes._count_owned(p_user_id uuid, p_gate text, p_meter text, p_change integer)
returns void language plpgsql security definer set search_path = notes, pg_temp as $$
declare
  v_tenant_id uuid := notes._tenant_of(p_user_id);
  v_hold_id uuid;
begin
  if p_change < 0 then
    perform penstock.refund_usage(v_tenant_id, jsonb_build_object(p_meter, -p_change), p_gate);
    return;
  end if;
  v_hold_id := (penstock.require_gate(p_gate, v_tenant_id, p_change) ->> 'hold_id')::uuid;
  if v_hold_id is not null then
    perform penstock.commit_hold(v_hold_id, null, v_tenant_id);
  else
    -- The gate only observes: what is over the limit is counted, too.
    perform penstock.record_usage(jsonb_build_object(p_meter, p_change), p_tenant_id => v_tenant_id,
      p_action => p_gate);
  end if;
end
$$;
comment on function notes._count_owned(uuid, text, text, integer) is
  'Counts something that a user added or removed, and applies its gate to additions.';

create or replace function notes._count_custom_idea()
returns trigger language plpgsql security definer set search_path = notes, pg_temp as $$
declare
  v_before boolean := tg_op <> 'INSERT' and not old.deleted;
  v_after boolean := tg_op <> 'DELETE' and not new.deleted;
begin
  if v_before <> v_after and exists (
      select from penstock.profiles p where p.user_id = coalesce(new.user_id, old.user_id)) then
    perform notes._count_owned(coalesce(new.user_id, old.user_id), 'custom_ideas_limit', 'custom_ideas',
      case when v_after then 1 else -1 end);
  end if;
  return null;
end
$$;
comment on function notes._count_custom_idea() is 'Trigger of custom_ideas: counts live ideas.';

create or replace trigger t05_count after insert or update of deleted or delete on notes.custom_ideas
  for each row execute function notes._count_custom_idea();

create or replace function notes.rename_custom_idea(p_id text, p_name text)
returns integer language plpgsql security definer set search_path = notes, pg_temp as $$
declare
  v_user_id uuid := notes._require_owner();
  v_now bigint := notes._ms();
  v_old text;
  v_count integer;
begin
  if coalesce(length(p_name), 0) not between 1 and 200 then
    perform penstock.refuse(422, 'invalid_name', format('name must have 1 to 200 characters (got %s)',
      coalesce(length(p_name), 0)), '{"field": "p_name"}');
  end if;
  -- An update of a synced table first takes the lock of its owner.
  update custom_ideas set name = name where user_id = v_user_id and id = p_id and not deleted
    returning name into v_old;
  if not found then
    perform penstock.refuse(404, 'unknown_idea', 'you have no such idea', '{"field": "p_id"}');
  end if;
  update custom_ideas set name = p_name, updated_at = greatest(v_now, updated_at)
    where user_id = v_user_id and id = p_id;
  -- The tag keeps its place, and a note that has the new one already gets it once.
  update notes n set updated_at = greatest(v_now, n.updated_at), tags = (
      select jsonb_agg(t.tag order by t.place) from (
        select case when e.tag = v_old then p_name else e.tag end as tag, min(e.place) as place
        from jsonb_array_elements_text(n.tags) with ordinality as e(tag, place) group by 1) as t)
    where n.user_id = v_user_id and n.tags ? v_old and v_old <> p_name;
  get diagnostics v_count = row_count;
  return v_count;
end
$$;
comment on function notes.rename_custom_idea(text, text) is
  'Renames an idea of the caller, and its tag in all of the caller''s notes, in one transaction. Returns the '
  'number of notes.';

create or replace function notes.lens_notes(p_lens_id text)
returns setof notes.notes language plpgsql stable set search_path = notes, pg_temp as $$
declare
  v_ideas text[];
begin
  -- Canonical lenses are a part of the code: their ids name their ideas.
  if p_lens_id like 'canon:%' then
    v_ideas := string_to_array(substr(p_lens_id, 7), '+');
  else
    select l.leaf_ids into v_ideas from lenses l
      where l.user_id = auth.uid() and l.id = p_lens_id and not l.deleted;
  end if;
  return query select n.* from notes n
    where n.user_id = auth.uid() and not n.deleted and cardinality(v_ideas) > 0 and n.tags ?& v_ideas
    order by n.created_at, n.id;
end
$$;
comment on function notes.lens_notes(text) is
  'The caller''s notes that have all ideas of a lens: one of the caller''s, or canon:IDEA+IDEA.';

create or replace function notes.collection_notes(p_collection_id text)
returns setof notes.notes language sql stable set search_path = notes, pg_temp as $$
  select n.* from notes.collection_memberships m
  join notes.collections c on c.user_id = m.user_id and c.id = m.collection_id and not c.deleted
  join notes.notes n on n.user_id = m.user_id and n.id = m.note_id and not n.deleted
  where m.user_id = auth.uid() and m.collection_id = p_collection_id and not m.deleted
  order by n.created_at, n.id
$$;
comment on function notes.collection_notes(text) is 'The caller''s notes in a collection.';

create or replace function notes.idea_pairs()
returns table (idea text, other text, count bigint)
language sql stable set search_path = notes, pg_temp as $$
  select a.tag, b.tag, count(*) from notes.notes n
  cross join jsonb_array_elements_text(n.tags) as a(tag)
  cross join jsonb_array_elements_text(n.tags) as b(tag)
  where n.user_id = auth.uid() and not n.deleted and a.tag < b.tag group by 1, 2 order by 3 desc, 1, 2
$$;
comment on function notes.idea_pairs() is
  'How often two ideas occur in one note of the caller. Lenses and collections add nothing to it.';

create or replace function notes.hard_delete_note(p_user_id uuid, p_note_id text)
returns boolean language plpgsql security definer set search_path = notes, pg_temp as $$
begin
  perform penstock.lock_owner(p_user_id);
  -- The tombstone stays, so that devices delete their copies, too.
  update notes set text = '', tags = '[]', page = null, chapter = null, source = null, source_id = null,
    source_meta = null, book_id = null, deleted = true, updated_at = greatest(notes._ms(), updated_at)
  where user_id = p_user_id and id = p_note_id;
  if found then
    perform penstock.record_audit('notes.hard_deleted', 'note:' || p_note_id, '{}',
      notes._tenant_of(p_user_id));
  end if;
  return found;
end
$$;
comment on function notes.hard_delete_note(uuid, text) is
  'Deletes the content of a note and keeps its tombstone. Its image is deleted with those of deleted notes.';
