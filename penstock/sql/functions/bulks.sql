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

create or replace function penstock._required_bulk_type(p_type text)
returns jsonb language plpgsql stable set search_path = penstock, pg_temp as $$
declare
  v_type jsonb;
begin
  select t.bulk into v_type from job_types t where t.name = p_type;
  if v_type is null then
    perform _refuse(422, 'unknown_bulk_type', format('unknown bulk type %L', left(p_type, 200)),
      '{"field": "type"}',
      'Start a worker that handles it, or declare it with penstock.define_bulk_type.');
  end if;
  return v_type;
end
$$;
comment on function penstock._required_bulk_type(text) is
  'The declaration of a bulk type; raises an error when there is none.';

create or replace function penstock.open_bulk(
  p_type text, p_source jsonb default '{}', p_options jsonb default '{}', p_params jsonb default '{}')
returns table (job_id uuid, is_new boolean)
language plpgsql security definer set search_path = penstock, pg_temp as $$
#variable_conflict use_column
declare
  c_bulk_options constant text[] := array['preview', 'skip_done', 'key'];
  v_type jsonb := _required_bulk_type(p_type);
  v_options jsonb := coalesce(p_options, '{}');
  v_source jsonb := coalesce(p_source, '{}');
  v_key text[];
  v_preview boolean;
  v_skip_done boolean;
  v_opened record;
  v_job jobs;
begin
  if jsonb_typeof(v_source) <> 'object' or jsonb_typeof(v_options) <> 'object' then
    perform _refuse(422, 'invalid_options', 'source and options must be JSON objects',
      '{"field": "options"}');
  end if;
  perform _check_document(v_source, 'source', 65536);
  perform _check_link(v_source ->> 'link') where v_source ? 'link';
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
  v_opened := _create_job(p_type, p_params, v_options - c_bulk_options || jsonb_build_object('digest',
    encode(sha256(convert_to(jsonb_build_array(v_source, v_options -> 'digest', v_preview, v_skip_done,
      v_key)::text, 'utf8')), 'hex')));
  v_job := v_opened.job;
  if v_opened.is_new then
    insert into bulks (job_id, tenant_id, type, source, source_id, key, group_by, batch, is_exclusive,
      preview, skip_done)
    values (v_job.id, v_job.tenant_id, p_type, v_source, coalesce(v_source ->> 'id', v_source ->> 'name'),
      nullif(v_key, '{}'), v_type ->> 'group_by', (v_type ->> 'batch')::integer,
        coalesce((v_type ->> 'is_exclusive')::boolean, false), v_preview, v_skip_done);
    perform _require_exclusive(v_job.id);
    if not _is_service() then
      perform _check_policy(v_job, array[
        jsonb_populate_record(null::task_spec, jsonb_build_object('kind', p_type || '.load'))],
        _starters(v_job.tenant_id, auth.uid()), false);
    end if;
    if v_source ->> 'type' = 'google-sheets' then
      -- Workers have the Google account: they read the rows and write the results back.
      perform _add_tasks(v_job, jsonb_build_array(jsonb_build_object('kind', p_type || '.read')),
        null, false);
    end if;
    perform _count_start(v_job, 1, '[]', p_params);
  end if;
  job_id := v_job.id;
  is_new := v_opened.is_new;
  return next;
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
    null::bigint, null::bigint, null::bigint, null::integer, null::text, gen_random_uuid()
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
  -- Also checks the role again: it may have changed while the call waited.
  v_job := _visible_job(p_job_id, array['owner', 'admin', 'member']);
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
      update bulks set loader = (_append_tasks(p_job_id, jsonb_build_array(jsonb_build_object(
        'kind', v_bulk.type || '.load',
        'input', jsonb_build_object('is_preview', v_bulk.preview and v_bulk.loader is null))),
        null, null, null, null, false))[1]
      where job_id = p_job_id;
    end if;
    perform _audit(v_bulk.tenant_id, 'bulk.rows', p_job_id, 'job:' || p_job_id,
      (select jsonb_build_object('rows', b.total) from bulks b where b.job_id = p_job_id));
  end if;
  perform _count_start(v_job, 0, p_rows, '{}');
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
  return (_append_tasks(p_job_id, jsonb_build_array(jsonb_build_object('kind', v_bulk.type || '.read')),
    null, null, null, null, false))[1];
end
$$;
comment on function penstock.read_bulk_again(uuid) is
  'Starts a task that reads the Google Sheet of a bulk job again and adds new rows; the job must not have '
  'ended. Returns the id of the task.';

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
