"""Error responses: problem documents that expose nothing of the server."""

from __future__ import annotations

import json
import logging
import uuid

import pytest
import structlog

from tests.api.conftest import TASKS, Person, World, bearer


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
