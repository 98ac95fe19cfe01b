-- Settings: configuration shared by all workers.

create or replace function penstock._setting(p_name text)
returns jsonb language sql stable set search_path = penstock, pg_temp as $$
  select value from penstock.settings where name = p_name
$$;
comment on function penstock._setting(text) is 'The value of a setting.';

insert into penstock.settings (name, value, comment) values
  ('maintenance', 'false', 'While true, no task is claimed; running tasks end normally.'),
  ('lease_seconds', '150',
    'How long a lease lasts without a heartbeat. 150: one heartbeat of every 60 seconds may get lost.'),
  ('max_deaths', '3', 'A task whose worker dies this many times becomes a dead letter.'),
  ('reclaim_jitter_seconds', '0',
    'Tasks of a worker that died start again after a random time of at most this; 0: at once.'),
  ('max_input_bytes', '262144', 'Maximum size of a task''s input and of a job''s params.'),
  ('max_output_bytes', '262144', 'Maximum size of a task''s output in the database.'),
  ('max_tasks_per_call', '100000', 'Maximum number of tasks that one call may add.'),
  ('retention_days', '90', 'How long ended jobs are kept.'),
  ('webhook_payload_days', '90', 'How long the payloads of processed webhooks are kept.'),
  ('base_currency', '"USD"',
    'Currency of budgets and cost totals. Do not change it once costs are recorded.'),
  ('raw_tasks', 'false',
    'Whether users may write tasks of kinds that do not say so themselves. False: they start job types.'),
  ('session_idle_minutes', '60', 'A dashboard session ends after this time without a request.'),
  ('session_hours', '24', 'A dashboard session ends this long after its sign-in.'),
  ('max_key_days', '0', 'Longest life of a new API key in days; 0: no limit.'),
  ('default_plan', '"free"', 'Plan of a user''s personal tenant; unlimited: no limits.'),
  ('tenant_plan', '"free"', 'Plan of a tenant that is created without one; unlimited: no limits.'),
  ('shared_sheet_accounts', '[]',
    'Google accounts (e-mail address or id) that serve several tenants. Others serve the tenant that used '
    'them first.'),
  ('cell', '0', 'The number of this database in an installation of several (cells). set_cell sets it.')
on conflict (name) do nothing;

create or replace function penstock.set_setting(p_name text, p_value jsonb)
returns void language plpgsql security definer set search_path = penstock, pg_temp as $$
declare
  v_old jsonb;
  v_min bigint := case when p_name in ('lease_seconds', 'max_deaths', 'max_tasks_per_call', 'session_hours',
      'session_idle_minutes', 'link_days') then 1
    else 0 end;
  v_max bigint := case p_name when 'lease_seconds' then 86400
    when 'retention_days' then 36500 when 'max_key_days' then 36500
    when 'session_hours' then 8760 when 'session_idle_minutes' then 525600
    when 'audit_retention_days' then 36500 when 'link_days' then 36500 when 'reclaim_jitter_seconds' then 3600
    else 2000000000 end;
begin
  select value into v_old from settings where name = p_name for update;
  if not found then
    perform _refuse(404, 'unknown_setting', format('unknown setting %L', p_name));
  end if;
  if p_name in ('cell', 'cell_ids_since') then
    perform _refuse(409, 'fixed_setting', format('%s cannot be changed: new ids depend on it', p_name), '{}',
      'penstock cells add sets the number of a new database.');
  end if;
  if jsonb_typeof(p_value) is distinct from jsonb_typeof(v_old) then
    perform _refuse(422, 'invalid_setting',
      format('%s must be a %s (got %s)', p_name, jsonb_typeof(v_old),
        coalesce(left(p_value::text, 100), 'null')));
  end if;
  if p_name in ('default_plan', 'tenant_plan') and p_value <> '"unlimited"'
     and not exists (select from plans where name = p_value #>> '{}' and is_active) then
    perform _refuse(422, 'invalid_setting',
      format('%s must be the name of a plan, or unlimited (got %s)', p_name, left(p_value::text, 100)));
  end if;
  if p_name = 'shared_sheet_accounts' and exists (
      select from jsonb_array_elements(p_value) as e where jsonb_typeof(e) <> 'string') then
    perform _refuse(422, 'invalid_setting', format('%s must be an array of strings (got %s)', p_name,
      left(p_value::text, 100)));
  end if;
  -- An unusable value would make every later call fail.
  if position('.' in p_name) > 0 then
    -- The app that defined it knows which values it accepts.
    perform _check_document(p_value, 'p_value', 65536);
  elsif jsonb_typeof(p_value) = 'number'
     and ((p_value)::numeric % 1 <> 0 or (p_value)::numeric not between v_min and v_max) then
    perform _refuse(422, 'invalid_setting',
      format('%s must be an integer between %s and %s (got %s)', p_name, v_min, v_max,
        left(p_value::text, 100)));
  end if;
  update settings set value = p_value, changed_at = _now() where name = p_name;
  perform _audit(null, 'setting.changed', null, 'setting:' || p_name,
    jsonb_build_object('from', v_old, 'to', p_value));
end
$$;
comment on function penstock.set_setting(text, jsonb) is 'Changes a setting and writes an audit line.';
