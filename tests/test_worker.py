"""The worker: three ways to run a handler, stopping one, waking up, and winding down."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from penstock import App, Context, Invalid, Unavailable, Worker, testing
from penstock import db as database
from penstock import worker as worker_module
from penstock.errors import NotMigrated
from penstock.settings import Settings
from penstock.tasks import Claim, Done, Failed, Refusal, claim, heartbeat_sync
from penstock.upkeep import Tidy, Upkeep
from penstock.worker.beat import Beat
from penstock.worker.desk import Desk
from penstock.worker.finish import Finish
from penstock.worker.processes import Processes
from penstock.worker.wake import Wake


@pytest.fixture
def app(db: testing.Database, drain: testing.Drain) -> App:
    return drain.use(App(database_url=db.dsn))


@pytest.fixture
def no_polling(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a notification wakes a worker."""
    monkeypatch.setattr(Wake, "POLL_SECONDS", (3600.0, 3600.0))


@asynccontextmanager
async def running(app: App, **options: Any) -> AsyncIterator[Worker]:
    """A worker in this loop, stopped at the end."""
    worker = Worker(app, **{"grace_seconds": 5, **options})
    task = asyncio.create_task(worker.run())
    async with app:
        try:
            yield worker
        finally:
            worker.stop()
            await task


async def listening(worker: Worker, db: testing.Database, eventually: Any) -> None:
    """Wait until the worker listens, and has nothing left to look for by itself."""
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


def test_processes_answer_or_die_and_the_worker_goes_on(
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
        "select error_details ->> 'stack' as text from penstock.attempts where error_message = 'left right'"
    )
    assert 'raise Odd("left", "right")' in stack["text"], "the stack comes from where it was raised"
    assert [task["waiting_for"] for task in tasks(db) if task["job_id"] == later.id] == ["not now"]


def test_a_handler_has_a_function_run_in_a_process(
    workload: Any, drain: testing.Drain, db: testing.Database
) -> None:
    """R1.7/processes: what crashes there fails the attempt, with the same words, and the worker goes on."""
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


def test_each_way_has_its_timeout(
    app: App, workload: Any, drain: testing.Drain, db: testing.Database, tmp_path: Path
) -> None:
    """Issue item 9: a handler that takes too long is stopped, and its attempt fails with `timeout`."""
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


async def test_a_thread_that_does_not_stop_keeps_its_place(
    app: App, drain: testing.Drain, db: testing.Database, eventually: Any
) -> None:
    """Its task is reported at once; only its place stays taken, so that the worker never runs too many."""
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


async def test_no_more_run_at_once_than_allowed(app: App, drain: testing.Drain) -> None:
    """R1.7/concurrent: concurrency is a limit, whatever the mix of ways."""
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


def test_a_handler_that_hogs_the_interpreter_keeps_its_lease(
    app: App, drain: testing.Drain, db: testing.Database
) -> None:
    """R1.7/heartbeats: heartbeats come from a thread of their own, which a busy loop cannot hold up."""
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
    """Issue item 9: from another process, by NOTIFY. The next regular heartbeat is minutes away."""
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
        await eventually.aio(lambda: count(db, "penstock.leases") == 0, "the leases are given up")
        assert (await job.aget()).status == "canceled"
    assert count(db, "penstock.results") + count(db, "penstock.attempts") == 0


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def test_a_lost_lease_stops_the_handler_and_nothing_it_says_counts(
    app: App, db: testing.Database, eventually: Any
) -> None:
    """R1.2/fence: the heartbeat finds out, the handler is stopped, and only the second attempt is kept."""
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
    """Only the heartbeat's answer says what is lost: a database that is away gives the task to nobody."""
    go = asyncio.Event()

    @app.task
    async def work() -> str:
        await go.wait()
        return "done"

    unanswered = threading.Event()
    heartbeat = heartbeat_sync
    async with running(app, lease_seconds=1, concurrency=2) as worker:
        job = await work.astart()
        await eventually.aio(lambda: count(db, "penstock.leases"))

        def stall(*arguments: Any) -> Any:
            unanswered.wait(20)
            return heartbeat(*arguments)

        monkeypatch.setattr("penstock.worker.beat.tasks.heartbeat_sync", stall)
        buffer = worker._desk  # pyright: ignore[reportPrivateUsage]
        assert buffer is not None
        await eventually.aio(lambda: buffer.room() == 0)
        assert [held.lost for held in buffer.held.values()] == [None]
        unanswered.set()
        await eventually.aio(lambda: buffer.room() > 0)
        go.set()
        assert await job.aresult(timeout=20) == "done"
    assert count(db, "penstock.attempts") == 0


# --- waking up ---------------------------------------------------------------------------------------------


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
        # While nobody listens, work is found when the worker listens again.
        assert await (await work.astart()).aresult(timeout=20) == 1


async def test_polling_alone_suffices(
    app: App, db: testing.Database, eventually: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R1.7/wake-up: with PENSTOCK_LISTEN=off, retries included. Nobody listens."""
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


def test_polling_backs_off_and_comes_back() -> None:
    """R1.7/idle-backoff: idle polling backs off to 30 s, and is quick again after work."""

    async def pauses(is_listening: bool) -> list[float]:
        wake = Wake("", None, asyncio.Event(), "auto")  # type: ignore[arg-type]
        wake.is_listening = is_listening
        found: list[float] = []

        async def wait_for(awaitable: Any, seconds: float) -> None:
            awaitable.close()
            found.append(wake._pause)  # pyright: ignore[reportPrivateUsage]
            assert wake._pause / 2 <= seconds <= wake._pause  # pyright: ignore[reportPrivateUsage]
            raise TimeoutError

        original, asyncio.wait_for = asyncio.wait_for, wait_for  # type: ignore[assignment]
        try:
            for turn in range(16):
                if turn == 12:
                    wake.found_work()
                await wake.for_work()
        finally:
            asyncio.wait_for = original
        return found

    with_listen, alone = asyncio.run(pauses(True)), asyncio.run(pauses(False))
    assert with_listen[:4] == [5, 10, 20, 30] and with_listen[11:14] == [30, 5, 10]
    assert alone[:2] == [0.05, 0.1] and alone[11:14] == [30, 0.05, 0.1]


async def test_whoever_came_in_vain_lets_others_go_first() -> None:
    """A notification reaches all workers; one of them finds the work, and the others ask less and less."""
    wake = Wake("", SimpleNamespace(kinds=["draw"]), asyncio.Event(), "auto")  # type: ignore[arg-type]
    delays: list[float] = []

    def uniform(low: float, high: float) -> float:
        if low == 0:
            delays.append(high)
        return low

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("penstock.worker.wake.random.uniform", uniform)

        async def called() -> None:
            for _ in range(3):
                wake._hear("ready:draw")  # pyright: ignore[reportPrivateUsage]
            wake._hear("ready:other")  # pyright: ignore[reportPrivateUsage]
            await wake.for_work()

        for _ in range(7):
            await called()
            wake.found_nothing()
            wake.found_nothing()  # a look without a word says nothing
        assert delays == [0, 0.01, 0.02, 0.04, 0.08, 0.16, 0.25]
        await called()
        wake.found_work()
        await called()
        assert delays[7:] == [0.25, 0]


# --- sharing -----------------------------------------------------------------------------------------------


async def test_slow_tasks_are_not_hoarded(app: App, db: testing.Database, eventually: Any) -> None:
    """Issue item 9: the buffer is small where tasks are slow: what one worker cannot run now, another can."""
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


async def test_what_was_taken_too_early_goes_back(
    app: App, db: testing.Database, eventually: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Quick tasks fill the buffer, then come slow ones: those that would have to wait are given back."""
    monkeypatch.setattr(Desk, "STALE_SECONDS", 0.2)
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
            lambda: count(db, "penstock.ready", "failures + deaths = 0") == 98, "the rest is given back"
        )
        assert count(db, "penstock.leases") == 2
        release.set()
        await job.aresult(timeout=30)
    assert count(db, "penstock.attempts") == 0


# --- winding down ------------------------------------------------------------------------------------------


def begun(db: testing.Database, word: str = "begun") -> int:
    return count(db, "effects", f"word = '{word}'")


@pytest.mark.slow
def test_sigterm_drains(workload: Any, start_worker: Any, db: testing.Database, eventually: Any) -> None:
    """R1.7/drain: SIGTERM hands back at once what has not begun, lets what runs end within the grace
    time, and hands back the rest, at a second SIGTERM too; nothing costs an attempt, and the process ends though
    a thread does not."""

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
    eventually(lambda: count(db, "penstock.leases") <= 3, "what has not begun is handed back")
    assert worker.poll() is None, "it waits for what runs"
    db.execute("insert into gates values ('opened')")
    eventually(lambda: begun(db, "ended") == 1)
    worker.terminate()  # does not wait any longer
    assert (worker.wait(20), other.wait(20)) == (0, 0)
    assert count(db, "penstock.leases") + count(db, "penstock.attempts") == 0
    assert count(db, "penstock.ready", "failures + deaths = 0") == 52
    assert (job.get().progress.succeeded, thread.get().progress.done) == (1001, 0)
    states = {row["state"] for row in db.execute("select state from penstock.worker_list")}
    assert states == {"stopped"}


@pytest.mark.parametrize("what", ["claim_tasks", "complete_tasks"])
async def test_what_is_under_way_when_it_stops_is_waited_for(
    app: App, db: testing.Database, eventually: Any, what: str
) -> None:
    """A claim whose answer were dropped would leave its tasks to their leases; a report would be lost."""
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


async def test_one_bad_report_neither_stops_nor_loses_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch that the database refuses is sent one by one; what an outage interrupts is sent again."""
    sent: list[int] = []
    failed: list[int] = []
    is_away = True

    async def complete(where: Any, worker_id: str, batch: list[Done]) -> list[Refusal]:
        nonlocal is_away
        if any(done.id == 3 for done in batch):
            raise RuntimeError("the database chokes on 3")
        if batch[0].id == 4 and is_away:
            is_away = False
            raise Unavailable
        sent.extend(done.id for done in batch)
        return []

    async def fail(where: Any, worker_id: str, batch: list[Failed]) -> list[Refusal]:
        failed.extend(report.id for report in batch)
        return []

    monkeypatch.setattr("penstock.tasks.complete", complete)
    monkeypatch.setattr("penstock.tasks.fail", fail)
    desk: Any = Desk("w", None, None, concurrency=1, buffer=0, lease_seconds=30, kinds=[])  # type: ignore[arg-type]
    claims = [Claim(n, n, UUID(int=0), UUID(int=0), "work", None, {}, 1, 1, None) for n in range(1, 7)]
    desk.arrive(claims, time.monotonic())
    finish = Finish(desk)
    for held in list(desk.held.values()):
        finish.done(held, None)
    await finish.flush_all()
    assert (sorted(sent), failed, desk.held) == ([1, 2, 4, 5, 6], [3], {})


async def test_a_second_stop_does_not_wait(app: App, db: testing.Database, eventually: Any) -> None:
    @app.task
    async def work() -> None:
        await asyncio.Event().wait()

    async with running(app, grace_seconds=3600) as worker:
        await work.astart()
        await eventually.aio(lambda: worker._desk and worker._desk.running)  # pyright: ignore[reportPrivateUsage]
        worker.stop()
        await asyncio.sleep(0)
    assert (count(db, "penstock.ready"), count(db, "penstock.attempts")) == (1, 0)


async def test_a_handler_that_refuses_to_stop_does_not_stop_the_worker_from_stopping(
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
        await eventually.aio(lambda: worker._desk and worker._desk.running)  # pyright: ignore[reportPrivateUsage]
    over = True
    assert not worker.is_clean
    assert (count(db, "penstock.ready"), count(db, "penstock.leases")) == (1, 0)


async def test_a_canceled_run_winds_down(app: App, db: testing.Database, eventually: Any) -> None:
    """Whoever embeds a worker cancels the task it runs in."""

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


async def test_as_many_compute_at_once_as_there_are_cores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where fewer tasks run at once. Of these two each waits for the other."""
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


async def test_a_loop_that_breaks_down_ends_the_worker(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker without one of its loops would look alive and do half of its work."""

    async def broken(self: Upkeep) -> None:
        raise RuntimeError("upkeep broke down")

    monkeypatch.setattr(Upkeep, "run", broken)
    monkeypatch.setenv("PENSTOCK_ALLOW_UNSAFE", "1")

    @app.task
    async def work() -> None: ...

    async with app:
        with pytest.raises(RuntimeError, match="upkeep broke down"):
            await Worker(app).run()


def test_any_worker_prunes(
    app: App,
    db: testing.Database,
    drain: testing.Drain,
    clock: testing.Clock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Retention is applied without anybody asking for it."""

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
    # Its handler ends when the worker that runs it has pruned.
    wait.start(str(old.id))
    drain(app)
    assert [row["status"] for row in db.execute("select status from penstock.jobs")] == ["completed"]
    assert count(db, "penstock.spent") == 0


@pytest.mark.slow
def test_a_task_that_kills_its_worker_thrice_is_set_aside_and_the_dead_are_replaced(
    workload: Any, start_worker: Any, db: testing.Database, eventually: Any
) -> None:
    """Three worker deaths are a dead letter. R1.6/stale-leases, R1.6/dead-worker: a dead worker's tasks run elsewhere. Of
    several processes those that die are started again, and all end with their parent."""
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
    eventually(lambda: not any(is_alive(pid) for pid in alive), "orphans end by themselves")


def children(db: testing.Database) -> list[int]:
    rows = db.execute("select pid from penstock.worker_list where state = 'running'")
    return [row["pid"] for row in rows if is_alive(row["pid"])]


@pytest.mark.slow
def test_several_processes_drain_together(
    workload: Any, start_worker: Any, db: testing.Database, eventually: Any
) -> None:
    parent: subprocess.Popen[str] = start_worker(processes=2, grace_seconds=5)
    eventually(lambda: len(children(db)) == 2)
    parent.send_signal(signal.SIGTERM)
    assert parent.wait(20) == 0
    assert {row["state"] for row in db.execute("select state from penstock.worker_list")} == {"stopped"}


# --- refusals ----------------------------------------------------------------------------------------------


def test_a_worker_refuses_what_cannot_work(
    app: App, db: testing.Database, server: testing.Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DESIGN 14: unsafe settings and a schema that is not there refuse to start."""

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


def test_what_a_worker_says_of_itself(app: App, db: testing.Database, drain: testing.Drain) -> None:
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


async def test_what_is_handed_back_is_beaten_until_that_is_said(app: App, db: testing.Database) -> None:
    """A report may have to wait; meanwhile the task must not count as lost with its worker."""

    @app.task
    async def work() -> None: ...

    async with app, database.pool(db.dsn) as pool:
        for _ in range(2):
            await work.astart()
        desk = Desk("w", app, pool, concurrency=2, buffer=0, lease_seconds=30, kinds=["work"])
        desk.arrive(await claim(pool, "w", limit=2, kinds=None, lease_seconds=5), time.monotonic())
        handed_back, lost = desk.held.values()
        desk.lose(handed_back.claim.id, handed_back.claim.lease, "handed back")
        desk.lose(lost.claim.id, lost.claim.lease, "lease_lost")
        beat = Beat(db.dsn, desk, {"host": "h", "pid": 1})
        beat.start()
        await asyncio.to_thread(beat.stop)
    rows = db.execute("select task_id from penstock.leases where expires_at > now() + interval '15 seconds'")
    assert [row["task_id"] for row in rows] == [handed_back.claim.id]


async def test_a_task_whose_lease_may_have_expired_begins_only_once_a_heartbeat_confirms_it() -> None:
    """A process that was stopped, or a claim answered late, must not run what another worker has by now."""
    buffer: Any = Desk("w", None, None, concurrency=1, buffer=0, lease_seconds=10, kinds=[])  # type: ignore[arg-type]
    asked: list[int] = []
    dropped: list[int] = []
    buffer.on_doubt = lambda: asked.append(1)
    buffer.on_drop = lambda held: dropped.append(held.claim.id)
    claims = [Claim(n, n, UUID(int=0), UUID(int=0), "work", None, {}, 1, 1, None) for n in (1, 2)]
    now = time.monotonic()
    buffer.arrive(claims, now - 11)
    taking = asyncio.create_task(buffer.take())
    await asyncio.sleep(0)
    assert asked and not taking.done()
    buffer.lose(1, 1, "lease_lost")
    buffer.beaten({1, 2}, now)
    assert (await asyncio.wait_for(taking, 5)).claim.id == 2
    assert dropped == [1]


@pytest.mark.parametrize("stopped_seconds", [2.6, 6.5])
def test_a_stop_neither_strands_a_task_nor_costs_it_an_attempt(
    workload: Any, start_worker: Any, db: testing.Database, eventually: Any, stopped_seconds: float
) -> None:
    """R1.6/stale-leases: below the lease the worker goes on; above it, with no other worker, it asks and goes on as well."""
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
