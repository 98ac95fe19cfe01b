"""Types of bulks, with the names of SQL, HTTP and the CLI."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any, Literal, TypeAlias
from uuid import UUID

from penstock.types.amounts import known_fields
from penstock.types.explanations import Wait
from penstock.types.jobs import Cause, Job, JobStatus

RowState: TypeAlias = Literal[
    "waiting", "queued", "running", "succeeded", "failed", "canceled", "refused", "skipped"
]


@dataclass(frozen=True, slots=True)
class RowCounts:
    """How many rows a bulk job has, and how many were loaded, rejected or skipped."""

    total: int
    loaded: int
    refused: int
    skipped: int
    waiting: int


@dataclass(frozen=True, slots=True)
class Bulk:
    """A bulk job: a job whose tasks are created from rows."""

    job: Job
    source: dict[str, Any]
    key: list[str] | None
    batch: int | None
    group_by: str | None
    preview: bool
    skip_done: bool
    confirmed_at: datetime | None
    rows: RowCounts
    to_confirm: int
    """How many tasks wait for confirmation."""
    cost: Decimal
    budget: Decimal | None
    applied: int
    undone: int
    waits: tuple[Wait, ...]
    problems: tuple[Cause, ...]
    failures: tuple[Cause, ...]

    @classmethod
    def read(cls, document: Mapping[str, Any]) -> Bulk:
        """Convert the result of get_bulk."""
        job = document["job"]
        values = known_fields(cls, document | document["changes"])
        values["job"] = Job.read(job)
        values |= {name: None if job[name] is None else Decimal(job[name]) for name in ("cost", "budget")}
        values["confirmed_at"] = values["confirmed_at"] and datetime.fromisoformat(values["confirmed_at"])
        values["rows"] = RowCounts(**values["rows"])
        values["waits"] = tuple(Wait(**wait) for wait in values["waits"])
        values["problems"] = tuple(Cause(c["code"], c["message"], c["rows"]) for c in values["problems"])
        values["failures"] = tuple(
            Cause(c["code"], c["message"], c["tasks"], c["kind"]) for c in values["failures"]
        )
        return cls(**values)


@dataclass(frozen=True, slots=True)
class BulkSummary:
    """A bulk job in a list."""

    id: UUID
    tenant_id: UUID
    type: str
    status: JobStatus
    status_reason: str | None
    created_by: str
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    source: dict[str, Any]
    total: int
    loaded: int
    refused: int
    skipped: int
    percent: int


@dataclass(frozen=True, slots=True)
class BulkResult:
    """A row of a bulk job with its outcome."""

    number: int
    key: str
    state: RowState
    data: dict[str, Any]
    output: Any
    error_code: str | None
    error_message: str | None
    problem: dict[str, Any] | None
    retries: int
    cost: Decimal
    started_at: datetime | None
    finished_at: datetime | None
    changes: int
    undone: int


@dataclass(frozen=True, slots=True)
class RowProblem:
    """Why a row is rejected."""

    line: int
    column: str | None
    code: str
    message: str


@dataclass(frozen=True, slots=True)
class SourceCheck:
    """The number of rows in a source, and the rows that would be rejected."""

    rows: int
    good: int
    problems: list[RowProblem]


@dataclass(frozen=True, slots=True)
class RowsAdded:
    """How many of the rows that were sent were added or rejected."""

    added: int
    refused: int
    known: int
    """Rows whose number was already loaded."""
    moved: int
    """Rows whose number was already loaded with another key: the source changed before its end."""
