-- phase: expand
-- The types that the stages of the claim pass to each other, and the providers that a fresh install starts with.

create type penstock.reservation as (
  task_id bigint,
  tenant_id uuid,
  job_id uuid,
  amounts jsonb,
  has_budget boolean
);
comment on type penstock.reservation is
  'Amounts per meter reserved for a task that is being claimed; has_budget: its job has a budget.';

create type penstock.claim_pick as (
  tids tid[],
  gated_lane_ids integer[],
  reservations penstock.reservation[],
  is_more boolean,
  has_reserved boolean
);
comment on type penstock.claim_pick is
  'Rows of ready that a claim has locked. is_more: another round may find more. has_reserved: accounts are '
  'locked.';

create type penstock.claim_candidate as (
  tid tid,
  task_id bigint,
  job_id uuid,
  tenant_id uuid,
  units jsonb,
  provider text,
  on_limit text,
  job_status text
);
comment on type penstock.claim_candidate is
  'A locked row of ready with what decides whether quota and budget allow it.';

create type penstock.claim_limit as (
  tenant_id uuid,
  job_id uuid,
  meter text,
  amount numeric,
  mode text,
  resets_at timestamptz,
  remaining numeric
);
comment on type penstock.claim_limit is
  'A tenant''s quota of a meter (job_id null) or a job''s budget, and what remains of it.';

create type penstock.claim_need as (
  amounts jsonb,
  has_budget boolean,
  cost numeric,
  shortage text
);
comment on type penstock.claim_need is
  'What a task takes from limits (amounts null: from none), and what it is short of: a meter, budget or '
  'price.';

create type penstock.capacity as (
  requests bigint,
  tokens bigint,
  places bigint,
  max_requests bigint,
  max_tokens bigint
);
comment on type penstock.capacity is
  'What is left of an endpoint''s windows and of its concurrency (places), and the most its windows ever '
  'allow. Null: no limit.';

create type penstock.window_fit as (
  tids tid[],
  requests bigint,
  tokens bigint,
  next_requests bigint,
  next_tokens bigint,
  oversized tid[]
);
comment on type penstock.window_fit is
  'The rows that fit into an endpoint''s windows, their size, the size of the first that does not fit, and '
  'the rows that never fit.';

create type penstock.provider_choice as (
  provider text,
  reason text,
  is_open boolean
);
comment on type penstock.provider_choice is
  'The provider chosen for a route, why, and whether it accepts calls now.';

-- Example endpoints for an install that has none: change or remove them with set_provider.
insert into penstock.endpoints (provider, endpoint, requests_per_minute, tokens_per_minute, concurrency,
  backpressure_threshold, backpressure_delay_seconds, features, changed_at)
select * from (values
  ('openai', 'gpt-4o-mini', 500, 200000, 50, 0.8, 5, array['chat', 'json'], clock_timestamp()),
  ('openai', 'gpt-4-vision', 100, 20000, 20, 0.8, 5, array['chat', 'vision'], clock_timestamp()),
  ('google', 'vision-api', 1800, null, 100, 0.8, 5, array['vision', 'ocr'], clock_timestamp()),
  ('anthropic', 'claude-3', 400, 100000, 25, 0.8, 5, array['chat', 'json'], clock_timestamp())) as seed
where not exists (select from penstock.endpoints);
insert into penstock.endpoint_states (endpoint_id) select id from penstock.endpoints on conflict do nothing;
