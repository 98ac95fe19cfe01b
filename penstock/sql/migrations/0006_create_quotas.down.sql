alter table penstock.jobs drop column budget cascade, drop column on_limit cascade;
alter table penstock.tenants drop column plan cascade;
drop table penstock.usage_sums, penstock.usage_events, penstock.holds, penstock.accounts, penstock.allowances,
  penstock.tenant_limits, penstock.plans, penstock.meters cascade;
drop type penstock.booking cascade;
