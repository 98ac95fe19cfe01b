-- Workers: which are running, and how much work waits for them.

create or replace function penstock.report_worker(p_worker_id text, p_info jsonb)
returns void language plpgsql security definer set search_path = penstock, pg_temp as $$
declare
  v_now timestamptz := _now();
begin
  perform _check_name(p_worker_id, 'p_worker_id', 'invalid_worker');
  perform _check_clean(concat(p_info ->> 'host', p_info ->> 'version', p_info ->> 'state'), 'p_info',
    'invalid_worker');
  insert into workers as w (id, host, pid, kinds, concurrency, version, state, running, started_at, beat_at)
  values (p_worker_id, coalesce(p_info ->> 'host', '?'), coalesce((p_info ->> 'pid')::integer, 0),
    array(select jsonb_array_elements_text(coalesce(p_info -> 'kinds', '[]'))),
    coalesce((p_info ->> 'concurrency')::integer, 1), coalesce(p_info ->> 'version', '?'),
    coalesce(p_info ->> 'state', 'running'), coalesce((p_info ->> 'running')::integer, 0), v_now, v_now)
  on conflict (id) do update
    set state = excluded.state, running = excluded.running, beat_at = excluded.beat_at;
  -- A worker that was killed leaves its row behind. Rows that another report is writing are passed over.
  delete from workers where id = any (array(
    select w.id from workers w
    where w.beat_at < v_now
        - case when w.state = 'stopped' then interval '1 day' else interval '10 minutes' end
      and not exists (select from leases l where l.worker_id = w.id and l.expires_at > v_now)
    for update skip locked));
end
$$;
comment on function penstock.report_worker(text, jsonb) is
  'Records that a worker is running: {"host", "pid", "kinds", "concurrency", "version", "state", "running"}. '
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
  select l.kind, l.provider,
    (select count(*) from ready r where r.lane_id = l.id),
    (select count(*) from leases x where x.lane_id = l.id),
    (select extract(epoch from _now() - t.created_at)
     from (select r.job_id, r.task_id from ready r where r.lane_id = l.id order by r.vtime limit 1) as h
     join tasks t on t.job_id = h.job_id and t.id = h.task_id)
  from lanes l
$$;
comment on function penstock.backlog() is
  'Per lane: waiting tasks, running tasks, and the age of the next task. Read by autoscalers.';

create or replace function penstock.drain_rates()
returns table (kind text, provider text, per_second double precision)
language sql stable security definer set search_path = penstock, pg_temp as $$
  select l.kind, l.provider, coalesce(x.n / nullif(p.seconds, 0), 0)
  from lanes l
  cross join lateral (select count(*) as n from leases x where x.lane_id = l.id) as x
  cross join lateral _recent_durations(l.kind, l.provider) as p
  where x.n > 0
$$;
comment on function penstock.drain_rates() is
  'Per lane with running tasks: tasks that end per second, estimated from the latest durations.';
