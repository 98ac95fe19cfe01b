"""Subscriptions at Stripe: plans that end, subscriptions in doubt and failed events, for operators."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from penstock.contract import billing, tenants, webhooks
from penstock.dashboard.pages import PER_PAGE, Conn, CurrentViewer, Page, render
from penstock.errors import Forbidden

router = APIRouter(route_class=Page)


@router.get("/subscriptions")
async def list_subscriptions(request: Request, conn: Conn, viewer: CurrentViewer) -> Response:
    """List subscriptions, plans that end, and events that failed."""
    if not viewer.is_operator:
        raise Forbidden("only operators see subscriptions")
    found = await billing.subscriptions(conn, limit=PER_PAGE)
    lapsing = await billing.lapsing(conn, limit=PER_PAGE)
    return render(
        request,
        "subscriptions.html",
        subscriptions=found,
        names=await tenants.names(conn, ids=[each.tenant_id for each in found]),
        lapsing=lapsing,
        suspects=await billing.subscriptions(conn, is_suspect=True, limit=PER_PAGE),
        failed=await webhooks.list(conn, filter="source:stripe outcome:failed", limit=PER_PAGE),
        live=None,
    )
