"""Retention: ended jobs go after a while, in bites; others stay."""

from __future__ import annotations

import json
from uuid import UUID

from penstock.db import SyncConnection
from penstock.testing import Clock

TABLES = (
    "jobs",
    "phases",
    "tasks",
    "edges",
    "results",
    "attempts",
    "dead_letters",
    "parked",
    "ready",
    "leases",
)


def start(conn: SyncConnection, tenant: UUID, tasks: list[dict[str, object]]) -> UUID:
    conn.execute("select penstock.define_kind('work', '{\"max_attempts\": 1}')")
    row = conn.execute(
        "select penstock.start_job('report', '{}', %s::jsonb, %s::jsonb) as id",
        [json.dumps(tasks), json.dumps({"tenant_id": str(tenant)})],
    ).fetchone()
    assert row
    return row["id"]


def rows_of(conn: SyncConnection, job: UUID) -> dict[str, int]:
    counts: dict[str, int] = {}
    for table in TABLES:
        column = "id" if table == "jobs" else "job_id"
        row = conn.execute(
            f"select count(*) as n from penstock.{table} where {column} = %s".encode(), [job]
        ).fetchone()
        assert row
        counts[table] = row["n"]
    return counts


def prune(conn: SyncConnection, limit: int = 10000) -> int:
    row = conn.execute("select penstock.prune(%s) as n", [limit]).fetchone()
    assert row
    return row["n"]


def finish(conn: SyncConnection) -> None:
    """Completes the first task, fails the second, so that every table has something."""
    claimed = conn.execute("select id from penstock.claim_tasks('w', 2)").fetchall()
    conn.execute("select penstock.complete_task(%s, 'w')", [claimed[0]["id"]])
    conn.execute("select penstock.fail_task(%s, 'w', 'no')", [claimed[1]["id"]])


TASKS: list[dict[str, object]] = [
    {"kind": "work"},
    {"kind": "work", "key": "a"},
    {"kind": "work", "key": "b", "after": ["a"]},
]


def test_an_ended_job_goes_with_everything_of_it_after_the_retention_time(
    conn: SyncConnection, tenant: UUID, clock: Clock
) -> None:
    job = start(conn, tenant, TASKS)
    finish(conn)
    assert rows_of(conn, job)["results"] == 3
    clock.advance(days=89)
    assert prune(conn) == 0
    clock.advance(days=2)
    assert prune(conn) > 0
    assert set(rows_of(conn, job).values()) == {0}


def test_a_job_that_has_not_ended_stays_however_old(conn: SyncConnection, tenant: UUID, clock: Clock) -> None:
    job = start(conn, tenant, TASKS)
    before = rows_of(conn, job)
    clock.advance(days=400)
    assert prune(conn) == 0
    assert rows_of(conn, job) == before


def test_a_large_job_goes_in_bites(conn: SyncConnection, tenant: UUID, clock: Clock) -> None:
    job = start(conn, tenant, TASKS)
    finish(conn)
    clock.advance(days=91)
    assert [prune(conn, 2) for _ in range(4)] == [2, 2, 2, 1]
    assert set(rows_of(conn, job).values()) == {0}
