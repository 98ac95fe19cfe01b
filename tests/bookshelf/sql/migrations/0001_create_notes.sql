-- phase: expand
create table bookshelf.notes (
  user_id uuid not null default auth.uid(),
  id uuid not null default gen_random_uuid(),
  title text not null default 'untitled' check (length(title) <= 200),
  tags text[] not null default '{}',
  data jsonb,
  score numeric,
  short varchar(5),
  "odd ""name%" text,
  updated_at timestamptz not null default penstock.clock(),
  change_seq bigint not null default 0,
  primary key (user_id, id)
);
alter table bookshelf.notes enable row level security;
create table bookshelf.loans (
  tenant_id uuid not null default penstock.my_tenant(),
  id bigint generated always as identity,
  book text not null,
  status text not null default 'out',
  secret text,
  primary key (tenant_id, id),
  unique (tenant_id, book)
);
alter table bookshelf.loans enable row level security;
-- Not in the app's list: read-only for clients, though users may insert.
create table bookshelf.visits (tenant_id uuid not null, at timestamptz not null default penstock.clock(),
  primary key (tenant_id, at));
alter table bookshelf.visits enable row level security;
-- The same name as a table of Penstock.
create table bookshelf.jobs (tenant_id uuid not null, name text not null, primary key (tenant_id, name));
alter table bookshelf.jobs enable row level security;
