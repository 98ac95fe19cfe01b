-- The previous version applies its functions and triggers again when it migrates.
alter table penstock.jobs
  drop constraint jobs_valid,
  add constraint jobs_type_check check (length(type) between 1 and 200) not valid,
  add constraint jobs_status_check check (
    status in ('queued', 'running', 'paused', 'completed', 'failed', 'canceled')) not valid,
  add constraint jobs_check check (
    (finished_at is not null) = (status in ('completed', 'failed', 'canceled'))) not valid,
  add constraint jobs_priority_check check (priority between 0 and 10) not valid,
  add constraint jobs_on_failure_check check (on_failure in ('continue', 'stop')) not valid,
  add constraint jobs_on_limit_check check (on_limit in ('hold', 'refuse', 'pause')) not valid,
  add constraint jobs_stop_after_check check (
    stop_after ~ '^([1-9][0-9]{0,8}|(100|[1-9]?[0-9](\.[0-9]{1,3})?)%)$') not valid,
  add constraint jobs_budget_check check (budget >= 0) not valid,
  add constraint jobs_paused_for_check check (paused_for in ('budget', 'quota')) not valid,
  add constraint jobs_forgiven_check check (forgiven >= 0) not valid,
  add constraint jobs_idempotency_key_check check (length(idempotency_key) between 1 and 255) not valid;
drop function penstock._is_valid_job(text, text, boolean, smallint, text, text, text, numeric, text, integer, text);
