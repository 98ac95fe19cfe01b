"""`python -m bench.rays [TASKS]`: CPU-bound tasks on one and two cores, in a worker's processes and on Ray.

Prints tasks per second beside the same calls without Penstock, in turns, and the median of each. A task
computes for about 6 ms. The Ray cluster is local and has as many CPUs as the worker has processes.
PostgreSQL, the worker and the actors share the machine's cores.
"""

from __future__ import annotations

import asyncio
import hashlib
import importlib
import json
import multiprocessing
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


@app.task(cpu_bound=True)
def own(n: int) -> str:
    return compute(n)


@app.task(kind="ray", engine="ray")
def on_ray(n: int) -> str:
    return compute(n)


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


def bare(cores: int, n: int) -> float:
    """Tasks per second in processes that do nothing else."""
    with multiprocessing.get_context("spawn").Pool(cores) as pool:
        pool.map(compute, range(4 * cores))
        begun = time.perf_counter()
        for _ in pool.imap_unordered(compute, range(n)):
            pass
        return n / (time.perf_counter() - begun)


def bare_ray(cores: int, n: int) -> float:
    """Tasks per second in actors that get their next call when the last one ends."""
    ray: Any = importlib.import_module("ray")
    pools: Any = importlib.import_module("ray.util")
    ray.init(address="auto", log_to_driver=False)

    class Computer:
        def compute(self, n: int) -> str:
            return compute(n)

    def call(actor: Any, n: int) -> Any:
        return actor.compute.remote(n)

    try:
        pool = pools.ActorPool([ray.remote(Computer).options(num_cpus=1).remote() for _ in range(cores)])
        list(pool.map_unordered(call, range(4 * cores)))
        begun = time.perf_counter()
        list(pool.map_unordered(call, range(n)))
        return n / (time.perf_counter() - begun)
    finally:
        ray.shutdown()


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
        # Tasks that fail are not computed: their rate would be that of retries.
        if await holds(connection, "select from penstock.jobs where status <> 'completed'"):
            raise RuntimeError(f"tasks of kind {kind} failed")
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
    n = int(sys.argv[1]) if len(sys.argv) > 1 else 600
    print("| cores | processes alone | own processes | Ray alone | Ray |\n|---|---|---|---|---|")
    with server.postgres() as postgres:
        dsn = postgres.create_database("rays")
        ours.prepare(dsn)
        with psycopg.connect(dsn, autocommit=True) as connection:
            ours.tenant(connection, "rays")
        for cores in (1, 2):
            found: dict[str, list[float]] = {"processes alone": [], "own": [], "Ray alone": [], "ray": []}
            with cluster(cores):
                for _ in range(ROUNDS):
                    found["processes alone"].append(bare(cores, n))
                    found["own"].append(asyncio.run(drain(dsn, "own", cores, n)))
                    found["Ray alone"].append(bare_ray(cores, n))
                    found["ray"].append(asyncio.run(drain(dsn, "ray", cores, n)))
            alone, ours_own, ray_alone, ours_ray = (statistics.median(rates) for rates in found.values())
            print(
                f"| {cores} | {alone:.0f} tasks/s | {ours_own:.0f} tasks/s ({ours_own / alone:.2f} ×) |"
                f" {ray_alone:.0f} tasks/s | {ours_ray:.0f} tasks/s ({ours_ray / ray_alone:.2f} ×) |",
                flush=True,
            )


if __name__ == "__main__":
    # Actors import the handlers by the name of their module.
    importlib.import_module("bench.rays").main()
