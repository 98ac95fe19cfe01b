-- The old names of settings and provider limits, for the views system_configuration and api_rate_limits.

create or replace function intake._configuration()
returns table (config_key text, setting text, config_type text) language sql immutable
set search_path = pg_catalog, pg_temp as $$
  values ('worker.heartbeat_interval_seconds', 'intake.heartbeat_interval_seconds', 'system'),
    ('worker.timeout_seconds', 'intake.timeout_seconds', 'system'),
    ('worker.reclaim_jitter_max_seconds', 'reclaim_jitter_seconds', 'system'),
    ('queue.backpressure_delay_seconds', 'intake.backpressure_delay_seconds', 'system'),
    ('features.usage_tracking_enabled', 'intake.usage_tracking_enabled', 'boolean'),
    ('features.billing_enabled', 'intake.billing_enabled', 'boolean'),
    ('features.upgrade_prompts_enabled', 'intake.upgrade_prompts_enabled', 'boolean'),
    ('system.maintenance_mode', 'maintenance', 'boolean')
$$;
comment on function intake._configuration() is
  'The keys of system_configuration, and the settings behind them.';

create or replace function intake._set_configuration()
returns trigger language plpgsql security definer set search_path = intake, pg_temp as $$
declare
  v_type text;
  v_setting text;
  v_number numeric;
  v_other numeric;
begin
  if not penstock.is_service() then
    perform penstock.refuse(403, 'forbidden', 'only the service changes the configuration');
  end if;
  if to_jsonb(new) - array['config_value', 'updated_at']
     <> to_jsonb(old) - array['config_value', 'updated_at'] then
    perform penstock.refuse(422, 'read_only_column', 'only config_value can be changed');
  end if;
  select coalesce(c.setting, old.config_key) into v_setting from (select) as x
    left join intake._configuration() as c on c.config_key = old.config_key;
  v_type := jsonb_typeof(penstock.get_setting(v_setting));
  if v_type = 'boolean' and coalesce(new.config_value, '') not in ('true', 'false')
     or v_type = 'number' and coalesce(new.config_value, '') !~ '^[0-9]{1,6}$'
     or new.config_value is null then
    perform penstock.refuse(422, 'invalid_setting', format('%s must be a %s (got %L)', old.config_key,
      case v_type when 'number' then 'whole number of seconds below 1000000' else v_type end,
      left(new.config_value, 100)), '{"field": "config_value"}');
  end if;
  if old.config_key in ('worker.heartbeat_interval_seconds', 'worker.timeout_seconds') then
    -- A worker that misses one heartbeat must not lose its job.
    v_number := new.config_value::numeric;
    if old.config_key = 'worker.timeout_seconds' then
      v_other := (penstock.get_setting('intake.heartbeat_interval_seconds'))::numeric;
    else
      v_other := v_number;
      v_number := (penstock.get_setting('intake.timeout_seconds'))::numeric;
    end if;
    if v_other < 1 or v_number < 2 * v_other or v_number > 86400 then
      perform penstock.refuse(422, 'invalid_setting', format(
        'worker.timeout_seconds must be at least twice the heartbeat interval and at most 86400 '
        '(got %s and %s)',
        v_number, v_other), '{"field": "config_value"}');
    end if;
  end if;
  if old.config_key like 'features.%' then
    perform intake.set_feature(substr(v_setting, 8, length(v_setting) - 15), new.config_value::boolean);
  else
    perform penstock.set_setting(v_setting,
      case v_type when 'string' then to_jsonb(new.config_value) else new.config_value::jsonb end);
  end if;
  new.updated_at := penstock.clock();
  return new;
end
$$;
comment on function intake._set_configuration() is
  'Changes the setting behind a row of system_configuration, after a check of the value.';

create or replace function intake._set_rate_limit()
returns trigger language plpgsql security definer set search_path = intake, pg_temp as $$
declare
  c_names constant jsonb := '{"requests_per_minute": "requests_per_minute",
    "requests_per_hour": "requests_per_hour", "tokens_per_minute": "tokens_per_minute",
    "tokens_per_hour": "tokens_per_hour", "concurrent_requests": "concurrency", "status": "status",
    "backpressure_threshold": "backpressure_threshold", "queue_depth_limit": "depth_limit",
    "backpressure_delay_seconds": "backpressure_delay_seconds"}';
  v_changed jsonb;
begin
  if not penstock.is_service() then
    perform penstock.refuse(403, 'forbidden', 'only the service changes limits of providers');
  end if;
  select jsonb_object_agg(n.key, n.value) into v_changed from jsonb_each(to_jsonb(new)) as n
    where n.value is distinct from to_jsonb(old) -> n.key;
  if v_changed - array(select jsonb_object_keys(c_names)) <> '{}' then
    perform penstock.refuse(422, 'read_only_column', format('%s cannot be changed: usage is counted, not set',
      (select string_agg(k, ', ' order by k) from jsonb_object_keys(v_changed) as k where not c_names ? k)));
  end if;
  perform penstock.set_provider(old.provider_name || '/' || old.api_endpoint, (
    select coalesce(jsonb_object_agg(c_names ->> c.key, c.value), '{}') from jsonb_each(v_changed) as c));
  new.updated_at := penstock.clock();
  return new;
end
$$;
comment on function intake._set_rate_limit() is
  'Changes the limits or the status of a provider through api_rate_limits.';
