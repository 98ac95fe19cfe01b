-- What versions of prompts cost and how often they fail, and trials of a version on inputs of a past job.

create or replace function penstock.prompt_stats(p_name text default null, p_days integer default 30)
returns table (name text, version integer, uses bigint, failures bigint, fallbacks bigint,
  median_seconds double precision, p95_seconds double precision, cost numeric, last_used_at timestamptz)
language sql stable security definer set search_path = penstock, pg_temp as $$
  select u.name, u.version, count(*), count(*) filter (where u.is_failed),
    count(*) filter (where u.is_fallback), percentile_cont(0.5) within group (order by u.seconds),
    percentile_cont(0.95) within group (order by u.seconds), sum(c.amount), max(u.at)
  from prompt_uses u left join lateral (
    select sum(e.base_amount) as amount from cost_entries e
    where e.job_id = u.job_id and e.task_id = u.task_id and e.lease = u.lease) as c on true
  where u.name = coalesce(p_name, u.name) and u.at > _now() - make_interval(days => p_days)
  group by u.name, u.version order by u.name, u.version desc
$$;
comment on function penstock.prompt_stats(text, integer) is
  'How often each version of a prompt was used in the last days, how often the attempt failed or fell back '
  'to the constant, how long attempts took, and what they cost in the base currency.';

create or replace function penstock.prompt_fallbacks(p_minutes integer default 60)
returns table (name text, uses bigint, last_at timestamptz)
language sql stable security definer set search_path = penstock, pg_temp as $$
  select u.name, count(*), max(u.at) from prompt_uses u
  where u.is_fallback and u.at > _now() - make_interval(mins => p_minutes)
    and exists (select from prompts p where p.name = u.name and p.is_active)
  group by u.name order by u.name
$$;
comment on function penstock.prompt_fallbacks(integer) is
  'Prompts with an active version whose constant was used in the last minutes: the database could not '
  'answer, or the code could not render the version.';

create or replace function penstock.try_prompt(
  p_name text, p_version integer, p_job_id uuid, p_rows integer default 20)
returns uuid language plpgsql security definer set search_path = penstock, pg_temp as $$
declare
  v_job jobs;
  v_tasks jsonb;
  v_trial uuid;
begin
  if p_rows is null or p_rows not between 1 and 1000 then
    perform _refuse(422, 'invalid_rows', format('p_rows must be between 1 and 1000 (got %s)',
      coalesce(p_rows::text, 'null')), '{"field": "p_rows"}');
  elsif not exists (select from prompts where name = p_name and version = p_version) then
    perform _refuse(404, 'unknown_prompt',
      format('prompt %L has no version %s', left(p_name, 100), coalesce(p_version::text, 'null')));
  end if;
  select * into v_job from jobs where id = p_job_id;
  if not found then
    perform _refuse(404, 'unknown_job', 'there is no such job');
  end if;
  -- By a hash: always the same sample, spread over the job.
  select jsonb_agg(jsonb_strip_nulls(jsonb_build_object('kind', s.kind, 'key', s.id::text, 'units', s.units,
      'provider', s.provider)) || jsonb_build_object('input', s.input)) into v_tasks
  from (
    select t.id, t.kind, t.units, l.provider, t.input || case when exists (
      select from edges e where e.job_id = t.job_id and e.child_id = t.id)
      then _many_outputs(t.job_id, t.id) else '{}' end as input
    from tasks t join lanes l on l.id = t.lane_id
    join results r on r.job_id = t.job_id and r.task_id = t.id and r.outcome = 'succeeded'
    where t.job_id = p_job_id and exists (select from prompt_uses u where u.task_id = t.id
      and u.job_id = t.job_id and u.name = p_name)
    order by hashint8(t.id), t.id limit p_rows) as s;
  if v_tasks is null then
    perform _refuse(422, 'no_sample', format('no succeeded task of the job used prompt %s', p_name));
  end if;
  v_trial := start_job('prompt_trial', jsonb_build_object('prompt', p_name, 'version', p_version,
    'job_id', p_job_id), v_tasks, jsonb_build_object('tenant_id', v_job.tenant_id));
  insert into prompt_pins (job_id, name, version, tenant_id)
  values (v_trial, p_name, p_version, v_job.tenant_id);
  -- Other prompts of these tasks stay as they were in the job.
  insert into prompt_pins (job_id, name, version, tenant_id)
  select v_trial, n.name, n.version, n.tenant_id from prompt_pins n where n.job_id = p_job_id
  on conflict do nothing;
  return v_trial;
end
$$;
comment on function penstock.try_prompt(text, integer, uuid, integer) is
  'Runs a version of a prompt on the inputs of p_rows succeeded tasks of a job that used it: starts a job of '
  'these tasks alone, in the tenant of the job, and returns its id. It counts against the tenant''s quotas.';

create or replace function penstock.prompt_trial(p_job_id uuid)
returns table (task_id bigint, kind text, input jsonb, output jsonb, cost numeric, seconds double precision,
  new_task_id bigint, new_output jsonb, new_error text, new_cost numeric, new_seconds double precision)
language sql stable security definer set search_path = penstock, pg_temp as $$
  with run as (
    select t.id, t.key::bigint as old_id, t.kind, t.input, j.id as job_id,
      (j.params ->> 'job_id')::uuid as old_job_id
    from jobs j join tasks t on t.job_id = j.id where j.id = p_job_id and j.type = 'prompt_trial'
  )
  select n.old_id, n.kind, n.input, o.output,
    (select sum(c.base_amount) from cost_entries c where c.job_id = n.old_job_id and c.task_id = n.old_id),
    extract(epoch from o.finished_at - o.started_at)::double precision, n.id, r.output,
    case when r.outcome <> 'succeeded' then coalesce(r.error_message, r.outcome) end,
    (select sum(c.base_amount) from cost_entries c where c.job_id = n.job_id and c.task_id = n.id),
    extract(epoch from r.finished_at - r.started_at)::double precision
  from run n left join results o on o.job_id = n.old_job_id and o.task_id = n.old_id
  left join results r on r.job_id = n.job_id and r.task_id = n.id order by n.old_id
$$;
comment on function penstock.prompt_trial(uuid) is
  'The tasks of a trial beside those of the past job: outputs, costs in the base currency and durations.';
