-- Complete: ends tasks as succeeded. Lock order: see claim.sql.

create or replace function penstock.complete_tasks(
  p_worker_id text, p_task_ids bigint[], p_leases bigint[] default null, p_outputs jsonb[] default null)
returns table (id bigint, code text)
language plpgsql security definer set search_path = penstock, pg_temp
  -- The stages inherit these settings.
  set enable_seqscan = off set plan_cache_mode = force_generic_plan set jit = off as $$
-- Lock order: see claim.sql.
declare
  v_limit integer := (_setting('max_output_bytes'))::integer;
  v_count integer := 0;
  v_deltas phase_delta[];
  v_jobs uuid[];
  v_parents bigint[];
  v_freed ready[];
  v_gated leases[];
  v_ended record;
  v_settled record;
begin
  perform _check_batch(p_task_ids, p_leases, cardinality(p_outputs));
  loop
    v_ended := _end_succeeded(p_worker_id, p_task_ids, p_leases, p_outputs, v_limit);
    v_count := v_count + v_ended.task_count;
    v_deltas := v_deltas || v_ended.deltas;
    v_jobs := v_jobs || v_ended.parent_jobs;
    v_parents := v_parents || v_ended.parents;
    v_gated := v_gated || v_ended.gated;
    exit when v_count = cardinality(p_task_ids)
      or not _lock_changed_leases(p_worker_id, p_task_ids, p_leases, p_outputs, v_limit);
  end loop;
  if v_parents is not null then
    v_settled := _settle_parents(v_jobs, v_parents);
    v_deltas := v_deltas || v_settled.deltas;
    v_freed := v_settled.freed;
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

create or replace function penstock._end_succeeded(
  p_worker_id text, p_task_ids bigint[], p_leases bigint[], p_outputs jsonb[], p_limit integer,
  out task_count integer, out deltas penstock.phase_delta[], out parent_jobs uuid[], out parents bigint[],
  out gated penstock.leases[])
language plpgsql set search_path = penstock, pg_temp as $$
declare
  v_now timestamptz := _now();
begin
  -- The lateral look-up fixes the plan: one index probe per task, whatever the statistics say.
  with gone as (
    delete from leases d where d.ctid = any (array(
      select l.ctid from unnest(p_task_ids, p_leases, p_outputs) as g(id, lease, output)
      cross join lateral (
        select x.ctid from leases x where x.task_id = g.id and x.lease = coalesce(g.lease, x.lease)
          and x.worker_id = p_worker_id and not x.is_canceled offset 0) as l
      where g.output is null or octet_length(g.output::text) <= 128
        or octet_length(g.output::text) <= p_limit and _is_readable(g.output)))
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
  into task_count, deltas, parent_jobs, parents, gated;
end
$$;
comment on function penstock._end_succeeded(text, bigint[], bigint[], jsonb[], integer) is
  'Moves the tasks of a batch from leases to results. Returns how many, the changes of the phase counts, the '
  'tasks that have children with their jobs, and the leases of gated tasks.';

create or replace function penstock._lock_changed_leases(
  p_worker_id text, p_task_ids bigint[], p_leases bigint[], p_outputs jsonb[], p_limit integer)
returns boolean language plpgsql set search_path = penstock, pg_temp as $$
-- Lock order: see claim.sql.
begin
  perform 1 from unnest(p_task_ids, p_leases, p_outputs) as g(id, lease, output)
  join leases l on l.task_id = g.id and l.lease = coalesce(g.lease, l.lease) and l.worker_id = p_worker_id
    and not l.is_canceled
  where g.output is null or octet_length(g.output::text) <= 128
    or octet_length(g.output::text) <= p_limit and _is_readable(g.output)
  order by l.ctid for update of l;
  return found;
end
$$;
comment on function penstock._lock_changed_leases(text, bigint[], bigint[], jsonb[], integer) is
  'Locks the leases of a batch that a heartbeat, a report or a new child changed while the batch ended, so '
  'that they were skipped. Whether there are any.';

create or replace function penstock._settle_parents(
  p_jobs uuid[], p_parents bigint[], out deltas penstock.phase_delta[], out freed penstock.ready[])
language plpgsql set search_path = penstock, pg_temp as $$
declare
  v_job_id uuid;
  v_settled record;
begin
  for v_job_id in select distinct j from unnest(p_jobs) as j order by j loop
    v_settled := _settle_children(v_job_id,
      array(select p from unnest(p_jobs, p_parents) as x(j, p) where x.j = v_job_id));
    deltas := deltas || v_settled.deltas;
    freed := freed || v_settled.freed;
  end loop;
end
$$;
comment on function penstock._settle_parents(uuid[], bigint[]) is
  'Updates the children of parents that have ended, job by job in the lock order: see _settle_children.';

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
