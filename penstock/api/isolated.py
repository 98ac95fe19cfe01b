"""Runs the app's own code for requests outside of the event loop, with limits on time and tasks.

An app that `penstock serve MODULE:APP` loaded runs in child processes, which are killed at their limit. Any
other app runs in threads, where a body ends at its limit with its next step.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pydantic_core
import structlog

from penstock.api.limits import Limits
from penstock.api.shares import Flights, Shares
from penstock.errors import PenstockError, from_problem
from penstock.postgres import db
from penstock.sdk import child
from penstock.sdk.app import App
from penstock.sdk.graph import body_too_slow

log = structlog.get_logger("penstock.api")

_COMMAND = (sys.executable, "-c", "from penstock.sdk.child import main; main()")
_WALL = 10
"""How many times its CPU time a call may take on a busy machine, including the start of the process."""


@dataclass(frozen=True, slots=True)
class DrawnTasks:
    """What the body of a job type drew."""

    tasks: db.Json
    count: int
    result: Any
    """The job option `result`."""


class Isolated:
    """The child processes of one API process. One per application, at `app.state.isolated`."""

    def __init__(self, app: App | None, limits: Limits) -> None:
        self._app = app
        self._limits = limits
        self._free: list[_Child] = []
        self._all: set[_Child] = set()
        self.bodies = Shares("job bodies", limits.bodies)
        self.uploads = Shares("uploads", limits.uploads)
        self.files = Shares("files read at once", limits.files)
        self.puts = Shares("uploads", limits.puts)
        self.flights = Flights(limits.file_flights)

    async def draw(self, type: str, params: dict[str, Any], *, tenant: str, caller: str) -> DrawnTasks | None:
        """Run the body of a job type. None if the app lacks the type."""
        if self._app is None or not self._app.can_draw(type):
            return None
        most, seconds = self._limits.body_tasks, self._limits.body_draw_seconds
        async with self.bodies.take(tenant, caller):
            found = await self.run(
                "draw",
                seconds,
                lambda: body_too_slow(seconds),
                type=type,
                params=params,
                tasks=most,
                seconds=seconds,
            )
        text: str = found["text"]
        # The text is sent as it is: parsing and formatting it again would block the event loop.
        return DrawnTasks(db.Json([], dumps=lambda _: text), found["count"], found["result"])

    async def problems(
        self, type: str, params: dict[str, Any], *, tenant: str, caller: str
    ) -> dict[str, str]:
        """What is wrong with the params of a type of the app, by parameter."""
        seconds = self._limits.body_draw_seconds
        async with self.bodies.take(tenant, caller):
            return await self.run(
                "problems", seconds, lambda: body_too_slow(seconds), type=type, params=params
            )

    async def run(
        self, name: str, cpu_seconds: float, too_slow: Callable[[], PenstockError], **arguments: Any
    ) -> Any:
        """Call a function of `penstock.sdk.child`. Raises `too_slow` if it uses more CPU time.

        A function that needs no app always runs in a child process.
        """
        path = self._app.path if self._app else None
        if path is None and name not in child.WITHOUT_APP:
            assert self._app is not None
            return await asyncio.to_thread(child.FUNCTIONS[name], self._app, **arguments)
        message = json.dumps([name, cpu_seconds, arguments]).encode()
        process = self._free.pop() if self._free else _Child(path)
        self._all.add(process)
        try:
            async with asyncio.timeout(cpu_seconds * _WALL):
                answer = await process.ask(message)
        except BaseException as error:
            self._all.discard(process)
            is_slow = isinstance(error, TimeoutError) or await process.end() == -signal.SIGXCPU
            await process.end()
            if is_slow:
                raise too_slow() from None
            raise
        self._free.append(process)
        if "problem" in answer:
            raise from_problem(answer["problem"]["status"], answer["problem"])
        if "crash" in answer:
            raise RuntimeError(f"{name} failed in a child process:\n{answer['crash']}")
        return answer["result"]

    async def close(self) -> None:
        """Kill all child processes."""
        self._free.clear()
        await asyncio.gather(*(process.end() for process in self._all))
        self._all.clear()


class _Child:
    """A child process, which answers one request at a time."""

    def __init__(self, path: str | None) -> None:
        self._path = path
        self._process: Process | None = None

    async def ask(self, message: bytes) -> Any:
        if self._process is None:
            # In a session of its own: Ctrl-C must not end it while the server completes requests.
            self._process = await asyncio.create_subprocess_exec(
                *_COMMAND, stdin=PIPE, stdout=PIPE, start_new_session=True
            )
            for first in (sys.path, self._path):
                self._send(self._process, json.dumps(first).encode())
            log.info("child.started", pid=self._process.pid)
        process = self._process
        assert process.stdin is not None and process.stdout is not None
        self._send(process, message)
        await process.stdin.drain()
        try:
            size = int.from_bytes(await process.stdout.readexactly(4), "big")
            return pydantic_core.from_json(await process.stdout.readexactly(size))
        except asyncio.IncompleteReadError as error:
            raise RuntimeError("a child process of the API ended before it answered") from error

    @staticmethod
    def _send(process: Process, message: bytes) -> None:
        assert process.stdin is not None
        process.stdin.write(len(message).to_bytes(4, "big") + message)

    async def end(self) -> int | None:
        """Kill the process, and return its exit code."""
        process = self._process
        if process is None:
            return None
        if process.returncode is None:
            try:
                # The end of the pipe may be seen before the exit code.
                async with asyncio.timeout(0.5):
                    await process.wait()
            except TimeoutError:
                os.killpg(process.pid, signal.SIGKILL)
        return await process.wait()
