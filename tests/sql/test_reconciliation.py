"""Operations that end without a response of the provider: canceled, timed out, late."""

from __future__ import annotations

from typing import Any

import pytest
from psycopg.types.json import Jsonb

from penstock.postgres import db
from penstock.testing import Clock
from tests.sql.conftest import Call, Contract, Sessions
from tests.sql.test_operations import (
    account,
    begin,
    in_flight,
    park,
    settle,
    setup,
    start,
    submit,
    tell,
)  # fmt: skip

pytestmark = pytest.mark.every_postgres


def cancel(sql: Contract, operation: dict[str, Any]) -> str:
    return sql.value("cancel_operation", operation_id=operation["id"])


def take(sql: Contract, provider: str = "cc/jobs") -> list[tuple[str, str]]:
    rows = sql.execute("select penstock.take_operations(array[%s]) as taken", provider)
    return [(row["taken"]["id"], row["taken"]["status"]) for row in rows]


def said(sql: Contract, operation: dict[str, Any], outcome: str) -> str:
    return sql.value("reconcile_operation", operation_id=operation["id"], outcome=outcome)


def statuses(sql: Contract) -> list[str]:
    return [row["status"] for row in sql.execute("select status from penstock.operations order by number")]


def timed_out(sql: Contract) -> tuple[db.Row, dict[str, Any]]:
    """A task whose first operation timed out. Its attempt has not ended."""
    task, operation = in_flight(sql)
    tell(sql, operation)
    task = sql.claim_one()
    settle(sql, task, operation, "timeout")
    return task, operation


class TestCancel:
    def test_canceled_operation_frees_its_hold_and_fails_the_attempt(self, sql: Contract) -> None:
        task, operation = in_flight(sql)
        assert cancel(sql, operation) == "canceled" and account(sql) == (0, 0)
        again = sql.claim_one()
        assert again["id"] == task["id"]
        assert begin(sql, again)["status"] == "canceled", "the attempt cannot begin another"
        sql.fail(again)
        third = sql.claim_one()
        assert account(sql) == (0, 1), "the next attempt is admitted again"
        assert begin(sql, third)["is_new"] is True
        assert cancel(sql, operation) == "canceled"
        assert take(sql) == [(operation["id"], "canceled")]

    def test_ended_operation_stays_as_it_is(self, sql: Contract) -> None:
        task, operation = in_flight(sql)
        tell(sql, operation)
        task = sql.claim_one()
        settle(sql, task, operation, "completed")
        assert cancel(sql, operation) == "completed" and account(sql) == (1, 0)

    def test_unknown_operation_is_refused(self, sql: Contract) -> None:
        nothing = {"id": "00000000-0000-7000-8000-000000000000"}
        for call in (cancel, lambda sql, at: said(sql, at, "running")):
            with sql.refused(404, "unknown_operation"):
                call(sql, nothing)
        with sql.refused(404, "unknown_operation"):
            sql.value("reconcile_operations", operation_id=nothing["id"])
        with sql.refused(422, "invalid_operation", field="p_outcome"):
            said(sql, nothing, "done")

    def test_operations_of_a_canceled_job_are_canceled_at_the_provider(
        self, sql: Contract, clock: Clock
    ) -> None:
        task, operation = in_flight(sql)
        sql.cancel(task["job_id"])
        sql.do_chores()
        sql.upkeep()
        assert take(sql) == [(operation["id"], "canceled")]
        assert take(sql) == [], "another worker has it"
        said(sql, operation, "unknown")
        clock.advance(seconds=61)
        assert take(sql) == [(operation["id"], "canceled")]
        said(sql, operation, "canceled")
        clock.advance(hours=1)
        assert take(sql) == []

    def test_operation_of_a_dead_task_does_not_block_its_object(self, sql: Contract) -> None:
        """The provider rejected every submission: the operation does not stay live."""
        setup(sql)
        start(sql, 2)
        one, two = sql.claim(2)
        begin(sql, one)
        sql.kill(one)
        sql.upkeep()
        assert statuses(sql) == ["canceled"]
        assert begin(sql, two)["is_new"] is True

    def test_task_that_waited_too_long_is_admitted_again(self, sql: Contract, clock: Clock) -> None:
        """Its operation was ended for it, in the lane without limits."""
        task, _ = in_flight(sql)
        sql.pause(task["job_id"])
        sql.do_chores()
        clock.advance(hours=2)
        sql.upkeep()
        assert statuses(sql) == ["timeout"] and account(sql) == (0, 0)
        sql.resume(task["job_id"])
        sql.do_chores()
        again = sql.claim_one()
        assert begin(sql, again)["is_new"] is False
        sql.fail(again)
        again = sql.claim_one()
        assert begin(sql, again)["is_new"] is True and account(sql) == (0, 1)


class TestLate:
    def test_late_webhook_replays_the_dead_letter_once(self, sql: Contract) -> None:
        """R4.3/late-success: the job is running again, and the handler uses the result."""
        task, operation = timed_out(sql)
        sql.kill(task)
        sql.do_chores()
        assert sql.job(task["job_id"])["status"] == "failed"
        assert tell(sql, operation) == "late"
        assert sql.job(task["job_id"])["status"] == "running"
        assert sql.one("select count(*) from penstock.audit_log where action = 'operation.late'") == 1
        again = sql.claim_one()
        assert again["id"] == task["id"]
        sql.kill(again)
        sql.do_chores()
        assert tell(sql, operation) == "late"
        assert sql.claim(1) == [], "the same webhook does not replay it again"

    def test_success_found_later_replays_the_dead_letter(self, sql: Contract, clock: Clock) -> None:
        """R4.3/late-success: its webhook was lost."""
        task, operation = timed_out(sql)
        sql.kill(task)
        sql.do_chores()
        assert take(sql) == [], "it is asked about ten minutes later"
        clock.advance(minutes=11)
        assert take(sql, "another/provider") == []
        assert take(sql) == [(operation["id"], "timeout")]
        assert said(sql, operation, "completed") == "replayed"
        again = sql.claim_one()
        assert settle(sql, again, operation, "completed", result=1) == "completed"
        sql.complete(again)
        sql.do_chores()
        assert sql.job(task["job_id"])["status"] == "completed" and account(sql)[0] == 1
        clock.advance(hours=1)
        assert take(sql) == []

    def test_late_webhook_wakes_a_task_that_waits_for_its_next_operation(self, sql: Contract) -> None:
        task, operation = timed_out(sql)
        sql.fail(task)
        task = sql.claim_one()
        second = begin(sql, task)
        submit(sql, task, second, "cc_2")
        assert park(sql, task, second) == "parked"
        assert tell(sql, operation) == "late"
        task = sql.claim_one()
        settle(sql, task, operation, "completed", result=1)
        settle(sql, task, second, "canceled")
        sql.complete(task)
        assert account(sql) == (1, 0), "the quota counts once"
        sql.check()

    def test_late_success_that_no_task_uses_is_charged(self, sql: Contract, clock: Clock) -> None:
        task, operation = timed_out(sql)
        sql.fail(task)
        task = sql.claim_one()
        second = begin(sql, task)
        submit(sql, task, second, "cc_2")
        settle(sql, task, second, "completed")
        sql.complete(task)
        assert account(sql) == (1, 0)
        clock.advance(minutes=11)
        assert take(sql) == [(operation["id"], "timeout")]
        assert said(sql, operation, "completed") == "completed"
        assert said(sql, operation, "completed") == "completed"
        assert account(sql) == (2, 0), "the provider did the work twice"

    @pytest.mark.parametrize(
        ("given", "noted"), [("cc_1", "cc_1"), ("cc_2", None), ("", None), ("a\nb", None)]
    )
    def test_late_success_found_by_its_tag_gets_the_id_of_the_provider(
        self, sql: Contract, clock: Clock, given: str, noted: str | None
    ) -> None:
        """Its worker died before it noted the id. An id of another operation is not noted."""
        setup(sql)
        start(sql)
        task = sql.claim_one()
        operation = begin(sql, task)
        settle(sql, task, operation, "timeout")
        sql.fail(task)
        task = sql.claim_one()
        second = begin(sql, task)
        submit(sql, task, second, "cc_2")
        settle(sql, task, second, "completed")
        sql.complete(task)
        clock.advance(minutes=11)
        assert take(sql) == [(operation["id"], "timeout")]
        values = {"external_id": given}
        arguments = {"operation_id": operation["id"], "outcome": "completed", "values": Jsonb(values)}
        assert sql.value("reconcile_operation", **arguments) == "completed"
        rows = sql.execute("select status, external_id from penstock.operations order by number")
        assert [tuple(row.values()) for row in rows] == [("completed", noted), ("completed", "cc_2")]

    def test_provider_is_asked_for_a_day(self, sql: Contract, clock: Clock) -> None:
        task, operation = timed_out(sql)
        sql.kill(task)
        for _ in range(3):
            clock.advance(minutes=11)
            assert take(sql) == [(operation["id"], "timeout")]
            assert said(sql, operation, "running") == "timeout"
        clock.advance(hours=24)
        assert len(take(sql)) == 1
        said(sql, operation, "running")
        clock.advance(hours=1)
        assert take(sql) == []

    def test_people_can_have_it_asked_now(self, sql: Contract) -> None:
        task, operation = timed_out(sql)
        sql.kill(task)
        assert sql.value("reconcile_operations") == 1
        assert take(sql) == [(operation["id"], "timeout")]
        said(sql, operation, "failed")
        assert sql.value("reconcile_operations", operation_id=operation["id"]) == 1
        assert len(take(sql)) == 1

    def test_asking_about_a_live_operation_wakes_its_task(self, sql: Contract) -> None:
        task, operation = in_flight(sql)
        assert sql.value("reconcile_operations", operation_id=operation["id"]) == 1
        again = sql.claim_one()
        assert again["id"] == task["id"]
        settle(sql, again, operation, "failed")
        assert sql.value("reconcile_operations", operation_id=operation["id"]) == 0


class TestRaces:
    """Two connections; the second is seen to wait for a lock of the first."""

    def submitted(
        self, sessions: Sessions, clock: Clock
    ) -> tuple[Contract, Contract, db.Row, dict[str, Any]]:
        clock.freeze()
        one, two = sessions.open(), sessions.open()
        setup(one)
        start(one)
        task = one.claim_one()
        operation = begin(one, task)
        submit(one, task, operation)
        return one, two, task, operation

    def test_canceled_while_the_task_is_being_parked(self, sessions: Sessions, clock: Clock) -> None:
        one, two, task, operation = self.submitted(sessions, clock)
        with one.connection.transaction():
            assert park(one, task, operation) == "parked"
            call = Call(lambda: cancel(two, operation))
            sessions.wait_until_blocked(two, call)
        assert call.result() == "canceled"
        assert account(one) == (0, 0) and one.claim_one()["id"] == task["id"]
        one.check()

    def test_parked_while_the_operation_is_being_canceled(self, sessions: Sessions, clock: Clock) -> None:
        one, two, task, operation = self.submitted(sessions, clock)
        with one.connection.transaction():
            assert cancel(one, operation) == "canceled"
            call = Call(lambda: park(two, task, operation))
            sessions.wait_until_blocked(two, call)
        assert call.result() == "queued"
        assert account(one) == (0, 0), "the hold of the lease is free, too"
        assert begin(one, one.claim_one())["status"] == "canceled"
        one.check()

    def test_canceled_while_it_is_being_settled(self, sessions: Sessions, clock: Clock) -> None:
        one, two, task, operation = self.submitted(sessions, clock)
        with one.connection.transaction():
            settle(one, task, operation, "completed", result=1)
            call = Call(lambda: cancel(two, operation))
            sessions.wait_until_blocked(two, call)
        assert call.result() == "completed"
        one.complete(task)
        assert account(one) == (1, 0)
        one.check()

    def test_settled_while_it_is_being_canceled(self, sessions: Sessions, clock: Clock) -> None:
        one, two, task, operation = self.submitted(sessions, clock)
        with one.connection.transaction():
            cancel(one, operation)
            call = Call(lambda: settle(two, task, operation, "completed", result=1))
            sessions.wait_until_blocked(two, call)
        assert call.result() == "canceled"
        one.fail(task)
        assert account(one)[1] == 0
        one.check()

    def test_webhook_while_it_is_being_settled(self, sessions: Sessions, clock: Clock) -> None:
        """R4.3/deliveries: `failed` after `finished` changes nothing."""
        one, two, task, operation = self.submitted(sessions, clock)
        with one.connection.transaction():
            settle(one, task, operation, "completed", result=1)
            call = Call(lambda: tell(two, operation))
            sessions.wait_until_blocked(two, call)
        assert call.result() == "stale"
        one.complete(task)
        one.check()

    def test_late_webhook_and_late_answer_replay_once(self, sessions: Sessions, clock: Clock) -> None:
        one, two, task, operation = self.submitted(sessions, clock)
        settle(one, task, operation, "timeout")
        one.kill(task)
        one.do_chores()
        with one.connection.transaction():
            assert tell(one, operation) == "late"
            call = Call(lambda: said(two, operation, "completed"))
            sessions.wait_until_blocked(two, call)
        assert call.result() == "running"
        assert len(one.claim(5)) == 1
        one.check()

    def test_late_webhook_while_the_retry_begins_its_operation(
        self, sessions: Sessions, clock: Clock
    ) -> None:
        """R4.3/late-success: the retry waits for a second operation, and the webhook of the first one wakes it."""
        one, two, task, operation = self.submitted(sessions, clock)
        settle(one, task, operation, "timeout")
        one.fail(task)
        task = one.claim_one()
        with one.connection.transaction():
            second = begin(one, task)
            submit(one, task, second, "cc_2")
            assert park(one, task, second) == "parked"
            call = Call(lambda: tell(two, operation))
            sessions.wait_until_blocked(two, call)
        assert call.result() == "late"
        self.settle_both(one, one.claim_one(), operation, second)

    def test_late_webhook_while_the_retry_is_being_parked(self, sessions: Sessions, clock: Clock) -> None:
        """R4.3/late-success: the next check of the second operation finds the first one's result."""
        one, two, task, operation = self.submitted(sessions, clock)
        settle(one, task, operation, "timeout")
        one.fail(task)
        task = one.claim_one()
        second = begin(one, task)
        submit(one, task, second, "cc_2")
        with one.connection.transaction():
            assert park(one, task, second) == "parked"
            call = Call(lambda: tell(two, operation))
            sessions.wait_until_blocked_or_done(two, call)
        assert call.result() == "late"
        clock.advance(seconds=30)
        one.upkeep()
        self.settle_both(one, one.claim_one(), operation, second)

    def settle_both(self, sql: Contract, task: db.Row, first: dict[str, Any], second: dict[str, Any]) -> None:
        """As the handler does: it uses the late result and cancels the second operation."""
        assert settle(sql, task, first, "completed", result=1) == "completed"
        assert settle(sql, task, second, "canceled") == "canceled"
        sql.complete(task)
        assert statuses(sql) == ["completed", "canceled"]
        assert account(sql) == (1, 0), "the quota counts once"
        sql.check()

    def test_task_fails_while_its_operation_is_told_late(self, sessions: Sessions, clock: Clock) -> None:
        """R4.3/late-success: the webhook finds no dead letter yet, and the next question does."""
        one, two, task, operation = self.submitted(sessions, clock)
        settle(one, task, operation, "timeout")
        with one.connection.transaction():
            one.kill(task)
            call = Call(lambda: tell(two, operation))
            sessions.wait_until_blocked_or_done(two, call)
        assert call.result() == "late"
        one.do_chores()
        clock.advance(minutes=11)
        assert take(one) == [(operation["id"], "timeout")]
        assert said(one, operation, "completed") in ("replayed", "running")
        assert one.claim_one()["id"] == task["id"]
        one.check()

    def test_one_worker_gets_an_operation_to_ask_about(self, sessions: Sessions, clock: Clock) -> None:
        one, two, task, operation = self.submitted(sessions, clock)
        settle(one, task, operation, "timeout")
        clock.advance(minutes=11)
        with one.connection.transaction():
            assert len(take(one)) == 1
            assert take(two) == []
        assert take(two) == []

    def test_job_is_canceled_while_the_operation_is_being_told(
        self, sessions: Sessions, clock: Clock
    ) -> None:
        one, two, task, operation = self.submitted(sessions, clock)
        park(one, task, operation)
        with one.connection.transaction():
            tell(one, operation)
            call = Call(lambda: two.cancel(task["job_id"]))
            sessions.wait_until_blocked_or_done(two, call)
        call.result()
        one.do_chores()
        clock.advance(minutes=6)
        one.upkeep()
        assert statuses(one)[0] in ("canceled", "timeout") and account(one) == (0, 0)
        one.check()


@pytest.mark.slow
def test_a_thousand_in_flight_at_a_quota_of_five(sql: Contract, clock: Clock) -> None:
    """R2.3/no-overshoot: five are submitted, never six, whatever ends in between."""
    clock.freeze()
    setup(sql, quota=5, concurrency=2000)
    start(sql, 1000)
    live: list[tuple[db.Row, dict[str, Any]]] = []
    completed = 0
    for round in range(30):
        while tasks := sql.claim(50):
            for task in tasks:
                operation = begin(sql, task, f"slide:{task['id']}")
                assert operation["status"] == "pending"
                submit(sql, task, operation, f"cc_{task['id']}")
                park(sql, task, operation)
                live.append((task, operation))
        used, held = account(sql)
        assert used + held <= 5 and held == len(live)
        if not live:
            break
        task, operation = live.pop()
        tell(sql, operation)
        [task] = sql.claim(1)
        completed += round % 2
        settle(sql, task, operation, "completed" if round % 2 else "failed")
        sql.complete(task) if round % 2 else sql.kill(task)
    assert (completed, account(sql)) == (5, (5, 0))
    sql.check()
