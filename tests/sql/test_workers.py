"""Workers: the visible state of one that reports, is late, is gone or has stopped."""

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
    sql.rows("upkeep")
    assert {row["id"] for row in sql.execute("select id from penstock.workers")} == {"stopped", "other"}
    clock.advance(days=1, seconds=1)
    report(sql, "other")
    sql.rows("upkeep")
    assert {row["id"] for row in sql.execute("select id from penstock.workers")} == {"other"}


def test_a_worker_with_a_long_lease_is_not_late_while_the_lease_is_valid(
    sql: Any, clock: testing.Clock
) -> None:
    """Its heartbeats are a third of its lease apart."""
    sql.start(["work"])
    report(sql, "patient")
    assert sql.rows("claim_tasks", worker_id="patient", lease_seconds=3600)
    clock.advance(minutes=20)
    sql.rows("upkeep")
    assert seen(sql)["patient"] == ("running", 3)
    clock.advance(minutes=41)
    for _ in range(2):  # The first call only requeues its tasks.
        sql.rows("upkeep")
    assert "patient" not in seen(sql)


def test_a_worker_that_comes_back_is_seen_again(sql: Any, clock: testing.Clock) -> None:
    report(sql, "stalled")
    clock.advance(minutes=2)
    report(sql, "stalled")
    assert seen(sql) == {"stalled": ("running", 3)}


def lead(sql: Any, worker: str, is_able: bool = True) -> bool:
    return sql.value("lead_upkeep", worker_id=worker, is_able=is_able)


def test_one_worker_leads_upkeep_until_it_falls_silent(sql: Any) -> None:
    """A second worker takes over 5 seconds after the last report of the first, and not before."""
    assert [lead(sql, worker) for worker in ("first", "second", "first")] == [True, False, True]
    sql.execute("update penstock.upkeep_runs set led_until = clock_timestamp() + interval '1 second'")
    assert (lead(sql, "second"), lead(sql, "first")) == (False, True)
    [row] = sql.execute("select led_until > clock_timestamp() + interval '4 seconds' as is_renewed"
                        " from penstock.upkeep_runs")  # fmt: skip
    assert row["is_renewed"], "the report of the leader renews its lead"
    sql.execute("update penstock.upkeep_runs set led_until = clock_timestamp()")
    assert (lead(sql, "second"), lead(sql, "first")) == (True, False)


def test_a_worker_that_stops_gives_up_the_lead(sql: Any) -> None:
    assert lead(sql, "first")
    assert not lead(sql, "first", is_able=False)
    assert not lead(sql, "second", is_able=False)
    assert lead(sql, "third")
    assert not lead(sql, "first", is_able=False), "another leader stays"
    assert lead(sql, "third")


def test_of_workers_that_ask_at_the_same_time_one_leads(db: testing.Database) -> None:
    """The second one does not wait for the first one's transaction."""
    with db.connect() as first, db.connect() as second:
        first.autocommit = second.autocommit = True
        first.execute("select penstock.lead_upkeep('early')")
        first.execute("update penstock.upkeep_runs set led_until = clock_timestamp()")
        second.execute("set statement_timeout = '5s'")
        with first.transaction():
            [one] = first.execute("select penstock.lead_upkeep('first') as leads").fetchall()
            [two] = second.execute("select penstock.lead_upkeep('second') as leads").fetchall()
        [late] = second.execute("select penstock.lead_upkeep('second') as leads").fetchall()
    assert (one["leads"], two["leads"], late["leads"]) == (True, False, False)


def test_the_leader_keeps_the_lead_while_upkeep_has_locked_the_row(db: testing.Database) -> None:
    """A running upkeep holds the row until it commits; a report does not wait for it."""
    with db.connect() as upkeep, db.connect() as worker:
        upkeep.autocommit = worker.autocommit = True
        worker.execute("set statement_timeout = '5s'")
        worker.execute("select penstock.lead_upkeep('first')")
        worker.execute("update penstock.upkeep_runs set led_until = clock_timestamp() + interval '1 second'")
        with upkeep.transaction():
            upkeep.execute("update penstock.upkeep_runs set ran_at = clock_timestamp()")
            found = [
                worker.execute("select penstock.lead_upkeep(%s, %s) as leads", (name, able)).fetchone()
                for name, able in (("first", True), ("second", True), ("first", False))
            ]
    assert [row and row["leads"] for row in found] == [True, False, False]
