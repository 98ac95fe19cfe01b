"""Bodies of job types run beside the event loop of the API, with limits on tasks and time."""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from penstock import App, api, testing
from penstock.api.limits import Limits
from penstock.api.shares import Share
from penstock.sdk.load import load
from penstock.settings import Settings
from tests.api.conftest import Person, Served, World, serving
from tests.conftest import Eventually

PATH = "tests.api.bodies_app:app"


def loaded(how: str) -> App:
    """The app as `penstock serve` loads it, or as a program that embeds the API has it."""
    app = load(PATH)
    # The kinds have to be declared in this test's database.
    app.forget()
    app.path = PATH if how == "process" else None
    return app


@contextmanager
def site(
    db: testing.Database, settings: Settings, how: str, limits: Limits | None = None
) -> Generator[tuple[World, Served]]:
    app = api.create(settings, loaded(how), limits=limits)
    with serving(app) as served:
        yield World(db, app, None), served  # pyright: ignore[reportArgumentType]


def start(served: Served, person: Person, type: str, **params: object) -> httpx.Response:
    body = {"type": type, "params": params}
    return httpx.post(f"{served.url}/api/jobs/start", json=body, headers=person.headers, timeout=120)


class Background:
    """A request in a thread."""

    def __init__(self, served: Served, person: Person, type: str, **params: object) -> None:
        self._answers: list[int] = []
        ask = lambda: self._answers.append(start(served, person, type, **params).status_code)  # noqa: E731
        self._thread = threading.Thread(target=ask)
        self._thread.start()

    def status(self) -> int:
        self._thread.join(120)
        return self._answers[0]


@pytest.mark.parametrize("how", ["thread", pytest.param("process", marks=pytest.mark.slow)])
def test_a_body_does_not_block_other_requests(
    db: testing.Database, api_settings: Settings, eventually: Eventually, tmp_path: Path, how: str
) -> None:
    """S65, B9/shared: while it runs, the API answers, and another tenant's body runs beside it."""
    with site(db, api_settings, how) as (world, served):
        ann, bob = world.join("ann"), world.join("bob")
        first = Background(served, ann, "hold", folder=str(tmp_path))
        try:
            eventually((tmp_path / "started").exists, "the body runs")
            second = Background(served, ann, "many", count=1)
            shares = world.app.state.isolated.bodies
            eventually(lambda: shares.waiting(f"tenant:{ann.tenant}") == 1, "the tenant's second body waits")
            assert httpx.get(f"{served.url}/healthz", timeout=60).status_code == 200
            assert httpx.get(f"{served.url}/api/me", headers=ann.headers, timeout=60).status_code == 200
            answer = start(served, bob, "many", count=3)
            assert answer.status_code == 201, answer.text
            # It holds no connection either.
            assert world.app.state.callers.connections.held(f"tenant:{ann.tenant}") == 0
        finally:
            (tmp_path / "go").touch()
        assert (first.status(), second.status()) == (201, 201)
    [tasks] = db.execute("select count(*) as n from penstock.tasks where kind = 'note'")
    assert tasks == {"n": 5}


def test_a_body_adds_a_limited_number_of_tasks(db: testing.Database, api_settings: Settings) -> None:
    """S65: a small request does not become a huge job."""
    with site(db, api_settings, "thread", Limits(body_tasks=100)) as (world, served):
        ann = world.join("ann")
        assert start(served, ann, "many", count=100).status_code == 201
        refused = start(served, ann, "many", count=400_000)
        assert (refused.status_code, refused.json()["code"]) == (413, "too_many_tasks")
        body = {"type": "many", "params": {"count": 101}}
        answer = httpx.post(f"{served.url}/api/jobs/forecast", json=body, headers=ann.headers, timeout=60)
        assert answer.json()["code"] == "too_many_tasks"


def test_a_body_in_a_thread_ends_at_its_limit(db: testing.Database, api_settings: Settings) -> None:
    """S65"""
    with site(db, api_settings, "thread", Limits(body_draw_seconds=0)) as (world, served):
        refused = start(served, world.join("ann"), "many", count=1)
        assert (refused.status_code, refused.json()["code"]) == (422, "body_too_slow")


@pytest.mark.slow
def test_a_body_that_never_ends_is_killed(db: testing.Database, api_settings: Settings) -> None:
    """S65: by the CPU time that it used; the next one runs in a new process."""
    with site(db, api_settings, "process", Limits(body_draw_seconds=1)) as (world, served):
        ann = world.join("ann")
        refused = start(served, ann, "spin")
        assert (refused.status_code, refused.json()["code"]) == (422, "body_too_slow")
        assert start(served, ann, "many", count=2).status_code == 201
        refused = start(served, ann, "many", count="no number")
        assert (refused.status_code, refused.json()["code"]) == (422, "bad_input")


def test_a_body_runs_only_for_callers_who_may_start_the_job(
    db: testing.Database, api_settings: Settings, tmp_path: Path
) -> None:
    """S65: role first."""
    with site(db, api_settings, "thread") as (world, served):
        ann = world.join("ann")
        (tmp_path / "go").touch()
        refused = start(served, world.member("viewer", ann.tenant), "hold", folder=str(tmp_path))
        assert (refused.status_code, refused.json()["code"]) == (403, "no_tenant")
        assert not (tmp_path / "started").exists()
        assert start(served, ann, "hold", folder=str(tmp_path)).status_code == 201


def test_drawn_tasks_count_as_requests(db: testing.Database, api_settings: Settings) -> None:
    """S65: of the caller and of its tenant."""
    limits = Limits(tenant_per_second=0.001, tenant_burst=8)
    with site(db, api_settings, "thread", limits) as (world, served):
        ann = world.join("ann")
        other = world.member("member", ann.tenant)
        assert start(served, ann, "many", count=200).status_code == 201
        assert start(served, other, "many", count=1).status_code == 429


def test_a_full_queue_of_bodies_is_refused(
    db: testing.Database, api_settings: Settings, eventually: Eventually, tmp_path: Path
) -> None:
    """S65: and counts as several requests."""
    share = Share(slots=2, per_tenant=1, per_caller=1, waiting=0, seconds=60)
    limits = Limits(bodies=share, per_second=0.001, burst=30)
    with site(db, api_settings, "thread", limits) as (world, served):
        ann = world.join("ann")
        first = Background(served, ann, "hold", folder=str(tmp_path))
        try:
            eventually((tmp_path / "started").exists, "the body runs")
            codes = [start(served, ann, "many", count=1).json()["code"] for _ in range(3)]
            assert codes == ["share_used_up", "share_used_up", "limited"]
        finally:
            (tmp_path / "go").touch()
        assert first.status() == 201
