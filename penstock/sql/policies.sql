-- Which rows a role may read, beside the grants. `migrate` drops a policy before it creates it, one
-- table at a time.

-- The service reads every table, except those with secrets: grants.sql.
create policy service_reads on penstock.access_changes for select to service_role using (true);
create policy service_reads on penstock.accounts for select to service_role using (true);
create policy service_reads on penstock.action_items for select to service_role using (true);
create policy service_reads on penstock.actions for select to service_role using (true);
create policy service_reads on penstock.allowances for select to service_role using (true);
create policy service_reads on penstock.api_keys for select to service_role using (true);
create policy service_reads on penstock.artifacts for select to service_role using (true);
create policy service_reads on penstock.attempts for select to service_role using (true);
create policy service_reads on penstock.audit_log for select to service_role using (true);
create policy service_reads on penstock.audit_marks for select to service_role using (true);
create policy service_reads on penstock.audit_seals for select to service_role using (true);
create policy service_reads on penstock.bill_lines for select to service_role using (true);
create policy service_reads on penstock.billing_accounts for select to service_role using (true);
create policy service_reads on penstock.billing_syncs for select to service_role using (true);
create policy service_reads on penstock.bulk_changes for select to service_role using (true);
create policy service_reads on penstock.bulk_rows for select to service_role using (true);
create policy service_reads on penstock.bulks for select to service_role using (true);
create policy service_reads on penstock.calls for select to service_role using (true);
create policy service_reads on penstock.cell_limits for select to service_role using (true);
create policy service_reads on penstock.cells for select to service_role using (true);
create policy service_reads on penstock.chores for select to service_role using (true);
create policy service_reads on penstock.cost_entries for select to service_role using (true);
create policy service_reads on penstock.cost_snapshots for select to service_role using (true);
create policy service_reads on penstock.cost_sums for select to service_role using (true);
create policy service_reads on penstock.dead_letters for select to service_role using (true);
create policy service_reads on penstock.edges for select to service_role using (true);
create policy service_reads on penstock.endpoint_states for select to service_role using (true);
create policy service_reads on penstock.endpoints for select to service_role using (true);
create policy service_reads on penstock.error_stacks for select to service_role using (true);
create policy service_reads on penstock.exchange_rates for select to service_role using (true);
create policy service_reads on penstock.failures for select to service_role using (true);
create policy service_reads on penstock.fixed_costs for select to service_role using (true);
create policy service_reads on penstock.gates for select to service_role using (true);
create policy service_reads on penstock.holds for select to service_role using (true);
create policy service_reads on penstock.identities for select to service_role using (true);
create policy service_reads on penstock.invitations for select to service_role using (true);
create policy service_reads on penstock.job_types for select to service_role using (true);
create policy service_reads on penstock.job_terms for select to service_role using (true);
create policy service_reads on penstock.job_params for select to service_role using (true);
create policy service_reads on penstock.jobs for select to service_role using (true);
create policy service_reads on penstock.kinds for select to service_role using (true);
create policy service_reads on penstock.lanes for select to service_role using (true);
create policy service_reads on penstock.leases for select to service_role using (true);
create policy service_reads on penstock.members for select to service_role using (true);
create policy service_reads on penstock.meters for select to service_role using (true);
create policy service_reads on penstock.migrations for select to service_role using (true);
create policy service_reads on penstock.mixed for select to service_role using (true);
create policy service_reads on penstock.notification_targets for select to service_role using (true);
create policy service_reads on penstock.notifications for select to service_role using (true);
create policy service_reads on penstock.operations for select to service_role using (true);
create policy service_reads on penstock.operator_alerts for select to service_role using (true);
create policy service_reads on penstock.parked for select to service_role using (true);
create policy service_reads on penstock.phases for select to service_role using (true);
create policy service_reads on penstock.plan_prices for select to service_role using (true);
create policy service_reads on penstock.plans for select to service_role using (true);
create policy service_reads on penstock.prices for select to service_role using (true);
create policy service_reads on penstock.prompt_pins for select to service_role using (true);
create policy service_reads on penstock.prompt_uses for select to service_role using (true);
create policy service_reads on penstock.prompts for select to service_role using (true);
create policy service_reads on penstock.profiles for select to service_role using (true);
create policy service_reads on penstock.provider_events for select to service_role using (true);
create policy service_reads on penstock.ready for select to service_role using (true);
create policy service_reads on penstock.requests for select to service_role using (true);
create policy service_reads on penstock.route_failures for select to service_role using (true);
create policy service_reads on penstock.routed_lanes for select to service_role using (true);
create policy service_reads on penstock.results for select to service_role using (true);
create policy service_reads on penstock.schedules for select to service_role using (true);
create policy service_reads on penstock.sessions for select to service_role using (true);
create policy service_reads on penstock.settings for select to service_role using (true);
create policy service_reads on penstock.sheet_bindings for select to service_role using (true);
create policy service_reads on penstock.shares for select to service_role using (true);
create policy service_reads on penstock.spent for select to service_role using (true);
create policy service_reads on penstock.steps for select to service_role using (true);
create policy service_reads on penstock.streaks for select to service_role using (true);
create policy service_reads on penstock.sync_horizons for select to service_role using (true);
create policy service_reads on penstock.subscriptions for select to service_role using (true);
create policy service_reads on penstock.task_chunks for select to service_role using (true);
create policy service_reads on penstock.task_chunks_0 for select to service_role using (true);
create policy service_reads on penstock.task_chunks_1 for select to service_role using (true);
create policy service_reads on penstock.task_chunks_2 for select to service_role using (true);
create policy service_reads on penstock.task_logs for select to service_role using (true);
create policy service_reads on penstock.task_logs_0 for select to service_role using (true);
create policy service_reads on penstock.task_logs_1 for select to service_role using (true);
create policy service_reads on penstock.task_logs_2 for select to service_role using (true);
create policy service_reads on penstock.task_sums for select to service_role using (true);
create policy service_reads on penstock.tasks for select to service_role using (true);
create policy service_reads on penstock.tenant_blocks for select to service_role using (true);
create policy service_reads on penstock.tenant_cells for select to service_role using (true);
create policy service_reads on penstock.tenant_limits for select to service_role using (true);
create policy service_reads on penstock.tenants for select to service_role using (true);
create policy service_reads on penstock.upkeep_runs for select to service_role using (true);
create policy service_reads on penstock.usage_events for select to service_role using (true);
create policy service_reads on penstock.usage_keys for select to service_role using (true);
create policy service_reads on penstock.usage_sums for select to service_role using (true);
create policy service_reads on penstock.waits for select to service_role using (true);
create policy service_reads on penstock.webhooks for select to service_role using (true);
create policy service_reads on penstock.workers for select to service_role using (true);

-- Users read their tenants' rows.
create policy members_read on penstock.accounts for select to authenticated
  using (tenant_id in (select penstock.my_tenants()));
create policy members_read on penstock.allowances for select to authenticated
  using (tenant_id in (select penstock.my_tenants()));
create policy members_read on penstock.artifacts for select to authenticated
  using (tenant_id in (select penstock.my_tenants()));
create policy members_read on penstock.attempts for select to authenticated
  using (tenant_id in (select penstock.my_tenants()));
create policy members_read on penstock.audit_log for select to authenticated
  using (tenant_id in (select penstock.my_tenants()));
create policy members_read on penstock.bulk_changes for select to authenticated
  using (tenant_id in (select penstock.my_tenants()));
create policy members_read on penstock.bulk_rows for select to authenticated
  using (tenant_id in (select penstock.my_tenants()));
create policy members_read on penstock.bulks for select to authenticated
  using (tenant_id in (select penstock.my_tenants()));
create policy members_read on penstock.cost_entries for select to authenticated
  using (tenant_id in (select penstock.my_tenants()));
create policy members_read on penstock.cost_sums for select to authenticated
  using (tenant_id in (select penstock.my_tenants()));
create policy members_read on penstock.dead_letters for select to authenticated
  using (tenant_id in (select penstock.my_tenants()));
create policy members_read on penstock.failures for select to authenticated
  using (tenant_id in (select penstock.my_tenants()));
create policy members_read on penstock.holds for select to authenticated
  using (tenant_id in (select penstock.my_tenants()));
create policy members_read on penstock.jobs for select to authenticated
  using (tenant_id in (select penstock.my_tenants()));
create policy members_read on penstock.members for select to authenticated
  using (tenant_id in (select penstock.my_tenants()));
create policy members_read on penstock.operations for select to authenticated
  using (tenant_id in (select penstock.my_tenants()));
create policy members_read on penstock.phases for select to authenticated
  using (tenant_id in (select penstock.my_tenants()));
create policy members_read on penstock.results for select to authenticated
  using (tenant_id in (select penstock.my_tenants()));
create policy members_read on penstock.schedules for select to authenticated
  using (tenant_id in (select penstock.my_tenants()));
create policy members_read on penstock.streaks for select to authenticated
  using (tenant_id in (select penstock.my_tenants()));
create policy members_read on penstock.task_chunks for select to authenticated
  using (tenant_id in (select penstock.my_tenants()));
create policy members_read on penstock.task_logs for select to authenticated
  using (tenant_id in (select penstock.my_tenants()));
create policy members_read on penstock.tasks for select to authenticated
  using (tenant_id in (select penstock.my_tenants()));
create policy members_read on penstock.tenant_limits for select to authenticated
  using (tenant_id in (select penstock.my_tenants()));
create policy members_read on penstock.tenants for select to authenticated
  using (id in (select penstock.my_tenants()));
create policy members_read on penstock.usage_events for select to authenticated
  using (tenant_id in (select penstock.my_tenants()));
create policy members_read on penstock.usage_sums for select to authenticated
  using (tenant_id in (select penstock.my_tenants()));
create policy members_read on penstock.waits for select to authenticated
  using (tenant_id in (select penstock.my_tenants()));

-- Stack traces show the app's code: its tenant's owners and admins read them.
create policy admins_read on penstock.error_stacks for select to authenticated
  using (tenant_id in (select penstock.my_admin_tenants()));

-- The address of a webhook is often a credential: anyone who knows it can post there.
create policy admins_read on penstock.notification_targets for select to authenticated
  using (tenant_id in (select penstock.my_admin_tenants()));
create policy admins_read on penstock.notifications for select to authenticated
  using (tenant_id in (select penstock.my_admin_tenants()));

-- Admins of the installation read what admins did, in all tenants.
create policy admins_read on penstock.audit_log for select to authenticated
  using (action like 'admin.%' and (select penstock.is_admin()));

-- Providers and prices without a tenant are everybody's.
create policy members_read on penstock.endpoints for select to authenticated
  using (tenant_id is null or tenant_id in (select penstock.my_tenants()));
create policy members_read on penstock.prices for select to authenticated
  using (tenant_id is null or tenant_id in (select penstock.my_tenants()));
create policy all_read on penstock.exchange_rates for select to authenticated using (true);
create policy all_read on penstock.meters for select to authenticated using (true);
create policy all_read on penstock.plans for select to authenticated using (true);

-- What belongs to a user, not to a tenant.
create policy own_actions on penstock.actions for select to authenticated
  using (user_id = (select auth.uid()));
create policy own_profile on penstock.profiles for select to authenticated
  using (user_id = (select auth.uid()));
create policy own_profile_update on penstock.profiles for update to authenticated
  using (user_id = (select auth.uid())) with check (user_id = (select auth.uid()));
