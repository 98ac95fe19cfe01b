"""Lanes and providers: how full each limit is, who waits, what was refused; and changes to limits."""

from __future__ import annotations

from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Query, Request, Response

from penstock import overview, providers, tenants
from penstock.dashboard import forms
from penstock.dashboard.pages import Held, Page, Seen, TenantQuery, render, to
from penstock.errors import Forbidden, Invalid, NotFound
from penstock.types import Provider

router = APIRouter(route_class=Page)

Name = Annotated[str, Query(min_length=1, max_length=200)]
LIMITS = (
    ("requests_per_minute", "Requests a minute"),
    ("requests_per_hour", "Requests an hour"),
    ("tokens_per_minute", "Tokens a minute"),
    ("tokens_per_hour", "Tokens an hour"),
    ("concurrency", "At a time"),
    ("depth_limit", "Waiting at most"),
)


@router.get("/lanes")
async def list_lanes(request: Request, held: Held, viewer: Seen, tenant: TenantQuery = None) -> Response:
    """Lanes, and (for operators) the providers behind them."""
    chosen = viewer.tenant(tenant)
    found = await overview.lanes(held, tenant_id=chosen) if chosen or viewer.is_operator else []
    owners = {lane.tenant_id for lane in found if lane.tenant_id}
    listed = await providers.list(held) if viewer.is_operator else []
    owners |= {provider.tenant_id for provider in listed if provider.tenant_id}
    return render(
        request,
        "lanes.html",
        lanes=sorted(found, key=lambda lane: (-lane.waiting - lane.running, lane.kind)),
        providers=[(provider, meters(provider)) for provider in listed],
        names=await tenants.names(held, ids=owners),
        live={"tenant": chosen},
    )


@router.get("/provider")
async def show_provider(
    request: Request, held: Held, viewer: Seen, name: Name, tenant: TenantQuery = None
) -> Response:
    """A provider: its windows, who waits for it, what it refused, and its limits to change."""
    provider = await _provider(held, viewer.is_operator, name, tenant)
    waiting = await providers.waiting(held, name=name)
    return render(
        request,
        "provider.html",
        provider=provider,
        meters=meters(provider),
        limits=LIMITS,
        waiting=waiting,
        events=await providers.events(held, name=name, tenant_id=tenant, limit=50),
        names=await tenants.names(held, ids=[*(each[0] for each in waiting), *([tenant] if tenant else [])]),
        live=None,
    )


@router.get("/provider/confirm")
async def confirm(
    request: Request,
    held: Held,
    viewer: Seen,
    name: Name,
    verb: Annotated[str, Query(pattern="^(pause|resume|open)$")],
    tenant: TenantQuery = None,
) -> Response:
    """What pausing or opening it means, and for how many."""
    provider = await _provider(held, viewer.is_operator, name, tenant)
    return render(request, "provider_confirm.html", provider=provider, verb=verb)


@router.post("/provider")
async def change_provider(request: Request, held: Held, viewer: Seen) -> Response:
    """Change the limits of a provider, pause it, take it up again, or open what it closed."""
    form: forms.Form = request.state.form
    name, verb = form.get("name"), form.get("verb")
    tenant_id = form.id("tenant")
    await _provider(held, viewer.is_operator, name, tenant_id)
    said = "Saved."
    if verb in ("pause", "resume"):
        status: Any = "maintenance" if verb == "pause" else "active"
        await providers.set(held, name=name, tenant_id=tenant_id, status=status)
        said = "Paused: nothing new is sent to it." if verb == "pause" else "It takes work again."
    elif verb == "open":
        await providers.open(held, name=name, tenant_id=tenant_id)
        said = "Open again."
    else:
        values: Any = {field: _number(form.get(field), title) for field, title in LIMITS}
        await providers.set(held, name=name, tenant_id=tenant_id, **values)
    return to(request, "/provider", name=name, tenant=tenant_id, said=said)


def meters(provider: Provider) -> list[tuple[str, int, int]]:
    """Its limits, each with what of it is in use."""
    every = (
        ("requests a minute", provider.requests_minute, provider.requests_per_minute),
        ("tokens a minute", provider.tokens_minute, provider.tokens_per_minute),
        ("requests an hour", provider.requests_hour, provider.requests_per_hour),
        ("tokens an hour", provider.tokens_hour, provider.tokens_per_hour),
        ("at a time", provider.running, provider.concurrency),
    )
    return [(name, used, most) for name, used, most in every if most is not None]


async def _provider(held: Held, is_operator: bool, name: str, tenant_id: UUID | None) -> Provider:
    if not is_operator:
        raise Forbidden("providers are for operators")
    found = [each for each in await providers.list(held, name=name) if each.tenant_id == tenant_id]
    if not found:
        raise NotFound("there is no such provider", code="unknown_provider")
    return found[0]


def _number(text: str, title: str) -> int | None:
    plain = text.replace(",", "").replace("_", "").strip()
    if plain and not (plain.isdecimal() and len(plain) < 13):
        raise Invalid(f"{title}: {text!r} is not a number", code="invalid_provider")
    return int(plain) if plain else None
