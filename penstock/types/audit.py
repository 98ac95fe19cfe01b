"""Types of audit, with the names of SQL, HTTP and the CLI."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID


@dataclass(frozen=True, slots=True)
class AuditLine:
    """A line of the audit log."""

    id: int
    at: datetime
    tenant_id: UUID | None
    actor: str
    action: str
    job_id: UUID | None
    subject: str | None
    details: dict[str, Any]


@dataclass(frozen=True, slots=True)
class AuditSeal:
    """A new seal of the audit log. Keep `head` (number:hash) outside of the database."""

    number: int
    lines: int
    head: str


@dataclass(frozen=True, slots=True)
class AuditHead:
    """The newest seal of the audit log, and the lines before and after it."""

    head: str | None
    sealed_at: datetime | None
    lines: int
    unsealed: int
    """At most 100,000 are counted."""
    unsealed_seconds: float | None
    """The age of the oldest of them."""
