"""The app slides as its clients and CloudConvert reach it: uploads, toggles and webhooks over HTTP, also bad ones."""

from __future__ import annotations

import hmac
import json
import uuid
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from penstock import testing
from penstock.apps.slides import samples
from penstock.apps.slides.app import app
from penstock.settings import Settings
from penstock.simulator.cloudconvert import SECRET
from penstock.storage import objects as storages
from tests.api.conftest import api_settings, bearer
from tests.api.rest.conftest import Site, served
from tests.conftest import Eventually
from tests.test_containers import archive

__all__ = ["api_settings"]

pytestmark = [pytest.mark.every_postgres, pytest.mark.own_sql(app)]


@pytest.fixture
def site(
    db: testing.Database,
    drain: testing.Drain,
    api_settings: Settings,
    eventually: Eventually,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Site]:
    monkeypatch.setenv("CLOUDCONVERT_WEBHOOK_SECRET", SECRET)
    drain.use(app)
    app.storage = storages.of(api_settings)
    with served(db, api_settings, eventually, app) as made:
        yield made


class Owner:
    """A person with an event and a speech, made as a Supabase client makes them."""

    def __init__(self, site: Site, name: str) -> None:
        self.site, self.person = site, site.join(name)
        self.event = self._insert("events", name="Days")
        session = self._insert("sessions", event_id=self.event, title="Morning")
        self.speech = self._insert("speeches", session_id=session, title="Rivers")

    def _insert(self, table: str, **values: str) -> str:
        answer = self.write("POST", table, {"tenant_id": str(self.person.tenant), **values})
        assert answer.status_code == 201, answer.text
        return answer.json()[0]["id"]

    def write(self, method: str, path: str, body: Any) -> httpx.Response:
        headers = {**bearer(self.person.token), "Prefer": "return=representation"}
        return self.site.http.request(method, f"/rest/v1/{path}", json=body, headers=headers)

    def toggle(self, event: str) -> httpx.Response:
        return self.write("POST", "rpc/set_thumbnail_generation", {"p_event_id": event, "p_enabled": True})

    def upload(self, data: bytes, kind: str, speech: str | None = None) -> httpx.Response:
        begun = self.site.http.post(
            "/api/uploads",
            json={"name": "slide", "content_type": kind, "bytes": len(data)},
            headers={**bearer(self.person.token), "Idempotency-Key": f"slides/{self.speech}/{uuid.uuid4()}"},
        ).json()
        assert self.site.http.put(begun["url"], content=data).status_code == 204
        body = {"artifact_id": begun["id"], "speech_id": speech or self.speech}
        return self.site.http.post("/functions/v1/add-slide", json=body, headers=bearer(self.person.token))

    def is_enabled(self) -> bool:
        query = "select thumbnail_generation_enabled as is_on from slides.events where id = %s"
        return self.site.db.execute(query, [self.event])[0]["is_on"]


def nothing_happened(site: Site) -> None:
    """No slide, no job and no charge."""
    [row] = site.db.execute(
        "select (select count(*) from slides.slides) + (select count(*) from penstock.jobs)"
        " + (select count(*) from penstock.cost_entries) + (select count(*) from penstock.usage_events)"
        " + (select coalesce(sum(used + held), 0) from penstock.accounts where meter = 'thumbnails') as n"
    )
    assert row["n"] == 0


def code(answer: httpx.Response) -> tuple[int, str]:
    """Status and code; functions called over REST have the code in `details`, as PostgREST sends it."""
    body = answer.json()
    details = json.loads(body["details"]) if isinstance(body.get("details"), str) else body
    return answer.status_code, details["code"]


def test_upload_to_an_event_that_is_on_becomes_a_slide_with_a_job(site: Site) -> None:
    """R4.4/states: the file, the slide and its job are one commit."""
    ann = Owner(site, "ann")
    assert ann.toggle(ann.event).status_code in (200, 204)
    _, kind, data = samples.make(0)
    answer = ann.upload(data, kind)
    assert answer.status_code == 201, answer.text
    [slide] = site.db.execute("select thumbnail_status, mime_type, job_id from slides.slides")
    assert (slide["thumbnail_status"], slide["mime_type"]) == ("pending", kind) and slide["job_id"]


def test_upload_of_a_wrong_type_is_refused(site: Site) -> None:
    """R4.6/mismatch: a document that says it is a presentation, and a type that no slide has."""
    ann = Owner(site, "ann")
    docx = archive("[Content_Types].xml", "_rels/.rels", "word/document.xml")
    assert code(ann.upload(docx, samples.PPTX)) == (422, "wrong_type")
    assert code(ann.upload(b"just text", "text/plain")) == (422, "invalid_format")
    nothing_happened(site)


def test_event_and_speech_of_another_tenant_are_unknown(site: Site) -> None:
    """R4.9/ownership: a toggle by the function and by the table, and an upload."""
    ann, bob = Owner(site, "ann"), Owner(site, "bob")
    assert code(ann.toggle(bob.event)) == (404, "unknown_event")
    patched = ann.write("PATCH", f"events?id=eq.{bob.event}", {"thumbnail_generation_enabled": True})
    assert (patched.status_code, patched.json()) == (200, [])
    _, kind, data = samples.make(0)
    assert code(ann.upload(data, kind, bob.speech)) == (404, "unknown_speech")
    assert not bob.is_enabled()
    nothing_happened(site)


class TestWebhooks:
    """What CloudConvert, or somebody else, sends."""

    EVENT = b'{"event": "job.finished", "job": {"id": "j1", "tag": "018f0000-0000-7000-8000-000000000000"}}'

    def send(self, site: Site, body: bytes, secret: str = SECRET, source: str = "cloudconvert") -> Any:
        signature = hmac.new(secret.encode(), body, "sha256").hexdigest()
        headers = {"CloudConvert-Signature": signature}
        return site.http.post(f"/webhooks/{source}", content=body, headers=headers)

    def inbox(self, site: Site) -> list[tuple[str, str, int]]:
        rows = site.db.execute("select key, outcome, deliveries from penstock.webhooks")
        return [(row["key"], row["outcome"], row["deliveries"]) for row in rows]

    def test_event_of_nothing_known_is_recorded_as_unmatched(self, site: Site) -> None:
        """R4.3/deliveries: answered with 200, because CloudConvert does not repeat a 4xx."""
        assert [self.send(site, self.EVENT).status_code for _ in range(2)] == [200, 200]
        assert self.inbox(site) == [("j1/job.finished", "unmatched", 2)]
        nothing_happened(site)

    @pytest.mark.parametrize(
        ("body", "how", "expected"),
        [
            (EVENT, {"source": "nobody"}, (404, "unknown_source")),
            (EVENT, {"secret": "another"}, (400, "bad_signature")),
            (EVENT[:-1] + b', "event": "job.failed"}', {}, (400, "invalid_json")),
            (b'{"event": "job.finished"}', {}, (400, "invalid_webhook")),
            (b'{"event": "job.finished", "text": "' + b"x" * (10 << 20) + b'"}', {}, (413, "too_large")),
        ],
        ids=["unknown source", "broken signature", "doubled key", "no job", "10 MB"],
    )
    def test_bad_delivery_is_rejected_and_not_stored(
        self, site: Site, body: bytes, how: dict[str, str], expected: tuple[int, str]
    ) -> None:
        """R4.3/signature"""
        assert code(self.send(site, body, **how)) == expected
        assert self.inbox(site) == []
        nothing_happened(site)
