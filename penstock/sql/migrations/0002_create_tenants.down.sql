drop table penstock.audit_log, penstock.settings, penstock.members, penstock.profiles, penstock.tenants cascade;
