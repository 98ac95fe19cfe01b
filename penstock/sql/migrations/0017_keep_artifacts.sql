-- phase: expand
-- Files that an app keeps beyond retention_days. keep_artifact checks the values.
alter table penstock.artifacts add column subject text, add column kept_until timestamptz;
comment on column penstock.artifacts.subject is
  'What the file belongs to, as noun:id, while an app keeps it; null: it is removed after retention_days.';
comment on column penstock.artifacts.kept_until is 'When the file stops being kept; null: never.';
