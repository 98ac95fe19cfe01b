"""Processes for CPU-bound handlers: one call at a time each, killed when its task is stopped or too slow."""

from __future__ import annotations

import asyncio
import multiprocessing
import pickle
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

_context = multiprocessing.get_context("spawn")


class ProcessDied(Exception):
    """The process that ran the handler died."""


class Processes:
    """Starts processes as they are needed, at most `limit`, and keeps them for the next call."""

    def __init__(self, limit: int) -> None:
        self._free: list[_Process] = []
        self._all: set[_Process] = set()
        self._places = asyncio.Semaphore(limit)

    async def call(self, function: Callable[..., Any], values: dict[str, Any]) -> Any:
        """Run `function(**values)` in a process. Whoever cancels this kills the process."""
        async with self._places:
            process = self._free.pop() if self._free else self._start()
            try:
                result = await asyncio.shield(asyncio.get_running_loop().run_in_executor(None, process.call, function, values))
            except BaseException as error:
                if isinstance(error, HandlerError):
                    self._free.append(process)
                    raise error.original from None
                self._all.discard(process)
                process.kill()
                raise
            self._free.append(process)
            return result

    def close(self) -> None:
        for process in self._all:
            process.kill()
        self._all.clear()
        self._free.clear()

    def _start(self) -> _Process:
        process = _Process()
        self._all.add(process)
        return process


class HandlerError(Exception):
    """Carries a handler's exception out of the process."""

    def __init__(self, original: Exception) -> None:
        self.original = original


class _Process:
    def __init__(self) -> None:
        self._ours, theirs = _context.Pipe()
        self._process = _context.Process(target=_serve, args=(theirs,), daemon=True, name="penstock task")
        self._process.start()
        theirs.close()

    def call(self, function: Callable[..., Any], values: dict[str, Any]) -> Any:
        try:
            # By name: the decorated function is not what pickle would find there.
            self._ours.send((function.__module__, function.__qualname__, values))
            is_result, answer = self._ours.recv()
        except (EOFError, OSError) as error:
            self._process.join(1)
            raise ProcessDied(f"the process ended with exit code {self._process.exitcode}") from error
        if is_result:
            return answer
        raise HandlerError(answer)

    def kill(self) -> None:
        self._process.kill()
        self._process.join(5)
        self._ours.close()


def _serve(pipe: Connection) -> None:
    import importlib

    while True:
        try:
            module, name, values = pipe.recv()
        except EOFError:
            return
        try:
            found: Any = importlib.import_module(module)
            for part in name.split("."):
                found = getattr(found, part)
            answer: tuple[bool, Any] = (True, getattr(found, "function", found)(**values))
        except Exception as error:
            answer = (False, error)
        try:
            pipe.send(answer)
        except (pickle.PicklingError, TypeError, AttributeError) as error:
            pipe.send((False, TypeError(f"what the handler returned or raised cannot be sent: {error}")))
