-- Bulk jobs: jobs whose tasks are created from rows. A client (or a worker that reads a
-- Google Sheet) adds the rows unchanged. Then a worker, which has the app's code, loads
-- them in batches: it validates each row and adds its tasks. A row is marked as loaded in
-- the transaction that adds its tasks, so a crash or a repeated call adds them only once.
-- Lock order: the lease of the loading task, the bulk, then the locks of add_tasks.

create or replace function penstock.define_bulk_type(p_name text, p_values jsonb default '{}')
returns void language plpgsql security definer set search_path = penstock, pg_temp as $$
declare
  v_values jsonb := coalesce(p_values, '{}');
begin
  perform _check_fields(v_values, array['key', 'group_by', 'batch', 'is_exclusive'], 'bulk type');
  if jsonb_typeof(coalesce(v_values -> 'key', '[]')) <> 'array' or exists (
      select from jsonb_array_elements(coalesce(v_values -> 'key', '[]')) as k
        where jsonb_typeof(k) <> 'string')
     or jsonb_typeof(coalesce(v_values -> 'group_by', '""')) <> 'string'
     or jsonb_typeof(coalesce(v_values -> 'is_exclusive', 'true')) <> 'boolean'
     or (case jsonb_typeof(coalesce(v_values -> 'batch', '1')) when 'number'
       then coalesce((v_values ->> 'batch')::numeric, 1) not between 1 and 10000 else true end)
     or v_values ? 'group_by' and not v_values ? 'batch' then
    perform _refuse(422, 'invalid_bulk_type', 'a bulk type must be {"key": [columns], "batch": 1 to 10000, '
      '"group_by": a column (only with batch), "is_exclusive": true or false}');
  end if;
  update job_types set bulk = v_values where name = p_name and bulk is distinct from v_values;
  if not found and not exists (select from job_types where name = p_name) then
    perform _refuse(404, 'unknown_job_type', format('unknown job type %L', left(p_name, 200)), '{}',
      'Declare it first with penstock.define_job_type.');
  end if;
end
$$;
comment on function penstock.define_bulk_type(text, jsonb) is
  'Declares a job type as a bulk type: key (the columns that identify a row), batch (rows per task graph), '
  'group_by (a column whose groups stay in one batch), is_exclusive (one job of this type at a time for '
  'each tenant).';

create or replace function penstock._require_exclusive(p_job_id uuid)
returns void language plpgsql set search_path = penstock, pg_temp as $$
declare
  v_bulk bulks;
  v_other uuid;
begin
  select * into v_bulk from bulks where job_id = p_job_id and is_exclusive;
  if not found then
    return;
  end if;
  -- The lock makes concurrent starts check one after the other.
  perform pg_advisory_xact_lock(hashtext('bulk:' || v_bulk.type), hashtext(v_bulk.tenant_id::text));
  select j.id into v_other from jobs j
  where j.tenant_id = v_bulk.tenant_id and j.status in ('queued', 'running', 'paused')
    and j.type = v_bulk.type and j.id <> p_job_id limit 1;
  if found then
    perform _refuse(409, 'another_runs',
      format('another %s job of this tenant has not ended; only one may run at a time', v_bulk.type),
      jsonb_build_object('job_id', v_other), 'Wait for it to end, or cancel it.');
  end if;
end
$$;
comment on function penstock._require_exclusive(uuid) is
  'Raises an error if the job''s type is exclusive and the tenant has another job of this type that has not '
  'ended.';

create or replace function penstock.open_bulk(
  p_type text, p_source jsonb default '{}', p_options jsonb default '{}', p_params jsonb default '{}')
returns table (job_id uuid, is_new boolean)
language plpgsql security definer set search_path = penstock, pg_temp as $$
#variable_conflict use_column
declare
  c_bulk_options constant text[] := array['preview', 'skip_done', 'key'];
  v_options jsonb := coalesce(p_options, '{}');
  v_source jsonb := coalesce(p_source, '{}');
  v_type jsonb;
  v_key text[];
  v_preview boolean;
  v_skip_done boolean;
  v_job jobs;
  v_job_id uuid;
  v_is_new boolean;
begin
  select t.bulk into v_type from job_types t where t.name = p_type;
  if v_type is null then
    perform _refuse(422, 'unknown_bulk_type', format('unknown bulk type %L', left(p_type, 200)),
      '{"field": "type"}',
      'Start a worker that handles it, or declare it with penstock.define_bulk_type.');
  end if;
  if jsonb_typeof(v_source) <> 'object' or jsonb_typeof(v_options) <> 'object' then
    perform _refuse(422, 'invalid_options', 'source and options must be JSON objects',
      '{"field": "options"}');
  end if;
  perform _check_document(v_source, 'source', 65536);
  begin
    v_preview := coalesce((v_options ->> 'preview')::boolean, false);
    v_skip_done := coalesce((v_options ->> 'skip_done')::boolean, false);
    v_key := array(
      select jsonb_array_elements_text(coalesce(nullif(v_options -> 'key', 'null'), v_type -> 'key', '[]')));
  exception when data_exception then
    perform _refuse(422, 'invalid_options',
      'preview and skip_done must be true or false, and key an array of columns: ' || left(sqlerrm, 200),
      '{"field": "options"}');
  end;
  select o.job_id, o.is_new into v_job_id, v_is_new
    from open_job(p_type, p_params, v_options - c_bulk_options || jsonb_build_object('digest',
    encode(sha256(convert_to(jsonb_build_array(v_source, v_options -> 'digest', v_preview, v_skip_done,
      v_key)::text, 'utf8')), 'hex'))) as o;
  if v_is_new then
    select * into strict v_job from jobs j where j.id = v_job_id;
    insert into bulks (job_id, tenant_id, type, source, source_id, key, group_by, batch, is_exclusive,
      preview, skip_done)
    values (v_job_id, v_job.tenant_id, p_type, v_source, coalesce(v_source ->> 'id', v_source ->> 'name'),
      nullif(v_key, '{}'), v_type ->> 'group_by', (v_type ->> 'batch')::integer,
        coalesce((v_type ->> 'is_exclusive')::boolean, false), v_preview, v_skip_done);
    perform _require_exclusive(v_job_id);
    if v_source ->> 'type' = 'google-sheets' then
      -- Workers have the Google account: they read the rows and write the results back.
      perform _add_tasks(v_job_id, jsonb_build_array(jsonb_build_object('kind', p_type || '.read')));
    end if;
  end if;
  return query select v_job_id, v_is_new;
end
$$;
comment on function penstock.open_bulk(text, jsonb, jsonb, jsonb) is
  'Creates a bulk job without rows, or finds the job with the same idempotency key. add_bulk_rows adds the '
  'rows, or a worker if the source is a Google Sheet. p_source describes where the rows come from: {"type", '
  '"id" or "name", …}. Options: those of open_job, and preview, skip_done, key.';

create or replace function penstock._check_rows(p_rows jsonb)
returns void language plpgsql stable set search_path = penstock, pg_temp as $$
declare
  v_limit integer := (_setting('max_tasks_per_call'))::integer;
  v_index bigint;
  v_row jsonb;
begin
  if jsonb_typeof(p_rows) is distinct from 'array' then
    perform _refuse(422, 'invalid_rows', 'rows must be an array', '{"field": "rows"}');
  end if;
  if jsonb_array_length(p_rows) > v_limit then
    perform _refuse(413, 'too_many_rows',
      format('%s rows in one call; the limit is %s', jsonb_array_length(p_rows), v_limit),
      '{"field": "rows"}', 'Send them in several calls.');
  end if;
  select e.n - 1, e.value into v_index, v_row
    from jsonb_array_elements(p_rows) with ordinality as e(value, n)
  where case when jsonb_typeof(e.value) <> 'object'
    or jsonb_typeof(e.value -> 'number') is distinct from 'number'
      or jsonb_typeof(e.value -> 'data') is distinct from 'object' then true
    else e.value - '{number,data,problem}'::text[] <> '{}' or (e.value -> 'number')::numeric % 1 <> 0
      or (e.value -> 'number')::numeric not between 0 and 1e15
      or e.value ? 'problem' and jsonb_typeof(e.value -> 'problem') <> 'object' end
  limit 1;
  if found then
    perform _refuse(422, 'invalid_rows',
      format('rows[%s] must be {"number": 0 or more, "data": an object, "problem": an object (optional)}',
      v_index), jsonb_build_object('field', format('rows[%s]', v_index)));
  end if;
end
$$;
comment on function penstock._check_rows(jsonb) is
  'Raises an error for malformed rows, with the index of the first one.';

create or replace function penstock._row_key(p_data jsonb, p_columns text[])
returns text language sql immutable set search_path = penstock, pg_temp as $$
  select case when p_data ?| p_columns
    then (select jsonb_agg(p_data ->> c.name order by c.n)::text
    from unnest(p_columns) with ordinality as c(name, n)) end
$$;
comment on function penstock._row_key(jsonb, text[]) is
  'The key of a row with several key columns: a JSON array of their texts. Null if the row has none of the '
  'columns.';

create or replace function penstock._validated_rows(p_bulk penstock.bulks, p_rows jsonb)
returns setof penstock.bulk_rows language plpgsql stable set search_path = penstock, pg_temp
  set jit = off as $$
declare
  v_limit integer := (_setting('max_input_bytes'))::integer;
  -- A cheap check of all rows at once; single rows are checked only if it fails. The array adds two
  -- levels to the depth of a row, and a number beyond 1e308 has at least 255 consecutive digits.
  v_is_readable boolean := not jsonb_path_exists(p_rows, '$.**{66}') and p_rows::text !~ '[0-9]{255}';
  v_no_key jsonb := jsonb_build_object('code', 'no_key', 'column', p_bulk.key[1],
    'message', format('the key %s is empty or longer than 1000 characters',
      array_to_string(p_bulk.key, ', ')));
begin
  return query
  select p_bulk.job_id, k.number, p_bulk.tenant_id,
    case when k.problem is null and length(k.key) <= 1000 then k.key end,
    case when p_bulk.group_by is not null then coalesce(k.data ->> p_bulk.group_by, '') end,
    case when k.problem ->> 'code' in ('too_large', 'unreadable') then '{}' else k.data end,
    case when k.problem is null and p_bulk.key is not null and (length(k.key) <= 1000) is not true
      then v_no_key
      else k.problem end,
    null::bigint, null::bigint, null::bigint, null::integer, null::text
  from (
    select (e.value -> 'number')::bigint as number, e.value -> 'data' as data,
      case cardinality(p_bulk.key) when 1 then nullif(e.value -> 'data' ->> p_bulk.key[1], '')
        else _row_key(e.value -> 'data', p_bulk.key) end as key,
      case
        -- Cheap first: the text of a row is at most 8 times as long as its stored form.
        when pg_column_size(e.value) > v_limit / 8 and octet_length(e.value::text) > v_limit
          then jsonb_build_object('code', 'too_large', 'message',
            format('the row has %s bytes as JSON; the limit is %s', octet_length(e.value::text), v_limit))
        when not v_is_readable and not _is_readable(e.value)
          then jsonb_build_object('code', 'unreadable',
            'message', 'the row is nested deeper than 64 levels or has a number beyond 1e308')
        else e.value -> 'problem' end as problem
    from jsonb_array_elements(p_rows) as e(value)) as k;
end
$$;
comment on function penstock._validated_rows(penstock.bulks, jsonb) is
  'Rows in the form in which they are stored: with a key, or with a problem.';

create or replace function penstock._merge_bulk_rows(
  p_bulk penstock.bulks, p_rows jsonb, out added integer, out added_bad integer, out changed integer,
  out changed_bad integer, out moved integer)
language plpgsql set search_path = penstock, pg_temp as $$
begin
  with given as materialized (
    select distinct on (g.number) g.* from _validated_rows(p_bulk, p_rows) as g order by g.number
  ), met as materialized (
    select g.*, b.number is not null as is_known, b.problem is not null as was_bad,
      b.problem is null and b.key is distinct from g.key as is_moved,
      (select d.number from bulk_rows d
       where d.job_id = p_bulk.job_id and d.key = g.key and d.number <> g.number) as other
    from given g left join bulk_rows b on b.job_id = p_bulk.job_id and b.number = g.number
  ), judged as (
    select m.*, case when m.key is not null and (m.other is not null or m.first <> m.number)
      then jsonb_build_object('code', 'duplicate_key', 'column', p_bulk.key[1],
        'message', format('row %s has the same key', coalesce(m.other, m.first)))
      else m.problem end as new_problem
    from (
      select x.*, min(x.number) over (partition by x.key) as first from met x
      where not x.is_known or x.was_bad) as m
  ), written as (
    insert into bulk_rows as b (job_id, number, tenant_id, key, group_key, data, problem)
    select j.job_id, j.number, j.tenant_id, case when j.new_problem is null
      then j.key end, j.group_key, j.data, j.new_problem
    from judged j order by j.number
    on conflict (job_id, number) do update set key = excluded.key, group_key = excluded.group_key,
      data = excluded.data, problem = excluded.problem
    where (b.data, b.problem) is distinct from (excluded.data, excluded.problem)
    returning b.number, b.problem is not null as is_bad
  )
  select count(*) filter (where not j.is_known), count(*) filter (where w.is_bad and not j.is_known),
    count(*) filter (where j.is_known), count(*) filter (where w.is_bad and j.is_known),
    (select count(*) from met m where m.is_known and m.is_moved)
  into added, added_bad, changed, changed_bad, moved from written w join judged j on j.number = w.number;
end
$$;
comment on function penstock._merge_bulk_rows(penstock.bulks, jsonb) is
  'Adds rows of which the job may have some already. A row number that exists stays as it is, unless its '
  'row had a problem: then it is validated again. A row with a key that exists gets a problem.';

create or replace function penstock.add_bulk_rows(p_job_id uuid, p_rows jsonb, p_load boolean default true)
returns jsonb language plpgsql security definer set search_path = penstock, pg_temp
  set enable_seqscan = off set plan_cache_mode = force_generic_plan set jit = off as $$
declare
  v_job jobs := _visible_job(p_job_id, array['owner', 'admin', 'member']);
  v_bulk bulks;
  v_added integer;
  v_added_bad integer;
  v_changed integer := 0;
  v_changed_bad integer := 0;
  v_moved integer := 0;
begin
  select * into v_bulk from bulks where job_id = p_job_id for no key update;
  if not found then
    perform _refuse(404, 'unknown_bulk', 'the job is not a bulk job');
  end if;
  select * into v_job from jobs where id = p_job_id;
  if v_job.finished_at is not null then
    perform _refuse(409, 'job_ended', format('the job has already ended (%s)', v_job.status),
      jsonb_build_object('status', v_job.status));
  end if;
  perform _check_rows(p_rows);
  begin
    -- Usually all rows are new, and a plain insert is the fastest way.
    with added as (
      insert into bulk_rows select * from _validated_rows(v_bulk, p_rows)
        returning problem is not null as is_bad
    )
    select count(*), count(*) filter (where is_bad) into v_added, v_added_bad from added;
  exception when unique_violation then
    select m.added, m.added_bad, m.changed, m.changed_bad, m.moved
    into v_added, v_added_bad, v_changed, v_changed_bad, v_moved from _merge_bulk_rows(v_bulk, p_rows) as m;
  end;
  update bulks set total = total + v_added, refused = refused + v_added_bad + v_changed_bad - v_changed
  where job_id = p_job_id;
  if p_load then
    if v_bulk.loader is null
       or exists (select from results r where r.job_id = p_job_id and r.task_id = v_bulk.loader) then
      update bulks set loader = (add_tasks(p_job_id, jsonb_build_array(jsonb_build_object(
        'kind', v_bulk.type || '.load',
        'input', jsonb_build_object('is_preview', v_bulk.preview and v_bulk.loader is null)))))[1]
      where job_id = p_job_id;
    end if;
    perform _audit(v_bulk.tenant_id, 'bulk.rows', p_job_id, 'job:' || p_job_id,
      (select jsonb_build_object('rows', b.total) from bulks b where b.job_id = p_job_id));
  end if;
  return jsonb_build_object('added', v_added, 'refused', v_added_bad + v_changed_bad,
    'known', jsonb_array_length(p_rows) - v_added - v_changed, 'moved', v_moved);
end
$$;
comment on function penstock.add_bulk_rows(uuid, jsonb, boolean) is
  'Adds rows [{"number", "data", "problem"}] to a bulk job. A row number that exists is skipped, unless its '
  'row had a problem; a row with a key that exists gets a problem. With p_load a worker starts to load '
  'them. Returns the numbers of rows added, refused (with a problem), known, and known under another key '
  '(moved).';

create or replace function penstock.read_bulk_again(p_job_id uuid)
returns bigint language plpgsql security definer set search_path = penstock, pg_temp as $$
declare
  v_job jobs := _visible_job(p_job_id, array['owner', 'admin', 'member']);
  v_bulk bulks;
begin
  select * into v_bulk from bulks where job_id = p_job_id;
  if v_bulk.source ->> 'type' is distinct from 'google-sheets' then
    perform _refuse(409, 'not_readable',
      'only a Google Sheet can be read again, and the source of this job is not one',
      jsonb_build_object('job_id', p_job_id),
        'Send the rows again: rows that the job already has are skipped.');
  end if;
  return (add_tasks(p_job_id, jsonb_build_array(jsonb_build_object('kind', v_bulk.type || '.read'))))[1];
end
$$;
comment on function penstock.read_bulk_again(uuid) is
  'Starts a task that reads the Google Sheet of a bulk job again and adds new rows; the job must not have '
  'ended. Returns the id of the task.';

create or replace function penstock._lock_leased_bulk(p_task_id bigint, p_worker_id text, p_lease bigint)
returns penstock.bulks language plpgsql set search_path = penstock, pg_temp as $$
declare
  v_bulk bulks;
begin
  perform _keep_lease(p_task_id, p_worker_id, p_lease);
  select b.* into v_bulk from leases l join bulks b on b.job_id = l.job_id where l.task_id = p_task_id
    for no key update of b;
  if not found then
    perform _refuse(404, 'unknown_bulk', 'the job is not a bulk job');
  end if;
  return v_bulk;
end
$$;
comment on function penstock._lock_leased_bulk(bigint, text, bigint) is
  'Locks the bulk of a running task and returns it; raises an error if the lease is lost.';

create or replace function penstock._skip_completed_rows(p_bulk penstock.bulks, p_max integer)
returns void language plpgsql set search_path = penstock, pg_temp as $$
declare
  v_earlier uuid[] := array(
    select b.job_id from bulks b
    where b.tenant_id = p_bulk.tenant_id and b.type = p_bulk.type
      and b.source_id is not distinct from p_bulk.source_id and b.job_id <> p_bulk.job_id);
  v_count integer;
begin
  while cardinality(v_earlier) > 0 loop
    with next as materialized (
      select b.number, b.key from bulk_rows b
      where b.job_id = p_bulk.job_id and b.first_id is null and b.problem is null
      order by b.group_key, b.number limit p_max
    ), done as materialized (
      select n.number, d.job_id, d.number as earlier_number from next n
      cross join lateral (
        select o.job_id, o.number from unnest(v_earlier) as e(id)
        cross join lateral (
          select x.* from bulk_rows x where p_bulk.key is not null and x.job_id = e.id and x.key = n.key
          union all
          select x.* from bulk_rows x
          where p_bulk.key is null and x.job_id = e.id and x.number = n.number and x.key is null) as o
        cross join lateral _bulk_row_state(row(o.*)::bulk_rows) as s
        -- A row whose changes were all undone counts as not completed.
        where o.first_id is not null and s.state = 'succeeded' and not exists (
          select from bulk_changes c where c.job_id = o.job_id and c.row_number = o.number
          having count(*) > 0 and count(*) = count(c.undone_at))
        limit 1) as d
    )
    update bulk_rows b set problem = jsonb_build_object('code', 'done_before',
      'message', format('completed in job %s, row %s', d.job_id, d.earlier_number))
    from done d where b.job_id = p_bulk.job_id and b.number = d.number;
    get diagnostics v_count = row_count;
    update bulks set skipped = skipped + v_count where job_id = p_bulk.job_id;
    exit when v_count = 0;
  end loop;
end
$$;
comment on function penstock._skip_completed_rows(penstock.bulks, integer) is
  'Skips the next rows that an earlier job of the same type and source has completed, until the next p_max '
  'rows are new.';

create or replace function penstock.take_bulk_rows(
  p_task_id bigint, p_worker_id text, p_lease bigint, p_max integer default 1000)
returns table (number bigint, key text, group_key text, data jsonb)
language plpgsql security definer set search_path = penstock, pg_temp set enable_seqscan = off
  set jit = off as $$
#variable_conflict use_column
declare
  v_bulk bulks := _lock_leased_bulk(p_task_id, p_worker_id, p_lease);
begin
  if v_bulk.skip_done then
    perform _skip_completed_rows(v_bulk, p_max);
  end if;
  return query
  select b.number, coalesce(b.key, b.number::text), b.group_key, b.data from bulk_rows b
  where b.job_id = v_bulk.job_id and b.first_id is null and b.problem is null
  order by b.group_key, b.number limit p_max;
end
$$;
comment on function penstock.take_bulk_rows(bigint, text, bigint, integer) is
  'The next rows of a bulk job that are not loaded yet, for the task that loads them. Locks the bulk until '
  'the transaction ends.';

create or replace function penstock.mark_bulk_rows(p_task_id bigint, p_worker_id text, p_lease bigint,
  p_rows jsonb, p_next_id bigint default null)
returns void language plpgsql security definer set search_path = penstock, pg_temp set enable_seqscan = off
  set jit = off as $$
declare
  v_bulk bulks := _lock_leased_bulk(p_task_id, p_worker_id, p_lease);
  v_loaded integer;
  v_refused integer;
begin
  with marked as (
    update bulk_rows b set problem = r.problem, first_id = r.first_id, result_id = r.result_id,
      last_id = r.last_id, batch_size = r.batch_size
    from jsonb_to_recordset(p_rows) as r(number bigint, problem jsonb, first_id bigint, result_id bigint,
      last_id bigint, batch_size integer)
    where b.job_id = v_bulk.job_id and b.number = r.number and b.first_id is null and b.problem is null
    returning b.first_id is not null as is_loaded
  )
  select count(*) filter (where is_loaded), count(*) filter (where not is_loaded) into v_loaded, v_refused
    from marked;
  if v_loaded + v_refused <> jsonb_array_length(p_rows) then
    perform _refuse(409, 'row_taken', 'one of these rows does not exist or is already loaded');
  end if;
  update bulks set loaded = loaded + v_loaded, refused = refused + v_refused,
    loader = coalesce(p_next_id, loader) where job_id = v_bulk.job_id;
end
$$;
comment on function penstock.mark_bulk_rows(bigint, text, bigint, jsonb, bigint) is
  'Marks rows of take_bulk_rows, in the same transaction, as loaded ({"number", "first_id", "result_id", '
  '"last_id", "batch_size"}) or refused ({"number", "problem"}). p_next_id is the task that loads the next '
  'rows.';

create or replace function penstock.get_bulk_rows(p_task_id bigint, p_worker_id text, p_lease bigint,
  p_job_id uuid, p_numbers bigint[])
returns table (number bigint, key text, data jsonb)
language plpgsql security definer set search_path = penstock, pg_temp set enable_seqscan = off
  set jit = off as $$
begin
  perform _keep_lease(p_task_id, p_worker_id, p_lease);
  return query
  select b.number, coalesce(b.key, b.number::text), b.data from unnest(p_numbers) as n(number)
  join bulk_rows b on b.job_id = p_job_id and b.number = n.number
  where b.tenant_id = (select l.tenant_id from leases l where l.task_id = p_task_id) order by b.number;
end
$$;
comment on function penstock.get_bulk_rows(bigint, text, bigint, uuid, bigint[]) is
  'Rows of a bulk job by number, for a running task of the same tenant.';

create or replace function penstock._is_running(p_job_id uuid, p_first_id bigint, p_last_id bigint)
returns boolean language sql stable security definer set search_path = penstock, pg_temp as $$
  select exists (select from leases l where l.task_id between p_first_id and p_last_id
    and l.job_id = p_job_id
    and (_is_service() or l.tenant_id in (select my_tenants())))
$$;
comment on function penstock._is_running(uuid, bigint, bigint) is
  'Whether a task of the job with an id in this range is running, if the caller may see it.';

create or replace function penstock._bulk_row_state(p_row penstock.bulk_rows)
returns table (state text, output jsonb, error_code text, error_message text, started_at timestamptz,
  finished_at timestamptz)
language sql stable as $$
  -- Names the schema instead of setting search_path, so that PostgreSQL can inline it.
  select case
      when p_row.problem ->> 'code' = 'done_before' then 'skipped'
      when p_row.problem is not null then 'refused'
      when e.error is not null or l.outcome is distinct from 'succeeded' and f.task_id is not null
        then 'failed'
      when l.outcome = 'succeeded' then 'succeeded'
      when l.outcome = 'canceled' or j.status = 'canceled' then 'canceled'
      when p_row.first_id is null then 'waiting'
      when penstock._is_running(p_row.job_id, p_row.first_id, p_row.last_id) then 'running'
      else 'queued' end,
    -- Shown before it is applied, because a preview is for looking at.
    case when coalesce(l.outcome, r.outcome) = 'succeeded' and e.error is null then o.output end,
    coalesce(p_row.problem ->> 'code', e.error ->> 'code', case when l.outcome is distinct from 'succeeded'
      then coalesce(f.error_code, l.error_code) end),
    coalesce(p_row.problem ->> 'message', e.error ->> 'message', case
      when l.outcome is distinct from 'succeeded' then coalesce(f.error_message, l.error_message) end),
    coalesce(f.started_at, r.started_at, l.started_at),
    case when l.task_id is not null then l.finished_at else f.finished_at end
  from penstock.jobs j
  left join penstock.results l on l.job_id = p_row.job_id and l.task_id = p_row.last_id
  left join penstock.results r on r.job_id = p_row.job_id and r.task_id = p_row.result_id
  -- The failed task is looked up only if the last task did not succeed.
  left join lateral (
    select x.task_id, x.error_code, x.error_message, x.started_at, x.finished_at from penstock.results x
    where x.job_id = p_row.job_id and x.task_id between p_row.first_id and p_row.last_id
      and x.outcome = 'failed'
      and l.outcome is distinct from 'succeeded' order by x.task_id limit 1) as f on true
  -- The output of a batch has a value or an error for each of
  -- its rows, by key. An output in a file is returned whole.
  cross join lateral (select coalesce(p_row.key, p_row.number::text) as key, p_row.batch_size is not null
    and not coalesce(r.output ? '$artifact', false) as is_shared) as k
  cross join lateral (select case when k.is_shared then r.output -> k.key else r.output end as output) as o
  cross join lateral (
    select case when l.outcome = 'succeeded' and p_row.batch_size is not null then coalesce(
      case when p_row.last_id <> p_row.result_id then l.output -> k.key -> '$error' end,
      case when k.is_shared then
        case when r.output ? k.key then o.output -> '$error'
          else '{"code": "no_result", "message": "the batch has no result for this row"}' end
        end) end as error) as e
  where j.id = p_row.job_id
$$;
comment on function penstock._bulk_row_state(penstock.bulk_rows) is
  'The state, result and error of a row, derived from its tasks. Views and functions all use this one.';

create or replace function penstock.get_bulk(p_job_id uuid)
returns jsonb language plpgsql stable security definer set search_path = penstock, pg_temp as $$
declare
  v_job jsonb := get_job(p_job_id);
  v_bulk bulks;
begin
  select * into v_bulk from bulks where job_id = p_job_id;
  if not found then
    perform _refuse(404, 'unknown_bulk', 'the job is not a bulk job');
  end if;
  return jsonb_build_object('job', v_job, 'source', v_bulk.source, 'key', v_bulk.key, 'batch', v_bulk.batch,
    'group_by', v_bulk.group_by,
    'preview', v_bulk.preview, 'skip_done', v_bulk.skip_done,
    'confirmed_at', (select j.confirmed_at from jobs j where j.id = p_job_id),
    'rows', jsonb_build_object('total', v_bulk.total, 'loaded', v_bulk.loaded, 'refused', v_bulk.refused,
      'skipped', v_bulk.skipped,
      'waiting', v_bulk.total - v_bulk.loaded - v_bulk.refused - v_bulk.skipped),
    'to_confirm',
      (select count(*) from parked p where p.tenant_id = v_bulk.tenant_id and p.waits_for = 'confirm'
      and p.job_id = p_job_id),
    'waits', (select coalesce(jsonb_agg(jsonb_build_object('waits_for', w.waits_for, 'reason', w.reason,
      'tasks', w.n) order by w.n desc), '[]') from (
      select p.waits_for, min(p.reason) as reason, count(*) as n from parked p
      where p.tenant_id = v_bulk.tenant_id and p.waits_for is not null and p.job_id = p_job_id
        group by p.waits_for) as w),
    'problems', (
      select coalesce(jsonb_agg(jsonb_build_object('code', x.code, 'message', x.message, 'rows', x.n)
      order by x.n desc, x.code), '[]') from (
      select b.problem ->> 'code' as code, min(b.problem ->> 'message') as message, count(*) as n
        from bulk_rows b
      where b.job_id = p_job_id and b.problem is not null group by 1) as x),
    'failures', (
      select coalesce(jsonb_agg(jsonb_build_object('kind', x.kind, 'code', x.error_code,
      'message', x.message, 'tasks', x.n) order by x.n desc, x.kind, x.error_code), '[]') from (
      select d.kind, d.error_code, min(left(d.error_message, 500)) as message, count(*) as n
        from dead_letters d
      where d.job_id = p_job_id group by d.kind, d.error_code) as x),
    'changes', (select jsonb_build_object('applied', count(*), 'undone', count(c.undone_at))
      from bulk_changes c where c.job_id = p_job_id));
end
$$;
comment on function penstock.get_bulk(uuid) is
  'A bulk job: the job (as get_job returns it), its source, the numbers of rows (total, loaded, refused, '
  'skipped, waiting), what its tasks wait for, problems and failures by cause, and the numbers of changes '
  'applied and undone.';

-- Applying and undoing

create or replace function penstock.record_changes(p_task_id bigint, p_worker_id text, p_lease bigint,
  p_changes jsonb)
returns integer language plpgsql security definer set search_path = penstock, pg_temp as $$
declare
  v_lease leases := _keep_lease(p_task_id, p_worker_id, p_lease);
  v_count integer;
begin
  insert into bulk_changes (tenant_id, job_id, row_number, name, before, after, applied_at)
  select v_lease.tenant_id, v_lease.job_id, c.number, c.name, c.before, c.after, _now()
  from jsonb_to_recordset(p_changes) as c(number bigint, name text, before jsonb, after jsonb)
  join bulk_rows b on b.job_id = v_lease.job_id and b.number = c.number;
  get diagnostics v_count = row_count;
  if v_count <> jsonb_array_length(p_changes) then
    perform _refuse(422, 'invalid_changes',
      'each change must be {"number", "name", "before", "after"}, with the number of a row of this job');
  end if;
  return v_count;
exception when data_exception or integrity_constraint_violation then
  perform _refuse(422, 'invalid_changes',
    'each change must be {"number", "name", "before", "after"}: ' || left(sqlerrm, 200));
end
$$;
comment on function penstock.record_changes(bigint, text, bigint, jsonb) is
  'Records the changes that a running task applied for rows of its job, [{"number", "name", "before", '
  '"after"}], in the transaction that applied them. Returns their number.';

create or replace function penstock.undo_bulk(p_job_id uuid, p_filter jsonb default '{}')
returns uuid language plpgsql security definer set search_path = penstock, pg_temp as $$
declare
  v_job jobs := _visible_job(p_job_id, array['owner', 'admin', 'member']);
  v_filter jsonb := coalesce(p_filter, '{}');
  v_numbers bigint[];
  v_names text[];
  v_undo_id uuid;
  v_tasks jsonb;
  v_rows bigint[];
begin
  perform _check_fields(v_filter, array['rows', 'names'], 'filter');
  begin
    v_numbers := case when v_filter ? 'rows'
      then array(select (e #>> '{}')::bigint from jsonb_array_elements(v_filter -> 'rows') as e) end;
    v_names := case when v_filter ? 'names'
      then array(select jsonb_array_elements_text(v_filter -> 'names')) end;
  exception when data_exception then
    perform _refuse(422, 'invalid_filter',
      'rows must be an array of numbers, and names an array of texts: ' || left(sqlerrm, 200));
  end;
  v_rows := array(
    select distinct c.row_number from bulk_changes c
    where c.job_id = p_job_id and c.undone_at is null
      and (v_numbers is null or c.row_number = any (v_numbers))
      and (v_names is null or c.name = any (v_names))
    order by c.row_number desc);
  if v_rows = '{}' then
    perform _refuse(409, 'nothing_to_undo', 'the job has no matching changes to undo',
      jsonb_build_object('job_id', p_job_id));
  end if;
  select o.job_id into v_undo_id
    from open_job(v_job.type || '.undo', jsonb_build_object('job_id', p_job_id) || v_filter,
    jsonb_build_object('tenant_id', v_job.tenant_id, 'priority', v_job.priority)) as o;
  for v_tasks in
    select jsonb_agg(jsonb_build_object('kind', v_job.type || '.undo', 'phase', 'undo',
      'input', jsonb_strip_nulls(jsonb_build_object('job_id', p_job_id, 'number', r.number, 'names',
        v_filter -> 'names'))) order by r.n)
    from unnest(v_rows) with ordinality as r(number, n) group by (r.n - 1) / 5000 order by (r.n - 1) / 5000
  loop
    perform _add_tasks(v_undo_id, v_tasks);
  end loop;
  perform _audit(v_job.tenant_id, 'bulk.undo', p_job_id, 'job:' || v_undo_id, v_filter
    || jsonb_build_object('rows', cardinality(v_rows)));
  return v_undo_id;
end
$$;
comment on function penstock.undo_bulk(uuid, jsonb) is
  'Starts a job that undoes the applied changes of all rows, or of {"rows": [numbers], "names": [values]}, '
  'and returns its id. Changes that are applied later stay.';

create or replace function penstock.undo_changes(p_task_id bigint, p_worker_id text, p_lease bigint)
returns table (id bigint, row_number bigint, name text, before jsonb, after jsonb)
language plpgsql security definer set search_path = penstock, pg_temp as $$
#variable_conflict use_column
declare
  v_task tasks;
begin
  perform _keep_lease(p_task_id, p_worker_id, p_lease);
  select t.* into v_task from leases l join tasks t on t.job_id = l.job_id and t.id = l.task_id
    where l.task_id = p_task_id;
  return query
  with undone as (
    update bulk_changes c set undone_at = _now()
    where c.job_id = (v_task.input ->> 'job_id')::uuid and c.tenant_id = v_task.tenant_id
      and c.row_number = (v_task.input ->> 'number')::bigint
      and c.undone_at is null and (not v_task.input ? 'names' or v_task.input -> 'names' ? c.name)
    returning c.*
  )
  select u.id, u.row_number, u.name, u.before, u.after from undone u order by u.id desc;
end
$$;
comment on function penstock.undo_changes(bigint, text, bigint) is
  'Marks the changes of a running undo task as undone and returns them, newest first. The task undoes them '
  'in the same transaction.';

-- Writing back to the source

create or replace function penstock.bulk_rows_to_write(p_job_id uuid, p_max integer default 1000)
returns table (number bigint, key text, data jsonb, state text, output jsonb, error_code text,
  error_message text, cost numeric, finished_at timestamptz)
language sql stable security definer set search_path = penstock, pg_temp set enable_seqscan = off
  set jit = off as $$
  select b.number, coalesce(b.key, b.number::text), b.data, s.state, s.output, s.error_code, s.error_message,
    _row_cost(b), s.finished_at
  from bulk_rows b cross join lateral _bulk_row_state(b) as s
  where b.job_id = p_job_id and b.written is distinct from 'succeeded'
    -- A cheap pre-check, because _bulk_row_state is a hundred
    -- times slower: has the row ended since it was last written?
    and case when b.problem is not null then b.written is null and b.problem ->> 'code' <> 'done_before'
      else exists (select from results r where r.job_id = b.job_id and r.task_id = b.last_id
        and (b.written is null or r.outcome = 'succeeded'))
        or b.written is null
          and exists (select from jobs j where j.id = b.job_id and j.status = 'canceled') end
    and s.state in ('succeeded', 'failed', 'refused', 'canceled') and b.written is distinct from s.state
  order by b.number limit p_max
$$;
comment on function penstock.bulk_rows_to_write(uuid, integer) is
  'Rows that have ended and whose state is not yet written back to the source. Skipped rows are left out: '
  'the source already has their result.';

create or replace function penstock.mark_rows_written(p_job_id uuid, p_numbers bigint[], p_states text[])
returns integer language plpgsql security definer set search_path = penstock, pg_temp
  set enable_seqscan = off set jit = off as $$
declare
  v_count integer;
begin
  update bulk_rows b set written = w.state from unnest(p_numbers, p_states) as w(number, state)
  where b.job_id = p_job_id and b.number = w.number and b.written is distinct from w.state;
  get diagnostics v_count = row_count;
  return v_count;
end
$$;
comment on function penstock.mark_rows_written(uuid, bigint[], text[]) is
  'Records the states of rows that were written back to the source.';

create or replace function penstock._row_cost(p_row penstock.bulk_rows)
returns numeric language sql stable set search_path = penstock, pg_temp as $$
  -- The rows of a batch share its cost; trim_scale removes the trailing zeros of the division.
  select trim_scale(coalesce(sum(c.base_amount), 0) / coalesce(p_row.batch_size, 1))
    from penstock.cost_entries c
  where c.job_id = p_row.job_id and c.task_id between p_row.first_id and p_row.last_id
$$;
comment on function penstock._row_cost(penstock.bulk_rows) is
  'The cost of a row so far, in the base currency.';
