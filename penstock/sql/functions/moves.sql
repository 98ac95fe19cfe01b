-- Moves: what copies a tenant to another database and removes it from this one. Only the owner of the schema
-- calls these: `penstock cells move`. The steps are in cells.sql and penstock/cells/moving.py.

create or replace function penstock._require_active(p_tenant_id uuid)
returns void language plpgsql stable set search_path = penstock, pg_temp as $$
declare
  v_suspended text := (select t.suspended from tenants t where t.id = p_tenant_id);
begin
  -- Running handlers may start work until they end. The move itself pauses and resumes jobs.
  if v_suspended is null or _is_service()
    and (v_suspended = 'draining' or current_setting('penstock.moving', true) = 'on') then
    return;
  end if;
  perform _refuse(503, 'tenant_suspended', 'the tenant is moving to another database',
    jsonb_build_object('retry_after_seconds', 5, 'tenant_id', p_tenant_id),
    'Try again in a few seconds, with the same idempotency key.');
end
$$;
comment on function penstock._require_active(uuid) is
  'Raises an error while a tenant is suspended: nothing may change in a database that the tenant leaves.';

create or replace function penstock._require_tenant(p_tenant_id uuid)
returns void language plpgsql stable set search_path = penstock, pg_temp as $$
begin
  if not exists (select from tenants where id = p_tenant_id) then
    perform _refuse(404, 'unknown_tenant', 'there is no such tenant');
  end if;
  perform _require_active(p_tenant_id);
end
$$;
comment on function penstock._require_tenant(uuid) is
  'Raises an error unless there is such a tenant and it may be changed here. For functions of the service.';

create or replace function penstock._suspended_tenants()
returns uuid[] language sql stable set search_path = penstock, pg_temp as $$
  select array(select t.id from tenants t where t.suspended is not null)
$$;
comment on function penstock._suspended_tenants() is
  'Tenants that move or have moved. Their schedules, notifications and operations wait.';

create or replace function penstock._suspend_tenant(p_tenant_id uuid, p_level text)
returns void language plpgsql set search_path = penstock, pg_temp as $$
begin
  update tenants set suspended = p_level where id = p_tenant_id and suspended is distinct from p_level;
  if found then
    perform _audit(p_tenant_id, 'tenant.' || coalesce(p_level, 'resumed'), null, 'tenant:' || p_tenant_id);
  elsif not exists (select from tenants where id = p_tenant_id) then
    perform _refuse(404, 'unknown_tenant', 'there is no such tenant');
  end if;
end
$$;
comment on function penstock._suspend_tenant(uuid, text) is
  'Suspends a tenant: draining, then frozen; null resumes it.';

create or replace function penstock._drain_tenant(
  p_tenant_id uuid, out leases bigint, out chores bigint, out jobs bigint)
language plpgsql set search_path = penstock, pg_temp as $$
declare
  v_job_id uuid;
begin
  perform set_config('penstock.moving', 'on', true);
  for v_job_id in
    select j.id from jobs j where j.tenant_id = p_tenant_id and j.status in ('queued', 'running')
    order by j.id limit 200
  loop
    begin
      perform _pause_job(v_job_id, 'the tenant is moving to another database', 'move');
    exception when sqlstate 'PT409' then
      null; -- It ended while the call waited for its lock.
    end;
  end loop;
  perform _do_chore(c.job_id, 1000) from (
    select h.job_id from chores h where h.tenant_id = p_tenant_id order by h.created_at limit 20) as c;
  select count(*) into leases from leases l where l.tenant_id = p_tenant_id;
  select count(*) into chores from chores h where h.tenant_id = p_tenant_id;
  -- A message that is being sent: the other database would send it again.
  chores := chores + (select count(*) from notifications n where n.tenant_id = p_tenant_id
    and n.status = 'sending' and n.next_try_at > _now());
  select count(*) into jobs from jobs j where j.tenant_id = p_tenant_id and j.status in ('queued', 'running');
end
$$;
comment on function penstock._drain_tenant(uuid) is
  'Pauses the next jobs of a tenant, parks their tasks, and says what still runs; chores include messages '
  'that are being sent.';

create or replace function penstock._resume_moved(p_tenant_id uuid)
returns integer language plpgsql set search_path = penstock, pg_temp as $$
declare
  v_job jobs;
  v_count integer := 0;
begin
  perform set_config('penstock.moving', 'on', true);
  for v_job in
    select * from jobs where tenant_id = p_tenant_id and status = 'paused' and paused_for = 'move'
    order by id limit 200
  loop
    begin
      perform resume_job(v_job.id);
    exception when sqlstate 'PT409' then
      continue; -- A user has canceled it meanwhile.
    end;
    -- A move accepts no failures: stop_after counts as before.
    update jobs set forgiven = v_job.forgiven where id = v_job.id and forgiven <> v_job.forgiven;
    v_count := v_count + 1;
  end loop;
  return v_count;
end
$$;
comment on function penstock._resume_moved(uuid) is
  'Resumes the next jobs that the move paused; 0: none is left.';

create or replace function penstock._tenant_condition(p_table regclass, p_tenant_id uuid)
returns text language sql stable set search_path = penstock, pg_temp as $$
  with t as (
    select c.relname::text as name, n.nspname::text as schema,
      array(select a.attname::text from pg_attribute a
        where a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped) as columns
    from pg_class c join pg_namespace n on n.oid = c.relnamespace where c.oid = p_table
  )
  select case
    -- The state of the queue and of limits, and what the copy or upkeep makes again.
    when schema = 'penstock' and name = any (array['leases', 'ready', 'shares', 'mixed', 'lanes', 'chores',
      'route_failures', 'task_sums', 'cost_sums', 'tenant_cells', 'operator_alerts']) then null
    when schema = 'penstock' and name = 'tenants' then format('id = %L', p_tenant_id)
    when schema = 'penstock' and name = 'requests' then format('actor in (select ''user:'' || m.user_id '
      'from penstock.members m where m.tenant_id = %L)', p_tenant_id)
    -- So that members who sign in there are the same people.
    when schema = 'penstock' and name = 'identities' then format('user_id in (select m.user_id '
      'from penstock.members m where m.tenant_id = %L)', p_tenant_id)
    when schema = 'penstock' and name = 'action_items' then format('action_id in (select a.id '
      'from penstock.actions a where a.tenant_id = %L)', p_tenant_id)
    when 'tenant_id' = any (columns) then format('tenant_id = %L', p_tenant_id)
    when schema = 'penstock' and 'job_id' = any (columns) then format('job_id in (select j.id '
      'from penstock.jobs j where j.tenant_id = %L)', p_tenant_id)
    when 'user_id' = any (columns) then format('user_id in (select p.user_id '
      'from penstock.profiles p where p.tenant_id = %L)', p_tenant_id)
  end
  from t
$$;
comment on function penstock._tenant_condition(regclass, uuid) is
  'Which rows of a table belong to a tenant; null: none. Tables of apps: by tenant_id, else by user_id of '
  'the user whose personal tenant it is.';

create or replace function penstock._tenant_tables(p_tenant_id uuid)
returns table (name text, columns text[], compared text[], condition text, is_merged boolean, is_kept boolean)
language sql stable set search_path = penstock, pg_temp as $$
  with recursive candidate as (
    select c.oid, n.nspname as schema, c.relname::text as relname from pg_class c
    join pg_namespace n on n.oid = c.relnamespace
    where n.nspname in (select schema_name from _platform_schemas()) and c.relkind in ('r', 'p')
      and not c.relispartition
  ), depth (oid, level) as (
    select oid, 0 from candidate
    union
    select f.conrelid, d.level + 1 from depth d join pg_constraint f on f.confrelid = d.oid
    where f.contype = 'f' and f.conrelid <> f.confrelid and d.level < 30
  ), ordered as (
    select oid, max(level) as level from depth group by oid
  ), found as (
    select c.oid, format('%I.%I', c.schema, c.relname) as name, c.schema = 'penstock' as is_ours, c.relname,
      o.level, _tenant_condition(c.oid, p_tenant_id) as condition
    from candidate c join ordered o using (oid)
  )
  select f.name,
    array(select a.attname::text from pg_attribute a where a.attrelid = f.oid and a.attnum > 0
      and not a.attisdropped and a.attgenerated = ''
      -- Both databases number these for themselves.
      and not (f.is_ours and f.relname in ('audit_log', 'endpoints') and a.attname = 'id') order by a.attnum),
    array(select a.attname::text from pg_attribute a where a.attrelid = f.oid and a.attnum > 0
      and not a.attisdropped and a.attgenerated = ''
      and a.attname not in ('lane_id', 'gated_lane_id', 'endpoint_id', 'price_id', 'change_seq',
        'last_used_at')
      and not (f.is_ours and f.relname = 'endpoints' and a.attname = 'id') order by a.attname),
    f.condition, f.is_ours and f.relname in ('audit_log', 'requests', 'identities', 'webhooks'),
    f.is_ours and f.relname in ('audit_log', 'requests', 'identities', 'tenants', 'profiles', 'api_keys')
  from found f where f.condition is not null
  order by f.name <> 'penstock.tenants', f.level, f.name
$$;
comment on function penstock._tenant_tables(uuid) is
  'The tables with rows of a tenant, parents first. compared: the columns that are equal in both databases; '
  'is_merged: rows are added to those that are there; is_kept: they stay after a move, as the marker of '
  'where the tenant was.';

create or replace function penstock._tenant_fingerprint(p_tenant_id uuid)
returns table (name text, rows bigint, digest text)
language plpgsql set search_path = penstock, pg_temp
  set timezone = 'UTC' set datestyle = 'ISO' set extra_float_digits = '1' set bytea_output = 'hex' as $$
declare
  c_digest constant text := 'count(*), '
    'coalesce(sum((''x'' || substr(md5(x::text), 1, 15))::bit(60)::bigint::numeric), 0)::text from (%s) as x';
  v_table record;
  v_columns text;
  v_query text;
begin
  for v_table in select * from _tenant_tables(p_tenant_id) as t where not t.is_merged loop
    v_columns := (select string_agg(format('%I', c), ', ') from unnest(v_table.compared) as c);
    v_query := case v_table.name
      -- Fresh rows are added up at any time, and a task of a paused job may be in either table.
      when 'penstock.usage_sums' then 'select tenant_id, action, day, meter, sum(amount) as amount from '
        'penstock.usage_sums where ' || v_table.condition || ' group by 1, 2, 3, 4'
      when 'penstock.parked' then format('select task_id, job_id, priority, phase, failures, deaths '
        'from penstock.parked where %1$s union all select task_id, job_id, priority, phase, failures, deaths '
        'from penstock.ready where %1$s', v_table.condition)
      else format('select %s from %s where %s', v_columns, v_table.name, v_table.condition) end;
    name := v_table.name;
    execute 'select ' || format(c_digest, v_query) into rows, digest;
    return next;
  end loop;
  name := 'penstock.cost_sums';
  execute 'select ' || format(c_digest, format('select day, provider, cost_type, '
    'sum(amount)::numeric(40, 12), sum(unit_count)::numeric(40, 12), sum(lines) from penstock.cost_sums '
    'where tenant_id = %L group by 1, 2, 3', p_tenant_id)) into rows, digest;
  return next;
end
$$;
comment on function penstock._tenant_fingerprint(uuid) is
  'For each table the number of a tenant''s rows and a checksum of their contents, the same in each database '
  'that holds the same rows.';

create or replace function penstock._delete_tenant_rows(p_tenant_id uuid, p_limit integer, p_keep boolean)
returns text language plpgsql set search_path = penstock, pg_temp as $$
declare
  v_table record;
  v_count bigint;
begin
  if (select t.suspended from tenants t where t.id = p_tenant_id) is distinct from 'frozen' then
    perform _refuse(409, 'tenant_active', 'the tenant is active in this database');
  end if;
  perform set_config('penstock.moving', 'on', true);
  delete from ready where tenant_id = p_tenant_id;
  delete from shares where tenant_id = p_tenant_id;
  delete from mixed where tenant_id = p_tenant_id;
  delete from route_failures where tenant_id = p_tenant_id;
  delete from chores where tenant_id = p_tenant_id;
  delete from lanes where tenant_id = p_tenant_id;
  -- The totals of all tenants no longer include this one.
  insert into cost_sums (tenant_id, day, provider, cost_type, amount, unit_count, lines)
    select null, s.day, s.provider, s.cost_type, -s.amount, -s.unit_count, -s.lines
    from cost_sums s where s.tenant_id = p_tenant_id;
  delete from cost_sums where tenant_id = p_tenant_id;
  for v_table in
    select t.* from _tenant_tables(p_tenant_id) with ordinality as t
    where not t.is_merged and not (p_keep and t.is_kept)
    -- First the tables whose rows are found through another table.
    order by t.condition like '% in (select %' desc, t.ordinality desc
  loop
    -- The condition twice: partitions have rows of others at the same position.
    execute format(case v_table.name
      -- Deletes corrections before the lines that they correct.
      when 'penstock.cost_entries' then
        'delete from %1$s where id = any (array(select id from %1$s where %2$s order by id desc limit %3$s))'
      else 'delete from %1$s where ctid = any (array(select ctid from %1$s where %2$s limit %3$s)) and %2$s'
      end, v_table.name, v_table.condition, p_limit);
    get diagnostics v_count = row_count;
    if v_count > 0 then
      return v_table.name;
    end if;
  end loop;
  if p_keep then
    -- An arriving copy keeps these: the new database has received events of its own.
    delete from webhooks where tenant_id = p_tenant_id;
  end if;
  return null;
end
$$;
comment on function penstock._delete_tenant_rows(uuid, integer, boolean) is
  'Deletes the next rows of a frozen tenant, children first, and returns the name of their table; null: none '
  'is left. p_keep keeps the tenant''s row, profiles and keys. Members lose their rights in this database.';

create or replace function penstock._begin_arrival(p_tenant_id uuid, p_lanes jsonb)
returns table (what text, old bigint, new bigint)
language plpgsql set search_path = penstock, pg_temp as $$
declare
  v_lane record;
begin
  insert into endpoint_states (endpoint_id) select e.id from endpoints e where e.tenant_id = p_tenant_id
  on conflict (endpoint_id) do nothing;
  for v_lane in
    select * from jsonb_to_recordset(p_lanes) as l(id bigint, kind text, provider text, is_gated boolean)
    order by l.id
  loop
    what := 'lane';
    old := v_lane.id;
    new := _lane(v_lane.kind, v_lane.provider, p_tenant_id, v_lane.is_gated);
    return next;
  end loop;
end
$$;
comment on function penstock._begin_arrival(uuid, jsonb) is
  'Prepares the queues of a tenant that arrives, and says which lane here stands for each lane there.';

create or replace function penstock._exceed_sequences(p_leases bigint, p_changes bigint)
returns void language plpgsql set search_path = penstock, pg_temp as $$
begin
  -- Leases of a task only grow, and devices ask for changes after the last number they saw. The margin is for
  -- numbers that others draw between the comparison and the change.
  if p_leases >= (select last_value from lease_numbers) then
    perform setval('lease_numbers', p_leases + 1000000000);
  end if;
  if p_changes >= (select last_value from change_seqs) then
    perform setval('change_seqs', p_changes + 1000000);
  end if;
end
$$;
comment on function penstock._exceed_sequences(bigint, bigint) is
  'Moves the numbers of leases and of changes past those of the database that a tenant comes from.';
