-- phase: expand
-- API keys know the key and the user that created them, and what they may do. Changes of access are recorded.

alter table penstock.api_keys
  add column parent_id uuid references penstock.api_keys (id),
  add column owner_id uuid,
  -- Existing keys keep what they can do: their role limits it.
  add column scopes text[] not null default array['read', 'start', 'work', 'admin']
    check (cardinality(scopes) > 0 and scopes <@ array['read', 'start', 'work', 'admin']);
create index api_keys_parent on penstock.api_keys (parent_id);
create index api_keys_owner on penstock.api_keys (owner_id);
comment on column penstock.api_keys.parent_id is 'The key that created this key.';
comment on column penstock.api_keys.owner_id is
  'The user who created this key, or the key that it descends from. Removing the user revokes the key.';
comment on column penstock.api_keys.scopes is
  'What the key may do, within its role: read, start (and change jobs), work (as a worker), admin.';

update penstock.api_keys k set parent_id = p.id from penstock.api_keys p
where k.created_by in ('user:' || p.id, 'service:' || p.id);
update penstock.api_keys set scopes = array['work'] where role = 'worker';
update penstock.api_keys set scopes = array['read', 'start', 'admin'] where tenant_id is not null;
with recursive owned as (
  select k.id, substr(k.created_by, 6)::uuid as owner_id from penstock.api_keys k
  where k.parent_id is null and k.created_by like 'user:%'
  union all
  select c.id, o.owner_id from owned o join penstock.api_keys c on c.parent_id = o.id
)
update penstock.api_keys k set owner_id = o.owner_id from owned o where k.id = o.id;

create table penstock.access_changes (
  id bigint generated always as identity primary key,
  at timestamptz not null
);
create index access_changes_at on penstock.access_changes (at);
comment on table penstock.access_changes is
  'When memberships and keys changed. Processes with open streams read it to check who may still watch.';
alter table penstock.access_changes enable row level security;
