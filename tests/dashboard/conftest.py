"""Fixtures: the dashboard on the test's own database, and browsers that use it."""

from __future__ import annotations

import importlib.util
import sys
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import jwt
import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from penstock import api, dashboard, server, testing
from penstock.settings import Settings

SECRET = "a secret of the tests, of more than 32 bytes"  # noqa: S105 it opens a test database
PREFIX = "/dashboard"


def load(name: str) -> Any:
    """Import a module from this folder."""
    full = f"tests_dashboard_{name}"
    if full not in sys.modules:
        spec = importlib.util.spec_from_file_location(full, Path(__file__).parent / f"{name}.py")
        assert spec and spec.loader
        sys.modules[full] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[full])
    return sys.modules[full]


@dataclass
class Browser:
    """An HTTP client that keeps cookies and posts forms with their tokens."""

    client: TestClient
    prefix: str = PREFIX

    def get(self, path: str, **options: Any) -> Any:
        return self.client.get(self.prefix + path, **options)

    def post(self, path: str, data: dict[str, Any] | None = None, **options: Any) -> Any:
        """Post a form with a valid token."""
        token = self.token("public_token" if path in ("/sign-in", "/sign-out", "/theme") else "token")
        headers = {
            "Origin": "http://testserver",
            "Sec-Fetch-Site": "same-origin",
            **options.pop("headers", {}),
        }
        return self.client.post(
            self.prefix + path, data={"token": token, **(data or {})}, headers=headers, **options
        )

    def token(self, kind: str) -> str:
        from penstock.api.callers import ANON
        from penstock.dashboard import forms

        if "penstock_form" not in self.client.cookies:
            self.get("/sign-in")
        seed = self.client.cookies["penstock_form"]
        caller = ANON if kind == "public_token" else self.caller
        return forms._token(seed, caller)

    caller: Any = None


class Site:
    """The application with the dashboard, and its users."""

    def __init__(self, db: testing.Database, app: FastAPI, client: TestClient) -> None:
        self.db, self.app, self.client = db, app, client
        self.load = load

    def tenant(self, name: str) -> uuid.UUID:
        [row] = self.db.execute("select penstock.create_tenant(%s) as id", [name])
        return row["id"]

    def key(self, role: str, tenant: uuid.UUID | None = None) -> str:
        [row] = self.db.execute("select secret from penstock.create_key(%s, %s, %s)", [role, role, tenant])
        return row["secret"]

    def browser(self, credential: str | None, prefix: str = PREFIX) -> Browser:
        """Return a browser, signed in with this credential."""
        made = Browser(TestClient(self.app, follow_redirects=False), prefix)
        made.client.portal = self.client.portal
        if credential:
            answer = made.post("/sign-in", {"credential": credential, "next": "/"})
            assert answer.status_code == 303, answer.text
            made.caller = self._caller(credential)
        return made

    def _caller(self, credential: str) -> Any:
        from penstock.api.callers import Caller

        if credential.startswith("psk_"):
            import hashlib

            [row] = self.db.execute(
                "select * from penstock.use_key(%s)", [hashlib.sha256(credential.encode()).digest()]
            )
            role = "service_role" if row["role"] in ("worker", "service") else "authenticated"
            return Caller(role, {"role": role, "sub": str(row["id"])})
        claims = jwt.decode(credential, options={"verify_signature": False})
        return Caller(claims["role"], claims)


def service_token() -> str:
    now = int(time.time())
    return jwt.encode({"role": "service_role", "iat": now, "exp": now + 3600}, SECRET, "HS256")


class Text(HTMLParser):
    """The text of a page without its tags."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.parts: list[str] = []
        self.feed(html)

    def handle_data(self, data: str) -> None:
        self.parts.append(data)

    def __str__(self) -> str:
        return " ".join(" ".join(self.parts).split())


@pytest.fixture
def beside() -> Any:
    """Imports modules from this folder by name."""
    return load


@pytest.fixture
def dashboard_settings(db: testing.Database, tmp_path: Path) -> Settings:
    return Settings(
        database_url=db.dsn,
        api_url=server.ensure_login(db.dsn),
        jwt_secret=SECRET,
        home=tmp_path,
        environment="staging",
    )


@pytest.fixture
def site(db: testing.Database, dashboard_settings: Settings) -> Iterator[Site]:
    """The running application."""
    app = api.create(dashboard_settings)
    dashboard.mount(app)
    with TestClient(app) as client:
        yield Site(db, app, client)


@pytest.fixture
def sample(site: Site) -> Any:
    """An installation with data on every page."""
    return load("sample").fill(site.db, acme=site.tenant("Acme"), other=site.tenant("Other"))
