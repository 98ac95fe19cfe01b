"""Operations: work handed to an outside system that answers later."""

from __future__ import annotations

import builtins
from collections.abc import Mapping, Sequence
from typing import Any, LiteralString
from uuid import UUID

from penstock.contract import filters
from penstock.errors import NotFound
from penstock.postgres import db
from penstock.types import OPERATION_STATUSES, OperationCount, TaskOperation

FIELDS: Mapping[str, filters.Field] = {
    "id": filters.ids("id"),
    "job": filters.ids("job_id"),
    "task": filters.numbers("task_id"),
    "provider": filters.words("provider"),
    "object": filters.words("object"),
    "external": filters.words("external_id"),
    "status": filters.words("status", OPERATION_STATUSES),
    "tenant": filters.tenant("tenant_id"),
    "age": filters.age("started_at"),
}
_OPERATIONS: LiteralString = """\
select id, tenant_id, job_id, task_id, number, provider, object, external_id, status, is_late, result,
  error_code, error_message, started_at, submitted_at, deadline_at, checked_at, webhook_received_at,
  completed_at
from penstock.operations where """
_COUNTS: LiteralString = """\
select provider, status, count(*)::integer, 0, 0 from penstock.operations
where status in ('pending', 'processing') group by 1, 2
union all
select provider, status, count(*)::integer, count(webhook_received_at)::integer,
  coalesce(sum(extract(epoch from completed_at - submitted_at)), 0)::float8
from penstock.operations
where status not in ('pending', 'processing')
  -- Ids begin with the time in milliseconds.
  and id > (lpad(to_hex(
      floor(extract(epoch from penstock._now() - interval '1 hour') * 1000)::bigint), 12, '0')
    || '70008000000000000000')::uuid
group by 1, 2"""

_PROVIDER: LiteralString = """\
select provider from penstock.operations where job_id = %s and task_id = %s order by number desc limit 1"""
_OPEN: LiteralString = """\
select penstock._operation_document(o) from penstock.operations o
where o.job_id = %s and o.task_id = %s and o.status in ('timeout', 'pending', 'processing')
order by o.number"""


# For people


async def list(
    database: db.Database,
    *,
    filter: str = "",
    tenant_ids: Sequence[UUID] | None = None,
    before: UUID | None = None,
    limit: int = 50,
) -> builtins.list[TaskOperation]:
    """Operations, newest first. The next page is `before` the id of the last one of this page."""
    chosen = [*await filters.conditions(database, filter, FIELDS)]
    if tenant_ids is not None:
        chosen.append(("tenant_id = any (%s)", [builtins.list(tenant_ids)]))
    if before is not None:
        chosen.append(("id < %s", [before]))
    condition, values = filters.every(chosen)
    statement = _OPERATIONS + condition + " order by id desc limit %s"
    rows = await db.rows(database, statement, [*values, filters.page(limit)])
    return [TaskOperation(*row) for row in rows]


async def get(database: db.Database, *, operation_id: UUID) -> TaskOperation:
    """One operation."""
    rows = await db.rows(database, _OPERATIONS + "id = %s", (operation_id,))
    if not rows:
        raise NotFound("there is no such operation", code="unknown_operation")
    return TaskOperation(*rows[0])


async def cancel(database: db.Database, *, operation_id: UUID) -> str:
    """Cancel a live operation, here at once and at the provider soon. Returns its status."""
    return await db.value(database, "cancel_operation", p_operation_id=operation_id)


async def reconcile(database: db.Database, *, operation_id: UUID | None = None) -> int:
    """Let a worker ask about this operation, or about all recent timeouts. Returns their number."""
    return await db.value(database, "reconcile_operations", p_operation_id=operation_id)


async def counts(database: db.Database) -> builtins.list[OperationCount]:
    """Live operations, and those of the last hour that ended, by provider and status."""
    return [OperationCount(*row) for row in await db.rows(database, _COUNTS, ())]


# For workers


async def take(database: db.Database, *, providers: Sequence[str], limit: int = 20) -> builtins.list[Any]:
    """Operations to ask about, or to cancel, at the provider. No other worker gets them for a minute."""
    rows = await db.call(database, "take_operations", p_providers=builtins.list(providers), p_limit=limit)
    return [row["take_operations"] for row in rows]


async def report(
    database: db.Database, *, operation_id: str, outcome: str, values: dict[str, Any] | None = None
) -> str:
    """Report what the provider says about an operation that ended without it."""
    return await db.value(
        database,
        "reconcile_operation",
        p_operation_id=operation_id,
        p_outcome=outcome,
        p_values=values or {},
    )


async def begin(
    database: db.Database, *, task_id: int, worker_id: str, lease: int, object: str, seconds: float
) -> dict[str, Any]:
    """The task's newest operation, or a new one (`is_new`)."""
    return await db.value(
        database,
        "begin_operation",
        p_task_id=task_id,
        p_worker_id=worker_id,
        p_lease=lease,
        p_object=object,
        p_timeout_seconds=seconds,
    )


async def unfinished(database: db.Database, *, job_id: UUID, task_id: int) -> builtins.list[dict[str, Any]]:
    """The task's operations that are live, or timed out and may have succeeded since."""
    return [row[0] for row in await db.rows(database, _OPEN, (job_id, task_id))]


async def provider_of(database: db.Database, *, job_id: UUID, task_id: int) -> str | None:
    """The provider of the task's newest operation."""
    rows = await db.rows(database, _PROVIDER, (job_id, task_id))
    return rows[0][0] if rows else None


async def submit(
    database: db.Database, *, operation_id: str, worker_id: str, lease: int, external_id: str
) -> None:
    """Note the id that the provider gave."""
    await db.call(
        database,
        "submit_operation",
        p_operation_id=operation_id,
        p_worker_id=worker_id,
        p_lease=lease,
        p_external_id=external_id,
    )


async def note_check(database: db.Database, *, operation_id: str, worker_id: str, lease: int) -> None:
    """Note that the provider is asked now."""
    await db.call(
        database, "check_operation", p_operation_id=operation_id, p_worker_id=worker_id, p_lease=lease
    )


async def settle(
    database: db.Database,
    *,
    operation_id: str,
    worker_id: str,
    lease: int,
    outcome: str,
    values: dict[str, Any],
) -> str:
    """End an operation. Returns the status that counts."""
    return await db.value(
        database,
        "settle_operation",
        p_operation_id=operation_id,
        p_worker_id=worker_id,
        p_lease=lease,
        p_outcome=outcome,
        p_values=values,
    )


async def park(
    database: db.Database, *, operation_id: UUID, worker_id: str, lease: int, seconds: float
) -> str:
    """End the lease of a task that waits. Returns parked, queued, lease_lost or canceled."""
    return await db.value(
        database,
        "park_operation",
        p_operation_id=operation_id,
        p_worker_id=worker_id,
        p_lease=lease,
        p_seconds=seconds,
    )


async def tell(
    database: db.Database, *, provider: str, operation_id: UUID | None = None, external_id: str | None = None
) -> str:
    """A hint from a webhook: wakes the task. Returns applied, late, stale or unmatched."""
    return await db.value(
        database,
        "tell_operation",
        p_provider=provider,
        p_operation_id=operation_id,
        p_external_id=external_id,
    )
