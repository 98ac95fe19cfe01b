-- Tasks: what they are and how they hang together. Where they stand is in queue.sql and leases.sql.

create or replace function penstock._parse_tasks(p_tasks jsonb)
returns penstock.task_spec[] language plpgsql stable set search_path = penstock, pg_temp as $$
declare
  c_fields constant text[] := array['kind', 'key', 'input', 'after', 'after_failure', 'phase', 'provider', 'units',
    'priority', 'run_at', 'max_attempts', 'timeout_seconds', 'idempotency_key', 'route', 'confirm'];
  v_limit integer := (_setting('max_tasks_per_call'))::integer;
  v_index integer;
  v_task jsonb;
  v_field text;
begin
  if jsonb_typeof(p_tasks) is distinct from 'array' or jsonb_array_length(p_tasks) = 0 then
    perform _refuse(422, 'no_tasks', 'tasks is an array with at least one task', '{"field": "tasks"}');
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
    perform _refuse(422, 'invalid_task', format('task %s is not an object', v_index),
      jsonb_build_object('field', format('tasks[%s]', v_index)));
  elsif v_task is not null then
    perform _refuse(422, 'unknown_field', format('task %s has an unknown field %L', v_index, left(k, 100)),
      jsonb_build_object('field', format('tasks[%s].%s', v_index, left(k, 100))))
    from jsonb_object_keys(v_task - c_fields) as k limit 1;
  end if;
  return array(select t from jsonb_populate_recordset(null::task_spec, p_tasks) as t);
exception when data_exception then
  -- Which one it is, field by field: slow, but only here.
  for v_index, v_field, v_task in
    select e.n - 1, k, jsonb_build_object(k, e.task -> k)
    from jsonb_array_elements(p_tasks) with ordinality as e(task, n) cross join jsonb_object_keys(e.task) as k
    where k in ('after', 'priority', 'run_at', 'max_attempts', 'timeout_seconds', 'confirm') order by e.n
  loop
    begin
      perform jsonb_populate_record(null::task_spec, v_task);
    exception when data_exception then
      perform _refuse(422, 'invalid_task', format('task %s has %s that is not right: %s', v_index, v_field, left(sqlerrm, 200)),
        jsonb_build_object('field', format('tasks[%s].%s', v_index, v_field)));
    end;
  end loop;
  raise;
end
$$;
comment on function penstock._parse_tasks(jsonb) is 'Reads p_tasks: its shape, its size, no unknown field.';

create or replace function penstock._check_tasks(p_specs penstock.task_spec[])
returns void language plpgsql stable set search_path = penstock, pg_temp as $$
declare
  v_limit integer := (_setting('max_input_bytes'))::integer;
  v_index integer;
  v_bad text[];
begin
  -- field, code, problem of the first task that is not right
  select x.n - 1, x.bad into v_index, v_bad from (
    select t.n, case
      when k.name is null then array['kind', 'unknown_kind', format('is of an unknown kind %s', coalesce(quote_literal(left(t.kind, 100)), '(none)'))]
      when jsonb_typeof(t.input) not in ('object', 'null') then array['input', 'invalid_input', 'has an input that is not an object']
      when octet_length(t.input::text) > v_limit then array['input', 'too_large', format('has an input of %s bytes; the limit is %s', octet_length(t.input::text), v_limit)]
      when octet_length(t.input::text) > 128 and not _is_readable(t.input) then array['input', 'unreadable', 'has an input nested deeper than 64 levels, or with a number beyond 1e308']
      when octet_length(t.input::text) > 8192 and _has_blob(t.input) then array['input', 'file_in_input', 'has a file in its input, as base64']
      when t.after is not null and t.input ? 'after' then array['input', 'invalid_input', 'comes after others: input.after is where their outputs go']
      when length(t.key) not between 1 and 255 then array['key', 'invalid_key', 'has a key that is not 1 to 255 characters']
      when length(t.idempotency_key) not between 1 and 255 then array['idempotency_key', 'invalid_key', 'has an idempotency key that is not 1 to 255 characters']
      when length(t.provider) not between 1 and 200 then array['provider', 'invalid_provider', 'has a provider that is not 1 to 200 characters']
      when length(t.phase) not between 1 and 200 then array['phase', 'invalid_phase', 'has a phase that is not 1 to 200 characters']
      when t.priority not between 0 and 10 then array['priority', 'invalid_priority', 'has a priority that is not 0 to 10']
      when t.max_attempts not between 1 and 100 then array['max_attempts', 'invalid_attempts', 'has max_attempts that is not 1 to 100']
      when not (t.timeout_seconds > 0 and t.timeout_seconds <= 31622400) then array['timeout_seconds', 'invalid_timeout', 'has a timeout that is not more than 0 and at most a year']
      when not _is_time(t.run_at) then array['run_at', 'invalid_run_at', 'has a run_at that is not in the years 2000 to 9998']
      when t.confirm and t.run_at is not null then array['confirm', 'invalid_task', 'waits for a confirmation or for a time, not for both']
      when t.after_failure not in ('cancel', 'run') then array['after_failure', 'invalid_task', 'has after_failure that is not cancel or run']
      when jsonb_typeof(t.units) not in ('object', 'null') or octet_length(t.units::text) > 10000 then array['units', 'invalid_units', 'has units that are not a small object']
      when t.provider is not null and t.route is not null and t.route <> 'null' then array['route', 'invalid_route', 'names a provider and a route: one of them decides']
      end as bad
    from unnest(p_specs) with ordinality as t(kind, key, input, after, after_failure, phase, provider, units, priority,
      run_at, max_attempts, timeout_seconds, idempotency_key, route, confirm, n)
    left join kinds k on k.name = t.kind
  ) as x where x.bad is not null limit 1;
  if v_bad is not null then
    perform _refuse(case v_bad[2] when 'too_large' then 413 else 422 end, v_bad[2],
      format('task %s %s', v_index, v_bad[3]), jsonb_build_object('field', format('tasks[%s].%s', v_index, v_bad[1])),
      case v_bad[2] when 'unknown_kind' then 'Declare it with penstock.define_kind, or start a worker that has it.'
        when 'too_large' then 'Keep files in object storage and pass their path.'
        when 'file_in_input' then 'Upload it (penstock.begin_upload, POST /api/uploads), and pass its id or path.' end);
  end if;
end
$$;
comment on function penstock._check_tasks(penstock.task_spec[]) is 'Refuses the first task that is not right, by its place and field.';

create or replace function penstock._check_cycles(p_parents integer[], p_children integer[], p_count integer)
returns void language plpgsql immutable set search_path = penstock, pg_temp as $$
declare
  v_waits integer[] := array_fill(0, array[p_count]);
  v_first integer[] := array_fill(0, array[p_count]);
  v_next integer[] := array_fill(0, array[cardinality(p_parents)]);
  v_free integer[] := '{}';
  v_done integer := 0;
  v_edge integer;
  v_child integer;
begin
  -- Tasks that wait for nothing are taken away, again and again; what is left over waits for itself.
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
    perform _refuse(422, 'cycle', 'tasks come after each other in a circle',
      jsonb_build_object('field', format('tasks[%s].after',
        (select min(i) - 1 from generate_series(1, p_count) as i where v_waits[i] > 0))));
  end if;
end
$$;
comment on function penstock._check_cycles(integer[], integer[], integer) is 'Refuses a graph with a circle. Linear in tasks and edges.';

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
    where s.phase is not null and not exists (select from phases p where p.job_id = p_job.id and p.name = s.phase) limit 1;
    if found then
      perform _refuse(422, 'unknown_phase', format('the job type %L has no phase %L', p_job.type, v_unknown),
        jsonb_build_object('field', 'tasks.phase', 'phase', v_unknown));
    end if;
  else
    insert into phases (job_id, position, tenant_id, name)
    select p_job.id, row_number() over (order by s.n) + coalesce((select max(position) from phases where job_id = p_job.id), 0),
      p_job.tenant_id, s.name
    from (
      select coalesce(t.phase, t.kind) as name, min(t.n) as n
      from unnest(p_specs) with ordinality as t(kind, key, input, after, after_failure, phase, provider, units, priority,
        run_at, max_attempts, timeout_seconds, idempotency_key, route, confirm, n)
      group by coalesce(t.phase, t.kind)
    ) as s
    where not exists (select from phases p where p.job_id = p_job.id and p.name = s.name);
    get diagnostics v_count = row_count;
    if v_count > 0 and (select count(*) from phases where job_id = p_job.id) > 1000 then
      perform _refuse(422, 'too_many_phases', 'a job has at most 1000 phases', '{"field": "tasks.phase"}');
    end if;
  end if;
end
$$;
comment on function penstock._add_phases(penstock.jobs, penstock.task_spec[]) is
  'A declared type has its phases; otherwise they are made as tasks name them, a kind''s name standing in for none.';

create or replace function penstock._check_keys(p_job_id uuid, p_specs penstock.task_spec[])
returns void language plpgsql stable set search_path = penstock, pg_temp
  -- Nobody knows how many tasks there are when the plan is made: a nested loop over them would be quadratic.
  set enable_nestloop = off set jit = off as $$
declare
  v_key text;
begin
  select s.key into v_key from unnest(p_specs) as s where s.key is not null group by s.key having count(*) > 1 limit 1;
  -- The lateral look-ups keep the plan: a probe for each key, never all of the job's tasks.
  if v_key is null and exists (select from tasks where job_id = p_job_id and key is not null) then
    select s.key into v_key from unnest(p_specs) as s
    cross join lateral (select from tasks x where x.job_id = p_job_id and x.key = s.key offset 0) as t limit 1;
  end if;
  if v_key is not null then
    perform _refuse(409, 'duplicate_key', format('two tasks of one job have the key %L', v_key),
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
  left join lateral (select true as is_there from tasks x where x.job_id = p_job_id and x.key = o.key offset 0) as t on true
  where t.is_there is null limit 1;
  if found then
    perform _refuse(422, 'unknown_parent', format('no task of this job has the key %L', left(v_key, 255)),
      jsonb_build_object('field', 'tasks.after', 'key', left(v_key, 255)));
  end if;
end
$$;
comment on function penstock._check_keys(uuid, penstock.task_spec[]) is 'Keys are unique in the job and every parent exists.';

create or replace function penstock._add_edges(p_job_id uuid, p_specs penstock.task_spec[], p_ids bigint[])
returns bigint[] language plpgsql set search_path = penstock, pg_temp
  -- Nobody knows how many tasks there are when the plan is made: a nested loop over them would be quadratic.
  set enable_nestloop = off set jit = off as $$
declare
  v_parents integer[];
  v_children integer[];
  v_existing bigint[];
begin
  with spec as materialized (
    select t.key, t.after, t.n from unnest(p_specs) with ordinality as t(kind, key, input, after, after_failure, phase,
      provider, units, priority, run_at, max_attempts, timeout_seconds, idempotency_key, route, confirm, n)
  ), wanted as materialized (
    select distinct c.n, a.key from spec c cross join lateral unnest(c.after) as a(key)
  )
  select array_agg(p.n order by w.n), array_agg(w.n order by w.n) into v_parents, v_children
  from wanted w join spec p on p.key = w.key;
  -- A list in which parents stand before their children cannot have a circle.
  if exists (select from unnest(v_parents, v_children) as e(parent, child) where e.parent >= e.child) then
    perform _check_cycles(v_parents, v_children, cardinality(p_specs));
  end if;
  insert into edges (job_id, parent_id, child_id)
  select p_job_id, p_ids[e.parent], p_ids[e.child] from unnest(v_parents, v_children) as e(parent, child);

  with own as materialized (
    select s.key from unnest(p_specs) as s where s.key is not null
  ), wanted as materialized (
    select distinct c.n, a.key from unnest(p_specs) with ordinality as c(kind, key, input, after, after_failure, phase,
      provider, units, priority, run_at, max_attempts, timeout_seconds, idempotency_key, route, confirm, n)
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
comment on function penstock._add_edges(uuid, penstock.task_spec[], bigint[]) is 'Writes the graph of new tasks and returns the parents that were there before.';

create or replace function penstock._hold_jobs(p_job_ids uuid[], p_held_jobs uuid[], p_held bigint[])
returns void language plpgsql set search_path = penstock, pg_temp set enable_seqscan = off set jit = off as $$
declare
  v_met bigint[] := array(select task_id from leases where task_id = any (p_held) for no key update skip locked);
  v_busy bigint;
begin
  -- Whoever ends a task takes its lease, then its children, then the phases and the job. So do we; but a lease that
  -- another one has is not waited for with others in hand.
  select min(l.task_id) into v_busy from leases l
  where l.task_id = any (p_held) and not exists (select from unnest(v_met) as m where m = l.task_id);
  if v_busy is not null then
    raise exception using errcode = 'PS001', message = v_busy;
  end if;
  update leases set has_children = true where task_id = any (v_met);
  with r as (
    update ready r set has_children = true from unnest(p_held_jobs, p_held) as g(job_id, id)
    join tasks t on t.job_id = g.job_id and t.id = g.id
    where r.tenant_id = t.tenant_id and r.lane_id = t.lane_id and r.priority = t.priority and r.job_id = t.job_id
      and r.task_id = t.id returning r.task_id
  )
  select v_met || coalesce(array_agg(task_id), '{}') into v_met from r;
  perform 1 from parked p join unnest(p_held_jobs, p_held) as g(job_id, id) on p.job_id = g.job_id and p.task_id = g.id
  order by p.job_id, p.task_id for update of p;
  with p as (
    update parked p set has_children = true from unnest(p_held_jobs, p_held) as g(job_id, id)
    where p.job_id = g.job_id and p.task_id = g.id returning p.task_id
  )
  select v_met || coalesce(array_agg(task_id), '{}') into v_met from p;
  perform 1 from phases where job_id = any (p_job_ids) order by job_id, position for update;
  perform 1 from jobs where id = any (p_job_ids) order by id for no key update;
  -- One that was met nowhere has ended, or has moved or come back meanwhile.
  if exists (select from unnest(p_held_jobs, p_held) as g(job_id, id)
      where not exists (select from unnest(v_met) as m where m = g.id)
        and not exists (select from results r where r.job_id = g.job_id and r.task_id = g.id)) then
    raise exception using errcode = 'PS001', message = '0';
  end if;
end
$$;
comment on function penstock._hold_jobs(uuid[], uuid[], bigint[]) is
  'Locks jobs with their phases, and tasks of theirs wherever they stand, so that none of these ends before we do. Gives up with PS001 when they are changing hands: the caller lets go of everything and tries again.';

create or replace function penstock._await_lease(p_task_id bigint)
returns void language plpgsql set search_path = penstock, pg_temp as $$
begin
  perform 1 from leases where task_id = p_task_id for no key update;
  raise exception using errcode = 'PS001';
exception when sqlstate 'PS001' then
  null;  -- and the lock is gone again
end
$$;
comment on function penstock._await_lease(bigint) is 'Waits until whoever has this lease in hand is done, and takes nothing.';

create or replace function penstock._add_tasks(p_job_id uuid, p_tasks jsonb)
returns bigint[] language plpgsql set search_path = penstock, pg_temp as $$
declare
  v_now timestamptz := _now();
  v_job jobs;
  v_specs task_spec[] := _parse_tasks(p_tasks);
  v_count integer := cardinality(v_specs);
  v_ids bigint[];
  -- Of a long list each look costs as much as a part of the insert: one look for all.
  v_is_repeatable boolean;
  v_has_keys boolean;
  v_has_graph boolean;
  v_has_routes boolean;
  v_has_demands boolean;
  v_is_timed boolean;
  v_is_confirmed boolean;
  v_parents bigint[];
  v_ended bigint[];
  v_rows ready[];
  v_freed ready[];
  v_deltas phase_delta[];
  v_pressed jsonb := '{}';
begin
  perform _check_tasks(v_specs);
  select * into strict v_job from jobs where id = p_job_id;
  select bool_or(s.idempotency_key is not null), bool_or(s.key is not null or s.after is not null), bool_or(s.after is not null),
    bool_or(s.route is not null), bool_or(s.provider is not null or s.units is not null or s.route is not null), bool_or(s.run_at > v_now), bool_or(s.confirm)
  into v_is_repeatable, v_has_keys, v_has_graph, v_has_routes, v_has_demands, v_is_timed, v_is_confirmed from unnest(v_specs) as s;
  if v_is_repeatable then
    -- A repeated key is the same task: it is left out.
    v_specs := array(
      select v_specs[x.n] from (
        select s.n, s.idempotency_key, row_number() over (partition by s.idempotency_key order by s.n) as nth
        from unnest(v_specs) with ordinality as s(kind, key, input, after, after_failure, phase, provider, units,
          priority, run_at, max_attempts, timeout_seconds, idempotency_key, route, confirm, n)) as x
      where x.idempotency_key is null or (x.nth = 1 and not exists (
        select from tasks t where t.job_id = p_job_id and t.idempotency_key = x.idempotency_key))
      order by x.n);
    v_count := cardinality(v_specs);
    if v_count = 0 then
      return '{}';
    end if;
  end if;
  if v_has_keys then
    perform _check_keys(p_job_id, v_specs);
  end if;
  perform _add_phases(v_job, v_specs);
  if v_has_routes then
    v_specs := _choose_providers(v_job, v_specs);
  end if;
  if v_has_demands then
    v_pressed := _check_demands(v_job, v_specs);
  end if;
  v_ids := array(select nextval('task_ids') from generate_series(1, v_count));

  with spec as (
    select * from unnest(v_specs) with ordinality as t(kind, key, input, after, after_failure, phase, provider, units,
      priority, run_at, max_attempts, timeout_seconds, idempotency_key, route, confirm, n)
  ), route as materialized (
    select s.kind, s.provider, s.phase, s.is_gated, _lane(s.kind, s.provider, v_job.tenant_id, s.is_gated) as lane_id, p.position
    -- In one order: two who make the same lanes wait for each other one way only.
    from (select distinct kind, provider, phase, provider is not null or units is not null as is_gated from spec order by 1, 2, 3, 4) as s
    cross join lateral (
      select x.position from phases x where x.job_id = p_job_id
      order by (x.name = coalesce(s.phase, s.kind)) desc, x.position limit 1) as p
  ), made as (
    insert into tasks (job_id, id, tenant_id, created_at, lane_id, phase, priority, max_attempts, run_after_failure,
      timeout_seconds, kind, key, idempotency_key, input, units, route, confirm)
    select p_job_id, v_ids[t.n], v_job.tenant_id, v_now, r.lane_id, r.position, coalesce(t.priority, v_job.priority),
      t.max_attempts, coalesce(t.after_failure = 'run', false), t.timeout_seconds, t.kind, t.key, t.idempotency_key,
      case when jsonb_typeof(t.input) = 'object' then t.input else '{}' end, t.units, t.route, coalesce(t.confirm, false)
    from spec t
    join route r on r.kind = t.kind and coalesce(r.provider, '') = coalesce(t.provider, '')
      and coalesce(r.phase, '') = coalesce(t.phase, '') and r.is_gated = (t.provider is not null or t.units is not null)
    returning id, lane_id, phase, priority
  ), counted as (
    update phases p set total = p.total + c.n
    from (select phase, count(*)::integer as n from made group by phase) as c
    where p.job_id = p_job_id and p.position = c.phase
  )
  select array_agg(row(m.id, 0, p_job_id, v_job.tenant_id, m.lane_id, m.priority, m.phase, 0, 0, false, false)::ready
    order by m.id) into v_rows from made m;

  if v_has_graph then
    v_parents := _add_edges(p_job_id, v_specs, v_ids);
    v_ended := array(select task_id from results where job_id = p_job_id and task_id = any (v_parents));
  end if;
  if v_pressed <> '{}' then
    -- Past the threshold new work comes a little later, and not all at once.
    v_specs := array(
      select jsonb_populate_record(s, case when v_pressed ? s.provider then jsonb_build_object('run_at',
        greatest(s.run_at, v_now + make_interval(secs => (0.5 + random()) * (v_pressed ->> s.provider)::double precision))) else '{}' end)
      from unnest(v_specs) as s);
  end if;
  if v_has_graph or v_job.status = 'paused' or v_job.run_at > v_now or v_is_timed or v_is_confirmed or v_pressed <> '{}' then
    v_rows := _park_new(v_job, v_specs, v_rows);
  end if;
  if cardinality(v_ended) > 0 then
    select s.deltas, s.freed into v_deltas, v_freed from _settle_children(p_job_id, v_ended, v_ids) as s;
    perform _move_progress(v_deltas);
  end if;
  perform _queue(v_rows || v_freed, false);
  return v_ids;
end
$$;
comment on function penstock._add_tasks(uuid, jsonb) is 'Checks, writes and queues new tasks of a job.';

create or replace function penstock._park_new(p_job penstock.jobs, p_specs penstock.task_spec[], p_rows penstock.ready[])
returns penstock.ready[] language plpgsql set search_path = penstock, pg_temp as $$
declare
  v_now timestamptz := _now();
  v_rows ready[];
begin
  with placed as (
    select (u.r).*, (select count(*) from edges e where e.job_id = p_job.id and e.child_id = (u.r).task_id) as parents,
      exists (select from edges e where e.job_id = p_job.id and e.parent_id = (u.r).task_id) as children,
      greatest(p_job.run_at, (p_specs[u.n]).run_at) as due, coalesce((p_specs[u.n]).confirm, false) as confirm, u.n
    from (select r, row_number() over () as n from unnest(p_rows) as r) as u
  ), kept as (
    insert into parked (task_id, job_id, tenant_id, lane_id, priority, phase, has_parents, has_children, pending, until, reason, waits_for)
    select task_id, job_id, tenant_id, lane_id, priority, phase, parents > 0, children, parents,
      case when confirm then 'infinity' when parents = 0 and p_job.status = 'paused' and coalesce(due, v_now) <= v_now then 'infinity' else coalesce(due, '-infinity') end,
      case when confirm then 'confirmation' when parents > 0 then 'after' when due > v_now then 'time' else 'paused' end,
      case when confirm then 'confirm' end
    from placed where parents > 0 or due > v_now or p_job.status = 'paused' or confirm
    returning task_id
  )
  select array_agg(row(p.task_id, 0, p.job_id, p.tenant_id, p.lane_id, p.priority, p.phase, 0, 0, false, p.children)::ready
    order by p.task_id) into v_rows
  from placed p where not (p.parents > 0 or coalesce(p.due > v_now, false) or p_job.status = 'paused' or p.confirm);
  -- Upkeep sleeps for seconds: what is due before that is announced.
  perform pg_notify('penstock', 'chores') where exists (
    select from parked where job_id = p_job.id and pending = 0 and until > v_now and until < v_now + interval '5 seconds');
  return v_rows;
end
$$;
comment on function penstock._park_new(penstock.jobs, penstock.task_spec[], penstock.ready[]) is
  'Sets aside the new tasks that may not run yet and returns the others.';

create or replace function penstock._settle_children(
  p_job_id uuid, p_parent_ids bigint[], p_child_ids bigint[] default null, out deltas penstock.phase_delta[], out freed penstock.ready[])
language plpgsql set search_path = penstock, pg_temp set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off as $$
declare
  v_now timestamptz := _now();
  v_parents bigint[] := p_parent_ids;
  v_doomed bigint[];
  v_free bigint[] := '{}';
  v_some phase_delta[];
begin
  deltas := '{}';
  -- The lateral look-ups keep the plan: index probes for these parents and children, never all of the job's.
  -- What is named is new and ours. Of the others, all that may end here is locked first and in one order: two failures
  -- may have descendants in common.
  if p_child_ids is null then
    perform 1 from parked where job_id = p_job_id and task_id = any (array(
      with recursive below as (
        select e.child_id, r.outcome <> 'succeeded' as is_failed from unnest(p_parent_ids) as g(id)
        cross join lateral (select x.child_id from edges x where x.job_id = p_job_id and x.parent_id = g.id offset 0) as e
        cross join lateral (select x.outcome from results x where x.job_id = p_job_id and x.task_id = g.id offset 0) as r
        union
        select e.child_id, true from below b
        cross join lateral (select x.child_id from edges x where x.job_id = p_job_id and x.parent_id = b.child_id offset 0) as e
        where b.is_failed
      ) select child_id from below))
    order by task_id for update;
  end if;

  loop
    with child as (
      select e.child_id, count(*)::integer as ended, bool_or(r.outcome <> 'succeeded') as is_failed
      from unnest(v_parents) as g(id)
      cross join lateral (select x.child_id from edges x where x.job_id = p_job_id and x.parent_id = g.id offset 0) as e
      cross join lateral (select x.outcome from results x where x.job_id = p_job_id and x.task_id = g.id offset 0) as r
      where e.child_id >= coalesce(p_child_ids[1], 0)
      group by e.child_id
    ), counted as (
      -- What waits for nothing has been released before, by an end of a parent that now ended again.
      update parked p set pending = p.pending - c.ended from (
        select k.tid, child.ended, child.is_failed and not t.run_after_failure as is_doomed from child
        cross join lateral (
          select x.ctid as tid from parked x where x.job_id = p_job_id and x.task_id = child.child_id and x.pending > 0 offset 0) as k
        cross join lateral (select x.run_after_failure from tasks x where x.job_id = p_job_id and x.id = child.child_id offset 0) as t
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
      insert into results (job_id, task_id, tenant_id, finished_at, attempt, phase, outcome, error_code, error_message)
      select job_id, task_id, tenant_id, v_now, 0, phase, 'canceled', 'parent_failed', 'a task it comes after did not succeed'
      from gone
    ), counted as (
      select phase, count(*)::integer as n from gone group by phase
    )
    select (select array_agg(row(p_job_id, phase, 0, 0, n)::phase_delta) from counted),
      (select array_agg(task_id) from gone where has_children) into v_some, v_parents;
    deltas := deltas || v_some;
    exit when v_parents is null;
  end loop;

  if cardinality(v_free) > 0 then
    -- Also those of a paused job: the claim sets them aside, under a lock that a resume respects.
    with gone as (
      delete from parked where job_id = p_job_id and task_id = any (v_free) and until <= v_now returning *
    )
    select array_agg(row(task_id, 0, job_id, tenant_id, lane_id, priority, phase, failures, deaths,
      has_parents, has_children)::ready order by task_id) into freed from gone;
  end if;
end
$$;
comment on function penstock._settle_children(uuid, bigint[], bigint[]) is
  'Parents have ended: children of a parent that did not succeed are canceled with their descendants. Returns what that does to the progress, and the children that now wait for nothing, for the caller to queue when it has all its locks.';

create or replace function penstock._move_progress(p_deltas penstock.phase_delta[])
returns void language plpgsql set search_path = penstock, pg_temp as $$
declare
  v_delta record;
  v_open integer;
  v_full uuid[] := '{}';
begin
  -- One by one, in one order for everybody: no deadlock, and a plan that no statistics can spoil.
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
  'Moves the counts of phases, in one lock order, and ends the jobs that are through.';

create or replace function penstock._task_state(p_job_id uuid, p_task_id bigint)
returns table (state text, reason text, until timestamptz, attempt integer, started_at timestamptz, worker_id text, fraction real, message text)
language sql stable security definer set search_path = penstock, pg_temp as $$
  select 'running', null::text, l.expires_at, l.failures + l.deaths + 1, l.started_at, l.worker_id, l.fraction, l.message
  from leases l where l.task_id = p_task_id and l.job_id = p_job_id
    and (_is_service() or l.tenant_id in (select my_tenants()))
  union all
  select case when p.pending > 0 then 'blocked' else 'queued' end,
    case when p.pending > 0 then format('%s tasks before it', p.pending) else p.reason end,
    nullif(nullif(p.until, 'infinity'), '-infinity'), p.failures + p.deaths, null, null, null, null
  from parked p where p.job_id = p_job_id and p.task_id = p_task_id
    and (_is_service() or p.tenant_id in (select my_tenants()))
$$;
comment on function penstock._task_state(uuid, bigint) is 'Where a task that has not ended stands, for whoever may see it. No row: it is ready to be claimed.';
