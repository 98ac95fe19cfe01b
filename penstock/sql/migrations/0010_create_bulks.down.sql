-- What waits for a confirmation would never run; what pauses for want of quota is held back instead.
update penstock.parked set until = clock_timestamp(), waits_for = null where waits_for = 'confirm';
update penstock.jobs set on_limit = 'hold' where on_limit = 'pause';
drop index penstock.jobs_pausing, penstock.cost_entries_task;
alter table penstock.jobs drop column confirmed_at cascade, drop column stop_after cascade, drop column forgiven cascade,
  drop constraint jobs_on_limit_check,
  add constraint jobs_on_limit_check check (on_limit in ('hold', 'refuse'));
alter table penstock.job_types drop column bulk cascade;
alter table penstock.tasks drop column confirm cascade;
alter type penstock.task_spec drop attribute confirm cascade;
drop table penstock.bulk_changes, penstock.bulk_rows, penstock.bulks cascade;
