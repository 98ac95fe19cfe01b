"""`python -m penstock.apps.slides`: make an event with 20 slides, switch it on and show 20 real thumbnails.

Runs everything in one process: the worker, the API, and a simulated CloudConvert. `--local` converts with
LibreOffice on this machine instead.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
from pathlib import Path

import structlog
from rich.console import Console

from penstock.apps.slides import demo, local


def main() -> int:
    """Parse the options and run the demo."""
    parser = argparse.ArgumentParser(prog="python -m penstock.apps.slides", description=__doc__)
    parser.add_argument("--slides", type=int, default=20, help="number of slides (default: 20)")
    parser.add_argument(
        "--folder", type=Path, default=Path("thumbnails"), help="where to write the thumbnails"
    )
    parser.add_argument("--local", action="store_true", help="convert with LibreOffice on this machine")
    chosen = parser.parse_args()
    if chosen.slides not in range(1, 1001):
        parser.error(f"--slides must be between 1 and 1000 (got {chosen.slides})")
    if chosen.local and local.soffice() is None:
        parser.error("LibreOffice is not installed: apt install libreoffice-impress")
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    options = demo.Options(chosen.slides, chosen.folder, chosen.local)
    return 0 if asyncio.run(demo.run(options, Console())) == chosen.slides else 1


if __name__ == "__main__":
    raise SystemExit(main())
