"""Types of alerts, with the names of SQL, HTTP and the CLI."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal
from uuid import UUID


@dataclass(frozen=True, slots=True)
class Alert:
    """What an operator should look at: one per kind, subject and day."""

    kind: Literal["provider_closed", "key_created", "quota_refusals", "failed_logins"]
    subject: str
    tenant_id: UUID | None
    count: int
    first_at: datetime
    last_at: datetime
    details: dict[str, Any]
