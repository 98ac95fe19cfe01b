-- Security problems of a schema: one row for each object that someone could
-- read, write or call without permission. An app's SQL is not applied while
-- it has one. (%(schema)s is a parameter of the Python driver.)
with relations as (
  select c.oid, c.relname as name, c.relkind as kind, c.relrowsecurity as has_rls, c.relowner as owner,
    c.relacl as acl, coalesce('security_invoker=true' = any (c.reloptions)
      or 'security_invoker=on' = any (c.reloptions), false) as is_invoker
  from pg_class c where c.relnamespace = to_regnamespace(%(schema)s)
    and c.relkind in ('r', 'p', 'v', 'm', 'f', 'S')
), functions as (
  select p.oid, p.oid::regprocedure::text as name, p.prosecdef as is_definer, p.proowner as owner,
    p.proacl as acl, (select x from unnest(p.proconfig) as x where x like 'search_path=%%') as path
  from pg_proc p where p.pronamespace = to_regnamespace(%(schema)s)
), given as (
  select 'schema ' || n.nspname as what, n.nspowner as owner,
    coalesce(n.nspacl, acldefault('n', n.nspowner)) as acl
  from pg_namespace n where n.oid = to_regnamespace(%(schema)s)
  union all
  select r.name, r.owner,
    coalesce(r.acl, acldefault(case r.kind when 'S' then 's' else 'r' end::"char", r.owner)) from relations r
  union all
  select r.name || '.' || a.attname, r.owner, a.attacl from relations r
    join pg_attribute a on a.attrelid = r.oid where a.attacl is not null
  union all
  select f.name, f.owner, coalesce(f.acl, acldefault('f', f.owner)) from functions f
), granted as (
  select g.what, lower(x.privilege_type) as privilege, x.is_grantable, case x.grantee when 0 then 'public'
    else x.grantee::regrole::text end as role
  from given g cross join lateral aclexplode(g.acl) as x where x.grantee <> g.owner
)
select format('table %%s has no row level security', name) from relations where kind in ('r', 'p')
  and not has_rls
union all
select format('view %%s runs with its owner''s rights: set security_invoker = true', name) from relations
  where kind = 'v' and not is_invoker
union all
select format('%%s has no row level security, and %%s may read it', r.name, g.role)
from relations r join granted g on g.what = r.name and g.role in ('anon', 'authenticated', 'public')
  where r.kind in ('m', 'f')
union all
select format('function %%s is security definer: its search_path must be set and end with pg_temp', name)
from functions where is_definer and (path is null or path !~ '(=|, )pg_temp$')
union all
-- Usage of the schema by anon is harmless: it only shows that the schema exists.
select format('%%s: %%s is granted to %%s', what, privilege, role) from granted
where role in ('public', 'anon')
  and not (role = 'anon' and privilege = 'usage' and what = 'schema ' || %(schema)s)
union all
select format('%%s: %%s may grant %%s to others', what, role, privilege) from granted where is_grantable
union all
select format('schema: %%s may create objects in it', role) from granted where what = 'schema ' || %(schema)s
  and privilege = 'create'
union all
select format('policy %%s of %%s applies to public or anon', policyname, tablename) from pg_policies
where schemaname = %(schema)s and roles && array['public', 'anon']::name[]
union all
select format('policy %%s of %%s lets users write any row', policyname, tablename) from pg_policies
where schemaname = %(schema)s and cmd <> 'SELECT' and 'authenticated' = any (roles)
  and coalesce(with_check, qual, 'true') = 'true'
order by 1
