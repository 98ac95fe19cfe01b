"""One run: starts the processes, applies the faults, heals, waits until all work has ended, and runs the checker."""

from __future__ import annotations

import asyncio
import itertools
import multiprocessing
import random
import shutil
import signal
import socket
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import psycopg

import penstock
from faults import app as work
from faults import check, history, outside, points, processes, rpc
from faults.figures import figures_of
from faults.history import History
from faults.idle import IdleWorker
from faults.plan import DEFAULT_LEASE, Plan, Result, promises
from faults.proxy import Proxy
from faults.schedule import FAULTS, schedule
from faults.server import Disk, Postgres, place
from faults.slots import Slot
from faults.strikes import Strikes
from penstock.postgres import db, migrate
from penstock.server import ensure_login

_context = multiprocessing.get_context("forkserver")
# The exit codes of a worker that was told to stop: after its drain, or before it held anything.
GONE = (0, -signal.SIGTERM)
SELDOM = {"return.sent": 1, "beat.sent": 2, "upkeep.sent": 2}
"""Points that are rarely reached, and how often a process reaches one before it dies."""
RPC_DRAIN_SECONDS = 20
"""How long HTTP-only work may take after the last fault, beside a lease."""


class Run:
    """The parts of a run while it lasts."""

    def __init__(self, plan: Plan, folder: Path, disk: Disk | None) -> None:
        self.plan, self.folder, self.disk = plan, folder, disk
        self.dice = random.Random(plan.seed)
        self.logs = folder / "logs"
        self.logs.mkdir()
        self.history = History(self.logs / "run.jsonl")
        self.faults: Counter[str] = Counter()
        self.armed: Counter[str] = Counter()
        self.ended_by_themselves: list[str] = []
        self.is_healing = self.is_ending = False
        self.server_lock = asyncio.Lock()
        self.postgres = Postgres((disk.folder if disk else folder) / "postgres", plan.server)
        self.proxy = Proxy(self.postgres.port)
        self.workers: list[Slot] = []
        self.producers: list[Slot] = []
        self.api: Slot | None = None
        self.warm: Slot | None = None
        self.rpc_api: Slot | None = None
        self.rpc_workers: list[Slot] = []
        self.feeding: set[asyncio.Task[None]] = set()
        self.migrators: list[Any] = []
        self.spawned = 0
        self.limit = 0
        migrate.migrate(self.postgres.dsn)
        self.tenants = self._prepare()
        self.rpc = rpc.Scene(self.postgres.create(rpc.DATABASE), folder) if plan.has_rpc else None

    @property
    def lease_seconds(self) -> int:
        return self.plan.lease_seconds or DEFAULT_LEASE

    @property
    def slots(self) -> list[Slot]:
        """Every process that is started again when it dies."""
        singles = [slot for slot in (self.warm, self.api, self.rpc_api) if slot]
        return [*self.workers, *singles, *self.rpc_workers, *self.producers]

    # --- before ---

    def _prepare(self) -> dict[str, str]:
        with db.connect(self.postgres.dsn) as connection:
            connection.execute(check.TABLES.encode())

            def one(query: str, *params: Any) -> Any:
                row = connection.execute(query.encode(), params).fetchone()
                assert row
                return next(iter(row.values()))

            tenants = {
                name: one("select penstock.ensure_tenant(%s) as id", name)
                for name in ("all", "calls", "tight", "outside")
            }
            for statement in outside.PREPARE:
                connection.execute(statement.encode(), {"tenant": tenants["outside"]})
            limits = {"requests_per_minute": work.REQUESTS_PER_MINUTE, "tokens_per_minute": work.TOKENS_PER_MINUTE,
                      "concurrency": work.PLACES, "backpressure_threshold": None, "depth_limit": None}  # fmt: skip
            for name, values in ((work.LIMITED, limits), (work.PRICED, {"backpressure_threshold": None})):
                one("select penstock.set_provider(%s, %s)", name, db.Json(values))
                one("select penstock.set_price(%s, 'input_tokens', 0.15, '{\"per\": 1000000}')", name)
                one("select penstock.set_price(%s, 'output_tokens', 0.60, '{\"per\": 1000000}')", name)
            one("select penstock.set_limit(%s, 'tokens', 1000000000000)", tenants["calls"])
            one("select penstock.set_limit(%s, 'pages', %s)", tenants["tight"], self.limit)
        by_flavour = {
            "calls": "calls",
            "budget": "calls",
            "warm": "calls",
            "warm up": "calls",
            "pages": "tight",
            "outside": "outside",
        }
        return {flavour: str(tenants[by_flavour.get(flavour, "all")]) for flavour in work.FLAVOURS}

    def _worker(self, number: int) -> Callable[[], Any]:
        def spawn() -> Any:
            self.spawned += 1
            # Every other one dies at a point, one point after the other.
            armed = None
            if self.spawned % 2 == 0 and not self.is_healing:
                names = list(points.OF_WORKERS)
                name = names[self.spawned // 2 % len(names)]
                armed = (name, SELDOM.get(name) or self.dice.randint(1, 10))
                self.armed[name] += 1
            self.workers[number].armed = armed and armed[0]
            options = self._worker_options(work.KINDS)
            # One is near PostgreSQL, the others behind the proxy.
            dsn = self.postgres.dsn if number == 0 else self.proxied
            return self._start(
                processes.worker, self.logs, dsn, options, self.environment, armed,
                self.workers[number].is_short,
            )  # fmt: skip

        return spawn

    def _worker_options(self, kinds: list[str]) -> dict[str, Any]:
        lease = {} if self.plan.lease_seconds is None else {"lease_seconds": self.plan.lease_seconds}
        return {"kinds": kinds, **lease}

    def _has_begun(self, pid: int) -> bool:
        """Whether a worker handles signals: then it has written to its history."""
        path = self.logs / f"worker-{pid}.jsonl"
        return path.exists() and path.stat().st_size > 0

    def has_started(self, slot: Slot) -> bool:
        path = self.logs / f"worker-{slot.process.pid}.log" if slot.process else None
        return path is not None and path.exists() and b"worker.started" in path.read_bytes()

    def _producer(self, number: int, url: str | None, key: str | None) -> Callable[[], Any]:
        name = f"producer{number}"
        share = self.plan.tasks // self._producer_count + (number < self.plan.tasks % self._producer_count)

        def spawn() -> Any:
            self.spawned += 1
            mine = [line for line in history.read(self.logs, f"{name}-*") if line["event"] == "attempted"]
            left = share - sum(line["size"] for line in mine)
            poison = (
                self.plan.poison - sum(line["flavour"] == "poison" for line in mine) if number == 0 else 0
            )
            armed = None
            if self.spawned % 2 and not self.is_healing and url is None:
                armed = (self.dice.choice(list(points.OF_PRODUCERS)), self.dice.randint(5, 40))
                self.armed[armed[0]] += 1
            time_left = max(5.0, self.ends_at - time.monotonic())
            order = processes.Order(
                name, left, max(1.0, left / time_left), poison, self.plan.seed * 10_000 + self.spawned, self.tenants,
                self.proxied, url, key, armed,
            )  # fmt: skip
            return self._start(processes.producer, self.logs, processes.plain(order))

        return spawn

    def _start(self, target: Callable[..., None], *args: Any) -> Any:
        process = _context.Process(target=target, args=args, daemon=True)
        process.start()
        return process

    # --- while it runs ---

    async def run(self) -> None:
        plan = self.plan
        # Many of its threads wait: for PostgreSQL, for the idle worker, for an answer of an API.
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(32))
        async with (
            self.proxy.listening() as port,
            outside.serving(plan.seed, self.history) as self.outside,
        ):
            self.proxied = self.postgres.tcp_dsn.replace(f":{self.postgres.port}/", f":{port}/")
            url, key = self._start_api() if plan.has_api else (None, None)
            self.environment = self.outside.environment(url)
            rpc_url = self._start_rpc(self.rpc) if self.rpc else None
            if plan.has_warm:
                options = self._worker_options(list(work.WARM))
                self.warm = Slot(
                    "idle worker",
                    lambda: self._start(
                        processes.worker, self.logs, self.postgres.dsn, options, self.environment, None, False
                    ),
                )
                self.idle = IdleWorker(self.postgres, self.history, self.tenants["warm"])
            for number in range(plan.workers):
                self.workers.append(
                    Slot(
                        f"worker{number}",
                        self._worker(number),
                        is_short=number == 3,
                        has_begun=self._has_begun,
                    )
                )
            running = [asyncio.create_task(self._supervise()), asyncio.create_task(self._operate())]
            for address in (url, rpc_url):
                await _until_it_listens(address)
            if self.warm:
                await self.feed_warm("warm up")
            self._start_producers(url, key)
            if plan.migrate_every:
                running.append(asyncio.create_task(self._migrate_often(plan.migrate_every)))
            if self.rpc and rpc_url:
                self.feed(self.rpc.feed(rpc_url, lambda: self.is_healing, lambda: self.is_ending, plan.seed))
            try:
                await self._follow_schedule()
                began = time.monotonic()
                await self._heal()
                await self._wait_for_the_end()
                self.drained_in = time.monotonic() - began
            finally:
                self.is_healing = self.is_ending = True
                for task in running:
                    task.cancel()
                await asyncio.gather(*running, return_exceptions=True)
                await self._stop_all()
                self.outside.note_jobs()
                await asyncio.gather(*self.feeding, return_exceptions=True)

    def _start_producers(self, url: str | None, key: str | None) -> None:
        self.ends_at = time.monotonic() + self.plan.seconds * 0.9
        self._producer_count = self.plan.producers + (url is not None)
        for number in range(self._producer_count):
            is_last = number == self.plan.producers
            spawn = self._producer(number, url if is_last else None, key if is_last else None)
            self.producers.append(Slot(f"producer{number}", spawn))

    def feed(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self.feeding.add(task)
        task.add_done_callback(self.feeding.discard)

    def _start_api(self) -> tuple[str, str]:
        [row] = self.postgres.execute("select secret from penstock.create_key('faults', 'service', null)")
        self.api, url = self._serve("api", self.postgres.dsn, self.logs, points.OF_API)
        return url, row["secret"]

    def _start_rpc(self, scene: rpc.Scene) -> str:
        self.rpc_api, url = self._serve("rpc api", scene.dsn, scene.logs)

        def spawn() -> Any:
            return self._start(rpc.worker, scene.logs, url, scene.worker_key, self.lease_seconds)

        self.rpc_workers = [Slot(f"rpc worker{number}", spawn) for number in range(rpc.WORKERS)]
        return url

    def _serve(self, name: str, dsn: str, logs: Path, armable: Iterable[str] = ()) -> tuple[Slot, str]:
        """`penstock serve` of a database, and its address. Every other one dies at one of the points."""
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        settings = {
            "database_url": dsn,
            "api_url": ensure_login(dsn),
            "jwt_secret": "only for the faults, and for nothing else",
            "home": self.folder / f"home {name}",
            "smtp_url": self.outside.mail_url,
            "mail_from": outside.SENDER,
        }
        names = itertools.cycle([*armable, None])

        def spawn() -> Any:
            point = None if self.is_healing else next(names)
            if point:
                self.armed[point] += 1
            armed = (point, self.dice.randint(1, 10)) if point else None
            return self._start(processes.api, logs, settings, port, armed)

        return Slot(name, spawn), f"http://127.0.0.1:{port}"

    async def feed_warm(self, *flavours: str) -> None:
        """Give the idle worker a few tasks, one job after the other, once it has started."""
        assert self.warm
        while not self.has_started(self.warm):
            if self.is_healing:
                return
            await asyncio.sleep(0.1)
        for flavour in flavours:
            await asyncio.to_thread(self.idle.feed, flavour)

    async def _migrate_often(self, every: float) -> None:
        """Run `migrate` beside the traffic; now and then two at once."""
        while not self.is_healing:
            await asyncio.sleep(self.dice.uniform(0.5, 1.5) * every)
            self.migrators = [process for process in self.migrators if process.is_alive()]
            if len(self.migrators) < 2:
                self.migrators.append(
                    await asyncio.to_thread(self._start, processes.migrator, self.logs, self.postgres.dsn)
                )

    async def _follow_schedule(self) -> None:
        left_out = set(FAULTS) - set(self.plan.faults) | (set() if self.disk else {"disk.full"})
        if not self.plan.has_api:
            left_out.add("api.killed")
        if not self.plan.has_rpc:
            left_out.add("rpc.killed")
        began, happening = time.monotonic(), set[asyncio.Task[None]]()
        for fault in schedule(self.plan.seed, self.plan.seconds, self.plan.every, left_out):
            await asyncio.sleep(max(0.0, began + fault.at - time.monotonic()))
            happening.add(asyncio.create_task(Strikes(self).try_fault(fault)))
        await asyncio.sleep(max(0.0, began + self.plan.seconds - time.monotonic()))
        if happening:
            await asyncio.gather(*happening)

    async def _supervise(self) -> None:
        """Start processes again that have died, and record unexpected ends."""
        while True:
            for slot in self.slots:
                if slot.process is None:
                    slot.process = await asyncio.to_thread(slot.spawn)
                elif not slot.process.is_alive():
                    self._record_end(slot)
                    is_done = slot in self.producers and slot.process.exitcode == 0
                    slot.why = "done" if is_done else None
                    if is_done:
                        self.producers = [other for other in self.producers if other is not slot]
                    else:
                        slot.process = await asyncio.to_thread(slot.spawn)
            await asyncio.sleep(0.05)

    def _record_end(self, slot: Slot) -> None:
        code, pid = slot.process.exitcode, slot.process.pid
        if slot.why == "drained" and code in GONE:
            if slot is self.workers[0]:
                self.history.note("drained", victim=pid, began_at=slot.drained_at)
        elif code == -signal.SIGKILL:
            pass  # by the run, by a point, or by poison: the histories say which
        elif not (slot in self.producers and code == 0):
            is_rpc = slot is self.rpc_api or slot in self.rpc_workers
            self.history.note("died", victim=pid, code=code, name=slot.name)
            if not slot.is_short:
                folder = self.rpc.logs if self.rpc and is_rpc else self.logs
                logs = sorted(folder.glob(f"*-{pid}.log"))
                tail = logs[0].read_text(errors="replace")[-1500:] if logs else ""
                self.ended_by_themselves.append(f"{slot.name} ({pid}) ended with {code}:\n{tail}")

    async def _operate(self) -> None:
        """Raises the quota, resumes jobs that have spent their budget, and answers questions."""
        while True:
            try:
                await asyncio.to_thread(self._raise_limits)
            except (psycopg.Error, penstock.PenstockError) as error:
                self.history.note("missed", name="operator", error=str(error))
            await asyncio.sleep(1)

    def _raise_limits(self) -> None:
        with db.connect(self.postgres.dsn, name="faults operator", wait_seconds=0) as connection:
            tight = self.tenants["pages"]
            held = connection.execute(
                "select count(*) as n from penstock.parked where tenant_id = %s and waits_for = 'pages'",
                [tight],
            ).fetchone()
            if held and held["n"]:
                self.limit += 20 + held["n"] // (1 if self.is_healing else 5)
                connection.execute("select penstock.set_limit(%s, 'pages', %s)", [tight, self.limit])
            for row in connection.execute(
                "select id from penstock.jobs where status = 'paused' limit 100"
            ).fetchall():
                connection.execute("select penstock.set_budget(%s, null)", [row["id"]])
                connection.execute(
                    "select penstock.resume_job(%s) from penstock.jobs where id = %s and status = 'paused'",
                    [row["id"]] * 2,
                )
            connection.execute(outside.ANSWER.encode())

    # --- afterwards ---

    async def _heal(self) -> None:
        self.is_healing = True
        # A fault that failed half way may have left it down.
        await asyncio.to_thread(self.postgres.start)
        self.proxy.delay, self.proxy.drops = 0.0, []
        for link in self.proxy.links:
            link.held.clear()
        self.history.note("healed")

    async def _wait_for_the_end(self) -> None:
        now = time.monotonic()
        deadline, rpc_deadline = now + self.plan.drain_seconds, 0.0
        is_rpc_done = self.rpc is None
        while (now := time.monotonic()) < deadline:
            try:
                await asyncio.to_thread(self.postgres.execute, outside.RESEND)
                [row] = await asyncio.to_thread(
                    self.postgres.execute,
                    "select (select count(*) from penstock.jobs where finished_at is null)"
                    " + (select count(*) from penstock.notifications where status in ('queued', 'sending')) as n",
                )
                if self.rpc and not is_rpc_done and not self.feeding:
                    rpc_deadline = rpc_deadline or now + self.lease_seconds + RPC_DRAIN_SECONDS
                    is_rpc_done = await asyncio.to_thread(self.rpc.is_done) or now > rpc_deadline
                if row["n"] == 0 and not self.producers and not self.feeding and is_rpc_done:
                    return
            except (psycopg.Error, penstock.PenstockError) as error:
                self.history.note("missed", name="look", error=str(error))
            await asyncio.sleep(0.3)

    async def _stop_all(self) -> None:
        slots = [slot for slot in self.slots if slot.process]
        for slot in slots:
            if slot.process.is_alive():
                slot.signal(signal.SIGCONT)
                slot.process.terminate()
        for process in self.migrators:
            await asyncio.to_thread(process.join, 30)
        deadline = time.monotonic() + 45
        for slot in slots:
            await asyncio.to_thread(slot.process.join, max(0.1, deadline - time.monotonic()))
            if slot.process.is_alive():
                self.ended_by_themselves.append(f"{slot.name} did not end")
                slot.process.kill()
                slot.process.join()
            elif (
                slot in (*self.workers, self.warm) and slot.process.exitcode not in GONE and not slot.is_short
            ):
                self.ended_by_themselves.append(f"{slot.name} ended with {slot.process.exitcode}")

    def check(self, look: Callable[[db.SyncConnection], None]) -> check.Found:
        with db.connect(self.postgres.dsn, name="faults check") as connection:
            connection.execute("set work_mem = '256MB'")
            check.load(connection, history.read(self.logs))
            found = check.check(connection)
            found.figures = figures_of(connection)
            found.figures["deadlocks in PostgreSQL's log"] = self.postgres.log().count("deadlock detected")
            look(connection)
        if self.rpc:
            strikes = [
                line for line in history.read(self.logs, "run") if line["event"] in ("strike", "outage")
            ]
            remote = self.rpc.check(strikes)
            found.figures |= remote.figures
            # One line of the summary for everything that is wrong in the other database.
            found.wrong["rpc"] = {
                f"{group}: {sentence}": rows
                for group, sentences in remote.wrong.items()
                for sentence, rows in sentences.items()
            }
        return found


async def _until_it_listens(url: str | None) -> None:
    """Wait for an API to start, at most a minute."""
    for _ in range(600 if url else 0):
        with suppress(OSError):
            _, writer = await asyncio.open_connection("127.0.0.1", int(str(url).rpartition(":")[2]))
            writer.close()
            return
        await asyncio.sleep(0.1)


def run(
    plan: Plan, keep: Path | None = None, look: Callable[[db.SyncConnection], None] = lambda _: None
) -> Result:
    """Run it all and return the findings. `keep`: a folder for the histories. `look`: called with the database."""
    # Modules that are loaded here need not be loaded for every process.
    _context.set_forkserver_preload(["faults.processes", "faults.rpc"])
    began = time.monotonic()
    with place(is_disk_wanted=plan.is_disk_wanted) as (folder, disk, why):
        made = Run(plan, folder, disk)
        try:
            asyncio.run(made.run())
            found = made.check(look)
            [row] = made.postgres.execute("select current_setting('server_version') as version")
        finally:
            if keep is not None:
                shutil.copytree(made.logs, keep, dirs_exist_ok=True)
                if made.rpc:
                    shutil.copytree(made.rpc.logs, keep / "rpc", dirs_exist_ok=True)
            made.postgres.close()
        lines = [line for line in history.read(made.logs) if line["event"] == "killed"]
        result = Result(
            plan, row["version"].split()[0], found, made.faults, {} if disk else {"disk.full": why}, made.armed,
            Counter(line["by"] for line in lines if "." in line["by"]),
            Counter(words.decode() for words in made.proxy.dropped),
            made.ended_by_themselves, time.monotonic() - began, made.drained_in,
        )  # fmt: skip
    result.promises = promises(result)
    return result
