"""Jobs and tasks over HTTP."""

from __future__ import annotations

from typing import Annotated, Any, cast
from uuid import UUID

import pydantic_core
from fastapi import Body, Header, Path, Query, Request, Response
from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from penstock import tracing
from penstock.api.artifacts import ArtifactResponse, linked, storage_of
from penstock.api.callers import Caller, Callers
from penstock.api.fields import Money, RequestModel, with_fields_of
from penstock.api.isolated import DrawnTasks, Isolated
from penstock.api.limits import MAX_PER_PAGE
from penstock.api.options import as_task_request, with_options
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
from penstock.api.routes import Calls, Conn, DirectRoute, Route, StartRoute, router, tag_of
from penstock.contract import artifacts, costs, jobs
from penstock.errors import Invalid, NotFound
from penstock.sdk.app import App
from penstock.types import (
    Artifact,
    Attempt,
    Explanation,
    Forecast,
    Job,
    JobCost,
    JobOptions,
    JobStatus,
    Phase,
    Progress,
    Task,
    TaskOptions,
    TaskStatus,
)

TASKS_PER_REQUEST = 20
"""Drawn tasks that count as one request."""

MAX_INLINE_RESULT = 64 * 1024

_ARTIFACTS = TypeAdapter(list[Artifact])

TaskId = Annotated[int, Path(ge=1, le=LARGEST)]
AttemptCursor = Annotated[
    str | None, Query(pattern="^[0-9]{1,16}-[0-9]{1,16}$", description="`next` of the previous page.")
]


@as_task_request
class TaskRequest(TaskOptions):
    """A task. Only types are checked here; `start_job` checks the rules and words the errors."""


@with_options(JobOptions)
class JobRequest(RequestModel):
    """A job to start or forecast."""

    type: str = Field(examples=["report"])
    params: dict[str, Any] = Field(default_factory=dict[str, Any])
    tasks: list[TaskRequest] | None = Field(
        None,
        description="Default: the tasks that the app defines for this type, if the API was started with one.",
        examples=[[{"kind": "text", "key": "a"}, {"kind": "pdf", "after": ["a"]}]],
    )

    def arguments(self, request: Request) -> dict[str, Any]:
        """The arguments for `jobs.start` and `jobs.forecast`."""
        given = self.model_dump(exclude={"tasks"})
        if self.tasks is not None:
            return {**given, "tasks": self.tasks}
        drawn: DrawnTasks | None = getattr(request.state, "drawn", None)
        if drawn is not None:
            return {**given, "tasks": drawn.tasks, "result": drawn.result}
        app: App | None = request.app.state.app
        if app is not None:
            raise app.unknown_type(self.type)
        raise Invalid(
            f"unknown job type {self.type[:200]!r}: this server was started without an app",
            code="no_tasks",
            hint="To start jobs by type, name your app: penstock serve MODULE:APP",
            details={"field": "tasks"},
        )


class DrawingRoute(Route):
    """A route for a job whose tasks the app draws, if the request has none.

    The body of the job type runs before the transaction, so that it holds no connection, and only for callers
    who may start the job.
    """

    async def prepare(self, request: Request, sent: Any) -> None:
        if not isinstance(sent, dict) or cast("dict[str, Any]", sent).get("tasks") is not None:
            return
        try:
            job = JobRequest.model_validate(sent)
        except ValidationError:
            # The handler validates the request again and words the error.
            return
        isolated: Isolated = request.app.state.isolated
        app: App | None = request.app.state.app
        if app is None or not app.can_draw(job.type):
            return
        callers: Callers = request.app.state.callers
        caller: Caller = request.state.caller
        tenant = await callers.require_tenant(caller, job.model_dump(include={"tenant_id"})["tenant_id"])
        with callers.counting(caller):
            drawn = await isolated.draw(job.type, job.params, tenant=tenant, caller=caller.name)
        if drawn is not None:
            request.state.drawn = drawn
            callers.charge(caller, drawn.count / TASKS_PER_REQUEST)


class StartJobRoute(DrawingRoute, StartRoute):
    """The same for a route whose SQL function stores the idempotency key, in one statement."""

    has_one_statement = True


class JobStarted(BaseModel):
    """The started job, or the existing job with the same idempotency key."""

    id: UUID


class JobProgress(BaseModel):
    """Progress of a job."""

    percent: int
    phase: str
    docsComplete: int = Field(description="Documents or rows that have completed all their phases.")
    docsTotal: int = Field(description="Number of tasks in the largest phase.")
    done: int = Field(description="Tasks that succeeded, failed or were canceled.")
    total: int
    message: str | None
    succeeded: int
    failed: int
    canceled: int
    running: int | None
    waiting: int | None = Field(description="Tasks that wait for an answer, an event or a time.")
    eta_seconds: float | None
    phases: tuple[Phase, ...]

    @classmethod
    def of(cls, progress: Progress) -> JobProgress:
        """Convert to the field names of the API."""
        values = {name: getattr(progress, name) for name in cls.model_fields if hasattr(progress, name)}
        return cls(**values, docsComplete=progress.docs_complete, docsTotal=progress.docs_total)


@with_fields_of(Job, progress=JobProgress)
class JobResponse(BaseModel):
    """A job with its progress."""

    id: UUID

    @classmethod
    def of(cls, job: Job) -> JobResponse:
        """Convert to the field names of the API."""
        values: dict[str, Any] = {name: getattr(job, name) for name in cls.model_fields}
        values["progress"] = JobProgress.of(job.progress)
        return cls(**values)


class JobDetail(JobResponse):
    """A job with its progress, files and result."""

    artifacts: list[ArtifactResponse] = Field(description="The job's first files, each with a new URL.")
    result: Any = Field(
        description="Result of a completed job: what its body returned, or the output of its last task. Null "
        "before that, for a bulk job, and if larger than 64 kB: see `result_url`."
    )
    result_url: str | None = Field(description="Path of the whole result, once the job has completed.")

    @classmethod
    async def read(cls, request: Request, document: dict[str, Any]) -> JobDetail:
        """Convert the result of get_job_detail to the field names of the API, and sign the files' URLs."""
        progress = document["progress"]
        progress |= {
            "docsComplete": progress["docs_complete"],
            "docsTotal": progress["docs_total"],
            "phases": progress["phases"] or (),
        }
        is_completed = document["status"] == "completed"
        return cls.model_validate(
            document
            | {
                "artifacts": await linked(request, _ARTIFACTS.validate_python(document["artifacts"])),
                "result_url": f"/api/jobs/{document['id']}/result" if is_completed else None,
            }
        )


class JobResult(BaseModel):
    """The result of a job."""

    status: JobStatus
    result: Any = Field(description="What the job's body returned, or the output of its last task.")


class Status(BaseModel):
    """The job's new status."""

    status: JobStatus


class Count(BaseModel):
    """Number affected."""

    count: int


class Reason(RequestModel):
    """Reason, shown to people."""

    reason: str | None = Field(None, max_length=1000)


class Budget(RequestModel):
    """Budget of a job in the base currency; null for no budget."""

    amount: Money | None


class Tasks(RequestModel):
    """Tasks to add to a job."""

    tasks: list[TaskRequest] = Field(min_length=1, examples=[[{"kind": "text"}]])


class TaskIds(BaseModel):
    """Ids of the added tasks."""

    ids: list[int]


routes = router("jobs")
forecast_routes = router("jobs", DrawingRoute)
start_routes = router("jobs", StartJobRoute)
read_routes = router("jobs", DirectRoute)


@start_routes.post("/jobs/start", status_code=201)
async def start_job(
    request: Request,
    calls: Calls,
    job: JobRequest,
    idempotency_key: Annotated[
        str | None,
        Header(min_length=1, max_length=255, description="The same key returns the same job of the tenant."),
    ] = None,
    traceparent: Annotated[
        str | None,
        Header(max_length=255, description="W3C trace context: attempts are linked to it."),
    ] = None,
) -> JobStarted:
    """Start a job. Without `tasks`, the app draws them."""
    arguments: dict[str, Any] = {
        **job.arguments(request), "idempotency_key": idempotency_key
    }  # fmt: skip
    with tracing.sending(job.type, traceparent) as arguments["traceparent"]:
        if job.tasks is not None:
            return JobStarted(id=await jobs.start(calls, **arguments))
        # Tasks that the app drew are trusted; tasks that a user wrote are checked by start_job.
        async with request.app.state.callers.acting_for(request.state.caller) as (service, user_id):
            return JobStarted(id=await jobs.start_drawn(service, user_id=user_id, **arguments))


@forecast_routes.post("/jobs/forecast")
async def forecast_job(request: Request, conn: Conn, job: JobRequest) -> Forecast:
    """Forecast a job's cost, usage and duration without starting it."""
    return await jobs.forecast(conn, **job.arguments(request))


@routes.get("/jobs")
async def list_jobs(
    conn: Conn,
    filter: Annotated[str, filter_query("status:failed type:publish age:<1d")] = "",
    tenant_id: TenantQuery = None,
    cursor: UuidCursor = None,
    limit: LimitQuery = 50,
) -> Page[JobResponse]:
    """List jobs, newest first. Filter by id, status, type, tenant or age."""
    found = await jobs.list(conn, filter=filter, tenant_id=tenant_id, before=cursor, limit=limit + 1)
    return page([JobResponse.of(job) for job in found], limit, lambda job: job.id)


@read_routes.get("/jobs/{job_id:uuid}", response_model=JobDetail)
async def get_job(request: Request, calls: Calls, job_id: UUID) -> Response:
    """Get a job with its progress, files and result."""
    found = await jobs.detail(
        calls, job_id=job_id, max_artifacts=MAX_PER_PAGE, max_result_bytes=MAX_INLINE_RESULT
    )
    job = await JobDetail.read(request, pydantic_core.from_json(found))
    # Excludes the URLs, which differ each time.
    headers = {"ETag": tag_of(found.encode())}
    return Response(job.model_dump_json(), headers=headers, media_type="application/json")


@routes.get("/jobs/{job_id:uuid}/result")
async def get_job_result(request: Request, conn: Conn, job_id: UUID) -> JobResult:
    """Get the result of a completed job, of any size: null before that and for a bulk job."""
    job = await jobs.get(conn, job_id=job_id)
    found = await jobs.result(conn, job_id=job_id)
    return JobResult(
        status=job.status,
        result=await artifacts.expanded_result(conn, _Files(request), job_id=job_id, result=found),
    )


class _Files:
    """The server's storage, as `expanded_result` reads it."""

    def __init__(self, request: Request) -> None:
        self.storage = storage_of(request)


@routes.post("/jobs/{job_id:uuid}/pause")
async def pause_job(conn: Conn, job_id: UUID, why: Annotated[Reason | None, Body()] = None) -> Status:
    """Pause a job: start no more of its tasks. Running tasks finish."""
    status: Any = await jobs.pause(conn, job_id=job_id, reason=why and why.reason)
    return Status(status=status)


@routes.post("/jobs/{job_id:uuid}/resume")
async def resume_job(conn: Conn, job_id: UUID) -> Status:
    """Resume a paused job."""
    status: Any = await jobs.resume(conn, job_id=job_id)
    return Status(status=status)


@routes.post("/jobs/{job_id:uuid}/cancel")
async def cancel_job(conn: Conn, job_id: UUID, why: Annotated[Reason | None, Body()] = None) -> Status:
    """Cancel a job. Running handlers are told to stop."""
    status: Any = await jobs.cancel(conn, job_id=job_id, reason=why and why.reason)
    return Status(status=status)


@routes.post("/jobs/{job_id:uuid}/confirm")
async def confirm_job(conn: Conn, job_id: UUID) -> Count:
    """Confirm a job: release the tasks that wait for confirmation."""
    return Count(count=await jobs.confirm(conn, job_id=job_id))


@routes.post("/jobs/{job_id:uuid}/retry")
async def retry_job(conn: Conn, job_id: UUID) -> Count:
    """Retry a job's failed tasks, and the tasks canceled because of them."""
    return Count(count=await jobs.retry(conn, job_id=job_id))


@routes.get("/jobs/{job_id:uuid}/forecast", summary="Forecast Remaining Tasks")
async def forecast_rest(conn: Conn, job_id: UUID) -> Forecast:
    """Forecast cost, usage and duration of a job's remaining tasks."""
    return await jobs.forecast_rest(conn, job_id=job_id)


@routes.get("/jobs/{job_id:uuid}/costs")
async def get_job_costs(conn: Conn, job_id: UUID) -> JobCost:
    """Get a job's cost so far and its budget."""
    return await costs.of_job(conn, job_id=job_id)


@routes.put("/jobs/{job_id:uuid}/budget", status_code=204)
async def set_budget(conn: Conn, job_id: UUID, budget: Budget) -> Response:
    """Set or remove a job's budget. Resumes a job that paused for its budget."""
    await costs.set_budget(conn, job_id=job_id, amount=budget.amount)
    return Response(status_code=204)


@routes.get("/jobs/{job_id:uuid}/tasks")
async def list_tasks(
    conn: Conn,
    job_id: UUID,
    status: TaskStatus | None = None,
    kind: Annotated[str | None, Query(max_length=200)] = None,
    cursor: NumberCursor = None,
    limit: LimitQuery = 50,
) -> Page[Task]:
    """List a job's tasks in the order of creation."""
    await jobs.get(conn, job_id=job_id)
    found = await jobs.tasks(conn, job_id=job_id, status=status, kind=kind, after=cursor, limit=limit + 1)
    return page(found, limit, lambda task: task.id)


@routes.post("/jobs/{job_id:uuid}/tasks", status_code=201)
async def add_tasks(conn: Conn, job_id: UUID, more: Tasks) -> TaskIds:
    """Add tasks to a job that has not ended."""
    return TaskIds(ids=await jobs.add_tasks(conn, job_id=job_id, tasks=more.tasks))


@routes.get("/jobs/{job_id:uuid}/tasks/{task_id}")
async def get_task(conn: Conn, job_id: UUID, task_id: TaskId) -> Task:
    """Get a task with its input and output."""
    found = await jobs.tasks(conn, job_id=job_id, after=task_id - 1, limit=1)
    if not found or found[0].id != task_id:
        raise NotFound(f"task {task_id} not found", code="unknown_task")
    return found[0]


@routes.get("/jobs/{job_id:uuid}/tasks/{task_id}/why")
async def explain_task(conn: Conn, job_id: UUID, task_id: TaskId) -> Explanation:
    """Explain why a task is not running: what it waits for, how long, and its queue position."""
    return await jobs.explain(conn, job_id=job_id, task_id=task_id)


@routes.get("/jobs/{job_id:uuid}/attempts")
async def list_attempts(
    conn: Conn,
    job_id: UUID,
    task_id: Annotated[int | None, Query(ge=1, le=LARGEST)] = None,
    cursor: AttemptCursor = None,
    limit: LimitQuery = 50,
) -> Page[Attempt]:
    """List the failed attempts of a job's tasks, or of one task."""
    await jobs.get(conn, job_id=job_id)
    task, _, lease = (cursor or "0-0").partition("-")
    found = await jobs.attempts(
        conn, job_id=job_id, task_id=task_id, after=(int(task), int(lease)), limit=limit + 1
    )
    return page(found, limit, lambda attempt: f"{attempt.task_id}-{attempt.lease}")
