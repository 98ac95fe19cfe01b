-- Functions for the SQL of apps. An app's own functions and policies call these; names with an underscore are
-- internal and may change.

create or replace function penstock.clock()
returns timestamptz language sql volatile security definer set search_path = penstock, pg_temp as $$
  select _now()
$$;
comment on function penstock.clock() is
  'The current time. Apps read it here, so that tests can replace the clock of apps too.';

create or replace function penstock.refuse(
  p_status integer, p_code text, p_message text, p_fields jsonb default '{}', p_hint text default null)
returns void language plpgsql security definer set search_path = penstock, pg_temp as $$
begin
  if p_status is null or p_status not between 400 and 599 or coalesce(p_code, '') !~ '^[a-z][a-z0-9_]{0,99}$'
     or p_message is null or jsonb_typeof(coalesce(p_fields, '{}')) <> 'object' then
    perform _refuse(422, 'invalid', format(
      'refuse needs a status of 400 to 599 (got %s), a code of lower-case letters, digits and underscores '
      '(got %L), a message and an object of fields', coalesce(p_status::text, 'null'), left(p_code, 100)));
  end if;
  perform _refuse(p_status, p_code, p_message, coalesce(p_fields, '{}'), p_hint);
end
$$;
comment on function penstock.refuse(integer, text, text, jsonb, text) is
  'Raises an error as Penstock''s own functions do: an HTTP status, a stable code, a message, detail fields '
  'and a hint.';

create or replace function penstock.is_service()
returns boolean language sql stable security definer set search_path = penstock, pg_temp as $$
  select _is_service()
$$;
comment on function penstock.is_service() is
  'Whether the caller is the service (a worker or an operator) rather than a user.';

create or replace function penstock.my_tenant()
returns uuid language sql stable security definer set search_path = penstock, pg_temp as $$
  -- The same tenant that start_job uses when the call names none.
  with mine as (
    select tenant_id from members where user_id = auth.uid() and role in ('owner', 'admin', 'member')
  ), own as (
    select coalesce((select tenant_id from profiles where user_id = auth.uid()),
      (select min(tenant_id::text)::uuid from mine having count(*) = 1)) as tenant_id
  )
  select tenant_id from own where tenant_id in (select tenant_id from mine)
$$;
comment on function penstock.my_tenant() is
  'The tenant that the calling user works in unless a call names another one; null for the service.';

create or replace function penstock.is_member(
  p_tenant_id uuid, p_roles text[] default '{owner,admin,member,viewer}')
returns boolean language plpgsql stable security definer set search_path = penstock, pg_temp as $$
begin
  -- Policies ask for these roles before a write, which must not be lost in a cell that the tenant leaves.
  if _scope_for(p_roles) <> 'read' then
    perform _require_active(p_tenant_id);
  end if;
  return _is_service() or exists (
    select from members where tenant_id = p_tenant_id and user_id = auth.uid() and role = any (p_roles))
    and _has_scope(auth.uid(), _scope_for(p_roles));
end
$$;
comment on function penstock.is_member(uuid, text[]) is
  'Whether the caller is the service, or a member of the tenant with one of these roles. For roles that may '
  'write it raises an error while the tenant is suspended.';

create or replace function penstock.require_member(
  p_tenant_id uuid, p_roles text[] default '{owner,admin,member}')
returns void language plpgsql stable security definer set search_path = penstock, pg_temp as $$
begin
  perform _require_role(p_tenant_id, p_roles);
end
$$;
comment on function penstock.require_member(uuid, text[]) is
  'Raises an error unless the caller is the service, or a member of the tenant with one of these roles.';

create or replace function penstock.require_tenant(p_tenant_id uuid default null)
returns uuid language plpgsql stable security definer set search_path = penstock, pg_temp as $$
begin
  return _caller_tenant(p_tenant_id);
end
$$;
comment on function penstock.require_tenant(uuid) is
  'The tenant that start_job would use for these options, or the error that it would raise. The API calls it '
  'before it reads a file or runs the body of a job type.';

create or replace function penstock.record_audit(
  p_action text, p_subject text, p_details jsonb default '{}', p_tenant_id uuid default null,
  p_job_id uuid default null)
returns bigint language plpgsql security definer set search_path = penstock, pg_temp as $$
declare
  v_id bigint;
begin
  perform _check_clean(p_subject, 'p_subject', 'invalid_subject');
  if coalesce(p_action, '') !~ '^[a-z][a-z0-9_]*(\.[a-z0-9_]+)+$' or length(p_action) > 100 then
    perform _refuse(422, 'invalid_action',
      format('an audit action must be of the form app.verb, at most 100 characters (got %L)',
        left(p_action, 100)), '{"field": "p_action"}');
  end if;
  if length(p_subject) > 400 then
    perform _refuse(422, 'invalid_subject', format('subject must have at most 400 characters (got %s)',
      length(p_subject)), '{"field": "p_subject"}');
  end if;
  if jsonb_typeof(p_details) is distinct from 'object' then
    perform _refuse(422, 'invalid_options', format('details must be a JSON object (got %s)',
      coalesce(jsonb_typeof(p_details), 'null')), '{"field": "p_details"}');
  end if;
  perform _check_document(p_details, 'p_details', 65536);
  insert into audit_log (at, tenant_id, actor, action, job_id, subject, details)
  values (_now(), p_tenant_id, _actor(), p_action, p_job_id, p_subject, p_details) returning id into v_id;
  return v_id;
end
$$;
comment on function penstock.record_audit(text, text, jsonb, uuid, uuid) is
  'Adds a line of an app to the audit log, in the transaction of the caller. Members of the tenant can read '
  'it; a line without a tenant is for the service only.';

create or replace function penstock.backpressure_delay(
  p_provider text, p_tenant_id uuid default null, p_default_seconds double precision default null)
returns double precision language plpgsql stable security definer set search_path = penstock, pg_temp as $$
declare
  v_endpoint endpoints := _required_endpoint(p_provider, p_tenant_id);
begin
  if v_endpoint.backpressure_delay_seconds is null then
    v_endpoint.backpressure_delay_seconds := p_default_seconds;
  end if;
  return case when _is_under_pressure(v_endpoint, _now()) then v_endpoint.backpressure_delay_seconds
    else 0 end;
end
$$;
comment on function penstock.backpressure_delay(text, uuid, double precision) is
  'By how many seconds new tasks of a provider are delayed now: 0 below its backpressure_threshold. A '
  'provider without a delay of its own uses p_default_seconds.';

-- Settings of apps

create or replace function penstock.define_setting(p_name text, p_value jsonb, p_comment text)
returns void language plpgsql security definer set search_path = penstock, pg_temp as $$
declare
  v_old settings;
begin
  if coalesce(p_name, '') !~ '^[a-z][a-z0-9_]{0,62}\.[a-z][a-z0-9_]{0,62}$' then
    perform _refuse(422, 'invalid_setting',
      format('the name of an app''s setting must be of the form app.word (got %L)', left(p_name, 200)),
      '{"field": "p_name"}');
  end if;
  if p_value is null or jsonb_typeof(p_value) = 'null' or p_comment is null then
    perform _refuse(422, 'invalid_setting',
      format('%s needs a value that is not null, and a comment', p_name), '{"field": "p_value"}');
  end if;
  perform _check_document(p_value, 'p_value', 65536);
  insert into settings (name, value, comment) values (p_name, p_value, p_comment)
    on conflict (name) do nothing;
  if found then
    perform _audit(null, 'setting.defined', null, 'setting:' || p_name, jsonb_build_object('to', p_value));
    return;
  end if;
  select * into v_old from settings where name = p_name for update;
  if jsonb_typeof(v_old.value) = jsonb_typeof(p_value) then
    update settings set comment = p_comment where name = p_name and comment <> p_comment;
    return;
  end if;
  -- The app's new version cannot read a value of the old type.
  update settings set value = p_value, comment = p_comment where name = p_name;
  perform _audit(null, 'setting.defined', null, 'setting:' || p_name,
    jsonb_build_object('from', v_old.value, 'to', p_value));
end
$$;
comment on function penstock.define_setting(text, jsonb, text) is
  'Defines a setting of an app, named app.word, with its default. A value that an operator set stays, unless '
  'the type changes. An app''s SQL calls it.';

create or replace function penstock.get_setting(p_name text)
returns jsonb language plpgsql stable security definer set search_path = penstock, pg_temp as $$
declare
  v_value jsonb;
begin
  select value into v_value from settings where name = p_name;
  if not found then
    perform _refuse(404, 'unknown_setting', format('unknown setting %L', left(p_name, 200)));
  end if;
  return v_value;
end
$$;
comment on function penstock.get_setting(text) is
  'The value of a setting, of an app or of Penstock itself. Raises an error for an unknown name.';
