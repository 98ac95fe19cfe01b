"""Fails when a line of the SQL that every migration applies is longer than 110 columns."""

from __future__ import annotations

import sys
from pathlib import Path

SQL = Path(__file__).parents[1] / "penstock/sql"
LONGEST = 110


def main() -> int:
    files = [*sorted((SQL / "functions").glob("*.sql")), SQL / "views.sql", SQL / "grants.sql"]
    found = [
        f"{path.relative_to(SQL.parents[1])}:{number}: {len(line)} columns, at most {LONGEST}"
        for path in files
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        if len(line) > LONGEST
    ]
    print("\n".join(found), end="\n" if found else "", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
