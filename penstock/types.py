"""What crosses layers: one frozen type per noun, with the names that SQL, HTTP and the command line use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any, Literal, TypeAlias, TypedDict
from uuid import UUID

JobStatus: TypeAlias = Literal["queued", "running", "paused", "completed", "failed", "canceled"]
TaskStatus: TypeAlias = Literal["blocked", "queued", "running", "waiting", "succeeded", "failed", "canceled"]
OnFailure: TypeAlias = Literal["continue", "stop"]
Missed: TypeAlias = Literal["skip", "once", "all"]
Role: TypeAlias = Literal["owner", "admin", "member", "viewer"]

ENDED: frozenset[str] = frozenset({"completed", "failed", "canceled"})
"""The states in which a job stays, unless it is retried."""


class JobOptions(TypedDict, total=False):
    """How a job is started, apart from what it does. What is left out or None has the database's default."""

    tenant_id: UUID | str | None
    idempotency_key: str | None
    """The same key gives the same job; with other parameters it is refused."""
    priority: int | None
    """0 to 10, lower first."""
    run_at: datetime | None
    delay_seconds: float | None
    """Start so long after now, by the database's clock, instead of at `run_at`."""
    on_failure: OnFailure | None
    paused: bool | None
    digest: str | None
    """Stands for the tasks where they are not at hand when the key is looked up: see `jobs.start_many`."""


@dataclass(frozen=True, slots=True)
class Phase:
    """A named part of a job, with its share of the whole."""

    name: str
    weight: float | None
    total: int
    succeeded: int
    failed: int
    canceled: int

    @property
    def done(self) -> int:
        """How many of its tasks have ended, however."""
        return self.succeeded + self.failed + self.canceled


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a job is. A list of jobs leaves out the last four fields."""

    percent: int
    phase: str
    done: int
    total: int
    succeeded: int
    failed: int
    canceled: int
    running: int | None = None
    message: str | None = None
    eta_seconds: float | None = None
    phases: tuple[Phase, ...] = ()

    @classmethod
    def read(cls, document: Mapping[str, Any]) -> Progress:
        """From the document of get_job."""
        values = _known(cls, document)
        values["phases"] = tuple(Phase(**_known(Phase, phase)) for phase in values["phases"] or ())
        return cls(**values)


@dataclass(frozen=True, slots=True)
class Job:
    """What a client starts and watches."""

    id: UUID
    tenant_id: UUID
    type: str
    status: JobStatus
    status_reason: str | None
    params: dict[str, Any]
    priority: int
    created_by: str
    created_at: datetime
    run_at: datetime | None
    started_at: datetime | None
    finished_at: datetime | None
    progress: Progress

    @property
    def is_ended(self) -> bool:
        """Whether it is over."""
        return self.status in ENDED

    @classmethod
    def read(cls, document: Mapping[str, Any]) -> Job:
        """From the document of get_job."""
        values = _known(cls, document)
        values |= {name: UUID(values[name]) for name in ("id", "tenant_id")}
        for name in ("created_at", "run_at", "started_at", "finished_at"):
            values[name] = values[name] and datetime.fromisoformat(values[name])
        values["progress"] = Progress.read(values["progress"])
        return cls(**values)


@dataclass(frozen=True, slots=True)
class Task:
    """The unit a worker claims."""

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
    """An attempt at a task that did not succeed."""

    task_id: int
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
class DeadLetter:
    """A task that failed for good."""

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


@dataclass(frozen=True, slots=True)
class Schedule:
    """Jobs that start by the clock."""

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


@dataclass(frozen=True, slots=True)
class Worker:
    """A process that runs tasks."""

    id: str
    host: str
    pid: int
    kinds: list[str]
    concurrency: int
    version: str
    state: Literal["running", "draining", "late", "gone", "stopped"]
    running: int
    started_at: datetime
    beat_at: datetime

    @property
    def is_alive(self) -> bool:
        """Whether it has been heard of lately. A late one may yet come back."""
        return self.state not in ("gone", "stopped")


@dataclass(frozen=True, slots=True)
class Lane:
    """How much work waits in one lane."""

    kind: str
    provider: str | None
    waiting: int
    running: int
    oldest_seconds: float | None


@dataclass(frozen=True, slots=True)
class Tenant:
    """The unit of isolation, plan and bill."""

    id: UUID
    name: str
    weight: float
    is_personal: bool
    created_at: datetime


def _known(cls: type[Any], document: Mapping[str, Any]) -> dict[str, Any]:
    """The fields this version knows: a newer database may say more."""
    return {field.name: document[field.name] for field in fields(cls) if field.name in document}
