"""Types of jobs, with the names of SQL, HTTP and the CLI."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, TypeAlias
from uuid import UUID

from penstock.errors import JobFailed
from penstock.types.amounts import known_fields
from penstock.types.tasks import Task

JobStatus: TypeAlias = Literal["queued", "running", "paused", "completed", "failed", "canceled"]


JobVerb: TypeAlias = Literal["pause", "resume", "cancel", "retry"]


ENDED: frozenset[str] = frozenset({"completed", "failed", "canceled"})
"""The final states of a job; only a retry leaves them."""


@dataclass(frozen=True, slots=True)
class Phase:
    """A named part of a job, with its weight in the job's progress."""

    name: str
    weight: float | None
    total: int
    succeeded: int
    failed: int
    canceled: int

    @property
    def done(self) -> int:
        """How many of its tasks have succeeded, failed or been canceled."""
        return self.succeeded + self.failed + self.canceled


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a job. Lists of jobs leave out the last five fields."""

    percent: int
    phase: str
    done: int
    total: int
    succeeded: int
    failed: int
    canceled: int
    docs_complete: int
    docs_total: int
    running: int | None = None
    message: str | None = None
    eta_seconds: float | None = None
    phases: tuple[Phase, ...] = ()
    waiting: int | None = None

    @classmethod
    def read(cls, document: Mapping[str, Any]) -> Progress:
        """Convert the result of get_job."""
        values = known_fields(cls, document)
        values["phases"] = tuple(Phase(**known_fields(Phase, phase)) for phase in values["phases"] or ())
        return cls(**values)


@dataclass(frozen=True, slots=True)
class Job:
    """A job: tasks that are started, watched and canceled together."""

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
    title: str | None = None
    """What people call it, from the title template of its type."""
    tags: tuple[str, ...] = ()

    @property
    def is_ended(self) -> bool:
        """Whether the job has completed, failed or been canceled."""
        return self.status in ENDED

    @classmethod
    def read(cls, document: Mapping[str, Any]) -> Job:
        """Convert the result of get_job."""
        values = known_fields(cls, document)
        values |= {name: UUID(values[name]) for name in ("id", "tenant_id")}
        for name in ("created_at", "run_at", "started_at", "finished_at"):
            values[name] = values[name] and datetime.fromisoformat(values[name])
        values["progress"] = Progress.read(values["progress"])
        values["tags"] = tuple(values.get("tags") or ())
        return cls(**values)

    @classmethod
    def listed(cls, row: Sequence[Any]) -> Job:
        """Convert a row of a list of jobs, whose progress has no phases."""
        return cls(*row[:12], progress=Progress(*row[12:-2]), title=row[-2], tags=tuple(row[-1]))


@dataclass(frozen=True, slots=True)
class JobChange:
    """An event about a job in a stream. Its progress has the fields that a list of jobs has."""

    id: UUID
    type: str
    status: JobStatus
    status_reason: str | None
    progress: Progress

    @property
    def is_ended(self) -> bool:
        """Whether the job has completed, failed or been canceled."""
        return self.status in ENDED


@dataclass(frozen=True, slots=True)
class Cause:
    """Rows that were rejected, or tasks that failed, with the same error."""

    code: str
    message: str | None
    count: int
    kind: str | None = None
    """The kind of the tasks; None for rows."""
    last_at: datetime | None = None
    """When the last of them failed, if known."""


def failure(job: Job, first: Task | None) -> JobFailed:
    """The error to raise when a job did not complete; `first` is the first task that failed."""
    why = f"; {first.kind}: {first.error_code}: {first.error_message}" if first else ""
    details = {"job_id": str(job.id), "status": job.status}
    return JobFailed(f"job {job.id} {job.status}: {job.status_reason}{why}", details=details)
