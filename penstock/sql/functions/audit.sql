-- The hash chain over the audit log. Lines are written in hot paths by many concurrent transactions, so they
-- carry no hash. Upkeep seals them in batches, once no open transaction can add a line among them.
--
-- What it proves: a line that is changed, deleted, inserted or moved after it was sealed is found. What it
-- does not prove: the owner of the database can write a new chain. So each head (number:hash) is logged
-- when it is made, and check_audit_log compares the chain with a head kept elsewhere.

insert into penstock.settings (name, value, comment) values
  ('audit_retention_days', '0', 'How long lines of the audit log are kept, in days; 0: forever.')
on conflict (name) do nothing;

create or replace function penstock._audit_digest(p_after bigint, p_last bigint, out lines bigint,
  out digest bytea)
language sql stable set search_path = penstock, pg_temp as $$
  -- Times as a number, because their text depends on the session's time zone.
  select count(*), sha256(coalesce(string_agg(sha256(convert_to(jsonb_build_array(l.id,
    (extract(epoch from l.at) * 1000000)::bigint, l.tenant_id, l.actor, l.action, l.job_id, l.subject,
    l.details)::text, 'utf8')), ''::bytea order by l.id), ''::bytea))
  from audit_log l where l.id > p_after and l.id <= p_last
$$;
comment on function penstock._audit_digest(bigint, bigint) is
  'The number and the digest of the lines of the audit log after one id, up to another.';

create or replace function penstock._audit_hash(p_before bytea, p_seal penstock.audit_seals)
returns bytea language sql immutable set search_path = penstock, pg_temp as $$
  select sha256(coalesce(p_before, ''::bytea) || convert_to(format('|%s|%s|%s|', p_seal.number,
    p_seal.last_id, p_seal.lines), 'utf8') || p_seal.digest)
$$;
comment on function penstock._audit_hash(bytea, penstock.audit_seals) is
  'The hash of a seal, which contains the hash of the seal before.';

create or replace function penstock._mark_audit_log(p_sealed bigint)
returns void language plpgsql set search_path = penstock, pg_temp as $$
declare
  v_last bigint;
begin
  -- In this order: each transaction that took an id up to v_last had its transaction id before (_audit sees
  -- to that), so its id is below the next one of the snapshot that the second statement takes.
  select case when is_called then last_value else 0 end into v_last from audit_log_id_seq;
  insert into audit_marks as m (last_id, next_xid)
  select v_last, pg_snapshot_xmax(pg_current_snapshot()) where v_last > p_sealed
  on conflict (id) do update set last_id = excluded.last_id, next_xid = excluded.next_xid;
end
$$;
comment on function penstock._mark_audit_log(bigint) is
  'Notes the newest line, and the transactions that have to end before it can be sealed.';

create or replace function penstock.seal_audit_log(p_limit integer default 10000)
returns table (number bigint, lines bigint, head text)
language plpgsql security definer set search_path = penstock, pg_temp as $$
#variable_conflict use_column
declare
  c_lines constant integer := 1000;
  v_mark audit_marks;
  v_before audit_seals;
  v_seal audit_seals;
  v_first timestamptz;
begin
  if current_setting('transaction_isolation') <> 'read committed' then
    perform _refuse(409, 'conflict', 'seal_audit_log needs a transaction that is read committed');
  end if;
  -- Every worker calls it about once a minute; one call at a time is enough.
  if not pg_try_advisory_xact_lock(hashtextextended('penstock.audit', 0)) then
    return;
  end if;
  perform _prune_audit_log();
  select * into v_mark from audit_marks;
  select * into v_before from audit_seals s order by s.number desc limit 1;
  v_before.last_id := coalesce(v_before.last_id, -9223372036854775808);
  -- A mark from another server, as after a restore, would never be reached.
  if v_mark.id is null or v_mark.last_id <= v_before.last_id
     or v_mark.next_xid > pg_snapshot_xmax(pg_current_snapshot()) then
    perform _mark_audit_log(v_before.last_id);
    return;
  end if;
  if v_mark.next_xid > pg_snapshot_xmin(pg_current_snapshot()) then
    return;
  end if;
  select max(x.id), count(*), min(x.at) into v_seal.last_id, v_seal.lines, v_first from (
    select l.id, l.at from audit_log l where l.id > v_before.last_id and l.id <= v_mark.last_id
    order by l.id limit greatest(p_limit, 1)) as x;
  if v_seal.lines = 0 or v_seal.lines < c_lines and v_first > _now() - interval '1 hour' then
    -- Few and recent lines wait for more: a seal an hour is enough for a quiet installation.
    perform _mark_audit_log(v_before.last_id);
    return;
  end if;
  v_seal.number := coalesce(v_before.number, 0) + 1;
  select d.lines, d.digest into v_seal.lines, v_seal.digest
  from _audit_digest(v_before.last_id, v_seal.last_id) as d;
  v_seal.hash := _audit_hash(v_before.hash, v_seal);
  insert into audit_seals (number, last_id, lines, digest, hash, sealed_at)
  values (v_seal.number, v_seal.last_id, v_seal.lines, v_seal.digest, v_seal.hash, _now());
  return query select v_seal.number, v_seal.lines, v_seal.number || ':' || encode(v_seal.hash, 'hex');
end
$$;
comment on function penstock.seal_audit_log(integer) is
  'Seals the next lines of the audit log, at most p_limit, and returns the new head. No row: nothing to seal '
  'yet. Workers call it about once a minute.';

create or replace function penstock._prune_audit_log()
returns void language plpgsql set search_path = penstock, pg_temp as $$
declare
  v_days integer := (_setting('audit_retention_days'))::integer;
  v_seal audit_seals;
  v_after bigint;
begin
  if v_days = 0 then
    return;
  end if;
  select * into v_seal from audit_seals where pruned_at is null order by number limit 1;
  if v_seal.number is null or v_seal.sealed_at > _now() - make_interval(days => v_days) then
    return;
  end if;
  v_after := coalesce((select max(last_id) from audit_seals where number < v_seal.number),
    -9223372036854775808);
  -- Lines that do not match their seal are evidence: they stay.
  if (select d.digest from _audit_digest(v_after, v_seal.last_id) as d) <> v_seal.digest then
    return;
  end if;
  delete from audit_log where id > v_after and id <= v_seal.last_id;
  update audit_seals set pruned_at = _now() where number = v_seal.number;
  delete from audit_seals where number < v_seal.number;
end
$$;
comment on function penstock._prune_audit_log() is
  'Removes the lines of the oldest seal once they are older than audit_retention_days. The seal stays, and '
  'the chain begins with it.';

create or replace function penstock._broken_seals()
returns table (seal bigint, problem text) language sql stable set search_path = penstock, pg_temp as $$
  select s.number, case
    when s.before_number is null and s.number <> 1 and s.pruned_at is null
      then 'the seals before it are missing'
    when s.number <> s.before_number + 1 then format('the seals after %s are missing', s.before_number)
    when s.pruned_at is null and s.is_after_kept is false then 'lines after it were pruned, but not its own'
    when (s.before_number is not null or s.number = 1) and s.hash <> s.expected
      then 'its hash does not follow from the seal before' end
  from (
    select x.*, lag(x.number) over w as before_number, _audit_hash(lag(x.hash) over w, x) as expected,
      lead(x.pruned_at) over w is null as is_after_kept
    from audit_seals x window w as (order by x.number)) as s
  where s.before_number is null and s.number <> 1 and s.pruned_at is null
    or s.number <> s.before_number + 1 or s.pruned_at is null and s.is_after_kept is false
    or (s.before_number is not null or s.number = 1) and s.hash <> s.expected
$$;
comment on function penstock._broken_seals() is 'Seals that do not form a chain, with the problem of each.';

create or replace function penstock.check_audit_log(p_lines bigint default null, p_head text default null)
returns table (seal bigint, problem text)
language plpgsql stable security definer set search_path = penstock, pg_temp as $$
declare
  v_seal record;
  v_found record;
  v_left bigint := coalesce(p_lines, 9223372036854775807);
begin
  return query select b.seal, b.problem from _broken_seals() as b;
  if p_head is not null and not exists (
    select from audit_seals s where s.number || ':' || encode(s.hash, 'hex') = p_head) then
    return query select null::bigint, format('the chain has no seal %s', left(p_head, 100));
  end if;
  if exists (select from audit_log l where l.id <= (
    select max(s.last_id) from audit_seals s where s.pruned_at is not null)) then
    return query select null::bigint, 'lines were inserted among those that retention has removed';
  end if;
  for v_seal in
    select s.*, coalesce(lag(s.last_id) over (order by s.number), -9223372036854775808) as after_id
    from audit_seals s
    order by s.number desc
  loop
    exit when v_left <= 0;
    continue when v_seal.pruned_at is not null;
    select d.lines, d.digest into v_found from _audit_digest(v_seal.after_id, v_seal.last_id) as d;
    v_left := v_left - v_seal.lines;
    if v_found.digest <> v_seal.digest then
      return query select v_seal.number, format('lines %s to %s: %s', greatest(v_seal.after_id, 0) + 1,
        v_seal.last_id,
        case when v_found.lines < v_seal.lines
          then format('%s of %s were deleted', v_seal.lines - v_found.lines, v_seal.lines)
        when v_found.lines > v_seal.lines
          then format('%s were inserted', v_found.lines - v_seal.lines) else 'one or more were changed' end);
    end if;
  end loop;
end
$$;
comment on function penstock.check_audit_log(bigint, text) is
  'Compares the audit log with its seals, newest first and at most p_lines lines, and the chain with a head '
  'that was kept elsewhere. Returns a row for each problem; no row: all is as it was sealed.';

create or replace function penstock.audit_head()
returns table (head text, sealed_at timestamptz, lines bigint, unsealed bigint,
  unsealed_seconds double precision)
language sql stable security definer set search_path = penstock, pg_temp as $$
  select s.number || ':' || encode(s.hash, 'hex'), s.sealed_at,
    (select coalesce(sum(x.lines), 0)::bigint from audit_seals x where x.pruned_at is null), u.n,
    extract(epoch from _now() - u.oldest)::double precision
  from (select coalesce(max(last_id), 0) as last_id, max(number) as number from audit_seals) as m
  left join audit_seals s on s.number = m.number
  cross join lateral (
    -- Counting stops, because a chain that is made for the first time may have millions before it.
    select count(*) as n, min(x.at) as oldest from (
      select l.at from audit_log l where l.id > m.last_id order by l.id limit 100000) as x) as u
$$;
comment on function penstock.audit_head() is
  'The head of the chain as number:hash, the number of sealed lines, and the number of lines (at most '
  '100,000) that are not sealed yet. Keep the head outside of the database.';

create or replace function penstock._clear_audit_details(p_tenant_id uuid, p_user_id uuid)
returns void language plpgsql set search_path = penstock, pg_temp as $$
declare
  v_ids bigint[];
  v_seal audit_seals;
  v_before audit_seals;
  v_old text;
begin
  perform pg_advisory_xact_lock(hashtextextended('penstock.audit', 0));
  with cleared as (
    update audit_log set details = '{}' where details <> '{}' and (tenant_id = p_tenant_id
      or actor = 'user:' || p_user_id or subject = 'user:' || p_user_id)
    returning id
  )
  select array_agg(id order by id) into v_ids from cleared;
  -- The lines are sealed again, and the log says so: a head that was kept elsewhere can be explained.
  for v_seal in
    select * from audit_seals where pruned_at is null and last_id >= v_ids[1] order by number
  loop
    v_before := null;
    select * into v_before from audit_seals where number = v_seal.number - 1;
    v_old := coalesce(v_old, v_seal.number || ':' || encode(v_seal.hash, 'hex'));
    select d.digest into v_seal.digest
    from _audit_digest(coalesce(v_before.last_id, -9223372036854775808), v_seal.last_id) as d;
    update audit_seals set digest = v_seal.digest, hash = _audit_hash(v_before.hash, v_seal)
    where number = v_seal.number;
  end loop;
  if v_old is not null then
    perform _audit(null, 'audit.resealed', null, coalesce('tenant:' || p_tenant_id, 'user:' || p_user_id),
      jsonb_build_object('first', v_old));
  end if;
end
$$;
comment on function penstock._clear_audit_details(uuid, uuid) is
  'Clears the details of the audit lines of an erased tenant or user, and seals these lines again.';
