"""A worker's calls about tasks: claim, heartbeat, report. Reports are sent in batches."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any, LiteralString, NamedTuple, cast
from uuid import UUID

from penstock.postgres import db


class Claim(NamedTuple):
    """One attempt of one task, leased to this worker."""

    id: int
    lease: int
    job_id: UUID
    tenant_id: UUID
    kind: str
    key: str | None
    input: dict[str, Any]
    attempt: int
    max_attempts: int
    timeout_seconds: float | None
    provider: str | None = None
    traceparent: str | None = None
    """The trace that started the job; read only if the worker traces."""


class Done(NamedTuple):
    """A task that succeeded. The output is JSON text, or None."""

    id: int
    lease: int
    output: str | None


class Failed(NamedTuple):
    """An attempt that failed: `{"code", "message", "details", "retry_after_seconds", "permanent"}`."""

    id: int
    lease: int
    error: dict[str, Any]


class Rejection(NamedTuple):
    """A task whose report the database rejected: `lease_lost`, `canceled` or `too_large`."""

    id: int
    code: str


# Columns are named because a newer schema may return more.
_CLAIM: LiteralString = """\
select id, lease, job_id, tenant_id, kind, key, input, attempt, max_attempts, timeout_seconds, provider
from penstock.claim_tasks(%s, %s, %s, %s)"""
_CLAIM_TRACED: LiteralString = """\
select c.id, c.lease, c.job_id, c.tenant_id, c.kind, c.key, c.input, c.attempt, c.max_attempts,
  c.timeout_seconds, c.provider, (select j.traceparent from penstock.jobs j where j.id = c.job_id)
from penstock.claim_tasks(%s, %s, %s, %s) as c"""
_COMPLETE: LiteralString = (
    "select id, code from penstock.complete_tasks(%s, %s::bigint[], %s::bigint[], %s::jsonb[])"
)
_COMPLETE_LAST: LiteralString = "select penstock.complete_task(%s, %s, %s::jsonb, %s)"

_PROGRESS: LiteralString = "select penstock.report_progress(%s, %s, %s, %s::real, %s)"
_OUTPUTS: LiteralString = """select key, output from penstock.task_list
where job_id = %s and key = any (%s) and status = 'succeeded'"""


async def claim(
    database: db.Database,
    worker_id: str,
    *,
    limit: int,
    kinds: list[str] | None,
    lease_seconds: int,
    is_traced: bool = False,
) -> list[Claim]:
    """Claim up to `limit` tasks of these kinds (None: all kinds), each leased for `lease_seconds`."""
    query = _CLAIM_TRACED if is_traced else _CLAIM
    rows = await db.rows(database, query, (worker_id, limit, kinds, lease_seconds), binary=True)
    return [Claim(*row) for row in rows]


async def return_unknown(pool: db.Pool, worker_id: str, leases: Sequence[int]) -> int:
    """Requeue the worker's tasks other than those with these leases; returns their number."""
    return await db.value(pool, "return_unknown_tasks", p_worker_id=worker_id, p_leases=list(leases))


async def next_opening(pool: db.Pool, kinds: list[str] | None) -> float | None:
    """Seconds until a full or closed lane with tasks of these kinds opens; None if none does."""
    [row] = await db.call(pool, "next_opening", p_task_types=kinds)
    return row["next_opening"]


async def report_limited(
    pool: db.Pool, worker_id: str, task_id: int, lease: int, signal: dict[str, Any]
) -> None:
    """Report that a provider rejected a call: closes its lane for all workers and requeues the task.

    It costs no attempt.
    """
    await db.call(
        pool,
        "report_limited",
        p_task_id=task_id,
        p_worker_id=worker_id,
        p_lease=lease,
        p_signal=db.Json(clean(signal)),
    )


async def complete(database: db.Database, worker_id: str, done: Sequence[Done]) -> list[Rejection]:
    """End tasks as succeeded; returns those that were rejected."""
    return [Rejection._make(row) for row in await db.rows(database, _COMPLETE, _reports(worker_id, done))]


async def complete_last(execute_last: db.ExecuteLast, worker_id: str, done: Done) -> None:
    """End a task with the last statement of a transaction; its commit raises LeaseLost or TooLarge."""
    await execute_last(_COMPLETE_LAST, (done.id, worker_id, done.output, done.lease))


def complete_last_sync(execute_last: db.ExecuteLastSync, worker_id: str, done: Done) -> None:
    """`complete_last` for `db.pipelined_commit_sync`."""
    execute_last(_COMPLETE_LAST, (done.id, worker_id, done.output, done.lease))


def _reports(worker_id: str, done: Sequence[Done]) -> tuple[Any, ...]:
    outputs = [task.output for task in done]
    return (
        worker_id,
        _array(task.id for task in done),
        _array(task.lease for task in done),
        outputs if any(output is not None for output in outputs) else None,
    )


def _array(numbers: Iterable[int]) -> str:
    # Sent as text because the driver takes longer to adapt a thousand numbers than the call does.
    return "{" + ",".join(map(str, numbers)) + "}"


async def fail(database: db.Database, worker_id: str, failed: Sequence[Failed]) -> list[Rejection]:
    """End attempts as failed; the database decides whether and when each task is retried."""
    rows = await db.call(
        database,
        "fail_tasks",
        p_worker_id=worker_id,
        p_task_ids=[task.id for task in failed],
        p_leases=[task.lease for task in failed],
        p_errors=[db.Json(task.error) for task in failed],
    )
    return [Rejection(row["id"], row["code"]) for row in rows]


async def reschedule(
    pool: db.Pool,
    worker_id: str,
    leases: Sequence[tuple[int, int]],
    *,
    delay_seconds: float = 0,
    reason: str = "rescheduled",
) -> list[Rejection]:
    """Requeue tasks, given as (id, lease), at once or after a delay, without costing an attempt."""
    rows = await db.call(
        pool,
        "reschedule_tasks",
        p_worker_id=worker_id,
        p_task_ids=[task_id for task_id, _ in leases],
        p_leases=[lease for _, lease in leases],
        p_delay_seconds=delay_seconds,
        p_reason=reason,
    )
    return [Rejection(row["id"], row["code"]) for row in rows]


async def hand_back(pool: db.Pool, worker_id: str, leases: Sequence[tuple[int, int]]) -> list[Rejection]:
    """Requeue tasks, given as (id, lease), whose handler never ran: their provider calls no longer count."""
    rows = await db.call(
        pool,
        "hand_back_tasks",
        p_worker_id=worker_id,
        p_task_ids=[task_id for task_id, _ in leases],
        p_leases=[lease for _, lease in leases],
    )
    return [Rejection(row["id"], row["code"]) for row in rows]


def heartbeat_sync(
    conn: db.SyncConnection, worker_id: str, leases: Sequence[tuple[int, int]], lease_seconds: int
) -> list[tuple[int, int, str]]:
    """Extend leases, given as (id, lease); returns those that are lost, with the reason."""
    rows = db.call_sync(
        conn,
        "heartbeat_tasks",
        p_worker_id=worker_id,
        p_leases=db.Json([{"id": task_id, "lease": lease} for task_id, lease in leases]),
        p_lease_seconds=lease_seconds,
    )
    return [(row["id"], row["lease"], row["code"]) for row in rows]


async def report_progress(
    pool: db.Pool, worker_id: str, task_id: int, lease: int, *, fraction: float | None, message: str | None
) -> None:
    """Report a running task's progress, from 0 to 1, and a message."""
    await db.rows(pool, _PROGRESS, (task_id, worker_id, lease, fraction, message))


async def outputs(pool: db.Pool, job_id: UUID, *, keys: Sequence[str]) -> dict[str, Any]:
    """The outputs of a job's tasks with these keys, by key."""
    rows = await db.rows(pool, _OUTPUTS, (job_id, list(keys)))
    return {key: output for key, output in rows}


def dump(value: Any) -> tuple[str | None, bool]:
    """A value as JSON text that PostgreSQL can store, and whether it had to be cleaned for that.

    PostgreSQL stores neither NUL nor half a surrogate pair. An output with such text must not leave its task
    stuck, so they are replaced and the output is flagged: an object gets `"$cleaned": true`, another value
    becomes `{"$value": …, "$cleaned": true}`.
    """
    if value is None:
        return None, False
    text = json.dumps(value, ensure_ascii=True, allow_nan=False)
    if "\\u0000" not in text and "\\ud" not in text:
        return text, False
    cleaned = clean(value)
    if cleaned == value:
        return text, False
    if isinstance(cleaned, dict):
        return json.dumps({**cast("dict[str, Any]", cleaned), "$cleaned": True}), True
    return json.dumps({"$value": cleaned, "$cleaned": True}), True


def load(output: Any) -> Any:
    """An output without the flag that `dump` may have added."""
    match output:
        case {"$cleaned": True, "$value": value}:
            return value
        case {"$cleaned": True, **rest}:
            return rest
        case _:
            return output


def clean(value: Any) -> Any:
    """The value with every character that PostgreSQL cannot store replaced by U+FFFD."""
    match value:
        case str():
            return value.replace("\0", "�").encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        case dict():
            items = cast("dict[Any, Any]", value).items()
            return {clean(key): clean(item) for key, item in items}
        case list() | tuple():
            return [clean(item) for item in cast("list[Any]", value)]
        case _:
            return value
