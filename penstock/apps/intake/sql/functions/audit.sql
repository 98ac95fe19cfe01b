-- Every write of patient data leaves an audit line in the same transaction: triggers write it, so that no
-- function can forget it.

create or replace function intake._audit_patient_data()
returns trigger language plpgsql security definer set search_path = intake, pg_temp as $$
declare
  v_old jsonb := case when tg_op <> 'INSERT' then to_jsonb(old) end;
  v_new jsonb := case when tg_op <> 'DELETE' then to_jsonb(new) end;
  v_row jsonb := coalesce(v_new, v_old);
  v_columns jsonb;
begin
  -- Names of columns and no values: the audit log is read by more people than the patient's data.
  select jsonb_agg(k order by k) into v_columns from jsonb_object_keys(v_row) as k
    where tg_op <> 'UPDATE' or v_old -> k is distinct from v_new -> k;
  if tg_op = 'UPDATE' and v_columns is null then
    return null;
  end if;
  perform penstock.record_audit('intake.' || lower(tg_op),
    'patient:' || coalesce(v_row ->> 'patient_id', v_row ->> 'id'),
    jsonb_strip_nulls(jsonb_build_object('table', tg_table_name,
      'record', coalesce(v_row ->> 'shell_file_id', v_row ->> 'id'), 'pass', v_row -> 'pass',
      'status', v_row -> 'status', 'columns', case when tg_op = 'UPDATE' then v_columns end)),
    (v_row ->> 'tenant_id')::uuid, (v_row ->> 'job_id')::uuid);
  return null;
end
$$;
comment on function intake._audit_patient_data() is
  'Writes the audit line of a change of patient data: who, which patient, which record, which job.';

create or replace trigger audit_patient_data after insert or update or delete on intake.patients
  for each row execute function intake._audit_patient_data();
create or replace trigger audit_patient_data after insert or update or delete on intake.shell_files
  for each row execute function intake._audit_patient_data();
create or replace trigger audit_patient_data after insert or update or delete on intake.shell_file_results
  for each row execute function intake._audit_patient_data();

create or replace function intake.log_audit_event(
  p_table_name text, p_record_id text, p_operation text, p_old_values jsonb default null,
  p_new_values jsonb default null, p_reason text default null, p_category text default 'system',
  p_patient_id uuid default null)
returns bigint language plpgsql security definer set search_path = intake, pg_temp as $$
declare
  v_values jsonb := coalesce(p_new_values, p_old_values, '{}');
  v_job_id uuid;
  v_tenant_id uuid;
begin
  if coalesce(p_operation, '') !~ '^[A-Za-z][A-Za-z0-9_]{0,62}$' or coalesce(p_table_name, '') = '' then
    perform penstock.refuse(422, 'invalid_operation', format(
      'an audit event needs a table and an operation of letters, digits and underscores (got %L)',
      left(p_operation, 100)), '{"field": "p_operation"}');
  end if;
  if v_values ->> 'job_id' ~ '^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$' then
    v_job_id := (v_values ->> 'job_id')::uuid;
  end if;
  select tenant_id into v_tenant_id from intake.patients where id = p_patient_id;
  if p_patient_id is not null and not found then
    perform penstock.refuse(404, 'unknown_patient', 'there is no such patient');
  end if;
  return penstock.record_audit('intake.' || lower(p_operation),
    case when p_patient_id is null then p_table_name || ':' || coalesce(p_record_id, '')
      else 'patient:' || p_patient_id end,
    jsonb_strip_nulls(jsonb_build_object('table', p_table_name, 'record', p_record_id, 'old', p_old_values,
      'new', p_new_values, 'reason', p_reason, 'category', p_category)), v_tenant_id, v_job_id);
end
$$;
comment on function intake.log_audit_event(text, text, text, jsonb, jsonb, text, text, uuid) is
  'Adds a line to the audit log, with the patient as its subject, in the transaction of the caller.';
