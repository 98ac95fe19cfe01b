"""Engines: run a function outside of the worker, in a process or on a Ray cluster."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.util import find_spec
from typing import Any

from penstock.extras import missing
from penstock.sdk.context import Fail
from penstock.sdk.engines import checked
from penstock.sdk.job_types import Task
from penstock.worker.processes import Processes
from penstock.worker.ray_actors import RayActors


class Engines:
    """The processes of a worker, and its actors on the Ray cluster."""

    def __init__(self, limit: int, tasks: Mapping[str, Task[Any, Any]]) -> None:
        if any(task.mode == "ray" for task in tasks.values()) and find_spec("ray") is None:
            raise missing("ray")
        self._processes = Processes(limit)
        self._actors = RayActors()

    async def call(self, task: Task[Any, Any], values: dict[str, Any], limit: float | None) -> Any:
        """Run a task; returns the output as JSON text. Canceling this kills the process or actor."""
        if task.mode == "ray":
            return await self._actors.call(task.function, values, limit, task.resources)
        return await self._processes.call(task.function, values, limit)

    async def compute(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any],
        on: str, resources: Mapping[str, Any] | None,
    ) -> Any:  # fmt: skip
        """Run a plain function and return its result. Canceling this kills the process or actor."""
        chosen = checked(on, resources)
        if "<" in function.__qualname__:
            raise Fail(
                f"cannot run {function.__qualname__} in a process: define it at the top level of its module"
            )
        if on == "ray":
            return await self._actors.call(function, (args, kwargs), None, chosen)
        return await self._processes.compute(function, args, kwargs)

    def close(self) -> None:
        """Kill all processes and actors."""
        self._processes.close()
        self._actors.close()
