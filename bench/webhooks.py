"""Conversions while webhooks get lost and workers die: `python -m bench.webhooks --objects 1000`.

A simulated CloudConvert loses, doubles, sends early or late 30 % of its webhooks; every two seconds one of
the worker processes is killed (SIGKILL) and another one started. At the end every object must have its
result, CloudConvert one conversion for each (and those that truly timed out), and holds, quota and costs
must be exact. On a busy machine the kills are further apart: between two of them work must get done.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import multiprocessing
import os
import signal
import sys
import tempfile
import threading
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import psycopg
import structlog
from psycopg.rows import dict_row

from bench import server as bench_server
from penstock import server, simulator
from penstock.api.development import Development
from penstock.apps.slides import demo
from penstock.apps.slides.app import app
from penstock.contract import keys
from penstock.postgres import db
from penstock.settings import settings
from penstock.simulator.cloudconvert import SECRET
from penstock.storage.objects import Folder
from penstock.worker import Worker

FAULTS = {"lost": 0.1, "doubled": 0.08, "early": 0.06, "late": 0.06}
WORKERS = 3
CONCURRENCY = 8
"""Handlers of a worker that run at once."""
_SETTING = "select penstock.set_setting(%s, %s::jsonb)"
_PROGRESS = """
select (select count(*) from slides.slides where thumbnail_status in ('completed', 'failed')) as ended,
  (select count(*) from penstock.jobs
   where type in ('thumbnail', 'thumbnails_retroactive') and finished_at is null) as running,
  (select count(*) + count(submitted_at) + count(completed_at) from penstock.operations) as steps,
  (select count(*) from penstock.leases) + (select count(*) from penstock.ready) as runnable"""
_FACTS = """
select (select count(*) from slides.slides where thumbnail_status = 'completed') as results,
  (select count(*) from penstock.operations) as operations,
  (select count(*) from penstock.operations where status = 'completed') as completed,
  (select count(*) from penstock.operations where status = 'timeout') as timed_out,
  (select count(*) from penstock.operations where status in ('pending', 'processing')) as live,
  (select used from penstock.accounts where meter = 'thumbnails' and job_id is null) as used,
  (select held from penstock.accounts where meter = 'thumbnails' and job_id is null) as held,
  (select coalesce(sum(amount), 0) from penstock.cost_entries) as cost,
  (select count(*) from penstock.attempts a join penstock.tasks t on t.job_id = a.job_id and t.id = a.task_id
   where a.outcome = 'lost' and t.kind = 'thumbnail' and not exists (
    select from penstock.operations o where o.job_id = a.job_id and o.task_id = a.task_id
      and o.started_at < a.ended_at)) as lost_before_operation,
  (select count(*) from penstock.check_accounts()) as wrong_accounts,
  (select count(*) from penstock.dead_letters) as dead_letters,
  (select count(*) from penstock.attempts) as attempts"""


def _work(environment: dict[str, str]) -> None:
    """A worker process. Its modules are loaded already, so that it works within its short life."""
    # Linux shares a busy machine by session, and a worker is a program of its own.
    os.setsid()
    os.environ |= environment
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    app.forget()
    app.use(environment["DATABASE_URL"])
    app.storage = Folder(Path(environment["PENSTOCK_STORAGE"]), b"s" * 32)
    asyncio.run(Worker(app, concurrency=CONCURRENCY, lease_seconds=5).run())


class Workers:
    """Worker processes, of which one after the other is killed."""

    def __init__(self, count: int, environment: dict[str, str]) -> None:
        self._environment = environment
        self._processes = multiprocessing.get_context("forkserver")
        self._processes.set_forkserver_preload(["penstock.apps.slides.demo", "penstock.worker"])
        self.kills = 0
        self._running = [self._start() for _ in range(count)]

    def _start(self) -> Any:
        started = self._processes.Process(target=_work, args=(self._environment,), daemon=True)
        started.start()
        return started

    def kill_one(self) -> None:
        """Kill the oldest worker and start another one."""
        oldest = self._running.pop(0)
        oldest.kill()
        oldest.join()
        self.kills += 1
        self._running.append(self._start())

    def stop(self) -> None:
        """Kill all workers."""
        for each in self._running:
            each.kill()
            each.join()


async def run(
    dsn: str,
    objects: int,
    folder: Path,
    *,
    quota: int | None = None,
    kill_seconds: float = 2,
    stall_seconds: float = 300,
) -> dict[str, Any]:
    """Convert this many slides; returns the facts and the statistics of the simulator.

    Raises TimeoutError if nothing gets done for `stall_seconds`.
    """
    # Server, simulator and this program share one event loop: drawing a traceback would stop all of them.
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    app.migrate(dsn)
    app.use(dsn)
    app.storage = Folder(folder / "files", b"s" * 32)
    cloudconvert = {"latency": (0.2, 2.0), "webhook_faults": FAULTS, "late_seconds": 20}
    own = server.with_development_login(replace(settings(), database_url=dsn, environment="demo"))
    listening = server.bind("127.0.0.1", 0)
    public = f"http://127.0.0.1:{listening.getsockname()[1]}"
    async with app, simulator.serve(cloudconvert=cloudconvert, seed=4) as sim, app.connections() as pool:
        await app.declare(pool)
        tenant = await app.tenant_id(pool)
        key = await keys.create(pool, name="bench", role="owner", tenant_id=tenant)
        developer = Development(key.id, "penstock_demo_bench", str(app.tenant))
        values = {
            "CLOUDCONVERT_URL": sim.cloudconvert_url,
            "CLOUDCONVERT_API_KEY": "simulated",
            "CLOUDCONVERT_WEBHOOK_SECRET": SECRET,
            "SLIDES_PUBLIC_URL": public,
            "SLIDES_CHECK_SECONDS": "10 20 40",
            # Only the machine can be this slow here: no conversion gets stuck.
            "SLIDES_TIMEOUT_SECONDS": "3600",
            "SLIDES_ANSWER_SECONDS": "200",
            "DATABASE_URL": dsn,
            "PENSTOCK_STORAGE": str(folder / "files"),
            "PENSTOCK_STORAGE_SECRET": ("s" * 32),
            "PENSTOCK_ALLOW_UNSAFE": "1",
        }
        # Unlike a task that crashes its workers, these die by our hand.
        await db.rows(pool, _SETTING, ("max_deaths", "1000"))
        event, speech = await demo.make_event(pool, tenant)
        await db.rows(pool, "select penstock.set_limit(%s, 'thumbnails', %s)", (tenant, quota or objects))
        for first in range(0, objects, 5):
            numbers = range(first, min(objects, first + 5))
            await asyncio.gather(*[demo.add_sample(pool, tenant, speech, number) for number in numbers])
        with patch.dict(os.environ, values):
            async with server.serving(own, listening, developer=developer, app=app):
                began = time.monotonic()
                await db.rows(pool, "select slides.set_thumbnail_generation(%s)", (event,))
                workers, stop = Workers(WORKERS, values), threading.Event()
                try:
                    # In a thread: the event loop may be busy for longer than an interval.
                    await asyncio.to_thread(
                        _watch,
                        dsn,
                        workers,
                        stop,
                        objects,
                        kill_seconds=kill_seconds,
                        stall_seconds=stall_seconds,
                    )
                finally:
                    stop.set()
                    workers.stop()
                took = time.monotonic() - began
        return {"seconds": took, "kills": workers.kills, **await _facts(dsn), **sim.cloudconvert.stats()}


def _watch(
    dsn: str,
    workers: Workers,
    stop: threading.Event,
    objects: int,
    *,
    kill_seconds: float,
    stall_seconds: float,
) -> None:
    """Kill a worker after each interval until every slide has ended.

    After a kill, the workers must do as many steps as they have handlers before the next one: on a busy
    machine a worker needs longer to begin than it would live.
    """
    last_kill = last_step = time.monotonic()
    steps = steps_at_kill = 0
    with psycopg.Connection[dict[str, Any]].connect(dsn, autocommit=True, row_factory=dict_row) as conn:
        while not stop.wait(0.2):
            found = conn.execute(_PROGRESS).fetchone() or {}
            now = time.monotonic()
            if found["ended"] == objects and not found["running"]:
                return
            if found["steps"] + found["ended"] != steps:
                steps, last_step = found["steps"] + found["ended"], now
            if now - last_step > stall_seconds:
                raise TimeoutError(f"nothing got done for {stall_seconds:.0f} s: {found}")
            is_due = kill_seconds and now - last_kill >= kill_seconds
            if is_due and (steps - steps_at_kill >= WORKERS * CONCURRENCY or not found["runnable"]):
                workers.kill_one()
                last_kill, steps_at_kill = now, steps


async def _facts(dsn: str) -> dict[str, Any]:
    async with await psycopg.AsyncConnection[dict[str, Any]].connect(dsn, row_factory=dict_row) as conn:
        return dict(await (await conn.execute(_FACTS)).fetchone() or {})


def problems(facts: dict[str, Any], objects: int, quota: int | None = None) -> list[str]:
    """What is wrong at the end of a run: nothing."""
    made = min(objects, quota or objects)
    wanted = {
        "results": made, "completed": made, "live": 0, "used": made, "held": 0, "wrong_accounts": 0,
        "dead_letters": objects - made, "conversions": made + facts["timed_out"], "most_jobs_per_tag": 1,
    }  # fmt: skip
    found = [f"{name}: {facts[name]}, not {value}" for name, value in wanted.items() if facts[name] != value]
    # An attempt that died before it noted its operation is charged an estimate; every other one is not.
    cost = 0.02 * (made + facts["lost_before_operation"])
    if abs(float(facts["cost"]) - cost) > 1e-9:
        found.append(f"cost: {facts['cost']}, not {cost:.2f}")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.webhooks", description=__doc__)
    parser.add_argument("--objects", type=int, default=1000)
    parser.add_argument("--kill", type=float, default=2, help="seconds between two kills; 0: none")
    parser.add_argument("--quota", type=int, help="thumbnails of the tenant (default: one for each object)")
    chosen = parser.parse_args()
    # Ends like Ctrl+C, so that neither workers nor PostgreSQL stay behind.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with bench_server.postgres() as postgres, tempfile.TemporaryDirectory() as folder:
        dsn = postgres.create_database("webhooks")
        facts = asyncio.run(
            run(dsn, chosen.objects, Path(folder), quota=chosen.quota, kill_seconds=chosen.kill)
        )
    for name, value in facts.items():
        print(f"{name}: {value}")
    found = problems(facts, chosen.objects, chosen.quota)
    print("\n".join(found) or "every object has one result, one conversion and one charge")
    with suppress(OSError):
        sys.stdout.flush()
    return 1 if found else 0


if __name__ == "__main__":
    raise SystemExit(main())
