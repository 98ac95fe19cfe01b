"""Where a function runs outside of the worker: in one of its processes, or on a Ray cluster."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Literal, ParamSpec, TypedDict, TypeVar, overload

from penstock.errors import Invalid
from penstock.types import KindPolicy

P = ParamSpec("P")
R = TypeVar("R")
Engine = Literal["process", "ray"]
Mode = Literal["async", "thread", "process", "ray"]


class RayResources(TypedDict, total=False):
    """The resources of one Ray actor. Without `num_cpus` it takes one."""

    num_cpus: float
    num_gpus: float
    memory: int
    """In bytes."""
    accelerator_type: str
    resources: Mapping[str, float]
    """Resources that the cluster's nodes were started with, by name."""


def checked(engine: Any, resources: Mapping[str, Any] | None) -> RayResources:
    """The resources, if the engine exists and has them; raises Invalid otherwise."""
    if engine not in ("process", "ray"):
        raise Invalid(f"engine must be 'process' or 'ray' (got {engine!r})")
    if engine != "ray" and resources:
        raise Invalid("resources are for engine 'ray' only: a process has none")
    unknown = sorted(set(resources or {}) - set(RayResources.__annotations__))
    if unknown:
        known = ", ".join(RayResources.__annotations__)
        raise Invalid(f"unknown resource {unknown[0]!r}: allowed are {known}")
    return RayResources(**(resources or {}))


class TaskOptions(KindPolicy, total=False):
    """The policy of a kind, and where its handler runs."""

    engine: Engine | None
    """`ray`: in an actor on the worker's Ray cluster. `process`: the same as `cpu_bound`."""
    resources: RayResources | None
    """The resources of the Ray actor."""


def mode_of(function: Callable[..., Any], cpu_bound: bool, options: TaskOptions) -> tuple[Mode, RayResources]:
    """Removes the engine from the options: how the handler runs, and with which resources."""
    engine, resources = options.pop("engine", None), options.pop("resources", None)
    if engine == "ray" and cpu_bound:
        raise Invalid("a task is either cpu_bound or has engine='ray'")
    if engine is not None or resources is not None or cpu_bound:
        engine = engine or "process"
        return engine, checked(engine, resources)
    return "async" if inspect.iscoroutinefunction(function) else "thread", RayResources()


class Computing:
    """The part of a context that runs plain functions outside of the worker."""

    __slots__ = ()
    _hooks: Any

    @overload
    async def acompute(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R: ...
    @overload
    async def acompute(
        self,
        function: Callable[..., R],
        *args: Any,
        on: Engine,
        resources: RayResources | None = None,
        **kwargs: Any,
    ) -> R: ...
    async def acompute(
        self, function: Any, *args: Any, on: Engine = "process", resources: Any = None, **kwargs: Any
    ) -> Any:
        """Run a module-level function in one of the worker's processes, because it uses a core or may crash.

        With `on="ray"` it runs in an actor on the worker's Ray cluster, with these `resources`.
        A crash fails only this attempt; stopping the task kills the process. The function gets no context: it
        can write files for the handler to save. Arguments and result must be picklable.
        """
        return await self._hooks.compute(function, args, kwargs, on, resources)

    @overload
    def compute(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R: ...
    @overload
    def compute(
        self,
        function: Callable[..., R],
        *args: Any,
        on: Engine,
        resources: RayResources | None = None,
        **kwargs: Any,
    ) -> R: ...
    def compute(
        self, function: Any, *args: Any, on: Engine = "process", resources: Any = None, **kwargs: Any
    ) -> Any:
        """`acompute` from a handler in a thread."""
        return self._hooks.block(self._hooks.compute(function, args, kwargs, on, resources))
