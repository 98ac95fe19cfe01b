"""What every route does: answers, problems, pages, tags, idempotency keys, limits."""

from __future__ import annotations

import json
import logging
import re
import threading
import uuid
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, cast

import pytest
import structlog
from fastapi.testclient import TestClient

from penstock import App, api, testing
from penstock.api.limits import Limits, Rate
from penstock.errors import Limited
from penstock.settings import Settings
from tests.api.conftest import Person, World, bearer

TASKS = [{"kind": "work"}]


@pytest.fixture
def ann(world: World) -> Person:
    world.kind("work")
    return world.join("ann")


def start(world: World, who: Person, **others: Any) -> str:
    answer = world.client.post(
        "/api/jobs/start", json={"type": "report", "tasks": TASKS, **others}, headers=who.headers
    )
    assert answer.status_code == 201, answer.text
    return answer.json()["id"]


@pytest.mark.shared_world
class TestJobs:
    def test_a_job_from_start_to_end(self, world: World, ann: Person) -> None:
        """R1.1/start, R1.1/get: start makes the job and its tasks, get shows its progress."""
        tasks = [{"kind": "work", "key": "a"}, {"kind": "work", "key": "b", "after": ["a"]}]
        job_id = start(world, ann, tasks=tasks, params={"topic": "rivers"})
        job = world.client.get(f"/api/jobs/{job_id}", headers=ann.headers).json()
        assert job["status"] == "queued"
        assert job["params"] == {"topic": "rivers"}
        assert job["created_by"] == f"user:{ann.id}"
        progress = job["progress"]
        assert {name: progress[name] for name in ("percent", "docsComplete", "docsTotal", "message")} == {
            "percent": 0,
            "docsComplete": 0,
            "docsTotal": 2,
            "message": None,
        }
        found = world.client.get(f"/api/jobs/{job_id}/tasks", headers=ann.headers).json()
        assert [(task["key"], task["status"]) for task in found["items"]] == [
            ("a", "queued"),
            ("b", "blocked"),
        ]
        first = found["items"][0]
        why = world.client.get(f"/api/jobs/{job_id}/tasks/{first['id']}/why", headers=ann.headers).json()
        assert why["status"] == "queued"
        assert (
            world.client.get(f"/api/jobs/{job_id}/tasks/{first['id']}", headers=ann.headers).json() == first
        )

        paused = world.client.post(f"/api/jobs/{job_id}/pause", json={"reason": "lunch"}, headers=ann.headers)
        assert paused.json() == {"status": "paused"}
        resumed = world.client.post(f"/api/jobs/{job_id}/resume", headers=ann.headers)
        assert resumed.json()["status"] in ("queued", "running")
        canceled = world.client.post(f"/api/jobs/{job_id}/cancel", headers=ann.headers)
        assert canceled.json() == {"status": "canceled"}
        again = world.client.post(f"/api/jobs/{job_id}/resume", headers=ann.headers)
        assert (again.status_code, again.headers["content-type"]) == (409, "application/problem+json")

    def test_amounts_are_exact(self, world: World, ann: Person) -> None:
        job_id = start(world, ann, budget="0.1234567890123456789", priority=3, delay_seconds=1, paused=True)
        cost = world.client.get(f"/api/jobs/{job_id}/costs", headers=ann.headers).json()
        assert cost["budget"] == "0.1234567890123456789"
        answer = world.client.put(f"/api/jobs/{job_id}/budget", json={"amount": None}, headers=ann.headers)
        assert answer.status_code == 204
        cost = world.client.get(f"/api/jobs/{job_id}/costs", headers=ann.headers).json()
        assert cost["budget"] is None

    def test_an_app_draws_the_tasks(self, db: testing.Database, api_settings: Settings) -> None:
        """R1.1/start in its shortest form: type and params are enough."""
        app = App(tenant="app")

        @app.task
        def write(topic: str) -> str:
            return topic

        @app.job
        def publish(topics: list[str]) -> None:
            for topic in topics:
                write.step(topic)

        with TestClient(api.create(api_settings, app)) as client:
            world = World(db, api.create(api_settings), client)
            ann = world.join("ann")
            body = {"type": "publish", "params": {"topics": ["a", "b", "c"]}}
            started = client.post("/api/jobs/start", json=body, headers=ann.headers)
            assert started.status_code == 201, started.text
            job = client.get(f"/api/jobs/{started.json()['id']}", headers=ann.headers).json()
            assert job["progress"]["docsTotal"] == 3
            for wrong in ({"type": "publish", "params": {"nonsense": 1}}, {"type": "unknown"}):
                assert client.post("/api/jobs/start", json=wrong, headers=ann.headers).status_code == 422
            problem = client.post("/api/jobs/start", json={"type": "publsh"}, headers=ann.headers).json()
            assert (problem["code"], problem["detail"]) == ("unknown_job_type", "unknown job type 'publsh'")
            assert problem["hint"] == "The app has publish, write."

    def test_a_forecast_starts_nothing(self, world: World, ann: Person) -> None:
        answer = world.client.post(
            "/api/jobs/forecast", json={"type": "t", "tasks": TASKS}, headers=ann.headers
        )
        assert answer.status_code == 200
        assert answer.json()["tasks"] == 1
        assert world.client.get("/api/jobs", headers=ann.headers).json()["items"] == []


@pytest.mark.shared_world
def test_reference_and_schema_are_where_people_look(world: World) -> None:
    for path in ("/docs", "/redoc"):
        page = world.client.get(path)
        assert page.status_code == 200 and "/api/jobs/{job_id}" in page.text
        assert "<script" not in page.text and "://" not in page.text, "it needs no other host"
    schema = world.client.get("/openapi.json")
    assert schema.status_code == 200 and schema.json()["openapi"].startswith("3.")


@pytest.mark.shared_world
def test_names_of_all_fields_and_query_parameters_are_in_snake_case(world: World) -> None:
    """docsComplete and docsTotal are the only exceptions: the requirements name them so (docs/api.md)."""

    def names(node: Any) -> Iterator[str]:
        if isinstance(node, dict):
            values = cast("dict[str, Any]", node)
            if isinstance(values.get("properties"), dict):
                yield from values["properties"]
            if values.get("in") == "query":
                yield values["name"]
            for value in values.values():
                yield from names(value)
        elif isinstance(node, list):
            for value in cast("list[Any]", node):
                yield from names(value)

    found = set(names(world.app.openapi()))
    assert len(found) > 150 and {"docs_total", "tenant_id"} - found == {"docs_total"}
    assert {name for name in found if not re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", name)} == {
        "docsComplete",
        "docsTotal",
    }


@pytest.mark.shared_world
class TestIsolation:
    def test_requests_of_many_at_once_do_not_mix(self, world: World, ann: Person) -> None:
        """S19: connections are shared, but not the settings of a caller."""
        people = [ann, *(world.join(f"user{number}") for number in range(7))]
        own = {person.id: start(world, person) for person in people}
        wrong: list[Any] = []

        def ask(person: Person) -> None:
            for _ in range(15):
                found = world.client.get("/api/jobs", headers=person.headers).json()["items"]
                wrong.extend(job for job in found if job["id"] != own[person.id])
                wrong.extend([] if len(found) == 1 else [found])

        threads = [threading.Thread(target=ask, args=(person,)) for person in people]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert wrong == []


@pytest.mark.shared_world
class TestPages:
    def test_pages_are_complete_and_do_not_overlap(self, world: World, ann: Person) -> None:
        made = [start(world, ann) for _ in range(5)]
        seen: list[str] = []
        cursor: str | None = ""
        while cursor is not None:
            answer = world.client.get(
                "/api/jobs",
                params={"limit": 2, **({"cursor": cursor} if cursor else {})},
                headers=ann.headers,
            ).json()
            seen += [job["id"] for job in answer["items"]]
            cursor = answer["next"]
        assert seen == made[::-1]

    def test_tasks_come_in_pages(self, world: World, ann: Person) -> None:
        job_id = start(world, ann, tasks=TASKS * 3)
        first = world.client.get(f"/api/jobs/{job_id}/tasks?limit=2", headers=ann.headers).json()
        rest = world.client.get(
            f"/api/jobs/{job_id}/tasks?limit=2&cursor={first['next']}", headers=ann.headers
        ).json()
        assert (len(first["items"]), len(rest["items"]), rest["next"]) == (2, 1, None)

    def test_schedules_come_in_pages(self, world: World, ann: Person) -> None:
        """S38"""
        schedule = {"cron": "0 3 * * *", "job_type": "report", "tasks": TASKS}
        for name in "bac":
            world.client.put(f"/api/schedules?name={name}", json=schedule, headers=ann.headers)
        first = world.client.get("/api/schedules?limit=2", headers=ann.headers).json()
        rest = world.client.get(f"/api/schedules?limit=2&cursor={first['next']}", headers=ann.headers).json()
        assert [each["name"] for each in first["items"] + rest["items"]] == ["b", "a", "c"]
        assert (len(first["items"]), rest["next"]) == (2, None)

    def test_attempts_come_in_pages(self, world: World, ann: Person) -> None:
        """S38"""
        job_id = start(world, ann)
        places = [(1, 5), (1, 7), (2, 3), (2, 6), (3, 1)]
        for task, lease in places:
            world.db.execute(
                "insert into penstock.attempts (job_id, task_id, lease, tenant_id, attempt, worker_id, "
                "started_at, ended_at, outcome, error_code) "
                "values (%s, %s, %s, %s, 1, 'w', now(), now(), 'failed', 'x')",
                [job_id, task, lease, ann.tenant],
            )
        url = f"/api/jobs/{job_id}/attempts?limit=2"
        seen: list[tuple[int, int]] = []
        cursor = ""
        while cursor is not None:
            answer = world.client.get(f"{url}{cursor and '&cursor=' + cursor}", headers=ann.headers).json()
            assert 0 < len(answer["items"]) <= 2
            seen += [(each["task_id"], each["lease"]) for each in answer["items"]]
            cursor = answer["next"]
        assert seen == places
        only = world.client.get(f"{url}&task_id=2", headers=ann.headers).json()
        assert [each["lease"] for each in only["items"]] == [3, 6]
        for wrong in ("1", "1-", "-1", "1-x", "1-2-3", "1" * 17 + "-1"):
            assert world.client.get(f"{url}&cursor={wrong}", headers=ann.headers).status_code == 422

    def test_filters_select_jobs(self, world: World, ann: Person) -> None:
        start(world, ann)
        other = start(world, ann, type="other")
        found = world.client.get(
            "/api/jobs", params={"filter": "type:other age:<1h"}, headers=ann.headers
        ).json()
        assert [job["id"] for job in found["items"]] == [other]
        wrong = world.client.get("/api/jobs", params={"filter": "nonsense:1"}, headers=ann.headers)
        assert (wrong.status_code, wrong.json()["code"]) == (422, "invalid_filter")

    @pytest.mark.parametrize(
        "query",
        ["limit=0", "limit=201", "limit=x", "limit=99999999999999999999", "cursor=x", "cursor=1", "tenant_id=x",
         "filter=" + "x" * 2001],
    )  # fmt: skip
    def test_invalid_cursors_and_limits_are_rejected(self, world: World, ann: Person, query: str) -> None:
        """S9, S38: pages have a maximum size, and invalid cursors do not reach the database."""
        answer = world.client.get(f"/api/jobs?{query}", headers=ann.headers)
        assert answer.status_code == 422

    @pytest.mark.parametrize("cursor", ["-1", str(1 << 63), "1e3", "0190a1b2-c3d4-7e5f-8a9b-0c1d2e3f4a5b"])
    def test_invalid_task_ids_are_rejected(self, world: World, ann: Person, cursor: str) -> None:
        job_id = start(world, ann)
        for url in (f"/api/jobs/{job_id}/tasks?cursor={cursor}", f"/api/jobs/{job_id}/tasks/{cursor}"):
            assert world.client.get(url, headers=ann.headers).status_code == 422


@pytest.mark.shared_world
class TestTags:
    def test_unchanged_response_is_304(self, world: World, ann: Person) -> None:
        url = f"/api/jobs/{start(world, ann)}"
        first = world.client.get(url, headers=ann.headers)
        tag = first.headers["etag"]
        for header in (tag, f"W/{tag}", f'"x", {tag}'):
            again = world.client.get(url, headers={**ann.headers, "If-None-Match": header})
            assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", tag)
        world.client.post(f"{url}/pause", headers=ann.headers)
        changed = world.client.get(url, headers={**ann.headers, "If-None-Match": tag})
        assert changed.status_code == 200
        assert changed.headers["etag"] != tag

    def test_etag_grants_no_access(self, world: World, ann: Person) -> None:
        url = f"/api/jobs/{start(world, ann)}"
        tag = world.client.get(url, headers=ann.headers).headers["etag"]
        bob = world.join("bob")
        for known in (tag, "*"):
            answer = world.client.get(url, headers={**bob.headers, "If-None-Match": known})
            assert answer.status_code == 404


@pytest.mark.shared_world
class TestIdempotency:
    def post(self, world: World, who: Person, url: str, body: Any, key: str) -> Any:
        return world.client.post(url, json=body, headers={**who.headers, "Idempotency-Key": key})

    def test_same_idempotency_key_returns_the_same_job(self, world: World, ann: Person) -> None:
        body = {"type": "report", "tasks": TASKS, "params": {"n": 1}}
        first = self.post(world, ann, "/api/jobs/start", body, "k")
        assert self.post(world, ann, "/api/jobs/start", body, "k").json() == first.json()
        other = self.post(world, ann, "/api/jobs/start", {**body, "params": {"n": 2}}, "k")
        assert (other.status_code, other.json()["code"]) == (409, "idempotency_key_reused")
        assert other.json()["job_id"] == first.json()["id"]
        # A colleague's request with the same key is the same request; another tenant's is another.
        colleague = world.member("member", ann.tenant)
        assert self.post(world, colleague, "/api/jobs/start", body, "k").json() == first.json()
        bob = world.join("bob")
        assert self.post(world, bob, "/api/jobs/start", body, "k").json() != first.json()

    def test_same_idempotency_key_replays_the_response(self, world: World, ann: Person) -> None:
        url = f"/api/jobs/{start(world, ann)}/tasks"
        first = self.post(world, ann, url, {"tasks": TASKS}, "k")
        assert first.status_code == 201
        assert "idempotency-replayed" not in first.headers
        again = self.post(world, ann, url, {"tasks": TASKS}, "k")
        assert (again.status_code, again.json()) == (201, first.json())
        assert again.headers["idempotency-replayed"] == "true"
        assert len(world.client.get(url, headers=ann.headers).json()["items"]) == 2
        for changed_url, body in ((url, {"tasks": [*TASKS, *TASKS]}), (f"{url}?x=1", {"tasks": TASKS})):
            other = self.post(world, ann, changed_url, body, "k")
            assert (other.status_code, other.json()["code"]) == (409, "idempotency_key_reused")

    def test_failed_request_can_be_repeated_with_its_key(self, world: World, ann: Person) -> None:
        job_id = start(world, ann)
        url = f"/api/jobs/{job_id}/resume"
        assert self.post(world, ann, url, None, "k").status_code in (200, 409)
        bad = f"/api/jobs/{uuid.uuid4()}/pause"
        assert self.post(world, ann, bad, None, "p").status_code == 404
        assert self.post(world, ann, f"/api/jobs/{job_id}/pause", None, "p").status_code == 200

    def test_idempotency_keys_are_scoped_to_callers(self, world: World, ann: Person) -> None:
        bob = world.join("bob")
        for who in (ann, bob):
            url = f"/api/jobs/{start(world, who)}/tasks"
            assert self.post(world, who, url, {"tasks": TASKS}, "k").status_code == 201
        # Not even what the other has been told before.
        answer = self.post(world, bob, url.replace("tasks", "pause"), None, "k")
        assert answer.status_code == 409

    @pytest.mark.parametrize("key", ["", "x" * 256])
    def test_invalid_idempotency_keys_are_rejected(self, world: World, ann: Person, key: str) -> None:
        job_id = start(world, ann)
        assert self.post(world, ann, f"/api/jobs/{job_id}/pause", None, key).status_code == 422
        assert self.post(world, ann, "/api/jobs/start", {"type": "t", "tasks": TASKS}, key).status_code == 422

    def test_concurrent_requests_with_one_key_run_once(self, world: World, ann: Person) -> None:
        """Of ten concurrent requests one runs, and the others wait for its response."""
        url = f"/api/jobs/{start(world, ann)}/tasks"
        answers: list[Any] = []

        def ask() -> None:
            answers.append(self.post(world, ann, url, {"tasks": TASKS}, "k"))

        threads = [threading.Thread(target=ask) for _ in range(10)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert {answer.status_code for answer in answers} == {201}
        assert len({answer.text for answer in answers}) == 1
        assert sum("idempotency-replayed" not in answer.headers for answer in answers) == 1

    def test_replays_expire_after_a_day(self, world: World, ann: Person, clock: testing.Clock) -> None:
        url = f"/api/jobs/{start(world, ann)}/tasks"
        first = self.post(world, ann, url, {"tasks": TASKS}, "k")
        clock.advance(hours=25)
        assert self.post(world, ann, url, {"tasks": TASKS}, "k").json() != first.json()
        assert world.db.execute("select count(*) as n from penstock.requests")[0]["n"] == 1


@pytest.mark.shared_world
class TestProblems:
    def test_errors_are_problem_documents(self, world: World, ann: Person) -> None:
        answer = world.client.get(
            f"/api/jobs/{uuid.uuid4()}", headers={**ann.headers, "X-Request-ID": "abc.1"}
        )
        assert answer.headers["content-type"] == "application/problem+json"
        assert answer.headers["x-request-id"] == "abc.1"
        problem = answer.json()
        assert {name: problem[name] for name in ("type", "status", "code", "request_id")} == {
            "type": "about:blank",
            "status": 404,
            "code": "unknown_job",
            "request_id": "abc.1",
        }
        assert problem["title"] and problem["detail"]

    @pytest.mark.parametrize("given", ["", "x" * 65, "a b", "<script>", "a\\nb"])
    def test_invalid_request_id_is_replaced(self, world: World, given: str) -> None:
        answer = world.client.get("/healthz", headers={"X-Request-ID": given})
        assert answer.headers["x-request-id"] != given
        assert len(answer.headers["x-request-id"]) == 32

    def test_invalid_bodies_are_rejected(self, world: World, ann: Person) -> None:
        task = b'"tasks": [{"kind": "work"}]'
        deep = b"[" * 70 + b"]" * 70
        for content in (
            b"",
            b"{",
            b"[]",
            b"null",
            b'{"type": 1}',
            b'{"type": "t"}',
            b'{"type": "t", "tasks": []}',
            b'{"type": "t", "surprise": 1, %b}' % task,
            b'{"type": "t", "tasks": [{"kind": "unknown"}]}',
            b'{"type": "t", "tasks": [{"kind": "work", "input": {"a": "\\u0000"}}]}',
            b'{"type": "t", "tasks": [{"kind": "work", "input": {"a": "\\ud800"}}]}',
            b'{"type": "t", "tasks": [{"kind": "work", "input": {"a": NaN}}]}',
            b'{"type": "t", "tasks": [{"kind": "work", "input": {"a": %b}}]}' % deep,
            b'{"type": "t", "params": {"a": 1e999}, %b}' % task,
            b'{"type": "t", "budget": "NaN", %b}' % task,
            b'{"type": "t", "priority": true, %b}' % task,
            b'{"type": "t", "paused": "no", %b}' % task,
            b'{"type": "t", "delay_seconds": false, %b}' % task,
            b'{"type": "t", "run_at": "2026-01-01T00:00:00", %b}' % task,
            b'{"type": "\xff", %b}' % task,
            b"[" * 100_000,
        ):
            headers = {**ann.headers, "Content-Type": "application/json"}
            answer = world.client.post("/api/jobs/start", content=content, headers=headers)
            assert answer.status_code == 422, (content[:100], answer.text)
            assert answer.headers["content-type"] == "application/problem+json"
            assert answer.json()["status"] == 422
        assert world.client.get("/api/jobs", headers=ann.headers).json()["items"] == []

    def test_validation_error_names_the_field_without_its_value(self, world: World, ann: Person) -> None:
        body = {"type": "t", "tasks": TASKS, "priority": "hunter2", "run_at": "hunter2"}
        problem = world.client.post("/api/jobs/start", json=body, headers=ann.headers).json()
        assert [error["field"] for error in problem["errors"]] == ["priority", "run_at"]
        assert "hunter2" not in json.dumps(problem)

    def test_unknown_objects_are_not_found(self, world: World, ann: Person) -> None:
        for method, url, status in (("GET", "/api/nothing", 404), ("PATCH", "/api/jobs", 405)):
            answer = world.client.request(method, url, headers=ann.headers)
            assert (answer.status_code, answer.headers["content-type"]) == (
                status,
                "application/problem+json",
            )

    def test_wrong_method_lists_allowed_methods(self, world: World, ann: Person) -> None:
        answer = world.client.patch(f"/api/jobs/{uuid.uuid4()}/tasks", headers=ann.headers)
        assert (answer.status_code, answer.headers["allow"]) == (405, "GET, POST")

    @pytest.mark.slow
    @pytest.mark.usefixtures("db")
    def test_postgresql_messages_are_not_exposed(self, world: World, ann: Person) -> None:
        """Messages of PostgreSQL name tables, logins and addresses."""
        world.db.execute("drop view penstock.dead_letter_list")
        answer = world.client.get("/api/dead-letters", headers=ann.headers)
        assert answer.status_code == 500
        assert "relation" not in answer.text and "dead_letter_list" not in answer.text

    @pytest.mark.usefixtures("db")
    def test_unexpected_error_is_logged_and_answered(self, world: World, ann: Person) -> None:
        world.db.execute(
            "create or replace function penstock.get_job(p_job_id uuid) returns jsonb language sql as $$ select to_jsonb(1 / 0) $$"
        )
        with structlog.testing.capture_logs() as logs:
            answer = world.client.get(f"/api/jobs/{uuid.uuid4()}", headers=ann.headers)
        assert (answer.status_code, answer.json()["code"]) == (500, "error")
        assert "division" not in answer.text
        assert answer.headers["x-request-id"] == answer.json()["request_id"]
        assert [log for log in logs if log["event"] == "request failed"]

    def test_log_contains_no_secrets(
        self, world: World, ann: Person, caplog: pytest.LogCaptureFixture
    ) -> None:
        """S25: no credential, address or body is in a log line."""
        key = world.key("owner", ann.tenant)
        with structlog.testing.capture_logs() as logs, caplog.at_level(logging.DEBUG):
            for headers in (ann.headers, bearer(key), {"apikey": key}, bearer("psk_" + "0" * 64)):
                world.client.get("/api/jobs?filter=type:hunter2", headers=headers)
                world.client.post("/api/jobs/start", json={"type": "hunter2"}, headers=headers)
        text = json.dumps(logs, default=repr) + caplog.text
        assert '"route": "/api/jobs"' in text
        secrets = (key, ann.headers["Authorization"].split()[1], "hunter2", "psk_000")
        # The test's client logs addresses itself.
        ours = json.dumps(logs, default=repr)
        assert not [secret for secret in secrets if secret in ours]


@pytest.fixture
def strict(db: testing.Database, api_settings: Settings) -> Iterator[World]:
    """The application with limits that a test can reach."""
    app = api.create(
        api_settings, limits=Limits(body_bytes=1000, burst=5, per_second=0.001, statement_seconds=1)
    )
    with TestClient(app) as client:
        yield World(db, app, client)


class TestLimits:
    def test_large_body_is_rejected(self, strict: World) -> None:
        ann = strict.join("ann")

        def parts() -> Iterator[bytes]:
            for _ in range(20):
                yield b" " * 100

        for content in (b" " * 1001, parts()):
            answer = strict.client.post("/api/jobs/start", content=content, headers=ann.headers)
            assert (answer.status_code, answer.json()["code"]) == (413, "too_large")

    def test_too_many_requests(self, strict: World) -> None:
        ann, bob = strict.join("ann"), strict.join("bob")
        answers = [strict.client.get("/api/me", headers=ann.headers) for _ in range(6)]
        assert [answer.status_code for answer in answers] == [200] * 5 + [429]
        assert int(answers[-1].headers["retry-after"]) >= 1
        assert answers[-1].json()["code"] == "limited"
        assert strict.client.get("/api/me", headers=bob.headers).status_code == 200

    def test_key_guessing_is_rate_limited(self, strict: World) -> None:
        """S25: bad credentials count against their address; valid ones from there still work."""
        ann = strict.join("ann")
        answers = [strict.client.get("/api/me", headers=bearer("psk_" + "0" * 64)) for _ in range(6)]
        assert [answer.status_code for answer in answers] == [401] * 5 + [429]
        assert strict.client.get("/api/me", headers=ann.headers).status_code == 200

    @pytest.mark.slow
    def test_rate_limited_guesses_do_not_reach_the_database(
        self, strict: World, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """S25: an address that used a valid key before may still use valid keys."""
        monkeypatch.setattr("penstock.api.callers.KNOWN_SECONDS", 0)
        ann = strict.join("ann")
        good, ended = (strict.member("viewer", ann.tenant) for _ in range(2))
        for each in (good, ended):
            assert strict.client.get("/api/me", headers=each.headers).status_code == 200
        for number in range(5):
            guess = bearer(f"psk_{number:064x}")
            assert strict.client.get("/api/me", headers=guess).status_code == 401
        assert strict.client.get("/api/me", headers=good.headers).status_code == 200
        strict.db.execute("select penstock.revoke_key(%s)", [ended.id])
        assert strict.client.get("/api/me", headers=ended.headers).status_code == 429
        strict.db.execute("alter function penstock.use_api_key(bytea) rename to nobody_asks")
        for credential in (f"psk_{7:064x}", ended.headers["Authorization"].split()[1]):
            answer = strict.client.get("/api/me", headers=bearer(credential))
            assert (answer.status_code, answer.json()["code"]) == (429, "limited")

    @pytest.mark.slow
    def test_valid_new_key_does_not_count_as_a_guess(self, strict: World) -> None:
        ann = strict.join("ann")
        for _ in range(7):
            new = strict.member("viewer", ann.tenant)
            assert strict.client.get("/api/me", headers=new.headers).status_code == 200

    @pytest.mark.slow
    def test_slow_statement_is_canceled(self, strict: World) -> None:
        ann = strict.join("ann")
        strict.db.execute(
            "create or replace function penstock.my_tenants() returns setof uuid language sql stable as $$ select null::uuid from pg_sleep(60) $$"
        )
        answer = strict.client.get("/api/tenants", headers=ann.headers)
        assert (answer.status_code, answer.json()["code"]) == (503, "unavailable")

    def test_rate_limit_refills(self, monkeypatch: pytest.MonkeyPatch) -> None:
        now = 100.0
        monkeypatch.setattr("penstock.api.limits.time.monotonic", lambda: now)
        rate = Rate(per_second=2, burst=3)
        for _ in range(3):
            rate.take("ann")
        with pytest.raises(Limited) as refusal:
            rate.take("ann")
        assert refusal.value.retry_after == 0.5
        now += 0.5
        rate.take("ann")
        now += 100
        for _ in range(3):
            rate.take("ann")
        with pytest.raises(Limited):
            rate.take("ann")

    def test_number_of_rate_buckets_is_limited(self) -> None:
        rate = Rate(per_second=1, burst=1)
        for number in range(Rate.MOST + 100):
            rate.take(str(number))
        assert len(rate._buckets) == Rate.MOST


@pytest.mark.shared_world
class TestBrowsers:
    def test_other_origins_are_rejected_by_default(self, world: World, ann: Person) -> None:
        answer = world.client.get("/api/me", headers={**ann.headers, "Origin": "https://evil.example"})
        assert "access-control-allow-origin" not in answer.headers

    def test_configured_origins_are_allowed(self, db: testing.Database, api_settings: Settings) -> None:
        app = api.create(replace(api_settings, allowed_origins=("https://app.example",)))
        with TestClient(app) as client:
            for origin, expected in (
                ("https://app.example", "https://app.example"),
                ("https://evil.example", None),
            ):
                ask = {
                    "Origin": origin,
                    "Access-Control-Request-Method": "POST",
                    "Access-Control-Request-Headers": "idempotency-key",
                }
                for answer in (
                    client.options("/api/jobs/start", headers=ask),
                    client.get("/healthz", headers={"Origin": origin}),
                ):
                    assert answer.headers.get("access-control-allow-origin") == expected
                    assert "access-control-allow-credentials" not in answer.headers


class TestHealth:
    def test_alive_and_ready(self, world: World) -> None:
        for url in ("/healthz", "/readyz"):
            assert world.client.get(url).json() == {"status": "ok"}

    def test_metrics_for_autoscalers(self, world: World, ann: Person) -> None:
        """R1.8/metrics: backlog, oldest wait, running and drain rate of each lane."""
        start(world, ann, tasks=TASKS * 3)
        world.db.execute("select * from penstock.claim_tasks('w', 1, null, 30)")
        answer = world.client.get("/metrics", headers=world.service)
        assert answer.headers["content-type"].startswith("text/plain")
        lines = answer.text.splitlines()
        assert 'penstock_lane_waiting{kind="work",provider=""} 2.0' in lines
        assert 'penstock_lane_running{kind="work",provider=""} 1.0' in lines
        assert 'penstock_wanted_slots{kind="work",provider=""} 3.0' in lines
        found = world.client.get("/api/wanted-slots?kinds=work,else", headers=world.service).json()
        assert (found["wanted"], found["lanes"][0]["runnable"]) == (3, 2)
        assert world.client.get("/api/wanted-slots?kinds=else", headers=world.service).json()["wanted"] == 0
        for name in ("penstock_lane_oldest_seconds", "penstock_lane_drain_per_second"):
            assert any(line.startswith(f'{name}{{kind="work"') for line in lines)
        expected = 'penstock_http_requests_total{method="POST",route="/api/jobs/start",status="201"} 1.0'
        assert expected in lines

    def test_metrics_require_a_service_credential(self, world: World, ann: Person) -> None:
        assert world.client.get("/metrics").status_code == 401
        assert world.client.get("/metrics", headers=ann.headers).status_code == 403
        assert world.client.get("/metrics", headers=bearer(world.key("worker"))).status_code == 200

    def test_strangers_do_not_make_the_metrics_grow(self, world: World) -> None:
        for number in range(5):
            world.client.get(f"/nothing/{number}")
        text = world.client.get("/metrics", headers=world.service).text
        assert "/nothing" not in text
        assert 'penstock_http_requests_total{method="",route="",status="404"} 5.0' in text

    @pytest.mark.slow
    def test_not_ready_without_a_database(self, db: testing.Database, api_settings: Settings) -> None:
        with TestClient(api.create(api_settings)) as client:
            db.server._admin(f"alter database {db.name} allow_connections false")
            db.server._admin(
                f"select pg_terminate_backend(pid) from pg_stat_activity where datname = '{db.name}'"
            )
            assert client.get("/healthz").status_code == 200
            answer = client.get("/readyz")
            assert (answer.status_code, answer.json()["code"]) == (503, "unavailable")


class TestDescription:
    @pytest.mark.slow
    def test_openapi(self, world: World) -> None:
        document = world.client.get("/api/openapi.json").json()
        assert document["openapi"].startswith("3.1")
        assert set(document["components"]["securitySchemes"]) == {"bearer", "apikey"}
        for path, item in document["paths"].items():
            for method, operation in item.items():
                if (
                    "/api/" in path
                    and "{job_id}/events" not in path
                    and not path.endswith("/stream")
                    and path != "/api/events"
                ):
                    assert operation.get("description") or operation.get("summary"), (method, path)
                    assert {"401", "403", "422"} <= set(operation["responses"]), (method, path)
        names = [o["operationId"] for item in document["paths"].values() for o in item.values()]
        assert len(names) == len(set(names))

    def test_api_requires_both_logins(self, api_settings: Settings) -> None:
        for missing in ({"api_url": None}, {"database_url": None}):
            with (
                pytest.raises(Exception, match="PENSTOCK_API_URL"),
                TestClient(api.create(replace(api_settings, **missing))),
            ):
                pass
