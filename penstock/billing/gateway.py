"""Calls to Stripe. None of them runs inside a transaction."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Generator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any
from uuid import UUID

import structlog

from penstock import extras
from penstock.contract import billing
from penstock.errors import Invalid, NotFound, PenstockError, Unavailable
from penstock.postgres import db
from penstock.settings import Settings

if TYPE_CHECKING:
    import stripe

log = structlog.get_logger("penstock.billing")

_TIMEOUT_SECONDS = 10
_PRICE_TIMEOUT_SECONDS = 3
_PRICE_SECONDS = 600.0
_UNKNOWN_PRICE_SECONDS = 60.0
# Currencies of Stripe whose smallest unit is not a hundredth.
_NO_CENTS = ("BIF", "CLP", "DJF", "GNF", "JPY", "KMF", "KRW", "MGA", "PYG", "RWF", "VND", "VUV", "XAF",
             "XOF", "XPF")  # fmt: skip
_MILLS = ("BHD", "JOD", "KWD", "OMR", "TND")
_RETRIES = 2
_PER_PAGE = 100


@dataclass(frozen=True, slots=True)
class Fetched:
    """An object of Stripe, and the second of Stripe's clock at which it looked like this."""

    values: Mapping[str, Any]
    as_of: datetime


@dataclass(frozen=True, slots=True)
class ShownPrice:
    """What people see of a price."""

    name: str | None
    amount: Decimal | None
    """None where it depends on the quantity."""
    currency: str


class Gateway:
    """Stripe, with the account of the settings."""

    def __init__(self, settings: Settings) -> None:
        if settings.stripe_key is None:
            raise Invalid(
                "billing is not configured",
                code="no_billing",
                hint="Set PENSTOCK_STRIPE_KEY and PENSTOCK_STRIPE_WEBHOOK_SECRET.",
            )
        with extras.required():
            import stripe

        self._stripe = stripe
        self._prices: dict[str, tuple[ShownPrice | None, float]] = {}
        self._http = stripe.HTTPXClient(timeout=_TIMEOUT_SECONDS)
        self._client = stripe.StripeClient(
            settings.stripe_key,
            base_addresses={"api": settings.stripe_url} if settings.stripe_url else None,
            max_network_retries=_RETRIES,
            http_client=self._http,
        )

    @classmethod
    @asynccontextmanager
    async def open(cls, settings: Settings) -> AsyncGenerator[Gateway]:
        """A gateway during the block."""
        made = cls(settings)
        try:
            yield made
        finally:
            await made.close()

    async def close(self) -> None:
        """Close the connections."""
        await self._http.close_async()

    async def customer(self, pool: db.Pool, *, tenant_id: UUID) -> str:
        """The customer of a tenant; made on first use, once.

        The idempotency key returns the same customer after a crash. Keys live for a day, so the customer is
        searched for first. A new key after a deletion, else Stripe would return the deleted customer.
        """
        bound = await billing.bind_customer(pool, tenant_id=tenant_id, customer_id=None)
        if bound is not None:
            return bound
        since = await billing.account_since(pool, tenant_id=tenant_id)
        key = f"penstock-customer-{tenant_id}-{since.timestamp() if since else 0:.6f}"
        with self._translated():
            found = await self._client.v1.customers.search_async(
                {"query": f"metadata['tenant_id']:'{tenant_id}'", "limit": 1}
            )
            if found.data:
                made = found.data[0]
            else:
                made = await self._client.v1.customers.create_async(
                    {"metadata": {"tenant_id": str(tenant_id)}},
                    {"idempotency_key": key},
                )
        bound = await billing.bind_customer(pool, tenant_id=tenant_id, customer_id=made.id)
        assert bound is not None
        return bound

    async def checkout(
        self,
        pool: db.Pool,
        *,
        tenant_id: UUID,
        begun: Mapping[str, Any],
        success_url: str,
        cancel_url: str,
    ) -> str:
        """Open a checkout session for what `begin_checkout` returned; returns the URL of its page."""
        customer = begun["customer_id"] or await self.customer(pool, tenant_id=tenant_id)
        if begun["checkout_id"]:
            await self._expire(begun["checkout_id"])
        metadata = {"tenant_id": str(tenant_id), "price_id": begun["price_id"]}
        params: dict[str, Any] = {
            "mode": "payment" if begun["is_pack"] else "subscription",
            "customer": customer,
            "client_reference_id": str(tenant_id),
            "line_items": [{"price": begun["price_id"], "quantity": 1}],
            "success_url": success_url,
            "cancel_url": cancel_url,
            "metadata": metadata,
        }
        if not begun["is_pack"]:
            params["subscription_data"] = {"metadata": metadata}
        with self._translated():
            session = await self._client.v1.checkout.sessions.create_async(params)  # pyright: ignore[reportArgumentType]
        await billing.note_checkout(
            pool,
            tenant_id=tenant_id,
            checkout_id=session.id,
            expires_at=datetime.fromtimestamp(session.expires_at, UTC),
        )
        if session.url is None:
            raise Unavailable("Stripe returned no page for the checkout", code="stripe_unavailable")
        return session.url

    async def price(self, price_id: str) -> ShownPrice | None:
        """What a price costs, kept for minutes. None if Stripe does not say so within seconds."""
        found, until = self._prices.get(price_id, (None, 0.0))
        if until > time.monotonic():
            return found
        try:
            async with asyncio.timeout(_PRICE_TIMEOUT_SECONDS):
                made = await self._client.v1.prices.retrieve_async(price_id, {"expand": ["product"]})
            found, seconds = _shown(made.to_dict()), _PRICE_SECONDS
        except (TimeoutError, self._stripe.StripeError) as error:
            log.warning("billing.price_unknown", price=price_id, error=type(error).__name__)
            # The last known price stays; Stripe is asked again soon, but not for every page.
            seconds = _UNKNOWN_PRICE_SECONDS
        self._prices[price_id] = (found, time.monotonic() + seconds)
        return found

    async def _expire(self, checkout_id: str) -> None:
        """End the older checkout, so that a customer with two tabs does not pay twice."""
        try:
            await self._client.v1.checkout.sessions.expire_async(checkout_id)
        except self._stripe.InvalidRequestError:
            pass  # It was paid or has expired.
        except self._stripe.StripeError as error:
            raise self._error(error) from error

    async def portal(self, *, customer_id: str, return_url: str) -> str:
        """Open a session of the billing portal; returns the URL of its page."""
        with self._translated():
            session = await self._client.v1.billing_portal.sessions.create_async(
                {"customer": customer_id, "return_url": return_url}
            )
        return session.url

    async def subscription(self, subscription_id: str) -> Fetched:
        """A subscription as it is now."""
        with self._translated():
            found = await self._client.v1.subscriptions.retrieve_async(subscription_id)
        return Fetched(found.to_dict(), _date(found))

    async def subscriptions(self, *, customer_id: str) -> list[Fetched]:
        """All subscriptions of a customer, also those that have ended."""
        params: Any = {"customer": customer_id, "status": "all", "limit": _PER_PAGE}
        found: list[Fetched] = []
        with self._translated():
            page = await self._client.v1.subscriptions.list_async(params)
            while True:
                found += [Fetched(each.to_dict(), _date(page)) for each in page.data]
                if not page.has_more:
                    return found
                page = await page.next_page_async()

    async def changed_subscriptions(self, *, since: datetime) -> list[str]:
        """The ids of subscriptions with events since then, at most Stripe's 30 days ago."""
        params: Any = {
            "created": {"gte": int(since.timestamp())},
            "type": "customer.subscription.*",
            "limit": _PER_PAGE,
        }
        found: dict[str, None] = {}
        with self._translated():
            page = await self._client.v1.events.list_async(params)
            while True:
                for event in page.data:
                    found[str(event.data.object["id"])] = None
                if not page.has_more:
                    return list(found)
                page = await page.next_page_async()

    @contextmanager
    def _translated(self) -> Generator[None]:
        try:
            yield
        except self._stripe.StripeError as error:
            raise self._error(error) from error

    def _error(self, error: stripe.StripeError) -> PenstockError:
        """Stripe's error without its text, which may name other customers."""
        details = {"stripe_code": error.code, "stripe_request": error.request_id}
        if isinstance(error, self._stripe.InvalidRequestError):
            if error.http_status == 404:
                return NotFound(
                    "Stripe does not know this object", code="unknown_stripe_object", details=details
                )
            field = str(getattr(error, "param", None) or "")
            return Invalid(
                f"Stripe rejected the request: {error.code or 'invalid'} {field}".strip(),
                code="stripe_rejected",
                details=details,
            )
        return Unavailable("Stripe is unavailable. Try again.", code="stripe_unavailable", details=details)


def _shown(price: Mapping[str, Any]) -> ShownPrice:
    product: Mapping[str, Any] = price["product"]
    name, cents = price.get("nickname") or product.get("name"), price.get("unit_amount")
    currency = str(price["currency"]).upper()
    places = 0 if currency in _NO_CENTS else 3 if currency in _MILLS else 2
    return ShownPrice(name, None if cents is None else Decimal(cents).scaleb(-places), currency)


def _date(found: Any) -> datetime:
    """The second of Stripe's clock at which it answered."""
    response = found.last_response
    text = response.headers.get("date") if response is not None else None
    return parsedate_to_datetime(text) if text else datetime.now(UTC).replace(microsecond=0)
