"""Operations: intent before the call, one live per object, reservations that move, webhooks as hints."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

from penstock.postgres import db
from penstock.testing import Clock
from tests.sql.conftest import Call, Contract, Sessions

pytestmark = pytest.mark.every_postgres

MINUTES = 300.0


def begin(sql: Contract, task: db.Row, object: str = "slide:1", seconds: float = MINUTES) -> dict[str, Any]:
    return sql.value(
        "begin_operation", task_id=task["id"], worker_id="w1", lease=task["lease"], object=object,
        timeout_seconds=seconds,
    )  # fmt: skip


def by(task: db.Row, operation: dict[str, Any]) -> dict[str, Any]:
    return {"operation_id": operation["id"], "worker_id": "w1", "lease": task["lease"]}


def submit(sql: Contract, task: db.Row, operation: dict[str, Any], external: str = "cc_1") -> None:
    sql.value("submit_operation", **by(task, operation), external_id=external)


def park(sql: Contract, task: db.Row, operation: dict[str, Any], seconds: float = 30) -> str:
    return sql.value("park_operation", **by(task, operation), seconds=seconds)


def settle(sql: Contract, task: db.Row, operation: dict[str, Any], outcome: str, **values: Any) -> str:
    return sql.value("settle_operation", **by(task, operation), outcome=outcome, values=Jsonb(values))


def tell(sql: Contract, operation: dict[str, Any]) -> str:
    return sql.value("tell_operation", provider="cc/jobs", operation_id=operation["id"])


def setup(sql: Contract, quota: int = 5, concurrency: int = 100) -> None:
    sql.provider("cc/jobs", concurrency=concurrency)
    sql.value("set_meter", name="pages", values=Jsonb({})) if not sql.one(
        "select 1 from penstock.meters where name = 'pages'"
    ) else None
    sql.value("set_limit", tenant_id=sql.tenant, meter="pages", amount=quota)


def start(sql: Contract, count: int = 1) -> Any:
    return sql.start([{"kind": "work", "provider": "cc/jobs", "units": {"pages": 1}} for _ in range(count)])


def account(sql: Contract) -> tuple[int, int]:
    # A test may run over the end of a month, and then has an account for each month.
    [row] = sql.execute(
        "select sum(used) as used, sum(held) as held from penstock.accounts"
        " where meter = 'pages' and job_id is null"
    )
    assert sql.execute("select * from penstock.check_accounts()") == []
    return int(row["used"]), int(row["held"])


def in_flight(sql: Contract) -> tuple[db.Row, dict[str, Any]]:
    """A task that waits for its submitted operation."""
    setup(sql)
    start(sql)
    task = sql.claim_one()
    operation = begin(sql, task)
    submit(sql, task, operation)
    assert park(sql, task, operation) == "parked"
    return task, operation


class TestWaiting:
    def test_hold_and_place_move_to_the_operation(self, sql: Contract) -> None:
        """R0.2/waiting: an operation in flight keeps its hold and slot, and the second run reserves nothing."""
        task, operation = in_flight(sql)
        assert sql.task(task)["status"] == "waiting" and account(sql) == (0, 1)
        tell(sql, operation)
        again = sql.claim_one()
        assert again["id"] == task["id"] and account(sql) == (0, 1)
        assert settle(sql, again, operation, "completed", result={"url": "x"}) == "completed"
        assert account(sql) == (1, 0)
        sql.complete(again)
        assert account(sql) == (1, 0)
        sql.check()

    def test_quota_is_never_exceeded_in_flight(self, sql: Contract) -> None:
        """Twenty conversions in flight at a quota of five: five are submitted."""
        setup(sql, quota=5)
        start(sql, 20)
        submitted = 0
        while tasks := sql.claim(3):
            for task in tasks:
                operation = begin(sql, task, f"slide:{task['id']}")
                submit(sql, task, operation, f"cc_{task['id']}")
                park(sql, task, operation)
                submitted += 1
        assert submitted == 5 and account(sql) == (0, 5)

    def test_concurrency_counts_jobs_at_the_provider(self, sql: Contract) -> None:
        setup(sql, concurrency=2)
        start(sql, 5)
        tasks = sql.claim(5)
        assert len(tasks) == 2
        operations = [begin(sql, task, f"slide:{task['id']}") for task in tasks]
        for task, operation in zip(tasks, operations, strict=True):
            submit(sql, task, operation, f"cc_{task['id']}")
            park(sql, task, operation)
        assert sql.claim(5) == []
        [shown] = sql.execute("select running, in_flight from penstock.provider_list where name = 'cc/jobs'")
        assert shown == {"running": 2, "in_flight": 2}
        tell(sql, operations[0])
        again = sql.claim_one()
        settle(sql, again, operations[0], "completed")
        assert len(sql.claim(5)) == 1

    def test_explanation_names_the_provider(self, sql: Contract, clock: Clock) -> None:
        task, _ = in_flight(sql)
        clock.advance(seconds=10)
        found = sql.value("explain_task", job_id=task["job_id"], task_id=task["id"])
        assert found["text"] == "waiting: cc/jobs, submitted 10 s ago, times out in about 5 min"

    def test_lost_webhook_is_found_by_the_next_check(self, sql: Contract, clock: Clock) -> None:
        """R4.3/polling"""
        task, _ = in_flight(sql)
        clock.advance(seconds=30)
        sql.upkeep()
        assert sql.claim_one()["id"] == task["id"]

    def test_canceled_job_frees_hold_and_place(self, sql: Contract) -> None:
        task, _ = in_flight(sql)
        sql.cancel(task["job_id"])
        sql.do_chores()
        sql.upkeep()
        assert sql.one("select status from penstock.operations") == "canceled"
        assert account(sql) == (0, 0) and sql.where(task) == []

    def test_paused_job_keeps_the_hint_for_the_resume(self, sql: Contract) -> None:
        task, operation = in_flight(sql)
        sql.pause(task["job_id"])
        sql.do_chores()
        assert tell(sql, operation) == "applied"
        assert sql.claim(1) == []
        sql.resume(task["job_id"])
        assert sql.claim_one()["id"] == task["id"]


class TestOne:
    def test_two_tasks_have_one_live_operation_per_object(self, sql: Contract) -> None:
        """R4.3/one-live"""
        setup(sql)
        start(sql, 2)
        one, two = sql.claim(2)
        operation = begin(sql, one)
        with sql.refused(409, "operation_live"):
            begin(sql, two)
        submit(sql, one, operation)
        settle(sql, one, operation, "failed")
        assert begin(sql, two)["is_new"] is True

    def test_begin_again_finds_the_same(self, sql: Contract) -> None:
        setup(sql)
        start(sql)
        task = sql.claim_one()
        first = begin(sql, task)
        again = begin(sql, task)
        assert (first["is_new"], again["is_new"], again["id"]) == (True, False, first["id"])
        submit(sql, task, first)
        submit(sql, task, first)
        with sql.refused(409, "operation_submitted"):
            submit(sql, task, first, "cc_2")

    @pytest.mark.parametrize("outcome", ["failed", "timeout"])
    def test_failed_operation_costs_an_attempt_before_the_next(self, sql: Contract, outcome: str) -> None:
        """A task cannot begin paid operations again and again within one attempt."""
        task, operation = in_flight(sql)
        tell(sql, operation)
        task = sql.claim_one()
        settle(sql, task, operation, outcome)
        assert begin(sql, task)["is_new"] is False
        assert account(sql) == (0, 0)
        sql.fail(task)
        task = sql.claim_one()
        assert task["provider"] == "cc/jobs" and account(sql) == (0, 1), "it is admitted again"
        assert begin(sql, task)["is_new"] is True

    def test_operation_of_a_lost_lease_is_rejected(self, sql: Contract) -> None:
        """R1.2/fence"""
        task, operation = in_flight(sql)
        with sql.refused(410, "lease_lost"):
            settle(sql, task, operation, "completed")
        with sql.refused(410, "lease_lost"):
            submit(sql, task, operation, "cc_2")

    def test_invalid_arguments_are_rejected(self, sql: Contract) -> None:
        setup(sql)
        start(sql)
        task = sql.claim_one()
        for object, seconds in (("", 5.0), ("x", 0.0), ("x", 1e9)):
            with sql.refused(422, "invalid_operation"):
                begin(sql, task, object, seconds)
        with sql.refused(422, "invalid_operation", field="p_outcome"):
            settle(sql, task, begin(sql, task), "done")


class TestLate:
    def test_late_success_is_charged_once(self, sql: Contract) -> None:
        """R4.3/late-success: a success after our timeout counts; the expired reservation is charged."""
        task, operation = in_flight(sql)
        tell(sql, operation)
        task = sql.claim_one()
        settle(sql, task, operation, "timeout")
        assert sql.one("select status from penstock.holds") == "expired", "released ones cannot be charged"
        sql.fail(task)
        assert tell(sql, operation) == "late"
        task = sql.claim_one()
        assert settle(sql, task, operation, "completed", result=1) == "completed"
        assert settle(sql, task, operation, "completed", result=2) == "completed"
        assert sql.one("select is_late from penstock.operations") is True
        assert sql.one("select result from penstock.operations") == 1
        sql.complete(task)
        assert account(sql) == (1, 0)

    def test_state_never_goes_back(self, sql: Contract) -> None:
        task, operation = in_flight(sql)
        tell(sql, operation)
        task = sql.claim_one()
        settle(sql, task, operation, "completed", result=1)
        assert settle(sql, task, operation, "failed") == "completed"
        assert tell(sql, operation) == "stale"
        change = "update penstock.operations set status = 'pending', completed_at = null"
        with sql.refused(409, "illegal_transition"):
            sql.execute(change)

    def test_unknown_operation_is_unmatched(self, sql: Contract) -> None:
        assert sql.value("tell_operation", provider="cc/jobs", external_id="nobody") == "unmatched"

    def test_an_operation_that_nobody_settles_for_an_hour_times_out(
        self, sql: Contract, clock: Clock
    ) -> None:
        in_flight(sql)
        clock.advance(seconds=MINUTES + 3601)
        sql.upkeep()
        assert sql.one("select status from penstock.operations") == "timeout"
        assert account(sql) == (0, 0)


class TestRaces:
    def running(self, sessions: Sessions, clock: Clock) -> tuple[Contract, Contract, db.Row, dict[str, Any]]:
        clock.freeze()
        one, two = sessions.open(), sessions.open()
        setup(one)
        start(one)
        task = one.claim_one()
        return one, two, task, begin(one, task)

    def test_webhook_before_the_id_is_noted(self, sessions: Sessions, clock: Clock) -> None:
        """R4.3/deliveries: the simulator sends it before it answers the call. Found by tag; not parked."""
        one, _, task, operation = self.running(sessions, clock)
        assert tell(one, operation) == "applied"
        submit(one, task, operation)
        assert park(one, task, operation) == "queued"
        task = one.claim_one()
        one.value("check_operation", **by(task, operation))
        assert park(one, task, operation) == "parked", "it was asked after the hint"

    def test_webhook_between_check_and_parking(self, sessions: Sessions, clock: Clock) -> None:
        one, two, task, operation = self.running(sessions, clock)
        submit(one, task, operation)
        one.value("check_operation", **by(task, operation))
        with one.connection.transaction():
            tell(one, operation)
            call = Call(lambda: park(two, task, operation))
            sessions.wait_until_blocked(two, call)
        assert call.result() == "queued"
        assert one.claim_one()["id"] == task["id"]
        one.check()

    def test_webhook_while_the_task_is_being_parked(self, sessions: Sessions, clock: Clock) -> None:
        one, two, task, operation = self.running(sessions, clock)
        submit(one, task, operation)
        with one.connection.transaction():
            assert park(one, task, operation) == "parked"
            call = Call(lambda: tell(two, operation))
            sessions.wait_until_blocked(two, call)
        assert call.result() == "applied"
        assert one.claim_one()["id"] == task["id"]
        one.check()

    def test_same_webhook_twice_at_once_queues_the_task_once(self, sessions: Sessions, clock: Clock) -> None:
        one, two, task, operation = self.running(sessions, clock)
        submit(one, task, operation)
        park(one, task, operation)
        with one.connection.transaction():
            tell(one, operation)
            call = Call(lambda: tell(two, operation))
            sessions.wait_until_blocked(two, call)
        call.result()
        assert len(one.claim(5)) == 1
        one.check()

    def test_two_tasks_begin_on_one_object_at_once(self, sessions: Sessions, clock: Clock) -> None:
        one, two, _, _ = self.running(sessions, clock)
        start(one)
        task = one.claim_one()
        start(one)
        other = one.claim_one()
        with one.connection.transaction():
            begin(one, task, "slide:2")
            call = Call(lambda: begin(two, other, "slide:2"))
            sessions.wait_until_blocked(two, call)
        with pytest.raises(psycopg.Error, match="has a live operation"):
            call.result()

    def test_webhook_while_the_id_is_being_noted(self, sessions: Sessions, clock: Clock) -> None:
        """R4.3/deliveries: the worker notes the id when the webhook comes, and the task is not parked."""
        one, two, task, operation = self.running(sessions, clock)
        with one.connection.transaction():
            submit(one, task, operation)
            call = Call(lambda: tell(two, operation))
            sessions.wait_until_blocked(two, call)
        assert call.result() == "applied"
        assert park(one, task, operation) == "queued"
        one.check()

    def test_id_is_noted_while_the_webhook_comes(self, sessions: Sessions, clock: Clock) -> None:
        one, two, task, operation = self.running(sessions, clock)
        with one.connection.transaction():
            assert tell(one, operation) == "applied"
            call = Call(lambda: submit(two, task, operation))
            sessions.wait_until_blocked(two, call)
        call.result()
        assert park(one, task, operation) == "queued"
        settle(one, one.claim_one(), operation, "completed")
        assert account(one) == (1, 0) and one.one("select count(*) from penstock.operations") == 1
        one.check()

    def test_same_webhook_twenty_times_at_once_queues_the_task_once(
        self, sessions: Sessions, clock: Clock
    ) -> None:
        """R4.3/deliveries: doubled deliveries wait for each other and wake the task once."""
        one, _, task, operation = self.running(sessions, clock)
        submit(one, task, operation)
        park(one, task, operation)
        others = [sessions.open() for _ in range(19)]
        with one.connection.transaction():
            tell(one, operation)
            calls = [Call(lambda other=other: tell(other, operation)) for other in others]
            for other, call in zip(others, calls, strict=True):
                sessions.wait_until_blocked(other, call)
        assert [call.result() for call in calls] == ["applied"] * 19
        assert len(one.claim(5)) == 1
        one.check()

    def test_pause_while_the_webhook_comes(self, sessions: Sessions, clock: Clock) -> None:
        """The task that the webhook woke is set aside, and continues at the resume."""
        one, two, task, operation = self.running(sessions, clock)
        submit(one, task, operation)
        park(one, task, operation)
        with one.connection.transaction():
            tell(one, operation)
            call = Call(lambda: two.pause(task["job_id"]))
            sessions.wait_until_blocked_or_done(two, call)
        call.result()
        one.do_chores()
        assert one.claim(1) == [] and account(one) == (0, 1)
        one.resume(task["job_id"])
        one.do_chores()
        again = one.claim_one()
        settle(one, again, operation, "completed")
        assert again["id"] == task["id"] and account(one) == (1, 0)
        one.check()

    def test_upkeep_ends_the_operation_while_it_is_being_settled(
        self, sessions: Sessions, clock: Clock
    ) -> None:
        """Long past the deadline: the worker's report counts, and upkeep skips the row."""
        one, two, task, operation = self.running(sessions, clock)
        submit(one, task, operation)
        park(one, task, operation)
        clock.advance(hours=2)
        one.execute("update penstock.parked set until = penstock._now()")
        tell(one, operation)
        task = one.claim_one()
        with one.connection.transaction():
            settle(one, task, operation, "completed", result=1)
            call = Call(two.upkeep)
            sessions.wait_until_blocked_or_done(two, call)
        call.result()
        one.complete(task)
        assert one.one("select status from penstock.operations") == "completed" and account(one) == (1, 0)
        one.check()


class TestDeaths:
    def test_worker_that_dies_after_settling_leaves_the_result(self, sql: Contract, clock: Clock) -> None:
        """The next run returns the stored result, submits nothing and charges nothing again."""
        task, operation = in_flight(sql)
        tell(sql, operation)
        task = sql.claim_one()
        settle(sql, task, operation, "completed", result={"url": "x"})
        clock.advance(hours=1)
        assert sql.reclaim() == 1
        again = sql.claim_one()
        found = begin(sql, again)
        assert (again["id"], found["status"], found["result"]) == (task["id"], "completed", {"url": "x"})
        sql.complete(again)
        assert account(sql) == (1, 0)
        sql.check()

    def test_worker_that_dies_after_submitting_leaves_the_intent(self, sql: Contract, clock: Clock) -> None:
        """The next run gets the same operation, whose id the provider knows as its tag."""
        setup(sql)
        start(sql)
        first = begin(sql, sql.claim_one())
        clock.advance(hours=1)
        assert sql.reclaim() == 1
        again = sql.claim_one()
        found = begin(sql, again, seconds=7200)
        assert (found["id"], found["is_new"], found["external_id"]) == (first["id"], False, None)
        submit(sql, again, found)
        settle(sql, again, found, "completed")
        sql.complete(again)
        assert account(sql) == (1, 0)
        sql.check()

    @pytest.mark.parametrize("end", ["complete", "report nothing", "fail"])
    def test_conversion_that_no_later_attempt_reports_is_charged_once(
        self, sql: Contract, clock: Clock, end: str
    ) -> None:
        """R4.1/reserve: two workers die, one before the task waited, one after it settled; its place was never left."""
        setup(sql)
        sql.execute("select penstock.set_price('cc/jobs', 'pages', 2, '{\"per\": 1}')")
        start(sql)
        task = sql.claim_one()
        operation = begin(sql, task)
        submit(sql, task, operation)
        clock.advance(hours=1)
        assert sql.reclaim() == 1
        task = sql.claim_one()
        assert begin(sql, task, seconds=7200)["status"] == "processing"
        assert settle(sql, task, operation, "completed", result=1) == "completed"
        assert account(sql) == (1, 0), "what is used is not reserved any more"
        clock.advance(hours=1)
        assert sql.reclaim() == 1
        task = sql.claim_one()
        if end == "report nothing":
            sql.value(
                "record_usage", units=Jsonb({"pages": 0, "requests": 0}), task_id=task["id"], worker_id="w1",
                lease=task["lease"],
            )  # fmt: skip
        else:
            assert begin(sql, task)["status"] == "completed"
        sql.kill(task) if end == "fail" else sql.complete(task)
        assert account(sql) == (1, 0)
        assert sql.one("select sum(amount) from penstock.cost_entries") == 2
        sql.check()

    @pytest.mark.parametrize("limited", [{"provider": "cc/jobs", "units": {"pages": 1}}, {}])
    def test_timeouts_set_by_upkeep_cost_attempts(
        self, sql: Contract, clock: Clock, limited: dict[str, Any]
    ) -> None:
        """No worker settles anything for hours: three attempts begin three operations, then the task fails."""
        setup(sql)
        sql.start([{"kind": "work", "max_attempts": 3, **limited}])
        begun = 0
        for _ in range(10):
            if not (tasks := sql.claim(1)):
                break
            operation = begin(sql, tasks[0])
            if operation["status"] == "timeout":
                sql.fail(tasks[0])
                continue
            begun += operation["is_new"]
            submit(sql, tasks[0], operation, f"cc_{operation['number']}")
            assert park(sql, tasks[0], operation) == "parked"
            clock.advance(hours=2)
            sql.upkeep()
        assert begun == 3 and (not limited or account(sql) == (0, 0))
        assert sql.one("select status from penstock.task_list") == "failed"
        sql.check()
