-- Forecasts: what a job will cost and use, and when it will end.

create or replace function penstock._priced_units(p_provider text, p_tenant_id uuid, p_units jsonb)
returns jsonb language sql stable set search_path = penstock, pg_temp as $$
  select _whole_units(
    case when p_units ?| array['tokens', 'input_tokens', 'output_tokens'] then p_units
      -- The task names no tokens although the provider charges for them: use the endpoint's default.
      when exists (select from prices x where x.provider = p_provider
        and x.meter in ('tokens', 'input_tokens', 'output_tokens'))
      then coalesce(p_units, '{}')
        || jsonb_build_object('tokens', (_endpoint(p_provider, p_tenant_id)).default_tokens)
      else coalesce(p_units, '{}') end, true)
$$;
comment on function penstock._priced_units(text, uuid, jsonb) is
  'The units of a task as a call at this provider is priced before anything was reported.';

create or replace function penstock._estimated_cost(p_provider text, p_tenant_id uuid, p_units jsonb)
returns numeric language sql stable set search_path = penstock, pg_temp as $$
  select case when p_provider is null then 0 when not _has_price(p_provider, p_tenant_id, _now()) then null
    else (
    select coalesce(sum(p.base_amount), 0)
    from _price_units(p_provider, p_tenant_id, _priced_units(p_provider, p_tenant_id, p_units), 'standard',
      _now()) as p) end
$$;
comment on function penstock._estimated_cost(text, uuid, jsonb) is
  'The highest expected cost of a task with these units; null if its provider has no price.';

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

create or replace function penstock._with_history(p_groups penstock.forecast_group[])
returns penstock.forecast_group[] language sql stable set search_path = penstock, pg_temp as $$
  select coalesce(array_agg(row(g.kind, g.provider, g.count, g.running, g.cost, g.deviation, g.units,
    g.parents, p.seconds, p.spread, p.samples, r.mean, r.spread, r.samples)::forecast_group order by g.n),
    '{}')
  from unnest(p_groups) with ordinality as g(kind, provider, count, running, cost, deviation, units, parents,
    seconds, spread, samples, cost_ratio, cost_spread, cost_samples, n)
  cross join lateral _recent_durations(g.kind, g.provider) as p
  cross join lateral _cost_ratio(g.kind, g.provider) as r
$$;
comment on function penstock._with_history(penstock.forecast_group[]) is
  'The groups with the durations and the actual costs of recent tasks of their kind and provider.';

create or replace function penstock._forecast_cost(
  p_groups penstock.forecast_group[], out low numeric, out expected numeric, out high numeric,
  out unpriced text[])
language plpgsql stable set search_path = penstock, pg_temp as $$
declare
  -- With fewer samples the actual cost is unknown: between a tenth of the estimate and all of it.
  c_min_samples constant integer := 3;
  c_unmeasured_discount constant numeric := 0.9;
  -- 97 of 100 actual costs are within 2.2 standard deviations; 2 % more for what the samples do not show.
  c_deviations constant numeric := 2.2;
  c_margin constant numeric := 0.02;
  v_sum record;
begin
  select coalesce(sum(g.cost), 0) as estimate,
    coalesce(sum(g.cost * case when g.cost_samples >= c_min_samples then g.cost_ratio else 1 end), 0)
      as expected,
    coalesce(sum(g.cost * c_unmeasured_discount) filter (where g.cost_samples < c_min_samples), 0)
      as discount,
    -- The variance of each task, and that of the measured mean.
    coalesce(sum(power(g.cost * g.cost_spread, 2)
      * (1 / greatest(1, g.count)::numeric + 1.0 / nullif(g.cost_samples, 0)))
      filter (where g.cost_samples >= c_min_samples), 0) as variance,
    coalesce(sum(power(coalesce(g.deviation, 0), 2)) filter (where g.cost is not null), 0) as sample_variance,
    coalesce(array_agg(g.provider) filter (where g.cost is null and g.provider is not null), '{}') as unpriced
  into v_sum from unnest(p_groups) as g;
  expected := v_sum.expected;
  unpriced := v_sum.unpriced;
  low := greatest(0, expected - v_sum.discount
    - c_deviations * sqrt(v_sum.variance + v_sum.sample_variance) - c_margin * expected);
  -- A task may cost less than its estimate, not more.
  high := greatest(expected, least(v_sum.estimate + c_deviations * sqrt(v_sum.sample_variance),
    expected + c_deviations * sqrt(v_sum.variance + v_sum.sample_variance) + c_margin * expected));
end
$$;
comment on function penstock._forecast_cost(penstock.forecast_group[]) is
  'What groups of tasks will cost: at least, probably and at most, and the providers that have no price.';

create or replace function penstock._forecast_finish(
  p_tenant_id uuid, p_groups penstock.forecast_group[], p_now timestamptz)
returns jsonb language plpgsql stable set search_path = penstock, pg_temp as $$
declare
  v_finish record := _simulated_finish(p_tenant_id, p_groups);
  v_is_known boolean := v_finish.seconds is not null
    and not exists (select from unnest(p_groups) as g where g.samples = 0);
  -- The coefficient of variation of the durations: a mean of many tasks varies less.
  v_variation double precision := coalesce((
    select max(g.spread / nullif(g.seconds, 0) / sqrt(greatest(1, g.count))) from unnest(p_groups) as g), 0);
begin
  return jsonb_build_object('workers', v_finish.workers, 'bottleneck', v_finish.bottleneck)
    || case when v_is_known then jsonb_build_object(
      'seconds', round(v_finish.seconds::numeric, 1),
      -- 10 % less to 15 % more for what the simulation does not show.
      'low', round((v_finish.seconds * greatest(0.5, 0.9 - v_variation))::numeric, 1),
      'high', round((v_finish.seconds * (1.15 + v_variation))::numeric, 1),
      'at', p_now + make_interval(secs => v_finish.seconds), 'reason', null)
    else jsonb_build_object('seconds', null, 'low', null, 'high', null, 'at', null,
      'reason', case when v_finish.seconds is null
        then 'it never ends under the current limits: ' || coalesce(v_finish.bottleneck, 'no task can start')
        else 'no task of this kind has ended yet' end) end;
end
$$;
comment on function penstock._forecast_finish(uuid, penstock.forecast_group[], timestamptz) is
  'When groups of tasks will have ended, {"seconds", "low", "high", "at", "workers", "bottleneck", '
  '"reason"}.';

create or replace function penstock._forecast_groups(p_tenant_id uuid, p_groups penstock.forecast_group[])
returns jsonb language plpgsql stable set search_path = penstock, pg_temp as $$
declare
  v_now timestamptz := _now();
  v_groups forecast_group[] := _with_history(p_groups);
  v_group forecast_group;
  v_cost record := _forecast_cost(v_groups);
  v_units jsonb := '{}';
  v_tasks bigint := 0;
begin
  foreach v_group in array v_groups loop
    v_units := _sum_units(v_units, coalesce(v_group.units, '{}'));
    v_tasks := v_tasks + v_group.count;
  end loop;
  return jsonb_build_object(
    'tasks', v_tasks, 'units', v_units,
    'cost', jsonb_build_object(
      'low', round(v_cost.low, 6), 'expected', round(v_cost.expected, 6), 'high', round(v_cost.high, 6),
      'currency', (_setting('base_currency')) #>> '{}', 'unpriced', to_jsonb(v_cost.unpriced)),
    'quota', _forecast_quota(p_tenant_id, v_units, v_cost.high, v_now),
    'finish', _forecast_finish(p_tenant_id, v_groups, v_now));
end
$$;
comment on function penstock._forecast_groups(uuid, penstock.forecast_group[]) is
  'Forecasts cost, quota and finish of groups of tasks.';

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

create or replace function penstock._spec_groups(
  p_tenant_id uuid, p_specs penstock.task_spec[], p_scale numeric)
returns penstock.forecast_group[] language sql stable set search_path = penstock, pg_temp as $$
  with spec as materialized (
    select s.*, dense_rank() over (order by s.kind, s.provider) as g
    from unnest(p_specs) as s
  ), grouped as (
    select s.g, s.kind, s.provider, count(*) as n, sum(s.cost) as cost, stddev_samp(s.cost) as spread
    from (select t.*, _estimated_cost(t.provider, p_tenant_id, t.units) as cost from spec t) as s
      group by s.g, s.kind, s.provider
  )
  select array_agg(row(x.kind, x.provider, round(x.n * p_scale), 0, x.cost * p_scale,
      -- The standard deviation of a total that is extrapolated from a sample.
      case when p_scale > 1 then coalesce(x.spread, 0) / sqrt(x.n) * x.n * p_scale else 0 end,
      (select coalesce(jsonb_object_agg(u.key, u.amount), '{}') from (
        select u.key, sum(u.value::numeric) * p_scale as amount
        from spec s cross join lateral jsonb_each_text(_estimated_units(s.provider, p_tenant_id,
          s.units)) as u
        where s.g = x.g group by u.key) as u),
      array(
        select distinct p.g::integer
        from spec c cross join lateral unnest(c.after) as a(key) join spec p on p.key = a.key
        where c.g = x.g and p.g <> x.g),
      null, null, null, null, null, null)::forecast_group order by x.g)
  from grouped x
$$;
comment on function penstock._spec_groups(uuid, penstock.task_spec[], numeric) is
  'New tasks as groups for _forecast_groups; p_scale: how many times as many tasks the job will have.';

create or replace function penstock.forecast_job(p_type text, p_tasks jsonb, p_options jsonb default '{}')
returns jsonb language plpgsql security definer set search_path = penstock, pg_temp as $$
declare
  v_budget numeric;
  v_scale numeric;
  v_job jobs;
  v_specs task_spec[] := _parse_tasks(p_tasks);
  v_forecast jsonb;
begin
  perform _check_tasks(v_specs);
  begin
    v_job.tenant_id := nullif(p_options ->> 'tenant_id', '')::uuid;
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
  v_job.tenant_id := _caller_tenant(v_job.tenant_id);
  v_specs := _apply_policy(v_job, v_specs, null, false);
  if exists (select from unnest(v_specs) as s where s.route is not null and s.route <> 'null') then
    v_specs := _choose_providers(v_job, v_specs);
  end if;
  perform _check_demands(v_job, v_specs);
  v_forecast := _forecast_groups(v_job.tenant_id, _spec_groups(v_job.tenant_id, v_specs, v_scale));
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

create or replace function penstock._waiting_row_groups(p_job_id uuid, p_groups integer)
returns penstock.forecast_group[] language sql stable set search_path = penstock, pg_temp as $$
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
  select coalesce(array_agg(row(x.kind, x.provider, round(x.n * k.factor), 0, x.cost * k.factor,
      x.spread * sqrt(x.n) * k.factor,
      (select coalesce(jsonb_object_agg(u.key, u.amount), '{}') from (
        select u.key, sum(u.value::numeric) * k.factor as amount from spec s
        cross join lateral jsonb_each_text(_estimated_units(s.provider, s.tenant_id, s.units)) as u
        where s.g = x.g group by u.key) as u),
      array(select distinct p.g::integer from spec c
        join edges e on e.job_id = p_job_id and e.child_id = c.id
        join spec p on p.id = e.parent_id where c.g = x.g and p.g <> x.g),
      null, null, null, null, null, null)::forecast_group order by x.g), '{}')
  from grouped x cross join scale k where k.factor > 0
$$;
comment on function penstock._waiting_row_groups(uuid, integer) is
  'The groups of tasks that the waiting rows of a bulk job will have, numbered after p_groups.';

create or replace function penstock.forecast(p_job_id uuid)
returns jsonb language plpgsql stable security definer set search_path = penstock, pg_temp as $$
declare
  v_job jobs := _visible_job(p_job_id, array['owner', 'admin', 'member', 'viewer']);
  v_groups forecast_group[];
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
  select array_agg(row(x.kind, x.provider, x.n, x.running, x.cost, 0,
      (select coalesce(jsonb_object_agg(u.key, u.amount), '{}') from (
        select u.key, sum(u.value::numeric) as amount from open s
        cross join lateral jsonb_each_text(_estimated_units(s.provider, v_job.tenant_id, s.units)) as u
        where s.g = x.g group by u.key) as u),
      array(select distinct p.g::integer from open c
        join edges e on e.job_id = p_job_id and e.child_id = c.id
        join open p on p.id = e.parent_id where c.g = x.g and p.g <> x.g),
      null, null, null, null, null, null)::forecast_group order by x.g)
  into v_groups from (
    select o.g, o.kind, o.provider, count(*) as n, count(*) filter (where o.is_running) as running,
      sum(_estimated_cost(o.provider, v_job.tenant_id, o.units)) as cost from open o group by 1, 2, 3) as x;
  v_groups := coalesce(v_groups, '{}');
  return _forecast_groups(v_job.tenant_id,
    v_groups || _waiting_row_groups(p_job_id, cardinality(v_groups)));
end
$$;
comment on function penstock.forecast(uuid) is
  'Forecasts the cost and the finish of the remaining tasks of a job, and of the rows of a bulk job that '
  'have no tasks yet.';
