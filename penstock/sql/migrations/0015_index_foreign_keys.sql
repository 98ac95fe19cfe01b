-- phase: expand
-- Without these PostgreSQL reads the whole table when the row that it refers to is deleted. The tables are small, so that
-- the indexes are built in a moment.
create index tenants_plan on penstock.tenants (plan);
create index profiles_tenant on penstock.profiles (tenant_id);
create index tenant_limits_meter on penstock.tenant_limits (meter);
create index allowances_meter on penstock.allowances (meter);
create index prices_meter on penstock.prices (meter);
