-- phase: expand
-- The same ids for a third of the CPU time: PostgreSQL starts a query for each call of an SQL function.

create or replace function penstock._uuid7()
returns uuid language plpgsql volatile set search_path = pg_catalog as $$
declare
  v_bytes bytea := uuid_send(gen_random_uuid());
  v_cell integer := coalesce((select value::integer from penstock.settings where name = 'cell'), 0);
begin
  return encode(
    overlay(overlay(v_bytes
      placing substring(int8send((extract(epoch from clock_timestamp()) * 1000)::bigint) from 3) from 1 for 6)
      -- Version 7, ten bits of the cell's number, two random bits.
      placing substring(int4send(28672 + 4 * v_cell + (get_byte(v_bytes, 7) & 3)) from 3) from 7 for 2),
    'hex')::uuid;
end
$$;
