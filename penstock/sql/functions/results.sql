-- The result of a job: the outputs of its tasks, arranged as the body of its job type returned them.

create or replace function penstock._output_value(p_output jsonb)
returns jsonb language sql immutable set search_path = penstock, pg_temp as $$
  -- A worker flags an output in which it replaced characters that PostgreSQL cannot store.
  select case when jsonb_typeof(p_output) = 'object' and p_output -> '$cleaned' = 'true'
    then coalesce(p_output -> '$value', p_output - '$cleaned') else p_output end
$$;
comment on function penstock._output_value(jsonb) is 'An output without the flag for cleaned text.';

create or replace function penstock._fill_result(p_job_id uuid, p_template jsonb)
returns jsonb language plpgsql stable set search_path = penstock, pg_temp as $$
begin
  if jsonb_typeof(p_template) = 'array' then
    return (select coalesce(jsonb_agg(_fill_result(p_job_id, e.item) order by e.n), '[]')
      from jsonb_array_elements(p_template) with ordinality as e(item, n));
  elsif jsonb_typeof(p_template) <> 'object' then
    return p_template;
  elsif jsonb_typeof(p_template -> '$from') = 'string' and p_template - '$from' = '{}' then
    return (select _output_value(r.output) from tasks t
      join results r on r.job_id = t.job_id and r.task_id = t.id and r.outcome = 'succeeded'
      where t.job_id = p_job_id and t.key = p_template ->> '$from');
  end if;
  return (select coalesce(jsonb_object_agg(e.key, _fill_result(p_job_id, e.value)), '{}')
    from jsonb_each(p_template) as e);
end
$$;
comment on function penstock._fill_result(uuid, jsonb) is
  'The template of a result with each {"$from": key} replaced by the output of that task.';

create or replace function penstock.job_result(p_job_id uuid, p_max_bytes integer default null)
returns jsonb language plpgsql stable security definer set search_path = penstock, pg_temp as $$
declare
  v_job jobs := _visible_job(p_job_id, array['owner', 'admin', 'member', 'viewer']);
  v_result jsonb;
begin
  if v_job.status <> 'completed' or exists (select from bulks b where b.job_id = p_job_id) then
    return null;
  end if;
  if v_job.result is not null then
    v_result := _fill_result(p_job_id, v_job.result);
  else
    select _output_value(r.output) into v_result
    from (select id from tasks where job_id = p_job_id order by id desc limit 1) as t
    join results r on r.job_id = p_job_id and r.task_id = t.id and r.outcome = 'succeeded';
  end if;
  return case when p_max_bytes is null or octet_length(v_result::text) <= p_max_bytes then v_result end;
end
$$;
comment on function penstock.job_result(uuid, integer) is
  'The result of a completed job: what the body of its job type returned, with the outputs of its tasks, or '
  'else the output of its last task. Null while the job has not completed, for a bulk job, whose rows have '
  'results, and for a result that is larger than p_max_bytes.';
