"""Migrations never change: a database that has applied one would differ from a new one without notice."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

from scripts.freeze import ROOT, frozen, migrations

REMEDY = "add a new migration instead, or delete its line if it never left your branch"


def problems(read: Callable[[Path], bytes] = Path.read_bytes) -> list[str]:
    found: list[str] = []
    for name, checksum in frozen().items():
        path = ROOT / name
        if not path.exists():
            found.append(f"{name}: frozen, and missing")
        elif hashlib.sha256(read(path)).hexdigest() != checksum:
            found.append(f"{name}: frozen, and changed; {REMEDY}")
    return found


def test_frozen_migrations_are_unchanged() -> None:
    assert len(frozen()) >= 160
    assert problems() == []


def test_a_changed_migration_is_named() -> None:
    assert len(problems(read=lambda path: path.read_bytes() + b" ")) == len(frozen())


def test_every_migration_is_frozen() -> None:
    """`make schema` freezes new ones."""
    assert set(migrations()) - set(frozen()) == set()
