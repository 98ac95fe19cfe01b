"""Types of operations, with the names of SQL, HTTP and the CLI."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, TypeAlias
from uuid import UUID

OperationStatus: TypeAlias = Literal["pending", "processing", "completed", "failed", "timeout", "canceled"]
OPERATION_STATUSES = ("pending", "processing", "completed", "failed", "timeout", "canceled")


@dataclass(frozen=True, slots=True)
class TaskOperation:
    """Work of a task at an outside system."""

    id: UUID
    """Also the tag that the provider gets."""
    tenant_id: UUID
    job_id: UUID
    task_id: int
    number: int
    """Counts the operations of the task."""
    provider: str
    object: str
    """What it works on: an object has one live operation."""
    external_id: str | None
    """The id that the provider gave."""
    status: OperationStatus
    is_late: bool
    """Whether it completed after it had timed out."""
    result: Any
    error_code: str | None
    error_message: str | None
    started_at: datetime
    submitted_at: datetime | None
    deadline_at: datetime
    checked_at: datetime | None
    webhook_received_at: datetime | None
    """The last webhook; None if the operation was only polled."""
    completed_at: datetime | None


@dataclass(frozen=True, slots=True)
class OperationCount:
    """A number of operations of a provider."""

    provider: str
    status: OperationStatus
    count: int
    webhooks: int
    """How many of them got a webhook."""
    seconds: float
    """From submission to end, all together."""
