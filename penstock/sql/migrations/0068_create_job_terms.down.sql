drop table penstock.job_terms;
alter table penstock.jobs drop column title, drop column tags;
alter table penstock.job_params drop column title;
