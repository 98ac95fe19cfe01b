-- phase: expand
-- Billing: the customers and subscriptions of tenants at Stripe, and what its prices stand for.

create table penstock.plan_prices (
  price_id text primary key check (length(price_id) between 1 and 255),
  plan text references penstock.plans (name),
  meter text references penstock.meters (name),
  amount numeric check (amount > 0 and amount <= 1e15),
  check ((plan is not null) <> (meter is not null)),
  check ((meter is null) = (amount is null))
);
create index plan_prices_plan on penstock.plan_prices (plan);
create index plan_prices_meter on penstock.plan_prices (meter);
comment on table penstock.plan_prices is 'What a price of Stripe stands for: a plan, or a pack (an amount of a meter, bought once).';

create table penstock.billing_accounts (
  tenant_id uuid primary key references penstock.tenants (id),
  customer_id text unique check (length(customer_id) between 1 and 255),
  checkout_id text,
  checkout_expires_at timestamptz,
  created_at timestamptz not null
);
comment on table penstock.billing_accounts is 'The customer of a tenant at Stripe. The first customer that is bound stays.';

create table penstock.subscriptions (
  id text primary key check (length(id) between 1 and 255),
  tenant_id uuid not null references penstock.tenants (id),
  customer_id text not null,
  price_ids text[] not null,
  plan text references penstock.plans (name),
  status text not null check (status in
    ('incomplete', 'incomplete_expired', 'trialing', 'active', 'past_due', 'canceled', 'unpaid', 'paused')),
  period_end timestamptz,
  cancel_at_period_end boolean not null default false,
  created_at timestamptz not null,
  ended_at timestamptz,
  as_of timestamptz not null,
  event_id text,
  is_suspect boolean not null default false,
  checked_at timestamptz
);
create index subscriptions_tenant on penstock.subscriptions (tenant_id, created_at desc);
create index subscriptions_plan on penstock.subscriptions (plan);
create index subscriptions_suspect on penstock.subscriptions (id) where is_suspect;
comment on table penstock.subscriptions is 'Subscriptions as Stripe last told. The newest live one decides the plan of its tenant.';
comment on column penstock.subscriptions.as_of is 'The time at Stripe of the state in this row, in whole seconds.';
comment on column penstock.subscriptions.is_suspect is
  'Two states came with the same second: Stripe is asked which one is right.';

create table penstock.billing_syncs (
  id boolean primary key default true check (id),
  reconciled_at timestamptz not null
);
comment on table penstock.billing_syncs is 'When the subscriptions were last compared with Stripe: one row.';

create index tenants_plan_until on penstock.tenants (plan_until) where plan_until is not null;

alter table penstock.plan_prices enable row level security;
alter table penstock.billing_accounts enable row level security;
alter table penstock.subscriptions enable row level security;
alter table penstock.billing_syncs enable row level security;
