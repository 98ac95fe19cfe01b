-- Roles stay: they belong to the cluster and other databases may use them.
drop schema if exists penstock cascade;

do $$
begin
  if obj_description(to_regnamespace('auth'), 'pg_namespace') like 'made by penstock%' then
    drop schema auth cascade;
  end if;
end
$$;
