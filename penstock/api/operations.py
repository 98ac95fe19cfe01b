"""Operations over HTTP: work at outside systems, asking about it and canceling it."""

from __future__ import annotations

from typing import Annotated
from uuid import UUID

from pydantic import BaseModel

from penstock.api.pages import LimitQuery, Page, UuidCursor, filter_query, page
from penstock.api.routes import Conn, router
from penstock.contract import operations
from penstock.types import OperationStatus, TaskOperation

routes = router("operations")


class OperationResponse(BaseModel):
    """The status of the operation."""

    status: OperationStatus


class ReconcileResponse(BaseModel):
    """How many operations the provider is asked about: 0 if this one has ended with the provider's word."""

    count: int


@routes.get("/operations")
async def list_operations(
    conn: Conn,
    filter: Annotated[str, filter_query("status:processing provider:cloudconvert/jobs age:>5m")] = "",
    cursor: UuidCursor = None,
    limit: LimitQuery = 50,
) -> Page[TaskOperation]:
    """List operations, newest first. Filter by id, job, task, provider, object, external, status or age."""
    found = await operations.list(conn, filter=filter, before=cursor, limit=limit + 1)
    return page(found, limit, lambda operation: operation.id)


@routes.get("/operations/{operation_id}")
async def get_operation(conn: Conn, operation_id: UUID) -> TaskOperation:
    """Get an operation."""
    return await operations.get(conn, operation_id=operation_id)


@routes.post("/operations/{operation_id}/cancel")
async def cancel_operation(conn: Conn, operation_id: UUID) -> OperationResponse:
    """Cancel a live operation, here at once and at the provider soon. One that has ended stays as it is."""
    status = await operations.cancel(conn, operation_id=operation_id)
    return OperationResponse.model_validate({"status": status})


@routes.post("/operations/{operation_id}/reconcile")
async def reconcile_operation(conn: Conn, operation_id: UUID) -> ReconcileResponse:
    """Let a worker ask the provider soon about an operation that is live or timed out."""
    return ReconcileResponse(count=await operations.reconcile(conn, operation_id=operation_id))
