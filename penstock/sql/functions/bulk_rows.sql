-- The rows of bulk jobs after they were added: a worker loads them, applies and undoes their results,
-- and writes their states back to the source. Lock order: see bulks.sql.

-- Loading

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
    update bulk_rows b set first_id = r.first_id, result_id = r.result_id, last_id = r.last_id,
      batch_size = r.batch_size,
      problem = case when r.problem is not null then _redact_document(r.problem) end
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
  v_undo jobs;
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
  v_undo := (_create_job(v_job.type || '.undo', jsonb_build_object('job_id', p_job_id) || v_filter,
    jsonb_build_object('tenant_id', v_job.tenant_id, 'priority', v_job.priority))).job;
  for v_tasks in
    select jsonb_agg(jsonb_build_object('kind', v_job.type || '.undo', 'phase', 'undo',
      'input', jsonb_strip_nulls(jsonb_build_object('job_id', p_job_id, 'number', r.number, 'names',
        v_filter -> 'names'))) order by r.n)
    from unnest(v_rows) with ordinality as r(number, n) group by (r.n - 1) / 5000 order by (r.n - 1) / 5000
  loop
    perform _add_tasks(v_undo, v_tasks, null, false);
  end loop;
  perform _audit(v_job.tenant_id, 'bulk.undo', p_job_id, 'job:' || v_undo.id, v_filter
    || jsonb_build_object('rows', cardinality(v_rows)));
  perform _count_start(v_undo, 1, '[]', '{}');
  return v_undo.id;
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
