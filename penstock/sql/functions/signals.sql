-- Signals: what providers answer (429, Retry-After, rate-limit headers, an exhausted account), and how their
-- endpoints close, slow down and recover. Lock order: see claim.sql.

create or replace function penstock.report_limited(
  p_task_id bigint, p_worker_id text, p_lease bigint, p_signal jsonb)
returns void language plpgsql security definer set search_path = penstock, pg_temp as $$
-- Lock order: see claim.sql.
declare
  v_lease leases;
  v_provider text;
  v_tenant_id uuid;
  v_delay double precision := 0;
begin
  perform _require_lease(p_task_id, p_worker_id, p_lease);
  select * into v_lease from leases where task_id = p_task_id;
  select provider, tenant_id into v_provider, v_tenant_id from lanes where id = v_lease.lane_id;
  -- A handler may call other hosts, such as an address that its tenant gave: those speak for themselves only.
  -- A signal without a host was reported by the handler for its provider.
  if v_provider is not null and (not p_signal ? 'host'
      or _is_own_host(_endpoint(v_provider, v_tenant_id), p_signal ->> 'host')) then
    perform report_provider(v_provider, p_signal, v_tenant_id);
  elsif p_signal -> 'exhausted' = 'true' then
    perform fail_task(p_task_id, v_lease.worker_id, format('%s answered %s',
      coalesce(left(p_signal ->> 'host', 200), 'the service'), left(p_signal ->> 'status', 10)),
      v_lease.lease, p_error_code => 'foreign_refusal');
    return;
  elsif jsonb_typeof(p_signal -> 'retry_after_seconds') = 'number' then
    v_delay := greatest(0, least(86400, (p_signal ->> 'retry_after_seconds')::double precision));
  elsif v_provider is not null then
    -- Another host of a task with a provider says nothing about when: seconds, spread so that not all tasks
    -- return at once.
    v_delay := 5 + 10 * random();
  end if;
  perform 1 from reschedule_tasks(v_lease.worker_id, array[p_task_id], array[v_lease.lease], v_delay,
    'the provider asked to wait');
end
$$;
comment on function penstock.report_limited(bigint, text, bigint, jsonb) is
  'Reports that a provider rejected an attempt''s call (see report_provider for the signal): its endpoint '
  'closes for all workers, and the task is requeued without using up an attempt. If the signal has a "host" '
  'that is not the provider''s, only this task waits; an exhausted account there fails the attempt.';

create or replace function penstock.report_provider(
  p_name text, p_signal jsonb, p_tenant_id uuid default null)
returns void language plpgsql security definer set search_path = penstock, pg_temp as $$
-- Lock order: see claim.sql.
declare
  v_endpoint endpoints := _required_endpoint(p_name, p_tenant_id);
  v_state endpoint_states;
  v_signal record;
begin
  perform _require_active(v_endpoint.tenant_id);
  begin
    select (p_signal ->> 'status')::integer as status,
      coalesce((p_signal ->> 'exhausted')::boolean, false) as exhausted,
      (p_signal ->> 'retry_after_seconds')::double precision as retry_after,
      (p_signal #>> '{requests,limit}')::bigint as requests_limit,
      (p_signal #>> '{requests,remaining}')::bigint as requests_left,
      (p_signal #>> '{tokens,limit}')::bigint as tokens_limit,
      (p_signal #>> '{tokens,remaining}')::bigint as tokens_left
    into v_signal;
  exception when data_exception then
    perform _refuse(422, 'invalid_signal',
      'the signal must be {"status", "retry_after_seconds", "exhausted", "message", '
      '"requests": {"limit", "remaining"}, "tokens": {"limit", "remaining"}}');
  end;
  select * into v_state from endpoint_states where endpoint_id = v_endpoint.id for no key update;
  if v_signal.exhausted then
    perform _close_exhausted(v_endpoint, v_state, p_signal);
    return;
  end if;
  if v_signal.status in (429, 529) or v_signal.status >= 500 and v_signal.retry_after is not null then
    perform _slow_down(v_endpoint, v_state, p_signal, v_signal.status, v_signal.retry_after);
  end if;
  if v_signal.requests_limit is not null or v_signal.tokens_limit is not null then
    perform _apply_reported_limits(v_endpoint, v_state, v_signal.requests_limit, v_signal.tokens_limit);
  end if;
  perform _count_foreign_calls(v_endpoint, v_signal.requests_left, v_signal.tokens_left);
end
$$;
comment on function penstock.report_provider(text, jsonb, uuid) is
  'Reports what a provider answered: {"status", "retry_after_seconds", "exhausted", "message", "requests": '
  '{"limit", "remaining"}, "tokens": {"limit", "remaining"}}. A 429 closes the endpoint for all workers at '
  'once and slows it for a while; an exhausted account closes it for 15 minutes.';

create or replace function penstock._close_exhausted(
  p_endpoint penstock.endpoints, p_state penstock.endpoint_states, p_signal jsonb)
returns void language plpgsql set search_path = penstock, pg_temp as $$
declare
  c_exhausted constant text := 'quota exhausted';
  -- Then one call finds out whether the account has been topped up.
  c_closed constant interval := interval '15 minutes';
  v_now timestamptz := _now();
begin
  -- All tenants see the reason, so it has no text of the provider: provider_events keeps it for operators.
  update endpoint_states set closed_until = greatest(closed_until, v_now + c_closed), refusals = refusals + 1,
    refused_at = v_now, closed_reason = c_exhausted, is_exhausted = true
  where endpoint_id = p_endpoint.id;
  insert into provider_events (at, endpoint_id, tenant_id, event, details)
  select v_now, p_endpoint.id, p_endpoint.tenant_id, 'exhausted', _redact_document(p_signal)
  where p_state.closed_until <= v_now or not p_state.is_exhausted;
  if found then
    -- Without the provider's text, which may quote a request.
    perform _alert('provider_closed', 'provider:' || p_endpoint.name
      || coalesce(' of tenant:' || p_endpoint.tenant_id, ''), p_endpoint.tenant_id,
      jsonb_build_object('reason', c_exhausted, 'status', p_signal -> 'status'));
  end if;
  -- The next claim moves tasks that have a route to another provider.
  perform pg_notify('penstock', 'ready:' || l.kind) from routed_lanes q join lanes l on l.id = q.lane_id
  where l.endpoint_id = p_endpoint.id;
end
$$;
comment on function penstock._close_exhausted(penstock.endpoints, penstock.endpoint_states, jsonb) is
  'Closes an endpoint whose account is exhausted for 15 minutes, or until open_provider.';

create or replace function penstock._slow_down(
  p_endpoint penstock.endpoints, p_state penstock.endpoint_states, p_signal jsonb, p_status integer,
  p_retry_after double precision)
returns void language plpgsql set search_path = penstock, pg_temp as $$
declare
  c_slowdown constant double precision := 0.8;
  c_slowest constant double precision := 0.1;
  v_now timestamptz := _now();
  v_pace double precision := _current_pace(p_state.pace, p_state.paced_at, v_now);
  v_is_new boolean := p_state.paced_at < v_now - interval '1 second';
  v_slowdowns double precision;
  v_delay double precision;
begin
  -- Concurrent calls that were rejected together count once.
  if v_is_new then
    v_pace := greatest(c_slowest, c_slowdown * v_pace);
  end if;
  -- Without a Retry-After, back off exponentially: the pace tells how many slowdowns there were of late.
  v_slowdowns := ln(v_pace) / ln(c_slowdown);
  v_delay := least(3600, greatest(0,
    coalesce(p_retry_after, (0.5 + random()) * power(2, least(6, v_slowdowns)))));
  update endpoint_states set closed_until = greatest(closed_until, v_now + make_interval(secs => v_delay)),
    closed_reason = case when closed_until > v_now + make_interval(secs => v_delay) then closed_reason
      else format('answered %s', p_status) end,
    is_exhausted = is_exhausted and closed_until > v_now + make_interval(secs => v_delay), pace = v_pace,
    paced_at = case when v_pace < p_state.pace or v_is_new then v_now else paced_at end,
    refusals = refusals + 1, refused_at = v_now
  where endpoint_id = p_endpoint.id and closed_until < 'infinity';
  insert into provider_events (at, endpoint_id, tenant_id, event, details)
  values (v_now, p_endpoint.id, p_endpoint.tenant_id, 'refused',
    _redact_document(p_signal) || jsonb_build_object('closed_seconds', round(v_delay::numeric, 3)));
  if v_delay > 30 then
    perform pg_notify('penstock', 'chores');
  end if;
end
$$;
comment on function penstock._slow_down(
  penstock.endpoints, penstock.endpoint_states, jsonb, integer, double precision) is
  'Closes an endpoint that rejected a call for as long as it asked for, and lowers its pace.';

create or replace function penstock._apply_reported_limits(
  p_endpoint penstock.endpoints, p_before penstock.endpoint_states, p_requests bigint, p_tokens bigint)
returns void language plpgsql set search_path = penstock, pg_temp as $$
declare
  v_now timestamptz := _now();
  v_after endpoint_states;
begin
  -- A reported limit counts when it is lower than ours. Zero is ignored: no call would ever tell a new one.
  update endpoint_states set
    requests_limit = case when p_requests between 1 and p_endpoint.requests_per_minute - 1
      then p_requests end,
    tokens_limit = case when p_tokens between 1 and p_endpoint.tokens_per_minute - 1 then p_tokens end,
    told_at = v_now
  where endpoint_id = p_endpoint.id returning * into v_after;
  if p_before.requests_limit < coalesce(v_after.requests_limit, p_endpoint.requests_per_minute)
     or p_before.tokens_limit < coalesce(v_after.tokens_limit, p_endpoint.tokens_per_minute) then
    perform _retry_parked('limit', array(select id from lanes where endpoint_id = p_endpoint.id), v_now);
    perform pg_notify('penstock', 'chores');
  end if;
end
$$;
comment on function penstock._apply_reported_limits(
  penstock.endpoints, penstock.endpoint_states, bigint, bigint) is
  'Keeps the limits that a provider reports, for an hour (see _forget_reported_limits), and retries tasks '
  'that a lower one had parked.';

create or replace function penstock._count_foreign_calls(
  p_endpoint penstock.endpoints, p_requests_left bigint, p_tokens_left bigint)
returns void language plpgsql set search_path = penstock, pg_temp as $$
declare
  c_tolerance constant numeric := 0.05;
  c_token_tolerance constant integer := 1000;
  v_now timestamptz := _now();
  v_state endpoint_states;
  v_free capacity;
begin
  if p_requests_left is null and p_tokens_left is null then
    return;
  end if;
  select * into v_state from endpoint_states where endpoint_id = p_endpoint.id;
  v_free := _free_capacity(p_endpoint, v_state, v_now);
  if p_requests_left < v_free.requests - c_tolerance * p_endpoint.requests_per_minute
     or p_tokens_left < v_free.tokens - c_tolerance * p_endpoint.tokens_per_minute - c_token_tolerance then
    perform _count_calls(p_endpoint, v_now, coalesce(greatest(0, v_free.requests - p_requests_left), 0),
      coalesce(greatest(0, v_free.tokens - p_tokens_left), 0));
  end if;
end
$$;
comment on function penstock._count_foreign_calls(penstock.endpoints, bigint, bigint) is
  'Counts calls that others made with the same account: less is left, as the provider says, than was '
  'counted here.';

create or replace function penstock._forget_reported_limits()
returns void language plpgsql set search_path = penstock, pg_temp as $$
declare
  v_endpoints integer[];
begin
  -- Tasks larger than such a limit are not tried, so no answer would tell a new one.
  with lapsed as (
    update endpoint_states set requests_limit = null, tokens_limit = null, open_at = 'epoch'
    where endpoint_id = any (array(
      select endpoint_id from endpoint_states
      where told_at < _now() - interval '1 hour' and (requests_limit is not null or tokens_limit is not null)
      for no key update skip locked))
    returning endpoint_id
  )
  select array_agg(endpoint_id) into v_endpoints from lapsed;
  if v_endpoints is not null then
    perform _retry_parked('limit', array(select id from lanes where endpoint_id = any (v_endpoints)), _now());
  end if;
end
$$;
comment on function penstock._forget_reported_limits() is
  'Forgets lower limits that providers reported more than an hour ago, and retries tasks that were too '
  'large for them.';
