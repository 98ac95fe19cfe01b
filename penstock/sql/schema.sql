-- What a fresh install looks like: the declared contract. Made by `make schema`, never edited.
-- `penstock migrate --check` names every difference between this and a live database.

schema penstock
  grant to anon: usage
  grant to authenticated: usage
  grant to service_role: usage

type penstock.phase_delta
  column job_id: uuid
  column "position": smallint
  column succeeded: integer
  column failed: integer
  column canceled: integer

type penstock.task_spec
  column kind: text
  column key: text
  column input: jsonb
  column after: text[]
  column after_failure: text
  column phase: text
  column provider: text
  column units: jsonb
  column priority: smallint
  column run_at: timestamp with time zone
  column max_attempts: smallint
  column timeout_seconds: real
  column idempotency_key: text

sequence penstock.lease_numbers
  definition: bigint start 1 increment 10000 minimum 1 maximum 9223372036854775807 cache 1

sequence penstock.task_ids
  definition: bigint start 1 increment 1 minimum 1 maximum 9223372036854775807 cache 1

table penstock.attempts
  comment: Attempts that did not succeed, with their errors. Append-only.
  row security: enabled
  column job_id: uuid not null
  column task_id: bigint not null
  column lease: bigint not null
  column tenant_id: uuid not null
  column attempt: smallint not null
  column worker_id: text not null
  column started_at: timestamp with time zone not null
  column ended_at: timestamp with time zone not null
  column outcome: text not null
  column error_code: text not null
  column error_message: text
  column error_details: jsonb
  column retry_in_seconds: real
  constraint attempts_outcome_check: CHECK ((outcome = ANY (ARRAY['failed'::text, 'lost'::text])))
  constraint attempts_pkey: PRIMARY KEY (job_id, task_id, lease)
  policy members_read: permissive for select to authenticated using (tenant_id IN ( SELECT penstock.my_tenants() AS my_tenants))
  policy service_reads: permissive for select to service_role using true
  grant to authenticated: select
  grant to service_role: select

table penstock.audit_log
  comment: Who did what, in the transaction that did it. Append-only: nobody is granted update or delete.
  row security: enabled
  column id: bigint generated always as identity not null
  column at: timestamp with time zone not null
  column tenant_id: uuid
  column actor: text not null
  column action: text not null
  column job_id: uuid
  column subject: text
  column details: jsonb not null default '{}'::jsonb
  comment on column subject: The thing acted on, as noun:id.
  constraint audit_log_pkey: PRIMARY KEY (id)
  index audit_log_job: CREATE INDEX audit_log_job ON penstock.audit_log USING btree (job_id, id) WHERE (job_id IS NOT NULL)
  index audit_log_tenant: CREATE INDEX audit_log_tenant ON penstock.audit_log USING btree (tenant_id, id)
  policy members_read: permissive for select to authenticated using (tenant_id IN ( SELECT penstock.my_tenants() AS my_tenants))
  policy service_reads: permissive for select to service_role using true
  grant to authenticated: select
  grant to service_role: select

table penstock.chores
  comment: What pause, resume and cancel of a large job leave to upkeep, done in small bites.
  row security: enabled
  column job_id: uuid not null
  column tenant_id: uuid not null
  column verb: text not null
  column created_at: timestamp with time zone not null
  constraint chores_pkey: PRIMARY KEY (job_id)
  constraint chores_verb_check: CHECK ((verb = ANY (ARRAY['park'::text, 'unpark'::text, 'drop'::text])))
  policy service_reads: permissive for select to service_role using true
  grant to service_role: select

table penstock.dead_letters
  comment: Tasks that failed for good. Replaying one removes it and queues the task again.
  row security: enabled
  column id: bigint generated always as identity not null
  column tenant_id: uuid not null
  column job_id: uuid not null
  column task_id: bigint not null
  column kind: text not null
  column reason: text not null
  column error_code: text not null
  column error_message: text
  column attempts: smallint not null
  column died_at: timestamp with time zone not null
  constraint dead_letters_pkey: PRIMARY KEY (id)
  constraint dead_letters_reason_check: CHECK ((reason = ANY (ARRAY['attempts'::text, 'time'::text, 'permanent'::text, 'worker_deaths'::text])))
  constraint dead_letters_tenant_id_job_id_task_id_key: UNIQUE (tenant_id, job_id, task_id)
  index dead_letters_cause: CREATE INDEX dead_letters_cause ON penstock.dead_letters USING btree (tenant_id, kind, error_code, id)
  index dead_letters_job: CREATE INDEX dead_letters_job ON penstock.dead_letters USING btree (job_id, task_id)
  policy members_read: permissive for select to authenticated using (tenant_id IN ( SELECT penstock.my_tenants() AS my_tenants))
  policy service_reads: permissive for select to service_role using true
  grant to authenticated: select
  grant to service_role: select

table penstock.edges
  comment: The job's graph: the child starts when all its parents have succeeded.
  row security: enabled
  column job_id: uuid not null
  column parent_id: bigint not null
  column child_id: bigint not null
  constraint edges_pkey: PRIMARY KEY (job_id, parent_id, child_id)
  index edges_child: CREATE INDEX edges_child ON penstock.edges USING btree (job_id, child_id)
  policy service_reads: permissive for select to service_role using true
  grant to service_role: select

table penstock.job_types
  comment: Declared job types: phases with weights, in order, and what a failed task does to the rest.
  row security: enabled
  column name: text not null
  column phases: jsonb not null default '[]'::jsonb
  column on_failure: text not null default 'continue'::text
  constraint job_types_name_check: CHECK ((name ~ '^[A-Za-z][A-Za-z0-9_.:-]{0,99}$'::text))
  constraint job_types_on_failure_check: CHECK ((on_failure = ANY (ARRAY['continue'::text, 'stop'::text])))
  constraint job_types_pkey: PRIMARY KEY (name)
  policy service_reads: permissive for select to service_role using true
  grant to service_role: select

table penstock.jobs
  comment: What a client starts and watches. Legal transitions are in a trigger.
  row security: enabled
  column id: uuid not null default penstock._uuid7()
  column tenant_id: uuid not null
  column type: text not null
  column status: text not null default 'queued'::text
  column priority: smallint not null default 5
  column on_failure: text not null default 'continue'::text
  column params: jsonb not null default '{}'::jsonb
  column status_reason: text
  column idempotency_key: text
  column request_digest: bytea
  column created_by: text not null
  column created_at: timestamp with time zone not null
  column run_at: timestamp with time zone
  column started_at: timestamp with time zone
  column finished_at: timestamp with time zone
  constraint jobs_check: CHECK (((finished_at IS NOT NULL) = (status = ANY (ARRAY['completed'::text, 'failed'::text, 'canceled'::text]))))
  constraint jobs_idempotency_key_check: CHECK (((length(idempotency_key) >= 1) AND (length(idempotency_key) <= 255)))
  constraint jobs_on_failure_check: CHECK ((on_failure = ANY (ARRAY['continue'::text, 'stop'::text])))
  constraint jobs_pkey: PRIMARY KEY (id)
  constraint jobs_priority_check: CHECK (((priority >= 0) AND (priority <= 10)))
  constraint jobs_status_check: CHECK ((status = ANY (ARRAY['queued'::text, 'running'::text, 'paused'::text, 'completed'::text, 'failed'::text, 'canceled'::text])))
  constraint jobs_tenant_id_fkey: FOREIGN KEY (tenant_id) REFERENCES penstock.tenants(id)
  constraint jobs_type_check: CHECK (((length(type) >= 1) AND (length(type) <= 200)))
  index jobs_idempotency: CREATE UNIQUE INDEX jobs_idempotency ON penstock.jobs USING btree (tenant_id, idempotency_key) WHERE (idempotency_key IS NOT NULL)
  index jobs_status: CREATE INDEX jobs_status ON penstock.jobs USING btree (status, id)
  index jobs_tenant: CREATE INDEX jobs_tenant ON penstock.jobs USING btree (tenant_id, id)
  index jobs_tenant_status: CREATE INDEX jobs_tenant_status ON penstock.jobs USING btree (tenant_id, status, id)
  trigger jobs_audit: CREATE TRIGGER jobs_audit AFTER UPDATE OF status ON penstock.jobs FOR EACH ROW WHEN ((old.status IS DISTINCT FROM new.status)) EXECUTE FUNCTION penstock._audit_job()
  trigger jobs_transitions: CREATE TRIGGER jobs_transitions BEFORE UPDATE OF status ON penstock.jobs FOR EACH ROW WHEN (((old.status IS DISTINCT FROM new.status) AND ((((((((((((((((old.status <> 'queued'::text) OR (new.status <> 'running'::text)) AND ((old.status <> 'queued'::text) OR (new.status <> 'paused'::text))) AND ((old.status <> 'queued'::text) OR (new.status <> 'canceled'::text))) AND ((old.status <> 'queued'::text) OR (new.status <> 'completed'::text))) AND ((old.status <> 'queued'::text) OR (new.status <> 'failed'::text))) AND ((old.status <> 'running'::text) OR (new.status <> 'paused'::text))) AND ((old.status <> 'running'::text) OR (new.status <> 'completed'::text))) AND ((old.status <> 'running'::text) OR (new.status <> 'failed'::text))) AND ((old.status <> 'running'::text) OR (new.status <> 'canceled'::text))) AND ((old.status <> 'paused'::text) OR (new.status <> 'running'::text))) AND ((old.status <> 'paused'::text) OR (new.status <> 'queued'::text))) AND ((old.status <> 'paused'::text) OR (new.status <> 'canceled'::text))) AND ((old.status <> 'paused'::text) OR (new.status <> 'completed'::text))) AND ((old.status <> 'paused'::text) OR (new.status <> 'failed'::text))) AND ((old.status <> 'failed'::text) OR (new.status <> 'running'::text))))) EXECUTE FUNCTION penstock._guard_job()
  policy members_read: permissive for select to authenticated using (tenant_id IN ( SELECT penstock.my_tenants() AS my_tenants))
  policy service_reads: permissive for select to service_role using true
  grant to authenticated: select
  grant to service_role: select

table penstock.kinds
  comment: The kinds of task there are, with the defaults of each. A task of an unknown kind is refused.
  row security: enabled
  column name: text not null
  column category: text not null default 'general'::text
  column max_attempts: smallint not null default 3
  column backoff_seconds: real not null default 2
  column backoff_cap_seconds: real not null default 300
  column retry_seconds: real
  column timeout_seconds: real
  comment on column retry_seconds: No retry later than this after the first attempt began; null: no such cap.
  constraint kinds_backoff_cap_seconds_check: CHECK ((backoff_cap_seconds >= (0)::double precision))
  constraint kinds_backoff_seconds_check: CHECK ((backoff_seconds >= (0)::double precision))
  constraint kinds_max_attempts_check: CHECK (((max_attempts >= 1) AND (max_attempts <= 100)))
  constraint kinds_name_check: CHECK ((name ~ '^[A-Za-z][A-Za-z0-9_.:-]{0,99}$'::text))
  constraint kinds_pkey: PRIMARY KEY (name)
  constraint kinds_retry_seconds_check: CHECK ((retry_seconds > (0)::double precision))
  constraint kinds_timeout_seconds_check: CHECK ((timeout_seconds > (0)::double precision))
  policy service_reads: permissive for select to service_role using true
  grant to service_role: select

table penstock.lanes
  comment: One queue for one kind and one provider endpoint.
  row security: enabled
  options: fillfactor=50
  column id: integer generated always as identity not null
  column kind: text not null
  column provider: text
  column clock: bigint not null default 0
  column read_from: bigint not null default 0
  column moved_at: timestamp with time zone not null default '-infinity'::timestamp with time zone
  column swept_at: timestamp with time zone not null default '-infinity'::timestamp with time zone
  comment on column clock: Virtual time: the slot last dealt. New work starts here.
  comment on column read_from: Where a claim starts reading: the clock a moment ago, so that what commits a little late is still met.
  constraint lanes_kind_fkey: FOREIGN KEY (kind) REFERENCES penstock.kinds(name)
  constraint lanes_kind_provider_key: UNIQUE NULLS NOT DISTINCT (kind, provider)
  constraint lanes_pkey: PRIMARY KEY (id)
  constraint lanes_provider_check: CHECK (((length(provider) >= 1) AND (length(provider) <= 200)))
  policy service_reads: permissive for select to service_role using true
  grant to service_role: select

table penstock.leases
  comment: One worker's time-limited right to one attempt of one task. The number only grows: it fences late workers.
  row security: enabled
  options: autovacuum_vacuum_cost_delay=0, autovacuum_vacuum_scale_factor=0.02, autovacuum_vacuum_threshold=2000, fillfactor=70
  column task_id: bigint not null
  column lease: bigint not null
  column job_id: uuid not null
  column tenant_id: uuid not null
  column lane_id: integer not null
  column priority: smallint not null
  column phase: smallint not null
  column failures: smallint not null
  column deaths: smallint not null
  column has_parents: boolean not null
  column has_children: boolean not null
  column is_canceled: boolean not null default false
  column worker_id: text not null
  column started_at: timestamp with time zone not null
  column expires_at: timestamp with time zone not null
  column fraction: real
  column message: text
  constraint leases_fraction_check: CHECK (((fraction >= (0)::double precision) AND (fraction <= (1)::double precision)))
  constraint leases_pkey: PRIMARY KEY (task_id)
  policy service_reads: permissive for select to service_role using true
  grant to service_role: select

table penstock.members
  comment: A user's role in a tenant.
  row security: enabled
  column tenant_id: uuid not null
  column user_id: uuid not null
  column role: text not null default 'member'::text
  column created_at: timestamp with time zone not null default clock_timestamp()
  constraint members_pkey: PRIMARY KEY (tenant_id, user_id)
  constraint members_role_check: CHECK ((role = ANY (ARRAY['owner'::text, 'admin'::text, 'member'::text, 'viewer'::text])))
  constraint members_tenant_id_fkey: FOREIGN KEY (tenant_id) REFERENCES penstock.tenants(id) ON DELETE CASCADE
  index members_user: CREATE INDEX members_user ON penstock.members USING btree (user_id)
  policy members_read: permissive for select to authenticated using (tenant_id IN ( SELECT penstock.my_tenants() AS my_tenants))
  policy service_reads: permissive for select to service_role using true
  grant to authenticated: select
  grant to service_role: select

table penstock.migrations
  comment: The files of sql/ that were applied. Written by migrate only.
  row security: enabled
  column name: text not null
  column sha256: text not null
  column details: jsonb not null default '{}'::jsonb
  column applied_at: timestamp with time zone not null default clock_timestamp()
  constraint migrations_pkey: PRIMARY KEY (name)
  policy service_reads: permissive for select to service_role using true
  grant to service_role: select

table penstock.mixed
  comment: Tenants whose queue in a lane holds several priorities: their slots go to their best task first.
  row security: enabled
  column lane_id: integer not null
  column tenant_id: uuid not null
  index mixed_share: CREATE INDEX mixed_share ON penstock.mixed USING btree (lane_id, tenant_id)
  policy service_reads: permissive for select to service_role using true
  grant to service_role: select

table penstock.parked
  comment: What may not be claimed yet: it waits for parents (pending), for a time (until) or for its job to resume (until infinity).
  row security: enabled
  options: fillfactor=80
  column task_id: bigint not null
  column job_id: uuid not null
  column tenant_id: uuid not null
  column lane_id: integer not null
  column priority: smallint not null
  column phase: smallint not null
  column failures: smallint not null default 0
  column deaths: smallint not null default 0
  column has_parents: boolean not null default false
  column has_children: boolean not null default false
  column pending: integer not null default 0
  column until: timestamp with time zone not null
  column reason: text not null
  constraint parked_pending_check: CHECK ((pending >= 0))
  constraint parked_pkey: PRIMARY KEY (job_id, task_id)
  index parked_due: CREATE INDEX parked_due ON penstock.parked USING btree (until) WHERE ((pending = 0) AND (until < 'infinity'::timestamp with time zone))
  policy service_reads: permissive for select to service_role using true
  grant to service_role: select

table penstock.phases
  comment: A job's progress: counts per phase, moved once per batch of ended tasks, never once per task.
  row security: enabled
  options: fillfactor=50
  column job_id: uuid not null
  column "position": smallint not null
  column tenant_id: uuid not null
  column name: text not null
  column weight: real
  column total: integer not null default 0
  column succeeded: integer not null default 0
  column failed: integer not null default 0
  column canceled: integer not null default 0
  comment on column weight: Its part of the whole; null: as much as it has tasks.
  constraint phases_check: CHECK (((succeeded >= 0) AND (failed >= 0) AND (canceled >= 0) AND (((succeeded + failed) + canceled) <= total)))
  constraint phases_job_id_name_key: UNIQUE (job_id, name)
  constraint phases_pkey: PRIMARY KEY (job_id, "position")
  constraint phases_weight_check: CHECK ((weight >= (0)::double precision))
  policy members_read: permissive for select to authenticated using (tenant_id IN ( SELECT penstock.my_tenants() AS my_tenants))
  policy service_reads: permissive for select to service_role using true
  grant to authenticated: select
  grant to service_role: select

table penstock.profiles
  comment: One row per user, made by a trigger together with the personal tenant.
  row security: enabled
  column user_id: uuid not null
  column tenant_id: uuid not null
  column email: text
  column display_name: text
  column created_at: timestamp with time zone not null default clock_timestamp()
  constraint profiles_display_name_check: CHECK ((length(display_name) <= 200))
  constraint profiles_pkey: PRIMARY KEY (user_id)
  constraint profiles_tenant_id_fkey: FOREIGN KEY (tenant_id) REFERENCES penstock.tenants(id) ON DELETE CASCADE
  policy own_profile: permissive for select to authenticated using (user_id = ( SELECT auth.uid() AS uid))
  policy own_profile_update: permissive for update to authenticated using (user_id = ( SELECT auth.uid() AS uid)) with check (user_id = ( SELECT auth.uid() AS uid))
  policy service_reads: permissive for select to service_role using true
  grant on column display_name to authenticated: update
  grant to authenticated: select
  grant to service_role: select

table penstock.ready
  comment: What may be claimed now, in slots of virtual time. Rows are only inserted and deleted.
  row security: enabled
  options: autovacuum_vacuum_cost_delay=0, autovacuum_vacuum_scale_factor=0.02, autovacuum_vacuum_threshold=2000
  column task_id: bigint not null
  column vtime: bigint not null
  column job_id: uuid not null
  column tenant_id: uuid not null
  column lane_id: integer not null
  column priority: smallint not null
  column phase: smallint not null
  column failures: smallint not null default 0
  column deaths: smallint not null default 0
  column has_parents: boolean not null default false
  column has_children: boolean not null default false
  index ready_claim: CREATE INDEX ready_claim ON penstock.ready USING btree (lane_id, vtime)
  index ready_tenant: CREATE UNIQUE INDEX ready_tenant ON penstock.ready USING btree (tenant_id, lane_id, priority, job_id, task_id)
  policy service_reads: permissive for select to service_role using true
  grant to service_role: select

table penstock.results
  comment: How a task ended: one row, inserted once. A retry removes a failed or canceled one, never a succeeded one.
  row security: enabled
  column job_id: uuid not null
  column task_id: bigint not null
  column lease: bigint
  column tenant_id: uuid not null
  column started_at: timestamp with time zone
  column finished_at: timestamp with time zone not null
  column attempt: smallint not null
  column phase: smallint not null
  column outcome: text not null
  column worker_id: text
  column error_code: text
  column error_message: text
  column output: jsonb
  constraint results_outcome_check: CHECK ((outcome = ANY (ARRAY['succeeded'::text, 'failed'::text, 'canceled'::text])))
  constraint results_pkey: PRIMARY KEY (job_id, task_id)
  policy members_read: permissive for select to authenticated using (tenant_id IN ( SELECT penstock.my_tenants() AS my_tenants))
  policy service_reads: permissive for select to service_role using true
  grant to authenticated: select
  grant to service_role: select

table penstock.schedules
  comment: Jobs that start by the clock. One run per tick, whoever fires it.
  row security: enabled
  column id: uuid not null default penstock._uuid7()
  column tenant_id: uuid not null
  column name: text not null
  column cron: text not null
  column timezone: text not null default 'UTC'::text
  column job_type: text not null
  column params: jsonb not null default '{}'::jsonb
  column tasks: jsonb
  column options: jsonb not null default '{}'::jsonb
  column missed: text not null default 'once'::text
  column is_enabled: boolean not null default true
  column next_run_at: timestamp with time zone not null
  column last_run_at: timestamp with time zone
  column last_job_id: uuid
  column created_at: timestamp with time zone not null
  comment on column missed: After an outage: skip the missed ticks, run once for all of them, or run each.
  constraint schedules_cron_check: CHECK (((length(cron) >= 1) AND (length(cron) <= 200)))
  constraint schedules_missed_check: CHECK ((missed = ANY (ARRAY['skip'::text, 'once'::text, 'all'::text])))
  constraint schedules_name_check: CHECK (((length(name) >= 1) AND (length(name) <= 200)))
  constraint schedules_pkey: PRIMARY KEY (id)
  constraint schedules_tenant_id_fkey: FOREIGN KEY (tenant_id) REFERENCES penstock.tenants(id) ON DELETE CASCADE
  constraint schedules_tenant_id_name_key: UNIQUE (tenant_id, name)
  index schedules_due: CREATE INDEX schedules_due ON penstock.schedules USING btree (next_run_at) WHERE is_enabled
  policy members_read: permissive for select to authenticated using (tenant_id IN ( SELECT penstock.my_tenants() AS my_tenants))
  policy service_reads: permissive for select to service_role using true
  grant to authenticated: select
  grant to service_role: select

table penstock.settings
  comment: Configuration that all workers share; changed with set_setting().
  row security: enabled
  column name: text not null
  column value: jsonb not null
  column comment: text not null
  constraint settings_pkey: PRIMARY KEY (name)
  policy service_reads: permissive for select to service_role using true
  grant to service_role: select

table penstock.shares
  comment: A tenant's place in a lane: its next task goes behind the last slot it holds.
  row security: enabled
  options: fillfactor=50
  column lane_id: integer not null
  column tenant_id: uuid not null
  column tail: bigint not null
  column priority: smallint not null
  comment on column priority: Of the first task of its backlog: another one makes the queue mixed.
  constraint shares_pkey: PRIMARY KEY (lane_id, tenant_id)
  policy service_reads: permissive for select to service_role using true
  grant to service_role: select

table penstock.tasks
  comment: What a task is: written once. Where it stands is told by ready, parked, leases and results.
  row security: enabled
  column job_id: uuid not null
  column id: bigint not null
  column tenant_id: uuid not null
  column created_at: timestamp with time zone not null
  column lane_id: integer not null
  column phase: smallint not null
  column priority: smallint not null
  column max_attempts: smallint
  column run_after_failure: boolean not null default false
  column timeout_seconds: real
  column kind: text not null
  column key: text
  column idempotency_key: text
  column input: jsonb not null
  column units: jsonb
  constraint tasks_max_attempts_check: CHECK (((max_attempts >= 1) AND (max_attempts <= 100)))
  constraint tasks_pkey: PRIMARY KEY (job_id, id)
  constraint tasks_timeout_seconds_check: CHECK ((timeout_seconds > (0)::double precision))
  index tasks_id: CREATE INDEX tasks_id ON penstock.tasks USING brin (id) WITH (pages_per_range='32', autosummarize='on')
  index tasks_idempotency: CREATE UNIQUE INDEX tasks_idempotency ON penstock.tasks USING btree (job_id, idempotency_key) WHERE (idempotency_key IS NOT NULL)
  index tasks_key: CREATE UNIQUE INDEX tasks_key ON penstock.tasks USING btree (job_id, key) WHERE (key IS NOT NULL)
  policy members_read: permissive for select to authenticated using (tenant_id IN ( SELECT penstock.my_tenants() AS my_tenants))
  policy service_reads: permissive for select to service_role using true
  grant to authenticated: select
  grant to service_role: select

table penstock.tenants
  comment: The unit of isolation, plan and bill. A lone user is a personal tenant.
  row security: enabled
  column id: uuid not null default penstock._uuid7()
  column name: text not null
  column weight: real not null default 1
  column is_personal: boolean not null default false
  column created_at: timestamp with time zone not null default clock_timestamp()
  comment on column weight: Share of a lane, relative to other tenants' weights.
  constraint tenants_name_check: CHECK (((length(name) >= 1) AND (length(name) <= 200)))
  constraint tenants_pkey: PRIMARY KEY (id)
  constraint tenants_weight_check: CHECK (((weight > (0)::double precision) AND (weight <= (1000)::double precision)))
  policy members_read: permissive for select to authenticated using (id IN ( SELECT penstock.my_tenants() AS my_tenants))
  policy service_reads: permissive for select to service_role using true
  grant to authenticated: select
  grant to service_role: select

table penstock.workers
  comment: One row per worker process, refreshed with its heartbeat.
  row security: enabled
  options: fillfactor=50
  column id: text not null
  column host: text not null
  column pid: integer not null
  column kinds: text[] not null
  column concurrency: integer not null
  column version: text not null
  column state: text not null default 'running'::text
  column running: integer not null default 0
  column started_at: timestamp with time zone not null
  column beat_at: timestamp with time zone not null
  constraint workers_id_check: CHECK (((length(id) >= 1) AND (length(id) <= 200)))
  constraint workers_pkey: PRIMARY KEY (id)
  constraint workers_state_check: CHECK ((state = ANY (ARRAY['running'::text, 'draining'::text, 'stopped'::text])))
  policy service_reads: permissive for select to service_role using true
  grant to service_role: select

view penstock.dead_letter_list
  comment: Tasks that failed for good.
  options: security_invoker=true
  column id: bigint
  column tenant_id: uuid
  column job_id: uuid
  column task_id: bigint
  column kind: text
  column reason: text
  column error_code: text
  column error_message: text
  column attempts: smallint
  column died_at: timestamp with time zone
  reads penstock.dead_letters: attempts, died_at, error_code, error_message, id, job_id, kind, reason, task_id, tenant_id
  grant to authenticated: select
  grant to service_role: select

view penstock.job_list
  comment: Jobs with their counts, percent and phase.
  options: security_invoker=true
  column id: uuid
  column tenant_id: uuid
  column type: text
  column status: text
  column status_reason: text
  column priority: smallint
  column created_by: text
  column created_at: timestamp with time zone
  column started_at: timestamp with time zone
  column finished_at: timestamp with time zone
  column run_at: timestamp with time zone
  column total: integer
  column succeeded: integer
  column failed: integer
  column canceled: integer
  column percent: integer
  column phase: text
  column params: jsonb
  reads penstock.jobs: created_at, created_by, finished_at, id, params, priority, run_at, started_at, status, status_reason, tenant_id, type
  reads penstock.phases: canceled, failed, job_id, name, position, succeeded, total, weight
  grant to authenticated: select
  grant to service_role: select

view penstock.task_list
  comment: Tasks with their state, attempts, times, errors, inputs and outputs.
  options: security_invoker=true
  column id: bigint
  column job_id: uuid
  column tenant_id: uuid
  column kind: text
  column key: text
  column phase: text
  column priority: smallint
  column created_at: timestamp with time zone
  column status: text
  column waiting_for: text
  column waiting_until: timestamp with time zone
  column attempt: integer
  column retry_count: integer
  column last_retry_at: timestamp with time zone
  column started_at: timestamp with time zone
  column finished_at: timestamp with time zone
  column worker_id: text
  column fraction: real
  column message: text
  column error_code: text
  column error_message: text
  column input: jsonb
  column output: jsonb
  reads penstock.attempts: ended_at, job_id, task_id
  reads penstock.jobs: id, status
  reads penstock.phases: job_id, name, position
  reads penstock.results: attempt, error_code, error_message, finished_at, job_id, outcome, output, started_at, task_id, worker_id
  reads penstock.tasks: created_at, id, input, job_id, key, kind, phase, priority, tenant_id
  grant to authenticated: select
  grant to service_role: select

view penstock.worker_list
  comment: Workers and whether they are alive, late or gone.
  options: security_invoker=true
  column id: text
  column host: text
  column pid: integer
  column kinds: text[]
  column concurrency: integer
  column version: text
  column running: integer
  column started_at: timestamp with time zone
  column beat_at: timestamp with time zone
  column state: text
  reads penstock.workers: beat_at, concurrency, host, id, kinds, pid, running, started_at, state, version
  grant to service_role: select

function penstock._actor()
  returns: text
  attributes: sql, stable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 2d836c9bf1e2718f2339cd21c4b8035f
  comment: Who is written into the audit log.

function penstock._add_edges(uuid, penstock.task_spec[], bigint[])
  arguments: p_job_id uuid, p_specs penstock.task_spec[], p_ids bigint[]
  returns: bigint[]
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: enable_nestloop=off, jit=off, search_path=penstock, pg_temp
  body: sha256 179274a567045cd390b31611775a940d
  comment: Writes the graph of new tasks and returns the parents that were there before.

function penstock._add_phases(penstock.jobs, penstock.task_spec[])
  arguments: p_job penstock.jobs, p_specs penstock.task_spec[]
  returns: void
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 91783db531aaeebc33562b6e09f8e174
  comment: A declared type has its phases; otherwise they are made as tasks name them, a kind's name standing in for none.

function penstock._add_tasks(uuid, jsonb)
  arguments: p_job_id uuid, p_tasks jsonb
  returns: bigint[]
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 cffbb36aecc3f25f502abbeb1af27f07
  comment: Checks, writes and queues new tasks of a job.

function penstock._audit(uuid, text, uuid, text, jsonb)
  arguments: p_tenant_id uuid, p_action text, p_job_id uuid, p_subject text, p_details jsonb DEFAULT '{}'::jsonb
  returns: void
  attributes: sql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 361bb202946753b8f83745b1ac990232
  comment: Adds a line to the audit log.

function penstock._audit_job()
  returns: trigger
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 b040705e0114d885d397187d5623bf69
  comment: Every change of a job's state leaves an audit line in the same transaction.

function penstock._await_lease(bigint)
  arguments: p_task_id bigint
  returns: void
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 a228d9e1f42b6739f1bb55da453e49a0
  comment: Waits until whoever has this lease in hand is done, and takes nothing.

function penstock._bury(penstock.leases[], text[], text[], text[])
  arguments: p_leases penstock.leases[], p_reasons text[], p_codes text[], p_messages text[]
  returns: void
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 70bd990982df01ee1377f7ef68815d6b
  comment: Ends tasks as failed for good, with their letters, and everything that follows.

function penstock._caller_tenant(uuid)
  arguments: p_tenant_id uuid
  returns: uuid
  attributes: plpgsql, stable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 c10e338b7fce54efbde202880bc464ca
  comment: The tenant a call works for: the one named, if the caller may, else the caller's own.

function penstock._check_arrays(bigint[], bigint[], integer)
  arguments: p_task_ids bigint[], p_leases bigint[], p_others integer
  returns: void
  attributes: plpgsql, immutable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 693e62f1970390f9c8a19a4908ae8fd1
  comment: The arrays of a batch have one length.

function penstock._check_cycles(integer[], integer[], integer)
  arguments: p_parents integer[], p_children integer[], p_count integer
  returns: void
  attributes: plpgsql, immutable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 62f28478e476d4ffeb05784c59b4a8c2
  comment: Refuses a graph with a circle. Linear in tasks and edges.

function penstock._check_document(jsonb, text, integer)
  arguments: p_document jsonb, p_name text, p_limit integer
  returns: void
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 83ede58671baafc89619655273bd1f25
  comment: Refuses a JSON document that is too large or that readers choke on.

function penstock._check_keys(uuid, penstock.task_spec[])
  arguments: p_job_id uuid, p_specs penstock.task_spec[]
  returns: void
  attributes: plpgsql, stable, security invoker, parallel unsafe
  settings: enable_nestloop=off, jit=off, search_path=penstock, pg_temp
  body: sha256 c51ecbbbfcf7c4bfbf7af2ddacaa94f1
  comment: Keys are unique in the job and every parent exists.

function penstock._check_tasks(penstock.task_spec[])
  arguments: p_specs penstock.task_spec[]
  returns: void
  attributes: plpgsql, stable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 bc857fd2d9618ff39c33233b3fbebd10
  comment: Refuses the first task that is not right, by its place and field.

function penstock._do_chore(uuid, integer)
  arguments: p_job_id uuid, p_bite integer
  returns: integer
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 a816ad23d3405a960b2d0a381cd84c1c
  comment: Does one bite of what a pause, resume or cancel left to do, and says how many tasks it moved.

function penstock._family(bigint[])
  arguments: p_letter_ids bigint[], OUT job_ids uuid[], OUT task_ids bigint[]
  returns: record
  attributes: sql, stable, security invoker, parallel unsafe
  settings: enable_seqscan=off, jit=off, search_path=penstock, pg_temp
  body: sha256 5cac3f99b881beae6ad684f4db6846ad
  comment: All that comes after these dead letters, and all that comes before it.

function penstock._finish_jobs(uuid[])
  arguments: p_job_ids uuid[]
  returns: void
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 3d7c5fd47f6631988af0c0c0a1993f59
  comment: Ends those of these jobs whose every task has ended.

function penstock._guard_job()
  returns: trigger
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 e7b41e07c2957ebac275a3ee023580eb
  comment: Refuses a change of state that the state machine does not have.

function penstock._hold_jobs(uuid[], uuid[], bigint[])
  arguments: p_job_ids uuid[], p_held_jobs uuid[], p_held bigint[]
  returns: void
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: enable_seqscan=off, jit=off, search_path=penstock, pg_temp
  body: sha256 45a4dd461c5c73ef04b1b2fef869eda0
  comment: Locks jobs with their phases, and tasks of theirs wherever they stand, so that none of these ends before we do. Gives up with PS001 when they are changing hands: the caller lets go of everything and tries again.

function penstock._is_readable(jsonb)
  arguments: p_document jsonb
  returns: boolean
  attributes: sql, immutable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 87eec6a6efb7a45a8332435f8be95dbc
  comment: Whether common readers of JSON can read this document.

function penstock._is_service()
  returns: boolean
  attributes: sql, stable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 3b495baf38199ebede82a7a2be225700
  comment: Whether the caller acts as the service (a worker, an operator) and not as a user.

function penstock._keep_canceled(penstock.leases[])
  arguments: p_leases penstock.leases[]
  returns: void
  attributes: sql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 cde74b6f6d091c228ede52b18ca9a0bc
  comment: Gives back what was running when its job was stopped.

function penstock._lane(text, text)
  arguments: p_kind text, p_provider text
  returns: integer
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 62480e76754633149e357b36c5a15849
  comment: The lane of a kind and a provider endpoint, made when first asked for.

function penstock._locked_job(uuid)
  arguments: p_job_id uuid
  returns: penstock.jobs
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 7200877eae384537664510a0f0c1d651
  comment: The job, locked, if the caller may act on it.

function penstock._lost_code(bigint)
  arguments: p_task_id bigint
  returns: text
  attributes: sql, stable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 09ad2464d2825a69fc299a300144626a
  comment: Why a lease is gone: its job was canceled, or it was lost.

function penstock._many_outputs(uuid, bigint)
  arguments: p_job_id uuid, p_task_id bigint
  returns: jsonb
  attributes: sql, stable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 0648bdd952bda0161e4772fdf4bd1373
  comment: The outputs of a task's many parents, as far as they fit into one document.

function penstock._matching_letters(jsonb)
  arguments: p_filter jsonb
  returns: bigint[]
  attributes: plpgsql, stable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 e900f41b66108fdaaff7985fb89d1936
  comment: The caller's dead letters that match a filter.

function penstock._move_progress(penstock.phase_delta[])
  arguments: p_deltas penstock.phase_delta[]
  returns: void
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 3981a02993ad0ee1e9c9603a10b06b6a
  comment: Moves the counts of phases, in one lock order, and ends the jobs that are through.

function penstock._now()
  returns: timestamp with time zone
  attributes: sql, volatile, security invoker, parallel unsafe
  body: sha256 cd23047eb8d5945a837a8937197c30ba
  comment: The database's clock: the only one.
  grant to authenticated: execute
  grant to service_role: execute

function penstock._others(bigint[], bigint[], penstock.leases[])
  arguments: p_task_ids bigint[], p_leases bigint[], p_taken penstock.leases[], OUT task_ids bigint[], OUT leases bigint[]
  returns: record
  attributes: sql, immutable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 df3849258e9be9ac491cafc292304e06
  comment: What is left of a batch without those taken.

function penstock._parents(uuid, jsonb)
  arguments: p_job_id uuid, p_tasks jsonb
  returns: bigint[]
  attributes: plpgsql, stable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 a5edd3fc69d935d6768136e42cd50ff9
  comment: The tasks of a job that new ones come after.

function penstock._park_new(penstock.jobs, penstock.task_spec[], penstock.ready[])
  arguments: p_job penstock.jobs, p_specs penstock.task_spec[], p_rows penstock.ready[]
  returns: penstock.ready[]
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 8b49802c26155bbae32ba6116931b983
  comment: Sets aside the new tasks that may not run yet and returns the others.

function penstock._parse_tasks(jsonb)
  arguments: p_tasks jsonb
  returns: penstock.task_spec[]
  attributes: plpgsql, stable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 f180dda01920f2adfd67878d0160a8f3
  comment: Reads p_tasks: its shape, its size, no unknown field.

function penstock._prefer(tid[])
  arguments: p_tids tid[]
  returns: tid[]
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 a40e2f1264ae0e087286f72a5d18ee1e
  comment: Where a tenant's queue holds several priorities, gives its slots to its best tasks.

function penstock._promote(integer)
  arguments: p_limit integer
  returns: integer
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: enable_seqscan=off, jit=off, search_path=penstock, pg_temp
  body: sha256 1333d8757b2c8da56740f2edb8c4e022
  comment: Queues what waited for a time that has come.

function penstock._queue(penstock.ready[], boolean)
  arguments: p_rows penstock.ready[], p_is_front boolean
  returns: void
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 5e3693216bf9fb52ba488ab9d3ec2d6c
  comment: Puts tasks in line, each tenant behind its own last slot.

function penstock._refusals(text, text, bigint[], bigint[], jsonb[], integer)
  arguments: p_worker_id text, p_outcome text, p_task_ids bigint[], p_leases bigint[], p_outputs jsonb[] DEFAULT NULL::jsonb[], p_limit integer DEFAULT NULL::integer
  returns: TABLE(id bigint, code text)
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 73c983062610ba213fd7fae12e771422
  comment: Which tasks of a batch were not accepted, and why. What was said before with the same lease counts as accepted.

function penstock._refuse(integer, text, text, jsonb, text)
  arguments: p_status integer, p_code text, p_message text, p_fields jsonb DEFAULT '{}'::jsonb, p_hint text DEFAULT NULL::text
  returns: void
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 a8f9647775caf991bbb63da0d82d7f58
  comment: Raises a refusal: status, stable code, message, fields, hint.

function penstock._replay(bigint[])
  arguments: p_letter_ids bigint[]
  returns: integer
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: enable_seqscan=off, jit=off, search_path=penstock, pg_temp
  body: sha256 12c01d0275e5273ae84d392eca04a9c1
  comment: Queues dead-lettered tasks again, with fresh attempts, and reopens their jobs.

function penstock._require_lease(bigint, text, bigint)
  arguments: p_task_id bigint, p_worker_id text, p_lease bigint
  returns: void
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 dd10e90ff301fcd4aeda435d4b1c9dc2
  comment: Refuses unless this is the live lease; locks it.

function penstock._require_role(uuid, text[])
  arguments: p_tenant_id uuid, p_roles text[]
  returns: void
  attributes: plpgsql, stable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 88b0867d89e5fa4de594cb94535b5cdc
  comment: Refuses unless the caller is the service or a member with one of these roles.

function penstock._return_tasks(penstock.leases[], integer)
  arguments: p_leases penstock.leases[], p_deaths integer
  returns: void
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 bdb75cb1ab04c8a11b2f1058b9fab2df
  comment: Puts leased tasks back in front.

function penstock._revive_children(uuid, bigint[])
  arguments: p_job_id uuid, p_task_ids bigint[]
  returns: penstock.phase_delta[]
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 50dfe2dd9c44a4a45f9ca87bbdb3679f
  comment: Brings back what was canceled because these tasks had failed.

function penstock._setting(text)
  arguments: p_name text
  returns: jsonb
  attributes: sql, stable, security invoker, parallel unsafe
  body: sha256 aff1bee12770cdadc1d1f85369343d46
  comment: The value of a setting.

function penstock._settle_children(uuid, bigint[], bigint[])
  arguments: p_job_id uuid, p_parent_ids bigint[], p_child_ids bigint[] DEFAULT NULL::bigint[], OUT deltas penstock.phase_delta[], OUT freed penstock.ready[]
  returns: record
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: enable_hashjoin=off, enable_mergejoin=off, enable_seqscan=off, jit=off, search_path=penstock, pg_temp
  body: sha256 2fce01efcf5ecb92b9eb39dc39862eb4
  comment: Parents have ended: children of a parent that did not succeed are canceled with their descendants. Returns what that does to the progress, and the children that now wait for nothing, for the caller to queue when it has all its locks.

function penstock._stop_job(uuid, uuid, text, text)
  arguments: p_job_id uuid, p_tenant_id uuid, p_status text, p_reason text
  returns: void
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 2661ef0ff6a1fcb81802a00f7375aed3
  comment: Ends a job before its tasks have ended.

function penstock._task_state(uuid, bigint)
  arguments: p_job_id uuid, p_task_id bigint
  returns: TABLE(state text, reason text, until timestamp with time zone, attempt integer, started_at timestamp with time zone, worker_id text, fraction real, message text)
  attributes: sql, stable, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 4debaca3b23169b7220510aebf04262f
  comment: Where a task that has not ended stands, for whoever may see it. No row: it is ready to be claimed.
  grant to authenticated: execute
  grant to service_role: execute

function penstock._uuid7()
  returns: uuid
  attributes: sql, volatile, security invoker, parallel unsafe
  settings: search_path=pg_catalog, pg_temp
  body: sha256 7806429aaea5cf43f7e86b828db80adb
  comment: A version 7 UUID: milliseconds first, then random bits.

function penstock._visible_job(uuid, text[])
  arguments: p_job_id uuid, p_roles text[]
  returns: penstock.jobs
  attributes: plpgsql, stable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 c03b4ef4e386cea000f657bd5d58be23
  comment: The job, if the caller may act on it; another tenant's job does not exist.

function penstock.add_tasks(uuid, jsonb, bigint, text, bigint)
  arguments: p_job_id uuid, p_tasks jsonb, p_task_id bigint DEFAULT NULL::bigint, p_worker_id text DEFAULT NULL::text, p_lease bigint DEFAULT NULL::bigint
  returns: bigint[]
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: jit=off, plan_cache_mode=force_generic_plan, search_path=penstock, pg_temp
  body: sha256 57dc7ddecc02477f6848ff11855a6e33
  comment: Adds tasks to a job that has not ended and returns the ids of those added, in order; one whose idempotency key is there already is left out. A running task names itself and its lease.
  grant to authenticated: execute
  grant to service_role: execute

function penstock.backlog()
  returns: TABLE(kind text, provider text, waiting bigint, running bigint, oldest_seconds double precision)
  attributes: sql, stable, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 af3d6fa96a11f10279e20a3020e812cb
  comment: Per lane: what waits, what runs, and how old its next task is. What an autoscaler reads.
  grant to service_role: execute

function penstock.cancel_job(uuid, text)
  arguments: p_job_id uuid, p_reason text DEFAULT NULL::text
  returns: text
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 98495b35f087186bc1fabf8a0ae66c39
  comment: Ends the job now: nothing more is claimed, running handlers are told to stop, what they still report is refused.
  grant to authenticated: execute
  grant to service_role: execute

function penstock.claim_tasks(text, integer, text[], integer)
  arguments: p_worker_id text, p_max_tasks integer DEFAULT 1, p_task_types text[] DEFAULT NULL::text[], p_lease_seconds integer DEFAULT NULL::integer
  returns: TABLE(id bigint, lease bigint, job_id uuid, tenant_id uuid, kind text, key text, input jsonb, attempt integer, max_attempts integer, timeout_seconds real, lease_expires_at timestamp with time zone)
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: enable_bitmapscan=off, enable_hashjoin=off, enable_mergejoin=off, enable_seqscan=off, jit=off, plan_cache_mode=force_generic_plan, search_path=penstock, pg_temp
  body: sha256 8d04357122e71dcda963734aeae6a07b
  comment: Takes up to p_max_tasks tasks of these kinds (null: all) for a worker, fairly among tenants, each with a lease that lasts p_lease_seconds without a heartbeat.
  grant to service_role: execute

function penstock.complete_task(bigint, text, jsonb, bigint)
  arguments: p_task_id bigint, p_worker_id text, p_output jsonb DEFAULT NULL::jsonb, p_lease bigint DEFAULT NULL::bigint
  returns: boolean
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 86a9ecbc6607f5ee0e74a8075f165d6e
  comment: Ends one task as succeeded; refuses with 410 when the lease is gone.
  grant to service_role: execute

function penstock.complete_tasks(text, bigint[], bigint[], jsonb[])
  arguments: p_worker_id text, p_task_ids bigint[], p_leases bigint[] DEFAULT NULL::bigint[], p_outputs jsonb[] DEFAULT NULL::jsonb[]
  returns: TABLE(id bigint, code text)
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: enable_seqscan=off, jit=off, plan_cache_mode=force_generic_plan, search_path=penstock, pg_temp
  body: sha256 a612b7f9c95158ca4f276e0e2801f6ab
  comment: Ends tasks as succeeded. Returns only those refused: lease_lost, canceled, too_large. A repeated call is accepted again.
  grant to service_role: execute

function penstock.create_tenant(text, double precision)
  arguments: p_name text, p_weight double precision DEFAULT 1
  returns: uuid
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 1b77ff29fab0b1dbe6a276126773929a
  comment: Makes a tenant.
  grant to service_role: execute

function penstock.define_job_type(text, jsonb, text)
  arguments: p_name text, p_phases jsonb DEFAULT '[]'::jsonb, p_on_failure text DEFAULT 'continue'::text
  returns: void
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 24a0641d40cadcc79ae18cb49475fbf0
  comment: Makes or changes a job type: its phases [{"name", "weight"}] in order, and what a failed task does to the rest (continue, stop).
  grant to service_role: execute

function penstock.define_kind(text, jsonb)
  arguments: p_name text, p_options jsonb DEFAULT '{}'::jsonb
  returns: void
  attributes: sql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 6e1a6bd1c3f781039e2d7a349801a32f
  comment: Makes or changes one kind.
  grant to service_role: execute

function penstock.define_kinds(jsonb)
  arguments: p_kinds jsonb
  returns: void
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 5aa73752d8f4bd94ea292c75a4e3147f
  comment: Makes or changes kinds: [{"name", "category", "max_attempts", "backoff_seconds", "backoff_cap_seconds", "retry_seconds", "timeout_seconds"}].
  grant to service_role: execute

function penstock.discard_dead_letters(jsonb)
  arguments: p_filter jsonb
  returns: integer
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 1b6adea3a63e75d649bae749148515fd
  comment: Removes dead letters that match; their tasks stay failed. Returns how many.
  grant to authenticated: execute
  grant to service_role: execute

function penstock.due_schedules()
  returns: TABLE(id uuid, tenant_id uuid, name text, cron text, timezone text, job_type text, params jsonb, has_tasks boolean, missed text, due_at timestamp with time zone, now_at timestamp with time zone)
  attributes: sql, volatile, security definer, parallel unsafe
  settings: enable_seqscan=off, jit=off, search_path=penstock, pg_temp
  body: sha256 7b0760a4d154ded8b967af15064e10a3
  comment: Schedules whose time has come, with the database's time.
  grant to service_role: execute

function penstock.ensure_tenant(text)
  arguments: p_name text
  returns: uuid
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 b5ef8fd1c99ac27d3254fb05d59408f6
  comment: The oldest tenant of this name, made when there is none.
  grant to service_role: execute

function penstock.fail_task(bigint, text, text, bigint, double precision, boolean, text, jsonb)
  arguments: p_task_id bigint, p_worker_id text, p_error text, p_lease bigint DEFAULT NULL::bigint, p_retry_after_seconds double precision DEFAULT NULL::double precision, p_permanent boolean DEFAULT false, p_error_code text DEFAULT 'handler_error'::text, p_error_details jsonb DEFAULT NULL::jsonb
  returns: boolean
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 8e1222a148ba339e4cf9238ad8b93187
  comment: Ends one attempt as failed: retried after a backoff, not before p_retry_after_seconds, or dead-lettered; refuses with 410 when the lease is gone.
  grant to service_role: execute

function penstock.fail_tasks(text, bigint[], bigint[], jsonb[])
  arguments: p_worker_id text, p_task_ids bigint[], p_leases bigint[], p_errors jsonb[]
  returns: TABLE(id bigint, code text)
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 47f2d637a049a132a32903ddd812330d
  comment: Ends attempts as failed: each is retried after a backoff, or dead-lettered. Errors are {"code", "message", "details", "retry_after_seconds", "permanent"}. Returns only those refused.
  grant to service_role: execute

function penstock.fire_schedule(uuid, timestamp with time zone, timestamp with time zone, timestamp with time zone[], jsonb)
  arguments: p_schedule_id uuid, p_due_at timestamp with time zone, p_next_run_at timestamp with time zone, p_starts timestamp with time zone[], p_tasks jsonb DEFAULT NULL::jsonb
  returns: uuid[]
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 05ac44011d414ab65a91757aa75844fa
  comment: Starts the jobs of a due tick, once: whoever comes second finds the tick gone and starts nothing.
  grant to service_role: execute

function penstock.get_job(uuid)
  arguments: p_job_id uuid
  returns: jsonb
  attributes: plpgsql, stable, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 dd9633fae2b4e69e01c6325848eb2c07
  comment: A job with its progress: percent, phase, done, total, message, eta_seconds, phases.
  grant to authenticated: execute
  grant to service_role: execute

function penstock.heartbeat_task(bigint, text, bigint)
  arguments: p_task_id bigint, p_worker_id text, p_lease bigint DEFAULT NULL::bigint
  returns: boolean
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 7de495125f66d77fdc21abfddb8eb1c6
  comment: Extends one lease; refuses with 410 when it is gone.
  grant to service_role: execute

function penstock.heartbeat_tasks(text, jsonb, integer)
  arguments: p_worker_id text, p_leases jsonb, p_lease_seconds integer DEFAULT NULL::integer
  returns: TABLE(id bigint, lease bigint, code text)
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: enable_hashjoin=off, enable_mergejoin=off, enable_seqscan=off, jit=off, search_path=penstock, pg_temp
  body: sha256 c7c19773c3a0a88c90ecf074558653e7
  comment: Extends a worker's leases [{"id", "lease"}] and returns those that are gone: lease_lost or canceled.
  grant to service_role: execute

function penstock.my_tenants()
  returns: SETOF uuid
  attributes: sql, stable, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 59d809f5dc9eb9f4567f37dfd9ebdfd7
  comment: The tenants the calling user is a member of. Every policy asks this.
  grant to authenticated: execute
  grant to service_role: execute

function penstock.on_new_user()
  returns: trigger
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 b33d072ae89f2c6747a321b8a8b9f66c
  comment: A new user gets a profile and a personal tenant.

function penstock.open_job(text, jsonb, jsonb)
  arguments: p_type text, p_params jsonb DEFAULT '{}'::jsonb, p_options jsonb DEFAULT '{}'::jsonb
  returns: TABLE(job_id uuid, is_new boolean)
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 5e6895dbc6098286ad4d49eb894b049c
  comment: Makes a job without tasks, or finds the one its idempotency key names; add_tasks fills it. Options: tenant_id, idempotency_key, priority, run_at or delay_seconds, on_failure, paused, digest.
  grant to authenticated: execute
  grant to service_role: execute

function penstock.pause_job(uuid, text)
  arguments: p_job_id uuid, p_reason text DEFAULT NULL::text
  returns: text
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 c2208b401bf971b76d9af6b4d8325a06
  comment: Nothing of the job is claimed from now on; what runs ends normally. Immediate whatever the job's size.
  grant to authenticated: execute
  grant to service_role: execute

function penstock.prune(integer)
  arguments: p_limit integer DEFAULT 10000
  returns: integer
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 8cbf8da01799d3b43098e7bb601b62e3
  comment: Deletes ended jobs that are older than the setting retention_days, at most so many rows; returns how many. The audit log stays.
  grant to service_role: execute

function penstock.reclaim_stale_tasks()
  returns: integer
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 ccc8fcdcfe9edc4f3889b021a6dcf26d
  comment: Takes back tasks whose lease ran out: queued again at once, or dead-lettered when their worker died too often.
  grant to service_role: execute

function penstock.remove_schedule(uuid)
  arguments: p_schedule_id uuid
  returns: boolean
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 bf9d8f17f44bbf27b1542e39a0796934
  comment: Removes a schedule.
  grant to authenticated: execute
  grant to service_role: execute

function penstock.replay_dead_letters(jsonb)
  arguments: p_filter jsonb
  returns: integer
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 a38b574130d160d0964c1d82cb2d4a9c
  comment: Queues dead-lettered tasks again: those that match ids, job_id, kind, error_code, reason, tenant_id, or {"all": true}. Returns how many.
  grant to authenticated: execute
  grant to service_role: execute

function penstock.report_progress(bigint, text, bigint, double precision, text)
  arguments: p_task_id bigint, p_worker_id text, p_lease bigint DEFAULT NULL::bigint, p_fraction double precision DEFAULT NULL::double precision, p_message text DEFAULT NULL::text
  returns: void
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 de16539636e941e302da4570e0773853
  comment: How far a running task is (0 to 1), and a line for people.
  grant to service_role: execute

function penstock.report_worker(text, jsonb)
  arguments: p_worker_id text, p_info jsonb
  returns: void
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 47ba36165606bfdb8e9f83e353d210e7
  comment: A worker says that it is there: {"host", "pid", "kinds", "concurrency", "version", "state", "running"}.
  grant to service_role: execute

function penstock.reschedule_task(bigint, double precision, text, bigint, text)
  arguments: p_task_id bigint, p_delay_seconds double precision DEFAULT 0, p_reason text DEFAULT 'rescheduled'::text, p_lease bigint DEFAULT NULL::bigint, p_worker_id text DEFAULT NULL::text
  returns: boolean
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 f2cc1de3052a62906c1d8dafd885a068
  comment: Gives one task back to the queue without costing an attempt.
  grant to service_role: execute

function penstock.reschedule_tasks(text, bigint[], bigint[], double precision, text)
  arguments: p_worker_id text, p_task_ids bigint[], p_leases bigint[], p_delay_seconds double precision DEFAULT 0, p_reason text DEFAULT 'rescheduled'::text
  returns: TABLE(id bigint, code text)
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 c61505a3a371392ff74acf502e5f3e74
  comment: Gives tasks back to the queue, now or after a delay, without costing an attempt. Returns only those refused.
  grant to service_role: execute

function penstock.resume_job(uuid)
  arguments: p_job_id uuid
  returns: text
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 4e75fcd0a68d4112fd1d98106da59e71
  comment: Takes a paused job up again: the first tasks at once, a large rest by upkeep.
  grant to authenticated: execute
  grant to service_role: execute

function penstock.retry_job(uuid)
  arguments: p_job_id uuid
  returns: integer
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 abc6b7b7a190adf203b1d6e6cea2a462
  comment: Queues the job's failed tasks again, and what was canceled because of them. Returns how many failed tasks run again.
  grant to authenticated: execute
  grant to service_role: execute

function penstock.set_member(uuid, uuid, text)
  arguments: p_tenant_id uuid, p_user_id uuid, p_role text
  returns: void
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 a0929b7f138ade9b204ae9e0efa8de01
  comment: Gives a user a role in a tenant; null removes the user.
  grant to authenticated: execute
  grant to service_role: execute

function penstock.set_schedule(text, text, text, timestamp with time zone, jsonb)
  arguments: p_name text, p_cron text, p_job_type text, p_next_run_at timestamp with time zone, p_options jsonb DEFAULT '{}'::jsonb
  returns: uuid
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 b116448b384af6482d49c9fbd2b6cdb3
  comment: Makes or changes a schedule. Options: tenant_id, timezone, params, tasks (null: the job type's own), options, missed (skip, once, all), is_enabled.
  grant to authenticated: execute
  grant to service_role: execute

function penstock.set_setting(text, jsonb)
  arguments: p_name text, p_value jsonb
  returns: void
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 8e7ea4c963a66481a1f27598fdc6937b
  comment: Changes a setting, with an audit line.
  grant to service_role: execute

function penstock.set_tenant_weight(uuid, double precision)
  arguments: p_tenant_id uuid, p_weight double precision
  returns: void
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 77048ffd13516063df3bd94abbfe2636
  comment: Changes a tenant's share of every lane, for work queued from now on.
  grant to service_role: execute

function penstock.start_job(text, jsonb, jsonb, jsonb)
  arguments: p_type text, p_params jsonb DEFAULT '{}'::jsonb, p_tasks jsonb DEFAULT '[]'::jsonb, p_options jsonb DEFAULT '{}'::jsonb
  returns: uuid
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: jit=off, plan_cache_mode=force_generic_plan, search_path=penstock, pg_temp
  body: sha256 19f52fe8ccd898f1fefa5463a7b67126
  comment: Makes a job with its tasks and their graph in one transaction and returns its id; the same idempotency key gives the same job.
  grant to authenticated: execute
  grant to service_role: execute

function penstock.upkeep()
  returns: TABLE(reclaimed integer, promoted integer, chores integer, next_seconds double precision)
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 b9008c83c2fec56ff79db91843bfa854
  comment: What any worker does now and then: takes back stale tasks, queues what is due, does a bite of a large pause, resume or cancel. Says in how many seconds there is more to do (null: nothing known).
  grant to service_role: execute

trigger penstock_on_new_user on auth.users
  definition: CREATE TRIGGER penstock_on_new_user AFTER INSERT ON auth.users FOR EACH ROW EXECUTE FUNCTION penstock.on_new_user()
