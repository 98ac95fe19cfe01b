-- The previous version creates its functions again. The example providers stay.
drop type penstock.provider_choice, penstock.window_fit, penstock.capacity, penstock.claim_need,
  penstock.claim_limit, penstock.claim_candidate, penstock.claim_pick, penstock.reservation cascade;
do $$
begin
  if to_regprocedure('penstock._current_pace(double precision, timestamptz, timestamptz)') is not null then
    alter function penstock._current_pace(double precision, timestamptz, timestamptz) rename to _pace;
  end if;
end
$$;
drop function if exists
  penstock._lanes_of_tenant(uuid),
  penstock._swap_in_best_priority(tid[]),
  penstock._check_claim(text, integer, integer),
  penstock._pick_open(text[], integer, uuid[], timestamptz),
  penstock._park_stopped(tid[]),
  penstock._claimed_task(penstock.leases),
  penstock._to_ready(penstock.parked),
  penstock._to_ready(penstock.leases, integer, integer),
  penstock._to_parked(penstock.ready, timestamptz, text, text),
  penstock._check_queue_depth(penstock.endpoints, bigint),
  penstock._is_under_pressure(penstock.endpoints, timestamptz),
  penstock._park(tid[], text, text, timestamptz),
  penstock._route_candidates(jsonb, uuid, jsonb),
  penstock._is_route(jsonb),
  penstock._has_quota_or_budget(tid[]),
  penstock._check_batch(bigint[], bigint[], integer),
  penstock._settle_batch(text, text, bigint[], bigint[], penstock.leases[], jsonb[], integer),
  penstock._batch_without(bigint[], bigint[], penstock.leases[]),
  penstock._not_begun(),
  penstock._release_bookings(penstock.holds),
  penstock._wake_fitting(uuid[], integer),
  penstock._limits_waited_for(uuid[]),
  penstock._parked_that_fit(uuid, text, uuid, integer),
  penstock._some_waiting_tenants(),
  penstock._call_size(jsonb, bigint),
  penstock._free_concurrency(penstock.endpoints, timestamptz),
  penstock._count_calls(penstock.endpoints, timestamptz, bigint, bigint),
  penstock._can_count_calls(integer, timestamptz),
  penstock._uncount_calls(penstock.leases[]),
  penstock._close_exhausted(penstock.endpoints, penstock.endpoint_states, jsonb),
  penstock._slow_down(penstock.endpoints, penstock.endpoint_states, jsonb, integer, double precision),
  penstock._apply_told_limits(penstock.endpoints, penstock.endpoint_states, bigint, bigint),
  penstock._count_foreign_calls(penstock.endpoints, bigint, bigint);
