"""Flow control and money in concurrent sessions: no deadlock, no overrun, no leaked hold, no task that waits forever."""

from __future__ import annotations

import random
import threading
import time
import uuid
from collections import deque
from decimal import Decimal
from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

from penstock.postgres import db
from penstock.testing import Clock
from tests.sql.conftest import Call, Contract, Sessions

NAME = "test/model"


def calls(count: int, name: str = NAME, **spec: Any) -> list[dict[str, Any]]:
    return [{"kind": "work", "provider": name, **spec} for _ in range(count)]


def limit(sql: Contract, meter: str, amount: Any, tenant: uuid.UUID | None = None) -> None:
    sql.value("set_limit", tenant_id=tenant or sql.tenant, meter=meter, amount=amount)


def price(sql: Contract, meter: str, amount: Any, name: str = NAME, **options: Any) -> int:
    return sql.value("set_price", provider=name, meter=meter, amount=amount, options=Jsonb(options))


def use(sql: Contract, tenant: uuid.UUID | None = None, **units: Any) -> None:
    """Records usage outside of a task, which locks its accounts until the end of the transaction."""
    sql.value("record_usage", units=Jsonb(units), tenant_id=tenant or sql.tenant, action="test")


def report(sql: Contract, task: db.Row, worker: str = "w1", **units: Any) -> None:
    sql.value("record_usage", units=Jsonb(units), task_id=task["id"], worker_id=worker, lease=task["lease"])


def hand_back(sql: Contract, *tasks: db.Row, worker: str = "w1") -> list[db.Row]:
    return sql.rows(
        "hand_back_tasks",
        worker_id=worker,
        task_ids=[task["id"] for task in tasks],
        leases=[task["lease"] for task in tasks],
    )


def tell(sql: Contract, name: str = NAME, **signal: Any) -> None:
    sql.value("report_provider", name=name, signal=Jsonb(signal))


def acquire(sql: Contract, name: str = NAME, tokens: int = 1000, **how: Any) -> bool:
    provider, _, endpoint = name.partition("/")
    return sql.value(
        "acquire_api_capacity", provider_name=provider, api_endpoint=endpoint, estimated_tokens=tokens, **how
    )


def release(
    sql: Contract, name: str = NAME, tokens: int = 1000, actual: int | None = None, **how: Any
) -> None:
    provider, _, endpoint = name.partition("/")
    sql.value("release_api_capacity", provider_name=provider, api_endpoint=endpoint, estimated_tokens=tokens,
              actual_tokens=actual, **how)  # fmt: skip


def in_windows(sql: Contract, name: str = NAME) -> tuple[int, int]:
    (row,) = sql.execute(
        "select requests_minute, tokens_minute from penstock.provider_list where name = %s and tenant_id is null",
        name,
    )
    return row["requests_minute"], row["tokens_minute"]


def end(sql: Contract, *jobs: uuid.UUID) -> None:
    """All limits are lifted: upkeep and one worker must now end every task."""
    for _ in range(20):
        sql.upkeep()
        sql.drain()
    assert [sql.status(job) for job in jobs] == ["completed"] * len(jobs)
    sql.check()
    assert sql.rows("check_accounts") == []


class TestLocks:
    """Each of these deadlocked once: two sessions waited for each other."""

    @pytest.mark.slow
    def test_claims_of_full_endpoints_do_not_deadlock(self, sessions: Sessions) -> None:
        """A claim does not keep a full endpoint locked while it waits for another one."""
        sql = sessions.open()
        names = [f"test/{n}" for n in range(3)]
        for name in names:
            sql.provider(name, concurrency=1)
            sql.start(calls(5, name))
        while sql.claim(10):
            pass
        stop = threading.Event()

        def ask(own: Contract) -> None:
            while not stop.is_set():
                assert own.claim(10, "w2") == []

        asking = [Call(lambda own=sessions.open(): ask(own)) for _ in range(4)]
        stop.wait(2)
        stop.set()
        for call in asking:
            call.result()

    def test_changing_a_provider_during_a_claim_does_not_deadlock(self, sessions: Sessions) -> None:
        one, two = sessions.open(), sessions.open()
        one.provider(NAME, requests_per_minute=5)
        one.start(calls(3))
        with one.connection.transaction():
            tell(one, status=200)
            call = Call(lambda: two.provider(NAME, requests_per_minute=7))
            sessions.wait_until_blocked(two, call)
            assert len(one.claim(10)) == 3
        call.result()

    def test_a_task_is_handed_back_while_its_endpoint_is_in_use(
        self, sessions: Sessions, clock: Clock
    ) -> None:
        clock.freeze()
        one, two = sessions.open(), sessions.open()
        one.provider(NAME, requests_per_minute=3)
        one.start(calls(5))
        assert acquire(one)
        tasks = one.claim(10)
        assert len(tasks) == 2
        with one.connection.transaction():
            tell(one, status=200)
            call = Call(lambda: hand_back(two, *tasks))
            sessions.wait_until_blocked(two, call)
            release(one, actual=10)
        assert call.result() == []
        assert in_windows(one) == (1, 10)

    def test_a_reservation_takes_accounts_in_order(self, sessions: Sessions) -> None:
        """Also those without a limit."""
        one, two = sessions.open(), sessions.open()
        limit(one, "pages", 10)
        use(one, files=1, pages=1)
        with one.connection.transaction():
            use(one, files=1)
            call = Call(
                lambda: two.value(
                    "reserve_quota", tenant_id=two.tenant, amounts=Jsonb({"files": 1, "pages": 1})
                )
            )
            sessions.wait_until_blocked(two, call)
            use(one, pages=1)
        call.result()
        assert one.rows("check_accounts") == []

    def test_a_claim_takes_accounts_in_order(self, sessions: Sessions) -> None:
        """The cost is also reserved for a tenant without a cost limit."""
        one, two = sessions.open(), sessions.open()
        one.provider(NAME)
        price(one, "tokens", 1)
        limit(one, "pages", 10)
        job = one.start(calls(1, units={"tokens": 1, "pages": 1}), budget=5)
        with one.connection.transaction():
            one.value("record_cost", cost_type="storage", amount=1, tenant_id=one.tenant)
            call = Call(lambda: two.claim(1))
            sessions.wait_until_blocked(two, call)
            use(one, pages=1)
        assert len(call.result()) == 1
        two.complete_all(call.result())
        end(one, job)

    @pytest.mark.parametrize("verb", ["complete_tasks", "fail_tasks", "reschedule_tasks"])
    def test_a_batch_with_a_stopped_task_takes_accounts_in_order(self, sessions: Sessions, verb: str) -> None:
        one, two = sessions.open(), sessions.open()
        tenants = [one.value("create_tenant", name=name) for name in "ab"]
        jobs = []
        for tenant in tenants:
            limit(one, "pages", 10, tenant)
            jobs.append(
                one.start([{"kind": "work", "units": {"pages": 2}}], tenant_id=str(tenant), on_failure="stop")
            )
        tasks = sorted(one.claim(10), key=lambda task: task["tenant_id"])
        one.cancel(next(job for job in jobs if job == tasks[0]["job_id"]))
        more: dict[str, Any] = {"errors": [Jsonb({})] * 2} if verb == "fail_tasks" else {}
        with one.connection.transaction():
            use(one, tasks[0]["tenant_id"], pages=1)
            call = Call(
                lambda: two.rows(
                    verb,
                    worker_id="w1",
                    task_ids=[task["id"] for task in tasks],
                    leases=[task["lease"] for task in tasks],
                    **more,
                )
            )
            sessions.wait_until_blocked(two, call)
            use(one, tasks[1]["tenant_id"], pages=1)
        assert [row["code"] for row in call.result()] == ["canceled"]
        assert one.one("select count(*) from penstock.holds where status = 'held'") == 0
        assert one.rows("check_accounts") == []

    def test_upkeep_ends_tasks_before_it_moves_accounts(self, sessions: Sessions, clock: Clock) -> None:
        one, two = sessions.open(), sessions.open()
        limit(one, "pages", 5)
        one.value("reserve_quota", tenant_id=one.tenant, amounts=Jsonb({"pages": 5}), ttl_seconds=1.0)
        job = one.start([{"kind": "work", "units": {"pages": 1}}, "other"], on_limit="refuse")
        (task,) = one.claim(10)
        clock.advance(seconds=5)
        with one.connection.transaction():
            one.complete(task)
            call = Call(two.upkeep)
            try:
                sessions.wait_until_blocked(two, call)
            except pytest.fail.Exception:
                call.result()
            use(one, pages=1)
        call.result()
        for _ in range(3):
            two.upkeep()
        assert one.status(job) == "failed"
        assert one.one("select sum(held) from penstock.accounts") == 0
        one.check()

    def test_a_budget_is_lifted_while_a_task_is_added(self, sessions: Sessions) -> None:
        one, two = sessions.open(), sessions.open()
        one.provider(NAME)
        price(one, "tokens", 1)
        job = one.start(calls(2, units={"tokens": 1}), budget=0)
        assert one.claim(10) == []
        with one.connection.transaction():
            # As whoever adds tasks after one of these.
            one.execute("select from penstock.parked where job_id = %s for update", job)
            call = Call(lambda: two.value("set_budget", job_id=job, amount=None))
            try:
                sessions.wait_until_blocked(two, call)
            except pytest.fail.Exception:
                call.result()
            one.add(job, ["other"])
        call.result()
        end(two, job)

    def test_a_claim_that_has_locked_accounts_waits_for_nothing(
        self, sessions: Sessions, clock: Clock
    ) -> None:
        """Its first round reserved everything; the next one meets a slot that a report has locked."""
        clock.freeze()
        one, two = sessions.open(), sessions.open()
        one.provider("test/a")
        one.provider("test/b", tokens_per_minute=100_000)
        other = one.value("create_tenant", name="other")
        running = one.start(calls(1, "test/b", units={"tokens": 10}))
        task = one.claim_one()
        limit(one, "pages", 0)
        waiting = []
        for _ in range(6):
            waiting.append(one.start(calls(3, "test/a", units={"pages": 1})))
            last = one.start(calls(1, "test/b"), tenant_id=str(other))
            with one.connection.transaction():
                report(one, task, tokens=1)
                call = Call(lambda: two.claim(1, "w2"))
                try:
                    sessions.wait_until_blocked(two, call)
                except pytest.fail.Exception:
                    call.result()
                use(one, pages=1)
            if tasks := call.result():
                two.complete_all(tasks, "w2")
            two.drain("w2")
            assert two.status(last) == "completed"
        one.complete(task)
        limit(one, "pages", None)
        end(one, running, *waiting)


class TestWakes:
    """R4.1/wakes: parked tasks return as soon as any call frees quota."""

    @pytest.mark.parametrize("how", ["limit", "allowance", "plan", "budget", "no budget", "price"])
    def test_quota_freed_during_a_reservation_wakes_the_task(self, sessions: Sessions, how: str) -> None:
        """The session that frees quota does not see the waiting task yet."""
        one, two = sessions.open(), sessions.open()
        one.provider(NAME)
        if how != "price":
            price(one, "tokens", 1)
        one.value("set_meter", name="pages", values=Jsonb({"period": "total"}))
        if how in ("limit", "allowance"):
            limit(one, "pages", 1)
        elif how == "plan":
            one.value("set_plan", name="small", values=Jsonb({"limits": {"pages": 1}}))
            one.value("set_tenant_plan", tenant_id=one.tenant, plan="small")
        elif how == "price":
            limit(one, "cost", 100)
        job = one.start(calls(3, units={"pages": 2, "tokens": 2}), budget=1 if "budget" in how else None)
        with one.connection.transaction():
            assert one.claim(10) == []

            def make_room() -> None:
                match how:
                    case "limit":
                        limit(two, "pages", 100)
                    case "allowance":
                        two.value(
                            "add_allowance", tenant_id=two.tenant, meter="pages", amount=99, source="purchase"
                        )
                    case "plan":
                        two.value("set_plan", name="small", values=Jsonb({"limits": {"pages": 100}}))
                    case "price":
                        price(two, "tokens", 1)
                    case _:
                        two.value("set_budget", job_id=job, amount=100 if how == "budget" else None)

            call = Call(make_room)
            try:
                sessions.wait_until_blocked(two, call)
            except pytest.fail.Exception:
                call.result()
        call.result()
        end(two, job)

    def test_lifting_a_limit_wakes_all_waiting_tasks(self, sql: Contract) -> None:
        limit(sql, "pages", 0)
        job = sql.start([{"kind": "work", "units": {"pages": 1}} for _ in range(1200)])
        while sql.one("select exists (select from penstock.ready)"):
            assert sql.claim(500) == []
        limit(sql, "pages", None)
        end(sql, job)

    def test_a_task_too_large_for_the_quota_does_not_block_smaller_ones(self, sql: Contract) -> None:
        sql.value("set_meter", name="pages", values=Jsonb({"period": "total"}))
        limit(sql, "pages", 100)
        hold = sql.value("reserve_quota", tenant_id=sql.tenant, amounts=Jsonb({"pages": 100}))
        large = [sql.start([{"kind": "work", "units": {"pages": 200}}]) for _ in range(30)]
        small = sql.start([{"kind": "work", "units": {"pages": 10}} for _ in range(3)])
        assert sql.claim(100) == []
        sql.value("release_hold", hold_id=hold)
        for _ in range(3):
            sql.upkeep()
            sql.drain()
        assert sql.status(small) == "completed"
        assert {sql.status(job) for job in large} == {"queued"}

    def test_a_price_that_starts_later_wakes_its_tasks_then(self, sql: Contract, clock: Clock) -> None:
        clock.freeze()
        sql.provider(NAME)
        limit(sql, "cost", 100)
        first = sql.start(calls(2, units={"tokens": 1}))
        assert sql.claim(10) == []
        price(
            sql, "tokens", 1, valid_from=(sql.one("select penstock._now() + interval '1 hour'")).isoformat()
        )
        second = sql.start(calls(2, units={"tokens": 1}))
        sql.upkeep()
        assert sql.claim(10) == []
        clock.advance(hours=1, seconds=1)
        end(sql, first, second)

    @pytest.mark.parametrize("how", ["limit", "budget"])
    def test_a_price_that_is_not_needed_any_more(self, sql: Contract, clock: Clock, how: str) -> None:
        clock.freeze()
        sql.provider(NAME)
        price(sql, "tokens", 1)
        if how == "limit":
            limit(sql, "cost", 100)
        job = sql.start(calls(2, units={"tokens": 1}), budget=5 if how == "budget" else None)
        clock.advance(seconds=1)
        price(sql, "tokens", None)
        assert sql.claim(10) == []
        if how == "limit":
            limit(sql, "cost", None)
        else:
            sql.value("set_budget", job_id=job, amount=None)
        end(sql, job)

    def test_a_job_paused_for_its_budget_and_resumed_by_hand(self, sql: Contract) -> None:
        sql.provider(NAME)
        price(sql, "tokens", 1)
        job = sql.start(calls(5, units={"tokens": 1}), budget=2)
        sql.drain()
        sql.upkeep()
        assert sql.status(job) == "paused"
        sql.resume(job)
        sql.upkeep()
        assert sql.status(job) == "paused", "there is still no room"
        sql.value("set_budget", job_id=job, amount=5)
        end(sql, job)

    @pytest.mark.parametrize("stop", ["pause", "cancel"])
    def test_tasks_of_a_stopped_job_do_not_block_others(self, sql: Contract, clock: Clock, stop: str) -> None:
        """They are requeued after the stop, and their tenant has limits."""
        clock.freeze()
        sql.provider(NAME, requests_per_minute=20)
        limit(sql, "pages", 100)
        job = sql.start(calls(5, units={"pages": 1}))
        tasks = sql.claim(5)
        sql.pause(job)
        sql.do_chores()
        for task in tasks:
            sql.reschedule(task)
        if stop == "cancel":
            # Nothing of a canceled job comes back, but for a lease that could not be marked: as if this were one.
            sql.execute(
                "update penstock.jobs set status = 'canceled', finished_at = penstock._now() where id = %s",
                job,
            )
        other = sql.start(calls(10, units={"pages": 1}))
        assert sql.drain() == 10, "and the windows count what was claimed, nothing else"
        assert sql.status(other) == "completed"
        assert in_windows(sql)[0] == 15
        if stop == "pause":
            sql.resume(job)
            end(sql, job)
        assert sql.rows("check_accounts") == []

    def test_tasks_held_by_a_quota_use_no_window(self, sql: Contract, clock: Clock) -> None:
        clock.freeze()
        sql.provider(NAME, requests_per_minute=10)
        other = sql.value("create_tenant", name="other")
        limit(sql, "pages", 0)
        sql.start(calls(30, units={"pages": 1}))
        job = sql.start(calls(10), tenant_id=str(other))
        assert sql.drain() == 10
        assert sql.status(job) == "completed" and in_windows(sql)[0] == 10

    def test_a_lower_limit_from_the_provider_does_not_close_the_lane_permanently(
        self, sql: Contract, clock: Clock
    ) -> None:
        clock.freeze()
        sql.provider(NAME, tokens_per_minute=1000)
        large = sql.start(calls(1, units={"tokens": 900}))
        small = sql.start(calls(3, units={"tokens": 10}))
        tell(sql, status=200, tokens={"limit": 500, "remaining": 500}, requests={"limit": 0, "remaining": 0})
        sql.drain()
        assert sql.status(small) == "completed" and sql.status(large) == "queued"
        clock.advance(seconds=62)
        tell(sql, status=200, tokens={"limit": 1000, "remaining": 1000})
        end(sql, large)

    @pytest.mark.parametrize("way", ["an hour", "opened"])
    def test_a_lower_limit_from_the_provider_expires(self, sql: Contract, clock: Clock, way: str) -> None:
        """Tasks above the limit are not called, so no response could show that the limit is gone."""
        clock.freeze()
        sql.provider(NAME, tokens_per_minute=1000)
        large = sql.start(calls(1, units={"tokens": 900}))
        tell(sql, status=200, tokens={"limit": 500, "remaining": 500})
        assert sql.claim(1) == []
        clock.advance(minutes=59)
        sql.upkeep()
        sql.upkeep()
        assert sql.claim(1) == []
        if way == "opened":
            sql.value("open_provider", name=NAME)
        else:
            clock.advance(minutes=2)
            sql.upkeep()
        assert sql.upkeep()["promoted"] == 1
        assert sql.drain() == 1 and sql.status(large) == "completed"

    def test_usage_below_the_estimate_opens_the_lane(self, sql: Contract, clock: Clock) -> None:
        clock.freeze()
        sql.provider(NAME, tokens_per_minute=1000)
        job = sql.start(calls(3, units={"tokens": 600}))
        task = sql.claim_one()
        assert sql.claim(1) == []
        report(sql, task, tokens=100)
        assert len(sql.claim(1)) == 1
        assert sql.status(job) == "running"


class TestBooks:
    """Accounts stay exact while settings change."""

    def test_the_period_of_a_meter_in_use_stays(self, sql: Contract) -> None:
        """A hold of a monthly account could not be released from a daily one."""
        limit(sql, "pages", 10)
        sql.value("set_meter", name="files", values=Jsonb({"period": "day"}))
        job = sql.start([{"kind": "work", "units": {"pages": 4}}])
        task = sql.claim_one()
        with sql.refused(409, "meter_in_use", field="period"):
            sql.value("set_meter", name="pages", values=Jsonb({"period": "day"}))
        sql.value("set_meter", name="pages", values=Jsonb({"period": "month", "mode": "observe"}))
        sql.complete(task)
        end(sql, job)

    def test_the_ledger_outlives_its_jobs(self, sql: Contract, clock: Clock) -> None:
        sql.provider(NAME)
        price(sql, "tokens", 1)
        job = sql.start(calls(2, units={"tokens": 5}), budget=100)
        sql.drain()
        line = sql.one("select min(id) from penstock.cost_entries")
        clock.advance(days=100)
        sql.value("prune")
        assert sql.one("select count(*) from penstock.jobs") == 0
        assert sql.rows("check_accounts") == []
        sql.value("record_cost", cost_type="inference", amount=-2, options=Jsonb({"corrects": line}))
        assert sql.rows("check_accounts") == []
        assert sql.one("select count(*) from penstock.accounts where job_id = %s", job) == 0

    def test_a_repeated_correction_counts_once(self, sql: Contract) -> None:
        line = sql.value("record_cost", cost_type="render", amount=3, tenant_id=sql.tenant)
        options = Jsonb({"corrects": line, "key": "again"})
        first = sql.value("record_cost", cost_type="render", amount=-3, options=options)
        assert sql.value("record_cost", cost_type="render", amount=-3, options=options) == first
        assert sql.one("select sum(base_amount) from penstock.cost_entries") == 0

    def test_an_attempt_corrects_nothing(self, sql: Contract) -> None:
        """Otherwise a worker could take back any amount of any line."""
        line = sql.value("record_cost", cost_type="render", amount=3, tenant_id=sql.tenant)
        sql.start([{"kind": "work"}])
        task = sql.claim_one()
        with sql.refused(422, "invalid_cost", field="corrects"):
            sql.value("record_cost", cost_type="render", amount=-100, task_id=task["id"], worker_id="w1",
                      lease=task["lease"], options=Jsonb({"corrects": line}))  # fmt: skip

    def test_the_more_expensive_of_two_currencies_is_reserved(self, sql: Contract) -> None:
        sql.provider(NAME)
        sql.value("set_exchange_rate", currency="JPY", rate=Decimal("0.01"))
        price(sql, "input_tokens", 5, currency="JPY")
        price(sql, "output_tokens", 1)
        sql.start(calls(1, units={"tokens": 2}))
        sql.drain()
        assert sql.one("select sum(base_amount) from penstock.cost_entries") == 2

    def test_an_account_without_a_ledger_is_seen(self, sql: Contract) -> None:
        sql.execute(
            "insert into penstock.accounts (tenant_id, meter, period, used) values (%s, 'pages', '2026-01-01', 3)",
            sql.tenant,
        )
        assert [(row["what"], row["kept"]) for row in sql.rows("check_accounts")] == [("used", 3)]

    def test_two_lanes_of_one_endpoint_share_its_places(self, sql: Contract) -> None:
        """Also within one claim."""
        sql.provider(NAME, concurrency=3)
        sql.start([*calls(5), *({"kind": "other", "provider": NAME} for _ in range(5))])
        assert len(sql.claim(10)) == 3

    def test_resetting_a_cost_quota_keeps_the_accounts_right(self, sql: Contract) -> None:
        limit(sql, "cost", 5)
        sql.value("record_cost", cost_type="render", amount=5, tenant_id=sql.tenant)
        assert sql.value("reset_quota", tenant_id=sql.tenant, meter="cost") == 5
        assert sql.rows("check_accounts") == []

    def test_a_tenants_own_endpoint_made_later(self, sql: Contract, clock: Clock) -> None:
        """Capacity of the shared endpoint returns to the shared endpoint."""
        clock.freeze()
        sql.provider(NAME, requests_per_minute=5, tokens_per_minute=5000)
        sql.start(calls(3, units={"tokens": 1000}))
        one, two, three = sql.claim(3)
        sql.value("set_provider", name=NAME, tenant_id=sql.tenant,
                  values=Jsonb({"requests_per_minute": 2, "tokens_per_minute": 2000}))  # fmt: skip
        hand_back(sql, one)
        report(sql, two, tokens=100)
        assert in_windows(sql) == (2, 1100)
        sql.value("report_limited", task_id=three["id"], worker_id="w1", lease=three["lease"],
                  signal=Jsonb({"status": 429, "retry_after_seconds": 60}))  # fmt: skip
        assert sql.claim(10) == [], "the lane it came from is closed"
        job = sql.start(calls(5, units={"tokens": 1000}))
        assert len(sql.claim(10)) == 2
        assert sql.status(job) == "running"

    def test_a_job_stopped_between_reservation_and_lease_frees_its_holds(self, sessions: Sessions) -> None:
        one, two = sessions.open(), sessions.open()
        limit(one, "pages", 10)
        job = one.start([{"kind": "work", "units": {"pages": 1}} for _ in range(5)])
        for _ in range(5):
            with one.connection.transaction():
                one.pause(job)
                call = Call(lambda: two.claim(2))
                try:
                    sessions.wait_until_blocked(two, call)
                except pytest.fail.Exception:
                    call.result()
            hand_back(two, *tasks) if (tasks := call.result()) else None
            one.do_chores()
            one.resume(job)
            one.do_chores()
            assert one.rows("check_accounts") == []
            assert one.one("select coalesce(sum(held), 0) from penstock.accounts") == 0
        end(one, job)


class Window:
    """The largest admitted amount in any window."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def most(self, seen: list[tuple[float, float]]) -> float:
        inside: deque[tuple[float, float]] = deque()
        total = most = 0.0
        for at, amount in sorted(seen):
            inside.append((at, amount))
            total += amount
            while inside[0][0] <= at - self.seconds:
                total -= inside.popleft()[1]
            most = max(most, total)
        return most


# One provider, one tenant and its jobs whose limits nobody touches: there the books are watched all the time.
STEADY = "test/steady"
STEADY_REQUESTS, STEADY_TOKENS, STEADY_PLACES = 40, 4000, 6
STEADY_PAGES, STEADY_BUDGET = 300, 12
MOVING = ["test/a", "test/b", "test/c"]
# What clients and operators do, and how often.
VERBS = {
    verb: 1
    for verb in ("pause", "resume", "cancel", "retry", "replay", "add", "budget", "limit", "allowance")
}
VERBS |= {
    verb: 1 for verb in ("plan", "reset", "provider", "price", "release", "commit", "free", "cost", "correct")
}
VERBS |= {
    "start": 12,
    "signal": 2,
    "acquire": 2,
    "reserve": 2,
    "upkeep": 3,
    "clock": 2,
    "prune": 1,
    "open": 2,
}


class FlowStorm:
    """Random verbs of flow control and money in several sessions; then all limits are lifted."""

    def __init__(self, sessions: Sessions, clock: Clock, seed: int) -> None:
        self.sessions, self.clock, self.seed = sessions, clock, seed
        self.stop = threading.Event()
        self.jobs: list[uuid.UUID] = []
        self.refusals: dict[str, int] = {}
        self.verbs: dict[str, int] = {}
        # What was admitted by the steady provider: by task and lease, when and how many tokens.
        self.admitted: dict[tuple[int, int], tuple[float, float]] = {}
        sql = sessions.open()
        assert sessions.tenant
        self.moving = [sessions.tenant, sql.value("create_tenant", name="other")]
        self.steady = sql.value("create_tenant", name="steady")
        sql.provider(STEADY, requests_per_minute=STEADY_REQUESTS, tokens_per_minute=STEADY_TOKENS,
                     concurrency=STEADY_PLACES, requests_per_hour=10 * STEADY_REQUESTS)  # fmt: skip
        price(sql, "tokens", Decimal("0.01"), STEADY)
        limit(sql, "pages", STEADY_PAGES, self.steady)
        limit(sql, "requests", 100_000, self.steady)
        for name in MOVING:
            sql.provider(name, requests_per_minute=50, concurrency=5, features=["chat"])
            price(sql, "tokens", Decimal("0.01"), name)
        sql.provider(MOVING[0], tokens_per_minute=5000, requests_per_hour=500)
        sql.value("set_exchange_rate", currency="EUR", rate=Decimal("1.25"))
        if seed % 2:
            # What has ended goes at once.
            sql.value("set_setting", name="retention_days", value=Jsonb(0))

    def tasks(self, dice: random.Random, is_steady: bool) -> list[dict[str, Any]]:
        made: list[dict[str, Any]] = []
        for n in range(dice.randint(1, 8)):
            tokens = dice.choice([10, 100, 400])
            task: dict[str, Any] = {
                "kind": dice.choice(["work", "other"]),
                "key": f"t{n}",
                "input": {"tokens": tokens},
            }
            if is_steady or dice.random() < 0.3:
                task |= {"provider": STEADY, "units": {"tokens": tokens, "pages": dice.randint(0, 3)}}
            elif dice.random() < 0.8:
                task["units"] = {dice.choice(["tokens", "input_tokens"]): tokens, "pages": dice.randint(0, 3)}
                if dice.random() < 0.4:
                    task["route"] = {"features": ["chat"], "prefer": dice.choice(["cheapest", "fastest"])}
                elif dice.random() < 0.8:
                    task["provider"] = dice.choice(MOVING)
            if n and dice.random() < 0.3:
                task["after"] = [f"t{dice.randrange(n)}"]
                task["after_failure"] = dice.choice(["cancel", "run"])
            if dice.random() < 0.2:
                task["priority"] = dice.randint(0, 10)
            made.append(task)
        return made

    def begin(self, sql: Contract, dice: random.Random) -> None:
        is_steady = dice.random() < 0.4
        options: dict[str, Any] = {"on_limit": dice.choice(["hold", "hold", "refuse"])}
        if is_steady:
            options["tenant_id"] = str(self.steady)
            options["budget"] = STEADY_BUDGET
        else:
            options["tenant_id"] = str(dice.choice(self.moving))
            if dice.random() < 0.4:
                options["budget"] = dice.choice([0, 1, 5, 50])
            options["on_failure"] = dice.choice(["continue", "continue", "stop"])
        self.jobs.append(sql.start(self.tasks(dice, is_steady), **options))

    def finish(self, sql: Contract, dice: random.Random, worker: str, some: list[db.Row]) -> None:
        arrays: dict[str, Any] = {
            "worker_id": worker,
            "task_ids": [task["id"] for task in some],
            "leases": [task["lease"] for task in some],
        }
        match dice.choice(["complete"] * 6 + ["fail", "hand back", "later", "limited"]):
            case "complete":
                sql.rows("complete_tasks", **arrays)
            case "fail":
                error = Jsonb({"permanent": dice.random() < 0.3})
                sql.rows("fail_tasks", **arrays, errors=[error for _ in some])
            case "hand back":
                refused = {row["id"] for row in hand_back(sql, *some, worker=worker)}
                for task in some:
                    if task["id"] not in refused:
                        # Never called: it counts as not admitted. Nobody else has this lease.
                        self.admitted.pop((task["id"], task["lease"]), None)
            case "later":
                sql.rows("reschedule_tasks", **arrays, delay_seconds=0.05)
            case _:
                for task in some:
                    if task["provider"] != STEADY:
                        sql.value("report_limited", task_id=task["id"], worker_id=worker, lease=task["lease"],
                                  signal=Jsonb({"status": 429, "retry_after_seconds": 0.2}))  # fmt: skip
                    else:
                        sql.complete(task, worker=worker)

    def work(self, sql: Contract, dice: random.Random, worker: str, held: list[db.Row]) -> None:
        """A worker's step."""
        action = dice.random()
        if action < 0.4 or not held:
            self.verbs["claim"] = self.verbs.get("claim", 0) + 1
            for task in sql.claim(dice.randint(1, 6), worker, seconds=30):
                held.append(task)
                if task["provider"] == STEADY:
                    at = task["lease_expires_at"].timestamp() - 30
                    self.admitted[task["id"], task["lease"]] = at, task["input"]["tokens"]
        elif action < 0.6:
            task = dice.choice(held)
            # The first report takes the estimate's place, never more.
            if not task.get("reported"):
                task["reported"] = True
                tokens = dice.randint(0, task["input"]["tokens"])
                report(sql, task, worker, tokens=tokens, pages=0)
                if task["provider"] == STEADY:
                    at, _ = self.admitted[task["id"], task["lease"]]
                    self.admitted[task["id"], task["lease"]] = at, tokens
            elif task["provider"] != STEADY:
                report(sql, task, worker, output_tokens=dice.randint(0, 50))
        elif action < 0.65 and (task := dice.choice(held))["tenant_id"] != self.steady:
            sql.value("record_cost", cost_type="render", amount=Decimal(dice.randint(0, 99)) / 100, task_id=task["id"],
                      worker_id=worker, lease=task["lease"], currency=dice.choice(["EUR", "USD"]),
                      options=Jsonb({"key": str(uuid.UUID(int=dice.getrandbits(128)))}))  # fmt: skip
        elif action < 0.7:
            beats = Jsonb([{"id": task["id"], "lease": task["lease"]} for task in held])
            gone = sql.rows("heartbeat_tasks", worker_id=worker, leases=beats)
            held[:] = [task for task in held if task["id"] not in {row["id"] for row in gone}]
        elif action < 0.72:
            held.clear()  # it dies
        else:
            some = [held.pop(dice.randrange(len(held))) for _ in range(min(len(held), dice.randint(1, 4)))]
            self.finish(sql, dice, worker, some)

    def operate(self, sql: Contract, dice: random.Random, holds: list[uuid.UUID]) -> None:
        """A client's or operator's step."""
        tenant, name = dice.choice(self.moving), dice.choice(MOVING)
        job = dice.choice(self.jobs[-6:]) if self.jobs else None
        (verb,) = dice.choices(list(VERBS), list(VERBS.values()))
        self.verbs[verb] = self.verbs.get(verb, 0) + 1
        match verb:
            case "start":
                self.begin(sql, dice)
            case "pause" if job:
                sql.pause(job)
            case "resume" if job:
                sql.resume(job)
            case "cancel" if job and dice.random() < 0.5:
                sql.cancel(job)
            case "retry" if job:
                sql.retry(job)
            case "replay":
                sql.replay(all=True)
            case "add" if job:
                spec: dict[str, Any] = {
                    "kind": "work",
                    "provider": STEADY,
                    "units": {"tokens": 10},
                    "input": {"tokens": 10},
                }
                if dice.random() < 0.6:
                    spec["after"] = ["t0", "t1"][: dice.randint(1, 2)]
                sql.add(job, [spec])
            case "budget" if job:
                if sql.one("select tenant_id from penstock.jobs where id = %s", job) != self.steady:
                    sql.value("set_budget", job_id=job, amount=dice.choice([None, 0, 1, 20]))
            case "limit":
                meter = dice.choice(["pages", "tokens", "requests", "cost", "jobs"])
                limit(sql, meter, dice.choice([None, None, 0, 20, 1000]), tenant)
            case "allowance":
                sql.value("add_allowance", tenant_id=tenant, meter="pages", amount=5, source="purchase")
            case "plan":
                sql.value(
                    "set_tenant_plan", tenant_id=tenant, plan=dice.choice(["unlimited", "free", "basic"])
                )
            case "reset":
                sql.value("reset_quota", tenant_id=tenant, meter=dice.choice(["pages", "tokens"]))
            case "provider":
                sql.provider(
                    name,
                    requests_per_minute=dice.choice([None, 5, 50]),
                    tokens_per_minute=dice.choice([None, 300, 5000]),
                    concurrency=dice.choice([None, 2, 5]),
                    status=dice.choice(["active", "active", "active", "maintenance"]),
                )
            case "price":
                price(sql, "tokens", dice.choice([None, Decimal("0.02")]), name)
            case "signal":
                sql.value("report_provider", name=name, signal=Jsonb(dice.choice([
                    {"status": 429, "retry_after_seconds": 0.1}, {"status": 200, "tokens": {"limit": 200, "remaining": 150}},
                    {"status": 200, "requests": {"limit": 100, "remaining": 3}}, {"status": 429, "exhausted": dice.random() < 0.3}])))  # fmt: skip
            case "open":
                sql.value("open_provider", name=name)
            case "acquire":
                if acquire(sql, dice.choice([name, STEADY]), 100, ttl_seconds=5.0):
                    pass
            case "release":
                release(sql, name, 100, dice.randint(0, 200))
            case "reserve":
                holds.append(
                    sql.value("reserve_quota", tenant_id=tenant, ttl_seconds=float(dice.choice([1, 300])),
                              amounts=Jsonb({"files": 1, "pages": dice.randint(0, 3), "input_tokens": 5})))  # fmt: skip
            case "commit" if holds:
                sql.value(
                    "commit_hold", hold_id=dice.choice(holds), actual=Jsonb({"pages": dice.randint(0, 4)})
                )
            case "free" if holds:
                sql.value("release_hold", hold_id=dice.choice(holds))
            case "cost":
                sql.value("record_cost", cost_type="storage", amount=1, tenant_id=tenant,
                          options=Jsonb({"key": f"k{dice.randint(0, 20)}"}))  # fmt: skip
            case "correct":
                line = sql.one("select max(id) from penstock.cost_entries where tenant_id = %s", tenant)
                sql.value("record_cost", cost_type="storage", amount=Decimal("-0.01"), options=Jsonb({"corrects": line}),
                          currency=sql.one("select currency from penstock.cost_entries where id = %s", line))  # fmt: skip
            case "upkeep":
                sql.upkeep()
            case "clock":
                self.clock.advance(seconds=dice.choice([1, 5, 20]))
            case "prune":
                sql.value("prune")
            case _:
                pass

    def run(self, number: int) -> None:
        dice = random.Random(self.seed * 100 + number)
        sql = self.sessions.open()
        held: list[db.Row] = []
        holds: list[uuid.UUID] = []
        while not self.stop.is_set():
            try:
                if dice.random() < 0.65:
                    self.work(sql, dice, f"w{number}", held)
                else:
                    self.operate(sql, dice, holds)
            except psycopg.Error as error:
                if not (error.sqlstate or "").startswith("PT"):
                    self.stop.set()
                    raise
                self.refusals[error.sqlstate or ""] = self.refusals.get(error.sqlstate or "", 0) + 1

    def watch(self) -> None:
        """Between any two transactions all accounts are exact, and no constant limit is exceeded."""
        sql = self.sessions.open()
        while not self.stop.wait(0.05):
            try:
                self.look(sql)
            except BaseException:
                self.stop.set()
                raise

    def look(self, sql: Contract) -> None:
        assert sql.rows("check_accounts") == []
        over = sql.execute(
            """select * from penstock.accounts where tenant_id = %s and (
                 job_id is null and meter = 'pages' and used + held > %s or job_id is not null and used + held > %s)""",
            self.steady,
            STEADY_PAGES,
            STEADY_BUDGET,
        )
        assert over == []
        places = sql.one(
            """select count(*) from penstock.leases x join penstock.lanes l on l.id = x.lane_id
               where l.provider = %s and x.is_gated""",
            STEADY,
        )
        assert places <= STEADY_PLACES
        # A hold lives as long as its lease.
        assert (
            sql.execute(
                """select h.* from penstock.holds h where h.status = 'held' and h.lease is not null
                   and not exists (select from penstock.leases l where l.task_id = h.task_id and l.lease = h.lease)"""
            )
            == []
        )

    def blow(self, threads: int, seconds: float) -> None:
        running = [Call(lambda n=n: self.run(n)) for n in range(threads)] + [Call(self.watch)]
        running.append(Call(lambda: self.sessions.watch_locks(self.stop)))
        self.stop.wait(seconds)
        self.stop.set()
        for call in running:
            call.result()

    def settle(self) -> None:
        """Lift all limits and end everything with one worker."""
        sql = self.sessions.open()
        while sql.value("prune"):
            # What was begun while something of the job still ran is brought to its end.
            self.clock.advance(seconds=40)
            sql.upkeep()
        sql.check()
        self.look(sql)
        self.check_windows()
        for name in [*MOVING, STEADY]:
            sql.provider(name, requests_per_minute=None, tokens_per_minute=None, requests_per_hour=None, concurrency=None,
                         status="active")  # fmt: skip
            sql.value("open_provider", name=name)
            if name != STEADY:
                price(sql, "tokens", Decimal("0.01"), name)
        for tenant in [*self.moving, self.steady]:
            sql.value("set_tenant_plan", tenant_id=tenant, plan="unlimited")
            for meter in ("pages", "tokens", "requests", "cost", "jobs"):
                limit(sql, meter, None, tenant)
        for row in sql.execute("select id, status, budget from penstock.jobs where finished_at is null"):
            if row["budget"] is not None:
                sql.value("set_budget", job_id=row["id"], amount=None)
            if sql.status(row["id"]) == "paused":
                sql.resume(row["id"])
        deadline = time.monotonic() + 90
        while time.monotonic() < deadline:
            self.clock.advance(seconds=40)
            while sql.upkeep()["reclaimed"]:
                pass
            if sql.drain("calm") == 0 and not sql.execute(
                "select from penstock.jobs where finished_at is null limit 1"
            ):
                break
        open_jobs = sql.execute(
            "select id, status, status_reason from penstock.jobs where finished_at is null"
        )
        waiting = sql.execute("select p::text from penstock.parked p")
        assert open_jobs == [], waiting
        # What callers set aside and forgot is given back, and nothing else was left.
        self.clock.advance(seconds=400)
        while sql.upkeep()["reclaimed"]:
            pass
        sql.upkeep()
        assert sql.one("select count(*) from penstock.leases") == 0
        assert sql.one("select count(*) from penstock.holds where status = 'held'") == 0
        assert sql.one("select coalesce(sum(held), 0) from penstock.accounts") == 0
        assert sql.rows("check_accounts") == []
        sql.check()

    def check_windows(self) -> None:
        seen = list(self.admitted.values())
        assert Window(60).most([(at, 1) for at, _ in seen]) <= STEADY_REQUESTS
        assert Window(60).most(seen) <= STEADY_TOKENS


@pytest.mark.slow
@pytest.mark.parametrize("threads", [4, 8])
def test_random_concurrent_flow_control_keeps_accounts_exact(
    sessions: Sessions, clock: Clock, threads: int
) -> None:
    """S43, B3/limits, B3/quotas, B3/budgets, R2.3/no-overshoot, R3.2/windows, R4.1/reserve: accounts are exact at every moment, no limit is exceeded, no deadlock, every job ends."""
    storm = FlowStorm(sessions, clock, seed=threads)
    storm.blow(threads, seconds=4)
    storm.settle()
    assert len(storm.jobs) > 10 and storm.admitted


@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.parametrize("seed", range(2))
def test_long_random_concurrent_flow_control_keeps_accounts_exact(
    sessions: Sessions, clock: Clock, seed: int
) -> None:
    """B3/limits, B3/quotas, B3/budgets, R2.3/no-overshoot, R3.2/windows, R4.1/reserve: the same, longer and with another seed."""
    storm = FlowStorm(sessions, clock, seed=2000 + seed)
    storm.blow(6, seconds=15)
    storm.settle()
