"""Connections of the migrator, and how it waits for others."""

from __future__ import annotations

import hashlib
import random
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any, TypeAlias, TypeVar

import psycopg
from psycopg.rows import tuple_row

from penstock.errors import NotMigrated, Unavailable
from penstock.postgres.migrate.statements import Statement

_Result = TypeVar("_Result")
Connection: TypeAlias = psycopg.Connection[tuple[Any, ...]]
AnyConnection: TypeAlias = psycopg.Connection[Any]

LOCK_KEY = int.from_bytes(hashlib.sha256(b"penstock.postgres.migrate").digest()[:8], signed=True)
_PATIENCE_SECONDS = 90.0
# A lock that others hold, a deadlock, or another database of the same server that changes the same role.
_TRANSIENT = {"55P03", "40P01", "XX000"}


def connect(dsn: str) -> Connection:
    try:
        connection = psycopg.connect(
            dsn, autocommit=True, prepare_threshold=None, application_name="penstock migrate"
        )
    except psycopg.OperationalError as error:
        raise Unavailable(f"The database cannot be reached: {error}") from error
    # The driver returns bytes instead of text in this encoding: no applied migration would be recognized.
    if connection.info.parameter_status("server_encoding") == "SQL_ASCII":
        connection.close()
        raise NotMigrated(
            "The encoding of the database must be UTF8 (got SQL_ASCII).",
            hint="Create it with: create database NAME encoding 'UTF8' template template0.",
        )
    return connection


@contextmanager
def only_migrator(dsn: str) -> Generator[None]:
    """Keep other migrators out, across all transactions of this one.

    A second connection holds the lock. Its transaction is idle and has no snapshot, so no index build waits
    for it.
    """
    with connect(dsn) as guard, guard.transaction():
        execute(
            guard,
            "select set_config(name, '0', true) from pg_settings"
            " where name in ('idle_in_transaction_session_timeout', 'transaction_timeout')",
        )
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while not value(guard, f"select pg_try_advisory_xact_lock({LOCK_KEY})"):
            if time.monotonic() > deadline:
                raise NotMigrated(
                    "Another process is still migrating this database.", hint="Try again later."
                )
            time.sleep(random.uniform(0.02, 0.1))
        yield


def patiently(work: Callable[[], _Result]) -> _Result:
    """Repeat the work, a whole transaction, as long as others are in its way."""
    deadline = time.monotonic() + _PATIENCE_SECONDS
    is_first = True
    while True:
        try:
            return work()
        except psycopg.Error as error:
            # Roles belong to the server: another database's migration may have just created the same one.
            is_race = error.sqlstate in ("42710", "23505") and is_first
            if time.monotonic() > deadline or not (is_race or error.sqlstate in _TRANSIENT):
                place = "".join(f" ({note})" for note in getattr(error, "__notes__", []))
                raise NotMigrated(
                    f"The migration failed: {error.diag.message_primary or error}{place}"
                ) from error
        is_first = False
        time.sleep(random.uniform(0.05, 0.5))


class Runner:
    """Runs the statements of a transaction, and bounds how long each may wait for a lock.

    Others that wait for a lock of ours look for a deadlock after `deadlock_timeout`, by default a second, and
    fail if they find one. So a transaction that has held locks for a while hardly waits for more: it fails
    first, and is repeated.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._since: float | None = None
        self._wait = ""

    def run(self, statement: Statement, text: str, *, may_lock: bool = True) -> None:
        """Run one statement of a file; `text` is the whole file, to name the line of an error."""
        now = time.monotonic()
        if may_lock:
            self._since = self._since or now
        self._wait_at_most("200ms" if self._since is None or now - self._since < 0.5 else "20ms")
        try:
            execute(self._connection, statement.text)
        except psycopg.Error as error:
            place = statement.start + int(error.diag.statement_position or 1) - 1
            error.add_note(f"in {statement.file}, line {text.count(chr(10), 0, place) + 1}")
            raise

    def lock(self, statement: str) -> None:
        """Lock tables while nothing else is locked."""
        self._wait_at_most("200ms")
        execute(self._connection, statement)

    def _wait_at_most(self, wait: str) -> None:
        if wait != self._wait:
            execute(self._connection, f"set local lock_timeout = '{wait}'")
            self._wait = wait


def execute(connection: AnyConnection, query: str) -> None:
    connection.execute(query.encode())


def value(connection: AnyConnection, query: str) -> Any:
    found = rows(connection, query)
    return found[0][0] if found else None


def rows(connection: AnyConnection, query: str) -> list[tuple[Any, ...]]:
    with connection.cursor(row_factory=tuple_row) as cursor:
        return cursor.execute(query.encode()).fetchall()
