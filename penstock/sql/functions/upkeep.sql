-- Upkeep that any process may do: workers and servers call it in a loop, and a claim that finds nothing does
-- an overdue part of it.

create or replace function penstock._reclaim_before(p_now timestamptz)
returns timestamptz language plpgsql set search_path = penstock, pg_temp as $$
declare
  -- Not _now(), which tests replace: this is about a real outage.
  v_clock timestamptz := clock_timestamp();
  v_run upkeep_runs;
begin
  select * into v_run from upkeep_runs;
  if not found then
    insert into upkeep_runs (ran_at) values (v_clock) on conflict (id) do nothing;
    return p_now;
  end if;
  if v_run.ran_at < v_clock - interval '1 second' then
    if v_run.ran_at < v_clock - interval '6 seconds' then
      v_run.away_from := v_run.ran_at;
      v_run.away_until := v_clock;
    end if;
    update upkeep_runs set ran_at = v_clock, away_from = v_run.away_from, away_until = v_run.away_until
    where ctid = any (array(select ctid from upkeep_runs for no key update skip locked));
  end if;
  -- After an outage of the database, or of every worker: workers that are alive extend their leases within
  -- two seconds. Until then only leases that had expired before the outage are lost.
  return case when v_clock < v_run.away_until + interval '2 seconds' then least(p_now, v_run.away_from)
    else p_now end;
end
$$;
comment on function penstock._reclaim_before(timestamptz) is
  'The time before which an expired lease counts as lost: now, or after an outage the time it began.';

create or replace function penstock._record_upkeep_done()
returns void language sql set search_path = penstock, pg_temp as $$
  -- At most once a second: many processes call it.
  update upkeep_runs set done_at = clock_timestamp()
  where done_at < clock_timestamp() - interval '1 second'
    and ctid = any (array(select ctid from upkeep_runs for no key update skip locked))
$$;
comment on function penstock._record_upkeep_done() is
  'Notes that all of upkeep was done: expired leases are requeued, and so are tasks that are due.';

create or replace function penstock.lead_upkeep(p_worker_id text, p_is_able boolean default true)
returns boolean language plpgsql security definer set search_path = penstock, pg_temp as $$
declare
  -- Not _now(), which tests replace: this is about processes that are alive.
  v_clock timestamptz := clock_timestamp();
  v_run upkeep_runs;
begin
  perform _check_name(p_worker_id, 'p_worker_id', 'invalid_worker');
  select * into v_run from upkeep_runs;
  if not found then
    insert into upkeep_runs (ran_at) values (v_clock) on conflict (id) do nothing;
  end if;
  -- Nobody waits for the row, which a running upkeep has locked.
  if not coalesce(p_is_able, false) then
    update upkeep_runs set led_until = '-infinity' where ctid = any (array(
      select r.ctid from upkeep_runs r where r.leader_id = p_worker_id for no key update skip locked));
    return false;
  elsif v_run.leader_id = p_worker_id and v_run.led_until > v_clock + interval '2 seconds' then
    return true;
  end if;
  update upkeep_runs set leader_id = p_worker_id, led_until = v_clock + interval '5 seconds'
  where ctid = any (array(
    select r.ctid from upkeep_runs r where r.leader_id = p_worker_id or r.led_until <= v_clock
    for no key update skip locked));
  -- A leader that cannot renew its lead now keeps it as long as it lasts.
  return found or v_run.leader_id is not distinct from p_worker_id and v_run.led_until > v_clock;
end
$$;
comment on function penstock.lead_upkeep(text, boolean) is
  'Whether this worker does the periodic upkeep for all. It leads for 5 seconds and asks again before they '
  'end; one that is not able to, such as one that stops, gives the lead up. Two leaders do no harm: upkeep '
  'may run several times at once.';

create or replace function penstock.upkeep_if_idle()
returns table (reclaimed integer, promoted integer, chores integer, next_seconds double precision)
language plpgsql security definer set search_path = penstock, pg_temp as $$
begin
  if exists (select from upkeep_runs where done_at > clock_timestamp() - interval '2 seconds') then
    return query select 0, 0, 0, 2::double precision;
  else
    return query select u.reclaimed, u.promoted, u.chores, u.next_seconds from upkeep() as u;
  end if;
end
$$;
comment on function penstock.upkeep_if_idle() is
  'Runs upkeep unless another process did within two seconds. For many servers of which one has to do it.';

create or replace function penstock._do_overdue()
returns void language plpgsql set search_path = penstock, pg_temp set lock_timeout = '100ms' as $$
begin
  if exists (select from upkeep_runs where done_at > clock_timestamp() - interval '5 seconds') then
    return;
  end if;
  if reclaim_stale_tasks() = 0 then
    perform _promote(100);
    perform _record_upkeep_done();
  end if;
exception when lock_not_available or deadlock_detected then
  -- The next empty claim tries again.
  null;
end
$$;
comment on function penstock._do_overdue() is
  'Does a part of upkeep for a claim that found nothing, if no process runs upkeep: requeues expired leases '
  'or tasks that are due.';

create or replace function penstock.return_unknown_tasks(p_worker_id text, p_leases bigint[])
returns integer language plpgsql security definer set search_path = penstock, pg_temp as $$
declare
  v_task_ids bigint[];
  v_leases bigint[];
begin
  select array_agg(l.task_id), array_agg(l.lease) into v_task_ids, v_leases from leases l
  where l.worker_id = p_worker_id and l.lease <> all (coalesce(p_leases, '{}')) and not l.is_canceled;
  if v_task_ids is null then
    return 0;
  end if;
  perform hand_back_tasks(p_worker_id, v_task_ids, v_leases);
  return cardinality(v_task_ids);
end
$$;
comment on function penstock.return_unknown_tasks(text, bigint[]) is
  'Requeues the tasks leased to a worker, except those with these leases, without costing an attempt. For a '
  'worker that never received the response to a claim.';
