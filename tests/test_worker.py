"""The worker: three ways to run a handler, stopping one, waking up, and winding down."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from penstock import App, Context, Invalid, Unavailable, Worker, testing
from penstock import worker as worker_module
from penstock.contract.tasks import Claim, Done, Failed, Rejection, claim, heartbeat_sync
from penstock.errors import NotMigrated
from penstock.postgres import db as database
from penstock.settings import Settings
from penstock.upkeep import Tidy, Upkeep, end
from penstock.worker.beat import Beat
from penstock.worker.finish import Finish
from penstock.worker.processes import Processes
from penstock.worker.task_buffer import TaskBuffer
from penstock.worker.wake import Wake
from tests.conftest import running


@pytest.fixture
def app(db: testing.Database, drain: testing.Drain) -> App:
    return drain.use(App(database_url=db.dsn))


@pytest.fixture
def no_polling(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a notification wakes a worker."""
    monkeypatch.setattr(Wake, "POLL_SECONDS", (3600.0, 3600.0))


async def listening(worker: Worker, db: testing.Database, eventually: Any) -> None:
    """Wait until the worker listens for notifications."""
    query = (
        "select 1 from pg_stat_activity where application_name = %s and wait_event = 'ClientRead' "
        "and query ilike 'listen%%'"
    )
    await eventually.aio(lambda: db.execute(query, [f"penstock listen {worker.id}"]), "it listens")


LISTENERS = (
    "pg_stat_activity",
    "application_name like 'penstock listen%' and datname = current_database()",
)


def count(db: testing.Database, table: str, where: str = "true") -> int:
    return db.execute(f"select count(*) as n from {table} where {where}")[0]["n"]


def tasks(db: testing.Database) -> list[dict[str, Any]]:
    return db.execute("select * from penstock.task_list order by id")


# --- three ways to run a handler ---------------------------------------------------------------------------


def test_worker_is_named_by_the_environment(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two workers with one name have different ids."""
    monkeypatch.setenv("PENSTOCK_WORKER_ID", "render-srv-1")
    ids = [Worker(app).id for _ in range(2)]
    assert all(name.startswith(f"render-srv-1-{os.getpid()}-") for name in ids) and ids[0] != ids[1]


@pytest.mark.slow
def test_a_crash_in_a_process_fails_only_its_task(
    workload: Any, drain: testing.Drain, db: testing.Database
) -> None:
    """R1.7/processes: CPU-bound handlers run in processes; one that crashes its process fails cleanly."""
    ways = {
        "exit": ("process_died", "exit code 3"),
        "segfault": ("process_died", "exit code -11"),
        "error": ("handler_error", "left right"),
        "fail": ("refused", "no"),
        "lambda": ("bad_output", "cannot be stored"),
    }
    started = {how: workload.crash.start(how) for how in ways}
    good = [workload.crunch.start(list(range(n))) for n in range(4)]
    later = workload.later.start()
    drain(workload.app, concurrency=2)
    for number, job in enumerate(good):
        assert (found := job.result(timeout=5))["sum"] == sum(range(number)) and found["pid"] != os.getpid()
    for how, (code, message) in ways.items():
        [error] = db.execute("select * from penstock.attempts where job_id = %s", [started[how].id])
        assert error["error_code"] == code and message in error["error_message"], error
    [stack] = db.execute(
        "select s.stack as text from penstock.error_stacks s join penstock.attempts a using (job_id, task_id, lease)"
        " where a.error_message = 'left right'"
    )
    assert 'raise Odd("left", "right")' in stack["text"], "the stack is that of the process"
    assert [task["waiting_for"] for task in tasks(db) if task["job_id"] == later.id] == ["not now"]


@pytest.mark.slow
def test_a_handler_computes_in_a_process(workload: Any, drain: testing.Drain, db: testing.Database) -> None:
    """R1.7/processes: a crash in `ctx.acompute` fails the attempt with the same error codes; the worker goes on."""
    ways = {
        "exit": ("process_died", "exit code 3"),
        "error": ("handler_error", "left right"),
        "fail": ("refused", "no"),
        "lambda": ("bad_output", "cannot be sent back"),
    }
    started = {how: workload.compute.start(how) for how in ways}
    good = workload.compute.start("")
    drain(workload.app, concurrency=2)
    found = good.result(timeout=5)
    assert found["pid"] != found["own"] == os.getpid()
    for how, (code, message) in ways.items():
        [error] = db.execute("select * from penstock.attempts where job_id = %s", [started[how].id])
        assert error["error_code"] == code and message in error["error_message"], error


@pytest.mark.slow
def test_a_timeout_stops_a_handler_in_loop_thread_and_process(
    app: App, workload: Any, drain: testing.Drain, db: testing.Database, tmp_path: Path
) -> None:
    """A handler that takes too long is stopped, and its attempt fails with `timeout`."""
    ended: list[str] = []

    @app.task(timeout="50ms", max_attempts=1)
    async def in_loop() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("loop")

    @app.task(timeout="50ms", max_attempts=1)
    def in_thread(ctx: Context) -> None:
        while not ctx.is_stopped:
            time.sleep(0.001)
        ended.append("thread")

    @app.task(timeout="5s", max_attempts=1)
    async def own() -> None:
        raise TimeoutError("of the handler's own")

    app.tasks["sleep"] = workload.sleep
    for task in (in_loop, in_thread, own):
        task.start()
    workload.sleep.start(str(tmp_path / "pid"), 60)
    drain(app)
    found = {task["kind"]: (task["error_code"], task["status"]) for task in tasks(db)}
    assert found.pop("own") == ("handler_error", "failed")
    assert found == dict.fromkeys(["in_loop", "in_thread", "sleep"], ("timeout", "failed"))
    assert sorted(ended) == ["loop", "thread"]
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


async def test_a_thread_that_does_not_stop_keeps_its_slot(
    app: App, drain: testing.Drain, db: testing.Database, eventually: Any
) -> None:
    """Its task is reported at once; only its slot stays taken, so that the worker never runs too many."""
    release = threading.Event()

    @app.task(timeout="50ms", max_attempts=1)
    def stuck() -> None:
        release.wait(20)

    @app.task
    def next_one() -> None: ...

    async with app:
        await stuck.astart()
        working = asyncio.create_task(drain.arun(app, concurrency=1))
        await eventually.aio(lambda: count(db, "penstock.attempts"))
        job = await next_one.astart()
        assert tasks(db)[1]["status"] == "queued"
        release.set()
        await job.aresult(timeout=20)
        await working


async def test_attempt_that_was_stopped_while_it_connected_runs_no_handler(
    app: App, db: testing.Database, eventually: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R1.2/fence: a handler in a thread does not begin after its worker has learned that the lease is lost."""
    connect, arrived, release = database.connect, threading.Event(), threading.Event()
    begun: list[int] = []

    def connect_slowly(dsn: str, *, name: str = "penstock", **options: Any) -> Any:
        if name.startswith("penstock task"):
            arrived.set()
            release.wait(60)
        return connect(dsn, name=name, **options)

    monkeypatch.setattr(database, "connect", connect_slowly)

    @app.task(transactional=True)
    def post(ctx: Context) -> None:
        begun.append(ctx.attempt)

    async with running(app, lease_seconds=1000) as worker:
        await listening(worker, db, eventually)
        job = await post.astart()
        await eventually.aio(arrived.is_set, "the handler waits for its connection")
        db.execute("select penstock.cancel_job(%s)", [job.id])
        await eventually.aio(lambda: count(db, "penstock.leases") == 0, "the lease is released")
        release.set()
    assert begun == []


async def test_cancellation_that_comes_with_an_event_ends_a_loop(
    app: App, db: testing.Database, eventually: Any
) -> None:
    """A worker that drained during an outage did not exit: Python 3.11 drops such a cancellation."""
    async with database.pool(db.dsn) as pool:
        upkeep = Upkeep(pool, app.draw)
        loop = asyncio.create_task(upkeep.run(first_pause=3600))
        await eventually.aio(lambda: len(upkeep.due._waiters), "it waits")  # type: ignore[attr-defined]
        upkeep.due.set()
        loop.cancel()
        done, _ = await asyncio.wait([loop], timeout=20)
        assert done == {loop} and loop.cancelled()


async def test_loop_that_drops_a_cancellation_is_canceled_again() -> None:
    async def stubborn() -> None:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        await asyncio.Event().wait()

    loop = asyncio.create_task(stubborn())
    await asyncio.sleep(0)
    await end([loop])
    assert loop.cancelled()


async def test_concurrency_limits_handlers_of_all_modes_together(app: App, drain: testing.Drain) -> None:
    """R1.7/concurrent: concurrency limits async handlers and threads together."""
    now = most = 0
    lock = threading.Lock()

    def enter(by: int) -> None:
        nonlocal now, most
        with lock:
            now += by
            most = max(most, now)

    @app.task
    async def in_loop() -> None:
        enter(1)
        await asyncio.sleep(0.002)
        enter(-1)

    @app.task
    def in_thread() -> None:
        enter(1)
        time.sleep(0.002)
        enter(-1)

    @app.job
    def mixed() -> None:
        for _ in range(30):
            in_loop.step()
            in_thread.step()

    async with app:
        job = await mixed.astart()
        await drain.arun(app, concurrency=3)
        assert (await job.aget()).status == "completed" and most == 3


@pytest.mark.slow
def test_a_handler_that_blocks_the_event_loop_keeps_its_lease(
    app: App, drain: testing.Drain, db: testing.Database
) -> None:
    """R1.7/heartbeats: heartbeats come from their own thread, which a busy event loop cannot block."""
    over = threading.Event()

    def reclaim() -> None:
        connection = db.connect()
        while not over.wait(0.05):
            connection.execute("select penstock.reclaim_stale_tasks()")

    @app.task
    async def hog() -> int:
        until, n = time.monotonic() + 2.5, 0
        while time.monotonic() < until:
            n += 1
        return n

    job = hog.start()
    other = threading.Thread(target=reclaim)
    other.start()
    drain(app, lease_seconds=1)
    over.set()
    other.join()
    assert job.get().status == "completed"
    assert count(db, "penstock.attempts") == 0


# --- stopping a handler ------------------------------------------------------------------------------------


async def test_canceling_stops_running_handlers_at_once(
    app: App, workload: Any, db: testing.Database, eventually: Any, tmp_path: Path
) -> None:
    """A cancel from another process arrives by NOTIFY: the next regular heartbeat is minutes away."""
    seen: list[str] = []

    @app.task
    async def in_loop() -> None:
        seen.append("begun")
        try:
            await asyncio.Event().wait()
        finally:
            seen.append("loop")

    @app.task
    def in_thread(ctx: Context) -> None:
        seen.append("begun")
        while not ctx.is_stopped:
            time.sleep(0.001)
        ctx.progress(1)
        seen.append("thread")

    app.tasks["sleep"] = workload.sleep
    path = tmp_path / "pid"

    @app.job
    def everything() -> None:
        in_loop.step()
        in_thread.step()
        workload.sleep.options(timeout="1h").step(str(path), 60)

    async with running(app, lease_seconds=1000) as worker:
        await listening(worker, db, eventually)
        job = await everything.astart()
        await eventually.aio(lambda: len(seen) == 2 and path.exists() and path.read_text())
        db.execute("select penstock.cancel_job(%s)", [job.id])
        await eventually.aio(lambda: len(seen) == 4, "both handlers stop")
        await eventually.aio(lambda: not is_alive(int(path.read_text())), "the process is killed")
        await eventually.aio(lambda: count(db, "penstock.leases") == 0, "the leases are released")
        assert (await job.aget()).status == "canceled"
    assert count(db, "penstock.results") + count(db, "penstock.attempts") == 0


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def test_a_lost_lease_stops_the_handler_and_its_report_is_dropped(
    app: App, db: testing.Database, eventually: Any
) -> None:
    """R1.2/fence: the heartbeat detects the loss, the handler is stopped, and only the second attempt's output is kept."""
    log: list[str] = []

    @app.task
    async def work(ctx: Context) -> str:
        log.append(f"begun {ctx.attempt}")
        try:
            if ctx.attempt == 1:
                await asyncio.Event().wait()
        except asyncio.CancelledError:
            log.append("stopped 1")
            return "swallowed"
        return f"attempt {ctx.attempt}"

    async with running(app, lease_seconds=1):
        job = await work.astart()
        await eventually.aio(lambda: log)
        db.execute(
            "update penstock.leases set expires_at = '-infinity'; select penstock.reclaim_stale_tasks()"
        )
        assert await job.aresult(timeout=20) == "attempt 2"
        await eventually.aio(lambda: len(log) == 3)
    assert sorted(log) == ["begun 1", "begun 2", "stopped 1"]
    assert [row["outcome"] for row in db.execute("select outcome from penstock.attempts")] == ["lost"]


async def test_an_unanswered_heartbeat_stops_no_handler_and_no_task_is_claimed(
    app: App, db: testing.Database, eventually: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only a heartbeat's response says which leases are lost; no worker can claim a task while the database is down."""
    go = asyncio.Event()

    @app.task
    async def work() -> str:
        await go.wait()
        return "done"

    async def no_upkeep(self: Upkeep) -> None:
        """Nobody takes the lease back while the heartbeats are lost."""

    monkeypatch.setattr(Upkeep, "once", no_upkeep)
    # Nor does a claim that finds nothing, which would do overdue upkeep.
    db.execute("""insert into penstock.upkeep_runs (ran_at) values (now() + interval '1 hour')
        on conflict (id) do update set ran_at = excluded.ran_at""")
    unanswered = threading.Event()
    async with running(app, lease_seconds=1, concurrency=2) as worker:
        job = await work.astart()
        await eventually.aio(lambda: count(db, "penstock.leases"))

        def stall(*arguments: Any) -> Any:
            unanswered.wait(20)
            return heartbeat_sync(*arguments)

        monkeypatch.setattr("penstock.worker.beat.tasks.heartbeat_sync", stall)
        buffer = worker._task_buffer  # pyright: ignore[reportPrivateUsage]
        assert buffer is not None
        await eventually.aio(lambda: buffer.free_slots() == 0)
        assert [leased.stop_reason for leased in buffer.leased.values()] == [None]
        unanswered.set()
        await eventually.aio(lambda: buffer.free_slots() > 0)
        go.set()
        assert await job.aresult(timeout=20) == "done"
    assert count(db, "penstock.attempts") == 0


# --- waking up ---------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.usefixtures("no_polling")
async def test_a_notification_wakes_an_idle_worker(app: App, db: testing.Database, eventually: Any) -> None:
    """R1.7/wake-up: instant wake-up where NOTIFY is possible, also after the listening connection was lost."""

    @app.task
    async def work() -> int:
        return 1

    async with running(app) as worker:
        for _ in range(2):
            await listening(worker, db, eventually)
            for _ in range(3):
                assert await (await work.astart()).aresult(timeout=20) == 1
            [ended] = db.execute("select pid, pg_terminate_backend(pid) from {} where {}".format(*LISTENERS))
            await eventually.aio(lambda pid=ended["pid"]: count(db, "pg_stat_activity", f"pid = {pid}") == 0)
        # Work that arrives while the worker is disconnected is found when it listens again.
        assert await (await work.astart()).aresult(timeout=20) == 1


async def test_a_worker_without_notifications_polls(
    app: App, db: testing.Database, eventually: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R1.7/wake-up: with PENSTOCK_LISTEN=off polling finds tasks, including retries."""
    monkeypatch.setattr(worker_module, "settings", lambda: Settings(listen="off"))
    monkeypatch.setattr(Wake, "POLL_SECONDS_ALONE", (0.01, 0.2))

    @app.task(backoff="10ms", backoff_cap="10ms")
    async def work(ctx: Context) -> int:
        if ctx.attempt < 3:
            raise ValueError("again")
        return ctx.attempt

    async with running(app):
        assert await (await work.astart()).aresult(timeout=20) == 3
        assert count(db, *LISTENERS) == 0


def test_idle_polling_backs_off_until_work_is_found() -> None:
    """R1.7/idle-backoff: idle polling backs off to 30 s, and is fast again after work."""

    async def pauses(is_listening: bool) -> list[float]:
        wake = Wake("", None, asyncio.Event(), "auto")  # type: ignore[arg-type]
        wake.is_listening = is_listening
        found: list[float] = []

        def timeout(seconds: float) -> asyncio.Timeout:
            found.append(wake._pause)  # pyright: ignore[reportPrivateUsage]
            assert wake._pause / 2 <= seconds <= wake._pause  # pyright: ignore[reportPrivateUsage]
            return original(0)

        original, asyncio.timeout = asyncio.timeout, timeout  # type: ignore[assignment]
        try:
            for turn in range(16):
                if turn == 12:
                    wake.found_work()
                await wake.wait_for_work()
        finally:
            asyncio.timeout = original
        return found

    with_listen, alone = asyncio.run(pauses(True)), asyncio.run(pauses(False))
    assert with_listen[:4] == [5, 10, 20, 30] and with_listen[11:14] == [30, 5, 10]
    assert alone[:2] == [0.05, 0.1] and alone[11:14] == [30, 0.05, 0.1]


async def test_a_worker_backs_off_after_an_empty_claim() -> None:
    """A notification reaches all workers, but only one finds the task: the others delay their next claim."""
    wake = Wake("", SimpleNamespace(kinds=["draw"]), asyncio.Event(), "auto")  # type: ignore[arg-type]
    delays: list[float] = []

    def uniform(low: float, high: float) -> float:
        if low == 0:
            delays.append(high)
        return low

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("penstock.worker.wake.random.uniform", uniform)

        async def notified() -> None:
            for _ in range(3):
                wake._handle("ready:draw")  # pyright: ignore[reportPrivateUsage]
            wake._handle("ready:other")  # pyright: ignore[reportPrivateUsage]
            await wake.wait_for_work()

        for _ in range(7):
            await notified()
            wake.found_nothing()
            wake.found_nothing()  # a claim without a notification changes nothing
        assert delays == [0, 0.01, 0.02, 0.04, 0.08, 0.16, 0.25]
        await notified()
        wake.found_work()
        await notified()
        assert delays[7:] == [0.25, 0]


# --- sharing -----------------------------------------------------------------------------------------------


async def test_a_worker_does_not_buffer_slow_tasks(app: App, db: testing.Database, eventually: Any) -> None:
    """While tasks are slow, a worker claims only what it can run now, so that other workers get the rest."""
    release = asyncio.Event()
    ran: dict[str, int] = {}

    @app.task
    async def slow(ctx: Context) -> None:
        ran[ctx.worker_id] = ran.get(ctx.worker_id, 0) + 1
        await release.wait()

    @app.job
    def many() -> None:
        for _ in range(20):
            slow.step()

    async with running(app, concurrency=2) as one, running(app, concurrency=2) as two:
        job = await many.astart()
        await eventually.aio(lambda: sum(ran.values()) == 4)
        assert ran == {one.id: 2, two.id: 2}
        assert (count(db, "penstock.leases"), count(db, "penstock.ready")) == (4, 16)
        release.set()
        await job.aresult(timeout=20)
    assert sum(ran.values()) == 20


async def test_tasks_that_wait_too_long_in_the_buffer_are_requeued(
    app: App, db: testing.Database, eventually: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fast tasks fill the buffer, then slow ones come: those that would have to wait are requeued."""
    monkeypatch.setattr(TaskBuffer, "STALE_SECONDS", 0.2)
    release = asyncio.Event()

    @app.task
    async def work(n: int) -> None:
        if n >= 1000:
            await release.wait()

    @app.job
    def many() -> None:
        for n in range(1100):
            work.step(n)

    async with running(app, concurrency=2):
        job = await many.astart()
        await eventually.aio(lambda: count(db, "penstock.results") == 1000)
        await eventually.aio(
            lambda: count(db, "penstock.ready", "failures + deaths = 0") == 98, "the rest is requeued"
        )
        assert count(db, "penstock.leases") == 2
        release.set()
        await job.aresult(timeout=30)
    assert count(db, "penstock.attempts") == 0


# --- winding down ------------------------------------------------------------------------------------------


def begun(db: testing.Database, word: str = "begun") -> int:
    return count(db, "effects", f"word = '{word}'")


@pytest.mark.slow
def test_sigterm_drains_the_worker(
    workload: Any, start_worker: Any, db: testing.Database, eventually: Any
) -> None:
    """R1.7/drain: SIGTERM requeues unstarted tasks at once, gives running handlers the grace time, then requeues
    the rest; a second SIGTERM ends the grace time. None of that costs an attempt. The process ends even if a
    thread does not."""

    @workload.app.job(name="drain")
    def mixed() -> None:
        for _ in range(1000):
            workload.hold.step()
        for gate in ("opened", "closed"):
            workload.hold.step(gate)
        for _ in range(50):
            workload.hold.step("closed")

    worker = start_worker(concurrency=2, grace_seconds=60, kinds=["hold"])
    other = start_worker(concurrency=1, grace_seconds=1, kinds=["hold_thread"])
    try:
        job = mixed.start()
    finally:
        del workload.app.job_types["drain"]
    thread = workload.hold_thread.start("closed")
    eventually(lambda: begun(db) == 3)
    other.terminate()
    worker.terminate()
    eventually(lambda: count(db, "penstock.leases") <= 3, "unstarted tasks are requeued")
    assert worker.poll() is None, "it waits for running handlers"
    db.execute("insert into gates values ('opened')")
    eventually(lambda: begun(db, "ended") == 1)
    worker.terminate()  # does not wait any longer
    assert (worker.wait(20), other.wait(20)) == (0, 0)
    assert count(db, "penstock.leases") + count(db, "penstock.attempts") == 0
    assert count(db, "penstock.ready", "failures + deaths = 0") == 52
    assert (job.get().progress.succeeded, thread.get().progress.done) == (1001, 0)
    states = {row["state"] for row in db.execute("select state from penstock.worker_list")}
    assert states == {"stopped"}


@pytest.mark.slow
def test_workers_in_two_processes_share_one_database(
    workload: Any, start_worker: Any, db: testing.Database, eventually: Any
) -> None:
    """R1.7/stateless: both processes claim tasks; when one ends, the other finishes its task and all later ones."""
    first, second = (start_worker(concurrency=1, grace_seconds=0, kinds=["hold"]) for _ in range(2))
    jobs = [workload.hold.start("opened") for _ in range(2)]
    eventually(lambda: begun(db) == 2)
    assert {row["pid"] for row in db.execute("select pid from effects")} == {first.pid, second.pid}
    first.terminate()
    assert first.wait(20) == 0
    jobs.append(workload.hold.start("opened"))
    db.execute("insert into gates values ('opened')")
    eventually(lambda: all(job.get().status == "completed" for job in jobs))
    ended = db.execute("select task_id, pid from effects where word = 'ended'")
    assert len(ended) == len({row["task_id"] for row in ended}) == 3
    assert {row["pid"] for row in ended} == {second.pid}
    assert count(db, "penstock.attempts") == 0
    second.terminate()
    assert second.wait(20) == 0


@pytest.mark.parametrize("what", ["claim_tasks", "complete_tasks"])
async def test_a_stopping_worker_waits_for_its_claim_and_its_report(
    app: App, db: testing.Database, eventually: Any, what: str
) -> None:
    """A claim whose response is dropped would leave its tasks leased; a report would be lost."""
    ran: list[int] = []

    @app.task
    async def work() -> None:
        ran.append(1)

    async with app:
        await work.astart()
        blocker = db.connect()
        with blocker.transaction():
            if what == "claim_tasks":
                blocker.execute("lock table penstock.leases in share mode")
            else:
                blocker.execute("select from penstock.phases for update")
            worker = Worker(app, grace_seconds=0)
            running = asyncio.create_task(worker.run())
            is_stuck = f"wait_event_type = 'Lock' and query like '%{what}%' and datname = current_database()"
            await eventually.aio(lambda: count(db, "pg_stat_activity", is_stuck))
            worker.stop()
            done, _ = await asyncio.wait([running], timeout=0.2)
            assert not done
        await running
    states = (count(db, "penstock.ready"), count(db, "penstock.leases"), count(db, "penstock.results"))
    assert states == ((1, 0, 0) if what == "claim_tasks" else (0, 0, 1))
    assert len(ran) == states[2]


async def test_a_rejected_report_does_not_block_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch that the database rejects is sent one by one; reports that an outage interrupts are sent again."""
    sent: list[int] = []
    failed: list[int] = []
    is_away = True

    async def complete(pool: Any, worker_id: str, batch: list[Done]) -> list[Rejection]:
        nonlocal is_away
        if any(done.id == 3 for done in batch):
            raise RuntimeError("the database chokes on 3")
        if batch[0].id == 4 and is_away:
            is_away = False
            raise Unavailable
        sent.extend(done.id for done in batch)
        return []

    async def fail(pool: Any, worker_id: str, batch: list[Failed]) -> list[Rejection]:
        failed.extend(report.id for report in batch)
        return []

    monkeypatch.setattr("penstock.contract.tasks.complete", complete)
    monkeypatch.setattr("penstock.contract.tasks.fail", fail)
    buffer: Any = TaskBuffer("w", None, None, concurrency=1, max_ahead=0, lease_seconds=30, kinds=[])  # type: ignore[arg-type]
    claims = [Claim(n, n, UUID(int=0), UUID(int=0), "work", None, {}, 1, 1, None) for n in range(1, 7)]
    buffer.add(claims, time.monotonic())
    finish = Finish(buffer, None)  # type: ignore[arg-type]
    for leased in list(buffer.leased.values()):
        finish.done(leased, None)
    await finish.flush_all()
    assert (sorted(sent), failed, buffer.leased) == ([1, 2, 4, 5, 6], [3], {})


def test_a_worker_claims_a_quarter_of_a_second_ahead_as_soon_as_its_tasks_turn_out_fast(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 1000.0
    monkeypatch.setattr("penstock.worker.task_buffer.time.monotonic", lambda: now)
    buffer: Any = TaskBuffer("w", None, None, concurrency=100, max_ahead=2000, lease_seconds=999, kinds=[])  # type: ignore[arg-type]

    def ahead_after(seconds: float, first: int) -> int:
        """Number of tasks claimed ahead after 100 tasks ended together, each within these seconds."""
        nonlocal now
        buffer.free_slots()
        ids = range(first, first + 100)
        buffer.add([Claim(n, n, UUID(int=0), UUID(int=0), "work", None, {}, 1, 1, None) for n in ids], now)
        now += seconds
        for n in ids:
            buffer.take_next()
            buffer.handler_ended()
            buffer.remove(n, n)
        return buffer.free_slots() - 100

    assert ahead_after(0.025, 1) == pytest.approx(1000, abs=2)
    # Slow tasks that end together are no reason to keep tasks from other workers.
    now += 100
    assert ahead_after(1.0, 101) == 25
    now += 100
    assert ahead_after(0.025, 201) == pytest.approx(1000, abs=2)


async def test_a_second_stop_ends_the_grace_time(app: App, db: testing.Database, eventually: Any) -> None:
    @app.task
    async def work() -> None:
        await asyncio.Event().wait()

    async with running(app, grace_seconds=3600) as worker:
        await work.astart()
        await eventually.aio(lambda: worker._task_buffer and worker._task_buffer.running)  # pyright: ignore[reportPrivateUsage]
        worker.stop()
        await asyncio.sleep(0)
    assert (count(db, "penstock.ready"), count(db, "penstock.attempts")) == (1, 0)


@pytest.mark.slow
async def test_a_worker_stops_even_if_a_handler_ignores_cancellation(
    app: App, db: testing.Database, eventually: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.worker.execute.CLEANUP_SECONDS", 0.1)
    over = False

    @app.task
    async def stubborn() -> None:
        while not over:
            try:
                await asyncio.sleep(0.05)
            except asyncio.CancelledError:
                continue

    async with running(app, grace_seconds=0) as worker:
        await stubborn.astart()
        await eventually.aio(lambda: worker._task_buffer and worker._task_buffer.running)  # pyright: ignore[reportPrivateUsage]
    over = True
    assert not worker.is_clean
    assert (count(db, "penstock.ready"), count(db, "penstock.leases")) == (1, 0)


async def test_canceling_run_requeues_its_tasks(app: App, db: testing.Database, eventually: Any) -> None:
    """A program that embeds a worker may cancel `run`."""

    @app.task
    async def work() -> None:
        await asyncio.Event().wait()

    async with app:
        await work.astart()
        task = asyncio.create_task(Worker(app, grace_seconds=0).run())
        await eventually.aio(lambda: count(db, "penstock.leases"))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert (count(db, "penstock.ready"), count(db, "penstock.leases")) == (1, 0)


async def test_one_computation_per_core_runs_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker's concurrency does not limit them: these two wait for each other."""
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    processes = Processes(1)
    try:
        async with asyncio.timeout(30):
            read, _ = await asyncio.gather(
                processes.compute(Path.read_text, (pipe,), {}),
                processes.compute(Path.write_text, (pipe, "met"), {}),
            )
    finally:
        processes.close()
    assert read == "met"


async def test_a_failed_loop_ends_the_worker(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker without one of its loops would look alive but do only part of its work."""

    async def broken(self: Upkeep) -> None:
        raise RuntimeError("upkeep broke down")

    monkeypatch.setattr(Upkeep, "run", broken)
    monkeypatch.setenv("PENSTOCK_ALLOW_UNSAFE", "1")

    @app.task
    async def work() -> None: ...

    async with app:
        with pytest.raises(RuntimeError, match="upkeep broke down"):
            await Worker(app).run()


def test_a_worker_prunes_old_jobs(
    app: App,
    db: testing.Database,
    drain: testing.Drain,
    clock: testing.Clock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Workers apply retention without being asked."""

    @app.task
    def work() -> None: ...

    @app.task(timeout="20s", max_attempts=1)
    def wait(job: str) -> None:
        while db.execute("select from penstock.jobs where id = %s", [job]):
            time.sleep(0.01)

    old = work.start()
    drain(app)
    db.execute("insert into penstock.spent values ((select min(id) from penstock.endpoints), 1, 0, 1, 1)")
    clock.advance(days=91)
    monkeypatch.setattr(Tidy, "PAUSE", 0.01)
    # This handler returns once the worker that runs it has pruned the old job.
    wait.start(str(old.id))
    drain(app)
    assert [row["status"] for row in db.execute("select status from penstock.jobs")] == ["completed"]
    assert count(db, "penstock.spent") == 0


@pytest.mark.slow
def test_three_worker_deaths_make_a_dead_letter_and_dead_processes_are_restarted(
    workload: Any, start_worker: Any, db: testing.Database, eventually: Any
) -> None:
    """R1.6/stale-leases, R1.6/dead-worker: a dead worker's tasks run on another worker; a task that kills three workers
    becomes a dead letter. The parent restarts processes that die, and all end with it."""
    bad = workload.poison.start()
    parent: subprocess.Popen[str] = start_worker(processes=2, lease_seconds=1, concurrency=1)
    dead = eventually(lambda: db.execute("select * from penstock.dead_letters"))
    assert [(row["task_id"], row["reason"], row["error_code"]) for row in dead] == [
        (tasks(db)[0]["id"], "worker_deaths", "worker_lost")
    ]
    assert begun(db) == 3 and bad.get().status == "failed"
    good = [workload.quick.start(n) for n in range(4)]
    assert [job.result(timeout=20) for job in good] == [0, 1, 2, 3]

    alive = eventually(lambda: len(found := children(db)) == 2 and found)
    parent.kill()
    eventually(lambda: not any(is_alive(pid) for pid in alive), "children end with their parent")


def children(db: testing.Database) -> list[int]:
    rows = db.execute("select pid from penstock.worker_list where state = 'running'")
    return [row["pid"] for row in rows if is_alive(row["pid"])]


@pytest.mark.slow
def test_sigterm_drains_all_processes_of_a_worker(
    workload: Any, start_worker: Any, db: testing.Database, eventually: Any
) -> None:
    parent: subprocess.Popen[str] = start_worker(processes=2, grace_seconds=5)
    eventually(lambda: len(children(db)) == 2)
    parent.send_signal(signal.SIGTERM)
    assert parent.wait(20) == 0
    assert {row["state"] for row in db.execute("select state from penstock.worker_list")} == {"stopped"}


# --- checks at start ----------------------------------------------------------------------------------------------


def test_a_worker_rejects_bad_options_unsafe_settings_and_a_missing_schema(
    app: App, db: testing.Database, server: testing.Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It refuses to start with unsafe settings or without the schema."""

    @app.task
    async def work() -> None: ...

    for wrong in ({"kinds": ["unknown"]}, {"concurrency": 0}, {"lease_seconds": 0}):
        with pytest.raises(Invalid):
            Worker(app, **wrong)  # type: ignore[arg-type]
    monkeypatch.delenv("PENSTOCK_ALLOW_UNSAFE")
    with pytest.raises(NotMigrated, match="fsync, full_page_writes off") as refused:
        asyncio.run(Worker(app, drain=True).run())
    assert refused.value.code == "unsafe_settings"
    monkeypatch.setenv("PENSTOCK_ALLOW_UNSAFE", "1")
    empty = server.create()
    try:
        app.use(server.dsn(empty))
        with pytest.raises(NotMigrated):
            asyncio.run(Worker(app, drain=True).run())
    finally:
        server.drop(empty)


def test_a_worker_describes_itself(app: App, db: testing.Database, drain: testing.Drain) -> None:
    @app.task
    async def work() -> None: ...

    drain(app, concurrency=3)
    [row] = db.execute("select * from penstock.worker_list")
    assert (row["pid"], row["kinds"], row["concurrency"], row["state"]) == (
        os.getpid(),
        ["work"],
        3,
        "stopped",
    )


async def test_heartbeats_extend_a_returned_task_until_the_return_is_reported(
    app: App, db: testing.Database
) -> None:
    """The report may be delayed; until then the task must not count as lost with its worker."""

    @app.task
    async def work() -> None: ...

    async with app, database.pool(db.dsn) as pool:
        for _ in range(2):
            await work.astart()
        buffer = TaskBuffer("w", app, pool, concurrency=2, max_ahead=0, lease_seconds=30, kinds=["work"])
        buffer.add(await claim(pool, "w", limit=2, kinds=None, lease_seconds=5), time.monotonic())
        handed_back, lost = buffer.leased.values()
        buffer.stop(handed_back.claim.id, handed_back.claim.lease, "handed back")
        buffer.stop(lost.claim.id, lost.claim.lease, "lease_lost")
        beat = Beat(db.dsn, buffer, {"host": "h", "pid": 1})
        beat.start()
        await asyncio.to_thread(beat.stop)
    rows = db.execute("select task_id from penstock.leases where expires_at > now() + interval '15 seconds'")
    assert [row["task_id"] for row in rows] == [handed_back.claim.id]


async def test_a_task_whose_lease_may_have_expired_starts_only_after_a_heartbeat() -> None:
    """After a suspension or a late claim response, a worker must not run a task that another worker may have."""
    buffer: Any = TaskBuffer("w", None, None, concurrency=1, max_ahead=0, lease_seconds=10, kinds=[])  # type: ignore[arg-type]
    asked: list[int] = []
    dropped: list[int] = []
    buffer.on_lease_uncertain = lambda: asked.append(1)
    buffer.on_unstarted_stopped = lambda leased: dropped.append(leased.claim.id)
    claims = [Claim(n, n, UUID(int=0), UUID(int=0), "work", None, {}, 1, 1, None) for n in (1, 2)]
    now = time.monotonic()
    buffer.add(claims, now - 11)
    taking = asyncio.create_task(buffer.next_task())
    await asyncio.sleep(0)
    assert asked and not taking.done()
    buffer.stop(1, 1, "lease_lost")
    buffer.leases_extended({1, 2}, now)
    assert (await asyncio.wait_for(taking, 5)).claim.id == 2
    assert dropped == [1]


@pytest.mark.slow
@pytest.mark.parametrize("stopped_seconds", [2.6, 6.5])
def test_a_suspended_worker_continues_without_losing_a_task_or_an_attempt(
    workload: Any, start_worker: Any, db: testing.Database, eventually: Any, stopped_seconds: float
) -> None:
    """R1.6/stale-leases: the worker continues, also after a suspension longer than the lease if no other took over."""
    process = start_worker(lease_seconds=3, concurrency=2)
    jobs = [workload.hold.start("gate") for _ in range(2)]
    eventually(lambda: count(db, "effects") == 2, "two run")
    os.kill(process.pid, signal.SIGSTOP)
    jobs += [workload.hold.start() for _ in range(4)]
    time.sleep(stopped_seconds)
    os.kill(process.pid, signal.SIGCONT)
    db.execute("insert into gates values ('gate')")
    for job in jobs:
        job.result(timeout=30)
    assert count(db, "penstock.attempts") == 0
    assert count(db, "effects", "word = 'begun'") == 2


@pytest.mark.slow
async def test_an_idle_worker_leaves_upkeep_to_the_leader(
    app: App, db: testing.Database, eventually: Any
) -> None:
    """Of several workers one does the periodic upkeep; when it stops, another one takes over."""
    leader = "select leader_id from penstock.upkeep_runs where led_until > clock_timestamp()"
    async with running(app) as first:
        await eventually.aio(lambda: db.execute(leader) == [{"leader_id": first.id}], "the first leads")
        async with running(app) as second:
            await listening(second, db, eventually)
            first.stop()
            await eventually.aio(lambda: db.execute(leader) == [{"leader_id": second.id}], "it takes over")


async def test_upkeep_runs_in_the_leader_and_where_something_is_due(
    app: App, db: testing.Database, eventually: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses = runs = 0
    async with database.pool(db.dsn) as pool:
        upkeep = Upkeep(pool, app.draw)
        monkeypatch.setattr(upkeep, "MIN_PAUSE", 0.0)
        is_leader, is_due = False, asyncio.Event()

        async def once() -> None:
            nonlocal runs
            runs += 1

        async def sleep() -> bool:
            nonlocal pauses
            pauses += 1
            await asyncio.sleep(0)
            was_due = is_due.is_set()
            is_due.clear()
            return was_due

        monkeypatch.setattr(upkeep, "once", once)
        monkeypatch.setattr(upkeep, "_sleep", sleep)
        upkeep.is_leader = lambda: is_leader
        loop = asyncio.create_task(upkeep.run(first_pause=upkeep.MAX_PAUSE))
        await eventually.aio(lambda: pauses > 5, "it pauses")
        assert runs == 0
        is_due.set()
        await eventually.aio(lambda: runs == 1, "it was told")
        assert runs == 1
        is_leader = True
        await eventually.aio(lambda: runs > 1, "it leads")
        await end([loop])


@pytest.mark.slow
async def test_the_leader_wakes_workers_that_know_the_job_type_of_a_schedule(
    app: App, db: testing.Database, eventually: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The leader may belong to another app."""
    ran: list[int] = []

    @app.task
    async def work() -> None:
        ran.append(1)

    @app.job
    def nightly() -> None:
        work.step()

    loops: list[Upkeep] = []

    class Recorded(Upkeep):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            loops.append(self)

    monkeypatch.setattr("penstock.worker.Upkeep", Recorded)
    async with running(App(database_url=db.dsn)) as other:
        await eventually.aio(
            lambda: db.execute("select leader_id from penstock.upkeep_runs") == [{"leader_id": other.id}],
            "the other app's worker leads",
        )
        async with running(app) as worker:
            await listening(worker, db, eventually)
            await eventually.aio(lambda: worker._wake and worker._wake.is_listening, "it is notified")  # pyright: ignore[reportPrivateUsage]
            upkeep = loops[1]
            await eventually.aio(
                lambda: not (upkeep.due.is_set() or upkeep._lock.locked() or upkeep.is_leader()),  # pyright: ignore[reportPrivateUsage]
                "it leaves upkeep to the leader",
            )
            db.execute(
                "select penstock.set_schedule('nightly', '0 3 * * *', 'nightly', now() - interval '1 second',"
                " jsonb_build_object('tenant_id', penstock.ensure_tenant('default')))"
            )
            await eventually.aio(lambda: ran, "the worker that knows it starts its job")
    assert ran == [1]


async def test_a_claim_that_got_all_there_was_is_not_repeated_before_a_notification(
    app: App, db: testing.Database, eventually: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran, claims = 0, 0

    @app.task
    async def work() -> None:
        nonlocal ran
        ran += 1

    async def counted(*args: Any, **options: Any) -> list[Claim]:
        nonlocal claims
        claims += 1
        return await claim(*args, **options)

    monkeypatch.setattr("penstock.contract.tasks.claim", counted)
    monkeypatch.setattr("penstock.worker.fetch.SHORT_CLAIM_SECONDS", 3600)
    async with running(app) as worker:
        await eventually.aio(lambda: worker._wake and worker._wake.is_listening, "it gets notifications")  # pyright: ignore[reportPrivateUsage]
        await work.astart()
        await eventually.aio(lambda: ran == 1, "the first ran")
        before = claims
        for number in (2, 3):
            await work.astart()
            await eventually.aio(lambda number=number: ran == number, "a notification wakes the worker")
        assert claims == before + 2
