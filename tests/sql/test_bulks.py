"""Bulk jobs in SQL: rows, confirmation, pauses after failures, and concurrent sessions."""

from __future__ import annotations

import uuid
from decimal import Decimal
from typing import Any

import pytest
from psycopg.types.json import Jsonb

from penstock.postgres import db
from penstock.testing import Clock
from tests.sql.conftest import Call, Contract, Sessions


def declare(sql: Contract, **values: Any) -> None:
    kinds = [{"name": f"sheet.{verb}", "backoff_seconds": 0} for verb in ("load", "apply", "undo")]
    sql.value("define_kinds", kinds=Jsonb(kinds))
    sql.value("define_job_type", name="sheet")
    sql.value("define_bulk_type", name="sheet", values=Jsonb(values))


def numbered(*data: Any, start: int = 2) -> Jsonb:
    """Rows like those of a file with a header; a string is a row's title."""
    return Jsonb([
        {"number": n, "data": {"title": each} if isinstance(each, str) else each} for n, each in enumerate(data, start)
    ])  # fmt: skip


def open_bulk(sql: Contract, *data: Any, source: Any = None, **options: Any) -> uuid.UUID:
    chosen = {"tenant_id": str(sql.tenant), **options}
    (opened,) = sql.rows(
        "open_bulk", type="sheet", source=Jsonb(source or {"name": "ideas.csv"}), options=Jsonb(chosen)
    )
    if opened["is_new"]:
        add(sql, opened["job_id"], *data)
    return opened["job_id"]


def add(sql: Contract, job: uuid.UUID, *data: Any, start: int = 2, load: bool = True) -> dict[str, int]:
    return sql.value("add_bulk_rows", job_id=job, rows=numbered(*data, start=start), load=load)


def by(task: db.Row) -> dict[str, Any]:
    return {"task_id": task["id"], "worker_id": "w1", "lease": task["lease"]}


def load(sql: Contract, task: db.Row | None = None, size: int = 100, **spec: Any) -> list[int]:
    """Acts as the loader: adds a task for each taken row, and a load task for the rest. Returns the rows."""
    task = task or sql.claim_one(kinds=["sheet.load"])
    taken = sql.rows("take_bulk_rows", **by(task), max=size + 1)
    rows = taken[:size]
    specs: list[dict[str, Any]] = [{"kind": "work", "input": row["data"], **spec} for row in rows]
    more = [{"kind": "sheet.load"}] if len(taken) > size else []
    ids: list[Any] = sql.add(task["job_id"], specs + more, **by(task)) if specs else []
    marks = [
        {"number": row["number"], "first_id": id, "result_id": id, "last_id": id}
        for row, id in zip(rows, ids, strict=False)
    ]
    if marks:
        sql.value("mark_bulk_rows", **by(task), rows=Jsonb(marks), next_id=ids[-1] if more else None)
    sql.complete(task)
    return [row["number"] for row in rows]


def states(sql: Contract, job: uuid.UUID) -> dict[int, str]:
    found = sql.execute(
        "select number, state from penstock.bulk_row_list where job_id = %s order by number", job
    )
    return {row["number"]: row["state"] for row in found}


def test_forecast_covers_rows_that_wait_for_confirmation(sql: Contract) -> None:
    """R2.7/preview: two of ten rows are loaded; the forecast includes the other eight."""
    declare(sql)
    sql.value("set_provider", name="test/model", values=Jsonb({}))
    sql.value("set_price", provider="test/model", meter="requests", amount=Decimal("0.25"))
    job = open_bulk(sql, *(f"row {n}" for n in range(10)), preview=True)
    before = sql.value("forecast", job_id=job)
    assert before["cost"]["expected"] == 0
    load(sql, size=2, provider="test/model")
    found = sql.value("forecast", job_id=job)
    assert found["units"]["requests"] == 10
    assert (found["cost"]["expected"], found["cost"]["high"]) == (Decimal("2.5"), Decimal("2.5"))
    for task in sql.claim(10, kinds=["work"]):
        sql.complete(task)
    assert sql.value("forecast", job_id=job)["cost"]["expected"] == 2
    load(sql, provider="test/model")
    assert sql.value("forecast", job_id=job)["cost"]["expected"] == 2


class TestRows:
    def test_a_repeated_row_is_taken_once(self, sql: Contract) -> None:
        """R0.1/row-once, R0.1/bad-rows: a known number is skipped; a second row with the same key is refused with a reason."""
        declare(sql, key=["title"])
        job = open_bulk(sql, "a", "b")
        assert add(sql, job, "a", "b", "c") == {"added": 1, "refused": 0, "known": 2, "moved": 0}
        assert add(sql, job, "x", "b") == {"added": 0, "refused": 0, "known": 2, "moved": 1}
        assert add(sql, job, "c", {"title": ""}, start=5)["refused"] == 2
        assert load(sql) == [2, 3, 4]
        rows = sql.execute(
            "select * from penstock.bulk_row_list where job_id = %s and state = 'refused' order by number",
            job,
        )
        assert [row["error_code"] for row in rows] == ["duplicate_key", "no_key"]
        assert rows[0]["error_message"] == "row 4 has the same key"
        sql.drain()
        assert set(states(sql, job).values()) == {"succeeded", "refused"}
        assert sql.status(job) == "completed"
        bulk = sql.value("get_bulk", job_id=job)
        assert bulk["rows"] == {"total": 5, "loaded": 3, "refused": 2, "skipped": 0, "waiting": 0}
        sql.check()

    def test_a_refused_row_is_taken_again(self, sql: Contract) -> None:
        """A person corrects the sheet, and a worker reads it again."""
        declare(sql, key=["title"])
        job = open_bulk(sql, "a", "a")
        assert add(sql, job, "a", "b") == {"added": 0, "refused": 0, "known": 1, "moved": 0}
        assert load(sql) == [2, 3]

    def test_a_row_that_cannot_be_stored_is_refused(self, sql: Contract) -> None:
        declare(sql)
        deep: Any = 1
        for _ in range(70):
            deep = [deep]
        job = open_bulk(sql, "x" * 300_000, {"deep": deep})
        rows = sql.execute(
            "select problem, data from penstock.bulk_rows where job_id = %s order by number", job
        )
        assert [(row["problem"]["code"], row["data"]) for row in rows] == [
            ("too_large", {}),
            ("unreadable", {}),
        ]

    @pytest.mark.parametrize(
        "row",
        [1, {}, {"number": 1}, {"number": 1.5, "data": {}}, {"number": -1, "data": {}}, {"number": 1, "data": []},
         {"number": 1, "data": {}, "problem": 1}, {"number": 1, "data": {}, "more": 1}],
    )  # fmt: skip
    def test_bad_input(self, sql: Contract, row: Any) -> None:
        declare(sql)
        job = open_bulk(sql, "a")
        with sql.refused(422, "invalid_rows", field="rows[1]"):
            sql.value("add_bulk_rows", job_id=job, rows=Jsonb([{"number": 9, "data": {}}, row]))

    def test_a_job_without_rows_ends(self, sql: Contract) -> None:
        declare(sql)
        job = open_bulk(sql)
        assert load(sql) == []
        assert sql.status(job) == "completed"
        with sql.refused(409, "job_ended"):
            add(sql, job, "late")
        with sql.refused(404, "unknown_bulk"):
            add(sql, sql.start(), "no bulk job")
        with sql.refused(422, "unknown_bulk_type"):
            sql.rows("open_bulk", type="report")

    def test_one_key_one_job(self, sql: Contract) -> None:
        """R0.1/idempotent: starting twice with one idempotency key gives one job."""
        declare(sql)
        first = open_bulk(sql, "a", idempotency_key="k")
        assert open_bulk(sql, "b", idempotency_key="k") == first
        with sql.refused(409, "idempotency_key_reused"):
            open_bulk(sql, idempotency_key="k", source={"name": "other.csv"})
        assert len(states(sql, first)) == 1

    def test_loaded_in_parts_by_one_loader_after_the_other(self, sql: Contract) -> None:
        declare(sql)
        job = open_bulk(sql, *"abcde")
        assert [load(sql, size=2) for _ in range(3)] == [[2, 3], [4, 5], [6]]
        # All are loaded: a new one needs a loader of its own.
        add(sql, job, "f", start=7)
        assert load(sql) == [7]

    def test_a_row_cannot_be_loaded_twice(self, sql: Contract) -> None:
        declare(sql)
        job = open_bulk(sql, "a")
        load(sql)
        add(sql, job, "b", start=3)
        task = sql.claim_one(kinds=["sheet.load"])
        mark = {"number": 2, "first_id": 1, "result_id": 1, "last_id": 1}
        with sql.refused(409, "row_taken"):
            sql.value("mark_bulk_rows", **by(task), rows=Jsonb([mark]))
        with sql.refused(410, "lease_lost"):
            sql.rows("take_bulk_rows", **by(task) | {"lease": task["lease"] + 1})

    def test_completed_rows_are_skipped_unless_they_were_undone(self, sql: Contract) -> None:
        """R2.7/skip-done: rows completed earlier, of the same source and key, are skipped."""
        declare(sql, key=["title"])
        first = open_bulk(sql, "a", "b", "c")
        load(sql)
        a, b, c = sql.claim(3, kinds=["work"])
        sql.kill(b)
        sql.value("record_changes", **by(c), changes=Jsonb([{"number": 4, "name": "tag", "after": 1}]))
        for task in (a, c):
            sql.complete(task)
        sql.value("undo_bulk", job_id=first)
        undo = sql.claim_one(kinds=["sheet.undo"])
        assert len(sql.rows("undo_changes", **by(undo))) == 1
        sql.complete(undo)
        other = open_bulk(sql, "a", source={"name": "other.csv"}, skip_done=True)
        assert load(sql) == [2]
        second = open_bulk(sql, *"abcd", skip_done=True)
        assert load(sql) == [3, 4, 5]
        assert states(sql, second)[2] == "skipped"
        assert states(sql, other)[2] == "queued"

    def test_an_exclusive_type_runs_one_job_per_tenant(self, sql: Contract) -> None:
        """R2.7/one-at-a-time: one such job runs per tenant, also when a failed one is retried."""
        declare(sql, is_exclusive=True)
        first = open_bulk(sql, "a")
        with sql.refused(409, "another_runs"):
            open_bulk(sql, "b")
        load(sql)
        sql.kill(sql.claim_one())
        second = open_bulk(sql, "b")
        with sql.refused(409, "another_runs") as refusal:
            sql.retry(first)
        assert refusal.details["job_id"] == str(second)
        sql.cancel(second)
        assert sql.retry(first) == 1

    def test_pruned_with_the_job(self, sql: Contract, clock: Clock) -> None:
        declare(sql)
        job = open_bulk(sql, "a")
        load(sql)
        task = sql.claim_one()
        sql.value("record_changes", **by(task), changes=Jsonb([{"number": 2, "name": "tag"}]))
        sql.complete(task)
        clock.advance(days=91)
        sql.value("prune")
        for table in ("bulks", "bulk_rows", "bulk_changes"):
            assert sql.one(f"select count(*) from penstock.{table} where job_id = %s", job) == 0

    def test_written_back_once_and_again_when_it_changes(self, sql: Contract) -> None:
        """R0.7/no-loss: only ended rows that were not written in this state."""
        declare(sql)
        job = open_bulk(sql, "a", "b", {"title": None})
        load(sql)
        first, second, _ = sql.claim(3)
        sql.complete(first, {"url": "/a"})
        sql.kill(second, "no")
        due = sql.rows("bulk_rows_to_write", job_id=job)
        assert [(row["number"], row["state"], row["output"], row["error_message"]) for row in due] == [
            (2, "succeeded", {"url": "/a"}, None), (3, "failed", None, "no"),
        ]  # fmt: skip
        marks: dict[str, Any] = {"numbers": [2, 3], "states": ["succeeded", "failed"]}
        assert sql.value("mark_rows_written", job_id=job, **marks) == 2
        assert sql.value("mark_rows_written", job_id=job, **marks) == 0
        assert sql.rows("bulk_rows_to_write", job_id=job) == []
        sql.retry(job)
        sql.drain()
        assert [(row["number"], row["state"]) for row in sql.rows("bulk_rows_to_write", job_id=job)] == [
            (3, "succeeded")
        ]


GATED = [{"kind": "work", "key": "a"}, {"kind": "work", "key": "b", "after": ["a"], "confirm": True},
         {"kind": "work", "key": "c", "confirm": True}]  # fmt: skip


class TestConfirmation:
    def test_confirming_releases_the_waiting_tasks(self, sql: Contract) -> None:
        """R2.7/confirm: gated tasks do not run before the confirmation, and the reason says so."""
        job = sql.start(GATED)
        sql.complete(sql.claim_one())
        assert sql.claim() == []
        assert sql.states(job) == {"a": "succeeded", "b": "queued", "c": "queued"}
        why = sql.value("explain_task", job_id=job, task_id=sql.tasks(job)[1]["id"])
        assert why["text"] == f"waiting: confirmation: `penstock bulk confirm {job}`"
        assert sql.value("confirm_job", job_id=job) == 2
        assert sql.value("confirm_job", job_id=job) == 0
        assert sql.drain() == 2
        assert [line["action"] for line in sql.audit(job)].count("job.confirmed") == 1
        with sql.refused(409, "job_ended"):
            sql.value("confirm_job", job_id=job)
        sql.check()

    def test_may_come_before_the_parents_end(self, sql: Contract) -> None:
        job = sql.start(GATED)
        assert sql.value("confirm_job", job_id=job) == 2
        assert [task["key"] for task in sql.claim(9)] == ["a", "c"]
        assert sql.states(job)["b"] == "blocked"

    def test_a_pause_and_a_confirmation_are_independent(self, sql: Contract) -> None:
        job = sql.start(GATED)
        sql.pause(job)
        sql.do_chores()
        sql.value("confirm_job", job_id=job)
        assert sql.claim(9) == []
        sql.resume(job)
        sql.do_chores()
        assert len(sql.claim(9)) == 2
        other = sql.start(GATED)
        sql.pause(other)
        sql.do_chores()
        sql.resume(other)
        sql.do_chores()
        assert [task["key"] for task in sql.claim(9) if task["job_id"] == other] == ["a"]
        sql.check()

    @pytest.mark.parametrize("is_confirmed", [True, False])
    def test_restored_tasks_wait_for_confirmation_again(self, sql: Contract, is_confirmed: bool) -> None:
        """A child that was canceled with its parent is gated again, unless the job was confirmed."""
        job = sql.start(GATED)
        sql.kill(sql.claim_one())
        if is_confirmed:
            sql.value("confirm_job", job_id=job)
        sql.retry(job)
        assert sql.drain() == (3 if is_confirmed else 1)
        sql.check()

    def test_later_tasks_wait_for_another(self, sql: Contract, clock: Clock) -> None:
        job = sql.start(GATED)
        sql.value("confirm_job", job_id=job)
        clock.advance(seconds=1)
        sql.add(job, [{"kind": "work", "key": "d", "confirm": True}])
        assert {task["key"] for task in sql.claim(9)} == {"a", "c"}
        assert sql.value("confirm_job", job_id=job) == 1

    def test_bad_input(self, sql: Contract) -> None:
        with sql.refused(422, "invalid_task", field="tasks[0].confirm"):
            sql.start([{"kind": "work", "confirm": "perhaps"}])
        with sql.refused(422, "invalid_task", field="tasks[0].confirm"):
            sql.start([{"kind": "work", "confirm": True, "run_at": "2030-01-01T00:00Z"}])
        with sql.refused(409, "nothing_to_confirm"):
            sql.value("confirm_job", job_id=sql.start())


class TestStopAfter:
    def test_a_number_of_failures_pauses_the_job(self, sql: Contract) -> None:
        """R2.7/failures: the job pauses with a reason; a resume resets the count, and so does a retry of the failures."""
        job = sql.start(9, stop_after=2)
        for _ in range(2):
            assert sql.status(job) in ("queued", "running")
            sql.kill(sql.claim_one())
        assert (sql.status(job), sql.job(job)["status_reason"]) == (
            "paused",
            "2 tasks failed; stop_after is 2",
        )
        sql.resume(job)
        sql.do_chores()
        sql.kill(sql.claim_one())
        assert sql.status(job) == "running"
        sql.kill(sql.claim_one())
        assert sql.status(job) == "paused"
        sql.resume(job)
        assert sql.retry(job) == 4
        sql.do_chores()
        sql.kill(sql.claim_one())
        assert sql.status(job) == "running"
        sql.kill(sql.claim_one())
        assert sql.status(job) == "paused"
        sql.check()

    def test_a_percentage_of_the_largest_phase_pauses_the_job(self, sql: Contract) -> None:
        job = sql.start([{"kind": "work"}] * 40 + [{"kind": "other"}] * 10, stop_after="5%")
        sql.kill(sql.claim_one(kinds=["other"]))
        assert sql.status(job) == "running"
        sql.kill(sql.claim_one())
        assert sql.status(job) == "paused"

    @pytest.mark.parametrize("value", ["0", "-1", "x", "5 %", "101%", 1.5, True])
    def test_bad_input(self, sql: Contract, value: Any) -> None:
        with sql.refused(422, "invalid_options", field="options.stop_after"):
            sql.start(1, stop_after=value)


def test_a_used_up_quota_pauses_the_job(sql: Contract) -> None:
    """R2.7/pause: a used-up quota pauses the job, and resume continues it."""
    sql.value("set_limit", tenant_id=sql.tenant, meter="pages", amount=2)
    job = sql.start([{"kind": "work", "units": {"pages": 1}}] * 4, on_limit="pause")
    assert len(sql.claim(9)) == 2
    sql.upkeep()
    assert sql.status(job) == "paused"
    assert sql.job(job)["status_reason"] == "quota: pages, 0 left of 2"
    sql.value("set_limit", tenant_id=sql.tenant, meter="pages", amount=3)
    sql.upkeep()
    assert sql.claim(9) == []
    sql.resume(job)
    sql.do_chores()
    assert len(sql.claim(9)) == 1
    sql.upkeep()
    assert sql.status(job) == "paused"
    sql.check()


class TestAtOnce:
    def test_two_loaders(self, sessions: Sessions) -> None:
        """A loader whose lease was reclaimed and its successor load each row once."""
        one, two = sessions.open(), sessions.open()
        declare(one)
        job = open_bulk(one, "a", "b")
        zombie = one.claim_one(kinds=["sheet.load"])
        one.execute("update penstock.leases set expires_at = '-infinity'")
        with one.connection.transaction(force_rollback=True):
            assert len(one.rows("take_bulk_rows", **by(zombie))) == 2
            assert two.reclaim() == 0
        assert two.reclaim() == 1
        assert load(two) == [2, 3]
        with one.refused(410):
            one.rows("take_bulk_rows", **by(zombie))
        two.drain()
        assert states(two, job) == {2: "succeeded", 3: "succeeded"}
        two.check()

    def test_rows_added_while_the_last_are_loaded_are_not_lost(self, sessions: Sessions) -> None:
        """add_bulk_rows waits for the loader's commit and then starts another load."""
        one, two = sessions.open(), sessions.open()
        declare(one)
        job = open_bulk(one, "a")
        task = one.claim_one(kinds=["sheet.load"])
        with one.connection.transaction():
            load(one, task)
            adding = Call(lambda: add(two, job, "b", start=3))
            sessions.wait_until_blocked(two, adding)
        adding.result()
        assert load(one) == [3]
        one.check()

    def test_rows_that_are_being_added_are_seen_by_the_loader(self, sessions: Sessions) -> None:
        one, two = sessions.open(), sessions.open()
        declare(one)
        job = open_bulk(one, "a")
        task = one.claim_one(kinds=["sheet.load"])
        with two.connection.transaction():
            add(two, job, "b", start=3)
            loading = Call(lambda: load(one, task))
            sessions.wait_until_blocked(one, loading)
        assert loading.result() == [2, 3]

    def test_load_and_cancel(self, sessions: Sessions) -> None:
        one, two = sessions.open(), sessions.open()
        declare(one)
        job = open_bulk(one, "a")
        task = one.claim_one(kinds=["sheet.load"])
        with one.connection.transaction():
            one.rows("take_bulk_rows", **by(task))
            assert two.cancel(job) == "canceled"
            with one.refused(409, "job_ended"):
                one.add(job, 1, **by(task))
        assert states(one, job) == {2: "canceled"}
        paused = open_bulk(one, "a")
        task = one.claim_one(kinds=["sheet.load"])
        two.pause(paused)
        assert load(one, task) == [2]
        assert one.claim(9) == []
        two.resume(paused)
        assert two.drain() == 1
        two.check()

    @pytest.mark.parametrize("is_confirmed", [True, False])
    def test_confirm_and_cancel(self, sessions: Sessions, is_confirmed: bool) -> None:
        one, two = sessions.open(), sessions.open()
        job = one.start(GATED)
        verbs = [lambda c: c.value("confirm_job", job_id=job), lambda c: c.cancel(job)]
        first, second = verbs if is_confirmed else reversed(verbs)
        with one.connection.transaction():
            first(one)
            call = Call(lambda: second(two))
            sessions.wait_until_blocked(two, call)
        if is_confirmed:
            assert call.result() == "canceled"
        else:
            with pytest.raises(Exception, match=r"already ended \(canceled\)"):
                call.result()
        one.do_chores()
        assert one.claim(9) == []
        one.check()

    def test_confirm_while_the_parent_ends(self, sessions: Sessions) -> None:
        """The child runs in either order."""
        one, two = sessions.open(), sessions.open()
        job = one.start(GATED[:2])
        task = one.claim_one()
        with one.connection.transaction():
            one.complete(task)
            call = Call(lambda: two.value("confirm_job", job_id=job))
            sessions.wait_until_blocked(two, call)
        assert call.result() == 1
        assert one.drain() == 1
        assert one.status(job) == "completed"

    def test_confirm_while_more_is_added(self, sessions: Sessions) -> None:
        one, two = sessions.open(), sessions.open()
        job = one.start(GATED)
        with one.connection.transaction():
            one.add(job, [{"kind": "work", "key": "d", "confirm": True}])
            call = Call(lambda: two.value("confirm_job", job_id=job))
            sessions.wait_until_blocked(two, call)
        assert call.result() == 3
        assert len(one.claim(9)) == 3

    def test_concurrent_undos_undo_each_change_once(self, sessions: Sessions) -> None:
        """R2.7/undo: each change is undone once; later changes stay."""
        one, two = sessions.open(), sessions.open()
        declare(one)
        job = open_bulk(one, "a", "b")
        load(one)
        first, second = one.claim(2)
        change = {"name": "tag", "before": None, "after": "x"}
        one.value("record_changes", **by(first), changes=Jsonb([{**change, "number": 2}]))
        with one.connection.transaction():
            one.value("record_changes", **by(second), changes=Jsonb([{**change, "number": 3}]))
            jobs = [two.value("undo_bulk", job_id=job) for _ in range(2)]
        tasks = two.claim(9, kinds=["sheet.undo"])
        assert {task["job_id"] for task in tasks} == set(jobs)
        assert [task["input"]["number"] for task in tasks] == [2, 2]
        with one.connection.transaction():
            assert len(one.rows("undo_changes", **by(tasks[0]))) == 1
            call = Call(lambda: two.rows("undo_changes", **by(tasks[1])))
            sessions.wait_until_blocked(two, call)
        assert call.result() == []
        left = one.execute("select row_number from penstock.bulk_changes where undone_at is null")
        assert [row["row_number"] for row in left] == [3]

    def test_the_second_start_of_an_exclusive_type_is_rejected(self, sessions: Sessions) -> None:
        one, two = sessions.open(), sessions.open()
        declare(one, is_exclusive=True)
        with one.connection.transaction():
            open_bulk(one, "a")
            call = Call(lambda: open_bulk(two, "b"))
            sessions.wait_until_blocked(two, call)
        with pytest.raises(Exception, match="only one may run at a time"):
            call.result()
