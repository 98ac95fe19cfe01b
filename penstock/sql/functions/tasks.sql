-- Tasks and their dependencies. queue.sql and leases.sql move tasks between states.

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
      when octet_length(t.input::text) > v_limit then
        array['input', 'too_large',
          format('input is %s bytes; the limit is %s', octet_length(t.input::text), v_limit)]
      when octet_length(t.input::text) > 128 and not _is_readable(t.input) then
        array['input', 'unreadable',
          'input must be nested at most 64 levels deep, with numbers within ±1e308']
      when octet_length(t.input::text) > 8192 and _has_base64_file(t.input) then
        array['input', 'file_in_input', 'input contains a file as base64']
      when t.after is not null and t.input ? 'after' then
        array['input', 'invalid_input', 'input.after is reserved for the outputs of the parent tasks']
      when length(t.key) not between 1 and 255 then
        array['key', 'invalid_key', format('key must have 1 to 255 characters (got %s)', length(t.key))]
      when length(t.idempotency_key) not between 1 and 255 then
        array['idempotency_key', 'invalid_key',
          format('idempotency_key must have 1 to 255 characters (got %s)', length(t.idempotency_key))]
      when not (_is_clean(t.key) and _is_clean(t.idempotency_key) and _is_clean(t.phase)) then
        array[case when not _is_clean(t.key) then 'key' when not _is_clean(t.phase) then 'phase'
          else 'idempotency_key' end, 'invalid_key', 'names must not contain control characters']
      when length(t.provider) not between 1 and 200 then
        array['provider', 'invalid_provider',
          format('provider must have 1 to 200 characters (got %s)', length(t.provider))]
      when length(t.phase) not between 1 and 200 then
        array['phase', 'invalid_phase',
          format('phase must have 1 to 200 characters (got %s)', length(t.phase))]
      when t.priority not between 0 and 10 then
        array['priority', 'invalid_priority',
          format('priority must be between 0 and 10 (got %s)', t.priority)]
      when t.max_attempts not between 1 and 100 then
        array['max_attempts', 'invalid_attempts',
          format('max_attempts must be between 1 and 100 (got %s)', t.max_attempts)]
      when not (t.timeout_seconds > 0 and t.timeout_seconds <= 31622400) then
        array['timeout_seconds', 'invalid_timeout',
          format('timeout_seconds must be greater than 0 and at most 31622400, one year (got %s)',
            t.timeout_seconds)]
      when not _is_storable_time(t.run_at) then
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
    left join kinds k on k.name = t.kind
  ) as x where x.error is not null limit 1;
  if v_error is not null then
    perform _refuse(case v_error[2] when 'too_large' then 413 else 422 end, v_error[2],
      format('task %s: %s', v_index, v_error[3]),
      jsonb_build_object('field', format('tasks[%s].%s', v_index, v_error[1])),
      case v_error[2]
        when 'unknown_kind' then 'Declare it with penstock.define_kind, or start a worker that handles it.'
        when 'too_large' then 'Keep files in object storage and pass their path.'
        when 'file_in_input'
          then 'Upload it (penstock.begin_upload, POST /api/uploads), and pass its id or path.' end);
  end if;
end
$$;
comment on function penstock._check_tasks(penstock.task_spec[]) is
  'Raises an error for the first invalid task, with its index and field.';

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

create or replace function penstock._add_phases(p_job penstock.jobs, p_specs penstock.task_spec[])
returns void language plpgsql set search_path = penstock, pg_temp as $$
declare
  v_unknown text;
  v_declared boolean;
  v_count integer;
begin
  select exists (select from phases where job_id = p_job.id and weight is not null) into v_declared;
  if v_declared then
    select s.phase into v_unknown from unnest(p_specs) as s
    where s.phase is not null
      and not exists (select from phases p where p.job_id = p_job.id and p.name = s.phase) limit 1;
    if found then
      perform _refuse(422, 'unknown_phase',
        format('job type %L has no phase %L', p_job.type, left(v_unknown, 200)),
        jsonb_build_object('field', 'tasks.phase', 'phase', v_unknown));
    end if;
  else
    insert into phases (job_id, position, tenant_id, name)
    select p_job.id,
      row_number() over (order by s.n) + coalesce((select max(position) from phases where job_id = p_job.id),
      0),
      p_job.tenant_id, s.name
    from (
      select coalesce(t.phase, t.kind) as name, min(t.n) as n
      from unnest(p_specs) with ordinality as t(kind, key, input, after, after_failure, phase, provider,
        units, priority, run_at, max_attempts, timeout_seconds, idempotency_key, route, confirm, n)
      group by coalesce(t.phase, t.kind)
    ) as s
    where not exists (select from phases p where p.job_id = p_job.id and p.name = s.name);
    get diagnostics v_count = row_count;
    if v_count > 0 and (select count(*) from phases where job_id = p_job.id) > 1000 then
      perform _refuse(422, 'too_many_phases', 'a job can have at most 1000 phases',
        '{"field": "tasks.phase"}');
    end if;
  end if;
end
$$;
comment on function penstock._add_phases(penstock.jobs, penstock.task_spec[]) is
  'Creates the phases that the tasks name (default: the name of the kind). A job type with declared phases '
  'accepts only those.';

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

create or replace function penstock._add_edges(p_job_id uuid, p_specs penstock.task_spec[], p_ids bigint[])
returns bigint[] language plpgsql set search_path = penstock, pg_temp
  -- The planner does not know the number of tasks; a nested loop over them would be quadratic.
  set enable_nestloop = off set jit = off as $$
declare
  v_parents integer[];
  v_children integer[];
  v_existing bigint[];
begin
  with spec as materialized (
    select t.key, t.after, t.n
      from unnest(p_specs) with ordinality as t(kind, key, input, after, after_failure, phase, provider,
        units, priority, run_at, max_attempts, timeout_seconds, idempotency_key, route, confirm, n)
  ), wanted as materialized (
    select distinct c.n, a.key from spec c cross join lateral unnest(c.after) as a(key)
  )
  select array_agg(p.n order by w.n), array_agg(w.n order by w.n) into v_parents, v_children
  from wanted w join spec p on p.key = w.key;
  -- A list with every parent before its children cannot have a cycle.
  if exists (select from unnest(v_parents, v_children) as e(parent, child) where e.parent >= e.child) then
    perform _check_cycles(v_parents, v_children, cardinality(p_specs));
  end if;
  insert into edges (job_id, parent_id, child_id)
  select p_job_id, p_ids[e.parent], p_ids[e.child] from unnest(v_parents, v_children) as e(parent, child);

  with own as materialized (
    select s.key from unnest(p_specs) as s where s.key is not null
  ), wanted as materialized (
    select distinct c.n, a.key
      from unnest(p_specs) with ordinality as c(kind, key, input, after, after_failure, phase, provider,
        units, priority, run_at, max_attempts, timeout_seconds, idempotency_key, route, confirm, n)
    cross join lateral unnest(c.after) as a(key)
  ), others as materialized (
    select w.n, w.key from wanted w where not exists (select from own o where o.key = w.key)
  ), added as (
    insert into edges (job_id, parent_id, child_id)
    select p_job_id, t.id, p_ids[o.n] from others o
    cross join lateral (select x.id from tasks x where x.job_id = p_job_id and x.key = o.key offset 0) as t
    returning parent_id
  )
  select array_agg(distinct parent_id) into v_existing from added;
  return v_existing;
end
$$;
comment on function penstock._add_edges(uuid, penstock.task_spec[], bigint[]) is
  'Inserts the dependencies of new tasks and returns the ids of parents that existed before.';

create or replace function penstock._lock_jobs_and_tasks(p_job_ids uuid[], p_task_jobs uuid[],
  p_task_ids bigint[])
returns void language plpgsql set search_path = penstock, pg_temp set enable_seqscan = off
  set jit = off as $$
declare
  v_locked bigint[] := array(
    select task_id from leases where task_id = any (p_task_ids) for no key update skip locked);
  v_busy bigint;
begin
  -- A transaction that ends a task locks its lease, its children, the phases and the job, in this order;
  -- so does this function. It must not wait for one lease while it holds others, so it gives up instead.
  select min(l.task_id) into v_busy from leases l
  where l.task_id = any (p_task_ids) and not exists (select from unnest(v_locked) as m where m = l.task_id);
  if v_busy is not null then
    raise exception using errcode = 'PS001', message = v_busy;
  end if;
  update leases set has_children = true where task_id = any (v_locked);
  -- In one order: two replays or additions may name the same tasks.
  perform 1 from unnest(p_task_jobs, p_task_ids) as g(job_id, id)
  join tasks t on t.job_id = g.job_id and t.id = g.id
  join ready r on r.tenant_id = t.tenant_id and r.lane_id = t.lane_id and r.priority = t.priority
    and r.job_id = t.job_id and r.task_id = t.id
  order by r.job_id, r.task_id for update of r;
  with r as (
    update ready r set has_children = true from unnest(p_task_jobs, p_task_ids) as g(job_id, id)
    join tasks t on t.job_id = g.job_id and t.id = g.id
    where r.tenant_id = t.tenant_id and r.lane_id = t.lane_id and r.priority = t.priority
      and r.job_id = t.job_id
      and r.task_id = t.id returning r.task_id
  )
  select v_locked || coalesce(array_agg(task_id), '{}') into v_locked from r;
  perform 1 from parked p
  join unnest(p_task_jobs, p_task_ids) as g(job_id, id) on p.job_id = g.job_id and p.task_id = g.id
  order by p.job_id, p.task_id for update of p;
  with p as (
    update parked p set has_children = true from unnest(p_task_jobs, p_task_ids) as g(job_id, id)
    where p.job_id = g.job_id and p.task_id = g.id returning p.task_id
  )
  select v_locked || coalesce(array_agg(task_id), '{}') into v_locked from p;
  perform 1 from phases where job_id = any (p_job_ids) order by job_id, position for update;
  perform 1 from jobs where id = any (p_job_ids) order by id for no key update;
  -- A task that was found in none of the tables has ended, or was moved or queued again in the meantime.
  if exists (select from unnest(p_task_jobs, p_task_ids) as g(job_id, id)
      where not exists (select from unnest(v_locked) as m where m = g.id)
        and not exists (select from results r where r.job_id = g.job_id and r.task_id = g.id)) then
    raise exception using errcode = 'PS001', message = '0';
  end if;
end
$$;
comment on function penstock._lock_jobs_and_tasks(uuid[], uuid[], bigint[]) is
  'Locks jobs with their phases, and tasks in whichever state they are, so that none of them ends before '
  'this transaction. Raises PS001 if a task is locked or was moved meanwhile: the caller rolls back to '
  'release all locks, and tries again.';

create or replace function penstock._wait_for_lease(p_task_id bigint)
returns void language plpgsql set search_path = penstock, pg_temp as $$
begin
  perform 1 from leases where task_id = p_task_id for no key update;
  raise exception using errcode = 'PS001';
exception when sqlstate 'PS001' then
  null;  -- the rollback of this block has released the lock
end
$$;
comment on function penstock._wait_for_lease(bigint) is
  'Waits until no other transaction has locked this lease, and keeps no lock.';

create or replace function penstock._without_known_tasks(p_job_id uuid, p_specs penstock.task_spec[])
returns penstock.task_spec[] language plpgsql stable set search_path = penstock, pg_temp as $$
begin
  return array(
    select p_specs[x.n] from (
      select s.n, s.idempotency_key, row_number() over (partition by s.idempotency_key order by s.n) as nth
      from unnest(p_specs) with ordinality as s(kind, key, input, after, after_failure, phase, provider,
        units, priority, run_at, max_attempts, timeout_seconds, idempotency_key, route, confirm, n)) as x
    where x.idempotency_key is null or (x.nth = 1 and not exists (
      select from tasks t where t.job_id = p_job_id and t.idempotency_key = x.idempotency_key))
    order by x.n);
end
$$;
comment on function penstock._without_known_tasks(uuid, penstock.task_spec[]) is
  'Removes tasks whose idempotency key the job already has, or that repeat a key of this list.';

create or replace function penstock._insert_tasks(
  p_job penstock.jobs, p_specs penstock.task_spec[], p_ids bigint[], p_now timestamptz)
returns penstock.ready[] language plpgsql set search_path = penstock, pg_temp as $$
declare
  v_rows ready[];
begin
  with spec as (
    select * from unnest(p_specs) with ordinality as t(kind, key, input, after, after_failure, phase,
      provider, units, priority, run_at, max_attempts, timeout_seconds, idempotency_key, route, confirm, n)
  ), route as materialized (
    select s.kind, s.provider, s.phase, s.is_gated,
      _lane(s.kind, s.provider, p_job.tenant_id, s.is_gated) as lane_id, p.position
    from (
      -- Sorted, so that two calls that create the same lanes cannot deadlock.
      select distinct kind, provider, phase, provider is not null or units is not null as is_gated
      from spec order by 1, 2, 3, 4) as s
    cross join lateral (
      select x.position from phases x where x.job_id = p_job.id
      order by (x.name = coalesce(s.phase, s.kind)) desc, x.position limit 1) as p
  ), made as (
    insert into tasks (job_id, id, tenant_id, created_at, lane_id, phase, priority, max_attempts,
      run_after_failure,
      timeout_seconds, kind, key, idempotency_key, input, units, route, confirm)
    select p_job.id, p_ids[t.n], p_job.tenant_id, p_now, r.lane_id, r.position,
      coalesce(t.priority, p_job.priority),
      t.max_attempts, coalesce(t.after_failure = 'run', false), t.timeout_seconds, t.kind, t.key,
        t.idempotency_key,
      case when jsonb_typeof(t.input) = 'object' then t.input else '{}' end, t.units, t.route,
      coalesce(t.confirm, false)
    from spec t
    join route r on r.kind = t.kind and coalesce(r.provider, '') = coalesce(t.provider, '')
      and coalesce(r.phase, '') = coalesce(t.phase, '')
      and r.is_gated = (t.provider is not null or t.units is not null)
    returning id, lane_id, phase, priority
  ), counted as (
    update phases p set total = p.total + c.n
    from (select phase, count(*)::integer as n from made group by phase) as c
    where p.job_id = p_job.id and p.position = c.phase
  )
  select array_agg(row(m.id, 0, p_job.id, p_job.tenant_id, m.lane_id, m.priority, m.phase, 0, 0, false,
    false)::ready
    order by m.id) into v_rows from made m;
  return v_rows;
end
$$;
comment on function penstock._insert_tasks(penstock.jobs, penstock.task_spec[], bigint[], timestamptz) is
  'Inserts new tasks, counts them in their phases, and returns a ready row for each.';

create or replace function penstock._delay_throttled_tasks(
  p_specs penstock.task_spec[], p_delays jsonb, p_now timestamptz)
returns penstock.task_spec[] language plpgsql volatile set search_path = penstock, pg_temp as $$
begin
  -- A random part spreads the start times, so that the tasks do not all start at once.
  return array(
    select jsonb_populate_record(s, case when p_delays ? s.provider then
      jsonb_build_object('run_at', greatest(s.run_at,
        p_now + make_interval(secs => (0.5 + random()) * (p_delays ->> s.provider)::double precision)))
      else '{}' end)
    from unnest(p_specs) as s);
end
$$;
comment on function penstock._delay_throttled_tasks(penstock.task_spec[], jsonb, timestamptz) is
  'Delays new tasks of providers above their backpressure threshold: {provider: seconds}.';

create or replace function penstock._add_tasks(p_job_id uuid, p_tasks jsonb)
returns bigint[] language sql set search_path = penstock, pg_temp as $$
  select _add_tasks_of(p_job_id, p_tasks, null, false)
$$;
comment on function penstock._add_tasks(uuid, jsonb) is
  'Adds tasks that a function of this schema wrote, such as the task that loads the rows of a bulk job.';

create or replace function penstock._add_tasks_of(
  p_job_id uuid, p_tasks jsonb, p_starters text[], p_is_raw boolean)
returns bigint[] language plpgsql set search_path = penstock, pg_temp as $$
declare
  v_now timestamptz := _now();
  v_job jobs;
  v_specs task_spec[] := _parse_tasks(p_tasks);
  v_ids bigint[];
  v_uses record;
  v_parents bigint[];
  v_ended_parents bigint[];
  v_rows ready[];
  v_freed ready[];
  v_deltas phase_delta[];
  v_delays jsonb := '{}';
begin
  perform _check_tasks(v_specs);
  select * into strict v_job from jobs where id = p_job_id;
  v_specs := _apply_policy(v_job, v_specs,
    case when p_is_raw then _starters(v_job.tenant_id, auth.uid()) else p_starters end, p_is_raw);
  -- One pass over the list instead of one for each question, because a list can have 100,000 tasks.
  select bool_or(s.idempotency_key is not null) as idempotency_keys,
    bool_or(s.key is not null or s.after is not null) as keys, bool_or(s.after is not null) as parents,
    bool_or(s.route is not null) as routes,
    bool_or(s.provider is not null or s.units is not null or s.route is not null) as limits,
    bool_or(s.run_at > v_now) as times, bool_or(s.confirm) as confirmations
  into v_uses from unnest(v_specs) as s;
  if v_uses.idempotency_keys then
    v_specs := _without_known_tasks(p_job_id, v_specs);
    if cardinality(v_specs) = 0 then
      return '{}';
    end if;
  end if;
  if v_uses.keys then
    perform _check_keys(p_job_id, v_specs);
  end if;
  perform _add_phases(v_job, v_specs);
  if v_uses.routes then
    v_specs := _choose_providers(v_job, v_specs);
  end if;
  if v_uses.limits then
    v_delays := _check_demands(v_job, v_specs);
  end if;
  v_ids := array(select nextval('task_ids') from generate_series(1, cardinality(v_specs)));
  v_rows := _insert_tasks(v_job, v_specs, v_ids, v_now);

  if v_uses.parents then
    v_parents := _add_edges(p_job_id, v_specs, v_ids);
    v_ended_parents := array(select task_id from results where job_id = p_job_id
      and task_id = any (v_parents));
  end if;
  if v_delays <> '{}' then
    v_specs := _delay_throttled_tasks(v_specs, v_delays, v_now);
  end if;
  if v_uses.parents or v_uses.times or v_uses.confirmations or v_delays <> '{}'
     or v_job.status = 'paused' or v_job.run_at > v_now then
    v_rows := _park_new_tasks(v_job, v_specs, v_rows);
  end if;
  if cardinality(v_ended_parents) > 0 then
    select s.deltas, s.freed into v_deltas, v_freed
      from _settle_children(p_job_id, v_ended_parents, v_ids) as s;
    perform _move_progress(v_deltas);
  end if;
  perform _queue(v_rows || v_freed, false);
  return v_ids;
end
$$;
comment on function penstock._add_tasks_of(uuid, jsonb, text[], boolean) is
  'Checks, inserts and queues new tasks of a job, and returns their ids. p_starters and p_is_raw: see '
  '_apply_policy.';

create or replace function penstock._park_new_tasks(
  p_job penstock.jobs, p_specs penstock.task_spec[], p_rows penstock.ready[])
returns penstock.ready[] language plpgsql set search_path = penstock, pg_temp as $$
declare
  v_now timestamptz := _now();
  v_rows ready[];
begin
  with placed as (
    select (u.r).*,
      (select count(*) from edges e where e.job_id = p_job.id and e.child_id = (u.r).task_id) as parents,
      exists (select from edges e where e.job_id = p_job.id and e.parent_id = (u.r).task_id) as children,
      greatest(p_job.run_at, (p_specs[u.n]).run_at) as due,
        coalesce((p_specs[u.n]).confirm, false) as confirm, u.n
    from (select r, row_number() over () as n from unnest(p_rows) as r) as u
  ), kept as (
    insert into parked (task_id, job_id, tenant_id, lane_id, priority, phase, has_parents, has_children,
      pending,
      until, reason, waits_for)
    select task_id, job_id, tenant_id, lane_id, priority, phase, parents > 0, children, parents,
      case when confirm then 'infinity'
        when parents = 0 and p_job.status = 'paused' and coalesce(due, v_now) <= v_now then 'infinity'
        else coalesce(due, '-infinity') end,
      case when confirm then 'confirmation' when parents > 0 then 'after' when due > v_now then 'time'
        else 'paused' end,
      case when confirm then 'confirm' end
    from placed where parents > 0 or due > v_now or p_job.status = 'paused' or confirm
    returning task_id
  )
  select array_agg(row(p.task_id, 0, p.job_id, p.tenant_id, p.lane_id, p.priority, p.phase, 0, 0, false,
    p.children)::ready order by p.task_id) into v_rows
  from placed p
  where not (p.parents > 0 or coalesce(p.due > v_now, false) or p_job.status = 'paused' or p.confirm);
  -- Upkeep sleeps for seconds, so tasks that are due earlier wake it.
  perform pg_notify('penstock', 'chores') where exists (
    select from parked where job_id = p_job.id and pending = 0 and until > v_now
      and until < v_now + interval '5 seconds');
  return v_rows;
end
$$;
comment on function penstock._park_new_tasks(penstock.jobs, penstock.task_spec[], penstock.ready[]) is
  'Parks the new tasks that must not run yet and returns the ready rows of the others.';

create or replace function penstock._lock_descendants(p_job_id uuid, p_parent_ids bigint[])
returns void language plpgsql set search_path = penstock, pg_temp as $$
begin
  -- The descendants of a failed parent are canceled. Two failures
  -- can share descendants, so all are locked in one order.
  perform 1 from parked where job_id = p_job_id and task_id = any (array(
    with recursive below as (
      select e.child_id, r.outcome <> 'succeeded' as is_failed from unnest(p_parent_ids) as g(id)
      cross join lateral (
        select x.child_id from edges x where x.job_id = p_job_id and x.parent_id = g.id offset 0) as e
      cross join lateral (
        select x.outcome from results x where x.job_id = p_job_id and x.task_id = g.id offset 0) as r
      union
      select e.child_id, true from below b
      cross join lateral (
        select x.child_id from edges x where x.job_id = p_job_id and x.parent_id = b.child_id offset 0) as e
      where b.is_failed
    ) select child_id from below))
  order by task_id for update;
end
$$;
comment on function penstock._lock_descendants(uuid, bigint[]) is
  'Locks the parked tasks that the end of these parents may change.';

create or replace function penstock._settle_children(
  p_job_id uuid, p_parent_ids bigint[], p_child_ids bigint[] default null,
  out deltas penstock.phase_delta[], out freed penstock.ready[])
language plpgsql set search_path = penstock, pg_temp set enable_seqscan = off set enable_hashjoin = off
  set enable_mergejoin = off set jit = off as $$
declare
  v_now timestamptz := _now();
  v_parents bigint[] := p_parent_ids;
  v_doomed bigint[];
  v_free bigint[] := '{}';
  v_new_deltas phase_delta[];
begin
  deltas := '{}';
  -- p_child_ids names new tasks of this transaction, which need no lock.
  if p_child_ids is null then
    perform _lock_descendants(p_job_id, p_parent_ids);
  end if;

  loop
    -- The lateral subqueries force index probes; a join might read all dependencies of the job.
    with child as (
      select e.child_id, count(*)::integer as ended, bool_or(r.outcome <> 'succeeded') as is_failed
      from unnest(v_parents) as g(id)
      cross join lateral (
        select x.child_id from edges x where x.job_id = p_job_id and x.parent_id = g.id offset 0) as e
      cross join lateral (
        select x.outcome from results x where x.job_id = p_job_id and x.task_id = g.id offset 0) as r
      where e.child_id >= coalesce(p_child_ids[1], 0)
      group by e.child_id
    ), counted as (
      -- A child with pending = 0 was already released when
      -- this parent ended before (the parent was retried).
      update parked p set pending = p.pending - c.ended from (
        select k.tid, child.ended, child.is_failed and not t.run_after_failure as is_doomed from child
        cross join lateral (
          select x.ctid as tid from parked x
          where x.job_id = p_job_id and x.task_id = child.child_id and x.pending > 0 offset 0) as k
        cross join lateral (
          select x.run_after_failure from tasks x
          where x.job_id = p_job_id and x.id = child.child_id offset 0) as t
      ) as c
      where p.ctid = c.tid returning p.task_id, p.pending, c.is_doomed
    )
    select array_agg(task_id) filter (where is_doomed),
      v_free || coalesce(array_agg(task_id) filter (where pending = 0 and not is_doomed), '{}')
    into v_doomed, v_free from counted;
    exit when v_doomed is null;

    with gone as (
      delete from parked where job_id = p_job_id and task_id = any (v_doomed) returning *
    ), ended as (
      insert into results (job_id, task_id, tenant_id, finished_at, attempt, phase, outcome, error_code,
        error_message)
      select job_id, task_id, tenant_id, v_now, 0, phase, 'canceled', 'parent_failed',
        'a parent task did not succeed'
      from gone
    ), counted as (
      select phase, count(*)::integer as n from gone group by phase
    )
    select (select array_agg(row(p_job_id, phase, 0, 0, n)::phase_delta) from counted),
      (select array_agg(task_id) from gone where has_children) into v_new_deltas, v_parents;
    deltas := deltas || v_new_deltas;
    exit when v_parents is null;
  end loop;

  if cardinality(v_free) > 0 then
    -- Tasks of a paused job are queued too: the claim parks them again, under a lock that a resume respects.
    with gone as (
      delete from parked where job_id = p_job_id and task_id = any (v_free) and until <= v_now returning *
    )
    select array_agg(row(task_id, 0, job_id, tenant_id, lane_id, priority, phase, failures, deaths,
      has_parents, has_children)::ready order by task_id) into freed from gone;
  end if;
end
$$;
comment on function penstock._settle_children(uuid, bigint[], bigint[]) is
  'Updates the children of parents that have ended. Children of a parent that did not succeed are canceled '
  'with their descendants. Returns the changes of the phase counts, and the children without open parents, '
  'which the caller queues once it has all its locks.';

create or replace function penstock._move_progress(p_deltas penstock.phase_delta[])
returns void language plpgsql set search_path = penstock, pg_temp as $$
declare
  v_delta record;
  v_open integer;
  v_full uuid[] := '{}';
begin
  -- One by one and always in the same order: no deadlocks, and a plan that does not depend on statistics.
  for v_delta in
    select d.job_id, d.position, sum(d.succeeded)::integer as succeeded, sum(d.failed)::integer as failed,
      sum(d.canceled)::integer as canceled
    from unnest(p_deltas) as d group by d.job_id, d.position order by d.job_id, d.position
  loop
    update phases p set succeeded = p.succeeded + v_delta.succeeded, failed = p.failed + v_delta.failed,
      canceled = p.canceled + v_delta.canceled
    where p.job_id = v_delta.job_id and p.position = v_delta.position
    returning p.total - p.succeeded - p.failed - p.canceled into v_open;
    if v_open = 0 then
      v_full := v_full || v_delta.job_id;
    end if;
  end loop;
  if cardinality(v_full) > 0 then
    perform _finish_jobs(v_full);
  end if;
end
$$;
comment on function penstock._move_progress(penstock.phase_delta[]) is
  'Adds deltas to the counts of phases, locked in one order, and ends the jobs whose tasks have all ended.';

create or replace function penstock._task_state(p_job_id uuid, p_task_id bigint)
returns table (state text, reason text, until timestamptz, attempt integer, started_at timestamptz,
  worker_id text, fraction real, message text)
language sql stable security definer set search_path = penstock, pg_temp as $$
  select 'running', null::text, l.expires_at, l.failures + l.deaths + 1, l.started_at, l.worker_id,
    l.fraction, l.message
  from leases l where l.task_id = p_task_id and l.job_id = p_job_id
    and (_is_service() or l.tenant_id in (select my_tenants()))
  union all
  select case when p.pending > 0 then 'blocked' when p.wait_id is not null then 'waiting' else 'queued' end,
    case when p.pending > 0
      then format('%s parent task%s', p.pending, case when p.pending = 1 then '' else 's' end)
      else p.reason end,
    nullif(nullif(p.until, 'infinity'), '-infinity'), p.failures + p.deaths, null, null, null, null
  from parked p where p.job_id = p_job_id and p.task_id = p_task_id
    and (_is_service() or p.tenant_id in (select my_tenants()))
$$;
comment on function penstock._task_state(uuid, bigint) is
  'The state of a task that has not ended, if the caller may see it. No row: the task is ready to be '
  'claimed.';
