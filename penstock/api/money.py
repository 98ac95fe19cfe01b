"""Usage, costs and prices over HTTP."""

from __future__ import annotations

from datetime import date
from typing import Annotated
from uuid import UUID

from fastapi import Query

from penstock import costs, usage
from penstock.api.pages import LimitQuery, NumberCursor, Page, TenantQuery, page
from penstock.api.routes import Held, router
from penstock.types import CostEntry, CostSum, Limit, Plan, Price, UsageDay, UsageStatus

routes = router("usage and costs")

SinceQuery = Annotated[date | None, Query(description="The first day (UTC).")]
UntilQuery = Annotated[date | None, Query(description="The last day (UTC).")]


@routes.get("/usage")
async def get_usage(held: Held, tenant_id: TenantQuery = None) -> UsageStatus:
    """A tenant's plan, and what of each meter it has used, holds and has left."""
    return await usage.status(held, tenant_id=tenant_id)


@routes.get("/usage/days")
async def list_usage_days(
    held: Held, tenant_id: UUID, since: SinceQuery = None, until: UntilQuery = None
) -> list[UsageDay]:
    """What a tenant used per day, action and meter."""
    return await usage.days(held, tenant_id=tenant_id, since=since, until=until)


@routes.get("/usage/limits")
async def list_limits(held: Held, tenant_id: UUID) -> list[Limit]:
    """What a tenant may use in the present periods."""
    return await usage.limits(held, tenant_id=tenant_id)


@routes.get("/plans")
async def list_plans(held: Held) -> list[Plan]:
    """The plans there are."""
    return await usage.plans(held)


@routes.get("/costs")
async def list_costs(
    held: Held,
    tenant_id: UUID,
    by: costs.By = "day",
    since: SinceQuery = None,
    until: UntilQuery = None,
) -> list[CostSum]:
    """A tenant's costs in the base currency: by day, provider, type or job."""
    return await costs.sums(held, by=by, since=since, until=until, tenant_id=tenant_id)


@routes.get("/costs/entries")
async def list_cost_entries(
    held: Held,
    tenant_id: TenantQuery = None,
    job_id: UUID | None = None,
    cursor: NumberCursor = None,
    limit: LimitQuery = 50,
) -> Page[CostEntry]:
    """Lines of the ledger, newest first."""
    found = await costs.entries(held, tenant_id=tenant_id, job_id=job_id, before=cursor, limit=limit + 1)
    return page(found, limit, lambda entry: entry.id)


@routes.get("/prices")
async def list_prices(
    held: Held, provider: Annotated[str | None, Query(max_length=200)] = None
) -> list[Price]:
    """The prices that hold now: those for all, and the caller's tenants' own."""
    return await costs.prices(held, provider=provider)
