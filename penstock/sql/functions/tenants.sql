-- Tenants, members, profiles, and the identity of the caller. The caller is the
-- current role: the one that PostgREST or the API set for the request, else the login
-- role. JWT claims identify the user; they never grant the rights of the service.

create or replace function penstock._is_service()
returns boolean language sql stable set search_path = penstock, pg_temp as $$
  select pg_has_role(coalesce(nullif(current_setting('role'), 'none'), session_user), 'service_role',
    'member')
$$;
comment on function penstock._is_service() is
  'Whether the caller is the service (a worker or an operator) rather than a user.';

create or replace function penstock._actor()
returns text language sql stable set search_path = penstock, pg_temp as $$
  select case when _is_service()
    then coalesce(nullif(current_setting('penstock.actor', true), ''), 'service:' || session_user)
    else coalesce('user:' || auth.uid(), 'anonymous') end
$$;
comment on function penstock._actor() is 'The caller''s name in the audit log.';

create or replace function penstock._user_of(p_actor text)
returns uuid language sql immutable parallel safe set search_path = pg_catalog, pg_temp as $$
  select case when p_actor ~ '^user:[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$'
    then substr(p_actor, 6)::uuid end
$$;
comment on function penstock._user_of(text) is
  'The user that a name in the audit log stands for; null: the service.';

create or replace function penstock._audit(
  p_tenant_id uuid, p_action text, p_job_id uuid, p_subject text, p_details jsonb default '{}')
returns void language sql set search_path = penstock, pg_temp as $$
  -- The transaction gets its id before the line gets its own: seal_audit_log depends on it.
  insert into audit_log (at, tenant_id, actor, action, job_id, subject, details)
  select _now(), p_tenant_id, _actor(), p_action, p_job_id, p_subject, p_details
  where pg_current_xact_id() is not null
$$;
comment on function penstock._audit(uuid, text, uuid, text, jsonb) is 'Adds a line to the audit log.';

create or replace function penstock.my_tenants()
returns setof uuid language sql stable security definer set search_path = penstock, pg_temp
  set enable_seqscan = off set jit = off as $$
  select tenant_id from members where user_id = auth.uid() and _has_scope(auth.uid(), 'read')
$$;
comment on function penstock.my_tenants() is
  'The tenants whose rows the calling user may read. Every row-level policy uses it.';

create or replace function penstock._is_member(p_tenant_id uuid)
returns boolean language sql stable set search_path = penstock, pg_temp as $$
  select _is_service() or exists (
    select from members where tenant_id = p_tenant_id and user_id = auth.uid())
$$;
comment on function penstock._is_member(uuid) is
  'Whether the caller is a member of the tenant, or the service.';

create or replace function penstock._scope_for(p_roles text[])
returns text language sql immutable set search_path = penstock, pg_temp as $$
  select case when 'viewer' = any (p_roles) then 'read' when 'member' = any (p_roles) then 'start'
    else 'admin' end
$$;
comment on function penstock._scope_for(text[]) is
  'The scope that an API key needs for what members with these roles may do.';

create or replace function penstock.my_admin_tenants()
returns setof uuid language sql stable security definer set search_path = penstock, pg_temp as $$
  select tenant_id from members where user_id = auth.uid() and role in ('owner', 'admin')
    and _has_scope(auth.uid(), 'read')
$$;
comment on function penstock.my_admin_tenants() is
  'The tenants that the calling user is an owner or admin of. Policies for stack traces and for addresses of '
  'notifications use it.';

create or replace function penstock._require_role(p_tenant_id uuid, p_roles text[])
returns void language plpgsql stable set search_path = penstock, pg_temp as $$
declare
  v_scope text := _scope_for(p_roles);
begin
  if v_scope <> 'read' and exists (select from tenants where id = p_tenant_id and suspended is not null) then
    perform _require_active(p_tenant_id);
  end if;
  if _is_service() then
    return;
  end if;
  if not exists (
    select from members where tenant_id = p_tenant_id and user_id = auth.uid() and role = any (p_roles)
  ) then
    -- The same error for another user's tenant and for one that does not exist.
    perform _refuse(403, 'forbidden', 'you do not have permission to do this in this tenant');
  end if;
  if not _has_scope(auth.uid(), v_scope) then
    perform _refuse(403, 'missing_scope', format('the API key does not have the scope %s', v_scope),
      jsonb_build_object('scope', v_scope), 'Create a key with this scope.');
  end if;
end
$$;
comment on function penstock._require_role(uuid, text[]) is
  'Raises an error unless the caller is the service or a member with one of these roles; of an API key also '
  'unless it has the scope that follows from the roles. For roles that may write also while the tenant is '
  'suspended.';

create or replace function penstock._caller_tenant(p_tenant_id uuid)
returns uuid language plpgsql stable set search_path = penstock, pg_temp as $$
declare
  v_tenant_id uuid := coalesce(p_tenant_id, _own_tenant());
begin
  perform _require_role(v_tenant_id, array['owner', 'admin', 'member']);
  if not exists (select from tenants where id = v_tenant_id) then
    perform _refuse(404, 'unknown_tenant', 'there is no such tenant');
  end if;
  return v_tenant_id;
end
$$;
comment on function penstock._caller_tenant(uuid) is
  'The tenant that a call acts for: the named one if the caller has access, else the caller''s own.';

create or replace function penstock._own_tenant()
returns uuid language plpgsql stable set search_path = penstock, pg_temp as $$
declare
  v_tenants uuid[];
  v_default uuid;
begin
  if auth.uid() is null then
    perform _refuse(422, 'tenant_missing', 'tenant_id is missing from the options', '{}',
      'The service must name the tenant that it acts for.');
  end if;
  v_tenants := array(
    select tenant_id from members where user_id = auth.uid() and role in ('owner', 'admin', 'member'));
  if cardinality(v_tenants) = 0 then
    perform _refuse(403, 'no_tenant', 'you are not an owner, admin or member of any tenant');
  end if;
  -- A user with a personal tenant works there unless the call names another one: any tenant
  -- may add the user as a member, and must not receive the user's jobs because of that.
  select tenant_id into v_default from profiles where user_id = auth.uid();
  v_default := coalesce(v_default, case when cardinality(v_tenants) = 1 then v_tenants[1] end);
  if v_default is null or not v_default = any (v_tenants) then
    perform _refuse(422, 'tenant_missing', 'you belong to several tenants: set tenant_id in the options');
  end if;
  return v_default;
end
$$;
comment on function penstock._own_tenant() is
  'The tenant that a call acts for if it names none: the caller''s own, or the only one.';

create or replace function penstock._plan_in_setting(p_setting text)
returns text language plpgsql stable set search_path = penstock, pg_temp as $$
declare
  v_plan text := (_setting(p_setting)) #>> '{}';
begin
  -- A missing plan must not look like one without limits.
  if not exists (select from plans p where p.name = v_plan) then
    perform _refuse(422, 'unknown_plan', format('the setting %s names no plan (got %L)', p_setting, v_plan),
      '{}', 'Set it to the name of a plan, or to unlimited.');
  end if;
  return v_plan;
end
$$;
comment on function penstock._plan_in_setting(text) is
  'The plan that a setting names. Raises an error if there is no such plan.';

create or replace function penstock.create_tenant(p_name text, p_weight double precision default 1)
returns uuid language plpgsql security definer set search_path = penstock, pg_temp as $$
declare
  v_id uuid;
begin
  perform _check_name(p_name, 'name');
  if p_weight is null or not (p_weight > 0 and p_weight <= 1000) then
    perform _refuse(422, 'invalid_weight',
      format('weight must be greater than 0 and at most 1000 (got %s)', coalesce(p_weight::text, 'null')));
  end if;
  insert into tenants (name, weight, created_at, plan)
  values (p_name, p_weight, _now(), _plan_in_setting('tenant_plan')) returning id into v_id;
  perform _audit(v_id, 'tenant.created', null, 'tenant:' || v_id, jsonb_build_object('name', p_name));
  return v_id;
end
$$;
comment on function penstock.create_tenant(text, double precision) is
  'Creates a tenant with the plan in the setting tenant_plan and returns its id. set_tenant_plan changes it.';

create or replace function penstock.ensure_tenant(p_name text)
returns uuid language plpgsql security definer set search_path = penstock, pg_temp as $$
declare
  v_id uuid;
begin
  select id into v_id from tenants where name = p_name and not is_personal order by id limit 1;
  if v_id is null then
    -- Names are not unique, so a lock makes concurrent calls with the same name return the same tenant.
    perform pg_advisory_xact_lock(hashtextextended('penstock.tenant:' || p_name, 0));
    select id into v_id from tenants where name = p_name and not is_personal order by id limit 1;
  end if;
  if v_id is null then
    v_id := create_tenant(p_name);
    perform set_tenant_plan(v_id, 'unlimited');
  end if;
  return v_id;
end
$$;
comment on function penstock.ensure_tenant(text) is
  'The oldest tenant with this name. Creates it if there is none, with the plan unlimited: for the tenants '
  'of the operator''s own apps.';

create or replace function penstock.set_tenant_weight(p_tenant_id uuid, p_weight double precision)
returns void language plpgsql security definer set search_path = penstock, pg_temp as $$
begin
  if p_weight is null or not (p_weight > 0 and p_weight <= 1000) then
    perform _refuse(422, 'invalid_weight',
      format('weight must be greater than 0 and at most 1000 (got %s)', coalesce(p_weight::text, 'null')));
  end if;
  perform _require_tenant(p_tenant_id);
  update tenants set weight = p_weight where id = p_tenant_id;
  perform _audit(p_tenant_id, 'tenant.weight_set', null, 'tenant:' || p_tenant_id,
    jsonb_build_object('weight', p_weight));
end
$$;
comment on function penstock.set_tenant_weight(uuid, double precision) is
  'Changes a tenant''s share of every lane, for tasks queued from now on.';

create or replace function penstock._require_member_role(p_tenant_id uuid, p_user_id uuid, p_role text)
returns void language plpgsql stable set search_path = penstock, pg_temp as $$
begin
  -- Every member may leave.
  if p_role is null and p_user_id = auth.uid() then
    perform _require_role(p_tenant_id, array['owner', 'admin', 'member', 'viewer']);
    return;
  end if;
  -- A stranger fails here, whatever the tenant's members are.
  perform _require_role(p_tenant_id, array['owner', 'admin']);
  if p_role = 'owner' or exists (
      select from members where tenant_id = p_tenant_id and user_id = p_user_id and role = 'owner') then
    perform _require_role(p_tenant_id, array['owner']);
  end if;
end
$$;
comment on function penstock._require_member_role(uuid, uuid, text) is
  'Raises an error unless the caller may give this user this role; null: remove the user.';

create or replace function penstock._require_consent(p_tenant_id uuid, p_user_id uuid)
returns void language plpgsql stable set search_path = penstock, pg_temp as $$
begin
  if not _is_service() then
    perform _refuse(403, 'consent_required', 'a user becomes a member by accepting an invitation', '{}',
      'Create an invitation and send its link to the user.');
  end if;
  if exists (select from tenant_blocks where user_id = p_user_id and tenant_id = p_tenant_id) then
    perform _refuse(409, 'blocked', 'the user has blocked this tenant', '{}', 'Send the user an invitation.');
  end if;
end
$$;
comment on function penstock._require_consent(uuid, uuid) is
  'Raises an error unless the caller may make the user a member without asking: the service may, except '
  'for a user who blocked the tenant.';

create or replace function penstock.set_member(p_tenant_id uuid, p_user_id uuid, p_role text)
returns void language plpgsql security definer set search_path = penstock, pg_temp as $$
begin
  perform _require_member_role(p_tenant_id, p_user_id, p_role);
  if p_role is not null and p_role not in ('owner', 'admin', 'member', 'viewer') then
    perform _refuse(422, 'invalid_role',
      format('role must be owner, admin, member or viewer, or null to remove the member (got %L)',
        left(p_role, 100)));
  end if;
  perform 1 from tenants where id = p_tenant_id for update;
  -- Also a member who leaves: the tenant's other database would still have the membership.
  perform _require_tenant(p_tenant_id);
  -- The first check keeps strangers from locking a tenant. The roles may have changed while the call waited.
  perform _require_member_role(p_tenant_id, p_user_id, p_role);
  if p_role is not null and not exists (
      select from members where tenant_id = p_tenant_id and user_id = p_user_id) then
    perform _require_consent(p_tenant_id, p_user_id);
  end if;
  perform _end_member_keys(p_tenant_id, p_user_id, p_role);
  if p_role is null then
    delete from members where tenant_id = p_tenant_id and user_id = p_user_id;
  else
    insert into members (tenant_id, user_id, role, created_at)
      values (p_tenant_id, p_user_id, p_role, _now())
    on conflict (tenant_id, user_id) do update set role = excluded.role;
  end if;
  if not exists (select from members where tenant_id = p_tenant_id and role = 'owner')
     and exists (select from members where tenant_id = p_tenant_id) then
    perform _refuse(409, 'last_owner', 'a tenant with members must keep at least one owner', '{}',
      'Make another member an owner first.');
  end if;
  perform _audit(p_tenant_id, 'member.set', null, 'user:' || p_user_id, jsonb_build_object('role', p_role));
end
$$;
comment on function penstock.set_member(uuid, uuid, text) is
  'Changes a member''s role; null removes the member. Only the service can add a user: others invite.';

create or replace function penstock._create_user(p_user_id uuid, p_email text)
returns void language plpgsql set search_path = penstock, pg_temp as $$
declare
  v_tenant_id uuid;
  v_name text := left(coalesce(nullif(split_part(p_email, '@', 1), ''), 'personal'), 200);
begin
  v_name := case when _is_clean(v_name) then v_name else 'personal' end;
  insert into tenants (name, is_personal, created_at, plan)
  values (v_name, true, _now(), _plan_in_setting('default_plan')) returning id into v_tenant_id;
  insert into profiles (user_id, tenant_id, email, created_at)
  values (p_user_id, v_tenant_id, p_email, _now());
  insert into members (tenant_id, user_id, role, created_at) values (v_tenant_id, p_user_id, 'owner', _now());
  insert into audit_log (at, tenant_id, actor, action, subject)
  values (_now(), v_tenant_id, 'user:' || p_user_id, 'user.created', 'user:' || p_user_id);
end
$$;
comment on function penstock._create_user(uuid, text) is
  'Creates a profile and a personal tenant for a user.';

create or replace function penstock.on_new_user()
returns trigger language plpgsql security definer set search_path = penstock, pg_temp as $$
declare
  v_name text := left(coalesce(nullif(btrim(to_jsonb(new) #>> '{raw_user_meta_data,full_name}'), ''),
    nullif(split_part(to_jsonb(new) ->> 'email', '@', 1), '')), 200);
begin
  perform _create_user(new.id, to_jsonb(new) ->> 'email');
  -- Ignores a name with control characters instead of refusing the user.
  update profiles set display_name = v_name where user_id = new.id and _is_clean(v_name);
  return new;
end
$$;
comment on function penstock.on_new_user() is
  'Creates a profile and a personal tenant for a new user. The name comes from full_name of the sign-up, '
  'otherwise from the e-mail address.';

create or replace function penstock._erase_tenant(p_tenant_id uuid)
returns void language plpgsql set search_path = penstock, pg_temp as $$
declare
  v_long_ago timestamptz := _now() - make_interval(days => (_setting('retention_days'))::integer + 1);
  v_job_id uuid;
begin
  perform _end_keys(array(
    select k.id from api_keys k where k.tenant_id = p_tenant_id and k.revoked_at is null));
  update api_keys set name = 'erased' where tenant_id = p_tenant_id;
  delete from invitations where tenant_id = p_tenant_id;
  delete from members where tenant_id = p_tenant_id;
  delete from profiles where tenant_id = p_tenant_id;
  delete from schedules where tenant_id = p_tenant_id;
  delete from notification_targets where tenant_id = p_tenant_id;
  delete from notifications where tenant_id = p_tenant_id;
  delete from failures where tenant_id = p_tenant_id;
  delete from streaks where tenant_id = p_tenant_id;
  delete from operations where tenant_id = p_tenant_id;
  delete from webhooks where tenant_id = p_tenant_id;
  update operator_alerts set details = '{}' where tenant_id = p_tenant_id;
  for v_job_id in
    select id from jobs where tenant_id = p_tenant_id and finished_at is null order by id for no key update
  loop
    perform _stop_job(v_job_id, p_tenant_id, 'canceled', 'the user was erased');
  end loop;
  -- prune deletes these jobs with all their rows next, and waits for attempts that are still running.
  update jobs set finished_at = v_long_ago, status_reason = null where tenant_id = p_tenant_id;
  update artifacts set subject = null, kept_until = null, name = 'erased' where id = any (array(
    select id from artifacts where tenant_id = p_tenant_id order by id for update));
  perform _delete_artifacts(array(
    select a from artifacts a where a.tenant_id = p_tenant_id and a.status <> 'deleted' order by a.id));
  update usage_events set details = '{}' where tenant_id = p_tenant_id and details <> '{}';
  perform set_config('penstock.erasing', 'on', true);
  update cost_entries set reason = null, key = null where tenant_id = p_tenant_id
    and (reason is not null or key is not null);
  perform set_config('penstock.erasing', '', true);
  perform _clear_audit_details(p_tenant_id, null);
  update tenants set name = 'erased' where id = p_tenant_id;
end
$$;
comment on function penstock._erase_tenant(uuid) is
  'Removes what a tenant stored. Ledger and audit log keep amounts, actions and ids.';

create or replace function penstock.erase_user(p_user_id uuid)
returns jsonb language plpgsql security definer set search_path = penstock, pg_temp as $$
declare
  v_email text;
  v_tenant_id uuid;
  v_teams uuid[];
begin
  if exists (select from api_keys where id = p_user_id) then
    perform _refuse(422, 'invalid_user', 'this is the id of an API key: revoke the key');
  end if;
  -- Before any row: a push of this user holds this lock while its foreign keys wait for the profile.
  perform lock_owner(p_user_id);
  perform from tenants where id in (select tenant_id from members where user_id = p_user_id
    union select tenant_id from profiles where user_id = p_user_id) order by id for update;
  select p.email, t.id into v_email, v_tenant_id from profiles p
    left join tenants t on t.id = p.tenant_id and t.is_personal where p.user_id = p_user_id;
  v_teams := array(select m.tenant_id from members m where m.user_id = p_user_id
    and m.tenant_id is distinct from v_tenant_id order by 1);
  perform _end_keys(array(select k.id from api_keys k where k.owner_id = p_user_id and k.revoked_at is null));
  update api_keys set name = 'erased' where owner_id = p_user_id;
  delete from sessions where subject = p_user_id
    or key_id in (select k.id from api_keys k where k.owner_id = p_user_id);
  delete from invitations where inviter_id = p_user_id and status = 'pending';
  update invitations set email = null where answered_by = p_user_id or lower(email) = lower(v_email);
  delete from tenant_blocks where user_id = p_user_id;
  delete from identities where user_id = p_user_id;
  delete from requests where actor = 'user:' || p_user_id;
  delete from actions where user_id = p_user_id;
  update operator_alerts set details = '{}' where details ->> 'by' = 'user:' || p_user_id;
  if v_tenant_id is not null then
    perform _erase_tenant(v_tenant_id);
  end if;
  delete from members where user_id = p_user_id;
  delete from profiles where user_id = p_user_id;
  perform _erase_synced_rows(p_user_id);
  perform _clear_audit_details(null, p_user_id);
  delete from auth.users where id = p_user_id;
  perform _audit(null, 'user.erased', null, 'user:' || p_user_id);
  return jsonb_build_object('user_id', p_user_id, 'tenant_id', v_tenant_id, 'teams', v_teams,
    'without_owner', array(select t from unnest(v_teams) as t where not exists (
      select from members m where m.tenant_id = t and m.role = 'owner')));
end
$$;
comment on function penstock.erase_user(uuid) is
  'Erases a user: memberships, API keys, sessions, invitations, the profile, and the personal tenant with '
  'its jobs, rows and files. Ledger and audit log keep ids only. Upkeep removes job rows and files '
  'within minutes. Returns the teams that the user left, and those that have no owner now.';

create or replace function penstock._on_deleted_user()
returns trigger language plpgsql security definer set search_path = penstock, pg_temp as $$
begin
  if exists (select from profiles where user_id = old.id) then
    perform erase_user(old.id);
  end if;
  return null;
end
$$;
comment on function penstock._on_deleted_user() is 'Erases a user whom the authentication service deleted.';

create or replace trigger penstock_on_deleted_user after delete on auth.users
  for each row execute function penstock._on_deleted_user();

create or replace trigger penstock_on_new_user after insert on auth.users
  for each row execute function penstock.on_new_user();
