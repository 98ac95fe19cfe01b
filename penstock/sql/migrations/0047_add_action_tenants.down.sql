alter table penstock.actions drop column tenant_id;
