"""Task kinds and job types."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from penstock.postgres import db
from penstock.types import OnFailure


async def define(database: db.Database, *, kinds: Iterable[Mapping[str, Any]]) -> None:
    """Create or change task kinds.

    Each has a `name` and may have `category`, `max_attempts`, `backoff_seconds`, `backoff_cap_seconds`,
    `retry_seconds` and `timeout_seconds`.
    """
    await db.call(database, "define_kinds", p_kinds=db.Json([dict(kind) for kind in kinds]))


async def define_job_type(
    database: db.Database,
    *,
    name: str,
    phases: Iterable[Mapping[str, Any]] = (),
    on_failure: OnFailure | str = "continue",
) -> None:
    """Create or change a job type: its phases in order, as `{"name", "weight"}`, and what a failure does."""
    documents = db.Json([dict(phase) for phase in phases])
    await db.call(database, "define_job_type", p_name=name, p_phases=documents, p_on_failure=on_failure)


async def define_params(database: db.Database, *, params: Mapping[str, Mapping[str, Any]]) -> None:
    """Declare the params of job types and kinds by name, so that schedules are checked when they are set."""
    await db.call(
        database, "define_params", p_params=db.Json({name: dict(each) for name, each in params.items()})
    )
