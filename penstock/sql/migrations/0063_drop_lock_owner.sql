-- phase: contract
-- Public now, for the functions of apps: penstock.lock_owner.

drop function if exists penstock._lock_owner(uuid);
