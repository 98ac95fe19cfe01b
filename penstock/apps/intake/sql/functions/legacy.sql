-- Rows of an older system: their errors are plain text.

create or replace function intake.adopt_processing_errors(p_limit integer default 1000)
returns integer language plpgsql security definer set search_path = intake, pg_temp as $$
declare
  v_count integer;
begin
  with due as (
    select f.tenant_id, f.id from intake.shell_files f where jsonb_typeof(f.processing_error) = 'string'
    order by f.tenant_id, f.id limit p_limit for update
  ), changed as (
    update intake.shell_files f set processing_error = case when f.processing_error #>> '{}' = '' then null
      else jsonb_build_object('legacy_error', f.processing_error #>> '{}',
        'migrated_at', penstock.clock()) end
    from due where f.tenant_id = due.tenant_id and f.id = due.id returning 1
  )
  select count(*)::integer into v_count from changed;
  return v_count;
end
$$;
comment on function intake.adopt_processing_errors(integer) is
  'Turns text errors of an older system into structured ones, at most p_limit of them. Returns the number; 0 '
  'when all are done.';
