"""`python -m bench`: compares Penstock with its peers and with plain PostgreSQL, in one run on one server.

Writes bench/results/latest.json and prints tables. `--quick` uses smaller sizes and measures
only the queue itself; `--only PART` runs one part and replaces its figures.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import cast

from bench import (
    api,
    bulks,
    cells,
    dashboard,
    engine,
    flow,
    intake,
    measure,
    neighbour,
    ours,
    pressure,
    routes,
    scale,
    server,
    sheets,
    slides,
    startup,
    streams,
    uploads,
    waits,
)
from bench.measure import Figure, System
from bench.peers import NAMES, load

RESULTS = Path(__file__).parent / "results"
PARTS = (
    "peers",
    "pressure",
    "limit",
    "bulk",
    "depth",
    "fairness",
    "fifo",
    "pause",
    "held",
    "lanes",
    "quota",
    "forecast",
    "rollup",
    "wire",
    "api",
    "rows",
    "budget",
    "sheets",
    "scale",
    "cells",
    "dashboard",
    "startup",
    "neighbour",
    "slides",
    "intake",
    "uploads",
    "kills",
    "routes",
    "waiting",
    "streams",
)
QUICK = PARTS[: PARTS.index("held") + 1]
"""The queue compared with its peers and with PostgreSQL; takes a few minutes."""
# The upper bound of a figure: pgbench with the same statements and clients, and a plain COPY of the same
# rows.
LIMITS = {
    "enqueue": engine.BARE_COPY,
    "drain_1": "limit_1",
    "drain_2": "limit_2",
    "shallow_drain": "limit_1",
    "kept_drain": "limit_1",
    "deep_drain": "limit_1",
    "held_drain": "limit_1",
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="smaller sizes, one peer under pressure")
    parser.add_argument("--only", choices=PARTS, action="append", help="may be given more than once")
    parser.add_argument("--peers", default=",".join(NAMES), help="which peers, separated by commas")
    parser.add_argument("--rounds", type=int, help="rounds of the comparison, interleaved; the median counts")
    parser.add_argument("--json", type=Path, default=RESULTS / "latest.json")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    parts = arguments.only or (QUICK if arguments.quick else PARTS)
    size = (lambda full, quick: quick) if arguments.quick else (lambda full, quick: full)
    figures: list[Figure] = []
    with server.postgres() as postgres:
        print(
            f"PostgreSQL {postgres.version()}, Python {platform.python_version()}, {os.cpu_count()} cores",
            flush=True,
        )
        numbers = count(1)

        def new() -> str:
            return postgres.create_database(f"bench_{next(numbers)}")

        def show(part: str, made: Callable[[], list[Figure]]) -> None:
            if part in parts:
                print(f"\n## {part}", flush=True)
                with measure.timer() as seconds:
                    found = [replace(figure, part=part) for figure in made()]
                figures.extend(found)
                if part not in ("peers", "pressure"):
                    for figure in found:
                        print(
                            f"  {figure.name:<18} {figure.system:<36} {figure.value:>14,.2f} {figure.unit}",
                            flush=True,
                        )
                print(f"  {seconds():.0f} s", flush=True)

        systems = ["penstock", *arguments.peers.split(",")]
        rounds = arguments.rounds or size(2, 1)
        show(
            "peers",
            lambda: with_ratios(
                side_by_side(
                    postgres,
                    systems * rounds,
                    lambda system, store: measure.measure(system, store, size(20_000, 2_000), size(200, 30)),
                )
            ),
        )
        show(
            "pressure",
            lambda: side_by_side(
                postgres,
                size(systems, systems[:2]),
                lambda system, store: pressure.pressure(system, store, size(pressure.FULL, pressure.QUICK)),
            ),
        )
        show(
            "limit",
            lambda: [f for clients in (1, 2) for f in engine.limit(new(), size(200_000, 20_000), clients)],
        )
        show("bulk", lambda: engine.bulk(new(), size(1_000_000, 50_000)))
        show("depth", lambda: engine.depth(new(), 10_000, size(5_000_000, 100_000), size(1_000_000, 50_000)))
        show("fairness", lambda: engine.fairness(new(), new(), size(1_000_000, 50_000), size(1000, 100)))
        show("fifo", lambda: engine.fifo(new(), size(200_000, 20_000), 100))
        show("pause", lambda: engine.pause(new(), size(1_000_000, 50_000)))
        show("held", lambda: engine.held_snapshot(new(), size(300, 8), 3000))
        show("lanes", lambda: flow.limited_lanes(new, size(200_000, 20_000), 100))
        show("lanes", lambda: flow.closed_lane(new(), size(1_000_000, 50_000)))
        show("quota", lambda: flow.last_unit(new(), size(10_000, 100)))
        show("forecast", lambda: flow.forecasts(new(), size(50, 5)))
        show("rollup", lambda: flow.rollup(new(), size(10_000_000, 500_000)))
        show("dashboard", lambda: dashboard.pages(new(), size(1_000_000, 20_000), size(10_000, 200)))
        show("wire", lambda: flow.wire(new(), size(600, 15)))
        show("api", lambda: api.watchers(new(), size([20, 200, 2000], [20, 100]), size(15, 2)))
        show("api", lambda: api.clients(new(), size(1000, 50), size(15, 2)))
        show("api", lambda: api.beside(new, 32, size(6, 1), size(3, 1)))
        show("rows", lambda: bulks.rows(new(), size(1_000_000, 20_000)))
        show("rows", lambda: bulks.loading(new(), size(100_000, 5000)))
        show("budget", lambda: bulks.budgets(new(), size(100, 10)))
        show("sheets", lambda: sheets.pipeline(new(), size(10_000, 300)))
        show("scale", lambda: scale.measure(new, arguments.quick))
        show("cells", lambda: beside(lambda other: cells.measure(new, other, arguments.quick)))
        show("startup", lambda: startup.startup(size(9, 3)))
        show("neighbour", lambda: neighbour.measure(new(), size(20_000, 2000), size(15, 5)))
        show("slides", lambda: slides.measure(new(), size(1_000_000, 20_000), size(500, 50)))
        show("intake", intake.measure)
        show("uploads", lambda: uploads.run(uploads.QUIET))
        show("kills", lambda: uploads.run(uploads.FAULTY))
        show("routes", lambda: routes.figures(new(), size(1000, 200)))
        show("streams", lambda: streams.measure(new(), size(1000, 50), size(10, 3)))
        show("waiting", lambda: waits.measure(new(), new(), size(1_000_000, 20_000), size(1500, 200)))
    save(figures, arguments.json, parts)


def beside(measured: Callable[[Callable[[], str]], list[Figure]]) -> list[Figure]:
    """Measure with a second server."""
    with server.postgres() as second:
        numbers = count(1)
        return measured(lambda: second.create_database(f"bench_{next(numbers)}"))


def side_by_side(
    postgres: server.Postgres,
    names: list[str],
    measured: Callable[[System, pressure.Store], list[Figure]],
) -> list[Figure]:
    """Measure the systems in turn, round by round, so that noise affects all of them equally."""
    install_peers()
    figures: list[Figure] = []
    for name in names:
        try:
            system = cast(System, ours) if name == "penstock" else load(name)
            figures += measured(system, server.redis if system.STORE == "redis" else postgres.database)
        except Exception as reason:
            if name == "penstock":
                raise
            # A system that is not installed or fails is skipped; the others are measured.
            print(f"{name}: skipped: {type(reason).__name__}: {reason}", file=sys.stderr, flush=True)
            continue
        print(f"  {name} measured", flush=True)
    figures = measure.medians(figures)
    for columns in (measure.COLUMNS, pressure.COLUMNS):
        if any(figure.name in columns for figure in figures):
            print(measure.table(figures, columns), flush=True)
    return figures


def with_ratios(figures: list[Figure]) -> list[Figure]:
    return figures + ratios(figures)


def ratios(figures: list[Figure]) -> list[Figure]:
    """Print how much faster Penstock is than each peer."""
    ours_by_name = {figure.name: figure.value for figure in figures if figure.system.startswith("penstock")}
    found: list[Figure] = []
    for figure in figures:
        mine = ours_by_name.get(figure.name)
        if figure.system.startswith("penstock") or not mine or not figure.value:
            continue
        ratio = mine / figure.value if figure.unit == "jobs/s" else figure.value / mine
        found.append(Figure(f"{figure.name}_ratio", f"penstock : {figure.system}", ratio, "×"))
        print(f"  {figure.name:<12} {ratio:6.2f} × {figure.system}")
    return found


def install_peers() -> None:
    """Install the peers before the first measurement: they are no dependencies of Penstock."""
    marker = Path(sys.prefix) / ".bench-peers"
    wanted = (Path(__file__).parent / "requirements.txt").read_text()
    if marker.exists() and marker.read_text() == wanted:
        return
    pip = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        "-r",
        "bench/requirements.txt",
    ]
    subprocess.run(pip, check=True, cwd=measure.REPOSITORY)
    marker.write_text(wanted)


def save(figures: list[Figure], path: Path, parts: Sequence[str]) -> None:
    """Write the figures of these parts; the figures of other parts stay unchanged."""
    path.parent.mkdir(exist_ok=True)
    before = json.loads(path.read_text()) if path.exists() else []
    rows = [row for row in before if row["part"] in PARTS and row["part"] not in parts]
    rows += [figure.as_dict() for figure in figures]
    limits = {row["name"] if row["name"] != "bulk" else row["system"]: row["value"] for row in rows}
    for row in rows:
        limit = limits.get(LIMITS.get(row["name"], ""))
        row["ratio_to_limit"] = round(row["value"] / limit, 3) if limit else None
        if limit and row["system"].startswith("penstock"):
            print(f"  {row['name']}: {row['ratio_to_limit']:.0%} of plain PostgreSQL without Python")
    rows.sort(key=lambda row: PARTS.index(row["part"]))
    path.write_text(json.dumps(rows, indent=1) + "\n")
    print(f"written to {path}")


if __name__ == "__main__":
    main()
