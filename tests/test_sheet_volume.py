"""Ten thousand rows from a Google Sheet and back."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import pytest

from penstock import Worker, testing
from penstock.sheets import GoogleSheet
from tests.test_sheets import desk

ROWS = 10_000
RESTARTS = 3


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_ten_thousand_rows_are_written_back_within_the_budgets(
    db: testing.Database, drain: testing.Drain, clock: testing.Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R0.7/volume: Google's default budgets, 429s and errors, and workers that are stopped in the middle: each row is
    done once and has its status, output and cost; no minute has more calls than it may."""
    # Smaller parts than usual, so that there are calls to refuse.
    monkeypatch.setattr("penstock.sdk.sheet_results.MOST_ROWS", 250)
    monkeypatch.setattr("penstock.sheets.cells._FIRST_CELLS", 2000)
    faults = {"429": 0.15, "500": 0.05}
    async with desk(drain, clock, faults=faults) as at:
        lines: list[list[Any]] = [["title", "seconds"], *([f"idea {n}", n % 60] for n in range(ROWS))]
        at.sim.sheets.add("book", {"Ideas": lines})
        job = await at.ideas.astart(GoogleSheet("book"))
        for part in range(1, RESTARTS + 1):
            await _run_until(at, ROWS * part // (RESTARTS + 1), job)
            # What the stopped worker held runs out, and runs elsewhere.
            clock.advance(seconds=200)
            at.hand.now += 200
        found = await at.finish(job)
        assert (found.status, found.progress.percent) == ("completed", 100), found
        values: list[list[Any]] = at.sim.sheets.values("book", f"Ideas!A2:E{ROWS + 1}")
        wrong = [
            row
            for n, row in enumerate(values)
            if row[:4] != [f"idea {n}", n % 60, "succeeded", f"https://example.org/idea {n}.mp4"]
            or row[4] < 0.25
        ]
        assert (len(values), wrong) == (ROWS, [])
        assert len(set(at.ran)) == ROWS
        [done] = db.execute("select count(*) as n, count(distinct first_id) as tasks from penstock.bulk_rows")
        assert (done["n"], done["tasks"]) == (ROWS, ROWS)
        seen = at.sim.stats()["sheets"]
        assert (seen["violation_count"], seen["rows_changed"], seen["formulas"]) == (0, 0, 0)
        assert set(seen["faults"]) == set(faults) and seen["statuses"]["429"] > 3
        # Far fewer calls than rows.
        assert sum(seen["calls"].values()) < ROWS / 50


async def _run_until(at: Any, wanted: int, job: Any) -> None:
    """Run a worker until this many rows were done, and stop it in the middle of its tasks."""
    working = asyncio.create_task(Worker(at.app, concurrency=16, grace_seconds=0).run())
    try:
        async with asyncio.timeout(300):
            while len(at.ran) < wanted:
                assert not working.done()
                await asyncio.sleep(0.05)
                at.clock.advance(seconds=1)
                at.hand.now += 1
    finally:
        working.cancel()
        with suppress(asyncio.CancelledError):
            await working
