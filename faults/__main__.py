"""`python -m faults --server 18 --tasks 200000 --seed 7 --minutes 20`: prints a summary; exit status 1 if anything is
off. With `--save` the figures are kept in faults/results and docs/reliability.md."""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path

from faults import report, run
from faults.plan import Plan


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m faults", description=__doc__)
    parser.add_argument("--server", type=int, default=18, help="which PostgreSQL: 15, 16 or 18")
    parser.add_argument("--tasks", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=7, help="of the schedule and of the work")
    parser.add_argument("--minutes", type=float, default=20, help="how long faults happen")
    parser.add_argument("--every", type=float, default=2.5, help="seconds between two faults, on average")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--lease", type=int, help="seconds; default: the worker's own")
    parser.add_argument("--keep", type=Path, help="a folder for the histories and logs")
    parser.add_argument("--save", action="store_true", help="keep the figures")
    given = parser.parse_args()
    plan = Plan(
        server=given.server, tasks=given.tasks, seed=given.seed, seconds=given.minutes * 60, every=given.every,
        workers=given.workers, lease_seconds=given.lease, poison=max(1, given.tasks // 20_000),
    )  # fmt: skip
    # SIGTERM must stop the processes that the run has started.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    result = run.run(plan, given.keep)
    print(report.table(result))
    if given.save:
        report.save(result)
    return 0 if result.is_good else 1


if __name__ == "__main__":
    sys.exit(main())
