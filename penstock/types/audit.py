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
