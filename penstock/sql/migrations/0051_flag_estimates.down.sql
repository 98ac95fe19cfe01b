drop table if exists penstock.bill_lines;
drop index if exists penstock.cost_entries_estimates;
alter table penstock.cost_entries drop column if exists is_estimate;
update penstock.settings set value = '30', comment = 'How long a lease lasts without a heartbeat.'
where name = 'lease_seconds' and value = '150';
