create or replace function video_ideas._uuid(p_text text)
returns uuid language sql immutable parallel safe set search_path = pg_catalog, pg_temp as $$
  select encode(substr(sha256(convert_to(p_text, 'UTF8')), 1, 16), 'hex')::uuid
$$;
comment on function video_ideas._uuid(text) is 'The same id for the same thing, where Penstock has a number and whoever reads expects a uuid.';

create or replace function video_ideas._user(p_actor text)
returns uuid language sql immutable parallel safe set search_path = pg_catalog, pg_temp as $$
  select case when p_actor like 'user:%' then substr(p_actor, 6)::uuid end
$$;
comment on function video_ideas._user(text) is 'The user that an actor is; null: the service.';
