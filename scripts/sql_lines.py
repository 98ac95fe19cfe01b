"""Fails when a line of SQL is longer than 110 columns. Frozen migrations never change, so they are exempt."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from scripts.freeze import ROOT, frozen

LONGEST = 110
GENERATED = {"penstock/sql/schema.sql"}


def files() -> Iterator[Path]:
    exempt = GENERATED | set(frozen())
    for folder in ("penstock", "tests", "bench", "examples"):
        for path in sorted((ROOT / folder).rglob("*.sql")):
            # The benchmark installs packages of its peers in its folder.
            if str(path.relative_to(ROOT)) not in exempt and "node_modules" not in path.parts:
                yield path


def main() -> int:
    found = [
        f"{path.relative_to(ROOT)}:{number}: {len(line)} columns, at most {LONGEST}"
        for path in files()
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        if len(line) > LONGEST
    ]
    print("\n".join(found), end="\n" if found else "", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
