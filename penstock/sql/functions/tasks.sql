-- Tasks: locks on them, what the end of a task changes for its children and its job, and its state.
-- new_tasks.sql adds tasks; queue.sql and leases.sql move them between states. Lock order: see claim.sql.

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

create or replace function penstock._lock_descendants(p_job_id uuid, p_parent_ids bigint[])
returns void language plpgsql set search_path = penstock, pg_temp as $$
begin
  -- The descendants of a failed parent are canceled. Two failures
  -- can share descendants, so all are locked in one order. The lateral
  -- subquery forces index probes; PostgreSQL 15 might read all parked tasks of the job.
  perform 1 from unnest(array(
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
    ) select distinct child_id from below order by child_id)) as g(id)
  cross join lateral (
    select from parked x where x.job_id = p_job_id and x.task_id = g.id for update) as locked;
end
$$;
comment on function penstock._lock_descendants(uuid, bigint[]) is
  'Locks the parked tasks that the end of these parents may change.';

create or replace function penstock._settle_children(
  p_job_id uuid, p_parent_ids bigint[], p_child_ids bigint[] default null,
  out deltas penstock.phase_delta[], out freed penstock.ready[])
language plpgsql set search_path = penstock, pg_temp
  -- The stages inherit these settings.
  set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off as $$
-- Lock order: see claim.sql.
declare
  v_now timestamptz := _now();
  v_parents bigint[] := p_parent_ids;
  v_free bigint[] := '{}';
  v_counted record;
  v_canceled record;
begin
  deltas := '{}';
  -- p_child_ids names new tasks of this transaction, which need no lock.
  if p_child_ids is null then
    perform _lock_descendants(p_job_id, p_parent_ids);
  end if;
  while v_parents is not null loop
    v_counted := _count_down_children(p_job_id, v_parents, coalesce(p_child_ids[1], 0));
    v_free := v_free || v_counted.free;
    exit when v_counted.doomed is null;
    v_canceled := _cancel_children(p_job_id, v_counted.doomed, v_now);
    deltas := deltas || v_canceled.deltas;
    v_parents := v_canceled.parents;
  end loop;
  if cardinality(v_free) > 0 then
    -- Tasks of a paused job are queued too: the claim parks them again, under a lock that a resume respects.
    with gone as (
      delete from parked p where p.ctid = any (array(
        select k.tid from unnest(v_free) as g(id) cross join lateral (
          select x.ctid as tid from parked x
          where x.job_id = p_job_id and x.task_id = g.id and x.until <= v_now offset 0) as k))
      returning _parked_to_ready(p) as task
    )
    select array_agg(g.task order by (g.task).task_id) into freed from gone g;
  end if;
end
$$;
comment on function penstock._settle_children(uuid, bigint[], bigint[]) is
  'Updates the children of parents that have ended. Children of a parent that did not succeed are canceled '
  'with their descendants. Returns the changes of the phase counts, and the children without open parents, '
  'which the caller queues once it has all its locks.';

create or replace function penstock._count_down_children(
  p_job_id uuid, p_parent_ids bigint[], p_first_child_id bigint, out doomed bigint[], out free bigint[])
language plpgsql set search_path = penstock, pg_temp as $$
begin
  -- The lateral subqueries force index probes; a join might read all dependencies of the job.
  with child as (
    select e.child_id, count(*)::integer as ended, bool_or(r.outcome <> 'succeeded') as is_failed
    from unnest(p_parent_ids) as g(id)
    cross join lateral (
      select x.child_id from edges x where x.job_id = p_job_id and x.parent_id = g.id offset 0) as e
    cross join lateral (
      select x.outcome from results x where x.job_id = p_job_id and x.task_id = g.id offset 0) as r
    where e.child_id >= p_first_child_id
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
  select array_agg(c.task_id) filter (where c.is_doomed),
    coalesce(array_agg(c.task_id) filter (where c.pending = 0 and not c.is_doomed), '{}')
  into doomed, free from counted c;
end
$$;
comment on function penstock._count_down_children(uuid, bigint[], bigint) is
  'Subtracts ended parents from what their children wait for. Returns the children that a failed parent '
  'cancels, and those that wait for no parent any more.';

create or replace function penstock._cancel_children(
  p_job_id uuid, p_task_ids bigint[], p_now timestamptz,
  out deltas penstock.phase_delta[], out parents bigint[])
language plpgsql set search_path = penstock, pg_temp as $$
begin
  with gone as (
    delete from parked where job_id = p_job_id and task_id = any (p_task_ids) returning *
  ), ended as (
    insert into results (job_id, task_id, tenant_id, finished_at, attempt, phase, outcome, error_code,
      error_message)
    select job_id, task_id, tenant_id, p_now, 0, phase, 'canceled', 'parent_failed',
      'a parent task did not succeed'
    from gone
  ), counted as (
    select phase, count(*)::integer as n from gone group by phase
  )
  select (select array_agg(row(p_job_id, phase, 0, 0, n)::phase_delta) from counted),
    (select array_agg(task_id) from gone where has_children) into deltas, parents;
end
$$;
comment on function penstock._cancel_children(uuid, bigint[], timestamptz) is
  'Ends parked tasks as canceled because a parent did not succeed. Returns the changes of the phase counts, '
  'and the canceled tasks that have children.';

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
