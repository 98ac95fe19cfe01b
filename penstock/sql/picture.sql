-- What is in schema penstock, one row per fact: object, item of the object (empty for the object itself),
-- text. Every text is the same on PostgreSQL 15 to 18; search_path must be pg_catalog, so that names are
-- qualified. Left out: owners, as long as everything has the same one; partitions, which come and go; how a
-- view is written, which every version prints differently (`migrate` keeps what it printed: see
-- definitions.sql).

with
ours as (
  select oid, nspname, nspowner, nspacl from pg_namespace where nspname = 'penstock'
),

relations as (
  select c.oid, c.relkind, c.relowner, c.relacl, c.relrowsecurity, c.relforcerowsecurity, c.reloptions,
    case when c.relkind in ('r', 'p') then 'table'
         when c.relkind = 'v' then 'view'
         when c.relkind = 'm' then 'materialized view'
         when c.relkind = 'S' then 'sequence'
         when c.relkind = 'c' then 'type'
         when c.relkind = 'f' then 'foreign table' end as kind,
    format('%I.%I', ours.nspname, c.relname) as name
  from pg_class c join ours on ours.oid = c.relnamespace
  where c.relkind in ('r', 'p', 'v', 'm', 'S', 'c', 'f') and not c.relispartition
    -- The sequence of an identity column belongs to the column.
    and not exists (
      select from pg_depend d
      where d.classid = 'pg_class'::regclass and d.objid = c.oid and d.deptype = 'i' and c.relkind = 'S')
),

types as (
  select t.oid, t.typtype, t.typowner, t.typacl, t.typbasetype, t.typtypmod, t.typnotnull, t.typdefault,
    format('type %I.%I', ours.nspname, t.typname) as object
  from pg_type t join ours on ours.oid = t.typnamespace
  where t.typtype in ('e', 'd', 'r')
),

functions as (
  select p.*, l.lanname,
    format('function %I.%I(%s)', ours.nspname, p.proname, oidvectortypes(p.proargtypes)) as object
  from pg_proc p join ours on ours.oid = p.pronamespace join pg_language l on l.oid = p.prolang
),

-- Everything that has an owner and an access control list.
owned as (
  select format('schema %I', nspname) as object, nspowner as owner, nspacl as acl, 'n'::"char" as acl_kind
    from ours
  union all
  select kind || ' ' || name, relowner, relacl, (case relkind when 'S' then 's' else 'r' end)::"char"
  from relations where relkind <> 'c'
  union all
  select object, typowner, typacl, 'T' from types
  union all
  select object, proowner, proacl, 'f' from functions
),

facts (rank, object, place, item, text) as (

  -- schema ------------------------------------------------------------------------------------------------

  select 0, format('schema %I', nspname), 0, '', '' from ours
  union all
  select 0, 'schema penstock', 90,
    format('default grant on %s to %s',
      case d.defaclobjtype when 'r' then 'tables' when 'S' then 'sequences' when 'f' then 'functions'
        when 'T' then 'types' else d.defaclobjtype::text end,
      case a.grantee when 0 then 'public' else a.grantee::regrole::text end),
    string_agg(lower(a.privilege_type), ', ' order by a.privilege_type)
  from pg_default_acl d join ours on ours.oid = d.defaclnamespace, aclexplode(d.defaclacl) a
  where a.privilege_type <> 'MAINTAIN'
  group by d.defaclobjtype, a.grantee

  -- types -------------------------------------------------------------------------------------------------

  union all
  select 1, t.object, 0, '', '' from types t
  union all
  select 1, t.object, 1, 'values', string_agg(quote_literal(e.enumlabel), ', ' order by e.enumsortorder)
  from types t join pg_enum e on e.enumtypid = t.oid group by t.object
  union all
  select 1, t.object, 1, 'domain', concat_ws(' ', format_type(t.typbasetype, t.typtypmod),
    case when t.typnotnull then 'not null' end, 'default ' || t.typdefault)
  from types t where t.typtype = 'd'
  union all
  select 1, t.object, 2, 'constraint ' || quote_ident(c.conname), pg_get_constraintdef(c.oid)
  from types t join pg_constraint c on c.contypid = t.oid where c.contype <> 'n'

  -- relations: tables, views, sequences, row types --------------------------------------------------------

  union all
  select case r.relkind when 'c' then 1 when 'S' then 2 when 'v' then 4 when 'm' then 4 else 3 end,
    r.kind || ' ' || r.name, 0, '', ''
  from relations r
  union all
  select 2, r.kind || ' ' || r.name, 1, 'definition', concat_ws(' ', format_type(s.seqtypid, null),
    'start', s.seqstart, 'increment', s.seqincrement, 'minimum', s.seqmin, 'maximum', s.seqmax,
    'cache', s.seqcache, case when s.seqcycle then 'cycle' end)
  from relations r join pg_sequence s on s.seqrelid = r.oid
  union all
  select 3, r.kind || ' ' || r.name, 2, 'partitioned by', pg_get_partkeydef(r.oid)
  from relations r where r.relkind = 'p'
  union all
  select 3, r.kind || ' ' || r.name, 2, 'row security',
    case when r.relrowsecurity then 'enabled' else 'disabled' end || case when r.relforcerowsecurity
      then ', forced' else '' end
  from relations r where r.relkind in ('r', 'p')
  union all
  select case r.relkind when 'v' then 4 when 'm' then 4 else 3 end, r.kind || ' ' || r.name, 3, 'options',
    (select string_agg(o, ', ' order by o) from unnest(r.reloptions) o)
  from relations r where r.reloptions is not null
  union all
  select case r.relkind when 'c' then 1 when 'v' then 4 when 'm' then 4 else 3 end,
    r.kind || ' ' || r.name, 1000 + a.attnum, 'column ' || quote_ident(a.attname),
    concat_ws(' ',
      format_type(a.atttypid, a.atttypmod),
      case when a.attcollation <> t.typcollation then 'collate ' || a.attcollation::regcollation end,
      case a.attidentity when 'a' then 'generated always as identity' when 'd'
        then 'generated by default as identity' end,
      case when a.attnotnull then 'not null' end,
      case when a.attgenerated = '' then 'default '
        else 'generated always as ' end || pg_get_expr(d.adbin, d.adrelid))
  from relations r
  join pg_attribute a on a.attrelid = r.oid and a.attnum > 0 and not a.attisdropped
  join pg_type t on t.oid = a.atttypid
  left join pg_attrdef d on d.adrelid = r.oid and d.adnum = a.attnum
  where r.relkind <> 'S'
  union all
  -- PostgreSQL 18 also has NOT NULL constraints; here NOT NULL is part of the column.
  select 3, r.kind || ' ' || r.name, 3000, 'constraint ' || quote_ident(c.conname),
    pg_get_constraintdef(c.oid)
  from relations r join pg_constraint c on c.conrelid = r.oid
  where c.contype in ('c', 'f', 'p', 'u', 'x') and c.conparentid = 0
  union all
  select 3, r.kind || ' ' || r.name, 4000, 'index ' || quote_ident(c.relname),
    pg_get_indexdef(i.indexrelid) || case when i.indisvalid then '' else ' INVALID' end
  from relations r join pg_index i on i.indrelid = r.oid join pg_class c on c.oid = i.indexrelid
  where not exists (
    select from pg_constraint k where k.conindid = i.indexrelid and k.conrelid = r.oid
      and k.contype in ('p', 'u', 'x'))
  union all
  select 3, r.kind || ' ' || r.name, 4500, 'statistics ' || quote_ident(s.stxname),
    pg_get_statisticsobjdef(s.oid)
  from relations r join pg_statistic_ext s on s.stxrelid = r.oid
  union all
  select case r.relkind when 'v' then 4 else 3 end, r.kind || ' ' || r.name, 5000,
    'trigger ' || quote_ident(t.tgname),
    pg_get_triggerdef(t.oid) || case t.tgenabled when 'O' then '' when 'D' then ' DISABLED'
      else ' ENABLED ' || t.tgenabled::text end
  from relations r join pg_trigger t on t.tgrelid = r.oid
  where not t.tgisinternal and t.tgparentid = 0
  union all
  select 3, r.kind || ' ' || r.name, 5500, 'rule ' || quote_ident(w.rulename), pg_get_ruledef(w.oid)
  from relations r join pg_rewrite w on w.ev_class = r.oid where w.rulename <> '_RETURN'
  union all
  select 3, r.kind || ' ' || r.name, 6000, 'policy ' || quote_ident(p.polname),
    concat_ws(' ',
      case when p.polpermissive then 'permissive' else 'restrictive' end,
      'for', case p.polcmd when 'r' then 'select' when 'a' then 'insert' when 'w' then 'update' when 'd'
        then 'delete' else 'all' end,
      'to', (select string_agg(case g when 0 then 'public' else g::regrole::text end, ', '
        order by g::regrole::text)
             from unnest(p.polroles) g),
      'using ' || pg_get_expr(p.polqual, p.polrelid),
      'with check ' || pg_get_expr(p.polwithcheck, p.polrelid))
  from relations r join pg_policy p on p.polrelid = r.oid
  union all
  select case r.relkind when 'v' then 4 when 'm' then 4 else 3 end, r.kind || ' ' || r.name, 7500,
    format('grant on column %I to %s', t.attname, case a.grantee when 0 then 'public'
      else a.grantee::regrole::text end),
    string_agg(lower(a.privilege_type) || case when a.is_grantable then ' with grant option' else '' end,
      ', ' order by a.privilege_type)
  from relations r join pg_attribute t on t.attrelid = r.oid and not t.attisdropped, aclexplode(t.attacl) a
  where a.grantee <> r.relowner
  group by r.relkind, r.kind, r.name, t.attname, a.grantee
  union all
  -- The columns that a view reads.
  select 4, r.kind || ' ' || r.name, 7000, 'reads ' || format('%I.%I', n.nspname, c.relname),
    coalesce(string_agg(distinct a.attname, ', ' order by a.attname), '(rows)')
  from relations r
  join pg_rewrite w on w.ev_class = r.oid and w.rulename = '_RETURN'
  join pg_depend d on d.classid = 'pg_rewrite'::regclass and d.objid = w.oid
    and d.refclassid = 'pg_class'::regclass and d.refobjid <> r.oid
  join pg_class c on c.oid = d.refobjid join pg_namespace n on n.oid = c.relnamespace
  left join pg_attribute a on a.attrelid = c.oid and a.attnum = d.refobjsubid and d.refobjsubid <> 0
  where r.relkind in ('v', 'm')
  group by r.kind, r.name, n.nspname, c.relname
  union all
  -- A grant on a partition would bypass the policies of its parent.
  select 3, format('partition %I.%I', ours.nspname, c.relname), 7500,
    'grant to ' || case a.grantee when 0 then 'public' else a.grantee::regrole::text end,
    string_agg(lower(a.privilege_type), ', ' order by a.privilege_type)
  from pg_class c join ours on ours.oid = c.relnamespace, aclexplode(c.relacl) a
  where c.relispartition and a.grantee <> c.relowner and a.privilege_type <> 'MAINTAIN'
  group by ours.nspname, c.relname, a.grantee

  -- functions ---------------------------------------------------------------------------------------------

  union all
  select 5, f.object, 0, '', '' from functions f
  union all
  select 5, f.object, 1, 'arguments', pg_get_function_arguments(f.oid) from functions f where f.pronargs > 0
  union all
  select 5, f.object, 2, 'returns', coalesce(pg_get_function_result(f.oid), 'nothing: a procedure')
    from functions f
  union all
  select 5, f.object, 3, 'attributes',
    concat_ws(', ', f.lanname,
      case f.provolatile when 'i' then 'immutable' when 's' then 'stable' else 'volatile' end,
      case when f.prosecdef then 'security definer' else 'security invoker' end,
      case when f.proisstrict then 'strict' end,
      case when f.proleakproof then 'leakproof' end,
      case f.proparallel when 's' then 'parallel safe' when 'r' then 'parallel restricted'
        else 'parallel unsafe' end,
      case when f.procost not in (1, 100) then 'cost ' || f.procost end,
      case when f.proretset and f.prorows <> 1000 then 'rows ' || f.prorows end)
  from functions f
  union all
  select 5, f.object, 4, 'settings', (select string_agg(c, ', ' order by c) from unnest(f.proconfig) c)
  from functions f where f.proconfig is not null
  union all
  select 5, f.object, 5, 'body', 'sha256 ' || left(encode(sha256(convert_to(
    coalesce(pg_get_function_sqlbody(f.oid), f.prosrc), 'UTF8')), 'hex'), 32)
  from functions f

  -- comments, grants, owners ------------------------------------------------------------------------------

  union all
  select 0, 'schema penstock', 1, 'comment', obj_description(oid, 'pg_namespace') from ours
  union all
  select case r.relkind when 'c' then 1 when 'S' then 2 when 'v' then 4 when 'm' then 4 else 3 end,
    r.kind || ' ' || r.name, case when d.objsubid = 0 then 1 else 2000 + d.objsubid end,
    case when d.objsubid = 0 then 'comment'
      else 'comment on column ' || quote_ident(a.attname) end, d.description
  from relations r join pg_description d on d.classoid = 'pg_class'::regclass and d.objoid = r.oid
  left join pg_attribute a on a.attrelid = r.oid and a.attnum = d.objsubid
  union all
  select 1, t.object, 1, 'comment', obj_description(t.oid, 'pg_type') from types t
  union all
  select 5, f.object, 6, 'comment', obj_description(f.oid, 'pg_proc') from functions f
  union all
  -- A missing list means PostgreSQL's default, which lets everyone call a function.
  select case split_part(o.object, ' ', 1) when 'schema' then 0 when 'type' then 1 when 'sequence' then 2
    when 'table' then 3
      when 'foreign' then 3 when 'function' then 5 else 4 end,
    o.object, 8000, 'grant to ' || case a.grantee when 0 then 'public' else a.grantee::regrole::text end,
    string_agg(lower(a.privilege_type) || case when a.is_grantable then ' with grant option' else '' end,
      ', ' order by a.privilege_type)
  from owned o, aclexplode(coalesce(o.acl, acldefault(o.acl_kind, o.owner))) a
  -- PostgreSQL 17 added MAINTAIN, which "grant all" includes there.
  where a.grantee <> o.owner and a.privilege_type <> 'MAINTAIN'
  group by o.object, a.grantee
  union all
  select case split_part(o.object, ' ', 1) when 'schema' then 0 when 'type' then 1 when 'sequence' then 2
    when 'table' then 3
      when 'foreign' then 3 when 'function' then 5 else 4 end,
    o.object, 9000, 'owner', 'not the owner of the schema but ' || o.owner::regrole
  from owned o, ours where o.owner <> ours.nspowner

  -- triggers of this schema on tables of other schemas ----------------------------------------------------

  union all
  select 6, format('trigger %I on %I.%I', t.tgname, n.nspname, c.relname), x.place, x.item, x.text
  from pg_trigger t
  join functions f on f.oid = t.tgfoid
  join pg_class c on c.oid = t.tgrelid join pg_namespace n on n.oid = c.relnamespace,
  lateral (values (0, '', ''), (1, 'definition', pg_get_triggerdef(t.oid)
    || case t.tgenabled when 'O' then '' when 'D' then ' DISABLED'
      else ' ENABLED ' || t.tgenabled::text end)) x (place, item, text)
  where not t.tgisinternal and t.tgparentid = 0 and n.nspname <> 'penstock'
)

select object, item, btrim(regexp_replace(text, '\s+', ' ', 'g')) as text
from facts
where text is not null
order by rank, object collate "C", place, item collate "C"
