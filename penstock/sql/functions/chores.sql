-- Chores: after a pause, resume or cancel of a job, its tasks are moved in batches, by claims and upkeep.

create or replace function penstock._do_chore(p_job_id uuid, p_bite integer)
returns integer language plpgsql set search_path = penstock, pg_temp as $$
declare
  v_chore chores;
  v_left integer := p_bite;
  v_count integer;
begin
  select * into v_chore from chores where job_id = p_job_id for update skip locked;
  if not found then
    return 0;
  end if;
  if v_chore.verb = 'unpark' then
    v_left := v_left - _unpark_tasks(p_job_id, v_left);
  else
    if v_chore.verb = 'drop' then
      with due as (
        select task_id from parked where job_id = p_job_id limit v_left for update skip locked
      )
      delete from parked p using due where p.job_id = p_job_id and p.task_id = due.task_id;
      get diagnostics v_count = row_count;
      v_left := v_left - v_count;
    end if;
    v_left := v_left - _remove_ready_tasks(v_chore, v_left);
  end if;
  -- Parked rows that were locked are left to the next batch;
  -- ready rows that were locked are left to their claim.
  if v_left > 0 and not (v_chore.verb = 'unpark' and exists (
      select from parked where job_id = p_job_id and pending = 0 and reason = 'paused'
        and until = 'infinity')) then
    delete from chores where job_id = p_job_id;
  end if;
  return p_bite - v_left;
end
$$;
comment on function penstock._do_chore(uuid, integer) is
  'Moves the next batch of tasks after a pause, resume or cancel of their job, and returns their number.';

create or replace function penstock._unpark_tasks(p_job_id uuid, p_limit integer)
returns integer language plpgsql set search_path = penstock, pg_temp as $$
declare
  v_rows ready[];
begin
  with due as (
    select task_id from parked
    where job_id = p_job_id and pending = 0 and reason = 'paused' and until = 'infinity'
    limit p_limit for update skip locked
  ), gone as (
    delete from parked p using due where p.job_id = p_job_id and p.task_id = due.task_id
    returning _parked_to_ready(p) as task
  )
  select array_agg(g.task order by (g.task).task_id) into v_rows from gone g;
  perform _queue(v_rows, false);
  return coalesce(cardinality(v_rows), 0);
end
$$;
comment on function penstock._unpark_tasks(uuid, integer) is
  'Queues up to p_limit tasks that were parked when their job was paused, and returns their number.';

create or replace function penstock._remove_ready_tasks(p_chore penstock.chores, p_limit integer)
returns integer language plpgsql set search_path = penstock, pg_temp as $$
declare
  v_line record;
  v_left integer := p_limit;
  v_count integer;
begin
  for v_line in select * from _lanes_of_tenant(p_chore.tenant_id) loop
    exit when v_left <= 0;
    with due as (
      select ctid from ready
      where tenant_id = p_chore.tenant_id and lane_id = v_line.lane_id and priority = v_line.priority
        and job_id = p_chore.job_id
      order by task_id limit v_left for update skip locked
    ), gone as (
      delete from ready r where r.ctid = any (array(select ctid from due))
      returning _ready_to_parked(r, 'infinity', 'paused') as task
    ), kept as (
      insert into parked select (g.task).* from gone g where p_chore.verb = 'park'
    )
    select count(*) into v_count from gone;
    v_left := v_left - v_count;
  end loop;
  return p_limit - v_left;
end
$$;
comment on function penstock._remove_ready_tasks(penstock.chores, integer) is
  'Takes up to p_limit tasks of a job out of the ready set, parks them (verb park) or drops them, and '
  'returns their number.';
