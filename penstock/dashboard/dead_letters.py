"""Dead letters: tasks that failed permanently, grouped by cause, to replay or discard."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from penstock.contract import dead_letters, filters, jobs, tenants
from penstock.dashboard import exports
from penstock.dashboard.pages import (
    PER_PAGE,
    CatchInvalidFilter,
    Conn,
    CurrentViewer,
    FilterQuery,
    Page,
    render,
)
from penstock.types import Cause, DeadLetter

router = APIRouter(route_class=Page)

EXPORTED = (
    "id",
    "tenant_id",
    "job_id",
    "task_id",
    "kind",
    "reason",
    "error_code",
    "error_message",
    "attempts",
    "died_at",
)


@router.get("/dead-letters")
async def list_dead_letters(
    request: Request,
    conn: Conn,
    viewer: CurrentViewer,
    filter: FilterQuery = "",
    before: Annotated[int | None, Query(ge=0, lt=1 << 63)] = None,
) -> Response:
    """List dead letters, newest first, with their causes."""
    tenant_ids = viewer.tenant_ids
    found: list[DeadLetter] = []
    causes: list[Cause] = []
    with CatchInvalidFilter() as caught:
        found = await dead_letters.list(
            conn, filter=filter, tenant_ids=tenant_ids, before=before, limit=PER_PAGE + 1
        )
        causes = await dead_letters.causes(conn, filter=filter, tenant_ids=tenant_ids)
    shown = found[:PER_PAGE]
    return render(
        request,
        "dead_letters.html",
        letters=shown,
        next=shown[-1].id if len(found) > PER_PAGE else None,
        causes=[
            (cause, f"kind:{filters.quoted(cause.kind or '')} code:{filters.quoted(cause.code)}")
            for cause in causes
        ],
        total=sum(cause.count for cause in causes),
        filter=filter,
        fields=list(dead_letters.FIELDS),
        filter_error=caught.error,
        names=await tenants.names(conn, ids=[letter.tenant_id for letter in shown]),
        task_keys=await jobs.task_keys(
            conn, job_ids=[letter.job_id for letter in shown], task_ids=[letter.task_id for letter in shown]
        ),
        before=before,
        live=None if before else {"tenant": viewer.choose_tenant(None)},
    )


@router.get("/dead-letters.csv")
async def export_dead_letters(conn: Conn, viewer: CurrentViewer, filter: FilterQuery = "") -> Response:
    """Export the dead letters that match the filter."""
    to_rows = exports.fields(*EXPORTED)
    rows = await exports.all_rows(
        dead_letters.list, to_rows, conn, filter=filter, tenant_ids=viewer.tenant_ids
    )
    return await exports.as_csv("dead-letters", EXPORTED, rows)
