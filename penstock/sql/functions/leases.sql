-- Leases: what a worker may say about a task it holds. Every write names the lease's number, which only grows;
-- whoever comes with an old one is told so and changes nothing. Saying the same thing twice is no error.

create or replace function penstock._check_holder(p_worker_id text, p_lease bigint)
returns void language plpgsql immutable set search_path = penstock, pg_temp as $$
begin
  if p_lease is null and p_worker_id is null then
    perform _refuse(422, 'lease_missing', 'name the lease, or the worker that holds it');
  end if;
end
$$;
comment on function penstock._check_holder(text, bigint) is 'Whoever speaks of a task says who it is.';

create or replace function penstock._require_lease(p_task_id bigint, p_worker_id text, p_lease bigint)
returns void language plpgsql set search_path = penstock, pg_temp as $$
begin
  perform _check_holder(p_worker_id, p_lease);
  perform 1 from leases where task_id = p_task_id and lease = coalesce(p_lease, lease)
    and worker_id = coalesce(p_worker_id, worker_id) and not is_canceled for no key update;
  if not found then
    perform _refuse_lost(p_task_id);
  end if;
end
$$;
comment on function penstock._require_lease(bigint, text, bigint) is 'Refuses unless this is the live lease; locks it, for a moment: whoever keeps it longer takes _keep_lease.';

create or replace function penstock._keep_lease(p_task_id bigint, p_worker_id text, p_lease bigint)
returns penstock.leases language plpgsql set search_path = penstock, pg_temp as $$
declare
  v_lease leases;
begin
  perform _check_holder(p_worker_id, p_lease);
  select * into v_lease from leases where task_id = p_task_id and lease = coalesce(p_lease, lease)
    and worker_id = coalesce(p_worker_id, worker_id) and not is_canceled for key share;
  if not found then
    perform _refuse_lost(p_task_id);
  end if;
  return v_lease;
end
$$;
comment on function penstock._keep_lease(bigint, text, bigint) is
  'Refuses unless this is the live lease, and keeps it from ending until the transaction does, which may be a handler''s: it can be extended meanwhile, and report.';

create or replace function penstock._lost_code(p_task_id bigint)
returns text language sql stable set search_path = penstock, pg_temp as $$
  select case when exists (
    select from tasks t join jobs j on j.id = t.job_id where t.id = p_task_id and j.status = 'canceled')
    then 'canceled' else 'lease_lost' end
$$;
comment on function penstock._lost_code(bigint) is 'Why a lease is gone: its job was canceled, or it was lost.';

create or replace function penstock._refuse_lost(p_task_id bigint)
returns void language plpgsql set search_path = penstock, pg_temp as $$
begin
  perform _refuse(410, _lost_code(p_task_id), 'you do not hold the lease of this task',
    jsonb_build_object('task_id', p_task_id), 'Stop working on it: it was taken back, canceled, or has ended.');
end
$$;
comment on function penstock._refuse_lost(bigint) is 'Tells whoever comes with another lease than the live one.';

create or replace function penstock.heartbeat_tasks(p_worker_id text, p_leases jsonb, p_lease_seconds integer default null)
returns table (id bigint, lease bigint, code text)
language plpgsql security definer set search_path = penstock, pg_temp
  set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off as $$
declare
  v_seconds integer := coalesce(p_lease_seconds, (_setting('lease_seconds'))::integer);
  v_until timestamptz := _now() + make_interval(secs => v_seconds);
begin
  if v_seconds not between 1 and 86400 then
    perform _refuse(422, 'invalid_lease', 'p_lease_seconds is 1 to 86400', '{"field": "p_lease_seconds"}');
  end if;
  -- A lease that is locked is just being completed by its own worker: neither extended nor lost.
  update leases l set expires_at = greatest(l.expires_at, v_until)
  where l.ctid = any (array(
    select h.ctid from jsonb_to_recordset(p_leases) as g(id bigint, lease bigint)
    join leases h on h.task_id = g.id and h.lease = coalesce(g.lease, h.lease) and h.worker_id = p_worker_id
    join jobs j on j.id = h.job_id
    where not h.is_canceled and j.status in ('queued', 'running', 'paused')
    for no key update of h skip locked));
  return query
  select g.id, g.lease, case when h.task_id is null then _lost_code(g.id) else 'canceled' end
  from jsonb_to_recordset(p_leases) as g(id bigint, lease bigint)
  left join leases h on h.task_id = g.id and h.lease = coalesce(g.lease, h.lease) and h.worker_id = p_worker_id
  left join jobs j on j.id = h.job_id
  where h.task_id is null or h.is_canceled or j.status not in ('queued', 'running', 'paused');
exception when data_exception then
  perform _refuse(422, 'invalid_batch', 'p_leases is [{"id", "lease"}]', '{"field": "p_leases"}');
end
$$;
comment on function penstock.heartbeat_tasks(text, jsonb, integer) is
  'Extends a worker''s leases [{"id", "lease"}] and returns those that are gone: lease_lost or canceled.';

create or replace function penstock.heartbeat_task(p_task_id bigint, p_worker_id text, p_lease bigint default null)
returns boolean language plpgsql security definer set search_path = penstock, pg_temp as $$
declare
  v_code text;
begin
  select h.code into v_code
  from heartbeat_tasks(p_worker_id, jsonb_build_array(jsonb_build_object('id', p_task_id, 'lease', p_lease))) as h;
  if v_code is not null then
    perform _refuse(410, v_code, 'you do not hold the lease of this task', jsonb_build_object('task_id', p_task_id));
  end if;
  return true;
end
$$;
comment on function penstock.heartbeat_task(bigint, text, bigint) is 'Extends one lease; refuses with 410 when it is gone.';

create or replace function penstock.report_progress(
  p_task_id bigint, p_worker_id text, p_lease bigint default null, p_fraction double precision default null, p_message text default null)
returns void language plpgsql security definer set search_path = penstock, pg_temp as $$
begin
  perform _check_holder(p_worker_id, p_lease);
  -- A word about a task that somebody has in hand is not worth waiting for: that may be its own transaction.
  update leases set fraction = case when p_fraction is null then fraction else least(1, greatest(0, p_fraction)) end, message = coalesce(left(p_message, 500), message)
  where ctid = any (array(
    select ctid from leases where task_id = p_task_id and lease = coalesce(p_lease, lease)
      and worker_id = coalesce(p_worker_id, worker_id) and not is_canceled for no key update skip locked));
  if not found then
    perform _keep_lease(p_task_id, p_worker_id, p_lease);
  end if;
end
$$;
comment on function penstock.report_progress(bigint, text, bigint, double precision, text) is 'How far a running task is (0 to 1), and a line for people.';

create or replace function penstock._check_arrays(p_task_ids bigint[], p_leases bigint[], p_others integer)
returns void language plpgsql immutable set search_path = penstock, pg_temp as $$
begin
  if p_task_ids is null or cardinality(p_task_ids) not between 1 and 10000
     or (p_leases is not null and cardinality(p_leases) <> cardinality(p_task_ids))
     or p_others is not null and p_others <> cardinality(p_task_ids) then
    perform _refuse(422, 'invalid_batch', 'a batch is 1 to 10000 tasks, with one lease and one value for each');
  end if;
end
$$;
comment on function penstock._check_arrays(bigint[], bigint[], integer) is 'The arrays of a batch have one length.';

create or replace function penstock.complete_tasks(
  p_worker_id text, p_task_ids bigint[], p_leases bigint[] default null, p_outputs jsonb[] default null)
returns table (id bigint, code text)
language plpgsql security definer set search_path = penstock, pg_temp
  set enable_seqscan = off set plan_cache_mode = force_generic_plan set jit = off as $$
declare
  v_now timestamptz := _now();
  v_limit integer := (_setting('max_output_bytes'))::integer;
  v_count integer := 0;
  v_deltas phase_delta[];
  v_jobs uuid[];
  v_parents bigint[];
  v_job_id uuid;
  v_freed ready[];
  v_some_count integer;
  v_some_deltas phase_delta[];
  v_some_jobs uuid[];
  v_some_parents bigint[];
  v_some_freed ready[];
  v_gated leases[];
  v_some_gated leases[];
begin
  perform _check_arrays(p_task_ids, p_leases, cardinality(p_outputs));
  loop
    -- The lateral look-up keeps the plan: one index probe per task, whatever the statistics say.
    with gone as (
      delete from leases d where d.ctid = any (array(
        select l.ctid from unnest(p_task_ids, p_leases, p_outputs) as g(id, lease, output)
        cross join lateral (
          select x.ctid from leases x where x.task_id = g.id and x.lease = coalesce(g.lease, x.lease)
            and x.worker_id = p_worker_id and not x.is_canceled offset 0) as l
        where g.output is null or octet_length(g.output::text) <= 128
          or octet_length(g.output::text) <= v_limit and _is_readable(g.output)))
        and not d.is_canceled
      returning d.*
    ), ended as (
      insert into results (job_id, task_id, lease, tenant_id, started_at, finished_at, attempt, phase, outcome, worker_id, output)
      select g.job_id, g.task_id, g.lease, g.tenant_id, g.started_at, v_now, g.failures + g.deaths + 1, g.phase, 'succeeded', p_worker_id, o.output
      from gone g left join (
        select distinct on (x.id, x.lease) x.* from unnest(p_task_ids, p_leases, p_outputs) as x(id, lease, output)
        where x.output is not null
      ) as o on o.id = g.task_id and coalesce(o.lease, g.lease) = g.lease
    )
    select (select count(*) from gone),
      (select array_agg(row(c.job_id, c.phase, c.n, 0, 0)::phase_delta) from (
        select g.job_id, g.phase, count(*)::integer as n from gone g group by g.job_id, g.phase) as c),
      (select array_agg(g.job_id) from gone g where g.has_children),
      (select array_agg(g.task_id) from gone g where g.has_children),
      (select array_agg(row(g.*)::leases) from gone g where g.is_gated)
    into v_some_count, v_some_deltas, v_some_jobs, v_some_parents, v_some_gated;
    v_gated := v_gated || v_some_gated;
    v_count := v_count + v_some_count;
    v_deltas := v_deltas || v_some_deltas;
    v_jobs := v_jobs || v_some_jobs;
    v_parents := v_parents || v_some_parents;
    exit when v_count = cardinality(p_task_ids);
    -- A lease whose row was changed while we came for it (a beat, a report, a child added) is still ours: once more.
    perform 1 from unnest(p_task_ids, p_leases, p_outputs) as g(id, lease, output)
    join leases l on l.task_id = g.id and l.lease = coalesce(g.lease, l.lease) and l.worker_id = p_worker_id and not l.is_canceled
    where g.output is null or octet_length(g.output::text) <= 128
      or octet_length(g.output::text) <= v_limit and _is_readable(g.output)
    order by l.ctid for update of l;
    exit when not found;
  end loop;

  if v_parents is not null then
    for v_job_id in select distinct j from unnest(v_jobs) as j order by j loop
      select s.deltas, s.freed into v_some_deltas, v_some_freed from _settle_children(v_job_id,
        array(select p from unnest(v_jobs, v_parents) as x(j, p) where x.j = v_job_id)) as s;
      v_deltas := v_deltas || v_some_deltas;
      v_freed := v_freed || v_some_freed;
    end loop;
  end if;
  perform _move_progress(v_deltas);
  perform _queue(v_freed, false);
  if v_count < cardinality(p_task_ids) then
    return query select r.id, r.code from _refusals(p_worker_id, 'succeeded', p_task_ids, p_leases, v_gated, p_outputs, v_limit) as r;
  elsif v_gated is not null then
    perform _settle(v_gated, true, null);
  end if;
end
$$;
comment on function penstock.complete_tasks(text, bigint[], bigint[], jsonb[]) is
  'Ends tasks as succeeded. Returns only those refused: lease_lost, canceled, too_large. A repeated call is accepted again.';

create or replace function penstock._refusals(
  p_worker_id text, p_outcome text, p_task_ids bigint[], p_leases bigint[], p_ended penstock.leases[], p_outputs jsonb[] default null, p_limit integer default null)
returns table (id bigint, code text) language plpgsql set search_path = penstock, pg_temp as $$
declare
  v_stopped leases[];
begin
  with gone as (
    -- Without waiting: here all other locks are taken already. What is passed over runs out.
    delete from leases d where d.ctid = any (array(
      select l.ctid from unnest(p_task_ids, p_leases) as x(id, lease)
      join leases l on l.task_id = x.id and l.lease = coalesce(x.lease, l.lease) and l.worker_id = p_worker_id and l.is_canceled
      for update of l skip locked)) returning d as held
  )
  select array_agg(g.held) into v_stopped from gone g;
  perform _keep_canceled(v_stopped);
  perform _settle(p_ended, p_outcome = 'succeeded', v_stopped);
  return query
  select g.id, case
      when exists (select from unnest(v_stopped) as s where s.task_id = g.id) then 'canceled'
      when l.task_id is not null and g.output is not null and octet_length(g.output::text) > 128
        and (octet_length(g.output::text) > p_limit or not _is_readable(g.output)) then 'too_large'
      else _lost_code(g.id) end
  from unnest(p_task_ids, p_leases, p_outputs) as g(id, lease, output)
  left join leases l on l.task_id = g.id and l.lease = coalesce(g.lease, l.lease) and l.worker_id = p_worker_id
  where not exists (
    select from tasks t join results r on r.job_id = t.job_id and r.task_id = t.id
    where t.id = g.id and r.outcome = p_outcome and r.worker_id = p_worker_id and r.lease = coalesce(g.lease, r.lease))
  and not exists (
    select from tasks t join attempts a on a.job_id = t.job_id and a.task_id = t.id
    where t.id = g.id and a.outcome = p_outcome and a.worker_id = p_worker_id and a.lease = g.lease);
end
$$;
comment on function penstock._refusals(text, text, bigint[], bigint[], penstock.leases[], jsonb[], integer) is
  'Settles what was accepted of a batch and says which tasks were not, and why. What was said before with the same lease counts as accepted.';

create or replace function penstock._others(
  p_task_ids bigint[], p_leases bigint[], p_taken penstock.leases[], out task_ids bigint[], out leases bigint[])
language sql immutable set search_path = penstock, pg_temp as $$
  select array_agg(g.id), array_agg(g.lease) from unnest(p_task_ids, p_leases) as g(id, lease)
  where not exists (select from unnest(p_taken) as t where t.task_id = g.id and t.lease = coalesce(g.lease, t.lease))
$$;
comment on function penstock._others(bigint[], bigint[], penstock.leases[]) is 'What is left of a batch without those taken.';

create or replace function penstock.complete_task(
  p_task_id bigint, p_worker_id text, p_output jsonb default null, p_lease bigint default null)
returns boolean language plpgsql security definer set search_path = penstock, pg_temp as $$
declare
  v_code text;
begin
  select c.code into v_code from complete_tasks(p_worker_id, array[p_task_id], array[p_lease], array[p_output]) as c;
  if v_code = 'too_large' then
    perform _refuse(413, v_code, 'the output is too large, nested too deep, or holds a number beyond 1e308', jsonb_build_object('field', 'p_output', 'task_id', p_task_id),
      'Keep files in object storage and pass their path.');
  elsif v_code is not null then
    perform _refuse(410, v_code, 'you do not hold the lease of this task', jsonb_build_object('task_id', p_task_id));
  end if;
  return true;
end
$$;
comment on function penstock.complete_task(bigint, text, jsonb, bigint) is 'Ends one task as succeeded; refuses with 410 when the lease is gone.';

create or replace function penstock.fail_tasks(p_worker_id text, p_task_ids bigint[], p_leases bigint[], p_errors jsonb[])
returns table (id bigint, code text)
language plpgsql security definer set search_path = penstock, pg_temp as $$
declare
  v_now timestamptz := _now();
  v_failed leases[];
  v_errors jsonb[];
  v_again ready[];
  v_dead leases[];
  v_reasons text[];
  v_codes text[];
  v_messages text[];
begin
  perform _check_arrays(p_task_ids, p_leases, cardinality(p_errors));
  with gone as (
    delete from leases l using unnest(p_task_ids, p_leases, p_errors) as g(id, lease, error)
    where l.task_id = g.id and l.lease = coalesce(g.lease, l.lease) and l.worker_id = p_worker_id and not l.is_canceled
    returning l as held, g.error
  )
  select array_agg(g.held order by (g.held).task_id), array_agg(coalesce(g.error, '{}') order by (g.held).task_id)
  into v_failed, v_errors from gone g;

  if v_failed is not null then
    with error as (
      select f.held, (f.held).*, left(coalesce(nullif(f.error ->> 'code', ''), 'handler_error'), 100) as error_code,
        left(coalesce(f.error ->> 'message', ''), 10000) as error_message,
        case
          when octet_length((f.error -> 'details')::text) <= 128 then f.error -> 'details'
          when octet_length((f.error -> 'details')::text) <= 100000 and _is_readable(f.error -> 'details') then f.error -> 'details'
          when f.error -> 'details' is not null then '{"dropped": "too_large"}'
        end as error_details,
        f.error -> 'permanent' = 'true' as is_permanent,
        -- What is not a number here says nothing: an attempt has ended in any case.
        greatest(
          case when jsonb_typeof(f.error -> 'retry_after_seconds') = 'number'
            then least((f.error -> 'retry_after_seconds')::numeric, 86400 * 30) else 0 end,
          random() * least(k.backoff_cap_seconds, k.backoff_seconds * power(2::double precision, least((f.held).failures, 60)))) as delay,
        coalesce(t.max_attempts, k.max_attempts) as max_attempts, k.retry_seconds,
        -- The attempts of its present life: a replay starts a new one.
        (select min(a.started_at) from (
          select x.started_at from attempts x where x.job_id = t.job_id and x.task_id = t.id
          order by x.lease desc limit (f.held).failures + (f.held).deaths) as a) as first_at
      from (select unnest(v_failed) as held, unnest(v_errors) as error) as f
      join tasks t on t.job_id = (f.held).job_id and t.id = (f.held).task_id
      join kinds k on k.name = t.kind
    ), decided as (
      select e.*, case
        when e.is_permanent then 'permanent'
        when e.failures + 1 >= e.max_attempts then 'attempts'
        when v_now + make_interval(secs => e.delay) > coalesce(e.first_at, e.started_at) + make_interval(secs => e.retry_seconds) then 'time'
        end as death
      from error e
    ), logged as (
      insert into attempts (job_id, task_id, lease, tenant_id, attempt, worker_id, started_at, ended_at, outcome,
        error_code, error_message, error_details, retry_in_seconds)
      select d.job_id, d.task_id, d.lease, d.tenant_id, d.failures + d.deaths + 1, d.worker_id, d.started_at, v_now, 'failed',
        d.error_code, d.error_message, d.error_details, case when d.death is null then d.delay end
      from decided d
    ), kept as (
      insert into parked (task_id, job_id, tenant_id, lane_id, priority, phase, failures, deaths, has_parents, has_children, until, reason)
      select d.task_id, d.job_id, d.tenant_id, d.lane_id, d.priority, d.phase, d.failures + 1, d.deaths, d.has_parents, d.has_children,
        v_now + make_interval(secs => d.delay), 'retry'
      from decided d where d.death is null and d.delay > 0
    )
    select
      array_agg(row(d.task_id, 0, d.job_id, d.tenant_id, d.lane_id, d.priority, d.phase, d.failures + 1, d.deaths,
        d.has_parents, d.has_children)::ready) filter (where d.death is null and d.delay <= 0),
      array_agg(d.held order by d.task_id) filter (where d.death is not null),
      array_agg(d.death order by d.task_id) filter (where d.death is not null),
      array_agg(d.error_code order by d.task_id) filter (where d.death is not null),
      array_agg(d.error_message order by d.task_id) filter (where d.death is not null)
    into v_again, v_dead, v_reasons, v_codes, v_messages from decided d;
    perform pg_notify('penstock', 'chores') where exists (
      select from parked p join unnest(v_failed) as f on f.job_id = p.job_id and f.task_id = p.task_id
      where p.until < v_now + interval '5 seconds');
    if v_dead is not null then
      perform _bury(v_dead, v_reasons, v_codes, v_messages);
    end if;
    perform _queue(v_again, true);
  end if;
  if coalesce(cardinality(v_failed), 0) < cardinality(p_task_ids) then
    return query select r.id, r.code from _others(p_task_ids, p_leases, v_failed) as o
    cross join _refusals(p_worker_id, 'failed', o.task_ids, o.leases, v_failed) as r;
  else
    perform _settle(v_failed, false, null);
  end if;
end
$$;
comment on function penstock.fail_tasks(text, bigint[], bigint[], jsonb[]) is
  'Ends attempts as failed: each is retried after a backoff, or dead-lettered. Errors are {"code", "message", "details", "retry_after_seconds", "permanent"}. Returns only those refused.';

create or replace function penstock.fail_task(
  p_task_id bigint, p_worker_id text, p_error text, p_lease bigint default null,
  p_retry_after_seconds double precision default null, p_permanent boolean default false,
  p_error_code text default 'handler_error', p_error_details jsonb default null)
returns boolean language plpgsql security definer set search_path = penstock, pg_temp as $$
declare
  v_code text;
begin
  select f.code into v_code from fail_tasks(p_worker_id, array[p_task_id], array[p_lease], array[jsonb_strip_nulls(jsonb_build_object(
    'code', p_error_code, 'message', p_error, 'details', p_error_details,
    'retry_after_seconds', p_retry_after_seconds, 'permanent', p_permanent))]) as f;
  if v_code is not null then
    perform _refuse(410, v_code, 'you do not hold the lease of this task', jsonb_build_object('task_id', p_task_id));
  end if;
  return true;
end
$$;
comment on function penstock.fail_task(bigint, text, text, bigint, double precision, boolean, text, jsonb) is
  'Ends one attempt as failed: retried after a backoff, not before p_retry_after_seconds, or dead-lettered; refuses with 410 when the lease is gone.';

create or replace function penstock.reschedule_tasks(
  p_worker_id text, p_task_ids bigint[], p_leases bigint[], p_delay_seconds double precision default 0, p_reason text default 'rescheduled')
returns table (id bigint, code text)
language plpgsql security definer set search_path = penstock, pg_temp as $$
declare
  v_now timestamptz := _now();
  v_leases leases[];
begin
  perform _check_arrays(p_task_ids, p_leases, null);
  if coalesce(p_delay_seconds, 0) not between 0 and 86400 * 366 then
    perform _refuse(422, 'invalid_delay', 'p_delay_seconds is 0 to a year', '{"field": "p_delay_seconds"}');
  end if;
  with gone as (
    delete from leases l using unnest(p_task_ids, p_leases) as g(id, lease)
    where l.task_id = g.id and l.lease = coalesce(g.lease, l.lease) and l.worker_id = coalesce(p_worker_id, l.worker_id)
      and not l.is_canceled and (g.lease is not null or p_worker_id is not null)
    returning l as held
  )
  select array_agg(g.held) into v_leases from gone g;
  if p_reason = 'not begun' then
    perform _unspend(v_leases);
  end if;
  if coalesce(p_delay_seconds, 0) = 0 then
    perform _return_tasks(v_leases, 0);
  else
    insert into parked (task_id, job_id, tenant_id, lane_id, priority, phase, failures, deaths, has_parents, has_children, until, reason)
    select l.task_id, l.job_id, l.tenant_id, l.lane_id, l.priority, l.phase, l.failures, l.deaths, l.has_parents, l.has_children,
      v_now + make_interval(secs => p_delay_seconds), left(coalesce(p_reason, 'rescheduled'), 200)
    from unnest(v_leases) as l;
  end if;
  if coalesce(cardinality(v_leases), 0) < cardinality(p_task_ids) then
    return query select r.id, r.code from _others(p_task_ids, p_leases, v_leases) as o
    cross join _refusals(p_worker_id, 'rescheduled', o.task_ids, o.leases, v_leases) as r;
  else
    perform _settle(v_leases, false, null);
  end if;
end
$$;
comment on function penstock.reschedule_tasks(text, bigint[], bigint[], double precision, text) is
  'Gives tasks back to the queue, now or after a delay, without costing an attempt. With the reason "not begun" what was admitted for them counts as not used. Returns only those refused.';

create or replace function penstock.reschedule_task(
  p_task_id bigint, p_delay_seconds double precision default 0, p_reason text default 'rescheduled',
  p_lease bigint default null, p_worker_id text default null)
returns boolean language plpgsql security definer set search_path = penstock, pg_temp as $$
declare
  v_code text;
begin
  perform _require_lease(p_task_id, p_worker_id, p_lease);
  select r.code into v_code from reschedule_tasks(p_worker_id, array[p_task_id], array[p_lease], p_delay_seconds, p_reason) as r;
  return v_code is null;
end
$$;
comment on function penstock.reschedule_task(bigint, double precision, text, bigint, text) is 'Gives one task back to the queue without costing an attempt.';
