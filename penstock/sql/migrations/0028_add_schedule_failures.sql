-- phase: expand
-- Schedules that fail back off and are turned off. Names have no control characters.

alter table penstock.schedules
  add column failures integer not null default 0 check (failures >= 0),
  add column last_error text,
  add column retry_at timestamptz;
comment on column penstock.schedules.failures is 'How often starting its job failed since it last succeeded.';
comment on column penstock.schedules.last_error is 'Why it failed last.';
comment on column penstock.schedules.retry_at is 'A failed run is not tried again before this.';
-- Users write this column themselves. Earlier values stay until they are changed.
alter table penstock.profiles add constraint profiles_display_name_clean
  check (display_name !~ '[\u0001-\u001f\u007f-\u009f\u2028-\u202e\u2066-\u2069]') not valid;
