"""Processes for CPU-bound handlers: one call at a time each, killed when its task is stopped or too slow."""

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

from penstock.app import Task
from penstock.context import Fail, Reschedule
from penstock.worker import outcome

START_SECONDS = 60
_Arguments = dict[str, Any] | tuple[tuple[Any, ...], dict[str, Any]]
"""Those of a task by name; those of a plain function by place and by name."""
_Question = tuple[str, str, _Arguments | None]
"""Module, name and arguments; without them it is only imported."""
_context = multiprocessing.get_context("spawn")


class Processes:
    """Starts processes as they are needed, at most `limit` for tasks and one for each core; keeps them."""

    def __init__(self, limit: int) -> None:
        self._free: list[_Process] = []
        self._busy: set[_Process] = set()
        cores = os.cpu_count() or 1
        # A thread each, to wait for the answer: also where all that may compute does so beside all tasks.
        self._threads = ThreadPoolExecutor(limit + cores, thread_name_prefix="penstock process")
        # What computes needs a core: on more than there are it would only take turns, and memory.
        self._cores = asyncio.Semaphore(cores)

    async def call(self, function: Callable[..., Any], values: dict[str, Any], limit: float | None) -> Any:
        """Run a task's `function(**values)` in a process; gives the output as JSON text. Cancelling kills it.

        The limit is the handler's own: starting a process and importing what it needs is not its fault.
        """
        return await self._call(function, values, limit)

    async def compute(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Run a plain function in a process, as many at once as there are cores; gives what it returns.

        Cancelling kills it.
        """
        if "<" in function.__qualname__:
            raise Fail(f"a process finds {function.__qualname__} by name: put it at its module's level")
        async with self._cores:
            return await self._call(function, (args, kwargs), None)

    async def _call(self, function: Callable[..., Any], arguments: _Arguments, limit: float | None) -> Any:
        process = self._free.pop() if self._free else _Process()
        self._busy.add(process)
        # By name: what was decorated is not what pickle would find there.
        name = (function.__module__, function.__qualname__)
        try:
            if name not in process.known:
                async with outcome.limited(START_SECONDS):
                    await self._ask(process, (*name, None))
                process.known.add(name)
            async with outcome.limited(limit):
                word, *rest = await self._ask(process, (*name, arguments))
        except BaseException:
            process.kill()
            raise
        finally:
            self._busy.discard(process)
        self._free.append(process)
        if word == "answer":
            return rest[0]
        raise Reschedule(*rest) if word == "reschedule" else outcome.HandlerFailed(rest[0])

    async def _ask(self, process: _Process, what: _Question) -> tuple[Any, ...]:
        loop = asyncio.get_running_loop()
        answer, error = await asyncio.shield(
            loop.run_in_executor(self._threads, outcome.caught, process.ask, what)
        )
        if error is not None:
            raise error
        return answer

    def close(self) -> None:
        """Kill them all."""
        for process in (*self._busy, *self._free):
            process.kill()
        self._free.clear()
        self._threads.shutdown(wait=False, cancel_futures=True)


class _Process:
    """A process and the pipe to it. All but `kill` runs in the thread that waits for it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_killed = False
        self._process: Any = None
        self._pipe: Connection | None = None
        self.known: set[tuple[str, str]] = set()
        """The handlers it has imported."""

    def ask(self, what: _Question) -> tuple[Any, ...]:
        pipe = self._started()
        try:
            pipe.send(what)
            return pipe.recv()
        except (EOFError, OSError) as error:
            self._process.join(5)
            raise outcome.ProcessDied(f"its process ended with exit code {self._process.exitcode}") from error
        except (pickle.PicklingError, TypeError, AttributeError) as error:
            raise Fail(f"the input cannot be sent to a process: {error}", code="bad_input") from error

    def kill(self) -> None:
        with self._lock:
            self._is_killed = True
            if self._process is not None:
                # Whoever waits for an answer sees the pipe end.
                self._process.kill()

    def _started(self) -> Connection:
        with self._lock:
            if self._is_killed:
                raise outcome.ProcessDied("it was killed before it began")
            if self._pipe is None:
                self._pipe, theirs = _context.Pipe()
                self._process = _context.Process(
                    target=_serve, args=(theirs,), daemon=True, name="penstock task"
                )
                self._process.start()
                theirs.close()
            return self._pipe


def _serve(pipe: Connection) -> None:
    # The worker decides when this ends: a signal to the whole group must not spoil its drain.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    while True:
        try:
            question = pipe.recv()
        except EOFError:
            return
        answer = _answer(*question)
        try:
            pipe.send(answer)
        except (pickle.PicklingError, TypeError, AttributeError) as error:
            pipe.send(
                (
                    "failed",
                    outcome.describe(Fail(f"the result cannot be sent back: {error}", code="bad_output")),
                )
            )


def _answer(module: str, name: str, arguments: _Arguments | None) -> tuple[Any, ...]:
    try:
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
        if arguments is None:
            return ("ready",)
        if isinstance(arguments, tuple):
            args, kwargs = arguments
            return "answer", found(*args, **kwargs)
        if not isinstance(found, Task):
            raise TypeError(f"{module}.{name} is not a task: give it the name of its function")
        task = cast("Task[Any, Any]", found)
        return "answer", outcome.output(task, task.function(**arguments))
    except Reschedule as word:
        return "reschedule", word.delay, word.reason
    except Exception as error:
        return "failed", outcome.describe(error)
