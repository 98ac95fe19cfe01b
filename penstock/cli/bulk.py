"""`penstock bulk`: jobs from spreadsheets and files. Check, forecast, run, watch, confirm, export, undo."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from uuid import UUID

import typer
from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from penstock.cli import output
from penstock.cli.bulk_options import (
    AppOption,
    BudgetOption,
    DelimiterOption,
    EncodingOption,
    FileArgument,
    FormatOption,
    IdempotencyKeyOption,
    Input,
    KeyOption,
    MaybeAppOption,
    NoHeaderOption,
    OnLimitOption,
    ParamOption,
    PreviewOption,
    PriorityOption,
    RenameOption,
    SheetOption,
    SkipDoneOption,
    StatesOption,
    StopAfterOption,
    TypeArgument,
    WatchOption,
)
from penstock.cli.jobs import (
    FilterArgument,
    IdArgument,
    LimitOption,
    forecast_fields,
    phases_of,
    summary_of,
    when,
)
from penstock.cli.options import (
    Output,
    TenantOption,
    amount_of,
    command,
    current_options,
    pairs_of,
    tenant_id_of,
)
from penstock.cli.output import Column
from penstock.contract import bulks, dead_letters, jobs, tenants
from penstock.errors import EXIT_PARTLY_DONE, Invalid, JobFailed, NotFound
from penstock.postgres import db
from penstock.sheets import GoogleSheet
from penstock.types import Bulk, BulkResult, Cause, RowState

if TYPE_CHECKING:
    from penstock.sdk.bulk_type import BulkType

group = typer.Typer(help="Run one job over the rows of a spreadsheet or file.", no_args_is_help=True)


def _type(app: str, name: str) -> BulkType[Any]:
    # Imported here so that other commands work without the app's own packages.
    from penstock.sdk.load import load

    found = load(app).bulks.get(name)
    if found is None:
        raise NotFound(f"app {app} has no bulk type {name!r}", code="unknown_bulk_type")
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
    """List the rows that would be refused, with line, column and reason. Exits with 1 if there are any."""
    table = Input(file, format, encoding, delimiter, sheet, no_header, rename)
    with table.source() as source:
        found = _type(app, type).check(source)
    columns = [
        Column("LINE", lambda problem: str(problem.line), is_right=True),
        Column("COLUMN", lambda problem: problem.column or ""),
        Column("CODE", lambda problem: problem.code),
        Column("REASON", lambda problem: problem.message, is_wide=True),
    ]
    output.rows(found.problems, columns, empty="No problems found.")
    bad = found.rows - found.good
    output.note(f"{output.counted(found.rows, 'row')}: {found.good:,} valid, {bad:,} invalid.", "dim")
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
    """Estimate cost, usage and duration of a job for this file. Does not start it."""
    table = Input(file, format, encoding, delimiter, sheet, no_header, rename)
    with table.source() as source:
        chosen_type = _type(app, type)
        tasks, times = chosen_type.sample(await chosen_type.fetched(source), pairs_of(param or []))
    options: dict[str, Any] = {"budget": None if budget is None else amount_of(budget)}
    options["tenant_id"] = await _tenant(pool, tenant, app)
    found = await jobs.forecast(pool, type=type, tasks=tasks, times=times, **options)
    output.document(found, lambda: output.fields(forecast_fields(found)))


async def _tenant(pool: db.Pool, name: str | None, app: str | None) -> UUID:
    """The job's tenant (default: the app's, otherwise "default"). Also declares the app's task kinds."""
    if app is not None:
        from penstock.sdk.load import load

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
    stop_after: StopAfterOption = None,
    on_limit: OnLimitOption = None,
    preview: PreviewOption = False,
    skip_done: SkipDoneOption = False,
    key: KeyOption = None,
    priority: PriorityOption = None,
    idempotency_key: IdempotencyKeyOption = None,
    is_watched: WatchOption = True,
) -> int:
    """Start a bulk job from a file or Google Sheet.

    A worker validates the rows, so --app is optional. With --app, the job belongs to the app's tenant and can
    be started before any worker has run.
    """
    table = Input(file, format, encoding, delimiter, sheet, no_header, rename)
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
        Path | None,
        typer.Argument(
            metavar="FILE", show_default=False, help="File to read (default: the job's Google Sheet)."
        ),
    ] = None,
    format: FormatOption = None,
    encoding: EncodingOption = None,
    delimiter: DelimiterOption = None,
    sheet: SheetOption = None,
    no_header: NoHeaderOption = False,
    rename: RenameOption = None,
) -> None:
    """Read the source again and add new and corrected rows to a job that has not ended."""
    if file is None:
        await bulks.read_again(pool, job_id=job_id)
        output.document({"id": str(job_id)}, lambda: output.note("A worker will read the sheet again."))
        return
    table = Input(str(file), format, encoding, delimiter, sheet, no_header, rename)
    with table.opened() as source:
        added = await bulks.add_rows(pool, job_id=job_id, rows=bulks.numbered(source))
    text = (
        f"{output.counted(added.added, 'row')} added, {added.known:,} unchanged, {added.refused:,} refused."
    )
    if added.moved:
        text += f" {output.counted(added.moved, 'row')} changed key: add new rows at the end of the file."
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
        Column("REASON", lambda bulk: bulk.status_reason or "", is_wide=True, style="dim"),
    ]
    output.rows(found, columns, empty="No bulk jobs." if not filter else "No matching bulk jobs.")


@command(group, "show")
async def show(pool: db.Pool, job_id: IdArgument) -> None:
    """Show a bulk job: rows by state, what they wait for, failures and their causes."""
    bulk = await bulks.get(pool, job_id=job_id)
    states = await bulks.counts(pool, job_id=job_id)
    output.document({**output.plain(bulk), "states": states}, lambda: _show(bulk, states))


def _show(bulk: Bulk, states: dict[str, int]) -> None:
    job, source = bulk.job, bulk.source
    fields: list[tuple[str, str | Text]] = [
        ("job", str(job.id)),
        ("type", job.type),
        ("status", output.status_text(job.status) if output.is_terminal() else job.status),
        ("reason", job.status_reason or ""),
        ("source", " ".join(str(source[name]) for name in ("type", "name", "id") if source.get(name))),
        ("rows", f"{bulk.rows.total:,}"),
        ("states", ", ".join(f"{count:,} {state}" for state, count in states.items())),
        (
            "confirm",
            f"{output.counted(bulk.to_confirm, 'task')} waiting: penstock bulk confirm {job.id}"
            if bulk.to_confirm
            else "",
        ),
        ("cost", _money(bulk)),
        (
            "applied",
            f"{output.counted(bulk.applied, 'value')}, {bulk.undone:,} undone" if bulk.applied else "",
        ),
        ("created", f"{when(job.created_at)} by {job.created_by}"),
        ("ended", when(job.finished_at)),
    ]
    output.fields(fields)
    for line in _cause_lines(bulk):
        output.note(line)


def _cause_lines(bulk: Bulk) -> list[str]:
    """One line per cause of waiting, failed tasks and refused rows."""
    lines = [
        f"waiting  {output.counted(wait.tasks, 'task')}: {wait.reason}"
        for wait in bulk.waits
        if wait.waits_for != "confirm"
    ]
    lines += [_cause_line("failed", cause, "task") for cause in bulk.failures[:10]]
    lines += [
        _cause_line("refused", cause, "row") for cause in bulk.problems[:10] if cause.code != "done_before"
    ]
    return [output.clean(line) for line in lines]


def _cause_line(word: str, cause: Cause, noun: str) -> str:
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
    after: Annotated[int, typer.Option(metavar="ROW", help="Only rows after this row number.")] = -1,
) -> None:
    """List the rows of a job with state, result and error."""
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
            raise Invalid(f"unknown row state {word!r}", hint=f"Row states are {', '.join(known)}.")
    return [state for state in known if state in words]


# watch


@command(group, "watch")
async def watch(
    pool: db.Pool,
    job_id: IdArgument,
    interval: Annotated[float, typer.Option(min=0.05, help="Seconds between updates.")] = 0.5,
) -> int:
    """Watch a bulk job until it ends or its preview waits for confirmation.

    Exits with 0 if the job completed, 8 if it completed with failed or refused rows, 3 if it failed or was
    canceled.
    """
    return await _watch(pool, job_id, interval)


async def _watch(pool: db.Pool, job_id: UUID, interval: float) -> int:
    last: Bulk | None = None
    with ExitStack() as stack:
        live = output.is_terminal() and Live(console=output.console(), auto_refresh=False)
        if live:
            stack.enter_context(live)
        throughput = _Throughput()
        async for bulk, reason in _changes(pool, job_id, interval):
            last = bulk
            throughput.see(bulk)
            if live:
                live.update(_live_view(bulk, throughput, reason), refresh=True)
            elif current_options().output is Output.jsonl:
                output.document(bulk, lambda: None)
            elif current_options().output is Output.text:
                print(
                    f"{bulk.job.progress.percent:3d}%  {bulk.job.status}  {_line(bulk, throughput, reason)}",
                    flush=True,
                )
    assert last is not None
    return await _report_end(pool, last)


async def _report_end(pool: db.Pool, bulk: Bulk) -> int:
    states = await bulks.counts(pool, job_id=bulk.job.id)
    if current_options().output in (Output.json, Output.csv):
        output.document({**output.plain(bulk), "states": states}, lambda: None)
    output.note(", ".join(f"{count:,} {state}" for state, count in states.items()) or "No rows.")
    if not bulk.job.is_ended:
        output.note(
            f"Preview ready. Review it: penstock bulk rows {bulk.job.id}\n"
            f"Run the remaining rows: penstock bulk confirm {bulk.job.id}"
        )
        return 0
    if bulk.job.status != "completed":
        for line in _cause_lines(bulk):
            output.note(line)
        reason = f": {bulk.job.status_reason}" if bulk.job.status_reason else ""
        raise JobFailed(
            f"The job {'was canceled' if bulk.job.status == 'canceled' else 'failed'}{reason}",
            hint="Export the failed rows: "
            f"penstock bulk export {bulk.job.id} failures.csv --state failed,refused",
        )
    return EXIT_PARTLY_DONE if states.get("failed") or states.get("refused") else 0


async def _changes(pool: db.Pool, job_id: UUID, interval: float) -> AsyncIterator[tuple[Bulk, str]]:
    """Yield the job and why none of its tasks run, on every change, until it ends or needs confirmation."""
    last: tuple[Bulk, str] | None = None
    checked_at = 0.0
    reason = ""
    while True:
        bulk = await bulks.get(pool, job_id=job_id)
        progress = bulk.job.progress
        if progress.running or bulk.job.is_ended or bulk.job.status == "paused":
            reason = ""
        elif time.monotonic() - checked_at > 5:
            checked_at = time.monotonic()
            reason = await _wait_reason(pool, job_id)
        if last != (bulk, reason):
            last = (bulk, reason)
            yield last
        # All remaining tasks wait for confirmation.
        if bulk.job.is_ended or (bulk.to_confirm and progress.total - progress.done == bulk.to_confirm):
            return
        await asyncio.sleep(interval)


async def _wait_reason(pool: db.Pool, job_id: UUID) -> str:
    waiting = await jobs.tasks(pool, job_id=job_id, status="queued", limit=1)
    if not waiting:
        return ""
    return (await jobs.explain(pool, job_id=job_id, task_id=waiting[0].id)).text


class _Throughput:
    """Tasks finished per second over the last seconds."""

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


def _line(bulk: Bulk, throughput: _Throughput, reason: str) -> str:
    parts = [summary_of(bulk.job)]
    if throughput.rate is not None:
        parts.append(f"{throughput.rate:,.1f}/s")
    if money := _money(bulk):
        parts.append(money)
    if bulk.rows.refused:
        parts.append(f"{output.counted(bulk.rows.refused, 'row')} refused")
    parts += [f"{wait.tasks:,} waiting: {wait.reason}" for wait in bulk.waits]
    return output.clean(" · ".join(part for part in (*parts, reason) if part))


def _live_view(bulk: Bulk, throughput: _Throughput, reason: str) -> Group:
    job = bulk.job
    head = Text.assemble(
        (output.clean(job.type), "bold"), "  ", (str(job.id), "dim"), "  ", output.status_text(job.status)
    )
    lines: list[Any] = [head, phases_of(job)]
    if bulk.budget is not None:
        spent = output.share(bulk.cost, bulk.budget) or 0.0
        grid = Table.grid(padding=(0, 2))
        grid.add_row("budget", output.bar(spent, 30, "red" if spent >= 0.95 else "green"), _money(bulk))
        lines.append(grid)
    lines.append(
        Text.assemble(
            (f"{job.progress.percent:3d}%  ", "bold"),
            Text(_line(bulk, throughput, reason), overflow="ellipsis"),
        )
    )
    if job.status == "paused":
        lines.append(Text(f"Resume it: penstock jobs resume {job.id}", style="dim"))
    lines += [Text(line, style="red", overflow="ellipsis", no_wrap=True) for line in _cause_lines(bulk)]
    return Group(*lines)


# confirm, retry, undo, export


@command(group, "confirm")
async def confirm(pool: db.Pool, job_id: IdArgument) -> None:
    """Confirm a preview: apply its results and run the remaining rows."""
    count = await jobs.confirm(pool, job_id=job_id)
    text = f"Released {output.counted(count, 'task')}." if count else "The job is already confirmed."
    output.document({"id": str(job_id), "tasks": count}, lambda: output.note(text))


@command(group, "retry")
async def retry(
    pool: db.Pool,
    job_id: IdArgument,
    code: Annotated[str | None, typer.Option(help="Only tasks that failed with this error code.")] = None,
    kind: Annotated[str | None, typer.Option(help="Only tasks of this kind.")] = None,
) -> None:
    """Retry the failed tasks of a job, and the tasks canceled because of them."""
    wanted = {"job_id": job_id, "error_code": code, "kind": kind}
    filter = {name: value for name, value in wanted.items() if value is not None}
    count = await dead_letters.replay(pool, filter=filter)
    text = f"Requeued {output.counted(count, 'task')}."
    output.document({"id": str(job_id), "tasks": count}, lambda: output.note(text))


@command(group, "undo")
async def undo(
    pool: db.Pool,
    job_id: IdArgument,
    row: Annotated[list[int] | None, typer.Option("--row", help="Only this row. Repeatable.")] = None,
    name: Annotated[
        list[str] | None, typer.Option("--name", help="Only values with this name. Repeatable.")
    ] = None,
) -> None:
    """Undo the values a job applied: all of them, or only some rows or names. Starts a new job."""
    if not row and not name:
        bulk = await bulks.get(pool, job_id=job_id)
        output.confirm(f"Undo {output.counted(bulk.applied - bulk.undone, 'value')}?")
    undo_id = await bulks.undo(pool, job_id=job_id, rows=row or None, names=name or None)
    output.document(
        {"id": str(undo_id)},
        lambda: output.note(f"Started {undo_id}. Watch it: penstock jobs watch {undo_id}"),
    )


@command(group, "export")
async def export(
    pool: db.Pool,
    job_id: IdArgument,
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="File to write: .csv, .jsonl or .xlsx; - for stdout.")
    ] = Path("-"),
    format: Annotated[
        str | None,
        typer.Option("--format", help="File format: csv, jsonl or xlsx (default: from the file name)."),
    ] = None,
    state: StatesOption = None,
) -> None:
    """Export the rows to a file: original columns, state, result, error and cost."""
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
        {"file": str(file), "rows": count},
        lambda: output.note(f"Wrote {output.counted(count, 'row')} to {file}."),
    )
