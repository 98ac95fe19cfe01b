-- The claim: how a worker gets tasks. A task's state is the table that holds its row:
--
--   start_job, add_tasks
--      |            |
--      |            v            parents end, the time comes, the job resumes,
--      |         parked  <-----+ a quota or budget has room
--      |            |          |
--      v            v          |  the job is paused; no quota, budget or price;
--     ready <-------+----------+  a retry that backs off; waiting for an answer or a time
--      |   ^
--      |   |  released, rescheduled, failed (retry at once), lease expired
--      v   |
--    leases  ------------------> results     succeeded, failed, canceled
--      (claim_tasks)    \
--                        +-----> results and dead_letters   no attempt left
--
-- A task is in exactly one of ready, parked, leases and results. Canceling a job deletes its other rows.
--
-- claim_tasks runs these stages, in a few rounds when tasks of a stopped job were in the way:
--   _pick_round    picks from both sorts of lanes, in random order                  (this file)
--   _pick_open     locks rows of lanes without limits                               (this file)
--   _pick_gated    locks rows of lanes with a provider or units, within limits      (admission.sql)
--   _reserve_pick  reserves quota and budget for those, parks tasks that have none  (reservations.sql)
--   _lease_tasks   moves the rows from ready to leases                              (this file)
--   _park_stopped  takes tasks of paused, failed and canceled jobs out of ready     (this file)
--   _record_holds  records the reservations of the tasks that got a lease           (reservations.sql)
--   _reroute       moves tasks of blocked providers to others when too few were found  (rerouting.sql)
--
-- LOCK ORDER. A transaction that holds row locks may wait for another row lock only further down this list.
-- Within a table rows are locked in the order given. tests/sql/lock_order.py reads this list.
--
--    1. billing_accounts
--    2. tenants
--    3. api_keys, subscriptions   by id
--    4. sessions, invitations, sheet_bindings
--    5. members, profiles
--    6. schedules
--    7. streaks           record_outcome may be part of a transactional handler
--    8. leases            the leases of a batch by position in the table
--    9. waits, wait_links, steps, operations   of the task of the lease
--   10. bulks
--   11. bulk_changes
--   12. ready             by job and task id; add_tasks and replay wait for a claim that locked a parent
--   13. parked            by task id
--   14. phases            by job and position
--   15. jobs              by id
--   16. notification_targets, notifications   the end of a job queues messages
--   17. dead_letters, results   to delete them
--   18. chores
--   19. artifacts         by id
--   20. endpoints
--   21. endpoint_states   a claim waits for one only while it has locked nothing else
--   22. spent, calls      after the state of their endpoint
--   23. holds
--   24. accounts          by tenant, job, meter and period; last: wait for nothing while holding one
--
--   never waited for: lanes, shares, mixed, routed_lanes, route_failures
--   inserted into at any point: dead_letters, results, job_terms, task_logs_0, task_logs_1, task_logs_2
--   inserted into at any point: task_chunks_0, task_chunks_1, task_chunks_2
--
-- prune deletes rows of spent, calls and holds first: they expired long ago, and nobody waits for them.
-- prune deletes waits last: an answer to a job that has ended is rejected before it waits for another lock.
-- A lock taken with SKIP LOCKED never waits, so it may be taken at any point: the rows that the claim,
-- reclaim_stale_tasks, heartbeats and upkeep lock in ready, parked, leases and jobs, and all of lanes and
-- mixed. The next claim or the next upkeep comes back for rows that were skipped. Rows of shares are written
-- under an advisory lock that is only tried (see _queue).

create or replace function penstock.claim_tasks(
  p_worker_id text, p_max_tasks integer default 1, p_task_types text[] default null,
  p_lease_seconds integer default null)
returns table (
  id bigint, lease bigint, job_id uuid, tenant_id uuid, kind text, key text, input jsonb,
  attempt integer, max_attempts integer, timeout_seconds real, lease_expires_at timestamptz, provider text)
language plpgsql security definer set search_path = penstock, pg_temp
  -- The stages inherit these settings: their plans use indexes whatever the statistics say.
  set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off
  set plan_cache_mode = force_generic_plan set jit = off as $$
-- Lock order: see above.
declare
  v_lease_seconds integer := coalesce(p_lease_seconds, (_setting('lease_seconds'))::integer);
  v_stopped uuid[] := array(select c.job_id from chores c where c.verb <> 'unpark');
  v_lanes integer[] := _lanes_to_claim(p_task_types);
  v_gated text;
  v_now timestamptz;
  v_may_wait boolean := true;
  v_pick claim_pick;
  v_wanted integer := p_max_tasks;
  v_leased integer;
  v_claimed integer := 0;
begin
  perform _check_claim(p_worker_id, p_max_tasks, v_lease_seconds);
  if (_setting('maintenance'))::boolean then
    return;
  end if;
  v_gated := _turn_of_gated_lanes(v_lanes, p_task_types, p_max_tasks, v_stopped);
  for v_round in 1 .. 10 loop
    v_now := _now();  -- The last round may have waited for a lock.
    if v_round > 1 or v_gated <> 'none' then
      v_lanes := _lanes_to_claim(p_task_types);  -- Tasks may have been moved to other lanes.
    end if;
    -- Accounts come last in the lock order: with some locked, wait for nothing.
    v_may_wait := v_may_wait and v_pick.has_reserved is not true;
    v_pick := _pick_round(v_lanes, v_wanted, v_stopped, v_now, v_gated, v_round = 1, v_claimed = 0,
      v_may_wait);
    continue when v_pick.tids = '{}' and (v_pick.is_more
      or v_gated <> 'none' and _reroute(p_task_types, v_wanted, v_stopped, v_now) > 0);
    exit when v_pick.tids = '{}';
    return query
    select t.* from _lease_tasks(v_pick, p_worker_id, v_now, v_lease_seconds) as l
    cross join lateral _claimed_task(l) as t order by t.lease;
    get diagnostics v_leased = row_count;
    if v_leased < cardinality(v_pick.tids) then
      perform _park_stopped(v_pick.tids);
    end if;
    if v_pick.reservations <> '{}' then
      perform _record_holds(v_pick.reservations, v_now);
    end if;
    v_claimed := v_claimed + v_leased;
    exit when v_leased = v_wanted or cardinality(v_pick.tids) < v_wanted and not v_pick.is_more
      and (v_gated = 'none' or _reroute(p_task_types, v_wanted - v_leased, v_stopped, v_now) = 0);
    v_wanted := v_wanted - v_leased;
  end loop;
  if v_claimed = 0 or v_pick.tids = '{}' then
    perform _end_short_claim(p_task_types, v_claimed, v_pick);
  end if;
end
$$;
comment on function penstock.claim_tasks(text, integer, text[], integer) is
  'Claims up to p_max_tasks tasks of these kinds (null: all kinds) for a worker: fairly among tenants, '
  'within limits, quotas and budgets. Each gets a lease that expires after p_lease_seconds without a '
  'heartbeat.';

create or replace function penstock._check_claim(
  p_worker_id text, p_max_tasks integer, p_lease_seconds integer)
returns void language plpgsql immutable set search_path = penstock, pg_temp as $$
begin
  if coalesce(length(p_worker_id), 0) not between 1 and 200 or not _is_clean(p_worker_id) then
    perform _refuse(422, 'invalid_worker',
      format('p_worker_id must have 1 to 200 characters (got %s), none of them a control character',
        coalesce(length(p_worker_id), 0)),
      '{"field": "p_worker_id"}');
  end if;
  if coalesce(p_max_tasks, 0) not between 1 and 10000 then
    perform _refuse(422, 'invalid_count',
      format('p_max_tasks must be between 1 and 10000 (got %s)', coalesce(p_max_tasks::text, 'null')),
      '{"field": "p_max_tasks"}');
  end if;
  if p_lease_seconds not between 1 and 86400 then
    perform _refuse(422, 'invalid_lease',
      format('p_lease_seconds must be between 1 and 86400 (got %s)', p_lease_seconds),
      '{"field": "p_lease_seconds"}');
  end if;
end
$$;
comment on function penstock._check_claim(text, integer, integer) is
  'Rejects a claim with invalid arguments.';

create or replace function penstock._turn_of_gated_lanes(
  p_lanes integer[], p_task_types text[], p_max integer, p_stopped uuid[])
returns text language plpgsql set search_path = penstock, pg_temp as $$
begin
  if not exists (select from lanes l where l.id = any (p_lanes) and l.is_gated) then
    return 'none';
  end if;
  if _is_any_failing() and _reroute(p_task_types, p_max, p_stopped, _now()) > 0 then
    return 'first';  -- Tasks that leave a failing provider come first.
  end if;
  return case when random() < 0.5 then 'first' else 'last' end;
end
$$;
comment on function penstock._turn_of_gated_lanes(integer[], text[], integer, uuid[]) is
  'Whether a claim looks at gated lanes first, last or not at all (none). In random order, so that neither '
  'sort of lane starves the other.';

create or replace function penstock._lanes_to_claim(p_task_types text[])
returns integer[] language plpgsql stable set search_path = penstock, pg_temp as $$
declare
  v_lanes integer[];
  v_count integer;
begin
  select coalesce(array_agg(l.id) filter (where p_task_types is null or l.kind = any (p_task_types)), '{}'),
    count(*)
  into v_lanes, v_count from (select id, kind from lanes limit 101) as l;
  if v_count <= 100 then
    return v_lanes;
  end if;
  -- From one lane with tasks to the next: there may be thousands without. Not with few lanes, because this
  -- reads rows of claimed tasks that vacuum has not removed, and lanes.read_from spares the claim those.
  return array(
    with recursive busy as (
      (select r.lane_id from ready r order by r.lane_id limit 1)
      union all
      select (select r.lane_id from ready r where r.lane_id > b.lane_id order by r.lane_id limit 1)
      from busy b where b.lane_id is not null
    )
    select l.id from busy b join lanes l on l.id = b.lane_id
    where p_task_types is null or l.kind = any (p_task_types));
end
$$;
comment on function penstock._lanes_to_claim(text[]) is
  'The lanes of these kinds in which a claim looks for tasks: with many lanes, only those that have tasks.';

create or replace function penstock._pick_round(
  p_lanes integer[], p_max integer, p_stopped uuid[], p_now timestamptz, p_gated text,
  p_is_first_round boolean, p_holds_nothing boolean, p_may_wait boolean)
returns penstock.claim_pick language plpgsql set search_path = penstock, pg_temp as $$
-- Lock order: see above.
declare
  v_pick claim_pick := row('{}', '{}', '{}', false, false);
  v_open tid[];
begin
  if p_gated = 'first' then
    v_pick := _pick_gated(p_lanes, p_max, p_stopped, p_now, p_is_first_round, p_holds_nothing,
      p_may_wait);
  end if;
  v_open := _pick_open(p_lanes, p_max - cardinality(v_pick.tids), p_stopped, p_now);
  if p_gated = 'last' and cardinality(v_open) < p_max then
    v_pick := _pick_gated(p_lanes, p_max - cardinality(v_open), p_stopped, p_now, p_is_first_round,
      p_holds_nothing and v_open = '{}', p_may_wait);
  end if;
  v_pick.tids := v_pick.tids || v_open;
  return v_pick;
end
$$;
comment on function penstock._pick_round(
  integer[], integer, uuid[], timestamptz, text, boolean, boolean, boolean) is
  'Locks the next rows of ready, of lanes without limits and of gated lanes (p_gated: first, last or none). '
  'p_holds_nothing: earlier rounds leased no task, so a lock may be waited for.';

create or replace function penstock._end_short_claim(
  p_task_types text[], p_claimed integer, p_pick penstock.claim_pick)
returns void language plpgsql set search_path = penstock, pg_temp as $$
begin
  if p_pick.tids = '{}' and not p_pick.is_more then
    -- The lanes may hold only tasks of stopped jobs: clear some away in case no worker does upkeep.
    perform _do_chore(c.job_id, 500) from (select h.job_id from chores h order by h.created_at limit 1) as c;
  end if;
  if p_claimed = 0 then
    perform _do_overdue();
  end if;
  if p_claimed = 0 and p_pick.is_more then
    -- Ten rounds only parked tasks: the next claim finds more.
    perform pg_notify('penstock', 'ready:' || l.kind) from lanes l
    where l.is_gated and (p_task_types is null or l.kind = any (p_task_types));
  end if;
end
$$;
comment on function penstock._end_short_claim(text[], integer, penstock.claim_pick) is
  'What a claim that got nothing, or not all it wanted, does for others: moves tasks of stopped jobs, does '
  'overdue upkeep, and wakes workers if the next claim may find tasks. The pick is that of the last round.';

create or replace function penstock._pick_open(
  p_lanes integer[], p_max integer, p_stopped uuid[], p_now timestamptz)
returns tid[] language plpgsql set search_path = penstock, pg_temp as $$
declare
  v_tids tid[];
begin
  v_tids := array(
    select r.ctid
    from (
      -- Once a second a claim reads a lane from its start and finds tasks that were committed late.
      select l.id, case when l.swept_at < p_now - interval '1 second' then 0 else l.read_from end as read_from
      from lanes l where l.id = any (p_lanes) and not l.is_gated
      order by random()
    ) as l
    cross join lateral (
      -- Read past tasks of jobs that are being stopped, but only so far: there may be very many.
      select case when p_stopped = '{}' then null else (
        select b.vtime from ready b where b.lane_id = l.id and b.vtime >= l.read_from
        order by b.vtime offset 4 * p_max + 100 limit 1) end as vtime
    ) as bound
    cross join lateral (
      select ready.ctid from ready
      where ready.lane_id = l.id and ready.vtime >= l.read_from
        and ready.vtime <= coalesce(bound.vtime, 9223372036854775807) and ready.job_id <> all (p_stopped)
      order by ready.vtime limit p_max for update skip locked
    ) as r
    limit p_max);
  if v_tids <> '{}' and exists (select from mixed) then
    v_tids := _swap_in_best_priority(v_tids);
  end if;
  if v_tids <> '{}' and exists (select from gates g where g.mode = 'enforce' and g.kinds <> '{}') then
    v_tids := _park_gated(v_tids, p_now);
  end if;
  return v_tids;
end
$$;
comment on function penstock._pick_open(integer[], integer, uuid[], timestamptz) is
  'Locks the next rows of ready in lanes without limits and returns them, so that no other claim takes them.';

create or replace function penstock._swap_in_best_priority(p_tids tid[])
returns tid[] language plpgsql set search_path = penstock, pg_temp as $$
declare
  v_group record;
  v_best tid[];
  v_tids tid[] := p_tids;
begin
  for v_group in
    select r.lane_id, r.tenant_id, array_agg(r.ctid) as slots
    from ready r
    where r.ctid = any (p_tids)
      and exists (select from mixed m where m.lane_id = r.lane_id and m.tenant_id = r.tenant_id)
    group by r.lane_id, r.tenant_id
  loop
    v_best := array(
      select ctid from ready where lane_id = v_group.lane_id and tenant_id = v_group.tenant_id
      order by priority, job_id, task_id limit cardinality(v_group.slots) for update skip locked);
    -- The best tasks take the picked slots, in their order; the tasks they displace take the slots of the
    -- best.
    with involved as (
      select r.ctid as tid, r.vtime, r.ctid = any (v_best) as is_best,
        row_number() over (order by r.ctid = any (v_best) desc, r.priority, r.job_id, r.task_id) as rank,
        row_number() over (order by r.ctid = any (v_group.slots) desc, r.vtime, r.task_id) as slot
      from ready r where r.ctid = any (v_best || v_group.slots)
    ), placed as (
      select i.tid, i.is_best, s.vtime, s.vtime <> i.vtime as moves
      from involved i join involved s on s.slot = i.rank
    ), moved as (
      update ready r set vtime = p.vtime from placed p where r.ctid = p.tid and p.moves
      returning r.ctid as tid, p.is_best
    )
    select array(select t from unnest(v_tids) as t where t <> all (v_group.slots))
      || coalesce(array_agg(b.tid), '{}') into v_tids
    from (
      select tid from moved where is_best union all select tid from placed where is_best and not moves
    ) as b;
  end loop;
  return v_tids;
end
$$;
comment on function penstock._swap_in_best_priority(tid[]) is
  'Where a tenant''s queue holds several priorities, gives the picked slots to its best tasks and returns '
  'their rows.';

create or replace function penstock._lease_tasks(
  p_pick penstock.claim_pick, p_worker_id text, p_now timestamptz, p_lease_seconds integer)
returns setof penstock.leases language plpgsql set search_path = penstock, pg_temp as $$
-- Lock order: see above.
declare
  -- The sequence grows by the largest batch: one call numbers the whole batch.
  v_number bigint := nextval('lease_numbers');
  v_expires_at timestamptz := p_now + make_interval(secs => p_lease_seconds);
  -- Read after the rows were locked: no attempt starts before the end of the one that requeued its task.
  -- Gated tasks start at p_now, when their calls were counted.
  v_locked_at timestamptz := _now();
begin
  return query
  with picked as (
    -- The lateral look-up fixes the plan, also one made when there was one job: one index probe per task.
    -- With the tenant named, any index of jobs serves.
    select r.ctid as tid, r.*, j.status, r.lane_id = any (p_pick.gated_lane_ids) as is_gated,
      v_number + row_number() over (order by r.vtime, r.priority, r.task_id) as lease
    from ready r cross join lateral (
      select x.status from jobs x where x.id = r.job_id and x.tenant_id = r.tenant_id offset 0) as j
    where r.ctid = any (p_pick.tids)
  ), gone as (
    delete from ready
    where ctid = any (array(select p.tid from picked p where p.status in ('queued', 'running')))
  ), leased as (
    insert into leases (task_id, lease, job_id, tenant_id, lane_id, priority, phase, failures, deaths,
      has_parents, has_children, worker_id, started_at, expires_at, is_gated)
    select p.task_id, p.lease, p.job_id, p.tenant_id, p.lane_id, p.priority, p.phase, p.failures, p.deaths,
      p.has_parents, p.has_children, p_worker_id, case when p.is_gated then p_now else v_locked_at end,
      v_expires_at, p.is_gated
    from picked p where p.status in ('queued', 'running')
    returning *
  ), started as (
    -- A job that is locked is started by the next claim.
    update jobs j set status = 'running', started_at = coalesce(j.started_at, p_now)
    where j.id = any (array(
      select q.id from jobs q
      where q.id = any (array(select p.job_id from picked p where p.status = 'queued'))
        and q.status || '' = 'queued' for no key update skip locked))
  ), moved as (
    -- Every 200 ms is enough for the lane's clock: a row updated by every claim would be a bottleneck.
    update lanes l set
      clock = greatest(l.clock, p.top), read_from = l.clock, moved_at = p_now,
      swept_at = case when l.swept_at < p_now - interval '1 second' then p_now else l.swept_at end
    from (select lane_id, max(vtime) as top from picked group by lane_id) as p
    where l.id = p.lane_id and l.id = any (array(
      select q.id from lanes q where q.id = any (array(select distinct x.lane_id from picked x))
      and (q.moved_at < p_now - interval '200 milliseconds' or q.swept_at < p_now - interval '1 second')
      for no key update skip locked))
  )
  select * from leased;
end
$$;
comment on function penstock._lease_tasks(penstock.claim_pick, text, timestamptz, integer) is
  'Moves the picked tasks whose jobs run from ready to leases, in the order of their slots, and starts '
  'their jobs.';

create or replace function penstock._park_stopped(p_tids tid[])
returns void language sql set search_path = penstock, pg_temp as $$
-- Lock order: see above.
  with met as (
    select r.ctid as tid, r.job_id, coalesce(j.status, 'canceled') as status
    from ready r left join jobs j on j.id = r.job_id where r.ctid = any (p_tids)
  ), stopped as (
    -- While these locks are held no resume can miss the tasks. A locked job is being changed: its tasks stay
    -- in ready.
    select q.id from jobs q
    where q.id = any (array(select m.job_id from met m where m.status in ('paused', 'failed')))
      and q.status || '' in ('paused', 'failed') for share skip locked
  ), gone as (
    delete from ready r where r.ctid = any (array(
      select m.tid from met m
      where m.status in ('canceled', 'completed') or m.job_id in (select s.id from stopped s)))
    returning r.job_id, _ready_to_parked(r, 'infinity', 'paused') as task
  )
  -- The rest of a canceled job is not kept.
  insert into parked select (g.task).* from gone g join stopped s on s.id = g.job_id
$$;
comment on function penstock._park_stopped(tid[]) is
  'Takes the rows that got no lease out of ready: parks tasks of paused and failed jobs, deletes those of '
  'ended jobs.';

create or replace function penstock._claimed_task(p_lease penstock.leases)
returns table (
  id bigint, lease bigint, job_id uuid, tenant_id uuid, kind text, key text, input jsonb,
  attempt integer, max_attempts integer, timeout_seconds real, lease_expires_at timestamptz, provider text)
language sql stable as $$
  -- Sets no search path and names schemas instead, so that it is inlined into the claim's query.
  select p_lease.task_id, p_lease.lease, p_lease.job_id, p_lease.tenant_id, t.kind, t.key,
    case when not p_lease.has_parents then t.input
      when exists (
        select from penstock.edges e
        where e.job_id = p_lease.job_id and e.child_id = p_lease.task_id offset 64)
      then t.input || penstock._many_outputs(p_lease.job_id, p_lease.task_id)
      else t.input || jsonb_build_object('after', (
        select coalesce(jsonb_object_agg(p.key, r.output), '{}')
        from penstock.edges e join penstock.tasks p on p.job_id = e.job_id and p.id = e.parent_id
        left join penstock.results r on r.job_id = e.job_id and r.task_id = e.parent_id
        where e.job_id = p_lease.job_id and e.child_id = p_lease.task_id)) end,
    p_lease.failures + p_lease.deaths + 1, coalesce(t.max_attempts, k.max_attempts)::integer,
    coalesce(t.timeout_seconds, k.timeout_seconds), p_lease.expires_at,
    case when p_lease.is_gated then (select x.provider from penstock.lanes x where x.id = p_lease.lane_id) end
  from (
    select x.kind, x.key, x.input, x.max_attempts, x.timeout_seconds from penstock.tasks x
    where x.job_id = p_lease.job_id and x.id = p_lease.task_id offset 0) as t
  join penstock.kinds k on k.name = t.kind
$$;
comment on function penstock._claimed_task(penstock.leases) is
  'What a worker gets of a task it has claimed: the input with the outputs of its parents, the attempt, its '
  'limits.';

create or replace function penstock._many_outputs(p_job_id uuid, p_task_id bigint)
returns jsonb language sql stable set search_path = penstock, pg_temp as $$
  -- At most the size of 64 outputs of the largest size: an output that does not fit is null, and
  -- after_omitted counts those.
  select jsonb_build_object('after', jsonb_object_agg(x.key, case when x.fits then x.output end))
    || case when bool_and(x.fits) then '{}'
      else jsonb_build_object('after_omitted', count(*) filter (where not x.fits)) end
  from (
    select p.key, r.output, coalesce(sum(octet_length(r.output::text)) over (order by e.parent_id), 0)
      <= 64 * (_setting('max_output_bytes'))::bigint as fits
    from edges e join tasks p on p.job_id = e.job_id and p.id = e.parent_id
    left join results r on r.job_id = e.job_id and r.task_id = e.parent_id
    where e.job_id = p_job_id and e.child_id = p_task_id) as x
$$;
comment on function penstock._many_outputs(uuid, bigint) is
  'The outputs of a task with many parents, as far as they fit into one document.';
