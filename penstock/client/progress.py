"""How far a job is, drawn on a terminal: phases, what is left, cost and budget, and why it waits."""

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

from penstock.client.answers import read
from penstock.client.core import Core, path
from penstock.client.transport import IO
from penstock.errors import PenstockError
from penstock.formatting import clean, duration, money
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
# Cost and reason are asked for apart, and not at each change.
_ASK_SECONDS = 2.0


def on_terminal() -> Picture | None:
    """A picture on stderr, so that stdout is left to the program; None if that is not a terminal."""
    console = Console(file=sys.stderr)
    return Picture(console) if console.is_terminal else None


class Picture:
    """A job, drawn anew whenever it changes. What is left counts down by itself."""

    def __init__(self, console: Console) -> None:
        # What the program prints is its own: its streams are not replaced.
        self._live = Live(
            self, console=console, refresh_per_second=2, redirect_stdout=False, redirect_stderr=False
        )
        self._job: Job | None = None
        self._cost: JobCost | None = None
        self._why = ""
        self._looked_at = self._asked_at = 0.0

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    async def show(self, core: Core[IO], job: Job) -> None:
        """Draw the job as it is now."""
        now = time.monotonic()
        self._job, self._looked_at = job, now
        if job.is_ended or now - self._asked_at > _ASK_SECONDS:
            self._asked_at = now
            # It is for looking only: the wait does not fail with it.
            with suppress(PenstockError):
                self._cost = await core.get(JobCost, path("/api/jobs/{}/costs", job.id))
                self._why = await _why(core, job)
        self._live.refresh()

    def __rich__(self) -> RenderableType:
        job = self._job
        if job is None:
            return Text("")
        icon, style = _LOOKS.get(job.status, ("·", ""))
        head = Text.assemble(
            (clean(job.type), "bold"), "  ", (str(job.id), "dim"), "  ", (f"{icon} {job.status}", style)
        )
        line = Text("  ".join([f"{job.progress.percent:3d} %", *self._facts(job)]))
        parts: list[RenderableType] = [head, _phases(job.progress.phases), line]
        if self._why:
            parts.append(Text(self._why, style="dim", overflow="ellipsis", no_wrap=True))
        return Group(*parts)

    def _facts(self, job: Job) -> list[str]:
        progress = job.progress
        facts = [f"{progress.done:,}/{progress.total:,} tasks"]
        if progress.failed:
            facts.append(f"{progress.failed:,} failed")
        if progress.eta_seconds is not None and not job.is_ended:
            left = max(progress.eta_seconds - (time.monotonic() - self._looked_at), 0)
            facts.append(f"about {duration(left)} left")
        if self._cost is not None and self._cost.budget is not None:
            facts.append(f"{money(self._cost.cost)} of {money(self._cost.budget)} spent")
        elif self._cost is not None and self._cost.cost:
            facts.append(f"{money(self._cost.cost)} spent")
        if progress.message and not job.is_ended:
            facts.append(clean(progress.message))
        return facts


def _phases(phases: tuple[Phase, ...]) -> Table:
    """A bar for each; of many those that are not done."""
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


async def _why(core: Core[IO], job: Job) -> str:
    """Why nothing more of it runs, in a sentence. Empty if nothing waits, or only its turn."""
    if job.status in ("paused", "failed", "canceled"):
        return clean(job.status_reason or "")
    if job.is_ended:
        return ""
    where = path("/api/jobs/{}/tasks", job.id)
    async with aclosing(core.pages(partial(read, Task), where, {"status": "queued"}, 1)) as waiting:
        async for task in waiting:
            why = await core.get(Explanation, path("/api/jobs/{}/tasks/{}/why", job.id, task.id))
            if why.status == "queued" and (why.waits_for != "worker" or not job.progress.running):
                return clean(f"{task.key or task.kind} is {why.text}")
    return ""
