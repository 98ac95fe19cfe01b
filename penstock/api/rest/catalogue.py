"""Functions, tables and views of a schema, and the roles that may use them.

This is the only source of names in the SQL of this package; the database has quoted them. Objects that are
not granted are included, so that the error is PostgREST's: permission denied, not a missing function.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, LiteralString

from penstock.postgres import db

FRESH_SECONDS = 10
"""How long the catalogue is cached. The database itself rejects grants that were revoked since."""

HIDDEN = ["begin_request", "check_key", "end_request", "list_strangers", "use_key"]
"""Functions that only the API itself may call."""

_ROLES = ["anon", "authenticated", "service_role"]
# Names with an underscore are internal, even if they are granted because views use them.
_FUNCTIONS: LiteralString = """
select p.proname, quote_ident(n.nspname) || '.' || quote_ident(p.proname),
  array(
    select r.rolname from pg_roles r
    where r.rolname = any (%s) and has_function_privilege(r.oid, p.oid, 'execute')),
  p.provolatile <> 'v', p.proretset, p.prorettype = 'void'::regtype, p.pronargdefaults,
  t.typrelid <> 0 or coalesce(p.proargmodes && '{o,b,t}'::"char"[], false),
  (select coalesce(json_agg(json_build_array(a.name, quote_ident(a.name), format_type(a.type, null))
      order by a.place), '[]')
    from unnest(p.proargnames, coalesce(p.proallargtypes, p.proargtypes::oid[]), p.proargmodes)
      with ordinality as a(name, type, mode, place)
    where coalesce(a.mode, 'i') in ('i', 'b', 'v')),
  (select coalesce(json_agg(json_build_array(c.name, quote_ident(c.name), c.type) order by c.place), '[]')
    from (
      select a.name, format_type(a.type, null) as type, a.place
      from unnest(p.proargnames, p.proallargtypes, p.proargmodes)
        with ordinality as a(name, type, mode, place)
      where a.mode in ('o', 'b', 't')
      union all
      select a.attname, format_type(a.atttypid, a.atttypmod), a.attnum from pg_attribute a
      where a.attrelid = t.typrelid and a.attnum > 0 and not a.attisdropped) as c)
from pg_proc p join pg_type t on t.oid = p.prorettype join pg_namespace n on n.oid = p.pronamespace
where n.nspname = %s and p.prokind = 'f' and p.proname !~ '^_'
  and p.proname <> all (%s::text[])
  and p.prorettype not in ('trigger'::regtype, 'event_trigger'::regtype)
"""
_RELATIONS: LiteralString = """
select c.relname, quote_ident(n.nspname) || '.' || quote_ident(c.relname),
  array(
    select r.rolname from pg_roles r
    where r.rolname = any (%s) and has_any_column_privilege(r.oid, c.oid, 'select')),
  (select coalesce(json_agg(
      json_build_array(a.attname, quote_ident(a.attname), format_type(a.atttypid, a.atttypmod))
      order by a.attnum), '[]')
    from pg_attribute a where a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped),
  array(
    select a.attname::text from pg_index i cross join unnest(i.indkey) with ordinality as k(number, place)
    join pg_attribute a on a.attrelid = c.oid and a.attnum = k.number
    where i.indrelid = c.oid and i.indisprimary order by k.place)
from pg_class c join pg_namespace n on n.oid = c.relnamespace
where n.nspname = %s and c.relkind in ('r', 'p', 'v', 'm', 'f')
  and not c.relispartition
"""


@dataclass(frozen=True, slots=True)
class Column:
    """A column or an argument: its name, the quoted name, and its type."""

    name: str
    sql: str
    type: str


@dataclass(frozen=True, slots=True)
class Function:
    """A function that callers may use."""

    name: str
    sql: str
    roles: frozenset[str]
    """The roles that may call it."""
    is_read_only: bool
    is_set: bool
    is_void: bool
    is_composite: bool
    inputs: Mapping[str, Column]
    required: frozenset[str]
    columns: Mapping[str, Column]
    """Columns of the result; empty for a scalar."""
    schema: str


@dataclass(frozen=True, slots=True)
class Relation:
    """A table or a view."""

    name: str
    sql: str
    roles: frozenset[str]
    """The roles that may read at least one column."""
    columns: Mapping[str, Column]
    primary_key: tuple[str, ...]
    schema: str


@dataclass(frozen=True, slots=True)
class Catalogue:
    """The functions and relations of a schema at one time."""

    schema: str
    functions: Mapping[str, Function]
    relations: Mapping[str, Relation]
    read_at: float

    @property
    def is_fresh(self) -> bool:
        """Whether the cache is still valid."""
        return time.monotonic() - self.read_at < FRESH_SECONDS


async def read(conn: db.Connection, schema: str) -> Catalogue:
    """Read the catalogue of a schema from the database."""
    hidden = HIDDEN if schema == "penstock" else []
    functions = [_function(schema, *row) for row in await db.rows(conn, _FUNCTIONS, (_ROLES, schema, hidden))]
    relations = [
        Relation(name, _escaped(sql), frozenset(roles), _columns(columns), tuple(primary_key), schema)
        for name, sql, roles, columns, primary_key in await db.rows(conn, _RELATIONS, (_ROLES, schema))
    ]
    return Catalogue(
        schema=schema,
        functions={function.name: function for function in functions},
        relations={relation.name: relation for relation in relations},
        read_at=time.monotonic(),
    )


def _function(
    schema: str,
    name: str,
    sql: str,
    roles: list[str],
    is_read_only: bool,
    is_set: bool,
    is_void: bool,
    defaults: int,
    is_composite: bool,
    inputs: list[list[str]],
    columns: list[list[str]],
) -> Function:
    arguments = _columns(inputs)
    return Function(
        name=name,
        sql=_escaped(sql),
        roles=frozenset(roles),
        is_read_only=is_read_only,
        is_set=is_set,
        is_void=is_void,
        is_composite=is_composite,
        inputs=arguments,
        required=frozenset(list(arguments)[: len(arguments) - defaults]),
        columns=_columns(columns),
        schema=schema,
    )


def _columns(found: Any) -> Mapping[str, Column]:
    return {name: Column(name, _escaped(sql), _escaped(type)) for name, sql, type in found}


def _escaped(sql: str) -> str:
    """Double percent signs, as statements with parameters require."""
    return sql.replace("%", "%%")
