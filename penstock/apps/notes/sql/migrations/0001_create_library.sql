-- phase: expand
-- The library of a user on many devices. The owner comes first in every key. Times of devices are Unix
-- milliseconds. `text` may be ciphertext (enc:v1:…), which the server cannot read.

select penstock.set_meter('managed_ai', '{"period": "month", "comment": "calls of the managed model"}');
select penstock.set_meter('custom_ideas', '{"period": "total", "comment": "ideas that a user added"}');
select penstock.set_meter('devices', '{"period": "total", "comment": "enrolled devices"}');
select penstock.set_meter('image_bytes', '{"period": "total", "comment": "bytes of images of notes"}');
select penstock.set_plan(p.name, jsonb_build_object('limits', p.limits
  || '{"managed_ai": 50, "custom_ideas": 10, "devices": 2, "image_bytes": 104857600}'))
from penstock.plans p where p.name = 'free' and not p.limits ? 'managed_ai';
select penstock.set_plan('pro', jsonb_build_object(
  'title', coalesce((select p.title from penstock.plans p where p.name = 'pro'), 'Pro'),
  'limits', coalesce((select p.limits from penstock.plans p where p.name = 'pro'), '{}')
    || '{"managed_ai": 1000, "custom_ideas": null, "devices": null, "image_bytes": 10737418240}',
  'features', (select coalesce(jsonb_agg(distinct f.name), '[]') from (
    select unnest(p.features) as name from penstock.plans p where p.name = 'pro'
    union select unnest(array['re_discover_ideas', 'import_readwise', 'import_kindle', 'export_json'])) as f)));
select penstock.set_gate(g.name, g.values) from (values
  ('re_discover_ideas', '{"feature": "re_discover_ideas", "comment": "notes: discover ideas of a note again"}'::jsonb),
  ('import_readwise', '{"feature": "import_readwise", "comment": "notes: import highlights of Readwise"}'),
  ('import_kindle', '{"feature": "import_kindle", "comment": "notes: import highlights of Kindle"}'),
  ('export_json', '{"feature": "export_json", "comment": "notes: export the library"}'),
  ('custom_ideas_limit', '{"meter": "custom_ideas", "comment": "notes: ideas that a user added"}'),
  ('max_devices', '{"meter": "devices", "comment": "notes: enrolled devices"}'),
  ('image_storage_bytes', '{"meter": "image_bytes", "comment": "notes: bytes of images"}')) as g(name, values)
where not exists (select from penstock.gates x where x.name = g.name);

select penstock.define_setting('notes.model', '"claude-haiku-4-5"', 'The Anthropic model of managed calls.');
select penstock.define_setting('notes.transfer_max_age_ms', '600000',
  'How old the key blob of a device transfer may be when another device redeems it.');
select penstock.define_setting('notes.sign_in_max_age_ms', '3600000',
  'How long ago a user may have signed in to store a key blob.');
select penstock.define_setting('notes.image_days', '30',
  'How many days after its note was deleted an image is deleted.');
select penstock.set_provider('anthropic/claude-haiku-4-5', '{"hosts": ["api.anthropic.com"]}');
select penstock.set_price('anthropic/claude-haiku-4-5', x.meter, x.amount,
  '{"per": 1000000, "cost_type": "ai", "currency": "USD"}')
from (values ('input_tokens', 1.0), ('output_tokens', 5.0)) as x(meter, amount)
where not exists (select from penstock.prices p
  where p.provider = 'anthropic/claude-haiku-4-5' and p.meter = x.meter);
-- The API starts bulk jobs before the first worker declares its kinds.
select penstock.define_kinds('[{"name": "discover", "max_attempts": 3}]');

create table notes.books (
  user_id uuid not null default auth.uid() references penstock.profiles (user_id) on delete cascade,
  id text not null constraint id_without_colon check (id !~ ':' and length(id) between 1 and 100),
  title text not null default '' check (length(title) <= 10000),
  author text check (length(author) <= 10000),
  isbn text check (length(isbn) <= 100),
  cover_url text check (length(cover_url) <= 2000),
  cover_source text check (length(cover_source) <= 100),
  cover_resolved_at bigint,
  created_at bigint not null,
  updated_at bigint not null,
  deleted boolean not null default false,
  change_seq bigint not null,
  primary key (user_id, id)
);
comment on table notes.books is 'Books of a user. Synced.';

create table notes.notes (
  user_id uuid not null default auth.uid() references penstock.profiles (user_id) on delete cascade,
  id text not null constraint id_without_colon check (id !~ ':' and length(id) between 1 and 100),
  book_id text,
  text text not null default '' check (length(text) <= 500000),
  page text check (length(page) <= 200),
  chapter text check (length(chapter) <= 1000),
  tags jsonb not null default '[]' constraint tags_are_texts check (jsonb_typeof(tags) = 'array'
    and not jsonb_path_exists(tags, '$[*] ? (@.type() != "string")') and jsonb_array_length(tags) <= 200),
  image_path text check (length(image_path) <= 1000),
  source text check (length(source) <= 200),
  source_id text check (length(source_id) <= 1000),
  source_meta jsonb,
  created_at bigint not null,
  updated_at bigint not null,
  deleted boolean not null default false,
  change_seq bigint not null,
  primary key (user_id, id)
);
-- Not unique: several devices may import the same highlight.
create index notes_source_id_idx on notes.notes (user_id, source_id);
create index notes_book on notes.notes (user_id, book_id);
create index notes_tags on notes.notes using gin (tags);
create index notes_orphans on notes.notes (user_id, source, id) where tags = '[]' and not deleted;
create index notes_deleted_images on notes.notes (updated_at) where deleted and image_path is not null;
comment on table notes.notes is 'Notes of a user. text may be ciphertext. Synced.';

create table notes.custom_ideas (
  user_id uuid not null default auth.uid() references penstock.profiles (user_id) on delete cascade,
  id text not null constraint id_without_colon check (id !~ ':' and length(id) between 1 and 100),
  name text not null check (length(name) between 1 and 200),
  description text check (length(description) <= 10000),
  created_at bigint not null,
  updated_at bigint not null,
  deleted boolean not null default false,
  change_seq bigint not null,
  primary key (user_id, id)
);
comment on table notes.custom_ideas is 'Ideas that a user added to the canon. Synced.';

create table notes.note_links (
  user_id uuid not null default auth.uid() references penstock.profiles (user_id) on delete cascade,
  id text not null constraint id_without_colon check (id !~ ':' and length(id) between 1 and 100),
  from_note_id text not null,
  to_note_id text not null,
  relation_type text not null check (length(relation_type) between 1 and 100),
  created_at bigint not null,
  updated_at bigint not null,
  deleted boolean not null default false,
  change_seq bigint not null,
  primary key (user_id, id),
  foreign key (user_id, from_note_id) references notes.notes (user_id, id) on delete cascade,
  foreign key (user_id, to_note_id) references notes.notes (user_id, id) on delete cascade
);
create index note_links_from on notes.note_links (user_id, from_note_id);
create index note_links_to on notes.note_links (user_id, to_note_id);
comment on table notes.note_links is 'Links between notes: the only edges of the graph. Synced.';

create table notes.lenses (
  user_id uuid not null default auth.uid() references penstock.profiles (user_id) on delete cascade,
  id text not null constraint reserved_id check (id not like 'canon:%')
    constraint id_without_colon check (id !~ ':' or id like 'canon:%'),
  name text not null check (length(name) between 1 and 200),
  leaf_ids text[] not null default '{}' check (cardinality(leaf_ids) <= 100),
  combinator text not null default 'AND' check (combinator = 'AND'),
  created_at bigint not null,
  updated_at bigint not null,
  deleted boolean not null default false,
  change_seq bigint not null,
  primary key (user_id, id)
);
comment on table notes.lenses is 'Saved intersections of ideas: the definition only, resolved by lens_notes. Synced.';

create table notes.collections (
  user_id uuid not null default auth.uid() references penstock.profiles (user_id) on delete cascade,
  id text not null constraint id_without_colon check (id !~ ':' and length(id) between 1 and 100),
  name text not null check (length(name) between 1 and 200),
  created_at bigint not null,
  updated_at bigint not null,
  deleted boolean not null default false,
  change_seq bigint not null,
  primary key (user_id, id)
);
comment on table notes.collections is 'Groups of notes that a user made by hand. Synced.';

create table notes.collection_memberships (
  user_id uuid not null default auth.uid() references penstock.profiles (user_id) on delete cascade,
  id text not null,
  note_id text not null,
  collection_id text not null,
  created_at bigint not null,
  updated_at bigint not null,
  deleted boolean not null default false,
  change_seq bigint not null,
  primary key (user_id, id),
  constraint membership_id check (id = collection_id || ':' || note_id),
  foreign key (user_id, note_id) references notes.notes (user_id, id) on delete cascade,
  foreign key (user_id, collection_id) references notes.collections (user_id, id) on delete cascade
);
create index collection_memberships_note on notes.collection_memberships (user_id, note_id);
create index collection_memberships_collection on notes.collection_memberships (user_id, collection_id);
comment on table notes.collection_memberships is
  'Which notes are in a collection; the id follows from both, so that adding twice gives one row. Synced.';

select penstock.make_synced(t.name, t.position) from (values ('notes.books'::regclass, 1), ('notes.notes', 2),
  ('notes.custom_ideas', 3), ('notes.note_links', 4), ('notes.lenses', 5), ('notes.collections', 6),
  ('notes.collection_memberships', 7)) as t(name, position);
select penstock.cascade_deletes(c.parent, c.child, c.col) from (values
  ('notes.books'::regclass, 'notes.notes'::regclass, 'book_id'),
  ('notes.notes', 'notes.note_links', 'from_note_id'), ('notes.notes', 'notes.note_links', 'to_note_id'),
  ('notes.notes', 'notes.collection_memberships', 'note_id'),
  ('notes.collections', 'notes.collection_memberships', 'collection_id')) as c(parent, child, col);

create table notes.wrapped_key_blobs (
  user_id uuid not null default auth.uid() references penstock.profiles (user_id) on delete cascade,
  id uuid not null default gen_random_uuid(),
  type text not null check (type in ('prf-v1', 'transfer-v1', 'pin-v1')),
  blob text not null check (length(blob) between 1 and 65536),
  is_active boolean not null default true,
  device_label text not null default '' check (length(device_label) <= 200),
  created_at bigint not null default (extract(epoch from penstock.clock()) * 1000)::bigint,
  primary key (user_id, id)
);
create index wrapped_key_blobs_type on notes.wrapped_key_blobs (user_id, type, created_at desc) where is_active;
comment on table notes.wrapped_key_blobs is
  'The master key of a user, encrypted for each device. The server cannot open it.';

create table notes.profile_bios (
  user_id uuid primary key references penstock.profiles (user_id) on delete cascade,
  profile_bio text check (length(profile_bio) <= 10000)
);
comment on table notes.profile_bios is 'What users say about themselves: a column of user_profiles.';

create table notes.images (
  user_id uuid not null references penstock.profiles (user_id) on delete cascade,
  note_id text not null,
  artifact_id uuid not null,
  path text not null,
  bytes bigint not null check (bytes > 0),
  primary key (user_id, artifact_id)
);
create unique index images_artifact on notes.images (artifact_id);
create index images_note on notes.images (user_id, note_id);
comment on table notes.images is 'Stored images of notes. Their bytes are counted as image_bytes.';

create table notes.waitlist_requests (
  id uuid primary key default gen_random_uuid(),
  email text not null check (length(email) between 3 and 320),
  name text check (length(name) <= 200),
  status text not null default 'pending' check (status in ('pending', 'approved', 'rejected')),
  created_at timestamptz not null default penstock.clock(),
  approved_at timestamptz
);
create unique index waitlist_requests_email on notes.waitlist_requests (lower(email));
comment on table notes.waitlist_requests is
  'Requests from before sign-up was open. Kept as the way back: see the runbook.';

alter table notes.books enable row level security;
alter table notes.notes enable row level security;
alter table notes.custom_ideas enable row level security;
alter table notes.note_links enable row level security;
alter table notes.lenses enable row level security;
alter table notes.collections enable row level security;
alter table notes.collection_memberships enable row level security;
alter table notes.wrapped_key_blobs enable row level security;
alter table notes.profile_bios enable row level security;
alter table notes.images enable row level security;
alter table notes.waitlist_requests enable row level security;
