-- phase: contract
-- Replaced by _ranked_providers, _route_options and _reroute with arguments.

drop function if exists penstock._best_provider(jsonb, uuid, jsonb);
drop function if exists penstock._route_candidates(jsonb, uuid, jsonb);
drop function if exists penstock._reroute();
