"""A start with the caller's writes, or a completion with the handler's writes, in one transaction."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import psycopg
import pytest
import sqlalchemy
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from penstock import App, Context, Fail, Invalid, Reschedule, Retry, Unavailable, Worker, testing
from penstock.sdk.job_types import Task
from penstock.worker import execute
from tests.conftest import Eventually

both_modes = pytest.mark.parametrize("is_async", [True, False], ids=["async", "thread"])


@pytest.fixture
def app(db: testing.Database, drain: testing.Drain) -> App:
    return drain.use(App(database_url=db.dsn))


# --- in the caller's transaction ---------------------------------------------------------------------------


@pytest.fixture
def order(app: App, db: testing.Database) -> Task[[int], None]:
    db.execute("create table orders (id int primary key)")

    @app.task
    async def ship(order_id: int) -> None: ...

    return ship


def outcome(db: testing.Database) -> tuple[int, int]:
    [row] = db.execute(
        "select (select count(*) from orders) as orders, (select count(*) from penstock.tasks) as tasks"
    )
    return row["orders"], row["tasks"]


def alchemy(db: testing.Database) -> str:
    return db.dsn.replace("postgresql://", "postgresql+psycopg://")


@pytest.mark.parametrize("how", ["psycopg", "session", "connection"])
@pytest.mark.parametrize("is_committed", [True, False], ids=["commit", "rollback"])
def test_a_job_starts_only_if_the_callers_transaction_commits(
    db: testing.Database, order: Any, how: str, is_committed: bool
) -> None:
    """A job starts inside the caller's transaction."""
    statement = "insert into orders values (1)"
    if how == "psycopg":
        with psycopg.connect(db.dsn) as connection:
            connection.execute(statement)
            order.using(connection).start(1)
            assert outcome(db) == (0, 0)
            connection.commit() if is_committed else connection.rollback()
    else:
        engine = sqlalchemy.create_engine(alchemy(db))
        with Session(engine) if how == "session" else engine.connect() as session:
            session.execute(sqlalchemy.text(statement))
            order.using(session).options(delay="1h").start(1)
            assert outcome(db) == (0, 0)
            session.commit() if is_committed else session.rollback()
        engine.dispose()
    assert outcome(db) == ((1, 1) if is_committed else (0, 0))


@pytest.mark.parametrize("how", ["psycopg", "session", "connection"])
@pytest.mark.parametrize("is_committed", [True, False], ids=["commit", "rollback"])
async def test_an_async_start_commits_with_the_callers_transaction(
    app: App, db: testing.Database, order: Any, how: str, is_committed: bool
) -> None:
    statement = "insert into orders values (1)"
    async with app:
        if how == "psycopg":
            async with await psycopg.AsyncConnection.connect(db.dsn) as connection:
                await connection.execute(statement)
                await order.using(connection).astart(1)
                assert outcome(db) == (0, 0)
                await (connection.commit() if is_committed else connection.rollback())
        else:
            engine = create_async_engine(alchemy(db))
            opened: AsyncSession | AsyncConnection = (
                AsyncSession(engine) if how == "session" else engine.connect()
            )
            async with opened as session:
                await session.execute(sqlalchemy.text(statement))
                await order.using(session).astart(1)
                assert outcome(db) == (0, 0)
                await (session.commit() if is_committed else session.rollback())
            await engine.dispose()
    assert outcome(db) == ((1, 1) if is_committed else (0, 0))


def test_errors_are_the_same_for_psycopg_and_sqlalchemy(db: testing.Database, order: Any) -> None:
    engine = sqlalchemy.create_engine(alchemy(db))
    with Session(engine) as session, pytest.raises(Invalid, match="priority"):
        order.using(session).options(priority=99).start(1)
    with psycopg.connect(db.dsn) as connection, pytest.raises(Invalid, match="priority"):
        order.using(connection).options(priority=99).start(1)
    engine.dispose()


# --- transactional tasks -----------------------------------------------------------------------------------


@pytest.fixture
def ledger(db: testing.Database) -> Callable[[], list[str]]:
    db.execute("create table ledger (line text)")
    return lambda: sorted(row["line"] for row in db.execute("select line from ledger"))


def states(db: testing.Database) -> dict[str, str]:
    rows = db.execute("select key, status from penstock.task_list")
    return {row["key"]: row["status"] for row in rows}


def transactional(app: App, is_async: bool, body: Callable[[Context], Any], kind: str = "post") -> Any:
    """A transactional task that writes a line and then runs the body."""

    async def in_loop(ctx: Context, line: str) -> Any:
        await ctx.connection.execute("insert into ledger values (%s)", [line])
        return body(ctx)

    def in_thread(ctx: Context, line: str) -> Any:
        ctx.connection.execute("insert into ledger values (%s)", [line])
        return body(ctx)

    return app.task(kind=kind, transactional=True)(in_loop if is_async else in_thread)


@both_modes
def test_a_handlers_writes_and_its_completion_are_one_commit(
    app: App, drain: testing.Drain, db: testing.Database, ledger: Any, is_async: bool
) -> None:
    """B6/one-commit: the handler's writes and the task's completion have the same transaction id."""
    post = transactional(app, is_async, lambda ctx: {"n": 1})
    job = post.start("a")
    drain(app)
    assert job.result() == {"n": 1} and ledger() == ["a"]
    rows = db.execute("select l.xmin = r.xmin as same from ledger l cross join penstock.results r")
    assert rows == [{"same": True}]


@both_modes
def test_a_failed_attempt_rolls_back_its_writes(
    app: App, drain: testing.Drain, clock: testing.Clock, ledger: Any, is_async: bool
) -> None:
    """B6/rollback: an exception, a retry and a reschedule leave nothing behind."""
    trouble: list[Any] = [ValueError("no"), Reschedule("1m"), Retry("again"), None]

    def body(ctx: Context) -> Any:
        assert ledger() == []
        if (now := trouble.pop(0)) is not None:
            raise now

    job = transactional(app, is_async, body).start("a")
    for _ in range(4):
        drain(app)
        clock.advance(hours=1)
    assert trouble == [] and ledger() == ["a"] and job.get().status == "completed"


@both_modes
def test_an_output_that_cannot_be_stored_rolls_back_the_writes(
    app: App, drain: testing.Drain, ledger: Any, is_async: bool
) -> None:
    """B6/rollback: rejected by the worker, or by the database if it is too large."""

    async def nowhere(*_: Any) -> Any:
        pytest.fail("the handler saved nothing")

    # An app that stores files itself: a large output does not become an artifact.
    app.artifacts = nowhere
    outputs = {"object": object(), "big": "x" * 1_000_000}
    started = [
        transactional(app, is_async, lambda ctx: outputs[ctx.kind], kind=kind).start("a") for kind in outputs
    ]
    drain(app)
    assert [job.get().status for job in started] == ["failed", "failed"] and ledger() == []


@both_modes
def test_a_lost_lease_rolls_back_the_writes(
    app: App, drain: testing.Drain, db: testing.Database, ledger: Any, is_async: bool
) -> None:
    """B6/fenced: the first attempt loses its lease while it runs; its writes never become visible."""
    attempts: list[int] = []

    def body(ctx: Context) -> str:
        attempts.append(ctx.attempt)
        if len(attempts) == 1:
            # As reclaim_stale_tasks does after a worker was suspended for longer than its lease.
            db.execute(
                "update penstock.leases set expires_at = '-infinity'; select penstock.reclaim_stale_tasks()"
            )
        return f"attempt {ctx.attempt}"

    job = transactional(app, is_async, body).start("a")
    drain(app, concurrency=1)
    assert job.result(timeout=5) == "attempt 2"
    assert attempts == [1, 2] and ledger() == ["a"]


@both_modes
def test_tasks_added_in_a_transaction_commit_with_it(
    app: App, drain: testing.Drain, clock: testing.Clock, db: testing.Database, ledger: Any, is_async: bool
) -> None:
    """B6/rollback: a failed attempt leaves no added tasks behind, so the next one adds each task once."""
    new = [{"kind": "child", "key": "child", "after": ["parent"]}]
    failures = [True, False]

    async def in_loop(ctx: Context) -> None:
        await ctx.aadd_tasks(new)
        if failures.pop(0):
            raise ValueError("after adding")

    def in_thread(ctx: Context) -> None:
        ctx.add_tasks(new)
        if failures.pop(0):
            raise ValueError("after adding")

    @app.task
    async def child() -> None: ...

    parent = app.task(kind="parent", transactional=True, backoff="1h")(in_loop if is_async else in_thread)
    parent.options(key="parent").start()
    drain(app)
    assert states(db) == {"parent": "queued"}
    clock.advance(hours=1)
    drain(app)
    assert states(db) == {"parent": "succeeded", "child": "succeeded"}


@both_modes
def test_usage_and_cost_are_committed_outside_the_transaction(
    app: App, db: testing.Database, drain: testing.Drain, is_async: bool
) -> None:
    """Even if the handler's transaction has locked its own job, and even if the attempt fails."""
    new = [{"kind": "child"}]

    async def in_loop(ctx: Context) -> None:
        await ctx.aadd_tasks(new)
        await ctx.aheartbeat()
        await ctx.ausage(requests=3)
        await ctx.acost("render", "0.25")
        raise Fail("after all")

    def in_thread(ctx: Context) -> None:
        ctx.add_tasks(new)
        ctx.heartbeat()
        ctx.usage(requests=3)
        ctx.cost("render", "0.25")
        raise Fail("after all")

    @app.task
    async def child() -> None: ...

    app.task(kind="parent", transactional=True, timeout="20s")(in_loop if is_async else in_thread).start()
    drain(app)
    [row] = db.execute("select units from penstock.usage_events where task_id is not null")
    assert row["units"]["requests"] == 3
    [row] = db.execute("select amount from penstock.cost_entries")
    assert row["amount"] == Decimal("0.25")
    assert [row["status"] for row in db.execute("select status from penstock.task_list")] == ["failed"]


def test_a_transactional_handler_does_not_deadlock_with_itself(
    app: App, db: testing.Database, drain: testing.Drain, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Adding a dependent task locks the handler's own task until the commit, so usage must be reported before."""
    monkeypatch.setattr(execute, "_LOCK_TIMEOUT", "set local lock_timeout = '100ms'")
    refused: list[str] = []

    @app.task(transactional=True, timeout="20s")
    async def parent(ctx: Context) -> None:
        await ctx.aadd_tasks([{"kind": "child", "key": "child", "after": ["parent"]}])
        try:
            await ctx.ausage(requests=1)
        except Unavailable as error:
            refused.append(error.code)

    @app.task
    async def child() -> None: ...

    parent.options(key="parent").start()
    drain(app)
    assert refused == ["unavailable"] and states(db) == {"parent": "succeeded", "child": "succeeded"}


async def test_calls_of_handlers_do_not_exhaust_the_workers_connections(
    app: App, db: testing.Database, eventually: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While ten handlers wait in the database, claims, reports and upkeep continue."""
    monkeypatch.setenv("PENSTOCK_ALLOW_UNSAFE", "1")

    @app.task
    async def asks(ctx: Context) -> None:
        await ctx.ausage(requests=1)

    @app.task
    async def plain() -> str:
        return "done"

    @app.job
    def many() -> None:
        for _ in range(10):
            asks.step()

    blocker = db.connect()
    worker = Worker(app, concurrency=12)
    async with app:
        with blocker.transaction():
            blocker.execute("lock table penstock.usage_events in exclusive mode")
            job = await many.astart()
            running = asyncio.create_task(worker.run())
            waiting = "select count(*) as n from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()"
            await eventually.aio(lambda: db.execute(waiting)[0]["n"] == execute.CALL_CONNECTIONS)
            assert await (await plain.astart()).aresult(timeout=20) == "done"
            assert db.execute(waiting)[0]["n"] == execute.CALL_CONNECTIONS
        await job.aresult(timeout=20)
        worker.stop()
        await running


def test_transactional_tasks_do_not_exhaust_the_workers_connections(
    app: App, drain: testing.Drain, ledger: Any
) -> None:
    """More of them run at once than the worker has connections, and each waits for all others."""
    barrier = asyncio.Barrier(12)

    @app.task(transactional=True, timeout="20s")
    async def post(ctx: Context, n: int) -> None:
        await ctx.connection.execute("insert into ledger values (%s)", [str(n)])
        await barrier.wait()

    @app.job
    def posts() -> None:
        for n in range(12):
            post.step(n)

    job = posts.start()
    drain(app, concurrency=12)
    assert job.get().status == "completed" and len(ledger()) == 12


DYING = """
import sys
from penstock.contract import tasks
from penstock.postgres import db
dsn, task_id, lease = sys.argv[1:]
with db.connect(dsn) as connection, db.pipelined_commit_sync(connection) as execute_last:
    tasks.complete_last_sync(execute_last, "w", tasks.Done(int(task_id), int(lease), None))
"""


@pytest.mark.slow
def test_a_worker_that_dies_during_its_commit_blocks_no_other(
    db: testing.Database, eventually: Eventually
) -> None:
    """Completing a task locks its job's progress until the commit, which PostgreSQL has already received."""
    db.execute("select penstock.define_kind('work')")
    db.execute(
        'select penstock.start_job(\'two\', \'{}\', \'[{"kind": "work"}, {"kind": "work"}]\', '
        "jsonb_build_object('tenant_id', penstock.create_tenant('test')))"
    )
    [row, _] = db.execute("select id, lease from penstock.claim_tasks('w', 2)")
    command = [sys.executable, "-c", DYING, db.dsn, str(row["id"]), str(row["lease"])]
    with db.connect() as other, subprocess.Popen(command) as dying:
        try:
            with other.transaction():
                other.execute("select from penstock.phases for update")
                waiting = "select pid from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()"
                eventually(lambda: db.execute(waiting))
                dying.send_signal(signal.SIGSTOP)
            eventually(lambda: db.execute("select task_id from penstock.results"))
            other.execute("set lock_timeout = '2s'")
            other.execute("select from penstock.phases for update")
        finally:
            dying.kill()
