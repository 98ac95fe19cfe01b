"""The types that all layers share: one per noun, named as in SQL, HTTP and the command line."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields
from datetime import date, datetime
from decimal import Decimal, InvalidOperation
from typing import Any, Literal, TypeAlias, TypedDict, cast
from uuid import UUID

from penstock.errors import Invalid, JobFailed

JobStatus: TypeAlias = Literal["queued", "running", "paused", "completed", "failed", "canceled"]
TaskStatus: TypeAlias = Literal["blocked", "queued", "running", "waiting", "succeeded", "failed", "canceled"]
OnFailure: TypeAlias = Literal["continue", "stop"]
OnLimit: TypeAlias = Literal["hold", "refuse", "pause"]
Missed: TypeAlias = Literal["skip", "once", "all"]
Role: TypeAlias = Literal["owner", "admin", "member", "viewer"]
KeyRole: TypeAlias = Literal["owner", "admin", "member", "viewer", "worker", "service"]
By: TypeAlias = Literal["day", "provider", "type", "tenant", "job"]
"""Fields to sum costs by."""

JobVerb: TypeAlias = Literal["pause", "resume", "cancel", "retry"]
LetterVerb: TypeAlias = Literal["replay", "discard"]

Amount: TypeAlias = Decimal | int
"""An exact amount of money or of a meter, so never a float."""

ENDED: frozenset[str] = frozenset({"completed", "failed", "canceled"})
"""The final states of a job; only a retry leaves them."""

OUTPUT = "output.json"
"""Name of the file for an output that is too large for the database."""


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
    """The progress of a job. Lists of jobs leave out the last four fields."""

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

    @classmethod
    def read(cls, document: Mapping[str, Any]) -> Progress:
        """Convert the result of get_job."""
        values = _known(cls, document)
        values["phases"] = tuple(Phase(**_known(Phase, phase)) for phase in values["phases"] or ())
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

    @property
    def is_ended(self) -> bool:
        """Whether the job has completed, failed or been canceled."""
        return self.status in ENDED

    @classmethod
    def read(cls, document: Mapping[str, Any]) -> Job:
        """Convert the result of get_job."""
        values = _known(cls, document)
        values |= {name: UUID(values[name]) for name in ("id", "tenant_id")}
        for name in ("created_at", "run_at", "started_at", "finished_at"):
            values[name] = values[name] and datetime.fromisoformat(values[name])
        values["progress"] = Progress.read(values["progress"])
        return cls(**values)


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
class Cause:
    """Rows that were rejected, or tasks that failed, with the same error."""

    code: str
    message: str | None
    count: int
    kind: str | None = None
    """The kind of the tasks; None for rows."""
    last_at: datetime | None = None
    """When the last of them failed, if known."""


@dataclass(frozen=True, slots=True)
class Wait:
    """A reason why tasks of a job wait, other than their position in the queue."""

    waits_for: str
    reason: str
    tasks: int


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
        values = _known(cls, document | document["changes"])
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


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A task that failed permanently."""

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
    """A recurring job."""

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
        """Whether its heartbeats have not stopped for long. A late worker may come back."""
        return self.state not in ("gone", "stopped")


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
class Lane:
    """The number of waiting and running tasks in a lane."""

    kind: str
    provider: str | None
    waiting: int
    running: int
    oldest_seconds: float | None


@dataclass(frozen=True, slots=True)
class LaneState:
    """A lane: its tasks, the live workers for its kind, and whether its provider admits tasks."""

    id: int
    kind: str
    provider: str | None
    tenant_id: UUID | None
    waiting: int
    """Counted up to 100,001."""
    running: int
    oldest_seconds: float | None
    workers: int
    state: Literal["active", "full", "closed", "exhausted", "disabled", "maintenance"]
    reason: str | None
    opens_at: datetime | None


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
class OverviewProblem:
    """A current problem that stops or slows tasks."""

    about: Literal["maintenance", "worker", "provider", "quota"]
    text: str
    subject: str | None = None
    count: int | None = None


@dataclass(frozen=True, slots=True)
class WorkerCounts:
    """Numbers of workers."""

    alive: int
    late: int
    gone: int
    slots: int


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
        values = _exact(cls, document, "spent_today", "spent_yesterday")
        values["at"] = datetime.fromisoformat(values["at"])
        values["oldest_seconds"] = values["oldest_seconds"] and float(values["oldest_seconds"])
        values["causes"] = tuple(
            Cause(c["error_code"], c["message"], c["count"], c["kind"], datetime.fromisoformat(c["last_at"]))
            for c in values["causes"]
        )
        values["problems"] = tuple(
            OverviewProblem(**_known(OverviewProblem, line)) for line in values["problems"]
        )
        if values.get("workers") is not None:
            values["workers"] = WorkerCounts(**_known(WorkerCounts, values["workers"]))
        return cls(**values)


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


@dataclass(frozen=True, slots=True)
class Action:
    """A verb applied to many jobs or dead letters."""

    id: UUID
    actor: str
    verb: JobVerb | LetterVerb
    reason: str | None
    total: int
    done: int
    refused: int
    refusal: str | None
    """Why the last rejected one was rejected."""
    created_at: datetime
    finished_at: datetime | None


@dataclass(frozen=True, slots=True)
class Weight:
    """The size of an action: how many jobs or dead letters, their tasks, and their cost."""

    count: int
    """Counted up to 500,001."""
    tasks: int | None
    cost: Decimal
    unpriced: int
    """Tasks whose cost is unknown."""
    is_part: bool
    """Whether tasks and cost cover only the first thousand."""


@dataclass(frozen=True, slots=True)
class AuditLine:
    """A line of the audit log."""

    id: int
    at: datetime
    tenant_id: UUID | None
    actor: str
    action: str
    job_id: UUID | None
    subject: str | None
    details: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Tenant:
    """A tenant: the unit of isolation, plans and billing."""

    id: UUID
    name: str
    weight: float
    is_personal: bool
    created_at: datetime


@dataclass(frozen=True, slots=True)
class TenantShare:
    """A tenant's running tasks, its plan, and its costs in the current month."""

    tenant_id: UUID
    plan: str | None
    running: int
    spent: Decimal


@dataclass(frozen=True, slots=True)
class Member:
    """A member of a tenant: a user or an API key."""

    tenant_id: UUID
    user_id: UUID
    role: Role
    created_at: datetime


@dataclass(frozen=True, slots=True)
class Me:
    """The caller: a user or key with its id, or the service. For the service no tenants are listed."""

    role: str
    id: UUID | None
    tenants: list[Tenant]


@dataclass(frozen=True, slots=True)
class ApiKey:
    """A key for programs, without its secret. A tenant's key without a role was removed from the tenant."""

    id: UUID
    tenant_id: UUID | None
    name: str
    prefix: str
    role: KeyRole | None
    created_by: str
    created_at: datetime
    expires_at: datetime | None
    last_used_at: datetime | None
    revoked_at: datetime | None


@dataclass(frozen=True, slots=True)
class NewKey:
    """A new key. The secret is shown once; it cannot be recovered."""

    id: UUID
    tenant_id: UUID | None
    prefix: str
    secret: str | None = field(repr=False)


@dataclass(frozen=True, slots=True)
class Forecast:
    """The expected cost, usage and duration of a job, as far as known."""

    tasks: int
    units: dict[str, Decimal]
    cost: ForecastCost
    quota: tuple[ForecastQuota, ...]
    finish: ForecastFinish
    budget: ForecastBudget | None = None

    @property
    def fits(self) -> bool:
        """Whether the quotas and the budget suffice for all of its tasks."""
        return all(line.fits for line in self.quota) and (self.budget is None or self.budget.fits)

    @classmethod
    def read(cls, document: Mapping[str, Any]) -> Forecast:
        """Convert the result of forecast_job and forecast."""
        values = _known(cls, document)
        values["tasks"] = values["tasks"] or 0
        values["units"] = {name: Decimal(amount) for name, amount in values["units"].items()}
        values["cost"] = ForecastCost(**_exact(ForecastCost, values["cost"], "low", "expected", "high"))
        values["quota"] = tuple(
            ForecastQuota(**_exact(ForecastQuota, line, "needs", "left", "limit")) for line in values["quota"]
        )
        values["finish"] = ForecastFinish.read(values["finish"])
        if values.get("budget") is not None:
            values["budget"] = ForecastBudget(**_exact(ForecastBudget, values["budget"], "amount"))
        return cls(**values)


@dataclass(frozen=True, slots=True)
class ForecastCost:
    """A cost range in the base currency, and the providers without a price."""

    low: Decimal
    expected: Decimal
    high: Decimal
    currency: str
    unpriced: list[str]


@dataclass(frozen=True, slots=True)
class ForecastQuota:
    """How much of a limited meter a job needs, and how much is left now."""

    meter: str
    needs: Decimal
    left: Decimal
    limit: Decimal
    fits: bool


@dataclass(frozen=True, slots=True)
class ForecastFinish:
    """The seconds until a job ends, with a range; if unknown, the reason."""

    seconds: float | None
    low: float | None
    high: float | None
    at: datetime | None
    workers: int
    bottleneck: str | None
    reason: str | None

    @classmethod
    def read(cls, document: Mapping[str, Any]) -> ForecastFinish:
        """Convert a part of a forecast."""
        values = _known(cls, document)
        for name in ("seconds", "low", "high"):
            values[name] = None if values[name] is None else float(values[name])
        values["at"] = values["at"] and datetime.fromisoformat(values["at"])
        values["workers"] = int(values["workers"])
        return cls(**values)


@dataclass(frozen=True, slots=True)
class ForecastBudget:
    """The requested budget, and whether the job surely stays within it."""

    amount: Decimal
    fits: bool


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a task is not running."""

    status: TaskStatus
    text: str
    waits_for: str | None = None
    reason: str | None = None
    seconds: float | None = None
    place: int | None = None
    worker_id: str | None = None

    @classmethod
    def read(cls, document: Mapping[str, Any]) -> Explanation:
        """Convert the result of explain_task."""
        return cls(**_known(cls, document))


@dataclass(frozen=True, slots=True)
class JobExplanation:
    """The state of a job in words, and what happens next."""

    status: JobStatus
    text: str
    next: str | None
    task_id: int | None
    """The task that runs next."""
    running: int

    @classmethod
    def read(cls, document: Mapping[str, Any]) -> JobExplanation:
        """Convert the result of explain_job."""
        return cls(**_known(cls, document))


@dataclass(frozen=True, slots=True)
class Provider:
    """A provider's endpoint: its limits (None: unlimited), and their use in the current time windows."""

    id: int
    name: str
    tenant_id: UUID | None
    state: Literal["active", "full", "closed", "exhausted", "disabled", "maintenance"]
    reason: str | None
    opens_at: datetime | None
    requests_minute: int
    requests_per_minute: int | None
    tokens_minute: int
    tokens_per_minute: int | None
    requests_hour: int
    requests_per_hour: int | None
    tokens_hour: int
    tokens_per_hour: int | None
    running: int
    concurrency: int | None
    waiting: int
    pace: float
    refusals: int
    refused_at: datetime | None
    default_tokens: int
    backpressure_threshold: float | None
    backpressure_delay_seconds: float | None
    depth_limit: int | None
    features: list[str]
    changed_at: datetime


class ProviderValues(TypedDict, total=False):
    """The settings of a provider. A limit of None means unlimited; settings left out do not change."""

    status: Literal["active", "disabled", "maintenance"]
    requests_per_minute: int | None
    requests_per_hour: int | None
    tokens_per_minute: int | None
    tokens_per_hour: int | None
    concurrency: int | None
    default_tokens: int
    """Estimated tokens of a task that declares none."""
    backpressure_threshold: float | None
    backpressure_delay_seconds: float | None
    depth_limit: int | None
    """While this many tasks wait, new ones are rejected."""
    features: list[str]


@dataclass(frozen=True, slots=True)
class ProviderEvent:
    """A rejection by a provider, or a change of its settings."""

    id: int
    at: datetime
    name: str
    tenant_id: UUID | None
    event: Literal["refused", "exhausted", "opened", "changed"]
    details: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting that all processes share."""

    name: str
    value: Any
    comment: str


@dataclass(frozen=True, slots=True)
class Meter:
    """A unit of usage that is counted, such as tokens."""

    name: str
    period: Literal["day", "month", "total"]
    mode: Literal["observe", "enforce"]
    comment: str


@dataclass(frozen=True, slots=True)
class Plan:
    """A subscription plan. A meter that is not in `limits` is not limited."""

    name: str
    title: str
    comment: str
    features: list[str]
    price: Decimal
    currency: str
    weight: float
    is_active: bool
    limits: dict[str, Decimal | None]


class PlanValues(TypedDict, total=False):
    """The settings of a plan. Those left out do not change; `limits` are replaced as a whole."""

    title: str
    comment: str
    limits: Mapping[str, Amount | None]
    features: list[str]
    price: Amount
    currency: str
    weight: float
    is_active: bool
    position: int


@dataclass(frozen=True, slots=True)
class Limit:
    """A tenant's limit of a meter in the current period."""

    meter: str
    amount: Decimal
    mode: Literal["observe", "enforce"]
    resets_at: datetime | None


@dataclass(frozen=True, slots=True)
class MeterUsage:
    """How much of a meter is used, reserved and left in the current period (`left` None: not limited)."""

    meter: str
    used: Decimal
    held: Decimal
    limit: Decimal | None
    left: Decimal | None
    mode: Literal["observe", "enforce"] | None
    period: Literal["day", "month", "total"]
    resets_at: datetime | None


@dataclass(frozen=True, slots=True)
class UsageStatus:
    """A tenant's plan and its usage."""

    tenant_id: UUID
    plan: str | None
    features: list[str]
    over_limit: bool
    usage: tuple[MeterUsage, ...]

    @classmethod
    def read(cls, document: Mapping[str, Any]) -> UsageStatus:
        """Convert the result of get_usage_status."""
        lines: list[MeterUsage] = []
        for meter, line in document["usage"].items():
            values = _exact(MeterUsage, {"meter": meter, **line}, "used", "held", "limit", "left")
            values["resets_at"] = values["resets_at"] and datetime.fromisoformat(values["resets_at"])
            lines.append(MeterUsage(**values))
        known = _known(cls, document)
        known |= {"tenant_id": UUID(document["tenant_id"]), "usage": tuple(lines)}
        return cls(**known)


@dataclass(frozen=True, slots=True)
class UsageDay:
    """A tenant's usage of a meter on a day (UTC), by action: a task kind, or a name that a caller gave."""

    tenant_id: UUID
    day: date
    action: str
    meter: str
    amount: Decimal


@dataclass(frozen=True, slots=True)
class CostSum:
    """Costs in the base currency, summed by `key`: a day, a provider, a type or an id."""

    key: str
    amount: Decimal
    unit_count: Decimal
    lines: int


@dataclass(frozen=True, slots=True)
class CostDay:
    """The costs of a provider on a day (UTC), in the base currency."""

    day: date
    provider: str
    amount: Decimal


@dataclass(frozen=True, slots=True)
class ExpensiveJob:
    """A job and its cost."""

    id: UUID
    tenant_id: UUID
    type: str
    status: JobStatus
    cost: Decimal
    budget: Decimal | None


@dataclass(frozen=True, slots=True)
class CostEntry:
    """A line of the ledger. `base_amount` is the amount in the base currency, at that day's exchange rate."""

    id: int
    at: datetime
    tenant_id: UUID
    job_id: UUID | None
    task_id: int | None
    provider: str | None
    cost_type: str
    meter: str | None
    unit_count: Decimal | None
    amount: Decimal
    currency: str
    base_amount: Decimal
    corrects: int | None
    reason: str | None


@dataclass(frozen=True, slots=True)
class JobCost:
    """The cost of a job, the amount reserved for its running tasks, and its budget."""

    job_id: UUID
    cost: Decimal
    held: Decimal
    budget: Decimal | None


@dataclass(frozen=True, slots=True)
class Price:
    """The price of one unit of a meter at a provider from a date on; None ends the price."""

    id: int
    provider: str
    tenant_id: UUID | None
    meter: str
    variant: str
    cost_type: str
    amount: Decimal | None
    currency: str
    valid_from: datetime
    valid_until: datetime | None
    is_current: bool


@dataclass(frozen=True, slots=True)
class ComparedPrice:
    """The current price of one unit of a meter at a provider; `place` 1 is the cheapest."""

    meter: str
    variant: str
    provider: str
    tenant_id: UUID | None
    amount: Decimal
    currency: str
    base_amount: Decimal
    place: int


@dataclass(frozen=True, slots=True)
class ExchangeRate:
    """The value of one unit of a currency in the base currency, from a date on."""

    currency: str
    rate: Decimal
    valid_from: datetime


@dataclass(frozen=True, slots=True)
class Artifact:
    """A stored file, from a task or uploaded by a client."""

    id: UUID
    tenant_id: UUID
    job_id: UUID | None
    task_id: int | None
    name: str
    path: str
    content_type: str
    bytes: int
    sha256: str
    created_at: datetime
    stored_at: datetime


@dataclass(frozen=True, slots=True)
class LinkedArtifact(Artifact):
    """A file with a URL; anyone who has the URL can read the file until it expires."""

    url: str = field(repr=False)


def referred(output: Any) -> UUID | None:
    """The id of the file that an output refers to; None if this is the output itself."""
    match output:
        case {"$artifact": {"artifact_id": str() as text}} if len(cast("dict[str, Any]", output)) == 1:
            with suppress(ValueError):
                return UUID(text)
        case _:
            pass
    return None


def failure(job: Job, first: Task | None) -> JobFailed:
    """The error to raise when a job did not complete; `first` is the first task that failed."""
    why = f"; {first.kind}: {first.error_code}: {first.error_message}" if first else ""
    details = {"job_id": str(job.id), "status": job.status}
    return JobFailed(f"job {job.id} {job.status}: {job.status_reason}{why}", details=details)


def exact(amount: Amount | str, field: str = "amount") -> Decimal:
    """An exact amount. Rejects a float, because it may differ from the number that was written."""
    try:
        found = None if isinstance(amount, float | bool) else Decimal(amount)
    except (InvalidOperation, TypeError, ValueError):
        found = None
    if found is None or not found.is_finite():
        raise Invalid(
            f"{field} must be a decimal number (got {amount!r})",
            hint="In Python write Decimal('0.15'): a float is not exact.",
            details={"field": field},
        )
    return found


def _exact(cls: type[Any], document: Mapping[str, Any], *names: str) -> dict[str, Any]:
    values = _known(cls, document)
    return values | {name: None if values[name] is None else Decimal(values[name]) for name in names}


def _known(cls: type[Any], document: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that this version knows: a newer schema may return more."""
    return {field.name: document[field.name] for field in fields(cls) if field.name in document}
