-- Entitlements: what the plan of a tenant allows. Amounts come from _limits (quotas.sql), features from the
-- plan. Both use the effective plan of _plan: a plan that has ended counts as plan_after from that second on.
-- A tenant without a plan has no features: gates reject it.

create or replace function penstock._plan(p_tenant penstock.tenants, p_at timestamptz)
returns text language sql immutable set search_path = penstock, pg_temp as $$
  select case when p_tenant.plan_until <= p_at then p_tenant.plan_after else p_tenant.plan end
$$;
comment on function penstock._plan(penstock.tenants, timestamptz) is
  'The effective plan of a tenant at a time. Every rule that depends on the plan uses this function.';

create or replace function penstock.resolve_entitlements(p_tenant_id uuid default null)
returns jsonb language plpgsql stable security definer set search_path = penstock, pg_temp as $$
declare
  v_now timestamptz := _now();
  v_tenant tenants := _entitled_tenant(p_tenant_id);
  v_plan text := _plan(v_tenant, v_now);
begin
  if v_plan is null and v_tenant.is_personal and _setting('default_plan') <> '"unlimited"' then
    -- Every user gets the default plan, so a user without one is a fault and not a customer without limits.
    perform _refuse(409, 'no_plan', 'the tenant has no plan', '{}', 'Put it on a plan: set_tenant_plan.');
  end if;
  return jsonb_build_object('tenant_id', v_tenant.id, 'tier', v_plan, 'plan', v_tenant.plan,
    'since', v_tenant.plan_since, 'until', v_tenant.plan_until,
    'limits', (
      select coalesce(jsonb_object_agg(m.name, l.amount), '{}') from meters m
      left join _limits(v_tenant.id, v_now) as l on l.meter = m.name),
    'used', (
      select coalesce(jsonb_object_agg(a.meter, a.used), '{}') from accounts a
      where a.tenant_id = v_tenant.id and a.job_id is null and a.period = (_period(a.meter, v_now)).starts),
    'capabilities', (
      select coalesce(jsonb_object_agg(g.feature, _has_feature(v_plan, g.feature)), '{}')
      from (select distinct x.feature from gates x where x.feature is not null) as g));
end
$$;
comment on function penstock.resolve_entitlements(uuid) is
  'What a tenant may do: {tenant_id, tier, plan, since, until, limits, used, capabilities}. tier is the plan '
  'that applies now. limits has every meter; null: not limited. capabilities has the feature of every gate. '
  'Users see their own tenants, the service sees all.';

create or replace function penstock._has_feature(p_plan text, p_feature text)
returns boolean language sql stable set search_path = penstock, pg_temp as $$
  select exists (select from plans where name = p_plan and p_feature = any (features))
$$;
comment on function penstock._has_feature(text, text) is
  'Whether a plan has a feature. No plan has none.';

create or replace function penstock._entitled_tenant(p_tenant_id uuid)
returns penstock.tenants language plpgsql stable set search_path = penstock, pg_temp as $$
declare
  -- Not in the query: its planner would call _own_tenant, which raises an error where a caller has none.
  v_tenant_id uuid := coalesce(p_tenant_id, _own_tenant());
  v_tenant tenants;
begin
  select * into v_tenant from tenants where id = v_tenant_id;
  if not found or not (_is_service() or v_tenant.id in (select my_tenants())) then
    -- The same error for another user's tenant and for one that does not exist.
    perform _refuse(403, 'forbidden', 'you do not have permission to do this in this tenant');
  end if;
  return v_tenant;
end
$$;
comment on function penstock._entitled_tenant(uuid) is
  'The tenant whose entitlements are asked for: the named one if the caller may read it, else the caller''s '
  'own.';

create or replace function penstock.set_gate(p_name text, p_values jsonb default '{}')
returns void language plpgsql security definer set search_path = penstock, pg_temp as $$
declare
  v_gate gates;
begin
  perform _check_fields(p_values, array['feature', 'meter', 'mode', 'kinds', 'comment'], 'gate');
  select * into v_gate from gates where name = p_name for update;
  v_gate.name := p_name;
  v_gate := jsonb_populate_record(v_gate, p_values);
  insert into gates as g (name, feature, meter, mode, kinds, comment)
  values (p_name, v_gate.feature, v_gate.meter, coalesce(v_gate.mode, 'observe'),
    coalesce(v_gate.kinds, '{}'), coalesce(v_gate.comment, ''))
  on conflict (name) do update set feature = excluded.feature, meter = excluded.meter, mode = excluded.mode,
    kinds = excluded.kinds, comment = excluded.comment;
  perform _audit(null, 'gate.changed', null, 'gate:' || p_name, p_values);
  perform _retry_gated(null);
exception when integrity_constraint_violation or data_exception then
  perform _refuse(422, 'invalid_gate',
    'a gate needs a name, either a feature or a meter, and the mode observe or enforce; only a gate of a '
    'feature has kinds: ' || left(sqlerrm, 200));
end
$$;
comment on function penstock.set_gate(text, jsonb) is
  'Creates or changes a gate: feature or meter, mode (observe, enforce), kinds of tasks that need the '
  'feature, comment.';

create or replace function penstock.remove_gate(p_name text)
returns void language plpgsql security definer set search_path = penstock, pg_temp as $$
begin
  delete from gates where name = p_name;
  if not found then
    perform _refuse(404, 'unknown_gate', format('unknown gate %L', left(p_name, 100)));
  end if;
  perform _audit(null, 'gate.removed', null, 'gate:' || p_name);
  perform _retry_gated(null);
end
$$;
comment on function penstock.remove_gate(text) is 'Removes a gate. Tasks that it held back are queued.';

create or replace function penstock.check_gate(
  p_gate text, p_tenant_id uuid default null, p_amount numeric default 1)
returns jsonb language plpgsql stable security definer set search_path = penstock, pg_temp as $$
begin
  return _judge_gate(p_gate, _entitled_tenant(p_tenant_id), p_amount);
end
$$;
comment on function penstock.check_gate(text, uuid, numeric) is
  'Whether a tenant passes a gate, for p_amount more of its meter: {gate, allowed, mode, would_have_blocked, '
  'plan, feature, meter, limit, used}. Reserves and records nothing: a call that acts on it uses '
  'require_gate.';

create or replace function penstock._judge_gate(
  p_gate text, p_tenant penstock.tenants, p_amount numeric)
returns jsonb language plpgsql stable set search_path = penstock, pg_temp as $$
declare
  v_now timestamptz := _now();
  v_plan text := _plan(p_tenant, v_now);
  v_gate gates;
  v_limit numeric;
  v_used numeric;
  v_is_missing boolean;
begin
  select * into v_gate from gates where name = p_gate;
  if not found then
    -- An undefined gate must not look like an open one.
    perform _refuse(404, 'unknown_gate', format('unknown gate %L', left(p_gate, 100)));
  end if;
  if p_amount is null or p_amount = 'NaN' or p_amount not between 0 and 1e15 then
    perform _refuse(422, 'invalid_amount', format('p_amount must be between 0 and 10^15 (got %s)',
      coalesce(p_amount::text, 'null')), '{"field": "p_amount"}');
  end if;
  if v_gate.meter is not null then
    select l.amount into v_limit from _limits(p_tenant.id, v_now) as l where l.meter = v_gate.meter;
    select coalesce(sum(a.used + a.held), 0) into v_used from accounts a where a.tenant_id = p_tenant.id
      and a.job_id is null and a.meter = v_gate.meter
      and a.period = (_period(v_gate.meter, v_now)).starts;
    v_is_missing := v_plan is null or coalesce(v_used + p_amount > v_limit, false);
  else
    v_is_missing := not _has_feature(v_plan, v_gate.feature);
  end if;
  return jsonb_build_object('gate', v_gate.name, 'allowed', v_gate.mode = 'observe' or not v_is_missing,
    'mode', v_gate.mode, 'would_have_blocked', v_is_missing, 'plan', v_plan, 'feature', v_gate.feature,
    'meter', v_gate.meter, 'limit', v_limit, 'used', v_used);
end
$$;
comment on function penstock._judge_gate(text, penstock.tenants, numeric) is
  'Whether a tenant passes a gate: see check_gate.';

create or replace function penstock._refuse_gate(p_verdict jsonb)
returns void language plpgsql stable set search_path = penstock, pg_temp as $$
declare
  v_fields jsonb := jsonb_strip_nulls(p_verdict - array['allowed', 'mode', 'would_have_blocked']);
begin
  if p_verdict ->> 'plan' is null then
    perform _refuse(409, 'no_plan', 'the tenant has no plan', v_fields, 'Put it on a plan: set_tenant_plan.');
  end if;
  perform _refuse(402, 'upgrade_required', case when p_verdict ->> 'meter' is not null
    then format('plan %s allows %s %s (used: %s)', p_verdict ->> 'plan', p_verdict ->> 'limit',
      p_verdict ->> 'meter', p_verdict ->> 'used')
    else format('plan %s does not include %s', p_verdict ->> 'plan', p_verdict ->> 'feature') end,
    v_fields, 'Upgrade the plan.');
end
$$;
comment on function penstock._refuse_gate(jsonb) is
  'Raises the error for a gate that a tenant does not pass: 402 upgrade_required, or 409 no_plan.';

create or replace function penstock.require_gate(
  p_gate text, p_tenant_id uuid, p_amount numeric default 1, p_key text default null)
returns jsonb language plpgsql security definer set search_path = penstock, pg_temp as $$
-- Lock order: see claim.sql.
declare
  v_tenant tenants := _entitled_tenant(p_tenant_id);
  v_meter text := (select g.meter from gates g where g.name = p_gate);
  v_hold_id uuid;
  v_verdict jsonb;
begin
  if v_meter is not null then
    begin
      -- Reserves first, which locks the account: parallel calls see what the ones before them reserved.
      v_hold_id := reserve_quota(v_tenant.id, jsonb_build_object(v_meter, p_amount), 'gate', p_key);
    exception when sqlstate 'PT429' then
      null;
    end;
  end if;
  v_verdict := _judge_gate(p_gate, v_tenant, case when v_hold_id is null then p_amount else 0 end);
  if not (v_verdict ->> 'allowed')::boolean then
    perform _refuse_gate(v_verdict);
  elsif (v_verdict ->> 'would_have_blocked')::boolean then
    insert into usage_events (at, tenant_id, action, units, details)
    values (_now(), v_tenant.id, 'gate', '{}', jsonb_build_object('would_have_blocked', p_gate));
  end if;
  return v_verdict || jsonb_build_object('hold_id', v_hold_id);
end
$$;
comment on function penstock.require_gate(text, uuid, numeric, text) is
  'Passes a gate or raises 402 upgrade_required (409 no_plan without a plan). A gate of a meter reserves '
  'p_amount: commit or release the hold_id of the result. In mode observe it always passes, and records what '
  'it would have blocked. The same p_key returns the same hold.';

-- Gates of kinds: checked when a job starts, and at the claim.

create or replace function penstock._needs_gate(p_gate penstock.gates, p_kind text)
returns boolean language sql immutable set search_path = penstock, pg_temp as $$
  select p_kind = any (p_gate.kinds) or split_part(p_kind, '.', 1) = any (p_gate.kinds)
$$;
comment on function penstock._needs_gate(penstock.gates, text) is
  'Whether tasks of a kind need a gate. A name without a dot stands for all kinds that begin with it.';

create or replace function penstock._require_kind_gates(p_job penstock.jobs, p_tasks jsonb)
returns void language plpgsql set search_path = penstock, pg_temp as $$
declare
  v_tenant tenants;
  v_gate text;
  v_verdict jsonb;
begin
  if not exists (select from gates where kinds <> '{}') then
    return;
  end if;
  select * into v_tenant from tenants where id = p_job.tenant_id;
  for v_gate in
    select g.name from gates g where g.kinds <> '{}' and exists (
      select from (select p_job.type as kind union select e ->> 'kind' from jsonb_array_elements(p_tasks) as e
        where jsonb_typeof(e) = 'object') as k
      where _needs_gate(g, k.kind))
    order by g.name
  loop
    v_verdict := _judge_gate(v_gate, v_tenant, 1);
    if not (v_verdict ->> 'allowed')::boolean then
      perform _refuse_gate(v_verdict);
    elsif (v_verdict ->> 'would_have_blocked')::boolean then
      insert into usage_events (at, tenant_id, action, job_id, units, details)
      values (_now(), v_tenant.id, 'gate', p_job.id, '{}', jsonb_build_object('would_have_blocked', v_gate));
    end if;
  end loop;
end
$$;
comment on function penstock._require_kind_gates(penstock.jobs, jsonb) is
  'Rejects new tasks whose kinds, or whose job type, need a feature that the plan of the tenant lacks.';

create or replace function penstock._park_gated(p_tids tid[], p_now timestamptz)
returns tid[] language plpgsql set search_path = penstock, pg_temp as $$
declare
  v_group record;
begin
  for v_group in
    select x.tenant_id, x.lane_id, min(x.gate) as gate from (
      select r.tenant_id, r.lane_id, g.name as gate, g.feature, t as tenant
      from ready r join lanes l on l.id = r.lane_id join gates g on _needs_gate(g, l.kind)
      join tenants t on t.id = r.tenant_id
      where r.ctid = any (p_tids) and g.mode = 'enforce' and g.kinds <> '{}'
      group by r.tenant_id, r.lane_id, g.name, g.feature, t) as x
    where not _has_feature(_plan(x.tenant, p_now), x.feature) group by x.tenant_id, x.lane_id
  loop
    -- More than were picked: the tenant's other tasks in this lane would stop the next claims.
    perform _park(array(
      select r.ctid from ready r where r.tenant_id = v_group.tenant_id and r.lane_id = v_group.lane_id
      order by r.ctid = any (p_tids) desc limit 1000 for update skip locked),
      'upgrade required: ' || v_group.gate, 'gate', 'infinity');
    perform pg_notify('penstock', 'ready:' || l.kind) from lanes l where l.id = v_group.lane_id;
  end loop;
  return array(select r.ctid from unnest(p_tids) with ordinality as t(tid, n)
    join ready r on r.ctid = t.tid order by t.n);
end
$$;
comment on function penstock._park_gated(tid[], timestamptz) is
  'Parks those of the picked tasks whose kind needs a feature that the plan of their tenant lacks, until the '
  'plan or the gate changes. Returns the others.';

create or replace function penstock._retry_gated(p_tenant_id uuid)
returns void language plpgsql set search_path = penstock, pg_temp as $$
begin
  -- Without waiting: a row that is locked now is being moved. Upkeep queues the rows, the claim decides.
  update parked set until = _now() where ctid = any (array(
    select ctid from parked where waits_for = 'gate' and tenant_id = coalesce(p_tenant_id, tenant_id)
    for no key update skip locked));
  if found then
    perform pg_notify('penstock', 'chores');
  end if;
end
$$;
comment on function penstock._retry_gated(uuid) is
  'Lets the claim look again at tasks that a gate holds back: those of a tenant, or all (null).';
