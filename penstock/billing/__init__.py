"""Billing with Stripe: checkout and portal sessions, webhooks, and the comparison with Stripe's own state."""

from __future__ import annotations

from penstock.billing.events import SOURCE, add_to
from penstock.billing.gateway import Gateway
from penstock.billing.sync import reconcile, reconciling, refresh_suspects, sync_tenant
from penstock.billing.urls import CHECKOUT_ORIGIN, check_checkout_url, check_return_url

__all__ = [
    "CHECKOUT_ORIGIN",
    "SOURCE",
    "Gateway",
    "add_to",
    "check_checkout_url",
    "check_return_url",
    "reconcile",
    "reconciling",
    "refresh_suspects",
    "sync_tenant",
]
