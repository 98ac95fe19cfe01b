-- phase: expand
-- Users who sign in with an OpenID Connect issuer.

create table penstock.identities (
  issuer text not null check (length(issuer) between 1 and 500),
  subject text not null check (length(subject) between 1 and 255),
  user_id uuid not null,
  created_at timestamptz not null,
  primary key (issuer, subject)
);
create index identities_user on penstock.identities (user_id);
comment on table penstock.identities is 'The user of each subject of an OpenID Connect issuer.';
alter table penstock.identities enable row level security;
