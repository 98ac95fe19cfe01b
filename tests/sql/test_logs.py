"""Log lines of tasks: only of attempts that the worker runs, bounded, redacted, emptied by week."""

from __future__ import annotations

from typing import Any

from psycopg.types.json import Jsonb

from penstock.testing import Clock

from .conftest import Contract


def line(task: dict[str, Any], message: str = "hello", number: int = 1, **more: Any) -> dict[str, Any]:
    return {"job_id": str(task["job_id"]), "task_id": task["id"], "lease": task["lease"], "number": number,
            "level": "info", "message": message, **more}  # fmt: skip


def store(sql: Contract, *lines: dict[str, Any], worker: str = "w1") -> int:
    return sql.value("store_task_logs", worker_id=worker, lines=Jsonb(list(lines)))


def stored(sql: Contract) -> list[dict[str, Any]]:
    return sql.execute("select * from penstock.task_logs order by id")


def test_lines_of_running_ended_and_failed_attempts_are_stored(sql: Contract) -> None:
    sql.start(3)
    running, ended, failed = sql.claim(3)
    sql.complete(ended)
    sql.fail(failed)
    assert store(sql, line(running, ago=2.5), line(ended), line(failed)) == 3
    found = stored(sql)
    assert [row["task_id"] for row in found] == [running["id"], ended["id"], failed["id"]]
    assert {row["tenant_id"] for row in found} == {sql.tenant} and {row["attempt"] for row in found} == {1}
    assert (found[1]["at"] - found[0]["at"]).total_seconds() == 2.5


def test_lines_of_others_are_skipped(sql: Contract) -> None:
    """A worker cannot write into the log of a task that it does not run."""
    sql.start(2)
    mine, others = sql.claim_one(), sql.claim_one("w2")
    stale = {**mine, "lease": mine["lease"] + 1}
    assert store(sql, line(others), line(stale), line({**mine, "job_id": sql.start(1)})) == 0
    assert store(sql, line(mine), worker="w2") == 0


def test_lines_are_bounded_and_redacted(sql: Contract) -> None:
    sql.start(1)
    task = sql.claim_one()
    assert store(sql, line(task, number=1001), line(task, number=0)) == 0
    fields = {"password": "hunter22", "size": 3}
    store(sql, line(task, "x" * 9000, level="loud"), line(task, "token=abcdef123456 sent", fields=fields),
          line(task, fields={"large": "y" * 5000}))  # fmt: skip
    long, secret, large = stored(sql)
    assert (len(long["message"]), long["level"]) == (2000, "info")
    assert secret["message"] == "token=[redacted] sent"
    assert secret["fields"] == {"password": "[redacted]", "size": 3}
    assert large["fields"] is None
    with sql.refused(422, "invalid_batch", field="p_lines"):
        store(sql, *[line(task)] * 1001)
    with sql.refused(422, "invalid_batch"):
        sql.value("store_task_logs", worker_id="w1", lines=Jsonb({}))


def test_lines_go_with_their_job(sql: Contract, clock: Clock) -> None:
    """Erasing a user ends the retention of the tenant's jobs, so their lines must not stay longer."""
    clock.freeze()
    jobs = [sql.start(1), sql.start(1)]
    tasks = sql.claim(2)
    assert store(sql, *[line(task, number=n) for task in tasks for n in range(1, 4)]) == 6
    for task in tasks:
        sql.complete(task)
    old = "update penstock.jobs set finished_at = penstock._now() - interval '1000 days' where id = %s"
    sql.execute(old, jobs[0])
    for _ in range(5):
        sql.value("prune", limit=2)
    assert sql.execute("select from penstock.jobs where id = %s", jobs[0]) == []
    assert [row["job_id"] for row in stored(sql)] == [jobs[1]] * 3


def test_old_weeks_are_emptied_and_newer_ones_stay(sql: Contract, clock: Clock) -> None:
    clock.freeze()
    for week in range(6):
        sql.start(1)
        task = sql.claim_one()
        assert store(sql, line(task, f"week {week}")) == 1
        sql.complete(task)
        sql.value("prune")
        kept = [row["message"] for row in stored(sql)]
        assert kept == [f"week {n}" for n in range(max(0, week - 1), week + 1)]
        clock.advance(days=7)
