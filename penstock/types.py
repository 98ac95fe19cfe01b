"""What crosses layers: one frozen type per noun, with the names that SQL, HTTP and the command line use."""

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
"""What costs are summed by."""

JobVerb: TypeAlias = Literal["pause", "resume", "cancel", "retry"]
LetterVerb: TypeAlias = Literal["replay", "discard"]

Amount: TypeAlias = Decimal | int
"""Of money or of a meter: exact, and so never a float."""

ENDED: frozenset[str] = frozenset({"completed", "failed", "canceled"})
"""The states in which a job stays, unless it is retried."""

OUTPUT = "output.json"
"""The name of the file that holds an output too large for the database."""


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
    budget: Amount | None
    """What it may cost, in the base currency. It pauses before it costs more."""
    on_limit: OnLimit | None
    """What becomes of a task for which the tenant's quota has no room: it is held back, or fails, or the job
    pauses."""
    stop_after: int | str | None
    """Pause after so many failed tasks, or after a part of them, such as "5%"."""
    digest: str | None
    """Stands for the tasks where they are not at hand when the key is looked up: see `jobs.start_many`."""


class BulkOptions(JobOptions, total=False):
    """How a bulk job is started, apart from its rows."""

    preview: bool | None
    """Load the first batch, and wait for a confirmation before anything is applied or more is loaded."""
    skip_done: bool | None
    """Leave out rows whose key succeeded in an earlier job of the same type and source."""
    key: list[str] | None
    """The columns that make a row's key, in place of the type's."""


def given(options: JobOptions) -> dict[str, Any]:
    """Options as the database takes them, without those that are not given."""
    chosen: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    if (run_at := chosen.get("run_at")) is not None:
        if run_at.tzinfo is None:
            raise Invalid(
                "run_at has no time zone", code="invalid_options", details={"field": "options.run_at"}
            )
        chosen["run_at"] = run_at.isoformat()
    if "budget" in chosen:
        chosen["budget"] = format(exact(chosen["budget"], "options.budget"), "f")
    if "tenant_id" in chosen:
        chosen["tenant_id"] = str(chosen["tenant_id"])
    return chosen


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
    docs_complete: int
    docs_total: int
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
class JobChange:
    """What a stream of events says of a job. Of its progress it says what a list does."""

    id: UUID
    type: str
    status: JobStatus
    status_reason: str | None
    progress: Progress

    @property
    def is_ended(self) -> bool:
        """Whether it is over."""
        return self.status in ENDED


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
    """How many rows a bulk job has, and what became of them before they had tasks."""

    total: int
    loaded: int
    refused: int
    skipped: int
    waiting: int


@dataclass(frozen=True, slots=True)
class Cause:
    """Rows that were refused, or tasks that failed, for one reason."""

    code: str
    message: str | None
    count: int
    kind: str | None = None
    """Of tasks: their kind."""
    last_at: datetime | None = None
    """When the last of them failed, where that is told."""


@dataclass(frozen=True, slots=True)
class Wait:
    """What tasks of a job wait for, other than their turn."""

    waits_for: str
    reason: str
    tasks: int


@dataclass(frozen=True, slots=True)
class Bulk:
    """A job whose tasks are made from rows."""

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
    """How many tasks wait for a confirmation."""
    cost: Decimal
    budget: Decimal | None
    applied: int
    undone: int
    waits: tuple[Wait, ...]
    problems: tuple[Cause, ...]
    failures: tuple[Cause, ...]

    @classmethod
    def read(cls, document: Mapping[str, Any]) -> Bulk:
        """From the document of get_bulk."""
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
    """A row, and what became of it."""

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
    """What is in a source, and the rows that would be refused."""

    rows: int
    good: int
    problems: list[RowProblem]


@dataclass(frozen=True, slots=True)
class RowsAdded:
    """What became of rows that were sent."""

    added: int
    refused: int
    known: int
    """Their numbers were there already."""
    moved: int
    """Of these, with another key: the source has changed above its end."""


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
class Run:
    """A task that a worker runs now."""

    job_id: UUID
    task_id: int
    kind: str
    key: str | None
    started_at: datetime
    fraction: float | None
    message: str | None


@dataclass(frozen=True, slots=True)
class Lane:
    """How much work waits in one lane."""

    kind: str
    provider: str | None
    waiting: int
    running: int
    oldest_seconds: float | None


@dataclass(frozen=True, slots=True)
class LaneState:
    """A lane: its work, the live workers for its kind, and whether its provider takes work."""

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
    """What ended in a minute, and how long it waited and ran, in seconds."""

    minute: datetime
    succeeded: int
    failed: int
    wait_p50: float | None
    wait_p95: float | None
    run_p50: float | None
    run_p95: float | None


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that stands in the way of work, or of how much of it."""

    about: Literal["maintenance", "worker", "provider", "quota"]
    text: str
    subject: str | None = None
    count: int | None = None


@dataclass(frozen=True, slots=True)
class WorkerCounts:
    """How many workers there are."""

    alive: int
    late: int
    gone: int
    slots: int


@dataclass(frozen=True, slots=True)
class Overview:
    """How it goes, for a tenant or for all. Counts stop at 100,001 for each lane."""

    at: datetime
    waiting: int
    running: int
    held: int
    """Held back by quotas, budgets and the like."""
    oldest_seconds: float | None
    failed_hour: int
    """Of the latest 10,000 failures, those of the last hour."""
    spent_today: Decimal
    spent_yesterday: Decimal
    currency: str
    causes: tuple[Cause, ...]
    problems: tuple[Problem, ...]
    has_jobs: bool
    workers: WorkerCounts | None = None
    """Not told to users."""

    @classmethod
    def read(cls, document: Mapping[str, Any]) -> Overview:
        """From the document of overview."""
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
    """A task in its job's graph: what it comes after, and when it could have begun."""

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
    """One thing done to many jobs or dead letters."""

    id: UUID
    actor: str
    verb: JobVerb | LetterVerb
    reason: str | None
    total: int
    done: int
    refused: int
    refusal: str | None
    """Why the last one that was refused was."""
    created_at: datetime
    finished_at: datetime | None


@dataclass(frozen=True, slots=True)
class Weight:
    """What an action is about: how many things, their tasks, and their money so far or to come."""

    count: int
    """Counted up to 500,001."""
    tasks: int | None
    cost: Decimal
    unpriced: int
    """Tasks of which it is not known what they cost."""
    is_part: bool
    """Whether tasks and money are those of the first thousand only."""


@dataclass(frozen=True, slots=True)
class AuditLine:
    """Who did what."""

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
    """The unit of isolation, plan and bill."""

    id: UUID
    name: str
    weight: float
    is_personal: bool
    created_at: datetime


@dataclass(frozen=True, slots=True)
class TenantShare:
    """What of the running tasks is a tenant's, its plan, and what it spent since the month began."""

    tenant_id: UUID
    plan: str | None
    running: int
    spent: Decimal


@dataclass(frozen=True, slots=True)
class Member:
    """A user, or an API key, in a tenant."""

    tenant_id: UUID
    user_id: UUID
    role: Role
    created_at: datetime


@dataclass(frozen=True, slots=True)
class Me:
    """Who is asking: a user or a key by its id, or the service. Of the service no tenants are listed."""

    role: str
    id: UUID | None
    tenants: list[Tenant]


@dataclass(frozen=True, slots=True)
class ApiKey:
    """A key for programs, without its secret. A tenant's key that has no role was removed from the tenant."""

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
    """A key that was just made. Nobody sees the secret again."""

    id: UUID
    tenant_id: UUID | None
    prefix: str
    secret: str | None = field(repr=False)


@dataclass(frozen=True, slots=True)
class Forecast:
    """What a job will cost, use and take, as far as that is known."""

    tasks: int
    units: dict[str, Decimal]
    cost: ForecastCost
    quota: tuple[ForecastQuota, ...]
    finish: ForecastFinish
    budget: ForecastBudget | None = None

    @property
    def fits(self) -> bool:
        """Whether nothing of it has to wait for a quota or a budget."""
        return all(line.fits for line in self.quota) and (self.budget is None or self.budget.fits)

    @classmethod
    def read(cls, document: Mapping[str, Any]) -> Forecast:
        """From the document of forecast_job and forecast."""
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
    """A range of money in the base currency, and the providers in it that have no price."""

    low: Decimal
    expected: Decimal
    high: Decimal
    currency: str
    unpriced: list[str]


@dataclass(frozen=True, slots=True)
class ForecastQuota:
    """What a job needs of a meter that is limited, and what is left of it now."""

    meter: str
    needs: Decimal
    left: Decimal
    limit: Decimal
    fits: bool


@dataclass(frozen=True, slots=True)
class ForecastFinish:
    """In how many seconds a job ends, with a range; without them the reason why that is not known."""

    seconds: float | None
    low: float | None
    high: float | None
    at: datetime | None
    workers: int
    bottleneck: str | None
    reason: str | None

    @classmethod
    def read(cls, document: Mapping[str, Any]) -> ForecastFinish:
        """From a part of a forecast."""
        values = _known(cls, document)
        for name in ("seconds", "low", "high"):
            values[name] = None if values[name] is None else float(values[name])
        values["at"] = values["at"] and datetime.fromisoformat(values["at"])
        values["workers"] = int(values["workers"])
        return cls(**values)


@dataclass(frozen=True, slots=True)
class ForecastBudget:
    """The budget that a forecast was asked for, and whether the job stays within it for sure."""

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
        """From the document of explain_task."""
        return cls(**_known(cls, document))


@dataclass(frozen=True, slots=True)
class JobExplanation:
    """How a job stands, and what happens next."""

    status: JobStatus
    text: str
    next: str | None
    task_id: int | None
    """The task that is nearest to its turn."""
    running: int

    @classmethod
    def read(cls, document: Mapping[str, Any]) -> JobExplanation:
        """From the document of explain_job."""
        return cls(**_known(cls, document))


@dataclass(frozen=True, slots=True)
class Provider:
    """A provider's endpoint: its limits (None: none), and what of them is in use in the present windows."""

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
    """What can be set of a provider. A limit that is None is none; what is left out stays as it is."""

    status: Literal["active", "disabled", "maintenance"]
    requests_per_minute: int | None
    requests_per_hour: int | None
    tokens_per_minute: int | None
    tokens_per_hour: int | None
    concurrency: int | None
    default_tokens: int
    """The estimate for a task that does not say how many tokens it needs."""
    backpressure_threshold: float | None
    backpressure_delay_seconds: float | None
    depth_limit: int | None
    """With so many tasks waiting, more are refused."""
    features: list[str]


@dataclass(frozen=True, slots=True)
class ProviderEvent:
    """What a provider refused, or who changed it."""

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
    """A thing that is counted."""

    name: str
    period: Literal["day", "month", "total"]
    mode: Literal["observe", "enforce"]
    comment: str


@dataclass(frozen=True, slots=True)
class Plan:
    """What a tenant may pay for. A meter that is not in `limits` is not limited."""

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
    """What can be set of a plan. What is left out stays as it is; `limits` are replaced as a whole."""

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
    """What a tenant may use of a meter in the present period."""

    meter: str
    amount: Decimal
    mode: Literal["observe", "enforce"]
    resets_at: datetime | None


@dataclass(frozen=True, slots=True)
class MeterUsage:
    """What of a meter is used and set aside in the present period, and what is left (None: not limited)."""

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
    """A tenant's plan, and where it stands."""

    tenant_id: UUID
    plan: str | None
    features: list[str]
    over_limit: bool
    usage: tuple[MeterUsage, ...]

    @classmethod
    def read(cls, document: Mapping[str, Any]) -> UsageStatus:
        """From the document of get_usage_status."""
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
    """What a tenant used of a meter in a day (UTC), for an action: a kind of task, or what a caller named."""

    tenant_id: UUID
    day: date
    action: str
    meter: str
    amount: Decimal


@dataclass(frozen=True, slots=True)
class CostSum:
    """Costs in the base currency. `key` is what they were summed by: a day, a provider, a type, an id."""

    key: str
    amount: Decimal
    unit_count: Decimal
    lines: int


@dataclass(frozen=True, slots=True)
class CostDay:
    """What was spent at a provider in a day (UTC), in the base currency."""

    day: date
    provider: str
    amount: Decimal


@dataclass(frozen=True, slots=True)
class DearJob:
    """A job and what it has cost."""

    id: UUID
    tenant_id: UUID
    type: str
    status: JobStatus
    cost: Decimal
    budget: Decimal | None


@dataclass(frozen=True, slots=True)
class CostEntry:
    """A line of the ledger. `base_amount` is the amount in the base currency, at the rate of its day."""

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
    """What a job has cost, what is set aside for its running tasks, and its budget."""

    job_id: UUID
    cost: Decimal
    held: Decimal
    budget: Decimal | None


@dataclass(frozen=True, slots=True)
class Price:
    """What one unit of a meter costs at a provider, from a date on; None: it has no price from then on."""

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
    """What one unit of a meter costs at a provider now; `place` 1 is the cheapest."""

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
    """What one unit of a currency is worth in the base currency, from a date on."""

    currency: str
    rate: Decimal
    valid_from: datetime


@dataclass(frozen=True, slots=True)
class Artifact:
    """A file in storage: of a task, or uploaded by a client."""

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
    """A file with an address: whoever has it can read the file until it expires."""

    url: str = field(repr=False)


def referred(output: Any) -> UUID | None:
    """The file that holds an output too large for the database; None if this is the output itself."""
    match output:
        case {"$artifact": {"artifact_id": str() as text}} if len(cast("dict[str, Any]", output)) == 1:
            with suppress(ValueError):
                return UUID(text)
        case _:
            pass
    return None


def failure(job: Job, first: Task | None) -> JobFailed:
    """What to raise when a job that was awaited did not complete; `first` is the first task that failed."""
    why = f"; {first.kind}: {first.error_code}: {first.error_message}" if first else ""
    details = {"job_id": str(job.id), "status": job.status}
    return JobFailed(f"job {job.id} {job.status}: {job.status_reason}{why}", details=details)


def exact(amount: Amount | str, field: str = "amount") -> Decimal:
    """An amount as it was meant. A float is refused: what it holds is not what was written."""
    try:
        found = None if isinstance(amount, float | bool) else Decimal(amount)
    except (InvalidOperation, TypeError, ValueError):
        found = None
    if found is None or not found.is_finite():
        raise Invalid(
            f"{field} is not a decimal number: {amount!r}",
            hint="Write Decimal('0.15') in Python.",
            details={"field": field},
        )
    return found


def _exact(cls: type[Any], document: Mapping[str, Any], *names: str) -> dict[str, Any]:
    values = _known(cls, document)
    return values | {name: None if values[name] is None else Decimal(values[name]) for name in names}


def _known(cls: type[Any], document: Mapping[str, Any]) -> dict[str, Any]:
    """The fields this version knows: a newer database may say more."""
    return {field.name: document[field.name] for field in fields(cls) if field.name in document}
