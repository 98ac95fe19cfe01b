"""Audit: who did what, when, to what."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from penstock import audit, tenants
from penstock.dashboard import exports
from penstock.dashboard.pages import PER_PAGE, Filtering, FilterQuery, Held, Page, Seen, render
from penstock.types import AuditLine

router = APIRouter(route_class=Page)


@router.get("/audit")
async def list_lines(
    request: Request,
    held: Held,
    viewer: Seen,
    filter: FilterQuery = "",
    before: Annotated[int | None, Query(ge=0, lt=1 << 63)] = None,
) -> Response:
    """The audit log, newest first."""
    found: list[AuditLine] = []
    with Filtering() as asked:
        found = await audit.list(
            held, filter=filter, tenant_ids=viewer.tenant_ids, before=before, limit=PER_PAGE + 1
        )
    shown = found[:PER_PAGE]
    return render(
        request,
        "audit.html",
        lines=shown,
        next=shown[-1].id if len(found) > PER_PAGE else None,
        filter=filter,
        fields=list(audit.FIELDS),
        problem=asked.problem,
        names=await tenants.names(held, ids=[line.tenant_id for line in shown if line.tenant_id]),
        before=before,
        live=None if before else {"tenant": viewer.tenant(None)},
    )


@router.get("/audit.csv")
async def export_lines(held: Held, viewer: Seen, filter: FilterQuery = "") -> Response:
    """The lines that match, as a file."""
    head = ("id", "at", "tenant_id", "actor", "action", "job_id", "subject", "details")
    cells = exports.fields(*head)
    rows = await exports.whole(audit.list, cells, held, filter=filter, tenant_ids=viewer.tenant_ids)
    return exports.as_csv("audit", head, rows)
