-- user_profiles: the profile, the quota, the tier and the subscription of a user in one row.

create or replace function notes._profile_facts(p_user_id uuid, p_tenant_id uuid)
returns jsonb language plpgsql stable security definer set search_path = notes, pg_temp as $$
declare
  v_rights jsonb;
  v_bill jsonb;
  v_extra record;
begin
  -- The view shows only profiles that the caller may read; this holds for direct calls, too.
  if not (penstock.is_service() or p_user_id = auth.uid()) or p_tenant_id <> notes._tenant_of(p_user_id) then
    return '{}';
  end if;
  v_rights := penstock.resolve_entitlements(p_tenant_id);
  v_bill := penstock.billing_status(p_tenant_id);
  select sum(a.amount) as amount, max(a.expires_on) as expires_on into v_extra from penstock.allowances a
    where a.tenant_id = p_tenant_id and a.meter = 'managed_ai' and a.source = 'override'
      and (a.expires_on is null or a.expires_on >= (penstock.clock() at time zone 'utc')::date);
  return jsonb_build_object(
    'profile_bio', (select b.profile_bio from profile_bios b where b.user_id = p_user_id),
    'user_tier', case when v_bill ->> 'plan' = 'pro' then 'pro' else 'free' end,
    'effective_tier', notes._tier(v_rights), 'tier_started_at', v_bill -> 'since',
    'month_limit', (v_rights #>> '{limits,managed_ai}')::numeric - coalesce(v_extra.amount, 0),
    'month_usage', coalesce((v_rights #>> '{used,managed_ai}')::numeric, 0),
    'allocation_override', v_extra.amount, 'allocation_override_expires_at', v_extra.expires_on,
    'image_storage_bytes_used', coalesce((v_rights #>> '{used,image_bytes}')::bigint, 0),
    'stripe_customer_id', (select x.customer_id from penstock.billing_accounts x
      where x.tenant_id = p_tenant_id),
    'stripe_subscription_id', (select s.id from penstock.subscriptions s where s.tenant_id = p_tenant_id
      order by s.status in ('active', 'trialing', 'past_due') desc, s.created_at desc limit 1),
    'subscription_status', v_bill -> 'status', 'subscription_current_period_end', v_bill -> 'period_end');
end
$$;
comment on function notes._profile_facts(uuid, uuid) is
  'Quota, tier and subscription of a user, for the user and the service.';

create or replace function notes._tier(p_entitlements jsonb)
returns text language sql immutable set search_path = notes, pg_temp as $$
  select case when p_entitlements ->> 'tier' = 'pro' then 'pro' else 'free' end
$$;
comment on function notes._tier(jsonb) is 'The tier that applies now, by the app''s two names.';

create or replace function notes.my_entitlements()
returns jsonb language plpgsql stable security definer set search_path = notes, pg_temp as $$
declare
  v_rights jsonb := penstock.resolve_entitlements(notes._tenant_of(notes._require_owner()));
begin
  return jsonb_build_object('tier', notes._tier(v_rights),
    'managedAiMonthlyLimit', v_rights #> '{limits,managed_ai}',
    'customIdeasLimit', v_rights #> '{limits,custom_ideas}', 'maxDevices', v_rights #> '{limits,devices}',
    'imageStorageBytesLimit', v_rights #> '{limits,image_bytes}',
    'capabilities', jsonb_build_object(
      'reDiscoverIdeas', v_rights #> '{capabilities,re_discover_ideas}',
      'importReadwise', v_rights #> '{capabilities,import_readwise}',
      'importKindle', v_rights #> '{capabilities,import_kindle}',
      'exportJson', v_rights #> '{capabilities,export_json}'));
end
$$;
comment on function notes.my_entitlements() is
  'What the caller may do, from resolve_entitlements, in the form that the clients of this app know.';

create or replace function notes._change_profile()
returns trigger language plpgsql security definer set search_path = notes, pg_temp as $$
begin
  if not (penstock.is_service() or old.user_id = auth.uid()) then
    perform penstock.refuse(403, 'forbidden', 'you can change only your own profile');
  end if;
  if new.display_name is distinct from old.display_name then
    update penstock.profiles set display_name = new.display_name where user_id = old.user_id;
  end if;
  if new.profile_bio is distinct from old.profile_bio then
    insert into profile_bios (user_id, profile_bio) values (old.user_id, new.profile_bio)
      on conflict (user_id) do update set profile_bio = excluded.profile_bio;
  end if;
  if penstock.is_service() then
    if new.month_limit is distinct from old.month_limit then
      perform penstock.set_limit(notes._tenant_of(old.user_id), 'managed_ai', new.month_limit);
    end if;
    if new.allocation_override is distinct from old.allocation_override and new.allocation_override > 0 then
      perform penstock.add_allowance(notes._tenant_of(old.user_id), 'managed_ai', new.allocation_override
        - coalesce(old.allocation_override, 0), 'override', new.allocation_override_expires_at);
    end if;
    if new.role is distinct from old.role then
      perform penstock.set_profile_role(old.user_id, new.role);
    end if;
    if new.user_tier is distinct from old.user_tier then
      perform penstock.set_tenant_plan(notes._tenant_of(old.user_id), new.user_tier);
    end if;
  end if;
  return new;
exception when check_violation or string_data_right_truncation then
  perform penstock.refuse(422, 'invalid_profile', 'display_name or profile_bio is not allowed: '
    || left(sqlerrm, 200));
  return null;
end
$$;
comment on function notes._change_profile() is
  'Trigger of user_profiles: users change display_name and profile_bio; the service changes limit, override '
  'and tier, too.';

create or replace function notes._change_prompt()
returns trigger language plpgsql security definer set search_path = notes, pg_temp as $$
begin
  if not penstock.is_service() then
    perform penstock.refuse(403, 'forbidden', 'only the service changes prompts');
  end if;
  if tg_op = 'INSERT' then
    perform penstock.add_prompt(new.name, new.body, jsonb_strip_nulls(jsonb_build_object('model', new.model,
      'max_tokens', new.max_tokens, 'comment', new.comment, 'activate', coalesce(new.is_active, false))));
  elsif new.is_active and not old.is_active then
    perform penstock.activate_prompt(old.name, old.version);
  elsif old.is_active and not new.is_active then
    perform penstock.activate_prompt(old.name, 0);
  end if;
  return new;
end
$$;
comment on function notes._change_prompt() is
  'Trigger of prompts: adds a version, activates one, or activates the constant.';

create or replace function notes._add_audit_line()
returns trigger language plpgsql security definer set search_path = notes, pg_temp as $$
begin
  if not penstock.is_service() then
    perform penstock.refuse(403, 'forbidden', 'only the service adds audit lines');
  end if;
  new.id := penstock.record_audit(
    case when new.action like 'admin.%' then new.action else 'admin.' || new.action end,
    new.subject, coalesce(new.details, '{}'), new.tenant_id);
  return new;
end
$$;
comment on function notes._add_audit_line() is
  'Trigger of admin_audit_log: adds a line. Lines cannot be changed.';
