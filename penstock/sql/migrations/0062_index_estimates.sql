-- phase: expand
-- no transaction
-- The ledger may be large: claims and completions go on meanwhile.

create index concurrently if not exists cost_entries_estimates
  on penstock.cost_entries (provider, at) where is_estimate;
