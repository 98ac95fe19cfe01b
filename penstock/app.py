"""What users write against: App, @app.task, @app.job, and what starting one gives.

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
and draws the graph: what `step` returns stands for an output that is not there yet.
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

from penstock import artifacts, bulks, db, embedded, jobs, kinds, migrate, schedules, tasks, tenants
from penstock import storage as storages
from penstock.bulk_type import BulkType
from penstock.context import Context, Fail, Reschedule, Retry
from penstock.drawing import Drawn, Graph, Options, current, drawing
from penstock.errors import Invalid, JobFailed, PenstockError, TimedOut
from penstock.settings import settings
from penstock.signature import Signature, Step, decode, encode
from penstock.types import Forecast, Job, failure
from penstock.words import seconds

if TYPE_CHECKING:
    from penstock.sheets import Sheets

P = ParamSpec("P")
R = TypeVar("R")
RowModel = TypeVar("RowModel", bound=pydantic.BaseModel)
Mode = Literal["async", "thread", "process"]
Artifacts = Callable[[Context, str, Any, str], Coroutine[Any, Any, dict[str, Any]]]

# --- tasks and job types -----------------------------------------------------------------------------------


class Task(Generic[P, R]):
    """A function that workers run. Calling it runs it here; `start` makes a job of it; `step` a part."""

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
        """The same task with other options.

        Of its job, with `start`: tenant_id, idempotency_key, delay, on_failure, paused, budget, on_limit,
        stop_after. Of either: priority, run_at. Of the task: key, phase, provider or route, units, after,
        after_failure, max_attempts, timeout, confirm.
        """
        other = cast("Task[P, R]", object.__new__(Task))
        other.__dict__.update(self.__dict__)
        other.chosen = self.chosen.changed(changes)
        return other

    def using(self, connection: Any) -> Task[P, R]:
        """The same, started in the caller's own transaction: psycopg connection or SQLAlchemy session."""
        return self.options(using=connection)

    def step(self, *args: P.args, **kwargs: P.kwargs) -> Any:
        """This task as a step of the job whose body is running."""
        graph = current.get()
        if graph is None:
            raise Invalid(f"{self.kind}.step() outside of a job's body", hint="start() runs it by itself.")
        values = self.signature.bind(args, kwargs)
        return graph.add(self.kind, self.signature, values, self.chosen.for_step(), self.chosen.after)

    def start(self, *args: P.args, **kwargs: P.kwargs) -> Started[R]:
        """A job of this one task."""
        return self.app.start(self.kind, self._draw(args, kwargs), self.chosen)

    async def astart(self, *args: P.args, **kwargs: P.kwargs) -> Started[R]:
        """A job of this one task."""
        return await self.app.astart(self.kind, self._draw(args, kwargs), self.chosen)

    def forecast(self, *args: P.args, **kwargs: P.kwargs) -> Forecast:
        """What `start` with these arguments would cost, use and take. Starts nothing."""
        return self.app.forecast(self.kind, self._draw(args, kwargs), self.chosen)

    async def aforecast(self, *args: P.args, **kwargs: P.kwargs) -> Forecast:
        """What `astart` with these arguments would cost, use and take. Starts nothing."""
        return await self.app.aforecast(self.kind, self._draw(args, kwargs), self.chosen)

    def _draw(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Drawn:
        return self.draw(self.signature.bind(args, kwargs))

    def draw(self, values: dict[str, Any]) -> Drawn:
        """A job of this one task."""
        graph = Graph()
        step = graph.add(self.kind, self.signature, values, self.chosen.for_task())
        return Drawn({}, graph.tasks, encode(step, []), self.signature.load)


class JobType(Generic[P]):
    """A function that draws a job's graph. `start` runs it once and starts the job."""

    def __init__(
        self, app: App, function: Callable[..., Any], name: str, phases: dict[str, float], on_failure: str
    ) -> None:
        if inspect.iscoroutinefunction(function):
            raise Invalid(f"{name}: a job's body is a plain function", hint="It only draws the graph.")
        self.app, self.function, self.name = app, function, name
        self.phases, self.on_failure = phases, on_failure
        self.signature = Signature(function, is_handler=False)
        self.chosen = Options()
        self.__doc__, self.__name__ = function.__doc__, function.__name__

    def __repr__(self) -> str:
        return f"<job type {self.name}>"

    def options(self, **changes: Any) -> JobType[P]:
        """The same with other options of its jobs.

        tenant_id, idempotency_key, priority, run_at, delay, on_failure, paused, budget, on_limit, stop_after.
        """
        other: JobType[P] = object.__new__(JobType)
        other.__dict__.update(self.__dict__)
        other.chosen = self.chosen.changed(changes)
        for name in other.chosen.for_task():
            raise Invalid(f"{name} is an option of a step, not of a job", details={"field": name})
        return other

    def using(self, connection: Any) -> JobType[P]:
        """The same job type, started in the caller's own transaction."""
        return self.options(using=connection)

    def start(self, *args: P.args, **kwargs: P.kwargs) -> Started[Any]:
        """Draw the graph and start the job."""
        return self.app.start(self.name, self.draw(self.signature.bind(args, kwargs)), self.chosen)

    async def astart(self, *args: P.args, **kwargs: P.kwargs) -> Started[Any]:
        """Draw the graph and start the job."""
        return await self.app.astart(self.name, self.draw(self.signature.bind(args, kwargs)), self.chosen)

    def forecast(self, *args: P.args, **kwargs: P.kwargs) -> Forecast:
        """What `start` with these arguments would cost, use and take. Starts nothing."""
        return self.app.forecast(self.name, self.draw(self.signature.bind(args, kwargs)), self.chosen)

    async def aforecast(self, *args: P.args, **kwargs: P.kwargs) -> Forecast:
        """What `astart` with these arguments would cost, use and take. Starts nothing."""
        drawn = self.draw(self.signature.bind(args, kwargs))
        return await self.app.aforecast(self.name, drawn, self.chosen)

    def draw(self, values: dict[str, Any]) -> Drawn:
        """The job's params, the tasks its body asks for, and what it returned."""
        params, _ = self.signature.encode(values)
        graph = Graph()
        with drawing(graph):
            returned = self.function(**self.signature.check(values))
        if not graph.tasks:
            raise Invalid(f"the body of {self.name} asked for no step", code="no_tasks")
        result = Step(graph.tasks[-1]["key"]) if returned is None else returned
        try:
            return Drawn(params, graph.tasks, encode(result, []))
        except (TypeError, ValueError, RecursionError) as error:
            raise Invalid(f"what the body of {self.name} returned: {error}") from error


@dataclass(slots=True)
class Started(Generic[R]):
    """A job that was started."""

    id: UUID
    app: App = field(repr=False)
    _drawn: Drawn = field(repr=False)

    async def aget(self) -> Job:
        """The job as it is now."""
        async with self.app.connections() as where:
            return await jobs.get(where, job_id=self.id)

    def get(self) -> Job:
        """The job as it is now."""
        return self.app.block(self.aget())

    async def aforecast(self) -> Forecast:
        """What is left of the job will cost, use and take."""
        async with self.app.connections() as where:
            return await jobs.forecast_rest(where, job_id=self.id)

    def forecast(self) -> Forecast:
        """`aforecast` for code that is not async."""
        return self.app.block(self.aforecast())

    async def aresult(self, timeout: float | str | None = None) -> R:  # noqa: ASYNC109 (for the whole wait)
        """Wait until the job has ended; what the task returned. Raises JobFailed, TimedOut.

        For a job of several steps: what its body returned, with the outputs in place of the steps; the output
        of the last step if it returned nothing.
        """
        limit = None if timeout is None else seconds(timeout)
        try:
            async with asyncio.timeout(limit), self.app.connections() as where:
                job = await jobs.ended(where, job_id=self.id)
                if job.status != "completed":
                    raise await self._failure(where, job)
                found = await tasks.outputs(where, self.id, keys=_references(self._drawn.result))
                outputs = await artifacts.expanded(where, self.app, job_id=self.id, outputs=found)
        except TimeoutError as error:
            raise TimedOut(f"job {self.id} has not ended within {limit:g} s") from error
        result = decode(self._drawn.result, outputs)
        try:
            return self._drawn.load(result) if self._drawn.load else result
        except pydantic.ValidationError as error:
            raise Invalid(f"the output is not of the declared type: {error}", code="bad_output") from error

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
    """What `app.task(...)` gives. The context is not among a task's arguments."""

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
    """The tasks, job types and schedules of an application, and its way to the database.

    Without `database_url` and `DATABASE_URL` an embedded PostgreSQL is used. Jobs started without a tenant
    belong to the tenant called `tenant`, which is made when it is missing. Connections are opened when first
    needed; `async with app:` or `aclose()` closes those of the running event loop, `with app:` or `close()`
    those that code which is not async used. `sql` is a folder with SQL of the app's own, for `schema`.
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
            raise Invalid("an app's own SQL has both a folder and a schema", details={"field": "sql"})
        self.tasks: dict[str, Task[Any, Any]] = {}
        self.job_types: dict[str, JobType[...]] = {}
        self.bulks: dict[str, BulkType[Any]] = {}
        self.schedules: dict[str, dict[str, Any]] = {}
        self.artifacts: Artifacts | None = None
        """How `Context.save` keeps a file, if not in `storage`: given context, name, data and type, returns
        its description."""
        self.sheets: Sheets | Callable[[UUID], Sheets] | None = None
        """The Google account of all tenants, or what gives the account of each."""
        self.tenant = tenant
        self.own: migrate.Own | None = None if schema is None or sql is None else migrate.Own(schema, sql)
        """The SQL that it brings."""
        self._database_url = database_url
        self._storage: storages.Storage | None = None
        self.forget()

    def forget(self) -> None:
        """Forget all connections without closing them: in a forked process they are the parent's."""
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
        """Make a function a task. Async ones run in the loop, others in threads, `cpu_bound` in processes.

        `transactional`: what the handler writes through `ctx.connection` and the task's completion are one
        commit. `backoff` doubles with each failure up to `backoff_cap`; nothing is tried again later than
        `retry_for` after the first attempt.
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
            raise Invalid(f"there are two tasks of the kind {kind!r}")
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
            raise Invalid(f"{kind}: a cpu_bound handler is a plain function without a transaction")
        if cpu_bound and task.signature.takes_context:
            raise Invalid(f"{kind}: a handler in a process has no context", hint="Report in an async task.")
        if cpu_bound and "<" in function.__qualname__:
            raise Invalid(
                f"{kind}: a process finds its handler by name", hint="Put it at the module's level."
            )
        if transactional and not task.signature.takes_context:
            raise Invalid(f"{kind}: a transactional handler takes a Context", hint="It has the connection.")
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
        """Make a function that draws a graph a job type. `phases`: their names and weights, in order."""

        def add(function: Callable[..., Any]) -> JobType[...]:
            kind = JobType[...](self, function, name or function.__name__, phases or {}, on_failure)
            if kind.name in self.job_types or kind.name in self.bulks:
                raise Invalid(f"there are two job types called {kind.name!r}")
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
        """Make a function that draws the graph of a row, or of a batch, a type of bulk job.

        `row` is the pydantic model that every row must fit. `key`: the columns that name a row; without them
        its number does. `batch`: so many rows at most go into one graph, and `group_by` keeps those together
        that have the same value there. `exclusive`: a tenant has one such job at a time.
        """

        def add(function: Callable[..., Any]) -> BulkType[RowModel]:
            chosen = name or function.__name__
            if chosen in self.bulks or chosen in self.job_types:
                raise Invalid(f"there are two job types called {chosen!r}")
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
        """Start a job by the clock, from when a worker or a start first tells the database.

        `missed`: what an outage made late is left out (skip), run once, or run as often as it was due (all).
        """
        schedules.next_tick(cron, timezone, datetime.now(UTC))
        if missed not in ("skip", "once", "all"):
            raise Invalid(f"missed is skip, once or all, not {missed!r}", details={"field": "missed"})
        own = what.kind if isinstance(what, Task) else what.name
        if (name or own) in self.schedules:
            raise Invalid(f"there are two schedules called {name or own!r}")
        what.signature.encode(params or {})
        tenant = {} if what.chosen.tenant_id is None else {"tenant_id": what.chosen.tenant_id}
        self.schedules[name or own] = tenant | {
            "name": name or own,
            "cron": cron,
            "job_type": own,
            "timezone": timezone,
            "missed": missed,
            "params": params or {},
            # A job's body is run again at each tick; a task stays the same.
            "tasks": what.draw(params or {}).tasks if isinstance(what, Task) else None,
            "options": what.chosen.for_schedule(),
        }
        self._is_declared = False

    def draw(self, job_type: str, params: dict[str, Any]) -> list[dict[str, Any]] | None:
        """The tasks of a job type, for a schedule that stores none; None when this app does not have it."""
        found = self.job_types.get(job_type) or self.tasks.get(job_type)
        return found.draw(params).tasks if found else None

    # --- starting ---

    async def astart(self, type: str, drawn: Drawn, options: Options) -> Started[Any]:
        """Start a job that was drawn."""
        async with self.connections() as where:
            chosen = await self.ready(where, options)
            start = jobs.start if options.using is None else jobs.start_in
            held = where if options.using is None else options.using
            job_id = await start(held, type=type, params=drawn.params, tasks=drawn.tasks, **chosen)
        return Started(job_id, self, drawn)

    def start(self, type: str, drawn: Drawn, options: Options) -> Started[Any]:
        """`astart` for code that is not async."""
        if options.using is None:
            return self.block(self.astart(type, drawn, options))
        # Only what commits by itself runs elsewhere; the job is made here, on the caller's connection.
        chosen = self.block(self._ready_elsewhere(options))
        job_id = jobs.start_sync(options.using, type=type, params=drawn.params, tasks=drawn.tasks, **chosen)
        return Started(job_id, self, drawn)

    async def aforecast(self, type: str, drawn: Drawn, options: Options) -> Forecast:
        """What a job that was drawn would cost, use and take."""
        async with self.connections() as where:
            chosen = await self.ready(where, options)
            return await jobs.forecast(where, type=type, tasks=drawn.tasks, **chosen)

    def forecast(self, type: str, drawn: Drawn, options: Options) -> Forecast:
        """`aforecast` for code that is not async."""
        return self.block(self.aforecast(type, drawn, options))

    def started(self, job_id: UUID) -> Started[Any]:
        """A job by its id. Its result is nothing: its tasks have theirs."""
        return Started(job_id, self, Drawn({}, [], None))

    async def _ready_elsewhere(self, options: Options) -> jobs.JobOptions:
        async with self.connections() as where:
            return await self.ready(where, options)

    async def ready(self, pool: db.Pool, options: Options) -> jobs.JobOptions:
        """Make sure that kinds and tenant are there, whatever becomes of the caller's transaction."""
        await self.declare(pool)
        chosen = options.for_job()
        if options.tenant_id is None:
            chosen["tenant_id"] = await self.tenant_id(pool)
        return chosen

    async def declare(self, pool: db.Pool) -> None:
        """Tell the database what there is: kinds, job types, schedules. Once, and again when one is added."""
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
        """Where the database is. An embedded one is started and migrated."""
        with self._lock:
            if self._database_url is None:
                self._database_url = settings().database_url
            if self._database_url is None:
                self._database_url = embedded.dsn(settings().home)
                self.migrate(self._database_url)
            return self._database_url

    def migrate(self, dsn: str, contract: bool = False) -> list[str]:
        """Bring a database to this version of Penstock, and to the app's own SQL. Returns what ran."""
        done = migrate.migrate(dsn, contract)
        if self.own is not None:
            ran = migrate.migrate(dsn, contract, folder=self.own.folder, schema=self.own.schema)
            done += [f"{self.own.schema}/{name}" for name in ran]
        return done

    def use(self, dsn: str) -> None:
        """Use this database from now on. Connections to another one are to be closed before."""
        if dsn != self._database_url:
            self._database_url = dsn
            self._tenant_id = self.tenant if isinstance(self.tenant, UUID) else None
            self._is_declared = False

    @property
    def storage(self) -> storages.Storage:
        """Where files go: what `PENSTOCK_STORAGE` names, unless another was set."""
        with self._lock:
            if self._storage is None:
                self._storage = storages.of(settings())
            return self._storage

    @storage.setter
    def storage(self, chosen: storages.Storage) -> None:
        self._storage = chosen

    def sheets_of(self, tenant_id: UUID) -> Sheets:
        """The Google account that reads and writes the sheets of a tenant: what `sheets` says, or what
        `PENSTOCK_SHEETS_CREDENTIALS` names."""
        if callable(self.sheets):
            return self.sheets(tenant_id)
        with self._lock:
            if self.sheets is None:
                from penstock.sheets import Sheets

                found = settings()
                if found.sheets_credentials is None:
                    hint = "Set PENSTOCK_SHEETS_CREDENTIALS for the worker, or app.sheets."
                    raise Invalid("there is no Google account", code="no_sheets_account", hint=hint)
                url = found.sheets_url
                own = {} if url is None else {"base_url": url, "token_url": f"{url.rstrip('/')}/token"}
                self.sheets = Sheets(found.sheets_credentials, **own)
            return self.sheets

    @asynccontextmanager
    async def connections(self) -> AsyncGenerator[db.Pool]:
        """The pool of the running event loop, opened when first asked for."""
        loop = asyncio.get_running_loop()
        if loop not in self._pools:
            # A loop that ended without aclose() took its connections with it.
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
        """Close the connections that code which is not async used."""
        loop, thread = self._loop, self._thread
        if loop is not None and thread is not None:
            self.block(self.aclose())
            self._loop = self._thread = None
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.close()

    def block(self, work: Coroutine[Any, Any, R]) -> R:
        """Run async work for a caller that is not async, in a thread with a loop of its own."""
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
        raise Invalid(f"{path!r} is not an App")
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
