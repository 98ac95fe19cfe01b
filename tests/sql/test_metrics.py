"""Figures for Prometheus."""

from __future__ import annotations

import pytest
from psycopg.types.json import Jsonb

from penstock.testing import Clock

from .conftest import Contract


def figures(sql: Contract) -> dict[tuple[str, str], float]:
    return {(row["name"], row["label"]): row["value"] for row in sql.rows("metric_figures")}


def test_time_in_queue_and_failed_tasks_by_plan(sql: Contract, clock: Clock) -> None:
    clock.freeze()
    sql.value("set_plan", name="pro", values=Jsonb({}))
    other = Contract(sql.connection, sql.value("create_tenant", name="other", weight=1))
    sql.value("set_tenant_plan", tenant_id=other.tenant, plan="pro")
    sql.start(3)
    other.start(1)
    clock.advance(seconds=40)
    tasks = sql.claim(10)
    for task in tasks[:-1]:
        sql.complete(task)
    sql.kill(tasks[-1])
    clock.advance(seconds=75)
    sql.value("upkeep")
    found = figures(sql)
    plans = {label for name, label in found if name == "tasks_succeeded"}
    assert plans == {"pro", "unlimited"}
    ended = [found["tasks_succeeded", plan] + found["tasks_failed", plan] for plan in sorted(plans)]
    assert ended == [1, 3] and sum(found["tasks_failed", plan] for plan in plans) == 1
    assert 30 <= found["wait_p95", "unlimited"] <= 60
    clock.advance(minutes=10)
    assert not any(name == "wait_p95" for name, _ in figures(sql))


def test_expired_leases_are_overdue_until_upkeep(sql: Contract, clock: Clock) -> None:
    clock.freeze()
    sql.start(2)
    assert len(sql.claim(2, seconds=10)) == 2
    assert figures(sql)["leases_expired", ""] == 0
    clock.advance(seconds=25)
    assert (figures(sql)["leases_expired", ""], figures(sql)["leases_overdue", ""]) == (2, 15)
    sql.value("upkeep")
    assert (figures(sql)["leases_expired", ""], figures(sql)["leases_overdue", ""]) == (0, 0)


def test_workers_and_their_slots(sql: Contract) -> None:
    for number in range(2):
        sql.value("report_worker", worker_id=f"w{number}", info=Jsonb({"state": "running", "concurrency": 7}))
    found = figures(sql)
    assert (found["workers", "running"], found["slots", ""]) == (2, 14)


def test_costs_of_today_and_jobs_near_their_budget(sql: Contract) -> None:
    sql.provider("p/m")
    sql.value("set_price", provider="p/m", meter="requests", amount=9, options=Jsonb({}))
    sql.start([{"kind": "work", "provider": "p/m"}], budget=10)
    assert figures(sql)["jobs_near_budget", ""] == 0
    task = sql.claim_one()
    assert figures(sql)["jobs_near_budget", ""] == 1
    sql.complete(task)
    assert figures(sql)["cost_today", ""] == 9


def lanes(sql: Contract) -> dict[tuple[str, str | None], tuple[int, int, float | None]]:
    """Waiting, running and the age of the next task, by kind and provider."""
    rows = sql.rows("backlog")
    found = {(r["kind"], r["provider"]): (r["waiting"], r["running"], r["oldest_seconds"]) for r in rows}
    assert len(found) == len(rows), "two lines have the same labels"
    return found


def test_lanes_of_the_same_names_are_summed(sql: Contract, clock: Clock) -> None:
    """R1.8/metrics: waiting, running and the longest wait over all lanes that share kind and provider."""
    clock.freeze()
    other = Contract(sql.connection, sql.value("create_tenant", name="other", weight=1))
    sql.provider("p/m", concurrency=1)
    sql.value("set_provider", name="p/m", values=Jsonb({"concurrency": 1}), tenant_id=other.tenant)
    task = {"kind": "work", "provider": "p/m"}
    sql.start([task] * 3)
    clock.advance(seconds=40)
    other.start([task] * 2)
    assert len(sql.execute("select id from penstock.lanes where provider = 'p/m'")) == 2
    clock.advance(seconds=50)
    assert lanes(sql)["work", "p/m"] == (5, 0, 90)
    assert len(sql.claim(10)) == 2
    waiting, running, _ = lanes(sql)["work", "p/m"]
    assert (waiting, running) == (3, 2)


def test_drain_is_measured(sql: Contract, clock: Clock) -> None:
    """R1.8/metrics: the number of tasks that ended in the last minute."""

    def rates() -> dict[str, float]:
        return {row["kind"]: row["per_second"] for row in sql.rows("drain_rates")}

    clock.freeze()
    sql.start(40)
    assert rates() == {}
    for task in sql.claim(30):
        sql.complete(task)
        clock.advance(seconds=1)
    sql.claim(5)
    assert rates() == {"work": 0.5}
    clock.advance(seconds=46)
    # Those of the first sixteen seconds are older than a minute now.
    assert rates() == {"work": pytest.approx(14 / 60)}
    clock.advance(seconds=60)
    assert rates() == {}
