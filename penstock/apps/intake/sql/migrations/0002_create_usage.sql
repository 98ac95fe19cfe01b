-- phase: expand
-- Warnings that were sent at 80 and 100 % of a limit: one per tenant, meter, period and percentage.
create table intake.usage_warnings (
  tenant_id uuid not null,
  meter text not null,
  period date not null,
  percent integer not null check (percent in (80, 100)),
  sent_at timestamptz not null default penstock.clock(),
  primary key (tenant_id, period, meter, percent)
);
alter table intake.usage_warnings enable row level security;
create index shell_files_files_hold on intake.shell_files (files_hold_id) where files_hold_id is not null;
create index shell_files_pages_hold on intake.shell_files (pages_hold_id) where pages_hold_id is not null;

select penstock.define_setting('intake.upgrade_prompts_enabled', 'false',
  'Whether a tenant over a limit is told to upgrade.');
select penstock.define_setting('intake.billing_enabled', 'true',
  'Whether limits of files, pages, tokens and bytes are enforced; otherwise passing one is only recorded.');
select penstock.define_setting('intake.timeout_seconds', '300',
  'How long a worker of claim_next_job_v3 keeps a job without a heartbeat, in seconds.');
select penstock.define_setting('intake.consent_required', 'false',
  'Whether a document goes to a model only after its patient has consented.');
