-- Providers: the endpoints of the services that tasks call, and their limits. capacity.sql computes the free
-- capacity; signals.sql handles the responses of providers. Lock order: see claim.sql.

create or replace function penstock._endpoint(p_name text, p_tenant_id uuid)
returns penstock.endpoints language sql stable set search_path = penstock, pg_temp as $$
  select e from endpoints e where e.name = p_name and (e.tenant_id = p_tenant_id or e.tenant_id is null)
  order by e.tenant_id nulls last limit 1
$$;
comment on function penstock._endpoint(text, uuid) is
  'The endpoint of this name: the tenant''s own, or the one for all tenants.';

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
  perform _check_features(p_values -> 'features');
  if p_tenant_id is not null then
    perform _require_tenant(p_tenant_id);
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
  select * into v_new from endpoints where id = v_new.id;
  perform _add_provider_lanes(v_new);
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

create or replace function penstock._check_features(p_features jsonb)
returns void language plpgsql stable set search_path = penstock, pg_temp as $$
declare
  v_wrong text;
begin
  select f into v_wrong from jsonb_array_elements_text(
    case jsonb_typeof(p_features) when 'array' then p_features else '[]' end) as f
  where f ~ '[<>=]' and f !~ '^[a-z][a-z0-9_]*[<>]=[0-9]+([.][0-9]+)?$' limit 1;
  if found then
    perform _refuse(422, 'invalid_provider',
      format('a feature with a limit must be like seconds<=10 (got %L)', left(v_wrong, 100)),
      '{"field": "features"}');
  end if;
end
$$;
comment on function penstock._check_features(jsonb) is 'Rejects features with a malformed limit.';

create or replace function penstock._own_hosts(p_endpoint penstock.endpoints)
returns text[] language sql immutable set search_path = penstock, pg_temp as $$
  select coalesce(p_endpoint.hosts, case p_endpoint.provider
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
    else '{}' end)
$$;
comment on function penstock._own_hosts(penstock.endpoints) is
  'The hosts of a provider: those of the endpoint, or those known for the provider''s name.';

create or replace function penstock._is_own_host(p_endpoint penstock.endpoints, p_host text)
returns boolean language sql immutable set search_path = penstock, pg_temp as $$
  select exists (
    select from unnest(_own_hosts(p_endpoint)) as h
    where lower(p_host) = lower(h) or right(lower(p_host), length(h) + 1) = '.' || lower(h))
$$;
comment on function penstock._is_own_host(penstock.endpoints, text) is
  'Whether an answer of this host is an answer of the provider: the host, or a domain above it, is listed '
  'in the endpoint''s hosts, or known for the provider''s name.';

create or replace function penstock.providers_without_hosts()
returns setof text language sql stable security definer set search_path = penstock, pg_temp as $$
  select distinct e.name from endpoints e where cardinality(_own_hosts(e)) = 0 order by 1
$$;
comment on function penstock.providers_without_hosts() is
  'Endpoints of which no host is known: a 429 or 402 that a worker reads from an exception does not slow or '
  'close them. set_provider sets hosts.';

create or replace function penstock.open_provider(p_name text, p_tenant_id uuid default null)
returns void language plpgsql security definer set search_path = penstock, pg_temp as $$
-- Lock order: see claim.sql.
declare
  v_id integer;
begin
  perform _require_active(p_tenant_id);
  update endpoint_states s set open_at = 'epoch', closed_until = 'epoch', closed_reason = null,
    is_exhausted = false, pace = 1, requests_limit = null, tokens_limit = null
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
