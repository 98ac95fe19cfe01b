# ruff: noqa: E501
"""Several databases: two drain side by side, and a simulated day of 10,000 jobs a minute in 1 to 8 cells.

`python -m bench --only cells` measures and simulates. Three models, each checked against the next: real workers
on two servers, the simulation of every claim (`bench.simulation`), and one of minutes for a whole day.
"""

from __future__ import annotations

import random
import statistics
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

from bench import engine, ours, scale
from bench.measure import Figure
from bench.simulation import Arrival, Costs, Limits, Simulation

CELLS = (1, 2, 4, 8)
TENANTS = 10_000
JOBS_PER_MINUTE = 10_000
MINUTES = 24 * 60


# Two real cells


def drain(one: Callable[[], str], other: Callable[[], str], n: int, rounds: int) -> list[Figure]:
    """Drain n tasks in one database with two clients, and in two databases with one client each, in turns."""
    alone: list[float] = []
    both: list[float] = []
    for _ in range(rounds):
        first, second, third = one(), one(), other()
        for dsn, count in ((first, n), (second, n // 2), (third, n // 2)):
            with engine.database(dsn) as connection:
                ours.waiting_tasks(connection, ours.tenant(connection, "cells"), count)
                engine.analyze(connection)
        with engine.draining([(first, n, 2)]) as seconds:
            alone.append(n / seconds())
        with engine.draining([(second, n // 2, 1), (third, n // 2, 1)]) as seconds:
            both.append(n / seconds())
    return [
        Figure("cells_drain", "one database", statistics.median(alone), "tasks/s"),
        Figure("cells_drain", "two cells", statistics.median(both), "tasks/s"),
        Figure("cells_drain_ratio", "two cells : one database",
               statistics.median(b / a for a, b in zip(alone, both, strict=True)), "×"),
    ]  # fmt: skip


def scene() -> scale.Scene:
    """Small tenants beside a large one at a provider that is away for a while: for both cells together."""
    arrivals = [Arrival(0.1 * n, n % 8, 8 if n % 8 == 0 else 2, (("away", 0.2),)) for n in range(120)]
    return scale.Scene(
        "two cells, a provider that is away for 5 s",
        arrivals,
        {"away": Limits(concurrency=12, closed=(2.0, 7.0))},
    )


def halves(whole: scale.Scene) -> list[scale.Scene]:
    """The same in two cells: tenants in turn, half of the workers and of the limit in each."""
    lanes = {
        name: replace(limits, concurrency=(limits.concurrency or 0) // 2 or None)
        for name, limits in whole.lanes.items()
    }
    return [
        scale.Scene(
            whole.name, [each for each in whole.arrivals if each.tenant % 2 == cell], lanes,
            workers=whole.workers // 2, slots=whole.slots,
        )
        for cell in (0, 1)
    ]  # fmt: skip


def check(one: Callable[[], str], other: Callable[[], str], found: Costs) -> list[Figure]:
    """Two real cells at work beside their simulation: the whole time, and each tenant's mean end."""
    parts = halves(scene())
    addresses = [one(), other()]
    with ThreadPoolExecutor(2) as pool:
        real = list(pool.map(scale.perform, parts, addresses))
    made = [scale.simulate(part, found) for part in parts]
    off = [
        abs(statistics.mean(simulated.ends[tenant]) / statistics.mean(measured.ends[tenant]) - 1)
        for measured, simulated in zip(real, made, strict=True)
        for tenant in measured.ends
    ]
    name = scene().name
    return [
        Figure("scene_seconds", name, max(each.seconds for each in real), "s"),
        Figure("scene_simulated", name, max(each.seconds for each in made), "s"),
        Figure("scene_off", name, 100 * statistics.mean(off), "% off, mean end of a tenant's tasks"),
    ]


# Every claim, for some seconds


def cores(found: Costs, cells: Sequence[int], seconds: float) -> list[Figure]:
    """The busy cores of each database when this many cells share the load and the tenants."""
    figures: list[Figure] = []
    for count in cells:
        load, tenants = JOBS_PER_MINUTE / count, TENANTS // count
        chain = sum(length for _, length in (scale.WRITE, scale.TYPESET, scale.NARRATE))
        workers = round(1.2 * load / 60 * scale.DOCUMENTS * chain / scale.SLOTS)
        lanes = {name: Limits() for name, _ in (scale.WRITE, scale.TYPESET, scale.NARRATE)}
        simulation = Simulation(found, cores=64, workers=workers, slots=scale.SLOTS, lanes=lanes)
        warm, spacing = 2 * chain, 60 / load
        simulation.add(scale.job(n * spacing, n % tenants) for n in range(int((warm + seconds) / spacing)))
        before = simulation.run(until=warm).database_busy
        busy = (simulation.run(until=warm + seconds).database_busy - before) / seconds
        figures += [
            Figure("cells_cores", _named(count), busy, "busy cores of each database"),
            Figure("cells_cores_all", _named(count), busy * count, "busy cores of all databases"),
        ]
    return figures


# A day, in steps of a minute


@dataclass(frozen=True)
class Day:
    """Jobs of documents for tenants of very different size, and a provider with a limit that is away for a time."""

    tenants: int = TENANTS
    jobs_per_minute: float = JOBS_PER_MINUTE
    """Mean of the day. At noon half as many more arrive, at midnight half as many."""
    documents: int = scale.DOCUMENTS
    calls_per_minute: int = 400_000
    """The provider's limit for all cells together."""
    outage: tuple[int, int] = (12 * 60, 14 * 60)
    minutes: int = MINUTES
    curve: Callable[[int], float] = field(default=lambda minute: 1 - 0.5 * _cosine(minute))

    def sizes(self) -> list[float]:
        """Each tenant's part of the load: the n-th largest has 1/n of the largest."""
        total = sum(1 / n for n in range(1, self.tenants + 1))
        return [1 / n / total for n in range(1, self.tenants + 1)]


def _cosine(minute: int) -> float:
    from math import cos, pi

    return cos(2 * pi * minute / MINUTES)


@dataclass
class Cell:
    """Tenants with calls that wait: how many arrived in which minute."""

    limit: int
    lines: dict[int, deque[list[int]]] = field(default_factory=dict[int, deque[list[int]]])
    waiting: dict[int, int] = field(default_factory=dict[int, int])

    def serve(self, now: int, note: Callable[[int, int, int], None]) -> int:
        """Admit calls up to the limit, the same number of each tenant that has enough. Returns their number."""
        left = self.limit
        for place, tenant in enumerate(sorted(self.waiting, key=self.waiting.__getitem__)):
            # The smallest first: its unused share is divided among the others.
            taken = min(self.waiting[tenant], -(-left // (len(self.waiting) - place)))
            left -= taken
            self._take(tenant, taken, now, note)
        self.waiting = {tenant: count for tenant, count in self.waiting.items() if count}
        return self.limit - left

    def _take(self, tenant: int, count: int, now: int, note: Callable[[int, int, int], None]) -> None:
        self.waiting[tenant] -= count
        line = self.lines[tenant]
        while count:
            part = min(count, line[0][1])
            note(tenant, now - line[0][0], part)
            count -= part
            line[0][1] -= part
            if not line[0][1]:
                line.popleft()


@dataclass
class Result:
    """Calls by wait in minutes, of small tenants (all but the largest hundredth) and of large ones; the rest of the day."""

    small: dict[int, int] = field(default_factory=dict[int, int])
    large: dict[int, int] = field(default_factory=dict[int, int])
    waits: dict[int, list[int]] = field(default_factory=dict[int, list[int]])
    """By tenant: minutes of all its calls together, and their number."""
    unused: int = 0
    """Calls that a cell could have admitted while others waited in another cell."""
    over_at: int = 0
    """The last minute in which a call waited."""
    left: int = 0


def simulate(day: Day, cells: int, *, by_load: bool = False, seed: int = 1) -> Result:
    """Run a day. Tenants are dealt at random; limits are split evenly, or by the load of each cell."""
    dice = random.Random(seed)
    sizes = day.sizes()
    place = [dice.randrange(cells) for _ in sizes]
    load = [sum(size for size, at in zip(sizes, place, strict=True) if at == cell) for cell in range(cells)]
    there = [
        Cell(int(day.calls_per_minute * (load[cell] if by_load else 1 / cells))) for cell in range(cells)
    ]
    result, edge = Result(), max(1, day.tenants // 100)

    def note(tenant: int, minutes: int, count: int) -> None:
        waits = result.large if tenant < edge else result.small
        waits[minutes] = waits.get(minutes, 0) + count
        own = result.waits.setdefault(tenant, [0, 0])
        own[0] += minutes * count
        own[1] += count

    for minute, arrived in enumerate(_arrivals(day, sizes, dice)):
        for tenant, count in arrived:
            cell = there[place[tenant]]
            cell.lines.setdefault(tenant, deque()).append([minute, count])
            cell.waiting[tenant] = cell.waiting.get(tenant, 0) + count
        if day.outage[0] <= minute < day.outage[1]:
            continue
        free = sum(cell.limit - cell.serve(minute, note) for cell in there)
        waiting = sum(sum(cell.waiting.values()) for cell in there)
        result.unused += min(free, waiting)
        if waiting:
            result.over_at = minute
    result.left = sum(sum(cell.waiting.values()) for cell in there)
    return result


def _arrivals(day: Day, sizes: list[float], dice: random.Random) -> Iterator[list[tuple[int, int]]]:
    """For each minute the tenants that start jobs, with the number of their calls."""
    due = [dice.random() for _ in sizes]
    for minute in range(day.minutes):
        jobs = day.jobs_per_minute * day.curve(minute)
        found: list[tuple[int, int]] = []
        for tenant, size in enumerate(sizes):
            due[tenant] += jobs * size
            if due[tenant] >= 1:
                whole = int(due[tenant])
                due[tenant] -= whole
                found.append((tenant, whole * day.documents))
        yield found


def quantile(waits: dict[int, int], share: float) -> int:
    """The wait in minutes that this share of the calls does not exceed."""
    left = share * sum(waits.values())
    for minutes in sorted(waits):
        left -= waits[minutes]
        if left <= 0:
            return minutes
    return 0


def against_claims(found: Costs) -> Figure:
    """How far the model of minutes is from the simulation of every claim, by each tenant's mean wait."""
    day = Day(
        tenants=10, jobs_per_minute=300, documents=1, calls_per_minute=600, outage=(4, 8), minutes=20,
        curve=lambda minute: float(minute < 14),
    )  # fmt: skip
    coarse = simulate(day, 1)
    simulation = Simulation(
        found, cores=8, workers=4, slots=100,
        lanes={"away": Limits(requests_per_minute=600, closed=(240.0, 480.0))},
    )  # fmt: skip
    dice = random.Random(1)
    sizes = day.sizes()
    [dice.randrange(1) for _ in sizes]
    simulation.add(
        Arrival(60.0 * minute + 60.0 * n / len(arrived), tenant, count, (("away", 1.0),))
        for minute, arrived in enumerate(_arrivals(day, sizes, dice))
        for n, (tenant, count) in enumerate(arrived)
    )
    fine = simulation.run()
    off = [
        abs(minutes / count - statistics.mean(fine.waits[tenant]) / 60)
        for tenant, (minutes, count) in coarse.waits.items()
    ]
    return Figure(
        "cells_model_off", "minutes beside claims", statistics.mean(off), "minutes, mean wait of a tenant"
    )


def days(day: Day, cells: Sequence[int]) -> list[Figure]:
    figures: list[Figure] = []
    for count in cells:
        for by_load in (False, True) if count > 1 else (False,):
            name = _named(count) + (", limits by load" if by_load else "")
            found = simulate(day, count, by_load=by_load)
            figures += [
                Figure(
                    "cells_small_p99", name, quantile(found.small, 0.99), "min, p99 wait of small tenants"
                ),
                Figure(
                    "cells_large_p99", name, quantile(found.large, 0.99), "min, p99 wait of large tenants"
                ),
                Figure("cells_over", name, found.over_at / 60, "h, the last call waits"),
                Figure("cells_unused", name, found.unused / 1e6, "million calls unused while others waited"),
                Figure("cells_left", name, found.left, "calls left at midnight"),
            ]
    return figures


def _named(count: int) -> str:
    return f"{count} cells" if count > 1 else "1 cell"


def measure(one: Callable[[], str], other: Callable[[], str], is_quick: bool) -> list[Figure]:
    found = published_costs() or scale.costs(one(), 10 if is_quick else 60)
    cells = (1, 2) if is_quick else CELLS
    day = Day(tenants=500, jobs_per_minute=500, calls_per_minute=20_000) if is_quick else Day()
    return [
        *drain(one, other, 4_000 if is_quick else 60_000, 1 if is_quick else 5),
        *check(one, other, found),
        *([] if is_quick else cores(found, cells, 1.0)),
        against_claims(found),
        *days(day, cells),
    ]


def published_costs() -> Costs | None:
    """The costs that docs/scale.md shows, so that both parts of the page say the same."""
    import json

    path = Path(__file__).parent / "results/latest.json"
    rows = {row["name"].removeprefix("cost_"): row["value"] / 1e6
            for row in json.loads(path.read_text()) if row["name"].startswith("cost_")}  # fmt: skip
    return Costs(**rows) if rows else None


def lines(figures: list[Figure]) -> list[str]:
    """The section of docs/scale.md, or nothing if it was not measured."""
    found = {(figure.name, figure.system): figure.value for figure in figures}
    if ("cells_drain_ratio", "two cells : one database") not in found:
        return []
    day = Day()
    text = [
        "## Cells",
        "",
        "**Two real cells.** On two servers of one machine with two cores (in turns, beside other load) two cells drain "
        f"{found['cells_drain_ratio', 'two cells : one database']:.2f} × as many tasks per second as one database, with two clients in all.",
        "This shows that cells do not slow each other down: they share nothing. It does not show how they scale on machines of their own:",
        "here both share the cores that one database uses alone.",
        "",
        f"**The simulated day.** {JOBS_PER_MINUTE:,} jobs per minute (half as many at midnight, half as many more at noon) of {TENANTS:,} tenants; the",
        f"n-th largest has 1/n of the largest one's load. The provider of the texts admits {day.calls_per_minute:,} calls per minute and is away",
        "from 12:00 to 14:00. Tenants are dealt to the cells at random. The limit is split evenly, or by each cell's load",
        "(the `--share` of each cell, then `penstock cells rebalance`).",
        "",
        "| cells | busy cores of each database | p99 wait, small tenants | p99 wait, the 100 largest | backlog gone at | calls unused while others waited |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for name in dict.fromkeys(system for figure, system in found if figure == "cells_over"):
        busy = found.get(("cells_cores", name.partition(",")[0]))
        over = round(60 * found["cells_over", name])
        text.append(
            f"| {name.replace(' cells', '').replace(' cell', '')} | {'' if busy is None else f'{busy:.2f}'} | {found['cells_small_p99', name]:.0f} min | {found['cells_large_p99', name]:.0f} min"
            f" | {'next day' if found['cells_left', name] else f'{over // 60}:{over % 60:02}'} | {found['cells_unused', name]:.1f} million |"
        )
    return [
        *text,
        "",
        "The busy cores come from the simulation of every claim, the waits from one in steps of a minute. The second differs from the first by "
        f"{found['cells_model_off', 'minutes beside claims']:.1f} minutes",
        "in a tenant's mean wait (20 minutes with an outage of 4), the first from two real cells with an outage by the share in the table above.",
        "A limit that is split costs waiting time where cells have different loads: split it by load, or give each cell a provider key.",
        "",
    ]
