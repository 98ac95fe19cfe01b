"""Stripe's objects as the database stores them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, cast
from uuid import UUID


def subscription_values(found: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a subscription for `record_subscription`.

    The end of the period is on the items since API version 2025-03-31, and on the subscription before: an
    endpoint keeps the version that it was created with, so both arrive.
    """
    items: list[Mapping[str, Any]] = part(found, "items").get("data") or []
    ends = [end for item in items if isinstance(end := item.get("current_period_end"), int)]
    old = found.get("current_period_end")
    end = max(ends) if ends else old if isinstance(old, int) else None
    return {
        "id": found["id"],
        "customer_id": reference(found.get("customer")),
        "tenant_id": tenant_of(found),
        "status": found.get("status"),
        "price_ids": sorted({str(part(item, "price").get("id")) for item in items}),
        "period_end": _text(end),
        "cancel_at_period_end": bool(found.get("cancel_at_period_end")),
        "created_at": _text(found.get("created")),
        "ended_at": _text(found.get("ended_at")),
    }


def part(found: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """A document within an object; empty if there is none."""
    value = found.get(name)
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}


def reference(value: Any) -> str | None:
    """The id of a referenced object, which Stripe sends as an id or, expanded, as an object."""
    if isinstance(value, Mapping):
        return cast("Mapping[str, Any]", value).get("id")
    return value if isinstance(value, str) else None


def tenant_of(found: Mapping[str, Any]) -> str | None:
    """The tenant that Penstock put into the metadata of an object."""
    text: Any = part(found, "metadata").get("tenant_id") or found.get("client_reference_id")
    try:
        return str(UUID(text)) if isinstance(text, str) else None
    except ValueError:
        return None


def moment(seconds: Any) -> datetime | None:
    """A time of Stripe, in whole seconds."""
    return datetime.fromtimestamp(seconds, UTC) if isinstance(seconds, int) else None


def _text(seconds: Any) -> str | None:
    found = moment(seconds)
    return found.isoformat() if found else None
