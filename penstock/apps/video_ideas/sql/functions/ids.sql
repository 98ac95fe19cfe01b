create or replace function video_ideas._uuid(p_text text)
returns uuid language sql immutable parallel safe set search_path = pg_catalog, pg_temp as $$
  select encode(substr(sha256(convert_to(p_text, 'UTF8')), 1, 16), 'hex')::uuid
$$;
comment on function video_ideas._uuid(text) is
  'The same id for the same thing, where Penstock has a number and the reader expects a uuid.';
