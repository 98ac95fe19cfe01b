"""Bulk jobs over HTTP: rows posted as JSON or as a file; what became of them, and out again as a file."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from dataclasses import replace
from datetime import datetime
from decimal import Decimal
from tempfile import SpooledTemporaryFile
from typing import IO, Annotated, Any, Literal, cast
from uuid import UUID

from fastapi import Header, Query, Request, Response
from fastapi.responses import StreamingResponse
from fastapi.routing import APIRoute
from pydantic import BaseModel, Field, StrictBool

from penstock import bulks, db, jobs, sources
from penstock.api.fields import NUMERIC, Asked, Money, MoneyText, StopAfter
from penstock.api.jobs import JobAnswer, JobStarted
from penstock.api.limits import Limits, arriving, read_json
from penstock.api.pages import LimitQuery, NumberCursor, Page, TenantQuery, UuidCursor, filter_query, page
from penstock.api.routes import Held, Route, StartRoute, router, tag_of
from penstock.app import App
from penstock.errors import Invalid, NotFound, TooLarge
from penstock.types import (
    BulkResult,
    BulkSummary,
    Cause,
    Forecast,
    OnFailure,
    OnLimit,
    RowCounts,
    RowsAdded,
    RowState,
    SourceCheck,
    Wait,
)

_BLOCK = 1 << 16
_TYPES = {
    "csv": "text/csv; charset=utf-8",
    "jsonl": "application/x-ndjson",
    "xlsx": "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
}
_MOST_PROBLEMS = 1000

KeyHeader = Annotated[
    str | None,
    Header(min_length=1, max_length=255, description="The same key gives the same job in a tenant."),
]
RowNumber = Annotated[int, Field(ge=0, le=10**15), NUMERIC]


# What is asked and answered


class BulkOptions(Asked):
    """How a bulk job is started, apart from its rows."""

    type: str = Field(max_length=200, examples=["ideas"])
    tenant_id: UUID | None = None
    budget: MoneyText | None = Field(None, description="It pauses before it costs more.")
    stop_after: StopAfter | None = Field(None, description="Pause after so many failures, or such a part.")
    on_failure: OnFailure | None = None
    on_limit: OnLimit | None = None
    preview: bool | None = Field(None, description="Only the first batch, until the job is confirmed.")
    skip_done: bool | None = Field(None, description="Leave out rows that succeeded before, by their key.")
    key: list[str] | None = Field(
        None, min_length=1, max_length=50, description="The columns that name a row."
    )
    priority: Annotated[int, Field(ge=0, le=10)] | None = None
    paused: bool | None = None

    def options(self) -> dict[str, Any]:
        """What `bulks.start` takes."""
        chosen = self.model_dump(include=set(BulkOptions.model_fields) - {"type"})
        if chosen["tenant_id"] is None:
            del chosen["tenant_id"]
        return chosen


class BulkRequest(BulkOptions):
    """A bulk job of rows that are posted. Larger ones are uploaded as a file."""

    rows: list[dict[str, Any]] | None = Field(
        None,
        description="What is in each row, by column. They are numbered from 1. "
        "Left out, a worker reads them from the source, a Google Sheet.",
        examples=[[{"title": "otters", "seconds": 5}, {"title": "herons"}]],
    )
    source: dict[str, Any] = Field(
        default_factory=dict[str, Any],
        description="Where they are from. `id` or `name` stays the same when they are sent again. "
        'A Google Sheet is `{"type": "google-sheets", "id": "…", "range": "Ideas!A1:F"}`.',
        examples=[{"name": "ideas of May"}],
    )
    params: dict[str, Any] = Field(default_factory=dict[str, Any])
    budget: Money | None = None
    priority: Annotated[int, Field(ge=0, le=10), NUMERIC] | None = None
    preview: StrictBool | None = None
    skip_done: StrictBool | None = None
    paused: StrictBool | None = None


class TableQuery(Asked):
    """How a file is read. What is not said is found out."""

    name: str | None = Field(None, max_length=300, description="What it is called.", examples=["ideas.csv"])
    format: Literal["csv", "tsv", "xlsx", "jsonl"] | None = None
    encoding: str | None = Field(None, max_length=50)
    delimiter: str | None = Field(None, max_length=1)
    sheet: str | None = Field(None, max_length=200)
    header: bool = True


class UploadQuery(TableQuery, BulkOptions):
    """How a file is read, and its job started."""

    params: str | None = Field(
        None, max_length=100_000, description="A JSON object.", examples=['{"style": "noir"}']
    )


class CheckQuery(TableQuery):
    """How a file is read, and for which type."""

    type: str = Field(max_length=200, examples=["ideas"])


class ForecastQuery(CheckQuery):
    """How a file is read, and what its job would be."""

    tenant_id: UUID | None = None
    budget: MoneyText | None = None
    params: str | None = Field(None, max_length=100_000)


class NewRow(Asked):
    """A row, with its number as a person sees it."""

    number: RowNumber
    data: dict[str, Any]

    @property
    def problem(self) -> None:
        """It can be read."""


class NewRows(Asked):
    """Rows to add. A number that is there already is left out, unless its row was refused."""

    rows: list[NewRow] = Field(min_length=1, examples=[[{"number": 7, "data": {"title": "owls"}}]])


class Undo(Asked):
    """What to undo; left out: all."""

    rows: list[RowNumber] | None = Field(None, min_length=1, max_length=10_000)
    names: list[str] | None = Field(None, min_length=1, max_length=1000)


class BulkAnswer(BaseModel):
    """A bulk job: its progress, its rows, what waits for what, and what went wrong."""

    job: JobAnswer
    source: dict[str, Any]
    key: list[str] | None
    batch: int | None
    group_by: str | None
    preview: bool
    skip_done: bool
    confirmed_at: datetime | None
    to_confirm: int = Field(
        description="Tasks that wait for a confirmation: `POST /api/jobs/{job_id}/confirm`."
    )
    rows: RowCounts
    cost: Decimal
    budget: Decimal | None
    applied: int
    undone: int
    waits: tuple[Wait, ...]
    problems: tuple[Cause, ...] = Field(description="Rows that were refused, by cause.")
    failures: tuple[Cause, ...] = Field(description="Tasks that failed, by cause.")


# Files


class FileRoute(Route):
    """A route that takes a file as its body. No connection is held while it arrives, or waits for others.

    What is in a file is somebody else's: it is opened and read in threads, and never on the event loop.
    """

    is_key_passed_on = True

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = APIRoute.get_route_handler(self)

        async def answer(request: Request) -> Response:
            await self._caller(request)
            limits: Limits = request.app.state.limits
            with SpooledTemporaryFile(max_size=1 << 20) as file:
                async for chunk in arriving(request):
                    if file.tell() + len(chunk) > limits.file_bytes:
                        text = f"a file has at most {limits.file_bytes} bytes"
                        raise TooLarge(text, details={"limit": limits.file_bytes})
                    file.write(chunk)
                request.state.file = file
                async with request.app.state.files:
                    return await handle(request)

        return answer


_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "description": "The file as it is: CSV, TSV, XLSX or JSONL.",
        "content": {
            kind: {"schema": {"type": "string", "format": "binary"}}
            for kind in ("text/csv", "application/x-ndjson", "application/octet-stream")
        },
    }
}


async def _opened(request: Request, table: TableQuery) -> sources.Source:
    chosen = table.model_dump(include=set(TableQuery.model_fields))
    file: IO[bytes] = request.state.file
    return await asyncio.to_thread(sources.open, file, **chosen)


def _params(text: str | None, limits: Limits) -> dict[str, Any]:
    params: Any = {} if text is None else read_json(text.encode("utf-8", "replace"), limits)
    if not isinstance(params, dict):
        raise Invalid("params is a JSON object", code="invalid_params", details={"field": "params"})
    return cast("dict[str, Any]", params)


def _type(request: Request, name: str) -> Any:
    app: App | None = request.app.state.app
    if app is None or name not in app.bulks:
        raise NotFound(
            "the API was started without an app that has this bulk type",
            code="unknown_bulk_type",
            hint="penstock serve MODULE:APP",
        )
    return app.bulks[name]


def _acting(request: Request) -> Any:
    return request.app.state.callers.acting(request.state.caller)


# Starting

start_routes = router("bulks", StartRoute)
file_routes = router("bulks", FileRoute)
routes = router("bulks")


@start_routes.post("/bulks/start", status_code=201)
async def start_bulk(held: Held, bulk: BulkRequest, idempotency_key: KeyHeader = None) -> JobStarted:
    """Make a bulk job of rows. A worker checks them and makes their tasks."""
    if bulk.rows is None and bulk.source.get("type") != "google-sheets":
        raise Invalid("there are no rows, and no sheet to read them from", details={"field": "rows"})
    job_id = await bulks.start(
        held,
        type=bulk.type,
        rows=None if bulk.rows is None else bulks.numbered(bulk.rows),
        source={"type": "rows", **bulk.source},
        params=bulk.params,
        **bulk.options(),
        idempotency_key=idempotency_key,
    )
    return JobStarted(id=job_id)


@file_routes.post("/bulks/upload", status_code=201, openapi_extra=_BODY)
async def upload_bulk(
    request: Request, bulk: Annotated[UploadQuery, Query()], idempotency_key: KeyHeader = None
) -> JobStarted:
    """Make a bulk job of the rows of a file, which is the body."""
    params = _params(bulk.params, request.app.state.limits)
    with await _opened(request, bulk) as source:
        async with _acting(request) as held:
            job_id = await bulks.start(
                held,
                type=bulk.type,
                rows=source,
                source=bulks.describe(source),
                params=params,
                **bulk.options(),
                idempotency_key=idempotency_key,
            )
    return JobStarted(id=job_id)


@file_routes.post("/bulks/check", openapi_extra=_BODY)
async def check_bulk(request: Request, asked: Annotated[CheckQuery, Query()]) -> SourceCheck:
    """The rows of a file that would be refused: line, column and reason of the first 1000. Needs the app."""
    type = _type(request, asked.type)
    with await _opened(request, asked) as source:
        found: SourceCheck = await asyncio.to_thread(type.check, source)
    return replace(found, problems=found.problems[:_MOST_PROBLEMS])


@file_routes.post("/bulks/forecast", openapi_extra=_BODY)
async def forecast_bulk(request: Request, asked: Annotated[ForecastQuery, Query()]) -> Forecast:
    """What a job of this file would cost, use and take. Nothing is started. Needs the app."""
    type = _type(request, asked.type)
    params = _params(asked.params, request.app.state.limits)
    with await _opened(request, asked) as source:
        tasks, times = await asyncio.to_thread(type.sample, source, params)
    options: dict[str, Any] = {"budget": asked.budget, "tenant_id": asked.tenant_id}
    async with _acting(request) as held:
        return await jobs.forecast(held, type=asked.type, tasks=tasks, times=times, **options)


# Looking


@routes.get("/bulks")
async def list_bulks(
    held: Held,
    filter: Annotated[str, filter_query("status:running type:ideas")] = "",
    tenant_id: TenantQuery = None,
    cursor: UuidCursor = None,
    limit: LimitQuery = 50,
) -> Page[BulkSummary]:
    """Bulk jobs, newest first. Fields to filter by: id, status, type, tenant, age."""
    found = await bulks.list(held, filter=filter, tenant_id=tenant_id, before=cursor, limit=limit + 1)
    return page(found, limit, lambda bulk: bulk.id)


@routes.get("/bulks/{job_id:uuid}")
async def get_bulk(held: Held, job_id: UUID) -> BulkAnswer:
    """A bulk job: its progress, its rows, what waits for what, and what went wrong."""
    bulk = await bulks.get(held, job_id=job_id)
    values = {name: getattr(bulk, name) for name in BulkAnswer.model_fields if name != "job"}
    return BulkAnswer(**values, job=JobAnswer.of(bulk.job))


@routes.get("/bulks/{job_id:uuid}/rows")
async def list_rows(
    held: Held,
    job_id: UUID,
    state: Annotated[list[RowState] | None, Query(description="Only rows in these states.")] = None,
    cursor: NumberCursor = None,
    limit: LimitQuery = 50,
) -> Page[BulkResult]:
    """Rows in the order of their numbers, with their results and errors."""
    await bulks.get(held, job_id=job_id)
    after = -1 if cursor is None else cursor
    found = await bulks.rows(held, job_id=job_id, states=state, after=after, limit=limit + 1)
    return page(found, limit, lambda row: row.number)


@routes.post("/bulks/{job_id:uuid}/rows")
async def add_rows(held: Held, job_id: UUID, more: NewRows) -> RowsAdded:
    """Add rows to a bulk job that has not ended."""
    rows: Sequence[bulks.Row] = more.rows
    return await bulks.add_rows(held, job_id=job_id, rows=rows)


@routes.post("/bulks/{job_id:uuid}/read", status_code=202)
async def read_again(held: Held, job_id: UUID) -> None:
    """Let a worker read the Google Sheet of a bulk job that has not ended once more: new rows are added."""
    await bulks.read_again(held, job_id=job_id)


@file_routes.post("/bulks/{job_id:uuid}/upload", openapi_extra=_BODY)
async def add_file(request: Request, job_id: UUID, table: Annotated[TableQuery, Query()]) -> RowsAdded:
    """Read a file again into a bulk job that has not ended: new rows are added, refused ones taken again."""
    with await _opened(request, table) as source:
        async with _acting(request) as held:
            return await bulks.add_rows(held, job_id=job_id, rows=source)


@routes.post("/bulks/{job_id:uuid}/undo", status_code=201)
async def undo_bulk(held: Held, job_id: UUID, what: Undo) -> JobStarted:
    """Start a job that undoes what was applied: of all rows or some, every value or some."""
    return JobStarted(id=await bulks.undo(held, job_id=job_id, rows=what.rows, names=what.names))


@routes.get(
    "/bulks/{job_id:uuid}/export",
    response_class=Response,
    responses={200: {"content": {kind: {"schema": {"type": "string"}} for kind in _TYPES.values()}}},
)
async def export_bulk(
    held: Held,
    job_id: UUID,
    format: Literal["csv", "jsonl", "xlsx"] = "csv",
    state: Annotated[list[RowState] | None, Query(description="Only rows in these states.")] = None,
) -> Response:
    """The rows with their original columns, their states, results, errors and costs, as a file."""
    return await exported(held, job_id, format, state, name=str(job_id))


async def exported(
    held: db.Connection,
    job_id: UUID,
    format: Literal["csv", "jsonl", "xlsx"],
    states: Sequence[RowState] | None,
    *,
    name: str,
) -> Response:
    """The rows as a file, which is whole before the first of it is sent; of a large one, most is on disk."""
    file: IO[bytes] = SpooledTemporaryFile(max_size=1 << 20)  # noqa: SIM115 (it is closed when it is sent)
    try:
        await bulks.export(held, job_id=job_id, format=format, out=file, states=states)
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
