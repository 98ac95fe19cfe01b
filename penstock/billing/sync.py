"""Comparing with Stripe: subscriptions in doubt within seconds, everything that changed once a day."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from uuid import UUID

import structlog

from penstock.billing.gateway import Fetched, Gateway
from penstock.billing.states import subscription_values
from penstock.contract import billing
from penstock.errors import NotFound, PenstockError
from penstock.postgres import db
from penstock.settings import Settings

log = structlog.get_logger("penstock.billing")

LOOK_BACK = timedelta(days=4)
"""Stripe repeats a webhook for 3 days and then gives up."""
CHECK_SECONDS = 5.0


async def refresh_suspects(pool: db.Pool, gateway: Gateway) -> int:
    """Fetch the subscriptions of which two states came with the same second. Returns their number."""
    ids = await billing.take_suspects(pool)
    for each in ids:
        await _refresh(pool, gateway, each)
    return len(ids)


async def reconcile(pool: db.Pool, gateway: Gateway) -> int:
    """Store the state of every subscription that changed lately. Returns the number of corrections."""
    now = await db.value(pool, "clock")
    corrected = 0
    for each in await gateway.changed_subscriptions(since=now - LOOK_BACK):
        corrected += await _refresh(pool, gateway, each)
    log.info("billing.reconciled", corrected=corrected)
    return corrected


async def sync_tenant(pool: db.Pool, gateway: Gateway, *, tenant_id: UUID) -> int:
    """Store the present state of all subscriptions of a tenant. Returns their number."""
    customer_id = await billing.customer(pool, tenant_id=tenant_id)
    if customer_id is None:
        return 0
    found = await gateway.subscriptions(customer_id=customer_id)
    for each in found:
        await _store(pool, each)
    return len(found)


async def _refresh(pool: db.Pool, gateway: Gateway, subscription_id: str) -> bool:
    try:
        found = await gateway.subscription(subscription_id)
    except NotFound:
        log.warning("billing.unknown_subscription", subscription=subscription_id)
        return False
    return await _store(pool, found)


async def _store(pool: db.Pool, found: Fetched) -> bool:
    """Returns whether the stored state was another one."""
    values = subscription_values(found.values)
    try:
        result = await billing.record_subscription(pool, values, as_of=found.as_of, is_fetched=True)
    except PenstockError as error:
        if error.status >= 500 and error.code != "tenant_suspended":
            raise
        log.error("billing.rejected", subscription=values["id"], code=error.code, error=error.message)
        return False
    return bool(result.get("is_changed"))


@asynccontextmanager
async def reconciling(pool: db.Pool, settings: Settings) -> AsyncGenerator[Gateway | None]:
    """Compare with Stripe during the block, if the settings have billing. Gives the gateway to Stripe."""
    if settings.stripe_key is None:
        yield None
        return
    async with Gateway.open(settings) as gateway:
        task = asyncio.create_task(_run(pool, gateway), name="billing")
        try:
            yield gateway
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


async def _run(pool: db.Pool, gateway: Gateway) -> None:
    while True:
        try:
            await refresh_suspects(pool, gateway)
            if await billing.take_reconciliation(pool):
                await reconcile(pool, gateway)
        except Exception as error:
            log.warning("billing.sync_failed", error=str(error))
        await asyncio.sleep(CHECK_SECONDS)
