"""Notifications: targets, failures in a row, and the delivery of messages."""

from __future__ import annotations

from uuid import UUID

from fastapi import APIRouter, Request, Response

from penstock.contract import notifications, tenants
from penstock.dashboard import forms
from penstock.dashboard.pages import PER_PAGE, Conn, CurrentViewer, Page, redirect, render
from penstock.errors import Invalid

router = APIRouter(route_class=Page)

_EVENTS = ("alert", "job.completed", "job.failed", "bulk.completed")


@router.get("/notifications")
async def list_notifications(
    request: Request, conn: Conn, viewer: CurrentViewer, before: UUID | None = None
) -> Response:
    """List targets, streaks of failures, and messages."""
    found = await notifications.list(conn, before=before, limit=PER_PAGE + 1)
    shown = found[:PER_PAGE]
    targets = await notifications.list_targets(conn, limit=200)
    streaks = await notifications.streaks(conn, limit=50)
    return render(
        request,
        "notifications.html",
        notifications=shown,
        targets=targets,
        streaks=streaks,
        failures=await notifications.failures(conn, limit=20),
        names=await tenants.names(conn, ids=[each.tenant_id for each in (*shown, *targets, *streaks)]),
        before=before,
        next=shown[-1].id if len(found) > PER_PAGE else None,
        live=None,
    )


@router.post("/notifications/targets")
async def add_target(request: Request, conn: Conn, viewer: CurrentViewer) -> Response:
    """Add a target; the secret of a new webhook is shown once."""
    form: forms.Form = request.state.form
    tenant_id = viewer.choose_tenant(None)
    made = await notifications.set_target(
        conn,
        channel=form.get("channel") or "",
        address=(form.get("address") or "").strip(),
        events=[event for event in _EVENTS if form.get(event)] or ["alert"],
        tenant_id=tenant_id,
    )
    if made.secret is None:
        return redirect(request, "/notifications", flash="Target saved.")
    return render(request, "notification_secret.html", secret=made.secret)


@router.post("/notifications/targets/{target_id}")
async def change_target(request: Request, conn: Conn, target_id: UUID) -> Response:
    """Send a test message, give a webhook a new secret, or remove a target."""
    form: forms.Form = request.state.form
    match form.get("verb"):
        case "test":
            await notifications.send_test(conn, target_id=target_id)
            return redirect(request, "/notifications", flash="Test message queued.")
        case "rotate":
            secret = await notifications.rotate_secret(conn, target_id=target_id)
            return render(request, "notification_secret.html", secret=secret)
        case "remove":
            await notifications.remove_target(conn, target_id=target_id)
            return redirect(request, "/notifications", flash="Target removed.")
        case _:
            raise Invalid("unknown action", code="invalid_verb")
