-- phase: expand
-- Comments on tables, columns and types in plain words. Nothing else changes.

comment on table penstock.tenants is
  'The unit of isolation, plan and billing. A single user has a personal tenant.';
comment on column penstock.tenants.weight is 'Share of each lane, relative to the weights of other tenants.';
comment on column penstock.tenants.plan is 'Null: no limits.';
comment on table penstock.profiles is
  'One row per user. A trigger creates it together with the personal tenant.';
comment on table penstock.members is 'The role of a user or an API key in a tenant.';
comment on table penstock.settings is 'Configuration shared by all workers. set_setting() changes it.';
comment on table penstock.audit_log is
  'Who did what, written in the same transaction. Append-only: no role may update or delete rows.';
comment on column penstock.audit_log.subject is 'The object acted on, as noun:id.';

comment on table penstock.kinds is
  'The kinds of tasks and their defaults. Tasks of an unknown kind are rejected.';
comment on column penstock.kinds.retry_seconds is
  'No retry starts later than this after the first attempt; null: no limit.';
comment on table penstock.job_types is
  'Declared job types: their phases with weights, in order, and whether a failed task stops the job.';
comment on column penstock.job_types.bulk is
  'How the rows of a bulk type are loaded: key, group_by, batch, is_exclusive. Null: not a bulk type.';
comment on table penstock.lanes is 'A queue of tasks of one kind for one provider endpoint.';
comment on column penstock.lanes.clock is
  'Virtual time of the lane: the slot that was claimed last. New tasks are queued from here on.';
comment on column penstock.lanes.read_from is
  'The slot from which a claim reads: the clock a moment ago, so that it finds tasks that were committed '
  'late.';
comment on column penstock.lanes.tenant_id is
  'The tenant that this lane''s endpoint belongs to; null: the endpoint is shared by all tenants.';
comment on column penstock.lanes.is_gated is
  'Whether its tasks name a provider or units, so that the claim checks limits, quotas and budgets.';
comment on table penstock.shares is
  'A tenant''s position in a lane. Its next task is queued behind the last slot that it has.';
comment on column penstock.shares.priority is
  'Priority of the first task of the backlog. A task of another priority makes the queue mixed.';
comment on table penstock.mixed is
  'Tenants with tasks of several priorities in a lane. A slot of such a tenant goes to its best task.';
comment on table penstock.jobs is
  'Jobs, which clients start and watch. A trigger allows only valid status changes.';
comment on column penstock.jobs.budget is
  'The highest cost, in the base currency. The job pauses before it exceeds it.';
comment on column penstock.jobs.on_limit is
  'What happens to a task that exceeds the tenant''s quota: it is held back (hold), it fails (refuse), or '
  'the job pauses (pause).';
comment on column penstock.jobs.confirmed_at is
  'Tasks that were created before this time need no further confirmation.';
comment on column penstock.jobs.stop_after is
  'The job pauses after this number of failed tasks, or this percentage of its largest phase.';
comment on column penstock.jobs.forgiven is
  'Failures before the last resume; stop_after does not count them.';
comment on table penstock.phases is
  'The progress of a job: counts per phase, updated once per batch of ended tasks, not once per task.';
comment on column penstock.phases.weight is
  'Share of the phase in the progress of the job; null: its number of tasks.';
comment on type penstock.task_spec is 'One element of p_tasks: a new task as the caller describes it.';
comment on type penstock.phase_delta is 'A change of the counts of a phase.';
comment on table penstock.tasks is
  'The definition of a task, written once. Its state is the table that holds its row: ready, parked, leases '
  'or results.';
comment on column penstock.tasks.route is
  'The requirements for choosing a provider, and the chosen provider with the reason. Null: the task names '
  'its provider.';
comment on column penstock.tasks.confirm is 'Whether the task waits until its job is confirmed.';
comment on table penstock.edges is
  'The dependencies of a job''s tasks. A child starts once all its parents have succeeded.';
comment on table penstock.ready is
  'Tasks that may be claimed now, ordered by slots of virtual time. Rows are inserted and deleted, rarely '
  'updated.';
comment on table penstock.parked is
  'Tasks that may not be claimed yet: they wait for parents (pending), for a time (until), for capacity or '
  'confirmation (waits_for), or for their job to resume (until infinity).';
comment on column penstock.parked.waits_for is
  'What the task waits for: the meter whose quota is exhausted, or budget, limit, price, confirm.';
comment on table penstock.leases is
  'The time-limited right of one worker to one attempt of one task. The lease number only grows: it is the '
  'fencing token that rejects stale reports.';
comment on column penstock.leases.usage is 'The usage that the attempt has reported so far.';
comment on table penstock.results is
  'The outcome of a task, inserted once. A retry deletes a failed or canceled row, never a succeeded one.';
comment on table penstock.attempts is 'Failed attempts with their errors. Append-only.';
comment on table penstock.dead_letters is
  'Tasks that failed permanently. A replay deletes the row and queues the task again.';
comment on table penstock.chores is
  'Jobs whose tasks upkeep still has to move after a pause, resume or cancel. It moves them in small '
  'batches.';

comment on table penstock.workers is 'One row per worker process, updated by its heartbeat.';
comment on column penstock.workers.drain_asked_at is
  'When an operator asked the worker to stop claiming tasks and exit; it sees this at its next heartbeat.';
comment on table penstock.schedules is
  'Recurring jobs. Each run starts once, whichever worker fires it.';
comment on column penstock.schedules.missed is
  'After an outage: skip the missed runs, run once for all of them, or run each of them.';

comment on table penstock.endpoints is
  'Provider endpoints and their limits (null: none). A tenant''s own row overrides the general one.';
comment on column penstock.endpoints.default_tokens is
  'Estimated tokens of a task that does not say how many it needs.';
comment on column penstock.endpoints.depth_limit is
  'Number of waiting tasks at which new tasks are rejected; null: unlimited.';
comment on table penstock.endpoint_states is
  'The current state of an endpoint. A claim locks this row to admit tasks.';
comment on column penstock.endpoint_states.open_at is 'When its full rate-limit windows have room again.';
comment on column penstock.endpoint_states.closed_until is
  'The provider asked to wait until then; infinity: an operator must open it.';
comment on column penstock.endpoint_states.pace is
  'The fraction of the limits in use since the provider last rejected a call; it recovers over time.';
comment on column penstock.endpoint_states.requests_limit is
  'The limit that the provider reports, if it is lower than the configured one.';
comment on column penstock.endpoint_states.told_at is
  'When the provider last reported its limit. The report expires after an hour.';
comment on table penstock.spent is
  'Admitted requests and tokens, in slots of a quarter of a second for the minute window (width 1) and of a '
  'minute for the hour window (width 60).';
comment on table penstock.calls is
  'Capacity that acquire_api_capacity has reserved outside a claim. A call that is not released expires.';
comment on table penstock.provider_events is
  'Rejections by providers, and changes of their limits. Append-only.';

comment on table penstock.meters is 'What is counted and can be limited.';
comment on column penstock.meters.mode is
  'What happens when a limit is exceeded: it is only recorded (observe), or tasks are held back (enforce).';
comment on table penstock.plans is
  'Subscription plans with limits per meter. A meter that is null or missing is unlimited.';
comment on table penstock.tenant_limits is
  'Limits of single tenants, which replace those of the plan; null: unlimited.';
comment on table penstock.allowances is
  'Additions to a tenant''s limit: an override until its expiry day (inclusive), or a purchase.';
comment on table penstock.accounts is
  'Used and reserved amounts of a tenant, or of one job, in a period: the running totals of usage and '
  'holds. check_accounts() compares them.';
comment on table penstock.holds is
  'Amounts reserved for an attempt or a caller until they are committed or released.';
comment on table penstock.usage_events is 'Metered usage, one row per call. Append-only.';
comment on column penstock.usage_events.is_estimate is
  'Whether the attempt reported no usage, so that its estimate was recorded.';
comment on table penstock.usage_sums is
  'Usage per tenant, action and UTC day. New usage is inserted as a fresh row, without waiting for locks; '
  'upkeep adds the fresh rows up.';
comment on type penstock.booking is 'A change of an account.';

comment on table penstock.exchange_rates is
  'The value of one unit of a currency in the base currency, from a date on.';
comment on table penstock.prices is
  'The price of one unit from a date until the next price for the same provider, meter, variant and tenant; '
  'amount null: no price from then on.';
comment on table penstock.cost_entries is
  'The ledger of costs, one row per cost. Append-only; a correction is a row of its own.';
comment on column penstock.cost_entries.base_amount is
  'The amount in the base currency, at the exchange rate of its day.';
comment on table penstock.cost_sums is
  'Costs per day, provider and type in the base currency, of each tenant and (tenant null) of all tenants. '
  'Upkeep adds fresh rows up.';

comment on table penstock.api_keys is
  'API keys. A tenant''s key is a member of the tenant, with the key''s id as user id; a key without a '
  'tenant belongs to the service.';
comment on column penstock.api_keys.digest is 'SHA-256 of the key. The key itself is random and not stored.';
comment on column penstock.api_keys.role is
  'Role of a key without a tenant. A tenant''s key has the role of its member row.';
comment on table penstock.requests is
  'Responses to requests with an idempotency key, kept for a day.';

comment on table penstock.artifacts is
  'Files that tasks created and clients uploaded. The record is created before the file and deleted after '
  'it.';
comment on column penstock.artifacts.incoming is
  'Where a client uploads the file. It is not trusted until it has been checked and copied to path.';
comment on column penstock.artifacts.bytes is 'Size of the file; while it is pending, the announced size.';
comment on column penstock.artifacts.status is
  'pending: being written; stored: complete and counted; deleted: the file, then this row, will be removed.';

comment on table penstock.bulks is
  'Jobs whose tasks are created from rows. The counts are updated once per batch of rows.';
comment on column penstock.bulks.loader is 'The last task that was created to load rows.';
comment on column penstock.bulks.source_id is
  'Identifies the source, also when it is read again.';
comment on table penstock.bulk_rows is
  'A row as it was read. Its state follows from its tasks: see bulk_row_list.';
comment on column penstock.bulk_rows.number is 'The row number as shown in the source.';
comment on column penstock.bulk_rows.key is
  'The values of the key columns; null: the row number is the key.';
comment on column penstock.bulk_rows.problem is
  'Why the row has no tasks: {"code", "message", "column"}; done_before: an earlier job has completed it.';
comment on column penstock.bulk_rows.first_id is
  'The first task of the row; all tasks up to last_id belong to it or to its batch.';
comment on column penstock.bulk_rows.result_id is 'The task whose output is the result of the row.';
comment on column penstock.bulk_rows.written is 'The state that was last written back to the source.';
comment on table penstock.bulk_changes is
  'Changes applied for a row, one per value, and whether they were undone.';

comment on table penstock.actions is
  'Operations on many jobs or dead letters: the first batch runs at once, workers run the others.';
comment on column penstock.actions.user_id is
  'The user whose permissions are checked for each subject; null: the service.';
comment on column penstock.actions.refusal is 'Why the last rejected subject was rejected.';
comment on table penstock.action_items is
  'The remaining subjects of an action: ids of jobs (pause, resume, cancel, retry) or of dead letters '
  '(replay, discard).';
comment on table penstock.task_sums is
  'Tasks that ended in a minute, of each tenant and (tenant null) of all tenants. Upkeep adds a minute when '
  'it is over.';
comment on column penstock.task_sums.waits is
  'Histogram of waiting times: {"bucket": tasks}; bucket n begins at 2^(n/2) milliseconds.';
comment on column penstock.task_sums.runs is 'Histogram of running times, in the same buckets.';
