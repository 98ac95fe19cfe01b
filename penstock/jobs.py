"""Jobs: forecast, start, look, watch, pause, resume, cancel, retry."""

from __future__ import annotations

import asyncio
import builtins
import json
import sys
import time
from collections.abc import AsyncIterator, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from decimal import Decimal
from functools import partial
from typing import Any, LiteralString, TypeAlias, Unpack
from uuid import UUID

import psycopg

from penstock import db, filters
from penstock.errors import Invalid, Unavailable, from_database
from penstock.types import (
    Attempt,
    Explanation,
    Forecast,
    GraphTask,
    Job,
    JobExplanation,
    JobOptions,
    JobStatus,
    JobVerb,
    Progress,
    Task,
    TaskStatus,
    Weight,
    given,
)

TaskSpec: TypeAlias = Mapping[str, Any]
"""What a caller says of a task: an element of p_tasks."""

_STATUSES = ("queued", "running", "paused", "completed", "failed", "canceled")

FIELDS: Mapping[str, filters.Field] = {
    "id": filters.ids("id"),
    "status": filters.words("status", _STATUSES),
    "type": filters.words("type"),
    "tenant": filters.tenant("tenant_id"),
    "age": filters.age("created_at"),
}

_PATIENCE_SECONDS = 30

_JOBS: LiteralString = """\
select id, tenant_id, type, status, status_reason, params, priority, created_by, created_at, run_at,
  started_at, finished_at, percent, phase, succeeded + failed + canceled, total, succeeded, failed, canceled,
  docs_complete, docs_total
from penstock.job_list where """
_TASKS: LiteralString = """\
select id, job_id, kind, key, phase, status, waiting_for, waiting_until, priority, attempt, retry_count,
  created_at, started_at, finished_at, worker_id, fraction, message, error_code, error_message, input, output
from penstock.task_list where """
_ATTEMPTS: LiteralString = """\
select task_id, lease, attempt, worker_id, started_at, ended_at, outcome, error_code, error_message,
  error_details, retry_in_seconds
from penstock.attempts
where job_id = %s and (%s::bigint is null or task_id = %s) and (task_id, lease) > (%s, %s)
order by task_id, lease limit %s"""
_OUTPUTS: LiteralString = """\
select coalesce(key, id::text), output from penstock.task_list
where job_id = %s and status = 'succeeded' order by id"""
_GRAPH: LiteralString = """\
select id, kind, key, phase, status, waiting_for, waiting_until, attempt, fraction, message, created_at,
  ready_at, started_at, finished_at, error_code, parents
from penstock.job_graph(%s, %s, %s)"""
_COUNTS: LiteralString = """\
select s.status, (select count(*) from (select from penstock.jobs where status = s.status and """
# What each verb can be done to.
_TO: dict[JobVerb, LiteralString] = {
    "pause": "status in ('queued', 'running')",
    "resume": "status = 'paused'",
    "cancel": "status in ('queued', 'running', 'paused')",
    "retry": "status in ('failed', 'running', 'paused')"
    " and exists (select from penstock.dead_letters d where d.job_id = jobs.id)",
}
_FOUND: LiteralString = "with found as materialized (select id from penstock.jobs where "
_WEIGH: LiteralString = """ order by id limit %s)
select (select count(*) from found),
  penstock.weigh_action(%s, array(select id::text from found limit 1001))"""
_ACT: LiteralString = """ order by id limit %s)
select penstock.start_action(%s, array(select id::text from found), %s)"""
_MOST_ACTED_ON = 500_000
# For a session of SQLAlchemy, whatever driver is below it.
_START = """\
select penstock.start_job(p_type => :type, p_params => cast(:params as jsonb),
  p_tasks => cast(:tasks as jsonb), p_options => cast(:options as jsonb))"""


# Starting


async def start(
    database: db.Database,
    *,
    type: str,
    params: Mapping[str, Any] | None = None,
    tasks: Iterable[TaskSpec],
    **options: Unpack[JobOptions],
) -> UUID:
    """Make a job with its tasks and their graph in one transaction. The same key gives the same job."""
    return await db.value(
        database,
        "start_job",
        p_type=type,
        p_params=dict(params or {}),
        p_tasks=db.Json(builtins.list(tasks)),
        p_options=given(options),
    )


async def forecast(
    database: db.Database,
    *,
    type: str,
    params: Mapping[str, Any] | None = None,
    tasks: Iterable[TaskSpec],
    times: float = 1,
    **options: Unpack[JobOptions],
) -> Forecast:
    """What `start` with the same arguments would cost, use and take under the present limits.

    `times`: the tasks are a sample, and there are so many times as many.
    """
    del params  # decides nothing here: it is taken so that the arguments are the same
    document = await db.document(
        database,
        "forecast_job",
        p_type=type,
        p_tasks=db.Json(builtins.list(tasks)),
        p_options=given(options) | ({"times": times} if times != 1 else {}),
    )
    return Forecast.read(document)


async def start_many(
    database: db.Database,
    *,
    type: str,
    params: Mapping[str, Any] | None = None,
    tasks: Iterable[TaskSpec],
    chunk: int = 10_000,
    **options: Unpack[JobOptions],
) -> UUID:
    """Make a job of any number of tasks in one transaction, from an iterable that is read as it is sent.

    Parents come before their children. At most `chunk` tasks, or a few megabytes of them, are held at a time.
    An idempotency key that was used before gives its job and reads no task; give a `digest` of them in the
    options if another set of tasks under the same key shall be refused.
    """
    chosen = given(options)
    async with db.transaction(database) as held:
        [opened] = await db.call(held, "open_job", p_type=type, p_params=dict(params or {}), p_options=chosen)
        if opened["is_new"]:
            send = partial(db.call, held, "add_tasks", p_job_id=opened["job_id"])
            if not await db.send_in_batches(tasks, lambda part: send(p_tasks=part), max_items=chunk):
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
    """Start a job in the caller's transaction: an async connection of psycopg, or session of SQLAlchemy."""
    if not _is_sqlalchemy(using):
        return await start(using, type=type, params=params, tasks=tasks, **options)
    with _translated():
        found = await using.execute(_text(), _texts(type, params, tasks, given(options)))
        return UUID(str(found.scalar_one()))


def start_sync(
    using: Any,
    *,
    type: str,
    params: Mapping[str, Any] | None = None,
    tasks: Iterable[TaskSpec],
    **options: Unpack[JobOptions],
) -> UUID:
    """`start_in` without async."""
    if _is_sqlalchemy(using):
        with _translated():
            found = using.execute(_text(), _texts(type, params, tasks, given(options)))
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
    """Add tasks to a job that has not ended; returns their ids. A running task names itself and its lease."""
    return await db.value(
        database,
        "add_tasks",
        p_job_id=job_id,
        p_tasks=db.Json(builtins.list(tasks)),
        p_task_id=task_id,
        p_worker_id=worker_id,
        p_lease=lease,
    )


# Looking


async def get(database: db.Database, *, job_id: UUID) -> Job:
    """A job with its progress."""
    return Job.read(await db.value(database, "get_job", p_job_id=job_id))


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
    """Jobs, newest first. The next page comes `before` the id of the last one of this page."""
    chosen = [
        *await filters.conditions(database, filter, FIELDS),
        *_equal(tenant_id=tenant_id, type=type, status=status),
    ]
    chosen += _of_tenants(tenant_ids)
    if before is not None:
        chosen.append(("id < %s", [before]))
    condition, values = filters.every(chosen)
    statement = _JOBS + condition + " order by id desc limit %s"
    rows = await db.rows(database, statement, [*values, filters.page(limit)])
    return [Job(*row[:12], progress=Progress(*row[12:])) for row in rows]


async def tasks(
    database: db.Database,
    *,
    job_id: UUID,
    status: TaskStatus | None = None,
    kind: str | None = None,
    after: int | None = None,
    limit: int = 50,
) -> builtins.list[Task]:
    """A job's tasks in the order they were made. The next page comes `after` the last id of this one."""
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
    """How many jobs of each status match; of more than `most`, one more than that: it costs no more."""
    condition, values = filters.every(
        [*await filters.conditions(database, filter, FIELDS), *_of_tenants(tenant_ids)]
    )
    statement = _COUNTS + condition + " limit %s) as x) from unnest(%s::text[]) as s(status)"
    return dict(await db.rows(database, statement, [*values, most + 1, builtins.list(_STATUSES)]))  # pyright: ignore[reportArgumentType]


async def graph(
    database: db.Database, *, job_id: UUID, after: int = 0, limit: int = 500
) -> builtins.list[GraphTask]:
    """A job's tasks with what each comes after, and when it could have begun."""
    return [GraphTask(*row) for row in await db.rows(database, _GRAPH, (job_id, after, limit))]


async def attempts(
    database: db.Database,
    *,
    job_id: UUID,
    task_id: int | None = None,
    after: tuple[int, int] = (0, 0),
    limit: int = 50,
) -> builtins.list[Attempt]:
    """The attempts at a job's tasks, or at one of them, that did not succeed, with their errors.

    In the order of the tasks. The next page comes `after` task and lease of the last one of this page.
    """
    rows = await db.rows(database, _ATTEMPTS, (job_id, task_id, task_id, *after, filters.page(limit)))
    return [Attempt(*row) for row in rows]


async def outputs(database: db.Database, *, job_id: UUID) -> dict[str, Any]:
    """What the job's tasks returned, by their keys (by their ids where they have none), in order."""
    return {key: output for key, output in await db.rows(database, _OUTPUTS, (job_id,))}


async def forecast_rest(database: db.Database, *, job_id: UUID) -> Forecast:
    """What is left of a job that has not ended will cost, use and take."""
    return Forecast.read(await db.document(database, "forecast", p_job_id=job_id))


async def explain(database: db.Database, *, job_id: UUID, task_id: int) -> Explanation:
    """Why a task is not running: what it waits for, about how long, and its place in line."""
    return Explanation.read(await db.value(database, "explain_task", p_job_id=job_id, p_task_id=task_id))


async def explain_job(database: db.Database, *, job_id: UUID) -> JobExplanation:
    """How a job stands, and what happens next."""
    return JobExplanation.read(await db.value(database, "explain_job", p_job_id=job_id))


async def watch(database: db.Database, *, job_id: UUID, interval: float = 1.0) -> AsyncIterator[Job]:
    """The job now, and again whenever it has changed, until it has ended. Looks every `interval` seconds.

    A database that is away for less than half a minute (a restart, a failover) is waited for.
    """
    last: Job | None = None
    heard_at = time.monotonic()
    while last is None or not last.is_ended:
        try:
            job = await get(database, job_id=job_id)
            heard_at = time.monotonic()
            if job != last:
                yield job
            last = job
        except Unavailable:
            if time.monotonic() - heard_at > _PATIENCE_SECONDS:
                raise
        if last is None or not last.is_ended:
            await asyncio.sleep(interval)


async def ended(database: db.Database, *, job_id: UUID, interval: float = 0.25) -> Job:
    """The job, once it has ended."""
    last: Job | None = None
    async for job in watch(database, job_id=job_id, interval=interval):
        last = job
    assert last is not None
    return last


# Acting


async def pause(database: db.Database, *, job_id: UUID, reason: str | None = None) -> str:
    """Claim nothing of the job from now on; what runs ends normally. Returns its status."""
    return await db.value(database, "pause_job", p_job_id=job_id, p_reason=reason)


async def resume(database: db.Database, *, job_id: UUID) -> str:
    """Take a paused job up again. Returns its status."""
    return await db.value(database, "resume_job", p_job_id=job_id)


async def cancel(database: db.Database, *, job_id: UUID, reason: str | None = None) -> str:
    """End the job now; running handlers are told to stop. Returns its status."""
    return await db.value(database, "cancel_job", p_job_id=job_id, p_reason=reason)


async def confirm(database: db.Database, *, job_id: UUID) -> int:
    """Let the tasks run that wait for a confirmation. Returns how many they are."""
    return await db.value(database, "confirm_job", p_job_id=job_id)


async def retry(database: db.Database, *, job_id: UUID) -> int:
    """Run the failed tasks again, and what was canceled because of them. Returns how many had failed."""
    return await db.value(database, "retry_job", p_job_id=job_id)


async def weigh(
    database: db.Database,
    *,
    verb: JobVerb,
    filter: str = "",
    ids: Sequence[UUID] | None = None,
    tenant_ids: Sequence[UUID] | None = None,
) -> Weight:
    """What `act` with the same arguments would be about, and its money."""
    found, values = await _acted_on(database, verb, filter, ids, tenant_ids)
    statement = _FOUND + found + _WEIGH
    [(count, some)] = await db.rows(database, statement, [*values, _MOST_ACTED_ON + 1, verb])
    return Weight(count, some["tasks"], Decimal(some["cost"]), some["unpriced"], some["is_part"])


async def act(
    database: db.Database,
    *,
    verb: JobVerb,
    filter: str = "",
    ids: Sequence[UUID] | None = None,
    tenant_ids: Sequence[UUID] | None = None,
    reason: str | None = None,
) -> UUID:
    """Do it to the jobs with these ids, or to all that match; returns the action, which tells how far it is.

    A hundred are done at once, more by the workers. Jobs that it cannot be done to are left out.
    """
    found, values = await _acted_on(database, verb, filter, ids, tenant_ids)
    statement = _FOUND + found + _ACT
    [[action_id]] = await db.rows(database, statement, [*values, _MOST_ACTED_ON, verb, reason])
    return action_id


async def _acted_on(
    database: db.Database,
    verb: JobVerb,
    filter: str,
    ids: Sequence[UUID] | None,
    tenant_ids: Sequence[UUID] | None,
) -> filters.Condition:
    if verb not in _TO:
        raise Invalid(f"{verb!r} is not done to jobs", code="invalid_verb", details={"field": "verb"})
    chosen: builtins.list[filters.Condition] = [(_TO[verb], [])]
    if ids is None:
        chosen += [*await filters.conditions(database, filter, FIELDS), *_of_tenants(tenant_ids)]
    else:
        chosen.append(("id = any (%s)", [builtins.list(ids)]))
    return filters.every(chosen)


def _of_tenants(tenant_ids: Sequence[UUID] | None) -> builtins.list[filters.Condition]:
    """That a member's own are meant is clear anyway; said outright, an index leads to them."""
    return [] if tenant_ids is None else [("tenant_id = any (%s)", [builtins.list(tenant_ids)])]


# What start and list need


def _equal(**wanted: Any) -> builtins.list[filters.Condition]:
    columns: dict[str, LiteralString] = {
        "job_id": "job_id = %s",
        "kind": "kind = %s",
        "status": "status = %s",
        "tenant_id": "tenant_id = %s",
        "type": "type = %s",
    }
    return [(columns[name], [value]) for name, value in wanted.items() if value is not None]


def _is_sqlalchemy(using: Any) -> bool:
    return any(base.__module__.startswith("sqlalchemy.") for base in builtins.type(using).__mro__)


@contextmanager
def _translated() -> Generator[None]:
    """What the database refuses is said as elsewhere, at least where psycopg is the driver."""
    try:
        yield
    except Exception as error:
        cause = getattr(error, "orig", None)
        meaning = from_database(cause) if isinstance(cause, psycopg.Error) else None
        if meaning is None:
            raise
        raise meaning from error


def _text() -> Any:
    # Whoever hands us a session of SQLAlchemy has imported it: it is no dependency of ours.
    return sys.modules["sqlalchemy"].text(_START)


def _texts(
    type: str, params: Mapping[str, Any] | None, tasks: Iterable[TaskSpec], options: Mapping[str, Any]
) -> dict[str, str]:
    documents = {"params": dict(params or {}), "tasks": builtins.list(tasks), "options": options}
    return {"type": type, **{name: json.dumps(document) for name, document in documents.items()}}
