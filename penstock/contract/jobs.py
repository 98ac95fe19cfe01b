"""Jobs: forecast, start, read, watch, pause, resume, cancel, retry."""

from __future__ import annotations

import asyncio
import builtins
import time
from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, LiteralString, TypeAlias, Unpack
from uuid import UUID

from penstock.contract import filters, sqlalchemy_sessions
from penstock.errors import Invalid, Unavailable
from penstock.postgres import db, json_batches
from penstock.types import (
    Attempt,
    Explanation,
    Forecast,
    GraphTask,
    Job,
    JobExplanation,
    JobOptions,
    JobStatus,
    Task,
    TaskStatus,
    given,
)

TaskSpec: TypeAlias = Mapping[str, Any]
"""A new task as a JSON object: an element of p_tasks."""

_STATUSES = ("queued", "running", "paused", "completed", "failed", "canceled")

FIELDS: Mapping[str, filters.Field] = {
    "id": filters.ids("id"),
    "status": filters.words("status", _STATUSES),
    "type": filters.words("type"),
    "tenant": filters.tenant("tenant_id"),
    "age": filters.age("created_at"),
    "tag": filters.Search("tag", excluded="tags && %s::text[]"),
    "params": filters.SearchPath("params"),
    "text": filters.Search("text"),
}
_MAX_OUTAGE_SECONDS = 30

_JOBS: LiteralString = """\
select id, tenant_id, type, status, status_reason, params, priority, created_by, created_at, run_at,
  started_at, finished_at, percent, phase, succeeded + failed + canceled, total, succeeded, failed, canceled,
  docs_complete, docs_total, title, tags
from penstock.job_list where """
_DETAIL: LiteralString = "select penstock.get_job_detail(%s, %s, %s)::text"
_TASKS: LiteralString = """\
select id, job_id, kind, key, phase, status, waiting_for, waiting_until, priority, attempt, retry_count,
  created_at, started_at, finished_at, worker_id, fraction, message, error_code, error_message, input, output
from penstock.task_list where """
_ATTEMPTS: LiteralString = """\
select a.task_id, a.lease, a.attempt, a.worker_id, a.started_at, a.ended_at, a.outcome, a.error_code,
  a.error_message,
  -- A policy hides the stacks from those who are not admins.
  case when s.stack is null then a.error_details
    else coalesce(a.error_details, '{}') || jsonb_build_object('stack', s.stack) end,
  a.retry_in_seconds
from penstock.attempts a left join penstock.error_stacks s
  on s.job_id = a.job_id and s.task_id = a.task_id and s.lease = a.lease
where a.job_id = %s and (%s::bigint is null or a.task_id = %s) and (a.task_id, a.lease) > (%s, %s)
order by a.task_id, a.lease limit %s"""
_OUTPUTS: LiteralString = """\
select coalesce(key, id::text), output from penstock.task_list
where job_id = %s and status = 'succeeded' order by id"""
_GRAPH: LiteralString = """\
select id, kind, key, phase, status, waiting_for, waiting_until, attempt, fraction, message, created_at,
  ready_at, started_at, finished_at, error_code, parents
from penstock.job_graph(%s, %s, %s)"""
_TASK_KEYS: LiteralString = "select id, key from penstock.tasks where job_id = any (%s) and id = any (%s)"
_COUNTS: LiteralString = """\
select s.status, (select count(*) from (select from penstock.jobs where status = s.status and """


# Starting


async def start(
    database: db.Database,
    *,
    type: str,
    params: Mapping[str, Any] | None = None,
    tasks: Iterable[TaskSpec] | db.Json,
    **options: Unpack[JobOptions],
) -> UUID:
    """Start a job with its tasks and their dependencies. The same idempotency key returns the same job."""
    return await db.value(
        database,
        "start_job",
        p_type=type,
        p_params=dict(params or {}),
        p_tasks=_as_json(tasks),
        p_options=given(options),
    )


async def start_drawn(
    database: db.Database,
    *,
    type: str,
    params: Mapping[str, Any] | None = None,
    tasks: Iterable[TaskSpec] | db.Json,
    user_id: UUID | None = None,
    **options: Unpack[JobOptions],
) -> UUID:
    """Start a job whose tasks an app drew, for a user. Needs a login of the service."""
    return await db.value(
        database,
        "start_drawn_job",
        p_type=type,
        p_params=dict(params or {}),
        p_tasks=_as_json(tasks),
        p_options=given(options),
        p_user_id=user_id,
    )


async def forecast(
    database: db.Database,
    *,
    type: str,
    params: Mapping[str, Any] | None = None,
    tasks: Iterable[TaskSpec] | db.Json,
    times: float = 1,
    **options: Unpack[JobOptions],
) -> Forecast:
    """The cost, usage and duration of a `start` with the same arguments, under the current limits.

    `times`: the tasks are a sample; multiply the forecast by this.
    """
    del params  # not used; accepted so that the arguments are those of `start`
    document = await db.document(
        database,
        "forecast_job",
        p_type=type,
        p_tasks=_as_json(tasks),
        p_options=given(options) | ({"times": times} if times != 1 else {}),
    )
    return Forecast.read(document)


def _as_json(tasks: Iterable[TaskSpec] | db.Json) -> db.Json:
    return tasks if isinstance(tasks, db.Json) else db.Json(builtins.list(tasks))


async def start_many(
    database: db.Database,
    *,
    type: str,
    params: Mapping[str, Any] | None = None,
    tasks: Iterable[TaskSpec],
    chunk: int = 10_000,
    **options: Unpack[JobOptions],
) -> UUID:
    """Start a job with any number of tasks in one transaction; the iterable is read while it is sent.

    Dependencies come before the tasks that depend on them. At most `chunk` tasks, or a few megabytes of them,
    are in memory at a time. An idempotency key that was used before returns its job and reads no task. To
    reject other tasks under the same key, pass a `digest` of the tasks in the options.
    """
    chosen = given(options)
    async with db.transaction(database) as conn:
        [opened] = await db.call(conn, "open_job", p_type=type, p_params=dict(params or {}), p_options=chosen)
        if opened["is_new"]:
            send = partial(db.call, conn, "add_tasks", p_job_id=opened["job_id"])
            sent = await json_batches.send_in_batches(tasks, lambda b: send(p_tasks=b), max_items=chunk)
            if not sent:
                raise Invalid("a job needs at least one task", code="no_tasks", details={"field": "tasks"})
        return opened["job_id"]


async def start_in(
    using: Any,
    *,
    type: str,
    params: Mapping[str, Any] | None = None,
    tasks: Iterable[TaskSpec],
    **options: Unpack[JobOptions],
) -> UUID:
    """Start a job in the transaction of an async psycopg connection or SQLAlchemy session."""
    if not sqlalchemy_sessions.is_session(using):
        return await start(using, type=type, params=params, tasks=tasks, **options)
    with sqlalchemy_sessions.translated_errors():
        arguments = sqlalchemy_sessions.start_arguments(type, params, [*tasks], given(options))
        found = await using.execute(sqlalchemy_sessions.start_statement(), arguments)
        return UUID(str(found.scalar_one()))


def start_sync(
    using: Any,
    *,
    type: str,
    params: Mapping[str, Any] | None = None,
    tasks: Iterable[TaskSpec],
    **options: Unpack[JobOptions],
) -> UUID:
    """Start a job in the transaction of a psycopg connection or SQLAlchemy session that is not async."""
    if sqlalchemy_sessions.is_session(using):
        with sqlalchemy_sessions.translated_errors():
            arguments = sqlalchemy_sessions.start_arguments(type, params, [*tasks], given(options))
            found = using.execute(sqlalchemy_sessions.start_statement(), arguments)
            return UUID(str(found.scalar_one()))
    [row] = db.call_sync(
        using,
        "start_job",
        p_type=type,
        p_params=dict(params or {}),
        p_tasks=db.Json(builtins.list(tasks)),
        p_options=given(options),
    )
    return row["start_job"]


async def add_tasks(
    database: db.Database,
    *,
    job_id: UUID,
    tasks: Iterable[TaskSpec],
    task_id: int | None = None,
    worker_id: str | None = None,
    lease: int | None = None,
) -> builtins.list[int]:
    """Add tasks to a job that has not ended; returns their ids. A running task passes its id and lease."""
    return await db.value(
        database,
        "add_tasks",
        p_job_id=job_id,
        p_tasks=db.Json(builtins.list(tasks)),
        p_task_id=task_id,
        p_worker_id=worker_id,
        p_lease=lease,
    )


# Reading


async def get(database: db.Database, *, job_id: UUID) -> Job:
    """A job with its progress."""
    return Job.read(await db.value(database, "get_job", p_job_id=job_id))


async def detail(database: db.Database, *, job_id: UUID, max_artifacts: int, max_result_bytes: int) -> str:
    """A job with its progress, its first files and its result: the JSON of `get_job_detail`."""
    [(text,)] = await db.rows(database, _DETAIL, (job_id, max_artifacts, max_result_bytes))
    return text


async def list(
    database: db.Database,
    *,
    filter: str = "",
    tenant_id: UUID | None = None,
    tenant_ids: Sequence[UUID] | None = None,
    type: str | None = None,
    status: JobStatus | None = None,
    before: UUID | None = None,
    limit: int = 50,
) -> builtins.list[Job]:
    """Jobs, newest first. The next page is `before` the id of the last job of this page."""
    chosen = [
        *await filters.conditions(database, filter, FIELDS),
        *_equal(tenant_id=tenant_id, type=type, status=status),
        *of_tenants(tenant_ids),
    ]
    if before is not None:
        chosen.append(("id < %s", [before]))
    condition, values = filters.every(chosen)
    statement = _JOBS + condition + " order by id desc limit %s"
    return [Job.listed(row) for row in await db.rows(database, statement, [*values, filters.page(limit)])]


async def tasks(
    database: db.Database,
    *,
    job_id: UUID,
    status: TaskStatus | None = None,
    kind: str | None = None,
    after: int | None = None,
    limit: int = 50,
) -> builtins.list[Task]:
    """A job's tasks, in the order in which they were created. The next page is `after` the last id."""
    chosen = _equal(job_id=job_id, status=status, kind=kind)
    if after is not None:
        chosen.append(("id > %s", [after]))
    condition, values = filters.every(chosen)
    rows = await db.rows(
        database, _TASKS + condition + " order by id limit %s", [*values, filters.page(limit)]
    )
    return [Task(*row) for row in rows]


async def counts(
    database: db.Database,
    *,
    filter: str = "",
    tenant_ids: Sequence[UUID] | None = None,
    most: int,
) -> dict[str, int]:
    """The number of matching jobs by status. Counts only up to `most` + 1, so that it stays cheap."""
    condition, values = filters.every(
        [*await filters.conditions(database, filter, FIELDS), *of_tenants(tenant_ids)]
    )
    statement = _COUNTS + condition + " limit %s) as x) from unnest(%s::text[]) as s(status)"
    return dict(await db.rows(database, statement, [*values, most + 1, builtins.list(_STATUSES)]))  # pyright: ignore[reportArgumentType]


async def graph(
    database: db.Database, *, job_id: UUID, after: int = 0, limit: int = 500
) -> builtins.list[GraphTask]:
    """A job's tasks with their dependencies, and when each became ready."""
    return [GraphTask(*row) for row in await db.rows(database, _GRAPH, (job_id, after, limit))]


async def task_keys(
    database: db.Database, *, job_ids: Collection[UUID], task_ids: Collection[int]
) -> dict[int, str]:
    """The keys of these tasks of these jobs, by task id; tasks without a key are left out."""
    if not task_ids:
        return {}
    rows = await db.rows(database, _TASK_KEYS, (builtins.list(set(job_ids)), builtins.list(set(task_ids))))
    return {id: key for id, key in rows if key}


async def attempts(
    database: db.Database,
    *,
    job_id: UUID,
    task_id: int | None = None,
    after: tuple[int, int] = (0, 0),
    limit: int = 50,
) -> builtins.list[Attempt]:
    """The failed attempts of a job's tasks, or of one of them, with their errors, ordered by task.

    The next page is `after` the task id and lease of the last attempt of this page.
    """
    rows = await db.rows(database, _ATTEMPTS, (job_id, task_id, task_id, *after, filters.page(limit)))
    return [Attempt(*row) for row in rows]


async def outputs(database: db.Database, *, job_id: UUID) -> dict[str, Any]:
    """The outputs of the job's tasks in order, by key; by id for tasks without a key."""
    return {key: output for key, output in await db.rows(database, _OUTPUTS, (job_id,))}


async def result(database: db.Database, *, job_id: UUID, max_bytes: int | None = None) -> Any:
    """The result of a completed job. None before that, for a bulk job, and if larger than `max_bytes`."""
    return await db.value(database, "job_result", p_job_id=job_id, p_max_bytes=max_bytes)


async def forecast_rest(database: db.Database, *, job_id: UUID) -> Forecast:
    """The cost, usage and duration of the rest of a job that has not ended."""
    return Forecast.read(await db.document(database, "forecast", p_job_id=job_id))


async def explain(database: db.Database, *, job_id: UUID, task_id: int) -> Explanation:
    """Why a task is not running: what it waits for, for how long, and its position in the queue."""
    return Explanation.read(await db.value(database, "explain_task", p_job_id=job_id, p_task_id=task_id))


async def explain_job(database: db.Database, *, job_id: UUID) -> JobExplanation:
    """The state of a job in words, and what happens next."""
    return JobExplanation.read(await db.value(database, "explain_job", p_job_id=job_id))


async def watch(database: db.Database, *, job_id: UUID, interval: float = 1.0) -> AsyncIterator[Job]:
    """Yields the job now and after every change until it has ended. Reads it every `interval` seconds.

    Waits for a database that is down for less than half a minute, as during a restart or failover.
    """
    last: Job | None = None
    read_at = time.monotonic()
    while last is None or not last.is_ended:
        try:
            job = await get(database, job_id=job_id)
            read_at = time.monotonic()
            if job != last:
                yield job
            last = job
        except Unavailable:
            if time.monotonic() - read_at > _MAX_OUTAGE_SECONDS:
                raise
        if last is None or not last.is_ended:
            await asyncio.sleep(interval)


async def ended(database: db.Database, *, job_id: UUID, interval: float = 0.25) -> Job:
    """Wait until the job has ended, and return it."""
    last: Job | None = None
    async for job in watch(database, job_id=job_id, interval=interval):
        last = job
    assert last is not None
    return last


# Acting


async def pause(database: db.Database, *, job_id: UUID, reason: str | None = None) -> str:
    """Pause the job: its tasks are no longer claimed; running ones end normally. Returns its status."""
    return await db.value(database, "pause_job", p_job_id=job_id, p_reason=reason)


async def resume(database: db.Database, *, job_id: UUID) -> str:
    """Resume a paused job. Returns its status."""
    return await db.value(database, "resume_job", p_job_id=job_id)


async def cancel(database: db.Database, *, job_id: UUID, reason: str | None = None) -> str:
    """Cancel the job now; running handlers are stopped. Returns its status."""
    return await db.value(database, "cancel_job", p_job_id=job_id, p_reason=reason)


async def confirm(database: db.Database, *, job_id: UUID) -> int:
    """Confirm the tasks that wait for confirmation. Returns their number."""
    return await db.value(database, "confirm_job", p_job_id=job_id)


async def retry(database: db.Database, *, job_id: UUID) -> int:
    """Retry the failed tasks, and those canceled because of them. Returns the number of failed tasks."""
    return await db.value(database, "retry_job", p_job_id=job_id)


def of_tenants(tenant_ids: Sequence[UUID] | None) -> builtins.list[filters.Condition]:
    """Restricts to tenants. Row security does that anyway, but this condition makes an index usable."""
    return [] if tenant_ids is None else [("tenant_id = any (%s)", [builtins.list(tenant_ids)])]


# Helpers


def _equal(**wanted: Any) -> builtins.list[filters.Condition]:
    columns: dict[str, LiteralString] = {
        "job_id": "job_id = %s",
        "kind": "kind = %s",
        "status": "status = %s",
        "tenant_id": "tenant_id = %s",
        "type": "type = %s",
    }
    return [(columns[name], [value]) for name, value in wanted.items() if value is not None]
