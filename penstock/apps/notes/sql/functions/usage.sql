-- Managed calls: a hold before the call, and one line with tokens, prompt and cost after it.

create or replace function notes.begin_call(p_user_id uuid, p_action text, p_key text)
returns jsonb language plpgsql security definer set search_path = notes, pg_temp as $$
declare
  v_tenant_id uuid := notes._tenant_of(p_user_id);
begin
  if p_action not in ('transcribe', 'discover') or p_action is null then
    perform penstock.refuse(422, 'invalid_action',
      format('action must be transcribe or discover (got %L)', left(p_action, 100)), '{"field": "action"}');
  end if;
  return jsonb_build_object('tenant_id', v_tenant_id,
    'hold_id', penstock.reserve_quota(v_tenant_id, '{"managed_ai": 1}', p_action, p_key, 180),
    'model', penstock.get_setting('notes.model') #>> '{}');
end
$$;
comment on function notes.begin_call(uuid, text, text) is
  'Reserves one managed call of a user before the model is called. Over the limit it raises 429.';

create or replace function notes.end_call(
  p_tenant_id uuid, p_hold_id uuid, p_action text, p_provider text, p_tokens jsonb, p_details jsonb)
returns void language plpgsql security definer set search_path = notes, pg_temp as $$
declare
  v_input bigint := coalesce((p_tokens ->> 'input_tokens')::bigint, 0);
  v_output bigint := coalesce((p_tokens ->> 'output_tokens')::bigint, 0);
  v_price record;
begin
  perform penstock.commit_hold(p_hold_id, jsonb_build_object('managed_ai', 1, 'requests', 1,
    'input_tokens', v_input, 'output_tokens', v_output), p_tenant_id);
  perform notes.insert_ai_usage_event(p_tenant_id, p_action, p_provider, p_details);
  for v_price in
    select p.meter, p.amount, p.currency, p.cost_type, u.count from penstock.price_list p
    join (values ('input_tokens', v_input), ('output_tokens', v_output)) as u(meter, count)
      on u.meter = p.meter
    where p.provider = p_provider and p.is_current and p.tenant_id is null
      and p.variant = 'standard' and p.amount is not null and u.count > 0
  loop
    perform penstock.record_cost(v_price.cost_type, v_price.count * v_price.amount,
      v_price.currency, p_tenant_id => p_tenant_id, p_options => jsonb_build_object('provider', p_provider,
        'meter', v_price.meter, 'unit_count', v_price.count, 'key', p_hold_id || '/' || v_price.meter));
  end loop;
end
$$;
comment on function notes.end_call(uuid, uuid, text, text, jsonb, jsonb) is
  'Counts a managed call once, with its tokens, and records its cost and its prompt.';

create or replace function notes.insert_ai_usage_event(
  p_tenant_id uuid, p_action_type text, p_provider text, p_details jsonb)
returns void language plpgsql security definer set search_path = notes, pg_temp as $$
begin
  perform penstock.record_usage('{}', p_tenant_id => p_tenant_id, p_action => p_action_type,
    p_options => jsonb_build_object('provider', p_provider, 'details', p_details));
exception when others then
  -- The event is for analysis; the call was counted and must not fail.
  raise warning 'usage event was not recorded: %', sqlerrm;
end
$$;
comment on function notes.insert_ai_usage_event(uuid, text, text, jsonb) is
  'Records which prompt a call has used. A failure is only logged.';

create or replace function notes.upsert_ai_usage(
  p_user_id uuid, p_action_type text, p_window_day date, p_input_tokens bigint, p_output_tokens bigint)
returns void language plpgsql security definer set search_path = notes, pg_temp as $$
declare
  v_action text := case p_action_type when 'discover_batch' then 'discover' else p_action_type end;
begin
  if v_action not in ('transcribe', 'discover') or v_action is null
     or p_window_day is distinct from (penstock.clock() at time zone 'utc')::date then
    perform penstock.refuse(422, 'invalid_action',
      'action_type must be transcribe, discover or discover_batch, and window_day today (UTC)');
  end if;
  perform penstock.record_usage(jsonb_build_object('managed_ai', 1, 'requests', 1, 'input_tokens',
    coalesce(p_input_tokens, 0), 'output_tokens', coalesce(p_output_tokens, 0)),
    p_tenant_id => notes._tenant_of(p_user_id), p_action => v_action);
end
$$;
comment on function notes.upsert_ai_usage(uuid, text, date, bigint, bigint) is
  'Counts a managed call of today without a hold, for older callers.';

create or replace function notes.adjust_image_storage_bytes(p_user_id uuid, p_delta bigint)
returns bigint language plpgsql security definer set search_path = notes, pg_temp as $$
declare
  v_tenant_id uuid := notes._tenant_of(p_user_id);
begin
  if p_delta > 0 then
    perform penstock.record_usage(jsonb_build_object('image_bytes', p_delta), p_tenant_id => v_tenant_id,
      p_action => 'image');
  elsif p_delta < 0 then
    perform penstock.refund_usage(v_tenant_id, jsonb_build_object('image_bytes', -p_delta), 'image');
  end if;
  return coalesce((penstock.resolve_entitlements(v_tenant_id) #>> '{used,image_bytes}')::bigint, 0);
end
$$;
comment on function notes.adjust_image_storage_bytes(uuid, bigint) is
  'Adds or subtracts bytes of images, never below 0, and returns the sum.';
