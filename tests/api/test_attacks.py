"""Attacks on the routes under /api."""

from __future__ import annotations

import copy
import gzip
import io
import json
import zipfile
from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qsl, urlencode

import pytest
import structlog

from penstock.api.limits import Rate
from tests.api.conftest import World
from tests.api.matrix import CANARY, filled, make
from tests.api.test_artifacts import upload
from tests.api.test_matrix import ROWS

# Each is meant to become something else than a value.
INJECTIONS = [
    "' or 1=1 --",
    "'; drop table penstock.jobs; --",
    "x' union select set_config('request.jwt.claims', '{\"sub\": \"ANN\"}', true) --",
    "$$||(select pg_sleep(10))||$$",
    "%s %(x)s %% {0} ${x}",
    "\\'); reset role; --",
    "{a,b}",
    "\u202e\u2028\uff07 or true",
]


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The places of a document with a text or a field name."""
    if isinstance(value, str):
        yield path
    elif isinstance(value, dict):
        for name, item in value.items():
            yield from places(item, (*path, name))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from places(item, (*path, index))


def with_text(value: Any, path: tuple[Any, ...], text: str) -> Any:
    changed = copy.deepcopy(value)
    place = changed
    for part in path[:-1]:
        place = place[part]
    place[path[-1]] = text
    return changed


@pytest.mark.slow
def test_sql_in_text_fields_is_stored_as_text(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """S12, S52: in every field of every body, every parameter and every header, SQL is only text."""
    monkeypatch.setattr(world.app.state, "rate", Rate(10**9, 10**9))
    monkeypatch.setattr(world.app.state.rates, "tenants", Rate(10**9, 10**9))
    ann, bob = world.join("ann"), world.join("bob")
    mine, theirs = make(world, bob), make(world, ann)
    tried = 0
    # (Her id is in what is sent.)
    secret = (str(ann.tenant), str(theirs.job_id), str(theirs.key_id))
    with structlog.testing.capture_logs() as logs:
        for name, row in ROWS.items():
            if row.is_stream or row.least in ("service", "worker", "anybody", "nobody"):
                continue
            method, path = name.split(" ")
            target, body = filled(path, mine, row), filled(row.body, mine, row)
            query = dict(parse_qsl(filled(row.query, mine, row).lstrip("?")))
            for text in (each.replace("ANN", str(ann.id)) for each in INJECTIONS):
                requests: list[tuple[Any, Any, dict[str, str]]] = [
                    *((with_text(query, at, text), body, {}) for at in places(query)),
                    *((query, with_text(body, at, text), {}) for at in places(body)),
                    *([(query, {**body, text: text}, {})] if isinstance(body, dict) else []),
                    ({**query, text: text}, body, {}),
                ]
                for parameters, sent, headers in requests:
                    answer = world.client.request(
                        method,
                        f"{target}?{urlencode(parameters)}",
                        json=sent,
                        headers={**bob.headers, **headers},
                        follow_redirects=False,
                    )
                    tried += 1
                    assert answer.status_code < 500, (name, text, answer.text)
                    assert not [word for word in secret if word in answer.text], (name, text)
    assert tried > 500
    assert CANARY not in json.dumps(logs, default=repr)
    assert not [log for log in logs if log["event"] == "request failed"]


def test_callers_cannot_set_internal_fields(world: World) -> None:
    """S3: an unknown field is refused and nothing is done, also inside a task."""
    ann = world.join("ann")
    things = make(world, ann)
    claims = (
        "id",
        "status",
        "state",
        "attempt",
        "lease",
        "cost",
        "created_by",
        "created_at",
        "is_service",
        "__proto__",
    )
    tried = 0
    before = world.db.execute("select count(*) as n from penstock.audit_log")
    for name, row in ROWS.items():
        if not isinstance(row.body, dict) or row.least in ("service", "worker"):
            continue
        method, path = name.split(" ")
        target, body = filled(path + row.query, things, row), filled(row.body, things, row)
        sent = [{**body, claim: 1} for claim in claims]
        if "tasks" in body:
            sent += [{**body, "tasks": [{**body["tasks"][0], claim: 1}]} for claim in claims]
        for document in sent:
            answer = world.client.request(method, target, json=document, headers=ann.headers)
            assert answer.status_code == 422, (name, document)
            tried += 1
    assert tried > 100
    assert world.db.execute("select count(*) as n from penstock.audit_log") == before


@pytest.mark.shared_world
@pytest.mark.parametrize(
    "name", ["Idempotency-Key", "If-None-Match", "X-Request-ID", "apikey", "Prefer", "Range"]
)
def test_sql_in_headers_has_no_effect(world: World, name: str) -> None:
    """S12, S35: headers are only text, too."""
    world.kind("work")
    ann = world.join("ann")
    for text in INJECTIONS:
        headers = {**ann.headers, name: text.encode()}
        body = {"type": "t", "tasks": [{"kind": "work"}]}
        for answer in (
            world.client.get("/api/jobs", headers=headers),  # pyright: ignore[reportArgumentType]
            world.client.post("/api/jobs/forecast", json=body, headers=headers),  # pyright: ignore[reportArgumentType]
        ):
            # Keys are stored, so they have no control characters.
            is_refused = name == "Idempotency-Key" and answer.json().get("code") == "invalid_key"
            assert is_refused or answer.status_code in (200, 409), answer.text
            assert text not in answer.headers.get("x-request-id", "")


@pytest.mark.shared_world
class TestPacked:
    """S30, S39: nothing is unpacked, so archives cannot fill memory."""

    def test_compressed_json_body_is_rejected(self, world: World) -> None:
        ann = world.join("ann")
        bomb = gzip.compress(b'{"type": "' + b"x" * 10_000_000 + b'"}')
        assert len(bomb) < 20_000
        for coding in ("gzip", "deflate", "br", "identity"):
            headers = {**ann.headers, "Content-Type": "application/json", "Content-Encoding": coding}
            answer = world.client.post("/api/jobs/start", content=bomb, headers=headers)
            assert (answer.status_code, answer.json()["code"]) == (422, "invalid_json")

    def test_uploaded_archive_is_not_unpacked(self, world: World) -> None:
        """An archive that is a thousand times as large unpacked, and one of very many parts."""
        ann = world.join("ann")
        archive = io.BytesIO()
        with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as packed:
            packed.writestr("[Content_Types].xml", b"0" * 5_000_000)
            for number in range(5_000):
                packed.writestr(f"word/../../{number}", b"")
        data = archive.getvalue()
        answer = upload(world, ann, data, name="bomb.zip", content_type="application/zip")
        assert answer.status_code == 200, answer.text
        fetched = world.client.get(answer.json()["url"])
        assert fetched.content == data
        assert fetched.headers["content-disposition"].startswith("attachment;")
        word = "application/vnd.openxmlformats-officedocument.wordprocessingml.document"
        refused = upload(world, ann, data, name="bomb.docx", content_type=word)
        assert (refused.status_code, refused.json()["code"]) == (422, "wrong_type")

    def test_compressed_upload_is_stored_unchanged(self, world: World) -> None:
        ann = world.join("ann")
        bomb = gzip.compress(b"x" * 10_000_000)
        body = {"name": "a.txt", "content_type": "text/plain", "bytes": len(bomb)}
        begun = world.client.post("/api/uploads", json=body, headers=ann.headers).json()
        sent = world.client.put(begun["url"], content=bomb, headers={"Content-Encoding": "gzip"})
        assert sent.status_code == 204
        refused = world.client.post(begun["finish"], headers=ann.headers)
        assert (refused.status_code, refused.json()["code"]) == (422, "wrong_type")
