"""Bulk jobs: upload a table, forecast its cost, preview the first rows, confirm, see results and failures."""

from __future__ import annotations

import base64
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from tempfile import NamedTemporaryFile
from typing import IO, Annotated, Any, Literal
from uuid import UUID

from fastapi import APIRouter, Query, Request, Response

from penstock.api.bulks import exported
from penstock.api.callers import Caller, Callers
from penstock.api.uploads import examined, parsed
from penstock.contract import bulks, jobs, tenants
from penstock.dashboard import actors, formatting, forms
from penstock.dashboard.columns import PREFIX, renames
from penstock.dashboard.pages import (
    PER_PAGE,
    CatchInvalidFilter,
    Conn,
    CurrentViewer,
    FilterQuery,
    Page,
    load_viewer,
    named_tenant,
    redirect,
    render,
    require_write_access,
)
from penstock.errors import Invalid, PenstockError
from penstock.sdk.app import App
from penstock.sdk.bulk_type import PREVIEW, BulkType
from penstock.sheets import GoogleSheet
from penstock.sources.columns import Match, matches
from penstock.types import BulkSummary, Forecast, RowProblem, RowState, SourceCheck, exact

router = APIRouter(route_class=Page)

StateQuery = Annotated[list[RowState] | None, Query(max_length=8)]
INPUTS = (
    *("type", "tenant", "budget", "stop_after", "preview", "skip_done", "format", "name", "content"),
    *("sheet", "range", "link"),
)
STATES: tuple[RowState, ...] = (
    *("waiting", "queued", "running", "succeeded", "failed", "canceled", "refused", "skipped"),
)
MAX_COUNTED_ROWS = 20_000
"""Counting states reads every row, so larger jobs show no counts."""
MAX_EXPORTED_ROWS = 100_000
MAX_PROBLEMS = 1000
"""Problems of a table that are reported."""


@router.get("/bulks")
async def list_bulks(
    request: Request, conn: Conn, viewer: CurrentViewer, filter: FilterQuery = "", before: UUID | None = None
) -> Response:
    """List bulk jobs, newest first."""
    found: list[BulkSummary] = []
    with CatchInvalidFilter() as caught:
        # Most members have one tenant: filtering by it lets the query use an index.
        only = viewer.tenants[0].id if len(viewer.tenants) == 1 else None
        found = await bulks.list(conn, filter=filter, tenant_id=only, before=before, limit=PER_PAGE + 1)
    shown = found[:PER_PAGE]
    canceling = formatting.canceling_actors(bulk.status_reason for bulk in shown)
    return render(
        request,
        "bulks.html",
        bulks=shown,
        actor_names=await actors.names(conn, viewer, canceling, {bulk.tenant_id for bulk in shown}),
        next=shown[-1].id if len(found) > PER_PAGE else None,
        filter=filter,
        fields=list(bulks.FIELDS),
        filter_error=caught.error,
        names=await tenants.names(conn, ids=[bulk.tenant_id for bulk in shown]),
        before=before,
        live=None if before else {"tenant": viewer.choose_tenant(None)},
    )


# Starting a job from a table


@dataclass
class Table:
    """What a child process found in a posted table."""

    error: PenstockError | None = None
    checked: SourceCheck | None = None
    columns: list[str] = field(default_factory=list[str])
    """The columns of the table."""
    matches: list[Match] = field(default_factory=list[Match])
    """The expected columns, if the table lacks some of them."""
    sample: Any = None
    """The tasks of some valid rows for a forecast, and the factor from them to all rows."""
    rows: bulks.PreparedRows | None = None
    """None for a Google Sheet, which a worker reads."""
    described: dict[str, Any] = field(default_factory=dict[str, Any])


class TablePage(Page):
    """A page that reads a posted table, in a child process and before it uses a database connection."""

    @asynccontextmanager
    async def preparing(self, request: Request, caller: Caller) -> AsyncGenerator[None]:
        if request.method == "GET":
            yield
            return
        callers: Callers = request.app.state.callers
        async with callers.acting(caller, read_only=True) as conn:
            require_write_access(request, await load_viewer(conn, caller))
        table = request.state.table = Table()
        async with AsyncExitStack() as stack:
            try:
                await self._read(request, caller, table, stack)
            except PenstockError as error:
                if error.code == "share_used_up":
                    raise
                # The form shows it.
                table.error = error
            yield

    async def _read(self, request: Request, caller: Caller, table: Table, stack: AsyncExitStack) -> None:
        form: forms.Form = request.state.form
        inputs, isolated = _inputs(form), request.app.state.isolated
        if inputs["sheet"]:
            table.described = _google_sheet(inputs)
            return
        file = stack.enter_context(NamedTemporaryFile(prefix="penstock-table-"))  # noqa: SIM115
        options = _save(inputs, file)
        bulk_type = _bulk_type(request, inputs["type"])
        with request.app.state.callers.counting(caller):
            async with isolated.files.take(caller.share, caller.name):
                if form.get("verb") == "start":
                    found = parsed(request.app, file.name, options)
                    table.rows, table.described = await stack.enter_async_context(found)
                elif bulk_type is not None:
                    await self._check(request, bulk_type, file.name, options, table)

    async def _check(
        self, request: Request, bulk_type: BulkType[Any], path: str, options: dict[str, Any], table: Table
    ) -> None:
        """Check all rows, and make the tasks of some valid ones for a forecast."""
        common: Any = {"type": bulk_type.name, "table": options}
        found = await examined(request.app, path, "check", most=MAX_PROBLEMS, **common)
        problems = [RowProblem(**each) for each in found["problems"]]
        table.checked = SourceCheck(found["rows"], found["good"], problems)
        rename: dict[str, str] = options["rename"] or {}
        renamed = {name: column for column, name in rename.items()}
        # The form offers the names that the table itself has.
        columns: list[str] = found["columns"]
        table.columns = [renamed.get(column, column) for column in columns]
        found_matches = matches(found["expected"], columns)
        if renamed or any(each.is_suggested or not each.found for each in found_matches):
            table.matches = [
                Match(each.name, each.is_required, renamed.get(each.name, each.found), each.is_suggested)
                for each in found_matches
            ]
        if table.checked.good:
            table.sample = await examined(request.app, path, "sample", params={}, **common)


table_router = APIRouter(route_class=TablePage)


@router.get("/bulks/new")
async def new_bulk(request: Request, viewer: CurrentViewer) -> Response:
    """Show the form for a new bulk job."""
    require_write_access(request, viewer)
    return _form(request, {})


@table_router.post("/bulks/new")
async def check_bulk(request: Request, conn: Conn, viewer: CurrentViewer) -> Response:
    """Check the table and forecast cost and duration, or start the job."""
    form: forms.Form = request.state.form
    require_write_access(request, viewer)
    inputs = _inputs(form)
    table: Table = request.state.table
    try:
        if table.error is not None:
            raise table.error
        if form.get("verb") == "start":
            job_id = await _start(conn, inputs, table)
            return redirect(request, f"/bulks/{job_id}", flash="Bulk job started.")
        forecast = await _forecast(conn, inputs, table)
    except PenstockError as error:
        return _form(request, inputs, error=error)
    return _form(request, inputs, table=table, forecast=forecast, is_checked=True)


async def _forecast(conn: Conn, inputs: dict[str, str], table: Table) -> Forecast | None:
    if table.sample is None:
        return None
    tasks, times = table.sample
    options: Any = {"tenant_id": await named_tenant(conn, inputs["tenant"]), "budget": _budget(inputs)}
    return await jobs.forecast(conn, type=inputs["type"], tasks=tasks, times=times, **options)


def _form(
    request: Request,
    inputs: dict[str, str],
    *,
    table: Table | None = None,
    forecast: Forecast | None = None,
    error: PenstockError | None = None,
    is_checked: bool = False,
) -> Response:
    app: App | None = request.app.state.app
    return render(
        request,
        "bulk_new.html",
        422 if error else 200,
        inputs=inputs,
        types={name: app.bulks[name].expected() for name in sorted(app.bulks)} if app else {},
        checked=table.checked if table else None,
        columns=table.columns if table else [],
        matches=table.matches if table else [],
        previewed=(app.bulks[inputs["type"]].batch or PREVIEW) if table and table.checked and app else 0,
        forecast=forecast,
        error=error,
        is_checked=is_checked,
        max_bytes=request.app.state.limits.body_bytes * 2 // 3,  # base64 and form encoding add a half
    )


async def _start(conn: Conn, inputs: dict[str, str], table: Table) -> UUID:
    options: Any = {
        "tenant_id": await named_tenant(conn, inputs["tenant"]),
        "budget": _budget(inputs),
        "stop_after": inputs["stop_after"] or None,
        "preview": bool(inputs["preview"]),
        "skip_done": bool(inputs["skip_done"]),
    }
    return await bulks.start(conn, type=inputs["type"], rows=table.rows, source=table.described, **options)


def _inputs(form: forms.Form) -> dict[str, str]:
    inputs = {name: form.get(name) for name in INPUTS}
    inputs["rows"] = next(iter(form.all("rows")), "")
    return {**inputs, **form.prefixed(PREFIX)}


def _save(inputs: dict[str, str], file: IO[bytes]) -> dict[str, Any]:
    """Write the posted table to a file. Returns how to read it."""
    if inputs["content"]:
        try:
            file.write(base64.b64decode(inputs["content"], validate=True))
        except ValueError:
            raise Invalid(
                "the file is incomplete", code="invalid_form", hint="Choose the file again."
            ) from None
    elif inputs["rows"].strip():
        file.write(inputs["rows"].encode())
    else:
        hint = "Choose a file, paste a table, or enter the URL of a Google Sheet."
        raise Invalid("the table has no rows", code="no_rows", hint=hint)
    file.flush()
    is_pasted = not inputs["content"]
    name = inputs["name"] or ("pasted.csv" if is_pasted else None)
    mapping = {field: column for field, column in inputs.items() if field.startswith(PREFIX)}
    return {"format": inputs["format"] or None, "name": name, "rename": renames(mapping) or None}


def _google_sheet(inputs: dict[str, str]) -> dict[str, Any]:
    """The description of the sheet that the form names."""
    if inputs["content"] or inputs["rows"].strip():
        raise Invalid(
            "the form has a Google Sheet and a table", code="invalid_form", hint="Remove one of them."
        )
    link: Any = inputs["link"] or None  # the database checks it
    return GoogleSheet(inputs["sheet"].strip(), inputs["range"].strip() or None, link=link).description


def _bulk_type(request: Request, name: str) -> BulkType[Any] | None:
    """Return the bulk type if this server was started with the app that defines it."""
    app: App | None = request.app.state.app
    return app.bulks.get(name) if app else None


def _budget(inputs: dict[str, str]) -> Any:
    return exact(inputs["budget"], "budget") if inputs["budget"] else None


# One bulk job


@router.get("/bulks/{job_id}")
async def show_bulk(
    request: Request,
    conn: Conn,
    viewer: CurrentViewer,
    job_id: UUID,
    state: StateQuery = None,
    after: Annotated[int, Query(ge=-1, lt=1 << 53)] = -1,
) -> Response:
    """Show a bulk job: progress, cost, failures by cause, and its rows."""
    bulk = await bulks.get(conn, job_id=job_id)
    rows = await bulks.rows(conn, job_id=job_id, states=state, after=after, limit=PER_PAGE + 1)
    shown = rows[:PER_PAGE]
    job = bulk.job
    named = [job.created_by, *formatting.canceling_actors([job.status_reason])]
    is_small = bulk.rows.total <= MAX_COUNTED_ROWS
    return render(
        request,
        "bulk.html",
        bulk=bulk,
        job=job,
        explanation=await jobs.explain_job(conn, job_id=job_id),
        states=await bulks.counts(conn, job_id=job_id) if is_small else None,
        forecast=await jobs.forecast_rest(conn, job_id=job_id) if not job.is_ended and is_small else None,
        all_states=STATES,
        actor_names=await actors.names(conn, viewer, named, [job.tenant_id]),
        rows=shown,
        state=state or [],
        columns=(bulk.source.get("columns") or list(shown[0].data if shown else ()))[:4],
        after=after,
        next=shown[-1].number if len(rows) > PER_PAGE else None,
        tenant_name=(await tenants.names(conn, ids=[job.tenant_id])).get(job.tenant_id),
        may_act=viewer.may_act(job.tenant_id),
        live=None if job.is_ended else {"job": job_id},
    )


@router.get("/bulks/{job_id}/confirm")
async def confirm(
    request: Request,
    conn: Conn,
    viewer: CurrentViewer,
    job_id: UUID,
    verb: Literal["confirm", "undo"],
    row: Annotated[int | None, Query(ge=0, lt=1 << 53)] = None,
) -> Response:
    """Ask whether to run the remaining rows, or to undo applied changes."""
    require_write_access(request, viewer)
    bulk = await bulks.get(conn, job_id=job_id)
    forecast = (
        await jobs.forecast_rest(conn, job_id=job_id) if verb == "confirm" and not bulk.job.is_ended else None
    )
    return render(
        request, "bulk_confirm.html", bulk=bulk, job=bulk.job, verb=verb, row=row, forecast=forecast
    )


@router.post("/bulks/{job_id}")
async def change_bulk(request: Request, conn: Conn, job_id: UUID) -> Response:
    """Run the remaining rows, or undo applied changes."""
    form: forms.Form = request.state.form
    if form.get("verb") == "confirm":
        await jobs.confirm(conn, job_id=job_id)
        return redirect(request, f"/bulks/{job_id}", flash="Confirmed.")
    if form.get("verb") != "undo":
        raise Invalid("unknown action", code="invalid_verb")
    row = form.get("row")
    if row and not (row.isdecimal() and len(row) <= 15):
        # An invalid row number must not undo all rows.
        raise Invalid("invalid row number", code="invalid_selection")
    undo_id = await bulks.undo(conn, job_id=job_id, rows=[int(row)] if row else None)
    return redirect(request, f"/jobs/{undo_id}", flash="This job undoes the applied changes.")


@router.get("/bulks/{job_id}/rows.csv")
async def export_rows(conn: Conn, job_id: UUID, state: StateQuery = None) -> Response:
    """Export the rows with their original columns and results."""
    bulk = await bulks.get(conn, job_id=job_id)
    if bulk.rows.total > MAX_EXPORTED_ROWS:
        raise Invalid(
            f"the dashboard exports at most {MAX_EXPORTED_ROWS:,} rows",
            code="too_many_rows",
            hint=f"penstock bulk export {job_id} rows.csv",
        )
    name = "failures" if state and set(state) <= {"failed", "refused", "canceled"} else "rows"
    return await exported(conn, job_id, "csv", state, name=name)
