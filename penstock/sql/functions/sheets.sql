-- Google Sheets: its quotas are provider limits, so all workers share them. A sheet and an account belong to
-- the tenant that used them first, because a sheet that one tenant shared with the account is open to all
-- tenants that the account serves.

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

create or replace function penstock._bind_sheet(
  p_tenant_id uuid, p_kind text, p_name text, p_label text, p_is_new boolean)
returns void language plpgsql set search_path = penstock, pg_temp as $$
declare
  v_owner uuid;
begin
  select tenant_id into v_owner from sheet_bindings where kind = p_kind and name = p_name;
  if v_owner is null and p_is_new then
    insert into sheet_bindings (tenant_id, kind, name, label, created_at)
    values (p_tenant_id, p_kind, p_name, p_label, _now()) on conflict (kind, name) do nothing;
    -- Another tenant's transaction may have inserted the row in the meantime.
    select tenant_id into v_owner from sheet_bindings where kind = p_kind and name = p_name;
    if v_owner = p_tenant_id then
      perform _audit(p_tenant_id, 'sheet.bound', null, p_kind || ':' || p_name,
        jsonb_build_object('label', p_label));
    end if;
  end if;
  if v_owner <> p_tenant_id and p_kind = 'sheet' then
    perform _refuse(403, 'sheet_bound', format('the Google Sheet %L is bound to another tenant', p_name),
      '{}',
      'Copy the sheet, or ask the operator to release it.');
  elsif v_owner <> p_tenant_id then
    perform _refuse(403, 'account_bound',
      format('the Google account %L is bound to another tenant', coalesce(p_label, p_name)), '{}',
      'Use another account, or ask the operator to add it to the setting shared_sheet_accounts.');
  end if;
end
$$;
comment on function penstock._bind_sheet(uuid, text, text, text, boolean) is
  'Raises an error if a sheet or an account is bound to another tenant; p_is_new binds a free one.';

create or replace function penstock.bind_sheet(p_tenant_id uuid, p_account text, p_options jsonb default '{}')
returns void language plpgsql security definer set search_path = penstock, pg_temp as $$
declare
  v_sheet text := p_options ->> 'sheet';
  v_label text := left(p_options ->> 'label', 320);
  v_shared jsonb := _setting('shared_sheet_accounts');
begin
  perform _check_fields(p_options, array['sheet', 'label', 'is_new'], 'binding');
  perform _check_name(p_account, 'p_account', 'invalid_account');
  perform _require_tenant(p_tenant_id);
  if v_sheet is not null then
    perform _check_name(v_sheet, 'sheet', 'invalid_spreadsheet');
  end if;
  if not (v_shared ? p_account or coalesce(v_shared ? v_label, false)) then
    perform _bind_sheet(p_tenant_id, 'account', p_account, v_label, true);
  end if;
  if v_sheet is not null then
    perform _bind_sheet(p_tenant_id, 'sheet', v_sheet, null,
      coalesce((p_options ->> 'is_new')::boolean, true));
  end if;
end
$$;
comment on function penstock.bind_sheet(uuid, text, jsonb) is
  'Binds a Google account, and with the option sheet a spreadsheet, to the tenant that uses them first. '
  'Raises an error for every other tenant. Accounts in the setting shared_sheet_accounts serve all tenants. '
  'Options: sheet, label (e-mail address of the account), is_new (false: only check the sheet).';

create or replace function penstock.release_sheet(p_kind text, p_name text)
returns uuid language plpgsql security definer set search_path = penstock, pg_temp as $$
declare
  v_tenant_id uuid;
begin
  delete from sheet_bindings where kind = p_kind and name = p_name returning tenant_id into v_tenant_id;
  if v_tenant_id is null then
    perform _refuse(404, 'unknown_binding',
      format('no tenant is bound to the %s %L', left(p_kind, 100), left(p_name, 200)), '{}',
      'penstock sheets ls lists the bindings.');
  end if;
  perform _audit(v_tenant_id, 'sheet.released', null, p_kind || ':' || p_name);
  return v_tenant_id;
end
$$;
comment on function penstock.release_sheet(text, text) is
  'Ends the binding of a Google Sheet (p_kind: sheet) or account (account) and returns its former tenant. '
  'The next tenant that uses it gets it.';
