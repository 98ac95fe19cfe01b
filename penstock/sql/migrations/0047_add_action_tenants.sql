-- phase: expand
-- Tenants take turns with their actions, then the users of a tenant.
alter table penstock.actions add column tenant_id uuid;
comment on column penstock.actions.tenant_id is 'The tenant whose turn the action takes: that of its first subject; null: the service.';
