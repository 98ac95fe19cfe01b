"""Types of webhooks, with the names of SQL and the CLI."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, TypeAlias
from uuid import UUID

WebhookOutcome: TypeAlias = Literal["applied", "stale", "ignored", "unmatched", "failed"]


@dataclass(frozen=True, slots=True)
class Webhook:
    """A webhook that another system sent, and what became of it."""

    source: str
    key: str
    type: str
    tenant_id: UUID | None
    payload: dict[str, Any]
    received_at: datetime
    last_received_at: datetime
    deliveries: int
    attempts: int
    processed_at: datetime | None
    next_try_at: datetime | None
    outcome: WebhookOutcome | None
    error: str | None
