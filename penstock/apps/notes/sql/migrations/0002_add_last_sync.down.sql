drop view if exists notes.device_list;
drop function if exists notes.start_sync(uuid);
alter table notes.wrapped_key_blobs drop column synced_at;
