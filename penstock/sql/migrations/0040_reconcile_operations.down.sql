drop index penstock.operations_reconcile;
alter table penstock.operations drop column reconcile_at, drop column replayed_at;
