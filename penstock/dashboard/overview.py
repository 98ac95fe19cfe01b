"""The overview: health in one sentence, key figures, charts, causes of failure, limits in use."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from penstock.contract import alerts, overview, providers, tenants
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
    tenant_id = viewer.choose_tenant(tenant)
    if tenant_id is None and not viewer.is_operator:
        return render(request, "no_tenant.html")
    found = await overview.get(conn, tenant_id=tenant_id)
    return render(
        request,
        "overview.html",
        overview=found,
        health=_health(found),
        rates=await overview.rates(conn, tenant_id=tenant_id),
        nearly_full=_nearly_full(await providers.list(conn)) if viewer.is_operator and not tenant_id else [],
        alerts=await alerts.list(conn, limit=20) if viewer.is_operator and not tenant_id else [],
        tenant_id=tenant_id,
        tenant_name=(await tenants.names(conn, ids=[tenant_id])).get(tenant_id) if tenant_id else None,
        live={"tenant": tenant_id},
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


def _nearly_full(listed: list[Provider]) -> list[tuple[Provider, str, int, int]]:
    """Return limits with at least 80 % in use: provider, name of the limit, amount used, limit."""
    return [
        (provider, name, used, limit)
        for provider in listed
        for name, used, limit in limits_in_use(provider)
        if limit and used >= NEARLY_FULL * limit
    ]
