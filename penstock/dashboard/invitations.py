"""Invitations: the page behind an invitation's link, and leaving a tenant."""

from __future__ import annotations

from uuid import UUID

from fastapi import APIRouter, Request, Response

from penstock.contract import invitations
from penstock.dashboard import forms
from penstock.dashboard.pages import AdminPage, Conn, redirect, render
from penstock.dashboard.sessions import SessionPage
from penstock.errors import Invalid, NotFound

router = APIRouter(route_class=SessionPage)
admin_router = APIRouter(route_class=AdminPage)


@router.get("/invitations/{secret}")
async def show_invitation(request: Request, conn: Conn, secret: str) -> Response:
    """Show the tenant and role of an invitation, to accept or decline it."""
    found = await invitations.get(conn, secret=secret)
    if found is None:
        raise NotFound(
            "the invitation does not exist, has expired or was used",
            code="unknown_invitation",
            hint="Ask for a new one.",
        )
    return render(request, "invitation.html", invitation=found, secret=secret, live=None)


@router.post("/invitations/{secret}")
async def answer_invitation(request: Request, conn: Conn, secret: str) -> Response:
    """Accept or decline an invitation."""
    form: forms.Form = request.state.form
    if form.get("answer") == "accept":
        tenant_id = await invitations.accept(conn, secret=secret)
        return redirect(request, f"/tenants/{tenant_id}", flash="Invitation accepted.")
    await invitations.decline(conn, secret=secret)
    return redirect(request, "/", flash="Invitation declined.")


@router.post("/tenants/{tenant_id}/leave")
async def leave_tenant(request: Request, conn: Conn, tenant_id: UUID) -> Response:
    """Leave a tenant, and block it if asked to."""
    form: forms.Form = request.state.form
    await invitations.leave(conn, tenant_id=tenant_id, block=bool(form.get("block")))
    return redirect(request, "/", flash="You left the tenant.")


@admin_router.post("/tenants/{tenant_id}/invitations")
async def create_invitation(request: Request, conn: Conn, tenant_id: UUID) -> Response:
    """Create an invitation and show its link once."""
    form: forms.Form = request.state.form
    role = form.get("role")
    if role not in ("owner", "admin", "member", "viewer"):
        raise Invalid(f"unknown role {role[:100]!r}", code="invalid_role")
    made = await invitations.create(conn, tenant_id=tenant_id, role=role, email=form.get("email") or None)
    return render(request, "invitation_new.html", invitation=made, live=None)


@admin_router.post("/tenants/{tenant_id}/invitations/revoke")
async def revoke_invitation(request: Request, conn: Conn, tenant_id: UUID) -> Response:
    """Revoke a pending invitation."""
    form: forms.Form = request.state.form
    invitation_id = form.id("id")
    if invitation_id is None:
        raise Invalid("id is required", code="invalid_form")
    await invitations.revoke(conn, invitation_id=invitation_id)
    return redirect(request, f"/tenants/{tenant_id}", flash="Invitation revoked.")
