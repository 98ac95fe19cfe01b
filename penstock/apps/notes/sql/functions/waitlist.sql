-- The waitlist from before sign-up was open.

create or replace function notes.approve_waitlist(p_email text)
returns jsonb language plpgsql security definer set search_path = notes, pg_temp as $$
declare
  v_request waitlist_requests;
  v_user_id uuid;
begin
  update waitlist_requests set status = 'approved', approved_at = coalesce(approved_at, penstock.clock())
    where lower(email) = lower(p_email) returning * into v_request;
  if not found then
    perform penstock.refuse(404, 'unknown_request', 'there is no request with this address',
      '{"field": "email"}');
  end if;
  -- Sign-up is open: a user who has no other name yet gets that of the request.
  update penstock.profiles set display_name = case
      when v_request.name is not null and coalesce(display_name, '') in ('', split_part(email, '@', 1))
      then v_request.name else display_name end
    where lower(email) = lower(p_email) returning user_id into v_user_id;
  return jsonb_build_object('id', v_request.id, 'status', v_request.status, 'user_id', v_user_id);
end
$$;
comment on function notes.approve_waitlist(text) is
  'Approves a request of the waitlist. Approving it again changes nothing.';
