-- The queue: how work is put in line, taken, given back and swept.
-- A lane deals slots of virtual time. A task's slot is the later of the lane's clock and the tenant's last slot,
-- plus one step; a step is short for a heavy tenant. The claim takes the lowest slots, so tenants share by weight
-- whatever their backlog. Within a tenant a slot goes to its best task: lowest priority, oldest job, oldest task.
-- No call waits for another's: what is locked is passed over, and a slot's exact place is worth less than that.

create or replace function penstock._queue(p_rows penstock.ready[], p_is_front boolean)
returns void language plpgsql set search_path = penstock, pg_temp as $$
declare
  v_group record;
  v_share shares;
  v_is_locked boolean;
  v_clock bigint;
  v_step bigint;
  v_start bigint;
begin
  if p_rows is null or cardinality(p_rows) = 0 then
    return;
  end if;
  for v_group in
    select lane_id, tenant_id, count(*) as n, min(priority) as lowest, max(priority) as highest
    from unnest(p_rows) group by lane_id, tenant_id order by lane_id, tenant_id
  loop
    select clock into v_clock from lanes where id = v_group.lane_id;
    select greatest(1, round(1000000 / weight))::bigint into v_step from tenants where id = v_group.tenant_id;

    select * into v_share from shares where lane_id = v_group.lane_id and tenant_id = v_group.tenant_id
    for no key update skip locked;
    v_is_locked := found;
    if not found then
      select * into v_share from shares where lane_id = v_group.lane_id and tenant_id = v_group.tenant_id;
    end if;
    v_start := greatest(v_clock, v_share.tail);
    if v_is_locked then
      update shares set tail = v_start + v_group.n * v_step,
        priority = case when v_share.tail > v_clock then v_share.priority else v_group.lowest end
      where lane_id = v_group.lane_id and tenant_id = v_group.tenant_id;
    elsif v_share.tail is null then
      -- Whoever comes second while the first has not committed goes without a row of its own.
      if pg_try_advisory_xact_lock(v_group.lane_id, hashtext(v_group.tenant_id::text)) then
        insert into shares (lane_id, tenant_id, tail, priority)
        values (v_group.lane_id, v_group.tenant_id, v_start + v_group.n * v_step, v_group.lowest)
        on conflict (lane_id, tenant_id) do nothing;
      end if;
    end if;
    if v_group.lowest <> v_group.highest or v_share.tail > v_clock and v_share.priority <> v_group.lowest then
      -- The lock keeps the mark until what we queue is there to be seen.
      perform 1 from mixed where lane_id = v_group.lane_id and tenant_id = v_group.tenant_id limit 1 for key share skip locked;
      if not found then
        insert into mixed (lane_id, tenant_id) values (v_group.lane_id, v_group.tenant_id);
      end if;
    end if;

    -- What has had its turn before (a retry, a hand-back) goes to the front, at its tenant's expense.
    insert into ready (task_id, vtime, job_id, tenant_id, lane_id, priority, phase, failures, deaths, has_parents, has_children)
    select r.task_id, case when p_is_front then v_clock else v_start + v_step * row_number() over () end,
      r.job_id, r.tenant_id, r.lane_id, r.priority, r.phase, r.failures, r.deaths, r.has_parents, r.has_children
    from unnest(p_rows) as r
    where r.lane_id = v_group.lane_id and r.tenant_id = v_group.tenant_id;
    perform pg_notify('penstock', 'ready:' || l.kind) from lanes l where l.id = v_group.lane_id;
  end loop;
end
$$;
comment on function penstock._queue(penstock.ready[], boolean) is 'Puts tasks in line, each tenant behind its own last slot.';

create or replace function penstock._lines(p_tenant_id uuid)
returns table (lane_id integer, priority smallint)
language sql stable set search_path = penstock, pg_temp set enable_seqscan = off set enable_bitmapscan = off set jit = off as $$
  -- From one entry of the index to the next: lanes there may be thousands, those in which this tenant stands are few.
  with recursive line as (
    (select r.lane_id, r.priority from ready r where r.tenant_id = p_tenant_id order by r.lane_id, r.priority limit 1)
    union all
    select n.lane_id, n.priority from line l cross join lateral (
      select r.lane_id, r.priority from ready r where r.tenant_id = p_tenant_id and (r.lane_id, r.priority) > (l.lane_id, l.priority)
      order by r.lane_id, r.priority limit 1) as n
  )
  select line.lane_id, line.priority from line
$$;
comment on function penstock._lines(uuid) is 'The lanes and priorities in which tasks of this tenant stand in line.';

create or replace function penstock._ready_task(p_job penstock.jobs)
returns bigint language plpgsql stable set search_path = penstock, pg_temp set enable_seqscan = off set jit = off as $$
declare
  v_line record;
  v_task_id bigint;
begin
  for v_line in select * from _lines(p_job.tenant_id) order by priority, lane_id loop
    select task_id into v_task_id from ready
    where tenant_id = p_job.tenant_id and lane_id = v_line.lane_id and priority = v_line.priority and job_id = p_job.id order by task_id limit 1;
    if found then
      return v_task_id;
    end if;
  end loop;
  return null;
end
$$;
comment on function penstock._ready_task(penstock.jobs) is 'A task of the job that stands in line, the best one.';

create or replace function penstock._prefer(p_tids tid[])
returns tid[] language plpgsql set search_path = penstock, pg_temp as $$
declare
  v_group record;
  v_best tid[];
  v_tids tid[] := p_tids;
begin
  for v_group in
    select r.lane_id, r.tenant_id, array_agg(r.ctid) as slots
    from ready r
    where r.ctid = any (p_tids) and exists (select from mixed m where m.lane_id = r.lane_id and m.tenant_id = r.tenant_id)
    group by r.lane_id, r.tenant_id
  loop
    v_best := array(
      select ctid from ready where lane_id = v_group.lane_id and tenant_id = v_group.tenant_id
      order by priority, job_id, task_id limit cardinality(v_group.slots) for update skip locked);
    -- The best take these slots, in their order; those who lose theirs take the slots the best had.
    with met as (
      select r.ctid as tid, r.vtime, r.ctid = any (v_best) as is_best,
        row_number() over (order by r.ctid = any (v_best) desc, r.priority, r.job_id, r.task_id) as rank,
        row_number() over (order by r.ctid = any (v_group.slots) desc, r.vtime, r.task_id) as slot
      from ready r where r.ctid = any (v_best || v_group.slots)
    ), placed as (
      select m.tid, m.is_best, s.vtime, s.vtime <> m.vtime as moves from met m join met s on s.slot = m.rank
    ), moved as (
      update ready r set vtime = p.vtime from placed p where r.ctid = p.tid and p.moves returning r.ctid as tid, p.is_best
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
comment on function penstock._prefer(tid[]) is 'Where a tenant''s queue holds several priorities, gives its slots to its best tasks.';

create or replace function penstock.claim_tasks(
  p_worker_id text, p_max_tasks integer default 1, p_task_types text[] default null, p_lease_seconds integer default null)
returns table (
  id bigint, lease bigint, job_id uuid, tenant_id uuid, kind text, key text, input jsonb,
  attempt integer, max_attempts integer, timeout_seconds real, lease_expires_at timestamptz, provider text)
language plpgsql security definer set search_path = penstock, pg_temp
  set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off set plan_cache_mode = force_generic_plan set jit = off as $$
declare
  v_now timestamptz := _now();
  v_lease_seconds double precision := coalesce(p_lease_seconds, (_setting('lease_seconds'))::integer);
  v_left integer := p_max_tasks;
  v_tids tid[];
  v_count integer;
  v_lease bigint;
  v_stopped uuid[];
  v_open tid[];
  v_admitted tid[];
  v_held bigint[];
  v_amounts jsonb[];
  v_is_more boolean;
  v_has_gated boolean;
  v_is_gated_first boolean;
  v_gated integer[];
  v_taken integer := 0;
  v_kept integer;
  v_has_booked boolean := false;
  v_is_patient boolean := true;
begin
  if coalesce(length(p_worker_id), 0) not between 1 and 200 then
    perform _refuse(422, 'invalid_worker', 'a worker id has 1 to 200 characters', '{"field": "p_worker_id"}');
  end if;
  if coalesce(p_max_tasks, 0) not between 1 and 10000 then
    perform _refuse(422, 'invalid_count', 'p_max_tasks is 1 to 10000', '{"field": "p_max_tasks"}');
  end if;
  if v_lease_seconds not between 1 and 86400 then
    perform _refuse(422, 'invalid_lease', 'p_lease_seconds is 1 to 86400', '{"field": "p_lease_seconds"}');
  end if;
  if (_setting('maintenance'))::boolean then
    return;
  end if;

  v_stopped := array(select c.job_id from chores c where c.verb <> 'unpark');
  v_has_gated := exists (select from lanes l where l.is_gated and (p_task_types is null or l.kind = any (p_task_types)));
  -- Neither kind of lane may keep the other waiting.
  v_is_gated_first := v_has_gated and random() < 0.5;
  for v_round in 1 .. 10 loop
    -- We may have waited for a turn: what is admitted now counts from now.
    v_now := _now();
    -- With accounts in hand, from an earlier round, nothing is waited for.
    v_is_patient := v_is_patient and not v_has_booked;
    v_has_booked := false;
    v_tids := '{}';
    v_gated := '{}';
    v_held := '{}';
    v_is_more := false;
    if v_is_gated_first then
      select a.tids, a.lanes, a.held, a.amounts, a.is_more, a.has_booked into v_tids, v_gated, v_held, v_amounts, v_is_more, v_has_booked
      from _admit(p_task_types, v_left, v_stopped, v_now, v_round = 1, v_taken = 0, v_is_patient) as a;
    end if;
    v_open := array(
      select r.ctid
      from (
        select l.id, case when l.swept_at < v_now - interval '1 second' then 0 else l.read_from end as read_from
        from lanes l where not l.is_gated and (p_task_types is null or l.kind = any (p_task_types)) order by random()
      ) as l
      cross join lateral (
        -- Past the tasks of a job that is just being stopped, but not further than a few slots.
        select case when v_stopped = '{}' then null else (
          select b.vtime from ready b where b.lane_id = l.id and b.vtime >= l.read_from
          order by b.vtime offset 4 * v_left + 100 limit 1) end as vtime
      ) as bound
      cross join lateral (
        select ready.ctid from ready
        where ready.lane_id = l.id and ready.vtime >= l.read_from and ready.vtime <= coalesce(bound.vtime, 9223372036854775807)
          and ready.job_id <> all (v_stopped)
        order by ready.vtime limit v_left - cardinality(v_tids)
        for update skip locked
      ) as r
      limit v_left - cardinality(v_tids));
    if v_open <> '{}' and exists (select from mixed) then
      v_open := _prefer(v_open);
    end if;
    v_tids := v_tids || v_open;
    if v_has_gated and not v_is_gated_first and cardinality(v_tids) < v_left then
      select a.tids, a.lanes, a.held, a.amounts, a.is_more, a.has_booked into v_admitted, v_gated, v_held, v_amounts, v_is_more, v_has_booked
      from _admit(p_task_types, v_left - cardinality(v_tids), v_stopped, v_now, v_round = 1, v_taken = 0 and v_tids = '{}', v_is_patient) as a;
      v_tids := v_tids || v_admitted;
    end if;
    continue when v_tids = '{}' and v_is_more;
    if cardinality(v_tids) = 0 then
      -- Nothing but stopped jobs' tasks here: where no worker does upkeep, whoever claims clears them away.
      perform _do_chore(c.job_id, 500) from (select chores.job_id from chores order by created_at limit 1) as c;
      exit;
    end if;
    -- The sequence grows by the largest batch: one call of it numbers the whole batch.
    v_lease := nextval('lease_numbers');
    return query
    with gone as (
      delete from ready where ctid = any (v_tids) returning *
    ), met as (
      select g.*, j.status, v_lease + row_number() over (order by g.vtime, g.priority, g.task_id) as lease
      -- The lateral look-up keeps the plan, also one that was made when there was one job: a probe of an index per task,
      -- and with the tenant named, of any index.
      from gone g cross join lateral (select x.status from jobs x where x.id = g.job_id and x.tenant_id = g.tenant_id offset 0) as j
    ), leased as (
      insert into leases (task_id, lease, job_id, tenant_id, lane_id, priority, phase, failures, deaths,
        has_parents, has_children, worker_id, started_at, expires_at, is_gated)
      select m.task_id, m.lease, m.job_id, m.tenant_id, m.lane_id, m.priority, m.phase, m.failures, m.deaths,
        m.has_parents, m.has_children, p_worker_id, v_now, v_now + make_interval(secs => v_lease_seconds), m.lane_id = any (v_gated)
      from met m where m.status in ('queued', 'running')
      returning *
    ), held as (
      -- Under this lock no resume can pass by what is just being set aside. Whoever has the job now decides later.
      select q.id from jobs q where q.id = any (array(select m.job_id from met m where m.status in ('paused', 'failed')))
      and q.status || '' in ('paused', 'failed') for share skip locked
    ), kept as (
      insert into parked (task_id, job_id, tenant_id, lane_id, priority, phase, failures, deaths, has_parents, has_children, until, reason)
      select m.task_id, m.job_id, m.tenant_id, m.lane_id, m.priority, m.phase, m.failures, m.deaths, m.has_parents, m.has_children, 'infinity', 'paused'
      from met m join held h on h.id = m.job_id
    ), left_alone as (
      insert into ready (task_id, vtime, job_id, tenant_id, lane_id, priority, phase, failures, deaths, has_parents, has_children)
      select m.task_id, m.vtime, m.job_id, m.tenant_id, m.lane_id, m.priority, m.phase, m.failures, m.deaths, m.has_parents, m.has_children
      from met m where m.status in ('paused', 'failed') and not exists (select from held h where h.id = m.job_id)
    ), started as (
      update jobs j set status = 'running', started_at = coalesce(j.started_at, v_now)
      where j.id = any (array(
        select q.id from jobs q where q.id = any (array(select m.job_id from met m where m.status = 'queued'))
        and q.status || '' = 'queued' for no key update skip locked))
    ), moved as (
      update lanes l set
        clock = greatest(l.clock, g.top), read_from = l.clock, moved_at = v_now,
        swept_at = case when l.swept_at < v_now - interval '1 second' then v_now else l.swept_at end
      from (select lane_id, max(vtime) as top from gone group by lane_id) as g
      where l.id = g.lane_id and l.id = any (array(
        select q.id from lanes q where q.id = any (array(select distinct x.lane_id from gone x))
        and (q.moved_at < v_now - interval '200 milliseconds' or q.swept_at < v_now - interval '1 second')
        for no key update skip locked))
    )
    select l.task_id, l.lease, l.job_id, l.tenant_id, t.kind, t.key,
      case when not l.has_parents then t.input
        -- Many outputs may be more than fits into a document, or into a worker: then they are counted first.
        when exists (select from edges e where e.job_id = l.job_id and e.child_id = l.task_id offset 64)
        then t.input || _many_outputs(l.job_id, l.task_id)
        else t.input || jsonb_build_object('after', (
          select coalesce(jsonb_object_agg(p.key, r.output), '{}')
          from edges e join tasks p on p.job_id = e.job_id and p.id = e.parent_id
          left join results r on r.job_id = e.job_id and r.task_id = e.parent_id
          where e.job_id = l.job_id and e.child_id = l.task_id)) end,
      l.failures + l.deaths + 1, coalesce(t.max_attempts, k.max_attempts)::integer,
      coalesce(t.timeout_seconds, k.timeout_seconds), l.expires_at, case when l.is_gated then (select x.provider from lanes x where x.id = l.lane_id) end
    from leased l
    cross join lateral (
      select x.kind, x.key, x.input, x.max_attempts, x.timeout_seconds from tasks x
      where x.job_id = l.job_id and x.id = l.task_id offset 0) as t
    join kinds k on k.name = t.kind
    order by l.lease;
    get diagnostics v_count = row_count;
    v_taken := v_taken + v_count;
    if cardinality(v_held) > 0 then
      insert into holds (tenant_id, job_id, task_id, lease, action, amounts, has_budget, at)
      select l.tenant_id, l.job_id, l.task_id, l.lease, 'claim', h.amounts -> 'amounts', (h.amounts ->> 'has_budget')::boolean, v_now
      from unnest(v_held, v_amounts) as h(task_id, amounts)
      cross join lateral (select x.* from leases x where x.task_id = h.task_id offset 0) as l;
      get diagnostics v_kept = row_count;
      if v_kept < cardinality(v_held) then
        perform _free_unclaimed(v_held, v_amounts, v_now);
      end if;
    end if;
    exit when v_count = v_left or cardinality(v_tids) < v_left and not v_is_more;
    -- Some were of a job stopped this moment: ask for the rest.
    v_left := v_left - v_count;
  end loop;
  if v_taken = 0 then
    perform _do_overdue();
  end if;
  if v_taken = 0 and v_is_more then
    -- We only cleared away so far: whoever comes next will find more.
    perform pg_notify('penstock', 'ready:' || l.kind) from lanes l where l.is_gated and (p_task_types is null or l.kind = any (p_task_types));
  end if;
end
$$;
comment on function penstock.claim_tasks(text, integer, text[], integer) is
  'Takes up to p_max_tasks tasks of these kinds (null: all) for a worker, fairly among tenants, within limits, quotas and budgets, each with a lease that lasts p_lease_seconds without a heartbeat.';

create or replace function penstock._many_outputs(p_job_id uuid, p_task_id bigint)
returns jsonb language sql stable set search_path = penstock, pg_temp as $$
  -- As much as 64 outputs of the largest size would be; what does not fit is null, and said to be.
  select jsonb_build_object('after', jsonb_object_agg(x.key, case when x.fits then x.output end))
    || case when bool_and(x.fits) then '{}' else jsonb_build_object('after_omitted', count(*) filter (where not x.fits)) end
  from (
    select p.key, r.output, coalesce(sum(octet_length(r.output::text)) over (order by e.parent_id), 0)
      <= 64 * (_setting('max_output_bytes'))::bigint as fits
    from edges e join tasks p on p.job_id = e.job_id and p.id = e.parent_id
    left join results r on r.job_id = e.job_id and r.task_id = e.parent_id
    where e.job_id = p_job_id and e.child_id = p_task_id) as x
$$;
comment on function penstock._many_outputs(uuid, bigint) is 'The outputs of a task''s many parents, as far as they fit into one document.';

create or replace function penstock._promote(p_limit integer)
returns integer language plpgsql set search_path = penstock, pg_temp set enable_seqscan = off set jit = off as $$
declare
  v_now timestamptz := _now();
  v_again ready[];
  v_fresh ready[];
begin
  with due as (
    select ctid from parked where pending = 0 and until <= v_now and until < 'infinity'
    order by until limit p_limit for update skip locked
  ), gone as (
    delete from parked where ctid = any (array(select ctid from due)) returning *
  ), lines as (
    select row(task_id, 0, job_id, tenant_id, lane_id, priority, phase, failures, deaths, has_parents, has_children)::ready as line,
      reason, until, task_id from gone
  )
  select array_agg(line order by until, task_id) filter (where reason = 'retry'),
    array_agg(line order by until, task_id) filter (where reason <> 'retry') into v_again, v_fresh from lines;
  perform _queue(v_again, true);
  perform _queue(v_fresh, false);
  return coalesce(cardinality(v_again), 0) + coalesce(cardinality(v_fresh), 0);
end
$$;
comment on function penstock._promote(integer) is 'Queues what waited for a time that has come.';

create or replace function penstock.reclaim_stale_tasks()
returns integer language plpgsql security definer set search_path = penstock, pg_temp as $$
declare
  v_now timestamptz := _now();
  v_before timestamptz := _reclaim_before(v_now);
  v_max_deaths integer := (_setting('max_deaths'))::integer;
  v_waits boolean;
  v_lost leases[];
  v_dead leases[];
begin
  -- What ends moves its job's counts, and what was admitted an account: for those one may have to wait, behind a worker
  -- that vanished before its commit. What only goes back into line waits for nobody, and comes first.
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
  insert into attempts (job_id, task_id, lease, tenant_id, attempt, worker_id, started_at, ended_at, outcome, error_code, error_message)
  select job_id, task_id, lease, tenant_id, failures + deaths + 1, worker_id, started_at, v_now, 'lost', 'worker_lost',
    format('worker %s stopped sending heartbeats', worker_id)
  from unnest(v_lost) where not is_canceled;
  v_dead := array(select l from unnest(v_lost) as l where not l.is_canceled and l.deaths + 1 >= v_max_deaths);
  if cardinality(v_dead) > 0 then
    perform _bury(v_dead, array_fill('worker_deaths'::text, array[cardinality(v_dead)]),
      array_fill('worker_lost'::text, array[cardinality(v_dead)]),
      array_fill(format('its worker died %s times', v_max_deaths), array[cardinality(v_dead)]));
  end if;
  perform _return_tasks(array(select l from unnest(v_lost) as l where not l.is_canceled and l.deaths + 1 < v_max_deaths), 1);
  perform _keep_canceled(array(select l from unnest(v_lost) as l where l.is_canceled));
  perform _settle(v_lost, false, null);
  return cardinality(v_lost);
end
$$;
comment on function penstock.reclaim_stale_tasks() is
  'Takes back tasks whose lease ran out, as many as one transaction should: queued again at once, or dead-lettered when their worker died too often. Returns how many; there may be more.';

create or replace function penstock._return_tasks(p_leases penstock.leases[], p_deaths integer)
returns void language plpgsql set search_path = penstock, pg_temp as $$
begin
  perform _queue(array(
    select row(task_id, 0, job_id, tenant_id, lane_id, priority, phase, failures, deaths + p_deaths, has_parents, has_children)::ready
    from unnest(p_leases) order by lease), true);
end
$$;
comment on function penstock._return_tasks(penstock.leases[], integer) is 'Puts leased tasks back in front.';

create or replace function penstock._keep_canceled(p_leases penstock.leases[])
returns void language sql set search_path = penstock, pg_temp as $$
  -- The rest of a failed job can be retried, and may have been by now: the claim sets it aside or takes it. Of a
  -- canceled one nothing is kept.
  select _return_tasks(array(select l from unnest(p_leases) as l join jobs j on j.id = l.job_id where j.status <> 'canceled'), 0)
$$;
comment on function penstock._keep_canceled(penstock.leases[]) is 'Gives back what was running when its job was stopped.';

create or replace function penstock.upkeep()
returns table (reclaimed integer, promoted integer, chores integer, next_seconds double precision)
language plpgsql security definer set search_path = penstock, pg_temp set lock_timeout = '3s' as $$
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
    -- Others may take these tasks as soon as this is committed; and who has ended tasks has accounts in hand, and should
    -- wait for nothing. The rest is for the next time, at once.
    next_seconds := 0;
    return next;
    return;
  end if;
  promoted := _promote(5000);
  perform _refuse_waiting();
  perform _expire_holds();
  perform _forget_told_limits();
  v_woken := _wake_missed();
  promoted := promoted + v_woken;
  perform _pause_spent_jobs();
  perform _reroute();
  perform _compact();
  perform _sum_tasks();
  -- Of those with nothing left to do, many at once; of the others, one bite.
  for v_job_id in select c.job_id from penstock.chores c order by c.created_at limit 100 loop
    chores := chores + _do_chore(v_job_id, 5000);
    exit when chores > 0;
  end loop;
  -- Locked first and judged after: what was queued under the mark meanwhile must be seen.
  v_marks := array(select m.ctid from mixed m for update skip locked);
  delete from mixed m where m.ctid = any (v_marks) and not exists (
    select from ready r where r.tenant_id = m.tenant_id and r.lane_id = m.lane_id);
  select least(
    (select min(until) from parked where pending = 0 and until < 'infinity'),
    (select min(expires_at) from leases where expires_at >= v_now),
    -- Somebody has it in hand: it is extended or ended soon.
    (select v_now + interval '1 second' from leases where expires_at < v_now limit 1),
    -- While there are leases, often enough that a pause of six seconds is an outage (see _reclaim_before).
    (select v_now + interval '4 seconds' from leases limit 1),
    (select min(expires_at) from holds where status = 'held' and expires_at is not null),
    (select min(next_run_at) from schedules where is_enabled and next_run_at > v_now)) into v_next;
  next_seconds := case
    when promoted >= 5000 or chores > 0 or v_woken >= 500 then 0
    when exists (select from penstock.chores) then 0.1
    when v_next is not null then greatest(0, extract(epoch from v_next - v_now)) end;
  return next;
end
$$;
comment on function penstock.upkeep() is
  'What any worker does now and then, and lets be when it would have to wait for somebody for three seconds: takes back stale tasks, queues what is due, does a bite of a large pause, resume or cancel. Says in how many seconds there is more to do (null: nothing known).';
