-- What a fresh install looks like: the declared contract. Made by `make schema`, never edited.
-- `penstock migrate --check` names every difference between this and a live database.

schema penstock
  grant to anon: usage
  grant to authenticated: usage
  grant to service_role: usage

type penstock.booking
  column tenant_id: uuid
  column job_id: uuid
  column meter: text
  column period: date
  column used: numeric
  column held: numeric

type penstock.capacity
  column requests: bigint
  column tokens: bigint
  column places: bigint
  column max_requests: bigint
  column max_tokens: bigint

type penstock.claim_candidate
  column tid: tid
  column task_id: bigint
  column job_id: uuid
  column tenant_id: uuid
  column units: jsonb
  column provider: text
  column on_limit: text
  column job_status: text

type penstock.claim_limit
  column tenant_id: uuid
  column job_id: uuid
  column meter: text
  column amount: numeric
  column mode: text
  column resets_at: timestamp with time zone
  column remaining: numeric

type penstock.claim_need
  column amounts: jsonb
  column has_budget: boolean
  column cost: numeric
  column shortage: text

type penstock.claim_pick
  column tids: tid[]
  column gated_lane_ids: integer[]
  column reservations: penstock.reservation[]
  column is_more: boolean
  column has_reserved: boolean

type penstock.phase_delta
  column job_id: uuid
  column "position": smallint
  column succeeded: integer
  column failed: integer
  column canceled: integer

type penstock.provider_choice
  column provider: text
  column reason: text
  column is_open: boolean

type penstock.reservation
  column task_id: bigint
  column tenant_id: uuid
  column job_id: uuid
  column amounts: jsonb
  column has_budget: boolean

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
  column route: jsonb
  column confirm: boolean

type penstock.window_fit
  column tids: tid[]
  column requests: bigint
  column tokens: bigint
  column next_requests: bigint
  column next_tokens: bigint
  column oversized: tid[]

sequence penstock.lease_numbers
  definition: bigint start 1 increment 10000 minimum 1 maximum 9223372036854775807 cache 1

sequence penstock.task_ids
  definition: bigint start 1 increment 1 minimum 1 maximum 9223372036854775807 cache 1

table penstock.accounts
  comment: What a tenant, or one job, has used and set aside in a period. The sum of usage and holds, kept; check_accounts compares.
  row security: enabled
  options: fillfactor=50
  column tenant_id: uuid not null
  column job_id: uuid
  column meter: text not null
  column period: date not null
  column used: numeric not null default 0
  column held: numeric not null default 0
  constraint accounts_held_check: CHECK ((held >= (0)::numeric))
  constraint accounts_tenant_id_meter_period_job_id_key: UNIQUE NULLS NOT DISTINCT (tenant_id, meter, period, job_id)
  index accounts_job: CREATE INDEX accounts_job ON penstock.accounts USING btree (job_id) WHERE (job_id IS NOT NULL)
  policy members_read: permissive for select to authenticated using (tenant_id IN ( SELECT penstock.my_tenants() AS my_tenants))
  policy service_reads: permissive for select to service_role using true
  grant to authenticated: select
  grant to service_role: select

table penstock.action_items
  comment: What of an action is left to do: ids of jobs (pause, resume, cancel, retry) or of dead letters (replay, discard).
  row security: enabled
  column action_id: uuid not null
  column subject: text not null
  constraint action_items_action_id_fkey: FOREIGN KEY (action_id) REFERENCES penstock.actions(id) ON DELETE CASCADE
  constraint action_items_pkey: PRIMARY KEY (action_id, subject)
  policy service_reads: permissive for select to service_role using true
  grant to service_role: select

table penstock.actions
  comment: What somebody does to many jobs or dead letters at once: the first at once, the rest in bites by the workers.
  row security: enabled
  column id: uuid not null default penstock._uuid7()
  column actor: text not null
  column user_id: uuid
  column verb: text not null
  column reason: text
  column total: integer not null
  column done: integer not null default 0
  column refused: integer not null default 0
  column refusal: text
  column created_at: timestamp with time zone not null
  column finished_at: timestamp with time zone
  comment on column user_id: Whose roles decide about each of them; null: the service.
  comment on column refusal: Why the last one that was refused was.
  constraint actions_pkey: PRIMARY KEY (id)
  constraint actions_reason_check: CHECK ((length(reason) <= 1000))
  constraint actions_verb_check: CHECK ((verb = ANY (ARRAY['pause'::text, 'resume'::text, 'cancel'::text, 'retry'::text, 'replay'::text, 'discard'::text])))
  index actions_open: CREATE INDEX actions_open ON penstock.actions USING btree (created_at) WHERE (finished_at IS NULL)
  index actions_user: CREATE INDEX actions_user ON penstock.actions USING btree (user_id, id)
  policy own_actions: permissive for select to authenticated using (user_id = ( SELECT auth.uid() AS uid))
  policy service_reads: permissive for select to service_role using true
  grant to authenticated: select
  grant to service_role: select

table penstock.allowances
  comment: What a tenant may use beyond its limit: an override until its expiry day (included), or a purchase.
  row security: enabled
  column id: uuid not null default penstock._uuid7()
  column tenant_id: uuid not null
  column meter: text not null
  column amount: numeric not null
  column expires_on: date
  column source: text not null
  column reason: text
  column key: text
  column created_at: timestamp with time zone not null
  constraint allowances_amount_check: CHECK ((amount > (0)::numeric))
  constraint allowances_check: CHECK (((source <> 'override'::text) OR (expires_on IS NOT NULL)))
  constraint allowances_key_check: CHECK (((length(key) >= 1) AND (length(key) <= 255)))
  constraint allowances_meter_fkey: FOREIGN KEY (meter) REFERENCES penstock.meters(name)
  constraint allowances_pkey: PRIMARY KEY (id)
  constraint allowances_reason_check: CHECK ((length(reason) <= 1000))
  constraint allowances_source_check: CHECK ((source = ANY (ARRAY['override'::text, 'purchase'::text])))
  constraint allowances_tenant_id_fkey: FOREIGN KEY (tenant_id) REFERENCES penstock.tenants(id) ON DELETE CASCADE
  index allowances_key: CREATE UNIQUE INDEX allowances_key ON penstock.allowances USING btree (tenant_id, key) WHERE (key IS NOT NULL)
  index allowances_tenant: CREATE INDEX allowances_tenant ON penstock.allowances USING btree (tenant_id, meter)
  policy members_read: permissive for select to authenticated using (tenant_id IN ( SELECT penstock.my_tenants() AS my_tenants))
  policy service_reads: permissive for select to service_role using true
  grant to authenticated: select
  grant to service_role: select

table penstock.api_keys
  comment: Keys for programs. A tenant's key is a member of the tenant, with the key's id as user id; a key without a tenant is the service's.
  row security: enabled
  column id: uuid not null default gen_random_uuid()
  column tenant_id: uuid
  column name: text not null
  column prefix: text not null
  column digest: bytea not null
  column role: text
  column created_by: text not null
  column created_at: timestamp with time zone not null
  column expires_at: timestamp with time zone
  column last_used_at: timestamp with time zone
  column revoked_at: timestamp with time zone
  comment on column digest: SHA-256 of the key, which is random and kept nowhere.
  comment on column role: Of a key without a tenant; a tenant's key has the role of its member.
  constraint api_keys_check: CHECK (((tenant_id IS NULL) = (role IS NOT NULL)))
  constraint api_keys_digest_check: CHECK ((length(digest) = 32))
  constraint api_keys_digest_key: UNIQUE (digest)
  constraint api_keys_name_check: CHECK (((length(name) >= 1) AND (length(name) <= 200)))
  constraint api_keys_pkey: PRIMARY KEY (id)
  constraint api_keys_role_check: CHECK ((role = ANY (ARRAY['worker'::text, 'service'::text])))
  constraint api_keys_tenant_id_fkey: FOREIGN KEY (tenant_id) REFERENCES penstock.tenants(id) ON DELETE CASCADE
  index api_keys_tenant: CREATE INDEX api_keys_tenant ON penstock.api_keys USING btree (tenant_id, id)
  policy service_reads: permissive for select to service_role using true
  grant to service_role: select

table penstock.artifacts
  comment: The files that tasks made and clients uploaded. The record comes before its file, and goes after it.
  row security: enabled
  column id: uuid not null default penstock._uuid7()
  column tenant_id: uuid not null
  column job_id: uuid
  column task_id: bigint
  column lease: bigint
  column name: text not null default ''::text
  column path: text not null
  column incoming: text
  column content_type: text not null
  column bytes: bigint
  column sha256: text
  column status: text not null default 'pending'::text
  column hold_id: uuid
  column idempotency_key: text
  column created_by: text not null
  column created_at: timestamp with time zone not null
  column begun_at: timestamp with time zone not null
  column stored_at: timestamp with time zone
  comment on column incoming: Where a client uploads to. What is there is not believed before it was checked and copied to path.
  comment on column bytes: What it takes in storage; while it is pending, what was announced.
  comment on column status: Pending: being written. Stored: whole, and counted. Deleted: its file is to be removed, then this row.
  constraint artifacts_bytes_check: CHECK ((bytes >= 0))
  constraint artifacts_check: CHECK (((job_id IS NULL) = (task_id IS NULL)))
  constraint artifacts_check1: CHECK (((status <> 'stored'::text) OR ((bytes IS NOT NULL) AND (sha256 IS NOT NULL) AND (stored_at IS NOT NULL))))
  constraint artifacts_content_type_check: CHECK ((length(content_type) <= 200))
  constraint artifacts_idempotency_key_check: CHECK (((length(idempotency_key) >= 1) AND (length(idempotency_key) <= 255)))
  constraint artifacts_incoming_check: CHECK ((length(incoming) <= 900))
  constraint artifacts_name_check: CHECK ((length(name) <= 200))
  constraint artifacts_path_check: CHECK ((length(path) <= 900))
  constraint artifacts_pkey: PRIMARY KEY (id)
  constraint artifacts_sha256_check: CHECK ((sha256 ~ '^[0-9a-f]{64}$'::text))
  constraint artifacts_status_check: CHECK ((status = ANY (ARRAY['pending'::text, 'stored'::text, 'deleted'::text])))
  constraint artifacts_tenant_id_fkey: FOREIGN KEY (tenant_id) REFERENCES penstock.tenants(id)
  constraint artifacts_tenant_id_path_key: UNIQUE (tenant_id, path)
  index artifacts_due: CREATE INDEX artifacts_due ON penstock.artifacts USING btree (begun_at) WHERE (status <> 'stored'::text)
  index artifacts_idempotency: CREATE UNIQUE INDEX artifacts_idempotency ON penstock.artifacts USING btree (tenant_id, idempotency_key) WHERE (idempotency_key IS NOT NULL)
  index artifacts_job: CREATE INDEX artifacts_job ON penstock.artifacts USING btree (job_id, id) WHERE (job_id IS NOT NULL)
  index artifacts_pending: CREATE INDEX artifacts_pending ON penstock.artifacts USING btree (tenant_id) WHERE (status <> 'stored'::text)
  index artifacts_uploads: CREATE INDEX artifacts_uploads ON penstock.artifacts USING btree (stored_at) WHERE ((job_id IS NULL) AND (status = 'stored'::text))
  policy members_read: permissive for select to authenticated using (tenant_id IN ( SELECT penstock.my_tenants() AS my_tenants))
  policy service_reads: permissive for select to service_role using true
  grant to authenticated: select
  grant to service_role: select

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

table penstock.bulk_changes
  comment: What was applied for a row, value by value, and whether it was undone.
  row security: enabled
  column id: bigint generated always as identity not null
  column tenant_id: uuid not null
  column job_id: uuid not null
  column row_number: bigint not null
  column name: text not null
  column before: jsonb
  column after: jsonb
  column applied_at: timestamp with time zone not null
  column undone_at: timestamp with time zone
  constraint bulk_changes_name_check: CHECK (((length(name) >= 1) AND (length(name) <= 200)))
  constraint bulk_changes_pkey: PRIMARY KEY (id)
  index bulk_changes_row: CREATE INDEX bulk_changes_row ON penstock.bulk_changes USING btree (job_id, row_number, id)
  policy members_read: permissive for select to authenticated using (tenant_id IN ( SELECT penstock.my_tenants() AS my_tenants))
  policy service_reads: permissive for select to service_role using true
  grant to authenticated: select
  grant to service_role: select

table penstock.bulk_rows
  comment: A row as it was read. Its state is that of the tasks it made: see bulk_row_list.
  row security: enabled
  column job_id: uuid not null
  column number: bigint not null
  column tenant_id: uuid not null
  column key: text
  column group_key: text
  column data: jsonb not null
  column problem: jsonb
  column first_id: bigint
  column result_id: bigint
  column last_id: bigint
  column batch_size: integer
  column written: text
  comment on column number: As a person sees it in the source.
  comment on column key: The chosen columns; null: its number is its key.
  comment on column problem: Why it makes no task: {"code", "message", "column"}; done_before: an earlier job did it.
  comment on column first_id: The first of its tasks; all up to last_id are its own, or its batch's.
  comment on column result_id: The task whose output is its result.
  comment on column written: The state that was last written back to the source.
  constraint bulk_rows_check: CHECK ((((first_id IS NULL) = (last_id IS NULL)) AND ((first_id IS NULL) = (result_id IS NULL))))
  constraint bulk_rows_check1: CHECK (((problem IS NULL) OR (first_id IS NULL)))
  constraint bulk_rows_number_check: CHECK ((number >= 0))
  constraint bulk_rows_pkey: PRIMARY KEY (job_id, number)
  index bulk_rows_key: CREATE UNIQUE INDEX bulk_rows_key ON penstock.bulk_rows USING btree (job_id, key) WHERE (key IS NOT NULL)
  index bulk_rows_problem: CREATE INDEX bulk_rows_problem ON penstock.bulk_rows USING btree (job_id, number) WHERE (problem IS NOT NULL)
  index bulk_rows_waiting: CREATE INDEX bulk_rows_waiting ON penstock.bulk_rows USING btree (job_id, group_key, number) WHERE ((first_id IS NULL) AND (problem IS NULL))
  policy members_read: permissive for select to authenticated using (tenant_id IN ( SELECT penstock.my_tenants() AS my_tenants))
  policy service_reads: permissive for select to service_role using true
  grant to authenticated: select
  grant to service_role: select

table penstock.bulks
  comment: Jobs whose tasks are made from rows. The counts move once per part.
  row security: enabled
  options: fillfactor=50
  column job_id: uuid not null
  column tenant_id: uuid not null
  column type: text not null
  column source: jsonb not null default '{}'::jsonb
  column source_id: text
  column key: text[]
  column group_by: text
  column batch: integer
  column is_exclusive: boolean not null default false
  column preview: boolean not null default false
  column skip_done: boolean not null default false
  column loader: bigint
  column total: integer not null default 0
  column loaded: integer not null default 0
  column refused: integer not null default 0
  column skipped: integer not null default 0
  comment on column source_id: What stays the same when the source is read again.
  comment on column loader: The last task that was made to load its rows.
  constraint bulks_batch_check: CHECK (((batch >= 1) AND (batch <= 10000)))
  constraint bulks_check: CHECK ((((loaded + refused) + skipped) <= total))
  constraint bulks_pkey: PRIMARY KEY (job_id)
  constraint bulks_source_check: CHECK ((jsonb_typeof(source) = 'object'::text))
  index bulks_source: CREATE INDEX bulks_source ON penstock.bulks USING btree (tenant_id, type, source_id)
  policy members_read: permissive for select to authenticated using (tenant_id IN ( SELECT penstock.my_tenants() AS my_tenants))
  policy service_reads: permissive for select to service_role using true
  grant to authenticated: select
  grant to service_role: select

table penstock.calls
  comment: Capacity taken outside a claim with acquire_api_capacity; a call that is never released expires.
  row security: enabled
  column id: uuid not null default penstock._uuid7()
  column endpoint_id: integer not null
  column key: text
  column tokens: bigint not null
  column granted_at: timestamp with time zone not null
  column expires_at: timestamp with time zone not null
  constraint calls_endpoint_id_fkey: FOREIGN KEY (endpoint_id) REFERENCES penstock.endpoints(id) ON DELETE CASCADE
  constraint calls_pkey: PRIMARY KEY (id)
  index calls_endpoint: CREATE INDEX calls_endpoint ON penstock.calls USING btree (endpoint_id, granted_at)
  index calls_key: CREATE UNIQUE INDEX calls_key ON penstock.calls USING btree (endpoint_id, key) WHERE (key IS NOT NULL)
  policy service_reads: permissive for select to service_role using true
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

table penstock.cost_entries
  comment: The ledger of money: one line for each cost. Append-only; a correction is a line of its own.
  row security: enabled
  column id: bigint generated always as identity not null
  column at: timestamp with time zone not null
  column tenant_id: uuid not null
  column job_id: uuid
  column task_id: bigint
  column lease: bigint
  column provider: text
  column cost_type: text not null
  column meter: text
  column variant: text
  column unit_count: numeric
  column amount: numeric not null
  column currency: text not null
  column base_amount: numeric not null
  column price_id: bigint
  column corrects: bigint
  column started_at: timestamp with time zone
  column ended_at: timestamp with time zone
  column key: text
  column reason: text
  comment on column base_amount: The amount in the base currency, at the rate of its day.
  constraint cost_entries_corrects_fkey: FOREIGN KEY (corrects) REFERENCES penstock.cost_entries(id)
  constraint cost_entries_key_check: CHECK (((length(key) >= 1) AND (length(key) <= 255)))
  constraint cost_entries_pkey: PRIMARY KEY (id)
  constraint cost_entries_reason_check: CHECK ((length(reason) <= 1000))
  index cost_entries_at: CREATE INDEX cost_entries_at ON penstock.cost_entries USING brin (at)
  index cost_entries_corrects: CREATE INDEX cost_entries_corrects ON penstock.cost_entries USING btree (corrects) WHERE (corrects IS NOT NULL)
  index cost_entries_job: CREATE INDEX cost_entries_job ON penstock.cost_entries USING btree (job_id, id) WHERE (job_id IS NOT NULL)
  index cost_entries_key: CREATE UNIQUE INDEX cost_entries_key ON penstock.cost_entries USING btree (tenant_id, key) WHERE (key IS NOT NULL)
  index cost_entries_task: CREATE INDEX cost_entries_task ON penstock.cost_entries USING btree (job_id, task_id) WHERE (task_id IS NOT NULL)
  index cost_entries_tenant: CREATE INDEX cost_entries_tenant ON penstock.cost_entries USING btree (tenant_id, id)
  trigger cost_entries_kept: CREATE TRIGGER cost_entries_kept BEFORE DELETE OR UPDATE ON penstock.cost_entries FOR EACH STATEMENT EXECUTE FUNCTION penstock._keep_ledger()
  trigger cost_entries_sums: CREATE TRIGGER cost_entries_sums AFTER INSERT ON penstock.cost_entries REFERENCING NEW TABLE AS added FOR EACH STATEMENT EXECUTE FUNCTION penstock._add_up_costs()
  policy members_read: permissive for select to authenticated using (tenant_id IN ( SELECT penstock.my_tenants() AS my_tenants))
  policy service_reads: permissive for select to service_role using true
  grant to authenticated: select
  grant to service_role: select

table penstock.cost_sums
  comment: Costs per day, provider and type in the base currency, of each tenant and (tenant null) of all. Fresh rows are added up by upkeep.
  row security: enabled
  options: fillfactor=80
  column tenant_id: uuid
  column day: date not null
  column provider: text
  column cost_type: text not null
  column amount: numeric not null
  column unit_count: numeric not null
  column lines: bigint not null
  column is_fresh: boolean not null default true
  index cost_sums_day: CREATE INDEX cost_sums_day ON penstock.cost_sums USING btree (tenant_id, day)
  index cost_sums_fresh: CREATE INDEX cost_sums_fresh ON penstock.cost_sums USING btree (day) WHERE is_fresh
  index cost_sums_key: CREATE UNIQUE INDEX cost_sums_key ON penstock.cost_sums USING btree (tenant_id, day, provider, cost_type) NULLS NOT DISTINCT WHERE (NOT is_fresh)
  index cost_sums_of_day: CREATE INDEX cost_sums_of_day ON penstock.cost_sums USING btree (day) WHERE (tenant_id IS NOT NULL)
  policy members_read: permissive for select to authenticated using (tenant_id IN ( SELECT penstock.my_tenants() AS my_tenants))
  policy service_reads: permissive for select to service_role using true
  grant to authenticated: select
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
  index dead_letters_code: CREATE INDEX dead_letters_code ON penstock.dead_letters USING btree (error_code, id)
  index dead_letters_job: CREATE INDEX dead_letters_job ON penstock.dead_letters USING btree (job_id, task_id)
  index dead_letters_tenant: CREATE INDEX dead_letters_tenant ON penstock.dead_letters USING btree (tenant_id, id)
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

table penstock.endpoint_states
  comment: What is known of an endpoint at the moment. Who admits work locks this row.
  row security: enabled
  options: fillfactor=50
  column endpoint_id: integer not null
  column open_at: timestamp with time zone not null default '1970-01-01 00:00:00+00'::timestamp with time zone
  column open_for: text
  column closed_until: timestamp with time zone not null default '1970-01-01 00:00:00+00'::timestamp with time zone
  column closed_reason: text
  column pace: real not null default 1
  column paced_at: timestamp with time zone not null default '1970-01-01 00:00:00+00'::timestamp with time zone
  column requests_limit: bigint
  column tokens_limit: bigint
  column told_at: timestamp with time zone not null default '1970-01-01 00:00:00+00'::timestamp with time zone
  column refusals: integer not null default 0
  column refused_at: timestamp with time zone
  comment on column open_at: Its windows are full until then.
  comment on column closed_until: The provider asked to wait until then; infinity: it must be opened by hand.
  comment on column pace: Which part of its limits is used since the last refusal; grows back by itself.
  comment on column requests_limit: What the provider itself says its limit is, where that is less than ours.
  comment on column told_at: When it last said so. An hour later it counts no more.
  constraint endpoint_states_endpoint_id_fkey: FOREIGN KEY (endpoint_id) REFERENCES penstock.endpoints(id) ON DELETE CASCADE
  constraint endpoint_states_pace_check: CHECK (((pace > (0)::double precision) AND (pace <= (1)::double precision)))
  constraint endpoint_states_pkey: PRIMARY KEY (endpoint_id)
  policy service_reads: permissive for select to service_role using true
  grant to service_role: select

table penstock.endpoints
  comment: Provider endpoints with their limits (null: none). A tenant's own row wins over the one for all.
  row security: enabled
  column id: integer generated always as identity not null
  column provider: text not null
  column endpoint: text not null
  column name: text not null generated always as ((provider || '/'::text) || endpoint)
  column tenant_id: uuid
  column status: text not null default 'active'::text
  column requests_per_minute: bigint
  column requests_per_hour: bigint
  column tokens_per_minute: bigint
  column tokens_per_hour: bigint
  column concurrency: integer
  column default_tokens: bigint not null default 1000
  column backpressure_threshold: real
  column backpressure_delay_seconds: real
  column depth_limit: integer
  column features: text[] not null default '{}'::text[]
  column changed_at: timestamp with time zone not null
  comment on column default_tokens: The estimate for a task that does not say how many tokens it needs.
  comment on column depth_limit: With so many tasks waiting, more are refused; null: never.
  constraint endpoints_backpressure_delay_seconds_check: CHECK (((backpressure_delay_seconds >= (0)::double precision) AND (backpressure_delay_seconds <= (86400)::double precision)))
  constraint endpoints_backpressure_threshold_check: CHECK (((backpressure_threshold >= (0)::double precision) AND (backpressure_threshold <= (1)::double precision)))
  constraint endpoints_concurrency_check: CHECK (((concurrency >= 0) AND (concurrency <= 1000000)))
  constraint endpoints_default_tokens_check: CHECK (((default_tokens >= 0) AND (default_tokens <= 1000000000)))
  constraint endpoints_depth_limit_check: CHECK (((depth_limit >= 0) AND (depth_limit <= 100000000)))
  constraint endpoints_endpoint_check: CHECK ((endpoint ~ '^[A-Za-z0-9][A-Za-z0-9_.:/-]{0,98}$'::text))
  constraint endpoints_pkey: PRIMARY KEY (id)
  constraint endpoints_provider_check: CHECK ((provider ~ '^[a-z0-9][a-z0-9_.-]{0,99}$'::text))
  constraint endpoints_requests_per_hour_check: CHECK (((requests_per_hour >= 0) AND (requests_per_hour <= 1000000000)))
  constraint endpoints_requests_per_minute_check: CHECK (((requests_per_minute >= 0) AND (requests_per_minute <= 1000000000)))
  constraint endpoints_status_check: CHECK ((status = ANY (ARRAY['active'::text, 'disabled'::text, 'maintenance'::text])))
  constraint endpoints_tenant_id_fkey: FOREIGN KEY (tenant_id) REFERENCES penstock.tenants(id) ON DELETE CASCADE
  constraint endpoints_tenant_id_provider_endpoint_key: UNIQUE NULLS NOT DISTINCT (tenant_id, provider, endpoint)
  constraint endpoints_tokens_per_hour_check: CHECK (((tokens_per_hour >= 0) AND (tokens_per_hour <= '1000000000000'::bigint)))
  constraint endpoints_tokens_per_minute_check: CHECK (((tokens_per_minute >= 0) AND (tokens_per_minute <= '1000000000000'::bigint)))
  index endpoints_name: CREATE INDEX endpoints_name ON penstock.endpoints USING btree (name)
  index endpoints_tenant: CREATE INDEX endpoints_tenant ON penstock.endpoints USING btree (tenant_id) WHERE (tenant_id IS NOT NULL)
  policy members_read: permissive for select to authenticated using ((tenant_id IS NULL) OR (tenant_id IN ( SELECT penstock.my_tenants() AS my_tenants)))
  policy service_reads: permissive for select to service_role using true
  grant to authenticated: select
  grant to service_role: select

table penstock.exchange_rates
  comment: What one unit of a currency is worth in the base currency, from a date on.
  row security: enabled
  column currency: text not null
  column valid_from: timestamp with time zone not null
  column rate: numeric not null
  constraint exchange_rates_currency_check: CHECK ((currency ~ '^[A-Z]{3}$'::text))
  constraint exchange_rates_pkey: PRIMARY KEY (currency, valid_from)
  constraint exchange_rates_rate_check: CHECK ((rate > (0)::numeric))
  policy all_read: permissive for select to authenticated using true
  policy service_reads: permissive for select to service_role using true
  grant to authenticated: select
  grant to service_role: select

table penstock.holds
  comment: Amounts set aside for an attempt, or for a caller, until they are committed or released.
  row security: enabled
  column id: uuid not null default penstock._uuid7()
  column tenant_id: uuid not null
  column job_id: uuid
  column task_id: bigint
  column lease: bigint
  column key: text
  column action: text not null
  column amounts: jsonb not null
  column spent: jsonb not null default '{}'::jsonb
  column has_budget: boolean not null default false
  column status: text not null default 'held'::text
  column at: timestamp with time zone not null
  column expires_at: timestamp with time zone
  column settled_at: timestamp with time zone
  constraint holds_check: CHECK (((lease IS NULL) = (expires_at IS NOT NULL)))
  constraint holds_key_check: CHECK (((length(key) >= 1) AND (length(key) <= 255)))
  constraint holds_pkey: PRIMARY KEY (id)
  constraint holds_status_check: CHECK ((status = ANY (ARRAY['held'::text, 'committed'::text, 'released'::text, 'expired'::text])))
  index holds_due: CREATE INDEX holds_due ON penstock.holds USING btree (expires_at) WHERE ((status = 'held'::text) AND (expires_at IS NOT NULL))
  index holds_key: CREATE UNIQUE INDEX holds_key ON penstock.holds USING btree (tenant_id, key) WHERE (key IS NOT NULL)
  index holds_lease: CREATE UNIQUE INDEX holds_lease ON penstock.holds USING btree (task_id, lease) WHERE (lease IS NOT NULL)
  index holds_live: CREATE INDEX holds_live ON penstock.holds USING btree (tenant_id) WHERE (status = 'held'::text)
  index holds_settled: CREATE INDEX holds_settled ON penstock.holds USING btree (settled_at) WHERE (settled_at IS NOT NULL)
  policy members_read: permissive for select to authenticated using (tenant_id IN ( SELECT penstock.my_tenants() AS my_tenants))
  policy service_reads: permissive for select to service_role using true
  grant to authenticated: select
  grant to service_role: select

table penstock.job_types
  comment: Declared job types: phases with weights, in order, and what a failed task does to the rest.
  row security: enabled
  column name: text not null
  column phases: jsonb not null default '[]'::jsonb
  column on_failure: text not null default 'continue'::text
  column bulk: jsonb
  comment on column bulk: How its rows are taken: key, group_by, batch, is_exclusive. Null: its jobs have no rows.
  constraint job_types_bulk_check: CHECK ((jsonb_typeof(bulk) = 'object'::text))
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
  column budget: numeric
  column on_limit: text not null default 'hold'::text
  column confirmed_at: timestamp with time zone
  column stop_after: text
  column forgiven: integer not null default 0
  comment on column budget: What it may cost, in the base currency. It pauses before it costs more.
  comment on column on_limit: What becomes of a task for which the tenant's quota has no room: it is held back, or fails, or the job pauses.
  comment on column confirmed_at: Tasks made until then need no further confirmation.
  comment on column stop_after: It pauses after so many failed tasks, or after so many percent of its largest phase.
  comment on column forgiven: Failures that a resume took note of: stop_after counts from there.
  constraint jobs_budget_check: CHECK ((budget >= (0)::numeric))
  constraint jobs_check: CHECK (((finished_at IS NOT NULL) = (status = ANY (ARRAY['completed'::text, 'failed'::text, 'canceled'::text]))))
  constraint jobs_forgiven_check: CHECK ((forgiven >= 0))
  constraint jobs_idempotency_key_check: CHECK (((length(idempotency_key) >= 1) AND (length(idempotency_key) <= 255)))
  constraint jobs_on_failure_check: CHECK ((on_failure = ANY (ARRAY['continue'::text, 'stop'::text])))
  constraint jobs_on_limit_check: CHECK ((on_limit = ANY (ARRAY['hold'::text, 'refuse'::text, 'pause'::text])))
  constraint jobs_pkey: PRIMARY KEY (id)
  constraint jobs_priority_check: CHECK (((priority >= 0) AND (priority <= 10)))
  constraint jobs_status_check: CHECK ((status = ANY (ARRAY['queued'::text, 'running'::text, 'paused'::text, 'completed'::text, 'failed'::text, 'canceled'::text])))
  constraint jobs_stop_after_check: CHECK ((stop_after ~ '^([1-9][0-9]{0,8}|(100|[1-9]?[0-9](\.[0-9]{1,3})?)%)$'::text))
  constraint jobs_tenant_id_fkey: FOREIGN KEY (tenant_id) REFERENCES penstock.tenants(id)
  constraint jobs_type_check: CHECK (((length(type) >= 1) AND (length(type) <= 200)))
  index jobs_budget: CREATE INDEX jobs_budget ON penstock.jobs USING btree (tenant_id, id) WHERE ((budget IS NOT NULL) AND (finished_at IS NULL))
  index jobs_finished: CREATE INDEX jobs_finished ON penstock.jobs USING btree (finished_at) WHERE (finished_at IS NOT NULL)
  index jobs_idempotency: CREATE UNIQUE INDEX jobs_idempotency ON penstock.jobs USING btree (tenant_id, idempotency_key) WHERE (idempotency_key IS NOT NULL)
  index jobs_pausing: CREATE INDEX jobs_pausing ON penstock.jobs USING btree (tenant_id, id) WHERE ((on_limit = 'pause'::text) AND (finished_at IS NULL))
  index jobs_status: CREATE INDEX jobs_status ON penstock.jobs USING btree (status, id)
  index jobs_tenant: CREATE INDEX jobs_tenant ON penstock.jobs USING btree (tenant_id, id)
  index jobs_tenant_status: CREATE INDEX jobs_tenant_status ON penstock.jobs USING btree (tenant_id, status, id)
  index jobs_type: CREATE INDEX jobs_type ON penstock.jobs USING btree (type, created_at)
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
  column tenant_id: uuid
  column endpoint_id: integer
  column is_gated: boolean not null default false
  comment on column clock: Virtual time: the slot last dealt. New work starts here.
  comment on column read_from: Where a claim starts reading: the clock a moment ago, so that what commits a little late is still met.
  comment on column tenant_id: The tenant whose own endpoint this is; null: for all.
  comment on column is_gated: Its tasks name a provider or units: limits, quotas and budgets decide at the claim.
  constraint lanes_key: UNIQUE NULLS NOT DISTINCT (tenant_id, kind, provider, is_gated)
  constraint lanes_kind_fkey: FOREIGN KEY (kind) REFERENCES penstock.kinds(name)
  constraint lanes_pkey: PRIMARY KEY (id)
  constraint lanes_provider_check: CHECK (((length(provider) >= 1) AND (length(provider) <= 200)))
  index lanes_endpoint: CREATE INDEX lanes_endpoint ON penstock.lanes USING btree (endpoint_id)
  index lanes_provider: CREATE INDEX lanes_provider ON penstock.lanes USING btree (provider)
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
  column is_gated: boolean not null default false
  column usage: jsonb
  comment on column usage: What the attempt has reported so far.
  constraint leases_fraction_check: CHECK (((fraction >= (0)::double precision) AND (fraction <= (1)::double precision)))
  constraint leases_pkey: PRIMARY KEY (task_id)
  index leases_gated: CREATE INDEX leases_gated ON penstock.leases USING btree (lane_id) WHERE is_gated
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

table penstock.meters
  comment: The things that are counted.
  row security: enabled
  column name: text not null
  column period: text not null default 'month'::text
  column mode: text not null default 'enforce'::text
  column comment: text not null default ''::text
  comment on column mode: What happens over a limit: it is only recorded (observe), or work is held back (enforce).
  constraint meters_mode_check: CHECK ((mode = ANY (ARRAY['observe'::text, 'enforce'::text])))
  constraint meters_name_check: CHECK ((name ~ '^[a-z][a-z0-9_]{0,62}$'::text))
  constraint meters_period_check: CHECK ((period = ANY (ARRAY['day'::text, 'month'::text, 'total'::text])))
  constraint meters_pkey: PRIMARY KEY (name)
  policy all_read: permissive for select to authenticated using true
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
  column waits_for: text
  comment on column waits_for: The meter whose quota has no room for it; budget, limit or price; confirm.
  constraint parked_pending_check: CHECK ((pending >= 0))
  constraint parked_pkey: PRIMARY KEY (job_id, task_id)
  index parked_due: CREATE INDEX parked_due ON penstock.parked USING btree (until) WHERE ((pending = 0) AND (until < 'infinity'::timestamp with time zone))
  index parked_waits: CREATE INDEX parked_waits ON penstock.parked USING btree (tenant_id, waits_for, job_id, task_id) WHERE (waits_for IS NOT NULL)
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

table penstock.plans
  comment: What a tenant may pay for. Limits per meter; a meter that is null or missing is not limited.
  row security: enabled
  column name: text not null
  column title: text not null
  column comment: text not null default ''::text
  column limits: jsonb not null default '{}'::jsonb
  column features: text[] not null default '{}'::text[]
  column price: numeric not null default 0
  column currency: text not null default 'USD'::text
  column weight: real not null default 1
  column is_active: boolean not null default true
  column "position": integer not null default 0
  constraint plans_currency_check: CHECK ((currency ~ '^[A-Z]{3}$'::text))
  constraint plans_limits_check: CHECK ((jsonb_typeof(limits) = 'object'::text))
  constraint plans_name_check: CHECK ((name ~ '^[a-z][a-z0-9_-]{0,62}$'::text))
  constraint plans_pkey: PRIMARY KEY (name)
  constraint plans_price_check: CHECK ((price >= (0)::numeric))
  constraint plans_title_check: CHECK (((length(title) >= 1) AND (length(title) <= 200)))
  constraint plans_weight_check: CHECK (((weight > (0)::double precision) AND (weight <= (1000)::double precision)))
  policy all_read: permissive for select to authenticated using true
  policy service_reads: permissive for select to service_role using true
  grant to authenticated: select
  grant to service_role: select

table penstock.prices
  comment: What one unit costs from a date on, until the next price of the same thing; amount null: no price from then on.
  row security: enabled
  column id: bigint generated always as identity not null
  column provider: text not null
  column tenant_id: uuid
  column meter: text not null
  column variant: text not null default 'standard'::text
  column cost_type: text not null default 'inference'::text
  column amount: numeric
  column currency: text not null
  column valid_from: timestamp with time zone not null
  column created_at: timestamp with time zone not null
  constraint prices_amount_check: CHECK ((amount >= (0)::numeric))
  constraint prices_cost_type_check: CHECK ((cost_type ~ '^[a-z][a-z0-9_]{0,62}$'::text))
  constraint prices_currency_check: CHECK ((currency ~ '^[A-Z]{3}$'::text))
  constraint prices_meter_fkey: FOREIGN KEY (meter) REFERENCES penstock.meters(name)
  constraint prices_pkey: PRIMARY KEY (id)
  constraint prices_provider_check: CHECK (((length(provider) >= 1) AND (length(provider) <= 200)))
  constraint prices_tenant_id_fkey: FOREIGN KEY (tenant_id) REFERENCES penstock.tenants(id) ON DELETE CASCADE
  constraint prices_variant_check: CHECK ((variant ~ '^[a-z][a-z0-9_]{0,62}$'::text))
  index prices_key: CREATE UNIQUE INDEX prices_key ON penstock.prices USING btree (tenant_id, provider, meter, variant, valid_from) NULLS NOT DISTINCT
  index prices_provider: CREATE INDEX prices_provider ON penstock.prices USING btree (provider, meter)
  policy members_read: permissive for select to authenticated using ((tenant_id IS NULL) OR (tenant_id IN ( SELECT penstock.my_tenants() AS my_tenants)))
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

table penstock.provider_events
  comment: What providers refused, and who changed their limits. Append-only.
  row security: enabled
  column id: bigint generated always as identity not null
  column at: timestamp with time zone not null
  column endpoint_id: integer not null
  column tenant_id: uuid
  column event: text not null
  column details: jsonb not null default '{}'::jsonb
  constraint provider_events_event_check: CHECK ((event = ANY (ARRAY['refused'::text, 'exhausted'::text, 'opened'::text, 'changed'::text])))
  constraint provider_events_pkey: PRIMARY KEY (id)
  index provider_events_endpoint: CREATE INDEX provider_events_endpoint ON penstock.provider_events USING btree (endpoint_id, id)
  policy service_reads: permissive for select to service_role using true
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

table penstock.requests
  comment: What was answered to requests with an idempotency key, for a day.
  row security: enabled
  column actor: text not null
  column key: text not null
  column digest: bytea not null
  column status: integer
  column answer: jsonb
  column created_at: timestamp with time zone not null
  constraint requests_key_check: CHECK (((length(key) >= 1) AND (length(key) <= 255)))
  constraint requests_pkey: PRIMARY KEY (actor, key)
  index requests_created: CREATE INDEX requests_created ON penstock.requests USING btree (created_at)
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
  index results_finished: CREATE INDEX results_finished ON penstock.results USING brin (finished_at) WITH (pages_per_range='32', autosummarize='on')
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
  constraint schedules_job_type_check: CHECK (((length(job_type) >= 1) AND (length(job_type) <= 200)))
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

table penstock.spent
  comment: What was admitted: slots of a quarter of a second for the minute's window (width 1), and of a minute for the hour's (60).
  row security: enabled
  options: fillfactor=50
  column endpoint_id: integer not null
  column width: smallint not null
  column slot: bigint not null
  column requests: bigint not null
  column tokens: bigint not null
  constraint spent_endpoint_id_fkey: FOREIGN KEY (endpoint_id) REFERENCES penstock.endpoints(id) ON DELETE CASCADE
  constraint spent_pkey: PRIMARY KEY (endpoint_id, width, slot)
  constraint spent_width_check: CHECK ((width = ANY (ARRAY[1, 60])))
  policy service_reads: permissive for select to service_role using true
  grant to service_role: select

table penstock.task_sums
  comment: Tasks that ended in a minute, of each tenant and (tenant null) of all. Upkeep adds a minute when it is over.
  row security: enabled
  column tenant_id: uuid
  column minute: timestamp with time zone not null
  column succeeded: integer not null
  column failed: integer not null
  column waits: jsonb not null
  column runs: jsonb not null
  comment on column waits: How many waited how long: {"bucket": tasks}; a bucket begins at 2^(n/2) milliseconds.
  comment on column runs: How many ran how long, in the same buckets.
  constraint task_sums_tenant_id_minute_key: UNIQUE NULLS NOT DISTINCT (tenant_id, minute)
  index task_sums_minute: CREATE INDEX task_sums_minute ON penstock.task_sums USING btree (minute)
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
  column route: jsonb
  column confirm: boolean not null default false
  comment on column route: What it asked of a provider instead of naming one, and what was chosen for which reason.
  comment on column confirm: It does not run before its job was confirmed.
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

table penstock.tenant_limits
  comment: A tenant's own limit, in place of its plan's; null: none.
  row security: enabled
  column tenant_id: uuid not null
  column meter: text not null
  column amount: numeric
  constraint tenant_limits_amount_check: CHECK ((amount >= (0)::numeric))
  constraint tenant_limits_meter_fkey: FOREIGN KEY (meter) REFERENCES penstock.meters(name)
  constraint tenant_limits_pkey: PRIMARY KEY (tenant_id, meter)
  constraint tenant_limits_tenant_id_fkey: FOREIGN KEY (tenant_id) REFERENCES penstock.tenants(id) ON DELETE CASCADE
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
  column plan: text
  comment on column weight: Share of a lane, relative to other tenants' weights.
  comment on column plan: Null: no limits.
  constraint tenants_name_check: CHECK (((length(name) >= 1) AND (length(name) <= 200)))
  constraint tenants_pkey: PRIMARY KEY (id)
  constraint tenants_plan_fkey: FOREIGN KEY (plan) REFERENCES penstock.plans(name)
  constraint tenants_weight_check: CHECK (((weight > (0)::double precision) AND (weight <= (1000)::double precision)))
  index tenants_name: CREATE INDEX tenants_name ON penstock.tenants USING btree (name)
  policy members_read: permissive for select to authenticated using (id IN ( SELECT penstock.my_tenants() AS my_tenants))
  policy service_reads: permissive for select to service_role using true
  grant to authenticated: select
  grant to service_role: select

table penstock.usage_events
  comment: Every use of anything metered, one line per call. Append-only.
  row security: enabled
  column id: bigint generated always as identity not null
  column at: timestamp with time zone not null
  column tenant_id: uuid not null
  column action: text not null
  column job_id: uuid
  column task_id: bigint
  column lease: bigint
  column hold_id: uuid
  column provider: text
  column units: jsonb not null
  column is_estimate: boolean not null default false
  column details: jsonb not null default '{}'::jsonb
  comment on column is_estimate: The attempt reported nothing: its estimate stands.
  constraint usage_events_pkey: PRIMARY KEY (id)
  index usage_events_at: CREATE INDEX usage_events_at ON penstock.usage_events USING brin (at)
  index usage_events_hold: CREATE INDEX usage_events_hold ON penstock.usage_events USING btree (hold_id) WHERE (hold_id IS NOT NULL)
  index usage_events_provider: CREATE INDEX usage_events_provider ON penstock.usage_events USING btree (provider, id) WHERE (provider IS NOT NULL)
  index usage_events_tenant: CREATE INDEX usage_events_tenant ON penstock.usage_events USING btree (tenant_id, id)
  policy members_read: permissive for select to authenticated using (tenant_id IN ( SELECT penstock.my_tenants() AS my_tenants))
  policy service_reads: permissive for select to service_role using true
  grant to authenticated: select
  grant to service_role: select

table penstock.usage_sums
  comment: Usage per tenant, action and UTC day. Who records adds a fresh row, so that nobody waits; upkeep adds these up.
  row security: enabled
  options: fillfactor=80
  column tenant_id: uuid not null
  column action: text not null
  column day: date not null
  column meter: text not null
  column amount: numeric not null
  column is_fresh: boolean not null default true
  index usage_sums_day: CREATE INDEX usage_sums_day ON penstock.usage_sums USING btree (tenant_id, day)
  index usage_sums_fresh: CREATE INDEX usage_sums_fresh ON penstock.usage_sums USING btree (day) WHERE is_fresh
  index usage_sums_key: CREATE UNIQUE INDEX usage_sums_key ON penstock.usage_sums USING btree (tenant_id, day, action, meter) WHERE (NOT is_fresh)
  policy members_read: permissive for select to authenticated using (tenant_id IN ( SELECT penstock.my_tenants() AS my_tenants))
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
  column drain_asked_at: timestamp with time zone
  comment on column drain_asked_at: When somebody asked it to take nothing new and end; it sees that at its next beat.
  constraint workers_id_check: CHECK (((length(id) >= 1) AND (length(id) <= 200)))
  constraint workers_pkey: PRIMARY KEY (id)
  constraint workers_state_check: CHECK ((state = ANY (ARRAY['running'::text, 'draining'::text, 'stopped'::text])))
  policy service_reads: permissive for select to service_role using true
  grant to service_role: select

view penstock.bulk_list
  comment: Bulk jobs with their source and how many rows they took.
  options: security_invoker=true
  column id: uuid
  column tenant_id: uuid
  column type: text
  column status: text
  column status_reason: text
  column created_by: text
  column created_at: timestamp with time zone
  column started_at: timestamp with time zone
  column finished_at: timestamp with time zone
  column source: jsonb
  column source_id: text
  column total: integer
  column loaded: integer
  column refused: integer
  column skipped: integer
  column preview: boolean
  column percent: integer
  reads penstock.bulks: job_id, loaded, preview, refused, skipped, source, source_id, total
  reads penstock.job_list: id, percent
  reads penstock.jobs: created_at, created_by, finished_at, id, started_at, status, status_reason, tenant_id, type
  grant to authenticated: select
  grant to service_role: select

view penstock.bulk_row_list
  comment: The rows of bulk jobs, each with its state, result, error, retries and cost.
  options: security_invoker=true
  column job_id: uuid
  column tenant_id: uuid
  column number: bigint
  column key: text
  column state: text
  column data: jsonb
  column output: jsonb
  column error_code: text
  column error_message: text
  column problem: jsonb
  column retries: integer
  column cost: numeric
  column started_at: timestamp with time zone
  column finished_at: timestamp with time zone
  column first_id: bigint
  column result_id: bigint
  column last_id: bigint
  column written: text
  column changes: integer
  column undone: integer
  reads penstock.attempts: job_id, task_id
  reads penstock.bulk_changes: job_id, row_number, undone_at
  reads penstock.bulk_rows: data, first_id, job_id, key, last_id, number, problem, result_id, tenant_id, written
  grant to authenticated: select
  grant to service_role: select

view penstock.cost_days
  comment: Costs in the base currency per tenant, UTC day, provider and type.
  options: security_invoker=true
  column tenant_id: uuid
  column day: date
  column provider: text
  column cost_type: text
  column amount: numeric
  column unit_count: numeric
  column lines: bigint
  reads penstock.cost_sums: amount, cost_type, day, lines, provider, tenant_id, unit_count
  grant to authenticated: select
  grant to service_role: select

view penstock.cost_totals
  comment: Costs of all tenants in the base currency per UTC day, provider and type.
  options: security_invoker=true
  column day: date
  column provider: text
  column cost_type: text
  column amount: numeric
  column unit_count: numeric
  column lines: bigint
  reads penstock.cost_sums: amount, cost_type, day, lines, provider, tenant_id, unit_count
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

view penstock.job_costs
  comment: What each job has cost, what is set aside for its running tasks, and its budget.
  options: security_invoker=true
  column tenant_id: uuid
  column job_id: uuid
  column type: text
  column status: text
  column cost: numeric
  column held: numeric
  column budget: numeric
  reads penstock.accounts: held, job_id, meter, tenant_id, used
  reads penstock.jobs: budget, id, status, type
  grant to authenticated: select
  grant to service_role: select

view penstock.job_list
  comment: Jobs with their counts of tasks and of documents, percent and phase.
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
  column docs_complete: integer
  column docs_total: integer
  reads penstock.jobs: created_at, created_by, finished_at, id, params, priority, run_at, started_at, status, status_reason, tenant_id, type
  reads penstock.phases: canceled, failed, job_id, name, position, succeeded, tenant_id, total, weight
  grant to authenticated: select
  grant to service_role: select

view penstock.price_list
  comment: Prices with the time they hold.
  options: security_invoker=true
  column id: bigint
  column provider: text
  column tenant_id: uuid
  column meter: text
  column variant: text
  column cost_type: text
  column amount: numeric
  column currency: text
  column valid_from: timestamp with time zone
  column valid_until: timestamp with time zone
  column is_current: boolean
  reads penstock.prices: amount, cost_type, currency, id, meter, provider, tenant_id, valid_from, variant
  grant to authenticated: select
  grant to service_role: select

view penstock.provider_list
  comment: Provider endpoints: limits, what of them is in use in the present windows, and whether they take work.
  options: security_invoker=true
  column id: integer
  column name: text
  column tenant_id: uuid
  column state: text
  column reason: text
  column opens_at: timestamp with time zone
  column requests_per_minute: bigint
  column requests_minute: bigint
  column tokens_per_minute: bigint
  column tokens_minute: bigint
  column requests_per_hour: bigint
  column requests_hour: bigint
  column tokens_per_hour: bigint
  column tokens_hour: bigint
  column concurrency: integer
  column running: integer
  column waiting: bigint
  column pace: numeric
  column refusals: integer
  column refused_at: timestamp with time zone
  column default_tokens: bigint
  column backpressure_threshold: real
  column backpressure_delay_seconds: real
  column depth_limit: integer
  column features: text[]
  column changed_at: timestamp with time zone
  reads penstock.calls: endpoint_id, expires_at
  reads penstock.endpoint_states: closed_reason, closed_until, endpoint_id, open_at, open_for, pace, paced_at, refusals, refused_at
  reads penstock.endpoints: backpressure_delay_seconds, backpressure_threshold, changed_at, concurrency, default_tokens, depth_limit, features, id, name, requests_per_hour, requests_per_minute, status, tenant_id, tokens_per_hour, tokens_per_minute
  reads penstock.lanes: endpoint_id, id
  reads penstock.leases: is_gated, lane_id
  reads penstock.ready: lane_id
  reads penstock.spent: endpoint_id, requests, slot, tokens, width
  grant to service_role: select

view penstock.provider_outcomes
  comment: How tasks ended at each provider, and how long they took.
  options: security_invoker=true
  column tenant_id: uuid
  column provider: text
  column outcome: text
  column tasks: bigint
  column seconds: numeric
  reads penstock.lanes: id, provider
  reads penstock.results: finished_at, job_id, outcome, started_at, task_id
  reads penstock.tasks: id, job_id, lane_id, tenant_id
  grant to service_role: select

view penstock.rate_comparison
  comment: What a unit costs at each provider now, cheapest first.
  options: security_invoker=true
  column meter: text
  column variant: text
  column provider: text
  column tenant_id: uuid
  column amount: numeric
  column currency: text
  column base_amount: numeric
  column place: bigint
  reads penstock.price_list: amount, currency, is_current, meter, provider, tenant_id, variant
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

view penstock.usage_days
  comment: Usage per tenant, UTC day, action and meter.
  options: security_invoker=true
  column tenant_id: uuid
  column day: date
  column action: text
  column meter: text
  column amount: numeric
  reads penstock.usage_sums: action, amount, day, meter, tenant_id
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

function penstock._about(double precision)
  arguments: p_seconds double precision
  returns: text
  attributes: sql, immutable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 d379b82ecfbe26dda350500ef3736ef5
  comment: A duration for people.

function penstock._act(text, text[], text)
  arguments: p_verb text, p_subjects text[], p_reason text, OUT done integer, OUT refused integer, OUT refusal text
  returns: record
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 186660ce5938d72c70eb5f5f51cb6ff7
  comment: Does it to these, and says to how many, and why not to others.

function penstock._acting_on(text, text[], uuid)
  arguments: p_verb text, p_subjects text[], p_user_id uuid
  returns: text[]
  attributes: plpgsql, stable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 717d6c1177392a6d8be5902793e4f2dd
  comment: Those of the subjects that are there and that the user, or the service, may act on; in order.

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
  body: sha256 19f85a8c8b666c5a63f2c42e85658e6a
  comment: Writes the graph of new tasks and returns the parents that were there before.

function penstock._add_phases(penstock.jobs, penstock.task_spec[])
  arguments: p_job penstock.jobs, p_specs penstock.task_spec[]
  returns: void
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 a5330ef29c75028cf4e0af3a6c40aa92
  comment: A declared type has its phases; otherwise they are made as tasks name them, a kind's name standing in for none.

function penstock._add_tasks(uuid, jsonb)
  arguments: p_job_id uuid, p_tasks jsonb
  returns: bigint[]
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 24da9598ffcc27f2aaaf8b7b703959bb
  comment: Checks, writes and queues new tasks of a job.

function penstock._add_up_costs()
  returns: trigger
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 f2076a3434e330d7e7a5e024f51a73e3
  comment: Every line of the ledger is in the sums, in the same transaction.

function penstock._admit(penstock.endpoints, penstock.capacity, penstock.window_fit, timestamp with time zone)
  arguments: p_endpoint penstock.endpoints, p_capacity penstock.capacity, p_fit penstock.window_fit, p_now timestamp with time zone
  returns: void
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 1d2b8d4d68c91b32f75c7ee4fd8d9f7e
  comment: Counts the tasks that fit in the windows of their endpoint, parks those that never fit, and closes the endpoint until the next one fits.

function penstock._apply_told_limits(penstock.endpoints, penstock.endpoint_states, bigint, bigint)
  arguments: p_endpoint penstock.endpoints, p_before penstock.endpoint_states, p_requests bigint, p_tokens bigint
  returns: void
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 04ae663649fa5a914a8f067f5e25cb12
  comment: Keeps the limits that a provider reports, for an hour (see _forget_told_limits), and retries tasks that a lower one had parked.

function penstock._artifact_path(text, text, text, text)
  arguments: p_folder text, p_stem text, p_name text, p_content_type text
  returns: text
  attributes: plpgsql, immutable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 1b87d3100bad4913a4ab0f5cf2111ab8
  comment: Where a file goes: plain characters only, the same for the same name.

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

function penstock._base_rate(text, timestamp with time zone)
  arguments: p_currency text, p_at timestamp with time zone
  returns: numeric
  attributes: sql, stable, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 94bb381d2d31aaf371eef90557641b21
  comment: What one unit of a currency was worth in the base currency; null: not known.
  grant to authenticated: execute
  grant to service_role: execute

function penstock._batch_without(bigint[], bigint[], penstock.leases[])
  arguments: p_task_ids bigint[], p_leases bigint[], p_taken penstock.leases[], OUT task_ids bigint[], OUT leases bigint[]
  returns: record
  attributes: sql, immutable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 7535b26146983a11a7fc04d1571e606a
  comment: The tasks of a batch that are not among those taken.

function penstock._best_provider(jsonb, uuid, jsonb)
  arguments: p_route jsonb, p_tenant_id uuid, p_units jsonb
  returns: penstock.provider_choice
  attributes: sql, stable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 63727af1e799fe479ab3f64844306bb4
  comment: The provider that a route prefers: open ones first, then the cheapest, the fastest or the first of the list.

function penstock._book(penstock.booking[])
  arguments: p_bookings penstock.booking[]
  returns: void
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 9c3f119c942ac4977169763644a40bba
  comment: Adds to accounts, in the lock order.

function penstock._bucket(double precision)
  arguments: p_seconds double precision
  returns: integer
  attributes: sql, immutable, security invoker, parallel unsafe
  body: sha256 cee196524f5099f8ffdba8c1047b5579
  comment: The bucket of a duration: number n begins at 2^(n/2) milliseconds.

function penstock._bulk_row_state(penstock.bulk_rows)
  arguments: p_row penstock.bulk_rows
  returns: TABLE(state text, output jsonb, error_code text, error_message text, started_at timestamp with time zone, finished_at timestamp with time zone)
  attributes: sql, stable, security invoker, parallel unsafe
  body: sha256 cc058bc8cefa9aab9242dde8394e4c7c
  comment: Where a row stands: the state, result and error of the tasks it made. The only place where this is decided.
  grant to authenticated: execute
  grant to service_role: execute

function penstock._bury(penstock.leases[], text[], text[], text[])
  arguments: p_leases penstock.leases[], p_reasons text[], p_codes text[], p_messages text[]
  returns: void
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 149190f1b1ad6d12b99b1f8ff170cc25
  comment: Ends tasks as failed for good, with their letters, and everything that follows.

function penstock._call_size(jsonb, bigint)
  arguments: p_units jsonb, p_default_tokens bigint
  returns: TABLE(requests bigint, tokens bigint)
  attributes: sql, immutable, security invoker, parallel unsafe
  body: sha256 f84e976b54b4e0d4101c5f652ec9a423
  comment: The requests and tokens that a call counts in its endpoint's windows.

function penstock._caller_tenant(uuid)
  arguments: p_tenant_id uuid
  returns: uuid
  attributes: plpgsql, stable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 8820aefaec22d59fab6faa9e6f90db23
  comment: The tenant a call works for: the one named, if the caller may, else the caller's own.

function penstock._can_count_calls(integer, timestamp with time zone)
  arguments: p_endpoint_id integer, p_at timestamp with time zone
  returns: boolean
  attributes: sql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 3b82da2ed48319c7144dad28e9d00a56
  comment: Whether calls admitted at a given time can be counted without waiting for another transaction.

function penstock._check_artifact(text, text, bigint, bigint)
  arguments: p_name text, p_content_type text, p_bytes bigint, p_limit bigint
  returns: void
  attributes: plpgsql, stable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 66c2cf1e7de8c45e13210349ac331c8c
  comment: Refuses what cannot be the name, type or size of a file.

function penstock._check_batch(bigint[], bigint[], integer)
  arguments: p_task_ids bigint[], p_leases bigint[], p_values integer
  returns: void
  attributes: plpgsql, immutable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 0d71be4bc4cd6ecc7d511b42611beb20
  comment: Rejects a batch that is too large, or whose arrays differ in length.

function penstock._check_claim(text, integer, integer)
  arguments: p_worker_id text, p_max_tasks integer, p_lease_seconds integer
  returns: void
  attributes: plpgsql, immutable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 ea7e1773bd11ede5737809a4887d187e
  comment: Rejects a claim with invalid arguments.

function penstock._check_cycles(integer[], integer[], integer)
  arguments: p_parents integer[], p_children integer[], p_count integer
  returns: void
  attributes: plpgsql, immutable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 62f28478e476d4ffeb05784c59b4a8c2
  comment: Refuses a graph with a circle. Linear in tasks and edges.

function penstock._check_demands(penstock.jobs, penstock.task_spec[])
  arguments: p_job penstock.jobs, p_specs penstock.task_spec[]
  returns: jsonb
  attributes: plpgsql, stable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 a2b5cd799e52f277de89b32836e50b3a
  comment: Rejects tasks with an invalid provider or units, or whose queue is full. Returns the delay in seconds for the tasks of each provider under pressure.

function penstock._check_document(jsonb, text, integer)
  arguments: p_document jsonb, p_name text, p_limit integer
  returns: void
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 83ede58671baafc89619655273bd1f25
  comment: Refuses a JSON document that is too large or that readers choke on.

function penstock._check_fields(jsonb, text[], text)
  arguments: p_values jsonb, p_names text[], p_what text
  returns: void
  attributes: plpgsql, stable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 e17123586392cb5d3ce398eab2d129bd
  comment: Refuses what is no object, and fields that are not known.

function penstock._check_holder(text, bigint)
  arguments: p_worker_id text, p_lease bigint
  returns: void
  attributes: plpgsql, immutable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 c7979e32b9a3f5d7826e49465fe90a46
  comment: Requires a report to name its lease or its worker.

function penstock._check_keys(uuid, penstock.task_spec[])
  arguments: p_job_id uuid, p_specs penstock.task_spec[]
  returns: void
  attributes: plpgsql, stable, security invoker, parallel unsafe
  settings: enable_nestloop=off, jit=off, search_path=penstock, pg_temp
  body: sha256 184c57ff523cdc111fca1da95fbdcb94
  comment: Keys are unique in the job and every parent exists.

function penstock._check_queue_depth(penstock.endpoints, bigint)
  arguments: p_endpoint penstock.endpoints, p_more bigint
  returns: void
  attributes: plpgsql, stable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 82ab35c440ce523061f8067d98e16042
  comment: Rejects tasks that would make an endpoint's queue longer than its depth_limit.

function penstock._check_rows(jsonb)
  arguments: p_rows jsonb
  returns: void
  attributes: plpgsql, stable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 842d08db8af9b75d7a6e57d9748d2003
  comment: Refuses rows that are not given as they should be, by the place of the first one.

function penstock._check_tasks(penstock.task_spec[])
  arguments: p_specs penstock.task_spec[]
  returns: void
  attributes: plpgsql, stable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 f76beebaa8900258a01e6ba90d8a3f1b
  comment: Refuses the first task that is not right, by its place and field.

function penstock._check_time(timestamp with time zone, text)
  arguments: p_at timestamp with time zone, p_field text
  returns: void
  attributes: plpgsql, stable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 c67c5e66f39445c7c208927422859720
  comment: Refuses a time that is never, or that readers choke on; null is none.

function penstock._check_units(jsonb, text)
  arguments: p_units jsonb, p_field text
  returns: void
  attributes: plpgsql, stable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 20c8d30614bc27f261ab1f6b0c1f9547
  comment: Refuses units that are not amounts of known meters.

function penstock._choice_document(penstock.provider_choice)
  arguments: p_choice penstock.provider_choice
  returns: jsonb
  attributes: sql, immutable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 9fc9aeebf2b55659aa4de6441cfc19dd
  comment: The choice as it is kept in the task's route.

function penstock._choose_providers(penstock.jobs, penstock.task_spec[])
  arguments: p_job penstock.jobs, p_specs penstock.task_spec[]
  returns: penstock.task_spec[]
  attributes: plpgsql, stable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 355ed1aea1512d2181c2d0fc11fc6509
  comment: Sets the provider of each task that has a route.

function penstock._claimed_task(penstock.leases)
  arguments: p_lease penstock.leases
  returns: TABLE(id bigint, lease bigint, job_id uuid, tenant_id uuid, kind text, key text, input jsonb, attempt integer, max_attempts integer, timeout_seconds real, lease_expires_at timestamp with time zone, provider text)
  attributes: sql, stable, security invoker, parallel unsafe
  body: sha256 e72511f2e96366a12c9af54e6f71284a
  comment: What a worker gets of a task it has claimed: the input with the outputs of its parents, the attempt, its limits.

function penstock._close_exhausted(penstock.endpoints, penstock.endpoint_states, jsonb)
  arguments: p_endpoint penstock.endpoints, p_state penstock.endpoint_states, p_signal jsonb
  returns: void
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 34f758ee2f5aece374b7fce1f14ec7f6
  comment: Closes an endpoint whose account is exhausted until open_provider.

function penstock._compact()
  returns: void
  attributes: sql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 e7a7c805994dea4502c26043a9c93b42
  comment: Adds up what was recorded since the last time.

function penstock._count_calls(penstock.endpoints, timestamp with time zone, bigint, bigint)
  arguments: p_endpoint penstock.endpoints, p_at timestamp with time zone, p_requests bigint, p_tokens bigint
  returns: void
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 878b14733deb0a3ddb9a4deb0ebd6887
  comment: Counts calls admitted at a given time in their endpoint's windows. Negative amounts take them back.

function penstock._count_foreign_calls(penstock.endpoints, bigint, bigint)
  arguments: p_endpoint penstock.endpoints, p_requests_left bigint, p_tokens_left bigint
  returns: void
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 02bae69333ad284662fb3ad00c318470
  comment: Counts calls that others made with the same account: less is left, as the provider says, than was counted here.

function penstock._count_job(penstock.jobs)
  arguments: p_job penstock.jobs
  returns: void
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 ec09c2fe953c4aa0099d4a429cbcc726
  comment: Counts a new job where jobs are limited, and rejects it over the limit.

function penstock._current_pace(double precision, timestamp with time zone, timestamp with time zone)
  arguments: p_pace double precision, p_paced_at timestamp with time zone, p_now timestamp with time zone
  returns: double precision
  attributes: sql, immutable, security invoker, parallel unsafe
  body: sha256 a08d75b865a51eb505953ba86e8c1943
  comment: The share of its limits that an endpoint may use: a 429 lowers it, and it recovers within ten minutes.
  grant to service_role: execute

function penstock._delete_artifacts(penstock.artifacts[])
  arguments: p_artifacts penstock.artifacts[]
  returns: void
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 498bb1d519207da1f83d14b442ed0ae9
  comment: Marks files as to be removed. They count no longer. Their rows are locked by the caller. Once per transaction.

function penstock._do_action(uuid, integer)
  arguments: p_action_id uuid, p_bite integer
  returns: integer
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 c848278f9ad1369632c4d00d3791c529
  comment: Does the next bite of an action, and says how many were in it.

function penstock._do_chore(uuid, integer)
  arguments: p_job_id uuid, p_bite integer
  returns: integer
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 37b8853e17bcdb5887d19b0144de4023
  comment: Does one bite of what a pause, resume or cancel left to do, and says how many tasks it moved.

function penstock._endpoint(text, uuid)
  arguments: p_name text, p_tenant_id uuid
  returns: penstock.endpoints
  attributes: sql, stable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 d5d0159e0643c1aa8491ec5c6148f4b8
  comment: The endpoint of this name: the tenant's own, or the one for all tenants.

function penstock._enter_endpoint(integer, integer[], timestamp with time zone, boolean)
  arguments: p_endpoint_id integer, p_admitted integer[], p_now timestamp with time zone, p_may_wait boolean, OUT verdict text, OUT is_locked boolean, OUT endpoint penstock.endpoints, OUT capacity penstock.capacity
  returns: record
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 1eb961c305b86041c7942c23c4e0bb2e
  comment: Locks an endpoint's state so that one claim at a time counts in its windows, and returns what it has free. The verdict is open, full, closed, busy (locked by another claim) or later (counting would have to wait).

function penstock._estimated_cost(text, uuid, jsonb)
  arguments: p_provider text, p_tenant_id uuid, p_units jsonb
  returns: numeric
  attributes: sql, stable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 9e16d4e60ee2390d58b5e53c556895df
  comment: What a task will cost at most, by its units; null: its provider has no price.

function penstock._expire_holds()
  returns: integer
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 832cbb0a5f5024e02714d3238d37fbf8
  comment: Frees what callers reserved and never committed or released.

function penstock._family(bigint[])
  arguments: p_letter_ids bigint[], OUT job_ids uuid[], OUT task_ids bigint[]
  returns: record
  attributes: sql, stable, security invoker, parallel unsafe
  settings: enable_seqscan=off, jit=off, search_path=penstock, pg_temp
  body: sha256 5cac3f99b881beae6ad684f4db6846ad
  comment: All that comes after these dead letters, and all that comes before it.

function penstock._fenced_artifact(uuid, text, bigint)
  arguments: p_artifact_id uuid, p_worker_id text, p_lease bigint
  returns: penstock.artifacts
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 aea1604359f47add0ef89aad8458cdb1
  comment: An artifact, locked, if it is still this lease's.

function penstock._finish_jobs(uuid[])
  arguments: p_job_ids uuid[]
  returns: void
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 3d7c5fd47f6631988af0c0c0a1993f59
  comment: Ends those of these jobs whose every task has ended.

function penstock._finish_of(uuid, jsonb)
  arguments: p_tenant_id uuid, p_groups jsonb, OUT seconds double precision, OUT bottleneck text, OUT workers double precision
  returns: record
  attributes: plpgsql, stable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 0178dc9480ebf904ddc933bb72407eb3
  comment: When groups of tasks will have ended: step by step, what the workers, the windows and the places let through. Null: never, as things are.

function penstock._fit_into_windows(tid[], penstock.endpoints, penstock.capacity)
  arguments: p_tids tid[], p_endpoint penstock.endpoints, p_capacity penstock.capacity
  returns: penstock.window_fit
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 50af66b753ccf6b14fde0eec823487f0
  comment: Which of these tasks fit into what is left of an endpoint's windows: the first ones, in order, until one does not fit.

function penstock._forecast(uuid, jsonb)
  arguments: p_tenant_id uuid, p_groups jsonb
  returns: jsonb
  attributes: plpgsql, stable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 9faa5d47ab2102aa6488c5dbcb323fd9
  comment: Cost and finish of groups of tasks [{"kind", "provider", "count", "running", "units", "cost", "after": [group numbers]}].

function penstock._forget_told_limits()
  returns: void
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 ddadc5e17029f160b7e7a57c46c01ae8
  comment: Forgets lower limits that providers reported more than an hour ago, and retries tasks that were too large for them.

function penstock._free_capacity(penstock.endpoints, penstock.endpoint_states, timestamp with time zone)
  arguments: p_endpoint penstock.endpoints, p_state penstock.endpoint_states, p_now timestamp with time zone
  returns: penstock.capacity
  attributes: plpgsql, stable, security invoker, parallel unsafe
  settings: enable_seqscan=off, jit=off, search_path=penstock, pg_temp
  body: sha256 4796ef42fa92066363b7a0024fc6369a
  comment: What is left of an endpoint's limits now, and the most its windows ever allow (null: no limit).

function penstock._free_concurrency(penstock.endpoints, timestamp with time zone)
  arguments: p_endpoint penstock.endpoints, p_now timestamp with time zone
  returns: bigint
  attributes: plpgsql, stable, security invoker, parallel unsafe
  settings: enable_seqscan=off, jit=off, search_path=penstock, pg_temp
  body: sha256 e3bd655d2012f5ea2400e40eccd0f4e8
  comment: How many more concurrent calls an endpoint allows (null: no limit).

function penstock._guard_job()
  returns: trigger
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 e7b41e07c2957ebac275a3ee023580eb
  comment: Refuses a change of state that the state machine does not have.

function penstock._has_blob(jsonb)
  arguments: p_document jsonb
  returns: boolean
  attributes: sql, immutable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 0a78531353dd80afa939ef432b3b5a88
  comment: Whether a document holds a file of more than a few kilobytes, as base64.

function penstock._has_price(text, uuid, timestamp with time zone)
  arguments: p_provider text, p_tenant_id uuid, p_at timestamp with time zone
  returns: boolean
  attributes: sql, stable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 53294bab9c56357458f061a499b2bd60
  comment: Whether a provider has any price now.

function penstock._has_quota_or_budget(tid[])
  arguments: p_tids tid[]
  returns: boolean
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 a40874f11cac186ee957510c8d1eb3d4
  comment: Whether any of these tasks belongs to a tenant with limits or to a job with a budget. Most do not, and skip the accounts.

function penstock._hold_bytes(uuid, bigint)
  arguments: p_tenant_id uuid, p_bytes bigint
  returns: uuid
  attributes: sql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 49582347bf6d685b06517d4faddb16b3
  comment: Sets room for a file aside.

function penstock._hold_jobs(uuid[], uuid[], bigint[])
  arguments: p_job_ids uuid[], p_held_jobs uuid[], p_held bigint[]
  returns: void
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: enable_seqscan=off, jit=off, search_path=penstock, pg_temp
  body: sha256 45a4dd461c5c73ef04b1b2fef869eda0
  comment: Locks jobs with their phases, and tasks of theirs wherever they stand, so that none of these ends before we do. Gives up with PS001 when they are changing hands: the caller lets go of everything and tries again.

function penstock._is_orphaned(text)
  arguments: p_path text
  returns: boolean
  attributes: sql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 aa9591fb4a9a5fa45ed0349bf99621c0
  comment: Whether a file has no record.

function penstock._is_readable(jsonb)
  arguments: p_document jsonb
  returns: boolean
  attributes: sql, immutable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 87eec6a6efb7a45a8332435f8be95dbc
  comment: Whether common readers of JSON can read this document.

function penstock._is_route(jsonb)
  arguments: p_route jsonb
  returns: boolean
  attributes: sql, immutable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 de84e68054d6184b718b6ea75aa07206
  comment: Whether a document is a valid route.

function penstock._is_running(uuid, bigint, bigint)
  arguments: p_job_id uuid, p_first_id bigint, p_last_id bigint
  returns: boolean
  attributes: sql, stable, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 be277a40cc4b1638fa0ced251bc02ecc
  comment: Whether one of a job's tasks from here to there runs, for whoever may see it.
  grant to authenticated: execute
  grant to service_role: execute

function penstock._is_service()
  returns: boolean
  attributes: sql, stable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 3b495baf38199ebede82a7a2be225700
  comment: Whether the caller acts as the service (a worker, an operator) and not as a user.

function penstock._is_time(timestamp with time zone)
  arguments: p_at timestamp with time zone
  returns: boolean
  attributes: sql, immutable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 923a0e7cb9cb66576ffa24cc054fcc45
  comment: Whether a time is one that is kept: from the year 2000 to the year 9998.

function penstock._is_under_pressure(penstock.endpoints, timestamp with time zone)
  arguments: p_endpoint penstock.endpoints, p_now timestamp with time zone
  returns: boolean
  attributes: plpgsql, stable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 2ed332ca0f22f375a5a981e97e2ab26b
  comment: Whether more of an endpoint's capacity is used than its backpressure_threshold, so that new tasks are delayed.

function penstock._judged_rows(penstock.bulks, jsonb)
  arguments: p_bulk penstock.bulks, p_rows jsonb
  returns: SETOF penstock.bulk_rows
  attributes: plpgsql, stable, security invoker, parallel unsafe
  settings: jit=off, search_path=penstock, pg_temp
  body: sha256 8f9fab4bcf1f87c149f4d19521411bf4
  comment: Rows as they are stored: with their keys, or with what is wrong with them.

function penstock._keep_canceled(penstock.leases[])
  arguments: p_leases penstock.leases[]
  returns: void
  attributes: sql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 f741fb4201e4bcb9697bea3e04b7a68b
  comment: Requeues tasks that were running when their job was stopped.

function penstock._keep_lease(bigint, text, bigint)
  arguments: p_task_id bigint, p_worker_id text, p_lease bigint
  returns: penstock.leases
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 726339d35573dbf329b42b496b546b15
  comment: Rejects a report unless its lease is current, and keeps the lease from ending until the transaction ends, which may be a handler's. Heartbeats and progress reports go on.

function penstock._keep_ledger()
  returns: trigger
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 62bca0786c3739b2fe3100fc61e6016d
  comment: Nobody changes what is in the ledger.

function penstock._key_role(penstock.api_keys)
  arguments: p_key penstock.api_keys
  returns: text
  attributes: sql, stable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 e8b9f8bb55c45bd70e31e7aaa238b48d
  comment: What a key is good for; null for one that is expired, revoked, or no member any more.

function penstock._lane(text, text, uuid, boolean)
  arguments: p_kind text, p_provider text, p_tenant_id uuid, p_is_gated boolean
  returns: integer
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 0e73339f2bc0a9431f2fcfacb4b2d850
  comment: The lane of a kind and a provider endpoint, made when first asked for.

function penstock._lanes_of_tenant(uuid)
  arguments: p_tenant_id uuid
  returns: TABLE(lane_id integer, priority smallint)
  attributes: sql, stable, security invoker, parallel unsafe
  settings: enable_bitmapscan=off, enable_seqscan=off, jit=off, search_path=penstock, pg_temp
  body: sha256 47fa586fec7a80c1e36c9af1f4a75a92
  comment: The lanes and priorities in which the tenant has tasks that can be claimed.

function penstock._lease_tasks(penstock.claim_pick, text, timestamp with time zone, integer)
  arguments: p_pick penstock.claim_pick, p_worker_id text, p_now timestamp with time zone, p_lease_seconds integer
  returns: SETOF penstock.leases
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 1469eacfd72f3c62be8fef7bce9d60dc
  comment: Moves the picked tasks whose jobs run from ready to leases, in the order of their slots, and starts their jobs.

function penstock._lease_to_ready(penstock.leases, integer, integer)
  arguments: p_lease penstock.leases, p_more_failures integer DEFAULT 0, p_more_deaths integer DEFAULT 0
  returns: penstock.ready
  attributes: sql, immutable, security invoker, parallel unsafe
  body: sha256 c4b509cd9f4733df4af6e71b5e834c4a
  comment: A leased task as a row for _queue.

function penstock._leased_bulk(bigint, text, bigint)
  arguments: p_task_id bigint, p_worker_id text, p_lease bigint
  returns: penstock.bulks
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 ede1cc3052a7cd384674659231ed6541
  comment: The bulk of a task whose live lease this is, locked.

function penstock._limits(uuid, timestamp with time zone)
  arguments: p_tenant_id uuid, p_at timestamp with time zone
  returns: TABLE(meter text, amount numeric, mode text, period date, resets_at timestamp with time zone)
  attributes: sql, stable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 1f19372d5ff518915de2099ce7559929
  comment: The limits that hold for a tenant: its own or its plan's, and what overrides and purchases add. The only place that decides this. A meter without a row is not limited.

function penstock._limits_waited_for(uuid[])
  arguments: p_tenant_ids uuid[]
  returns: TABLE(tenant_id uuid, waits_for text, job_id uuid)
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 98d6b45e1cc06efe68dc6f1f5fdaa3c7
  comment: The quotas (a meter) and budgets (with the job) for which parked tasks of these tenants wait.

function penstock._lock_limits(tid[], timestamp with time zone, boolean)
  arguments: p_tids tid[], p_now timestamp with time zone, p_may_wait boolean, OUT limits penstock.claim_limit[], OUT busy_tenants uuid[]
  returns: record
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 19ac46194094f48844a726212cec7411
  comment: Locks the accounts of the quotas and budgets that these tasks may use and returns what remains of each. busy_tenants: those with an account that another transaction has locked, when this one may not wait.

function penstock._locked_account(uuid, uuid, text, date, boolean)
  arguments: p_tenant_id uuid, p_job_id uuid, p_meter text, p_period date, p_may_wait boolean
  returns: penstock.accounts
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 9c7f6e4b4832febd780964f1b33bc864
  comment: Locks an account and returns it, and creates a missing one. Null when that needs waiting and p_may_wait is false.

function penstock._locked_hold(uuid, uuid)
  arguments: p_hold_id uuid, p_tenant_id uuid
  returns: penstock.holds
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 7f03da86c93810aff8a39ca768d70882
  comment: Locks a hold that a caller reserved, and returns it.

function penstock._locked_job(uuid)
  arguments: p_job_id uuid
  returns: penstock.jobs
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 3efad6d32217a57215d002c9a6626cb6
  comment: The job, locked, if the caller may act on it.

function penstock._lost_code(bigint)
  arguments: p_task_id bigint
  returns: text
  attributes: sql, stable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 09ad2464d2825a69fc299a300144626a
  comment: Why a lease is gone: canceled (its job was) or lease_lost.

function penstock._many_outputs(uuid, bigint)
  arguments: p_job_id uuid, p_task_id bigint
  returns: jsonb
  attributes: sql, stable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 2a5e860265549f22673d818952cc51ac
  comment: The outputs of a task with many parents, as far as they fit into one document.

function penstock._matching_letters(jsonb)
  arguments: p_filter jsonb
  returns: bigint[]
  attributes: plpgsql, stable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 e900f41b66108fdaaff7985fb89d1936
  comment: The caller's dead letters that match a filter.

function penstock._measure_need(penstock.claim_candidate, penstock.claim_limit[], timestamp with time zone)
  arguments: p_task penstock.claim_candidate, p_limits penstock.claim_limit[], p_now timestamp with time zone
  returns: penstock.claim_need
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 b74caa12bbf8f65d67a41156c2323490
  comment: What a task needs of the limits that apply to it, and what it is short of. A limit that is only observed leaves a usage event instead.

function penstock._move_progress(penstock.phase_delta[])
  arguments: p_deltas penstock.phase_delta[]
  returns: void
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 3981a02993ad0ee1e9c9603a10b06b6a
  comment: Moves the counts of phases, in one lock order, and ends the jobs that are through.

function penstock._not_begun()
  returns: text
  attributes: sql, immutable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 7c29369683f8719e57fe1e921947158c
  comment: The reserved reason with which workers release tasks they claimed and never began: the calls admitted for these tasks were not made.

function penstock._note_usage(uuid, text, jsonb, uuid, text, jsonb)
  arguments: p_tenant_id uuid, p_action text, p_units jsonb, p_hold_id uuid, p_provider text, p_details jsonb
  returns: penstock.booking[]
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 57fae7b607832d0c37c60270e6c93c80
  comment: Writes down a use outside a task, and says what to book.

function penstock._now()
  returns: timestamp with time zone
  attributes: sql, volatile, security invoker, parallel unsafe
  body: sha256 cd23047eb8d5945a837a8937197c30ba
  comment: The database's clock: the only one.
  grant to authenticated: execute
  grant to service_role: execute

function penstock._opens_at(penstock.endpoints, bigint, bigint, timestamp with time zone)
  arguments: p_endpoint penstock.endpoints, p_requests bigint, p_tokens bigint, p_now timestamp with time zone
  returns: timestamp with time zone
  attributes: plpgsql, stable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 33652b9622ab382e6b91fb67c65038d7
  comment: When a call of this size fits into the windows.

function penstock._ordinal(bigint)
  arguments: p_number bigint
  returns: text
  attributes: sql, immutable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 ee010c31a932bc8d1b33071ea25ad652
  comment: 1st, 2nd, 3rd, 12th.

function penstock._pace_of(text, text)
  arguments: p_kind text, p_provider text, OUT seconds double precision, OUT spread double precision, OUT samples integer
  returns: record
  attributes: sql, stable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 0efd43d72a8271de5395da1ba5449c88
  comment: How long tasks of a kind took of late.

function penstock._parents(uuid, jsonb)
  arguments: p_job_id uuid, p_tasks jsonb
  returns: bigint[]
  attributes: plpgsql, stable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 610f64dba7811535965879c05eeb0e03
  comment: The tasks of a job that new ones come after.

function penstock._park(tid[], text, text, timestamp with time zone)
  arguments: p_tids tid[], p_reason text, p_waits_for text, p_until timestamp with time zone
  returns: void
  attributes: sql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 2b057af91517207c09f2bd31a709b70a
  comment: Moves tasks from ready to parked until there is room for them.

function penstock._park_new(penstock.jobs, penstock.task_spec[], penstock.ready[])
  arguments: p_job penstock.jobs, p_specs penstock.task_spec[], p_rows penstock.ready[]
  returns: penstock.ready[]
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 91e32777d3d1441a7c914492644d6800
  comment: Sets aside the new tasks that may not run yet and returns the others.

function penstock._park_short(penstock.claim_candidate, penstock.claim_need, penstock.claim_limit[], timestamp with time zone)
  arguments: p_task penstock.claim_candidate, p_need penstock.claim_need, p_limits penstock.claim_limit[], p_now timestamp with time zone
  returns: void
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 61aac5abe9c50ccb1dba4e8c3133af5c
  comment: Parks a task that has no price, budget or quota, until when that may change.

function penstock._park_stopped(tid[])
  arguments: p_tids tid[]
  returns: void
  attributes: sql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 1ec1e1eb00129a823df96a32b2d68a7e
  comment: Takes the rows that got no lease out of ready: parks tasks of paused and failed jobs, deletes those of ended jobs.

function penstock._parked_that_fit(uuid, text, uuid, integer)
  arguments: p_tenant_id uuid, p_waits_for text, p_job_id uuid, p_max_misfits integer
  returns: tid[]
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 0347d9dada2aeddfe92e68300c19b2dd
  comment: The first 500 tasks parked for a quota or budget, those for which enough is left now.

function penstock._parked_to_ready(penstock.parked)
  arguments: p_parked penstock.parked
  returns: penstock.ready
  attributes: sql, immutable, security invoker, parallel unsafe
  body: sha256 b97678828213b1f8122d13583735a694
  comment: A parked task as a row for _queue.

function penstock._parse_tasks(jsonb)
  arguments: p_tasks jsonb
  returns: penstock.task_spec[]
  attributes: plpgsql, stable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 2a8eabd7e9fdc513fc58414144bc49bc
  comment: Reads p_tasks: its shape, its size, no unknown field.

function penstock._pause_spent_jobs()
  returns: void
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 e066f174c53f96b53d0287b005f7bedd
  comment: Pauses jobs whose budget has no room for any of their tasks, and those that pause for want of quota.

function penstock._percentile(jsonb, double precision)
  arguments: p_buckets jsonb, p_part double precision
  returns: double precision
  attributes: sql, immutable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 f30e8085adabf6c6a08431f6b079a5cc
  comment: In seconds, the duration that this part of what is in the buckets did not exceed, to within a fifth.

function penstock._period(text, timestamp with time zone)
  arguments: p_meter text, p_at timestamp with time zone, OUT starts date, OUT resets_at timestamp with time zone
  returns: record
  attributes: sql, stable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 ae7f2b6aab712c69141be7113ce8e91e
  comment: The period of a meter that a moment falls into, in UTC.

function penstock._pick_from_lane(integer, bigint, uuid[], bigint)
  arguments: p_lane_id integer, p_read_from bigint, p_stopped uuid[], p_max bigint
  returns: tid[]
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 7473a1cdd9ebdffb6dd8c03dc25c6333
  comment: Locks the next rows of ready in one lane and returns them.

function penstock._pick_gated(text[], integer, uuid[], timestamp with time zone, boolean, boolean, boolean)
  arguments: p_task_types text[], p_max integer, p_stopped uuid[], p_now timestamp with time zone, p_is_first_round boolean, p_holds_nothing boolean, p_may_wait boolean
  returns: penstock.claim_pick
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 920aba7f3c27ab968c067b2b751c97df
  comment: Locks the next rows of ready in gated lanes, in order and within the windows and the concurrency of their endpoints, within quotas and budgets, and counts them there.

function penstock._pick_open(text[], integer, uuid[], timestamp with time zone)
  arguments: p_task_types text[], p_max integer, p_stopped uuid[], p_now timestamp with time zone
  returns: tid[]
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 dfc3b2d8c8d02f9089ccb8fcf4284b78
  comment: Locks the next rows of ready in lanes without limits and returns them, so that no other claim takes them.

function penstock._price(text, uuid, text, text, timestamp with time zone)
  arguments: p_provider text, p_tenant_id uuid, p_meter text, p_variant text, p_at timestamp with time zone
  returns: penstock.prices
  attributes: sql, stable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 0e2ebd59d4b576ebd89416e50ea355a7
  comment: The price that holds at a moment.

function penstock._priced(text, uuid, jsonb, text, timestamp with time zone)
  arguments: p_provider text, p_tenant_id uuid, p_units jsonb, p_variant text, p_at timestamp with time zone
  returns: TABLE(meter text, unit_count numeric, cost_type text, amount numeric, currency text, base_amount numeric, price_id bigint)
  attributes: sql, stable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 55e3ef9af750e7558f9df17d07364d71
  comment: What units cost at a provider, line by line.

function penstock._promote(integer)
  arguments: p_limit integer
  returns: integer
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: enable_seqscan=off, jit=off, search_path=penstock, pg_temp
  body: sha256 b748e1ed4ffbd7fb1e8af30f55f1bc96
  comment: Queues parked tasks whose time has come.

function penstock._prune_providers(integer)
  arguments: p_limit integer
  returns: void
  attributes: sql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 99c10bbeda5d9083d51ae3ad169f9b7c
  comment: Deletes slots and calls that no window counts any more, at most p_limit of each.

function penstock._queue(penstock.ready[], boolean)
  arguments: p_rows penstock.ready[], p_is_front boolean
  returns: void
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 c27476ec1a0fca729ac54d07aa1cb098
  comment: Inserts tasks into ready, each tenant's behind its own last slot, or at the front.

function penstock._ready_task(penstock.jobs)
  arguments: p_job penstock.jobs
  returns: bigint
  attributes: plpgsql, stable, security invoker, parallel unsafe
  settings: enable_seqscan=off, jit=off, search_path=penstock, pg_temp
  body: sha256 1cdc69d11bad45d4e2190dddcfe54162
  comment: The job's task with the best priority that can be claimed, or null.

function penstock._ready_to_parked(penstock.ready, timestamp with time zone, text, text)
  arguments: p_ready penstock.ready, p_until timestamp with time zone, p_reason text, p_waits_for text DEFAULT NULL::text
  returns: penstock.parked
  attributes: sql, immutable, security invoker, parallel unsafe
  body: sha256 38154fb1a64d371f79194e40331f469d
  comment: A task as a row of parked: until when it waits, why, and for which meter, limit, budget or price.

function penstock._record(penstock.leases[], jsonb[], boolean, text, jsonb)
  arguments: p_leases penstock.leases[], p_units jsonb[], p_is_estimate boolean, p_variant text, p_details jsonb
  returns: penstock.booking[]
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: enable_seqscan=off, jit=off, search_path=penstock, pg_temp
  body: sha256 ae9992d3e935dba6b2f4b539cccc941b
  comment: Writes down what attempts used and what it costs, takes it from their holds, and says what to book.

function penstock._record_holds(penstock.reservation[], timestamp with time zone)
  arguments: p_reservations penstock.reservation[], p_now timestamp with time zone
  returns: void
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 c101a30bb11d72ea470c991a649de09a
  comment: Writes a hold for each reservation whose task got a lease, and takes the other reservations back.

function penstock._refuse(integer, text, text, jsonb, text)
  arguments: p_status integer, p_code text, p_message text, p_fields jsonb DEFAULT '{}'::jsonb, p_hint text DEFAULT NULL::text
  returns: void
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 a8f9647775caf991bbb63da0d82d7f58
  comment: Raises a refusal: status, stable code, message, fields, hint.

function penstock._refuse_lost(bigint)
  arguments: p_task_id bigint
  returns: void
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 9ae5927ee956f369a7da4821d5a0f71b
  comment: Rejects a report whose lease is not current.

function penstock._refuse_waiting()
  returns: integer
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 942eb13ddee70e83fb6ab327f6e0763b
  comment: Ends parked tasks that had no quota, in jobs whose on_limit is refuse.

function penstock._release_bookings(penstock.holds)
  arguments: p_hold penstock.holds
  returns: penstock.booking[]
  attributes: sql, stable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 33b1fce0042c338ea67fd24965b32534
  comment: What to book when a hold ends: the part that was not spent is free again.

function penstock._replay(bigint[])
  arguments: p_letter_ids bigint[]
  returns: integer
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: enable_seqscan=off, jit=off, search_path=penstock, pg_temp
  body: sha256 eb786155a489cefbbbb1d65e7351c27a
  comment: Queues dead-lettered tasks again, with fresh attempts, and reopens their jobs.

function penstock._require_alone(uuid)
  arguments: p_job_id uuid
  returns: void
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 a08f1f58ce394ebb9742ceef67d90bc3
  comment: Refuses a second live job of a type of which a tenant has one at a time.

function penstock._require_lease(bigint, text, bigint)
  arguments: p_task_id bigint, p_worker_id text, p_lease bigint
  returns: void
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 948198f079b0381380c2408e6419f5cd
  comment: Rejects a report unless its lease is current, and locks the lease. For long transactions use _keep_lease.

function penstock._require_role(uuid, text[])
  arguments: p_tenant_id uuid, p_roles text[]
  returns: void
  attributes: plpgsql, stable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 88b0867d89e5fa4de594cb94535b5cdc
  comment: Refuses unless the caller is the service or a member with one of these roles.

function penstock._required_endpoint(text, uuid)
  arguments: p_name text, p_tenant_id uuid
  returns: penstock.endpoints
  attributes: plpgsql, stable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 426ba1e41c764a6f475c81b588de2d4b
  comment: The endpoint of this name; raises an error when there is none.

function penstock._reroute()
  returns: integer
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 f8bf2c68bd9f7bd15f1433f6eef5328a
  comment: Moves ready tasks that have a route from closed endpoints to open ones.

function penstock._reservation_bookings(penstock.reservation[], timestamp with time zone, integer)
  arguments: p_reservations penstock.reservation[], p_at timestamp with time zone, p_sign integer
  returns: penstock.booking[]
  attributes: plpgsql, stable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 b37996526d091503ce5a822e7cfddb6a
  comment: How reservations move accounts: the tenant's, and for costs the budget of the job. Sign -1 takes them back.

function penstock._reserve_pick(penstock.claim_pick, timestamp with time zone, boolean)
  arguments: p_pick penstock.claim_pick, p_now timestamp with time zone, p_may_wait boolean
  returns: penstock.claim_pick
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 028af7e3bf029a8668a4b1f7b141a4c9
  comment: Reserves quota and budget for picked tasks and drops those that get none from the pick and from the windows.

function penstock._reserve_tasks(tid[], timestamp with time zone, boolean)
  arguments: p_tids tid[], p_now timestamp with time zone, p_may_wait boolean, OUT tids tid[], OUT reservations penstock.reservation[], OUT is_refused boolean, OUT unused penstock.claim_candidate[]
  returns: record
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: enable_seqscan=off, jit=off, search_path=penstock, pg_temp
  body: sha256 aaf1ef449c44191bd0588c01e63cf9ae
  comment: Reserves what picked tasks need of their tenants' quotas and their jobs' budgets, and parks those for which nothing is left. unused: tasks that were counted in a window and are not claimed.

function penstock._retry_parked(text, integer[], timestamp with time zone)
  arguments: p_waits_for text, p_lane_ids integer[], p_at timestamp with time zone
  returns: void
  attributes: sql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 7a49eb359c771497d8e7d7af32003567
  comment: Makes the tasks of these lanes that wait for a limit or a price due at a given time.

function penstock._return_tasks(penstock.leases[], integer)
  arguments: p_leases penstock.leases[], p_deaths integer
  returns: void
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 e44baba7b1b9ff355bba9f600b6161ea
  comment: Requeues leased tasks at the front.

function penstock._revive_children(uuid, bigint[])
  arguments: p_job_id uuid, p_task_ids bigint[]
  returns: penstock.phase_delta[]
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 7619e2705c6ec0bf17e45e8605bfb0c5
  comment: Brings back what was canceled because these tasks had failed.

function penstock._route_candidates(jsonb, uuid, jsonb)
  arguments: p_route jsonb, p_tenant_id uuid, p_units jsonb
  returns: TABLE(name text, is_open boolean, cost numeric, seconds double precision, place integer)
  attributes: sql, stable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 ad7395d675a42a9e6693b417696d77db
  comment: The endpoints that have the features of a route, with what decides between them.

function penstock._row_cost(penstock.bulk_rows)
  arguments: p_row penstock.bulk_rows
  returns: numeric
  attributes: sql, stable, security invoker, parallel unsafe
  body: sha256 4a9fefb2a6586c474ad6f13772f85717
  comment: What a row has cost so far, in the base currency.
  grant to authenticated: execute
  grant to service_role: execute

function penstock._row_key(jsonb, text[])
  arguments: p_data jsonb, p_columns text[]
  returns: text
  attributes: sql, immutable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 f384c5dd23fcf102c4dcd0491b6f68ff
  comment: A row's key, of several columns: a list of their texts. What has none of them has no key.

function penstock._setting(text)
  arguments: p_name text
  returns: jsonb
  attributes: sql, stable, security invoker, parallel unsafe
  body: sha256 aff1bee12770cdadc1d1f85369343d46
  comment: The value of a setting.

function penstock._settle(penstock.leases[], boolean, penstock.leases[])
  arguments: p_leases penstock.leases[], p_is_success boolean, p_stopped penstock.leases[]
  returns: void
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: enable_seqscan=off, jit=off, search_path=penstock, pg_temp
  body: sha256 c22cfa7419dc49ca1851bf16dc05c04a
  comment: Attempts have ended: a success commits what was reported, or else its estimate; everything else (and what was stopped meanwhile) commits only what was reported. The rest is given back. Once per transaction, so that accounts are locked in their order.

function penstock._settle_batch(text, text, bigint[], bigint[], penstock.leases[], jsonb[], integer)
  arguments: p_worker_id text, p_outcome text, p_task_ids bigint[], p_leases bigint[], p_ended penstock.leases[], p_outputs jsonb[] DEFAULT NULL::jsonb[], p_limit integer DEFAULT NULL::integer
  returns: TABLE(id bigint, code text)
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 93b32c42bf9f2ae46f51f74c12d037a8
  comment: Settles the accepted tasks of a batch and returns the rejected ones with the reason. A report that was accepted before with the same lease is accepted again.

function penstock._settle_children(uuid, bigint[], bigint[])
  arguments: p_job_id uuid, p_parent_ids bigint[], p_child_ids bigint[] DEFAULT NULL::bigint[], OUT deltas penstock.phase_delta[], OUT freed penstock.ready[]
  returns: record
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: enable_hashjoin=off, enable_mergejoin=off, enable_seqscan=off, jit=off, search_path=penstock, pg_temp
  body: sha256 2fce01efcf5ecb92b9eb39dc39862eb4
  comment: Parents have ended: children of a parent that did not succeed are canceled with their descendants. Returns what that does to the progress, and the children that now wait for nothing, for the caller to queue when it has all its locks.

function penstock._slot_ends(smallint, bigint)
  arguments: p_width smallint, p_slot bigint
  returns: double precision
  attributes: sql, immutable, security invoker, parallel unsafe
  body: sha256 0b29647ba10f814caf530b71a4b7f90e
  comment: Until when (in seconds since 1970) the calls of a slot count.
  grant to service_role: execute

function penstock._slow_down(penstock.endpoints, penstock.endpoint_states, jsonb, integer, double precision)
  arguments: p_endpoint penstock.endpoints, p_state penstock.endpoint_states, p_signal jsonb, p_status integer, p_retry_after double precision
  returns: void
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 7687939d4bbe3f7d6ce1245a833eaf2c
  comment: Closes an endpoint that rejected a call for as long as it asked for, and lowers its pace.

function penstock._some_waiting_tenants()
  returns: uuid[]
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 a8a168b9bbb14ab7c0575356c6aff3bb
  comment: Ten tenants with tasks parked for a limit: the first two, and eight from a random one on.

function penstock._spent(uuid, date)
  arguments: p_tenant_id uuid, p_day date
  returns: numeric
  attributes: plpgsql, stable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 faa43936ed9d3a5e7277becd1b250cb1
  comment: What a tenant, or all of them, spent on a day.

function penstock._stop_job(uuid, uuid, text, text)
  arguments: p_job_id uuid, p_tenant_id uuid, p_status text, p_reason text
  returns: void
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 2661ef0ff6a1fcb81802a00f7375aed3
  comment: Ends a job before its tasks have ended.

function penstock._sum_tasks()
  returns: integer
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: enable_seqscan=off, jit=off, search_path=penstock, pg_temp
  body: sha256 28db4bea5c8f58aa1a42e36f8f8545e2
  comment: Adds up what ended in the minutes that are over.

function penstock._sum_units(jsonb, jsonb)
  arguments: p_one jsonb, p_other jsonb
  returns: jsonb
  attributes: sql, immutable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 6ab4d0b9ba9e816366f0eea67524a7a1
  comment: Amounts added, meter by meter.

function penstock._swap_in_best_priority(tid[])
  arguments: p_tids tid[]
  returns: tid[]
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 7cf6b4270d4c9e9aa77dff695d189e48
  comment: Where a tenant's queue holds several priorities, gives the picked slots to its best tasks and returns their rows.

function penstock._take_from_limits(penstock.claim_limit[], penstock.claim_candidate, jsonb)
  arguments: p_limits penstock.claim_limit[], p_task penstock.claim_candidate, p_amounts jsonb
  returns: penstock.claim_limit[]
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 d45f54dabb299969c0b60f789d54951f
  comment: The limits after a task's reservation, for the next task of the batch.

function penstock._task_state(uuid, bigint)
  arguments: p_job_id uuid, p_task_id bigint
  returns: TABLE(state text, reason text, until timestamp with time zone, attempt integer, started_at timestamp with time zone, worker_id text, fraction real, message text)
  attributes: sql, stable, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 4debaca3b23169b7220510aebf04262f
  comment: Where a task that has not ended stands, for whoever may see it. No row: it is ready to be claimed.
  grant to authenticated: execute
  grant to service_role: execute

function penstock._thrift_of(text, text)
  arguments: p_kind text, p_provider text, OUT mean numeric, OUT spread numeric, OUT samples integer
  returns: record
  attributes: sql, stable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 84c7a029dfe51b4c9e8650876669d3e0
  comment: What calls cost in truth, as a part of their estimates.

function penstock._uncount_artifacts(penstock.artifacts[])
  arguments: p_artifacts penstock.artifacts[]
  returns: void
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 2f88eed62dc656e3541e33e749baf4e8
  comment: Gives back what files take of the quotas, or had set aside. Their rows are locked by the caller. Once per transaction.

function penstock._uncount_calls(penstock.leases[])
  arguments: p_leases penstock.leases[]
  returns: void
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 09889c90b4b96db1a4f5201f5b89ff01
  comment: Takes calls that were never made out of their endpoints' windows.

function penstock._uuid7()
  returns: uuid
  attributes: sql, volatile, security invoker, parallel unsafe
  settings: search_path=pg_catalog, pg_temp
  body: sha256 7806429aaea5cf43f7e86b828db80adb
  comment: A version 7 UUID: milliseconds first, then random bits.

function penstock._visible_artifact(uuid, text[])
  arguments: p_artifact_id uuid, p_roles text[]
  returns: penstock.artifacts
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 49784d62b65db7e8e440ebd846812f3d
  comment: An artifact the caller may see and act on, locked.

function penstock._visible_job(uuid, text[])
  arguments: p_job_id uuid, p_roles text[]
  returns: penstock.jobs
  attributes: plpgsql, stable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 c03b4ef4e386cea000f657bd5d58be23
  comment: The job, if the caller may act on it; another tenant's job does not exist.

function penstock._waiting(uuid, integer)
  arguments: p_tenant_id uuid, p_lane_id integer
  returns: bigint
  attributes: plpgsql, stable, security invoker, parallel unsafe
  settings: enable_seqscan=off, jit=off, search_path=penstock, pg_temp
  body: sha256 2c7b2f35e6fa42544b8958c2d9a3d70f
  comment: How many tasks wait in a lane, of a tenant or of all; more than 100,000 are 100,001.

function penstock._waiting_task(penstock.jobs)
  arguments: p_job penstock.jobs
  returns: bigint
  attributes: plpgsql, stable, security invoker, parallel unsafe
  settings: enable_seqscan=off, jit=off, search_path=penstock, pg_temp
  body: sha256 b7c9d4c7b41b7c38fe6baaf3d2771a43
  comment: A task of the job that waits, the one that is nearest to its turn.

function penstock._wake_fitting(uuid[], integer)
  arguments: p_tenant_ids uuid[], p_max_misfits integer
  returns: integer
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 cfaffe25d91c32fa1e8a46a07451dd74
  comment: Queues parked tasks of these tenants that fit into their quotas and budgets now, and returns how many. For each limit it stops after p_max_misfits tasks that do not fit.

function penstock._wake_missed()
  returns: integer
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: enable_seqscan=off, jit=off, search_path=penstock, pg_temp
  body: sha256 3208949aa3307bba1b040fefbba5a4c1
  comment: Finds parked tasks for which there is room by now, of a few tenants at a time, and queues them.

function penstock._wake_waiting(uuid[])
  arguments: p_tenant_ids uuid[]
  returns: void
  attributes: sql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 be94fef12462f509ecc63f58cf5ec9e9
  comment: Queues parked tasks of tenants that have more quota or budget now, as far as they fit.

function penstock._whole_units(jsonb, boolean)
  arguments: p_units jsonb, p_is_call boolean
  returns: jsonb
  attributes: sql, immutable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 5800750f05aca20909db2f67b5da79e4
  comment: Units with what follows from them.

function penstock.acquire_api_capacity(text, text, bigint, text, uuid, double precision)
  arguments: p_provider_name text, p_api_endpoint text, p_estimated_tokens bigint DEFAULT 1000, p_key text DEFAULT NULL::text, p_tenant_id uuid DEFAULT NULL::uuid, p_ttl_seconds double precision DEFAULT 60
  returns: boolean
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 d26cf50a4a7161c03e64a15394bfbd97
  comment: Reserves capacity for one call outside a claim: true, or false when there is none now. The call counts as concurrent until release_api_capacity, or for p_ttl_seconds. The same p_key reserves once.
  grant to service_role: execute

function penstock.add_allowance(uuid, text, numeric, text, date, text, text)
  arguments: p_tenant_id uuid, p_meter text, p_amount numeric, p_source text DEFAULT 'override'::text, p_expires_on date DEFAULT NULL::date, p_reason text DEFAULT NULL::text, p_key text DEFAULT NULL::text
  returns: uuid
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 3d4e17027205e131dd8febc1e023a56d
  comment: Lets a tenant use more of a meter: an override until p_expires_on (that day included), or a purchase. The same p_key counts once.
  grant to service_role: execute

function penstock.add_bulk_rows(uuid, jsonb, boolean)
  arguments: p_job_id uuid, p_rows jsonb, p_load boolean DEFAULT true
  returns: jsonb
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: enable_seqscan=off, jit=off, plan_cache_mode=force_generic_plan, search_path=penstock, pg_temp
  body: sha256 dee305047a204d96e0a7d9eda14bf4f0
  comment: Takes rows [{"number", "data", "problem"}] of a bulk job as they are. A number that is there already is left out, unless its row was refused; a key that is there already makes a refused row. With p_load they are loaded from now on. Returns how many were added, refused, known, and known by another key (moved).
  grant to authenticated: execute
  grant to service_role: execute

function penstock.add_tasks(uuid, jsonb, bigint, text, bigint)
  arguments: p_job_id uuid, p_tasks jsonb, p_task_id bigint DEFAULT NULL::bigint, p_worker_id text DEFAULT NULL::text, p_lease bigint DEFAULT NULL::bigint
  returns: bigint[]
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: jit=off, plan_cache_mode=force_generic_plan, search_path=penstock, pg_temp
  body: sha256 40afb3ab8fb4295788de2eada042419d
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

function penstock.begin_artifact(bigint, text, bigint, text, text, bigint)
  arguments: p_task_id bigint, p_worker_id text, p_lease bigint DEFAULT NULL::bigint, p_name text DEFAULT ''::text, p_content_type text DEFAULT 'application/octet-stream'::text, p_bytes bigint DEFAULT NULL::bigint
  returns: TABLE(id uuid, path text, max_bytes bigint)
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 58e177c65ceff2af695686cbdeef8989
  comment: Makes the record of a file that a running task is about to write, sets p_bytes of the quota aside, and says where it goes. The same name again, by a retry too, is the same file.
  grant to service_role: execute

function penstock.begin_request(text, bytea)
  arguments: p_key text, p_digest bytea
  returns: jsonb
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 a1c3361ccacf3f5c0b47fb35caf8feee
  comment: Notes that the caller sends this request; null if it is the first time, else the answer that was given. Answers are kept for a day.
  grant to authenticated: execute
  grant to service_role: execute

function penstock.begin_upload(text, text, bigint, jsonb)
  arguments: p_name text, p_content_type text, p_bytes bigint, p_options jsonb DEFAULT '{}'::jsonb
  returns: TABLE(id uuid, tenant_id uuid, incoming text)
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 99bd95c61eba8e1c2223fd0403a93b91
  comment: Makes the record of a file that a client is about to upload, sets its size aside, and says where it goes at first. Options: tenant_id, idempotency_key. take_upload and finish_artifact follow.
  grant to authenticated: execute
  grant to service_role: execute

function penstock.bulk_rows_to_write(uuid, integer)
  arguments: p_job_id uuid, p_max integer DEFAULT 1000
  returns: TABLE(number bigint, key text, data jsonb, state text, output jsonb, error_code text, error_message text, cost numeric, finished_at timestamp with time zone)
  attributes: sql, stable, security definer, parallel unsafe
  settings: enable_seqscan=off, jit=off, search_path=penstock, pg_temp
  body: sha256 1fa942e18fdf242f0c592bd5005f13a6
  comment: Rows that have ended and whose state was not written back to the source yet. Of what was done before, the source has the result.
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

function penstock.check_accounts()
  returns: TABLE(tenant_id uuid, job_id uuid, meter text, period date, what text, kept numeric, true_amount numeric)
  attributes: sql, stable, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 b314de007ea4c8f47bb9cb13d0f105f1
  comment: Every account that is not the sum of its usage, costs and holds. No row: all are right.
  grant to service_role: execute

function penstock.check_key()
  returns: void
  attributes: plpgsql, stable, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 0aab67742903ae2e0362eb05f286d2a9
  comment: Refuses a caller whose id is no key's, or of one that has ended. For those who came with a key, at the beginning of their transaction.
  grant to authenticated: execute
  grant to service_role: execute

function penstock.claim_tasks(text, integer, text[], integer)
  arguments: p_worker_id text, p_max_tasks integer DEFAULT 1, p_task_types text[] DEFAULT NULL::text[], p_lease_seconds integer DEFAULT NULL::integer
  returns: TABLE(id bigint, lease bigint, job_id uuid, tenant_id uuid, kind text, key text, input jsonb, attempt integer, max_attempts integer, timeout_seconds real, lease_expires_at timestamp with time zone, provider text)
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: enable_bitmapscan=off, enable_hashjoin=off, enable_mergejoin=off, enable_seqscan=off, jit=off, plan_cache_mode=force_generic_plan, search_path=penstock, pg_temp
  body: sha256 02596fe429fae9252b71d0f04ef2e547
  comment: Claims up to p_max_tasks tasks of these kinds (null: all kinds) for a worker: fairly among tenants, within limits, quotas and budgets. Each gets a lease that expires after p_lease_seconds without a heartbeat.
  grant to service_role: execute

function penstock.commit_hold(uuid, jsonb, uuid)
  arguments: p_hold_id uuid, p_actual jsonb DEFAULT NULL::jsonb, p_tenant_id uuid DEFAULT NULL::uuid
  returns: void
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 3d3317ab35529719f12f7ab876d3d53c
  comment: Books the actual amounts (default: those reserved) and ends the hold. Repeating it changes nothing; an expired hold can still be committed.
  grant to service_role: execute

function penstock.complete_task(bigint, text, jsonb, bigint)
  arguments: p_task_id bigint, p_worker_id text, p_output jsonb DEFAULT NULL::jsonb, p_lease bigint DEFAULT NULL::bigint
  returns: boolean
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 25c821ad187e1f11c14f76368ebacec0
  comment: Ends one task as succeeded; fails with 410 when its lease is gone.
  grant to service_role: execute

function penstock.complete_tasks(text, bigint[], bigint[], jsonb[])
  arguments: p_worker_id text, p_task_ids bigint[], p_leases bigint[] DEFAULT NULL::bigint[], p_outputs jsonb[] DEFAULT NULL::jsonb[]
  returns: TABLE(id bigint, code text)
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: enable_seqscan=off, jit=off, plan_cache_mode=force_generic_plan, search_path=penstock, pg_temp
  body: sha256 9320475ec09952caf5ccd2aa4af7e8b0
  comment: Ends tasks as succeeded. Returns only those rejected, with lease_lost, canceled or too_large. Repeating the call is accepted.
  grant to service_role: execute

function penstock.confirm_job(uuid)
  arguments: p_job_id uuid
  returns: integer
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 ddaa62d07dc99fb854062bd963e3fdb8
  comment: Lets the tasks run that wait for a confirmation, and returns how many they are. Once confirmed, a second call changes nothing.
  grant to authenticated: execute
  grant to service_role: execute

function penstock.create_key(text, text, uuid, timestamp with time zone)
  arguments: p_name text, p_role text, p_tenant_id uuid DEFAULT NULL::uuid, p_expires_at timestamp with time zone DEFAULT NULL::timestamp with time zone
  returns: TABLE(id uuid, tenant_id uuid, prefix text, secret text)
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 eaa6ecc8ba1f7af34f02b4ffb2898b00
  comment: Makes an API key. The secret is in this answer and nowhere else.
  grant to authenticated: execute
  grant to service_role: execute

function penstock.create_tenant(text, double precision)
  arguments: p_name text, p_weight double precision DEFAULT 1
  returns: uuid
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 1b77ff29fab0b1dbe6a276126773929a
  comment: Makes a tenant.
  grant to service_role: execute

function penstock.define_bulk_type(text, jsonb)
  arguments: p_name text, p_values jsonb DEFAULT '{}'::jsonb
  returns: void
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 571023926aab034fe6c1ace126060e22
  comment: Says that jobs of a type are made from rows: key (the columns that make a row's key), batch (rows packed into one graph), group_by (a column whose groups are kept together), is_exclusive (one such job at a time in a tenant).
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
  body: sha256 f37600db7a0b193efae88a8f6abbae80
  comment: Makes or changes kinds: [{"name", "category", "max_attempts", "backoff_seconds", "backoff_cap_seconds", "retry_seconds", "timeout_seconds"}].
  grant to service_role: execute

function penstock.delete_artifact(uuid)
  arguments: p_artifact_id uuid
  returns: boolean
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 9f729bb9b94f0983f8019a05c4616f03
  comment: Deletes a file: it is gone for readers and for the quota at once, from storage soon. False if it was deleted before.
  grant to authenticated: execute
  grant to service_role: execute

function penstock.discard_dead_letters(jsonb)
  arguments: p_filter jsonb
  returns: integer
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 9231103ae685b5217ced47229179a4ef
  comment: Removes dead letters that match; their tasks stay failed. Returns how many.
  grant to authenticated: execute
  grant to service_role: execute

function penstock.do_actions(integer)
  arguments: p_bite integer DEFAULT 200
  returns: integer
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 2974097c9f12924072d1db14e1c20811
  comment: Does the next bite of an action that is under way, and says how many things were in it.
  grant to service_role: execute

function penstock.drain_rates()
  returns: TABLE(kind text, provider text, per_second double precision)
  attributes: sql, stable, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 6013244ec56600e0e6f70858eb9fe628
  comment: Per lane in which tasks run: about how many end in a second, by how long the last ones took.
  grant to service_role: execute

function penstock.drain_worker(text)
  arguments: p_worker_id text
  returns: void
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 c158c3a761a3bb0297b673a8fbe442d6
  comment: Asks a worker to take nothing new, let what runs end, and stop. It sees that at its next beat.
  grant to service_role: execute

function penstock.drop_artifact(uuid, text, bigint)
  arguments: p_artifact_id uuid, p_worker_id text, p_lease bigint
  returns: void
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 ce288d67109ec0f0530531c2d8c4421d
  comment: Gives a file up that could not be written; what there is of it is removed soon.
  grant to service_role: execute

function penstock.due_artifacts(integer)
  arguments: p_limit integer DEFAULT 100
  returns: TABLE(id uuid, paths text[])
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 4f80dd4e62ca8f6f2d742b5e3c4b828b
  comment: Files to remove: deleted ones, those whose writing was given up an hour ago, uploads beyond retention_days. Locked: in the same transaction remove them, then call forget_artifacts.
  grant to service_role: execute

function penstock.due_schedules()
  returns: TABLE(id uuid, tenant_id uuid, name text, cron text, timezone text, job_type text, params jsonb, has_tasks boolean, missed text, due_at timestamp with time zone, now_at timestamp with time zone)
  attributes: sql, volatile, security definer, parallel unsafe
  settings: enable_seqscan=off, jit=off, search_path=penstock, pg_temp
  body: sha256 7b0760a4d154ded8b967af15064e10a3
  comment: Schedules whose time has come, with the database's time.
  grant to service_role: execute

function penstock.end_request(text, integer, jsonb)
  arguments: p_key text, p_status integer, p_answer jsonb
  returns: void
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 04608a80c987d6b1f320b6129fb70a4b
  comment: Keeps the answer to a request, in the transaction that began it.
  grant to authenticated: execute
  grant to service_role: execute

function penstock.ensure_sheets_account(text)
  arguments: p_account text
  returns: void
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 e74f802a94743efb1d77bf9a10893077
  comment: Makes the limits of Google Sheets where they are missing: 300 reads and 300 writes a minute for the project, 60 and 60 for an account.
  grant to service_role: execute

function penstock.ensure_tenant(text)
  arguments: p_name text
  returns: uuid
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 b5ef8fd1c99ac27d3254fb05d59408f6
  comment: The oldest tenant of this name, made when there is none.
  grant to service_role: execute

function penstock.explain_job(uuid)
  arguments: p_job_id uuid
  returns: jsonb
  attributes: plpgsql, stable, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 6254043d9b6132cd46dd9b19966b6168
  comment: How a job stands and what happens next, in words, with the task that is nearest to its turn.
  grant to authenticated: execute
  grant to service_role: execute

function penstock.explain_task(uuid, bigint)
  arguments: p_job_id uuid, p_task_id bigint
  returns: jsonb
  attributes: plpgsql, stable, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 c8ec94a985a5322c84fe8bec50dea4de
  comment: Why a task is not running: what it waits for, about how long, and its place in line; as fields and as one line of text.
  grant to authenticated: execute
  grant to service_role: execute

function penstock.fail_task(bigint, text, text, bigint, double precision, boolean, text, jsonb)
  arguments: p_task_id bigint, p_worker_id text, p_error text, p_lease bigint DEFAULT NULL::bigint, p_retry_after_seconds double precision DEFAULT NULL::double precision, p_permanent boolean DEFAULT false, p_error_code text DEFAULT 'handler_error'::text, p_error_details jsonb DEFAULT NULL::jsonb
  returns: boolean
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 f94b57acae344d8995e3d7f792ca9890
  comment: Ends one attempt as failed: the task is retried after a backoff, not before p_retry_after_seconds, or moved to the dead letters. Fails with 410 when the lease is gone.
  grant to service_role: execute

function penstock.fail_tasks(text, bigint[], bigint[], jsonb[])
  arguments: p_worker_id text, p_task_ids bigint[], p_leases bigint[], p_errors jsonb[]
  returns: TABLE(id bigint, code text)
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 0ec37dc047651c58d12789bd99f9f80f
  comment: Ends attempts as failed: each task is retried after a backoff, or moved to the dead letters. Errors are {"code", "message", "details", "retry_after_seconds", "permanent"}. Returns only those rejected.
  grant to service_role: execute

function penstock.finish_artifact(uuid, text, bigint, bigint, text)
  arguments: p_artifact_id uuid, p_worker_id text, p_lease bigint, p_bytes bigint, p_sha256 text
  returns: void
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 d0ef60a89bf9470f0bed8fb0aa6aa7ff
  comment: Says that a file is written: its size, which is counted from now on, and its SHA-256. Refuses with 410 when the lease is gone, with 429 when the quota has no room.
  grant to service_role: execute

function penstock.fire_schedule(uuid, timestamp with time zone, timestamp with time zone, timestamp with time zone[], jsonb)
  arguments: p_schedule_id uuid, p_due_at timestamp with time zone, p_next_run_at timestamp with time zone, p_starts timestamp with time zone[], p_tasks jsonb DEFAULT NULL::jsonb
  returns: uuid[]
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 1e609633391d002629c008c79c426ad8
  comment: Starts the jobs of a due tick, once: whoever comes second finds the tick gone and starts nothing.
  grant to service_role: execute

function penstock.forecast(uuid)
  arguments: p_job_id uuid
  returns: jsonb
  attributes: plpgsql, stable, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 f20aa47708b22d6b0c1b61ef505a81d6
  comment: What is left of a job will cost so much and end then.
  grant to authenticated: execute
  grant to service_role: execute

function penstock.forecast_job(text, jsonb, jsonb)
  arguments: p_type text, p_tasks jsonb, p_options jsonb DEFAULT '{}'::jsonb
  returns: jsonb
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 a4e4a94c13b9226b543f770f233d4125
  comment: What start_job with the same arguments would cost (low, expected, high), use of the quotas, and take until its end under the present limits, backlog and history. With the option times the tasks are a sample, and there are so many times as many. Changes nothing.
  grant to authenticated: execute
  grant to service_role: execute

function penstock.forget_artifacts(uuid[])
  arguments: p_ids uuid[]
  returns: integer
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 bda25a9d73dea2f253756cd6526c7873
  comment: Removes the records of files that were removed.
  grant to service_role: execute

function penstock.get_bulk(uuid)
  arguments: p_job_id uuid
  returns: jsonb
  attributes: plpgsql, stable, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 d16716c63bd270cdc84881f16a131170
  comment: A bulk job: the job as get_job has it, its source, how many rows it has and loaded, refused or skipped, what waits for what, problems and failures by cause, and what was applied and undone.
  grant to authenticated: execute
  grant to service_role: execute

function penstock.get_bulk_rows(bigint, text, bigint, uuid, bigint[])
  arguments: p_task_id bigint, p_worker_id text, p_lease bigint, p_job_id uuid, p_numbers bigint[]
  returns: TABLE(number bigint, key text, data jsonb)
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: enable_seqscan=off, jit=off, search_path=penstock, pg_temp
  body: sha256 7b994c21e75307e53744d21c80cf3ce9
  comment: Rows of a bulk job by their numbers, for a running task of the same tenant.
  grant to service_role: execute

function penstock.get_job(uuid)
  arguments: p_job_id uuid
  returns: jsonb
  attributes: plpgsql, stable, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 f77255bcfdfc4c3ef95a901e6254c9d9
  comment: A job with its progress: percent, phase, done, total, message, eta_seconds, phases.
  grant to authenticated: execute
  grant to service_role: execute

function penstock.get_usage_status(uuid)
  arguments: p_tenant_id uuid DEFAULT NULL::uuid
  returns: jsonb
  attributes: plpgsql, stable, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 885100bd573bf68232b52dc847b8c15b
  comment: A tenant's plan, and what of each meter it has used, holds and has left in the present period. One's own tenant, or any for the service.
  grant to authenticated: execute
  grant to service_role: execute

function penstock.heartbeat_task(bigint, text, bigint)
  arguments: p_task_id bigint, p_worker_id text, p_lease bigint DEFAULT NULL::bigint
  returns: boolean
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 e000e8428d9270f252fbaaa51323feea
  comment: Extends one lease; fails with 410 when it is gone.
  grant to service_role: execute

function penstock.heartbeat_tasks(text, jsonb, integer)
  arguments: p_worker_id text, p_leases jsonb, p_lease_seconds integer DEFAULT NULL::integer
  returns: TABLE(id bigint, lease bigint, code text)
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: enable_hashjoin=off, enable_mergejoin=off, enable_seqscan=off, jit=off, search_path=penstock, pg_temp
  body: sha256 9f2720e6cb7734bc34608d54f4bb97ad
  comment: Extends a worker's leases [{"id", "lease"}] and returns those that are gone, with lease_lost or canceled.
  grant to service_role: execute

function penstock.job_graph(uuid, bigint, integer)
  arguments: p_job_id uuid, p_after bigint DEFAULT 0, p_limit integer DEFAULT 500
  returns: TABLE(id bigint, kind text, key text, phase text, status text, waiting_for text, waiting_until timestamp with time zone, attempt integer, fraction real, message text, created_at timestamp with time zone, ready_at timestamp with time zone, started_at timestamp with time zone, finished_at timestamp with time zone, error_code text, parents bigint[])
  attributes: plpgsql, stable, security definer, parallel unsafe
  settings: jit=off, search_path=penstock, pg_temp
  body: sha256 fd871c42cf8fff770964a0cccd90557f
  comment: A job's tasks with what each comes after, and when it could have begun: for a graph, a grid and a timeline.
  grant to authenticated: execute
  grant to service_role: execute

function penstock.lane_states(uuid)
  arguments: p_tenant_id uuid DEFAULT NULL::uuid
  returns: TABLE(lane_id integer, kind text, provider text, tenant_id uuid, waiting bigint, running bigint, oldest_seconds double precision, workers bigint, state text, reason text, opens_at timestamp with time zone)
  attributes: plpgsql, stable, security definer, parallel unsafe
  settings: jit=off, search_path=penstock, pg_temp
  body: sha256 99f60e0f0eb0064f0e6009647c638e51
  comment: Lanes, of all or as far as a tenant has work in them: what waits and runs, how old the next task is, live workers for its kind, and whether its provider takes work. Counts stop at 100,001.
  grant to authenticated: execute
  grant to service_role: execute

function penstock.list_keys(uuid)
  arguments: p_tenant_id uuid DEFAULT NULL::uuid
  returns: TABLE(id uuid, tenant_id uuid, name text, prefix text, role text, created_by text, created_at timestamp with time zone, expires_at timestamp with time zone, last_used_at timestamp with time zone, revoked_at timestamp with time zone)
  attributes: plpgsql, stable, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 28eaa2fcdca85f46e98fb4f612354315
  comment: The API keys of a tenant; for the service without a tenant those of workers and services.
  grant to authenticated: execute
  grant to service_role: execute

function penstock.list_strangers(uuid[], uuid[])
  arguments: p_user_ids uuid[], p_tenant_ids uuid[]
  returns: TABLE(place integer)
  attributes: sql, stable, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 6798dc2c6340ece898c2681f53391d74
  comment: The places of those users and keys that are not, or not any more, in the tenant beside them; with null beside them, of keys that have ended.
  grant to service_role: execute

function penstock.mark_bulk_rows(bigint, text, bigint, jsonb, bigint)
  arguments: p_task_id bigint, p_worker_id text, p_lease bigint, p_rows jsonb, p_next_id bigint DEFAULT NULL::bigint
  returns: void
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: enable_seqscan=off, jit=off, search_path=penstock, pg_temp
  body: sha256 4a319648ac0a9f34d3bf6121cb110748
  comment: What became of rows that were taken, in the same transaction: [{"number", "problem"}] or [{"number", "first_id", "result_id", "last_id", "batch_size"}]; and the task that loads the next ones.
  grant to service_role: execute

function penstock.mark_rows_written(uuid, bigint[], text[])
  arguments: p_job_id uuid, p_numbers bigint[], p_states text[]
  returns: integer
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: enable_seqscan=off, jit=off, search_path=penstock, pg_temp
  body: sha256 2e3c5566a7f28d8ee2b1df010a91bc57
  comment: Notes which states of rows were written back to the source.
  grant to service_role: execute

function penstock.my_tenants()
  returns: SETOF uuid
  attributes: sql, stable, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 59d809f5dc9eb9f4567f37dfd9ebdfd7
  comment: The tenants the calling user is a member of. Every policy asks this.
  grant to authenticated: execute
  grant to service_role: execute

function penstock.next_opening(text[])
  arguments: p_task_types text[] DEFAULT NULL::text[]
  returns: double precision
  attributes: sql, stable, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 d6b6cea98be9fbdad24085dc0772cf08
  comment: In how many seconds a claim that found nothing may find something without being notified: an endpoint opens, or a lane is read whole. Null: unknown.
  grant to service_role: execute

function penstock.on_new_user()
  returns: trigger
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 8f3ee288716e2ac82f4b913a6d839b15
  comment: A new user gets a profile and a personal tenant.

function penstock.open_bulk(text, jsonb, jsonb, jsonb)
  arguments: p_type text, p_source jsonb DEFAULT '{}'::jsonb, p_options jsonb DEFAULT '{}'::jsonb, p_params jsonb DEFAULT '{}'::jsonb
  returns: TABLE(job_id uuid, is_new boolean)
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 739e537f7385b52835864f9ba8f8d23e
  comment: Makes a bulk job without rows, or finds the one its idempotency key names; add_bulk_rows fills it, or a worker if the source is a Google Sheet. The source says where its rows are from: {"type", "id" or "name", …}. Options: those of open_job, and preview, skip_done, key.
  grant to authenticated: execute
  grant to service_role: execute

function penstock.open_job(text, jsonb, jsonb)
  arguments: p_type text, p_params jsonb DEFAULT '{}'::jsonb, p_options jsonb DEFAULT '{}'::jsonb
  returns: TABLE(job_id uuid, is_new boolean)
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 7d7019079ffd156464ed96bd235656e7
  comment: Makes a job without tasks, or finds the one its idempotency key names; add_tasks fills it. Options: tenant_id, idempotency_key, priority, run_at or delay_seconds, on_failure, paused, digest, budget (in the base currency), on_limit (hold, refuse, pause), stop_after (a number of failures, or a part such as 5%).
  grant to authenticated: execute
  grant to service_role: execute

function penstock.open_provider(text, uuid)
  arguments: p_name text, p_tenant_id uuid DEFAULT NULL::uuid
  returns: void
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 530b2971bdef1b340a1655099884b29e
  comment: Opens an endpoint that closed after a provider's answer, once its account is topped up or the problem is solved. Forgets a lower limit that the provider reported.
  grant to service_role: execute

function penstock.orphaned_artifacts(text[])
  arguments: p_paths text[]
  returns: SETOF text
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 794e3362fa97991f016af64fddc510a3
  comment: Of these paths, at most 500 that have no record, though they are of a tenant of ours. Locked: remove the files in the same transaction.
  grant to service_role: execute

function penstock.overview(uuid)
  arguments: p_tenant_id uuid DEFAULT NULL::uuid
  returns: jsonb
  attributes: plpgsql, stable, security definer, parallel unsafe
  settings: jit=off, search_path=penstock, pg_temp
  body: sha256 861bea8a686e0c1f4913a0cfb73be4bc
  comment: How it goes, for a tenant or (for the service) for all: what waits, runs and failed, what it costs today, what stands in the way, and the causes of failures.
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
  body: sha256 c86506364be329e0fd96245665de155a
  comment: Deletes ended jobs that are older than the setting retention_days, at most so many rows; returns how many. The audit log stays. Workers call it about once a minute; nothing happens while another call runs.
  grant to service_role: execute

function penstock.pulse()
  returns: record
  attributes: sql, stable, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 47a6f3618f3f9ea14cb57986cec889d5
  comment: Whether anything runs, and the number of the last lease: another one than before says that something ran meanwhile.
  grant to service_role: execute

function penstock.read_bulk_again(uuid)
  arguments: p_job_id uuid
  returns: bigint
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 3072ad08ada5de2db717f78c8e7c79ca
  comment: Lets a worker read the Google Sheet of a bulk job that has not ended once more: new rows are added. Returns the task that begins it.
  grant to authenticated: execute
  grant to service_role: execute

function penstock.reclaim_stale_tasks()
  returns: integer
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 9b93bc75de4b96426fc80e175484d956
  comment: Requeues tasks whose lease has expired, or moves them to the dead letters when too many of their workers died. Handles a bounded number and returns it; there may be more.
  grant to service_role: execute

function penstock.record_changes(bigint, text, bigint, jsonb)
  arguments: p_task_id bigint, p_worker_id text, p_lease bigint, p_changes jsonb
  returns: integer
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 ba59db72f86694bb5d860b294de22dd6
  comment: What a running task applied for rows of its job: [{"number", "name", "before", "after"}], in the transaction that applied it.
  grant to service_role: execute

function penstock.record_cost(text, numeric, text, bigint, text, bigint, uuid, jsonb)
  arguments: p_cost_type text, p_amount numeric, p_currency text DEFAULT NULL::text, p_task_id bigint DEFAULT NULL::bigint, p_worker_id text DEFAULT NULL::text, p_lease bigint DEFAULT NULL::bigint, p_tenant_id uuid DEFAULT NULL::uuid, p_options jsonb DEFAULT '{}'::jsonb
  returns: bigint
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 9f3c04d4576a068b70c433f3fa319ffa
  comment: Adds a line to the ledger, of an attempt (p_task_id, p_worker_id, p_lease) or of a tenant. Options: provider, job_id, meter, variant, unit_count, started_at, ended_at, key (counts once), corrects (the line it corrects; may be negative), reason.
  grant to service_role: execute

function penstock.record_usage(jsonb, bigint, text, bigint, uuid, text, jsonb)
  arguments: p_units jsonb, p_task_id bigint DEFAULT NULL::bigint, p_worker_id text DEFAULT NULL::text, p_lease bigint DEFAULT NULL::bigint, p_tenant_id uuid DEFAULT NULL::uuid, p_action text DEFAULT NULL::text, p_options jsonb DEFAULT '{}'::jsonb
  returns: void
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 8677b456560529399d33e323935508da
  comment: What an attempt (p_task_id, p_worker_id, p_lease) or a tenant's action used, as {"requests", "input_tokens", …}; priced at once where its provider has prices. Options: variant, provider, details.
  grant to service_role: execute

function penstock.release_api_capacity(text, text, bigint, bigint, text, uuid)
  arguments: p_provider_name text, p_api_endpoint text, p_estimated_tokens bigint DEFAULT 1000, p_actual_tokens bigint DEFAULT NULL::bigint, p_key text DEFAULT NULL::text, p_tenant_id uuid DEFAULT NULL::uuid
  returns: void
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 e8d751cc033cf93aeb21cdb99f843945
  comment: Ends a call of acquire_api_capacity and replaces its estimate with the actual tokens. A second release changes nothing.
  grant to service_role: execute

function penstock.release_hold(uuid, uuid)
  arguments: p_hold_id uuid, p_tenant_id uuid DEFAULT NULL::uuid
  returns: boolean
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 ba2e8c85ba6b68f96db88b5083f871b7
  comment: Frees what a hold reserved. A second release changes nothing and returns false.
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

function penstock.report_limited(bigint, text, bigint, jsonb)
  arguments: p_task_id bigint, p_worker_id text, p_lease bigint, p_signal jsonb
  returns: void
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 374b91279963a72ae3f1e6011f20b2ec
  comment: Reports that a provider rejected an attempt's call (see report_provider for the signal): its endpoint closes for all workers, and the task is requeued without using up an attempt.
  grant to service_role: execute

function penstock.report_progress(bigint, text, bigint, double precision, text)
  arguments: p_task_id bigint, p_worker_id text, p_lease bigint DEFAULT NULL::bigint, p_fraction double precision DEFAULT NULL::double precision, p_message text DEFAULT NULL::text
  returns: void
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 f20edc8c6c4b88a8ac6b6fcf8dab6ef7
  comment: Reports how far a running task is (0 to 1), with a message for people.
  grant to service_role: execute

function penstock.report_provider(text, jsonb, uuid)
  arguments: p_name text, p_signal jsonb, p_tenant_id uuid DEFAULT NULL::uuid
  returns: void
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 4c40655145ae1f8037fc36820d24b2f0
  comment: Reports what a provider answered: {"status", "retry_after_seconds", "exhausted", "message", "requests": {"limit", "remaining"}, "tokens": {"limit", "remaining"}}. A 429 closes the endpoint for all workers at once and slows it for a while; an exhausted account closes it until open_provider.
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
  body: sha256 6964aa159902d158f2c08d1067d08dc0
  comment: Requeues one task without using up an attempt.
  grant to service_role: execute

function penstock.reschedule_tasks(text, bigint[], bigint[], double precision, text)
  arguments: p_worker_id text, p_task_ids bigint[], p_leases bigint[], p_delay_seconds double precision DEFAULT 0, p_reason text DEFAULT 'rescheduled'::text
  returns: TABLE(id bigint, code text)
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 da3c9753aca31bc08e44d62a00ec8ea2
  comment: Requeues tasks, now or after a delay, without using up an attempt. The reason "not begun" is reserved for tasks whose handler never ran: the provider calls admitted for them do not count. Returns only those rejected.
  grant to service_role: execute

function penstock.reserve_quota(uuid, jsonb, text, text, double precision)
  arguments: p_tenant_id uuid, p_amounts jsonb, p_action text DEFAULT 'reserve'::text, p_key text DEFAULT NULL::text, p_ttl_seconds double precision DEFAULT 300
  returns: uuid
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 c02f8c0feb0b51f1bdf2576d32dc8d0b
  comment: Reserves amounts of meters, all or none, and returns the id of the hold; fails with 429 quota_exceeded. A hold that is neither committed nor released expires. The same p_key returns the same hold.
  grant to service_role: execute

function penstock.reset_quota(uuid, text, text)
  arguments: p_tenant_id uuid, p_meter text, p_reason text DEFAULT NULL::text
  returns: numeric
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 a72966f418a0ead7701688bbd94585ea
  comment: Starts a tenant's count of a meter again at nothing; returns what had been used. What is set aside stays.
  grant to service_role: execute

function penstock.resolve_limits(uuid, timestamp with time zone)
  arguments: p_tenant_id uuid, p_at timestamp with time zone DEFAULT NULL::timestamp with time zone
  returns: TABLE(meter text, amount numeric, mode text, period date, resets_at timestamp with time zone)
  attributes: plpgsql, stable, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 f8d1f1c3dfd297041d220bc8c221367c
  comment: A tenant's limits now, or at a moment. A meter without a row is not limited.
  grant to authenticated: execute
  grant to service_role: execute

function penstock.resume_job(uuid)
  arguments: p_job_id uuid
  returns: text
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 bdb9c7ade85cffee93725cc6f2c1973c
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

function penstock.revoke_key(uuid)
  arguments: p_key_id uuid
  returns: void
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 d45817e660533130d45ca83cab5aa7b1
  comment: Ends an API key at once. Ending it again changes nothing.
  grant to authenticated: execute
  grant to service_role: execute

function penstock.set_budget(uuid, numeric)
  arguments: p_job_id uuid, p_amount numeric
  returns: void
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 3a7323b333a0fadf8c597fd8c52e1b1a
  comment: Changes what a job may cost, in the base currency (null: anything). A job that paused for want of budget goes on.
  grant to authenticated: execute
  grant to service_role: execute

function penstock.set_exchange_rate(text, numeric, timestamp with time zone)
  arguments: p_currency text, p_rate numeric, p_valid_from timestamp with time zone DEFAULT NULL::timestamp with time zone
  returns: void
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 7ca4cd91902fd14f61142e26a7d16993
  comment: What one unit of a currency is worth in the base currency, from a date on.
  grant to service_role: execute

function penstock.set_limit(uuid, text, numeric, boolean)
  arguments: p_tenant_id uuid, p_meter text, p_amount numeric, p_is_own boolean DEFAULT true
  returns: void
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 aa84b7a1a601168130fc7c3f850f6f83
  comment: A tenant's own limit of a meter in place of its plan's (null: none); with p_is_own false the plan's holds again. A limit below what is used is legal and stops new work.
  grant to service_role: execute

function penstock.set_member(uuid, uuid, text)
  arguments: p_tenant_id uuid, p_user_id uuid, p_role text
  returns: void
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 47f57883d37cd741df7827f7175b643c
  comment: Gives a user a role in a tenant; null removes the user.
  grant to authenticated: execute
  grant to service_role: execute

function penstock.set_meter(text, jsonb)
  arguments: p_name text, p_values jsonb DEFAULT '{}'::jsonb
  returns: void
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 fef11f5b40380bfc27391a07c439bc67
  comment: Makes or changes a meter: period (day, month, total), mode (observe, enforce), comment.
  grant to service_role: execute

function penstock.set_plan(text, jsonb)
  arguments: p_name text, p_values jsonb DEFAULT '{}'::jsonb
  returns: void
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 1591d7ce537aab3e27a392a2f001a9f7
  comment: Makes or changes a plan: title, comment, limits {meter: amount or null}, features, price, currency, weight, is_active, position. Its tenants have the new limits at once.
  grant to service_role: execute

function penstock.set_price(text, text, numeric, jsonb)
  arguments: p_provider text, p_meter text, p_amount numeric, p_options jsonb DEFAULT '{}'::jsonb
  returns: bigint
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 e7e8dcc2b6eceb025028104635c6945b
  comment: What a unit of a meter costs at a provider from a date on (null: no price any more). Options: per (1, 1000, 1000000), currency, variant, cost_type, valid_from, tenant_id. Earlier work keeps its price.
  grant to service_role: execute

function penstock.set_provider(text, jsonb, uuid)
  arguments: p_name text, p_values jsonb DEFAULT '{}'::jsonb, p_tenant_id uuid DEFAULT NULL::uuid
  returns: integer
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 bd0d8e44b3e07f3678dcf2cbc597f0a5
  comment: Creates or changes a provider endpoint, for all tenants or for one: status, requests_per_minute, requests_per_hour, tokens_per_minute, tokens_per_hour, concurrency, default_tokens, backpressure_threshold, backpressure_delay_seconds, depth_limit, features. Null: no limit. Takes effect at once.
  grant to service_role: execute

function penstock.set_schedule(text, text, text, timestamp with time zone, jsonb)
  arguments: p_name text, p_cron text, p_job_type text, p_next_run_at timestamp with time zone, p_options jsonb DEFAULT '{}'::jsonb
  returns: uuid
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 bbc7225763fae16edc7e7283d356c523
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

function penstock.set_tenant_plan(uuid, text)
  arguments: p_tenant_id uuid, p_plan text
  returns: void
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 d3d40abe41f0ee8e082aee1a3b5297e8
  comment: Puts a tenant on a plan (null: none, no limits), with the plan's share of every lane. What was used in the period stays used.
  grant to service_role: execute

function penstock.set_tenant_weight(uuid, double precision)
  arguments: p_tenant_id uuid, p_weight double precision
  returns: void
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 77048ffd13516063df3bd94abbfe2636
  comment: Changes a tenant's share of every lane, for work queued from now on.
  grant to service_role: execute

function penstock.start_action(text, text[], text)
  arguments: p_verb text, p_subjects text[], p_reason text DEFAULT NULL::text
  returns: uuid
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 52d3a045d1335a670eaeeb32f1f1c18c
  comment: Does one thing to many: pause, resume, cancel or retry to jobs, replay or discard to dead letters, by their ids. The first hundred are done at once, the rest by the workers. Returns the action, which tells how far it is.
  grant to authenticated: execute
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

function penstock.take_bulk_rows(bigint, text, bigint, integer)
  arguments: p_task_id bigint, p_worker_id text, p_lease bigint, p_max integer DEFAULT 1000
  returns: TABLE(number bigint, key text, group_key text, data jsonb)
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: enable_seqscan=off, jit=off, search_path=penstock, pg_temp
  body: sha256 327b4b0eca1778d802300578ac884a75
  comment: The next rows of a bulk job that are not loaded, for the task that loads them, which has the job's rows for itself until its transaction ends.
  grant to service_role: execute

function penstock.take_upload(uuid)
  arguments: p_artifact_id uuid
  returns: TABLE(tenant_id uuid, name text, incoming text, path text, content_type text, bytes bigint, lease bigint)
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 049f445c715a46997bfc5a324e2d4971
  comment: Says where an upload is, and where its checked copy goes. finish_artifact with this lease ends it.
  grant to authenticated: execute
  grant to service_role: execute

function penstock.task_rates(uuid, integer)
  arguments: p_tenant_id uuid DEFAULT NULL::uuid, p_minutes integer DEFAULT 60
  returns: TABLE(minute timestamp with time zone, succeeded integer, failed integer, wait_p50 double precision, wait_p95 double precision, run_p50 double precision, run_p95 double precision)
  attributes: plpgsql, stable, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 3e29a9841551b964b864508686105bf9
  comment: Per minute of the last hour, of a tenant or (for the service) of all: tasks that succeeded and failed, and how long they waited and ran, in seconds, median and 95th percentile.
  grant to authenticated: execute
  grant to service_role: execute

function penstock.undo_bulk(uuid, jsonb)
  arguments: p_job_id uuid, p_filter jsonb DEFAULT '{}'::jsonb
  returns: uuid
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 050d3af28aeb3735d5762847f83ed37f
  comment: Starts a job that undoes what was applied and is not undone: of all rows, or of {"rows": [numbers], "names": [values]}. Returns its id. What is applied later stays.
  grant to authenticated: execute
  grant to service_role: execute

function penstock.undo_changes(bigint, text, bigint)
  arguments: p_task_id bigint, p_worker_id text, p_lease bigint
  returns: TABLE(id bigint, row_number bigint, name text, before jsonb, after jsonb)
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 8b4a2a96e4406a0875cf52b5ca70ca6d
  comment: The changes that a running undo task is to undo, newest first, marked as undone: the task undoes them in the same transaction.
  grant to service_role: execute

function penstock.upkeep()
  returns: TABLE(reclaimed integer, promoted integer, chores integer, next_seconds double precision)
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: lock_timeout=3s, search_path=penstock, pg_temp
  body: sha256 2e274c176bce7e9d28bba2a8c8c2fec9
  comment: Housekeeping that any worker calls regularly: requeues stale tasks, queues tasks that are due, does a bite of a large pause, resume or cancel. Fails when it waits longer than three seconds for a lock. Returns in how many seconds there is more to do (null: unknown).
  grant to service_role: execute

function penstock.use_key(bytea)
  arguments: p_digest bytea
  returns: TABLE(id uuid, tenant_id uuid, role text)
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 b44f61df6a69996399bfcaf70823c1ae
  comment: Whose key has this SHA-256, with its role; no row for one that is unknown, expired or revoked.
  grant to service_role: execute

function penstock.weigh_action(text, text[])
  arguments: p_verb text, p_subjects text[]
  returns: jsonb
  attributes: plpgsql, stable, security definer, parallel unsafe
  settings: jit=off, search_path=penstock, pg_temp
  body: sha256 e0b6e7bba21e3c2ab30326e02f982673
  comment: What an action would be about: how many tasks, and the money they may cost (retry, replay) or have cost (cancel, pause, resume). Of more than 1,000 things, for the first 1,000.
  grant to authenticated: execute
  grant to service_role: execute

trigger penstock_on_new_user on auth.users
  definition: CREATE TRIGGER penstock_on_new_user AFTER INSERT ON auth.users FOR EACH ROW EXECUTE FUNCTION penstock.on_new_user()
