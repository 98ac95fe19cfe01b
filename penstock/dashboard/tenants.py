"""Tenants: plans, quotas, weights and members."""

from __future__ import annotations

from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Query, Request, Response

from penstock.contract import billing, invitations, tenants, usage
from penstock.dashboard import actors, forms
from penstock.dashboard.pages import PER_PAGE, AdminPage, Conn, CurrentViewer, redirect, render
from penstock.errors import Invalid, NotFound

router = APIRouter(route_class=AdminPage)


@router.get("/tenants")
async def list_tenants(
    request: Request,
    conn: Conn,
    viewer: CurrentViewer,
    name: Annotated[str, Query(max_length=200)] = "",
    after: UUID | None = None,
) -> Response:
    """List tenants with their plans, running tasks and costs."""
    found = await (
        tenants.find(conn, name=name) if name else tenants.list(conn, after=after, limit=PER_PAGE + 1)
    )
    shown = found[:PER_PAGE]
    shares = {}
    if viewer.is_operator:
        shares = {share.tenant_id: share for share in await tenants.shares(conn, ids=[t.id for t in shown])}
    return render(
        request,
        "tenants.html",
        tenants=shown,
        shares=shares,
        running=sum(share.running for share in shares.values()),
        name=name,
        after=after,
        next=shown[-1].id if len(found) > PER_PAGE else None,
        live=None,
    )


@router.get("/tenants/{tenant_id}")
async def show_tenant(
    request: Request,
    conn: Conn,
    viewer: CurrentViewer,
    tenant_id: UUID,
    after: UUID | None = None,
) -> Response:
    """Show a tenant: its quotas, its members and, for operators, its plan and weight."""
    found = await tenants.find(conn, name=str(tenant_id))
    if not found:
        raise NotFound("tenant not found", code="unknown_tenant")
    members = await tenants.members(conn, tenant_id=tenant_id, after=after, limit=PER_PAGE + 1)
    shown = members[:PER_PAGE]
    found_invitations = []
    if viewer.may_manage(tenant_id):
        found_invitations = await invitations.list(conn, tenant_id=tenant_id)
    return render(
        request,
        "tenant.html",
        tenant=found[0],
        status=await usage.status(conn, tenant_id=tenant_id),
        billing=await billing.status(conn, tenant_id=tenant_id),
        plans=await usage.plans(conn),
        members=shown,
        actor_names=await actors.names(
            conn, viewer, [f"user:{member.user_id}" for member in shown], [tenant_id]
        ),
        next=shown[-1].user_id if len(members) > PER_PAGE else None,
        after=after,
        may_manage=viewer.may_manage(tenant_id),
        invitations=[each for each in found_invitations if each.status == "pending"],
        live=None,
    )


@router.post("/tenants/{tenant_id}")
async def change_tenant(request: Request, conn: Conn, tenant_id: UUID) -> Response:
    """Change a tenant's weight and plan. The database rejects callers who are not operators."""
    form: forms.Form = request.state.form
    try:
        weight = float(form.get("weight"))
    except ValueError:
        raise Invalid("weight must be a number", code="invalid_weight") from None
    if not form.get("plan"):
        # A missing plan must not become one without limits.
        raise Invalid("plan is missing", code="invalid_form")
    # Set the plan first, because it resets the weight.
    await usage.set_tenant_plan(conn, tenant_id=tenant_id, plan=form.get("plan"))
    await tenants.set_weight(conn, tenant_id=tenant_id, weight=weight)
    return redirect(request, f"/tenants/{tenant_id}", flash="Tenant saved.")


@router.post("/tenants/{tenant_id}/members")
async def set_member(request: Request, conn: Conn, tenant_id: UUID) -> Response:
    """Add a member, change a member's role, or remove the member."""
    form: forms.Form = request.state.form
    try:
        user_id = UUID(form.get("user_id"))
    except ValueError:
        raise Invalid("user id must be a UUID", code="invalid_user") from None
    role: Any = form.get("role") or None
    await tenants.set_member(conn, tenant_id=tenant_id, user_id=user_id, role=role)
    return redirect(request, f"/tenants/{tenant_id}", flash="Member saved." if role else "Member removed.")
