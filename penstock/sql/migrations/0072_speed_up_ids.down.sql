create or replace function penstock._uuid7()
returns uuid language sql volatile set search_path = pg_catalog as $$
  select encode(
    overlay(overlay(r.bytes
      placing substring(int8send((extract(epoch from clock_timestamp()) * 1000)::bigint) from 3) from 1 for 6)
      -- Version 7, ten bits of the cell's number, two random bits.
      placing substring(int4send(28672 + 4 * coalesce(
          (select value::integer from penstock.settings where name = 'cell'), 0)
        + (get_byte(r.bytes, 7) & 3)) from 3) from 7 for 2),
    'hex')::uuid
  from (select uuid_send(gen_random_uuid()) as bytes offset 0) as r
$$;
