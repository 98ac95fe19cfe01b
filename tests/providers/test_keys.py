"""Keys of providers: encrypted in the database, never shown again, and sent to their own host only."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest

from penstock import Context, Fail, Retry, settings, simulator, testing
from penstock.contract import provider_keys
from penstock.errors import Invalid, NotFound, PenstockError
from penstock.postgres import db as database
from penstock.providers import Image, TextRequest, VisionRequest, ask, connect, keys
from penstock.providers.connection import Connection, Key, checked_url
from penstock.simulator import content
from penstock.types import SealedKey
from tests.conftest import Command
from tests.providers.conftest import Wire, replay

MASTER, OTHER = b"m" * 32, b"o" * 32
SECRET = "sk-very-secret-key-0123456789"  # noqa: S105 it opens nothing
REQUEST = TextRequest("Hello!", 50)
TENANT = UUID(int=7)


def context(*stored: SealedKey) -> Context:
    """A context whose database has these keys."""
    ctx = Context.fake()

    async def sealed_key(ctx: Context, provider: str) -> SealedKey | None:
        return next((key for key in stored if key.provider == provider), None)

    ctx._hooks.sealed_key = sealed_key  # type: ignore[method-assign]
    return ctx


@pytest.fixture
def master(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keys, "settings", lambda: settings.Settings(master_keys=(MASTER,)))


def told(wire: Wire) -> str:
    """Everything that was sent."""
    return "\n".join(f"{r.url} {dict(r.headers)} {r.content!r}" for r in wire.requests)


# Who gets a key


@pytest.mark.parametrize(
    ("provider", "recorded", "header"),
    [
        ("openai/gpt-5.4-mini", "responses_completed", ("authorization", f"Bearer {SECRET}")),
        ("anthropic/claude-haiku-5-5", "messages_end_turn", ("authorization", f"Bearer {SECRET}")),
    ],
)
async def test_key_goes_to_the_own_host_over_https(
    wire: Wire, monkeypatch: pytest.MonkeyPatch, provider: str, recorded: str, header: tuple[str, str]
) -> None:
    name = provider.partition("/")[0]
    monkeypatch.setenv(f"{name.upper()}_API_KEY", SECRET)
    replay(wire, recorded)
    await ask(Context.fake(), REQUEST, provider=provider)
    [request] = wire.requests
    assert request.url.scheme == "https" and request.url.host == f"api.{name}.com"
    assert request.headers[header[0]] == header[1]


@pytest.mark.parametrize("provider", ["openai/gpt-4o", "anthropic/claude-haiku-5-5", "house/llm"])
@pytest.mark.parametrize(
    "url",
    [
        "http://10.0.0.7:8000/v1",
        "http://127.0.0.1:8090/v1",
        "http://api.openai.com/v1",
        "http://api.anthropic.com",
        "https://api.openai.com.example.org/v1",
        "https://example.org/api.openai.com/v1",
        "https://api.openai.com:8443/v1",
        "https://api.anthropic.com:8443",
        "https://api.openai.com./v1",
        "https://eu.api.openai.com/v1",
        "https://[2001:db8::1]/v1",
        "https://[::1]:8443/v1",
        "https://[::ffff:10.0.0.7]/v1",
    ],
)
async def test_no_other_address_gets_a_key(
    wire: Wire, master: None, monkeypatch: pytest.MonkeyPatch, provider: str, url: str
) -> None:
    """R0.10/keys, S75: neither the key of the environment, nor a stored one, nor the ids of an account."""
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "OPENAI_ORG_ID", "ANTHROPIC_AUTH_TOKEN"):
        monkeypatch.setenv(name, SECRET)
    for name in ("OPENAI", "ANTHROPIC"):
        # The official clients send these headers to every address.
        monkeypatch.setenv(f"{name}_CUSTOM_HEADERS", f"authorization: Bearer {SECRET}\nX-Gateway: {SECRET}")
    replay(wire, "messages_end_turn" if provider.startswith("anthropic") else "responses_completed")
    if provider.startswith("house"):
        replay(wire, "chat_stop")
    await ask(Context.fake(), REQUEST, provider=provider, url=url)
    stored = [keys.seal(n, SECRET, master_keys=(MASTER,)) for n in ("openai", "anthropic")]
    stored.append(keys.seal("house", SECRET, host="llm.example.org", master_keys=(MASTER,)))
    await ask(context(*stored), REQUEST, provider=provider, url=url)
    assert len(wire.requests) == 2 and SECRET not in told(wire)


@pytest.mark.parametrize(
    "to", ["http://10.0.0.7:8000/v1/responses", "https://evil.example.org/", "/v1/elsewhere"]
)
@pytest.mark.parametrize("provider", ["openai/gpt-5.4-mini", "anthropic/claude-haiku-5-5"])
async def test_redirects_are_not_followed(
    wire: Wire, monkeypatch: pytest.MonkeyPatch, provider: str, to: str
) -> None:
    """R0.10/keys, S75: the target of a redirect gets no request at all."""
    monkeypatch.setenv(f"{provider.partition('/')[0].upper()}_API_KEY", SECRET)
    for status in (301, 302, 303, 307, 308):
        wire.requests.clear()
        wire.respond = lambda request, status=status: (status, {"location": to}, b"")
        with pytest.raises(Fail) as failed:
            await ask(Context.fake(), REQUEST, provider=provider)
        assert failed.value.code == "provider_redirected" and len(wire.requests) == 1


async def test_request_with_the_key_to_another_host_is_stopped(wire: Wire) -> None:
    """Also from a client that follows redirects, or with headers for all hosts."""
    connection = Connection("openai", "https://api.openai.com/v1", Key("api.openai.com", SECRET))
    headers = {"authorization": f"Bearer {SECRET}"}
    async with connection.http(headers=headers) as http:
        await http.get("https://api.openai.com/v1/models")
        for url in ("http://api.openai.com/v1/models", "https://example.org/", "https://example.org:443/"):
            with pytest.raises(Invalid) as stopped:
                await http.get(url)
            assert stopped.value.code == "key_for_other_host"
    assert len(wire.requests) == 1


async def test_tenants_key_wins_over_the_general_one_and_the_environment(
    wire: Wire, master: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-environment")
    own = keys.seal("openai", SECRET, tenant_id=TENANT)
    assert (await connect(context(own), "openai/gpt-4o")).secret == SECRET
    assert (await connect(context(), "openai/gpt-4o")).secret == "sk-environment"  # noqa: S105
    monkeypatch.delenv("OPENAI_API_KEY")
    with pytest.raises(Fail) as failed:
        await connect(context(), "openai/gpt-4o")
    assert failed.value.code == "no_key"
    with pytest.raises(Fail) as failed:
        await connect(context(), "house/llm")
    assert failed.value.code == "unknown_address"


async def test_ids_of_an_account_go_with_the_key_of_the_environment_only(
    wire: Wire, master: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tenant's key belongs to another organization, which OpenAI would reject with these ids."""
    monkeypatch.setenv("OPENAI_API_KEY", "sk-environment")
    monkeypatch.setenv("OPENAI_ORG_ID", "org-1")
    monkeypatch.setenv("OPENAI_CUSTOM_HEADERS", "Authorization: Bearer sk-other\nX-Gateway: secret")
    replay(wire, "responses_completed")
    await ask(context(), REQUEST, provider="openai/gpt-4o")
    await ask(context(keys.seal("openai", SECRET, tenant_id=TENANT)), REQUEST, provider="openai/gpt-4o")
    sent = [dict(request.headers) for request in wire.requests]
    assert [each["authorization"] for each in sent] == ["Bearer sk-environment", f"Bearer {SECRET}"]
    assert [each.get("openai-organization") for each in sent] == ["org-1", None]
    assert not any("x-gateway" in each for each in sent)


@pytest.mark.parametrize(
    "url",
    [
        "ftp://x/",
        "https://",
        "https://user:password@host/",
        "https://:password@host/",
        "https://api.openai.com@evil.example.org/",
        "file:///etc/passwd",
        "https://[::1",
        "https://host:99999/",
        "https://host:password/",
    ],
)
async def test_invalid_address_is_refused(url: str) -> None:
    with pytest.raises(Invalid):
        checked_url(url)
    with pytest.raises(Fail) as failed:
        await connect(context(), "house/llm", url)
    assert failed.value.code == "invalid_address"
    assert "@" not in url or "password" not in str(failed.value), "a password is not stored with the error"


class Proxy:
    """A proxy that refuses everything, and keeps what it was told."""

    def __init__(self) -> None:
        self.heard = b""

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.heard += await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 502 Bad Gateway\r\ncontent-length: 0\r\n\r\n")
        await writer.drain()
        writer.close()


@pytest.mark.parametrize(
    ("provider", "variable", "host"),
    [
        ("openai/gpt-4o", "OPENAI_API_KEY", b"api.openai.com"),
        ("anthropic/claude-haiku-4-5", "ANTHROPIC_API_KEY", b"api.anthropic.com"),
        ("google/vision-api", "GOOGLE_API_KEY", b"vision.googleapis.com"),
    ],
)
async def test_proxy_of_the_environment_tunnels_keys_and_sees_nothing_of_this_machine(
    monkeypatch: pytest.MonkeyPatch, provider: str, variable: str, host: bytes
) -> None:
    """R0.10/keys: the proxy is asked for a tunnel to the provider's host, and gets neither key nor prompt."""
    proxy = Proxy()
    listening = await asyncio.start_server(proxy, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, url)
        monkeypatch.delenv(name.lower(), raising=False)
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(variable, SECRET)
    wanted: Any = TextRequest("Hello!", 5000)
    if provider.startswith("google"):
        wanted = VisionRequest(Image(content.picture("x", 0, 0)))
    async with listening:
        with pytest.raises(Retry) as refused:
            await ask(context(), wanted, provider=provider)
        assert refused.value.code == "network_error"
        assert proxy.heard.startswith(b"CONNECT " + host + b":443 ") and SECRET.encode() not in proxy.heard
        proxy.heard = b""
        async with simulator.serve() as running:
            local = {"openai": running.openai_url, "anthropic": running.anthropic_url, "google": running.url}
            await ask(context(), wanted, provider=provider, url=local[provider.partition("/")[0]])
        assert proxy.heard == b""


# Encryption


def test_sealed_key_opens_with_its_master_key_only() -> None:
    sealed = keys.seal("openai", SECRET, master_keys=(MASTER,))
    assert keys.unseal(sealed, (OTHER, MASTER)) == Key("api.openai.com", SECRET)
    assert SECRET.encode() not in sealed.sealed + sealed.wrapped_key and SECRET not in repr(sealed)
    assert keys.seal("openai", SECRET, master_keys=(MASTER,)).sealed != sealed.sealed
    with pytest.raises(PenstockError) as failed:
        keys.unseal(sealed, (OTHER,))
    assert failed.value.code == "no_master_key"
    with pytest.raises(PenstockError) as failed:
        keys.seal("openai", SECRET, master_keys=())
    assert failed.value.code == "no_master_key"
    again = keys.reseal(sealed, (OTHER, MASTER))
    assert keys.unseal(again, (OTHER,)).secret == SECRET and again.master_id != sealed.master_id


@pytest.mark.parametrize(
    "change",
    [
        {"host": "evil.example.org"},
        {"provider": "anthropic"},
        {"tenant_id": TENANT},
        {"sealed": bytes(60)},
        {"wrapped_key": bytes(60)},
    ],
    ids=str,
)
def test_changed_row_does_not_open(change: dict[str, Any]) -> None:
    """R0.10/keys: a caller who can write to the database cannot send the key to another host or tenant."""
    sealed = keys.seal("openai", SECRET, master_keys=(MASTER,))
    with pytest.raises(PenstockError) as failed:
        keys.unseal(replace(sealed, **change), (MASTER,))
    assert failed.value.code == "broken_provider_key"


@pytest.mark.parametrize(
    ("provider", "secret", "host"),
    [
        ("house", SECRET, None),
        ("house", SECRET, "bad host"),
        ("openai", SECRET, "evil.example.org"),
        ("openai", "", None),
        ("openai", "two\nlines", None),
        ("openai", "schlüssel", None),
    ],
)
def test_invalid_key_is_refused(provider: str, secret: str, host: str | None) -> None:
    with pytest.raises(Invalid) as refused:
        keys.seal(provider, secret, host=host, master_keys=(MASTER,))
    assert refused.value.code == "invalid_provider_key"
    assert SECRET not in str(refused.value)


def test_master_key_comes_from_the_environment_or_a_file(tmp_path: Path) -> None:
    text = base64.b64encode(MASTER).decode()
    file = tmp_path / "master"
    file.write_text(f"{base64.b64encode(OTHER).decode()}\n{text}\n")
    assert settings.read({"PENSTOCK_MASTER_KEY": text}).master_keys == (MASTER,)
    assert settings.read({"PENSTOCK_MASTER_KEY_FILE": str(file)}).master_keys == (OTHER, MASTER)
    assert text not in repr(settings.read({"PENSTOCK_MASTER_KEY": text}))
    for wrong in ({"PENSTOCK_MASTER_KEY": "short"}, {"PENSTOCK_MASTER_KEY_FILE": str(tmp_path / "none")}):
        with pytest.raises(Invalid) as refused:
            settings.read(wrong)
        assert "short" not in str(refused.value)


# The database and the command line


async def test_workers_get_the_tenants_key_or_the_general_one(db: testing.Database, tenant: UUID) -> None:
    async with database.pool(db.dsn, name="test") as pool:
        await provider_keys.set(pool, keys.seal("openai", "sk-all", master_keys=(MASTER,)))
        own = keys.seal("openai", SECRET, tenant_id=tenant, master_keys=(MASTER,))
        await provider_keys.set(pool, own)
        assert await provider_keys.get(pool, provider="openai", tenant_id=tenant) == own
        general = await provider_keys.get(pool, provider="openai", tenant_id=uuid4())
        assert general is not None and keys.unseal(general, (MASTER,)).secret == "sk-all"  # noqa: S105
        assert await provider_keys.get(pool, provider="anthropic", tenant_id=tenant) is None
        listed = await provider_keys.list(pool)
        assert [(key.provider, key.tenant_id) for key in listed] == [("openai", None), ("openai", tenant)]
        await provider_keys.remove(pool, provider="openai", tenant_id=tenant)
        with pytest.raises(NotFound):
            await provider_keys.remove(pool, provider="openai", tenant_id=tenant)
        with pytest.raises(Invalid):
            await provider_keys.set(pool, replace(own, provider="no name"))
        with pytest.raises(NotFound):
            await provider_keys.set(pool, replace(own, tenant_id=uuid4()))
    audit = db.execute("select * from penstock.audit_log where action like 'provider_key%' order by id")
    assert [row["action"] for row in audit] == ["provider_key.set"] * 2 + ["provider_key.removed"]
    assert SECRET not in str(audit)


def test_commands_store_list_rotate_and_remove_keys(
    db: testing.Database, penstock: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def use(*masters: bytes) -> None:
        monkeypatch.setenv("PENSTOCK_MASTER_KEY", ",".join(base64.b64encode(key).decode() for key in masters))
        settings.settings.cache_clear()

    try:
        use(MASTER)
        monkeypatch.setattr(sys, "stdin", io.StringIO(f"{SECRET}\n"))
        made = penstock("providers", "keys", "set", "house", "--host", "llm.example.org")
        assert made.code == 0 and "llm.example.org" in made.err and SECRET not in made.out + made.err
        listed = penstock("providers", "keys", "ls", "--output", "json")
        assert [key["host"] for key in json.loads(listed.out)] == ["llm.example.org"]
        use(OTHER, MASTER)
        assert penstock("providers", "keys", "rotate").code == 0
        [row] = db.execute("select * from penstock.get_provider_key('house')")
        assert keys.unseal(SealedKey(**row), (OTHER,)).secret == SECRET
        assert penstock("providers", "keys", "rm", "house", "--yes").code == 0
        assert json.loads(penstock("providers", "keys", "--output", "json").out) == []
    finally:
        monkeypatch.delenv("PENSTOCK_MASTER_KEY", raising=False)
        settings.settings.cache_clear()
