"""How jobs and bulk jobs are started."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal, TypeAlias, TypedDict
from uuid import UUID

from penstock.errors import Invalid
from penstock.types.amounts import Amount, exact

OnFailure: TypeAlias = Literal["continue", "stop"]


OnLimit: TypeAlias = Literal["hold", "refuse", "pause"]


class JobOptions(TypedDict, total=False):
    """The options of a job. Those left out or None have the database's default."""

    tenant_id: UUID | str | None
    idempotency_key: str | None
    """The same key returns the same job; the same key with other parameters is rejected."""
    priority: int | None
    """0 to 10; lower runs first."""
    run_at: datetime | None
    delay_seconds: float | None
    """Start this many seconds from now, by the database's clock, instead of at `run_at`."""
    on_failure: OnFailure | None
    paused: bool | None
    budget: Amount | None
    """The maximum cost, in the base currency. The job pauses before it costs more."""
    on_limit: OnLimit | None
    """When the tenant's quota is used up: `hold` the task back, `refuse` (fail) it, or `pause` the job."""
    stop_after: int | str | None
    """Pause after this many failed tasks, or after a percentage, such as "5%"."""
    digest: str | None
    """A hash of the tasks, compared for an idempotency key that was used before: see `jobs.start_many`."""


class BulkOptions(JobOptions, total=False):
    """The options of a bulk job."""

    preview: bool | None
    """Load only the first batch, and wait for confirmation before applying it and loading the rest."""
    skip_done: bool | None
    """Skip rows whose key succeeded in an earlier job of the same type and source."""
    key: list[str] | None
    """Columns of a row's key (default: the bulk type's)."""


def given(options: JobOptions) -> dict[str, Any]:
    """The given options as JSON for the database."""
    chosen: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    if (run_at := chosen.get("run_at")) is not None:
        if run_at.tzinfo is None:
            raise Invalid(
                f"run_at must have a time zone (got {run_at.isoformat()})",
                code="invalid_options",
                details={"field": "options.run_at"},
            )
        chosen["run_at"] = run_at.isoformat()
    if "budget" in chosen:
        chosen["budget"] = format(exact(chosen["budget"], "options.budget"), "f")
    if "tenant_id" in chosen:
        chosen["tenant_id"] = str(chosen["tenant_id"])
    return chosen
