# ruff: noqa: E501
"""Bulk jobs from Google Sheets, through workers that are killed. Each function measures one promise."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from bench.engine import Connection, database
from bench.flow import control, one, simulator
from bench.measure import REPOSITORY, Figure

MEGABYTE = 1_000_000
# The effect of a row and the completion of its task are one transaction, so a row in the table twice was done twice.
APP = """
import asyncio, os, sys
import pydantic
from penstock import App, Context
from penstock.sdk import sheet_results
from penstock.sheets import GoogleSheet
from penstock.worker import Worker

sheet_results.WAIT_SECONDS = float(os.environ["BENCH_WAIT"])
app = App(database_url=os.environ["BENCH_DSN"])

class Idea(pydantic.BaseModel):
    title: str
    seconds: int = 5

@app.task(transactional=True, max_attempts=20)
async def render(ctx: Context, title: str, seconds: int) -> dict:
    await asyncio.sleep(0.005)
    await ctx.connection.execute("insert into effects (title) values (%s)", [title])
    await ctx.acost("render", "0.001")
    return {"url": "https://example.org/" + title + ".mp4"}

@app.bulk(row=Idea, key=["title"])
def ideas(row: Idea):
    return render.step(row.title, row.seconds)

if sys.argv[1] == "start":
    print(ideas.start(GoogleSheet("ideas")).id)
else:
    asyncio.run(Worker(app, concurrency=16, lease_seconds=int(os.environ["BENCH_LEASE"])).run())
"""


def pipeline(
    dsn: str, rows: int, *, workers: int = 2, wait: float = 10, lease: int = 5, kills: int = 2
) -> list[Figure]:
    """A sheet with this many rows, a server that rejects a tenth of all calls, and workers that are all killed twice."""
    with (
        tempfile.TemporaryDirectory(prefix="bench-sheets-") as folder,
        database(dsn) as connection,
        simulator(
            "--seed",
            "3",
            "--latency",
            "0.05..0.2",
            "--sheets-faults",
            "429=0.1",
            "--credentials",
            f"{folder}/robot.json",
        ) as urls,
    ):
        connection.execute("create table effects (title text not null)")
        lines = ["title,seconds", *(f"idea number {n},{n % 60}" for n in range(rows))]
        control(f"{urls['control_url']}/sheets/ideas", "\n".join(lines).encode())
        environment = {
            **os.environ,
            "BENCH_DSN": dsn,
            "BENCH_WAIT": str(wait),
            "BENCH_LEASE": str(lease),
            "PENSTOCK_SHEETS_CREDENTIALS": f"{folder}/robot.json",
            "PENSTOCK_SHEETS_URL": urls["sheets_url"],
            "PENSTOCK_ALLOW_UNSAFE": "1",
            "PYTHONPATH": str(REPOSITORY),
        }
        job = subprocess.run(
            [sys.executable, "-c", APP, "start"],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        ).stdout.strip()
        began = time.monotonic()
        with _workers(workers, environment) as restart:
            for part in range(1, kills + 1):
                wanted = rows * part // (kills + 1)
                _until(connection, "select count(*) >= %s from effects", wanted)
                restart()
            _until(connection, "select finished_at is not null from penstock.jobs where id = %s", job)
        took = time.monotonic() - began
        seen = control(f"{urls['control_url']}/stats")["sheets"]
        values = control(f"{urls['control_url']}/sheets/ideas?range=A2:F")["values"]
        status = one(connection, "select status from penstock.jobs where id = %s", job)
        lost = one(connection, "select count(*) from penstock.attempts where outcome = 'lost'")
        done, different = connection.execute(
            "select count(*), count(distinct title) from effects"
        ).fetchone() or (0, 0)
    assert status == "completed", status
    # A killed attempt may have costs too.
    right = sum(
        row[2:4] == ["succeeded", f"https://example.org/{row[0]}.mp4"] and row[4] >= 0.001 for row in values
    )
    calls = seen["calls"]
    # The minimum is one response and one request for all rows; writing during the work needs more.
    least = (
        1
        + math.ceil(len(json.dumps(values)) / (2 * MEGABYTE))
        + math.ceil(len(json.dumps([row[2:] for row in values])) / (2 * MEGABYTE))
    )
    what = f"{rows:,} rows, {kills} × {workers} workers killed, {lost} attempts lost"
    return [
        Figure("sheets_once", what, rows - different + done - different, "rows not done, or done twice (0)"),
        Figure(
            "sheets_written",
            f"{seen['rows_written']:,} rows and the header",
            rows - right,
            "rows without their result (0)",
        ),
        Figure(
            "sheets_changed",
            f"{seen['rows_written_again']:,} written again with the same",
            seen["rows_changed"],
            "rows written with something else (0)",
        ),
        Figure(
            "sheets_violations",
            f"{seen['faults']} injected, {seen['statuses']}",
            seen["violation_count"],
            "quotas exceeded (0)",
        ),
        Figure(
            "sheets_calls",
            f"{calls['read']} reads, {calls['write']} writes in {took:.0f} s; at least {least}",
            sum(calls.values()),
            "calls",
        ),
        Figure("sheets_rate", f"{workers} workers", rows / took, "rows/s"),
    ]


@contextmanager
def _workers(number: int, environment: dict[str, str]) -> Iterator[Callable[[], None]]:
    """Starts workers; can kill all of them and start others."""

    def spawn() -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, "-c", APP, "work"], env=environment, cwd=REPOSITORY,
                                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # fmt: skip

    running = [spawn() for _ in range(number)]

    def restart() -> None:
        for worker in running:
            worker.send_signal(signal.SIGKILL)
        for place, worker in enumerate(running):
            worker.wait()
            running[place] = spawn()

    try:
        yield restart
    finally:
        for worker in running:
            worker.kill()
            worker.wait()


def _until(connection: Connection, query: str, value: Any, seconds: float = 900) -> None:
    deadline = time.monotonic() + seconds
    while not one(connection, query, value):
        assert time.monotonic() < deadline, query
        time.sleep(0.1)
