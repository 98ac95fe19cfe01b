-- phase: expand
-- Ids of jobs, tenants, artifacts, waits and others carry the number of the database that made them (its cell): 10 of
-- the 74 random bits. Ids from before this migration are older than the setting cell_ids_since.

create or replace function penstock._uuid7() returns uuid language sql volatile set search_path = pg_catalog as $$
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
comment on function penstock._uuid7() is
  'A version 7 UUID: milliseconds, the number of this cell in 10 bits, then 64 random bits.';

insert into penstock.settings (name, value, comment) values
  ('cell_ids_since', to_jsonb(ceil(extract(epoch from clock_timestamp()) * 1000)::bigint),
    'Ids made since this time (in milliseconds) carry the number of their cell. Written by the migration.')
on conflict (name) do nothing;

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
    and (p_paused_for is null or p_paused_for in ('budget', 'quota', 'move'))
    and p_forgiven >= 0
    and (p_idempotency_key is null or length(p_idempotency_key) between 1 and 255);
end
$$;

alter table penstock.tenants
  add column suspended text constraint tenants_suspended_check check (suspended in ('draining', 'frozen'));
comment on column penstock.tenants.suspended is
  'Set while the tenant moves to another database, and afterwards where it was. draining: users start nothing '
  'new; frozen: nobody does.';
create index tenants_suspended on penstock.tenants (id) where suspended is not null;

create table penstock.cells (
  number smallint primary key check (number between 0 and 1023),
  name text not null unique check (name ~ '^[a-z0-9][a-z0-9_-]{0,62}$'),
  share real not null default 1 check (share > 0 and share <= 1000),
  added_at timestamptz not null
);
alter table penstock.cells enable row level security;
comment on table penstock.cells is
  'The directory: the databases of this installation. Used in the database that the API connects to; the addresses '
  'are in the file PENSTOCK_CELLS.';
comment on column penstock.cells.share is 'Share of every provider limit, relative to the other cells.';

create table penstock.tenant_cells (
  tenant_id uuid primary key,
  cell smallint not null references penstock.cells (number),
  moving_from smallint references penstock.cells (number),
  moving_to smallint references penstock.cells (number),
  step text constraint tenant_cells_step_check
    check (step in ('drain', 'copy', 'verify', 'switch', 'activate', 'remove')),
  counts jsonb,
  switched_at timestamptz,
  constraint tenant_cells_moving_check
    check ((moving_to is null) = (step is null) and (moving_from is null) = (step is null))
);
create index tenant_cells_cell on penstock.tenant_cells (cell);
create index tenant_cells_switched on penstock.tenant_cells (switched_at);
create index tenant_cells_moving_from on penstock.tenant_cells (moving_from);
create index tenant_cells_moving_to on penstock.tenant_cells (moving_to);
alter table penstock.tenant_cells enable row level security;
comment on table penstock.tenant_cells is
  'The directory: the cell of each tenant that is not in the directory''s own cell, and moves that are under way.';
comment on column penstock.tenant_cells.step is 'The step of the move that comes next; null: the tenant is not moving.';
comment on column penstock.tenant_cells.counts is 'The number of rows in each table when the copy was verified.';

create table penstock.cell_limits (
  provider text not null,
  endpoint text not null,
  limits jsonb not null,
  primary key (provider, endpoint)
);
alter table penstock.cell_limits enable row level security;
comment on table penstock.cell_limits is
  'The directory: the limits of each provider endpoint for all cells together. Each cell has a share of them.';
