"""A job's progress on a terminal: phases, remaining time, cost and budget, and why it waits."""

from __future__ import annotations

import sys
import time
from contextlib import aclosing, suppress
from functools import partial
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from penstock.client.core import Core, path
from penstock.client.responses import read
from penstock.client.transport import IO
from penstock.errors import PenstockError
from penstock.formatting import clean, counted, duration, money
from penstock.types import Explanation, Job, JobCost, Phase, Task

_WIDTH = 30
_MOST_PHASES = 12
_LOOKS = {
    "queued": ("○", "dim"),
    "running": ("●", "cyan"),
    "paused": ("‖", "yellow"),
    "completed": ("✓", "green"),
    "failed": ("✗", "bold red"),
    "canceled": ("⊘", "dim"),
}
# Cost and wait reason need requests of their own, so they are not fetched at each change.
_FETCH_SECONDS = 2.0


def on_terminal() -> ProgressDisplay | None:
    """A progress display on stderr, which leaves stdout to the program; None if stderr is not a terminal."""
    console = Console(file=sys.stderr)
    return ProgressDisplay(console) if console.is_terminal else None


class ProgressDisplay:
    """A display of a job that is redrawn when it changes. The remaining time counts down in between."""

    def __init__(self, console: Console) -> None:
        # Do not redirect what the program itself prints.
        self._live = Live(
            self, console=console, refresh_per_second=2, redirect_stdout=False, redirect_stderr=False
        )
        self._job: Job | None = None
        self._cost: JobCost | None = None
        self._reason = ""
        self._updated_at = self._fetched_at = 0.0

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    async def show(self, core: Core[IO], job: Job) -> None:
        """Show the job's current state."""
        now = time.monotonic()
        self._job, self._updated_at = job, now
        if job.is_ended or now - self._fetched_at > _FETCH_SECONDS:
            self._fetched_at = now
            # Display only: an error must not end the wait.
            with suppress(PenstockError):
                self._cost = await core.get(JobCost, path("/api/jobs/{}/costs", job.id))
                self._reason = await _reason(core, job)
        self._live.refresh()

    def __rich__(self) -> RenderableType:
        job = self._job
        if job is None:
            return Text("")
        icon, style = _LOOKS.get(job.status, ("·", ""))
        head = Text.assemble(
            (clean(job.type), "bold"), "  ", (str(job.id), "dim"), "  ", (f"{icon} {job.status}", style)
        )
        line = Text("  ".join([f"{job.progress.percent:3d}%", *self._summary(job)]))
        parts: list[RenderableType] = [head, _phases(job.progress.phases), line]
        if self._reason:
            parts.append(Text(self._reason, style="dim", overflow="ellipsis", no_wrap=True))
        return Group(*parts)

    def _summary(self, job: Job) -> list[str]:
        progress = job.progress
        parts = [f"{progress.done:,}/{counted(progress.total, 'task')}"]
        if progress.failed:
            parts.append(f"{progress.failed:,} failed")
        if progress.eta_seconds is not None and not job.is_ended:
            left = max(progress.eta_seconds - (time.monotonic() - self._updated_at), 0)
            parts.append(f"about {duration(left)} left")
        if self._cost is not None and self._cost.budget is not None:
            parts.append(f"{money(self._cost.cost)} of {money(self._cost.budget)} spent")
        elif self._cost is not None and self._cost.cost:
            parts.append(f"{money(self._cost.cost)} spent")
        if progress.message and not job.is_ended:
            parts.append(clean(progress.message))
        return parts


def _phases(phases: tuple[Phase, ...]) -> Table:
    """A bar for each phase; if there are many, only for unfinished ones."""
    grid = Table.grid(padding=(0, 2))
    shown = [phase for phase in phases if phase.total]
    if len(shown) > _MOST_PHASES:
        shown = [phase for phase in shown if phase.done < phase.total][:_MOST_PHASES]
    for phase in shown:
        filled = _WIDTH * phase.done // phase.total
        bar = Text("█" * filled, style="green") + Text("░" * (_WIDTH - filled), style="dim")
        trouble = Text(f"{phase.failed:,} failed" if phase.failed else "", style="bold red")
        grid.add_row(Text(clean(phase.name)), bar, f"{phase.done:,}/{phase.total:,}", trouble)
    return grid


async def _reason(core: Core[IO], job: Job) -> str:
    """Why no more of the job's tasks run. Empty if none are queued, or they only wait for a free worker."""
    if job.status in ("paused", "failed", "canceled"):
        return clean(job.status_reason or "")
    if job.is_ended:
        return ""
    url_path = path("/api/jobs/{}/tasks", job.id)
    async with aclosing(core.pages(partial(read, Task), url_path, {"status": "queued"}, 1)) as waiting:
        async for task in waiting:
            why = await core.get(Explanation, path("/api/jobs/{}/tasks/{}/why", job.id, task.id))
            if why.status == "queued" and (why.waits_for != "worker" or not job.progress.running):
                return clean(f"{task.key or task.kind} is {why.text}")
    return ""
