-- phase: expand
-- One worker does the periodic upkeep for all, so that idle workers cost the database little.

alter table penstock.upkeep_runs
  add column leader_id text,
  add column led_until timestamptz not null default '-infinity';
comment on column penstock.upkeep_runs.leader_id is 'The worker that does the periodic upkeep for all.';
comment on column penstock.upkeep_runs.led_until is
  'From then on another worker may take over: the leader has not reported for some seconds.';
