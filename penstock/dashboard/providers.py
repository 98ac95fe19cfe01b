"""Providers and lanes: limits in use, waiting tasks, rate-limit responses; pausing and changing limits."""

from __future__ import annotations

from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import RedirectResponse

from penstock.contract import overview, providers, tenants
from penstock.dashboard import forms
from penstock.dashboard.pages import AdminPage, Conn, CurrentViewer, TenantQuery, redirect, render, url
from penstock.errors import Forbidden, Invalid, NotFound
from penstock.types import Provider

router = APIRouter(route_class=AdminPage)

Name = Annotated[str, Query(min_length=1, max_length=200)]
LIMITS = (
    ("requests_per_minute", "Requests per minute"),
    ("requests_per_hour", "Requests per hour"),
    ("tokens_per_minute", "Tokens per minute"),
    ("tokens_per_hour", "Tokens per hour"),
    ("concurrency", "Concurrency"),
    ("depth_limit", "Maximum waiting tasks"),
)


@router.get("/lanes")
async def redirect_lanes(request: Request) -> Response:
    """Keep old links working: the page was called "Lanes"."""
    return RedirectResponse(url(request, "/providers", **request.query_params), 307)


@router.get("/providers")
async def list_providers(
    request: Request, conn: Conn, viewer: CurrentViewer, tenant: TenantQuery = None
) -> Response:
    """List lanes and, for operators, providers with their limits."""
    tenant_id = viewer.choose_tenant(tenant)
    lanes = await overview.lanes(conn, tenant_id=tenant_id) if tenant_id or viewer.is_operator else []
    owners = {lane.tenant_id for lane in lanes if lane.tenant_id}
    listed = await providers.list(conn) if viewer.is_operator else []
    owners |= {provider.tenant_id for provider in listed if provider.tenant_id}
    return render(
        request,
        "providers.html",
        lanes=sorted(lanes, key=lambda lane: (-lane.waiting - lane.running, lane.kind)),
        providers=[(provider, limits_in_use(provider)) for provider in listed],
        names=await tenants.names(conn, ids=owners),
        live={"tenant": tenant_id},
    )


@router.get("/provider")
async def show_provider(
    request: Request, conn: Conn, viewer: CurrentViewer, name: Name, tenant: TenantQuery = None
) -> Response:
    """Show a provider: limits in use, waiting tasks by tenant, recent events, and a form for its limits."""
    provider = await _get_provider(conn, viewer.is_operator, name, tenant)
    waiting = await providers.waiting(conn, name=name)
    return render(
        request,
        "provider.html",
        provider=provider,
        limits_in_use=limits_in_use(provider),
        limits=LIMITS,
        waiting=waiting,
        events=await providers.events(conn, name=name, tenant_id=tenant, limit=50),
        names=await tenants.names(conn, ids=[*(each[0] for each in waiting), *([tenant] if tenant else [])]),
        live=None,
    )


@router.get("/provider/confirm")
async def confirm(
    request: Request,
    conn: Conn,
    viewer: CurrentViewer,
    name: Name,
    verb: Annotated[str, Query(pattern="^(pause|resume|open)$")],
    tenant: TenantQuery = None,
) -> Response:
    """Ask whether to pause, resume or reopen a provider, with the number of tasks concerned."""
    provider = await _get_provider(conn, viewer.is_operator, name, tenant)
    return render(request, "provider_confirm.html", provider=provider, verb=verb)


@router.post("/provider")
async def change_provider(request: Request, conn: Conn, viewer: CurrentViewer) -> Response:
    """Change a provider's limits, pause it, resume it, or reopen it after it was closed."""
    form: forms.Form = request.state.form
    name, verb = form.get("name"), form.get("verb")
    tenant_id = form.id("tenant")
    await _get_provider(conn, viewer.is_operator, name, tenant_id)
    flash = "Limits saved."
    if verb in ("pause", "resume"):
        status: Any = "maintenance" if verb == "pause" else "active"
        await providers.set(conn, name=name, tenant_id=tenant_id, status=status)
        flash = f"{name} paused." if verb == "pause" else f"{name} resumed."
    elif verb == "open":
        await providers.open(conn, name=name, tenant_id=tenant_id)
        flash = f"{name} reopened."
    else:
        values: Any = {field: _parse_limit(form.get(field), title) for field, title in LIMITS}
        await providers.set(conn, name=name, tenant_id=tenant_id, **values)
    return redirect(request, "/provider", name=name, tenant=tenant_id, flash=flash)


def limits_in_use(provider: Provider) -> list[tuple[str, int, int]]:
    """Return the name of each limit that is set, the amount used, and the limit."""
    limits = (
        ("requests/min", provider.requests_minute, provider.requests_per_minute),
        ("tokens/min", provider.tokens_minute, provider.tokens_per_minute),
        ("requests/h", provider.requests_hour, provider.requests_per_hour),
        ("tokens/h", provider.tokens_hour, provider.tokens_per_hour),
        ("concurrency", provider.running, provider.concurrency),
    )
    return [(name, used, limit) for name, used, limit in limits if limit is not None]


async def _get_provider(conn: Conn, is_operator: bool, name: str, tenant_id: UUID | None) -> Provider:
    if not is_operator:
        raise Forbidden("only operators see providers")
    found = [each for each in await providers.list(conn, name=name) if each.tenant_id == tenant_id]
    if not found:
        raise NotFound("provider not found", code="unknown_provider")
    return found[0]


def _parse_limit(text: str, title: str) -> int | None:
    plain = text.replace(",", "").replace("_", "").strip()
    if plain and not (plain.isdecimal() and len(plain) < 13):
        raise Invalid(f"{title} must be a whole number (got {text!r})", code="invalid_provider")
    return int(plain) if plain else None
