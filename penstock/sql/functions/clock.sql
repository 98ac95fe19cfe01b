-- The one clock. Tests replace this function; nothing else reads the time.

create or replace function penstock._now()
returns timestamptz language sql volatile as $$ select clock_timestamp() $$;
comment on function penstock._now() is 'The database''s clock: the only one.';
