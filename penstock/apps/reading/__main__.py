"""`python -m penstock.apps.reading [TITLE CHAPTER…]`: make a book (default: sixteen chapters about water).

Runs everything in one process: the worker, and a simulated model unless `READING_MODEL` or `READING_URL`
names another. Without them no real money is spent.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import time
from contextlib import AsyncExitStack, suppress
from typing import Any

import structlog

from penstock import Worker, simulator
from penstock.apps.reading.app import app, declare, reading
from penstock.apps.reading.books import RUNNING_WATER
from penstock.apps.reading.settings import SIMULATOR, settings
from penstock.contract import costs, providers
from penstock.errors import PenstockError


def main(words: list[str]) -> int:
    """Make the book. Returns 0 if it is complete."""
    if len(words) == 1:
        print("usage: python -m penstock.apps.reading [TITLE CHAPTER…]", file=sys.stderr)
        return 2
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    wanted: dict[str, Any] = {"title": words[0], "chapters": words[1:]} if words else RUNNING_WATER
    return asyncio.run(run(wanted))


async def run(wanted: dict[str, Any]) -> int:
    """Start the worker and, if no other model is named, a simulated one, and make the book."""
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(app)
        if settings().model == SIMULATOR and not os.environ.get("READING_URL"):
            model = await stack.enter_async_context(simulator.serve())
            os.environ["READING_URL"] = model.openai_url
        await declare()
        async with app.connections() as pool:
            await app.declare(pool)
            await providers.open(pool, name=settings().model)  # an earlier run may have closed it
        making = asyncio.create_task(_make(wanted))
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


async def _make(wanted: dict[str, Any]) -> int:
    began = time.monotonic()
    job = await reading.astart(**wanted)
    print(f"Started {job.id}, written by {settings().model}.", flush=True)
    book = await job.aresult()
    async with app.connections() as pool:
        spent = await costs.of_job(pool, job_id=job.id)
    took, count = time.monotonic() - began, len(wanted["chapters"])
    made = (
        f"{count} chapter{'' if count == 1 else 's'}, {book['pages']} pages, {book['seconds']:.0f} s of audio"
    )
    print(f"{made} in {took:.0f} s, cost {spent.cost:.6f} USD: penstock artifacts ls {job.id}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
