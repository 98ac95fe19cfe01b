-- Cells: several databases, each with some of the tenants. The engine knows one thing about cells: the number
-- in every new id. The directory (cells, tenant_cells, cell_limits) and the steps of a move are here, too;
-- moves.sql has what copies a tenant.

create or replace function penstock.cell_of(p_id uuid)
returns integer language sql stable security definer set search_path = penstock, pg_temp as $$
  select (get_byte(b, 6) & 15) * 64 + (get_byte(b, 7) >> 2) from (select uuid_send(p_id) as b) as x
  where get_byte(b, 6) >> 4 = 7
    and ('x' || substr(encode(b, 'hex'), 1, 12))::bit(48)::bigint >= (_setting('cell_ids_since'))::bigint
$$;
comment on function penstock.cell_of(uuid) is
  'The number of the cell that made an id; null for an id from before ids carried one. A tenant that moved '
  'keeps its ids: ask the directory for the tenant''s cell.';

create or replace function penstock.set_cell(p_number integer)
returns void language plpgsql security definer set search_path = penstock, pg_temp as $$
declare
  v_old integer := (_setting('cell'))::integer;
begin
  if p_number is null or p_number not between 0 and 1023 then
    perform _refuse(422, 'invalid_cell',
      format('the number of a cell must be between 0 and 1023 (got %s)', coalesce(p_number::text, 'null')));
  end if;
  if p_number <> v_old and exists (select from tenants) then
    perform _refuse(409, 'cell_in_use',
      'this database has tenants: its ids already carry the number ' || v_old, '{}', 'Use a new database.');
  end if;
  update settings set value = to_jsonb(p_number), changed_at = _now() where name = 'cell'
    and value <> to_jsonb(p_number);
  if found then
    perform _audit(null, 'setting.changed', null, 'setting:cell',
      jsonb_build_object('from', v_old, 'to', p_number));
  end if;
  perform _number_rows(p_number);
end
$$;
comment on function penstock.set_cell(integer) is
  'Sets the number of this cell, of a database without tenants. Repeat it after a migration: new tables of '
  'apps get their range of row numbers.';

create or replace function penstock._number_rows(p_cell integer)
returns void language plpgsql set search_path = penstock, pg_temp as $$
declare
  -- 2^43 numbers for each of 1,024 cells: all of them are exact in JSON (2^53).
  v_first constant bigint := p_cell * 8796093022208 + 1;
  v_sequence record;
begin
  for v_sequence in
    select format('%I.%I', s.schemaname, s.sequencename)::regclass as name from pg_sequences s
    where s.data_type = 'bigint'::regtype and s.increment_by > 0
      and s.schemaname in (select schema_name from _platform_schemas())
      -- These only grow, and no row has one as its whole key: a move takes them forward.
      and not (s.schemaname = 'penstock' and s.sequencename in ('lease_numbers', 'change_seqs'))
      and coalesce(s.last_value, 0) < v_first
  loop
    perform setval(v_sequence.name, v_first, false);
  end loop;
end
$$;
comment on function penstock._number_rows(integer) is
  'Gives all sequences of the platform and its apps the range of this cell, so that rows keep their numbers '
  'when their tenant moves.';

create or replace function penstock._platform_schemas()
returns table (schema_name text) language sql stable set search_path = penstock, pg_temp as $$
  -- Each schema that penstock migrates has a table of its migrations.
  select n.nspname::text from pg_class c join pg_namespace n on n.oid = c.relnamespace
  where c.relname = 'migrations' and c.relkind = 'r' and c.relowner = n.nspowner
    and exists (select from pg_attribute a where a.attrelid = c.oid and a.attname = 'sha256')
$$;
comment on function penstock._platform_schemas() is 'The schema penstock and those of the apps.';

create or replace function penstock.add_cell(p_number integer, p_name text, p_share real default 1)
returns void language plpgsql security definer set search_path = penstock, pg_temp as $$
begin
  if p_number is null or p_number not between 0 and 1023 then
    perform _refuse(422, 'invalid_cell',
      format('the number of a cell must be between 0 and 1023 (got %s)', coalesce(p_number::text, 'null')));
  elsif p_name is null or p_name !~ '^[a-z0-9][a-z0-9_-]{0,62}$' then
    perform _refuse(422, 'invalid_cell', format(
      'the name of a cell must be lower-case letters, digits, _ and - (got %L)', left(p_name, 100)));
  elsif p_share is null or not (p_share > 0 and p_share <= 1000) then
    perform _refuse(422, 'invalid_cell',
      format('share must be greater than 0 and at most 1000 (got %s)', coalesce(p_share::text, 'null')));
  end if;
  if exists (select from cells where name = p_name and number <> p_number) then
    perform _refuse(409, 'cell_exists', format('another cell has the name %s', p_name));
  end if;
  insert into cells (number, name, share, added_at) values (p_number, p_name, p_share, _now())
  on conflict (number) do update set name = excluded.name, share = excluded.share;
  perform _audit(null, 'cell.set', null, 'cell:' || p_number,
    jsonb_build_object('name', p_name, 'share', p_share));
end
$$;
comment on function penstock.add_cell(integer, text, real) is
  'Adds a cell to the directory, or changes its name and its share of provider limits.';

create or replace function penstock.begin_move(p_tenant_id uuid, p_from integer, p_to integer)
returns penstock.tenant_cells language plpgsql security definer set search_path = penstock, pg_temp as $$
declare
  v_move tenant_cells;
begin
  if not exists (select from cells where number = p_to) then
    perform _refuse(404, 'unknown_cell', format('there is no cell %s', p_to));
  end if;
  insert into tenant_cells (tenant_id, cell) values (p_tenant_id, p_from) on conflict (tenant_id) do nothing;
  select * into v_move from tenant_cells where tenant_id = p_tenant_id for update;
  if v_move.moving_to is null and v_move.cell <> p_to then
    update tenant_cells set moving_from = v_move.cell, moving_to = p_to, step = 'drain', counts = null,
      switched_at = null
    where tenant_id = p_tenant_id returning * into v_move;
    perform _audit(p_tenant_id, 'tenant.move_begun', null, 'tenant:' || p_tenant_id,
      jsonb_build_object('from', v_move.cell, 'to', p_to));
  elsif v_move.moving_to <> p_to then
    perform _refuse(409, 'move_in_progress',
      format('the tenant is moving to cell %s', v_move.moving_to), '{}',
      'Finish that move first, or end it with --abort.');
  end if;
  return v_move;
end
$$;
comment on function penstock.begin_move(uuid, integer, integer) is
  'Records in the directory that a tenant moves to another cell; returns the move, also one that was begun '
  'before.';

create or replace function penstock.record_move(p_tenant_id uuid, p_step text, p_counts jsonb default null)
returns penstock.tenant_cells language plpgsql security definer set search_path = penstock, pg_temp as $$
declare
  c_steps constant text[] := array['drain', 'copy', 'verify', 'switch', 'activate', 'remove'];
  v_move tenant_cells;
begin
  select * into v_move from tenant_cells where tenant_id = p_tenant_id and moving_to is not null for update;
  -- Forward by one step; before the switch also back to an earlier one, to copy again or to abort.
  if not found or p_step is not null and array_position(c_steps, p_step) is distinct from
      least(array_position(c_steps, p_step), array_position(c_steps, v_move.step) + 1)
    or p_step is null and v_move.step not in ('drain', 'remove')
    or v_move.step in ('activate', 'remove')
      and array_position(c_steps, p_step) < array_position(c_steps, v_move.step) then
    perform _refuse(409, 'invalid_step', format('a move at the step %s cannot continue with %s',
      coalesce(v_move.step, 'none'), coalesce(p_step, 'none')));
  end if;
  update tenant_cells set step = p_step, counts = coalesce(p_counts, counts),
    moving_to = case when p_step is not null then moving_to end,
    moving_from = case when p_step is not null then moving_from end,
    cell = case when p_step = 'activate' then moving_to else cell end,
    switched_at = case when p_step = 'activate' then coalesce(switched_at, _now()) else switched_at end
  where tenant_id = p_tenant_id returning * into v_move;
  if p_step = 'activate' then
    perform _audit(p_tenant_id, 'tenant.moved', null, 'tenant:' || p_tenant_id,
      jsonb_build_object('to', v_move.cell));
  end if;
  return v_move;
end
$$;
comment on function penstock.record_move(uuid, text, jsonb) is
  'Records the next step of a move. The step activate switches the directory to the new cell; null ends the '
  'move.';

create or replace function penstock.set_cell_limits(p_name text, p_limits jsonb)
returns jsonb language plpgsql security definer set search_path = penstock, pg_temp as $$
declare
  v_provider text := split_part(p_name, '/', 1);
  v_endpoint text := substr(p_name, strpos(p_name, '/') + 1);
  v_limits jsonb;
begin
  perform _check_fields(p_limits, _limit_names(), 'limit');
  if not exists (select from endpoints where name = p_name and tenant_id is null) then
    perform _refuse(404, 'unknown_provider', format('there is no provider %L', left(p_name, 200)));
  elsif exists (select from jsonb_each(p_limits) as l where jsonb_typeof(l.value) not in ('number', 'null')
      or jsonb_typeof(l.value) = 'number'
        and (l.value::numeric % 1 <> 0 or l.value::numeric not between 0 and 1e12)) then
    perform _refuse(422, 'invalid_provider', 'a limit must be an integer of at least 0, or null');
  end if;
  -- Without a record: what this database had before it shared its limits.
  select jsonb_object_agg(n, to_jsonb(e) -> n) into v_limits
  from endpoints e cross join unnest(_limit_names()) as n where e.name = p_name and e.tenant_id is null;
  insert into cell_limits (provider, endpoint, limits) values (v_provider, v_endpoint, v_limits || p_limits)
  on conflict (provider, endpoint) do update set limits = cell_limits.limits || p_limits
  returning limits into v_limits;
  return v_limits;
end
$$;
comment on function penstock.set_cell_limits(text, jsonb) is
  'Records the limits of a provider for all cells together, and returns them. {} changes nothing. penstock '
  'cells rebalance gives each cell its part.';

create or replace function penstock._limit_names()
returns text[] language sql immutable set search_path = penstock, pg_temp as $$
  select array['requests_per_minute', 'requests_per_hour', 'tokens_per_minute', 'tokens_per_hour',
    'concurrency']
$$;
comment on function penstock._limit_names() is 'The limits of a provider that cells share.';

create or replace function penstock.split_limits(p_limits jsonb, p_shares double precision[])
returns jsonb[] language plpgsql immutable set search_path = penstock, pg_temp as $$
declare
  v_parts jsonb[] := array_fill('{}'::jsonb, array[cardinality(p_shares)]);
  v_name text;
  v_total numeric;
  v_sum numeric := (select sum(s::numeric) from unnest(p_shares) as s);
  v_part record;
begin
  foreach v_name in array _limit_names() loop
    v_total := (p_limits ->> v_name)::numeric;
    if v_total < cardinality(p_shares) and v_total > 0 then
      perform _refuse(409, 'limit_too_small',
        format('the limit %s of %s cannot be split over %s cells', v_name, v_total, cardinality(p_shares)),
        jsonb_build_object('field', v_name),
        'Use one cell for this provider, or give each cell a provider key of its own.');
    end if;
    for v_part in
      -- One for each cell first, the rest by share; what rounding leaves goes to the largest fractions. The
      -- sum is the total, never more.
      select x.place, x.whole + (row_number() over (order by x.exact - x.whole desc, x.place)
        <= v_total - sum(x.whole) over ())::integer as amount
      from (
        select e.place, e.exact, floor(e.exact) as whole from (
          select s.place, case when v_total > 0
            then 1 + (v_total - cardinality(p_shares)) * s.share::numeric / v_sum else v_total end as exact
          from unnest(p_shares) with ordinality as s(share, place)) as e) as x
    loop
      v_parts[v_part.place] := v_parts[v_part.place] || jsonb_build_object(v_name, v_part.amount);
    end loop;
  end loop;
  return v_parts;
end
$$;
comment on function penstock.split_limits(jsonb, double precision[]) is
  'The parts of a provider''s limits for cells with these shares, in their order. Their sum is the limit.';

create or replace function penstock._shared_key(p_table text)
returns text[] language sql immutable set search_path = penstock, pg_temp as $$
  select (case p_table when 'plan_prices' then '{price_id}'
    when 'exchange_rates' then '{currency,valid_from}'
    when 'prices' then '{tenant_id,provider,meter,variant,valid_from}'
    when 'prompts' then '{name,version}' when 'provider_keys' then '{tenant_id,provider}'
    when 'meters' then '{name}' when 'plans' then '{name}' when 'kinds' then '{name}'
    when 'job_types' then '{name}' when 'job_params' then '{name}' when 'gates' then '{name}'
    -- So that the link of a file opens wherever its tenant is.
    when 'link_secrets' then '{id}'
    end)::text[]
$$;
comment on function penstock._shared_key(text) is
  'The key of a table with facts or secrets that all cells share; null: not such a table.';

create or replace function penstock._shared_rows(p_table text)
returns jsonb language plpgsql stable set search_path = penstock, pg_temp as $$
declare
  v_rows jsonb;
begin
  execute format('select coalesce(jsonb_agg(to_jsonb(t)), ''[]'') from penstock.%I as t where %s', p_table,
    case when 'tenant_id' = any (_shared_key(p_table)) then 'tenant_id is null' else 'true' end) into v_rows;
  return v_rows;
end
$$;
comment on function penstock._shared_rows(text) is
  'The rows of such a table, without those of single tenants.';

create or replace function penstock._apply_shared(p_table text, p_rows jsonb)
returns bigint language plpgsql set search_path = penstock, pg_temp as $$
declare
  v_key text[] := _shared_key(p_table);
  v_columns text[] := array(
    select a.attname::text from pg_attribute a
    where a.attrelid = format('penstock.%I', p_table)::regclass and a.attnum > 0 and not a.attisdropped
      and a.attidentity = '' and a.attgenerated = '' order by a.attnum);
  v_list text := (select string_agg(format('%I', c), ', ') from unnest(v_columns) as c);
  v_count bigint;
begin
  if p_table = 'prompts' then
    -- One version is active: the other one ends first.
    update prompts p set is_active = false where p.is_active and exists (
      select from jsonb_populate_recordset(null::prompts, p_rows) as r
      where r.name = p.name and r.is_active and r.version <> p.version);
  end if;
  execute format('insert into penstock.%1$I as t (%2$s) select %2$s '
    'from jsonb_populate_recordset(null::penstock.%1$I, $1) '
    'on conflict (%3$s) do update set (%2$s) = row(%4$s) '
    'where row(%5$s) is distinct from row(%4$s)', p_table, v_list,
    (select string_agg(format('%I', k), ', ') from unnest(v_key) as k),
    (select string_agg(format('excluded.%I', c), ', ') from unnest(v_columns) as c),
    (select string_agg(format('t.%I', c), ', ') from unnest(v_columns) as c)) using p_rows;
  get diagnostics v_count = row_count;
  return v_count;
end
$$;
comment on function penstock._apply_shared(text, jsonb) is
  'Makes a table of shared facts like that of the directory''s cell, and returns the number of changed rows. '
  'Rows that only this cell has stay.';
