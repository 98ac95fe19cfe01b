"""Engines: run a function outside of the worker, in a process or on a Ray cluster."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.util import find_spec
from typing import Any, cast

from penstock.errors import Invalid
from penstock.extras import missing
from penstock.sdk.context import Fail
from penstock.sdk.engines import checked
from penstock.sdk.job_types import Task
from penstock.worker.processes import Processes, named
from penstock.worker.ray_actors import RayActors

_MAIN = "actors cannot import from __main__: define it in a module that every node has"


class Engines:
    """The processes of a worker, and its actors on the Ray cluster."""

    def __init__(self, limit: int, tasks: Mapping[str, Task[Any, Any]]) -> None:
        if any(task.mode == "ray" for task in tasks.values()) and find_spec("ray") is None:
            raise missing("ray")
        for task in tasks.values():
            if task.mode in ("process", "ray"):
                _check_name(task)
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
            if function.__module__ == "__main__":
                raise Fail(f"{function.__qualname__}: {_MAIN}")
            return await self._actors.call(function, (args, kwargs), None, chosen)
        return await self._processes.compute(function, args, kwargs)

    def close(self) -> None:
        """Kill all processes and actors."""
        self._processes.close()
        self._actors.close()


def _check_name(task: Task[Any, Any]) -> None:
    """Refuse a task that a process or actor would not find by its name: every attempt would fail."""
    if task.mode == "ray" and task.__module__ == "__main__":
        raise Invalid(f"{task.kind}: {_MAIN}")
    try:
        found = named(task.__module__, task.__qualname__)
    except (ImportError, AttributeError):
        found = None
    if not isinstance(found, Task) or cast("Task[Any, Any]", found).kind != task.kind:
        name = f"{task.__module__}.{task.__qualname__}"
        raise Invalid(
            f"{task.kind}: {name} is not this task, so another process cannot import it by this name",
            hint=f"Assign the task to a variable named {task.__qualname__}, or decorate the function.",
        )
