-- Sync for offline-first clients. make_synced adds triggers to a table of an app:
--
--   t00_owner_lock   a statement of a user waits for other writes of the same user
--   t01_lww_guard    skips an update that is older than the stored row (last write wins)
--   t02_change_seq   numbers the change
--   t03_cascade_…    deletes the children of a deleted row (cascade_deletes)
--   t04_horizon      records the permanent deletion of a row
--
-- Why a client that has read up to number n misses nothing: the lock of an owner is taken before the number
-- and held until the commit, so the numbers of one owner become visible in their order. Owners do not wait
-- for each other.

create or replace function penstock.lock_owner(p_user_id uuid)
returns void language sql set search_path = penstock, pg_temp as $$
  select pg_advisory_xact_lock(hashtextextended('penstock.sync:' || p_user_id, 0))
$$;
comment on function penstock.lock_owner(uuid) is
  'Waits until no other transaction changes synced rows of this user. Held until the commit.';

create or replace function penstock._lock_caller()
returns trigger language plpgsql security definer set search_path = penstock, pg_temp as $$
begin
  -- Before any row is locked: an update would lock its row first, an upsert the owner, and both would wait
  -- for each other. The service changes rows of several owners and takes their locks row by row: a function
  -- of the service that changes rows of one owner calls lock_owner first.
  if auth.uid() is not null then
    perform _require_active(p.tenant_id) from profiles p where p.user_id = auth.uid();
    perform lock_owner(auth.uid());
  end if;
  return null;
end
$$;
comment on function penstock._lock_caller() is
  'Trigger of synced tables: takes the lock of the calling user.';

create or replace function penstock._skip_stale_change()
returns trigger language plpgsql security definer set search_path = penstock, pg_temp as $$
begin
  if (new.user_id, new.id) is distinct from (old.user_id, old.id) then
    perform _refuse(422, 'fixed_key', 'user_id and id of a synced row cannot be changed');
  end if;
  return case when new.updated_at < old.updated_at then null else new end;
end
$$;
comment on function penstock._skip_stale_change() is
  'Trigger of synced tables: skips an update whose updated_at is older than that of the stored row.';

create or replace function penstock._number_change()
returns trigger language plpgsql security definer set search_path = penstock, pg_temp as $$
declare
  v_server_ms bigint := floor(extract(epoch from _now()) * 1000);
begin
  if new.updated_at > v_server_ms + 300000 then
    -- The row could not be changed by devices with a correct clock until that time.
    perform _refuse(422, 'clock_ahead', format(
      'updated_at must be at most 5 minutes in the future (got %s, the server''s time is %s)',
      new.updated_at, v_server_ms), jsonb_build_object('field', 'updated_at', 'server_ms', v_server_ms),
      'Set the clock of the device.');
  end if;
  if tg_op = 'UPDATE' then
    new.change_seq := old.change_seq;
    -- A repeated write changes nothing and wakes no device.
    if new *= old then
      return new;
    end if;
  end if;
  perform lock_owner(new.user_id);
  new.change_seq := nextval('penstock.change_seqs');
  return new;
end
$$;
comment on function penstock._number_change() is
  'Trigger of synced tables: gives a changed row the next change number, under the lock of its owner.';

create or replace function penstock._cascade_delete()
returns trigger language plpgsql security definer set search_path = penstock, pg_temp as $$
begin
  if new.deleted and (tg_op = 'INSERT' or not old.deleted) then
    execute format('update %s set deleted = true, updated_at = $1 where user_id = $2 and %I = $3
      and not deleted and updated_at <= $1', tg_argv[0]::regclass, tg_argv[1])
      using new.updated_at, new.user_id, new.id;
  end if;
  return null;
end
$$;
comment on function penstock._cascade_delete() is
  'Trigger of a parent table: deletes the children of a deleted row, except those that were edited later.';

create or replace function penstock._follow_parent()
returns trigger language plpgsql security definer set search_path = penstock, pg_temp as $$
declare
  v_deleted_at bigint;
  v_is_stale boolean;
begin
  -- The child was edited before the deletion and arrives after it.
  execute format('select updated_at from %s where user_id = $1 and id = $2 and deleted',
    tg_argv[0]::regclass) into v_deleted_at using new.user_id, to_jsonb(new) ->> tg_argv[1];
  if v_deleted_at >= new.updated_at then
    if tg_op = 'INSERT' then
      -- An upsert: with the time of the deletion it would pass the guard and replace a newer row.
      execute format('select exists (select from %s where user_id = $1 and id = $2 and updated_at > $3)',
        tg_relid::regclass) into v_is_stale using new.user_id, new.id, new.updated_at;
      if v_is_stale then
        return null;
      end if;
    end if;
    new.deleted := true;
    new.updated_at := v_deleted_at;
  end if;
  return new;
end
$$;
comment on function penstock._follow_parent() is
  'Trigger of a child table: a row that is not newer than the deletion of its parent is deleted, too.';

create or replace function penstock._raise_horizon()
returns trigger language plpgsql security definer set search_path = penstock, pg_temp as $$
declare
  v_seq bigint := old.change_seq;
begin
  perform lock_owner(old.user_id);
  -- Devices that have read a tombstone need nothing more. A live row is on all devices.
  if not old.deleted then
    v_seq := nextval('penstock.change_seqs');
  end if;
  insert into sync_horizons as h (user_id, schema_name, table_name, seq)
  values (old.user_id, tg_table_schema, tg_table_name, v_seq)
  on conflict (user_id, schema_name, table_name) do update set seq = greatest(h.seq, excluded.seq);
  return null;
end
$$;
comment on function penstock._raise_horizon() is
  'Trigger of synced tables: notes that a row was deleted permanently, so that devices pull all again.';

create or replace function penstock._check_synced_columns(p_table regclass)
returns void language plpgsql stable set search_path = penstock, pg_temp as $$
declare
  v_missing text;
  v_key text[];
begin
  select string_agg(format('%s %s not null', w.name, w.type), ', ') into v_missing
  from (values ('user_id', 'uuid'), ('id', 'text'), ('updated_at', 'bigint'), ('deleted', 'boolean'),
    ('change_seq', 'bigint')) as w (name, type)
  where not exists (
    select from pg_attribute a where a.attrelid = p_table and a.attname = w.name and not a.attisdropped
      and format_type(a.atttypid, null) = w.type and a.attnotnull);
  if v_missing is not null then
    perform _refuse(422, 'invalid_table',
      format('%s cannot be synced: it needs the columns %s', p_table, v_missing));
  end if;
  select array_agg(a.attname::text order by k.place) into v_key from pg_index i
    cross join unnest(i.indkey) with ordinality as k (number, place)
    join pg_attribute a on a.attrelid = p_table and a.attnum = k.number
    where i.indrelid = p_table and i.indisprimary;
  if v_key is distinct from '{user_id,id}' then
    perform _refuse(422, 'invalid_table',
      format('%s cannot be synced: its primary key must be (user_id, id)', p_table));
  end if;
end
$$;
comment on function penstock._check_synced_columns(regclass) is
  'Raises an error unless a table has the columns and the primary key of a synced table.';

create or replace function penstock.make_synced(p_table regclass, p_position integer)
returns void language plpgsql set search_path = penstock, pg_temp as $$
declare
  v_trigger record;
  v_highest bigint;
begin
  if p_position is null then
    perform _refuse(422, 'invalid', 'p_position must be a number (got null)', '{"field": "p_position"}');
  end if;
  perform _check_synced_columns(p_table);
  execute format('lock table %s in share row exclusive mode', p_table);
  if not exists (select from pg_trigger where tgrelid = p_table and tgname = 't02_change_seq') then
    -- Rows that the table has already. A sequence that is younger than they are (Penstock was taken back and
    -- installed again) continues above the numbers that devices have read.
    execute format('select max(change_seq) from %s', p_table) into v_highest;
    if v_highest > (select last_value from change_seqs) then
      perform setval('penstock.change_seqs', v_highest);
    end if;
    execute format('update %s set change_seq = nextval(''penstock.change_seqs'')', p_table);
  end if;
  for v_trigger in
    select * from (values
      ('t00_owner_lock', 'before insert or update or delete', 'statement', '_lock_caller()'),
      ('t01_lww_guard', 'before update', 'row', '_skip_stale_change()'),
      ('t02_change_seq', 'before insert or update', 'row', format('_number_change(%s)', p_position)),
      ('t04_horizon', 'after delete', 'row', '_raise_horizon()')) as t (name, event, level, function)
  loop
    execute format('create or replace trigger %I %s on %s for each %s execute function penstock.%s',
      v_trigger.name, v_trigger.event, p_table, v_trigger.level, v_trigger.function);
  end loop;
  if not exists (select from pg_index i where i.indrelid = p_table and i.indisvalid and i.indpred is null
    and pg_get_indexdef(i.indexrelid, 1, true) = 'user_id'
    and pg_get_indexdef(i.indexrelid, 2, true) = 'change_seq') then
    execute format('create unique index on %s (user_id, change_seq)', p_table);
  end if;
end
$$;
comment on function penstock.make_synced(regclass, integer) is
  'Makes a table of an app a synced table. An app''s migration calls it, as the owner of the table. Tables '
  'with a lower position are pushed first: parents before children.';

create or replace function penstock.cascade_deletes(p_parent regclass, p_child regclass, p_column text)
returns void language plpgsql set search_path = penstock, pg_temp as $$
declare
  v_child text;
begin
  select c.relname || '_' || p_column into v_child from pg_class c where c.oid = p_child;
  -- After the guard and before the number, so that a repeated write stays one that changes nothing.
  execute format('create or replace trigger %I before insert or update on %s for each row
    execute function penstock._follow_parent(%L, %L)', 't01_parent_' || p_column, p_child, p_parent,
    p_column);
  execute format('create or replace trigger %I after insert or update of deleted on %s for each row
    execute function penstock._cascade_delete(%L, %L)', 't03_cascade_' || v_child, p_parent, p_child,
    p_column);
end
$$;
comment on function penstock.cascade_deletes(regclass, regclass, text) is
  'Lets the deletion of a synced row delete its children: rows of p_child whose p_column holds its id. An '
  'app''s migration calls it after make_synced.';

create or replace function penstock._synced_tables(p_schema text)
returns table (relation regclass, schema_name text, name text, "position" integer, horizon bigint)
language sql stable security definer set search_path = penstock, pg_temp as $$
  -- The catalogue is the list: a dropped table is not on it.
  select c.oid::regclass, n.nspname::text, c.relname::text,
    split_part(encode(t.tgargs, 'escape'), '\000', 1)::integer, coalesce(h.seq, 0)
  from pg_trigger t
  join pg_class c on c.oid = t.tgrelid
  join pg_namespace n on n.oid = c.relnamespace
  left join sync_horizons h
    on h.user_id = auth.uid() and h.schema_name = n.nspname and h.table_name = c.relname
  where t.tgfoid = 'penstock._number_change()'::regprocedure and (p_schema is null or n.nspname = p_schema)
$$;
comment on function penstock._synced_tables(text) is
  'The synced tables of a schema, or of all, and the calling user''s horizon of each.';

create or replace function penstock._refusal_code(p_sqlstate text, p_detail text, p_constraint text)
returns text language sql immutable set search_path = penstock, pg_temp as $$
  select case
    when p_sqlstate like 'PT4%' then coalesce(substring(p_detail from '"code": "(\w+)"'), 'not_allowed')
    when p_sqlstate = '23503' then 'missing_parent'
    when p_sqlstate = '23505' then 'duplicate'
    when p_sqlstate = '23514' then p_constraint
    when p_sqlstate = '42501' then 'not_allowed'
    when p_sqlstate = '42703' then 'unknown_column'
    when p_sqlstate like '22%' or p_sqlstate like '23%' then 'invalid_value'
  end
$$;
comment on function penstock._refusal_code(text, text, text) is
  'The code of a change that the database refused; null for an error that is not about the change.';

create or replace function penstock._push_change(p_table regclass, p_record jsonb)
returns table (outcome text, change_seq bigint, code text, message text)
language plpgsql set search_path = penstock, pg_temp as $$
declare
  v_columns text;
  v_changes text;
  v_detail text;
  v_constraint text;
begin
  outcome := 'applied';
  select string_agg(quote_ident(k), ', '), string_agg(format('%I = excluded.%1$I', k), ', ')
      filter (where k not in ('user_id', 'id'))
    into v_columns, v_changes from jsonb_object_keys(p_record) as k;
  -- Names are quoted, and the table is one of the synced ones. Runs with the caller's rights.
  execute format('insert into %s as t (%s) select %2$s from jsonb_populate_record(null::%1$s, $1)
    on conflict (user_id, id) do update set %3$s returning t.change_seq', p_table, v_columns, v_changes)
    into change_seq using p_record;
  if change_seq is null then
    outcome := 'stale';
    execute format('select t.change_seq from %s as t where user_id = $1 and id = $2', p_table)
      into change_seq using coalesce((p_record ->> 'user_id')::uuid, auth.uid()), p_record ->> 'id';
  end if;
  return next;
exception when others then
  get stacked diagnostics v_detail = pg_exception_detail, v_constraint = constraint_name;
  code := _refusal_code(sqlstate, v_detail, v_constraint);
  if code is null then
    raise;
  end if;
  outcome := 'refused';
  change_seq := null;
  message := sqlerrm;
  return next;
end
$$;
comment on function penstock._push_change(regclass, jsonb) is
  'Inserts or updates one row of a synced table as the caller, and returns what became of it.';

create or replace function penstock._push_changes(p_table regclass, p_records jsonb)
returns table (id text, outcome text, change_seq bigint, code text, message text)
language plpgsql set search_path = penstock, pg_temp as $$
#variable_conflict use_column
declare
  v_columns text;
  v_changes text;
  v_written jsonb;
begin
  -- Records of one user with the same columns: one statement, which is ten times faster than one for each.
  if auth.uid() is not null and jsonb_array_length(p_records) > 1 then
    select string_agg(quote_ident(k), ', '), string_agg(format('%I = excluded.%1$I', k), ', ')
        filter (where k not in ('user_id', 'id'))
      into v_columns, v_changes from jsonb_object_keys(p_records -> 0) as k;
    begin
      execute format('with written as (
        insert into %s as t (%s) select %2$s from jsonb_populate_recordset(null::%1$s, $1)
        on conflict (user_id, id) do update set %3$s returning t.id, t.change_seq
      ) select coalesce(jsonb_object_agg(w.id, w.change_seq), ''{}'') from written w',
        p_table, v_columns, v_changes) into v_written using p_records;
    exception when others then
      -- One record is refused or listed twice: write each in its own statement to find it.
      if sqlstate <> '21000' and _refusal_code(sqlstate, null, '') is null then
        raise;
      end if;
    end;
  end if;
  if v_written is null then
    return query select r.value ->> 'id', p.outcome, p.change_seq, p.code, p.message
      from jsonb_array_elements(p_records) as r cross join lateral _push_change(p_table, r.value) as p;
    return;
  end if;
  return query execute format('select r.id, case when $2 ? r.id then ''applied'' else ''stale'' end,
    coalesce(($2 ->> r.id)::bigint, (select t.change_seq from %s as t where t.user_id = $3 and t.id = r.id)),
    null::text, null::text
    from (select value ->> ''id'' as id from jsonb_array_elements($1)) as r', p_table)
    using p_records, v_written, auth.uid();
end
$$;
comment on function penstock._push_changes(regclass, jsonb) is
  'Inserts or updates records of a synced table as the caller, and returns what became of each.';

create or replace function penstock.push_changes(p_changes jsonb, p_schema text default null)
returns table ("table" text, id text, outcome text, change_seq bigint, code text, message text)
language plpgsql set search_path = penstock, pg_temp as $$
#variable_conflict use_column
declare
  v_group record;
  v_code text;
begin
  if jsonb_typeof(p_changes) is distinct from 'array' or jsonb_array_length(p_changes) > 1000 then
    perform refuse(422, 'invalid_changes', 'p_changes must be an array of at most 1000 changes',
      '{"field": "p_changes"}', 'Each change is {"table": "notes", "record": {"id": "…", …}}.');
  end if;
  for v_group in
    with given as (
      select c.place, c.value ->> 'table' as name, c.value -> 'record' as record,
        coalesce(c.value -> 'record' ->> 'id', '') <> ''
          and jsonb_typeof(c.value -> 'record' -> 'updated_at') = 'number' as is_valid
      from jsonb_array_elements(p_changes) with ordinality as c (value, place)
    ), known as (
      select g.name, array_agg(t.relation) as relations, min(t.position) as position
      from (select distinct name from given) g join _synced_tables(p_schema) t
        on g.name in (t.name, t.schema_name || '.' || t.name)
      where has_schema_privilege(t.schema_name, 'usage') and has_table_privilege(t.relation, 'select')
      group by g.name
    )
    select g.name, k.relations, g.is_valid, jsonb_agg(g.record order by g.place) as records
    from given g left join known k on k.name = g.name
    -- Records with the same columns are written together.
    group by g.name, k.relations, k.position, g.is_valid,
      case when g.is_valid then array(select jsonb_object_keys(g.record) order by 1) end
    order by k.position, min(g.place)
  loop
    v_code := case when v_group.relations is null then 'unknown_table'
      when cardinality(v_group.relations) > 1 then 'ambiguous_table'
      when not coalesce(v_group.is_valid, false) then 'invalid_record' end;
    if v_code is null then
      return query select v_group.name, p.* from _push_changes(v_group.relations[1], v_group.records) p;
    else
      return query select v_group.name, r.value ->> 'id', 'refused', null::bigint, v_code, case v_code
        when 'unknown_table' then format('unknown synced table %L', left(v_group.name, 100))
        when 'ambiguous_table' then 'several schemas have a synced table of this name: set p_schema'
        else 'a record must have an id and updated_at (Unix time in milliseconds)' end
        from jsonb_array_elements(v_group.records) as r;
    end if;
  end loop;
end
$$;
comment on function penstock.push_changes(jsonb, text) is
  'Applies changes of synced tables as the caller, one by one, and returns the outcome of each: applied, '
  'stale (the stored row is newer) or refused, with a code. Parents are applied before children.';

create or replace function penstock.sync_state(p_schema text default null)
returns jsonb language plpgsql stable set search_path = penstock, pg_temp as $$
declare
  v_table record;
  v_seq bigint;
  v_tables jsonb := '{}';
begin
  for v_table in
    select t.relation, t.horizon, case when count(*) over (partition by t.name) > 1
      then t.schema_name || '.' || t.name else t.name end as key
    from _synced_tables(p_schema) t
    where has_schema_privilege(t.schema_name, 'usage') and has_table_privilege(t.relation, 'select')
  loop
    execute format('select max(change_seq) from %s where user_id = $1', v_table.relation)
      into v_seq using auth.uid();
    v_tables := v_tables || jsonb_build_object(v_table.key,
      jsonb_build_object('seq', coalesce(v_seq, 0), 'horizon', v_table.horizon));
  end loop;
  return jsonb_build_object('tables', v_tables,
    'server_ms', floor(extract(epoch from _now()) * 1000)::bigint);
end
$$;
comment on function penstock.sync_state(text) is
  'The highest change number and the horizon of each synced table for the calling user, and the server''s '
  'time. A device whose cursor is below the horizon pulls everything again.';

create or replace function penstock.purge_tombstones(p_user_id uuid, p_older_than_days integer)
returns bigint language plpgsql security definer set search_path = penstock, pg_temp as $$
declare
  v_table record;
  v_count bigint;
  v_total bigint := 0;
begin
  if p_user_id is null or coalesce(p_older_than_days, 0) < 1 then
    perform _refuse(422, 'invalid', format('purge_tombstones needs a user and at least 1 day (got %s)',
      coalesce(p_older_than_days::text, 'null')), '{"field": "p_older_than_days"}');
  end if;
  perform lock_owner(p_user_id);
  -- Children first, so that foreign keys find nothing to cascade to.
  for v_table in select t.relation from _synced_tables(null) t order by t.position desc loop
    execute format('delete from %s where user_id = $1 and deleted and updated_at < $2', v_table.relation)
      using p_user_id,
        floor(extract(epoch from _now() - make_interval(days => p_older_than_days)) * 1000)::bigint;
    get diagnostics v_count = row_count;
    v_total := v_total + v_count;
  end loop;
  return v_total;
end
$$;
comment on function penstock.purge_tombstones(uuid, integer) is
  'Deletes a user''s tombstones that are older than a number of days, and returns their number. Devices that '
  'have not seen them pull everything again.';

create or replace function penstock._erase_synced_rows(p_user_id uuid)
returns void language plpgsql set search_path = penstock, pg_temp as $$
declare
  v_table record;
begin
  for v_table in select t.relation from _synced_tables(null) t order by t.position desc loop
    execute format('delete from %s where user_id = $1', v_table.relation) using p_user_id;
  end loop;
  delete from sync_horizons where user_id = p_user_id;
end
$$;
comment on function penstock._erase_synced_rows(uuid) is 'Deletes all rows of a user in synced tables.';
