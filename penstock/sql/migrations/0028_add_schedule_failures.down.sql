alter table penstock.profiles drop constraint profiles_display_name_clean;
alter table penstock.schedules drop column failures, drop column last_error, drop column retry_at;
