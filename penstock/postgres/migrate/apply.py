"""Brings a database to the source's version."""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import groupby, takewhile
from pathlib import Path
from typing import Any

import psycopg
from psycopg.rows import tuple_row

from penstock.errors import NotMigrated
from penstock.postgres.migrate import privileges
from penstock.postgres.migrate.connection import (
    Connection,
    Runner,
    connect,
    execute,
    only_migrator,
    patiently,
    rows,
)
from penstock.postgres.migrate.records import (
    applied_migrations,
    is_fresh,
    prologue,
    read_live,
    read_records,
    record,
    record_code,
)
from penstock.postgres.migrate.source import PENSTOCK, SQL, File, Source, read
from penstock.postgres.migrate.statements import Unit, repeatable, split

_ALTERED = re.compile(r"^alter table (?:only )?\w+\.(\w+)", re.MULTILINE)


def migrate(dsn: str, contract: bool = False, *, folder: Path = SQL, schema: str = PENSTOCK) -> list[str]:
    """Bring the database to this version. Returns the names of the migrations it ran.

    Safe to repeat, to run beside traffic, and to run from several processes at once. Contract migrations wait
    for `contract=True`.
    """
    source = read(folder, schema)
    with connect(dsn) as connection:
        if patiently(lambda: _is_current(connection, source, contract)):
            return []
        with only_migrator(dsn):
            return _Migration(connection, source, contract).run()


def _is_current(connection: Connection, source: Source, contract: bool) -> bool:
    """Whether there is nothing to do. Only reads."""
    with connection.transaction():
        execute(connection, "set local search_path = pg_catalog, pg_temp")
        if is_fresh(connection, source.schema):
            return False
        if source.pending(applied_migrations(connection, source), contract=contract):
            return False
        records = read_records(connection, source.schema)
        if not records.has_files(source) or records.differing(source.units, read_live(connection, source)):
            return False
        _refuse_breaches(connection, source)
    return True


class _Migration:
    """One run, by the only migrator."""

    def __init__(self, connection: Connection, source: Source, contract: bool) -> None:
        self.connection = connection
        self.source = source
        self.everything = contract or patiently(lambda: is_fresh(connection, source.schema))
        self.done: list[str] = []
        self._texts = {file.name: file.text for file in source.code}

    def run(self) -> list[str]:
        while alone := patiently(self._advance):
            patiently(lambda file=alone: self._run_alone(file))
        for _, policies in groupby(self._policies, key=lambda unit: unit.table):
            patiently(lambda of=list(policies): self._change_policies(of))
        if self._policies:
            patiently(self._finish)
        return self.done

    def _advance(self) -> File | None:
        """Change everything that belongs into one transaction.

        Returns the next migration that may not run in a transaction, if there is one.
        """
        ran: list[str] = []
        policies: list[Unit] = []
        alone = None
        with self.connection.transaction():
            execute(self.connection, prologue(self.source.schema, lock=False))
            runner = Runner(self.connection)
            applied = applied_migrations(self.connection, self.source)
            pending = self.source.pending(applied, contract=self.everything)
            self._lock_altered(runner, pending)
            for file in pending:
                if not file.is_transactional:
                    alone = file
                    break
                for statement in split(file.name, file.text):
                    runner.run(statement, file.text)
                execute(self.connection, record(self.source.schema, file))
                ran.append(file.name)
            else:
                policies = self._change_code(runner)
                if ran or self.done:
                    self._number_rows()
        self.done += ran
        self._policies = policies
        return alone

    def _lock_altered(self, runner: Runner, pending: Iterable[File]) -> None:
        """Lock the tables that migrations alter, and the views, before anything else is locked.

        A transaction of a worker that waits for one of them may have used another: altering one after the
        other would wait for it until both give up. Views come first, because a reader uses a view and then
        its tables; of the tables jobs, because starts use it first.
        """
        together = takewhile(lambda file: file.is_transactional, pending)
        named = {name for file in together for name in _ALTERED.findall(file.text)}
        schema = self.source.schema
        found = dict(
            rows(
                self.connection,
                "select c.relname, c.relkind from pg_class c where c.relkind in ('r', 'v')"
                f" and c.relnamespace = to_regnamespace('{schema}')",
            )
        )
        tables = sorted(named & found.keys(), key=lambda name: (name != "jobs", name))
        if tables:
            for view in sorted(name for name, kind in found.items() if kind == "v"):
                # LOCK TABLE would lock the tables of the view as well; every view has this option already.
                runner.lock(f"alter view {schema}.{view} set (security_invoker = true)")
            listed = ", ".join(f"{schema}.{name}" for name in tables)
            runner.lock(f"lock table {listed} in access exclusive mode")

    def _run_alone(self, file: File) -> None:
        for statement in split(file.name, file.text):
            try:
                execute(self.connection, statement.text)
            except psycopg.Error as error:
                error.add_note(f"in {file.name}")
                raise
        execute(self.connection, record(self.source.schema, file))
        self.done.append(file.name)

    def _change_code(self, runner: Runner) -> list[Unit]:
        """Change functions, views, grants and triggers, and the policies of tables that are locked anyway.

        Returns the other policies to change.
        """
        self._apply(runner, self._differing("function", "statement"))
        self._apply(runner, self._differing("view"))
        # Functions and views that are new are everybody's, until the grants take that away.
        for unit in self._differing("grants"):
            privileges.change(self.connection, lambda of=unit: self._apply(runner, [of]))
        self._apply(runner, sorted(self._differing("trigger"), key=lambda unit: (unit.table, unit.key)))
        policies = sorted(self._differing("policy"), key=lambda unit: (unit.table, unit.key))
        # An app's are checked for breaches before anything of it is committed.
        locked = (
            self._locked_tables() if self.source.schema == PENSTOCK else {unit.table for unit in policies}
        )
        self._apply(runner, (unit for unit in policies if unit.table in locked))
        later = [unit for unit in policies if unit.table not in locked]
        record_code(self.connection, self.source, unfinished=later)
        _refuse_breaches(self.connection, self.source)
        return later

    def _number_rows(self) -> None:
        """Give new tables the range of row numbers of this cell, before anything is written to them."""
        found = "select to_regprocedure('penstock._number_rows(integer)') is not null"
        if rows(self.connection, found)[0][0]:
            number = "(select value::text::integer from penstock.settings where name = 'cell')"
            execute(self.connection, f"select penstock._number_rows({number})")

    def _change_policies(self, policies: list[Unit]) -> None:
        with self.connection.transaction():
            execute(self.connection, prologue(self.source.schema, lock=False))
            self._apply(Runner(self.connection), policies)

    def _finish(self) -> None:
        with self.connection.transaction():
            execute(self.connection, prologue(self.source.schema, lock=False))
            record_code(self.connection, self.source)

    def _differing(self, *kinds: str) -> list[Unit]:
        units = [unit for unit in self.source.units if unit.kind in kinds]
        records = read_records(self.connection, self.source.schema)
        return records.differing(units, read_live(self.connection, self.source)) if units else []

    def _apply(self, runner: Runner, units: Iterable[Unit]) -> None:
        for unit in units:
            for statement in repeatable(unit):
                may_lock = unit.kind not in ("function", "grants")
                runner.run(statement, self._texts[statement.file], may_lock=may_lock)

    def _locked_tables(self) -> set[str]:
        """The tables on which this transaction has the strongest lock: new ones, and those it has altered."""
        query = """
            select n.nspname || '.' || c.relname
            from pg_locks l
            join pg_class c on c.oid = l.relation
            join pg_namespace n on n.oid = c.relnamespace
            where l.pid = pg_backend_pid() and l.mode = 'AccessExclusiveLock' and l.granted
              and l.database = (select oid from pg_database where datname = current_database())"""
        return {name for (name,) in rows(self.connection, query)}


def _refuse_breaches(connection: Connection, source: Source) -> None:
    # Tests, and the picture, cover Penstock's own schema.
    if source.schema != PENSTOCK and (found := breaches(connection, source.schema)):
        raise NotMigrated(
            f"What schema {source.schema} gives away: {'; '.join(found)}.",
            code="unsafe_schema",
            hint="Nothing of it was applied. See docs/sdk.md, SQL of your own.",
        )


def breaches(connection: psycopg.Connection[Any], schema: str = PENSTOCK) -> list[str]:
    """What in a schema can be read, written or called by roles that should not, one line each."""
    with connection.cursor(row_factory=tuple_row) as cursor:
        query = (SQL / "breaches.sql").read_bytes()
        return [line for (line,) in cursor.execute(query, {"schema": schema}).fetchall()]
