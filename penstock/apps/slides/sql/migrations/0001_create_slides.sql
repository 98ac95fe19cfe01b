-- phase: expand
-- Events have sessions, sessions have speeches, speeches have slides. The tenant comes first in every key.

select penstock.set_meter('thumbnails', '{"period": "total", "comment": "thumbnails of slides"}');
select penstock.define_setting('slides.free_thumbnails', '5',
  'How many thumbnails a tenant gets without a purchase.');
select penstock.define_setting('slides.provider', '"cloudconvert/jobs"',
  'The provider of new conversions: cloudconvert/jobs, or libreoffice/local on the machine of the worker.');
-- Tenants on the plan free get them from the plan; other tenants get a limit of their own at their first event.
select penstock.set_plan(p.name, jsonb_build_object('limits', p.limits || '{"thumbnails": 5}'))
from penstock.plans p where p.name = 'free' and not p.limits ? 'thumbnails';

select penstock.set_provider('cloudconvert/jobs', '{"concurrency": 100, "hosts": ["api.cloudconvert.com"]}');
select penstock.set_provider('libreoffice/local', '{"concurrency": 4}');
select penstock.set_price('cloudconvert/jobs', 'thumbnails', 0.02,
  '{"per": 1, "cost_type": "conversion", "currency": "USD"}');

-- The API starts jobs before the first worker declares its kinds.
select penstock.define_kinds('[{"name": "thumbnail", "max_attempts": 3},
  {"name": "thumbnail_settle", "max_attempts": 10}, {"name": "thumbnail_select", "max_attempts": 10}]');
select penstock.define_job_type('thumbnail');
select penstock.define_job_type('thumbnails_retroactive');

create table slides.events (
  tenant_id uuid not null default penstock.my_tenant() references penstock.tenants (id) on delete cascade,
  id uuid not null default gen_random_uuid(),
  name text not null check (length(name) between 1 and 200),
  starts_on date,
  thumbnail_generation_enabled boolean not null default false,
  toggles integer not null default 0,
  created_at timestamptz not null default penstock.clock(),
  updated_at timestamptz not null default penstock.clock(),
  primary key (tenant_id, id)
);
create index events_id on slides.events (id);
create index events_enabled on slides.events (tenant_id, id) where thumbnail_generation_enabled;
comment on column slides.events.toggles is 'How often the generation was switched on: the retroactive job of each time has a key of its own.';
alter table slides.events enable row level security;

create table slides.sessions (
  tenant_id uuid not null default penstock.my_tenant(),
  id uuid not null default gen_random_uuid(),
  event_id uuid not null,
  title text not null check (length(title) between 1 and 200),
  created_at timestamptz not null default penstock.clock(),
  primary key (tenant_id, id),
  foreign key (tenant_id, event_id) references slides.events (tenant_id, id) on delete cascade
);
create index sessions_event on slides.sessions (tenant_id, event_id);
alter table slides.sessions enable row level security;

create table slides.speeches (
  tenant_id uuid not null default penstock.my_tenant(),
  id uuid not null default gen_random_uuid(),
  session_id uuid not null,
  title text not null check (length(title) between 1 and 200),
  created_at timestamptz not null default penstock.clock(),
  primary key (tenant_id, id),
  foreign key (tenant_id, session_id) references slides.sessions (tenant_id, id) on delete cascade
);
create index speeches_id on slides.speeches (id);
create index speeches_session on slides.speeches (tenant_id, session_id);
alter table slides.speeches enable row level security;

create table slides.slides (
  tenant_id uuid not null,
  id uuid not null default gen_random_uuid(),
  speech_id uuid not null,
  event_id uuid not null,
  name text not null default '' check (length(name) <= 200),
  r2_key text not null check (length(r2_key) between 1 and 1000),
  mime_type text not null check (mime_type in ('application/pdf', 'image/jpeg', 'image/png',
    'application/vnd.ms-powerpoint', 'application/vnd.openxmlformats-officedocument.presentationml.presentation')),
  artifact_id uuid,
  thumbnail_status text not null default 'none'
    check (thumbnail_status in ('none', 'pending', 'processing', 'completed', 'failed')),
  thumbnail_r2_key text,
  thumbnail_artifact_id uuid,
  thumbnail_generated_at timestamptz,
  thumbnail_error text,
  job_id uuid,
  created_at timestamptz not null default penstock.clock(),
  updated_at timestamptz not null default penstock.clock(),
  primary key (tenant_id, id),
  foreign key (tenant_id, speech_id) references slides.speeches (tenant_id, id) on delete cascade,
  foreign key (tenant_id, event_id) references slides.events (tenant_id, id) on delete cascade,
  constraint key_only_when_completed check ((thumbnail_status = 'completed') = (thumbnail_r2_key is not null)),
  constraint time_only_when_completed check ((thumbnail_status = 'completed') = (thumbnail_generated_at is not null))
);
create index slides_id on slides.slides (id);
create index slides_speech on slides.slides (tenant_id, speech_id);
create index slides_event on slides.slides (tenant_id, event_id, thumbnail_status);
create index slides_none on slides.slides (tenant_id, event_id, id) where thumbnail_status = 'none';
create index slides_status on slides.slides (tenant_id, thumbnail_status);
create index slides_unsettled on slides.slides (updated_at) where thumbnail_status in ('pending', 'processing');
create unique index slides_artifact on slides.slides (tenant_id, artifact_id) where artifact_id is not null;
comment on column slides.slides.event_id is 'The event of the speech, copied here for the retroactive selection.';
comment on column slides.slides.job_id is 'The job that makes the thumbnail. Reports of any other job change nothing.';
alter table slides.slides enable row level security;

create table slides.reservations (
  tenant_id uuid not null references penstock.tenants (id) on delete cascade,
  id bigint generated always as identity,
  key text check (length(key) between 1 and 200),
  created_at timestamptz not null,
  returned_at timestamptz,
  primary key (tenant_id, id)
);
create unique index reservations_key on slides.reservations (tenant_id, key) where key is not null;
create index reservations_open on slides.reservations (tenant_id, id) where key is null and returned_at is null;
comment on table slides.reservations is 'Quota that check_and_increment_thumbnail_quota counted. Each can be given back once.';
alter table slides.reservations enable row level security;
