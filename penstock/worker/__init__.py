"""The worker: claims tasks, runs handlers, reports how they went. Stateless; any number, on any machine.

    fetch    claims into a small local buffer, woken by wake
    execute  runs the handler of one task, in the loop, a thread or a process
    finish   reports in batches what has ended
    beat     extends the leases, from a thread of its own
    upkeep   takes back what others lost, queues what is due, fires schedules
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import socket
import time
from contextlib import AsyncExitStack
from typing import Any
from uuid import uuid4

import structlog

import penstock
from penstock import db, migrate
from penstock.app import App
from penstock.errors import NotMigrated
from penstock.settings import settings
from penstock.worker.beat import Beat
from penstock.worker.desk import Desk
from penstock.worker.execute import Execute
from penstock.worker.fetch import Fetch
from penstock.worker.finish import Finish
from penstock.worker.upkeep import Upkeep
from penstock.worker.wake import Wake

log = structlog.get_logger("penstock.worker")


class Worker:
    """One worker in one process.

    `concurrency` handlers run at once. `drain=True` ends it when nothing is left to do. `grace_seconds` is how
    long running handlers may take to end after `stop()`; what has not ended then is handed back.
    """

    def __init__(
        self,
        app: App,
        *,
        dsn: str | None = None,
        concurrency: int = 10,
        kinds: list[str] | None = None,
        lease_seconds: int = 30,
        grace_seconds: float = 25,
        drain: bool = False,
        buffer: int = 1000,
    ) -> None:
        self.id = f"{socket.gethostname()}-{os.getpid()}-{uuid4().hex[:6]}"
        self.app, self.concurrency, self.lease_seconds, self.grace_seconds = app, concurrency, lease_seconds, grace_seconds
        self.kinds = [kind for kind in app.tasks if kinds is None or kind in kinds]
        self.is_draining = drain
        self.buffer = buffer
        self._dsn = dsn
        self._stopping = asyncio.Event()

    async def run(self) -> None:
        """Work until `stop()` is called, or until all is done when draining."""
        dsn = self._dsn or await asyncio.to_thread(self.app.dsn)
        async with AsyncExitStack() as stack:
            pool = await stack.enter_async_context(db.pool(dsn, name=f"penstock worker {self.id}", min_size=2, max_size=6))
            await self._check(pool)
            await self.app.declare(pool)
            desk = Desk(self.id, self.app, pool, self.concurrency, self.buffer, self.lease_seconds, self.kinds)
            wake = Wake(dsn, desk, settings().listen)
            finish = Finish(desk)
            execute = Execute(desk, finish, dsn)
            fetch = Fetch(desk, wake, stop_when_idle=self.is_draining)
            beat = Beat(dsn, desk, self._description())
            upkeep = Upkeep(desk, wake)
            wake.on_cancel = beat.beat_now
            beat.start()
            loops = [asyncio.create_task(loop.run(), name=type(loop).__name__.lower()) for loop in (wake, upkeep, finish)]
            slots = execute.start()
            fetching = asyncio.create_task(fetch.run(), name="fetch")
            log.info("worker.started", worker_id=self.id, kinds=self.kinds, concurrency=self.concurrency)
            try:
                await _first(fetching, asyncio.create_task(self._stopping.wait()))
            finally:
                await self._wind_down(desk, beat, execute, finish, fetching, slots, loops)
                log.info("worker.stopped", worker_id=self.id, done=desk.ended)

    def stop(self) -> None:
        """Take nothing new, let what runs end within the grace time, hand back the rest."""
        self._stopping.set()

    async def _wind_down(
        self, desk: Desk, beat: Beat, execute: Execute, finish: Finish,
        fetching: asyncio.Task[None], slots: list[asyncio.Task[None]], loops: list[asyncio.Task[None]],
    ) -> None:  # fmt: skip
        desk.is_closing = True
        fetching.cancel()
        await asyncio.gather(fetching, return_exceptions=True)
        beat.describe(state="draining")
        finish.hand_back(desk.take_buffered())
        deadline = time.monotonic() + self.grace_seconds
        while desk.running and time.monotonic() < deadline:
            await desk.changed(deadline - time.monotonic())
        await execute.hand_back_running()
        await finish.flush_all()
        for task in (*slots, *loops):
            task.cancel()
        await asyncio.gather(*slots, *loops, return_exceptions=True)
        await asyncio.to_thread(beat.stop)
        execute.close()

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

    def _description(self) -> dict[str, Any]:
        return {
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "kinds": self.kinds,
            "concurrency": self.concurrency,
            "version": penstock.__version__,
            "state": "running",
        }


async def _first(*waiting: asyncio.Task[Any]) -> None:
    done, rest = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    for task in rest:
        task.cancel()
    await asyncio.gather(*rest, return_exceptions=True)
    for task in done:
        task.result()


def run(
    app: App,
    dsn: str | None = None,
    *,
    concurrency: int = 10,
    kinds: list[str] | None = None,
    lease_seconds: int = 30,
    grace_seconds: float = 25,
    processes: int = 1,
    drain: bool = False,
) -> int:
    """Run a worker until SIGTERM or SIGINT; with several processes, start again those that die. Returns the exit code."""
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
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, worker.stop)
        await worker.run()

    asyncio.run(main())
    return 0


def _run_many(app: App, options: dict[str, Any], processes: int) -> int:
    context = multiprocessing.get_context("fork")
    is_stopping = False
    children: list[Any] = []

    def start() -> Any:
        child = context.Process(target=_run_one, args=(app, options))
        child.start()
        return child

    def stop(number: int, frame: Any) -> None:
        nonlocal is_stopping
        is_stopping = True
        for child in children:
            if child.is_alive():
                os.kill(child.pid, signal.SIGTERM)

    children.extend(start() for _ in range(processes))
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    while any(child.is_alive() for child in children):
        for index, child in enumerate(children):
            child.join(0.2)
            if not child.is_alive() and not is_stopping and not options["drain"]:
                log.warning("worker.died", exit_code=child.exitcode)
                time.sleep(1)
                if not is_stopping:
                    children[index] = start()
    return max(abs(child.exitcode or 0) for child in children) and 1
