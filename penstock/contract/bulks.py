"""Bulk jobs: start from the rows of a source, read, export, undo; and the calls of workers that load rows."""

from __future__ import annotations

import asyncio
import builtins
import json
import re
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, LiteralString, NamedTuple, Protocol, Unpack, cast
from uuid import UUID

import pydantic_core

from penstock import sources
from penstock.contract import filters
from penstock.postgres import db, json_batches
from penstock.types import Bulk, BulkOptions, BulkResult, BulkSummary, RowsAdded, RowState, given

FIELDS: Mapping[str, filters.Field] = {
    "id": filters.ids("id"),
    "status": filters.words("status", ("queued", "running", "paused", "completed", "failed", "canceled")),
    "type": filters.words("type"),
    "tenant": filters.tenant("tenant_id"),
    "age": filters.age("created_at"),
}
PART = 5000
MAX_ROW_BYTES = 262_144
"""Default of the setting `max_input_bytes`: the database rejects rows whose JSON is larger."""
_UNSTORABLE = re.compile("[\0\ud800-\udfff]")
_SAMPLE = 1000
"""The result columns of an export are those of this many first rows."""
_PAGE = 250
"""Rows read at once. Decoding more would block other requests of the process."""

_BULKS: LiteralString = """\
select id, tenant_id, type, status, status_reason, created_by, created_at, started_at, finished_at, source,
  total, loaded, refused, skipped, percent
from penstock.bulk_list where """
_ROWS: LiteralString = """\
select number, key, state, data, output, error_code, error_message, problem, retries, cost, started_at,
  finished_at, changes, undone
from penstock.bulk_row_list where job_id = %s and number > %s and state = any (coalesce(%s, array[state]))
order by number limit %s"""
_COUNTS: LiteralString = """\
select state, count(*) from penstock.bulk_row_list where job_id = %s
group by state order by count(*) desc, state"""


class Row(Protocol):
    """A row of a source: its number as people see it, its values, and why it cannot be read, if so."""

    @property
    def number(self) -> int: ...
    @property
    def data(self) -> Mapping[str, Any]: ...
    @property
    def problem(self) -> Any: ...


@dataclass(slots=True)
class Numbered:
    """A row that does not come from a file."""

    number: int
    data: Mapping[str, Any]
    problem: Any = None


class Taken(NamedTuple):
    """A row that a worker loads next."""

    number: int
    key: str
    group: str | None
    data: dict[str, Any]


# Sources


def opened(source: Any) -> AbstractContextManager[Iterable[Any]]:
    """The source; a path is opened, and closed at the end of the context."""
    return sources.open(source) if isinstance(source, str | Path) else nullcontext(source)


def numbered(source: Iterable[Any]) -> Iterable[Row]:
    """The rows of a source. Plain dicts get numbers from 1."""
    return source if isinstance(source, sources.Source) else _counted(source)


def _counted(source: Iterable[Any]) -> Iterator[Row]:
    for number, row in enumerate(source, 1):
        if isinstance(row, Mapping):
            yield Numbered(number, cast("Mapping[str, Any]", row))
        else:
            yield row


def describe(source: Any) -> dict[str, Any]:
    """The description of a source that is stored with the job."""
    known = dict[str, Any](getattr(source, "description", None) or {"type": "rows"})
    columns = getattr(source, "columns", None)
    return {**known, "columns": columns} if columns else known


def batches(source: Iterable[Row]) -> Iterator[bytes]:
    """The rows of a source as JSON arrays, for `PreparedRows`."""
    texts = json_batches.json_arrays(map(_document, source), max_items=PART, dumps=_text)
    return (text.encode() for text in texts)


@dataclass(frozen=True, slots=True)
class PreparedRows:
    """A file of rows that another process has read: JSON arrays, each after its length in four bytes."""

    path: Path

    def __iter__(self) -> Iterator[str]:
        with self.path.open("rb") as file:
            while size := int.from_bytes(file.read(4), "big"):
                yield file.read(size).decode()


# Starting


async def start(
    database: db.Database,
    *,
    type: str,
    rows: Iterable[Row] | PreparedRows | None,
    source: Mapping[str, Any] | None = None,
    params: Mapping[str, Any] | None = None,
    **options: Unpack[BulkOptions],
) -> UUID:
    """Start a bulk job with any number of rows in one transaction; the iterable is read while it is sent.

    A file is read in a thread. An idempotency key that was used before returns its job and reads no row.
    Without rows, a worker reads them from the source.
    """
    async with db.transaction(database) as conn:
        [opened] = await db.call(
            conn,
            "open_bulk",
            p_type=type,
            p_source=dict(source or {}),
            p_options=given(options),
            p_params=dict(params or {}),
        )
        if opened["is_new"] and rows is not None:
            await add_rows(conn, job_id=opened["job_id"], rows=rows)
        return opened["job_id"]


async def add_rows(
    database: db.Database, *, job_id: UUID, rows: Iterable[Row] | PreparedRows, load: bool = True
) -> RowsAdded:
    """Add rows to a bulk job that has not ended, in one transaction. Rows that it already has are skipped.

    With `load=False` they wait for a later call that loads.
    """
    counts: builtins.list[dict[str, int]] = []

    async with db.transaction(database) as conn:

        async def send(part: db.Json, load: bool = False) -> None:
            counts.append(await db.value(conn, "add_bulk_rows", p_job_id=job_id, p_rows=part, p_load=load))

        if isinstance(rows, PreparedRows):
            for text in rows:
                await send(db.Json([], dumps=lambda _, text=text: text))
        else:
            is_file = isinstance(rows, sources.Source)
            await json_batches.send_in_batches(
                map(_document, rows), send, max_items=PART, dumps=_text, in_thread=is_file
            )
        await send(db.Json([]), load)
    return RowsAdded(**{name: sum(count[name] for count in counts) for name in counts[0]})


def row_bytes(row: Row, limit: int) -> int | None:
    """The size of a row as the database measures it, if it exceeds `limit`."""
    # A character has at most six bytes as JSON. So most rows are below the limit without counting bytes.
    if _most_bytes(row.data) + 100 <= limit:
        return None
    text = json.dumps({"number": row.number, "data": row.data}, ensure_ascii=False, default=str)
    size = len(text.encode(errors="replace"))
    return size if size > limit else None


def _most_bytes(value: Any) -> int:
    match value:
        case str():
            return 6 * len(value) + 4
        case Mapping():
            items = cast("Mapping[str, Any]", value).items()
            return 4 + sum(_most_bytes(name) + _most_bytes(item) for name, item in items)
        case builtins.list() | tuple():
            return 4 + sum(map(_most_bytes, cast("Sequence[Any]", value)))
        case int() | float() | None:
            return 350
        case _:
            return 6 * len(str(value)) + 4


def _document(row: Row) -> dict[str, Any]:
    document: dict[str, Any] = {"number": row.number, "data": row.data}
    if row.problem is not None:
        document["problem"] = row.problem
    return document


def _text(rows: Sequence[dict[str, Any]]) -> str:
    """Rows as JSON. A row with text that PostgreSQL cannot store is rejected; the other rows start."""
    try:
        text = pydantic_core.to_json(rows).decode()
        if "\\u0000" not in text:
            return text
    except (ValueError, pydantic_core.PydanticSerializationError):
        pass
    return json.dumps([_storable(row) for row in rows])


def _storable(row: dict[str, Any]) -> dict[str, Any]:
    try:
        text = pydantic_core.to_json(row).decode()
        if "\\u0000" not in text:
            return json.loads(text)
    except (ValueError, pydantic_core.PydanticSerializationError):
        pass
    column = next((name for name, value in row["data"].items() if _UNSTORABLE.search(f"{name}{value}")), "")
    message = "contains a NUL character, an unpaired surrogate or a value that JSON cannot represent"
    problem = {"code": "unstorable_text", "column": ascii(column)[1:-1], "message": message}
    return {"number": row["number"], "data": {}, "problem": problem}


# A source that workers read and write


async def source(database: db.Database, *, job_id: UUID) -> tuple[dict[str, Any], builtins.list[str]]:
    """The source of a job's rows, and the columns that form their keys."""
    [(found, key)] = await db.rows(
        database, "select source, key from penstock.bulks where job_id = %s", (job_id,)
    )
    return found, key or []


async def read_again(database: db.Database, *, job_id: UUID) -> None:
    """Let a worker read the Google Sheet of a job that has not ended again, and add its new rows."""
    await db.call(database, "read_bulk_again", p_job_id=job_id)


# Reading


async def get(database: db.Database, *, job_id: UUID) -> Bulk:
    """A bulk job with its progress, what its tasks wait for, and its failures by cause."""
    return Bulk.read(await db.document(database, "get_bulk", p_job_id=job_id))


async def list(
    database: db.Database,
    *,
    filter: str = "",
    tenant_id: UUID | None = None,
    before: UUID | None = None,
    limit: int = 50,
) -> builtins.list[BulkSummary]:
    """Bulk jobs, newest first. The next page is `before` the id of the last job of this page."""
    chosen = await filters.conditions(database, filter, FIELDS)
    if tenant_id is not None:
        chosen.append(("tenant_id = %s", [tenant_id]))
    if before is not None:
        chosen.append(("id < %s", [before]))
    condition, values = filters.every(chosen)
    rows = await db.rows(
        database, _BULKS + condition + " order by id desc limit %s", [*values, filters.page(limit)]
    )
    return [BulkSummary(*row) for row in rows]


async def rows(
    database: db.Database,
    *,
    job_id: UUID,
    states: Sequence[RowState] | None = None,
    after: int = -1,
    limit: int = 50,
) -> builtins.list[BulkResult]:
    """Rows in the order of their numbers. The next page is `after` the last number of this page."""
    wanted = None if states is None else builtins.list(states)
    found = await db.rows(database, _ROWS, (job_id, after, wanted, filters.page(limit)))
    return [BulkResult(*row) for row in found]


async def counts(database: db.Database, *, job_id: UUID) -> dict[str, int]:
    """The number of rows by state. Reads all rows, which takes a while for a large job."""
    found = await db.rows(database, _COUNTS, (job_id,))
    return {state: count for state, count in found}


async def results(
    database: db.Database, *, job_id: UUID, states: Sequence[RowState] | None = None
) -> AsyncIterator[BulkResult]:
    """All rows with their results, page by page."""
    after = -1
    while page := await rows(database, job_id=job_id, states=states, after=after, limit=_PAGE):
        for row in page:
            yield row
        after = page[-1].number


async def export(
    database: db.Database,
    *,
    job_id: UUID,
    format: str,
    out: IO[bytes],
    states: Sequence[RowState] | None = None,
) -> int:
    """Write the rows with their original columns and results; returns the number of rows.

    An object result has one column per field.
    """
    bulk = await get(database, job_id=job_id)
    data = dict.fromkeys(bulk.source.get("columns") or [])
    fields: dict[str, None] = {}
    first: builtins.list[BulkResult] = []
    while len(first) < _SAMPLE:
        after = first[-1].number if first else -1
        page = await rows(database, job_id=job_id, states=states, after=after, limit=_PAGE)
        first += page
        for row in page:
            data |= dict.fromkeys(row.data)
            fields |= dict.fromkeys(_fields(row.output))
        if len(page) < _PAGE:
            break
    added = {name: _free(name, data) for name in ("row", "state", *fields, "error_code", "error", "cost")}
    table = sources.writer([*data, *added.values()], format, out)
    try:
        page = first
        while page:
            # Formatting takes longer than reading: other requests of the process must not wait for it.
            await asyncio.to_thread(_add_to, table, page, added)
            page = await rows(database, job_id=job_id, states=states, after=page[-1].number, limit=_PAGE)
        await asyncio.to_thread(table.close)
    except BaseException:
        table.discard()
        raise
    return table.count


def _add_to(table: sources.Writer, page: Sequence[BulkResult], added: Mapping[str, str]) -> None:
    for row in page:
        found = {
            "row": row.number,
            "state": row.state,
            "error_code": row.error_code,
            "error": row.error_message,
            "cost": row.cost,
            **_fields(row.output),
        }
        table.add({**row.data, **{added[name]: value for name, value in found.items() if name in added}})


def _fields(output: Any) -> dict[str, Any]:
    """The columns of a result."""
    if isinstance(output, dict):
        return {f"result.{name}": value for name, value in cast("dict[str, Any]", output).items()}
    return {} if output is None else {"result": output}


def _free(name: str, taken: Mapping[str, Any]) -> str:
    while name in taken:
        name = f"{name}_"
    return name


# Acting


async def undo(
    database: db.Database,
    *,
    job_id: UUID,
    rows: Sequence[int] | None = None,
    names: Sequence[str] | None = None,
) -> UUID:
    """Start a job that undoes applied changes: of all rows or some, of all values or some."""
    wanted = {"rows": rows, "names": names}
    filter = {name: builtins.list(some) for name, some in wanted.items() if some is not None}
    return await db.value(database, "undo_bulk", p_job_id=job_id, p_filter=filter)


async def define_type(database: db.Database, *, name: str, **values: Any) -> None:
    """Define a bulk type with key, batch, group_by and is_exclusive."""
    chosen = {name: value for name, value in values.items() if value is not None}
    await db.call(database, "define_bulk_type", p_name=name, p_values=chosen)


# Calls of the tasks of a bulk job. `by` is the running task: its id, worker and lease.


class By(NamedTuple):
    """A running task."""

    task_id: int
    worker_id: str
    lease: int

    def arguments(self) -> dict[str, Any]:
        """The parameters of SQL functions."""
        return {"p_task_id": self.task_id, "p_worker_id": self.worker_id, "p_lease": self.lease}


async def take_rows(database: db.Connection, by: By, *, limit: int) -> builtins.list[Taken]:
    """The next rows to load."""
    found = await db.call(database, "take_bulk_rows", **by.arguments(), p_max=limit)
    return [Taken(row["number"], row["key"], row["group_key"], row["data"]) for row in found]


async def mark_rows(
    database: db.Connection, by: By, *, rows: Sequence[Mapping[str, Any]], next_id: int | None
) -> None:
    """Record the outcomes of rows that were taken."""
    marks = db.Json(builtins.list(rows))
    await db.call(database, "mark_bulk_rows", **by.arguments(), p_rows=marks, p_next_id=next_id)


async def rows_of(
    database: db.Connection, by: By, *, job_id: UUID, numbers: Sequence[int]
) -> builtins.list[Taken]:
    """Rows by their numbers."""
    chosen = builtins.list(numbers)
    found = await db.call(database, "get_bulk_rows", **by.arguments(), p_job_id=job_id, p_numbers=chosen)
    return [Taken(row["number"], row["key"], None, row["data"]) for row in found]


async def record_changes(database: db.Connection, by: By, *, changes: Sequence[Mapping[str, Any]]) -> None:
    """Record applied changes."""
    await db.call(database, "record_changes", **by.arguments(), p_changes=db.Json(builtins.list(changes)))


async def changes_to_undo(database: db.Connection, by: By) -> builtins.list[db.Row]:
    """The changes for an undo task to undo, newest first."""
    return await db.call(database, "undo_changes", **by.arguments())


async def rows_to_write(database: db.Database, *, job_id: UUID, limit: int = 1000) -> builtins.list[db.Row]:
    """Ended rows whose outcome is not in their source yet."""
    return await db.call(database, "bulk_rows_to_write", p_job_id=job_id, p_max=limit)


async def mark_written(database: db.Database, *, job_id: UUID, written: Mapping[int, str]) -> int:
    """Record the states of rows that were written to the source."""
    numbers, states = builtins.list(written), builtins.list(written.values())
    return await db.value(database, "mark_rows_written", p_job_id=job_id, p_numbers=numbers, p_states=states)
