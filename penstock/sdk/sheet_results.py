"""Bulk jobs from Google Sheets: tasks that read a sheet's rows and write results back.

`{type}.read` reads the sheet in parts, one call per task. `{type}.write` runs as long as the job, as a chain
of tasks: one waits for finished rows, the next writes all of them in one call, and so on. Each read of the
sheet starts a chain; a chain waits for another one that is writing, so that only one writes at a time. After
a crash the task runs again, which is safe: rows are identified by number, tasks by key, and writes are
idempotent.

Tasks that call Google have the account as their provider, so that they are claimed only within its quota. The
project's quota is acquired right before each call.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import asdict, dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar
from uuid import UUID

from pydantic import TypeAdapter, ValidationError

from penstock.contract import bulks, jobs, links, providers
from penstock.contract import sheets as bindings
from penstock.errors import Forbidden, Invalid, Limited, NotFound, Unauthenticated
from penstock.postgres import db
from penstock.sdk import signals
from penstock.sdk.context import Context, Fail, Reschedule
from penstock.settings import settings
from penstock.sheets import (
    COLUMNS,
    LARGEST_REQUEST,
    Block,
    GoogleSheet,
    Part,
    blocks,
    cell,
    table_rows,
)
from penstock.sources import Header, Row
from penstock.sources.a1 import Range, parse
from penstock.types import referred

if TYPE_CHECKING:
    from penstock.sheets import Sheets

R = TypeVar("R")
Metric = Literal["read", "write"]
DueRow = Mapping[str, Any]

WAIT_SECONDS = 10.0
"""Interval of writing results back."""
MOST_ROWS = 2000
"""Maximum rows written in one call."""

_PROVIDER = "google-sheets"
_SHEET = TypeAdapter(GoogleSheet)
_ROW_BYTES = 100  # upper limit of a row's overhead in a request
_LONGEST_ERROR = 1000
_LIVE = """\
select t.id, starts_with(t.idempotency_key, 'write:') from penstock.tasks t
where t.job_id = %s and t.kind = %s and t.idempotency_key is not null
  and not exists (select from penstock.results r where r.job_id = t.job_id and r.task_id = t.id)"""
_LATER = "select penstock._now() + make_interval(secs => %s)"


class Host(Protocol):
    """The parts of App that these tasks use."""

    @property
    def task(self) -> Any: ...
    def connections(self) -> AbstractAsyncContextManager[db.Pool]: ...
    def sheets_of(self, tenant_id: UUID) -> Sheets: ...


@dataclass(frozen=True, slots=True)
class TableLocation:
    """Location of a table: its sheet, the row and first column of its header, and its columns."""

    sheet: str
    top: int
    left: int
    columns: list[str]


def add_to(app: Host, name: str, columns: Callable[[], set[str]]) -> None:
    """Add the read and write tasks of a bulk type whose rows have these columns."""
    tasks = _Tasks(app, name, columns)
    for verb, handler in (("read", tasks.read), ("write", tasks.write)):
        app.task(kind=f"{name}.{verb}", max_attempts=50, backoff=2, backoff_cap=64)(handler)


class _Tasks:
    """The read and write tasks of a bulk type."""

    def __init__(self, app: Host, name: str, columns: Callable[[], set[str]]) -> None:
        self._app, self._name, self._columns = app, name, columns

    # --- reading ---

    async def read(
        self,
        ctx: Context,
        area: str | None = None,
        done: int = 0,
        size: int = 0,
        place: dict[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Find the sheet, or read a part of its rows; then add the task for the next part."""
        async with self._app.connections() as pool, _final():
            google = self._app.sheets_of(ctx.tenant_id)
            source, _ = await _source(pool, ctx.job_id)
            if ctx.provider is None:
                require_apart(source.get("write") or {}, self._columns())
                await _bind(pool, google, ctx.tenant_id)
                await providers.ensure_sheets_account(pool, account=google.id)
                await self._call_next(ctx, "read", google, {})
                return {"account": google.account or google.id}
            calls = _Calls(pool, google, ctx)
            if area is None:
                # Bound after Google's first answer, so that a tenant cannot bind a sheet that it cannot read.
                await _bind(pool, google, ctx.tenant_id, source["id"], is_new=False)
                found = await calls.read(google.describe, source["id"])
                await _bind(pool, google, ctx.tenant_id, source["id"])
                chosen = str(found.area(source.get("range"), source.get("gid")))
                await self._call_next(ctx, "read", google, {"area": chosen})
                return {"title": found.title, "range": chosen}
            await _bind(pool, google, ctx.tenant_id, source["id"])
            part = Part(parse(area), done, size)
            assert part.next is not None
            [values] = await calls.read(google.get, source["id"], [part.next])
            table = None if place is None else TableLocation(**place)
            return await self._take(ctx, pool, google, source, part, values, table)

    async def _take(
        self,
        ctx: Context,
        pool: db.Pool,
        google: Sheets,
        source: dict[str, Any],
        part: Part,
        values: list[list[Any]],
        table: TableLocation | None,
    ) -> dict[str, Any]:
        table, found = _rows(source, part, values, table)
        following = part.after(values)
        is_last = following.next is None
        if table is None and is_last:
            raise Fail(f"range {part.area} is empty", code="no_rows")
        added = await bulks.add_rows(pool, job_id=ctx.job_id, rows=found, load=is_last)
        state = None if table is None else asdict(table)
        if not is_last:
            input = {"area": str(part.area), "done": following.done, "size": following.size, "place": state}
            await self._call_next(ctx, "read", google, input)
        elif source.get("write"):
            await self._wait_next(ctx, pool, state, WAIT_SECONDS)
        return {"rows": len(found), "added": added.added, "refused": added.refused}

    # --- writing ---

    async def write(self, ctx: Context, place: dict[str, Any]) -> dict[str, Any]:
        """Wait for finished rows, or write them back."""
        async with self._app.connections() as pool, _final():
            google = self._app.sheets_of(ctx.tenant_id)
            if ctx.provider is None:
                return await self._wait(ctx, pool, google, place)
            due = await bulks.rows_to_write(pool, job_id=ctx.job_id, limit=MOST_ROWS)
            written = await self._write_back(ctx, pool, google, due, TableLocation(**place)) if due else {}
            is_more = bool(await bulks.rows_to_write(pool, job_id=ctx.job_id, limit=1))
            is_whole = len(due) == MOST_ROWS or written.get("rows", 0) + written.get("lost", 0) < len(due)
            await self._wait_next(ctx, pool, place, 0 if is_more and is_whole else WAIT_SECONDS)
            return written

    async def _wait(
        self, ctx: Context, pool: db.Pool, google: Sheets, place: dict[str, Any]
    ) -> dict[str, Any]:
        kind = f"{self._name}.write"
        writers = await db.rows(pool, _LIVE, (ctx.job_id, kind))
        if any(id < ctx.task_id or calls for id, calls in writers):
            raise Reschedule(WAIT_SECONDS, "another task is writing")
        if await bulks.rows_to_write(pool, job_id=ctx.job_id, limit=1):
            await self._call_next(ctx, "write", google, {"place": place})
            return {}
        job = await jobs.get(pool, job_id=ctx.job_id)
        if job.progress.total - job.progress.done > len(writers):
            raise Reschedule(WAIT_SECONDS, "waiting for rows to finish")
        return {"all": True}

    async def _write_back(
        self, ctx: Context, pool: db.Pool, google: Sheets, due: Sequence[DueRow], place: TableLocation
    ) -> dict[str, Any]:
        source, key = await _source(pool, ctx.job_id)
        id, calls = source["id"], _Calls(pool, google, ctx)
        await _bind(pool, google, ctx.tenant_id, id)
        names, keys = await self._read_names_and_keys(calls, google, source, place, key)
        column_numbers, heading = _column_numbers(place, names, source["write"])
        if heading:
            await self._add_missing_columns(calls, google, id, place, max(column_numbers.values()))
        found, lost = _current_rows(await _with_links(pool, ctx.job_id, due), place, key, keys)
        chosen = _fitting(found)
        data = [*heading, *_data(chosen, place.sheet, column_numbers)]
        # Check the lease, so that a stale worker does not write old values.
        await ctx.aheartbeat()
        cells = await calls.write(google.write, id, data)
        states = {row["number"]: row["state"] for row in [*chosen.values(), *lost]}
        await bulks.mark_written(pool, job_id=ctx.job_id, written=states)
        return {"rows": len(chosen), "cells": cells, "lost": len(lost)}

    async def _read_names_and_keys(
        self, calls: _Calls, google: Sheets, source: dict[str, Any], place: TableLocation, key: Sequence[str]
    ) -> tuple[list[Any], dict[int, str | None] | None]:
        """Read the current column names and row keys (if any), because people move rows and columns."""
        line = Range(place.sheet, place.top, None, place.top, None)
        column_numbers = [place.left + place.columns.index(name) for name in key if name in place.columns]
        names, *parts = await calls.read(google.get, source["id"], [line, *_columns(place, column_numbers)])
        heading = names[0] if names else []
        known = [source.get("rename", {}).get(name, name) for name in Header(heading).columns]
        now = [known.index(name) + 1 for name in key if name in known]
        if not key or len(now) < len(key):
            return heading, None
        if now != column_numbers:
            parts = await calls.read(google.get, source["id"], _columns(place, now))
        cells = zip_longest(*([row[0] if row else None for row in part] for part in parts))
        return heading, {number: _key(row) for number, row in enumerate(cells, place.top + 1)}

    async def _add_missing_columns(
        self, calls: _Calls, google: Sheets, id: str, place: TableLocation, last: int
    ) -> None:
        tab = (await calls.read(google.describe, id)).tab(place.sheet)
        if last > tab.columns:
            await calls.write(google.add_columns, id, tab, last - tab.columns)

    # --- next tasks ---

    async def _call_next(self, ctx: Context, metric: Metric, google: Sheets, input: dict[str, Any]) -> None:
        provider = f"{_PROVIDER}/{metric}:{google.id}"
        kind, key = f"{self._name}.{metric}", f"{metric}:{ctx.task_id}"
        await ctx.aadd_tasks([{"kind": kind, "provider": provider, "idempotency_key": key, "input": input}])

    async def _wait_next(
        self, ctx: Context, pool: db.Pool, place: dict[str, Any] | None, seconds: float
    ) -> None:
        [(later,)] = await db.rows(pool, _LATER, (seconds,))
        kind, key = f"{self._name}.write", f"wait:{ctx.task_id}"
        task = {"kind": kind, "idempotency_key": key, "run_at": later.isoformat(), "input": {"place": place}}
        await ctx.aadd_tasks([task])


class _Calls:
    """Calls to Google within the quotas. The claim already acquired capacity for the task's first call."""

    def __init__(self, pool: db.Pool, google: Sheets, ctx: Context) -> None:
        self._pool, self._google, self._ctx = pool, google, ctx
        self._admitted = ctx.provider

    async def read(self, method: Callable[..., Awaitable[R]], *arguments: Any) -> R:
        """Call a read method."""
        return await self._call("read", method, arguments)

    async def write(self, method: Callable[..., Awaitable[R]], *arguments: Any) -> R:
        """Call a write method."""
        return await self._call("write", method, arguments)

    async def _call(
        self, metric: Metric, method: Callable[..., Awaitable[R]], arguments: tuple[Any, ...]
    ) -> R:
        own = f"{metric}:{self._google.id}"
        name = f"{_PROVIDER}/{own}"
        wanted = [metric] if name == self._admitted else [own, metric]
        for endpoint in wanted:
            if not await providers.acquire(self._pool, provider=_PROVIDER, endpoint=endpoint):
                raise Reschedule(random.uniform(1, 4), f"the quota of {_PROVIDER}/{endpoint} is used up")
        if name == self._admitted:
            self._admitted = None
        try:
            return await method(*arguments)
        except Limited as error:
            if name == self._ctx.provider:
                raise  # the worker reports it
            await providers.report(self._pool, name=name, signal=signals.of(error) or {"status": 429})
            raise Reschedule(random.uniform(1, 4), error.message) from error


@asynccontextmanager
async def _final() -> AsyncGenerator[None]:
    """Turn errors that a retry cannot fix into Fail."""
    try:
        yield
    except (Invalid, Forbidden, NotFound, Unauthenticated) as error:
        raise Fail(str(error), code=error.code, details=error.details) from error


async def _source(pool: db.Pool, job_id: UUID) -> tuple[dict[str, Any], list[str]]:
    """The validated description of a job's sheet, and the job's key columns."""
    found, key = await bulks.source(pool, job_id=job_id)
    values = {name: found[name] for name in ("range", "rename", "write", "link") if name in found}
    try:
        sheet = _SHEET.validate_python({"spreadsheet": found.get("id"), "write": False} | values)
    except ValidationError as error:
        raise Invalid(f"invalid Google Sheet source: {error}", code="invalid_spreadsheet") from error
    return {"gid": found.get("gid")} | sheet.description, key


async def _bind(
    pool: db.Pool, google: Sheets, tenant_id: UUID, sheet: str | None = None, *, is_new: bool = True
) -> None:
    """Bind the account and the sheet to the tenant. Raises Forbidden if another tenant has one of them."""
    await bindings.bind(
        pool, tenant_id=tenant_id, account=google.id, label=google.account, sheet=sheet, is_new=is_new
    )


def require_apart(written: Mapping[str, str], columns: Iterable[str]) -> None:
    """Raise Invalid if a column is both read and written."""
    for name in set(written.values()).intersection(columns):
        hint = f"Choose another name for the written column: write={{...: {name + ' of the job'!r}}}."
        raise Invalid(f"column {name!r} is both read and written", code="duplicate_column", hint=hint)


async def _with_links(pool: db.Pool, job_id: UUID, due: Sequence[DueRow]) -> list[DueRow]:
    """The rows, with a link where the output is a file of the job. Links need `PENSTOCK_PUBLIC_URL`."""
    base = settings().public_url
    files = {row["number"]: id for row in due if (id := _file_of(row["output"])) is not None} if base else {}
    if not files:
        return list(due)
    paths = await links.of_job(pool, job_id=job_id, artifact_ids=[*files.values()])
    found = {number: f"{base}{paths[id]}" for number, id in files.items() if id in paths}
    return [{**row, "link": found[row["number"]]} if row["number"] in found else row for row in due]


def _file_of(output: Any) -> UUID | None:
    """The id of the file that an output is or names, as `ctx.save` returns it."""
    with suppress(ValueError):
        match output:
            case {"artifact_id": str(text)}:
                return UUID(text)
            case _:
                return referred(output)
    return None


async def fetch(pool: db.Pool, google: Sheets, source: Mapping[str, Any], tenant_id: UUID) -> list[Row]:
    """Fetch all rows of a tenant's sheet for a check or forecast. Waits for the quotas."""
    await _bind(pool, google, tenant_id, source["id"], is_new=False)
    await providers.ensure_sheets_account(pool, account=google.id)

    async def read(method: Callable[..., Awaitable[R]], *arguments: Any) -> R:
        for endpoint in (f"read:{google.id}", "read"):
            while not await providers.acquire(pool, provider=_PROVIDER, endpoint=endpoint):  # noqa: ASYNC110
                await asyncio.sleep(random.uniform(0.5, 1.5))
        return await method(*arguments)

    described = await read(google.describe, source["id"])
    await _bind(pool, google, tenant_id, source["id"])
    part, table, rows = Part(described.area(source.get("range"), source.get("gid"))), None, list[Row]()
    while part.next is not None:
        [values] = await read(google.get, source["id"], [part.next])
        table, found = _rows(source, part, values, table)
        rows += found
        part = part.after(values)
    return rows


def _rows(
    source: Mapping[str, Any], part: Part, values: list[list[Any]], table: TableLocation | None
) -> tuple[TableLocation | None, list[Row]]:
    """The location of the table, whose header is the first row that is not empty, and the rows of a part."""
    first = (part.area.top or 1) + part.done
    if table is None and (skipped := _leading_blank_rows(values)) < len(values):
        columns = Header(values[skipped], source.get("rename")).columns
        table = TableLocation(part.area.sheet or "", first + skipped, part.area.left or 1, columns)
        values, first = values[skipped + 1 :], first + skipped + 1
    if table is None:
        return None, []
    own = set(dict[str, str](source.get("write") or {}).values())
    found = list(table_rows(Header(table.columns), first, values))
    for row in found:
        # Drop the columns that an earlier job wrote.
        row.data = {name: value for name, value in row.data.items() if name not in own}
    return table, found


def _columns(place: TableLocation, columns: Iterable[int]) -> list[Range]:
    """Ranges of columns, without the header."""
    return [Range(place.sheet, place.top + 1, column, None, column) for column in columns]


def _leading_blank_rows(values: Sequence[Sequence[Any]]) -> int:
    """Number of empty rows at the beginning."""
    return next((n for n, row in enumerate(values) if any(str(value).strip() for value in row)), len(values))


def _column_numbers(
    place: TableLocation, names: Sequence[Any], wanted: Mapping[str, str]
) -> tuple[dict[str, int], list[Block]]:
    """The column number of each written column, and a block with the names to add at the right."""
    known = Header(names).columns
    missing = [wanted[column] for column in COLUMNS if wanted[column] not in known]
    all_names = [*known, *missing]
    column_numbers = {column: all_names.index(wanted[column]) + 1 for column in COLUMNS}
    heading = [Block(Range(place.sheet, place.top, len(known) + 1), [list(missing)])] if missing else []
    return column_numbers, heading


def _current_rows(
    due: Iterable[DueRow], place: TableLocation, key: Sequence[str], keys: Mapping[int, str | None] | None
) -> tuple[dict[int, DueRow], list[DueRow]]:
    """The current sheet row of each due row, and the due rows that are no longer in the sheet."""
    if keys is None:
        return {row["number"]: row for row in due}, []
    numbers: dict[str | None, list[int]] = {}
    for number, text in keys.items():
        numbers.setdefault(text, []).append(number)
    found: dict[int, DueRow] = {}
    lost: list[DueRow] = []
    for row in due:
        own = _key([row["data"].get(name) for name in key])
        is_there = keys.get(row["number"]) == own
        places = [row["number"]] if is_there else numbers.get(own, []) if own is not None else []
        if len(places) == 1 and places[0] not in found:
            found[places[0]] = row
        else:
            lost.append(row)
    return found, lost


def _fitting(found: Mapping[int, DueRow]) -> dict[int, DueRow]:
    """As many rows as fit into one request."""
    size, chosen = 10_000, dict[int, DueRow]()
    for number, row in found.items():
        size += len(json.dumps(list(_values(row).values()), ensure_ascii=False).encode()) + _ROW_BYTES
        if size > LARGEST_REQUEST and chosen:
            break
        chosen[number] = row
    return chosen


def _data(chosen: Mapping[int, DueRow], sheet: str, column_numbers: Mapping[str, int]) -> list[Block]:
    """The cells to write, in blocks of adjacent columns."""
    runs: list[list[str]] = []
    for column in sorted(column_numbers, key=lambda column: column_numbers[column]):
        if runs and column_numbers[runs[-1][-1]] + 1 == column_numbers[column]:
            runs[-1].append(column)
        else:
            runs.append([column])
    values = {number: _values(row) for number, row in chosen.items()}
    return [
        block
        for run in runs
        for block in blocks(
            sheet, column_numbers[run[0]], {n: [row[column] for column in run] for n, row in values.items()}
        )
    ]


def _values(row: DueRow) -> dict[str, Any]:
    """The values to write for a row."""
    code, output = row["error_code"], row["output"]
    match output:
        case {"url": str(url)} if "link" not in row or not url.startswith("/"):
            shown = url
        case _:
            shown = row.get("link", output)
    error = f"{code}: {row['error_message']}"[:_LONGEST_ERROR] if code else ""
    values = (row["state"], shown, row["cost"], error)
    return dict(zip(COLUMNS, map(cell, values), strict=True))


def _key(values: Sequence[Any]) -> str | None:
    """The key of a row; None if all key columns are empty."""
    if all(value is None or value == "" for value in values):
        return None
    return json.dumps(list(values), ensure_ascii=False)
