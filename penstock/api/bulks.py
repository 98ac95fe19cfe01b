"""Bulk jobs over HTTP: start from JSON rows or a file, read row results, export them as a file."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from datetime import datetime
from decimal import Decimal
from tempfile import SpooledTemporaryFile
from typing import IO, Annotated, Any, Literal, cast
from uuid import UUID

from fastapi import Header, Query, Request, Response
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, Field

from penstock.api.fields import NUMERIC, MoneyText, RequestModel
from penstock.api.jobs import JobResponse, JobStarted
from penstock.api.limits import Limits, read_json
from penstock.api.options import with_options
from penstock.api.pages import LimitQuery, NumberCursor, Page, TenantQuery, UuidCursor, filter_query, page
from penstock.api.routes import Conn, ExportRoute, StartRoute, router, tag_of
from penstock.api.uploads import FileRoute, examine, parsed
from penstock.contract import bulks, jobs
from penstock.errors import Invalid, NotFound
from penstock.postgres import db
from penstock.sdk.app import App
from penstock.types import (
    BulkOptions,
    BulkResult,
    BulkSummary,
    Cause,
    Forecast,
    RowCounts,
    RowProblem,
    RowsAdded,
    RowState,
    SourceCheck,
    Wait,
)
from penstock.types.options import table_of

_BLOCK = 1 << 16
_TYPES = {
    "csv": "text/csv; charset=utf-8",
    "jsonl": "application/x-ndjson",
    "xlsx": "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
}
_MAX_PROBLEMS = 1000

KeyHeader = Annotated[
    str | None,
    Header(min_length=1, max_length=255, description="The same key returns the same job of the tenant."),
]
RowNumber = Annotated[int, Field(ge=0, le=10**15), NUMERIC]


# Requests and responses


class _NewBulk(RequestModel):
    type: str = Field(max_length=200, examples=["ideas"])

    def options(self) -> dict[str, Any]:
        """The arguments for `bulks.start`."""
        chosen = self.model_dump(include=set(table_of(BulkOptions)))
        if chosen["tenant_id"] is None:
            del chosen["tenant_id"]
        return chosen


@with_options(BulkOptions)
class BulkRequest(_NewBulk):
    """A bulk job with its rows. Upload larger ones as a file."""

    rows: list[dict[str, Any]] | None = Field(
        None,
        description="The rows as objects by column, numbered from 1. "
        "If omitted, a worker reads them from `source`, a Google Sheet.",
        examples=[[{"title": "otters", "seconds": 5}, {"title": "herons"}]],
    )
    source: dict[str, Any] = Field(
        default_factory=dict[str, Any],
        description="Where the rows come from. Keep `id` or `name` the same when you send the rows again. "
        'A Google Sheet is `{"type": "google-sheets", "id": "…", "range": "Ideas!A1:F"}`.',
        examples=[{"name": "ideas of May"}],
    )
    params: dict[str, Any] = Field(default_factory=dict[str, Any])


class TableQuery(RequestModel):
    """How to parse a file. Omitted options are detected."""

    name: str | None = Field(None, max_length=300, description="File name.", examples=["ideas.csv"])
    format: Literal["csv", "tsv", "xlsx", "jsonl"] | None = None
    encoding: str | None = Field(None, max_length=50)
    delimiter: str | None = Field(None, max_length=1)
    sheet: str | None = Field(None, max_length=200)
    header: bool = True


@with_options(BulkOptions, in_query=True)
class UploadQuery(TableQuery, _NewBulk):
    """How to parse a file, and the options of its job."""

    params: str | None = Field(
        None, max_length=100_000, description="A JSON object.", examples=['{"style": "noir"}']
    )


class CheckQuery(TableQuery):
    """How to parse a file, and its bulk type."""

    type: str = Field(max_length=200, examples=["ideas"])


class ForecastQuery(CheckQuery):
    """How to parse a file, and the job to forecast."""

    tenant_id: UUID | None = None
    budget: MoneyText | None = None
    params: str | None = Field(None, max_length=100_000)


class NewRow(RequestModel):
    """A row with its number in the source."""

    number: RowNumber
    data: dict[str, Any]

    @property
    def problem(self) -> None:
        """Posted rows have no parse errors."""


class NewRows(RequestModel):
    """Rows to add. Rows with a known number are skipped, unless they were refused."""

    rows: list[NewRow] = Field(min_length=1, examples=[[{"number": 7, "data": {"title": "owls"}}]])


class Undo(RequestModel):
    """The rows and names of values to undo. Default: all."""

    rows: list[RowNumber] | None = Field(None, min_length=1, max_length=10_000)
    names: list[str] | None = Field(None, min_length=1, max_length=1000)


class BulkResponse(BaseModel):
    """A bulk job: progress, rows, wait reasons, refused rows and failures."""

    job: JobResponse
    source: dict[str, Any]
    key: list[str] | None
    batch: int | None
    group_by: str | None
    preview: bool
    skip_done: bool
    confirmed_at: datetime | None
    to_confirm: int = Field(
        description="Tasks that wait for confirmation: `POST /api/jobs/{job_id}/confirm`."
    )
    rows: RowCounts
    cost: Decimal
    budget: Decimal | None
    applied: int
    undone: int
    waits: tuple[Wait, ...]
    problems: tuple[Cause, ...] = Field(description="Refused rows by cause.")
    failures: tuple[Cause, ...] = Field(description="Failed tasks by cause.")


# Files


_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "description": "The file: CSV, TSV, XLSX or JSONL.",
        "content": {
            kind: {"schema": {"type": "string", "format": "binary"}}
            for kind in ("text/csv", "application/x-ndjson", "application/octet-stream")
        },
    }
}


def _parsed(request: Request, table: TableQuery) -> Any:
    chosen = table.model_dump(include=set(TableQuery.model_fields))
    return parsed(request.app, request.state.file.name, chosen)


def _params(text: str | None, limits: Limits) -> dict[str, Any]:
    params: Any = {} if text is None else read_json(text.encode("utf-8", "replace"), limits)
    if not isinstance(params, dict):
        raise Invalid("params must be a JSON object", code="invalid_params", details={"field": "params"})
    return cast("dict[str, Any]", params)


def _check_type(request: Request, name: str) -> None:
    app: App | None = request.app.state.app
    if app is None or name not in app.bulks:
        raise NotFound(
            f"unknown bulk type {name!r}: the API was not started with an app that defines it",
            code="unknown_bulk_type",
            hint="Start it with: penstock serve MODULE:APP",
        )


def _acting(request: Request) -> Any:
    return request.app.state.callers.acting(request.state.caller)


# Starting

start_routes = router("bulks", StartRoute)
file_routes = router("bulks", FileRoute)
export_routes = router("bulks", ExportRoute)
routes = router("bulks")


@start_routes.post("/bulks/start", status_code=201)
async def start_bulk(conn: Conn, bulk: BulkRequest, idempotency_key: KeyHeader = None) -> JobStarted:
    """Start a bulk job from rows. A worker validates them and creates their tasks."""
    if bulk.rows is None and bulk.source.get("type") != "google-sheets":
        raise Invalid("rows are required unless source is a Google Sheet", details={"field": "rows"})
    job_id = await bulks.start(
        conn,
        type=bulk.type,
        rows=None if bulk.rows is None else bulks.numbered(bulk.rows),
        source={"type": "rows", **bulk.source},
        params=bulk.params,
        **bulk.options(),
        idempotency_key=idempotency_key,
    )
    return JobStarted(id=job_id)


@file_routes.post("/bulks/upload", summary="Start Bulk From File", status_code=201, openapi_extra=_BODY)
async def upload_bulk(
    request: Request, bulk: Annotated[UploadQuery, Query()], idempotency_key: KeyHeader = None
) -> JobStarted:
    """Start a bulk job from a file, which is the request body."""
    params = _params(bulk.params, request.app.state.limits)
    async with _parsed(request, bulk) as (rows, described), _acting(request) as conn:
        job_id = await bulks.start(
            conn,
            type=bulk.type,
            rows=rows,
            source=described,
            params=params,
            **bulk.options(),
            idempotency_key=idempotency_key,
        )
    return JobStarted(id=job_id)


@file_routes.post("/bulks/check", openapi_extra=_BODY)
async def check_bulk(request: Request, query: Annotated[CheckQuery, Query()]) -> SourceCheck:
    """Check a file: list line, column and reason of the first 1000 problems. Requires the app."""
    _check_type(request, query.type)
    table = query.model_dump(include=set(TableQuery.model_fields))
    found = await examine(request, "check", query.type, table, most=_MAX_PROBLEMS)
    return SourceCheck(found["rows"], found["good"], [RowProblem(**each) for each in found["problems"]])


@file_routes.post("/bulks/forecast", openapi_extra=_BODY)
async def forecast_bulk(request: Request, query: Annotated[ForecastQuery, Query()]) -> Forecast:
    """Forecast cost, usage and duration of a job for a file without starting it. Requires the app."""
    _check_type(request, query.type)
    params = _params(query.params, request.app.state.limits)
    table = query.model_dump(include=set(TableQuery.model_fields))
    tasks, times = await examine(request, "sample", query.type, table, params=params)
    options: dict[str, Any] = {"budget": query.budget, "tenant_id": query.tenant_id}
    async with _acting(request) as conn:
        return await jobs.forecast(conn, type=query.type, tasks=tasks, times=times, **options)


# Reading


@routes.get("/bulks")
async def list_bulks(
    conn: Conn,
    filter: Annotated[str, filter_query("status:running type:ideas")] = "",
    tenant_id: TenantQuery = None,
    cursor: UuidCursor = None,
    limit: LimitQuery = 50,
) -> Page[BulkSummary]:
    """List bulk jobs, newest first. Filter by id, status, type, tenant or age."""
    found = await bulks.list(conn, filter=filter, tenant_id=tenant_id, before=cursor, limit=limit + 1)
    return page(found, limit, lambda bulk: bulk.id)


@routes.get("/bulks/{job_id:uuid}")
async def get_bulk(conn: Conn, job_id: UUID) -> BulkResponse:
    """Get a bulk job: progress, rows, wait reasons, refused rows and failures."""
    bulk = await bulks.get(conn, job_id=job_id)
    values = {name: getattr(bulk, name) for name in BulkResponse.model_fields if name != "job"}
    return BulkResponse(**values, job=JobResponse.of(bulk.job))


@routes.get("/bulks/{job_id:uuid}/rows")
async def list_rows(
    conn: Conn,
    job_id: UUID,
    state: Annotated[list[RowState] | None, Query(description="Only rows in these states.")] = None,
    cursor: NumberCursor = None,
    limit: LimitQuery = 50,
) -> Page[BulkResult]:
    """List rows by number, with their results and errors."""
    await bulks.get(conn, job_id=job_id)
    after = -1 if cursor is None else cursor
    found = await bulks.rows(conn, job_id=job_id, states=state, after=after, limit=limit + 1)
    return page(found, limit, lambda row: row.number)


@routes.post("/bulks/{job_id:uuid}/rows")
async def add_rows(conn: Conn, job_id: UUID, more: NewRows) -> RowsAdded:
    """Add rows to a bulk job that has not ended."""
    rows: Sequence[bulks.Row] = more.rows
    return await bulks.add_rows(conn, job_id=job_id, rows=rows)


@routes.post("/bulks/{job_id:uuid}/read", summary="Read Sheet Again", status_code=202)
async def read_again(conn: Conn, job_id: UUID) -> None:
    """Have a worker read the job's Google Sheet again and add new rows. The job must not have ended."""
    await bulks.read_again(conn, job_id=job_id)


@file_routes.post("/bulks/{job_id:uuid}/upload", summary="Add Rows From File", openapi_extra=_BODY)
async def add_file(request: Request, job_id: UUID, table: Annotated[TableQuery, Query()]) -> RowsAdded:
    """Add new and corrected rows from a file to a bulk job that has not ended."""
    async with _parsed(request, table) as (rows, _), _acting(request) as conn:
        return await bulks.add_rows(conn, job_id=job_id, rows=rows)


@routes.post("/bulks/{job_id:uuid}/undo", status_code=201)
async def undo_bulk(conn: Conn, job_id: UUID, what: Undo) -> JobStarted:
    """Start a job that undoes applied values: all of them, or only some rows or names."""
    return JobStarted(id=await bulks.undo(conn, job_id=job_id, rows=what.rows, names=what.names))


@export_routes.get(
    "/bulks/{job_id:uuid}/export",
    response_class=Response,
    responses={200: {"content": {kind: {"schema": {"type": "string"}} for kind in _TYPES.values()}}},
)
async def export_bulk(
    conn: Conn,
    job_id: UUID,
    format: Literal["csv", "jsonl", "xlsx"] = "csv",
    state: Annotated[list[RowState] | None, Query(description="Only rows in these states.")] = None,
) -> Response:
    """Export the rows as a file: original columns, state, result, error and cost."""
    return await exported(conn, job_id, format, state, name=str(job_id))


async def exported(
    conn: db.Connection,
    job_id: UUID,
    format: Literal["csv", "jsonl", "xlsx"],
    states: Sequence[RowState] | None,
    *,
    name: str,
) -> Response:
    """Export the rows to a temporary file, then stream it. Large exports are kept on disk."""
    file: IO[bytes] = SpooledTemporaryFile(max_size=1 << 20)  # noqa: SIM115 (_blocks closes it)
    try:
        await bulks.export(conn, job_id=job_id, format=format, out=file, states=states)
        size = file.tell()
        file.seek(0)
    except BaseException:
        file.close()
        raise
    headers = {
        "Content-Type": _TYPES[format],
        "Content-Disposition": f'attachment; filename="{name}.{format}"',
        "Content-Length": str(size),
        "ETag": tag_of(f"{job_id} {datetime.now().timestamp()}".encode()),
        "X-Content-Type-Options": "nosniff",
    }
    return StreamingResponse(_blocks(file), headers=headers)


async def _blocks(file: IO[bytes]) -> AsyncIterator[bytes]:
    with file:
        while block := file.read(_BLOCK):
            yield block
