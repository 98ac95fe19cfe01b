alter table penstock.upkeep_runs drop column leader_id, drop column led_until;
