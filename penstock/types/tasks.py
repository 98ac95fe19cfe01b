"""Types of tasks, with the names of SQL, HTTP and the CLI."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, TypeAlias
from uuid import UUID

TaskStatus: TypeAlias = Literal["blocked", "queued", "running", "waiting", "succeeded", "failed", "canceled"]


@dataclass(frozen=True, slots=True)
class Task:
    """A task: the unit that a worker claims and runs."""

    id: int
    job_id: UUID
    kind: str
    key: str | None
    phase: str
    status: TaskStatus
    waiting_for: str | None
    waiting_until: datetime | None
    priority: int
    attempt: int
    retry_count: int
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    worker_id: str | None
    fraction: float | None
    message: str | None
    error_code: str | None
    error_message: str | None
    input: dict[str, Any]
    output: Any


@dataclass(frozen=True, slots=True)
class Attempt:
    """A failed or lost attempt of a task."""

    task_id: int
    lease: int
    attempt: int
    worker_id: str
    started_at: datetime
    ended_at: datetime
    outcome: Literal["failed", "lost"]
    error_code: str
    error_message: str | None
    error_details: Any
    retry_in_seconds: float | None


@dataclass(frozen=True, slots=True)
class Run:
    """A task that is running on a worker."""

    job_id: UUID
    task_id: int
    kind: str
    key: str | None
    started_at: datetime
    fraction: float | None
    message: str | None


@dataclass(frozen=True, slots=True)
class TaskRate:
    """How many tasks ended in a minute, and how long they waited and ran, in seconds."""

    minute: datetime
    succeeded: int
    failed: int
    wait_p50: float | None
    wait_p95: float | None
    run_p50: float | None
    run_p95: float | None


@dataclass(frozen=True, slots=True)
class GraphTask:
    """A task in its job's graph, with its dependencies and when it became ready."""

    id: int
    kind: str
    key: str | None
    phase: str
    status: TaskStatus
    waiting_for: str | None
    waiting_until: datetime | None
    attempt: int
    fraction: float | None
    message: str | None
    created_at: datetime
    ready_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    error_code: str | None
    parents: list[int]
