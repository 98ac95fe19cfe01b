"""The overview: one sentence of health, six numbers, and what is behind them."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from penstock import overview, providers, tenants
from penstock.dashboard.lanes import meters
from penstock.dashboard.pages import Held, Page, Seen, TenantQuery, render
from penstock.types import Overview, Provider

router = APIRouter(route_class=Page)

NEARLY_FULL = 0.8


@router.get("/")
async def show_overview(request: Request, held: Held, viewer: Seen, tenant: TenantQuery = None) -> Response:
    """How it goes."""
    chosen = viewer.tenant(tenant)
    if chosen is None and not viewer.is_operator:
        return render(request, "no_tenant.html")
    found = await overview.get(held, tenant_id=chosen)
    return render(
        request,
        "overview.html",
        overview=found,
        sentence=_sentence(found),
        rates=await overview.rates(held, tenant_id=chosen),
        nearly_full=_nearly_full(await providers.list(held)) if viewer.is_operator and not chosen else [],
        tenant_id=chosen,
        tenant_name=(await tenants.names(held, ids=[chosen])).get(chosen) if chosen else None,
        live={"tenant": chosen},
    )


def _sentence(found: Overview) -> str:
    """The health in one sentence."""
    if found.problems:
        count = len(found.problems)
        return "One thing needs attention." if count == 1 else f"{count} things need attention."
    if found.workers and found.workers.gone:
        return "Work goes on, but a worker went without a word."
    if found.failed_hour:
        return "Work goes on; some tasks failed in the last hour."
    return "All clear." if found.has_jobs else "Ready for the first job."


def _nearly_full(found: list[Provider]) -> list[tuple[Provider, str, int, int]]:
    """Limits of which more than four fifths are in use: the provider, which limit, how much of how much."""
    return [
        (provider, name, used, most)
        for provider in found
        for name, used, most in meters(provider)
        if most and used >= NEARLY_FULL * most
    ]
