"""Streams of tasks: only of attempts that the worker holds, each chunk once, bounded, emptied by week."""

from __future__ import annotations

from typing import Any

import pytest
from psycopg.types.json import Jsonb

from penstock.testing import Clock

from .conftest import Contract


def chunk(task: dict[str, Any], number: int = 1, *parts: Any, **more: Any) -> dict[str, Any]:
    return {"job_id": str(task["job_id"]), "task_id": task["id"], "lease": task["lease"], "number": number,
            "sent": 0, "parts": list(parts) or ["hello"], **more}  # fmt: skip


def store(sql: Contract, *chunks: dict[str, Any], worker: str = "w1") -> int:
    return sql.value("store_task_chunks", worker_id=worker, chunks=Jsonb(list(chunks)))


def stored(sql: Contract) -> list[dict[str, Any]]:
    return sql.execute("select * from penstock.task_chunks order by task_id, lease, number")


def test_chunks_of_running_attempts_are_stored_once(sql: Contract) -> None:
    """A batch whose response was lost is sent again."""
    sql.start(2)
    one, two = sql.claim(2)
    batch = [chunk(one, 1, "a", {"tool": "search"}), chunk(one, 2, "b"), chunk(two)]
    assert store(sql, *batch) == 3
    assert store(sql, *batch, chunk(two, 2)) == 1
    found = stored(sql)
    assert [(row["task_id"], row["number"]) for row in found] == [
        (one["id"], 1), (one["id"], 2), (two["id"], 1), (two["id"], 2)]  # fmt: skip
    assert found[0]["parts"] == ["a", {"tool": "search"}]
    assert {row["tenant_id"] for row in found} == {sql.tenant} and {row["attempt"] for row in found} == {1}


def test_chunks_of_a_lost_lease_are_rejected_and_a_retry_begins_a_new_stream(sql: Contract) -> None:
    sql.start(1)
    first = sql.claim_one()
    assert store(sql, chunk(first)) == 1
    sql.fail(first)
    assert store(sql, chunk(first, 2)) == 0
    sql.execute("update penstock.parked set until = penstock._now()")
    sql.do_chores()
    second = sql.claim_one()
    assert store(sql, chunk(first, 3), chunk(second)) == 1
    assert [(row["lease"], row["attempt"]) for row in stored(sql)] == [
        (first["lease"], 1), (second["lease"], 2)]  # fmt: skip


def test_chunks_of_others_are_skipped(sql: Contract) -> None:
    """S91: a worker cannot write into the stream of a task that it does not run."""
    sql.start(2)
    mine, others = sql.claim_one(), sql.claim_one("w2")
    stale = {**mine, "lease": mine["lease"] + 1}
    assert store(sql, chunk(others), chunk(stale), chunk({**mine, "job_id": sql.start(1)})) == 0
    assert store(sql, chunk(mine), worker="w2") == 0
    assert stored(sql) == []


def test_streams_are_bounded(sql: Contract) -> None:
    """S91: a stream cannot fill the database."""
    sql.start(1)
    task = sql.claim_one()
    assert store(sql, chunk(task, 0), chunk(task, 10_001)) == 0
    assert store(sql, chunk(task, 1, sent=262_145), chunk(task, 2, "x" * 70_000)) == 0
    assert store(sql, chunk(task, 3, sent=262_144), {**chunk(task, 4), "parts": {}}) == 1
    with sql.refused(422, "invalid_batch", field="p_chunks"):
        store(sql, *[chunk(task)] * 1001)
    with sql.refused(422, "invalid_batch"):
        sql.value("store_task_chunks", worker_id="w1", chunks=Jsonb({}))


@pytest.mark.parametrize("batch", [1, 40])
def test_a_worker_that_counts_wrong_cannot_fill_the_database(sql: Contract, batch: int) -> None:
    """S91: a worker in another language may report zero sent bytes each time."""
    sql.start(1)
    task = sql.claim_one()
    # Random, so that the database cannot compress it.
    part = sql.one("select string_agg(md5(n::text), '') from generate_series(1, 1875) as n")
    count = 0
    for first in range(1, 41, batch):
        count += store(sql, *[chunk(task, n, part) for n in range(first, first + batch)])
    assert 4 <= count <= 9
    size = sql.one("select sum(pg_column_size(parts)) from penstock.task_chunks")
    assert size <= 524_288 + 65_536


def test_a_long_stream_of_small_parts_is_stored_whole(sql: Contract) -> None:
    sql.start(1)
    task = sql.claim_one()
    sent = 0
    for number in range(1, 18):
        parts = ["ab"] * 2900
        assert store(sql, chunk(task, number, *parts, sent=sent)) == 1
        sent += len("ab") * 2900 + 3 * 2900
    assert 240_000 < sent <= 262_144


def test_streams_go_with_their_job(sql: Contract, clock: Clock) -> None:
    clock.freeze()
    jobs = [sql.start(1), sql.start(1)]
    tasks = sql.claim(2)
    assert store(sql, *[chunk(task, n) for task in tasks for n in range(1, 4)]) == 6
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
        assert store(sql, chunk(task, 1, f"week {week}")) == 1
        sql.complete(task)
        sql.value("prune")
        kept = [row["parts"] for row in stored(sql)]
        assert kept == [[f"week {n}"] for n in range(max(0, week - 1), week + 1)]
        clock.advance(days=7)
