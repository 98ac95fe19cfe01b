"""Costs and revenue of a month."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import Literal, TypedDict
from uuid import UUID

FixedCostPeriod = Literal["month", "year", "once"]


@dataclass(frozen=True, slots=True)
class FixedCost:
    """A cost that no provider reports."""

    name: str
    amount: Decimal
    currency: str
    period: FixedCostPeriod
    share: Decimal
    """What falls into the month, in the base currency."""


@dataclass(frozen=True, slots=True)
class PlanRevenue:
    """What the subscribers of a plan bring."""

    plan: str
    tenants: int
    revenue: Decimal


@dataclass(frozen=True, slots=True)
class Spend:
    """Costs and revenue of a month, in the base currency."""

    month: date
    currency: str
    fixed: list[FixedCost]
    fixed_total: Decimal
    variable_total: Decimal
    by_provider: dict[str, Decimal]
    by_type: dict[str, Decimal]
    taken_at: datetime | None
    """When the snapshot of the variable costs was taken."""
    by_plan: list[PlanRevenue]
    revenue: Decimal
    margin: Decimal


@dataclass(frozen=True, slots=True)
class TenantMargin:
    """What a tenant brings and costs in a month."""

    tenant_id: UUID
    name: str | None
    plan: str | None
    revenue: Decimal
    cost: Decimal
    margin: Decimal


class FixedCostValues(TypedDict, total=False):
    """What can be set of a fixed cost."""

    amount: Decimal
    currency: str
    period: FixedCostPeriod
    from_day: date
    until_day: date
    comment: str
