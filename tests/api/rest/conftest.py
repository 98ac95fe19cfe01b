"""The served application, and clients of it."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import threading
import time
import uuid
from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import jwt
import pytest
import supabase
import uvicorn
from fastapi import FastAPI

from penstock import App, api, testing
from penstock.api.limits import Limits
from penstock.settings import Settings
from tests.api.conftest import SECRET, bearer, settings_on, token, without_upkeep
from tests.conftest import Eventually

JS = Path(__file__).parent / "supabase_js"
KEYS = {"code", "details", "hint", "message"}


@dataclass
class Person:
    """A user with a personal tenant."""

    id: uuid.UUID
    tenant: uuid.UUID
    token: str


def project_key(role: str) -> str:
    """A key of the project, as Supabase issues them."""
    now = int(time.time())
    return jwt.encode(
        {"iss": "supabase", "role": role, "iat": now, "exp": now + 3600}, SECRET, algorithm="HS256"
    )


class Site:
    """The served application."""

    def __init__(self, app: FastAPI, url: str, db: testing.Database, http: httpx.Client) -> None:
        self.app = app
        self.url = url
        self.db = db
        self.http = http
        self.service_key = project_key("service_role")
        self.anon_key = project_key("anon")
        self._clients: list[supabase.Client] = []

    def join(self, name: str) -> Person:
        """A new user, as the authentication service makes one."""
        [user] = self.db.execute("insert into auth.users (email) values (%s) returning id", [f"{name}@x.org"])
        [profile] = self.db.execute(
            "select tenant_id from penstock.profiles where user_id = %s", [user["id"]]
        )
        return Person(user["id"], profile["tenant_id"], token(user["id"]))

    def client(self, key: str, schema: str = "penstock") -> Any:
        """An unmodified supabase-py; its connections are closed when the test ends."""
        made = supabase.create_client(self.url, key, supabase.ClientOptions(schema=schema))
        self._clients.append(made)
        return made

    def service(self) -> Any:
        return self.client(self.service_key)

    def user(self, person: Person) -> Any:
        client = self.client(self.anon_key)
        client.postgrest.auth(person.token)
        return client

    def close(self) -> None:
        while self._clients:
            self._clients.pop().postgrest.session.close()

    def key(self, role: str, tenant: uuid.UUID | None = None) -> str:
        """A new API key."""
        [row] = self.db.execute("select secret from penstock.create_key(%s, %s, %s)", ["test", role, tenant])
        return row["secret"]

    def get(self, path: str, by: str, **headers: str) -> httpx.Response:
        return self.http.get("/rest/v1/" + path, headers={**bearer(by), **headers})

    def post(self, function: str, by: str, body: Any = None, **headers: str) -> httpx.Response:
        content = body if isinstance(body, bytes) else json.dumps(body or {}).encode()
        headers = {"Content-Type": "application/json", **headers}
        return self.http.post(f"/rest/v1/rpc/{function}", content=content, headers={**bearer(by), **headers})

    def start(self, tenant: uuid.UUID, tasks: int = 1, **params: Any) -> str:
        """A job; returns its id."""
        [row] = self.db.execute(
            "select penstock.start_job('report', %s::jsonb, %s::jsonb, %s::jsonb) as id",
            [
                json.dumps(params),
                json.dumps([{"kind": "work", "input": {"n": n}} for n in range(tasks)]),
                json.dumps({"tenant_id": str(tenant)}),
            ],
        )
        return str(row["id"])


@contextmanager
def served(
    db: testing.Database, settings: Settings, eventually: Eventually, app: App | None = None
) -> Generator[Site]:
    """The application behind a socket, with an app if there is one."""
    # Tests ask faster than people.
    made = api.create(
        settings, app, limits=Limits(per_second=1e6, burst=10**6, tenant_per_second=1e6, tenant_burst=10**6)
    )
    config = uvicorn.Config(made, port=0, log_level="warning", ws="none", timeout_graceful_shutdown=5)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        eventually(lambda: server.started or not thread.is_alive(), "the server starts")
        port = server.servers[0].sockets[0].getsockname()[1]
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as http:
            site = Site(made, f"http://127.0.0.1:{port}", db, http)
            yield site
            site.close()
    finally:
        server.should_exit = True
        thread.join(20)
        assert not thread.is_alive(), "the server does not end"


@contextmanager
def plain_site(db: testing.Database, settings: Settings) -> Generator[Site]:
    db.execute("select penstock.define_kind('work', '{\"backoff_seconds\": 0, \"raw_tasks\": true}')")
    with served(db, settings, Eventually()) as made:
        yield made


@pytest.fixture(scope="module")
def site_of_file(server: testing.Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """An application and its database for all tests of a file that are marked `shared_world`."""
    with server.database() as db, ExitStack() as stack:
        with without_upkeep():
            made = stack.enter_context(plain_site(db, settings_on(db, tmp_path_factory.mktemp("home"))))
        yield made


@pytest.fixture
def site(request: pytest.FixtureRequest, server: testing.Server) -> Iterator[Site]:
    """The served application: with a database of its own, unless the test is marked `shared_world`."""
    if request.node.get_closest_marker("shared_world"):
        made: Site = request.getfixturevalue("site_of_file")
        yield made
        made.close()
        return
    with plain_site(request.getfixturevalue("db"), request.getfixturevalue("api_settings")) as made:
        yield made


@pytest.fixture
def ann(site: Site) -> Person:
    return site.join("ann")


@pytest.fixture
def bob(site: Site) -> Person:
    return site.join("bob")


class Node:
    """Runs the scripts beside this file with the real supabase-js."""

    def __init__(self) -> None:
        # Node 20 has WebSocket, which supabase-js wants to see, behind this switch; later ones have it anyway.
        self.environment = {**os.environ, "NODE_OPTIONS": "--experimental-websocket --no-warnings"}

    def command(self, script: str) -> list[str]:
        return ["node", str(JS / script)]

    def __call__(self, script: str, *arguments: str) -> str:
        done = subprocess.run(
            [*self.command(script), *arguments], env=self.environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture(scope="session")
def node() -> Node:
    """supabase-js from the registry, in the version that package-lock.json names."""
    if not shutil.which("node") or not shutil.which("npm"):
        pytest.skip("there is no node here")
    with (JS / "package.json").open() as guard:
        # One of several test processes installs it, the others wait.
        fcntl.flock(guard, fcntl.LOCK_EX)
        lock, installed = JS / "package-lock.json", JS / "node_modules/.package-lock.json"
        if not installed.exists() or installed.stat().st_mtime < lock.stat().st_mtime:
            command = ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
            done = subprocess.run(command, cwd=JS, capture_output=True, text=True)
            if done.returncode:
                pytest.skip(f"supabase-js cannot be installed: {done.stderr[-500:]}")
    return Node()


def refused(response: httpx.Response, status: int, code: str) -> dict[str, Any]:
    """The body of a refusal, which has PostgREST's form."""
    assert response.status_code == status, response.text
    body = response.json()
    assert set(body) == KEYS
    assert body["code"] == code, body
    assert response.headers["proxy-status"] == f"PostgREST; error={code}"
    assert len(response.text) < 2000
    return body
