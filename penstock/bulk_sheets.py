"""Bulk jobs from Google Sheets: the tasks that read a sheet's rows, and write back what became of them.

`{type}.read` reads the sheet part by part, each task one call. `{type}.write` goes on as long as the job: one
that waits and looks what has ended, one that writes all of that in one call, the next that waits. Each time
the sheet is read such a chain begins; one that finds another at work waits for it, so that one writes at a
time. A crash at any point is made good by running it again: rows are known by their numbers, tasks by their
keys, and a write that is repeated is the same write.

Those that call Google name the account's endpoint as their provider, so that they are claimed when its quota
has room. The project's quota is asked for right before each call.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import asdict, dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar
from uuid import UUID

from pydantic import TypeAdapter, ValidationError

from penstock import bulks, db, jobs, providers, signals
from penstock.context import Context, Fail, Reschedule
from penstock.errors import Forbidden, Invalid, Limited, NotFound, Unauthenticated
from penstock.sheets import COLUMNS, LARGEST_REQUEST, Block, GoogleSheet, Part, blocks, cell, table_rows
from penstock.sources import Header, Row
from penstock.sources.a1 import Range, parse

if TYPE_CHECKING:
    from penstock.sheets import Sheets

R = TypeVar("R")
Metric = Literal["read", "write"]
DueRow = Mapping[str, Any]

WAIT_SECONDS = 10.0
"""What has ended is written back so often."""
MOST_ROWS = 2000
"""So many rows are written with one call, if they fit."""

_PROVIDER = "google-sheets"
_SHEET = TypeAdapter(GoogleSheet)
_ROW_BYTES = 100  # around a row's values in a request, at most
_LONGEST_ERROR = 1000
_LIVE = """\
select t.id, starts_with(t.idempotency_key, 'write:') from penstock.tasks t
where t.job_id = %s and t.kind = %s and t.idempotency_key is not null
  and not exists (select from penstock.results r where r.job_id = t.job_id and r.task_id = t.id)"""
_LATER = "select penstock._now() + make_interval(secs => %s)"


class Host(Protocol):
    """What is asked of the app."""

    @property
    def task(self) -> Any: ...
    def connections(self) -> AbstractAsyncContextManager[db.Pool]: ...
    def sheets_of(self, tenant_id: UUID) -> Sheets: ...


@dataclass(frozen=True, slots=True)
class Place:
    """Where a table is: its sheet, the row and the first column of its header, and its columns."""

    sheet: str
    top: int
    left: int
    columns: list[str]


def add_to(app: Host, name: str, columns: Callable[[], set[str]]) -> None:
    """Add the tasks of a type of bulk job, whose rows have these columns."""
    tasks = _Tasks(app, name, columns)
    for verb, handler in (("read", tasks.read), ("write", tasks.write)):
        app.task(kind=f"{name}.{verb}", max_attempts=50, backoff=2, backoff_cap=64)(handler)


class _Tasks:
    """Both kinds of a type."""

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
        """Find the sheet, or read a part of its rows; and say who reads the next."""
        async with self._app.connections() as where, _final():
            google = self._app.sheets_of(ctx.tenant_id)
            source, _ = await _source(where, ctx.job_id)
            if ctx.provider is None:
                require_apart(source.get("write") or {}, self._columns())
                await providers.ensure_sheets_account(where, account=google.id)
                await self._call_next(ctx, "read", google, {})
                return {"account": google.account or google.id}
            calls = _Calls(where, google, ctx)
            if area is None:
                found = await calls.read(google.describe, source["id"])
                chosen = str(found.area(source.get("range"), source.get("gid")))
                await self._call_next(ctx, "read", google, {"area": chosen})
                return {"title": found.title, "range": chosen}
            part = Part(parse(area), done, size)
            assert part.next is not None
            [values] = await calls.read(google.get, source["id"], [part.next])
            table = None if place is None else Place(**place)
            return await self._take(ctx, where, google, source, part, values, table)

    async def _take(
        self,
        ctx: Context,
        where: db.Pool,
        google: Sheets,
        source: dict[str, Any],
        part: Part,
        values: list[list[Any]],
        table: Place | None,
    ) -> dict[str, Any]:
        table, found = _rows(source, part, values, table)
        following = part.after(values)
        is_last = following.next is None
        if table is None and is_last:
            raise Fail(f"there is nothing in {part.area}", code="no_rows")
        added = await bulks.add_rows(where, job_id=ctx.job_id, rows=found, load=is_last)
        state = None if table is None else asdict(table)
        if not is_last:
            input = {"area": str(part.area), "done": following.done, "size": following.size, "place": state}
            await self._call_next(ctx, "read", google, input)
        elif source.get("write"):
            await self._wait_next(ctx, where, state, WAIT_SECONDS)
        return {"rows": len(found), "added": added.added, "refused": added.refused}

    # --- writing ---

    async def write(self, ctx: Context, place: dict[str, Any]) -> dict[str, Any]:
        """Wait for rows that have ended; or write them back."""
        async with self._app.connections() as where, _final():
            google = self._app.sheets_of(ctx.tenant_id)
            if ctx.provider is None:
                return await self._wait(ctx, where, google, place)
            due = await bulks.rows_to_write(where, job_id=ctx.job_id, limit=MOST_ROWS)
            written = await self._write_back(ctx, where, google, due, Place(**place)) if due else {}
            is_more = bool(await bulks.rows_to_write(where, job_id=ctx.job_id, limit=1))
            is_whole = len(due) == MOST_ROWS or written.get("rows", 0) + written.get("lost", 0) < len(due)
            await self._wait_next(ctx, where, place, 0 if is_more and is_whole else WAIT_SECONDS)
            return written

    async def _wait(
        self, ctx: Context, where: db.Pool, google: Sheets, place: dict[str, Any]
    ) -> dict[str, Any]:
        kind = f"{self._name}.write"
        writers = await db.rows(where, _LIVE, (ctx.job_id, kind))
        if any(id < ctx.task_id or calls for id, calls in writers):
            raise Reschedule(WAIT_SECONDS, "another writes")
        if await bulks.rows_to_write(where, job_id=ctx.job_id, limit=1):
            await self._call_next(ctx, "write", google, {"place": place})
            return {}
        job = await jobs.get(where, job_id=ctx.job_id)
        if job.progress.total - job.progress.done > len(writers):
            raise Reschedule(WAIT_SECONDS, "waits for rows to end")
        return {"all": True}

    async def _write_back(
        self, ctx: Context, where: db.Pool, google: Sheets, due: Sequence[DueRow], place: Place
    ) -> dict[str, Any]:
        source, key = await _source(where, ctx.job_id)
        id, calls = source["id"], _Calls(where, google, ctx)
        names, keys = await self._look(calls, google, source, place, key)
        spots, heading = _spots(place, names, source["write"])
        if heading:
            await self._make_room(calls, google, id, place, max(spots.values()))
        found, lost = _targets(due, place, key, keys)
        chosen = _fitting(found)
        data = [*heading, *_data(chosen, place.sheet, spots)]
        # A worker that is late must not write what is old by now.
        await ctx.aheartbeat()
        cells = await calls.write(google.write, id, data)
        states = {row["number"]: row["state"] for row in [*chosen.values(), *lost]}
        await bulks.mark_written(where, job_id=ctx.job_id, written=states)
        return {"rows": len(chosen), "cells": cells, "lost": len(lost)}

    async def _look(
        self, calls: _Calls, google: Sheets, source: dict[str, Any], place: Place, key: Sequence[str]
    ) -> tuple[list[Any], dict[int, str | None] | None]:
        """The names, and each row's key if rows have one, as they are now: people move rows and columns."""
        line = Range(place.sheet, place.top, None, place.top, None)
        spots = [place.left + place.columns.index(name) for name in key if name in place.columns]
        names, *parts = await calls.read(google.get, source["id"], [line, *_columns(place, spots)])
        heading = names[0] if names else []
        known = [source.get("rename", {}).get(name, name) for name in Header(heading).columns]
        now = [known.index(name) + 1 for name in key if name in known]
        if not key or len(now) < len(key):
            return heading, None
        if now != spots:
            parts = await calls.read(google.get, source["id"], _columns(place, now))
        cells = zip_longest(*([row[0] if row else None for row in part] for part in parts))
        return heading, {number: _key(row) for number, row in enumerate(cells, place.top + 1)}

    async def _make_room(self, calls: _Calls, google: Sheets, id: str, place: Place, last: int) -> None:
        tab = (await calls.read(google.describe, id)).tab(place.sheet)
        if last > tab.columns:
            await calls.write(google.add_columns, id, tab, last - tab.columns)

    # --- who comes next ---

    async def _call_next(self, ctx: Context, metric: Metric, google: Sheets, input: dict[str, Any]) -> None:
        provider = f"{_PROVIDER}/{metric}:{google.id}"
        kind, key = f"{self._name}.{metric}", f"{metric}:{ctx.task_id}"
        await ctx.aadd_tasks([{"kind": kind, "provider": provider, "idempotency_key": key, "input": input}])

    async def _wait_next(
        self, ctx: Context, where: db.Pool, place: dict[str, Any] | None, seconds: float
    ) -> None:
        [(later,)] = await db.rows(where, _LATER, (seconds,))
        kind, key = f"{self._name}.write", f"wait:{ctx.task_id}"
        task = {"kind": kind, "idempotency_key": key, "run_at": later.isoformat(), "input": {"place": place}}
        await ctx.aadd_tasks([task])


class _Calls:
    """Calls of Google, each within the quotas. The first of the task's own kind was admitted at its claim."""

    def __init__(self, where: db.Pool, google: Sheets, ctx: Context) -> None:
        self._where, self._google, self._ctx = where, google, ctx
        self._admitted = ctx.provider

    async def read(self, method: Callable[..., Awaitable[R]], *arguments: Any) -> R:
        """Call a method that is a read."""
        return await self._call("read", method, arguments)

    async def write(self, method: Callable[..., Awaitable[R]], *arguments: Any) -> R:
        """Call a method that is a write."""
        return await self._call("write", method, arguments)

    async def _call(
        self, metric: Metric, method: Callable[..., Awaitable[R]], arguments: tuple[Any, ...]
    ) -> R:
        own = f"{metric}:{self._google.id}"
        name = f"{_PROVIDER}/{own}"
        wanted = [metric] if name == self._admitted else [own, metric]
        for endpoint in wanted:
            if not await providers.acquire(self._where, provider=_PROVIDER, endpoint=endpoint):
                raise Reschedule(random.uniform(1, 4), f"the quota of {_PROVIDER}/{endpoint} is used up")
        if name == self._admitted:
            self._admitted = None
        try:
            return await method(*arguments)
        except Limited as error:
            if name == self._ctx.provider:
                raise  # the worker passes it on
            await providers.report(self._where, name=name, signal=signals.of(error) or {"status": 429})
            raise Reschedule(random.uniform(1, 4), error.message) from error


@asynccontextmanager
async def _final() -> AsyncGenerator[None]:
    """What no second try makes better ends the task for good."""
    try:
        yield
    except (Invalid, Forbidden, NotFound, Unauthenticated) as error:
        raise Fail(str(error), code=error.code, details=error.details) from error


async def _source(where: db.Pool, job_id: UUID) -> tuple[dict[str, Any], list[str]]:
    """What a job reads and writes, as `GoogleSheet` says it, whoever made the job; and its key."""
    found, key = await bulks.source(where, job_id=job_id)
    values = {name: found[name] for name in ("range", "rename", "write") if name in found}
    try:
        sheet = _SHEET.validate_python({"spreadsheet": found.get("id"), "write": False} | values)
    except ValidationError as error:
        raise Invalid(f"the source is not a Google Sheet: {error}", code="invalid_spreadsheet") from error
    return {"gid": found.get("gid")} | sheet.description, key


def require_apart(written: Mapping[str, str], columns: Iterable[str]) -> None:
    """Refuse to write what is read."""
    for name in set(written.values()).intersection(columns):
        hint = f"Call it otherwise: write={{...: {name + ' of the job'!r}}}."
        raise Invalid(f"the column {name!r} is read and written", code="duplicate_column", hint=hint)


async def fetch(where: db.Pool, google: Sheets, source: Mapping[str, Any]) -> list[Row]:
    """All rows of a sheet, to look at them before a job is started. Waits until the quotas have room."""
    await providers.ensure_sheets_account(where, account=google.id)

    async def read(method: Callable[..., Awaitable[R]], *arguments: Any) -> R:
        for endpoint in (f"read:{google.id}", "read"):
            while not await providers.acquire(where, provider=_PROVIDER, endpoint=endpoint):  # noqa: ASYNC110
                await asyncio.sleep(random.uniform(0.5, 1.5))
        return await method(*arguments)

    described = await read(google.describe, source["id"])
    part, table, rows = Part(described.area(source.get("range"), source.get("gid"))), None, list[Row]()
    while part.next is not None:
        [values] = await read(google.get, source["id"], [part.next])
        table, found = _rows(source, part, values, table)
        rows += found
        part = part.after(values)
    return rows


def _rows(
    source: Mapping[str, Any], part: Part, values: list[list[Any]], table: Place | None
) -> tuple[Place | None, list[Row]]:
    """The rows of a part, and where the table is: its header is the first row that is not empty."""
    first = (part.area.top or 1) + part.done
    if table is None and (skipped := _blank(values)) < len(values):
        columns = Header(values[skipped], source.get("rename")).columns
        table = Place(part.area.sheet or "", first + skipped, part.area.left or 1, columns)
        values, first = values[skipped + 1 :], first + skipped + 1
    if table is None:
        return None, []
    own = set(dict[str, str](source.get("write") or {}).values())
    found = list(table_rows(Header(table.columns), first, values))
    for row in found:
        # What an earlier job wrote is not what this one is given.
        row.data = {name: value for name, value in row.data.items() if name not in own}
    return table, found


def _columns(place: Place, columns: Iterable[int]) -> list[Range]:
    """Columns of a table, below their names."""
    return [Range(place.sheet, place.top + 1, column, None, column) for column in columns]


def _blank(values: Sequence[Sequence[Any]]) -> int:
    """How many rows at the beginning are empty."""
    return next((n for n, row in enumerate(values) if any(str(value).strip() for value in row)), len(values))


def _spots(
    place: Place, names: Sequence[Any], wanted: Mapping[str, str]
) -> tuple[dict[str, int], list[Block]]:
    """The column of each thing that is written, by its name, and the names to add at the right."""
    known = Header(names).columns
    missing = [wanted[thing] for thing in COLUMNS if wanted[thing] not in known]
    all_names = [*known, *missing]
    spots = {thing: all_names.index(wanted[thing]) + 1 for thing in COLUMNS}
    heading = [Block(Range(place.sheet, place.top, len(known) + 1), [list(missing)])] if missing else []
    return spots, heading


def _targets(
    due: Iterable[DueRow], place: Place, key: Sequence[str], keys: Mapping[int, str | None] | None
) -> tuple[dict[int, DueRow], list[DueRow]]:
    """In which row of the sheet each row is now, and those that are nowhere any more."""
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
    """As many as one request takes."""
    size, chosen = 10_000, dict[int, DueRow]()
    for number, row in found.items():
        size += len(json.dumps(list(_values(row).values()), ensure_ascii=False).encode()) + _ROW_BYTES
        if size > LARGEST_REQUEST and chosen:
            break
        chosen[number] = row
    return chosen


def _data(chosen: Mapping[int, DueRow], sheet: str, spots: Mapping[str, int]) -> list[Block]:
    """The cells of rows, in blocks of columns that are side by side."""
    runs: list[list[str]] = []
    for thing in sorted(spots, key=lambda thing: spots[thing]):
        if runs and spots[runs[-1][-1]] + 1 == spots[thing]:
            runs[-1].append(thing)
        else:
            runs.append([thing])
    values = {number: _values(row) for number, row in chosen.items()}
    return [
        block
        for run in runs
        for block in blocks(
            sheet, spots[run[0]], {n: [row[thing] for thing in run] for n, row in values.items()}
        )
    ]


def _values(row: DueRow) -> dict[str, Any]:
    """What is written of a row."""
    code, output = row["error_code"], row["output"]
    match output:
        case {"url": str(url)}:
            shown = url
        case _:
            shown = output
    error = f"{code}: {row['error_message']}"[:_LONGEST_ERROR] if code else ""
    values = (row["state"], shown, row["cost"], error)
    return dict(zip(COLUMNS, map(cell, values), strict=True))


def _key(values: Sequence[Any]) -> str | None:
    """What tells a row from the others."""
    if all(value is None or value == "" for value in values):
        return None
    return json.dumps(list(values), ensure_ascii=False)
