-- The queue: how tasks get into ready and back, and upkeep. A lane deals slots of virtual time. A task's slot
-- is the later of the lane's clock and the tenant's last slot, plus one step; the step is one over the
-- tenant's weight. The claim takes the lowest slots, so tenants share a lane by weight whatever their
-- backlog. Within a tenant a slot goes to its best task: lowest priority number, oldest job, oldest task.
-- Enqueuing never waits for another transaction: a slot that is not exact costs less than that.

-- The columns of a task that move between ready, parked and leases are named here, in _queue and in
-- _lease_tasks, and nowhere else (tests/test_rules.py). The first three set no search path, so that they are
-- inlined.

create or replace function penstock._parked_to_ready(p_parked penstock.parked)
returns penstock.ready language sql immutable as $$
  select row(p_parked.task_id, 0, p_parked.job_id, p_parked.tenant_id, p_parked.lane_id, p_parked.priority,
    p_parked.phase, p_parked.failures, p_parked.deaths, p_parked.has_parents,
    p_parked.has_children)::penstock.ready
$$;
comment on function penstock._parked_to_ready(penstock.parked) is 'A parked task as a row for _queue.';

create or replace function penstock._lease_to_ready(
  p_lease penstock.leases, p_more_failures integer default 0, p_more_deaths integer default 0)
returns penstock.ready language sql immutable as $$
  select row(p_lease.task_id, 0, p_lease.job_id, p_lease.tenant_id, p_lease.lane_id, p_lease.priority,
    p_lease.phase, p_lease.failures + p_more_failures, p_lease.deaths + p_more_deaths,
    p_lease.has_parents, p_lease.has_children)::penstock.ready
$$;
comment on function penstock._lease_to_ready(penstock.leases, integer, integer) is
  'A leased task as a row for _queue.';

create or replace function penstock._ready_to_parked(
  p_ready penstock.ready, p_until timestamptz, p_reason text, p_waits_for text default null)
returns penstock.parked language sql immutable as $$
  select row(p_ready.task_id, p_ready.job_id, p_ready.tenant_id, p_ready.lane_id, p_ready.priority,
    p_ready.phase, p_ready.failures, p_ready.deaths, p_ready.has_parents, p_ready.has_children, 0,
    p_until, p_reason, p_waits_for, null)::penstock.parked
$$;
comment on function penstock._ready_to_parked(penstock.ready, timestamptz, text, text) is
  'A task as a row of parked: until when it waits, why, and for which meter, limit, budget or price.';

create or replace function penstock._parked_to_lease(p_parked penstock.parked)
returns penstock.leases language sql stable set search_path = penstock, pg_temp as $$
  select row(p_parked.task_id, 0, p_parked.job_id, p_parked.tenant_id, p_parked.lane_id, p_parked.priority,
    p_parked.phase, p_parked.failures, p_parked.deaths, p_parked.has_parents, p_parked.has_children, false,
    'quota', penstock._now(), penstock._now(), null, null, false, null)::penstock.leases
$$;
comment on function penstock._parked_to_lease(penstock.parked) is
  'A parked task that ends without an attempt, as _move_to_dead_letters needs it.';

create or replace function penstock._lease_to_waiting(
  p_lease penstock.leases, p_until timestamptz, p_reason text, p_wait_id uuid)
returns penstock.parked language sql immutable set search_path = penstock, pg_temp as $$
  select row(p_lease.task_id, p_lease.job_id, p_lease.tenant_id, p_lease.lane_id, p_lease.priority,
    p_lease.phase, p_lease.failures, p_lease.deaths, p_lease.has_parents, p_lease.has_children, 0,
    p_until, p_reason, null, p_wait_id)::penstock.parked
$$;
comment on function penstock._lease_to_waiting(penstock.leases, timestamptz, text, uuid) is
  'A leased task as a row of parked that waits for something.';

create or replace function penstock._queue(p_rows penstock.ready[], p_is_front boolean)
returns void language plpgsql set search_path = penstock, pg_temp as $$
-- Lock order: see claim.sql.
declare
  v_group record; v_start bigint; v_priority smallint;
begin
  if p_rows is null or cardinality(p_rows) = 0 then
    return;
  end if;
  for v_group in
    select g.*, l.clock, l.kind, greatest(1, round(1000000 / t.weight))::bigint as step
    from (
      select r.lane_id, r.tenant_id, count(*) as n, min(r.priority) as lowest, max(r.priority) as highest
      from unnest(p_rows) as r group by r.lane_id, r.tenant_id) as g
    left join lateral (select x.clock, x.kind from lanes x where x.id = g.lane_id offset 0) as l on true
    left join lateral (select x.weight from tenants x where x.id = g.tenant_id offset 0) as t on true
    order by g.lane_id, g.tenant_id
  loop
    -- Nothing may wait for a tenant's row. SKIP LOCKED is not enough: PostgreSQL waits in spite of it when
    -- the row's last writer is just ending and a third transaction has locked the new version.
    if pg_try_advisory_xact_lock(hashtext('penstock.shares'),
        (v_group.lane_id # hashtext(v_group.tenant_id::text)) & 2047) then
      update shares s set tail = greatest(v_group.clock, s.tail) + v_group.n * v_group.step,
        priority = case when s.tail > v_group.clock then s.priority else v_group.lowest end
      where s.lane_id = v_group.lane_id and s.tenant_id = v_group.tenant_id
      returning s.tail - v_group.n * v_group.step, s.priority into v_start, v_priority;
      if not found then
        insert into shares (lane_id, tenant_id, tail, priority)
        values (v_group.lane_id, v_group.tenant_id, v_group.clock + v_group.n * v_group.step, v_group.lowest)
        on conflict (lane_id, tenant_id) do nothing;
      end if;
    else
      select greatest(v_group.clock, s.tail),
        case when s.tail > v_group.clock then s.priority else v_group.lowest end into v_start, v_priority
      from shares s where s.lane_id = v_group.lane_id and s.tenant_id = v_group.tenant_id;
    end if;
    v_start := coalesce(v_start, v_group.clock);
    if v_group.lowest <> v_group.highest or v_priority <> v_group.lowest then
      -- The lock keeps upkeep from deleting the mark before these tasks are committed.
      perform 1 from mixed where lane_id = v_group.lane_id and tenant_id = v_group.tenant_id
      limit 1 for key share skip locked;
      if not found then
        insert into mixed (lane_id, tenant_id) values (v_group.lane_id, v_group.tenant_id);
      end if;
    end if;
    -- Tasks that were claimed before (a retry) go to the front; the tenant's later tasks pay for it.
    insert into ready (task_id, vtime, job_id, tenant_id, lane_id, priority, phase, failures, deaths,
      has_parents, has_children)
    select r.task_id,
      case when p_is_front then v_group.clock else v_start + v_group.step * row_number() over () end,
      r.job_id, r.tenant_id, r.lane_id, r.priority, r.phase, r.failures, r.deaths,
      r.has_parents, r.has_children
    from unnest(p_rows) as r
    where r.lane_id = v_group.lane_id and r.tenant_id = v_group.tenant_id;
    perform pg_notify('penstock', 'ready:' || v_group.kind);
  end loop;
end
$$;
comment on function penstock._queue(penstock.ready[], boolean) is
  'Inserts tasks into ready, each tenant''s behind its own last slot, or at the front.';

create or replace function penstock._lanes_of_tenant(p_tenant_id uuid)
returns table (lane_id integer, priority smallint)
language sql stable set search_path = penstock, pg_temp
  set enable_seqscan = off set enable_bitmapscan = off set jit = off as $$
  -- Jumps from one index entry to the next: there may be thousands of lanes, few with tasks of this tenant.
  with recursive lane as (
    (select r.lane_id, r.priority from ready r where r.tenant_id = p_tenant_id
     order by r.lane_id, r.priority limit 1)
    union all
    select n.lane_id, n.priority from lane l cross join lateral (
      select r.lane_id, r.priority from ready r
      where r.tenant_id = p_tenant_id and (r.lane_id, r.priority) > (l.lane_id, l.priority)
      order by r.lane_id, r.priority limit 1) as n
  )
  select lane.lane_id, lane.priority from lane
$$;
comment on function penstock._lanes_of_tenant(uuid) is
  'The lanes and priorities in which the tenant has tasks that can be claimed.';

create or replace function penstock._ready_task(p_job penstock.jobs)
returns bigint language plpgsql stable set search_path = penstock, pg_temp
  set enable_seqscan = off set jit = off as $$
declare
  v_lane record;
  v_task_id bigint;
begin
  for v_lane in select * from _lanes_of_tenant(p_job.tenant_id) order by priority, lane_id loop
    select task_id into v_task_id from ready
    where tenant_id = p_job.tenant_id and lane_id = v_lane.lane_id and priority = v_lane.priority
      and job_id = p_job.id
    order by task_id limit 1;
    if found then
      return v_task_id;
    end if;
  end loop;
  return null;
end
$$;
comment on function penstock._ready_task(penstock.jobs) is
  'The job''s task with the best priority that can be claimed, or null.';

create or replace function penstock._promote(p_limit integer)
returns integer language plpgsql set search_path = penstock, pg_temp
  set enable_seqscan = off set jit = off as $$
declare
  v_now timestamptz := _now();
  v_again ready[];
  v_fresh ready[];
begin
  with due as (
    select ctid from parked where pending = 0 and until <= v_now and until < 'infinity'
    order by until limit p_limit for update skip locked
  ), gone as (
    delete from parked p where p.ctid = any (array(select ctid from due))
    returning _parked_to_ready(p) as task, p.until,
      -- Tasks that ran before go to the front.
      p.reason = 'retry' or p.wait_id is not null as is_front
  )
  select array_agg(g.task order by g.until, (g.task).task_id) filter (where g.is_front),
    array_agg(g.task order by g.until, (g.task).task_id) filter (where not g.is_front)
  into v_again, v_fresh from gone g;
  perform _queue(v_again, true);
  perform _queue(v_fresh, false);
  return coalesce(cardinality(v_again), 0) + coalesce(cardinality(v_fresh), 0);
end
$$;
comment on function penstock._promote(integer) is 'Queues parked tasks whose time has come.';

create or replace function penstock.reclaim_stale_tasks()
returns integer language plpgsql security definer set search_path = penstock, pg_temp as $$
-- Lock order: see claim.sql.
declare
  v_now timestamptz := _now();
  v_before timestamptz := _reclaim_before(v_now);
  v_max_deaths integer := (_setting('max_deaths'))::integer;
  v_waits boolean;
  v_lost leases[];
  v_dead leases[];
begin
  -- Tasks that are only requeued need no lock that could be waited for: they come first. Ending a task
  -- updates its job's counts, and a gated one an account: these may wait for a worker that vanished before
  -- its commit.
  foreach v_waits in array array[false, true] loop
    with due as (
      select ctid from leases
      where expires_at < v_before and (is_gated or deaths + 1 >= v_max_deaths and not is_canceled) = v_waits
      limit 1000 for update skip locked
    ), gone as (
      delete from leases l where l.ctid = any (array(select ctid from due)) returning l as held
    )
    select array_agg(g.held) into v_lost from gone g;
    exit when v_lost is not null;
  end loop;
  if v_lost is null then
    return 0;
  end if;
  insert into attempts (job_id, task_id, lease, tenant_id, attempt, worker_id, started_at, ended_at, outcome,
    error_code, error_message)
  select job_id, task_id, lease, tenant_id, failures + deaths + 1, worker_id, started_at, v_now, 'lost',
    'worker_lost', format('worker %s stopped sending heartbeats', worker_id)
  from unnest(v_lost) where not is_canceled;
  v_dead := array(select l from unnest(v_lost) as l where not l.is_canceled and l.deaths + 1 >= v_max_deaths);
  if cardinality(v_dead) > 0 then
    perform _move_to_dead_letters(v_dead, array_fill('worker_deaths'::text, array[cardinality(v_dead)]),
      array_fill('worker_lost'::text, array[cardinality(v_dead)]),
      array_fill(format('its worker died %s times', v_max_deaths), array[cardinality(v_dead)]));
  end if;
  perform _return_lost_tasks(array(
    select l from unnest(v_lost) as l where not l.is_canceled and l.deaths + 1 < v_max_deaths), v_now);
  perform _keep_canceled(array(select l from unnest(v_lost) as l where l.is_canceled));
  perform _settle(v_lost, false, null);
  return cardinality(v_lost);
end
$$;
comment on function penstock.reclaim_stale_tasks() is
  'Requeues tasks whose lease has expired, or moves them to the dead letters when too many of their workers '
  'died. Handles a bounded number and returns it; there may be more.';

create or replace function penstock._return_tasks(p_leases penstock.leases[], p_deaths integer)
returns void language plpgsql set search_path = penstock, pg_temp as $$
begin
  perform _queue(array(
    select _lease_to_ready(l, 0, p_deaths) from unnest(p_leases) as l order by l.lease), true);
end
$$;
comment on function penstock._return_tasks(penstock.leases[], integer) is
  'Requeues leased tasks at the front.';

create or replace function penstock._return_lost_tasks(p_leases penstock.leases[], p_now timestamptz)
returns void language plpgsql set search_path = penstock, pg_temp as $$
declare
  v_jitter double precision := coalesce((_setting('reclaim_jitter_seconds'))::double precision, 0);
begin
  if v_jitter = 0 then
    perform _return_tasks(p_leases, 1);
    return;
  end if;
  insert into parked
  select (_ready_to_parked(_lease_to_ready(l, 0, 1), p_now + make_interval(secs => random() * v_jitter),
    'retry')).*
  from unnest(p_leases) as l;
end
$$;
comment on function penstock._return_lost_tasks(penstock.leases[], timestamptz) is
  'Requeues the tasks of workers that died, each after up to reclaim_jitter_seconds.';

create or replace function penstock._keep_canceled(p_leases penstock.leases[])
returns void language sql set search_path = penstock, pg_temp as $$
  -- A failed job can be retried, and may have been by now: the claim parks or takes its tasks. Tasks of a
  -- canceled job are not kept.
  select _return_tasks(array(
    select l from unnest(p_leases) as l join jobs j on j.id = l.job_id where j.status <> 'canceled'), 0)
$$;
comment on function penstock._keep_canceled(penstock.leases[]) is
  'Requeues tasks that were running when their job was stopped.';

create or replace function penstock.upkeep()
returns table (reclaimed integer, promoted integer, chores integer, next_seconds double precision)
language plpgsql security definer set search_path = penstock, pg_temp set lock_timeout = '3s' as $$
-- Lock order: see claim.sql.
declare
  v_now timestamptz := _now();
  v_next timestamptz;
  v_job_id uuid;
  v_marks tid[];
  v_woken integer;
begin
  reclaimed := reclaim_stale_tasks();
  promoted := 0;
  chores := 0;
  if reclaimed > 0 then
    -- Commit reclaimed tasks first: workers can claim them at once, and accounts may be locked now, the last
    -- in the lock order. The next call, at once, does the rest.
    next_seconds := 0;
    return next;
    return;
  end if;
  perform _lapse_weights();
  perform _settle_packs(v_now);
  promoted := _promote(5000);
  perform _refuse_waiting();
  perform _end_operations();
  perform _expire_holds();
  perform _forget_reported_limits();
  perform _forget_workers(v_now);
  v_woken := _wake_missed();
  promoted := promoted + v_woken;
  perform _pause_spent_jobs();
  perform _compact();
  perform _sum_tasks();
  -- Many chores that have nothing left to move, or one batch of one that has.
  for v_job_id in select c.job_id from penstock.chores c order by c.created_at limit 100 loop
    chores := chores + _do_chore(v_job_id, 5000);
    exit when chores > 0;
  end loop;
  -- Lock the marks before reading ready: tasks queued under a mark until then must be seen.
  v_marks := array(select m.ctid from mixed m for update skip locked);
  delete from mixed m where m.ctid = any (v_marks) and not exists (
    select from ready r where r.tenant_id = m.tenant_id and r.lane_id = m.lane_id);
  select least(
    (select min(until) from parked where pending = 0 and until < 'infinity'),
    (select min(expires_at) from leases where expires_at >= v_now),
    -- An expired lease that is locked is being extended or ended.
    (select v_now + interval '1 second' from leases where expires_at < v_now limit 1),
    -- While there are leases, often enough that a pause of six seconds is an outage (see _reclaim_before).
    (select v_now + interval '4 seconds' from leases limit 1),
    (select min(expires_at) from holds where status = 'held' and expires_at is not null),
    (select min(next_run_at) from schedules where is_enabled and next_run_at > v_now)) into v_next;
  next_seconds := case
    when promoted >= 5000 or chores > 0 or v_woken >= 500 then 0
    when exists (select from penstock.chores) then 0.1
    when v_next is not null then greatest(0, extract(epoch from v_next - v_now)) end;
  perform _record_upkeep_done();
  return next;
end
$$;
comment on function penstock.upkeep() is
  'Housekeeping that any worker calls regularly: requeues stale tasks, queues tasks that are due, moves a '
  'batch of tasks after a pause, resume or cancel. Fails when it waits longer than three seconds for a lock. '
  'Returns in how many seconds there is more to do (null: unknown).';
