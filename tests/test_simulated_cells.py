"""The simulated day of several cells (`bench.cells`), beside the simulation of every claim, and the fault run of moves."""

from __future__ import annotations

import pytest

from bench import cells
from faults import cells as fault_run
from penstock import testing

DAY = cells.Day(tenants=200, jobs_per_minute=200, calls_per_minute=8_000)


def served(found: cells.Result) -> int:
    return sum(found.small.values()) + sum(found.large.values())


@pytest.mark.parametrize("count", [1, 3])
def test_each_call_of_a_day_is_served_once_or_left(count: int) -> None:
    found = cells.simulate(DAY, count)
    again = cells.simulate(DAY, count)
    assert found == again
    assert served(found) + found.left == pytest.approx(200 * 16 * 24 * 60, rel=0.01)


def test_nobody_waits_below_the_limit() -> None:
    calm = cells.Day(tenants=50, jobs_per_minute=50, calls_per_minute=10_000, outage=(0, 0))
    found = cells.simulate(calm, 1)
    assert set(found.small) == set(found.large) == {0}
    assert (found.unused, found.over_at, found.left) == (0, 0, 0)


def test_small_tenants_pass_the_backlog_of_large_ones_after_an_outage() -> None:
    found = cells.simulate(DAY, 1)
    assert DAY.outage[1] - DAY.outage[0] <= max(found.small) < max(found.large)
    assert cells.quantile(found.small, 0.99) < cells.quantile(found.large, 0.99)


def test_limits_that_are_split_by_load_are_used_up() -> None:
    evenly, by_load = (cells.simulate(DAY, 4, by_load=each) for each in (False, True))
    assert by_load.unused * 10 < evenly.unused
    assert by_load.over_at <= evenly.over_at
    assert cells.simulate(DAY, 1).unused == 0


def test_minutes_agree_with_the_simulation_of_every_claim() -> None:
    found = cells.published_costs()
    assert found is not None
    assert cells.against_claims(found).value < 0.5


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_tenants_move_under_load_while_the_command_and_workers_die(server: testing.Server) -> None:
    """B11/moves: no acknowledged job is lost, started twice or in two cells, and each task succeeds once."""
    run = fault_run.perform(server, moves=3, seed=3)
    assert run.problems == []
    assert len(run.jobs) > 20
