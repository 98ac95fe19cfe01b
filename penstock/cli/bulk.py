"""`penstock bulk`: jobs from sheets and files. Check, forecast, run, watch, confirm, export, undo."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from uuid import UUID

import typer
from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from penstock import bulks, db, dead_letters, jobs, sources, tenants
from penstock.cli import output
from penstock.cli.jobs import (
    FilterArgument,
    IdArgument,
    LimitOption,
    forecast_facts,
    phases_of,
    summary_of,
    when,
)
from penstock.cli.options import Output, TenantOption, amount_of, chosen, command, pairs_of, tenant_id_of
from penstock.cli.output import Column
from penstock.errors import EXIT_PARTLY_DONE, Invalid, JobFailed, NotFound
from penstock.sheets import GoogleSheet
from penstock.types import Bulk, BulkResult, Cause, RowState

if TYPE_CHECKING:
    from penstock.bulk_type import BulkType

group = typer.Typer(help="Jobs from sheets and files: one task or graph per row.", no_args_is_help=True)

_APP_OPTION = typer.Option(
    "--app",
    metavar="MODULE:APP",
    envvar="PENSTOCK_APP",
    show_default=False,
    help="The app that has the type.",
)
AppOption = Annotated[str, _APP_OPTION]
MaybeAppOption = Annotated[str | None, _APP_OPTION]
TypeArgument = Annotated[
    str, typer.Argument(metavar="TYPE", show_default=False, help="The type of bulk job.")
]
FileArgument = Annotated[
    str,
    typer.Argument(
        metavar="FILE", show_default=False, help="CSV, TSV, XLSX or JSONL; or the address of a Google Sheet."
    ),
]
FormatOption = Annotated[str | None, typer.Option("--format", help="csv, tsv, xlsx or jsonl.")]
EncodingOption = Annotated[str | None, typer.Option(help="Of the file. Default: by its mark, or UTF-8.")]
DelimiterOption = Annotated[str | None, typer.Option(help="Between cells. Default: found out.")]
SheetOption = Annotated[
    str | None,
    typer.Option(help="Of an XLSX file; of a Google Sheet also a range, Ideas!A1:F. Default: the first."),
]
NoHeaderOption = Annotated[
    bool, typer.Option("--no-header", help="The first row is like the others: column_1, column_2, …")
]
RenameOption = Annotated[
    list[str] | None, typer.Option("--rename", metavar="COLUMN=NAME", help="Another name for a column.")
]
ParamOption = Annotated[
    list[str] | None, typer.Option("--param", metavar="NAME=VALUE", help="For the type's function.")
]
BudgetOption = Annotated[str | None, typer.Option(metavar="AMOUNT", help="It pauses before it costs more.")]
StatesOption = Annotated[
    str | None,
    typer.Option("--state", metavar="A,B", help="Only rows in these states, such as failed,refused."),
]


@dataclass(frozen=True, slots=True)
class _Table:
    """How a file is opened, or which Google Sheet it is."""

    file: str
    format: str | None
    encoding: str | None
    delimiter: str | None
    sheet: str | None
    no_header: bool
    rename: list[str] | None

    @contextmanager
    def source(self) -> Generator[sources.Source | GoogleSheet]:
        """The Google Sheet of this address, or else the file, opened."""
        if self.file.startswith("https://"):
            yield GoogleSheet(self.file, self.sheet, pairs_of(self.rename or []))
            return
        with self.opened() as file:
            yield file

    @contextmanager
    def opened(self) -> Generator[sources.Source]:
        """The file."""
        with sources.open(
            Path(self.file),
            format=self.format,
            encoding=self.encoding,
            delimiter=self.delimiter,
            sheet=self.sheet,
            header=not self.no_header,
            rename=pairs_of(self.rename or []) or None,
        ) as source:
            yield source


def _type(app: str, name: str) -> BulkType[Any]:
    # Not at the top: most commands work where the app's own packages are missing.
    from penstock.app import load

    found = load(app).bulks.get(name)
    if found is None:
        raise NotFound(f"{app} has no bulk type {name!r}.", code="unknown_bulk_type")
    return found


# check and forecast


@command(group, "check")
def check(
    type: TypeArgument,
    file: FileArgument,
    app: AppOption,
    format: FormatOption = None,
    encoding: EncodingOption = None,
    delimiter: DelimiterOption = None,
    sheet: SheetOption = None,
    no_header: NoHeaderOption = False,
    rename: RenameOption = None,
) -> int:
    """List every row that would be refused: line, column, reason. Exit code 1 if there are any."""
    table = _Table(file, format, encoding, delimiter, sheet, no_header, rename)
    with table.source() as source:
        found = _type(app, type).check(source)
    columns = [
        Column("LINE", lambda problem: str(problem.line), is_right=True),
        Column("COLUMN", lambda problem: problem.column or ""),
        Column("CODE", lambda problem: problem.code),
        Column("REASON", lambda problem: problem.message, is_wide=True),
    ]
    output.rows(found.problems, columns, empty="No row would be refused.")
    bad = found.rows - found.good
    output.note(f"{output.counted(found.rows, 'row')}: {found.good:,} good, {bad:,} bad.", "dim")
    return 1 if bad else 0


@command(group, "forecast")
async def forecast(
    pool: db.Pool,
    type: TypeArgument,
    file: FileArgument,
    app: AppOption,
    format: FormatOption = None,
    encoding: EncodingOption = None,
    delimiter: DelimiterOption = None,
    sheet: SheetOption = None,
    no_header: NoHeaderOption = False,
    rename: RenameOption = None,
    param: ParamOption = None,
    tenant: TenantOption = None,
    budget: BudgetOption = None,
) -> None:
    """Tell what a job of this file would cost, use and take. Starts nothing."""
    table = _Table(file, format, encoding, delimiter, sheet, no_header, rename)
    with table.source() as source:
        chosen_type = _type(app, type)
        tasks, times = chosen_type.sample(await chosen_type.fetched(source), pairs_of(param or []))
    options: dict[str, Any] = {"budget": None if budget is None else amount_of(budget)}
    options["tenant_id"] = await _tenant(pool, tenant, app)
    found = await jobs.forecast(pool, type=type, tasks=tasks, times=times, **options)
    output.document(found, lambda: output.facts(forecast_facts(found)))


async def _tenant(pool: db.Pool, name: str | None, app: str | None) -> UUID:
    """Whose job it is: the app's tenant, if none is named. The app's kinds are declared by the way."""
    if app is not None:
        from penstock.app import load

        found = load(app)
        await found.declare(pool)
        if name is None:
            return await found.tenant_id(pool)
    return await (tenants.ensure(pool, name="default") if name is None else tenant_id_of(pool, name))


# run and add


@command(group, "run")
async def run(
    pool: db.Pool,
    type: TypeArgument,
    file: FileArgument,
    app: MaybeAppOption = None,
    format: FormatOption = None,
    encoding: EncodingOption = None,
    delimiter: DelimiterOption = None,
    sheet: SheetOption = None,
    no_header: NoHeaderOption = False,
    rename: RenameOption = None,
    param: ParamOption = None,
    tenant: TenantOption = None,
    budget: BudgetOption = None,
    stop_after: Annotated[
        str | None, typer.Option(metavar="N|P%", help="Pause after so many failures, or such a part.")
    ] = None,
    on_limit: Annotated[
        str | None, typer.Option(help="What a used-up quota does: hold, refuse or pause.")
    ] = None,
    preview: Annotated[
        bool, typer.Option("--preview", help="The first batch only, until it is confirmed.")
    ] = False,
    skip_done: Annotated[
        bool, typer.Option("--skip-done", help="Leave out what succeeded before, by key, from this file.")
    ] = False,
    key: Annotated[
        str | None, typer.Option(metavar="A,B", help="The columns that name a row. Default: the type's.")
    ] = None,
    priority: Annotated[int | None, typer.Option(help="0 to 10, lower first.")] = None,
    idempotency_key: Annotated[str | None, typer.Option(help="The same key gives the same job.")] = None,
    is_watched: Annotated[
        bool, typer.Option("--watch/--no-watch", help="Watch it until it ends, or only print its id.")
    ] = True,
) -> int:
    """Start a job of the rows of a file. The worker checks them: only the file is needed here.

    With an app it belongs to the app's tenant, and no worker has to have run before.
    """
    table = _Table(file, format, encoding, delimiter, sheet, no_header, rename)
    options: dict[str, Any] = {
        "tenant_id": await _tenant(pool, tenant, app),
        "budget": None if budget is None else amount_of(budget),
        "stop_after": stop_after,
        "on_limit": on_limit,
        "preview": preview,
        "skip_done": skip_done,
        "key": None if key is None else [column.strip() for column in key.split(",")],
        "priority": priority,
        "idempotency_key": idempotency_key,
    }
    with table.source() as source:
        job_id = await bulks.start(
            pool,
            type=type,
            rows=None if isinstance(source, GoogleSheet) else bulks.numbered(source),
            source=bulks.describe(source),
            params=pairs_of(param or []),
            **options,
        )
    if not is_watched:
        output.document({"id": str(job_id)}, lambda: print(job_id))
        return 0
    output.note(f"Started {job_id}.", "dim")
    return await _watch(pool, job_id, 0.5)


@command(group, "add")
async def add(
    pool: db.Pool,
    job_id: IdArgument,
    file: Annotated[
        Path | None, typer.Argument(metavar="FILE", show_default=False, help="Without it: its Google Sheet.")
    ] = None,
    format: FormatOption = None,
    encoding: EncodingOption = None,
    delimiter: DelimiterOption = None,
    sheet: SheetOption = None,
    no_header: NoHeaderOption = False,
    rename: RenameOption = None,
) -> None:
    """Read its source again into a job that has not ended: new rows are added, refused ones taken again."""
    if file is None:
        await bulks.read_again(pool, job_id=job_id)
        output.document({"id": str(job_id)}, lambda: output.note("A worker reads the sheet again."))
        return
    table = _Table(str(file), format, encoding, delimiter, sheet, no_header, rename)
    with table.opened() as source:
        added = await bulks.add_rows(pool, job_id=job_id, rows=bulks.numbered(source))
    text = f"{output.counted(added.added, 'row')} added, {added.known:,} known, {added.refused:,} refused."
    if added.moved:
        text += f" {added.moved:,} have another key than before: new rows belong at the end."
    output.document(added, lambda: output.note(text))


# ls, show, rows


@command(group, "ls")
async def ls(
    pool: db.Pool,
    filter: FilterArgument = None,
    limit: LimitOption = 50,
    before: Annotated[UUID | None, typer.Option(metavar="ID", help="Only jobs older than this one.")] = None,
) -> None:
    """List bulk jobs, newest first."""
    found = await bulks.list(pool, filter=" ".join(filter or []), before=before, limit=limit)
    columns = [
        Column("ID", lambda bulk: str(bulk.id)),
        Column("TYPE", lambda bulk: bulk.type),
        Column("STATUS", lambda bulk: bulk.status, is_status=True),
        Column("DONE", lambda bulk: f"{bulk.percent}%", is_right=True),
        Column("ROWS", lambda bulk: f"{bulk.total:,}", is_right=True),
        Column("REFUSED", lambda bulk: f"{bulk.refused:,}", is_right=True, is_spare=True),
        Column("AGE", lambda bulk: output.age(bulk.created_at), is_right=True),
        Column(
            "SOURCE", lambda bulk: str(bulk.source.get("name") or bulk.source.get("id") or ""), is_spare=True
        ),
        Column("WHY", lambda bulk: bulk.status_reason or "", is_wide=True, style="dim"),
    ]
    output.rows(found, columns, empty="No bulk jobs." if not filter else "No bulk jobs match.")


@command(group, "show")
async def show(pool: db.Pool, job_id: IdArgument) -> None:
    """Show a bulk job: its rows by state, what waits for what, what went wrong and why."""
    bulk = await bulks.get(pool, job_id=job_id)
    states = await bulks.counts(pool, job_id=job_id)
    output.document({**output.plain(bulk), "states": states}, lambda: _show(bulk, states))


def _show(bulk: Bulk, states: dict[str, int]) -> None:
    job, source = bulk.job, bulk.source
    facts: list[tuple[str, str | Text]] = [
        ("job", str(job.id)),
        ("type", job.type),
        ("status", output.look(job.status) if output.is_terminal() else job.status),
        ("why", job.status_reason or ""),
        ("source", " ".join(str(source[name]) for name in ("type", "name", "id") if source.get(name))),
        ("rows", f"{bulk.rows.total:,}"),
        ("states", ", ".join(f"{count:,} {state}" for state, count in states.items())),
        (
            "confirm",
            f"{bulk.to_confirm:,} tasks wait: penstock bulk confirm {job.id}" if bulk.to_confirm else "",
        ),
        ("cost", _money(bulk)),
        ("applied", f"{bulk.applied:,} values, {bulk.undone:,} undone" if bulk.applied else ""),
        ("created", f"{when(job.created_at)} by {job.created_by}"),
        ("ended", when(job.finished_at)),
    ]
    output.facts(facts)
    for line in _causes(bulk):
        output.note(line)


def _causes(bulk: Bulk) -> list[str]:
    """What waits and what went wrong, each cause in a line."""
    lines = [
        f"waiting  {output.counted(wait.tasks, 'task')}: {wait.reason}"
        for wait in bulk.waits
        if wait.waits_for != "confirm"
    ]
    lines += [_cause("failed", cause, "task") for cause in bulk.failures[:10]]
    lines += [_cause("refused", cause, "row") for cause in bulk.problems[:10] if cause.code != "done_before"]
    return [output.clean(line) for line in lines]


def _cause(word: str, cause: Cause, noun: str) -> str:
    kind = f"{cause.kind}: " if cause.kind else ""
    return f"{word}  {output.counted(cause.count, noun)}: {kind}{cause.code}: {(cause.message or '')[:200]}"


def _money(bulk: Bulk) -> str:
    if bulk.budget is None:
        return output.money(bulk.cost) if bulk.cost else ""
    return f"{output.money(bulk.cost)} of {output.money(bulk.budget)}"


@command(group, "rows")
async def rows(
    pool: db.Pool,
    job_id: IdArgument,
    state: StatesOption = None,
    limit: LimitOption = 50,
    after: Annotated[int, typer.Option(metavar="ROW", help="Only rows after this number.")] = -1,
) -> None:
    """List the rows of a job with their states, results and errors."""
    await bulks.get(pool, job_id=job_id)
    found = await bulks.rows(pool, job_id=job_id, states=_states(state), after=after, limit=limit)
    columns = [
        Column("ROW", lambda row: str(row.number), is_right=True),
        Column("KEY", lambda row: row.key[:40], is_spare=True, style="dim"),
        Column("STATE", lambda row: row.state, is_status=True),
        Column("COST", lambda row: output.money(row.cost) if row.cost else "", is_right=True, is_spare=True),
        Column("RESULT", _result, is_wide=True),
    ]
    output.rows(found, columns, empty="No rows.")


def _result(row: BulkResult) -> str:
    if row.error_code:
        return f"{row.error_code}: {row.error_message or ''}"
    return "" if row.output is None else str(output.plain(row.output))


def _states(text: str | None) -> list[RowState] | None:
    known: tuple[RowState, ...] = (
        *("waiting", "queued", "running", "succeeded", "failed", "canceled", "refused", "skipped"),
    )
    if text is None:
        return None
    words = [word.strip() for word in text.split(",")]
    for word in words:
        if word not in known:
            raise Invalid(f"a row is never {word!r}", hint=f"It is {', '.join(known)}.")
    return [state for state in known if state in words]


# watch


@command(group, "watch")
async def watch(
    pool: db.Pool,
    job_id: IdArgument,
    interval: Annotated[float, typer.Option(min=0.05, help="Look every so many seconds.")] = 0.5,
) -> int:
    """Watch a bulk job until it ends, or its preview waits to be confirmed.

    Exit code 0 if it completed, 8 if rows of it were refused or failed, 3 if it failed or was canceled.
    """
    return await _watch(pool, job_id, interval)


async def _watch(pool: db.Pool, job_id: UUID, interval: float) -> int:
    last: Bulk | None = None
    with ExitStack() as stack:
        live = output.is_terminal() and Live(console=output.console(), auto_refresh=False)
        if live:
            stack.enter_context(live)
        pace = _Pace()
        async for bulk, why in _changes(pool, job_id, interval):
            last = bulk
            pace.see(bulk)
            if live:
                live.update(_picture(bulk, pace, why), refresh=True)
            elif chosen().output is Output.jsonl:
                output.document(bulk, lambda: None)
            elif chosen().output is Output.text:
                print(
                    f"{bulk.job.progress.percent:3d}%  {bulk.job.status}  {_line(bulk, pace, why)}",
                    flush=True,
                )
    assert last is not None
    return await _ended(pool, last)


async def _ended(pool: db.Pool, bulk: Bulk) -> int:
    states = await bulks.counts(pool, job_id=bulk.job.id)
    if chosen().output in (Output.json, Output.csv):
        output.document({**output.plain(bulk), "states": states}, lambda: None)
    output.note(", ".join(f"{count:,} {state}" for state, count in states.items()) or "No rows.")
    if not bulk.job.is_ended:
        output.note(
            f"Look at it with `penstock bulk rows {bulk.job.id}`, then: penstock bulk confirm {bulk.job.id}"
        )
        return 0
    if bulk.job.status != "completed":
        for line in _causes(bulk):
            output.note(line)
        why = f": {bulk.job.status_reason}" if bulk.job.status_reason else ""
        raise JobFailed(
            f"The job {'was canceled' if bulk.job.status == 'canceled' else 'failed'}{why}",
            hint=f"penstock bulk export {bulk.job.id} failures.csv --state failed,refused",
        )
    return EXIT_PARTLY_DONE if states.get("failed") or states.get("refused") else 0


async def _changes(pool: db.Pool, job_id: UUID, interval: float) -> AsyncIterator[tuple[Bulk, str]]:
    """The job whenever it has changed, and why nothing of it runs; until it ends, or waits for a person."""
    last: tuple[Bulk, str] | None = None
    looked_at = 0.0
    why = ""
    while True:
        bulk = await bulks.get(pool, job_id=job_id)
        progress = bulk.job.progress
        if progress.running or bulk.job.is_ended or bulk.job.status == "paused":
            why = ""
        elif time.monotonic() - looked_at > 5:
            looked_at = time.monotonic()
            why = await _why(pool, job_id)
        if last != (bulk, why):
            last = (bulk, why)
            yield last
        # All that is left waits to be confirmed.
        if bulk.job.is_ended or (bulk.to_confirm and progress.total - progress.done == bulk.to_confirm):
            return
        await asyncio.sleep(interval)


async def _why(pool: db.Pool, job_id: UUID) -> str:
    waiting = await jobs.tasks(pool, job_id=job_id, status="queued", limit=1)
    if not waiting:
        return ""
    return (await jobs.explain(pool, job_id=job_id, task_id=waiting[0].id)).text


class _Pace:
    """How many tasks end in a second, of late."""

    SECONDS = 10

    def __init__(self) -> None:
        self._seen: list[tuple[float, int]] = []

    def see(self, bulk: Bulk) -> None:
        now = time.monotonic()
        self._seen = [each for each in self._seen if now - each[0] <= self.SECONDS]
        self._seen.append((now, bulk.job.progress.done))

    @property
    def rate(self) -> float | None:
        (first, before), (last, after) = self._seen[0], self._seen[-1]
        return (after - before) / (last - first) if last - first > 0.5 and after > before else None


def _line(bulk: Bulk, pace: _Pace, why: str) -> str:
    parts = [summary_of(bulk.job)]
    if pace.rate is not None:
        parts.append(f"{pace.rate:,.1f}/s")
    if money := _money(bulk):
        parts.append(money)
    if bulk.rows.refused:
        parts.append(f"{output.counted(bulk.rows.refused, 'row')} refused")
    parts += [f"{wait.tasks:,} wait: {wait.reason}" for wait in bulk.waits]
    return output.clean(" · ".join(part for part in (*parts, why) if part))


def _picture(bulk: Bulk, pace: _Pace, why: str) -> Group:
    job = bulk.job
    head = Text.assemble(
        (output.clean(job.type), "bold"), "  ", (str(job.id), "dim"), "  ", output.look(job.status)
    )
    lines: list[Any] = [head, phases_of(job)]
    if bulk.budget is not None:
        spent = output.share(bulk.cost, bulk.budget) or 0.0
        grid = Table.grid(padding=(0, 2))
        grid.add_row("budget", output.bar(spent, 30, "red" if spent >= 0.95 else "green"), _money(bulk))
        lines.append(grid)
    lines.append(
        Text.assemble(
            (f"{job.progress.percent:3d}%  ", "bold"), Text(_line(bulk, pace, why), overflow="ellipsis")
        )
    )
    if job.status == "paused":
        lines.append(Text(f"Go on with: penstock jobs resume {job.id}", style="dim"))
    lines += [Text(line, style="red", overflow="ellipsis", no_wrap=True) for line in _causes(bulk)]
    return Group(*lines)


# confirm, retry, undo, export


@command(group, "confirm")
async def confirm(pool: db.Pool, job_id: IdArgument) -> None:
    """Let a job go on whose preview you have seen: its results are applied, and the other rows loaded."""
    count = await jobs.confirm(pool, job_id=job_id)
    text = f"{output.counted(count, 'task')} let go." if count else "It was confirmed before."
    output.document({"id": str(job_id), "tasks": count}, lambda: output.note(text))


@command(group, "retry")
async def retry(
    pool: db.Pool,
    job_id: IdArgument,
    code: Annotated[str | None, typer.Option(help="Only what failed with this error code.")] = None,
    kind: Annotated[str | None, typer.Option(help="Only failed tasks of this kind.")] = None,
) -> None:
    """Run failed tasks of a job again, and what was canceled because of them."""
    wanted = {"job_id": job_id, "error_code": code, "kind": kind}
    filter = {name: value for name, value in wanted.items() if value is not None}
    count = await dead_letters.replay(pool, filter=filter)
    text = f"{output.counted(count, 'task')} queued again."
    output.document({"id": str(job_id), "tasks": count}, lambda: output.note(text))


@command(group, "undo")
async def undo(
    pool: db.Pool,
    job_id: IdArgument,
    row: Annotated[list[int] | None, typer.Option("--row", help="Only of this row.")] = None,
    name: Annotated[list[str] | None, typer.Option("--name", help="Only values of this name.")] = None,
) -> None:
    """Undo what a job applied: of all rows or some, every value or some. Runs as a job of its own."""
    if not row and not name:
        bulk = await bulks.get(pool, job_id=job_id)
        output.confirm(f"This is to undo {output.counted(bulk.applied - bulk.undone, 'value')}. Continue?")
    undo_id = await bulks.undo(pool, job_id=job_id, rows=row or None, names=name or None)
    output.document(
        {"id": str(undo_id)}, lambda: output.note(f"Started {undo_id}: penstock jobs watch {undo_id}")
    )


@command(group, "export")
async def export(
    pool: db.Pool,
    job_id: IdArgument,
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="Its ending says how: .csv, .jsonl or .xlsx; -: to stdout.")
    ] = Path("-"),
    format: Annotated[str | None, typer.Option("--format", help="csv, jsonl or xlsx.")] = None,
    state: StatesOption = None,
) -> None:
    """Write the rows with their original columns, their states, results, errors and costs into a file."""
    chosen_format = format or (file.suffix.removeprefix(".").lower() if file.suffix else "csv")
    if str(file) == "-":
        await bulks.export(
            pool, job_id=job_id, format=chosen_format, out=sys.stdout.buffer, states=_states(state)
        )
        return
    await bulks.get(pool, job_id=job_id)
    with file.open("wb") as out:
        count = await bulks.export(pool, job_id=job_id, format=chosen_format, out=out, states=_states(state))
    output.document(
        {"file": str(file), "rows": count}, lambda: output.note(f"{output.counted(count, 'row')} in {file}.")
    )
