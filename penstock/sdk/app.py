"""The SDK: App, @app.task, @app.job, and the handle of a started job.

    app = App()

    @app.task(max_attempts=5, timeout="2m")
    async def write_text(ctx: Context, topic: str) -> str: ...

    @app.task
    def count_words(text: str) -> int: ...

    @app.job(phases={"write_text": 90, "count_words": 10})
    def publish(topics: list[str]):
        return [count_words.step(write_text.step(topic)) for topic in topics]

    job = publish.start(["otters", "herons"])      # or: await publish.astart(...)
    job.result(timeout="5m")                       # [312, 280]

A decorated function stays a function: calling it runs it. A job's body runs once, when the job is started,
and draws the graph of its tasks: each `step` adds a task and returns a placeholder for its future output.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import logging
import sys
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Generic,
    Literal,
    ParamSpec,
    Protocol,
    TypeVar,
    cast,
    overload,
)
from uuid import UUID

import pydantic

from penstock.contract import artifacts, bulks, jobs, kinds, schedules, tasks, tenants
from penstock.errors import Invalid, JobFailed, PenstockError, TimedOut
from penstock.formatting import seconds
from penstock.postgres import db, embedded, migrate
from penstock.sdk.bulk_type import BulkType
from penstock.sdk.context import Context, Fail, Reschedule, Retry
from penstock.sdk.graph import Drawn, Graph, Options, current, drawing
from penstock.sdk.signature import Signature, Step, decode, encode
from penstock.settings import settings
from penstock.storage import objects as storages
from penstock.types import Forecast, Job, failure

if TYPE_CHECKING:
    from penstock.sheets import Sheets

P = ParamSpec("P")
R = TypeVar("R")
RowModel = TypeVar("RowModel", bound=pydantic.BaseModel)
Mode = Literal["async", "thread", "process"]
Artifacts = Callable[[Context, str, Any, str], Coroutine[Any, Any, dict[str, Any]]]

# --- tasks and job types -----------------------------------------------------------------------------------


class Task(Generic[P, R]):
    """A function that workers run. Calling it runs it here; `start` starts a job of this one task.

    In the body of a job, `step` adds it to the job.
    """

    def __init__(
        self, app: App, function: Callable[..., Any], kind: str, *, mode: Mode, is_transactional: bool,
        settings: dict[str, Any], phase: str | None,
    ) -> None:  # fmt: skip
        self.app, self.function, self.kind, self.mode = app, function, kind, mode
        self.is_transactional, self.settings = is_transactional, settings
        self.signature = Signature(function, is_handler=True)
        self.chosen = Options(phase=phase)
        self.__doc__, self.__name__ = function.__doc__, function.__name__
        self.__module__, self.__qualname__ = function.__module__, function.__qualname__

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<task {self.kind}>"

    def options(self, **changes: Any) -> Task[P, R]:
        """A copy of the task with other options.

        Options of the job, for `start`: tenant_id, idempotency_key, delay, on_failure, paused, budget,
        on_limit, stop_after. Options of the task: key, phase, provider or route, units, after, after_failure,
        max_attempts, timeout, confirm. Options of both: priority, run_at.
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


class JobType(Generic[P]):
    """A function that draws a job's graph. `start` runs it once and starts the job."""

    def __init__(
        self, app: App, function: Callable[..., Any], name: str, phases: dict[str, float], on_failure: str
    ) -> None:
        if inspect.iscoroutinefunction(function):
            raise Invalid(
                f"{name}: a job's body must be a plain function, not async",
                hint="It only draws the graph; the tasks may be async.",
            )
        self.app, self.function, self.name = app, function, name
        self.phases, self.on_failure = phases, on_failure
        self.signature = Signature(function, is_handler=False)
        self.chosen = Options()
        self.__doc__, self.__name__ = function.__doc__, function.__name__

    def __repr__(self) -> str:
        return f"<job type {self.name}>"

    def options(self, **changes: Any) -> JobType[P]:
        """A copy of the job type with other options for its jobs.

        tenant_id, idempotency_key, priority, run_at, delay, on_failure, paused, budget, on_limit, stop_after.
        """
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


# --- the app -----------------------------------------------------------------------------------------------


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


class App:
    """The tasks, job types and schedules of an application, and its connection to the database.

    Without `database_url` and `DATABASE_URL` it uses an embedded PostgreSQL. Jobs started without a tenant
    belong to the tenant named `tenant`, which is created if missing. Connections are opened on first use.
    `async with app:` or `aclose()` closes those of the running event loop; `with app:` or `close()` closes
    those of synchronous code. `sql` is a folder with the app's own SQL, which `migrate` applies to `schema`.
    """

    def __init__(
        self,
        *,
        database_url: str | None = None,
        tenant: str | UUID = "default",
        schema: str | None = None,
        sql: Path | None = None,
    ) -> None:
        if (schema is None) != (sql is None):
            raise Invalid("an app with its own SQL needs both `sql` and `schema`", details={"field": "sql"})
        self.tasks: dict[str, Task[Any, Any]] = {}
        self.job_types: dict[str, JobType[...]] = {}
        self.bulks: dict[str, BulkType[Any]] = {}
        self.schedules: dict[str, dict[str, Any]] = {}
        self.artifacts: Artifacts | None = None
        """Stores the files of `Context.save` in place of `storage`: called with the context, the name, the
        data and the type, it returns the reference to the file."""
        self.sheets: Sheets | Callable[[UUID], Sheets] | None = None
        """The Google account for all tenants, or a function that returns the account of a tenant."""
        self.tenant = tenant
        self.own: migrate.Own | None = None if schema is None or sql is None else migrate.Own(schema, sql)
        """The app's own SQL."""
        self._database_url = database_url
        self._storage: storages.Storage | None = None
        self.forget()

    def forget(self) -> None:
        """Drop all connections without closing them: in a forked process they belong to the parent."""
        self._pools: dict[asyncio.AbstractEventLoop, _Pool] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._tenant_id = self.tenant if isinstance(self.tenant, UUID) else None
        self._is_declared = False

    @overload
    def task(self, function: Callable[Concatenate[Context, P], Coroutine[Any, Any, R]], /) -> Task[P, R]: ...
    @overload
    def task(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> Task[P, R]: ...
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
    ) -> TaskDecorator: ...
    def task(self, function: Callable[..., Any] | None = None, **options: Any) -> Any:
        """Declare a function as a task.

        Async functions run in the event loop, others in threads, `cpu_bound` ones in processes. With
        `transactional`, the handler's writes through `ctx.connection` and the task's completion are one
        commit. The delay before a retry starts at `backoff` and doubles up to `backoff_cap`. No retry starts
        later than `retry_for` after the first attempt.
        """
        return partial(self._add_task, **options) if function is None else self._add_task(function)

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
            raise Invalid(f"a task of kind {kind!r} already exists: give one of them another `kind`")
        is_async = inspect.iscoroutinefunction(function)
        declared = {
            "name": kind,
            "category": category,
            "max_attempts": max_attempts,
            "backoff_seconds": seconds(backoff),
            "backoff_cap_seconds": seconds(backoff_cap),
            "retry_seconds": None if retry_for is None else seconds(retry_for),
            "timeout_seconds": None if timeout is None else seconds(timeout),
        }
        task: Task[Any, Any] = Task(
            self, function, kind, settings=declared, phase=phase, is_transactional=transactional,
            mode="process" if cpu_bound else "async" if is_async else "thread",
        )  # fmt: skip
        if cpu_bound and (transactional or is_async):
            raise Invalid(
                f"{kind}: a cpu_bound task must be a plain function, neither async nor transactional"
            )
        if cpu_bound and task.signature.takes_context:
            raise Invalid(
                f"{kind}: a cpu_bound task cannot take a Context, because it runs in another process",
                hint="Call ctx.acompute from an async task instead.",
            )
        if cpu_bound and "<" in function.__qualname__:
            raise Invalid(
                f"{kind}: a cpu_bound task must be defined at the top level of its module",
                hint="Its process imports it by name.",
            )
        if transactional and not task.signature.takes_context:
            raise Invalid(
                f"{kind}: a transactional task must take a Context as its first parameter",
                hint="ctx.connection is the connection of the transaction.",
            )
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
        *,
        name: str | None = None,
        phases: dict[str, float] | None = None,
        on_failure: str = "continue",
    ) -> Any:
        """Declare a function as a job type. `phases`: the names and weights of its phases, in order."""

        def add(function: Callable[..., Any]) -> JobType[...]:
            kind = JobType[...](self, function, name or function.__name__, phases or {}, on_failure)
            if kind.name in self.job_types or kind.name in self.bulks:
                raise Invalid(
                    f"a job type named {kind.name!r} already exists: give one of them another `name`"
                )
            self.job_types[kind.name] = kind
            self._is_declared = False
            return kind

        return add if function is None else add(function)

    def bulk(
        self,
        *,
        row: type[RowModel],
        name: str | None = None,
        key: Sequence[str] = (),
        batch: int | None = None,
        group_by: str | None = None,
        exclusive: bool = False,
        phases: dict[str, float] | None = None,
        on_failure: str = "continue",
    ) -> Callable[[Callable[..., Any]], BulkType[RowModel]]:
        """Declare a function that draws the graph of one row, or of a batch of rows, as a bulk job type.

        `row`: the pydantic model that validates every row. `key`: the columns that identify a row; without it
        the row number does. `batch`: the maximum number of rows in one graph. `group_by`: a batch holds only
        rows with the same value in this column. `exclusive`: a tenant runs one such job at a time.
        """

        def add(function: Callable[..., Any]) -> BulkType[RowModel]:
            chosen = name or function.__name__
            if chosen in self.bulks or chosen in self.job_types:
                raise Invalid(f"a job type named {chosen!r} already exists: give one of them another `name`")
            kind = BulkType(
                self, function, chosen, row=row, key=key, batch=batch, group_by=group_by,
                is_exclusive=exclusive, phases=phases or {}, on_failure=on_failure,
            )  # fmt: skip
            self.bulks[chosen] = kind
            self._is_declared = False
            return kind

        return add

    def schedule(
        self,
        what: Task[Any, Any] | JobType[...],
        cron: str,
        *,
        name: str | None = None,
        timezone: str = "UTC",
        missed: str = "once",
        params: dict[str, Any] | None = None,
    ) -> None:
        """Start a job at the times of a cron expression.

        The schedule is stored when a worker or the first `start` declares the app. `missed`: what to do after
        an outage about runs that were missed: none (`skip`), one (`once`), or every one (`all`).
        """
        schedules.next_tick(cron, timezone, datetime.now(UTC))
        if missed not in ("skip", "once", "all"):
            raise Invalid(f"missed must be skip, once or all (got {missed!r})", details={"field": "missed"})
        own = what.kind if isinstance(what, Task) else what.name
        if (name or own) in self.schedules:
            raise Invalid(f"a schedule named {name or own!r} already exists: give one of them another `name`")
        what.signature.encode(params or {})
        tenant = {} if what.chosen.tenant_id is None else {"tenant_id": what.chosen.tenant_id}
        self.schedules[name or own] = tenant | {
            "name": name or own,
            "cron": cron,
            "job_type": own,
            "timezone": timezone,
            "missed": missed,
            "params": params or {},
            # A job's body runs again at each tick; the tasks of a single task never change.
            "tasks": what.draw(params or {}).tasks if isinstance(what, Task) else None,
            "options": what.chosen.for_schedule(),
        }
        self._is_declared = False

    def draw(self, job_type: str, params: dict[str, Any]) -> list[dict[str, Any]] | None:
        """The tasks of a job type, for a schedule that stores none; None if this app lacks the type."""
        found = self.job_types.get(job_type) or self.tasks.get(job_type)
        return found.draw(params).tasks if found else None

    # --- starting ---

    async def astart(self, type: str, drawn: Drawn, options: Options) -> Started[Any]:
        """Start a drawn job."""
        async with self.connections() as pool:
            chosen = await self.ready(pool, options)
            start = jobs.start if options.using is None else jobs.start_in
            database = pool if options.using is None else options.using
            job_id = await start(database, type=type, params=drawn.params, tasks=drawn.tasks, **chosen)
        return Started(job_id, self, drawn)

    def start(self, type: str, drawn: Drawn, options: Options) -> Started[Any]:
        """`astart` for code that is not async."""
        if options.using is None:
            return self.block(self.astart(type, drawn, options))
        # The declarations commit on a connection of the app; the job starts on the caller's connection.
        chosen = self.block(self._ready_on_own_connection(options))
        job_id = jobs.start_sync(options.using, type=type, params=drawn.params, tasks=drawn.tasks, **chosen)
        return Started(job_id, self, drawn)

    async def aforecast(self, type: str, drawn: Drawn, options: Options) -> Forecast:
        """The cost, usage and duration of a drawn job."""
        async with self.connections() as pool:
            chosen = await self.ready(pool, options)
            return await jobs.forecast(pool, type=type, tasks=drawn.tasks, **chosen)

    def forecast(self, type: str, drawn: Drawn, options: Options) -> Forecast:
        """`aforecast` for code that is not async."""
        return self.block(self.aforecast(type, drawn, options))

    def started(self, job_id: UUID) -> Started[Any]:
        """The handle of a job by its id. Its `result` is None."""
        return Started(job_id, self, Drawn({}, [], None))

    async def _ready_on_own_connection(self, options: Options) -> jobs.JobOptions:
        async with self.connections() as pool:
            return await self.ready(pool, options)

    async def ready(self, pool: db.Pool, options: Options) -> jobs.JobOptions:
        """Declare the app and create its tenant, in transactions of their own; returns the job's options."""
        await self.declare(pool)
        chosen = options.for_job()
        if options.tenant_id is None:
            chosen["tenant_id"] = await self.tenant_id(pool)
        return chosen

    async def declare(self, pool: db.Pool) -> None:
        """Store the app's kinds, job types and schedules: once, and again after one is added."""
        if self._is_declared:
            return
        await kinds.define(pool, kinds=[task.settings for task in self.tasks.values()])
        for kind in self.job_types.values():
            phases = [{"name": name, "weight": weight} for name, weight in kind.phases.items()]
            await kinds.define_job_type(pool, name=kind.name, phases=phases, on_failure=kind.on_failure)
        for kind in self.bulks.values():
            phases = [{"name": name, "weight": weight} for name, weight in kind.all_phases().items()]
            await kinds.define_job_type(pool, name=kind.name, phases=phases, on_failure=kind.on_failure)
            await bulks.define_type(pool, name=kind.name, **kind.declared())
        for schedule in self.schedules.values():
            arguments: dict[str, Any] = {"tenant_id": await self.tenant_id(pool), **schedule}
            await schedules.set(pool, **arguments)
        self._is_declared = True

    async def tenant_id(self, pool: db.Pool) -> UUID:
        """The app's own tenant."""
        if self._tenant_id is None:
            self._tenant_id = await tenants.ensure(pool, name=str(self.tenant))
        return self._tenant_id

    # --- the database ---

    def dsn(self) -> str:
        """The address of the database. Starts and migrates the embedded one if no other is configured."""
        with self._lock:
            if self._database_url is None:
                self._database_url = settings().database_url
            if self._database_url is None:
                self._database_url = embedded.dsn(settings().home)
                self.migrate(self._database_url)
            return self._database_url

    def migrate(self, dsn: str, contract: bool = False) -> list[str]:
        """Migrate a database to this version of Penstock and of the app's own SQL. Returns what ran."""
        done = migrate.migrate(dsn, contract)
        if self.own is not None:
            ran = migrate.migrate(dsn, contract, folder=self.own.folder, schema=self.own.schema)
            done += [f"{self.own.schema}/{name}" for name in ran]
        return done

    def use(self, dsn: str) -> None:
        """Use this database from now on. Close connections to another one first."""
        if dsn != self._database_url:
            self._database_url = dsn
            self._tenant_id = self.tenant if isinstance(self.tenant, UUID) else None
            self._is_declared = False

    @property
    def storage(self) -> storages.Storage:
        """The storage for files: the one in `PENSTOCK_STORAGE`, unless another was set."""
        with self._lock:
            if self._storage is None:
                self._storage = storages.of(settings())
            return self._storage

    @storage.setter
    def storage(self, chosen: storages.Storage) -> None:
        self._storage = chosen

    def sheets_of(self, tenant_id: UUID) -> Sheets:
        """The Google account for a tenant's sheets, from `sheets` or `PENSTOCK_SHEETS_CREDENTIALS`."""
        if callable(self.sheets):
            return self.sheets(tenant_id)
        with self._lock:
            if self.sheets is None:
                from penstock.sheets import Sheets

                found = settings()
                if found.sheets_credentials is None:
                    hint = "Set PENSTOCK_SHEETS_CREDENTIALS for the worker, or app.sheets."
                    raise Invalid("no Google account is configured", code="no_sheets_account", hint=hint)
                url = found.sheets_url
                own = {} if url is None else {"base_url": url, "token_url": f"{url.rstrip('/')}/token"}
                self.sheets = Sheets(found.sheets_credentials, **own)
            return self.sheets

    @asynccontextmanager
    async def connections(self) -> AsyncGenerator[db.Pool]:
        """The pool of the running event loop, opened on first use."""
        loop = asyncio.get_running_loop()
        if loop not in self._pools:
            # The connections of a closed loop cannot be used any more.
            self._pools = {other: pool for other, pool in self._pools.items() if not other.is_closed()}
            self._pools[loop] = _Pool()
        yield await self._pools[loop].get(self)

    async def aclose(self) -> None:
        """Close the running loop's connections."""
        pool = self._pools.pop(asyncio.get_running_loop(), None)
        if pool is not None:
            await pool.close()

    def __enter__(self) -> App:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> App:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def close(self) -> None:
        """Close the connections of synchronous code."""
        loop, thread = self._loop, self._thread
        if loop is not None and thread is not None:
            self.block(self.aclose())
            self._loop = self._thread = None
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.close()

    def block(self, work: Coroutine[Any, Any, R]) -> R:
        """Run a coroutine for synchronous code, in a thread with its own event loop."""
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(
                    target=self._loop.run_forever, name="penstock app", daemon=True
                )
                self._thread.start()
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()


class _Pool:
    """An app's connections in one event loop."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._stack = AsyncExitStack()
        self._pool: db.Pool | None = None

    async def get(self, app: App) -> db.Pool:
        if self._pool is None:
            async with self._lock:
                if self._pool is None:
                    dsn = await asyncio.to_thread(app.dsn)
                    opening = db.pool(dsn, name="penstock app", max_size=4)
                    self._pool = await self._stack.enter_async_context(opening)
        return self._pool

    async def close(self) -> None:
        await self._stack.aclose()


def load(path: str) -> App:
    """The app that `module:attribute` names."""
    module_name, _, attribute = path.partition(":")
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        found = getattr(importlib.import_module(module_name), attribute or "app")
    except (ImportError, AttributeError) as error:
        raise Invalid(
            f"{path!r} cannot be loaded: {error}",
            hint="Name it as module:attribute, such as mysite.jobs:app.",
        ) from error
    if not isinstance(found, App):
        raise Invalid(f"{path!r} is not an App (it is a {type(found).__name__})")
    return found


__all__ = [
    "App",
    "Context",
    "Fail",
    "JobType",
    "Options",
    "PenstockError",
    "Reschedule",
    "Retry",
    "Started",
    "Task",
    "load",
    "seconds",
]
logging.getLogger("penstock").addHandler(logging.NullHandler())
