-- Actions: one operation on many jobs or dead letters. The first batch runs
-- at once; workers run the others, each in its own transaction, and check
-- the permissions of the user who started the action again for each batch.

create or replace function penstock._permitted_subjects(p_verb text, p_subjects text[], p_user_id uuid)
returns text[] language plpgsql stable set search_path = penstock, pg_temp as $$
declare
  v_roles text[] := array['owner', 'admin', 'member'];
begin
  if p_user_id is not null and not _has_scope(p_user_id, 'start') then
    return '{}';
  end if;
  if p_verb in ('replay', 'discard') then
    return array(
      select d.id::text from dead_letters d where d.id = any (p_subjects::bigint[])
        and d.tenant_id <> all (_suspended_tenants()) and (p_user_id is null or exists (
        select from members m where m.tenant_id = d.tenant_id and m.user_id = p_user_id
          and m.role = any (v_roles))) order by d.id);
  end if;
  return array(
    select j.id::text from jobs j where j.id = any (p_subjects::uuid[])
      and j.tenant_id <> all (_suspended_tenants()) and (p_user_id is null or exists (
      select from members m where m.tenant_id = j.tenant_id and m.user_id = p_user_id
        and m.role = any (v_roles))) order by j.id);
end
$$;
comment on function penstock._permitted_subjects(text, text[], uuid) is
  'Those of the subjects that exist and that the user (null: the service) may change, sorted by id.';

create or replace function penstock._apply_action(
  p_verb text, p_subjects text[], p_reason text, out done integer, out refused integer, out refusal text)
language plpgsql set search_path = penstock, pg_temp as $$
declare
  v_subject text;
  v_count integer;
begin
  done := 0;
  refused := 0;
  if p_verb in ('retry', 'replay') then
    -- All in one call, so that the locks of many jobs are taken in one order.
    v_count := _replay(case p_verb when 'replay' then p_subjects::bigint[]
      else array(select d.id from dead_letters d where d.job_id = any (p_subjects::uuid[])
        order by d.id) end);
    done := case p_verb when 'replay' then v_count else cardinality(p_subjects) end;
    if p_verb = 'replay' and v_count < cardinality(p_subjects) then
      refused := cardinality(p_subjects) - v_count;
      refusal := 'the job was canceled';
    end if;
  elsif p_verb = 'discard' then
    done := discard_dead_letters(jsonb_build_object('ids', to_jsonb(p_subjects::bigint[])));
  else
    foreach v_subject in array p_subjects loop
      begin
        if p_verb = 'pause' then
          perform pause_job(v_subject::uuid, p_reason);
        elsif p_verb = 'resume' then
          perform resume_job(v_subject::uuid);
        else
          perform cancel_job(v_subject::uuid, p_reason);
        end if;
        done := done + 1;
      exception when sqlstate 'PT409' or sqlstate 'PT404' or sqlstate 'PT403' then
        refused := refused + 1;
        refusal := _redact(sqlerrm);
      end;
    end loop;
  end if;
end
$$;
comment on function penstock._apply_action(text, text[], text) is
  'Applies an action to these subjects; returns how many succeeded, how many were rejected, and the last '
  'reason.';

create or replace function penstock._run_action_batch(p_action_id uuid, p_batch_size integer)
returns integer language plpgsql set search_path = penstock, pg_temp as $$
declare
  v_action actions;
  v_subjects text[];
  v_allowed text[];
  v_outcome record;
  v_caller text := current_setting('penstock.actor', true);
begin
  select * into v_action from actions where id = p_action_id and finished_at is null for update skip locked;
  if not found then
    return 0;
  end if;
  v_subjects := array(select subject from action_items where action_id = p_action_id order by subject
    limit p_batch_size);
  if cardinality(v_subjects) > 0 then
    v_allowed := _permitted_subjects(v_action.verb, v_subjects, v_action.user_id);
    perform set_config('penstock.actor', v_action.actor, true);
    begin
      v_outcome := _apply_action(v_action.verb, v_allowed, v_action.reason);
    exception
      -- Another transaction has locked them: try again with the next call.
      when serialization_failure or deadlock_detected or lock_not_available then
        perform set_config('penstock.actor', coalesce(v_caller, ''), true);
        return 0;
      when others then
        select 0 as done, cardinality(v_allowed) as refused, _error_text(sqlerrm, 500) as refusal
        into v_outcome;
    end;
    perform set_config('penstock.actor', coalesce(v_caller, ''), true);
    delete from action_items where action_id = p_action_id and subject = any (v_subjects);
    update actions set done = done + v_outcome.done,
      refused = refused + cardinality(v_subjects) - v_outcome.done,
      refusal = coalesce(v_outcome.refusal,
        case when cardinality(v_subjects) > cardinality(v_allowed) then 'no longer exists' end, refusal)
    where id = p_action_id;
  end if;
  if not exists (select from action_items where action_id = p_action_id) then
    update actions set finished_at = _now() where id = p_action_id;
  end if;
  return cardinality(v_subjects);
end
$$;
comment on function penstock._run_action_batch(uuid, integer) is
  'Runs the next batch of an action and returns the number of subjects in it.';

create or replace function penstock._check_open_subjects(p_user_id uuid, p_more integer)
returns void language plpgsql stable set search_path = penstock, pg_temp as $$
begin
  if p_user_id is not null then
    perform _refuse_open_subjects('user', 500000, (select sum(total - done - refused) from actions
      where user_id = p_user_id and finished_at is null), p_more);
  end if;
end
$$;
comment on function penstock._check_open_subjects(uuid, integer) is
  'Raises an error if a user has too many subjects in unfinished actions; null is the service.';

create or replace function penstock._check_tenant_subjects(p_tenant_id uuid, p_more integer)
returns void language plpgsql stable set search_path = penstock, pg_temp as $$
begin
  perform _refuse_open_subjects('tenant', 1000000, (select sum(total - done - refused) from actions
    where tenant_id = p_tenant_id and finished_at is null), p_more);
end
$$;
comment on function penstock._check_tenant_subjects(uuid, integer) is
  'Raises an error if the users of a tenant have too many subjects in unfinished actions.';

create or replace function penstock._refuse_open_subjects(
  p_what text, p_max integer, p_open bigint, p_more integer)
returns void language plpgsql stable set search_path = penstock, pg_temp as $$
begin
  if coalesce(p_open, 0) + p_more > p_max then
    perform _refuse(429, 'share_used_up',
      format('unfinished actions of a %s may have %s subjects in total (got %s more than %s)', p_what, p_max,
        p_more, coalesce(p_open, 0)),
      jsonb_build_object('limit', p_max, 'retry_after_seconds', 60),
      'Wait until earlier actions have ended.');
  end if;
end
$$;
comment on function penstock._refuse_open_subjects(text, integer, bigint, integer) is
  'Raises an error if unfinished actions would have more subjects than the limit.';

create or replace function penstock._tenant_of_subject(p_verb text, p_subject text)
returns uuid language sql stable set search_path = penstock, pg_temp as $$
  select case when p_verb in ('replay', 'discard')
    then (select d.tenant_id from dead_letters d where d.id = p_subject::bigint)
    else (select j.tenant_id from jobs j where j.id = p_subject::uuid) end
$$;
comment on function penstock._tenant_of_subject(text, text) is
  'The tenant of a job or dead letter of an action.';

create or replace function penstock.start_action(p_verb text, p_subjects text[], p_reason text default null)
returns uuid language plpgsql security definer set search_path = penstock, pg_temp as $$
declare
  v_id uuid;
  v_user_id uuid := case when not _is_service() then auth.uid() end;
  v_total integer := coalesce(cardinality(p_subjects), 0);
  v_allowed text[];
  v_tenant_id uuid;
begin
  if p_verb is null or p_verb not in ('pause', 'resume', 'cancel', 'retry', 'replay', 'discard') then
    perform _refuse(422, 'invalid_verb',
      format('verb must be pause, resume, cancel or retry (jobs), or replay or '
      'discard (dead letters) (got %L)', left(p_verb, 100)), '{"field": "verb"}');
  elsif v_total not between 1 and 500000 then
    perform _refuse(422, 'invalid_selection',
      format('an action must have 1 to 500,000 subjects (got %s)', v_total),
      '{"field": "subjects"}');
  elsif v_user_id is null and not _is_service() then
    perform _refuse(401, 'unauthenticated', 'authentication is required');
  end if;
  begin
    perform p_subjects[1]::text, case when p_verb in ('replay', 'discard')
      then (select max(s::bigint) from unnest(p_subjects) as s) end,
      case when p_verb not in ('replay', 'discard')
        then (select count(s::uuid) from unnest(p_subjects) as s) end;
  exception when data_exception then
    perform _refuse(422, 'invalid_selection', 'subjects must be ids: ' || left(sqlerrm, 200),
      '{"field": "subjects"}');
  end;
  perform _check_open_subjects(v_user_id, v_total);
  -- Only what exists and the caller may change is queued: invented ids would keep the workers busy.
  if v_user_id is not null then
    perform _require_active(m.tenant_id) from members m
    where m.user_id = v_user_id and m.tenant_id = _tenant_of_subject(p_verb, p_subjects[1]);
  end if;
  v_allowed := _permitted_subjects(p_verb, p_subjects, v_user_id);
  if v_user_id is not null and cardinality(v_allowed) > 0 then
    v_tenant_id := _tenant_of_subject(p_verb, v_allowed[1]);
    perform _check_tenant_subjects(v_tenant_id, cardinality(v_allowed));
  end if;
  insert into actions (actor, user_id, tenant_id, verb, reason, total, refused, refusal, created_at)
  select _actor(), v_user_id, v_tenant_id, p_verb, left(p_reason, 1000), t.n, t.n - cardinality(v_allowed),
    case when t.n > cardinality(v_allowed) then 'no longer exists' end, _now()
  from (select count(distinct lower(s)) as n from unnest(p_subjects) as s) as t returning id into v_id;
  insert into action_items (action_id, subject) select v_id, s from unnest(v_allowed) as s;
  if v_total > 1 then
    perform _audit(
      (select case when count(distinct j.tenant_id) = 1 then min(j.tenant_id::text)::uuid end from jobs j
        where p_verb not in ('replay', 'discard')
          and j.id = any (v_allowed[1:1000]::uuid[])),
      'action.started', null, 'action:' || v_id, jsonb_build_object('verb', p_verb, 'total', v_total));
  end if;
  perform _run_action_batch(v_id, 100);
  perform pg_notify('penstock', 'chores');
  return v_id;
end
$$;
comment on function penstock.start_action(text, text[], text) is
  'Starts an action on many jobs (pause, resume, cancel, retry) or dead letters (replay, discard), given by '
  'id, and returns the action''s id. The first 100 are done at once, the rest by workers; the action''s row '
  'shows its progress.';

create or replace function penstock.do_actions(p_bite integer default 200)
returns integer language plpgsql security definer set search_path = penstock, pg_temp as $$
declare
  v_id uuid;
  v_count integer;
begin
  -- Tenants take turns, then the users of a tenant: the one of whose open actions the fewest subjects have
  -- been done comes first.
  for v_id in select a.id from (
      select id, created_at, sum(done + refused) over (partition by tenant_id) as served_tenant,
        sum(done + refused) over (partition by user_id) as served_user
      from actions where finished_at is null
        and (tenant_id is null or tenant_id <> all (_suspended_tenants()))) as a
    order by a.served_tenant, a.served_user, a.created_at limit 20 loop
    v_count := _run_action_batch(v_id, p_bite);
    -- One batch per transaction, because it keeps the locks of everything it changed.
    exit when v_count > 0;
  end loop;
  return coalesce(v_count, 0);
end
$$;
comment on function penstock.do_actions(integer) is
  'Runs the next batch of an unfinished action and returns the number of subjects in it. Tenants take turns, '
  'then the users of a tenant.';

create or replace function penstock.weigh_action(p_verb text, p_subjects text[])
returns jsonb language plpgsql stable security definer set search_path = penstock, pg_temp
  set jit = off as $$
declare
  v_user_id uuid := case when not _is_service() then auth.uid() end;
  v_sample text[];
  v_tasks bigint;
  v_cost numeric;
  v_unpriced bigint;
begin
  if v_user_id is null and not _is_service() then
    perform _refuse(401, 'unauthenticated', 'authentication is required');
  end if;
  -- Only the first 1,000 are examined; is_part says that the totals are partial.
  v_sample := _permitted_subjects(p_verb, p_subjects[1:1000], v_user_id);
  if p_verb in ('retry', 'replay') then
    select count(*), sum(x.cost), count(*) filter (where x.cost is null) into v_tasks, v_cost, v_unpriced
      from (
      select _estimated_cost(l.provider, t.tenant_id, t.units) as cost from (
        select d.job_id, d.task_id from dead_letters d
        where case when p_verb = 'replay' then d.id = any (v_sample::bigint[])
          else d.job_id = any (v_sample::uuid[]) end order by d.id limit 2000) as d
      join tasks t on t.job_id = d.job_id and t.id = d.task_id join lanes l on l.id = t.lane_id) as x;
  elsif p_verb in ('cancel', 'pause', 'resume') then
    select coalesce(sum(p.total - p.succeeded - p.failed - p.canceled), 0) into v_tasks from phases p
      where p.job_id = any (v_sample::uuid[]);
    select sum(a.used) into v_cost from accounts a where a.job_id = any (v_sample::uuid[])
      and a.meter = 'cost';
  end if;
  return jsonb_build_object('subjects', cardinality(v_sample), 'tasks', v_tasks,
    'cost', coalesce(v_cost, 0)::text, 'unpriced', coalesce(v_unpriced, 0),
    'is_part', cardinality(p_subjects) > 1000 or coalesce(v_tasks, 0) >= 2000
      and p_verb in ('retry', 'replay'));
exception when data_exception then
  perform _refuse(422, 'invalid_selection', 'subjects must be ids: ' || left(sqlerrm, 200),
    '{"field": "subjects"}');
end
$$;
comment on function penstock.weigh_action(text, text[]) is
  'Previews an action: the number of tasks, and what they may cost (retry, replay) or have cost so far '
  '(cancel, pause, resume). Examines the first 1,000 subjects only.';
