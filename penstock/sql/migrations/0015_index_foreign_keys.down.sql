drop index penstock.tenants_plan, penstock.profiles_tenant, penstock.tenant_limits_meter, penstock.allowances_meter, penstock.prices_meter;
