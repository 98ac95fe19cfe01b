"""`penstock doctor --providers`: each key is tried with a free call, at its own host."""

from __future__ import annotations

import json
from typing import Any

import pytest

from penstock import settings, testing
from penstock.contract import provider_keys
from penstock.doctor import examine_providers
from penstock.postgres import db as database
from penstock.providers import keys
from tests.conftest import Command
from tests.providers.conftest import Wire

MASTER = b"m" * 32
GOOD = {
    "api.openai.com": {"object": "list", "data": [{"id": "gpt-5.4-mini"}, {"id": "tts-1"}, {"id": "x"}]},
    "api.anthropic.com": {"data": [{"type": "model", "id": "claude-sonnet-5-5"}], "has_more": False},
    "api.elevenlabs.io": [{"model_id": "eleven_flash_v2_5"}],
    "api.replicate.com": {"type": "user", "username": "ann"},
    "api.dev.runwayml.com": {"tier": {}, "creditBalance": 100},
}
VARIABLES = {
    "OPENAI_API_KEY": "api.openai.com",
    "ANTHROPIC_API_KEY": "api.anthropic.com",
    "ELEVENLABS_API_KEY": "api.elevenlabs.io",
    "REPLICATE_API_TOKEN": "api.replicate.com",
    "RUNWAYML_API_SECRET": "api.dev.runwayml.com",
    "GOOGLE_API_KEY": None,
}


def test_doctor_says_what_each_key_may_use(
    db: testing.Database, wire: Wire, penstock: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in VARIABLES:
        monkeypatch.setenv(name, f"key-of-{name}")
    wire.respond = lambda request: (200, {}, json.dumps(GOOD[request.url.host]).encode())
    found = json.loads(penstock("doctor", "--providers", "--output", "json").out)
    lines = {check["name"]: check for check in found}
    assert "may use 3 models; of the catalogue: gpt-5.4-mini, tts-1" in lines["openai"]["finding"]
    assert "claude-sonnet-5-5" in lines["anthropic"]["finding"]
    assert "not tried" in lines["google"]["finding"]
    assert {lines[name]["state"] for name in ("openai", "elevenlabs", "replicate", "runway")} == {"ok"}
    assert [request.method for request in wire.requests] == ["GET"] * 5
    for request in wire.requests:
        variable = next(name for name, host in VARIABLES.items() if host == request.url.host)
        assert f"key-of-{variable}" in str(dict(request.headers))
    wire.requests.clear()
    penstock("doctor")
    assert wire.requests == [], "without the option nothing leaves this machine"


async def test_refused_key_and_missing_master_key_are_failures(
    db: testing.Database, tenant: Any, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keys, "settings", lambda: settings.Settings(master_keys=(MASTER,)))
    async with database.pool(db.dsn, name="test") as pool:
        await provider_keys.set(pool, keys.seal("openai", "sk-bad"))
        await provider_keys.set(
            pool, keys.seal("house", "sk-house", host="llm.example.org", tenant_id=tenant)
        )
    wire.respond = lambda request: (401, {}, b'{"error": {"message": "Incorrect API key provided."}}')
    [house, refused] = await examine_providers(db.dsn)
    assert (refused.state, house.state) == ("fail", "fail") and "Incorrect API key" in refused.finding
    assert refused.action == "Set the key again: penstock providers keys set openai"
    assert house.action is not None and house.action.startswith(
        "Set the key again: penstock providers keys set house --tenant "
    )
    assert [str(request.url) for request in wire.requests] == [
        "https://llm.example.org/v1/models",
        "https://api.openai.com/v1/models",
    ]
    wire.respond = lambda request: (503, {}, b"")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-environment")
    found = await examine_providers(db.dsn)
    assert {check.action for check in found} == {
        "The key was not tried: check the connection to the provider."
    }
    wire.respond = lambda request: (401, {}, b"{}")
    *_, environment = await examine_providers(db.dsn)
    assert environment.action == "Set OPENAI_API_KEY to a valid key."
    monkeypatch.delenv("OPENAI_API_KEY")
    monkeypatch.setattr(keys, "settings", lambda: settings.Settings())
    found = await examine_providers(db.dsn)
    assert all("master key" in check.finding and check.state == "fail" for check in found)
    assert all((check.action or "").startswith("Set PENSTOCK_MASTER_KEY") for check in found)
