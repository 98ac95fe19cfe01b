alter table penstock.endpoint_states drop column is_exhausted cascade;
alter table penstock.jobs drop column paused_for cascade;
