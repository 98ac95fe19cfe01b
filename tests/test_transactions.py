"""A task and the caller's or the handler's own writes, in one transaction: all of it or nothing."""

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
from penstock.app import Task
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
def test_a_job_starts_with_the_callers_transaction_or_not_at_all(
    db: testing.Database, order: Any, how: str, is_committed: bool
) -> None:
    """Issue item 10: enqueue inside the caller's own transaction."""
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
async def test_the_same_async(
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


def test_refusals_read_the_same_whoever_holds_the_connection(db: testing.Database, order: Any) -> None:
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
    """A transactional task that writes a line, then does what the body does."""

    async def in_loop(ctx: Context, line: str) -> Any:
        await ctx.connection.execute("insert into ledger values (%s)", [line])
        return body(ctx)

    def in_thread(ctx: Context, line: str) -> Any:
        ctx.connection.execute("insert into ledger values (%s)", [line])
        return body(ctx)

    return app.task(kind=kind, transactional=True)(in_loop if is_async else in_thread)


@both_modes
def test_writes_and_completion_are_one_commit(
    app: App, drain: testing.Drain, db: testing.Database, ledger: Any, is_async: bool
) -> None:
    """B6/one-commit: what the handler wrote and the task's end are there together, in one transaction."""
    post = transactional(app, is_async, lambda ctx: {"n": 1})
    job = post.start("a")
    drain(app)
    assert job.result() == {"n": 1} and ledger() == ["a"]
    rows = db.execute("select l.xmin = r.xmin as same from ledger l cross join penstock.results r")
    assert rows == [{"same": True}]


@both_modes
def test_a_failure_takes_the_writes_back(
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
def test_an_output_that_cannot_be_stored_takes_the_writes_back(
    app: App, drain: testing.Drain, ledger: Any, is_async: bool
) -> None:
    """B6/rollback: refused by us, or by the database when it is too large."""

    async def nowhere(*_: Any) -> Any:
        pytest.fail("the handler saved nothing")

    # An app with files of its own: a large output is not made one of ours.
    app.artifacts = nowhere
    outputs = {"object": object(), "big": "x" * 1_000_000}
    started = [
        transactional(app, is_async, lambda ctx: outputs[ctx.kind], kind=kind).start("a") for kind in outputs
    ]
    drain(app)
    assert [job.get().status for job in started] == ["failed", "failed"] and ledger() == []


@both_modes
def test_a_lost_lease_takes_the_writes_back(
    app: App, drain: testing.Drain, db: testing.Database, ledger: Any, is_async: bool
) -> None:
    """B6/fenced: the first attempt loses its lease while it works; its effects are never seen."""
    attempts: list[int] = []

    def body(ctx: Context) -> str:
        attempts.append(ctx.attempt)
        if len(attempts) == 1:
            # What reclaim_stale_tasks does when a worker is paused for longer than its lease.
            db.execute(
                "update penstock.leases set expires_at = '-infinity'; select penstock.reclaim_stale_tasks()"
            )
        return f"attempt {ctx.attempt}"

    job = transactional(app, is_async, body).start("a")
    drain(app, concurrency=1)
    assert job.result(timeout=5) == "attempt 2"
    assert attempts == [1, 2] and ledger() == ["a"]


@both_modes
def test_tasks_added_in_a_transaction_come_with_it(
    app: App, drain: testing.Drain, clock: testing.Clock, db: testing.Database, ledger: Any, is_async: bool
) -> None:
    """B6/rollback: a failed attempt leaves no child behind, so that the next one makes each child once."""
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
def test_what_it_used_and_cost_is_recorded_at_once(
    app: App, db: testing.Database, drain: testing.Drain, is_async: bool
) -> None:
    """Also from a handler whose transaction has its own job in hand, and also when it fails."""
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


def test_it_does_not_wait_for_itself(
    app: App, db: testing.Database, drain: testing.Drain, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What comes after its own task has it in hand until the commit: usage is told before."""
    monkeypatch.setattr(execute, "_IN_HAND", "set local lock_timeout = '100ms'")
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


async def test_what_handlers_ask_for_does_not_use_up_the_workers_connections(
    app: App, db: testing.Database, eventually: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten handlers wait in the database for something; claims, ends and upkeep go on."""
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


def test_many_transactional_tasks_do_not_use_up_the_workers_connections(
    app: App, drain: testing.Drain, ledger: Any
) -> None:
    """More of them at once than the worker has connections of its own, each waiting for all the others."""
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


VANISHING = """
import sys
from penstock import db, tasks
dsn, task_id, lease = sys.argv[1:]
with db.connect(dsn) as connection, db.pipelined_commit_sync(connection) as execute_last:
    tasks.complete_last_sync(execute_last, "w", tasks.Done(int(task_id), int(lease), None))
"""


def test_whoever_vanishes_during_the_end_holds_up_nobody(
    db: testing.Database, eventually: Eventually
) -> None:
    """The end of a task locks its job's progress until the commit: PostgreSQL has that word already."""
    db.execute("select penstock.define_kind('work')")
    db.execute(
        'select penstock.start_job(\'two\', \'{}\', \'[{"kind": "work"}, {"kind": "work"}]\', '
        "jsonb_build_object('tenant_id', penstock.create_tenant('test')))"
    )
    [row, _] = db.execute("select id, lease from penstock.claim_tasks('w', 2)")
    command = [sys.executable, "-c", VANISHING, db.dsn, str(row["id"]), str(row["lease"])]
    with db.connect() as other, subprocess.Popen(command) as vanishing:
        try:
            with other.transaction():
                other.execute("select from penstock.phases for update")
                waiting = "select pid from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()"
                eventually(lambda: db.execute(waiting))
                vanishing.send_signal(signal.SIGSTOP)
            eventually(lambda: db.execute("select task_id from penstock.results"))
            other.execute("set lock_timeout = '2s'")
            other.execute("select from penstock.phases for update")
        finally:
            vanishing.kill()
