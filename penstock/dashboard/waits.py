"""Waits: what tasks ask people, with a button for each answer."""

from __future__ import annotations

from uuid import UUID

from fastapi import APIRouter, Request, Response

from penstock.api.waits import form_payload
from penstock.contract import tenants, waits
from penstock.dashboard import actors, forms
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
from penstock.errors import Forbidden
from penstock.types import TaskWait

router = APIRouter(route_class=Page)


@router.get("/waits")
async def list_waits(
    request: Request,
    conn: Conn,
    viewer: CurrentViewer,
    filter: FilterQuery = "status:open",
    before: UUID | None = None,
) -> Response:
    """List what tasks ask, newest first."""
    found: list[TaskWait] = []
    with CatchInvalidFilter() as caught:
        found = await waits.list(
            conn, filter=filter, tenant_ids=viewer.tenant_ids, before=before, limit=PER_PAGE + 1
        )
    shown = found[:PER_PAGE]
    people = [wait.ended_by for wait in shown if wait.ended_by]
    return render(
        request,
        "waits.html",
        waits=shown,
        next=shown[-1].id if len(found) > PER_PAGE else None,
        filter=filter,
        fields=list(waits.FIELDS),
        filter_error=caught.error,
        names=await tenants.names(conn, ids=[wait.tenant_id for wait in shown]),
        actor_names=await actors.names(conn, viewer, people, viewer.tenant_ids or []),
        before=before,
        live=None if before else {"tenant": viewer.choose_tenant(None)},
    )


@router.post("/waits/{wait_id}")
async def answer_wait(request: Request, conn: Conn, wait_id: UUID) -> Response:
    """Answer with one of the options and the fields of the form."""
    if request.app.state.settings.read_only:
        raise Forbidden(READ_ONLY_MESSAGE, code="read_only")
    form: forms.Form = request.state.form
    wait = await waits.get(conn, wait_id=wait_id)
    payload = form_payload(wait.fields, form.get)
    await waits.answer(conn, wait_id=wait_id, option=form.get("option") or None, payload=payload)
    option = form.get("option")
    flash = f"Answered {wait.name}{f' with {option}' if option else ''}."
    return redirect(request, forms.local(form.get("next") or "/waits"), flash=flash)
