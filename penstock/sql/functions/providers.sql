-- Providers: their limits, what of them is left, and what they answer.
-- The windows slide: what was admitted in a quarter of a second counts until a minute and half a second after its end,
-- in a minute until an hour and a second after. So no window of 60 or 3,600 seconds, also as the provider sees it a moment
-- later, holds more than the limit. Whoever admits has the endpoint's state locked; nobody waits for that lock.

insert into penstock.endpoints (provider, endpoint, requests_per_minute, tokens_per_minute, concurrency,
  backpressure_threshold, backpressure_delay_seconds, features, changed_at)
select * from (values
  ('openai', 'gpt-4o-mini', 500, 200000, 50, 0.8, 5, array['chat', 'json'], penstock._now()),
  ('openai', 'gpt-4-vision', 100, 20000, 20, 0.8, 5, array['chat', 'vision'], penstock._now()),
  ('google', 'vision-api', 1800, null, 100, 0.8, 5, array['vision', 'ocr'], penstock._now()),
  ('anthropic', 'claude-3', 400, 100000, 25, 0.8, 5, array['chat', 'json'], penstock._now())) as seed
where not exists (select from penstock.endpoints);
insert into penstock.endpoint_states (endpoint_id) select id from penstock.endpoints on conflict do nothing;

create or replace function penstock._endpoint(p_name text, p_tenant_id uuid)
returns penstock.endpoints language sql stable set search_path = penstock, pg_temp as $$
  select e from endpoints e where e.name = p_name and (e.tenant_id = p_tenant_id or e.tenant_id is null)
  order by e.tenant_id nulls last limit 1
$$;
comment on function penstock._endpoint(text, uuid) is 'The endpoint of this name: the tenant''s own, else the one for all.';

create or replace function penstock.set_provider(p_name text, p_values jsonb default '{}', p_tenant_id uuid default null)
returns integer language plpgsql security definer set search_path = penstock, pg_temp as $$
declare
  c_fields constant text[] := array['status', 'requests_per_minute', 'requests_per_hour', 'tokens_per_minute', 'tokens_per_hour',
    'concurrency', 'default_tokens', 'backpressure_threshold', 'backpressure_delay_seconds', 'depth_limit', 'features'];
  v_old endpoints;
  v_new endpoints;
begin
  if p_name is null or p_name !~ '^[a-z0-9][a-z0-9_.-]{0,99}/[A-Za-z0-9][A-Za-z0-9_.:/-]{0,98}$' then
    perform _refuse(422, 'invalid_provider', 'a provider is named provider/endpoint', '{"field": "p_name"}');
  end if;
  perform _check_fields(p_values, c_fields, 'provider');
  if p_tenant_id is not null and not exists (select from tenants where id = p_tenant_id) then
    perform _refuse(404, 'unknown_tenant', 'there is no such tenant');
  end if;
  select * into v_old from endpoints where name = p_name and tenant_id is not distinct from p_tenant_id for no key update;
  begin
    if v_old.id is null then
      insert into endpoints (provider, endpoint, tenant_id, changed_at)
      values (split_part(p_name, '/', 1), substr(p_name, strpos(p_name, '/') + 1), p_tenant_id, _now()) returning * into v_old;
      insert into endpoint_states (endpoint_id) values (v_old.id);
    end if;
    v_new := jsonb_populate_record(v_old, p_values);
    update endpoints set status = v_new.status, requests_per_minute = v_new.requests_per_minute, requests_per_hour = v_new.requests_per_hour,
      tokens_per_minute = v_new.tokens_per_minute, tokens_per_hour = v_new.tokens_per_hour, concurrency = v_new.concurrency,
      default_tokens = v_new.default_tokens, backpressure_threshold = v_new.backpressure_threshold,
      backpressure_delay_seconds = v_new.backpressure_delay_seconds, depth_limit = v_new.depth_limit,
      features = coalesce(v_new.features, '{}'), changed_at = _now()
    where id = v_new.id;
  exception when data_exception or integrity_constraint_violation then
    perform _refuse(422, 'invalid_provider', 'a value is not right: ' || left(sqlerrm, 200));
  end;
  -- What was full may have room now, what did not fit at all may fit, and what was refused may be tried.
  update endpoint_states set open_at = 'epoch', requests_limit = null, tokens_limit = null where endpoint_id = v_new.id;
  perform _retry_parked('limit', array(select id from lanes where provider = p_name and tenant_id is not distinct from p_tenant_id), _now());
  insert into provider_events (at, endpoint_id, tenant_id, event, details) values (_now(), v_new.id, p_tenant_id, 'changed', p_values);
  perform _audit(p_tenant_id, 'provider.changed', null, 'provider:' || p_name, p_values);
  perform pg_notify('penstock', 'chores');
  perform pg_notify('penstock', 'ready:' || l.kind) from lanes l where l.provider = p_name;
  return v_new.id;
end
$$;
comment on function penstock.set_provider(text, jsonb, uuid) is
  'Makes or changes a provider endpoint, for all or for one tenant: status, requests_per_minute, requests_per_hour, tokens_per_minute, tokens_per_hour, concurrency, default_tokens, backpressure_threshold, backpressure_delay_seconds, depth_limit, features. A limit that is null is none. Takes effect at once.';

create or replace function penstock.open_provider(p_name text, p_tenant_id uuid default null)
returns void language plpgsql security definer set search_path = penstock, pg_temp as $$
declare
  v_id integer;
begin
  update endpoint_states s set open_at = 'epoch', closed_until = 'epoch', closed_reason = null, pace = 1,
    requests_limit = null, tokens_limit = null
  from endpoints e where e.id = s.endpoint_id and e.name = p_name and e.tenant_id is not distinct from p_tenant_id
  returning e.id into v_id;
  if not found then
    perform _refuse(422, 'unknown_provider', format('there is no provider %L', left(p_name, 200)));
  end if;
  perform _retry_parked('limit', array(select id from lanes where endpoint_id = v_id), _now());
  insert into provider_events (at, endpoint_id, tenant_id, event) values (_now(), v_id, p_tenant_id, 'opened');
  perform _audit(p_tenant_id, 'provider.opened', null, 'provider:' || p_name);
  perform pg_notify('penstock', 'chores');
  perform pg_notify('penstock', 'ready:' || l.kind) from lanes l where l.provider = p_name;
end
$$;
comment on function penstock.open_provider(text, uuid) is 'Opens a lane that a provider''s answer closed, after its account was topped up or the trouble is over. A lower limit that it told is forgotten.';

create or replace function penstock._size(p_units jsonb, p_default_tokens bigint)
returns table (requests bigint, tokens bigint) language sql immutable as $$
  select coalesce((p_units -> 'requests')::bigint, 1),
    coalesce(ceil((p_units -> 'tokens')::numeric)::bigint,
      ceil((p_units -> 'input_tokens')::numeric + coalesce((p_units -> 'output_tokens')::numeric, 0))::bigint,
      ceil((p_units -> 'output_tokens')::numeric)::bigint, p_default_tokens)
$$;
comment on function penstock._size(jsonb, bigint) is 'What of a provider''s limits a call takes.';

create or replace function penstock._slot_ends(p_width smallint, p_slot bigint)
returns double precision language sql immutable as $$
  -- Like _size it names no table and sets no path, so that it is inlined: a claim calls it for every slot.
  select case p_width when 1 then p_slot * 0.25::double precision + 60.75 else p_slot * 60::double precision + 3661 end
$$;
comment on function penstock._slot_ends(smallint, bigint) is 'Until when (in seconds since 1970) what was admitted in a slot counts.';

create or replace function penstock._pace(p_pace double precision, p_paced_at timestamptz, p_now timestamptz)
returns double precision language sql immutable set search_path = pg_catalog, pg_temp as $$
  select least(1, p_pace + extract(epoch from p_now - p_paced_at)::double precision / 600)
$$;
comment on function penstock._pace(double precision, timestamptz, timestamptz) is
  'What share of its limits an endpoint uses: a refusal lowers it, ten minutes bring it back.';

create or replace function penstock._places(p_endpoint penstock.endpoints, p_now timestamptz)
returns bigint language plpgsql stable set search_path = penstock, pg_temp set enable_seqscan = off set jit = off as $$
begin
  if p_endpoint.concurrency is null then
    return null;
  end if;
  -- Live leases and live calls are the count: there is nothing that could leak.
  return greatest(0, p_endpoint.concurrency
    - (select coalesce(sum(x.n), 0) from lanes l
       cross join lateral (select count(*) as n from leases y where y.lane_id = l.id and y.is_gated offset 0) as x
       where l.provider = p_endpoint.name and l.tenant_id is not distinct from p_endpoint.tenant_id)
    - (select count(*) from calls c where c.endpoint_id = p_endpoint.id and c.expires_at > p_now));
end
$$;
comment on function penstock._places(penstock.endpoints, timestamptz) is 'How many more calls an endpoint takes at once (null: no limit).';

create or replace function penstock._room(p_endpoint penstock.endpoints, p_state penstock.endpoint_states, p_now timestamptz,
  out requests bigint, out tokens bigint, out places bigint, out most_requests bigint, out most_tokens bigint)
language plpgsql stable set search_path = penstock, pg_temp set enable_seqscan = off set jit = off as $$
declare
  v_pace double precision := _pace(p_state.pace, p_state.paced_at, p_now);
  v_epoch double precision := extract(epoch from p_now);
  v_minute record;
  v_hour record;
  v_requests bigint := least(p_endpoint.requests_per_minute, p_state.requests_limit);
  v_tokens bigint := least(p_endpoint.tokens_per_minute, p_state.tokens_limit);
begin
  -- As _slot_ends has it, in the words of the index.
  select coalesce(sum(s.requests), 0) as requests, coalesce(sum(s.tokens), 0) as tokens into v_minute
  from spent s where s.endpoint_id = p_endpoint.id and s.width = 1 and s.slot > floor(4 * (v_epoch - 60.75))::bigint;
  -- Also not more than the provider says: what never fits must not stand in the line for ever.
  most_requests := least(v_requests, p_endpoint.requests_per_hour);
  most_tokens := least(v_tokens, p_endpoint.tokens_per_hour);
  -- Where there is no limit there is no room either: null.
  requests := case when v_requests > 0 then greatest(1, floor(v_requests * v_pace)) else v_requests end - v_minute.requests;
  tokens := floor(v_tokens * v_pace) - v_minute.tokens;
  if p_endpoint.requests_per_hour is not null or p_endpoint.tokens_per_hour is not null then
    select coalesce(sum(s.requests), 0) as requests, coalesce(sum(s.tokens), 0) as tokens into v_hour
    from spent s where s.endpoint_id = p_endpoint.id and s.width = 60 and _slot_ends(s.width, s.slot) > v_epoch;
    requests := least(requests, p_endpoint.requests_per_hour - v_hour.requests);
    tokens := least(tokens, p_endpoint.tokens_per_hour - v_hour.tokens);
  end if;
  requests := case when requests is not null then greatest(0, requests) end;
  tokens := case when tokens is not null then greatest(0, tokens) end;
  places := _places(p_endpoint, p_now);
end
$$;
comment on function penstock._room(penstock.endpoints, penstock.endpoint_states, timestamptz) is
  'What is left of an endpoint''s limits now (null: no limit), and the most it ever has.';

create or replace function penstock._spend(p_endpoint penstock.endpoints, p_at timestamptz, p_requests bigint, p_tokens bigint)
returns void language plpgsql set search_path = penstock, pg_temp as $$
declare
  v_epoch numeric := extract(epoch from p_at);
begin
  insert into spent as s (endpoint_id, width, slot, requests, tokens) values (p_endpoint.id, 1, floor(v_epoch * 4), p_requests, p_tokens)
  on conflict (endpoint_id, width, slot) do update set requests = s.requests + excluded.requests, tokens = s.tokens + excluded.tokens;
  if p_endpoint.requests_per_hour is not null or p_endpoint.tokens_per_hour is not null then
    insert into spent as s (endpoint_id, width, slot, requests, tokens) values (p_endpoint.id, 60, floor(v_epoch / 60), p_requests, p_tokens)
    on conflict (endpoint_id, width, slot) do update set requests = s.requests + excluded.requests, tokens = s.tokens + excluded.tokens;
  end if;
end
$$;
comment on function penstock._spend(penstock.endpoints, timestamptz, bigint, bigint) is 'Counts what was admitted at a moment; less than nothing gives back.';

create or replace function penstock._can_spend(p_endpoint_id integer, p_at timestamptz)
returns boolean language sql set search_path = penstock, pg_temp as $$
  with mine as (
    select 1 from spent s where s.endpoint_id = p_endpoint_id and (s.width, s.slot) in (
      (1, floor(extract(epoch from p_at) * 4)::bigint), (60, floor(extract(epoch from p_at) / 60)::bigint)) for no key update skip locked
  )
  select (select count(*) from mine) = (select count(*) from spent s where s.endpoint_id = p_endpoint_id and (s.width, s.slot) in (
    (1, floor(extract(epoch from p_at) * 4)::bigint), (60, floor(extract(epoch from p_at) / 60)::bigint)))
$$;
comment on function penstock._can_spend(integer, timestamptz) is 'Whether what is admitted at a moment can be counted without waiting for anybody.';

create or replace function penstock._opens_at(p_endpoint penstock.endpoints, p_requests bigint, p_tokens bigint, p_now timestamptz)
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
  -- Of each full window, so much has to pass that the next call fits. What a slower pace takes away comes back by itself.
  foreach v_width in array array[1, 60] loop
    v_most_requests := case v_width when 1 then p_endpoint.requests_per_minute else p_endpoint.requests_per_hour end - p_requests;
    v_most_tokens := case v_width when 1 then p_endpoint.tokens_per_minute else p_endpoint.tokens_per_hour end - p_tokens;
    continue when v_most_requests is null and v_most_tokens is null;
    v_requests := 0;
    v_tokens := 0;
    -- Latest first: the slot with which it is too much has to pass.
    for v_slot in
      select _slot_ends(s.width, s.slot) as ends, s.requests, s.tokens from spent s where s.endpoint_id = p_endpoint.id and s.width = v_width order by s.slot desc
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
comment on function penstock._opens_at(penstock.endpoints, bigint, bigint, timestamptz) is 'When a call of this size fits into the windows.';

create or replace function penstock._required_endpoint(p_name text, p_tenant_id uuid)
returns penstock.endpoints language plpgsql stable set search_path = penstock, pg_temp as $$
declare
  v_endpoint endpoints := _endpoint(p_name, p_tenant_id);
begin
  if v_endpoint.id is null then
    perform _refuse(422, 'unknown_provider', format('there is no provider %L', left(p_name, 200)), jsonb_build_object('provider', left(p_name, 200)),
      'Declare it with penstock.set_provider.');
  end if;
  return v_endpoint;
end
$$;
comment on function penstock._required_endpoint(text, uuid) is 'The endpoint of this name, or a refusal.';

create or replace function penstock.acquire_api_capacity(
  p_provider_name text, p_api_endpoint text, p_estimated_tokens bigint default 1000, p_key text default null,
  p_tenant_id uuid default null, p_ttl_seconds double precision default 60)
returns boolean language plpgsql security definer set search_path = penstock, pg_temp as $$
declare
  v_endpoint endpoints := _required_endpoint(p_provider_name || '/' || p_api_endpoint, p_tenant_id);
  v_state endpoint_states;
  v_now timestamptz;
  v_room record;
begin
  if p_estimated_tokens is null or p_estimated_tokens not between 0 and 1000000000 then
    perform _refuse(422, 'invalid_units', 'p_estimated_tokens is 0 to a billion', '{"field": "p_estimated_tokens"}');
  end if;
  if p_ttl_seconds is null or not p_ttl_seconds between 1 and 86400 then
    perform _refuse(422, 'invalid_ttl', 'p_ttl_seconds is 1 to 86400', '{"field": "p_ttl_seconds"}');
  end if;
  if p_estimated_tokens > least(v_endpoint.tokens_per_minute, v_endpoint.tokens_per_hour) then
    perform _refuse(422, 'over_limit', format('%s tokens at once are more than %s ever has', p_estimated_tokens, v_endpoint.name));
  end if;
  select * into v_state from endpoint_states where endpoint_id = v_endpoint.id for no key update;
  -- As it is now that it is our turn.
  select * into v_endpoint from endpoints where id = v_endpoint.id;
  v_now := _now();
  if v_endpoint.status <> 'active' or v_state.closed_until > v_now then
    return false;
  end if;
  if p_key is not null and exists (select from calls where endpoint_id = v_endpoint.id and key = p_key and expires_at > v_now) then
    return true;
  end if;
  v_room := _room(v_endpoint, v_state, v_now);
  if v_room.requests < 1 or v_room.tokens < p_estimated_tokens or v_room.places < 1 then
    return false;
  end if;
  delete from calls where endpoint_id = v_endpoint.id and expires_at <= v_now;
  insert into calls (endpoint_id, key, tokens, granted_at, expires_at)
  values (v_endpoint.id, p_key, p_estimated_tokens, v_now, v_now + make_interval(secs => p_ttl_seconds));
  perform _spend(v_endpoint, v_now, 1, p_estimated_tokens);
  return true;
end
$$;
comment on function penstock.acquire_api_capacity(text, text, bigint, text, uuid, double precision) is
  'Takes room for one call outside a claim: true, or false when there is none now. Its place comes back with release_api_capacity, or after p_ttl_seconds. The same p_key takes it once.';

create or replace function penstock.release_api_capacity(
  p_provider_name text, p_api_endpoint text, p_estimated_tokens bigint default 1000, p_actual_tokens bigint default null,
  p_key text default null, p_tenant_id uuid default null)
returns void language plpgsql security definer set search_path = penstock, pg_temp as $$
declare
  v_endpoint endpoints := _required_endpoint(p_provider_name || '/' || p_api_endpoint, p_tenant_id);
  v_call calls;
begin
  if p_actual_tokens not between 0 and 1000000000 then
    perform _refuse(422, 'invalid_units', 'p_actual_tokens is 0 to a billion', '{"field": "p_actual_tokens"}');
  end if;
  perform 1 from endpoint_states where endpoint_id = v_endpoint.id for no key update;
  -- A caller without a key gives back the oldest call of the same size: which one it is makes no difference.
  delete from calls where id = (
    select id from calls where endpoint_id = v_endpoint.id and key is not distinct from p_key
      and (p_key is not null or tokens = p_estimated_tokens)
    order by granted_at limit 1)
  returning * into v_call;
  if v_call.id is not null and p_actual_tokens <> v_call.tokens then
    perform _spend(v_endpoint, v_call.granted_at, 0, p_actual_tokens - v_call.tokens);
    update endpoint_states set open_at = 'epoch' where endpoint_id = v_endpoint.id and p_actual_tokens < v_call.tokens;
  end if;
  if v_call.id is not null then
    -- For whoever waits for the place, or for the tokens.
    perform pg_notify('penstock', 'ready:' || l.kind) from lanes l where l.endpoint_id = v_endpoint.id and exists (select from ready r where r.lane_id = l.id);
  end if;
end
$$;
comment on function penstock.release_api_capacity(text, text, bigint, bigint, text, uuid) is
  'Ends a call of acquire_api_capacity and replaces its estimate by the actual tokens. A second release changes nothing.';

create or replace function penstock.report_provider(p_name text, p_signal jsonb, p_tenant_id uuid default null)
returns void language plpgsql security definer set search_path = penstock, pg_temp as $$
declare
  v_endpoint endpoints := _required_endpoint(p_name, p_tenant_id);
  v_state endpoint_states;
  v_before endpoint_states;
  v_now timestamptz;
  v_room record;
  v_delay double precision;
  v_pace double precision;
  v_told record;
begin
  begin
    select (p_signal ->> 'status')::integer as status, coalesce((p_signal ->> 'exhausted')::boolean, false) as exhausted,
      (p_signal ->> 'retry_after_seconds')::double precision as retry_after,
      (p_signal #>> '{requests,limit}')::bigint as requests_limit, (p_signal #>> '{requests,remaining}')::bigint as requests_left,
      (p_signal #>> '{tokens,limit}')::bigint as tokens_limit, (p_signal #>> '{tokens,remaining}')::bigint as tokens_left
    into v_told;
  exception when data_exception then
    perform _refuse(422, 'invalid_signal', 'the signal is {"status", "retry_after_seconds", "exhausted", "message", "requests": {"limit", "remaining"}, "tokens": …}');
  end;
  select * into v_state from endpoint_states where endpoint_id = v_endpoint.id for no key update;
  v_now := _now();
  if v_told.exhausted then
    update endpoint_states set closed_until = 'infinity', refusals = refusals + 1, refused_at = v_now,
      closed_reason = 'quota exhausted' || coalesce(': ' || left(p_signal ->> 'message', 500), '')
    where endpoint_id = v_endpoint.id;
    insert into provider_events (at, endpoint_id, tenant_id, event, details)
    select v_now, v_endpoint.id, v_endpoint.tenant_id, 'exhausted', p_signal where v_state.closed_until < 'infinity';
    -- What may go elsewhere goes now, and not when somebody looks by.
    perform pg_notify('penstock', 'chores');
    return;
  end if;
  if v_told.status = 429 or v_told.status >= 500 and v_told.retry_after is not null or v_told.status = 529 then
    -- Those who were refused with the same wave say it once.
    v_pace := _pace(v_state.pace, v_state.paced_at, v_now);
    if v_state.paced_at < v_now - interval '1 second' then
      v_pace := greatest(0.1, 0.8 * v_pace);
    end if;
    v_delay := least(3600, greatest(coalesce(v_told.retry_after, 0),
      case when v_told.retry_after is null then (0.5 + random()) * power(2, least(6, ln(greatest(0.1, 1 / v_pace)) / 0.223)) else 0 end));
    update endpoint_states set closed_until = greatest(closed_until, v_now + make_interval(secs => v_delay)),
      closed_reason = format('answered %s', v_told.status), pace = v_pace,
      paced_at = case when v_pace < v_state.pace or v_state.paced_at < v_now - interval '1 second' then v_now else paced_at end,
      refusals = refusals + 1, refused_at = v_now
    where endpoint_id = v_endpoint.id and closed_until < 'infinity';
    insert into provider_events (at, endpoint_id, tenant_id, event, details)
    values (v_now, v_endpoint.id, v_endpoint.tenant_id, 'refused', p_signal || jsonb_build_object('closed_seconds', round(v_delay::numeric, 3)));
    if v_delay > 30 then
      perform pg_notify('penstock', 'chores');
    end if;
  end if;
  -- A limit that is lower than ours counts, as long as the provider says so: see _forget_told_limits. A limit of nothing says nothing: it would
  -- close the lane for good, since nobody would ask again.
  update endpoint_states set
    requests_limit = case when v_told.requests_limit between 1 and v_endpoint.requests_per_minute - 1 then v_told.requests_limit end,
    tokens_limit = case when v_told.tokens_limit between 1 and v_endpoint.tokens_per_minute - 1 then v_told.tokens_limit end,
    told_at = v_now
  where endpoint_id = v_endpoint.id and (v_told.requests_limit is not null or v_told.tokens_limit is not null);
  v_before := v_state;
  select * into v_state from endpoint_states where endpoint_id = v_endpoint.id;
  if v_before.requests_limit < coalesce(v_state.requests_limit, v_endpoint.requests_per_minute)
     or v_before.tokens_limit < coalesce(v_state.tokens_limit, v_endpoint.tokens_per_minute) then
    perform _retry_parked('limit', array(select id from lanes where endpoint_id = v_endpoint.id), v_now);
    perform pg_notify('penstock', 'chores');
  end if;
  -- Less is left than we believe: somebody else calls with the same key. What they took counts for us too.
  v_room := _room(v_endpoint, v_state, v_now);
  if v_told.requests_left < v_room.requests - 0.05 * v_endpoint.requests_per_minute
     or v_told.tokens_left < v_room.tokens - 0.05 * v_endpoint.tokens_per_minute - 1000 then
    perform _spend(v_endpoint, v_now, coalesce(greatest(0, v_room.requests - v_told.requests_left), 0),
      coalesce(greatest(0, v_room.tokens - v_told.tokens_left), 0));
  end if;
end
$$;
comment on function penstock.report_provider(text, jsonb, uuid) is
  'What a provider answered: {"status", "retry_after_seconds", "exhausted", "message", "requests": {"limit", "remaining"}, "tokens": {"limit", "remaining"}}. A refusal closes the lane for all workers at once and slows it for a while; an exhausted account closes it until open_provider.';

create or replace function penstock._forget_told_limits()
returns void language plpgsql set search_path = penstock, pg_temp as $$
declare
  v_endpoints integer[];
begin
  -- What is larger than such a limit is not called with, so that nobody would hear of a new one.
  with lapsed as (
    update endpoint_states set requests_limit = null, tokens_limit = null, open_at = 'epoch' where endpoint_id = any (array(
      select endpoint_id from endpoint_states
      where told_at < _now() - interval '1 hour' and (requests_limit is not null or tokens_limit is not null) for no key update skip locked))
    returning endpoint_id
  )
  select array_agg(endpoint_id) into v_endpoints from lapsed;
  if v_endpoints is not null then
    perform _retry_parked('limit', array(select id from lanes where endpoint_id = any (v_endpoints)), _now());
  end if;
end
$$;
comment on function penstock._forget_told_limits() is 'A provider''s lower limit counts for an hour after it was told; what was too large for it is tried again.';

create or replace function penstock._unspend(p_leases penstock.leases[])
returns void language plpgsql set search_path = penstock, pg_temp as $$
declare
  v_call record;
begin
  for v_call in
    -- At the endpoint they were admitted by, also when the tenant has one of its own by now.
    select e as endpoint, l.started_at, sum(s.requests)::bigint as requests, sum(s.tokens)::bigint as tokens
    from unnest(p_leases) as l join lanes n on n.id = l.lane_id join endpoints e on e.id = n.endpoint_id
    join tasks t on t.job_id = l.job_id and t.id = l.task_id
    cross join lateral _size(t.units, e.default_tokens) as s
    where l.is_gated and l.usage is null group by e.id, e, l.started_at order by e.id, l.started_at
  loop
    -- The state before its slots, as whoever admits.
    update endpoint_states set open_at = case when open_at > _now() then 'epoch' else open_at end where endpoint_id = (v_call.endpoint).id;
    perform _spend(v_call.endpoint, v_call.started_at, -v_call.requests, -v_call.tokens);
  end loop;
end
$$;
comment on function penstock._unspend(penstock.leases[]) is 'These calls were never made: their room is free again.';

create or replace function penstock.report_limited(p_task_id bigint, p_worker_id text, p_lease bigint, p_signal jsonb)
returns void language plpgsql security definer set search_path = penstock, pg_temp as $$
declare
  v_lease leases;
  v_provider text;
  v_tenant_id uuid;
  v_delay double precision := 0;
begin
  perform _require_lease(p_task_id, p_worker_id, p_lease);
  select * into v_lease from leases where task_id = p_task_id;
  select provider, tenant_id into v_provider, v_tenant_id from lanes where id = v_lease.lane_id;
  if v_provider is not null then
    perform report_provider(v_provider, p_signal, v_tenant_id);
  elsif jsonb_typeof(p_signal -> 'retry_after_seconds') = 'number' then
    v_delay := greatest(0, least(86400, (p_signal ->> 'retry_after_seconds')::double precision));
  end if;
  perform 1 from reschedule_tasks(v_lease.worker_id, array[p_task_id], array[v_lease.lease], v_delay, 'the provider asked to wait');
end
$$;
comment on function penstock.report_limited(bigint, text, bigint, jsonb) is
  'A provider refused an attempt''s call (see report_provider for the signal): its lane closes for all workers, and the task goes back to the queue without costing an attempt.';

create or replace function penstock._prune_providers(p_limit integer)
returns void language sql set search_path = penstock, pg_temp as $$
  -- What somebody has in hand is left for the next time.
  delete from spent where ctid = any (array(
    select ctid from spent where _slot_ends(width, slot) + 30 < extract(epoch from _now()) limit p_limit for update skip locked));
  delete from calls where ctid = any (array(
    select ctid from calls where expires_at < _now() - interval '1 hour' limit p_limit for update skip locked))
$$;
comment on function penstock._prune_providers(integer) is 'Forgets what no window holds any more, at most so many rows of each sort.';
