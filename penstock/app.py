"""What users write against: App, @app.task, @app.job, Context, and how a handler says how it went.

    app = App()

    @app.task(max_attempts=5, timeout="2m")
    async def write_text(ctx: Context, topic: str) -> str: ...

    @app.task
    def render_pdf(text: str) -> bytes: ...

    @app.job(phases={"write_text": 60, "render_pdf": 40})
    def publish(topics: list[str]):
        for topic in topics:
            render_pdf.step(write_text.step(topic))

    job = publish.start(["otters", "herons"])      # or: await publish.astart(...)

A decorated function stays a function: calling it runs it. A job's body runs once, when the job is started,
and draws the graph: what `step` returns stands for an output that is not there yet.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import logging
import re
import sys
import threading
import weakref
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Concatenate, Generic, Literal, ParamSpec, TypeVar, cast, get_type_hints, overload
from uuid import UUID

import pydantic
import pydantic_core
import structlog

from penstock import db, embedded, jobs, kinds, migrate, tasks, tenants
from penstock.errors import Invalid, JobFailed, PenstockError, TimedOut
from penstock.settings import settings
from penstock.types import Job

P = ParamSpec("P")
R = TypeVar("R")
Mode = Literal["async", "thread", "process"]
_graph: ContextVar[Graph | None] = ContextVar("penstock_graph", default=None)

# --- how a handler says how it went ------------------------------------------------------------------------


class Fail(Exception):
    """Raise to end the task as failed for good: no retry would help."""

    def __init__(self, message: str, *, code: str = "failed", details: Any = None) -> None:
        super().__init__(message)
        self.code, self.details = code, details


class Retry(Exception):
    """Raise to fail this attempt and run the task again, not before `after` (seconds, or "40s", "2m")."""

    def __init__(self, message: str = "", *, after: float | str = 0, code: str = "retry") -> None:
        super().__init__(message)
        self.retry_after, self.code = seconds(after), code


class Reschedule(Exception):
    """Raise to give the task back until later, without costing an attempt."""

    def __init__(self, delay: float | str, reason: str = "rescheduled") -> None:
        super().__init__(reason)
        self.delay, self.reason = seconds(delay), reason


def seconds(value: float | str) -> float:
    """A duration: a number of seconds, or text such as "90s", "2m", "1h30m", "1d"."""
    if not isinstance(value, str):
        return float(value)
    parts = re.findall(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)", value)
    if not parts or "".join(number + unit for number, unit in parts) != value:
        raise Invalid(f"{value!r} is not a duration", hint='Write "90s", "2m", "1h30m".')
    return sum(float(number) * {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}[unit] for number, unit in parts)


# --- what a handler is given -------------------------------------------------------------------------------


class Context:
    """A running attempt: who it is for, how it reports, what it may do. Ask for it as the first parameter."""

    __slots__ = ("_hooks", "attempt", "connection", "fraction", "job_id", "key", "kind", "lease", "max_attempts",
                 "message", "task_id", "tenant_id", "worker_id", "_log", "_is_stopped")  # fmt: skip

    def __init__(self, claim: tasks.Claim, worker_id: str, hooks: Hooks) -> None:
        self.task_id, self.lease, self.job_id, self.tenant_id = claim.id, claim.lease, claim.job_id, claim.tenant_id
        self.kind, self.key, self.attempt, self.max_attempts = claim.kind, claim.key, claim.attempt, claim.max_attempts
        self.worker_id = worker_id
        self.fraction: float | None = None
        self.message: str | None = None
        self.connection: Any = None
        """In a transactional task: the connection whose transaction also completes the task."""
        self._hooks = hooks
        self._log: Any = None
        self._is_stopped = False

    @property
    def log(self) -> structlog.stdlib.BoundLogger:
        """A logger that says of which job and task a line is."""
        if self._log is None:
            self._log = structlog.get_logger("penstock.task").bind(
                job_id=str(self.job_id), task_id=self.task_id, kind=self.kind, attempt=self.attempt
            )
        return self._log

    @property
    def is_stopped(self) -> bool:
        """Whether the task was canceled or its lease lost. A handler in a thread looks at this now and then."""
        return self._is_stopped

    def stop(self) -> None:
        """Mark the attempt as over; its reports are refused from now on."""
        self._is_stopped = True

    def progress(self, done: float, of: float = 1, message: str | None = None) -> None:
        """Say how far the task is. Costs nothing: the worker sends the latest word now and then."""
        self.fraction = min(1.0, max(0.0, done / of)) if of > 0 else 0.0
        self.message = message if message is not None else self.message
        self._hooks.reported(self)

    async def aheartbeat(self) -> None:
        """Extend the lease now; raises LeaseLost when it is gone. (The worker extends it by itself.)"""
        await self._hooks.heartbeat(self)

    def heartbeat(self) -> None:
        """`aheartbeat` from a handler in a thread."""
        self._hooks.block(self._hooks.heartbeat(self))

    async def aadd_tasks(self, new: Sequence[dict[str, Any]]) -> list[int]:
        """Add tasks to the running job; they may come after this one by its key. Returns their ids."""
        return await self._hooks.add_tasks(self, new)

    def add_tasks(self, new: Sequence[dict[str, Any]]) -> list[int]:
        """`aadd_tasks` from a handler in a thread."""
        return self._hooks.block(self._hooks.add_tasks(self, new))

    async def asave(self, name: str, data: bytes, content_type: str = "application/octet-stream") -> dict[str, Any]:
        """Keep a file as an artifact of this task, by the app's `artifacts` hook; returns what to put into the output."""
        return await self._hooks.save(self, name, data, content_type)

    def save(self, name: str, data: bytes, content_type: str = "application/octet-stream") -> dict[str, Any]:
        """`asave` from a handler in a thread."""
        return self._hooks.block(self._hooks.save(self, name, data, content_type))

    @classmethod
    def fake(cls, **values: Any) -> Context:
        """A context for calling a handler in a plain test."""
        claim = tasks.Claim(0, 0, UUID(int=0), UUID(int=0), "test", None, {}, 1, 1, None)
        return cls(claim._replace(**values), "test", Hooks())


class Hooks:
    """What a context asks of its surroundings. The worker has the real one; this one is for plain tests."""

    def reported(self, ctx: Context) -> None:
        """Progress has moved."""

    async def heartbeat(self, ctx: Context) -> None:
        """Extend the lease."""

    async def add_tasks(self, ctx: Context, new: Sequence[dict[str, Any]]) -> list[int]:
        """Add tasks to the job."""
        return list(range(1, len(new) + 1))

    async def save(self, ctx: Context, name: str, data: bytes, content_type: str) -> dict[str, Any]:
        """Keep a file."""
        return {"path": name, "bytes": len(data), "content_type": content_type}

    def block(self, work: Coroutine[Any, Any, R]) -> R:
        """Run in the worker's loop from a thread, and wait."""
        return asyncio.run(work)


# --- tasks -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Options:
    """How a job or a step is started, apart from its arguments."""

    tenant_id: UUID | None = None
    idempotency_key: str | None = None
    priority: int | None = None
    run_at: datetime | None = None
    delay: float | None = None
    on_failure: str | None = None
    paused: bool = False
    key: str | None = None
    phase: str | None = None
    provider: str | None = None
    units: dict[str, int] | None = None
    after_failure: str | None = None
    using: Any = None

    def for_job(self) -> dict[str, Any]:
        """As the options of start_job."""
        names = ("tenant_id", "idempotency_key", "priority", "run_at", "on_failure", "paused")
        chosen = {name: getattr(self, name) for name in names}
        return {name: value for name, value in chosen.items() if value not in (None, False)}

    def for_task(self) -> dict[str, Any]:
        """As fields of an element of p_tasks."""
        names = ("key", "phase", "provider", "units", "after_failure")
        return {name: getattr(self, name) for name in names if getattr(self, name) is not None}


@dataclass(slots=True)
class Step:
    """Stands for the output of a task that has not run."""

    key: str

    def __getattr__(self, name: str) -> Any:
        raise Invalid(
            f"step {self.key!r} has no output yet: a job's body only draws the graph",
            hint="Work on outputs inside a task, and pass the step as its argument.",
        )


class Graph:
    """The tasks a job's body asks for, in an order where parents come first."""

    def __init__(self) -> None:
        self.tasks: list[dict[str, Any]] = []
        self._counts: dict[str, int] = {}

    def add(self, task: Task[Any, Any], values: dict[str, Any], options: Options) -> Step:
        after: list[str] = []
        spec: dict[str, Any] = {"kind": task.kind, "input": encode(values, after), **options.for_task()}
        if "key" not in spec:
            self._counts[task.kind] = self._counts.get(task.kind, 0) + 1
            spec["key"] = f"{task.kind}-{self._counts[task.kind]}"
        if after:
            spec["after"] = list(dict.fromkeys(after))
        if options.priority is not None:
            spec["priority"] = options.priority
        if options.run_at is not None:
            spec["run_at"] = options.run_at.isoformat()
        self.tasks.append(spec)
        return Step(spec["key"])


def encode(value: Any, after: list[str]) -> Any:
    """A value as JSON; a step in it becomes a reference, and its key is noted in `after`."""
    match value:
        case Step():
            after.append(value.key)
            return {"$from": value.key}
        case dict():
            return {str(key): encode(item, after) for key, item in cast("dict[Any, Any]", value).items()}
        case list() | tuple():
            return [encode(item, after) for item in cast("list[Any]", value)]
        case _:
            return pydantic_core.to_jsonable_python(value)


def decode(value: Any, outputs: dict[str, Any]) -> Any:
    """The value with references replaced by the outputs they stand for."""
    match value:
        case {"$from": str() as key} if len(cast("dict[str, Any]", value)) == 1:
            return tasks.load(outputs.get(key))
        case dict():
            return {key: decode(item, outputs) for key, item in cast("dict[str, Any]", value).items()}
        case list():
            return [decode(item, outputs) for item in cast("list[Any]", value)]
        case _:
            return value


class Signature:
    """A function's parameters, as a model of the input; built once."""

    def __init__(self, function: Callable[..., Any]) -> None:
        hints = get_type_hints(function)
        parameters = list(inspect.signature(function).parameters.values())
        first = parameters[0] if parameters else None
        self.takes_context = first is not None and hints.get(first.name) is Context
        self.parameters = parameters[1:] if self.takes_context else parameters
        self.names = [p.name for p in self.parameters if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)]
        self.takes_rest = any(p.kind is p.VAR_KEYWORD for p in self.parameters)
        if any(p.kind in (p.VAR_POSITIONAL, p.POSITIONAL_ONLY) for p in self.parameters):
            raise Invalid(f"{function.__name__} takes positional-only parameters", hint="An input has names.")
        fields: dict[str, Any] = {
            p.name: (hints.get(p.name, Any), ... if p.default is p.empty else p.default)
            for p in self.parameters
            if p.name in self.names
        }
        self.model = pydantic.create_model(
            f"{function.__name__}_input",
            __config__=pydantic.ConfigDict(extra="forbid", arbitrary_types_allowed=True, protected_namespaces=()),
            **fields,
        )
        self.returns: pydantic.TypeAdapter[Any] | None = None
        returned = hints.get("return", Any)
        if returned not in (Any, None, type(None), dict, list, str, int, float, bool):
            self.returns = pydantic.TypeAdapter(returned, config=None)

    def bind(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """Arguments of a call, by name."""
        try:
            bound = inspect.Signature(self.parameters).bind(*args, **kwargs)
        except TypeError as error:
            raise Invalid(f"{function.__name__}: {error}") from error
        values = dict(bound.arguments)
        for parameter in self.parameters:
            if parameter.kind is parameter.VAR_KEYWORD:
                values.update(values.pop(parameter.name, {}))
        return values

    def check(self, values: dict[str, Any]) -> dict[str, Any]:
        """Values as the handler gets them: validated and converted."""
        known = {name: values[name] for name in self.names if name in values}
        rest = {name: value for name, value in values.items() if name not in known}
        if rest and not self.takes_rest:
            raise Invalid(f"unknown input {', '.join(sorted(rest))}", code="bad_input", details={"field": sorted(rest)[0]})
        if not self.names:
            return rest
        try:
            model = self.model.model_validate(known)
        except pydantic.ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            where = ".".join(str(part) for part in first["loc"])
            raise Invalid(f"{where}: {first['msg']}", code="bad_input", details={"field": where}) from error
        return {name: getattr(model, name) for name in self.names} | rest

    def dump(self, value: Any) -> Any:
        """A return value as JSON."""
        if value is None or type(value) in (dict, list, str, int, float, bool):
            return pydantic_core.to_jsonable_python(value) if type(value) in (dict, list) else value
        return self.returns.dump_python(value, mode="json") if self.returns else pydantic_core.to_jsonable_python(value)


class Task(Generic[P, R]):
    """A function that workers run. Calling it runs it here; `start` makes a job of it; `step` puts it into a graph."""

    def __init__(self, app: App, function: Callable[..., R], kind: str, mode: Mode, is_transactional: bool,
                 settings: dict[str, Any], phase: str | None) -> None:  # fmt: skip
        self.app, self.function, self.kind, self.mode = app, function, kind, mode
        self.is_transactional, self.settings = is_transactional, settings
        self.signature = Signature(function)
        self._options = Options(phase=phase)
        if mode == "process" and self.signature.takes_context:
            raise Invalid(f"{kind}: a handler in a process has no context", hint="Do the reporting in an async task.")
        self.__doc__ = function.__doc__
        self.__name__ = function.__name__

    def __call__(self, *args: Any, **kwargs: Any) -> R:
        return self.function(*args, **kwargs)

    def options(self, **changes: Any) -> Task[P, R]:
        """The same task with other options: tenant_id, idempotency_key, priority, run_at, delay, key, phase, provider, units, after_failure."""
        other: Task[P, R] = object.__new__(Task)
        other.__dict__.update(self.__dict__)
        other._options = _changed(self._options, changes)
        return other

    def using(self, connection: Any) -> Task[P, R]:
        """The same task, started in the caller's own transaction: a psycopg connection or an SQLAlchemy session."""
        return self.options(using=connection)

    def step(self, *args: P.args, **kwargs: P.kwargs) -> Any:
        """This task as a step of the job whose body is running."""
        graph = _graph.get()
        if graph is None:
            raise Invalid(f"{self.kind}.step() outside of a job's body", hint="Use start() to run it by itself.")
        return graph.add(self, self.signature.bind(self.function, args, kwargs), self._options)

    def start(self, *args: P.args, **kwargs: P.kwargs) -> Started:
        """A job of this one task."""
        return self.app.start(self.kind, *self._single(args, kwargs), self._options)

    async def astart(self, *args: P.args, **kwargs: P.kwargs) -> Started:
        """A job of this one task."""
        return await self.app.astart(self.kind, *self._single(args, kwargs), self._options)

    def _single(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        values = self.signature.bind(self.function, args, kwargs)
        self.signature.check(values)
        graph = Graph()
        graph.add(self, values, self._options)
        return {}, graph.tasks


class JobType(Generic[P]):
    """A function that draws a job's graph. `start` runs it once and starts the job."""

    def __init__(self, app: App, function: Callable[..., Any], name: str, phases: dict[str, float], on_failure: str) -> None:
        self.app, self.function, self.name, self.phases, self.on_failure = app, function, name, phases, on_failure
        self.signature = Signature(function)
        self._options = Options()
        self.__doc__ = function.__doc__
        self.__name__ = function.__name__

    def options(self, **changes: Any) -> JobType[P]:
        """The same job type with other options: tenant_id, idempotency_key, priority, run_at, delay, on_failure, paused."""
        other: JobType[P] = object.__new__(JobType)
        other.__dict__.update(self.__dict__)
        other._options = _changed(self._options, changes)
        return other

    def using(self, connection: Any) -> JobType[P]:
        """The same job type, started in the caller's own transaction."""
        return self.options(using=connection)

    def start(self, *args: P.args, **kwargs: P.kwargs) -> Started:
        """Draw the graph and start the job."""
        return self.app.start(self.name, *self.draw(self.signature.bind(self.function, args, kwargs)), self._options)

    async def astart(self, *args: P.args, **kwargs: P.kwargs) -> Started:
        """Draw the graph and start the job."""
        return await self.app.astart(self.name, *self.draw(self.signature.bind(self.function, args, kwargs)), self._options)

    def draw(self, values: dict[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """The job's params and the tasks its body asks for."""
        graph = Graph()
        token = _graph.set(graph)
        try:
            self.function(**self.signature.check(values))
        finally:
            _graph.reset(token)
        if not graph.tasks:
            raise Invalid(f"the body of {self.name} asked for no step", code="no_tasks")
        return encode(values, []), graph.tasks


def _changed(options: Options, changes: dict[str, Any]) -> Options:
    if "delay" in changes and changes["delay"] is not None:
        changes["delay"] = seconds(changes["delay"])
    try:
        return replace(options, **changes)
    except TypeError as error:
        raise Invalid(str(error).replace("Options.__init__() ", "options() ")) from error


@dataclass(slots=True)
class Started:
    """A job that was started."""

    id: UUID
    app: App = field(repr=False)
    final_key: str | None = field(default=None, repr=False)

    async def aget(self) -> Job:
        """The job as it is now."""
        async with self.app.connections() as where:
            return await jobs.get(where, job_id=self.id)

    def get(self) -> Job:
        """The job as it is now."""
        return self.app.block(self.aget())

    async def aresult(self, timeout: float | str | None = None) -> Any:  # noqa: ASYNC109 (a deadline for the whole wait)
        """Wait until the job has ended; the output of its last step. Raises JobFailed, TimedOut."""
        limit = None if timeout is None else seconds(timeout)
        try:
            async with asyncio.timeout(limit), self.app.connections() as where:
                job = await jobs.ended(where, job_id=self.id)
                if job.status != "completed":
                    raise JobFailed(f"the job {job.status}: {job.status_reason}", details={"job_id": str(self.id)})
                outputs = await jobs.outputs(where, job_id=self.id)
        except TimeoutError as error:
            raise TimedOut(f"job {self.id} has not ended within {limit} s") from error
        return tasks.load(outputs.get(self.final_key) if self.final_key in outputs else next(iter(outputs.values()), None))

    def result(self, timeout: float | str | None = None) -> Any:
        """Wait until the job has ended; the output of its last step."""
        return self.app.block(self.aresult(timeout))


# --- the app -----------------------------------------------------------------------------------------------


class App:
    """The tasks, job types and schedules of an application, and its way to the database.

    Without `database_url` and `DATABASE_URL` an embedded PostgreSQL is used. Jobs started without a tenant
    belong to the tenant called `tenant`, which is made when it is missing.
    """

    def __init__(self, *, database_url: str | None = None, tenant: str | UUID = "default") -> None:
        self.tasks: dict[str, Task[Any, Any]] = {}
        self.job_types: dict[str, JobType[Any]] = {}
        self.schedules: list[dict[str, Any]] = []
        self.artifacts: Callable[[Context, str, bytes, str], Coroutine[Any, Any, dict[str, Any]]] | None = None
        """How `Context.save` keeps a file: given context, name, bytes and type, returns its description."""
        self.tenant = tenant
        self._database_url = database_url
        self._tenant_id: UUID | None = tenant if isinstance(tenant, UUID) else None
        self._is_declared = False
        self._pools: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, tuple[db.Pool, AsyncExitStack]] = (
            weakref.WeakKeyDictionary()
        )
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lock = threading.Lock()

    @overload
    def task(self, function: Callable[Concatenate[Context, P], R], /) -> Task[P, R]: ...
    @overload
    def task(self, function: Callable[P, R], /) -> Task[P, R]: ...
    @overload
    def task(
        self,
        *,
        kind: str | None = None,
        phase: str | None = None,
        max_attempts: int = 3,
        timeout: float | str | None = None,
        backoff: float | str = 2,
        backoff_cap: float | str = 300,
        retry_for: float | str | None = None,
        category: str = "general",
        cpu_bound: bool = False,
        transactional: bool = False,
    ) -> Callable[[Callable[..., R]], Task[..., R]]: ...
    def task(self, function: Callable[..., Any] | None = None, /, **options: Any) -> Any:
        """Make a function a task. Async ones run in the loop, others in threads, `cpu_bound` ones in processes.

        `transactional`: what the handler writes through `ctx.connection` and the task's completion are one commit.
        """
        if function is None:
            return lambda function: self._add_task(function, **options)  # pyright: ignore[reportUnknownLambdaType]
        return self._add_task(function)

    def _add_task(
        self,
        function: Callable[..., Any],
        *,
        kind: str | None = None,
        phase: str | None = None,
        max_attempts: int = 3,
        timeout: float | str | None = None,
        backoff: float | str = 2,
        backoff_cap: float | str = 300,
        retry_for: float | str | None = None,
        category: str = "general",
        cpu_bound: bool = False,
        transactional: bool = False,
    ) -> Task[Any, Any]:
        kind = kind or function.__name__
        if kind in self.tasks:
            raise Invalid(f"there are two tasks of the kind {kind!r}")
        mode: Mode = "process" if cpu_bound else "async" if inspect.iscoroutinefunction(function) else "thread"
        if cpu_bound and (transactional or inspect.iscoroutinefunction(function)):
            raise Invalid(f"{kind}: a cpu_bound handler is a plain function without a transaction")
        declared = {
            "name": kind,
            "category": category,
            "max_attempts": max_attempts,
            "backoff_seconds": seconds(backoff),
            "backoff_cap_seconds": seconds(backoff_cap),
            "retry_seconds": None if retry_for is None else seconds(retry_for),
            "timeout_seconds": None if timeout is None else seconds(timeout),
        }
        task: Task[Any, Any] = Task(self, function, kind, mode, transactional, declared, phase)
        self.tasks[kind] = task
        self._is_declared = False
        return task

    @overload
    def job(self, function: Callable[P, Any], /) -> JobType[P]: ...
    @overload
    def job(
        self, *, name: str | None = None, phases: dict[str, float] | None = None, on_failure: str = "continue"
    ) -> Callable[[Callable[P, Any]], JobType[P]]: ...
    def job(
        self,
        function: Callable[..., Any] | None = None,
        /,
        *,
        name: str | None = None,
        phases: dict[str, float] | None = None,
        on_failure: str = "continue",
    ) -> Any:
        """Make a function that draws a graph a job type. `phases`: their names and weights, in order."""

        def add(function: Callable[..., Any]) -> JobType[Any]:
            kind = JobType[Any](self, function, name or function.__name__, phases or {}, on_failure)
            if kind.name in self.job_types:
                raise Invalid(f"there are two job types called {kind.name!r}")
            self.job_types[kind.name] = kind
            self._is_declared = False
            return kind

        return add if function is None else add(function)

    def schedule(
        self, what: Task[Any, Any] | JobType[Any], cron: str, *, name: str | None = None, timezone: str = "UTC",
        missed: str = "once", params: dict[str, Any] | None = None,
    ) -> None:  # fmt: skip
        """Start a job by the clock. `missed`: after an outage skip the ticks, run `once`, or run `all`."""
        own = what.kind if isinstance(what, Task) else what.name
        self.schedules.append(
            {"name": name or own, "cron": cron, "job_type": own, "timezone": timezone, "missed": missed, "params": params or {}}
        )

    def draw(self, job_type: str, params: dict[str, Any]) -> list[dict[str, Any]] | None:
        """The tasks of a job type, for a schedule that stores none; None when this app does not have it."""
        if job_type in self.job_types:
            return self.job_types[job_type].draw(params)[1]
        if job_type in self.tasks:
            return [{"kind": job_type, "key": f"{job_type}-1", "input": params}]
        return None

    # --- starting ---

    async def astart(
        self, type: str, params: dict[str, Any], new: list[dict[str, Any]], options: Options | None = None
    ) -> Started:
        """Start a job from its tasks as the SQL contract has them."""
        options = options or Options()
        chosen = options.for_job()
        if options.using is not None:
            job_id = await self._start_using(options, type, params, new, chosen)
        else:
            async with self.connections() as where:
                await self.declare(where)
                chosen.setdefault("tenant_id", await self.tenant_id(where))
                job_id = await jobs.start(where, type=type, params=params, tasks=new, **self._timed(options, chosen))
        return Started(job_id, self, new[-1].get("key"))

    def start(
        self, type: str, params: dict[str, Any], new: list[dict[str, Any]], options: Options | None = None
    ) -> Started:
        """`astart` for code that is not async."""
        options = options or Options()
        if options.using is None:
            return self.block(self.astart(type, params, new, options))
        chosen = options.for_job()
        chosen.setdefault("tenant_id", self.block(self._ready_tenant()))
        job_id = jobs.start_sync(options.using, type=type, params=params, tasks=new, **self._timed(options, chosen))
        return Started(job_id, self, new[-1].get("key"))

    async def _start_using(
        self, options: Options, type: str, params: dict[str, Any], new: list[dict[str, Any]], chosen: dict[str, Any]
    ) -> UUID:
        # Kinds and tenant are made on a connection of our own: they outlive a rollback of the caller's.
        chosen.setdefault("tenant_id", await self._ready_tenant())
        return await jobs.start_in(options.using, type=type, params=params, tasks=new, **self._timed(options, chosen))

    async def _ready_tenant(self) -> UUID:
        async with self.connections() as where:
            await self.declare(where)
            return await self.tenant_id(where)

    @staticmethod
    def _timed(options: Options, chosen: dict[str, Any]) -> dict[str, Any]:
        return {**chosen, "delay_seconds": options.delay} if options.delay is not None else chosen

    async def declare(self, where: db.Pool) -> None:
        """Tell the database which kinds and job types there are. Once per process, and again when one is added."""
        if self._is_declared:
            return
        await kinds.define(where, kinds=[task.settings for task in self.tasks.values()])
        for kind in self.job_types.values():
            phases = [{"name": name, "weight": weight} for name, weight in kind.phases.items()]
            await kinds.define_job_type(where, name=kind.name, phases=phases, on_failure=kind.on_failure)
        self._is_declared = True

    async def tenant_id(self, where: db.Pool) -> UUID:
        """The app's own tenant."""
        if self._tenant_id is None:
            self._tenant_id = await tenants.ensure(where, name=str(self.tenant))
        return self._tenant_id

    # --- the database ---

    def dsn(self) -> str:
        """Where the database is. An embedded one is started and migrated."""
        with self._lock:
            if self._database_url is None:
                self._database_url = settings().database_url
            if self._database_url is None:
                self._database_url = embedded.dsn(settings().home)
                migrate.migrate(self._database_url)
            return self._database_url

    def use(self, dsn: str) -> None:
        """Use this database from now on."""
        self._database_url = dsn

    @asynccontextmanager
    async def connections(self) -> AsyncGenerator[db.Pool]:
        """The pool of the running event loop, opened when first asked for."""
        loop = asyncio.get_running_loop()
        if loop not in self._pools:
            dsn = await asyncio.to_thread(self.dsn)
            stack = AsyncExitStack()
            self._pools[loop] = (await stack.enter_async_context(db.pool(dsn, name="penstock app", max_size=4)), stack)
        yield self._pools[loop][0]

    async def aclose(self) -> None:
        """Close the running loop's connections."""
        entry = self._pools.pop(asyncio.get_running_loop(), None)
        if entry is not None:
            await entry[1].aclose()

    def close(self) -> None:
        """Close the connections that code which is not async used."""
        if self._loop is not None:
            self.block(self.aclose())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._loop = None

    def block(self, work: Coroutine[Any, Any, R]) -> R:
        """Run async work for a caller that is not async, in a thread with a loop of its own."""
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(target=self._loop.run_forever, name="penstock app", daemon=True).start()
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()


def load(path: str) -> App:
    """The app that `module:attribute` names."""
    module_name, _, attribute = path.partition(":")
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        found = getattr(importlib.import_module(module_name), attribute or "app")
    except (ImportError, AttributeError) as error:
        raise Invalid(f"{path!r} cannot be loaded: {error}", hint="Name it as module:attribute, such as mysite.jobs:app.") from error
    if not isinstance(found, App):
        raise Invalid(f"{path!r} is not an App")
    return found


__all__ = ["App", "Context", "Fail", "JobType", "Options", "PenstockError", "Reschedule", "Retry", "Started", "Task", "load"]
logging.getLogger("penstock").addHandler(logging.NullHandler())
