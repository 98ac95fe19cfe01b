-- phase: expand
alter table notes.wrapped_key_blobs add column synced_at bigint;
comment on column notes.wrapped_key_blobs.synced_at is
  'When the device last synced, in Unix milliseconds and at most once a minute; null: it has not reported a sync.';
