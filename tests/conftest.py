"""Fixtures only: short names for those of `penstock.testing`, and which PostgreSQL each test runs on.

`PENSTOCK_TEST_PG` is a version (15, 16, 18: everything runs on that one; 18 by default), `all` (everything on
15 and 18), or `contract` (everything on 18, and what speaks SQL on 15 as well; `make test` uses this).
"""

from __future__ import annotations

import asyncio
import inspect
import os
import uuid
from pathlib import Path

import pytest

from penstock import db, testing
from penstock.errors import PenstockError

pytest_plugins = ["pytester"]


def pytest_report_header() -> str:
    found = ", ".join(str(major) for major in (15, 18) if _is_here(major))
    return f"PostgreSQL: {found} found; PENSTOCK_TEST_PG={_wanted()}"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "penstock_server" in metafunc.fixturenames:
        majors = _majors(speaks_sql=_speaks_sql(metafunc))
        ids = [f"pg{major}" for major in majors]
        metafunc.parametrize("penstock_server", majors, indirect=True, ids=ids, scope="session")


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run `async def` tests."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in inspect.signature(pyfuncitem.obj).parameters}
    asyncio.run(pyfuncitem.obj(**arguments))
    return True


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


@pytest.fixture
def drain(penstock_drain: testing.Drain) -> testing.Drain:
    return penstock_drain
