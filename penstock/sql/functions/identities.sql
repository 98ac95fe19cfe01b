-- Identities: users who sign in with an OpenID Connect issuer.

create or replace function penstock.sign_in_identity(p_issuer text, p_subject text, p_email text default null)
returns uuid language plpgsql security definer set search_path = penstock, pg_temp as $$
declare
  v_user_id uuid;
begin
  perform _check_clean(p_issuer || p_subject, 'issuer and subject', 'invalid_user');
  if coalesce(length(p_issuer), 0) not between 1 and 500
    or coalesce(length(p_subject), 0) not between 1 and 255 then
    perform _refuse(422, 'invalid_user', 'issuer and subject must not be empty');
  end if;
  select user_id into v_user_id from identities where issuer = p_issuer and subject = p_subject;
  if v_user_id is null then
    -- Concurrent first sign-ins of a user get the same account.
    perform pg_advisory_xact_lock(hashtextextended('penstock.identity:' || p_issuer || ' ' || p_subject, 0));
    select user_id into v_user_id from identities where issuer = p_issuer and subject = p_subject;
  end if;
  if v_user_id is null then
    -- Never an existing account with the same address: another issuer may vouch for any address.
    v_user_id := gen_random_uuid();
    perform _create_user(v_user_id, p_email);
    insert into identities (issuer, subject, user_id, created_at)
      values (p_issuer, p_subject, v_user_id, _now());
  elsif p_email is not null then
    update profiles set email = p_email where user_id = v_user_id and email is distinct from p_email;
  end if;
  return v_user_id;
end
$$;
comment on function penstock.sign_in_identity(text, text, text) is
  'The user of an issuer''s subject, created with a profile and a personal tenant at the first sign-in. '
  'p_email is the verified address, if there is one. Only code that has verified the identity may call this.';
