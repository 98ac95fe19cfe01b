-- Permissions. Everything is revoked first, then granted by name; a test compares the result
-- with docs/access.md. Users read rows through policies and write only through functions.
-- Internal functions (leading underscore) are not granted, except those that a view calls.

revoke all on all tables in schema penstock from public, anon, authenticated, service_role;
revoke all on all sequences in schema penstock from public, anon, authenticated, service_role;
revoke all on all functions in schema penstock from public, anon, authenticated, service_role;
revoke all on schema penstock from public, anon, authenticated, service_role;
grant usage on schema penstock to anon, authenticated, service_role;

-- A search_path without pg_temp searches pg_temp first, where a caller could have created types.
alter function penstock._uuid7() set search_path = pg_catalog, pg_temp;

-- Users read the rows of their own tenants.
grant select on penstock.tenants, penstock.members, penstock.profiles, penstock.jobs, penstock.phases,
  penstock.tasks, penstock.results, penstock.attempts, penstock.dead_letters, penstock.schedules,
  penstock.audit_log, penstock.job_list, penstock.task_list, penstock.dead_letter_list, penstock.meters,
  penstock.plans, penstock.endpoints, penstock.prices, penstock.exchange_rates, penstock.tenant_limits,
  penstock.allowances, penstock.accounts, penstock.holds, penstock.usage_events, penstock.usage_sums,
  penstock.cost_entries, penstock.cost_sums, penstock.usage_days, penstock.cost_days, penstock.job_costs,
  penstock.price_list, penstock.rate_comparison, penstock.artifacts, penstock.bulks, penstock.bulk_rows,
  penstock.bulk_changes, penstock.bulk_list, penstock.bulk_row_list, penstock.actions, penstock.waits,
  penstock.wait_list, penstock.error_stacks, penstock.failures, penstock.streaks,
  penstock.notification_targets, penstock.notifications to authenticated;
grant update (display_name) on penstock.profiles to authenticated;
grant execute on function
  penstock.my_tenants(), penstock._task_state(uuid, bigint), penstock._now(),
  penstock.my_admin_tenants(),
  penstock.open_job(text, jsonb, jsonb), penstock.start_job(text, jsonb, jsonb, jsonb),
  penstock.add_tasks(uuid, jsonb, bigint, text, bigint), penstock.get_job(uuid),
  penstock.job_result(uuid, integer),
  penstock.pause_job(uuid, text), penstock.resume_job(uuid), penstock.cancel_job(uuid, text),
  penstock.retry_job(uuid), penstock.confirm_job(uuid), penstock.answer_wait(uuid, text, jsonb),
  penstock.open_bulk(text, jsonb, jsonb, jsonb),
  penstock.add_bulk_rows(uuid, jsonb, boolean), penstock.get_bulk(uuid), penstock.read_bulk_again(uuid),
  penstock.undo_bulk(uuid, jsonb), penstock._bulk_row_state(penstock.bulk_rows),
  penstock._is_running(uuid, bigint, bigint), penstock._row_cost(penstock.bulk_rows),
  penstock.replay_dead_letters(jsonb), penstock.discard_dead_letters(jsonb),
  penstock.set_member(uuid, uuid, text), penstock.create_invitation(text, uuid, jsonb),
  penstock.list_invitations(uuid), penstock.revoke_invitation(uuid), penstock.get_invitation(text),
  penstock.accept_invitation(text), penstock.decline_invitation(text), penstock.leave_tenant(uuid, boolean),
  penstock.set_schedule(text, text, text, timestamptz, jsonb),
  penstock.remove_schedule(uuid), penstock._base_rate(text, timestamptz),
  penstock.resolve_limits(uuid, timestamptz), penstock.get_usage_status(uuid),
  penstock.set_budget(uuid, numeric), penstock.explain_task(uuid, bigint), penstock.explain_job(uuid),
  penstock.forecast_job(text, jsonb, jsonb), penstock.forecast(uuid),
  penstock.create_key(text, text, uuid, timestamptz), penstock.create_api_key(text, text, jsonb),
  penstock.list_keys(uuid), penstock.list_api_keys(uuid), penstock.revoke_key(uuid),
  penstock.check_key(), penstock.check_session(), penstock.list_sessions(uuid),
  penstock.end_session(uuid), penstock.end_other_sessions(),
  penstock.begin_request(text, bytea), penstock.end_request(text, integer, jsonb),
  penstock.begin_upload(text, text, bigint, jsonb), penstock.take_upload(uuid),
  penstock.delete_artifact(uuid), penstock.overview(uuid), penstock.lane_states(uuid),
  penstock.task_rates(uuid, integer), penstock.job_graph(uuid, bigint, integer),
  penstock.start_action(text, text[], text), penstock.weigh_action(text, text[]), penstock.clock(),
  penstock.refuse(integer, text, text, jsonb, text), penstock.is_service(), penstock.my_tenant(),
  penstock.is_member(uuid, text[]), penstock.require_member(uuid, text[]),
  penstock.require_tenant(uuid),
  penstock.set_notification_target(text, text, text[], jsonb), penstock.remove_notification_target(uuid),
  penstock.rotate_notification_secret(uuid), penstock.send_test_notification(uuid)
to authenticated, service_role;

-- The service: workers and operators.
grant select on all tables in schema penstock to service_role;
grant execute on function
  penstock.claim_tasks(text, integer, text[], integer), penstock.heartbeat_task(bigint, text, bigint),
  penstock.heartbeat_tasks(text, jsonb, integer),
  penstock.report_progress(bigint, text, bigint, double precision, text),
  penstock.complete_task(bigint, text, jsonb, bigint),
  penstock.complete_tasks(text, bigint[], bigint[], jsonb[]),
  penstock.fail_task(bigint, text, text, bigint, double precision, boolean, text, jsonb),
  penstock.fail_tasks(text, bigint[], bigint[], jsonb[]),
  penstock.reschedule_task(bigint, double precision, text, bigint, text),
  penstock.reschedule_tasks(text, bigint[], bigint[], double precision, text),
  penstock.reclaim_stale_tasks(), penstock.upkeep(), penstock.upkeep_if_idle(), penstock.prune(integer),
  penstock.return_unknown_tasks(text, bigint[]),
  penstock.open_wait(bigint, text, bigint, text, jsonb), penstock.park_task(bigint, text, bigint, uuid),
  penstock.store_step(bigint, text, bigint, text, jsonb), penstock.get_steps(uuid, bigint),
  penstock.take_webhook(text, text, text, jsonb), penstock.end_webhook(text, text, text, uuid, text),
  penstock.next_webhook(text[]), penstock.replay_webhook(text, text),
  penstock.get_wait_link(text), penstock.answer_link(text, text, jsonb),
  penstock.report_worker(text, jsonb), penstock.drain_worker(text), penstock.backlog(), penstock.pulse(),
  penstock.start_drawn_job(text, jsonb, jsonb, jsonb, uuid),
  penstock.define_kind(text, jsonb), penstock.define_kinds(jsonb),
  penstock.define_job_type(text, jsonb, text), penstock.define_bulk_type(text, jsonb),
  penstock.take_bulk_rows(bigint, text, bigint, integer),
  penstock.mark_bulk_rows(bigint, text, bigint, jsonb, bigint),
  penstock.get_bulk_rows(bigint, text, bigint, uuid, bigint[]),
  penstock.record_changes(bigint, text, bigint, jsonb), penstock.undo_changes(bigint, text, bigint),
  penstock.ensure_sheets_account(text), penstock.bulk_rows_to_write(uuid, integer),
  penstock.mark_rows_written(uuid, bigint[], text[]), penstock.due_schedules(),
  penstock.fire_schedule(uuid, timestamptz, timestamptz, timestamptz[], jsonb),
  penstock.fail_schedule(uuid, timestamptz, text, boolean),
  penstock.create_tenant(text, double precision), penstock.ensure_tenant(text),
  penstock.set_tenant_weight(uuid, double precision), penstock.set_setting(text, jsonb),
  penstock.set_provider(text, jsonb, uuid), penstock.open_provider(text, uuid),
  penstock.report_provider(text, jsonb, uuid), penstock.report_limited(bigint, text, bigint, jsonb),
  penstock.acquire_api_capacity(text, text, bigint, text, uuid, double precision),
  penstock.release_api_capacity(text, text, bigint, bigint, text, uuid), penstock.next_opening(text[]),
  penstock._slot_ends(smallint, bigint), penstock._current_pace(double precision, timestamptz, timestamptz),
  penstock.set_meter(text, jsonb), penstock.set_plan(text, jsonb), penstock.set_tenant_plan(uuid, text),
  penstock.set_limit(uuid, text, numeric, boolean),
  penstock.add_allowance(uuid, text, numeric, text, date, text, text),
  penstock.reset_quota(uuid, text, text), penstock.reserve_quota(uuid, jsonb, text, text, double precision),
  penstock.commit_hold(uuid, jsonb, uuid), penstock.release_hold(uuid, uuid), penstock.check_accounts(),
  penstock.record_usage(jsonb, bigint, text, bigint, uuid, text, jsonb),
  penstock.record_cost(text, numeric, text, bigint, text, bigint, uuid, jsonb),
  penstock.set_price(text, text, numeric, jsonb), penstock.set_exchange_rate(text, numeric, timestamptz),
  penstock.erase_user(uuid), penstock.sign_in_identity(text, text, text),
  penstock.open_session(text, uuid, jsonb), penstock.use_session(bytea, boolean),
  penstock.close_session(bytea), penstock.list_ended_sessions(uuid[]),
  penstock.use_key(bytea), penstock.use_api_key(bytea), penstock.recent_access_changes(),
  penstock.list_strangers(uuid[], uuid[]), penstock.drain_rates(),
  penstock.begin_artifact(bigint, text, bigint, text, text, bigint),
  penstock.finish_artifact(uuid, text, bigint, bigint, text), penstock.drop_artifact(uuid, text, bigint),
  penstock.raise_alert(text, text, bigint, uuid, jsonb), penstock.take_alerts(),
  penstock.list_alerts(integer, integer),
  penstock.seal_audit_log(integer), penstock.check_audit_log(bigint, text), penstock.audit_head(),
  penstock.due_artifacts(integer), penstock.forget_artifacts(uuid[]), penstock.orphaned_artifacts(text[]),
  penstock.do_actions(integer), penstock.keep_artifact(uuid, text, timestamptz),
  penstock.unkeep_artifact(uuid), penstock.record_audit(text, text, jsonb, uuid, uuid),
  penstock.define_setting(text, jsonb, text), penstock.get_setting(text),
  penstock.notify(uuid, text, text, jsonb),
  penstock.record_outcome(uuid, text, boolean, text, text, text, jsonb),
  penstock.take_notifications(integer), penstock.end_notification(uuid, integer, text, text)
to service_role;
