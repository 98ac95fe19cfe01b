-- Complete: ends tasks as succeeded. Lock order: see claim.sql.

create or replace function penstock.complete_tasks(
  p_worker_id text, p_task_ids bigint[], p_leases bigint[] default null, p_outputs jsonb[] default null)
returns table (id bigint, code text)
language plpgsql security definer set search_path = penstock, pg_temp
  set enable_seqscan = off set plan_cache_mode = force_generic_plan set jit = off as $$
-- Lock order: see claim.sql.
declare
  v_now timestamptz := _now();
  v_limit integer := (_setting('max_output_bytes'))::integer;
  v_count integer := 0;
  v_deltas phase_delta[];
  v_jobs uuid[];
  v_parents bigint[];
  v_job_id uuid;
  v_freed ready[];
  v_gated leases[];
  v_some_count integer;
  v_some_deltas phase_delta[];
  v_some_jobs uuid[];
  v_some_parents bigint[];
  v_some_freed ready[];
  v_some_gated leases[];
begin
  perform _check_batch(p_task_ids, p_leases, cardinality(p_outputs));
  loop
    -- The lateral look-up fixes the plan: one index probe per task, whatever the statistics say.
    with gone as (
      delete from leases d where d.ctid = any (array(
        select l.ctid from unnest(p_task_ids, p_leases, p_outputs) as g(id, lease, output)
        cross join lateral (
          select x.ctid from leases x where x.task_id = g.id and x.lease = coalesce(g.lease, x.lease)
            and x.worker_id = p_worker_id and not x.is_canceled offset 0) as l
        where g.output is null or octet_length(g.output::text) <= 128
          or octet_length(g.output::text) <= v_limit and _is_readable(g.output)))
        and not d.is_canceled
      returning d.*
    ), ended as (
      insert into results (job_id, task_id, lease, tenant_id, started_at, finished_at, attempt, phase,
        outcome, worker_id, output)
      select g.job_id, g.task_id, g.lease, g.tenant_id, g.started_at, v_now, g.failures + g.deaths + 1,
        g.phase, 'succeeded', p_worker_id, o.output
      from gone g left join (
        select distinct on (x.id, x.lease) x.*
        from unnest(p_task_ids, p_leases, p_outputs) as x(id, lease, output) where x.output is not null
      ) as o on o.id = g.task_id and coalesce(o.lease, g.lease) = g.lease
    )
    select (select count(*) from gone),
      (select array_agg(row(c.job_id, c.phase, c.n, 0, 0)::phase_delta) from (
        select g.job_id, g.phase, count(*)::integer as n from gone g group by g.job_id, g.phase) as c),
      (select array_agg(g.job_id) from gone g where g.has_children),
      (select array_agg(g.task_id) from gone g where g.has_children),
      (select array_agg(row(g.*)::leases) from gone g where g.is_gated)
    into v_some_count, v_some_deltas, v_some_jobs, v_some_parents, v_some_gated;
    v_gated := v_gated || v_some_gated;
    v_count := v_count + v_some_count;
    v_deltas := v_deltas || v_some_deltas;
    v_jobs := v_jobs || v_some_jobs;
    v_parents := v_parents || v_some_parents;
    exit when v_count = cardinality(p_task_ids);
    -- A row that a heartbeat, a report or a new child changed meanwhile was skipped: lock it and try again.
    perform 1 from unnest(p_task_ids, p_leases, p_outputs) as g(id, lease, output)
    join leases l on l.task_id = g.id and l.lease = coalesce(g.lease, l.lease) and l.worker_id = p_worker_id
      and not l.is_canceled
    where g.output is null or octet_length(g.output::text) <= 128
      or octet_length(g.output::text) <= v_limit and _is_readable(g.output)
    order by l.ctid for update of l;
    exit when not found;
  end loop;

  if v_parents is not null then
    for v_job_id in select distinct j from unnest(v_jobs) as j order by j loop
      select s.deltas, s.freed into v_some_deltas, v_some_freed from _settle_children(v_job_id,
        array(select p from unnest(v_jobs, v_parents) as x(j, p) where x.j = v_job_id)) as s;
      v_deltas := v_deltas || v_some_deltas;
      v_freed := v_freed || v_some_freed;
    end loop;
  end if;
  perform _move_progress(v_deltas);
  perform _queue(v_freed, false);
  if v_count < cardinality(p_task_ids) then
    return query select r.id, r.code
    from _settle_batch(p_worker_id, 'succeeded', p_task_ids, p_leases, v_gated, p_outputs, v_limit) as r;
  elsif v_gated is not null then
    perform _settle(v_gated, true, null);
  end if;
end
$$;
comment on function penstock.complete_tasks(text, bigint[], bigint[], jsonb[]) is
  'Ends tasks as succeeded. Returns only those rejected, with lease_lost, canceled or too_large. Repeating '
  'the call is accepted.';

create or replace function penstock.complete_task(
  p_task_id bigint, p_worker_id text, p_output jsonb default null, p_lease bigint default null)
returns boolean language plpgsql security definer set search_path = penstock, pg_temp as $$
declare
  v_code text;
begin
  select c.code into v_code
  from complete_tasks(p_worker_id, array[p_task_id], array[p_lease], array[p_output]) as c;
  if v_code = 'too_large' then
    perform _refuse(413, v_code, 'the output is too large, nested too deep, or has a number beyond 1e308',
      jsonb_build_object('field', 'p_output', 'task_id', p_task_id),
      'Keep files in object storage and pass their path.');
  elsif v_code is not null then
    perform _refuse(410, v_code, 'you do not hold the lease of this task',
      jsonb_build_object('task_id', p_task_id));
  end if;
  return true;
end
$$;
comment on function penstock.complete_task(bigint, text, jsonb, bigint) is
  'Ends one task as succeeded; fails with 410 when its lease is gone.';
