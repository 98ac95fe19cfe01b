"""What the processes run: a worker, a producer, the API, a migrate. A fork server has the modules loaded."""

from __future__ import annotations

import asyncio
import json
import os
import random
import resource
import signal
import sys
import time
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import penstock.worker
from faults import app as work
from faults import points
from faults.history import History
from penstock import AsyncClient, server
from penstock.errors import Limited, PenstockError, TimedOut, Unavailable
from penstock.postgres import migrate
from penstock.settings import Settings

MEMORY_BYTES = 256 << 20
"""The memory that a worker may allocate after its start: enough for threads, too little for one handler."""
Starter = Callable[[str, dict[str, Any], dict[str, Any]], Coroutine[Any, Any, str]]


@dataclass(frozen=True)
class Order:
    """What a producer starts: how many tasks, how fast, for which tenants."""

    name: str
    tasks: int
    per_second: float
    poison: int
    seed: int
    tenants: dict[str, str]
    """By flavour."""
    dsn: str
    url: str | None = None
    key: str | None = None
    armed: tuple[str, int] | None = None


def _begin(folder: Path, name: str) -> History:
    """Sends the logs to a file and ignores Ctrl-C, which the parent handles."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    log = os.open(folder / f"{name}-{os.getpid()}.log", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    return History(folder / f"{name}-{os.getpid()}.jsonl")


def worker(
    folder: Path,
    dsn: str,
    options: dict[str, Any],
    environment: dict[str, str],
    armed: tuple[str, int] | None,
    is_short_of_memory: bool,
) -> None:
    """The worker that `penstock worker` runs, with points at which it dies and a clock that jumps."""
    history = _begin(folder, "worker")
    os.environ |= environment
    signal.signal(signal.SIGINT, signal.default_int_handler)
    points.arm(history, armed)
    points.install(history)
    points.shim_clock()
    work.tell(history)
    if is_short_of_memory:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        limit = pages * resource.getpagesize() + MEMORY_BYTES
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    history.note("worker", armed=armed, short=is_short_of_memory)
    code = penstock.worker.run(work.app, dsn, **options)
    history.note("left", code=code)
    sys.exit(code)


def api(folder: Path, settings: dict[str, Any], port: int, armed: tuple[str, int] | None) -> None:
    """The API that `penstock serve` runs."""
    points.arm(_begin(folder, "api"), armed)
    work.app.use(settings["database_url"])
    server.run(Settings(**settings), server.listen("127.0.0.1", port), app=work.app)


def migrator(folder: Path, dsn: str) -> None:
    """What `penstock migrate` does, on a database that is up to date."""
    history = _begin(folder, "migrate")
    began, error = time.monotonic(), None
    try:
        migrate.migrate(dsn)
    except Exception as problem:
        error = f"{type(problem).__name__}: {problem}"[:300]
    history.note("migrated", seconds=time.monotonic() - began, error=error)


def producer(folder: Path, order: dict[str, Any]) -> None:
    """Starts jobs, each with an idempotency key; records each request before it is sent, and its answer."""
    asked = Order(**order)
    history = _begin(folder, asked.name)
    points.arm(history, asked.armed)
    points.install(history)
    asyncio.run(_produce(asked, history))


async def _produce(order: Order, history: History) -> None:
    dice = random.Random(f"{order.seed}")
    left, poison, began, made = order.tasks, order.poison, time.monotonic(), 0
    running: set[asyncio.Task[None]] = set()
    async with _starter(order) as start:
        number = 0
        while left > 0:
            number += 1
            flavour = _flavour(dice)
            size = min(left, 60, 1 + int(dice.expovariate(1 / 25)))
            if poison and dice.random() < 0.1:
                flavour, size, poison = "poison", 1, poison - 1
            left, made = left - size, made + size
            params = {"flavour": flavour, "seed": order.seed * 1_000_000 + number, "size": size}
            key = f"{order.name}-{order.seed}-{number}"
            options: dict[str, Any] = {"idempotency_key": key, "tenant_id": UUID(order.tenants[flavour])}
            if flavour == "budget":
                # About half of what many cost: they have to stop on the way.
                options["budget"] = Decimal("0.0003")
            running.add(asyncio.create_task(_ask(start, key, params, options, history, dice.random())))
            while len(running) >= 4 or (made / order.per_second > time.monotonic() - began and running):
                late = made / order.per_second - (time.monotonic() - began)
                done, running = await asyncio.wait(
                    running, timeout=max(0.01, late), return_when=asyncio.FIRST_COMPLETED
                )
                for task in done:
                    task.result()
            await asyncio.sleep(max(0.0, made / order.per_second - (time.monotonic() - began)))
        if running:
            await asyncio.gather(*running)
    history.note("finished")


def _flavour(dice: random.Random) -> str:
    shares = {"mix": 70, "tree": 8, "grow": 4, "calls": 8, "budget": 4, "pages": 6, "outside": 8}
    return dice.choices(list(shares), list(shares.values()))[0]


async def _ask(
    start: Starter, key: str, params: dict[str, Any], options: dict[str, Any], history: History, roll: float
) -> None:
    """Repeat the request until it is answered. Some give up: then the job exists once or not at all."""
    history.note("attempted", key=key, **params)
    while True:
        try:
            job_id = await start("work", params, options)
        except (Unavailable, TimedOut, Limited) as error:
            history.note("unknown", key=key, error=str(error)[:200])
            if roll < 0.05:
                return
            await asyncio.sleep(random.uniform(0.1, 0.6))
        except PenstockError as error:
            history.note("refusal", key=key, error=str(error)[:200])
            return
        else:
            history.note("acknowledged", key=key, job=job_id)
            return


@asynccontextmanager
async def _starter(order: Order) -> AsyncGenerator[Starter]:
    """The way to start a job: the SDK, or the API."""
    if order.url is not None:
        async with AsyncClient(order.url, order.key, timeout=10, retries=2) as client:

            async def over_http(type: str, params: dict[str, Any], options: dict[str, Any]) -> str:
                return str((await client.jobs.start(type, params, **options)).id)

            yield over_http
        return
    app = work.app
    app.use(order.dsn)

    async def from_python(type: str, params: dict[str, Any], options: dict[str, Any]) -> str:
        async with _limit(15):
            return str((await app.job_types[type].options(**options).astart(**params)).id)

    try:
        yield from_python
    finally:
        with suppress(Exception):
            await app.aclose()


@asynccontextmanager
async def _limit(seconds: float) -> AsyncGenerator[None]:
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError as error:
        raise TimedOut(f"no answer within {seconds:g} s") from error


def plain(order: Order) -> dict[str, Any]:
    """An order, as it goes to another process."""
    return json.loads(json.dumps(asdict(order)))
