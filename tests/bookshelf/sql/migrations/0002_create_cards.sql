-- phase: expand
-- Synced: topics and their cards.
create table bookshelf.topics (
  user_id uuid not null default auth.uid(),
  id text not null constraint reserved_id check (id not like 'canon:%'),
  name text not null default '',
  updated_at bigint not null,
  deleted boolean not null default false,
  change_seq bigint not null,
  primary key (user_id, id)
);
alter table bookshelf.topics enable row level security;
create table bookshelf.cards (
  user_id uuid not null default auth.uid(),
  id text not null,
  topic_id text,
  body text,
  tags jsonb not null default '[]',
  updated_at bigint not null,
  deleted boolean not null default false,
  change_seq bigint not null,
  primary key (user_id, id),
  foreign key (user_id, topic_id) references bookshelf.topics on delete cascade
);
create index on bookshelf.cards (user_id, topic_id);
alter table bookshelf.cards enable row level security;
select penstock.make_synced('bookshelf.topics', 10);
select penstock.make_synced('bookshelf.cards', 20);
select penstock.cascade_deletes('bookshelf.topics', 'bookshelf.cards', 'topic_id');
