alter table penstock.tenants alter column plan drop not null;
update penstock.tenants set plan = null where plan = 'unlimited';
delete from penstock.plans where name = 'unlimited';
