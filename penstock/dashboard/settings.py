"""Settings: API keys and, for operators, maintenance mode and installation settings."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any
from uuid import UUID

from fastapi import APIRouter, Request, Response

from penstock.contract import database_settings, keys
from penstock.dashboard import forms
from penstock.dashboard.pages import AdminPage, Conn, CurrentViewer, TenantQuery, Viewer, redirect, render
from penstock.errors import Invalid
from penstock.types import ApiKey, NewKey

router = APIRouter(route_class=AdminPage)

ROLES = ("viewer", "member", "admin", "owner")


@router.get("/settings")
async def show_settings(
    request: Request, conn: Conn, viewer: CurrentViewer, tenant: TenantQuery = None
) -> Response:
    """Show API keys and settings."""
    return await _render(request, conn, viewer, tenant)


async def _render(
    request: Request,
    conn: Conn,
    viewer: Viewer,
    tenant: UUID | None,
    new_key: NewKey | None = None,
) -> Response:
    tenant_id = viewer.choose_tenant(tenant)
    may_manage = viewer.may_manage(tenant_id)
    found: list[ApiKey] = await keys.list(conn, tenant_id=tenant_id) if may_manage else []
    return render(
        request,
        "settings.html",
        tenant_id=tenant_id,
        keys=[key for key in found if key.revoked_at is None],
        revoked=sum(1 for key in found if key.revoked_at is not None),
        may_manage=may_manage,
        roles=ROLES if tenant_id else ("worker", "service"),
        settings=await database_settings.settings(conn) if viewer.is_operator and not tenant_id else [],
        scopes=("read", "start", "admin") if tenant_id else ("read", "start", "work", "admin"),
        new_key=new_key,
        live=None,
    )


@router.post("/settings/keys")
async def create_key(request: Request, conn: Conn, viewer: CurrentViewer) -> Response:
    """Create an API key and show its secret once."""
    form: forms.Form = request.state.form
    tenant_id = form.id("tenant")
    days = form.get("days")
    if days and not (days.isdecimal() and len(days) < 5):
        raise Invalid("days must be a whole number", code="invalid_expiry")
    expires_at = request.state.now + timedelta(days=int(days)) if days else None
    role: Any = form.get("role")
    scopes: Any = form.all("scope") or None
    new_key = await keys.create(
        conn, name=form.get("name"), role=role, tenant_id=tenant_id, expires_at=expires_at, scopes=scopes
    )
    return await _render(request, conn, viewer, tenant_id, new_key=new_key)


@router.post("/settings/keys/revoke")
async def revoke_key(request: Request, conn: Conn) -> Response:
    """Revoke an API key."""
    form: forms.Form = request.state.form
    key_id = form.id("id")
    if key_id is None:
        raise Invalid("id is required", code="invalid_form")
    await keys.revoke(conn, key_id=key_id)
    return redirect(request, "/settings", tenant=form.get("tenant"), flash="API key revoked.")


@router.post("/settings/value")
async def change_setting(request: Request, conn: Conn) -> Response:
    """Change a setting. The database rejects callers who are not operators."""
    form: forms.Form = request.state.form
    try:
        value = json.loads(form.get("value"))
    except (ValueError, RecursionError):
        raise Invalid("the value must be valid JSON", code="invalid_setting") from None
    await database_settings.set(conn, name=form.get("name"), value=value)
    return redirect(request, "/settings", flash=f"{form.get('name')} saved.")
