"""What `migrate` noted about a database, what is there now, and how the two and the files differ."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Mapping, Set
from dataclasses import dataclass
from functools import cache

from penstock.errors import Conflict
from penstock.postgres.migrate.connection import LOCK_KEY, AnyConnection, execute, rows, value
from penstock.postgres.migrate.expressions import flatten
from penstock.postgres.migrate.source import SQL, File, Source
from penstock.postgres.migrate.statements import Unit

MAJOR = "current_setting('server_version_num')::integer / 10000"


@dataclass(frozen=True)
class Definition:
    """An object as PostgreSQL prints it, and, of a view, a hash of the columns that it could read."""

    text: str | None = None
    inputs: str | None = None

    def equals(self, other: Definition) -> bool:
        return self.inputs == other.inputs and self.is_written_as(other)

    def is_written_as(self, other: Definition) -> bool:
        return _normal(self.text) == _normal(other.text)


@dataclass(frozen=True)
class Recorded:
    """A unit when it was applied: its statements' hash, and the object that they made."""

    sha256: str | None
    definition: Definition


@dataclass(frozen=True)
class Records:
    """The table `migrations` of a schema."""

    files: Mapping[str, str]
    units: Mapping[str, Recorded]
    servers: Set[int]

    def has_files(self, source: Source) -> bool:
        """Whether the code files of the source, and no others, are recorded."""
        code = {name: sha256 for name, sha256 in self.files.items() if not name[:4].isdigit()}
        return code == {file.name: file.sha256 for file in source.code}

    def differing(self, units: Iterable[Unit], live: Live) -> list[Unit]:
        """The units whose statements changed, or whose object is not as they left it."""
        return [unit for unit in units if not self._is_applied(unit, live)]

    def _is_applied(self, unit: Unit, live: Live) -> bool:
        recorded = self.units.get(unit.key)
        return (
            recorded is not None
            and recorded.sha256 == unit.sha256
            and recorded.definition.equals(live.of(unit))
        )


@dataclass(frozen=True)
class Live:
    """The objects of a schema as they are now, by key."""

    objects: Mapping[str, Definition]
    rest: Definition
    """A hash of the objects that no unit names: statements that name none run again when it changes."""

    def of(self, unit: Unit) -> Definition:
        return self.rest if unit.kind == "statement" else self.objects.get(unit.key, Definition())


def is_fresh(connection: AnyConnection, schema: str) -> bool:
    if value(connection, f"select to_regclass('{schema}.migrations') is null"):
        return True
    return bool(value(connection, f"select not exists (select from {schema}.migrations)"))


def read_records(connection: AnyConnection, schema: str) -> Records:
    files: dict[str, str] = {}
    units: dict[str, Recorded] = {}
    servers: set[int] = set()
    for name, sha256, details in rows(connection, f"select name, sha256, details from {schema}.migrations"):
        files[name] = sha256
        for key, unit in details.get("units", {}).items():
            servers.add(details["server"])
            units[key] = Recorded(unit["sha256"], Definition(unit["definition"], unit["inputs"]))
    return Records(files, units, servers)


def read_live(connection: AnyConnection, source: Source) -> Live:
    """Takes no lock but ACCESS SHARE. Needs the search_path of `prologue`."""
    found = rows(connection, _definitions(source.schema))
    known = {unit.key for unit in source.units}
    others = sorted(f"{key}{text or ''}" for key, text, _ in found if key not in known)
    rest = hashlib.md5("\n".join(others).encode(), usedforsecurity=False).hexdigest() if others else None
    return Live({key: Definition(text, inputs) for key, text, inputs in found}, Definition(rest))


def applied_migrations(connection: AnyConnection, source: Source) -> dict[str, str]:
    """Name and hash of the files that were applied. Refuses a migration that was changed afterwards."""
    applied: dict[str, str] = dict(rows(connection, f"select name, sha256 from {source.schema}.migrations"))
    for file in source.migrations:
        if applied.get(file.name, file.sha256) != file.sha256:
            raise Conflict(
                f"{file.name} was changed after it had been applied to this database.",
                code="migration_changed",
                hint="Restore the file, and put the change into a new migration.",
            )
    return applied


def record_code(connection: AnyConnection, source: Source, unfinished: Collection[Unit] = ()) -> None:
    """Record the code files and the objects that they define. Units not yet applied keep their old record."""
    noted = read_records(connection, source.schema).units
    waiting = {unit.key for unit in unfinished}
    files = {unit.file for unit in unfinished}
    for file in source.code:
        execute(connection, record(source.schema, file, is_finished=file.name not in files))
    execute(connection, forget_code(source.schema, source.code))
    hashes = {
        unit.key: (noted[unit.key].sha256 if unit.key in noted else None)
        if unit.key in waiting
        else unit.sha256
        for unit in source.units
    }
    execute(connection, record_units(source, hashes))


# As SQL, also for psql


def prologue(schema: str, *, lock: bool) -> str:
    """Begin a transaction of the migrator; create the schema and its table `migrations` where missing."""
    taken = f"do $$ begin perform pg_advisory_xact_lock({LOCK_KEY}); end $$;\n" if lock else ""
    return f"""\
set local lock_timeout = '2s';
{taken}set local search_path = pg_catalog, pg_temp;
set local check_function_bodies = off;
set local client_min_messages = warning;
do $$
begin
  if to_regnamespace('{schema}') is null then
    create schema {schema};
  end if;
  if to_regclass('{schema}.migrations') is null then
    create table {schema}.migrations (
      name text primary key,
      sha256 text not null,
      details jsonb not null default '{{}}',
      applied_at timestamptz not null default clock_timestamp()
    );
    comment on table {schema}.migrations is
      'The files of sql/ that were applied. Written by migrate only.';
    alter table {schema}.migrations enable row level security;
    revoke all on {schema}.migrations from public;
  end if;
end
$$;
"""


def record(schema: str, file: File, *, is_finished: bool = True) -> str:
    """Note a file. An unfinished one keeps the hash it had, so that it still counts as changed."""
    insert = f"insert into {schema}.migrations as m (name, sha256) values ('{file.name}', "
    if not is_finished:
        return f"{insert}'') on conflict (name) do nothing;\n"
    return (
        f"{insert}'{file.sha256}')\non conflict (name) do update set sha256 = excluded.sha256,"
        " applied_at = default where m.sha256 <> excluded.sha256;\n"
    )


def forget_code(schema: str, kept: Iterable[File]) -> str:
    names = ", ".join(f"'{file.name}'" for file in kept)
    others = f"name !~ '^[0-9]{{4}}_' and not name = any (array[{names}]::text[])"
    return f"delete from {schema}.migrations where {others};\n"


def record_units(source: Source, hashes: Mapping[str, str | None] | None = None) -> str:
    """Note of every unit its hash and the object as it is now."""
    listed = [
        {"file": u.file, "key": u.key, "sha256": hashes[u.key] if hashes else u.sha256} for u in source.units
    ]
    return f"""\
with live as (
{_definitions(source.schema)}
),
units as (
  select * from jsonb_to_recordset($units${json.dumps(listed)}$units$) as u (file text, key text, sha256 text)
),
rest as (
  select md5(string_agg(line, E'\\n' order by line collate "C")) as definition
  from (select concat(key, definition) as line from live where key not in (select key from units)) as others
),
noted as (
  select u.file, jsonb_build_object('server', {MAJOR}, 'units', jsonb_object_agg(u.key, jsonb_build_object(
    'sha256', u.sha256, 'inputs', l.inputs,
    'definition', case when u.key like 'statement %' then (select definition from rest)
      else l.definition end))) as details
  from units u left join live l on l.key = u.key group by u.file
)
update {source.schema}.migrations m set details = noted.details from noted
where m.name = noted.file and m.details is distinct from noted.details;
"""


@cache
def _definitions(schema: str) -> str:
    text = (SQL / "definitions.sql").read_text(encoding="utf-8")
    return text.replace(":'schema'", f"'{schema}'").rstrip()


@cache
def _normal(text: str | None) -> str | None:
    return None if text is None else flatten(text)
