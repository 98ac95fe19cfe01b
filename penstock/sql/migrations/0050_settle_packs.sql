-- phase: expand
-- A pack that a tenant bought is used up once: what a month used beyond its limit is taken from it once.
alter table penstock.allowances
  add column used numeric not null default 0 check (used >= 0),
  add column settled_until date not null default 'epoch';
comment on column penstock.allowances.used is
  'How much of a purchase ended periods have used up. The current period is not included.';
comment on column penstock.allowances.settled_until is
  'Periods of the meter before this day are included in used.';
-- What was bought before renewed itself every period until now: it is used up from now on.
update penstock.allowances a
set settled_until = case m.period when 'day' then (now() at time zone 'utc')::date
  when 'month' then date_trunc('month', now() at time zone 'utc')::date else 'epoch' end
from penstock.meters m where m.name = a.meter and a.source = 'purchase';
create index allowances_open on penstock.allowances (settled_until) where source = 'purchase' and used < amount;

alter table penstock.settings add column changed_at timestamptz;
comment on column penstock.settings.changed_at is 'When an operator last changed it; null: never.';
