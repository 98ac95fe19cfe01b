"""Types of dead letters, with the names of SQL, HTTP and the CLI."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Literal, TypeAlias
from uuid import UUID

LetterVerb: TypeAlias = Literal["replay", "discard"]


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A task that failed permanently."""

    id: int
    tenant_id: UUID
    job_id: UUID
    task_id: int
    kind: str
    reason: Literal["attempts", "time", "permanent", "worker_deaths"]
    error_code: str
    error_message: str | None
    attempts: int
    died_at: datetime
