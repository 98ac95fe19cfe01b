"""Wanted slots: tasks that could run now under limits, quotas and budgets, plus running ones."""

from __future__ import annotations

import random
from typing import Any

import pytest
from psycopg.types.json import Jsonb

from bench.autoscale import Kind, Queue, runnable
from penstock.testing import Clock

from .conftest import Contract

NAME = "test/model"


def calls(count: int, **spec: Any) -> list[dict[str, Any]]:
    return [{"kind": "work", "provider": NAME, **spec} for _ in range(count)]


def wanted(sql: Contract, kind: str = "work") -> tuple[int, int]:
    """Runnable and wanted."""
    found = [row for row in sql.rows("wanted_slots") if row["kind"] == kind]
    return sum(row["runnable"] for row in found), sum(row["wanted"] for row in found)


def test_tasks_without_limits_all_count(sql: Contract) -> None:
    sql.start(30)
    sql.start(["other", "other"])
    assert (wanted(sql), wanted(sql, "other")) == ((30, 30), (2, 2))
    assert len(sql.claim(10, kinds=["work"])) == 10
    assert wanted(sql) == (20, 30), "running tasks keep their slot"


def test_a_closed_provider_wants_no_slots(sql: Contract, clock: Clock) -> None:
    clock.freeze()
    sql.provider(NAME, requests_per_minute=500)
    sql.start(calls(40))
    assert wanted(sql) == (40, 40)
    sql.value("report_provider", name=NAME, signal=Jsonb({"status": 429, "retry_after_seconds": 300}))
    assert wanted(sql) == (0, 0), "no machine starts for a backlog behind a closed provider"
    clock.advance(seconds=301)
    assert wanted(sql)[0] > 0


@pytest.mark.parametrize("status", ["disabled", "maintenance"])
def test_a_provider_that_is_not_active_wants_no_slots(sql: Contract, status: str) -> None:
    sql.provider(NAME)
    sql.start(calls(3))
    sql.provider(NAME, status=status)
    assert wanted(sql) == (0, 0)


def test_concurrency_bounds_what_is_wanted(sql: Contract) -> None:
    sql.provider(NAME, concurrency=8)
    sql.start(calls(40))
    assert wanted(sql) == (8, 8)
    assert len(sql.claim(5)) == 5
    assert wanted(sql) == (3, 8)


def test_kinds_share_the_room_of_their_endpoint(sql: Contract) -> None:
    sql.provider(NAME, concurrency=10)
    sql.start(calls(30))
    sql.start(calls(10, kind="other"))
    assert (wanted(sql)[0], wanted(sql, "other")[0]) == (8, 3), "by waiting tasks, rounded up"


def test_a_window_that_admits_everything_is_no_bottleneck(sql: Contract) -> None:
    sql.provider(NAME, requests_per_minute=100)
    sql.start(calls(60))
    assert wanted(sql) == (60, 60)


def test_a_full_window_wants_what_its_rate_keeps_busy(sql: Contract, clock: Clock) -> None:
    """60 calls a minute of 10 seconds each keep 10 slots busy, however many tasks wait."""
    clock.freeze()
    sql.provider(NAME, requests_per_minute=60)
    sql.start(calls(1))
    task = sql.claim_one()
    clock.advance(seconds=10)
    sql.value("record_usage", units=Jsonb({}), task_id=task["id"], worker_id="w1", lease=task["lease"])
    assert sql.complete(task)
    clock.advance(minutes=2)
    sql.start(calls(5000))
    assert wanted(sql) == (10, 10) == modelled(5000, 0)
    assert len(sql.claim(6)) == 6
    assert wanted(sql) == (4, 10) == modelled(4994, 6)
    assert len(sql.claim(100)) == 54
    assert wanted(sql) == (0, 60) == modelled(4940, 60), "more run already"


def modelled(waiting: int, running: int) -> tuple[int, int]:
    """What the simulation of bench/autoscale.py says."""
    queue = Queue(Kind("work", 0, 10, per_minute=60), waiting=waiting, running=running, in_window=running)
    found = runnable(queue, 0, is_closed=False)
    return found, found + running


def test_an_unknown_duration_counts_what_fits_now(sql: Contract, clock: Clock) -> None:
    clock.freeze()
    sql.provider(NAME, requests_per_minute=60, tokens_per_minute=1000)
    sql.start(calls(500, units={"tokens": 100}))
    assert wanted(sql) == (10, 10)


def test_a_used_up_hourly_limit_wants_no_slots(sql: Contract, clock: Clock) -> None:
    clock.freeze()
    sql.provider(NAME, requests_per_hour=10)
    sql.start(calls(30))
    for task in sql.claim(100):
        sql.complete(task)
    assert wanted(sql) == (0, 0)
    clock.advance(minutes=62)
    assert wanted(sql) == (10, 10)


class TestQuotas:
    def test_tasks_without_quota_do_not_count(self, sql: Contract) -> None:
        sql.value("set_limit", tenant_id=sql.tenant, meter="pages", amount=10)
        sql.start([{"kind": "work", "units": {"pages": 3}}] * 20)
        assert wanted(sql) == (3, 3)
        assert len(sql.claim(100)) == 3
        assert wanted(sql) == (0, 3)

    def test_a_quota_is_shared_by_all_lanes_of_a_tenant(self, sql: Contract) -> None:
        sql.value("set_limit", tenant_id=sql.tenant, meter="pages", amount=10)
        sql.start([{"kind": "work", "units": {"pages": 1}}] * 8)
        sql.start([{"kind": "other", "units": {"pages": 1}}] * 8)
        assert wanted(sql)[0] + wanted(sql, "other")[0] == 10

    def test_a_task_too_large_for_the_quota_does_not_hide_the_next(self, sql: Contract) -> None:
        """A pool that is scaled to zero must start for the small task."""
        sql.value("set_limit", tenant_id=sql.tenant, meter="pages", amount=10)
        sql.value("set_limit", tenant_id=sql.tenant, meter="files", amount=1)
        sql.start([{"kind": "work", "units": {"pages": 50, "files": 1}}])
        sql.start([{"kind": "work", "units": {"pages": 1, "files": 1}}])
        assert wanted(sql) == (1, 1)

    def test_an_observed_quota_does_not_count(self, sql: Contract) -> None:
        sql.value("set_meter", name="pages", values=Jsonb({"mode": "observe"}))
        sql.value("set_limit", tenant_id=sql.tenant, meter="pages", amount=1)
        sql.start([{"kind": "work", "units": {"pages": 3}}] * 20)
        assert wanted(sql) == (20, 20)

    def test_a_budget_bounds_what_is_wanted(self, sql: Contract) -> None:
        sql.provider(NAME)
        sql.value("set_price", provider=NAME, meter="requests", amount=2, options=Jsonb({}))
        sql.start(calls(20), budget=7)
        assert wanted(sql) == (3, 3)
        assert len(sql.claim(100)) == 3


def test_stopped_work_does_not_count(sql: Contract) -> None:
    job = sql.start(5)
    sql.start(2)
    sql.pause(job)
    assert wanted(sql) == (2, 2)
    sql.value("set_setting", name="maintenance", value=Jsonb(True))
    assert wanted(sql) == (0, 0)


def test_a_kind_behind_a_gate_does_not_count(sql: Contract) -> None:
    sql.start(4)
    sql.value("set_gate", name="pro", values=Jsonb({"kinds": ["work"], "feature": "pro", "mode": "enforce"}))
    assert wanted(sql) == (0, 0)


@pytest.mark.parametrize("seed", range(4))
def test_a_claim_gets_what_was_runnable(sql: Contract, clock: Clock, seed: int) -> None:
    """Workers with that many slots get that many tasks, and no more, under any mix of limits."""
    dice = random.Random(seed)
    clock.freeze()
    sql.provider(
        NAME,
        concurrency=dice.choice([None, 7, 40]),
        tokens_per_minute=dice.choice([None, 900]),
        default_tokens=dice.choice([0, 1000]),
    )
    sql.value("set_limit", tenant_id=sql.tenant, meter="pages", amount=dice.choice([5, 50]))
    for _ in range(6):
        units = {"pages": dice.choice([0, 1, 2])} if dice.random() < 0.6 else {"tokens": 100}
        kind = dice.choice(["work", "other"])
        sql.start([{"kind": kind, "provider": NAME, "units": units}] * dice.randint(1, 12))
    sql.start(dice.randint(1, 5))
    runnable = sum(row["runnable"] for row in sql.rows("wanted_slots"))
    claimed = 0
    while tasks := sql.claim(200):
        claimed += len(tasks)
    # Lanes of one endpoint are rounded up, and the mean size of a call stands for each.
    assert claimed <= runnable + 2 and runnable <= claimed + 2
