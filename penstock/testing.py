"""A pytest plugin: tests on a real PostgreSQL with Penstock's schema and a controllable clock.

    def test_reminder_is_sent_after_a_day(penstock_db, penstock_clock, penstock_tenant):
        penstock_clock.advance(days=1)
        ...

`penstock_db`      a new database at `.dsn`, cloned from a migrated template (about 20 ms)
`penstock_conn`    a connection whose transaction is rolled back (about 1 ms): no NOTIFY, no second session
`penstock_clock`   sets Penstock's clock in that database, for all its sessions
`penstock_tenant`  the id of a new tenant
`penstock_drain`   runs an app's tasks: `penstock_drain(app)`, or `await penstock_drain.arun(app)`
`penstock_server`  the server; `PENSTOCK_TEST_PG` sets its version (default 18, the embedded one)

The server starts on first use, is shared by all pytest processes of the user that have the same PostgreSQL
programs, and stops with the last one. It runs without fsync, because test data need not survive a crash.
"""

from __future__ import annotations

import asyncio
import gc
import hashlib
import json
import os
import re
import select
import shutil
import tempfile
import threading
import time
import uuid
import warnings
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Protocol

import pytest

from penstock.errors import PenstockError
from penstock.postgres import db, embedded, migrate
from penstock.sdk.app import App
from penstock.worker import Worker

_SETTINGS = {
    "fsync": "off",
    "full_page_writes": "off",
    "wal_level": "minimal",
    "max_wal_senders": "0",
    # A vacuum would block copying and dropping databases.
    "autovacuum": "off",
    "max_connections": "300",
    "shared_buffers": "256MB",
}

_CLOCK = """
create schema penstock_test;
create table penstock_test.clock (shift interval not null, frozen_at timestamptz);
insert into penstock_test.clock values ('0', null);
grant usage on schema penstock_test to public;
grant select on penstock_test.clock to public;
create or replace function penstock._now() returns timestamptz language sql volatile as
  $$ select coalesce(frozen_at, clock_timestamp()) + shift from penstock_test.clock $$;
"""
# Tests of an app are not about the limits of the free plan.
_PLAN = """update penstock.settings set value = '"unlimited"' where name = 'tenant_plan'"""


# A statement that changes its session gets its own session.
_CHANGES_SESSION = re.compile(
    r"(^|;)\s*(set|reset|listen|begin|start|discard|load|prepare|declare)\b|set_config|\btemp|advisory_lock",
    re.IGNORECASE,
)


class Executor(Protocol):
    """A database or a connection."""

    def execute(self, query: Any, params: Any = None, /) -> Iterable[db.Row]: ...


@dataclass
class Database:
    """A database for one test."""

    server: Server
    name: str
    _opened: list[db.SyncConnection] = field(default_factory=list[db.SyncConnection])
    _kept: db.SyncConnection | None = None
    _kept_by: int = 0
    _using_kept: threading.Lock = field(default_factory=threading.Lock)

    @property
    def dsn(self) -> str:
        return self.server.dsn(self.name)

    @property
    def tcp_dsn(self) -> str:
        """The URL over loopback TCP, for clients without support for Unix sockets."""
        return self.server.dsn(self.name, tcp=True)

    def connect(self) -> db.SyncConnection:
        """Open a connection that is closed when the test ends. It commits each statement; rows are dicts."""
        self._opened.append(db.connect(self.dsn, name="test"))
        return self._opened[-1]

    def execute(self, query: str, params: Any = None) -> list[db.Row]:
        """Run one statement and commit. Returns its rows.

        Statements share a connection, because a new one plans every function again. A statement that changes
        its session, or runs while another thread uses the connection, gets a new one.
        """
        if _CHANGES_SESSION.search(query) or not self._using_kept.acquire(blocking=False):
            with db.connect(self.dsn, name="test") as connection:
                return _execute(connection, query, params)
        try:
            return _execute(self.keep_connection(), query, params)
        finally:
            self._using_kept.release()

    def keep_connection(self) -> db.SyncConnection:
        """The connection that statements share; a new one in a forked process, or if the server closed it."""
        if self._kept is None or self._kept_by != os.getpid() or not _is_open(self._kept):
            self._kept, self._kept_by = db.connect(self.dsn, name="test"), os.getpid()
        return self._kept

    def disconnect(self) -> None:
        """Close the connections from `connect` and of `execute`."""
        for connection in (*self._opened, *([self._kept] if self._kept is not None else [])):
            connection.close()

    def close(self) -> None:
        """Disconnect, and fail if the test left any other connection open."""
        self.disconnect()
        if left := self.server.connections(self.name):
            pytest.fail(f"connections left open: {', '.join(left)}", pytrace=False)


def _execute(connection: db.SyncConnection, query: str, params: Any) -> list[db.Row]:
    cursor = connection.execute(query.encode(), params)
    return cursor.fetchall() if cursor.description else []


def _is_open(connection: db.SyncConnection) -> bool:
    """Whether the server has sent nothing since the last statement: it sends an error when it closes."""
    if connection.closed:
        return False
    incoming = select.poll()
    incoming.register(connection.fileno(), select.POLLIN)
    if incoming.poll(0):
        connection.close()
        return False
    return True


@dataclass(frozen=True)
class Clock:
    """Penstock's clock in a test database. It runs until it is frozen."""

    database: Executor

    def advance(self, **duration: float) -> None:
        """Advance the clock: `clock.advance(minutes=5)`. Accepts the arguments of timedelta."""
        self._set("shift = shift + %s", timedelta(**duration))

    def freeze(self, at: datetime | None = None) -> None:
        """Stop the clock now or at a given time. `advance` still works."""
        if at is None:
            at = self.now()
        self._set("shift = '0', frozen_at = %s", at)

    def now(self) -> datetime:
        return next(iter(self.database.execute("select penstock._now() as now")))["now"]

    def _set(self, change: str, value: object) -> None:
        self.database.execute(f"update penstock_test.clock set {change}", [value])  # noqa: S608 our own two texts


class Server:
    """A PostgreSQL server for tests, and its databases."""

    def __init__(self, major: int) -> None:
        self.major = major
        programs = binaries(major)
        # A server fails once its programs are removed, so environments share one only if they share these.
        digest = hashlib.sha256(json.dumps([_SETTINGS, str(programs)]).encode()).hexdigest()[:8]
        folder = _fast_folder() / f"penstock-pytest-{os.getuid()}" / f"{major}-{digest}"
        self._cluster = embedded.Cluster(folder, programs, _SETTINGS)
        self._connection: db.SyncConnection | None = None
        self._templates: dict[migrate.Own | None, str] = {}

    @property
    def folder(self) -> Path:
        """The folder of the server's files. Servers with the same folder are one."""
        return self._cluster.folder

    def open(self) -> None:
        """Start or join the server. The first process removes the data of a killed run."""
        with self._cluster.starting():
            if self._cluster.is_alone():
                self._cluster.discard()
            self._cluster.join()
        self._cluster.start()

    def close(self) -> None:
        """Leave the server. The last process stops it and removes its data."""
        if self._connection is not None:
            self._connection.close()
        self._cluster.leave(discard=True)

    def dsn(self, name: str, *, tcp: bool = False) -> str:
        return self._cluster.dsn(name, tcp=tcp)

    def create(self, template: str | None = None) -> str:
        """Create a database, empty or from a template. Returns its name."""
        name = f"penstock_test_{os.getpid()}_{uuid.uuid4().hex[:12]}"
        # Copying files is faster than the default here, because checkpoints without fsync are cheap.
        self._admin(
            f"create database {name} " + (f"template {template} strategy file_copy" if template else "")
        )
        return name

    @contextmanager
    def database(self, own: migrate.Own | None = None) -> Generator[Database]:
        """A new database with the schema, the tests' clock and an app's own SQL, dropped at the end."""
        made = Database(self, self.create(self.template(own)))
        try:
            yield made
            made.close()
        finally:
            made.disconnect()
            self.drop(made.name)

    def drop(self, name: str) -> None:
        self._admin(f"drop database if exists {name} with (force)")

    def template(self, own: migrate.Own | None = None) -> str:
        """The name of a migrated template with the tests' clock, built once for each version of its SQL."""
        if own not in self._templates:
            base = self.template() if own is not None else None
            name = f"penstock_template_{self._digest(own)}"
            with self._cluster.starting():
                if not self._exists(name):
                    self._build(name, base, own)
            self._templates[own] = name
        return self._templates[own]

    def connections(self, name: str) -> list[str]:
        """Open connections to a database, after waiting up to 3 seconds for closing ones."""
        began = time.monotonic()
        collected = began
        while True:
            query = f"select application_name as name, state from pg_stat_activity where datname = '{name}'"  # noqa: S608 our own name
            found = [f"{row['name']} ({row['state']})" for row in self._admin(query)]
            now = time.monotonic()
            if not found or now - began > 3:
                return found
            # A closed connection takes the server some milliseconds, and a collection takes up to a second.
            if now - collected > 0.2:
                _collect_garbage()
                collected = time.monotonic()
            time.sleep(0.005)

    def _build(self, name: str, base: str | None, own: migrate.Own | None) -> None:
        partial = f"{name}_new"
        self.drop(partial)
        self._admin(f"create database {partial}" + (f" template {base} strategy file_copy" if base else ""))
        if own is not None:
            migrate.migrate(self.dsn(partial), folder=own.folder, schema=own.schema)
        else:
            migrate.migrate(self.dsn(partial))
            with db.connect(self.dsn(partial)) as connection:
                connection.execute(_CLOCK.encode())
                connection.execute(_PLAN.encode())
        self._admin(f"alter database {partial} rename to {name}")

    def _digest(self, own: migrate.Own | None) -> str:
        sources = [migrate.read(), *([migrate.read(own.folder, own.schema)] if own is not None else [])]
        files = [(f.name, f.sha256) for source in sources for f in (*source.migrations, *source.code)]
        text = json.dumps([files, own.schema if own is not None else None]) + _CLOCK + _PLAN
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def _exists(self, name: str) -> bool:
        return bool(self._admin(f"select 1 from pg_database where datname = '{name}'"))  # noqa: S608 our own name

    def _admin(self, statement: str) -> list[db.Row]:
        if self._connection is None or self._connection.closed:
            self._connection = db.connect(self.dsn("postgres"), name="penstock.testing")
        cursor = self._connection.execute(statement.encode())
        return cursor.fetchall() if cursor.description else []


def _collect_garbage() -> None:
    """Close what only the garbage collector closes: connections whose opening was canceled."""
    # Sockets of other libraries that are found with them are not this test's matter.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


def _fast_folder() -> Path:
    """A folder in memory if there is enough, where cloning takes a third of the time."""
    memory = Path("/dev/shm")  # noqa: S108 the folder in it is made with mode 0700
    if memory.is_dir() and os.access(memory, os.W_OK) and shutil.disk_usage(memory).free > 4 << 30:
        return memory
    return Path(tempfile.gettempdir())


def binaries(major: int) -> Path:
    """The folder with the binaries of this PostgreSQL version: from the wheel or from Debian."""
    found = Path(f"/usr/lib/postgresql/{major}/bin")
    if major in (16, 18):
        return embedded.binaries(major)
    if not (found / "postgres").exists():
        raise PenstockError(
            f"PostgreSQL {major} is not installed", hint=f"On Debian: apt install postgresql-{major}"
        )
    return found


_servers: dict[int, Server] = {}


def server(major: int) -> Server:
    """The running server of this version, shared by the whole process."""
    if major not in _servers:
        opened = Server(major)
        opened.open()
        _servers[major] = opened
    return _servers[major]


def close_servers() -> None:
    """Leave all servers."""
    while _servers:
        _servers.popitem()[1].close()


def pytest_unconfigure() -> None:
    close_servers()


@pytest.fixture(scope="session")
def penstock_server(request: pytest.FixtureRequest) -> Server:
    """The server of the version in `PENSTOCK_TEST_PG` or of the fixture's parameter."""
    return server(int(getattr(request, "param", os.environ.get("PENSTOCK_TEST_PG") or "18")))


@pytest.fixture
def penstock_db(penstock_server: Server) -> Generator[Database]:
    """A new database with the schema and the tests' clock."""
    with penstock_server.database() as database:
        yield database


@pytest.fixture(scope="session")
def penstock_shared_db(penstock_server: Server) -> Generator[Database]:
    """The database behind `penstock_conn`. Nothing is ever committed there."""
    with penstock_server.database() as database:
        yield database


@pytest.fixture
def penstock_conn(penstock_shared_db: Database) -> Generator[db.SyncConnection]:
    """A connection inside a transaction that is rolled back. Rows are dicts.

    Wrap a statement that is expected to fail in `with conn.transaction():`, which creates a savepoint. Tests
    use one connection in turn, so that it knows the functions: the rollback also undoes `set`.
    """
    connection = penstock_shared_db.keep_connection()
    # Plans that another test's rows led to would be slow here.
    connection.execute("discard plans")
    with connection.transaction(force_rollback=True):
        yield connection


@pytest.fixture
def penstock_clock(request: pytest.FixtureRequest) -> Clock:
    """The clock of `penstock_db`, or of `penstock_conn` in a test without it."""
    return Clock(_executor(request))


@pytest.fixture
def penstock_tenant(request: pytest.FixtureRequest) -> uuid.UUID:
    """The id of a new tenant in `penstock_db`, or on `penstock_conn` in a test without it."""
    rows = _executor(request).execute("select penstock.create_tenant('test') as id")
    return next(iter(rows))["id"]


class Drain:
    """Runs an app's tasks in the test's database until no task can run now.

    Tasks that wait for a later time, such as retries, stay: advance the clock and drain again.
    """

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._apps: list[App] = []

    def __call__(self, app: App, **options: Any) -> None:
        """Run the app's tasks. Accepts the options of `Worker`."""
        asyncio.run(self._run_and_close(app, options))

    async def arun(self, app: App, **options: Any) -> None:
        """Run the app's tasks in the running event loop."""
        self.use(app)
        await Worker(app, drain=True, **options).run()

    def use(self, app: App) -> App:
        """Connect the app to the test's database. Its connections are closed when the test ends."""
        app.use(self._dsn)
        self._apps.append(app)
        return app

    async def _run_and_close(self, app: App, options: dict[str, Any]) -> None:
        async with app:
            await self.arun(app, **options)

    def close(self) -> None:
        for app in self._apps:
            app.close()


@pytest.fixture
def penstock_drain(penstock_db: Database, monkeypatch: pytest.MonkeyPatch) -> Generator[Drain]:
    """Runs an app's tasks in `penstock_db`."""
    monkeypatch.setenv("PENSTOCK_ALLOW_UNSAFE", "1")
    drain = Drain(penstock_db.dsn)
    yield drain
    drain.close()


def _executor(request: pytest.FixtureRequest) -> Executor:
    own = "penstock_db" in request.fixturenames
    return request.getfixturevalue("penstock_db" if own else "penstock_conn")
