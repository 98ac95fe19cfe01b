-- Jobs: their status, and how it changes. queued -> running <-> paused -> completed | failed | canceled.
-- A retry: failed -> running. start.sql has how a job begins, chores.sql how a pause or cancel reaches its
-- tasks.
--
-- Lock order: see claim.sql. The transaction that ends the last task of a phase locks the job and reads all
-- its phases: of several such transactions, the last one to get the lock sees the others' changes and ends
-- the job.

create or replace function penstock._audit_job()
returns trigger language plpgsql security definer set search_path = penstock, pg_temp as $$
begin
  -- Checked here because PostgreSQL reads the condition of a trigger again with every statement.
  if old.status in ('completed', 'canceled') or old.status = 'failed' and new.status <> 'running'
    or old.status = 'running' and new.status = 'queued' then
    raise exception using errcode = 'PT409',
      message = format('a job cannot change from %s to %s', old.status, new.status),
      detail = jsonb_build_object('code', 'illegal_transition', 'from', old.status, 'to', new.status);
  end if;
  perform _audit(new.tenant_id, 'job.' || new.status, new.id, 'job:' || new.id,
    jsonb_strip_nulls(jsonb_build_object('from', old.status, 'reason', new.status_reason)));
  if new.status in ('completed', 'failed')
    and exists (select from notification_targets t where t.tenant_id = new.tenant_id) then
    perform _notify_job(new);
  end if;
  return null;
end
$$;
comment on function penstock._audit_job() is
  'Rejects a status change that the job state machine does not allow. For every other, writes an audit line '
  'and notifies subscribers of the job''s end.';

create or replace trigger jobs_audit after update of status on penstock.jobs
  for each row when (old.status is distinct from new.status) execute function penstock._audit_job();

create or replace function penstock._visible_job(p_job_id uuid, p_roles text[])
returns penstock.jobs language plpgsql stable set search_path = penstock, pg_temp as $$
declare
  v_job jobs;
begin
  select * into v_job from jobs where id = p_job_id;
  if not found or not (_is_service() or exists (
      select from members where tenant_id = v_job.tenant_id and user_id = auth.uid())) then
    perform _refuse(404, 'unknown_job', 'there is no such job');
  end if;
  perform _require_role(v_job.tenant_id, p_roles);
  return v_job;
end
$$;
comment on function penstock._visible_job(uuid, text[]) is
  'The job, if the caller has one of these roles; for another tenant''s job the error is the same as for a '
  'missing one.';

create or replace function penstock._locked_job(p_job_id uuid)
returns penstock.jobs language plpgsql set search_path = penstock, pg_temp as $$
declare
  v_job jobs := _visible_job(p_job_id, array['owner', 'admin', 'member']);
begin
  select * into v_job from jobs where id = p_job_id for no key update;
  if not found then  -- deleted while this call waited for the lock
    perform _refuse(404, 'unknown_job', 'there is no such job');
  end if;
  -- The caller may have lost the role while this call waited.
  perform _require_role(v_job.tenant_id, array['owner', 'admin', 'member']);
  return v_job;
end
$$;
comment on function penstock._locked_job(uuid) is
  'Locks the job and returns it, if the caller may change it.';

create or replace function penstock._end_reason(p_job_id uuid, p_failed bigint, p_total bigint)
returns text language sql stable set search_path = penstock, pg_temp as $$
  -- Refused rows have no tasks: a bulk job without failures is completed, and says what it left out.
  select nullif(concat_ws('; ', case when p_failed > 0
      then format('%s of %s %s failed', p_failed, p_total,
        case when p_total = 1 then 'task' else 'tasks' end) end,
    (select format('%s of %s %s refused', b.refused, b.total,
       case when b.total = 1 then 'row' else 'rows' end) from bulks b
     where b.job_id = p_job_id and b.refused > 0)), '')
$$;
comment on function penstock._end_reason(uuid, bigint, bigint) is
  'What did not succeed in a job that has ended: failed tasks and refused rows; null: nothing.';

create or replace function penstock._finish_jobs(p_job_ids uuid[])
returns void language plpgsql set search_path = penstock, pg_temp as $$
declare
  v_job_id uuid;
  v_total bigint;
  v_ended bigint;
  v_failed bigint;
begin
  perform 1 from jobs where id = any (p_job_ids) order by id for no key update;
  -- One by one: PostgreSQL plans a join of a batch of small jobs as a nested loop over all their phases.
  for v_job_id in select distinct j from unnest(p_job_ids) as j order by j loop
    select sum(total), sum(succeeded + failed + canceled), sum(failed) into v_total, v_ended, v_failed
    from phases where job_id = v_job_id;
    continue when v_ended < v_total;
    update jobs set
      status = case when v_failed > 0 then 'failed' else 'completed' end,
      status_reason = _end_reason(v_job_id, v_failed, v_total),
      finished_at = _now()
    where id = v_job_id and status || '' in ('queued', 'running', 'paused');
  end loop;
end
$$;
comment on function penstock._finish_jobs(uuid[]) is 'Ends those of these jobs whose tasks have all ended.';

create or replace function penstock.pause_job(p_job_id uuid, p_reason text default null)
returns text language plpgsql security definer set search_path = penstock, pg_temp as $$
begin
  return _pause_job(p_job_id, p_reason, null);
end
$$;
comment on function penstock.pause_job(uuid, text) is
  'Pauses a job: no more of its tasks are claimed, and running tasks end normally. Takes effect at once, '
  'also for large jobs.';

create or replace function penstock._pause_job(p_job_id uuid, p_reason text, p_paused_for text)
returns text language plpgsql set search_path = penstock, pg_temp as $$
-- Lock order: see claim.sql.
declare
  v_job jobs := _locked_job(p_job_id);
begin
  if v_job.status = 'paused' then
    return 'paused';
  end if;
  if v_job.status not in ('queued', 'running') then
    perform _refuse(409, 'job_ended', format('the job has already ended (%s)', v_job.status),
      jsonb_build_object('status', v_job.status));
  end if;
  update jobs set status = 'paused', status_reason = left(p_reason, 1000), paused_for = p_paused_for
  where id = p_job_id;
  -- From now on a claim parks the tasks of this job that it meets; upkeep parks the others.
  insert into chores (job_id, tenant_id, verb, created_at) values (p_job_id, v_job.tenant_id, 'park', _now())
  on conflict (job_id) do update set verb = excluded.verb, created_at = excluded.created_at;
  perform pg_notify('penstock', 'chores');
  return 'paused';
end
$$;
comment on function penstock._pause_job(uuid, text, text) is
  'Pauses a job: see pause_job. p_paused_for: budget or quota, if the platform pauses it.';

create or replace function penstock.resume_job(p_job_id uuid)
returns text language plpgsql security definer set search_path = penstock, pg_temp as $$
declare
  v_job jobs := _locked_job(p_job_id);
  v_status text;
begin
  if v_job.status in ('queued', 'running') then
    return v_job.status;
  end if;
  if v_job.status <> 'paused' then
    perform _refuse(409, 'job_ended', format('the job has already ended (%s)', v_job.status),
      jsonb_build_object('status', v_job.status));
  end if;
  v_status := case when v_job.started_at is null then 'queued' else 'running' end;
  update jobs set status = v_status, status_reason = null, paused_for = null,
    -- Resuming after failures accepts them: stop_after counts from here.
    forgiven = case when stop_after is null then 0
      else (select coalesce(sum(p.failed), 0) from phases p where p.job_id = p_job_id) end
  where id = p_job_id;
  if v_job.on_limit = 'pause' then
    -- A resume retries the tasks that the quota had no room for.
    update parked set reason = 'paused', waits_for = null, until = 'infinity' where ctid = any (array(
      select p.ctid from parked p join meters m on m.name = p.waits_for
      where p.tenant_id = v_job.tenant_id and p.job_id = p_job_id for update of p skip locked));
  end if;
  insert into chores (job_id, tenant_id, verb, created_at)
    values (p_job_id, v_job.tenant_id, 'unpark', _now())
  on conflict (job_id) do update set verb = excluded.verb, created_at = excluded.created_at;
  perform _do_chore(p_job_id, 1000);
  perform pg_notify('penstock', 'chores');
  return v_status;
end
$$;
comment on function penstock.resume_job(uuid) is
  'Resumes a paused job. The first 1,000 tasks are queued at once, the others by upkeep.';

create or replace function penstock.confirm_job(p_job_id uuid)
returns integer language plpgsql security definer set search_path = penstock, pg_temp as $$
declare
  v_job jobs := _visible_job(p_job_id, array['owner', 'admin', 'member']);
  v_tasks bigint[];
  v_rows ready[];
begin
  -- Lock order: parked tasks, then the job. Tasks parked in between
  -- show up once the job is locked, and the loop starts again.
  for v_try in 1 .. 50 loop
    begin
      v_tasks := array(
        select p.task_id from parked p where p.tenant_id = v_job.tenant_id and p.waits_for = 'confirm'
          and p.job_id = p_job_id
        order by p.task_id for update);
      v_job := _locked_job(p_job_id);
      exit when not exists (
        select from parked p where p.tenant_id = v_job.tenant_id and p.waits_for = 'confirm'
          and p.job_id = p_job_id and p.task_id <> all (v_tasks));
      raise exception using errcode = 'PS001';
    exception when sqlstate 'PS001' then
      v_tasks := null;
    end;
  end loop;
  if v_tasks is null then
    raise exception using errcode = 'serialization_failure',
      message = 'could not lock the tasks of the job: try again';
  end if;
  if v_job.finished_at is not null then
    perform _refuse(409, 'job_ended', format('the job has already ended (%s)', v_job.status),
      jsonb_build_object('status', v_job.status));
  end if;
  if v_tasks = '{}' then
    if v_job.confirmed_at is null then
      perform _refuse(409, 'nothing_to_confirm', 'no task of the job waits for confirmation', '{}',
        'A preview may still be running: try again when it has ended.');
    end if;
    return 0;
  end if;
  update jobs set confirmed_at = _now() where id = p_job_id;
  update parked set waits_for = null, reason = case when pending > 0 then 'after' else 'time' end,
    until = coalesce(v_job.run_at, '-infinity')
  where job_id = p_job_id and task_id = any (v_tasks);
  -- Tasks of a paused job are queued too: the claim parks them again.
  with gone as (
    delete from parked p where p.job_id = p_job_id and p.task_id = any (v_tasks) and p.pending = 0
      and p.until <= _now() returning _parked_to_ready(p) as task
  )
  select array_agg(g.task order by (g.task).task_id) into v_rows from gone g;
  perform _audit(v_job.tenant_id, 'job.confirmed', p_job_id, 'job:' || p_job_id,
    jsonb_build_object('tasks', cardinality(v_tasks)));
  perform _queue(v_rows, false);
  return cardinality(v_tasks);
end
$$;
comment on function penstock.confirm_job(uuid) is
  'Releases the tasks that wait for confirmation and returns their number. A second call changes nothing.';

create or replace function penstock.cancel_job(p_job_id uuid, p_reason text default null)
returns text language plpgsql security definer set search_path = penstock, pg_temp as $$
declare
  v_job jobs := _locked_job(p_job_id);
begin
  if v_job.status = 'canceled' then
    return 'canceled';
  end if;
  if v_job.status in ('completed', 'failed') then
    perform _refuse(409, 'job_ended', format('the job has already ended (%s)', v_job.status),
      jsonb_build_object('status', v_job.status));
  end if;
  perform _stop_job(p_job_id, v_job.tenant_id, 'canceled',
    coalesce(left(p_reason, 1000), 'canceled by ' || _actor()));
  return 'canceled';
end
$$;
comment on function penstock.cancel_job(uuid, text) is
  'Cancels a job now: no more of its tasks are claimed, running handlers are told to stop, and their '
  'reports are rejected.';

create or replace function penstock._stop_job(p_job_id uuid, p_tenant_id uuid, p_status text, p_reason text)
returns void language plpgsql set search_path = penstock, pg_temp as $$
begin
  update jobs set status = p_status, status_reason = p_reason, finished_at = _now() where id = p_job_id;
  -- A locked lease is being completed or extended right now:
  -- its report is accepted, or its next heartbeat is told.
  update leases set is_canceled = true
  where ctid = any (array(select ctid from leases where job_id = p_job_id for update skip locked));
  -- A failed job can be retried, so its remaining tasks are parked. Those of a canceled job are deleted.
  insert into chores (job_id, tenant_id, verb, created_at)
  values (p_job_id, p_tenant_id, case p_status when 'failed' then 'park' else 'drop' end, _now())
  on conflict (job_id) do update set verb = excluded.verb, created_at = excluded.created_at;
  perform _mark_operations(array[p_job_id], null);
  perform pg_notify('penstock', 'cancel');
  perform pg_notify('penstock', 'jobs');
end
$$;
comment on function penstock._stop_job(uuid, uuid, text, text) is
  'Ends a job as failed or canceled although some of its tasks have not ended.';

create or replace function penstock.retry_job(p_job_id uuid)
returns integer language plpgsql security definer set search_path = penstock, pg_temp as $$
declare
  v_job jobs := _visible_job(p_job_id, array['owner', 'admin', 'member']);
  v_count integer;
begin
  if v_job.status not in ('failed', 'running', 'paused') then
    perform _refuse(409, 'not_failed', format('a %s job has no failed tasks to retry', v_job.status),
      jsonb_build_object('status', v_job.status));
  end if;
  v_count := _replay(array(select id from dead_letters where job_id = p_job_id order by id));
  -- The caller may have lost the role while the call waited for locks.
  perform _require_role(v_job.tenant_id, array['owner', 'admin', 'member']);
  return v_count;
end
$$;
comment on function penstock.retry_job(uuid) is
  'Queues the failed tasks of a job again, and the tasks that were canceled because of them. Returns the '
  'number of failed tasks.';

create or replace function penstock._waiting_count(p_job_id uuid)
returns bigint language sql stable set search_path = penstock, pg_temp as $$
  select count(*) from (
    select from parked where job_id = p_job_id and wait_id is not null limit 100000) as x
$$;
comment on function penstock._waiting_count(uuid) is
  'How many tasks of a job wait for an answer, an event or a time, up to 100,000.';

create or replace function penstock.get_job(p_job_id uuid)
returns jsonb language plpgsql stable security definer set search_path = penstock, pg_temp
  set enable_seqscan = off set jit = off as $$
declare
  v_job jobs := _visible_job(p_job_id, array['owner', 'admin', 'member', 'viewer']);
  v_now timestamptz := _now();
  v_list record;
  v_running record;
  v_rest record;
begin
  select * into v_list from job_list where id = p_job_id;
  select count(*) as n,
    (array_agg(l.message order by l.expires_at desc) filter (where l.message is not null))[1] as message,
    coalesce(sum(coalesce(p.weight, p.total) / p.total * coalesce(l.fraction, 0)), 0) as part
  into v_running
  from leases l join phases p on p.job_id = l.job_id and p.position = l.phase
  where l.job_id = p_job_id and not l.is_canceled;
  -- The fraction counts running tasks by the progress that they report.
  select (sum(coalesce(p.weight, p.total) * (p.succeeded + p.failed + p.canceled) / p.total)
      filter (where p.total > 0) + v_running.part)
      / nullif(sum(coalesce(p.weight, p.total)) filter (where p.total > 0), 0) as fraction,
    jsonb_agg(jsonb_build_object('name', p.name, 'weight', p.weight, 'total', p.total,
      'succeeded', p.succeeded, 'failed', p.failed, 'canceled', p.canceled) order by p.position) as phases,
    (select a.used from accounts a
      where a.tenant_id = v_job.tenant_id and a.job_id = p_job_id and a.meter = 'cost') as cost,
    _waiting_count(p_job_id) as waiting
  into v_rest from phases p where p.job_id = p_job_id;
  return jsonb_build_object(
    'id', v_job.id, 'tenant_id', v_job.tenant_id, 'type', v_job.type,
    'status', v_job.status, 'status_reason', v_job.status_reason,
    'params', v_job.params, 'title', v_job.title, 'tags', v_job.tags, 'priority', v_job.priority,
    'created_at', v_job.created_at, 'created_by', v_job.created_by,
    'run_at', v_job.run_at, 'budget', v_job.budget, 'cost', coalesce(v_rest.cost, 0),
    'started_at', v_job.started_at, 'finished_at', v_job.finished_at,
    'progress', jsonb_build_object(
      'percent', case when v_list.percent = 100 then 100
        else least(99,
          greatest(v_list.percent, floor((100 * coalesce(v_rest.fraction, 0))::numeric)::integer)) end,
      'phase', v_list.phase,
      'done', v_list.succeeded + v_list.failed + v_list.canceled, 'total', v_list.total,
      'succeeded', v_list.succeeded, 'failed', v_list.failed, 'canceled', v_list.canceled,
      'running', v_running.n, 'waiting', v_rest.waiting,
      'docs_complete', v_list.docs_complete, 'docs_total', v_list.docs_total,
      'message', coalesce(v_running.message, v_job.status_reason),
      -- Extrapolates the speed so far; null until 1 % is done.
      'eta_seconds', case when v_job.status = 'running' and v_rest.fraction between 0.01 and 0.999999 then
        round((extract(epoch from v_now - v_job.started_at)
          * (1 - v_rest.fraction) / v_rest.fraction)::numeric, 1) end,
      'phases', v_rest.phases));
end
$$;
comment on function penstock.get_job(uuid) is
  'A job with its progress (percent, phase, done, total, message, eta_seconds, phases).';

create or replace function penstock.get_job_detail(
  p_job_id uuid, p_max_artifacts integer default 200, p_max_result_bytes integer default 65536)
returns jsonb language plpgsql stable security definer set search_path = penstock, pg_temp
  set enable_seqscan = off set jit = off as $$
declare
  v_job jsonb := get_job(p_job_id);
  v_artifacts jsonb;
begin
  select coalesce(jsonb_agg(to_jsonb(f) order by f.id), '[]') into v_artifacts from (
    select a.id, a.tenant_id, a.job_id, a.task_id, a.name, a.path, a.content_type, a.bytes, a.sha256,
      a.created_at, a.stored_at, coalesce(a.type, _artifact_type(a.content_type)) as type, a.metadata
    from artifacts a where a.job_id = p_job_id and a.status = 'stored'
    order by a.id limit greatest(0, least(coalesce(p_max_artifacts, 200), 1000))) as f;
  return v_job || jsonb_build_object('artifacts', v_artifacts, 'result',
    case when v_job ->> 'status' = 'completed' then job_result(p_job_id, p_max_result_bytes) end);
end
$$;
comment on function penstock.get_job_detail(uuid, integer, integer) is
  'A job as get_job returns it, with its first files (artifacts, at most 1000) and its result as job_result '
  'returns it.';
