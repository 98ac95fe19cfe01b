"""The simulation of bench/autoscale.py: scaling on wanted slots beside scaling on the backlog."""

from __future__ import annotations

import pytest

from bench.autoscale import HOUR, Day, Kind, Queue, runnable, simulate


def test_wanted_slots_start_no_machines_in_an_outage_and_tasks_wait_no_longer() -> None:
    """On a day with an outage, a fraction of the machines of plain backlog for the same waits."""
    backlog, wanted = simulate(Day(), "backlog"), simulate(Day(), "wanted")
    assert wanted.machine_hours < 0.4 * backlog.machine_hours
    assert wanted.outage_machine_hours < 0.1 * backlog.outage_machine_hours
    for kind in ("write", "typeset"):
        assert wanted.p95_wait[kind] <= 1.05 * backlog.p95_wait[kind] + 30
    assert wanted.waiting_at_end <= backlog.waiting_at_end + 10


def test_without_an_outage_and_limits_both_are_the_same() -> None:
    day = Day(kinds=(Kind("typeset", 10.0, 2),), outage=(0, 0), seconds=2 * HOUR)
    assert simulate(day, "backlog") == simulate(day, "wanted")


@pytest.mark.parametrize(("waiting", "expected"), [(40, 40), (600, 167)])
def test_a_window_counts_only_when_it_is_the_bottleneck(waiting: int, expected: int) -> None:
    queue = Queue(Kind("write", 1, 20, per_minute=500), waiting=waiting)
    assert runnable(queue, 0, is_closed=False) == expected
    assert runnable(queue, 0, is_closed=True) == 0
