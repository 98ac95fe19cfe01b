-- phase: expand
-- no transaction
-- Older jobs, rows and costs get their users, and the ids that the views computed before, job by job.

do $$
declare
  v_job record;
begin
  for v_job in
    select distinct on (l.job_id) l.job_id as id, case when l.actor ~ '^user:[0-9a-f-]{36}$' then substr(l.actor, 6)::uuid end as user_id
    from penstock.audit_log l where l.job_id is not null and l.details ->> 'type' = 'video_ideas' order by l.job_id, l.id
  loop
    update penstock.jobs j set user_id = v_job.user_id where j.id = v_job.id and j.user_id is null and v_job.user_id is not null;
    update penstock.bulk_rows b set id = encode(substr(sha256(convert_to(b.job_id || '/' || b.number, 'UTF8')), 1, 16), 'hex')::uuid
    where b.job_id = v_job.id and b.id is null;
    -- Also of jobs that were pruned. The ledger refuses updates otherwise; nothing else of its lines changes.
    perform set_config('penstock.erasing', 'on', true);
    update penstock.cost_entries c set user_id = v_job.user_id
    where c.job_id = v_job.id and c.user_id is null and v_job.user_id is not null;
    commit;
  end loop;
end
$$;
