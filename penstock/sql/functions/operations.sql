-- Operations: work handed to an outside system that answers later. The intent is a row before the call. A
-- webhook is a hint; the handler asks the provider and settles. While the task waits, the operation has its
-- reservation and its place at the provider, and the task continues in a lane without limits.
-- Lock order: see claim.sql. Parking locks the lease, then the operation; a webhook locks the operation, then
-- the parked row. So a webhook comes either before the parking, which then queues the task, or after it.

create or replace function penstock._guard_operation()
returns trigger language plpgsql set search_path = penstock, pg_temp as $$
begin
  raise exception using errcode = 'PT409',
    message = format('an operation cannot change from %s to %s', old.status, new.status),
    detail = jsonb_build_object('code', 'illegal_transition', 'from', old.status, 'to', new.status);
end
$$;
comment on function penstock._guard_operation() is
  'Rejects a status change that the state machine of operations does not allow.';

create or replace trigger operations_transitions before update of status on penstock.operations
  for each row when (old.status is distinct from new.status and old.status not in ('pending', 'processing')
    and not (old.status = 'timeout' and new.status = 'completed' and new.is_late))
  execute function penstock._guard_operation();

create or replace function penstock._operation_document(p_operation penstock.operations)
returns jsonb language sql stable set search_path = penstock, pg_temp as $$
  select jsonb_build_object('id', p_operation.id, 'number', p_operation.number, 'status', p_operation.status,
    'object', p_operation.object, 'provider', p_operation.provider, 'external_id', p_operation.external_id,
    'result', p_operation.result, 'error_code', p_operation.error_code,
    'error_message', p_operation.error_message,
    'age_seconds', extract(epoch from _now() - p_operation.started_at),
    'left_seconds', extract(epoch from p_operation.deadline_at - _now()))
$$;
comment on function penstock._operation_document(penstock.operations) is
  'What a handler gets of an operation.';

create or replace function penstock._restore_lane(p_lease penstock.leases, p_lane_id integer)
returns void language sql set search_path = penstock, pg_temp as $$
  update leases set lane_id = p_lane_id where task_id = p_lease.task_id;
  update tasks set lane_id = p_lane_id where job_id = p_lease.job_id and id = p_lease.task_id;
$$;
comment on function penstock._restore_lane(penstock.leases, integer) is
  'Puts a running task back into the lane with limits, for its next attempt.';

create or replace function penstock.begin_operation(
  p_task_id bigint, p_worker_id text, p_lease bigint, p_object text, p_timeout_seconds double precision)
returns jsonb language plpgsql security definer set search_path = penstock, pg_temp as $$
-- Lock order: see claim.sql.
declare
  v_lease leases := _keep_lease(p_task_id, p_worker_id, p_lease);
  v_attempts integer := (select count(*) from attempts a where a.job_id = v_lease.job_id
    and a.task_id = p_task_id);
  v_lane lanes;
  v_last operations;
  v_new operations;
begin
  perform _check_clean(p_object, 'p_object', 'invalid_operation');
  if coalesce(length(p_object), 0) not between 1 and 255
     or coalesce(not p_timeout_seconds between 1 and 86400 * 30, true) then
    perform _refuse(422, 'invalid_operation',
      'an operation must have an object of 1 to 255 characters and a timeout of 1 second to 30 days');
  end if;
  select * into v_last from operations where job_id = v_lease.job_id and task_id = p_task_id
  order by number desc limit 1 for update;
  if v_last.status in ('failed', 'timeout', 'canceled') and not v_lease.is_gated
     and (select l.is_gated from lanes l where l.id = v_last.gated_lane_id) then
    -- It ended while the task waited in the lane without limits: the next attempt must be admitted again.
    perform _restore_lane(v_lease, v_last.gated_lane_id);
    return _operation_document(v_last) || '{"is_new": false}';
  end if;
  if v_last.status = 'completed' and v_lease.is_gated and v_lease.usage is null then
    -- An earlier attempt charged it, and died before its end. This one uses no more.
    update leases set usage = '{}' where task_id = p_task_id;
  end if;
  -- A failed operation must have cost the task an attempt before the next one may begin: otherwise a task
  -- whose worker is slow would begin paid operations again and again.
  if v_last.id is not null and (v_last.status in ('pending', 'processing', 'completed')
      or v_attempts <= v_last.attempts) then
    return _operation_document(v_last) || '{"is_new": false}';
  end if;
  select * into v_lane from lanes where id = v_lease.lane_id;
  insert into operations (tenant_id, job_id, task_id, number, provider, endpoint_id, object, gated_lane_id,
    attempts, started_at, deadline_at)
  values (v_lease.tenant_id, v_lease.job_id, p_task_id, coalesce(v_last.number, 0) + 1,
    coalesce(v_lane.provider, v_lane.kind), v_lane.endpoint_id, p_object, v_lane.id, v_attempts, _now(),
    _now() + make_interval(secs => p_timeout_seconds))
  on conflict (tenant_id, object) where status in ('pending', 'processing') do nothing returning * into v_new;
  if v_new.id is null then
    perform _refuse(409, 'operation_live', format('%s has a live operation of another task', p_object),
      '{"field": "object"}', 'Reschedule the task.');
  end if;
  return _operation_document(v_new) || '{"is_new": true}';
end
$$;
comment on function penstock.begin_operation(bigint, text, bigint, text, double precision) is
  'The newest operation of a running task, or a new one. Commit it before you call the provider. After a '
  'failed operation a new one begins only in a later attempt.';

create or replace function penstock._leased_operation(
  p_operation_id uuid, p_worker_id text, p_lease bigint, out operation penstock.operations,
  out lease penstock.leases)
language plpgsql set search_path = penstock, pg_temp as $$
begin
  select * into operation from operations where id = p_operation_id;
  if not found then
    perform _refuse(404, 'unknown_operation', 'there is no such operation');
  end if;
  lease := _keep_lease(operation.task_id, p_worker_id, p_lease);
  select * into operation from operations where id = p_operation_id for update;
end
$$;
comment on function penstock._leased_operation(uuid, text, bigint) is
  'Locks an operation whose task the worker has leased.';

create or replace function penstock.submit_operation(
  p_operation_id uuid, p_worker_id text, p_lease bigint, p_external_id text)
returns void language plpgsql security definer set search_path = penstock, pg_temp as $$
declare
  v_found record := _leased_operation(p_operation_id, p_worker_id, p_lease);
  v_operation operations := v_found.operation;
begin
  perform _check_clean(p_external_id, 'p_external_id', 'invalid_operation');
  if v_operation.external_id = p_external_id then
    return;
  elsif v_operation.status <> 'pending' then
    perform _refuse(409, 'operation_submitted', format('the operation is %s', v_operation.status),
      jsonb_build_object('status', v_operation.status));
  end if;
  update operations set status = 'processing', external_id = p_external_id, submitted_at = _now()
  where id = p_operation_id;
end
$$;
comment on function penstock.submit_operation(uuid, text, bigint, text) is
  'Notes the id that the provider gave an operation. Repeating it is no error.';

create or replace function penstock.check_operation(p_operation_id uuid, p_worker_id text, p_lease bigint)
returns void language plpgsql security definer set search_path = penstock, pg_temp as $$
declare
  v_found record := _leased_operation(p_operation_id, p_worker_id, p_lease);
begin
  update operations set checked_at = _now(), is_told = false where id = p_operation_id;
end
$$;
comment on function penstock.check_operation(uuid, text, bigint) is
  'Notes, before the provider is asked, that it is asked now: a webhook after this wakes the task again.';

create or replace function penstock._free_operation(p_operation penstock.operations, p_status text)
returns penstock.booking[] language plpgsql set search_path = penstock, pg_temp as $$
-- Lock order: see claim.sql.
declare
  v_hold holds;
begin
  select * into v_hold from holds where id = p_operation.hold_id and status = 'held' for update;
  if not found then
    return '{}';
  end if;
  update holds set status = p_status, settled_at = _now() where id = v_hold.id;
  return coalesce(_release_bookings(v_hold), '{}');
end
$$;
comment on function penstock._free_operation(penstock.operations, text) is
  'Ends the reservation of an operation and returns the bookings.';

create or replace function penstock._note_external_id(p_operation_id uuid, p_external_id text)
returns void language sql set search_path = penstock, pg_temp as $$
  -- An id that another operation has is no id of this one.
  update operations o set external_id = p_external_id
  where o.id = p_operation_id and o.external_id is null
    and length(p_external_id) between 1 and 255 and _is_clean(p_external_id)
    and not exists (select from operations x where x.tenant_id = o.tenant_id and x.provider = o.provider
      and x.external_id = p_external_id)
$$;
comment on function penstock._note_external_id(uuid, text) is
  'Notes the provider''s id of an operation that was found by its tag, because the worker died before it '
  'noted the id.';

create or replace function penstock.settle_operation(
  p_operation_id uuid, p_worker_id text, p_lease bigint, p_outcome text, p_values jsonb default '{}')
returns text language plpgsql security definer set search_path = penstock, pg_temp as $$
-- Lock order: see claim.sql.
declare
  v_found record := _leased_operation(p_operation_id, p_worker_id, p_lease);
  v_operation operations := v_found.operation;
  v_lease leases := v_found.lease;
  v_units jsonb;
  v_bookings booking[];
begin
  if p_outcome is null or p_outcome not in ('completed', 'failed', 'timeout', 'canceled') then
    perform _refuse(422, 'invalid_operation',
      format('outcome must be completed, failed, timeout or canceled (got %s)',
        coalesce(quote_literal(left(p_outcome, 100)), 'null')), '{"field": "p_outcome"}');
  end if;
  if v_operation.status not in ('pending', 'processing')
     and not (v_operation.status = 'timeout' and p_outcome = 'completed') then
    if v_operation.status <> 'completed' then
      perform _restore_lane(v_lease, v_operation.gated_lane_id);
    end if;
    return v_operation.status;
  end if;
  perform _check_document(coalesce(p_values -> 'result', 'null'), 'result',
    (_setting('max_output_bytes'))::integer);
  perform _note_external_id(p_operation_id, p_values ->> 'external_id');
  update operations set status = p_outcome, is_late = status = 'timeout', completed_at = _now(),
    result = p_values -> 'result', error_code = left(p_values ->> 'code', 100),
    error_message = _error_text(p_values ->> 'message', 2000),
    reconcile_at = case p_outcome when 'timeout' then _now() + interval '10 minutes' end
  where id = p_operation_id;
  if p_outcome <> 'completed' then
    -- The next attempt is admitted again.
    perform _restore_lane(v_lease, v_operation.gated_lane_id);
    v_bookings := _free_operation(v_operation, case p_outcome when 'timeout' then 'expired'
      else 'released' end);
  elsif v_lease.is_gated or v_operation.has_place or v_operation.status = 'timeout' then
    -- What it used is charged here, at its provider: later attempts may fail or find nothing left to do.
    v_units := coalesce(p_values -> 'units', (
      select t.units from tasks t where t.job_id = v_lease.job_id and t.id = v_lease.task_id), '{}');
    if v_lease.is_gated then
      update leases set usage = _sum_units(coalesce(usage, '{}'), _whole_units(v_units, false))
      where task_id = v_lease.task_id;
    end if;
    v_lease.lane_id := v_operation.gated_lane_id;
    v_bookings := _charge_attempts(array[v_lease], array[v_units], not p_values ? 'units', 'standard',
      jsonb_build_object('operation_id', p_operation_id)) || _free_operation(v_operation, 'committed');
  end if;
  perform _book(v_bookings);
  perform _wake_waiting(array[v_operation.tenant_id]);
  perform pg_notify('penstock', 'ready:' || l.kind) from lanes l
  where l.endpoint_id = v_operation.endpoint_id;
  return p_outcome;
end
$$;
comment on function penstock.settle_operation(uuid, text, bigint, text, jsonb) is
  'Ends an operation: completed charges its units at the provider, failed and canceled free its reservation, '
  'timeout lets it expire. A success after a timeout counts and is late. Returns the status that counts. '
  'Values: result, units, code, message, external_id.';

create or replace function penstock.park_operation(
  p_operation_id uuid, p_worker_id text, p_lease bigint, p_seconds double precision)
returns text language plpgsql security definer set search_path = penstock, pg_temp as $$
-- Lock order: see claim.sql.
declare
  v_now timestamptz := _now();
  v_operation operations;
  v_lease leases;
  v_code text;
begin
  perform _check_holder(p_worker_id, p_lease);
  select * into v_operation from operations where id = p_operation_id;
  delete from leases where task_id = v_operation.task_id and lease = coalesce(p_lease, lease)
    and worker_id = coalesce(p_worker_id, worker_id) and not is_canceled returning * into v_lease;
  if v_lease.task_id is null then
    select s.code into v_code from _settle_batch(
      p_worker_id, 'waiting', array[v_operation.task_id], array[p_lease], null) as s;
    return coalesce(v_code, 'lease_lost');
  end if;
  select * into v_operation from operations where id = p_operation_id for update;
  if v_operation.status not in ('pending', 'processing') then
    -- It was canceled in the meantime: the lease keeps nothing, and the next run fails the attempt.
    perform _return_tasks(array[v_lease], 0);
    perform _settle(array[v_lease], false, null);
    return 'queued';
  end if;
  if v_lease.is_gated then
    -- The operation keeps the place and the reservation that the lease had.
    v_lease.lane_id := (select _lane(l.kind, l.provider, v_lease.tenant_id, false) from lanes l
      where l.id = v_lease.lane_id);
    update tasks set lane_id = v_lease.lane_id where job_id = v_lease.job_id and id = v_lease.task_id;
    with moved as (
      update holds h set lease = null, expires_at = v_operation.deadline_at + interval '1 hour'
      where h.task_id = v_lease.task_id and h.lease = v_lease.lease and h.status = 'held' returning h.id
    )
    update operations set has_place = true, hold_id = coalesce((select m.id from moved m), hold_id)
    where id = p_operation_id;
  end if;
  if v_operation.deadline_at > v_now and not v_operation.is_told then
    insert into parked select (_lease_to_waiting(v_lease,
      least(v_now + make_interval(secs => greatest(0, p_seconds)), v_operation.deadline_at),
      'operation: ' || v_operation.provider, p_operation_id)).*;
    perform pg_notify('penstock', 'chores');
    return 'parked';
  end if;
  perform _return_tasks(array[v_lease], 0);
  return 'queued';
end
$$;
comment on function penstock.park_operation(uuid, text, bigint, double precision) is
  'Ends the lease of a task that waits for its operation, at most p_seconds: the task is parked, or queued '
  'if a webhook has come since the provider was asked. Its reservation and its place move to the operation.';

create or replace function penstock.tell_operation(
  p_provider text, p_operation_id uuid default null, p_external_id text default null)
returns text language plpgsql security definer set search_path = penstock, pg_temp as $$
-- Lock order: see claim.sql.
declare
  v_operation operations;
  v_rows ready[];
begin
  select * into v_operation from operations
  where id = p_operation_id
    or p_operation_id is null and provider = p_provider and external_id = p_external_id
  order by id desc limit 1 for update;
  -- Of a tenant that moves, the other database asks the provider itself.
  if not found or exists (
      select from tenants where id = v_operation.tenant_id and suspended = 'frozen') then
    return 'unmatched';
  end if;
  update operations set webhook_received_at = _now(), is_told = true where id = v_operation.id;
  if v_operation.status in ('completed', 'failed', 'canceled') then
    return 'stale';
  elsif v_operation.status = 'timeout' then
    perform _revive_operation(v_operation);
    return 'late';
  end if;
  with gone as (
    delete from parked p where p.job_id = v_operation.job_id and p.task_id = v_operation.task_id
      and p.wait_id = v_operation.id returning _parked_to_ready(p) as task
  )
  select array_agg(g.task) into v_rows from gone g;
  perform _queue(v_rows, true);
  return 'applied';
end
$$;
comment on function penstock.tell_operation(text, uuid, text) is
  'A hint that an operation has changed, from a webhook: wakes its task, whose handler asks the provider. If '
  'the operation had timed out and its task became a dead letter, that is replayed once. '
  'Returns applied, late (it had timed out), stale or unmatched.';
