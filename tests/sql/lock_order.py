"""The lock order that claim.sql declares, and the locks that sessions are seen to wait for.

A session that waits for a row shows the row's table in pg_locks (as a tuple lock), and the tables in which it may have
locked rows (as relation locks). Every table it has locked must come before the one it waits for.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any, NamedTuple

import pytest

from penstock.postgres import db, migrate

_RANK = re.compile(r"^-- +(\d+)\. ([a-z_]+(?:, [a-z_]+)*)", re.MULTILINE)
_NEVER = re.compile(r"^-- +never waited for: (.+)$", re.MULTILINE)
_INSERTED = re.compile(r"^-- +inserted into at any point: (.+)$", re.MULTILINE)
# pg_stat_activity belongs to this reading of pg_locks while the transaction is the same. Only transactions of one
# call: a caller that makes several calls in one decides on their order itself.
_WAITS = """
with lock as materialized (
  select l.*, c.relname::text as name from pg_locks l
  left join pg_class c on c.oid = l.relation and c.relnamespace = 'penstock'::regnamespace and c.relkind = 'r'
)
select a.query, a.pid, a.backend_xid::text as xid, t.page, t.tuple, t.name as waits_for, array(
    select distinct h.name from lock h where h.pid = a.pid and h.locktype = 'relation' and h.granted
      and h.mode in ('RowShareLock', 'RowExclusiveLock') and h.name is not null order by h.name) as held
from pg_stat_activity a
join lock w on w.pid = a.pid and not w.granted
join lock t on t.pid = a.pid and t.locktype = 'tuple' and t.name is not null
where a.datname = current_database() and a.query_start - a.xact_start < interval '1 millisecond'
  and exists (
    select from lock x where x.pid = a.pid and x.locktype = 'transactionid' and x.granted
      and x.transactionid = a.backend_xid)
"""


# Deleted first, long after they expired: see claim.sql.
_EXPIRED = {"prune": {"spent", "calls", "holds", "artifacts"}}


class Wait(NamedTuple):
    """A call that waits for a row of a table, with the tables it has locked rows of."""

    function: str
    waits_for: str
    held: frozenset[str]


class Order(NamedTuple):
    """What claim.sql declares."""

    ranks: dict[str, int]
    never: frozenset[str]
    """Tables whose rows nobody may wait for."""
    inserted: frozenset[str]
    """Tables in which most only insert: that they have written there says nothing about rows that were there."""


@cache
def declared() -> Order:
    text = (migrate.SQL / "functions/claim.sql").read_text(encoding="utf-8")
    ranks = {table: int(n) for n, tables in _RANK.findall(text) for table in tables.split(", ")}
    return Order(
        ranks, *(frozenset(", ".join(line.findall(text)).split(", ")) for line in (_NEVER, _INSERTED))
    )


def waits(watcher: db.SyncConnection) -> list[Wait]:
    """What sessions of this database wait for. One reading of pg_locks is not of one moment: two must agree."""
    first, second = (_read(watcher) for _ in range(2))
    return [
        Wait(_function(row["query"]), row["waits_for"], frozenset(row["held"]))
        for place, row in second.items()
        if place in first and first[place]["held"] == row["held"]
    ]


def _read(watcher: db.SyncConnection) -> dict[tuple[Any, ...], dict[str, Any]]:
    rows = watcher.execute(_WAITS).fetchall()
    return {tuple(row[part] for part in ("pid", "xid", "waits_for", "page", "tuple")): row for row in rows}


def _function(query: str) -> str:
    called = re.search(r"penstock\.(\w+)\(", query)
    return called[1] if called else query


def violation(wait: Wait) -> str | None:
    """How a wait breaks the declared order, if it does."""
    order = declared()
    waiting = f"{wait.function} waits for a row of {wait.waits_for}"
    if wait.waits_for in order.never:
        return f"{waiting}, which is never waited for"
    if wait.waits_for not in order.ranks:
        return f"{waiting}, which the lock order does not name"
    rank = order.ranks[wait.waits_for]
    held = wait.held - order.inserted - _EXPIRED.get(wait.function, set())
    later = sorted(table for table in held if order.ranks.get(table, 0) > rank)
    return f"{waiting} while it holds rows of {', '.join(later)}" if later else None


class LockWatch:
    """Collects what sessions wait for, and fails on a wait against the order."""

    def __init__(self) -> None:
        self.seen: set[Wait] = set()

    def look(self, watcher: db.SyncConnection) -> None:
        self.seen.update(waits(watcher))

    def check(self) -> None:
        if found := sorted(filter(None, map(violation, self.seen))):
            pytest.fail("Against the lock order of claim.sql:\n" + "\n".join(found))
