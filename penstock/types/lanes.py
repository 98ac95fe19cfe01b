"""Types of lanes, with the names of SQL, HTTP and the CLI."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Literal
from uuid import UUID


@dataclass(frozen=True, slots=True)
class Lane:
    """The number of waiting and running tasks in a lane."""

    kind: str
    provider: str | None
    waiting: int
    running: int
    oldest_seconds: float | None


@dataclass(frozen=True, slots=True)
class WantedSlots:
    """How many tasks of a kind and provider could run at once now."""

    kind: str
    provider: str | None
    waiting: int
    """Counted up to 10,000 per lane, without tasks of stopped jobs and without quota or budget."""
    running: int
    runnable: int
    """Waiting tasks that limits, quotas and budgets let run now."""
    wanted: int
    """Runnable and running together."""


@dataclass(frozen=True, slots=True)
class LaneState:
    """A lane: its tasks, the live workers for its kind, and whether its provider admits tasks."""

    id: int
    kind: str
    provider: str | None
    tenant_id: UUID | None
    waiting: int
    """Counted up to 100,001."""
    running: int
    oldest_seconds: float | None
    workers: int
    state: Literal["active", "full", "closed", "exhausted", "disabled", "maintenance"]
    reason: str | None
    opens_at: datetime | None
