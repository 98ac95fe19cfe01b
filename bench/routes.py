# ruff: noqa: E501
"""Routes decided at the claim: mixed demand on three providers with limits, and an outage of one of them.

The calls run on a simulated clock. Beside the time and the cost of the run are those of a fixed assignment that
knows the outage in advance, and of the cheapest plan that ends at the same time.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from psycopg.types.json import Jsonb

from bench.engine import SYSTEM, database, tenant
from bench.measure import Figure

KIND = "film"
OUTAGE = (60.0, 240.0)
"""When the second provider is under maintenance, in seconds after the start."""
LONGEST = 20.0
"""Seconds of the longest film."""


@dataclass(frozen=True)
class Maker:
    """A provider: films take as long to make as to watch."""

    name: str
    price: float
    places: int
    longest: float = float("inf")

    def capacity(self, until: float) -> float:
        """Seconds of film that it can make until then. What it makes when the outage begins is still finished."""
        begin, end = OUTAGE[0] + LONGEST, OUTAGE[1]
        lost = max(0.0, min(until, end) - begin) if self is MAKERS[1] else 0.0
        return self.places * (until - lost)


# From the cheapest to the most expensive.
MAKERS = (Maker("cheap/film", 1, 4, 10), Maker("middle/film", 1.5, 4), Maker("dear/film", 3, 8))


def films(count: int, seed: int) -> list[float]:
    """Lengths of films in seconds."""
    dice = random.Random(seed)
    return [round(dice.uniform(2, LONGEST), 1) for _ in range(count)]


@dataclass(frozen=True)
class Run:
    """When the last film was done, and what all of them cost."""

    seconds: float
    cost: float


def run(
    call: Callable[[str, Any], list[Any]], wait: Callable[[float], None], tenant_id: str, lengths: list[float]
) -> Run:
    """Make the films with the contract's functions. `call` returns rows as tuples, `wait` advances the clock."""
    for maker in MAKERS:
        features = ["film"] if maker.longest == float("inf") else ["film", f"seconds<={maker.longest}"]
        call(
            "select penstock.set_provider(%s, %s)",
            (maker.name, Jsonb({"concurrency": maker.places, "features": features})),
        )
        call("select penstock.set_price(%s, 'seconds', %s::numeric)", (maker.name, maker.price))
    tasks = [
        {"kind": KIND, "route": {"features": ["film"]}, "units": {"seconds": length}} for length in lengths
    ]
    call("select penstock.start_job('films', '{}', %s, %s)", (Jsonb(tasks), Jsonb({"tenant_id": tenant_id})))
    switches = [(OUTAGE[0], "maintenance"), (OUTAGE[1], "active")]
    running: list[tuple[float, int, int]] = []
    now, done, slots = 0.0, 0, sum(maker.places for maker in MAKERS)
    while done < len(lengths):
        query = """select c.id, c.lease, (t.units ->> 'seconds')::float from penstock.claim_tasks('bench', %s, %s, 3600) as c
          join penstock.tasks t on t.job_id = c.job_id and t.id = c.id"""
        for task_id, lease, seconds in (
            call(query, (slots - len(running), [KIND])) if len(running) < slots else []
        ):
            heapq.heappush(running, (now + seconds, task_id, lease))
        then = min([at for at, *_ in running[:1]] + [at for at, _ in switches[:1]])
        wait(then - now)
        now = then
        if switches and switches[0][0] <= now:
            call(
                "select penstock.set_provider(%s, %s)",
                (MAKERS[1].name, Jsonb({"status": switches.pop(0)[1]})),
            )
        while running and running[0][0] <= now:
            _, task_id, lease = heapq.heappop(running)
            call("select penstock.complete_task(%s, 'bench', null, %s)", (task_id, lease))
            done += 1
    [(cost,)] = call(
        "select sum(base_amount)::float from penstock.cost_entries where tenant_id = %s", (tenant_id,)
    )
    return Run(now, cost)


def cheapest(lengths: list[float], seconds: float) -> float | None:
    """The cost of the cheapest plan that ends in time, as if films could be split; None: there is none.

    Only short films fit the cheapest provider, and any film fits the others, so filling them in the order of
    their prices is optimal.
    """
    short = sum(length for length in lengths if length <= MAKERS[0].longest)
    rest = sum(lengths) - min(short, MAKERS[0].capacity(seconds))
    cost = (sum(lengths) - rest) * MAKERS[0].price
    for maker in MAKERS[1:]:
        taken = min(rest, maker.capacity(seconds))
        cost, rest = cost + taken * maker.price, rest - taken
    return cost if rest <= 1e-9 else None


def fastest(lengths: list[float]) -> float:
    """The least time in which any plan can end, as if films could be split."""
    low, high = 0.0, sum(lengths) + OUTAGE[1]
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if cheapest(lengths, middle) is not None else (middle, high)
    return high


def fixed(lengths: list[float]) -> Run:
    """The best of many assignments made before the start: each film to the provider that would be free first.

    Limits the share of each provider to what the cheapest plan gives it, for times from the fastest plan on.
    """
    runs = [found for step in range(41) if (found := _assigned(lengths, fastest(lengths) * (1 + step / 100)))]
    return min(runs, key=lambda found: (found.seconds, found.cost))


def _assigned(lengths: list[float], limit: float) -> Run | None:
    left = {maker.name: maker.capacity(limit) for maker in MAKERS}
    queues: dict[str, list[float]] = {maker.name: [] for maker in MAKERS}
    for length in lengths:
        fit = [m for m in MAKERS if length <= m.longest and left[m.name] >= length]
        if not fit:
            return None
        queues[fit[0].name].append(length)
        left[fit[0].name] -= length
    ends = [_makespan(maker, queues[maker.name]) for maker in MAKERS]
    return Run(max(ends), sum(sum(queues[maker.name]) * maker.price for maker in MAKERS))


def _makespan(maker: Maker, queue: list[float]) -> float:
    places = [0.0] * maker.places
    for length in queue:
        at = heapq.heappop(places)
        if maker is MAKERS[1] and OUTAGE[0] <= at < OUTAGE[1]:
            at = OUTAGE[1]
        heapq.heappush(places, at + length)
    return max(places)


_CLOCK = """
create table bench_clock (at timestamptz); insert into bench_clock values ('2026-06-01 00:00:00Z');
create or replace function penstock._now() returns timestamptz language sql volatile as $$ select at from public.bench_clock $$;
grant select on bench_clock to public;"""


def figures(dsn: str, count: int, seed: int = 1) -> list[Figure]:
    """Time and cost of a run, beside a fixed assignment and the cheapest plan."""
    lengths = films(count, seed)
    with database(dsn) as connection:
        connection.execute(_CLOCK)
        connection.execute("select penstock.define_kind(%s)", (KIND,))

        def call(query: str, values: Any) -> list[Any]:
            return connection.execute(query.encode(), values).fetchall()

        def wait(seconds: float) -> None:
            connection.execute("update bench_clock set at = at + make_interval(secs => %s)", (seconds,))

        found = run(call, wait, str(tenant(connection, "films")), lengths)
    before, least = fixed(lengths), cheapest(lengths, found.seconds)
    assert least is not None
    return [
        Figure("route_seconds", SYSTEM, found.seconds, "s"),
        Figure("route_cost", SYSTEM, found.cost, "USD"),
        Figure("route_seconds", "best fixed assignment", before.seconds, "s"),
        Figure("route_cost", "best fixed assignment", before.cost, "USD"),
        Figure("route_seconds", "fastest possible plan", fastest(lengths), "s"),
        Figure("route_cost", "cheapest plan of the same time", least, "USD"),
        Figure("route_extra_cost", SYSTEM, 100 * (found.cost / least - 1), "%"),
        Figure("route_extra_time", SYSTEM, 100 * (found.seconds / fastest(lengths) - 1), "%"),
    ]


def page(figures: list[Figure]) -> list[str]:
    """The section of docs/benchmarks.md, or nothing if that was not measured."""
    found = {(figure.name, figure.system): figure.value for figure in figures}
    if ("route_cost", SYSTEM) not in found:
        return []
    fixed = "best fixed assignment"
    return [
        "## Routes decided at the claim",
        "",
        "1,000 films of 2 to 20 seconds on three providers with limits, of which the second is under maintenance for three",
        "minutes, on a simulated clock (`bench/routes.py`), so the load of the machine does not matter. The fixed assignment is",
        "the best of those made before the start, and knows of the outage. The cheapest plan may split films.",
        "",
        "| | seconds | USD |",
        "|---|---:|---:|",
        f"| Penstock, at the claim | {found['route_seconds', SYSTEM]:,.0f} | {found['route_cost', SYSTEM]:,.0f} |",
        f"| {fixed} | {found['route_seconds', fixed]:,.0f} | {found['route_cost', fixed]:,.0f} |",
        f"| cheapest plan of the same time | {found['route_seconds', SYSTEM]:,.0f} |"
        f" {found['route_cost', 'cheapest plan of the same time']:,.0f} |",
        f"| fastest possible plan | {found['route_seconds', 'fastest possible plan']:,.0f} | |",
        "",
    ]
