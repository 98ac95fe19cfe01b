"""Applies grants so that only privileges that differ are touched.

Every change of an object's privileges makes all sessions plan its queries again, also a revoke and a grant
that undo each other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple, TypeAlias

from penstock.postgres.migrate.connection import Connection, execute, rows
from penstock.postgres.migrate.source import SQL


class Privilege(NamedTuple):
    column: str
    name: str
    is_grantable: bool


Privileges: TypeAlias = dict[tuple[str, str], frozenset[Privilege]]
"""By object and role."""


def change(connection: Connection, grant: Callable[[], None]) -> None:
    """Bring all privileges to what `grant` makes of them."""
    before = _read(connection)
    with connection.transaction(force_rollback=True):
        grant()
        wanted = _read(connection)
    for statement in _changes(before, wanted):
        execute(connection, statement)


def _changes(before: Privileges, wanted: Privileges) -> Iterator[str]:
    for place in sorted({*before, *wanted}):
        had, has = before.get(place, frozenset()), wanted.get(place, frozenset())
        if had == has:
            continue
        target, role = place
        if had:
            yield f"revoke all on {target} from {role}"
        for column, name, is_grantable in sorted(has):
            of = f"{name} ({column})" if column else name
            yield f"grant {of} on {target} to {role}" + (" with grant option" if is_grantable else "")


def _read(connection: Connection) -> Privileges:
    query = (SQL / "privileges.sql").read_text(encoding="utf-8")
    found: dict[tuple[str, str], set[Privilege]] = {}
    for target, role, column, name, is_grantable in rows(connection, query):
        found.setdefault((target, role), set()).add(Privilege(column, name, is_grantable))
    return {place: frozenset(privileges) for place, privileges in found.items()}
