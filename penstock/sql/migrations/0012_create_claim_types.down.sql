-- The example providers stay: they may be in use.
drop type penstock.provider_choice, penstock.window_fit, penstock.capacity, penstock.claim_need,
  penstock.claim_limit, penstock.claim_candidate, penstock.claim_pick, penstock.reservation cascade;
