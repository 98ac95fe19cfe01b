"""Released migrations never change: a database that has applied one would differ from a new one without notice."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# In the format of `sha256sum`. A release appends the lines of its new
# migrations. A file may move to another folder; its checksum never changes.
RELEASED = ROOT / "tests/released_migrations.sha256"
FOLDERS = ["penstock/sql/migrations", *(str(path.relative_to(ROOT)) for path in ROOT.glob("penstock/apps/*/sql/migrations"))]  # fmt: skip


def released() -> dict[str, str]:
    """Path → checksum."""
    lines = (line.split("  ", 1) for line in RELEASED.read_text().splitlines())
    return {path: checksum for checksum, path in lines}


def problems(read: Callable[[Path], bytes] = Path.read_bytes) -> list[str]:
    found: list[str] = []
    for name, checksum in released().items():
        path = ROOT / name
        if not path.exists():
            found.append(f"{name}: released, and missing")
        elif hashlib.sha256(read(path)).hexdigest() != checksum:
            found.append(f"{name}: released, and changed; add a new migration instead")
    return found


def number(name: str) -> int:
    return int(re.match(r"\d+", Path(name).name)[0])  # pyright: ignore[reportOptionalSubscript]


def test_released_migrations_are_unchanged() -> None:
    assert len(released()) >= 24
    assert problems() == []


def test_a_changed_migration_is_named() -> None:
    assert len(problems(read=lambda path: path.read_bytes() + b" ")) == len(released())


@pytest.mark.parametrize("folder", FOLDERS)
def test_new_migrations_come_after_the_released_ones(folder: str) -> None:
    known = {name for name in released() if Path(name).parent == Path(folder)}
    last = max((number(name) for name in known), default=0)
    files = {str(path.relative_to(ROOT)) for path in (ROOT / folder).glob("*.sql")}
    assert files >= known
    assert [name for name in sorted(files - known) if number(name) <= last] == []
