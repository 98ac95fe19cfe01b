-- phase: contract
-- Replaced by _charge_costs.

drop function if exists penstock._price_attempts(penstock.leases[], jsonb[], text, timestamptz);
