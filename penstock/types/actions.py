"""Types of actions, with the names of SQL, HTTP and the CLI."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from uuid import UUID

from penstock.types.dead_letters import LetterVerb
from penstock.types.jobs import JobVerb


@dataclass(frozen=True, slots=True)
class Action:
    """A verb applied to many jobs or dead letters."""

    id: UUID
    actor: str
    verb: JobVerb | LetterVerb
    reason: str | None
    total: int
    done: int
    refused: int
    refusal: str | None
    """Why the last rejected one was rejected."""
    created_at: datetime
    finished_at: datetime | None


@dataclass(frozen=True, slots=True)
class Weight:
    """The size of an action: how many jobs or dead letters, their tasks, and their cost."""

    count: int
    """Counted up to 500,001."""
    tasks: int | None
    cost: Decimal
    unpriced: int
    """Tasks whose cost is unknown."""
    is_part: bool
    """Whether tasks and cost cover only the first thousand."""
