"""Types of waits, with the names of SQL, HTTP and the CLI."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, TypeAlias
from uuid import UUID

WaitStatus: TypeAlias = Literal["open", "answered", "timeout", "canceled"]


@dataclass(frozen=True, slots=True)
class TaskWait:
    """What a task asks a person or another system, and the answer."""

    id: UUID
    tenant_id: UUID
    job_id: UUID
    task_id: int
    task_kind: str
    task_key: str | None
    name: str
    message: str | None
    options: list[str]
    fields: dict[str, str]
    """The fields of the payload with their types; a `?` marks an optional one."""
    roles: list[str]
    default_option: str | None
    asked_at: datetime
    until: datetime | None
    """When it times out; None: never."""
    status: WaitStatus
    option: str | None
    payload: dict[str, Any] | None
    ended_at: datetime | None
    ended_by: str | None


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer that a handler gets from `ctx.wait_for`."""

    option: str | None
    payload: dict[str, Any]
    by: str | None
    """Who answered: `user:…`, `service:…` or `link`; None for the default answer after a timeout."""
    at: datetime
    is_default: bool
