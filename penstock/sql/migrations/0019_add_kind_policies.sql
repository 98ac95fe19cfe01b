-- phase: expand
-- What a kind allows: its providers, the least that a task counts, bounds, and who may start its tasks.

alter table penstock.kinds
  add column providers text[],
  add column units jsonb check (jsonb_typeof(units) = 'object'),
  add column units_per_kb jsonb check (jsonb_typeof(units_per_kb) = 'object'),
  add column max_timeout_seconds real check (max_timeout_seconds > 0),
  add column attempts_limit smallint check (attempts_limit between 1 and 100),
  add column min_priority smallint check (min_priority between 0 and 10),
  add column starters text[] check (starters <@ array['owner', 'admin', 'member', 'key', 'service']),
  add column raw_tasks boolean;
alter table penstock.kinds add column has_policy boolean not null generated always as (
  num_nonnulls(providers, units, units_per_kb, max_timeout_seconds, attempts_limit, min_priority, starters) > 0
) stored;
comment on column penstock.kinds.providers is
  'The providers that tasks of this kind may use. A task that names none gets the first that is open. Null: any; empty: none.';
comment on column penstock.kinds.units is 'The least that a task counts, whatever its estimate.';
comment on column penstock.kinds.units_per_kb is 'What each 1,000 bytes of input add to units.';
comment on column penstock.kinds.max_timeout_seconds is
  'The longest timeout that a task may ask for. Null: for users the kind''s own timeout, for the service no limit.';
comment on column penstock.kinds.attempts_limit is
  'The most attempts that a task may ask for. Null: for users the kind''s own number, for the service no limit.';
comment on column penstock.kinds.min_priority is 'The best (lowest) priority that a task may have.';
comment on column penstock.kinds.starters is
  'Who may start such tasks: owner, admin, member, key, service. Null: all of them.';
comment on column penstock.kinds.raw_tasks is
  'Whether users may write such tasks themselves, instead of starting job types of an app. Null: the setting raw_tasks.';
comment on column penstock.kinds.has_policy is 'Whether the kind declares anything that new tasks must be checked for.';

alter table penstock.schedules add column starters text[];
comment on column penstock.schedules.starters is
  'Who set the schedule (see kinds.starters), for the checks when it fires. Null: the service.';
