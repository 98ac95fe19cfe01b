"""Types shared by all layers: one frozen class per noun, with the field names of SQL, HTTP and the CLI."""

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
"""An exact amount of money or of a meter; never a float."""

ENDED: frozenset[str] = frozenset({"completed", "failed", "canceled"})
"""Final states of a job, unless it is retried."""

OUTPUT = "output.json"
"""Name of the file for an output that is too large for the database."""


class JobOptions(TypedDict, total=False):
    """Options of a job. Omitted or None values have the database's defaults."""

    tenant_id: UUID | str | None
    idempotency_key: str | None
    """The same key returns the same job. With other parameters it raises Conflict."""
    priority: int | None
    """0 to 10; lower runs first."""
    run_at: datetime | None
    delay_seconds: float | None
    """Start this long after now, by the database's clock, instead of at `run_at`."""
    on_failure: OnFailure | None
    paused: bool | None
    budget: Amount | None
    """Budget in the base currency. The job pauses before it costs more."""
    on_limit: OnLimit | None
    """When the tenant's quota is used up: hold tasks back, fail them, or pause the job."""
    stop_after: int | str | None
    """Pause after this number or percentage of failed tasks, such as 20 or "5%"."""
    digest: str | None
    """Digest of the tasks if they are not known when the key is looked up: see `jobs.start_many`."""


class BulkOptions(JobOptions, total=False):
    """Options of a bulk job."""

    preview: bool | None
    """Run the first batch, and wait for confirmation before applying results and loading more rows."""
    skip_done: bool | None
    """Skip rows that an earlier job of the same type and source completed, matched by key."""
    key: list[str] | None
    """Columns of a row's key (default: the bulk type's)."""


def given(options: JobOptions) -> dict[str, Any]:
    """Encode options for the database, without omitted ones."""
    chosen: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    if (run_at := chosen.get("run_at")) is not None:
        if run_at.tzinfo is None:
            raise Invalid(
                "run_at must have a time zone", code="invalid_options", details={"field": "options.run_at"}
            )
        chosen["run_at"] = run_at.isoformat()
    if "budget" in chosen:
        chosen["budget"] = format(exact(chosen["budget"], "options.budget"), "f")
    if "tenant_id" in chosen:
        chosen["tenant_id"] = str(chosen["tenant_id"])
    return chosen


@dataclass(frozen=True, slots=True)
class Phase:
    """A named part of a job and its weight in the progress."""

    name: str
    weight: float | None
    total: int
    succeeded: int
    failed: int
    canceled: int

    @property
    def done(self) -> int:
        """Tasks that succeeded, failed or were canceled."""
        return self.succeeded + self.failed + self.canceled


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress of a job. Lists of jobs omit the last four fields."""

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
    """A job with its progress."""

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
    """A job's state in an event stream. Its progress has the same fields as in a list."""

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
    """A task of a job, which a worker claims and runs."""

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
    """A failed attempt of a task."""

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
    """Numbers of rows of a bulk job: loaded, refused and skipped."""

    total: int
    loaded: int
    refused: int
    skipped: int
    waiting: int


@dataclass(frozen=True, slots=True)
class Cause:
    """Number of refused rows or failed tasks with the same cause."""

    code: str
    message: str | None
    count: int
    kind: str | None = None
    """Kind of the failed tasks."""
    last_at: datetime | None = None
    """Time of the last failure, if known."""


@dataclass(frozen=True, slots=True)
class Wait:
    """What tasks of a job wait for, other than a free worker."""

    waits_for: str
    reason: str
    tasks: int


@dataclass(frozen=True, slots=True)
class Bulk:
    """A bulk job: a job over the rows of a file or sheet."""

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
    """Number of tasks that wait for confirmation."""
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
    """A row with its state, result and error."""

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
    """Why a row is refused."""

    line: int
    column: str | None
    code: str
    message: str


@dataclass(frozen=True, slots=True)
class SourceCheck:
    """The result of a check: number of rows, and the rows that would be refused."""

    rows: int
    good: int
    problems: list[RowProblem]


@dataclass(frozen=True, slots=True)
class RowsAdded:
    """The result of adding rows."""

    added: int
    refused: int
    known: int
    """Rows whose number already existed."""
    moved: int
    """Known rows with another key than before: rows were inserted or removed in the source."""


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
        """Whether it has sent a heartbeat recently. A late worker may come back."""
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
    """Waiting and running tasks of one lane: a kind, and its provider if it has one."""

    kind: str
    provider: str | None
    waiting: int
    running: int
    oldest_seconds: float | None


@dataclass(frozen=True, slots=True)
class LaneState:
    """A lane with its tasks, the live workers for its kind, and the state of its provider."""

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
    """Tasks that ended in a minute, and how long they waited and ran, in seconds."""

    minute: datetime
    succeeded: int
    failed: int
    wait_p50: float | None
    wait_p95: float | None
    run_p50: float | None
    run_p95: float | None


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem that blocks or slows tasks."""

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
    """State of a tenant's or of all jobs. Counts stop at 100,001 for each lane."""

    at: datetime
    waiting: int
    running: int
    held: int
    """Tasks held back by quotas, budgets or other limits."""
    oldest_seconds: float | None
    failed_hour: int
    """Failures of the last hour, out of the latest 10,000."""
    spent_today: Decimal
    spent_yesterday: Decimal
    currency: str
    causes: tuple[Cause, ...]
    problems: tuple[Problem, ...]
    has_jobs: bool
    workers: WorkerCounts | None = None
    """None for users."""

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
        values["problems"] = tuple(Problem(**_known(Problem, line)) for line in values["problems"])
        if values.get("workers") is not None:
            values["workers"] = WorkerCounts(**_known(WorkerCounts, values["workers"]))
        return cls(**values)


@dataclass(frozen=True, slots=True)
class GraphTask:
    """A task in its job's graph: its dependencies, and the earliest time it could have started."""

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
    """A bulk action on many jobs or dead letters."""

    id: UUID
    actor: str
    verb: JobVerb | LetterVerb
    reason: str | None
    total: int
    done: int
    refused: int
    refusal: str | None
    """Error of the last item that failed."""
    created_at: datetime
    finished_at: datetime | None


@dataclass(frozen=True, slots=True)
class Weight:
    """The scope of an action: number of items, their tasks, and their cost so far or to come."""

    count: int
    """Counted up to 500,001."""
    tasks: int | None
    cost: Decimal
    unpriced: int
    """Tasks with unknown cost."""
    is_part: bool
    """Whether tasks and cost cover only the first thousand items."""


@dataclass(frozen=True, slots=True)
class AuditLine:
    """An entry of the audit log."""

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
    """A tenant: the unit of isolation and billing."""

    id: UUID
    name: str
    weight: float
    is_personal: bool
    created_at: datetime


@dataclass(frozen=True, slots=True)
class TenantShare:
    """A tenant's running tasks, plan and cost in the current month."""

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
    """The caller: a user, a key or the service, and its tenants. For the service no tenants are listed."""

    role: str
    id: UUID | None
    tenants: list[Tenant]


@dataclass(frozen=True, slots=True)
class ApiKey:
    """An API key without its secret. A tenant's key without a role was removed from the tenant."""

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
    """A new API key with its secret, which is shown once."""

    id: UUID
    tenant_id: UUID | None
    prefix: str
    secret: str | None = field(repr=False)


@dataclass(frozen=True, slots=True)
class Forecast:
    """Estimated cost, usage and duration of a job."""

    tasks: int
    units: dict[str, Decimal]
    cost: ForecastCost
    quota: tuple[ForecastQuota, ...]
    finish: ForecastFinish
    budget: ForecastBudget | None = None

    @property
    def fits(self) -> bool:
        """Whether the job fits its budget and the quotas."""
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
    """Estimated cost in the base currency, and the providers without a price."""

    low: Decimal
    expected: Decimal
    high: Decimal
    currency: str
    unpriced: list[str]


@dataclass(frozen=True, slots=True)
class ForecastQuota:
    """What a job needs of a limited meter, and what is left."""

    meter: str
    needs: Decimal
    left: Decimal
    limit: Decimal
    fits: bool


@dataclass(frozen=True, slots=True)
class ForecastFinish:
    """Estimated seconds until a job ends, with a range, or the reason why they are unknown."""

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
    """The budget of a forecast, and whether the job certainly stays within it."""

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
    """Explanation of a job's state and what happens next."""

    status: JobStatus
    text: str
    next: str | None
    task_id: int | None
    """The task that will run next."""
    running: int

    @classmethod
    def read(cls, document: Mapping[str, Any]) -> JobExplanation:
        """Convert the result of explain_job."""
        return cls(**_known(cls, document))


@dataclass(frozen=True, slots=True)
class Provider:
    """A provider with its limits (None: unlimited) and usage in the current windows."""

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
    """Settings of a provider. None removes a limit; omitted values stay unchanged."""

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
    """Number of waiting tasks at which new ones are rejected."""
    features: list[str]


@dataclass(frozen=True, slots=True)
class ProviderEvent:
    """An error or change of a provider."""

    id: int
    at: datetime
    name: str
    tenant_id: UUID | None
    event: Literal["refused", "exhausted", "opened", "changed"]
    details: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting that all workers share."""

    name: str
    value: Any
    comment: str


@dataclass(frozen=True, slots=True)
class Meter:
    """A meter, such as tokens or pages, whose usage is counted."""

    name: str
    period: Literal["day", "month", "total"]
    mode: Literal["observe", "enforce"]
    comment: str


@dataclass(frozen=True, slots=True)
class Plan:
    """A subscription plan. Meters that are not in `limits` are unlimited."""

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
    """Settings of a plan. Omitted values stay unchanged; `limits` are replaced as a whole."""

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
    """Used, reserved and remaining amount of a meter in the current period (None: unlimited)."""

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
    """A tenant's plan and usage."""

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
    """A tenant's usage of a meter on one day (UTC), by action: a task kind, or a name given by the caller."""

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
    """Cost of a provider on one day (UTC) in the base currency."""

    day: date
    provider: str
    amount: Decimal


@dataclass(frozen=True, slots=True)
class DearJob:
    """A job and its cost."""

    id: UUID
    tenant_id: UUID
    type: str
    status: JobStatus
    cost: Decimal
    budget: Decimal | None


@dataclass(frozen=True, slots=True)
class CostEntry:
    """A ledger entry. `base_amount` is the amount in the base currency, at the exchange rate of its day."""

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
    """A job's cost so far, the amount reserved (`held`) for its running tasks, and its budget."""

    job_id: UUID
    cost: Decimal
    held: Decimal
    budget: Decimal | None


@dataclass(frozen=True, slots=True)
class Price:
    """The price of one unit of a meter at a provider, from a date on; None ends the price."""

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
class Rate:
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
    """An exchange rate: the value of one unit of a currency in the base currency, from a date on."""

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
    """A file with a signed URL: anyone who has it can read the file until it expires."""

    url: str = field(repr=False)


def referred(output: Any) -> UUID | None:
    """The artifact id of an output that is stored in a file; None if this is the output itself."""
    match output:
        case {"$artifact": {"artifact_id": str() as text}} if len(cast("dict[str, Any]", output)) == 1:
            with suppress(ValueError):
                return UUID(text)
        case _:
            pass
    return None


def failure(job: Job, first: Task | None) -> JobFailed:
    """The error for an awaited job that did not complete. `first` is the first failed task."""
    why = f"; {first.kind}: {first.error_code}: {first.error_message}" if first else ""
    details = {"job_id": str(job.id), "status": job.status}
    return JobFailed(f"job {job.id} {job.status}: {job.status_reason}{why}", details=details)


def exact(amount: Amount | str, field: str = "amount") -> Decimal:
    """Convert to an exact Decimal. Rejects floats, which are not exact."""
    try:
        found = None if isinstance(amount, float | bool) else Decimal(amount)
    except (InvalidOperation, TypeError, ValueError):
        found = None
    if found is None or not found.is_finite():
        raise Invalid(
            f"{field} must be a decimal number (got {amount!r})",
            hint="In Python, use Decimal('0.15') instead of a float.",
            details={"field": field},
        )
    return found


def _exact(cls: type[Any], document: Mapping[str, Any], *names: str) -> dict[str, Any]:
    values = _known(cls, document)
    return values | {name: None if values[name] is None else Decimal(values[name]) for name in names}


def _known(cls: type[Any], document: Mapping[str, Any]) -> dict[str, Any]:
    """Keep the fields that this version knows, because a newer database may return more."""
    return {field.name: document[field.name] for field in fields(cls) if field.name in document}
