alter table penstock.settings drop column changed_at cascade;
drop index penstock.allowances_open;
alter table penstock.allowances drop column settled_until, drop column used;
