-- Notifications: a message is queued in the transaction that causes it, and a sender in any worker or server
-- delivers it at least once. Alerts: failures in a row within a scope, one alert per streak.

insert into penstock.settings (name, value, comment) values
  ('alert_failures', '3', 'How many failures in a row within one scope cause an alert.'),
  ('alert_within_hours', '24', 'The failures in a row that cause an alert fall into this many hours.')
on conflict (name) do nothing;

create or replace function penstock._notification_events()
returns text[] language sql immutable set search_path = penstock, pg_temp as $$
  select array['alert', 'job.completed', 'job.failed', 'bulk.completed']
$$;
comment on function penstock._notification_events() is 'The events that a target can subscribe to.';

create or replace function penstock._check_target(p_channel text, p_address text, p_events text[])
returns void language plpgsql set search_path = penstock, pg_temp as $$
declare
  v_unknown text;
begin
  if p_channel is null or p_channel not in ('email', 'webhook') then
    perform _refuse(422, 'invalid_channel',
      format('channel must be email or webhook (got %L)', left(p_channel, 100)), '{"field": "channel"}');
  end if;
  -- The sender checks where a webhook's name leads; this only keeps out what can never be an address.
  if p_address is null or length(p_address) > 2000 or p_address !~ (case p_channel
      when 'email' then '^[^@[:space:][:cntrl:]<>,;:"\\]{1,64}@[^@[:space:][:cntrl:]<>,;:"\\]{1,255}$'
      else '^https?://[^/?#@[:space:][:cntrl:]\\]+([/?][^#[:space:][:cntrl:]\\]*)?$' end) then
    perform _refuse(422, 'invalid_address', format('%L is not %s', left(p_address, 200), case p_channel
        when 'email' then 'an e-mail address'
        else 'an http or https URL without user name, spaces or fragment' end), '{"field": "address"}');
  end if;
  select e into v_unknown from unnest(p_events) as e where e is null or e <> all (_notification_events());
  if found or coalesce(cardinality(p_events), 0) not between 1 and 20 then
    perform _refuse(422, 'invalid_events', format('unknown event %L', left(v_unknown, 100)),
      '{"field": "events"}', 'Known events: ' || array_to_string(_notification_events(), ', ') || '.');
  end if;
end
$$;
comment on function penstock._check_target(text, text, text[]) is
  'Raises an error for a channel, address or event that cannot be.';

create or replace function penstock._new_secret()
returns text language sql volatile set search_path = penstock, pg_temp as $$
  -- 244 random bits; the form that Standard Webhooks prescribes.
  select 'whsec_' || encode(sha256(convert_to(gen_random_uuid()::text || gen_random_uuid()::text, 'utf8')),
    'base64')
$$;
comment on function penstock._new_secret() is 'A new secret that signs webhooks.';

create or replace function penstock.set_notification_target(
  p_channel text, p_address text, p_events text[] default array['alert'], p_options jsonb default '{}')
returns table (id uuid, secret text)
language plpgsql security definer set search_path = penstock, pg_temp as $$
#variable_conflict use_column
declare
  c_max_targets constant integer := 20;
  v_tenant_id uuid;
  v_id uuid;
  v_secret text;
begin
  perform _check_fields(p_options, array['tenant_id', 'is_enabled'], 'notification target');
  perform _check_target(p_channel, p_address, p_events);
  v_tenant_id := _caller_tenant((p_options ->> 'tenant_id')::uuid);
  -- The lock makes concurrent calls count one after the other.
  perform from tenants t where t.id = v_tenant_id for no key update;
  perform _require_role(v_tenant_id, array['owner', 'admin']);
  insert into notification_targets as t (tenant_id, channel, address, events, is_enabled, created_by,
    created_at)
  values (v_tenant_id, p_channel, p_address, array(select distinct e from unnest(p_events) as e order by e),
    coalesce((p_options ->> 'is_enabled')::boolean, true), _actor(), _now())
  on conflict (tenant_id, channel, address) do update
    set events = excluded.events, is_enabled = excluded.is_enabled, disabled_reason = null
  returning t.id into v_id;
  if (select count(*) from notification_targets t where t.tenant_id = v_tenant_id) > c_max_targets then
    perform _refuse(409, 'too_many_targets',
      format('the tenant already has %s notification targets, which is the limit', c_max_targets),
      jsonb_build_object('limit', c_max_targets), 'Remove targets that are no longer needed.');
  end if;
  if p_channel = 'webhook' then
    insert into notification_secrets (target_id, tenant_id, secret) values (v_id, v_tenant_id, _new_secret())
    on conflict (target_id) do nothing returning secret into v_secret;
  end if;
  perform _audit(v_tenant_id, 'notification_target.set', null, 'notification_target:' || v_id,
    jsonb_build_object('channel', p_channel, 'events', p_events));
  return query select v_id, v_secret;
exception when invalid_text_representation then
  perform _refuse(422, 'invalid_options', 'invalid tenant_id or is_enabled: ' || left(sqlerrm, 200));
end
$$;
comment on function penstock.set_notification_target(text, text, text[], jsonb) is
  'Creates or changes a target of notifications. Events: alert, job.completed, job.failed, bulk.completed. '
  'Options: tenant_id, is_enabled. The secret that signs a new webhook is returned once.';

create or replace function penstock._own_target(p_target_id uuid)
returns penstock.notification_targets language plpgsql set search_path = penstock, pg_temp as $$
declare
  v_target notification_targets;
begin
  select * into v_target from notification_targets t
  where t.id = p_target_id and (_is_service() or t.tenant_id in (select my_tenants()))
  for no key update;
  if not found then
    perform _refuse(404, 'unknown_target', 'there is no such notification target');
  end if;
  perform _require_role(v_target.tenant_id, array['owner', 'admin']);
  return v_target;
end
$$;
comment on function penstock._own_target(uuid) is
  'Locks and returns a notification target that the caller may change.';

create or replace function penstock.remove_notification_target(p_target_id uuid)
returns void language plpgsql security definer set search_path = penstock, pg_temp as $$
declare
  v_target notification_targets := _own_target(p_target_id);
begin
  update notifications set status = 'failed', last_error = 'the target was removed'
  where target_id = p_target_id and status in ('queued', 'sending');
  delete from notification_targets where id = p_target_id;
  perform _audit(v_target.tenant_id, 'notification_target.removed', null,
    'notification_target:' || p_target_id, jsonb_build_object('channel', v_target.channel));
end
$$;
comment on function penstock.remove_notification_target(uuid) is
  'Removes a target. Its queued notifications are not sent.';

create or replace function penstock.rotate_notification_secret(p_target_id uuid)
returns text language plpgsql security definer set search_path = penstock, pg_temp as $$
declare
  v_target notification_targets := _own_target(p_target_id);
  v_secret text;
begin
  if v_target.channel <> 'webhook' then
    perform _refuse(422, 'invalid_channel', 'only webhooks have a secret');
  end if;
  -- A database that was restored from a dump without the secrets has no row.
  insert into notification_secrets as s (target_id, tenant_id, secret)
  values (p_target_id, v_target.tenant_id, _new_secret())
  on conflict (target_id) do update set previous = s.secret, previous_until = _now() + interval '1 day',
    secret = excluded.secret
  returning secret into v_secret;
  perform _audit(v_target.tenant_id, 'notification_target.rotated', null,
    'notification_target:' || p_target_id);
  return v_secret;
end
$$;
comment on function penstock.rotate_notification_secret(uuid) is
  'Gives a webhook a new secret and returns it once. For a day the old one signs as well.';

create or replace function penstock._notify(p_tenant_id uuid, p_event text, p_subject text, p_body text,
  p_details jsonb, p_key text)
returns integer language plpgsql set search_path = penstock, pg_temp as $$
declare
  v_count integer;
begin
  insert into notifications (tenant_id, target_id, channel, address, event, key, subject, body, details,
    next_try_at, created_at)
  select p_tenant_id, t.id, t.channel, t.address, p_event, p_key, left(p_subject, 500), left(p_body, 10000),
    p_details, _now(), _now()
  from notification_targets t
  where t.tenant_id = p_tenant_id and t.is_enabled and p_event = any (t.events)
  on conflict (tenant_id, channel, address, key) where key is not null do nothing;
  get diagnostics v_count = row_count;
  if v_count = 0 and p_event = 'alert' and not exists (select from notification_targets t
      where t.tenant_id = p_tenant_id and t.is_enabled and 'alert' = any (t.events)) then
    -- An alert also goes to tenants without subscriptions.
    insert into notifications (tenant_id, channel, address, event, key, subject, body, details, next_try_at,
      created_at)
    select distinct p_tenant_id, 'email', p.email, p_event, p_key, left(p_subject, 500), left(p_body, 10000),
      p_details, _now(), _now()
    from members m join profiles p on p.user_id = m.user_id
    where m.tenant_id = p_tenant_id and m.role in ('owner', 'admin') and p.email is not null
    on conflict (tenant_id, channel, address, key) where key is not null do nothing;
    get diagnostics v_count = row_count;
  end if;
  if v_count > 0 then
    perform pg_notify('penstock', 'notifications');
  end if;
  return v_count;
end
$$;
comment on function penstock._notify(uuid, text, text, text, jsonb, text) is
  'Queues a message for each target that wants the event; an alert that none wants goes to the e-mail '
  'addresses of owners and admins.';

create or replace function penstock.notify(p_tenant_id uuid, p_subject text, p_body text,
  p_options jsonb default '{}')
returns integer language plpgsql security definer set search_path = penstock, pg_temp as $$
begin
  perform _check_clean(p_subject, 'p_subject', 'invalid_notification');
  perform _check_fields(p_options, array['key', 'details'], 'notification');
  perform _require_tenant(p_tenant_id);
  if coalesce(p_subject, '') = '' or coalesce(p_body, '') = '' then
    perform _refuse(422, 'invalid_notification', 'subject and body must not be empty');
  end if;
  perform _check_document(p_options, 'options', 10000);
  return _notify(p_tenant_id, 'alert', p_subject, p_body, coalesce(p_options -> 'details', '{}'),
    p_options ->> 'key');
end
$$;
comment on function penstock.notify(uuid, text, text, jsonb) is
  'Queues a message for each target of the tenant that wants alerts, and returns their number. Options: key '
  '(the same key queues once per target), details.';

create or replace function penstock.send_test_notification(p_target_id uuid)
returns uuid language plpgsql security definer set search_path = penstock, pg_temp as $$
declare
  v_target notification_targets := _own_target(p_target_id);
  v_id uuid;
begin
  -- By address: a target that is removed and created again gets no more of them.
  if (select count(*) from notifications n where n.tenant_id = v_target.tenant_id and n.event = 'test'
      and n.address = v_target.address and n.created_at > _now() - interval '1 hour') >= 20 then
    perform _refuse(429, 'too_many_tests', 'at most 20 test messages per hour and target');
  end if;
  insert into notifications (tenant_id, target_id, channel, address, event, subject, body, details,
    next_try_at, created_at)
  values (v_target.tenant_id, p_target_id, v_target.channel, v_target.address, 'test',
    'Penstock test message', 'This message was requested to test this address.', '{}', _now(), _now())
  returning id into v_id;
  perform pg_notify('penstock', 'notifications');
  return v_id;
end
$$;
comment on function penstock.send_test_notification(uuid) is
  'Queues a test message for a target and returns its id.';

create or replace function penstock._notify_job(p_job penstock.jobs)
returns void language plpgsql set search_path = penstock, pg_temp as $$
declare
  v_is_bulk boolean;
  v_event text;
  v_reason text := _error_text(p_job.status_reason, 1000);
begin
  if not exists (select from notification_targets t where t.tenant_id = p_job.tenant_id and t.is_enabled
      and t.events && array['job.completed', 'job.failed', 'bulk.completed']) then
    return;
  end if;
  v_is_bulk := exists (select from bulks where job_id = p_job.id);
  v_event := case when v_is_bulk and p_job.status = 'completed' then 'bulk.completed'
    else 'job.' || p_job.status end;
  -- A job that is retried ends again, which is news.
  perform _notify(p_job.tenant_id, v_event, format('%s %s', p_job.type, p_job.status),
    format('Job %s of type %s: %s.%s', p_job.id, p_job.type, p_job.status,
      coalesce(' ' || v_reason, '')),
    jsonb_build_object('job_id', p_job.id, 'type', p_job.type, 'status', p_job.status,
      'reason', v_reason, 'finished_at', p_job.finished_at),
    format('%s:%s:%s', v_event, p_job.id, extract(epoch from p_job.finished_at)));
end
$$;
comment on function penstock._notify_job(penstock.jobs) is
  'Queues a message about the end of a job for each target that wants it.';

create or replace function penstock.record_outcome(
  p_tenant_id uuid, p_scope text, p_is_success boolean, p_subject text default null, p_code text default null,
  p_message text default null, p_options jsonb default '{}')
returns jsonb language plpgsql security definer set search_path = penstock, pg_temp as $$
-- Lock order: see claim.sql.
declare
  v_now timestamptz := _now();
  v_wanted integer := (_setting('alert_failures'))::integer;
  v_message text := _error_text(p_message, 2000);
  v_streak streaks;
  v_failure_id bigint;
  v_oldest timestamptz;
  v_is_due boolean := false;
begin
  perform _check_outcome(p_tenant_id, p_scope, p_is_success, p_code, p_message, p_options);
  if p_is_success then
    delete from streaks where tenant_id = p_tenant_id and scope = p_scope;
    return jsonb_build_object('failures', 0, 'alerted', false);
  end if;
  -- Locks the streak: of several failures at once, each sees the ones before it.
  insert into streaks as s (tenant_id, scope, failures, began_at, last_at)
  values (p_tenant_id, p_scope, 1, v_now, v_now)
  on conflict (tenant_id, scope) do update set failures = s.failures + 1, last_at = excluded.last_at
  returning * into v_streak;
  insert into failures (at, tenant_id, scope, subject, code, message, job_id, task_id, details)
  values (v_now, p_tenant_id, p_scope, p_subject, p_code, v_message,
    (p_options ->> 'job_id')::uuid, (p_options ->> 'task_id')::bigint,
    _redact_document(coalesce(p_options -> 'details', '{}')))
  returning id into v_failure_id;
  if v_streak.alerted_at is null and v_streak.failures >= v_wanted then
    select f.at into v_oldest from failures f where f.tenant_id = p_tenant_id and f.scope = p_scope
    order by f.id desc offset v_wanted - 1 limit 1;
    v_is_due := v_oldest > v_now - make_interval(hours => (_setting('alert_within_hours'))::integer);
  end if;
  if v_is_due then
    update streaks set alerted_at = v_now where tenant_id = p_tenant_id and scope = p_scope;
    perform _notify(p_tenant_id, 'alert', format('%s failures in a row: %s', v_streak.failures, p_scope),
      format('%s failed %s times in a row since %s. Last failure: %s (%s).', p_scope, v_streak.failures,
        to_char(v_streak.began_at at time zone 'UTC', 'YYYY-MM-DD HH24:MI "UTC"'),
        v_message, p_code),
      jsonb_build_object('scope', p_scope, 'failures', v_streak.failures, 'subject', p_subject,
        'code', p_code, 'message', v_message),
      'failure:' || v_failure_id);
  end if;
  return jsonb_build_object('failures', v_streak.failures, 'alerted', v_is_due);
end
$$;
comment on function penstock.record_outcome(uuid, text, boolean, text, text, text, jsonb) is
  'Records that something in a scope succeeded or failed. After alert_failures failures in a row within '
  'alert_within_hours the tenant gets one alert; a success ends the streak. Options: job_id, task_id, '
  'details. Returns the number of failures in a row and whether this call alerted.';

create or replace function penstock._check_outcome(
  p_tenant_id uuid, p_scope text, p_is_success boolean, p_code text, p_message text, p_options jsonb)
returns void language plpgsql stable set search_path = penstock, pg_temp as $$
begin
  perform _require_active(p_tenant_id);
  perform _check_clean(p_scope, 'scope', 'invalid_scope');
  perform _check_clean(p_code, 'code', 'invalid_outcome');
  perform _check_fields(p_options, array['job_id', 'task_id', 'details'], 'outcome');
  perform _check_document(p_options -> 'details', 'details', 10000);
  if coalesce(length(p_scope), 0) not between 1 and 200 then
    perform _refuse(422, 'invalid_scope',
      format('scope must have 1 to 200 characters (got %s)', coalesce(length(p_scope), 0)),
      '{"field": "scope"}');
  end if;
  if p_is_success is null then
    perform _refuse(422, 'invalid_outcome', 'is_success must be true or false (got null)');
  end if;
  if not p_is_success
    and (coalesce(length(p_code), 0) not between 1 and 100 or coalesce(p_message, '') = '') then
    perform _refuse(422, 'invalid_outcome', 'a failure needs a code of 1 to 100 characters and a message');
  end if;
  perform _require_tenant(p_tenant_id);
end
$$;
comment on function penstock._check_outcome(uuid, text, boolean, text, text, jsonb) is
  'Raises an error for an outcome that record_outcome cannot record.';

create or replace function penstock.take_notifications(p_limit integer default 20)
returns table (id uuid, tenant_id uuid, target_id uuid, channel text, address text, event text, subject text,
  body text, details jsonb, attempt smallint, created_at timestamptz, secrets text[])
language plpgsql security definer set search_path = penstock, pg_temp
  set enable_seqscan = off set jit = off as $$
#variable_conflict use_column
declare
  -- Receivers of one tenant that do not answer occupy no more than these deliveries.
  c_max_in_flight constant integer := 10;
  v_now timestamptz := _now();
begin
  return query
  -- Jumps from tenant to tenant along the index, so that thousands of rows of one tenant do not delay others.
  with recursive tenant as (
    (select n.tenant_id from notifications n where n.status in ('queued', 'sending')
     order by n.tenant_id limit 1)
    union all
    select (select n.tenant_id from notifications n where n.status in ('queued', 'sending')
      and n.tenant_id > t.tenant_id order by n.tenant_id limit 1)
    from tenant t where t.tenant_id is not null
  ), due as (
    select n.id, row_number() over (partition by t.tenant_id order by n.next_try_at) as turn, n.next_try_at
    from tenant t cross join lateral (
      select x.id, x.next_try_at from notifications x where x.tenant_id = t.tenant_id
        and x.status in ('queued', 'sending') and x.next_try_at <= v_now
        and x.tenant_id <> all (_suspended_tenants())
      order by x.next_try_at limit least(p_limit, c_max_in_flight - (
        select count(*) from (select from notifications f where f.tenant_id = t.tenant_id
          and f.status = 'sending' and f.next_try_at > v_now
          and f.next_try_at <= v_now + interval '60 seconds' limit c_max_in_flight) as flying))) as n
  ), locked as (
    select n.id from notifications n
    where n.id = any (array(select d.id from due d order by d.turn, d.next_try_at limit p_limit))
      and n.status in ('queued', 'sending') and n.next_try_at <= v_now
    order by n.id for update skip locked
  ), taken as (
    update notifications n set status = 'sending', attempts = n.attempts + 1,
      next_try_at = v_now + interval '60 seconds'
    from locked where n.id = locked.id returning n.*
  )
  select t.id, t.tenant_id, t.target_id, t.channel, t.address, t.event, t.subject, t.body, t.details,
    t.attempts, t.created_at, array_remove(array[s.secret,
      case when s.previous_until > v_now then s.previous end], null)
  from taken t left join notification_secrets s on s.target_id = t.target_id;
end
$$;
comment on function penstock.take_notifications(integer) is
  'Hands due notifications to a sender for 60 seconds, tenants in turn and at most 10 of a tenant at once. A '
  'sender that dies loses them to the next one, so a message may be sent twice, but is never lost.';

create or replace function penstock.end_notification(
  p_id uuid, p_attempt integer, p_outcome text, p_error text default null)
returns boolean language plpgsql security definer set search_path = penstock, pg_temp as $$
declare
  c_give_up constant interval := '24 hours';
  v_note notifications;
  v_error text := _error_text(p_error, 1000);
  v_wait interval := least(interval '6 hours', interval '1 minute' * power(5, least(p_attempt, 6) - 1));
begin
  if p_outcome is null or p_outcome not in ('sent', 'retry', 'failed', 'gone') then
    perform _refuse(422, 'invalid_outcome',
      format('outcome must be sent, retry, failed or gone (got %L)', left(p_outcome, 100)));
  end if;
  -- Ignores the report of a sender that was too slow: another one has the message.
  select * into v_note from notifications where id = p_id and status = 'sending' and attempts = p_attempt
  for update;
  if not found then
    return false;
  end if;
  if p_outcome = 'retry' and v_note.created_at + c_give_up < _now() + v_wait then
    p_outcome := 'failed';
  end if;
  update notifications set last_error = v_error,
    status = case p_outcome when 'sent' then 'sent' when 'retry' then 'queued' else 'failed' end,
    sent_at = case p_outcome when 'sent' then _now() end,
    next_try_at = case p_outcome when 'retry' then _now() + v_wait else next_try_at end
  where id = p_id;
  if p_outcome = 'gone' then
    update notification_targets set is_enabled = false, disabled_reason = v_error
    -- Never waits: removing a target locks it before its notifications.
    where id in (select t.id from notification_targets t where t.id = v_note.target_id
      for no key update skip locked);
  end if;
  return true;
end
$$;
comment on function penstock.end_notification(uuid, integer, text, text) is
  'Reports the outcome of sending: sent, retry (waits 1 minute to 6 hours, gives up after 24 hours), failed, '
  'or gone (also disables the target).';

create or replace function penstock._prune_notifications(p_cutoff timestamptz, p_limit integer)
returns void language plpgsql set search_path = penstock, pg_temp as $$
begin
  delete from notifications where id = any (array(
    select n.id from (select id, status, created_at from notifications order by created_at limit p_limit) as n
    where n.created_at < p_cutoff and n.status in ('sent', 'failed')));
  delete from failures where id = any (array(
    select f.id from (select id, at from failures order by id limit p_limit) as f where f.at < p_cutoff));
  delete from streaks where (tenant_id, scope) in (
    select s.tenant_id, s.scope from streaks s where s.last_at < p_cutoff
    order by s.tenant_id, s.scope limit p_limit for update skip locked);
end
$$;
comment on function penstock._prune_notifications(timestamptz, integer) is
  'Deletes old notifications, failures and streaks.';
