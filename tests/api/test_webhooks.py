"""Webhooks over HTTP: signatures of the raw body, one application per event, failures and retries."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import random
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import jwt
import pytest
from fastapi.testclient import TestClient

from penstock import App, Invalid, api, server, signing, testing
from penstock.api.limits import Rate
from penstock.sdk.webhooks import Event, retry_due
from penstock.settings import Settings
from tests.api.conftest import SECRET

pytestmark = pytest.mark.every_postgres

KEY = "whsec_of_the_tests"
STANDARD_KEY = base64.b64encode(b"a key of 24 or more bytes").decode()


def stripe(body: bytes, *, secret: str = KEY, at: float | None = None) -> dict[str, str]:
    moment = int(time.time() if at is None else at)
    digest = hmac.new(secret.encode(), f"{moment}.".encode() + body, hashlib.sha256).hexdigest()
    return {"Stripe-Signature": f"t={moment},v1={digest},v0=ignored"}


def cloudconvert(body: bytes, secret: str = KEY) -> dict[str, str]:
    return {"CloudConvert-Signature": hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()}


def standard(body: bytes, identifier: str = "msg_1") -> dict[str, str]:
    moment = int(time.time())
    key = base64.b64decode(STANDARD_KEY)
    digest = hmac.new(key, f"{identifier}.{moment}.".encode() + body, hashlib.sha256).digest()
    signature = base64.b64encode(digest).decode()
    return {
        "webhook-id": identifier, "webhook-timestamp": str(moment), "webhook-signature": f"v2,x v1,{signature}",
    }  # fmt: skip


@dataclass
class Site:
    client: TestClient
    db: testing.Database
    app: App
    seen: list[str] = field(default_factory=list[str])
    problems: list[Exception] = field(default_factory=list[Exception])

    def send(self, event: dict[str, Any] | bytes, source: str = "stripe", **headers: str) -> Any:
        body = event if isinstance(event, bytes) else json.dumps(event).encode()
        signed = {"stripe": stripe, "cloudconvert": cloudconvert, "standard": standard}[source](body)
        return self.client.post(f"/webhooks/{source}", content=body, headers={**signed, **headers})

    def rows(self) -> list[dict[str, Any]]:
        return self.db.execute(
            "select key, type, outcome, error, deliveries from penstock.webhooks order by key"
        )


@pytest.fixture
def site(db: testing.Database, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.setattr(api.webhooks, "RETRY_SECONDS", 3600.0)
    app = App(database_url=db.dsn)
    secrets = ["the next secret", KEY]
    settings = Settings(database_url=db.dsn, api_url=server.ensure_login(db.dsn), jwt_secret=SECRET)

    async def handle(event: Event) -> Any:
        await event.connection.execute("insert into public.applied values (%s)", [event.key])
        if made.problems:
            raise made.problems.pop()
        made.seen.append(f"{event.source} {event.key} {event.type}")
        return {"old": "stale", "nobody": "unmatched"}.get(event.type)

    app.webhooks.add("stripe", scheme="stripe", secrets=secrets)(handle)
    app.webhooks.add("cloudconvert", scheme="cloudconvert", secrets=lambda: secrets)(handle)
    app.webhooks.add("standard", scheme="standard", secrets=[f"whsec_{STANDARD_KEY}"])(handle)
    db.execute("create table public.applied (key text)")
    db.execute("grant insert on public.applied to service_role")
    with TestClient(api.create(settings, app), raise_server_exceptions=False) as client:
        made = Site(client, db, app)
        yield made


def test_each_scheme_identifies_its_events(site: Site) -> None:
    assert site.send({"id": "evt_1", "type": "invoice.paid"}).json() == {"received": True}
    job = {"event": "job.finished", "job": {"id": "j1", "status": None}}
    assert site.send(job, "cloudconvert").status_code == 200
    assert site.send({"type": "user.created"}, "standard").status_code == 200
    assert site.seen == [
        "stripe evt_1 invoice.paid",
        "cloudconvert j1/job.finished job.finished",
        "standard msg_1 user.created",
    ]


def test_same_delivery_many_times_at_once_is_applied_once(site: Site) -> None:
    """S36, R4.3/deliveries, R2.5/once"""
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: site.send({"id": "evt_1", "type": "paid"}), range(20)))
    assert {answer.status_code for answer in answers} == {200}
    assert sum(answer.json() == {"duplicate": True} for answer in answers) == 19
    assert [row["deliveries"] for row in site.rows()] == [20]
    assert site.db.execute("select * from public.applied") == [{"key": "evt_1"}]


def test_failed_handler_leaves_only_its_error_and_is_tried_again(site: Site) -> None:
    """R2.5/crash: the writes of the failed try are rolled back, and the next delivery is applied."""
    site.problems.append(ValueError("no such invoice"))
    assert site.send({"id": "evt_1", "type": "paid"}).status_code == 500
    [row] = site.rows()
    assert (row["outcome"], row["error"]) == ("failed", "ValueError: no such invoice")
    assert site.db.execute("select * from public.applied") == [], "its writes are rolled back"
    assert site.send({"id": "evt_1", "type": "paid"}).status_code == 200
    assert [row["outcome"] for row in site.rows()] == ["applied"]


def test_unmatched_event_is_kept_and_answered_with_200(site: Site) -> None:
    assert site.send({"id": "evt_1", "type": "nobody"}).status_code == 200
    assert site.send({"id": "evt_2", "type": "old"}).status_code == 200
    assert [row["outcome"] for row in site.rows()] == ["unmatched", "stale"]


async def test_replayed_event_is_processed_again(db: testing.Database) -> None:
    from penstock.postgres import db as database

    app = App(database_url=db.dsn)
    seen: list[str] = []

    @app.webhooks.add("stripe", scheme="stripe", secrets=[KEY])
    async def handle(event: Event) -> None:
        seen.append(event.key)

    take = "select penstock.take_webhook('stripe', 'evt_1', 'paid', '{\"n\": 1}')"
    db.execute(take)
    db.execute("select penstock.end_webhook('stripe', 'evt_1', 'applied')")
    async with database.pool(db.dsn, name="test") as pool:
        assert await retry_due(pool, app.webhooks) == 0
        db.execute("select penstock.replay_webhook('stripe', 'evt_1')")
        assert await retry_due(pool, app.webhooks) == 1
        assert await retry_due(pool, app.webhooks) == 0
    assert seen == ["evt_1"]


def test_bad_deliveries_are_rejected_and_not_stored(site: Site) -> None:
    """R4.3/signature, R2.5/signature, S36"""
    body = json.dumps({"id": "evt_1", "type": "paid"}).encode()
    good = stripe(body)["Stripe-Signature"]
    forged: list[tuple[bytes, list[tuple[str, str]]]] = [
        (body + b" ", [("Stripe-Signature", good)]),
        (body, []),
        (body, [("Stripe-Signature", good), ("Stripe-Signature", good)]),
        (body, list(stripe(body, secret="another").items())),
        (body, list(stripe(body, at=time.time() - 600).items())),
        (body, list(stripe(body, at=time.time() + 600).items())),
        (body, [("Stripe-Signature", good.replace("v1=", "v0="))]),
        (body, [("Stripe-Signature", "t=x,v1=y")]),
        (body, [("Stripe-Signature", f"t=1,{good}")]),
    ]
    unreadable = [
        (b'{"id": "evt_1", "id": "evt_2", "type": "paid"}', "invalid_json"),
        (b'{"id": "evt_1", "type": "paid", "data": {"a": 1, "a": 2}}', "invalid_json"),
        (b"\xff", "invalid_json"),
        (b"[]", "invalid_webhook"),
        (b"{}", "invalid_webhook"),
        (b'{"id": "evt_1", "type": "paid", "text": "\\u0000"}', "unstorable_text"),
        (b'{"id": "evt\\u0000", "type": "paid"}', "unstorable_text"),
        (b'{"id": "evt\\n1", "type": "paid"}', "invalid_webhook"),
        (b'{"id": "evt_1", "type": "paid", "number": 1e400}', "unstorable_text"),
    ]
    every = [
        *((content, headers, "bad_signature") for content, headers in forged),
        *((content, list(stripe(content).items()), code) for content, code in unreadable),
    ]
    for content, headers, code in every:
        answer = site.client.post("/webhooks/stripe", content=content, headers=headers)
        assert (answer.status_code, answer.json()["status"]) == (400, 400), (content, headers)
        assert answer.json()["code"] == code, (content, answer.json())
    assert site.client.post("/webhooks/nobody", content=body).status_code == 404
    assert site.client.post("/webhooks/stripe", content=b"x" * (10 << 20)).status_code == 413
    assert site.rows() == [] and site.seen == []


def test_deliveries_are_counted_and_limited_per_source(site: Site) -> None:
    """S54: a flood of one sender is answered with 429 before its bodies are read; others are not affected."""
    state: Any = site.client.app.state  # type: ignore[attr-defined]
    state.rate = Rate(0.001, 3)
    answers = [site.client.post("/webhooks/stripe", content=b"{}").status_code for _ in range(5)]
    assert answers == [400, 400, 400, 429, 429]
    assert site.client.post("/webhooks/stripe", content=b"{}").headers["retry-after"]
    event = {"event": "job.finished", "job": {"id": "j1"}}
    assert [site.send(event, "cloudconvert").status_code for _ in range(2)] == [200, 200]
    site.problems.append(ValueError("x"))
    assert site.send({"event": "job.failed", "job": {"id": "j1"}}, "cloudconvert").status_code == 500
    state.rate = Rate(100, 100)
    now = int(time.time())
    token = jwt.encode({"role": "service_role", "iat": now, "exp": now + 60}, SECRET, "HS256")
    shown = site.client.get("/metrics", headers={"Authorization": f"Bearer {token}"}).text
    for line in (
        'penstock_webhooks_total{result="rejected",source="stripe"} 3.0',
        'penstock_webhooks_total{result="duplicate",source="cloudconvert"} 1.0',
        'penstock_webhooks_total{result="failed",source="cloudconvert"} 1.0',
        'penstock_webhooks_open{source="cloudconvert"} 1.0',
    ):
        assert line in shown, line


def test_source_without_a_secret_is_named_at_the_start(
    db: testing.Database, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    app = App(database_url=db.dsn)

    @app.webhooks.add("stripe", scheme="stripe", secrets=lambda: [""])
    async def handle(event: Event) -> None: ...

    settings = Settings(database_url=db.dsn, api_url=server.ensure_login(db.dsn), jwt_secret=SECRET)
    body = b'{"id": "evt_1", "type": "paid"}'
    with TestClient(api.create(settings, app)) as client:
        assert (
            client.post("/webhooks/stripe", content=body, headers=stripe(body, secret="")).status_code == 400
        )
    printed = capsys.readouterr()
    assert "webhooks.no_secret" in printed.out + printed.err + caplog.text


def test_any_flipped_byte_is_found() -> None:
    """S36"""
    body = json.dumps({"id": "evt_1", "type": "paid", "data": str(uuid.uuid4())}).encode()
    chance = random.Random(1)
    headers = {name.lower(): [value] for name, value in stripe(body).items()}
    signing.verify("stripe", headers, body, ["old", KEY])
    for _ in range(10_000):
        altered = bytearray(body)
        altered[chance.randrange(len(body))] ^= 1 << chance.randrange(8)
        with pytest.raises(Invalid):
            signing.verify("stripe", headers, bytes(altered), [KEY])
    for secrets in ([], [""]):
        with pytest.raises(Invalid):
            signing.verify("stripe", headers, body, secrets)


def test_broken_standard_secret_or_signature_is_rejected() -> None:
    body = b"{}"
    headers = {name: [value] for name, value in standard(body).items()}
    signing.verify("standard", headers, body, [STANDARD_KEY])
    for secret in ("", "no base64", "YQ=="):
        with pytest.raises(Invalid):
            signing.verify("standard", headers, body, [secret])
    for signature in ("", "v1", "v1,%%%", "v1,", "v2," + headers["webhook-signature"][0].split(",")[-1]):
        with pytest.raises(Invalid):
            signing.verify("standard", {**headers, "webhook-signature": [signature]}, body, [STANDARD_KEY])
