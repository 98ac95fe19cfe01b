"""Billing: customers and subscriptions of tenants at Stripe, and what its prices stand for."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from decimal import Decimal
from typing import Any, LiteralString
from uuid import UUID

from penstock.postgres import db
from penstock.types import Amount, BillingStatus, LapsingTenant, PlanPrice, Subscription, exact

_SUBSCRIPTIONS: LiteralString = """\
select id, tenant_id, customer_id, price_ids, plan, status, period_end, cancel_at_period_end, created_at,
  ended_at, as_of, is_suspect
from penstock.subscriptions where """
_PRICES: LiteralString = "select price_id, plan, meter, amount from penstock.plan_prices order by price_id"
_LAPSING: LiteralString = """\
select t.id, t.name, t.plan, t.plan_until, t.plan_after, t.plan_until <= penstock._now()
from penstock.tenants t where t.plan_until is not null order by t.plan_until desc limit %s"""
_ACCOUNT: LiteralString = """\
select customer_id, created_at from penstock.billing_accounts where tenant_id = %s"""


async def status(database: db.Database, *, tenant_id: UUID | None = None) -> BillingStatus:
    """The plan and the subscription of a tenant."""
    return BillingStatus.read(await db.value(database, "billing_status", p_tenant_id=tenant_id))


async def customer(database: db.Database, *, tenant_id: UUID) -> str | None:
    """The id of the tenant's customer at Stripe. For the service only."""
    rows = await db.rows(database, _ACCOUNT, (tenant_id,))
    return rows[0][0] if rows else None


async def account_since(database: db.Database, *, tenant_id: UUID) -> datetime | None:
    """When the account began, or its last customer was deleted. For the service only."""
    rows = await db.rows(database, _ACCOUNT, (tenant_id,))
    return rows[0][1] if rows else None


async def bind_customer(database: db.Database, *, tenant_id: UUID, customer_id: str | None) -> str | None:
    """Bind a customer to a tenant; returns the bound one, which is the first."""
    return await db.value(database, "bind_customer", p_tenant_id=tenant_id, p_customer_id=customer_id)


async def note_failed_payment(database: db.Database, *, customer_id: str, invoice_id: str) -> UUID | None:
    """Alert the tenant of a customer that a payment failed; None if the customer is not known."""
    return await db.value(database, "note_failed_payment", p_customer_id=customer_id, p_invoice_id=invoice_id)


async def forget_customer(database: db.Database, *, customer_id: str) -> UUID | None:
    """Unbind a customer that was deleted; returns its tenant."""
    return await db.value(database, "forget_customer", p_customer_id=customer_id)


async def record_subscription(
    database: db.Database,
    values: Mapping[str, Any],
    *,
    as_of: datetime,
    event_id: str | None = None,
    is_fetched: bool = False,
) -> dict[str, Any]:
    """Store the state of a subscription at a second of Stripe's clock. Returns `outcome` and `tenant_id`."""
    return await db.value(
        database,
        "record_subscription",
        p_values=dict(values),
        p_as_of=as_of,
        p_event_id=event_id,
        p_is_fetched=is_fetched,
    )


async def record_purchase(database: db.Database, values: Mapping[str, Any]) -> dict[str, Any]:
    """Add the allowance of a pack that was paid for, once. Returns `outcome` and `tenant_id`."""
    return await db.value(database, "record_purchase", p_values=dict(values))


async def begin_checkout(database: db.Database, *, tenant_id: UUID, price: str) -> dict[str, Any]:
    """What a checkout needs. For owners and admins; `price` is a price's id or a plan with one price."""
    return await db.value(database, "begin_checkout", p_tenant_id=tenant_id, p_price=price)


async def begin_portal(database: db.Database, *, tenant_id: UUID) -> str:
    """The customer of a tenant. For owners and admins."""
    return await db.value(database, "begin_portal", p_tenant_id=tenant_id)


async def note_checkout(
    database: db.Database, *, tenant_id: UUID, checkout_id: str, expires_at: datetime
) -> None:
    """Note the open checkout session of a tenant."""
    await db.call(
        database,
        "note_checkout",
        p_tenant_id=tenant_id,
        p_checkout_id=checkout_id,
        p_expires_at=expires_at,
    )


async def take_suspects(database: db.Database, *, limit: int = 20) -> list[str]:
    """Subscriptions that the caller is to fetch from Stripe."""
    rows = await db.call(database, "take_suspects", p_limit=limit)
    return [row["take_suspects"] for row in rows]


async def take_reconciliation(database: db.Database) -> bool:
    """Whether the caller is to compare the subscriptions with Stripe now."""
    return await db.value(database, "take_reconciliation")


async def subscriptions(
    database: db.Database, *, tenant_id: UUID | None = None, is_suspect: bool = False, limit: int = 50
) -> list[Subscription]:
    """Subscriptions, newest first. For the service only."""
    statement = _SUBSCRIPTIONS + "(%s::uuid is null or tenant_id = %s) and (not %s or is_suspect)"
    rows = await db.rows(
        database, statement + " order by created_at desc limit %s", (tenant_id, tenant_id, is_suspect, limit)
    )
    return [Subscription(*row) for row in rows]


async def lapsing(database: db.Database, *, limit: int = 50) -> list[LapsingTenant]:
    """Tenants whose plan ends or has ended, the latest first. For the service only."""
    return [LapsingTenant(*row) for row in await db.rows(database, _LAPSING, (limit,))]


async def prices(database: db.Database) -> list[PlanPrice]:
    """What the prices of Stripe stand for. For the service only."""
    return [PlanPrice(*row) for row in await db.rows(database, _PRICES, ())]


async def set_price(
    database: db.Database,
    *,
    price_id: str,
    plan: str | None = None,
    meter: str | None = None,
    amount: Amount | None = None,
) -> None:
    """Say what a price stands for: a plan, or an amount of a meter."""
    number: Decimal | None = None if amount is None else exact(amount, "amount")
    given = {"plan": plan, "meter": meter, "amount": number}
    values = db.exact_json({name: value for name, value in given.items() if value is not None})
    await db.call(database, "set_plan_price", p_price_id=price_id, p_values=values)


async def remove_price(database: db.Database, *, price_id: str) -> None:
    """Forget what a price stands for."""
    await db.call(database, "set_plan_price", p_price_id=price_id, p_values=None)
