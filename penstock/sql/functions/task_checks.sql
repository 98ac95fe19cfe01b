-- Task checks: what a new task may look like, and which keys and dependencies a list of new tasks may have.

create or replace function penstock._parse_tasks(p_tasks jsonb)
returns penstock.task_spec[] language plpgsql stable set search_path = penstock, pg_temp as $$
declare
  c_fields constant text[] := array['kind', 'key', 'input', 'after', 'after_failure', 'phase', 'provider',
    'units',
    'priority', 'run_at', 'max_attempts', 'timeout_seconds', 'idempotency_key', 'route', 'confirm'];
  v_limit integer := (_setting('max_tasks_per_call'))::integer;
  v_index integer;
  v_task jsonb;
  v_field text;
begin
  if jsonb_typeof(p_tasks) is distinct from 'array' or jsonb_array_length(p_tasks) = 0 then
    perform _refuse(422, 'no_tasks', 'tasks must be an array with at least one task', '{"field": "tasks"}');
  end if;
  if jsonb_array_length(p_tasks) > v_limit then
    perform _refuse(413, 'too_many_tasks',
      format('%s tasks in one call; the limit is %s', jsonb_array_length(p_tasks), v_limit),
      '{"field": "tasks"}', 'Use open_job and call add_tasks several times in one transaction.');
  end if;
  select e.n - 1, e.task into v_index, v_task
  from jsonb_array_elements(p_tasks) with ordinality as e(task, n)
  where case jsonb_typeof(e.task) when 'object' then e.task - c_fields <> '{}' else true end limit 1;
  if jsonb_typeof(v_task) <> 'object' then
    perform _refuse(422, 'invalid_task',
      format('task %s: must be a JSON object (got %s)', v_index, jsonb_typeof(v_task)),
      jsonb_build_object('field', format('tasks[%s]', v_index)));
  elsif v_task is not null then
    perform _refuse(422, 'unknown_field', format('task %s: unknown field %L', v_index, left(k, 100)),
      jsonb_build_object('field', format('tasks[%s].%s', v_index, left(k, 100))))
    from jsonb_object_keys(v_task - c_fields) as k limit 1;
  end if;
  return array(select t from jsonb_populate_recordset(null::task_spec, p_tasks) as t);
exception when data_exception then
  -- Finds the task and the field that failed by trying each; slow, but only for invalid input.
  for v_index, v_field, v_task in
    select e.n - 1, k, jsonb_build_object(k, e.task -> k)
    from jsonb_array_elements(p_tasks) with ordinality as e(task, n)
      cross join jsonb_object_keys(e.task) as k
    where k in ('after', 'priority', 'run_at', 'max_attempts', 'timeout_seconds', 'confirm') order by e.n
  loop
    begin
      perform jsonb_populate_record(null::task_spec, v_task);
    exception when data_exception then
      perform _refuse(422, 'invalid_task',
        format('task %s: invalid %s: %s', v_index, v_field, left(sqlerrm, 200)),
        jsonb_build_object('field', format('tasks[%s].%s', v_index, v_field)));
    end;
  end loop;
  raise;
end
$$;
comment on function penstock._parse_tasks(jsonb) is
  'Converts p_tasks to records; raises an error if it is no array, too long, or has unknown or malformed '
  'fields.';

create or replace function penstock._check_tasks(p_specs penstock.task_spec[])
returns void language plpgsql stable set search_path = penstock, pg_temp as $$
declare
  v_limit integer := (_setting('max_input_bytes'))::integer;
  v_index integer;
  v_error text[];
begin
  -- {field, code, message} of the first invalid task
  select x.n - 1, x.error into v_index, v_error from (
    select t.n, case
      when k.name is null then
        array['kind', 'unknown_kind',
          format('unknown kind %s', coalesce(quote_literal(left(t.kind, 100)), '(none)'))]
      when jsonb_typeof(t.input) not in ('object', 'null') then
        array['input', 'invalid_input',
          format('input must be a JSON object (got %s)', jsonb_typeof(t.input))]
      when z.bytes > v_limit then
        array['input', 'too_large', format('input is %s bytes; the limit is %s', z.bytes, v_limit)]
      when z.bytes > 128 and not _is_readable(t.input) then
        array['input', 'unreadable',
          'input must be nested at most 64 levels deep, with numbers within ±1e308']
      when z.bytes > 8192 and _has_base64_file(t.input) then
        array['input', 'file_in_input', 'input contains a file as base64']
      when t.after is not null and t.input ? 'after' then
        array['input', 'invalid_input', 'input.after is reserved for the outputs of the parent tasks']
      -- Most tasks pass: one condition for all names, and one for all numbers.
      when num_nonnulls(t.key, t.idempotency_key, t.provider, t.phase) > 0
        and (least(length(t.key), length(t.idempotency_key), length(t.provider), length(t.phase)) < 1
          or greatest(length(t.key), length(t.idempotency_key)) > 255
          or greatest(length(t.provider), length(t.phase)) > 200
          or not (_is_clean(t.key) and _is_clean(t.idempotency_key) and _is_clean(t.phase))) then
        _task_name_error(t.key, t.idempotency_key, t.provider, t.phase)
      when t.priority not between 0 and 10 or t.max_attempts not between 1 and 100
        or not (t.timeout_seconds > 0 and t.timeout_seconds <= 31622400) then
        _task_number_error(t.priority, t.max_attempts, t.timeout_seconds)
      when t.run_at is not null and not _is_storable_time(t.run_at) then
        array['run_at', 'invalid_run_at',
          format('run_at must be in the years 2000 to 9998 (got %s)', t.run_at)]
      when t.confirm and t.run_at is not null then
        array['confirm', 'invalid_task', 'a task cannot have both confirm and run_at']
      when t.after_failure not in ('cancel', 'run') then
        array['after_failure', 'invalid_task',
          format('after_failure must be cancel or run (got %L)', left(t.after_failure, 100))]
      when jsonb_typeof(t.units) not in ('object', 'null') or octet_length(t.units::text) > 10000 then
        array['units', 'invalid_units', 'units must be a JSON object of at most 10000 bytes']
      when t.provider is not null and t.route is not null and t.route <> 'null' then
        array['route', 'invalid_route', 'a task cannot have both a provider and a route']
      end as error
    from unnest(p_specs) with ordinality as t(kind, key, input, after, after_failure, phase, provider,
      units, priority, run_at, max_attempts, timeout_seconds, idempotency_key, route, confirm, n)
    -- offset 0: computed once, not where it is named.
    cross join lateral (select octet_length(t.input::text) as bytes offset 0) as z
    left join kinds k on k.name = t.kind
  ) as x where x.error is not null limit 1;
  if v_error is not null then
    perform _refuse_task(v_index, v_error[1], v_error[2], v_error[3]);
  end if;
end
$$;
comment on function penstock._check_tasks(penstock.task_spec[]) is
  'Raises an error for the first invalid task, with its index and field.';

create or replace function penstock._task_name_error(
  p_key text, p_idempotency_key text, p_provider text, p_phase text)
returns text[] language sql immutable set search_path = penstock, pg_temp as $$
  select case
    when length(p_key) not between 1 and 255 then
      array['key', 'invalid_key', format('key must have 1 to 255 characters (got %s)', length(p_key))]
    when length(p_idempotency_key) not between 1 and 255 then
      array['idempotency_key', 'invalid_key',
        format('idempotency_key must have 1 to 255 characters (got %s)', length(p_idempotency_key))]
    when not (_is_clean(p_key) and _is_clean(p_idempotency_key) and _is_clean(p_phase)) then
      array[case when not _is_clean(p_key) then 'key' when not _is_clean(p_phase) then 'phase'
        else 'idempotency_key' end, 'invalid_key', 'names must not contain control characters']
    when length(p_provider) not between 1 and 200 then
      array['provider', 'invalid_provider',
        format('provider must have 1 to 200 characters (got %s)', length(p_provider))]
    when length(p_phase) not between 1 and 200 then
      array['phase', 'invalid_phase', format('phase must have 1 to 200 characters (got %s)', length(p_phase))]
    end
$$;
comment on function penstock._task_name_error(text, text, text, text) is
  'What is wrong with the names of a task, {field, code, message}.';

create or replace function penstock._task_number_error(
  p_priority integer, p_max_attempts integer, p_timeout_seconds real)
returns text[] language sql immutable set search_path = penstock, pg_temp as $$
  select case
    when p_priority not between 0 and 10 then
      array['priority', 'invalid_priority', format('priority must be between 0 and 10 (got %s)', p_priority)]
    when p_max_attempts not between 1 and 100 then
      array['max_attempts', 'invalid_attempts',
        format('max_attempts must be between 1 and 100 (got %s)', p_max_attempts)]
    when not (p_timeout_seconds > 0 and p_timeout_seconds <= 31622400) then
      array['timeout_seconds', 'invalid_timeout',
        format('timeout_seconds must be greater than 0 and at most 31622400, one year (got %s)',
          p_timeout_seconds)]
    end
$$;
comment on function penstock._task_number_error(integer, integer, real) is
  'What is wrong with the numbers of a task, {field, code, message}.';

create or replace function penstock._refuse_task(p_index integer, p_field text, p_code text, p_message text)
returns void language plpgsql set search_path = penstock, pg_temp as $$
begin
  perform _refuse(case p_code when 'too_large' then 413 else 422 end, p_code,
    format('task %s: %s', p_index, p_message),
    jsonb_build_object('field', format('tasks[%s].%s', p_index, p_field)),
    case p_code
      when 'unknown_kind' then 'Declare it with penstock.define_kind, or start a worker that handles it.'
      when 'too_large' then 'Keep files in object storage and pass their path.'
      when 'file_in_input'
        then 'Upload it (penstock.begin_upload, POST /api/uploads), and pass its id or path.' end);
end
$$;
comment on function penstock._refuse_task(integer, text, text, text) is
  'Raises the error of an invalid task, with its index and field.';

create or replace function penstock._check_keys(p_job_id uuid, p_specs penstock.task_spec[])
returns void language plpgsql stable set search_path = penstock, pg_temp
  -- The planner does not know the number of tasks; a nested loop over them would be quadratic.
  set enable_nestloop = off set jit = off as $$
declare
  v_key text;
begin
  select s.key into v_key from unnest(p_specs) as s where s.key is not null group by s.key
    having count(*) > 1 limit 1;
  -- The lateral subqueries force one index probe per key; a join might read all tasks of the job.
  if v_key is null and exists (select from tasks where job_id = p_job_id and key is not null) then
    select s.key into v_key from unnest(p_specs) as s
    cross join lateral (select from tasks x where x.job_id = p_job_id and x.key = s.key offset 0) as t
      limit 1;
  end if;
  if v_key is not null then
    perform _refuse(409, 'duplicate_key', format('two tasks of the job have the key %L', v_key),
      jsonb_build_object('field', 'tasks.key', 'key', v_key));
  end if;
  with wanted as materialized (
    select distinct a.key from unnest(p_specs) as s cross join lateral unnest(s.after) as a(key)
  ), own as materialized (
    select s.key from unnest(p_specs) as s where s.key is not null
  ), others as materialized (
    select w.key from wanted w where not exists (select from own o where o.key = w.key)
  )
  select o.key into v_key from others o
  left join lateral (select true as is_there from tasks x where x.job_id = p_job_id
    and x.key = o.key offset 0) as t on true
  where t.is_there is null limit 1;
  if found then
    perform _refuse(422, 'unknown_parent', format('no task of the job has the key %L', left(v_key, 255)),
      jsonb_build_object('field', 'tasks.after', 'key', left(v_key, 255)));
  end if;
end
$$;
comment on function penstock._check_keys(uuid, penstock.task_spec[]) is
  'Raises an error if a key is not unique in the job or a parent does not exist.';

create or replace function penstock._check_cycles(p_parents integer[], p_children integer[], p_count integer)
returns void language plpgsql immutable set search_path = penstock, pg_temp as $$
declare
  -- open parents by task; first edge by parent, and the next edge of the same parent
  v_waits integer[] := array_fill(0, array[p_count]);
  v_first integer[] := array_fill(0, array[p_count]);
  v_next integer[] := array_fill(0, array[cardinality(p_parents)]);
  v_free integer[] := '{}';
  v_done integer := 0;
  v_edge integer;
  v_child integer;
begin
  -- Topological sort: remove tasks without open parents
  -- until none is left; the remaining tasks form a cycle.
  for i in 1 .. cardinality(p_parents) loop
    v_waits[p_children[i]] := v_waits[p_children[i]] + 1;
    v_next[i] := v_first[p_parents[i]];
    v_first[p_parents[i]] := i;
  end loop;
  for i in 1 .. p_count loop
    if v_waits[i] = 0 then
      v_free := v_free || i;
    end if;
  end loop;
  while v_done < cardinality(v_free) loop
    v_done := v_done + 1;
    v_edge := v_first[v_free[v_done]];
    while v_edge > 0 loop
      v_child := p_children[v_edge];
      v_waits[v_child] := v_waits[v_child] - 1;
      if v_waits[v_child] = 0 then
        v_free := v_free || v_child;
      end if;
      v_edge := v_next[v_edge];
    end loop;
  end loop;
  if v_done < p_count then
    perform _refuse(422, 'cycle', 'task dependencies form a cycle',
      jsonb_build_object('field', format('tasks[%s].after',
        (select min(i) - 1 from generate_series(1, p_count) as i where v_waits[i] > 0))));
  end if;
end
$$;
comment on function penstock._check_cycles(integer[], integer[], integer) is
  'Raises an error if the dependencies form a cycle. Linear in tasks and edges.';

create or replace function penstock._has_base64_file(p_document jsonb)
returns boolean language sql immutable set search_path = penstock, pg_temp as $$
  -- Thousands of letters in both cases and digits without a space are not text, hexadecimal or DNA.
  select exists (
    select from jsonb_path_query(p_document, '$.** ? (@.type() == "string")') as s(value)
    cross join lateral (select s.value #>> '{}' as text) as x
    where length(x.text) > 8192 and x.text ~ '^(data:[A-Za-z0-9/+.;=-]{0,100},)?[A-Za-z0-9+/_-]+={0,2}$'
      and x.text ~ '[A-Z]' and x.text ~ '[a-z]' and x.text ~ '[0-9]')
$$;
comment on function penstock._has_base64_file(jsonb) is
  'Whether a document contains a base64 string of more than 8,192 characters.';
