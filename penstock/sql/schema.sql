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

type penstock.forecast_group
  column kind: text
  column provider: text
  column count: double precision
  column running: double precision
  column cost: numeric
  column deviation: numeric
  column units: jsonb
  column parents: integer[]
  column seconds: double precision
  column spread: double precision
  column samples: integer
  column cost_ratio: numeric
  column cost_spread: numeric
  column cost_samples: integer

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

type penstock.simulated_event
  column delay: double precision
  column slot: integer
  column amount: double precision

type penstock.simulated_group
  column count: double precision
  column running: double precision
  column seconds: double precision
  column spread: double precision
  column requests: double precision
  column tokens: double precision
  column used_tokens: double precision
  column parents: integer[]
  column provider: text
  column opens_in: double precision
  column task_slot: integer
  column worker_slot: integer
  column request_slot: integer
  column token_slot: integer
  column place_slot: integer

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

sequence penstock.change_seqs
  definition: bigint start 1 increment 1 minimum 1 maximum 9223372036854775807 cache 1

sequence penstock.lease_numbers
  definition: bigint start 1 increment 10000 minimum 1 maximum 9223372036854775807 cache 1

sequence penstock.task_ids
  definition: bigint start 1 increment 1 minimum 1 maximum 9223372036854775807 cache 1

sequence penstock.task_log_ids
  definition: bigint start 1 increment 1 minimum 1 maximum 9223372036854775807 cache 1

partition penstock.task_chunks_0
  grant to service_role: select

partition penstock.task_chunks_1
  grant to service_role: select

partition penstock.task_chunks_2
  grant to service_role: select

partition penstock.task_logs_0
  grant to service_role: select

partition penstock.task_logs_1
  grant to service_role: select

partition penstock.task_logs_2
  grant to service_role: select

table penstock.access_changes
  comment: When memberships and keys changed. Processes with open streams read it to check who may still watch.
  row security: enabled
  column id: bigint generated always as identity not null
  column at: timestamp with time zone not null
  constraint access_changes_pkey: PRIMARY KEY (id)
  index access_changes_at: CREATE INDEX access_changes_at ON penstock.access_changes USING btree (at)
  policy service_reads: permissive for select to service_role using true
  grant to service_role: select

table penstock.accounts
  comment: Used and reserved amounts of a tenant, or of one job, in a period: the running totals of usage and holds. check_accounts() compares them.
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
  comment: The remaining subjects of an action: ids of jobs (pause, resume, cancel, retry) or of dead letters (replay, discard).
  row security: enabled
  column action_id: uuid not null
  column subject: text not null
  constraint action_items_action_id_fkey: FOREIGN KEY (action_id) REFERENCES penstock.actions(id) ON DELETE CASCADE
  constraint action_items_pkey: PRIMARY KEY (action_id, subject)
  policy service_reads: permissive for select to service_role using true
  grant to service_role: select

table penstock.actions
  comment: Operations on many jobs or dead letters: the first batch runs at once, workers run the others.
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
  column tenant_id: uuid
  comment on column user_id: The user whose permissions are checked for each subject; null: the service.
  comment on column refusal: Why the last rejected subject was rejected.
  comment on column tenant_id: The tenant whose turn the action takes: that of its first subject; null: the service.
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
  comment: Additions to a tenant's limit: an override until its expiry day (inclusive), or a purchase.
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
  column used: numeric not null default 0
  column settled_until: date not null default '1970-01-01'::date
  comment on column used: How much of a purchase ended periods have used up. The current period is not included.
  comment on column settled_until: Periods of the meter before this day are included in used.
  constraint allowances_amount_check: CHECK ((amount > (0)::numeric))
  constraint allowances_check: CHECK (((source <> 'override'::text) OR (expires_on IS NOT NULL)))
  constraint allowances_key_check: CHECK (((length(key) >= 1) AND (length(key) <= 255)))
  constraint allowances_meter_fkey: FOREIGN KEY (meter) REFERENCES penstock.meters(name)
  constraint allowances_pkey: PRIMARY KEY (id)
  constraint allowances_reason_check: CHECK ((length(reason) <= 1000))
  constraint allowances_source_check: CHECK ((source = ANY (ARRAY['override'::text, 'purchase'::text])))
  constraint allowances_tenant_id_fkey: FOREIGN KEY (tenant_id) REFERENCES penstock.tenants(id) ON DELETE CASCADE
  constraint allowances_used_check: CHECK ((used >= (0)::numeric))
  index allowances_key: CREATE UNIQUE INDEX allowances_key ON penstock.allowances USING btree (tenant_id, key) WHERE (key IS NOT NULL)
  index allowances_meter: CREATE INDEX allowances_meter ON penstock.allowances USING btree (meter)
  index allowances_open: CREATE INDEX allowances_open ON penstock.allowances USING btree (settled_until) WHERE ((source = 'purchase'::text) AND (used < amount))
  index allowances_tenant: CREATE INDEX allowances_tenant ON penstock.allowances USING btree (tenant_id, meter)
  policy members_read: permissive for select to authenticated using (tenant_id IN ( SELECT penstock.my_tenants() AS my_tenants))
  policy service_reads: permissive for select to service_role using true
  grant to authenticated: select
  grant to service_role: select

table penstock.api_keys
  comment: API keys. A tenant's key is a member of the tenant, with the key's id as user id; a key without a tenant belongs to the service.
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
  column parent_id: uuid
  column owner_id: uuid
  column scopes: text[] not null default ARRAY['read'::text, 'start'::text, 'work'::text, 'admin'::text]
  comment on column digest: SHA-256 of the key. The key itself is random and not stored.
  comment on column role: Role of a key without a tenant. A tenant's key has the role of its member row.
  comment on column parent_id: The key that created this key.
  comment on column owner_id: The user who created this key, or the key that it descends from. Removing the user revokes the key.
  comment on column scopes: What the key may do, within its role: read, start (and change jobs), work (as a worker), admin.
  constraint api_keys_check: CHECK (((tenant_id IS NULL) = (role IS NOT NULL)))
  constraint api_keys_digest_check: CHECK ((length(digest) = 32))
  constraint api_keys_digest_key: UNIQUE (digest)
  constraint api_keys_name_check: CHECK (((length(name) >= 1) AND (length(name) <= 200)))
  constraint api_keys_parent_id_fkey: FOREIGN KEY (parent_id) REFERENCES penstock.api_keys(id)
  constraint api_keys_pkey: PRIMARY KEY (id)
  constraint api_keys_role_check: CHECK ((role = ANY (ARRAY['worker'::text, 'service'::text])))
  constraint api_keys_scopes_check: CHECK (((cardinality(scopes) > 0) AND (scopes <@ ARRAY['read'::text, 'start'::text, 'work'::text, 'admin'::text])))
  constraint api_keys_tenant_id_fkey: FOREIGN KEY (tenant_id) REFERENCES penstock.tenants(id) ON DELETE CASCADE
  index api_keys_owner: CREATE INDEX api_keys_owner ON penstock.api_keys USING btree (owner_id)
  index api_keys_parent: CREATE INDEX api_keys_parent ON penstock.api_keys USING btree (parent_id)
  index api_keys_tenant: CREATE INDEX api_keys_tenant ON penstock.api_keys USING btree (tenant_id, id)
  trigger api_keys_access: CREATE TRIGGER api_keys_access AFTER UPDATE OF revoked_at ON penstock.api_keys FOR EACH STATEMENT EXECUTE FUNCTION penstock._on_access_change()
  policy service_reads: permissive for select to service_role using true
  grant to service_role: select

table penstock.artifacts
  comment: Files that tasks created and clients uploaded. The record is created before the file and deleted after it.
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
  column subject: text
  column kept_until: timestamp with time zone
  column link: text
  column link_until: timestamp with time zone
  column type: text
  column metadata: jsonb not null default '{}'::jsonb
  comment on column incoming: Where a client uploads the file. It is not trusted until it has been checked and copied to path.
  comment on column bytes: Size of the file; while it is pending, the announced size.
  comment on column status: pending: being written; stored: complete and counted; deleted: the file, then this row, will be removed.
  comment on column subject: What the file belongs to, as noun:id, while an app keeps it; null: it is removed after retention_days.
  comment on column kept_until: When the file stops being kept; null: never.
  comment on column link: Who may open the link of the file: anybody who has it (public), the same until link_until (signed), or members who are signed in (login); null: it has no link.
  comment on column link_until: When a signed link ends.
  comment on column type: What the file is, such as audio_mp3; from its content type if the task does not say.
  comment on column metadata: What the task says about the file, such as {"pages": 3, "duration": 180.5} (seconds).
  constraint artifacts_bytes_check: CHECK ((bytes >= 0))
  constraint artifacts_check: CHECK (((job_id IS NULL) = (task_id IS NULL)))
  constraint artifacts_check1: CHECK (((status <> 'stored'::text) OR ((bytes IS NOT NULL) AND (sha256 IS NOT NULL) AND (stored_at IS NOT NULL))))
  constraint artifacts_content_type_check: CHECK ((length(content_type) <= 200))
  constraint artifacts_idempotency_key_check: CHECK (((length(idempotency_key) >= 1) AND (length(idempotency_key) <= 255)))
  constraint artifacts_incoming_check: CHECK ((length(incoming) <= 900))
  constraint artifacts_link_check: CHECK ((link = ANY (ARRAY['public'::text, 'signed'::text, 'login'::text])))
  constraint artifacts_metadata_check: CHECK ((jsonb_typeof(metadata) = 'object'::text))
  constraint artifacts_name_check: CHECK ((length(name) <= 200))
  constraint artifacts_path_check: CHECK ((length(path) <= 900))
  constraint artifacts_pkey: PRIMARY KEY (id)
  constraint artifacts_sha256_check: CHECK ((sha256 ~ '^[0-9a-f]{64}$'::text))
  constraint artifacts_status_check: CHECK ((status = ANY (ARRAY['pending'::text, 'stored'::text, 'deleted'::text])))
  constraint artifacts_tenant_id_fkey: FOREIGN KEY (tenant_id) REFERENCES penstock.tenants(id)
  constraint artifacts_tenant_id_path_key: UNIQUE (tenant_id, path)
  constraint artifacts_type_check: CHECK ((type ~ '^[a-z0-9][a-z0-9_]{0,62}$'::text))
  index artifacts_due: CREATE INDEX artifacts_due ON penstock.artifacts USING btree (begun_at) WHERE (status <> 'stored'::text)
  index artifacts_expiring: CREATE INDEX artifacts_expiring ON penstock.artifacts USING btree (stored_at) WHERE ((job_id IS NULL) AND (status = 'stored'::text) AND (subject IS NULL))
  index artifacts_idempotency: CREATE UNIQUE INDEX artifacts_idempotency ON penstock.artifacts USING btree (tenant_id, idempotency_key) WHERE (idempotency_key IS NOT NULL)
  index artifacts_job: CREATE INDEX artifacts_job ON penstock.artifacts USING btree (job_id, id) WHERE (job_id IS NOT NULL)
  index artifacts_kept: CREATE INDEX artifacts_kept ON penstock.artifacts USING btree (kept_until, id) WHERE (subject IS NOT NULL)
  index artifacts_pending: CREATE INDEX artifacts_pending ON penstock.artifacts USING btree (tenant_id) WHERE (status <> 'stored'::text)
  index artifacts_uploads: CREATE INDEX artifacts_uploads ON penstock.artifacts USING btree (stored_at) WHERE ((job_id IS NULL) AND (status = 'stored'::text))
  policy members_read: permissive for select to authenticated using (tenant_id IN ( SELECT penstock.my_tenants() AS my_tenants))
  policy service_reads: permissive for select to service_role using true
  grant to authenticated: select
  grant to service_role: select

table penstock.attempts
  comment: Failed attempts with their errors. Append-only.
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
  comment: Who did what, written in the same transaction. Append-only: no role may update or delete rows.
  row security: enabled
  column id: bigint generated always as identity not null
  column at: timestamp with time zone not null
  column tenant_id: uuid
  column actor: text not null
  column action: text not null
  column job_id: uuid
  column subject: text
  column details: jsonb not null default '{}'::jsonb
  comment on column subject: The object acted on, as noun:id.
  constraint audit_log_pkey: PRIMARY KEY (id)
  index audit_log_job: CREATE INDEX audit_log_job ON penstock.audit_log USING btree (job_id, id) WHERE (job_id IS NOT NULL)
  index audit_log_tenant: CREATE INDEX audit_log_tenant ON penstock.audit_log USING btree (tenant_id, id)
  policy admins_read: permissive for select to authenticated using ((action ~~ 'admin.%'::text) AND ( SELECT penstock.is_admin() AS is_admin))
  policy members_read: permissive for select to authenticated using (tenant_id IN ( SELECT penstock.my_tenants() AS my_tenants))
  policy service_reads: permissive for select to service_role using true
  grant to authenticated: select
  grant to service_role: select

table penstock.audit_marks
  comment: Up to which line the next seal may reach: once all transactions before next_xid have ended, no line up to last_id can appear any more.
  row security: enabled
  column id: boolean not null default true
  column last_id: bigint not null
  column next_xid: xid8 not null
  constraint audit_marks_id_check: CHECK (id)
  constraint audit_marks_pkey: PRIMARY KEY (id)
  policy service_reads: permissive for select to service_role using true
  grant to service_role: select

table penstock.audit_seals
  comment: Seals of the audit log: each covers the lines after the one before up to last_id, and hashes them together with the hash before. A changed, deleted, inserted or reordered line breaks the chain. See check_audit_log.
  row security: enabled
  column number: bigint not null
  column last_id: bigint not null
  column lines: bigint not null
  column digest: bytea not null
  column hash: bytea not null
  column sealed_at: timestamp with time zone not null
  column pruned_at: timestamp with time zone
  comment on column pruned_at: When retention removed the lines. The last such seal is where the chain begins.
  constraint audit_seals_lines_check: CHECK ((lines >= 0))
  constraint audit_seals_pkey: PRIMARY KEY (number)
  policy service_reads: permissive for select to service_role using true
  grant to service_role: select

table penstock.bill_lines
  comment: What providers billed, from their usage exports, to compare it with the ledger of costs.
  row security: enabled
  column provider: text not null
  column day: date not null
  column item: text not null
  column amount: numeric not null
  column currency: text not null
  column base_amount: numeric not null
  column imported_at: timestamp with time zone not null
  constraint bill_lines_amount_check: CHECK (((amount > '-1000000000000'::numeric) AND (amount < '1000000000000'::numeric)))
  constraint bill_lines_currency_check: CHECK ((currency ~ '^[A-Z]{3}$'::text))
  constraint bill_lines_item_check: CHECK ((length(item) <= 200))
  constraint bill_lines_pkey: PRIMARY KEY (provider, day, item, currency)
  constraint bill_lines_provider_check: CHECK ((provider ~ '^[a-z0-9][a-z0-9_.-]{0,99}$'::text))
  policy service_reads: permissive for select to service_role using true
  grant to service_role: select

table penstock.billing_accounts
  comment: The customer of a tenant at Stripe. The first customer that is bound stays.
  row security: enabled
  column tenant_id: uuid not null
  column customer_id: text
  column checkout_id: text
  column checkout_expires_at: timestamp with time zone
  column created_at: timestamp with time zone not null
  constraint billing_accounts_customer_id_check: CHECK (((length(customer_id) >= 1) AND (length(customer_id) <= 255)))
  constraint billing_accounts_customer_id_key: UNIQUE (customer_id)
  constraint billing_accounts_pkey: PRIMARY KEY (tenant_id)
  constraint billing_accounts_tenant_id_fkey: FOREIGN KEY (tenant_id) REFERENCES penstock.tenants(id)
  policy service_reads: permissive for select to service_role using true
  grant to service_role: select

table penstock.billing_syncs
  comment: When the subscriptions were last compared with Stripe: one row.
  row security: enabled
  column id: boolean not null default true
  column reconciled_at: timestamp with time zone not null
  constraint billing_syncs_id_check: CHECK (id)
  constraint billing_syncs_pkey: PRIMARY KEY (id)
  policy service_reads: permissive for select to service_role using true
  grant to service_role: select

table penstock.bulk_changes
  comment: Changes applied for a row, one per value, and whether they were undone.
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
  comment: A row as it was read. Its state follows from its tasks: see bulk_row_list.
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
  column id: uuid default gen_random_uuid()
  comment on column number: The row number as shown in the source.
  comment on column key: The values of the key columns; null: the row number is the key.
  comment on column problem: Why the row has no tasks: {"code", "message", "column"}; done_before: an earlier job has completed it.
  comment on column first_id: The first task of the row; all tasks up to last_id belong to it or to its batch.
  comment on column result_id: The task whose output is the result of the row.
  comment on column written: The state that was last written back to the source.
  comment on column id: One id for the row; null in rows that are older than this column.
  constraint bulk_rows_check: CHECK ((((first_id IS NULL) = (last_id IS NULL)) AND ((first_id IS NULL) = (result_id IS NULL))))
  constraint bulk_rows_check1: CHECK (((problem IS NULL) OR (first_id IS NULL)))
  constraint bulk_rows_number_check: CHECK ((number >= 0))
  constraint bulk_rows_pkey: PRIMARY KEY (job_id, number)
  index bulk_rows_id: CREATE INDEX bulk_rows_id ON penstock.bulk_rows USING btree (id)
  index bulk_rows_key: CREATE UNIQUE INDEX bulk_rows_key ON penstock.bulk_rows USING btree (job_id, key) WHERE (key IS NOT NULL)
  index bulk_rows_problem: CREATE INDEX bulk_rows_problem ON penstock.bulk_rows USING btree (job_id, number) WHERE (problem IS NOT NULL)
  index bulk_rows_waiting: CREATE INDEX bulk_rows_waiting ON penstock.bulk_rows USING btree (job_id, group_key, number) WHERE ((first_id IS NULL) AND (problem IS NULL))
  policy members_read: permissive for select to authenticated using (tenant_id IN ( SELECT penstock.my_tenants() AS my_tenants))
  policy service_reads: permissive for select to service_role using true
  grant to authenticated: select
  grant to service_role: select

table penstock.bulks
  comment: Jobs whose tasks are created from rows. The counts are updated once per batch of rows.
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
  comment on column source_id: Identifies the source, also when it is read again.
  comment on column loader: The last task that was created to load rows.
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
  comment: Capacity that acquire_api_capacity has reserved outside a claim. A call that is not released expires.
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

table penstock.cell_limits
  comment: The directory: the limits of each provider endpoint for all cells together. Each cell has a share of them.
  row security: enabled
  column provider: text not null
  column endpoint: text not null
  column limits: jsonb not null
  constraint cell_limits_pkey: PRIMARY KEY (provider, endpoint)
  policy service_reads: permissive for select to service_role using true
  grant to service_role: select

table penstock.cells
  comment: The directory: the databases of this installation. Used in the database that the API connects to; the addresses are in the file PENSTOCK_CELLS.
  row security: enabled
  column number: smallint not null
  column name: text not null
  column share: real not null default 1
  column added_at: timestamp with time zone not null
  comment on column share: Share of every provider limit, relative to the other cells.
  constraint cells_name_check: CHECK ((name ~ '^[a-z0-9][a-z0-9_-]{0,62}$'::text))
  constraint cells_name_key: UNIQUE (name)
  constraint cells_number_check: CHECK (((number >= 0) AND (number <= 1023)))
  constraint cells_pkey: PRIMARY KEY (number)
  constraint cells_share_check: CHECK (((share > (0)::double precision) AND (share <= (1000)::double precision)))
  policy service_reads: permissive for select to service_role using true
  grant to service_role: select

table penstock.chores
  comment: Jobs whose tasks upkeep still has to move after a pause, resume or cancel. It moves them in small batches.
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
  comment: The ledger of costs, one row per cost. Append-only; a correction is a row of its own.
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
  column is_estimate: boolean not null default false
  column user_id: uuid
  comment on column base_amount: The amount in the base currency, at the exchange rate of its day.
  comment on column user_id: The user who started the job; null: the service, or no job.
  constraint cost_entries_corrects_fkey: FOREIGN KEY (corrects) REFERENCES penstock.cost_entries(id)
  constraint cost_entries_key_check: CHECK (((length(key) >= 1) AND (length(key) <= 255)))
  constraint cost_entries_pkey: PRIMARY KEY (id)
  constraint cost_entries_reason_check: CHECK ((length(reason) <= 1000))
  index cost_entries_at: CREATE INDEX cost_entries_at ON penstock.cost_entries USING brin (at)
  index cost_entries_corrects: CREATE INDEX cost_entries_corrects ON penstock.cost_entries USING btree (corrects) WHERE (corrects IS NOT NULL)
  index cost_entries_estimates: CREATE INDEX cost_entries_estimates ON penstock.cost_entries USING btree (provider, at) WHERE is_estimate
  index cost_entries_job: CREATE INDEX cost_entries_job ON penstock.cost_entries USING btree (job_id, id) WHERE (job_id IS NOT NULL)
  index cost_entries_key: CREATE UNIQUE INDEX cost_entries_key ON penstock.cost_entries USING btree (tenant_id, key) WHERE (key IS NOT NULL)
  index cost_entries_task: CREATE INDEX cost_entries_task ON penstock.cost_entries USING btree (job_id, task_id) WHERE (task_id IS NOT NULL)
  index cost_entries_tenant: CREATE INDEX cost_entries_tenant ON penstock.cost_entries USING btree (tenant_id, id)
  index cost_entries_user: CREATE INDEX cost_entries_user ON penstock.cost_entries USING btree (user_id, at DESC) WHERE (user_id IS NOT NULL)
  trigger cost_entries_kept: CREATE TRIGGER cost_entries_kept BEFORE DELETE OR UPDATE ON penstock.cost_entries FOR EACH STATEMENT EXECUTE FUNCTION penstock._keep_ledger()
  trigger cost_entries_sums: CREATE TRIGGER cost_entries_sums AFTER INSERT ON penstock.cost_entries REFERENCING NEW TABLE AS added FOR EACH STATEMENT EXECUTE FUNCTION penstock._add_up_costs()
  policy members_read: permissive for select to authenticated using (tenant_id IN ( SELECT penstock.my_tenants() AS my_tenants))
  policy service_reads: permissive for select to service_role using true
  grant to authenticated: select
  grant to service_role: select

table penstock.cost_snapshots
  comment: The costs of all tenants in a month, as they were at a time. Append-only; taken every hour.
  row security: enabled
  column id: bigint generated always as identity not null
  column taken_at: timestamp with time zone not null
  column month: date not null
  column total: numeric not null
  column by_provider: jsonb not null
  column by_type: jsonb not null
  constraint cost_snapshots_month_check: CHECK ((EXTRACT(day FROM month) = (1)::numeric))
  constraint cost_snapshots_pkey: PRIMARY KEY (id)
  index cost_snapshots_month: CREATE INDEX cost_snapshots_month ON penstock.cost_snapshots USING btree (month, id DESC)
  policy service_reads: permissive for select to service_role using true
  grant to service_role: select

table penstock.cost_sums
  comment: Costs per day, provider and type in the base currency, of each tenant and (tenant null) of all tenants. Upkeep adds fresh rows up.
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
  comment: Tasks that failed permanently. A replay deletes the row and queues the task again.
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
  comment: The dependencies of a job's tasks. A child starts once all its parents have succeeded.
  row security: enabled
  column job_id: uuid not null
  column parent_id: bigint not null
  column child_id: bigint not null
  constraint edges_pkey: PRIMARY KEY (job_id, parent_id, child_id)
  index edges_child: CREATE INDEX edges_child ON penstock.edges USING btree (job_id, child_id)
  policy service_reads: permissive for select to service_role using true
  grant to service_role: select

table penstock.endpoint_states
  comment: The current state of an endpoint. A claim locks this row to admit tasks.
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
  column is_exhausted: boolean not null default false
  comment on column open_at: When its full rate-limit windows have room again.
  comment on column closed_until: The provider asked to wait until then.
  comment on column pace: The fraction of the limits in use since the provider last rejected a call; it recovers over time.
  comment on column requests_limit: The limit that the provider reports, if it is lower than the configured one.
  comment on column told_at: When the provider last reported its limit. The report expires after an hour.
  comment on column is_exhausted: It is closed because its account is exhausted, not because it asked to wait.
  constraint endpoint_states_endpoint_id_fkey: FOREIGN KEY (endpoint_id) REFERENCES penstock.endpoints(id) ON DELETE CASCADE
  constraint endpoint_states_pace_check: CHECK (((pace > (0)::double precision) AND (pace <= (1)::double precision)))
  constraint endpoint_states_pkey: PRIMARY KEY (endpoint_id)
  policy service_reads: permissive for select to service_role using true
  grant to service_role: select

table penstock.endpoints
  comment: Provider endpoints and their limits (null: none). A tenant's own row overrides the general one.
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
  column hosts: text[]
  comment on column default_tokens: Estimated tokens of a task that does not say how many it needs.
  comment on column depth_limit: Number of waiting tasks at which new tasks are rejected; null: unlimited.
  comment on column hosts: The hosts of the provider: only their answers close or slow its lanes. Null: those known for its name.
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

table penstock.error_stacks
  comment: The stack traces of failed attempts, redacted. Only the service and the tenant's owners and admins read them.
  row security: enabled
  column job_id: uuid not null
  column task_id: bigint not null
  column lease: bigint not null
  column tenant_id: uuid not null
  column stack: text not null
  constraint error_stacks_job_id_task_id_lease_fkey: FOREIGN KEY (job_id, task_id, lease) REFERENCES penstock.attempts(job_id, task_id, lease) ON DELETE CASCADE
  constraint error_stacks_pkey: PRIMARY KEY (job_id, task_id, lease)
  policy admins_read: permissive for select to authenticated using (tenant_id IN ( SELECT penstock.my_admin_tenants() AS my_admin_tenants))
  policy service_reads: permissive for select to service_role using true
  grant to authenticated: select
  grant to service_role: select

table penstock.exchange_rates
  comment: The value of one unit of a currency in the base currency, from a date on.
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

table penstock.failures
  comment: Failures that record_outcome was told of. Append-only.
  row security: enabled
  column id: bigint generated always as identity not null
  column at: timestamp with time zone not null
  column tenant_id: uuid not null
  column scope: text not null
  column subject: text
  column code: text not null
  column message: text not null
  column job_id: uuid
  column task_id: bigint
  column details: jsonb not null default '{}'::jsonb
  comment on column scope: What the outcomes belong to, such as event:42. Failures in a row are counted per scope.
  constraint failures_code_check: CHECK (((length(code) >= 1) AND (length(code) <= 100)))
  constraint failures_message_check: CHECK (((length(message) >= 1) AND (length(message) <= 2000)))
  constraint failures_pkey: PRIMARY KEY (id)
  constraint failures_scope_check: CHECK (((length(scope) >= 1) AND (length(scope) <= 200)))
  constraint failures_subject_check: CHECK ((length(subject) <= 200))
  constraint failures_tenant_id_fkey: FOREIGN KEY (tenant_id) REFERENCES penstock.tenants(id) ON DELETE CASCADE
  index failures_scope: CREATE INDEX failures_scope ON penstock.failures USING btree (tenant_id, scope, id DESC)
  policy members_read: permissive for select to authenticated using (tenant_id IN ( SELECT penstock.my_tenants() AS my_tenants))
  policy service_reads: permissive for select to service_role using true
  grant to authenticated: select
  grant to service_role: select

table penstock.fixed_costs
  comment: Costs that no provider reports: hosting, subscriptions, people. A change ends a line and starts another.
  row security: enabled
  column id: bigint generated always as identity not null
  column name: text not null
  column amount: numeric not null
  column currency: text not null
  column period: text not null
  column from_day: date not null
  column until_day: date
  column comment: text not null default ''::text
  column created_by: text not null
  column created_at: timestamp with time zone not null
  comment on column until_day: The last day; null: no end. The day before from_day: it was replaced before it began.
  constraint fixed_costs_amount_check: CHECK (((amount >= (0)::numeric) AND (amount < '1000000000000'::numeric)))
  constraint fixed_costs_check: CHECK (((until_day IS NULL) OR (until_day >= (from_day - 1))))
  constraint fixed_costs_comment_check: CHECK ((length(comment) <= 1000))
  constraint fixed_costs_currency_check: CHECK ((currency ~ '^[A-Z]{3}$'::text))
  constraint fixed_costs_name_check: CHECK (((length(name) >= 1) AND (length(name) <= 200)))
  constraint fixed_costs_period_check: CHECK ((period = ANY (ARRAY['month'::text, 'year'::text, 'once'::text])))
  constraint fixed_costs_pkey: PRIMARY KEY (id)
  index fixed_costs_days: CREATE INDEX fixed_costs_days ON penstock.fixed_costs USING btree (from_day, until_day)
  index fixed_costs_open: CREATE UNIQUE INDEX fixed_costs_open ON penstock.fixed_costs USING btree (name) WHERE (until_day IS NULL)
  policy service_reads: permissive for select to service_role using true
  grant to service_role: select

table penstock.gates
  comment: What a tenant needs a feature of its plan, or room in a meter, for.
  row security: enabled
  column name: text not null
  column feature: text
  column meter: text
  column mode: text not null default 'observe'::text
  column kinds: text[] not null default '{}'::text[]
  column comment: text not null default ''::text
  comment on column mode: What happens without it: only recorded (observe), or rejected (enforce).
  comment on column kinds: Kinds of tasks that need the feature; a job type or bulk type stands for its kinds. Checked when a job starts and at the claim.
  constraint gates_check: CHECK (((feature IS NULL) <> (meter IS NULL)))
  constraint gates_check1: CHECK (((meter IS NULL) OR (kinds = '{}'::text[])))
  constraint gates_feature_check: CHECK ((feature ~ '^[a-z][a-z0-9_.-]{0,62}$'::text))
  constraint gates_meter_fkey: FOREIGN KEY (meter) REFERENCES penstock.meters(name)
  constraint gates_mode_check: CHECK ((mode = ANY (ARRAY['observe'::text, 'enforce'::text])))
  constraint gates_name_check: CHECK ((name ~ '^[a-z][a-z0-9_]{0,62}$'::text))
  constraint gates_pkey: PRIMARY KEY (name)
  index gates_enforced: CREATE INDEX gates_enforced ON penstock.gates USING btree (name) WHERE ((mode = 'enforce'::text) AND (kinds <> '{}'::text[]))
  index gates_kinds: CREATE INDEX gates_kinds ON penstock.gates USING btree (name) WHERE (kinds <> '{}'::text[])
  index gates_meter: CREATE INDEX gates_meter ON penstock.gates USING btree (meter)
  policy service_reads: permissive for select to service_role using true
  grant to service_role: select

table penstock.holds
  comment: Amounts reserved for an attempt or a caller until they are committed or released.
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

table penstock.identities
  comment: The user of each subject of an OpenID Connect issuer.
  row security: enabled
  column issuer: text not null
  column subject: text not null
  column user_id: uuid not null
  column created_at: timestamp with time zone not null
  constraint identities_issuer_check: CHECK (((length(issuer) >= 1) AND (length(issuer) <= 500)))
  constraint identities_pkey: PRIMARY KEY (issuer, subject)
  constraint identities_subject_check: CHECK (((length(subject) >= 1) AND (length(subject) <= 255)))
  index identities_user: CREATE INDEX identities_user ON penstock.identities USING btree (user_id)
  policy service_reads: permissive for select to service_role using true
  grant to service_role: select

table penstock.invitations
  comment: Invitations by link. A user becomes a member by accepting one.
  row security: enabled
  column id: uuid not null
  column tenant_id: uuid not null
  column role: text not null
  column email: text
  column digest: bytea not null
  column created_by: text not null
  column inviter_id: uuid
  column created_at: timestamp with time zone not null
  column expires_at: timestamp with time zone not null
  column status: text not null default 'pending'::text
  column answered_by: uuid
  column answered_at: timestamp with time zone
  comment on column email: If set, only a user with this verified e-mail address may accept.
  comment on column digest: SHA-256 of the token in the link, which is random.
  comment on column inviter_id: The user or key that created it; must still have the role to do so when it is accepted. Null: the service.
  constraint invitations_digest_check: CHECK ((length(digest) = 32))
  constraint invitations_digest_key: UNIQUE (digest)
  constraint invitations_email_check: CHECK ((length(email) <= 320))
  constraint invitations_pkey: PRIMARY KEY (id)
  constraint invitations_role_check: CHECK ((role = ANY (ARRAY['owner'::text, 'admin'::text, 'member'::text, 'viewer'::text])))
  constraint invitations_status_check: CHECK ((status = ANY (ARRAY['pending'::text, 'accepted'::text, 'declined'::text, 'revoked'::text])))
  constraint invitations_tenant_id_fkey: FOREIGN KEY (tenant_id) REFERENCES penstock.tenants(id) ON DELETE CASCADE
  index invitations_answered: CREATE INDEX invitations_answered ON penstock.invitations USING btree (answered_by)
  index invitations_inviter: CREATE INDEX invitations_inviter ON penstock.invitations USING btree (inviter_id)
  index invitations_tenant: CREATE INDEX invitations_tenant ON penstock.invitations USING btree (tenant_id, id)
  policy service_reads: permissive for select to service_role using true
  grant to service_role: select

table penstock.job_params
  comment: The params that job types and kinds take, as the app declares them.
  row security: enabled
  column name: text not null
  column required: text[] not null default '{}'::text[]
  column allowed: text[]
  column refused: jsonb not null default '{}'::jsonb
  column title: text
  comment on column required: Params that must be given.
  comment on column allowed: All params; null: also others.
  comment on column refused: The JSON types that a param refuses: {"count": ["array", "object"]}.
  comment on column title: Template of the titles of jobs: {title} stands for a param.
  constraint job_params_name_check: CHECK (((length(name) >= 1) AND (length(name) <= 200)))
  constraint job_params_pkey: PRIMARY KEY (name)
  constraint job_params_refused_check: CHECK ((jsonb_typeof(refused) = 'object'::text))
  constraint job_params_title_check: CHECK (((length(title) >= 1) AND (length(title) <= 200)))
  policy service_reads: permissive for select to service_role using true
  grant to service_role: select

table penstock.job_terms
  comment: What jobs are found by: tags, params, and words of their titles and params. Read with find_jobs.
  row security: enabled
  column tenant_id: uuid not null
  column term: text collate "C" not null
  column job_id: uuid not null
  constraint job_terms_pkey: PRIMARY KEY (tenant_id, term, job_id)
  index job_terms_job: CREATE INDEX job_terms_job ON penstock.job_terms USING btree (job_id)
  policy service_reads: permissive for select to service_role using true
  grant to service_role: select

table penstock.job_types
  comment: Declared job types: their phases with weights, in order, and whether a failed task stops the job.
  row security: enabled
  column name: text not null
  column phases: jsonb not null default '[]'::jsonb
  column on_failure: text not null default 'continue'::text
  column bulk: jsonb
  comment on column bulk: How the rows of a bulk type are loaded: key, group_by, batch, is_exclusive. Null: not a bulk type.
  constraint job_types_bulk_check: CHECK ((jsonb_typeof(bulk) = 'object'::text))
  constraint job_types_name_check: CHECK ((name ~ '^[A-Za-z][A-Za-z0-9_.:-]{0,99}$'::text))
  constraint job_types_on_failure_check: CHECK ((on_failure = ANY (ARRAY['continue'::text, 'stop'::text])))
  constraint job_types_pkey: PRIMARY KEY (name)
  policy service_reads: permissive for select to service_role using true
  grant to service_role: select

table penstock.jobs
  comment: Jobs, which clients start and watch. A trigger allows only valid status changes.
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
  column result: jsonb
  column paused_for: text
  column traceparent: text
  column title: text
  column tags: text[] not null default '{}'::text[]
  column user_id: uuid
  comment on column budget: The highest cost, in the base currency. The job pauses before it exceeds it.
  comment on column on_limit: What happens to a task that exceeds the tenant's quota: it is held back (hold), it fails (refuse), or the job pauses (pause).
  comment on column confirmed_at: Tasks that were created before this time need no further confirmation.
  comment on column stop_after: The job pauses after this number of failed tasks, or this percentage of its largest phase.
  comment on column forgiven: Failures before the last resume; stop_after does not count them.
  comment on column result: The result as a template: {"$from": key} stands for the output of a task. Null: the output of the last task.
  comment on column paused_for: What the platform paused the job for; null: somebody paused it, or it is not paused.
  comment on column traceparent: W3C trace context of the span that started the job (null: it was not traced).
  comment on column title: What people call the job, from the template of its type.
  comment on column tags: Words to find the job by, in lower case.
  comment on column user_id: The user who started it; null: the service.
  constraint jobs_pkey: PRIMARY KEY (id)
  constraint jobs_tenant_id_fkey: FOREIGN KEY (tenant_id) REFERENCES penstock.tenants(id)
  constraint jobs_valid: CHECK (penstock._is_valid_job(type, status, (finished_at IS NOT NULL), priority, on_failure, on_limit, stop_after, budget, paused_for, forgiven, idempotency_key)) NOT VALID
  index jobs_budget: CREATE INDEX jobs_budget ON penstock.jobs USING btree (tenant_id, id) WHERE ((budget IS NOT NULL) AND (finished_at IS NULL))
  index jobs_finished: CREATE INDEX jobs_finished ON penstock.jobs USING btree (finished_at) WHERE (finished_at IS NOT NULL)
  index jobs_idempotency: CREATE UNIQUE INDEX jobs_idempotency ON penstock.jobs USING btree (tenant_id, idempotency_key) WHERE (idempotency_key IS NOT NULL)
  index jobs_pausing: CREATE INDEX jobs_pausing ON penstock.jobs USING btree (tenant_id, id) WHERE ((on_limit = 'pause'::text) AND (finished_at IS NULL))
  index jobs_status: CREATE INDEX jobs_status ON penstock.jobs USING btree (status, id)
  index jobs_tenant: CREATE INDEX jobs_tenant ON penstock.jobs USING btree (tenant_id, id)
  index jobs_tenant_status: CREATE INDEX jobs_tenant_status ON penstock.jobs USING btree (tenant_id, status, id)
  index jobs_type: CREATE INDEX jobs_type ON penstock.jobs USING btree (type, created_at)
  index jobs_user: CREATE INDEX jobs_user ON penstock.jobs USING btree (user_id, created_at DESC) WHERE (user_id IS NOT NULL)
  trigger jobs_audit: CREATE TRIGGER jobs_audit AFTER UPDATE OF status ON penstock.jobs FOR EACH ROW WHEN ((old.status IS DISTINCT FROM new.status)) EXECUTE FUNCTION penstock._audit_job()
  policy members_read: permissive for select to authenticated using (tenant_id IN ( SELECT penstock.my_tenants() AS my_tenants))
  policy service_reads: permissive for select to service_role using true
  grant to authenticated: select
  grant to service_role: select

table penstock.kinds
  comment: The kinds of tasks and their defaults. Tasks of an unknown kind are rejected.
  row security: enabled
  column name: text not null
  column category: text not null default 'general'::text
  column max_attempts: smallint not null default 3
  column backoff_seconds: real not null default 2
  column backoff_cap_seconds: real not null default 300
  column retry_seconds: real
  column timeout_seconds: real
  column providers: text[]
  column units: jsonb
  column units_per_kb: jsonb
  column max_timeout_seconds: real
  column attempts_limit: smallint
  column min_priority: smallint
  column starters: text[]
  column raw_tasks: boolean
  column has_policy: boolean not null generated always as (num_nonnulls(providers, units, units_per_kb, max_timeout_seconds, attempts_limit, min_priority, starters) > 0)
  comment on column retry_seconds: No retry starts later than this after the first attempt; null: no limit.
  comment on column providers: The providers that tasks of this kind may use. A task that names none gets the first that is open. Null: any; empty: none.
  comment on column units: The least that a task counts, whatever its estimate.
  comment on column units_per_kb: What each 1,000 bytes of input add to units.
  comment on column max_timeout_seconds: The longest timeout that a task may ask for. Null: for users the kind's own timeout, for the service no limit.
  comment on column attempts_limit: The most attempts that a task may ask for. Null: for users the kind's own number, for the service no limit.
  comment on column min_priority: The best (lowest) priority that a task may have.
  comment on column starters: Who may start such tasks: owner, admin, member, key, service. Null: all of them.
  comment on column raw_tasks: Whether users may write such tasks themselves, instead of starting job types of an app. Null: the setting raw_tasks.
  comment on column has_policy: Whether the kind declares anything that new tasks must be checked for.
  constraint kinds_attempts_limit_check: CHECK (((attempts_limit >= 1) AND (attempts_limit <= 100)))
  constraint kinds_backoff_cap_seconds_check: CHECK ((backoff_cap_seconds >= (0)::double precision))
  constraint kinds_backoff_seconds_check: CHECK ((backoff_seconds >= (0)::double precision))
  constraint kinds_max_attempts_check: CHECK (((max_attempts >= 1) AND (max_attempts <= 100)))
  constraint kinds_max_timeout_seconds_check: CHECK ((max_timeout_seconds > (0)::double precision))
  constraint kinds_min_priority_check: CHECK (((min_priority >= 0) AND (min_priority <= 10)))
  constraint kinds_name_check: CHECK ((name ~ '^[A-Za-z][A-Za-z0-9_.:-]{0,99}$'::text))
  constraint kinds_pkey: PRIMARY KEY (name)
  constraint kinds_retry_seconds_check: CHECK ((retry_seconds > (0)::double precision))
  constraint kinds_starters_check: CHECK ((starters <@ ARRAY['owner'::text, 'admin'::text, 'member'::text, 'key'::text, 'service'::text]))
  constraint kinds_timeout_seconds_check: CHECK ((timeout_seconds > (0)::double precision))
  constraint kinds_units_check: CHECK ((jsonb_typeof(units) = 'object'::text))
  constraint kinds_units_per_kb_check: CHECK ((jsonb_typeof(units_per_kb) = 'object'::text))
  policy service_reads: permissive for select to service_role using true
  grant to service_role: select

table penstock.lanes
  comment: A queue of tasks of one kind for one provider endpoint.
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
  comment on column clock: Virtual time of the lane: the slot that was claimed last. New tasks are queued from here on.
  comment on column read_from: The slot from which a claim reads: the clock a moment ago, so that it finds tasks that were committed late.
  comment on column tenant_id: The tenant that this lane's endpoint belongs to; null: the endpoint is shared by all tenants.
  comment on column is_gated: Whether its tasks name a provider or units, so that the claim checks limits, quotas and budgets.
  constraint lanes_key: UNIQUE NULLS NOT DISTINCT (tenant_id, kind, provider, is_gated)
  constraint lanes_kind_fkey: FOREIGN KEY (kind) REFERENCES penstock.kinds(name)
  constraint lanes_pkey: PRIMARY KEY (id)
  constraint lanes_provider_check: CHECK (((length(provider) >= 1) AND (length(provider) <= 200)))
  index lanes_endpoint: CREATE INDEX lanes_endpoint ON penstock.lanes USING btree (endpoint_id)
  index lanes_provider: CREATE INDEX lanes_provider ON penstock.lanes USING btree (provider)
  policy service_reads: permissive for select to service_role using true
  grant to service_role: select

table penstock.leases
  comment: The time-limited right of one worker to one attempt of one task. The lease number only grows: it is the fencing token that rejects stale reports.
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
  comment on column usage: The usage that the attempt has reported so far.
  constraint leases_fraction_check: CHECK (((fraction >= (0)::double precision) AND (fraction <= (1)::double precision)))
  constraint leases_pkey: PRIMARY KEY (task_id)
  index leases_gated: CREATE INDEX leases_gated ON penstock.leases USING btree (lane_id) WHERE is_gated
  policy service_reads: permissive for select to service_role using true
  grant to service_role: select

table penstock.link_secrets
  comment: The secret that the tokens of links are derived from. Only functions read it.
  row security: enabled
  column id: boolean not null default true
  column secret: bytea not null
  constraint link_secrets_id_check: CHECK (id)
  constraint link_secrets_pkey: PRIMARY KEY (id)
  constraint link_secrets_secret_check: CHECK ((octet_length(secret) = 32))

table penstock.members
  comment: The role of a user or an API key in a tenant.
  row security: enabled
  column tenant_id: uuid not null
  column user_id: uuid not null
  column role: text not null default 'member'::text
  column created_at: timestamp with time zone not null default clock_timestamp()
  constraint members_pkey: PRIMARY KEY (tenant_id, user_id)
  constraint members_role_check: CHECK ((role = ANY (ARRAY['owner'::text, 'admin'::text, 'member'::text, 'viewer'::text])))
  constraint members_tenant_id_fkey: FOREIGN KEY (tenant_id) REFERENCES penstock.tenants(id) ON DELETE CASCADE
  index members_user: CREATE INDEX members_user ON penstock.members USING btree (user_id)
  trigger members_access: CREATE TRIGGER members_access AFTER DELETE OR UPDATE ON penstock.members FOR EACH STATEMENT EXECUTE FUNCTION penstock._on_access_change()
  policy members_read: permissive for select to authenticated using (tenant_id IN ( SELECT penstock.my_tenants() AS my_tenants))
  policy service_reads: permissive for select to service_role using true
  grant to authenticated: select
  grant to service_role: select

table penstock.meters
  comment: What is counted and can be limited.
  row security: enabled
  column name: text not null
  column period: text not null default 'month'::text
  column mode: text not null default 'enforce'::text
  column comment: text not null default ''::text
  comment on column mode: What happens when a limit is exceeded: it is only recorded (observe), or tasks are held back (enforce).
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
  comment: Tenants with tasks of several priorities in a lane. A slot of such a tenant goes to its best task.
  row security: enabled
  column lane_id: integer not null
  column tenant_id: uuid not null
  index mixed_share: CREATE INDEX mixed_share ON penstock.mixed USING btree (lane_id, tenant_id)
  policy service_reads: permissive for select to service_role using true
  grant to service_role: select

table penstock.notification_secrets
  comment: Secrets that sign webhooks. Only the service reads them. After a rotation both secrets sign for a day.
  row security: enabled
  column target_id: uuid not null
  column tenant_id: uuid not null
  column secret: text not null
  column previous: text
  column previous_until: timestamp with time zone
  constraint notification_secrets_pkey: PRIMARY KEY (target_id)
  constraint notification_secrets_target_id_fkey: FOREIGN KEY (target_id) REFERENCES penstock.notification_targets(id) ON DELETE CASCADE
  constraint notification_secrets_tenant_id_fkey: FOREIGN KEY (tenant_id) REFERENCES penstock.tenants(id) ON DELETE CASCADE
  index notification_secrets_tenant: CREATE INDEX notification_secrets_tenant ON penstock.notification_secrets USING btree (tenant_id)

table penstock.notification_targets
  comment: Addresses that a tenant's notifications go to, with the events each wants.
  row security: enabled
  column id: uuid not null default penstock._uuid7()
  column tenant_id: uuid not null
  column channel: text not null
  column address: text not null
  column events: text[] not null
  column is_enabled: boolean not null default true
  column disabled_reason: text
  column created_by: text not null
  column created_at: timestamp with time zone not null
  constraint notification_targets_address_check: CHECK (((length(address) >= 3) AND (length(address) <= 2000)))
  constraint notification_targets_channel_check: CHECK ((channel = ANY (ARRAY['email'::text, 'webhook'::text])))
  constraint notification_targets_events_check: CHECK (((cardinality(events) >= 1) AND (cardinality(events) <= 20)))
  constraint notification_targets_pkey: PRIMARY KEY (id)
  constraint notification_targets_tenant_id_channel_address_key: UNIQUE (tenant_id, channel, address)
  constraint notification_targets_tenant_id_fkey: FOREIGN KEY (tenant_id) REFERENCES penstock.tenants(id) ON DELETE CASCADE
  policy admins_read: permissive for select to authenticated using (tenant_id IN ( SELECT penstock.my_admin_tenants() AS my_admin_tenants))
  policy service_reads: permissive for select to service_role using true
  grant to authenticated: select
  grant to service_role: select

table penstock.notifications
  comment: Messages to targets: queued in the transaction that causes them, delivered at least once.
  row security: enabled
  column id: uuid not null default penstock._uuid7()
  column tenant_id: uuid not null
  column target_id: uuid
  column channel: text not null
  column address: text not null
  column event: text not null
  column key: text
  column subject: text not null
  column body: text not null
  column details: jsonb not null default '{}'::jsonb
  column status: text not null default 'queued'::text
  column attempts: smallint not null default 0
  column next_try_at: timestamp with time zone not null
  column last_error: text
  column created_at: timestamp with time zone not null
  column sent_at: timestamp with time zone
  comment on column next_try_at: When a sender may take it; while it is being sent, when the sender counts as dead.
  constraint notifications_body_check: CHECK ((length(body) <= 10000))
  constraint notifications_pkey: PRIMARY KEY (id)
  constraint notifications_status_check: CHECK ((status = ANY (ARRAY['queued'::text, 'sending'::text, 'sent'::text, 'failed'::text])))
  constraint notifications_subject_check: CHECK ((length(subject) <= 500))
  constraint notifications_target_id_fkey: FOREIGN KEY (target_id) REFERENCES penstock.notification_targets(id) ON DELETE SET NULL
  constraint notifications_tenant_id_fkey: FOREIGN KEY (tenant_id) REFERENCES penstock.tenants(id) ON DELETE CASCADE
  index notifications_created: CREATE INDEX notifications_created ON penstock.notifications USING btree (created_at)
  index notifications_due: CREATE INDEX notifications_due ON penstock.notifications USING btree (tenant_id, next_try_at) WHERE (status = ANY (ARRAY['queued'::text, 'sending'::text]))
  index notifications_key: CREATE UNIQUE INDEX notifications_key ON penstock.notifications USING btree (tenant_id, channel, address, key) WHERE (key IS NOT NULL)
  index notifications_list: CREATE INDEX notifications_list ON penstock.notifications USING btree (tenant_id, id)
  index notifications_target: CREATE INDEX notifications_target ON penstock.notifications USING btree (target_id) WHERE (target_id IS NOT NULL)
  policy admins_read: permissive for select to authenticated using (tenant_id IN ( SELECT penstock.my_admin_tenants() AS my_admin_tenants))
  policy service_reads: permissive for select to service_role using true
  grant to authenticated: select
  grant to service_role: select

table penstock.operations
  comment: Work at an outside system: one live operation per object, many over time.
  row security: enabled
  column id: uuid not null default penstock._uuid7()
  column tenant_id: uuid not null
  column job_id: uuid not null
  column task_id: bigint not null
  column number: smallint not null
  column provider: text not null
  column endpoint_id: integer
  column object: text not null
  column external_id: text
  column status: text not null default 'pending'::text
  column result: jsonb
  column error_code: text
  column error_message: text
  column hold_id: uuid
  column has_place: boolean not null default false
  column gated_lane_id: integer not null
  column attempts: integer not null
  column is_late: boolean not null default false
  column is_told: boolean not null default false
  column started_at: timestamp with time zone not null
  column submitted_at: timestamp with time zone
  column deadline_at: timestamp with time zone not null
  column checked_at: timestamp with time zone
  column webhook_received_at: timestamp with time zone
  column completed_at: timestamp with time zone
  column reconcile_at: timestamp with time zone
  column replayed_at: timestamp with time zone
  comment on column id: Also the tag that the provider gets and gives back.
  comment on column hold_id: The reservation, which moved from the lease to the operation.
  comment on column has_place: Whether it, and not a lease, counts against the concurrency of its endpoint.
  comment on column attempts: Failed attempts of the task when it began: the next operation needs one more.
  comment on column is_told: Whether a webhook has come since the provider was last asked.
  comment on column reconcile_at: When to ask the provider about an operation that timed out, or to cancel it there. On a live operation: its task may have ended.
  comment on column replayed_at: When a late hint replayed the dead letter of its task: that happens once.
  constraint operations_check: CHECK (((completed_at IS NOT NULL) = (status = ANY (ARRAY['completed'::text, 'failed'::text, 'timeout'::text, 'canceled'::text]))))
  constraint operations_external_id_check: CHECK (((length(external_id) >= 1) AND (length(external_id) <= 255)))
  constraint operations_job_id_task_id_number_key: UNIQUE (job_id, task_id, number)
  constraint operations_object_check: CHECK (((length(object) >= 1) AND (length(object) <= 255)))
  constraint operations_pkey: PRIMARY KEY (id)
  constraint operations_status_check: CHECK ((status = ANY (ARRAY['pending'::text, 'processing'::text, 'completed'::text, 'failed'::text, 'timeout'::text, 'canceled'::text])))
  index operations_deadline: CREATE INDEX operations_deadline ON penstock.operations USING btree (deadline_at) WHERE (status = ANY (ARRAY['pending'::text, 'processing'::text]))
  index operations_external: CREATE UNIQUE INDEX operations_external ON penstock.operations USING btree (tenant_id, provider, external_id) WHERE (external_id IS NOT NULL)
  index operations_live: CREATE UNIQUE INDEX operations_live ON penstock.operations USING btree (tenant_id, object) WHERE (status = ANY (ARRAY['pending'::text, 'processing'::text]))
  index operations_object: CREATE INDEX operations_object ON penstock.operations USING btree (tenant_id, object, id)
  index operations_places: CREATE INDEX operations_places ON penstock.operations USING btree (endpoint_id) WHERE (has_place AND (status = ANY (ARRAY['pending'::text, 'processing'::text])))
  index operations_reconcile: CREATE INDEX operations_reconcile ON penstock.operations USING btree (reconcile_at) WHERE (reconcile_at IS NOT NULL)
  index operations_timeouts: CREATE INDEX operations_timeouts ON penstock.operations USING btree (completed_at) WHERE (status = 'timeout'::text)
  index operations_told: CREATE INDEX operations_told ON penstock.operations USING btree (provider, external_id) WHERE (external_id IS NOT NULL)
  trigger operations_transitions: CREATE TRIGGER operations_transitions BEFORE UPDATE OF status ON penstock.operations FOR EACH ROW WHEN (((old.status IS DISTINCT FROM new.status) AND (old.status <> ALL (ARRAY['pending'::text, 'processing'::text])) AND (NOT ((old.status = 'timeout'::text) AND (new.status = 'completed'::text) AND new.is_late)))) EXECUTE FUNCTION penstock._guard_operation()
  policy members_read: permissive for select to authenticated using (tenant_id IN ( SELECT penstock.my_tenants() AS my_tenants))
  policy service_reads: permissive for select to service_role using true
  grant to authenticated: select
  grant to service_role: select

table penstock.operator_alerts
  comment: Alerts to the operator: closed providers, new keys, storms of refusals and of failed logins. Kept for 30 days.
  row security: enabled
  column kind: text not null
  column subject: text not null
  column day: date not null
  column tenant_id: uuid
  column count: bigint not null
  column logged: bigint not null default 0
  column first_at: timestamp with time zone not null
  column last_at: timestamp with time zone not null
  column details: jsonb not null default '{}'::jsonb
  comment on column logged: How many of them take_alerts has returned, for the log.
  constraint operator_alerts_count_check: CHECK ((count > 0))
  constraint operator_alerts_kind_check: CHECK ((kind = ANY (ARRAY['provider_closed'::text, 'key_created'::text, 'quota_refusals'::text, 'failed_logins'::text])))
  constraint operator_alerts_pkey: PRIMARY KEY (kind, subject, day)
  constraint operator_alerts_subject_check: CHECK (((length(subject) >= 1) AND (length(subject) <= 400)))
  index operator_alerts_day: CREATE INDEX operator_alerts_day ON penstock.operator_alerts USING btree (day, last_at)
  policy service_reads: permissive for select to service_role using true
  grant to service_role: select

table penstock.parked
  comment: Tasks that may not be claimed yet: they wait for parents (pending), for a time (until), for capacity or confirmation (waits_for), or for their job to resume (until infinity).
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
  column wait_id: uuid
  comment on column waits_for: What the task waits for: the meter whose quota is exhausted, or budget, limit, price, confirm.
  comment on column wait_id: What a waiting task waits for; null for tasks that are queued or blocked.
  constraint parked_pending_check: CHECK ((pending >= 0))
  constraint parked_pkey: PRIMARY KEY (job_id, task_id)
  index parked_due: CREATE INDEX parked_due ON penstock.parked USING btree (until) WHERE ((pending = 0) AND (until < 'infinity'::timestamp with time zone))
  index parked_waiting: CREATE INDEX parked_waiting ON penstock.parked USING btree (job_id) WHERE (wait_id IS NOT NULL)
  index parked_waits: CREATE INDEX parked_waits ON penstock.parked USING btree (tenant_id, waits_for, job_id, task_id) WHERE (waits_for IS NOT NULL)
  policy service_reads: permissive for select to service_role using true
  grant to service_role: select

table penstock.phases
  comment: The progress of a job: counts per phase, updated once per batch of ended tasks, not once per task.
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
  comment on column weight: Share of the phase in the progress of the job; null: its number of tasks.
  constraint phases_check: CHECK (((succeeded >= 0) AND (failed >= 0) AND (canceled >= 0) AND (((succeeded + failed) + canceled) <= total)))
  constraint phases_job_id_name_key: UNIQUE (job_id, name)
  constraint phases_pkey: PRIMARY KEY (job_id, "position")
  constraint phases_weight_check: CHECK ((weight >= (0)::double precision))
  policy members_read: permissive for select to authenticated using (tenant_id IN ( SELECT penstock.my_tenants() AS my_tenants))
  policy service_reads: permissive for select to service_role using true
  grant to authenticated: select
  grant to service_role: select

table penstock.plan_prices
  comment: What a price of Stripe stands for: a plan, or a pack (an amount of a meter, bought once).
  row security: enabled
  column price_id: text not null
  column plan: text
  column meter: text
  column amount: numeric
  constraint plan_prices_amount_check: CHECK (((amount > (0)::numeric) AND (amount <= '1000000000000000'::numeric)))
  constraint plan_prices_check: CHECK (((plan IS NOT NULL) <> (meter IS NOT NULL)))
  constraint plan_prices_check1: CHECK (((meter IS NULL) = (amount IS NULL)))
  constraint plan_prices_meter_fkey: FOREIGN KEY (meter) REFERENCES penstock.meters(name)
  constraint plan_prices_pkey: PRIMARY KEY (price_id)
  constraint plan_prices_plan_fkey: FOREIGN KEY (plan) REFERENCES penstock.plans(name)
  constraint plan_prices_price_id_check: CHECK (((length(price_id) >= 1) AND (length(price_id) <= 255)))
  index plan_prices_meter: CREATE INDEX plan_prices_meter ON penstock.plan_prices USING btree (meter)
  index plan_prices_plan: CREATE INDEX plan_prices_plan ON penstock.plan_prices USING btree (plan)
  policy service_reads: permissive for select to service_role using true
  grant to service_role: select

table penstock.plans
  comment: Subscription plans with limits per meter. A meter that is null or missing is unlimited.
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
  comment: The price of one unit from a date until the next price for the same provider, meter, variant and tenant; amount null: no price from then on.
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
  index prices_meter: CREATE INDEX prices_meter ON penstock.prices USING btree (meter)
  index prices_provider: CREATE INDEX prices_provider ON penstock.prices USING btree (provider, meter)
  policy members_read: permissive for select to authenticated using ((tenant_id IS NULL) OR (tenant_id IN ( SELECT penstock.my_tenants() AS my_tenants)))
  policy service_reads: permissive for select to service_role using true
  grant to authenticated: select
  grant to service_role: select

table penstock.profiles
  comment: One row per user. A trigger creates it together with the personal tenant.
  row security: enabled
  column user_id: uuid not null
  column tenant_id: uuid not null
  column email: text
  column display_name: text
  column created_at: timestamp with time zone not null default clock_timestamp()
  column role: text not null default 'user'::text
  comment on column role: An admin may use the functions admin_*; only the service sets this.
  constraint profiles_display_name_check: CHECK ((length(display_name) <= 200))
  constraint profiles_display_name_clean: CHECK ((display_name !~ '[\u0001-\u001f\u007f-\u009f\u2028-\u202e\u2066-\u2069]'::text)) NOT VALID
  constraint profiles_pkey: PRIMARY KEY (user_id)
  constraint profiles_role_check: CHECK ((role = ANY (ARRAY['user'::text, 'admin'::text])))
  constraint profiles_tenant_id_fkey: FOREIGN KEY (tenant_id) REFERENCES penstock.tenants(id) ON DELETE CASCADE
  index profiles_tenant: CREATE INDEX profiles_tenant ON penstock.profiles USING btree (tenant_id)
  policy own_profile: permissive for select to authenticated using (user_id = ( SELECT auth.uid() AS uid))
  policy own_profile_update: permissive for update to authenticated using (user_id = ( SELECT auth.uid() AS uid)) with check (user_id = ( SELECT auth.uid() AS uid))
  policy service_reads: permissive for select to service_role using true
  grant on column display_name to authenticated: update
  grant to authenticated: select
  grant to service_role: select

table penstock.prompt_pins
  comment: The version of each prompt that all tasks of a job use: a bulk job keeps those that were active when it was loaded.
  row security: enabled
  column job_id: uuid not null
  column name: text not null
  column version: integer not null
  column tenant_id: uuid not null
  constraint prompt_pins_name_version_fkey: FOREIGN KEY (name, version) REFERENCES penstock.prompts(name, version)
  constraint prompt_pins_pkey: PRIMARY KEY (job_id, name)
  index prompt_pins_version: CREATE INDEX prompt_pins_version ON penstock.prompt_pins USING btree (name, version)
  policy service_reads: permissive for select to service_role using true
  grant to service_role: select

table penstock.prompt_uses
  comment: Calls that used a prompt: which version, whether the attempt failed, and how long it took.
  row security: enabled
  column id: bigint generated always as identity not null
  column at: timestamp with time zone not null
  column tenant_id: uuid not null
  column name: text not null
  column version: integer not null
  column is_fallback: boolean not null default false
  column action: text not null
  column job_id: uuid
  column task_id: bigint
  column lease: bigint
  column is_failed: boolean not null default false
  column seconds: double precision
  comment on column is_fallback: The constant in the code was used, because the database could not answer or has no active version.
  constraint prompt_uses_pkey: PRIMARY KEY (id)
  constraint prompt_uses_seconds_check: CHECK ((seconds >= (0)::double precision))
  index prompt_uses_at: CREATE INDEX prompt_uses_at ON penstock.prompt_uses USING brin (at)
  index prompt_uses_attempt: CREATE UNIQUE INDEX prompt_uses_attempt ON penstock.prompt_uses USING btree (job_id, task_id, lease, name, version)
  index prompt_uses_fallback: CREATE INDEX prompt_uses_fallback ON penstock.prompt_uses USING btree (at) WHERE is_fallback
  index prompt_uses_name: CREATE INDEX prompt_uses_name ON penstock.prompt_uses USING btree (name, version, at)
  policy service_reads: permissive for select to service_role using true
  grant to service_role: select

table penstock.prompts
  comment: Versions of prompts. A version never changes; at most one per name is active.
  row security: enabled
  column name: text not null
  column version: integer not null
  column body: text not null
  column variables: text[] not null default '{}'::text[]
  column model: text
  column max_tokens: integer
  column is_active: boolean not null default false
  column comment: text not null default ''::text
  column created_by: text not null
  column created_at: timestamp with time zone not null
  column activated_at: timestamp with time zone
  comment on column version: Version 0 is the constant in the code of the app, as the app last declared it.
  comment on column variables: The names between double braces in the body.
  comment on column activated_at: When the version was last made the active one.
  constraint prompts_body_check: CHECK (((length(body) >= 1) AND (length(body) <= 100000)))
  constraint prompts_comment_check: CHECK ((length(comment) <= 1000))
  constraint prompts_max_tokens_check: CHECK (((max_tokens >= 1) AND (max_tokens <= 1000000)))
  constraint prompts_model_check: CHECK (((length(model) >= 1) AND (length(model) <= 200)))
  constraint prompts_name_check: CHECK ((name ~ '^[a-z][a-z0-9_.-]{0,99}$'::text))
  constraint prompts_pkey: PRIMARY KEY (name, version)
  constraint prompts_version_check: CHECK ((version >= 0))
  index prompts_active: CREATE UNIQUE INDEX prompts_active ON penstock.prompts USING btree (name) WHERE is_active
  trigger prompts_guard: CREATE TRIGGER prompts_guard BEFORE DELETE OR UPDATE ON penstock.prompts FOR EACH ROW EXECUTE FUNCTION penstock._guard_prompt()
  policy service_reads: permissive for select to service_role using true
  grant to service_role: select

table penstock.provider_events
  comment: Rejections by providers, and changes of their limits. Append-only.
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

table penstock.provider_keys
  comment: Keys of providers, for all tenants or for one. Only functions read them.
  row security: enabled
  column tenant_id: uuid
  column provider: text not null
  column host: text not null
  column sealed: bytea not null
  column wrapped_key: bytea not null
  column master_id: text not null
  column created_by: text not null
  column created_at: timestamp with time zone not null
  comment on column tenant_id: Whose key it is; null: for all tenants without an own one.
  comment on column host: The only host that gets the key.
  comment on column sealed: The key, encrypted with a key of its own (AES-256-GCM); provider, host and tenant are authenticated with it.
  comment on column wrapped_key: The key of sealed, encrypted with the master key.
  comment on column master_id: Which master key: the beginning of its SHA-256.
  constraint provider_keys_host_check: CHECK (((length(host) >= 1) AND (length(host) <= 253) AND (host = lower(host))))
  constraint provider_keys_master_id_check: CHECK ((master_id ~ '^[0-9a-f]{16}$'::text))
  constraint provider_keys_provider_check: CHECK ((provider ~ '^[a-z0-9][a-z0-9_.-]{0,99}$'::text))
  constraint provider_keys_sealed_check: CHECK (((octet_length(sealed) >= 29) AND (octet_length(sealed) <= 10000)))
  constraint provider_keys_tenant_id_fkey: FOREIGN KEY (tenant_id) REFERENCES penstock.tenants(id) ON DELETE CASCADE
  constraint provider_keys_tenant_id_provider_key: UNIQUE NULLS NOT DISTINCT (tenant_id, provider)
  constraint provider_keys_wrapped_key_check: CHECK (((octet_length(wrapped_key) >= 29) AND (octet_length(wrapped_key) <= 200)))

table penstock.ready
  comment: Tasks that may be claimed now, ordered by slots of virtual time. Rows are inserted and deleted, rarely updated.
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
  comment: Responses to requests with an idempotency key, kept for a day.
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
  comment: The outcome of a task, inserted once. A retry deletes a failed or canceled row, never a succeeded one.
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

table penstock.route_failures
  comment: How many attempts of a tenant's tasks with a route failed in a row at an endpoint.
  row security: enabled
  column tenant_id: uuid not null
  column endpoint_id: integer not null
  column failures: integer not null
  column failed_at: timestamp with time zone not null
  constraint route_failures_endpoint_id_fkey: FOREIGN KEY (endpoint_id) REFERENCES penstock.endpoints(id) ON DELETE CASCADE
  constraint route_failures_failures_check: CHECK ((failures > 0))
  constraint route_failures_pkey: PRIMARY KEY (tenant_id, endpoint_id)
  constraint route_failures_tenant_id_fkey: FOREIGN KEY (tenant_id) REFERENCES penstock.tenants(id) ON DELETE CASCADE
  index route_failures_endpoint: CREATE INDEX route_failures_endpoint ON penstock.route_failures USING btree (endpoint_id)
  policy service_reads: permissive for select to service_role using true
  grant to service_role: select

table penstock.routed_lanes
  comment: Lanes whose tasks may have a route to other providers.
  row security: enabled
  column lane_id: integer not null
  constraint routed_lanes_lane_id_fkey: FOREIGN KEY (lane_id) REFERENCES penstock.lanes(id) ON DELETE CASCADE
  constraint routed_lanes_pkey: PRIMARY KEY (lane_id)
  policy service_reads: permissive for select to service_role using true
  grant to service_role: select

table penstock.schedules
  comment: Recurring jobs. Each run starts once, whichever worker fires it.
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
  column starters: text[]
  column failures: integer not null default 0
  column last_error: text
  column retry_at: timestamp with time zone
  comment on column missed: After an outage: skip the missed runs, run once for all of them, or run each of them.
  comment on column starters: Who set the schedule (see kinds.starters), for the checks when it fires. Null: the service.
  comment on column failures: How often starting its job failed since it last succeeded.
  comment on column last_error: Why it failed last.
  comment on column retry_at: A failed run is not tried again before this.
  constraint schedules_cron_check: CHECK (((length(cron) >= 1) AND (length(cron) <= 200)))
  constraint schedules_failures_check: CHECK ((failures >= 0))
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

table penstock.sessions
  comment: Sessions of the dashboard. A session that was ended has no row.
  row security: enabled
  column id: uuid not null
  column digest: bytea not null
  column role: text not null
  column subject: uuid
  column key_id: uuid
  column user_agent: text
  column created_at: timestamp with time zone not null
  column last_seen_at: timestamp with time zone not null
  column expires_at: timestamp with time zone not null
  comment on column digest: SHA-256 of the token in the browser's cookie, which is random.
  comment on column subject: The user or API key that signed in; null for the holder of a service token.
  constraint sessions_check: CHECK (((role = 'service_role'::text) OR (subject IS NOT NULL)))
  constraint sessions_digest_check: CHECK ((length(digest) = 32))
  constraint sessions_digest_key: UNIQUE (digest)
  constraint sessions_key_id_fkey: FOREIGN KEY (key_id) REFERENCES penstock.api_keys(id) ON DELETE CASCADE
  constraint sessions_pkey: PRIMARY KEY (id)
  constraint sessions_role_check: CHECK ((role = ANY (ARRAY['authenticated'::text, 'service_role'::text])))
  constraint sessions_user_agent_check: CHECK ((length(user_agent) <= 200))
  index sessions_expires: CREATE INDEX sessions_expires ON penstock.sessions USING btree (expires_at)
  index sessions_key: CREATE INDEX sessions_key ON penstock.sessions USING btree (key_id)
  index sessions_subject: CREATE INDEX sessions_subject ON penstock.sessions USING btree (subject, created_at)
  trigger sessions_access: CREATE TRIGGER sessions_access AFTER DELETE ON penstock.sessions FOR EACH STATEMENT EXECUTE FUNCTION penstock._on_access_change()
  policy service_reads: permissive for select to service_role using true
  grant to service_role: select

table penstock.settings
  comment: Configuration shared by all workers. set_setting() changes it.
  row security: enabled
  column name: text not null
  column value: jsonb not null
  column comment: text not null
  column changed_at: timestamp with time zone
  comment on column changed_at: When an operator last changed it; null: never.
  constraint settings_pkey: PRIMARY KEY (name)
  policy service_reads: permissive for select to service_role using true
  grant to service_role: select

table penstock.shares
  comment: A tenant's position in a lane. Its next task is queued behind the last slot that it has.
  row security: enabled
  options: fillfactor=50
  column lane_id: integer not null
  column tenant_id: uuid not null
  column tail: bigint not null
  column priority: smallint not null
  comment on column priority: Priority of the first task of the backlog. A task of another priority makes the queue mixed.
  constraint shares_pkey: PRIMARY KEY (lane_id, tenant_id)
  policy service_reads: permissive for select to service_role using true
  grant to service_role: select

table penstock.sheet_bindings
  comment: The tenant that a Google Sheet or a Google account serves. An account in the setting shared_sheet_accounts has no row.
  row security: enabled
  column tenant_id: uuid not null
  column kind: text not null
  column name: text not null
  column label: text
  column created_at: timestamp with time zone not null
  comment on column name: The id of the spreadsheet, or the anonymous id of the account.
  comment on column label: The e-mail address of the account, if known.
  constraint sheet_bindings_kind_check: CHECK ((kind = ANY (ARRAY['account'::text, 'sheet'::text])))
  constraint sheet_bindings_kind_name_key: UNIQUE (kind, name)
  constraint sheet_bindings_label_check: CHECK ((length(label) <= 320))
  constraint sheet_bindings_name_check: CHECK (((length(name) >= 1) AND (length(name) <= 200)))
  constraint sheet_bindings_pkey: PRIMARY KEY (tenant_id, kind, name)
  constraint sheet_bindings_tenant_id_fkey: FOREIGN KEY (tenant_id) REFERENCES penstock.tenants(id) ON DELETE CASCADE
  policy service_reads: permissive for select to service_role using true
  grant to service_role: select

table penstock.spent
  comment: Admitted requests and tokens, in slots of a quarter of a second for the minute window (width 1) and of a minute for the hour window (width 60).
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

table penstock.steps
  comment: Results of finished steps of a handler: a retry or a wake-up uses them instead of repeating the step.
  row security: enabled
  column job_id: uuid not null
  column task_id: bigint not null
  column name: text not null
  column tenant_id: uuid not null
  column lease: bigint not null
  column at: timestamp with time zone not null
  column output: jsonb not null
  constraint steps_name_check: CHECK (((length(name) >= 1) AND (length(name) <= 200)))
  constraint steps_pkey: PRIMARY KEY (job_id, task_id, name)
  policy service_reads: permissive for select to service_role using true
  grant to service_role: select

table penstock.streaks
  comment: Failures in a row, per scope; a success deletes the row.
  row security: enabled
  options: fillfactor=70
  column tenant_id: uuid not null
  column scope: text not null
  column failures: integer not null
  column began_at: timestamp with time zone not null
  column last_at: timestamp with time zone not null
  column alerted_at: timestamp with time zone
  constraint streaks_pkey: PRIMARY KEY (tenant_id, scope)
  constraint streaks_tenant_id_fkey: FOREIGN KEY (tenant_id) REFERENCES penstock.tenants(id) ON DELETE CASCADE
  policy members_read: permissive for select to authenticated using (tenant_id IN ( SELECT penstock.my_tenants() AS my_tenants))
  policy service_reads: permissive for select to service_role using true
  grant to authenticated: select
  grant to service_role: select

table penstock.subscriptions
  comment: Subscriptions as Stripe last told. The newest live one decides the plan of its tenant.
  row security: enabled
  column id: text not null
  column tenant_id: uuid not null
  column customer_id: text not null
  column price_ids: text[] not null
  column plan: text
  column status: text not null
  column period_end: timestamp with time zone
  column cancel_at_period_end: boolean not null default false
  column created_at: timestamp with time zone not null
  column ended_at: timestamp with time zone
  column as_of: timestamp with time zone not null
  column event_id: text
  column is_suspect: boolean not null default false
  column checked_at: timestamp with time zone
  comment on column as_of: The time at Stripe of the state in this row, in whole seconds.
  comment on column is_suspect: Two states came with the same second: Stripe is asked which one is right.
  constraint subscriptions_id_check: CHECK (((length(id) >= 1) AND (length(id) <= 255)))
  constraint subscriptions_pkey: PRIMARY KEY (id)
  constraint subscriptions_plan_fkey: FOREIGN KEY (plan) REFERENCES penstock.plans(name)
  constraint subscriptions_status_check: CHECK ((status = ANY (ARRAY['incomplete'::text, 'incomplete_expired'::text, 'trialing'::text, 'active'::text, 'past_due'::text, 'canceled'::text, 'unpaid'::text, 'paused'::text])))
  constraint subscriptions_tenant_id_fkey: FOREIGN KEY (tenant_id) REFERENCES penstock.tenants(id)
  index subscriptions_plan: CREATE INDEX subscriptions_plan ON penstock.subscriptions USING btree (plan)
  index subscriptions_suspect: CREATE INDEX subscriptions_suspect ON penstock.subscriptions USING btree (id) WHERE is_suspect
  index subscriptions_tenant: CREATE INDEX subscriptions_tenant ON penstock.subscriptions USING btree (tenant_id, created_at DESC)
  policy service_reads: permissive for select to service_role using true
  grant to service_role: select

table penstock.sync_horizons
  comment: Up to which change rows of a synced table were deleted permanently. A device whose cursor is lower pulls everything again.
  row security: enabled
  column user_id: uuid not null
  column schema_name: text not null
  column table_name: text not null
  column seq: bigint not null
  comment on column seq: The highest change number that a deleted row had, or got when it was deleted.
  constraint sync_horizons_pkey: PRIMARY KEY (user_id, schema_name, table_name)
  policy service_reads: permissive for select to service_role using true
  grant to service_role: select

table penstock.task_chunks
  comment: What handlers stream while they run, best effort: at most 256 KB per attempt, kept for one to two weeks.
  partitioned by: LIST (slot)
  row security: enabled
  column slot: smallint not null
  column tenant_id: uuid not null
  column job_id: uuid not null
  column task_id: bigint not null
  column lease: bigint not null
  column number: integer not null
  column attempt: integer not null
  column at: timestamp with time zone not null
  column parts: jsonb not null
  comment on column slot: The number of the week modulo 3: its partition.
  comment on column lease: The lease of the attempt: a stream of its own.
  comment on column parts: Texts and objects, in the order of streaming.
  constraint task_chunks_job_id_task_id_lease_number_slot_key: UNIQUE (job_id, task_id, lease, number, slot)
  constraint task_chunks_number_check: CHECK (((number >= 1) AND (number <= 10000)))
  constraint task_chunks_parts_check: CHECK ((jsonb_typeof(parts) = 'array'::text))
  constraint task_chunks_slot_check: CHECK (((slot >= 0) AND (slot <= 2)))
  policy members_read: permissive for select to authenticated using (tenant_id IN ( SELECT penstock.my_tenants() AS my_tenants))
  policy service_reads: permissive for select to service_role using true
  grant to authenticated: select
  grant to service_role: select

table penstock.task_logs
  comment: Log lines of tasks, best effort: at most 1,000 per attempt, kept for one to two weeks.
  partitioned by: LIST (slot)
  row security: enabled
  column id: bigint not null default nextval('penstock.task_log_ids'::regclass)
  column slot: smallint not null
  column tenant_id: uuid not null
  column job_id: uuid not null
  column task_id: bigint not null
  column attempt: integer not null
  column at: timestamp with time zone not null
  column level: text not null
  column message: text not null
  column fields: jsonb
  comment on column slot: The number of the week modulo 3: its partition.
  constraint task_logs_level_check: CHECK ((level = ANY (ARRAY['debug'::text, 'info'::text, 'warning'::text, 'error'::text, 'critical'::text])))
  constraint task_logs_message_check: CHECK ((length(message) <= 2000))
  constraint task_logs_slot_check: CHECK (((slot >= 0) AND (slot <= 2)))
  index task_logs_job: CREATE INDEX task_logs_job ON ONLY penstock.task_logs USING btree (job_id, id)
  policy members_read: permissive for select to authenticated using (tenant_id IN ( SELECT penstock.my_tenants() AS my_tenants))
  policy service_reads: permissive for select to service_role using true
  grant to authenticated: select
  grant to service_role: select

table penstock.task_sums
  comment: Tasks that ended in a minute, of each tenant and (tenant null) of all tenants. Upkeep adds a minute when it is over.
  row security: enabled
  column tenant_id: uuid
  column minute: timestamp with time zone not null
  column succeeded: integer not null
  column failed: integer not null
  column waits: jsonb not null
  column runs: jsonb not null
  comment on column waits: Histogram of waiting times: {"bucket": tasks}; bucket n begins at 2^(n/2) milliseconds.
  comment on column runs: Histogram of running times, in the same buckets.
  constraint task_sums_tenant_id_minute_key: UNIQUE NULLS NOT DISTINCT (tenant_id, minute)
  index task_sums_minute: CREATE INDEX task_sums_minute ON penstock.task_sums USING btree (minute)
  policy service_reads: permissive for select to service_role using true
  grant to service_role: select

table penstock.tasks
  comment: The definition of a task, written once. Its state is the table that holds its row: ready, parked, leases or results.
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
  comment on column route: The requirements for choosing a provider, and the chosen provider with the reason. Null: the task names its provider.
  comment on column confirm: Whether the task waits until its job is confirmed.
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

table penstock.tenant_blocks
  comment: Tenants that a user blocked: they cannot make the user a member.
  row security: enabled
  column user_id: uuid not null
  column tenant_id: uuid not null
  column created_at: timestamp with time zone not null
  constraint tenant_blocks_pkey: PRIMARY KEY (user_id, tenant_id)
  constraint tenant_blocks_tenant_id_fkey: FOREIGN KEY (tenant_id) REFERENCES penstock.tenants(id) ON DELETE CASCADE
  index tenant_blocks_tenant: CREATE INDEX tenant_blocks_tenant ON penstock.tenant_blocks USING btree (tenant_id)
  policy service_reads: permissive for select to service_role using true
  grant to service_role: select

table penstock.tenant_cells
  comment: The directory: the cell of each tenant that is not in the directory's own cell, and moves that are under way.
  row security: enabled
  column tenant_id: uuid not null
  column cell: smallint not null
  column moving_from: smallint
  column moving_to: smallint
  column step: text
  column counts: jsonb
  column switched_at: timestamp with time zone
  comment on column step: The step of the move that comes next; null: the tenant is not moving.
  comment on column counts: The number of rows in each table when the copy was verified.
  constraint tenant_cells_cell_fkey: FOREIGN KEY (cell) REFERENCES penstock.cells(number)
  constraint tenant_cells_moving_check: CHECK ((((moving_to IS NULL) = (step IS NULL)) AND ((moving_from IS NULL) = (step IS NULL))))
  constraint tenant_cells_moving_from_fkey: FOREIGN KEY (moving_from) REFERENCES penstock.cells(number)
  constraint tenant_cells_moving_to_fkey: FOREIGN KEY (moving_to) REFERENCES penstock.cells(number)
  constraint tenant_cells_pkey: PRIMARY KEY (tenant_id)
  constraint tenant_cells_step_check: CHECK ((step = ANY (ARRAY['drain'::text, 'copy'::text, 'verify'::text, 'switch'::text, 'activate'::text, 'remove'::text])))
  index tenant_cells_cell: CREATE INDEX tenant_cells_cell ON penstock.tenant_cells USING btree (cell)
  index tenant_cells_moving_from: CREATE INDEX tenant_cells_moving_from ON penstock.tenant_cells USING btree (moving_from)
  index tenant_cells_moving_to: CREATE INDEX tenant_cells_moving_to ON penstock.tenant_cells USING btree (moving_to)
  index tenant_cells_switched: CREATE INDEX tenant_cells_switched ON penstock.tenant_cells USING btree (switched_at)
  policy service_reads: permissive for select to service_role using true
  grant to service_role: select

table penstock.tenant_limits
  comment: Limits of single tenants, which replace those of the plan; null: unlimited.
  row security: enabled
  column tenant_id: uuid not null
  column meter: text not null
  column amount: numeric
  constraint tenant_limits_amount_check: CHECK ((amount >= (0)::numeric))
  constraint tenant_limits_meter_fkey: FOREIGN KEY (meter) REFERENCES penstock.meters(name)
  constraint tenant_limits_pkey: PRIMARY KEY (tenant_id, meter)
  constraint tenant_limits_tenant_id_fkey: FOREIGN KEY (tenant_id) REFERENCES penstock.tenants(id) ON DELETE CASCADE
  index tenant_limits_meter: CREATE INDEX tenant_limits_meter ON penstock.tenant_limits USING btree (meter)
  policy members_read: permissive for select to authenticated using (tenant_id IN ( SELECT penstock.my_tenants() AS my_tenants))
  policy service_reads: permissive for select to service_role using true
  grant to authenticated: select
  grant to service_role: select

table penstock.tenants
  comment: The unit of isolation, plan and billing. A single user has a personal tenant.
  row security: enabled
  column id: uuid not null default penstock._uuid7()
  column name: text not null
  column weight: real not null default 1
  column is_personal: boolean not null default false
  column created_at: timestamp with time zone not null default clock_timestamp()
  column plan: text not null
  column plan_since: timestamp with time zone
  column plan_until: timestamp with time zone
  column plan_after: text
  column suspended: text
  comment on column weight: Share of each lane, relative to the weights of other tenants.
  comment on column plan: The plan unlimited has no limits.
  comment on column plan_until: From this time on the plan is plan_after. Null: it does not end.
  comment on column suspended: Set while the tenant moves to another database, and afterwards where it was. draining: users start nothing new; frozen: nobody does.
  constraint tenants_name_check: CHECK (((length(name) >= 1) AND (length(name) <= 200)))
  constraint tenants_pkey: PRIMARY KEY (id)
  constraint tenants_plan_after: CHECK (((plan_until IS NULL) OR (plan_after IS NOT NULL)))
  constraint tenants_plan_after_fkey: FOREIGN KEY (plan_after) REFERENCES penstock.plans(name)
  constraint tenants_plan_fkey: FOREIGN KEY (plan) REFERENCES penstock.plans(name)
  constraint tenants_suspended_check: CHECK ((suspended = ANY (ARRAY['draining'::text, 'frozen'::text])))
  constraint tenants_weight_check: CHECK (((weight > (0)::double precision) AND (weight <= (1000)::double precision)))
  index tenants_name: CREATE INDEX tenants_name ON penstock.tenants USING btree (name)
  index tenants_plan: CREATE INDEX tenants_plan ON penstock.tenants USING btree (plan)
  index tenants_plan_after: CREATE INDEX tenants_plan_after ON penstock.tenants USING btree (plan_after)
  index tenants_plan_until: CREATE INDEX tenants_plan_until ON penstock.tenants USING btree (plan_until) WHERE (plan_until IS NOT NULL)
  index tenants_suspended: CREATE INDEX tenants_suspended ON penstock.tenants USING btree (id) WHERE (suspended IS NOT NULL)
  policy members_read: permissive for select to authenticated using (id IN ( SELECT penstock.my_tenants() AS my_tenants))
  policy service_reads: permissive for select to service_role using true
  grant to authenticated: select
  grant to service_role: select

table penstock.upkeep_runs
  comment: One row: when leases were last checked for expiry, and the last time in which nothing could check them.
  row security: enabled
  column id: boolean not null default true
  column ran_at: timestamp with time zone not null
  column away_from: timestamp with time zone not null default '-infinity'::timestamp with time zone
  column away_until: timestamp with time zone not null default '-infinity'::timestamp with time zone
  column done_at: timestamp with time zone not null default '-infinity'::timestamp with time zone
  column leader_id: text
  column led_until: timestamp with time zone not null default '-infinity'::timestamp with time zone
  comment on column away_until: Workers get a moment after this to extend leases that expired while the database was away.
  comment on column done_at: When all of upkeep was last done. Older than ran_at while a run has only requeued expired leases.
  comment on column leader_id: The worker that does the periodic upkeep for all.
  comment on column led_until: From then on another worker may take over: the leader has not reported for some seconds.
  constraint upkeep_runs_id_check: CHECK (id)
  constraint upkeep_runs_pkey: PRIMARY KEY (id)
  policy service_reads: permissive for select to service_role using true
  grant to service_role: select

table penstock.usage_events
  comment: Metered usage, one row per call. Append-only.
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
  comment on column is_estimate: Whether the attempt reported no usage, so that its estimate was recorded.
  constraint usage_events_pkey: PRIMARY KEY (id)
  index usage_events_at: CREATE INDEX usage_events_at ON penstock.usage_events USING brin (at)
  index usage_events_hold: CREATE INDEX usage_events_hold ON penstock.usage_events USING btree (hold_id) WHERE (hold_id IS NOT NULL)
  index usage_events_provider: CREATE INDEX usage_events_provider ON penstock.usage_events USING btree (provider, id) WHERE (provider IS NOT NULL)
  index usage_events_tenant: CREATE INDEX usage_events_tenant ON penstock.usage_events USING btree (tenant_id, id)
  policy members_read: permissive for select to authenticated using (tenant_id IN ( SELECT penstock.my_tenants() AS my_tenants))
  policy service_reads: permissive for select to service_role using true
  grant to authenticated: select
  grant to service_role: select

table penstock.usage_keys
  comment: Idempotency keys of usage reports: a report that is sent again counts once. Kept for a day.
  row security: enabled
  column tenant_id: uuid not null
  column key: text not null
  column at: timestamp with time zone not null
  constraint usage_keys_key_check: CHECK (((length(key) >= 1) AND (length(key) <= 255)))
  constraint usage_keys_pkey: PRIMARY KEY (tenant_id, key)
  index usage_keys_at: CREATE INDEX usage_keys_at ON penstock.usage_keys USING btree (at)
  policy service_reads: permissive for select to service_role using true
  grant to service_role: select

table penstock.usage_sums
  comment: Usage per tenant, action and UTC day. New usage is inserted as a fresh row, without waiting for locks; upkeep adds the fresh rows up.
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

table penstock.wait_links
  comment: Tokens of links with which a person without an account answers.
  row security: enabled
  column token: text not null
  column wait_id: uuid not null
  column job_id: uuid not null
  constraint wait_links_pkey: PRIMARY KEY (token)
  constraint wait_links_wait_id_key: UNIQUE (wait_id)
  index wait_links_job: CREATE INDEX wait_links_job ON penstock.wait_links USING btree (job_id)

table penstock.waits
  comment: What tasks wait for, or waited for: a person's answer or a time. One row per name and task.
  row security: enabled
  column id: uuid not null default penstock._uuid7()
  column tenant_id: uuid not null
  column job_id: uuid not null
  column task_id: bigint not null
  column name: text not null
  column kind: text not null
  column message: text
  column options: jsonb not null default '[]'::jsonb
  column fields: jsonb not null default '{}'::jsonb
  column roles: text[] not null default '{owner,admin,member}'::text[]
  column default_option: text
  column generation: integer not null default 0
  column has_usage: boolean not null default false
  column asked_at: timestamp with time zone not null
  column until: timestamp with time zone not null
  column outcome: text
  column option: text
  column payload: jsonb
  column ended_at: timestamp with time zone
  column ended_by: text
  comment on column options: The allowed answers, as texts; empty: the answer has no option.
  comment on column fields: The fields of the payload with their types: text, number, boolean or any; a ? makes a field optional.
  comment on column roles: The roles in the tenant that may answer.
  comment on column generation: How many attempts the task had before its last replay: a replay asks again what timed out.
  comment on column has_usage: Whether the attempt had reported usage before it waited: its estimate is not charged again.
  constraint waits_check: CHECK (((outcome IS NOT NULL) = (ended_at IS NOT NULL)))
  constraint waits_fields_check: CHECK ((jsonb_typeof(fields) = 'object'::text))
  constraint waits_job_id_task_id_name_key: UNIQUE (job_id, task_id, name)
  constraint waits_kind_check: CHECK ((kind = ANY (ARRAY['answer'::text, 'sleep'::text])))
  constraint waits_message_check: CHECK ((length(message) <= 2000))
  constraint waits_name_check: CHECK (((length(name) >= 1) AND (length(name) <= 200)))
  constraint waits_options_check: CHECK ((jsonb_typeof(options) = 'array'::text))
  constraint waits_outcome_check: CHECK ((outcome = ANY (ARRAY['answered'::text, 'timeout'::text, 'over'::text])))
  constraint waits_pkey: PRIMARY KEY (id)
  index waits_open: CREATE INDEX waits_open ON penstock.waits USING btree (tenant_id, id) WHERE ((outcome IS NULL) AND (kind = 'answer'::text))
  policy members_read: permissive for select to authenticated using (tenant_id IN ( SELECT penstock.my_tenants() AS my_tenants))
  policy service_reads: permissive for select to service_role using true
  grant to authenticated: select
  grant to service_role: select

table penstock.webhooks
  comment: Webhooks that other systems sent, with what became of them. For the service only.
  row security: enabled
  column source: text not null
  column key: text not null
  column type: text not null
  column tenant_id: uuid
  column payload: jsonb not null
  column received_at: timestamp with time zone not null
  column last_received_at: timestamp with time zone not null
  column deliveries: integer not null default 1
  column attempts: integer not null default 0
  column processed_at: timestamp with time zone
  column next_try_at: timestamp with time zone
  column outcome: text
  column error: text
  comment on column key: The id of the event at its source, or what identifies it where the source has none.
  comment on column processed_at: When a handler settled it; null while it waits for another try.
  comment on column next_try_at: When it is tried again; null: only by hand.
  constraint webhooks_error_check: CHECK ((length(error) <= 2000))
  constraint webhooks_key_check: CHECK (((length(key) >= 1) AND (length(key) <= 255)))
  constraint webhooks_outcome_check: CHECK ((outcome = ANY (ARRAY['applied'::text, 'stale'::text, 'ignored'::text, 'unmatched'::text, 'failed'::text])))
  constraint webhooks_pkey: PRIMARY KEY (source, key)
  constraint webhooks_source_check: CHECK ((source ~ '^[a-z][a-z0-9_-]{0,62}$'::text))
  constraint webhooks_type_check: CHECK (((length(type) >= 1) AND (length(type) <= 200)))
  index webhooks_open: CREATE INDEX webhooks_open ON penstock.webhooks USING btree (next_try_at) WHERE (processed_at IS NULL)
  index webhooks_received: CREATE INDEX webhooks_received ON penstock.webhooks USING btree (received_at DESC)
  index webhooks_type: CREATE INDEX webhooks_type ON penstock.webhooks USING btree (source, type, received_at DESC)
  policy service_reads: permissive for select to service_role using true
  grant to service_role: select

table penstock.workers
  comment: One row per worker process, updated by its heartbeat.
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
  comment on column drain_asked_at: When an operator asked the worker to stop claiming tasks and exit; it sees this at its next heartbeat.
  constraint workers_id_check: CHECK (((length(id) >= 1) AND (length(id) <= 200)))
  constraint workers_pkey: PRIMARY KEY (id)
  constraint workers_state_check: CHECK ((state = ANY (ARRAY['running'::text, 'draining'::text, 'stopped'::text])))
  policy service_reads: permissive for select to service_role using true
  grant to service_role: select

view penstock.bulk_list
  comment: Bulk jobs with their source and numbers of rows.
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
  column id: uuid
  reads penstock.attempts: job_id, task_id
  reads penstock.bulk_changes: job_id, row_number, undone_at
  reads penstock.bulk_rows: data, first_id, id, job_id, key, last_id, number, problem, result_id, tenant_id, written
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
  comment: Tasks that failed permanently.
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
  comment: The cost of each job, the amount reserved for its running tasks, and its budget.
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
  comment: Jobs with their numbers of tasks and documents, percent and phase.
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
  column title: text
  column tags: text[]
  reads penstock.jobs: created_at, created_by, finished_at, id, params, priority, run_at, started_at, status, status_reason, tags, tenant_id, title, type
  reads penstock.phases: canceled, failed, job_id, name, position, succeeded, tenant_id, total, weight
  grant to authenticated: select
  grant to service_role: select

view penstock.price_list
  comment: Prices with the time for which they are valid.
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
  comment: Provider endpoints: limits, usage in the current windows, and whether they accept work.
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
  column in_flight: integer
  reads penstock.calls: endpoint_id, expires_at
  reads penstock.endpoint_states: closed_reason, closed_until, endpoint_id, is_exhausted, open_at, open_for, pace, paced_at, refusals, refused_at
  reads penstock.endpoints: backpressure_delay_seconds, backpressure_threshold, changed_at, concurrency, default_tokens, depth_limit, features, id, name, requests_per_hour, requests_per_minute, status, tenant_id, tokens_per_hour, tokens_per_minute
  reads penstock.lanes: endpoint_id, id
  reads penstock.leases: is_gated, lane_id
  reads penstock.operations: endpoint_id, has_place, status
  reads penstock.ready: lane_id
  reads penstock.spent: endpoint_id, requests, slot, tokens, width
  grant to service_role: select

view penstock.provider_outcomes
  comment: Outcomes and mean duration of tasks that ended at each provider, and what these and tasks that moved on cost there, in the base currency.
  options: security_invoker=true
  column tenant_id: uuid
  column provider: text
  column outcome: text
  column tasks: bigint
  column seconds: numeric
  column cost: numeric
  reads penstock.cost_entries: base_amount, job_id, provider, task_id
  reads penstock.lanes: id, provider
  reads penstock.results: finished_at, job_id, outcome, started_at, task_id
  reads penstock.tasks: id, job_id, lane_id, tenant_id
  grant to service_role: select

view penstock.rate_comparison
  comment: The current price of a unit at each provider, with its rank from the cheapest.
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

view penstock.wait_list
  comment: What tasks ask people and other systems, with the answers. Status: open, answered, timeout or canceled.
  options: security_invoker=true
  column id: uuid
  column tenant_id: uuid
  column job_id: uuid
  column task_id: bigint
  column task_kind: text
  column task_key: text
  column name: text
  column message: text
  column options: jsonb
  column fields: jsonb
  column roles: text[]
  column default_option: text
  column asked_at: timestamp with time zone
  column until: timestamp with time zone
  column status: text
  column option: text
  column payload: jsonb
  column ended_at: timestamp with time zone
  column ended_by: text
  reads penstock.jobs: id, status
  reads penstock.tasks: id, job_id, key, kind
  reads penstock.waits: asked_at, default_option, ended_at, ended_by, fields, id, job_id, kind, message, name, option, options, outcome, payload, roles, task_id, tenant_id, until
  grant to authenticated: select
  grant to service_role: select

view penstock.worker_list
  comment: Workers, with their state: running, draining, late (no heartbeat for 30 seconds), gone (for 60 seconds; listed for 10 minutes) or stopped.
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
  reads penstock.leases: expires_at, worker_id
  reads penstock.workers: beat_at, concurrency, host, id, kinds, pid, running, started_at, state, version
  grant to service_role: select

function penstock._actor()
  returns: text
  attributes: sql, stable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 2d836c9bf1e2718f2339cd21c4b8035f
  comment: The caller's name in the audit log.

function penstock._add_edges(uuid, penstock.task_spec[], bigint[])
  arguments: p_job_id uuid, p_specs penstock.task_spec[], p_ids bigint[]
  returns: bigint[]
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: enable_nestloop=off, jit=off, search_path=penstock, pg_temp
  body: sha256 a022667d3433d3501f852ad6f2ae23a9
  comment: Inserts the dependencies of new tasks and returns the ids of parents that existed before.

function penstock._add_key_member(uuid, uuid, text, text)
  arguments: p_key_id uuid, p_tenant_id uuid, p_role text, p_name text
  returns: void
  attributes: sql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 d34181ddf839644c70334a8c073aeebb
  comment: Makes a tenant's key a member of the tenant.

function penstock._add_provider_lanes(penstock.endpoints)
  arguments: p_endpoint penstock.endpoints
  returns: void
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 3f1a7799fd441937841f035fe2a54db0
  comment: Creates the lanes of a new provider for kinds with routes, so that waiting tasks can move there.

function penstock._add_route_lanes(penstock.jobs, penstock.task_spec[])
  arguments: p_job penstock.jobs, p_specs penstock.task_spec[]
  returns: void
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 5eef3b347a66c53b14d74192610407dd
  comment: Creates the lanes of these tasks, and those to which tasks with these routes can move.

function penstock._add_tasks(penstock.jobs, jsonb, text[], boolean)
  arguments: p_job penstock.jobs, p_tasks jsonb, p_starters text[], p_is_raw boolean
  returns: bigint[]
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 d9b6324fb88b623d7f893d71668a6db7
  comment: Checks, inserts and queues new tasks of a job, and returns their ids. p_starters and p_is_raw: see _apply_policy.

function penstock._add_up_costs()
  returns: trigger
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 891fd3de4cfcdf84cd957de2d8cef7d1
  comment: Adds new ledger entries to the daily sums, in the same transaction.

function penstock._admin_profile(uuid, text)
  arguments: p_user_id uuid, p_reason text
  returns: penstock.profiles
  attributes: plpgsql, stable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 6856873e654aee35f5b7d34459f71088
  comment: The profile that an admin is about to change; raises an error without permission or without a reason.

function penstock._admit(penstock.endpoints, penstock.capacity, penstock.window_fit, timestamp with time zone)
  arguments: p_endpoint penstock.endpoints, p_capacity penstock.capacity, p_fit penstock.window_fit, p_now timestamp with time zone
  returns: void
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 1d2b8d4d68c91b32f75c7ee4fd8d9f7e
  comment: Counts the tasks that fit in the windows of their endpoint, parks those that never fit, and closes the endpoint until the next one fits.

function penstock._alert(text, text, uuid, jsonb, bigint)
  arguments: p_kind text, p_subject text, p_tenant_id uuid, p_details jsonb DEFAULT '{}'::jsonb, p_count bigint DEFAULT 1
  returns: void
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 58660517be644b4a63409c0033019517
  comment: Adds an alert to the operator, or counts it on the same one of today.

function penstock._answer(uuid, text, jsonb, text)
  arguments: p_wait_id uuid, p_option text, p_payload jsonb, p_actor text
  returns: boolean
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 3346eca75aa4094bf0b5d0080df60730
  comment: Records an answer and queues the task that waits for it. The first answer counts; repeating it is no error and returns false.

function penstock._append_tasks(uuid, jsonb, bigint, text, bigint, text[], boolean)
  arguments: p_job_id uuid, p_tasks jsonb, p_task_id bigint, p_worker_id text, p_lease bigint, p_starters text[], p_is_raw boolean
  returns: bigint[]
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 7290852bbe533238bf549339b9ef1de2
  comment: Adds tasks to a job that has not ended: see add_tasks. p_starters and p_is_raw: see _apply_policy.

function penstock._apply_action(text, text[], text)
  arguments: p_verb text, p_subjects text[], p_reason text, OUT done integer, OUT refused integer, OUT refusal text
  returns: record
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 e71450e5d1bcd9f0cfda40837fee9e08
  comment: Applies an action to these subjects; returns how many succeeded, how many were rejected, and the last reason.

function penstock._apply_failure_policies(uuid[])
  arguments: p_job_ids uuid[]
  returns: void
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 7a185d710a0eb6a5ce8397682bf5a509
  comment: Stops jobs with on_failure = stop, and pauses jobs whose failures have reached stop_after.

function penstock._apply_policy(penstock.jobs, penstock.task_spec[], text[], boolean)
  arguments: p_job penstock.jobs, p_specs penstock.task_spec[], p_starters text[], p_is_raw boolean
  returns: penstock.task_spec[]
  attributes: plpgsql, stable, security invoker, parallel unsafe
  settings: jit=off, search_path=penstock, pg_temp
  body: sha256 da00d62f162bb91c1dee391c98327442
  comment: Checks new tasks against the policies of their kinds, and gives them the provider and the least units that their kind declares. p_starters: what the user who starts them counts as (null: the service). p_is_raw: the user wrote the tasks; an app or a handler did not.

function penstock._apply_reported_limits(penstock.endpoints, penstock.endpoint_states, bigint, bigint)
  arguments: p_endpoint penstock.endpoints, p_before penstock.endpoint_states, p_requests bigint, p_tokens bigint
  returns: void
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 04ae663649fa5a914a8f067f5e25cb12
  comment: Keeps the limits that a provider reports, for an hour (see _forget_reported_limits), and retries tasks that a lower one had parked.

function penstock._apply_shared(text, jsonb)
  arguments: p_table text, p_rows jsonb
  returns: bigint
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 b57cb8c02fda6a11223450f3299e64a1
  comment: Makes a table of shared facts like that of the directory's cell, and returns the number of changed rows. Rows that only this cell has stay.

function penstock._artifact_path(text, text, text, text)
  arguments: p_folder text, p_stem text, p_name text, p_content_type text
  returns: text
  attributes: plpgsql, immutable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 f00012f419881a199c23c926ac865d56
  comment: The path of a file in storage: plain ASCII characters, and always the same for the same name.

function penstock._artifact_type(text)
  arguments: p_content_type text
  returns: text
  attributes: sql, immutable, security invoker, parallel unsafe
  settings: search_path=pg_catalog, pg_temp
  body: sha256 ba012438d8dac82c30810be3d7c70d77
  comment: The type of a file if its task names none: audio_mp3, pdf, video_mp4.
  grant to authenticated: execute
  grant to service_role: execute

function penstock._audit(uuid, text, uuid, text, jsonb)
  arguments: p_tenant_id uuid, p_action text, p_job_id uuid, p_subject text, p_details jsonb DEFAULT '{}'::jsonb
  returns: void
  attributes: sql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 80d88e5646c41074dc3d82897ad124ff
  comment: Adds a line to the audit log.

function penstock._audit_digest(bigint, bigint)
  arguments: p_after bigint, p_last bigint, OUT lines bigint, OUT digest bytea
  returns: record
  attributes: sql, stable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 8e611241ea17f0902565b90cd38d9603
  comment: The number and the digest of the lines of the audit log after one id, up to another.

function penstock._audit_hash(bytea, penstock.audit_seals)
  arguments: p_before bytea, p_seal penstock.audit_seals
  returns: bytea
  attributes: sql, immutable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 420891bb1e1002aab830a90b4d7cbf3e
  comment: The hash of a seal, which contains the hash of the seal before.

function penstock._audit_job()
  returns: trigger
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 9280a112fd51871411d3ba5b0df8092a
  comment: Rejects a status change that the job state machine does not allow. For every other, writes an audit line and notifies subscribers of the job's end.

function penstock._base_rate(text, timestamp with time zone)
  arguments: p_currency text, p_at timestamp with time zone
  returns: numeric
  attributes: sql, stable, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 dc022d0b3571227fb96195c10f56e5d1
  comment: The value of one unit of a currency in the base currency at this time; null if unknown.
  grant to authenticated: execute
  grant to service_role: execute

function penstock._batch_without(bigint[], bigint[], penstock.leases[])
  arguments: p_task_ids bigint[], p_leases bigint[], p_taken penstock.leases[], OUT task_ids bigint[], OUT leases bigint[]
  returns: record
  attributes: sql, immutable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 7535b26146983a11a7fc04d1571e606a
  comment: The tasks of a batch that are not among those taken.

function penstock._begin_arrival(uuid, jsonb)
  arguments: p_tenant_id uuid, p_lanes jsonb
  returns: TABLE(what text, old bigint, new bigint)
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 c6e738e83f474ad34974a6f38623924c
  comment: Prepares the queues of a tenant that arrives, and says which lane here stands for each lane there.

function penstock._billing_tenant(text, uuid)
  arguments: p_customer_id text, p_tenant_id uuid
  returns: uuid
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 62b43cdbbe5b31b8f990aae6a348c829
  comment: The tenant of a customer, and null for customers of other products. The tenant that the object itself names is bound if neither has another; a contradiction is an error.

function penstock._bind_sheet(uuid, text, text, text, boolean)
  arguments: p_tenant_id uuid, p_kind text, p_name text, p_label text, p_is_new boolean
  returns: void
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 18d52c8535265ac6900f9b71178b639f
  comment: Raises an error if a sheet or an account is bound to another tenant; p_is_new binds a free one.

function penstock._blocked_lanes(text[], timestamp with time zone)
  arguments: p_task_types text[], p_now timestamp with time zone
  returns: TABLE(lane_id integer, kind text, provider text, state text, tenant_ids uuid[])
  attributes: sql, stable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 d4f6d0385ae445550239c7d89749fd0d
  comment: Lanes with waiting tasks that may have routes, whose endpoint cannot take them now, and why. tenant_ids: only for these tenants it is failing (null: all).

function penstock._book(penstock.booking[])
  arguments: p_bookings penstock.booking[]
  returns: void
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 9c3f119c942ac4977169763644a40bba
  comment: Adds to accounts, in the lock order.

function penstock._book_cost(penstock.cost_entries)
  arguments: p_entry penstock.cost_entries
  returns: void
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 cf104f1fede0a81ddfa61c1359c20bfa
  comment: Books a cost on the accounts of its tenant and job, and deducts it from the hold of its attempt.

function penstock._broken_seals()
  returns: TABLE(seal bigint, problem text)
  attributes: sql, stable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 b3dd9291c610c7aff0d88aa179d640b5
  comment: Seals that do not form a chain, with the problem of each.

function penstock._bucket(double precision)
  arguments: p_seconds double precision
  returns: integer
  attributes: sql, immutable, security invoker, parallel unsafe
  settings: search_path=pg_catalog, pg_temp
  body: sha256 c68432cec2bf3db4126f044c50a7a0c1
  comment: The histogram bucket of a duration; bucket n begins at 2^(n/2) milliseconds.

function penstock._bulk_row_state(penstock.bulk_rows)
  arguments: p_row penstock.bulk_rows
  returns: TABLE(state text, output jsonb, error_code text, error_message text, started_at timestamp with time zone, finished_at timestamp with time zone)
  attributes: sql, stable, security invoker, parallel unsafe
  body: sha256 a1aa7fdf2a133616b025aec615a3def1
  comment: The state, result and error of a row, derived from its tasks. Views and functions all use this one.
  grant to authenticated: execute
  grant to service_role: execute

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
  body: sha256 c408cf3a37f32475df5c85c628dcd988
  comment: The tenant that a call acts for: the named one if the caller has access, else the caller's own.

function penstock._can_count_calls(integer, timestamp with time zone)
  arguments: p_endpoint_id integer, p_at timestamp with time zone
  returns: boolean
  attributes: sql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 3b82da2ed48319c7144dad28e9d00a56
  comment: Whether calls admitted at a given time can be counted without waiting for another transaction.

function penstock._cancel_children(uuid, bigint[], timestamp with time zone)
  arguments: p_job_id uuid, p_task_ids bigint[], p_now timestamp with time zone, OUT deltas penstock.phase_delta[], OUT parents bigint[]
  returns: record
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 ced2ef9f4c888db6d836e6313976aa1b
  comment: Ends parked tasks as canceled because a parent did not succeed. Returns the changes of the phase counts, and the canceled tasks that have children.

function penstock._cascade_delete()
  returns: trigger
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 23798b275c535bb78609d55d09f87836
  comment: Trigger of a parent table: deletes the children of a deleted row, except those that were edited later.

function penstock._charge_attempts(penstock.leases[], jsonb[], boolean, text, jsonb)
  arguments: p_leases penstock.leases[], p_units jsonb[], p_is_estimate boolean, p_variant text, p_details jsonb
  returns: penstock.booking[]
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: enable_seqscan=off, jit=off, search_path=penstock, pg_temp
  body: sha256 9b8bf4e71a4b9b130981f0f39c908925
  comment: Records the usage and costs of attempts, deducts them from their holds, and returns the bookings.

function penstock._charge_costs(penstock.leases[], jsonb[], text, boolean, text, timestamp with time zone)
  arguments: p_leases penstock.leases[], p_units jsonb[], p_variant text, p_is_estimate boolean, p_reason text, p_now timestamp with time zone
  returns: penstock.booking[]
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 b3c2787558d64985fac6dc7b23c0d825
  comment: Records the costs of attempts, deducts usage and costs from their holds, and returns the bookings.

function penstock._charge_unreported(penstock.leases[])
  arguments: p_leases penstock.leases[]
  returns: penstock.booking[]
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 520acee0330663297215dcfd13ae866b
  comment: Records the estimated costs of attempts that were lost, timed out or got no answer, which counts against budgets, and returns the bookings. Usage is not recorded: quotas are not charged for attempts that brought no result.

function penstock._check_answer(penstock.waits, text, jsonb)
  arguments: p_wait penstock.waits, p_option text, p_payload jsonb
  returns: void
  attributes: plpgsql, stable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 d8bd4b4926de56cfe8277392aa0cf04b
  comment: Rejects an answer that is not one of the options, or whose payload has not the fields of the wait.

function penstock._check_artifact(text, text, bigint, bigint)
  arguments: p_name text, p_content_type text, p_bytes bigint, p_limit bigint
  returns: void
  attributes: plpgsql, stable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 2ecbd3de3def8fe09e7963be19ad558c
  comment: Raises an error for an invalid name, content type or size of a file.

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
  body: sha256 bcd2ffc882e317510cfdccaa19c1aa81
  comment: Rejects a claim with invalid arguments.

function penstock._check_clean(text, text, text)
  arguments: p_text text, p_field text, p_code text
  returns: void
  attributes: plpgsql, stable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 6627ffd6b19f111b6f613b3668172d11
  comment: Raises an error if a text has control characters; null has none.

function penstock._check_cycles(integer[], integer[], integer)
  arguments: p_parents integer[], p_children integer[], p_count integer
  returns: void
  attributes: plpgsql, immutable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 ed3ff19a08478952a5dc4331057db0ce
  comment: Raises an error if the dependencies form a cycle. Linear in tasks and edges.

function penstock._check_demands(penstock.jobs, penstock.task_spec[])
  arguments: p_job penstock.jobs, p_specs penstock.task_spec[]
  returns: jsonb
  attributes: plpgsql, stable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 a1035216a4f8f447a5eb82cd9e26f3c0
  comment: Rejects tasks with an invalid provider or units, or whose queue is full. Returns the delay in seconds for the tasks of each provider under pressure.

function penstock._check_document(jsonb, text, integer)
  arguments: p_document jsonb, p_name text, p_limit integer
  returns: void
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 47704d087c2ecf617be317b2abcfd7ea
  comment: Raises an error for a JSON document that is too large or that common JSON parsers cannot read.

function penstock._check_features(jsonb)
  arguments: p_features jsonb
  returns: void
  attributes: plpgsql, stable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 ac7077fa17fd0bfb1e3c563192b0b4f6
  comment: Rejects features with a malformed limit.

function penstock._check_fields(jsonb, text[], text)
  arguments: p_values jsonb, p_names text[], p_what text
  returns: void
  attributes: plpgsql, stable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 a556a96e7b6b3f700acb8be80cbd653f
  comment: Raises an error unless the value is an object that has only these fields.

function penstock._check_holder(text, bigint)
  arguments: p_worker_id text, p_lease bigint
  returns: void
  attributes: plpgsql, immutable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 c7979e32b9a3f5d7826e49465fe90a46
  comment: Requires a report to name its lease or its worker.

function penstock._check_job_arguments(text, jsonb, jsonb)
  arguments: p_type text, p_params jsonb, p_options jsonb
  returns: void
  attributes: plpgsql, stable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 9095de2c685a747086bce4d73701fe09
  comment: Raises an error for a malformed type, params or options object of open_job.

function penstock._check_job_options(penstock.jobs)
  arguments: p_job penstock.jobs
  returns: void
  attributes: plpgsql, stable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 462a0ed6c01b3e90543872b1f8562329
  comment: Rejects options of open_job that are well formed but not allowed.

function penstock._check_keys(uuid, penstock.task_spec[])
  arguments: p_job_id uuid, p_specs penstock.task_spec[]
  returns: void
  attributes: plpgsql, stable, security invoker, parallel unsafe
  settings: enable_nestloop=off, jit=off, search_path=penstock, pg_temp
  body: sha256 ec22b649ba913548fc0790383bd2d356
  comment: Raises an error if a key is not unique in the job or a parent does not exist.

function penstock._check_link(text)
  arguments: p_link text
  returns: void
  attributes: plpgsql, immutable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 4a0a05cb9c38425cf815d268c7807325
  comment: Raises an error for an unknown kind of link.

function penstock._check_name(text, text, text)
  arguments: p_name text, p_field text, p_code text DEFAULT 'invalid_name'::text
  returns: void
  attributes: plpgsql, stable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 078f191f39e2d470684fa70ade382214
  comment: Raises an error unless a name has 1 to 200 characters and no control characters.

function penstock._check_open_subjects(uuid, integer)
  arguments: p_user_id uuid, p_more integer
  returns: void
  attributes: plpgsql, stable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 fb589cecee7410254274705c1562c89c
  comment: Raises an error if a user has too many subjects in unfinished actions; null is the service.

function penstock._check_outcome(uuid, text, boolean, text, text, jsonb)
  arguments: p_tenant_id uuid, p_scope text, p_is_success boolean, p_code text, p_message text, p_options jsonb
  returns: void
  attributes: plpgsql, stable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 432b3a1781b4f4ced2c5268c70f47a81
  comment: Raises an error for an outcome that record_outcome cannot record.

function penstock._check_params(text, jsonb)
  arguments: p_job_type text, p_params jsonb
  returns: void
  attributes: plpgsql, stable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 7da3174f57c46320900217b4427636f0
  comment: Raises an error unless these params fit the job type, as far as the app has declared its params.

function penstock._check_phases(penstock.jobs, penstock.task_spec[])
  arguments: p_job penstock.jobs, p_specs penstock.task_spec[]
  returns: void
  attributes: plpgsql, stable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 79f3f7cf8e0c49536fe001df77b3d457
  comment: Rejects tasks of phases that the job type does not declare.

function penstock._check_policy(penstock.jobs, penstock.task_spec[], text[], boolean)
  arguments: p_job penstock.jobs, p_specs penstock.task_spec[], p_starters text[], p_is_raw boolean
  returns: void
  attributes: plpgsql, stable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 1d104d85626511deb88000a248421a01
  comment: Raises an error for the first task that its kind does not allow, with its index and field.

function penstock._check_price(numeric, numeric, text, timestamp with time zone)
  arguments: p_amount numeric, p_per numeric, p_currency text, p_from timestamp with time zone
  returns: void
  attributes: plpgsql, stable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 06e8ca6186a33ef8da99946fd83048e9
  comment: Rejects a price with an invalid amount, unit or time, or in a currency without an exchange rate.

function penstock._check_queue_depth(penstock.endpoints, uuid, bigint)
  arguments: p_endpoint penstock.endpoints, p_tenant_id uuid, p_more bigint
  returns: void
  attributes: plpgsql, stable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 cf7de9010aa78460de6afdd7a72406c1
  comment: Rejects tasks that would exceed the tenant's share of an endpoint's queue: depth_limit divided by the number of tenants that wait, at least 1. Tells nothing of other tenants.

function penstock._check_reservation(jsonb, text, text, double precision)
  arguments: p_amounts jsonb, p_action text, p_key text, p_ttl_seconds double precision
  returns: void
  attributes: plpgsql, stable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 af9830e40e7ee4ac2df5453838b3a6dd
  comment: Rejects a reservation with invalid arguments.

function penstock._check_routes(penstock.task_spec[])
  arguments: p_specs penstock.task_spec[]
  returns: void
  attributes: plpgsql, stable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 8f4e27385aa3c9cfeb4e2465f1de4daf
  comment: Rejects a malformed route of a task.

function penstock._check_rows(jsonb)
  arguments: p_rows jsonb
  returns: void
  attributes: plpgsql, stable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 42d6ce4e5e4f936bd40d6a6b1d7fe891
  comment: Raises an error for malformed rows, with the index of the first one.

function penstock._check_schedulable(text)
  arguments: p_job_type text
  returns: void
  attributes: plpgsql, stable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 b20c0ae1960530d21166a678e0c82fca
  comment: Raises an error unless an app has declared this job type or kind, so that a worker can draw its tasks.

function penstock._check_schedule(text, text, text, timestamp with time zone, jsonb)
  arguments: p_name text, p_cron text, p_job_type text, p_next_run_at timestamp with time zone, p_options jsonb
  returns: void
  attributes: plpgsql, stable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 f5efd990d77b7410002241a5fbc2481b
  comment: Rejects a schedule with an invalid name, cron expression, time zone or document.

function penstock._check_schedule_count(uuid)
  arguments: p_tenant_id uuid
  returns: void
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 7044c678076170d5d27a2e407141641e
  comment: Rejects a schedule above the maximum number of a tenant.

function penstock._check_schedule_tasks(uuid, text, jsonb, jsonb)
  arguments: p_tenant_id uuid, p_job_type text, p_options jsonb, p_old_tasks jsonb
  returns: void
  attributes: plpgsql, stable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 84f56a7fe8d04b1d750ab681360ed155
  comment: Rejects a schedule whose tasks the caller may not start, or whose job type has none.

function penstock._check_synced_columns(regclass)
  arguments: p_table regclass
  returns: void
  attributes: plpgsql, stable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 290b695b670b19dcc39fe4b978e3e025
  comment: Raises an error unless a table has the columns and the primary key of a synced table.

function penstock._check_tags(jsonb)
  arguments: p_tags jsonb
  returns: text[]
  attributes: plpgsql, immutable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 ab868c8b504712cad2b9fab4a3fc8972
  comment: Reads the tags of a new job, in lower case.

function penstock._check_target(text, text, text[])
  arguments: p_channel text, p_address text, p_events text[]
  returns: void
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 4342817d0c9911054a8eb0f25295486d
  comment: Raises an error for a channel, address or event that cannot be.

function penstock._check_tasks(penstock.task_spec[])
  arguments: p_specs penstock.task_spec[]
  returns: void
  attributes: plpgsql, stable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 c7e87b16d18010e20698945ee334ae55
  comment: Raises an error for the first invalid task, with its index and field.

function penstock._check_tenant_subjects(uuid, integer)
  arguments: p_tenant_id uuid, p_more integer
  returns: void
  attributes: plpgsql, stable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 5c27bb09ee740ee711f8772e9f7073a8
  comment: Raises an error if the users of a tenant have too many subjects in unfinished actions.

function penstock._check_time(timestamp with time zone, text)
  arguments: p_at timestamp with time zone, p_field text
  returns: void
  attributes: plpgsql, stable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 5c4b90ef11cbe06654fa3d1d5140d2b1
  comment: Raises an error for a time outside the years 2000 to 9998; null passes.

function penstock._check_units(jsonb, text)
  arguments: p_units jsonb, p_field text
  returns: void
  attributes: plpgsql, stable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 39348e7202fcdcae2288401dcb1b15f1
  comment: Raises an error unless the value is an object of known meters and valid amounts.

function penstock._check_wait_fields(jsonb)
  arguments: p_fields jsonb
  returns: void
  attributes: plpgsql, immutable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 fd63bbc982252e7b5795a243bb85af3f
  comment: Rejects payload fields without a known type.

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
  body: sha256 64fba755be5eb160ce6c58ab779750e2
  comment: Sets the provider of each task that has a route: the preferred one whose queue has room.

function penstock._claimed_task(penstock.leases)
  arguments: p_lease penstock.leases
  returns: TABLE(id bigint, lease bigint, job_id uuid, tenant_id uuid, kind text, key text, input jsonb, attempt integer, max_attempts integer, timeout_seconds real, lease_expires_at timestamp with time zone, provider text)
  attributes: sql, stable, security invoker, parallel unsafe
  body: sha256 e72511f2e96366a12c9af54e6f71284a
  comment: What a worker gets of a task it has claimed: the input with the outputs of its parents, the attempt, its limits.

function penstock._clear_audit_details(uuid, uuid)
  arguments: p_tenant_id uuid, p_user_id uuid
  returns: void
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 18e1d3d33c75c4f030936557f2cd8570
  comment: Clears the details of the audit lines of an erased tenant or user, and seals these lines again.

function penstock._close_exhausted(penstock.endpoints, penstock.endpoint_states, jsonb)
  arguments: p_endpoint penstock.endpoints, p_state penstock.endpoint_states, p_signal jsonb
  returns: void
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 89334332d79eae507c0a469b75c535a1
  comment: Closes an endpoint whose account is exhausted for 15 minutes, or until open_provider.

function penstock._compact()
  returns: void
  attributes: sql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 d515effa7af0bd2693386dff8e065b74
  comment: Merges the usage and cost rows since the last call into daily sums.

function penstock._correct_estimates(text, timestamp with time zone, timestamp with time zone, numeric)
  arguments: p_provider text, p_starts timestamp with time zone, p_ends timestamp with time zone, p_share numeric
  returns: penstock.cost_entries[]
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 2140a0e1f803e45236df274aac1430e0
  comment: Adds a correction to each estimate of a provider in this time that leaves the given share of it, and returns the corrections.

function penstock._corrected_entry(penstock.cost_entries, numeric, text, uuid)
  arguments: p_correction penstock.cost_entries, p_amount numeric, p_currency text, p_tenant_id uuid
  returns: penstock.cost_entries
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 39bd0d8772cd80334a4d514c59809769
  comment: The ledger entry that a correction is for; raises an error if the correction is not valid.

function penstock._cost_of_attempt(penstock.cost_entries, bigint, text, bigint)
  arguments: p_entry penstock.cost_entries, p_task_id bigint, p_worker_id text, p_lease bigint
  returns: penstock.cost_entries
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 1e63c22c2fc170c2aa181b6854b351b2
  comment: A cost entry with the task and the provider of an attempt, whose lease is locked.

function penstock._cost_of_tenant(penstock.cost_entries, uuid)
  arguments: p_entry penstock.cost_entries, p_tenant_id uuid
  returns: penstock.cost_entries
  attributes: plpgsql, stable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 19f2d1c29f4f43d7840ad84f7d97c08f
  comment: A cost entry of a tenant outside an attempt; rejects a job of another tenant.

function penstock._cost_on_day(uuid, date)
  arguments: p_tenant_id uuid, p_day date
  returns: numeric
  attributes: plpgsql, stable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 faa43936ed9d3a5e7277becd1b250cb1
  comment: The costs of a tenant, or of all tenants, on a UTC day.

function penstock._cost_ratio(text, text)
  arguments: p_kind text, p_provider text, OUT mean numeric, OUT spread numeric, OUT samples integer
  returns: record
  attributes: sql, stable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 29a35c6a75d76f1ed511c85a42f2988c
  comment: Actual cost divided by estimated cost of recent calls: mean, standard deviation, and the number of samples.

function penstock._count_actual_tokens(penstock.leases, jsonb)
  arguments: p_lease penstock.leases, p_units jsonb
  returns: void
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 317c00197729eb82fb182dcddf647a4d
  comment: Corrects the tokens that an attempt counts in the windows of its endpoint. The lease is as it was before the report.

function penstock._count_calls(penstock.endpoints, timestamp with time zone, bigint, bigint)
  arguments: p_endpoint penstock.endpoints, p_at timestamp with time zone, p_requests bigint, p_tokens bigint
  returns: void
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 878b14733deb0a3ddb9a4deb0ebd6887
  comment: Counts calls admitted at a given time in their endpoint's windows. Negative amounts take them back.

function penstock._count_down_children(uuid, bigint[], bigint)
  arguments: p_job_id uuid, p_parent_ids bigint[], p_first_child_id bigint, OUT doomed bigint[], OUT free bigint[]
  returns: record
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 0d2bcfa11bc8c3fa22d3a64674326d4c
  comment: Subtracts ended parents from what their children wait for. Returns the children that a failed parent cancels, and those that wait for no parent any more.

function penstock._count_foreign_calls(penstock.endpoints, bigint, bigint)
  arguments: p_endpoint penstock.endpoints, p_requests_left bigint, p_tokens_left bigint
  returns: void
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 02bae69333ad284662fb3ad00c318470
  comment: Counts calls that others made with the same account: less is left, as the provider says, than was counted here.

function penstock._count_in_phases(penstock.jobs, penstock.task_spec[])
  arguments: p_job penstock.jobs, p_specs penstock.task_spec[]
  returns: void
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 c6c0883d07d12e3b4fd4ca198980017c
  comment: Adds new tasks to the totals of their phases, and creates the phases that the tasks name (default: the name of the kind). A job type with declared phases accepts only those.

function penstock._count_ready(uuid, integer)
  arguments: p_tenant_id uuid, p_lane_id integer
  returns: bigint
  attributes: plpgsql, stable, security invoker, parallel unsafe
  settings: enable_seqscan=off, jit=off, search_path=penstock, pg_temp
  body: sha256 04809454641e6adac26f3a9644f8031b
  comment: The number of ready tasks in a lane, of a tenant or of all tenants; at most 100,001.

function penstock._count_start(penstock.jobs, integer, jsonb, jsonb)
  arguments: p_job penstock.jobs, p_jobs integer, p_rows jsonb, p_params jsonb
  returns: void
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 6405a1b581ce91d1388e4fefa05926b9
  comment: Counts new jobs, their rows (tasks, or rows of a bulk job) and the bytes of their input where these are limited, and rejects them over the limit.

function penstock._create_job(text, jsonb, jsonb)
  arguments: p_type text, p_params jsonb, p_options jsonb, OUT job penstock.jobs, OUT is_new boolean
  returns: record
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 2ab8a3a717cc4a7256aeeaff70e8ca40
  comment: Creates a job without tasks, or finds the job with the same idempotency key. The caller counts a new job with _count_start when it has done everything else.

function penstock._create_user(uuid, text)
  arguments: p_user_id uuid, p_email text
  returns: void
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 9b34407c7cb4b90bd0c5305c460d0b57
  comment: Creates a profile and a personal tenant for a user.

function penstock._current_pace(double precision, timestamp with time zone, timestamp with time zone)
  arguments: p_pace double precision, p_paced_at timestamp with time zone, p_now timestamp with time zone
  returns: double precision
  attributes: sql, immutable, security invoker, parallel unsafe
  settings: search_path=pg_catalog, pg_temp
  body: sha256 a08d75b865a51eb505953ba86e8c1943
  comment: The share of its limits that an endpoint may use: a 429 lowers it, and it recovers within ten minutes.
  grant to service_role: execute

function penstock._current_problems(uuid, jsonb)
  arguments: p_tenant_id uuid, p_lanes jsonb
  returns: jsonb
  attributes: plpgsql, stable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 bbe3709cb59caf81760ed2fc99e7e175
  comment: What keeps tasks from running: maintenance mode, missing workers, closed providers, quotas and budgets, schedules that fail.

function penstock._define_policies(jsonb)
  arguments: p_kinds jsonb
  returns: void
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 f9dba917d5038c02d4225b377af4315a
  comment: Stores the policies of kinds: what their tasks may use and ask for, and who may start them.

function penstock._delay_throttled_tasks(penstock.task_spec[], jsonb, timestamp with time zone)
  arguments: p_specs penstock.task_spec[], p_delays jsonb, p_now timestamp with time zone
  returns: penstock.task_spec[]
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 36d681f19fad5014394b47ee725c4991
  comment: Delays new tasks of providers above their backpressure threshold: {provider: seconds}.

function penstock._delete_artifacts(penstock.artifacts[])
  arguments: p_artifacts penstock.artifacts[]
  returns: void
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 b6d92063a86de8f9af95836b83491426
  comment: Marks files as deleted and returns their quota. The caller has locked the rows and calls this once per transaction.

function penstock._delete_job_rows(uuid, integer)
  arguments: p_job_id uuid, p_limit integer
  returns: integer
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 19821dc3711104fbe9f6a0099b660d22
  comment: Deletes up to p_limit rows of a job, the job itself last, and returns their number.

function penstock._delete_tenant_rows(uuid, integer, boolean)
  arguments: p_tenant_id uuid, p_limit integer, p_keep boolean
  returns: text
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 624da9864e45373e4406f7fa8d7216d3
  comment: Deletes the next rows of a frozen tenant, children first, and returns the name of their table; null: none is left. p_keep keeps the tenant's row, profiles and keys. Members lose their rights in this database.

function penstock._delete_waits(uuid, integer)
  arguments: p_job_id uuid, p_limit integer
  returns: integer
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 52ae09f892093c01269813a049261054
  comment: Deletes up to p_limit steps and waits of a job that is pruned, and returns their number.

function penstock._detach_kept_artifacts(uuid, integer)
  arguments: p_job_id uuid, p_limit integer
  returns: integer
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 c299e83445c65ca933ebd2aba33134ea
  comment: Separates the files that an app keeps from a job that is about to be deleted. Returns their number.

function penstock._do_chore(uuid, integer)
  arguments: p_job_id uuid, p_bite integer
  returns: integer
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 89c13a0ad715c932699f2e929a7da201
  comment: Moves the next batch of tasks after a pause, resume or cancel of their job, and returns their number.

function penstock._do_overdue()
  returns: void
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: lock_timeout=100ms, search_path=penstock, pg_temp
  body: sha256 b00213ef1b02366fde3630834fdc01aa
  comment: Does a part of upkeep for a claim that found nothing, if no process runs upkeep: requeues expired leases or tasks that are due.

function penstock._drain_tenant(uuid)
  arguments: p_tenant_id uuid, OUT leases bigint, OUT chores bigint, OUT jobs bigint
  returns: record
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 f5ca992f9a92ccfc9af8f5501c04c648
  comment: Pauses the next jobs of a tenant, parks their tasks, and says what still runs; chores include messages that are being sent.

function penstock._drained(timestamp with time zone)
  arguments: p_since timestamp with time zone
  returns: TABLE(kind text, provider text, per_second double precision)
  attributes: sql, stable, security invoker, parallel unsafe
  settings: enable_seqscan=off, jit=off, search_path=penstock, pg_temp
  body: sha256 8cb13937ca3d9c740cf08f181c4c3a2c
  comment: The tasks per second that ended since a minute ago, per kind and provider.

function penstock._duration_text(double precision)
  arguments: p_seconds double precision
  returns: text
  attributes: sql, immutable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 d643739541a5dcae92ab3b4668045cb8
  comment: A duration as text, such as "about 5 min".

function penstock._empty_webhooks(integer)
  arguments: p_limit integer
  returns: void
  attributes: sql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 97c79b8796af289f5876a9c361d5163b
  comment: Deletes the payloads of old webhooks. The rows stay, so that a late delivery is still known.

function penstock._end_events(penstock.simulated_group, double precision, double precision)
  arguments: p_group penstock.simulated_group, p_tasks double precision, p_delay double precision
  returns: penstock.simulated_event[]
  attributes: plpgsql, immutable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 6155558061484f034bfea5834d891ca0
  comment: What the end of tasks gives back: their workers and concurrency, and the tokens they did not use.

function penstock._end_keys(uuid[])
  arguments: p_key_ids uuid[]
  returns: integer
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 d8e90a596f61934898490ee0fa3650a1
  comment: Revokes these keys and their descendants; returns their number.

function penstock._end_member_keys(uuid, uuid, text)
  arguments: p_tenant_id uuid, p_user_id uuid, p_role text
  returns: void
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 8b0573d7b0018d576e1113ef55f2c6f2
  comment: Revokes the keys that a member created and that may do more than the new role (null: all).

function penstock._end_operations()
  returns: void
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 32813c32ddd6701f9cd1e768c5108f80
  comment: Ends operations whose task has ended and those that are never settled, and frees their reservations and places.

function penstock._end_reason(uuid, bigint, bigint)
  arguments: p_job_id uuid, p_failed bigint, p_total bigint
  returns: text
  attributes: sql, stable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 d02cd52bd845b322aaf76330054cd912
  comment: What did not succeed in a job that has ended: failed tasks and refused rows; null: nothing.

function penstock._end_short_claim(text[], integer, penstock.claim_pick)
  arguments: p_task_types text[], p_claimed integer, p_pick penstock.claim_pick
  returns: void
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 36efce87c3cf843a659b331ab0d2b465
  comment: What a claim that got nothing, or not all it wanted, does for others: moves tasks of stopped jobs, does overdue upkeep, and wakes workers if the next claim may find tasks. The pick is that of the last round.

function penstock._end_succeeded(text, bigint[], bigint[], jsonb[], integer)
  arguments: p_worker_id text, p_task_ids bigint[], p_leases bigint[], p_outputs jsonb[], p_limit integer, OUT task_count integer, OUT deltas penstock.phase_delta[], OUT parent_jobs uuid[], OUT parents bigint[], OUT gated penstock.leases[]
  returns: record
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 c34d45f09d174d18092c852437ec1b1d
  comment: Moves the tasks of a batch from leases to results. Returns how many, the changes of the phase counts, the tasks that have children with their jobs, and the leases of gated tasks.

function penstock._endpoint(text, uuid)
  arguments: p_name text, p_tenant_id uuid
  returns: penstock.endpoints
  attributes: sql, stable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 d5d0159e0643c1aa8491ec5c6148f4b8
  comment: The endpoint of this name: the tenant's own, or the one for all tenants.

function penstock._endpoint_capacities(uuid, text[])
  arguments: p_tenant_id uuid, p_providers text[], OUT names text[], OUT requests double precision[], OUT tokens double precision[], OUT places double precision[], OUT opens_in double precision[]
  returns: record
  attributes: plpgsql, stable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 89531d3212ccfe0142544e4974a406cf
  comment: The free requests, tokens and concurrency of endpoints, and the seconds until each opens; 1e18: unlimited, or never.

function penstock._endpoint_room(integer, bigint, timestamp with time zone)
  arguments: p_endpoint_id integer, p_waiting bigint, p_now timestamp with time zone
  returns: bigint
  attributes: plpgsql, stable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 dbe909da1027a1d6602f1acf2a0e6499
  comment: How many more tasks an endpoint lets run now (null: no limit). If its windows admit all that waits, its concurrency decides. Otherwise as many as its rate per minute keeps busy at their mean duration.

function penstock._enter_endpoint(integer, integer[], timestamp with time zone, boolean)
  arguments: p_endpoint_id integer, p_admitted integer[], p_now timestamp with time zone, p_may_wait boolean, OUT verdict text, OUT is_locked boolean, OUT endpoint penstock.endpoints, OUT capacity penstock.capacity
  returns: record
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 1eb961c305b86041c7942c23c4e0bb2e
  comment: Locks an endpoint's state so that one claim at a time counts in its windows, and returns what it has free. The verdict is open, full, closed, busy (locked by another claim) or later (counting would have to wait).

function penstock._entitled_tenant(uuid)
  arguments: p_tenant_id uuid
  returns: penstock.tenants
  attributes: plpgsql, stable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 243fdc86b742c1cf57f68bb0d8006537
  comment: The tenant whose entitlements are asked for: the named one if the caller may read it, else the caller's own.

function penstock._erase_synced_rows(uuid)
  arguments: p_user_id uuid
  returns: void
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 db3f80104e61e3a366463f6be32857fd
  comment: Deletes all rows of a user in synced tables.

function penstock._erase_tenant(uuid)
  arguments: p_tenant_id uuid
  returns: void
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 d3586b195850901fd30151d1017ac94f
  comment: Removes what a tenant stored. Ledger and audit log keep amounts, actions and ids.

function penstock._error_details(jsonb)
  arguments: p_details jsonb
  returns: jsonb
  attributes: sql, stable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 97e589640178d472f89e7bb49b2a2f01
  comment: The details of an error as they are stored: without secrets, and without the stack, which has a table of its own.

function penstock._error_text(text, integer)
  arguments: p_text text, p_limit integer
  returns: text
  attributes: sql, immutable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 045845ebf085700fd8d596857d6fc83a
  comment: The text of an error or report as it is stored: without credentials, and at most p_limit characters.

function penstock._estimated_cost(text, uuid, jsonb)
  arguments: p_provider text, p_tenant_id uuid, p_units jsonb
  returns: numeric
  attributes: sql, stable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 9a4c7990209617ff3584ca281074635d
  comment: The highest expected cost of a task with these units; null if its provider has no price.

function penstock._estimated_units(text, uuid, jsonb)
  arguments: p_provider text, p_tenant_id uuid, p_units jsonb
  returns: jsonb
  attributes: sql, stable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 d1fb80913e51f28815f318ab9c608fbc
  comment: The units of a task, with the default tokens of its endpoint if it names none.

function penstock._exceed_sequences(bigint, bigint)
  arguments: p_leases bigint, p_changes bigint
  returns: void
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 24d3ac3b94f69f15d7f9e85332264260
  comment: Moves the numbers of leases and of changes past those of the database that a tenant comes from.

function penstock._expire_holds()
  returns: integer
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 832cbb0a5f5024e02714d3238d37fbf8
  comment: Frees what callers reserved and never committed or released.

function penstock._explain_endpoint(penstock.tasks, penstock.endpoints, bigint)
  arguments: p_task penstock.tasks, p_endpoint penstock.endpoints, p_place bigint, OUT waits_for text, OUT reason text, OUT seconds double precision
  returns: record
  attributes: plpgsql, stable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 e57a9952fdca781840670a55bdbcceb9
  comment: Which limit of its provider a ready task waits for, and about how long; waits_for is null if no limit does.

function penstock._explain_parked(penstock.jobs, penstock.parked)
  arguments: p_job penstock.jobs, p_parked penstock.parked, OUT waits_for text, OUT reason text, OUT seconds double precision, OUT place bigint
  returns: record
  attributes: plpgsql, stable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 6277a8542eee85084adfb21ee11b698b
  comment: What a parked task waits for, about how long, and its place among the tasks that wait for the same.

function penstock._explain_ready(penstock.tasks)
  arguments: p_task penstock.tasks, OUT waits_for text, OUT reason text, OUT seconds double precision, OUT place bigint
  returns: record
  attributes: plpgsql, stable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 f0b5ff9afe75dbe60c4267b7e3a89c0f
  comment: What a ready task waits for, about how long, and its place in its lane.

function penstock._explain_route(penstock.tasks)
  arguments: p_task penstock.tasks
  returns: text
  attributes: sql, stable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 0c88b3ab53bbe693586c63ce8e957c1f
  comment: Why no other provider takes a waiting task that has a route.

function penstock._explain_wait(uuid)
  arguments: p_wait_id uuid, OUT waits_for text, OUT reason text
  returns: record
  attributes: plpgsql, stable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 393371067e74651812a52bb8952ea803
  comment: What a waiting task waits for.

function penstock._extra_units(jsonb, jsonb, text)
  arguments: p_units jsonb, p_route jsonb, p_provider text
  returns: jsonb
  attributes: sql, immutable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 182b9084a9c2395ce815989bad284de2
  comment: What a task with these units may use beyond them at a provider: extra_units of its route, by the name of the provider or else by the part before the slash.

function penstock._fields_used(penstock.task_spec[], timestamp with time zone)
  arguments: p_specs penstock.task_spec[], p_now timestamp with time zone, OUT idempotency_keys boolean, OUT keys boolean, OUT parents boolean, OUT routes boolean, OUT limits boolean, OUT times boolean, OUT confirmations boolean
  returns: record
  attributes: sql, immutable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 ce9cd58b3ea32f10a93135ae4e3762ff
  comment: Which optional fields any of these tasks has, so that the stages for the others are skipped.

function penstock._fill_result(uuid, jsonb)
  arguments: p_job_id uuid, p_template jsonb
  returns: jsonb
  attributes: plpgsql, stable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 8c43c6b123cddd2c3a7f5c2bbbc83cbd
  comment: The template of a result with each {"$from": key} replaced by the output of that task.

function penstock._finish_behind_others(uuid, text, double precision, double precision, double precision)
  arguments: p_tenant_id uuid, p_provider text, p_seconds double precision, p_requests double precision, p_tokens double precision
  returns: double precision
  attributes: sql, stable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 1a003da9d2c91564a9fe083682912c25
  comment: Extends a simulated finish by the hourly limits of an endpoint and the waiting tasks of other tenants.

function penstock._finish_jobs(uuid[])
  arguments: p_job_ids uuid[]
  returns: void
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 ef2060bdeb796e4878a706131f43fa98
  comment: Ends those of these jobs whose tasks have all ended.

function penstock._first_events(uuid, penstock.simulated_group[], double precision[])
  arguments: p_tenant_id uuid, p_groups penstock.simulated_group[], p_state double precision[]
  returns: penstock.simulated_event[]
  attributes: plpgsql, stable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 811c6196243a18f7609734d356392ae1
  comment: What tasks and calls that run now, of this job and of others, give back later.

function penstock._fit_into_windows(tid[], penstock.endpoints, penstock.capacity)
  arguments: p_tids tid[], p_endpoint penstock.endpoints, p_capacity penstock.capacity
  returns: penstock.window_fit
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 50af66b753ccf6b14fde0eec823487f0
  comment: Which of these tasks fit into what is left of an endpoint's windows: the first ones, in order, until one does not fit.

function penstock._follow_parent()
  returns: trigger
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 b64207ae1995ecb18a1cdad2bd775446
  comment: Trigger of a child table: a row that is not newer than the deletion of its parent is deleted, too.

function penstock._forecast_cost(penstock.forecast_group[])
  arguments: p_groups penstock.forecast_group[], OUT low numeric, OUT expected numeric, OUT high numeric, OUT unpriced text[]
  returns: record
  attributes: plpgsql, stable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 24bc1ca3d3e16842d0657b471bd846d6
  comment: What groups of tasks will cost: at least, probably and at most, and the providers that have no price.

function penstock._forecast_finish(uuid, penstock.forecast_group[], timestamp with time zone)
  arguments: p_tenant_id uuid, p_groups penstock.forecast_group[], p_now timestamp with time zone
  returns: jsonb
  attributes: plpgsql, stable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 053ad275ada3923506ec4d8356afaedf
  comment: When groups of tasks will have ended, {"seconds", "low", "high", "at", "workers", "bottleneck", "reason"}.

function penstock._forecast_groups(uuid, penstock.forecast_group[])
  arguments: p_tenant_id uuid, p_groups penstock.forecast_group[]
  returns: jsonb
  attributes: plpgsql, stable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 78a92f9953c190a48265aed2ef186c28
  comment: Forecasts cost, quota and finish of groups of tasks.

function penstock._forecast_quota(uuid, jsonb, numeric, timestamp with time zone)
  arguments: p_tenant_id uuid, p_units jsonb, p_cost numeric, p_now timestamp with time zone
  returns: jsonb
  attributes: sql, stable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 37f2372dee1bc7db8cbc16393df744c0
  comment: For each limited meter, what these units need and what is left, [{"meter", "needs", "left", "limit", "fits"}].

function penstock._forget_failures(penstock.leases[])
  arguments: p_leases penstock.leases[]
  returns: void
  attributes: sql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 58edb5a8db14ae7e86b7e71935d3ec25
  comment: Ends the counts of failures at endpoints where these attempts succeeded.

function penstock._forget_reported_limits()
  returns: void
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 ddadc5e17029f160b7e7a57c46c01ae8
  comment: Forgets lower limits that providers reported more than an hour ago, and retries tasks that were too large for them.

function penstock._forget_workers(timestamp with time zone)
  arguments: p_now timestamp with time zone
  returns: void
  attributes: sql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 0d89ce55fd3532581645a36ac0b79a19
  comment: Removes workers that have not reported for 10 minutes, and stopped ones after a day.

function penstock._free_budget(jsonb, uuid, uuid)
  arguments: p_known jsonb, p_tenant_id uuid, p_job_id uuid
  returns: jsonb
  attributes: sql, stable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 14bca0d779a37d479dd1152e8d2126fe
  comment: What is left of a job's budget, by the id of the job (null: no budget); nothing if it is known already.

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
  body: sha256 b1fdc383aef393ab1d94df816d14e24a
  comment: How many more concurrent calls an endpoint allows (null: no limit).

function penstock._free_operation(penstock.operations, text)
  arguments: p_operation penstock.operations, p_status text
  returns: penstock.booking[]
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 7547ce8d5ec54db890660e7b87219b37
  comment: Ends the reservation of an operation and returns the bookings.

function penstock._generation(penstock.leases)
  arguments: p_lease penstock.leases
  returns: integer
  attributes: sql, stable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 27212bbff2b594b1d84e84a92985911d
  comment: How many attempts a task had before its last replay.

function penstock._guard_operation()
  returns: trigger
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 655be675d3fc4f26581259e5fdbea28c
  comment: Rejects a status change that the state machine of operations does not allow.

function penstock._guard_prompt()
  returns: trigger
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 51c053f8f7d2dc2975b76e793a57505c
  comment: Rejects changes of a version: only whether it is active may change. Version 0 follows the code.

function penstock._has_base64_file(jsonb)
  arguments: p_document jsonb
  returns: boolean
  attributes: sql, immutable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 4aa86bd78d4dee51686e63dd656706b1
  comment: Whether a document contains a base64 string of more than 8,192 characters.

function penstock._has_feature(text, text)
  arguments: p_plan text, p_feature text
  returns: boolean
  attributes: sql, stable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 14eede8c6110128adc6e21d2efc8b24f
  comment: Whether a plan has a feature. No plan has none.

function penstock._has_features(text[], jsonb, jsonb)
  arguments: p_features text[], p_route jsonb, p_units jsonb
  returns: boolean
  attributes: sql, immutable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 6aed45a29e8335f82515727f23401bba
  comment: Whether an endpoint with these features can do a task with this route and these units.

function penstock._has_price(text, uuid, timestamp with time zone)
  arguments: p_provider text, p_tenant_id uuid, p_at timestamp with time zone
  returns: boolean
  attributes: sql, stable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 53294bab9c56357458f061a499b2bd60
  comment: Whether a provider has any price at this time.

function penstock._has_quota_or_budget(tid[])
  arguments: p_tids tid[]
  returns: boolean
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 36fbe81ffd72d0188c867fb9ca0b3c56
  comment: Whether any of these tasks belongs to a tenant with limits or to a job with a budget. Most do not, and skip the accounts.

function penstock._has_scope(uuid, text)
  arguments: p_user_id uuid, p_scope text
  returns: boolean
  attributes: sql, stable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 90ab7d809e111ea5ff7bdf2ebfde5b3e
  comment: Whether an API key has this scope. A user who is not a key has all of them.

function penstock._index_job(penstock.jobs)
  arguments: p_job penstock.jobs
  returns: void
  attributes: sql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 b747951bbed02e8aed51d2e3cdd20fae
  comment: Stores the terms by which a new job is found.

function penstock._insert_tasks(penstock.jobs, penstock.task_spec[], bigint[], timestamp with time zone)
  arguments: p_job penstock.jobs, p_specs penstock.task_spec[], p_ids bigint[], p_now timestamp with time zone
  returns: penstock.ready[]
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 c88ef577c6dbef364d7c033297f4f915
  comment: Inserts new tasks and returns a ready row for each.

function penstock._is_any_failing()
  returns: boolean
  attributes: sql, stable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 c85ef0a0af448ca5d7d1fcc9a4a6f943
  comment: Whether a provider fails for a tenant now.

function penstock._is_clean(text)
  arguments: p_text text
  returns: boolean
  attributes: sql, immutable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 3bf355da05ec7b6df7262f0c01835724
  comment: Whether a text has no control characters, line separators or marks that change its direction.

function penstock._is_failing(integer, uuid, timestamp with time zone)
  arguments: p_endpoint_id integer, p_tenant_id uuid, p_now timestamp with time zone
  returns: boolean
  attributes: sql, stable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 2eff34aa696f5fb284bcc463d979be74
  comment: Whether the last five attempts of a tenant's routed tasks at an endpoint failed, the last one within a minute. After that the endpoint is tried again.

function penstock._is_member(uuid)
  arguments: p_tenant_id uuid
  returns: boolean
  attributes: sql, stable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 cd17456acd032e0888e35e36c5eddf62
  comment: Whether the caller is a member of the tenant, or the service.

function penstock._is_new_report(uuid, text)
  arguments: p_tenant_id uuid, p_key text
  returns: boolean
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 e62a31a40f99053428446980aebd3489
  comment: Whether no usage report with this key was recorded; notes the key.

function penstock._is_orphaned(text)
  arguments: p_path text
  returns: boolean
  attributes: sql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 5b06902ab3dd2f974a2f0b8ba606f643
  comment: Whether a path belongs to a tenant of this cell and has no record.

function penstock._is_own_host(penstock.endpoints, text)
  arguments: p_endpoint penstock.endpoints, p_host text
  returns: boolean
  attributes: sql, immutable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 ef06fabdb8f4f6dcbb38fc1e864b7a5e
  comment: Whether an answer of this host is an answer of the provider: the host, or a domain above it, is listed in the endpoint's hosts, or known for the provider's name.

function penstock._is_readable(jsonb)
  arguments: p_document jsonb
  returns: boolean
  attributes: sql, immutable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 87eec6a6efb7a45a8332435f8be95dbc
  comment: Whether common JSON parsers can read this document.

function penstock._is_route(jsonb)
  arguments: p_route jsonb
  returns: boolean
  attributes: sql, immutable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 c23e7dae47a1bbe95c2b8e2dbdf119c7
  comment: Whether a document is a valid route.

function penstock._is_running(uuid, bigint, bigint)
  arguments: p_job_id uuid, p_first_id bigint, p_last_id bigint
  returns: boolean
  attributes: sql, stable, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 f11000556b4a6fae3ad6407588f69e1d
  comment: Whether a task of the job with an id in this range is running, if the caller may see it.
  grant to authenticated: execute
  grant to service_role: execute

function penstock._is_service()
  returns: boolean
  attributes: sql, stable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 31dc82f5ea26b259b021040f0d30724b
  comment: Whether the caller is the service (a worker or an operator) rather than a user.

function penstock._is_storable_time(timestamp with time zone)
  arguments: p_at timestamp with time zone
  returns: boolean
  attributes: sql, immutable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 923a0e7cb9cb66576ffa24cc054fcc45
  comment: Whether a time lies in the years 2000 to 9998, which every client language can represent.

function penstock._is_under_pressure(penstock.endpoints, timestamp with time zone)
  arguments: p_endpoint penstock.endpoints, p_now timestamp with time zone
  returns: boolean
  attributes: plpgsql, stable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 2ed332ca0f22f375a5a981e97e2ab26b
  comment: Whether more of an endpoint's capacity is used than its backpressure_threshold, so that new tasks are delayed.

function penstock._is_valid_job(text, text, boolean, smallint, text, text, text, numeric, text, integer, text)
  arguments: p_type text, p_status text, p_is_finished boolean, p_priority smallint, p_on_failure text, p_on_limit text, p_stop_after text, p_budget numeric, p_paused_for text, p_forgiven integer, p_idempotency_key text
  returns: boolean
  attributes: plpgsql, immutable, security invoker, parallel unsafe
  settings: search_path=pg_catalog, pg_temp
  body: sha256 e9cad3fd7d6ab0cce22efa2dd7e13992
  comment: Whether the columns of a job have allowed values. The constraint jobs_valid calls it.

function penstock._job_from_options(jsonb)
  arguments: p_options jsonb
  returns: penstock.jobs
  attributes: plpgsql, stable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 c2ee7edf41a04ab44ad4496dbb24f88c
  comment: Reads and checks the options of open_job, and resolves the tenant. on_failure stays null if it is not given.

function penstock._job_title(text, jsonb)
  arguments: p_template text, p_params jsonb
  returns: text
  attributes: plpgsql, immutable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 bb66e4689ba6d96e1cdb0c99858f04e8
  comment: The title of a job: {name} and {name.name} in the template stand for its params. Null if nothing is left.

function penstock._judge_failures(penstock.leases[], jsonb[], timestamp with time zone)
  arguments: p_failed penstock.leases[], p_errors jsonb[], p_now timestamp with time zone
  returns: TABLE(held penstock.leases, error_code text, error_message text, error_details jsonb, stack text, delay double precision, death text)
  attributes: sql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 b782b84b90140027be7e011aaba38164
  comment: For each failed attempt: the error as it is stored, the backoff in seconds, and why the task is not retried (null: it is): the error is permanent, no attempt is left, or its time for retries is over.

function penstock._judge_gate(text, penstock.tenants, numeric)
  arguments: p_gate text, p_tenant penstock.tenants, p_amount numeric
  returns: jsonb
  attributes: plpgsql, stable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 e0851c2ea49f0add975c2d7c4855f8ba
  comment: Whether a tenant passes a gate: see check_gate.

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
  body: sha256 fd3231a44e2cfbb188eda7fdf1d4ea94
  comment: Rejects updates and deletes of ledger entries.

function penstock._key_role(penstock.api_keys)
  arguments: p_key penstock.api_keys
  returns: text
  attributes: sql, stable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 2bb3a780fec30f260b927f7328526040
  comment: The role of an API key; null if the key is expired, revoked, or no longer a member of its tenant.

function penstock._lane(text, text, uuid, boolean)
  arguments: p_kind text, p_provider text, p_tenant_id uuid, p_is_gated boolean
  returns: integer
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 ceeab76d5be5350803938bb635889eb2
  comment: The id of the lane of a kind and a provider endpoint; creates the lane if it is missing.

function penstock._lanes_of_tenant(uuid)
  arguments: p_tenant_id uuid
  returns: TABLE(lane_id integer, priority smallint)
  attributes: sql, stable, security invoker, parallel unsafe
  settings: enable_bitmapscan=off, enable_seqscan=off, jit=off, search_path=penstock, pg_temp
  body: sha256 47fa586fec7a80c1e36c9af1f4a75a92
  comment: The lanes and priorities in which the tenant has tasks that can be claimed.

function penstock._lanes_to_claim(text[])
  arguments: p_task_types text[]
  returns: integer[]
  attributes: plpgsql, stable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 d6589f7c25d414bb3360a542b1bf91fc
  comment: The lanes of these kinds in which a claim looks for tasks: with many lanes, only those that have tasks.

function penstock._lapse_weights()
  returns: void
  attributes: sql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 a8010242a4189961d955c846104c03e0
  comment: Gives tenants whose plan has ended the weight of the plan after it, unless an operator set another one.

function penstock._lease_tasks(penstock.claim_pick, text, timestamp with time zone, integer)
  arguments: p_pick penstock.claim_pick, p_worker_id text, p_now timestamp with time zone, p_lease_seconds integer
  returns: SETOF penstock.leases
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 db8c61111baa20066194dd8642c5fba0
  comment: Moves the picked tasks whose jobs run from ready to leases, in the order of their slots, and starts their jobs.

function penstock._lease_to_ready(penstock.leases, integer, integer)
  arguments: p_lease penstock.leases, p_more_failures integer DEFAULT 0, p_more_deaths integer DEFAULT 0
  returns: penstock.ready
  attributes: sql, immutable, security invoker, parallel unsafe
  body: sha256 c4b509cd9f4733df4af6e71b5e834c4a
  comment: A leased task as a row for _queue.

function penstock._lease_to_waiting(penstock.leases, timestamp with time zone, text, uuid)
  arguments: p_lease penstock.leases, p_until timestamp with time zone, p_reason text, p_wait_id uuid
  returns: penstock.parked
  attributes: sql, immutable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 f0115e9d307da7d34a80f24ee27e2c2e
  comment: A leased task as a row of parked that waits for something.

function penstock._leased_operation(uuid, text, bigint)
  arguments: p_operation_id uuid, p_worker_id text, p_lease bigint, OUT operation penstock.operations, OUT lease penstock.leases
  returns: record
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 5cbaa2a0354a5c8971878e046adb2854
  comment: Locks an operation whose task the worker has leased.

function penstock._least_units(penstock.kinds, jsonb, jsonb)
  arguments: p_kind penstock.kinds, p_units jsonb, p_input jsonb
  returns: jsonb
  attributes: sql, immutable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 ac4dec3bcf65cc36d413cb61eaafc46c
  comment: The units of a task, raised to the least that its kind counts.

function penstock._limit_names()
  returns: text[]
  attributes: sql, immutable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 d9a19976ccfbe326f1ce4c4ed15ebeca
  comment: The limits of a provider that cells share.

function penstock._limits(uuid, timestamp with time zone)
  arguments: p_tenant_id uuid, p_at timestamp with time zone
  returns: TABLE(meter text, amount numeric, mode text, period date, resets_at timestamp with time zone)
  attributes: sql, stable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 3da834c8ff8e24079eb259ebe4d970b2
  comment: The effective limits of a tenant: its own limit or that of its plan, plus its allowances. Every check uses this function. A meter without a row is not limited.

function penstock._limits_waited_for(uuid[])
  arguments: p_tenant_ids uuid[]
  returns: TABLE(tenant_id uuid, waits_for text, job_id uuid)
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 98d6b45e1cc06efe68dc6f1f5fdaa3c7
  comment: The quotas (a meter) and budgets (with the job) for which parked tasks of these tenants wait.

function penstock._link_path(uuid, text)
  arguments: p_artifact_id uuid, p_link text
  returns: text
  attributes: sql, stable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 a910f541645ea161ebd67de73ee8e3fc
  comment: The path of a link, after the address of the server.

function penstock._link_token(uuid)
  arguments: p_artifact_id uuid
  returns: text
  attributes: sql, stable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 1667c0e1e38a3a6e0d384ff2cd49c90d
  comment: The token in the link of a file.

function penstock._linked_wait(text)
  arguments: p_token text
  returns: penstock.waits
  attributes: plpgsql, stable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 003a989a99c3039a1c156eb03b2d5007
  comment: The wait that a link answers.

function penstock._lock_account(uuid, uuid, text, date, boolean)
  arguments: p_tenant_id uuid, p_job_id uuid, p_meter text, p_period date, p_may_wait boolean
  returns: penstock.accounts
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 9c7f6e4b4832febd780964f1b33bc864
  comment: Locks an account and returns it, and creates a missing one. Null when that needs waiting and p_may_wait is false.

function penstock._lock_caller()
  returns: trigger
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 2d98afa6f6988a8c384ff0a717947760
  comment: Trigger of synced tables: takes the lock of the calling user.

function penstock._lock_changed_leases(text, bigint[], bigint[], jsonb[], integer)
  arguments: p_worker_id text, p_task_ids bigint[], p_leases bigint[], p_outputs jsonb[], p_limit integer
  returns: boolean
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 6356c9c191f540f838f4d91474a4a89b
  comment: Locks the leases of a batch that a heartbeat, a report or a new child changed while the batch ended, so that they were skipped. Whether there are any.

function penstock._lock_descendants(uuid, bigint[])
  arguments: p_job_id uuid, p_parent_ids bigint[]
  returns: void
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 af4d42322aa007123e1e877c97824925
  comment: Locks the parked tasks that the end of these parents may change.

function penstock._lock_for_pruning(penstock.jobs)
  arguments: p_job penstock.jobs, OUT has_ready_tasks boolean, OUT is_in_use boolean
  returns: record
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 3783f23a018518c18a7bd2bbdcc2c26b
  comment: Locks the phases and the bulk of an ended job without waiting, and says whether the job is still in use. Ready tasks of an ended job are left to upkeep.

function penstock._lock_for_replay(bigint[], uuid[])
  arguments: p_letter_ids bigint[], p_job_ids uuid[]
  returns: void
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 0a2c97c402f4324acfee8e1c9f7688af
  comment: Takes all locks of a replay, whatever the number of jobs, in the usual lock order.

function penstock._lock_jobs_and_tasks(uuid[], uuid[], bigint[])
  arguments: p_job_ids uuid[], p_task_jobs uuid[], p_task_ids bigint[]
  returns: void
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: enable_seqscan=off, jit=off, search_path=penstock, pg_temp
  body: sha256 994f6568610bb7a82ac5d7f03feb4b02
  comment: Locks jobs with their phases, and tasks in whichever state they are, so that none of them ends before this transaction. Raises PS001 if a task is locked or was moved meanwhile: the caller rolls back to release all locks, and tries again.

function penstock._lock_key_tenant(uuid, text)
  arguments: p_tenant_id uuid, p_role text
  returns: void
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 b016994344b38639d30503434c266bd4
  comment: Locks the tenant of a new key. Raises an error unless the caller may create it and there is room for it.

function penstock._lock_leased_artifact(uuid, text, bigint)
  arguments: p_artifact_id uuid, p_worker_id text, p_lease bigint
  returns: penstock.artifacts
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 590106da9d2a623e1450a0272379c102
  comment: Locks an artifact and returns it, if this lease still owns it.

function penstock._lock_leased_bulk(bigint, text, bigint)
  arguments: p_task_id bigint, p_worker_id text, p_lease bigint
  returns: penstock.bulks
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 254f159a3421a5bf5b049bb746d788e2
  comment: Locks the bulk of a running task and returns it; raises an error if the lease is lost.

function penstock._lock_limits(tid[], timestamp with time zone, boolean)
  arguments: p_tids tid[], p_now timestamp with time zone, p_may_wait boolean, OUT limits penstock.claim_limit[], OUT busy_tenants uuid[]
  returns: record
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 3d6679b3a9bf74514f9a9fafcfc0d923
  comment: Locks the accounts of the quotas and budgets that these tasks may use and returns what remains of each. busy_tenants: those with an account that another transaction has locked, when this one may not wait.

function penstock._lock_prompt(text)
  arguments: p_name text
  returns: void
  attributes: sql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 af345e94f79d49d2fdd7afdf2b2de641
  comment: Waits for other transactions that change the prompts of this name.

function penstock._lock_visible_artifact(uuid, text[])
  arguments: p_artifact_id uuid, p_roles text[]
  returns: penstock.artifacts
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 9260b24b7d9a778a91c1b655cdd48e93
  comment: Locks an artifact and returns it, if the caller has one of these roles.

function penstock._locked_hold(uuid, uuid)
  arguments: p_hold_id uuid, p_tenant_id uuid
  returns: penstock.holds
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 7069616ba7501700bea093757caec13e
  comment: Locks a hold that a caller reserved, and returns it.

function penstock._locked_job(uuid)
  arguments: p_job_id uuid
  returns: penstock.jobs
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 96ec265c02d0ab25af5f7c3a9ed45499
  comment: Locks the job and returns it, if the caller may change it.

function penstock._log_slot(timestamp with time zone)
  arguments: p_at timestamp with time zone
  returns: smallint
  attributes: sql, immutable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 27cc103dd769c1ee753bfb108cda670b
  comment: The partition of a log line: its week modulo 3.

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

function penstock._mark_audit_log(bigint)
  arguments: p_sealed bigint
  returns: void
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 809b13e90a76cbb67bad650123cc5c5c
  comment: Notes the newest line, and the transactions that have to end before it can be sealed.

function penstock._mark_operations(uuid[], bigint[])
  arguments: p_job_ids uuid[], p_task_ids bigint[]
  returns: void
  attributes: sql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 74bad05fae874a4b8fee9d2a443b7106
  comment: Lets the next upkeep end the live operations of jobs or tasks that have ended.

function penstock._matching_letters(jsonb)
  arguments: p_filter jsonb
  returns: bigint[]
  attributes: plpgsql, stable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 60ff2b8018f107e079cf9417a6a97753
  comment: The ids of dead letters that match a filter and that the caller may change.

function penstock._measure_need(penstock.claim_candidate, penstock.claim_limit[], timestamp with time zone)
  arguments: p_task penstock.claim_candidate, p_limits penstock.claim_limit[], p_now timestamp with time zone
  returns: penstock.claim_need
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 b74caa12bbf8f65d67a41156c2323490
  comment: What a task needs of the limits that apply to it, and what it is short of. A limit that is only observed leaves a usage event instead.

function penstock._merge_bulk_rows(penstock.bulks, jsonb)
  arguments: p_bulk penstock.bulks, p_rows jsonb, OUT added integer, OUT added_bad integer, OUT changed integer, OUT changed_bad integer, OUT moved integer
  returns: record
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 3eaeda15f25700305fb947b47d22a997
  comment: Adds rows of which the job may have some already. A row number that exists stays as it is, unless its row had a problem: then it is validated again. A row with a key that exists gets a problem.

function penstock._month_share(penstock.fixed_costs, date)
  arguments: p_cost penstock.fixed_costs, p_month date
  returns: numeric
  attributes: sql, immutable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 3f48f4532b0c9484ac1af27fa8c9a714
  comment: How much of a fixed cost falls into a month: by days, in its own currency.

function penstock._move_progress(penstock.phase_delta[])
  arguments: p_deltas penstock.phase_delta[]
  returns: void
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 716fc011650f62067f0d7c7b8f722190
  comment: Adds deltas to the counts of phases, locked in one order, and ends the jobs whose tasks have all ended.

function penstock._move_to_dead_letters(penstock.leases[], text[], text[], text[])
  arguments: p_leases penstock.leases[], p_reasons text[], p_codes text[], p_messages text[]
  returns: void
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 cb27d60b8ba6ab93a385399a09cf53f9
  comment: Ends tasks as permanently failed: writes their results and dead letters, and updates their children and jobs.

function penstock._needs_gate(penstock.gates, text)
  arguments: p_gate penstock.gates, p_kind text
  returns: boolean
  attributes: sql, immutable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 efc1c56cca28e2632390929a4b75cb4d
  comment: Whether tasks of a kind need a gate. A name without a dot stands for all kinds that begin with it.

function penstock._new_key_expiry(timestamp with time zone, penstock.api_keys)
  arguments: p_expires_at timestamp with time zone, p_parent penstock.api_keys
  returns: timestamp with time zone
  attributes: plpgsql, stable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 ae9c8ef25fc0f5d3e430c84db4b0532d
  comment: When a new key expires; null: never. Raises an error if its parent or the setting does not allow that.

function penstock._new_key_scopes(text, jsonb, penstock.api_keys)
  arguments: p_role text, p_scopes jsonb, p_parent penstock.api_keys
  returns: text[]
  attributes: plpgsql, stable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 70d0955006857aa34900dad5f270b08b
  comment: The scopes of a new key. Raises an error for scopes that its role or its parent key does not have.

function penstock._new_secret()
  returns: text
  attributes: sql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 a980fba21563a9c606e6c95c5109fa11
  comment: A new secret that signs webhooks.

function penstock._next_provider(jsonb, uuid, jsonb, text, text, jsonb, numeric)
  arguments: p_route jsonb, p_tenant_id uuid, p_units jsonb, p_kind text, p_provider text, p_rooms jsonb, p_budget numeric
  returns: TABLE(lane_id integer, endpoint_id integer, choice penstock.provider_choice, cost numeric)
  attributes: sql, stable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 75052cf728d5cda2fcfaa129e0216e4d
  comment: The provider other than p_provider that a route prefers now, with its lane. p_rooms: only endpoints with room (null: all); p_budget: at most this cost.

function penstock._next_provider_opening(text[], timestamp with time zone)
  arguments: p_task_types text[], p_now timestamp with time zone
  returns: timestamp with time zone
  attributes: plpgsql, stable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 e3822648a7dd1e2acb7062bf46b98bb1
  comment: When the next endpoint opens that ready tasks of these kinds wait for, or null.

function penstock._note_attempts(penstock.leases[], jsonb[], boolean, jsonb, timestamp with time zone)
  arguments: p_leases penstock.leases[], p_units jsonb[], p_is_estimate boolean, p_details jsonb, p_now timestamp with time zone
  returns: penstock.booking[]
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 2c4c7c9a4d4f83325dd825cafb8bece3
  comment: Records the usage of attempts and returns the bookings for their tenants' accounts.

function penstock._note_external_id(uuid, text)
  arguments: p_operation_id uuid, p_external_id text
  returns: void
  attributes: sql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 97e3e35d4acf5545e5378780e0793d0d
  comment: Notes the provider's id of an operation that was found by its tag, because the worker died before it noted the id.

function penstock._note_failure(uuid, integer)
  arguments: p_tenant_id uuid, p_endpoint_id integer
  returns: void
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 9678c96e6652e1c42327ae8a2d01e793
  comment: Counts a failed attempt of a tenant's routed task at an endpoint, in a row since the last success. When an endpoint that failed five times fails again after a minute, it is failing at once.

function penstock._note_move(uuid, bigint, integer, penstock.provider_choice, text, text)
  arguments: p_job_id uuid, p_task_id bigint, p_lane_id integer, p_choice penstock.provider_choice, p_provider text, p_state text
  returns: void
  attributes: sql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 c5240b22f5dbc75a46b12ca85842599f
  comment: Notes the new lane of a task, its provider, its units there and why it left the earlier one.

function penstock._note_prompt(uuid, text, jsonb)
  arguments: p_tenant_id uuid, p_action text, p_details jsonb
  returns: void
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 344c9996a8075ad7c6043d5b5a23efc6
  comment: Records the use of a prompt outside of a task, from the details of its usage event.

function penstock._note_usage(uuid, text, jsonb, uuid, text, jsonb)
  arguments: p_tenant_id uuid, p_action text, p_units jsonb, p_hold_id uuid, p_provider text, p_details jsonb
  returns: penstock.booking[]
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 86357a5d8f65a789d99694e7dc3e3a1d
  comment: Records usage outside a task and returns the bookings for the tenant's accounts.

function penstock._notification_events()
  returns: text[]
  attributes: sql, immutable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 29a117201e482fad15c2c21a311b5cd1
  comment: The events that a target can subscribe to.

function penstock._notify(uuid, text, text, text, jsonb, text)
  arguments: p_tenant_id uuid, p_event text, p_subject text, p_body text, p_details jsonb, p_key text
  returns: integer
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 3d3f7349f638a47874a15bf78895faba
  comment: Queues a message for each target that wants the event; an alert that none wants goes to the e-mail addresses of owners and admins.

function penstock._notify_job(penstock.jobs)
  arguments: p_job penstock.jobs
  returns: void
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 adff3f06106659bf23c9a4e8d6c68dac
  comment: Queues a message about the end of a job for each target that wants it.

function penstock._now()
  returns: timestamp with time zone
  attributes: sql, volatile, security invoker, parallel unsafe
  body: sha256 cd23047eb8d5945a837a8937197c30ba
  comment: The current time. Every function reads it here.
  grant to authenticated: execute
  grant to service_role: execute

function penstock._number_change()
  returns: trigger
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 a47521f56b8a85d19b8bd65b6e32399f
  comment: Trigger of synced tables: gives a changed row the next change number, under the lock of its owner.

function penstock._number_rows(integer)
  arguments: p_cell integer
  returns: void
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 e279ca707708c488596a24f8811e3187
  comment: Gives all sequences of the platform and its apps the range of this cell, so that rows keep their numbers when their tenant moves.

function penstock._on_access_change()
  returns: trigger
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 1436f4c4bb137163b23e641bd3735b96
  comment: Records that a caller may have lost access, for processes that serve open streams.

function penstock._on_deleted_user()
  returns: trigger
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 7f78f63ea68a5d7781467e9a580a9533
  comment: Erases a user whom the authentication service deleted.

function penstock._open_endpoints(text[], timestamp with time zone)
  arguments: p_task_types text[], p_now timestamp with time zone
  returns: TABLE(endpoint_id integer, room bigint)
  attributes: sql, stable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 46d7ce4aad7044046ff846229b74e0bd
  comment: Endpoints of lanes of these kinds that can take tasks now, and how many.

function penstock._open_invitation(text)
  arguments: p_secret text
  returns: penstock.invitations
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 19c3b61a8d9c5af518e0196cccd9ab84
  comment: Locks the tenant and the pending invitation with this secret, if the caller may answer it.

function penstock._opens_at(penstock.endpoints, bigint, bigint, timestamp with time zone)
  arguments: p_endpoint penstock.endpoints, p_requests bigint, p_tokens bigint, p_now timestamp with time zone
  returns: timestamp with time zone
  attributes: plpgsql, stable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 33652b9622ab382e6b91fb67c65038d7
  comment: When a call of this size fits into the windows.

function penstock._operation_document(penstock.operations)
  arguments: p_operation penstock.operations
  returns: jsonb
  attributes: sql, stable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 4844ab164c5690909a5526ade6049c76
  comment: What a handler gets of an operation.
  grant to service_role: execute

function penstock._ordinal(bigint)
  arguments: p_number bigint
  returns: text
  attributes: sql, immutable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 ee010c31a932bc8d1b33071ea25ad652
  comment: A number as an English ordinal: 1st, 2nd, 3rd, 12th.

function penstock._output_value(jsonb)
  arguments: p_output jsonb
  returns: jsonb
  attributes: sql, immutable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 a9fed12deebe0ea210155cdeee482340
  comment: An output without the flag for cleaned text.

function penstock._over_limit(uuid, text, date, date)
  arguments: p_tenant_id uuid, p_meter text, p_period date, p_next date
  returns: numeric
  attributes: sql, stable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 b7ba0b6cf8aea5d553af9be7a0a967fd
  comment: What the oldest period that is not settled used beyond the limit without packs. 0 without a limit.

function penstock._own_hosts(penstock.endpoints)
  arguments: p_endpoint penstock.endpoints
  returns: text[]
  attributes: sql, immutable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 e20fc3a8d356a6bf95f5f4ffda322ceb
  comment: The hosts of a provider: those of the endpoint, or those known for the provider's name.

function penstock._own_target(uuid)
  arguments: p_target_id uuid
  returns: penstock.notification_targets
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 43fc17c683fda839a86aa0b2478dc8e5
  comment: Locks and returns a notification target that the caller may change.

function penstock._own_tenant()
  returns: uuid
  attributes: plpgsql, stable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 2c715bf8d8736450bb82e510e8fbd081
  comment: The tenant that a call acts for if it names none: the caller's own, or the only one.

function penstock._packs_left(uuid, text, numeric, date, timestamp with time zone)
  arguments: p_tenant_id uuid, p_meter text, p_limit numeric, p_period date, p_at timestamp with time zone
  returns: numeric
  attributes: sql, stable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 9a767c4b3dc67b11f2d5c845150abd52
  comment: What is left of the packs that a tenant bought, at the beginning of a period. A pack is used up once: what a period used beyond its limit is gone.

function penstock._parent_key()
  returns: penstock.api_keys
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 7b0e11dc5d3b9711225343c380696d46
  comment: Locks the API key that makes this call; null for a user.

function penstock._parents_of_new_tasks(uuid, jsonb)
  arguments: p_job_id uuid, p_tasks jsonb
  returns: bigint[]
  attributes: plpgsql, stable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 2620e0f720ad8100deb837009e46001d
  comment: The ids of existing tasks of a job that new tasks depend on.

function penstock._park(tid[], text, text, timestamp with time zone)
  arguments: p_tids tid[], p_reason text, p_waits_for text, p_until timestamp with time zone
  returns: void
  attributes: sql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 2b057af91517207c09f2bd31a709b70a
  comment: Moves tasks from ready to parked until there is room for them.

function penstock._park_gated(tid[], timestamp with time zone)
  arguments: p_tids tid[], p_now timestamp with time zone
  returns: tid[]
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 d7406701114c9a319fecdeb2a407bd51
  comment: Parks those of the picked tasks whose kind needs a feature that the plan of their tenant lacks, until the plan or the gate changes. Returns the others.

function penstock._park_new_tasks(penstock.jobs, penstock.task_spec[], penstock.ready[])
  arguments: p_job penstock.jobs, p_specs penstock.task_spec[], p_rows penstock.ready[]
  returns: penstock.ready[]
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 f385cfe8b2983891479fe20c2c9f4d9e
  comment: Parks the new tasks that must not run yet and returns the ready rows of the others.

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

function penstock._parked_to_lease(penstock.parked)
  arguments: p_parked penstock.parked
  returns: penstock.leases
  attributes: sql, stable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 c37da2dafad2bde9df1458c5ab23b1ac
  comment: A parked task that ends without an attempt, as _move_to_dead_letters needs it.

function penstock._parked_to_ready(penstock.parked)
  arguments: p_parked penstock.parked
  returns: penstock.ready
  attributes: sql, immutable, security invoker, parallel unsafe
  body: sha256 b97678828213b1f8122d13583735a694
  comment: A parked task as a row for _queue.

function penstock._parse_cost(text, numeric, jsonb)
  arguments: p_cost_type text, p_amount numeric, p_options jsonb
  returns: penstock.cost_entries
  attributes: plpgsql, stable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 1290d6b86ba4d9a849d781206748723c
  comment: Checks the arguments of record_cost and reads its options.

function penstock._parse_tasks(jsonb)
  arguments: p_tasks jsonb
  returns: penstock.task_spec[]
  attributes: plpgsql, stable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 1265c5e6514e75f17ac9b77f1db1c628
  comment: Converts p_tasks to records; raises an error if it is no array, too long, or has unknown or malformed fields.

function penstock._pause_job(uuid, text, text)
  arguments: p_job_id uuid, p_reason text, p_paused_for text
  returns: text
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 0235462fe6f5aa26310d4c8e8309b742
  comment: Pauses a job: see pause_job. p_paused_for: budget or quota, if the platform pauses it.

function penstock._pause_spent_jobs()
  returns: void
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 db883cb596b7659c2b86ca7cbf7ec63a
  comment: Pauses jobs whose remaining tasks exceed their budget, and jobs with on_limit = pause whose tenant's quota is exhausted.

function penstock._percentile(jsonb, double precision)
  arguments: p_buckets jsonb, p_part double precision
  returns: double precision
  attributes: sql, immutable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 d14a3070a95883b282ce51aa77a381de
  comment: A percentile of a histogram, in seconds, accurate to about 20 %.

function penstock._period(text, timestamp with time zone)
  arguments: p_meter text, p_at timestamp with time zone, OUT starts date, OUT resets_at timestamp with time zone
  returns: record
  attributes: sql, stable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 b40068410c1765c9f26e89b8a906f852
  comment: The period of a meter that contains this time, in UTC.

function penstock._permitted_subjects(text, text[], uuid)
  arguments: p_verb text, p_subjects text[], p_user_id uuid
  returns: text[]
  attributes: plpgsql, stable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 33e05672a164f9cda5bc77da64814099
  comment: Those of the subjects that exist and that the user (null: the service) may change, sorted by id.

function penstock._phase_of(uuid, text, text)
  arguments: p_job_id uuid, p_phase text, p_kind text
  returns: TABLE("position" smallint)
  attributes: sql, stable, security invoker, parallel unsafe
  body: sha256 feedc3329d2bb0f32d2c63c9779eefc3
  comment: The phase of a task: the one it names, else the one named like its kind, else the first.

function penstock._pick_from_lane(integer, bigint, uuid[], bigint)
  arguments: p_lane_id integer, p_read_from bigint, p_stopped uuid[], p_max bigint
  returns: tid[]
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 0330caee34e93208e5c18eaf324139f3
  comment: Locks the next rows of ready in one lane and returns them.

function penstock._pick_gated(integer[], integer, uuid[], timestamp with time zone, boolean, boolean, boolean)
  arguments: p_lanes integer[], p_max integer, p_stopped uuid[], p_now timestamp with time zone, p_is_first_round boolean, p_holds_nothing boolean, p_may_wait boolean
  returns: penstock.claim_pick
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 9bc7ecad5dbac23245a364c484d877aa
  comment: Locks the next rows of ready in gated lanes, in order and within the windows and the concurrency of their endpoints, within quotas and budgets, and counts them there.

function penstock._pick_open(integer[], integer, uuid[], timestamp with time zone)
  arguments: p_lanes integer[], p_max integer, p_stopped uuid[], p_now timestamp with time zone
  returns: tid[]
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 8c5b7c2cb869a360016752fed8eefe4e
  comment: Locks the next rows of ready in lanes without limits and returns them, so that no other claim takes them.

function penstock._pick_round(integer[], integer, uuid[], timestamp with time zone, text, boolean, boolean, boolean)
  arguments: p_lanes integer[], p_max integer, p_stopped uuid[], p_now timestamp with time zone, p_gated text, p_is_first_round boolean, p_holds_nothing boolean, p_may_wait boolean
  returns: penstock.claim_pick
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 d398044ebbe47e09ab76ebc30b7c2bb7
  comment: Locks the next rows of ready, of lanes without limits and of gated lanes (p_gated: first, last or none). p_holds_nothing: earlier rounds leased no task, so a lock may be waited for.

function penstock._plan(penstock.tenants, timestamp with time zone)
  arguments: p_tenant penstock.tenants, p_at timestamp with time zone
  returns: text
  attributes: sql, immutable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 d2361bee1d232ab33b723817ed6ef3f0
  comment: The effective plan of a tenant at a time. Every rule that depends on the plan uses this function.

function penstock._plan_figures(timestamp with time zone)
  arguments: p_since timestamp with time zone
  returns: TABLE(name text, label text, value double precision)
  attributes: sql, stable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 e4963d7e074ba86ed8411d2fd228f089
  comment: Tasks that ended and the p95 of their waiting time in seconds since a minute, by plan of their tenant.

function penstock._plan_in_setting(text)
  arguments: p_setting text
  returns: text
  attributes: plpgsql, stable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 db5d3a838f9ad720033e677ef617a26e
  comment: The plan that a setting names. Raises an error if there is no such plan.

function penstock._platform_schemas()
  returns: TABLE(schema_name text)
  attributes: sql, stable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 5ade481e4ada5b5754bb5a6807eba043
  comment: The schema penstock and those of the apps.

function penstock._price(text, uuid, text, text, timestamp with time zone)
  arguments: p_provider text, p_tenant_id uuid, p_meter text, p_variant text, p_at timestamp with time zone
  returns: penstock.prices
  attributes: sql, stable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 3561f8ac5ecc0aa896461c077f051057
  comment: The price that is valid at this time.

function penstock._price_units(text, uuid, jsonb, text, timestamp with time zone)
  arguments: p_provider text, p_tenant_id uuid, p_units jsonb, p_variant text, p_at timestamp with time zone
  returns: TABLE(meter text, unit_count numeric, cost_type text, amount numeric, currency text, base_amount numeric, price_id bigint)
  attributes: sql, stable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 17772ba78c5b30fac3c2153d3f934436
  comment: The cost of units at a provider, one row for each meter.

function penstock._priced_units(text, uuid, jsonb)
  arguments: p_provider text, p_tenant_id uuid, p_units jsonb
  returns: jsonb
  attributes: sql, stable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 601bff76cc2686d9dc6339cc746597a0
  comment: The units of a task as a call at this provider is priced before anything was reported.

function penstock._promote(integer)
  arguments: p_limit integer
  returns: integer
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: enable_seqscan=off, jit=off, search_path=penstock, pg_temp
  body: sha256 a9183ff79ecbde17b9a609bbd938ea82
  comment: Queues parked tasks whose time has come.

function penstock._prompt_details(penstock.prompt_uses)
  arguments: p_use penstock.prompt_uses
  returns: jsonb
  attributes: sql, immutable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 23918758f53e2a8b2d4163c20fabe3cc
  comment: What the usage event of a call says about its prompt.

function penstock._prompt_variables(text)
  arguments: p_body text
  returns: text[]
  attributes: sql, immutable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 9ff6ab23b01714652f4171309f895bf2
  comment: The names between double braces in a prompt.

function penstock._prune_audit_log()
  returns: void
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 778feef7ef4938c646dcfc4c5e64a0fe
  comment: Removes the lines of the oldest seal once they are older than audit_retention_days. The seal stays, and the chain begins with it.

function penstock._prune_history(timestamp with time zone, integer)
  arguments: p_cutoff timestamp with time zone, p_limit integer
  returns: void
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 bac88bc56673c54c5444651d179c9858
  comment: Deletes old holds, provider events, actions, notifications, uses of prompts and keys of usage reports.

function penstock._prune_notifications(timestamp with time zone, integer)
  arguments: p_cutoff timestamp with time zone, p_limit integer
  returns: void
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 7b31e2b89c2c32888a43312f6b24708a
  comment: Deletes old notifications, failures and streaks.

function penstock._prune_providers(integer)
  arguments: p_limit integer
  returns: void
  attributes: sql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 99c10bbeda5d9083d51ae3ad169f9b7c
  comment: Deletes slots and calls that no window counts any more, at most p_limit of each.

function penstock._prune_task_logs()
  returns: void
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: lock_timeout=50ms, search_path=penstock, pg_temp
  body: sha256 ab989b053496ee6c64f2ff8c6df9e80d
  comment: Empties the partitions of logs and streams that the next week uses: their rows are more than a week old.

function penstock._push_change(regclass, jsonb)
  arguments: p_table regclass, p_record jsonb
  returns: TABLE(outcome text, change_seq bigint, code text, message text)
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 a81186cde60ddc9abebf2573afc03296
  comment: Inserts or updates one row of a synced table as the caller, and returns what became of it.
  grant to authenticated: execute
  grant to service_role: execute

function penstock._push_changes(regclass, jsonb)
  arguments: p_table regclass, p_records jsonb
  returns: TABLE(id text, outcome text, change_seq bigint, code text, message text)
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 9ca365fcffb4367c7894111b49110d16
  comment: Inserts or updates records of a synced table as the caller, and returns what became of each.
  grant to authenticated: execute
  grant to service_role: execute

function penstock._queue(penstock.ready[], boolean)
  arguments: p_rows penstock.ready[], p_is_front boolean
  returns: void
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 20e972e20904825991a94177609c18c3
  comment: Inserts tasks into ready, each tenant's behind its own last slot, or at the front.

function penstock._queue_room(penstock.endpoints, uuid)
  arguments: p_endpoint penstock.endpoints, p_tenant_id uuid
  returns: bigint
  attributes: plpgsql, stable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 bc06e63f6f8e83bc9c04a691a288a83f
  comment: How many more tasks of a tenant may wait for an endpoint (null: any number): its share of depth_limit, which is divided by the number of tenants that wait, at least 1, minus its waiting tasks.

function penstock._raise_horizon()
  returns: trigger
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 face512cd2a183f30028265402c1757b
  comment: Trigger of synced tables: notes that a row was deleted permanently, so that devices pull all again.

function penstock._ranked_providers(jsonb, uuid, jsonb, integer[])
  arguments: p_route jsonb, p_tenant_id uuid, p_units jsonb, p_endpoint_ids integer[]
  returns: TABLE(endpoint_id integer, choice penstock.provider_choice, cost numeric, rank bigint)
  attributes: sql, stable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 1ee9c3002b0ce6076e3541d357ad4605
  comment: The endpoints that can do a task, in the order that its route prefers: open ones first, then the cheapest, the fastest or the first of the list.

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
  body: sha256 7f23fa52d1d6038f873af109773997b6
  comment: A task as a row of parked: until when it waits, why, and for which meter, limit, budget or price.

function penstock._recent_durations(text, text)
  arguments: p_kind text, p_provider text, OUT seconds double precision, OUT spread double precision, OUT samples integer
  returns: record
  attributes: sql, stable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 e38414fac4bdb4afbac441f2732f7eb5
  comment: The mean duration of recent tasks of a kind, its standard deviation, and the number of samples.

function penstock._recent_failures(uuid)
  arguments: p_tenant_id uuid
  returns: jsonb
  attributes: plpgsql, stable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 1592ae70a3731f737cea27b92313b5a5
  comment: The number of permanent failures of the last hour, and the most frequent causes of the last day.

function penstock._reclaim_before(timestamp with time zone)
  arguments: p_now timestamp with time zone
  returns: timestamp with time zone
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 910d37a60754a5d996831de24e315934
  comment: The time before which an expired lease counts as lost: now, or after an outage the time it began.

function penstock._record_failures(penstock.leases[], jsonb[], timestamp with time zone)
  arguments: p_failed penstock.leases[], p_errors jsonb[], p_now timestamp with time zone, OUT again penstock.ready[], OUT dead penstock.leases[], OUT reasons text[], OUT codes text[], OUT messages text[]
  returns: record
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 faa8b5c4a08aa28567c976a3282407c5
  comment: Logs failed attempts and parks the tasks that back off. Returns the tasks to requeue at once, and those that fail permanently with the reason, the code and the message.

function penstock._record_holds(penstock.reservation[], timestamp with time zone)
  arguments: p_reservations penstock.reservation[], p_now timestamp with time zone
  returns: void
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 c101a30bb11d72ea470c991a649de09a
  comment: Writes a hold for each reservation whose task got a lease, and takes the other reservations back.

function penstock._record_upkeep_done()
  returns: void
  attributes: sql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 ccb7a6ee60092ce2be74f04acd5d00a5
  comment: Notes that all of upkeep was done: expired leases are requeued, and so are tasks that are due.

function penstock._redact(text)
  arguments: p_text text
  returns: text
  attributes: plpgsql, immutable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 cb883b9433ae50dfaf49bc653cbc9ca6
  comment: Replaces credentials by [redacted]: keys, tokens, passwords, Authorization headers and cookies, the password and the query string of URLs and connection strings.

function penstock._redact_document(jsonb)
  arguments: p_document jsonb
  returns: jsonb
  attributes: plpgsql, immutable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 ea7224d81d69183b86336ca2f540913b
  comment: Redacts the texts of a JSON document; drops a document that would be no JSON afterwards.

function penstock._refusal_code(text, text, text)
  arguments: p_sqlstate text, p_detail text, p_constraint text
  returns: text
  attributes: sql, immutable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 ceffe96c11c29ed0a7afe60ded6d8016
  comment: The code of a change that the database refused; null for an error that is not about the change.
  grant to authenticated: execute
  grant to service_role: execute

function penstock._refuse(integer, text, text, jsonb, text)
  arguments: p_status integer, p_code text, p_message text, p_fields jsonb DEFAULT '{}'::jsonb, p_hint text DEFAULT NULL::text
  returns: void
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 a8f9647775caf991bbb63da0d82d7f58
  comment: Raises an error with a status, a stable code, a message, detail fields and a hint.

function penstock._refuse_gate(jsonb)
  arguments: p_verdict jsonb
  returns: void
  attributes: plpgsql, stable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 27f9a6f66f5d7015452c044127c28db1
  comment: Raises the error for a gate that a tenant does not pass: 402 upgrade_required, or 409 no_plan.

function penstock._refuse_lost(bigint)
  arguments: p_task_id bigint
  returns: void
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 9ae5927ee956f369a7da4821d5a0f71b
  comment: Rejects a report whose lease is not current.

function penstock._refuse_open_subjects(text, integer, bigint, integer)
  arguments: p_what text, p_max integer, p_open bigint, p_more integer
  returns: void
  attributes: plpgsql, stable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 859ad8c9402a9df7be8ee9ff7d9815a7
  comment: Raises an error if unfinished actions would have more subjects than the limit.

function penstock._refuse_task(integer, text, text, text)
  arguments: p_index integer, p_field text, p_code text, p_message text
  returns: void
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 076b5eb65c390a17a908e4fad2c084d7
  comment: Raises the error of an invalid task, with its index and field.

function penstock._refuse_waiting()
  returns: integer
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 700f9ce8fabb3f02f81868ba4e0cacb2
  comment: Ends parked tasks that had no quota, in jobs whose on_limit is refuse.

function penstock._related_tasks(bigint[])
  arguments: p_letter_ids bigint[], OUT job_ids uuid[], OUT task_ids bigint[]
  returns: record
  attributes: sql, stable, security invoker, parallel unsafe
  settings: enable_seqscan=off, jit=off, search_path=penstock, pg_temp
  body: sha256 9994ebfea72c794fc3a343654626a9bc
  comment: The descendants of dead-lettered tasks, and all parents of these descendants.

function penstock._release_artifact_quota(penstock.artifacts[])
  arguments: p_artifacts penstock.artifacts[]
  returns: void
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 b9980c01d74cd0f528444ad29231ceb1
  comment: Returns the quota that files use or have reserved. The caller has locked the rows and calls this once per transaction.

function penstock._release_bookings(penstock.holds)
  arguments: p_hold penstock.holds
  returns: penstock.booking[]
  attributes: sql, stable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 33b1fce0042c338ea67fd24965b32534
  comment: What to book when a hold ends: the part that was not spent is free again.

function penstock._remove_ready_tasks(penstock.chores, integer)
  arguments: p_chore penstock.chores, p_limit integer
  returns: integer
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 2adeca7845bf0e6adfd3a0826d973f61
  comment: Takes up to p_limit tasks of a job out of the ready set, parks them (verb park) or drops them, and returns their number.

function penstock._reopen_job(penstock.jobs)
  arguments: p_job penstock.jobs
  returns: void
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 ceb8cc7b8c02d6772cfe0a5d631d8c69
  comment: Sets a failed job to running and unparks its tasks.

function penstock._replay(bigint[])
  arguments: p_letter_ids bigint[]
  returns: integer
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: enable_seqscan=off, jit=off, search_path=penstock, pg_temp
  body: sha256 103cfc0b2f68ab40dff280a5047c6e35
  comment: Queues dead-lettered tasks again with a fresh number of attempts, reopens their jobs, and returns the number of tasks.

function penstock._requeue_leases(text, bigint[], bigint[], double precision, text, boolean)
  arguments: p_worker_id text, p_task_ids bigint[], p_leases bigint[], p_delay_seconds double precision, p_reason text, p_was_begun boolean
  returns: TABLE(id bigint, code text)
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 1a6423bab175d546eab7166824f27d6a
  comment: Requeues leased tasks without using up an attempt, and returns those rejected. Provider calls admitted for tasks that were never begun no longer count.

function penstock._require_active(uuid)
  arguments: p_tenant_id uuid
  returns: void
  attributes: plpgsql, stable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 941c854a7526b08ee3e1a287446cebcb
  comment: Raises an error while a tenant is suspended: nothing may change in a database that the tenant leaves.

function penstock._require_admin()
  returns: void
  attributes: plpgsql, stable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 b72181994d3b4437aa87d8b084c84f9b
  comment: Raises an error unless the caller is an admin of the installation or the service.

function penstock._require_answerer(penstock.waits)
  arguments: p_wait penstock.waits
  returns: void
  attributes: plpgsql, stable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 ec5fe3f6190fe379cd955c8d19c99b1d
  comment: Raises an error unless the caller has a role that may answer; of an API key also unless it has the scope start.

function penstock._require_consent(uuid, uuid)
  arguments: p_tenant_id uuid, p_user_id uuid
  returns: void
  attributes: plpgsql, stable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 d4e85f6f429d3d5bc03fef11d0986f21
  comment: Raises an error unless the caller may make the user a member without asking: the service may, except for a user who blocked the tenant.

function penstock._require_exclusive(uuid)
  arguments: p_job_id uuid
  returns: void
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 38cfd26d4374d7dddcfa7cf06388f942
  comment: Raises an error if the job's type is exclusive and the tenant has another job of this type that has not ended.

function penstock._require_kind_gates(penstock.jobs, jsonb)
  arguments: p_job penstock.jobs, p_tasks jsonb
  returns: void
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 48158e869a3cf6883a00c9cac79276b0
  comment: Rejects new tasks whose kinds, or whose job type, need a feature that the plan of the tenant lacks.

function penstock._require_lease(bigint, text, bigint)
  arguments: p_task_id bigint, p_worker_id text, p_lease bigint
  returns: void
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 948198f079b0381380c2408e6419f5cd
  comment: Rejects a report unless its lease is current, and locks the lease. For long transactions use _keep_lease.

function penstock._require_member_role(uuid, uuid, text)
  arguments: p_tenant_id uuid, p_user_id uuid, p_role text
  returns: void
  attributes: plpgsql, stable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 6701a0ba441217575f630d9f882c9aba
  comment: Raises an error unless the caller may give this user this role; null: remove the user.

function penstock._require_role(uuid, text[])
  arguments: p_tenant_id uuid, p_roles text[]
  returns: void
  attributes: plpgsql, stable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 3a6085cfab7ca53cbe1ec63785473c99
  comment: Raises an error unless the caller is the service or a member with one of these roles; of an API key also unless it has the scope that follows from the roles. For roles that may write also while the tenant is suspended.

function penstock._require_tenant(uuid)
  arguments: p_tenant_id uuid
  returns: void
  attributes: plpgsql, stable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 a327eed94d13d8ed4cf82eca8fbe8ebe
  comment: Raises an error unless there is such a tenant and it may be changed here. For functions of the service.

function penstock._required_bulk_type(text)
  arguments: p_type text
  returns: jsonb
  attributes: plpgsql, stable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 b6231e7c3531d267860725330c085838
  comment: The declaration of a bulk type; raises an error when there is none.

function penstock._required_endpoint(text, uuid)
  arguments: p_name text, p_tenant_id uuid
  returns: penstock.endpoints
  attributes: plpgsql, stable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 426ba1e41c764a6f475c81b588de2d4b
  comment: The endpoint of this name; raises an error when there is none.

function penstock._reroute(text[], integer, uuid[], timestamp with time zone)
  arguments: p_task_types text[], p_max integer, p_stopped uuid[], p_now timestamp with time zone
  returns: integer
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 3c9cd8e82450718def805f6f9257ce15
  comment: Moves up to p_max waiting tasks of these kinds from endpoints that are full, closed or failing to others that have room, within the budgets of their jobs. Returns how many.

function penstock._reroute_failed(penstock.leases[], jsonb[])
  arguments: p_failed penstock.leases[], p_errors jsonb[]
  returns: penstock.leases[]
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: enable_seqscan=off, jit=off, search_path=penstock, pg_temp
  body: sha256 2924adbb5efe13bea5d33670cb50cf7a
  comment: Counts failures of attempts whose tasks have a route. Returns the leases, with the lane of another provider for tasks that failed twice at theirs, or whose provider fails for the tenant.

function penstock._reservation_bookings(penstock.reservation[], timestamp with time zone, integer)
  arguments: p_reservations penstock.reservation[], p_at timestamp with time zone, p_sign integer
  returns: penstock.booking[]
  attributes: plpgsql, stable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 b37996526d091503ce5a822e7cfddb6a
  comment: How reservations move accounts: the tenant's, and for costs the budget of the job. Sign -1 takes them back.

function penstock._reserve_amounts(tid[], timestamp with time zone, boolean)
  arguments: p_tids tid[], p_now timestamp with time zone, p_may_wait boolean, OUT tids tid[], OUT reservations penstock.reservation[], OUT is_refused boolean, OUT unused penstock.claim_candidate[]
  returns: record
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: enable_seqscan=off, jit=off, search_path=penstock, pg_temp
  body: sha256 aaf1ef449c44191bd0588c01e63cf9ae
  comment: Reserves what picked tasks need of their tenants' quotas and their jobs' budgets, and parks those for which nothing is left. unused: tasks that were counted in a window and are not claimed.

function penstock._reserve_bytes(uuid, bigint)
  arguments: p_tenant_id uuid, p_bytes bigint
  returns: uuid
  attributes: sql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 13ed947a8a345701b32d5651f113f75d
  comment: Reserves quota for a file.

function penstock._reserve_pick(penstock.claim_pick, timestamp with time zone, boolean)
  arguments: p_pick penstock.claim_pick, p_now timestamp with time zone, p_may_wait boolean
  returns: penstock.claim_pick
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 65134bf1489ac05122859da7a920d78c
  comment: Reserves quota and budget for picked tasks and drops those that get none from the pick and from the windows.

function penstock._restore_children(uuid, bigint[])
  arguments: p_job_id uuid, p_task_ids bigint[]
  returns: penstock.phase_delta[]
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 f83892475afe14dc1cbb351f56f7e825
  comment: Restores the descendants that were canceled because these tasks had failed, and returns the changes of the phase counts.

function penstock._restore_lane(penstock.leases, integer)
  arguments: p_lease penstock.leases, p_lane_id integer
  returns: void
  attributes: sql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 44bc35227820be990795d4c375def85a
  comment: Puts a running task back into the lane with limits, for its next attempt.

function penstock._resume_moved(uuid)
  arguments: p_tenant_id uuid
  returns: integer
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 d439a068abeb7721749a99fc70f7ad58
  comment: Resumes the next jobs that the move paused; 0: none is left.

function penstock._retry_gated(uuid)
  arguments: p_tenant_id uuid
  returns: void
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 808fb48a5c1161082418040d56270638
  comment: Lets the claim look again at tasks that a gate holds back: those of a tenant, or all (null).

function penstock._retry_parked(text, integer[], timestamp with time zone)
  arguments: p_waits_for text, p_lane_ids integer[], p_at timestamp with time zone
  returns: void
  attributes: sql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 7a49eb359c771497d8e7d7af32003567
  comment: Makes the tasks of these lanes that wait for a limit or a price due at a given time.

function penstock._return_lost_tasks(penstock.leases[], timestamp with time zone)
  arguments: p_leases penstock.leases[], p_now timestamp with time zone
  returns: void
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 fe6107ec8d11c6ab98256273f06fd1f2
  comment: Requeues the tasks of workers that died, each after up to reclaim_jitter_seconds.

function penstock._return_tasks(penstock.leases[], integer)
  arguments: p_leases penstock.leases[], p_deaths integer
  returns: void
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 d3307b7284b55c867be92d6ae2990812
  comment: Requeues leased tasks at the front.

function penstock._revenue(date)
  arguments: p_month date
  returns: TABLE(tenant_id uuid, plan text, amount numeric)
  attributes: sql, stable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 a688a910ef301138b1680854121f9d52
  comment: What subscriptions of tenants bring in a month, in the base currency: the price of their plan. Trials and subscriptions that were never paid bring nothing; packs are not counted.

function penstock._revive_operation(penstock.operations)
  arguments: p_operation penstock.operations
  returns: text
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 1c36483108c56ef85bb2ffb85077d37b
  comment: Lets the task of an operation that timed out run again: wakes it, or replays its dead letter once. Returns woken, replayed, running (it runs or is queued anyway) or over.

function penstock._role_scopes(text)
  arguments: p_role text
  returns: text[]
  attributes: sql, immutable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 b88b9c2b08635aad8c69b6fe80da340c
  comment: The scopes that a key with this role can have.

function penstock._route_options(jsonb, uuid, jsonb, integer[])
  arguments: p_route jsonb, p_tenant_id uuid, p_units jsonb, p_endpoint_ids integer[]
  returns: TABLE(endpoint_id integer, provider text, is_open boolean, is_failing boolean, cost numeric, seconds double precision, place integer)
  attributes: sql, stable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 f6bf148cd962c78f1a1e562cde974a5b
  comment: The endpoints that can do a task with this route, with what decides between them. p_endpoint_ids: only these (null: all).

function penstock._row_cost(penstock.bulk_rows)
  arguments: p_row penstock.bulk_rows
  returns: numeric
  attributes: sql, stable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 3edb3da6f3d399325622efb7b2210b43
  comment: The cost of a row so far, in the base currency.
  grant to authenticated: execute
  grant to service_role: execute

function penstock._row_key(jsonb, text[])
  arguments: p_data jsonb, p_columns text[]
  returns: text
  attributes: sql, immutable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 b3814fd5bebfed032b7dcea9ced16ea6
  comment: The key of a row with several key columns: a JSON array of their texts. Null if the row has none of the columns.

function penstock._run_action_batch(uuid, integer)
  arguments: p_action_id uuid, p_batch_size integer
  returns: integer
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 6e3a4581095b786c53b154e893677dd8
  comment: Runs the next batch of an action and returns the number of subjects in it.

function penstock._run_simulation(penstock.simulated_group[], double precision[], penstock.simulated_event[], double precision)
  arguments: p_groups penstock.simulated_group[], p_state double precision[], p_events penstock.simulated_event[], p_workers double precision, OUT seconds double precision, OUT limits text[]
  returns: record
  attributes: plpgsql, immutable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 73e7d07d23bcec9c50590996737a9a70
  comment: Runs the steps of a simulation: the seconds until all tasks have ended, and what held tasks back in each step.

function penstock._scope_for(text[])
  arguments: p_roles text[]
  returns: text
  attributes: sql, immutable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 504303f7073f914025f207c25ae09e0f
  comment: The scope that an API key needs for what members with these roles may do.

function penstock._search_words(text)
  arguments: p_text text
  returns: text[]
  attributes: sql, immutable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 1ed966f16fd62b2570fd39b2e78a7637
  comment: The first 40 words of a text in lower case.

function penstock._searchable_params(jsonb)
  arguments: p_params jsonb
  returns: TABLE(path text, value text)
  attributes: sql, immutable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 d75ba0d46d27595b71655b3af7013567
  comment: The params by which a job can be found: texts, numbers and booleans of the first two levels and of lists, at most 30, without those whose name says that they are secret.

function penstock._session_is_live(penstock.sessions)
  arguments: p_session penstock.sessions
  returns: boolean
  attributes: sql, stable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 ae8f24d9c37fe50e3c01d2ececc1cfb5
  comment: Whether a session has neither expired nor been idle for too long, and its API key is still valid.

function penstock._setting(text)
  arguments: p_name text
  returns: jsonb
  attributes: sql, stable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 1ea95ebb977a613fd79929b4f36823bd
  comment: The value of a setting.

function penstock._settle(penstock.leases[], boolean, penstock.leases[])
  arguments: p_leases penstock.leases[], p_is_success boolean, p_stopped penstock.leases[]
  returns: void
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: enable_seqscan=off, jit=off, search_path=penstock, pg_temp
  body: sha256 ee99c2d6524c26769c16ac264a08b2e9
  comment: Settles the holds of attempts that have ended: a success is charged the reported usage or else its estimate, a lost or timed-out attempt the reported usage or else its estimated costs, other attempts (and stopped ones) only the reported usage. The rest of each hold is released. Called once per transaction, so that accounts are locked in their order.

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
  body: sha256 846387f479893ce03b283d08a57a0bf5
  comment: Updates the children of parents that have ended. Children of a parent that did not succeed are canceled with their descendants. Returns the changes of the phase counts, and the children without open parents, which the caller queues once it has all its locks.

function penstock._settle_late(penstock.operations, jsonb)
  arguments: p_operation penstock.operations, p_values jsonb
  returns: void
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 a856a7e568559f6824c4bd3530cc047c
  comment: Notes and charges a late success that no task uses any more.

function penstock._settle_packs(timestamp with time zone)
  arguments: p_now timestamp with time zone
  returns: void
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 5ad38f17f4648d88a1c7ec83af49e662
  comment: Takes what an ended period used beyond its limit from the packs that the tenant bought, the oldest first.

function penstock._settle_parents(uuid[], bigint[])
  arguments: p_jobs uuid[], p_parents bigint[], OUT deltas penstock.phase_delta[], OUT freed penstock.ready[]
  returns: record
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 9e80e2dfd5e04e9547e9086e3fb3e812
  comment: Updates the children of parents that have ended, job by job in the lock order: see _settle_children.

function penstock._settle_plan(uuid)
  arguments: p_tenant_id uuid
  returns: void
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 6ff305f392ac650e11e3c0e65423b73b
  comment: Sets plan and plan_until of a tenant from its subscriptions: the newest live one, else the newest. Past due and canceled ones last 30 days beyond their period.

function penstock._shared_key(text)
  arguments: p_table text
  returns: text[]
  attributes: sql, immutable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 c4b705d8fadb63ed323d2946c76f6b6a
  comment: The key of a table with facts or secrets that all cells share; null: not such a table.

function penstock._shared_rows(text)
  arguments: p_table text
  returns: jsonb
  attributes: plpgsql, stable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 70aaccfee46e0f5a2dccdf3c1fddadf9
  comment: The rows of such a table, without those of single tenants.

function penstock._short_tasks(integer[], uuid[], timestamp with time zone)
  arguments: p_lane_ids integer[], p_job_ids uuid[], p_now timestamp with time zone
  returns: TABLE(lane_id integer, waiting bigint)
  attributes: sql, stable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 6d56665d06a70a747681b2c26fdfac35
  comment: How many waiting tasks of these lanes and jobs have no quota, budget or price left, taken in order.

function penstock._shrink_bookings(penstock.holds, jsonb)
  arguments: p_hold penstock.holds, p_units jsonb
  returns: penstock.booking[]
  attributes: sql, stable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 a387a2ce49f75239076612c6fbf58b42
  comment: What to book when units are used from a hold: the reservation shrinks by them, down to 0.

function penstock._simulated_finish(uuid, penstock.forecast_group[])
  arguments: p_tenant_id uuid, p_groups penstock.forecast_group[], OUT seconds double precision, OUT bottleneck text, OUT workers double precision
  returns: record
  attributes: plpgsql, stable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 8fa1704c831723004a7e0009e14d7a5d
  comment: Simulates when groups of tasks will have ended, with the current workers, rate limits and concurrency. Null: never under the current limits. The bottleneck is the limit that held tasks back most often.

function penstock._simulated_groups(penstock.forecast_group[], text[], double precision[])
  arguments: p_groups penstock.forecast_group[], p_endpoints text[], p_opens_in double precision[]
  returns: penstock.simulated_group[]
  attributes: sql, stable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 38db0a956ed28d510bacf14bdcd415aa
  comment: The groups of a forecast with what one of their tasks needs, and the places of their figures.

function penstock._skip_completed_rows(penstock.bulks, integer)
  arguments: p_bulk penstock.bulks, p_max integer
  returns: void
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 5a47dd9de4f978c55ac04f7a7883d817
  comment: Skips the next rows that an earlier job of the same type and source has completed, until the next p_max rows are new.

function penstock._skip_stale_change()
  returns: trigger
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 665ff72afa94d6b0372b0b1191d37fc1
  comment: Trigger of synced tables: skips an update whose updated_at is older than that of the stored row.

function penstock._slot_ends(smallint, bigint)
  arguments: p_width smallint, p_slot bigint
  returns: double precision
  attributes: sql, immutable, security invoker, parallel unsafe
  body: sha256 bdfbcfe1ee7ccbbf8707ee7636aa950c
  comment: The end of the time in which the calls of a slot count, in seconds since 1970.
  grant to service_role: execute

function penstock._slow_down(penstock.endpoints, penstock.endpoint_states, jsonb, integer, double precision)
  arguments: p_endpoint penstock.endpoints, p_state penstock.endpoint_states, p_signal jsonb, p_status integer, p_retry_after double precision
  returns: void
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 56e335eb7aa6f12c35cd30601d8db80a
  comment: Closes an endpoint that rejected a call for as long as it asked for, and lowers its pace.

function penstock._some_waiting_tenants()
  returns: uuid[]
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 a8a168b9bbb14ab7c0575356c6aff3bb
  comment: Ten tenants with tasks parked for a limit: the first two, and eight from a random one on.

function penstock._spec_groups(uuid, penstock.task_spec[], numeric)
  arguments: p_tenant_id uuid, p_specs penstock.task_spec[], p_scale numeric
  returns: penstock.forecast_group[]
  attributes: sql, stable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 31c9109850248149578dc6bdf699b4ea
  comment: New tasks as groups for _forecast_groups; p_scale: how many times as many tasks the job will have.

function penstock._start_events(penstock.simulated_group, double precision)
  arguments: p_group penstock.simulated_group, p_tasks double precision
  returns: penstock.simulated_event[]
  attributes: plpgsql, immutable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 65b43add7458b0d63b73be5af2288e03
  comment: What tasks that start now give back later.

function penstock._start_job(text, jsonb, jsonb, jsonb, text[], boolean)
  arguments: p_type text, p_params jsonb, p_tasks jsonb, p_options jsonb, p_starters text[], p_is_raw boolean
  returns: uuid
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 e4c1d72a5de19a15138ae67283b2af83
  comment: Creates a job with its tasks. p_starters and p_is_raw: see _apply_policy.

function penstock._startable(penstock.simulated_group[], penstock.simulated_group, double precision, double precision[], double precision)
  arguments: p_groups penstock.simulated_group[], p_group penstock.simulated_group, p_started double precision, p_state double precision[], p_time double precision, OUT tasks double precision, OUT limited_by text
  returns: record
  attributes: plpgsql, immutable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 d044e3a23bfbf685014320cc9c7f575f
  comment: How many tasks of a group can start now, and what keeps the others back.

function penstock._starters(uuid, uuid)
  arguments: p_tenant_id uuid, p_user_id uuid
  returns: text[]
  attributes: sql, stable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 73d918653d1b3cdd98196b48baafac82
  comment: What a user counts as for kinds.starters: the role in the tenant, and key for an API key.

function penstock._stop_job(uuid, uuid, text, text)
  arguments: p_job_id uuid, p_tenant_id uuid, p_status text, p_reason text
  returns: void
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 8a00cedb581ec7725c5d3d519d9c2238
  comment: Ends a job as failed or canceled although some of its tasks have not ended.

function penstock._subscribed_plan(text[])
  arguments: p_price_ids text[]
  returns: text
  attributes: plpgsql, stable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 8350359a717c8a7a1322734fe4c566fa
  comment: The plan of a subscription with these prices: the highest, if there are several.

function penstock._sum_minutes(timestamp with time zone, timestamp with time zone)
  arguments: p_from timestamp with time zone, p_until timestamp with time zone
  returns: integer
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 64291b5a09e4cc1fc1f85b5b3e6833dc
  comment: Writes the sums of the minutes from p_from to p_until, and returns the number of rows.

function penstock._sum_tasks()
  returns: integer
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: enable_seqscan=off, jit=off, search_path=penstock, pg_temp
  body: sha256 002b005ae9417e4b580b227211a61099
  comment: Sums the tasks that ended, per tenant and minute, for minutes that are over.

function penstock._sum_units(jsonb, jsonb)
  arguments: p_one jsonb, p_other jsonb
  returns: jsonb
  attributes: sql, immutable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 3a787940553fbff9cdcb690e3ffc1adb
  comment: The sum of two sets of units, meter by meter.

function penstock._suspend_tenant(uuid, text)
  arguments: p_tenant_id uuid, p_level text
  returns: void
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 99c13d8ce75dfe46fc9032aef0392fb5
  comment: Suspends a tenant: draining, then frozen; null resumes it.

function penstock._suspended_tenants()
  returns: uuid[]
  attributes: sql, stable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 699246ca6215398f525aa53d108d255d
  comment: Tenants that move or have moved. Their schedules, notifications and operations wait.

function penstock._swap_in_best_priority(tid[])
  arguments: p_tids tid[]
  returns: tid[]
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 7cf6b4270d4c9e9aa77dff695d189e48
  comment: Where a tenant's queue holds several priorities, gives the picked slots to its best tasks and returns their rows.

function penstock._synced_tables(text)
  arguments: p_schema text
  returns: TABLE(relation regclass, schema_name text, name text, "position" integer, horizon bigint)
  attributes: sql, stable, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 2576cc10e0a99d6ac194be8946814de5
  comment: The synced tables of a schema, or of all, and the calling user's horizon of each.
  grant to authenticated: execute
  grant to service_role: execute

function penstock._take_from_limits(penstock.claim_limit[], penstock.claim_candidate, jsonb)
  arguments: p_limits penstock.claim_limit[], p_task penstock.claim_candidate, p_amounts jsonb
  returns: penstock.claim_limit[]
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 d45f54dabb299969c0b60f789d54951f
  comment: The limits after a task's reservation, for the next task of the batch.

function penstock._task_name_error(text, text, text, text)
  arguments: p_key text, p_idempotency_key text, p_provider text, p_phase text
  returns: text[]
  attributes: sql, immutable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 62daa40fa7067205fccb8692dad30f0b
  comment: What is wrong with the names of a task, {field, code, message}.

function penstock._task_number_error(integer, integer, real)
  arguments: p_priority integer, p_max_attempts integer, p_timeout_seconds real
  returns: text[]
  attributes: sql, immutable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 8e3538af1f1a754d966c27e2aa08721d
  comment: What is wrong with the numbers of a task, {field, code, message}.

function penstock._task_state(uuid, bigint)
  arguments: p_job_id uuid, p_task_id bigint
  returns: TABLE(state text, reason text, until timestamp with time zone, attempt integer, started_at timestamp with time zone, worker_id text, fraction real, message text)
  attributes: sql, stable, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 d637434419dc18159516f8119da306ba
  comment: The state of a task that has not ended, if the caller may see it. No row: the task is ready to be claimed.
  grant to authenticated: execute
  grant to service_role: execute

function penstock._tenant_condition(regclass, uuid)
  arguments: p_table regclass, p_tenant_id uuid
  returns: text
  attributes: sql, stable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 21d28fab5e27fcded9cbcb1ea18cb3e7
  comment: Which rows of a table belong to a tenant; null: none. Tables of apps: by tenant_id, else by user_id of the user whose personal tenant it is.

function penstock._tenant_fingerprint(uuid)
  arguments: p_tenant_id uuid
  returns: TABLE(name text, rows bigint, digest text)
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: DateStyle=ISO, TimeZone=UTC, bytea_output=hex, extra_float_digits=1, search_path=penstock, pg_temp
  body: sha256 868550f43bd0f5754917446d4a7331de
  comment: For each table the number of a tenant's rows and a checksum of their contents, the same in each database that holds the same rows.

function penstock._tenant_of_subject(text, text)
  arguments: p_verb text, p_subject text
  returns: uuid
  attributes: sql, stable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 f85fe11b2ff569833eae737e900b1b2f
  comment: The tenant of a job or dead letter of an action.

function penstock._tenant_option(jsonb)
  arguments: p_options jsonb
  returns: uuid
  attributes: plpgsql, stable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 f6a8261c5277bb69db7f6d5dd4c9b2e4
  comment: The tenant that options name, or null.

function penstock._tenant_tables(uuid)
  arguments: p_tenant_id uuid
  returns: TABLE(name text, columns text[], compared text[], condition text, is_merged boolean, is_kept boolean)
  attributes: sql, stable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 d3012e26877935fa93aec8313475968b
  comment: The tables with rows of a tenant, parents first. compared: the columns that are equal in both databases; is_merged: rows are added to those that are there; is_kept: they stay after a move, as the marker of where the tenant was.

function penstock._turn_of_gated_lanes(integer[], text[], integer, uuid[])
  arguments: p_lanes integer[], p_task_types text[], p_max integer, p_stopped uuid[]
  returns: text
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 ef5d79a10df7bfbfc342cd37a4868633
  comment: Whether a claim looks at gated lanes first, last or not at all (none). In random order, so that neither sort of lane starves the other.

function penstock._uncount_calls(penstock.leases[])
  arguments: p_leases penstock.leases[]
  returns: void
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 caeb83959031d027432b765fdfc4ddb9
  comment: Removes calls that were never made from the windows of their endpoints.

function penstock._units_at(jsonb, jsonb, text)
  arguments: p_units jsonb, p_route jsonb, p_provider text
  returns: jsonb
  attributes: sql, immutable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 7fb956765695947de01b74f8bf1f54de
  comment: The units of a task at another provider: without the extra units of the chosen one, with its own.

function penstock._unpark_tasks(uuid, integer)
  arguments: p_job_id uuid, p_limit integer
  returns: integer
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 2a427a44cf537895232808896f766090
  comment: Queues up to p_limit tasks that were parked when their job was paused, and returns their number.

function penstock._user_of(text)
  arguments: p_actor text
  returns: uuid
  attributes: sql, immutable, security invoker, parallel safe
  settings: search_path=pg_catalog, pg_temp
  body: sha256 baa13a7856e278ca8f157d72a98d5c07
  comment: The user that a name in the audit log stands for; null: the service.

function penstock._uuid7()
  returns: uuid
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=pg_catalog, pg_temp
  body: sha256 3d0e123086fe3698c3ef85ee07df53f1
  comment: A version 7 UUID: milliseconds, the number of this cell in 10 bits, then 64 random bits.

function penstock._validated_rows(penstock.bulks, jsonb)
  arguments: p_bulk penstock.bulks, p_rows jsonb
  returns: SETOF penstock.bulk_rows
  attributes: plpgsql, stable, security invoker, parallel unsafe
  settings: jit=off, search_path=penstock, pg_temp
  body: sha256 abbd63e99d77520977c6ffc01075053b
  comment: Rows in the form in which they are stored: with a key, or with a problem.

function penstock._visible_job(uuid, text[])
  arguments: p_job_id uuid, p_roles text[]
  returns: penstock.jobs
  attributes: plpgsql, stable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 c03b4ef4e386cea000f657bd5d58be23
  comment: The job, if the caller has one of these roles; for another tenant's job the error is the same as for a missing one.

function penstock._visible_wait(uuid)
  arguments: p_wait_id uuid
  returns: penstock.waits
  attributes: plpgsql, stable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 a98093db3075fbc2d19288cc84323d78
  comment: A wait for an answer, if the caller is a member of its tenant.

function penstock._wait_for_lease(bigint)
  arguments: p_task_id bigint
  returns: void
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 aa51544635cb0adef8d8373385264a0e
  comment: Waits until no other transaction has locked this lease, and keeps no lock.

function penstock._wait_from_options(text, jsonb)
  arguments: p_name text, p_options jsonb
  returns: penstock.waits
  attributes: plpgsql, stable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 7ef3b48a35a46140ab1e24fa5f0b28cc
  comment: Reads and checks the options of open_wait.

function penstock._waiting_count(uuid)
  arguments: p_job_id uuid
  returns: bigint
  attributes: sql, stable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 1e0eb9db34b0d0485550e86e0f87626d
  comment: How many tasks of a job wait for an answer, an event or a time, up to 100,000.

function penstock._waiting_groups()
  returns: TABLE(lane_id integer, tenant_id uuid, job_id uuid, waiting bigint)
  attributes: sql, stable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 f5b7ac03982184fa870ba7dd9aa803e7
  comment: Waiting tasks that the claim would not skip, by lane, tenant and job, of the first 10,000 of each lane: none in maintenance, none of stopped jobs or behind a gate.

function penstock._waiting_row_groups(uuid, integer)
  arguments: p_job_id uuid, p_groups integer
  returns: penstock.forecast_group[]
  attributes: sql, stable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 b4b7044e09f6b59646a8c7d74c3fdb84
  comment: The groups of tasks that the waiting rows of a bulk job will have, numbered after p_groups.

function penstock._waiting_task(penstock.jobs)
  arguments: p_job penstock.jobs
  returns: bigint
  attributes: plpgsql, stable, security invoker, parallel unsafe
  settings: enable_seqscan=off, jit=off, search_path=penstock, pg_temp
  body: sha256 3a584980c9163514bf20f203b8ce494e
  comment: The id of the waiting task of the job that will run next.

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
  body: sha256 cbc2d623008726c1db63e1d1a8154453
  comment: Adds the implied requests and tokens to units.

function penstock._with_choices(penstock.task_spec[], penstock.provider_choice[])
  arguments: p_specs penstock.task_spec[], p_choices penstock.provider_choice[]
  returns: penstock.task_spec[]
  attributes: sql, immutable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 c3822061f4e4a77a859d1f17221ab64f
  comment: Sets the provider of each task that has a choice at its place of the list, and its units there.

function penstock._with_history(penstock.forecast_group[])
  arguments: p_groups penstock.forecast_group[]
  returns: penstock.forecast_group[]
  attributes: sql, stable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 23e958b9253ceb9d5263685738005334
  comment: The groups with the durations and the actual costs of recent tasks of their kind and provider.

function penstock._without_known_tasks(uuid, penstock.task_spec[])
  arguments: p_job_id uuid, p_specs penstock.task_spec[]
  returns: penstock.task_spec[]
  attributes: plpgsql, stable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 ff49e9d943771b1e36c22ba1d806a063
  comment: Removes tasks whose idempotency key the job already has, or that repeat a key of this list.

function penstock.accept_invitation(text)
  arguments: p_secret text
  returns: uuid
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 628f70771546a921a7a82319d7d11635
  comment: Makes the calling user a member, with the role of the invitation. Returns the tenant.
  grant to authenticated: execute
  grant to service_role: execute

function penstock.acquire_api_capacity(text, text, bigint, text, uuid, double precision)
  arguments: p_provider_name text, p_api_endpoint text, p_estimated_tokens bigint DEFAULT 1000, p_key text DEFAULT NULL::text, p_tenant_id uuid DEFAULT NULL::uuid, p_ttl_seconds double precision DEFAULT 60
  returns: boolean
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 2a28c9aeb7e66663138842f6af3e9257
  comment: Reserves capacity for one call outside a claim: true, or false when there is none now. The call counts as concurrent until release_api_capacity, or for p_ttl_seconds. The same p_key reserves once.
  grant to service_role: execute

function penstock.activate_prompt(text, integer, integer)
  arguments: p_name text, p_version integer, p_expected integer DEFAULT NULL::integer
  returns: integer
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 5ea7e78fd62349a21869b34b71c05811
  comment: Makes a version of a prompt the active one; 0 is the constant in the code. Returns the version that was active. With p_expected, raises 409 prompt_moved if another version is active by now.
  grant to service_role: execute

function penstock.active_prompts()
  returns: TABLE(name text, version integer, body text, model text, max_tokens integer)
  attributes: sql, stable, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 9d058ca3b8b4f05ded54890957c0ff50
  comment: The active version of every prompt that has one.
  grant to service_role: execute

function penstock.add_allowance(uuid, text, numeric, text, date, text, text)
  arguments: p_tenant_id uuid, p_meter text, p_amount numeric, p_source text DEFAULT 'override'::text, p_expires_on date DEFAULT NULL::date, p_reason text DEFAULT NULL::text, p_key text DEFAULT NULL::text
  returns: uuid
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 1c737ca385e2e88a381e30d2ca50a023
  comment: Raises a tenant's limit of a meter: an override until p_expires_on (inclusive), or a purchase. The same p_key counts once.
  grant to service_role: execute

function penstock.add_bulk_rows(uuid, jsonb, boolean)
  arguments: p_job_id uuid, p_rows jsonb, p_load boolean DEFAULT true
  returns: jsonb
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: enable_seqscan=off, jit=off, plan_cache_mode=force_generic_plan, search_path=penstock, pg_temp
  body: sha256 8df521459a782ee0d7df1e5b487b7142
  comment: Adds rows [{"number", "data", "problem"}] to a bulk job. A row number that exists is skipped, unless its row had a problem; a row with a key that exists gets a problem. With p_load a worker starts to load them. Returns the numbers of rows added, refused (with a problem), known, and known under another key (moved).
  grant to authenticated: execute
  grant to service_role: execute

function penstock.add_cell(integer, text, real)
  arguments: p_number integer, p_name text, p_share real DEFAULT 1
  returns: void
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 9287b78b150ac407ce110be2b10f116a
  comment: Adds a cell to the directory, or changes its name and its share of provider limits.
  grant to service_role: execute

function penstock.add_prompt(text, text, jsonb)
  arguments: p_name text, p_body text, p_options jsonb DEFAULT '{}'::jsonb
  returns: integer
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 68f6e1deca42d26736c68a0fad941bae
  comment: Adds a version of a prompt and returns its number. Options: model, max_tokens, comment, activate.
  grant to service_role: execute

function penstock.add_tasks(uuid, jsonb, bigint, text, bigint)
  arguments: p_job_id uuid, p_tasks jsonb, p_task_id bigint DEFAULT NULL::bigint, p_worker_id text DEFAULT NULL::text, p_lease bigint DEFAULT NULL::bigint
  returns: bigint[]
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: enable_seqscan=off, jit=off, plan_cache_mode=force_generic_plan, search_path=penstock, pg_temp
  body: sha256 175f11124112ce5104fb53a16b5da5c6
  comment: Adds tasks to a job that has not ended and returns the ids of the new tasks, in order. Tasks whose idempotency key the job already has are skipped. A running task that adds tasks to its own job passes its id, worker and lease.
  grant to authenticated: execute
  grant to service_role: execute

function penstock.admin_get_profile(uuid)
  arguments: p_user_id uuid
  returns: jsonb
  attributes: plpgsql, stable, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 ebe614333daba3295e15918f0277cc50
  comment: A person with plan, usage, limits and overrides of their own tenant, for admins.
  grant to authenticated: execute
  grant to service_role: execute

function penstock.admin_list_profiles(text, uuid, integer)
  arguments: p_filter text DEFAULT NULL::text, p_after uuid DEFAULT NULL::uuid, p_limit integer DEFAULT 50
  returns: TABLE(user_id uuid, email text, display_name text, role text, tenant_id uuid, plan text, tier text, plan_until timestamp with time zone, created_at timestamp with time zone)
  attributes: plpgsql, stable, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 ed25504cbc1a0ab3f64cce5f7f7c3023
  comment: People with their plans, by id, for admins. p_filter is an id, the beginning of an e-mail address or a part of a name; p_after is the last id of the page before.
  grant to authenticated: execute
  grant to service_role: execute

function penstock.admin_set_override(uuid, text, numeric, date, text)
  arguments: p_user_id uuid, p_meter text, p_amount numeric, p_expires_on date, p_reason text
  returns: uuid
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 464b415e4f666d40dd62d0075eeddec4
  comment: Lets a person use more of a meter until a day (included), for admins. The reason is in the audit log of the person's tenant.
  grant to authenticated: execute
  grant to service_role: execute

function penstock.admin_set_plan(uuid, text, text)
  arguments: p_user_id uuid, p_plan text, p_reason text
  returns: void
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 86ef42ac1e2931741ef741d981f3722c
  comment: Puts the own tenant of a person on a plan, for admins. The reason is in the audit log of that tenant.
  grant to authenticated: execute
  grant to service_role: execute

function penstock.admin_spend(date)
  arguments: p_month date DEFAULT NULL::date
  returns: jsonb
  attributes: plpgsql, stable, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 3af434c689c8c8e21e43c6b335dfd95f
  comment: What spend returns, for admins.
  grant to authenticated: execute
  grant to service_role: execute

function penstock.answer_link(text, text, jsonb)
  arguments: p_token text, p_option text DEFAULT NULL::text, p_payload jsonb DEFAULT '{}'::jsonb
  returns: boolean
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 8972a59e14a88d062dc5e47abd536e7b
  comment: Answers the wait of a link, as answer_wait does, for a person without an account.
  grant to service_role: execute

function penstock.answer_wait(uuid, text, jsonb)
  arguments: p_wait_id uuid, p_option text DEFAULT NULL::text, p_payload jsonb DEFAULT '{}'::jsonb
  returns: boolean
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 0ddfc9fd572b584c9975bd8b21dbdd0c
  comment: Answers a wait with one of its options and a payload: the task runs on. The first answer counts; repeating it returns false.
  grant to authenticated: execute
  grant to service_role: execute

function penstock.audit_head()
  returns: TABLE(head text, sealed_at timestamp with time zone, lines bigint, unsealed bigint, unsealed_seconds double precision)
  attributes: sql, stable, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 467d08bab91d83ff991b9163c7dfb845
  comment: The head of the chain as number:hash, the number of sealed lines, and the number of lines (at most 100,000) that are not sealed yet. Keep the head outside of the database.
  grant to service_role: execute

function penstock.backlog()
  returns: TABLE(kind text, provider text, waiting bigint, running bigint, oldest_seconds double precision)
  attributes: sql, stable, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 5c8ab8856c2bd96f235075f31e1c21a3
  comment: Per kind and provider: waiting tasks (counted up to 100,000 per lane), running tasks, and the age of the next task. Read by autoscalers.
  grant to service_role: execute

function penstock.backpressure_delay(text, uuid, double precision)
  arguments: p_provider text, p_tenant_id uuid DEFAULT NULL::uuid, p_default_seconds double precision DEFAULT NULL::double precision
  returns: double precision
  attributes: plpgsql, stable, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 c490976d4becabdbd82e9af2a71c401b
  comment: By how many seconds new tasks of a provider are delayed now: 0 below its backpressure_threshold. A provider without a delay of its own uses p_default_seconds.
  grant to service_role: execute

function penstock.begin_artifact(bigint, text, bigint, text, text, bigint)
  arguments: p_task_id bigint, p_worker_id text, p_lease bigint DEFAULT NULL::bigint, p_name text DEFAULT ''::text, p_content_type text DEFAULT 'application/octet-stream'::text, p_bytes bigint DEFAULT NULL::bigint
  returns: TABLE(id uuid, path text, max_bytes bigint)
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 3c2bdf5b919758595b424dae1df7386e
  comment: Creates the record of a file that a running task will write, reserves p_bytes of the quota, and returns the path. The same name again, also in a retry, overwrites the same file.
  grant to service_role: execute

function penstock.begin_checkout(uuid, text)
  arguments: p_tenant_id uuid, p_price text
  returns: jsonb
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 3bda5029583a58fc1107b871d07aecae
  comment: What a checkout needs: {price_id, is_pack, customer_id, checkout_id (an older one that is still open)}. For owners and admins; rejects a second subscription.
  grant to authenticated: execute
  grant to service_role: execute

function penstock.begin_move(uuid, integer, integer)
  arguments: p_tenant_id uuid, p_from integer, p_to integer
  returns: penstock.tenant_cells
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 5adce9ece6a1959d7456b0aed856b45c
  comment: Records in the directory that a tenant moves to another cell; returns the move, also one that was begun before.
  grant to service_role: execute

function penstock.begin_operation(bigint, text, bigint, text, double precision)
  arguments: p_task_id bigint, p_worker_id text, p_lease bigint, p_object text, p_timeout_seconds double precision
  returns: jsonb
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 4b25ccaf7a489593ec45ededa2b6ed4b
  comment: The newest operation of a running task, or a new one. Commit it before you call the provider. After a failed operation a new one begins only in a later attempt.
  grant to service_role: execute

function penstock.begin_portal(uuid)
  arguments: p_tenant_id uuid
  returns: text
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 463df652b1f3a0f8f59e475073750bdb
  comment: The customer of a tenant, for a session of the billing portal. For owners and admins.
  grant to authenticated: execute
  grant to service_role: execute

function penstock.begin_request(text, bytea)
  arguments: p_key text, p_digest bytea
  returns: jsonb
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 07848fdc34ca574531dfd73581b59239
  comment: Registers a request under its idempotency key; returns null the first time, else the recorded response. Responses are kept for a day.
  grant to authenticated: execute
  grant to service_role: execute

function penstock.begin_task_upload(bigint, text, bigint, text, text, bigint)
  arguments: p_task_id bigint, p_worker_id text, p_lease bigint, p_name text, p_content_type text, p_bytes bigint
  returns: TABLE(id uuid, tenant_id uuid, incoming text)
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 6d0a5c09dfa987823843849391fa838f
  comment: Creates the record of a file of a running task, as begin_artifact does, and returns the path to upload to, for which the API signs a URL. The size must be known.
  grant to service_role: execute

function penstock.begin_upload(text, text, bigint, jsonb)
  arguments: p_name text, p_content_type text, p_bytes bigint, p_options jsonb DEFAULT '{}'::jsonb
  returns: TABLE(id uuid, tenant_id uuid, incoming text)
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 85952c3221758d1b29789b1038def7b8
  comment: Creates the record of a file that a client will upload, reserves quota for it, and returns the path to upload to. Options: tenant_id, idempotency_key. Call take_upload and finish_artifact next.
  grant to authenticated: execute
  grant to service_role: execute

function penstock.billing_status(uuid)
  arguments: p_tenant_id uuid DEFAULT NULL::uuid
  returns: jsonb
  attributes: plpgsql, stable, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 70779789c4d336686ef07c29e0e49ab3
  comment: The plan and the subscription of a tenant: {tenant_id, tier, plan, since, until, is_in_grace, has_customer, status, period_end, cancel_at_period_end}. Users see their own tenants, the service sees all.
  grant to authenticated: execute
  grant to service_role: execute

function penstock.bind_customer(uuid, text)
  arguments: p_tenant_id uuid, p_customer_id text
  returns: text
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 5bd4b9d17e106081dfce3d0475745b41
  comment: Binds a customer of Stripe to a tenant and returns the bound one: the first that is bound stays. With null it only returns it.
  grant to service_role: execute

function penstock.bind_sheet(uuid, text, jsonb)
  arguments: p_tenant_id uuid, p_account text, p_options jsonb DEFAULT '{}'::jsonb
  returns: void
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 2fcff46b5f93e4903b7268e518892187
  comment: Binds a Google account, and with the option sheet a spreadsheet, to the tenant that uses them first. Raises an error for every other tenant. Accounts in the setting shared_sheet_accounts serve all tenants. Options: sheet, label (e-mail address of the account), is_new (false: only check the sheet).
  grant to service_role: execute

function penstock.bulk_rows_to_write(uuid, integer)
  arguments: p_job_id uuid, p_max integer DEFAULT 1000
  returns: TABLE(number bigint, key text, data jsonb, state text, output jsonb, error_code text, error_message text, cost numeric, finished_at timestamp with time zone)
  attributes: sql, stable, security definer, parallel unsafe
  settings: enable_seqscan=off, jit=off, search_path=penstock, pg_temp
  body: sha256 a8eb90b842a2643c5680635410e60004
  comment: Rows that have ended and whose state is not yet written back to the source. Skipped rows are left out: the source already has their result.
  grant to service_role: execute

function penstock.cancel_job(uuid, text)
  arguments: p_job_id uuid, p_reason text DEFAULT NULL::text
  returns: text
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 7b927fb76c6917df7c875ce1a6b6bbc5
  comment: Cancels a job now: no more of its tasks are claimed, running handlers are told to stop, and their reports are rejected.
  grant to authenticated: execute
  grant to service_role: execute

function penstock.cancel_operation(uuid)
  arguments: p_operation_id uuid
  returns: text
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 fe848d05132480360c464187a2b6dce4
  comment: Cancels a live operation, here at once and at the provider soon. The attempt of its task fails. Returns the status of the operation.
  grant to authenticated: execute
  grant to service_role: execute

function penstock.cascade_deletes(regclass, regclass, text)
  arguments: p_parent regclass, p_child regclass, p_column text
  returns: void
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 c7627794b52aeea0b9e18fa6a019655b
  comment: Lets the deletion of a synced row delete its children: rows of p_child whose p_column holds its id. An app's migration calls it after make_synced.

function penstock.cell_of(uuid)
  arguments: p_id uuid
  returns: integer
  attributes: sql, stable, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 dced0e082c9477ab16d5b1023457c4f5
  comment: The number of the cell that made an id; null for an id from before ids carried one. A tenant that moved keeps its ids: ask the directory for the tenant's cell.
  grant to authenticated: execute
  grant to service_role: execute

function penstock.check_accounts()
  returns: TABLE(tenant_id uuid, job_id uuid, meter text, period date, what text, kept numeric, true_amount numeric)
  attributes: sql, stable, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 b314de007ea4c8f47bb9cb13d0f105f1
  comment: Every account that is not the sum of its usage, costs and holds. No row: all are right.
  grant to service_role: execute

function penstock.check_audit_log(bigint, text)
  arguments: p_lines bigint DEFAULT NULL::bigint, p_head text DEFAULT NULL::text
  returns: TABLE(seal bigint, problem text)
  attributes: plpgsql, stable, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 3a729c0290f650dced7609c13aaf8730
  comment: Compares the audit log with its seals, newest first and at most p_lines lines, and the chain with a head that was kept elsewhere. Returns a row for each problem; no row: all is as it was sealed.
  grant to service_role: execute

function penstock.check_gate(text, uuid, numeric)
  arguments: p_gate text, p_tenant_id uuid DEFAULT NULL::uuid, p_amount numeric DEFAULT 1
  returns: jsonb
  attributes: plpgsql, stable, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 ccd33b0c5fae49d4657b98e9bf78a4cb
  comment: Whether a tenant passes a gate, for p_amount more of its meter: {gate, allowed, mode, would_have_blocked, plan, feature, meter, limit, used}. Reserves and records nothing: a call that acts on it uses require_gate.
  grant to authenticated: execute
  grant to service_role: execute

function penstock.check_key()
  returns: void
  attributes: plpgsql, stable, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 d73ef753977c2a158cc6704f2d43c4b2
  comment: Raises an error unless the caller's id is that of a valid API key. The API calls it at the start of each transaction of a request that authenticated with a key.
  grant to authenticated: execute
  grant to service_role: execute

function penstock.check_operation(uuid, text, bigint)
  arguments: p_operation_id uuid, p_worker_id text, p_lease bigint
  returns: void
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 f740627fa48e8254aff8300a41df1089
  comment: Notes, before the provider is asked, that it is asked now: a webhook after this wakes the task again.
  grant to service_role: execute

function penstock.check_session()
  returns: void
  attributes: plpgsql, stable, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 6635bcf81607638129c09939eff9780b
  comment: Raises an error unless the caller's session is live. The API calls it at the start of each transaction.
  grant to authenticated: execute
  grant to service_role: execute

function penstock.claim_tasks(text, integer, text[], integer)
  arguments: p_worker_id text, p_max_tasks integer DEFAULT 1, p_task_types text[] DEFAULT NULL::text[], p_lease_seconds integer DEFAULT NULL::integer
  returns: TABLE(id bigint, lease bigint, job_id uuid, tenant_id uuid, kind text, key text, input jsonb, attempt integer, max_attempts integer, timeout_seconds real, lease_expires_at timestamp with time zone, provider text)
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: enable_bitmapscan=off, enable_hashjoin=off, enable_mergejoin=off, enable_seqscan=off, jit=off, plan_cache_mode=force_generic_plan, search_path=penstock, pg_temp
  body: sha256 6f29107df32bf8e70c9f3c71213e5800
  comment: Claims up to p_max_tasks tasks of these kinds (null: all kinds) for a worker: fairly among tenants, within limits, quotas and budgets. Each gets a lease that expires after p_lease_seconds without a heartbeat.
  grant to service_role: execute

function penstock.clock()
  returns: timestamp with time zone
  attributes: sql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 5a93bceb9d6919373defcb4bd4912f03
  comment: The current time. Apps read it here, so that tests can replace the clock of apps too.
  grant to authenticated: execute
  grant to service_role: execute

function penstock.close_session(bytea)
  arguments: p_digest bytea
  returns: void
  attributes: sql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 55b943d7e1894c1ff09882d1a4224d7b
  comment: Ends the session with this SHA-256 digest, to sign out.
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
  body: sha256 9da1d9b487f63bd3739b42bd705f6d16
  comment: Ends tasks as succeeded. Returns only those rejected, with lease_lost, canceled or too_large. Repeating the call is accepted.
  grant to service_role: execute

function penstock.confirm_job(uuid)
  arguments: p_job_id uuid
  returns: integer
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 83126f6f1e923efee31ee0b897384f8b
  comment: Releases the tasks that wait for confirmation and returns their number. A second call changes nothing.
  grant to authenticated: execute
  grant to service_role: execute

function penstock.cost_differences(date)
  arguments: p_month date
  returns: TABLE(provider text, booked numeric, estimated numeric, billed numeric, difference numeric)
  attributes: sql, stable, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 d031c486a129aeef3368cc37c4d78a38
  comment: For each provider, in the base currency, what the ledger has for a month (UTC), how much of that is estimated, what the provider billed, and the ledger minus the bill (null: no bill was imported).
  grant to service_role: execute

function penstock.create_api_key(text, text, jsonb)
  arguments: p_name text, p_role text, p_options jsonb DEFAULT '{}'::jsonb
  returns: TABLE(id uuid, tenant_id uuid, prefix text, secret text, scopes text[], expires_at timestamp with time zone)
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 c495934669641bb323a111f7ec7d7e0d
  comment: Creates an API key. The secret is returned once and is not stored. Options: tenant_id, expires_at, scopes (of read, start, work, admin; default: all that the role allows).
  grant to authenticated: execute
  grant to service_role: execute

function penstock.create_invitation(text, uuid, jsonb)
  arguments: p_role text, p_tenant_id uuid DEFAULT NULL::uuid, p_options jsonb DEFAULT '{}'::jsonb
  returns: TABLE(id uuid, tenant_id uuid, secret text, expires_at timestamp with time zone)
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 5b01afb0c5929bd21d68ae734ec85361
  comment: Creates an invitation to a tenant. The secret for its link is returned once and is not stored. Options: email (only this user may accept), days (until it expires; default 7).
  grant to authenticated: execute
  grant to service_role: execute

function penstock.create_key(text, text, uuid, timestamp with time zone)
  arguments: p_name text, p_role text, p_tenant_id uuid DEFAULT NULL::uuid, p_expires_at timestamp with time zone DEFAULT NULL::timestamp with time zone
  returns: TABLE(id uuid, tenant_id uuid, prefix text, secret text)
  attributes: sql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 a188a9e5fd70a188a6e09678288d9bb2
  comment: Creates an API key with all scopes of its role. The secret is returned once and is not stored.
  grant to authenticated: execute
  grant to service_role: execute

function penstock.create_tenant(text, double precision)
  arguments: p_name text, p_weight double precision DEFAULT 1
  returns: uuid
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 0ecd55251680946abccb790d67c814f1
  comment: Creates a tenant with the plan in the setting tenant_plan and returns its id. set_tenant_plan changes it.
  grant to service_role: execute

function penstock.declare_prompts(jsonb)
  arguments: p_prompts jsonb
  returns: void
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 4fa1cb92e8062b6de9901ac245c15165
  comment: Stores the constants of an app as version 0 of its prompts: [{"name", "body", "model", "max_tokens"}]. Workers call it when they start.
  grant to service_role: execute

function penstock.decline_invitation(text)
  arguments: p_secret text
  returns: void
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 7ff730705e6c9973a0482af44f85ae8d
  comment: Declines an invitation: nobody can use it any more.
  grant to authenticated: execute
  grant to service_role: execute

function penstock.define_bulk_type(text, jsonb)
  arguments: p_name text, p_values jsonb DEFAULT '{}'::jsonb
  returns: void
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 03c8d4911f2b30ad394c7b4b685c592d
  comment: Declares a job type as a bulk type: key (the columns that identify a row), batch (rows per task graph), group_by (a column whose groups stay in one batch), is_exclusive (one job of this type at a time for each tenant).
  grant to service_role: execute

function penstock.define_job_type(text, jsonb, text)
  arguments: p_name text, p_phases jsonb DEFAULT '[]'::jsonb, p_on_failure text DEFAULT 'continue'::text
  returns: void
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 f1487f501452844f181f1de37679508d
  comment: Creates or changes a job type: its phases [{"name", "weight"}] in order, and whether its jobs continue or stop when a task fails (p_on_failure: continue, stop).
  grant to service_role: execute

function penstock.define_kind(text, jsonb)
  arguments: p_name text, p_options jsonb DEFAULT '{}'::jsonb
  returns: void
  attributes: sql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 6e1a6bd1c3f781039e2d7a349801a32f
  comment: Creates or changes one kind.
  grant to service_role: execute

function penstock.define_kinds(jsonb)
  arguments: p_kinds jsonb
  returns: void
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 0f4a2d74599a4b78b96ba1c472f9c836
  comment: Creates or changes kinds: [{"name", "category", "max_attempts", "backoff_seconds", "backoff_cap_seconds", "retry_seconds", "timeout_seconds"}], and their policy: "providers", "units", "units_per_kb", "max_timeout_seconds", "attempts_limit", "min_priority", "starters", "raw_tasks". A field of the policy that is missing stays as it is; null removes it.
  grant to service_role: execute

function penstock.define_params(jsonb)
  arguments: p_params jsonb
  returns: void
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 d11b36238c83226db771422925eeca5a
  comment: Declares the params of job types and kinds, by name: {"report": {"required": [], "allowed": [] or null, "refused": {param: [JSON types]}, "title": "{param}"}}: the template of the title. Schedules are checked against them when they are set.
  grant to service_role: execute

function penstock.define_setting(text, jsonb, text)
  arguments: p_name text, p_value jsonb, p_comment text
  returns: void
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 6a7663d14d8dab29378fc9d3856c8305
  comment: Defines a setting of an app, named app.word, with its default. A value that an operator set stays, unless the type changes. An app's SQL calls it.
  grant to service_role: execute

function penstock.delete_artifact(uuid)
  arguments: p_artifact_id uuid
  returns: boolean
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 db66cd86a5868b9ff2c03cf060bbd401
  comment: Deletes a file: at once for readers and the quota, later in storage. Returns false if it was already deleted.
  grant to authenticated: execute
  grant to service_role: execute

function penstock.describe_artifact(uuid, text, bigint, text, jsonb)
  arguments: p_artifact_id uuid, p_worker_id text, p_lease bigint, p_type text DEFAULT NULL::text, p_metadata jsonb DEFAULT '{}'::jsonb
  returns: void
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 b3d00a39104bdbce228e7610a0ef0730
  comment: Says what a file of a running task is: its type, such as audio_mp3 (null: from the content type), and metadata, such as {"pages": 3, "duration": 180.5}, duration in seconds. Call it before finish_artifact.
  grant to service_role: execute

function penstock.discard_dead_letters(jsonb)
  arguments: p_filter jsonb
  returns: integer
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 3f1c117bebf6c1875dee658915813c4a
  comment: Deletes matching dead letters and returns their number. Their tasks stay failed.
  grant to authenticated: execute
  grant to service_role: execute

function penstock.do_actions(integer)
  arguments: p_bite integer DEFAULT 200
  returns: integer
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 012e83379f0c03babd5f2f77c23d63cc
  comment: Runs the next batch of an unfinished action and returns the number of subjects in it. Tenants take turns, then the users of a tenant.
  grant to service_role: execute

function penstock.drain_rates()
  returns: TABLE(kind text, provider text, per_second double precision)
  attributes: sql, stable, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 0f262715a32f3f3b22ef2335f92446e2
  comment: Per kind and provider: tasks per second that ended (succeeded or failed) in the last minute, measured. Above 5,000 tasks per minute from a sample.
  grant to service_role: execute

function penstock.drain_worker(text)
  arguments: p_worker_id text
  returns: void
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 3e776d2f587a2ff6472a27bf483374b7
  comment: Asks a worker to claim nothing more, finish its running tasks and stop. It sees this at its next heartbeat.
  grant to service_role: execute

function penstock.drop_artifact(uuid, text, bigint)
  arguments: p_artifact_id uuid, p_worker_id text, p_lease bigint
  returns: void
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 2cbc2c7e7d8a4a155edd84f6ac084783
  comment: Deletes a file whose writing failed; a worker removes it from storage later.
  grant to service_role: execute

function penstock.due_artifacts(integer)
  arguments: p_limit integer DEFAULT 100
  returns: TABLE(id uuid, paths text[])
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 8bafcb93619eae6b180c39061826400d
  comment: Files to remove from storage: deleted files, files abandoned for an hour, and uploads older than retention_days that no app keeps. Locks the rows: remove the files and call forget_artifacts in the same transaction.
  grant to service_role: execute

function penstock.due_schedules()
  returns: TABLE(id uuid, tenant_id uuid, name text, cron text, timezone text, job_type text, params jsonb, has_tasks boolean, missed text, due_at timestamp with time zone, now_at timestamp with time zone)
  attributes: sql, volatile, security definer, parallel unsafe
  settings: enable_seqscan=off, jit=off, search_path=penstock, pg_temp
  body: sha256 23e82bd7cb36ffe248b51be61efd184a
  comment: Up to 100 schedules that are due, with the database's time.
  grant to service_role: execute

function penstock.end_fixed_cost(text, date)
  arguments: p_name text, p_day date DEFAULT NULL::date
  returns: void
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 f18d0b9c0ea57cb861b616d6f2864a97
  comment: Ends a fixed cost with this day (default: today).
  grant to service_role: execute

function penstock.end_notification(uuid, integer, text, text)
  arguments: p_id uuid, p_attempt integer, p_outcome text, p_error text DEFAULT NULL::text
  returns: boolean
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 75ceb437e65d5a48b55be464ff97694e
  comment: Reports the outcome of sending: sent, retry (waits 1 minute to 6 hours, gives up after 24 hours), failed, or gone (also disables the target).
  grant to service_role: execute

function penstock.end_other_sessions()
  returns: integer
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 a1e6b45613da2bb83ab7ebb7b22ac847
  comment: Ends all sessions of the caller except the current one; returns their number.
  grant to authenticated: execute
  grant to service_role: execute

function penstock.end_request(text, integer, jsonb)
  arguments: p_key text, p_status integer, p_answer jsonb
  returns: void
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 efde7b796816b1e71ac0f3d309ef3937
  comment: Records the response to a request, in the transaction that called begin_request.
  grant to authenticated: execute
  grant to service_role: execute

function penstock.end_session(uuid)
  arguments: p_session_id uuid
  returns: void
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 4b43de6d829fc1454b743fe7c250ee58
  comment: Ends one of the caller's sessions; for the service, any.
  grant to authenticated: execute
  grant to service_role: execute

function penstock.end_webhook(text, text, text, uuid, text)
  arguments: p_source text, p_key text, p_outcome text, p_tenant_id uuid DEFAULT NULL::uuid, p_error text DEFAULT NULL::text
  returns: void
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 29113e22b46ffad4696eba8f7ac94e6b
  comment: Notes what became of a webhook: applied, stale or ignored end it; unmatched and failed are tried again after 1 minute, 10 minutes, 1 hour and 6 hours.
  grant to service_role: execute

function penstock.ensure_sheets_account(text)
  arguments: p_account text
  returns: void
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 476defb3a0ae75877e7ef99d76969e2a
  comment: Creates the rate limits of Google Sheets if they are missing: 300 reads and 300 writes per minute for the project, 60 and 60 for the account.
  grant to service_role: execute

function penstock.ensure_tenant(text)
  arguments: p_name text
  returns: uuid
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 0b442135602c9ee8947518edf453c483
  comment: The oldest tenant with this name. Creates it if there is none, with the plan unlimited: for the tenants of the operator's own apps.
  grant to service_role: execute

function penstock.erase_user(uuid)
  arguments: p_user_id uuid
  returns: jsonb
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 71e2b40e9e115c031c2e2b6d0c5836a8
  comment: Erases a user: memberships, API keys, sessions, invitations, the profile, and the personal tenant with its jobs, rows and files. Ledger and audit log keep ids only. Upkeep removes job rows and files within minutes. Returns the teams that the user left, and those that have no owner now.
  grant to service_role: execute

function penstock.explain_job(uuid)
  arguments: p_job_id uuid
  returns: jsonb
  attributes: plpgsql, stable, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 4a4ea675c7016e5555095897f8a5c9f9
  comment: The state of a job and what happens next, as text, with the id of the task that will run next.
  grant to authenticated: execute
  grant to service_role: execute

function penstock.explain_task(uuid, bigint)
  arguments: p_job_id uuid, p_task_id bigint
  returns: jsonb
  attributes: plpgsql, stable, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 c5f93c0c363b40ae5f1479bc8f700847
  comment: Why a task is not running: what it waits for, about how long, and its queue position; as fields and as one line of text.
  grant to authenticated: execute
  grant to service_role: execute

function penstock.fail_schedule(uuid, timestamp with time zone, text, boolean)
  arguments: p_schedule_id uuid, p_due_at timestamp with time zone, p_error text, p_is_temporary boolean DEFAULT false
  returns: boolean
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 573d6762eb874c3cb73ee9fcd6c4d473
  comment: Reports that a due schedule could not start its job. It is tried again after 1, 2, 4, … minutes, and turned off after 8 failures in a row: then this returns true. A temporary failure, such as a used-up quota, never turns it off. set_schedule starts over.
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
  body: sha256 d464b0b267caeecbc052ccf0ef150a35
  comment: Ends attempts as failed: each task is retried after a backoff, or moved to the dead letters. Errors are {"code", "message", "details", "retry_after_seconds", "permanent"}. Returns only those rejected.
  grant to service_role: execute

function penstock.find_jobs(text, text[])
  arguments: p_field text, p_values text[]
  returns: SETOF uuid
  attributes: plpgsql, stable, security definer, parallel unsafe
  settings: enable_seqscan=off, jit=off, search_path=penstock, pg_temp
  body: sha256 0469b54480e2da04c65daa05b5772eb5
  comment: The newest jobs, of the tenants that the caller may read, that have one of these values as a tag (p_field tag), as a param (params.NAME) or with all its words in the title or in params (text). Reads at most 10,000 terms, or 100 per tenant, from the index of each tenant.
  grant to authenticated: execute
  grant to service_role: execute

function penstock.finish_artifact(uuid, text, bigint, bigint, text)
  arguments: p_artifact_id uuid, p_worker_id text, p_lease bigint, p_bytes bigint, p_sha256 text
  returns: void
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 a26dae0fa872a35687aa1bcd4b154426
  comment: Marks a file as stored, with its size, which counts as usage from now on, and its SHA-256 digest. Fails with 410 if the lease is lost, and with 429 if the quota is exceeded.
  grant to service_role: execute

function penstock.fire_schedule(uuid, timestamp with time zone, timestamp with time zone, timestamp with time zone[], jsonb)
  arguments: p_schedule_id uuid, p_due_at timestamp with time zone, p_next_run_at timestamp with time zone, p_starts timestamp with time zone[], p_tasks jsonb DEFAULT NULL::jsonb
  returns: uuid[]
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 8ca0afd5eab9466500dfeb7b99103ed3
  comment: Starts the jobs of a due schedule and moves it to its next run. A second call for the same run starts nothing.
  grant to service_role: execute

function penstock.forecast(uuid)
  arguments: p_job_id uuid
  returns: jsonb
  attributes: plpgsql, stable, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 1ba98c36e1d4f446777a82e2490ba7d8
  comment: Forecasts the cost and the finish of the remaining tasks of a job, and of the rows of a bulk job that have no tasks yet.
  grant to authenticated: execute
  grant to service_role: execute

function penstock.forecast_job(text, jsonb, jsonb)
  arguments: p_type text, p_tasks jsonb, p_options jsonb DEFAULT '{}'::jsonb
  returns: jsonb
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 306eb63c47ee058e9ab478d3843b6648
  comment: Forecasts what start_job with the same arguments would cost (low, expected, high), which quotas it needs, and when it would end, from the current limits, backlog and history. The option times scales the estimate: the tasks are then a sample of a job with that many times as many tasks. Changes nothing.
  grant to authenticated: execute
  grant to service_role: execute

function penstock.forget_artifacts(uuid[])
  arguments: p_ids uuid[]
  returns: integer
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 5c34b16fcd4de083af2fbda4db420c94
  comment: Deletes the records of files that were removed from storage.
  grant to service_role: execute

function penstock.forget_customer(text)
  arguments: p_customer_id text
  returns: uuid
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 fb4f092b498a7d20744fe88627c85b01
  comment: Unbinds a customer that was deleted at Stripe, so that the next checkout makes a new one. Its subscriptions end by their own events.
  grant to service_role: execute

function penstock.get_bulk(uuid)
  arguments: p_job_id uuid
  returns: jsonb
  attributes: plpgsql, stable, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 caf34498f7d9312023d690b19de14351
  comment: A bulk job: the job (as get_job returns it), its source, the numbers of rows (total, loaded, refused, skipped, waiting), what its tasks wait for, problems and failures by cause, and the numbers of changes applied and undone.
  grant to authenticated: execute
  grant to service_role: execute

function penstock.get_bulk_rows(bigint, text, bigint, uuid, bigint[])
  arguments: p_task_id bigint, p_worker_id text, p_lease bigint, p_job_id uuid, p_numbers bigint[]
  returns: TABLE(number bigint, key text, data jsonb)
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: enable_seqscan=off, jit=off, search_path=penstock, pg_temp
  body: sha256 7b994c21e75307e53744d21c80cf3ce9
  comment: Rows of a bulk job by number, for a running task of the same tenant.
  grant to service_role: execute

function penstock.get_invitation(text)
  arguments: p_secret text
  returns: TABLE(tenant_id uuid, tenant text, role text, expires_at timestamp with time zone)
  attributes: sql, stable, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 114770acee8549853a145f7b2c5d5dcd
  comment: The tenant and role of a pending invitation; no row if it does not exist, has expired or was used.
  grant to authenticated: execute
  grant to service_role: execute

function penstock.get_job(uuid)
  arguments: p_job_id uuid
  returns: jsonb
  attributes: plpgsql, stable, security definer, parallel unsafe
  settings: enable_seqscan=off, jit=off, search_path=penstock, pg_temp
  body: sha256 d51f23878e183487e3b80ea8101fa7cf
  comment: A job with its progress (percent, phase, done, total, message, eta_seconds, phases).
  grant to authenticated: execute
  grant to service_role: execute

function penstock.get_job_detail(uuid, integer, integer)
  arguments: p_job_id uuid, p_max_artifacts integer DEFAULT 200, p_max_result_bytes integer DEFAULT 65536
  returns: jsonb
  attributes: plpgsql, stable, security definer, parallel unsafe
  settings: enable_seqscan=off, jit=off, search_path=penstock, pg_temp
  body: sha256 9af048a7d3ad29e1c63532c982daa0db
  comment: A job as get_job returns it, with its first files (artifacts, at most 1000) and its result as job_result returns it.
  grant to authenticated: execute
  grant to service_role: execute

function penstock.get_provider_key(text, uuid)
  arguments: p_provider text, p_tenant_id uuid DEFAULT NULL::uuid
  returns: TABLE(provider text, tenant_id uuid, host text, sealed bytea, wrapped_key bytea, master_id text)
  attributes: sql, stable, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 6d3ad2062c1b819b7178f7c5b110d8ea
  comment: The encrypted key of a provider: the tenant's own, or the one for all tenants. For workers.
  grant to service_role: execute

function penstock.get_setting(text)
  arguments: p_name text
  returns: jsonb
  attributes: plpgsql, stable, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 f7b15145dbe671a9fb2d9be67cc0eaf7
  comment: The value of a setting, of an app or of Penstock itself. Raises an error for an unknown name.
  grant to service_role: execute

function penstock.get_steps(uuid, bigint)
  arguments: p_job_id uuid, p_task_id bigint
  returns: TABLE(name text, output jsonb)
  attributes: sql, stable, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 d476094351c6e7cd37bb0d8175be968d
  comment: The stored steps of a task.
  grant to service_role: execute

function penstock.get_usage_status(uuid)
  arguments: p_tenant_id uuid DEFAULT NULL::uuid
  returns: jsonb
  attributes: plpgsql, stable, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 b7d9223a1b71d1f06e6ce6c4d0b15add
  comment: A tenant's plan and, for each meter, what is used, reserved and left in the current period. Users see their own tenants, the service sees all.
  grant to authenticated: execute
  grant to service_role: execute

function penstock.get_wait_link(text)
  arguments: p_token text
  returns: jsonb
  attributes: plpgsql, stable, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 07a27494e8d3218867dd528b8d4ea7bd
  comment: What a link asks: the message, the options, the fields and the status of its wait.
  grant to service_role: execute

function penstock.hand_back_tasks(text, bigint[], bigint[])
  arguments: p_worker_id text, p_task_ids bigint[], p_leases bigint[]
  returns: TABLE(id bigint, code text)
  attributes: sql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 853f62297cfa18281282bbd50773e3c6
  comment: Requeues claimed tasks whose handler never ran, without using up an attempt: the provider calls admitted for them do not count. Returns only those rejected.
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
  body: sha256 4efde35de816a093f3ef2aa3fcd2ab9d
  comment: Extends a worker's leases [{"id", "lease"}] and returns those that are gone, with lease_lost or canceled.
  grant to service_role: execute

function penstock.import_bill(text, jsonb)
  arguments: p_provider text, p_lines jsonb
  returns: integer
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 2ded0af54efb63bab547de2e072eab3b
  comment: Stores lines of a provider's usage export: [{"day", "item", "amount", "currency"}]. Lines with the same day, item and currency are added up. An import replaces earlier ones for the days that it has lines for. Returns the number of lines stored.
  grant to service_role: execute

function penstock.is_admin()
  returns: boolean
  attributes: sql, stable, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 2315413a1d95d4e62019476edfa76dd3
  comment: Whether the caller is an admin of the installation: a person, not a key and not the service.
  grant to authenticated: execute
  grant to service_role: execute

function penstock.is_member(uuid, text[])
  arguments: p_tenant_id uuid, p_roles text[] DEFAULT '{owner,admin,member,viewer}'::text[]
  returns: boolean
  attributes: plpgsql, stable, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 8cb3b0b0c60f2d086c035f678de21c07
  comment: Whether the caller is the service, or a member of the tenant with one of these roles. For roles that may write it raises an error while the tenant is suspended.
  grant to authenticated: execute
  grant to service_role: execute

function penstock.is_service()
  returns: boolean
  attributes: sql, stable, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 605c6a20363e6a312d1a661a265e8dd7
  comment: Whether the caller is the service (a worker or an operator) rather than a user.
  grant to authenticated: execute
  grant to service_role: execute

function penstock.job_graph(uuid, bigint, integer)
  arguments: p_job_id uuid, p_after bigint DEFAULT 0, p_limit integer DEFAULT 500
  returns: TABLE(id bigint, kind text, key text, phase text, status text, waiting_for text, waiting_until timestamp with time zone, attempt integer, fraction real, message text, created_at timestamp with time zone, ready_at timestamp with time zone, started_at timestamp with time zone, finished_at timestamp with time zone, error_code text, parents bigint[])
  attributes: plpgsql, stable, security definer, parallel unsafe
  settings: jit=off, search_path=penstock, pg_temp
  body: sha256 0d81a73a9856b1ca2b28ba4906bb1f61
  comment: The tasks of a job with their parents and the time at which each became ready, for a graph, a grid or a timeline.
  grant to authenticated: execute
  grant to service_role: execute

function penstock.job_result(uuid, integer)
  arguments: p_job_id uuid, p_max_bytes integer DEFAULT NULL::integer
  returns: jsonb
  attributes: plpgsql, stable, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 c7cf239d45fd2a33c39b0caf70e2ff0e
  comment: The result of a completed job: what the body of its job type returned, with the outputs of its tasks, or else the output of its last task. Null while the job has not completed, for a bulk job, whose rows have results, and for a result that is larger than p_max_bytes.
  grant to authenticated: execute
  grant to service_role: execute

function penstock.keep_artifact(uuid, text, timestamp with time zone)
  arguments: p_artifact_id uuid, p_subject text, p_until timestamp with time zone DEFAULT 'infinity'::timestamp with time zone
  returns: void
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 312c63c942336f49a104e2a8c4579fd9
  comment: Keeps a file beyond retention_days and beyond its job, for a subject of an app such as slides.slide:42: until a time, or without end. Call unkeep_artifact when the subject is deleted.
  grant to service_role: execute

function penstock.lane_states(uuid)
  arguments: p_tenant_id uuid DEFAULT NULL::uuid
  returns: TABLE(lane_id integer, kind text, provider text, tenant_id uuid, waiting bigint, running bigint, oldest_seconds double precision, workers bigint, state text, reason text, opens_at timestamp with time zone)
  attributes: plpgsql, stable, security definer, parallel unsafe
  settings: jit=off, search_path=penstock, pg_temp
  body: sha256 88152d08c2b6ad8a58e60a2f2d73510d
  comment: Lanes, all of them or those in which a tenant has tasks: waiting and running tasks, the age of the next task, live workers for the kind, and whether the provider accepts work. Counts stop at 100,001.
  grant to authenticated: execute
  grant to service_role: execute

function penstock.lead_upkeep(text, boolean)
  arguments: p_worker_id text, p_is_able boolean DEFAULT true
  returns: boolean
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 ddaea1a4c9c2bd630c29eb27e7f39768
  comment: Whether this worker does the periodic upkeep for all. It leads for 5 seconds and asks again before they end; one that is not able to, such as one that stops, gives the lead up. Two leaders do no harm: upkeep may run several times at once.
  grant to service_role: execute

function penstock.leave_tenant(uuid, boolean)
  arguments: p_tenant_id uuid, p_block boolean DEFAULT false
  returns: void
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 960473ef15c349befa504a2f1a9ecfd4
  comment: Ends the caller's membership; with p_block the tenant cannot make the caller a member again, except by an invitation that the caller accepts.
  grant to authenticated: execute
  grant to service_role: execute

function penstock.link_artifacts(uuid, uuid[])
  arguments: p_job_id uuid, p_artifact_ids uuid[]
  returns: TABLE(id uuid, path text)
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 9d3e6e73f3eb1edb14ac7d530bff15c1
  comment: Gives files of a bulk job the kind of link that the job chose (source.link: public, signed or login), and returns the paths of their links.
  grant to service_role: execute

function penstock.list_alerts(integer, integer)
  arguments: p_days integer DEFAULT 7, p_limit integer DEFAULT 50
  returns: TABLE(kind text, subject text, tenant_id uuid, count bigint, first_at timestamp with time zone, last_at timestamp with time zone, details jsonb)
  attributes: sql, stable, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 07cfdc081e31aa25c3ca185c988cb6c6
  comment: The alerts of the last days, newest first: one line per kind, subject and day.
  grant to service_role: execute

function penstock.list_api_keys(uuid)
  arguments: p_tenant_id uuid DEFAULT NULL::uuid
  returns: TABLE(id uuid, tenant_id uuid, name text, prefix text, role text, created_by text, created_at timestamp with time zone, expires_at timestamp with time zone, last_used_at timestamp with time zone, revoked_at timestamp with time zone, scopes text[], parent_id uuid, owner_id uuid)
  attributes: plpgsql, stable, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 1035bd0aa843a653c1530fb33c2f1a16
  comment: Lists the API keys of a tenant with their scopes; for the service without p_tenant_id, worker and service keys.
  grant to authenticated: execute
  grant to service_role: execute

function penstock.list_ended_sessions(uuid[])
  arguments: p_session_ids uuid[]
  returns: SETOF uuid
  attributes: sql, stable, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 b52082a5be440b324bbbd1356ac950c6
  comment: Those of the sessions that have ended.
  grant to service_role: execute

function penstock.list_invitations(uuid)
  arguments: p_tenant_id uuid DEFAULT NULL::uuid
  returns: TABLE(id uuid, tenant_id uuid, role text, email text, created_by text, created_at timestamp with time zone, expires_at timestamp with time zone, status text, answered_by uuid, answered_at timestamp with time zone)
  attributes: plpgsql, stable, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 bfae695d061936954d61b51c0c20dcc8
  comment: Lists the invitations of a tenant, newest first.
  grant to authenticated: execute
  grant to service_role: execute

function penstock.list_keys(uuid)
  arguments: p_tenant_id uuid DEFAULT NULL::uuid
  returns: TABLE(id uuid, tenant_id uuid, name text, prefix text, role text, created_by text, created_at timestamp with time zone, expires_at timestamp with time zone, last_used_at timestamp with time zone, revoked_at timestamp with time zone)
  attributes: sql, stable, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 73b11fc38a7bbbb2cac27b335181bb41
  comment: Lists the API keys of a tenant; for the service without p_tenant_id, worker and service keys.
  grant to authenticated: execute
  grant to service_role: execute

function penstock.list_provider_keys()
  returns: TABLE(provider text, tenant_id uuid, host text, master_id text, created_by text, created_at timestamp with time zone)
  attributes: sql, stable, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 fb461b4c79cd37586afd405f10d1b2a8
  comment: The keys of providers, without the keys.
  grant to service_role: execute

function penstock.list_sessions(uuid)
  arguments: p_subject uuid DEFAULT NULL::uuid
  returns: TABLE(id uuid, subject uuid, role text, user_agent text, created_at timestamp with time zone, last_seen_at timestamp with time zone, expires_at timestamp with time zone, is_current boolean)
  attributes: sql, stable, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 6f70b10ab04dd1abba8387deab16d5f2
  comment: Lists the caller's live sessions; for the service those of a subject, or all.
  grant to authenticated: execute
  grant to service_role: execute

function penstock.list_strangers(uuid[], uuid[])
  arguments: p_user_ids uuid[], p_tenant_ids uuid[]
  returns: TABLE(place integer)
  attributes: sql, stable, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 6798dc2c6340ece898c2681f53391d74
  comment: The positions (from 1) of users and keys that are not members of the tenant at the same position; where the tenant is null, of keys that are expired or revoked.
  grant to service_role: execute

function penstock.lock_owner(uuid)
  arguments: p_user_id uuid
  returns: void
  attributes: sql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 6a9d2f987d03d5eca167da0a41efd304
  comment: Waits until no other transaction changes synced rows of this user. Held until the commit.
  grant to service_role: execute

function penstock.make_synced(regclass, integer)
  arguments: p_table regclass, p_position integer
  returns: void
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 d3995668f85f4205322e6f56a831242e
  comment: Makes a table of an app a synced table. An app's migration calls it, as the owner of the table. Tables with a lower position are pushed first: parents before children.

function penstock.mark_bulk_rows(bigint, text, bigint, jsonb, bigint)
  arguments: p_task_id bigint, p_worker_id text, p_lease bigint, p_rows jsonb, p_next_id bigint DEFAULT NULL::bigint
  returns: void
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: enable_seqscan=off, jit=off, search_path=penstock, pg_temp
  body: sha256 b9e0d66973c70a653a23be77f1d96a99
  comment: Marks rows of take_bulk_rows, in the same transaction, as loaded ({"number", "first_id", "result_id", "last_id", "batch_size"}) or refused ({"number", "problem"}). p_next_id is the task that loads the next rows.
  grant to service_role: execute

function penstock.mark_rows_written(uuid, bigint[], text[])
  arguments: p_job_id uuid, p_numbers bigint[], p_states text[]
  returns: integer
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: enable_seqscan=off, jit=off, search_path=penstock, pg_temp
  body: sha256 2e3c5566a7f28d8ee2b1df010a91bc57
  comment: Records the states of rows that were written back to the source.
  grant to service_role: execute

function penstock.metric_figures()
  returns: TABLE(name text, label text, value double precision)
  attributes: sql, stable, security definer, parallel unsafe
  settings: jit=off, search_path=penstock, pg_temp
  body: sha256 7291b09bc071f10e6e537e2c0249b947
  comment: Figures for Prometheus, (name, label, value): tasks that ended in the last five minutes and their p95 wait by plan, workers by state, slots of running workers, expired leases and how long the oldest is overdue, the costs of today, and unfinished jobs that have used 90 % of their budget.
  grant to service_role: execute

function penstock.my_admin_tenants()
  returns: SETOF uuid
  attributes: sql, stable, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 14540dd9d4dad75c5004bef0726c17f5
  comment: The tenants that the calling user is an owner or admin of. Policies for stack traces and for addresses of notifications use it.
  grant to authenticated: execute
  grant to service_role: execute

function penstock.my_tenant()
  returns: uuid
  attributes: sql, stable, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 f2f172e09be4756050a3af6d8df4d9fd
  comment: The tenant that the calling user works in unless a call names another one; null for the service.
  grant to authenticated: execute
  grant to service_role: execute

function penstock.my_tenants()
  returns: SETOF uuid
  attributes: sql, stable, security definer, parallel unsafe
  settings: enable_seqscan=off, jit=off, search_path=penstock, pg_temp
  body: sha256 b627e7d74bbb03ebdcb0abc5ae445507
  comment: The tenants whose rows the calling user may read. Every row-level policy uses it.
  grant to authenticated: execute
  grant to service_role: execute

function penstock.next_opening(text[])
  arguments: p_task_types text[] DEFAULT NULL::text[]
  returns: double precision
  attributes: plpgsql, stable, security definer, parallel unsafe
  settings: enable_seqscan=off, jit=off, plan_cache_mode=force_generic_plan, search_path=penstock, pg_temp
  body: sha256 59536d58d1820a0f71f7b2d5365db2e2
  comment: In how many seconds a claim that found nothing may find something without being notified: an endpoint opens, or a lane is read whole. Null: unknown.
  grant to service_role: execute

function penstock.next_webhook(text[])
  arguments: p_sources text[], OUT source text, OUT key text, OUT type text, OUT payload jsonb
  returns: record
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 807a79509afaf1133c3e5a8947fe9cc9
  comment: Locks the next webhook of these sources that is to be tried again. All null: there is none.
  grant to service_role: execute

function penstock.note_checkout(uuid, text, timestamp with time zone)
  arguments: p_tenant_id uuid, p_checkout_id text, p_expires_at timestamp with time zone
  returns: void
  attributes: sql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 001e4491608cc10701055e18b80de42f
  comment: Notes the open checkout session of a tenant, so that the next one can expire it.
  grant to service_role: execute

function penstock.note_failed_payment(text, text)
  arguments: p_customer_id text, p_invoice_id text
  returns: uuid
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 ed4abbbd1074f7ff7791a2d1bd5ce1ff
  comment: Alerts the tenant of a customer at Stripe that the payment of an invoice failed, once per invoice. Returns the tenant, or null if the customer is not known.
  grant to service_role: execute

function penstock.notify(uuid, text, text, jsonb)
  arguments: p_tenant_id uuid, p_subject text, p_body text, p_options jsonb DEFAULT '{}'::jsonb
  returns: integer
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 4ee3144bc37d9ff1d3319a21e5860eca
  comment: Queues a message for each target of the tenant that wants alerts, and returns their number. Options: key (the same key queues once per target), details.
  grant to service_role: execute

function penstock.on_new_user()
  returns: trigger
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 eb731d38a47210fa36b4b2e0a50fda33
  comment: Creates a profile and a personal tenant for a new user. The name comes from full_name of the sign-up, otherwise from the e-mail address.

function penstock.open_bulk(text, jsonb, jsonb, jsonb)
  arguments: p_type text, p_source jsonb DEFAULT '{}'::jsonb, p_options jsonb DEFAULT '{}'::jsonb, p_params jsonb DEFAULT '{}'::jsonb
  returns: TABLE(job_id uuid, is_new boolean)
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 61d2ac334087227ff16a0a91e070728b
  comment: Creates a bulk job without rows, or finds the job with the same idempotency key. add_bulk_rows adds the rows, or a worker if the source is a Google Sheet. p_source describes where the rows come from: {"type", "id" or "name", …}. Options: those of open_job, and preview, skip_done, key.
  grant to authenticated: execute
  grant to service_role: execute

function penstock.open_job(text, jsonb, jsonb)
  arguments: p_type text, p_params jsonb DEFAULT '{}'::jsonb, p_options jsonb DEFAULT '{}'::jsonb
  returns: TABLE(job_id uuid, is_new boolean)
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: enable_seqscan=off, jit=off, search_path=penstock, pg_temp
  body: sha256 aa81ae080ba79014892d42bd0b8c28d0
  comment: Creates a job without tasks, or finds the job with the same idempotency key; add_tasks adds its tasks. Options: tenant_id, idempotency_key, priority (0 to 10, lower first), run_at or delay_seconds, on_failure (continue, stop), paused, digest, budget (in the base currency), on_limit (hold, refuse, pause), stop_after (a number of failures, or a percentage such as 5%), result (JSON in which {"$from": key} stands for the output of a task; default: the output of the last task), tags (words to find the job by), traceparent (the W3C trace context of the caller).
  grant to authenticated: execute
  grant to service_role: execute

function penstock.open_link(uuid, text)
  arguments: p_artifact_id uuid, p_token text
  returns: TABLE(tenant_id uuid, path text, name text, content_type text)
  attributes: plpgsql, stable, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 d0fb8d8cd174216dc8a8d8f2f30c49f9
  comment: The file of a link with its token. Refuses with 404 (wrong token), 410 (the file or the link is gone) or 401 (members only).
  grant to service_role: execute

function penstock.open_provider(text, uuid)
  arguments: p_name text, p_tenant_id uuid DEFAULT NULL::uuid
  returns: void
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 af366ba4a96260134ff7d094556e2c1f
  comment: Opens an endpoint that closed after a provider's answer, once its account is topped up or the problem is solved. Forgets a lower limit that the provider reported.
  grant to service_role: execute

function penstock.open_session(text, uuid, jsonb)
  arguments: p_role text, p_subject uuid, p_options jsonb DEFAULT '{}'::jsonb
  returns: TABLE(id uuid, secret text, expires_at timestamp with time zone)
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 c4008ea7d393c34743b1bb9649ac25ed
  comment: Opens a dashboard session for a user, an API key or (null) the holder of a service token. The secret is returned once and is not stored. Options: user_agent, expires_at (no later than this).
  grant to service_role: execute

function penstock.open_wait(bigint, text, bigint, text, jsonb)
  arguments: p_task_id bigint, p_worker_id text, p_lease bigint, p_name text, p_options jsonb DEFAULT '{}'::jsonb
  returns: jsonb
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 eca6cfd71fcc84105bd35df0d61d6f06
  comment: Opens a wait of a running task, or finds the one with this name, and returns its outcome (null: open). Options: kind (answer, sleep), seconds (the timeout, or how long to sleep), options, fields, roles, default, message, link. The timeout runs from the first call.
  grant to service_role: execute

function penstock.orphaned_artifacts(text[])
  arguments: p_paths text[]
  returns: SETOF text
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 fd114a62adaa72835862bee2b847e403
  comment: Up to 500 of these paths that belong to a known tenant and have no record. Locks them: remove the files in the same transaction.
  grant to service_role: execute

function penstock.overview(uuid)
  arguments: p_tenant_id uuid DEFAULT NULL::uuid
  returns: jsonb
  attributes: plpgsql, stable, security definer, parallel unsafe
  settings: jit=off, search_path=penstock, pg_temp
  body: sha256 c679f4de38496bd3c06a43bd06ec9e76
  comment: The current state of a tenant or (for the service) of all tenants: waiting, running and failed tasks, costs of today, problems, and the causes of failures.
  grant to authenticated: execute
  grant to service_role: execute

function penstock.park_operation(uuid, text, bigint, double precision)
  arguments: p_operation_id uuid, p_worker_id text, p_lease bigint, p_seconds double precision
  returns: text
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 f1c3fa53c73e12bb676b8640c66b82e2
  comment: Ends the lease of a task that waits for its operation, at most p_seconds: the task is parked, or queued if a webhook has come since the provider was asked. Its reservation and its place move to the operation.
  grant to service_role: execute

function penstock.park_task(bigint, text, bigint, uuid)
  arguments: p_task_id bigint, p_worker_id text, p_lease bigint, p_wait_id uuid
  returns: text
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 803e1d72100f0aa0d2f2646fd5e5e5d4
  comment: Ends the lease of a task that waits, without using up an attempt: the task is parked until the wait ends, or queued if it has ended by now. Returns parked, queued, lease_lost or canceled.
  grant to service_role: execute

function penstock.pause_job(uuid, text)
  arguments: p_job_id uuid, p_reason text DEFAULT NULL::text
  returns: text
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 44e3247969caf701ef6e71f40a02a487
  comment: Pauses a job: no more of its tasks are claimed, and running tasks end normally. Takes effect at once, also for large jobs.
  grant to authenticated: execute
  grant to service_role: execute

function penstock.pin_prompts(bigint, text, bigint, text[])
  arguments: p_task_id bigint, p_worker_id text, p_lease bigint, p_names text[]
  returns: void
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 1b60415181eb55982fec4e69e013ff7f
  comment: Lets all tasks of a job use the versions of these prompts that are active now. The first call counts.
  grant to service_role: execute

function penstock.pinned_prompts(uuid)
  arguments: p_job_id uuid
  returns: TABLE(name text, version integer, body text, model text, max_tokens integer)
  attributes: sql, stable, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 e12f85013e430bded51dcd7738bb9963
  comment: The versions of prompts that the tasks of a job use.
  grant to service_role: execute

function penstock.prompt_fallbacks(integer)
  arguments: p_minutes integer DEFAULT 60
  returns: TABLE(name text, uses bigint, last_at timestamp with time zone)
  attributes: sql, stable, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 c46abe53927b27ffb26835a83fadf763
  comment: Prompts with an active version whose constant was used in the last minutes: the database could not answer, or the code could not render the version.
  grant to service_role: execute

function penstock.prompt_stats(text, integer)
  arguments: p_name text DEFAULT NULL::text, p_days integer DEFAULT 30
  returns: TABLE(name text, version integer, uses bigint, failures bigint, fallbacks bigint, median_seconds double precision, p95_seconds double precision, cost numeric, last_used_at timestamp with time zone)
  attributes: sql, stable, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 0f4cb62a9fe12ef86019dc79e2eb7d70
  comment: How often each version of a prompt was used in the last days, how often the attempt failed or fell back to the constant, how long attempts took, and what they cost in the base currency.
  grant to service_role: execute

function penstock.prompt_trial(uuid)
  arguments: p_job_id uuid
  returns: TABLE(task_id bigint, kind text, input jsonb, output jsonb, cost numeric, seconds double precision, new_task_id bigint, new_output jsonb, new_error text, new_cost numeric, new_seconds double precision)
  attributes: sql, stable, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 4e2975ee0300656b2e061f4c7f94f96f
  comment: The tasks of a trial beside those of the past job: outputs, costs in the base currency and durations.
  grant to service_role: execute

function penstock.providers_without_hosts()
  returns: SETOF text
  attributes: sql, stable, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 b948d19fa0f7c2b0d3a695c5a652f1f5
  comment: Endpoints of which no host is known: a 429 or 402 that a worker reads from an exception does not slow or close them. set_provider sets hosts.
  grant to service_role: execute

function penstock.prune(integer)
  arguments: p_limit integer DEFAULT 10000
  returns: integer
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 d05e8f52dab115c6647c8539755d3d7d
  comment: Deletes jobs that ended more than retention_days ago, at most p_limit rows, and returns the number of rows. The audit log stays. Workers call it about once a minute; a call does nothing while another one runs.
  grant to service_role: execute

function penstock.pulse()
  returns: record
  attributes: sql, stable, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 47a6f3618f3f9ea14cb57986cec889d5
  comment: Whether any task runs, and the number of the last lease: if it has changed, a task was claimed in the meantime.
  grant to service_role: execute

function penstock.purge_tombstones(uuid, integer)
  arguments: p_user_id uuid, p_older_than_days integer
  returns: bigint
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 6ee774aa3106e9d5c2a6d1105a4b6efc
  comment: Deletes a user's tombstones that are older than a number of days, and returns their number. Devices that have not seen them pull everything again.
  grant to service_role: execute

function penstock.push_changes(jsonb, text)
  arguments: p_changes jsonb, p_schema text DEFAULT NULL::text
  returns: TABLE("table" text, id text, outcome text, change_seq bigint, code text, message text)
  attributes: plpgsql, volatile, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 15182d3d11d05582acff844e2e169ef7
  comment: Applies changes of synced tables as the caller, one by one, and returns the outcome of each: applied, stale (the stored row is newer) or refused, with a code. Parents are applied before children.
  grant to authenticated: execute
  grant to service_role: execute

function penstock.raise_alert(text, text, bigint, uuid, jsonb)
  arguments: p_kind text, p_subject text, p_count bigint, p_tenant_id uuid DEFAULT NULL::uuid, p_details jsonb DEFAULT '{}'::jsonb
  returns: void
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 243f83ce9061493438a7ecee2160896c
  comment: Reports a storm of refusals or failed logins that a server has counted.
  grant to service_role: execute

function penstock.read_bulk_again(uuid)
  arguments: p_job_id uuid
  returns: bigint
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 d691203254bf99e509a559f3ecfdddc8
  comment: Starts a task that reads the Google Sheet of a bulk job again and adds new rows; the job must not have ended. Returns the id of the task.
  grant to authenticated: execute
  grant to service_role: execute

function penstock.recent_access_changes()
  returns: SETOF bigint
  attributes: sql, stable, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 86b7ec60080a759bc225e10edb8e17fa
  comment: Ids of recent changes of memberships and keys. A new id means: check who may still watch a stream.
  grant to service_role: execute

function penstock.reclaim_stale_tasks()
  returns: integer
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 3dd76d7d0290a938cb001cc54801202d
  comment: Requeues tasks whose lease has expired, or moves them to the dead letters when too many of their workers died. Handles a bounded number and returns it; there may be more.
  grant to service_role: execute

function penstock.reconcile_costs(text, date)
  arguments: p_provider text, p_month date
  returns: jsonb
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 c1e68e10c6f3361904a6a88aa89a04ac
  comment: Corrects the estimates of a provider in a month (UTC) by the bill that was imported: all by the same share, down to what the bill leaves beside the reported costs, never below 0 and never up. Returns the line of cost_differences after that, with the number of corrections. Repeating it changes nothing.
  grant to service_role: execute

function penstock.reconcile_operation(uuid, text, jsonb)
  arguments: p_operation_id uuid, p_outcome text, p_values jsonb DEFAULT '{}'::jsonb
  returns: text
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 aeebb48d909b7f96cdaf9dfa8f7a3364
  comment: What the provider says about an operation that ended here without it. A success after a timeout wakes the task, replays its dead letter, or is charged if the task has ended. Outcomes: completed, failed, canceled, running, unknown. Values: result, units, external_id.
  grant to service_role: execute

function penstock.reconcile_operations(uuid)
  arguments: p_operation_id uuid DEFAULT NULL::uuid
  returns: integer
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 f1987afd6e2c5abe300dae775766ec7e
  comment: Lets a worker ask the provider soon about an operation that is live or timed out, or about all that timed out in the last 24 hours. Returns their number.
  grant to authenticated: execute
  grant to service_role: execute

function penstock.record_audit(text, text, jsonb, uuid, uuid)
  arguments: p_action text, p_subject text, p_details jsonb DEFAULT '{}'::jsonb, p_tenant_id uuid DEFAULT NULL::uuid, p_job_id uuid DEFAULT NULL::uuid
  returns: bigint
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 58f7357e5a83a786e688758846fc2bce
  comment: Adds a line of an app to the audit log, in the transaction of the caller. Members of the tenant can read it; a line without a tenant is for the service only.
  grant to service_role: execute

function penstock.record_changes(bigint, text, bigint, jsonb)
  arguments: p_task_id bigint, p_worker_id text, p_lease bigint, p_changes jsonb
  returns: integer
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 ab1b5bf356e46266ea11b405ea083be3
  comment: Records the changes that a running task applied for rows of its job, [{"number", "name", "before", "after"}], in the transaction that applied them. Returns their number.
  grant to service_role: execute

function penstock.record_cost(text, numeric, text, bigint, text, bigint, uuid, jsonb)
  arguments: p_cost_type text, p_amount numeric, p_currency text DEFAULT NULL::text, p_task_id bigint DEFAULT NULL::bigint, p_worker_id text DEFAULT NULL::text, p_lease bigint DEFAULT NULL::bigint, p_tenant_id uuid DEFAULT NULL::uuid, p_options jsonb DEFAULT '{}'::jsonb
  returns: bigint
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 e19689fca3ba2f9157b06d9f31e556e3
  comment: Adds an entry to the cost ledger, for an attempt (p_task_id, p_worker_id, p_lease) or a tenant, and returns its id. Options: provider, job_id, meter, variant, unit_count, started_at, ended_at, key (the same key counts once), corrects (the id of the entry that it corrects; the amount may be negative), reason.
  grant to service_role: execute

function penstock.record_move(uuid, text, jsonb)
  arguments: p_tenant_id uuid, p_step text, p_counts jsonb DEFAULT NULL::jsonb
  returns: penstock.tenant_cells
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 51eb2ad8278b725f2bb493b447b26cb7
  comment: Records the next step of a move. The step activate switches the directory to the new cell; null ends the move.
  grant to service_role: execute

function penstock.record_outcome(uuid, text, boolean, text, text, text, jsonb)
  arguments: p_tenant_id uuid, p_scope text, p_is_success boolean, p_subject text DEFAULT NULL::text, p_code text DEFAULT NULL::text, p_message text DEFAULT NULL::text, p_options jsonb DEFAULT '{}'::jsonb
  returns: jsonb
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 2a70c93d18630c96dc86c52cefc46d41
  comment: Records that something in a scope succeeded or failed. After alert_failures failures in a row within alert_within_hours the tenant gets one alert; a success ends the streak. Options: job_id, task_id, details. Returns the number of failures in a row and whether this call alerted.
  grant to service_role: execute

function penstock.record_prompt_uses(jsonb)
  arguments: p_uses jsonb
  returns: void
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 733d3466e10ca5c22b2e42e4d26cd208
  comment: Records which versions attempts have used: [{"job_id", "task_id", "lease", "name", "version", "is_fallback", "is_failed", "seconds"}]. A repeated line counts once.
  grant to service_role: execute

function penstock.record_purchase(jsonb)
  arguments: p_values jsonb
  returns: jsonb
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 d32920f935c9799bcef6c54d110cab13
  comment: Adds the allowance of a pack that was paid for: {id (of the checkout session), customer_id, tenant_id, price_id}. The same session counts once. Returns {outcome, tenant_id}.
  grant to service_role: execute

function penstock.record_subscription(jsonb, timestamp with time zone, text, boolean)
  arguments: p_values jsonb, p_as_of timestamp with time zone, p_event_id text DEFAULT NULL::text, p_is_fetched boolean DEFAULT false
  returns: jsonb
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 c1b7263cd768eaf965da4ce5a8d55957
  comment: Stores the state of a subscription at a second of Stripe's clock: {id, customer_id, tenant_id (from its metadata), status, price_ids, period_end, cancel_at_period_end, created_at, ended_at}, and sets the plan. Returns {outcome, tenant_id, is_changed}: applied, stale (older than the stored one) or ignored (not ours). Of two states in one second the end wins; else the subscription is marked to be fetched.
  grant to service_role: execute

function penstock.record_usage(jsonb, bigint, text, bigint, uuid, text, jsonb)
  arguments: p_units jsonb, p_task_id bigint DEFAULT NULL::bigint, p_worker_id text DEFAULT NULL::text, p_lease bigint DEFAULT NULL::bigint, p_tenant_id uuid DEFAULT NULL::uuid, p_action text DEFAULT NULL::text, p_options jsonb DEFAULT '{}'::jsonb
  returns: void
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 6f0461c87f546e6bef50b24f2ec32bbc
  comment: Records the usage of an attempt (p_task_id, p_worker_id, p_lease) or of a tenant's action (p_tenant_id, p_action), as {"requests", "input_tokens", …}, and its cost if the provider has prices. Options: variant, provider, details, key (a report sent again with the same key counts once).
  grant to service_role: execute

function penstock.refund_usage(uuid, jsonb, text)
  arguments: p_tenant_id uuid, p_units jsonb, p_action text DEFAULT 'refund'::text
  returns: jsonb
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 e5151c149bffe2147408d8517a3b4ccd
  comment: Gives usage of the current period back to a tenant, at most what is used, and returns what was given back. The earlier usage events stay on record.
  grant to service_role: execute

function penstock.refuse(integer, text, text, jsonb, text)
  arguments: p_status integer, p_code text, p_message text, p_fields jsonb DEFAULT '{}'::jsonb, p_hint text DEFAULT NULL::text
  returns: void
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 fb7ef6cdf08f994ccef155a10ab8ed05
  comment: Raises an error as Penstock's own functions do: an HTTP status, a stable code, a message, detail fields and a hint.
  grant to authenticated: execute
  grant to service_role: execute

function penstock.release_api_capacity(text, text, bigint, bigint, text, uuid)
  arguments: p_provider_name text, p_api_endpoint text, p_estimated_tokens bigint DEFAULT 1000, p_actual_tokens bigint DEFAULT NULL::bigint, p_key text DEFAULT NULL::text, p_tenant_id uuid DEFAULT NULL::uuid
  returns: void
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 e806ba88b4fb72d99a580ca98bdf4623
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

function penstock.release_sheet(text, text)
  arguments: p_kind text, p_name text
  returns: uuid
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 b8ee7a8b7d4807ef998c92666beb3beb
  comment: Ends the binding of a Google Sheet (p_kind: sheet) or account (account) and returns its former tenant. The next tenant that uses it gets it.
  grant to service_role: execute

function penstock.remove_gate(text)
  arguments: p_name text
  returns: void
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 af72df653692bddf50168768859b85fb
  comment: Removes a gate. Tasks that it held back are queued.
  grant to service_role: execute

function penstock.remove_notification_target(uuid)
  arguments: p_target_id uuid
  returns: void
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 b4cb657bc875a9592484ea91fc76b2e6
  comment: Removes a target. Its queued notifications are not sent.
  grant to authenticated: execute
  grant to service_role: execute

function penstock.remove_provider_key(text, uuid)
  arguments: p_provider text, p_tenant_id uuid DEFAULT NULL::uuid
  returns: void
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 3e96e815b24a228600cb341a30dfcf59
  comment: Removes the key of a provider, for all tenants or that of one.
  grant to service_role: execute

function penstock.remove_schedule(uuid)
  arguments: p_schedule_id uuid
  returns: boolean
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 93b49054a0dafb9f9a4f2a2a48fb0f3e
  comment: Removes a schedule.
  grant to authenticated: execute
  grant to service_role: execute

function penstock.replay_dead_letters(jsonb)
  arguments: p_filter jsonb
  returns: integer
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 24c24a98a6d3e2e4e6be911d3eba0e92
  comment: Queues the tasks of matching dead letters again and returns their number. Filter: ids, job_id, kind, error_code, reason, tenant_id, limit, or {"all": true}.
  grant to authenticated: execute
  grant to service_role: execute

function penstock.replay_webhook(text, text)
  arguments: p_source text, p_key text
  returns: void
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 256f39c46badcdcb989f95fa207c180d
  comment: Lets a webhook be processed again, also one that was applied: a server that has its handler does it within seconds.
  grant to service_role: execute

function penstock.report_limited(bigint, text, bigint, jsonb)
  arguments: p_task_id bigint, p_worker_id text, p_lease bigint, p_signal jsonb
  returns: void
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 2416cd8250a6576cb498f2bccf41127c
  comment: Reports that a provider rejected an attempt's call (see report_provider for the signal): its endpoint closes for all workers, and the task is requeued without using up an attempt. If the signal has a "host" that is not the provider's, only this task waits; an exhausted account there fails the attempt.
  grant to service_role: execute

function penstock.report_progress(bigint, text, bigint, double precision, text)
  arguments: p_task_id bigint, p_worker_id text, p_lease bigint DEFAULT NULL::bigint, p_fraction double precision DEFAULT NULL::double precision, p_message text DEFAULT NULL::text
  returns: void
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 88bd68f27779b37b865d000d00726b51
  comment: Reports how far a running task is (0 to 1), with a message for people.
  grant to service_role: execute

function penstock.report_provider(text, jsonb, uuid)
  arguments: p_name text, p_signal jsonb, p_tenant_id uuid DEFAULT NULL::uuid
  returns: void
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 049741eeb9e5450f2d2fa49eb61aa405
  comment: Reports what a provider answered: {"status", "retry_after_seconds", "exhausted", "message", "requests": {"limit", "remaining"}, "tokens": {"limit", "remaining"}}. A 429 closes the endpoint for all workers at once and slows it for a while; an exhausted account closes it for 15 minutes.
  grant to service_role: execute

function penstock.report_worker(text, jsonb)
  arguments: p_worker_id text, p_info jsonb
  returns: void
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: plan_cache_mode=force_generic_plan, search_path=penstock, pg_temp
  body: sha256 04e56e40ece83e405d96e68b239f8362
  comment: Records that a worker is running: {"host", "pid", "kinds", "concurrency", "version", "state", "running"}. Upkeep removes workers that have not reported for 10 minutes, and stopped ones after a day.
  grant to service_role: execute

function penstock.require_gate(text, uuid, numeric, text)
  arguments: p_gate text, p_tenant_id uuid, p_amount numeric DEFAULT 1, p_key text DEFAULT NULL::text
  returns: jsonb
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 02c7cfdccbc238f76b96f3bdf8128ade
  comment: Passes a gate or raises 402 upgrade_required (409 no_plan without a plan). A gate of a meter reserves p_amount: commit or release the hold_id of the result. In mode observe it always passes, and records what it would have blocked. The same p_key returns the same hold.
  grant to service_role: execute

function penstock.require_member(uuid, text[])
  arguments: p_tenant_id uuid, p_roles text[] DEFAULT '{owner,admin,member}'::text[]
  returns: void
  attributes: plpgsql, stable, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 8660024f4451a715c266bf08ce4c89b1
  comment: Raises an error unless the caller is the service, or a member of the tenant with one of these roles.
  grant to authenticated: execute
  grant to service_role: execute

function penstock.require_tenant(uuid)
  arguments: p_tenant_id uuid DEFAULT NULL::uuid
  returns: uuid
  attributes: plpgsql, stable, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 0af569911e54f5e12917c2064872d8a1
  comment: The tenant that start_job would use for these options, or the error that it would raise. The API calls it before it reads a file or runs the body of a job type.
  grant to authenticated: execute
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
  body: sha256 7bed95f980aba83909dfbfe702275a7f
  comment: Requeues tasks, now or after a delay, without using up an attempt. Returns only those rejected.
  grant to service_role: execute

function penstock.reserve_quota(uuid, jsonb, text, text, double precision)
  arguments: p_tenant_id uuid, p_amounts jsonb, p_action text DEFAULT 'reserve'::text, p_key text DEFAULT NULL::text, p_ttl_seconds double precision DEFAULT 300
  returns: uuid
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 6b2fd32a30da92c0788d6e2919ab671d
  comment: Reserves amounts of meters, all or none, and returns the id of the hold; fails with 429 quota_exceeded. A hold that is neither committed nor released expires. The same p_key returns the same hold.
  grant to service_role: execute

function penstock.reset_quota(uuid, text, text)
  arguments: p_tenant_id uuid, p_meter text, p_reason text DEFAULT NULL::text
  returns: numeric
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 6b0c4a201d51ad53be7a69c5554f1477
  comment: Resets a tenant's usage of a meter to 0 and returns the usage so far. Reservations stay.
  grant to service_role: execute

function penstock.resolve_entitlements(uuid)
  arguments: p_tenant_id uuid DEFAULT NULL::uuid
  returns: jsonb
  attributes: plpgsql, stable, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 c96be7c714dcf7d6d4c8fce719099a83
  comment: What a tenant may do: {tenant_id, tier, plan, since, until, limits, used, capabilities}. tier is the plan that applies now. limits has every meter; null: not limited. capabilities has the feature of every gate. Users see their own tenants, the service sees all.
  grant to authenticated: execute
  grant to service_role: execute

function penstock.resolve_limits(uuid, timestamp with time zone)
  arguments: p_tenant_id uuid, p_at timestamp with time zone DEFAULT NULL::timestamp with time zone
  returns: TABLE(meter text, amount numeric, mode text, period date, resets_at timestamp with time zone)
  attributes: plpgsql, stable, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 198ffa1912b1efa1b0b0a287ef9fabdb
  comment: The limits of a tenant now, or at p_at. A meter without a row is not limited.
  grant to authenticated: execute
  grant to service_role: execute

function penstock.resume_job(uuid)
  arguments: p_job_id uuid
  returns: text
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 37b94801e17e57af5e743585068265e4
  comment: Resumes a paused job. The first 1,000 tasks are queued at once, the others by upkeep.
  grant to authenticated: execute
  grant to service_role: execute

function penstock.retry_job(uuid)
  arguments: p_job_id uuid
  returns: integer
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 2d4af15887a88f34c943d2a4e033df66
  comment: Queues the failed tasks of a job again, and the tasks that were canceled because of them. Returns the number of failed tasks.
  grant to authenticated: execute
  grant to service_role: execute

function penstock.return_unknown_tasks(text, bigint[])
  arguments: p_worker_id text, p_leases bigint[]
  returns: integer
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 5ae87b99c73801838694f5f2fde0a25f
  comment: Requeues the tasks leased to a worker, except those with these leases, without costing an attempt. For a worker that never received the response to a claim.
  grant to service_role: execute

function penstock.revoke_invitation(uuid)
  arguments: p_invitation_id uuid
  returns: void
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 61c6527ebeb3c45233de78d77c4820d4
  comment: Revokes a pending invitation.
  grant to authenticated: execute
  grant to service_role: execute

function penstock.revoke_key(uuid)
  arguments: p_key_id uuid
  returns: void
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 bb8598ce6fbe8348aaf98871257b4310
  comment: Revokes an API key and all keys that it created, at once. Revoking it again changes nothing.
  grant to authenticated: execute
  grant to service_role: execute

function penstock.rollback_prompt(text, integer)
  arguments: p_name text, p_expected integer DEFAULT NULL::integer
  returns: integer
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 0b61a01d8bcc085fe594ea46622ac56f
  comment: Activates the newest earlier version that has been active before, or else the constant in the code (0), and returns its number. With p_expected, raises 409 prompt_moved if another version is active by now.
  grant to service_role: execute

function penstock.rotate_notification_secret(uuid)
  arguments: p_target_id uuid
  returns: text
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 2c38ec6da32e60c096555330da753da5
  comment: Gives a webhook a new secret and returns it once. For a day the old one signs as well.
  grant to authenticated: execute
  grant to service_role: execute

function penstock.seal_audit_log(integer)
  arguments: p_limit integer DEFAULT 10000
  returns: TABLE(number bigint, lines bigint, head text)
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 ad4e9a70753f6c35aa34631cee237a0c
  comment: Seals the next lines of the audit log, at most p_limit, and returns the new head. No row: nothing to seal yet. Workers call it about once a minute.
  grant to service_role: execute

function penstock.send_test_notification(uuid)
  arguments: p_target_id uuid
  returns: uuid
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 c34fa0ee22aa73510bdea232320518dd
  comment: Queues a test message for a target and returns its id.
  grant to authenticated: execute
  grant to service_role: execute

function penstock.set_artifact_link(uuid, text)
  arguments: p_artifact_id uuid, p_link text
  returns: text
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 2e458a1de2438026ce371d3fd71eacd9
  comment: Changes who may open the link of a file (public, signed for link_days from now, or login) and returns the path of the link. With login, links that were given out before ask for a sign-in.
  grant to authenticated: execute
  grant to service_role: execute

function penstock.set_budget(uuid, numeric)
  arguments: p_job_id uuid, p_amount numeric
  returns: void
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 e83893e8727602103706faf974e78d10
  comment: Sets the budget of a job, in the base currency (null: unlimited). A job that was paused by its budget resumes.
  grant to authenticated: execute
  grant to service_role: execute

function penstock.set_cell(integer)
  arguments: p_number integer
  returns: void
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 6320623b12beeb32cb85d56ed47c3de7
  comment: Sets the number of this cell, of a database without tenants. Repeat it after a migration: new tables of apps get their range of row numbers.
  grant to service_role: execute

function penstock.set_cell_limits(text, jsonb)
  arguments: p_name text, p_limits jsonb
  returns: jsonb
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 f3d8b2b973972e75bfa5a41b4c56f713
  comment: Records the limits of a provider for all cells together, and returns them. {} changes nothing. penstock cells rebalance gives each cell its part.
  grant to service_role: execute

function penstock.set_exchange_rate(text, numeric, timestamp with time zone)
  arguments: p_currency text, p_rate numeric, p_valid_from timestamp with time zone DEFAULT NULL::timestamp with time zone
  returns: void
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 a62585d23f9e0c575b329f209476e0f6
  comment: Sets the value of one unit of a currency in the base currency, valid from p_valid_from (default: now).
  grant to service_role: execute

function penstock.set_fixed_cost(text, jsonb)
  arguments: p_name text, p_values jsonb
  returns: bigint
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 9b504edecceedf92a35e2e7fac8afe85
  comment: Adds or changes a fixed cost from a day on: amount, currency, period (month, year, once), from_day (today), until_day, comment. A change ends the old line the day before and keeps it.
  grant to service_role: execute

function penstock.set_gate(text, jsonb)
  arguments: p_name text, p_values jsonb DEFAULT '{}'::jsonb
  returns: void
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 3759fd0f4a80fe35f0d9ec91e61646db
  comment: Creates or changes a gate: feature or meter, mode (observe, enforce), kinds of tasks that need the feature, comment.
  grant to service_role: execute

function penstock.set_limit(uuid, text, numeric, boolean)
  arguments: p_tenant_id uuid, p_meter text, p_amount numeric, p_is_own boolean DEFAULT true
  returns: void
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 07336c22fb2515d1ce05ba738265184c
  comment: Sets a tenant's own limit of a meter, in place of the plan's (null: unlimited); p_is_own = false removes it. A limit below the current usage stops new work.
  grant to service_role: execute

function penstock.set_member(uuid, uuid, text)
  arguments: p_tenant_id uuid, p_user_id uuid, p_role text
  returns: void
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 e1c00269ce1c77b2e680ee0313c12885
  comment: Changes a member's role; null removes the member. Only the service can add a user: others invite.
  grant to authenticated: execute
  grant to service_role: execute

function penstock.set_meter(text, jsonb)
  arguments: p_name text, p_values jsonb DEFAULT '{}'::jsonb
  returns: void
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 d59447bb3938c4227437152d6fce61aa
  comment: Creates or changes a meter: period (day, month, total), mode (observe, enforce), comment.
  grant to service_role: execute

function penstock.set_notification_target(text, text, text[], jsonb)
  arguments: p_channel text, p_address text, p_events text[] DEFAULT ARRAY['alert'::text], p_options jsonb DEFAULT '{}'::jsonb
  returns: TABLE(id uuid, secret text)
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 e7a30e033af796b1fd4414f93f4e4b91
  comment: Creates or changes a target of notifications. Events: alert, job.completed, job.failed, bulk.completed. Options: tenant_id, is_enabled. The secret that signs a new webhook is returned once.
  grant to authenticated: execute
  grant to service_role: execute

function penstock.set_own_price(text, text, numeric, jsonb, uuid)
  arguments: p_provider text, p_meter text, p_amount numeric, p_options jsonb DEFAULT '{}'::jsonb, p_tenant_id uuid DEFAULT NULL::uuid
  returns: bigint
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 d78ef6a533b56eb2cd8575f4656b2b66
  comment: Adds a price at a provider that the tenant pays with its own key, as an owner of the tenant. Options: see set_price.
  grant to authenticated: execute
  grant to service_role: execute

function penstock.set_plan(text, jsonb)
  arguments: p_name text, p_values jsonb DEFAULT '{}'::jsonb
  returns: void
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 25f1c2a7921a5fa8064d8ab45f26e1b5
  comment: Creates or changes a plan: title, comment, limits {meter: amount or null}, features, price, currency, weight, is_active, position. New limits apply to its tenants at once.
  grant to service_role: execute

function penstock.set_plan_price(text, jsonb)
  arguments: p_price_id text, p_values jsonb
  returns: void
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 b882120788fc70afe644bc31a30813e4
  comment: Says what a price of Stripe stands for: {"plan"}, or {"meter", "amount"} for a pack bought once; null removes it.
  grant to service_role: execute

function penstock.set_price(text, text, numeric, jsonb)
  arguments: p_provider text, p_meter text, p_amount numeric, p_options jsonb DEFAULT '{}'::jsonb
  returns: bigint
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 9d1978a1cd99aa13a1a12b319f245fd1
  comment: Adds the price of a unit of a meter at a provider (null: no price from then on). Options: per (1, 1000, 1000000), currency, variant, cost_type, valid_from, tenant_id. Earlier usage keeps its price.
  grant to service_role: execute

function penstock.set_profile_role(uuid, text)
  arguments: p_user_id uuid, p_role text
  returns: void
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 8a5583f4b1ff2d9c47478fe410209b01
  comment: Makes a person an admin of the installation, or a user again. Not granted to users.
  grant to service_role: execute

function penstock.set_provider(text, jsonb, uuid)
  arguments: p_name text, p_values jsonb DEFAULT '{}'::jsonb, p_tenant_id uuid DEFAULT NULL::uuid
  returns: integer
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 9cb51a95e5c9268c5a56acaf7c3e58e3
  comment: Creates or changes a provider endpoint, for all tenants or for one: status, requests_per_minute, requests_per_hour, tokens_per_minute, tokens_per_hour, concurrency, default_tokens, backpressure_threshold, backpressure_delay_seconds, depth_limit, features, hosts (whose answers count). Null: no limit. Takes effect at once.
  grant to service_role: execute

function penstock.set_provider_key(text, text, bytea, bytea, text, uuid)
  arguments: p_provider text, p_host text, p_sealed bytea, p_wrapped_key bytea, p_master_id text, p_tenant_id uuid DEFAULT NULL::uuid
  returns: void
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 b7f32de974f0b905d433b7203a75aca4
  comment: Stores the encrypted key of a provider, for all tenants or for one, and replaces the one before.
  grant to service_role: execute

function penstock.set_schedule(text, text, text, timestamp with time zone, jsonb)
  arguments: p_name text, p_cron text, p_job_type text, p_next_run_at timestamp with time zone, p_options jsonb DEFAULT '{}'::jsonb
  returns: uuid
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 fb17d21159bbf7438533565c56608782
  comment: Creates or changes a schedule. Options: tenant_id, timezone, params, tasks (null: the tasks of the job type), options, missed (skip, once, all), is_enabled.
  grant to authenticated: execute
  grant to service_role: execute

function penstock.set_setting(text, jsonb)
  arguments: p_name text, p_value jsonb
  returns: void
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 46fcc665b16a9826e8cf3dd88fe8af78
  comment: Changes a setting and writes an audit line.
  grant to service_role: execute

function penstock.set_tenant_plan(uuid, text)
  arguments: p_tenant_id uuid, p_plan text
  returns: void
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 f7bb2e64dd01f65915661be4017e1f40
  comment: Puts a tenant on a plan and gives it the plan's weight. The plan unlimited has no limits and keeps the weight. Usage of the period stays.
  grant to service_role: execute

function penstock.set_tenant_weight(uuid, double precision)
  arguments: p_tenant_id uuid, p_weight double precision
  returns: void
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 064428d131a3307565adb0380ad6494c
  comment: Changes a tenant's share of every lane, for tasks queued from now on.
  grant to service_role: execute

function penstock.settle_operation(uuid, text, bigint, text, jsonb)
  arguments: p_operation_id uuid, p_worker_id text, p_lease bigint, p_outcome text, p_values jsonb DEFAULT '{}'::jsonb
  returns: text
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 4f55a4e3dd1eabb54eff1d1a1cb65239
  comment: Ends an operation: completed charges its units at the provider, failed and canceled free its reservation, timeout lets it expire. A success after a timeout counts and is late. Returns the status that counts. Values: result, units, code, message, external_id.
  grant to service_role: execute

function penstock.sign_in_identity(text, text, text)
  arguments: p_issuer text, p_subject text, p_email text DEFAULT NULL::text
  returns: uuid
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 eee7f408bc72262ee184208a16996497
  comment: The user of an issuer's subject, created with a profile and a personal tenant at the first sign-in. p_email is the verified address, if there is one. Only code that has verified the identity may call this.
  grant to service_role: execute

function penstock.spend(date)
  arguments: p_month date DEFAULT NULL::date
  returns: jsonb
  attributes: plpgsql, stable, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 831cb62af2da20275c0e9e40ce95d0f9
  comment: Costs and revenue of a month in the base currency: {month, currency, fixed, fixed_total, variable_total, by_provider, by_type, taken_at, by_plan, revenue, margin}. Variable costs are those of the newest snapshot.
  grant to service_role: execute

function penstock.split_limits(jsonb, double precision[])
  arguments: p_limits jsonb, p_shares double precision[]
  returns: jsonb[]
  attributes: plpgsql, immutable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 aec99b762ec2f5c8dc103bfb95265604
  comment: The parts of a provider's limits for cells with these shares, in their order. Their sum is the limit.
  grant to service_role: execute

function penstock.start_action(text, text[], text)
  arguments: p_verb text, p_subjects text[], p_reason text DEFAULT NULL::text
  returns: uuid
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 368603756b6a7f2359edd57d82cbe422
  comment: Starts an action on many jobs (pause, resume, cancel, retry) or dead letters (replay, discard), given by id, and returns the action's id. The first 100 are done at once, the rest by workers; the action's row shows its progress.
  grant to authenticated: execute
  grant to service_role: execute

function penstock.start_drawn_job(text, jsonb, jsonb, jsonb, uuid)
  arguments: p_type text, p_params jsonb, p_tasks jsonb, p_options jsonb DEFAULT '{}'::jsonb, p_user_id uuid DEFAULT NULL::uuid
  returns: uuid
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: enable_seqscan=off, jit=off, plan_cache_mode=force_generic_plan, search_path=penstock, pg_temp
  body: sha256 1b646cc68dccbb18bed53b708d7abcc7
  comment: Starts a job whose tasks trusted code drew from a job type, for the user p_user_id (null: for the service). Not granted to users: the server calls it, and so may a security definer function of an app. The role of the user in the tenant is checked, and the user is recorded as the creator.
  grant to service_role: execute

function penstock.start_job(text, jsonb, jsonb, jsonb)
  arguments: p_type text, p_params jsonb DEFAULT '{}'::jsonb, p_tasks jsonb DEFAULT '[]'::jsonb, p_options jsonb DEFAULT '{}'::jsonb
  returns: uuid
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: enable_seqscan=off, jit=off, plan_cache_mode=force_generic_plan, search_path=penstock, pg_temp
  body: sha256 bc55cbce79bcb0df8f7c9b65693f35e6
  comment: Creates a job with its tasks and their dependencies in one transaction and returns its id. The same idempotency key returns the same job. Users may only write tasks of kinds that allow it (raw_tasks).
  grant to authenticated: execute
  grant to service_role: execute

function penstock.store_step(bigint, text, bigint, text, jsonb)
  arguments: p_task_id bigint, p_worker_id text, p_lease bigint, p_name text, p_output jsonb
  returns: jsonb
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 ef6be58c592569dfb49ca2f08da4ad87
  comment: Stores the result of a step of a running task and returns it. The first result of a name counts.
  grant to service_role: execute

function penstock.store_task_chunks(text, jsonb)
  arguments: p_worker_id text, p_chunks jsonb
  returns: integer
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 c6b22663c1ee399a9e07e0a5e518a1f7
  comment: Stores chunks of the streams of attempts that the worker runs, [{"job_id", "task_id", "lease", "number" (1 to 10000 within the attempt), "sent" (bytes in earlier chunks, at most 262144), "parts" (texts and objects)}]. Returns how many it stored; it skips those of lost leases, those already stored and those that are too large.
  grant to service_role: execute

function penstock.store_task_logs(text, jsonb)
  arguments: p_worker_id text, p_lines jsonb
  returns: integer
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 6824e9c1194e62f78e2d6258fee9d970
  comment: Stores log lines of attempts that the worker runs or has just ended, [{"job_id", "task_id", "lease", "number" (1 to 1000 within the attempt), "level", "message", "fields", "ago" (seconds)}], without credentials. Returns how many it stored; it skips the others.
  grant to service_role: execute

function penstock.submit_operation(uuid, text, bigint, text)
  arguments: p_operation_id uuid, p_worker_id text, p_lease bigint, p_external_id text
  returns: void
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 1e61313d0b153580a81cd98ad10faeac
  comment: Notes the id that the provider gave an operation. Repeating it is no error.
  grant to service_role: execute

function penstock.sync_state(text)
  arguments: p_schema text DEFAULT NULL::text
  returns: jsonb
  attributes: plpgsql, stable, security invoker, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 73153bbc7ea2e10a23f577174216183e
  comment: The highest change number and the horizon of each synced table for the calling user, and the server's time. A device whose cursor is below the horizon pulls everything again.
  grant to authenticated: execute
  grant to service_role: execute

function penstock.take_alerts()
  returns: TABLE(kind text, subject text, tenant_id uuid, count bigint, details jsonb)
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 ef3fb330202ee95173a4e70f527f09d5
  comment: Alerts that no process has logged yet, with their number since the last call. Each is returned once.
  grant to service_role: execute

function penstock.take_bulk_rows(bigint, text, bigint, integer)
  arguments: p_task_id bigint, p_worker_id text, p_lease bigint, p_max integer DEFAULT 1000
  returns: TABLE(number bigint, key text, group_key text, data jsonb)
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: enable_seqscan=off, jit=off, search_path=penstock, pg_temp
  body: sha256 650198e295e9aa248d157a4b85f17631
  comment: The next rows of a bulk job that are not loaded yet, for the task that loads them. Locks the bulk until the transaction ends.
  grant to service_role: execute

function penstock.take_cost_snapshot(date)
  arguments: p_month date DEFAULT NULL::date
  returns: bigint
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 189d25ac50fa8db5241a735f311dd382
  comment: Stores what all tenants have cost in a month so far (default: the current one), and returns its id.
  grant to service_role: execute

function penstock.take_due_snapshot()
  returns: boolean
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 cc9d13d49794a5c4d82826924abe5921
  comment: Takes the snapshot of the current month if the newest one is older than an hour. Workers and servers call it every minute.
  grant to service_role: execute

function penstock.take_notifications(integer)
  arguments: p_limit integer DEFAULT 20
  returns: TABLE(id uuid, tenant_id uuid, target_id uuid, channel text, address text, event text, subject text, body text, details jsonb, attempt smallint, created_at timestamp with time zone, secrets text[])
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: enable_seqscan=off, jit=off, search_path=penstock, pg_temp
  body: sha256 7ef7264c7f52a4cc7b0bc531324247c3
  comment: Hands due notifications to a sender for 60 seconds, tenants in turn and at most 10 of a tenant at once. A sender that dies loses them to the next one, so a message may be sent twice, but is never lost.
  grant to service_role: execute

function penstock.take_operations(text[], integer)
  arguments: p_providers text[], p_limit integer DEFAULT 20
  returns: SETOF jsonb
  attributes: sql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 dc5199f41708697676fc98060ad7ea30
  comment: Operations of these providers to ask about (timeout) or to cancel at the provider (canceled), for a minute. Report each with reconcile_operation.
  grant to service_role: execute

function penstock.take_reconciliation()
  returns: boolean
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 cd335c73a62a6e3bf81beb181122d0f6
  comment: Whether the caller is to compare the subscriptions with Stripe now: once a day, for one server of many.
  grant to service_role: execute

function penstock.take_suspects(integer)
  arguments: p_limit integer DEFAULT 20
  returns: SETOF text
  attributes: sql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 037f97a7c62183936cebe3f4e1fed273
  comment: Subscriptions of which two states came with the same second. The caller fetches them from Stripe.
  grant to service_role: execute

function penstock.take_task_upload(bigint, uuid, text, bigint)
  arguments: p_task_id bigint, p_artifact_id uuid, p_worker_id text, p_lease bigint
  returns: TABLE(tenant_id uuid, name text, incoming text, path text, content_type text, bytes bigint, lease bigint, is_stored boolean)
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 8380a3d18a55bbf980c51ae86ca0bf4a
  comment: The upload of a running task: where the file is, and where its checked copy goes. Requires the lease.
  grant to service_role: execute

function penstock.take_upload(uuid)
  arguments: p_artifact_id uuid
  returns: TABLE(tenant_id uuid, name text, incoming text, path text, content_type text, bytes bigint, lease bigint)
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 71af4306d06966854d3aa4e50c629642
  comment: Returns the path of an upload and the path for its checked copy. finish_artifact with this lease completes it.
  grant to authenticated: execute
  grant to service_role: execute

function penstock.take_webhook(text, text, text, jsonb)
  arguments: p_source text, p_key text, p_type text, p_payload jsonb, OUT is_done boolean, OUT attempts integer
  returns: record
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 5ad9d599ec3c8b05541967b301d2b71b
  comment: Records a delivery and locks the row of its event. is_done: it was processed before.
  grant to service_role: execute

function penstock.task_rates(uuid, integer)
  arguments: p_tenant_id uuid DEFAULT NULL::uuid, p_minutes integer DEFAULT 60
  returns: TABLE(minute timestamp with time zone, succeeded integer, failed integer, wait_p50 double precision, wait_p95 double precision, run_p50 double precision, run_p95 double precision)
  attributes: plpgsql, stable, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 f5cf1cab148b336d1670bb04a3fdf0b2
  comment: For each of the last p_minutes minutes, for a tenant or (for the service) all tenants: tasks succeeded and failed, and the p50 and p95 of their waiting and running times in seconds.
  grant to authenticated: execute
  grant to service_role: execute

function penstock.tell_operation(text, uuid, text)
  arguments: p_provider text, p_operation_id uuid DEFAULT NULL::uuid, p_external_id text DEFAULT NULL::text
  returns: text
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 1e8dc6b01be02ce75b734624c59fb33d
  comment: A hint that an operation has changed, from a webhook: wakes its task, whose handler asks the provider. If the operation had timed out and its task became a dead letter, that is replayed once. Returns applied, late (it had timed out), stale or unmatched.
  grant to service_role: execute

function penstock.tenant_margins(date, integer)
  arguments: p_month date DEFAULT NULL::date, p_limit integer DEFAULT 100
  returns: TABLE(tenant_id uuid, name text, plan text, revenue numeric, cost numeric, margin numeric)
  attributes: plpgsql, stable, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 64344b3fbe5cba3c1f469499e611ec5e
  comment: Revenue, cost and margin of tenants in a month, in the base currency, the lowest margin first; for admins.
  grant to authenticated: execute
  grant to service_role: execute

function penstock.try_prompt(text, integer, uuid, integer)
  arguments: p_name text, p_version integer, p_job_id uuid, p_rows integer DEFAULT 20
  returns: uuid
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 49d766eed4fa2302a6a3c2f324f68c6c
  comment: Runs a version of a prompt on the inputs of p_rows succeeded tasks of a job that used it: starts a job of these tasks alone, in the tenant of the job, and returns its id. It counts against the tenant's quotas.
  grant to service_role: execute

function penstock.undo_bulk(uuid, jsonb)
  arguments: p_job_id uuid, p_filter jsonb DEFAULT '{}'::jsonb
  returns: uuid
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 00ec4f1836736960fec69ea16f177f7e
  comment: Starts a job that undoes the applied changes of all rows, or of {"rows": [numbers], "names": [values]}, and returns its id. Changes that are applied later stay.
  grant to authenticated: execute
  grant to service_role: execute

function penstock.undo_changes(bigint, text, bigint)
  arguments: p_task_id bigint, p_worker_id text, p_lease bigint
  returns: TABLE(id bigint, row_number bigint, name text, before jsonb, after jsonb)
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 2b51203a526de7adc640d845ed9bf97e
  comment: Marks the changes of a running undo task as undone and returns them, newest first. The task undoes them in the same transaction.
  grant to service_role: execute

function penstock.unkeep_artifact(uuid)
  arguments: p_artifact_id uuid
  returns: boolean
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 b8bb5e301f10e09a2ac7970354a5cd9f
  comment: Ends the keeping of a file: it goes with its job, or retention_days after it was stored. Returns false if no app keeps it.
  grant to service_role: execute

function penstock.upkeep()
  returns: TABLE(reclaimed integer, promoted integer, chores integer, next_seconds double precision)
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: lock_timeout=3s, search_path=penstock, pg_temp
  body: sha256 bbd6382b8eb9368a0f45dec843b9b0a4
  comment: Housekeeping that any worker calls regularly: requeues stale tasks, queues tasks that are due, moves a batch of tasks after a pause, resume or cancel. Fails when it waits longer than three seconds for a lock. Returns in how many seconds there is more to do (null: unknown).
  grant to service_role: execute

function penstock.upkeep_if_idle()
  returns: TABLE(reclaimed integer, promoted integer, chores integer, next_seconds double precision)
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 0fc1e0df5d791a1abe61ed8af0d6c7b1
  comment: Runs upkeep unless another process did within two seconds. For many servers of which one has to do it.
  grant to service_role: execute

function penstock.use_api_key(bytea)
  arguments: p_digest bytea
  returns: TABLE(id uuid, tenant_id uuid, role text, scopes text[])
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 5b2f07a346b7b2fb62fe3de479c5aa5f
  comment: Finds the API key with this SHA-256 digest; no row if it is unknown, expired or revoked.
  grant to service_role: execute

function penstock.use_key(bytea)
  arguments: p_digest bytea
  returns: TABLE(id uuid, tenant_id uuid, role text)
  attributes: sql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 932745b508dd0e0161f324bd988045d1
  comment: Finds the API key with this SHA-256 digest and its role; no row if it is unknown, expired or revoked.
  grant to service_role: execute

function penstock.use_session(bytea, boolean)
  arguments: p_digest bytea, p_is_active boolean DEFAULT true
  returns: TABLE(id uuid, role text, subject uuid, is_key boolean, scopes text[])
  attributes: plpgsql, volatile, security definer, parallel unsafe
  settings: search_path=penstock, pg_temp
  body: sha256 cd636da35bde7ab2cf862c7423de1f07
  comment: Finds the session with this SHA-256 digest; no row if it has ended. An active request restarts its idle time.
  grant to service_role: execute

function penstock.wanted_slots()
  returns: TABLE(kind text, provider text, waiting bigint, running bigint, runnable bigint, wanted bigint)
  attributes: sql, stable, security definer, parallel unsafe
  settings: jit=off, search_path=penstock, pg_temp
  body: sha256 cbb8bceb187f779084ea9653e6e34e2c
  comment: Per kind and provider: how many tasks could run at once now. wanted is runnable (waiting tasks that limits, quotas and budgets let run now) plus running. Scale workers on it. Counts at most 10,000 waiting tasks of each lane; waiting leaves out tasks of stopped jobs and without quota or budget.
  grant to service_role: execute

function penstock.weigh_action(text, text[])
  arguments: p_verb text, p_subjects text[]
  returns: jsonb
  attributes: plpgsql, stable, security definer, parallel unsafe
  settings: jit=off, search_path=penstock, pg_temp
  body: sha256 444c51991d6f1de625d8fb7681fc41d5
  comment: Previews an action: the number of tasks, and what they may cost (retry, replay) or have cost so far (cancel, pause, resume). Examines the first 1,000 subjects only.
  grant to authenticated: execute
  grant to service_role: execute

trigger penstock_on_deleted_user on auth.users
  definition: CREATE TRIGGER penstock_on_deleted_user AFTER DELETE ON auth.users FOR EACH ROW EXECUTE FUNCTION penstock._on_deleted_user()

trigger penstock_on_new_user on auth.users
  definition: CREATE TRIGGER penstock_on_new_user AFTER INSERT ON auth.users FOR EACH ROW EXECUTE FUNCTION penstock.on_new_user()
