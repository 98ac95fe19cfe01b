"""Takes a database back to an earlier migration."""

from __future__ import annotations

import re
from collections.abc import Mapping, Set
from pathlib import Path

from penstock.errors import Conflict, Invalid
from penstock.postgres.migrate.connection import Connection, Runner, connect, execute, patiently, rows, value
from penstock.postgres.migrate.records import applied_migrations, forget_code, is_fresh, prologue
from penstock.postgres.migrate.source import MIGRATION_NAME, PENSTOCK, SQL, Source, read
from penstock.postgres.migrate.statements import split


def rollback(dsn: str, to: int, *, folder: Path = SQL, schema: str = PENSTOCK) -> list[str]:
    """Undo the migrations after number `to`, newest first; 0 leaves nothing of the schema.

    Always drops functions and views: they belong to this version, and `migrate` of the older version creates
    its own. Only functions that triggers, defaults and checks of apps use stay until then: apps would lose
    these with them. Returns the names of the migrations undone.
    """
    source = read(folder, schema)
    with connect(dsn) as connection:
        return patiently(lambda: _undo(connection, source, to))


def _undo(connection: Connection, source: Source, to: int) -> list[str]:
    schema = source.schema
    with connection.transaction():
        if is_fresh(connection, schema):
            return []
        execute(connection, prologue(schema, lock=True))
        names = _to_undo(applied_migrations(connection, source), source, to)
        kept = _used_by_apps(connection, source) if to else set[str]()
        for statement in _drop_code(source, kept):
            execute(connection, statement)
        runner = Runner(connection)
        for name in names:
            down = source.downs[int(name[:4])]
            for statement in split(down.name, down.text):
                runner.run(statement, down.text)
            # The rollback of the first migration drops the whole schema.
            if value(connection, f"select to_regclass('{schema}.migrations') is not null"):
                execute(connection, f"delete from {schema}.migrations where name = '{name}'")
        if to == 0:
            execute(connection, f"drop table if exists {schema}.migrations")
            execute(connection, f"drop schema if exists {schema}")
        else:
            execute(connection, forget_code(schema, []))
    return names


def _to_undo(applied: Mapping[str, str], source: Source, to: int) -> list[str]:
    names = sorted(
        (name for name in applied if MIGRATION_NAME.fullmatch(name) and int(name[:4]) > to), reverse=True
    )
    for name in names:
        if int(name[:4]) not in source.downs:
            raise Conflict(f"There is no way back from {name} in this version of penstock.")
    if to and to not in {file.number for file in source.migrations}:
        raise Invalid(f"There is no migration number {to}.")
    return names


def _used_by_apps(connection: Connection, source: Source) -> set[str]:
    """The functions that tables outside the schema use, other than in triggers of the source itself."""
    query = f"""
        select p.oid::regproc::text, format('trigger %s on %s', t.tgname, d.relation)
        from pg_proc p
        join pg_depend u on u.refclassid = 'pg_proc'::regclass and u.refobjid = p.oid
          and u.classid in ('pg_trigger'::regclass, 'pg_attrdef'::regclass, 'pg_constraint'::regclass)
        left join pg_trigger t on u.classid = 'pg_trigger'::regclass and t.oid = u.objid
        left join pg_attrdef f on u.classid = 'pg_attrdef'::regclass and f.oid = u.objid
        left join pg_constraint k on u.classid = 'pg_constraint'::regclass and k.oid = u.objid
        join pg_class c on c.oid = coalesce(t.tgrelid, f.adrelid, nullif(k.conrelid, 0))
        cross join lateral (select c.relnamespace::regnamespace || '.' || c.relname) as d(relation)
        where p.pronamespace = '{source.schema}'::regnamespace and c.relnamespace <> p.pronamespace"""
    own = {unit.key for unit in source.units}
    return {name for name, trigger in rows(connection, query) if trigger not in own}


def _drop_code(source: Source, kept: Set[str]) -> list[str]:
    """Drop what the code files create. Triggers and policies that depend on it go with it."""
    created = re.compile(
        rf"^create(?: or replace)? (?P<kind>function|procedure|view) (?P<name>{source.schema}\.\w+)",
        re.M | re.I,
    )
    found = {(m["kind"].lower(), m["name"]) for file in source.code for m in created.finditer(file.text)}
    return [
        f"drop {kind} if exists {name} cascade"
        for kind, name in sorted(found, reverse=True)
        if name not in kept
    ]
