# ruff: noqa: E501
"""From one machine to many: what each thing costs the database, a simulation with these costs that is checked
against real runs, and what it says of loads that do not fit here.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import psycopg

from bench import engine
from bench.measure import Figure
from bench.simulation import Arrival, Costs, Limits, Outcome, Simulation
from penstock.postgres import db
from penstock.sdk.app import App
from penstock.worker import Worker

BATCHES = (1, 10, 100, 500)
WRITE, TYPESET, NARRATE = ("write", 20.0), ("typeset", 1.0), ("narrate", 15.0)
"""A document of the reading application, with a real provider: lanes and seconds."""
DOCUMENTS = 16
LOADS = (10, 100, 1_000, 10_000)
"""Jobs a minute."""
SLOTS = 100
"""Of a worker whose handlers wait for providers."""


def slope(points: list[tuple[int, float]]) -> tuple[float, float]:
    """Seconds of a call, and of each task in it: the line through these points, never below zero."""
    fit = statistics.linear_regression([n for n, _ in points], [seconds for _, seconds in points])
    return max(fit.intercept, min(seconds for _, seconds in points) / 2), max(fit.slope, 0.0)


def timed(act: Callable[[], Any], times: int) -> float:
    """Median seconds."""
    found: list[float] = []
    for _ in range(times):
        begun = time.perf_counter()
        act()
        found.append(time.perf_counter() - begun)
    return statistics.median(found)


def costs(dsn: str, times: int) -> Costs:
    """What a claim, a report and a start cost, by their size."""
    with engine.database(dsn) as connection:
        tenant = engine.tenant(connection, "scale")
        engine.waiting_tasks(connection, tenant, times * sum(BATCHES) + 100 * 8)
        engine.analyze(connection)
        for _ in range(8):
            engine.turn(connection, 100)
        claims: list[tuple[int, float]] = []
        reports: list[tuple[int, float]] = []
        starts: list[tuple[int, float]] = []
        for batch in BATCHES:
            turns = [engine.turn(connection, batch) for _ in range(times)]
            claims.append((batch, statistics.median(turn[1] for turn in turns)))
            reports.append((batch, statistics.median(turn[2] for turn in turns)))
            tasks = json.dumps([{"kind": "noop", "input": {"sent": 0}}] * batch)
            options = json.dumps({"tenant_id": tenant, "paused": True})
            query = "select penstock.start_job('scale', '{}', %s::jsonb, %s::jsonb)"
            starts.append(
                (batch, timed(lambda q=query, t=tasks, o=options: connection.execute(q, (t, o)), times))
            )
        return Costs(*slope(claims), *slope(reports), *slope(starts))


def cost_figures(found: Costs) -> list[Figure]:
    names = {
        "claim": "a claim",
        "claim_each": "each task of a claim",
        "complete": "a report",
        "complete_each": "each task of a report",
        "start": "a job",
        "start_each": "each task of a job",
    }
    return [Figure(f"cost_{name}", what, 1e6 * getattr(found, name), "µs") for name, what in names.items()]


def many_tenants(new: Callable[[], str], sizes: tuple[int, ...], times: int) -> list[Figure]:
    """A claim of 50 while this many tenants wait; the total backlog stays the same."""
    figures: list[Figure] = []
    for tenants in sizes:
        with engine.database(new()) as connection:
            per_tenant = max(1, 50 * (times + 8) // tenants + 1)
            connection.execute(
                """insert into penstock.tenants (id, name, plan) select gen_random_uuid(), 's' || n, 'unlimited' from generate_series(1, %s) as n""",
                (tenants,),
            )
            job = engine.waiting_tasks(connection, engine.tenant(connection, "first"), 1)
            # Everybody's tasks side by side in virtual time, as `_queue` would have dealt them.
            connection.execute(
                """with job as (
                     insert into penstock.jobs (id, tenant_id, type, status, created_by, created_at, started_at)
                     select gen_random_uuid(), t.id, 'scale', 'running', 'bench', clock_timestamp(), clock_timestamp()
                     from penstock.tenants t where t.name ~ '^s[0-9]' returning id, tenant_id
                   ), phase as (
                     insert into penstock.phases (job_id, position, tenant_id, name, total) select id, 1, tenant_id, 'noop', %(n)s from job
                   ), task as (
                     insert into penstock.tasks (job_id, id, tenant_id, created_at, lane_id, phase, priority, kind, input)
                     select job.id, nextval('penstock.task_ids'), job.tenant_id, clock_timestamp(), l.id, 1, 5, 'noop', '{"sent": 0}'
                     from job, penstock.lanes l, generate_series(1, %(n)s) where l.kind = 'noop' returning *
                   )
                   insert into penstock.ready (task_id, vtime, job_id, tenant_id, lane_id, priority, phase)
                   select task.id, l.clock + 1000000 * row_number() over (partition by task.tenant_id), task.job_id, task.tenant_id, task.lane_id, 5, 1
                   from task join penstock.lanes l on l.id = task.lane_id""",
                {"n": per_tenant},
            )
            assert job
            engine.analyze(connection)
            figures.append(
                Figure(
                    "claim_tenants", f"{tenants:,} tenants wait", engine.claim_ms(connection, 50, times), "ms"
                )
            )
    return figures


def many_lanes(new: Callable[[], str], sizes: tuple[int, ...], times: int) -> list[Figure]:
    """A claim of 50 while this many tenants have their own limits at a provider, and so their own empty lanes."""
    figures: list[Figure] = []
    with engine.database(new()) as connection:
        engine.waiting_tasks(connection, engine.tenant(connection, "first"), 50 * (times + 8) * len(sizes))
        made = 0
        for lanes in sizes:
            connection.execute(
                """select penstock.set_provider('scale/own', '{"requests_per_minute": 60}', t.id), penstock._lane('noop', 'scale/own', t.id, true)
                   from (select penstock.create_tenant('own ' || n) as id from generate_series(%s::integer, %s) as n offset 0) as t""",
                (made + 1, lanes),
            )
            made = lanes
            engine.analyze(connection)
            figures.append(
                Figure("claim_lanes", f"{lanes:,} lanes", engine.claim_ms(connection, 50, times), "ms")
            )
    return figures


@dataclass(frozen=True)
class Scene:
    """The same work for real workers and for the simulation."""

    name: str
    arrivals: list[Arrival]
    lanes: dict[str, Limits]
    workers: int = 4
    slots: int = 8
    weights: dict[int, float] | None = None


SCENES = [
    Scene(
        "small tenants beside a large one",
        [
            Arrival(0.0, 0, 800, (("open", 0.1),)),
            *(Arrival(1.0 + 0.05 * n, n, 10, (("open", 0.1),)) for n in range(1, 10)),
        ],
        {"open": Limits()},
    ),
    Scene(
        "weights 1, 2 and 4",
        [Arrival(0.0, n, 300, (("open", 0.1),)) for n in range(3)],
        {"open": Limits()},
        weights={0: 1.0, 1: 2.0, 2: 4.0},
    ),
    Scene(
        "a lane with 6 places",
        [Arrival(0.0, 0, 200, (("narrow", 0.2),)), Arrival(0.5, 1, 200, (("open", 0.1),))],
        {"open": Limits(), "narrow": Limits(concurrency=6)},
    ),
    Scene(
        "a lane with 300 requests a minute",
        [Arrival(0.0, 0, 400, (("paced", 0.05),))],
        {"paced": Limits(requests_per_minute=300)},
    ),
    Scene(
        "a provider that is away for 5 s",
        [Arrival(0.05 * n, n % 4, 2 if n % 4 else 6, (("away", 0.2),)) for n in range(160)],
        {"away": Limits(concurrency=12, closed=(2.0, 7.0))},
    ),
    Scene(
        "chains of three steps",
        [
            Arrival(0.3 * n, n % 5, 16, (("write", 0.4), ("typeset", 0.05), ("narrate", 0.3)))
            for n in range(20)
        ],
        {"write": Limits(), "typeset": Limits(), "narrate": Limits()},
    ),
]


def simulate(scene: Scene, found: Costs) -> Outcome:
    simulation = Simulation(
        found, cores=2, workers=scene.workers, slots=scene.slots, lanes=scene.lanes, weights=scene.weights
    )
    simulation.add(scene.arrivals)
    return simulation.run()


def perform(scene: Scene, dsn: str) -> Outcome:
    """Real workers whose handlers sleep."""
    with engine.database(dsn) as connection:
        numbers = sorted({arrival.tenant for arrival in scene.arrivals})
        tenants = {number: engine.tenant(connection, f"tenant {number}") for number in numbers}
        for number, weight in (scene.weights or {}).items():
            connection.execute(
                "update penstock.tenants set weight = %s where id = %s", (weight, tenants[number])
            )
        for name, limits in scene.lanes.items():
            if limits != Limits():
                options = {
                    "concurrency": limits.concurrency,
                    "requests_per_minute": limits.requests_per_minute,
                }
                connection.execute(_SET_PROVIDER, (f"scene/{name}", json.dumps(options)))
        asyncio.run(_perform(scene, dsn, tenants))
        begun: datetime = connection.execute("select min(created_at) from penstock.jobs").fetchall()[0][0]
        outcome = Outcome()
        query = """select r.tenant_id::text, r.started_at, r.finished_at,
              greatest(t.created_at, (select max(p.finished_at) from penstock.edges e
                join penstock.results p on p.job_id = e.job_id and p.task_id = e.parent_id
                where e.job_id = r.job_id and e.child_id = r.task_id))
            from penstock.results r join penstock.tasks t on t.job_id = r.job_id and t.id = r.task_id"""
        by_id = {tenant: number for number, tenant in tenants.items()}
        for tenant, started, finished, queued in connection.execute(query).fetchall():
            number = by_id[tenant]
            outcome.waits.setdefault(number, []).append((started - queued).total_seconds())
            outcome.ends.setdefault(number, []).append((finished - begun).total_seconds())
        outcome.seconds = max(end for ends in outcome.ends.values() for end in ends)
        return outcome


_SET_PROVIDER = "select penstock.set_provider(%s, %s::jsonb)"


async def _close(pool: db.Pool, scene: Scene, begun: float) -> None:
    """Keep the providers of the scene away for their time."""
    for name, limits in scene.lanes.items():
        for at, status in zip(limits.closed or (), ("maintenance", "active"), strict=False):
            await asyncio.sleep(max(0.0, begun + at - time.monotonic()))
            await db.rows(pool, _SET_PROVIDER, (f"scene/{name}", json.dumps({"status": status})))


async def _perform(scene: Scene, dsn: str, tenants: dict[int, str]) -> None:
    app = App()

    async def nap(seconds: float) -> None:
        await asyncio.sleep(seconds)

    for name in scene.lanes:
        app.task(kind=name)(nap)
    running = [
        asyncio.create_task(Worker(app, dsn=dsn, concurrency=scene.slots).run()) for _ in range(scene.workers)
    ]
    await asyncio.sleep(1)
    async with db.pool(dsn) as pool:
        begun = time.monotonic()
        total = 0
        closing = asyncio.create_task(_close(pool, scene, begun))
        for arrival in sorted(scene.arrivals, key=lambda arrival: arrival.at):
            await asyncio.sleep(max(0.0, begun + arrival.at - time.monotonic()))
            tasks: list[dict[str, Any]] = []
            for chain in range(arrival.count):
                for step, (lane, seconds) in enumerate(arrival.steps):
                    task: dict[str, Any] = {"kind": lane, "input": {"seconds": seconds}, "phase": lane}
                    if len(arrival.steps) > 1:
                        task["key"] = f"{chain}.{step}"
                    if step:
                        task["after"] = [f"{chain}.{step - 1}"]
                    if scene.lanes[lane] != Limits():
                        task["provider"] = f"scene/{lane}"
                    tasks.append(task)
            total += len(tasks)
            await db.rows(
                pool,
                "select penstock.start_job('scene', '{}', %s::jsonb, %s::jsonb)",
                (json.dumps(tasks), json.dumps({"tenant_id": tenants[arrival.tenant]})),
            )
        while True:
            rows = await db.rows(pool, "select count(*) from penstock.results", ())
            if rows[0][0] == total:
                break
            await asyncio.sleep(0.1)
        await closing
    for worker in running:
        worker.cancel()
    await asyncio.gather(*running, return_exceptions=True)


def check(new: Callable[[], str], found: Costs, scenes: list[Scene]) -> list[Figure]:
    """How far the simulation is from the measurement: the whole time, and each tenant's mean end."""
    figures: list[Figure] = []
    for scene in scenes:
        real, made = perform(scene, new()), simulate(scene, found)
        means = [
            abs(statistics.mean(made.ends[tenant]) / statistics.mean(real.ends[tenant]) - 1)
            for tenant in real.ends
        ]
        figures += [
            Figure("scene_seconds", scene.name, real.seconds, "s"),
            Figure("scene_simulated", scene.name, made.seconds, "s"),
            Figure(
                "scene_off", scene.name, 100 * statistics.mean(means), "% off, mean end of a tenant's tasks"
            ),
        ]
    return figures


def job(at: float, tenant: int) -> Arrival:
    return Arrival(at, tenant, DOCUMENTS, (WRITE, TYPESET, NARRATE))


def loads(found: Costs, minutes: float) -> list[Figure]:
    """What a load of reading jobs needs: slots with a fifth to spare, and the database's cores."""
    figures: list[Figure] = []
    chain = sum(seconds for _, seconds in (WRITE, TYPESET, NARRATE))
    lanes = {name: Limits() for name, _ in (WRITE, TYPESET, NARRATE)}
    for load in LOADS:
        workers = max(1, round(1.2 * load / 60 * DOCUMENTS * chain / SLOTS))
        # The warm-up fills the steps; the window after it is what counts.
        warm, window = 2 * chain, 60 * minutes * min(1.0, 100 / load)
        simulation = Simulation(found, cores=64, workers=workers, slots=SLOTS, lanes=lanes)
        spacing = 60 / load
        simulation.add(job(n * spacing, n % 1000) for n in range(int((warm + window) / spacing)))
        half = simulation.run(until=warm)
        before = (half.database_busy, half.claims, half.empty_claims)
        whole = simulation.run(until=warm + window)
        waits = sorted(wait for waits in whole.waits.values() for wait in waits)
        name = f"{load:,} jobs a minute"
        figures += [
            Figure("load_workers", name, workers, f"workers of {SLOTS} slots"),
            Figure("load_cores", name, (whole.database_busy - before[0]) / window, "cores of the database"),
            Figure("load_claims", name, (whole.claims - before[1]) / window, "claims/s"),
            Figure(
                "load_empty", name, (whole.empty_claims - before[2]) / window, "claims/s that find nothing"
            ),
            Figure("load_wait_p99", name, 1000 * waits[int(0.99 * len(waits))], "ms in line, p99"),
        ]
    return figures


def connection_memory(dsn: str, n: int) -> list[Figure]:
    """What a worker's session keeps of the database's memory, shared parts in proportion."""
    with engine.database(dsn) as connection, ExitStack() as stack:
        engine.waiting_tasks(connection, engine.tenant(connection, "scale"), 20 * n)
        found: list[float] = []
        for _ in range(n):
            session = stack.enter_context(psycopg.connect(dsn, autocommit=True))
            for _ in range(8):
                engine.turn(session, 1)
            rollup = Path(f"/proc/{session.info.backend_pid}/smaps_rollup").read_text()
            found.append(int(rollup.partition("Pss:")[2].split()[0]) / 1024)
        return [Figure("connection_memory", "a worker's session", statistics.median(found), "MB")]


def measure(new: Callable[[], str], is_quick: bool) -> list[Figure]:
    found = costs(new(), 10 if is_quick else 60)
    return [
        *cost_figures(found),
        *many_tenants(new, (10, 1_000) if is_quick else (10, 1_000, 100_000), 10 if is_quick else 50),
        *many_lanes(new, (0, 100) if is_quick else (0, 1_000, 10_000), 10 if is_quick else 50),
        *connection_memory(new(), 5 if is_quick else 20),
        *check(new, found, SCENES[1:3] if is_quick else SCENES),
        *loads(found, 0.5 if is_quick else 2),
    ]


WORKER_DOLLARS, CORE_DOLLARS = 7.0, 2.0
"""A day: a worker as the first version of this service paid for it, and one core of a managed PostgreSQL."""
BEFORE = {
    10: ("1 worker, $7", "~5 min"),
    100: ("5 workers, $35", "~2 min"),
    1_000: ("20 workers, $140", "~1 min"),
    10_000: ("50+ workers, $350+", "<1 min"),
}
"""What the original design document expected, for a load up to that of the next row."""


def page(figures: list[Figure]) -> str | None:
    """docs/scale.md, or nothing if it was not measured."""
    found = {(figure.name, figure.system): figure.value for figure in figures}
    if not any(name == "load_cores" for name, _ in found):
        return None
    costs = {figure.name: figure for figure in figures if figure.name.startswith("cost_")}
    tenants = [figure for figure in figures if figure.name == "claim_tenants"]
    lanes = [figure for figure in figures if figure.name == "claim_lanes"]
    watchers = [figure for figure in figures if figure.name == "watch_asked"]
    memory = next(figure.value for figure in figures if figure.name == "connection_memory")
    lines = [
        "# Scale",
        "",
        "One database carries about 1,000 jobs of 48 tasks per minute; add stateless workers and database cores to grow. This",
        "page shows the measured costs, a simulation that uses them (`bench/simulation.py`), and how well it matches real runs.",
        "",
        "Generated by `python -m bench --only scale` and `python -m bench.report`.",
        "",
        "## What each thing costs the database",
        "",
        "CPU time on one core of a 2-core machine, measured in one session and fitted to batches of 1 to 500:",
        "",
        "| operation | µs |",
        "|---|---:|",
        *(f"| {figure.system} | {figure.value:,.0f} |" for figure in costs.values()),
        "",
        "**More tenants.** A claim of 50 tasks while "
        + ", ".join(f"{figure.system}: {figure.value:.2f} ms" for figure in tenants)
        + ".",
        "",
    ]
    if lanes:
        lines += [
            "**More lanes.** A tenant with its own limits at a provider has its own lane, and a claim checks every lane of its",
            "kinds. A claim of 50 beside "
            + ", ".join(f"{figure.system}: {figure.value:.2f} ms" for figure in lanes)
            + ".",
            "",
        ]
    lines += [
        "**More workers.** A worker holds five to nine sessions, one of them for LISTEN. The session that claims takes",
        f"{memory:.1f} MB of the database's memory. An idle worker sends a heartbeat every five seconds; one worker does what is",
        "due for all (`upkeep`, schedules, actions). Through a transaction pooler (`docs/operate.md`) hundreds of workers share a few dozen",
        "sessions.",
        "",
    ]
    if watchers:
        lines += [
            "**More watchers.** "
            + ", ".join(f"{figure.system}: {figure.value:.0f} transactions/s" for figure in watchers)
            + ".",
            "The load of an API process does not depend on its number of watchers. So 1,000,000 watchers, with 2,000 per process,",
            f"need 500 processes and about {500 * watchers[-1].value:,.0f} small transactions/s.",
            "",
        ]
    lines += [
        "## The simulation beside the real thing",
        "",
        "Real workers and the simulation run the same work. *Error* is the average difference between the mean end times of each",
        "tenant's tasks.",
        "",
        "| work | real s | simulated s | error |",
        "|---|---:|---:|---:|",
    ]
    for name in dict.fromkeys(system for figure, system in found if figure == "scene_seconds"):
        real, made, off = (found[word, name] for word in ("scene_seconds", "scene_simulated", "scene_off"))
        lines.append(f"| {name} | {real:.1f} | {made:.1f} | {off:.0f} % |")
    lines += [
        "",
        "## From 10 to 10,000 jobs a minute",
        "",
        "The simulated load:",
        "",
        f"- A job is a small book: {DOCUMENTS} documents, each written ({WRITE[1]:.0f} s), typeset ({TYPESET[1]:.0f} s) and narrated ({NARRATE[1]:.0f} s) by providers.",
        "  There are 1,000 tenants.",
        f"- A worker has {SLOTS} slots for handlers that wait for a provider; a fifth of all slots is spare.",
        "- Cores are busy cores of the database; plan for twice as many.",
        f"- The cost is ${WORKER_DOLLARS:.0f} per day and worker, and ${CORE_DOLLARS:.0f} per day and core of a managed PostgreSQL (twice the busy ones).",
        "  Providers' prices are not included.",
        "",
        "| jobs per minute | tasks/s | workers | busy cores | claims/s | empty claims/s | queue wait, p99 | cost per day | the original design expected |",
        "|---:|---:|---:|---:|---:|---:|---:|---:|---|",
    ]
    for load in LOADS:
        name = f"{load:,} jobs a minute"
        workers, cores, claims, empty, wait = (
            found[f"load_{word}", name] for word in ("workers", "cores", "claims", "empty", "wait_p99")
        )
        money = workers * WORKER_DOLLARS + max(2, 2 * cores) * CORE_DOLLARS
        lines.append(
            f"| {load:,} | {load / 60 * DOCUMENTS * 3:,.0f} | {workers:,.0f} | {cores:.2f} | {claims:,.0f} | {empty:,.0f} | {wait:,.0f} ms | ${money:,.0f} | {BEFORE[load][0]} a day, {BEFORE[load][1]} |"
        )
    lines += [
        "",
        "Conclusions:",
        "",
        "- **Workers are the main cost.** Their number follows from the slots: seconds of work per minute, divided by the slots of a",
        "  worker. CPU-bound handlers (typesetting, speech, video) need cores instead of slots, with any queue.",
        "- **The original design was too small**, because it ignored how long its jobs run: 1,000 jobs per minute of 16 documents",
        "  need 9,600 busy slots, so 20 workers would have to run 480 each.",
        "- **One database is enough for 1,000 jobs per minute.** Towards 10,000 the bottleneck is the notification of every worker",
        "  at each change of the queue. That is why workers back off after an empty claim, and why you should spread kinds over",
        "  separate pools of workers (`penstock worker MODULE:APP --kinds KIND`).",
        "- **Beyond that, use several databases** ([cells](deploy/cells.md)): each tenant lives in one, each database has its own",
        "  workers. Citus is no option: it cannot lock rows of several shards with `SELECT … FOR UPDATE` (citus#4647), and a claim",
        "  that is fair across tenants must. Poolers that shard need the key in each statement; `claim_tasks(…)` hides it.",
        "- **Providers' limits come much earlier**: 10,000 jobs per minute are 160,000 calls per minute for the text alone.",
        "",
        "The simulation leaves out failures, heartbeats and upkeep (about one small statement in three seconds and worker), disks,",
        "replication and the API. WAL is about 1.2 kB per task (`docs/benchmarks.md`): 10,000 jobs per minute write 10 MB/s.",
    ]
    return "\n".join(lines) + "\n"
