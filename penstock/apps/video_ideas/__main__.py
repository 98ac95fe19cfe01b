"""`python -m penstock.apps.video_ideas [SHEET]`: make a film for each row of a sheet (default: three ideas).

Runs everything in one process: the worker with its studios, and a simulated model that writes the scripts.
No real money is spent.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import structlog

from penstock import Worker, simulator
from penstock.apps.video_ideas.app import app, video_ideas
from penstock.apps.video_ideas.settings import VARIABLE
from penstock.contract import artifacts, bulks, costs, providers
from penstock.errors import PenstockError

IDEAS = [
    {"title": "Otters hold hands", "idea": "So that the current does not part them.", "seconds": "3"},
    {
        "title": "How a lock lifts a ship",
        "idea": "Two gates and no pump.",
        "format": "portrait",
        "seconds": "4",
    },
    {
        "title": "The heron waits",
        "idea": "Then it moves.",
        "format": "square",
        "quality": "720p",
        "seconds": "2",
    },
]
MODEL = "simulator/gpt-brook"
TIMEOUT_SECONDS = 600


def main(words: list[str]) -> int:
    """Make the films. Returns 0 if every row has one."""
    if len(words) > 1 or (words and not Path(words[0]).is_file()):
        print("usage: python -m penstock.apps.video_ideas [SHEET]", file=sys.stderr)
        return 2
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    return asyncio.run(run(words[0] if words else IDEAS))


async def run(source: Any) -> int:
    """Start the worker and the simulated model, and make the films of a path or of rows."""
    async with app, simulator.serve() as model:
        os.environ[VARIABLE] = f"simulator={model.openai_url}"
        async with app.connections() as pool:
            await app.declare(pool)
            await providers.open(pool, name=MODEL)  # an earlier demo may have closed it
        making = asyncio.create_task(_make(source))
        working = asyncio.create_task(Worker(app, concurrency=2, grace_seconds=5).run())
        try:
            await asyncio.wait({making, working}, return_when=asyncio.FIRST_COMPLETED)
            if not making.done():
                # The worker ended first: it says why it cannot run.
                await working
                return 1
            return await making
        except PenstockError as error:
            print(f"{error.code}: {error}", file=sys.stderr)
            return 1
        finally:
            for each in (making, working):
                each.cancel()
                with suppress(asyncio.CancelledError, PenstockError):
                    await each


async def _make(source: Any) -> int:
    began = time.monotonic()
    job = await video_ideas.astart(source)
    print(f"Started {job.id}.", flush=True)
    try:
        await job.aresult(TIMEOUT_SECONDS)
    except PenstockError as error:
        print(f"{error.code}: {error.message}")
    async with app.connections() as pool:
        rows = [row async for row in bulks.results(pool, job_id=job.id)]
        files = await artifacts.list(pool, job_id=job.id, limit=1000)
        spent = await costs.of_job(pool, job_id=job.id)
    for row in rows:
        film: dict[str, Any] = row.output or {}
        made = f"{film['seconds']:.1f} s by {film['provider']}" if film else row.error_message or ""
        print(f"Row {row.number}: {row.state}, {made}")
    took = time.monotonic() - began
    print(f"{len(files)} films in {took:.1f} s, cost {spent.cost:.6f} USD: penstock artifacts ls {job.id}")
    return 0 if rows and all(row.state == "succeeded" for row in rows) else 1


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
