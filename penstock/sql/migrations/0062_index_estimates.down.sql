drop index if exists penstock.cost_entries_estimates;
