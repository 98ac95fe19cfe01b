"""Workers: what every reader sees of one that reports, is late, is gone, or has stopped."""

from __future__ import annotations

from typing import Any

import pytest

from penstock import testing


def report(sql: Any, worker: str, state: str = "running") -> None:
    sql.execute(
        "select penstock.report_worker(%s, jsonb_build_object('state', %s::text, 'running', 3))",
        worker,
        state,
    )


def seen(sql: Any) -> dict[str, tuple[str, int]]:
    rows = sql.execute("select id, state, running from penstock.worker_list")
    return {row["id"]: (row["state"], row["running"]) for row in rows}


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [(0, ("running", 3)), (29, ("running", 3)), (31, ("late", 3)), (61, ("gone", 0)), (599, ("gone", 0))],
)
def test_a_worker_that_was_killed_stops_counting_as_running(
    sql: Any, clock: testing.Clock, seconds: int, expected: tuple[str, int]
) -> None:
    """R1.8: its state follows its last heartbeat, and a gone worker runs nothing."""
    report(sql, "killed")
    clock.advance(seconds=seconds)
    assert seen(sql) == {"killed": expected}


def test_rows_of_killed_workers_disappear_after_ten_minutes(sql: Any, clock: testing.Clock) -> None:
    report(sql, "killed")
    report(sql, "stopped", "stopped")
    clock.advance(seconds=601)
    assert seen(sql) == {"stopped": ("stopped", 0)}, "also while no other worker reports"
    report(sql, "other")
    assert {row["id"] for row in sql.execute("select id from penstock.workers")} == {"stopped", "other"}
    clock.advance(days=1, seconds=1)
    report(sql, "other")
    assert {row["id"] for row in sql.execute("select id from penstock.workers")} == {"other"}


def test_a_worker_with_a_long_lease_is_not_late_while_the_lease_is_valid(
    sql: Any, clock: testing.Clock
) -> None:
    """Its heartbeats are a third of its lease apart."""
    sql.start(["work"])
    report(sql, "patient")
    assert sql.rows("claim_tasks", worker_id="patient", lease_seconds=3600)
    clock.advance(minutes=20)
    report(sql, "other")
    assert seen(sql)["patient"] == ("running", 3)
    clock.advance(minutes=41)
    report(sql, "other")
    assert "patient" not in seen(sql)


def test_a_worker_that_comes_back_is_seen_again(sql: Any, clock: testing.Clock) -> None:
    report(sql, "stalled")
    clock.advance(minutes=2)
    report(sql, "stalled")
    assert seen(sql) == {"stalled": ("running", 3)}
