"""`python -m bench.peers --jobs 20000`: measure the peers and print a table."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from itertools import count
from pathlib import Path

from bench import measure, server
from bench.peers import NAMES, run


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.peers", description=__doc__)
    parser.add_argument("--jobs", type=int, default=20_000, help="for the fast ones; slow ones get a fifth")
    parser.add_argument("--samples", type=int, default=500, help="jobs whose latency is measured")
    parser.add_argument("--rounds", type=int, default=1, help="interleaved; the median counts")
    parser.add_argument("--only", choices=NAMES, action="append", help="may be given more than once")
    parser.add_argument("--binaries", type=Path, help="PostgreSQL's bin folder; default: the embedded 18")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures here")
    arguments = parser.parse_args()
    # So that a termination ends the servers and workers as an interruption does.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))

    figures: list[measure.Figure] = []
    with server.postgres(arguments.binaries) as postgres:
        # Whatever else runs here takes its share of the figures.
        print(f"PostgreSQL {postgres.version()}, load before: {os.getloadavg()[0]:.1f}", flush=True)
        numbers = count(1)

        def new_database() -> str:
            return postgres.create_database(f"bench_{next(numbers)}")

        for name in list(arguments.only or NAMES) * arguments.rounds:
            try:
                figures += run(name, new_database, arguments.jobs, arguments.samples)
            except (ImportError, server.UnavailableError) as reason:
                print(f"{name}: left out: {reason}", file=sys.stderr, flush=True)
    figures = measure.medians(figures)
    print(measure.table(figures))
    if arguments.json:
        arguments.json.write_text(json.dumps([figure.as_dict() for figure in figures], indent=2) + "\n")


if __name__ == "__main__":
    main()
