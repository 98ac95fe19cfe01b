drop index if exists penstock.cost_entries_user;
drop index if exists penstock.bulk_rows_id;
drop index if exists penstock.jobs_user;
