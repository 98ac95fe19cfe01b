-- phase: expand
-- Costs that were never reported are estimates until they are corrected, for example with the provider's bill.

alter table penstock.cost_entries add column is_estimate boolean not null default false;

create table penstock.bill_lines (
  provider text not null check (provider ~ '^[a-z0-9][a-z0-9_.-]{0,99}$'),
  day date not null,
  item text not null check (length(item) <= 200),
  amount numeric not null check (amount > -1e12 and amount < 1e12),
  currency text not null check (currency ~ '^[A-Z]{3}$'),
  base_amount numeric not null,
  imported_at timestamptz not null,
  primary key (provider, day, item, currency)
);
alter table penstock.bill_lines enable row level security;
comment on table penstock.bill_lines is
  'What providers billed, from their usage exports, to compare it with the ledger of costs.';

-- A worker that sends a heartbeat every 60 seconds keeps its tasks with the default lease.
update penstock.settings set value = '150',
  comment = 'How long a lease lasts without a heartbeat. 150: one heartbeat of every 60 seconds may get lost.'
where name = 'lease_seconds' and value = '30';
