"""Tasks that wait for an answer or a time: they have no lease, one answer counts, and no wake-up is lost."""

from __future__ import annotations

import uuid
from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

from penstock.postgres import db
from penstock.testing import Clock
from tests.sql.conftest import Call, Contract, Sessions
from tests.sql.test_access import acting, join

pytestmark = pytest.mark.every_postgres

DAY = 86400


def waiting(sql: Contract, **options: Any) -> db.Row:
    """A task that waits for an approval; returns its claim."""
    sql.start(1)
    task = sql.claim_one()
    assert sql.park(task, **options) == "parked"
    return task


class TestPark:
    def test_waiting_task_has_no_lease_and_is_not_claimed(self, sql: Contract) -> None:
        """B10/free: a waiting task occupies no worker, no slot and no place in the queue."""
        task = waiting(sql, options=["yes", "no"])
        assert sql.where(task) == ["parked"]
        assert sql.claim(5) == []
        row = sql.task(task)
        assert (row["status"], row["waiting_for"], row["attempt"]) == ("waiting", "answer: approval", 0)
        sql.check()

    def test_waiting_costs_no_attempt(self, sql: Contract) -> None:
        task = waiting(sql)
        sql.answer(task)
        again = sql.claim_one()
        assert (again["id"], again["attempt"]) == (task["id"], 1)
        assert sql.execute("select * from penstock.attempts") == []

    def test_report_of_the_old_lease_is_rejected(self, sql: Contract) -> None:
        """R1.2/fence."""
        task = waiting(sql)
        with sql.refused(410, "lease_lost"):
            sql.complete(task)
        assert sql.value(
            "park_task", task_id=task["id"], worker_id="w1", lease=task["lease"], wait_id=sql.wait_id(task)
        ) == "lease_lost"  # fmt: skip
        assert sql.where(task) == ["parked"]

    def test_wait_of_another_task_is_rejected(self, sql: Contract) -> None:
        sql.start(2)
        one, two = sql.claim(2)
        wait = sql.ask(one)
        with sql.refused(404, "unknown_wait"):
            sql.value("park_task", task_id=two["id"], worker_id="w1", lease=two["lease"], wait_id=wait["id"])
        assert sql.where(two) == ["leases"]

    def test_answer_before_parking_queues_the_task(self, sql: Contract) -> None:
        sql.start(1)
        task = sql.claim_one()
        sql.ask(task, options=["yes"])
        sql.answer(task, "yes")
        assert sql.park(task, options=["yes"]) == "queued"
        assert sql.claim_one()["id"] == task["id"]

    def test_canceled_lease_is_settled(self, sql: Contract) -> None:
        job = sql.start(1)
        task = sql.claim_one()
        sql.ask(task)
        sql.cancel(job)
        assert sql.value(
            "park_task", task_id=task["id"], worker_id="w1", lease=task["lease"], wait_id=sql.wait_id(task)
        ) == "canceled"  # fmt: skip
        assert sql.where(task) == []

    def test_hold_is_released_while_waiting_and_taken_again(self, sql: Contract) -> None:
        sql.value("set_limit", tenant_id=sql.tenant, meter="pages", amount=1)
        sql.start([{"kind": "work", "units": {"pages": 1}}])
        task = sql.claim_one()
        sql.park(task)
        assert sql.one("select held from penstock.accounts where meter = 'pages'") == 0
        sql.answer(task)
        sql.complete(sql.claim_one())
        assert sql.one("select used from penstock.accounts where meter = 'pages'") == 1
        assert sql.execute("select * from penstock.check_accounts()") == []

    def test_usage_before_the_wait_is_not_charged_again(self, sql: Contract) -> None:
        sql.value("set_limit", tenant_id=sql.tenant, meter="pages", amount=10)
        sql.start([{"kind": "work", "units": {"pages": 2}}])
        task = sql.claim_one()
        sql.rows("record_usage", units=Jsonb({"pages": 3}), task_id=task["id"], worker_id="w1", lease=task["lease"])  # fmt: skip
        sql.park(task)
        sql.answer(task)
        sql.complete(sql.claim_one())
        assert sql.one("select used from penstock.accounts where meter = 'pages'") == 3
        assert sql.execute("select * from penstock.check_accounts()") == []


class TestAnswer:
    def test_time_until_the_answer_is_no_time_in_the_queue(self, sql: Contract, clock: Clock) -> None:
        """The charts of waiting times are about workers and limits, not about people."""
        task = waiting(sql, options=["yes"])
        clock.advance(hours=5)
        sql.answer(task, "yes")
        clock.advance(seconds=30)
        sql.complete(sql.claim_one())
        clock.advance(minutes=2)
        sql.execute("select penstock._sum_tasks()")
        [rate] = sql.execute("select wait_p95 from penstock.task_rates(null, 60) where succeeded > 0")
        assert 20 < rate["wait_p95"] < 60

    def test_task_gets_the_answer(self, sql: Contract) -> None:
        task = waiting(sql, options=["yes", "no"], fields={"note": "text", "sum": "number?"})
        assert sql.answer(task, "yes", note="fine") is True
        again = sql.claim_one()
        found = sql.ask(again, options=["yes", "no"])
        assert (found["outcome"], found["option"], found["payload"]) == ("answered", "yes", {"note": "fine"})
        assert found["ended_by"].startswith("service:")

    def test_first_answer_counts(self, sql: Contract) -> None:
        task = waiting(sql, options=["yes", "no"])
        sql.answer(task, "yes")
        assert sql.answer(task, "yes") is False, "the same answer again is accepted"
        with sql.refused(409, "already_answered") as refusal:
            sql.answer(task, "no")
        assert refusal.details["option"] == "yes"

    @pytest.mark.parametrize(
        ("option", "payload", "field"),
        [
            ("maybe", {"note": "x"}, "option"),
            (None, {"note": "x"}, "option"),
            ("yes", {}, "payload.note"),
            ("yes", {"note": 5}, "payload.note"),
            ("yes", {"note": None}, "payload.note"),
            ("yes", {"note": "x", "sum": "12"}, "payload.sum"),
            ("yes", {"note": "x", "other": 1}, "payload.other"),
        ],
    )
    def test_invalid_answer_is_rejected(
        self, sql: Contract, option: str | None, payload: dict[str, Any], field: str
    ) -> None:
        task = waiting(sql, options=["yes", "no"], fields={"note": "text", "sum": "number?"})
        with sql.refused(422, "invalid_answer", field=field):
            sql.answer(task, option, **payload)
        assert sql.task(task)["status"] == "waiting"

    def test_option_of_a_wait_without_options_is_rejected(self, sql: Contract) -> None:
        task = waiting(sql)
        with sql.refused(422, "invalid_answer", field="option"):
            sql.answer(task, "yes")

    def test_answer_to_an_ended_job_is_rejected(self, sql: Contract) -> None:
        job = sql.start(1)
        task = sql.claim_one()
        sql.park(task)
        sql.cancel(job)
        sql.do_chores()
        assert sql.where(task) == []
        with sql.refused(409, "job_ended"):
            sql.answer(task)
        assert sql.one("select status from penstock.wait_list") == "canceled"

    def test_unknown_wait(self, sql: Contract) -> None:
        with sql.refused(404, "unknown_wait"):
            sql.value("answer_wait", wait_id=uuid.uuid4())

    @pytest.mark.parametrize(
        ("role", "scopes", "may"),
        [
            ("viewer", None, False), ("viewer", ["read"], False), ("member", ["read"], False),
            ("member", ["start"], True), ("member", None, True), ("owner", ["read", "admin"], False),
        ],
    )  # fmt: skip
    def test_key_that_may_only_read_answers_nothing(
        self, sql: Contract, role: str, scopes: list[str] | None, may: bool
    ) -> None:
        """S24: also where viewers may answer. People who are viewers may, keys need the scope start."""
        task = waiting(sql, options=["yes"], roles=["viewer", "member", "admin", "owner"])
        options = {"tenant_id": str(sql.tenant)} | ({"scopes": scopes} if scopes else {})
        [key] = sql.rows("create_api_key", name="k", role=role, options=Jsonb(options))
        wait = sql.wait_id(task)
        with acting(sql, key["id"]):
            if may:
                assert sql.value("answer_wait", wait_id=wait, option="yes") is True
            else:
                with sql.refused(403, "missing_scope") as refusal:
                    sql.value("answer_wait", wait_id=wait, option="yes")
                assert refusal.details["scope"] in ("start", "read")

    def test_viewer_answers_where_viewers_may(self, sql: Contract) -> None:
        task = waiting(sql, options=["yes"], roles=["viewer"])
        ann, bob = join(sql, "ann"), join(sql, "bob")
        for person, role in ((ann, "owner"), (bob, "viewer")):
            sql.value("set_member", tenant_id=sql.tenant, user_id=person.id, role=role)
        wait = sql.wait_id(task)
        with acting(sql, bob):
            assert sql.value("answer_wait", wait_id=wait, option="yes") is True

    def test_answer_is_audited(self, sql: Contract) -> None:
        task = waiting(sql, options=["yes"])
        sql.answer(task, "yes")
        line = sql.audit(task["job_id"])[-1]
        assert (line["action"], line["details"]) == ("wait.answered", {"name": "approval", "option": "yes"})

    def test_link_answers_once(self, sql: Contract) -> None:
        sql.start(1)
        task = sql.claim_one()
        token = sql.ask(task, options=["yes", "no"], message="Ship it?", link=True)["token"]
        assert token == sql.ask(task, options=["yes", "no"], link=True)["token"]
        assert sql.park(task) == "parked"
        shown = sql.value("get_wait_link", token=token)
        assert (shown["message"], shown["options"], shown["status"]) == ("Ship it?", ["yes", "no"], "open")
        assert sql.value("answer_link", token=token, option="no") is True
        with sql.refused(409, "already_answered"):
            sql.value("answer_link", token=token, option="yes")
        with sql.refused(404, "unknown_link"):
            sql.value("answer_link", token=token[:-1] + "x", option="yes")
        assert sql.one("select ended_by from penstock.waits") == "link"

    def test_wait_without_a_link_has_no_token(self, sql: Contract) -> None:
        waiting(sql)
        assert sql.execute("select * from penstock.wait_links") == []


class TestTimeout:
    def test_timeout_wakes_the_task(self, sql: Contract, clock: Clock) -> None:
        task = waiting(sql, options=["yes", "no"], seconds=3 * DAY)
        clock.advance(seconds=3 * DAY - 1)
        sql.upkeep()
        assert sql.where(task) == ["parked"]
        clock.advance(seconds=1)
        sql.upkeep()
        again = sql.claim_one()
        found = sql.ask(again, options=["yes", "no"], seconds=3 * DAY)
        assert (found["outcome"], found["option"]) == ("timeout", None)

    def test_timeout_has_the_default_answer(self, sql: Contract, clock: Clock) -> None:
        waiting(sql, options=["yes", "no"], default="no", seconds=60)
        clock.advance(seconds=60)
        sql.upkeep()
        found = sql.ask(sql.claim_one(), options=["yes", "no"], seconds=60)
        assert (found["outcome"], found["option"], found["ended_by"]) == ("timeout", "no", None)

    def test_answer_after_the_timeout_is_rejected(self, sql: Contract, clock: Clock) -> None:
        """Also before upkeep has noticed the timeout: the database's clock decides."""
        task = waiting(sql, options=["yes"], seconds=60)
        clock.advance(seconds=60)
        with sql.refused(409, "wait_timed_out"):
            sql.answer(task, "yes")
        assert sql.one("select status from penstock.wait_list") == "timeout"

    def test_retry_does_not_extend_the_timeout(self, sql: Contract, clock: Clock) -> None:
        sql.start(1)
        task = sql.claim_one()
        until = sql.ask(task, seconds=60)["until"]
        clock.advance(seconds=30)
        sql.fail(task)
        assert sql.ask(sql.claim_one(), seconds=60)["until"] == until

    def test_replay_asks_again(self, sql: Contract, clock: Clock) -> None:
        job = sql.start(1)
        task = sql.claim_one()
        sql.park(task, options=["yes"], seconds=60)
        clock.advance(seconds=60)
        sql.upkeep()
        task = sql.claim_one()
        assert sql.ask(task, options=["yes"], seconds=60)["outcome"] == "timeout"
        sql.kill(task)
        assert sql.retry(job) == 1
        task = sql.claim_one()
        assert sql.ask(task, options=["yes"], seconds=60)["outcome"] is None
        assert sql.park(task, options=["yes"], seconds=60) == "parked"
        assert sql.answer(task, "yes") is True

    def test_sleep_ends_at_its_time(self, sql: Contract, clock: Clock) -> None:
        sql.start(1)
        task = sql.claim_one()
        assert sql.park(task, "nap", kind="sleep", seconds=6 * 3600) == "parked"
        with sql.refused(404, "unknown_wait"):
            sql.answer(task, name="nap")
        clock.advance(seconds=6 * 3600)
        sql.upkeep()
        assert sql.ask(sql.claim_one(), "nap", kind="sleep", seconds=6 * 3600)["outcome"] == "over"


class TestJob:
    def test_pause_keeps_the_answer_for_the_resume(self, sql: Contract) -> None:
        job = sql.start(1)
        task = sql.claim_one()
        sql.park(task, options=["yes"])
        sql.pause(job)
        sql.do_chores()
        sql.answer(task, "yes")
        assert sql.claim(1) == []
        sql.resume(job)
        again = sql.claim_one()
        assert sql.ask(again)["option"] == "yes"
        sql.check()

    def test_resume_wakes_no_waiting_task(self, sql: Contract) -> None:
        job = sql.start(1)
        task = sql.claim_one()
        sql.park(task)
        sql.pause(job)
        sql.resume(job)
        sql.do_chores()
        assert sql.where(task) == ["parked"]
        assert sql.task(task)["status"] == "waiting"

    def test_progress_counts_waiting_tasks(self, sql: Contract) -> None:
        job = sql.start(3)
        one, two = sql.claim(2)
        sql.park(one)
        progress = sql.progress(job)
        assert (progress["waiting"], progress["running"], progress["done"]) == (1, 1, 0)
        sql.answer(one)
        assert sql.progress(job)["waiting"] == 0
        sql.complete(two)

    def test_child_waits_for_a_waiting_parent(self, sql: Contract) -> None:
        job = sql.start([{"kind": "work", "key": "a"}])
        task = sql.claim_one()
        sql.park(task)
        sql.add(job, [{"kind": "work", "key": "b", "after": ["a"]}])
        sql.answer(task)
        sql.complete(sql.claim_one())
        assert sql.claim_one()["key"] == "b"
        sql.check()

    def test_explanation_names_the_wait(self, sql: Contract) -> None:
        """B10/reasons: why a task waits."""
        task = waiting(sql, options=["yes", "no"], seconds=3 * DAY)
        found = sql.value("explain_task", job_id=task["job_id"], task_id=task["id"])
        assert found["status"] == "waiting" and found["waits_for"] == "answer"
        assert found["text"] == "waiting: an answer to approval (yes, no), times out in about 3 days"
        job = sql.value("explain_job", job_id=task["job_id"])
        assert job["text"] == "0 of 1 tasks done, none running, 1 waiting."

    def test_pruned_job_leaves_nothing(self, sql: Contract, clock: Clock) -> None:
        task = waiting(sql, options=["yes"], link=True)
        sql.answer(task, "yes")
        task = sql.claim_one()
        sql.value("store_step", task_id=task["id"], worker_id="w1", lease=task["lease"], name="a", output=Jsonb(1))  # fmt: skip
        sql.complete(task)
        clock.advance(days=91)
        while sql.value("prune"):
            pass
        left = "select (select count(*) from penstock.waits) + (select count(*) from penstock.steps)"
        assert sql.one(left + " + (select count(*) from penstock.wait_links)") == 0


class TestStep:
    def test_first_result_counts(self, sql: Contract) -> None:
        sql.start(1)
        task = sql.claim_one()
        assert sql.store_step(task, "call", {"n": 1}) == {"n": 1}
        assert sql.store_step(task, "call", {"n": 2}) == {"n": 1}
        assert sql.store_step(task, "none", None) is None

    def test_retry_finds_it(self, sql: Contract) -> None:
        job = sql.start(1)
        task = sql.claim_one()
        sql.store_step(task, "call", {"n": 1})
        sql.fail(task)
        again = sql.claim_one()
        assert sql.rows("get_steps", job_id=job, task_id=again["id"]) == [
            {"name": "call", "output": {"n": 1}}
        ]

    def test_lost_lease_stores_nothing(self, sql: Contract) -> None:
        """R1.2/fence: a worker whose lease has expired cannot store a step."""
        sql.start(1)
        task = sql.claim_one()
        sql.reschedule(task)
        with sql.refused(410, "lease_lost"):
            sql.store_step(task, "call", 1)

    def test_too_large_a_result_is_rejected(self, sql: Contract) -> None:
        sql.start(1)
        task = sql.claim_one()
        with sql.refused(413, "too_large", field="p_output"):
            sql.store_step(task, "call", "x" * 300_000)

    def test_number_of_steps_is_limited(self, sql: Contract) -> None:
        sql.start(1)
        task = sql.claim_one()
        sql.execute(
            """insert into penstock.steps select job_id, id, 's' || n, tenant_id, 1, now(), '1'
               from penstock.tasks, generate_series(1, 1000) as n where id = %s""", task["id"])  # fmt: skip
        with sql.refused(422, "too_many_steps"):
            sql.store_step(task, "call", 1)


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"options": "yes"}, "options"),
        ({"options": [1]}, "options"),
        ({"options": ["yes"], "default": "no"}, "default"),
        ({"fields": {"a": "date"}}, "fields"),
        ({"fields": []}, "fields"),
        ({"roles": ["king"]}, "roles"),
        ({"seconds": -1}, "seconds"),
        ({"kind": "sleep"}, "seconds"),
        ({"seconds": "soon"}, None),
    ],
)
def test_invalid_wait_is_rejected(sql: Contract, options: dict[str, Any], field: str | None) -> None:
    sql.start(1)
    task = sql.claim_one()
    with sql.refused(422, "invalid_wait", field=field):
        sql.ask(task, **options)


class TestRaces:
    """Two sessions: the first has not committed when the second comes."""

    @pytest.fixture
    def pair(self, sessions: Sessions, clock: Clock) -> tuple[Contract, Contract, db.Row]:
        clock.freeze()
        one, two = sessions.open(), sessions.open()
        one.start(1)
        return one, two, one.claim_one()

    def test_answer_while_the_task_is_being_parked(
        self, sessions: Sessions, pair: tuple[Contract, Contract, db.Row]
    ) -> None:
        """The answer waits for the parking and then wakes the task: no wake-up is lost."""
        one, two, task = pair
        one.ask(task, options=["yes"])
        with one.connection.transaction():
            assert one.park(task, options=["yes"]) == "parked"
            call = Call(lambda: two.answer(task, "yes"))
            sessions.wait_until_blocked(two, call)
        assert call.result() is True
        assert one.claim_one()["id"] == task["id"]
        one.check()

    def test_parking_while_the_answer_is_being_given(
        self, sessions: Sessions, pair: tuple[Contract, Contract, db.Row]
    ) -> None:
        one, two, task = pair
        wait = one.ask(task, options=["yes"])
        with one.connection.transaction():
            one.answer(task, "yes")
            call = Call(lambda: two.value(
                "park_task", task_id=task["id"], worker_id="w1", lease=task["lease"], wait_id=wait["id"]))  # fmt: skip
            sessions.wait_until_blocked(two, call)
        assert call.result() == "queued"
        assert one.claim_one()["id"] == task["id"]
        one.check()

    def test_two_answers_at_once(self, sessions: Sessions, pair: tuple[Contract, Contract, db.Row]) -> None:
        one, two, task = pair
        one.park(task, options=["yes", "no"])
        with one.connection.transaction():
            one.answer(task, "yes")
            call = Call(lambda: two.answer(task, "no"))
            sessions.wait_until_blocked(two, call)
        with pytest.raises(psycopg.Error, match="was answered before"):
            call.result()
        assert one.ask(one.claim_one())["option"] == "yes"
        assert one.claim(5) == []

    def test_answer_by_link_while_a_person_answers(
        self, sessions: Sessions, pair: tuple[Contract, Contract, db.Row]
    ) -> None:
        one, two, task = pair
        token = one.ask(task, options=["yes", "no"], link=True)["token"]
        with one.connection.transaction():
            one.answer(task, "yes")
            call = Call(lambda: two.value("answer_link", token=token, option="no"))
            sessions.wait_until_blocked(two, call)
        with pytest.raises(psycopg.Error, match="was answered before"):
            call.result()
        assert one.ask(task)["option"] == "yes"

    def test_answer_while_the_timeout_wakes_the_task(
        self, sessions: Sessions, clock: Clock, pair: tuple[Contract, Contract, db.Row]
    ) -> None:
        """An answer and a timeout at once queue the task once."""
        one, two, task = pair
        one.park(task, options=["yes"], seconds=60)
        with one.connection.transaction():
            one.answer(task, "yes")
            clock.advance(seconds=60)
            call = Call(two.upkeep)
            sessions.wait_until_blocked_or_done(two, call)
        call.result()
        assert len(one.claim(5)) == 1
        one.check()

    def test_answer_while_a_child_is_added(
        self, sessions: Sessions, pair: tuple[Contract, Contract, db.Row]
    ) -> None:
        one, two, _ = pair
        job = one.start([{"kind": "work", "key": "a"}])
        task = one.claim_one()
        one.park(task)
        with one.connection.transaction():
            one.add(job, [{"kind": "work", "key": "b", "after": ["a"]}])
            call = Call(lambda: two.answer(task))
            sessions.wait_until_blocked(two, call)
        call.result()
        one.complete(one.claim_one())
        assert one.claim_one()["key"] == "b"
        one.check()

    def test_answer_while_the_job_is_canceled(
        self, sessions: Sessions, pair: tuple[Contract, Contract, db.Row]
    ) -> None:
        one, two, task = pair
        one.park(task)
        with one.connection.transaction():
            one.cancel(task["job_id"])
            call = Call(lambda: two.answer(task))
            sessions.wait_until_blocked_or_done(two, call)
        call.result()
        one.do_chores()
        assert one.claim(5) == []
        assert one.where(task) == []
