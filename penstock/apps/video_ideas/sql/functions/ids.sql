create or replace function video_ideas._uuid(p_text text)
returns uuid language sql immutable parallel safe set search_path = pg_catalog, pg_temp as $$
  select encode(substr(sha256(convert_to(p_text, 'UTF8')), 1, 16), 'hex')::uuid
$$;
comment on function video_ideas._uuid(text) is
  'A uuid that is always the same for the same text, for ids that are numbers in Penstock.';
