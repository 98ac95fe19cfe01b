-- phase: expand
-- Sessions of the dashboard, which live on the server.

create table penstock.sessions (
  id uuid primary key,
  digest bytea not null unique check (length(digest) = 32),
  role text not null check (role in ('authenticated', 'service_role')),
  subject uuid,
  key_id uuid references penstock.api_keys (id) on delete cascade,
  user_agent text check (length(user_agent) <= 200),
  created_at timestamptz not null,
  last_seen_at timestamptz not null,
  expires_at timestamptz not null,
  check (role = 'service_role' or subject is not null)
);
create index sessions_subject on penstock.sessions (subject, created_at);
create index sessions_key on penstock.sessions (key_id);
create index sessions_expires on penstock.sessions (expires_at);
comment on table penstock.sessions is 'Sessions of the dashboard. A session that was ended has no row.';
comment on column penstock.sessions.digest is 'SHA-256 of the token in the browser''s cookie, which is random.';
comment on column penstock.sessions.subject is
  'The user or API key that signed in; null for the holder of a service token.';
alter table penstock.sessions enable row level security;
