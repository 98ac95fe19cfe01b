"""`penstock demo`: make a small book of sixteen chapters, each written, typeset and read aloud, then bound.

The whole system in one process: the example app `penstock.apps.reading`, its worker, the API, and a simulated
provider that allows three concurrent calls, has prices and sometimes responds with 429. Shows a forecast, a
budget and live progress. No real money is spent.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from penstock import server, simulator
from penstock.api.development import Development
from penstock.apps.reading.app import app, reading
from penstock.apps.reading.books import RUNNING_WATER
from penstock.apps.reading.settings import SIMULATOR as PROVIDER
from penstock.contract import artifacts, costs, jobs, keys, providers, workers
from penstock.errors import PenstockError, TimedOut
from penstock.formatting import counted
from penstock.sdk.job_types import Started
from penstock.settings import Settings
from penstock.storage.objects import Folder
from penstock.types import Artifact, Job, JobCost
from penstock.worker import Worker

CONCURRENCY = 3
PRICES = {"input_tokens": Decimal("3.00"), "output_tokens": Decimal("15.00")}  # per million
BUDGET = Decimal("0.25")

TIMEOUT_SECONDS = 300
TICK_SECONDS = 0.2


def run(settings: Settings, *, is_terminal: bool, began: float) -> int:
    """Run the demo and return its exit code. Runs until Ctrl-C on a terminal, otherwise until the job ends.

    `began` is the start of the command, from `time.monotonic()`.
    """
    try:
        return asyncio.run(_run(settings, is_terminal, began))
    except KeyboardInterrupt:
        return 0


async def _run(settings: Settings, is_terminal: bool, began: float) -> int:
    worker = Worker(app, dsn=settings.database_url, concurrency=6, grace_seconds=5)
    # With this seed, only the seventh of the first twenty calls gets a 429.
    serving = simulator.serve(
        limits=simulator.Limits(concurrency=CONCURRENCY), faults={"429": 0.06}, latency=(0.4, 0.9), seed=3
    )
    async with app, serving as provider, _api(settings) as api:
        # Override a real provider in the environment, which would cost money.
        os.environ |= {
            "READING_MODEL": PROVIDER,
            "READING_URL": provider.openai_url,
            "READING_VOICE_MODEL": "",
        }
        working = asyncio.create_task(worker.run())
        try:
            await _prepare(worker, working)
            shown = _Demo(Console(file=sys.stdout), provider, api, is_terminal, began)
            code = await shown.show()
            if is_terminal:
                shown.say("Running until Ctrl-C.")
                await working
            return code
        finally:
            worker.stop()
            await asyncio.gather(working, return_exceptions=True)


class _Api(NamedTuple):
    """URL of the API, and a login link for the dashboard."""

    url: str
    login: str


@asynccontextmanager
async def _api(settings: Settings) -> AsyncGenerator[_Api | None]:
    """Serve the API on this machine. None if the database has no login for users."""
    try:
        found = server.with_development_login(replace(settings, environment="demo"))
    except PenstockError:
        yield None
        return
    async with app.connections() as pool:
        tenant_id = await app.tenant_id(pool)
        until = datetime.now(UTC) + timedelta(days=1)
        key = await keys.create(
            pool, name="penstock demo", role="owner", tenant_id=tenant_id, expires_at=until
        )
    listening = server.bind("127.0.0.1", 0)
    port = listening.getsockname()[1]
    developer = Development(key.id, f"penstock_demo_{port}", str(app.tenant))
    try:
        async with server.serving(found, listening, developer=developer, app=app):
            url = f"http://127.0.0.1:{port}"
            yield _Api(url, f"{url}/dev/login?token={developer.token}")
    finally:
        with suppress(PenstockError):
            async with app.connections() as pool:
                await keys.revoke(pool, key_id=key.id)


async def _prepare(worker: Worker, working: asyncio.Task[None]) -> None:
    """Declare the provider and wait for the worker, because the forecast counts live workers."""
    async with app.connections() as pool:
        await providers.set(pool, name=PROVIDER, concurrency=CONCURRENCY, backpressure_threshold=None)
        await providers.open(pool, name=PROVIDER)  # an earlier demo may have closed it
        if not await costs.prices(pool, provider=PROVIDER):
            for meter, amount in PRICES.items():
                await costs.set_price(pool, provider=PROVIDER, meter=meter, amount=amount, per=1_000_000)
        while worker.id not in {found.id for found in await workers.list(pool)}:
            if working.done():
                return await working
            await asyncio.sleep(0.05)


def _program() -> str:
    """How the user's shell finds this program: `make demo` runs it from an environment that is not active."""
    own = Path(sys.argv[0]).absolute()
    if own.name != "penstock" or shutil.which("penstock") == str(own):
        return "penstock"
    return str(own.relative_to(Path.cwd())) if own.is_relative_to(Path.cwd()) else str(own)


@dataclass
class _Demo:
    """Output and state of a demo run."""

    console: Console
    provider: simulator.Simulator
    api: _Api | None
    is_terminal: bool
    began: float
    reasons: list[str] = field(default_factory=list[str])
    first_pdf: float | None = None

    def __post_init__(self) -> None:
        self.say = partial(self.console.print, highlight=False, soft_wrap=True)

    async def show(self) -> int:
        """Forecast, start and watch the job, then print its results. Returns the exit code."""
        chapters = RUNNING_WATER["chapters"]
        self.say(
            f"[bold]Penstock demo[/bold]: making the book {RUNNING_WATER['title']}, {len(chapters)} chapters"
        )
        self.say(
            f"provider: {PROVIDER} (simulated), {CONCURRENCY} concurrent calls, with prices and 429 errors"
        )
        if self.api:
            # Without a terminal the demo ends with the job, and the login link would only leak into a log.
            link = self.api.login if self.is_terminal else f"{self.api.url}/dashboard/"
            self.say(f"dashboard: {link}")
        job_type = reading.options(budget=BUDGET)
        forecast = await job_type.aforecast(**RUNNING_WATER)
        cost, finish = forecast.cost, forecast.finish
        estimate = f"{cost.low:.4f} to {cost.high:.4f} {cost.currency}"
        when = f"about {finish.seconds:.0f} s" if finish.seconds else f"unknown: {finish.reason}"
        self.say(f"forecast: {estimate} (budget {BUDGET} {cost.currency}), duration {when}")
        started = await job_type.astart(**RUNNING_WATER)
        self.say(f"job: {started.id} writes, typesets and records each chapter, then binds the book")
        job = await self._watch(started)
        took = (job.finished_at - job.started_at).total_seconds() if job.finished_at and job.started_at else 0
        async with app.connections() as pool:
            spent = await costs.of_job(pool, job_id=started.id)
            files = await artifacts.list(pool, job_id=started.id, limit=100)
        await self._print_result(started, job, files)
        self.say(f"cost: {spent.cost:.4f} of {spent.budget} {cost.currency} (forecast: {estimate})")
        self.say(f"duration: {took:.1f} s (forecast: {when})")
        if self.first_pdf is not None:
            total = time.monotonic() - self.began
            self.say(f"since start: first PDF after {self.first_pdf:.1f} s, everything after {total:.1f} s")
        refused = self.provider.statuses["429"]
        most = max((account.max_concurrency for account in self.provider.accounts.values()), default=0)
        calls = self.provider.requests
        self.say(
            f"provider: {counted(calls, 'call')}, {refused} rejected with 429, at most {most} concurrent"
        )
        self.say(f"tasks waited for: {'; '.join(self.reasons) or 'nothing'}")
        program = _program()
        commands = (f"{program} jobs ls", f"{program} jobs show {started.id}", f"{program} costs")
        self.say("Explore:  " + "   ".join(f"[bold]{command}[/bold]" for command in commands))
        return 0 if job.status == "completed" else 3

    async def _print_result(self, started: Started[Any], job: Job, files: list[Artifact]) -> None:
        if job.status != "completed":
            self.say(f"[bold red]{job.status}[/bold red]: {job.status_reason or ''}")
            return
        book = await started.aresult()
        minutes = round(book["seconds"] / 60)
        kinds = [file.content_type for file in files]
        self.say(
            f"[bold green]completed[/bold green]: {counted(book['documents'], 'document')}, "
            f"{counted(book['pages'], 'page')}, "
            f"{counted(minutes, 'minute')} of audio"
        )
        self.say(
            f"files: {kinds.count('application/pdf') - 1} PDFs, {kinds.count('audio/mpeg')} MP3s, "
            "the complete book and its metadata"
        )
        sound = min((file for file in files if file.content_type == "audio/mpeg"), key=lambda file: file.name)
        whole = next(file for file in files if str(file.id) == book["pdf"]["artifact_id"])
        self.say(f"  book    {await self._location(whole)}")
        self.say(f"  audio   {await self._location(sound)}")
        if isinstance(app.storage, Folder):
            folder = app.storage.root / str(job.tenant_id) / str(job.id)
            self.say(f"  folder  {folder}")

    async def _location(self, file: Artifact) -> str:
        """A signed URL of the file while the API runs, otherwise its path."""
        storage = app.storage
        if isinstance(storage, Folder) and not (self.api and self.is_terminal):
            return str(storage.root / file.path)
        base = self.api.url if self.api else ""
        fields = {"tenant": str(file.tenant_id), "type": file.content_type, "name": file.name}
        return await storage.url("GET", file.path, base=base, seconds=None, **fields)

    async def _watch(self, started: Started[Any]) -> Job:
        """Watch the job until it ends."""
        last, deadline = "", time.monotonic() + TIMEOUT_SECONDS
        with Live(console=self.console, auto_refresh=False) if self.is_terminal else nullcontext() as live:
            while True:
                job = await started.aget()
                async with app.connections() as pool:
                    spent = await costs.of_job(pool, job_id=started.id)
                if self.first_pdf is None and any(
                    p.name == "pdf" and p.succeeded for p in job.progress.phases
                ):
                    self.first_pdf = time.monotonic() - self.began
                reason, text = await _wait_reason(started)
                if live is not None:
                    live.update(_live_view(job, spent, text), refresh=True)
                elif (line := _line(job)) != last:
                    self.say(line + _phases_and_cost(job, spent))
                    last = line
                if reason and reason not in self.reasons:
                    self.reasons.append(reason)
                    if live is None:
                        self.say(f"       {text}")
                if job.is_ended:
                    return job
                if time.monotonic() > deadline:
                    raise TimedOut(f"the job did not end within {TIMEOUT_SECONDS} s (status: {job.status})")
                await asyncio.sleep(TICK_SECONDS)


async def _wait_reason(started: Started[Any]) -> tuple[str, str]:
    """Why the last queued chapter is not running, as a code and as a sentence. Empty if none is queued."""
    async with app.connections() as pool:
        waiting = await jobs.tasks(pool, job_id=started.id, kind="text", status="queued")
        if not waiting:
            return "", ""
        explanation = await jobs.explain(pool, job_id=started.id, task_id=waiting[-1].id)
    # The task may have started meanwhile, or is about to be claimed.
    if explanation.reason is None or explanation.waits_for == "worker":
        return "", ""
    title = RUNNING_WATER["chapters"][waiting[-1].input["number"] - 1]
    return explanation.reason, f"{title} is {explanation.text}"


def _line(job: Job) -> str:
    """Progress in steps of five percent, to keep the output short where it is not redrawn."""
    progress = job.progress
    percent = 100 if progress.percent == 100 else progress.percent // 5 * 5
    return f"{percent:3d}%  {progress.phase:<11}"


def _phases_and_cost(job: Job, spent: JobCost) -> str:
    counts = "  ".join(f"{phase.name} {phase.done}/{phase.total}" for phase in job.progress.phases[1:-1])
    eta = f"  about {job.progress.eta_seconds:.0f} s left" if job.progress.eta_seconds else ""
    return f"  {counts}  cost {spent.cost:.4f}{eta}"


def _live_view(job: Job, spent: JobCost, reason: str) -> Group:
    width = 30
    table = Table.grid(padding=(0, 2))
    for phase in job.progress.phases:
        filled = round(width * phase.done / phase.total) if phase.total else 0
        table.add_row(
            phase.name,
            f"[green]{'█' * filled}[/green][dim]{'░' * (width - filled)}[/dim]",
            f"{phase.done}/{phase.total}",
        )
    share = min(1, spent.cost / spent.budget) if spent.budget else 0
    filled = round(width * share)
    table.add_row(
        "cost",
        f"[yellow]{'█' * filled}[/yellow][dim]{'░' * (width - filled)}[/dim]",
        f"{spent.cost:.4f} of {spent.budget} USD",
    )
    eta = f"about {job.progress.eta_seconds:.0f} s left" if job.progress.eta_seconds else ""
    table.add_row(f"[bold]{job.progress.percent}%[/bold]", Text(job.progress.message or job.status), eta)
    return Group(table, Text(reason, style="dim", overflow="ellipsis", no_wrap=True))
