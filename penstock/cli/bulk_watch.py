"""`penstock bulk watch`: the live view of a bulk job, and the lines that `bulk show` shares with it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import ExitStack
from typing import Any
from uuid import UUID

from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from penstock.cli import output
from penstock.cli.jobs import phases_of, summary_of
from penstock.cli.options import Output, current_options
from penstock.contract import bulks, jobs
from penstock.errors import EXIT_PARTLY_DONE, JobFailed
from penstock.postgres import db
from penstock.types import Bulk, Cause


def cause_lines(bulk: Bulk) -> list[str]:
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


def money(bulk: Bulk) -> str:
    if bulk.budget is None:
        return output.money(bulk.cost) if bulk.cost else ""
    return f"{output.money(bulk.cost)} of {output.money(bulk.budget)}"


async def follow(pool: db.Pool, job_id: UUID, interval: float) -> int:
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


async def remaining(pool: db.Pool, bulk: Bulk) -> str:
    """What a confirmation would run and cost, and the cost so far."""
    forecast = await jobs.forecast_rest(pool, job_id=bulk.job.id)
    cost, rows = forecast.cost, output.counted(bulk.rows.waiting, "row")
    estimate = f"{output.money(cost.low)} to {output.money(cost.high, cost.currency)}"
    unpriced = f" No price for {', '.join(sorted({*cost.unpriced}))}." if cost.unpriced else ""
    spent = output.money(bulk.cost, cost.currency)
    return (
        f"Remaining: {rows}, {output.counted(forecast.tasks, 'task')}, {estimate}.{unpriced} Spent: {spent}."
    )


async def _report_end(pool: db.Pool, bulk: Bulk) -> int:
    states = await bulks.counts(pool, job_id=bulk.job.id)
    if current_options().output in (Output.json, Output.csv):
        output.document({**output.plain(bulk), "states": states}, lambda: None)
    output.note(", ".join(f"{count:,} {state}" for state, count in states.items()) or "No rows.")
    if not bulk.job.is_ended:
        output.note(
            f"Preview ready. Review it: penstock bulk rows {bulk.job.id}\n"
            f"{await remaining(pool, bulk)}\n"
            f"Run the remaining rows: penstock bulk confirm {bulk.job.id}"
        )
        return 0
    if bulk.job.status != "completed":
        for line in cause_lines(bulk):
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
    if amount := money(bulk):
        parts.append(amount)
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
        grid.add_row("budget", output.bar(spent, 30, "red" if spent >= 0.95 else "green"), money(bulk))
        lines.append(grid)
    lines.append(
        Text.assemble(
            (f"{job.progress.percent:3d}%  ", "bold"),
            Text(_line(bulk, throughput, reason), overflow="ellipsis"),
        )
    )
    if job.status == "paused":
        lines.append(Text(f"Resume it: penstock jobs resume {job.id}", style="dim"))
    lines += [Text(line, style="red", overflow="ellipsis", no_wrap=True) for line in cause_lines(bulk)]
    return Group(*lines)
