-- What `migrate` compares to see whether an object is still as it left it: a row for each function name,
-- view, trigger and policy of a schema, one for all privileges, and one for the rest of its tables. `inputs`
-- are the columns that a view could read: a view with a * has to be created again when they change. Needs
-- search_path = pg_catalog. (migrate replaces :'schema', as psql would.)
with ours as (
  select oid, nspname as name, nspowner as owner, nspacl as acl from pg_namespace where nspname = :'schema'
),

relations as (
  select ours.name || '.' || c.relname as name, c.*
  from pg_class c join ours on ours.oid = c.relnamespace
  where c.relkind in ('r', 'p', 'v', 'm', 'f', 'S') and not c.relispartition
),

routines as (
  select p.oid, ours.name || '.' || p.proname as name, oidvectortypes(p.proargtypes) as arguments, p.prokind,
    p.proowner, p.proacl
  from pg_proc p join ours on ours.oid = p.pronamespace
),

privileges as (
  select 'schema' as object, acl, owner from ours
  union all
  select name, coalesce(relacl, acldefault(case relkind when 'S' then 's' else 'r' end::"char", relowner)),
    relowner from relations
  union all
  select r.name || ' column ' || a.attname, a.attacl, r.relowner
  from relations r join pg_attribute a on a.attrelid = r.oid and not a.attisdropped where a.attacl is not null
  union all
  select format('%s(%s)', name, arguments), coalesce(proacl, acldefault('f', proowner)), proowner
  from routines
)

select 'function ' || name as key,
  md5(string_agg(
    pg_get_functiondef(oid) || coalesce(obj_description(oid, 'pg_proc'), ''), E'\n'
    order by arguments collate "C")) as definition,
  null as inputs
from routines where prokind in ('f', 'p', 'w') group by name

union all
select 'view ' || v.name,
  concat_ws(E'\n', pg_get_viewdef(v.oid), v.reloptions::text, obj_description(v.oid, 'pg_class')),
  (select md5(string_agg(
      concat_ws(' ', c.oid::regclass, a.attname, a.attnum, format_type(a.atttypid, a.atttypmod)), E'\n'
      order by c.oid::regclass::text collate "C", a.attnum))
   from pg_class c join pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
   where c.oid <> v.oid and c.oid in (
     select d.refobjid from pg_rewrite w
     join pg_depend d on d.classid = 'pg_rewrite'::regclass and d.objid = w.oid
     where w.ev_class = v.oid and d.refclassid = 'pg_class'::regclass))
from relations v where v.relkind = 'v'

union all
-- Also those on other schemas' tables that call a function of this one.
select format('trigger %s on %s.%s', t.tgname, n.nspname, c.relname),
  concat_ws(' ', pg_get_triggerdef(t.oid), t.tgenabled), null
from pg_trigger t join pg_class c on c.oid = t.tgrelid join pg_namespace n on n.oid = c.relnamespace
where not t.tgisinternal and t.tgparentid = 0
  and (t.tgrelid in (select oid from relations) or t.tgfoid in (select oid from routines))

union all
select format('policy %s on %s', p.polname, r.name),
  concat_ws(E'\n', p.polpermissive, p.polcmd,
    (select string_agg(g::regrole::text, ', ' order by g::regrole::text) from unnest(p.polroles) g),
    'using ' || pg_get_expr(p.polqual, p.polrelid), 'with check ' || pg_get_expr(p.polwithcheck, p.polrelid),
    obj_description(p.oid, 'pg_policy')),
  null
from pg_policy p join relations r on r.oid = p.polrelid

union all
select 'grants', md5(string_agg(
  concat_ws(' ', p.object, a.grantee::regrole, a.privilege_type, a.is_grantable), E'\n'
  order by p.object collate "C", a.grantee::regrole::text collate "C", a.privilege_type, a.is_grantable)),
  null
from privileges p, aclexplode(p.acl) a where a.grantee <> p.owner

union all
select 'tables', md5(string_agg(
  concat_ws(' ', name, relkind, relrowsecurity, relforcerowsecurity, reloptions), E'\n'
  order by name collate "C")), null
from relations where relkind <> 'v'
