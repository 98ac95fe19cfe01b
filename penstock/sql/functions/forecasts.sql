-- Forecasts: what a job will cost and use, and when it will end.

create or replace function penstock._cost_ratio(
  p_kind text, p_provider text, out mean numeric, out spread numeric, out samples integer)
language sql stable set search_path = penstock, pg_temp as $$
  -- Of the latest calls that reported their usage.
  select avg(x.ratio), coalesce(stddev_samp(x.ratio), 0), count(*)::integer from (
    select c.cost / nullif(_estimated_cost(p_provider, u.tenant_id, t.units), 0) as ratio
    from (select * from usage_events u where u.provider = p_provider and u.action = p_kind
      and not u.is_estimate and u.task_id is not null
      order by u.id desc limit 100) as u
    join tasks t on t.job_id = u.job_id and t.id = u.task_id
    cross join lateral (
      select sum(e.base_amount) as cost from cost_entries e where e.job_id = u.job_id
        and e.task_id = u.task_id and e.lease = u.lease) as c) as x
  where x.ratio is not null
$$;
comment on function penstock._cost_ratio(text, text) is
  'Actual cost divided by estimated cost of recent calls: mean, standard deviation, and the number of '
  'samples.';

create or replace function penstock._forecast_quota(
  p_tenant_id uuid, p_units jsonb, p_cost numeric, p_now timestamptz)
returns jsonb language sql stable set search_path = penstock, pg_temp as $$
  select coalesce(jsonb_agg(jsonb_build_object('meter', l.meter, 'needs', x.needs, 'left', x.left,
    'limit', l.amount,
    'fits', x.needs <= x.left) order by l.meter), '[]')
  from _limits(p_tenant_id, p_now) as l
  left join accounts a on a.tenant_id = p_tenant_id and a.job_id is null and a.meter = l.meter
    and a.period = l.period
  cross join lateral (
    select case when l.meter = 'cost' then p_cost else (p_units ->> l.meter)::numeric end as needs,
      l.amount - coalesce(a.used + a.held, 0) as left) as x
  where x.needs > 0
$$;
comment on function penstock._forecast_quota(uuid, jsonb, numeric, timestamptz) is
  'For each limited meter, what these units need and what is left, [{"meter", "needs", "left", "limit", '
  '"fits"}].';

create or replace function penstock._forecast(p_tenant_id uuid, p_groups jsonb)
returns jsonb language plpgsql stable set search_path = penstock, pg_temp as $$
declare
  v_now timestamptz := _now();
  v_groups jsonb := '[]';
  v_group jsonb;
  v_group_cost numeric;
  v_group_count double precision;
  v_pace record;
  v_ratio record;
  v_finish record;
  v_units jsonb := '{}';
  v_cost numeric := 0;
  -- by how much unmeasured kinds may cost less than estimated; the sum of all estimates
  v_discount numeric := 0;
  v_estimate numeric := 0;
  -- variance of the cost ratios, and of a sample that stands for all tasks
  v_variance numeric := 0;
  v_sample_variance numeric := 0;
  v_low numeric;
  v_high numeric;
  -- coefficient of variation of the durations
  v_cv double precision := 0;
  v_unpriced text[] := '{}';
  v_is_known boolean := true;
begin
  for v_group in select * from jsonb_array_elements(p_groups) loop
    v_group_cost := (v_group ->> 'cost')::numeric;
    v_group_count := greatest(1, (v_group ->> 'count')::double precision);
    v_units := _sum_units(v_units, coalesce(v_group -> 'units', '{}'));
    v_pace := _pace_of(v_group ->> 'kind', v_group ->> 'provider');
    v_ratio := _cost_ratio(v_group ->> 'kind', v_group ->> 'provider');
    v_is_known := v_is_known and v_pace.samples > 0;
    v_cv := greatest(v_cv, v_pace.spread / nullif(v_pace.seconds, 0) / sqrt(v_group_count));
    v_groups := v_groups || (v_group || jsonb_build_object(
      'seconds', coalesce(v_pace.seconds, 1), 'spread', coalesce(v_pace.spread, 0),
      'cost_ratio', case when v_ratio.samples >= 3 then least(1, v_ratio.mean) else 1 end));
    if v_group_cost is not null then
      v_estimate := v_estimate + v_group_cost;
      v_sample_variance := v_sample_variance + power(coalesce((v_group ->> 'deviation')::numeric, 0), 2);
      if v_ratio.samples >= 3 then
        v_cost := v_cost + v_group_cost * v_ratio.mean;
        -- The variance of each task, and that of the measured mean.
        v_variance := v_variance
          + power(v_group_cost * v_ratio.spread, 2) * (1 / v_group_count::numeric + 1.0 / v_ratio.samples);
      else
        v_cost := v_cost + v_group_cost;
        v_discount := v_discount + v_group_cost * 0.9;
      end if;
    elsif v_group ->> 'provider' is not null then
      v_unpriced := v_unpriced || (v_group ->> 'provider');
    end if;
  end loop;
  -- 2.2 standard deviations, and 2 % for what the samples do not show.
  v_low := greatest(0, v_cost - v_discount - 2.2 * sqrt(v_variance + v_sample_variance) - 0.02 * v_cost);
  -- A task may cost less than its estimate, not more.
  v_high := greatest(v_cost, least(v_estimate + 2.2 * sqrt(v_sample_variance),
    v_cost + 2.2 * sqrt(v_variance + v_sample_variance) + 0.02 * v_cost));
  v_finish := _simulate_finish(p_tenant_id, v_groups);
  v_is_known := v_is_known and v_finish.seconds is not null;
  return jsonb_build_object(
    'tasks', (select coalesce(sum((g ->> 'count')::integer), 0) from jsonb_array_elements(p_groups) as g),
    'units', v_units,
    'cost', jsonb_build_object(
      'low', round(v_low, 6), 'expected', round(v_cost, 6), 'high', round(v_high, 6),
      'currency', (_setting('base_currency')) #>> '{}', 'unpriced', to_jsonb(v_unpriced)),
    'quota', _forecast_quota(p_tenant_id, v_units, v_high, v_now),
    'finish', jsonb_build_object(
      'seconds', case when v_is_known then round(v_finish.seconds::numeric, 1) end,
      'low', case when v_is_known then
        round((v_finish.seconds * greatest(0.5, 0.9 - coalesce(v_cv, 0)))::numeric, 1) end,
      'high', case when v_is_known
        then round((v_finish.seconds * (1.15 + coalesce(v_cv, 0)))::numeric, 1) end,
      'at', case when v_is_known then v_now + make_interval(secs => v_finish.seconds) end,
      'workers', v_finish.workers, 'bottleneck', v_finish.bottleneck,
      'reason', case when v_is_known then null
        when v_finish.seconds is null then 'it never ends under the current limits: '
          || coalesce(v_finish.bottleneck, 'no task can start')
        else 'no task of this kind has ended yet' end));
end
$$;
comment on function penstock._forecast(uuid, jsonb) is
  'Forecasts cost and finish of groups of tasks [{"kind", "provider", "count", "running", "units", "cost", '
  '"deviation", "after": [group numbers]}].';

create or replace function penstock._estimated_units(p_provider text, p_tenant_id uuid, p_units jsonb)
returns jsonb language sql stable set search_path = penstock, pg_temp as $$
  select _whole_units(p_units, p_provider is not null) || case when p_provider is not null
    then jsonb_build_object(
    'tokens', (select z.tokens
      from _call_size(p_units, (_endpoint(p_provider, p_tenant_id)).default_tokens) as z))
    else '{}' end
$$;
comment on function penstock._estimated_units(text, uuid, jsonb) is
  'The units of a task, with the default tokens of its endpoint if it names none.';

create or replace function penstock.forecast_job(p_type text, p_tasks jsonb, p_options jsonb default '{}')
returns jsonb language plpgsql security definer set search_path = penstock, pg_temp as $$
declare
  v_tenant_id uuid;
  v_budget numeric;
  v_scale numeric;
  v_job jobs;
  v_specs task_spec[] := _parse_tasks(p_tasks);
  v_groups jsonb;
  v_forecast jsonb;
begin
  perform _check_tasks(v_specs);
  begin
    v_tenant_id := nullif(p_options ->> 'tenant_id', '')::uuid;
    v_budget := (p_options ->> 'budget')::numeric;
    if v_budget = 'NaN' or v_budget < 0 then
      raise invalid_parameter_value using message = format('budget must be 0 or more (got %s)', v_budget);
    end if;
    v_scale := coalesce((p_options ->> 'times')::numeric, 1);
    if v_scale = 'NaN' or v_scale not between 1 and 1000000000 then
      raise invalid_parameter_value using message = format('times must be between 1 and 10^9 (got %s)',
        v_scale);
    end if;
  exception when data_exception then
    perform _refuse(422, 'invalid_options', 'invalid options: ' || left(sqlerrm, 200),
      '{"field": "options"}');
  end;
  v_tenant_id := _caller_tenant(v_tenant_id);
  v_job.tenant_id := v_tenant_id;
  v_specs := _apply_policy(v_job, v_specs, null, false);
  if exists (select from unnest(v_specs) as s where s.route is not null and s.route <> 'null') then
    v_specs := _choose_providers(v_job, v_specs);
  end if;
  perform _check_demands(v_job, v_specs);
  with spec as materialized (
    select s.*, dense_rank() over (order by s.kind, s.provider) as g
    from unnest(v_specs) as s
  ), grouped as (
    select s.g, s.kind, s.provider, count(*) as n, sum(s.cost) as cost, stddev_samp(s.cost) as spread
    from (select t.*, _estimated_cost(t.provider, v_tenant_id, t.units) as cost from spec t) as s
      group by s.g, s.kind, s.provider
  )
  select jsonb_agg(jsonb_build_object('kind', x.kind, 'provider', x.provider, 'count', round(x.n * v_scale),
      'cost', x.cost * v_scale,
      -- The standard deviation of a total that is extrapolated from a sample.
      'deviation', case when v_scale > 1 then coalesce(x.spread, 0) / sqrt(x.n) * x.n * v_scale else 0 end,
      'units', (select coalesce(jsonb_object_agg(u.key, u.amount), '{}') from (
        select u.key, sum(u.value::numeric) * v_scale as amount
        from spec s cross join lateral jsonb_each_text(_estimated_units(s.provider, v_tenant_id,
          s.units)) as u
        where s.g = x.g group by u.key) as u),
      'after', (
        select coalesce(jsonb_agg(distinct p.g), '[]')
        from spec c cross join lateral unnest(c.after) as a(key) join spec p on p.key = a.key
        where c.g = x.g and p.g <> x.g)) order by x.g)
  into v_groups from grouped x;
  v_forecast := _forecast(v_tenant_id, v_groups);
  if v_budget is not null then
    v_forecast := v_forecast || jsonb_build_object('budget', jsonb_build_object('amount', v_budget,
      'fits', (v_forecast #>> '{cost,high}')::numeric <= v_budget));
  end if;
  return v_forecast;
end
$$;
comment on function penstock.forecast_job(text, jsonb, jsonb) is
  'Forecasts what start_job with the same arguments would cost (low, expected, high), which quotas it '
  'needs, and when it would end, from the current limits, backlog and history. The option times scales the '
  'estimate: the tasks are then a sample of a job with that many times as many tasks. Changes nothing.';

create or replace function penstock._forecast_waiting_rows(p_job_id uuid, p_groups integer)
returns jsonb language sql stable set search_path = penstock, pg_temp as $$
  -- The tasks of the first loaded rows are the sample. Waiting rows are assumed to be as large and as valid:
  -- a confirmation shows what may be spent at most, rather than less.
  with batch as materialized (
    select first_id, last_id, coalesce(batch_size, 1) as size from (
      select * from bulk_rows where job_id = p_job_id and first_id is not null
      order by number limit 1000) as b
    group by 1, 2, 3
  ), scale as (
    select (b.total - b.loaded - b.refused - b.skipped)::numeric
      / nullif((select sum(size) from batch), 0) as factor
    from bulks b where b.job_id = p_job_id
  ), spec as materialized (
    select t.id, t.kind, l.provider, t.units, t.tenant_id,
      dense_rank() over (order by t.kind, l.provider) + p_groups as g
    from batch b join tasks t on t.job_id = p_job_id and t.id between b.first_id and b.last_id
    join lanes l on l.id = t.lane_id
  ), grouped as (
    select s.g, s.kind, s.provider, s.tenant_id, count(*) as n, sum(s.cost) as cost,
      coalesce(stddev_samp(s.cost), 0) as spread
    from (select x.*, _estimated_cost(x.provider, x.tenant_id, x.units) as cost from spec x) as s
    group by 1, 2, 3, 4
  )
  select coalesce(jsonb_agg(jsonb_build_object('kind', x.kind, 'provider', x.provider,
      'count', round(x.n * k.factor), 'cost', x.cost * k.factor,
      'deviation', x.spread * sqrt(x.n) * k.factor,
      'units', (select coalesce(jsonb_object_agg(u.key, u.amount), '{}') from (
        select u.key, sum(u.value::numeric) * k.factor as amount from spec s
        cross join lateral jsonb_each_text(_estimated_units(s.provider, s.tenant_id, s.units)) as u
        where s.g = x.g group by u.key) as u),
      'after', (select coalesce(jsonb_agg(distinct p.g), '[]') from spec c
        join edges e on e.job_id = p_job_id and e.child_id = c.id
        join spec p on p.id = e.parent_id where c.g = x.g and p.g <> x.g)) order by x.g), '[]')
  from grouped x cross join scale k where k.factor > 0
$$;
comment on function penstock._forecast_waiting_rows(uuid, integer) is
  'Groups of tasks for _forecast that the waiting rows of a bulk job will have, numbered after p_groups.';

create or replace function penstock.forecast(p_job_id uuid)
returns jsonb language plpgsql stable security definer set search_path = penstock, pg_temp as $$
declare
  v_job jobs := _visible_job(p_job_id, array['owner', 'admin', 'member', 'viewer']);
  v_groups jsonb;
begin
  if v_job.finished_at is not null then
    perform _refuse(409, 'job_ended', format('the job has already ended (%s)', v_job.status),
      jsonb_build_object('status', v_job.status));
  end if;
  with open as materialized (
    select t.id, t.key, t.kind, l.provider, t.units, x.task_id is not null as is_running,
      dense_rank() over (order by t.kind, l.provider) as g
    from tasks t join lanes l on l.id = t.lane_id left join leases x on x.task_id = t.id
    where t.job_id = p_job_id
      and not exists (select from results r where r.job_id = p_job_id and r.task_id = t.id)
  )
  select jsonb_agg(jsonb_build_object('kind', x.kind, 'provider', x.provider, 'count', x.n,
      'running', x.running, 'cost', x.cost,
      'units', (select coalesce(jsonb_object_agg(u.key, u.amount), '{}') from (
        select u.key, sum(u.value::numeric) as amount from open s
        cross join lateral jsonb_each_text(_estimated_units(s.provider, v_job.tenant_id, s.units)) as u
        where s.g = x.g group by u.key) as u),
      'after', (select coalesce(jsonb_agg(distinct p.g), '[]') from open c
        join edges e on e.job_id = p_job_id and e.child_id = c.id
        join open p on p.id = e.parent_id where c.g = x.g and p.g <> x.g)) order by x.g)
  into v_groups from (
    select o.g, o.kind, o.provider, count(*) as n, count(*) filter (where o.is_running) as running,
      sum(_estimated_cost(o.provider, v_job.tenant_id, o.units)) as cost from open o group by 1, 2, 3) as x;
  v_groups := coalesce(v_groups, '[]');
  return _forecast(v_job.tenant_id,
    v_groups || _forecast_waiting_rows(p_job_id, jsonb_array_length(v_groups)));
end
$$;
comment on function penstock.forecast(uuid) is
  'Forecasts the cost and the finish of the remaining tasks of a job, and of the rows of a bulk job that '
  'have no tasks yet.';
