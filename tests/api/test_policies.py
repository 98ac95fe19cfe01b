"""Who may start what over HTTP: the app draws the tasks, users do not write them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from fastapi.testclient import TestClient

from penstock import App, api, testing
from penstock.settings import Settings
from tests.api.conftest import Person, World

PAID = "acme/large"


@pytest.fixture
def app() -> App:
    app = App(tenant="app")

    @app.task(providers=PAID, units={"tokens": 1000}, timeout=30, max_attempts=2)
    def write(topic: str) -> str:
        return topic

    @app.job
    def publish(topics: list[str]) -> None:
        for topic in topics:
            write.options(timeout=60).step(topic)

    return app


@pytest.fixture
def world(db: testing.Database, api_settings: Settings, app: App) -> Iterator[World]:
    """The API of an app, with a provider."""
    db.execute("select penstock.set_provider(%s, '{}')", [PAID])
    served = api.create(api_settings, app)
    with TestClient(served) as client:
        yield World(db, served, client)


@pytest.fixture
def ann(world: World) -> Person:
    return world.join("ann")


class TestStarting:
    """B9, S70, S71"""

    def test_the_job_of_an_app_starts_for_a_user(self, world: World, ann: Person) -> None:
        """The drawn job passes, its creator is the user, and its tasks count."""
        body = {"type": "publish", "params": {"topics": ["a", "b"]}}
        for who in (ann, world.member("member", ann.tenant)):
            answer = world.client.post("/api/jobs/start", json=body, headers=who.headers)
            assert answer.status_code == 201, answer.text
            job = world.client.get(f"/api/jobs/{answer.json()['id']}", headers=who.headers).json()
            assert (job["created_by"], job["tenant_id"]) == (f"user:{who.id}", str(ann.tenant))
            found = world.db.execute(
                "select distinct t.units, l.provider from penstock.tasks t join penstock.lanes l on l.id = t.lane_id "
                "where t.job_id = %s", [job["id"]]
            )  # fmt: skip
            assert found == [{"units": {"requests": 1, "tokens": 1000}, "provider": PAID}]

    def test_the_same_tasks_written_by_the_user_are_refused(self, world: World, ann: Person) -> None:
        tasks = [{"kind": "write", "input": {"topic": "a"}}]
        with_tasks = {"type": "publish", "tasks": tasks}
        answers = [
            world.client.post("/api/jobs/start", json=with_tasks, headers=ann.headers),
            world.client.put("/api/schedules?name=n", headers=ann.headers,
                             json={"cron": "0 3 * * *", "job_type": "publish", "tasks": tasks}),
        ]  # fmt: skip
        assert [(each.status_code, each.json()["code"]) for each in answers] == [(403, "raw_tasks")] * 2
        rpc = {"p_type": "publish", "p_params": {}, "p_tasks": tasks}
        headers = {**ann.headers, "Content-Profile": "penstock"}
        answer = world.client.post("/rest/v1/rpc/start_job", json=rpc, headers=headers)
        assert answer.status_code == 403 and "raw_tasks" in answer.text
        answer = world.client.post("/rest/v1/rpc/start_drawn_job", json=rpc, headers=headers)
        assert answer.status_code in (403, 404), answer.text
        assert world.db.execute("select from penstock.jobs") == []

    def test_a_viewer_a_stranger_and_a_revoked_key_start_nothing(self, world: World, ann: Person) -> None:
        bob, viewer, gone = (
            world.join("bob"),
            *(world.member(each, ann.tenant) for each in ("viewer", "member")),
        )
        world.db.execute("select penstock.revoke_key(%s)", [gone.id])
        body = {"type": "publish", "params": {"topics": ["a"]}, "tenant_id": str(ann.tenant)}
        for who, status in ((bob, 403), (viewer, 403), (gone, 401)):
            answer = world.client.post("/api/jobs/start", json=body, headers=who.headers)
            assert answer.status_code == status, answer.text
        assert world.db.execute("select from penstock.jobs") == []


def test_a_schedule_is_checked_when_it_is_set(world: World, ann: Person) -> None:
    """S73: a mistyped type and params that do not fit are refused, and so is a name that forges log lines."""
    good = {"cron": "0 3 * * *", "job_type": "publish", "params": {"topics": ["a"]}}
    for name, changes, code in (
        ("n", {"job_type": "publsh"}, "unknown_job_type"),
        ("n", {"params": {"topics": 3}}, None),
        ("n", {"params": {"topic": "a"}}, None),
        ("n", {"cron": "every day"}, "invalid_cron"),
        ("a\nERROR forged", {}, "invalid_schedule"),
    ):
        answer = world.client.put(
            "/api/schedules", params={"name": name}, json={**good, **changes}, headers=ann.headers
        )
        assert answer.status_code == 422, (changes, answer.text)
        assert code in (None, answer.json()["code"])
    assert world.client.put("/api/schedules?name=n", json=good, headers=ann.headers).status_code == 200
