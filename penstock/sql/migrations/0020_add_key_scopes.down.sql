-- The triggers go with their function; the previous version applies its functions again when it migrates.
drop function if exists penstock._on_access_change() cascade;
drop table penstock.access_changes;
alter table penstock.api_keys drop column scopes, drop column owner_id, drop column parent_id;
