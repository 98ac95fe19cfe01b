revoke all on all tables in schema intake from public, anon, authenticated, service_role;
revoke all on all functions in schema intake from public, anon, authenticated, service_role;
grant usage on schema intake to authenticated, service_role;
-- All writes go through functions, so that each has its rules and its audit line.
grant select on intake.patients, intake.shell_file_results to authenticated, service_role;
grant select on intake.shell_files to authenticated, service_role;
grant select on intake.usage_warnings, intake.subscription_plans, intake.user_usage_tracking,
  intake.usage_events to authenticated, service_role;
grant select on intake.file_list, intake.fact_list, intake.patient_list, intake.patient_trail
to authenticated, service_role;
grant select on intake.upload_addresses to authenticated, service_role;
grant select on intake.job_queue, intake.usage_overview to service_role;
-- Updates call set_setting and set_provider.
grant select, update on intake.system_configuration, intake.api_rate_limits to service_role;
-- For the view.
grant execute on function intake._job_id(bigint), intake._job_types(), intake._configuration()
  to service_role;
grant execute on function
  intake.has_profile_access(uuid),
  intake.add_patient(text, uuid),
  intake.ai_jobs(uuid, date),
  intake.shows_upgrades(),
  intake.begin_shell_file(text, text, bigint, uuid, text, integer, uuid),
  intake.get_user_usage_status(uuid),
  intake.keeps_addresses(),
  intake.record_consent(uuid, boolean),
  intake.track_shell_file_upload_usage(uuid, uuid, bigint, integer)
to authenticated, service_role;
grant execute on function
  intake.adopt_processing_errors(integer),
  intake.claim_next_job_v3(text, text[]),
  intake.complete_job(uuid, text, jsonb),
  intake.enqueue_job_v3(text, text, jsonb, text, integer, timestamptz),
  intake.fail_job(uuid, text, jsonb, boolean),
  intake.reschedule_job(uuid, integer, text, boolean, text),
  intake.update_job_heartbeat(uuid, text),
  intake.admit_file(uuid, uuid, integer, jsonb),
  intake.finish_shell_file(uuid, jsonb, jsonb),
  intake.get_file(uuid, uuid),
  intake.has_consent(uuid, uuid),
  intake.log_audit_event(text, text, text, jsonb, jsonb, text, text, uuid),
  intake.may_process(uuid, uuid),
  intake.note_address(uuid, uuid, text, text),
  intake.note_ai_start(uuid, uuid, uuid),
  intake.note_limit_hit(uuid, text),
  intake.reject_upload(uuid, uuid, text, text),
  intake.set_feature(text, boolean),
  intake.settle_file(uuid, uuid),
  intake.start_waiting_file(uuid, uuid, jsonb, jsonb),
  intake.store_result(uuid, uuid, text, uuid, jsonb, uuid, text, text, integer),
  intake.sweep_files(integer),
  intake.track_ai_processing_usage(uuid, uuid, bigint, numeric),
  intake.waiting_files(integer)
to service_role;
