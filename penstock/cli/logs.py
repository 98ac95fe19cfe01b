"""`penstock jobs logs`: what the handlers of a job's tasks logged."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from penstock.cli import output
from penstock.cli.jobs import IdArgument, group
from penstock.cli.options import Output, command, current_options
from penstock.contract import jobs, logs
from penstock.postgres import db
from penstock.types import LogLine


@command(group, "logs")
async def show_logs(
    pool: db.Pool,
    job_id: IdArgument,
    task: Annotated[int | None, typer.Option(min=1, metavar="ID", help="Only lines of this task.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="Newest lines to show.")] = 100,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Show new lines until the job ends.")
    ] = False,
) -> None:
    """Show what a job's tasks logged, oldest first.

    Lines are kept for one to two weeks, up to 1,000 per attempt.
    """
    await jobs.get(pool, job_id=job_id)
    found = await logs.last(pool, job_id=job_id, task_id=task, limit=limit)
    if not follow:
        if current_options().output is Output.text:
            _print(found)
            if not found:
                output.note("No log lines.", "dim")
        else:
            output.rows(found, [], empty="")
        return
    _print(found)
    last = found[-1].id if found else 0
    while True:
        is_ended = (await jobs.get(pool, job_id=job_id)).finished_at is not None
        # The last lines of a job may be stored after its end: workers send lines twice a second.
        await asyncio.sleep(1)
        while found := await logs.list(pool, job_id=job_id, task_id=task, after=last, limit=1000):
            _print(found)
            last = found[-1].id
        if is_ended:
            return


def _print(lines: list[LogLine]) -> None:
    for line in lines:
        fields = "".join(f" {name}={value}" for name, value in (line.fields or {}).items())
        at = line.at.astimezone().strftime("%H:%M:%S.%f")[:-3]
        text = f"{at} {line.task_id}#{line.attempt} {line.level:<8} {line.message}{fields}"
        print(output.clean(text), flush=True)
