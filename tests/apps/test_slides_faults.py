"""Conversions while workers are killed and webhooks are lost, doubled, early or late, at a small size.

`python -m bench.webhooks --objects 1000` is the same at full size.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from bench import webhooks
from penstock import testing

pytestmark = pytest.mark.every_postgres


@pytest.mark.slow
def test_every_object_has_one_result_and_one_charge(
    db: testing.Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R4.3/deliveries, R4.3/polling, R4.3/idempotent, R4.1/reserve: a worker is killed every two seconds."""
    monkeypatch.setenv("PENSTOCK_ALLOW_UNSAFE", "1")
    facts = asyncio.run(webhooks.run(db.dsn, 60, tmp_path))
    assert webhooks.problems(facts, 60) == []
    assert facts["kills"] > 0


@pytest.mark.slow
def test_many_in_flight_never_exceed_the_quota(
    db: testing.Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R4.1/reserve, R4.9/free: sixty objects and a quota of five."""
    monkeypatch.setenv("PENSTOCK_ALLOW_UNSAFE", "1")
    facts = asyncio.run(webhooks.run(db.dsn, 60, tmp_path, quota=5, kill_seconds=0))
    assert webhooks.problems(facts, 60, quota=5) == []
    assert facts["jobs"] == 5
