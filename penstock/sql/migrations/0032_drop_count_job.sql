-- phase: contract
-- Replaced by _count_start.

drop function if exists penstock._count_job(penstock.jobs);
