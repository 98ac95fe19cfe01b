"""Webhooks of an app: who signs them, what identifies an event, and the handler that applies it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast
from uuid import UUID

import structlog

from penstock import signing
from penstock.contract import webhooks
from penstock.errors import Invalid, Unavailable
from penstock.postgres import db
from penstock.types import WebhookOutcome

log = structlog.get_logger("penstock.webhooks")
_MAX_ERROR = 2000


@dataclass(slots=True)
class Event:
    """A webhook as its handler gets it. The handler makes no HTTP calls: it starts a job for them."""

    source: str
    key: str
    type: str
    payload: Any
    connection: db.Connection
    """The handler's writes and the mark in the inbox are one commit."""
    tenant_id: UUID | None = None
    """The tenant that the event is about; set it to find the webhook by its tenant."""


Handler = Callable[[Event], Awaitable[WebhookOutcome | None]]
Identify = Callable[[Any, Mapping[str, Sequence[str]]], tuple[str, str]]
"""Returns the key and the type of an event from its payload and headers."""


@dataclass(frozen=True, slots=True)
class Source:
    """One sender of webhooks."""

    name: str
    scheme: signing.Scheme
    secrets: Callable[[], Sequence[str]] = field(repr=False)
    identify: Identify
    handler: Handler


class Webhooks(dict[str, Source]):
    """The sources of an app, by name: `/webhooks/NAME`."""

    def add(
        self,
        name: str,
        *,
        scheme: signing.Scheme,
        secrets: Sequence[str] | Callable[[], Sequence[str]],
        identify: Identify | None = None,
    ) -> Callable[[Handler], Handler]:
        """Declare the handler of a source.

        The handler returns `applied` (or None), `stale`, `ignored`, or `unmatched` for an event whose subject
        does not exist yet: that one is tried again. `secrets`: several during a rotation.
        """
        found = secrets if callable(secrets) else lambda: secrets

        def declare(handler: Handler) -> Handler:
            self[name] = Source(name, scheme, found, identify or _IDENTIFY[scheme], handler)
            return handler

        return declare


async def process(conn: db.Connection, source: Source, delivery: webhooks.Delivery) -> bool:
    """Run the handler in a savepoint and note what became of the event. Returns whether it did not fail."""
    event = Event(*delivery, connection=conn)
    try:
        async with conn.transaction():
            outcome = await source.handler(event) or "applied"
    except Unavailable as error:
        if error.code != "tenant_suspended":
            raise
        # The row goes with the tenant to its next database and is tried again there.
        tenant_id = UUID(error.details["tenant_id"])
        await webhooks.end(conn, delivery, outcome="unmatched", tenant_id=tenant_id)
        return True
    except asyncio.CancelledError:
        raise
    except Exception as error:
        log.exception("webhook.failed", source=delivery.source, key=delivery.key)
        text = f"{type(error).__name__}: {error}".replace("\0", "")[:_MAX_ERROR]
        await webhooks.end(conn, delivery, outcome="failed", tenant_id=event.tenant_id, error=text)
        return False
    await webhooks.end(conn, delivery, outcome=outcome, tenant_id=event.tenant_id)
    return True


async def retry_due(pool: db.Pool, sources: Webhooks) -> int:
    """Process the events that are due for another try. Returns their number."""
    done = 0
    while True:
        async with db.transaction(pool) as conn:
            delivery = await webhooks.next_due(conn, sources=list(sources))
            if delivery is None:
                return done
            await process(conn, sources[delivery.source], delivery)
            done += 1


def _text(payload: Any, *path: str) -> str:
    for name in path:
        payload = cast("dict[str, Any]", payload).get(name) if isinstance(payload, dict) else None
    if not isinstance(payload, str) or not 1 <= len(payload) <= 200:
        raise Invalid(f"the payload has no text {'.'.join(path)}", code="invalid_webhook")
    return payload


def _standard(payload: Any, headers: Mapping[str, Sequence[str]]) -> tuple[str, str]:
    return headers["webhook-id"][0], _text(payload, "type")


_IDENTIFY: dict[signing.Scheme, Identify] = {
    "stripe": lambda payload, _: (_text(payload, "id"), _text(payload, "type")),
    # CloudConvert sends no event id: a job has each event once.
    "cloudconvert": lambda payload, _: (
        f"{_text(payload, 'job', 'id')}/{_text(payload, 'event')}",
        _text(payload, "event"),
    ),
    "standard": _standard,
}
