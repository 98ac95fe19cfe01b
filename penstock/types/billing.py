"""Billing: plans that tenants pay for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any, Literal
from uuid import UUID

SubscriptionStatus = Literal[
    "incomplete", "incomplete_expired", "trialing", "active", "past_due", "canceled", "unpaid", "paused"
]


@dataclass(frozen=True, slots=True)
class BillingStatus:
    """The plan and the subscription of a tenant."""

    tenant_id: UUID
    tier: str | None
    """The plan that applies now."""
    plan: str | None
    since: datetime | None
    until: datetime | None
    """From then on the default plan applies."""
    is_in_grace: bool
    """Whether the paid period is over and the plan still applies."""
    has_customer: bool
    status: SubscriptionStatus | None
    period_end: datetime | None
    cancel_at_period_end: bool

    @classmethod
    def read(cls, document: Mapping[str, Any]) -> BillingStatus:
        """From the database's document."""
        values = dict(document)
        values["tenant_id"] = UUID(values["tenant_id"])
        for name in ("since", "until", "period_end"):
            values[name] = datetime.fromisoformat(values[name]) if values[name] else None
        return cls(**values)


@dataclass(frozen=True, slots=True)
class Subscription:
    """A subscription as Stripe last told."""

    id: str
    tenant_id: UUID
    customer_id: str
    price_ids: list[str]
    plan: str | None
    status: SubscriptionStatus
    period_end: datetime | None
    cancel_at_period_end: bool
    created_at: datetime
    ended_at: datetime | None
    as_of: datetime
    is_suspect: bool


@dataclass(frozen=True, slots=True)
class PlanPrice:
    """What a price of Stripe stands for: a plan, or an amount of a meter that is bought once."""

    price_id: str
    plan: str | None
    meter: str | None
    amount: Decimal | None


@dataclass(frozen=True, slots=True)
class BillingLink:
    """A page of Stripe to send the customer to."""

    url: str


@dataclass(frozen=True, slots=True)
class LapsingTenant:
    """A tenant whose plan ends, or has ended."""

    tenant_id: UUID
    name: str
    plan: str | None
    until: datetime
    after: str | None
    is_over: bool
