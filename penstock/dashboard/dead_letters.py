"""Dead letters: what failed for good, by cause, and the way back."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from penstock import dead_letters, filters, tenants
from penstock.dashboard import exports
from penstock.dashboard.pages import PER_PAGE, Filtering, FilterQuery, Held, Page, Seen, render
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
    held: Held,
    viewer: Seen,
    filter: FilterQuery = "",
    before: Annotated[int | None, Query(ge=0, lt=1 << 63)] = None,
) -> Response:
    """Dead letters, newest first, and the causes of them."""
    own = viewer.tenant_ids
    found: list[DeadLetter] = []
    causes: list[Cause] = []
    with Filtering() as asked:
        found = await dead_letters.list(
            held, filter=filter, tenant_ids=own, before=before, limit=PER_PAGE + 1
        )
        causes = await dead_letters.causes(held, filter=filter, tenant_ids=own)
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
        problem=asked.problem,
        names=await tenants.names(held, ids=[letter.tenant_id for letter in shown]),
        before=before,
        live=None if before else {"tenant": viewer.tenant(None)},
    )


@router.get("/dead-letters.csv")
async def export_dead_letters(held: Held, viewer: Seen, filter: FilterQuery = "") -> Response:
    """The dead letters that match, as a file."""
    cells = exports.fields(*EXPORTED)
    rows = await exports.whole(dead_letters.list, cells, held, filter=filter, tenant_ids=viewer.tenant_ids)
    return exports.as_csv("dead-letters", EXPORTED, rows)
