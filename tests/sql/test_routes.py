"""Routes are decided when a task is claimed: providers that are full, closed or failing are skipped."""

from __future__ import annotations

from typing import Any

import pytest
from psycopg.types.json import Jsonb

from bench import routes
from penstock.testing import Clock

from .conftest import Contract
from .test_costs import cost, price
from .test_limits import explain, provider, tell
from .test_quotas import accounts_are_right as accounts_are_right


@pytest.fixture(autouse=True)
def shops(sql: Contract, clock: Clock) -> None:
    """Three providers that cost 1, 2 and 5 for a second of video."""
    clock.freeze()
    for name, amount in (("a/cheap", 1), ("b/middle", 2), ("c/dear", 5)):
        provider(sql, name, features=["video"])
        price(sql, "seconds", amount, name)


def routed(count: int = 1, seconds: float = 10, **route: Any) -> list[dict[str, Any]]:
    task = {"kind": "work", "route": {"features": ["video"], **route}, "units": {"seconds": seconds}}
    return [task] * count


def providers(tasks: list[Any]) -> list[str]:
    return sorted(task["provider"] for task in tasks)


def route(sql: Contract) -> Any:
    return sql.one("select route from penstock.tasks")


def test_a_start_creates_its_lanes_in_one_order(sql: Contract) -> None:
    """Two starts that create the same lanes in different orders would deadlock."""
    sql.value("define_kind", name="film", options=Jsonb({}))
    task = {"kind": "film", "units": {"seconds": 1}}
    listed = {**task, "route": {"providers": ["c/dear", "a/cheap", "b/middle"], "prefer": "listed"}}
    sql.start([listed, {"kind": "film"}, task])
    created = "select provider from penstock.lanes where kind = 'film' and is_gated order by id"
    assert [row["provider"] for row in sql.execute(created)] == ["a/cheap", "b/middle", "c/dear", None]


class TestFull:
    def test_tasks_behind_a_full_provider_run_at_the_next_one(self, sql: Contract) -> None:
        """R0.11/at-claim, R0.6/cheapest: the claim decides, and the other tasks stay with the cheapest provider."""
        provider(sql, "a/cheap", concurrency=1)
        provider(sql, "b/middle", concurrency=2)
        job = sql.start(routed(10))
        provider(sql, "c/dear", concurrency=0)
        tasks = sql.claim(9)
        assert providers(tasks) == ["a/cheap", "b/middle", "b/middle"]
        lanes = "select l.provider, count(*) from penstock.ready r join penstock.lanes l on l.id = r.lane_id group by 1"
        assert [tuple(row.values()) for row in sql.execute(lanes)] == [("a/cheap", 7)]
        for task in tasks:
            sql.complete(task)
        assert cost(sql, job) == 10 + 20 + 20
        assert providers(sql.claim(1)) in (["a/cheap"], ["b/middle"])
        assert sql.rows("check_accounts") == []

    def test_a_full_window_moves_tasks_too(self, sql: Contract) -> None:
        """R0.11/skip-unavailable: a provider that is full."""
        provider(sql, "a/cheap", requests_per_minute=2)
        sql.start(routed(3))
        assert providers(sql.claim(3)) == ["a/cheap", "a/cheap", "b/middle"]

    def test_a_claim_of_one_moves_one(self, sql: Contract) -> None:
        provider(sql, "a/cheap", concurrency=1)
        sql.start(routed(5))
        assert [providers(sql.claim(1)) for _ in range(2)] == [["a/cheap"], ["b/middle"]]

    def test_nothing_moves_while_every_provider_is_full(self, sql: Contract) -> None:
        for name in ("a/cheap", "b/middle", "c/dear"):
            provider(sql, name, concurrency=1)
        job = sql.start(routed(4))
        assert len(sql.claim(4)) == 3 and sql.claim(1) == []
        (waiting,) = [task["id"] for task in sql.tasks(job) if task["status"] == "queued"]
        assert explain(sql, waiting)["text"].startswith(
            "waiting: a/cheap concurrency, 1 running; other providers: b/middle is full, c/dear is full"
        )

    def test_other_kinds_and_plain_tasks_stay(self, sql: Contract) -> None:
        provider(sql, "a/cheap", concurrency=1)
        sql.start([*routed(1), {"kind": "work", "provider": "a/cheap"}, {**routed()[0], "kind": "other"}])
        assert len(sql.claim(1, kinds=["work"])) == 1
        moved = sql.claim(5, kinds=["work"])
        assert providers(moved) in ([], ["b/middle"])
        assert sql.claim(5, kinds=["work"]) == []

    def test_a_full_queue_falls_back_and_then_refuses(self, sql: Contract) -> None:
        """R0.6/fallback: a deep queue sends new tasks to the next provider before it answers 429."""
        provider(sql, "a/cheap", depth_limit=3)
        provider(sql, "b/middle", depth_limit=2)
        provider(sql, "c/dear", depth_limit=1)
        sql.start(routed(5))
        lanes = "select l.provider, count(*) as n from penstock.ready r join penstock.lanes l on l.id = r.lane_id group by 1 order by 1"
        assert [tuple(row.values()) for row in sql.execute(lanes)] == [("a/cheap", 3), ("b/middle", 2)]
        with sql.refused(429, "queue_full"):
            sql.start(routed(2))
        sql.start(routed(1))


class TestClosed:
    def test_an_outage_is_passed_over_and_ends(self, sql: Contract, clock: Clock) -> None:
        """R0.11/skip-unavailable: a provider that is closed or under maintenance, until it is open again."""
        sql.start(routed(3))
        tell(sql, "a/cheap", status=429, exhausted=True)
        task = sql.claim_one()
        assert task["provider"] == "b/middle"
        assert explain(sql, task["id"])["text"].endswith(
            ", at b/middle (cheapest: 20, instead of a/cheap: closed)"
        )
        sql.value("set_provider", name="b/middle", values=Jsonb({"status": "maintenance"}))
        assert sql.claim_one()["provider"] == "c/dear"
        sql.value("open_provider", name="a/cheap")
        assert sql.claim_one()["provider"] == "a/cheap"

    def test_a_new_provider_takes_waiting_tasks(self, sql: Contract) -> None:
        for name in ("a/cheap", "b/middle", "c/dear"):
            provider(sql, name, concurrency=0)
        sql.start(routed(1))
        assert sql.claim(1) == []
        provider(sql, "d/new", features=["video"])
        assert sql.claim_one()["provider"] == "d/new"

    def test_a_paused_job_does_not_move(self, sql: Contract) -> None:
        provider(sql, "a/cheap", concurrency=0)
        sql.pause(sql.start(routed(3)))
        assert sql.claim(3) == []


class TestFailing:
    def test_a_second_failure_changes_the_provider(self, sql: Contract) -> None:
        sql.start([{**routed()[0], "max_attempts": 9}])
        seen: list[str] = []
        for _ in range(7):
            task = sql.claim_one()
            seen.append(task["provider"])
            sql.fail(task)
        assert seen == ["a/cheap"] * 2 + ["b/middle"] * 2 + ["c/dear"] * 3
        assert route(sql)["failed"] == {"a/cheap": 2, "b/middle": 2, "c/dear": 3}

    def test_errors_in_the_input_change_nothing(self, sql: Contract) -> None:
        sql.start(routed(6))
        for task in sql.claim(6):
            sql.kill(task)
        sql.start(routed(1))
        assert sql.claim_one()["provider"] == "a/cheap"

    def test_five_failures_pass_it_over_for_this_tenant(self, sql: Contract, clock: Clock) -> None:
        """R0.11/skip-unavailable: a provider that is failing."""
        other = sql.value("create_tenant", name="other")
        sql.start(routed(5))
        for task in sql.claim(5):
            sql.fail(task)
        sql.start(routed(1), tenant_id=str(other))
        mine = {task["tenant_id"]: task["provider"] for task in sql.claim(10)}
        assert mine == {sql.tenant: "b/middle", other: "a/cheap"}
        # After a minute it is tried again, and one success ends the count.
        clock.advance(seconds=61)
        sql.start(routed(1))
        task = sql.claim_one()
        assert task["provider"] == "a/cheap"
        sql.complete(task)
        assert sql.one("select count(*) from penstock.route_failures where tenant_id = %s", sql.tenant) == 0

    def test_a_waiting_task_leaves_a_failing_provider_before_its_attempt(self, sql: Contract) -> None:
        sql.start(routed(5))
        tasks = sql.claim(5)
        sql.start(routed(1))
        for task in tasks:
            sql.fail(task, permanent=False, retry_after_seconds=60)
        task = sql.claim_one()
        assert (task["attempt"], task["provider"]) == (1, "b/middle")
        assert (
            sql.one("select route #>> '{chosen,because}' from penstock.tasks where id = %s", task["id"])
            == "failing"
        )


class TestLimitsOfFeatures:
    """R0.11/feature-limits: "at most 10 s", "at most 2160 lines"."""

    @pytest.fixture(autouse=True)
    def bounds(self, sql: Contract) -> None:
        provider(sql, "a/cheap", features=["video", "seconds<=10", "lines<=720"])
        provider(sql, "b/middle", features=["video", "seconds<=60", "seconds>=5", "lines<=2160"])

    def chosen(self, sql: Contract, **how: Any) -> str:
        sql.start(routed(**how))
        task = sql.claim_one()
        sql.complete(task)
        return task["provider"]

    def test_units_are_compared(self, sql: Contract) -> None:
        assert [self.chosen(sql, seconds=seconds) for seconds in (2, 10, 10.5, 60, 61)] == [
            "a/cheap", "a/cheap", "b/middle", "b/middle", "c/dear",
        ]  # fmt: skip

    def test_needs_are_compared(self, sql: Contract) -> None:
        assert self.chosen(sql, needs={"lines": 2160}) == "b/middle"
        assert self.chosen(sql, needs={"lines": 2160}, seconds=2) == "c/dear"

    def test_a_full_provider_is_left_for_one_that_can(self, sql: Contract) -> None:
        provider(sql, "a/cheap", concurrency=0)
        assert self.chosen(sql, seconds=2) == "c/dear"

    @pytest.mark.parametrize(
        "feature", ["seconds<10", "seconds<=", "Seconds<=10", "seconds<=ten", "<=10", "a=b"]
    )
    def test_malformed_limits_are_rejected(self, sql: Contract, feature: str) -> None:
        with sql.refused(422, "invalid_provider"):
            provider(sql, "a/cheap", features=[feature])


class TestPreferences:
    def test_a_task_waits_for_the_cheapest_as_long_as_its_route_says(
        self, sql: Contract, clock: Clock
    ) -> None:
        provider(sql, "a/cheap", concurrency=0)
        job = sql.start(routed(1, wait_seconds=60))
        assert sql.claim(1) == []
        text = explain(sql, sql.tasks(job)[0]["id"])["text"]
        assert "b/middle is open: its route still waits" in text
        clock.advance(seconds=61)
        assert sql.claim_one()["provider"] == "b/middle"

    def test_a_task_costs_at_most_what_its_route_says(self, sql: Contract) -> None:
        provider(sql, "a/cheap", concurrency=0)
        sql.start(routed(1, max_cost=15))
        assert sql.claim(1) == []
        with sql.refused(422, "no_provider"):
            sql.start(routed(1, max_cost=9.99))

    def test_moves_stay_within_the_budget(self, sql: Contract) -> None:
        provider(sql, "a/cheap", concurrency=1)
        job = sql.start(routed(6), budget=75)
        assert providers(sql.claim(6)) == ["a/cheap", "b/middle", "b/middle", "b/middle"]
        waiting = [task["id"] for task in sql.tasks(job) if task["status"] == "queued"]
        assert len(waiting) == 2 and sql.status(job) == "running"
        assert "b/middle costs 20, more than the budget has left" in explain(sql, waiting[0])["text"]

    def test_the_tenants_own_endpoint_is_used(self, sql: Contract) -> None:
        provider(sql, "a/cheap", concurrency=0)
        sql.value("set_provider", name="c/dear", tenant_id=sql.tenant, values=Jsonb({"features": ["video"]}))
        price(sql, "seconds", 0, "c/dear", tenant_id=str(sql.tenant))
        sql.start(routed(1))
        assert sql.claim_one()["provider"] == "c/dear"

    @pytest.mark.parametrize(
        "wrong",
        [
            {"needs": []}, {"needs": {"lines": "many"}}, {"max_cost": "1"}, {"max_cost": -1},
            {"wait_seconds": -1}, {"wait_seconds": 86_401}, {"wait_seconds": None},
        ],
    )  # fmt: skip
    def test_malformed_preferences_are_rejected(self, sql: Contract, wrong: dict[str, Any]) -> None:
        with sql.refused(422, "invalid_route"):
            sql.start(routed(1, **wrong))


class TestExtraUnits:
    """Units that a task uses at some providers only: they count in its cost, its hold and its estimate there."""

    EXTRA = {"a/*": {"seconds": 90}, "a/none": {"seconds": 0}, "c/dear": {"seconds": 1}}  # noqa: RUF012

    def at(self, sql: Contract, job: Any) -> tuple[str, int]:
        """The provider and the units of the job's task."""
        query = (
            "select route #>> '{chosen,provider}' as name, units ->> 'seconds' as seconds from penstock.tasks"
        )
        [row] = sql.execute(f"{query} where job_id = %s", job)
        return row["name"], int(row["seconds"])

    def test_the_chosen_provider_decides_what_a_task_reserves(self, sql: Contract) -> None:
        job = sql.start(routed(1, extra_units=self.EXTRA), budget=19.99)
        assert self.at(sql, job) == ("b/middle", 10)
        assert sql.claim(1) == [], "b/middle costs 20, the others 100 and 55"
        assert "budget: 19.99 left of 19.99, needs up to 20" in explain(sql, sql.tasks(job)[0]["id"])["text"]
        provider(sql, "a/none", features=["video"])
        price(sql, "seconds", 1, "a/none")
        plain = sql.start(routed(1, extra_units=self.EXTRA))
        assert self.at(sql, plain) == ("a/none", 10), "its name wins over a/*"

    def test_a_task_that_moves_has_the_units_of_its_provider(self, sql: Contract) -> None:
        for name in ("b/middle", "c/dear"):
            provider(sql, name, concurrency=0)
        job = sql.start(routed(1, extra_units=self.EXTRA), budget=200)
        assert sql.claim_one()["provider"] == "a/cheap" and self.at(sql, job) == ("a/cheap", 100)
        held = "select held from penstock.accounts where meter = 'cost' and job_id is not null"
        assert sql.one(held) == 100

    def test_moves_stay_within_the_budget(self, sql: Contract) -> None:
        provider(sql, "b/middle", concurrency=0)
        job = sql.start(routed(1, extra_units=self.EXTRA), budget=50)
        assert sql.claim(1) == [] and self.at(sql, job) == ("b/middle", 10)
        text = explain(sql, sql.tasks(job)[0]["id"])["text"]
        assert "a/cheap costs 100, more than the budget has left" in text
        assert "c/dear costs 55, more than the budget has left" in text

    def test_a_task_moves_there_and_back(self, sql: Contract) -> None:
        provider(sql, "b/middle", concurrency=0)
        job = sql.start(routed(1, extra_units=self.EXTRA))
        task = sql.claim_one()
        assert task["provider"] == "c/dear" and self.at(sql, job) == ("c/dear", 11)
        provider(sql, "b/middle", concurrency=1)
        provider(sql, "c/dear", concurrency=0)
        sql.reschedule(task)
        assert sql.claim_one()["provider"] == "b/middle" and self.at(sql, job) == ("b/middle", 10)

    def test_the_estimate_of_a_lost_answer_is_that_of_its_own_provider(
        self, sql: Contract, clock: Clock
    ) -> None:
        provider(sql, "b/middle", concurrency=0)
        job = sql.start([{**task, "max_attempts": 9} for task in routed(1, extra_units=self.EXTRA)])
        for _ in range(2):
            task = sql.claim_one()
            assert task["provider"] == "c/dear"
            sql.fail(task, error_code="answer_lost")
            clock.advance(minutes=5)
        assert self.at(sql, job) == ("b/middle", 10)
        assert cost(sql, job) == 2 * 55
        assert sql.rows("check_accounts") == []

    def test_all_tokens_contain_the_extra_ones(self, sql: Contract) -> None:
        task = {"kind": "work", "units": {"tokens": 30, "output_tokens": 10}}
        extra = {"a/cheap": {"output_tokens": 5}}
        sql.start([{**task, "route": {"providers": ["a/cheap"], "extra_units": extra}}])
        assert sql.one("select units from penstock.tasks") == {"tokens": 35, "output_tokens": 15}

    @pytest.mark.parametrize(
        "wrong",
        [
            [], None, {"a/cheap": 1}, {"a/cheap": []}, {"a/cheap": {"seconds": "1"}}, {"a/cheap": {"seconds": []}},
            {"a/cheap": {"seconds": -1}}, {"a/cheap": {"seconds": 1e13}}, {"a/cheap": {"tokens": 1}},
        ],
    )  # fmt: skip
    def test_malformed_extra_units_are_rejected(self, sql: Contract, wrong: Any) -> None:
        with sql.refused(422, "invalid_route"):
            sql.start(routed(1, extra_units=wrong))


def test_workers_wake_when_another_provider_opens(sql: Contract) -> None:
    provider(sql, "a/cheap", concurrency=0)
    for name in ("b/middle", "c/dear"):
        tell(sql, name, status=429, retry_after_seconds=20)
    sql.start(routed(1))
    assert sql.claim(1) == []
    assert 19 < sql.value("next_opening", task_types=["work"]) <= 20


@pytest.mark.slow
def test_mixed_demand_costs_little_more_than_the_cheapest_plan(sql: Contract, clock: Clock) -> None:
    """R0.6/cheapest: three providers with limits, one of them down for a while, within 10 % of the cheapest plan."""
    sql.value("define_kind", name=routes.KIND)
    lengths = routes.films(120, seed=3)

    def call(query: str, values: Any) -> list[Any]:
        return [tuple(row.values()) for row in sql.execute(query, *values)]

    found = routes.run(call, lambda seconds: clock.advance(seconds=seconds), str(sql.tenant), lengths)
    least = routes.cheapest(lengths, found.seconds)
    assert least and least * 0.9999 <= found.cost <= least * 1.1
    assert found.seconds <= routes.fixed(lengths).seconds * 1.1
