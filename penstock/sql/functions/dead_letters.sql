-- Dead letters: tasks that failed permanently, and their replay.

create or replace function penstock._apply_failure_policies(p_job_ids uuid[])
returns void language plpgsql set search_path = penstock, pg_temp as $$
declare
  v_job record;
begin
  for v_job in
    select j.id, j.tenant_id, j.on_failure from jobs j where j.id = any (p_job_ids) order by j.id
  loop
    if v_job.on_failure = 'stop'
      and (select status from jobs where id = v_job.id) in ('queued', 'running', 'paused') then
      perform _stop_job(v_job.id, v_job.tenant_id, 'failed', 'a task failed and on_failure is stop');
    end if;
    perform pause_job(j.id, format('%s tasks failed; stop_after is %s', c.failed, j.stop_after))
    from jobs j cross join lateral (
      select sum(p.failed) as failed, max(p.total) as largest from phases p where p.job_id = j.id) as c
    where j.id = v_job.id and j.status in ('queued', 'running') and c.failed - j.forgiven >= case
      when right(j.stop_after, 1) = '%'
        then greatest(1, ceil(rtrim(j.stop_after, '%')::numeric / 100 * c.largest))
        else j.stop_after::numeric end;
  end loop;
end
$$;
comment on function penstock._apply_failure_policies(uuid[]) is
  'Stops jobs with on_failure = stop, and pauses jobs whose failures have reached stop_after.';

create or replace function penstock._move_to_dead_letters(
  p_leases penstock.leases[], p_reasons text[], p_codes text[], p_messages text[])
returns void language plpgsql set search_path = penstock, pg_temp as $$
declare
  v_now timestamptz := _now();
  v_deltas phase_delta[];
  v_child_deltas phase_delta[];
  v_freed ready[];
  v_job_freed ready[];
  v_job record;
  v_jobs uuid[] := array(select distinct job_id from unnest(p_leases));
  v_stopping uuid[] := array(
    select j.id from jobs j where j.id = any (v_jobs)
      and (j.on_failure = 'stop' or j.stop_after is not null));
begin
  insert into results (job_id, task_id, lease, tenant_id, started_at, finished_at, attempt, phase, outcome,
    worker_id, error_code, error_message)
  select l.job_id, l.task_id, l.lease, l.tenant_id, l.started_at, v_now, l.failures + l.deaths + 1, l.phase,
    'failed', l.worker_id, p_codes[l.n], p_messages[l.n]
  from (select (l.held).*, l.n
    from (select unnest(p_leases) as held, generate_subscripts(p_leases, 1) as n) as l) as l;
  insert into dead_letters (tenant_id, job_id, task_id, kind, reason, error_code, error_message, attempts,
    died_at)
  select l.tenant_id, l.job_id, l.task_id, t.kind, p_reasons[l.n], p_codes[l.n], p_messages[l.n],
    l.failures + l.deaths + 1, v_now
  from (select (l.held).*, l.n
    from (select unnest(p_leases) as held, generate_subscripts(p_leases, 1) as n) as l) as l
  join tasks t on t.job_id = l.job_id and t.id = l.task_id;
  perform _mark_operations(v_jobs, array(select l.task_id from unnest(p_leases) as l));
  select array_agg(row(c.job_id, c.phase, 0, c.n, 0)::phase_delta) into v_deltas
  from (select job_id, phase, count(*)::integer as n from unnest(p_leases) group by job_id, phase) as c;
  for v_job in
    select job_id, array_agg(task_id) filter (where has_children) as parents from unnest(p_leases)
      group by job_id order by job_id
  loop
    if v_job.parents is not null then
      select s.deltas, s.freed into v_child_deltas, v_job_freed
        from _settle_children(v_job.job_id, v_job.parents) as s;
      v_deltas := v_deltas || v_child_deltas;
      v_freed := v_freed || v_job_freed;
    end if;
  end loop;
  if v_stopping <> '{}' then
    -- Some jobs end because all their tasks have ended, others
    -- because of this failure: lock all of them in one order.
    perform 1 from phases where job_id = any (v_jobs) order by job_id, position for no key update;
    perform 1 from jobs where id = any (v_jobs) order by id for no key update;
  end if;
  perform _move_progress(v_deltas);
  perform _apply_failure_policies(v_stopping);
  perform _queue(v_freed, false);
end
$$;
comment on function penstock._move_to_dead_letters(penstock.leases[], text[], text[], text[]) is
  'Ends tasks as permanently failed: writes their results and dead letters, and updates their children and '
  'jobs.';

create or replace function penstock._restore_children(p_job_id uuid, p_task_ids bigint[])
returns penstock.phase_delta[] language plpgsql set search_path = penstock, pg_temp as $$
declare
  v_generation bigint[] := p_task_ids;
  v_new_deltas phase_delta[];
  v_deltas phase_delta[] := '{}';
begin
  -- A canceled child is restored once each of its parents has succeeded or is queued again. A child
  -- with after_failure = run that still waits for other parents waits for these parents again.
  loop
    update parked p set pending = p.pending + c.n
    from (select child_id, count(*)::integer as n from edges where job_id = p_job_id
      and parent_id = any (v_generation) group by child_id) as c
    where p.job_id = p_job_id and p.task_id = c.child_id and p.pending > 0;
    -- A parent that is queued again has no result.
    v_generation := array(
      select c.child_id from (
        select distinct e.child_id from edges e
        join results r on r.job_id = p_job_id and r.task_id = e.child_id and r.outcome = 'canceled'
          and r.error_code = 'parent_failed'
        where e.job_id = p_job_id and e.parent_id = any (v_generation)) as c
      where not exists (
        select from edges o join results x on x.job_id = p_job_id and x.task_id = o.parent_id
          and x.outcome <> 'succeeded'
        where o.job_id = p_job_id and o.child_id = c.child_id));
    exit when cardinality(v_generation) = 0;
    with gone as (
      delete from results where job_id = p_job_id and task_id = any (v_generation) returning *
    ), kept as (
      insert into parked (task_id, job_id, tenant_id, lane_id, priority, phase, has_parents, has_children,
        pending, until, reason, waits_for)
      select t.id, t.job_id, t.tenant_id, t.lane_id, t.priority, t.phase, true,
        exists (select from edges e where e.job_id = p_job_id and e.parent_id = t.id),
        (select count(*) from edges e where e.job_id = p_job_id and e.child_id = t.id and not exists (
          select from results x where x.job_id = p_job_id and x.task_id = e.parent_id
            and x.outcome = 'succeeded')),
        case when c.is_open then 'infinity' else '-infinity' end::timestamptz, case when c.is_open
          then 'confirmation' else 'after' end, case when c.is_open then 'confirm' end
      from gone g join tasks t on t.job_id = g.job_id and t.id = g.task_id join jobs j on j.id = t.job_id
      cross join lateral (select t.confirm and coalesce(t.created_at > j.confirmed_at, true) as is_open) as c
    )
    select array_agg(row(p_job_id, c.phase, 0, 0, -c.n)::phase_delta) into v_new_deltas
    from (select phase, count(*)::integer as n from gone group by phase) as c;
    v_deltas := v_deltas || v_new_deltas;
  end loop;
  return v_deltas;
end
$$;
comment on function penstock._restore_children(uuid, bigint[]) is
  'Restores the descendants that were canceled because these tasks had failed, and returns the changes of '
  'the phase counts.';

create or replace function penstock._related_tasks(p_letter_ids bigint[], out job_ids uuid[],
  out task_ids bigint[])
language sql stable set search_path = penstock, pg_temp set enable_seqscan = off set jit = off as $$
  with recursive below as (
    select e.job_id, e.child_id from dead_letters d
    join jobs j on j.id = d.job_id and j.status <> 'canceled'
    join edges e on e.job_id = d.job_id and e.parent_id = d.task_id
    where d.id = any (p_letter_ids)
    union
    select e.job_id, e.child_id from below b join edges e on e.job_id = b.job_id and e.parent_id = b.child_id
  ), related as (
    select job_id, child_id as id from below
    union
    select e.job_id, e.parent_id from below b join edges e on e.job_id = b.job_id and e.child_id = b.child_id
  )
  select coalesce(array_agg(job_id order by job_id, id), '{}'),
    coalesce(array_agg(id order by job_id, id), '{}')
  from related
$$;
comment on function penstock._related_tasks(bigint[]) is
  'The descendants of dead-lettered tasks, and all parents of these descendants.';

create or replace function penstock._lock_for_replay(p_letter_ids bigint[], p_job_ids uuid[])
returns void language plpgsql set search_path = penstock, pg_temp as $$
declare
  v_related record;
begin
  -- Locks the restored tasks and all their parents, so that
  -- no parent ends unseen while its child is restored.
  for v_try in 1 .. 50 loop
    begin
      v_related := _related_tasks(p_letter_ids);
      perform _lock_jobs_and_tasks(p_job_ids, v_related.job_ids, v_related.task_ids);
      exit when v_related = _related_tasks(p_letter_ids);
      raise exception using errcode = 'PS001', message = '0';
    exception when sqlstate 'PS001' then
      perform _wait_for_lease(sqlerrm::bigint);
      v_related := null;
    end;
  end loop;
  if v_related is null then
    raise exception using errcode = 'serialization_failure', message = 'could not lock the tasks: try again';
  end if;
end
$$;
comment on function penstock._lock_for_replay(bigint[], uuid[]) is
  'Takes all locks of a replay, whatever the number of jobs, in the usual lock order.';

create or replace function penstock._reopen_job(p_job penstock.jobs)
returns void language plpgsql set search_path = penstock, pg_temp as $$
begin
  perform _require_exclusive(p_job.id);
  update jobs set status = 'running', status_reason = null, finished_at = null where id = p_job.id;
  insert into chores (job_id, tenant_id, verb, created_at)
    values (p_job.id, p_job.tenant_id, 'unpark', _now())
  on conflict (job_id) do update set verb = excluded.verb, created_at = excluded.created_at;
  perform pg_notify('penstock', 'chores');
end
$$;
comment on function penstock._reopen_job(penstock.jobs) is
  'Sets a failed job to running and unparks its tasks.';

create or replace function penstock._replay(p_letter_ids bigint[])
returns integer language plpgsql set search_path = penstock, pg_temp set enable_seqscan = off
  set jit = off as $$
declare
  v_job_ids uuid[] := array(select distinct job_id from dead_letters where id = any (p_letter_ids)
    order by job_id);
  v_job_id uuid;
  v_job jobs;
  v_ids bigint[];
  v_rows ready[];
  v_all_rows ready[];
  v_deltas phase_delta[];
  v_count integer := 0;
begin
  perform _lock_for_replay(p_letter_ids, v_job_ids);
  foreach v_job_id in array v_job_ids loop
    select * into v_job from jobs where id = v_job_id;
    continue when v_job.status = 'canceled';
    with gone as (
      delete from dead_letters where id = any (p_letter_ids) and job_id = v_job_id returning task_id
    ), back as (
      delete from results r using gone g
      where r.job_id = v_job_id and r.task_id = g.task_id and r.outcome = 'failed' returning r.task_id
    )
    select array_agg(task_id) into v_ids from back;
    continue when v_ids is null;
    select array_agg(row(t.id, 0, t.job_id, t.tenant_id, t.lane_id, t.priority, t.phase, 0, 0,
        exists (select from edges e where e.job_id = v_job_id and e.child_id = t.id),
        exists (select from edges e where e.job_id = v_job_id and e.parent_id = t.id))::ready order by t.id)
    into v_rows from tasks t where t.job_id = v_job_id and t.id = any (v_ids);
    select array_agg(row(v_job_id, c.phase, 0, -c.n, 0)::phase_delta) into v_deltas
    from (select phase, count(*)::integer as n from unnest(v_rows) group by phase) as c;
    perform _move_progress(v_deltas || _restore_children(v_job_id, v_ids));
    update jobs set forgiven = greatest(0, forgiven - cardinality(v_ids)) where id = v_job_id
      and forgiven > 0;
    if v_job.status = 'failed' then
      perform _reopen_job(v_job);
    end if;
    v_all_rows := v_all_rows || v_rows;
    perform _audit(v_job.tenant_id, 'job.retried', v_job_id, 'job:' || v_job_id,
      jsonb_build_object('tasks', cardinality(v_ids)));
    v_count := v_count + cardinality(v_ids);
  end loop;
  perform _queue(v_all_rows, false);
  return v_count;
end
$$;
comment on function penstock._replay(bigint[]) is
  'Queues dead-lettered tasks again with a fresh number of attempts, reopens their jobs, and returns the '
  'number of tasks.';

create or replace function penstock._matching_letters(p_filter jsonb)
returns bigint[] language plpgsql stable set search_path = penstock, pg_temp as $$
declare
  v_unknown text;
  v_ids bigint[];
begin
  if jsonb_typeof(p_filter) is distinct from 'object' or p_filter - 'limit' - 'all' = '{}'
    and p_filter -> 'all' is distinct from 'true'
     or p_filter ? 'ids' and jsonb_typeof(p_filter -> 'ids') <> 'array' then
    perform _refuse(422, 'invalid_filter', 'the filter must be a JSON object that selects dead letters',
      '{}',
      'Use ids (an array), job_id, kind, error_code, reason or tenant_id, or {"all": true} for all.');
  end if;
  select k into v_unknown from jsonb_object_keys(p_filter) as k
  where k not in ('ids', 'job_id', 'kind', 'error_code', 'reason', 'tenant_id', 'all', 'limit');
  if found then
    perform _refuse(422, 'unknown_field', format('unknown filter field %L', left(v_unknown, 100)),
      jsonb_build_object('field', v_unknown));
  end if;
  v_ids := array(select e::bigint from jsonb_array_elements_text(coalesce(p_filter -> 'ids', '[]')) as e);
  return array(
    select d.id from dead_letters d
    where (_is_service() or exists (
        select from members m where m.tenant_id = d.tenant_id and m.user_id = auth.uid()
          and m.role in ('owner', 'admin', 'member')) and _has_scope(auth.uid(), 'start'))
      and (not p_filter ? 'ids' or d.id = any (v_ids))
      and (not p_filter ? 'job_id' or d.job_id = (p_filter ->> 'job_id')::uuid)
      and (not p_filter ? 'tenant_id' or d.tenant_id = (p_filter ->> 'tenant_id')::uuid)
      and (not p_filter ? 'kind' or d.kind = p_filter ->> 'kind')
      and (not p_filter ? 'error_code' or d.error_code = p_filter ->> 'error_code')
      and (not p_filter ? 'reason' or d.reason = p_filter ->> 'reason')
    order by d.id limit coalesce((p_filter ->> 'limit')::integer, 100000));
exception when data_exception then
  perform _refuse(422, 'invalid_filter', 'invalid filter: ' || sqlerrm);
end
$$;
comment on function penstock._matching_letters(jsonb) is
  'The ids of dead letters that match a filter and that the caller may change.';

create or replace function penstock.replay_dead_letters(p_filter jsonb)
returns integer language plpgsql security definer set search_path = penstock, pg_temp as $$
declare
  v_ids bigint[] := _matching_letters(p_filter);
  v_tenants uuid[] := array(select distinct d.tenant_id from dead_letters d where d.id = any (v_ids));
  v_count integer := _replay(v_ids);
begin
  -- The caller may have lost the role while the call waited for locks.
  perform _require_role(t, array['owner', 'admin', 'member']) from unnest(v_tenants) as t;
  return v_count;
end
$$;
comment on function penstock.replay_dead_letters(jsonb) is
  'Queues the tasks of matching dead letters again and returns their number. Filter: ids, job_id, kind, '
  'error_code, reason, tenant_id, limit, or {"all": true}.';

create or replace function penstock.discard_dead_letters(p_filter jsonb)
returns integer language plpgsql security definer set search_path = penstock, pg_temp as $$
declare
  v_ids bigint[] := _matching_letters(p_filter);
  v_count integer;
begin
  perform _require_active(t.tenant_id) from (
    select distinct d.tenant_id from dead_letters d where d.id = any (v_ids)) as t;
  -- A letter that is being replayed right now is skipped.
  with gone as (
    delete from dead_letters
      where ctid = any (array(select ctid from dead_letters where id = any (v_ids) for update skip locked))
    returning tenant_id, job_id, task_id
  ), logged as (
    insert into audit_log (at, tenant_id, actor, action, job_id, subject)
    select _now(), tenant_id, _actor(), 'dead_letter.discarded', job_id, 'task:' || task_id from gone
  )
  select count(*) into v_count from gone;
  return v_count;
end
$$;
comment on function penstock.discard_dead_letters(jsonb) is
  'Deletes matching dead letters and returns their number. Their tasks stay failed.';
