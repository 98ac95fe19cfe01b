"""What a worker says to the database about tasks. Everything is a batch; one is a batch of one."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any, LiteralString, NamedTuple, cast
from uuid import UUID

from penstock import db


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


class Done(NamedTuple):
    """A task that succeeded. The output is JSON text, or None for none."""

    id: int
    lease: int
    output: str | None


class Failed(NamedTuple):
    """An attempt that failed: `{"code", "message", "details", "retry_after_seconds", "permanent"}`."""

    id: int
    lease: int
    error: dict[str, Any]


class Refusal(NamedTuple):
    """A task the database would not take a report for: `lease_lost`, `canceled` or `too_large`."""

    id: int
    code: str


# Named columns, not `*`: a newer database may return more.
_CLAIM: LiteralString = """\
select id, lease, job_id, tenant_id, kind, key, input, attempt, max_attempts, timeout_seconds, provider
from penstock.claim_tasks(%s, %s, %s, %s)"""
_COMPLETE: LiteralString = (
    "select id, code from penstock.complete_tasks(%s, %s::bigint[], %s::bigint[], %s::jsonb[])"
)
_COMPLETE_LAST: LiteralString = "select penstock.complete_task(%s, %s, %s::jsonb, %s)"

_PROGRESS: LiteralString = "select penstock.report_progress(%s, %s, %s, %s::real, %s)"
_OUTPUTS: LiteralString = """select key, output from penstock.task_list
where job_id = %s and key = any (%s) and status = 'succeeded'"""


async def claim(
    where: db.Pool, worker_id: str, *, limit: int, kinds: list[str] | None, lease_seconds: int
) -> list[Claim]:
    """Take up to `limit` tasks of these kinds (None: of all), each leased for `lease_seconds`."""
    rows = await db.rows(where, _CLAIM, (worker_id, limit, kinds, lease_seconds), binary=True)
    return [Claim._make(row) for row in rows]


async def return_unknown(pool: db.Pool, worker_id: str, leases: Sequence[int]) -> int:
    """Requeue the worker's tasks other than those with these leases; returns how many there were."""
    return await db.value(pool, "return_unknown_tasks", p_worker_id=worker_id, p_leases=list(leases))


async def next_opening(where: db.Pool, kinds: list[str] | None) -> float | None:
    """In how many seconds a lane that is full or closed opens for work of these kinds; None: none does."""
    [row] = await db.call(where, "next_opening", p_task_types=kinds)
    return row["next_opening"]


async def report_limited(
    where: db.Pool, worker_id: str, task_id: int, lease: int, signal: dict[str, Any]
) -> None:
    """A provider refused a call: close its lane for all, and give the task back; it costs no attempt."""
    await db.call(
        where,
        "report_limited",
        p_task_id=task_id,
        p_worker_id=worker_id,
        p_lease=lease,
        p_signal=db.Json(clean(signal)),
    )


async def complete(where: db.Pool | db.Connection, worker_id: str, done: Sequence[Done]) -> list[Refusal]:
    """End tasks as succeeded; returns those refused."""
    return [Refusal._make(row) for row in await db.rows(where, _COMPLETE, _reports(worker_id, done))]


async def complete_last(say: db.Say, worker_id: str, done: Done) -> None:
    """End a task with the last words of a transaction, which raises LeaseLost or TooLarge then."""
    await say(_COMPLETE_LAST, (done.id, worker_id, done.output, done.lease))


def complete_last_sync(say: db.SaySync, worker_id: str, done: Done) -> None:
    """`complete_last` on a connection from `db.connect`."""
    say(_COMPLETE_LAST, (done.id, worker_id, done.output, done.lease))


def _reports(worker_id: str, done: Sequence[Done]) -> tuple[Any, ...]:
    outputs = [task.output for task in done]
    return (
        worker_id,
        _array(task.id for task in done),
        _array(task.lease for task in done),
        outputs if any(output is not None for output in outputs) else None,
    )


def _array(numbers: Iterable[int]) -> str:
    # As text: adapting a list of a thousand numbers one by one costs more than the call.
    return "{" + ",".join(map(str, numbers)) + "}"


async def fail(where: db.Pool, worker_id: str, failed: Sequence[Failed]) -> list[Refusal]:
    """End attempts as failed: the database decides whether each runs again, and when."""
    rows = await db.call(
        where,
        "fail_tasks",
        p_worker_id=worker_id,
        p_task_ids=[task.id for task in failed],
        p_leases=[task.lease for task in failed],
        p_errors=[db.Json(task.error) for task in failed],
    )
    return [Refusal(row["id"], row["code"]) for row in rows]


async def reschedule(
    where: db.Pool,
    worker_id: str,
    held: Sequence[tuple[int, int]],
    *,
    delay_seconds: float = 0,
    reason: str = "rescheduled",
) -> list[Refusal]:
    """Give tasks back, now or later, without costing an attempt."""
    rows = await db.call(
        where,
        "reschedule_tasks",
        p_worker_id=worker_id,
        p_task_ids=[task_id for task_id, _ in held],
        p_leases=[lease for _, lease in held],
        p_delay_seconds=delay_seconds,
        p_reason=reason,
    )
    return [Refusal(row["id"], row["code"]) for row in rows]


def heartbeat_sync(
    held: db.SyncConnection, worker_id: str, leases: Sequence[tuple[int, int]], lease_seconds: int
) -> list[tuple[int, int, str]]:
    """Extend leases; returns those that are gone, with the reason. For the heartbeat's own thread."""
    rows = db.call_sync(
        held,
        "heartbeat_tasks",
        p_worker_id=worker_id,
        p_leases=db.Json([{"id": task_id, "lease": lease} for task_id, lease in leases]),
        p_lease_seconds=lease_seconds,
    )
    return [(row["id"], row["lease"], row["code"]) for row in rows]


async def report_progress(
    where: db.Pool, worker_id: str, task_id: int, lease: int, *, fraction: float | None, message: str | None
) -> None:
    """How far a running task is, from 0 to 1, and a line for people."""
    await db.rows(where, _PROGRESS, (task_id, worker_id, lease, fraction, message))


async def outputs(where: db.Pool, job_id: UUID, *, keys: Sequence[str]) -> dict[str, Any]:
    """What those of a job's tasks returned, by their keys."""
    rows = await db.rows(where, _OUTPUTS, (job_id, list(keys)))
    return {key: output for key, output in rows}


def dump(value: Any) -> tuple[str | None, bool]:
    """A value as JSON text that PostgreSQL can store, and whether it had to be cleaned for that.

    PostgreSQL stores neither NUL nor half a surrogate pair. On the way back such text must not leave a task
    stuck, so it is replaced, and the value says so: `{"$cleaned": true}`, around a value that is no object.
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
    """An output as its task returned it, without the flag of `dump`."""
    match output:
        case {"$cleaned": True, "$value": value}:
            return value
        case {"$cleaned": True, **rest}:
            return rest
        case _:
            return output


def clean(value: Any) -> Any:
    """The value with every character PostgreSQL cannot store replaced by U+FFFD."""
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
