"""Jobs and tasks: the list of jobs, one job, one task."""

from __future__ import annotations

from decimal import Decimal
from typing import Annotated, Any, Literal
from uuid import UUID

from fastapi import APIRouter, Path, Query, Request, Response
from fastapi.responses import RedirectResponse

from penstock.api.artifacts import linked
from penstock.api.jobs import MAX_INLINE_RESULT
from penstock.contract import (
    artifacts,
    audit,
    costs,
    dead_letters,
    filters,
    jobs,
    logs,
    operations,
    streams,
    tenants,
    waits,
)
from penstock.dashboard import actors, exports, formatting, graphs
from penstock.dashboard.file_origins import allow_file_origin
from penstock.dashboard.pages import (
    PER_PAGE,
    CatchInvalidFilter,
    Conn,
    CurrentViewer,
    FilterQuery,
    Page,
    render,
)
from penstock.dashboard.starts import can_run_again, can_start
from penstock.errors import NotFound, PenstockError
from penstock.types import Attempt, Job

router = APIRouter(route_class=Page)

TaskId = Annotated[int, Path(ge=1, lt=1 << 63)]
LOG_LINES = 200
View = Literal["graph", "grid", "timeline", "tasks", "logs"]

COUNT_LIMIT = 10_000
MAX_GRAPH_TASKS = 40
"""Larger jobs are shown as a grid unless the user asks for the graph."""
TASKS_PER_PICTURE = 400
FILES = 200
"""Files that a job's page shows."""
EXPORTED = (
    "id",
    "tenant_id",
    "type",
    "title",
    "status",
    "status_reason",
    "priority",
    "created_by",
    "created_at",
    "started_at",
    "finished_at",
)


@router.get("/jobs")
async def list_jobs(
    request: Request,
    conn: Conn,
    viewer: CurrentViewer,
    filter: FilterQuery = "",
    before: UUID | None = None,
) -> Response:
    """List jobs, newest first."""
    tenant_ids = viewer.tenant_ids
    found: list[Job] = []
    counts: dict[str, int] = {}
    other_terms = filter
    with CatchInvalidFilter() as caught:
        other_terms = _without_status(filter)
        found = await jobs.list(conn, filter=filter, tenant_ids=tenant_ids, before=before, limit=PER_PAGE + 1)
        counts = await jobs.counts(conn, filter=other_terms, tenant_ids=tenant_ids, most=COUNT_LIMIT)
    shown = found[:PER_PAGE]
    canceling = formatting.canceling_actors(job.status_reason for job in shown)
    return render(
        request,
        "jobs.html",
        jobs=shown,
        actor_names=await actors.names(conn, viewer, canceling, {job.tenant_id for job in shown}),
        next=shown[-1].id if len(found) > PER_PAGE else None,
        filter=filter,
        other_terms=other_terms,
        status=_status(filter),
        counts=counts,
        limit=COUNT_LIMIT,
        filter_error=caught.error,
        fields=list(jobs.FIELDS),
        names=await tenants.names(conn, ids=[job.tenant_id for job in shown]),
        costs=await costs.of_jobs(conn, job_ids=[job.id for job in shown]),
        before=before,
        can_start=can_start(request, viewer),
        live=None if before else {"tenant": viewer.choose_tenant(None)},
    )


@router.get("/jobs.csv")
async def export_jobs(conn: Conn, viewer: CurrentViewer, filter: FilterQuery = "") -> Response:
    """Export the jobs that match the filter."""
    counts = ("total", "succeeded", "failed", "canceled")

    async def to_rows(page: list[Job]) -> list[exports.Row]:
        spent = await costs.of_jobs(conn, job_ids=[job.id for job in page])
        return [
            [
                *(getattr(job, name) for name in EXPORTED),
                *(getattr(job.progress, name) for name in counts),
                format(spent.get(job.id, Decimal(0)), "f"),
            ]
            for job in page
        ]

    rows = await exports.all_rows(jobs.list, to_rows, conn, filter=filter, tenant_ids=viewer.tenant_ids)
    return await exports.as_csv("jobs", (*EXPORTED, *counts, "cost"), rows)


def _without_status(text: str) -> str:
    """Return the filter without its status terms. The status tabs append their own."""
    terms = [term for term in filters.parse(text) if term.field != "status" or term.is_excluded]
    return " ".join(_term_text(term) for term in terms)


def _status(text: str) -> str | None:
    """Return the status if the filter asks for exactly one."""
    try:
        found = [term for term in filters.parse(text) if term.field == "status" and not term.is_excluded]
    except PenstockError:
        return None
    return found[0].values[0] if len(found) == 1 and len(found[0].values) == 1 else None


def _term_text(term: filters.Term) -> str:
    values = ",".join(filters.quoted(value) for value in term.values)
    return f"{'-' if term.is_excluded else ''}{term.field}:{values}"


@router.get("/jobs/{job_id}")
async def show_job(
    request: Request,
    conn: Conn,
    viewer: CurrentViewer,
    job_id: UUID,
    view: View | None = None,
    after: Annotated[int, Query(ge=0, lt=1 << 63)] = 0,
) -> Response:
    """Show a job: its progress, what happens next, cost, failures, tasks, files and audit lines."""
    job = await jobs.get(conn, job_id=job_id)
    total = job.progress.total
    shown_view = view or ("graph" if total <= MAX_GRAPH_TASKS else "grid")
    per_page = PER_PAGE if shown_view == "tasks" else TASKS_PER_PICTURE
    tasks = await jobs.graph(conn, job_id=job_id, after=after, limit=per_page + 1)
    shown = tasks[:per_page]
    attempts: list[Attempt] = []
    if shown_view == "timeline" and total <= TASKS_PER_PICTURE:
        attempts = await jobs.attempts(conn, job_id=job_id, limit=1000)
    files = await artifacts.list(conn, job_id=job_id, limit=FILES)
    await allow_file_origin(request, files)
    documents = tasks
    if after or shown_view == "tasks":
        documents = await jobs.graph(conn, job_id=job_id, limit=TASKS_PER_PICTURE)
    # Each stored file has a line, and is listed as a file.
    lines = await audit.list(conn, filter="-action:artifact.stored", job_id=job_id, limit=20)
    named = [
        job.created_by,
        *(line.actor for line in lines),
        *formatting.canceling_actors([job.status_reason]),
    ]
    return render(
        request,
        "job.html",
        job=job,
        actor_names=await actors.names(conn, viewer, named, [job.tenant_id]),
        view=shown_view,
        explanation=await jobs.explain_job(conn, job_id=job_id),
        cost=await costs.of_job(conn, job_id=job_id),
        tasks=shown,
        after=after,
        next=shown[-1].id if len(tasks) > per_page else None,
        graph=graphs.graph(shown) if shown_view == "graph" else None,
        grid=graphs.grid(shown) if shown_view == "grid" else None,
        timeline=graphs.timeline(shown, attempts, request.state.now) if shown_view == "timeline" else None,
        box=(graphs.BOX_WIDTH, graphs.BOX_HEIGHT),
        letters=await dead_letters.list(conn, filter=f"job:{job_id}", limit=10),
        task_keys={task.id: task.key for task in documents},
        shelves=graphs.shelves(files, documents),
        has_more_files=len(files) == FILES,
        log=await logs.last(conn, job_id=job_id, limit=LOG_LINES) if shown_view == "logs" else None,
        lines=lines,
        result=await jobs.result(conn, job_id=job_id, max_bytes=MAX_INLINE_RESULT),
        params=await _params(conn, job),
        tenant_name=(await tenants.names(conn, ids=[job.tenant_id])).get(job.tenant_id),
        may_act=viewer.may_act(job.tenant_id),
        can_run_again=can_run_again(request, job),
        live=None if job.is_ended else {"job": job_id},
    )


async def _params(conn: Conn, job: Job) -> dict[str, Any]:
    """The params of a job. A job of one task has none of its own: they are the task's input."""
    if job.params or job.progress.total != 1:
        return job.params
    [task] = await jobs.tasks(conn, job_id=job.id, limit=1) or [None]
    return task.input if task and task.kind == job.type else {}


@router.get("/jobs/{job_id}/tasks/{task_id}")
async def show_task(
    request: Request, conn: Conn, viewer: CurrentViewer, job_id: UUID, task_id: TaskId
) -> Response:
    """Show a task: why it waits or failed, its attempts, input and output."""
    job = await jobs.get(conn, job_id=job_id)
    found = await jobs.tasks(conn, job_id=job_id, after=task_id - 1, limit=1)
    if not found or found[0].id != task_id:
        raise NotFound("task not found", code="unknown_task")
    task = found[0]
    [graph_task] = await jobs.graph(conn, job_id=job_id, after=task_id - 1, limit=1)
    files = await artifacts.list(conn, job_id=job_id, task_id=task_id, limit=PER_PAGE)
    await allow_file_origin(request, files)
    canceling = formatting.canceling_actors([job.status_reason])
    is_ended = task.status in ("succeeded", "failed", "canceled")
    return render(
        request,
        "task.html",
        job=job,
        task=task,
        graph_task=graph_task,
        task_keys=await jobs.task_keys(conn, job_ids=[job_id], task_ids=graph_task.parents[:20]),
        actor_names=await actors.names(conn, viewer, canceling, [job.tenant_id]),
        explanation=await jobs.explain(conn, job_id=job_id, task_id=task_id),
        attempts=await jobs.attempts(conn, job_id=job_id, task_id=task_id, limit=1000),
        letters=await dead_letters.list(conn, filter=f"job:{job_id} task:{task_id}", limit=1),
        files=files,
        operations=await operations.list(conn, filter=f"job:{job_id} task:{task_id}", limit=PER_PAGE),
        questions=await waits.list(conn, filter=f"job:{job_id} task:{task_id}", limit=PER_PAGE),
        cost=(await costs.of_tasks(conn, job_ids=[job_id], task_ids=[task_id])).get(task_id),
        chunks=await streams.latest(conn, job_id=job_id, task_id=task_id),
        lines=await logs.last(conn, job_id=job_id, task_id=task_id, limit=LOG_LINES),
        tenant_name=(await tenants.names(conn, ids=[job.tenant_id])).get(job.tenant_id),
        may_act=viewer.may_act(job.tenant_id),
        live=None if is_ended else {"job": job_id},
    )


@router.get("/artifacts/{artifact_id}")
async def show_file(request: Request, conn: Conn, artifact_id: UUID) -> Response:
    """Redirect to the file. This URL is stable, so that a refresh of the page does not interrupt playback."""
    try:
        artifact = await artifacts.get(conn, artifact_id=artifact_id)
    except NotFound as error:
        raise NotFound(
            "there is no such file: it was deleted, its record is no longer kept, or you may not see it",
            code=error.code,
        ) from None
    [found] = await linked(request, [artifact])
    return RedirectResponse(found.url, 307)
