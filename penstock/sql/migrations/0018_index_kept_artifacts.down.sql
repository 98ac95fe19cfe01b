drop index penstock.artifacts_expiring, penstock.artifacts_kept;
