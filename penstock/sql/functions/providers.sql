-- Providers: the limits of their endpoints, what is left of them, and what the providers answer. The windows
-- slide. Calls admitted in a slot of 250 ms count until 60.75 s after the slot begins, those of a slot of one
-- minute until 3,661 s after it begins. So no window of 60 or 3,600 seconds holds more than the limit, also
-- when the calls reach the provider a moment later. A claim counts calls only while it has locked the
-- endpoint's state.

create or replace function penstock._endpoint(p_name text, p_tenant_id uuid)
returns penstock.endpoints language sql stable set search_path = penstock, pg_temp as $$
  select e from endpoints e where e.name = p_name and (e.tenant_id = p_tenant_id or e.tenant_id is null)
  order by e.tenant_id nulls last limit 1
$$;
comment on function penstock._endpoint(text, uuid) is
  'The endpoint of this name: the tenant''s own, or the one for all tenants.';

create or replace function penstock.set_provider(
  p_name text, p_values jsonb default '{}', p_tenant_id uuid default null)
returns integer language plpgsql security definer set search_path = penstock, pg_temp as $$
-- Lock order: see claim.sql.
declare
  c_fields constant text[] := array['status', 'requests_per_minute', 'requests_per_hour', 'tokens_per_minute',
    'tokens_per_hour', 'concurrency', 'default_tokens', 'backpressure_threshold',
    'backpressure_delay_seconds', 'depth_limit', 'features', 'hosts'];
  v_old endpoints;
  v_new endpoints;
begin
  if p_name is null or p_name !~ '^[a-z0-9][a-z0-9_.-]{0,99}/[A-Za-z0-9][A-Za-z0-9_.:/-]{0,98}$' then
    perform _refuse(422, 'invalid_provider',
      format('a provider''s name must be like openai/gpt-4o (got %L)', left(p_name, 200)),
      '{"field": "p_name"}');
  end if;
  perform _check_fields(p_values, c_fields, 'provider');
  if p_tenant_id is not null and not exists (select from tenants where id = p_tenant_id) then
    perform _refuse(404, 'unknown_tenant', 'there is no such tenant');
  end if;
  select * into v_old from endpoints where name = p_name and tenant_id is not distinct from p_tenant_id
  for no key update;
  begin
    if v_old.id is null then
      insert into endpoints (provider, endpoint, tenant_id, changed_at)
      values (split_part(p_name, '/', 1), substr(p_name, strpos(p_name, '/') + 1), p_tenant_id, _now())
      returning * into v_old;
      insert into endpoint_states (endpoint_id) values (v_old.id);
    end if;
    v_new := jsonb_populate_record(v_old, p_values);
    update endpoints set status = v_new.status, requests_per_minute = v_new.requests_per_minute,
      requests_per_hour = v_new.requests_per_hour, tokens_per_minute = v_new.tokens_per_minute,
      tokens_per_hour = v_new.tokens_per_hour, concurrency = v_new.concurrency,
      default_tokens = v_new.default_tokens, backpressure_threshold = v_new.backpressure_threshold,
      backpressure_delay_seconds = v_new.backpressure_delay_seconds, depth_limit = v_new.depth_limit,
      features = coalesce(v_new.features, '{}'), hosts = v_new.hosts, changed_at = _now()
    where id = v_new.id;
  exception when data_exception or integrity_constraint_violation then
    perform _refuse(422, 'invalid_provider', 'invalid provider options: ' || left(sqlerrm, 200));
  end;
  -- The windows may have room now, and tasks that were too large may fit.
  update endpoint_states set open_at = 'epoch', requests_limit = null, tokens_limit = null
  where endpoint_id = v_new.id;
  perform _retry_parked('limit', array(
    select id from lanes where provider = p_name and tenant_id is not distinct from p_tenant_id), _now());
  insert into provider_events (at, endpoint_id, tenant_id, event, details)
  values (_now(), v_new.id, p_tenant_id, 'changed', p_values);
  perform _audit(p_tenant_id, 'provider.changed', null, 'provider:' || p_name, p_values);
  perform pg_notify('penstock', 'chores');
  perform pg_notify('penstock', 'ready:' || l.kind) from lanes l where l.provider = p_name;
  return v_new.id;
end
$$;
comment on function penstock.set_provider(text, jsonb, uuid) is
  'Creates or changes a provider endpoint, for all tenants or for one: status, requests_per_minute, '
  'requests_per_hour, tokens_per_minute, tokens_per_hour, concurrency, default_tokens, '
  'backpressure_threshold, backpressure_delay_seconds, depth_limit, features, hosts (whose answers count). '
  'Null: no limit. Takes effect at once.';

create or replace function penstock._is_own_host(p_endpoint penstock.endpoints, p_host text)
returns boolean language sql immutable set search_path = penstock, pg_temp as $$
  select exists (
    select from unnest(coalesce(p_endpoint.hosts, case p_endpoint.provider
      when 'openai' then array['api.openai.com']
      when 'azure' then array['openai.azure.com', 'services.ai.azure.com', 'cognitive.microsoft.com']
      when 'anthropic' then array['api.anthropic.com']
      when 'google' then array['googleapis.com']
      when 'google-sheets' then array['googleapis.com']
      when 'mistral' then array['api.mistral.ai']
      when 'cohere' then array['api.cohere.com', 'api.cohere.ai']
      when 'groq' then array['api.groq.com']
      when 'elevenlabs' then array['api.elevenlabs.io']
      when 'deepgram' then array['api.deepgram.com']
      when 'replicate' then array['api.replicate.com']
      when 'runway' then array['runwayml.com']
      when 'simulator' then array['127.0.0.1', 'localhost', '::1']
      else '{}' end)) as h
    where lower(p_host) = lower(h) or right(lower(p_host), length(h) + 1) = '.' || lower(h))
$$;
comment on function penstock._is_own_host(penstock.endpoints, text) is
  'Whether an answer of this host is an answer of the provider: the host, or a domain above it, is listed '
  'in the endpoint''s hosts, or known for the provider''s name.';

create or replace function penstock.open_provider(p_name text, p_tenant_id uuid default null)
returns void language plpgsql security definer set search_path = penstock, pg_temp as $$
-- Lock order: see claim.sql.
declare
  v_id integer;
begin
  update endpoint_states s set open_at = 'epoch', closed_until = 'epoch', closed_reason = null, pace = 1,
    requests_limit = null, tokens_limit = null
  from endpoints e
  where e.id = s.endpoint_id and e.name = p_name and e.tenant_id is not distinct from p_tenant_id
  returning e.id into v_id;
  if not found then
    perform _refuse(422, 'unknown_provider', format('unknown provider %L', left(p_name, 200)));
  end if;
  perform _retry_parked('limit', array(select id from lanes where endpoint_id = v_id), _now());
  insert into provider_events (at, endpoint_id, tenant_id, event)
  values (_now(), v_id, p_tenant_id, 'opened');
  perform _audit(p_tenant_id, 'provider.opened', null, 'provider:' || p_name);
  perform pg_notify('penstock', 'chores');
  perform pg_notify('penstock', 'ready:' || l.kind) from lanes l where l.provider = p_name;
end
$$;
comment on function penstock.open_provider(text, uuid) is
  'Opens an endpoint that closed after a provider''s answer, once its account is topped up or the problem '
  'is solved. Forgets a lower limit that the provider reported.';

create or replace function penstock._call_size(p_units jsonb, p_default_tokens bigint)
returns table (requests bigint, tokens bigint) language sql immutable as $$
  select coalesce((p_units -> 'requests')::bigint, 1),
    coalesce(ceil((p_units -> 'tokens')::numeric)::bigint,
      ceil((p_units -> 'input_tokens')::numeric + coalesce((p_units -> 'output_tokens')::numeric, 0))::bigint,
      ceil((p_units -> 'output_tokens')::numeric)::bigint, p_default_tokens)
$$;
comment on function penstock._call_size(jsonb, bigint) is
  'The requests and tokens that a call counts in its endpoint''s windows.';

create or replace function penstock._slot_ends(p_width smallint, p_slot bigint)
returns double precision language sql immutable as $$
  -- Like _call_size it names no table and sets no search path, so that it is inlined.
  select case p_width when 1 then p_slot * 0.25::double precision + 60.75
    else p_slot * 60::double precision + 3661 end
$$;
comment on function penstock._slot_ends(smallint, bigint) is
  'Until when (in seconds since 1970) the calls of a slot count.';

create or replace function penstock._current_pace(
  p_pace double precision, p_paced_at timestamptz, p_now timestamptz)
returns double precision language sql immutable set search_path = pg_catalog, pg_temp as $$
  select least(1, p_pace + extract(epoch from p_now - p_paced_at)::double precision / 600)
$$;
comment on function penstock._current_pace(double precision, timestamptz, timestamptz) is
  'The share of its limits that an endpoint may use: a 429 lowers it, and it recovers within ten minutes.';

create or replace function penstock._free_concurrency(p_endpoint penstock.endpoints, p_now timestamptz)
returns bigint language plpgsql stable set search_path = penstock, pg_temp
  set enable_seqscan = off set jit = off as $$
begin
  if p_endpoint.concurrency is null then
    return null;
  end if;
  -- Counts the leases and calls there are: a separate counter could leak.
  return greatest(0, p_endpoint.concurrency
    - (select coalesce(sum(x.n), 0) from lanes l
       cross join lateral (
         select count(*) as n from leases y where y.lane_id = l.id and y.is_gated offset 0) as x
       where l.provider = p_endpoint.name and l.tenant_id is not distinct from p_endpoint.tenant_id)
    - (select count(*) from calls c where c.endpoint_id = p_endpoint.id and c.expires_at > p_now)
    - (select count(*) from operations o where o.endpoint_id = p_endpoint.id and o.has_place
       and o.status in ('pending', 'processing')));
end
$$;
comment on function penstock._free_concurrency(penstock.endpoints, timestamptz) is
  'How many more concurrent calls an endpoint allows (null: no limit).';

create or replace function penstock._free_capacity(
  p_endpoint penstock.endpoints, p_state penstock.endpoint_states, p_now timestamptz)
returns penstock.capacity language plpgsql stable set search_path = penstock, pg_temp
  set enable_seqscan = off set jit = off as $$
declare
  v_free capacity;
  v_pace double precision := _current_pace(p_state.pace, p_state.paced_at, p_now);
  v_epoch double precision := extract(epoch from p_now);
  v_minute record;
  v_hour record;
  v_requests bigint := least(p_endpoint.requests_per_minute, p_state.requests_limit);
  v_tokens bigint := least(p_endpoint.tokens_per_minute, p_state.tokens_limit);
begin
  -- The same as _slot_ends, written so that the index serves.
  select coalesce(sum(s.requests), 0) as requests, coalesce(sum(s.tokens), 0) as tokens into v_minute
  from spent s where s.endpoint_id = p_endpoint.id and s.width = 1
    and s.slot > floor(4 * (v_epoch - 60.75))::bigint;
  -- With the provider's own limit: a task that never fits must be parked.
  v_free.max_requests := least(v_requests, p_endpoint.requests_per_hour);
  v_free.max_tokens := least(v_tokens, p_endpoint.tokens_per_hour);
  -- However slow the pace, one request fits: its answer tells when to speed up again.
  v_free.requests := case when v_requests > 0 then greatest(1, floor(v_requests * v_pace)) else v_requests end
    - v_minute.requests;
  v_free.tokens := floor(v_tokens * v_pace) - v_minute.tokens;
  if p_endpoint.requests_per_hour is not null or p_endpoint.tokens_per_hour is not null then
    select coalesce(sum(s.requests), 0) as requests, coalesce(sum(s.tokens), 0) as tokens into v_hour
    from spent s
    where s.endpoint_id = p_endpoint.id and s.width = 60 and _slot_ends(s.width, s.slot) > v_epoch;
    v_free.requests := least(v_free.requests, p_endpoint.requests_per_hour - v_hour.requests);
    v_free.tokens := least(v_free.tokens, p_endpoint.tokens_per_hour - v_hour.tokens);
  end if;
  v_free.requests := case when v_free.requests is not null then greatest(0, v_free.requests) end;
  v_free.tokens := case when v_free.tokens is not null then greatest(0, v_free.tokens) end;
  v_free.places := _free_concurrency(p_endpoint, p_now);
  return v_free;
end
$$;
comment on function penstock._free_capacity(penstock.endpoints, penstock.endpoint_states, timestamptz) is
  'What is left of an endpoint''s limits now, and the most its windows ever allow (null: no limit).';

create or replace function penstock._count_calls(
  p_endpoint penstock.endpoints, p_at timestamptz, p_requests bigint, p_tokens bigint)
returns void language plpgsql set search_path = penstock, pg_temp as $$
declare
  v_epoch numeric := extract(epoch from p_at);
begin
  insert into spent as s (endpoint_id, width, slot, requests, tokens)
  values (p_endpoint.id, 1, floor(v_epoch * 4), p_requests, p_tokens)
  on conflict (endpoint_id, width, slot) do update
  set requests = s.requests + excluded.requests, tokens = s.tokens + excluded.tokens;
  if p_endpoint.requests_per_hour is not null or p_endpoint.tokens_per_hour is not null then
    insert into spent as s (endpoint_id, width, slot, requests, tokens)
    values (p_endpoint.id, 60, floor(v_epoch / 60), p_requests, p_tokens)
    on conflict (endpoint_id, width, slot) do update
    set requests = s.requests + excluded.requests, tokens = s.tokens + excluded.tokens;
  end if;
end
$$;
comment on function penstock._count_calls(penstock.endpoints, timestamptz, bigint, bigint) is
  'Counts calls admitted at a given time in their endpoint''s windows. Negative amounts take them back.';

create or replace function penstock._can_count_calls(p_endpoint_id integer, p_at timestamptz)
returns boolean language sql set search_path = penstock, pg_temp as $$
  with locked as (
    select 1 from spent s where s.endpoint_id = p_endpoint_id and (s.width, s.slot) in (
      (1, floor(extract(epoch from p_at) * 4)::bigint), (60, floor(extract(epoch from p_at) / 60)::bigint))
    for no key update skip locked
  )
  select (select count(*) from locked) = (
    select count(*) from spent s where s.endpoint_id = p_endpoint_id and (s.width, s.slot) in (
      (1, floor(extract(epoch from p_at) * 4)::bigint), (60, floor(extract(epoch from p_at) / 60)::bigint)))
$$;
comment on function penstock._can_count_calls(integer, timestamptz) is
  'Whether calls admitted at a given time can be counted without waiting for another transaction.';

create or replace function penstock._opens_at(
  p_endpoint penstock.endpoints, p_requests bigint, p_tokens bigint, p_now timestamptz)
returns timestamptz language plpgsql stable set search_path = penstock, pg_temp as $$
declare
  v_at timestamptz := p_now + interval '50 milliseconds';
  v_slot record;
  v_width integer;
  v_requests bigint;
  v_tokens bigint;
  v_most_requests bigint;
  v_most_tokens bigint;
begin
  -- In each full window enough slots must expire that the next call fits. A lowered pace recovers with time.
  foreach v_width in array array[1, 60] loop
    v_most_requests := case v_width when 1 then p_endpoint.requests_per_minute
      else p_endpoint.requests_per_hour end - p_requests;
    v_most_tokens := case v_width when 1 then p_endpoint.tokens_per_minute
      else p_endpoint.tokens_per_hour end - p_tokens;
    continue when v_most_requests is null and v_most_tokens is null;
    v_requests := 0;
    v_tokens := 0;
    -- Latest first: the slot with which the sum exceeds the limit must expire.
    for v_slot in
      select _slot_ends(s.width, s.slot) as ends, s.requests, s.tokens from spent s
      where s.endpoint_id = p_endpoint.id and s.width = v_width order by s.slot desc
    loop
      v_requests := v_requests + v_slot.requests;
      v_tokens := v_tokens + v_slot.tokens;
      if v_requests > v_most_requests or v_tokens > v_most_tokens then
        v_at := greatest(v_at, to_timestamp(v_slot.ends));
        exit;
      end if;
    end loop;
  end loop;
  return v_at;
end
$$;
comment on function penstock._opens_at(penstock.endpoints, bigint, bigint, timestamptz) is
  'When a call of this size fits into the windows.';

create or replace function penstock._required_endpoint(p_name text, p_tenant_id uuid)
returns penstock.endpoints language plpgsql stable set search_path = penstock, pg_temp as $$
declare
  v_endpoint endpoints := _endpoint(p_name, p_tenant_id);
begin
  if v_endpoint.id is null then
    perform _refuse(422, 'unknown_provider', format('unknown provider %L', left(p_name, 200)),
      jsonb_build_object('provider', left(p_name, 200)), 'Declare it with penstock.set_provider.');
  end if;
  return v_endpoint;
end
$$;
comment on function penstock._required_endpoint(text, uuid) is
  'The endpoint of this name; raises an error when there is none.';

create or replace function penstock.acquire_api_capacity(
  p_provider_name text, p_api_endpoint text, p_estimated_tokens bigint default 1000, p_key text default null,
  p_tenant_id uuid default null, p_ttl_seconds double precision default 60)
returns boolean language plpgsql security definer set search_path = penstock, pg_temp as $$
-- Lock order: see claim.sql.
declare
  v_endpoint endpoints := _required_endpoint(p_provider_name || '/' || p_api_endpoint, p_tenant_id);
  v_state endpoint_states;
  v_now timestamptz;
  v_free capacity;
begin
  if p_estimated_tokens is null or p_estimated_tokens not between 0 and 1000000000 then
    perform _refuse(422, 'invalid_units',
      format('p_estimated_tokens must be between 0 and 1000000000 (got %s)',
        coalesce(p_estimated_tokens::text, 'null')),
      '{"field": "p_estimated_tokens"}');
  end if;
  if p_ttl_seconds is null or not p_ttl_seconds between 1 and 86400 then
    perform _refuse(422, 'invalid_ttl',
      format('p_ttl_seconds must be between 1 and 86400 (got %s)', coalesce(p_ttl_seconds::text, 'null')),
      '{"field": "p_ttl_seconds"}');
  end if;
  if p_estimated_tokens > least(v_endpoint.tokens_per_minute, v_endpoint.tokens_per_hour) then
    perform _refuse(422, 'over_limit',
      format('a call of %s tokens is more than %s allows in any window',
        p_estimated_tokens, v_endpoint.name));
  end if;
  select * into v_state from endpoint_states where endpoint_id = v_endpoint.id for no key update;
  -- Read again: it may have changed while this call waited for the lock.
  select * into v_endpoint from endpoints where id = v_endpoint.id;
  v_now := _now();
  if v_endpoint.status <> 'active' or v_state.closed_until > v_now then
    return false;
  end if;
  if p_key is not null and exists (
      select from calls where endpoint_id = v_endpoint.id and key = p_key and expires_at > v_now) then
    return true;
  end if;
  v_free := _free_capacity(v_endpoint, v_state, v_now);
  if v_free.requests < 1 or v_free.tokens < p_estimated_tokens or v_free.places < 1 then
    return false;
  end if;
  delete from calls where endpoint_id = v_endpoint.id and expires_at <= v_now;
  insert into calls (endpoint_id, key, tokens, granted_at, expires_at)
  values (v_endpoint.id, p_key, p_estimated_tokens, v_now, v_now + make_interval(secs => p_ttl_seconds));
  perform _count_calls(v_endpoint, v_now, 1, p_estimated_tokens);
  return true;
end
$$;
comment on function penstock.acquire_api_capacity(text, text, bigint, text, uuid, double precision) is
  'Reserves capacity for one call outside a claim: true, or false when there is none now. The call counts as '
  'concurrent until release_api_capacity, or for p_ttl_seconds. The same p_key reserves once.';

create or replace function penstock.release_api_capacity(
  p_provider_name text, p_api_endpoint text, p_estimated_tokens bigint default 1000,
  p_actual_tokens bigint default null, p_key text default null, p_tenant_id uuid default null)
returns void language plpgsql security definer set search_path = penstock, pg_temp as $$
-- Lock order: see claim.sql.
declare
  v_endpoint endpoints := _required_endpoint(p_provider_name || '/' || p_api_endpoint, p_tenant_id);
  v_call calls;
begin
  if p_actual_tokens not between 0 and 1000000000 then
    perform _refuse(422, 'invalid_units',
      format('p_actual_tokens must be between 0 and 1000000000 (got %s)', p_actual_tokens),
      '{"field": "p_actual_tokens"}');
  end if;
  perform 1 from endpoint_states where endpoint_id = v_endpoint.id for no key update;
  -- Without a key the oldest call of the same size ends: all of these are alike.
  delete from calls where id = (
    select id from calls where endpoint_id = v_endpoint.id and key is not distinct from p_key
      and (p_key is not null or tokens = p_estimated_tokens)
    order by granted_at limit 1)
  returning * into v_call;
  if v_call.id is not null and p_actual_tokens <> v_call.tokens then
    perform _count_calls(v_endpoint, v_call.granted_at, 0, p_actual_tokens - v_call.tokens);
    update endpoint_states set open_at = 'epoch'
    where endpoint_id = v_endpoint.id and p_actual_tokens < v_call.tokens;
  end if;
  if v_call.id is not null then
    -- Tasks may wait for the concurrency, or for the tokens.
    perform pg_notify('penstock', 'ready:' || l.kind) from lanes l
    where l.endpoint_id = v_endpoint.id and exists (select from ready r where r.lane_id = l.id);
  end if;
end
$$;
comment on function penstock.release_api_capacity(text, text, bigint, bigint, text, uuid) is
  'Ends a call of acquire_api_capacity and replaces its estimate with the actual tokens. A second release '
  'changes nothing.';

create or replace function penstock.report_provider(
  p_name text, p_signal jsonb, p_tenant_id uuid default null)
returns void language plpgsql security definer set search_path = penstock, pg_temp as $$
-- Lock order: see claim.sql.
declare
  v_endpoint endpoints := _required_endpoint(p_name, p_tenant_id);
  v_state endpoint_states;
  v_signal record;
begin
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
    perform _apply_told_limits(v_endpoint, v_state, v_signal.requests_limit, v_signal.tokens_limit);
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
    refused_at = v_now, closed_reason = c_exhausted
  where endpoint_id = p_endpoint.id;
  insert into provider_events (at, endpoint_id, tenant_id, event, details)
  select v_now, p_endpoint.id, p_endpoint.tenant_id, 'exhausted', p_signal
  where p_state.closed_until <= v_now or p_state.closed_reason is distinct from c_exhausted;
  if found then
    -- Without the provider's text, which may quote a request.
    perform _alert('provider_closed', 'provider:' || p_endpoint.name
      || coalesce(' of tenant:' || p_endpoint.tenant_id, ''), p_endpoint.tenant_id,
      jsonb_build_object('reason', c_exhausted, 'status', p_signal -> 'status'));
  end if;
  -- Upkeep reroutes tasks at once.
  perform pg_notify('penstock', 'chores');
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
      else format('answered %s', p_status) end, pace = v_pace,
    paced_at = case when v_pace < p_state.pace or v_is_new then v_now else paced_at end,
    refusals = refusals + 1, refused_at = v_now
  where endpoint_id = p_endpoint.id and closed_until < 'infinity';
  insert into provider_events (at, endpoint_id, tenant_id, event, details)
  values (v_now, p_endpoint.id, p_endpoint.tenant_id, 'refused',
    p_signal || jsonb_build_object('closed_seconds', round(v_delay::numeric, 3)));
  if v_delay > 30 then
    perform pg_notify('penstock', 'chores');
  end if;
end
$$;
comment on function penstock._slow_down(
  penstock.endpoints, penstock.endpoint_states, jsonb, integer, double precision) is
  'Closes an endpoint that rejected a call for as long as it asked for, and lowers its pace.';

create or replace function penstock._apply_told_limits(
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
comment on function penstock._apply_told_limits(
  penstock.endpoints, penstock.endpoint_states, bigint, bigint) is
  'Keeps the limits that a provider reports, for an hour (see _forget_told_limits), and retries tasks that '
  'a lower one had parked.';

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

create or replace function penstock._forget_told_limits()
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
comment on function penstock._forget_told_limits() is
  'Forgets lower limits that providers reported more than an hour ago, and retries tasks that were too '
  'large for them.';

create or replace function penstock._uncount_calls(p_leases penstock.leases[])
returns void language plpgsql set search_path = penstock, pg_temp as $$
declare
  v_call record;
begin
  -- All states before all slots: see the lock order in claim.sql.
  for v_call in
    select distinct n.endpoint_id from unnest(p_leases) as l join lanes n on n.id = l.lane_id
    where l.is_gated and l.usage is null and n.endpoint_id is not null order by 1
  loop
    update endpoint_states set open_at = case when open_at > _now() then 'epoch' else open_at end
    where endpoint_id = v_call.endpoint_id;
  end loop;
  -- In the order of their key: another call may count in two of these slots.
  insert into spent as s (endpoint_id, width, slot, requests, tokens)
  select c.endpoint_id, w.width, floor(extract(epoch from c.started_at) * 4 / w.slots),
    -sum(c.requests), -sum(c.tokens)
  from (
    -- At the endpoint that admitted them, also when the tenant has its own by now.
    select e.id as endpoint_id, l.started_at, z.requests, z.tokens,
      e.requests_per_hour is not null or e.tokens_per_hour is not null as has_hours
    from unnest(p_leases) as l join lanes n on n.id = l.lane_id join endpoints e on e.id = n.endpoint_id
    join tasks t on t.job_id = l.job_id and t.id = l.task_id
    cross join lateral _call_size(t.units, e.default_tokens) as z
    where l.is_gated and l.usage is null) as c
  join (values (1, 1), (60, 240)) as w(width, slots) on w.width = 1 or c.has_hours
  group by 1, 2, 3 order by 1, 2, 3
  on conflict (endpoint_id, width, slot) do update
  set requests = s.requests + excluded.requests, tokens = s.tokens + excluded.tokens;
end
$$;
comment on function penstock._uncount_calls(penstock.leases[]) is
  'Takes calls that were never made out of their endpoints'' windows.';

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

create or replace function penstock._prune_providers(p_limit integer)
returns void language sql set search_path = penstock, pg_temp as $$
  -- Rows that are locked are deleted the next time.
  delete from spent where ctid = any (array(
    select ctid from spent where _slot_ends(width, slot) + 30 < extract(epoch from _now())
    limit p_limit for update skip locked));
  delete from calls where ctid = any (array(
    select ctid from calls where expires_at < _now() - interval '1 hour'
    limit p_limit for update skip locked))
$$;
comment on function penstock._prune_providers(integer) is
  'Deletes slots and calls that no window counts any more, at most p_limit of each.';
