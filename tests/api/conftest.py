"""The whole application on the test's own database, and its callers."""

from __future__ import annotations

import socket
import threading
import time
import uuid
from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jwt
import pytest
import uvicorn
from fastapi import FastAPI
from fastapi.testclient import TestClient

from penstock import api, testing
from penstock.api.limits import Limits
from penstock.server import ensure_login
from penstock.settings import Settings

SECRET = "a secret of the tests, of more than 32 bytes"  # noqa: S105 it opens a test database
ISSUER = "https://tests.example/auth/v1"


def claims(sub: uuid.UUID | str | None, **others: Any) -> dict[str, Any]:
    """The claims of a user's token; None leaves a claim out."""
    now = int(time.time())
    every = {
        "iss": ISSUER,
        "aud": "authenticated",
        "role": "authenticated",
        "sub": None if sub is None else str(sub),
        "iat": now,
        "exp": now + 600,
        **others,
    }
    return {name: value for name, value in every.items() if value is not None}


def token(sub: uuid.UUID | str | None, *, secret: str = SECRET, **others: Any) -> str:
    """A user's token, as Supabase signs it with the project's secret."""
    return jwt.encode(claims(sub, **others), secret, "HS256")


def bearer(credential: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {credential}"}


@dataclass
class Person:
    """A user with a personal tenant."""

    id: uuid.UUID
    tenant: uuid.UUID
    name: str
    headers: dict[str, str] = field(repr=False)


class World:
    """The application and its users."""

    def __init__(self, db: testing.Database, app: FastAPI, client: TestClient) -> None:
        self.db = db
        self.app = app
        self.client = client

    def join(self, name: str) -> Person:
        """A new user, as the authentication service makes one."""
        [row] = self.db.execute(
            "insert into auth.users (email) values (%s) returning id", [f"{name}@example.org"]
        )
        [profile] = self.db.execute("select tenant_id from penstock.profiles where user_id = %s", [row["id"]])
        return Person(row["id"], profile["tenant_id"], name, bearer(token(row["id"])))

    def key(self, role: str, tenant: uuid.UUID | None = None, name: str = "test") -> str:
        """A new API key."""
        query = "select secret from penstock.create_key(%s, %s, %s)"
        [row] = self.db.execute(query, [name, role, tenant])
        return row["secret"]

    def member(self, role: str, tenant: uuid.UUID) -> Person:
        """A user in a tenant, with a key of this role."""
        query = "select id, secret from penstock.create_key(%s, %s, %s)"
        [row] = self.db.execute(query, [role, role, tenant])
        return Person(row["id"], tenant, role, bearer(row["secret"]))

    @property
    def service(self) -> dict[str, str]:
        """Headers of the service."""
        now = int(time.time())
        legacy = {"iss": "supabase", "role": "service_role", "iat": now, "exp": now + 600}
        return bearer(jwt.encode(legacy, SECRET, "HS256"))

    def kind(self, *names: str) -> None:
        """Declare kinds of tasks."""
        for name in names:
            self.db.execute("select penstock.define_kind(%s, '{\"raw_tasks\": true}')", [name])


@dataclass
class Served:
    """The application behind a socket."""

    port: int
    app: FastAPI
    server: uvicorn.Server

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


@contextmanager
def serving(app: FastAPI) -> Generator[Served]:
    """The application as clients on the network find it."""
    listening = socket.create_server(("127.0.0.1", 0), backlog=1000)
    server = uvicorn.Server(uvicorn.Config(app, log_level="critical", timeout_graceful_shutdown=1))
    thread = threading.Thread(target=server.run, args=([listening],))
    thread.start()
    try:
        while not server.started and thread.is_alive():
            time.sleep(0.01)
        yield Served(listening.getsockname()[1], app, server)
    finally:
        server.should_exit = True
        thread.join(10)
        listening.close()


def settings_on(db: testing.Database, home: Path) -> Settings:
    """The application's settings on a database."""
    return Settings(
        database_url=db.dsn,
        api_url=ensure_login(db.dsn),
        jwt_secret=SECRET,
        jwt_issuer=ISSUER,
        home=home,
    )


@pytest.fixture
def api_settings(db: testing.Database, tmp_path: Path) -> Settings:
    """The application's settings on the test's database."""
    return settings_on(db, tmp_path)


@pytest.fixture
def clock(db: testing.Database) -> testing.Clock:
    """The clock of the test's own database."""
    return testing.Clock(db)


@contextmanager
def running(db: testing.Database, settings: Settings) -> Generator[World]:
    # Tests ask faster than people.
    app = api.create(
        settings, limits=Limits(per_second=1e6, burst=10**6, tenant_per_second=1e6, tenant_burst=10**6)
    )
    with TestClient(app, raise_server_exceptions=True) as client:
        yield World(db, app, client)


@contextmanager
def without_upkeep() -> Generator[None]:
    """As the fixture `no_server_upkeep`, for applications that a module's fixture starts."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("penstock.api.standby", lambda *_: nullcontext())
        yield


@pytest.fixture(scope="module")
def world_of_file(server: testing.Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """An application and its database for all tests of a file that are marked `shared_world`."""
    with server.database() as db, ExitStack() as stack:
        with without_upkeep():
            made = stack.enter_context(running(db, settings_on(db, tmp_path_factory.mktemp("home"))))
        yield made


@pytest.fixture
def world(request: pytest.FixtureRequest, server: testing.Server) -> Iterator[World]:
    """The running application: with a database of its own, unless the test is marked `shared_world`.

    A marked test that asks for the database, the clock or the settings gets its own all the same.
    """
    has_own = "penstock_db" in request.fixturenames
    if request.node.get_closest_marker("shared_world") and not has_own:
        yield request.getfixturevalue("world_of_file")
        return
    with running(request.getfixturevalue("db"), request.getfixturevalue("api_settings")) as made:
        yield made


TASKS = [{"kind": "work"}]


@pytest.fixture
def ann(world: World) -> Person:
    """A user who may start jobs with tasks of the kind `work`."""
    world.kind("work")
    return world.join("ann")


def start(world: World, who: Person, **others: Any) -> str:
    """Start a job with one task, and return its id."""
    answer = world.client.post(
        "/api/jobs/start", json={"type": "report", "tasks": TASKS, **others}, headers=who.headers
    )
    assert answer.status_code == 201, answer.text
    return answer.json()["id"]
