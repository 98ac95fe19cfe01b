-- phase: expand
-- Numbers of changes to synced tables. Each session must draw from the sequence itself: with a cache, numbers
-- would not follow the order of commits.
create sequence penstock.change_seqs cache 1;
create table penstock.sync_horizons (
  user_id uuid not null,
  schema_name text not null,
  table_name text not null,
  seq bigint not null,
  primary key (user_id, schema_name, table_name)
);
comment on table penstock.sync_horizons is
  'Up to which change rows of a synced table were deleted permanently. A device whose cursor is lower pulls everything again.';
comment on column penstock.sync_horizons.seq is 'The highest change number that a deleted row had, or got when it was deleted.';
alter table penstock.sync_horizons enable row level security;
