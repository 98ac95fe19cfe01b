"""Tasks: graphs, outputs, adding to a running job, and every bad input."""

from __future__ import annotations

import json
import random
import uuid
from datetime import timedelta
from typing import Any

import pytest
from psycopg.types.json import Jsonb

from penstock.testing import Clock
from tests.sql.conftest import Contract, graph


def keys(tasks: list[Any]) -> list[str]:
    return [task["key"] for task in tasks]


class TestGraph:
    def test_a_task_starts_once_its_dependencies_have_succeeded(self, sql: Contract) -> None:
        """R1.3/order: order by creation alone would run a PDF before its text."""
        job = sql.start(graph(text="", pdf="text", audio="pdf"))
        assert sql.states(job) == {"text": "queued", "pdf": "blocked", "audio": "blocked"}
        for key in ("text", "pdf", "audio"):
            (task,) = sql.claim(5)
            assert task["key"] == key
            sql.complete(task)
        assert sql.status(job) == "completed"

    def test_a_diamond(self, sql: Contract) -> None:
        job = sql.start(graph(a="", b="a", c="a", d="b c"))
        sql.complete(sql.claim_one())
        b, c = sql.claim(5)
        assert {b["key"], c["key"]} == {"b", "c"}
        sql.complete(b)
        assert sql.claim(5) == []
        sql.complete(c)
        assert keys(sql.claim(5)) == ["d"]
        assert sql.task(b)["status"] == "succeeded"
        sql.check()
        assert sql.progress(job)["done"] == 3

    def test_outputs_arrive_under_their_keys(self, sql: Contract) -> None:
        """R1.3/outputs: a task receives the outputs of its dependencies under input.after.<key>."""
        tasks = graph(a="", b="", c="a b")
        tasks[2]["input"] = {"own": 1}
        sql.start(tasks)
        a, b = sql.claim(2)
        sql.complete(a, {"pages": [1, 2]})
        sql.complete(b)
        assert sql.claim_one()["input"] == {"own": 1, "after": {"a": {"pages": [1, 2]}, "b": None}}

    def test_outputs_arrive_again_with_each_attempt(self, sql: Contract) -> None:
        sql.start(graph(a="", b="a"))
        sql.complete(sql.claim_one(), "text")
        for _ in range(2):
            task = sql.claim_one()
            assert task["input"] == {"after": {"a": "text"}}
            sql.fail(task)
        task = sql.claim_one()
        assert task["input"] == {"after": {"a": "text"}}

    def test_only_direct_parents_count(self, sql: Contract) -> None:
        sql.start(graph(a="", b="a", c="b"))
        sql.complete(sql.claim_one(), 1)
        sql.complete(sql.claim_one(), 2)
        assert sql.claim_one()["input"] == {"after": {"b": 2}}

    def test_a_fan_in_of_a_thousand(self, sql: Contract) -> None:
        parents = [{"kind": "work", "key": f"p{n}"} for n in range(1000)]
        child = {"kind": "other", "key": "sum", "after": [f"p{n}" for n in range(1000)]}
        job = sql.start([*parents, child])
        for _ in range(10):
            tasks = sql.claim(100)
            sql.rows(
                "complete_tasks",
                worker_id="w1",
                task_ids=[task["id"] for task in tasks],
                leases=[task["lease"] for task in tasks],
                outputs=[Jsonb(int(task["key"][1:])) for task in tasks],
            )
        (task,) = sql.claim(5)
        assert task["input"]["after"] == {f"p{n}": n for n in range(1000)}
        sql.complete(task)
        assert sql.status(job) == "completed"

    def test_outputs_that_do_not_fit_together_are_left_out(self, sql: Contract) -> None:
        """Otherwise a claim of their dependent task would fail, and so the whole lane."""
        sql.value("set_setting", name="max_output_bytes", value=Jsonb(1000))
        names = [f"p{n}" for n in range(80)]
        sql.start(
            [
                *({"kind": "work", "key": name} for name in names),
                {"kind": "other", "key": "sum", "after": names},
            ]
        )
        tasks = sql.claim(80)
        assert not sql.rows(
            "complete_tasks",
            worker_id="w1",
            task_ids=[task["id"] for task in tasks],
            leases=[task["lease"] for task in tasks],
            outputs=[Jsonb("x" * 998)] * 80,
        )
        given = sql.claim_one()["input"]
        assert len(given["after"]) == 80
        assert sum(output is not None for output in given["after"].values()) == 64
        assert given["after_omitted"] == 16

    def test_a_fan_out_of_a_thousand(self, sql: Contract) -> None:
        children = [{"kind": "work", "key": f"c{n}", "after": ["root"]} for n in range(1000)]
        job = sql.start([{"kind": "work", "key": "root"}, *children])
        sql.complete(sql.claim_one())
        assert sql.drain() == 1000
        assert sql.status(job) == "completed"

    @pytest.mark.parametrize("shape", ["fan-in", "pairs"])
    def test_ending_tasks_reads_only_their_part_of_the_graph(self, sql: Contract, shape: str) -> None:
        """Otherwise the time of a large graph would grow with the square of its size."""
        names = [f"p{n}" for n in range(1500)]
        if shape == "fan-in":
            last = [{"kind": "other", "key": "sum", "after": names}]
        else:
            last = [{"kind": "other", "after": [name]} for name in names]
        sql.start([*({"kind": "work", "key": name} for name in names), *last])
        for _ in range(6):
            sql.complete_all(sql.claim(200, kinds=["work"]))
        tasks = sql.claim(50, kinds=["work"])
        query = """
            select relname, seq_tup_read + coalesce(idx_tup_fetch, 0) as rows from pg_stat_xact_user_tables
            where relname in ('results', 'parked', 'edges', 'tasks', 'phases')"""
        before = {row["relname"]: row["rows"] for row in sql.execute(query)}
        assert sql.complete_all(tasks) == []
        read = {row["relname"]: row["rows"] - before[row["relname"]] for row in sql.execute(query)}
        assert max(read.values()) <= 500, read

    def test_a_chain(self, sql: Contract) -> None:
        length = 200
        chain = [{"kind": "work", "key": f"t{n}", "after": [f"t{n - 1}"] if n else []} for n in range(length)]
        job = sql.start(chain)
        seen = []
        while tasks := sql.claim(10):
            seen += keys(tasks)
            sql.complete_all(tasks)
        assert seen == [f"t{n}" for n in range(length)]
        assert sql.status(job) == "completed"

    def test_the_order_of_the_list_does_not_matter(self, sql: Contract) -> None:
        shuffled = graph(d="b c", b="a", c="a", a="")
        job = sql.start(shuffled)
        order = []
        while tasks := sql.claim(1):
            order += keys(tasks)
            sql.complete_all(tasks)
        assert order[0] == "a"
        assert order[-1] == "d"
        assert sql.status(job) == "completed"

    def test_a_parent_named_twice_counts_once(self, sql: Contract) -> None:
        job = sql.start([{"kind": "work", "key": "a"}, {"kind": "work", "key": "b", "after": ["a", "a"]}])
        assert sql.drain() == 2
        assert sql.status(job) == "completed"

    def test_two_parents_in_one_batch(self, sql: Contract) -> None:
        job = sql.start(graph(a="", b="", c="a b"))
        sql.complete_all(sql.claim(2))
        assert sql.drain() == 1
        assert sql.status(job) == "completed"

    @pytest.mark.parametrize("seed", range(3))
    def test_random_graphs_run_in_order(self, sql: Contract, seed: int) -> None:
        chosen = random.Random(seed)
        after = {
            n: {chosen.randrange(n) for _ in range(chosen.randint(0, 3))} if n else set() for n in range(60)
        }
        tasks = [
            {"kind": chosen.choice(["work", "other"]), "key": str(n), "after": [str(p) for p in parents]}
            for n, parents in after.items()
        ]
        chosen.shuffle(tasks)
        job = sql.start(tasks)
        done: set[int] = set()
        while claimed := sql.claim(chosen.randint(1, 10)):
            for task in claimed:
                assert after[int(task["key"])] <= done
                assert set(task["input"].get("after", {})) == {str(p) for p in after[int(task["key"])]}
            sql.complete_all(claimed)
            done |= {int(task["key"]) for task in claimed}
        assert len(done) == 60
        assert sql.status(job) == "completed"
        sql.check()

    def test_a_scheduled_task_waits_for_its_time_and_its_dependencies(
        self, sql: Contract, clock: Clock
    ) -> None:
        at = (clock.now() + timedelta(hours=1)).isoformat()
        sql.start([{"kind": "work", "key": "a"}, {"kind": "work", "key": "b", "after": ["a"], "run_at": at}])
        sql.complete(sql.claim_one())
        sql.upkeep()
        assert sql.claim(5) == []
        clock.advance(hours=1)
        assert sql.upkeep()["promoted"] == 1
        assert keys(sql.claim(5)) == ["b"]

    def test_a_scheduled_task_whose_time_has_come_stays_blocked(self, sql: Contract, clock: Clock) -> None:
        at = (clock.now() + timedelta(hours=1)).isoformat()
        sql.start([{"kind": "work", "key": "a"}, {"kind": "work", "key": "b", "after": ["a"], "run_at": at}])
        task = sql.claim_one(seconds=86_400)
        clock.advance(hours=2)
        assert sql.upkeep()["promoted"] == 0
        sql.complete(task)
        assert keys(sql.claim(5)) == ["b"]


class TestFailedParent:
    def test_its_descendants_are_canceled_with_the_reason(self, sql: Contract) -> None:
        job = sql.start(graph(a="", b="a", c="b", d="c", e=""))
        sql.kill(sql.claim_one())
        assert sql.states(job) == {
            "a": "failed",
            "b": "canceled",
            "c": "canceled",
            "d": "canceled",
            "e": "queued",
        }
        for task in sql.tasks(job)[1:4]:
            assert task["error_code"] == "parent_failed"
            assert task["error_message"] == "a parent task did not succeed"
        sql.drain()
        assert sql.job(job)["status"] == "failed"
        progress = sql.progress(job)
        assert (progress["succeeded"], progress["failed"], progress["canceled"]) == (1, 1, 3)
        sql.check()

    def test_a_retry_that_succeeds_saves_them(self, sql: Contract) -> None:
        job = sql.start(graph(a="", b="a"))
        sql.fail(sql.claim_one())
        assert sql.states(job)["b"] == "blocked"
        assert sql.drain() == 2

    def test_a_child_is_canceled_though_its_other_parent_still_runs(self, sql: Contract) -> None:
        job = sql.start(graph(a="", b="", c="a b"))
        a, b = sql.claim(2)
        sql.kill(a)
        assert sql.states(job)["c"] == "canceled"
        sql.complete(b)
        assert sql.status(job) == "failed"
        sql.check()

    def test_after_failure_runs_a_child_of_failed_parents(self, sql: Contract) -> None:
        """after_failure: run — a clean-up, or a summary of what there is."""
        tasks = graph(a="", b="", report="a b")
        tasks[2]["after_failure"] = "run"
        job = sql.start(tasks)
        a, b = sql.claim(2)
        sql.complete(a, "fine")
        sql.kill(b)
        report = sql.claim_one()
        assert report["input"] == {"after": {"a": "fine", "b": None}}
        sql.complete(report)
        assert sql.status(job) == "failed"
        sql.check()

    def test_after_failure_runs_a_child_of_a_canceled_parent(self, sql: Contract) -> None:
        tasks = graph(a="", b="a", c="b", last="c")
        tasks[3]["after_failure"] = "run"
        job = sql.start(tasks)
        sql.kill(sql.claim_one())
        assert keys(sql.claim(5)) == ["last"]
        assert sql.states(job)["c"] == "canceled"

    def test_both_parents_fail(self, sql: Contract) -> None:
        job = sql.start(graph(a="", b="", c="a b", d="c"))
        for task in sql.claim(2):
            sql.kill(task)
        assert sql.progress(job)["canceled"] == 2
        assert sql.status(job) == "failed"
        sql.check()

    def test_both_parents_fail_in_one_batch(self, sql: Contract) -> None:
        job = sql.start(graph(a="", b="", c="a b", d="c"))
        tasks = sql.claim(2)
        sql.rows(
            "fail_tasks",
            worker_id="w1",
            task_ids=[task["id"] for task in tasks],
            leases=[task["lease"] for task in tasks],
            errors=[Jsonb({"permanent": True})] * 2,
        )
        assert sql.progress(job)["canceled"] == 2
        assert sql.status(job) == "failed"
        sql.check()

    def test_a_deep_chain_is_canceled_in_one_call(self, sql: Contract) -> None:
        chain = [{"kind": "work", "key": f"t{n}", "after": [f"t{n - 1}"] if n else []} for n in range(500)]
        job = sql.start(chain)
        sql.kill(sql.claim_one())
        assert sql.progress(job)["canceled"] == 499
        assert sql.status(job) == "failed"


class TestAdd:
    def test_adds_to_a_running_job(self, sql: Contract) -> None:
        """A running task may add tasks to its job, with its lease."""
        job = sql.start(graph(a=""))
        task = sql.claim_one()
        added = sql.add(
            job,
            [{"kind": "work", "key": "b", "after": ["a"]}, {"kind": "other", "input": {"n": 1}}],
            task_id=task["id"],
            worker_id="w1",
            lease=task["lease"],
        )
        assert added == [row["id"] for row in sql.tasks(job)[1:]]
        assert sql.progress(job)["total"] == 3
        sql.complete(task, "out")
        claimed = {row["kind"]: row for row in sql.claim(5)}
        assert claimed["work"]["input"] == {"after": {"a": "out"}}
        sql.complete_all(list(claimed.values()))
        assert sql.status(job) == "completed"

    def test_the_last_task_may_add_another_before_it_ends(self, sql: Contract) -> None:
        job = sql.start()
        for _ in range(5):
            task = sql.claim_one()
            sql.add(job, 1, task_id=task["id"], worker_id="w1", lease=task["lease"])
            sql.complete(task)
            assert sql.status(job) == "running"
        sql.complete(sql.claim_one())
        assert sql.status(job) == "completed"

    @pytest.mark.parametrize(
        "parent", ["queued", "parked", "running", "succeeded", "failed", "canceled", "blocked"]
    )
    def test_after_a_task_in_any_state(self, sql: Contract, clock: Clock, parent: str) -> None:
        """The new task waits for parents that have not ended."""
        job = sql.start(graph(root="", p="root", q="root", keep=""))
        root, keep = sql.claim(2)
        if parent != "blocked":
            sql.kill(root) if parent == "canceled" else sql.complete(root)
        if parent in ("parked", "running", "succeeded", "failed"):
            task, other = sql.claim(2)
            assert task["key"] == "p"
            if parent == "parked":
                sql.reschedule(task, 60)
            elif parent == "succeeded":
                sql.complete(task, "p's")
            elif parent == "failed":
                sql.kill(task)
            sql.reschedule(other)
        sql.add(
            job,
            [
                {"kind": "work", "key": "new", "after": ["p"]},
                {"kind": "work", "key": "newer", "after": ["new"]},
            ],
        )
        expected = {"succeeded": "queued", "failed": "canceled", "canceled": "canceled"}.get(
            parent, "blocked"
        )
        assert sql.states(job)["new"] == expected
        assert sql.states(job)["newer"] == ("canceled" if expected == "canceled" else "blocked")
        sql.check()
        if parent == "blocked":
            sql.complete(root)
        clock.advance(seconds=61)
        if parent == "running":
            sql.reclaim()
        while sql.upkeep()["reclaimed"]:
            pass
        sql.complete_all([keep]) if parent != "running" else None
        sql.drain()
        assert sql.states(job)["newer"] == ("canceled" if expected == "canceled" else "succeeded")
        assert sql.status(job) in ("completed", "failed")
        sql.check()

    def test_adding_a_child_does_not_release_waiting_tasks(self, sql: Contract) -> None:
        """A new child of an ended parent does not count that parent a second time for its older children."""
        job = sql.start(graph(a="", b="", c="a b"))
        a, b = sql.claim(2)
        sql.complete(a)
        sql.add(job, [{"kind": "work", "key": "d", "after": ["a"]}])
        assert keys(sql.claim(5)) == ["d"]
        assert sql.states(job)["c"] == "blocked"
        sql.complete(b)
        assert keys(sql.claim(5)) == ["c"]
        sql.check()

    def test_a_new_child_of_a_failed_parent_may_run(self, sql: Contract) -> None:
        job = sql.start(graph(a="", keep=""))
        task = sql.claim_one()
        sql.kill(task)
        sql.add(job, [{"kind": "work", "key": "b", "after": ["a"], "after_failure": "run"}])
        assert set(keys(sql.claim(5))) == {"b", "keep"}

    def test_mixes_old_and_new_parents(self, sql: Contract) -> None:
        job = sql.start(graph(a="", b="", keep=""))
        a = sql.claim_one()
        sql.complete(a, 1)
        sql.add(job, graph(n="", m="n a b"))
        sql.check()
        seen: list[str] = []
        while tasks := sql.claim(1):
            seen += keys(tasks)
            sql.complete_all(tasks)
        assert seen[-1] == "m"
        assert sql.status(job) == "completed"

    @pytest.mark.parametrize("state", ["completed", "failed", "canceled"])
    def test_adding_to_an_ended_job_is_refused(self, sql: Contract, state: str) -> None:
        job = sql.start(graph(a=""))
        task = sql.claim_one()
        {"completed": sql.complete, "failed": sql.kill, "canceled": lambda _: sql.cancel(job)}[state](task)
        before = sql.snapshot()
        with sql.refused(409, "job_ended") as refusal:
            sql.add(job, [{"kind": "work", "after": ["a"]}])
        assert refusal.details["status"] == state
        assert sql.snapshot() == before

    def test_a_key_makes_one_task(self, sql: Contract) -> None:
        """R0.1/row-once: a row makes at most one task in a job."""
        rows = [{"kind": "work", "idempotency_key": f"row:{n}"} for n in range(3)]
        job = sql.start(rows)
        assert sql.progress(job)["total"] == 3
        assert sql.add(job, rows) == []
        more = [{"kind": "work", "idempotency_key": f"row:{n}", "input": {"n": n}} for n in (2, 3, 3, 4)]
        added = sql.add(job, [*more, {"kind": "work"}])
        assert len(added) == 3
        inputs = [row["input"] for row in sql.tasks(job)]
        assert inputs == [{}, {}, {}, {"n": 3}, {"n": 4}, {}]
        assert sql.progress(job)["total"] == 6

    def test_a_repeated_row_in_one_list_is_one_task(self, sql: Contract) -> None:
        job = sql.start([{"kind": "work", "idempotency_key": "same", "input": {"n": n}} for n in range(3)])
        assert [row["input"] for row in sql.tasks(job)] == [{"n": 0}]

    def test_a_task_key_belongs_to_its_job(self, sql: Contract) -> None:
        spec = [{"kind": "work", "key": "a", "idempotency_key": "k"}]
        one, two = sql.start(spec), sql.start(spec)
        assert sql.progress(one)["total"] == sql.progress(two)["total"] == 1

    def test_an_unknown_job(self, sql: Contract) -> None:
        with sql.refused(404, "unknown_job"):
            sql.add(uuid.uuid4(), 1)


# task, status, code, field
BAD: list[tuple[Any, int, str, str | None]] = [
    ({}, 422, "unknown_kind", "tasks[1].kind"),
    ({"kind": None}, 422, "unknown_kind", "tasks[1].kind"),
    ({"kind": "nope"}, 422, "unknown_kind", "tasks[1].kind"),
    ({"kind": "Work"}, 422, "unknown_kind", "tasks[1].kind"),
    ({"kind": "x" * 100_000}, 422, "unknown_kind", "tasks[1].kind"),
    ({"kind": 7}, 422, "unknown_kind", "tasks[1].kind"),
    ({"kind": ["work"]}, 422, "unknown_kind", "tasks[1].kind"),
    ({"kind": "work", "colour": 1}, 422, "unknown_field", "tasks[1].colour"),
    ({"kind": "work", "Input": {}}, 422, "unknown_field", "tasks[1].Input"),
    (5, 422, "invalid_task", "tasks[1]"),
    ([], 422, "invalid_task", "tasks[1]"),
    (None, 422, "invalid_task", "tasks[1]"),
    ({"kind": "work", "input": [1]}, 422, "invalid_input", "tasks[1].input"),
    ({"kind": "work", "input": "text"}, 422, "invalid_input", "tasks[1].input"),
    ({"kind": "work", "input": {"x": "y" * 10_000_000}}, 413, "too_large", "tasks[1].input"),
    ({"kind": "work", "key": ""}, 422, "invalid_key", "tasks[1].key"),
    ({"kind": "work", "key": "k" * 256}, 422, "invalid_key", "tasks[1].key"),
    ({"kind": "work", "idempotency_key": ""}, 422, "invalid_key", "tasks[1].idempotency_key"),
    ({"kind": "work", "provider": ""}, 422, "invalid_provider", "tasks[1].provider"),
    ({"kind": "work", "provider": "p" * 201}, 422, "invalid_provider", "tasks[1].provider"),
    ({"kind": "work", "phase": ""}, 422, "invalid_phase", "tasks[1].phase"),
    ({"kind": "work", "phase": "p" * 201}, 422, "invalid_phase", "tasks[1].phase"),
    ({"kind": "work", "priority": 11}, 422, "invalid_priority", "tasks[1].priority"),
    ({"kind": "work", "priority": -1}, 422, "invalid_priority", "tasks[1].priority"),
    ({"kind": "work", "priority": "high"}, 422, "invalid_task", "tasks[1].priority"),
    ({"kind": "work", "priority": 10**30}, 422, "invalid_task", "tasks[1].priority"),
    ({"kind": "work", "priority": 1.5}, 422, "invalid_task", "tasks[1].priority"),
    ({"kind": "work", "priority": {}}, 422, "invalid_task", "tasks[1].priority"),
    ({"kind": "work", "max_attempts": 0}, 422, "invalid_attempts", "tasks[1].max_attempts"),
    ({"kind": "work", "max_attempts": 101}, 422, "invalid_attempts", "tasks[1].max_attempts"),
    ({"kind": "work", "max_attempts": "many"}, 422, "invalid_task", "tasks[1].max_attempts"),
    ({"kind": "work", "timeout_seconds": 0}, 422, "invalid_timeout", "tasks[1].timeout_seconds"),
    ({"kind": "work", "timeout_seconds": -1}, 422, "invalid_timeout", "tasks[1].timeout_seconds"),
    ({"kind": "work", "timeout_seconds": "NaN"}, 422, "invalid_timeout", "tasks[1].timeout_seconds"),
    ({"kind": "work", "timeout_seconds": "Infinity"}, 422, "invalid_timeout", "tasks[1].timeout_seconds"),
    ({"kind": "work", "timeout_seconds": 1e300}, 422, "invalid_task", "tasks[1].timeout_seconds"),
    ({"kind": "work", "run_at": "soon"}, 422, "invalid_task", "tasks[1].run_at"),
    ({"kind": "work", "run_at": "infinity"}, 422, "invalid_run_at", "tasks[1].run_at"),
    ({"kind": "work", "after_failure": "maybe"}, 422, "invalid_task", "tasks[1].after_failure"),
    ({"kind": "work", "units": [1]}, 422, "invalid_units", "tasks[1].units"),
    ({"kind": "work", "units": {"x": "y" * 20_000}}, 422, "invalid_units", "tasks[1].units"),
    ({"kind": "work", "after": "first"}, 422, "invalid_task", "tasks[1].after"),
    ({"kind": "work", "after": {"first": 1}}, 422, "invalid_task", "tasks[1].after"),
    ({"kind": "work", "after": 5}, 422, "invalid_task", "tasks[1].after"),
    ({"kind": "work", "after": ["nobody"]}, 422, "unknown_parent", "tasks.after"),
    ({"kind": "work", "after": ["x" * 100_000]}, 422, "unknown_parent", "tasks.after"),
    ({"kind": "work", "after": [None]}, 422, "unknown_parent", "tasks.after"),
    ({"kind": "work", "key": "first"}, 409, "duplicate_key", "tasks.key"),
    ({"kind": "work", "key": "self", "after": ["self"]}, 422, "cycle", "tasks[1].after"),
    ({"kind": "work", "after": ["first"], "input": {"after": {}}}, 422, "invalid_input", "tasks[1].input"),
]


def shown(value: Any) -> str | None:
    return json.dumps(value)[:60] if not isinstance(value, int | str) else None


class TestBadInput:
    """R1.3/refused: refused with a stable code and the field's name; nothing is stored."""

    @pytest.mark.slow
    @pytest.mark.parametrize(("task", "status", "code", "field"), BAD, ids=shown)
    def test_is_refused(self, sql: Contract, task: Any, status: int, code: str, field: str) -> None:
        before = sql.snapshot()
        with sql.refused(status, code, field=field):
            sql.start([{"kind": "work", "key": "first"}, task, {"kind": "other"}])
        assert sql.snapshot() == before

    @pytest.mark.parametrize(("task", "status", "code", "field"), BAD[::5], ids=shown)
    def test_is_refused_for_a_running_job_too(
        self, sql: Contract, task: Any, status: int, code: str, field: str
    ) -> None:
        job = sql.start(graph(other_key=""))
        before = sql.snapshot()
        with sql.refused(status, code, field=field):
            sql.add(job, [{"kind": "work", "key": "first"}, task])
        assert sql.snapshot() == before

    def test_a_cycle_is_refused(self, sql: Contract) -> None:
        with sql.refused(422, "cycle", field="tasks[1].after"):
            sql.start(graph(root="", a="c root", b="a", c="b", leaf="c"))
        assert sql.one("select count(*) from penstock.jobs") == 0

    def test_an_existing_key_is_refused(self, sql: Contract) -> None:
        job = sql.start(graph(a=""))
        with sql.refused(409, "duplicate_key") as refusal:
            sql.add(job, graph(a=""))
        assert refusal.details["key"] == "a"

    def test_an_empty_list_is_refused(self, sql: Contract) -> None:
        job = sql.start()
        for nothing in ([], {}, "x", None):
            with sql.refused(422, "no_tasks", field="tasks"):
                sql.add(job, nothing)

    def test_too_many_at_once_are_refused(self, sql: Contract) -> None:
        sql.value("set_setting", name="max_tasks_per_call", value=Jsonb(10))
        sql.start(10)
        with sql.refused(413, "too_many_tasks", field="tasks"):
            sql.start(11)

    def test_too_many_phases_are_refused(self, sql: Contract) -> None:
        with sql.refused(422, "too_many_phases"):
            sql.start([{"kind": "work", "phase": f"p{n}"} for n in range(1001)])

    @pytest.mark.parametrize(
        "text",
        ['{"x": "\\u0000"}', '{"\\u0000": 1}', '{"x": "\\ud800"}', '{"x": "\\udc00\\ud800"}'],
        ids=["nul", "nul in a key", "half a surrogate", "surrogates reversed"],
    )
    def test_text_that_cannot_be_stored_is_refused(self, sql: Contract, text: str) -> None:
        """NUL and lone surrogates: PostgreSQL's own type refuses them, with SQLSTATE 22P05 or 22P02."""
        job = sql.start()
        before = sql.snapshot()
        tasks = f'[{{"kind": "work", "input": {text}}}]'
        sqlstate = "22P05" if "0000" in text else "22P02"
        with sql.refused(sqlstate):
            sql.execute("select penstock.add_tasks(%s, %s::jsonb)", job, tasks)
        assert sql.snapshot() == before

    @pytest.mark.parametrize(
        "value",
        [
            "1e100000",
            "-1e400",
            "[[1e309]]",
            "[" * 65 + "]" * 65,
            '{"a":' * 70 + "1" + "}" * 70,
            "[" * 5000 + "]" * 5000,
        ],
        ids=["1e100000", "-1e400", "1e309", "65 deep", "70 deep", "5000 deep"],
    )
    def test_documents_that_clients_cannot_parse_are_refused(self, sql: Contract, value: str) -> None:
        """Huge numbers and deep nesting: a few bytes that other languages cannot parse."""
        before = sql.snapshot()
        tasks = f'[{{"kind": "work"}}, {{"kind": "work", "input": {{"x": {value}}}}}]'
        options = Jsonb({"tenant_id": str(sql.tenant)})
        with sql.refused(422, "unreadable", field="tasks[1].input"):
            sql.execute("select penstock.start_job('x', '{}', %s::jsonb, %s)", tasks, options)
        with sql.refused(422, "unreadable", field="params"):
            sql.execute(
                "select penstock.start_job('x', %s::jsonb, '[{\"kind\": \"work\"}]', %s)",
                f'{{"x": {value}}}',
                options,
            )
        assert sql.snapshot() == before

    @pytest.mark.parametrize("value", ["1e308", "-1e308", "1e-400", "0.1", "[" * 62 + "]" * 62, str(2**64)])
    def test_documents_that_clients_can_parse_are_stored(self, sql: Contract, value: str) -> None:
        tasks = f'[{{"kind": "work", "input": {{"x": {value}, "y": "{"." * 200}"}}}}]'
        options = Jsonb({"tenant_id": str(sql.tenant)})
        job = sql.one("select penstock.start_job('x', '{}', %s::jsonb, %s)", tasks, options)
        kept = sql.one("select (input -> 'x')::text from penstock.tasks where job_id = %s", job)
        assert sql.one("select %s::jsonb = %s::jsonb", kept, value)

    def test_unusual_text_is_stored_unchanged(self, sql: Contract) -> None:
        text = "é\u200b\U0001f600'\"\\\n\t--;$$ %s {}"
        name = text.replace("\n", "").replace("\t", "")
        job = sql.start(
            [{"kind": "work", "key": name, "input": {text: text}}], type=name, params={text: text}
        )
        (task,) = sql.claim(1)
        assert (task["key"], task["input"]) == (name, {text: text})
        assert sql.job(job)["params"] == {text: text}
        sql.kill(task, text)
        assert sql.task(task)["error_message"] == text
