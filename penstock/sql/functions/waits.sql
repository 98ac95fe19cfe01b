-- Waits: a task that waits for an answer, an event or a time. The handler opens a wait and ends; the worker
-- parks the task: it has no lease, no slot and no connection. An answer, or the timeout, queues it again at
-- the front. The handler then runs again from its start and gets the answer from the same call. Steps keep
-- the results of work that must not be repeated.
-- Lock order: see claim.sql. Parking locks the lease, then the wait; an answer locks the wait, then the
-- parked row. So an answer comes either before the parking, which then queues the task, or after it.

create or replace function penstock._generation(p_lease penstock.leases)
returns integer language sql stable set search_path = penstock, pg_temp as $$
  -- A replay sets failures and deaths to 0 and keeps the attempts: the difference grows with each replay.
  select count(*)::integer - p_lease.failures - p_lease.deaths from attempts a
  where a.job_id = p_lease.job_id and a.task_id = p_lease.task_id
$$;
comment on function penstock._generation(penstock.leases) is
  'How many attempts a task had before its last replay.';

create or replace function penstock._check_wait_fields(p_fields jsonb)
returns void language plpgsql immutable set search_path = penstock, pg_temp as $$
declare
  v_name text;
begin
  if jsonb_typeof(p_fields) <> 'object' then
    perform _refuse(422, 'invalid_wait', format('fields must be a JSON object (got %s)',
      jsonb_typeof(p_fields)), '{"field": "fields"}');
  end if;
  select f.key into v_name from jsonb_each(p_fields) as f
  where length(f.key) not between 1 and 100
    or jsonb_typeof(f.value) <> 'string' or f.value #>> '{}' !~ '^(text|number|boolean|any)\??$';
  if found or (select count(*) from jsonb_object_keys(p_fields)) > 50 then
    perform _refuse(422, 'invalid_wait',
      format('fields must have up to 50 names with the type text, number, boolean or any, and a ? for an '
        'optional field (got %L)', left(coalesce(v_name, 'more than 50'), 100)), '{"field": "fields"}');
  end if;
end
$$;
comment on function penstock._check_wait_fields(jsonb) is 'Rejects payload fields without a known type.';

create or replace function penstock._wait_from_options(p_name text, p_options jsonb)
returns penstock.waits language plpgsql stable set search_path = penstock, pg_temp as $$
declare
  v_wait waits;
  v_seconds double precision;
begin
  if coalesce(length(p_name), 0) not between 1 and 200 then
    perform _refuse(422, 'invalid_wait',
      format('name must have 1 to 200 characters (got %s)', coalesce(length(p_name), 0)),
      '{"field": "name"}');
  end if;
  perform _check_fields(p_options,
    array['kind', 'seconds', 'options', 'fields', 'roles', 'default', 'message', 'link'], 'wait');
  v_wait.name := p_name;
  v_wait.kind := coalesce(p_options ->> 'kind', 'answer');
  v_wait.options := coalesce(nullif(p_options -> 'options', 'null'), '[]');
  v_wait.fields := coalesce(nullif(p_options -> 'fields', 'null'), '{}');
  v_wait.roles := coalesce(
    nullif(array(select jsonb_array_elements_text(nullif(p_options -> 'roles', 'null'))), '{}'),
    array['owner', 'admin', 'member']);
  v_wait.message := left(p_options ->> 'message', 2000);
  v_wait.default_option := p_options ->> 'default';
  v_seconds := (p_options ->> 'seconds')::double precision;
  if v_wait.kind not in ('answer', 'sleep') or v_seconds is null and v_wait.kind = 'sleep'
     or not coalesce(v_seconds, 1) between 0 and 86400 * 3660::double precision then
    perform _refuse(422, 'invalid_wait',
      format('seconds must be between 0 and %s, ten years (got %s)', 86400 * 3660,
        coalesce(v_seconds::text, 'null')), '{"field": "seconds"}');
  end if;
  if jsonb_typeof(v_wait.options) <> 'array' or jsonb_array_length(v_wait.options) > 50 or exists (
      select from jsonb_array_elements(v_wait.options) as o
      where jsonb_typeof(o) <> 'string' or length(o #>> '{}') not between 1 and 200) then
    perform _refuse(422, 'invalid_wait', 'options must be up to 50 texts of 1 to 200 characters',
      '{"field": "options"}');
  end if;
  if v_wait.default_option is not null and not v_wait.options ? v_wait.default_option then
    perform _refuse(422, 'invalid_wait',
      format('default must be one of the options (got %L)', left(v_wait.default_option, 100)),
      '{"field": "default"}');
  end if;
  if not v_wait.roles <@ array['owner', 'admin', 'member', 'viewer'] then
    perform _refuse(422, 'invalid_wait',
      format('roles must be among owner, admin, member and viewer (got %s)',
        left(v_wait.roles::text, 100)), '{"field": "roles"}');
  end if;
  perform _check_wait_fields(v_wait.fields);
  v_wait.until := coalesce(_now() + make_interval(secs => v_seconds), 'infinity');
  return v_wait;
exception when data_exception then
  perform _refuse(422, 'invalid_wait', 'invalid wait options: ' || left(sqlerrm, 200));
end
$$;
comment on function penstock._wait_from_options(text, jsonb) is 'Reads and checks the options of open_wait.';

create or replace function penstock.open_wait(
  p_task_id bigint, p_worker_id text, p_lease bigint, p_name text, p_options jsonb default '{}')
returns jsonb language plpgsql security definer set search_path = penstock, pg_temp as $$
-- Lock order: see claim.sql.
declare
  v_now timestamptz := _now();
  v_lease leases := _keep_lease(p_task_id, p_worker_id, p_lease);
  v_new waits := _wait_from_options(p_name, coalesce(p_options, '{}'));
  v_generation integer := _generation(v_lease);
  v_wait waits;
  v_token text;
begin
  perform _check_clean(p_name, 'p_name', 'invalid_wait');
  insert into waits (tenant_id, job_id, task_id, name, kind, message, options, fields, roles, default_option,
    generation, asked_at, until)
  values (v_lease.tenant_id, v_lease.job_id, p_task_id, v_new.name, v_new.kind, v_new.message, v_new.options,
    v_new.fields, v_new.roles, v_new.default_option, v_generation, v_now, v_new.until)
  on conflict (job_id, task_id, name) do nothing;
  select * into v_wait from waits
  where job_id = v_lease.job_id and task_id = p_task_id and name = p_name for update;
  if v_wait.kind <> v_new.kind then
    perform _refuse(409, 'wait_name_used', format('the task has used the name %L to %s', left(p_name, 100),
      case v_wait.kind when 'sleep' then 'sleep' else 'wait for an answer' end),
      '{"field": "name"}', 'Give each wait of a task its own name.');
  end if;
  if v_wait.outcome is null and v_wait.until <= v_now then
    update waits set outcome = case kind when 'sleep' then 'over' else 'timeout' end,
      option = default_option, ended_at = v_wait.until
    where id = v_wait.id returning * into v_wait;
  elsif v_wait.outcome = 'timeout' and v_wait.option is null and v_generation > v_wait.generation then
    -- The task failed because no answer came in time, and was replayed.
    update waits set outcome = null, ended_at = null, asked_at = v_now, until = v_new.until,
      message = v_new.message, options = v_new.options, fields = v_new.fields, roles = v_new.roles,
      default_option = v_new.default_option, generation = v_generation
    where id = v_wait.id returning * into v_wait;
  end if;
  if (p_options ->> 'link')::boolean and v_wait.kind = 'answer' then
    insert into wait_links (token, wait_id, job_id)
    values (replace(gen_random_uuid()::text || gen_random_uuid()::text, '-', ''), v_wait.id, v_wait.job_id)
    on conflict (wait_id) do nothing;
    select l.token into v_token from wait_links l where l.wait_id = v_wait.id;
  end if;
  return jsonb_build_object('id', v_wait.id, 'outcome', v_wait.outcome, 'option', v_wait.option,
    'payload', coalesce(v_wait.payload, '{}'), 'ended_by', v_wait.ended_by, 'ended_at', v_wait.ended_at,
    'until', case when isfinite(v_wait.until) then v_wait.until end, 'token', v_token);
end
$$;
comment on function penstock.open_wait(bigint, text, bigint, text, jsonb) is
  'Opens a wait of a running task, or finds the one with this name, and returns its outcome (null: open). '
  'Options: kind (answer, sleep), seconds (the timeout, or how long to sleep), options, fields, roles, '
  'default, message, link. The timeout runs from the first call.';

create or replace function penstock.park_task(
  p_task_id bigint, p_worker_id text, p_lease bigint, p_wait_id uuid)
returns text language plpgsql security definer set search_path = penstock, pg_temp as $$
-- Lock order: see claim.sql.
declare
  v_now timestamptz := _now();
  v_lease leases;
  v_wait waits;
  v_code text;
begin
  perform _check_holder(p_worker_id, p_lease);
  delete from leases where task_id = p_task_id and lease = coalesce(p_lease, lease)
    and worker_id = coalesce(p_worker_id, worker_id) and not is_canceled returning * into v_lease;
  if v_lease.task_id is null then
    select s.code into v_code
    from _settle_batch(p_worker_id, 'waiting', array[p_task_id], array[p_lease], null) as s;
    return coalesce(v_code, 'lease_lost');
  end if;
  select * into v_wait from waits
  where id = p_wait_id and job_id = v_lease.job_id and task_id = p_task_id for update;
  if not found then
    perform _refuse(404, 'unknown_wait', 'the task has no such wait');
  end if;
  if v_lease.usage is not null and not v_wait.has_usage then
    update waits set has_usage = true where id = p_wait_id;
  end if;
  if v_wait.outcome is null and v_wait.until > v_now then
    insert into parked select (_lease_to_waiting(v_lease, v_wait.until,
      case v_wait.kind when 'sleep' then 'sleep: ' else 'answer: ' end || v_wait.name, p_wait_id)).*;
    perform pg_notify('penstock', 'chores') where v_wait.until < v_now + interval '5 seconds';
    v_code := 'parked';
  else
    perform _return_tasks(array[v_lease], 0);
    v_code := 'queued';
  end if;
  perform _settle(array[v_lease], false, null);
  return v_code;
end
$$;
comment on function penstock.park_task(bigint, text, bigint, uuid) is
  'Ends the lease of a task that waits, without using up an attempt: the task is parked until the wait '
  'ends, or queued if it has ended by now. Returns parked, queued, lease_lost or canceled.';

create or replace function penstock._check_answer(p_wait penstock.waits, p_option text, p_payload jsonb)
returns void language plpgsql stable set search_path = penstock, pg_temp as $$
declare
  v_field record;
begin
  if p_wait.options <> '[]' and (p_option is null or not p_wait.options ? p_option)
     or p_wait.options = '[]' and p_option is not null then
    perform _refuse(422, 'invalid_answer', case when p_wait.options = '[]'
      then format('%s has no options (got %L)', p_wait.name, left(p_option, 100))
      else format('option must be one of %s (got %s)', (
        select string_agg(o #>> '{}', ', ') from jsonb_array_elements(p_wait.options) as o),
        coalesce(quote_literal(left(p_option, 100)), 'null')) end, '{"field": "option"}');
  end if;
  if jsonb_typeof(p_payload) <> 'object' then
    perform _refuse(422, 'invalid_answer',
      format('payload must be a JSON object (got %s)', jsonb_typeof(p_payload)), '{"field": "payload"}');
  end if;
  perform _check_document(p_payload, 'payload', (_setting('max_input_bytes'))::integer);
  select coalesce(f.key, v.key) as name, f.value #>> '{}' as type, v.value into v_field
  from jsonb_each(p_wait.fields) as f full join jsonb_each(p_payload) as v on v.key = f.key
  where f.key is null
    or coalesce(v.value, 'null') = 'null' and right(f.value #>> '{}', 1) <> '?'
    or v.value <> 'null' and rtrim(f.value #>> '{}', '?') <> 'any'
      and rtrim(f.value #>> '{}', '?') <> replace(jsonb_typeof(v.value), 'string', 'text')
  order by 1 limit 1;
  if found then
    perform _refuse(422, 'invalid_answer', case
      when v_field.type is null then format('unknown field %L', left(v_field.name, 100))
      when coalesce(v_field.value, 'null') = 'null' then format('%s is required', v_field.name)
      else format('%s must be a %s (got %s)', v_field.name, rtrim(v_field.type, '?'),
        jsonb_typeof(v_field.value)) end,
      jsonb_build_object('field', 'payload.' || left(v_field.name, 100)));
  end if;
end
$$;
comment on function penstock._check_answer(penstock.waits, text, jsonb) is
  'Rejects an answer that is not one of the options, or whose payload has not the fields of the wait.';

create or replace function penstock._answer(p_wait_id uuid, p_option text, p_payload jsonb, p_actor text)
returns boolean language plpgsql set search_path = penstock, pg_temp as $$
-- Lock order: see claim.sql.
declare
  v_wait waits;
  v_status text;
  v_rows ready[];
begin
  select * into v_wait from waits where id = p_wait_id for update;
  if v_wait.outcome = 'answered' then
    if (v_wait.option, v_wait.payload, v_wait.ended_by)
       is not distinct from (p_option, p_payload, p_actor) then
      return false;
    end if;
    perform _refuse(409, 'already_answered', format('%s was answered before', v_wait.name),
      jsonb_build_object('wait_id', v_wait.id, 'option', v_wait.option));
  end if;
  select j.status into v_status from jobs j where j.id = v_wait.job_id;
  if not found or v_status in ('completed', 'failed', 'canceled') then
    perform _refuse(409, 'job_ended', format('the job has already ended (%s)', coalesce(v_status, 'deleted')),
      jsonb_build_object('status', v_status));
  end if;
  if v_wait.outcome is not null or v_wait.until <= _now() then
    perform _refuse(409, 'wait_timed_out', format('%s timed out before this answer', v_wait.name),
      jsonb_build_object('wait_id', v_wait.id, 'until', v_wait.until));
  end if;
  update waits set outcome = 'answered', option = p_option, payload = p_payload, ended_at = _now(),
    ended_by = p_actor where id = p_wait_id;
  with gone as (
    delete from parked p where p.job_id = v_wait.job_id and p.task_id = v_wait.task_id
      and p.wait_id = p_wait_id returning _parked_to_ready(p) as task
  )
  select array_agg(g.task) into v_rows from gone g;
  insert into audit_log (at, tenant_id, actor, action, job_id, subject, details)
  values (_now(), v_wait.tenant_id, p_actor, 'wait.answered', v_wait.job_id, 'task:' || v_wait.task_id,
    jsonb_strip_nulls(jsonb_build_object('name', v_wait.name, 'option', p_option)));
  -- The task of a paused job is queued too: the claim parks it until the job resumes.
  perform _queue(v_rows, true);
  return true;
end
$$;
comment on function penstock._answer(uuid, text, jsonb, text) is
  'Records an answer and queues the task that waits for it. The first answer counts; repeating it is no '
  'error and returns false.';

create or replace function penstock._visible_wait(p_wait_id uuid)
returns penstock.waits language plpgsql stable set search_path = penstock, pg_temp as $$
declare
  v_wait waits;
begin
  select * into v_wait from waits where id = p_wait_id and kind = 'answer';
  if not found or not (_is_service() or exists (
      select from members where tenant_id = v_wait.tenant_id and user_id = auth.uid())) then
    perform _refuse(404, 'unknown_wait', 'there is no such wait');
  end if;
  return v_wait;
end
$$;
comment on function penstock._visible_wait(uuid) is
  'A wait for an answer, if the caller is a member of its tenant.';

create or replace function penstock._require_answerer(p_wait penstock.waits)
returns void language plpgsql stable set search_path = penstock, pg_temp as $$
begin
  if _is_service() or 'viewer' <> all (p_wait.roles) then
    perform _require_role(p_wait.tenant_id, p_wait.roles);
    return;
  end if;
  if not exists (select from members m where m.tenant_id = p_wait.tenant_id and m.user_id = auth.uid()
      and m.role = any (p_wait.roles)) then
    perform _refuse(403, 'forbidden', 'you do not have permission to do this in this tenant');
  end if;
  -- People who may only read may answer this one, but a key that may only read changes nothing.
  if exists (
      select from api_keys k join members m on m.tenant_id = p_wait.tenant_id and m.user_id = k.id
      where k.id = auth.uid() and ('start' <> all (k.scopes) or m.role = 'viewer')) then
    perform _refuse(403, 'missing_scope', 'the API key does not have the scope start', '{"scope": "start"}',
      'Create a key with this scope.');
  end if;
end
$$;
comment on function penstock._require_answerer(penstock.waits) is
  'Raises an error unless the caller has a role that may answer; of an API key also unless it has the scope '
  'start.';

create or replace function penstock.answer_wait(
  p_wait_id uuid, p_option text default null, p_payload jsonb default '{}')
returns boolean language plpgsql security definer set search_path = penstock, pg_temp as $$
declare
  v_wait waits := _visible_wait(p_wait_id);
  v_payload jsonb := coalesce(p_payload, '{}');
begin
  perform _require_answerer(v_wait);
  -- The first check keeps others from locking a wait. The role may have changed while the call waited.
  perform from waits where id = p_wait_id for update;
  perform _require_answerer(v_wait);
  perform _require_active(v_wait.tenant_id);
  perform _check_answer(v_wait, p_option, v_payload);
  return _answer(v_wait.id, p_option, v_payload, _actor());
end
$$;
comment on function penstock.answer_wait(uuid, text, jsonb) is
  'Answers a wait with one of its options and a payload: the task runs on. The first answer counts; '
  'repeating it returns false.';

create or replace function penstock._linked_wait(p_token text)
returns penstock.waits language plpgsql stable set search_path = penstock, pg_temp as $$
declare
  v_wait waits;
begin
  select w.* into v_wait from wait_links l join waits w on w.id = l.wait_id where l.token = p_token;
  if not found then
    perform _refuse(404, 'unknown_link', 'this link is not valid');
  end if;
  return v_wait;
end
$$;
comment on function penstock._linked_wait(text) is 'The wait that a link answers.';

create or replace function penstock.get_wait_link(p_token text)
returns jsonb language plpgsql stable security definer set search_path = penstock, pg_temp as $$
declare
  v_wait waits := _linked_wait(p_token);
begin
  return (
    select jsonb_build_object('name', l.name, 'message', l.message, 'options', l.options, 'fields', l.fields,
      'status', l.status, 'option', l.option, 'until', case when isfinite(l.until) then l.until end)
    from wait_list l where l.id = v_wait.id);
end
$$;
comment on function penstock.get_wait_link(text) is
  'What a link asks: the message, the options, the fields and the status of its wait.';

create or replace function penstock.answer_link(
  p_token text, p_option text default null, p_payload jsonb default '{}')
returns boolean language plpgsql security definer set search_path = penstock, pg_temp as $$
declare
  v_wait waits := _linked_wait(p_token);
  v_payload jsonb := coalesce(p_payload, '{}');
begin
  perform _require_active(v_wait.tenant_id);
  perform _check_answer(v_wait, p_option, v_payload);
  return _answer(v_wait.id, p_option, v_payload, 'link');
end
$$;
comment on function penstock.answer_link(text, text, jsonb) is
  'Answers the wait of a link, as answer_wait does, for a person without an account.';

create or replace function penstock.store_step(
  p_task_id bigint, p_worker_id text, p_lease bigint, p_name text, p_output jsonb)
returns jsonb language plpgsql security definer set search_path = penstock, pg_temp as $$
declare
  v_lease leases := _keep_lease(p_task_id, p_worker_id, p_lease);
  v_output jsonb := coalesce(p_output, 'null');
begin
  perform _check_clean(p_name, 'p_name', 'invalid_step');
  if coalesce(length(p_name), 0) not between 1 and 200 then
    perform _refuse(422, 'invalid_step',
      format('the name of a step must have 1 to 200 characters (got %s)', coalesce(length(p_name), 0)),
      '{"field": "p_name"}');
  end if;
  perform _check_document(v_output, 'p_output', (_setting('max_output_bytes'))::integer);
  if (select count(*) from (
      select from steps where job_id = v_lease.job_id and task_id = p_task_id limit 1000) as x) >= 1000 then
    perform _refuse(422, 'too_many_steps', 'a task can have 1,000 steps', '{}',
      'Split it into several tasks.');
  end if;
  insert into steps (job_id, task_id, name, tenant_id, lease, at, output)
  values (v_lease.job_id, p_task_id, p_name, v_lease.tenant_id, v_lease.lease, _now(), v_output)
  on conflict (job_id, task_id, name) do nothing;
  return (
    select s.output from steps s
    where s.job_id = v_lease.job_id and s.task_id = p_task_id and s.name = p_name);
end
$$;
comment on function penstock.store_step(bigint, text, bigint, text, jsonb) is
  'Stores the result of a step of a running task and returns it. The first result of a name counts.';

create or replace function penstock.get_steps(p_job_id uuid, p_task_id bigint)
returns table (name text, output jsonb)
language sql stable security definer set search_path = penstock, pg_temp as $$
  select s.name, s.output from steps s
  where s.job_id = p_job_id and s.task_id = p_task_id order by s.at, s.name
$$;
comment on function penstock.get_steps(uuid, bigint) is 'The stored steps of a task.';

create or replace function penstock._explain_wait(p_wait_id uuid, out waits_for text, out reason text)
language plpgsql stable set search_path = penstock, pg_temp as $$
declare
  v_wait waits;
begin
  select * into v_wait from waits where id = p_wait_id;
  if not found then
    waits_for := 'operation';
    reason := (
      select format('%s, %s', o.provider, case when o.submitted_at is null then 'not submitted'
        else format('submitted %s ago',
          replace(_duration_text(extract(epoch from _now() - o.submitted_at)), 'about ', '')) end)
      from operations o where o.id = p_wait_id);
    return;
  end if;
  waits_for := v_wait.kind;
  if v_wait.kind = 'sleep' then
    reason := format('sleeping (%s)', v_wait.name);
  else
    reason := format('an answer to %s%s', v_wait.name, case when v_wait.options = '[]' then '' else ' (' || (
      select string_agg(o #>> '{}', ', ') from jsonb_array_elements(v_wait.options) as o) || ')' end);
  end if;
end
$$;
comment on function penstock._explain_wait(uuid) is 'What a waiting task waits for.';

create or replace function penstock._delete_waits(p_job_id uuid, p_limit integer)
returns integer language plpgsql set search_path = penstock, pg_temp as $$
declare
  v_left integer := p_limit;
  v_count integer;
begin
  delete from steps where ctid = any (array(select ctid from steps where job_id = p_job_id limit v_left));
  get diagnostics v_count = row_count;
  v_left := v_left - v_count;
  delete from wait_links
  where ctid = any (array(select ctid from wait_links where job_id = p_job_id limit v_left));
  get diagnostics v_count = row_count;
  v_left := v_left - v_count;
  delete from operations
  where ctid = any (array(select ctid from operations where job_id = p_job_id limit v_left));
  get diagnostics v_count = row_count;
  v_left := v_left - v_count;
  delete from waits where ctid = any (array(select ctid from waits where job_id = p_job_id limit v_left));
  get diagnostics v_count = row_count;
  return p_limit - v_left + v_count;
end
$$;
comment on function penstock._delete_waits(uuid, integer) is
  'Deletes up to p_limit steps and waits of a job that is pruned, and returns their number.';
