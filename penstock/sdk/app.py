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
import logging
import threading
from collections.abc import AsyncGenerator, Callable, Collection, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar, Unpack, overload
from uuid import UUID

import pydantic

from penstock import tracing
from penstock.contract import jobs, prompts, schedules, tenants
from penstock.errors import Invalid
from penstock.formatting import seconds
from penstock.guards import Guard
from penstock.postgres import db, embedded, migrate
from penstock.sdk.bulk_type import BulkType
from penstock.sdk.connections import LoopConnections, LoopThread
from penstock.sdk.context import Context
from penstock.sdk.declaring import declare_types
from penstock.sdk.engines import TaskOptions, mode_of
from penstock.sdk.extensions import Extensions
from penstock.sdk.graph import Drawn, Options
from penstock.sdk.job_types import JobType, Started, Task, TaskDecorator, startable
from penstock.sdk.webhooks import Webhooks
from penstock.settings import settings
from penstock.storage import objects as storages
from penstock.types import Forecast, declared_policy

if TYPE_CHECKING:
    from penstock.sheets import Sheets

P = ParamSpec("P")
R = TypeVar("R")
RowModel = TypeVar("RowModel", bound=pydantic.BaseModel)

Artifacts = Callable[[Context, str, Any, str], Coroutine[Any, Any, dict[str, Any]]]


class App(Extensions):
    """The tasks, job types and schedules of an application, and its connection to the database.

    Without `database_url` and `DATABASE_URL` it uses an embedded PostgreSQL. Jobs started without a tenant
    belong to the tenant named `tenant`, which is created if missing. Connections are opened on first use.
    `async with app:` or `aclose()` closes those of the running event loop; `with app:` or `close()` closes
    those of synchronous code. `sql` is a folder with the app's own SQL, which `migrate` applies to `schema`.
    Supabase clients can write to `writable_tables` of that schema, and worker keys can call
    `worker_functions`; a value is an argument that such a call must pass. The server serves the files of the
    folder `web` at `/web/{schema}/`.
    """

    def __init__(
        self,
        *,
        database_url: str | None = None,
        tenant: str | UUID = "default",
        schema: str | None = None,
        sql: Path | None = None,
        writable_tables: Collection[str] = (),
        worker_functions: Mapping[str, str | None] | None = None,
        web: Path | None = None,
    ) -> None:
        if (schema is None) != (sql is None):
            raise Invalid("an app with its own SQL needs both `sql` and `schema`", details={"field": "sql"})
        if schema is None and (writable_tables or worker_functions or web):
            raise Invalid("tables, functions and a web client need a schema", details={"field": "schema"})
        super().__init__(schema)
        self.tasks: dict[str, Task[Any, Any]] = {}
        self.job_types: dict[str, JobType[...]] = {}
        self.bulks: dict[str, BulkType[Any]] = {}
        self.schedules: dict[str, dict[str, Any]] = {}
        self.artifacts: Artifacts | None = None
        """Stores the files of `Context.save` in place of `storage`: called with the context, the name, the
        data and the type, it returns the reference to the file."""
        self.webhooks = Webhooks()
        """The senders whose webhooks the app takes."""
        self.sheets: Sheets | Callable[[UUID], Sheets] | None = None
        """The Google account for all tenants, or a function that returns the account of a tenant."""
        self.path: str | None = None
        """MODULE:APP, if it was loaded from there: other processes load it too."""
        self.tenant = tenant
        self.own: migrate.Own | None = None if schema is None or sql is None else migrate.Own(schema, sql)
        """The app's own SQL."""
        self.writable_tables = frozenset(writable_tables)
        self.worker_functions = dict(worker_functions or {})
        self.web = web
        self._database_url = database_url
        self._storage: storages.Storage | None = None
        self.forget()

    def forget(self) -> None:
        """Drop all connections without closing them: in a forked process they belong to the parent."""
        self._pools: dict[asyncio.AbstractEventLoop, LoopConnections] = {}
        self._loop = LoopThread(self.aclose)
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
        **policy: Unpack[TaskOptions],
    ) -> TaskDecorator: ...
    def task(self, function: Callable[..., Any] | None = None, **options: Any) -> Any:
        """Declare a function as a task.

        Async functions run in the event loop, others in threads, `cpu_bound` ones in processes. With
        `transactional`, the handler's writes through `ctx.connection` and the task's completion are one
        commit. The delay before a retry starts at `backoff` and doubles up to `backoff_cap`. No retry starts
        later than `retry_for` after the first attempt.

        The rest is the policy of the kind, which the database enforces for every new task, and the engine.
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
        **policy: Unpack[TaskOptions],
    ) -> Task[Any, Any]:
        kind = kind or function.__name__
        if kind in self.tasks:
            raise Invalid(f"a task of kind {kind!r} already exists: give one of them another `kind`")
        mode, resources = mode_of(function, cpu_bound, policy)
        declared = {
            "name": kind,
            "category": category,
            "max_attempts": max_attempts,
            "backoff_seconds": seconds(backoff),
            "backoff_cap_seconds": seconds(backoff_cap),
            "retry_seconds": None if retry_for is None else seconds(retry_for),
            "timeout_seconds": None if timeout is None else seconds(timeout),
            **declared_policy(policy),
        }
        task: Task[Any, Any] = Task(
            self, function, kind, settings=declared, phase=phase, is_transactional=transactional,
            mode=mode, resources=resources,
        )  # fmt: skip
        task.check_mode()
        self.tasks[kind] = task
        self._is_declared = False
        return task

    @overload
    def job(self, function: Callable[P, Any], /) -> JobType[P]: ...
    @overload
    def job(
        self,
        *,
        name: str | None = None,
        phases: dict[str, float] | None = None,
        on_failure: str = "continue",
        title: str | None = None,
    ) -> Callable[[Callable[P, Any]], JobType[P]]: ...
    def job(
        self,
        function: Callable[..., Any] | None = None,
        *,
        name: str | None = None,
        phases: dict[str, float] | None = None,
        on_failure: str = "continue",
        title: str | None = None,
    ) -> Any:
        """Declare a function as a job type. `phases`: the names and weights of its phases, in order.

        `title` is the template of its jobs' titles: in "{topic} in {style.language}", params fill the braces.
        """

        def add(function: Callable[..., Any]) -> JobType[...]:
            kind = JobType[...](self, function, name or function.__name__, phases or {}, on_failure, title)
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
        guard: Guard | Sequence[str] | None = None,
    ) -> Callable[[Callable[..., Any]], BulkType[RowModel]]:
        """Declare a function that draws the graph of one row, or of a batch of rows, as a bulk job type.

        `row`: the pydantic model that validates every row. `key`: the columns that identify a row; without it
        the row number does. `batch`: the maximum number of rows in one graph. `group_by`: a batch holds only
        rows with the same value in this column. `exclusive`: a tenant runs one such job at a time. `guard`:
        text columns that are redacted and screened before a handler gets them.
        """

        def add(function: Callable[..., Any]) -> BulkType[RowModel]:
            chosen = name or function.__name__
            if chosen in self.bulks or chosen in self.job_types:
                raise Invalid(f"a job type named {chosen!r} already exists: give one of them another `name`")
            kind = BulkType(
                self, function, chosen, row=row, key=key, batch=batch, group_by=group_by,
                is_exclusive=exclusive, phases=phases or {}, on_failure=on_failure,
                guard=Guard.of(guard),
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

    def check_params(self, job_type: str, params: dict[str, Any]) -> None:
        """Raise Invalid if these params do not fit the job type. Runs no body; ignores unknown types."""
        found = self.job_types.get(job_type) or self.tasks.get(job_type)
        if found is not None:
            found.signature.encode(params)

    def draw(self, job_type: str, params: dict[str, Any]) -> list[dict[str, Any]] | None:
        """The tasks of a job type, for a schedule that stores none; None if this app lacks the type."""
        found = self.drawn(job_type, params)
        return found.tasks if found else None

    def drawn(self, job_type: str, params: dict[str, Any]) -> Drawn | None:
        """A job of this type, ready to be started; None if this app lacks the type."""
        found = self.job_types.get(job_type) or self.tasks.get(job_type)
        return found.draw(params) if found else None

    def can_draw(self, job_type: str) -> bool:
        """Whether this app has a job type or a task of this name."""
        return job_type in self.job_types or job_type in self.tasks

    def unknown_type(self, job_type: str) -> Invalid:
        """The error for a job type that this app lacks."""
        if job_type in self.bulks:
            hint = f"It is a bulk type: use `penstock bulk run {job_type} FILE` or POST /api/bulks/start."
        else:
            names = startable(self.job_types, self.tasks, self.bulks)
            hint = f"The app has {', '.join(names)}." if names else "The app defines no tasks."
        message = f"unknown job type {job_type[:200]!r}"
        return Invalid(message, code="unknown_job_type", hint=hint, details={"field": "type"})

    # --- starting ---

    async def astart(self, type: str, drawn: Drawn, options: Options) -> Started[Any]:
        """Start a drawn job."""
        async with self.connections() as pool:
            chosen = await self.ready(pool, options)
            start = jobs.start if options.using is None else jobs.start_in
            database = pool if options.using is None else options.using
            with tracing.sending(type) as chosen["traceparent"]:
                job_id = await start(database, type=type, **drawn.arguments, **chosen)
        return Started(job_id, self, drawn)

    def start(self, type: str, drawn: Drawn, options: Options) -> Started[Any]:
        """`astart` for code that is not async."""
        if options.using is None:
            return self.block(self.astart(type, drawn, options))
        # The declarations commit on a connection of the app; the job starts on the caller's connection.
        chosen = self.block(self._ready_on_own_connection(options))
        with tracing.sending(type) as chosen["traceparent"]:
            job_id = jobs.start_sync(options.using, type=type, **drawn.arguments, **chosen)
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
        """The handle of a job by its id, also of one that another process started."""
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
        await declare_types(pool, tasks=self.tasks, job_types=self.job_types, bulk_types=self.bulks)
        if self.prompts.declared:
            await prompts.declare(pool, prompts=self.prompts.constants)
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
            self.prompts.forget()

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
            self._pools[loop] = LoopConnections()
        yield await self._pools[loop].get(self.dsn)

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
        self._loop.close()

    def block(self, work: Coroutine[Any, Any, R]) -> R:
        """Run a coroutine for synchronous code, in a thread with its own event loop."""
        return self._loop.block(work)


# Users decide what becomes of the log.
logging.getLogger("penstock").addHandler(logging.NullHandler())
