-- Usage in the form that older clients know. The platform's accounts are the only counters: nothing is
-- counted twice, and limits are those of the plan in force now.

create or replace function intake._tenant_of_profile(p_profile_id uuid)
returns uuid language plpgsql stable security definer set search_path = intake, pg_temp as $$
declare
  v_tenant_id uuid;
begin
  select coalesce(
    (select tenant_id from penstock.profiles where user_id = p_profile_id),
    (select min(tenant_id::text)::uuid from intake.patients where id = p_profile_id having count(*) = 1),
    (select id from penstock.tenants where id = p_profile_id)) into v_tenant_id;
  if v_tenant_id is null or not penstock.is_member(v_tenant_id) then
    perform penstock.refuse(403, 'forbidden', 'you do not have permission to see this profile');
  end if;
  return v_tenant_id;
end
$$;
comment on function intake._tenant_of_profile(uuid) is
  'The tenant of a user, a patient or a tenant id, if the caller is a member of it or the service.';

create or replace function intake._flag(p_name text)
returns boolean language sql stable security definer set search_path = intake, pg_temp as $$
  select penstock.get_setting('intake.' || p_name) = 'true'
$$;
comment on function intake._flag(text) is 'Whether a feature of the app is on.';

create or replace function intake._share(p_usage jsonb, p_meter text, p_divisor numeric, p_suffix text)
returns jsonb language sql immutable set search_path = pg_catalog, pg_temp as $$
  select jsonb_build_object(
    'used' || p_suffix, round(coalesce((p_usage -> p_meter ->> 'used')::numeric, 0) / p_divisor, 2),
    'limit' || p_suffix, round((p_usage -> p_meter ->> 'limit')::numeric / p_divisor, 2),
    'percentage', round(100 * coalesce((p_usage -> p_meter ->> 'used')::numeric, 0)
      / nullif((p_usage -> p_meter ->> 'limit')::numeric, 0), 1))
$$;
comment on function intake._share(jsonb, text, numeric, text) is
  'Used, limit and percentage of a meter. A null limit is no limit.';

create or replace function intake.get_user_usage_status(p_profile_id uuid)
returns jsonb language plpgsql stable security definer set search_path = intake, pg_temp as $$
declare
  v_status jsonb := penstock.get_usage_status(intake._tenant_of_profile(p_profile_id));
  v_usage jsonb := v_status -> 'usage';
  v_over boolean;
begin
  if not intake._flag('usage_tracking_enabled') then
    return jsonb_build_object('tracking_disabled', true);
  end if;
  v_over := exists (select from jsonb_each(v_usage) as u where u.key in ('files', 'pages', 'tokens', 'bytes')
    and (u.value ->> 'used')::numeric >= (u.value ->> 'limit')::numeric);
  return jsonb_build_object(
    'current_period', v_status -> 'current_period',
    'usage', jsonb_build_object(
      'shell_files', intake._share(v_usage, 'files', 1, ''), 'pages', intake._share(v_usage, 'pages', 1, ''),
      'ai_tokens', intake._share(v_usage, 'tokens', 1, ''),
      'storage', intake._share(v_usage, 'bytes', 1048576, '_mb')),
    'status', jsonb_build_object('plan_type', v_status -> 'plan', 'over_limit', v_over,
      'upgrade_required', v_over and intake._flag('upgrade_prompts_enabled')));
end
$$;
comment on function intake.get_user_usage_status(uuid) is
  'Files, pages, tokens and storage of this month with their limits, for the caller''s own tenant.';

create or replace function intake.track_shell_file_upload_usage(
  p_profile_id uuid, p_shell_file_id uuid, p_file_size_bytes bigint default null,
  p_estimated_pages integer default 1)
returns jsonb language plpgsql security definer set search_path = intake, pg_temp as $$
declare
  v_tenant_id uuid := intake._tenant_of_profile(p_profile_id);
  v_file intake.shell_files;
  v_status jsonb;
begin
  if not intake._flag('usage_tracking_enabled') then
    return jsonb_build_object('tracking_disabled', true);
  end if;
  select * into v_file from intake.shell_files where tenant_id = v_tenant_id and id = p_shell_file_id;
  if not found then
    perform penstock.refuse(404, 'unknown_file', 'there is no such file');
  end if;
  -- An upload counts when it is finished. A file from before tracking counts here, once, by its own record.
  if v_file.files_hold_id is null and v_file.status <> 'uploading' then
    perform penstock.record_usage(
      jsonb_build_object('files', 1, 'pages', coalesce(v_file.pages, v_file.estimated_pages)),
      p_tenant_id => v_tenant_id, p_action => 'shell_file_uploaded', p_options => jsonb_build_object(
        'key', 'intake.tracked:' || v_file.id,
        'details', jsonb_build_object('shell_file_id', v_file.id)));
  end if;
  v_status := intake.get_user_usage_status(p_profile_id);
  return jsonb_build_object(
    'shell_files_used', v_status #> '{usage,shell_files,used}',
    'shell_files_limit', v_status #> '{usage,shell_files,limit}',
    'pages_used', v_status #> '{usage,pages,used}', 'pages_limit', v_status #> '{usage,pages,limit}',
    'storage_used_mb', v_status #> '{usage,storage,used_mb}',
    'storage_limit_mb', v_status #> '{usage,storage,limit_mb}',
    'over_limit', v_status #> '{status,over_limit}',
    'upgrade_required', v_status #> '{status,upgrade_required}',
    'plan_type', v_status #> '{status,plan_type}');
end
$$;
comment on function intake.track_shell_file_upload_usage(uuid, uuid, bigint, integer) is
  'The usage after an upload. Finished uploads are counted already; a file from before tracking is counted '
  'once, with the size and pages of its record.';

create or replace function intake.track_ai_processing_usage(
  p_profile_id uuid, p_job_id uuid, p_tokens_used bigint, p_processing_seconds numeric default 0)
returns jsonb language plpgsql security definer set search_path = intake, pg_temp as $$
declare
  v_tenant_id uuid := intake._tenant_of_profile(p_profile_id);
  v_tokens jsonb;
begin
  if not intake._flag('usage_tracking_enabled') then
    return jsonb_build_object('tracking_disabled', true);
  end if;
  if p_job_id is null or p_tokens_used is null or p_tokens_used < 0
    or coalesce(p_processing_seconds, 0) < 0 then
    perform penstock.refuse(422, 'invalid', 'p_job_id, and tokens and seconds of 0 or more are required');
  end if;
  perform penstock.record_usage(
    jsonb_build_object('tokens', p_tokens_used, 'minutes', round(coalesce(p_processing_seconds, 0) / 60, 6)),
    p_tenant_id => v_tenant_id, p_action => 'ai_processing_completed', p_options => jsonb_build_object(
      -- The job of a task of the queue: its passes are counted under that job.
      'key', 'intake.ai:' || p_job_id, 'details', jsonb_build_object('job_id', coalesce(
        (select t.job_id from penstock.tasks t where t.id = intake._task_id(p_job_id)
          and t.tenant_id = v_tenant_id), p_job_id))));
  v_tokens := penstock.get_usage_status(v_tenant_id) #> '{usage,tokens}';
  perform intake._warn_limits(v_tenant_id);
  return jsonb_build_object('ai_tokens_used', v_tokens -> 'used', 'ai_tokens_limit', v_tokens -> 'limit',
    'ai_processing_jobs', intake.ai_jobs(v_tenant_id, (penstock.clock() at time zone 'utc')::date),
    'over_limit', coalesce((v_tokens ->> 'used')::numeric >= (v_tokens ->> 'limit')::numeric, false));
end
$$;
comment on function intake.track_ai_processing_usage(uuid, uuid, bigint, numeric) is
  'Counts the tokens and minutes of a job, once per job. For workers that report themselves; the app''s own '
  'tasks report each call.';

create or replace function intake.ai_jobs(p_tenant_id uuid, p_month date)
returns integer language sql stable security definer set search_path = intake, pg_temp as $$
  select count(distinct coalesce(e.job_id::text, e.details ->> 'job_id'))::integer
  from penstock.usage_events e
  where e.tenant_id = p_tenant_id and penstock.is_member(p_tenant_id)
    and e.at >= date_trunc('month', p_month::timestamp) at time zone 'utc'
    and e.at < (date_trunc('month', p_month::timestamp) + interval '1 month') at time zone 'utc'
    and (e.action = 'ai_processing_completed' or e.action like 'ai\_queue\_pass%')
$$;
comment on function intake.ai_jobs(uuid, date) is
  'The number of jobs with AI passes in a UTC month, for members of the tenant and the service.';

create or replace function intake.shows_upgrades()
returns boolean language sql stable security definer set search_path = intake, pg_temp as $$
  select intake._flag('upgrade_prompts_enabled')
$$;
comment on function intake.shows_upgrades() is 'Whether errors over a limit suggest an upgrade.';

create or replace function intake._warn_limits(p_tenant_id uuid)
returns integer language plpgsql security definer set search_path = intake, pg_temp as $$
declare
  v_limit record;
  v_count integer := 0;
begin
  for v_limit in
    select l.meter, l.amount, coalesce(l.period, 'epoch'::date) as period, a.used, w.percent
    from penstock.resolve_limits(p_tenant_id) as l
    join penstock.accounts a on a.tenant_id = p_tenant_id and a.job_id is null and a.meter = l.meter
      and a.period = l.period
    cross join (values (80), (100)) as w(percent)
    where l.meter in ('files', 'pages', 'tokens', 'bytes') and l.amount > 0
      and a.used * 100 >= l.amount * w.percent
    order by l.meter, w.percent
  loop
    insert into intake.usage_warnings (tenant_id, meter, period, percent)
    values (p_tenant_id, v_limit.meter, v_limit.period, v_limit.percent) on conflict do nothing;
    if found then
      v_count := v_count + 1;
      perform penstock.notify(p_tenant_id,
        format('%s %% of your limit of %s is used', v_limit.percent, v_limit.meter),
        case when v_limit.meter = 'bytes'
          then format('You have used %s of %s MB.', round(v_limit.used / 1048576, 1),
            round(v_limit.amount / 1048576, 1))
          else format('You have used %s of %s %s in this period.', v_limit.used, v_limit.amount,
            v_limit.meter) end,
        jsonb_build_object('key', format('intake.limit:%s:%s:%s', v_limit.meter, v_limit.period,
          v_limit.percent)));
    end if;
  end loop;
  return v_count;
end
$$;
comment on function intake._warn_limits(uuid) is
  'Notifies a tenant at 80 and at 100 % of a limit, once per period. Returns the number of warnings.';

create or replace function intake.note_limit_hit(p_tenant_id uuid, p_meter text)
returns void language sql security definer set search_path = intake, pg_temp as $$
  -- One event an hour tells as much as one for every attempt.
  select penstock.record_usage('{}', p_tenant_id => p_tenant_id, p_action => 'limit_hit',
    p_options => jsonb_build_object(
      'key', format('intake.limit_hit:%s:%s', p_meter,
        date_trunc('hour', penstock.clock() at time zone 'utc')),
      'details', jsonb_build_object('meter', p_meter)))
$$;
comment on function intake.note_limit_hit(uuid, text) is
  'Notes that an upload was refused over a limit, at most once an hour for each meter.';

create or replace function intake.set_feature(p_name text, p_is_on boolean)
returns void language plpgsql security definer set search_path = intake, pg_temp as $$
begin
  if p_name is null or p_name not in ('usage_tracking', 'billing', 'upgrade_prompts') or p_is_on is null then
    perform penstock.refuse(422, 'unknown_feature', format(
      'feature must be usage_tracking, billing or upgrade_prompts (got %L)', left(p_name, 100)),
      '{"field": "p_name"}');
  end if;
  perform penstock.set_setting('intake.' || p_name || '_enabled', to_jsonb(p_is_on));
  if p_name = 'billing' then
    perform penstock.set_meter(m,
      jsonb_build_object('mode', case when p_is_on then 'enforce' else 'observe' end))
    from unnest(array['bytes', 'files', 'pages', 'tokens']) as m;
  end if;
end
$$;
comment on function intake.set_feature(text, boolean) is
  'Switches usage tracking, billing (limits are enforced or only recorded) or upgrade prompts.';
