-- Invitations: users become members of a tenant only with their consent. The link holds a random token whose
-- SHA-256 is stored; it expires, and works once.

create or replace function penstock.create_invitation(
  p_role text, p_tenant_id uuid default null, p_options jsonb default '{}')
returns table (id uuid, tenant_id uuid, secret text, expires_at timestamptz)
language plpgsql security definer set search_path = penstock, pg_temp as $$
#variable_conflict use_column
declare
  c_max_pending constant integer := 100;
  v_secret text := 'psi_' || replace(gen_random_uuid()::text || gen_random_uuid()::text, '-', '');
  v_id uuid := gen_random_uuid();
  v_tenant_id uuid := coalesce(p_tenant_id, _own_tenant());
  v_days integer;
  v_email text;
  v_expires_at timestamptz;
begin
  perform _check_fields(p_options, array['email', 'days'], 'invitation');
  v_days := coalesce((p_options ->> 'days')::integer, 7);
  v_email := nullif(trim(p_options ->> 'email'), '');
  if v_email !~ '^[^@[:space:][:cntrl:]]{1,64}@[^@[:space:][:cntrl:]]{1,255}$' then
    perform _refuse(422, 'invalid_address', format('%L is not an e-mail address', left(v_email, 200)),
      '{"field": "email"}');
  end if;
  if p_role is null or p_role not in ('owner', 'admin', 'member', 'viewer') then
    perform _refuse(422, 'invalid_role',
      format('role must be owner, admin, member or viewer (got %L)', left(p_role, 100)), '{"field": "role"}');
  end if;
  if v_days not between 1 and 90 then
    perform _refuse(422, 'invalid_expiry', format('days must be between 1 and 90 (got %s)', v_days),
      '{"field": "days"}');
  end if;
  perform _require_member_role(v_tenant_id, null, p_role);
  perform from tenants t where t.id = v_tenant_id for no key update;
  if not found then
    perform _refuse(404, 'unknown_tenant', 'there is no such tenant');
  end if;
  perform _require_member_role(v_tenant_id, null, p_role);
  delete from invitations where tenant_id = v_tenant_id and expires_at < _now() - interval '30 days';
  if (select count(*) from invitations i where i.tenant_id = v_tenant_id and i.status = 'pending'
      and i.expires_at > _now()) >= c_max_pending then
    perform _refuse(409, 'too_many_invitations',
      format('the tenant already has %s pending invitations, which is the limit', c_max_pending),
      jsonb_build_object('limit', c_max_pending), 'Revoke invitations that are no longer needed.');
  end if;
  v_expires_at := _now() + make_interval(days => v_days);
  insert into invitations (id, tenant_id, role, email, digest, created_by, inviter_id, created_at, expires_at)
  values (v_id, v_tenant_id, p_role, v_email,
    sha256(convert_to(v_secret, 'utf8')), _actor(), case when not _is_service() then auth.uid() end, _now(),
    v_expires_at);
  perform _audit(v_tenant_id, 'invitation.created', null, 'invitation:' || v_id,
    jsonb_build_object('role', p_role));
  return query select v_id, v_tenant_id, v_secret, v_expires_at;
exception when data_exception then
  perform _refuse(422, 'invalid_options', 'days must be a whole number', '{"field": "days"}');
end
$$;
comment on function penstock.create_invitation(text, uuid, jsonb) is
  'Creates an invitation to a tenant. The secret for its link is returned once and is not stored. Options: '
  'email (only this user may accept), days (until it expires; default 7).';

create or replace function penstock.list_invitations(p_tenant_id uuid default null)
returns table (id uuid, tenant_id uuid, role text, email text, created_by text, created_at timestamptz,
  expires_at timestamptz, status text, answered_by uuid, answered_at timestamptz)
language plpgsql stable security definer set search_path = penstock, pg_temp as $$
#variable_conflict use_column
declare
  v_tenant_id uuid := coalesce(p_tenant_id, _own_tenant());
begin
  perform _require_role(v_tenant_id, array['owner', 'admin']);
  return query select i.id, i.tenant_id, i.role, i.email, i.created_by, i.created_at, i.expires_at,
    case when i.status = 'pending' and i.expires_at <= _now() then 'expired' else i.status end, i.answered_by,
    i.answered_at
  from invitations i where i.tenant_id = v_tenant_id order by i.created_at desc, i.id limit 1000;
end
$$;
comment on function penstock.list_invitations(uuid) is 'Lists the invitations of a tenant, newest first.';

create or replace function penstock.revoke_invitation(p_invitation_id uuid)
returns void language plpgsql security definer set search_path = penstock, pg_temp as $$
declare
  v_invitation invitations;
begin
  select * into v_invitation from invitations where id = p_invitation_id and _is_member(tenant_id) for update;
  if not found then
    perform _refuse(404, 'unknown_invitation', 'there is no such invitation');
  end if;
  perform _require_role(v_invitation.tenant_id, array['owner', 'admin']);
  if v_invitation.status = 'pending' then
    update invitations set status = 'revoked', answered_at = _now() where id = p_invitation_id;
    perform _audit(v_invitation.tenant_id, 'invitation.revoked', null, 'invitation:' || p_invitation_id);
  end if;
end
$$;
comment on function penstock.revoke_invitation(uuid) is 'Revokes a pending invitation.';

create or replace function penstock._open_invitation(p_secret text)
returns penstock.invitations language plpgsql set search_path = penstock, pg_temp as $$
declare
  v_invitation invitations;
begin
  if auth.uid() is null or _is_service() or exists (select from api_keys k where k.id = auth.uid()) then
    perform _refuse(403, 'forbidden', 'only a user may answer an invitation');
  end if;
  select * into v_invitation from invitations
    where digest = sha256(convert_to(coalesce(p_secret, ''), 'utf8'));
  if found then
    -- Lock order: the tenant first, as everything that changes members does.
    perform from tenants where id = v_invitation.tenant_id for update;
    perform _require_active(v_invitation.tenant_id);
    select * into v_invitation from invitations where id = v_invitation.id for update;
  end if;
  if v_invitation.id is null or v_invitation.status <> 'pending' or v_invitation.expires_at <= _now() then
    perform _refuse(404, 'unknown_invitation', 'the invitation does not exist, has expired or was used', '{}',
      'Ask for a new one.');
  end if;
  if v_invitation.email is not null and not exists (
      select from profiles p where p.user_id = auth.uid() and lower(p.email) = lower(v_invitation.email)) then
    perform _refuse(403, 'wrong_recipient', 'the invitation is for another e-mail address');
  end if;
  return v_invitation;
end
$$;
comment on function penstock._open_invitation(text) is
  'Locks the tenant and the pending invitation with this secret, if the caller may answer it.';

create or replace function penstock.get_invitation(p_secret text)
returns table (tenant_id uuid, tenant text, role text, expires_at timestamptz)
language sql stable security definer set search_path = penstock, pg_temp as $$
  select t.id, t.name, i.role, i.expires_at from invitations i join tenants t on t.id = i.tenant_id
  where i.digest = sha256(convert_to(coalesce(p_secret, ''), 'utf8')) and i.status = 'pending'
    and i.expires_at > _now()
$$;
comment on function penstock.get_invitation(text) is
  'The tenant and role of a pending invitation; no row if it does not exist, has expired or was used.';

create or replace function penstock.accept_invitation(p_secret text)
returns uuid language plpgsql security definer set search_path = penstock, pg_temp as $$
declare
  v_invitation invitations := _open_invitation(p_secret);
  v_user_id uuid := auth.uid();
begin
  if v_invitation.inviter_id is not null and not exists (
      select from members m where m.tenant_id = v_invitation.tenant_id and m.user_id = v_invitation.inviter_id
        and (m.role = 'owner' or m.role = 'admin' and v_invitation.role <> 'owner')) then
    perform _refuse(409, 'inviter_gone', 'the creator of the invitation may no longer invite with this role',
      '{}', 'Ask for a new one.');
  end if;
  if exists (select from members m where m.tenant_id = v_invitation.tenant_id and m.user_id = v_user_id) then
    perform _refuse(409, 'already_member', 'you are a member of this tenant already');
  end if;
  -- Accepting is consent: it ends an earlier block.
  delete from tenant_blocks where user_id = v_user_id and tenant_id = v_invitation.tenant_id;
  insert into members (tenant_id, user_id, role, created_at)
    values (v_invitation.tenant_id, v_user_id, v_invitation.role, _now());
  update invitations set status = 'accepted', answered_by = v_user_id, answered_at = _now()
    where id = v_invitation.id;
  perform _audit(v_invitation.tenant_id, 'invitation.accepted', null, 'user:' || v_user_id,
    jsonb_build_object('invitation', v_invitation.id, 'role', v_invitation.role));
  return v_invitation.tenant_id;
end
$$;
comment on function penstock.accept_invitation(text) is
  'Makes the calling user a member, with the role of the invitation. Returns the tenant.';

create or replace function penstock.decline_invitation(p_secret text)
returns void language plpgsql security definer set search_path = penstock, pg_temp as $$
declare
  v_invitation invitations := _open_invitation(p_secret);
begin
  update invitations set status = 'declined', answered_by = auth.uid(), answered_at = _now()
    where id = v_invitation.id;
  perform _audit(v_invitation.tenant_id, 'invitation.declined', null, 'invitation:' || v_invitation.id);
end
$$;
comment on function penstock.decline_invitation(text) is
  'Declines an invitation: nobody can use it any more.';

create or replace function penstock.leave_tenant(p_tenant_id uuid, p_block boolean default false)
returns void language plpgsql security definer set search_path = penstock, pg_temp as $$
begin
  if auth.uid() is null or _is_service() or exists (select from api_keys k where k.id = auth.uid()) then
    perform _refuse(403, 'forbidden', 'only a user may leave a tenant');
  end if;
  perform set_member(p_tenant_id, auth.uid(), null);
  if p_block then
    insert into tenant_blocks (user_id, tenant_id, created_at) values (auth.uid(), p_tenant_id, _now())
    on conflict do nothing;
  end if;
end
$$;
comment on function penstock.leave_tenant(uuid, boolean) is
  'Ends the caller''s membership; with p_block the tenant cannot make the caller a member again, except by '
  'an invitation that the caller accepts.';
