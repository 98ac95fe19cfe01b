-- Workers: which are running, and how much work waits for them.

create or replace function penstock.report_worker(p_worker_id text, p_info jsonb)
returns void language plpgsql security definer set search_path = penstock, pg_temp
  -- Every idle worker calls it all the time: planning would be most of the cost.
  set plan_cache_mode = force_generic_plan as $$
declare
  v_now timestamptz := _now();
begin
  perform _check_name(p_worker_id, 'p_worker_id', 'invalid_worker');
  perform _check_clean(concat(p_info ->> 'host', p_info ->> 'version', p_info ->> 'state'), 'p_info',
    'invalid_worker');
  update workers set state = coalesce(p_info ->> 'state', 'running'),
    running = coalesce((p_info ->> 'running')::integer, 0), beat_at = v_now
  where id = p_worker_id;
  if found then
    return;
  end if;
  insert into workers as w (id, host, pid, kinds, concurrency, version, state, running, started_at, beat_at)
  values (p_worker_id, coalesce(p_info ->> 'host', '?'), coalesce((p_info ->> 'pid')::integer, 0),
    array(select jsonb_array_elements_text(coalesce(p_info -> 'kinds', '[]'))),
    coalesce((p_info ->> 'concurrency')::integer, 1), coalesce(p_info ->> 'version', '?'),
    coalesce(p_info ->> 'state', 'running'), coalesce((p_info ->> 'running')::integer, 0), v_now, v_now)
  on conflict (id) do update
    set state = excluded.state, running = excluded.running, beat_at = excluded.beat_at;
end
$$;
comment on function penstock.report_worker(text, jsonb) is
  'Records that a worker is running: {"host", "pid", "kinds", "concurrency", "version", "state", "running"}. '
  'Upkeep removes workers that have not reported for 10 minutes, and stopped ones after a day.';

create or replace function penstock._forget_workers(p_now timestamptz)
returns void language sql set search_path = penstock, pg_temp as $$
  -- A worker that was killed leaves its row behind. Rows that a report is writing are passed over.
  delete from workers where id = any (array(
    select w.id from workers w
    where w.beat_at < p_now
        - case when w.state = 'stopped' then interval '1 day' else interval '10 minutes' end
      -- A subquery, because a join would read all leases although hardly any worker is that old.
      and not (select exists (select from leases l where l.worker_id = w.id and l.expires_at > p_now))
    for update skip locked))
$$;
comment on function penstock._forget_workers(timestamptz) is
  'Removes workers that have not reported for 10 minutes, and stopped ones after a day.';

create or replace function penstock.drain_worker(p_worker_id text)
returns void language plpgsql security definer set search_path = penstock, pg_temp as $$
begin
  update workers set drain_asked_at = coalesce(drain_asked_at, _now())
  where id = p_worker_id and state <> 'stopped';
  if not found then
    perform _refuse(404, 'unknown_worker', 'there is no such worker, or it has stopped');
  end if;
  perform _audit(null, 'worker.drained', null, 'worker:' || p_worker_id);
end
$$;
comment on function penstock.drain_worker(text) is
  'Asks a worker to claim nothing more, finish its running tasks and stop. It sees this at its next '
  'heartbeat.';

create or replace function penstock.backlog()
returns table (kind text, provider text, waiting bigint, running bigint, oldest_seconds double precision)
language sql stable security definer set search_path = penstock, pg_temp as $$
  -- Tenants with own limits of a provider have lanes of their own, with the same names.
  select l.kind, l.provider, sum(w.n)::bigint, sum(x.n)::bigint, max(h.seconds)::double precision
  from lanes l
  -- Bounded, so that a scrape costs the same however long the queue is.
  cross join lateral (
    select count(*) as n from (select from ready r where r.lane_id = l.id limit 100000) as r) as w
  cross join lateral (select count(*) as n from leases x where x.lane_id = l.id) as x
  left join lateral (
    select extract(epoch from _now() - t.created_at) as seconds
    from (select r.job_id, r.task_id from ready r where r.lane_id = l.id order by r.vtime limit 1) as r
    join tasks t on t.job_id = r.job_id and t.id = r.task_id) as h on true
  group by l.kind, l.provider
$$;
comment on function penstock.backlog() is
  'Per kind and provider: waiting tasks (counted up to 100,000 per lane), running tasks, and the age of the '
  'next task. Read by autoscalers.';

create or replace function penstock._drained(p_since timestamptz)
returns table (kind text, provider text, per_second double precision)
language sql stable set search_path = penstock, pg_temp set enable_seqscan = off set jit = off as $$
  with ended as materialized (
    select r.job_id, r.task_id, r.finished_at from results r
    where r.finished_at >= p_since and r.outcome <> 'canceled' limit 100000
  ), span as (
    -- Of more than 100,000 tasks only the time in which these ended counts. One in step has its lane read.
    select greatest(1, count(*) / 5000) as step, case when count(*) < 100000 then 60
      else greatest(1, extract(epoch from max(e.finished_at) - min(e.finished_at))) end as seconds
    from ended e
  )
  select l.kind, l.provider, (count(*) * s.step / s.seconds)::double precision
  from span s
  join ended e on (hashint8(e.task_id) & 2147483647) % s.step = 0
  join tasks t on t.job_id = e.job_id and t.id = e.task_id
  join lanes l on l.id = t.lane_id
  group by l.kind, l.provider, s.step, s.seconds
$$;
comment on function penstock._drained(timestamptz) is
  'The tasks per second that ended since a minute ago, per kind and provider.';

create or replace function penstock.drain_rates()
returns table (kind text, provider text, per_second double precision)
language sql stable security definer set search_path = penstock, pg_temp as $$
  select d.kind, d.provider, d.per_second from _drained(_now() - interval '1 minute') as d
$$;
comment on function penstock.drain_rates() is
  'Per kind and provider: tasks per second that ended (succeeded or failed) in the last minute, measured. '
  'Above 5,000 tasks per minute from a sample.';
