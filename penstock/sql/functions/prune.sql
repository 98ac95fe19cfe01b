-- Prune: deletes jobs whose retention time is over, with all their rows, and old rows of other nouns.

create or replace function penstock.prune(p_limit integer default 10000)
returns integer language plpgsql security definer set search_path = penstock, pg_temp as $$
declare
  v_cutoff timestamptz := _now() - make_interval(days => (_setting('retention_days'))::integer);
  v_left integer := p_limit;
  v_job jobs;
  v_use record;
  v_count integer;
  v_files uuid[] := '{}';
  v_job_files uuid[];
begin
  -- Every worker calls prune about once a minute; one call at a time is enough.
  if not pg_try_advisory_xact_lock(hashtextextended('penstock.prune', 0)) then
    return 0;
  end if;
  perform _prune_history(v_cutoff, p_limit);
  for v_job in
    -- Only ended jobs have finished_at.
    select * from jobs where finished_at < v_cutoff order by finished_at limit p_limit for update skip locked
  loop
    v_use := _lock_for_pruning(v_job);
    continue when v_use.has_ready_tasks or v_use.is_in_use;
    -- Dead letters first: a half-deleted job must not be retried.
    delete from dead_letters where job_id = v_job.id;
    v_left := v_left - _detach_kept_artifacts(v_job.id, v_left);
    v_job_files := array(
      select id from artifacts where job_id = v_job.id and status <> 'deleted'
      and (subject is null or kept_until < _now())
      order by id limit v_left for update skip locked);
    v_files := v_files || v_job_files;
    v_left := v_left - cardinality(v_job_files);
    delete from parked where ctid = any (array(
      select ctid from parked where job_id = v_job.id limit v_left for update skip locked));
    get diagnostics v_count = row_count;
    v_left := v_left - v_count;
    exit when v_left <= 0;
    -- A transaction that moves a task leaves its old row visible until it
    -- commits. If this one statement sees no row of the job in any of these
    -- tables, no task of it is being moved and none will be queued again.
    continue when exists (select from parked where job_id = v_job.id)
      or exists (select from leases where job_id = v_job.id)
      or _ready_task(v_job) is not null
      or (select count(*) from artifacts where job_id = v_job.id and status <> 'deleted')
        > cardinality(v_job_files);
    v_left := v_left - _delete_job_rows(v_job.id, v_left);
    exit when v_left <= 0;
  end loop;
  -- Artifacts of all jobs in one call and last, because their accounts must be locked in one order.
  if cardinality(v_files) > 0 then
    perform _delete_artifacts(array(select a from artifacts a where a.id = any (v_files)));
  end if;
  return p_limit - v_left;
end
$$;
comment on function penstock.prune(integer) is
  'Deletes jobs that ended more than retention_days ago, at most p_limit rows, and returns the number of '
  'rows. The audit log stays. Workers call it about once a minute; a call does nothing while another one '
  'runs.';

create or replace function penstock._prune_history(p_cutoff timestamptz, p_limit integer)
returns void language plpgsql set search_path = penstock, pg_temp as $$
begin
  perform _prune_providers(p_limit);
  perform _prune_task_logs();
  perform _empty_webhooks(p_limit);
  perform _prune_notifications(p_cutoff, p_limit);
  delete from holds where ctid = any (array(
    select ctid from holds where settled_at < p_cutoff order by settled_at limit p_limit
      for update skip locked));
  -- Ids grow with time, so only the lowest ids need to be examined.
  delete from provider_events where id = any (array(
    select e.id from (select id, at from provider_events order by id limit p_limit) as e
      where e.at < p_cutoff));
  delete from actions where id = any (array(
    select a.id from (select id, finished_at from actions order by id limit p_limit) as a
    where a.finished_at < p_cutoff));
  delete from prompt_uses where id = any (array(
    select u.id from (select id, at from prompt_uses order by id limit p_limit) as u where u.at < p_cutoff));
  delete from route_failures where ctid = any (array(
    select ctid from route_failures where failed_at < _now() - interval '1 day' limit p_limit
      for update skip locked));
  delete from usage_keys where ctid = any (array(
    select ctid from usage_keys where at < _now() - interval '1 day' order by at limit p_limit
      for update skip locked));
end
$$;
comment on function penstock._prune_history(timestamptz, integer) is
  'Deletes old holds, provider events, actions, notifications, uses of prompts and keys of usage reports.';

create or replace function penstock._lock_for_pruning(
  p_job penstock.jobs, out has_ready_tasks boolean, out is_in_use boolean)
language plpgsql set search_path = penstock, pg_temp as $$
declare
  v_job_id uuid := p_job.id;
begin
  -- Other functions lock the job last. prune has locked it first, so it must
  -- not wait for any further lock: a job that another transaction uses, or
  -- that an unfinished pause or cancel still changes, is left to a later call.
  select _ready_task(p_job) is not null, exists (select from chores where job_id = v_job_id)
    or exists (select from leases where job_id = v_job_id)
    or (select count(*) from (select from phases where job_id = v_job_id for update skip locked) as p)
      < (select count(*) from phases where job_id = v_job_id)
    or (select count(*) from (select from bulks where job_id = v_job_id for update skip locked) as b)
      < (select count(*) from bulks where job_id = v_job_id)
  into has_ready_tasks, is_in_use;
  if has_ready_tasks and not is_in_use then
    -- A task was queued again after its job had ended, or is being claimed.
    insert into chores (job_id, tenant_id, verb, created_at)
    values (v_job_id, p_job.tenant_id, case p_job.status when 'failed' then 'park' else 'drop' end, _now());
  end if;
end
$$;
comment on function penstock._lock_for_pruning(penstock.jobs) is
  'Locks the phases and the bulk of an ended job without waiting, and says whether the job is still in use. '
  'Ready tasks of an ended job are left to upkeep.';

create or replace function penstock._detach_kept_artifacts(p_job_id uuid, p_limit integer)
returns integer language plpgsql set search_path = penstock, pg_temp as $$
declare
  v_count integer;
begin
  update artifacts set job_id = null, task_id = null where id = any (array(
    select id from artifacts where job_id = p_job_id and status = 'stored'
      and subject is not null and (kept_until is null or kept_until >= _now())
    order by id limit p_limit for update skip locked));
  get diagnostics v_count = row_count;
  return v_count;
end
$$;
comment on function penstock._detach_kept_artifacts(uuid, integer) is
  'Separates the files that an app keeps from a job that is about to be deleted. Returns their number.';

create or replace function penstock._delete_job_rows(p_job_id uuid, p_limit integer)
returns integer language plpgsql set search_path = penstock, pg_temp as $$
declare
  v_left integer := p_limit;
  v_count integer;
begin
  delete from results
    where ctid = any (array(select ctid from results where job_id = p_job_id limit v_left));
  get diagnostics v_count = row_count;
  v_left := v_left - v_count;
  delete from tasks where ctid = any (array(select ctid from tasks where job_id = p_job_id limit v_left));
  get diagnostics v_count = row_count;
  v_left := v_left - v_count;
  delete from bulk_changes
  where ctid = any (array(select ctid from bulk_changes where job_id = p_job_id limit v_left));
  get diagnostics v_count = row_count;
  v_left := v_left - v_count;
  delete from bulk_rows
    where ctid = any (array(select ctid from bulk_rows where job_id = p_job_id limit v_left));
  get diagnostics v_count = row_count;
  v_left := v_left - v_count;
  delete from edges where ctid = any (array(select ctid from edges where job_id = p_job_id limit v_left));
  get diagnostics v_count = row_count;
  v_left := v_left - v_count;
  delete from attempts
    where ctid = any (array(select ctid from attempts where job_id = p_job_id limit v_left));
  get diagnostics v_count = row_count;
  v_left := v_left - v_count;
  -- Places of rows are not unique across partitions.
  delete from task_logs where job_id = p_job_id and id = any (array(
    select id from task_logs where job_id = p_job_id order by id limit v_left));
  get diagnostics v_count = row_count;
  v_left := v_left - v_count;
  delete from task_chunks where job_id = p_job_id and (task_id, lease, number) in (
    select task_id, lease, number from task_chunks where job_id = p_job_id limit v_left);
  get diagnostics v_count = row_count;
  v_left := v_left - v_count;
  v_left := v_left - _delete_waits(p_job_id, v_left);
  delete from job_terms where job_id = p_job_id;
  if v_left > 0 then
    delete from phases where job_id = p_job_id;
    delete from accounts where job_id = p_job_id;
    delete from bulks where job_id = p_job_id;
    delete from prompt_pins where job_id = p_job_id;
    delete from jobs where id = p_job_id;
    v_left := v_left - 1;
  end if;
  return p_limit - v_left;
end
$$;
comment on function penstock._delete_job_rows(uuid, integer) is
  'Deletes up to p_limit rows of a job, the job itself last, and returns their number.';
