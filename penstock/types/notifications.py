"""Types of notifications, with the names of SQL, HTTP and the CLI."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, TypeAlias
from uuid import UUID

Channel: TypeAlias = Literal["email", "webhook"]
NotificationEvent: TypeAlias = Literal["alert", "job.completed", "job.failed", "bulk.completed"]


@dataclass(frozen=True, slots=True)
class NotificationTarget:
    """An address that a tenant's notifications go to."""

    id: UUID
    tenant_id: UUID
    channel: Channel
    address: str
    events: list[str]
    is_enabled: bool
    disabled_reason: str | None
    created_by: str
    created_at: datetime


@dataclass(frozen=True, slots=True)
class NewNotificationTarget:
    """The id of a target; a new webhook also has the secret that signs it, shown once."""

    id: UUID
    secret: str | None


@dataclass(frozen=True, slots=True)
class Notification:
    """A message to a target, and its delivery status."""

    id: UUID
    tenant_id: UUID
    target_id: UUID | None
    channel: Channel
    address: str
    event: str
    subject: str
    status: Literal["queued", "sending", "sent", "failed"]
    attempts: int
    next_try_at: datetime
    last_error: str | None
    created_at: datetime
    sent_at: datetime | None


@dataclass(frozen=True, slots=True)
class TakenNotification:
    """A message that a sender delivers now."""

    id: UUID
    tenant_id: UUID
    target_id: UUID | None
    channel: Channel
    address: str
    event: str
    subject: str
    body: str
    details: dict[str, Any]
    attempt: int
    created_at: datetime
    secrets: list[str]
    """The secrets that sign a webhook: the current one, and the previous one for a day after a rotation."""


@dataclass(frozen=True, slots=True)
class Streak:
    """Failures in a row within one scope."""

    tenant_id: UUID
    scope: str
    failures: int
    began_at: datetime
    last_at: datetime
    alerted_at: datetime | None


@dataclass(frozen=True, slots=True)
class Failure:
    """A failure that `record_outcome` was told of."""

    id: int
    at: datetime
    tenant_id: UUID
    scope: str
    subject: str | None
    code: str
    message: str
    job_id: UUID | None
    task_id: int | None
