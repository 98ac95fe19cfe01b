-- Reschedule: requeues claimed tasks without using up an attempt. Lock order: see claim.sql.

create or replace function penstock._requeue_leases(
  p_worker_id text, p_task_ids bigint[], p_leases bigint[], p_delay_seconds double precision, p_reason text,
  p_was_begun boolean)
returns table (id bigint, code text)
language plpgsql set search_path = penstock, pg_temp as $$
-- Lock order: see claim.sql.
declare
  v_now timestamptz := _now();
  v_leases leases[];
begin
  perform _check_batch(p_task_ids, p_leases, null);
  with gone as (
    delete from leases l using unnest(p_task_ids, p_leases) as g(id, lease)
    where l.task_id = g.id and l.lease = coalesce(g.lease, l.lease)
      and l.worker_id = coalesce(p_worker_id, l.worker_id) and not l.is_canceled
      and (g.lease is not null or p_worker_id is not null)
    returning l as held
  )
  select array_agg(g.held) into v_leases from gone g;
  if not p_was_begun then
    perform _uncount_calls(v_leases);
  end if;
  if coalesce(p_delay_seconds, 0) = 0 then
    perform _return_tasks(v_leases, 0);
  else
    insert into parked
    select (_ready_to_parked(_lease_to_ready(l), v_now + make_interval(secs => p_delay_seconds),
      _error_text(coalesce(p_reason, 'rescheduled'), 200))).*
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
comment on function
  penstock._requeue_leases(text, bigint[], bigint[], double precision, text, boolean) is
  'Requeues leased tasks without using up an attempt, and returns those rejected. Provider calls admitted '
  'for tasks that were never begun no longer count.';

create or replace function penstock.reschedule_tasks(
  p_worker_id text, p_task_ids bigint[], p_leases bigint[], p_delay_seconds double precision default 0,
  p_reason text default 'rescheduled')
returns table (id bigint, code text)
language plpgsql security definer set search_path = penstock, pg_temp as $$
begin
  if coalesce(p_delay_seconds, 0) not between 0 and 86400 * 366 then
    perform _refuse(422, 'invalid_delay',
      format('p_delay_seconds must be between 0 and %s, a year (got %s)', 86400 * 366, p_delay_seconds),
      '{"field": "p_delay_seconds"}');
  end if;
  return query select r.id, r.code
  from _requeue_leases(p_worker_id, p_task_ids, p_leases, p_delay_seconds, p_reason, true) as r;
end
$$;
comment on function penstock.reschedule_tasks(text, bigint[], bigint[], double precision, text) is
  'Requeues tasks, now or after a delay, without using up an attempt. Returns only those rejected.';

create or replace function penstock.hand_back_tasks(
  p_worker_id text, p_task_ids bigint[], p_leases bigint[])
returns table (id bigint, code text)
language sql security definer set search_path = penstock, pg_temp as $$
  select r.id, r.code from _requeue_leases(p_worker_id, p_task_ids, p_leases, 0, null, false) as r
$$;
comment on function penstock.hand_back_tasks(text, bigint[], bigint[]) is
  'Requeues claimed tasks whose handler never ran, without using up an attempt: the provider calls admitted '
  'for them do not count. Returns only those rejected.';

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
