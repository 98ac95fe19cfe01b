"""Jobs: start, state machine, pause, resume, cancel, retry, audit, progress."""

from __future__ import annotations

import random
import uuid
from datetime import timedelta
from typing import Any

import pytest
from psycopg.types.json import Jsonb

from penstock.postgres import db
from penstock.testing import Clock
from tests.sql.conftest import Contract, Sessions, graph

STATES = ["queued", "running", "paused", "completed", "failed", "canceled"]
LEGAL = {
    ("queued", "running"),
    ("queued", "paused"),
    ("queued", "completed"),
    ("queued", "failed"),
    ("queued", "canceled"),
    ("running", "paused"),
    ("running", "completed"),
    ("running", "failed"),
    ("running", "canceled"),
    ("paused", "queued"),
    ("paused", "running"),
    ("paused", "completed"),
    ("paused", "failed"),
    ("paused", "canceled"),
    ("failed", "running"),
}


def in_state(sql: Contract, state: str) -> uuid.UUID:
    """A job of two tasks, brought into this state by contract calls."""
    job = sql.start(2)
    if state == "queued":
        return job
    first = sql.claim_one()
    if state == "paused":
        sql.pause(job)
    elif state == "completed":
        sql.complete(first)
        sql.drain()
    elif state == "failed":
        sql.kill(first)
        sql.drain()
    elif state == "canceled":
        sql.cancel(job)
    assert sql.status(job) == state
    return job


class TestStart:
    def test_makes_a_job_and_its_tasks(self, sql: Contract, clock: Clock) -> None:
        """R1.1/start: a job and its tasks in one transaction."""
        job = sql.start(
            ["work", {"kind": "other", "input": {"a": 1}}], type="report", params={"month": 5}, priority=3
        )
        found = sql.job(job)
        assert (found["type"], found["status"], found["params"]) == ("report", "queued", {"month": 5})
        assert (found["priority"], found["tenant_id"]) == (3, str(sql.tenant))
        assert found["created_by"] == "service:postgres"
        assert [(task["kind"], task["status"], task["input"]) for task in sql.tasks(job)] == [
            ("work", "queued", {}),
            ("other", "queued", {"a": 1}),
        ]
        assert {task["priority"] for task in sql.tasks(job)} == {3}

    def test_defaults(self, sql: Contract) -> None:
        """R0.2/priority: 0 to 10, lower first, 5 by default."""
        job = sql.start()
        assert sql.job(job)["priority"] == 5
        assert sql.job(job)["params"] == {}

    def test_ids_follow_time(self, sql: Contract) -> None:
        jobs = [sql.start() for _ in range(5)]
        assert {job.version for job in jobs} == {7}

    def test_an_idempotency_key_returns_the_same_job(self, sql: Contract) -> None:
        """R0.1/idempotent: starting twice with one idempotency key gives one job."""
        job = sql.start(3, params={"a": 1}, idempotency_key="k", priority=2)
        before = sql.snapshot()
        assert sql.start(3, params={"a": 1}, idempotency_key="k", priority=2) == job
        assert sql.snapshot() == before

    def test_an_idempotency_key_returns_an_ended_job(self, sql: Contract) -> None:
        job = sql.start(idempotency_key="k")
        sql.drain()
        assert sql.start(idempotency_key="k") == job
        sql.cancel(other := sql.start(idempotency_key="k2"))
        assert sql.start(idempotency_key="k2") == other

    @pytest.mark.parametrize(
        "change",
        [
            {"tasks": 4},
            {"tasks": [{"kind": "work", "input": {"x": 1}}]},
            {"params": {"a": 2}},
            {"priority": 3},
            {"type": "other_type"},
            {"on_failure": "stop"},
        ],
        ids=lambda change: next(iter(change)),
    )
    def test_a_key_with_other_params_is_refused(self, sql: Contract, change: dict[str, Any]) -> None:
        """409: a reused idempotency key with other parameters."""
        asked: dict[str, Any] = {"tasks": 3, "params": {"a": 1}, "priority": 2}
        job = sql.start(**asked, idempotency_key="k")
        before = sql.snapshot()
        with sql.refused(409, "idempotency_key_reused") as refusal:
            sql.start(**(asked | change), idempotency_key="k")
        assert refusal.details["job_id"] == str(job)
        assert sql.snapshot() == before

    def test_a_key_belongs_to_its_tenant(self, sql: Contract) -> None:
        other = Contract(sql.connection, sql.value("create_tenant", name="other"))
        assert sql.start(idempotency_key="k") != other.start(5, idempotency_key="k")

    def test_starts_without_a_key_make_different_jobs(self, sql: Contract) -> None:
        assert sql.start() != sql.start()

    @pytest.mark.parametrize(
        ("options", "code", "field"),
        [
            ({"colour": "red"}, "unknown_field", "options.colour"),
            ({"Priority": 5}, "unknown_field", "options.Priority"),
            ({"priority": 11}, "invalid_priority", "options.priority"),
            ({"priority": -1}, "invalid_priority", "options.priority"),
            ({"priority": "high"}, "invalid_options", "options.priority"),
            ({"priority": 1.5}, "invalid_options", "options.priority"),
            ({"priority": 10**30}, "invalid_options", "options.priority"),
            ({"idempotency_key": ""}, "invalid_key", "options.idempotency_key"),
            ({"idempotency_key": "k" * 256}, "invalid_key", "options.idempotency_key"),
            ({"run_at": "tomorrow-ish"}, "invalid_options", "options.run_at"),
            ({"run_at": "infinity"}, "invalid_time", "options.run_at"),
            ({"run_at": {}}, "invalid_options", "options.run_at"),
            ({"delay_seconds": "soon"}, "invalid_options", "options.delay_seconds"),
            ({"delay_seconds": -1}, "invalid_options", "options.delay_seconds"),
            ({"delay_seconds": 1e300}, "invalid_options", "options.delay_seconds"),
            ({"delay_seconds": "NaN"}, "invalid_options", "options.delay_seconds"),
            ({"paused": "maybe"}, "invalid_options", "options.paused"),
            ({"on_failure": "explode"}, "invalid_options", "options.on_failure"),
            ({"on_failure": 5}, "invalid_options", "options.on_failure"),
            ({"tenant_id": "nobody"}, "invalid_options", "options.tenant_id"),
            ({"budget": -5}, "invalid_options", "options.budget"),
            ({"on_limit": "ignore"}, "invalid_options", "options.on_limit"),
        ],
        ids=repr,
    )
    def test_bad_options_are_refused(self, sql: Contract, options: Any, code: str, field: str) -> None:
        before = sql.snapshot()
        with sql.refused(422, code, field=field):
            sql.start(**options)
        assert sql.snapshot() == before

    @pytest.mark.parametrize(
        ("arguments", "code", "field"),
        [
            ({"type": ""}, "invalid_type", "type"),
            ({"type": None}, "invalid_type", "type"),
            ({"type": "t" * 201}, "invalid_type", "type"),
            ({"params": Jsonb([])}, "invalid_params", "params"),
            ({"params": Jsonb("x")}, "invalid_params", "params"),
            ({"params": Jsonb(None)}, "invalid_params", "params"),
            ({"options": Jsonb([])}, "invalid_options", "options"),
            ({"options": Jsonb("idempotency_key")}, "invalid_options", "options"),
            ({"tasks": Jsonb([])}, "no_tasks", "tasks"),
            ({"tasks": Jsonb({})}, "no_tasks", "tasks"),
            ({"tasks": Jsonb("work")}, "no_tasks", "tasks"),
            ({"tasks": Jsonb(None)}, "no_tasks", "tasks"),
            ({"tasks": None}, "no_tasks", "tasks"),
        ],
        ids=repr,
    )
    def test_bad_arguments_are_refused(self, sql: Contract, arguments: Any, code: str, field: str) -> None:
        good = {
            "type": "report",
            "params": Jsonb({}),
            "tasks": Jsonb([{"kind": "work"}]),
            "options": Jsonb({"tenant_id": str(sql.tenant)}),
        }
        before = sql.snapshot()
        with sql.refused(422, code, field=field):
            sql.value("start_job", **(good | arguments))
        assert sql.snapshot() == before

    def test_params_of_10_megabytes_are_refused(self, sql: Contract) -> None:
        """R1.4/no-blobs: no blobs in the database."""
        with sql.refused(413, "too_large", field="params") as refusal:
            sql.start(params={"text": "x" * 10_000_000})
        assert refusal.details["limit"] == 262144

    def test_the_service_names_the_tenant(self, sql: Contract) -> None:
        nobody = Contract(sql.connection)
        with sql.refused(422, "tenant_missing"):
            nobody.start()
        with sql.refused(404, "unknown_tenant"):
            nobody.start(tenant_id=str(uuid.uuid4()))

    def test_a_start_in_the_future_waits(self, sql: Contract, clock: Clock) -> None:
        """R3.1/scheduled: scheduled start."""
        job = sql.start(2, run_at=(clock.now() + timedelta(hours=1)).isoformat())
        assert sql.claim(5) == []
        assert sql.status(job) == "queued"
        clock.advance(minutes=59)
        sql.upkeep()
        assert sql.claim(5) == []
        clock.advance(minutes=1)
        assert sql.upkeep()["promoted"] == 2
        assert len(sql.claim(5)) == 2

    def test_a_delay_is_a_start_in_the_future(self, sql: Contract, clock: Clock) -> None:
        sql.start(delay_seconds=60)
        clock.advance(seconds=59)
        sql.upkeep()
        assert sql.claim() == []
        clock.advance(seconds=1)
        sql.upkeep()
        assert len(sql.claim()) == 1

    def test_a_start_in_the_past_is_now(self, sql: Contract) -> None:
        sql.start(run_at="2001-01-01T00:00:00Z")
        assert len(sql.claim()) == 1

    def test_a_paused_start_waits_for_the_resume(self, sql: Contract) -> None:
        job = sql.start(graph(a="", b="a"), paused=True)
        assert sql.status(job) == "paused"
        assert sql.claim(5) == []
        assert sql.resume(job) == "queued"
        assert sql.drain() == 2
        assert sql.status(job) == "completed"
        sql.check()

    def test_a_paused_start_in_the_future_waits_for_both(self, sql: Contract, clock: Clock) -> None:
        job = sql.start(2, paused=True, run_at=(clock.now() + timedelta(hours=1)).isoformat())
        sql.resume(job)
        sql.do_chores()
        assert sql.claim(5) == []
        sql.pause(job)
        clock.advance(hours=2)
        sql.upkeep()
        assert sql.claim(5) == []
        sql.resume(job)
        assert sql.drain() == 2

    def test_an_opened_job_is_filled_by_add_tasks(self, sql: Contract) -> None:
        """A job too large for one call: open it and add tasks in the same transaction."""
        (opened,) = sql.rows("open_job", type="report", options=Jsonb({"tenant_id": str(sql.tenant)}))
        assert opened["is_new"]
        for _ in range(3):
            assert len(sql.add(opened["job_id"], 100)) == 100
        assert sql.progress(opened["job_id"])["total"] == 300
        assert sql.drain() == 300
        assert sql.status(opened["job_id"]) == "completed"

    def test_an_opened_job_is_found_by_its_key(self, sql: Contract) -> None:
        options = Jsonb({"tenant_id": str(sql.tenant), "idempotency_key": "k", "digest": "abc"})
        (one,) = sql.rows("open_job", type="report", options=options)
        (two,) = sql.rows("open_job", type="report", options=options)
        assert two == {"job_id": one["job_id"], "is_new": False}
        with sql.refused(409, "idempotency_key_reused"):
            sql.rows("open_job", type="report", options=Jsonb(options.obj | {"digest": "xyz"}))


class TestFailurePolicy:
    def test_by_default_the_rest_still_runs(self, sql: Contract) -> None:
        """R0.2/ends: a job ends `failed` with its counts when a task has failed; the rest still runs."""
        job = sql.start(3)
        sql.kill(sql.claim_one())
        assert sql.status(job) == "running"
        assert sql.drain() == 2
        found = sql.job(job)
        assert (found["status"], found["status_reason"]) == ("failed", "1 of 3 tasks failed")
        assert found["progress"]["percent"] == 100
        assert (found["progress"]["succeeded"], found["progress"]["failed"]) == (2, 1)

    def test_stop_ends_the_job_at_the_first_failure(self, sql: Contract) -> None:
        job = sql.start(5, on_failure="stop")
        failing, running = sql.claim(2)
        sql.kill(failing)
        assert sql.status(job) == "failed"
        assert sql.claim(5) == []
        with sql.refused(410):
            sql.complete(running)
        assert sql.claim(5) == []
        sql.do_chores()
        sql.check()

    def test_a_failure_that_is_retried_does_not_count(self, sql: Contract) -> None:
        job = sql.start(2, on_failure="stop")
        sql.fail(sql.claim_one())
        assert sql.status(job) == "running"
        sql.drain()
        assert sql.status(job) == "completed"

    def test_a_type_has_a_policy_and_a_job_may_have_its_own(self, sql: Contract) -> None:
        sql.value("define_job_type", name="strict", on_failure="stop")
        strict, lenient = sql.start(2, type="strict"), sql.start(2, type="strict", on_failure="continue")
        for task in sql.claim(4):
            if task["id"] % 2:
                sql.kill(task)
        assert (sql.status(strict), sql.status(lenient)) == ("failed", "running")

    def test_stopped_tasks_continue_after_a_retry(self, sql: Contract) -> None:
        """Tasks that were queued, parked or running at the stop are queued again."""
        job = sql.start(graph(a="", b="", c="", d="c", e="b"), on_failure="stop")
        one, running = sql.claim(2)
        sql.kill(one)
        sql.do_chores()
        assert sql.retry(job) == 1
        assert sql.status(job) == "running"
        sql.do_chores()
        with sql.refused(410, "canceled"):  # its handler was told to stop, and comes late
            sql.complete(running)
        # A late worker's word hands the task back. Here the refusal rolled that back, as a single call does.
        assert sql.rows(
            "complete_tasks", worker_id="w1", task_ids=[running["id"]], leases=[running["lease"]]
        ) == [{"id": running["id"], "code": "canceled"}]
        assert sql.drain() == 5
        assert sql.status(job) == "completed"
        sql.check()

    def test_stopped_tasks_of_a_dead_worker_continue_after_a_retry(self, sql: Contract, clock: Clock) -> None:
        job = sql.start(3, on_failure="stop")
        failing, _ = sql.claim(2)
        sql.kill(failing)
        sql.retry(job)
        clock.advance(seconds=31)
        sql.upkeep()
        sql.do_chores()
        assert sql.drain() == 3
        assert sql.status(job) == "completed"
        sql.check()


class TestStateMachine:
    @pytest.mark.parametrize("old", STATES)
    def test_illegal_transitions_are_refused_for_every_caller(self, sql: Contract, old: str) -> None:
        """R0.2/illegal, R0.2/job-states: also for an UPDATE by the owner of the tables."""
        job = in_state(sql, old)
        finished = {"completed", "failed", "canceled"}
        for new in STATES:
            query = "update penstock.jobs set status = %s, finished_at = %s where id = %s"
            at = sql.one("select now()") if new in finished else None
            if old == new or (old, new) in LEGAL:
                with sql.connection.transaction(force_rollback=True):
                    sql.execute(query, new, at, job)
            else:
                with sql.refused(409, "illegal_transition") as refusal:
                    sql.execute(query, new, at, job)
                assert (refusal.details["from"], refusal.details["to"]) == (old, new)
        assert sql.status(job) == old

    def test_an_unknown_state_is_refused(self, sql: Contract) -> None:
        job = sql.start()
        with sql.refused("23514"):
            sql.execute("update penstock.jobs set status = 'sleeping' where id = %s", job)
        with sql.refused("23514"):
            sql.execute(
                "insert into penstock.jobs (tenant_id, type, status, created_by, created_at) "
                "select tenant_id, 'x', 'sleeping', 'x', now() from penstock.jobs"
            )

    def test_only_ended_jobs_have_a_finish_time(self, sql: Contract) -> None:
        job = sql.start()
        with sql.refused("23514"):
            sql.execute("update penstock.jobs set status = 'canceled' where id = %s", job)
        with sql.refused("23514"):
            sql.execute("update penstock.jobs set finished_at = now() where id = %s", job)

    @pytest.mark.parametrize("state", STATES)
    @pytest.mark.parametrize("verb", ["pause", "resume", "cancel", "retry"])
    def test_every_verb_on_every_state(self, sql: Contract, verb: str, state: str) -> None:
        """A paused or ended job acted on: done, nothing to do, or 409."""
        expected: dict[tuple[str, str], Any] = {
            ("pause", "queued"): "paused",
            ("pause", "running"): "paused",
            ("pause", "paused"): "paused",
            ("resume", "queued"): "queued",
            ("resume", "running"): "running",
            ("resume", "paused"): "running",
            ("cancel", "queued"): "canceled",
            ("cancel", "running"): "canceled",
            ("cancel", "paused"): "canceled",
            ("cancel", "canceled"): "canceled",
            ("retry", "running"): 0,
            ("retry", "paused"): 0,
            ("retry", "failed"): 1,
        }
        job = in_state(sql, state)
        answer = expected.get((verb, state))
        if answer is None:
            before = sql.snapshot()
            with sql.refused(409, "not_failed" if verb == "retry" else "job_ended") as refusal:
                getattr(sql, verb)(job)
            assert refusal.details["status"] == state
            assert sql.snapshot() == before
        else:
            assert getattr(sql, verb)(job) == answer
            assert sql.status(job) == ("running" if (verb, state) == ("retry", "failed") else answer or state)
        sql.do_chores()
        sql.check()

    @pytest.mark.parametrize("verb", ["pause", "resume", "cancel", "retry", "job"])
    def test_an_unknown_job_is_refused(self, sql: Contract, verb: str) -> None:
        with sql.refused(404, "unknown_job"):
            getattr(sql, verb)(uuid.uuid4())
        with sql.refused(404, "unknown_job"):
            getattr(sql, verb)(None)

    def test_a_job_runs_from_its_first_claim_and_ends_with_its_last_task(
        self, sql: Contract, clock: Clock
    ) -> None:
        job = sql.start(2)
        clock.advance(seconds=5)
        begun = clock.now()
        first = sql.claim_one()
        assert sql.one("select started_at from penstock.jobs where id = %s", job) == begun
        clock.advance(seconds=5)
        sql.complete(first)
        second = sql.claim_one()
        clock.advance(seconds=5)
        sql.complete(second)
        (row,) = sql.execute("select status, started_at, finished_at from penstock.jobs where id = %s", job)
        assert row == {"status": "completed", "started_at": begun, "finished_at": clock.now()}


# A pause is in effect at once; upkeep then clears the queue of its tasks. Things happen before that and after it.
each_sweep = pytest.mark.parametrize("is_swept", [False, True], ids=["before upkeep", "after upkeep"])


class TestPause:
    def pause(self, sql: Contract, job: uuid.UUID, is_swept: bool) -> None:
        sql.pause(job)
        if is_swept:
            sql.do_chores()

    def test_queued_tasks_stay_and_running_ones_end(self, sql: Contract) -> None:
        job = sql.start(3)
        running = sql.claim_one()
        assert sql.pause(job, "lunch") == "paused"
        assert sql.job(job)["status_reason"] == "lunch"
        assert sql.claim(5) == []
        assert sql.beat(running)
        sql.complete(running)
        assert sql.progress(job)["succeeded"] == 1
        assert sql.resume(job) == "running"
        assert sql.job(job)["status_reason"] is None
        assert sql.drain() == 2

    def test_moving_its_tasks_does_not_read_all_lanes(self, sql: Contract) -> None:
        """Thousands of lanes: one per kind, and one per tenant with its own limits."""
        for n in range(300):
            sql.value("define_kind", name=f"k{n}")
        sql.start([{"kind": "k7"}, {"kind": "k8"}])
        job = sql.start([{"kind": "k7"}] * 5)
        sql.pause(job)
        query = "select idx_scan as n from pg_stat_xact_user_tables where relname = 'ready'"
        before = sql.one(query)
        sql.do_chores()
        assert sql.one(query) - before < 100
        assert {task["waiting_for"] for task in sql.tasks(job)} == {"paused"}

    def test_a_paused_job_does_not_stop_other_jobs(self, sql: Contract) -> None:
        """A claim skips tasks of the paused job and takes those of other jobs."""
        paused, mine = sql.start(3000), sql.start(3)
        other = Contract(sql.connection, sql.value("create_tenant", name="other")).start(3)
        sql.pause(paused)
        assert {task["job_id"] for task in sql.claim(3)} == {other}
        sql.do_chores()
        assert {task["job_id"] for task in sql.claim(3)} == {mine}

    @each_sweep
    def test_a_retry_comes_due_during_the_pause(self, sql: Contract, clock: Clock, is_swept: bool) -> None:
        sql.value(
            "define_kind", name="work", options=Jsonb({"backoff_seconds": 10, "backoff_cap_seconds": 10})
        )
        job = sql.start(1)
        sql.fail(sql.claim_one())
        self.pause(sql, job, is_swept)
        clock.advance(seconds=11)
        sql.upkeep()
        assert sql.claim(5) == []
        sql.resume(job)
        assert sql.claim_one()["attempt"] == 2

    @each_sweep
    def test_a_child_is_released_during_the_pause(self, sql: Contract, is_swept: bool) -> None:
        job = sql.start(graph(a="", b="a"))
        task = sql.claim_one()
        self.pause(sql, job, is_swept)
        sql.complete(task)
        assert sql.claim(5) == []
        sql.do_chores()
        assert sql.claim(5) == []
        sql.resume(job)
        assert sql.claim_one()["key"] == "b"

    @each_sweep
    def test_a_worker_dies_during_the_pause(self, sql: Contract, clock: Clock, is_swept: bool) -> None:
        job = sql.start()
        sql.claim_one()
        self.pause(sql, job, is_swept)
        clock.advance(seconds=31)
        assert sql.reclaim() == 1
        assert sql.claim() == []
        sql.check()
        sql.resume(job)
        assert sql.claim_one()["attempt"] == 2

    def test_the_last_task_ends_during_the_pause(self, sql: Contract) -> None:
        job = sql.start()
        task = sql.claim_one()
        sql.pause(job)
        sql.complete(task)
        assert sql.status(job) == "completed"

    def test_a_failure_stops_a_paused_job(self, sql: Contract) -> None:
        job = sql.start(2, on_failure="stop")
        task = sql.claim_one()
        sql.pause(job)
        sql.kill(task)
        assert sql.status(job) == "failed"

    def test_a_task_added_during_the_pause_waits(self, sql: Contract) -> None:
        job = sql.start()
        sql.pause(job)
        sql.add(job, 2)
        assert sql.claim(5) == []
        sql.resume(job)
        assert sql.drain() == 3

    def test_pause_and_resume_can_be_repeated(self, sql: Contract) -> None:
        job = sql.start(50)
        for turn in range(10):
            sql.pause(job)
            if turn % 2:
                sql.do_chores()
            assert sql.claim(5) == []
            sql.resume(job)
            if turn % 3:
                sql.do_chores()
            sql.complete_all(sql.claim(3))
        sql.do_chores()
        assert sql.drain() == 20
        assert sql.status(job) == "completed"
        sql.check()

    def test_a_large_job_pauses_at_once_and_resumes_completely(self, sql: Contract) -> None:
        """Immediate at every size: the call moves a first batch of tasks, upkeep the rest."""
        job = sql.start(12_000)
        sql.pause(job)
        assert sql.claim(10) == []
        sql.do_chores()
        assert sql.one("select count(*) from penstock.ready") == 0
        sql.resume(job)
        assert len(sql.claim(10)) == 10, "the first are there before any upkeep"
        sql.do_chores()
        assert sql.one("select count(*) from penstock.ready") == 11_990
        sql.check()


class TestCancel:
    def test_cancel_ends_all_tasks(self, sql: Contract) -> None:
        job = sql.start(graph(a="", b="a", c="", d=""))
        done, running = sql.claim(2)
        sql.complete(done)
        sql.fail(sql.claim_one(), retry_after_seconds=60)
        assert sql.cancel(job, "changed my mind") == "canceled"
        found = sql.job(job)
        assert (found["status"], found["status_reason"]) == ("canceled", "changed my mind")
        assert found["finished_at"] is not None
        progress = found["progress"]
        assert (progress["succeeded"], progress["canceled"], progress["done"]) == (1, 3, 4)
        assert sql.claim(5) == []
        assert sorted(sql.states(job).values()) == ["canceled", "canceled", "canceled", "succeeded"]
        with sql.refused(410, "canceled"):
            sql.beat(running)
        sql.do_chores()
        assert sql.one("select count(*) from penstock.ready") == 0
        assert sql.one("select count(*) from penstock.parked") == 0
        sql.check()

    def test_the_reason_names_the_actor_by_default(self, sql: Contract) -> None:
        job = sql.start()
        sql.cancel(job)
        assert sql.job(job)["status_reason"] == "canceled by service:postgres"

    def test_a_running_handler_that_reports_is_refused_and_leaves_nothing(
        self, sql: Contract, clock: Clock
    ) -> None:
        job = sql.start(3)
        tasks = sql.claim(3)
        sql.cancel(job)
        refused = sql.complete_all(tasks[:1])
        refused += sql.rows(
            "fail_tasks",
            worker_id="w1",
            task_ids=[tasks[1]["id"]],
            leases=[tasks[1]["lease"]],
            errors=[Jsonb({})],
        )
        assert [row["code"] for row in refused] == ["canceled", "canceled"]
        clock.advance(seconds=31)
        assert sql.reclaim() == 1
        assert sql.one("select count(*) from penstock.leases") == 0
        assert sql.claim(5) == []
        assert sql.one("select count(*) from penstock.results") == 0
        sql.check()

    def test_canceling_a_large_job_is_immediate(self, sql: Contract) -> None:
        job, mine = sql.start(5000), sql.start(1)
        other = Contract(sql.connection, sql.value("create_tenant", name="other")).start(1)
        sql.cancel(job)
        assert [task["job_id"] for task in sql.claim(5)] == [other]
        sql.do_chores()
        assert [task["job_id"] for task in sql.claim(5)] == [mine]
        assert sql.one("select count(*) from penstock.ready") == 0

    def test_of_a_paused_job(self, sql: Contract) -> None:
        job = sql.start(5)
        sql.pause(job)
        sql.do_chores()
        sql.cancel(job)
        sql.do_chores()
        assert sql.one("select count(*) from penstock.parked") == 0


class TestAudit:
    def test_each_change_of_state_leaves_a_line(self, sql: Contract, clock: Clock) -> None:
        """R3.5/job-states, R3.5/fields: in the same transaction, with job, actor and subject."""
        job = sql.start(2)
        task = sql.claim_one()
        sql.pause(job, "lunch")
        sql.resume(job)
        sql.kill(task)
        sql.drain()
        sql.retry(job)
        sql.drain()
        lines = sql.audit(job)
        assert [(line["action"], line["details"]) for line in lines] == [
            ("job.queued", {"type": "report"}),
            ("job.running", {"from": "queued"}),
            ("job.paused", {"from": "running", "reason": "lunch"}),
            ("job.running", {"from": "paused"}),
            ("job.failed", {"from": "running", "reason": "1 of 2 tasks failed"}),
            ("job.running", {"from": "failed"}),
            ("job.retried", {"tasks": 1}),
            ("job.completed", {"from": "running"}),
        ]
        for line in lines:
            assert (line["tenant_id"], line["subject"], line["actor"]) == (
                sql.tenant,
                f"job:{job}",
                "service:postgres",
            )
            assert line["at"] == clock.now()

    def test_the_service_may_name_another_actor(self, sql: Contract) -> None:
        job = sql.start()
        sql.execute("select set_config('penstock.actor', 'cli:anna', true)")
        sql.cancel(job)
        assert [line["actor"] for line in sql.audit(job)] == ["service:postgres", "cli:anna"]

    def test_a_direct_update_leaves_a_line(self, sql: Contract) -> None:
        job = sql.start()
        sql.execute("update penstock.jobs set status = 'paused' where id = %s", job)
        assert sql.audit(job)[-1]["action"] == "job.paused"

    def test_a_call_without_a_change_leaves_no_line(self, sql: Contract) -> None:
        job = sql.start(2)
        before = len(sql.audit(job))
        sql.resume(job)
        with sql.refused(409):
            sql.retry(job)
        assert len(sql.audit(job)) == before

    def test_there_is_no_line_per_task(self, sql: Contract) -> None:
        job = sql.start(100)
        sql.drain(batch=10)
        assert len(sql.audit(job)) == 3


class TestProgress:
    def test_without_declared_phases_each_task_counts_alike(self, sql: Contract) -> None:
        """R1.5/exact, R0.2/progress: percent, phase, done, total; exact at every step."""
        job = sql.start(["work"] * 60 + ["other"] * 40)
        assert sql.progress(job)["phase"] == "queued"
        done = 0
        while tasks := sql.claim(1):
            assert sql.progress(job)["percent"] == done
            sql.complete_all(tasks)
            done += 1
            progress = sql.progress(job)
            assert (progress["done"], progress["total"]) == (done, 100)
            assert progress["percent"] == done
            assert progress["phase"] == ("complete" if done == 100 else progress["phase"])
        assert done == 100
        assert sql.status(job) == "completed"

    def test_phases_of_an_undeclared_type_are_named_by_its_tasks(self, sql: Contract) -> None:
        job = sql.start(
            [{"kind": "work", "phase": "read"}, {"kind": "work"}, {"kind": "other", "phase": "read"}]
        )
        phases = [(phase["name"], phase["total"]) for phase in sql.progress(job)["phases"]]
        assert phases == [("read", 2), ("work", 1)]

    @pytest.mark.parametrize("count", [-1, None, 2**31 - 1])
    def test_files_of_a_job_are_bounded_whatever_a_caller_asks_for(
        self, sql: Contract, count: int | None
    ) -> None:
        job = sql.start(["work"])
        insert = """insert into penstock.artifacts (tenant_id, job_id, task_id, name, path, content_type,
            status, begun_at, stored_at, created_at, bytes, sha256, created_by)
          select tenant_id, job_id, id, 'a' || n, 'p' || n, 'text/plain',
            'stored', created_at, created_at, created_at, 1, repeat('0', 64), 'service:test'
          from penstock.tasks, generate_series(1, 1200) as n where job_id = %s"""
        sql.execute(insert, job)
        found = sql.value("get_job_detail", job_id=job, max_artifacts=count)
        assert len(found["artifacts"]) == {-1: 0, None: 200}.get(count, 1000)

    def test_later_tasks_are_counted_in_old_and_new_phases(self, sql: Contract) -> None:
        job = sql.start(["work"])
        more = [{"kind": "work"}, {"kind": "other"}, {"kind": "work", "phase": "read"}]
        sql.value("add_tasks", job_id=job, tasks=Jsonb(more))
        phases = [(phase["name"], phase["total"]) for phase in sql.progress(job)["phases"]]
        assert phases == [("work", 2), ("other", 1), ("read", 1)]

    def test_declared_phases_have_their_weights(self, sql: Contract) -> None:
        """R1.5/phases: weighted phases of the job type; a phase's own share grows evenly with its tasks."""
        phases = [
            {"name": "text", "weight": 40},
            {"name": "pdf", "weight": 20},
            {"name": "audio", "weight": 40},
        ]
        sql.value("define_job_type", name="document", phases=Jsonb(phases))
        tasks = [
            {
                "kind": "work",
                "key": f"{phase}{n}",
                "phase": phase,
                "after": [f"{before}{n}"] if before else [],
            }
            for phase, before in (("text", ""), ("pdf", "text"), ("audio", "pdf"))
            for n in range(4)
        ]
        job = sql.start(tasks, type="document")
        seen: list[tuple[str, int]] = []
        for _ in range(12):
            sql.complete(sql.claim_one())
            progress = sql.progress(job)
            seen.append((progress["phase"], progress["percent"]))
        assert seen == [
            ("text", 10),
            ("text", 20),
            ("text", 30),
            ("pdf", 40),
            ("pdf", 45),
            ("pdf", 50),
            ("pdf", 55),
            ("audio", 60),
            ("audio", 70),
            ("audio", 80),
            ("audio", 90),
            ("complete", 100),
        ]

    def test_a_task_without_a_phase_goes_to_its_kinds_or_to_the_first(self, sql: Contract) -> None:
        phases = [{"name": "first", "weight": 1}, {"name": "other", "weight": 1}]
        sql.value("define_job_type", name="document", phases=Jsonb(phases))
        job = sql.start(["work", "other", "other"], type="document")
        assert [(phase["name"], phase["total"]) for phase in sql.progress(job)["phases"]] == [
            ("first", 1),
            ("other", 2),
        ]

    def test_a_phase_the_type_does_not_have_is_refused(self, sql: Contract) -> None:
        sql.value("define_job_type", name="document", phases=Jsonb([{"name": "text", "weight": 1}]))
        with sql.refused(422, "unknown_phase", field="tasks.phase"):
            sql.start([{"kind": "work", "phase": "nope"}], type="document")

    def test_a_later_declaration_does_not_change_running_jobs(self, sql: Contract) -> None:
        sql.value("define_job_type", name="document", phases=Jsonb([{"name": "a", "weight": 1}]))
        job = sql.start([{"kind": "work", "phase": "a"}], type="document")
        sql.value("define_job_type", name="document", phases=Jsonb([{"name": "b", "weight": 1}]))
        sql.add(job, [{"kind": "work", "phase": "a"}])
        assert sql.drain() == 2
        assert sql.status(job) == "completed"

    def test_the_progress_of_a_running_task_counts(self, sql: Contract) -> None:
        job = sql.start(2)
        task = sql.claim_one()
        sql.report(task, 0.5, "half of the first")
        progress = sql.progress(job)
        assert (progress["percent"], progress["message"], progress["running"]) == (25, "half of the first", 1)
        assert progress["done"] == 0

    def test_progress_stays_below_100_before_the_end(self, sql: Contract) -> None:
        job = sql.start(1000)
        tasks = sql.claim(1000)
        sql.complete_all(tasks[:999])
        sql.report(tasks[999], 1)
        assert sql.progress(job)["percent"] == 99
        sql.complete(tasks[999])
        assert sql.progress(job)["percent"] == 100

    def test_an_estimate_of_the_time_left(self, sql: Contract, clock: Clock) -> None:
        """B2/eta: an honest ETA from the pace so far."""
        job = sql.start(10)
        assert sql.progress(job)["eta_seconds"] is None
        tasks = sql.claim(10)
        clock.advance(seconds=40)
        sql.complete_all(tasks[:4])
        assert sql.progress(job)["eta_seconds"] == 60
        sql.complete_all(tasks[4:])
        assert sql.progress(job)["eta_seconds"] is None

    def test_tasks_added_later_count(self, sql: Contract) -> None:
        job = sql.start(2)
        sql.complete(sql.claim_one())
        assert sql.progress(job)["percent"] == 50
        sql.add(job, 2)
        assert sql.progress(job)["percent"] == 25

    @pytest.mark.parametrize("seed", range(4))
    def test_is_exact_after_any_interleaving(self, sql: Contract, clock: Clock, seed: int) -> None:
        """R1.5/exact, R0.2/progress: exact after random completions, failures, deaths, hand-backs, retries and additions."""
        chosen = random.Random(seed)
        jobs = [
            sql.start(graph(a="", b="a", c="a", d="b c", e="") + ["other"] * 3, on_failure="continue")
            for _ in range(3)
        ]
        held: list[db.Row] = []
        for turn in range(80):
            action = chosen.random()
            if action < 0.3:
                held += sql.claim(chosen.randint(1, 4))
            elif action < 0.8 and held:
                task = held.pop(chosen.randrange(len(held)))
                verb = chosen.choice([sql.complete, sql.complete, sql.fail, sql.kill, sql.reschedule])
                verb(task)
            elif action < 0.85:
                clock.advance(seconds=31)
                held = [] if sql.reclaim() else held
            elif action < 0.9:
                job = chosen.choice(jobs)
                if sql.status(job) in ("failed", "running"):
                    sql.retry(job)
            elif action < 0.95:
                job = chosen.choice(jobs)
                if sql.status(job) in ("queued", "running"):
                    sql.add(job, 1)
            if turn % 8 == 0:
                sql.check()
        clock.advance(seconds=31)
        sql.reclaim()
        sql.do_chores()
        sql.drain()
        sql.check()
        for job in jobs:
            assert sql.progress(job)["percent"] == 100
            assert sql.progress(job)["done"] == sql.progress(job)["total"]

    def test_never_updates_the_job_per_task(self, sessions: Sessions) -> None:
        """R1.5/no-hot-row: a job is written at its start and end, a phase once per batch."""
        sql = sessions.open()
        job = sql.start(500)
        query = "select xmin::text from penstock.jobs where id = %s"
        sql.complete_all(sql.claim(10))
        begun = sql.one(query, job)
        phase = "select xmin::text from penstock.phases where job_id = %s"
        versions: set[str] = set()
        for _ in range(48):
            sql.complete_all(sql.claim(10))
            assert sql.one(query, job) == begun
            versions.add(sql.one(phase, job))
        assert len(versions) == 48, "once per batch"
        sql.complete_all(sql.claim(10))
        assert sql.one(query, job) != begun

    def test_a_job_without_weight_still_ends_at_100(self, sql: Contract) -> None:
        sql.value("define_job_type", name="document", phases=Jsonb([{"name": "a", "weight": 0}]))
        job = sql.start([{"kind": "work", "phase": "a"}, {"kind": "work", "phase": "a"}], type="document")
        sql.complete(sql.claim_one())
        assert sql.progress(job)["percent"] == 0
        sql.drain()
        assert sql.progress(job)["percent"] == 100


class TestDefinitions:
    @pytest.mark.parametrize(
        "phases",
        [
            {},
            "x",
            [1],
            [{}],
            [{"name": "a"}],
            [{"name": "", "weight": 1}],
            [{"name": "a", "weight": -1}],
            [{"name": "a", "weight": "1"}],
            [{"name": "a", "weight": 1e9}],
            [{"name": "a", "weight": 1}, {"name": "a", "weight": 2}],
        ],
        ids=repr,
    )
    def test_invalid_phases_are_refused(self, sql: Contract, phases: Any) -> None:
        with sql.refused(422, "invalid_phases"):
            sql.value("define_job_type", name="document", phases=Jsonb(phases))

    @pytest.mark.parametrize("name", ["", "9lives", "a b", "x" * 101, None, "ä"])
    def test_invalid_names_are_refused(self, sql: Contract, name: str | None) -> None:
        with sql.refused(422, "invalid_job_type"):
            sql.value("define_job_type", name=name)
        with sql.refused(422, "invalid_kind"):
            sql.value("define_kind", name=name)

    @pytest.mark.parametrize(
        "options",
        [
            {"max_attempts": 0},
            {"max_attempts": 101},
            {"max_attempts": "many"},
            {"backoff_seconds": -1},
            {"retry_seconds": 0},
            {"timeout_seconds": 0},
            {"colour": "red"},
        ],
        ids=repr,
    )
    def test_invalid_kinds_are_refused(self, sql: Contract, options: Any) -> None:
        with sql.refused(422, "invalid_kind"):
            sql.value("define_kind", name="work", options=Jsonb(options))

    def test_a_kind_named_twice_is_refused(self, sql: Contract) -> None:
        with sql.refused(422, "invalid_kind"):
            sql.value("define_kinds", kinds=Jsonb([{"name": "x"}, {"name": "x"}]))

    def test_a_kind_has_a_category(self, sql: Contract) -> None:
        """R3.1/kinds: `general`, unless another is declared."""
        sql.value("define_kinds", kinds=Jsonb([{"name": "x", "category": "reports"}, {"name": "y"}]))
        found = sql.execute(
            "select name, category from penstock.kinds where name in ('x', 'y') order by name"
        )
        assert [row["category"] for row in found] == ["reports", "general"]

    def test_repeating_a_definition_writes_nothing(self, sql: Contract) -> None:
        kinds = Jsonb([{"name": "x", "max_attempts": 5}, {"name": "y"}])
        sql.value("define_kinds", kinds=kinds)
        before = sql.execute("select name, ctid from penstock.kinds order by name")
        sql.value("define_kinds", kinds=kinds)
        assert sql.execute("select name, ctid from penstock.kinds order by name") == before

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("lease_seconds", 0),
            ("lease_seconds", 86_401),
            ("lease_seconds", 1.5),
            ("lease_seconds", "30"),
            ("max_deaths", 0),
            ("max_tasks_per_call", -1),
            ("max_input_bytes", 10**12),
            ("retention_days", 10**6),
            ("maintenance", 1),
            ("maintenance", None),
        ],
    )
    def test_settings_that_would_stop_everything_are_refused(
        self, sql: Contract, name: str, value: Any
    ) -> None:
        with sql.refused(422, "invalid_setting"):
            sql.value("set_setting", name=name, value=Jsonb(value))

    def test_an_unknown_setting_is_refused(self, sql: Contract) -> None:
        with sql.refused(404, "unknown_setting"):
            sql.value("set_setting", name="volume", value=Jsonb(11))

    def test_a_changed_setting_leaves_an_audit_line(self, sql: Contract) -> None:
        sql.value("set_setting", name="max_deaths", value=Jsonb(7))
        (line,) = sql.execute(
            "select action, subject, details from penstock.audit_log where action like 'setting.%%'", *[]
        )
        assert line == {
            "action": "setting.changed",
            "subject": "setting:max_deaths",
            "details": {"from": 3, "to": 7},
        }
