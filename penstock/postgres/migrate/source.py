"""Reads a folder of SQL."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from penstock.errors import Invalid
from penstock.postgres.migrate.statements import Unit, split, units

SQL = Path(__file__).parents[2] / "sql"
PENSTOCK = "penstock"
"""The schema that this folder is for."""

_SCHEMA = re.compile(r"(?!pg_)[a-z][a-z0-9_]{0,62}")
_TAKEN = {"auth", "extensions", "information_schema", "public", "storage"}
MIGRATION_NAME = re.compile(r"(?P<number>\d{4})_[a-z][a-z0-9_]*\.sql")
_AFTER_FUNCTIONS = ("views.sql", "grants.sql", "policies.sql")


class Own(NamedTuple):
    """The SQL that an app brings: a folder, and the schema it is for."""

    schema: str
    folder: Path


@dataclass(frozen=True)
class File:
    """One file of sql/."""

    name: str
    text: str
    is_contract: bool = False
    is_transactional: bool = True

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()

    @property
    def number(self) -> int:
        return int(self.name[:4])


@dataclass(frozen=True)
class Source:
    """The content of a folder, and the schema it is for."""

    schema: str
    migrations: tuple[File, ...]
    downs: Mapping[int, File]
    code: tuple[File, ...]

    @cached_property
    def units(self) -> tuple[Unit, ...]:
        """What the code files define, object by object."""
        return units(statement for file in self.code for statement in split(file.name, file.text))

    def pending(self, applied: Mapping[str, str], *, contract: bool) -> list[File]:
        return [m for m in self.migrations if m.name not in applied and (contract or not m.is_contract)]


def read(folder: Path = SQL, schema: str = PENSTOCK) -> Source:
    """Read the folder. Refuses names and first lines that do not follow the rules."""
    if not _SCHEMA.fullmatch(schema) or schema in _TAKEN:
        raise Invalid(f"{schema!r} is not the name of a schema of one's own", hint="Such as video_ideas.")
    if not folder.is_dir():
        raise Invalid(f"there is no folder {folder}")
    downs = {
        int(path.name[:4]): _file(path, path.name) for path in (folder / "migrations").glob("*.down.sql")
    }
    migrations = [
        _migration(path)
        for path in sorted((folder / "migrations").glob("*.sql"))
        if not path.name.endswith(".down.sql")
    ]
    for expected, migration in enumerate(migrations, start=1):
        if migration.number != expected:
            raise Invalid(
                f"{migration.name} should be number {expected:04}: numbers have no gaps and no doubles"
            )
    functions = [_file(p, f"functions/{p.name}") for p in sorted((folder / "functions").glob("*.sql"))]
    last = [_file(folder / name, name) for name in _AFTER_FUNCTIONS if (folder / name).exists()]
    return Source(schema, tuple(migrations), downs, (*functions, *last))


def _file(path: Path, name: str) -> File:
    return File(name, path.read_text(encoding="utf-8"))


def _migration(path: Path) -> File:
    if not MIGRATION_NAME.fullmatch(path.name):
        raise Invalid(f"{path.name} is not named like 0001_create_things.sql")
    text = path.read_text(encoding="utf-8")
    first, second, *_ = [*text.split("\n", 2), ""]
    if first not in ("-- phase: expand", "-- phase: contract"):
        raise Invalid(f"{path.name} must begin with a line '-- phase: expand' or '-- phase: contract'")
    return File(path.name, text, first.endswith("contract"), second != "-- no transaction")
