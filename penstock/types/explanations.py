"""Types of explanations, with the names of SQL, HTTP and the CLI."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from penstock.types.amounts import known_fields
from penstock.types.jobs import JobStatus
from penstock.types.tasks import TaskStatus


@dataclass(frozen=True, slots=True)
class Wait:
    """A reason why tasks of a job wait, other than their position in the queue."""

    waits_for: str
    reason: str
    tasks: int


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a task is not running."""

    status: TaskStatus
    text: str
    waits_for: str | None = None
    reason: str | None = None
    seconds: float | None = None
    place: int | None = None
    worker_id: str | None = None

    @classmethod
    def read(cls, document: Mapping[str, Any]) -> Explanation:
        """Convert the result of explain_task."""
        return cls(**known_fields(cls, document))


@dataclass(frozen=True, slots=True)
class JobExplanation:
    """The state of a job in words, and what happens next."""

    status: JobStatus
    text: str
    next: str | None
    task_id: int | None
    """The task that runs next."""
    running: int

    @classmethod
    def read(cls, document: Mapping[str, Any]) -> JobExplanation:
        """Convert the result of explain_job."""
        return cls(**known_fields(cls, document))
