"""The outbox: changes that the server has not confirmed, and the shelf of those that it refused."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from penstock.apps.notes.device.tables import SYNCED


@dataclass(frozen=True)
class Entry:
    """A queued change of one record. A larger `seq` is later."""

    seq: int
    table: str
    record_id: str
    payload: dict[str, Any]


@dataclass(frozen=True)
class Change:
    """All queued changes of a record as one, and the last entry that it covers."""

    table: str
    record: dict[str, Any]
    last_seq: int


@dataclass(frozen=True)
class Refused:
    """A change on the shelf: the server refused it."""

    number: int
    table: str
    record: dict[str, Any]
    code: str
    message: str


def collapse(entries: Iterable[Entry]) -> list[Change]:
    """One change per record: later fields replace earlier ones, and a delete sticks.

    A payload undeletes only if it says `deleted: false`. The result has parents before children, and keeps
    the order in which records were first changed.
    """
    found: dict[tuple[str, str], Change] = {}
    for entry in sorted(entries, key=lambda entry: entry.seq):
        key = (entry.table, entry.record_id)
        before = found[key].record if key in found else {}
        found[key] = Change(entry.table, before | entry.payload, entry.seq)
    order = list(SYNCED)
    changes = sorted(found.values(), key=lambda change: order.index(change.table))
    return [Change(c.table, {"deleted": False, **c.record}, c.last_seq) for c in changes]


def add(conn: sqlite3.Connection, table: str, payload: dict[str, Any]) -> None:
    """Queue a change, in the transaction that makes it locally."""
    conn.execute(
        "insert into outbox (table_name, record_id, payload, created_at) values (?, ?, ?, ?)",
        (table, payload["id"], json.dumps(payload), payload["updated_at"]),
    )


def pending(conn: sqlite3.Connection) -> list[Entry]:
    """All queued changes, oldest first."""
    rows = conn.execute("select seq, table_name, record_id, payload from outbox order by seq").fetchall()
    return [Entry(seq, table, record_id, json.loads(payload)) for seq, table, record_id, payload in rows]


def has(conn: sqlite3.Connection, table: str, record_id: str) -> bool:
    """Whether a change of this record is queued."""
    query = "select 1 from outbox where table_name = ? and record_id = ? limit 1"
    return conn.execute(query, (table, record_id)).fetchone() is not None


def remove(conn: sqlite3.Connection, table: str, record_id: str, last_seq: int | None = None) -> None:
    """Forget the changes of a record, up to the last one that was sent."""
    conn.execute(
        "delete from outbox where table_name = ? and record_id = ? and seq <= ?",
        (table, record_id, 2**62 if last_seq is None else last_seq),
    )


def rewrite(conn: sqlite3.Connection, entry: Entry, **values: Any) -> None:
    """Replace some values of a queued change."""
    payload = json.dumps({**entry.payload, **values})
    conn.execute("update outbox set payload = ? where seq = ?", (payload, entry.seq))


def shelve(conn: sqlite3.Connection, change: Change, code: str, message: str) -> None:
    """Move a refused change from the outbox to the shelf, where it blocks nothing."""
    remove(conn, change.table, change.record["id"], change.last_seq)
    conn.execute(
        "insert into shelf (table_name, record_id, payload, code, message) values (?, ?, ?, ?, ?)",
        (change.table, change.record["id"], json.dumps(change.record), code, message),
    )


def shelf(conn: sqlite3.Connection) -> list[Refused]:
    """The refused changes, oldest first."""
    rows = conn.execute("select number, table_name, payload, code, message from shelf order by number")
    return [
        Refused(number, table, json.loads(payload), code, message)
        for number, table, payload, code, message in rows
    ]


def unshelve(conn: sqlite3.Connection, number: int) -> Refused | None:
    """Take a refused change off the shelf; None if it is not there."""
    found = next((each for each in shelf(conn) if each.number == number), None)
    conn.execute("delete from shelf where number = ?", (number,))
    return found
