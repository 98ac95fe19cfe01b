-- Consent of patients to the processing of their documents by models.

create or replace function intake.record_consent(p_patient_id uuid, p_is_given boolean default true)
returns void language plpgsql security definer set search_path = intake, pg_temp as $$
declare
  v_patient intake.patients := intake._patient_of(p_patient_id, null);
begin
  perform penstock.require_member(v_patient.tenant_id);
  update intake.patients
  set consented_at = case when p_is_given then coalesce(consented_at, penstock.clock()) end
  where tenant_id = v_patient.tenant_id and id = v_patient.id;
end
$$;
comment on function intake.record_consent(uuid, boolean) is
  'Records that a patient consents to the processing of documents by models, or withdraws it.';

create or replace function intake.has_consent(p_tenant_id uuid, p_patient_id uuid)
returns boolean language sql stable security definer set search_path = intake, pg_temp as $$
  select exists (select from intake.patients
    where tenant_id = p_tenant_id and id = p_patient_id and consented_at is not null)
$$;
comment on function intake.has_consent(uuid, uuid) is 'Whether a patient has consented.';

create or replace function intake.may_process(p_tenant_id uuid, p_id uuid)
returns boolean language sql stable security definer set search_path = intake, pg_temp as $$
  select penstock.get_setting('intake.consent_required') <> 'true' or exists (
    select from intake.shell_files f where f.tenant_id = p_tenant_id and f.id = p_id
      and intake.has_consent(f.tenant_id, f.patient_id))
$$;
comment on function intake.may_process(uuid, uuid) is
  'Whether a file may go to a model: its patient has consented, or the setting does not require it.';
