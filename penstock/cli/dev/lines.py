"""A line for each task that ends in `penstock dev`: duration, cost, and errors with tracebacks."""

from __future__ import annotations

import asyncio
import os
import traceback
from contextlib import suppress
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.text import Text

import penstock
from penstock.cli import output
from penstock.cli.options import Output, current_options
from penstock.cli.start import start_again
from penstock.contract import costs, jobs
from penstock.errors import PenstockError
from penstock.sdk.context import Fail, Reschedule, Retry, Waiting
from penstock.worker import outcome
from penstock.worker.outcome import AttemptEnd, HandlerFailed, log

if TYPE_CHECKING:
    from penstock.sdk.app import App

COMMIT_SECONDS = 0.2
"""The outcome of an attempt, and with it the cost, is committed a moment after the handler ends."""
MAX_LINES = 50
_PACKAGE = Path(penstock.__file__).parent
_APPS = _PACKAGE / "apps"
_PYTHON = Path(os.__file__).parent


class TaskLines:
    """Prints a line for each attempt that ends."""

    def __init__(self, app: App, url: str) -> None:
        self._app, self._url = app, url
        self._ended: list[AttemptEnd] = []
        self._has_ended = asyncio.Event()
        self._currency: str | None = None

    def add(self, end: AttemptEnd) -> None:
        """Print this attempt soon."""
        self._ended.append(end)
        self._has_ended.set()

    async def run(self) -> None:
        """Print until canceled."""
        while True:
            await self._has_ended.wait()
            await asyncio.sleep(COMMIT_SECONDS)
            await self.print_all()

    async def print_all(self) -> None:
        """Print the attempts that have ended."""
        self._has_ended.clear()
        ended, self._ended = self._ended, []
        if not ended:
            return
        spent = await self._costs(ended)
        # Errors are always printed; of many successes in one moment only the first.
        quiet = [end for end in ended if end.error is None][MAX_LINES:]
        hidden = {id(end) for end in quiet}
        for end in ended:
            if id(end) not in hidden:
                self._print(end, spent.get(end.claim.id, Decimal(0)))
        if quiet:
            output.note(f"          … and {output.counted(len(quiet), 'more task')} succeeded", "dim")

    async def _costs(self, ended: list[AttemptEnd]) -> dict[int, Decimal]:
        with suppress(PenstockError):
            async with self._app.connections() as pool:
                if self._currency is None:
                    self._currency = await costs.base_currency(pool)
                job_ids = {end.claim.job_id for end in ended}
                task_ids = {end.claim.id for end in ended}
                return await costs.of_tasks(pool, job_ids=job_ids, task_ids=task_ids)
        return {}

    def _print(self, end: AttemptEnd, cost: Decimal) -> None:
        claim, link = end.claim, f"{self._url}/dashboard/jobs/{end.claim.job_id}/tasks/{end.claim.id}"
        if current_options().output is not Output.text:
            log.info(
                "task.ended", task_id=claim.id, job_id=str(claim.job_id), kind=claim.kind, link=link,
                attempt=claim.attempt, seconds=round(end.seconds, 3), cost=str(cost),
                error=None if end.error is None else str(end.error),
            )  # fmt: skip
            return
        sign, style, comment = _verdict(end)
        line = Text(f"{datetime.now():%H:%M:%S}  ", style="dim")
        line.append(f"{sign} ", style=style)
        line.append(f"{output.clean(claim.kind)} {claim.id}", style=f"bold link {link}")
        line.append(f"  {output.duration(end.seconds) if end.seconds >= 10 else f'{end.seconds:.2f} s'}")
        if cost:
            line.append(f"  {output.money(cost, self._currency or '')}")
        if comment:
            line.append(f"  {output.clean(comment)}", style=style)
        console = output.console(stderr=True)
        console.print(line, soft_wrap=True, highlight=False)
        asks = end.error is not None and isinstance(outcome.waiting(end.error), Waiting)
        if end.error is not None and (asks or not _runs_again(end)):
            if not asks and not isinstance(end.error, Fail | Retry):
                text = "\n".join(_indented(row) for row in traceback_of(end.error).splitlines())
                console.print(Text(text, style="dim"), soft_wrap=True, highlight=False)
            console.print(Text(f"          {link}", style="dim"), soft_wrap=True, highlight=False)


def _indented(row: str) -> str:
    return " " * (10 + len(row) - len(row.lstrip())) + output.clean(row.lstrip())


def _runs_again(end: AttemptEnd) -> bool:
    """Whether the attempt did not fail: the task waits, or runs again without losing an attempt."""
    return end.error is not None and (
        isinstance(end.error, Reschedule) or outcome.waiting(end.error) is not None or _limit(end) is not None
    )


def _limit(end: AttemptEnd) -> dict[str, Any] | None:
    """What a provider with limits answered when it refused the attempt."""
    if end.error is None or end.claim.provider is None:
        return None
    return outcome.signal(end.error)


def _verdict(end: AttemptEnd) -> tuple[str, str, str]:
    claim, error = end.claim, end.error
    if error is None:
        return "✓", "green", f"attempt {claim.attempt}" if claim.attempt > 1 else ""
    if isinstance(error, Reschedule):
        return "↻", "yellow", f"again in {output.duration(error.delay)}: {error.reason}"
    if (waiting := outcome.waiting(error)) is not None:
        what = "an answer" if isinstance(waiting, Waiting) else "the provider's operation"
        return "…", "yellow", f"waits for {what}"
    if (limit := _limit(end)) is not None:
        return "↻", "yellow", f"{claim.provider} answered {limit['status']}: runs again"
    first = str(error).strip().partition("\n")[0]
    name = type(error).__name__
    message = first if isinstance(error, HandlerFailed) else f"{name}: {first}" if first else name
    is_last = isinstance(error, Fail) or claim.attempt >= claim.max_attempts
    what = "failed permanently" if is_last else f"attempt {claim.attempt} of {claim.max_attempts} failed"
    return "✗", "red", f"{what}: {message}"


def traceback_of(error: BaseException) -> str:
    """The traceback from the first line of the user's own code on."""
    if isinstance(error, HandlerFailed):
        details: dict[str, str] = error.error.get("details") or {}
        return details.get("stack", "")
    trace = error.__traceback__
    while trace is not None and _is_ours(Path(trace.tb_frame.f_code.co_filename)):
        trace = trace.tb_next
    return "".join(traceback.format_exception(type(error), error, trace or error.__traceback__)).rstrip()


def _is_ours(file: Path) -> bool:
    """Whether a file belongs to Penstock or Python, which call the user's code."""
    if "site-packages" in file.parts and not file.is_relative_to(_PACKAGE):
        return False
    is_package = file.is_relative_to(_PACKAGE) and not file.is_relative_to(_APPS)
    return is_package or file.is_relative_to(_PYTHON)


async def rerun_last(app: App) -> None:
    """Start the latest job of the app's tenant again, with the same params and the current code."""
    try:
        async with app.connections() as pool:
            found = await jobs.list(pool, tenant_id=await app.tenant_id(pool), limit=1)
            if not found:
                output.note("No job has been started yet.", "dim")
                return
            [job] = found
            job_id = await start_again(pool, app, job, {})
        output.note(f"Started {job.type} {job_id}.", "bold")
    except PenstockError as error:
        output.print_error(error, is_json=False)
