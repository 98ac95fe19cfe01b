-- The quota of thumbnails: the meter "thumbnails", which never resets. A tenant has the free ones, and packs
-- that it bought, as allowances.

create or replace function slides._ensure_quota(p_tenant_id uuid)
returns void language plpgsql security definer set search_path = slides, pg_temp as $$
begin
  -- Without a limit a tenant could convert without end.
  if not exists (select from penstock.tenant_limits t
       where t.tenant_id = p_tenant_id and t.meter = 'thumbnails')
     and not exists (select from penstock.tenants t join penstock.plans p on p.name = t.plan
       where t.id = p_tenant_id and p.limits ? 'thumbnails') then
    perform penstock.set_limit(p_tenant_id, 'thumbnails',
      (penstock.get_setting('slides.free_thumbnails'))::numeric);
  end if;
end
$$;
comment on function slides._ensure_quota(uuid) is
  'Gives a tenant the free thumbnails, unless its plan or an operator gave it a limit.';

create or replace function slides._limit_new_event()
returns trigger language plpgsql security definer set search_path = slides, pg_temp as $$
begin
  perform slides._ensure_quota(new.tenant_id);
  return null;
end
$$;
comment on function slides._limit_new_event() is 'Gives the tenant of a new event its quota.';

create or replace trigger events_quota after insert on slides.events
  for each row execute function slides._limit_new_event();

create or replace function slides._quota(p_tenant_id uuid)
returns table (total numeric, used numeric, held numeric)
language sql stable security definer set search_path = slides, pg_temp as $$
  -- resolve_limits rejects users who are not members of the tenant.
  select case when l.meter is not null then l.amount
      when not exists (select from penstock.tenant_limits t where t.tenant_id = p_tenant_id
        and t.meter = 'thumbnails') then (penstock.get_setting('slides.free_thumbnails'))::numeric end,
    coalesce(a.used, 0), coalesce(a.held, 0)
  from (select (array_agg(r.meter))[1] as meter, (array_agg(r.amount))[1] as amount
    from penstock.resolve_limits(p_tenant_id) as r where r.meter = 'thumbnails') as l
  left join penstock.accounts a on a.tenant_id = p_tenant_id and a.job_id is null and a.meter = 'thumbnails'
$$;
comment on function slides._quota(uuid) is 
  'The thumbnails of a tenant: in all (null: unlimited), used, and reserved by conversions.';

create or replace function slides.check_and_increment_thumbnail_quota(
  p_tenant_id uuid, p_key text default null)
returns table (quota_available boolean, quota_used integer, quota_total integer, quota_remaining integer)
language plpgsql security definer set search_path = slides, pg_temp as $$
declare
  v_is_available boolean := true;
  v_is_new boolean := true;
begin
  if not exists (select from penstock.tenants t where t.id = p_tenant_id) then
    perform penstock.refuse(404, 'unknown_tenant', 'there is no such tenant');
  end if;
  perform slides._ensure_quota(p_tenant_id);
  begin
    insert into slides.reservations (tenant_id, key, created_at) values (p_tenant_id, p_key, penstock.clock())
    on conflict (tenant_id, key) where key is not null do nothing;
    v_is_new := found;
    if v_is_new then
      perform penstock.commit_hold(penstock.reserve_quota(p_tenant_id, '{"thumbnails": 1}', 'thumbnail'));
    end if;
  exception when sqlstate 'PT429' then
    v_is_available := false;
  end;
  return query select v_is_available, q.used::integer, q.total::integer,
    case when q.total is not null then greatest(0, q.total - q.used - q.held)::integer end
  from slides._quota(p_tenant_id) as q;
end
$$;
comment on function slides.check_and_increment_thumbnail_quota(uuid, text) is
  'Counts one thumbnail if the quota has room. The same key counts once. quota_available is '
  'false if it has none.';

create or replace function slides.rollback_thumbnail_quota(p_tenant_id uuid, p_key text default null)
returns void language plpgsql security definer set search_path = slides, pg_temp as $$
begin
  update slides.reservations r set returned_at = penstock.clock()
  where r.tenant_id = p_tenant_id and r.id = (
    select x.id from slides.reservations x where x.tenant_id = p_tenant_id and x.returned_at is null
      and x.key is not distinct from p_key order by x.id desc limit 1 for update);
  if found then
    perform penstock.refund_usage(p_tenant_id, '{"thumbnails": 1}', 'thumbnail.returned');
  end if;
end
$$;
comment on function slides.rollback_thumbnail_quota(uuid, text) is
  'Gives one counted thumbnail back: that of the key, or the newest without a key. A second call for the '
  'same reservation changes nothing.';

create or replace function slides.purchase_thumbnail_quota(p_tenant_id uuid, p_count integer, p_key text)
returns integer language plpgsql security definer set search_path = slides, pg_temp as $$
begin
  if p_count is null or p_count not between 1 and 1000000 then
    perform penstock.refuse(422, 'invalid_count', format('p_count must be between 1 and 1000000 (got %s)',
      coalesce(p_count::text, 'null')), '{"field": "p_count"}');
  end if;
  if p_key is null then
    perform penstock.refuse(422, 'invalid_key', 'p_key is missing: it keeps a payment from counting twice',
      '{"field": "p_key"}');
  end if;
  perform penstock.add_allowance(p_tenant_id, 'thumbnails', p_count, 'purchase', null, 'thumbnail pack',
    'slides:' || p_key);
  perform slides._ensure_quota(p_tenant_id);
  return (select q.total::integer from slides._quota(p_tenant_id) as q);
end
$$;
comment on function slides.purchase_thumbnail_quota(uuid, integer, text) is
  'Adds a pack of thumbnails that was paid for, once per key, and returns the new total.';

create or replace function slides.reset_thumbnail_quota(p_tenant_id uuid, p_reason text default null)
returns integer language plpgsql security definer set search_path = slides, pg_temp as $$
begin
  return penstock.reset_quota(p_tenant_id, 'thumbnails', p_reason)::integer;
end
$$;
comment on function slides.reset_thumbnail_quota(uuid, text) is
  'Sets the used thumbnails to 0 and returns how many were used.';
