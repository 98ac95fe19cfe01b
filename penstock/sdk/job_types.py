"""What `@app.task` and `@app.job` make of a function, and the job that starting one returns."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass, field
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Generic,
    ParamSpec,
    Protocol,
    TypeVar,
    cast,
    overload,
)
from uuid import UUID

import pydantic

from penstock.contract import artifacts, jobs, tasks
from penstock.errors import Invalid, JobFailed, TimedOut
from penstock.formatting import seconds
from penstock.postgres import db
from penstock.sdk.context import Context
from penstock.sdk.engines import Mode, RayResources
from penstock.sdk.graph import Drawn, Graph, Options, current, drawing
from penstock.sdk.signature import Signature, Step, decode, encode
from penstock.types import Forecast, Job, failure

if TYPE_CHECKING:
    from penstock.sdk.app import App

P = ParamSpec("P")
R = TypeVar("R")


class Task(Generic[P, R]):
    """A function that workers run. Calling it runs it here; `start` starts a job of this one task.

    In the body of a job, `step` adds it to the job.
    """

    def __init__(
        self, app: App, function: Callable[..., Any], kind: str, *, mode: Mode, is_transactional: bool,
        settings: dict[str, Any], phase: str | None, resources: RayResources | None = None,
    ) -> None:  # fmt: skip
        self.app, self.function, self.kind, self.mode = app, function, kind, mode
        self.is_transactional, self.settings = is_transactional, settings
        self.resources = resources or RayResources()
        self.signature = Signature(function, is_handler=True)
        self.chosen = Options(phase=phase)
        self.__doc__, self.__name__ = function.__doc__, function.__name__
        self.__module__, self.__qualname__ = function.__module__, function.__qualname__

    def check_mode(self) -> None:
        """Raise Invalid if the function cannot run in the mode that it was declared with."""
        is_process, is_async = self.mode in ("process", "ray"), inspect.iscoroutinefunction(self.function)
        if is_process and (self.is_transactional or is_async):
            raise Invalid(
                f"{self.kind}: a cpu_bound or Ray task must be a plain function, not async or transactional"
            )
        if is_process and self.signature.takes_context:
            raise Invalid(
                f"{self.kind}: a cpu_bound or Ray task cannot take a Context: it runs in another process",
                hint="Call ctx.acompute from an async task instead.",
            )
        if is_process and "<" in self.function.__qualname__:
            raise Invalid(
                f"{self.kind}: a cpu_bound or Ray task must be defined at the top level of its module",
                hint="Its process imports it by name.",
            )
        if self.is_transactional and not self.signature.takes_context:
            raise Invalid(
                f"{self.kind}: a transactional task must take a Context as its first parameter",
                hint="ctx.connection is the connection of the transaction.",
            )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<task {self.kind}>"

    def options(self, **changes: Any) -> Task[P, R]:
        """A copy of the task with other options.

        `start` also takes options of the job. docs/sdk.md lists all.
        """
        other = cast("Task[P, R]", object.__new__(Task))
        other.__dict__.update(self.__dict__)
        other.chosen = self.chosen.changed(changes)
        return other

    def using(self, connection: Any) -> Task[P, R]:
        """A copy that starts its job in the transaction of a psycopg connection or SQLAlchemy session."""
        return self.options(using=connection)

    def step(self, *args: P.args, **kwargs: P.kwargs) -> Any:
        """Add this task to the job whose body is running."""
        graph = current.get()
        if graph is None:
            raise Invalid(
                f"{self.kind}.step() was called outside of a job's body",
                hint="Use start() for a job of this one task.",
            )
        values = self.signature.bind(args, kwargs)
        return graph.add(self.kind, self.signature, values, self.chosen.for_step(), self.chosen.after)

    def start(self, *args: P.args, **kwargs: P.kwargs) -> Started[R]:
        """Start a job of this one task."""
        return self.app.start(self.kind, self._draw(args, kwargs), self.chosen)

    async def astart(self, *args: P.args, **kwargs: P.kwargs) -> Started[R]:
        """Start a job of this one task."""
        return await self.app.astart(self.kind, self._draw(args, kwargs), self.chosen)

    def forecast(self, *args: P.args, **kwargs: P.kwargs) -> Forecast:
        """The cost, usage and duration of a `start` with these arguments. Starts nothing."""
        return self.app.forecast(self.kind, self._draw(args, kwargs), self.chosen)

    async def aforecast(self, *args: P.args, **kwargs: P.kwargs) -> Forecast:
        """The cost, usage and duration of an `astart` with these arguments. Starts nothing."""
        return await self.app.aforecast(self.kind, self._draw(args, kwargs), self.chosen)

    def _draw(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Drawn:
        return self.draw(self.signature.bind(args, kwargs))

    def draw(self, values: dict[str, Any]) -> Drawn:
        """Draw a job of this one task."""
        graph = Graph()
        step = graph.add(self.kind, self.signature, values, self.chosen.for_task())
        return Drawn({}, graph.tasks, encode(step, []), self.signature.load)


class TaskDecorator(Protocol):
    """The type of `app.task(...)`. The context is not one of the task's arguments."""

    @overload
    def __call__(
        self, function: Callable[Concatenate[Context, P], Coroutine[Any, Any, R]], /
    ) -> Task[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> Task[P, R]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[Context, P], R], /) -> Task[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> Task[P, R]: ...


class JobType(Generic[P]):
    """A function that draws a job's graph. `start` runs it once and starts the job."""

    def __init__(
        self, app: App, function: Callable[..., Any], name: str, phases: dict[str, float], on_failure: str,
        title: str | None = None,
    ) -> None:  # fmt: skip
        if inspect.iscoroutinefunction(function):
            raise Invalid(
                f"{name}: a job's body must be a plain function, not async",
                hint="It only draws the graph; the tasks may be async.",
            )
        self.app, self.function, self.name = app, function, name
        self.phases, self.on_failure, self.title = phases, on_failure, title
        self.signature = Signature(function, is_handler=False)
        if title is not None and not 1 <= len(title) <= 200:
            raise Invalid(f"{name}: title must have 1 to 200 characters (got {len(title)})")
        self.chosen = Options()
        self.__doc__, self.__name__ = function.__doc__, function.__name__

    def __repr__(self) -> str:
        return f"<job type {self.name}>"

    def all_phases(self) -> dict[str, float]:
        """The declared phases; empty if none are declared."""
        return self.phases

    def options(self, **changes: Any) -> JobType[P]:
        """A copy of the job type with other options for its jobs: docs/sdk.md lists them."""
        other: JobType[P] = object.__new__(JobType)
        other.__dict__.update(self.__dict__)
        other.chosen = self.chosen.changed(changes)
        for name in other.chosen.for_task():
            raise Invalid(f"{name} is an option of a step, not of a job", details={"field": name})
        return other

    def using(self, connection: Any) -> JobType[P]:
        """A copy that starts its jobs in the transaction of a psycopg connection or SQLAlchemy session."""
        return self.options(using=connection)

    def start(self, *args: P.args, **kwargs: P.kwargs) -> Started[Any]:
        """Draw the graph and start the job."""
        return self.app.start(self.name, self.draw(self.signature.bind(args, kwargs)), self.chosen)

    async def astart(self, *args: P.args, **kwargs: P.kwargs) -> Started[Any]:
        """Draw the graph and start the job."""
        return await self.app.astart(self.name, self.draw(self.signature.bind(args, kwargs)), self.chosen)

    def forecast(self, *args: P.args, **kwargs: P.kwargs) -> Forecast:
        """The cost, usage and duration of a `start` with these arguments. Starts nothing."""
        return self.app.forecast(self.name, self.draw(self.signature.bind(args, kwargs)), self.chosen)

    async def aforecast(self, *args: P.args, **kwargs: P.kwargs) -> Forecast:
        """The cost, usage and duration of an `astart` with these arguments. Starts nothing."""
        drawn = self.draw(self.signature.bind(args, kwargs))
        return await self.app.aforecast(self.name, drawn, self.chosen)

    def draw(self, values: dict[str, Any]) -> Drawn:
        """Run the body: the job's params, the tasks of its steps, and the value it returned."""
        params, _ = self.signature.encode(values)
        graph = Graph()
        with drawing(graph):
            returned = self.function(**self.signature.check(values))
        if not graph.tasks:
            raise Invalid(f"the body of {self.name} added no step: a job needs at least one", code="no_tasks")
        result = Step(graph.tasks[-1]["key"]) if returned is None else returned
        try:
            return Drawn(params, graph.tasks, encode(result, []))
        except (TypeError, ValueError, RecursionError) as error:
            raise Invalid(
                f"the value that the body of {self.name} returned cannot be stored: {error}"
            ) from error


@dataclass(slots=True)
class Started(Generic[R]):
    """A job that was started."""

    id: UUID
    app: App = field(repr=False)
    _drawn: Drawn = field(repr=False)

    async def aget(self) -> Job:
        """The job as it is now."""
        async with self.app.connections() as pool:
            return await jobs.get(pool, job_id=self.id)

    def get(self) -> Job:
        """The job as it is now."""
        return self.app.block(self.aget())

    async def aforecast(self) -> Forecast:
        """The cost, usage and duration of the rest of the job."""
        async with self.app.connections() as pool:
            return await jobs.forecast_rest(pool, job_id=self.id)

    def forecast(self) -> Forecast:
        """`aforecast` for code that is not async."""
        return self.app.block(self.aforecast())

    async def aresult(self, timeout: float | str | None = None) -> R:  # noqa: ASYNC109 (for the whole wait)
        """Wait until the job has ended and return the output of its task. Raises JobFailed or TimedOut.

        For a job of several steps this is the value that its body returned, with each step replaced by its
        output; if the body returned None, the output of the last step.
        """
        limit = None if timeout is None else seconds(timeout)
        try:
            async with asyncio.timeout(limit), self.app.connections() as pool:
                job = await jobs.ended(pool, job_id=self.id)
                if job.status != "completed":
                    raise await self._failure(pool, job)
                if not self._drawn.tasks:  # another process started it
                    stored: Any = await jobs.result(pool, job_id=self.id)
                    return await artifacts.expanded_result(pool, self.app, job_id=self.id, result=stored)
                found = await tasks.outputs(pool, self.id, keys=_references(self._drawn.result))
                outputs = await artifacts.expanded(pool, self.app, job_id=self.id, outputs=found)
        except TimeoutError as error:
            raise TimedOut(f"job {self.id} has not ended within {limit:g} s") from error
        result = decode(self._drawn.result, outputs)
        try:
            return self._drawn.load(result) if self._drawn.load else result
        except pydantic.ValidationError as error:
            raise Invalid(
                f"the output does not match the declared type: {error}", code="bad_output"
            ) from error

    def result(self, timeout: float | str | None = None) -> R:
        """`aresult` for code that is not async."""
        return self.app.block(self.aresult(timeout))

    async def _failure(self, pool: db.Pool, job: Job) -> JobFailed:
        failed = await jobs.tasks(pool, job_id=self.id, status="failed", limit=1)
        return failure(job, failed[0] if failed else None)


def _references(value: Any) -> list[str]:
    match value:
        case {"$from": str() as key}:
            return [key]
        case dict():
            return [key for item in cast("dict[str, Any]", value).values() for key in _references(item)]
        case list():
            return [key for item in cast("list[Any]", value) for key in _references(item)]
        case _:
            return []


def startable(job_types: Iterable[str], kinds: Iterable[str], bulks: Iterable[str]) -> list[str]:
    """What clients can start: the job types, then single tasks, without those that bulk types add."""
    named, added_by = set(job_types), set(bulks)
    own = {kind for kind in kinds if kind.rpartition(".")[0] not in added_by}
    return [*sorted(named), *sorted(own - named)]
