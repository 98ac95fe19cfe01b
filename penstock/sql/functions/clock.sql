-- The clock. Every function reads the time here, so tests can replace it.

create or replace function penstock._now()
returns timestamptz language sql volatile as $$ select clock_timestamp() $$;
comment on function penstock._now() is 'The current time. Every function reads it here.';
