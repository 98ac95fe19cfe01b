-- Fail: ends attempts as failed and decides whether the task is retried. Lock order: see claim.sql.

create or replace function penstock.fail_tasks(
  p_worker_id text, p_task_ids bigint[], p_leases bigint[], p_errors jsonb[])
returns table (id bigint, code text)
language plpgsql security definer set search_path = penstock, pg_temp as $$
-- Lock order: see claim.sql.
declare
  v_now timestamptz := _now();
  v_failed leases[];
  v_errors jsonb[];
  v_outcome record;
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
    v_outcome := _record_failures(_reroute_failed(v_failed, v_errors), v_errors, v_now);
    perform pg_notify('penstock', 'chores') where exists (
      select from parked p join unnest(v_failed) as f on f.job_id = p.job_id and f.task_id = p.task_id
      where p.until < v_now + interval '5 seconds');
    if v_outcome.dead is not null then
      perform _move_to_dead_letters(v_outcome.dead, v_outcome.reasons, v_outcome.codes, v_outcome.messages);
    end if;
    perform _queue(v_outcome.again, true);
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

create or replace function penstock._record_failures(
  p_failed penstock.leases[], p_errors jsonb[], p_now timestamptz,
  out again penstock.ready[], out dead penstock.leases[], out reasons text[], out codes text[],
  out messages text[])
language plpgsql set search_path = penstock, pg_temp as $$
begin
  with decided as materialized (
    select f.*, (f.held).* from _judge_failures(p_failed, p_errors, p_now) as f
  ), logged as (
    insert into attempts (job_id, task_id, lease, tenant_id, attempt, worker_id, started_at, ended_at,
      outcome, error_code, error_message, error_details, retry_in_seconds)
    select d.job_id, d.task_id, d.lease, d.tenant_id, d.failures + d.deaths + 1, d.worker_id, d.started_at,
      p_now, 'failed', d.error_code, d.error_message, d.error_details,
      case when d.death is null then d.delay end
    from decided d
  ), traced as (
    insert into error_stacks (job_id, task_id, lease, tenant_id, stack)
    select d.job_id, d.task_id, d.lease, d.tenant_id, d.stack from decided d where d.stack is not null
  ), kept as (
    insert into parked
    select (_ready_to_parked(_lease_to_ready(d.held, 1), p_now + make_interval(secs => d.delay), 'retry')).*
    from decided d where d.death is null and d.delay > 0
  )
  select
    array_agg(_lease_to_ready(d.held, 1)) filter (where d.death is null and d.delay <= 0),
    array_agg(d.held order by d.task_id) filter (where d.death is not null),
    array_agg(d.death order by d.task_id) filter (where d.death is not null),
    array_agg(d.error_code order by d.task_id) filter (where d.death is not null),
    array_agg(d.error_message order by d.task_id) filter (where d.death is not null)
  into again, dead, reasons, codes, messages from decided d;
end
$$;
comment on function penstock._record_failures(penstock.leases[], jsonb[], timestamptz) is
  'Logs failed attempts and parks the tasks that back off. Returns the tasks to requeue at once, and those '
  'that fail permanently with the reason, the code and the message.';

create or replace function penstock._judge_failures(
  p_failed penstock.leases[], p_errors jsonb[], p_now timestamptz)
returns table (held penstock.leases, error_code text, error_message text, error_details jsonb, stack text,
  delay double precision, death text)
language sql set search_path = penstock, pg_temp as $$
  with error as (
    select f.held,
      left(coalesce(nullif(f.error ->> 'code', ''), 'handler_error'), 100) as error_code,
      _error_text(coalesce(f.error ->> 'message', ''), 10000) as error_message,
      _error_details(f.error -> 'details') as error_details,
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
    from (select unnest(p_failed) as held, unnest(p_errors) as error) as f
    join tasks t on t.job_id = (f.held).job_id and t.id = (f.held).task_id
    join kinds k on k.name = t.kind
  )
  select e.held, e.error_code, e.error_message, e.error_details, e.stack, e.delay, case
    when e.is_permanent then 'permanent'
    when (e.held).failures + 1 >= e.max_attempts then 'attempts'
    when p_now + make_interval(secs => e.delay)
      > coalesce(e.first_at, (e.held).started_at) + make_interval(secs => e.retry_seconds) then 'time'
    end
  from error e
$$;
comment on function penstock._judge_failures(penstock.leases[], jsonb[], timestamptz) is
  'For each failed attempt: the error as it is stored, the backoff in seconds, and why the task is not '
  'retried (null: it is): the error is permanent, no attempt is left, or its time for retries is over.';

create or replace function penstock._error_details(p_details jsonb)
returns jsonb language sql stable set search_path = penstock, pg_temp as $$
  select case
    when octet_length(p_details::text) <= 128
      or octet_length(p_details::text) <= 100000 and _is_readable(p_details)
      then _redact_document(case when jsonb_typeof(p_details -> 'stack') = 'string'
        then p_details - 'stack' else p_details end)
    when p_details is not null then '{"dropped": "too_large"}'
  end
$$;
comment on function penstock._error_details(jsonb) is
  'The details of an error as they are stored: without secrets, and without the stack, which has a table of '
  'its own.';

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
