"""`python -m bench.rays [TASKS]`: CPU-bound tasks on one and two cores, in a worker's processes and on Ray.

Prints tasks per second, in turns, and the median of each. A task computes for about 20 ms. The Ray cluster is
local and has as many CPUs as the worker has processes.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import statistics
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, LiteralString

import psycopg

from bench import ours, server
from penstock.sdk.app import App
from penstock.worker import Worker

ROUNDS = 3
app = App()


def compute(n: int) -> str:
    digest = str(n).encode()
    for _ in range(25_000):
        digest = hashlib.sha256(digest).digest()
    return digest.hex()


app.task(kind="own", cpu_bound=True)(compute)
app.task(kind="ray", engine="ray")(compute)


@contextmanager
def cluster(cores: int) -> Generator[None]:
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    from ray.cluster_utils import Cluster  # pyright: ignore[reportMissingImports]

    head = {"num_cpus": cores, "object_store_memory": 80_000_000, "include_dashboard": False}
    made: Any = None
    while made is None:
        try:
            made = Cluster(initialize_head=True, head_node_args=head)
        except Exception as error:
            # Ray gives a node 30 seconds, which a busy machine exceeds.
            print(f"the cluster did not start: {error}", file=sys.stderr)
    os.environ["RAY_ADDRESS"] = made.address
    try:
        yield
    finally:
        made.shutdown()


async def drain(dsn: str, kind: str, cores: int, n: int) -> float:
    """Tasks per second, once the worker has run some: its processes or actors are there."""
    worker = Worker(app, dsn=dsn, kinds=[kind], concurrency=cores)
    running = asyncio.create_task(worker.run())
    connection = await psycopg.AsyncConnection.connect(dsn, autocommit=True)
    try:
        while not await holds(connection, "select from penstock.kinds where name = %s", kind):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        rate = 0.0
        for count in (4 * cores, n):
            begun = time.perf_counter()
            await start(connection, kind, count)
            waiting = "select from penstock.jobs where finished_at is null"
            while await holds(connection, waiting):  # noqa: ASYNC110 another process ends them
                await asyncio.sleep(0.02)
            rate = count / (time.perf_counter() - begun)
        return rate
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await connection.close()


async def start(connection: psycopg.AsyncConnection[Any], kind: str, count: int) -> None:
    tasks = [{"kind": kind, "input": {"n": n}} for n in range(count)]
    tenant = await (await connection.execute("select id from penstock.tenants limit 1")).fetchone()
    assert tenant
    await connection.execute(
        "select penstock.start_job('rays', '{}', %s::jsonb, %s::jsonb)",
        (json.dumps(tasks), json.dumps({"tenant_id": str(tenant[0])})),
    )


async def holds(connection: psycopg.AsyncConnection[Any], query: LiteralString, *values: object) -> bool:
    row = await (await connection.execute(f"select exists ({query})", values)).fetchone()
    return bool(row and row[0])


def main() -> None:
    n = int(sys.argv[1]) if len(sys.argv) > 1 else 300
    print("| cores | own processes | Ray | Ray : own |\n|---|---|---|---|")
    with server.postgres() as postgres:
        dsn = postgres.create_database("rays")
        ours.prepare(dsn)
        with psycopg.connect(dsn, autocommit=True) as connection:
            ours.tenant(connection, "rays")
        for cores in (1, 2):
            found: dict[str, list[float]] = {"own": [], "ray": []}
            with cluster(cores):
                for _ in range(ROUNDS):
                    for kind, rates in found.items():
                        rates.append(asyncio.run(drain(dsn, kind, cores, n)))
            ratio = statistics.median(b / a for a, b in zip(found["own"], found["ray"], strict=True))
            own, ray = (statistics.median(rates) for rates in found.values())
            print(f"| {cores} | {own:.0f} tasks/s | {ray:.0f} tasks/s | {ratio:.2f} × |", flush=True)


if __name__ == "__main__":
    main()
