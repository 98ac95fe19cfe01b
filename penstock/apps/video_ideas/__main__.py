"""`python -m penstock.apps.video_ideas SHEET [RESULTS]`: a film for each row of a CSV, TSV, XLSX or JSONL.

A worker makes them (`penstock dev penstock.apps.video_ideas.app:app`), and somebody has to write the scripts
(`penstock simulate --port 8090`, or what has the feature `script`). The results are the sheet with what
became of each row; their format is in the name.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any
from uuid import UUID

from penstock import bulks, jobs, sources
from penstock.apps.video_ideas.app import app, video_ideas
from penstock.types import BulkResult

COLUMNS = ["state", "url", "provider", "cost", "error"]


async def main(sheet: str, results: str) -> None:
    """Say what is wrong and what it will cost, start it, wait, and write the results."""
    async with app:
        with sources.open(sheet) as source:
            for problem in video_ideas.check(source).problems:
                print(f"line {problem.line}, {problem.column}: {problem.message}")
            cost = (await video_ideas.aforecast(source)).cost
            print(f"forecast: {cost.low:f} to {cost.high:f} {cost.currency}")
            job = await video_ideas.astart(source)
            print(f"job {job.id}: penstock jobs watch {job.id}")
            async with app.connections() as pool:
                ended = await jobs.ended(pool, job_id=job.id)
            count = await _write(job.id, source.columns, Path(results))
        print(f"{ended.status}: {count} rows in {results}, films: penstock artifacts ls {job.id}")


async def _write(job_id: UUID, columns: list[str], path: Path) -> int:
    with path.open("wb") as out, sources.writer([*columns, *COLUMNS], path.suffix[1:], out) as table:
        async with app.connections() as pool:
            async for row in bulks.results(pool, job_id=job_id):
                table.add(row.data | _outcome(row))
        return table.count


def _outcome(row: BulkResult) -> dict[str, Any]:
    made: dict[str, Any] = row.output or {}
    error = f"{row.error_code}: {row.error_message}" if row.error_code else None
    found = [row.state, made.get("url"), made.get("provider"), row.cost, error]
    return dict(zip(COLUMNS, found, strict=True))


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit(f"usage: python -m {__package__} SHEET [RESULTS]")
    asyncio.run(main(sys.argv[1], sys.argv[2] if len(sys.argv) == 3 else "results.csv"))
