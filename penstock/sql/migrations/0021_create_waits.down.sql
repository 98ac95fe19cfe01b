-- Waiting tasks run again from their start.
update penstock.parked set until = clock_timestamp() where wait_id is not null;
alter table penstock.parked drop column wait_id cascade;
drop table penstock.waits, penstock.wait_links, penstock.steps;
