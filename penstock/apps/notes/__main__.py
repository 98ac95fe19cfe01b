"""`python -m penstock.apps.notes two-devices`: two devices edit offline, converge, find ideas and export.

Runs everything in one process: the database, the API, a simulated model, and two devices with a file each.
Text is encrypted on the devices; the demo prints what the server has of it.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
from pathlib import Path

import structlog
from rich.console import Console

from penstock.apps.notes import demo


def main(words: list[str] | None = None) -> int:
    """Parse the options and run the demo."""
    parser = argparse.ArgumentParser(prog="python -m penstock.apps.notes", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    devices = commands.add_parser("two-devices", help="two devices edit offline and converge")
    devices.add_argument(
        "--folder", type=Path, default=Path("notes-demo"), help="where to keep both libraries"
    )
    devices.add_argument("--notes", type=int, default=30, help="number of notes (default: 30)")
    chosen = parser.parse_args(words)
    if chosen.notes not in range(4, 1001):
        parser.error(f"--notes must be between 4 and 1000 (got {chosen.notes})")
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    return 0 if asyncio.run(demo.run(chosen.folder, chosen.notes, Console())) else 1


if __name__ == "__main__":
    raise SystemExit(main())
