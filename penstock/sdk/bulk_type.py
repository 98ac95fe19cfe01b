"""Bulk job types: how rows are validated and batched, which tasks they create, how results are applied.

    class Idea(BaseModel):
        title: str
        seconds: int = 5

    @app.bulk(row=Idea, key=["title"])
    def ideas(row: Idea):
        return render.step(write.step(row.title), row.seconds)

    job = ideas.options(budget=5).start("ideas.csv")

The body draws the task graph of one row, or of one batch. The output of the step it returns is the row's
result. A worker runs the body and loads the rows in parts: each part in one transaction with the tasks it
creates.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar, cast
from uuid import UUID

import pydantic

from penstock.contract import bulks, jobs, prompts
from penstock.contract.bulks import By, Taken
from penstock.errors import Invalid, Limited, PenstockError
from penstock.guards import Guard
from penstock.postgres import db
from penstock.sdk import bulk_guards
from penstock.sdk import sheet_results as bulk_sheets
from penstock.sdk.bulk_rows import (
    MAX_KEY_LENGTH,
    BulkRow,
    Change,
    Drawing,
    RowError,
    Sample,
    drawing_of_error,
    fitting,
    key_of_row,
    pack,
    reported_problem,
    row_problem,
    stored_problem,
)
from penstock.sdk.context import Context, Fail, Reschedule
from penstock.sdk.graph import Graph, Options, drawing
from penstock.sdk.prompts import Prompts
from penstock.sdk.signature import Signature, Step, key_of
from penstock.sheets import GoogleSheet
from penstock.types import BulkOptions, Forecast, JobOptions, RowProblem, SourceCheck

if TYPE_CHECKING:
    from penstock.sheets import Sheets

T = TypeVar("T", bound=pydantic.BaseModel)
PREVIEW = 5
"""Rows in a preview, unless rows are batched."""
PART = 1000
"""Rows loaded in one transaction."""
SAMPLE = 1000
"""Rows drawn for a forecast."""
_MAX_REJECTED = 20
_NONE = object()
_PARAMS = "select params from penstock.jobs where id = %s"


class Host(Protocol):
    """The parts of App that a bulk type uses."""

    @property
    def task(self) -> Any: ...
    @property
    def block(self) -> Any: ...
    @property
    def prompts(self) -> Prompts: ...
    def connections(self) -> AbstractAsyncContextManager[db.Pool]: ...
    async def ready(self, pool: db.Pool, options: Options, /) -> JobOptions: ...
    def sheets_of(self, tenant_id: UUID) -> Sheets: ...
    def started(self, job_id: UUID) -> Any: ...


class BulkType(Generic[T]):
    """A function that draws the task graph of a row or of a batch of rows."""

    def __init__(
        self, app: Host, function: Callable[..., Any], name: str, *, row: type[T], key: Sequence[str],
        batch: int | None, group_by: str | None, is_exclusive: bool, phases: dict[str, float],
        on_failure: str, guard: Guard | None = None,
    ) -> None:  # fmt: skip
        if inspect.iscoroutinefunction(function):
            raise Invalid(
                f"{name}: the body of a bulk job must not be async", hint="It only draws the task graph."
            )
        if group_by is not None and batch is None:
            raise Invalid(f"{name}: group_by requires batch", hint="Add batch=25, for example.")
        self.row = row
        for column in (*key, *([group_by] if group_by else []), *(guard.columns if guard else ())):
            if column not in self.columns() and row.model_config.get("extra") != "allow":
                raise Invalid(f"{name}: {row.__name__} has no column {column!r}")
        self.app, self.function, self.name = app, function, name
        self.key, self.batch, self.group_by = list(key), batch, group_by
        self.is_exclusive, self.phases, self.on_failure = is_exclusive, phases, on_failure
        self.guard, self.chosen = guard, Options()
        parameters = list(inspect.signature(function).parameters)
        if not parameters:
            raise Invalid(f"{name}: the body of a bulk job must have a parameter for the row or rows")
        self._first = parameters[0]
        self._signature = Signature(function, is_handler=False, without=self._first)
        self._apply: Callable[..., Awaitable[Sequence[Change] | None]] | None = None
        self._undo: Callable[..., Awaitable[None]] | None = None
        self.__doc__, self.__name__ = function.__doc__, function.__name__
        app.task(kind=f"{name}.load", transactional=True, max_attempts=10, backoff=1)(self._load)
        bulk_sheets.add_to(app, name, self.columns)

    def __repr__(self) -> str:
        return f"<bulk type {self.name}>"

    def all_phases(self) -> dict[str, float]:
        """The declared phases, and the internal ones with weight 0; empty if none are declared."""
        if not self.phases:
            return {}
        verbs = ("read", "load", "write", *(["apply"] if self._apply is not None else []))
        own = [f"{self.name}.{verb}" for verb in verbs]
        return {**dict.fromkeys(own, 0.0), **self.phases}

    def columns(self) -> set[str]:
        """The columns of the row model."""
        return {info.alias or field for field, info in self.row.model_fields.items()}

    def expected(self) -> dict[str, bool]:
        """The columns of the row model in order, and whether each is required."""
        fields = self.row.model_fields.items()
        return {info.alias or field: info.is_required() for field, info in fields}

    def declared(self) -> dict[str, Any]:
        """The declaration for `define_bulk_type`."""
        return {
            "key": self.key or None,
            "batch": self.batch,
            "group_by": self.group_by,
            "is_exclusive": self.is_exclusive or None,
        }

    # --- handlers ---

    def apply(self, function: Callable[..., Awaitable[Sequence[Change] | None]]) -> Any:
        """Register the apply handler: `async def apply(ctx, connection, row, result) -> list[Change]`.

        Its writes through the connection and the task's completion are one commit.
        """
        if self._apply is not None:
            raise Invalid(f"{self.name} already has an apply handler")
        self._apply = function
        self.app.task(kind=f"{self.name}.apply", transactional=True)(self._apply_rows)
        return function

    def undo(self, function: Callable[..., Awaitable[None]]) -> Any:
        """Register the undo handler: `async def undo(ctx, connection, row, change)`."""
        if self._undo is not None:
            raise Invalid(f"{self.name} already has an undo handler")
        self._undo = function
        self.app.task(kind=f"{self.name}.undo", transactional=True)(self._undo_row)
        return function

    # --- callers ---

    def options(self, **changes: Any) -> BulkType[T]:
        """A copy with other job options, and preview and skip_done."""
        other = cast("BulkType[T]", object.__new__(BulkType))
        other.__dict__.update(self.__dict__)
        other.chosen = self.chosen.changed(changes)
        for name in (*other.chosen.for_task(), *(["using"] if other.chosen.using is not None else [])):
            raise Invalid(f"{name} is not an option of a bulk job", details={"field": name})
        return other

    async def astart(self, source: Any, **params: Any) -> Any:
        """Start a bulk job from a path, an opened source, an iterable of dicts or a Google Sheet."""
        encoded, _ = self._signature.encode(params)
        is_sheet = isinstance(source, GoogleSheet)
        if is_sheet:
            bulk_sheets.require_apart(source.written, self.columns())
        async with self.app.connections() as pool:
            options = await self.app.ready(pool, self.chosen)
            chosen: BulkOptions = {**self.chosen.for_bulk(), "tenant_id": options.get("tenant_id")}
            with await asyncio.to_thread(bulks.opened, source) as table:
                job_id = await bulks.start(
                    pool, type=self.name, rows=None if is_sheet else bulks.numbered(table),
                    source=bulks.describe(table), params=encoded, **chosen,
                )  # fmt: skip
        return self.app.started(job_id)

    def start(self, source: Any, **params: Any) -> Any:
        """`astart` for code that is not async."""
        return self.app.block(self.astart(source, **params))

    def check(self, source: Any) -> SourceCheck:
        """List the rows that would be refused, with line, column and reason. Needs no database, except for
        the quotas of a Google Sheet."""
        rows = good = 0
        found: list[RowProblem] = []
        source = self.app.block(self.fetched(source)) if isinstance(source, GoogleSheet) else source
        with bulks.opened(source) as table:
            for problems in self.checked(table):
                rows += 1
                good += not problems
                found += problems
        return SourceCheck(rows, good, found)

    def checked(
        self, source: Iterable[Any], *, max_row_bytes: int = bulks.MAX_ROW_BYTES
    ) -> Iterator[list[RowProblem]]:
        """Yield the problems of each row: those for which the job would reject it."""
        for _, _, problems in self._examined(source, max_row_bytes):
            yield problems

    def _examined(
        self, source: Iterable[Any], max_row_bytes: int = bulks.MAX_ROW_BYTES
    ) -> Iterator[tuple[bulks.Row, T | None, list[RowProblem]]]:
        """Yield each row with its model, or with its problems."""
        keys: dict[int, int] = {}
        for row in bulks.numbered(source):
            if row.problem is not None:
                yield row, None, [reported_problem(row.number, row.problem)]
                continue
            if (size := bulks.row_bytes(row, max_row_bytes)) is not None:
                text = f"the row has {size:,} bytes as JSON; the limit is {max_row_bytes:,}"
                yield row, None, [RowProblem(row.number, None, "too_large", text)]
                continue
            model, problems = self._validated(row.number, row.data)
            if self.key:
                key = key_of_row(row.data, self.key)
                # Hashes need a tenth of the memory of keys.
                first = None if key is None else keys.setdefault(hash(key), row.number)
                if key is None and not any(each.column in self.key for each in problems):
                    columns = ", ".join(self.key)
                    text = f"the key is empty or longer than {MAX_KEY_LENGTH} characters: {columns}"
                    problems = [*problems, RowProblem(row.number, self.key[0], "no_key", text)]
                elif key is not None and first != row.number:
                    text = f"row {first} has the same key"
                    problems = [*problems, RowProblem(row.number, self.key[0], "duplicate_key", text)]
            yield row, None if problems else model, problems

    async def aforecast(self, source: Any, **params: Any) -> Forecast:
        """Forecast cost, usage and duration of a job for these rows, from a sample. Does not start it."""
        tasks, times = await asyncio.to_thread(self.sample, await self.fetched(source), params)
        async with self.app.connections() as pool:
            options = await self.app.ready(pool, self.chosen)
            return await jobs.forecast(pool, type=self.name, tasks=tasks, times=times, **options)

    def forecast(self, source: Any, **params: Any) -> Forecast:
        """`aforecast` for code that is not async."""
        return self.app.block(self.aforecast(source, **params))

    def sample(self, source: Any, params: Mapping[str, Any]) -> tuple[list[dict[str, Any]], float]:
        """The tasks of a sample of the rows that would run, and the factor from the sample to all of them."""
        values = self._signature.check(self._signature.encode(dict(params))[0])
        packs = Sample(SAMPLE if self.batch is None else -(-SAMPLE // self.batch))
        taken: list[BulkRow[T]] = []
        with bulks.opened(source) as table:
            for row, model, _ in self._examined(table):
                if model is None:
                    continue
                key = (key_of_row(row.data, self.key) if self.key else None) or str(row.number)
                taken.append(BulkRow[Any].model_construct(number=row.number, key=key, data=model))
                if len(taken) >= (self.batch or 1):
                    packs.add(taken)
                    taken = []
        if taken:
            packs.add(taken)
        if not packs.kept:
            raise Invalid("the source has no valid rows", code="no_rows")
        tasks = [task for pack in packs.kept for task in self._draw(pack, values, is_preview=False).tasks]
        return tasks, packs.count / len(packs.kept)

    async def fetched(self, source: Any) -> Any:
        """Fetch the rows of a Google Sheet. Returns other sources unchanged."""
        if not isinstance(source, GoogleSheet):
            return source
        async with self.app.connections() as pool:
            options = await self.app.ready(pool, self.chosen)
            tenant_id = UUID(str(options.get("tenant_id")))
            google = self.app.sheets_of(tenant_id)
            return await bulk_sheets.fetch(pool, google, source.description, tenant_id)

    # --- rows ---

    def _validated(self, number: int, data: Mapping[str, Any]) -> tuple[T | None, list[RowProblem]]:
        try:
            return self.row.model_validate(data), []
        except pydantic.ValidationError as error:
            return None, [
                RowProblem(
                    number,
                    ".".join(map(str, each["loc"])) or None,
                    "missing" if each["type"] == "missing" else "bad_value",
                    each["msg"],
                )
                for each in error.errors(include_url=False, include_input=False, include_context=False)
            ]

    def _draw(self, rows: Sequence[BulkRow[T]], values: dict[str, Any], *, is_preview: bool) -> Drawing:
        """Draw the tasks of a row or of a batch, from redacted rows if the type has a guard."""
        rows = bulk_guards.redacted(self.guard, rows)
        graph = Graph(f"{rows[0].number}/")
        with drawing(graph):
            given = rows[0].data if self.batch is None else list(rows)
            returned = self.function(**{self._first: given}, **values)
        if not graph.tasks:
            raise Invalid(f"the body of {self.name} created no step", code="no_tasks")
        if returned is not None and not isinstance(returned, Step):
            raise Invalid(
                f"the body of {self.name} must return a step or None (got {type(returned).__name__})",
                code="no_result",
            )
        bulk_guards.mark(self, graph.tasks, rows)
        result = graph.tasks[-1]["key"] if returned is None else key_of(returned)
        tasks = graph.tasks
        if not any(result in task.get("after", ()) for task in tasks):
            # Put the result last: the row is done when it is.
            tasks.sort(key=lambda task: task["key"] == result)
        if self._apply is not None:
            tasks.append({
                "kind": f"{self.name}.apply", "key": f"{rows[0].number}/apply", "after": [result],
                "input": {"numbers": [row.number for row in rows], "result": {"$from": result}},
                "confirm": is_preview,
            })  # fmt: skip
        place = next(n for n, task in enumerate(tasks) if task["key"] == result)
        if not self.phases:
            tasks[-1].setdefault("phase", "rows" if self.batch is None else "batches")
        if len(tasks) == 1:
            # A single task has no dependents, so it needs no key.
            del tasks[0]["key"]
        return Drawing([row.number for row in rows], tasks, place, None if self.batch is None else len(rows))

    def _packed(self, taken: Sequence[Taken], is_more: bool, following: Taken | None) -> list[list[Taken]]:
        if self.batch is None:
            return [[row] for row in taken]
        return pack(
            taken, self.batch, is_grouped=self.group_by is not None, is_more=is_more, following=following
        )

    # --- tasks that the worker runs ---

    async def _load(self, ctx: Context, is_preview: bool = False) -> dict[str, int]:
        """Load the next part of the rows."""
        conn, by = cast("db.Connection", ctx.connection), By(ctx.task_id, ctx.worker_id, ctx.lease)
        [(params,)] = await db.rows(conn, _PARAMS, (ctx.job_id,))
        values = self._signature.check(params)
        if self.app.prompts.declared:
            await prompts.pin(conn, **by._asdict(), names=sorted(self.app.prompts.declared))
        size = (self.batch or PREVIEW) if is_preview else max(PART, self.batch or 0)
        counts = {"rows": 0, "refused": 0}
        while True:
            taken = await bulks.take_rows(conn, by, limit=size + 1)
            following = taken.pop() if len(taken) > size else None
            packs = self._packed(taken, following is not None, following)
            if is_preview and self.batch is not None:
                packs = packs[:1]
            is_more = following is not None or sum(map(len, packs)) < len(taken)
            drawings, problems = await self._drawings(packs, values, is_preview)
            drawn = len(drawings)
            drawings = fitting(drawings)
            is_more = is_more or len(drawings) < drawn
            next_load = {"kind": f"{self.name}.load", "confirm": is_preview} if is_more else None
            next_id = await self._add(ctx, drawings, problems, next_load, is_preview=is_preview)
            marks = [*problems, *(mark for each in drawings for mark in each.marks())]
            if marks:
                await bulks.mark_rows(conn, by, rows=marks, next_id=next_id)
            counts["rows"] += len(marks) - len(problems)
            counts["refused"] += len(problems)
            if drawings or not is_more:
                return counts

    async def _drawings(
        self, packs: Sequence[Sequence[Taken]], values: dict[str, Any], is_preview: bool
    ) -> tuple[list[Drawing], list[dict[str, Any]]]:
        drawings: list[Drawing] = []
        refused: list[dict[str, Any]] = []
        for place, taken in enumerate(packs):
            if place % 50 == 49:
                await asyncio.sleep(0)  # let other tasks of the event loop run
            rows: list[BulkRow[T]] = []
            for row in taken:
                model, problems = self._validated(row.number, row.data)
                if model is None:
                    refused.append({"number": row.number, "problem": stored_problem(problems)})
                else:
                    rows.append(BulkRow[Any].model_construct(number=row.number, key=row.key, data=model))
            if not rows:
                continue
            try:
                drawings.append(self._draw(rows, values, is_preview=is_preview))
            except Exception as error:
                # An error in the body refuses its rows and does not block others.
                code = error.code if isinstance(error, PenstockError) else "not_drawn"
                text = str(error) if isinstance(error, PenstockError) else f"{type(error).__name__}: {error}"
                refused += [row_problem(row.number, code, text) for row in rows]
        return drawings, refused

    async def _add(
        self,
        ctx: Context,
        drawings: list[Drawing],
        problems: list[dict[str, Any]],
        next_load: dict[str, Any] | None,
        *,
        is_preview: bool,
    ) -> int | None:
        """Add the tasks of these drawings. Removes drawings that the database rejects."""
        for _ in range(_MAX_REJECTED):
            if not drawings and is_preview:
                # All rows of the preview were refused: continue with the next ones.
                return None
            specs = [task for each in drawings for task in each.tasks]
            if next_load is not None:
                specs.append(next_load)
            if not specs:
                return None
            try:
                async with db.transaction(ctx.connection):
                    ids = await ctx.aadd_tasks(specs)
            except Limited as error:
                raise Reschedule(error.retry_after or 5, f"the queue is full: {error.message}") from error
            except Invalid as error:
                refused = drawing_of_error(drawings, error)
                if refused is None:
                    raise Fail(error.message, code=error.code, details=error.details) from error
                drawings.remove(refused)
                problems += [row_problem(number, error.code, error.message) for number in refused.numbers]
                continue
            start = 0
            for each in drawings:
                each.ids = ids[start : start + len(each.tasks)]
                start += len(each.tasks)
            return ids[-1] if next_load is not None else None
        raise Fail(f"the database rejected the tasks of {_MAX_REJECTED} rows", code="not_drawn")

    async def _apply_rows(
        self, ctx: Context, numbers: list[int], result: Any = None
    ) -> dict[str, Any] | None:
        """Apply the result of a row, or of each row of a batch."""
        assert self._apply is not None
        conn, by = cast("db.Connection", ctx.connection), By(ctx.task_id, ctx.worker_id, ctx.lease)
        errors: dict[str, Any] = {}
        for row in await self._rows_of(ctx, ctx.job_id, numbers):
            value = result if self.batch is None else _value(result, row.key)
            if value is _NONE:
                continue
            try:
                async with db.transaction(conn):
                    changes = await self._apply(ctx, conn, row, value) or []
                    marks = [change.model_dump(mode="json") | {"number": row.number} for change in changes]
                    if marks:
                        await bulks.record_changes(conn, by, changes=marks)
            except Exception as error:
                # A batch continues without a row whose apply handler has failed permanently.
                if self.batch is None or not (isinstance(error, Fail) or ctx.attempt >= ctx.max_attempts):
                    raise
                code = str(getattr(error, "code", None) or "not_applied")
                errors[row.key] = RowError(message=str(error) or type(error).__name__, code=code).model_dump()
        return errors or None

    async def _undo_row(self, ctx: Context, job_id: UUID, number: int, names: list[str] | None = None) -> int:
        """Undo the applied changes of a row."""
        assert self._undo is not None
        conn = cast("db.Connection", ctx.connection)
        changes = await bulks.changes_to_undo(conn, By(ctx.task_id, ctx.worker_id, ctx.lease))
        [row] = await self._rows_of(ctx, job_id, [number])
        for change in changes:
            given = Change(name=change["name"], before=change["before"], after=change["after"])
            await self._undo(ctx, conn, row, given)
        return len(changes)

    async def _rows_of(self, ctx: Context, job_id: UUID, numbers: list[int]) -> list[BulkRow[T]]:
        conn, by = cast("db.Connection", ctx.connection), By(ctx.task_id, ctx.worker_id, ctx.lease)
        found = await bulks.rows_of(conn, by, job_id=job_id, numbers=numbers)
        return [
            BulkRow[Any].model_construct(
                number=row.number, key=row.key, data=self.row.model_validate(row.data)
            )
            for row in found
        ]


def _value(output: Any, key: str) -> Any:
    """A row's value in the output of its batch."""
    values = cast("dict[str, Any]", output) if isinstance(output, dict) else {}
    match values.get(key, _NONE):
        case {"$error": _}:
            return _NONE
        case value:
            return value
