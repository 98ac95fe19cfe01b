-- phase: expand
-- Titles and tags of jobs, and the terms by which find_jobs finds them: by tenant first, newest jobs at the end.

alter table penstock.job_params add column title text check (length(title) between 1 and 200);
alter table penstock.jobs add column title text, add column tags text[] not null default '{}';
create table penstock.job_terms (
  tenant_id uuid not null,
  term text collate "C" not null,
  job_id uuid not null,
  constraint job_terms_pkey primary key (tenant_id, term, job_id)
);
create index job_terms_job on penstock.job_terms (job_id);
alter table penstock.job_terms enable row level security;
comment on column penstock.job_params.title is 'Template of the titles of jobs: {title} stands for a param.';
comment on column penstock.jobs.title is 'What people call the job, from the template of its type.';
comment on column penstock.jobs.tags is 'Words to find the job by, in lower case.';
comment on table penstock.job_terms is
  'What jobs are found by: tags, params, and words of their titles and params. Read with find_jobs.';
