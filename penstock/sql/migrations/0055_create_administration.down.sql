drop table penstock.cost_snapshots, penstock.fixed_costs cascade;
drop policy if exists admins_read on penstock.audit_log;
alter table penstock.profiles drop column role cascade;
