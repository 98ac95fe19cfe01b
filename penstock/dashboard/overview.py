"""The overview: health in one sentence, key figures, charts, causes of failure, limits in use."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from penstock import overview, providers, tenants
from penstock.dashboard import formatting
from penstock.dashboard.pages import Conn, CurrentViewer, Page, TenantQuery, render
from penstock.dashboard.providers import limits_in_use
from penstock.types import Overview, Provider

router = APIRouter(route_class=Page)

NEARLY_FULL = 0.8


@router.get("/")
async def show_overview(
    request: Request, conn: Conn, viewer: CurrentViewer, tenant: TenantQuery = None
) -> Response:
    """Show the overview of a tenant or of all tenants."""
    chosen = viewer.choose_tenant(tenant)
    if chosen is None and not viewer.is_operator:
        return render(request, "no_tenant.html")
    found = await overview.get(conn, tenant_id=chosen)
    return render(
        request,
        "overview.html",
        overview=found,
        health=_health(found),
        rates=await overview.rates(conn, tenant_id=chosen),
        nearly_full=_nearly_full(await providers.list(conn)) if viewer.is_operator and not chosen else [],
        tenant_id=chosen,
        tenant_name=(await tenants.names(conn, ids=[chosen])).get(chosen) if chosen else None,
        live={"tenant": chosen},
    )


def _health(found: Overview) -> str:
    """Summarize the state in one sentence."""
    if found.problems:
        return f"{formatting.counted(len(found.problems), 'problem')}."
    if found.workers and found.workers.gone:
        return f"Running, but {formatting.counted(found.workers.gone, 'worker')} stopped responding."
    if found.failed_hour:
        return "Running, with recent failures."
    return "All systems normal." if found.has_jobs else "Ready for the first job."


def _nearly_full(found: list[Provider]) -> list[tuple[Provider, str, int, int]]:
    """Return limits with at least 80 % in use: provider, name of the limit, amount used, limit."""
    return [
        (provider, name, used, limit)
        for provider in found
        for name, used, limit in limits_in_use(provider)
        if limit and used >= NEARLY_FULL * limit
    ]
