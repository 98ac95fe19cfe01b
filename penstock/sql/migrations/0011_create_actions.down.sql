drop table penstock.action_items, penstock.actions, penstock.task_sums cascade;
alter table penstock.workers drop column drain_asked_at;
drop index penstock.results_finished, penstock.jobs_type, penstock.dead_letters_tenant, penstock.dead_letters_code, penstock.tenants_name, penstock.cost_sums_of_day, penstock.jobs_finished;
alter table penstock.schedules drop constraint schedules_job_type_check;
