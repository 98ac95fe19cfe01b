-- New tasks: add_tasks and the stages that check, insert, park and queue them. Lock order: see claim.sql.

create or replace function penstock.add_tasks(
  p_job_id uuid, p_tasks jsonb, p_task_id bigint default null, p_worker_id text default null,
    p_lease bigint default null)
returns bigint[] language plpgsql security definer set search_path = penstock, pg_temp
  set enable_seqscan = off set plan_cache_mode = force_generic_plan set jit = off as $$
declare
  v_ids bigint[];
  v_job jobs;
begin
  v_ids := _append_tasks(p_job_id, p_tasks, p_task_id, p_worker_id, p_lease, null, not _is_service());
  if p_task_id is null then
    -- Not for a handler, whose transaction goes on: accounts are locked last.
    select * into v_job from jobs where id = p_job_id;
    perform _count_start(v_job, 0, p_tasks, '{}');
  end if;
  return v_ids;
end
$$;
comment on function penstock.add_tasks(uuid, jsonb, bigint, text, bigint) is
  'Adds tasks to a job that has not ended and returns the ids of the new tasks, in order. Tasks whose '
  'idempotency key the job already has are skipped. A running task that adds tasks to its own job passes '
  'its id, worker and lease.';

create or replace function penstock._append_tasks(
  p_job_id uuid, p_tasks jsonb, p_task_id bigint, p_worker_id text, p_lease bigint, p_starters text[],
  p_is_raw boolean)
returns bigint[] language plpgsql set search_path = penstock, pg_temp as $$
declare
  v_job jobs := _visible_job(p_job_id, array['owner', 'admin', 'member']);
  v_parents bigint[];
begin
  if p_task_id is not null then
    if not exists (select from tasks where job_id = p_job_id and id = p_task_id) then
      perform _refuse(410, 'lease_lost', format('task %s does not belong to this job', p_task_id),
        jsonb_build_object('task_id', p_task_id));
    end if;
    perform _keep_lease(p_task_id, p_worker_id, p_lease);
  end if;
  -- The locks on all phases keep the job from ending before the insert. The locks on
  -- the parents of the new tasks keep a parent from ending without its new children.
  for v_try in 1 .. 50 loop
    begin
      v_parents := case when v_job.finished_at is null then _parents_of_new_tasks(p_job_id, p_tasks)
        else '{}' end;
      perform _lock_jobs_and_tasks(array[p_job_id], array_fill(p_job_id, array[cardinality(v_parents)]),
        v_parents);
      v_job := _visible_job(p_job_id, array['owner', 'admin', 'member']);
      exit when v_job.finished_at is not null or v_parents = _parents_of_new_tasks(p_job_id, p_tasks);
      raise exception using errcode = 'PS001', message = '0';
    exception when sqlstate 'PS001' then
      perform _wait_for_lease(sqlerrm::bigint);
      v_job := _visible_job(p_job_id, array['owner', 'admin', 'member']);
      v_parents := null;
    end;
  end loop;
  if v_parents is null then
    raise exception using errcode = 'serialization_failure',
      message = 'could not lock the parent tasks: try again';
  end if;
  if v_job.status in ('completed', 'failed', 'canceled') then
    perform _refuse(409, 'job_ended', format('the job has already ended (%s)', v_job.status),
      jsonb_build_object('status', v_job.status));
  end if;
  return _add_tasks(v_job, p_tasks, p_starters, p_is_raw);
end
$$;
comment on function penstock._append_tasks(uuid, jsonb, bigint, text, bigint, text[], boolean) is
  'Adds tasks to a job that has not ended: see add_tasks. p_starters and p_is_raw: see _apply_policy.';

create or replace function penstock._parents_of_new_tasks(p_job_id uuid, p_tasks jsonb)
returns bigint[] language plpgsql stable set search_path = penstock, pg_temp as $$
begin
  if not exists (select from tasks where job_id = p_job_id and key is not null) then
    return '{}';
  end if;
  -- The lateral subquery forces one index probe per key; a join might read all tasks of the job.
  return array(
    select t.id from (select distinct a #>> '{}' as key
      from jsonb_path_query(p_tasks, '$[*].after[*]') as a) as w
    cross join lateral (select x.id from tasks x where x.job_id = p_job_id and x.key = w.key offset 0) as t
    order by t.id);
end
$$;
comment on function penstock._parents_of_new_tasks(uuid, jsonb) is
  'The ids of existing tasks of a job that new tasks depend on.';

create or replace function penstock._add_tasks(
  p_job penstock.jobs, p_tasks jsonb, p_starters text[], p_is_raw boolean)
returns bigint[] language plpgsql set search_path = penstock, pg_temp as $$
declare
  v_now timestamptz := _now();
  v_specs task_spec[] := _parse_tasks(p_tasks);
  v_ids bigint[];
  v_uses record;
  v_parents bigint[];
  v_ended_parents bigint[];
  v_rows ready[];
  v_settled record;
  v_delays jsonb := '{}';
begin
  perform _check_tasks(v_specs);
  v_specs := _apply_policy(p_job, v_specs,
    case when p_is_raw then _starters(p_job.tenant_id, auth.uid()) else p_starters end, p_is_raw);
  v_uses := _fields_used(v_specs, v_now);
  if v_uses.idempotency_keys then
    v_specs := _without_known_tasks(p_job.id, v_specs);
    if cardinality(v_specs) = 0 then
      return '{}';
    end if;
  end if;
  if v_uses.keys then
    perform _check_keys(p_job.id, v_specs);
  end if;
  if v_uses.routes then
    v_specs := _choose_providers(p_job, v_specs);
  end if;
  if v_uses.limits then
    v_delays := _check_demands(p_job, v_specs);
  end if;
  v_ids := array(select nextval('task_ids') from generate_series(1, cardinality(v_specs)));
  if v_uses.routes then
    perform _add_route_lanes(p_job, v_specs);
  end if;
  perform _count_in_phases(p_job, v_specs);
  v_rows := _insert_tasks(p_job, v_specs, v_ids, v_now);
  if v_uses.parents then
    v_parents := _add_edges(p_job.id, v_specs, v_ids);
    v_ended_parents := array(select r.task_id from results r where r.job_id = p_job.id
      and r.task_id = any (v_parents));
  end if;
  if v_delays <> '{}' then
    v_specs := _delay_throttled_tasks(v_specs, v_delays, v_now);
  end if;
  if v_uses.parents or v_uses.times or v_uses.confirmations or v_delays <> '{}'
     or p_job.status = 'paused' or p_job.run_at > v_now then
    v_rows := _park_new_tasks(p_job, v_specs, v_rows);
  end if;
  if cardinality(v_ended_parents) > 0 then
    v_settled := _settle_children(p_job.id, v_ended_parents, v_ids);
    perform _move_progress(v_settled.deltas);
    v_rows := v_rows || v_settled.freed;
  end if;
  perform _queue(v_rows, false);
  return v_ids;
end
$$;
comment on function penstock._add_tasks(penstock.jobs, jsonb, text[], boolean) is
  'Checks, inserts and queues new tasks of a job, and returns their ids. p_starters and p_is_raw: see '
  '_apply_policy.';

create or replace function penstock._fields_used(
  p_specs penstock.task_spec[], p_now timestamptz, out idempotency_keys boolean, out keys boolean,
  out parents boolean, out routes boolean, out limits boolean, out times boolean, out confirmations boolean)
language sql immutable set search_path = penstock, pg_temp as $$
  -- One pass over the list instead of one for each question, because a list can have 100,000 tasks.
  select bool_or(s.idempotency_key is not null), bool_or(s.key is not null or s.after is not null),
    bool_or(s.after is not null), bool_or(s.route is not null),
    bool_or(s.provider is not null or s.units is not null or s.route is not null),
    bool_or(s.run_at > p_now), bool_or(s.confirm)
  from unnest(p_specs) as s
$$;
comment on function penstock._fields_used(penstock.task_spec[], timestamptz) is
  'Which optional fields any of these tasks has, so that the stages for the others are skipped.';

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

create or replace function penstock._count_in_phases(p_job penstock.jobs, p_specs penstock.task_spec[])
returns void language plpgsql set search_path = penstock, pg_temp as $$
declare
  v_is_declared boolean;
  v_last integer;
  v_count integer;
begin
  select bool_or(weight is not null), coalesce(max(position), 0) into v_is_declared, v_last
  from phases where job_id = p_job.id;
  if v_is_declared then
    perform _check_phases(p_job, p_specs);
  else
    insert into phases (job_id, position, tenant_id, name, total)
    select p_job.id, row_number() over (order by s.n) + v_last, p_job.tenant_id, s.name, s.total
    from (
      select coalesce(t.phase, t.kind) as name, min(t.n) as n, count(*) as total
      from unnest(p_specs) with ordinality as t(kind, key, input, after, after_failure, phase, provider,
        units, priority, run_at, max_attempts, timeout_seconds, idempotency_key, route, confirm, n)
      group by coalesce(t.phase, t.kind)
    ) as s
    where v_last = 0 or not exists (select from phases p where p.job_id = p_job.id and p.name = s.name);
    get diagnostics v_count = row_count;
    if v_count > 0 and v_last + v_count > 1000 then
      perform _refuse(422, 'too_many_phases', 'a job can have at most 1000 phases',
        '{"field": "tasks.phase"}');
    end if;
  end if;
  if v_last > 0 then
    update phases p set total = p.total + c.n
    from (
      select x.position, sum(t.n)::integer as n
      from (select s.phase, s.kind, count(*) as n from unnest(p_specs) as s group by 1, 2) as t
      cross join lateral _phase_of(p_job.id, t.phase, t.kind) as x group by x.position
    ) as c
    where p.job_id = p_job.id and p.position = c.position and p.position <= v_last;
  end if;
end
$$;
comment on function penstock._count_in_phases(penstock.jobs, penstock.task_spec[]) is
  'Adds new tasks to the totals of their phases, and creates the phases that the tasks name (default: the '
  'name of the kind). A job type with declared phases accepts only those.';

create or replace function penstock._check_phases(p_job penstock.jobs, p_specs penstock.task_spec[])
returns void language plpgsql stable set search_path = penstock, pg_temp as $$
declare
  v_unknown text;
begin
  select s.phase into v_unknown from unnest(p_specs) as s
  where s.phase is not null
    and not exists (select from phases p where p.job_id = p_job.id and p.name = s.phase) limit 1;
  if found then
    perform _refuse(422, 'unknown_phase',
      format('job type %L has no phase %L', p_job.type, left(v_unknown, 200)),
      jsonb_build_object('field', 'tasks.phase', 'phase', v_unknown));
  end if;
end
$$;
comment on function penstock._check_phases(penstock.jobs, penstock.task_spec[]) is
  'Rejects tasks of phases that the job type does not declare.';

create or replace function penstock._phase_of(p_job_id uuid, p_phase text, p_kind text)
returns table ("position" smallint) language sql stable as $$
  -- Sets no search path and names schemas instead, so that it is inlined.
  select p.position from penstock.phases p where p.job_id = p_job_id
  order by (p.name = coalesce(p_phase, p_kind)) desc, p.position limit 1
$$;
comment on function penstock._phase_of(uuid, text, text) is
  'The phase of a task: the one it names, else the one named like its kind, else the first.';

create or replace function penstock._insert_tasks(
  p_job penstock.jobs, p_specs penstock.task_spec[], p_ids bigint[], p_now timestamptz)
returns penstock.ready[] language plpgsql set search_path = penstock, pg_temp as $$
declare
  v_rows ready[];
begin
  with route as materialized (
    select s.kind, s.provider, s.phase, s.is_gated,
      _lane(s.kind, s.provider, p_job.tenant_id, s.is_gated) as lane_id, p.position
    from (
      -- Sorted, so that two calls that create the same lanes cannot deadlock; after the grouping, because
      -- there may be 100,000 tasks of one kind.
      select g.* from (
        select t.kind, t.provider, t.provider is not null or t.units is not null as is_gated, t.phase
        from unnest(p_specs) as t group by 1, 2, 3, 4 offset 0) as g
      order by 1, 2, 3, 4) as s
    cross join lateral _phase_of(p_job.id, s.phase, s.kind) as p
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
    from unnest(p_specs) with ordinality as t(kind, key, input, after, after_failure, phase, provider,
      units, priority, run_at, max_attempts, timeout_seconds, idempotency_key, route, confirm, n)
    join route r on r.kind = t.kind and coalesce(r.provider, '') = coalesce(t.provider, '')
      and coalesce(r.phase, '') = coalesce(t.phase, '')
      and r.is_gated = (t.provider is not null or t.units is not null)
    returning id, lane_id, phase, priority
  )
  select array_agg(row(m.id, 0, p_job.id, p_job.tenant_id, m.lane_id, m.priority, m.phase, 0, 0, false,
    false)::ready
    order by m.id) into v_rows from made m;
  return v_rows;
end
$$;
comment on function penstock._insert_tasks(penstock.jobs, penstock.task_spec[], bigint[], timestamptz) is
  'Inserts new tasks and returns a ready row for each.';

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
