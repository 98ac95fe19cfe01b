-- phase: expand
-- Where uploads came from. Personal data: kept only if the setting asks for it, and for 30 days.
create table intake.upload_addresses (
  tenant_id uuid not null,
  shell_file_id uuid not null,
  user_agent text check (length(user_agent) <= 500),
  ip_address inet,
  created_at timestamptz not null default penstock.clock(),
  primary key (tenant_id, shell_file_id),
  foreign key (tenant_id, shell_file_id) references intake.shell_files (tenant_id, id) on delete cascade
);
alter table intake.upload_addresses enable row level security;
create index upload_addresses_created on intake.upload_addresses (created_at);

select penstock.define_setting('intake.heartbeat_interval_seconds', '30',
  'How often a worker of claim_next_job_v3 should send a heartbeat, in seconds.');
select penstock.define_setting('intake.backpressure_delay_seconds', '30',
  'How long jobs of enqueue_job_v3 are delayed while their provider is under pressure and has no delay of its own.');
select penstock.define_setting('intake.queue_provider', '"openai/gpt-4o-mini"',
  'The provider whose pressure delays the AI jobs of enqueue_job_v3.');
select penstock.define_setting('intake.keep_addresses', 'false',
  'Whether address and user agent of each upload are kept, for 30 days.');

-- Features of the plans that Penstock comes with. Other features and other plans stay as they are.
select penstock.set_plan(p.name, jsonb_build_object('features', array(
  select distinct f from unnest(p.features || w.features) as f order by f)))
from penstock.plans p join (values ('basic', array['api_access']),
  ('premium', array['advanced_ai', 'api_access', 'priority_processing']),
  ('enterprise', array['advanced_ai', 'api_access', 'priority_processing'])) as w(name, features)
  on w.name = p.name;
