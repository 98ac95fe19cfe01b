-- Leases: what a worker reports about the tasks it has claimed. Every report names the lease's number, a
-- fencing token that only grows: a report with an old number is rejected and changes nothing. Repeating a
-- report is no error. Lock order: see claim.sql. Reports lock their leases first.

create or replace function penstock._check_holder(p_worker_id text, p_lease bigint)
returns void language plpgsql immutable set search_path = penstock, pg_temp as $$
begin
  if p_lease is null and p_worker_id is null then
    perform _refuse(422, 'lease_missing', 'p_lease or p_worker_id is required');
  end if;
end
$$;
comment on function penstock._check_holder(text, bigint) is
  'Requires a report to name its lease or its worker.';

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
comment on function penstock._require_lease(bigint, text, bigint) is
  'Rejects a report unless its lease is current, and locks the lease. For long transactions use _keep_lease.';

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
  'Rejects a report unless its lease is current, and keeps the lease from ending until the transaction '
  'ends, which may be a handler''s. Heartbeats and progress reports go on.';

create or replace function penstock._lost_code(p_task_id bigint)
returns text language sql stable set search_path = penstock, pg_temp as $$
  select case when exists (
    select from tasks t join jobs j on j.id = t.job_id where t.id = p_task_id and j.status = 'canceled')
    then 'canceled' else 'lease_lost' end
$$;
comment on function penstock._lost_code(bigint) is
  'Why a lease is gone: canceled (its job was) or lease_lost.';

create or replace function penstock._refuse_lost(p_task_id bigint)
returns void language plpgsql set search_path = penstock, pg_temp as $$
begin
  perform _refuse(410, _lost_code(p_task_id), 'you do not hold the lease of this task',
    jsonb_build_object('task_id', p_task_id),
    'Stop working on it: the lease expired, the job was canceled, or the task has ended.');
end
$$;
comment on function penstock._refuse_lost(bigint) is 'Rejects a report whose lease is not current.';

create or replace function penstock.heartbeat_tasks(
  p_worker_id text, p_leases jsonb, p_lease_seconds integer default null)
returns table (id bigint, lease bigint, code text)
language plpgsql security definer set search_path = penstock, pg_temp
  set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off as $$
declare
  v_seconds integer := coalesce(p_lease_seconds, (_setting('lease_seconds'))::integer);
  v_until timestamptz := _now() + make_interval(secs => v_seconds);
begin
  if v_seconds not between 1 and 86400 then
    perform _refuse(422, 'invalid_lease',
      format('p_lease_seconds must be between 1 and 86400 (got %s)', v_seconds),
      '{"field": "p_lease_seconds"}');
  end if;
  -- A locked lease is being completed by its own worker: it is neither extended nor lost.
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
  left join leases h on h.task_id = g.id and h.lease = coalesce(g.lease, h.lease)
    and h.worker_id = p_worker_id
  left join jobs j on j.id = h.job_id
  where h.task_id is null or h.is_canceled or j.status not in ('queued', 'running', 'paused');
exception when data_exception then
  perform _refuse(422, 'invalid_batch', 'p_leases must be [{"id", "lease"}]', '{"field": "p_leases"}');
end
$$;
comment on function penstock.heartbeat_tasks(text, jsonb, integer) is
  'Extends a worker''s leases [{"id", "lease"}] and returns those that are gone, with lease_lost or '
  'canceled.';

create or replace function penstock.heartbeat_task(
  p_task_id bigint, p_worker_id text, p_lease bigint default null)
returns boolean language plpgsql security definer set search_path = penstock, pg_temp as $$
declare
  v_code text;
begin
  select h.code into v_code
  from heartbeat_tasks(
    p_worker_id, jsonb_build_array(jsonb_build_object('id', p_task_id, 'lease', p_lease))) as h;
  if v_code is not null then
    perform _refuse(410, v_code, 'you do not hold the lease of this task',
      jsonb_build_object('task_id', p_task_id));
  end if;
  return true;
end
$$;
comment on function penstock.heartbeat_task(bigint, text, bigint) is
  'Extends one lease; fails with 410 when it is gone.';

create or replace function penstock.report_progress(
  p_task_id bigint, p_worker_id text, p_lease bigint default null, p_fraction double precision default null,
  p_message text default null)
returns void language plpgsql security definer set search_path = penstock, pg_temp as $$
begin
  perform _check_holder(p_worker_id, p_lease);
  -- Progress is not worth waiting for a locked lease: the lock may be that of the task's own transaction.
  update leases set
    fraction = case when p_fraction is null then fraction else least(1, greatest(0, p_fraction)) end,
    message = coalesce(left(p_message, 500), message)
  where ctid = any (array(
    select ctid from leases where task_id = p_task_id and lease = coalesce(p_lease, lease)
      and worker_id = coalesce(p_worker_id, worker_id) and not is_canceled for no key update skip locked));
  if not found then
    perform _keep_lease(p_task_id, p_worker_id, p_lease);
  end if;
end
$$;
comment on function penstock.report_progress(bigint, text, bigint, double precision, text) is
  'Reports how far a running task is (0 to 1), with a message for people.';

create or replace function penstock._check_batch(p_task_ids bigint[], p_leases bigint[], p_values integer)
returns void language plpgsql immutable set search_path = penstock, pg_temp as $$
begin
  if p_task_ids is null or cardinality(p_task_ids) not between 1 and 10000
     or (p_leases is not null and cardinality(p_leases) <> cardinality(p_task_ids))
     or p_values is not null and p_values <> cardinality(p_task_ids) then
    perform _refuse(422, 'invalid_batch',
      'a batch must have 1 to 10000 tasks, with one lease and one value for each');
  end if;
end
$$;
comment on function penstock._check_batch(bigint[], bigint[], integer) is
  'Rejects a batch that is too large, or whose arrays differ in length.';

create or replace function penstock.complete_tasks(
  p_worker_id text, p_task_ids bigint[], p_leases bigint[] default null, p_outputs jsonb[] default null)
returns table (id bigint, code text)
language plpgsql security definer set search_path = penstock, pg_temp
  set enable_seqscan = off set plan_cache_mode = force_generic_plan set jit = off as $$
-- Lock order: see claim.sql.
declare
  v_now timestamptz := _now();
  v_limit integer := (_setting('max_output_bytes'))::integer;
  v_count integer := 0;
  v_deltas phase_delta[];
  v_jobs uuid[];
  v_parents bigint[];
  v_job_id uuid;
  v_freed ready[];
  v_gated leases[];
  v_some_count integer;
  v_some_deltas phase_delta[];
  v_some_jobs uuid[];
  v_some_parents bigint[];
  v_some_freed ready[];
  v_some_gated leases[];
begin
  perform _check_batch(p_task_ids, p_leases, cardinality(p_outputs));
  loop
    -- The lateral look-up fixes the plan: one index probe per task, whatever the statistics say.
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
      insert into results (job_id, task_id, lease, tenant_id, started_at, finished_at, attempt, phase,
        outcome, worker_id, output)
      select g.job_id, g.task_id, g.lease, g.tenant_id, g.started_at, v_now, g.failures + g.deaths + 1,
        g.phase, 'succeeded', p_worker_id, o.output
      from gone g left join (
        select distinct on (x.id, x.lease) x.*
        from unnest(p_task_ids, p_leases, p_outputs) as x(id, lease, output) where x.output is not null
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
    -- A row that a heartbeat, a report or a new child changed meanwhile was skipped: lock it and try again.
    perform 1 from unnest(p_task_ids, p_leases, p_outputs) as g(id, lease, output)
    join leases l on l.task_id = g.id and l.lease = coalesce(g.lease, l.lease) and l.worker_id = p_worker_id
      and not l.is_canceled
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
    return query select r.id, r.code
    from _settle_batch(p_worker_id, 'succeeded', p_task_ids, p_leases, v_gated, p_outputs, v_limit) as r;
  elsif v_gated is not null then
    perform _settle(v_gated, true, null);
  end if;
end
$$;
comment on function penstock.complete_tasks(text, bigint[], bigint[], jsonb[]) is
  'Ends tasks as succeeded. Returns only those rejected, with lease_lost, canceled or too_large. Repeating '
  'the call is accepted.';

create or replace function penstock._settle_batch(
  p_worker_id text, p_outcome text, p_task_ids bigint[], p_leases bigint[], p_ended penstock.leases[],
  p_outputs jsonb[] default null, p_limit integer default null)
returns table (id bigint, code text) language plpgsql set search_path = penstock, pg_temp as $$
-- Lock order: see claim.sql.
declare
  v_stopped leases[];
begin
  with gone as (
    -- Without waiting, since later locks are held already. A lease that is skipped expires.
    delete from leases d where d.ctid = any (array(
      select l.ctid from unnest(p_task_ids, p_leases) as x(id, lease)
      join leases l on l.task_id = x.id and l.lease = coalesce(x.lease, l.lease) and l.worker_id = p_worker_id
        and l.is_canceled
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
  left join leases l on l.task_id = g.id and l.lease = coalesce(g.lease, l.lease)
    and l.worker_id = p_worker_id
  where not exists (
    select from tasks t join results r on r.job_id = t.job_id and r.task_id = t.id
    where t.id = g.id and r.outcome = p_outcome and r.worker_id = p_worker_id
      and r.lease = coalesce(g.lease, r.lease))
  and not exists (
    select from tasks t join attempts a on a.job_id = t.job_id and a.task_id = t.id
    where t.id = g.id and a.outcome = p_outcome and a.worker_id = p_worker_id and a.lease = g.lease);
end
$$;
comment on function penstock._settle_batch(
  text, text, bigint[], bigint[], penstock.leases[], jsonb[], integer) is
  'Settles the accepted tasks of a batch and returns the rejected ones with the reason. A report that was '
  'accepted before with the same lease is accepted again.';

create or replace function penstock._batch_without(
  p_task_ids bigint[], p_leases bigint[], p_taken penstock.leases[],
  out task_ids bigint[], out leases bigint[])
language sql immutable set search_path = penstock, pg_temp as $$
  select array_agg(g.id), array_agg(g.lease) from unnest(p_task_ids, p_leases) as g(id, lease)
  where not exists (
    select from unnest(p_taken) as t where t.task_id = g.id and t.lease = coalesce(g.lease, t.lease))
$$;
comment on function penstock._batch_without(bigint[], bigint[], penstock.leases[]) is
  'The tasks of a batch that are not among those taken.';

create or replace function penstock.complete_task(
  p_task_id bigint, p_worker_id text, p_output jsonb default null, p_lease bigint default null)
returns boolean language plpgsql security definer set search_path = penstock, pg_temp as $$
declare
  v_code text;
begin
  select c.code into v_code
  from complete_tasks(p_worker_id, array[p_task_id], array[p_lease], array[p_output]) as c;
  if v_code = 'too_large' then
    perform _refuse(413, v_code, 'the output is too large, nested too deep, or has a number beyond 1e308',
      jsonb_build_object('field', 'p_output', 'task_id', p_task_id),
      'Keep files in object storage and pass their path.');
  elsif v_code is not null then
    perform _refuse(410, v_code, 'you do not hold the lease of this task',
      jsonb_build_object('task_id', p_task_id));
  end if;
  return true;
end
$$;
comment on function penstock.complete_task(bigint, text, jsonb, bigint) is
  'Ends one task as succeeded; fails with 410 when its lease is gone.';

create or replace function penstock.fail_tasks(
  p_worker_id text, p_task_ids bigint[], p_leases bigint[], p_errors jsonb[])
returns table (id bigint, code text)
language plpgsql security definer set search_path = penstock, pg_temp as $$
-- Lock order: see claim.sql.
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
  perform _check_batch(p_task_ids, p_leases, cardinality(p_errors));
  with gone as (
    delete from leases l using unnest(p_task_ids, p_leases, p_errors) as g(id, lease, error)
    where l.task_id = g.id and l.lease = coalesce(g.lease, l.lease) and l.worker_id = p_worker_id
      and not l.is_canceled
    returning l as held, g.error
  )
  select array_agg(g.held order by (g.held).task_id),
    array_agg(coalesce(g.error, '{}') order by (g.held).task_id)
  into v_failed, v_errors from gone g;

  if v_failed is not null then
    with error as (
      select f.held, (f.held).*,
        left(coalesce(nullif(f.error ->> 'code', ''), 'handler_error'), 100) as error_code,
        _redact(left(coalesce(f.error ->> 'message', ''), 10000)) as error_message,
        case
          when octet_length((f.error -> 'details')::text) <= 128
            or octet_length((f.error -> 'details')::text) <= 100000 and _is_readable(f.error -> 'details')
            then _redact_document(case when jsonb_typeof(f.error -> 'details' -> 'stack') = 'string'
              then (f.error -> 'details') - 'stack' else f.error -> 'details' end)
          when f.error -> 'details' is not null then '{"dropped": "too_large"}'
        end as error_details,
        case when octet_length((f.error -> 'details')::text) <= 100000
            and jsonb_typeof(f.error -> 'details' -> 'stack') = 'string'
          then _redact(f.error -> 'details' ->> 'stack') end as stack,
        f.error -> 'permanent' = 'true' as is_permanent,
        -- A value that is not a number is ignored: the attempt has ended in any case.
        greatest(
          case when jsonb_typeof(f.error -> 'retry_after_seconds') = 'number'
            then least((f.error -> 'retry_after_seconds')::numeric, 86400 * 30) else 0 end,
          random() * least(k.backoff_cap_seconds,
            k.backoff_seconds * power(2::double precision, least((f.held).failures, 60)))) as delay,
        coalesce(t.max_attempts, k.max_attempts) as max_attempts, k.retry_seconds,
        -- Only attempts since the last replay count.
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
        when v_now + make_interval(secs => e.delay)
          > coalesce(e.first_at, e.started_at) + make_interval(secs => e.retry_seconds) then 'time'
        end as death
      from error e
    ), logged as (
      insert into attempts (job_id, task_id, lease, tenant_id, attempt, worker_id, started_at, ended_at,
        outcome, error_code, error_message, error_details, retry_in_seconds)
      select d.job_id, d.task_id, d.lease, d.tenant_id, d.failures + d.deaths + 1, d.worker_id, d.started_at,
        v_now, 'failed', d.error_code, d.error_message, d.error_details,
        case when d.death is null then d.delay end
      from decided d
    ), traced as (
      insert into error_stacks (job_id, task_id, lease, tenant_id, stack)
      select d.job_id, d.task_id, d.lease, d.tenant_id, d.stack from decided d where d.stack is not null
    ), kept as (
      insert into parked
      select (_ready_to_parked(_lease_to_ready(d.held, 1), v_now + make_interval(secs => d.delay), 'retry')).*
      from decided d where d.death is null and d.delay > 0
    )
    select
      array_agg(_lease_to_ready(d.held, 1)) filter (where d.death is null and d.delay <= 0),
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
    return query select r.id, r.code from _batch_without(p_task_ids, p_leases, v_failed) as o
    cross join _settle_batch(p_worker_id, 'failed', o.task_ids, o.leases, v_failed) as r;
  else
    perform _settle(v_failed, false, null);
  end if;
end
$$;
comment on function penstock.fail_tasks(text, bigint[], bigint[], jsonb[]) is
  'Ends attempts as failed: each task is retried after a backoff, or moved to the dead letters. Errors are '
  '{"code", "message", "details", "retry_after_seconds", "permanent"}. Returns only those rejected.';

create or replace function penstock.fail_task(
  p_task_id bigint, p_worker_id text, p_error text, p_lease bigint default null,
  p_retry_after_seconds double precision default null, p_permanent boolean default false,
  p_error_code text default 'handler_error', p_error_details jsonb default null)
returns boolean language plpgsql security definer set search_path = penstock, pg_temp as $$
declare
  v_code text;
begin
  select f.code into v_code from fail_tasks(p_worker_id, array[p_task_id], array[p_lease],
    array[jsonb_strip_nulls(jsonb_build_object('code', p_error_code, 'message', p_error,
      'details', p_error_details, 'retry_after_seconds', p_retry_after_seconds,
      'permanent', p_permanent))]) as f;
  if v_code is not null then
    perform _refuse(410, v_code, 'you do not hold the lease of this task',
      jsonb_build_object('task_id', p_task_id));
  end if;
  return true;
end
$$;
comment on function penstock.fail_task(bigint, text, text, bigint, double precision, boolean, text, jsonb) is
  'Ends one attempt as failed: the task is retried after a backoff, not before p_retry_after_seconds, or '
  'moved to the dead letters. Fails with 410 when the lease is gone.';

create or replace function penstock._not_begun()
returns text language sql immutable set search_path = penstock, pg_temp as $$ select 'not begun'::text $$;
comment on function penstock._not_begun() is
  'The reserved reason with which workers release tasks they claimed and never began: the calls admitted '
  'for these tasks were not made.';

create or replace function penstock.reschedule_tasks(
  p_worker_id text, p_task_ids bigint[], p_leases bigint[], p_delay_seconds double precision default 0,
  p_reason text default 'rescheduled')
returns table (id bigint, code text)
language plpgsql security definer set search_path = penstock, pg_temp as $$
-- Lock order: see claim.sql.
declare
  v_now timestamptz := _now();
  v_leases leases[];
begin
  perform _check_batch(p_task_ids, p_leases, null);
  if coalesce(p_delay_seconds, 0) not between 0 and 86400 * 366 then
    perform _refuse(422, 'invalid_delay',
      format('p_delay_seconds must be between 0 and %s, a year (got %s)', 86400 * 366, p_delay_seconds),
      '{"field": "p_delay_seconds"}');
  end if;
  with gone as (
    delete from leases l using unnest(p_task_ids, p_leases) as g(id, lease)
    where l.task_id = g.id and l.lease = coalesce(g.lease, l.lease)
      and l.worker_id = coalesce(p_worker_id, l.worker_id) and not l.is_canceled
      and (g.lease is not null or p_worker_id is not null)
    returning l as held
  )
  select array_agg(g.held) into v_leases from gone g;
  if p_reason = _not_begun() then
    perform _uncount_calls(v_leases);
  end if;
  if coalesce(p_delay_seconds, 0) = 0 then
    perform _return_tasks(v_leases, 0);
  else
    insert into parked
    select (_ready_to_parked(_lease_to_ready(l), v_now + make_interval(secs => p_delay_seconds),
      left(coalesce(p_reason, 'rescheduled'), 200))).*
    from unnest(v_leases) as l;
  end if;
  if coalesce(cardinality(v_leases), 0) < cardinality(p_task_ids) then
    return query select r.id, r.code from _batch_without(p_task_ids, p_leases, v_leases) as o
    cross join _settle_batch(p_worker_id, 'rescheduled', o.task_ids, o.leases, v_leases) as r;
  else
    perform _settle(v_leases, false, null);
  end if;
end
$$;
comment on function penstock.reschedule_tasks(text, bigint[], bigint[], double precision, text) is
  'Requeues tasks, now or after a delay, without using up an attempt. The reason "not begun" is reserved '
  'for tasks whose handler never ran: the provider calls admitted for them do not count. Returns only those '
  'rejected.';

create or replace function penstock.reschedule_task(
  p_task_id bigint, p_delay_seconds double precision default 0, p_reason text default 'rescheduled',
  p_lease bigint default null, p_worker_id text default null)
returns boolean language plpgsql security definer set search_path = penstock, pg_temp as $$
declare
  v_code text;
begin
  perform _require_lease(p_task_id, p_worker_id, p_lease);
  select r.code into v_code
  from reschedule_tasks(p_worker_id, array[p_task_id], array[p_lease], p_delay_seconds, p_reason) as r;
  return v_code is null;
end
$$;
comment on function penstock.reschedule_task(bigint, double precision, text, bigint, text) is
  'Requeues one task without using up an attempt.';
