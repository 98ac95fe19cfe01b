"""What every route does: jobs from start to end, isolation, pages, entity tags, browsers and metrics."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, cast

import pytest
from fastapi.testclient import TestClient

from penstock import App, api, testing
from penstock.settings import Settings
from tests.api.conftest import TASKS, Person, World, bearer, start


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
def test_job_reads_the_same_alone_and_in_a_list(world: World, ann: Person) -> None:
    """A job read alone comes from a document of the database, a list from rows: times have one form."""
    job_id = start(world, ann)
    alone = world.client.get(f"/api/jobs/{job_id}", headers=ann.headers).json()
    [listed] = world.client.get(f"/api/jobs?filter=id:{job_id}", headers=ann.headers).json()["items"]
    assert alone.keys() - listed.keys() == {"artifacts", "result", "result_url"}
    only_alone = {"phases", "running", "waiting", "message", "eta_seconds"}
    for name in only_alone:
        del alone["progress"][name], listed["progress"][name]
    assert {name: alone[name] for name in listed} == listed


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
