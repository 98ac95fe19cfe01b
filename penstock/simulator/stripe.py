"""A simulated Stripe API: form-encoded requests, idempotency keys, versions, errors and signed webhooks."""

from __future__ import annotations

import asyncio
import copy
import hmac
import json
import random
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from email.utils import formatdate
from hashlib import sha256
from typing import Any, cast
from urllib.parse import parse_qsl

import httpx

from penstock.simulator.subscriptions import DAY, Account, Document, StripeError, missing

PATHS = re.compile(
    r"/v1/(customers|checkout/sessions|billing_portal/sessions|subscriptions|prices|events)(/|$)"
)
BASIL = "2025-03-31"
"""Since this version the end of the period is on the items of a subscription."""
_RETRY_SECONDS = (0, 5, 300, 1800, 7200, 18000, 36000, 36000, 36000, 36000, 36000)
_KEY_SECONDS = DAY


@dataclass(slots=True)
class StripeResponse:
    """A response."""

    status: int
    document: Document
    headers: dict[str, str] = field(default_factory=dict[str, str])


@dataclass(slots=True)
class Delivery:
    """An event that is to be sent, and how often it was."""

    event: Document
    attempts: int = 0
    due: float = 0


class StripeServer:
    """One Stripe account with its HTTP interface and one webhook endpoint."""

    def __init__(self, clock: Callable[[], float], seed: int = 0) -> None:
        self.account = Account(clock)
        self.secret = "whsec_simulated"  # noqa: S105 - it opens nothing but the simulator
        self.webhook_url: str | None = None
        self.webhook_version = "2026-06-24"
        self._chance = random.Random(seed)
        self.reset()

    def reset(self) -> None:
        """Forget objects, events and idempotency keys. Keeps the webhook endpoint."""
        self.account.reset()
        self._kept: dict[str, tuple[str, StripeResponse, int]] = {}
        self._sent = 0
        self._waiting: list[Delivery] = []
        self.calls: Counter[str] = Counter()
        self.fail_next = 0
        """How many of the next requests get 500. Their changes do not happen."""

    # The API

    def respond(
        self,
        method: str,
        path: str,
        query: Sequence[tuple[str, str]],
        headers: Mapping[str, str],
        body: bytes | None,
    ) -> StripeResponse:
        """Answer a request."""
        number = self.account.id("req")
        try:
            answer = self._keyed(method, path, query, headers, body or b"")
        except StripeError as error:
            answer = StripeResponse(error.status, error.document)
        answer.headers |= {"request-id": number, "date": formatdate(self.account.now, usegmt=True)}
        return answer

    def _keyed(
        self,
        method: str,
        path: str,
        query: Sequence[tuple[str, str]],
        headers: Mapping[str, str],
        body: bytes,
    ) -> StripeResponse:
        if not headers.get("authorization", "").startswith(("Bearer sk_", "Basic ")):
            raise StripeError(401, "invalid_request_error", "You did not provide an API key.")
        self.calls[f"{method} {path.removeprefix('/v1/').split('/')[0]}"] += 1
        if self.fail_next > 0:
            self.fail_next -= 1
            raise StripeError(500, "api_error", "An unknown error occurred.")
        key = headers.get("idempotency-key") if method == "POST" else None
        digest = sha256(f"{method} {path} ".encode() + body).hexdigest()
        if key is not None and key in self._kept:
            known, answer, at = self._kept[key]
            if self.account.now - at < _KEY_SECONDS:
                if known != digest:
                    raise StripeError(
                        400,
                        "idempotency_error",
                        "Keys for idempotent requests can only be used with the same parameters.",
                    )
                return StripeResponse(
                    answer.status, answer.document, {**answer.headers, "idempotent-replayed": "true"}
                )
        fields = decoded(parse_qsl(body.decode(), keep_blank_values=True) if method == "POST" else query)
        document = self._route(method, path.removeprefix("/v1/"), fields)
        answer = StripeResponse(200, shaped(document, headers.get("stripe-version", BASIL)))
        if key is not None:
            self._kept[key] = (digest, copy.deepcopy(answer), self.account.now)
        return answer

    def _route(self, method: str, path: str, fields: Document) -> Document:
        account = self.account
        parts = path.split("/")
        match (method, *parts):
            case ("POST", "customers"):
                return account.add_customer(fields.get("metadata"), fields.get("email"))
            case ("GET", "customers", "search"):
                return self._search(str(fields.get("query")))
            case ("GET", "customers", id):
                return self._found(account.customers, "customer", id)
            case ("DELETE", "customers", id):
                return account.delete_customer(id)
            case ("POST", "checkout", "sessions"):
                return account.open_session(fields)
            case ("GET", "checkout", "sessions", id):
                return self._found(account.sessions, "checkout.session", id)
            case ("POST", "checkout", "sessions", id, "expire"):
                return account.expire(id)
            case ("POST", "billing_portal", "sessions"):
                return self._portal(fields)
            case ("GET", "subscriptions"):
                return self._list("subscriptions", self._subscriptions(fields), fields)
            case ("GET", "subscriptions", id):
                return account.subscription(id)
            case ("POST", "subscriptions", id):
                return account.update(id, fields)
            case ("DELETE", "subscriptions", id):
                return account.cancel(id)
            case ("GET", "prices"):
                return self._list("prices", list(account.prices.values()), fields)
            case ("GET", "prices", id):
                return self._price(id, fields)
            case ("GET", "events"):
                return self._list("events", self._events(fields), fields)
            case _:
                raise StripeError(
                    404, "invalid_request_error", f"Unrecognized request URL ({method}: /v1/{path})."
                )

    @staticmethod
    def _found(objects: dict[str, Document], kind: str, id: str) -> Document:
        if id not in objects:
            raise missing(kind, id)
        return objects[id]

    def _price(self, id: str, fields: Document) -> Document:
        found = self._found(self.account.prices, "price", id)
        wants_product = "product" in (fields.get("expand") or [])
        return {**found, "product": self.account.products[found["product"]]} if wants_product else found

    def _search(self, query: str) -> Document:
        found = re.fullmatch(r"metadata\['(\w+)'\]:'([^']*)'", query)
        if found is None:
            raise StripeError(400, "invalid_request_error", "The query is invalid.", param="query")
        name, value = found.groups()
        data = [each for each in self.account.customers.values() if each["metadata"].get(name) == value]
        return {"object": "search_result", "data": data, "has_more": False, "url": "/v1/customers/search"}

    def _portal(self, fields: Document) -> Document:
        self._found(self.account.customers, "customer", str(fields.get("customer")))
        return {
            "id": (id := self.account.id("bps")),
            "object": "billing_portal.session",
            "customer": fields["customer"],
            "return_url": fields.get("return_url"),
            "url": f"https://billing.stripe.com/p/session/{id}",
        }

    def _subscriptions(self, fields: Document) -> list[Document]:
        status = fields.get("status")
        return [
            each
            for each in reversed(self.account.subscriptions.values())
            if fields.get("customer") in (None, each["customer"])
            and (status == "all" or each["status"] == status or (not status and each["status"] != "canceled"))
        ]

    def _events(self, fields: Document) -> list[Document]:
        created: Document = fields.get("created") or {}
        since = int(created.get("gte", 0))
        prefix = str(fields.get("type", "")).removesuffix("*")
        return [
            each
            for each in reversed(self.account.events)
            if each["created"] >= since and each["type"].startswith(prefix)
        ]

    @staticmethod
    def _list(kind: str, data: list[Document], fields: Document) -> Document:
        after = fields.get("starting_after")
        ids = [each["id"] for each in data]
        start = ids.index(after) + 1 if after in ids else 0
        limit = int(fields.get("limit", 10))
        return {
            "object": "list",
            "data": data[start : start + limit],
            "has_more": len(data) > start + limit,
            "url": f"/v1/{kind}",
        }

    # Webhooks

    def signed(
        self, event: Document, *, at: int | None = None, secret: str | None = None
    ) -> tuple[bytes, str]:
        """The body of an event and its `Stripe-Signature`, at the real time or another one."""
        body = json.dumps(shaped(event, self.webhook_version)).encode()
        moment = self.account.now if at is None else at
        signature = hmac.new((secret or self.secret).encode(), f"{moment}.".encode() + body, "sha256")
        return body, f"t={moment},v1={signature.hexdigest()}"

    def take(self) -> list[Document]:
        """The events since the last call."""
        found = self.account.events[self._sent :]
        self._sent = len(self.account.events)
        return found

    async def deliver(
        self,
        client: httpx.AsyncClient,
        *,
        duplicates: int = 0,
        shuffle: bool = False,
        lose: float = 0,
        at_once: bool = False,
    ) -> Counter[int]:
        """Send the events that are due to the endpoint, and again later what was not answered with 2xx.

        `duplicates`: further deliveries of each; `lose`: the share that is never sent; `at_once`: all of them
        in parallel. Returns how often each status was answered.
        """
        now = self.account.now
        self._waiting += [Delivery(event) for event in self.take() if self._chance.random() >= lose]
        due = [each for each in self._waiting if each.due <= now]
        sent = [each for each in due for _ in range(duplicates + 1)]
        if shuffle:
            self._chance.shuffle(sent)
        statuses: Counter[int] = Counter()
        if at_once:
            statuses.update(await asyncio.gather(*(self._send(client, each) for each in sent)))
        else:
            for each in sent:
                statuses[await self._send(client, each)] += 1
        return statuses

    async def _send(self, client: httpx.AsyncClient, delivery: Delivery) -> int:
        body, signature = self.signed(delivery.event)
        headers = {"stripe-signature": signature, "content-type": "application/json"}
        try:
            answer = await client.post(self.webhook_url or "", content=body, headers=headers)
            status = answer.status_code
        except httpx.HTTPError:
            status = 0
        delivery.attempts += 1
        if 200 <= status < 300 or delivery.attempts >= len(_RETRY_SECONDS):
            if delivery in self._waiting:
                self._waiting.remove(delivery)
        else:
            delivery.due = self.account.now + _RETRY_SECONDS[delivery.attempts]
        return status

    async def run(self) -> None:
        """Send webhooks as they come due, until canceled."""
        async with httpx.AsyncClient(timeout=30) as client:
            while True:
                if self.webhook_url:
                    await self.deliver(client)
                await asyncio.sleep(0.2)

    # Control

    def control(self, action: str, values: Document) -> Document:
        """What people do at Stripe: `/_simulator/stripe/ACTION`."""
        account, id = self.account, str(values.get("id", ""))
        match action:
            case "pay":
                return account.pay(id, succeeds=bool(values.get("succeeds", True)))
            case "renew":
                return account.renew(id, succeeds=bool(values.get("succeeds", True)))
            case "cancel":
                if values.get("at_period_end"):
                    return account.update(id, {"cancel_at_period_end": True})
                return account.cancel(id)
            case "status":
                return account.set_status(id, str(values.get("status")))
            case "price":
                return account.add_price(
                    id,
                    is_recurring=bool(values.get("is_recurring", True)),
                    amount=int(values.get("amount", 1000)),
                    name=str(values.get("name", "Product")),
                )
            case "advance":
                account.advance(float(values.get("seconds", 0)))
                return {"now": account.now}
            case "webhook":
                self.webhook_url = values.get("url")
                return {"url": self.webhook_url, "secret": self.secret}
            case "state":
                return {
                    "customers": list(account.customers.values()),
                    "sessions": list(account.sessions.values()),
                    "subscriptions": list(account.subscriptions.values()),
                    "events": len(account.events),
                }
            case _:
                raise StripeError(404, "invalid_request_error", f"unknown action {action}")


def decoded(pairs: Sequence[tuple[str, str]]) -> Document:
    """Form fields such as `a[b][0][c]` as a document; numbered fields become lists."""
    root: Document = {}
    for name, value in pairs:
        first, *rest = re.findall(r"[^\[\]]+", name)
        place = root
        for key, after in zip([first, *rest], [*rest, None], strict=True):
            if after is None:
                place[key] = value
            else:
                place = place.setdefault(key, {})
    return cast("Document", _listed(root))


def _listed(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    found = {key: _listed(each) for key, each in cast("Document", value).items()}
    if found and all(key.isdecimal() for key in found):
        return [found[key] for key in sorted(found, key=int)]
    return found


def shaped(document: Document, version: str) -> Document:
    """A document in the shape of an API version: before basil the period is on the subscription."""
    found = copy.deepcopy(document)
    if version[:10] < BASIL:
        _to_old(found)
    return found


def _to_old(value: Any) -> None:
    if isinstance(value, list):
        for each in cast("list[Any]", value):
            _to_old(each)
        return
    if not isinstance(value, dict):
        return
    document = cast("Document", value)
    if document.get("object") == "subscription":
        for item in document["items"]["data"]:
            for name in ("current_period_start", "current_period_end"):
                document[name] = max(document.get(name, 0), item.pop(name, 0))
    for each in list(document.values()):
        _to_old(each)
