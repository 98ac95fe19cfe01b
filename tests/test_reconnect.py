"""Lost connections: a restart of the server costs no task an attempt and fails no request."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from typing import Any

import pytest

from penstock import App, Context, testing
from penstock.contract import tasks
from penstock.postgres import db as database
from penstock.worker.losses import MAX_LOSSES
from tests.conftest import running

TERMINATE = """select count(pg_terminate_backend(pid, 5000)) as n from pg_stat_activity
where datname = current_database() and pid <> pg_backend_pid() and application_name like 'penstock%'"""


@pytest.fixture
def app(db: testing.Database, drain: testing.Drain) -> App:
    return drain.use(App(database_url=db.dsn))


def count(db: testing.Database, table: str) -> int:
    return db.execute(f"select count(*) as n from penstock.{table}")[0]["n"]


async def test_a_pool_hands_out_no_closed_connection(db: testing.Database) -> None:
    async with database.pool(db.dsn, min_size=4, max_size=4) as pool:
        await asyncio.gather(*(database.rows(pool, "select pg_sleep(0.05)", ()) for _ in range(4)))
        assert db.execute(TERMINATE)[0]["n"] >= 4
        began = time.monotonic()
        assert await asyncio.gather(*(database.rows(pool, "select 1", ()) for _ in range(8))) == [[(1,)]] * 8
        assert time.monotonic() - began < 20, "the pool pauses after each dead connection"


@pytest.mark.slow
@pytest.mark.parametrize("way", ["transactional", "transactional_sync", "usage", "cost"])
async def test_an_idle_worker_survives_the_loss_of_all_its_connections(
    app: App, db: testing.Database, way: str
) -> None:
    """R1.6/dead-worker: the first task after the loss succeeds, although only one attempt is allowed."""

    @app.task(max_attempts=1, transactional=True)
    async def transactional(ctx: Context) -> str:
        await ctx.connection.execute("select 1")
        return "done"

    @app.task(max_attempts=1, transactional=True)
    def transactional_sync(ctx: Context) -> str:
        ctx.connection.execute("select 1")
        return "done"

    @app.task(max_attempts=1)
    async def usage(ctx: Context) -> str:
        await ctx.ausage(requests=1)
        return "done"

    @app.task(max_attempts=1)
    async def cost(ctx: Context) -> str:
        await ctx.acost("render", "0.5")
        return "done"

    async with running(app, concurrency=3):
        for _ in range(2):
            warm = [await app.tasks[way].astart() for _ in range(3)]
            assert [await job.aresult(timeout=30) for job in warm] == ["done"] * 3
            assert db.execute(TERMINATE)[0]["n"] > 2
            after = [await app.tasks[way].astart() for _ in range(6)]
            assert [await job.aresult(timeout=30) for job in after] == ["done"] * 6
    assert count(db, "attempts") == 0


@pytest.mark.parametrize("mode", ["async", "sync"])
async def test_a_connection_lost_inside_a_transaction_costs_no_attempt(
    app: App, db: testing.Database, mode: str
) -> None:
    seen: list[int] = []
    own = "select pg_backend_pid() as pid"

    @app.task(max_attempts=1, transactional=True, kind="async")
    async def in_loop(ctx: Context) -> int:
        seen.append((await (await ctx.connection.execute(own)).fetchone())["pid"])
        if len(seen) == 1:
            db.execute("select pg_terminate_backend(%s, 5000)", [seen[0]])
        await ctx.connection.execute("select 1")
        return len(seen)

    @app.task(max_attempts=1, transactional=True, kind="sync")
    def in_thread(ctx: Context) -> int:
        seen.append(ctx.connection.execute(own).fetchone()["pid"])
        if len(seen) == 1:
            db.execute("select pg_terminate_backend(%s, 5000)", [seen[0]])
        ctx.connection.execute("select 1")
        return len(seen)

    async with running(app):
        job = await app.tasks[mode].astart()
        assert await job.aresult(timeout=30) == 2
    assert count(db, "attempts") == 0


async def test_a_report_whose_response_is_lost_is_sent_again_and_counts_once(
    app: App, db: testing.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R2.1/best-effort: the attempt is not lost, and nothing is counted twice."""
    call, failed = database.call, set[str]()

    async def lossy(where: Any, function: str, **arguments: Any) -> Any:
        found = await call(where, function, **arguments)
        if function in ("record_usage", "record_cost", "heartbeat_task") and function not in failed:
            failed.add(function)
            raise database.ConnectionLost("the answer was lost")
        return found

    @app.task(max_attempts=1)
    async def work(ctx: Context) -> str:
        await ctx.aheartbeat()
        await ctx.ausage(input_tokens=7)
        await ctx.acost("render", "0.5")
        return "done"

    monkeypatch.setattr(database, "call", lossy)
    async with running(app):
        assert await (await work.astart()).aresult(timeout=30) == "done"
    assert failed == {"record_usage", "record_cost", "heartbeat_task"}
    assert [
        row["units"] for row in db.execute("select units from penstock.usage_events where not is_estimate")
    ] == [{"tokens": 7, "input_tokens": 7}]
    assert count(db, "cost_entries") == 1


HICCUPS = """
create sequence public.hiccups;
create function public.hiccup() returns trigger language plpgsql as $$
begin
  -- A sequence keeps its value when the transaction is rolled back.
  if nextval('public.hiccups') <= 3 then
    raise exception 'hiccup' using errcode = tg_argv[0];
  end if;
  return new;
end $$;
create trigger hiccup before insert on penstock.usage_events for each row execute function public.hiccup('{state}');
create trigger hiccup before insert on penstock.cost_entries for each row execute function public.hiccup('{state}')"""


@pytest.mark.slow
@pytest.mark.parametrize("state", ["40P01", "40001", "53100", "57014"])
async def test_reports_of_paid_work_survive_a_database_that_gives_up(
    app: App, db: testing.Database, state: str
) -> None:
    """R2.1/best-effort: a deadlock, a conflict, a full disk and a canceled statement are tried again, and count once."""
    with db.connect() as conn:
        conn.execute(HICCUPS.replace("{state}", state).encode())

    @app.task(max_attempts=1)
    async def work(ctx: Context) -> str:
        await ctx.ausage(input_tokens=7)
        await ctx.acost("render", "0.5")
        return "done"

    async with running(app):
        assert await (await work.astart()).aresult(timeout=60) == "done"
    assert db.execute("select last_value as n from public.hiccups")[0]["n"] >= 5
    events = db.execute("select units from penstock.usage_events where not is_estimate")
    assert [row["units"]["input_tokens"] for row in events] == [7]
    assert count(db, "cost_entries") == 1 and count(db, "attempts") == 0


async def test_a_task_that_always_loses_its_connection_finally_fails(
    app: App, db: testing.Database, clock: testing.Clock, eventually: Any
) -> None:
    """A statement that crashes the server must not be retried for ever."""
    runs: list[int] = []

    @app.task(max_attempts=1, transactional=True)
    async def work(ctx: Context) -> None:
        runs.append(ctx.attempt)
        await ctx.connection.execute("select pg_terminate_backend(pg_backend_pid())")

    async with running(app) as worker:
        await work.astart()
        for expected in range(1, MAX_LOSSES + 2):
            await eventually.aio(lambda n=expected: len(runs) >= n and not worker._task_buffer.leased)  # pyright: ignore[reportOptionalMemberAccess, reportPrivateUsage]
            clock.advance(minutes=1)
        await eventually.aio(lambda: count(db, "dead_letters"))
    assert len(runs) == MAX_LOSSES + 1


async def test_tasks_of_a_claim_whose_response_is_lost_are_requeued_at_once(
    app: App, db: testing.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim, lost = tasks.claim, list[Any]()

    async def lossy(*arguments: Any, **options: Any) -> Any:
        found = await claim(*arguments, **options)
        if found and not lost:
            lost.extend(found)
            raise database.ConnectionLost("the answer was lost")
        return found

    @app.task(max_attempts=1)
    async def work(ctx: Context) -> int:
        return ctx.attempt

    monkeypatch.setattr(tasks, "claim", lossy)
    async with running(app, lease_seconds=600):
        assert await (await work.astart()).aresult(timeout=30) == 1
    assert len(lost) == 1 and count(db, "attempts") == 0


async def test_a_silent_connection_is_broken_off(db: testing.Database) -> None:
    """A connection may be dead without this machine knowing: nothing waits for it longer than it says."""
    async with database.pool(db.dsn) as pool:
        with pytest.raises(database.ConnectionLost):
            async with database.answering(pool, 0.1) as conn:
                await database.rows(conn, "select pg_sleep(60)", ())
        assert await database.rows(pool, "select 1", ()) == [(1,)]
    # The server has not noticed yet.
    db.execute(TERMINATE)


@pytest.mark.slow
async def test_a_heartbeat_without_an_answer_is_sent_on_another_connection(
    app: App, db: testing.Database, eventually: Any
) -> None:
    """R1.6/stale-leases: the lease is extended although the first connection of the heartbeat hangs."""
    go = asyncio.Event()

    @app.task(max_attempts=1)
    async def work() -> str:
        await go.wait()
        return "done"

    async with running(app, lease_seconds=3) as worker:
        job = await work.astart()
        beat = f"penstock beat {worker.id}"
        find = "select pid from pg_stat_activity where application_name = %s and datname = current_database()"
        [first] = await eventually.aio(lambda: db.execute(find, [beat]))
        os.kill(first["pid"], signal.SIGSTOP)
        try:
            await eventually.aio(lambda: len(db.execute(find, [beat])) == 2, "it connects again")
            await asyncio.sleep(0)
        finally:
            os.kill(first["pid"], signal.SIGCONT)
        go.set()
        assert await job.aresult(timeout=30) == "done"
    assert count(db, "attempts") == 0
