"""Append the checksums of new migrations to tests/frozen_migrations.sha256. Existing lines stay."""

from __future__ import annotations

import hashlib
from pathlib import Path

ROOT = Path(__file__).parents[1]
# In the format of `sha256sum`. A file may move to another folder; its checksum never changes.
FROZEN = ROOT / "tests/frozen_migrations.sha256"


def migrations() -> dict[str, Path]:
    """The migrations of the tree, by path from the root."""
    folders = [ROOT / "penstock/sql/migrations", *sorted(ROOT.glob("penstock/apps/*/sql/migrations"))]
    return {str(path.relative_to(ROOT)): path for folder in folders for path in sorted(folder.glob("*.sql"))}


def frozen() -> dict[str, str]:
    """Path → checksum."""
    lines = (line.split("  ", 1) for line in FROZEN.read_text(encoding="utf-8").splitlines())
    return {path: checksum for checksum, path in lines}


def main() -> None:
    known = frozen()
    with FROZEN.open("a", encoding="utf-8") as file:
        for name, path in migrations().items():
            if name not in known:
                file.write(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {name}\n")


if __name__ == "__main__":
    main()
