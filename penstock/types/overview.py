"""Types of overview, with the names of SQL, HTTP and the CLI."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any, Literal

from penstock.types.amounts import exact_fields, known_fields
from penstock.types.jobs import Cause
from penstock.types.workers import WorkerCounts


@dataclass(frozen=True, slots=True)
class OverviewProblem:
    """A current problem that stops or slows tasks."""

    about: Literal["maintenance", "worker", "provider", "quota", "schedule"]
    text: str
    subject: str | None = None
    count: int | None = None


@dataclass(frozen=True, slots=True)
class Overview:
    """The state of the system, for a tenant or for all. Counts stop at 100,001 for each lane."""

    at: datetime
    waiting: int
    running: int
    held: int
    """Tasks held back by quotas, budgets or other limits."""
    oldest_seconds: float | None
    failed_hour: int
    """Failures of the last hour, among the latest 10,000."""
    spent_today: Decimal
    spent_yesterday: Decimal
    currency: str
    causes: tuple[Cause, ...]
    problems: tuple[OverviewProblem, ...]
    has_jobs: bool
    workers: WorkerCounts | None = None
    """Only for operators."""

    @classmethod
    def read(cls, document: Mapping[str, Any]) -> Overview:
        """Convert the result of overview."""
        values = exact_fields(cls, document, "spent_today", "spent_yesterday")
        values["at"] = datetime.fromisoformat(values["at"])
        values["oldest_seconds"] = values["oldest_seconds"] and float(values["oldest_seconds"])
        values["causes"] = tuple(
            Cause(c["error_code"], c["message"], c["count"], c["kind"], datetime.fromisoformat(c["last_at"]))
            for c in values["causes"]
        )
        values["problems"] = tuple(
            OverviewProblem(**known_fields(OverviewProblem, line)) for line in values["problems"]
        )
        if values.get("workers") is not None:
            values["workers"] = WorkerCounts(**known_fields(WorkerCounts, values["workers"]))
        return cls(**values)
