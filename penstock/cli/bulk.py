"""`penstock bulk`: jobs from spreadsheets and files. Check, forecast, run, watch, confirm, export, undo."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Unpack
from uuid import UUID

import typer
from rich.text import Text

from penstock.cli import actors, output
from penstock.cli.bulk_options import (
    AppOption,
    BudgetOption,
    DelimiterOption,
    EncodingOption,
    FileArgument,
    FormatOption,
    Input,
    LinkOption,
    MaybeAppOption,
    NoHeaderOption,
    ParamOption,
    RenameOption,
    SheetOption,
    StatesOption,
    TypeArgument,
    WatchOption,
)
from penstock.cli.bulk_watch import cause_lines, follow, money, remaining
from penstock.cli.forecasts import forecast_fields
from penstock.cli.jobs import (
    FilterArgument,
    IdArgument,
    LimitOption,
)
from penstock.cli.options import TenantOption, command, tenant_id_of
from penstock.cli.output import Column
from penstock.cli.parsing import amount_of, pairs_of
from penstock.contract import bulks, dead_letters, jobs, tenants
from penstock.errors import Invalid, NotFound
from penstock.postgres import db
from penstock.sheets import GoogleSheet
from penstock.sources.columns import matches
from penstock.types import Bulk, BulkOptions, BulkResult, RowState

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
    bulk_type = _type(app, type)
    with table.source() as source:
        found = bulk_type.check(source)
        headers: list[str] = getattr(source, "columns", None) or []
    columns = [
        Column("LINE", lambda problem: str(problem.line), is_right=True),
        Column("COLUMN", lambda problem: problem.column or ""),
        Column("CODE", lambda problem: problem.code),
        Column("REASON", lambda problem: problem.message, is_wide=True),
    ]
    output.rows(found.problems, columns, empty="No problems found.")
    bad = found.rows - found.good
    output.note(f"{output.counted(found.rows, 'row')}: {found.good:,} valid, {bad:,} invalid.", "dim")
    if headers:
        _note_missing(bulk_type, headers)
    return 1 if bad else 0


def _note_missing(bulk_type: BulkType[Any], headers: list[str]) -> None:
    """Name expected columns that the file does not have, and how to rename those that it has."""
    missing = [
        match
        for match in matches(bulk_type.expected(), headers)
        if match.name not in headers and (match.is_required or match.is_suggested)
    ]
    if not missing:
        return
    names = ", ".join(match.name for match in missing)
    renames = " ".join(f"--rename '{match.found or 'COLUMN'}={match.name}'" for match in missing)
    output.note(f"Missing columns: {names}. The file has: {', '.join(headers)}.")
    output.note(f"Rename columns with {renames}.")


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
    link: LinkOption = None,
    param: ParamOption = None,
    tenant: TenantOption = None,
    is_watched: WatchOption = True,
    **options: Unpack[BulkOptions],
) -> int:
    """Start a bulk job from a file or Google Sheet.

    A worker validates the rows, so --app is optional. With --app, the job belongs to the app's tenant and can
    be started before any worker has run.
    """
    table = Input(file, format, encoding, delimiter, sheet, no_header, rename, link)
    options["tenant_id"] = await _tenant(pool, tenant, app)
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
    return await follow(pool, job_id, 0.5)


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
    job = bulk.job
    by = (await actors.names(pool, [job.created_by]))[job.created_by]
    output.document({**output.plain(bulk), "states": states}, lambda: _show(bulk, states, by))


def _show(bulk: Bulk, states: dict[str, int], by: str) -> None:
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
        ("cost", money(bulk)),
        (
            "applied",
            f"{output.counted(bulk.applied, 'value')}, {bulk.undone:,} undone" if bulk.applied else "",
        ),
        ("created", f"{output.when(job.created_at)} by {by}"),
        ("ended", output.when(job.finished_at)),
    ]
    output.fields(fields)
    for line in cause_lines(bulk):
        output.note(line)


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
    return await follow(pool, job_id, interval)


# confirm, retry, undo, export


@command(group, "confirm")
async def confirm(pool: db.Pool, job_id: IdArgument) -> None:
    """Confirm a preview: apply its results and run the remaining rows. On a terminal, asks first."""
    bulk = await bulks.get(pool, job_id=job_id)
    if not bulk.job.is_ended and sys.stdin.isatty():
        output.confirm(f"{await remaining(pool, bulk)} Continue?")
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
