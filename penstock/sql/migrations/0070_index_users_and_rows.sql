-- phase: expand
-- no transaction
-- The tables may be large: claims and completions go on meanwhile.

create index concurrently if not exists jobs_user on penstock.jobs (user_id, created_at desc)
  where user_id is not null;
create index concurrently if not exists bulk_rows_id on penstock.bulk_rows (id);
create index concurrently if not exists cost_entries_user on penstock.cost_entries (user_id, at desc)
  where user_id is not null;
