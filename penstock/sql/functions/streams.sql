-- Streams: what handlers stream while they run, such as the tokens of a model. Workers send chunks of all
-- their attempts in batches. Each lease has its own stream, so that a retry begins a new one.

create or replace function penstock.store_task_chunks(p_worker_id text, p_chunks jsonb)
returns integer language plpgsql security definer set search_path = penstock, pg_temp as $$
declare
  v_now timestamptz := _now();
  v_count integer;
begin
  if jsonb_typeof(p_chunks) is distinct from 'array' or jsonb_array_length(p_chunks) > 1000 then
    perform _refuse(422, 'invalid_batch', 'p_chunks must be an array of at most 1000 chunks',
      '{"field": "p_chunks"}');
  end if;
  insert into task_chunks (slot, tenant_id, job_id, task_id, lease, number, attempt, at, parts)
  select _log_slot(v_now), l.tenant_id, l.job_id, l.task_id, l.lease, x.number, l.failures + l.deaths + 1,
    v_now, x.parts
  from (
    select r.*, octet_length(r.parts::text) as bytes,
      sum(octet_length(r.parts::text)) over (partition by r.task_id, r.lease order by r.number) as batch_bytes
    from jsonb_to_recordset(p_chunks) as r(
      job_id uuid, task_id bigint, lease bigint, number integer, sent bigint, parts jsonb)) as x
  -- Only the worker that holds the lease. The look-up fixes the plan: one index probe per chunk.
  cross join lateral (
    select y.* from leases y where y.task_id = x.task_id and y.job_id = x.job_id and y.lease = x.lease
      and y.worker_id = p_worker_id offset 0) as l
  where x.number between 1 and 10000 and jsonb_typeof(x.parts) = 'array'
    and coalesce(x.sent, 0) between 0 and 262144 and x.bytes <= 65536
    -- Also of a worker that counts wrong. Twice as much, because small parts take more room here.
    and (x.number <= 4 or 524288 >= x.batch_bytes + (
      select coalesce(sum(pg_column_size(c.parts)), 0) from task_chunks c
      where c.job_id = x.job_id and c.task_id = x.task_id and c.lease = x.lease))
  on conflict do nothing;
  get diagnostics v_count = row_count;
  return v_count;
end
$$;
comment on function penstock.store_task_chunks(text, jsonb) is
  'Stores chunks of the streams of attempts that the worker runs, [{"job_id", "task_id", "lease", "number" '
  '(1 to 10000 within the attempt), "sent" (bytes in earlier chunks, at most 262144), "parts" (texts and '
  'objects)}]. Returns how many it stored; it skips those of lost leases, those already stored and those '
  'that are too large.';
