"""Storms of failed logins and refusals are counted by the API and reported once (S83)."""

from __future__ import annotations

import time

import pytest

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


def test_failed_logins_reach_the_operator(world: World) -> None:
    """S83: as an alert, and on /metrics."""
    for _ in range(25):
        assert world.client.get("/api/jobs", headers={"Authorization": "Bearer psk_wrong"}).status_code == 401
    deadline = time.monotonic() + 60
    rows: list[dict[str, object]] = []
    while not rows and time.monotonic() < deadline:
        rows = list(world.db.execute("select * from penstock.list_alerts() where kind = 'failed_logins'"))
        time.sleep(0.05)
    assert rows[0]["count"] == 20
