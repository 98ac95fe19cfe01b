"""Bulk jobs: from a table to a forecast, to a preview, to a confirmation, to results and what failed."""

from __future__ import annotations

import asyncio
import io
from typing import Annotated, Any, Literal
from uuid import UUID

from fastapi import APIRouter, Query, Request, Response

from penstock import bulks, jobs, sources, tenants
from penstock.api.bulks import exported
from penstock.app import App
from penstock.bulk_type import BulkType
from penstock.dashboard import forms
from penstock.dashboard.pages import PER_PAGE, Filtering, FilterQuery, Held, Page, Seen, Viewer, render, to
from penstock.errors import Forbidden, Invalid, PenstockError
from penstock.types import BulkSummary, Forecast, RowState, SourceCheck, exact

router = APIRouter(route_class=Page)

StateQuery = Annotated[list[RowState] | None, Query(max_length=8)]
STATES: tuple[RowState, ...] = (
    *("waiting", "queued", "running", "succeeded", "failed", "canceled", "refused", "skipped"),
)
MOST_COUNTED = 20_000
"""Of more rows, the states are not counted: each row would be looked at."""
MOST_EXPORTED = 100_000


@router.get("/bulks")
async def list_bulks(
    request: Request, held: Held, viewer: Seen, filter: FilterQuery = "", before: UUID | None = None
) -> Response:
    """Bulk jobs, newest first."""
    found: list[BulkSummary] = []
    with Filtering() as asked:
        # A member of one tenant, and that is most of them, is led by an index.
        only = viewer.tenants[0].id if len(viewer.tenants) == 1 else None
        found = await bulks.list(held, filter=filter, tenant_id=only, before=before, limit=PER_PAGE + 1)
    shown = found[:PER_PAGE]
    return render(
        request,
        "bulks.html",
        bulks=shown,
        next=shown[-1].id if len(found) > PER_PAGE else None,
        filter=filter,
        fields=list(bulks.FIELDS),
        problem=asked.problem,
        names=await tenants.names(held, ids=[bulk.tenant_id for bulk in shown]),
        before=before,
        live=None if before else {"tenant": viewer.tenant(None)},
    )


# From a table to a job


@router.get("/bulks/new")
async def new_bulk(request: Request, viewer: Seen) -> Response:
    """The form for a table."""
    _check_role(request, viewer)
    return _form(request, {}, None, None, None)


@router.post("/bulks/new")
async def check_bulk(request: Request, held: Held, viewer: Seen) -> Response:
    """What is in the table, what it will cost and take; and then the job."""
    form: forms.Form = request.state.form
    _check_role(request, viewer)
    names = ("type", "tenant", "budget", "stop_after", "preview", "skip_done", "format", "name")
    given = {name: form.get(name) for name in names}
    given["rows"] = next(iter(form.all("rows")), "")
    try:
        if form.get("verb") == "start":
            return to(request, f"/bulks/{await _start(held, given)}", said="Started.")
        kind = _kind(request, given["type"])
        checked = forecast = None
        if kind is not None:
            checked, drawn = await asyncio.to_thread(_checked, kind, given)
            if drawn is not None:
                tasks, times = drawn
                options: Any = {"tenant_id": await _tenant(held, given), "budget": _budget(given)}
                forecast = await jobs.forecast(held, type=kind.name, tasks=tasks, times=times, **options)
    except PenstockError as error:
        return _form(request, given, None, None, error)
    return _form(request, given, checked, forecast, None, is_checked=True)


def _checked(kind: BulkType[Any], given: dict[str, str]) -> tuple[SourceCheck, Any]:
    """What is in the table, and some of its tasks for a forecast if any row is good."""
    with _table(given) as table:
        checked = kind.check(table)
        return checked, kind.sample(table, {}) if checked.good else None


def _form(
    request: Request,
    given: dict[str, str],
    checked: SourceCheck | None,
    forecast: Forecast | None,
    problem: PenstockError | None,
    is_checked: bool = False,
) -> Response:
    app: App | None = request.app.state.app
    return render(
        request,
        "bulk_new.html",
        422 if problem else 200,
        given=given,
        types=sorted(app.bulks) if app else [],
        checked=checked,
        forecast=forecast,
        problem=problem,
        is_checked=is_checked,
    )


async def _start(held: Held, given: dict[str, str]) -> UUID:
    options: Any = {
        "tenant_id": await _tenant(held, given),
        "budget": _budget(given),
        "stop_after": given["stop_after"] or None,
        "preview": bool(given["preview"]),
        "skip_done": bool(given["skip_done"]),
    }
    with await asyncio.to_thread(_table, given) as table:
        return await bulks.start(
            held, type=given["type"], rows=table, source=bulks.describe(table), **options
        )


def _table(given: dict[str, str]) -> sources.Source:
    if not given["rows"].strip():
        raise Invalid("there are no rows", code="no_rows", hint="Choose a file, or paste a table.")
    file = io.BytesIO(given["rows"].encode())
    return sources.open(file, format=given["format"] or None, name=given["name"] or "pasted.csv")


def _kind(request: Request, name: str) -> BulkType[Any] | None:
    """The type, if this server was started with the app that has it: else only workers know it."""
    app: App | None = request.app.state.app
    return app.bulks.get(name) if app else None


async def _tenant(held: Held, given: dict[str, str]) -> UUID | None:
    if not given["tenant"]:
        return None
    found = await tenants.find(held, name=given["tenant"])
    if len(found) != 1:
        raise Invalid(
            f"there is no one tenant {given['tenant']!r}", code="unknown_tenant", hint="Give its id."
        )
    return found[0].id


def _budget(given: dict[str, str]) -> Any:
    return exact(given["budget"], "budget") if given["budget"] else None


# A job


@router.get("/bulks/{job_id}")
async def show_bulk(
    request: Request,
    held: Held,
    viewer: Seen,
    job_id: UUID,
    state: StateQuery = None,
    after: Annotated[int, Query(ge=-1, lt=1 << 53)] = -1,
) -> Response:
    """A bulk job: how far it is, what failed and why, its rows."""
    bulk = await bulks.get(held, job_id=job_id)
    rows = await bulks.rows(held, job_id=job_id, states=state, after=after, limit=PER_PAGE + 1)
    shown = rows[:PER_PAGE]
    job = bulk.job
    is_small = bulk.rows.total <= MOST_COUNTED
    return render(
        request,
        "bulk.html",
        bulk=bulk,
        job=job,
        explanation=await jobs.explain_job(held, job_id=job_id),
        states=await bulks.counts(held, job_id=job_id) if is_small else None,
        forecast=await jobs.forecast_rest(held, job_id=job_id) if not job.is_ended and is_small else None,
        known=STATES,
        rows=shown,
        state=state or [],
        columns=(bulk.source.get("columns") or list(shown[0].data if shown else ()))[:4],
        after=after,
        next=shown[-1].number if len(rows) > PER_PAGE else None,
        tenant_name=(await tenants.names(held, ids=[job.tenant_id])).get(job.tenant_id),
        may_act=viewer.may_act(job.tenant_id),
        live=None if job.is_ended else {"job": job_id},
    )


@router.get("/bulks/{job_id}/confirm")
async def ask(
    request: Request,
    held: Held,
    viewer: Seen,
    job_id: UUID,
    verb: Literal["confirm", "undo"],
    row: Annotated[int | None, Query(ge=0, lt=1 << 53)] = None,
) -> Response:
    """What letting it go on, or undoing it, is about."""
    _check_role(request, viewer)
    bulk = await bulks.get(held, job_id=job_id)
    rest = (
        await jobs.forecast_rest(held, job_id=job_id) if verb == "confirm" and not bulk.job.is_ended else None
    )
    return render(request, "bulk_confirm.html", bulk=bulk, job=bulk.job, verb=verb, row=row, forecast=rest)


@router.post("/bulks/{job_id}")
async def change_bulk(request: Request, held: Held, job_id: UUID) -> Response:
    """Let it go on, or undo what it applied."""
    form: forms.Form = request.state.form
    if form.get("verb") == "confirm":
        count = await jobs.confirm(held, job_id=job_id)
        return to(request, f"/bulks/{job_id}", said=f"Confirmed: {count:,} tasks go on.")
    if form.get("verb") != "undo":
        raise Invalid("there is no such action", code="invalid_verb")
    row = form.get("row")
    if row and not (row.isdecimal() and len(row) <= 15):
        # Never all rows in place of one.
        raise Invalid("this is not the number of a row", code="invalid_selection")
    undo_id = await bulks.undo(held, job_id=job_id, rows=[int(row)] if row else None)
    return to(request, f"/jobs/{undo_id}", said="What was applied is being undone by this job.")


@router.get("/bulks/{job_id}/rows.csv")
async def export_rows(held: Held, job_id: UUID, state: StateQuery = None) -> Response:
    """The rows with their original columns and what became of them, as a file."""
    bulk = await bulks.get(held, job_id=job_id)
    if bulk.rows.total > MOST_EXPORTED:
        raise Invalid(
            f"a file from here has at most {MOST_EXPORTED:,} rows",
            code="too_many_rows",
            hint=f"penstock bulk export {job_id} rows.csv",
        )
    name = "failures" if state and set(state) <= {"failed", "refused", "canceled"} else "rows"
    return await exported(held, job_id, "csv", state, name=name)


def _check_role(request: Request, viewer: Viewer) -> None:
    if request.app.state.settings.read_only:
        raise Forbidden("this dashboard only shows: it changes nothing", code="read_only")
    if not viewer.may_act():
        raise Forbidden("a viewer only looks")
