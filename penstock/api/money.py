"""Usage, costs and prices over HTTP."""

from __future__ import annotations

from datetime import date
from decimal import Decimal
from typing import Annotated
from uuid import UUID

from fastapi import Path, Query

from penstock.api.fields import MoneyText
from penstock.api.pages import LimitQuery, NumberCursor, Page, TenantQuery, page
from penstock.api.routes import Conn, router
from penstock.contract import costs, entitlements, usage
from penstock.types import (
    CostEntry,
    CostSum,
    Entitlements,
    GateVerdict,
    Limit,
    Plan,
    Price,
    UsageDay,
    UsageStatus,
)

routes = router("usage and costs")

SinceQuery = Annotated[date | None, Query(description="First day (UTC).")]
UntilQuery = Annotated[date | None, Query(description="Last day (UTC).")]


@routes.get("/usage")
async def get_usage(conn: Conn, tenant_id: TenantQuery = None) -> UsageStatus:
    """Get a tenant's plan, and what it has used, reserved and left of each meter."""
    return await usage.status(conn, tenant_id=tenant_id)


@routes.get("/usage/days")
async def list_usage_days(
    conn: Conn, tenant_id: UUID, since: SinceQuery = None, until: UntilQuery = None
) -> list[UsageDay]:
    """List a tenant's usage per day, action and meter."""
    return await usage.days(conn, tenant_id=tenant_id, since=since, until=until)


@routes.get("/usage/limits")
async def list_limits(conn: Conn, tenant_id: UUID) -> list[Limit]:
    """List a tenant's limits in the current periods."""
    return await usage.limits(conn, tenant_id=tenant_id)


@routes.get("/plans")
async def list_plans(conn: Conn) -> list[Plan]:
    """List subscription plans."""
    return await usage.plans(conn)


@routes.get("/entitlements")
async def get_entitlements(conn: Conn, tenant_id: TenantQuery = None) -> Entitlements:
    """Get a tenant's plan, limits and capabilities. `tier` is the plan that applies now."""
    return await entitlements.resolve(conn, tenant_id=tenant_id)


@routes.get("/entitlements/gates/{gate}")
async def check_gate(
    conn: Conn,
    gate: Annotated[str, Path(max_length=63)],
    tenant_id: TenantQuery = None,
    amount: Annotated[MoneyText, Query(description="How much more of a meter.")] = Decimal(1),
) -> GateVerdict:
    """Check whether a tenant passes a gate. Reserves and records nothing."""
    return await entitlements.check(conn, gate=gate, tenant_id=tenant_id, amount=amount)


@routes.get("/costs")
async def list_costs(
    conn: Conn,
    tenant_id: UUID,
    by: costs.By = "day",
    since: SinceQuery = None,
    until: UntilQuery = None,
) -> list[CostSum]:
    """Sum a tenant's costs in the base currency by day, provider, type or job."""
    return await costs.sums(conn, by=by, since=since, until=until, tenant_id=tenant_id)


@routes.get("/costs/entries")
async def list_cost_entries(
    conn: Conn,
    tenant_id: TenantQuery = None,
    job_id: UUID | None = None,
    cursor: NumberCursor = None,
    limit: LimitQuery = 50,
) -> Page[CostEntry]:
    """List ledger entries, newest first."""
    found = await costs.entries(conn, tenant_id=tenant_id, job_id=job_id, before=cursor, limit=limit + 1)
    return page(found, limit, lambda entry: entry.id)


@routes.get("/prices")
async def list_prices(
    conn: Conn, provider: Annotated[str | None, Query(max_length=200)] = None
) -> list[Price]:
    """List current prices: those for all tenants, and those of the caller's tenants."""
    return await costs.prices(conn, provider=provider)
