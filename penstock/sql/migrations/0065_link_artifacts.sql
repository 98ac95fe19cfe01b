-- phase: expand
-- Links of files that are written into sheets; type and metadata of files.
alter table penstock.artifacts
  add column link text check (link in ('public', 'signed', 'login')),
  add column link_until timestamptz,
  add column type text check (type ~ '^[a-z0-9][a-z0-9_]{0,62}$'),
  add column metadata jsonb not null default '{}' check (jsonb_typeof(metadata) = 'object');
comment on column penstock.artifacts.link is
  'Who may open the link of the file: anybody who has it (public), the same until link_until (signed), or members who '
  'are signed in (login); null: it has no link.';
comment on column penstock.artifacts.link_until is 'When a signed link ends.';
comment on column penstock.artifacts.type is 'What the file is, such as audio_mp3; from its content type if the task does not say.';
comment on column penstock.artifacts.metadata is 'What the task says about the file, such as {"pages": 3, "duration": 180.5} (seconds).';

create table penstock.link_secrets (
  id boolean primary key default true check (id),
  secret bytea not null check (octet_length(secret) = 32)
);
comment on table penstock.link_secrets is 'The secret that the tokens of links are derived from. Only functions read it.';
insert into penstock.link_secrets (secret)
values (sha256(uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid())));
alter table penstock.link_secrets enable row level security;
