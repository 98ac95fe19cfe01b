-- phase: expand
-- Roles and identity, as on Supabase: what is there is used, what is missing is made.

do $$
begin
  if not exists (select from pg_roles where rolname = 'anon') then
    create role anon nologin noinherit;
  end if;
  if not exists (select from pg_roles where rolname = 'authenticated') then
    create role authenticated nologin noinherit;
  end if;
  if not exists (select from pg_roles where rolname = 'service_role') then
    begin
      create role service_role nologin noinherit bypassrls;
    exception when insufficient_privilege then
      -- Managed servers may not let us grant BYPASSRLS. The service then reads through its own policies.
      create role service_role nologin noinherit;
    end;
  end if;
end
$$;

do $$
begin
  if to_regnamespace('auth') is null then
    create schema auth;
    comment on schema auth is 'made by penstock: the part of Supabase''s auth schema that penstock needs';

    create table auth.users (
      id uuid primary key default gen_random_uuid(),
      email text,
      created_at timestamptz not null default clock_timestamp()
    );
    alter table auth.users enable row level security;

    create function auth.jwt() returns jsonb language sql stable as
      $f$ select nullif(current_setting('request.jwt.claims', true), '')::jsonb $f$;
    create function auth.uid() returns uuid language sql stable as
      $f$ select nullif(auth.jwt() ->> 'sub', '')::uuid $f$;
    create function auth.role() returns text language sql stable as
      $f$ select auth.jwt() ->> 'role' $f$;

    revoke all on schema auth from public;
    revoke all on all functions in schema auth from public;
    grant usage on schema auth to anon, authenticated, service_role;
    grant execute on function auth.jwt(), auth.uid(), auth.role() to anon, authenticated, service_role;
  end if;
end
$$;

create schema if not exists penstock;
revoke all on schema penstock from public;

-- Time-ordered ids: a job's neighbours in time are its neighbours in every index.
create function penstock._uuid7() returns uuid language sql volatile set search_path = pg_catalog as $$
  select encode(
    set_bit(set_bit(
      overlay(uuid_send(gen_random_uuid())
        placing substring(int8send((extract(epoch from clock_timestamp()) * 1000)::bigint) from 3)
        from 1 for 6),
      52, 1), 53, 1),
    'hex')::uuid
$$;
comment on function penstock._uuid7() is 'A version 7 UUID: milliseconds first, then random bits.';
