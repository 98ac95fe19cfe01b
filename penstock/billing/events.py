"""Stripe's webhooks: each event is applied once, in the transaction of its delivery; no calls to Stripe."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from penstock.billing.states import moment, part, reference, subscription_values, tenant_of
from penstock.contract import billing
from penstock.errors import Invalid
from penstock.sdk.webhooks import Event, Webhooks
from penstock.settings import Settings
from penstock.types import WebhookOutcome

SOURCE = "stripe"
_SUBSCRIPTION = "customer.subscription."
_PAID = ("checkout.session.completed", "checkout.session.async_payment_succeeded")


def add_to(webhooks: Webhooks, settings: Settings) -> None:
    """Add Stripe's webhooks to a server that has billing."""

    @webhooks.add(SOURCE, scheme="stripe", secrets=lambda: settings.stripe_webhook_secrets)
    async def apply_event(event: Event) -> WebhookOutcome:  # pyright: ignore[reportUnusedFunction]
        return await apply(event, is_live=settings.stripe_live)


async def apply(event: Event, *, is_live: bool) -> WebhookOutcome:
    """Apply an event. Raises an error for a state that Penstock does not know, so that it is seen."""
    payload = cast("Mapping[str, Any]", event.payload)
    found = _object(payload)
    if bool(payload.get("livemode")) != is_live:
        return "ignored"
    if event.type.startswith(_SUBSCRIPTION) and found.get("object") == "subscription":
        created = moment(payload.get("created"))
        if created is None:
            raise Invalid("the event has no time of creation", code="invalid_webhook")
        result = await billing.record_subscription(
            event.connection, subscription_values(found), as_of=created, event_id=event.key
        )
    elif event.type in _PAID:
        result = await _pay(event, found)
    elif event.type == "customer.deleted":
        event.tenant_id = await billing.forget_customer(event.connection, customer_id=str(found.get("id")))
        return "applied" if event.tenant_id else "ignored"
    elif event.type == "invoice.payment_failed":
        event.tenant_id = await billing.note_failed_payment(
            event.connection,
            customer_id=reference(found.get("customer")) or "",
            invoice_id=str(found.get("id")),
        )
        return "applied" if event.tenant_id else "ignored"
    else:
        return "ignored"
    event.tenant_id = result.get("tenant_id")
    return result["outcome"]


async def _pay(event: Event, session: Mapping[str, Any]) -> dict[str, Any]:
    """A checkout has ended: a pack is added; a subscription comes with its own events."""
    if session.get("mode") != "payment" or session.get("payment_status") not in (
        "paid",
        "no_payment_required",
    ):
        return {"outcome": "ignored"}
    return await billing.record_purchase(
        event.connection,
        {
            "id": session["id"],
            "customer_id": reference(session.get("customer")),
            "tenant_id": tenant_of(session),
            "price_id": part(session, "metadata").get("price_id"),
        },
    )


def _object(payload: Mapping[str, Any]) -> Mapping[str, Any]:
    found = part(part(payload, "data"), "object")
    if not found:
        raise Invalid("the event has no object", code="invalid_webhook")
    return found
