"""Fairness: tenants share a lane by weight; within a tenant, strict priority, then first in, first out."""

from __future__ import annotations

import itertools
import uuid
from collections import Counter
from typing import Any

import pytest
from psycopg.types.json import Jsonb

from penstock.testing import Clock
from tests.sql.conftest import Contract, Sessions


def tenant(sql: Contract, weight: float = 1) -> Contract:
    return Contract(sql.connection, sql.value("create_tenant", name="t", weight=weight))


def take(sql: Contract, clock: Clock, count: int, batch: int = 1) -> list[Any]:
    """Claim this many tasks in batches, as workers do."""
    found: list[Any] = []
    while len(found) < count:
        tasks = sql.claim(min(batch, count - len(found)))
        assert tasks, f"only {len(found)} of {count} found"
        found += tasks
        clock.advance(milliseconds=250)
    return found


def wait_for_next_millisecond(sql: Contract) -> None:
    query = "select floor(extract(epoch from clock_timestamp()) * 1000)"
    now = sql.one(query)
    while sql.one(query) == now:
        pass


class TestTenants:
    @pytest.mark.parametrize("batch", [1, 7, 30])
    def test_share_alike(self, sql: Contract, clock: Clock, batch: int) -> None:
        """B1/shares: two tenants with backlogs alternate, whichever was first."""
        one, two = tenant(sql), tenant(sql)
        one.start(500)
        two.start(500)
        found = Counter(task["tenant_id"] for task in take(sql, clock, 210, batch))
        assert abs(found[one.tenant] - found[two.tenant]) <= 2

    @pytest.mark.parametrize("batch", [1, 10])
    def test_share_by_weight(self, sql: Contract, clock: Clock, batch: int) -> None:
        """B1/shares: by plan weight, 2 to 1."""
        heavy, light = tenant(sql, 2), tenant(sql, 1)
        heavy.start(400)
        light.start(400)
        found = Counter(task["tenant_id"] for task in take(sql, clock, 300, batch))
        assert 195 <= found[heavy.tenant] <= 205

    def test_share_by_weights_of_many_sizes(self, sql: Contract, clock: Clock) -> None:
        weights = [0.5, 1, 3, 10]
        tenants = [tenant(sql, weight) for weight in weights]
        for each in tenants:
            each.start(600)
        found = Counter(task["tenant_id"] for task in take(sql, clock, 580, 29))
        for weight, each in zip(weights, tenants, strict=True):
            assert found[each.tenant] == pytest.approx(580 * weight / sum(weights), rel=0.15, abs=2)

    def test_a_new_weight_applies_to_tasks_queued_afterwards(self, sql: Contract, clock: Clock) -> None:
        one, two = tenant(sql), tenant(sql)
        sql.value("set_tenant_weight", tenant_id=one.tenant, weight=3)
        one.start(300)
        two.start(300)
        found = Counter(task["tenant_id"] for task in take(sql, clock, 200, 10))
        assert 145 <= found[one.tenant] <= 155

    def test_a_large_backlog_does_not_delay_the_small(self, sql: Contract, clock: Clock) -> None:
        """B1/no-delay: 50 tenants with one task each are next, not after the 20,000 tasks of another tenant."""
        large = tenant(sql)
        large.start(20_000)
        take(sql, clock, 20, 10)
        small = {tenant(sql).start(1) for _ in range(50)}
        found = take(sql, clock, 60, 10)
        assert small <= {task["job_id"] for task in found}

    def test_small_tenants_are_served_repeatedly_beside_a_backlog(self, sql: Contract, clock: Clock) -> None:
        """Each new task of a small tenant waits for a turn or two, never for the backlog of the large one."""
        large, small = tenant(sql), tenant(sql)
        large.start(3000)
        for _ in range(30):
            job = small.start(1)
            found = take(sql, clock, 12, 4)
            assert job in {task["job_id"] for task in found}

    def test_an_idle_tenant_saves_no_turns(self, sql: Contract, clock: Clock) -> None:
        """An idle tenant does not catch up the turns it did not use."""
        busy, idle = tenant(sql), tenant(sql)
        idle.start(1)
        busy.start(1000)
        take(sql, clock, 401, 20)
        idle.start(300)
        found = Counter(task["tenant_id"] for task in take(sql, clock, 100, 10))
        assert 40 <= found[idle.tenant] <= 60

    def test_a_tenant_that_ran_alone_is_not_delayed_later(self, sql: Contract, clock: Clock) -> None:
        """Turns taken while no other tenant had work do not count later."""
        busy, late = tenant(sql), tenant(sql)
        busy.start(1000)
        take(sql, clock, 500, 50)
        late.start(300)
        found = Counter(task["tenant_id"] for task in take(sql, clock, 100, 10))
        assert 40 <= found[busy.tenant] <= 60

    def test_lanes_do_not_affect_each_other(self, sql: Contract, clock: Clock) -> None:
        one, two = tenant(sql), tenant(sql)
        one.start(["work"] * 100)
        two.start(["other"] * 100)
        assert {task["tenant_id"] for task in sql.claim(10, kinds=["other"])} == {two.tenant}
        assert len(sql.claim(10, kinds=["other"])) == 10

    def test_retries_go_first_at_their_own_tenants_expense(self, sql: Contract, clock: Clock) -> None:
        one, two = tenant(sql), tenant(sql)
        one.start(200)
        two.start(200)
        found = Counter()
        for _ in range(60):
            task = sql.claim_one()
            found[task["tenant_id"]] += 1
            if task["tenant_id"] == one.tenant and task["attempt"] == 1:
                sql.fail(task)
            else:
                sql.complete(task)
            clock.advance(milliseconds=250)
        assert found[one.tenant] <= 45, "failing does not get a tenant much more than its share"


class TestPriority:
    def order(self, sql: Contract, clock: Clock, batch: int = 1) -> list[str]:
        keys: list[str] = []
        while tasks := sql.claim(batch):
            keys += [task["key"] for task in tasks]
            clock.advance(milliseconds=250)
        return keys

    @pytest.mark.parametrize("batch", [1, 3, 100])
    def test_the_lowest_number_goes_first(self, sql: Contract, clock: Clock, batch: int) -> None:
        """R0.2/priority: 0 to 10, lower first, within a tenant, strictly."""
        numbers = [5, 9, 0, 3, 10, 5, 1, 0]
        sql.start([{"kind": "work", "key": f"{p}.{n}", "priority": p} for n, p in enumerate(numbers)])
        keys = self.order(sql, clock, batch)
        assert [int(key.split(".")[0]) for key in keys] == sorted(numbers)

    def test_among_equals_the_oldest_job_and_then_the_order_of_its_list(
        self, sql: Contract, clock: Clock
    ) -> None:
        for job in "abc":
            sql.start([{"kind": "work", "key": f"{job}{n}", "priority": n % 2} for n in range(4)])
            wait_for_next_millisecond(sql)  # by which job ids are ordered
        assert self.order(sql, clock, 2) == [
            f"{job}{n}" for parity in (0, 1) for job in "abc" for n in (parity, parity + 2)
        ]

    def test_a_late_urgent_job_overtakes_its_tenants_backlog(self, sql: Contract, clock: Clock) -> None:
        sql.start([{"kind": "work", "key": f"slow{n}"} for n in range(300)])
        take(sql, clock, 10, 5)
        sql.start([{"kind": "work", "key": "urgent"}], priority=0)
        assert sql.claim_one()["key"] == "urgent"
        assert sql.claim_one()["key"].startswith("slow")

    def test_overtaking_does_not_delay_the_backlog_or_other_tenants(
        self, sql: Contract, clock: Clock
    ) -> None:
        """The rest of the backlog is found at once, and other tenants start beside it and not behind it."""
        clock.freeze()
        sql.start([{"kind": "work", "key": f"slow{n}"} for n in range(2000)])
        take(sql, clock, 10, 5)
        sql.start([{"kind": "work", "key": "urgent"}], priority=0)
        assert "urgent" in {task["key"] for task in take(sql, clock, 4, 2)}
        take(sql, clock, 6, 2)
        other = tenant(sql)
        job = other.start(1)
        for _ in range(3):  # without a sweep: the time stands still
            assert len(sql.claim(5)) == 5
        assert sql.task(sql.tasks(job)[0])["status"] == "running"

    @pytest.mark.parametrize("priority", [0, 10])
    def test_priority_does_not_change_the_shares_of_tenants(
        self, sql: Contract, clock: Clock, priority: int
    ) -> None:
        """B1/priority: a tenant gets no larger share by marking everything urgent."""
        plain, loud = tenant(sql), tenant(sql)
        plain.start(300)
        loud.start(300, priority=priority)
        loud.start(100)
        found = Counter(task["tenant_id"] for task in take(sql, clock, 120, 6))
        assert abs(found[plain.tenant] - found[loud.tenant]) <= 2

    def test_priorities_of_one_tenant_do_not_order_those_of_another(
        self, sql: Contract, clock: Clock
    ) -> None:
        one, two = tenant(sql), tenant(sql)
        one.start([{"kind": "work", "key": f"one{n}", "priority": 9 - n} for n in range(5)])
        two.start([{"kind": "work", "key": f"two{n}"} for n in range(5)])
        keys = self.order(sql, clock)
        assert [key for key in keys if key.startswith("one")] == ["one4", "one3", "one2", "one1", "one0"]
        assert [key for key in keys if key.startswith("two")] == ["two0", "two1", "two2", "two3", "two4"]

    def test_a_tasks_priority_overrides_that_of_its_job(self, sql: Contract) -> None:
        sql.start([{"kind": "work", "key": "a"}, {"kind": "work", "key": "b", "priority": 1}], priority=8)
        assert [
            row["priority"] for row in sql.execute("select priority from penstock.ready order by task_id")
        ] == [8, 1]
        assert sql.claim_one()["key"] == "b"

    def test_priority_applies_to_children_and_requeued_tasks(self, sql: Contract, clock: Clock) -> None:
        sql.start(
            [
                {"kind": "work", "key": "root", "priority": 0},
                {"kind": "work", "key": "child", "priority": 1, "after": ["root"]},
                *({"kind": "work", "key": f"slow{n}", "priority": 9} for n in range(5)),
            ]
        )
        root = sql.claim_one()
        sql.complete(root)
        child = sql.claim_one()
        assert child["key"] == "child"
        sql.fail(child)
        assert sql.claim_one()["key"] == "child"

    def test_an_empty_queue_ends_the_cost_of_mixed_priorities(self, sql: Contract, clock: Clock) -> None:
        """Mixed priorities slow claims only while they are mixed."""
        sql.start([{"kind": "work", "priority": p} for p in (1, 2)])
        assert sql.one("select count(*) from penstock.mixed") == 1
        sql.drain()
        sql.upkeep()
        assert sql.one("select count(*) from penstock.mixed") == 0


class TestOrder:
    def test_first_come_first_served_within_a_tenant(self, sql: Contract, clock: Clock) -> None:
        jobs = [sql.start(7) for _ in range(20)]
        found = [task["job_id"] for task in take(sql, clock, 140, 9)]
        assert [job for job, _ in itertools.groupby(found)] == jobs

    def test_order_holds_when_claims_and_enqueues_alternate(self, sql: Contract, clock: Clock) -> None:
        waiting: list[uuid.UUID] = []
        for n in range(60):
            waiting.append(sql.start(1))
            if n % 3:
                assert sql.claim_one()["job_id"] == waiting.pop(0)
                clock.advance(milliseconds=100)
        for job in waiting:
            assert sql.claim_one()["job_id"] == job

    def test_a_new_lane_starts_at_its_beginning(self, sql: Contract) -> None:
        sql.value("define_kind", name="fresh", options=Jsonb({}))
        job = sql.start(["fresh"])
        assert sql.claim_one()["job_id"] == job


class TestFront:
    """A task that was claimed before is next, ahead of its tenant's backlog and of other tenants."""

    def backlog(self, sql: Contract, clock: Clock) -> Any:
        """A claimed task, and queued tasks of its tenant and of another one."""
        own, other = tenant(sql), tenant(sql)
        own.start(50)
        other.start(50)
        sql.complete_all(take(sql, clock, 20, 4))
        task = sql.claim_one()
        sql.complete_all(take(sql, clock, 6, 2))
        return task

    def check(self, sql: Contract, task: Any) -> None:
        # The other tenant may have a task in the slot that the lane's clock is at.
        assert task["id"] in {found["id"] for found in sql.claim(2)}

    def test_a_retry_is_next(self, sql: Contract, clock: Clock) -> None:
        task = self.backlog(sql, clock)
        sql.fail(task)
        self.check(sql, task)

    def test_a_retry_whose_backoff_is_over_is_next(self, sql: Contract, clock: Clock) -> None:
        task = self.backlog(sql, clock)
        sql.fail(task, retry_after_seconds=30)
        others = take(sql, clock, 10, 5)
        sql.complete_all(others)
        assert task["id"] not in {other["id"] for other in others}
        clock.advance(seconds=31)
        sql.upkeep()
        self.check(sql, task)

    def test_a_task_handed_back_is_next(self, sql: Contract, clock: Clock) -> None:
        task = self.backlog(sql, clock)
        sql.reschedule(task)
        self.check(sql, task)

    def test_a_dead_workers_task_is_next(self, sql: Contract, clock: Clock) -> None:
        """R1.6/dead-worker."""
        task = self.backlog(sql, clock)
        clock.advance(seconds=60)
        assert sql.reclaim() == 1
        self.check(sql, task)

    def test_a_rescheduled_task_queues_behind_its_tenants_tasks(self, sql: Contract, clock: Clock) -> None:
        task = self.backlog(sql, clock)
        sql.reschedule(task, 30)
        clock.advance(seconds=31)
        sql.upkeep()
        mine = [found["id"] for found in take(sql, clock, 74, 5) if found["tenant_id"] == task["tenant_id"]]
        assert mine[-1] == task["id"]
        assert sql.claim() == []


class TestLanes:
    def test_all_get_their_turn(self, sql: Contract, clock: Clock) -> None:
        """A claim of several lanes starts with a random one, so no lane waits until another is empty."""
        sql.execute("select setseed(0.5)")
        providers = ["a/x", "b/x", "c/x", "d/x"]
        for name in providers:
            sql.provider(name)
        sql.start([{"kind": "work", "provider": name} for name in providers for _ in range(300)])
        sql.start(["other"])
        found: Counter[int] = Counter()
        for _ in range(60):
            tasks = sql.claim(5)
            assert len(tasks) == 5
            found.update(
                row["lane_id"]
                for row in sql.execute(
                    "select lane_id from penstock.leases where task_id = any (%s)",
                    [task["id"] for task in tasks],
                )
            )
            clock.advance(milliseconds=250)
        assert len(found) == 5, "also the one with a single task"
        assert sorted(found.values())[1] > 20

    def test_a_claim_fills_up_from_other_lanes(self, sql: Contract) -> None:
        for n in range(8):
            sql.provider(f"p/{n}")
        sql.start([{"kind": "work", "provider": f"p/{n}"} for n in range(8)])
        assert len(sql.claim(8)) == 8

    def test_a_share_is_of_each_lane(self, sql: Contract, clock: Clock) -> None:
        """B1/shares: work in one lane does not cost a tenant its turn in another."""
        busy, idle = tenant(sql), tenant(sql)
        busy.start(["work"] * 500)
        take(sql, clock, 100, 10)
        busy.start(["other"] * 100)
        idle.start(["other"] * 100)
        found = Counter(task["tenant_id"] for task in sql.claim(40, kinds=["other"]))
        assert found == {busy.tenant: 20, idle.tenant: 20}


def many_lanes(sql: Contract) -> None:
    sql.execute(
        "select penstock.define_kind('k' || n, '{\"raw_tasks\": true}') from generate_series(1, 400) n"
    )
    sql.execute("select penstock._lane('k' || n, null, null, n % 2 = 0) from generate_series(1, 400) n")


class TestManyLanes:
    """Thousands of lanes: one per kind, and one per tenant with its own limits for a provider."""

    @pytest.mark.parametrize("kinds", [None, ["k1", "k2", "k3"]])
    def test_a_claim_does_not_look_into_empty_lanes(self, sql: Contract, kinds: list[str] | None) -> None:
        many_lanes(sql)
        query = "select sum(idx_scan) as n from pg_stat_xact_user_tables where relname = 'ready'"
        for tasks in ([], ["k1"], ["k1", "k2"]):
            if tasks:
                sql.start(tasks)
            before = sql.one(query)
            assert len(sql.claim(3, kinds=kinds)) == len(tasks)
            sql.value("next_opening", task_types=kinds)
            assert sql.one(query) - before < 40

    def test_all_get_their_turn(self, sql: Contract, clock: Clock) -> None:
        many_lanes(sql)
        sql.execute("select setseed(0.5)")
        sql.start([f"k{n}" for n in range(1, 9) for _ in range(40)])
        found: Counter[str] = Counter()
        for _ in range(60):
            found.update(task["kind"] for task in sql.claim(2))
            clock.advance(milliseconds=250)
        assert len(found) == 8 and min(found.values()) > 4

    def test_only_the_kinds_of_the_worker_are_claimed(self, sql: Contract) -> None:
        many_lanes(sql)
        sql.start(["k1", "k2", "k3", "k4"])
        assert {task["kind"] for task in sql.claim(9, kinds=["k2", "k3"])} == {"k2", "k3"}
        assert {task["kind"] for task in sql.claim(9)} == {"k1", "k4"}

    def test_a_task_committed_behind_the_clock_is_found(self, sessions: Sessions, clock: Clock) -> None:
        """B1/late-commits: also when a claim goes on to the next lane."""
        clock.freeze()
        worker, slow = sessions.open(), sessions.open()
        many_lanes(worker)
        tenant(worker).start(["k1"] * 500)
        with slow.connection.transaction():
            late = slow.start(["k1"])
            while worker.claim(50):
                clock.advance(milliseconds=250)
        found = worker.claim(5)
        if not found:
            clock.advance(milliseconds=1000 * worker.value("next_opening") + 1)
            found = worker.claim(5)
        assert [task["job_id"] for task in found] == [late]


class TestLate:
    def test_a_task_committed_behind_the_clock_is_found_beside_a_backlog(
        self, sessions: Sessions, clock: Clock
    ) -> None:
        """B1/late-commits: a task whose slot the lane's clock passed before its commit is found within a second."""
        clock.freeze()
        worker, slow = sessions.open(), sessions.open()
        large = tenant(worker)
        large.start(1000)
        with slow.connection.transaction():
            late = slow.start(2)
            slots = slow.one("select max(vtime) from penstock.ready where job_id = %s", late)
            assert {task["tenant_id"] for task in take(worker, clock, 100, 10)} == {large.tenant}
            assert worker.one("select read_from from penstock.lanes where kind = 'work'") > slots
        clock.advance(milliseconds=1001)
        found = worker.claim(10)
        assert [task["job_id"] for task in found[:2]] == [late, late]
        assert len(found) == 10

    def test_a_task_committed_behind_the_clock_is_found_in_an_idle_lane(
        self, sessions: Sessions, clock: Clock
    ) -> None:
        """B1/late-commits: an empty claim returns when to search the whole lane."""
        clock.freeze()
        worker, slow = sessions.open(), sessions.open()
        tenant(worker).start(800)
        assert worker.value("next_opening") is None
        with slow.connection.transaction():
            late = slow.start(2)
            take(worker, clock, 800, 100)
        assert worker.claim(10) == []
        seconds = worker.value("next_opening")
        assert 0 < seconds <= 1
        clock.advance(milliseconds=1000 * seconds + 1)
        assert [task["job_id"] for task in worker.claim(10)] == [late, late]
