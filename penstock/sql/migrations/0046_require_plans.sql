-- phase: expand
-- Every tenant has a plan. The plan unlimited has no limits, and tenants without a plan get it: nothing changes for them.

-- An operator's own plan of this name keeps its limits and tenants under another name.
insert into penstock.plans (name, title, comment, limits, features, price, currency, weight, is_active, position)
select 'unlimited-own', title, comment, limits, features, price, currency, weight, is_active, position
from penstock.plans where name = 'unlimited';
update penstock.tenants set plan = 'unlimited-own' where plan = 'unlimited';
delete from penstock.plans where name = 'unlimited';

-- Not active: it is not for sale.
insert into penstock.plans (name, title, comment, is_active, position)
values ('unlimited', 'Unlimited', 'No limits. For the operator''s own tenants.', false, 1000);
update penstock.tenants set plan = 'unlimited' where plan is null;
alter table penstock.tenants alter column plan set not null;
comment on column penstock.tenants.plan is 'The plan unlimited has no limits.';
