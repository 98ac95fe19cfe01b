-- Webhooks in: the inbox. A delivery takes the row of its event and keeps it locked until its transaction
-- ends: a second delivery of the same event waits, and then sees what became of the first. The handler runs
-- in the same transaction, in a savepoint: what it wrote and the mark in the inbox are one commit.

create or replace function penstock.take_webhook(
  p_source text, p_key text, p_type text, p_payload jsonb, out is_done boolean, out attempts integer)
language plpgsql security definer set search_path = penstock, pg_temp as $$
begin
  perform _check_clean(p_key || p_type, 'key and type', 'invalid_webhook');
  if coalesce(p_source, '') !~ '^[a-z][a-z0-9_-]{0,62}$' or coalesce(length(p_key), 0) not between 1 and 255
     or coalesce(length(p_type), 0) not between 1 and 200 then
    perform _refuse(422, 'invalid_webhook',
      'a webhook must have a source, a key of 1 to 255 and a type of 1 to 200 characters');
  end if;
  insert into webhooks as w (source, key, type, payload, received_at, last_received_at)
  values (p_source, p_key, p_type, coalesce(p_payload, '{}'), _now(), _now())
  on conflict (source, key) do update set deliveries = w.deliveries + 1, last_received_at = _now()
  returning w.processed_at is not null, w.attempts into is_done, attempts;
end
$$;
comment on function penstock.take_webhook(text, text, text, jsonb) is
  'Records a delivery and locks the row of its event. is_done: it was processed before.';

create or replace function penstock.end_webhook(
  p_source text, p_key text, p_outcome text, p_tenant_id uuid default null, p_error text default null)
returns void language plpgsql security definer set search_path = penstock, pg_temp as $$
declare
  c_pauses constant interval[] := array['1 minute', '10 minutes', '1 hour', '6 hours'];
  v_is_final boolean := p_outcome in ('applied', 'stale', 'ignored');
begin
  if p_outcome is null or p_outcome not in ('applied', 'stale', 'ignored', 'unmatched', 'failed') then
    perform _refuse(422, 'invalid_webhook',
      format('outcome must be applied, stale, ignored, unmatched or failed (got %s)',
        coalesce(quote_literal(left(p_outcome, 100)), 'null')), '{"field": "p_outcome"}');
  end if;
  update webhooks w set attempts = w.attempts + 1, outcome = p_outcome,
    tenant_id = coalesce(p_tenant_id, w.tenant_id), error = _error_text(p_error, 2000),
    processed_at = case when v_is_final then _now() end,
    -- A subscript beyond the last pause is null: from then on it is tried by hand only.
    next_try_at = case when not v_is_final then _now() + c_pauses[w.attempts + 1] end
  where w.source = p_source and w.key = p_key;
  if not found then
    perform _refuse(404, 'unknown_webhook', 'there is no such webhook');
  end if;
end
$$;
comment on function penstock.end_webhook(text, text, text, uuid, text) is
  'Notes what became of a webhook: applied, stale or ignored end it; unmatched and failed are tried again '
  'after 1 minute, 10 minutes, 1 hour and 6 hours.';

create or replace function penstock.next_webhook(p_sources text[], out source text, out key text,
  out type text, out payload jsonb)
language plpgsql security definer set search_path = penstock, pg_temp as $$
begin
  select w.source, w.key, w.type, w.payload into source, key, type, payload from webhooks w
  where w.processed_at is null and w.next_try_at <= _now() and w.source = any (p_sources)
    and (w.tenant_id is null or w.tenant_id <> all (_suspended_tenants()))
  order by w.next_try_at limit 1 for update skip locked;
end
$$;
comment on function penstock.next_webhook(text[]) is
  'Locks the next webhook of these sources that is to be tried again. All null: there is none.';

create or replace function penstock.replay_webhook(p_source text, p_key text)
returns void language plpgsql security definer set search_path = penstock, pg_temp as $$
begin
  update webhooks set processed_at = null, next_try_at = _now()
  where source = p_source and key = p_key and payload <> '{}';
  if not found then
    if exists (select from webhooks where source = p_source and key = p_key) then
      perform _refuse(409, 'payload_deleted', 'the payload of this webhook was deleted',
        '{}', 'The setting webhook_payload_days says how long payloads are kept.');
    end if;
    perform _refuse(404, 'unknown_webhook', 'there is no such webhook');
  end if;
  perform _audit(null, 'webhook.replayed', null, left('webhook:' || p_source || '/' || p_key, 300));
end
$$;
comment on function penstock.replay_webhook(text, text) is
  'Lets a webhook be processed again, also one that was applied: a server that has its handler does it '
  'within seconds.';

create or replace function penstock._empty_webhooks(p_limit integer)
returns void language sql set search_path = penstock, pg_temp as $$
  update webhooks set payload = '{}' where ctid = any (array(
    select w.ctid from webhooks w
    where w.received_at < _now() - make_interval(days => (_setting('webhook_payload_days'))::integer)
      and w.processed_at is not null and w.payload <> '{}'
    order by w.received_at limit p_limit for update skip locked))
$$;
comment on function penstock._empty_webhooks(integer) is
  'Deletes the payloads of old webhooks. The rows stay, so that a late delivery is still known.';
