"""Operations: work handed to an outside system that answers later."""

from __future__ import annotations

from typing import Any, LiteralString
from uuid import UUID

from penstock.postgres import db

_OPEN: LiteralString = """\
select penstock._operation_document(o) from penstock.operations o
where o.job_id = %s and o.task_id = %s and o.status in ('timeout', 'pending', 'processing')
order by o.number"""


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


async def unfinished(database: db.Database, *, job_id: UUID, task_id: int) -> list[dict[str, Any]]:
    """The task's operations that are live, or timed out and may have succeeded since."""
    return [row[0] for row in await db.rows(database, _OPEN, (job_id, task_id))]


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
