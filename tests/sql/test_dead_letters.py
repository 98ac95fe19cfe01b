"""Dead letters: the reason of a failure, its history, and the replay."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from psycopg.types.json import Jsonb

from penstock.postgres import db
from penstock.testing import Clock
from tests.sql.conftest import Contract, graph


def letters(sql: Contract) -> list[db.Row]:
    return sql.execute("select * from penstock.dead_letter_list order by id")


def bury(sql: Contract, code: str = "handler_error", **start: Any) -> uuid.UUID:
    """A job of one task that failed permanently."""
    job = sql.start(start.pop("tasks", 1), **start)
    task = sql.claim_one()
    assert task["job_id"] == job
    sql.fail(task, permanent=True, error_code=code)
    return job


class TestLetter:
    def test_a_dead_letter_names_the_task_and_the_reason(self, sql: Contract, clock: Clock) -> None:
        """R3.1/dead-letter: dead letter with reason."""
        job = bury(sql, "bad_input", tasks=["other"])
        (letter,) = letters(sql)
        assert letter == {
            "id": letter["id"],
            "tenant_id": sql.tenant,
            "job_id": job,
            "task_id": sql.tasks(job)[0]["id"],
            "kind": "other",
            "reason": "permanent",
            "error_code": "bad_input",
            "error_message": "boom",
            "attempts": 1,
            "died_at": clock.now(),
        }

    def test_each_reason(self, sql: Contract, clock: Clock) -> None:
        sql.value("define_kind", name="hasty", options=Jsonb({"retry_seconds": 1, "backoff_seconds": 0}))
        sql.start([{"kind": "work", "max_attempts": 1}])
        sql.fail(sql.claim_one())
        sql.start(["hasty"])
        sql.fail(sql.claim_one(), retry_after_seconds=5)
        bury(sql)
        sql.start()
        for _ in range(3):
            sql.claim_one()
            clock.advance(seconds=31)
            sql.reclaim()
        assert [letter["reason"] for letter in letters(sql)] == [
            "attempts",
            "time",
            "permanent",
            "worker_deaths",
        ]

    def test_keeps_the_full_error_history(self, sql: Contract, clock: Clock) -> None:
        """R3.1/dead-letter, R3.1/error-details: every attempt with its worker, times, code, message and details."""
        job = sql.start()
        sql.fail(sql.claim_one("w1"), "first", "w1", error_details=Jsonb({"n": 1}))
        sql.claim_one("w2")
        clock.advance(seconds=31)
        sql.reclaim()
        sql.fail(sql.claim_one("w3"), "second", "w3", permanent=True, error_code="fatal")
        history = sql.execute(
            "select attempt, worker_id, outcome, error_code, error_message, error_details from penstock.attempts "
            "where job_id = %s order by lease",
            job,
        )
        assert [tuple(row.values()) for row in history] == [
            (1, "w1", "failed", "handler_error", "first", {"n": 1}),
            (2, "w2", "lost", "worker_lost", "worker w2 stopped sending heartbeats", None),
            (3, "w3", "failed", "fatal", "second", None),
        ]
        assert letters(sql)[0]["attempts"] == 3

    def test_a_history_survives_the_replay(self, sql: Contract) -> None:
        job = bury(sql)
        sql.retry(job)
        sql.kill(sql.claim_one())
        assert sql.one("select count(*) from penstock.attempts") == 2
        (letter,) = letters(sql)
        assert letter["attempts"] == 1, "of its second life"


class TestReplay:
    def test_a_replay_resets_the_counters(self, sql: Contract) -> None:
        """R3.1/replay: a replay does not count earlier attempts and deaths."""
        job = sql.start([{"kind": "work", "max_attempts": 2}])
        for _ in range(2):
            sql.fail(sql.claim_one())
        assert sql.status(job) == "failed"
        assert sql.replay(job_id=str(job)) == 1
        assert sql.status(job) == "running"
        assert sql.job(job)["finished_at"] is None
        assert sql.progress(job)["failed"] == 0
        assert letters(sql) == []
        task = sql.claim_one()
        assert task["attempt"] == 1
        sql.fail(task)
        sql.complete(sql.claim_one())
        assert sql.status(job) == "completed"
        sql.check()

    @pytest.mark.parametrize(
        ("filter", "expected"),
        [
            ({"kind": "work"}, "ac"),
            ({"error_code": "E2"}, "bc"),
            ({"kind": "work", "error_code": "E2"}, "c"),
            ({"reason": "permanent"}, "abc"),
            ({"reason": "time"}, ""),
            ({"all": True}, "abc"),
            ({"all": True, "kind": "other"}, "b"),
            ({"all": True, "limit": 2}, "ab"),
            ({"kind": "nothing"}, ""),
        ],
        ids=repr,
    )
    def test_a_filter_selects_by_error_code(
        self, sql: Contract, filter: dict[str, Any], expected: str
    ) -> None:
        jobs = {
            "a": bury(sql, "E1"),
            "b": bury(sql, "E2", tasks=["other"]),
            "c": bury(sql, "E2"),
        }
        assert sql.replay(**filter) == len(expected)
        assert {name for name, job in jobs.items() if sql.status(job) == "running"} == set(expected)
        assert len(letters(sql)) == 3 - len(expected)
        sql.check()

    def test_by_id_and_by_job(self, sql: Contract) -> None:
        one, two, three = bury(sql), bury(sql), bury(sql)
        ids = [letter["id"] for letter in letters(sql)]
        assert sql.replay(ids=[ids[0], ids[2], 10**15]) == 2
        assert (sql.status(one), sql.status(two), sql.status(three)) == ("running", "failed", "running")
        assert sql.replay(job_id=str(two)) == 1
        assert sql.replay(ids=ids) == 0

    def test_by_tenant(self, sql: Contract) -> None:
        other = Contract(sql.connection, sql.value("create_tenant", name="other"))
        bury(sql)
        bury(other)
        assert sql.replay(tenant_id=str(other.tenant)) == 1
        assert [letter["tenant_id"] for letter in letters(sql)] == [sql.tenant]

    @pytest.mark.parametrize(
        "filter",
        [
            {},
            {"all": False},
            {"limit": 5},
            {"all": "yes"},
            {"colour": "red"},
            {"ids": 5},
            {"job_id": "x"},
            {"limit": "x", "all": True},
            {"limit": -1, "all": True},
        ],
        ids=repr,
    )
    def test_an_empty_filter_is_refused(self, sql: Contract, filter: dict[str, Any]) -> None:
        """A mistake must not replay everything."""
        bury(sql)
        with sql.refused(422):
            sql.replay(**filter)
        with sql.refused(422):
            sql.value("discard_dead_letters", filter=Jsonb(filter))
        assert len(letters(sql)) == 1

    @pytest.mark.parametrize("filter", [None, [], "all", 5])
    def test_a_filter_that_is_no_object_is_refused(self, sql: Contract, filter: Any) -> None:
        with sql.refused(422, "invalid_filter"):
            sql.value("replay_dead_letters", filter=Jsonb(filter))

    def test_a_replay_restores_tasks_canceled_with_it(self, sql: Contract) -> None:
        job = sql.start(graph(a="", b="a", c="b", d="a c", e=""))
        sql.kill(sql.claim_one())
        sql.drain()
        assert sql.progress(job)["canceled"] == 3
        assert sql.retry(job) == 1
        assert sql.states(job) == {
            "a": "queued",
            "b": "blocked",
            "c": "blocked",
            "d": "blocked",
            "e": "succeeded",
        }
        sql.check()
        assert sql.drain() == 4
        assert sql.status(job) == "completed"
        sql.check()

    def test_a_replay_leaves_tasks_with_another_failed_parent_canceled(self, sql: Contract) -> None:
        """A child stays canceled while another parent is failed, and so do its descendants."""
        job = sql.start(graph(a="", b="", both="a b", last="both", only="a"))
        for task in sql.claim(2):
            sql.kill(task, task["key"])
        first = letters(sql)[0]["id"]
        assert sql.replay(ids=[first]) == 1
        assert sql.states(job) == {
            "a": "queued",
            "b": "failed",
            "both": "canceled",
            "last": "canceled",
            "only": "blocked",
        }
        sql.check()
        sql.drain()
        assert sql.status(job) == "failed"
        assert sql.retry(job) == 1
        assert sql.states(job) == {
            "a": "succeeded",
            "b": "queued",
            "both": "blocked",
            "last": "blocked",
            "only": "succeeded",
        }
        sql.drain()
        assert sql.status(job) == "completed"
        sql.check()

    def test_outputs_from_before_the_replay_are_still_inputs(self, sql: Contract) -> None:
        job = sql.start(graph(a="", b="", c="a b"))
        a, b = sql.claim(2)
        sql.complete(a, "from a")
        sql.kill(b)
        sql.retry(job)
        sql.complete(sql.claim_one(), "from b")
        assert sql.claim_one()["input"] == {"after": {"a": "from a", "b": "from b"}}

    def test_may_fail_again(self, sql: Contract) -> None:
        job = sql.start(graph(a="", b="a", c="b"))
        for _ in range(3):
            sql.kill(sql.claim_one())
            assert sql.status(job) == "failed"
            assert sql.progress(job)["canceled"] == 2
            assert sql.retry(job) == 1
            sql.check()
        sql.drain()
        assert sql.status(job) == "completed"

    def test_a_child_that_runs_after_failure_waits_again(self, sql: Contract) -> None:
        """It still waits for another parent when the failed one is replayed: then it waits for both."""
        tasks = graph(a="", b="", c="a b")
        tasks[2]["after_failure"] = "run"
        job = sql.start(tasks)
        a, b = sql.claim(2)
        sql.kill(a)
        assert sql.retry(job) == 1
        sql.check()
        sql.complete(sql.claim_one(), "a's second")
        assert sql.claim(5) == []
        sql.complete(b)
        assert sql.claim_one()["input"] == {"after": {"a": "a's second", "b": None}}
        sql.check()

    def test_a_child_that_ran_after_failure_does_not_run_again(self, sql: Contract) -> None:
        tasks = graph(a="", c="a")
        tasks[1]["after_failure"] = "run"
        job = sql.start(tasks)
        sql.kill(sql.claim_one())
        sql.complete(sql.claim_one())
        assert sql.status(job) == "failed"
        sql.retry(job)
        sql.complete(sql.claim_one())
        assert sql.status(job) == "completed"
        assert sql.claim(5) == []
        sql.check()

    def test_a_released_child_that_waits_for_its_time_is_not_counted_below_zero(
        self, sql: Contract, clock: Clock
    ) -> None:
        tasks: list[dict[str, Any]] = graph(a="", c="a")
        tasks[1] |= {"after_failure": "run", "run_at": (clock.now().replace(year=2040)).isoformat()}
        job = sql.start(tasks)
        sql.kill(sql.claim_one())
        assert sql.retry(job) == 1
        sql.complete(sql.claim_one())
        assert sql.states(job) == {"a": "succeeded", "c": "queued"}
        sql.check()

    def test_a_replay_in_a_canceled_job_does_nothing(self, sql: Contract) -> None:
        job = sql.start(2)
        sql.kill(sql.claim_one())
        sql.cancel(job)
        assert sql.replay(all=True) == 0
        assert sql.status(job) == "canceled"

    def test_in_a_paused_job_waits_for_the_resume(self, sql: Contract) -> None:
        job = sql.start(2)
        sql.kill(sql.claim_one())
        sql.pause(job)
        assert sql.retry(job) == 1
        assert sql.status(job) == "paused"
        assert sql.claim(5) == []
        sql.resume(job)
        sql.do_chores()
        assert sql.drain() == 2
        assert sql.status(job) == "completed"

    def test_one_replay_covers_many_jobs(self, sql: Contract) -> None:
        jobs = [bury(sql, tasks=graph(a="", b="a")) for _ in range(20)]
        assert sql.replay(all=True) == 20
        sql.check()
        assert sql.drain() == 40
        assert {sql.status(job) for job in jobs} == {"completed"}

    def test_leaves_a_line_in_the_audit_log(self, sql: Contract) -> None:
        """R3.5/job-states"""
        job = bury(sql)
        sql.replay(all=True)
        assert [(line["action"], line["details"]) for line in sql.audit(job)[-2:]] == [
            ("job.running", {"from": "failed"}),
            ("job.retried", {"tasks": 1}),
        ]

    def test_a_partly_pruned_job_cannot_be_replayed(self, sql: Contract, clock: Clock) -> None:
        job = sql.start(graph(a="", b="a", c=""))
        sql.kill(sql.claim_one())
        sql.drain()
        clock.advance(days=91)
        assert sql.value("prune", limit=1) == 1
        assert sql.retry(job) == 0
        assert sql.status(job) == "failed"
        while sql.value("prune", limit=1):
            pass
        with sql.refused(404, "unknown_job"):
            sql.job(job)


class TestDiscard:
    def test_removes_the_letter_and_leaves_the_task_failed(self, sql: Contract) -> None:
        job = bury(sql)
        assert sql.value("discard_dead_letters", filter=Jsonb({"job_id": str(job)})) == 1
        assert letters(sql) == []
        assert sql.tasks(job)[0]["status"] == "failed"
        assert sql.status(job) == "failed"
        assert sql.retry(job) == 0
        assert sql.status(job) == "failed"
        sql.check()

    def test_leaves_a_line_in_the_audit_log(self, sql: Contract) -> None:
        """R3.5/job-states"""
        job = bury(sql)
        sql.value("discard_dead_letters", filter=Jsonb({"all": True}))
        line = sql.audit(job)[-1]
        assert (line["action"], line["actor"]) == ("dead_letter.discarded", "service:postgres")
        assert line["subject"] == f"task:{sql.tasks(job)[0]['id']}"

    def test_a_discard_affects_only_matching_letters(self, sql: Contract) -> None:
        bury(sql, "E1")
        bury(sql, "E2")
        assert sql.value("discard_dead_letters", filter=Jsonb({"error_code": "E1"})) == 1
        assert [letter["error_code"] for letter in letters(sql)] == ["E2"]
