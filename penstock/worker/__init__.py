"""The worker: claims tasks, runs handlers, reports how they went. Stateless; any number, on any machine.

fetch    claims into a small local buffer, woken by wake
execute  runs the handler of one task, in the loop, a thread or a process
finish   reports in batches what has ended
beat     extends the leases, from a thread of its own

Beside them each worker runs the two loops of `penstock.upkeep`.
"""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import os
import signal
import socket
import time
from functools import partial
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from typing import Any
from uuid import uuid4

import structlog

import penstock
from penstock import db, migrate
from penstock.app import App
from penstock.errors import Invalid, NotMigrated, Unavailable
from penstock.settings import settings
from penstock.upkeep import Tidy, Upkeep
from penstock.worker.beat import Beat
from penstock.worker.desk import Desk
from penstock.worker.execute import CALLS, Execute
from penstock.worker.fetch import Fetch
from penstock.worker.finish import Finish
from penstock.worker.wake import Wake

log = structlog.get_logger("penstock.worker")
_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Worker:
    """One worker in one process.

    `concurrency` handlers run at once. `drain=True` ends it when nothing is left to do. `grace_seconds` is
    how long running handlers may take to end after `stop()`; what has not ended then is handed back.
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
        buffer: int = 1000,
    ) -> None:
        if unknown := [kind for kind in kinds or () if kind not in app.tasks]:
            raise Invalid(f"the app has no task of the kind {unknown[0]!r}", code="unknown_kind")
        if concurrency < 1 or lease_seconds < 1:
            raise Invalid("concurrency and lease_seconds are at least 1")
        self.id = f"{socket.gethostname()}-{os.getpid()}-{uuid4().hex[:6]}"
        self.app, self.concurrency = app, concurrency
        self.lease_seconds, self.grace_seconds = lease_seconds, grace_seconds
        self.kinds = list(kinds or app.tasks)
        self.is_draining = drain
        self.buffer = buffer
        self.is_clean = True
        """Whether nothing was left running that could not be stopped. Known after `run`."""
        self._stopping = asyncio.Event()
        self._desk: Desk | None = None
        if dsn is not None:
            app.use(dsn)

    async def run(self) -> None:
        """Work until `stop()` is called, or until all is done when draining."""
        try:
            await self._run(await asyncio.to_thread(self.app.dsn))
        except Unavailable:
            # Told to stop while it still waited for the database: it held nothing.
            if not self._stopping.is_set() or self._desk is not None:
                raise

    async def _run(self, dsn: str) -> None:
        name = f"penstock worker {self.id}"
        async with (
            db.pool(dsn, name=name, min_size=2, max_size=4) as pool,
            db.pool(dsn, name=f"{name} calls", min_size=0, max_size=CALLS) as calls,
        ):
            # A database that goes away meanwhile is waited for, as it is later on.
            await db.once_it_answers(partial(self._begin, pool), is_stopped=self._stopping.is_set)
            desk = self._desk = Desk(
                self.id, self.app, pool, concurrency=self.concurrency, buffer=self.buffer,
                lease_seconds=self.lease_seconds, kinds=self.kinds,
            )  # fmt: skip
            upkeep = Upkeep(pool, self.app.draw)
            tidy = Tidy(pool, lambda: self.app.storage if self.app.artifacts is None else None)
            wake = Wake(dsn, desk, upkeep.due, settings().listen)
            upkeep.on_work = wake.work.set
            # Without notifications and without work of its own, a worker polls less often.
            upkeep.max_pause = lambda: 5.0 if wake.is_listening or desk.held else 15.0
            finish = Finish(desk)
            execute = Execute(desk, finish, dsn, calls)
            fetch = Fetch(desk, wake, finish, upkeep, stop_when_idle=self.is_draining)
            beat = Beat(dsn, desk, self._description())
            wake.on_cancel = beat.beat_now
            beat.on_drain = self._stopping.set
            finish.on_parked = upkeep.due.set
            desk.on_drop = execute.release
            desk.on_doubt = beat.beat_now
            desk.on_room = wake.work.set
            beat.start()
            loops = [_endless(loop) for loop in (wake, upkeep, tidy, finish)] + execute.start()
            fetching = asyncio.create_task(fetch.run(), name="fetch")
            log.info("worker.started", worker_id=self.id, kinds=self.kinds, concurrency=self.concurrency)
            try:
                await _first(fetching, asyncio.create_task(self._stopping.wait()), *loops)
            finally:
                await fetch.stop(fetching)
                await self._wind_down(desk, beat, execute, finish, loops)
                log.info("worker.stopped", worker_id=self.id, done=desk.ended)

    def stop(self) -> None:
        """Take nothing new, let what runs end within the grace time, hand back the rest. Twice: at once."""
        if self._stopping.is_set():
            self.grace_seconds = 0
            if self._desk is not None:
                self._desk.touch()
        self._stopping.set()

    async def _wind_down(
        self, desk: Desk, beat: Beat, execute: Execute, finish: Finish, loops: list[asyncio.Task[None]]
    ) -> None:
        beat.describe(state="draining")
        finish.hand_back(desk.take_buffered())
        started_at = time.monotonic()
        while desk.running > desk.abandoned:
            if (left := started_at + self.grace_seconds - time.monotonic()) <= 0:
                break
            await desk.changed(left)
        await execute.hand_back_running()
        await finish.flush_all()
        for task in loops:
            task.cancel()
        await asyncio.wait(loops, timeout=1)
        await asyncio.to_thread(beat.stop)
        self.is_clean = await execute.close()

    async def _begin(self, pool: db.Pool) -> None:
        await self._check(pool)
        await self.app.declare(pool)

    async def _check(self, pool: db.Pool) -> None:
        """Refuse to run where acknowledged work could be lost, or on a schema that is not ours."""
        rows = await db.rows(pool, "select name, setting from pg_settings where name = any(%s)", (
            ["fsync", "full_page_writes", "synchronous_commit"],))  # fmt: skip
        unsafe = [name for name, setting in rows if setting == "off"]
        if unsafe and not os.environ.get("PENSTOCK_ALLOW_UNSAFE"):
            raise NotMigrated(
                f"this PostgreSQL runs with {', '.join(unsafe)} off: a crash would lose acknowledged work",
                code="unsafe_settings",
                hint="Turn it on, or set PENSTOCK_ALLOW_UNSAFE=1 for a database that holds nothing of value.",
            )
        applied = [name for (name,) in await db.rows(pool, "select name from penstock.migrations", ())]
        if missing := migrate.missing(applied):
            raise NotMigrated(f"the database lacks {', '.join(missing)}", hint="Run `penstock migrate`.")
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


def _endless(loop: Wake | Upkeep | Tidy | Finish) -> asyncio.Task[None]:
    return asyncio.create_task(loop.run(), name=type(loop).__name__.lower())


async def _first(
    ending: asyncio.Task[None], stopping: asyncio.Task[Any], *endless: asyncio.Task[None]
) -> None:
    """Wait until the work is done, or is to stop; or until a loop that never ends has broken down."""
    try:
        done, _ = await asyncio.wait((ending, stopping, *endless), return_when=asyncio.FIRST_COMPLETED)
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
) -> int:
    """Run a worker until SIGTERM or SIGINT; of several processes, start again those that die.

    Returns the exit code. A second signal does not wait for running handlers.
    """
    options: dict[str, Any] = {
        "dsn": dsn or app.dsn(),
        "concurrency": concurrency,
        "kinds": kinds,
        "lease_seconds": lease_seconds,
        "grace_seconds": grace_seconds,
        "drain": drain,
    }
    return _run_one(app, options) if processes == 1 else _run_many(app, options, processes)


def _run_one(app: App, options: dict[str, Any]) -> int:
    async def main() -> None:
        worker = Worker(app, **options)
        loop = asyncio.get_running_loop()
        for number in _SIGNALS:
            loop.add_signal_handler(number, worker.stop)
        if parent := multiprocessing.parent_process():
            # Nobody else would end us if the parent were killed.
            loop.add_reader(parent.sentinel, lambda: loop.remove_reader(parent.sentinel) and worker.stop())
        await worker.run()
        await app.aclose()
        if not worker.is_clean:
            # Python would wait for a thread that never ends; its task is handed back and must not go on.
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


def _run_many(app: App, options: dict[str, Any], processes: int) -> int:
    context = multiprocessing.get_context("fork")
    is_stopping = False

    def start() -> BaseProcess:
        child = context.Process(target=_run_one_of_many, args=(app, options), name="penstock worker")
        # A signal in between would end up with the parent's handler in the child.
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
    children.extend(start() for _ in range(processes))
    if is_stopping:
        stop(0, None)
    while any(child.is_alive() for child in children):
        wait([child.sentinel for child in children if child.is_alive()], timeout=0.5)
        for index, child in enumerate(children):
            # One that ended well was asked to.
            if not child.is_alive() and child.exitcode != 0 and not is_stopping and not options["drain"]:
                log.warning("worker.died", exit_code=child.exitcode)
                time.sleep(1)
                if not is_stopping:
                    children[index] = start()
    return 0 if all(child.exitcode in (0, -signal.SIGTERM) for child in children) else 1
