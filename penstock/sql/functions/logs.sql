-- Logs: what handlers log, beside their tasks. Workers send lines in batches and give up on lines that cannot
-- be stored: no task waits for its log.

create or replace function penstock._log_slot(p_at timestamptz)
returns smallint language sql immutable set search_path = penstock, pg_temp as $$
  select (floor(extract(epoch from p_at) / 604800)::bigint % 3)::smallint
$$;
comment on function penstock._log_slot(timestamptz) is 'The partition of a log line: its week modulo 3.';

create or replace function penstock.store_task_logs(p_worker_id text, p_lines jsonb)
returns integer language plpgsql security definer set search_path = penstock, pg_temp as $$
declare
  v_now timestamptz := _now();
  v_count integer;
begin
  if jsonb_typeof(p_lines) is distinct from 'array' or jsonb_array_length(p_lines) > 1000 then
    perform _refuse(422, 'invalid_batch', 'p_lines must be an array of at most 1000 lines',
      '{"field": "p_lines"}');
  end if;
  insert into task_logs (slot, tenant_id, job_id, task_id, attempt, at, level, message, fields)
  select _log_slot(v_now), o.tenant_id, x.job_id, x.task_id, o.attempt,
    -- Workers send ages instead of timestamps, because their clocks may differ.
    v_now - make_interval(secs => least(greatest(coalesce(x.ago, 0), 0), 3600)),
    case when x.level in ('debug', 'info', 'warning', 'error', 'critical') then x.level else 'info' end,
    _error_text(coalesce(x.message, ''), 2000),
    case when octet_length(x.fields::text) <= 4000 then _redact_document(x.fields) end
  from rows from (jsonb_to_recordset(p_lines) as (job_id uuid, task_id bigint, lease bigint, number integer,
    level text, message text, fields jsonb, ago double precision)) with ordinality as x(
    job_id, task_id, lease, number, level, message, fields, ago, position)
  -- The tenant is that of the attempt which this worker runs or has just ended.
  cross join lateral (
    select l.tenant_id, l.failures + l.deaths + 1 as attempt from leases l
    where l.task_id = x.task_id and l.job_id = x.job_id and l.lease = x.lease and l.worker_id = p_worker_id
    union all
    select r.tenant_id, r.attempt from results r
    where r.job_id = x.job_id and r.task_id = x.task_id and r.lease = x.lease and r.worker_id = p_worker_id
    union all
    select a.tenant_id, a.attempt from attempts a
    where a.job_id = x.job_id and a.task_id = x.task_id and a.lease = x.lease and a.worker_id = p_worker_id
    limit 1) as o
  where x.number between 1 and 1000 order by x.position;
  get diagnostics v_count = row_count;
  return v_count;
end
$$;
comment on function penstock.store_task_logs(text, jsonb) is
  'Stores log lines of attempts that the worker runs or has just ended, [{"job_id", "task_id", "lease", '
  '"number" (1 to 1000 within the attempt), "level", "message", "fields", "ago" (seconds)}], without '
  'credentials. Returns how many it stored; it skips the others.';

create or replace function penstock._prune_task_logs()
returns void language plpgsql set search_path = penstock, pg_temp set lock_timeout = '50ms' as $$
declare
  v_next smallint := _log_slot(_now() + interval '7 days');
begin
  if not exists (select from task_logs where slot = v_next)
    and not exists (select from task_chunks where slot = v_next) then
    return;
  end if;
  if v_next = 0 then
    truncate task_logs_0, task_chunks_0;
  elsif v_next = 1 then
    truncate task_logs_1, task_chunks_1;
  else
    truncate task_logs_2, task_chunks_2;
  end if;
exception when lock_not_available then
  -- Another session reads the table: the next prune tries again in a minute.
  null;
end
$$;
comment on function penstock._prune_task_logs() is
  'Empties the partitions of logs and streams that the next week uses: their rows are more than a week old.';
