"""`penstock demo`: a job with a three-step graph for each of eight documents, on a provider that takes three
calls at a time, costs money and sometimes says no. With a forecast, a budget and live progress.

The provider is the simulator: it answers over HTTP, from this process, and money is not really spent.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
import urllib.request
from contextlib import nullcontext
from decimal import Decimal
from functools import partial
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from penstock import costs, jobs, providers, simulator, workers
from penstock.app import App, Context, Started
from penstock.errors import TimedOut
from penstock.types import Job
from penstock.worker import Worker

TITLES = ["Otters", "Herons", "Mills", "Weirs", "Locks", "Sluices", "Turbines", "Penstocks"]

PROVIDER, MODEL = "simulator/gpt-demo", "gpt-demo"
CONCURRENCY = 3
PRICES = {"input_tokens": Decimal("3.00"), "output_tokens": Decimal("15.00")}  # per million
MOST = {"input_tokens": 20, "output_tokens": 200}  # for a document
BUDGET = Decimal("0.05")

PATIENCE_SECONDS = 120

app = App(tenant="demo")
# The provider is on this machine, whatever proxy the environment names.
_http = urllib.request.build_opener(urllib.request.ProxyHandler({}))
_url = ""


@app.task(max_attempts=6, backoff="300ms", backoff_cap="1s", timeout="30s")
def write(ctx: Context, title: str) -> str:
    """The text of a document. (A plain function runs in a thread: it may wait for its answer.)"""
    ctx.progress(0, message=f"writing {title}")
    question = {
        "model": MODEL,
        "max_tokens": MOST["output_tokens"],
        "messages": [{"role": "user", "content": f"What is there to know about {title}?"}],
    }
    headers = {"authorization": "Bearer demo", "content-type": "application/json"}
    request = urllib.request.Request(f"{_url}/chat/completions", json.dumps(question).encode(), headers)  # noqa: S310 (our own)
    # A 429 is raised here, and the worker knows what it means: all that is for this provider waits.
    with _http.open(request, timeout=20) as response:
        answer = json.load(response)
    used = answer["usage"]
    ctx.usage(input_tokens=used["prompt_tokens"], output_tokens=used["completion_tokens"])
    return answer["choices"][0]["message"]["content"]


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
    paid = write.options(provider=PROVIDER, units=MOST)
    bind.step([typeset.step(title, paid.step(title)) for title in titles])


def run(dsn: str, is_terminal: bool) -> int:
    """Run the demo; on a terminal stay until Ctrl-C, else end when the job has. Returns the exit code."""
    try:
        return asyncio.run(_run(dsn, is_terminal))
    except KeyboardInterrupt:
        return 0


async def _run(dsn: str, is_terminal: bool) -> int:
    global _url
    worker = Worker(app, dsn=dsn, concurrency=6, grace_seconds=5)
    # With this seed it refuses the fifth call, and few after that.
    serving = simulator.serve(
        limits=simulator.Limits(concurrency=CONCURRENCY), faults={"429": 0.1}, latency=(0.4, 0.9), seed=4
    )
    async with app, serving as provider:
        _url = provider.openai_url
        working = asyncio.create_task(worker.run())
        try:
            await _prepare(worker, working)
            console = Console(file=sys.stdout)
            code = await _show(console, provider, is_terminal)
            if is_terminal:
                console.print("The worker stays up until Ctrl-C.")
                await working
            return code
        finally:
            worker.stop()
            await asyncio.gather(working, return_exceptions=True)


async def _prepare(worker: Worker, working: asyncio.Task[None]) -> None:
    """Declare the provider, and wait for the worker: a forecast counts on those that are there."""
    async with app.connections() as pool:
        await providers.set(pool, name=PROVIDER, concurrency=CONCURRENCY, backpressure_threshold=None)
        await providers.open(pool, name=PROVIDER)  # what the one of an earlier demo said is over
        if not await costs.prices(pool, provider=PROVIDER):
            for meter, amount in PRICES.items():
                await costs.set_price(pool, provider=PROVIDER, meter=meter, amount=amount, per=1_000_000)
        while worker.id not in {found.id for found in await workers.list(pool)}:
            if working.done():
                return await working
            await asyncio.sleep(0.05)


async def _show(console: Console, provider: simulator.Simulator, is_terminal: bool) -> int:
    say = partial(console.print, highlight=False, soft_wrap=True)
    say("[bold]Penstock demo[/bold]")
    say(f"provider {PROVIDER}: {CONCURRENCY} calls at a time; it costs, and sometimes it says no")
    job_type = book.options(budget=BUDGET)
    forecast = await job_type.aforecast(TITLES)
    cost, finish = forecast.cost, forecast.finish
    foreseen = f"{cost.low:.4f} to {cost.high:.4f} {cost.currency}"
    when = f"about {finish.seconds:.0f} s" if finish.seconds else f"not known: {finish.reason}"
    say(f"forecast: {foreseen} of a budget of {BUDGET} {cost.currency}; time {when}")
    started = await job_type.astart(TITLES)
    say(f"job {started.id}: {len(TITLES)} documents, each written, then typeset; then one book of all")
    job, reasons = await _watch(started, console, is_terminal)
    output = await started.aresult() if job.status == "completed" else None
    took = (job.finished_at - job.started_at).total_seconds() if job.finished_at and job.started_at else 0
    say(f"{job.status}: {output}")
    async with app.connections() as pool:
        spent = await costs.of_job(pool, job_id=started.id)
    say(f"cost: {spent.cost:.4f} of {spent.budget} {cost.currency}; the forecast was {foreseen}")
    say(f"time: {took:.1f} s; the forecast was {when}")
    refused = provider.statuses["429"]
    most = max((account.max_concurrency for account in provider.accounts.values()), default=0)
    say(f"provider: {provider.requests} calls, {refused} of them refused, {most} at a time at most")
    say(f"waited for: {'; '.join(reasons) or 'nothing'}")
    commands = ("penstock jobs ls", f"penstock jobs show {started.id}", "penstock costs")
    say("Look at it again:  " + "   ".join(f"[bold]{command}[/bold]" for command in commands))
    return 0 if job.status == "completed" else 3


async def _watch(started: Started[Any], console: Console, is_terminal: bool) -> tuple[Job, list[str]]:
    """The job, once it has ended, and what its documents waited for."""
    last, reasons, deadline = "", list[str](), time.monotonic() + PATIENCE_SECONDS
    with Live(console=console, auto_refresh=False) if is_terminal else nullcontext() as live:
        while True:
            job = await started.aget()
            reason, text = await _why(started)
            if live is not None:
                live.update(_picture(job, text), refresh=True)
            elif (line := _line(job)) != last:
                console.print(line, highlight=False)
                last = line
            if reason and reason not in reasons:
                reasons.append(reason)
                if live is None:
                    console.print(f"       {text}", highlight=False, soft_wrap=True)
            if job.is_ended:
                return job, reasons
            if time.monotonic() > deadline:
                raise TimedOut(
                    f"the job has not ended within {PATIENCE_SECONDS} s; its state is {job.status}"
                )
            await asyncio.sleep(0.1)


async def _why(started: Started[Any]) -> tuple[str, str]:
    """Why the last document in line is not being written, in short and as a sentence. Empty if all are."""
    async with app.connections() as pool:
        waiting = await jobs.tasks(pool, job_id=started.id, kind="write", status="queued")
        if not waiting:
            return "", ""
        why = await jobs.explain(pool, job_id=started.id, task_id=waiting[-1].id)
    # It may run by now, or the worker be about to take it.
    if why.reason is None or why.waits_for == "worker":
        return "", ""
    return why.reason, f"{waiting[-1].input['title']} is {why.text}"


def _line(job: Job) -> str:
    progress = job.progress
    return f"{progress.percent:3d} %  {progress.phase:<8}  {progress.done}/{progress.total} tasks"


def _picture(job: Job, why: str) -> Group:
    width = 30
    table = Table.grid(padding=(0, 2))
    for phase in job.progress.phases:
        filled = round(width * phase.done / phase.total) if phase.total else 0
        table.add_row(
            phase.name,
            f"[green]{'█' * filled}[/green][dim]{'░' * (width - filled)}[/dim]",
            f"{phase.done}/{phase.total}",
        )
    eta = f"about {job.progress.eta_seconds:.0f} s left" if job.progress.eta_seconds else ""
    table.add_row(f"[bold]{job.progress.percent} %[/bold]", job.progress.message or job.status, eta)
    return Group(table, Text(why, style="dim", overflow="ellipsis", no_wrap=True))
