-- Dead letters: tasks that failed for good, why, and the way back.

create or replace function penstock._bury(p_leases penstock.leases[], p_reasons text[], p_codes text[], p_messages text[])
returns void language plpgsql set search_path = penstock, pg_temp as $$
declare
  v_now timestamptz := _now();
  v_deltas phase_delta[];
  v_some_deltas phase_delta[];
  v_freed ready[];
  v_some_freed ready[];
  v_job record;
  v_jobs uuid[] := array(select distinct job_id from unnest(p_leases));
  v_stopping uuid[] := array(
    select j.id from jobs j where j.id = any (v_jobs) and (j.on_failure = 'stop' or j.stop_after is not null));
begin
  insert into results (job_id, task_id, lease, tenant_id, started_at, finished_at, attempt, phase, outcome, worker_id, error_code, error_message)
  select l.job_id, l.task_id, l.lease, l.tenant_id, l.started_at, v_now, l.failures + l.deaths + 1, l.phase, 'failed', l.worker_id,
    p_codes[l.n], p_messages[l.n]
  from (select (l.held).*, l.n from (select unnest(p_leases) as held, generate_subscripts(p_leases, 1) as n) as l) as l;
  insert into dead_letters (tenant_id, job_id, task_id, kind, reason, error_code, error_message, attempts, died_at)
  select l.tenant_id, l.job_id, l.task_id, t.kind, p_reasons[l.n], p_codes[l.n], p_messages[l.n], l.failures + l.deaths + 1, v_now
  from (select (l.held).*, l.n from (select unnest(p_leases) as held, generate_subscripts(p_leases, 1) as n) as l) as l
  join tasks t on t.job_id = l.job_id and t.id = l.task_id;
  select array_agg(row(c.job_id, c.phase, 0, c.n, 0)::phase_delta) into v_deltas
  from (select job_id, phase, count(*)::integer as n from unnest(p_leases) group by job_id, phase) as c;
  for v_job in
    select job_id, array_agg(task_id) filter (where has_children) as parents from unnest(p_leases) group by job_id order by job_id
  loop
    if v_job.parents is not null then
      select s.deltas, s.freed into v_some_deltas, v_some_freed from _settle_children(v_job.job_id, v_job.parents) as s;
      v_deltas := v_deltas || v_some_deltas;
      v_freed := v_freed || v_some_freed;
    end if;
  end loop;
  if v_stopping <> '{}' then
    -- Some jobs end because they are full, and others because they stop: all are locked together, in one order.
    perform 1 from phases where job_id = any (v_jobs) order by job_id, position for no key update;
    perform 1 from jobs where id = any (v_jobs) order by id for no key update;
  end if;
  perform _move_progress(v_deltas);
  -- A job that stops at its first failure, or pauses after some.
  for v_job in
    select j.id, j.tenant_id, j.on_failure from jobs j where j.id = any (v_stopping) order by j.id
  loop
    if v_job.on_failure = 'stop' and (select status from jobs where id = v_job.id) in ('queued', 'running', 'paused') then
      perform _stop_job(v_job.id, v_job.tenant_id, 'failed', 'a task failed and the job stops at the first failure');
    end if;
    perform pause_job(j.id, format('%s tasks failed, and it stops after %s', c.failed, j.stop_after))
    from jobs j cross join lateral (
      select sum(p.failed) as failed, max(p.total) as largest from phases p where p.job_id = j.id) as c
    where j.id = v_job.id and j.status in ('queued', 'running') and c.failed - j.forgiven >= case
      when right(j.stop_after, 1) = '%' then greatest(1, ceil(rtrim(j.stop_after, '%')::numeric / 100 * c.largest)) else j.stop_after::numeric end;
  end loop;
  perform _queue(v_freed, false);
end
$$;
comment on function penstock._bury(penstock.leases[], text[], text[], text[]) is 'Ends tasks as failed for good, with their letters, and everything that follows.';

create or replace function penstock._revive_children(p_job_id uuid, p_task_ids bigint[])
returns penstock.phase_delta[] language plpgsql set search_path = penstock, pg_temp as $$
declare
  v_wave bigint[] := p_task_ids;
  v_some phase_delta[];
  v_deltas phase_delta[] := '{}';
begin
  -- A canceled child comes back when each of its parents has succeeded or runs again. One that runs whatever becomes of
  -- its parents, and still waits for others, waits for these again.
  loop
    update parked p set pending = p.pending + c.n
    from (select child_id, count(*)::integer as n from edges where job_id = p_job_id and parent_id = any (v_wave) group by child_id) as c
    where p.job_id = p_job_id and p.task_id = c.child_id and p.pending > 0;
    -- What runs again has no result any more.
    v_wave := array(
      select c.child_id from (
        select distinct e.child_id from edges e
        join results r on r.job_id = p_job_id and r.task_id = e.child_id and r.outcome = 'canceled' and r.error_code = 'parent_failed'
        where e.job_id = p_job_id and e.parent_id = any (v_wave)) as c
      where not exists (
        select from edges o join results x on x.job_id = p_job_id and x.task_id = o.parent_id and x.outcome <> 'succeeded'
        where o.job_id = p_job_id and o.child_id = c.child_id));
    exit when cardinality(v_wave) = 0;
    with gone as (
      delete from results where job_id = p_job_id and task_id = any (v_wave) returning *
    ), kept as (
      insert into parked (task_id, job_id, tenant_id, lane_id, priority, phase, has_parents, has_children, pending, until, reason, waits_for)
      select t.id, t.job_id, t.tenant_id, t.lane_id, t.priority, t.phase, true,
        exists (select from edges e where e.job_id = p_job_id and e.parent_id = t.id),
        (select count(*) from edges e where e.job_id = p_job_id and e.child_id = t.id and not exists (
          select from results x where x.job_id = p_job_id and x.task_id = e.parent_id and x.outcome = 'succeeded')),
        case when c.is_open then 'infinity' else '-infinity' end::timestamptz, case when c.is_open then 'confirmation' else 'after' end, case when c.is_open then 'confirm' end
      from gone g join tasks t on t.job_id = g.job_id and t.id = g.task_id join jobs j on j.id = t.job_id
      cross join lateral (select t.confirm and coalesce(t.created_at > j.confirmed_at, true) as is_open) as c
    )
    select array_agg(row(p_job_id, c.phase, 0, 0, -c.n)::phase_delta) into v_some
    from (select phase, count(*)::integer as n from gone group by phase) as c;
    v_deltas := v_deltas || v_some;
  end loop;
  return v_deltas;
end
$$;
comment on function penstock._revive_children(uuid, bigint[]) is 'Brings back what was canceled because these tasks had failed.';

create or replace function penstock._family(p_letter_ids bigint[], out job_ids uuid[], out task_ids bigint[])
language sql stable set search_path = penstock, pg_temp set enable_seqscan = off set jit = off as $$
  with recursive below as (
    select e.job_id, e.child_id from dead_letters d
    join jobs j on j.id = d.job_id and j.status <> 'canceled'
    join edges e on e.job_id = d.job_id and e.parent_id = d.task_id
    where d.id = any (p_letter_ids)
    union
    select e.job_id, e.child_id from below b join edges e on e.job_id = b.job_id and e.parent_id = b.child_id
  ), family as (
    select job_id, child_id as id from below
    union
    select e.job_id, e.parent_id from below b join edges e on e.job_id = b.job_id and e.child_id = b.child_id
  )
  select coalesce(array_agg(job_id order by job_id, id), '{}'), coalesce(array_agg(id order by job_id, id), '{}') from family
$$;
comment on function penstock._family(bigint[]) is 'All that comes after these dead letters, and all that comes before it.';

create or replace function penstock._replay(p_letter_ids bigint[])
returns integer language plpgsql set search_path = penstock, pg_temp set enable_seqscan = off set jit = off as $$
declare
  v_job_ids uuid[] := array(select distinct job_id from dead_letters where id = any (p_letter_ids) order by job_id);
  v_job_id uuid;
  v_job jobs;
  v_ids bigint[];
  v_rows ready[];
  v_all_rows ready[];
  v_family record;
  v_deltas phase_delta[];
  v_count integer := 0;
begin
  -- All locks first, each kind in its order, whatever the number of jobs: what may come back, and all it comes after,
  -- so that nobody's end is missed by a child that is just coming back.
  for v_try in 1 .. 50 loop
    begin
      v_family := _family(p_letter_ids);
      perform _hold_jobs(v_job_ids, v_family.job_ids, v_family.task_ids);
      exit when v_family = _family(p_letter_ids);
      raise exception using errcode = 'PS001', message = '0';
    exception when sqlstate 'PS001' then
      perform _await_lease(sqlerrm::bigint);
      v_family := null;
    end;
  end loop;
  if v_family is null then
    raise exception using errcode = 'serialization_failure', message = 'the tasks are changing hands: try again';
  end if;
  foreach v_job_id in array v_job_ids loop
    select * into v_job from jobs where id = v_job_id;
    continue when v_job.status = 'canceled';
    with gone as (
      delete from dead_letters where id = any (p_letter_ids) and job_id = v_job_id returning task_id
    ), back as (
      delete from results r using gone g where r.job_id = v_job_id and r.task_id = g.task_id and r.outcome = 'failed' returning r.task_id
    )
    select array_agg(task_id) into v_ids from back;
    continue when v_ids is null;
    select array_agg(row(t.id, 0, t.job_id, t.tenant_id, t.lane_id, t.priority, t.phase, 0, 0,
        exists (select from edges e where e.job_id = v_job_id and e.child_id = t.id),
        exists (select from edges e where e.job_id = v_job_id and e.parent_id = t.id))::ready order by t.id)
    into v_rows from tasks t where t.job_id = v_job_id and t.id = any (v_ids);
    select array_agg(row(v_job_id, c.phase, 0, -c.n, 0)::phase_delta) into v_deltas
    from (select phase, count(*)::integer as n from unnest(v_rows) group by phase) as c;
    perform _move_progress(v_deltas || _revive_children(v_job_id, v_ids));
    update jobs set forgiven = greatest(0, forgiven - cardinality(v_ids)) where id = v_job_id and forgiven > 0;
    if v_job.status = 'failed' then
      perform _require_alone(v_job_id);
      update jobs set status = 'running', status_reason = null, finished_at = null where id = v_job_id;
      insert into chores (job_id, tenant_id, verb, created_at) values (v_job_id, v_job.tenant_id, 'unpark', _now())
      on conflict (job_id) do update set verb = excluded.verb, created_at = excluded.created_at;
      perform pg_notify('penstock', 'chores');
    end if;
    v_all_rows := v_all_rows || v_rows;
    perform _audit(v_job.tenant_id, 'job.retried', v_job_id, 'job:' || v_job_id, jsonb_build_object('tasks', cardinality(v_ids)));
    v_count := v_count + cardinality(v_ids);
  end loop;
  perform _queue(v_all_rows, false);
  return v_count;
end
$$;
comment on function penstock._replay(bigint[]) is 'Queues dead-lettered tasks again, with fresh attempts, and reopens their jobs.';

create or replace function penstock._matching_letters(p_filter jsonb)
returns bigint[] language plpgsql stable set search_path = penstock, pg_temp as $$
declare
  v_unknown text;
  v_ids bigint[];
begin
  if jsonb_typeof(p_filter) is distinct from 'object' or p_filter - 'limit' - 'all' = '{}' and p_filter -> 'all' is distinct from 'true'
     or p_filter ? 'ids' and jsonb_typeof(p_filter -> 'ids') <> 'array' then
    perform _refuse(422, 'invalid_filter', 'say which dead letters: ids, job_id, kind, error_code, reason, tenant_id; {"all": true} for all');
  end if;
  select k into v_unknown from jsonb_object_keys(p_filter) as k
  where k not in ('ids', 'job_id', 'kind', 'error_code', 'reason', 'tenant_id', 'all', 'limit');
  if found then
    perform _refuse(422, 'unknown_field', format('the filter has an unknown field %L', v_unknown), jsonb_build_object('field', v_unknown));
  end if;
  v_ids := array(select e::bigint from jsonb_array_elements_text(coalesce(p_filter -> 'ids', '[]')) as e);
  return array(
    select d.id from dead_letters d
    where (_is_service() or exists (
        select from members m where m.tenant_id = d.tenant_id and m.user_id = auth.uid() and m.role in ('owner', 'admin', 'member')))
      and (not p_filter ? 'ids' or d.id = any (v_ids))
      and (not p_filter ? 'job_id' or d.job_id = (p_filter ->> 'job_id')::uuid)
      and (not p_filter ? 'tenant_id' or d.tenant_id = (p_filter ->> 'tenant_id')::uuid)
      and (not p_filter ? 'kind' or d.kind = p_filter ->> 'kind')
      and (not p_filter ? 'error_code' or d.error_code = p_filter ->> 'error_code')
      and (not p_filter ? 'reason' or d.reason = p_filter ->> 'reason')
    order by d.id limit coalesce((p_filter ->> 'limit')::integer, 100000));
exception when data_exception then
  perform _refuse(422, 'invalid_filter', 'the filter is not well formed: ' || sqlerrm);
end
$$;
comment on function penstock._matching_letters(jsonb) is 'The caller''s dead letters that match a filter.';

create or replace function penstock.replay_dead_letters(p_filter jsonb)
returns integer language plpgsql security definer set search_path = penstock, pg_temp as $$
begin
  return _replay(_matching_letters(p_filter));
end
$$;
comment on function penstock.replay_dead_letters(jsonb) is
  'Queues dead-lettered tasks again: those that match ids, job_id, kind, error_code, reason, tenant_id, or {"all": true}. Returns how many.';

create or replace function penstock.discard_dead_letters(p_filter jsonb)
returns integer language plpgsql security definer set search_path = penstock, pg_temp as $$
declare
  v_ids bigint[] := _matching_letters(p_filter);
  v_count integer;
begin
  -- One that is just being replayed is not waited for: it is no letter any more.
  with gone as (
    delete from dead_letters where ctid = any (array(select ctid from dead_letters where id = any (v_ids) for update skip locked))
    returning tenant_id, job_id, task_id
  ), logged as (
    insert into audit_log (at, tenant_id, actor, action, job_id, subject)
    select _now(), tenant_id, _actor(), 'dead_letter.discarded', job_id, 'task:' || task_id from gone
  )
  select count(*) into v_count from gone;
  return v_count;
end
$$;
comment on function penstock.discard_dead_letters(jsonb) is 'Removes dead letters that match; their tasks stay failed. Returns how many.';
