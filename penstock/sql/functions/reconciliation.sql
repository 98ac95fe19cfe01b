-- Reconciliation: operations that ended here without the provider's word. A worker whose app has the
-- provider's calls asks about those that timed out, and cancels canceled ones at the provider.
-- Lock order: see claim.sql.

create or replace function penstock._mark_operations(p_job_ids uuid[], p_task_ids bigint[])
returns void language sql set search_path = penstock, pg_temp as $$
  -- A locked operation is being settled or told. If it stays live, it ends at its deadline.
  update operations set reconcile_at = _now() where ctid = any (array(
    select o.ctid from operations o
    where o.job_id = any (p_job_ids) and (p_task_ids is null or o.task_id = any (p_task_ids))
      and o.status in ('pending', 'processing')
    for update skip locked))
$$;
comment on function penstock._mark_operations(uuid[], bigint[]) is
  'Lets the next upkeep end the live operations of jobs or tasks that have ended.';

create or replace function penstock._end_operations()
returns void language plpgsql set search_path = penstock, pg_temp as $$
-- Lock order: see claim.sql.
declare
  v_now timestamptz := _now();
  v_operation operations;
  v_is_over boolean;
  v_bookings booking[] := '{}';
  v_tenants uuid[] := '{}';
begin
  -- Two conditions with an index each.
  for v_operation in
    select o.* from operations o
    where o.id = any (array(
        select m.id from operations m where m.reconcile_at <= v_now and m.status in ('pending', 'processing')
        limit 500) || array(
        select d.id from operations d where d.deadline_at < v_now and d.status in ('pending', 'processing')
        order by d.deadline_at limit 500))
    order by o.id for update of o skip locked
  loop
    v_is_over := exists (select from results r
        where r.job_id = v_operation.job_id and r.task_id = v_operation.task_id)
      or exists (select from jobs j where j.id = v_operation.job_id and j.status = 'canceled');
    if v_is_over or v_operation.deadline_at < v_now - interval '1 hour' then
      update operations set completed_at = v_now, reconcile_at = v_now,
        status = case when deadline_at < v_now then 'timeout' else 'canceled' end
      where id = v_operation.id;
      v_bookings := v_bookings || _free_operation(v_operation, 'expired');
      v_tenants := v_tenants || v_operation.tenant_id;
    elsif v_operation.reconcile_at is not null then
      update operations set reconcile_at = null where id = v_operation.id;
    end if;
  end loop;
  if v_tenants <> '{}' then
    perform _book(v_bookings);
    perform _wake_waiting(array(select distinct t from unnest(v_tenants) as t));
  end if;
end
$$;
comment on function penstock._end_operations() is
  'Ends operations whose task has ended and those that are never settled, and frees their reservations and '
  'places.';

create or replace function penstock._revive_operation(p_operation penstock.operations)
returns text language plpgsql set search_path = penstock, pg_temp as $$
-- Lock order: see claim.sql.
declare
  v_rows ready[];
  v_letters bigint[];
begin
  -- Also a task that waits for a later operation: its handler asks about this one first.
  with gone as (
    delete from parked p where p.job_id = p_operation.job_id and p.task_id = p_operation.task_id
      and p.wait_id in (select o.id from operations o
        where o.job_id = p_operation.job_id and o.task_id = p_operation.task_id)
    returning _parked_to_ready(p) as task
  )
  select array_agg(g.task) into v_rows from gone g;
  if v_rows is not null then
    perform _queue(v_rows, true);
    return 'woken';
  end if;
  v_letters := array(select d.id from dead_letters d
    where d.job_id = p_operation.job_id and d.task_id = p_operation.task_id);
  -- Once: the webhook may come again, and the replayed task may fail again.
  if v_letters <> '{}' and p_operation.replayed_at is null then
    update operations set replayed_at = _now() where id = p_operation.id;
    perform _replay(v_letters);
    perform _audit(p_operation.tenant_id, 'operation.late', p_operation.job_id,
      'operation:' || p_operation.id, jsonb_build_object('task_id', p_operation.task_id));
    return 'replayed';
  end if;
  return case when exists (select from results r where r.job_id = p_operation.job_id
    and r.task_id = p_operation.task_id) or exists (select from jobs j
    where j.id = p_operation.job_id and j.status = 'canceled') then 'over' else 'running' end;
end
$$;
comment on function penstock._revive_operation(penstock.operations) is
  'Lets the task of an operation that timed out run again: wakes it, or replays its dead letter once. '
  'Returns woken, replayed, running (it runs or is queued anyway) or over.';

create or replace function penstock.take_operations(p_providers text[], p_limit integer default 20)
returns setof jsonb language sql security definer set search_path = penstock, pg_temp as $$
  with due as (
    select o.id from operations o
    where o.reconcile_at <= _now() and o.status in ('timeout', 'canceled') and o.provider = any (p_providers)
      and o.tenant_id <> all (_suspended_tenants())
    order by o.reconcile_at limit least(greatest(coalesce(p_limit, 20), 1), 1000) for update skip locked
  )
  update operations o set reconcile_at = _now() + interval '1 minute' from due d where o.id = d.id
  returning _operation_document(o)
$$;
comment on function penstock.take_operations(text[], integer) is
  'Operations of these providers to ask about (timeout) or to cancel at the provider (canceled), for a '
  'minute. Report each with reconcile_operation.';

create or replace function penstock._settle_late(p_operation penstock.operations, p_values jsonb)
returns void language plpgsql set search_path = penstock, pg_temp as $$
-- Lock order: see claim.sql.
declare
  v_task tasks;
  v_lease leases;
begin
  update operations set status = 'completed', is_late = true, completed_at = _now(), reconcile_at = null,
    result = p_values -> 'result'
  where id = p_operation.id;
  select * into v_task from tasks where job_id = p_operation.job_id and id = p_operation.task_id;
  v_lease.task_id := p_operation.task_id;
  v_lease.job_id := p_operation.job_id;
  v_lease.tenant_id := p_operation.tenant_id;
  v_lease.lane_id := p_operation.gated_lane_id;
  v_lease.lease := 0;
  v_lease.started_at := p_operation.started_at;
  perform _book(_charge_attempts(array[v_lease], array[coalesce(p_values -> 'units', v_task.units, '{}')],
    not p_values ? 'units', 'standard', jsonb_build_object('operation_id', p_operation.id)));
  perform _audit(p_operation.tenant_id, 'operation.late', p_operation.job_id,
    'operation:' || p_operation.id, jsonb_build_object('task_id', p_operation.task_id));
end
$$;
comment on function penstock._settle_late(penstock.operations, jsonb) is
  'Notes and charges a late success that no task uses any more.';

create or replace function penstock.reconcile_operation(
  p_operation_id uuid, p_outcome text, p_values jsonb default '{}')
returns text language plpgsql security definer set search_path = penstock, pg_temp as $$
-- Lock order: see claim.sql.
declare
  v_operation operations;
  v_revived text;
begin
  if p_outcome is null or p_outcome not in ('completed', 'failed', 'canceled', 'running', 'unknown') then
    perform _refuse(422, 'invalid_operation',
      format('outcome must be completed, failed, canceled, running or unknown (got %s)',
        coalesce(quote_literal(left(p_outcome, 100)), 'null')), '{"field": "p_outcome"}');
  end if;
  perform _check_document(coalesce(p_values -> 'result', 'null'), 'result',
    (_setting('max_output_bytes'))::integer);
  select * into v_operation from operations where id = p_operation_id for update;
  if not found then
    perform _refuse(404, 'unknown_operation', 'there is no such operation');
  end if;
  perform _require_active(v_operation.tenant_id);
  if v_operation.status not in ('timeout', 'canceled') then
    return v_operation.status;
  end if;
  perform _note_external_id(p_operation_id, p_values ->> 'external_id');
  if v_operation.status = 'timeout' and p_outcome = 'completed' then
    v_revived := _revive_operation(v_operation);
    if v_revived = 'over' then
      perform _settle_late(v_operation, p_values);
      return 'completed';
    end if;
    -- The handler settles it; if that fails, it is asked about again.
    update operations set reconcile_at = _now() + interval '10 minutes' where id = p_operation_id;
    return v_revived;
  end if;
  update operations set reconcile_at = case
    when p_outcome in ('completed', 'failed', 'canceled')
      or completed_at < _now() - interval '24 hours' then null
    when status = 'timeout' then _now() + interval '10 minutes' else _now() + interval '1 minute' end
  where id = p_operation_id;
  return v_operation.status;
end
$$;
comment on function penstock.reconcile_operation(uuid, text, jsonb) is
  'What the provider says about an operation that ended here without it. A success after a timeout wakes '
  'the task, replays its dead letter, or is charged if the task has ended. Outcomes: completed, failed, '
  'canceled, running, unknown. Values: result, units, external_id.';

create or replace function penstock.reconcile_operations(p_operation_id uuid default null)
returns integer language plpgsql security definer set search_path = penstock, pg_temp as $$
-- Lock order: see claim.sql.
declare
  v_operation operations;
  v_count integer := 0;
begin
  for v_operation in
    select o.* from operations o
    where (o.id = p_operation_id or p_operation_id is null and o.status = 'timeout'
        and o.completed_at > _now() - interval '24 hours')
      and _is_member(o.tenant_id)
    order by o.id limit 10000 for update
  loop
    perform _require_role(v_operation.tenant_id, array['owner', 'admin', 'member']);
    if v_operation.status in ('pending', 'processing') then
      perform tell_operation(v_operation.provider, v_operation.id);
    elsif v_operation.status = 'timeout' then
      update operations set reconcile_at = _now() where id = v_operation.id;
    else
      continue;
    end if;
    v_count := v_count + 1;
  end loop;
  if v_count = 0 and p_operation_id is not null and v_operation.id is null then
    perform _refuse(404, 'unknown_operation', 'there is no such operation');
  end if;
  return v_count;
end
$$;
comment on function penstock.reconcile_operations(uuid) is
  'Lets a worker ask the provider soon about an operation that is live or timed out, or about all that timed '
  'out in the last 24 hours. Returns their number.';

create or replace function penstock.cancel_operation(p_operation_id uuid)
returns text language plpgsql security definer set search_path = penstock, pg_temp as $$
-- Lock order: see claim.sql.
declare
  v_operation operations;
  v_rows ready[];
begin
  select * into v_operation from operations where id = p_operation_id and _is_member(tenant_id) for update;
  if not found then
    perform _refuse(404, 'unknown_operation', 'there is no such operation');
  end if;
  perform _require_role(v_operation.tenant_id, array['owner', 'admin', 'member']);
  if v_operation.status not in ('pending', 'processing') then
    return v_operation.status;
  end if;
  update operations set status = 'canceled', completed_at = _now(), reconcile_at = _now(),
    error_code = 'operation_canceled', error_message = 'the operation was canceled'
  where id = p_operation_id;
  -- The handler runs once more and fails the attempt; the next one is admitted again.
  with gone as (
    delete from parked p where p.job_id = v_operation.job_id and p.task_id = v_operation.task_id
      and p.wait_id = p_operation_id returning _parked_to_ready(p) as task
  )
  select array_agg(g.task) into v_rows from gone g;
  perform _queue(v_rows, true);
  perform _audit(v_operation.tenant_id, 'operation.canceled', v_operation.job_id,
    'operation:' || p_operation_id, jsonb_build_object('task_id', v_operation.task_id));
  perform _book(_free_operation(v_operation, 'released'));
  perform _wake_waiting(array[v_operation.tenant_id]);
  return 'canceled';
end
$$;
comment on function penstock.cancel_operation(uuid) is
  'Cancels a live operation, here at once and at the provider soon. The attempt of its task fails. Returns '
  'the status of the operation.';
