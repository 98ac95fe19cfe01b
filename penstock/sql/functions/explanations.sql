-- Explanations: why a task or a job waits.

create or replace function penstock._ordinal(p_number bigint)
returns text language sql immutable set search_path = penstock, pg_temp as $$
  select p_number || case when p_number % 100 between 11 and 13 then 'th' else
    case p_number % 10 when 1 then 'st' when 2 then 'nd' when 3 then 'rd' else 'th' end end
$$;
comment on function penstock._ordinal(bigint) is 'A number as an English ordinal: 1st, 2nd, 3rd, 12th.';

create or replace function penstock._duration_text(p_seconds double precision)
returns text language sql immutable set search_path = penstock, pg_temp as $$
  select case
    when p_seconds is null then null
    when p_seconds < 1 then 'less than 1 s'
    when p_seconds < 100 then format('about %s s', round(p_seconds))
    when p_seconds < 5400 then format('about %s min', round(p_seconds / 60))
    when p_seconds < 172800 then format('about %s h', round(p_seconds / 3600))
    else format('about %s days', round(p_seconds / 86400)) end
$$;
comment on function penstock._duration_text(double precision) is
  'A duration as text, such as "about 5 min".';

create or replace function penstock._explain_parked(
  p_job penstock.jobs, p_parked penstock.parked, out waits_for text, out reason text,
  out seconds double precision, out place bigint)
language plpgsql stable set search_path = penstock, pg_temp as $$
declare
  v_seconds_left double precision := case when isfinite(p_parked.until)
    then greatest(0, extract(epoch from p_parked.until - _now())) end;
begin
  if p_parked.pending > 0 then
    waits_for := 'tasks';
    reason := format('%s parent task%s', p_parked.pending, case when p_parked.pending = 1 then ''
      else 's' end);
  elsif p_job.status = 'paused' then
    waits_for := 'job';
    reason := 'the job is paused' || coalesce(': ' || p_job.status_reason, '');
  elsif p_parked.wait_id is not null then
    select e.waits_for, e.reason into waits_for, reason from _explain_wait(p_parked.wait_id) as e;
    -- An operation is checked now and then; it times out at its deadline.
    seconds := coalesce((
      select greatest(0, extract(epoch from o.deadline_at - _now())) from operations o
      where o.id = p_parked.wait_id), v_seconds_left);
  elsif p_parked.waits_for = 'confirm' then
    waits_for := 'confirm';
    reason := format('confirmation: `penstock bulk confirm %s`', p_job.id);
  elsif p_parked.waits_for is not null then
    waits_for := p_parked.waits_for;
    reason := p_parked.reason;
    seconds := v_seconds_left;
    select count(*) + 1 into place from (
      select from parked p
      where p.tenant_id = p_parked.tenant_id and p.waits_for = p_parked.waits_for
        and (p.job_id, p.task_id) < (p_parked.job_id, p_parked.task_id)
        and (p.waits_for <> 'budget' or p.job_id = p_parked.job_id) limit 10000) as x;
  else
    waits_for := case when p_parked.reason = 'paused' then 'job' else 'time' end;
    reason := case p_parked.reason when 'retry' then 'the next attempt' when 'time' then 'its start time'
      when 'paused' then 'its job to resume' else p_parked.reason end;
    seconds := v_seconds_left;
  end if;
end
$$;
comment on function penstock._explain_parked(penstock.jobs, penstock.parked) is
  'What a parked task waits for, about how long, and its place among the tasks that wait for the same.';

create or replace function penstock._explain_endpoint(
  p_task penstock.tasks, p_endpoint penstock.endpoints, p_place bigint, out waits_for text, out reason text,
  out seconds double precision)
language plpgsql stable set search_path = penstock, pg_temp as $$
declare
  v_now timestamptz := _now();
  v_state endpoint_states;
  v_room record;
  v_size record;
begin
  select * into v_state from endpoint_states where endpoint_id = p_endpoint.id;
  v_room := _free_capacity(p_endpoint, v_state, v_now);
  select s.requests, s.tokens into v_size from _call_size(p_task.units, p_endpoint.default_tokens) as s;
  -- The tasks ahead are assumed to be as large as this one.
  seconds := greatest(
    case when isfinite(v_state.closed_until)
      then extract(epoch from greatest(v_state.closed_until, v_state.open_at) - v_now) end,
    60.0 * (p_place * v_size.requests - v_room.requests) / nullif(p_endpoint.requests_per_minute, 0),
    60.0 * (p_place * v_size.tokens - v_room.tokens) / nullif(p_endpoint.tokens_per_minute, 0),
    3600.0 * (p_place * v_size.requests - v_room.requests) / nullif(p_endpoint.requests_per_hour, 0),
    3600.0 * (p_place * v_size.tokens - v_room.tokens) / nullif(p_endpoint.tokens_per_hour, 0), 0);
  if v_state.closed_until > v_now then
    waits_for := 'provider';
    reason := format('%s: %s', p_endpoint.name, v_state.closed_reason);
    if not isfinite(v_state.closed_until) then
      seconds := null;
    end if;
  elsif v_room.places < 1 then
    waits_for := 'concurrency';
    reason := format('%s concurrency, %s running', p_endpoint.name, p_endpoint.concurrency);
    seconds := nullif(seconds, 0);
  elsif p_place * v_size.requests > v_room.requests or p_place * v_size.tokens > v_room.tokens then
    waits_for := case when p_place * v_size.tokens > v_room.tokens then 'tokens' else 'requests' end;
    reason := format('%s %s', p_endpoint.name, waits_for);
  end if;
end
$$;
comment on function penstock._explain_endpoint(penstock.tasks, penstock.endpoints, bigint) is
  'Which limit of its provider a ready task waits for, and about how long; waits_for is null if no limit '
  'does.';

create or replace function penstock._explain_ready(
  p_task penstock.tasks, out waits_for text, out reason text, out seconds double precision, out place bigint)
language plpgsql stable set search_path = penstock, pg_temp as $$
declare
  v_ready ready;
  v_endpoint endpoints;
begin
  select * into v_ready from ready
  where tenant_id = p_task.tenant_id and lane_id = p_task.lane_id and priority = p_task.priority
    and job_id = p_task.job_id and task_id = p_task.id;
  select count(*) + 1 into place from (
    select from ready r where r.lane_id = p_task.lane_id and r.vtime < v_ready.vtime limit 10000) as x;
  select e.* into v_endpoint from lanes l
  join endpoints e on e.name = l.provider and e.tenant_id is not distinct from l.tenant_id
  where l.id = p_task.lane_id;
  if (_setting('maintenance'))::boolean then
    waits_for := 'maintenance';
    reason := 'maintenance mode: no tasks are claimed';
    return;
  end if;
  if v_endpoint.status <> 'active' then
    waits_for := 'provider';
    reason := format('%s is %s', v_endpoint.name,
      case v_endpoint.status when 'maintenance' then 'under maintenance' else v_endpoint.status end);
  elsif v_endpoint.id is not null then
    select e.waits_for, e.reason, e.seconds into waits_for, reason, seconds
    from _explain_endpoint(p_task, v_endpoint, place) as e;
  end if;
  if waits_for is not null and p_task.route is not null then
    reason := reason || '; ' || _explain_route(p_task);
  end if;
  if waits_for is null then
    waits_for := 'worker';
    reason := case when exists (
        select from workers w where w.state = 'running' and w.beat_at > _now() - interval '60 seconds'
          and p_task.kind = any (w.kinds)) then 'a free worker'
      else format('no worker handles %s', p_task.kind) end;
    seconds := null;
  end if;
end
$$;
comment on function penstock._explain_ready(penstock.tasks) is
  'What a ready task waits for, about how long, and its place in its lane.';

create or replace function penstock.explain_task(p_job_id uuid, p_task_id bigint)
returns jsonb language plpgsql stable security definer set search_path = penstock, pg_temp as $$
declare
  v_job jobs := _visible_job(p_job_id, array['owner', 'admin', 'member', 'viewer']);
  v_task tasks;
  v_outcome text;
  v_lease leases;
  v_parked parked;
  v_wait record;
begin
  select * into v_task from tasks where job_id = p_job_id and id = p_task_id;
  if not found then
    perform _refuse(404, 'unknown_task', 'there is no such task');
  end if;
  select outcome into v_outcome from results where job_id = p_job_id and task_id = p_task_id;
  if found then
    return jsonb_build_object('status', v_outcome, 'text', v_outcome);
  end if;
  if v_job.status = 'canceled' then
    return jsonb_build_object('status', 'canceled',
      'text', 'canceled: ' || coalesce(v_job.status_reason, 'with its job'));
  end if;
  select * into v_lease from leases where task_id = p_task_id;
  if found then
    return jsonb_build_object('status', 'running', 'worker_id', v_lease.worker_id,
      'text', format('running on %s, %s so far', v_lease.worker_id,
        replace(_duration_text(extract(epoch from _now() - v_lease.started_at)), 'about ', ''))
        || coalesce(format(', at %s (%s%s)', v_task.route #>> '{chosen,provider}',
          v_task.route #>> '{chosen,reason}', format(', instead of %s: %s',
            v_task.route #>> '{chosen,instead_of}', v_task.route #>> '{chosen,because}')), ''));
  end if;
  select * into v_parked from parked where job_id = p_job_id and task_id = p_task_id;
  if found then
    v_wait := _explain_parked(v_job, v_parked);
  elsif v_job.status = 'paused' then
    select 'job' as waits_for, 'the job is paused' || coalesce(': ' || v_job.status_reason, '') as reason,
      null::double precision as seconds, null::bigint as place into v_wait;
  else
    v_wait := _explain_ready(v_task);
  end if;
  return jsonb_build_object('status', case when v_parked.pending > 0 then 'blocked'
      when v_parked.wait_id is not null then 'waiting' else 'queued' end,
    'waits_for', v_wait.waits_for, 'reason', v_wait.reason, 'seconds', round(v_wait.seconds::numeric, 1),
    'place', v_wait.place,
    'text', 'waiting: ' || v_wait.reason || coalesce(
        case when v_wait.waits_for in ('answer', 'operation') then ', times out in ' else ', ' end
        || _duration_text(v_wait.seconds), '')
      || coalesce(', ' || _ordinal(v_wait.place) || ' in line', ''));
end
$$;
comment on function penstock.explain_task(uuid, bigint) is
  'Why a task is not running: what it waits for, about how long, and its queue position; as fields and as '
  'one line of text.';

create or replace function penstock._waiting_task(p_job penstock.jobs)
returns bigint language plpgsql stable set search_path = penstock, pg_temp set enable_seqscan = off
  set jit = off as $$
declare
  v_task_id bigint := _ready_task(p_job);
begin
  if v_task_id is not null then
    return v_task_id;
  end if;
  -- Prefer a task without open parents: it explains why its children wait.
  select task_id into v_task_id from (
    select task_id, pending from parked where job_id = p_job.id order by task_id limit 1000) as p
  order by pending > 0, task_id limit 1;
  return v_task_id;
end
$$;
comment on function penstock._waiting_task(penstock.jobs) is
  'The id of the waiting task of the job that will run next.';

create or replace function penstock.explain_job(p_job_id uuid)
returns jsonb language plpgsql stable security definer set search_path = penstock, pg_temp as $$
declare
  v_job jobs := _visible_job(p_job_id, array['owner', 'admin', 'member', 'viewer']);
  v_now timestamptz := _now();
  v_counts record;
  v_running bigint;
  v_task_id bigint;
  v_waits jsonb;
  v_text text;
  v_next text;
begin
  select coalesce(sum(total), 0) as total, coalesce(sum(succeeded), 0) as succeeded,
    coalesce(sum(failed), 0) as failed, coalesce(sum(succeeded + failed + canceled), 0) as done into v_counts
      from phases where job_id = p_job_id;
  if v_job.status = 'completed' then
    v_text := case when v_counts.total = 1 and v_counts.succeeded = 1 then 'The task succeeded'
      when v_counts.succeeded = v_counts.total then format('All %s tasks succeeded', v_counts.total)
      else format('%s of %s tasks succeeded; the others were canceled', v_counts.succeeded,
        v_counts.total) end || coalesce('; ' || v_job.status_reason, '') || '.';
  elsif v_job.status = 'failed' then
    v_text := format('%s of %s %s failed%s.', v_counts.failed, v_counts.total,
      case when v_counts.total = 1 then 'task' else 'tasks' end, coalesce(': ' || (
      select string_agg(format('%s × %s', c.n, c.error_code), ', ' order by c.n desc, c.error_code) from (
        select d.error_code, count(*) as n from dead_letters d where d.job_id = p_job_id
          group by d.error_code order by 2 desc limit 3) as c), ''));
    v_next := 'No further automatic retries. Retry runs the failed tasks again, and the tasks that were '
      'canceled because of them.';
  elsif v_job.status = 'canceled' then
    v_text := format('Canceled with %s of %s tasks done%s.', v_counts.done, v_counts.total,
      coalesce(': ' || v_job.status_reason, ''));
  else
    select count(*) into v_running from leases where job_id = p_job_id and not is_canceled;
    v_task_id := _waiting_task(v_job);
    if v_task_id is not null then
      v_waits := explain_task(p_job_id, v_task_id);
    end if;
    if v_job.status = 'paused' then
      v_text := 'Paused' || coalesce(': ' || v_job.status_reason, '') || '.' || case when v_running > 0
          then format(' %s running task%s normally.', v_running, case when v_running = 1 then ' ends'
            else 's end' end)
        else '' end;
      v_next := 'No new tasks start until it is resumed.';
    elsif v_job.run_at > v_now then
      v_text := format('Starts in %s.',
        replace(_duration_text(extract(epoch from v_job.run_at - v_now)), 'about ', ''));
    else
      v_text := format('%s of %s tasks done, %s running%s.', v_counts.done, v_counts.total,
        case when v_running > 0 then v_running::text else 'none' end,
        (select format(', %s waiting', w) from _waiting_count(p_job_id) as w where w > 0));
    end if;
    if v_job.status <> 'paused' and v_waits is not null then
      v_next := 'The next task is ' || (v_waits ->> 'text') || '.';
    end if;
  end if;
  return jsonb_build_object('status', v_job.status, 'text', v_text, 'next', v_next, 'task_id', v_task_id,
    'running', coalesce(v_running, 0));
end
$$;
comment on function penstock.explain_job(uuid) is
  'The state of a job and what happens next, as text, with the id of the task that will run next.';
