-- The previous version applies its functions again when it migrates.
alter table penstock.bulk_rows drop column id;
alter table penstock.cost_entries drop column user_id;
alter table penstock.jobs drop column user_id;
