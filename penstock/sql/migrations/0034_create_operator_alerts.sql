-- phase: expand
-- What an operator should look at. One row per kind, subject and day, so that a storm stays one row.
create table penstock.operator_alerts (
  kind text not null check (kind in ('provider_closed', 'key_created', 'quota_refusals', 'failed_logins')),
  subject text not null check (length(subject) between 1 and 400),
  day date not null,
  tenant_id uuid,
  count bigint not null check (count > 0),
  logged bigint not null default 0,
  first_at timestamptz not null,
  last_at timestamptz not null,
  details jsonb not null default '{}',
  primary key (kind, subject, day)
);
create index operator_alerts_day on penstock.operator_alerts (day, last_at);
comment on table penstock.operator_alerts is
  'Alerts to the operator: closed providers, new keys, storms of refusals and of failed logins. Kept for 30 days.';
comment on column penstock.operator_alerts.logged is 'How many of them take_alerts has returned, for the log.';
alter table penstock.operator_alerts enable row level security;
