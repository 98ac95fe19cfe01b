"""Settings: API keys, and (for operators) maintenance and what all workers share."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any
from uuid import UUID

from fastapi import APIRouter, Request, Response

from penstock import database_settings, keys
from penstock.dashboard import forms
from penstock.dashboard.pages import Held, Page, Seen, TenantQuery, Viewer, render, to
from penstock.errors import Invalid
from penstock.types import ApiKey, NewKey

router = APIRouter(route_class=Page)

ROLES = ("viewer", "member", "admin", "owner")


@router.get("/settings")
async def show_settings(request: Request, held: Held, viewer: Seen, tenant: TenantQuery = None) -> Response:
    """Keys and settings."""
    return await _show(request, held, viewer, tenant)


async def _show(
    request: Request,
    held: Held,
    viewer: Viewer,
    tenant: UUID | None,
    made: NewKey | None = None,
) -> Response:
    chosen = viewer.tenant(tenant)
    may_manage = viewer.may_manage(chosen)
    found: list[ApiKey] = await keys.list(held, tenant_id=chosen) if may_manage else []
    return render(
        request,
        "settings.html",
        tenant_id=chosen,
        keys=[key for key in found if key.revoked_at is None],
        revoked=sum(1 for key in found if key.revoked_at is not None),
        may_manage=may_manage,
        roles=ROLES if chosen else ("worker", "service"),
        settings=await database_settings.settings(held) if viewer.is_operator and not chosen else [],
        made=made,
        live=None,
    )


@router.post("/settings/keys")
async def create_key(request: Request, held: Held, viewer: Seen) -> Response:
    """Make a key, and show its secret, once."""
    form: forms.Form = request.state.form
    tenant_id = form.id("tenant")
    days = form.get("days")
    if days and not (days.isdecimal() and len(days) < 5):
        raise Invalid("a key is valid for a number of days", code="invalid_expiry")
    expires_at = request.state.now + timedelta(days=int(days)) if days else None
    role: Any = form.get("role")
    made = await keys.create(
        held, name=form.get("name"), role=role, tenant_id=tenant_id, expires_at=expires_at
    )
    return await _show(request, held, viewer, tenant_id, made=made)


@router.post("/settings/keys/revoke")
async def revoke_key(request: Request, held: Held) -> Response:
    """End a key."""
    form: forms.Form = request.state.form
    key_id = form.id("id")
    if key_id is None:
        raise Invalid("which key?", code="invalid_form")
    await keys.revoke(held, key_id=key_id)
    return to(request, "/settings", tenant=form.get("tenant"), said="The key is no longer good.")


@router.post("/settings/value")
async def change_setting(request: Request, held: Held) -> Response:
    """Change a setting. Only operators may; the database says so."""
    form: forms.Form = request.state.form
    try:
        value = json.loads(form.get("value"))
    except (ValueError, RecursionError):
        raise Invalid("the value is not JSON", code="invalid_setting") from None
    await database_settings.set(held, name=form.get("name"), value=value)
    return to(request, "/settings", said=f"{form.get('name')}: saved.")
