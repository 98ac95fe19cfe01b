"""`penstock demo`: a job with a three-step graph for each of eight documents, on a slow provider that
sometimes says no, with live progress."""

from __future__ import annotations

import asyncio
import random
import sys
import time
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.table import Table

from penstock.app import App, Context, Retry
from penstock.errors import TimedOut
from penstock.types import Job
from penstock.worker import Worker

TITLES = ["Otters", "Herons", "Mills", "Weirs", "Locks", "Sluices", "Turbines", "Penstocks"]

PATIENCE_SECONDS = 120

app = App(tenant="demo")


@app.task(max_attempts=6, backoff="300ms", backoff_cap="1s", timeout="30s")
async def write(ctx: Context, title: str) -> str:
    """The text of a document, a few words at a time, from a provider that is slow and sometimes refuses."""
    if random.random() < 0.15:
        raise Retry("the provider is busy", after="400ms", code="provider_busy")
    for word in range(1, 6):
        await asyncio.sleep(random.uniform(0.05, 0.2))
        ctx.progress(word, of=5, message=f"writing {title}")
    return f"{title} live by the river. " * 20


@app.task
async def typeset(ctx: Context, title: str, text: str) -> dict[str, Any]:
    """Pages of a text."""
    await asyncio.sleep(random.uniform(0.1, 0.4))
    ctx.progress(1, message=f"typesetting {title}")
    return {"title": title, "pages": 1 + len(text) // 400}


@app.task
async def bind(documents: list[dict[str, Any]]) -> dict[str, Any]:
    """One book of all documents."""
    await asyncio.sleep(0.3)
    return {"documents": len(documents), "pages": sum(document["pages"] for document in documents)}


@app.job(phases={"write": 60, "typeset": 30, "bind": 10})
def book(titles: list[str]) -> None:
    """Each document is written, then typeset; when all are, they are bound."""
    bind.step([typeset.step(title, write.step(title)) for title in titles])


def run(dsn: str, is_terminal: bool) -> int:
    """Run the demo; on a terminal stay until Ctrl-C, else end when the job has. Returns the exit code."""
    try:
        return asyncio.run(_run(dsn, is_terminal))
    except KeyboardInterrupt:
        return 0


async def _run(dsn: str, is_terminal: bool) -> int:
    console = Console(file=sys.stdout)
    worker = Worker(app, dsn=dsn, concurrency=6, grace_seconds=5)
    app.use(dsn)
    console.print("[bold]Penstock demo[/bold]")
    working = asyncio.create_task(worker.run())
    try:
        started = await book.astart(TITLES)
        console.print(
            f"job {started.id}: {len(TITLES)} documents, each written, then typeset; then one book of all"
        )
        job = await _watch(started, console, is_terminal)
        output = await started.aresult() if job.status == "completed" else None
        console.print(f"{job.status}: {output}")
        console.print(
            "Look at it again:  [bold]penstock jobs ls[/bold]   [bold]penstock jobs show "
            + str(started.id)
            + "[/bold]"
        )
        if is_terminal:
            console.print("The worker stays up until Ctrl-C.")
            await working
        return 0 if job.status == "completed" else 3
    finally:
        worker.stop()
        await asyncio.gather(working, return_exceptions=True)
        await app.aclose()


async def _watch(started: Any, console: Console, is_terminal: bool) -> Job:
    last, deadline = "", time.monotonic() + PATIENCE_SECONDS
    with (
        Live(console=console, refresh_per_second=10, transient=False, auto_refresh=False)
        if is_terminal
        else _Lines() as live
    ):
        while True:
            job: Job = await started.aget()
            if is_terminal:
                live.update(_picture(job), refresh=True)
            elif (line := _line(job)) != last:
                console.print(line, highlight=False)
                last = line
            if job.is_ended:
                return job
            if time.monotonic() > deadline:
                raise TimedOut(
                    f"the job has not ended within {PATIENCE_SECONDS} s; its state is {job.status}"
                )
            await asyncio.sleep(0.1)


class _Lines:
    """Stands in for the live picture where there is no terminal."""

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        return None


def _line(job: Job) -> str:
    progress = job.progress
    return f"{progress.percent:3d} %  {progress.phase:<8}  {progress.done}/{progress.total} tasks"


def _picture(job: Job) -> Table:
    width = 30
    table = Table.grid(padding=(0, 2))
    for phase in job.progress.phases:
        ended = phase.succeeded + phase.failed + phase.canceled
        filled = round(width * ended / phase.total) if phase.total else 0
        table.add_row(
            phase.name,
            f"[green]{'█' * filled}[/green][dim]{'░' * (width - filled)}[/dim]",
            f"{ended}/{phase.total}",
        )
    eta = f"about {job.progress.eta_seconds:.0f} s left" if job.progress.eta_seconds else ""
    table.add_row(f"[bold]{job.progress.percent} %[/bold]", job.progress.message or job.status, eta)
    return table
