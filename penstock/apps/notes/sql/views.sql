-- Views by the names that older clients know, and lists of the dashboard. Each view runs with the reader's
-- rights.

create or replace view notes.user_profiles with (security_invoker = true) as
select p.user_id as id, p.user_id, p.email, p.display_name as name, p.display_name,
  f.facts ->> 'profile_bio' as profile_bio, f.facts ->> 'user_tier' as user_tier,
  (f.facts ->> 'tier_started_at')::timestamptz as tier_started_at,
  (f.facts ->> 'month_limit')::integer as month_limit, (f.facts ->> 'month_usage')::integer as month_usage,
  (f.facts ->> 'month_usage')::real / nullif((f.facts ->> 'month_limit')::real
    + coalesce((f.facts ->> 'allocation_override')::real, 0), 0) as percent_use,
  (f.facts ->> 'allocation_override')::integer as allocation_override,
  (f.facts ->> 'allocation_override_expires_at')::date as allocation_override_expires_at,
  (f.facts ->> 'image_storage_bytes_used')::bigint as image_storage_bytes_used,
  f.facts ->> 'stripe_customer_id' as stripe_customer_id,
  f.facts ->> 'stripe_subscription_id' as stripe_subscription_id,
  f.facts ->> 'subscription_status' as subscription_status,
  (f.facts ->> 'subscription_current_period_end')::timestamptz as subscription_current_period_end,
  p.created_at as member_since, f.facts ->> 'effective_tier' as effective_tier, p.tenant_id, p.role
from penstock.profiles p cross join lateral notes._profile_facts(p.user_id, p.tenant_id) as f(facts);
comment on view notes.user_profiles is
  'Profiles with quota, tier and subscription. user_tier is the tier that was bought, effective_tier the '
  'one that applies now.';

create or replace trigger change_profile instead of update on notes.user_profiles
  for each row execute function notes._change_profile();

create or replace view notes.ai_usage_daily with (security_invoker = true) as
select encode(substr(sha256(convert_to(u.tenant_id || u.action || u.day, 'UTF8')), 1, 16), 'hex')::uuid as id,
  p.user_id, u.action as action_type, u.day as window_day,
  coalesce(sum(u.amount) filter (where u.meter = 'managed_ai'), 0)::integer as request_count,
  coalesce(sum(u.amount) filter (where u.meter = 'input_tokens'), 0)::bigint as input_tokens,
  coalesce(sum(u.amount) filter (where u.meter = 'output_tokens'), 0)::bigint as output_tokens,
  (extract(epoch from u.day::timestamp) * 1000)::bigint as created_at,
  (extract(epoch from u.day::timestamp) * 1000)::bigint as updated_at
from penstock.usage_days u join penstock.profiles p on p.tenant_id = u.tenant_id
where u.action in ('transcribe', 'discover') group by u.tenant_id, p.user_id, u.action, u.day;
comment on view notes.ai_usage_daily is
  'Managed calls per user, action and UTC day. Own keys never appear here.';

create or replace view notes.ai_usage_events with (security_invoker = true) as
select u.id, p.user_id, u.action as action_type, u.at as created_at, u.provider,
  u.details ->> 'prompt_name' as prompt_name, (u.details ->> 'prompt_version')::integer as prompt_version,
  (u.details ->> 'prompt_fallback')::boolean as prompt_fallback,
  (u.details ->> 'fail_open')::boolean as fail_open
from penstock.usage_events u join penstock.profiles p on p.tenant_id = u.tenant_id
where u.details ? 'prompt_name';
comment on view notes.ai_usage_events is 'The prompt of each managed call.';

create or replace view notes.stripe_webhook_events with (security_invoker = true) as
select w.key as event_id, w.type as event_type, w.received_at, w.processed_at, w.payload
from penstock.webhooks w where w.source = 'stripe';
comment on view notes.stripe_webhook_events is 'Events of Stripe, each applied once. For the service only.';

create or replace view notes.admin_audit_log with (security_invoker = true) as
select a.id, a.at as created_at, a.actor, a.action, a.subject, a.details, a.tenant_id
from penstock.audit_log a where a.action like 'admin.%';
comment on view notes.admin_audit_log is 'Actions of administrators, append-only.';

create or replace trigger add_audit_line instead of insert on notes.admin_audit_log
  for each row execute function notes._add_audit_line();

create or replace view notes.fixed_costs with (security_invoker = true) as
select c.id, c.name, c.amount, c.currency, c.period, c.from_day, c.until_day, c.comment
from penstock.fixed_costs c;
comment on view notes.fixed_costs is 'Costs that no provider reports. For the service only.';

create or replace view notes.cost_snapshot with (security_invoker = true) as
select c.id, c.taken_at, c.month, c.total, c.by_provider, c.by_type from penstock.cost_snapshots c;
comment on view notes.cost_snapshot is
  'Variable costs of a month, as they were when the snapshot was taken. For the service only.';

create or replace view notes.orphans with (security_invoker = true) as
select n.user_id, n.id as note_id, coalesce(n.source, n.book_id, '') as source
from notes.notes n where n.tags = '[]' and not n.deleted;
comment on view notes.orphans is 'Notes without ideas: the rows of a discovery.';

create or replace view notes.prompts with (security_invoker = true) as
select p.name, p.version, p.body, p.model, p.max_tokens, p.is_active, p.comment, p.created_at, p.activated_at
from penstock.prompts p;
comment on view notes.prompts is
  'Prompts and their versions. Setting is_active of a row activates it. For the service only.';

create or replace trigger change_prompt instead of insert or update on notes.prompts
  for each row execute function notes._change_prompt();

-- Lists of the dashboard. They show no text: another person may see the screen.

create or replace view notes.book_list with (security_invoker = true) as
select b.user_id, b.id, b.title, b.author, b.isbn, b.cover_url, b.deleted,
  (select count(*) from notes.notes n
    where n.user_id = b.user_id and n.book_id = b.id and not n.deleted) as notes,
  to_timestamp(b.updated_at / 1000.0) as changed_at
from notes.books b;
comment on view notes.book_list is 'Books with their number of notes.';

create or replace view notes.note_list with (security_invoker = true) as
select n.user_id, n.id, n.book_id, n.page, n.chapter, n.tags, n.source,
  n.text like 'enc:v1:%' as is_encrypted, length(n.text) as characters,
  n.image_path is not null as has_image, n.deleted, n.change_seq,
  to_timestamp(n.updated_at / 1000.0) as changed_at
from notes.notes n;
comment on view notes.note_list is 'Notes without their text.';

create or replace view notes.device_list with (security_invoker = true) as
select k.user_id, k.id, k.type, k.device_label, k.is_active,
  to_timestamp(k.created_at / 1000.0) as enrolled_at, to_timestamp(k.synced_at / 1000.0) as last_sync_at,
  coalesce(nullif(p.display_name, ''), p.email) as owner
from notes.wrapped_key_blobs k join penstock.profiles p on p.user_id = k.user_id;
comment on view notes.device_list is 'Devices that hold the key of a library, and when each last synced.';

-- Of the reader's own library: those of all libraries would take minutes.
create or replace view notes.idea_list with (security_invoker = true) as
select p.user_id, encode(substr(sha256(convert_to(p.user_id || ':' || i.name, 'UTF8')), 1, 16), 'hex') as id,
  i.name, case when i.is_custom then 'custom' else 'tag' end as kind,
  i.notes, i.books, coalesce(nullif(p.display_name, ''), p.email) as owner
from penstock.profiles p cross join lateral (
  select x.name, bool_or(x.is_custom) as is_custom, count(distinct x.note_id) as notes,
    count(distinct x.book_id) as books
  from (
    select t.name, false as is_custom, n.id as note_id, b.id as book_id
    from notes.notes n cross join lateral jsonb_array_elements_text(n.tags) as t(name)
    left join notes.books b on b.user_id = n.user_id and b.id = n.book_id and not b.deleted
    where n.user_id = p.user_id and not n.deleted
    union all
    select c.name, true, null, null from notes.custom_ideas c where c.user_id = p.user_id and not c.deleted
  ) as x group by x.name) as i
where p.user_id = auth.uid();
comment on view notes.idea_list is
  'Ideas of the caller''s own library with their numbers of live notes and books. kind: custom (added by the '
  'user) or tag.';
