"""Webhooks: what other systems sent, for operators."""

from __future__ import annotations

from datetime import datetime

from fastapi import APIRouter, Request, Response

from penstock.contract import webhooks
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
from penstock.errors import Forbidden
from penstock.types import Webhook

router = APIRouter(route_class=Page)


@router.get("/webhooks")
async def list_webhooks(
    request: Request,
    conn: Conn,
    viewer: CurrentViewer,
    filter: FilterQuery = "",
    before: datetime | None = None,
) -> Response:
    """List webhooks, newest first."""
    if not viewer.is_operator:
        raise Forbidden("only operators see webhooks")
    found: list[Webhook] = []
    with CatchInvalidFilter() as caught:
        found = await webhooks.list(conn, filter=filter, before=before, limit=PER_PAGE + 1)
    shown = found[:PER_PAGE]
    return render(
        request,
        "webhooks.html",
        webhooks=shown,
        next=shown[-1].received_at.isoformat() if len(found) > PER_PAGE else None,
        filter=filter,
        fields=list(webhooks.FIELDS),
        filter_error=caught.error,
        before=before,
    )


@router.post("/webhooks/replay")
async def replay_webhook(request: Request, conn: Conn, viewer: CurrentViewer) -> Response:
    """Process a webhook again."""
    if request.app.state.settings.read_only or not viewer.is_operator:
        raise Forbidden(READ_ONLY_MESSAGE if viewer.is_operator else "only operators replay webhooks")
    form: forms.Form = request.state.form
    await webhooks.replay(conn, source=form.get("source"), key=form.get("key"))
    return redirect(request, forms.local(form.get("next") or "/webhooks"), flash="It is processed again.")
