-- Discovery of ideas on the server, for libraries that are not encrypted. Jobs hold ids of notes only: the
-- text is read when a task runs, and never stored with the job.

create or replace function notes._owner_of_tenant(p_tenant_id uuid)
returns uuid language sql stable security definer set search_path = notes, pg_temp as $$
  select p.user_id from penstock.profiles p join penstock.tenants t on t.id = p.tenant_id
  where p.tenant_id = p_tenant_id and t.is_personal
    and not exists (select from penstock.api_keys k where k.id = p.user_id)
  order by p.created_at, p.user_id limit 1
$$;
comment on function notes._owner_of_tenant(uuid) is
  'The user whose library the jobs of a personal tenant use.';

create or replace function notes.texts_to_discover(p_tenant_id uuid, p_note_ids text[])
returns table (note_id text, text text, is_encrypted boolean)
language sql stable security definer set search_path = notes, pg_temp as $$
  select n.id, case when n.text like 'enc:v1:%' then '' else n.text end, n.text like 'enc:v1:%'
  from notes.notes n
  where n.user_id = notes._owner_of_tenant(p_tenant_id) and n.id = any (p_note_ids) and not n.deleted
    and n.tags = '[]'
$$;
comment on function notes.texts_to_discover(uuid, text[]) is
  'Notes that have no ideas yet. Encrypted text is not returned.';

create or replace function notes.custom_idea_names(p_tenant_id uuid)
returns text[] language sql stable security definer set search_path = notes, pg_temp as $$
  select coalesce(array_agg(i.name order by i.name), '{}') from notes.custom_ideas i
  where i.user_id = notes._owner_of_tenant(p_tenant_id) and not i.deleted
$$;
comment on function notes.custom_idea_names(uuid) is 'The ideas that the owner of a tenant''s library added.';

create or replace function notes.apply_ideas(p_tenant_id uuid, p_note_id text, p_ideas text[])
returns text[] language plpgsql security definer set search_path = notes, pg_temp as $$
declare
  v_user_id uuid := notes._owner_of_tenant(p_tenant_id);
  v_added text[];
begin
  perform penstock.lock_owner(v_user_id);
  -- A note that got ideas meanwhile, on a device, keeps them.
  update notes n set updated_at = greatest(notes._ms(), n.updated_at), tags = to_jsonb(array(
      select x.idea from unnest(p_ideas) with ordinality as x(idea, place) group by 1 order by min(x.place)))
    where n.user_id = v_user_id and n.id = p_note_id and not n.deleted and n.tags = '[]'
      and cardinality(p_ideas) > 0
    returning array(select jsonb_array_elements_text(n.tags)) into v_added;
  return coalesce(v_added, '{}');
end
$$;
comment on function notes.apply_ideas(uuid, text, text[]) is
  'Tags a note that has no ideas, and returns the tags that it got.';

create or replace function notes.remove_idea(p_tenant_id uuid, p_note_id text, p_idea text)
returns boolean language plpgsql security definer set search_path = notes, pg_temp as $$
declare
  v_user_id uuid := notes._owner_of_tenant(p_tenant_id);
begin
  perform penstock.lock_owner(v_user_id);
  update notes n set updated_at = greatest(notes._ms(), n.updated_at), tags = n.tags - p_idea
    where n.user_id = v_user_id and n.id = p_note_id and n.tags ? p_idea;
  return found;
end
$$;
comment on function notes.remove_idea(uuid, text, text) is 'Removes one idea of a note.';
