"""Processes for CPU-bound handlers: each runs one call at a time, and is killed if its task is stopped."""

from __future__ import annotations

import asyncio
import importlib
import multiprocessing
import os
import pickle
import signal
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from typing import Any, cast

from penstock.sdk.context import Fail, Reschedule
from penstock.sdk.job_types import Task
from penstock.worker import outcome

START_SECONDS = 60
Arguments = dict[str, Any] | tuple[tuple[Any, ...], dict[str, Any]]
"""A task's arguments by name, or a plain function's positional and keyword arguments."""
_Request = tuple[str, str, Arguments | None]
"""Module, function name and arguments; without arguments the function is only imported."""
_context = multiprocessing.get_context("spawn")


class Processes:
    """Starts and reuses processes: at most `limit` for tasks, and one per core for `compute`."""

    def __init__(self, limit: int) -> None:
        self._free: list[_Process] = []
        self._busy: set[_Process] = set()
        cores = os.cpu_count() or 1
        # One thread per process waits for its response.
        self._threads = ThreadPoolExecutor(limit + cores, thread_name_prefix="penstock process")
        # More computations than cores would only take turns, and need more memory.
        self._cores = asyncio.Semaphore(cores)

    async def call(self, function: Callable[..., Any], values: dict[str, Any], limit: float | None) -> Any:
        """Run a task's `function(**values)` in a process; returns the output as JSON text.

        Canceling this kills the process. The limit applies to the handler only: starting a process and
        importing the handler do not count.
        """
        return await self._call(function, values, limit)

    async def compute(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Run a plain function in a process and return its result; at most one per core runs at once.

        Canceling this kills the process.
        """
        async with self._cores:
            return await self._call(function, (args, kwargs), None)

    async def _call(self, function: Callable[..., Any], arguments: Arguments, limit: float | None) -> Any:
        process = self._free.pop() if self._free else _Process()
        self._busy.add(process)
        # The function is sent by name: pickle would find the decorated object under that name.
        name = (function.__module__, function.__qualname__)
        try:
            if name not in process.known:
                async with outcome.limited(START_SECONDS):
                    await self._send(process, (*name, None))
                process.known.add(name)
            async with outcome.limited(limit):
                status, *rest = await self._send(process, (*name, arguments))
        except BaseException:
            process.kill()
            raise
        finally:
            self._busy.discard(process)
        self._free.append(process)
        if status == "result":
            return rest[0]
        raise Reschedule(*rest) if status == "reschedule" else outcome.HandlerFailed(rest[0])

    async def _send(self, process: _Process, request: _Request) -> tuple[Any, ...]:
        loop = asyncio.get_running_loop()
        response, error = await asyncio.shield(
            loop.run_in_executor(self._threads, outcome.caught, process.send, request)
        )
        if error is not None:
            raise error
        return response

    def close(self) -> None:
        """Kill all processes."""
        for process in (*self._busy, *self._free):
            process.kill()
        self._free.clear()
        self._threads.shutdown(wait=False, cancel_futures=True)


class _Process:
    """A process and the pipe to it. Everything except `kill` runs in the thread that waits for it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_killed = False
        self._process: Any = None
        self._pipe: Connection | None = None
        self.known: set[tuple[str, str]] = set()
        """The functions it has imported, by module and name."""

    def send(self, request: _Request) -> tuple[Any, ...]:
        """Send a request and wait for the response; starts the process first if necessary."""
        pipe = self._started()
        try:
            pipe.send(request)
            return pipe.recv()
        except (EOFError, OSError) as error:
            self._process.join(5)
            raise outcome.ProcessDied(
                f"the handler's process died with exit code {self._process.exitcode}"
            ) from error
        except (pickle.PicklingError, TypeError, AttributeError) as error:
            raise Fail(f"the input cannot be sent to a process: {error}", code="bad_input") from error

    def kill(self) -> None:
        with self._lock:
            self._is_killed = True
            if self._process is not None:
                # The thread that waits for a response then sees the end of the pipe.
                self._process.kill()

    def _started(self) -> Connection:
        with self._lock:
            if self._is_killed:
                raise outcome.ProcessDied("the handler's process was killed before it started")
            if self._pipe is None:
                ours, theirs = _context.Pipe()
                process = _context.Process(target=_serve, args=(theirs,), daemon=True, name="penstock task")
                process.start()
                theirs.close()
                self._process, self._pipe = process, ours
            return self._pipe


def _serve(pipe: Connection) -> None:
    # A signal to the whole process group must not end this process while its worker drains.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    while True:
        try:
            request = pipe.recv()
        except EOFError:
            return
        response = respond(*request)
        try:
            pipe.send(response)
        except (pickle.PicklingError, TypeError, AttributeError) as error:
            failure = Fail(f"the result cannot be sent back from the process: {error}", code="bad_output")
            pipe.send(("failed", outcome.describe(failure)))


def named(module: str, name: str) -> Any:
    """What another process finds under the name of a function."""
    found: Any = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    return found


def respond(module: str, name: str, arguments: Arguments | None) -> tuple[Any, ...]:
    """Run a function by its name, or only import it; the result, or the described exception."""
    try:
        found = named(module, name)
        if arguments is None:
            return ("ready",)
        if isinstance(arguments, tuple):
            args, kwargs = arguments
            return "result", found(*args, **kwargs)
        if not isinstance(found, Task):
            raise TypeError(f"{module}.{name} is not a task: assign the task to a variable named {name}")
        task = cast("Task[Any, Any]", found)
        return "result", outcome.output(task, task.function(**arguments))
    except Reschedule as raised:
        return "reschedule", raised.delay, raised.reason
    except Exception as error:
        return "failed", outcome.describe(error)
