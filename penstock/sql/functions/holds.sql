-- Holds: amounts of quotas that callers reserve, then commit or release. reservations.sql has those of
-- claimed tasks. Lock order: see claim.sql.

create or replace function penstock._check_reservation(
  p_amounts jsonb, p_action text, p_key text, p_ttl_seconds double precision)
returns void language plpgsql stable set search_path = penstock, pg_temp as $$
begin
  perform _check_units(p_amounts, 'p_amounts');
  perform _check_name(p_action, 'p_action', 'invalid_action');
  perform _check_clean(p_key, 'p_key', 'invalid_key');
  if length(p_key) not between 1 and 255 then
    perform _refuse(422, 'invalid_key', format('p_key must have 1 to 255 characters (got %s)', length(p_key)),
      '{"field": "p_key"}');
  end if;
  if p_ttl_seconds is null or not p_ttl_seconds between 1 and 86400 then
    perform _refuse(422, 'invalid_ttl',
      format('p_ttl_seconds must be between 1 and 86400 (got %s)', coalesce(p_ttl_seconds::text, 'null')),
      '{"field": "p_ttl_seconds"}');
  end if;
end
$$;
comment on function penstock._check_reservation(jsonb, text, text, double precision) is
  'Rejects a reservation with invalid arguments.';

create or replace function penstock.reserve_quota(
  p_tenant_id uuid, p_amounts jsonb, p_action text default 'reserve', p_key text default null,
  p_ttl_seconds double precision default 300)
returns uuid language plpgsql security definer set search_path = penstock, pg_temp as $$
-- Lock order: see claim.sql.
declare
  v_now timestamptz := _now();
  v_units jsonb;
  v_hold holds;
  v_limit record;
  v_account accounts;
  v_need numeric;
begin
  perform _check_reservation(p_amounts, p_action, p_key, p_ttl_seconds);
  v_units := _whole_units(p_amounts, false);
  insert into holds (tenant_id, key, action, amounts, at, expires_at)
  values (p_tenant_id, p_key, p_action, v_units, v_now, v_now + make_interval(secs => p_ttl_seconds))
  on conflict (tenant_id, key) where key is not null do nothing returning * into v_hold;
  if v_hold.id is null then
    select * into v_hold from holds where tenant_id = p_tenant_id and key = p_key;
    if v_hold.amounts <> v_units then
      perform _refuse(409, 'idempotency_key_reused', 'this key was used with other amounts',
        jsonb_build_object('hold_id', v_hold.id));
    end if;
    return v_hold.id;
  end if;
  perform _require_tenant(p_tenant_id);
  -- Also meters without a limit, so that all accounts are locked in order.
  for v_limit in
    select k as meter, l.amount, l.mode, (_period(k, v_now)).starts as period, l.resets_at
    from jsonb_object_keys(v_units) as k left join _limits(p_tenant_id, v_now) as l on l.meter = k order by k
  loop
    v_account := _lock_account(p_tenant_id, null, v_limit.meter, v_limit.period, true);
    v_need := (v_units ->> v_limit.meter)::numeric;
    if v_account.used + v_account.held + v_need > v_limit.amount and v_need > 0 then
      if v_limit.mode = 'enforce' then
        perform _refuse(429, 'quota_exceeded',
          format('%s of %s %s are used or reserved: %s more would exceed the quota',
            v_account.used + v_account.held, v_limit.amount, v_limit.meter, v_need),
          jsonb_build_object('meter', v_limit.meter, 'used', v_account.used, 'held', v_account.held,
            'limit', v_limit.amount,
            'resets_at', case when isfinite(v_limit.resets_at) then v_limit.resets_at end,
            'retry_after_seconds', case when isfinite(v_limit.resets_at)
              then ceil(extract(epoch from v_limit.resets_at - v_now)) end));
      end if;
      insert into usage_events (at, tenant_id, action, hold_id, units, details)
      values (v_now, p_tenant_id, p_action, v_hold.id, '{}',
        jsonb_build_object('would_have_blocked', v_limit.meter));
    end if;
  end loop;
  perform _book(array(
    select row(p_tenant_id, null, u.key, (_period(u.key, v_now)).starts, 0, u.value::numeric)::booking
    from jsonb_each_text(v_units) as u));
  return v_hold.id;
end
$$;
comment on function penstock.reserve_quota(uuid, jsonb, text, text, double precision) is
  'Reserves amounts of meters, all or none, and returns the id of the hold; fails with 429 quota_exceeded. '
  'A hold that is neither committed nor released expires. The same p_key returns the same hold.';

create or replace function penstock._count_start(
  p_job penstock.jobs, p_jobs integer, p_rows jsonb, p_params jsonb)
returns void language plpgsql set search_path = penstock, pg_temp as $$
-- Lock order: see claim.sql. Called last, and once: two starts that each counted twice would deadlock.
declare
  v_limit record;
  v_account accounts;
  v_units jsonb;
  v_counted jsonb := '{}';
  v_more numeric;
begin
  perform _require_kind_gates(p_job, p_rows);
  -- Only where something is limited: without a limit, starting a job locks no account.
  if not exists (select from tenants t where t.id = p_job.tenant_id
      and (t.plan <> 'unlimited' or t.plan_until is not null
        or exists (select from tenant_limits x where x.tenant_id = t.id))) then
    return;
  end if;
  -- All limited ones, also those that do not change now: a transaction that calls this twice locks no account
  -- the second time, so the order holds.
  for v_limit in
    select l.* from _limits(p_job.tenant_id, _now()) as l
    where l.meter in ('input_bytes', 'jobs', 'rows') order by l.meter
  loop
    v_units := coalesce(v_units, jsonb_build_object('jobs', p_jobs, 'rows', jsonb_array_length(p_rows),
      'input_bytes', octet_length(p_rows::text) + coalesce(octet_length(p_params::text), 0)));
    v_more := (v_units ->> v_limit.meter)::numeric;
    v_account := _lock_account(p_job.tenant_id, null, v_limit.meter, v_limit.period, true);
    continue when v_more = 0;
    if v_account.used + v_account.held + v_more > v_limit.amount and v_limit.mode = 'enforce' then
      perform _refuse(429, 'quota_exceeded', format('%s of %s %s are used: %s more would exceed the quota',
          v_account.used + v_account.held, v_limit.amount, v_limit.meter, v_more),
        jsonb_build_object('meter', v_limit.meter, 'used', v_account.used, 'held', v_account.held,
          'limit', v_limit.amount,
          'resets_at', case when isfinite(v_limit.resets_at) then v_limit.resets_at end));
    end if;
    v_counted := v_counted || jsonb_build_object(v_limit.meter, v_more);
  end loop;
  if v_counted <> '{}' then
    perform _book(_note_usage(p_job.tenant_id, p_job.type, v_counted, null, null,
      jsonb_build_object('job_id', p_job.id)));
  end if;
end
$$;
comment on function penstock._count_start(penstock.jobs, integer, jsonb, jsonb) is
  'Counts new jobs, their rows (tasks, or rows of a bulk job) and the bytes of their input where these are '
  'limited, and rejects them over the limit.';

create or replace function penstock._locked_hold(p_hold_id uuid, p_tenant_id uuid)
returns penstock.holds language plpgsql set search_path = penstock, pg_temp as $$
declare
  v_hold holds;
begin
  select * into v_hold from holds
  where id = p_hold_id and tenant_id = coalesce(p_tenant_id, tenant_id) for update;
  if not found then
    perform _refuse(404, 'unknown_hold', 'there is no such hold');
  end if;
  if v_hold.lease is not null then
    perform _refuse(409, 'hold_of_lease', 'this hold belongs to a lease and ends with it',
      jsonb_build_object('task_id', v_hold.task_id));
  end if;
  perform _require_active(v_hold.tenant_id);
  return v_hold;
end
$$;
comment on function penstock._locked_hold(uuid, uuid) is
  'Locks a hold that a caller reserved, and returns it.';

create or replace function penstock._release_bookings(p_hold penstock.holds)
returns penstock.booking[] language sql stable set search_path = penstock, pg_temp as $$
  select array_agg(row(p_hold.tenant_id, s.job_id, u.key,
    case when s.job_id is null then (_period(u.key, p_hold.at)).starts else 'epoch' end,
    0, -greatest(0, u.value::numeric - coalesce((p_hold.spent ->> u.key)::numeric, 0)))::booking)
  from jsonb_each_text(p_hold.amounts) as u
  cross join lateral (
    select null::uuid as job_id
    union all select p_hold.job_id where p_hold.has_budget and u.key = 'cost') as s
$$;
comment on function penstock._release_bookings(penstock.holds) is
  'What to book when a hold ends: the part that was not spent is free again.';

create or replace function penstock.commit_hold(
  p_hold_id uuid, p_actual jsonb default null, p_tenant_id uuid default null)
returns void language plpgsql security definer set search_path = penstock, pg_temp as $$
-- Lock order: see claim.sql.
declare
  v_hold holds := _locked_hold(p_hold_id, p_tenant_id);
  v_units jsonb;
begin
  if p_actual is not null then
    perform _check_units(p_actual, 'p_actual');
  end if;
  v_units := _whole_units(coalesce(p_actual, v_hold.amounts), false);
  if v_hold.status = 'committed' and v_hold.spent = v_units then
    return;
  elsif v_hold.status in ('committed', 'released') then
    perform _refuse(409, 'hold_settled', format('the hold was %s before', v_hold.status),
      jsonb_build_object('status', v_hold.status));
  end if;
  -- Also after it expired: usage is always billed.
  update holds set status = 'committed', spent = v_units, settled_at = _now() where id = v_hold.id;
  perform _book(_note_usage(v_hold.tenant_id, v_hold.action, v_units, v_hold.id, null, null)
    || case when v_hold.status = 'held' then _release_bookings(v_hold) else '{}' end);
  perform _wake_waiting(array[v_hold.tenant_id]);
end
$$;
comment on function penstock.commit_hold(uuid, jsonb, uuid) is
  'Books the actual amounts (default: those reserved) and ends the hold. Repeating it changes nothing; an '
  'expired hold can still be committed.';

create or replace function penstock.release_hold(p_hold_id uuid, p_tenant_id uuid default null)
returns boolean language plpgsql security definer set search_path = penstock, pg_temp as $$
-- Lock order: see claim.sql.
declare
  v_hold holds := _locked_hold(p_hold_id, p_tenant_id);
begin
  if v_hold.status = 'committed' then
    perform _refuse(409, 'hold_settled', 'the hold was committed before',
      jsonb_build_object('status', v_hold.status));
  elsif v_hold.status <> 'held' then
    return false;
  end if;
  update holds set status = 'released', settled_at = _now() where id = v_hold.id;
  perform _book(_release_bookings(v_hold));
  perform _wake_waiting(array[v_hold.tenant_id]);
  return true;
end
$$;
comment on function penstock.release_hold(uuid, uuid) is
  'Frees what a hold reserved. A second release changes nothing and returns false.';

create or replace function penstock._expire_holds()
returns integer language plpgsql set search_path = penstock, pg_temp as $$
-- Lock order: see claim.sql.
declare
  v_holds holds[];
begin
  with due as (
    select id from holds where status = 'held' and expires_at < _now() order by expires_at
    limit 1000 for update skip locked
  ), gone as (
    update holds h set status = 'expired', settled_at = _now() from due where h.id = due.id
    returning h as hold
  )
  select array_agg(g.hold) into v_holds from gone g;
  if v_holds is null then
    return 0;
  end if;
  perform _book(array(
    select b from unnest(v_holds) as h cross join lateral unnest(_release_bookings(h)) as b));
  perform _wake_waiting(array(select distinct h.tenant_id from unnest(v_holds) as h));
  return cardinality(v_holds);
end
$$;
comment on function penstock._expire_holds() is
  'Frees what callers reserved and never committed or released.';
