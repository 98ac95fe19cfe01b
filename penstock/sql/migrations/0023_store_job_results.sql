-- phase: expand
-- Where the result of a job comes from: what the body of its job type returned.
alter table penstock.jobs add column result jsonb;
comment on column penstock.jobs.result is
  'The result as a template: {"$from": key} stands for the output of a task. Null: the output of the last task.';
