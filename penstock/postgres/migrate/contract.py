"""The declared contract, and how a live database differs from it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from psycopg.rows import tuple_row

from penstock.postgres.migrate.apply import breaches
from penstock.postgres.migrate.connection import AnyConnection, execute, rows, value
from penstock.postgres.migrate.expressions import flatten
from penstock.postgres.migrate.records import MAJOR, read_live, read_records
from penstock.postgres.migrate.source import PENSTOCK, SQL, Source, read

_PART = " / "  # between an object and a part of it


def picture(connection: AnyConnection) -> dict[str, str]:
    """Everything in schema penstock: the identity of an object or of a part of it, and its definition."""
    query = (SQL / "picture.sql").read_bytes()
    found: dict[str, str] = {}
    with connection.transaction(), connection.cursor(row_factory=tuple_row) as cursor:
        cursor.execute("set local search_path = pg_catalog, pg_temp")
        for thing, item, text in cursor.execute(query).fetchall():
            found.setdefault(thing, "")
            if item:
                found[f"{thing}{_PART}{item}"] = flatten(text)
    return found


def render(picture: Mapping[str, str]) -> str:
    """The picture as text: a block per object, a line per part."""
    lines = [
        "-- What a fresh install looks like: the declared contract. Made by `make schema`, never edited.",
        "-- `penstock migrate --check` names every difference between this and a live database.",
    ]
    for identity, text in picture.items():
        thing, _, item = identity.partition(_PART)
        lines += [f"  {item}: {text}".rstrip()] if item else ["", thing]
    return "\n".join(lines) + "\n"


def parse(text: str) -> dict[str, str]:
    """The inverse of `render`."""
    found: dict[str, str] = {}
    thing = ""
    for line in text.splitlines():
        if line.startswith("  "):
            item, _, definition = f"{line[2:]} ".partition(": ")
            found[f"{thing}{_PART}{item}"] = definition.strip()
        elif line and not line.startswith("--"):
            thing = line
            found[thing] = ""
    return found


def check(connection: AnyConnection, *, folder: Path = SQL, schema: str = PENSTOCK) -> list[str]:
    """Every difference between the live database and the declared contract, one sentence each.

    An app's schema has no picture: `check` looks at its files, at objects changed since `migrate` created
    them, and at what it gives away.
    """
    if schema == PENSTOCK:
        declared, live = parse((folder / "schema.sql").read_text(encoding="utf-8")), picture(connection)
        found = _differences(declared, live) if live else None
    else:
        is_there = value(connection, f"select to_regnamespace('{schema}') is not null")
        found = breaches(connection, schema) if is_there else None
    if found is None:
        how = "penstock migrate" if schema == PENSTOCK else "penstock migrate MODULE:APP"
        return [f"schema {schema}: missing (run `{how}`)"]
    source = read(folder, schema)
    return [*_unapplied(connection, source), *found, *_changed(connection, source)]


def _differences(declared: Mapping[str, str], live: Mapping[str, str]) -> list[str]:
    found: list[str] = []
    for identity in [*declared, *(identity for identity in live if identity not in declared)]:
        thing, _, item = identity.partition(_PART)
        name = f"{thing}, {item}" if item else thing
        if item and (thing in declared) != (thing in live):
            continue  # the whole object is missing or not declared: reported once
        if identity not in live:
            found.append(f"{name}: missing" + (f" (declared: {declared[identity]})" if item else ""))
        elif identity not in declared:
            found.append(f"{name}: not declared" + (f" (found: {live[identity]})" if item else ""))
        elif declared[identity] != live[identity]:
            found.append(
                f"{name}: found {live[identity] or 'nothing'}, declared {declared[identity] or 'nothing'}"
            )
    return found


def _unapplied(connection: AnyConnection, source: Source) -> list[str]:
    if not _may_read_records(connection, source.schema):
        return []
    applied: dict[str, str] = dict(rows(connection, f"select name, sha256 from {source.schema}.migrations"))
    found: list[str] = []
    for file in (*source.migrations, *source.code):
        if file.name not in applied:
            how = "penstock migrate --contract" if file.is_contract else "penstock migrate"
            found.append(f"{file.name}: not applied (run `{how}`)")
        elif applied[file.name] != file.sha256:
            found.append(f"{file.name}: another version of this file was applied")
    known = {file.name for file in (*source.migrations, *source.code)}
    return found + [
        f"{name}: applied, but unknown to this version" for name in sorted(applied) if name not in known
    ]


def missing(applied: Iterable[str], *, folder: Path = SQL, schema: str = PENSTOCK) -> list[str]:
    """The expand migrations of this version that a database lacks: without them its code cannot run."""
    done = set(applied)
    return [
        file.name
        for file in read(folder, schema).migrations
        if not file.is_contract and file.name not in done
    ]


def _changed(connection: AnyConnection, source: Source) -> list[str]:
    """Objects that changed since `migrate` created them, where no picture declares them.

    That is how views are written, which every version of PostgreSQL prints differently, and all of an app's.
    """
    if not _may_read_records(connection, source.schema):
        return []
    with connection.transaction():
        execute(connection, "set local search_path = pg_catalog, pg_temp")
        records, live = read_records(connection, source.schema), read_live(connection, source)
        if records.servers - {value(connection, f"select {MAJOR}")}:
            return []
    found: list[str] = []
    for unit in source.units:
        recorded, now = records.units.get(unit.key), live.objects.get(unit.key)
        is_shown = unit.kind == "view" or (source.schema != PENSTOCK and unit.kind != "grants")
        if not is_shown or recorded is None or recorded.definition.text is None:
            continue
        if now is None and source.schema != PENSTOCK:
            found.append(f"{unit.key}: missing")
        elif now is not None and not recorded.definition.is_written_as(now):
            found.append(f"{unit.key}: changed since migrate created it")
    return found


def _may_read_records(connection: AnyConnection, schema: str) -> bool:
    if value(connection, f"select to_regclass('{schema}.migrations')") is None:
        return False
    # Row security would show a reader without a policy an empty table.
    query = (
        f"select has_table_privilege('{schema}.migrations', 'select')"
        f" and not row_security_active('{schema}.migrations')"
    )
    return bool(value(connection, query))
