-- phase: expand
-- Webhooks in: one inbox for all sources. The row is the idempotency of a delivery and stays for ever.

create table penstock.webhooks (
  source text not null check (source ~ '^[a-z][a-z0-9_-]{0,62}$'),
  key text not null check (length(key) between 1 and 255),
  type text not null check (length(type) between 1 and 200),
  tenant_id uuid,
  payload jsonb not null,
  received_at timestamptz not null,
  last_received_at timestamptz not null,
  deliveries integer not null default 1,
  attempts integer not null default 0,
  processed_at timestamptz,
  next_try_at timestamptz,
  outcome text check (outcome in ('applied', 'stale', 'ignored', 'unmatched', 'failed')),
  error text check (length(error) <= 2000),
  primary key (source, key)
);
create index webhooks_type on penstock.webhooks (source, type, received_at desc);
create index webhooks_received on penstock.webhooks (received_at desc);
create index webhooks_open on penstock.webhooks (next_try_at) where processed_at is null;
comment on table penstock.webhooks is 'Webhooks that other systems sent, with what became of them. For the service only.';
comment on column penstock.webhooks.key is 'The id of the event at its source, or what identifies it where the source has none.';
comment on column penstock.webhooks.processed_at is 'When a handler settled it; null while it waits for another try.';
comment on column penstock.webhooks.next_try_at is 'When it is tried again; null: only by hand.';

alter table penstock.webhooks enable row level security;
