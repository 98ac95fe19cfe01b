"""Spend: fixed costs, snapshots of what providers cost, revenue of subscriptions, and the margin."""

from __future__ import annotations

from datetime import date, datetime
from decimal import Decimal
from typing import Any, Unpack

from penstock.postgres import db
from penstock.types import FixedCost, FixedCostValues, PlanRevenue, Spend, TenantMargin


async def get(database: db.Database, *, month: date | None = None) -> Spend:
    """Costs and revenue of a month, for the service and admins."""
    found: dict[str, Any] = await db.document(database, "admin_spend", p_month=month)
    return Spend(
        month=date.fromisoformat(found["month"]),
        currency=found["currency"],
        fixed=[FixedCost(**{**each, **_decimals(each, "amount", "share")}) for each in found["fixed"]],
        by_provider={name: Decimal(amount) for name, amount in found["by_provider"].items()},
        by_type={name: Decimal(amount) for name, amount in found["by_type"].items()},
        taken_at=datetime.fromisoformat(found["taken_at"]) if found["taken_at"] else None,
        by_plan=[
            PlanRevenue(plan, each["tenants"], Decimal(each["revenue"]))
            for plan, each in sorted(found["by_plan"].items())
        ],
        **_decimals(found, "fixed_total", "variable_total", "revenue", "margin"),
    )


async def margins(
    database: db.Database, *, month: date | None = None, limit: int = 100
) -> list[TenantMargin]:
    """Revenue, cost and margin of tenants in a month, the lowest margin first."""
    rows = await db.call(database, "tenant_margins", p_month=month, p_limit=limit)
    return [TenantMargin(**row) for row in rows]


async def set_fixed_cost(database: db.Database, *, name: str, **values: Unpack[FixedCostValues]) -> None:
    """Add a fixed cost, or change it from a day on."""
    given = {key: value.isoformat() if isinstance(value, date) else value for key, value in values.items()}
    await db.call(database, "set_fixed_cost", p_name=name, p_values=db.exact_json(given))


async def end_fixed_cost(database: db.Database, *, name: str, day: date | None = None) -> None:
    """End a fixed cost with this day; default: today."""
    await db.call(database, "end_fixed_cost", p_name=name, p_day=day)


async def take_snapshot(database: db.Database, *, month: date | None = None) -> None:
    """Store what all tenants have cost in a month so far."""
    await db.call(database, "take_cost_snapshot", p_month=month)


async def take_due_snapshot(database: db.Database) -> bool:
    """Take the snapshot of this month if the newest one is older than an hour."""
    return await db.value(database, "take_due_snapshot")


def _decimals(found: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: Decimal(str(found[name])) for name in names}
