"""The worker: claims tasks, runs their handlers, reports the outcomes. It is stateless: run any number.

wake     tells fetch when to claim: on a notification, or when polling is due
fetch    claims tasks into the local task buffer
execute  runs the handler of one task, in the event loop, a thread or a process
finish   reports outcomes in batches
beat     extends the leases, from its own thread
logs     sends log lines of tasks
streams  sends what handlers stream
health   answers liveness and readiness probes, from its own thread

Each worker also runs the two loops of `penstock.upkeep` and delivers notifications (`penstock.delivery`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import multiprocessing
import os
import signal
import socket
import time
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from typing import Any
from uuid import uuid4

import structlog

import penstock
from penstock.delivery import Sender
from penstock.errors import Invalid, NotMigrated, Unavailable
from penstock.postgres import db, migrate
from penstock.sdk.app import App
from penstock.settings import settings
from penstock.upkeep import Tidy, Upkeep, end
from penstock.worker.batches import Batches
from penstock.worker.beat import Beat
from penstock.worker.execute import CALL_CONNECTIONS, Execute
from penstock.worker.fetch import Fetch
from penstock.worker.finish import Finish
from penstock.worker.health import Health, Pulse
from penstock.worker.outcome import AttemptEnd
from penstock.worker.reconcile import Reconcile
from penstock.worker.task_buffer import TaskBuffer
from penstock.worker.wake import Wake

log = structlog.get_logger("penstock.worker")
_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Worker:
    """One worker in one process.

    `concurrency` handlers run at once. With `drain=True`, `run` returns when no task is left. `grace_seconds`
    is how long running handlers may take to end after `stop()`; then they are stopped and their tasks
    requeued.
    """

    def __init__(
        self,
        app: App,
        *,
        dsn: str | None = None,
        concurrency: int = 10,
        kinds: list[str] | None = None,
        lease_seconds: int = 10,
        grace_seconds: float = 25,
        drain: bool = False,
        buffer: int = 2000,
        pulse: Pulse | None = None,
    ) -> None:
        if unknown := [kind for kind in kinds or () if kind not in app.tasks]:
            raise Invalid(f"the app has no task of kind {unknown[0]!r}", code="unknown_kind")
        if concurrency < 1 or lease_seconds < 1:
            raise Invalid(
                "concurrency and lease_seconds must be at least 1"
                f" (got concurrency={concurrency}, lease_seconds={lease_seconds})"
            )
        name = os.environ.get("PENSTOCK_WORKER_ID") or socket.gethostname()
        # Several processes may have one name.
        self.id = f"{name}-{os.getpid()}-{uuid4().hex[:6]}"
        self.app, self.concurrency = app, concurrency
        self.lease_seconds, self.grace_seconds = lease_seconds, grace_seconds
        self.kinds = list(kinds or app.tasks)
        self.is_draining = drain
        self.buffer = buffer
        self.is_clean = True
        """False after `run` if a handler's thread still runs: a thread cannot be stopped."""
        self.on_attempt: Callable[[AttemptEnd], None] | None = None
        """Called when a handler ends, unless its attempt was stopped."""
        self._stopping = asyncio.Event()
        self._task_buffer: TaskBuffer | None = None
        self._beat: Beat | None = None
        self._wake: Wake | None = None
        self._pulse = pulse
        if dsn is not None:
            app.use(dsn)

    async def run(self) -> None:
        """Work until `stop()` is called; when draining, until no task is left."""
        ticking = asyncio.create_task(self._tick(), name="tick") if self._pulse else None
        try:
            await self._run(await asyncio.to_thread(self.app.dsn))
        except Unavailable:
            # A worker stopped while it waits for the database has leased nothing, so this is no error.
            if not self._stopping.is_set() or self._task_buffer is not None:
                raise
        finally:
            if ticking is not None:
                ticking.cancel()

    async def _tick(self) -> None:
        """Tell the health checks that the event loop runs."""
        assert self._pulse is not None
        while True:
            answered_at = 0.0 if self._beat is None else self._beat.answered_at
            state = "draining" if self._stopping.is_set() else "running" if answered_at else "starting"
            # A heartbeat comes every third of a lease, or every five seconds; one may be missed.
            self._pulse.tick(state, answered_at, max_silence=max(12.0, self.lease_seconds))
            with contextlib.suppress(TimeoutError):
                # `stop()` ends the first pause early: readiness changes at once.
                async with asyncio.timeout(0.5):
                    await (asyncio.sleep(1) if state == "draining" else self._stopping.wait())

    async def _run(self, dsn: str) -> None:
        name = f"penstock worker {self.id}"
        async with (
            db.pool(dsn, name=name, max_size=2) as pool,
            # One session each: claims and reports are planned once in a worker, not once in each session.
            db.pool(dsn, name=f"{name} claims", max_size=1) as claims,
            db.pool(dsn, name=f"{name} reports", max_size=1) as reports,
            db.pool(dsn, name=f"{name} calls", min_size=0, max_size=CALL_CONNECTIONS) as calls,
        ):
            await db.retry_until_available(partial(self._begin, pool), is_stopped=self._stopping.is_set)
            buffer = self._task_buffer = TaskBuffer(
                self.id, self.app, pool, concurrency=self.concurrency, max_ahead=self.buffer,
                lease_seconds=self.lease_seconds, kinds=self.kinds,
            )  # fmt: skip
            upkeep = Upkeep(pool, self.app.draw)
            storage = lambda: self.app.storage if self.app.artifacts is None else None  # noqa: E731
            tidy = Tidy(pool, storage, self.app.uploads)
            wake = self._wake = Wake(dsn, buffer, upkeep.due, settings().listen)
            sender = Sender(pool, settings())
            reconcile = Reconcile(pool, self.app)
            wake.on_notification = sender.due.set
            upkeep.on_work = wake.work.set
            # A worker that gets no notifications and has no tasks polls less often.
            upkeep.max_pause = lambda: 5.0 if wake.is_listening or buffer.leased else 15.0
            finish = Finish(buffer, reports)
            execute = Execute(buffer, finish, dsn, calls)
            execute.on_attempt = self.on_attempt
            fetch = Fetch(buffer, claims, wake, finish, upkeep, stop_when_idle=self.is_draining)
            beat = self._beat = Beat(dsn, buffer, self._description())
            # Without notifications a worker learns nothing of the upkeep that the leader leaves to it.
            upkeep.is_leader = tidy.is_leader = lambda: beat.is_leader or not wake.is_listening
            beat.on_leader = upkeep.due.set
            wake.on_cancel = beat.beat_now
            beat.on_drain = self._stopping.set
            finish.on_parked = upkeep.due.set
            buffer.on_unstarted_stopped = execute.release
            buffer.on_lease_uncertain = beat.beat_now
            buffer.on_provider_slot_freed = wake.work.set
            beat.start()
            own = (wake, upkeep, tidy, sender, reconcile, finish, beat, execute.logs, execute.streams)
            loops = [*map(_endless, own), *execute.start()]
            fetching = asyncio.create_task(fetch.run(), name="fetch")
            log.info("worker.started", worker_id=self.id, kinds=self.kinds, concurrency=self.concurrency)
            try:
                await _wait_for_end(fetching, asyncio.create_task(self._stopping.wait()), *loops)
            finally:
                await fetch.stop(fetching)
                await self._wind_down(buffer, beat, execute, finish, loops)
                log.info("worker.stopped", worker_id=self.id, done=buffer.ended)

    def stop(self) -> None:
        """Claim no more tasks, give running handlers the grace time, then stop them and requeue their tasks.

        A second call ends the grace time at once.
        """
        if self._stopping.is_set():
            self.grace_seconds = 0
            if self._task_buffer is not None:
                self._task_buffer.notify()
        self._stopping.set()

    async def _wind_down(
        self,
        buffer: TaskBuffer,
        beat: Beat,
        execute: Execute,
        finish: Finish,
        loops: list[asyncio.Task[None]],
    ) -> None:
        beat.describe(state="draining")
        finish.hand_back(buffer.pop_unstarted())
        started_at = time.monotonic()
        while buffer.running > buffer.abandoned:
            if (left := started_at + self.grace_seconds - time.monotonic()) <= 0:
                break
            await buffer.wait_for_change(left)
        await execute.hand_back_running()
        await finish.flush_all()
        await execute.logs.flush()
        await end(loops)
        await asyncio.to_thread(beat.stop)
        self.is_clean = await execute.close()

    async def _begin(self, pool: db.Pool) -> None:
        await self._check(pool)
        await self.app.declare(pool)

    async def _check(self, pool: db.Pool) -> None:
        """Refuse a server whose settings could lose acknowledged work, and a schema that is out of date."""
        rows = await db.rows(pool, "select name, setting from pg_settings where name = any(%s)", (
            ["fsync", "full_page_writes", "synchronous_commit"],))  # fmt: skip
        unsafe = [name for name, setting in rows if setting == "off"]
        if unsafe and not os.environ.get("PENSTOCK_ALLOW_UNSAFE"):
            raise NotMigrated(
                f"PostgreSQL runs with {', '.join(unsafe)} off: a crash would lose acknowledged work",
                code="unsafe_settings",
                hint="Turn it on, or set PENSTOCK_ALLOW_UNSAFE=1 for a database whose data may be lost.",
            )
        applied = [name for (name,) in await db.rows(pool, "select name from penstock.migrations", ())]
        if missing := migrate.missing(applied):
            raise NotMigrated(
                f"the database lacks the migrations {', '.join(missing)}", hint="Run `penstock migrate`."
            )
        own = self.app.own
        if own is not None and not await db.rows(
            pool, "select from pg_namespace where nspname = %s", (own.schema,)
        ):
            raise NotMigrated(
                f"the database lacks the app's schema {own.schema}", hint="Run `penstock migrate MODULE:APP`."
            )

    def _description(self) -> dict[str, Any]:
        return {
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "kinds": self.kinds,
            "concurrency": self.concurrency,
            "version": penstock.__version__,
            "state": "running",
        }


def _endless(loop: Wake | Upkeep | Tidy | Sender | Reconcile | Finish | Beat | Batches) -> asyncio.Task[None]:
    return asyncio.create_task(loop.run(), name=type(loop).__name__.lower())


async def _wait_for_end(
    fetching: asyncio.Task[None], stopping: asyncio.Task[Any], *endless: asyncio.Task[None]
) -> None:
    """Wait until no task is left or `stop()` is called; raise the error of an endless loop that failed."""
    try:
        done, _ = await asyncio.wait((fetching, stopping, *endless), return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        stopping.cancel()


def run(
    app: App,
    dsn: str | None = None,
    *,
    concurrency: int = 10,
    kinds: list[str] | None = None,
    lease_seconds: int = 10,
    grace_seconds: float = 25,
    processes: int = 1,
    drain: bool = False,
    health: str | None = None,
) -> int:
    """Run a worker until SIGTERM or SIGINT; with several processes, restart those that die.

    `health` is a port, host:port or file for liveness and readiness probes. Returns the exit code. A second
    signal does not wait for running handlers.
    """
    options: dict[str, Any] = {
        "dsn": dsn or app.dsn(),
        "concurrency": concurrency,
        "kinds": kinds,
        "lease_seconds": lease_seconds,
        "grace_seconds": grace_seconds,
        "drain": drain,
    }
    pulses = [Pulse() for _ in range(processes)]
    # Draining is what SIGTERM does, and this process gets that in either case.
    checks = Health(health, pulses, on_drain=lambda: os.kill(os.getpid(), signal.SIGTERM))
    if processes == 1:
        checks.start()
    try:
        if processes == 1:
            return _run_one(app, {**options, "pulse": pulses[0]})
        return _run_many(app, options, pulses, checks)
    finally:
        checks.stop()


def _run_one(app: App, options: dict[str, Any]) -> int:
    async def main() -> None:
        worker = Worker(app, **options)
        loop = asyncio.get_running_loop()
        for number in _SIGNALS:
            loop.add_signal_handler(number, worker.stop)
        if parent := multiprocessing.parent_process():
            # A killed parent cannot stop its children, so they watch it.
            loop.add_reader(parent.sentinel, lambda: loop.remove_reader(parent.sentinel) and worker.stop())
        await worker.run()
        await app.aclose()
        if not worker.is_clean:
            # Python would wait for a thread that may never end; its task is requeued, so end the thread now.
            log.warning("worker.killed_threads", worker_id=worker.id)
            logging.shutdown()
            os._exit(0)

    asyncio.run(main())
    return 0


def _run_one_of_many(app: App, options: dict[str, Any]) -> None:
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
    app.forget()
    _run_one(app, options)


def _run_many(app: App, options: dict[str, Any], pulses: list[Pulse], checks: Health) -> int:
    context = multiprocessing.get_context("fork")
    is_stopping = False

    def start(pulse: Pulse) -> BaseProcess:
        pulse.reset()
        own = {**options, "pulse": pulse}
        child = context.Process(target=_run_one_of_many, args=(app, own), name="penstock worker")
        # The child would run the parent's handler for a signal that arrives during the fork.
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        child.start()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
        return child

    def stop(number: int, frame: object) -> None:
        nonlocal is_stopping
        is_stopping = True
        for child in children:
            if child.is_alive() and child.pid is not None:
                os.kill(child.pid, signal.SIGTERM)

    children: list[BaseProcess] = []
    for number in _SIGNALS:
        signal.signal(number, stop)
    children.extend(start(pulse) for pulse in pulses)
    # After the fork: a process with threads should not fork.
    checks.start()
    if is_stopping:
        stop(0, None)
    while any(child.is_alive() for child in children):
        wait([child.sentinel for child in children if child.is_alive()], timeout=0.5)
        for index, child in enumerate(children):
            # Exit code 0 means that the child was asked to stop.
            if not child.is_alive() and child.exitcode != 0 and not is_stopping and not options["drain"]:
                log.warning("worker.died", exit_code=child.exitcode)
                time.sleep(1)
                if not is_stopping:
                    children[index] = start(pulses[index])
    return 0 if all(child.exitcode in (0, -signal.SIGTERM) for child in children) else 1
