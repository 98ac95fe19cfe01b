"""`penstock jobs`: list and watch jobs; pause, resume, cancel or retry one or all that match a filter."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import ExitStack
from typing import Annotated, Any, TypeVar, cast, get_args
from uuid import UUID

import typer
from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from penstock.cli import actors, output
from penstock.cli.forecasts import forecast_fields, read_job_file
from penstock.cli.options import Output, TenantOption, command, current_options, tenant_id_of
from penstock.cli.output import Column
from penstock.cli.parsing import amount_or_none
from penstock.contract import costs, filters, jobs, tenants
from penstock.errors import EXIT_PARTLY_DONE, Invalid, JobFailed, PenstockError, TimedOut, Unavailable
from penstock.formatting import spending
from penstock.postgres import db
from penstock.types import Job, Task, TaskStatus

Id = TypeVar("Id")

group = typer.Typer(help="List, watch, pause, resume, cancel and retry jobs.", no_args_is_help=True)

FILTER_HELP = "Filter, for example: status:failed type:publish tenant:acme age:1d. -TERM excludes."
FilterArgument = Annotated[list[str] | None, typer.Argument(metavar="FILTER", help=FILTER_HELP)]
LimitOption = Annotated[int, typer.Option("-n", "--limit", min=1, max=1000, help="Maximum number of lines.")]
WhichArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="ID|FILTER",
        show_default=False,
        help="Ids, or a filter as in ls. A filter asks for confirmation.",
    ),
]
AllOption = Annotated[bool, typer.Option("--all", help="All of them. Asks for confirmation.")]
IdArgument = Annotated[UUID, typer.Argument(metavar="ID", show_default=False, help="Job id.")]
ReasonOption = Annotated[str | None, typer.Option(help="Reason, stored with the job.")]


_MAX_SHOWN = 2000
_MAX_FAILED = 5

# ls


@command(group, "ls")
async def ls(
    pool: db.Pool,
    filter: FilterArgument = None,
    limit: LimitOption = 50,
    before: Annotated[UUID | None, typer.Option(metavar="ID", help="Only jobs older than this one.")] = None,
) -> None:
    """List jobs, newest first."""
    found = await jobs.list(pool, filter=" ".join(filter or []), before=before, limit=limit)
    names = await tenants.names(pool, ids=(job.tenant_id for job in found))
    output.rows(found, _columns(names), empty="No jobs." if not filter else "No matching jobs.")
    if len(found) == limit and current_options().output is Output.text:
        output.note(f"{limit} shown. Older ones: --before {found[-1].id}", "dim")


def _columns(names: dict[UUID, str]) -> list[Column]:
    return [
        Column("ID", lambda job: str(job.id)),
        Column("TYPE", lambda job: job.type),
        Column("TENANT", lambda job: names.get(job.tenant_id, str(job.tenant_id)), is_spare=True),
        Column("STATUS", lambda job: job.status, is_status=True),
        Column("DONE", lambda job: f"{job.progress.percent}%", is_right=True),
        Column(
            "TASKS", lambda job: f"{job.progress.done}/{job.progress.total}", is_right=True, is_spare=True
        ),
        Column("AGE", lambda job: output.age(job.created_at), is_right=True),
        Column("REASON", _reason, is_wide=True, style="dim"),
    ]


def _reason(job: Job) -> str:
    if job.status_reason:
        return job.status_reason
    if job.status == "queued" and job.run_at:
        return f"starts {output.age(job.run_at)}"
    return job.progress.phase if job.status == "running" else ""


# show


@command(group, "show")
async def show(
    pool: db.Pool,
    job_id: IdArgument,
    status: Annotated[str | None, typer.Option(help="Only tasks with this status.")] = None,
    limit: LimitOption = 20,
) -> None:
    """Show a job, its phases and its first tasks."""
    job = await jobs.get(pool, job_id=job_id)
    tasks = await jobs.tasks(pool, job_id=job_id, status=_task_status(status), limit=limit)
    names = await tenants.names(pool, ids=[job.tenant_id])
    people = await actors.names(pool, [job.created_by])
    result = await jobs.result(pool, job_id=job_id)
    spent = await costs.of_job(pool, job_id=job_id)
    currency = await costs.base_currency(pool)
    whole = {**output.plain(job), "tenant": names.get(job.tenant_id), "tasks": tasks, "result": result}
    whole |= {"cost": spent.cost, "budget": spent.budget, "currency": currency}
    cost = spending(spent.cost, spent.budget, currency)
    output.document(whole, lambda: _show(job, names.get(job.tenant_id, "?"), people, cost, tasks, result))


def _task_status(text: str | None) -> TaskStatus | None:
    known = get_args(TaskStatus)
    if text is not None and text not in known:
        raise Invalid(f"unknown task status {text!r}", hint=f"Task statuses are {', '.join(known)}.")
    return cast("TaskStatus | None", text)


def _show(
    job: Job, tenant: str, people: Mapping[str, str], cost: str, tasks: list[Task], result: Any
) -> None:
    # A job of one task has its params in the task's input.
    is_single = not job.params and len(tasks) == job.progress.total == 1
    params = tasks[0].input if is_single else job.params
    shown = [*_job_fields(job, tenant, people, params), ("cost", cost), ("result", _shortened(result))]
    output.fields(shown)
    print()
    if output.is_terminal():
        output.console().print(phases_of(job))
    else:
        print(output.plain_table(job.progress.phases, _PHASE_COLUMNS))
    if tasks:
        print()
        output.rows(tasks, _TASK_COLUMNS, empty="")
    if len(tasks) < job.progress.total:
        output.note(f"{len(tasks)} of {job.progress.total:,} tasks shown. See --limit and --status.", "dim")


def _shortened(result: Any) -> str:
    if result is None:
        return ""
    text = json.dumps(result, ensure_ascii=False)
    if len(text) <= _MAX_SHOWN:
        return text
    return f"{text[:_MAX_SHOWN]}… ({len(text):,} characters; -o json prints all)"


def _job_fields(
    job: Job, tenant: str, people: Mapping[str, str], params: dict[str, Any]
) -> list[tuple[str, str | Text]]:
    return [
        ("job", str(job.id)),
        ("title", job.title or ""),
        ("type", job.type),
        ("tenant", tenant),
        ("status", output.status_text(job.status) if output.is_terminal() else job.status),
        ("reason", job.status_reason or ""),
        ("params", json.dumps(params, ensure_ascii=False) if params else ""),
        ("created", f"{output.when(job.created_at)} by {people[job.created_by]}"),
        ("starts", output.when(job.run_at)),
        ("started", output.when(job.started_at)),
        ("ended", output.when(job.finished_at)),
    ]


_PHASE_COLUMNS = [
    Column("PHASE", lambda phase: phase.name),
    Column("DONE", lambda phase: f"{phase.done}/{phase.total}", is_right=True),
    Column("FAILED", lambda phase: str(phase.failed), is_right=True),
    Column("CANCELED", lambda phase: str(phase.canceled), is_right=True),
]
_TASK_COLUMNS = [
    Column("TASK", lambda task: str(task.id), is_right=True),
    Column("KIND", lambda task: task.kind),
    Column("KEY", lambda task: task.key or "", is_spare=True, style="dim"),
    Column("STATUS", lambda task: task.status, is_status=True),
    Column("ATTEMPT", lambda task: str(task.attempt), is_right=True),
    Column("DETAILS", lambda task: _task_details(task), is_wide=True, style="dim"),
]


def _task_details(task: Task) -> str:
    if task.error_code:
        return f"{task.error_code}: {task.error_message or ''}"
    if task.waiting_for:
        until = f", {output.age(task.waiting_until)}" if task.waiting_until else ""
        return f"waiting for {task.waiting_for}{until}"
    return task.message or ""


# watch


@command(group, "watch")
async def watch(
    pool: db.Pool,
    job_id: IdArgument,
    interval: Annotated[float, typer.Option(min=0.05, help="Seconds between updates.")] = 0.5,
    give_up_after: Annotated[
        str | None,
        typer.Option("--timeout", metavar="DURATION", help="Stop watching after this time, such as 10m."),
    ] = None,
) -> None:
    """Watch a job until it ends. Exits with 0 if it completed, 3 if it failed or was canceled."""
    try:
        async with asyncio.timeout(None if give_up_after is None else filters.seconds(give_up_after)):
            job = await _follow(jobs.watch(pool, job_id=job_id, interval=interval))
    except TimeoutError:
        raise TimedOut(f"the job did not end within {give_up_after}") from None
    except ValueError as error:
        raise Invalid(f"--timeout must be {error} (got {give_up_after!r})") from None
    if current_options().output is Output.text:
        await _show_outcome(pool, job)
    if job.status != "completed":
        reason = f": {job.status_reason}" if job.status_reason else ""
        raise JobFailed(f"The job {'was canceled' if job.status == 'canceled' else 'failed'}{reason}")


async def _show_outcome(pool: db.Pool, job: Job) -> None:
    """Print the result of a job that has ended, or its first failed tasks with their errors."""
    if job.progress.failed:
        for task in await jobs.tasks(pool, job_id=job.id, status="failed", limit=_MAX_FAILED):
            name = task.key or f"{task.kind} {task.id}"
            output.note(f"  {name}: {task.error_code}: {task.error_message or ''}", "red")
        if job.progress.failed > _MAX_FAILED:
            output.note(f"  More: penstock jobs show {job.id} --status failed", "dim")
    elif job.status == "completed":
        result = _shortened(await jobs.result(pool, job_id=job.id))
        if result:
            print(f"result  {output.clean(result)}")


async def _follow(changes: AsyncIterator[Job]) -> Job:
    last: Job | None = None
    with ExitStack() as stack:
        live = output.is_terminal() and Live(console=output.console(), auto_refresh=False)
        if live:
            stack.enter_context(live)
        async for job in changes:
            last = job
            if live:
                live.update(_live_view(job), refresh=True)
            else:
                _print_change(job)
    assert last is not None
    if current_options().output in (Output.json, Output.csv):
        output.document(last, lambda: None)
    return last


def _print_change(job: Job) -> None:
    """Print a line for each change, where there is no terminal. `-o json` prints only the final state."""
    if current_options().output is Output.jsonl:
        output.document(job, lambda: None)
    elif current_options().output is Output.text:
        print(f"{job.progress.percent:3d}%  {job.status}  {output.clean(summary_of(job))}", flush=True)


def _live_view(job: Job) -> Group:
    head = Text.assemble(
        (output.clean(job.type), "bold"), "  ", (str(job.id), "dim"), "  ", output.status_text(job.status)
    )
    line = Table.grid(padding=(0, 2))
    line.add_row(
        Text(f"{job.progress.percent:3d}%", style="bold"),
        Text(output.clean(summary_of(job)), overflow="ellipsis"),
    )
    return Group(head, phases_of(job), line)


def phases_of(job: Job) -> Table:
    """A progress bar for each phase."""
    grid = Table.grid(padding=(0, 2))
    for phase in job.progress.phases:
        if phase.total:
            trouble = Text(f"{phase.failed:,} failed" if phase.failed else "", style="bold red")
            share = phase.done / phase.total
            grid.add_row(
                output.clean(phase.name), output.bar(share, 30), f"{phase.done:,}/{phase.total:,}", trouble
            )
    return grid


def summary_of(job: Job) -> str:
    """The job's progress on one line."""
    progress = job.progress
    # The status is printed before, and "completed" already says "complete".
    parts = [] if job.is_ended or progress.phase == job.status else [progress.phase]
    parts.append(f"{progress.done:,}/{progress.total:,}")
    if progress.failed:
        parts.append(f"{progress.failed:,} failed")
    if progress.running:
        parts.append(f"{progress.running:,} running")
    if progress.eta_seconds is not None:
        parts.append(f"about {output.duration(progress.eta_seconds)} left")
    if progress.message and not job.is_ended:
        parts.append(progress.message)
    return " · ".join(parts)


# forecast, why, budget


@command(group, "forecast")
async def forecast(
    pool: db.Pool,
    what: Annotated[
        str,
        typer.Argument(
            metavar="FILE|ID",
            show_default=False,
            help="JSON file of a job to start, or the id of a running job.",
        ),
    ],
    tenant: TenantOption = None,
) -> None:
    """Estimate cost, usage and duration of a job, before it starts or while it runs. Does not start it."""
    try:
        job_id = UUID(what)
    except ValueError:
        document = read_job_file(what)
        if tenant is not None:
            document["tenant_id"] = await tenant_id_of(pool, tenant)
        found = await jobs.forecast(pool, **document)
    else:
        found = await jobs.forecast_rest(pool, job_id=job_id)
    output.document(found, lambda: output.fields(forecast_fields(found)))


@command(group, "why")
async def why(
    pool: db.Pool,
    job_id: IdArgument,
    task_id: Annotated[int | None, typer.Argument(metavar="TASK", help="Only this task.")] = None,
    limit: LimitOption = 20,
) -> None:
    """Explain why a job's tasks are not running: what each waits for, how long, and its queue position."""
    await jobs.get(pool, job_id=job_id)
    selected = [task_id] if task_id is not None else await _waiting(pool, job_id, limit)
    found = [
        {"task_id": id, **output.plain(await jobs.explain(pool, job_id=job_id, task_id=id))}
        for id in selected
    ]
    columns = [
        Column("TASK", lambda line: str(line["task_id"]), is_right=True),
        Column("STATUS", lambda line: line["status"], is_status=True),
        Column("REASON", lambda line: line["text"], is_wide=True),
    ]
    output.rows(found, columns, empty="No task is waiting.")


async def _waiting(pool: db.Pool, job_id: UUID, limit: int) -> list[int]:
    found: list[Task] = []
    for status in ("queued", "waiting", "blocked"):
        if len(found) < limit:
            found += await jobs.tasks(pool, job_id=job_id, status=status, limit=limit - len(found))
    return [task.id for task in found]


@command(group, "budget")
async def budget(
    pool: db.Pool,
    job_id: IdArgument,
    amount: Annotated[str, typer.Argument(metavar="AMOUNT|none", show_default=False, help="New budget.")],
) -> None:
    """Set or remove (none) a job's budget in the base currency. Resumes a job that paused for its budget."""
    await costs.set_budget(pool, job_id=job_id, amount=amount_or_none(amount))
    found = await costs.of_job(pool, job_id=job_id)
    limit = "none" if found.budget is None else output.money(found.budget)
    text = f"Budget: {limit}, {output.money(found.cost)} spent, {output.money(found.held)} reserved."
    output.document(found, lambda: output.note(text))


# pause, resume, cancel, retry


@command(group, "pause")
async def pause(
    pool: db.Pool,
    which: WhichArgument = None,
    everything: AllOption = False,
    reason: ReasonOption = None,
) -> None:
    """Pause jobs: start no more of their tasks. Running tasks finish."""
    await _apply_to_each(
        pool, "pause", which, everything, lambda id: jobs.pause(pool, job_id=id, reason=reason)
    )


@command(group, "resume")
async def resume(pool: db.Pool, which: WhichArgument = None, everything: AllOption = False) -> None:
    """Resume paused jobs."""
    await _apply_to_each(pool, "resume", which, everything, lambda id: jobs.resume(pool, job_id=id))


@command(group, "cancel")
async def cancel(
    pool: db.Pool,
    which: WhichArgument = None,
    everything: AllOption = False,
    reason: ReasonOption = None,
) -> None:
    """Cancel jobs. Running handlers are told to stop."""
    await _apply_to_each(
        pool, "cancel", which, everything, lambda id: jobs.cancel(pool, job_id=id, reason=reason)
    )


@command(group, "retry")
async def retry(pool: db.Pool, which: WhichArgument = None, everything: AllOption = False) -> None:
    """Retry the failed tasks of jobs, and the tasks canceled because of them."""

    async def act(job_id: UUID) -> str:
        return f"{output.counted(await jobs.retry(pool, job_id=job_id), 'task')} requeued"

    await _apply_to_each(pool, "retry", which, everything, act)


async def _apply_to_each(
    pool: db.Pool,
    verb: str,
    which: list[str] | None,
    everything: bool,
    act: Callable[[UUID], Awaitable[str]],
) -> None:
    """Apply an action to the selected jobs. Exits with 8 if it failed for some of several jobs."""
    selected = await _selected(pool, verb, which, everything)
    done: list[dict[str, Any]] = []
    refused: list[PenstockError] = []
    for job_id in selected:
        try:
            done.append({"id": str(job_id), "result": await act(job_id)})
        except Unavailable:
            raise
        except PenstockError as error:
            if len(selected) == 1:
                raise
            refused.append(error)
            done.append({"id": str(job_id), "result": error.message, "code": error.code})
    columns = [
        Column("ID", lambda line: line["id"]),
        Column("RESULT", lambda line: line["result"], is_wide=True),
    ]
    output.rows(done, columns, empty="No matching jobs.")
    if refused:
        output.note(f"{len(selected) - len(refused)} of {output.counted(len(selected), 'job')} done.")
        raise typer.Exit(EXIT_PARTLY_DONE)


async def _selected(pool: db.Pool, verb: str, which: list[str] | None, everything: bool) -> list[UUID]:
    ids, filter = ids_or_filter(which, everything, UUID)
    if ids:
        return ids
    found = [job async for job in _matching(pool, filter)]
    if found:
        types = Counter(output.clean(job.type) for job in found)
        what = ", ".join(f"{count:,} {name}" for name, count in types.most_common(3))
        more = ", …" if len(types) > 3 else ""
        output.confirm(f"{verb.capitalize()} {output.counted(len(found), 'job')} ({what}{more})?")
    return [job.id for job in found]


def ids_or_filter(
    which: list[str] | None, everything: bool, read: Callable[[str], Id]
) -> tuple[list[Id], str]:
    """Parse the selection: ids, a filter, or all. An empty selection is an error, never "all"."""
    words = [word for word in which or [] if word.strip()]
    terms = [word for word in words if ":" in word]
    if bool(words) == everything or (terms and len(terms) < len(words)):
        raise Invalid(
            "expected ids, a filter or --all",
            code="usage",
            hint="Filters are the same as for ls, for example: status:failed age:1d",
        )
    if terms:
        return [], " ".join(terms)
    try:
        return [read(word) for word in words], ""
    except ValueError:
        raise Invalid(
            f"expected ids or a filter (got {', '.join(map(repr, words))})",
            code="usage",
            hint="A filter has the form field:value, for example: status:failed age:1d",
        ) from None


async def _matching(pool: db.Pool, filter: str) -> AsyncIterator[Job]:
    before: UUID | None = None
    while page := await jobs.list(pool, filter=filter, before=before, limit=1000):
        for job in page:
            yield job
        before = page[-1].id
