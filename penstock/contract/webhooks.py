"""Webhooks in: record deliveries, process each event once, try again what failed, replay."""

from __future__ import annotations

import builtins
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, LiteralString, NamedTuple
from uuid import UUID

from penstock.contract import filters
from penstock.errors import NotFound
from penstock.postgres import db
from penstock.types import Webhook, WebhookOutcome

FIELDS: Mapping[str, filters.Field] = {
    "source": filters.words("source"),
    "key": filters.words("key"),
    "type": filters.words("type"),
    "outcome": filters.words("outcome", ("applied", "stale", "ignored", "unmatched", "failed")),
    "error": filters.part("coalesce(error, '')"),
    "age": filters.age("received_at"),
}

_WEBHOOKS: LiteralString = """\
select source, key, type, tenant_id, payload, received_at, last_received_at, deliveries, attempts,
  processed_at, next_try_at, outcome, error
from penstock.webhooks where """


_OPEN: LiteralString = """\
select source, count(*)::integer from penstock.webhooks where processed_at is null group by source"""


class Delivery(NamedTuple):
    """An event, as its handler gets it."""

    source: str
    key: str
    type: str
    payload: Any


async def take(conn: db.Connection, delivery: Delivery) -> bool:
    """Record a delivery and lock its row. Returns whether the event was processed before."""
    [row] = await db.call(
        conn,
        "take_webhook",
        p_source=delivery.source,
        p_key=delivery.key,
        p_type=delivery.type,
        p_payload=db.Json(delivery.payload),
    )
    return row["is_done"]


async def end(
    conn: db.Connection,
    delivery: Delivery,
    *,
    outcome: WebhookOutcome,
    tenant_id: UUID | None = None,
    error: str | None = None,
) -> None:
    """Note what became of an event."""
    await db.call(
        conn,
        "end_webhook",
        p_source=delivery.source,
        p_key=delivery.key,
        p_outcome=outcome,
        p_tenant_id=tenant_id,
        p_error=error,
    )


async def next_due(conn: db.Connection, *, sources: Sequence[str]) -> Delivery | None:
    """Lock the next event of these sources that is to be tried again."""
    [row] = await db.call(conn, "next_webhook", p_sources=builtins.list(sources))
    return None if row["key"] is None else Delivery(row["source"], row["key"], row["type"], row["payload"])


async def replay(database: db.Database, *, source: str, key: str) -> None:
    """Let an event be processed again by a server that has its handler."""
    await db.call(database, "replay_webhook", p_source=source, p_key=key)


async def open_counts(database: db.Database) -> dict[str, int]:
    """How many webhooks of each source are not processed yet."""
    return dict(await db.rows(database, _OPEN, ()))  # pyright: ignore[reportArgumentType]


async def list(
    database: db.Database,
    *,
    filter: str = "",
    before: datetime | None = None,
    limit: int = 50,
) -> builtins.list[Webhook]:
    """Webhooks, newest first. The next page is `before` the time of the last one of this page."""
    chosen = [*await filters.conditions(database, filter, FIELDS)]
    if before is not None:
        chosen.append(("received_at < %s", [before]))
    condition, values = filters.every(chosen)
    statement = _WEBHOOKS + condition + " order by received_at desc limit %s"
    return [Webhook(*row) for row in await db.rows(database, statement, [*values, filters.page(limit)])]


async def get(database: db.Database, *, source: str, key: str) -> Webhook:
    """One webhook."""
    rows = await db.rows(database, _WEBHOOKS + "source = %s and key = %s", (source, key))
    if not rows:
        raise NotFound("there is no such webhook", code="unknown_webhook")
    return Webhook(*rows[0])
