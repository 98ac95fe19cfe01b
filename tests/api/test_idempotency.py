"""Idempotency keys over HTTP: which requests return the stored response."""

from __future__ import annotations

import threading
import uuid
from typing import Any

import pytest

from penstock import testing
from tests.api.conftest import TASKS, Person, World, start


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
