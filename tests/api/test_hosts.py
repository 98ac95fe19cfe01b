"""The public address: allowed hosts, HSTS, and the settings."""

from __future__ import annotations

from dataclasses import replace

import pytest
from fastapi.testclient import TestClient

from penstock import api
from penstock.errors import Invalid
from penstock.settings import Settings, read


@pytest.fixture
def client() -> TestClient:
    # Nothing here reaches the database, so the application is not started.
    settings = replace(
        Settings(), public_url="https://jobs.example.org", allowed_hosts=("jobs.example.org", "[::1]")
    )
    return TestClient(api.create(settings))


@pytest.mark.parametrize("host", ["evil.example", "jobs.example.org.evil.example", "", "127.0.0.1", "x:443"])
def test_other_hosts_are_rejected(client: TestClient, host: str) -> None:
    """S86: DNS rebinding, and links to another host."""
    answer = client.get("/api/openapi.json", headers={"Host": host})
    assert answer.status_code == 403 and answer.json()["code"] == "unknown_host"


@pytest.mark.parametrize("host", ["jobs.example.org", "JOBS.example.org:443", "[::1]:8080"])
def test_own_hosts_are_served_with_hsts(client: TestClient, host: str) -> None:
    answer = client.get("/api/openapi.json", headers={"Host": host})
    assert answer.status_code == 200
    assert answer.headers["strict-transport-security"] == "max-age=31536000"


def test_probes_need_no_host_and_plain_servers_send_no_hsts(client: TestClient) -> None:
    assert client.get("/healthz", headers={"Host": "10.0.0.7"}).status_code == 200
    plain = TestClient(api.create(Settings()))
    answer = plain.get("/healthz", headers={"Host": "anything"})
    assert answer.status_code == 200 and "strict-transport-security" not in answer.headers
    assert (
        "strict-transport-security"
        in TestClient(plain.app, base_url="https://testserver").get("/healthz").headers
    )


def test_settings_are_checked() -> None:
    found = read({"PENSTOCK_PUBLIC_URL": "https://Jobs.example.org:8443/"})
    assert (found.public_url, found.allowed_hosts) == ("https://Jobs.example.org:8443", ("jobs.example.org",))
    listed = read(
        {"PENSTOCK_PUBLIC_URL": "https://a.example", "PENSTOCK_ALLOWED_HOSTS": "a.example, B.example"}
    )
    assert listed.allowed_hosts == ("a.example", "b.example")
    assert read({}).allowed_hosts == ()
    base = {"PENSTOCK_OIDC_ISSUER": "https://issuer.example", "PENSTOCK_OIDC_CLIENT_ID": "c", "PENSTOCK_PUBLIC_URL": "https://a.example"}  # fmt: skip
    assert read({**base, "PENSTOCK_OIDC_OPERATORS": "a@b.c, sub-1"}).oidc_operators == ("a@b.c", "sub-1")
    for wrong in (
        {"PENSTOCK_PUBLIC_URL": "jobs.example.org"},
        {"PENSTOCK_PUBLIC_URL": "https://jobs.example.org/path"},
        {**base, "PENSTOCK_OIDC_ISSUER": "http://issuer.example"},
        {name: value for name, value in base.items() if name != "PENSTOCK_OIDC_CLIENT_ID"},
        {name: value for name, value in base.items() if name != "PENSTOCK_PUBLIC_URL"},
    ):
        with pytest.raises(Invalid):
            read(wrong)
