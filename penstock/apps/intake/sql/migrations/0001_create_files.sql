-- phase: expand
-- Patients, the files about them, and the results of each file. Keys begin with the tenant.
create table intake.patients (
  tenant_id uuid not null,
  id uuid not null default gen_random_uuid(),
  name text check (length(name) <= 200),
  is_self boolean not null default false,
  consented_at timestamptz,
  created_at timestamptz not null default penstock.clock(),
  primary key (tenant_id, id)
);
alter table intake.patients enable row level security;

create table intake.shell_files (
  tenant_id uuid not null,
  id uuid not null default gen_random_uuid(),
  patient_id uuid not null,
  artifact_id uuid,
  idempotency_key text check (length(idempotency_key) between 1 and 200),
  name text not null check (length(name) between 1 and 200),
  mime_type text not null,
  file_size_bytes bigint not null check (file_size_bytes >= 0),
  estimated_pages integer not null default 1 check (estimated_pages between 1 and 500),
  pages integer check (pages >= 0),
  status text not null default 'uploading'
    check (status in ('uploading', 'uploaded', 'processing', 'completed', 'failed', 'rejected')),
  job_id uuid,
  processing_error jsonb,
  warnings jsonb not null default '[]',
  files_hold_id uuid,
  pages_hold_id uuid,
  uploaded_by uuid,
  created_at timestamptz not null default penstock.clock(),
  uploaded_at timestamptz,
  completed_at timestamptz,
  primary key (tenant_id, id),
  foreign key (tenant_id, patient_id) references intake.patients (tenant_id, id)
);
alter table intake.shell_files enable row level security;
create unique index shell_files_idempotency_key on intake.shell_files (tenant_id, idempotency_key)
  where idempotency_key is not null;
create index shell_files_artifact on intake.shell_files (artifact_id) where artifact_id is not null;
create index shell_files_patient on intake.shell_files (tenant_id, patient_id, created_at);
create index shell_files_created on intake.shell_files (tenant_id, created_at);
-- For the sweeper: files that are not done.
create index shell_files_open on intake.shell_files (created_at)
  where status in ('uploading', 'uploaded', 'processing');
create index shell_files_failed on intake.shell_files (completed_at) where status = 'failed';

-- For adopt_processing_errors.
create index shell_files_legacy_error on intake.shell_files (tenant_id, id)
  where jsonb_typeof(processing_error) = 'string';

create table intake.shell_file_results (
  tenant_id uuid not null,
  shell_file_id uuid not null,
  pass text not null check (pass in ('ocr', 'spatial', 'pass1', 'pass2', 'pass3')),
  patient_id uuid not null,
  artifact_id uuid,
  summary jsonb not null default '{}',
  model text,
  prompt_name text,
  prompt_version integer,
  job_id uuid,
  created_at timestamptz not null default penstock.clock(),
  primary key (tenant_id, shell_file_id, pass),
  foreign key (tenant_id, shell_file_id) references intake.shell_files (tenant_id, id) on delete cascade,
  foreign key (tenant_id, patient_id) references intake.patients (tenant_id, id)
);
alter table intake.shell_file_results enable row level security;
create index shell_file_results_patient on intake.shell_file_results (tenant_id, patient_id);

select penstock.define_setting('intake.refuse_uploads', 'false',
  'Whether new uploads are refused with 503, for example during maintenance.');
select penstock.define_setting('intake.usage_tracking_enabled', 'true',
  'Whether uploads and pages count against the quotas of their tenant.');
