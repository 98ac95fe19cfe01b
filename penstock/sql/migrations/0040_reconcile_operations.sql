-- phase: expand
-- Operations that ended here without the provider's word are asked, or canceled, at the provider.
alter table penstock.operations add column reconcile_at timestamptz, add column replayed_at timestamptz;
comment on column penstock.operations.reconcile_at is
  'When to ask the provider about an operation that timed out, or to cancel it there. On a live operation: its task may have ended.';
comment on column penstock.operations.replayed_at is
  'When a late hint replayed the dead letter of its task: that happens once.';
create index operations_reconcile on penstock.operations (reconcile_at) where reconcile_at is not null;
