-- Key blobs. A blob is stored only soon after a sign-in, and that of a transfer is redeemed only while it is
-- fresh. Both are decided here: times of clients decide nothing.

create or replace function notes._signed_in_at()
returns timestamptz language sql stable set search_path = notes, pg_temp as $$
  -- amr has the time of each sign-in, also after the token was refreshed.
  select to_timestamp(coalesce(
    (select max((a.value ->> 'timestamp')::numeric)
     from jsonb_array_elements(case when jsonb_typeof(auth.jwt() -> 'amr') = 'array'
       then auth.jwt() -> 'amr' else '[]' end) as a(value)
     where jsonb_typeof(a.value) = 'object' and a.value ->> 'timestamp' ~ '^\d{1,11}$'),
    case when auth.jwt() ->> 'auth_time' ~ '^\d{1,11}$' then (auth.jwt() ->> 'auth_time')::numeric end,
    case when auth.jwt() ->> 'iat' ~ '^\d{1,11}$' then (auth.jwt() ->> 'iat')::numeric end))
$$;
comment on function notes._signed_in_at() is
  'When the caller signed in, from the verified token; null if the token does not say.';

create or replace function notes._guard_key_blob()
returns trigger language plpgsql security definer set search_path = notes, pg_temp as $$
declare
  v_most interval := make_interval(
    secs => (penstock.get_setting('notes.sign_in_max_age_ms') #>> '{}')::double precision / 1000);
begin
  if tg_op = 'UPDATE' then
    if (new.device_label, new.created_at, new.type) is distinct from
       (old.device_label, old.created_at, old.type) then
      perform penstock.refuse(422, 'fixed_label', 'type, label and time of a key blob cannot be changed');
    end if;
    return new;
  end if;
  if not penstock.is_service()
     and (notes._signed_in_at() >= penstock.clock() - v_most) is not true then
    perform penstock.refuse(403, 'sign_in_required', 'storing a key needs a fresh sign-in',
      jsonb_build_object('max_age_seconds', extract(epoch from v_most)), 'Sign in again.');
  end if;
  new.created_at := notes._ms();
  return new;
end
$$;
comment on function notes._guard_key_blob() is
  'Trigger of wrapped_key_blobs: stores a blob only soon after a sign-in, and keeps its label and time.';

create or replace trigger t01_guard before insert or update on notes.wrapped_key_blobs
  for each row execute function notes._guard_key_blob();

create or replace function notes._count_device()
returns trigger language plpgsql security definer set search_path = notes, pg_temp as $$
declare
  v_before boolean := tg_op <> 'INSERT' and old.is_active and old.type = 'prf-v1';
  v_after boolean := tg_op <> 'DELETE' and new.is_active and new.type = 'prf-v1';
begin
  if v_before <> v_after and exists (
      select from penstock.profiles p where p.user_id = coalesce(new.user_id, old.user_id)) then
    perform notes._count_owned(coalesce(new.user_id, old.user_id), 'max_devices', 'devices',
      case when v_after then 1 else -1 end);
  end if;
  return null;
end
$$;
comment on function notes._count_device() is
  'Trigger of wrapped_key_blobs: counts devices, which have an active blob of type prf-v1.';

create or replace trigger t05_count after insert or update of is_active or delete on notes.wrapped_key_blobs
  for each row execute function notes._count_device();

create or replace function notes.select_fresh_transfer_blob(p_user_id uuid, p_max_age_ms bigint)
returns setof notes.wrapped_key_blobs language plpgsql stable security definer
set search_path = notes, pg_temp as $$
declare
  v_most bigint := least(p_max_age_ms, (penstock.get_setting('notes.transfer_max_age_ms') #>> '{}')::bigint);
begin
  if p_user_id is distinct from auth.uid() or p_user_id is null then
    perform penstock.refuse(403, 'forbidden', 'you can redeem only your own transfer');
  end if;
  return query select b.* from wrapped_key_blobs b
    where b.user_id = p_user_id and b.type = 'transfer-v1' and b.is_active
      and b.created_at > notes._ms() - v_most
    order by b.created_at desc, b.id limit 1;
end
$$;
comment on function notes.select_fresh_transfer_blob(uuid, bigint) is
  'The caller''s newest active transfer blob, if it is younger than p_max_age_ms and than the setting '
  'notes.transfer_max_age_ms.';
