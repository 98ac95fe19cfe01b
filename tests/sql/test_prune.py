"""Retention: ended jobs are deleted after a while, in batches; others stay."""

from __future__ import annotations

import json
from typing import Any
from uuid import UUID

import pytest
from psycopg.types.json import Jsonb

from penstock.postgres import db
from penstock.postgres.db import SyncConnection
from penstock.testing import Clock
from tests.sql.conftest import Call, Contract, Sessions

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


def test_an_ended_job_and_its_rows_are_deleted_after_the_retention_time(
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


def test_a_large_job_is_deleted_in_batches(conn: SyncConnection, tenant: UUID, clock: Clock) -> None:
    job = start(conn, tenant, TASKS)
    finish(conn)
    clock.advance(days=91)
    assert [prune(conn, 2) for _ in range(5)] == [2, 2, 2, 2, 1]
    assert set(rows_of(conn, job).values()) == {0}


def test_parked_tasks_of_a_job_are_deleted_in_batches(sql: Contract, clock: Clock) -> None:
    job = sql.start(10, on_failure="stop")
    sql.kill(sql.claim_one())
    sql.do_chores()
    clock.advance(days=100)
    # Nine that never ran, one result, ten tasks, one attempt, the job.
    assert [sql.value("prune", limit=8) for _ in range(4)] == [8, 8, 6, 0]
    assert set(rows_of(sql.connection, job).values()) == {0}


def test_one_at_a_time(sessions: Sessions, clock: Clock) -> None:
    sql, other = sessions.open(), sessions.open()
    sql.start(1)
    sql.start(1)
    sql.drain()
    clock.advance(days=100)
    with other.connection.transaction(force_rollback=True):
        # It has taken one of the two jobs.
        assert other.value("prune", limit=1) == 1
        assert sql.value("prune") == 0
    assert sql.value("prune") > 0


class TestWithOthers:
    """Prune waits for no session that waits for it."""

    def begin(self, sessions: Sessions, clock: Clock) -> tuple[Contract, UUID, Contract, Call]:
        """A failed job during its deletion, which waits for a row that the first session has locked."""
        sql = sessions.open()
        job = sql.start([{"kind": "work"}])
        sql.kill(sql.claim_one())
        clock.advance(days=100)
        blocker = sessions.open()
        blocker.connection.execute("begin")
        blocker.execute("select from penstock.results where job_id = %s for update", job)
        pruner = sessions.open()
        call = Call(lambda: pruner.value("prune"))
        sessions.wait_until_blocked(pruner, call)
        return blocker, job, pruner, call

    def test_a_replay_during_the_deletion_finds_nothing(self, sessions: Sessions, clock: Clock) -> None:
        blocker, job, _, deleting = self.begin(sessions, clock)
        other = sessions.open()
        replaying = Call(lambda: other.replay(all=True))
        sessions.wait_until_blocked(other, replaying)
        blocker.connection.execute("commit")
        assert deleting.result() > 0
        assert replaying.result() == 0
        assert other.one("select count(*) from penstock.jobs where id = %s", job) == 0

    @pytest.mark.parametrize("verb", ["pause", "resume", "cancel", "add", "confirm"])
    def test_a_job_deleted_during_a_wait_is_missing(
        self, sessions: Sessions, clock: Clock, verb: str
    ) -> None:
        blocker, job, _, deleting = self.begin(sessions, clock)
        other = sessions.open()

        def act() -> None:
            with other.refused(404, "unknown_job"):
                match verb:
                    case "add":
                        other.add(job, [{"kind": "work"}])
                    case "confirm":
                        other.value("confirm_job", job_id=job)
                    case _:
                        getattr(other, verb)(job)

        acting = Call(act)
        sessions.wait_until_blocked(other, acting)
        blocker.connection.execute("commit")
        assert deleting.result() > 0
        acting.result()

    def test_a_locked_job_is_deleted_by_the_next_prune(self, sessions: Sessions, clock: Clock) -> None:
        sql = sessions.open()
        job = sql.start([{"kind": "work"}])
        sql.drain()
        clock.advance(days=100)
        other = sessions.open()
        other.connection.execute("begin")
        other.execute("select from penstock.phases where job_id = %s for update", job)
        assert sql.value("prune") == 0
        assert sql.one("select count(*) from penstock.results where job_id = %s", job) == 1
        other.connection.execute("commit")
        assert sql.value("prune") > 0

    def test_a_letter_that_is_being_replayed_is_not_discarded(self, sessions: Sessions) -> None:
        sql = sessions.open()
        jobs = [sql.start([{"kind": "work"}]) for _ in range(2)]
        for task in sql.claim(2):
            sql.kill(task)
        other = sessions.open()
        other.connection.execute("begin")
        other.replay(job_id=str(jobs[0]))
        assert sql.value("discard_dead_letters", filter=Jsonb({"all": True})) == 1
        other.connection.execute("commit")
        assert [sql.status(job) for job in jobs] == ["running", "failed"]

    def stopping(self, sessions: Sessions) -> tuple[Contract, UUID, list[db.Row]]:
        """A job of three tasks that stops at its first failure, with a retention of zero."""
        sql = sessions.open()
        sql.value("set_setting", name="retention_days", value=Jsonb(0))
        return sql, sql.start(3, on_failure="stop"), sql.claim(2)

    def gone(self, sql: Contract, job: UUID, clock: Clock) -> None:
        for _ in range(3):
            clock.advance(seconds=1)
            sql.do_chores()
            sql.value("prune")
        assert set(rows_of(sql.connection, job).values()) == {0}

    def test_a_job_with_a_concurrent_claim_is_not_deleted(self, sessions: Sessions, clock: Clock) -> None:
        """The claim has read a running job: its task still exists when the claim ends, to be handed back."""
        sql, job, tasks = self.stopping(sessions)
        sql.complete(tasks[0])
        worker = sessions.open()
        with worker.connection.transaction():
            late = worker.claim_one()
            sql.kill(tasks[1])
            sql.do_chores()
            clock.advance(seconds=1)
            assert sql.value("prune") == 0
        sql.check()
        assert rows_of(sql.connection, job)["leases"] == 1
        worker.complete(late)
        sql.check()
        self.gone(sql, job, clock)

    def woken(self, sessions: Sessions, clock: Clock) -> tuple[Contract, UUID, Contract]:
        """A failed job with a task that is being requeued."""
        sql, job, tasks = self.stopping(sessions)
        sql.reschedule(tasks[0], delay=5)
        sql.kill(tasks[1])
        sql.do_chores()
        clock.advance(seconds=10)
        waker = sessions.open()
        waker.connection.execute("begin")
        waker.upkeep()
        assert rows_of(waker.connection, job)["ready"] == 1
        return sql, job, waker

    def test_a_job_with_a_task_being_requeued_is_not_deleted(self, sessions: Sessions, clock: Clock) -> None:
        sql, job, waker = self.woken(sessions, clock)
        sql.value("prune")
        assert rows_of(sql.connection, job)["tasks"] == 3
        waker.connection.execute("commit")
        sql.value("prune")
        assert rows_of(sql.connection, job)["tasks"] == 3
        self.gone(sql, job, clock)

    def test_a_task_requeued_during_the_deletion_keeps_its_job(
        self, sessions: Sessions, clock: Clock
    ) -> None:
        sql, job, waker = self.woken(sessions, clock)
        blocker, pruner = sessions.open(), sessions.open()
        blocker.connection.execute("begin")
        blocker.execute("select from penstock.dead_letters where job_id = %s for update", job)
        pruning = Call(lambda: pruner.value("prune"))
        sessions.wait_until_blocked(pruner, pruning)
        waker.connection.execute("commit")
        blocker.connection.execute("commit")
        pruning.result()
        assert rows_of(sql.connection, job)["ready"] == 1
        assert rows_of(sql.connection, job)["tasks"] == 3
        self.gone(sql, job, clock)


class TestFiles:
    """A job's files are deleted with it, and each is subtracted from usage once."""

    def job(self, sql: Contract, tenant: UUID, files: int = 1, is_ended: bool = True) -> list[Any]:
        """An ended job with files of 100 bytes: their ids."""
        sql.start([{"kind": "work"}], tenant_id=str(tenant))
        task = sql.claim_one()
        holder = {"worker_id": "w1", "lease": task["lease"]}
        made: list[Any] = []
        for name in range(files):
            row = sql.rows("begin_artifact", task_id=task["id"], **holder, name=str(name), bytes=100)[0]
            sql.value("finish_artifact", artifact_id=row["id"], **holder, bytes=100, sha256="0" * 64)
            made.append(row["id"])
        if is_ended:
            sql.complete(task)
        return made

    def used(self, sql: Contract, tenant: UUID) -> Any:
        assert sql.rows("check_accounts") == []
        query = (
            "select used from penstock.accounts where tenant_id = %s and job_id is null and meter = 'bytes'"
        )
        return sql.one(query, tenant)

    def test_a_file_deleted_concurrently_is_counted_once(self, sessions: Sessions, clock: Clock) -> None:
        sql, other = sessions.open(), sessions.open()
        first, _ = self.job(sql, sessions.tenant, 2)
        clock.advance(days=100)
        other.connection.execute("begin")
        assert other.value("delete_artifact", artifact_id=first)
        call = Call(lambda: sql.value("prune"))
        sessions.wait_until_blocked_or_done(sql, call)
        other.connection.execute("commit")
        call.result()
        while sql.value("prune"):
            pass
        assert sql.one("select count(*) from penstock.jobs") == 0
        assert sql.one("select count(*) from penstock.artifacts where status <> 'deleted'") == 0
        assert self.used(sql, sessions.tenant) == 0

    def test_a_job_with_many_files_is_deleted_in_batches(
        self, sql: Contract, tenant: UUID, clock: Clock
    ) -> None:
        self.job(sql, tenant, 5)
        clock.advance(days=100)
        assert [sql.value("prune", limit=2) for _ in range(4)] == [2, 2, 2, 2]
        assert sql.value("prune", limit=2) == 0 and self.used(sql, tenant) == 0

    def test_accounts_of_several_tenants_have_one_order(self, sessions: Sessions, clock: Clock) -> None:
        sql, other = sessions.open(), sessions.open()
        low, high = sorted(sql.value("create_tenant", name=name) for name in ("one", "two"))
        self.job(sql, high)
        self.job(sql, low)
        clock.advance(days=100)
        (in_low,), (in_high,) = (self.job(sql, tenant, is_ended=False) for tenant in (low, high))
        other.connection.execute("begin")
        other.value("delete_artifact", artifact_id=in_low)
        call = Call(lambda: sql.value("prune"))
        sessions.wait_until_blocked(sql, call)
        # It waits for the first account, and has not got the second.
        other.value("delete_artifact", artifact_id=in_high)
        other.connection.execute("commit")
        assert call.result() > 0
        assert (self.used(sql, low), self.used(sql, high)) == (0, 0)
