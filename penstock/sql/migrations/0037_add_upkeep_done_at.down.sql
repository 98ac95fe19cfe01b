alter table penstock.upkeep_runs drop column done_at;
