-- Alerts to the operator. What happens in a transaction adds its alert there. What a transaction refuses
-- rolls back, so the API counts refusals and failed logins and reports storms with raise_alert. The row of
-- an alert is locked last, after all other rows.

create or replace function penstock._alert(
  p_kind text, p_subject text, p_tenant_id uuid, p_details jsonb default '{}', p_count bigint default 1)
returns void language plpgsql set search_path = penstock, pg_temp as $$
declare
  v_now timestamptz := _now();
  v_today date := (_now() at time zone 'utc')::date;
begin
  -- Each call removes more old rows than it adds, so the table stays small.
  delete from operator_alerts where ctid = any (array(
    select a.ctid from operator_alerts a where a.day < v_today - 30 order by a.day limit 5
    for update skip locked));
  insert into operator_alerts as a (kind, subject, day, tenant_id, count, first_at, last_at, details)
  values (p_kind, left(p_subject, 400), v_today, p_tenant_id, p_count, v_now, v_now, p_details)
  on conflict (kind, subject, day) do update
  set count = a.count + excluded.count, last_at = excluded.last_at, details = excluded.details;
end
$$;
comment on function penstock._alert(text, text, uuid, jsonb, bigint) is
  'Adds an alert to the operator, or counts it on the same one of today.';

create or replace function penstock.raise_alert(
  p_kind text, p_subject text, p_count bigint, p_tenant_id uuid default null, p_details jsonb default '{}')
returns void language plpgsql security definer set search_path = penstock, pg_temp as $$
begin
  if p_kind is null or p_kind not in ('quota_refusals', 'failed_logins') then
    perform _refuse(422, 'invalid', format('p_kind must be quota_refusals or failed_logins (got %L)',
      left(p_kind, 100)), '{"field": "p_kind"}');
  end if;
  if coalesce(length(p_subject), 0) not between 1 and 400 or not _is_clean(p_subject) then
    perform _refuse(422, 'invalid_subject',
      'p_subject must have 1 to 400 characters and no control characters', '{"field": "p_subject"}');
  end if;
  if p_count is null or p_count not between 1 and 1000000000 then
    perform _refuse(422, 'invalid', format('p_count must be between 1 and 1000000000 (got %s)',
      coalesce(p_count::text, 'null')), '{"field": "p_count"}');
  end if;
  perform _check_document(p_details, 'p_details', 10000);
  perform _alert(p_kind, p_subject, p_tenant_id, coalesce(p_details, '{}'), p_count);
end
$$;
comment on function penstock.raise_alert(text, text, bigint, uuid, jsonb) is
  'Reports a storm of refusals or failed logins that a server has counted.';

create or replace function penstock.take_alerts()
returns table (kind text, subject text, tenant_id uuid, count bigint, details jsonb)
language plpgsql security definer set search_path = penstock, pg_temp as $$
#variable_conflict use_column
begin
  return query
  update operator_alerts a set logged = a.count from (
    select x.kind, x.subject, x.day, x.count - x.logged as new from operator_alerts x
    where x.day >= (_now() at time zone 'utc')::date - 1 and x.count > x.logged
    order by x.kind, x.subject, x.day limit 100 for update skip locked) as n
  where a.kind = n.kind and a.subject = n.subject and a.day = n.day
  returning a.kind, a.subject, a.tenant_id, n.new, a.details;
end
$$;
comment on function penstock.take_alerts() is
  'Alerts that no process has logged yet, with their number since the last call. Each is returned once.';

create or replace function penstock.list_alerts(p_days integer default 7, p_limit integer default 50)
returns table (kind text, subject text, tenant_id uuid, count bigint, first_at timestamptz,
  last_at timestamptz, details jsonb)
language sql stable security definer set search_path = penstock, pg_temp as $$
  select a.kind, a.subject, a.tenant_id, a.count, a.first_at, a.last_at, a.details from operator_alerts a
  where a.day > (_now() at time zone 'utc')::date - p_days
  order by a.last_at desc, a.kind, a.subject limit least(p_limit, 1000)
$$;
comment on function penstock.list_alerts(integer, integer) is
  'The alerts of the last days, newest first: one line per kind, subject and day.';
