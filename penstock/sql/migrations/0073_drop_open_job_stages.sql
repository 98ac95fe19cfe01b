-- phase: contract
-- Replaced by _create_job, _count_in_phases and by functions that take the job instead of its id.

drop function if exists penstock._open_job(text, jsonb, jsonb);
drop function if exists penstock._add_tasks(uuid, jsonb);
drop function if exists penstock._add_tasks_of(uuid, jsonb, text[], boolean);
drop function if exists penstock._add_phases(penstock.jobs, penstock.task_spec[]);
drop function if exists penstock._count_start(uuid, integer, jsonb, jsonb);
