-- phase: contract
-- Internal functions that have a new name. Calls that were running during the upgrade may still have used them.

drop function if exists
  penstock._forecast(uuid, jsonb),
  penstock._forecast_waiting_rows(uuid, integer),
  penstock._simulate_finish(uuid, jsonb),
  penstock._pace_of(text, text),
  penstock._bury(penstock.leases[], text[], text[], text[]),
  penstock._apply_told_limits(penstock.endpoints, penstock.endpoint_states, bigint, bigint),
  penstock._forget_told_limits();
