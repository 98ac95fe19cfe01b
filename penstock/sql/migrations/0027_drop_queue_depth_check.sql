-- phase: contract
-- The check of a queue's depth asks for the tenant now.

drop function if exists penstock._check_queue_depth(penstock.endpoints, bigint);
