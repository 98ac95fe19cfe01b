drop table penstock.usage_keys, penstock.upkeep_runs;
