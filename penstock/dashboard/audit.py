"""The audit log: who did what, when, to what."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Query, Request, Response

from penstock.contract import audit, tenants
from penstock.dashboard import actors, exports, formatting
from penstock.dashboard.pages import (
    PER_PAGE,
    CatchInvalidFilter,
    Conn,
    CurrentViewer,
    FilterQuery,
    Page,
    render,
)
from penstock.types import AuditLine

router = APIRouter(route_class=Page)


@router.get("/audit")
async def list_lines(
    request: Request,
    conn: Conn,
    viewer: CurrentViewer,
    filter: FilterQuery = "",
    before: Annotated[int | None, Query(ge=0, lt=1 << 63)] = None,
) -> Response:
    """Show the audit log, newest first."""
    found: list[AuditLine] = []
    with CatchInvalidFilter() as caught:
        found = await audit.list(
            conn, filter=filter, tenant_ids=viewer.tenant_ids, before=before, limit=PER_PAGE + 1
        )
    shown = found[:PER_PAGE]
    tenant_ids = {line.tenant_id for line in shown if line.tenant_id}
    tenant_names = await tenants.names(conn, ids=tenant_ids)
    named = [name for line in shown for name in (line.actor, line.subject)]
    named += formatting.canceling_actors(str(line.details.get("reason")) for line in shown)
    actor_names = await actors.names(conn, viewer, named, tenant_ids)
    return render(
        request,
        "audit.html",
        lines=shown,
        actor_names=actor_names,
        subjects={line.id: _subject(line, tenant_names, actor_names) for line in shown},
        next=shown[-1].id if len(found) > PER_PAGE else None,
        filter=filter,
        fields=list(audit.FIELDS),
        filter_error=caught.error,
        names=tenant_names,
        before=before,
        live=None if before else {"tenant": viewer.choose_tenant(None)},
    )


def _subject(line: AuditLine, tenant_names: Mapping[UUID, str], actor_names: Mapping[str, str]) -> str:
    """Describe what a line is about by its name: the log stores `tenant:ID`, `key:ID`, `provider:NAME`."""
    kind, _, id = (line.subject or "").partition(":")
    if kind == "tenant" and line.tenant_id and id == str(line.tenant_id):
        name = tenant_names.get(line.tenant_id)
    else:
        name = actor_names.get(line.subject or "") or line.details.get("name")
    if not isinstance(name, str):
        return f"{kind} {id}".strip()
    return name if name.startswith(f"{kind} ") else f"{kind} {name}"


@router.get("/audit.csv")
async def export_lines(conn: Conn, viewer: CurrentViewer, filter: FilterQuery = "") -> Response:
    """Export the lines that match the filter."""
    head = ("id", "at", "tenant_id", "actor", "action", "job_id", "subject", "details")
    to_rows = exports.fields(*head)
    rows = await exports.all_rows(audit.list, to_rows, conn, filter=filter, tenant_ids=viewer.tenant_ids)
    return await exports.as_csv("audit", head, rows)
