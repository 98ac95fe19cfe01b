-- phase: expand
-- no transaction
-- The sweep looks for files that are due every minute and must not read the kept ones.
create index concurrently if not exists artifacts_expiring on penstock.artifacts (stored_at)
  where job_id is null and status = 'stored' and subject is null;
create index concurrently if not exists artifacts_kept on penstock.artifacts (kept_until, id) where subject is not null;
