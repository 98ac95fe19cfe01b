"""Brings a database to this version's schema, tells how it differs from it, and takes it back.

`sql/migrations/NNNN_verb_noun.sql` is append-only and runs once. Its first line says its phase: `-- phase:
expand` (old code still works afterwards) or `-- phase: contract` (for when the old code is gone; runs with
`migrate(contract=True)`). A fresh database has no old code, so there both run. A second line `-- no
transaction` marks a file with a single statement that must run outside one, such as a concurrent index build;
it must bear being run again. `NNNN_verb_noun.down.sql` is the way back.

`sql/functions/*.sql`, `sql/views.sql` and `sql/grants.sql` are the current truth and are applied again each
time, functions with body checks off, so that their order does not matter. All of it is one transaction under
an advisory lock that ends with it, so two processes may migrate at once, also through a transaction pooler.

`sql/schema.sql` is the declared contract: a picture of a fresh install, made by `make schema` and compared
with the live database by `check`.

An app brings SQL of its own in a folder like this one, for a schema of its own: `folder` and `schema`. It is
applied, recorded and taken back in the same way, and must answer the questions of `sql/breaches.sql` first.
"""

from __future__ import annotations

import hashlib
import random
import re
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import psycopg
from psycopg.rows import tuple_row

from penstock.errors import Conflict, Invalid, NotMigrated, Unavailable

SQL = Path(__file__).parent / "sql"
PENSTOCK = "penstock"
"""The schema that this folder is for."""

_Result = TypeVar("_Result")
_Connection = psycopg.Connection[tuple[Any, ...]]

_SCHEMA = re.compile(r"(?!pg_)[a-z][a-z0-9_]{0,62}")
_TAKEN = {"auth", "extensions", "information_schema", "public", "storage"}
_NAME = re.compile(r"(?P<number>\d{4})_[a-z][a-z0-9_]*\.sql")
_LOCK_KEY = int.from_bytes(hashlib.sha256(b"penstock.migrate").digest()[:8], signed=True)
_ATTEMPTS = 40
_PART = " / "  # between an object and a part of it
# Somebody holds a lock we need, a deadlock, or another database of the same server touching the same role.
_PASSING = {"55P03", "40P01", "XX000"}

_MAJOR = "current_setting('server_version_num')::integer / 10000"


def _prologue(schema: str) -> str:
    return f"""\
set local lock_timeout = '2s';
do $$ begin perform pg_advisory_xact_lock({_LOCK_KEY}); end $$;
set local search_path = pg_catalog, pg_temp;
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


def _views(schema: str) -> str:
    """How this server prints the views just made. Versions print differently: the picture cannot say it."""
    return f"""\
select coalesce(jsonb_object_agg(c.oid::regclass::text,
  encode(sha256(convert_to(pg_get_viewdef(c.oid), 'UTF8')), 'hex')), '{{}}')
from pg_class c
where c.relnamespace = to_regnamespace('{schema}') and c.relkind in ('v', 'm')"""


def _record_views(schema: str) -> str:
    return f"""\
update {schema}.migrations set details = jsonb_build_object('server', {_MAJOR}, 'views', ({_views(schema)}))
where name = 'views.sql';
"""


def _recorded_views(schema: str) -> str:
    return f"""\
select details -> 'views' from {schema}.migrations
where name = 'views.sql' and (details ->> 'server')::integer = {_MAJOR}"""


# What there is to apply


class Own(NamedTuple):
    """The SQL that an app brings: a folder, and the schema it is for."""

    schema: str
    folder: Path


@dataclass(frozen=True)
class File:
    """One file of sql/."""

    name: str
    text: str
    is_contract: bool = False
    is_transactional: bool = True

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()

    @property
    def number(self) -> int:
        return int(self.name[:4])


@dataclass(frozen=True)
class Source:
    """The folder sql/, read, and the schema it is for."""

    schema: str
    migrations: tuple[File, ...]
    downs: Mapping[int, File]
    code: tuple[File, ...]

    def pending(self, applied: Mapping[str, str], *, contract: bool) -> list[File]:
        return [m for m in self.migrations if m.name not in applied and (contract or not m.is_contract)]


def read(folder: Path = SQL, schema: str = PENSTOCK) -> Source:
    """Read the folder, refusing names and first lines that do not follow the rules."""
    if not _SCHEMA.fullmatch(schema) or schema in _TAKEN:
        raise Invalid(f"{schema!r} is not the name of a schema of one's own", hint="Such as video_ideas.")
    if not folder.is_dir():
        raise Invalid(f"there is no folder {folder}")
    downs = {
        int(path.name[:4]): _file(path, path.name) for path in (folder / "migrations").glob("*.down.sql")
    }
    migrations = [
        _migration(path)
        for path in sorted((folder / "migrations").glob("*.sql"))
        if not path.name.endswith(".down.sql")
    ]
    for expected, migration in enumerate(migrations, start=1):
        if migration.number != expected:
            raise Invalid(
                f"{migration.name} should be number {expected:04}: numbers have no gaps and no doubles"
            )
    functions = [_file(p, f"functions/{p.name}") for p in sorted((folder / "functions").glob("*.sql"))]
    last = [_file(folder / name, name) for name in ("views.sql", "grants.sql") if (folder / name).exists()]
    return Source(schema, tuple(migrations), downs, (*functions, *last))


def _file(path: Path, name: str) -> File:
    return File(name, path.read_text(encoding="utf-8"))


def _migration(path: Path) -> File:
    if not _NAME.fullmatch(path.name):
        raise Invalid(f"{path.name} is not named like 0001_create_things.sql")
    text = path.read_text(encoding="utf-8")
    first, second, *_ = [*text.split("\n", 2), ""]
    if first not in ("-- phase: expand", "-- phase: contract"):
        raise Invalid(f"{path.name} must begin with a line '-- phase: expand' or '-- phase: contract'")
    return File(path.name, text, first.endswith("contract"), second != "-- no transaction")


# Forward


def migrate(dsn: str, contract: bool = False, *, folder: Path = SQL, schema: str = PENSTOCK) -> list[str]:
    """Bring the database to this version. Returns the names of the migrations it ran.

    Safe to repeat and to run from several processes at once. Contract migrations wait for `contract=True`.
    """
    source = read(folder, schema)
    done: list[str] = []
    with _connect(dsn) as connection:
        everything = contract or _patiently(lambda: _is_fresh(connection, schema))
        while alone := _patiently(lambda: _advance(connection, source, everything, done)):
            _patiently(lambda file=alone: _run_alone(dsn, connection, source, file, done))
    return done


def _advance(connection: _Connection, source: Source, everything: bool, done: list[str]) -> File | None:
    """Run all that may share a transaction. Returns the next file that may not, if one is in the way."""
    ran: list[str] = []
    alone = None
    with connection.transaction():
        connection.execute(_prologue(source.schema).encode())
        for file in source.pending(_applied(connection, source), contract=everything):
            if not file.is_transactional:
                alone = file
                break
            _run(connection, file)
            connection.execute(_record(source.schema, file).encode())
            ran.append(file.name)
        else:
            _apply_code(connection, source)
    done += ran
    return alone


def _run_alone(dsn: str, connection: _Connection, source: Source, file: File, done: list[str]) -> None:
    # A second connection keeps the lock. Its transaction is idle and has no snapshot, so no index build waits
    # for it.
    with _connect(dsn) as guard, guard.transaction():
        guard.execute(_prologue(source.schema).encode())
        if file.name not in _applied(guard, source):
            _run(connection, file)
            connection.execute(_record(source.schema, file).encode())
            done.append(file.name)


def _apply_code(connection: _Connection, source: Source) -> None:
    for file in source.code:
        _run(connection, file)
        connection.execute(_record(source.schema, file).encode())
    connection.execute(_forget_code(source.schema, source.code).encode())
    connection.execute(_record_views(source.schema).encode())
    # What is in sql/ itself is in its picture, and in tests.
    if source.schema != PENSTOCK and (found := breaches(connection, source.schema)):
        raise NotMigrated(
            f"What schema {source.schema} gives away: {'; '.join(found)}.",
            code="unsafe_schema",
            hint="Nothing of it was applied. See docs/sdk.md, SQL of your own.",
        )


def breaches(connection: psycopg.Connection[Any], schema: str = PENSTOCK) -> list[str]:
    """What in a schema could be read, written or called by whoever should not, one line each."""
    with connection.cursor(row_factory=tuple_row) as cursor:
        query = (SQL / "breaches.sql").read_bytes()
        return [line for (line,) in cursor.execute(query, {"schema": schema}).fetchall()]


def _is_fresh(connection: _Connection, schema: str) -> bool:
    if _value(connection, f"select to_regclass('{schema}.migrations') is null"):
        return True
    return bool(_value(connection, f"select not exists (select from {schema}.migrations)"))


def _applied(connection: _Connection, source: Source) -> dict[str, str]:
    """Name and hash of what was applied. Refuses a migration that was changed afterwards."""
    applied: dict[str, str] = dict(_rows(connection, f"select name, sha256 from {source.schema}.migrations"))
    for file in source.migrations:
        if applied.get(file.name, file.sha256) != file.sha256:
            raise Conflict(
                f"{file.name} was changed after it had been applied to this database.",
                code="migration_changed",
                hint="Restore the file, and put the change into a new migration.",
            )
    return applied


def _record(schema: str, file: File) -> str:
    return (
        f"insert into {schema}.migrations (name, sha256) values ('{file.name}', '{file.sha256}')\n"
        "on conflict (name) do update set sha256 = excluded.sha256, applied_at = default;\n"
    )


def _forget_code(schema: str, kept: Iterable[File]) -> str:
    names = ", ".join(f"'{file.name}'" for file in kept)
    others = f"name !~ '^[0-9]{{4}}_' and not name = any (array[{names}]::text[])"
    return f"delete from {schema}.migrations where {others};\n"


# On paper


def script(contract: bool = False, *, folder: Path = SQL, schema: str = PENSTOCK) -> str:
    """What `migrate` would run, for psql. It fits a fresh database and one of any earlier version."""
    source = read(folder, schema)
    parts = [
        f"-- The schema of {schema}, for psql: for a fresh database, or for one of an earlier version.\n"
        "\\set ON_ERROR_STOP on\n",
        "begin;\n" + _prologue(schema),
        f"select not exists (select from {schema}.migrations) as penstock_fresh \\gset\n",
        _refuse_changed(source),
    ]
    for file in source.migrations:
        body = f"-- {file.name}\n{file.text.rstrip()}\n{_record(schema, file)}"
        if not file.is_transactional:
            body = f"commit;\n{body}begin;\n{_prologue(schema)}"
        wanted = " and :'penstock_fresh'" if file.is_contract and not contract else ""
        parts.append(
            f"select not exists (select from {schema}.migrations where name = '{file.name}'){wanted}"
            f" as penstock_pending \\gset\n\\if :penstock_pending\n{body}\\endif\n"
        )
    parts += [f"-- {file.name}\n{file.text.rstrip()}\n{_record(schema, file)}" for file in source.code]
    parts.append(_forget_code(schema, source.code) + _record_views(schema) + "commit;\n")
    return "\n".join(parts)


def _refuse_changed(source: Source) -> str:
    rows = ",\n    ".join(f"('{file.name}', '{file.sha256}')" for file in source.migrations)
    return f"""\
do $$
declare
  v_name text;
begin
  select m.name into v_name from {source.schema}.migrations m join (values
    {rows or "(null, null)"}
  ) f (name, sha256) on f.name = m.name and f.sha256 <> m.sha256 order by m.name limit 1;
  if found then
    raise exception '% was changed after it had been applied to this database', v_name;
  end if;
end
$$;
"""


# Back


def rollback(dsn: str, to: int, *, folder: Path = SQL, schema: str = PENSTOCK) -> list[str]:
    """Undo the migrations after number `to`, newest first; 0 leaves nothing of the schema.

    Functions and views go in any case: they belong to this version. `migrate` of the version to which one
    returns brings its own. Returns the names of the migrations undone.
    """
    source = read(folder, schema)
    with _connect(dsn) as connection:
        return _patiently(lambda: _go_back(connection, source, to))


def _go_back(connection: _Connection, source: Source, to: int) -> list[str]:
    schema = source.schema
    with connection.transaction():
        if _is_fresh(connection, schema):
            return []
        connection.execute(_prologue(schema).encode())
        undone = _undone(_applied(connection, source), source, to)
        for statement in _drop_code(source):
            connection.execute(statement.encode())
        for name in undone:
            _run(connection, source.downs[int(name[:4])])
            # The first migration's way back takes the whole schema along.
            if _value(connection, f"select to_regclass('{schema}.migrations') is not null"):
                connection.execute(f"delete from {schema}.migrations where name = %s".encode(), [name])
        if to == 0:
            connection.execute(f"drop table if exists {schema}.migrations".encode())
            connection.execute(f"drop schema if exists {schema}".encode())
        else:
            connection.execute(_forget_code(schema, []).encode())
    return undone


def _undone(applied: Mapping[str, str], source: Source, to: int) -> list[str]:
    names = sorted((name for name in applied if _NAME.fullmatch(name) and int(name[:4]) > to), reverse=True)
    for name in names:
        if int(name[:4]) not in source.downs:
            raise Conflict(f"There is no way back from {name} in this version of penstock.")
    if to and to not in {file.number for file in source.migrations}:
        raise Invalid(f"There is no migration number {to}.")
    return names


def _drop_code(source: Source) -> list[str]:
    """Drop what the code files make. Whatever hangs on it (a trigger, a policy) is made by them as well."""
    made = re.compile(
        rf"^create(?: or replace)? (?P<kind>function|procedure|view) (?P<name>{source.schema}\.\w+)",
        re.M | re.I,
    )
    found = {(m["kind"].lower(), m["name"]) for file in source.code for m in made.finditer(file.text)}
    return [f"drop {kind} if exists {name} cascade" for kind, name in sorted(found, reverse=True)]


# The picture


def picture(connection: psycopg.Connection[Any]) -> dict[str, str]:
    """Everything in schema penstock: the identity of an object or of a part of it, and its definition."""
    query = (SQL / "picture.sql").read_bytes()
    found: dict[str, str] = {}
    with connection.transaction(), connection.cursor(row_factory=tuple_row) as cursor:
        cursor.execute("set local search_path = pg_catalog, pg_temp")
        for thing, item, text in cursor.execute(query).fetchall():
            found.setdefault(thing, "")
            if item:
                found[f"{thing}{_PART}{item}"] = text
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


def check(connection: psycopg.Connection[Any], *, folder: Path = SQL, schema: str = PENSTOCK) -> list[str]:
    """Every difference between the live database and the declared contract, one sentence each.

    An app's schema has no picture: its files, its views and what it gives away are looked at.
    """
    if schema == PENSTOCK:
        declared, live = parse((folder / "schema.sql").read_text(encoding="utf-8")), picture(connection)
        found = _differences(declared, live) if live else None
    else:
        is_there = _value(connection, f"select to_regnamespace('{schema}') is not null")
        found = breaches(connection, schema) if is_there else None
    if found is None:
        how = "penstock migrate" if schema == PENSTOCK else "penstock migrate MODULE:APP"
        return [f"schema {schema}: missing (run `{how}`)"]
    return [*_unapplied(connection, read(folder, schema)), *found, *_rewritten_views(connection, schema)]


def _differences(declared: Mapping[str, str], live: Mapping[str, str]) -> list[str]:
    found: list[str] = []
    for identity in [*declared, *(identity for identity in live if identity not in declared)]:
        thing, _, item = identity.partition(_PART)
        name = f"{thing}, {item}" if item else thing
        if item and (thing in declared) != (thing in live):
            continue  # the whole object is missing or not declared: said once
        if identity not in live:
            found.append(f"{name}: missing" + (f" (declared: {declared[identity]})" if item else ""))
        elif identity not in declared:
            found.append(f"{name}: not declared" + (f" (found: {live[identity]})" if item else ""))
        elif declared[identity] != live[identity]:
            found.append(
                f"{name}: found {live[identity] or 'nothing'}, declared {declared[identity] or 'nothing'}"
            )
    return found


def _unapplied(connection: psycopg.Connection[Any], source: Source) -> list[str]:
    if not _may_read_records(connection, source.schema):
        return []
    applied: dict[str, str] = dict(_rows(connection, f"select name, sha256 from {source.schema}.migrations"))
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


def _rewritten_views(connection: psycopg.Connection[Any], schema: str) -> list[str]:
    """Views that were defined anew since they were made by migrate."""
    if not _may_read_records(connection, schema):
        return []
    with connection.transaction():
        connection.execute("set local search_path = pg_catalog, pg_temp")
        before, now = _value(connection, _recorded_views(schema)), _value(connection, _views(schema))
    return [
        f"view {name}: was defined anew"
        for name in sorted(before or {})
        if now.get(name, before[name]) != before[name]
    ]


def _may_read_records(connection: psycopg.Connection[Any], schema: str) -> bool:
    if _value(connection, f"select to_regclass('{schema}.migrations')") is None:
        return False
    # Row security would show a reader without a policy an empty table.
    query = (
        f"select has_table_privilege('{schema}.migrations', 'select')"
        f" and not row_security_active('{schema}.migrations')"
    )
    return bool(_value(connection, query))


# Talking to the database


def _connect(dsn: str) -> _Connection:
    try:
        return psycopg.connect(
            dsn, autocommit=True, prepare_threshold=None, application_name="penstock migrate"
        )
    except psycopg.OperationalError as error:
        raise Unavailable(f"The database cannot be reached: {error}") from error


def _run(connection: _Connection, file: File) -> None:
    try:
        connection.execute(file.text.encode())
    except psycopg.Error as error:
        position = error.diag.statement_position
        line = f", line {file.text.count(chr(10), 0, int(position)) + 1}" if position else ""
        error.add_note(f"in {file.name}{line}")
        raise


def _patiently(work: Callable[[], _Result]) -> _Result:
    """Try again when somebody else was in the way: a transaction of theirs, or another migration."""
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            return work()
        except psycopg.Error as error:
            # Roles belong to the whole server: another database's migration may have just made the same one.
            is_race = error.sqlstate in ("42710", "23505") and attempt == 1
            if attempt == _ATTEMPTS or not (is_race or error.sqlstate in _PASSING):
                where = "".join(f" ({note})" for note in getattr(error, "__notes__", []))
                raise NotMigrated(
                    f"The migration failed: {error.diag.message_primary or error}{where}"
                ) from error
        time.sleep(random.uniform(0.05, 0.5))
    raise AssertionError("unreachable")


def _value(connection: psycopg.Connection[Any], query: str) -> Any:
    rows = _rows(connection, query)
    return rows[0][0] if rows else None


def _rows(connection: psycopg.Connection[Any], query: str) -> list[tuple[Any, ...]]:
    with connection.cursor(row_factory=tuple_row) as cursor:
        return cursor.execute(query.encode()).fetchall()
