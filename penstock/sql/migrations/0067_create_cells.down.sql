drop table penstock.cell_limits;
drop table penstock.tenant_cells;
drop table penstock.cells;
alter table penstock.tenants drop column suspended;
delete from penstock.settings where name in ('cell', 'cell_ids_since');
update penstock.jobs set paused_for = null where paused_for = 'move';

create or replace function penstock._is_valid_job(
  p_type text, p_status text, p_is_finished boolean, p_priority smallint, p_on_failure text, p_on_limit text,
  p_stop_after text, p_budget numeric, p_paused_for text, p_forgiven integer, p_idempotency_key text)
returns boolean language plpgsql immutable set search_path = pg_catalog, pg_temp as $$
begin
  return length(p_type) between 1 and 200
    and p_status in ('queued', 'running', 'paused', 'completed', 'failed', 'canceled')
    and p_is_finished = (p_status in ('completed', 'failed', 'canceled'))
    and p_priority between 0 and 10
    and p_on_failure in ('continue', 'stop')
    and p_on_limit in ('hold', 'refuse', 'pause')
    and (p_stop_after is null or p_stop_after ~ '^([1-9][0-9]{0,8}|(100|[1-9]?[0-9](\.[0-9]{1,3})?)%)$')
    and (p_budget is null or p_budget >= 0)
    and (p_paused_for is null or p_paused_for in ('budget', 'quota'))
    and p_forgiven >= 0
    and (p_idempotency_key is null or length(p_idempotency_key) between 1 and 255);
end
$$;

create or replace function penstock._uuid7() returns uuid language sql volatile set search_path = pg_catalog as $$
  select encode(
    set_bit(set_bit(
      overlay(uuid_send(gen_random_uuid())
        placing substring(int8send((extract(epoch from clock_timestamp()) * 1000)::bigint) from 3)
        from 1 for 6),
      52, 1), 53, 1),
    'hex')::uuid
$$;
comment on function penstock._uuid7() is 'A version 7 UUID: milliseconds first, then random bits.';
