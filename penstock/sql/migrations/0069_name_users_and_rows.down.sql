-- The previous version applies its functions again when it migrates, and so do apps with views on these columns.
alter table penstock.bulk_rows drop column id cascade;
alter table penstock.cost_entries drop column user_id cascade;
alter table penstock.jobs drop column user_id cascade;
