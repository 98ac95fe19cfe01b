-- phase: expand
-- no transaction
-- Bulk jobs, video jobs and costs of a user, and costs of a video job, by columns that have an index. Older rows
-- get them in batches, and keep the ids that they had in the views.

do $$
declare
  v_count integer;
begin
  loop
    update penstock.jobs j set user_id = substr(j.created_by, 6)::uuid where j.id in (
      select x.id from penstock.jobs x where x.type = 'video_ideas' and x.user_id is null and x.created_by ~ '^user:[0-9a-f-]{36}$' limit 1000);
    get diagnostics v_count = row_count;
    commit;
    exit when v_count = 0;
  end loop;
  loop
    update penstock.bulk_rows b set id = encode(substr(sha256(convert_to(b.job_id || '/' || b.number, 'UTF8')), 1, 16), 'hex')::uuid
    where (b.job_id, b.number) in (
      select r.job_id, r.number from penstock.jobs j join penstock.bulk_rows r on r.job_id = j.id
      where j.type = 'video_ideas' and r.id is null limit 1000);
    get diagnostics v_count = row_count;
    commit;
    exit when v_count = 0;
  end loop;
  loop
    -- The ledger refuses updates otherwise. Nothing else of its lines changes.
    perform set_config('penstock.erasing', 'on', true);
    update penstock.cost_entries c set user_id = substr(x.actor, 6)::uuid from (
      -- Of a job that was pruned, the audit log still has the type and the user.
      select e.id, a.actor from penstock.cost_entries e
      cross join lateral (
        select l.actor from penstock.audit_log l where l.job_id = e.job_id and l.details ->> 'type' = 'video_ideas' order by l.id limit 1) as a
      where e.user_id is null and e.job_id is not null and a.actor ~ '^user:[0-9a-f-]{36}$' limit 1000) as x
    where c.id = x.id;
    get diagnostics v_count = row_count;
    commit;
    exit when v_count = 0;
  end loop;
end
$$;
drop index if exists penstock.video_ideas_jobs_user;
create index concurrently video_ideas_jobs_user on penstock.jobs (user_id, created_at desc) where type = 'video_ideas';
drop index if exists penstock.video_ideas_rows;
create index concurrently video_ideas_rows on penstock.bulk_rows (id);
drop index if exists penstock.video_ideas_costs_user;
create index concurrently video_ideas_costs_user on penstock.cost_entries (user_id, at desc) where user_id is not null;
