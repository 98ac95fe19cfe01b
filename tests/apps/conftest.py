"""Fixtures of the tests of apps: libraries and devices of notes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from penstock import testing
from penstock.apps.notes.app import app
from penstock.apps.notes.device import Store
from tests.apps.notes_library import Library, join
from tests.apps.notes_store import Ticking


@pytest.fixture(scope="session")
def notes_db(penstock_server: testing.Server) -> Iterator[testing.Database]:
    """One database with the SQL of notes for all tests that use it, each with a user of its own."""
    with penstock_server.database(app.own) as database:
        yield database


@pytest.fixture
def library(notes_db: testing.Database) -> Library:
    return join(notes_db)


@pytest.fixture
def own_library(db: testing.Database) -> Library:
    """A library in a database of its own, for tests that change its clock or gates and are marked `own_sql`."""
    return join(db)


@pytest.fixture
def store() -> Iterator[Store]:
    """A device without a file."""
    made = Store(now_ms=Ticking())
    yield made
    made.close()
