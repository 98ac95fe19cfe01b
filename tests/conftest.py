"""Fixtures only: short names for those of `penstock.testing`, and which PostgreSQL each test runs on.

`PENSTOCK_TEST_PG` is a version (15, 16, 18: everything runs on that one; 18 by default), `all` (everything on
15 and 18), or `contract` (everything on 18, and what speaks SQL on 15 as well; `make test-all` uses this).
"""

from __future__ import annotations

import asyncio
import gc
import importlib
import inspect
import json
import logging
import os
import re
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, nullcontext, suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, TypeAlias

import pytest
import structlog

from penstock import App, Worker, cli, testing
from penstock.errors import PenstockError
from penstock.postgres import db
from penstock.sources.delimited import Delimited
from penstock.sources.source import Source

pytest_plugins = ["pytester"]
SLOW_FILE = re.compile(r"^pytestmark = (\[[^\]]*)?pytest\.mark\.slow\b", re.MULTILINE)

# Importing the tests makes a million objects that stay: looking through them often takes a tenth of the CPU time.
gc.set_threshold(20_000, 20, 20)

# A shell that starts the tests in the background ignores Ctrl-C, and programs inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    with suppress(ValueError):  # not in the main thread
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_report_header() -> str:
    found = ", ".join(str(major) for major in (15, 18) if _is_here(major))
    return f"PostgreSQL: {found} found; PENSTOCK_TEST_PG={_wanted()}"


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not even import a file that is slow as a whole, where slow tests are left out."""
    if config.getoption("markexpr") != "not slow" or not collection_path.match("test_*.py"):
        return None
    return True if SLOW_FILE.search(collection_path.read_text()) else None


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "penstock_server" in metafunc.fixturenames:
        majors = _majors(speaks_sql=_speaks_sql(metafunc))
        ids = [f"pg{major}" for major in majors]
        metafunc.parametrize("penstock_server", majors, indirect=True, ids=ids, scope="session")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what runs on PostgreSQL 15, so that `make test` can leave it to `make test-all`."""
    for item in items:
        callspec = getattr(item, "callspec", None)
        if callspec is not None and callspec.params.get("penstock_server") == 15:
            item.add_marker("postgres15")


def pytest_collection_finish() -> None:
    """Keep modules and tests, which stay until the end, out of every later garbage collection."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run `async def` tests."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in inspect.signature(pyfuncitem.obj).parameters}
    asyncio.run(pyfuncitem.obj(**arguments))
    return True


@pytest.fixture(autouse=True)
def plain_logs() -> Iterator[None]:
    """Restore logging: the CLI configures it for its process, which here is the test's."""
    yield
    structlog.reset_defaults()
    ours = logging.getLogger("penstock")
    ours.handlers, ours.propagate = [], True


@pytest.fixture(autouse=True)
def own_imports(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Forget the modules that a test wrote and imported, and what it added to the import path.

    `penstock init` refuses the name of a module that can be imported, and each app needs its own tasks.
    """
    path, known = sys.path[:], len(sys.modules)
    yield
    sys.path[:] = path
    written = str(tmp_path_factory.getbasetemp())
    for name in list(islice(reversed(sys.modules), max(0, len(sys.modules) - known))):
        module = getattr(sys.modules[name], "__dict__", {})
        places = [module.get("__file__"), *module.get("__path__", ())]
        if any(str(place).startswith(written) for place in places):
            del sys.modules[name]


@pytest.fixture
def server_upkeep() -> None:
    """Servers run upkeep in the background, as they do outside of tests."""


@pytest.fixture(autouse=True)
def no_server_upkeep(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server in a test changes nothing in the background, unless the test asks for `server_upkeep`."""
    if "server_upkeep" not in request.fixturenames:
        monkeypatch.setattr("penstock.api.standby", lambda *_: nullcontext())


@pytest.fixture
def file_reads(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Records for each opened file and each CSV row read whether it happened on an event loop."""
    found: list[bool] = []
    opened: Any = Source.__init__
    read: Any = Delimited._records

    def note() -> None:
        found.append(asyncio._get_running_loop() is not None)

    def open_noted(self: Any, *arguments: Any) -> None:
        note()
        opened(self, *arguments)

    def read_noted(self: Any) -> Iterator[Any]:
        for record in read(self):
            note()
            yield record

    monkeypatch.setattr(Source, "__init__", open_noted)
    monkeypatch.setattr(Delimited, "_records", read_noted)
    return found


def _wanted() -> str:
    return os.environ.get("PENSTOCK_TEST_PG") or "18"


def _majors(speaks_sql: bool) -> list[int]:
    wanted = _wanted()
    if wanted == "all" or (wanted == "contract" and speaks_sql):
        return [major for major in (15, 18) if _is_here(major)]
    return [18] if wanted == "contract" else [int(wanted)]


def _speaks_sql(metafunc: pytest.Metafunc) -> bool:
    is_marked = metafunc.definition.get_closest_marker("every_postgres") is not None
    return is_marked or metafunc.definition.path.is_relative_to(Path(__file__).parent / "sql")


def _is_here(major: int) -> bool:
    try:
        return testing.binaries(major).exists()
    except PenstockError:
        return False


@pytest.fixture(scope="session")
def server(penstock_server: testing.Server) -> testing.Server:
    return penstock_server


@pytest.fixture
def penstock_db(
    request: pytest.FixtureRequest, penstock_server: testing.Server
) -> Iterator[testing.Database]:
    """As the plugin's fixture; with the SQL of the app that a test is marked with."""
    marker = request.node.get_closest_marker("own_sql")
    with penstock_server.database(marker.args[0].own if marker else None) as database:
        yield database


@pytest.fixture(name="db")
def _db(penstock_db: testing.Database) -> testing.Database:
    return penstock_db


@pytest.fixture
def conn(penstock_conn: db.SyncConnection) -> db.SyncConnection:
    return penstock_conn


@pytest.fixture
def clock(penstock_clock: testing.Clock) -> testing.Clock:
    return penstock_clock


@pytest.fixture
def tenant(penstock_tenant: uuid.UUID) -> uuid.UUID:
    return penstock_tenant


class Eventually:
    """Waits until a condition returns a true value, and returns it; fails after a timeout."""

    SECONDS = 60

    def __call__(self, condition: Callable[[], Any], what: str = "") -> Any:
        deadline = time.monotonic() + self.SECONDS
        while not (found := condition()):
            assert time.monotonic() < deadline, f"not within {self.SECONDS} s: {what or condition}"
            time.sleep(0.01)
        return found

    async def aio(self, condition: Callable[[], Any], what: str = "") -> Any:
        deadline = time.monotonic() + self.SECONDS
        while True:
            found = condition()
            found = await found if inspect.isawaitable(found) else found
            if found:
                return found
            assert time.monotonic() < deadline, f"not within {self.SECONDS} s: {what or condition}"
            await asyncio.sleep(0.01)


@pytest.fixture
def eventually() -> Eventually:
    return Eventually()


@asynccontextmanager
async def running(app: App, **options: Any) -> AsyncIterator[Worker]:
    """A worker in this loop, stopped at the end."""
    worker = Worker(app, **{"grace_seconds": 5, **options})
    task = asyncio.create_task(worker.run())
    async with app:
        try:
            yield worker
        finally:
            worker.stop()
            await task


@pytest.fixture
def workload(db: testing.Database, drain: testing.Drain, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module `workload.py` on the test's database, with its tables."""
    monkeypatch.syspath_prepend(Path(__file__).parent)
    module = importlib.import_module("workload")
    db.execute(module.TABLES)
    drain.use(module.app)
    return module


@pytest.fixture
def start_worker(workload: Any, db: testing.Database, tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Starts a worker of the workload's app in a process, with the options of `penstock.worker.run`."""
    started: list[subprocess.Popen[str]] = []
    script = (
        "import json, sys; sys.path.insert(0, sys.argv[1]); import workload; from penstock import worker; "
        "sys.exit(worker.run(workload.app, **json.loads(sys.argv[2])))"
    )

    def start(dsn: str | None = None, **options: Any) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", script, str(Path(__file__).parent), json.dumps(options)]
        with (tmp_path / f"worker-{len(started)}.log").open("w") as log:
            environment = {**os.environ, "DATABASE_URL": dsn or db.dsn, "PENSTOCK_ALLOW_UNSAFE": "1"}
            process = subprocess.Popen(
                command, env=environment, stdout=log, stderr=subprocess.STDOUT, text=True, process_group=0
            )
        started.append(process)
        return process

    yield start
    for number, process in enumerate(started):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        print(f"--- worker {number} ---", (tmp_path / f"worker-{number}.log").read_text(), sep="\n")


@dataclass(frozen=True)
class CommandResult:
    """Output and exit code of a command."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The printed document of a command that succeeded."""
        assert self.code == 0, self.err
        return self.document

    @property
    def document(self) -> Any:
        """The printed document, whatever the exit code."""
        return json.loads(self.out)

    @property
    def problem(self) -> Any:
        return json.loads(self.err)

    @property
    def refusal(self) -> tuple[int, str]:
        """Exit code and error code of a command that printed nothing else."""
        assert self.out == ""
        return self.code, self.problem["code"]


Command: TypeAlias = Callable[..., CommandResult]


@pytest.fixture
def penstock(db: testing.Database, capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs the program in this process on the test's database."""

    def run(*arguments: object) -> CommandResult:
        capsys.readouterr()
        code = cli.execute(["--database", db.dsn, *map(str, arguments)])
        out, err = capsys.readouterr()
        return CommandResult(code, out, err)

    return run


@pytest.fixture
def drain(penstock_drain: testing.Drain) -> testing.Drain:
    return penstock_drain
