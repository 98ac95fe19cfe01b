"""Tenants and their members: shares, quotas, who is what."""

from __future__ import annotations

from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Query, Request, Response

from penstock import tenants, usage
from penstock.dashboard import forms
from penstock.dashboard.pages import PER_PAGE, Held, Page, Seen, render, to
from penstock.errors import Invalid, NotFound

router = APIRouter(route_class=Page)


@router.get("/tenants")
async def list_tenants(
    request: Request,
    held: Held,
    viewer: Seen,
    name: Annotated[str, Query(max_length=200)] = "",
    after: UUID | None = None,
) -> Response:
    """Tenants with their plans, running tasks and money."""
    found = await (
        tenants.find(held, name=name) if name else tenants.list(held, after=after, limit=PER_PAGE + 1)
    )
    shown = found[:PER_PAGE]
    shares = {}
    if viewer.is_operator:
        shares = {share.tenant_id: share for share in await tenants.shares(held, ids=[t.id for t in shown])}
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
    held: Held,
    viewer: Seen,
    tenant_id: UUID,
    after: UUID | None = None,
) -> Response:
    """A tenant: its quotas, its members, and (for operators) its plan and weight."""
    found = await tenants.find(held, name=str(tenant_id))
    if not found:
        raise NotFound("there is no such tenant", code="unknown_tenant")
    members = await tenants.members(held, tenant_id=tenant_id, after=after, limit=PER_PAGE + 1)
    shown = members[:PER_PAGE]
    return render(
        request,
        "tenant.html",
        tenant=found[0],
        status=await usage.status(held, tenant_id=tenant_id),
        plans=await usage.plans(held),
        members=shown,
        next=shown[-1].user_id if len(members) > PER_PAGE else None,
        after=after,
        may_manage=viewer.may_manage(tenant_id),
        live=None,
    )


@router.post("/tenants/{tenant_id}")
async def change_tenant(request: Request, held: Held, tenant_id: UUID) -> Response:
    """Change a tenant's weight and plan. Only operators may; the database says so."""
    form: forms.Form = request.state.form
    try:
        weight = float(form.get("weight"))
    except ValueError:
        raise Invalid("the weight is a number", code="invalid_weight") from None
    # The plan first: it brings a weight of its own.
    await usage.set_tenant_plan(held, tenant_id=tenant_id, plan=form.get("plan") or None)
    await tenants.set_weight(held, tenant_id=tenant_id, weight=weight)
    return to(request, f"/tenants/{tenant_id}", said="Saved.")


@router.post("/tenants/{tenant_id}/members")
async def set_member(request: Request, held: Held, tenant_id: UUID) -> Response:
    """Give somebody a role in the tenant, or take it away."""
    form: forms.Form = request.state.form
    try:
        user_id = UUID(form.get("user_id"))
    except ValueError:
        raise Invalid("a member is named by the user's id", code="invalid_user") from None
    role: Any = form.get("role") or None
    await tenants.set_member(held, tenant_id=tenant_id, user_id=user_id, role=role)
    return to(request, f"/tenants/{tenant_id}", said="Saved." if role else "Removed.")
