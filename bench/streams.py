"""1,000 handlers that stream 10 tokens a second, without and with a follower each: what the database pays.

Each round runs the same 1,000 handlers: silent, streaming, streaming with a follower each, and streaming with
all followers at one stream. The delay is that from `ctx.stream` to the follower, on the clock of the machine.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx

from bench.api import penstock
from bench.engine import database
from bench.measure import REPOSITORY, START_UP_SECONDS, Figure, percentile, spent
from penstock import App, Context

PER_SECOND = 10
WARM_SECONDS = 6.0
OPENED_PER_SECOND = 250
"""A tenant has 300 requests per second."""
KEYS = 10
"""One key opens at most 200 streams."""
ROUNDS = {"silent": (0, None), "streams": (PER_SECOND, None), "followed": (PER_SECOND, "each"),
          "one followed": (PER_SECOND, "one")}  # fmt: skip
app = App()


@app.task
async def speak(ctx: Context, per_second: int, seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if per_second:
            ctx.stream(f"{time.monotonic():.6f} ")
        await asyncio.sleep(1 / PER_SECOND)


def measure(dsn: str, count: int, seconds: float) -> list[Figure]:
    """Database CPU and transactions per second of each round, relative to silent handlers; and the delay."""
    figures: list[Figure] = []
    with database(dsn) as connection, penstock(dsn) as port, _worker(dsn, count):
        row = connection.execute("select penstock.create_tenant('bench')").fetchone()
        assert row is not None
        keys = [
            connection.execute("select secret from penstock.create_key('k', 'viewer', %s)", row).fetchall()
            for _ in range(KEYS)
        ]
        secrets = [key for [(key,)] in keys]
        _until(connection, "select count(*) from penstock.kinds where name = 'speak'", 1)
        silent = None
        for name, (per_second, followed) in ROUNDS.items():
            task = {
                "kind": "speak",
                "input": {"per_second": per_second, "seconds": seconds + 2 * WARM_SECONDS},
            }
            started = connection.execute(
                "select penstock.start_job('report', '{}', %s::jsonb, %s::jsonb)",
                (json.dumps([task] * count), json.dumps({"tenant_id": str(row[0])})),
            ).fetchone()
            assert started is not None
            _until(connection, "select count(*) from penstock.leases", count)
            ids = connection.execute("select task_id from penstock.leases order by 1").fetchall()
            tasks = (
                [] if followed is None else [id for (id,) in (ids if followed == "each" else ids[:1] * count)]
            )
            delays, used, lasted = asyncio.run(
                _follow(
                    dsn, port, secrets, [f"/api/jobs/{started[0]}/tasks/{id}/stream" for id in tasks], seconds
                )
            )
            silent = silent or used
            figures += [
                Figure("streams_cpu", name, 100 * used.cpu / lasted, "% of a core"),
                Figure("streams_cpu_ratio", name, used.cpu / silent.cpu, "×"),
                Figure("streams_transactions", name, used.transactions / lasted, "transactions/s"),
            ]
            if delays:
                figures.append(Figure("streams_delay_p95", name, 1000 * percentile(delays, 0.95), "ms"))
            _until(connection, "select count(*) from penstock.leases", 0)
    return figures


async def _follow(
    dsn: str, port: int, keys: list[str], paths: list[str], seconds: float
) -> tuple[list[float], Any, float]:
    """Follow the streams for these seconds: the delays of texts, what the database spent, and the time."""
    delays: list[float] = []
    is_measured = False

    async def follow(client: httpx.AsyncClient, number: int, path: str) -> None:
        await asyncio.sleep(number / OPENED_PER_SECOND)
        headers = {"Authorization": f"Bearer {keys[number % len(keys)]}"}
        async with client.stream("GET", path, headers=headers) as response:
            response.raise_for_status()
            async for line in response.aiter_lines():
                if is_measured and line.startswith("data: {"):
                    now = time.monotonic()
                    text = "".join(json.loads(line[6:])["parts"])
                    delays.extend(now - float(at) for at in text.split())

    limits = httpx.Limits(max_connections=None)
    async with (
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60, limits=limits) as client,
        asyncio.TaskGroup() as group,
    ):
        running = [group.create_task(follow(client, n, path)) for n, path in enumerate(paths)]
        await asyncio.sleep(WARM_SECONDS)
        before, began = await asyncio.to_thread(spent, dsn), time.monotonic()
        is_measured = True
        await asyncio.sleep(seconds)
        used, lasted = await asyncio.to_thread(spent, dsn) - before, time.monotonic() - began
        for each in running:
            each.cancel()
    return delays, used, lasted


@contextmanager
def _worker(dsn: str, concurrency: int) -> Iterator[None]:
    command = [
        sys.executable,
        "-m",
        "penstock",
        "worker",
        "bench.streams:app",
        "--concurrency",
        str(concurrency),
    ]
    environment = {**os.environ, "DATABASE_URL": dsn}
    process = subprocess.Popen(command, cwd=REPOSITORY, env=environment, stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.terminate()
        process.wait(60)


def _until(connection: Any, query: str, count: int) -> None:
    deadline = time.monotonic() + START_UP_SECONDS
    while connection.execute(query).fetchone()[0] != count:
        if time.monotonic() > deadline:
            raise TimeoutError(f"not {count}: {query}")
        time.sleep(0.1)
