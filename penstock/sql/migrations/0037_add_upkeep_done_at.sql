-- phase: expand
-- A run of upkeep that requeued expired leases leaves the rest to the next call, so its time says nothing about the rest.

alter table penstock.upkeep_runs add column done_at timestamptz not null default '-infinity';
comment on column penstock.upkeep_runs.done_at is 'When all of upkeep was last done. Older than ran_at while a run has only requeued expired leases.';
