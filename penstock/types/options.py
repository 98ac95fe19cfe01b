"""The options of jobs, bulk jobs and tasks: the one table that the SDK, the API and the command line read.

A new option is a line here and in SQL: in `_check_job_arguments` and `_job_from_options` for jobs, in
`_check_tasks` and `_add_tasks` for tasks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from typing import (
    Annotated,
    Any,
    Literal,
    Required,
    TypeAlias,
    TypedDict,
    get_args,
    get_origin,
    get_type_hints,
)
from uuid import UUID

from annotated_types import Interval, Len

from penstock.errors import Invalid
from penstock.types.amounts import Amount, exact

OnFailure: TypeAlias = Literal["continue", "stop"]
OnLimit: TypeAlias = Literal["hold", "refuse", "pause"]
AfterFailure: TypeAlias = Literal["cancel", "run"]
Priority: TypeAlias = Annotated[int, Interval(ge=0, le=10)]
StopAfter: TypeAlias = int | str


@dataclass(frozen=True, slots=True)
class Option:
    """Where an option can be given, and its text on the command line and in the OpenAPI schema."""

    help: str
    sdk: str | None = ""
    """Its name in `options()` of the SDK; "": the same; None: it is not an option there."""
    http: bool = True
    """Whether it is a field of a request's body."""
    cli: bool = True
    """Whether `penstock jobs start` and `penstock bulk run` have it."""
    metavar: str | None = None
    """How the command line names its value."""
    schedule: bool = False
    """Whether each job of a schedule can have it."""


class JobOptions(TypedDict, total=False):
    """The options of a job. Those left out or None have the database's default."""

    tenant_id: Annotated[UUID | str | None, Option("The tenant that owns the job.", cli=False)]
    idempotency_key: Annotated[
        str | None, Option("Start the job once per key; later calls return the same job.", http=False)
    ]
    """The same key returns the same job; the same key with other parameters is rejected."""
    priority: Annotated[Priority | None, Option("0 to 10; lower runs first.", schedule=True)]
    run_at: Annotated[datetime | None, Option("Start no earlier than this.", metavar="TIME")]
    delay_seconds: Annotated[
        float | None, Option("Start this many seconds from now, by the database's clock.", sdk="delay")
    ]
    """Instead of `run_at`."""
    on_failure: Annotated[
        OnFailure | None, Option("When a task fails permanently: continue or stop.", schedule=True)
    ]
    paused: Annotated[bool | None, Option("Start the job paused.")]
    budget: Annotated[
        Amount | None, Option("Pause before the job costs more than this.", metavar="AMOUNT", schedule=True)
    ]
    """The maximum cost, in the base currency."""
    on_limit: Annotated[
        OnLimit | None, Option("When a quota is used up: hold, refuse or pause.", schedule=True)
    ]
    """`hold` the task back, `refuse` (fail) it, or `pause` the job."""
    stop_after: Annotated[
        StopAfter | None,
        Option("Pause after N failures or P % of the tasks.", metavar="N|P%", schedule=True),
    ]
    """Pause after this many failed tasks, or after a percentage, such as "5%"."""
    result: Annotated[Any, Option("The result of the job.", sdk=None, http=False, cli=False)]
    """JSON in which `{"$from": key}` stands for the output of a task. Default: the last task's output."""
    tags: Annotated[
        Annotated[list[str], Len(0, 10)] | None, Option("Words to find the job by.", metavar="A,B")
    ]
    """Up to 10 texts of 1 to 50 characters. Case does not matter."""
    traceparent: Annotated[
        str | None, Option("The trace context of the caller.", sdk=None, http=False, cli=False)
    ]
    """W3C trace context of the span that starts the job. Attempts are linked to it."""
    digest: Annotated[str | None, Option("A hash of the tasks.", sdk=None, http=False, cli=False)]
    """Compared for an idempotency key that was used before: see `jobs.start_many`."""


class BulkOptions(JobOptions, total=False):
    """The options of a bulk job."""

    preview: Annotated[
        bool | None, Option("Run the first rows only, then wait for confirmation (`penstock bulk confirm`).")
    ]
    """Load only the first batch, and wait for confirmation before applying it and loading the rest."""
    skip_done: Annotated[
        bool | None, Option("Skip rows of this source that an earlier job completed (matched by key).")
    ]
    """Skip rows whose key succeeded in an earlier job of the same type and source."""
    key: Annotated[
        Annotated[list[str], Len(1, 50)] | None,
        Option("Columns that identify a row (default: the bulk type's).", sdk=None, metavar="A,B"),
    ]


class TaskOptions(TypedDict, total=False):
    """The fields of a task. Those left out or None have the database's default."""

    kind: Required[Annotated[str, Option("The task's kind.", sdk=None)]]
    key: Annotated[str | None, Option("Its name in the job.")]
    input: Annotated[dict[str, Any] | None, Option("The handler's input.", sdk=None)]
    after: Annotated[list[str] | None, Option("Keys of the tasks that must succeed first.", sdk=None)]
    after_failure: Annotated[AfterFailure | None, Option("If a dependency does not succeed.")]
    phase: Annotated[str | None, Option("The phase of the job's progress that it counts for.")]
    provider: Annotated[str | None, Option("The provider whose limits apply: name/endpoint.")]
    units: Annotated[dict[str, Any] | None, Option("An estimate of its usage.")]
    priority: Annotated[Priority | None, Option("0 to 10; lower runs first.")]
    run_at: Annotated[datetime | None, Option("Start no earlier than this.")]
    max_attempts: Annotated[
        Annotated[int, Interval(ge=1, le=100)] | None, Option("Failed attempts before it is a dead letter.")
    ]
    timeout_seconds: Annotated[float | None, Option("Limit for one attempt.", sdk="timeout")]
    idempotency_key: Annotated[str | None, Option("Add the task once per key.", sdk=None)]
    route: Annotated[dict[str, Any] | None, Option("Required features instead of a provider.")]
    confirm: Annotated[bool | None, Option("Wait for confirmation of the job.")]


@cache
def table_of(options: type) -> Mapping[str, tuple[Any, Option]]:
    """The lines of a table above: name → type and option."""
    lines: dict[str, tuple[Any, Option]] = {}
    for name, hint in get_type_hints(options, include_extras=True).items():
        annotated = get_args(hint)[0] if get_origin(hint) is Required else hint
        kind, *_, option = get_args(annotated)
        lines[name] = (kind, option)
    return lines


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
