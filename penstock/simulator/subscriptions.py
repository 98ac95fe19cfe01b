"""The state of a simulated Stripe account: customers, checkout sessions, subscriptions and their events."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

DAY = 86400
PERIOD = 30 * DAY
SESSION_SECONDS = DAY
INCOMPLETE_SECONDS = 23 * 3600
STATUSES = (
    "incomplete",
    "incomplete_expired",
    "trialing",
    "active",
    "past_due",
    "canceled",
    "unpaid",
    "paused",
)
ENDED = ("canceled", "incomplete_expired")
Document = dict[str, Any]


class StripeError(Exception):
    """An error as Stripe sends it."""

    def __init__(
        self, status: int, kind: str, message: str, *, reason: str | None = None, param: str | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.document: Document = {
            "error": {"type": kind, "message": message, "code": reason, "param": param}
        }


def missing(kind: str, id: str) -> StripeError:
    """The error for an object that does not exist."""
    return StripeError(
        404, "invalid_request_error", f"No such {kind}: '{id}'", reason="resource_missing", param="id"
    )


class Account:
    """Objects by id, and the events of every change, oldest first."""

    def __init__(self, clock: Callable[[], float], *, is_live: bool = False) -> None:
        self._clock, self.is_live = clock, is_live
        self._skipped = 0.0
        self.reset()

    def reset(self) -> None:
        """Forget everything."""
        self.customers: dict[str, Document] = {}
        self.prices: dict[str, Document] = {}
        self.products: dict[str, Document] = {}
        self.sessions: dict[str, Document] = {}
        self.subscriptions: dict[str, Document] = {}
        self.events: list[Document] = []
        self._number = 0
        # What paying a session makes: prices, and the metadata of the subscription.
        self._wanted: dict[str, tuple[list[str], dict[str, str]]] = {}

    @property
    def now(self) -> int:
        """The account's clock, in whole seconds as Stripe's times are."""
        return int(self._clock() + self._skipped)

    def advance(self, seconds: float) -> None:
        """Move the clock, then renew, expire and cancel what is due."""
        self._skipped += seconds
        for each in list(self.subscriptions.values()):
            self._do_due(each)
        for session in self.sessions.values():
            if session["status"] == "open" and session["expires_at"] <= self.now:
                self._end_session(session, "expired")

    def id(self, prefix: str) -> str:
        """A new id."""
        self._number += 1
        return f"{prefix}_{self._number:014d}"

    def _record(self, type: str, found: Document) -> None:
        self.events.append(
            {
                "id": self.id("evt"),
                "object": "event",
                "type": type,
                "created": self.now,
                "livemode": self.is_live,
                "data": {"object": copy.deepcopy(found)},
            }
        )

    # Customers and prices

    def add_price(
        self, id: str, *, is_recurring: bool = True, amount: int = 1000, name: str = "Product"
    ) -> Document:
        """Add a price of a product with this name."""
        product = self.id("prod")
        self.products[product] = {"id": product, "object": "product", "name": name, "active": True}
        made = self.prices[id] = {
            "id": id,
            "object": "price",
            "unit_amount": amount,
            "currency": "usd",
            "nickname": None,
            "product": product,
            "type": "recurring" if is_recurring else "one_time",
            "active": True,
        }
        return made

    def add_customer(self, metadata: dict[str, str] | None = None, email: str | None = None) -> Document:
        """Add a customer."""
        made: Document = {
            "id": self.id("cus"),
            "object": "customer",
            "created": self.now,
            "email": email,
            "livemode": self.is_live,
            "metadata": dict(metadata or {}),
        }
        self.customers[made["id"]] = made
        self._record("customer.created", made)
        return made

    def delete_customer(self, id: str) -> Document:
        """Delete a customer: its subscriptions are canceled at once."""
        if id not in self.customers:
            raise missing("customer", id)
        for each in list(self.subscriptions.values()):
            if each["customer"] == id and each["status"] not in ENDED:
                self.cancel(each["id"])
        self._record("customer.deleted", self.customers.pop(id))
        return {"id": id, "object": "customer", "deleted": True}

    # Checkout

    def open_session(self, values: Document) -> Document:
        """Open a checkout session."""
        customer = values.get("customer")
        if customer not in self.customers:
            raise missing("customer", str(customer))
        items: list[Document] = values.get("line_items") or [{}]
        for item in items:
            if item.get("price") not in self.prices:
                raise missing("price", str(item.get("price")))
        made: Document = {
            "id": self.id("cs_test"),
            "object": "checkout.session",
            "created": self.now,
            "expires_at": self.now + SESSION_SECONDS,
            "customer": customer,
            "client_reference_id": values.get("client_reference_id"),
            "livemode": self.is_live,
            "metadata": values.get("metadata") or {},
            "mode": values.get("mode", "payment"),
            "payment_status": "unpaid",
            "status": "open",
            "subscription": None,
            "success_url": values.get("success_url"),
            "cancel_url": values.get("cancel_url"),
            "url": f"https://checkout.stripe.com/c/pay/{self._number}",
        }
        self.sessions[made["id"]] = made
        made_for: Document = values.get("subscription_data") or {}
        self._wanted[made["id"]] = (
            [str(item["price"]) for item in items],
            made_for.get("metadata") or {},
        )
        return made

    def _end_session(self, session: Document, status: str) -> None:
        session["status"] = status
        session["url"] = None
        if status == "expired":
            self._record("checkout.session.expired", session)

    def _open(self, id: str) -> Document:
        found = self.sessions.get(id)
        if found is None:
            raise missing("checkout.session", id)
        if found["status"] != "open":
            raise StripeError(
                400, "invalid_request_error", f"This session is {found['status']}.", param="session"
            )
        return found

    def expire(self, id: str) -> Document:
        """Expire an open session."""
        found = self._open(id)
        self._end_session(found, "expired")
        return found

    def pay(self, id: str, *, succeeds: bool = True) -> Document:
        """The customer pays: the session completes, and a subscription begins."""
        session = self._open(id)
        prices, metadata = self._wanted[id]
        if session["mode"] == "subscription":
            made = self.subscribe(session["customer"], prices, metadata, is_paid=succeeds)
            session["subscription"] = made["id"]
        session["payment_status"] = "paid" if succeeds else "unpaid"
        self._end_session(session, "complete")
        self._record("checkout.session.completed", session)
        return session

    # Subscriptions

    def subscribe(
        self,
        customer: str,
        prices: list[str],
        metadata: dict[str, str] | None = None,
        *,
        is_paid: bool = True,
    ) -> Document:
        """Begin a subscription: active if it is paid, else incomplete."""
        items = [
            {
                "id": self.id("si"),
                "object": "subscription_item",
                "price": {"id": price, "object": "price"},
                "quantity": 1,
                "current_period_start": self.now,
                "current_period_end": self.now + PERIOD,
            }
            for price in prices
        ]
        made: Document = {
            "id": self.id("sub"),
            "object": "subscription",
            "created": self.now,
            "customer": customer,
            "livemode": self.is_live,
            "metadata": dict(metadata or {}),
            "status": "incomplete",
            "cancel_at_period_end": False,
            "canceled_at": None,
            "ended_at": None,
            "items": {"object": "list", "data": items, "has_more": False},
        }
        self.subscriptions[made["id"]] = made
        self._record("customer.subscription.created", made)
        if is_paid:
            self.set_status(made["id"], "active")
        return made

    def subscription(self, id: str) -> Document:
        """One subscription."""
        if id not in self.subscriptions:
            raise missing("subscription", id)
        return self.subscriptions[id]

    def set_status(self, id: str, status: str) -> Document:
        """Give a subscription a status, with the event that Stripe sends for it."""
        found = self.subscription(id)
        if found["status"] in ENDED:
            raise StripeError(400, "invalid_request_error", f"The subscription is {found['status']}.")
        found["status"] = status
        if status in ENDED:
            found["canceled_at"] = found["ended_at"] = self.now
        verb = {"canceled": "deleted", "paused": "paused"}.get(status, "updated")
        self._record(f"customer.subscription.{verb}", found)
        return found

    def update(self, id: str, values: Document) -> Document:
        """Change metadata, or cancel at the end of the period."""
        found = self.subscription(id)
        if found["status"] in ENDED:
            raise missing("subscription", id)
        if "cancel_at_period_end" in values:
            found["cancel_at_period_end"] = values["cancel_at_period_end"] in (True, "true")
        if "metadata" in values:
            found["metadata"] |= values["metadata"]
        self._record("customer.subscription.updated", found)
        return found

    def cancel(self, id: str) -> Document:
        """Cancel at once."""
        if self.subscription(id)["status"] in ENDED:
            raise missing("subscription", id)
        return self.set_status(id, "canceled")

    def renew(self, id: str, *, succeeds: bool = True) -> Document:
        """Begin the next period; if the payment fails the subscription is past due."""
        found = self.subscription(id)
        for item in found["items"]["data"]:
            item["current_period_start"] = item["current_period_end"]
            item["current_period_end"] += PERIOD
        return self.set_status(id, "active" if succeeds else "past_due")

    def _do_due(self, found: Document) -> None:
        while found["status"] in ("active", "trialing"):
            end = max((item["current_period_end"] for item in found["items"]["data"]), default=None)
            if end is None or end > self.now:
                return
            if found["cancel_at_period_end"]:
                self.cancel(found["id"])
            else:
                self.renew(found["id"])
        if found["status"] == "incomplete" and found["created"] + INCOMPLETE_SECONDS <= self.now:
            self.set_status(found["id"], "incomplete_expired")
