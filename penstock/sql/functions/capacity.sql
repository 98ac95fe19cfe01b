-- Capacity: what is left of an endpoint's limits. The windows slide. Calls admitted in a slot of 250 ms count
-- until 60.75 s after the slot begins, those of a slot of one minute until 3,661 s after it begins. So no
-- window of 60 or 3,600 seconds holds more than the limit, also when the calls reach the provider a moment
-- later. A claim counts calls only while it has locked the endpoint's state. Lock order: see claim.sql.

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
  'The end of the time in which the calls of a slot count, in seconds since 1970.';

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
  -- Counts the existing leases and calls, because a separate counter could drift.
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
    -- At the endpoint that admitted them, even if the tenant has its own endpoint by now.
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
  'Removes calls that were never made from the windows of their endpoints.';

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
  perform _check_clean(p_key, 'p_key', 'invalid_key');
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
  -- Without a key, ends the oldest call of the same size: such calls are interchangeable.
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
