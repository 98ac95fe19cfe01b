-- Administration: an admin is a person who may help customers with these functions, and nothing else. The
-- role is in the profile; being an admin of a tenant is something else. Every change needs a reason and is
-- written to the audit log of the tenant concerned.

create or replace function penstock.is_admin()
returns boolean language sql stable security definer set search_path = penstock, pg_temp as $$
  select exists (
    select from profiles where user_id = auth.uid() and role = 'admin' and _has_scope(auth.uid(), 'admin'))
$$;
comment on function penstock.is_admin() is
  'Whether the caller is an admin of the installation: a person, not a key and not the service.';

create or replace function penstock.set_profile_role(p_user_id uuid, p_role text)
returns void language plpgsql security definer set search_path = penstock, pg_temp as $$
declare
  v_profile profiles;
begin
  if p_role is null or p_role not in ('user', 'admin') then
    perform _refuse(422, 'invalid_role', format('p_role must be user or admin (got %L)', left(p_role, 100)),
      '{"field": "p_role"}');
  end if;
  select * into v_profile from profiles where user_id = p_user_id for update;
  if not found or exists (select from api_keys where id = p_user_id) then
    perform _refuse(404, 'unknown_user', 'there is no such person');
  end if;
  if v_profile.role <> p_role then
    update profiles set role = p_role where user_id = p_user_id;
    perform _audit(v_profile.tenant_id, 'admin.role_changed', null, 'user:' || p_user_id,
      jsonb_build_object('from', v_profile.role, 'to', p_role));
  end if;
end
$$;
comment on function penstock.set_profile_role(uuid, text) is
  'Makes a person an admin of the installation, or a user again. Not granted to users.';

create or replace function penstock._require_admin()
returns void language plpgsql stable set search_path = penstock, pg_temp as $$
begin
  if not (_is_service() or is_admin()) then
    perform _refuse(403, 'forbidden', 'only admins of the installation may do this');
  end if;
end
$$;
comment on function penstock._require_admin() is
  'Raises an error unless the caller is an admin of the installation or the service.';

create or replace function penstock._admin_profile(p_user_id uuid, p_reason text)
returns penstock.profiles language plpgsql stable set search_path = penstock, pg_temp as $$
declare
  v_profile profiles;
begin
  perform _require_admin();
  perform _check_clean(p_reason, 'p_reason', 'invalid_reason');
  if coalesce(length(trim(p_reason)), 0) not between 3 and 1000 then
    perform _refuse(422, 'invalid_reason',
      format('p_reason must have 3 to 1000 characters (got %s)', coalesce(length(trim(p_reason)), 0)),
      '{"field": "p_reason"}');
  end if;
  select * into v_profile from profiles where user_id = p_user_id;
  if not found then
    perform _refuse(404, 'unknown_user', 'there is no such person');
  end if;
  return v_profile;
end
$$;
comment on function penstock._admin_profile(uuid, text) is
  'The profile that an admin is about to change; raises an error without permission or without a reason.';

create or replace function penstock.admin_list_profiles(
  p_filter text default null, p_after uuid default null, p_limit integer default 50)
returns table (user_id uuid, email text, display_name text, role text, tenant_id uuid, plan text, tier text,
  plan_until timestamptz, created_at timestamptz)
language plpgsql stable security definer set search_path = penstock, pg_temp as $$
begin
  perform _require_admin();
  return query
  select p.user_id, p.email, p.display_name, p.role, t.id, t.plan, _plan(t, _now()), t.plan_until,
    p.created_at
  from profiles p join tenants t on t.id = p.tenant_id
  where p.user_id > coalesce(p_after, '00000000-0000-0000-0000-000000000000')
    and not exists (select from api_keys k where k.id = p.user_id)
    and (coalesce(p_filter, '') = '' or p.user_id::text = p_filter
      or starts_with(lower(p.email), lower(p_filter)) or strpos(lower(p.display_name), lower(p_filter)) > 0)
  order by p.user_id limit least(greatest(p_limit, 1), 1000);
end
$$;
comment on function penstock.admin_list_profiles(text, uuid, integer) is
  'People with their plans, by id, for admins. p_filter is an id, the beginning of an e-mail address or a '
  'part of a name; p_after is the last id of the page before.';

create or replace function penstock.admin_get_profile(p_user_id uuid)
returns jsonb language plpgsql stable security definer set search_path = penstock, pg_temp as $$
declare
  v_now timestamptz := _now();
  v_found jsonb;
begin
  perform _require_admin();
  select jsonb_build_object('user_id', p.user_id, 'email', p.email, 'display_name', p.display_name,
    'role', p.role, 'created_at', p.created_at, 'tenant_id', t.id, 'plan', t.plan, 'tier', _plan(t, v_now),
    'plan_until', t.plan_until,
    'usage', (
      select coalesce(jsonb_object_agg(m.name, jsonb_build_object('used', coalesce(a.used, 0),
        'limit', l.amount)), '{}')
      from meters m left join _limits(t.id, v_now) as l on l.meter = m.name
      left join accounts a on a.tenant_id = t.id and a.job_id is null and a.meter = m.name
        and a.period = (_period(m.name, v_now)).starts
      where l.meter is not null or a.meter is not null),
    'overrides', (
      select coalesce(jsonb_agg(jsonb_build_object('meter', x.meter, 'amount', x.amount, 'source', x.source,
        'expires_on', x.expires_on, 'reason', x.reason) order by x.created_at desc), '[]')
      from allowances x where x.tenant_id = t.id and (x.expires_on is null
        or x.expires_on >= (v_now at time zone 'utc')::date)))
  into v_found from profiles p join tenants t on t.id = p.tenant_id where p.user_id = p_user_id;
  if v_found is null then
    perform _refuse(404, 'unknown_user', 'there is no such person');
  end if;
  return v_found;
end
$$;
comment on function penstock.admin_get_profile(uuid) is
  'A person with plan, usage, limits and overrides of their own tenant, for admins.';

create or replace function penstock.admin_set_override(
  p_user_id uuid, p_meter text, p_amount numeric, p_expires_on date, p_reason text)
returns uuid language plpgsql security definer set search_path = penstock, pg_temp as $$
declare
  v_profile profiles := _admin_profile(p_user_id, p_reason);
  v_id uuid;
begin
  if p_expires_on is null or p_expires_on < (_now() at time zone 'utc')::date then
    perform _refuse(422, 'invalid_expiry', format('p_expires_on must be today or later (got %s)',
      coalesce(p_expires_on::text, 'null')), '{"field": "p_expires_on"}');
  end if;
  v_id := add_allowance(v_profile.tenant_id, p_meter, p_amount, 'override', p_expires_on, trim(p_reason));
  perform _audit(v_profile.tenant_id, 'admin.override_set', null, 'user:' || p_user_id, jsonb_build_object(
    'meter', p_meter, 'amount', p_amount, 'expires_on', p_expires_on, 'reason', trim(p_reason)));
  return v_id;
end
$$;
comment on function penstock.admin_set_override(uuid, text, numeric, date, text) is
  'Lets a person use more of a meter until a day (included), for admins. The reason is in the audit log of '
  'the person''s tenant.';

create or replace function penstock.admin_set_plan(p_user_id uuid, p_plan text, p_reason text)
returns void language plpgsql security definer set search_path = penstock, pg_temp as $$
declare
  v_profile profiles := _admin_profile(p_user_id, p_reason);
  v_before text := (select plan from tenants where id = v_profile.tenant_id);
begin
  perform set_tenant_plan(v_profile.tenant_id, p_plan);
  perform _audit(v_profile.tenant_id, 'admin.plan_set', null, 'user:' || p_user_id,
    jsonb_build_object('from', v_before, 'to', p_plan, 'reason', trim(p_reason)));
end
$$;
comment on function penstock.admin_set_plan(uuid, text, text) is
  'Puts the own tenant of a person on a plan, for admins. The reason is in the audit log of that tenant.';

create or replace function penstock.admin_spend(p_month date default null)
returns jsonb language plpgsql stable security definer set search_path = penstock, pg_temp as $$
begin
  perform _require_admin();
  return spend(p_month);
end
$$;
comment on function penstock.admin_spend(date) is 'What spend returns, for admins.';
