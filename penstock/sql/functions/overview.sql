-- Overview: the current state of a tenant, or of all tenants. Counts stop at 100,000,
-- so that a page that is open all day does not get slower as the queue grows.

create or replace function penstock._bucket(p_seconds double precision)
returns integer language sql immutable set search_path = pg_catalog, pg_temp as $$
  select least(60, floor(2 / ln(2::double precision) * ln(greatest(p_seconds * 1000, 1))))::integer
$$;
comment on function penstock._bucket(double precision) is
  'The histogram bucket of a duration; bucket n begins at 2^(n/2) milliseconds.';

create or replace function penstock._percentile(p_buckets jsonb, p_part double precision)
returns double precision language sql immutable set search_path = penstock, pg_temp as $$
  select power(2, (x.bucket + 0.5) / 2) / 1000 from (
    select b.key::integer as bucket, sum(b.value::numeric) over (order by b.key::integer) as upto,
      sum(b.value::numeric) over () as total
    from jsonb_each(p_buckets) as b) as x
  where x.upto >= p_part * x.total order by x.bucket limit 1
$$;
comment on function penstock._percentile(jsonb, double precision) is
  'A percentile of a histogram, in seconds, accurate to about 20 %.';

create or replace function penstock._sum_tasks()
returns integer language plpgsql set search_path = penstock, pg_temp set enable_seqscan = off
  set jit = off as $$
declare
  -- A minute is summed 10 seconds after it is over, when all its transactions have committed.
  v_until timestamptz := date_trunc('minute', _now() - interval '10 seconds');
  v_from timestamptz;
  v_count integer;
begin
  select greatest(minute + interval '1 minute', v_until - interval '1 hour') into v_from
  from task_sums where tenant_id is null order by minute desc limit 1;
  v_from := coalesce(v_from, v_until - interval '5 minutes');
  if v_from >= v_until or not pg_try_advisory_xact_lock(hashtextextended('penstock.task_sums', 0)) then
    return 0;
  end if;
  v_count := _sum_minutes(v_from, v_until);
  delete from task_sums where minute < v_until - interval '7 days';
  delete from task_sums where minute < v_until - interval '3 hours' and tenant_id is not null;
  return v_count;
end
$$;
comment on function penstock._sum_tasks() is
  'Sums the tasks that ended, per tenant and minute, for minutes that are over.';

create or replace function penstock._sum_minutes(p_from timestamptz, p_until timestamptz)
returns integer language plpgsql set search_path = penstock, pg_temp as $$
declare
  v_count integer;
begin
  with counted as materialized (
    select r.tenant_id, date_bin('1 minute', r.finished_at, p_from) as minute, r.outcome,
      _bucket(date_part('epoch', r.finished_at - r.started_at)) as bucket, count(*) as n
    from results r where r.finished_at >= p_from and r.finished_at < p_until and r.outcome <> 'canceled'
      and r.started_at is not null
    group by 1, 2, 3, 4
  ), sums as materialized (
    select c.tenant_id, c.minute, sum(c.n) filter (where c.outcome = 'succeeded') as succeeded, sum(c.n)
      filter (where c.outcome = 'failed') as failed,
      -- Waiting times are sampled: one task in sample_rate,
      -- about 20 of each tenant and at most 20,000 in all.
      greatest(1, sum(c.n) / 20, sum(sum(c.n)) over (partition by c.minute) / 20000)::bigint as sample_rate
    from counted c group by c.tenant_id, c.minute
  ), ran as (
    select c.tenant_id, c.minute, c.bucket, sum(c.n) as n from counted c group by 1, 2, 3
  ), waited as (
    -- A task waits from the end of its last parent, or from the last answer or time that it asked for.
    select s.tenant_id, s.minute, _bucket(date_part('epoch', r.started_at - greatest(t.created_at, (
        select max(p.finished_at) from edges g join results p on p.job_id = g.job_id
          and p.task_id = g.parent_id
        where g.job_id = r.job_id and g.child_id = r.task_id), (
        select max(w.ended_at) from waits w
        where w.job_id = r.job_id and w.task_id = r.task_id and w.ended_at <= r.started_at)))) as bucket,
      sum(s.sample_rate) as n
    from results r join sums s on s.tenant_id = r.tenant_id
      and s.minute = date_bin('1 minute', r.finished_at, p_from)
    join tasks t on t.job_id = r.job_id and t.id = r.task_id
    where r.finished_at >= p_from and r.finished_at < p_until and r.outcome <> 'canceled'
      and r.started_at is not null
      and (hashint8(r.task_id) & 2147483647) % s.sample_rate = 0
    group by 1, 2, 3
  )
  insert into task_sums (tenant_id, minute, succeeded, failed, waits, runs)
  select s.tenant_id, s.minute, coalesce(s.succeeded, 0), coalesce(s.failed, 0), coalesce(w.buckets, '{}'),
    a.buckets
  from sums s
  join (select x.tenant_id, x.minute, jsonb_object_agg(x.bucket, x.n) as buckets from ran x
    group by 1, 2) as a using (tenant_id, minute)
  left join (select x.tenant_id, x.minute, jsonb_object_agg(x.bucket, x.n) as buckets from waited x
    group by 1, 2) as w using (tenant_id, minute)
  union all
  -- The sum of all tenants has a row for every minute: the last one marks how far the sums go.
  select null, m.minute, coalesce((select sum(s.succeeded) from sums s where s.minute = m.minute), 0),
    coalesce((select sum(s.failed) from sums s where s.minute = m.minute), 0),
    coalesce((select jsonb_object_agg(w.bucket, w.n)
      from (select bucket, sum(n) as n from waited x where x.minute = m.minute group by bucket) as w), '{}'),
    coalesce((select jsonb_object_agg(a.bucket, a.n)
      from (select bucket, sum(n) as n from ran x where x.minute = m.minute group by bucket) as a), '{}')
  from generate_series(p_from, p_until - interval '1 minute', interval '1 minute') as m(minute)
  on conflict do nothing;
  get diagnostics v_count = row_count;
  return v_count;
end
$$;
comment on function penstock._sum_minutes(timestamptz, timestamptz) is
  'Writes the sums of the minutes from p_from to p_until, and returns the number of rows.';

create or replace function penstock.task_rates(p_tenant_id uuid default null, p_minutes integer default 60)
returns table (minute timestamptz, succeeded integer, failed integer, wait_p50 double precision,
  wait_p95 double precision, run_p50 double precision, run_p95 double precision)
language plpgsql stable security definer set search_path = penstock, pg_temp as $$
#variable_conflict use_column
begin
  perform _require_role(p_tenant_id, array['owner', 'admin', 'member', 'viewer']);
  return query
    select m.minute, coalesce(s.succeeded, 0), coalesce(s.failed, 0), _percentile(s.waits, 0.5),
      _percentile(s.waits, 0.95), _percentile(s.runs, 0.5), _percentile(s.runs, 0.95)
    from generate_series(1, least(greatest(p_minutes, 1), 1440)) as n
    cross join lateral (
      select date_trunc('minute', _now() - interval '10 seconds') - n * interval '1 minute' as minute) as m
    left join task_sums s on s.tenant_id is not distinct from p_tenant_id and s.minute = m.minute
    order by m.minute;
end
$$;
comment on function penstock.task_rates(uuid, integer) is
  'For each of the last p_minutes minutes, for a tenant or (for the service) all tenants: tasks succeeded '
  'and failed, and the p50 and p95 of their waiting and running times in seconds.';

create or replace function penstock._count_ready(p_tenant_id uuid, p_lane_id integer)
returns bigint language plpgsql stable set search_path = penstock, pg_temp set enable_seqscan = off
  set jit = off as $$
begin
  -- One query for each case, so that each uses its index.
  if p_tenant_id is null then
    return (select count(*) from (select from ready where lane_id = p_lane_id limit 100001) as x);
  end if;
  return (select count(*)
    from (select from ready where tenant_id = p_tenant_id and lane_id = p_lane_id limit 100001) as x);
end
$$;
comment on function penstock._count_ready(uuid, integer) is
  'The number of ready tasks in a lane, of a tenant or of all tenants; at most 100,001.';

create or replace function penstock.lane_states(p_tenant_id uuid default null)
returns table (lane_id integer, kind text, provider text, tenant_id uuid, waiting bigint, running bigint,
  oldest_seconds double precision, workers bigint, state text, reason text, opens_at timestamptz)
language plpgsql stable security definer set search_path = penstock, pg_temp set jit = off as $$
#variable_conflict use_column
declare
  v_now timestamptz := _now();
begin
  perform _require_role(p_tenant_id, array['owner', 'admin', 'member', 'viewer']);
  return query
    select l.id, l.kind, l.provider, l.tenant_id, w.waiting, coalesce(x.running, 0),
      case when w.waiting > 0 then (select extract(epoch from v_now - t.created_at) from (
        select r.job_id, r.task_id from ready r where r.lane_id = l.id
          and (p_tenant_id is null or r.tenant_id = p_tenant_id)
        order by r.vtime limit 1) as h join tasks t on t.job_id = h.job_id
          and t.id = h.task_id)::double precision end,
      (select count(*) from workers a where a.state = 'running' and a.beat_at > v_now - interval '60 seconds'
        and l.kind = any (a.kinds)),
      case when e.id is null then 'active' when e.status <> 'active' then e.status
        when s.closed_until > v_now and s.is_exhausted then 'exhausted'
        when s.closed_until > v_now then 'closed' when s.open_at > v_now then 'full' else 'active' end,
      case when s.closed_until > v_now then s.closed_reason when s.open_at > v_now then s.open_for end,
      nullif(case when greatest(s.open_at, s.closed_until) > v_now
        then greatest(s.open_at, s.closed_until) end, 'infinity')
    from lanes l
    cross join lateral (select _count_ready(p_tenant_id, l.id) as waiting) as w
    left join (select y.lane_id, count(*) as running from leases y where p_tenant_id is null
      or y.tenant_id = p_tenant_id group by y.lane_id) as x on x.lane_id = l.id
    left join endpoints e on e.id = l.endpoint_id
    left join endpoint_states s on s.endpoint_id = e.id
    where p_tenant_id is null or l.tenant_id is null and (w.waiting > 0 or x.running > 0)
      or l.tenant_id = p_tenant_id;
end
$$;
comment on function penstock.lane_states(uuid) is
  'Lanes, all of them or those in which a tenant has tasks: waiting and running tasks, the age of the next '
  'task, live workers for the kind, and whether the provider accepts work. Counts stop at 100,001.';

create or replace function penstock._cost_on_day(p_tenant_id uuid, p_day date)
returns numeric language plpgsql stable set search_path = penstock, pg_temp as $$
begin
  if p_tenant_id is null then
    return (select coalesce(sum(amount), 0) from cost_sums where tenant_id is null and day = p_day);
  end if;
  return (select coalesce(sum(amount), 0) from cost_sums where tenant_id = p_tenant_id and day = p_day);
end
$$;
comment on function penstock._cost_on_day(uuid, date) is
  'The costs of a tenant, or of all tenants, on a UTC day.';

create or replace function penstock._current_problems(p_tenant_id uuid, p_lanes jsonb)
returns jsonb language plpgsql stable set search_path = penstock, pg_temp as $$
declare
  v_problems jsonb := '[]';
  v_found record;
begin
  if (_setting('maintenance'))::boolean then
    v_problems := v_problems
      || jsonb_build_object('about', 'maintenance', 'text', 'Maintenance mode: no new tasks start.');
  end if;
  for v_found in
    select l.kind, sum(l.waiting) as waiting
    from jsonb_to_recordset(p_lanes) as l(kind text, waiting bigint, workers bigint)
    where l.waiting > 0 and l.workers = 0 group by l.kind order by 2 desc limit 5
  loop
    v_problems := v_problems || jsonb_build_object('about', 'worker', 'subject', v_found.kind,
      'count', v_found.waiting, 'text', format('No live worker handles %s', v_found.kind));
  end loop;
  for v_found in
    select l.provider, l.state, max(l.reason) as reason, sum(l.waiting) as waiting
    from jsonb_to_recordset(p_lanes) as l(provider text, state text, reason text, waiting bigint)
    where l.waiting > 0 and l.state in ('exhausted', 'closed', 'disabled', 'maintenance')
    group by l.provider, l.state order by 4 desc limit 5
  loop
    v_problems := v_problems || jsonb_build_object('about', 'provider', 'subject', v_found.provider,
      'count', v_found.waiting, 'text', format('%s is %s%s', v_found.provider,
        case v_found.state when 'maintenance' then 'under maintenance' else v_found.state end,
        coalesce(': ' || v_found.reason, '')));
  end loop;
  for v_found in
    select p.waits_for, count(*) as waiting from (
      select waits_for from parked
      where waits_for is not null and (p_tenant_id is null or tenant_id = p_tenant_id) limit 100001) as p
    where p.waits_for <> 'refused' group by p.waits_for order by 2 desc limit 5
  loop
    v_problems := v_problems || jsonb_build_object('about', 'quota', 'subject', v_found.waits_for,
      'count', v_found.waiting, 'text', case v_found.waits_for
        when 'budget' then 'Held back by a job''s budget'
        when 'price' then 'Held back: a provider has no price'
        when 'limit' then 'Held back: larger than a provider''s limit'
        else format('Held back by the quota of %s', v_found.waits_for) end);
  end loop;
  for v_found in
    select s.name, s.is_enabled, s.failures, s.last_error from schedules s
    where s.failures > 0 and (p_tenant_id is null or s.tenant_id = p_tenant_id)
    order by s.is_enabled, s.failures desc, s.name limit 5
  loop
    v_problems := v_problems || jsonb_build_object('about', 'schedule', 'subject', v_found.name,
      'count', v_found.failures, 'text', format('Schedule %s %s: %s', v_found.name,
        case when v_found.is_enabled then 'fails' else 'was turned off' end, left(v_found.last_error, 200)));
  end loop;
  return v_problems;
end
$$;
comment on function penstock._current_problems(uuid, jsonb) is
  'What keeps tasks from running: maintenance mode, missing workers, closed providers, quotas and budgets, '
  'schedules that fail.';

create or replace function penstock._recent_failures(p_tenant_id uuid)
returns jsonb language plpgsql stable set search_path = penstock, pg_temp as $$
declare
  v_now timestamptz := _now();
begin
  return (
    -- The latest 10,000 dead letters, however many there are.
    -- One query for each case, so that each uses its index.
    with latest as materialized (
      (select d.kind, d.error_code, d.error_message, d.died_at, d.id from dead_letters d
        where p_tenant_id is null order by d.id desc limit 10000)
      union all
      (select d.kind, d.error_code, d.error_message, d.died_at, d.id from dead_letters d
        where d.tenant_id = p_tenant_id order by d.id desc limit 10000)
    )
    select jsonb_build_object(
      'hour', (select count(*) from latest where died_at > v_now - interval '1 hour'),
      'causes', coalesce((select jsonb_agg(to_jsonb(c)) from (
        select kind, error_code, count(*) as count, max(died_at) as last_at,
          (array_agg(error_message order by id desc))[1] as message
        from latest where died_at > v_now - interval '1 day'
        group by kind, error_code order by 3 desc, 1, 2 limit 6) as c), '[]')));
end
$$;
comment on function penstock._recent_failures(uuid) is
  'The number of permanent failures of the last hour, and the most frequent causes of the last day.';

create or replace function penstock.overview(p_tenant_id uuid default null)
returns jsonb language plpgsql stable security definer set search_path = penstock, pg_temp
  set jit = off as $$
declare
  v_now timestamptz := _now();
  v_today date := (v_now at time zone 'utc')::date;
  v_lanes jsonb;
  v_failures jsonb;
  v_result jsonb;
begin
  perform _require_role(p_tenant_id, array['owner', 'admin', 'member', 'viewer']);
  select coalesce(jsonb_agg(to_jsonb(l)), '[]') into v_lanes from lane_states(p_tenant_id) as l;
  v_failures := _recent_failures(p_tenant_id);
  v_result := jsonb_build_object(
    'at', v_now,
    'waiting', (select coalesce(sum(waiting), 0) from jsonb_to_recordset(v_lanes) as l(waiting bigint)),
    'running', (select coalesce(sum(running), 0) from jsonb_to_recordset(v_lanes) as l(running bigint)),
    'oldest_seconds', (
      select max(oldest_seconds) from jsonb_to_recordset(v_lanes) as l(oldest_seconds double precision)),
    'held', (select count(*) from (
      select from parked
      where waits_for is not null and (p_tenant_id is null or tenant_id = p_tenant_id) limit 100001) as x),
    'failed_hour', v_failures -> 'hour',
    'spent_today', _cost_on_day(p_tenant_id, v_today)::text,
    'spent_yesterday', _cost_on_day(p_tenant_id, v_today - 1)::text,
    'currency', _setting('base_currency'),
    'causes', v_failures -> 'causes',
    'problems', _current_problems(p_tenant_id, v_lanes),
    'lanes', v_lanes,
    -- Reads the newest job: the index may begin with many dead entries of pruned jobs.
    'has_jobs', case when p_tenant_id is null
      then (select true from jobs order by id desc limit 1) is not null
      else exists (select from jobs where tenant_id = p_tenant_id) end);
  -- The workers are visible to operators only.
  if p_tenant_id is null then
    v_result := v_result || (select jsonb_build_object('workers', jsonb_build_object(
      'alive', count(*) filter (where w.state in ('running', 'draining')),
      'late', count(*) filter (where w.state = 'late'),
      'gone', count(*) filter (where w.state = 'gone'),
      'slots', coalesce(sum(w.concurrency) filter (where w.state = 'running'), 0)))
      from worker_list w);
  end if;
  return v_result;
end
$$;
comment on function penstock.overview(uuid) is
  'The current state of a tenant or (for the service) of all tenants: waiting, running and failed tasks, '
  'costs of today, problems, and the causes of failures.';

create or replace function penstock.pulse(out is_running boolean, out last_lease bigint)
language sql stable security definer set search_path = penstock, pg_temp as $$
  select exists (select from leases), last_value from lease_numbers
$$;
comment on function penstock.pulse() is
  'Whether any task runs, and the number of the last lease: if it has changed, a task was claimed in the '
  'meantime.';

create or replace function penstock.job_graph(p_job_id uuid, p_after bigint default 0,
  p_limit integer default 500)
returns table (id bigint, kind text, key text, phase text, status text, waiting_for text,
  waiting_until timestamptz, attempt integer, fraction real, message text, created_at timestamptz,
    ready_at timestamptz, started_at timestamptz, finished_at timestamptz, error_code text, parents bigint[])
language plpgsql stable security definer set search_path = penstock, pg_temp set jit = off as $$
#variable_conflict use_column
declare
  v_job jobs := _visible_job(p_job_id, array['owner', 'admin', 'member', 'viewer']);
begin
  return query
    select t.id, t.kind, t.key, t.phase, t.status, t.waiting_for, t.waiting_until, t.attempt, t.fraction,
      t.message, t.created_at, greatest(t.created_at, v_job.run_at, x.ended_at), t.started_at, t.finished_at,
        t.error_code, x.parents
    from task_list t
    cross join lateral (
      select coalesce(array_agg(e.parent_id order by e.parent_id), '{}') as parents,
        max(r.finished_at) as ended_at
      from edges e left join results r on r.job_id = e.job_id and r.task_id = e.parent_id
      where e.job_id = p_job_id and e.child_id = t.id) as x
    where t.job_id = p_job_id and t.id > p_after order by t.id limit least(p_limit, 5000);
end
$$;
comment on function penstock.job_graph(uuid, bigint, integer) is
  'The tasks of a job with their parents and the time at which each became ready, for a graph, a grid or a '
  'timeline.';
