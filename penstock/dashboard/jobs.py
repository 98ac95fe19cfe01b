"""Jobs: the list, a job, a task."""

from __future__ import annotations

from decimal import Decimal
from typing import Annotated, Literal
from urllib.parse import urlsplit
from uuid import UUID

from fastapi import APIRouter, Path, Query, Request, Response
from fastapi.responses import RedirectResponse

from penstock import artifacts, audit, costs, dead_letters, filters, jobs, tenants
from penstock.api.artifacts import linked
from penstock.dashboard import exports, graphs
from penstock.dashboard.pages import PER_PAGE, Filtering, FilterQuery, Held, Page, Seen, render
from penstock.errors import NotFound, PenstockError
from penstock.types import Artifact, Attempt, Job

router = APIRouter(route_class=Page)

TaskId = Annotated[int, Path(ge=1, lt=1 << 63)]
View = Literal["graph", "grid", "timeline", "tasks"]

MOST_COUNTED = 10_000
FEW = 40
"""So many tasks are shown as a graph; more as a grid."""
PER_PICTURE = 400
EXPORTED = (
    "id",
    "tenant_id",
    "type",
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
    held: Held,
    viewer: Seen,
    filter: FilterQuery = "",
    before: UUID | None = None,
) -> Response:
    """Jobs, newest first."""
    own = viewer.tenant_ids
    found: list[Job] = []
    counts: dict[str, int] = {}
    rest = filter
    with Filtering() as asked:
        rest = _without_status(filter)
        found = await jobs.list(held, filter=filter, tenant_ids=own, before=before, limit=PER_PAGE + 1)
        counts = await jobs.counts(held, filter=rest, tenant_ids=own, most=MOST_COUNTED)
    shown = found[:PER_PAGE]
    return render(
        request,
        "jobs.html",
        jobs=shown,
        next=shown[-1].id if len(found) > PER_PAGE else None,
        filter=filter,
        rest=rest,
        status=_status(filter),
        counts=counts,
        most=MOST_COUNTED,
        problem=asked.problem,
        fields=list(jobs.FIELDS),
        names=await tenants.names(held, ids=[job.tenant_id for job in shown]),
        costs=await costs.of_jobs(held, job_ids=[job.id for job in shown]),
        before=before,
        live=None if before else {"tenant": viewer.tenant(None)},
    )


@router.get("/jobs.csv")
async def export_jobs(held: Held, viewer: Seen, filter: FilterQuery = "") -> Response:
    """The jobs that match, as a file."""
    counts = ("total", "succeeded", "failed", "canceled")

    async def cells(some: list[Job]) -> list[exports.Row]:
        spent = await costs.of_jobs(held, job_ids=[job.id for job in some])
        return [
            [
                *(getattr(job, name) for name in EXPORTED),
                *(getattr(job.progress, name) for name in counts),
                format(spent.get(job.id, Decimal(0)), "f"),
            ]
            for job in some
        ]

    rows = await exports.whole(jobs.list, cells, held, filter=filter, tenant_ids=viewer.tenant_ids)
    return exports.as_csv("jobs", (*EXPORTED, *counts, "cost"), rows)


def _without_status(text: str) -> str:
    """The filter without what it says of the status: what the tabs add to."""
    terms = [term for term in filters.parse(text) if term.field != "status" or term.is_excluded]
    return " ".join(_written(term) for term in terms)


def _status(text: str) -> str | None:
    """The one status that the filter asks for, if it is one."""
    try:
        found = [term for term in filters.parse(text) if term.field == "status" and not term.is_excluded]
    except PenstockError:
        return None
    return found[0].values[0] if len(found) == 1 and len(found[0].values) == 1 else None


def _written(term: filters.Term) -> str:
    values = ",".join(filters.quoted(value) for value in term.values)
    return f"{'-' if term.is_excluded else ''}{term.field}:{values}"


@router.get("/jobs/{job_id}")
async def show_job(
    request: Request,
    held: Held,
    viewer: Seen,
    job_id: UUID,
    view: View | None = None,
    after: Annotated[int, Query(ge=0, lt=1 << 63)] = 0,
) -> Response:
    """A job: how it stands, what happens next, and all that belongs to it."""
    job = await jobs.get(held, job_id=job_id)
    total = job.progress.total
    chosen = view or ("graph" if total <= FEW else "grid")
    per_page = PER_PAGE if chosen == "tasks" else PER_PICTURE
    tasks = await jobs.graph(held, job_id=job_id, after=after, limit=per_page + 1)
    shown = tasks[:per_page]
    attempts: list[Attempt] = []
    if chosen == "timeline" and total <= PER_PICTURE:
        attempts = await jobs.attempts(held, job_id=job_id, limit=1000)
    files = await artifacts.list(held, job_id=job_id, limit=PER_PAGE)
    await _allow_files(request, files)
    return render(
        request,
        "job.html",
        job=job,
        view=chosen,
        explanation=await jobs.explain_job(held, job_id=job_id),
        cost=await costs.of_job(held, job_id=job_id),
        tasks=shown,
        after=after,
        next=shown[-1].id if len(tasks) > per_page else None,
        graph=graphs.graph(shown) if chosen == "graph" else None,
        grid=graphs.grid(shown) if chosen == "grid" else None,
        timeline=graphs.timeline(shown, attempts, request.state.now) if chosen == "timeline" else None,
        box=(graphs.BOX_WIDTH, graphs.BOX_HEIGHT),
        letters=await dead_letters.list(held, filter=f"job:{job_id}", limit=10),
        files=files,
        lines=await audit.list(held, job_id=job_id, limit=20),
        tenant_name=(await tenants.names(held, ids=[job.tenant_id])).get(job.tenant_id),
        may_act=viewer.may_act(job.tenant_id),
        live=None if job.is_ended else {"job": job_id},
    )


@router.get("/jobs/{job_id}/tasks/{task_id}")
async def show_task(request: Request, held: Held, viewer: Seen, job_id: UUID, task_id: TaskId) -> Response:
    """A task: why it stands where it does, its attempts, what went in and what came out."""
    job = await jobs.get(held, job_id=job_id)
    found = await jobs.tasks(held, job_id=job_id, after=task_id - 1, limit=1)
    if not found or found[0].id != task_id:
        raise NotFound("there is no such task", code="unknown_task")
    task = found[0]
    [placed] = await jobs.graph(held, job_id=job_id, after=task_id - 1, limit=1)
    files = await artifacts.list(held, job_id=job_id, task_id=task_id, limit=PER_PAGE)
    await _allow_files(request, files)
    is_ended = task.status in ("succeeded", "failed", "canceled")
    return render(
        request,
        "task.html",
        job=job,
        task=task,
        placed=placed,
        explanation=await jobs.explain(held, job_id=job_id, task_id=task_id),
        attempts=await jobs.attempts(held, job_id=job_id, task_id=task_id, limit=1000),
        letters=await dead_letters.list(held, filter=f"job:{job_id} task:{task_id}", limit=1),
        files=files,
        tenant_name=(await tenants.names(held, ids=[job.tenant_id])).get(job.tenant_id),
        may_act=viewer.may_act(job.tenant_id),
        live=None if is_ended else {"job": job_id},
    )


@router.get("/artifacts/{artifact_id}")
async def show_file(request: Request, held: Held, artifact_id: UUID) -> Response:
    """The file itself. The address stays the same, so that what plays goes on when the page looks again."""
    artifact = await artifacts.get(held, artifact_id=artifact_id)
    [found] = await linked(request, [artifact])
    return RedirectResponse(found.url, 307)


async def _allow_files(request: Request, files: list[Artifact]) -> None:
    """Let the page show files that are kept elsewhere."""
    if files:
        [first] = await linked(request, files[:1])
        parts = urlsplit(first.url)
        if parts.netloc != request.headers.get("host"):
            request.state.file_origins = (f"{parts.scheme}://{parts.netloc}",)
