"""Operations: work of tasks at outside systems."""

from __future__ import annotations

from uuid import UUID

from fastapi import APIRouter, Request, Response

from penstock.contract import operations, tenants
from penstock.dashboard import forms
from penstock.dashboard.pages import (
    PER_PAGE,
    READ_ONLY_MESSAGE,
    CatchInvalidFilter,
    Conn,
    CurrentViewer,
    FilterQuery,
    Page,
    redirect,
    render,
)
from penstock.errors import Forbidden, NotFound
from penstock.types import TaskOperation

router = APIRouter(route_class=Page)


@router.get("/operations")
async def list_operations(
    request: Request,
    conn: Conn,
    viewer: CurrentViewer,
    filter: FilterQuery = "",
    before: UUID | None = None,
) -> Response:
    """List operations, newest first."""
    found: list[TaskOperation] = []
    with CatchInvalidFilter() as caught:
        found = await operations.list(
            conn, filter=filter, tenant_ids=viewer.tenant_ids, before=before, limit=PER_PAGE + 1
        )
    shown = found[:PER_PAGE]
    return render(
        request,
        "operations.html",
        operations=shown,
        next=shown[-1].id if len(found) > PER_PAGE else None,
        filter=filter,
        fields=list(operations.FIELDS),
        filter_error=caught.error,
        names=await tenants.names(conn, ids=[each.tenant_id for each in shown]),
        before=before,
        live=None if before else {"tenant": viewer.choose_tenant(None)},
    )


@router.post("/operations/{operation_id}/{verb}")
async def act(request: Request, conn: Conn, operation_id: UUID, verb: str) -> Response:
    """Ask the provider about an operation, or cancel it."""
    if request.app.state.settings.read_only:
        raise Forbidden(READ_ONLY_MESSAGE, code="read_only")
    if verb == "cancel":
        status = await operations.cancel(conn, operation_id=operation_id)
        flash = "Canceled." if status == "canceled" else f"The operation has ended: {status}."
    elif verb == "reconcile":
        count = await operations.reconcile(conn, operation_id=operation_id)
        flash = "A worker asks the provider." if count else "The operation has ended."
    else:
        raise NotFound("page not found")
    form: forms.Form = request.state.form
    return redirect(request, forms.local(form.get("next") or "/operations"), flash=flash)
