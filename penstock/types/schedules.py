"""Types of schedules, with the names of SQL, HTTP and the CLI."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, TypeAlias
from uuid import UUID

Missed: TypeAlias = Literal["skip", "once", "all"]


@dataclass(frozen=True, slots=True)
class Schedule:
    """A recurring job."""

    id: UUID
    tenant_id: UUID
    name: str
    cron: str
    timezone: str
    job_type: str
    params: dict[str, Any]
    tasks: list[dict[str, Any]] | None
    options: dict[str, Any]
    missed: Missed
    is_enabled: bool
    next_run_at: datetime
    last_run_at: datetime | None
    last_job_id: UUID | None
    failures: int = 0
    """How often starting its job failed since it last succeeded. Too many turn it off."""
    last_error: str | None = None
