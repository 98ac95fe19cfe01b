"""Usage and costs: spending by provider, job type and tenant; quotas."""

from __future__ import annotations

from collections import defaultdict
from datetime import date, timedelta
from decimal import Decimal
from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Query, Request, Response

from penstock.contract import costs, tenants, usage
from penstock.dashboard import exports
from penstock.dashboard.pages import Conn, CurrentViewer, Page, TenantQuery, render
from penstock.types import CostDay

router = APIRouter(route_class=Page)

DAYS = 30
MAX_PROVIDERS = 5
DaysQuery = Annotated[int, Query(ge=1, le=366)]


@router.get("/usage")
async def show_usage(
    request: Request, conn: Conn, viewer: CurrentViewer, tenant: TenantQuery = None, days: DaysQuery = DAYS
) -> Response:
    """Show costs per day and provider, quotas, and the most expensive jobs."""
    tenant_id = viewer.choose_tenant(tenant)
    if tenant_id is None and not viewer.is_operator:
        return render(request, "no_tenant.html")
    today: date = request.state.now.date()
    since = today - timedelta(days=days - 1)
    found = await costs.days(conn, since=since, tenant_id=tenant_id)
    by_tenant = (
        await costs.sums(conn, by="tenant", since=today - timedelta(days=6)) if tenant_id is None else []
    )
    names = await tenants.names(
        conn, ids=[UUID(each.key) for each in by_tenant[:10]] + ([tenant_id] if tenant_id else [])
    )
    return render(
        request,
        "usage.html",
        tenant_id=tenant_id,
        tenant_name=names.get(tenant_id) if tenant_id else None,
        days=days,
        total=sum((day.amount for day in found), Decimal(0)),
        chart=_chart(found, since, today),
        by_provider=await costs.sums(conn, by="provider", since=since, tenant_id=tenant_id),
        by_type=await costs.sums(conn, by="type", since=since, tenant_id=tenant_id),
        by_tenant=[(each, names.get(UUID(each.key), each.key)) for each in by_tenant[:10]],
        most_expensive=await costs.most_expensive(conn, tenant_ids=[tenant_id] if tenant_id else None),
        status=await usage.status(conn, tenant_id=tenant_id) if tenant_id else None,
        used=await _used(conn, tenant_id, since) if tenant_id else [],
        live=None,
    )


def _chart(cost_days: list[CostDay], since: date, today: date) -> dict[str, Any]:
    """Return costs per day of the most expensive providers, and of all others together."""
    totals: defaultdict[str, Decimal] = defaultdict(Decimal)
    cells: defaultdict[tuple[date, str], Decimal] = defaultdict(Decimal)
    for each in cost_days:
        totals[each.provider] += each.amount
    top = sorted(totals, key=lambda name: -totals[name])[:MAX_PROVIDERS]
    for each in cost_days:
        cells[each.day, each.provider if each.provider in top else "others"] += each.amount
    head = [*top, *(["others"] if len(totals) > len(top) else [])]
    span = [since + timedelta(days=n) for n in range((today - since).days + 1)]
    rows = [(day, [cells[day, name] for name in head]) for day in span]
    return {"head": [name or "no provider" for name in head], "rows": rows}


async def _used(conn: Conn, tenant_id: UUID, since: date) -> list[tuple[str, Decimal]]:
    sums: defaultdict[str, Decimal] = defaultdict(Decimal)
    for day in await usage.days(conn, tenant_id=tenant_id, since=since):
        sums[day.meter] += day.amount
    return sorted(sums.items())


@router.get("/costs.csv")
async def export_costs(
    request: Request, conn: Conn, viewer: CurrentViewer, tenant: TenantQuery = None, days: DaysQuery = DAYS
) -> Response:
    """Export costs per day and provider."""
    tenant_id = viewer.choose_tenant(tenant)
    since = request.state.now.date() - timedelta(days=days - 1)
    found = (
        await costs.days(conn, since=since, tenant_id=tenant_id) if tenant_id or viewer.is_operator else []
    )
    rows = ((each.day.isoformat(), each.provider, format(each.amount, "f")) for each in found)
    return await exports.as_csv("costs", ("day", "provider", f"amount_{request.app.state.currency}"), rows)
