"""Jobs over HTTP, with their tasks."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal, Required
from uuid import UUID

from fastapi import Body, Header, Path, Query, Request, Response
from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictFloat
from typing_extensions import TypedDict

from penstock import artifacts, costs, jobs
from penstock.api.artifacts import ArtifactAnswer, linked
from penstock.api.fields import NUMERIC, Asked, Instant, Money, StopAfter
from penstock.api.limits import MOST_PER_PAGE
from penstock.api.pages import (
    LARGEST,
    LimitQuery,
    NumberCursor,
    Page,
    TenantQuery,
    UuidCursor,
    filter_query,
    page,
)
from penstock.api.routes import Held, StartRoute, router, tag_of
from penstock.app import App
from penstock.errors import Invalid, NotFound
from penstock.types import (
    Attempt,
    Explanation,
    Forecast,
    Job,
    JobCost,
    JobStatus,
    OnFailure,
    OnLimit,
    Phase,
    Progress,
    Task,
    TaskStatus,
)

routes = router("jobs")
start_routes = router("jobs", StartRoute)

TaskId = Annotated[int, Path(ge=1, le=LARGEST)]
AttemptCursor = Annotated[
    str | None, Query(pattern="^[0-9]{1,16}-[0-9]{1,16}$", description="`next` of the page before.")
]


class TaskRequest(TypedDict, total=False):
    """A task. Here its types are checked; the rules are `start_job`'s, and so are the words for them."""

    __pydantic_config__ = ConfigDict(  # pyright: ignore[reportGeneralTypeIssues]
        extra="allow", json_schema_extra={"additionalProperties": False}
    )

    kind: Required[str]
    key: str | None
    input: dict[str, Any] | None
    after: list[str] | None
    after_failure: Literal["cancel", "run"] | None
    phase: str | None
    provider: str | None
    units: dict[str, Any] | None
    priority: Annotated[int, Field(ge=0, le=10), NUMERIC] | None
    run_at: Annotated[str, Field(json_schema_extra={"format": "date-time"})] | None
    max_attempts: Annotated[int, Field(ge=1, le=100), NUMERIC] | None
    timeout_seconds: StrictFloat | None
    idempotency_key: str | None
    route: dict[str, Any] | None
    confirm: bool | None


class JobRequest(Asked):
    """A job to start or to forecast."""

    type: str = Field(examples=["report"])
    params: dict[str, Any] = Field(default_factory=dict[str, Any])
    tasks: list[TaskRequest] | None = Field(
        None,
        description="Left out, they are those that the app draws for this type, if the API was started with "
        "one.",
        examples=[[{"kind": "text", "key": "a"}, {"kind": "pdf", "after": ["a"]}]],
    )
    tenant_id: UUID | None = None
    priority: Annotated[int, Field(ge=0, le=10), NUMERIC] | None = None
    run_at: Instant | None = None
    delay_seconds: StrictFloat | None = None
    on_failure: OnFailure | None = None
    on_limit: OnLimit | None = None
    stop_after: StopAfter | None = None
    paused: StrictBool | None = None
    budget: Money | None = None

    def arguments(self, app: App | None) -> dict[str, Any]:
        """What `jobs.start` and `jobs.forecast` take."""
        given = self.model_dump(exclude={"tasks"})
        tasks = self.tasks
        if tasks is None and app is not None:
            tasks = app.draw(self.type, self.params)
        if tasks is None:
            raise Invalid("a job needs at least one task", code="no_tasks", details={"field": "tasks"})
        return {**given, "tasks": tasks}


class JobStarted(BaseModel):
    """The job that was made, or that the same key had made before."""

    id: UUID


class JobProgress(BaseModel):
    """How far a job is."""

    percent: int
    phase: str
    docsComplete: int = Field(description="Documents, or rows, that are through all phases of their own.")
    docsTotal: int = Field(description="As many as the largest phase has tasks.")
    done: int = Field(description="Tasks that have ended.")
    total: int
    message: str | None
    succeeded: int
    failed: int
    canceled: int
    running: int | None
    eta_seconds: float | None
    phases: tuple[Phase, ...]

    @classmethod
    def of(cls, progress: Progress) -> JobProgress:
        """With the names that clients know."""
        values = {name: getattr(progress, name) for name in cls.model_fields if hasattr(progress, name)}
        return cls(**values, docsComplete=progress.docs_complete, docsTotal=progress.docs_total)


class JobAnswer(BaseModel):
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
    progress: JobProgress

    @classmethod
    def of(cls, job: Job) -> JobAnswer:
        """With the names that clients know."""
        values = {name: getattr(job, name) for name in cls.model_fields if name != "progress"}
        return cls(**values, progress=JobProgress.of(job.progress))


class JobDetail(JobAnswer):
    """A job with its progress and its files."""

    artifacts: list[ArtifactAnswer] = Field(description="The first of its files, each with a fresh URL.")


class Status(BaseModel):
    """The job's status now."""

    status: JobStatus


class Count(BaseModel):
    """How many it were."""

    count: int


class Reason(Asked):
    """Why, for people."""

    reason: str | None = Field(None, max_length=1000)


class Budget(Asked):
    """What a job may cost, in the base currency; null: anything."""

    amount: Money | None


class Tasks(Asked):
    """Tasks to add to a job."""

    tasks: list[TaskRequest] = Field(min_length=1, examples=[[{"kind": "text"}]])


class TaskIds(BaseModel):
    """The tasks that were added."""

    ids: list[int]


@start_routes.post("/jobs/start", status_code=201)
async def start_job(
    request: Request,
    held: Held,
    job: JobRequest,
    idempotency_key: Annotated[
        str | None,
        Header(min_length=1, max_length=255, description="The same key gives the same job in a tenant."),
    ] = None,
) -> JobStarted:
    """Make a job and its tasks."""
    arguments = job.arguments(request.app.state.app)
    return JobStarted(id=await jobs.start(held, **arguments, idempotency_key=idempotency_key))


@routes.post("/jobs/forecast")
async def forecast_job(request: Request, held: Held, job: JobRequest) -> Forecast:
    """What this job would cost, use and take. Nothing is started."""
    return await jobs.forecast(held, **job.arguments(request.app.state.app))


@routes.get("/jobs")
async def list_jobs(
    held: Held,
    filter: Annotated[str, filter_query("status:failed type:publish age:<1d")] = "",
    tenant_id: TenantQuery = None,
    cursor: UuidCursor = None,
    limit: LimitQuery = 50,
) -> Page[JobAnswer]:
    """Jobs, newest first. Fields to filter by: id, status, type, tenant, age."""
    found = await jobs.list(held, filter=filter, tenant_id=tenant_id, before=cursor, limit=limit + 1)
    return page([JobAnswer.of(job) for job in found], limit, lambda job: job.id)


@routes.get("/jobs/{job_id:uuid}")
async def get_job(request: Request, response: Response, held: Held, job_id: UUID) -> JobDetail:
    """A job with its progress and its files."""
    job = JobAnswer.of(await jobs.get(held, job_id=job_id))
    files = await artifacts.list(held, job_id=job_id, limit=MOST_PER_PAGE)
    # Not of the URLs, which are others each time.
    response.headers["ETag"] = tag_of(f"{job.model_dump_json()} {[file.id for file in files]}".encode())
    return JobDetail(**dict(job), artifacts=await linked(request, files))


@routes.post("/jobs/{job_id:uuid}/pause")
async def pause_job(held: Held, job_id: UUID, why: Annotated[Reason | None, Body()] = None) -> Status:
    """Start nothing more of the job; what runs ends normally."""
    status: Any = await jobs.pause(held, job_id=job_id, reason=why and why.reason)
    return Status(status=status)


@routes.post("/jobs/{job_id:uuid}/resume")
async def resume_job(held: Held, job_id: UUID) -> Status:
    """Take a paused job up again."""
    status: Any = await jobs.resume(held, job_id=job_id)
    return Status(status=status)


@routes.post("/jobs/{job_id:uuid}/cancel")
async def cancel_job(held: Held, job_id: UUID, why: Annotated[Reason | None, Body()] = None) -> Status:
    """End the job now."""
    status: Any = await jobs.cancel(held, job_id=job_id, reason=why and why.reason)
    return Status(status=status)


@routes.post("/jobs/{job_id:uuid}/confirm")
async def confirm_job(held: Held, job_id: UUID) -> Count:
    """Let the tasks run that wait for a confirmation."""
    return Count(count=await jobs.confirm(held, job_id=job_id))


@routes.post("/jobs/{job_id:uuid}/retry")
async def retry_job(held: Held, job_id: UUID) -> Count:
    """Run its failed tasks again, and what was canceled because of them."""
    return Count(count=await jobs.retry(held, job_id=job_id))


@routes.get("/jobs/{job_id:uuid}/forecast")
async def forecast_rest(held: Held, job_id: UUID) -> Forecast:
    """What is left of a job will cost, use and take."""
    return await jobs.forecast_rest(held, job_id=job_id)


@routes.get("/jobs/{job_id:uuid}/costs")
async def get_job_costs(held: Held, job_id: UUID) -> JobCost:
    """What a job has cost so far, and its budget."""
    return await costs.of_job(held, job_id=job_id)


@routes.put("/jobs/{job_id:uuid}/budget", status_code=204)
async def set_budget(held: Held, job_id: UUID, budget: Budget) -> Response:
    """Change what a job may cost. One that paused for it goes on."""
    await costs.set_budget(held, job_id=job_id, amount=budget.amount)
    return Response(status_code=204)


@routes.get("/jobs/{job_id:uuid}/tasks")
async def list_tasks(
    held: Held,
    job_id: UUID,
    status: TaskStatus | None = None,
    kind: Annotated[str | None, Query(max_length=200)] = None,
    cursor: NumberCursor = None,
    limit: LimitQuery = 50,
) -> Page[Task]:
    """A job's tasks in the order they were made."""
    await jobs.get(held, job_id=job_id)
    found = await jobs.tasks(held, job_id=job_id, status=status, kind=kind, after=cursor, limit=limit + 1)
    return page(found, limit, lambda task: task.id)


@routes.post("/jobs/{job_id:uuid}/tasks", status_code=201)
async def add_tasks(held: Held, job_id: UUID, more: Tasks) -> TaskIds:
    """Add tasks to a job that has not ended."""
    return TaskIds(ids=await jobs.add_tasks(held, job_id=job_id, tasks=more.tasks))


@routes.get("/jobs/{job_id:uuid}/tasks/{task_id}")
async def get_task(held: Held, job_id: UUID, task_id: TaskId) -> Task:
    """One task, with its input and output."""
    found = await jobs.tasks(held, job_id=job_id, after=task_id - 1, limit=1)
    if not found or found[0].id != task_id:
        raise NotFound("there is no such task", code="unknown_task")
    return found[0]


@routes.get("/jobs/{job_id:uuid}/tasks/{task_id}/why")
async def explain_task(held: Held, job_id: UUID, task_id: TaskId) -> Explanation:
    """Why a task is not running: what it waits for, about how long, and its place in line."""
    return await jobs.explain(held, job_id=job_id, task_id=task_id)


@routes.get("/jobs/{job_id:uuid}/attempts")
async def list_attempts(
    held: Held,
    job_id: UUID,
    task_id: Annotated[int | None, Query(ge=1, le=LARGEST)] = None,
    cursor: AttemptCursor = None,
    limit: LimitQuery = 50,
) -> Page[Attempt]:
    """The attempts at its tasks, or at one of them, that did not succeed."""
    await jobs.get(held, job_id=job_id)
    task, _, lease = (cursor or "0-0").partition("-")
    found = await jobs.attempts(
        held, job_id=job_id, task_id=task_id, after=(int(task), int(lease)), limit=limit + 1
    )
    return page(found, limit, lambda attempt: f"{attempt.task_id}-{attempt.lease}")
