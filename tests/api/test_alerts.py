"""Storms of failed logins and refusals are counted by the API and reported once (S83)."""

from __future__ import annotations

import time
from typing import Any

import pytest

from penstock import doctor
from penstock.api.alerts import Storms
from tests.api.conftest import World


def test_storm_is_reported_once_per_number(monkeypatch: pytest.MonkeyPatch) -> None:
    storms = Storms()
    found = [storms.count("failed_logins", "address:x") for _ in range(45)]
    assert [count for count in found if count] == [20, 20]
    now = time.monotonic()
    storms = Storms()
    for _ in range(19):
        assert storms.count("failed_logins", "address:x") == 0
    monkeypatch.setattr("penstock.api.alerts.time.monotonic", lambda: now + 120)
    assert storms.count("failed_logins", "address:x") == 0, "slow failures are no storm"


def test_subjects_are_bounded() -> None:
    storms = Storms()
    for number in range(3000):
        storms.count("failed_logins", f"address:{number}")
    assert len(storms._counts) == Storms.SUBJECTS


def reported(world: World, kind: str) -> dict[str, Any]:
    """The alert of this kind, once the server has reported it."""
    deadline = time.monotonic() + 60
    query = "select * from penstock.list_alerts() where kind = %s"
    while not (rows := world.db.execute(query, [kind])):
        assert time.monotonic() < deadline, "no alert"
        time.sleep(0.05)
    return rows[0]


async def test_failed_logins_reach_the_operator(world: World) -> None:
    """S83: as an alert, on /metrics and in `penstock doctor`."""
    for _ in range(25):
        assert world.client.get("/api/jobs", headers={"Authorization": "Bearer psk_wrong"}).status_code == 401
    assert reported(world, "failed_logins")["count"] == 20
    metrics = world.client.get("/metrics", headers=world.service).text
    assert 'penstock_alerts{kind="failed_logins"} 20.0' in metrics
    check = {each.name: each for each in await doctor.examine(world.db.dsn)}["alerts"]
    assert check.state == "warn" and "failed logins: address:" in check.finding


def test_quota_refusals_reach_the_operator(world: World) -> None:
    """S83: one tenant's storm, with its tenant."""
    world.kind("work")
    ann = world.join("ann")
    world.db.execute("select penstock.set_limit(%s, 'jobs', 0)", [ann.tenant])
    body = {"type": "report", "tasks": [{"kind": "work"}]}
    for _ in range(20):
        answer = world.client.post("/api/jobs/start", json=body, headers=ann.headers)
        assert answer.status_code == 429, answer.text
    found = reported(world, "quota_refusals")
    assert (found["count"], found["tenant_id"]) == (20, ann.tenant)
