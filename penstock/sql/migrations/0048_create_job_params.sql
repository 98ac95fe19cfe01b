-- phase: expand
-- What the params of job types must be, so that a schedule is checked when it is set.
create table penstock.job_params (
  name text primary key check (length(name) between 1 and 200),
  required text[] not null default '{}',
  allowed text[],
  refused jsonb not null default '{}' check (jsonb_typeof(refused) = 'object')
);
comment on table penstock.job_params is 'The params that job types and kinds take, as the app declares them.';
comment on column penstock.job_params.required is 'Params that must be given.';
comment on column penstock.job_params.allowed is 'All params; null: also others.';
comment on column penstock.job_params.refused is 'The JSON types that a param refuses: {"count": ["array", "object"]}.';
alter table penstock.job_params enable row level security;
