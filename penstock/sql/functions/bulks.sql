-- Bulk jobs: jobs whose tasks are made from rows. Rows are first taken as they are, by whoever has them; then a worker,
-- which has the app's code, loads them part by part: it checks them and draws their tasks. A row is loaded in the
-- transaction that makes its tasks, so it makes them once, whatever crashes or is repeated.
-- Lock order: the loader's lease, then its bulk, then what add_tasks locks.

create or replace function penstock.define_bulk_type(p_name text, p_values jsonb default '{}')
returns void language plpgsql security definer set search_path = penstock, pg_temp as $$
declare
  v_values jsonb := coalesce(p_values, '{}');
begin
  perform _check_fields(v_values, array['key', 'group_by', 'batch', 'is_exclusive'], 'bulk type');
  if jsonb_typeof(coalesce(v_values -> 'key', '[]')) <> 'array' or exists (
      select from jsonb_array_elements(coalesce(v_values -> 'key', '[]')) as k where jsonb_typeof(k) <> 'string')
     or jsonb_typeof(coalesce(v_values -> 'group_by', '""')) <> 'string'
     or jsonb_typeof(coalesce(v_values -> 'is_exclusive', 'true')) <> 'boolean'
     or (case jsonb_typeof(coalesce(v_values -> 'batch', '1')) when 'number' then coalesce((v_values ->> 'batch')::numeric, 1) not between 1 and 10000 else true end)
     or v_values ? 'group_by' and not v_values ? 'batch' then
    perform _refuse(422, 'invalid_bulk_type',
      'a bulk type is {"key": [columns], "batch": 1 to 10000, "group_by": a column, with a batch, "is_exclusive": true or false}');
  end if;
  update job_types set bulk = v_values where name = p_name and bulk is distinct from v_values;
  if not found and not exists (select from job_types where name = p_name) then
    perform _refuse(404, 'unknown_job_type', format('there is no job type %L', left(p_name, 200)), '{}', 'Declare it first with penstock.define_job_type.');
  end if;
end
$$;
comment on function penstock.define_bulk_type(text, jsonb) is
  'Says that jobs of a type are made from rows: key (the columns that make a row''s key), batch (rows packed into one graph), group_by (a column whose groups are kept together), is_exclusive (one such job at a time in a tenant).';

create or replace function penstock._require_alone(p_job_id uuid)
returns void language plpgsql set search_path = penstock, pg_temp as $$
declare
  v_bulk bulks;
  v_other uuid;
begin
  select * into v_bulk from bulks where job_id = p_job_id and is_exclusive;
  if not found then
    return;
  end if;
  -- Two who start at once look one after the other.
  perform pg_advisory_xact_lock(hashtext('bulk:' || v_bulk.type), hashtext(v_bulk.tenant_id::text));
  select j.id into v_other from jobs j
  where j.tenant_id = v_bulk.tenant_id and j.status in ('queued', 'running', 'paused') and j.type = v_bulk.type and j.id <> p_job_id limit 1;
  if found then
    perform _refuse(409, 'another_runs', format('another %s job of this tenant has not ended: there is one at a time', v_bulk.type),
      jsonb_build_object('job_id', v_other));
  end if;
end
$$;
comment on function penstock._require_alone(uuid) is 'Refuses a second live job of a type of which a tenant has one at a time.';

create or replace function penstock.open_bulk(
  p_type text, p_source jsonb default '{}', p_options jsonb default '{}', p_params jsonb default '{}')
returns table (job_id uuid, is_new boolean)
language plpgsql security definer set search_path = penstock, pg_temp as $$
#variable_conflict use_column
declare
  c_own constant text[] := array['preview', 'skip_done', 'key'];
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
    perform _refuse(422, 'unknown_bulk_type', format('there is no bulk type %L', left(p_type, 200)), '{"field": "type"}',
      'Start a worker that has it, or declare it with penstock.define_bulk_type.');
  end if;
  if jsonb_typeof(v_source) <> 'object' or jsonb_typeof(v_options) <> 'object' then
    perform _refuse(422, 'invalid_options', 'source and options are objects', '{"field": "options"}');
  end if;
  perform _check_document(v_source, 'source', 65536);
  begin
    v_preview := coalesce((v_options ->> 'preview')::boolean, false);
    v_skip_done := coalesce((v_options ->> 'skip_done')::boolean, false);
    v_key := array(select jsonb_array_elements_text(coalesce(nullif(v_options -> 'key', 'null'), v_type -> 'key', '[]')));
  exception when data_exception then
    perform _refuse(422, 'invalid_options', 'preview and skip_done are true or false, key is a list of columns: ' || left(sqlerrm, 200), '{"field": "options"}');
  end;
  select o.job_id, o.is_new into v_job_id, v_is_new from open_job(p_type, p_params, v_options - c_own || jsonb_build_object('digest',
    encode(sha256(convert_to(jsonb_build_array(v_source, v_options -> 'digest', v_preview, v_skip_done, v_key)::text, 'utf8')), 'hex'))) as o;
  if v_is_new then
    select * into strict v_job from jobs j where j.id = v_job_id;
    insert into bulks (job_id, tenant_id, type, source, source_id, key, group_by, batch, is_exclusive, preview, skip_done)
    values (v_job_id, v_job.tenant_id, p_type, v_source, coalesce(v_source ->> 'id', v_source ->> 'name'), nullif(v_key, '{}'),
      v_type ->> 'group_by', (v_type ->> 'batch')::integer, coalesce((v_type ->> 'is_exclusive')::boolean, false), v_preview, v_skip_done);
    perform _require_alone(v_job_id);
    if v_source ->> 'type' = 'google-sheets' then
      -- Workers have the account: they read the rows, and write back what became of them.
      perform _add_tasks(v_job_id, jsonb_build_array(jsonb_build_object('kind', p_type || '.read')));
    end if;
  end if;
  return query select v_job_id, v_is_new;
end
$$;
comment on function penstock.open_bulk(text, jsonb, jsonb, jsonb) is
  'Makes a bulk job without rows, or finds the one its idempotency key names; add_bulk_rows fills it, or a worker if the source is a Google Sheet. The source says where its rows are from: {"type", "id" or "name", …}. Options: those of open_job, and preview, skip_done, key.';

create or replace function penstock._check_rows(p_rows jsonb)
returns void language plpgsql stable set search_path = penstock, pg_temp as $$
declare
  v_most integer := (_setting('max_tasks_per_call'))::integer;
  v_index bigint;
  v_row jsonb;
begin
  if jsonb_typeof(p_rows) is distinct from 'array' then
    perform _refuse(422, 'invalid_rows', 'rows is an array', '{"field": "rows"}');
  end if;
  if jsonb_array_length(p_rows) > v_most then
    perform _refuse(413, 'too_many_rows', format('%s rows in one call; the limit is %s', jsonb_array_length(p_rows), v_most),
      '{"field": "rows"}', 'Send them in parts.');
  end if;
  select e.n - 1, e.value into v_index, v_row from jsonb_array_elements(p_rows) with ordinality as e(value, n)
  where case when jsonb_typeof(e.value) <> 'object' or jsonb_typeof(e.value -> 'number') is distinct from 'number'
      or jsonb_typeof(e.value -> 'data') is distinct from 'object' then true
    else e.value - '{number,data,problem}'::text[] <> '{}' or (e.value -> 'number')::numeric % 1 <> 0 or (e.value -> 'number')::numeric not between 0 and 1e15
      or e.value ? 'problem' and jsonb_typeof(e.value -> 'problem') <> 'object' end
  limit 1;
  if found then
    perform _refuse(422, 'invalid_rows', format('row %s is not {"number": 0 or more, "data": an object, "problem": an object or left out}', v_index),
      jsonb_build_object('field', format('rows[%s]', v_index)));
  end if;
end
$$;
comment on function penstock._check_rows(jsonb) is 'Refuses rows that are not given as they should be, by the place of the first one.';

create or replace function penstock._row_key(p_data jsonb, p_columns text[])
returns text language sql immutable set search_path = penstock, pg_temp as $$
  select case when p_data ?| p_columns then (select jsonb_agg(p_data ->> c.name order by c.n)::text from unnest(p_columns) with ordinality as c(name, n)) end
$$;
comment on function penstock._row_key(jsonb, text[]) is 'A row''s key, of several columns: a list of their texts. What has none of them has no key.';

create or replace function penstock._judged_rows(p_bulk penstock.bulks, p_rows jsonb)
returns setof penstock.bulk_rows language plpgsql stable set search_path = penstock, pg_temp set jit = off as $$
declare
  v_limit integer := (_setting('max_input_bytes'))::integer;
  -- One look at all of them; only if something may be wrong one at each. A list of rows is two levels deeper than a row;
  -- a number beyond 1e308 is written with more than 255 digits in a row.
  v_is_readable boolean := not jsonb_path_exists(p_rows, '$.**{66}') and p_rows::text !~ '[0-9]{255}';
  v_no_key jsonb := jsonb_build_object('code', 'no_key', 'column', p_bulk.key[1],
    'message', format('it has no key: %s is empty, or longer than 1000 characters', array_to_string(p_bulk.key, ', ')));
begin
  return query
  select p_bulk.job_id, k.number, p_bulk.tenant_id, case when k.problem is null and length(k.key) <= 1000 then k.key end,
    case when p_bulk.group_by is not null then coalesce(k.data ->> p_bulk.group_by, '') end,
    case when k.problem ->> 'code' in ('too_large', 'unreadable') then '{}' else k.data end,
    case when k.problem is null and p_bulk.key is not null and (length(k.key) <= 1000) is not true then v_no_key else k.problem end,
    null::bigint, null::bigint, null::bigint, null::integer, null::text
  from (
    select (e.value -> 'number')::bigint as number, e.value -> 'data' as data,
      case cardinality(p_bulk.key) when 1 then nullif(e.value -> 'data' ->> p_bulk.key[1], '') else _row_key(e.value -> 'data', p_bulk.key) end as key,
      case
        -- What is short as it is stored cannot be long as text.
        when pg_column_size(e.value) > v_limit / 8 and octet_length(e.value::text) > v_limit
          then jsonb_build_object('code', 'too_large', 'message', format('it is larger than %s bytes', v_limit))
        when not v_is_readable and not _is_readable(e.value)
          then '{"code": "unreadable", "message": "it is nested deeper than 64 levels, or holds a number beyond 1e308"}'
        else e.value -> 'problem' end as problem
    from jsonb_array_elements(p_rows) as e(value)) as k;
end
$$;
comment on function penstock._judged_rows(penstock.bulks, jsonb) is 'Rows as they are stored: with their keys, or with what is wrong with them.';

create or replace function penstock.add_bulk_rows(p_job_id uuid, p_rows jsonb, p_load boolean default true)
returns jsonb language plpgsql security definer set search_path = penstock, pg_temp
  set enable_seqscan = off set plan_cache_mode = force_generic_plan set jit = off as $$
declare
  v_job jobs := _visible_job(p_job_id, array['owner', 'admin', 'member']);
  v_bulk bulks;
  v_added integer;
  v_bad integer;
  v_again integer := 0;
  v_again_bad integer := 0;
  v_moved integer := 0;
begin
  select * into v_bulk from bulks where job_id = p_job_id for no key update;
  if not found then
    perform _refuse(404, 'unknown_bulk', 'this job has no rows');
  end if;
  select * into v_job from jobs where id = p_job_id;
  if v_job.finished_at is not null then
    perform _refuse(409, 'job_ended', format('the job is %s', v_job.status), jsonb_build_object('status', v_job.status));
  end if;
  perform _check_rows(p_rows);
  begin
    -- Most often all are new, and then this is all.
    with added as (
      insert into bulk_rows select * from _judged_rows(v_bulk, p_rows) returning problem is not null as is_bad
    )
    select count(*), count(*) filter (where is_bad) into v_added, v_bad from added;
  exception when unique_violation then
    -- A number that is there stays as it is, unless it was refused: then it is looked at again. A key that is there
    -- makes a row that is refused.
    with given as materialized (
      select distinct on (g.number) g.* from _judged_rows(v_bulk, p_rows) as g order by g.number
    ), met as materialized (
      select g.*, b.number is not null as is_known, b.problem is not null as was_bad, b.problem is null and b.key is distinct from g.key as is_moved,
        (select d.number from bulk_rows d where d.job_id = p_job_id and d.key = g.key and d.number <> g.number) as other
      from given g left join bulk_rows b on b.job_id = p_job_id and b.number = g.number
    ), judged as (
      select m.*, case when m.key is not null and (m.other is not null or m.first <> m.number) then jsonb_build_object('code', 'duplicate_key',
        'column', v_bulk.key[1], 'message', format('row %s has the same key', coalesce(m.other, m.first))) else m.problem end as trouble
      from (select x.*, min(x.number) over (partition by x.key) as first from met x where not x.is_known or x.was_bad) as m
    ), changed as (
      insert into bulk_rows as b (job_id, number, tenant_id, key, group_key, data, problem)
      select j.job_id, j.number, j.tenant_id, case when j.trouble is null then j.key end, j.group_key, j.data, j.trouble from judged j order by j.number
      on conflict (job_id, number) do update set key = excluded.key, group_key = excluded.group_key, data = excluded.data, problem = excluded.problem
      where (b.data, b.problem) is distinct from (excluded.data, excluded.problem)
      returning b.number, b.problem is not null as is_bad
    )
    select count(*) filter (where not j.is_known), count(*) filter (where c.is_bad and not j.is_known),
      count(*) filter (where j.is_known), count(*) filter (where c.is_bad and j.is_known), (select count(*) from met m where m.is_known and m.is_moved)
    into v_added, v_bad, v_again, v_again_bad, v_moved from changed c join judged j on j.number = c.number;
  end;
  update bulks set total = total + v_added, refused = refused + v_bad + v_again_bad - v_again where job_id = p_job_id;
  if p_load and (v_bulk.loader is null or exists (select from results r where r.job_id = p_job_id and r.task_id = v_bulk.loader)) then
    update bulks set loader = (add_tasks(p_job_id, jsonb_build_array(jsonb_build_object('kind', v_bulk.type || '.load',
      'input', jsonb_build_object('is_preview', v_bulk.preview and v_bulk.loader is null)))))[1] where job_id = p_job_id;
  end if;
  if p_load then
    perform _audit(v_bulk.tenant_id, 'bulk.rows', p_job_id, 'job:' || p_job_id, (select jsonb_build_object('rows', b.total) from bulks b where b.job_id = p_job_id));
  end if;
  return jsonb_build_object('added', v_added, 'refused', v_bad + v_again_bad, 'known', jsonb_array_length(p_rows) - v_added - v_again, 'moved', v_moved);
end
$$;
comment on function penstock.add_bulk_rows(uuid, jsonb, boolean) is
  'Takes rows [{"number", "data", "problem"}] of a bulk job as they are. A number that is there already is left out, unless its row was refused; a key that is there already makes a refused row. With p_load they are loaded from now on. Returns how many were added, refused, known, and known by another key (moved).';

create or replace function penstock.read_bulk_again(p_job_id uuid)
returns bigint language plpgsql security definer set search_path = penstock, pg_temp as $$
declare
  v_job jobs := _visible_job(p_job_id, array['owner', 'admin', 'member']);
  v_bulk bulks;
begin
  select * into v_bulk from bulks where job_id = p_job_id;
  if v_bulk.source ->> 'type' is distinct from 'google-sheets' then
    perform _refuse(409, 'not_readable', 'workers cannot read the source of this job again: it is not a Google Sheet', jsonb_build_object('job_id', p_job_id),
      'Send the rows again: those it has already are left out.');
  end if;
  return (add_tasks(p_job_id, jsonb_build_array(jsonb_build_object('kind', v_bulk.type || '.read'))))[1];
end
$$;
comment on function penstock.read_bulk_again(uuid) is
  'Lets a worker read the Google Sheet of a bulk job that has not ended once more: new rows are added. Returns the task that begins it.';

create or replace function penstock._leased_bulk(p_task_id bigint, p_worker_id text, p_lease bigint)
returns penstock.bulks language plpgsql set search_path = penstock, pg_temp as $$
declare
  v_bulk bulks;
begin
  perform _keep_lease(p_task_id, p_worker_id, p_lease);
  select b.* into v_bulk from leases l join bulks b on b.job_id = l.job_id where l.task_id = p_task_id for no key update of b;
  if not found then
    perform _refuse(404, 'unknown_bulk', 'this job has no rows');
  end if;
  return v_bulk;
end
$$;
comment on function penstock._leased_bulk(bigint, text, bigint) is 'The bulk of a task whose live lease this is, locked.';

create or replace function penstock.take_bulk_rows(p_task_id bigint, p_worker_id text, p_lease bigint, p_max integer default 1000)
returns table (number bigint, key text, group_key text, data jsonb)
language plpgsql security definer set search_path = penstock, pg_temp set enable_seqscan = off set jit = off as $$
#variable_conflict use_column
declare
  v_bulk bulks := _leased_bulk(p_task_id, p_worker_id, p_lease);
  v_earlier uuid[];
  v_count integer;
begin
  if v_bulk.skip_done then
    v_earlier := array(
      select b.job_id from bulks b where b.tenant_id = v_bulk.tenant_id and b.type = v_bulk.type and b.source_id is not distinct from v_bulk.source_id
        and b.job_id <> v_bulk.job_id);
    while cardinality(v_earlier) > 0 loop
      with next as materialized (
        select b.number, b.key from bulk_rows b where b.job_id = v_bulk.job_id and b.first_id is null and b.problem is null
        order by b.group_key, b.number limit p_max
      ), done as materialized (
        select n.number, d.job_id, d.number as before from next n
        cross join lateral (
          select o.job_id, o.number from unnest(v_earlier) as e(id)
          cross join lateral (
            select x.* from bulk_rows x where v_bulk.key is not null and x.job_id = e.id and x.key = n.key
            union all
            select x.* from bulk_rows x where v_bulk.key is null and x.job_id = e.id and x.number = n.number and x.key is null) as o
          cross join lateral _bulk_row_state(row(o.*)::bulk_rows) as s
          -- What was undone is not done.
          where o.first_id is not null and s.state = 'succeeded' and not exists (
            select from bulk_changes c where c.job_id = o.job_id and c.row_number = o.number having count(*) > 0 and count(*) = count(c.undone_at))
          limit 1) as d
      )
      update bulk_rows b set problem = jsonb_build_object('code', 'done_before', 'message', format('done in job %s, row %s', d.job_id, d.before))
      from done d where b.job_id = v_bulk.job_id and b.number = d.number;
      get diagnostics v_count = row_count;
      update bulks set skipped = skipped + v_count where job_id = v_bulk.job_id;
      exit when v_count = 0;
    end loop;
  end if;
  return query
  select b.number, coalesce(b.key, b.number::text), b.group_key, b.data from bulk_rows b
  where b.job_id = v_bulk.job_id and b.first_id is null and b.problem is null
  order by b.group_key, b.number limit p_max;
end
$$;
comment on function penstock.take_bulk_rows(bigint, text, bigint, integer) is
  'The next rows of a bulk job that are not loaded, for the task that loads them, which has the job''s rows for itself until its transaction ends.';

create or replace function penstock.mark_bulk_rows(p_task_id bigint, p_worker_id text, p_lease bigint, p_rows jsonb, p_next_id bigint default null)
returns void language plpgsql security definer set search_path = penstock, pg_temp set enable_seqscan = off set jit = off as $$
declare
  v_bulk bulks := _leased_bulk(p_task_id, p_worker_id, p_lease);
  v_loaded integer;
  v_refused integer;
begin
  with marked as (
    update bulk_rows b set problem = r.problem, first_id = r.first_id, result_id = r.result_id, last_id = r.last_id, batch_size = r.batch_size
    from jsonb_to_recordset(p_rows) as r(number bigint, problem jsonb, first_id bigint, result_id bigint, last_id bigint, batch_size integer)
    where b.job_id = v_bulk.job_id and b.number = r.number and b.first_id is null and b.problem is null
    returning b.first_id is not null as is_loaded
  )
  select count(*) filter (where is_loaded), count(*) filter (where not is_loaded) into v_loaded, v_refused from marked;
  if v_loaded + v_refused <> jsonb_array_length(p_rows) then
    perform _refuse(409, 'row_taken', 'one of these rows is not there, or was loaded before');
  end if;
  update bulks set loaded = loaded + v_loaded, refused = refused + v_refused, loader = coalesce(p_next_id, loader) where job_id = v_bulk.job_id;
end
$$;
comment on function penstock.mark_bulk_rows(bigint, text, bigint, jsonb, bigint) is
  'What became of rows that were taken, in the same transaction: [{"number", "problem"}] or [{"number", "first_id", "result_id", "last_id", "batch_size"}]; and the task that loads the next ones.';

create or replace function penstock.get_bulk_rows(p_task_id bigint, p_worker_id text, p_lease bigint, p_job_id uuid, p_numbers bigint[])
returns table (number bigint, key text, data jsonb)
language plpgsql security definer set search_path = penstock, pg_temp set enable_seqscan = off set jit = off as $$
begin
  perform _keep_lease(p_task_id, p_worker_id, p_lease);
  return query
  select b.number, coalesce(b.key, b.number::text), b.data from unnest(p_numbers) as n(number)
  join bulk_rows b on b.job_id = p_job_id and b.number = n.number
  where b.tenant_id = (select l.tenant_id from leases l where l.task_id = p_task_id) order by b.number;
end
$$;
comment on function penstock.get_bulk_rows(bigint, text, bigint, uuid, bigint[]) is 'Rows of a bulk job by their numbers, for a running task of the same tenant.';

create or replace function penstock._is_running(p_job_id uuid, p_first_id bigint, p_last_id bigint)
returns boolean language sql stable security definer set search_path = penstock, pg_temp as $$
  select exists (select from leases l where l.task_id between p_first_id and p_last_id and l.job_id = p_job_id
    and (_is_service() or l.tenant_id in (select my_tenants())))
$$;
comment on function penstock._is_running(uuid, bigint, bigint) is 'Whether one of a job''s tasks from here to there runs, for whoever may see it.';

create or replace function penstock._bulk_row_state(p_row penstock.bulk_rows)
returns table (state text, output jsonb, error_code text, error_message text, started_at timestamptz, finished_at timestamptz)
language sql stable as $$
  -- Names its schema and sets no path, so that it is inlined.
  select case
      when p_row.problem ->> 'code' = 'done_before' then 'skipped'
      when p_row.problem is not null then 'refused'
      when e.error is not null or l.outcome is distinct from 'succeeded' and f.task_id is not null then 'failed'
      when l.outcome = 'succeeded' then 'succeeded'
      when l.outcome = 'canceled' or j.status = 'canceled' then 'canceled'
      when p_row.first_id is null then 'waiting'
      when penstock._is_running(p_row.job_id, p_row.first_id, p_row.last_id) then 'running'
      else 'queued' end,
    -- Also before it is applied: a preview is there to be looked at.
    case when coalesce(l.outcome, r.outcome) = 'succeeded' and e.error is null then o.output end,
    coalesce(p_row.problem ->> 'code', e.error ->> 'code', case when l.outcome is distinct from 'succeeded' then coalesce(f.error_code, l.error_code) end),
    coalesce(p_row.problem ->> 'message', e.error ->> 'message', case when l.outcome is distinct from 'succeeded' then coalesce(f.error_message, l.error_message) end),
    coalesce(f.started_at, r.started_at, l.started_at),
    case when l.task_id is not null then l.finished_at else f.finished_at end
  from penstock.jobs j
  left join penstock.results l on l.job_id = p_row.job_id and l.task_id = p_row.last_id
  left join penstock.results r on r.job_id = p_row.job_id and r.task_id = p_row.result_id
  -- What failed is looked for only where something did not succeed.
  left join lateral (
    select x.task_id, x.error_code, x.error_message, x.started_at, x.finished_at from penstock.results x
    where x.job_id = p_row.job_id and x.task_id between p_row.first_id and p_row.last_id and x.outcome = 'failed'
      and l.outcome is distinct from 'succeeded' order by x.task_id limit 1) as f on true
  -- A batch gives each of its rows a value or an error, under its key. One that is in a file is given as it is.
  cross join lateral (select coalesce(p_row.key, p_row.number::text) as key, p_row.batch_size is not null and not coalesce(r.output ? '$artifact', false) as is_shared) as k
  cross join lateral (select case when k.is_shared then r.output -> k.key else r.output end as output) as o
  cross join lateral (
    select case when l.outcome = 'succeeded' and p_row.batch_size is not null then coalesce(
      case when p_row.last_id <> p_row.result_id then l.output -> k.key -> '$error' end,
      case when k.is_shared then case when r.output ? k.key then o.output -> '$error'
        else '{"code": "no_result", "message": "its batch has no result for it"}' end end) end as error) as e
  where j.id = p_row.job_id
$$;
comment on function penstock._bulk_row_state(penstock.bulk_rows) is
  'Where a row stands: the state, result and error of the tasks it made. The only place where this is decided.';

create or replace function penstock.get_bulk(p_job_id uuid)
returns jsonb language plpgsql stable security definer set search_path = penstock, pg_temp as $$
declare
  v_job jsonb := get_job(p_job_id);
  v_bulk bulks;
begin
  select * into v_bulk from bulks where job_id = p_job_id;
  if not found then
    perform _refuse(404, 'unknown_bulk', 'this job has no rows');
  end if;
  return jsonb_build_object('job', v_job, 'source', v_bulk.source, 'key', v_bulk.key, 'batch', v_bulk.batch, 'group_by', v_bulk.group_by,
    'preview', v_bulk.preview, 'skip_done', v_bulk.skip_done,
    'confirmed_at', (select j.confirmed_at from jobs j where j.id = p_job_id),
    'rows', jsonb_build_object('total', v_bulk.total, 'loaded', v_bulk.loaded, 'refused', v_bulk.refused, 'skipped', v_bulk.skipped,
      'waiting', v_bulk.total - v_bulk.loaded - v_bulk.refused - v_bulk.skipped),
    'to_confirm', (select count(*) from parked p where p.tenant_id = v_bulk.tenant_id and p.waits_for = 'confirm' and p.job_id = p_job_id),
    'waits', (select coalesce(jsonb_agg(jsonb_build_object('waits_for', w.waits_for, 'reason', w.reason, 'tasks', w.n) order by w.n desc), '[]') from (
      select p.waits_for, min(p.reason) as reason, count(*) as n from parked p
      where p.tenant_id = v_bulk.tenant_id and p.waits_for is not null and p.job_id = p_job_id group by p.waits_for) as w),
    'problems', (select coalesce(jsonb_agg(jsonb_build_object('code', x.code, 'message', x.message, 'rows', x.n) order by x.n desc, x.code), '[]') from (
      select b.problem ->> 'code' as code, min(b.problem ->> 'message') as message, count(*) as n from bulk_rows b
      where b.job_id = p_job_id and b.problem is not null group by 1) as x),
    'failures', (select coalesce(jsonb_agg(jsonb_build_object('kind', x.kind, 'code', x.error_code, 'message', x.message, 'tasks', x.n) order by x.n desc, x.kind, x.error_code), '[]') from (
      select d.kind, d.error_code, min(left(d.error_message, 500)) as message, count(*) as n from dead_letters d
      where d.job_id = p_job_id group by d.kind, d.error_code) as x),
    'changes', (select jsonb_build_object('applied', count(*), 'undone', count(c.undone_at)) from bulk_changes c where c.job_id = p_job_id));
end
$$;
comment on function penstock.get_bulk(uuid) is
  'A bulk job: the job as get_job has it, its source, how many rows it has and loaded, refused or skipped, what waits for what, problems and failures by cause, and what was applied and undone.';

-- Applying and undoing

create or replace function penstock.record_changes(p_task_id bigint, p_worker_id text, p_lease bigint, p_changes jsonb)
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
    perform _refuse(422, 'invalid_changes', 'a change is of a row of this job: {"number", "name", "before", "after"}');
  end if;
  return v_count;
exception when data_exception or integrity_constraint_violation then
  perform _refuse(422, 'invalid_changes', 'a change is {"number", "name", "before", "after"}: ' || left(sqlerrm, 200));
end
$$;
comment on function penstock.record_changes(bigint, text, bigint, jsonb) is
  'What a running task applied for rows of its job: [{"number", "name", "before", "after"}], in the transaction that applied it.';

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
    v_numbers := case when v_filter ? 'rows' then array(select (e #>> '{}')::bigint from jsonb_array_elements(v_filter -> 'rows') as e) end;
    v_names := case when v_filter ? 'names' then array(select jsonb_array_elements_text(v_filter -> 'names')) end;
  exception when data_exception then
    perform _refuse(422, 'invalid_filter', 'rows is a list of numbers, names one of texts: ' || left(sqlerrm, 200));
  end;
  v_rows := array(
    select distinct c.row_number from bulk_changes c
    where c.job_id = p_job_id and c.undone_at is null and (v_numbers is null or c.row_number = any (v_numbers)) and (v_names is null or c.name = any (v_names))
    order by c.row_number desc);
  if v_rows = '{}' then
    perform _refuse(409, 'nothing_to_undo', 'nothing of this is applied', jsonb_build_object('job_id', p_job_id));
  end if;
  select o.job_id into v_undo_id from open_job(v_job.type || '.undo', jsonb_build_object('job_id', p_job_id) || v_filter,
    jsonb_build_object('tenant_id', v_job.tenant_id, 'priority', v_job.priority)) as o;
  for v_tasks in
    select jsonb_agg(jsonb_build_object('kind', v_job.type || '.undo', 'phase', 'undo', 'input',
      jsonb_strip_nulls(jsonb_build_object('job_id', p_job_id, 'number', r.number, 'names', v_filter -> 'names'))) order by r.n)
    from unnest(v_rows) with ordinality as r(number, n) group by (r.n - 1) / 5000 order by (r.n - 1) / 5000
  loop
    perform _add_tasks(v_undo_id, v_tasks);
  end loop;
  perform _audit(v_job.tenant_id, 'bulk.undo', p_job_id, 'job:' || v_undo_id, v_filter || jsonb_build_object('rows', cardinality(v_rows)));
  return v_undo_id;
end
$$;
comment on function penstock.undo_bulk(uuid, jsonb) is
  'Starts a job that undoes what was applied and is not undone: of all rows, or of {"rows": [numbers], "names": [values]}. Returns its id. What is applied later stays.';

create or replace function penstock.undo_changes(p_task_id bigint, p_worker_id text, p_lease bigint)
returns table (id bigint, row_number bigint, name text, before jsonb, after jsonb)
language plpgsql security definer set search_path = penstock, pg_temp as $$
#variable_conflict use_column
declare
  v_task tasks;
begin
  perform _keep_lease(p_task_id, p_worker_id, p_lease);
  select t.* into v_task from leases l join tasks t on t.job_id = l.job_id and t.id = l.task_id where l.task_id = p_task_id;
  return query
  with undone as (
    update bulk_changes c set undone_at = _now()
    where c.job_id = (v_task.input ->> 'job_id')::uuid and c.tenant_id = v_task.tenant_id and c.row_number = (v_task.input ->> 'number')::bigint
      and c.undone_at is null and (not v_task.input ? 'names' or v_task.input -> 'names' ? c.name)
    returning c.*
  )
  select u.id, u.row_number, u.name, u.before, u.after from undone u order by u.id desc;
end
$$;
comment on function penstock.undo_changes(bigint, text, bigint) is
  'The changes that a running undo task is to undo, newest first, marked as undone: the task undoes them in the same transaction.';

-- Writing back to the source

create or replace function penstock.bulk_rows_to_write(p_job_id uuid, p_max integer default 1000)
returns table (number bigint, key text, data jsonb, state text, output jsonb, error_code text, error_message text, cost numeric, finished_at timestamptz)
language sql stable security definer set search_path = penstock, pg_temp set enable_seqscan = off set jit = off as $$
  select b.number, coalesce(b.key, b.number::text), b.data, s.state, s.output, s.error_code, s.error_message, _row_cost(b), s.finished_at
  from bulk_rows b cross join lateral _bulk_row_state(b) as s
  where b.job_id = p_job_id and b.written is distinct from 'succeeded'
    -- Before the state is asked for, which takes a hundred times as long: whether it can be one of these, and a new one.
    and case when b.problem is not null then b.written is null and b.problem ->> 'code' <> 'done_before'
      else exists (select from results r where r.job_id = b.job_id and r.task_id = b.last_id and (b.written is null or r.outcome = 'succeeded'))
        or b.written is null and exists (select from jobs j where j.id = b.job_id and j.status = 'canceled') end
    and s.state in ('succeeded', 'failed', 'refused', 'canceled') and b.written is distinct from s.state
  order by b.number limit p_max
$$;
comment on function penstock.bulk_rows_to_write(uuid, integer) is 'Rows that have ended and whose state was not written back to the source yet. Of what was done before, the source has the result.';

create or replace function penstock.mark_rows_written(p_job_id uuid, p_numbers bigint[], p_states text[])
returns integer language plpgsql security definer set search_path = penstock, pg_temp set enable_seqscan = off set jit = off as $$
declare
  v_count integer;
begin
  update bulk_rows b set written = w.state from unnest(p_numbers, p_states) as w(number, state)
  where b.job_id = p_job_id and b.number = w.number and b.written is distinct from w.state;
  get diagnostics v_count = row_count;
  return v_count;
end
$$;
comment on function penstock.mark_rows_written(uuid, bigint[], text[]) is 'Notes which states of rows were written back to the source.';

create or replace function penstock._row_cost(p_row penstock.bulk_rows)
returns numeric language sql stable set search_path = penstock, pg_temp as $$
  -- A batch's rows share its cost. A division adds digits that say nothing.
  select trim_scale(coalesce(sum(c.base_amount), 0) / coalesce(p_row.batch_size, 1)) from penstock.cost_entries c
  where c.job_id = p_row.job_id and c.task_id between p_row.first_id and p_row.last_id
$$;
comment on function penstock._row_cost(penstock.bulk_rows) is 'What a row has cost so far, in the base currency.';
