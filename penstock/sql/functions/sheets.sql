-- Google Sheets: its quotas are provider limits, so all workers share them.

create or replace function penstock.ensure_sheets_account(p_account text)
returns void language plpgsql security definer set search_path = penstock, pg_temp as $$
declare
  v_name text;
begin
  if p_account is null or p_account !~ '^[a-z0-9]{1,64}$' then
    perform _refuse(422, 'invalid_account',
      format('p_account must be 1 to 64 lower-case letters and digits (got %L)', left(p_account, 100)),
      '{"field": "p_account"}');
  end if;
  -- Two workers may find the same account missing at the same time.
  perform pg_advisory_xact_lock(hashtext('google-sheets'));
  foreach v_name in array array['read', 'write', 'read:' || p_account, 'write:' || p_account] loop
    v_name := 'google-sheets/' || v_name;
    -- Limits that an operator has changed stay as they are.
    if not exists (select from endpoints where name = v_name and tenant_id is null) then
      perform set_provider(v_name,
        jsonb_build_object('requests_per_minute', case when v_name like '%:%' then 60 else 300 end));
    end if;
    -- Calls are free, but a job with a budget needs a price.
    if not _has_price(v_name, null, _now()) then
      perform set_price(v_name, 'requests', 0);
    end if;
  end loop;
end
$$;
comment on function penstock.ensure_sheets_account(text) is
  'Creates the rate limits of Google Sheets if they are missing: 300 reads and 300 writes per minute for '
  'the project, 60 and 60 for the account.';
