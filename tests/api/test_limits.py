"""Limits of the API: the size of a request, and the resources of a caller."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from typing import Any

import httpx
import jiter
import jwt
import pytest
from fastapi.testclient import TestClient

from penstock import api, dashboard, testing
from penstock.api.limits import Limits, Refusals, read_json
from penstock.errors import Invalid, TooLarge
from penstock.settings import Settings
from tests.api.conftest import SECRET, Person, Served, World, bearer, serving
from tests.conftest import Eventually

LIMITS = Limits()

# Bodies that are not JSON, or that two readers would read in two ways.
UNREADABLE = {
    "NaN": b'{"a": NaN}',
    "infinity": b'{"a": Infinity}',
    "minus infinity": b'{"a": -Infinity}',
    "a key that comes twice": b'{"role": "user", "role": "admin"}',
    "the same, further down": b'{"a": [{"b": 1, "b": 1}]}',
    "the same, escaped": b'{"a": 1, "\\u0061": 2}',
    "half a pair": b'{"a": "\\ud800"}',
    "the other half": b'{"a": "\\udc00"}',
    "halves in the wrong order": b'{"a": "\\udc00\\ud800"}',
    "a key with half a pair": b'{"\\ud800": 1}',
    "a raw NUL": b'{"a": "\0"}',
    "a raw line break": b'{"a": "\n"}',
    "not UTF-8": b'{"a": "\xff"}',
    "overlong UTF-8": b'{"a": "\xc0\x80"}',
    "a surrogate in UTF-8": b'{"a": "\xed\xa0\x80"}',
    "UTF-16": '{"a": 1}'.encode("utf-16"),
    "a byte order mark": b'\xef\xbb\xbf{"a": 1}',
    "deep lists": b"[" * 210 + b"]" * 210,
    "very deep lists": b"[" * 200_000,
    "deep objects": b'{"a":' * 210 + b"1" + b"}" * 210,
    "a number without end": b'{"a": ' + b"1" * 100_000 + b"}",
    "a comma too much": b'{"a": 1,}',
    "a comment": b'{"a": 1} // b',
    "two values": b"{} {}",
    "other quotation marks": b"{'a': 1}",
    "a zero too much": b'{"a": 01}',
    "nothing but blanks": b" ",
    "half of it": b'{"a": ',
}


@pytest.mark.shared_world
class TestBodies:
    """S39: bodies are checked before they are parsed, and parsed before anything is done."""

    @pytest.mark.parametrize("name", UNREADABLE)
    def test_ambiguous_json_is_rejected(self, name: str) -> None:
        with pytest.raises(Invalid) as refusal:
            read_json(UNREADABLE[name], LIMITS)
        assert refusal.value.code == "invalid_json"
        assert len(refusal.value.message) < 300

    def test_ambiguous_json_is_rejected_by_all_routes(self, world: World) -> None:
        ann = world.join("ann")
        json_type = {"Content-Type": "application/json"}
        for body in UNREADABLE.values():
            for method, path in (("POST", "/api/jobs/start"), ("PUT", "/api/schedules?name=a")):
                answer = world.client.request(
                    method, path, content=body, headers={**ann.headers, **json_type}
                )
                assert (answer.status_code, answer.json()["code"]) == (422, "invalid_json"), body[:40]
            path = "/rest/v1/rpc/start_job"
            answer = world.client.post(path, content=body, headers={**ann.headers, **json_type})
            # Blanks are no arguments to it, as they are to PostgREST.
            assert answer.json()["code"] == ("PGRST202" if not body.strip() else "PGRST102"), body[:40]
            assert answer.status_code in (400, 404)

    @pytest.mark.parametrize("text", ["a\\u0000b", "\\u0000"])
    def test_unstorable_text_is_reported_with_its_field(self, world: World, text: str) -> None:
        world.kind("work")
        ann = world.join("ann")
        for part, field in ((f'"note": "{text}"', "tasks[0].input.note"), (f'"{text}": 1', "tasks[0].input")):
            body = f'{{"type": "t", "tasks": [{{"kind": "work", "input": {{{part}}}}}]}}'
            headers = {**ann.headers, "Content-Type": "application/json"}
            answer = world.client.post("/api/jobs/start", content=body, headers=headers)
            assert (answer.status_code, answer.json()["code"]) == (422, "unstorable_text")
            assert field in answer.json()["field"]

    def test_unstorable_text_in_the_url_is_reported(self, world: World) -> None:
        ann = world.join("ann")
        for path in ("/api/prices?provider=a%00b", "/api/jobs?filter=type:%00"):
            answer = world.client.get(path, headers=ann.headers)
            assert (answer.status_code, answer.json()["code"]) == (422, "unstorable_text")
            assert answer.json()["field"] in ("provider", "filter")

    def test_oversized_numbers_are_rejected(self, world: World) -> None:
        world.kind("work")
        ann = world.join("ann")
        for number in ("1e400", "-1e400", "1" + "0" * 400):
            body = f'{{"type": "t", "tasks": [{{"kind": "work", "input": {{"n": {number}}}}}]}}'
            headers = {**ann.headers, "Content-Type": "application/json"}
            answer = world.client.post("/api/jobs/start", content=body, headers=headers)
            assert (answer.status_code, answer.json()["code"]) in (
                (422, "unstorable_text"),
                (422, "unreadable"),
            )

    @pytest.mark.parametrize(
        "part", [b"[],", b"{},", b'"",', b"1,", b"[[[[[[]]]]]],", b'{"a":1},', b'"\\"",', b'["a","b"],']
    )
    def test_too_many_values_are_rejected_before_parsing(
        self, part: bytes, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Parsing these would block all other requests for seconds."""

        def read(*_: Any, **__: Any) -> Any:
            pytest.fail("it was read")

        monkeypatch.setattr(jiter, "from_json", read)
        body = b"[" + part * (LIMITS.body_bytes // len(part) - 2) + b"1]"
        for each in (body, b'["' + b"x" * (2 << 20) + b'",' + body[1 : 6 << 20]):
            with pytest.raises(TooLarge):
                read_json(each, LIMITS)

    @pytest.mark.parametrize("text", ["a, b [c] {d}, ", 'say \\"a, b\\", ', "\\\\,", ",[{"])
    def test_commas_in_strings_do_not_count_as_values(self, text: str) -> None:
        body = f'{{"note": "{text * (2_000_000 // len(text))}"}}'.encode()
        assert len(read_json(body, LIMITS)["note"]) > 1_000_000

    def test_maximum_number_of_values_is_accepted(self) -> None:
        tasks = [{"kind": "work", "key": f"k{n}", "input": {"n": n}} for n in range(10_000)]
        assert read_json(json.dumps({"tasks": tasks}).encode(), LIMITS) == {"tasks": tasks}


def test_each_service_token_has_its_own_rate_limit(db: testing.Database, api_settings: Settings) -> None:
    """Tokens without a user have a bucket each."""
    app = api.create(api_settings, limits=Limits(per_second=0.001, burst=3))
    now = int(time.time())

    def legacy(reference: str) -> dict[str, str]:
        named = {"iss": "supabase", "ref": reference, "role": "service_role", "exp": now + 600}
        return bearer(jwt.encode(named, SECRET, "HS256"))

    with TestClient(app) as client:
        for headers in (legacy("a"), legacy("b")):
            codes = [client.get("/api/me", headers=headers).status_code for _ in range(4)]
            assert codes == [200, 200, 200, 429]


def test_key_guessing_at_metrics_is_rate_limited(db: testing.Database, api_settings: Settings) -> None:
    """S25"""
    app = api.create(api_settings, limits=Limits(per_second=0.001, burst=3))
    with TestClient(app) as client:
        guesses = [client.get("/metrics", headers=bearer("psk_" + "0" * 64)).status_code for _ in range(5)]
        assert guesses == [401, 401, 401, 429, 429]


def test_large_requests_count_as_several(db: testing.Database, api_settings: Settings) -> None:
    """S44: bodies of 400 kB use up a caller's requests, so that they cannot keep the process busy."""
    app = api.create(api_settings, limits=Limits(per_second=0.001, burst=20, tenant_burst=1000))
    with TestClient(app) as client:
        world = World(db, app, client)
        person = world.join("ada")
        text = json.dumps({"p_verb": "cancel", "p_subjects": [str(person.tenant)] * 10_000})

        def call() -> int:
            return client.post("/rest/v1/rpc/start_action", content=text, headers=person.headers).status_code

        assert [call(), call()] == [200, 429]


def test_refusals_of_a_tenant_are_spread_over_time() -> None:
    """S44: a client that ignores Retry-After waits longer and longer; other clients do not wait."""
    refusals = Refusals(per_second=10)
    waits = [refusals.delay("tenant:a") for _ in range(300)]
    assert waits[0] == 0
    assert waits[5] == pytest.approx(0.5, abs=0.2)
    assert waits[-1] == pytest.approx(Refusals.LONGEST_SECONDS, abs=0.2)
    assert refusals.delay("tenant:b") == 0


def test_refused_requests_wait_their_turn(db: testing.Database, api_settings: Settings) -> None:
    """S44: the second refusal comes half a second after the first."""
    app = api.create(api_settings, limits=Limits(per_second=0.001, burst=1, refusals_per_second=2))
    with TestClient(app) as client:
        world = World(db, app, client)
        person = world.join("ada")
        times: list[float] = []
        for expected in (200, 429, 429):
            assert client.get("/api/me", headers=person.headers).status_code == expected
            times.append(time.monotonic())
        assert times[2] - times[1] > 0.3


# Over a real socket


def start(world: World, person: Person, tasks: list[dict[str, Any]]) -> str:
    world.kind("work")
    options = json.dumps({"tenant_id": str(person.tenant)})
    query = "select penstock.start_job('report', '{}', %s, %s) as id"
    return str(world.db.execute(query, [json.dumps(tasks), options])[0]["id"])


@contextmanager
def sent(served: Served, text: bytes) -> Generator[socket.socket]:
    """A connection on which this much was sent, and nothing is read."""
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect(("127.0.0.1", served.port))
        connection.sendall(text)
        yield connection


def status(connection: socket.socket) -> bytes:
    connection.settimeout(10)
    return connection.recv(100).split(b"\r\n")[0].partition(b" ")[2]


def asking(path: str, person: Person, *, method: str = "GET", more: str = "") -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "Host: x", f"Authorization: {person.headers['Authorization']}"]
    return ("\r\n".join(lines) + f"\r\n{more}\r\n").encode()


def test_streams_are_limited_per_tenant_across_keys(db: testing.Database, api_settings: Settings) -> None:
    """S44: one tenant leaves streams for the others."""
    app = api.create(api_settings, limits=Limits(streams=5, streams_per_tenant=1))
    with serving(app) as served, ExitStack() as open:
        world = World(db, app, None)  # pyright: ignore[reportArgumentType]
        ann, bob = world.join("ann"), world.join("bob")
        made = db.execute("select secret from penstock.create_key('other', 'viewer', %s)", [ann.tenant])
        other = {"authorization": f"Bearer {made[0]['secret']}"}
        for person in (ann, bob):
            path = f"/api/events?tenant_id={person.tenant}"
            connection = open.enter_context(sent(served, asking(path, person)))
            assert status(connection) == b"200 OK"
        refused = httpx.get(f"{served.url}/api/events?tenant_id={ann.tenant}", headers=other)
        assert (refused.status_code, refused.json()["code"]) == (429, "limited")


@pytest.mark.parametrize("files", [64, 256, 1024, 4096, 1 << 20])
def test_streams_fit_the_files_that_the_process_can_open(files: int) -> None:
    """S66: and one tenant gets a quarter of them."""
    limits = Limits.fitting(files)
    assert 1 <= limits.streams <= max(8, files - 200, 0) and limits.streams <= 5000
    assert 1 <= limits.streams_per_caller <= limits.streams_per_tenant <= limits.streams // 4


@pytest.mark.parametrize("path", ["/api/events?tenant_id=", "/dashboard/live?tenant="])
def test_streams_are_limited(
    db: testing.Database, api_settings: Settings, eventually: Eventually, path: str
) -> None:
    """S44: per caller and in total; the end of one allows another."""
    app = api.create(api_settings, limits=Limits(streams=3, streams_per_caller=2))
    dashboard.mount(app)
    with serving(app) as served, ExitStack() as open:
        world = World(db, app, None)  # pyright: ignore[reportArgumentType]
        ann, bob, cid = (world.join(name) for name in ("ann", "bob", "cid"))

        def watch(person: Person) -> tuple[bytes, socket.socket]:
            connection = open.enter_context(sent(served, asking(f"{path}{person.tenant}", person)))
            return status(connection), connection

        _, first = watch(ann)
        assert watch(ann)[0] == b"200 OK"
        refused = httpx.get(f"{served.url}{path}{ann.tenant}", headers=ann.headers)
        assert (refused.status_code, refused.json()["code"]) == (429, "limited")
        assert int(refused.headers["retry-after"]) >= 1
        assert watch(bob)[0] == b"200 OK"
        refused = httpx.get(f"{served.url}{path}{cid.tenant}", headers=cid.headers)
        assert (refused.status_code, refused.json()["code"]) == (503, "unavailable")
        assert int(refused.headers["retry-after"]) >= 1
        first.close()
        eventually(lambda: watch(cid)[0] == b"200 OK", "room for another")


# Held connections of the API that are in use: one that waits for a client would be among them.
BUSY = """
select count(*) as n from pg_stat_activity where datname = current_database()
  and application_name like 'penstock api%' and state <> 'idle'"""


@pytest.mark.parametrize("how", ["headers", "body", "chunks", "upload", "answer", "events"])
def test_slow_request_uses_no_database_connection(
    db: testing.Database, api_settings: Settings, eventually: Eventually, how: str
) -> None:
    """S44: more slow clients than connections do not delay other requests."""
    app = api.create(api_settings, limits=Limits(statement_seconds=5, bytes_per_request=1 << 30))
    with serving(app) as served, ExitStack() as open:
        world = World(db, app, None)  # pyright: ignore[reportArgumentType]
        ann = world.join("ann")
        note = "x" * 40_000
        tasks = [{"kind": "work", "input": {"note": note}}] * (200 if how == "answer" else 1)
        job = start(world, ann, tasks)
        begun = httpx.post(
            f"{served.url}/api/uploads",
            json={"name": "a.txt", "content_type": "text/plain", "bytes": 100_000},
            headers=ann.headers,
        ).json()
        path = begun["url"].removeprefix(served.url)
        text = {
            "headers": asking("/api/me", ann)[:-6],
            "body": asking("/api/jobs/start", ann, method="POST", more="Content-Length: 1000\r\n")
            + b'{"type"',
            "chunks": asking("/api/jobs/start", ann, method="POST", more="Transfer-Encoding: chunked\r\n")
            + b'7\r\n{"type"\r\n',
            "upload": asking(path, ann, method="PUT", more="Content-Length: 100000\r\n") + b"x" * 1000,
            "answer": asking(f"/api/jobs/{job}/tasks?limit=200", ann),
            "events": asking(f"/api/jobs/{job}/events", ann),
        }[how]
        slow = [open.enter_context(sent(served, text)) for _ in range(12)]
        if how in ("answer", "events"):
            # They have begun to be answered.
            for connection in slow:
                connection.settimeout(20)
                assert connection.recv(9) == b"HTTP/1.1 "
        with world.db.connect() as looking:
            eventually(lambda: looking.execute(BUSY).fetchone() == {"n": 0}, "no connection is held")
        with httpx.Client(base_url=served.url, headers=ann.headers) as client:
            for _ in range(5):
                assert client.get(f"/api/jobs/{job}").status_code == 200
        # All of them are still there, and of the answers most has not been read.
        connections: Any = served.server.server_state.connections
        unread = [each for each in connections if each.transport.get_write_buffer_size()]
        assert len(unread if how == "answer" else connections) >= len(slow)
