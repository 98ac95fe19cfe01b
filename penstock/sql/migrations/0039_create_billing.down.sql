drop index penstock.tenants_plan_until;
drop table penstock.billing_syncs;
drop table penstock.subscriptions;
drop table penstock.billing_accounts;
drop table penstock.plan_prices;
