-- phase: expand
-- What the code decides by has a column of its own; the reasons beside it are texts for people.

alter table penstock.jobs add column paused_for text check (paused_for in ('budget', 'quota'));
comment on column penstock.jobs.paused_for is
  'What the platform paused the job for; null: somebody paused it, or it is not paused.';
update penstock.jobs set paused_for = 'budget' where status = 'paused' and status_reason like 'budget:%';

alter table penstock.endpoint_states add column is_exhausted boolean not null default false;
comment on column penstock.endpoint_states.is_exhausted is
  'It is closed because its account is exhausted, not because it asked to wait.';
update penstock.endpoint_states set is_exhausted = true where closed_reason = 'quota exhausted';
