-- phase: expand
-- The types that the stages of a forecast and of its simulation pass to each other.

create type penstock.forecast_group as (
  kind text,
  provider text,
  count double precision,
  running double precision,
  cost numeric,
  deviation numeric,
  units jsonb,
  parents integer[],
  seconds double precision,
  spread double precision,
  samples integer,
  cost_ratio numeric,
  cost_spread numeric,
  cost_samples integer
);
comment on type penstock.forecast_group is
  'The open tasks of a job that have the same kind and provider: how many, the estimated cost and units of all '
  '(cost null: no price; deviation: the standard deviation of a cost extrapolated from a sample), the numbers of '
  'the groups they depend on, and from history the duration of a task and its actual cost per estimated cost.';

create type penstock.simulated_group as (
  count double precision,
  running double precision,
  seconds double precision,
  spread double precision,
  requests double precision,
  tokens double precision,
  used_tokens double precision,
  parents integer[],
  provider text,
  opens_in double precision,
  task_slot integer,
  worker_slot integer,
  request_slot integer,
  token_slot integer,
  place_slot integer
);
comment on type penstock.simulated_group is
  'A group of equal tasks in a simulation: what one task needs, and the places of its figures in the state.';

create type penstock.simulated_event as (
  delay double precision,
  slot integer,
  amount double precision
);
comment on type penstock.simulated_event is 'An amount that is added to a figure of a simulation after a delay in seconds.';
