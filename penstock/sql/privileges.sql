-- Every privilege that a role other than the owner has on a schema, relation, column, routine or type, as the
-- words of a grant. Needs search_path = pg_catalog.
with theirs as (
  select oid, nspowner, nspacl from pg_namespace where nspname !~ '^pg_' and nspname <> 'information_schema'
),

relations as (
  select c.oid, case c.relkind when 'S' then 'sequence ' else 'table ' end || c.oid::regclass as target,
    c.relowner, c.relacl
  from pg_class c join theirs on theirs.oid = c.relnamespace where c.relkind in ('r', 'p', 'v', 'm', 'f', 'S')
),

given (target, owner, attribute, acl) as (
  select 'schema ' || oid::regnamespace, nspowner, '', nspacl from theirs
  union all
  select target, relowner, '', relacl from relations
  union all
  select r.target, r.relowner, quote_ident(a.attname), a.attacl
  from relations r join pg_attribute a on a.attrelid = r.oid where a.attacl is not null and not a.attisdropped
  union all
  -- A missing list means PostgreSQL's default: a function or a type is everybody's.
  select 'routine ' || p.oid::regprocedure, p.proowner, '', coalesce(p.proacl, acldefault('f', p.proowner))
  from pg_proc p join theirs on theirs.oid = p.pronamespace
  union all
  select 'type ' || format_type(t.oid, null), t.typowner, '', coalesce(t.typacl, acldefault('T', t.typowner))
  from pg_type t join theirs on theirs.oid = t.typnamespace where t.typcategory <> 'A'
)

select g.target, case a.grantee when 0 then 'public' else a.grantee::regrole::text end as role,
  g.attribute, a.privilege_type, a.is_grantable
from given g, aclexplode(g.acl) a
where a.grantee <> g.owner
