"""CPU that starting Penstock costs: `import penstock`, the modules of a worker, and `penstock --help`."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys

from bench.measure import Figure

# name of the figure → what runs, and its arguments
PROGRAMS = {
    "startup_import": ("import penstock", ["-c", "import penstock"]),
    "startup_worker": ("import a worker", ["-c", "from penstock import App, Worker"]),
    "startup_help": ("penstock --help", ["-m", "penstock", "--help"]),
}


def startup(rounds: int) -> list[Figure]:
    """The median CPU time of each program, user and system, with compiled modules."""
    found: list[Figure] = []
    for name, (program, arguments) in PROGRAMS.items():
        times = [_cpu_milliseconds(arguments) for _ in range(rounds + 1)][1:]
        found.append(Figure(name, program, statistics.median(times), "ms"))
    return found


def _cpu_milliseconds(arguments: list[str]) -> float:
    before = os.times()
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
    after = os.times()
    return 1000 * (
        after.children_user + after.children_system - before.children_user - before.children_system
    )
