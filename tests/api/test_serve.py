"""`penstock serve`, and the settings of the API."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx
import pytest
import uvicorn
from fastapi import FastAPI

from penstock import server, settings, testing
from penstock.cli import execute
from penstock.errors import Invalid
from penstock.settings import Settings
from tests.conftest import Eventually


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.org", ""])  # noqa: S104 nothing is bound
def test_public_address_requires_token_settings(host: str) -> None:
    with pytest.raises(Invalid) as refusal:
        server.check_address(Settings(), host)
    assert refusal.value.code == "unsafe_address"
    server.check_address(Settings(jwt_secret="x" * 32), host)
    server.check_address(Settings(jwks_url="https://example.org/keys"), host)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "localhost"])
def test_loopback_address_requires_no_token_settings(host: str) -> None:
    server.check_address(Settings(), host)


@pytest.mark.parametrize(
    "environment",
    [
        {"PENSTOCK_JWT_SECRET": "short"},
        {"PENSTOCK_JWKS_URL": "http://example.org/keys", "PENSTOCK_JWT_ISSUER": "x"},
        {"PENSTOCK_JWKS_URL": "file:///etc/passwd", "PENSTOCK_JWT_ISSUER": "x"},
        {"PENSTOCK_JWKS_URL": "http://127.0.0.1.example.org/keys", "PENSTOCK_JWT_ISSUER": "x"},
        {"PENSTOCK_JWKS_URL": "https://example.org/keys"},
    ],
)
def test_unsafe_settings_are_rejected(environment: dict[str, str]) -> None:
    with pytest.raises(Invalid):
        settings.read(environment)


def test_safe_settings_are_accepted() -> None:
    found = settings.read(
        {
            "PENSTOCK_API_URL": "postgresql://penstock_api@db/x",
            "PENSTOCK_JWT_SECRET": "s" * 32,
            "PENSTOCK_JWKS_URL": "https://example.org/keys",
            "PENSTOCK_JWT_ISSUER": "https://example.org",
        }
    )
    assert (found.jwt_audience, found.jwks_url) == ("authenticated", "https://example.org/keys")
    assert "ssss" not in repr(found)


def test_external_database_requires_an_api_login(db: testing.Database) -> None:
    with pytest.raises(Invalid) as refusal:
        server.with_logins(Settings(database_url=db.dsn), is_embedded=False)
    assert refusal.value.code == "no_api_login"


def test_serve_reports_a_busy_port_a_broken_app_and_unusable_logins_in_one_line(
    db: testing.Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "broken_serve_app.py").write_text("from penstock import App\napp = Ap()\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PENSTOCK_API_URL", server.ensure_login(db.dsn))
    settings.settings.cache_clear()
    try:
        with server.listen("127.0.0.1", 0) as taken:
            port = taken.getsockname()[1]
            assert execute(["serve", "--port", str(port), "--database", db.dsn]) == 6
            error = capsys.readouterr().err
            assert error.startswith(f"Error: cannot listen on 127.0.0.1:{port}: Address already in use\n")
        assert execute(["serve", "broken_serve_app:app", "--port", "0", "--database", db.dsn]) == 2
        error = capsys.readouterr().err
        assert "NameError: name 'Ap' is not defined (broken_serve_app.py, line 2)" in error
        assert "Traceback" not in error
        monkeypatch.setenv("PENSTOCK_API_URL", db.dsn)
        settings.settings.cache_clear()
        assert execute(["serve", "--port", "0", "--database", db.dsn, "-o", "json"]) == 1
        error = capsys.readouterr().err
        assert '"code": "unsafe_login"' in error and "Traceback" not in error
        monkeypatch.setenv("PENSTOCK_API_URL", "postgresql://nobody@127.0.0.1:1/none")
        monkeypatch.setattr("penstock.cli.serve._WAIT_SECONDS", 0.0)
        settings.settings.cache_clear()
        assert execute(["serve", "--port", "0", "--database", db.dsn]) == 1
        error = capsys.readouterr().err
        assert "Error: PENSTOCK_API_URL: The database cannot be reached" in error
        assert "Traceback" not in error and "Dashboard" not in error
    finally:
        settings.settings.cache_clear()


def test_accepted_connections_send_without_delay() -> None:
    """Otherwise every response on a kept-alive connection takes 40 ms longer."""
    with server.listen("127.0.0.1", 0) as listening, socket.create_connection(listening.getsockname()):
        accepted, _ = listening.accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


@pytest.mark.slow
def test_serve_runs_until_sigterm(db: testing.Database, tmp_path: Path, eventually: Eventually) -> None:
    """The whole command: starts, answers with a key from the command line, and ends at SIGTERM."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = {**os.environ, "DATABASE_URL": db.dsn, "PENSTOCK_API_URL": server.ensure_login(db.dsn)}
    command = [sys.executable, "-m", "penstock"]
    made = subprocess.run(
        [*command, "keys", "create", "test", "--role", "service"],
        env=environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    log = tmp_path / "log"
    with log.open("w") as out:
        process = subprocess.Popen(
            [*command, "-o", "json", "serve", "--port", str(port), "--drain", "2"],
            env=environment,
            stderr=out,
        )
    try:
        headers = {"Authorization": f"Bearer {made.stdout.strip()}"}

        def asked() -> Any:
            try:
                return httpx.get(f"http://127.0.0.1:{port}/api/me", headers=headers).json()
            except httpx.TransportError:
                assert process.poll() is None, log.read_text()
                return None

        assert eventually(asked, "an answer")["role"] == "service_role"
        process.send_signal(signal.SIGTERM)
        drained = eventually(
            lambda: (r := httpx.get(f"http://127.0.0.1:{port}/readyz")).status_code == 503 and r, "not ready"
        )
        assert drained.json()["code"] == "draining"
        assert asked()["role"] == "service_role", "requests are still accepted"
        assert process.wait(30) in (0, -signal.SIGTERM), log.read_text()
    finally:
        process.kill()
        process.wait()
    assert '"route": "/api/me"' in log.read_text()
    assert made.stdout.strip() not in log.read_text()


def test_cli_creates_lists_and_revokes_keys(
    db: testing.Database, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DATABASE_URL", db.dsn)
    settings.settings.cache_clear()
    db.execute("select penstock.create_tenant('acme')")
    assert execute(["keys", "create", "import", "--role", "member", "--tenant", "acme"]) == 0
    secret = capsys.readouterr().out.strip()
    assert secret.startswith("psk_")
    assert execute(["keys", "ls", "--tenant", "acme", "-o", "json"]) == 0
    listed = capsys.readouterr().out
    assert secret[:12] in listed and secret not in listed
    [row] = db.execute("select id from penstock.api_keys")
    assert execute(["keys", "revoke", str(row["id"]), "--yes"]) == 0
    assert db.execute("select revoked_at is not null as gone from penstock.api_keys") == [{"gone": True}]
    assert execute(["keys", "revoke", "nonsense", "--yes"]) == 2
    settings.settings.cache_clear()


def test_http_parser_limits_headers_whatever_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Uvicorn prefers httptools, with which a client may send headers of any size."""
    monkeypatch.setitem(sys.modules, "httptools", ModuleType("httptools"))
    monkeypatch.delitem(sys.modules, "uvicorn.protocols.http.auto", raising=False)
    config = uvicorn.Config(FastAPI(), **server.UVICORN_OPTIONS)
    config.load()
    assert config.http_protocol_class.__name__ == "H11Protocol"
