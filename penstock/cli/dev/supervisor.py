"""Runs the API and the worker as processes that start and stop together, and restarts them on change."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import socket
import webbrowser
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from penstock.cli import output
from penstock.cli.dev import watch
from penstock.cli.dev.processes import run_api, run_worker
from penstock.cli.options import current_options
from penstock.settings import Settings

if TYPE_CHECKING:
    from penstock.api.development import Development

Name = Literal["API", "worker"]
RELOAD_GRACE_SECONDS = 2
"""On a reload, running handlers get this long; then their tasks are requeued and run with the new code."""
STOP_SECONDS = 10


class Supervisor:
    """The processes of `penstock dev`."""

    def __init__(
        self,
        settings: Settings,
        listening: socket.socket,
        path: str | None,
        developer: Development,
        concurrency: int,
        url: str,
        *,
        is_reloading: bool,
    ) -> None:
        self._settings, self._listening, self._path = settings, listening, path
        self._developer, self._concurrency, self._url = developer, concurrency, url
        self._watcher = watch.Watcher(Path.cwd()) if is_reloading and path else None
        self._context = multiprocessing.get_context("spawn")
        self._running: dict[Name, _Child] = {}
        self._stopping = asyncio.Event()
        self._reruns: list[asyncio.Task[None]] = []
        self._is_rerun_due = False

    async def run(self) -> int:
        """Work and serve until q or Ctrl-C, or until the worker or the API fails, which stops the other."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop)
        with watch.keys(self._press) as has_keys:
            # Whatever fails here: at its end, Python would wait forever for processes that still run.
            try:
                self._start_api()
                if self._path:
                    self._start_worker()
                if has_keys:
                    output.note("  Keys      o opens the dashboard, r runs the last job again, q quits")
                # Printed last: from here on a signal stops everything cleanly.
                none = "none. To run one, name your app: penstock dev mysite.jobs:app"
                reloads = " (restarts when a file changes)" if self._watcher else ""
                output.note(f"  Worker    {self._path + reloads if self._path else none}")
                code = await self._supervise()
            finally:
                await self._stop_all()
        output.note("Stopped the API and the worker." if self._path else "Stopped the API.")
        return code

    async def _supervise(self) -> int:
        """Restart on changes until a stop (0) or a failure (1)."""
        while True:
            waits: dict[asyncio.Task[Any], Name] = {
                asyncio.create_task(child.ended.wait()): name for name, child in self._running.items()
            }
            stopping = asyncio.create_task(self._stopping.wait())
            changing = asyncio.create_task(self._watcher.changed()) if self._watcher else None
            everything = {*waits, stopping, *([changing] if changing else [])}
            done, rest = await asyncio.wait(everything, return_when=asyncio.FIRST_COMPLETED)
            for task in rest:
                task.cancel()
            if stopping in done:
                return 0
            if ended := [name for task, name in waits.items() if task in done]:
                self._report_failure(ended)
                return 1
            assert changing is not None
            await self._reload(changing.result())

    def _report_failure(self, ended: Sequence[str]) -> None:
        if "API" in ended:
            what = f"The API stopped unexpectedly ({self._running['API'].exit_cause})"
        else:
            what = "The worker failed"
        output.note(f"{what}. Stopping.", "bold red")

    async def _reload(self, names: list[str]) -> None:
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        output.note(f"{names[0]}{more} changed. Restarting.", "bold")
        if (old := self._running.pop("worker", None)) is not None:
            await old.stop(RELOAD_GRACE_SECONDS)
        worker = self._start_worker()
        # The worker loads the app first: while it cannot be loaded, the API keeps serving the old version.
        if not await worker.is_ready():
            del self._running["worker"]
            await worker.stop(0)
            if not self._stopping.is_set():
                output.note("The worker waits for the next change.", "bold yellow")
            return
        await self._running.pop("API").stop(1)
        self._start_api()
        output.note("Running the new code.", "dim")
        if self._is_rerun_due:
            self._is_rerun_due = False
            worker.signal(signal.SIGUSR1)

    async def _stop_all(self) -> None:
        # The worker first: its handlers may call the API.
        for name in ("worker", "API"):
            if (child := self._running.pop(name, None)) is not None:
                await child.stop(None if name == "worker" else STOP_SECONDS)

    # Starting

    def _start_api(self) -> None:
        arguments = (current_options(), self._settings, self._listening, self._path, self._developer)
        self._running["API"] = self._start(run_api, *arguments)

    def _start_worker(self) -> _Child:
        address = self._settings.database_url
        arguments = (current_options(), address, self._path, self._concurrency, self._url)
        child = self._running["worker"] = self._start(run_worker, *arguments)
        return child

    def _start(self, target: Callable[..., None], *arguments: object) -> _Child:
        here, there = self._context.Pipe(duplex=False)
        # Not a daemon: those may not start processes, which CPU-bound tasks need.
        process = self._context.Process(target=target, args=(*arguments, there))
        # A terminal sends Ctrl-C to all processes. The children ignore it, because this process stops them.
        # A worker ignores the signal to run a job again until it can.
        before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGUSR1)}
        try:
            process.start()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
        there.close()
        return _Child(process, here)

    # Keys and signals

    def _stop(self) -> None:
        worker = self._running.get("worker")
        if not self._stopping.is_set():
            output.note("Stopping after the running tasks. Press Ctrl-C again to stop now.")
        elif worker:
            worker.signal(signal.SIGTERM)
        self._stopping.set()

    def _press(self, key: str) -> None:
        worker = self._running.get("worker")
        match key:
            case "o":
                login = f"{self._url}/dev/login?token={self._developer.token}"
                if not webbrowser.open(login):
                    output.note(f"No browser was found. Open {login}", "yellow")
            case "r" if worker:
                self._reruns.append(asyncio.create_task(self._rerun(worker)))
            case "r" if self._path:
                output.note("The worker is not running. It runs the last job again once it is.", "dim")
                self._is_rerun_due = True
            case "r":
                output.note("No worker is running.", "dim")
            case "q":
                self._stop()
            case _:
                pass

    async def _rerun(self, worker: _Child) -> None:
        """Tell the worker to run the last job again, once it has loaded the app."""
        if await worker.is_ready():
            worker.signal(signal.SIGUSR1)


class _Child:
    """A process, with an event for its end. It is created in a running event loop."""

    def __init__(self, process: BaseProcess, ready: Connection) -> None:
        self._process, self._ready = process, ready
        self.ended = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(process.sentinel, self._end)
        self._told: asyncio.Future[bool] = self._loop.create_future()
        self._loop.add_reader(ready.fileno(), self._receive)

    def _receive(self) -> None:
        self._loop.remove_reader(self._ready.fileno())
        try:
            self._told.set_result(bool(self._ready.recv()))
        except EOFError:
            self._told.set_result(False)

    def _end(self) -> None:
        self._loop.remove_reader(self._process.sentinel)
        self.ended.set()

    async def is_ready(self) -> bool:
        """Wait until the process has loaded the app; False if it ended instead."""
        return await asyncio.shield(self._told)

    def signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            if self._process.is_alive() and self._process.pid:
                os.kill(self._process.pid, number)

    async def stop(self, grace_seconds: float | None) -> None:
        """Ask the process to stop, again after the grace time, and kill it if that does not help."""
        self.signal(signal.SIGTERM)
        if grace_seconds is None:
            await self.ended.wait()
        with suppress(TimeoutError):
            await asyncio.wait_for(self.ended.wait(), grace_seconds)
        if not self.ended.is_set():
            self.signal(signal.SIGTERM)
            with suppress(TimeoutError):
                await asyncio.wait_for(self.ended.wait(), STOP_SECONDS)
        self._process.kill()
        await self.ended.wait()
        self._process.join()
        if not self._told.done():
            self._receive()
        self._ready.close()

    @property
    def exit_cause(self) -> str:
        self._process.join()
        code = self._process.exitcode or 0
        return f"by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
