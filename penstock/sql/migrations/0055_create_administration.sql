-- phase: expand
-- Administration: people who may help customers, the costs that no provider reports, and snapshots of the others.

alter table penstock.profiles add column role text not null default 'user' check (role in ('user', 'admin'));
comment on column penstock.profiles.role is 'An admin may use the functions admin_*; only the service sets this.';

create table penstock.fixed_costs (
  id bigint generated always as identity primary key,
  name text not null check (length(name) between 1 and 200),
  amount numeric not null check (amount >= 0 and amount < 1e12),
  currency text not null check (currency ~ '^[A-Z]{3}$'),
  period text not null check (period in ('month', 'year', 'once')),
  from_day date not null,
  until_day date,
  comment text not null default '' check (length(comment) <= 1000),
  created_by text not null,
  created_at timestamptz not null,
  check (until_day is null or until_day >= from_day - 1)
);
create unique index fixed_costs_open on penstock.fixed_costs (name) where until_day is null;
create index fixed_costs_days on penstock.fixed_costs (from_day, until_day);
comment on table penstock.fixed_costs is 'Costs that no provider reports: hosting, subscriptions, people. A change ends a line and starts another.';
comment on column penstock.fixed_costs.until_day is 'The last day; null: no end. The day before from_day: it was replaced before it began.';

create table penstock.cost_snapshots (
  id bigint generated always as identity primary key,
  taken_at timestamptz not null,
  month date not null check (extract(day from month) = 1),
  total numeric not null,
  by_provider jsonb not null,
  by_type jsonb not null
);
create index cost_snapshots_month on penstock.cost_snapshots (month, id desc);
comment on table penstock.cost_snapshots is 'The costs of all tenants in a month, as they were at a time. Append-only; taken every hour.';

alter table penstock.fixed_costs enable row level security;
alter table penstock.cost_snapshots enable row level security;
