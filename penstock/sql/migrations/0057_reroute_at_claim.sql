-- phase: expand
-- Tasks with a route change their provider when they are claimed.

create table penstock.routed_lanes (
  lane_id integer primary key references penstock.lanes on delete cascade
);
comment on table penstock.routed_lanes is 'Lanes whose tasks may have a route to other providers.';
alter table penstock.routed_lanes enable row level security;
-- Lanes that have tasks with a route already.
insert into penstock.routed_lanes (lane_id)
select distinct t.lane_id from penstock.tasks t join penstock.jobs j on j.id = t.job_id
  join penstock.lanes l on l.id = t.lane_id
where t.route is not null and j.finished_at is null and l.is_gated and l.endpoint_id is not null;

create table penstock.route_failures (
  tenant_id uuid not null references penstock.tenants on delete cascade,
  endpoint_id integer not null references penstock.endpoints on delete cascade,
  failures integer not null check (failures > 0),
  failed_at timestamptz not null,
  primary key (tenant_id, endpoint_id)
);
create index route_failures_endpoint on penstock.route_failures (endpoint_id);
comment on table penstock.route_failures is
  'How many attempts of a tenant''s tasks with a route failed in a row at an endpoint.';
alter table penstock.route_failures enable row level security;
