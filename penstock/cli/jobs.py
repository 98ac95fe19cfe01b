"""`penstock jobs`: look at jobs, watch them, and act on one or on all that match a filter."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, TypeVar
from uuid import UUID

import typer
from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from penstock import costs, db, filters, jobs, tenants
from penstock.cli import output
from penstock.cli.options import Output, TenantOption, amount_or_none, chosen, command, tenant_id_of
from penstock.cli.output import Column
from penstock.errors import EXIT_PARTLY_DONE, Invalid, JobFailed, PenstockError, TimedOut, Unavailable
from penstock.types import Forecast, Job, Task, TaskStatus

Id = TypeVar("Id")

group = typer.Typer(
    help="Look at jobs, watch them, pause, resume, cancel or retry them.", no_args_is_help=True
)

FILTER_HELP = "Which: status:failed type:publish tenant:acme age:1d; a minus before a term excludes."
FilterArgument = Annotated[list[str] | None, typer.Argument(metavar="FILTER", help=FILTER_HELP)]
LimitOption = Annotated[int, typer.Option("-n", "--limit", min=1, max=1000, help="At most so many lines.")]
WhichArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="ID|FILTER", show_default=False, help="Ids, or a filter as in ls, which asks first."
    ),
]
AllOption = Annotated[bool, typer.Option("--all", help="All there are. Asks first.")]
IdArgument = Annotated[UUID, typer.Argument(metavar="ID", show_default=False)]
ReasonOption = Annotated[str | None, typer.Option(help="Kept with the job, for whoever asks why.")]


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
    output.rows(found, _columns(names), empty="No jobs." if not filter else "No jobs match.")
    if len(found) == limit and chosen().output is Output.text:
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
        Column("WHY", _why, is_wide=True, style="dim"),
    ]


def _why(job: Job) -> str:
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
    status: Annotated[str | None, typer.Option(help="Only tasks in this state.")] = None,
    limit: LimitOption = 20,
) -> None:
    """Show a job, its phases and its first tasks."""
    job = await jobs.get(pool, job_id=job_id)
    tasks = await jobs.tasks(pool, job_id=job_id, status=_task_status(status), limit=limit)
    names = await tenants.names(pool, ids=[job.tenant_id])
    whole = {**output.plain(job), "tenant": names.get(job.tenant_id), "tasks": tasks}
    output.document(whole, lambda: _show(job, names.get(job.tenant_id, "?"), tasks))


def _task_status(text: str | None) -> TaskStatus | None:
    known: tuple[TaskStatus, ...] = (
        "blocked",
        "queued",
        "running",
        "waiting",
        "succeeded",
        "failed",
        "canceled",
    )
    for status in known:
        if text == status:
            return status
    if text is not None:
        raise Invalid(f"a task is never {text!r}", hint=f"It is {', '.join(known)}.")
    return None


def _show(job: Job, tenant: str, tasks: list[Task]) -> None:
    output.facts(_facts(job, tenant))
    print()
    if output.is_terminal():
        output.console().print(phases_of(job))
    else:
        print(output.plain_table(job.progress.phases, _PHASE_COLUMNS))
    if tasks:
        print()
        output.rows(tasks, _TASK_COLUMNS, empty="")
    if len(tasks) < job.progress.total:
        output.note(f"{len(tasks)} of {job.progress.total:,} tasks shown: see --limit and --status", "dim")


def _facts(job: Job, tenant: str) -> list[tuple[str, str | Text]]:
    return [
        ("job", str(job.id)),
        ("type", job.type),
        ("tenant", tenant),
        ("status", output.look(job.status) if output.is_terminal() else job.status),
        ("why", job.status_reason or ""),
        ("params", json.dumps(job.params, ensure_ascii=False) if job.params else ""),
        ("created", f"{when(job.created_at)} by {job.created_by}"),
        ("starts", when(job.run_at)),
        ("started", when(job.started_at)),
        ("ended", when(job.finished_at)),
    ]


def when(moment: Any) -> str:
    """A moment, and how far away it is."""
    if moment is None:
        return ""
    distance = output.age(moment)
    return f"{moment:%Y-%m-%d %H:%M:%S %Z} ({distance if distance.startswith('in ') else distance + ' ago'})"


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
    Column("TRY", lambda task: str(task.attempt), is_right=True),
    Column("WHY", lambda task: _task_why(task), is_wide=True, style="dim"),
]


def _task_why(task: Task) -> str:
    if task.error_code:
        return f"{task.error_code}: {task.error_message or ''}"
    if task.waiting_for:
        until = f", {output.age(task.waiting_until)}" if task.waiting_until else ""
        return f"waits for {task.waiting_for}{until}"
    return task.message or ""


# watch


@command(group, "watch")
async def watch(
    pool: db.Pool,
    job_id: IdArgument,
    interval: Annotated[float, typer.Option(min=0.05, help="Look every so many seconds.")] = 0.5,
    patience: Annotated[
        str | None, typer.Option("--timeout", metavar="DURATION", help="Give up after, for example, 10m.")
    ] = None,
) -> None:
    """Watch a job until it ends. Exit code 0 if it completed, 3 if it failed or was canceled."""
    try:
        async with asyncio.timeout(None if patience is None else filters.seconds(patience)):
            job = await _follow(jobs.watch(pool, job_id=job_id, interval=interval))
    except TimeoutError:
        raise TimedOut(f"The job has not ended within {patience}.") from None
    except ValueError as error:
        raise Invalid(f"--timeout takes {error}") from None
    if job.status != "completed":
        why = f": {job.status_reason}" if job.status_reason else ""
        raise JobFailed(
            f"The job was {job.status}{why}" if job.status == "canceled" else f"The job failed{why}"
        )


async def _follow(changes: AsyncIterator[Job]) -> Job:
    last: Job | None = None
    with ExitStack() as stack:
        live = output.is_terminal() and Live(console=output.console(), auto_refresh=False)
        if live:
            stack.enter_context(live)
        async for job in changes:
            last = job
            if live:
                live.update(_picture(job), refresh=True)
            else:
                _tell(job)
    assert last is not None
    if chosen().output in (Output.json, Output.csv):
        output.document(last, lambda: None)
    return last


def _tell(job: Job) -> None:
    """A line for each change, where there is no terminal. With `-o json` only the end is told."""
    if chosen().output is Output.jsonl:
        output.document(job, lambda: None)
    elif chosen().output is Output.text:
        print(f"{job.progress.percent:3d}%  {job.status}  {output.clean(summary_of(job))}", flush=True)


def _picture(job: Job) -> Group:
    head = Text.assemble(
        (output.clean(job.type), "bold"), "  ", (str(job.id), "dim"), "  ", output.look(job.status)
    )
    line = Table.grid(padding=(0, 2))
    line.add_row(
        Text(f"{job.progress.percent:3d}%", style="bold"),
        Text(output.clean(summary_of(job)), overflow="ellipsis"),
    )
    return Group(head, phases_of(job), line)


def phases_of(job: Job) -> Table:
    """Its phases as bars."""
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
    """How far it is, in a line."""
    progress = job.progress
    parts = [progress.phase, f"{progress.done:,}/{progress.total:,}"]
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
            metavar="FILE|ID", show_default=False, help="A job to start, as JSON; or one that runs."
        ),
    ],
    tenant: TenantOption = None,
) -> None:
    """Tell what a job will cost, use and take, before it starts or while it runs. Starts nothing."""
    try:
        job_id = UUID(what)
    except ValueError:
        document = _job_of(what)
        if tenant is not None:
            document["tenant_id"] = await tenant_id_of(pool, tenant)
        found = await jobs.forecast(pool, **document)
    else:
        found = await jobs.forecast_rest(pool, job_id=job_id)
    output.document(found, lambda: output.facts(forecast_facts(found)))


def _job_of(file: str) -> dict[str, Any]:
    """The arguments of `jobs.start` that a file holds: type, tasks, options."""
    try:
        document = json.loads(Path(file).read_text(encoding="utf-8"))
        options: dict[str, Any] = document.get("options") or {}
        known = {name: options.get(name) for name in ("tenant_id", "budget")}
        if known["budget"] is not None:
            known["budget"] = Decimal(str(known["budget"]))
        return {"type": document["type"], "tasks": document["tasks"], **known}
    except (OSError, ValueError, KeyError, AttributeError, ArithmeticError) as error:
        raise Invalid(
            f"{file} is neither a job's id nor a file with a job: {error!r}",
            code="usage",
            hint='Such a file is {"type": "…", "tasks": […], "options": {…}}.',
        ) from error


def forecast_facts(found: Forecast) -> list[tuple[str, str | Text]]:
    """What a forecast says."""
    cost, finish = found.cost, found.finish
    lines: list[tuple[str, str | Text]] = [
        ("tasks", f"{found.tasks:,}"),
        ("uses", ", ".join(f"{amount:,f} {meter}" for meter, amount in found.units.items())),
        ("costs", f"{output.money(cost.low)} to {output.money(cost.high, cost.currency)}"),
        ("expected", output.money(cost.expected, cost.currency)),
        ("no price", ", ".join(sorted({*cost.unpriced}))),
    ]
    if found.budget is not None:
        fits = "is enough" if found.budget.fits else "may not be enough: it would pause"
        lines.append(("budget", f"{output.money(found.budget.amount, cost.currency)} {fits}"))
    for line in found.quota:
        fits = "fits" if line.fits else "does not fit"
        lines.append(("quota", f"{line.needs:,f} of {line.left:,f} {line.meter} left: {fits}"))
    if finish.seconds is None:
        lines.append(("ends", f"not known: {finish.reason}"))
    else:
        until = f"{output.duration(finish.low)} to {output.duration(finish.high)}"
        lines.append(("ends", f"in about {output.duration(finish.seconds)} ({until}), {when(finish.at)}"))
        lines.append(("slowest", finish.bottleneck or ""))
    return lines


@command(group, "why")
async def why(
    pool: db.Pool,
    job_id: IdArgument,
    task_id: Annotated[int | None, typer.Argument(metavar="TASK", help="Only this task.")] = None,
    limit: LimitOption = 20,
) -> None:
    """Tell why a job's tasks are not running: what each waits for, about how long, its place in line."""
    await jobs.get(pool, job_id=job_id)
    meant = [task_id] if task_id is not None else await _waiting(pool, job_id, limit)
    found = [
        {"task_id": id, **output.plain(await jobs.explain(pool, job_id=job_id, task_id=id))} for id in meant
    ]
    columns = [
        Column("TASK", lambda line: str(line["task_id"]), is_right=True),
        Column("STATUS", lambda line: line["status"], is_status=True),
        Column("WHY", lambda line: line["text"], is_wide=True),
    ]
    output.rows(found, columns, empty="No task of it waits.")


async def _waiting(pool: db.Pool, job_id: UUID, limit: int) -> list[int]:
    found = await jobs.tasks(pool, job_id=job_id, status="queued", limit=limit)
    if len(found) < limit:
        found += await jobs.tasks(pool, job_id=job_id, status="blocked", limit=limit - len(found))
    return [task.id for task in found]


@command(group, "budget")
async def budget(
    pool: db.Pool,
    job_id: IdArgument,
    amount: Annotated[str, typer.Argument(metavar="AMOUNT|none", show_default=False)],
) -> None:
    """Set what a job may cost, in the base currency; none: anything. One that paused for it goes on."""
    await costs.set_budget(pool, job_id=job_id, amount=amount_or_none(amount))
    found = await costs.of_job(pool, job_id=job_id)
    limit = "no budget" if found.budget is None else f"a budget of {output.money(found.budget)}"
    text = f"{limit}; {output.money(found.cost)} spent, {output.money(found.held)} set aside"
    output.document(found, lambda: output.note(text))


# pause, resume, cancel, retry


@command(group, "pause")
async def pause(
    pool: db.Pool,
    which: WhichArgument = None,
    everything: AllOption = False,
    reason: ReasonOption = None,
) -> None:
    """Claim nothing of these jobs from now on; what runs ends normally."""
    await _act(pool, "pause", which, everything, lambda id: jobs.pause(pool, job_id=id, reason=reason))


@command(group, "resume")
async def resume(pool: db.Pool, which: WhichArgument = None, everything: AllOption = False) -> None:
    """Take paused jobs up again."""
    await _act(pool, "resume", which, everything, lambda id: jobs.resume(pool, job_id=id))


@command(group, "cancel")
async def cancel(
    pool: db.Pool,
    which: WhichArgument = None,
    everything: AllOption = False,
    reason: ReasonOption = None,
) -> None:
    """End these jobs now; running handlers are told to stop."""
    await _act(pool, "cancel", which, everything, lambda id: jobs.cancel(pool, job_id=id, reason=reason))


@command(group, "retry")
async def retry(pool: db.Pool, which: WhichArgument = None, everything: AllOption = False) -> None:
    """Run the failed tasks of these jobs again, and what was canceled because of them."""

    async def act(job_id: UUID) -> str:
        return f"{output.counted(await jobs.retry(pool, job_id=job_id), 'task')} queued again"

    await _act(pool, "retry", which, everything, act)


async def _act(
    pool: db.Pool,
    verb: str,
    which: list[str] | None,
    everything: bool,
    act: Callable[[UUID], Awaitable[str]],
) -> None:
    """Do something to each of the jobs meant; exit code 8 if it could not be done to all of several."""
    meant = await _meant(pool, verb, which, everything)
    done: list[dict[str, Any]] = []
    refused: list[PenstockError] = []
    for job_id in meant:
        try:
            done.append({"id": str(job_id), "result": await act(job_id)})
        except Unavailable:
            raise
        except PenstockError as error:
            if len(meant) == 1:
                raise
            refused.append(error)
            done.append({"id": str(job_id), "result": error.message, "code": error.code})
    columns = [
        Column("ID", lambda line: line["id"]),
        Column("RESULT", lambda line: line["result"], is_wide=True),
    ]
    output.rows(done, columns, empty="No jobs match.")
    if refused:
        output.note(f"{len(meant) - len(refused)} of {output.counted(len(meant), 'job')} done.")
        raise typer.Exit(EXIT_PARTLY_DONE)


async def _meant(pool: db.Pool, verb: str, which: list[str] | None, everything: bool) -> list[UUID]:
    ids, filter = ids_or_filter(which, everything, UUID)
    if ids:
        return ids
    found = [job async for job in _matching(pool, filter)]
    if found:
        types = Counter(output.clean(job.type) for job in found)
        what = ", ".join(f"{count:,} {name}" for name, count in types.most_common(3))
        more = ", …" if len(types) > 3 else ""
        output.confirm(f"This is to {verb} {output.counted(len(found), 'job')} ({what}{more}). Continue?")
    return [job.id for job in found]


def ids_or_filter(
    which: list[str] | None, everything: bool, read: Callable[[str], Id]
) -> tuple[list[Id], str]:
    """What is meant: some by their ids, what matches a filter, or all; but never all by mistake."""
    words = [word for word in which or [] if word.strip()]
    terms = [word for word in words if ":" in word]
    if bool(words) == everything or (terms and len(terms) < len(words)):
        raise Invalid(
            "Say which: ids, or a filter, or --all.",
            code="usage",
            hint="A filter is as in ls, such as: status:failed age:1d",
        )
    if terms:
        return [], " ".join(terms)
    try:
        return [read(word) for word in words], ""
    except ValueError:
        raise Invalid(f"{', '.join(words)}: this is neither an id nor a filter.", code="usage") from None


async def _matching(pool: db.Pool, filter: str) -> AsyncIterator[Job]:
    before: UUID | None = None
    while page := await jobs.list(pool, filter=filter, before=before, limit=1000):
        for job in page:
            yield job
        before = page[-1].id
