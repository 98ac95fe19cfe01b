"""Leases: claim, heartbeat, progress, complete, fail, reschedule, reclaim, and fencing."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

from penstock.postgres import db
from penstock.testing import Clock
from tests.sql.conftest import Contract, graph

DOCUMENT = Path(__file__).parents[2] / "docs/access.md"

# Every write that needs a lease, as (name, call).
WRITES: list[tuple[str, Callable[[Contract, Any, str], Any]]] = [
    ("heartbeat", lambda sql, task, worker: sql.beat(task, worker)),
    ("complete", lambda sql, task, worker: sql.complete(task, {"late": True}, worker)),
    ("fail", lambda sql, task, worker: sql.fail(task, "late", worker)),
    ("reschedule", lambda sql, task, worker: sql.reschedule(task, 5, worker)),
    (
        "progress",
        lambda sql, task, worker: sql.value(
            "report_progress", task_id=task["id"], worker_id=worker, lease=task["lease"], fraction=0.5
        ),
    ),
    (
        "add_tasks",
        lambda sql, task, worker: sql.add(
            task["job_id"], 1, task_id=task["id"], worker_id=worker, lease=task["lease"]
        ),
    ),
]
each_write = pytest.mark.parametrize("write", [call for _, call in WRITES], ids=[name for name, _ in WRITES])


def kind(sql: Contract, name: str = "work", **options: Any) -> None:
    sql.value("define_kind", name=name, options=Jsonb(options))


class TestClaim:
    def test_a_claim_returns_the_columns_of_the_contract(self, sql: Contract, clock: Clock) -> None:
        """R1.2/functions: the columns of the contract."""
        kind(sql, timeout_seconds=60, max_attempts=4)
        job = sql.start([{"kind": "work", "key": "k", "input": {"row": 7}}])
        task = sql.claim_one(seconds=90)
        assert task == {
            "id": task["id"],
            "lease": task["lease"],
            "job_id": job,
            "tenant_id": sql.tenant,
            "kind": "work",
            "key": "k",
            "input": {"row": 7},
            "attempt": 1,
            "max_attempts": 4,
            "timeout_seconds": 60,
            "lease_expires_at": clock.now() + timedelta(seconds=90),
            "provider": None,
        }

    def test_limits_of_a_task_override_those_of_its_kind(self, sql: Contract) -> None:
        sql.start([{"kind": "work", "max_attempts": 9, "timeout_seconds": 2.5}])
        task = sql.claim_one()
        assert (task["max_attempts"], task["timeout_seconds"]) == (9, 2.5)

    def test_a_heartbeat_every_60_seconds_keeps_the_default_lease(
        self, conn: db.SyncConnection, tenant: uuid.UUID, clock: Clock
    ) -> None:
        """R1.11/default-lease: a claim with three arguments, heartbeats of 60 s, one of which gets lost."""
        clock.freeze()
        sql = Contract(conn, tenant)
        kind(sql)
        sql.start()
        (task,) = sql.execute("select * from penstock.claim_tasks('worker-1', 5, array['work'])")
        for seconds in (60, 60, 120, 60):
            clock.advance(seconds=seconds)
            assert sql.reclaim() == 0
            assert sql.value("heartbeat_task", task_id=task["id"], worker_id="worker-1")
        clock.advance(seconds=60)
        assert sql.value(
            "complete_task", task_id=task["id"], worker_id="worker-1", output=Jsonb({"ok": True})
        )
        sql.start()
        sql.execute("select * from penstock.claim_tasks('worker-2', 5, array['work'])")
        clock.advance(seconds=151)
        assert sql.reclaim() == 1

    def test_the_documented_role_runs_the_loop_and_reads_no_table(self, sql: Contract, clock: Clock) -> None:
        """R1.9/workers, R1.2/any-language: the grants of docs/access.md are enough, and give nothing else."""
        clock.freeze()
        text = DOCUMENT.read_text()
        [grants] = [part for part in re.findall(r"```sql\n(.*?)```", text, re.S) if "penstock_loop" in part]
        role = f"loop_{uuid.uuid4().hex}"
        job = sql.start(3, params={"secret": "of the job"})
        for statement in (
            grants.replace("penstock_loop", role).replace("login password '…'", "nologin").split(";")
        ):
            if statement.strip():
                sql.connection.execute(statement.encode())

        def advance(seconds: int) -> None:
            sql.connection.execute("reset role")
            clock.advance(seconds=seconds)
            sql.connection.execute(f"set role {role}".encode())

        advance(0)
        done, failed, lost = sql.execute("select * from penstock.claim_tasks('w', 5, array['work'])")
        advance(60)
        assert sql.value("heartbeat_task", task_id=done["id"], worker_id="w")
        assert sql.value("complete_task", task_id=done["id"], worker_id="w", output=Jsonb({"ok": True}))
        assert sql.value("fail_task", task_id=failed["id"], worker_id="w", error="no")
        advance(151)
        assert sql.value("reclaim_stale_tasks") == 1
        with pytest.raises(psycopg.Error, match="lease"), sql.connection.transaction():
            sql.value("complete_task", task_id=lost["id"], worker_id="w", output=Jsonb({}))
        tables = sql.execute(
            "select c.relname as name, has_table_privilege(c.oid, 'select') as may from pg_class c"
            " where c.relnamespace = 'penstock'::regnamespace and c.relkind in ('r', 'v', 'p', 'm')"
        )
        assert len(tables) > 50 and not [table["name"] for table in tables if table["may"]]
        for call in ("get_job", "cancel_job"):
            with pytest.raises(psycopg.errors.InsufficientPrivilege), sql.connection.transaction():
                sql.value(call, job_id=job)

    def test_a_lease_lasts_as_long_as_the_setting(self, sql: Contract, clock: Clock) -> None:
        sql.value("set_setting", name="lease_seconds", value=Jsonb(77))
        sql.start()
        assert sql.claim_one()["lease_expires_at"] == clock.now() + timedelta(seconds=77)

    def test_a_claim_returns_at_most_max_tasks(self, sql: Contract) -> None:
        sql.start(5)
        assert [len(sql.claim(3)) for _ in range(3)] == [3, 2, 0]

    def test_a_claim_returns_only_the_given_kinds(self, sql: Contract) -> None:
        """R1.7/by-kind: claim by kind."""
        sql.start(["work", "other", "work"])
        assert [task["kind"] for task in sql.claim(9, kinds=["other"])] == ["other"]
        assert sql.claim(9, kinds=["nothing"]) == []
        assert sql.claim(9, kinds=[]) == []
        assert [task["kind"] for task in sql.claim(9, kinds=["work", "other"])] == ["work", "work"]

    def test_tasks_are_claimed_in_the_order_of_their_list(self, sql: Contract) -> None:
        sql.start([{"kind": "work", "key": str(n)} for n in range(10)])
        assert [task["key"] for task in sql.claim(4) + sql.claim(9)] == [str(n) for n in range(10)]

    def test_lanes_of_different_providers_are_all_served(self, sql: Contract) -> None:
        for name in ("a/x", "b/y"):
            sql.provider(name)
        sql.start([{"kind": "work", "provider": name} for name in ("a/x", "b/y", "a/x")] + [{"kind": "work"}])
        assert len(sql.claim(9)) == 4

    def test_nothing_is_claimed_during_maintenance(self, sql: Contract) -> None:
        """R3.9/maintenance: maintenance mode. What runs ends normally."""
        sql.start(2)
        task = sql.claim_one()
        sql.value("set_setting", name="maintenance", value=Jsonb(True))
        assert sql.claim() == []
        sql.complete(task)
        sql.value("set_setting", name="maintenance", value=Jsonb(False))
        assert len(sql.claim()) == 1

    @pytest.mark.parametrize(
        ("arguments", "field"),
        [
            ({"worker": ""}, "p_worker_id"),
            ({"worker": None}, "p_worker_id"),
            ({"worker": "w" * 201}, "p_worker_id"),
            ({"count": 0}, "p_max_tasks"),
            ({"count": -1}, "p_max_tasks"),
            ({"count": 10_001}, "p_max_tasks"),
            ({"count": None}, "p_max_tasks"),
            ({"seconds": 0}, "p_lease_seconds"),
            ({"seconds": 86_401}, "p_lease_seconds"),
        ],
    )
    def test_invalid_arguments_of_a_claim_are_refused(
        self, sql: Contract, arguments: dict[str, Any], field: str
    ) -> None:
        sql.start()
        with sql.refused(422, field=field):
            sql.claim(**arguments)

    def test_lease_numbers_only_grow(self, sql: Contract, clock: Clock) -> None:
        """R1.2/lease-grows: each claim of a task has a greater number than all before it."""
        sql.start(5)
        numbers: dict[int, list[int]] = {}
        for turn in range(8):
            tasks = sql.claim(5)
            assert len(tasks) == 5
            for task in tasks:
                numbers.setdefault(task["id"], []).append(task["lease"])
                if turn % 4 == 0:
                    sql.reschedule(task)
                elif turn % 4 == 1:
                    sql.value("reschedule_task", task_id=task["id"], lease=task["lease"], delay_seconds=1)
            clock.advance(seconds=2)
            if turn % 4 >= 2 and turn < 4:
                clock.advance(seconds=60)
            elif turn % 4 >= 2:
                for task in tasks:
                    sql.reschedule(task)
            sql.upkeep()
        for seen in numbers.values():
            assert seen == sorted(set(seen))
        every = [number for seen in numbers.values() for number in seen]
        assert len(every) == len(set(every))


class TestFence:
    """R1.2/fence, S26: a report with an old lease is rejected and changes nothing."""

    def refuse(self, sql: Contract, write: Any, task: Any, worker: str, code: str) -> None:
        before = sql.snapshot()
        with sql.refused(410, code):
            write(sql, task, worker)
        assert sql.snapshot() == before

    @each_write
    def test_an_old_lease_is_refused(self, sql: Contract, clock: Clock, write: Any) -> None:
        sql.start()
        old = sql.claim_one()
        clock.advance(seconds=31)
        assert sql.reclaim() == 1
        self.refuse(sql, write, old, "w1", "lease_lost")
        new = sql.claim_one()
        assert new["id"] == old["id"]
        assert new["lease"] > old["lease"]
        self.refuse(sql, write, old, "w1", "lease_lost")
        assert sql.complete(new)

    @each_write
    def test_another_worker_is_refused(self, sql: Contract, write: Any) -> None:
        sql.start()
        task = sql.claim_one("w1")
        self.refuse(sql, write, task, "w2", "lease_lost")
        assert sql.complete(task)

    @each_write
    def test_an_unknown_lease_is_refused(self, sql: Contract, write: Any) -> None:
        sql.start()
        task = sql.claim_one()
        self.refuse(sql, write, {**task, "lease": task["lease"] + 1}, "w1", "lease_lost")
        self.refuse(sql, write, {**task, "lease": 0}, "w1", "lease_lost")

    @each_write
    def test_an_unknown_task_is_refused(self, sql: Contract, write: Any) -> None:
        task = {"id": 10**15, "lease": 1, "job_id": sql.start()}
        self.refuse(sql, write, task, "w1", "lease_lost")

    @pytest.mark.parametrize("write", [call for name, call in WRITES if name != "complete"])
    def test_a_completed_task_is_refused(self, sql: Contract, write: Any) -> None:
        sql.start(2)
        task = sql.claim_one()
        sql.complete(task)
        self.refuse(sql, write, task, "w1", "lease_lost")

    @pytest.mark.parametrize("write", [call for name, call in WRITES if name != "fail"])
    def test_a_failed_attempt_is_refused(self, sql: Contract, write: Any) -> None:
        sql.start(2)
        first, second = sql.claim(2)
        sql.fail(first)
        self.refuse(sql, write, first, "w1", "lease_lost")
        sql.kill(second)
        self.refuse(sql, write, second, "w1", "lease_lost")

    @each_write
    def test_a_rescheduled_task_is_refused(self, sql: Contract, write: Any) -> None:
        sql.start()
        task = sql.claim_one()
        sql.reschedule(task, 5)
        self.refuse(sql, write, task, "w1", "lease_lost")

    @each_write
    def test_a_canceled_task_is_refused(self, sql: Contract, write: Any) -> None:
        job = sql.start(2)
        task = sql.claim_one()
        sql.cancel(job)
        with sql.refused(410, "canceled"):
            write(sql, task, "w1")
        assert sql.states(job)[task["id"]] == "canceled"
        assert sql.one("select count(*) from penstock.results") == 0
        sql.check()

    def test_a_lease_of_another_job_does_not_open_this_one(self, sql: Contract) -> None:
        one, other = sql.start(), sql.start(2)
        task = sql.claim_one()
        assert task["job_id"] == one
        with sql.refused(410, "lease_lost"):
            sql.add(other, 1, task_id=task["id"], worker_id="w1", lease=task["lease"])
        assert sql.progress(other)["total"] == 2


class TestWithoutNumber:
    """R1.2/without-lease: older clients send no lease; then the worker must hold the live one."""

    @pytest.mark.parametrize("call", ["heartbeat_task", "complete_task", "fail_task", "reschedule_task"])
    def test_the_worker_of_the_live_lease_may_report(self, sql: Contract, call: str) -> None:
        sql.start()
        task = sql.claim_one()
        more = {"error": "x"} if call == "fail_task" else {}
        assert sql.value(call, task_id=task["id"], worker_id="w1", **more) is True

    @pytest.mark.parametrize("call", ["heartbeat_task", "complete_task", "fail_task", "reschedule_task"])
    def test_another_worker_may_not_report(self, sql: Contract, clock: Clock, call: str) -> None:
        sql.start()
        sql.claim_one("w1")
        clock.advance(seconds=31)
        sql.reclaim()
        task = sql.claim_one("w2")
        more = {"error": "x"} if call == "fail_task" else {}
        before = sql.snapshot()
        with sql.refused(410, "lease_lost"):
            sql.value(call, task_id=task["id"], worker_id="w1", **more)
        assert sql.snapshot() == before

    def test_progress_needs_no_lease_number_either(self, sql: Contract) -> None:
        sql.start()
        task = sql.claim_one()
        sql.value("report_progress", task_id=task["id"], worker_id="w1", fraction=0.5)
        assert sql.task(task)["fraction"] == 0.5
        with sql.refused(410):
            sql.value("report_progress", task_id=task["id"], worker_id="w2", fraction=0.7)

    def test_one_of_the_two_is_needed(self, sql: Contract) -> None:
        sql.start()
        task = sql.claim_one()
        with sql.refused(422, "lease_missing"):
            sql.value("reschedule_task", task_id=task["id"])
        with sql.refused(422, "lease_missing"):
            sql.value("report_progress", task_id=task["id"], worker_id=None)
        with sql.refused(410):
            sql.value("complete_task", task_id=task["id"], worker_id=None, lease=task["lease"])


def test_tasks_of_dead_workers_return_with_jitter(sql: Contract, clock: Clock) -> None:
    """R3.1/configuration: with the default 0, at once."""
    clock.freeze()
    sql.value("set_setting", name="reclaim_jitter_seconds", value=Jsonb(60))
    sql.start(20)
    assert len(sql.claim(20)) == 20
    clock.advance(seconds=31)
    assert sql.reclaim() == 20
    waits = [
        row["s"]
        for row in sql.execute("select extract(epoch from until - penstock._now()) as s from penstock.parked")
    ]
    assert len(waits) == 20 and all(0 <= wait <= 60 for wait in waits) and len(set(waits)) > 10
    clock.advance(seconds=60)
    sql.upkeep()
    assert {task["attempt"] for task in sql.claim(20)} == {2}
    clock.advance(seconds=31)
    sql.value("set_setting", name="reclaim_jitter_seconds", value=Jsonb(0))
    assert sql.reclaim() == 20 and sql.one("select count(*) from penstock.parked") == 0
    with sql.refused(422, "invalid_setting"):
        sql.value("set_setting", name="reclaim_jitter_seconds", value=Jsonb(3601))


class TestHeartbeat:
    def test_extends_the_lease(self, sql: Contract, clock: Clock) -> None:
        """R3.1/heartbeat: a task whose worker sends heartbeats is never reclaimed."""
        sql.start()
        task = sql.claim_one()
        for _ in range(5):
            clock.advance(seconds=20)
            assert sql.beat(task)
            assert sql.reclaim() == 0
        clock.advance(seconds=29)
        assert sql.reclaim() == 0
        clock.advance(seconds=2)
        assert sql.reclaim() == 1

    def test_a_heartbeat_never_shortens_a_lease(self, sql: Contract, clock: Clock) -> None:
        """A worker that claimed for an hour and sends heartbeats without seconds keeps its hour."""
        sql.start()
        task = sql.claim_one(seconds=3600)
        assert sql.beat(task)
        clock.advance(minutes=30)
        assert sql.reclaim() == 0

    def test_one_heartbeat_extends_many_leases_and_returns_the_lost_ones(
        self, sql: Contract, clock: Clock
    ) -> None:
        """R1.2/batch: one statement per heartbeat for all leases of a worker."""
        kept, lost, ended = sql.start(), sql.start(), sql.start()
        canceled = sql.start()
        tasks = {task["job_id"]: task for task in sql.claim(4)}
        clock.advance(seconds=20)
        sql.reschedule(tasks[lost])
        sql.complete(tasks[ended])
        sql.cancel(canceled)
        beat = [{"id": task["id"], "lease": task["lease"]} for task in tasks.values()]
        gone = sql.rows("heartbeat_tasks", worker_id="w1", leases=Jsonb(beat), lease_seconds=600)
        assert {row["id"]: row["code"] for row in gone} == {
            tasks[lost]["id"]: "lease_lost",
            tasks[ended]["id"]: "lease_lost",
            tasks[canceled]["id"]: "canceled",
        }
        expires = sql.one("select expires_at from penstock.leases where task_id = %s", tasks[kept]["id"])
        assert expires == clock.now() + timedelta(seconds=600)

    def test_an_old_lease_extends_nothing(self, sql: Contract, clock: Clock) -> None:
        """R1.2/fence: nor the newer lease that the same worker has of the task."""
        sql.start()
        old = sql.claim_one()
        clock.advance(seconds=31)
        sql.reclaim()
        new = sql.claim_one()
        before = sql.snapshot()
        beat = Jsonb([{"id": old["id"], "lease": old["lease"]}])
        [gone] = sql.rows("heartbeat_tasks", worker_id="w1", leases=beat, lease_seconds=600)
        assert (gone["id"], gone["lease"], gone["code"]) == (new["id"], old["lease"], "lease_lost")
        assert sql.snapshot() == before

    def test_a_heartbeat_without_leases_is_no_error(self, sql: Contract) -> None:
        assert sql.rows("heartbeat_tasks", worker_id="w1", leases=Jsonb([])) == []

    @pytest.mark.parametrize("leases", [{}, "x", 5, ["x"], [{"id": "x"}], None])
    def test_invalid_leases_of_a_heartbeat_are_refused(self, sql: Contract, leases: Any) -> None:
        with sql.refused(422, "invalid_batch"):
            sql.rows("heartbeat_tasks", worker_id="w1", leases=Jsonb(leases))

    @pytest.mark.parametrize("seconds", [0, -5, 86_401])
    def test_an_invalid_length_is_refused(self, sql: Contract, seconds: int) -> None:
        with sql.refused(422, "invalid_lease", field="p_lease_seconds"):
            sql.rows("heartbeat_tasks", worker_id="w1", leases=Jsonb([]), lease_seconds=seconds)


class TestProgress:
    def test_progress_is_stored_with_the_lease(self, sql: Contract) -> None:
        sql.start()
        task = sql.claim_one()
        sql.report(task, 0.25, "reading")
        sql.report(task, 0.5)
        row = sql.task(task)
        assert (row["fraction"], row["message"]) == (0.5, "reading")
        sql.report(task, message="writing")
        row = sql.task(task)
        assert (row["fraction"], row["message"]) == (0.5, "writing")

    def test_progress_is_cut_to_its_bounds(self, sql: Contract) -> None:
        sql.start()
        task = sql.claim_one()
        sql.report(task, -3)
        assert sql.task(task)["fraction"] == 0
        sql.report(task, 17, "x" * 10_000)
        row = sql.task(task)
        assert row["fraction"] == 1
        assert len(row["message"]) == 500
        sql.report(task, float("nan"))
        assert sql.task(task)["fraction"] == 1

    def test_starts_again_with_the_next_attempt(self, sql: Contract) -> None:
        sql.start()
        task = sql.claim_one()
        sql.report(task, 0.9, "nearly")
        sql.fail(task)
        row = sql.task(sql.claim_one())
        assert (row["fraction"], row["message"]) == (None, None)


class TestComplete:
    def test_keeps_the_output(self, sql: Contract, clock: Clock) -> None:
        job = sql.start()
        task = sql.claim_one()
        started = clock.now()
        clock.advance(seconds=3)
        assert sql.complete(task, {"pages": 3})
        row = sql.task(task)
        assert (row["status"], row["output"], row["attempt"]) == ("succeeded", {"pages": 3}, 1)
        assert (row["started_at"], row["finished_at"]) == (started, clock.now())
        assert row["worker_id"] == "w1"
        assert sql.status(job) == "completed"

    @pytest.mark.parametrize("output", [None, [], {}, "text", 0, False, [1, {"a": None}]])
    def test_any_document_will_do(self, sql: Contract, output: Any) -> None:
        sql.start()
        task = sql.claim_one()
        sql.complete(task, output)
        assert sql.task(task)["output"] == output

    def test_said_again_is_accepted_again(self, sql: Contract) -> None:
        """The response to the commit was lost: the worker repeats its report, which is accepted."""
        job = sql.start(2)
        task = sql.claim_one()
        assert sql.complete(task, {"n": 1})
        before = sql.snapshot()
        assert sql.complete(task, {"n": 1})
        assert sql.value("complete_task", task_id=task["id"], worker_id="w1")
        assert sql.snapshot() == before
        assert sql.progress(job)["succeeded"] == 1

    def test_a_completion_repeated_after_the_end_of_the_job_is_accepted(self, sql: Contract) -> None:
        job = sql.start()
        task = sql.claim_one()
        sql.complete(task)
        assert sql.status(job) == "completed"
        assert sql.complete(task)

    def test_a_completion_repeated_by_another_worker_is_refused(self, sql: Contract) -> None:
        sql.start()
        task = sql.claim_one()
        sql.complete(task)
        with sql.refused(410, "lease_lost"):
            sql.complete(task, worker="w2")
        with sql.refused(410, "lease_lost"):
            sql.complete({**task, "lease": task["lease"] + 1})

    def test_a_batch_may_be_partly_refused(self, sql: Contract, clock: Clock) -> None:
        """R1.2/batch: a batch completes the valid tasks and returns the others with a reason each."""
        sql.value("set_setting", name="max_output_bytes", value=Jsonb(100))
        lost, canceled, large = sql.start(), sql.start(), sql.start()
        done = sql.start(3)
        tasks = sql.claim(9)
        by_job = {task["job_id"]: task for task in tasks}
        sql.reschedule(by_job[lost], 60)
        sql.cancel(canceled)
        again = next(task for task in tasks if task["job_id"] == done)
        sql.complete(again)
        outputs = [Jsonb("x" * 200) if task["job_id"] == large else Jsonb(1) for task in tasks]
        refused = sql.rows(
            "complete_tasks",
            worker_id="w1",
            task_ids=[task["id"] for task in tasks],
            leases=[task["lease"] for task in tasks],
            outputs=outputs,
        )
        assert {row["id"]: row["code"] for row in refused} == {
            by_job[lost]["id"]: "lease_lost",
            by_job[canceled]["id"]: "canceled",
            by_job[large]["id"]: "too_large",
        }
        assert sql.status(done) == "completed"
        assert sql.where(by_job[large]) == ["leases"]
        sql.check()

    def test_each_task_gets_its_own_output(self, sql: Contract) -> None:
        job = sql.start(50)
        tasks = sql.claim(50)
        tasks.reverse()
        sql.rows(
            "complete_tasks",
            worker_id="w1",
            task_ids=[task["id"] for task in tasks],
            leases=[task["lease"] for task in tasks],
            outputs=[Jsonb({"id": task["id"]}) for task in tasks],
        )
        assert all(row["output"] == {"id": row["id"]} for row in sql.tasks(job))

    def test_a_task_named_twice_ends_once(self, sql: Contract) -> None:
        job = sql.start(2)
        one, two = sql.claim(2)
        refused = sql.rows(
            "complete_tasks",
            worker_id="w1",
            task_ids=[one["id"], two["id"], one["id"], one["id"]],
            leases=[one["lease"], two["lease"], one["lease"], 1],
            outputs=[Jsonb(1), Jsonb(2), Jsonb(1), Jsonb(3)],
        )
        assert [(row["id"], row["code"]) for row in refused] == [(one["id"], "lease_lost")]
        assert sql.task(one)["output"] == 1
        assert sql.progress(job)["succeeded"] == 2
        sql.check()

    def test_a_batch_without_numbers_or_outputs(self, sql: Contract) -> None:
        job = sql.start(3)
        tasks = sql.claim(3)
        ids = [task["id"] for task in tasks]
        assert sql.rows("complete_tasks", worker_id="w1", task_ids=ids) == []
        assert sql.status(job) == "completed"

    @pytest.mark.parametrize(
        "arguments",
        [
            {"task_ids": []},
            {"task_ids": None},
            {"task_ids": [1], "leases": [1, 2]},
            {"task_ids": [1, 2], "leases": [1, 2], "outputs": [Jsonb(1)]},
            {"task_ids": list(range(10_001))},
        ],
    )
    def test_a_batch_of_uneven_arrays_is_refused(self, sql: Contract, arguments: dict[str, Any]) -> None:
        with sql.refused(422, "invalid_batch"):
            sql.rows("complete_tasks", worker_id="w1", **arguments)

    def test_too_large_an_output_is_refused_and_the_task_goes_on(self, sql: Contract) -> None:
        """R1.4/no-blobs: no blobs in the database. The worker keeps its lease and can report the failure."""
        sql.start()
        task = sql.claim_one()
        before = sql.snapshot()
        with sql.refused(413, "too_large", field="p_output"):
            sql.complete(task, "x" * 300_000)
        assert sql.snapshot() == before
        assert sql.kill(task, "the output is too large")

    @pytest.mark.parametrize(
        "output", ["[" * 5000 + "]" * 5000, '{"n": 1e100000}', "[-1e400]"], ids=["deep", "huge", "negative"]
    )
    def test_an_output_that_clients_cannot_parse_is_refused(self, sql: Contract, output: str) -> None:
        """Workers of dependent tasks could not parse their input."""
        sql.start(graph(a="", b="a"))
        task = sql.claim_one()
        with sql.refused(413, "too_large", field="p_output"):
            sql.execute(
                "select penstock.complete_task(%s, 'w1', %s::jsonb, %s)", task["id"], output, task["lease"]
            )
        assert sql.where(task) == ["leases"]
        refused = sql.execute(
            "select * from penstock.complete_tasks('w1', array[%s], array[%s], array[%s::jsonb])",
            task["id"],
            task["lease"],
            output,
        )
        assert [row["code"] for row in refused] == ["too_large"]


class TestFail:
    def test_a_failure_leads_to_another_attempt(self, sql: Contract) -> None:
        """R0.2/retry-fields: attempt, retry_count, last_retry_at, error_code and message."""
        job = sql.start()
        for attempt in (1, 2, 3):
            task = sql.claim_one()
            assert task["attempt"] == attempt
            assert sql.task(task)["retry_count"] == attempt - 1
            sql.fail(task, f"try {attempt}", error_code="provider_error")
        row = sql.task(task)
        assert (row["status"], row["error_code"], row["error_message"]) == (
            "failed",
            "provider_error",
            "try 3",
        )
        assert row["retry_count"] == 3
        assert row["last_retry_at"] is not None
        assert sql.status(job) == "failed"

    def test_keeps_every_error(self, sql: Contract, clock: Clock) -> None:
        """R3.1/error-details: structured error details, and the worker that had the attempt."""
        job = sql.start()
        for worker in ("w1", "w2"):
            task = sql.claim_one(worker)
            clock.advance(seconds=1)
            sql.fail(task, worker, worker, error_code="upstream", error_details=Jsonb({"status": 503}))
        rows = sql.execute("select * from penstock.attempts where job_id = %s order by lease", job)
        assert [(row["attempt"], row["worker_id"], row["error_message"]) for row in rows] == [
            (1, "w1", "w1"),
            (2, "w2", "w2"),
        ]
        for row in rows:
            assert (row["outcome"], row["error_code"]) == ("failed", "upstream")
            assert row["error_details"] == {"status": 503}
            assert row["ended_at"] - row["started_at"] == timedelta(seconds=1)
            assert row["retry_in_seconds"] is not None

    def test_said_again_is_accepted_again(self, sql: Contract) -> None:
        job = sql.start()
        task = sql.claim_one()
        sql.fail(task)
        before = sql.snapshot()
        assert sql.fail(task)
        assert sql.snapshot() == before
        task = sql.claim_one()
        sql.kill(task)
        assert sql.kill(task)
        assert sql.progress(job)["failed"] == 1

    def test_a_failed_attempt_cannot_complete_with_its_lease(self, sql: Contract) -> None:
        sql.start()
        task = sql.claim_one()
        sql.fail(task)
        with sql.refused(410, "lease_lost"):
            sql.complete(task)

    def test_backs_off_with_full_jitter_up_to_a_cap(self, sql: Contract, clock: Clock) -> None:
        """R0.3/backoff: truncated exponential backoff with full jitter."""
        kind(sql, "work", backoff_seconds=4, backoff_cap_seconds=30, max_attempts=100)
        sql.start(200)
        for failures in range(6):
            tasks = sql.claim(200)
            assert len(tasks) == 200
            for start in range(0, 200, 100):
                batch = tasks[start : start + 100]
                assert not sql.rows(
                    "fail_tasks",
                    worker_id="w1",
                    task_ids=[task["id"] for task in batch],
                    leases=[task["lease"] for task in batch],
                    errors=[Jsonb({"message": "x"}) for _ in batch],
                )
            delays = [
                row["delay"]
                for row in sql.execute(
                    "select extract(epoch from until - penstock._now())::float8 as delay from penstock.parked"
                )
            ]
            bound = min(30, 4 * 2**failures)
            assert len(delays) == 200
            assert 0 <= min(delays) < bound * 0.1, "full jitter goes down to zero"
            assert bound * 0.9 < max(delays) <= bound
            assert bound * 0.4 < sum(delays) / 200 < bound * 0.6
            clock.advance(seconds=31)
            sql.upkeep()

    def test_a_retry_waits_for_the_providers_retry_after(self, sql: Contract, clock: Clock) -> None:
        """R0.3/retry-after: Retry-After is honoured, also where it is longer than the cap."""
        kind(sql, "work", backoff_seconds=2, backoff_cap_seconds=10)
        sql.start()
        task = sql.claim_one()
        sql.fail(task, "429", retry_after_seconds=120.5)
        clock.advance(seconds=120)
        assert sql.upkeep()["promoted"] == 0
        assert sql.claim() == []
        clock.advance(seconds=1)
        assert sql.upkeep()["promoted"] == 1
        assert sql.claim_one()["id"] == task["id"]

    def test_the_backoff_may_be_longer_than_retry_after(self, sql: Contract) -> None:
        kind(sql, "work", backoff_seconds=1_000_000, backoff_cap_seconds=1_000_000)
        sql.start()
        task = sql.claim_one()
        sql.fail(task, retry_after_seconds=0.001)
        delay = sql.one("select extract(epoch from until - penstock._now())::float8 from penstock.parked")
        assert delay > 0.001

    def test_ends_at_the_cap_of_attempts(self, sql: Contract) -> None:
        """R0.3/count-cap: limited in number; the limit of a task overrides that of its kind."""
        kind(sql, "work", max_attempts=2, backoff_seconds=0)
        sql.start([{"kind": "work", "key": "two"}, {"kind": "work", "key": "one", "max_attempts": 1}])
        for task in sql.claim(2):
            sql.fail(task)
        (last,) = sql.claim(2)
        assert last["key"] == "two"
        sql.fail(last)
        letters = sql.execute("select reason, attempts from penstock.dead_letters order by id")
        assert letters == [{"reason": "attempts", "attempts": 1}, {"reason": "attempts", "attempts": 2}]

    def test_ends_at_the_cap_of_total_time(self, sql: Contract, clock: Clock) -> None:
        """R0.3/time-cap: limited in total time from the start of the first attempt."""
        kind(sql, "work", max_attempts=100, backoff_seconds=0, retry_seconds=60)
        sql.start()
        task = sql.claim_one()
        clock.advance(seconds=25)
        sql.fail(task)
        task = sql.claim_one()
        clock.advance(seconds=25)
        sql.fail(task)
        task = sql.claim_one()
        sql.fail(task, retry_after_seconds=11)
        assert sql.one("select reason from penstock.dead_letters") == "time"

    def test_a_retry_just_inside_the_total_time_is_made(self, sql: Contract, clock: Clock) -> None:
        kind(sql, "work", max_attempts=100, backoff_seconds=0, retry_seconds=60)
        sql.start()
        task = sql.claim_one()
        clock.advance(seconds=50)
        sql.fail(task, retry_after_seconds=10)
        assert sql.where(task) == ["parked"]

    def test_the_total_time_starts_again_with_a_replay(self, sql: Contract, clock: Clock) -> None:
        kind(sql, "work", max_attempts=100, backoff_seconds=0, retry_seconds=60)
        job = sql.start()
        task = sql.claim_one()
        sql.kill(task)
        clock.advance(hours=5)
        assert sql.retry(job) == 1
        task = sql.claim_one()
        sql.fail(task)
        assert sql.where(task) == ["ready"], "its second life has its own 60 seconds"

    def test_a_permanent_failure_ends_the_task_at_once(self, sql: Contract) -> None:
        sql.start()
        task = sql.claim_one()
        sql.fail(task, "no such file", permanent=True, error_code="not_found")
        letter = sql.execute("select reason, error_code, error_message, attempts from penstock.dead_letters")
        assert letter == [
            {"reason": "permanent", "error_code": "not_found", "error_message": "no such file", "attempts": 1}
        ]

    def test_a_batch_may_be_partly_refused(self, sql: Contract) -> None:
        sql.start(3)
        one, two, three = sql.claim(3)
        sql.reschedule(two, 60)
        refused = sql.rows(
            "fail_tasks",
            worker_id="w1",
            task_ids=[one["id"], two["id"], three["id"], one["id"]],
            leases=[one["lease"], two["lease"], three["lease"], one["lease"]],
            errors=[
                Jsonb({"message": "1"}),
                Jsonb({}),
                Jsonb({"message": "3", "permanent": True}),
                Jsonb({}),
            ],
        )
        assert refused == [{"id": two["id"], "code": "lease_lost"}]
        assert sql.where(one) == ["ready"]
        assert sql.task(three)["error_message"] == "3"
        sql.check()

    def test_an_error_without_a_message_has_a_code(self, sql: Contract) -> None:
        sql.start()
        task = sql.claim_one()
        assert sql.value("fail_task", task_id=task["id"], worker_id="w1", error=None, lease=task["lease"])
        row = sql.execute("select error_code, error_message, error_details from penstock.attempts")
        assert row == [{"error_code": "handler_error", "error_message": "", "error_details": None}]

    @pytest.mark.parametrize(
        "error",
        [
            "null",
            '"text"',
            "[1, 2]",
            '{"retry_after_seconds": "soon"}',
            '{"retry_after_seconds": {}}',
            '{"retry_after_seconds": -5}',
            '{"retry_after_seconds": 1e400}',
            '{"retry_after_seconds": "NaN"}',
            '{"permanent": "perhaps"}',
            '{"permanent": 7}',
            '{"code": {"a": 1}, "message": [1]}',
            '{"code": ""}',
        ],
    )
    def test_a_malformed_error_never_leaves_a_task_stuck(self, sql: Contract, error: str) -> None:
        sql.start()
        task = sql.claim_one()
        refused = sql.execute(
            "select * from penstock.fail_tasks('w1', array[%s], array[%s], array[%s::jsonb])",
            task["id"],
            task["lease"],
            error,
        )
        assert refused == []
        assert sql.where(task) in (["ready"], ["parked"])
        sql.check()

    def test_a_huge_error_is_cut(self, sql: Contract) -> None:
        """Reports are cut and flagged; the attempt is recorded in any case."""
        sql.start()
        task = sql.claim_one()
        sql.fail(
            task, "x" * 2_000_000, error_code="y" * 5000, error_details=Jsonb({"trace": "z" * 3_000_000})
        )
        (row,) = sql.execute("select error_code, error_message, error_details from penstock.attempts")
        assert len(row["error_code"]) == 100
        assert len(row["error_message"]) == 10_000
        assert row["error_details"]["dropped"] == "too_large"

    def test_details_that_clients_cannot_parse_are_dropped(self, sql: Contract) -> None:
        sql.start()
        task = sql.claim_one()
        sql.execute(
            "select penstock.fail_task(%s, 'w1', 'x', %s, p_error_details => %s::jsonb)",
            task["id"],
            task["lease"],
            "[" * 5000 + "]" * 5000,
        )
        assert sql.one("select error_details from penstock.attempts")["dropped"] == "too_large"


class TestReschedule:
    def test_costs_no_attempt(self, sql: Contract, clock: Clock) -> None:
        job = sql.start([{"kind": "work", "max_attempts": 1}])
        for _ in range(5):
            task = sql.claim_one()
            assert task["attempt"] == 1
            assert sql.reschedule(task)
            task = sql.claim_one()
            assert sql.reschedule(task, 30)
            assert sql.claim() == []
            clock.advance(seconds=30)
            sql.upkeep()
        assert sql.one("select count(*) from penstock.attempts") == 0
        sql.complete(sql.claim_one())
        assert sql.status(job) == "completed"

    def test_a_reschedule_keeps_its_reason(self, sql: Contract) -> None:
        sql.start()
        task = sql.claim_one()
        sql.value(
            "reschedule_task",
            task_id=task["id"],
            lease=task["lease"],
            delay_seconds=9,
            reason="provider is slow",
        )
        row = sql.task(task)
        assert (row["status"], row["waiting_for"]) == ("queued", "provider is slow")
        assert row["waiting_until"] is not None

    def test_a_reason_has_no_effect_on_the_engine(self, sql: Contract) -> None:
        """A reason that reads like one of the engine's is only a text."""
        job = sql.start(2)
        task = sql.claim_one()
        sql.value(
            "reschedule_task", task_id=task["id"], lease=task["lease"], delay_seconds=9, reason="paused"
        )
        sql.pause(job)
        sql.upkeep()
        sql.resume(job)
        sql.upkeep()
        assert sql.where(task) == ["parked"]

    def test_a_batch_may_be_partly_refused(self, sql: Contract) -> None:
        sql.start(3)
        one, two, three = sql.claim(3)
        sql.complete(two)
        refused = sql.rows(
            "reschedule_tasks",
            worker_id="w1",
            task_ids=[one["id"], two["id"], three["id"]],
            leases=[one["lease"], two["lease"], three["lease"]],
        )
        assert refused == [{"id": two["id"], "code": "lease_lost"}]
        assert [task["id"] for task in sql.claim(3)] == [one["id"], three["id"]]

    @pytest.mark.parametrize("delay", [-1, 86400 * 367, float("nan"), float("inf")])
    def test_an_invalid_delay_is_refused(self, sql: Contract, delay: float) -> None:
        sql.start()
        task = sql.claim_one()
        with sql.refused(422, "invalid_delay", field="p_delay_seconds"):
            sql.reschedule(task, delay)
        assert sql.where(task) == ["leases"]

    def test_a_task_handed_back_is_claimed_first(self, sql: Contract) -> None:
        sql.start(5)
        one, two = sql.claim(2)
        sql.reschedule(one)
        sql.reschedule(two)
        assert {task["id"] for task in sql.claim(2)} == {one["id"], two["id"]}


class TestReclaim:
    def test_reclaimed_tasks_are_committed_before_other_upkeep(self, sql: Contract, clock: Clock) -> None:
        """Other parts of upkeep may take long or wait: tasks of dead workers are committed before them."""
        clock.freeze()
        sql.start(2)
        stale, failed = sql.claim(2, seconds=20)
        sql.fail(failed, retry_after_seconds=10)
        clock.advance(seconds=21)
        first = sql.upkeep()
        assert (first["reclaimed"], first["promoted"], first["next_seconds"]) == (1, 0, 0)
        assert sql.claim_one("w2")["id"] == stale["id"]
        assert sql.upkeep()["promoted"] == 1

    def test_a_dead_workers_task_runs_elsewhere(self, sql: Contract, clock: Clock) -> None:
        """R1.6/stale-leases, R1.6/dead-worker: upkeep requeues stale leases within the lease time."""
        sql.start()
        task = sql.claim_one("w1", seconds=20)
        clock.advance(seconds=19)
        assert sql.reclaim() == 0
        assert sql.claim() == []
        clock.advance(seconds=2)
        assert sql.reclaim() == 1
        again = sql.claim_one("w2")
        assert (again["id"], again["attempt"]) == (task["id"], 2)
        (attempt,) = sql.execute("select * from penstock.attempts")
        assert (attempt["outcome"], attempt["error_code"], attempt["worker_id"]) == (
            "lost",
            "worker_lost",
            "w1",
        )
        assert sql.complete(again, worker="w2")
        sql.check()

    def test_the_third_death_is_the_last(self, sql: Contract, clock: Clock) -> None:
        """R3.1/dead-letter: a task whose worker died three times goes to the dead letters."""
        job = sql.start()
        for death in (1, 2, 3):
            task = sql.claim_one(f"w{death}")
            clock.advance(seconds=31)
            assert sql.reclaim() == 1
        assert sql.claim() == []
        letters = sql.execute("select reason, error_code, attempts from penstock.dead_letters")
        assert letters == [{"reason": "worker_deaths", "error_code": "worker_lost", "attempts": 3}]
        assert sql.task(task)["status"] == "failed"
        assert sql.status(job) == "failed"
        sql.check()

    def test_deaths_and_failures_are_counted_apart(self, sql: Contract, clock: Clock) -> None:
        """A task may fail twice and lose its worker twice without reaching either limit."""
        job = sql.start()
        for step in ("fail", "die", "fail", "die"):
            task = sql.claim_one()
            if step == "fail":
                sql.fail(task)
            else:
                clock.advance(seconds=31)
                sql.reclaim()
        sql.complete(sql.claim_one())
        assert sql.status(job) == "completed"

    def test_many_expired_leases_are_reclaimed_in_batches(self, sql: Contract, clock: Clock) -> None:
        sql.start(1500)
        sql.claim(1500)
        clock.advance(seconds=31)
        assert sql.upkeep() | {"promoted": 0} == {
            "reclaimed": 1000,
            "promoted": 0,
            "chores": 0,
            "next_seconds": 0,
        }
        assert sql.reclaim() == 500
        assert sql.reclaim() == 0
        assert len(sql.claim(2000)) == 1500

    def test_descendants_of_a_dead_letter_are_canceled(self, sql: Contract, clock: Clock) -> None:
        sql.value("set_setting", name="max_deaths", value=Jsonb(1))
        job = sql.start(graph(a="", b="a", c="b"))
        sql.claim_one()
        clock.advance(seconds=31)
        sql.reclaim()
        assert sql.states(job) == {"a": "failed", "b": "canceled", "c": "canceled"}
        assert sql.status(job) == "failed"

    def test_upkeep_returns_when_to_call_it_again(self, sql: Contract, clock: Clock) -> None:
        sql.start(2)
        assert sql.upkeep()["next_seconds"] is None
        sql.claim_one(seconds=3)
        assert sql.upkeep()["next_seconds"] == 3
        task = sql.claim_one(seconds=90)
        sql.reschedule(task, 2)
        assert sql.upkeep()["next_seconds"] == 2

    def test_upkeep_runs_every_four_seconds_while_there_are_leases(self, sql: Contract) -> None:
        sql.start()
        sql.claim_one(seconds=40)
        assert sql.upkeep()["next_seconds"] == 4

    def test_after_an_outage_workers_get_two_seconds_to_extend_their_leases(
        self, sql: Contract, clock: Clock
    ) -> None:
        """R1.6/stale-leases: leases that expired during an outage are reclaimed only after their workers could extend them."""
        sql.start(2)
        assert sql.reclaim() == 0
        before, during = sql.claim_one(seconds=1), sql.claim_one(seconds=100)
        # Nothing ran for ten seconds, and both leases expired: one before that, one meanwhile.
        sql.execute("update penstock.upkeep_runs set ran_at = clock_timestamp() - interval '10 seconds'")
        sql.execute(
            "update penstock.leases set expires_at = clock_timestamp() - interval '11 seconds' where task_id = %s",
            before["id"],
        )
        sql.execute(
            "update penstock.leases set expires_at = clock_timestamp() - interval '5 seconds' where task_id = %s",
            during["id"],
        )
        assert sql.reclaim() == 1
        assert sql.reclaim() == 0
        assert sql.one("select task_id from penstock.leases") == during["id"]
        sql.execute("update penstock.upkeep_runs set away_until = clock_timestamp() - interval '2 seconds'")
        assert sql.reclaim() == 1

    def test_an_empty_claim_reclaims_expired_leases_if_nothing_runs_upkeep(
        self, sql: Contract, clock: Clock
    ) -> None:
        sql.start()
        sql.claim_one(seconds=1)
        clock.advance(seconds=10)
        assert sql.claim(1) == [], "the first empty claim requeues"
        assert len(sql.claim(1)) == 1

    def test_an_empty_claim_queues_due_retries_if_nothing_runs_upkeep(
        self, sql: Contract, clock: Clock
    ) -> None:
        sql.start()
        sql.fail(sql.claim_one(), retry_after_seconds=1)
        clock.advance(hours=1)
        assert sql.claim(1) == []
        assert len(sql.claim(1)) == 1

    def test_an_empty_claim_leaves_upkeep_to_the_process_that_runs_it(
        self, sql: Contract, clock: Clock
    ) -> None:
        sql.start()
        sql.claim_one(seconds=1)
        sql.upkeep()
        clock.advance(seconds=10)
        assert sql.claim(1) == [] and sql.claim(1) == []

    def test_one_of_many_servers_runs_upkeep(self, sql: Contract, clock: Clock) -> None:
        sql.start()
        sql.claim_one(seconds=1)
        sql.upkeep()
        clock.advance(seconds=10)
        assert sql.rows("upkeep_if_idle")[0]["reclaimed"] == 0, "another process ran it within two seconds"
        sql.execute("update penstock.upkeep_runs set done_at = clock_timestamp() - interval '3 seconds'")
        assert sql.rows("upkeep_if_idle")[0]["reclaimed"] == 1

    @pytest.mark.parametrize("caller", ["server", "claim"])
    def test_requeuing_expired_leases_does_not_delay_retries_that_are_due(
        self, sql: Contract, clock: Clock, caller: str
    ) -> None:
        """A call that only reclaimed leases is followed by one that does the rest."""
        sql.start(2)
        sql.fail(sql.claim_one(), retry_after_seconds=1)
        sql.claim_one(seconds=1)
        clock.advance(hours=1)
        for _ in range(2):
            if caller == "server":
                sql.rows("upkeep_if_idle")
            else:
                sql.claim(1, kinds=["other"])
        assert sql.one("select count(*) from penstock.ready") == 2


class TestUnknownTasks:
    def test_a_claim_whose_answer_was_lost_is_returned_without_an_attempt(self, sql: Contract) -> None:
        job = sql.start(3)
        known, unknown = sql.claim_one("w"), sql.claim_one("w")
        other = sql.claim_one("other")
        assert sql.value("return_unknown_tasks", worker_id="w", leases=[known["lease"]]) == 1
        leased = {row["task_id"] for row in sql.execute("select task_id from penstock.leases")}
        assert leased == {known["id"], other["id"]}
        again = sql.claim_one("w")
        assert (again["id"], again["attempt"]) == (unknown["id"], 1)
        assert sql.one("select count(*) from penstock.attempts where job_id = %s", job) == 0
