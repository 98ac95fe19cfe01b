alter table penstock.tenants drop column plan_since, drop column plan_until, drop column plan_after;
drop table penstock.gates;
