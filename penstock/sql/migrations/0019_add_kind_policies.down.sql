alter table penstock.schedules drop column starters;
alter table penstock.kinds drop column has_policy;
alter table penstock.kinds drop column providers, drop column units, drop column units_per_kb,
  drop column max_timeout_seconds, drop column attempts_limit, drop column min_priority, drop column starters,
  drop column raw_tasks;
