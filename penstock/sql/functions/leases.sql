-- Leases: what a worker reports about the tasks it has claimed. Every report names the lease's number, a
-- fencing token that only grows: a report with an old number is rejected and changes nothing. Repeating a
-- report is no error. Lock order: see claim.sql. Reports lock their leases first.
-- complete.sql, fail.sql and reschedule.sql have the reports that end a lease.

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
  -- A locked lease is being completed by its own worker: it is neither extended nor lost. The lateral
  -- look-ups fix the plan: one index probe per lease. A join of a thousand was planned as each with each.
  update leases l set expires_at = greatest(l.expires_at, v_until)
  where l.ctid = any (array(
    select h.tid from jsonb_to_recordset(p_leases) as g(id bigint, lease bigint)
    cross join lateral (
      select x.ctid as tid from leases x
      where x.task_id = g.id and x.lease = coalesce(g.lease, x.lease) and x.worker_id = p_worker_id
        and not x.is_canceled
        and (select j.status from jobs j where j.id = x.job_id) in ('queued', 'running', 'paused')
      for no key update skip locked offset 0) as h));
  return query
  select g.id, g.lease, case when h.task_id is null then _lost_code(g.id) else 'canceled' end
  from jsonb_to_recordset(p_leases) as g(id bigint, lease bigint)
  left join lateral (
    select x.task_id, x.is_canceled, (select j.status from jobs j where j.id = x.job_id) as status
    from leases x
    where x.task_id = g.id and x.lease = coalesce(g.lease, x.lease) and x.worker_id = p_worker_id
    offset 0) as h on true
  where h.task_id is null or h.is_canceled or h.status not in ('queued', 'running', 'paused');
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
    message = coalesce(_error_text(p_message, 500), message)
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
